/* What the operator files share. Each file holds one family: the plain reference kernels, loops
 * in the order of the formulas, and beside them the float kernels that are tested against
 * those. */
#ifndef DDP_OPS_OPS_H
#define DDP_OPS_OPS_H

#include "graph/op.h"

/* Element type of the reference kernels. */
#ifndef DDP_REF_REAL
#define DDP_REF_REAL double
#endif
typedef DDP_REF_REAL ddp__real;

enum { DDP__OP_GRAIN = 8192 }; /* elements of a parallel block of an elementwise kernel */

#ifdef __cplusplus
extern "C" {
#endif

/* Each points *list at a family's table entries and returns their number. */
DDP_LIB int ddp__linear_ops(const ddp_op **list);
DDP_LIB int ddp__embedding_ops(const ddp_op **list);
DDP_LIB int ddp__norm_ops(const ddp_op **list);
DDP_LIB int ddp__rms_norm_ops(const ddp_op **list);
DDP_LIB int ddp__attention_ops(const ddp_op **list);
DDP_LIB int ddp__rope_ops(const ddp_op **list);
DDP_LIB int ddp__activation_ops(const ddp_op **list);
DDP_LIB int ddp__swiglu_ops(const ddp_op **list);
DDP_LIB int ddp__dropout_ops(const ddp_op **list);
DDP_LIB int ddp__loss_ops(const ddp_op **list);

/* Checks that inputs first..last exist and hold floats and have at least one dimension. */
DDP_LIB ddp_status ddp__op_floats(const ddp_op_spec *s, const char *op, int first, int last,
                                  ddp_error *err);
/* Reads argument i as a whole number of at least 1. */
DDP_LIB ddp_status ddp__op_count(const ddp_op_spec *s, const char *op, int i, const char *what,
                                 long *value, ddp_error *err);
/* What attention and rope read of x (B, T, (heads + 2 kv_heads) d): argument 0 is heads, 1 is
 * kv_heads (0 = heads). */
typedef struct ddp__head_layout {
    long heads, kv_heads, d; /* d columns per head */
    long row;                /* columns of x */
} ddp__head_layout;

DDP_LIB ddp_status ddp__op_heads(const ddp_op_spec *s, const char *op, ddp__head_layout *l,
                                 ddp_error *err);
/* The same of a spec that has passed it. */
DDP_LIB ddp__head_layout ddp__head_layout_of(const ddp_op_spec *s);
/* Adds one parameter of up to two dimensions (second 0: one). */
DDP_LIB void ddp__op_param(ddp_op_spec *s, const char *name, long d0, long d1, ddp_init init,
                           double scale);

#ifdef __cplusplus
}
#endif

#endif /* DDP_OPS_OPS_H */
