/* Admits joining workers, on both sides: the members and the joining worker. */
#pragma once

#include "context/context.h"

/* Serves joining workers from now on. The wire must be one that can resume. For members (join.c). */
DDP_LIB ddp_status ddp__admission_open(ddp_ctx *d, ddp__wire *wire, ddp_error *err);
DDP_LIB void ddp__admission_ready(ddp_ctx *d); /* the engine and the layers exist */
/* Runs before the first step of a period: gives a joining worker its state (clone), exchanges the
 * coordinator's next control message, and admits a worker. Collective. */
DDP_LIB ddp_status ddp__admission_step(ddp_ctx *d, ddp_error *err);

/* Joining worker: open finds the run and reserves an id in it, and sets rank and world. enter receives the
 * state of a member and enters the run. */
DDP_LIB ddp_status ddp__arrival_open(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__arrival_enter(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__arrival_close(ddp_ctx *d);
