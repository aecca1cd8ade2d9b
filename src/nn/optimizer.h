/* Optimizers, which are registered, not called: the library decides when an update is applied. And
 * the learning rate as a pure function of the step. */
#pragma once

#include "base/status.h"

/* One call updates one contiguous block of a layer, or one matrix of it or what lies around them. All arrays
 * have count floats. */
typedef struct ddp_update {
    int layer;
    float *params;
    const float *grads;
    float *state; /* state_per_param x count floats, zero before the first update: array k begins at k
                            x count */
    size_t count;
    long step; /* number of this update, from 0 */
    float lr;
    void *stream;         /* on a device, whose arrays these are: where the rule queues its kernels; NULL on
                            the CPU */
    size_t rows, columns; /* of a matrix, row after row; 0: it is none, or the rule takes all alike */
    void *desk;           /* the library's own, for ddp_muon */
} ddp_update;

/* A registered optimizer. hyper is what the built-in rules read; a user's rule may use user. */
typedef struct ddp_optimizer {
    const char *name;    /* "sgd", "adamw", ...: part of the fingerprint of a run */
    int state_per_param; /* floats of state per parameter: 0, 1 or 2 */
    void (*update)(const struct ddp_optimizer *self, const ddp_update *u);
    float lr;         /* default learning rate; ddp_set_lr changes it per step */
    float hyper[6];   /* as the rule's maker fills it */
    void *user;       /* the rule's own data, borrowed until ddp_close */
    int matrix_state; /* > 0: each matrix (ddp_layer.matrices) has a call of its own, and so many
                                     floats of state per parameter, at most state_per_param; 0: the rule takes
                                     all alike */
} ddp_optimizer;

/* The built-in rules. Same arithmetic as PyTorch's of the same name (float32, no fused
 * multiply-add, so that unlike processors stay equal).
 *   ddp_sgd       v = momentum v + (g + decay w); w -= lr v      (momentum 0: no state)
 *   ddp_nesterov  the same v; w -= lr (g + decay w + momentum v)
 *   ddp_adam      L2 decay added to the gradient
 *   ddp_adamw     decoupled decay: w -= lr decay w
 *   ddp_muon      matrices: v = momentum v + (1 - momentum) g, the direction (1 - momentum) g + momentum v
 *                 brought to the nearest orthogonal matrix by five Newton-Schulz steps (nn/muon.c) and scaled
 *                 by sqrt(max(1, rows / columns)), at the rate matrix_lr; decoupled decay. All else: AdamW
 *                 (0.9, 0.95, 1e-8) at the rate lr, above 0. ddp_set_lr changes both in proportion. On the
 *                 CPU
 * Pass the result to ddp_set_optimizer. Pure; safe from any thread. */
DDP_API ddp_optimizer ddp_sgd(float lr, float momentum);
DDP_API ddp_optimizer ddp_sgd_decay(float lr, float momentum, float weight_decay);
DDP_API ddp_optimizer ddp_nesterov(float lr, float momentum, float weight_decay);
DDP_API ddp_optimizer ddp_adam(float lr, float beta1, float beta2, float eps, float weight_decay);
DDP_API ddp_optimizer ddp_adamw(float lr, float beta1, float beta2, float eps, float weight_decay);
DDP_API ddp_optimizer ddp_muon(float lr, float matrix_lr, float momentum, float weight_decay);

/* ddp_own_update - the program's own optimizer, as is a zeroed one: the library never updates, and the
 * program does after ddp_step_end. Under strategies that average gradients their averages are then in the
 * program's arrays, clipped where that is set; the program zeroes them. Under those that average parameters,
 * or changes, a step's averages are of parameters as they stand before its update (ddp_config.average.first),
 * whole when ddp_step_end returns. The state is the program's: ddp_add_state gives it to checkpoints and to
 * joining workers. Strategies that update later, or on a server, refuse it. */
DDP_API ddp_optimizer ddp_own_update(void);

/* ---- learning rate ---- */

typedef enum ddp_schedule_kind { DDP_LR_CONSTANT, DDP_LR_COSINE, DDP_LR_STEP } ddp_schedule_kind;

/* All-zero but base = a constant rate. */
typedef struct ddp_lr_schedule {
    ddp_schedule_kind kind;
    double base;      /* rate after the warm-up */
    long warmup;      /* steps of linear warm-up: step s has base (s + 1) / warmup; 0 = none */
    long total;       /* cosine: the step at which the minimum is reached, and then kept */
    double min_ratio; /* cosine: the minimum is min_ratio x base */
    long step_size;   /* step: after the warm-up the rate is multiplied by gamma every step_size */
    double gamma;
} ddp_lr_schedule;

/* ddp_lr_at - the rate of a step, counted from 0. Pure; safe from any thread. */
DDP_API double ddp_lr_at(const ddp_lr_schedule *s, long step);

/* ddp_schedule_named - constant, cosine or step: 1 and *out set, or 0. */
DDP_API int ddp_schedule_named(const char *name, ddp_schedule_kind *out);
