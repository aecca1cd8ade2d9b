/* Admits joining workers, on both sides: the members and the joining worker. */
#pragma once

#include "context/context.h"

/* join.c, for members: serves newcomers from now on; the wire is one that resumes. */
DDP_LIB ddp_status ddp__admission_open(ddp_ctx *d, ddp__wire *wire, ddp_error *err);
DDP_LIB void ddp__admission_ready(ddp_ctx *d); /* engine and layers are there */
/* Before the first step of a period: clones, words, entries. Collective. */
DDP_LIB ddp_status ddp__admission_step(ddp_ctx *d, ddp_error *err);

/* Newcomers: finds the run and an id in it, sets rank and world; takes a clone and enters. */
DDP_LIB ddp_status ddp__arrival_open(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__arrival_enter(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__arrival_close(ddp_ctx *d);
