/* The state of a context that checkpoints store and joining workers receive. */
#pragma once

#include "context/context.h"

/* ---- state.c, program.c, join.c: what checkpoints and newcomers hold ---- */

/* With the values of now; to be freed by ddp__worker_free also after an error. apply: the small values become
 * the context's (arrays were written where they are); keep_plan 0: another world plans for itself. follow:
 * the times that the run's plan came from, for a newcomer: it goes on following the link. */
DDP_LIB ddp_status ddp__worker_list(ddp_ctx *d, ddp__worker *s, ddp_error *err);
DDP_LIB ddp_status ddp__worker_apply(ddp_ctx *d, const ddp__worker *s, int keep_plan, ddp_error *err);
DDP_LIB ddp_status ddp__worker_follow(ddp_ctx *d, const ddp__worker *s, ddp_error *err);

/* program.c: states of the program. names: [DDP__PROGRAM_NAMES] of all, with commas. list: adds those that
 * have bytes to a list, without bytes; save: with those of now, which release gives back; load: gives the
 * program what was found. */
DDP_LIB void ddp__program_names(const ddp_ctx *d, char *out);
DDP_LIB ddp_status ddp__programs_list(ddp_ctx *d, ddp__worker *s, ddp_error *err);
DDP_LIB ddp_status ddp__programs_save(ddp__worker *s, ddp_error *err);
DDP_LIB ddp_status ddp__programs_load(ddp_ctx *d, const ddp__worker *s, ddp_error *err);
DDP_LIB void ddp__programs_release(ddp_ctx *d);
