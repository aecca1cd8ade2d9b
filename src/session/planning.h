/* Makes, reads, distributes and updates the plan of a session. */
#pragma once

#include "context/context.h"

/* One plan for a model that is cut into stages (stages.c).
 *   open     gathers the figures of all layers that the plan needs, at the start of the session, if the
 *            strategy can plan for the whole model and the plan comes from a file or needs no measurement.
 *            Collective. Otherwise, does nothing
 *   rows     number of rows of the plan that this rank reads or makes: all rows of the whole model, or the
 *            rows of its own layers
 *   name     name of a row, for messages
 *   take     extracts this stage's rows from a plan of the whole model. The caller frees *own
 *   make     lets the strategy plan for the whole model. The caller frees *out
 *   profile  extracts this stage's rows from a profile of the whole model. The caller frees *own */
DDP_LIB ddp_status ddp__stages_open(ddp_ctx *d, ddp_error *err);
DDP_LIB int ddp__stages_rows(const ddp_ctx *d);
DDP_LIB void ddp__stages_name(const ddp_ctx *d, int row, char *out, size_t room);
DDP_LIB ddp_status ddp__stages_take(const ddp_ctx *d, const ddp_plan *whole, ddp_plan *own, ddp_error *err);
DDP_LIB ddp_status ddp__stages_make(ddp_ctx *d, const ddp_profile *model, ddp_plan *out, ddp_error *err);
DDP_LIB ddp_status ddp__stages_profile(const ddp_ctx *d, const ddp_profile *model, ddp_profile *own,
                                       ddp_error *err);

/* Reads the plan in ddp_config.plan_path, with ddp__stages_rows rows and the period of this run
 * (plan_file.c). The caller frees *out. */
DDP_LIB ddp_status ddp__plan_open(const ddp_ctx *d, ddp_plan *out, ddp_error *err);
/* Checks the plan file if all stages follow one plan, so that an unusable file stops all stages before the
 * first step. */
DDP_LIB ddp_status ddp__plan_fits_stages(const ddp_ctx *d, ddp_error *err);

/* Returns the number of steps after which the transfers of the strategy repeat: the period of its event
 * `transfers`. Without the event it is 1 for averages of gradients, which every step has, and the setting
 * `period` for others. 1 without other ranks. */
DDP_LIB int ddp__period_of(ddp_ctx *d);

/* Lets a strategy with the event `choose` choose the strategy of the rest of the run, and replaces it
 * (chosen.c). Between two steps, or before the first event of a step, with nothing in flight. Collective.
 * p: profile. Does nothing without the event. */
DDP_LIB ddp_status ddp__choose(ddp_ctx *d, const ddp_profile *p, ddp_error *err);
/* The same with the profile that needs no measurement, if nothing will be measured. */
DDP_LIB ddp_status ddp__choose_early(ddp_ctx *d, ddp_error *err);
/* Replaces the strategy by an earlier choice, for example from a checkpoint. */
DDP_LIB ddp_status ddp__choose_as(ddp_ctx *d, const ddp_chosen *chosen, ddp_error *err);

/* Makes the profiles that need no measurement: *model of all layers if the plan needs it (else without
 * layers), *p of this rank's layers. The caller frees both, also after an error (planning.c). */
DDP_LIB ddp_status ddp__profile_first(ddp_ctx *d, ddp_profile *model, ddp_profile *p, ddp_error *err);
/* Measures layers and links after the profile steps. ddp__plan_measured follows. */
DDP_LIB ddp_status ddp__plan_measure(ddp_ctx *d, ddp_error *err);

/* Makes the plan (planning.c).
 *   early     the first time before the strategy receives a gradient. Otherwise, does nothing
 *   measured  after the profile steps
 *   again     for the same layers, after the link has changed */
DDP_LIB ddp_status ddp__plan_early(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__plan_measured(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__plan_again(ddp_ctx *d, ddp_error *err);
/* Distributes the plan of the first rank of the team to all its ranks. *plan is freed here. The other ranks'
 * own plan may be empty. p: profile for the plan's figures, or NULL. */
DDP_LIB ddp_status ddp__plan_set(ddp_ctx *d, ddp_blob *plan, const ddp_profile *p, ddp_error *err);
/* Passes a plan in the strategy's own format to the strategy. p: profile, or NULL. */
DDP_LIB ddp_status ddp__plan_take(ddp_ctx *d, const ddp_blob *plan, const ddp_profile *p, ddp_error *err);

/* Checks after each step whether a new plan is needed, and makes it (planning.c). */
DDP_LIB ddp_status ddp__drift_step(ddp_ctx *d, ddp_error *err);

/* Moves the steps in which averages of layers are needed, if they arrived late (landing.c).
 *   open  allocates its lists, when the team is known
 *   step  call it after each step */
DDP_LIB ddp_status ddp__landing_open(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__landing_step(ddp_ctx *d, ddp_error *err);

/* With two links, sends each message over the link that should complete it first (planning.c). The team uses
 * the choice of its first rank. p: profile of measured times, or NULL for nominal times. No message may be in
 * flight. */
DDP_LIB ddp_status ddp__balance_links(ddp_ctx *d, const ddp_profile *p, ddp_error *err);
