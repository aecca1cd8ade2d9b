/* What a strategy computes with, where its layers are. */
#include "nn/exact.h"
#include "run/context.h"

int ddp_axpy(ddp_ctx *d, float *y, const float *x, size_t n, float a)
{
    DDP__VERB("ddp_axpy");
    ddp__axpy(d, y, x, n, a);
    return 0;
}

int ddp_copy(ddp_ctx *d, float *y, const float *x, size_t n)
{
    DDP__VERB("ddp_copy");
    ddp__host_copy(&d->host, y, x, n * sizeof *y);
    return 0;
}

int ddp_scale(ddp_ctx *d, float *x, size_t n, float a)
{
    DDP__VERB("ddp_scale");
    ddp__scale_there(d, x, n, a);
    return 0;
}

int ddp_set(ddp_ctx *d, float *x, size_t n, float a)
{
    DDP__VERB("ddp_set");
    if (d->host.backend) d->host.backend->fill(d->host.device, x, n, a);
    else
        for (size_t i = 0; i < n; i++) x[i] = a;
    return 0;
}

int ddp_norm2(ddp_ctx *d, const float *x, size_t n, double *out)
{
    DDP__VERB("ddp_norm2");
    if (d->host.backend) return (int)d->host.backend->norm2(d->host.device, x, n, out, &d->host.error);
    *out = ddp__sum_squares(x, n);
    return 0;
}

int ddp_download(ddp_ctx *d, float *y, const float *x, size_t n)
{
    DDP__VERB("ddp_download");
    return (int)ddp__host_download(&d->host, y, x, n * sizeof *y, &d->host.error);
}

int ddp_upload(ddp_ctx *d, float *y, const float *x, size_t n)
{
    DDP__VERB("ddp_upload");
    ddp__host_upload(&d->host, y, x, n * sizeof *y);
    return 0;
}

int ddp_late_apply(ddp_ctx *d, float *target, float *late, const float *own, size_t n, ddp_late rule, float f)
{
    DDP__VERB("ddp_late_apply");
    switch (rule) {
    case DDP_LATE_MIX:
        if (f == 0) ddp__host_copy(&d->host, target, late, n * sizeof *target);
        else ddp__scale_there(d, target, n, f), ddp__axpy(d, target, late, n, 1 - f);
        return 0;
    case DDP_LATE_OWN:
        ddp__host_copy(&d->host, target, late, n * sizeof *target);
        ddp__axpy(d, target, own, n, -f);
        return 0;
    case DDP_LATE_COMPENSATE:
        if (d->host.backend) d->host.backend->compensate(d->host.device, late, target, own, n, f);
        else ddp__late_compensate(late, target, own, n, f);
        return 0;
    }
    return ddp_complain(d, DDP_ARG, "ddp_late_apply: rule %d does not exist", (int)rule);
}
