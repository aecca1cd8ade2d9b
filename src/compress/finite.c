/* Numbers that are not wanted in what travels: NaN, and sums, of a residual and a gradient too, that are not finite. */
#include "base/core.h"
#include "compress/codec.h"

size_t ddp__first_from(const float *x, size_t n, uint32_t least)
{
    size_t at;

    for (at = 0; n - at >= DDP__ANY_BLOCK; at += DDP__ANY_BLOCK)
        if (ddp__any_above(x + at, (int32_t)least - 1)) break;
    while (at < n && ddp__magnitude(x[at]) < least) at++;
    return at;
}

size_t ddp__first_nan(const float *x, size_t n) { return ddp__first_from(x, n, DDP__INFINITE + 1); }

ddp_status ddp__found_nan(uint64_t at, ddp_error *err)
{
    return ddp__fail(err, DDP_NUMERIC, "x[%" PRIu64 "] is NaN, which has no magnitude; training "
                     "has diverged, or the array is not initialised", at);
}

ddp_status ddp__sum_check(ddp__unpack how, const float *x, uint64_t at, float v, ddp_error *err)
{
    if (!ddp__sum_spoils(x[at], how == DDP__UNPACK_SUBTRACT ? -v : v)) return DDP_OK;
    return ddp__fail(err, DDP_NUMERIC, "x[%" PRIu64 "] = %g %s %g would not be a finite number; a "
                     "gradient has diverged: leave this step out", at, (double)x[at],
                     how == DDP__UNPACK_SUBTRACT ? "-" : "+", (double)v);
}

ddp_status ddp_feedback_add(float *residual, const float *gradient, size_t n, ddp_error *err)
{
    float *DDP_RESTRICT r = residual;
    const float *DDP_RESTRICT g = gradient;

    if (!residual || !gradient) return ddp__fail(err, DDP_ARG, "ddp_feedback_add: residual or gradient is NULL");
    for (size_t i = 0; (i += ddp__first_from(g + i, n - i, DDP__HUGE)) < n; i++)
        DDP__TRY(ddp__sum_check(DDP__UNPACK_ADD, r, i, g[i], err));
    for (size_t i = 0; i < n; i++) r[i] += g[i];
    return DDP_OK;
}
