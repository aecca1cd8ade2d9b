/* Optimizers and learning-rate schedules. A program registers an optimizer, and the library decides when
 * to apply its update. */
#pragma once

#include "base/status.h"

/* Arguments of one update: one contiguous block of a layer, one matrix of it, or the part around its
 * matrices. All arrays have count floats. */
typedef struct ddp_update {
    int layer;            /* number of the layer */
    float *params;        /* parameters, changed in place */
    const float *grads;   /* gradients */
    float *state;         /* state_per_param x count floats, initially zero. Array k starts at k x count. */
    size_t count;         /* number of floats */
    long step;            /* number of this update, from 0 */
    float lr;             /* learning rate of this update */
    void *stream;         /* on a device: stream for the kernels of the rule, or NULL on the CPU */
    size_t rows, columns; /* shape of a matrix, row-major, or 0 for no matrix, or a rule without
                           * matrix_state */
    void *desk;           /* for ddp_muon only */
} ddp_update;

/* A registered optimizer. The built-in rules read hyper. A user's rule may use `user`. */
typedef struct ddp_optimizer {
    const char *name;    /* "sgd", "adamw", ... Part of the run's fingerprint. */
    int state_per_param; /* floats of state per parameter: 0, 1 or 2 */
    void (*update)(const struct ddp_optimizer *self,
                   const ddp_update *u); /* applies one update, or NULL for ddp_own_update */
    float lr;                            /* default learning rate. ddp_set_lr changes it for each step. */
    float hyper[6];                      /* parameters of the built-in rules, and of ddp_own_update_first */
    void *user;                          /* data of a user's rule, borrowed until ddp_close */
    int matrix_state; /* > 0: update each matrix (ddp_layer.matrices) in a separate call, with this many
                         floats of state per parameter, at most state_per_param. 0: no separate calls. */
} ddp_optimizer;

/* ddp_sgd - returns the rule of SGD with momentum: v = momentum v + g, w -= lr v. Without momentum the rule
 * has no state. Pure and safe from any thread. */
DDP_API ddp_optimizer ddp_sgd(float lr, float momentum);

/* ddp_sgd_decay - returns the rule of SGD with momentum and L2 weight decay: v = momentum v + (g +
 * weight_decay w), w -= lr v. Without momentum the rule has no state. Pure and safe from any thread. */
DDP_API ddp_optimizer ddp_sgd_decay(float lr, float momentum, float weight_decay);

/* ddp_nesterov - returns the rule of SGD with Nesterov momentum: v = momentum v + (g + weight_decay w), w -=
 * lr (g + weight_decay w + momentum v). Pure and safe from any thread. */
DDP_API ddp_optimizer ddp_nesterov(float lr, float momentum, float weight_decay);

/* ddp_adam - returns the rule of Adam, with L2 weight decay added to the gradient. Two floats of state per
 * parameter. Pure and safe from any thread. */
DDP_API ddp_optimizer ddp_adam(float lr, float beta1, float beta2, float eps, float weight_decay);

/* ddp_adamw - returns the rule of AdamW, with decoupled decay: w -= lr weight_decay w. Two floats of state
 * per parameter. Pure and safe from any thread. */
DDP_API ddp_optimizer ddp_adamw(float lr, float beta1, float beta2, float eps, float weight_decay);

/* ddp_muon - returns the rule of Muon for matrices, and AdamW (0.9, 0.95, 1e-8) for all other parameters.
 *
 *   lr            rate of AdamW, above 0. ddp_set_lr changes both rates in proportion.
 *   matrix_lr     rate of the matrices
 *   momentum      v = momentum v + (1 - momentum) g
 *   weight_decay  decoupled decay
 *
 * Five Newton-Schulz steps (nn/muon.c) approximate the orthogonal matrix nearest to (1 - momentum) g +
 * momentum v. It is scaled by sqrt(max(1, rows / columns)). CPU only. Pure and safe from any thread. */
DDP_API ddp_optimizer ddp_muon(float lr, float matrix_lr, float momentum, float weight_decay);

/* ddp_own_update - returns the rule of a program with its own optimizer. A zeroed ddp_optimizer means the
 * same. The library never updates parameters. The program updates them after ddp_step_end.
 *
 * Strategies that average gradients leave the averages in the program's gradient arrays, clipped if clipping
 * is set. The program zeroes them. Strategies that average parameters or parameter deltas average the
 * parameters as they are before the step's update (ddp_config.average.first). The average is complete when
 * ddp_step_end returns. Strategies that update later, or on a server, return an error.
 *
 * The optimizer state belongs to the program. ddp_add_state includes it in checkpoints and sends it to
 * joining workers. Pure and safe from any thread. */
DDP_API ddp_optimizer ddp_own_update(void);

/* ddp_own_update_first - returns ddp_own_update for a program that updates a layer before its last
 * ddp_backward_end of the step.
 *
 * Averages then contain the update of the step, as in the papers and with the rules of the library.
 * Strategies that average gradients, clip_norm and average_first return DDP_UNSUPPORTED. Pure and safe from
 * any thread. */
DDP_API ddp_optimizer ddp_own_update_first(void);

/* ---- learning rate ---- */

/* Shapes of a schedule after the warm-up: constant, cosine decay, decay in steps. */
typedef enum ddp_schedule_kind { DDP_LR_CONSTANT, DDP_LR_COSINE, DDP_LR_STEP } ddp_schedule_kind;

/* A learning-rate schedule. All-zero except base means a constant rate. */
typedef struct ddp_lr_schedule {
    ddp_schedule_kind kind; /* (default: constant) */
    double base;            /* learning rate after the warm-up */
    long warmup;      /* steps of linear warm-up. Step s has rate base (s + 1) / warmup (default: 0, none). */
    long total;       /* cosine: step at which the rate reaches its minimum, where it stays */
    double min_ratio; /* cosine: the minimum is min_ratio x base */
    long step_size;   /* step: after the warm-up, the rate is multiplied by gamma every step_size steps */
    double gamma;     /* step: factor, for example 0.1 */
} ddp_lr_schedule;

/* ddp_lr_at - returns the learning rate of a step, counted from 0, by a schedule. Pure and safe from any
 * thread. */
DDP_API double ddp_lr_at(const ddp_lr_schedule *s, long step);

/* ddp_schedule_named - converts "constant", "cosine" or "step" to its kind. Returns 1 and sets *out, or
 * returns 0 for another name. Pure and safe from any thread. */
DDP_API int ddp_schedule_named(const char *name, ddp_schedule_kind *out);
