/* Learning rate as a pure function of the step. */
#ifndef DDP_NN_SCHEDULE_H
#define DDP_NN_SCHEDULE_H

#include "base/config.h"

typedef enum ddp_schedule_kind { DDP_LR_CONSTANT, DDP_LR_COSINE, DDP_LR_STEP } ddp_schedule_kind;

/* All-zero but base = a constant rate. */
typedef struct ddp_lr_schedule {
    ddp_schedule_kind kind;
    double base;      /* rate after the warm-up */
    long   warmup;    /* steps of linear warm-up: step s has base (s + 1) / warmup; 0 = none */
    long   total;     /* cosine: the step at which the minimum is reached, and then kept */
    double min_ratio; /* cosine: the minimum is min_ratio x base */
    long   step_size; /* step: after the warm-up the rate is multiplied by gamma every step_size */
    double gamma;
} ddp_lr_schedule;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_lr_at - the rate of a step, counted from 0. Pure; safe from any thread. */
DDP_API double ddp_lr_at(const ddp_lr_schedule *s, long step);

/* ddp_schedule_named - constant, cosine or step: 1 and *out set, or 0. */
DDP_API int ddp_schedule_named(const char *name, ddp_schedule_kind *out);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NN_SCHEDULE_H */
