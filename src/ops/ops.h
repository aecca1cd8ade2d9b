/* What the operator files share: the tables, parallel loops, what shape rules check. The same operators as plain loops
 * in double, which the kernels are tested against, are tests/ops/reference.h. */
#ifndef DDP_OPS_OPS_H
#define DDP_OPS_OPS_H

#include "base/core.h"
#include "graph/op.h"
#include "ops/kernels.h"

/* The built-in operator of that name, NULL if there is none. */
DDP_LIB const ddp_op *ddp__builtin_op(const char *name);

/* The table entries of each family, ended by one without a name. */
DDP_LIB const ddp_op *ddp__linear_ops(void);
DDP_LIB const ddp_op *ddp__embedding_ops(void);
DDP_LIB const ddp_op *ddp__norm_ops(void);
DDP_LIB const ddp_op *ddp__attention_ops(void);
DDP_LIB const ddp_op *ddp__elementwise_ops(void);
DDP_LIB const ddp_op *ddp__loss_ops(void);
DDP_LIB const ddp_op *ddp__conv_ops(void);
DDP_LIB const ddp_op *ddp__pool_ops(void);
#define DDP__OPS_END {NULL, NULL, NULL, NULL}

/* ---- running on the operator threads ---- */

enum { DDP__OP_GRAIN = 8192, DDP__OP_COLUMNS = 64 }; /* elements, columns of a parallel block */

/* fn(call, first, last) over all elements of out, or over the rows of s. */
DDP_LIB void ddp__op_elements(const ddp_op_call *call, void (*fn)(void *user, long, long));
DDP_LIB void ddp__op_rows(const ddp_op_call *call, const ddp_shape *s, void (*fn)(void *user, long, long));

/* ---- what shape rules share ---- */

/* Checks that inputs first..last exist and hold floats and have at least one dimension. */
DDP_LIB ddp_status ddp__op_floats(const ddp_op_spec *s, const char *op, int first, int last, ddp_error *err);
/* Reads argument i as a whole number of at least 1. */
DDP_LIB ddp_status ddp__op_count(const ddp_op_spec *s, const char *op, int i, const char *what,
                                 long *value, ddp_error *err);
/* Adds one parameter of up to two dimensions (second 0: one). */
DDP_LIB void ddp__op_param(ddp_op_spec *s, const char *name, long d0, long d1, ddp_init init, double scale);

/* What attention and rope read of x (B, T, (heads + 2 kv_heads) d): argument 0 is heads, 1 is kv_heads (0 = heads). */
typedef struct ddp__head_layout {
    long heads, kv_heads, d; /* d columns per head */
    long row;                /* columns of x */
} ddp__head_layout;

DDP_LIB ddp_status ddp__op_heads(const ddp_op_spec *s, const char *op, ddp__head_layout *l, ddp_error *err);
/* The same of a spec that has passed it. */
DDP_LIB ddp__head_layout ddp__head_layout_of(const ddp_op_spec *s);

/* Checks that input 0 is (batch, channels, height, width); elements of such a shape. */
DDP_LIB ddp_status ddp__image_input(const ddp_op_spec *s, const char *op, ddp_error *err);
DDP_LIB double ddp__image_count(const ddp_shape *s);

/* A square window that slides over the image: sets out, with channels channels, from the
 * arguments first (kernel), first + 1 (stride) and first + 2 (padding on every side). */
DDP_LIB ddp_status ddp__image_window(ddp_op_spec *s, const char *op, int first, long channels, ddp_error *err);

#endif /* DDP_OPS_OPS_H */
