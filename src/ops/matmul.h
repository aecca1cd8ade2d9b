/* Matrix product in float: packed, blocked, parallel over blocks of the result. */
#ifndef DDP_OPS_MATMUL_H
#define DDP_OPS_MATMUL_H

#include "graph/op.h"
#include "ops/kernels.h"

/* c (m x n) = or += a (m x k) times b (k x n). Strides in floats: a(i, p) is
 * a[i*a_row + p*a_col], b(p, j) is b[p*b_row + j*b_col], so a transpose is two numbers exchanged;
 * one of the two is 1. c has contiguous rows. Every element is summed over p in one fixed order,
 * whatever the blocks, so results depend on neither threads nor position. m, n, k >= 0. */
typedef struct ddp__matmul {
    long         m, n, k;
    const float *a;
    long         a_row, a_col;
    const float *b;
    long         b_row, b_col;
    float       *c;
    long         c_row;
    const float *bias; /* [n] added to every row, or NULL; only without add */
    int          add;
} ddp__matmul;

#ifdef __cplusplus
extern "C" {
#endif

/* On the operator threads of call; with DDP_USE_CBLAS blocks of the result go to cblas_sgemm, whose
 * own threads are switched off, else to ddp__matmul_kernels. */
DDP_LIB void ddp__matmul_run(const ddp_op_call *call, const ddp__matmul *g);
/* On the operator threads of call, with our own kernels. */
DDP_LIB void ddp__matmul_kernels(const ddp_op_call *call, const ddp__matmul *g);
/* On the calling thread alone, with the given kernels; about 390 KiB of stack. */
DDP_LIB void ddp__matmul_serial(const ddp__kernels *kernels, const ddp__matmul *g);

#ifdef __cplusplus
}
#endif

#endif /* DDP_OPS_MATMUL_H */
