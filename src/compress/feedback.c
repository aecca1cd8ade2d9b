#include "base/platform.h"
#include "base/fail.h"
#include "compress/codec.h"
#include "compress/feedback.h"

ddp_status ddp_feedback_add(float *residual, const float *gradient, size_t n, ddp_error *err)
{
    float *DDP_RESTRICT r = residual;
    const float *DDP_RESTRICT g = gradient;
    size_t i;

    if (!residual || !gradient)
        return ddp__fail(err, DDP_ARG, "ddp_feedback_add: residual or gradient is NULL");
    for (i = 0; (i += ddp__first_from(g + i, n - i, DDP__HUGE)) < n; i++)
        DDP__TRY(ddp__sum_check(DDP__UNPACK_ADD, r, i, g[i], err));
    for (i = 0; i < n; i++) r[i] += g[i];
    return DDP_OK;
}

ddp_status ddp_feedback_keep(float *residual, size_t n, const uint64_t *index, size_t k,
                             ddp_error *err)
{
    size_t i;

    if (!residual || !index)
        return ddp__fail(err, DDP_ARG, "ddp_feedback_keep: residual or index is NULL");
    for (i = 0; i < k; i++)
        if (index[i] >= n)
            return ddp__fail(err, DDP_ARG, "ddp_feedback_keep: index[%zu] = %" PRIu64
                             " is not below n = %zu", i, index[i], n);
    for (i = 0; i < k; i++) residual[index[i]] = 0;
    return DDP_OK;
}

ddp_status ddp_feedback_subtract(const void *message, size_t bytes, float *residual, size_t n,
                                 ddp_error *err)
{
    return ddp__unpack_into(message, bytes, DDP__UNPACK_SUBTRACT, residual, n, err);
}
