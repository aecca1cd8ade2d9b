/* The part of a context that belongs to src/session. */
#pragma once

#include "context/context.h"
#include "measure/timing.h"
#include "session/cut.h"
#include "session/session.h"

/* Where a layer is in a step. */
typedef struct ddp__passes {
    int passes;  /* backward_end calls in this step */
    int skipped; /* micro-batches of this step without a gradient (ddp_skip) */
} ddp__passes;

struct ddp__session {
    ddp__passes *turn;      /* [layers], from the start on */
    const ddp__cut *cut;    /* NULL: each rank has the whole model; borrowed */
    ddp__layer_cost *model; /* [cut->layers] where all stages follow one plan; NULL: each rank plans its own
                               layers */
    int edge_messages;      /* of a pipeline, which may be under way at a time, and their bytes */
    size_t edge_bytes;
    ddp__tls *tls;              /* NULL = plain */
    struct ddp__join *join;     /* serves newcomers; NULL where none can come */
    long join_ticket;           /* the coordinator's word on newcomers on the way, or -1 */
    int32_t join_word;          /* id to admit, or -1 */
    struct ddp__joiner *joiner; /* this worker is one, not yet in; else NULL */
    int admission_due;          /* a period is over: the next hook of a layer lets joining workers in */
    uint64_t saves_as;          /* run identity in its checkpoints; 0: none yet */
    struct ddp__desk *desk;     /* of a rank that serves; NULL */
    ddp_step_info *info;        /* what was reported of this step, and the last loss */
    int mixed;                  /* layers belong to unlike groups */
    ddp_blob plan;              /* in force; no bytes = none */
    ddp_profile profile;        /* profile.layers 0 = none yet */
    int plan_steps;             /* of a period of what the strategy sends */
    long drift_ticket;          /* the first rank's word on planning again, or -1 */
    struct {
        int again;
        ddp_link link[2];
    } drift_word;
    long timed_from;          /* the first step of those that are timed for the plan */
    int measured, plan_final; /* it came from clocks: it follows the link; no measured one will replace it */
    ddp__same same[DDP__JOIN_SAMES];  /* ddp_same */
    ddp__same usual[DDP__JOIN_SAMES]; /* ddp_usually_same */
    int sames, usuals;
    struct ddp__program *program; /* [programs] ddp_add_state */
    int programs;
    char unlike[400]; /* ddp_unlike */
};

/* part.c. open: 0: out of memory. */
DDP_LIB int ddp__session_open(ddp_ctx *d);
