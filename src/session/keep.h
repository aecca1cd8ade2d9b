/* The state of a context that checkpoints store and joining workers receive. */
#pragma once

#include "context/context.h"

/* ---- state.c, program.c, join.c: the contents of checkpoints and of a joining worker's state ---- */

/* list: fills s with the current values. The caller frees it with ddp__worker_free, also after an error.
 * apply: copies the small values into the context. Arrays are already in place. keep_plan 0: the context
 * makes its own plan, because the world is another one.
 * follow: takes over the measured times that the run's plan was made from, so that a joining worker follows
 * the link as the members do. */
DDP_LIB ddp_status ddp__worker_list(ddp_ctx *d, ddp__worker *s, ddp_error *err);
DDP_LIB ddp_status ddp__worker_apply(ddp_ctx *d, const ddp__worker *s, int keep_plan, ddp_error *err);
DDP_LIB ddp_status ddp__worker_follow(ddp_ctx *d, const ddp__worker *s, ddp_error *err);
/* Sets the order in which a joining worker receives arrays that it needs after its entry: by the next step in
 * which the plan sends their layer, the last layers first. */
DDP_LIB void ddp__worker_turns(ddp_ctx *d, ddp__worker *s);

/* States of the program (program.c).
 *   names    writes all names, separated by commas, into out [DDP__PROGRAM_NAMES]. States with `early` are
 *            marked
 *   list     adds every state that has functions to a list, without bytes. only: a flag that the states must
 *            have (DDP__WORKER_EARLY), or 0
 *   save     fills the list with the current bytes; release returns them to the program
 *   load     passes the stored bytes to the program
 *   keep     on a joining worker: moves the bytes of the clone from the list into the context, until take
 *            moves them into another list. drop frees them. */
DDP_LIB void ddp__program_names(const ddp_ctx *d, char *out);
DDP_LIB ddp_status ddp__programs_list(ddp_ctx *d, ddp__worker *s, int only, ddp_error *err);
DDP_LIB ddp_status ddp__programs_save(ddp__worker *s, ddp_error *err);
DDP_LIB ddp_status ddp__programs_load(ddp_ctx *d, const ddp__worker *s, ddp_error *err);
DDP_LIB void ddp__programs_release(ddp_ctx *d);
DDP_LIB void ddp__programs_keep(ddp_ctx *d, ddp__worker *s);
DDP_LIB void ddp__programs_take(ddp_ctx *d, ddp__worker *s);
DDP_LIB void ddp__programs_drop(ddp_ctx *d);
