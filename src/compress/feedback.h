/* Error feedback: what a message left out is sent later. */
#ifndef DDP_COMPRESS_FEEDBACK_H
#define DDP_COMPRESS_FEEDBACK_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The residual is an array of the gradient's size that starts as zeros and belongs to the
 * training state: a checkpoint without it loses gradient. Each step:
 *     ddp_feedback_add(residual, gradient, n, err)        residual += gradient
 *     ddp_topk(residual, ...) and ddp_pack_sparse(...)    or any other message
 *     ddp_feedback_keep(residual, n, index, k, err)       0 where an element was sent, or
 *     ddp_feedback_subtract(message, ...)                 residual -= what the message delivers
 * With ddp_feedback_keep every element is, bit for bit, either in the message or in the residual.
 * With ddp_feedback_subtract of the message made of it, quantised ones too, delivered + residual
 * is what there was, but for the sign of a zero. Nothing is rounded away: |x - q s| <= s / 2, so
 * where q is not 0, q s is between x / 2 and 2 x, and the difference of two such floats is a float
 * (Sterbenz).
 *
 * Nothing finite ever becomes infinite or NaN: a gradient or message that is not finite, and a sum
 * that would not be, are refused with the index and the values. A step may thus be left out (as
 * loss scaling does) without harm to the residual. ddp_feedback_add reads the gradient twice for
 * that.
 *
 * Arrays and message do not overlap. No allocation; safe from any thread. On error the residual is
 * untouched. Errors: DDP_ARG (NULL, an index out of range), DDP_NUMERIC, DDP_FORMAT (as
 * ddp_unpack_add). */
DDP_API ddp_status ddp_feedback_add(float *residual, const float *gradient, size_t n,
                                    ddp_error *err);
DDP_API ddp_status ddp_feedback_keep(float *residual, size_t n, const uint64_t *index, size_t k,
                                     ddp_error *err);
DDP_API ddp_status ddp_feedback_subtract(const void *message, size_t bytes, float *residual,
                                         size_t n, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_COMPRESS_FEEDBACK_H */
