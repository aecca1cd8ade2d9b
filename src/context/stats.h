/* Statistics of a run, the current plan, notes and traces. */
#pragma once

#include "config/config.h"
#include "profile/profile.h"

struct ddp_plan;
struct ddp_profile;
struct ddp_span;

/* Numbers since the profile steps ended, whatever the strategy, or since ddp_plan_adopt.
 * Shares and times are of this rank. */
typedef struct ddp_stats {
    const char *strategy;                /* its name */
    long steps;                          /* finished steps in all */
    long counted_steps;                  /* steps the figures below are about */
    double step_s;                       /* mean time of a step */
    double wait_s;                       /* mean time a step waited for communication */
    double comm_s;                       /* total communication, union of operations */
    double exposed_s;                    /* of it, outside compute */
    double hidden_pct;                   /* 100 x (1 - exposed / comm); 100 without communication */
    double peer_wait_s;                  /* waiting for a slower peer, counted apart */
    int64_t bytes_sent;                  /* all bytes of the whole run, headers included */
    int64_t bytes_as[DDP_WIRE_TOPK + 1]; /* of them, without headers, by ddp_wire: how they travelled; TOPK:
                                            all bytes that
                                 a strategy packed itself, and edges of topk and adatopk; DEFAULT: the
                                 library's own words, probes, newcomers' state */
    double comm_cpu_s;                   /* processor time of the comm threads in the whole run, without what
                                 blocking calls moved themselves; 0: the system does not tell */
    double predicted_step_s;             /* by the plan's model, forward included; 0 = no plan */
    double predicted_hidden_pct;
    double divergence;   /* Gamma of DreamDDP section 2.4, this rank's share: sum over layers of
                          |average - own|^2 at their last averaging; mean over ranks = Gamma */
    ddp_link link;       /* measured: averaging n bytes takes alpha_s + beta_s n */
    long replans;        /* how often the link had moved by a fifth and a new plan was made */
    double staleness;    /* servers: mean number of updates between a pull and the next push, */
    long staleness_most; /* and the most */
    double deferred_pct; /* osp: of the gradients' bytes, those that were sent late */
    long updates;        /* deft: of merged gradients, which may be fewer than steps */
    /* Every few periods, over the steps since: forward, backward and update, waits left out. */
    double compute_s;        /* mean of a step on this rank */
    double median_compute_s; /* the median rank's; of two ranks the faster one's */
    int slowest_rank;        /* whose steps are longest ... */
    double slow_ratio;       /* ... against the median; 0 = not known yet */
    size_t optimizer_bytes;  /* its state on this rank, and what muon works in */
    long not_finite;         /* gradients of a layer in a step that had a NaN or an infinite value on this
                                 rank */
} ddp_stats;

/* ddp_get_stats - those numbers, now. ddp_divergence - this rank's share of Gamma at the last averaging of
 * that layer. ddp_last_algorithm - how the last all-reduce travelled: "full" (exchange), "direct", "ring";
 * "none": no one did. */
DDP_API void ddp_get_stats(ddp_ctx *d, ddp_stats *out);
DDP_API double ddp_divergence(const ddp_ctx *d, int layer);
DDP_API const char *ddp_last_algorithm(const ddp_ctx *d);

/* The plan and the profile in force, borrowed until the next ddp_step_end; NULL before there is
 * one. ddp_plan_adopt - takes a plan (copied) at once instead of planning; collective, same plan
 * on all ranks. ddp_plan_read - reads the JSON of `plan partial` for a model of layers layers. */
DDP_API const struct ddp_plan *ddp_plan_get(const ddp_ctx *d);
DDP_API const struct ddp_profile *ddp_profile_get(const ddp_ctx *d);
DDP_API int ddp_plan_adopt(ddp_ctx *d, const struct ddp_plan *plan);
DDP_API ddp_status ddp_plan_read(const char *path, int layers, struct ddp_plan *out, ddp_error *err);

/* ddp_trace_copy - copies the newest spans (compute of this rank and its communication), oldest first;
 * returns how many. ddp_dump - writes what this rank knows of its last 2,000 operations to path (%r becomes
 * the rank) as JSON lines: the run and its error, then one line per operation, the newest last; those in
 * flight name the ranks that have not begun them. Any thread, also while others wait and after a failure, not
 * during ddp_add_layer or ddp_close. The file appears whole or not at all. Errors: DDP_ARG, DDP_IO,
 * DDP_MEMORY; the context's own error is left as it is. */
DDP_API int ddp_trace_copy(ddp_ctx *d, struct ddp_span *out, int room);
DDP_API ddp_status ddp_dump(ddp_ctx *d, const char *path, ddp_error *err);

/* What changed while a run went on: who is slow, when the plan followed the link, who came and went. */
typedef enum ddp_note_kind {
    DDP_NOTE_SLOW,   /* rank computes `now` seconds a step, the median rank `before` */
    DDP_NOTE_EVEN,   /* the rank that was slow is slow no more */
    DDP_NOTE_REPLAN, /* the link drifted: averaging a mean layer took `before` seconds when the plan
                        was made and takes `now`; a new plan was made */
    DDP_NOTE_LOST,   /* rank is no longer a worker */
    DDP_NOTE_JOINED  /* rank is a worker again */
} ddp_note_kind;

typedef struct ddp_note {
    ddp_note_kind kind;
    long step;          /* so many steps were done */
    double time_s;      /* ddp_now() */
    int rank;           /* -1 where it is about no rank */
    int workers;        /* live, from then on */
    double before, now; /* seconds; 0 where the kind has none */
} ddp_note;

/* ddp_notes - the notes of this context, the newest `room` of the last 64, oldest first; returns
 * how many were copied. Slow ranks are noted as they are logged: from 1.25 times the median on, and
 * again when that changes by a fifth. On the context's thread, between hooks.
 *
 * ddp_note_name - "slow", "even", "replan", "lost" or "joined"; "?" for anything else.
 * ddp_note_text - the note as one sentence without a full stop, cut where out has no more room. */
DDP_API int ddp_notes(const ddp_ctx *d, ddp_note *out, int room);
DDP_API const char *ddp_note_name(ddp_note_kind kind);
DDP_API void ddp_note_text(const ddp_note *note, char *out, size_t room);
