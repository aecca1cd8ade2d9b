/* How activations and gradients cross between stages. */
#ifndef DDP_PIPE_EDGE_WIRE_H
#define DDP_PIPE_EDGE_WIRE_H

#include "base/status.h"

typedef enum ddp_edge_coding {
    DDP_EDGE_F32,       /* as they are: no bit changes */
    DDP_EDGE_BF16,      /* rounded to bfloat16, half the bytes */
    DDP_EDGE_INT8,      /* blocks of 64 values with a scale each (compress/compress.h), 0.27 of the bytes */
    DDP_EDGE_TOPK,      /* of each array the n / ratio values that are largest by magnitude, with indexes of 32 bits, so
                           2 / ratio of the bytes; elsewhere the receiver has zeros */
    DDP_EDGE_ADATOPK,   /* the same with a ratio for each link, by its time (ddp_adatopk): factor x ratio on the slowest */
    DDP_EDGE_BOTTLENECK /* float32 of a narrower model: a ddp_bottleneck is put where the cut is, of width / ratio */
} ddp_edge_coding;

/* Zero is float32. An array that would be no smaller travels as it is. */
typedef struct ddp_edge_wire {
    ddp_edge_coding coding;
    double          ratio;    /* R of topk, adatopk and bottleneck, at least 1 */
    double          factor;   /* of adatopk, Eq. 7 of FusionLLM; 0 = 3, the paper's */
    int             feedback; /* 1: what int8, topk or adatopk cut off is added to the next message of that edge and
                                 direction, of whatever micro-batch; one float for each value that crosses. Evaluations
                                 neither use nor change it. 0: it is lost */
} ddp_edge_wire;

/* ddp_edge_wire_parse - "f32", "bf16", "int8", "topk:R", "adatopk:R", "adatopk:R:FACTOR" or "bottleneck:R"; feedback
 * stays as it is. DDP_ARG names what is wrong, *out untouched.
 * ddp_edge_coding_name - "f32" to "bottleneck"; NULL: no such coding. */
DDP_API ddp_status  ddp_edge_wire_parse(const char *text, ddp_edge_wire *out, ddp_error *err);
DDP_API const char *ddp_edge_coding_name(ddp_edge_coding coding);

#endif /* DDP_PIPE_EDGE_WIRE_H */
