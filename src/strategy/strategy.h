/* The built-in strategies: each family is one file, whose functions fill a ddp_strategy_ops that is zero; its
 * name is in the table. They see what anybody's own strategy sees, the verbs of config/strategy.h. */
#pragma once

#include "config/settings.h"
#include "context/reading.h"
#include "exchange/verbs.h"
#include "plan/partial/partial.h"

/* table.c: all of them */
DDP_LIB const ddp__strategies *ddp__built_in(void);

/* layers.c: zeroed memory for lists of the strategy's own, made in start and there until ddp_close (NULL: the
 * context has the error); floats of a layer's gradients; the mean of a list over its group, or over all ranks
 * (DDP_NO_LAYER), to be posted in this step; a wait for *ticket, which becomes -1 (at which there is nothing
 * to wait for); lists into an array and back; a layer's gradients, 0; the update of every layer; an error
 * that is not the context's yet. */
DDP_LIB void *ddp__lists(ddp_ctx *d, size_t count, size_t size);
DDP_LIB size_t ddp__gradient_count(const ddp_ctx *d, int layer);
DDP_LIB ddp_message ddp__mean_message(const ddp_ctx *d, int layer, const ddp_piece *from, int count);
DDP_LIB int ddp__hold_once(ddp_ctx *d, long *ticket, int layer);
DDP_LIB int ddp__pieces_read(ddp_ctx *d, const ddp_piece *p, int n, float *to);
DDP_LIB int ddp__pieces_write(ddp_ctx *d, const ddp_piece *p, int n, const float *from);
DDP_LIB int ddp__gradients_zero(ddp_ctx *d, int layer);
DDP_LIB int ddp__update_all(ddp_ctx *d);
DDP_LIB int ddp__plan_failed(ddp_ctx *d, const ddp_error *err);

/* gradient.c */
DDP_LIB void ddp__strategy_ssgd(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_wfbp(ddp_strategy_ops *ops);
#ifndef DDP_NO_PLANNERS
/* gradient_plan.c: mgwfbp and ascwfbp; bytescheduler and usbyte */
DDP_LIB void ddp__strategy_mgwfbp(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_bytescheduler(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_deft(ddp_strategy_ops *ops); /* delayed.c */
DDP_LIB void ddp__strategy_osp(ddp_strategy_ops *ops);  /* server_osp.c */
#endif
/* server_rules.c: bsp; asp, ssp and r2sp */
DDP_LIB void ddp__strategy_bsp(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_asp(ddp_strategy_ops *ops);
/* local.c: localsgd; enp and dreamddp. What updates at once, or at the end of the step where all gradients
 * are needed, before its averages or (average_first) behind them; and whether this step is the last of a
 * period. */
DDP_LIB void ddp__strategy_localsgd(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_dreamddp(ddp_strategy_ops *ops);
DDP_LIB int ddp__local_backward_end(ddp_ctx *d, void *self, int layer);
DDP_LIB int ddp__updates_last(const ddp_ctx *d);
DDP_LIB int ddp__clip_and_update(ddp_ctx *d, int averaged);
DDP_LIB int ddp__period_ends(const ddp_ctx *d);
DDP_LIB int ddp__local_step_end(ddp_ctx *d, void *self, int forward);
DDP_LIB int ddp__local_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room);
/* Layers, or parts of them, that each have their step by a plan: self begins with this. */
typedef struct ddp__partial {
    ddp_plan plan;        /* of rows: the parts of all layers */
    unsigned char *due;   /* [period x rows] 1: it is averaged in that step */
    int *first;           /* [layers + 1] row of a layer's first part */
    unsigned char *ready; /* [layers] its gradient of this step is complete */
    int next;             /* layer whose message leaves next, from the last to the first */
} ddp__partial;
/* Messages leave in one order on all ranks, from the last layer to the first, because ranks may skip
 * different layers at different moments. ready: marks a layer; next: the layer whose turn it is, -1 if it is
 * not ready; again: a new step. */
DDP_LIB void ddp__turn_ready(ddp__partial *x, int layer);
DDP_LIB int ddp__turn_next(ddp__partial *x);
DDP_LIB void ddp__turn_again(const ddp_ctx *d, ddp__partial *x);
/* plan: makes one; unmeasured: of equal numbers, as enp always does, with no times to leave slack for. pack:
 * as bytes, with room for `more` behind them. */
DDP_LIB int ddp__partial_plan(ddp_ctx *d, const ddp_profile *p, int unmeasured, ddp_plan *out);
DDP_LIB int ddp__plan_pack(ddp_ctx *d, const ddp_plan *p, size_t more, ddp_blob *out);
DDP_LIB int ddp__plan_unpack(ddp_ctx *d, const ddp_blob *blob, ddp_plan *out); /* out: to be freed */
DDP_LIB int ddp__partial_take(ddp_ctx *d, void *self, const ddp_blob *blob, const ddp_profile *profile);
DDP_LIB const ddp_plan *ddp__partial_view(const void *self);
DDP_LIB int ddp__partial_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room);
DDP_LIB void ddp__partial_close(ddp_ctx *d, void *self);
/* outer_late.c: diloco and sparseloco */
DDP_LIB void ddp__strategy_diloco(ddp_strategy_ops *ops);
