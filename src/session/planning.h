/* Makes, reads, distributes and renews the plan of a session. */
#pragma once

#include "context/context.h"

/* stages.c: one plan for a model that is cut into stages.
 *   open   at the start of the session: gathers what the plan needs of all layers, where the strategy can
 *          plan for the whole model and the plan comes from a file or without clocks. Collective; a no-op
 *          elsewhere
 *   rows   rows of the plan that this rank reads or makes: of the whole model, or of its own layers
 *   name   of a row, for messages
 *   take   this stage's rows of a plan of the whole model. *own is freed by the caller
 *   make   the strategy's plan of the whole model. *out is freed by the caller
 *   profile  this stage's rows of a profile of the whole model. *own is freed by the caller */
DDP_LIB ddp_status ddp__stages_open(ddp_ctx *d, ddp_error *err);
DDP_LIB int ddp__stages_rows(const ddp_ctx *d);
DDP_LIB void ddp__stages_name(const ddp_ctx *d, int row, char *out, size_t room);
DDP_LIB ddp_status ddp__stages_take(const ddp_ctx *d, const ddp_plan *whole, ddp_plan *own, ddp_error *err);
DDP_LIB ddp_status ddp__stages_make(ddp_ctx *d, const ddp_profile *model, ddp_plan *out, ddp_error *err);
DDP_LIB ddp_status ddp__stages_profile(const ddp_ctx *d, const ddp_profile *model, ddp_profile *own,
                                       ddp_error *err);

/* plan_file.c: ddp_config.plan_path, for ddp__stages_rows rows and the period of this run; freed by the
 * caller. */
DDP_LIB ddp_status ddp__plan_open(const ddp_ctx *d, ddp_plan *out, ddp_error *err);
/* With one plan for all stages: a file that does not fit ends all stages before the first step. */
DDP_LIB ddp_status ddp__plan_fits_stages(const ddp_ctx *d, ddp_error *err);

/* planning.c: before the first gradient is given to the strategy; after the profile steps; the same
 * layers over another link */
DDP_LIB ddp_status ddp__plan_first(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__plan_measured(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__plan_again(ddp_ctx *d, ddp_error *err);
/* The plan of the first rank of the team, made or handed in as *plan and freed here, becomes everyone's; p:
 * for its figures, or NULL. */
DDP_LIB ddp_status ddp__plan_set(ddp_ctx *d, ddp_blob *plan, const ddp_profile *p, ddp_error *err);
/* The strategy takes this plan, which is its own kind's; p: times, or NULL. */
DDP_LIB ddp_status ddp__plan_take(ddp_ctx *d, const ddp_blob *plan, const ddp_profile *p, ddp_error *err);

/* planning.c: after each step, whether to plan again. */
DDP_LIB ddp_status ddp__drift_step(ddp_ctx *d, ddp_error *err);

/* planning.c: with two links, each message goes over the one that should finish it first. The team
 * agrees on its first rank's choice; p are its times, NULL: nominal ones. Nothing may be in flight. */
DDP_LIB ddp_status ddp__balance_links(ddp_ctx *d, const ddp_profile *p, ddp_error *err);
