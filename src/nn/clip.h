/* Clipping by the global norm of all gradients. */
#ifndef DDP_NN_CLIP_H
#define DDP_NN_CLIP_H

#include "base/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sum of x[i]^2 in double, always added in the same order: a layer's sum has the same bits on
 * every processor (the product of two floats is exact in double, fused or not). Pure. */
DDP_LIB double ddp__sum_squares(const float *x, size_t n);

/* What to multiply the gradients with: max_norm / (norm + 1e-6), at most 1, with norm the root
 * of sum_squares over all layers (PyTorch's clip_grad_norm_). NaN sums give NaN. Pure. */
DDP_LIB float ddp__clip_factor(double sum_squares, double max_norm);

/* x[i] *= s. */
DDP_LIB void ddp__scale(float *x, size_t n, float s);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NN_CLIP_H */
