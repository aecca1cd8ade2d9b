/* A context on a device: opening its backend, and what is checked and waited for there. */
#include "run/device.h"

/* ---- opening ---- */

/* The place of this rank among those of its machine, as a launcher says it. */
static int ddp__device_local(const ddp_ctx *d)
{
    static const char *const names[] = {"DREAMDDP_LOCAL_RANK", "LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
    long v;

    for (size_t i = 0; !d->cfg.no_env && i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text && ddp__parse_long(text, &v) && v >= 0 && v < 65536) return (int)v;
    }
    return d->rank;
}

ddp_status ddp__device_open(ddp_ctx *d, ddp_error *err)
{
    const ddp_backend *b = d->cfg.backend;

    if (!b || ddp__is_server(d)) return DDP_OK; /* what it serves is here */
    DDP__TRY(b->open(b, ddp__device_local(d), d->cfg.cuda_stream, &d->host.device, err));
    d->host.backend = b;
    return DDP_OK;
}

/* Messages that may be under way: what the strategy may post, a pipeline's, and a few are the context's own. */
static int ddp__device_room(const ddp_ctx *d) { return d->posted_room + 2 * d->layers + 16 + d->edge_messages; }

ddp_status ddp__device_start(ddp_ctx *d, ddp_error *err)
{
    const ddp_backend *b = d->host.backend;
    size_t total = 0, largest = 0;

    if (!b) return DDP_OK;
    DDP__TRY(ddp__clock_open(d, err));
    if (!d->engine) return DDP_OK;
    for (int l = 0; l < d->layers; l++) {
        const ddp__unit *u = &d->unit[l];
        size_t layer = u->count + u->state_count;

        for (int k = 0; k < u->blocks; k++) /* frozen ones are shared once */
            if (u->block[k].kind == DDP_PARAMS && !u->block[k].grads) layer += u->block[k].count;
        total += layer;
        if (layer > largest) largest = layer;
    }
    if (d->ops.averages != DDP_AVERAGES_PARAMETERS || d->cfg.servers) largest = total; /* in messages of its own */
    if (d->levels && largest < DDP__PROBE_MOST * DDP__PROBE_FLOATS) /* probes cross sites too */
        largest = DDP__PROBE_MOST * DDP__PROBE_FLOATS;
    if (d->coded_there) largest += largest / 3 + 1, total += total / 3 + 1; /* its blocks, too */
    DDP__TRY(ddp__stager_open(d, ddp__device_room(d), largest * sizeof(float) + d->edge_bytes,
                              total * sizeof(float) + d->edge_bytes, &d->stager, err));
    return d->cfg.nccl ? ddp__nccl_open(d, ddp__device_room(d), err) : DDP_OK;
}

void ddp__device_stop(ddp_ctx *d)
{
    ddp__nccl_stop(d); /* the stager may wait behind an average that never ends */
    ddp__stager_stop(d->stager);
}

void ddp__device_close(ddp_ctx *d)
{
    ddp__stager_free(d->stager);
    ddp__clock_free(d);
    ddp__nccl_close(d);
    if (d->host.backend) d->host.backend->close(d->host.device);
    d->host.backend = NULL;
    d->stager = NULL;
}

ddp_status ddp__device_check(ddp_ctx *d, ddp_error *err)
{
    const ddp_backend *b = d->host.backend;

    if (!b) return DDP_OK;
    DDP__TRY(b->check(d->host.device, err));
    if (d->joined) DDP__TRY(ddp__nccl_lost(d, b->poll(d->host.device, err), err));
    return d->stager ? ddp__stager_error(d->stager, err) : DDP_OK;
}

ddp_status ddp__device_wait(ddp_ctx *d, ddp_error *err)
{
    if (!d->host.backend) return DDP_OK;
    DDP__TRY(ddp__nccl_lost(d, d->host.backend->wait(d->host.device, err), err));
    if (d->clock) ddp__clock_collect(d);
    return ddp__device_check(d, err);
}
