/* Convolution where every group has one plane of input: no matrix product would have anything to
 * reuse, so planes are multiplied tap by tap. */
#ifndef DDP_OPS_CONV_DEPTHWISE_H
#define DDP_OPS_CONV_DEPTHWISE_H

#include "ops/conv_product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 1: the two below take this product (as forward has it); 0: it has one group only, several planes
 * or more than two outputs in a group, or its kernel or rows are too large for them. Pure. */
DDP_LIB int ddp__depthwise_fits(const ddp__conv_product *g);
/* g->y = or += the convolution. About 260 KiB of stack, as backward. */
DDP_LIB void ddp__depthwise_forward(const ddp_op_call *call, const ddp__conv_product *g);
/* With g->y the gradient of the output: dw += that of the weights, dx = or += that of the input;
 * either may be NULL. */
DDP_LIB void ddp__depthwise_backward(const ddp_op_call *call, const ddp__conv_product *g, float *dw,
                                     float *dx, int add);

#ifdef __cplusplus
}
#endif

#endif /* DDP_OPS_CONV_DEPTHWISE_H */
