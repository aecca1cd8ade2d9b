/* Defines the part of a context that belongs to src/session. */
#pragma once

#include "context/context.h"
#include "measure/timing.h"
#include "plan/link_clock.h"
#include "session/cut.h"
#include "session/session.h"

/* Progress of a layer in the current step. */
typedef struct ddp__passes {
    int passes;  /* backward_end and skip calls in this step */
    int skipped; /* micro-batches of this step without a gradient (ddp_skip) */
} ddp__passes;

/* What a rank observed since the last exchange. All-zero: the rank is lost. */
typedef struct ddp__drift_word {
    double stale;    /* 1: the strategy asks for a new plan */
    double scale[2]; /* by which the time of a byte changed, of each link, or 0 if nothing was observed */
    double moved[2]; /* 1: that is a reason for a new plan */
} ddp__drift_word;

/* Moves of landings (landing.c). */
typedef struct ddp__landing {
    /* [team x (layers + 2)] how late the averages of each rank arrived, and its wait in two bytes */
    signed char *word;
    int *late,
        *moved;      /* [layers] of the ranks that wait least, and the steps by which each layer was moved */
    long ticket;     /* exchange of the words, or -1 */
    long plans;      /* the plan that they are about */
    long due;        /* the step after which the words are exchanged, or read if they are on their way */
    double asked;    /* time of the last exchange, or of the plan ... */
    long asked_step; /* ... and its step */
    int least;       /* wait of the ranks that waited least */
    int moved_later; /* 1 if the last move made a layer needed later */
    int futile;      /* 1 if such a move by this plan did not shorten the waits */
} ddp__landing;

struct ddp__session {
    ddp_chosen chosen;      /* the choice of a strategy that chooses, or all-zero */
    ddp__passes *turn;      /* [layers], exists once the session has started */
    const ddp__cut *cut;    /* borrowed, or NULL if each rank has the whole model */
    ddp__layer_cost *model; /* [cut->layers] if all stages follow one plan. NULL if each rank plans its own
                               layers. */
    int edge_messages;      /* pipeline: messages that may be in flight at a time, and their size in bytes */
    size_t edge_bytes;
    ddp__tls *tls;              /* NULL for connections without TLS */
    struct ddp__join *join;     /* serves joining workers, or NULL if no worker can join */
    long join_ticket;           /* ticket of the coordinator's message about the next joining worker, or -1 */
    int32_t join_word;          /* its content: id to admit, or -1 */
    struct ddp__joiner *joiner; /* this worker is joining and has not entered yet, or NULL otherwise */
    int admission_due;          /* a period has ended: the next hook of a layer admits joining workers */
    uint64_t saves_as;          /* run identity in its checkpoints, or 0 before the first checkpoint */
    struct ddp__desk *desk;     /* server thread of a rank that serves, or NULL */
    ddp_step_info *info;        /* values reported for this step, and the last loss */
    int mixed;                  /* layers belong to different groups */
    ddp_blob plan;              /* current plan, empty if there is none */
    ddp_profile profile;        /* profile.layers 0 = none yet */
    int plan_steps;             /* steps in a period of the strategy's messages */
    ddp_transfer *transfer;     /* [transfers] these messages, or NULL if the strategy does not list them */
    ddp__shared_message *transfer_message; /* [transfers + 1] workspace */
    int transfers;
    double computes_s;      /* predicted compute time of a step */
    double drift_takes;     /* steps after which an exchange about a new plan has arrived */
    double exposed_s;       /* exposed seconds of these messages in a period, when the plan was made */
    long drift_ticket;      /* ticket of the exchange about a new plan, or -1 */
    ddp__drift_word *drift; /* [team] its content, by index in the team */
    ddp__landing landing;
    long plans;      /* number of plans used so far */
    long timed_from; /* first step of those that are measured for the plan */
    /* measured: the plan comes from measured times and is updated when the link changes. plan_final: no
     * measured plan will replace it. */
    int measured, plan_final;
    ddp__same same[DDP__JOIN_SAMES];  /* ddp_same */
    ddp__same usual[DDP__JOIN_SAMES]; /* ddp_usually_same */
    int sames, usuals;
    struct ddp__program *program; /* [programs] ddp_add_state */
    int programs;
    char unlike[400]; /* ddp_unlike */
};

/* Allocates the part (part.c). Returns 0 if memory is short. */
DDP_LIB int ddp__session_open(ddp_ctx *d);
/* Sets the name and the reason of a choice whose figures are not known. */
DDP_LIB void ddp__chosen_name(const ddp_ctx *d, ddp_chosen *c, const char *reason);
