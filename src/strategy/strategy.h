/* The built-in strategies. Each file implements one family. Its functions fill a zeroed ddp_strategy_ops, and
 * table.c lists its name. Built-in strategies use the same interface as a strategy of the user: the verbs of
 * config/strategy.h. */
#pragma once

#include "config/settings.h"
#include "context/reading.h"
#include "exchange/verbs.h"
#include "plan/partial/partial.h"

/* table.c: the list of all built-in strategies */
DDP_LIB const ddp__strategies *ddp__built_in(void);

/* layers.c
 * Returns zeroed host memory, allocated in start and freed by ddp_close. Returns NULL if out of memory, and
 * the context has the error. */
DDP_LIB void *ddp__lists(ddp_ctx *d, size_t count, size_t size);
/* The number of floats in a layer's gradients. */
DDP_LIB size_t ddp__gradient_count(const ddp_ctx *d, int layer);
/* A message of this step that averages a list over the layer's group, or over all ranks (DDP_NO_LAYER). */
DDP_LIB ddp_message ddp__mean_message(const ddp_ctx *d, int layer, const ddp_piece *from, int count);
/* Waits for *ticket and sets it to -1. Returns at once if it is -1. */
DDP_LIB int ddp__hold_once(ddp_ctx *d, long *ticket, int layer);
/* Copies a list into an array, and an array into a list. */
DDP_LIB int ddp__pieces_read(ddp_ctx *d, const ddp_piece *p, int n, float *to);
DDP_LIB int ddp__pieces_write(ddp_ctx *d, const ddp_piece *p, int n, const float *from);
/* Sets a layer's gradients to 0. */
DDP_LIB int ddp__gradients_zero(ddp_ctx *d, int layer);
/* Updates every layer. */
DDP_LIB int ddp__update_all(ddp_ctx *d);
/* Reports an error of a planner as the context's error. */
DDP_LIB int ddp__plan_failed(ddp_ctx *d, const ddp_error *err);

/* gradient.c */
DDP_LIB void ddp__strategy_ssgd(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_wfbp(ddp_strategy_ops *ops);
#ifndef DDP_NO_PLANNERS
/* gradient_plan.c: mgwfbp (also ascwfbp), bytescheduler (also usbyte) */
DDP_LIB void ddp__strategy_mgwfbp(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_bytescheduler(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_deft(ddp_strategy_ops *ops); /* delayed.c */
DDP_LIB void ddp__strategy_osp(ddp_strategy_ops *ops);  /* server_osp.c */
DDP_LIB void ddp__strategy_auto(ddp_strategy_ops *ops); /* auto.c */
#endif
/* server_rules.c: bsp, asp (also ssp and r2sp) */
DDP_LIB void ddp__strategy_bsp(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_asp(ddp_strategy_ops *ops);
/* local.c: localsgd, dreamddp (also enp) */
DDP_LIB void ddp__strategy_localsgd(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_dreamddp(ddp_strategy_ops *ops);
/* Updates the layer, unless updates are made at the end of the step (ddp__updates_last). */
DDP_LIB int ddp__local_backward_end(ddp_ctx *d, void *self, int layer);
/* 1 if all layers are updated at the end of the step, because clipping needs all gradients or average_first
 * is set. */
DDP_LIB int ddp__updates_last(const ddp_ctx *d);
/* ddp_strategy_ops.due of strategies that send at the end of a step. */
DDP_LIB int ddp__local_due(const ddp_ctx *d, const void *self, int layer);
/* Clips and updates all layers if updates are made last. averaged: 0 before the averages of this step, 1
 * after them. average_first selects one of the two calls. */
DDP_LIB int ddp__clip_and_update(ddp_ctx *d, int averaged);
/* 1 if this step is the last of a period. */
DDP_LIB int ddp__period_ends(const ddp_ctx *d);
DDP_LIB int ddp__local_step_end(ddp_ctx *d, void *self, int forward);
DDP_LIB int ddp__local_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room);
/* The state of strategies that average each layer, or each part of it, in its own step of a plan. It is the
 * first member of their `self`. */
typedef struct ddp__partial {
    ddp_plan plan;        /* rows: the parts of all layers */
    unsigned char *due;   /* [period x rows] 1 if the row is averaged in that step */
    int *first;           /* [layers + 1] row of a layer's first part */
    unsigned char *ready; /* [layers] 1 if the layer's gradient of this step is complete */
    int next;             /* the layer whose message is sent next, counts down */
    double exposed_s;     /* seconds that a period is longer than its compute, by the link and the plan */
} ddp__partial;
/* All ranks send their messages in the same order, from the last layer to the first, because ranks may skip
 * different layers at different moments.
 * ddp__partial_due returns 1 if the plan sends the layer, or a part of it, in the current step.
 * ddp__turn_ready marks a layer as ready. ddp__turn_next returns the next layer to send, or -1 if it is not
 * ready. ddp__turn_again starts a new step. */
DDP_LIB int ddp__partial_due(const ddp_ctx *d, const void *self, int layer);
DDP_LIB void ddp__turn_ready(ddp__partial *x, int layer);
DDP_LIB int ddp__turn_next(const ddp_ctx *d, ddp__partial *x);
DDP_LIB void ddp__turn_again(const ddp_ctx *d, ddp__partial *x);
/* Computes a plan. unmeasured: assigns equal numbers of layers to the steps, as enp always does, without
 * slack for measured times. */
DDP_LIB int ddp__partial_plan(ddp_ctx *d, const ddp_profile *p, int unmeasured, ddp_plan *out);
/* Serialises a plan, and reserves `more` bytes after it. */
DDP_LIB int ddp__plan_pack(ddp_ctx *d, const ddp_plan *p, size_t more, ddp_blob *out);
DDP_LIB int ddp__plan_unpack(ddp_ctx *d, const ddp_blob *blob, ddp_plan *out); /* the caller frees out */
DDP_LIB int ddp__partial_take(ddp_ctx *d, void *self, const ddp_blob *blob, const ddp_profile *profile);
DDP_LIB const ddp_plan *ddp__partial_view(const void *self);
DDP_LIB int ddp__partial_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room);
DDP_LIB void ddp__partial_close(ddp_ctx *d, void *self);
/* outer_late.c: diloco and sparseloco */
DDP_LIB void ddp__strategy_diloco(ddp_strategy_ops *ops);
