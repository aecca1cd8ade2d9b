/* Newcomers, as the training sees them: when a clone is made, when they are let in, and how a
 * newcomer's own context begins. */
#ifndef DDP_RUN_JOIN_H
#define DDP_RUN_JOIN_H

#include "member/join.h"
#include "run/context.h"

/* Members: serves newcomers from now on; the wire is one that resumes. */
DDP_LIB ddp_status ddp__admission_open(ddp_ctx *d, ddp__wire *wire, ddp_error *err);
DDP_LIB void       ddp__admission_ready(ddp_ctx *d); /* engine and layers are there */
/* At the end of a step: at a period's end clones, words, entries. Collective. */
DDP_LIB ddp_status ddp__admission_step(ddp_ctx *d, ddp_error *err);
/* Before the engine closes; after that, as the coordinator's word may be on its way until then. */
DDP_LIB void       ddp__admission_stop(ddp_ctx *d);
DDP_LIB void       ddp__admission_close(ddp_ctx *d);

/* Newcomers: finds the run and an id in it, sets rank and world; takes a clone and enters. */
DDP_LIB ddp_status ddp__arrival_open(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__arrival_enter(ddp_ctx *d, ddp_error *err);
DDP_LIB void       ddp__arrival_close(ddp_ctx *d);

/* session.c */
DDP_LIB void       ddp__session_files(const ddp_ctx *d, ddp__tls_files *f);
DDP_LIB uint64_t   ddp__session_run(const ddp_ctx *d);
DDP_LIB ddp_status ddp__engine_start(ddp_ctx *d, ddp__wire *wire, const ddp__links *links,
                                     int joining, uint64_t live, ddp__engine **out,
                                     ddp_error *err);

#endif /* DDP_RUN_JOIN_H */
