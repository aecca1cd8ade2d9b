/* The built-in strategies: each family is one file, whose functions fill a ddp_strategy_ops that is zero.
 * They see what anybody's own strategy sees, the verbs of run/strategy.h. */
#ifndef DDP_STRATEGY_STRATEGY_H
#define DDP_STRATEGY_STRATEGY_H

#include "base/core.h"
#include "plan/partial.h"
#include "run/launch.h"

/* table.c: all of them */
DDP_LIB const ddp__strategies *ddp__built_in(void);
/* The name of the one that reports measure the others against. */
DDP_LIB const char *ddp__strategy_reference(void);

/* gradient.c */
DDP_LIB void ddp__strategy_ssgd(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_wfbp(ddp_strategy_ops *ops);
/* gradient_plan.c */
#ifndef DDP_NO_PLANNERS
DDP_LIB void ddp__strategy_mgwfbp(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_ascwfbp(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_bytescheduler(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_usbyte(ddp_strategy_ops *ops);
/* delayed.c */
DDP_LIB void ddp__strategy_deft(ddp_strategy_ops *ops);
#endif
/* server_rules.c */
DDP_LIB void ddp__strategy_bsp(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_asp(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_ssp(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_r2sp(ddp_strategy_ops *ops);
#ifndef DDP_NO_PLANNERS
DDP_LIB void ddp__strategy_osp(ddp_strategy_ops *ops); /* server_osp.c */
#endif
/* local.c */
/* local.c; what updates at once, with or without clipping, and averages all layers every so many steps */
DDP_LIB int  ddp__local_backward_end(ddp_ctx *d, void *self, int layer);
DDP_LIB int  ddp__clip_and_update(ddp_ctx *d);
DDP_LIB int  ddp__local_step_end(ddp_ctx *d, void *self, int forward);
DDP_LIB int  ddp__local_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room);
/* The plan of rows (layers, or parts of them) that each have their step: made (enp: equal numbers; unmeasured: no times to
 * leave slack for), as bytes, and taken from them. self begins with a ddp__partial. */
typedef struct ddp__partial {
    ddp_plan plan;
} ddp__partial;
DDP_LIB int  ddp__plan_failed(ddp_ctx *d, const ddp_error *err);
DDP_LIB int  ddp__partial_make(ddp_ctx *d, const ddp_profile *p, int enp, int unmeasured, ddp_blob *out);
DDP_LIB int  ddp__plan_pack(ddp_ctx *d, const ddp_plan *p, ddp_blob *out);
DDP_LIB int  ddp__partial_take(ddp_ctx *d, void *self, const ddp_blob *blob, int rows, const ddp_profile *profile);
DDP_LIB int  ddp__partial_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room);
DDP_LIB const ddp_plan *ddp__partial_view(const void *self);
DDP_LIB double ddp__partial_exposed(const void *self);
DDP_LIB void ddp__strategy_localsgd(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_enp(ddp_strategy_ops *ops);
DDP_LIB void ddp__strategy_dreamddp(ddp_strategy_ops *ops);
/* outer.c */
DDP_LIB void ddp__strategy_diloco(ddp_strategy_ops *ops);
#ifndef DDP_NO_PLANNERS
DDP_LIB void ddp__strategy_sparseloco(ddp_strategy_ops *ops);
#endif

#endif /* DDP_STRATEGY_STRATEGY_H */
