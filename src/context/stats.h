/* Declares the statistics of a run, the current plan, notes and traces. */
#pragma once

#include "config/config.h"
#include "profile/profile.h"

struct ddp_plan;
struct ddp_profile;
struct ddp_span;

/* Statistics of whole periods since the profile steps ended (with any strategy), since ddp_plan_adopt, or
 * since the last new plan, unless a field says otherwise. A period is the number of steps after which the
 * transfers of the strategy repeat. It begins at a step whose number is a multiple of it. The first counted
 * period begins at least one step after the plan was adopted, because a step may wait for transfers of the
 * step before. Until a period is complete, the figures cover all steps since then, and counted_periods is 0.
 * A new plan restarts them. Shares and times describe this rank.
 *
 *   strategy                                      period
 *   ssgd, wfbp, mgwfbp, ascwfbp, bytescheduler,
 *   usbyte, bsp, asp, ssp, r2sp, osp              1
 *   localsgd, enp, dreamddp, diloco, sparseloco   the setting `period`
 *   deft                                          iterations of the plan's steady schedule
 *   a strategy of the program                     the period of its event `transfers`. Without the event: 1
 *                                                 if it averages gradients, else the setting `period`
 *   any, with one worker                          1 */
typedef struct ddp_stats {
    const char *strategy;                /* name of the strategy */
    long steps;                          /* completed steps of the run */
    long counted_steps;                  /* steps that the figures below cover */
    double step_s;                       /* mean time of a step, in seconds */
    double wait_s;                       /* mean time that a step waited for communication */
    double comm_s;                       /* total time in which at least one operation was in flight */
    double exposed_s;                    /* part of comm_s that does not overlap with compute */
    double hidden_pct;                   /* 100 x (1 - exposed / comm), or 100 without communication */
    double peer_wait_s;                  /* time spent waiting for slower peers, not part of comm_s */
    int64_t bytes_sent;                  /* bytes sent in the whole run, headers included */
    int64_t bytes_as[DDP_WIRE_TOPK + 1]; /* part of bytes_sent by number format (ddp_wire), without
                                            headers. TOPK: bytes that a strategy packed itself, and edges
                                            of topk and adatopk. DEFAULT: the library's control messages,
                                            probes, and the state of joining workers */
    double comm_cpu_s;                   /* CPU time of the comm threads in the whole run, without
                                            transfers that blocking calls made on the caller's thread, or 0 if
                                            this system does not provide it */
    double predicted_step_s;             /* step time that was predicted when the plan was adopted, forward
                                          * included, or 0 for no prediction */
    double predicted_hidden_pct;         /* hidden communication that was predicted when the plan was
                                          * adopted, in %. 0 for no prediction */
    double divergence;   /* this rank's share of Gamma, DreamDDP section 2.4: sum over layers of |average -
                            own|^2 at their last averaging. The mean over ranks is Gamma. */
    ddp_link link;       /* measured: averaging n bytes takes alpha_s + beta_s n seconds */
    long replans;        /* number of new plans because the link had changed by more than 20 %, or because
                            the strategy asked for one */
    double staleness;    /* servers: mean number of updates between a pull and the next push, */
    long staleness_most; /* and the largest number */
    double deferred_pct; /* osp: percentage of the gradient bytes that were sent late */
    long updates;        /* deft: updates with merged gradients, which may be fewer than steps */
    /* Recomputed every few periods, over the steps since: forward, backward and update, without waits. */
    double compute_s;        /* mean compute time of a step on this rank */
    double median_compute_s; /* the same of the median rank, or of the faster rank if there are two */
    int slowest_rank;        /* the rank with the longest compute time ... */
    double slow_ratio;       /* ... and its compute time / median, or 0 if unknown yet */
    size_t optimizer_bytes;  /* bytes of optimizer state on this rank, with the workspace of muon */
    long not_finite;         /* number of layer gradients with a NaN or an infinite value on this rank, one
                                per layer and step */
    long counted_from;       /* number of the first of the counted_steps */
    long counted_periods;    /* whole periods in the counted_steps, or 0 if no period was complete */
    int period;              /* number of steps in a period, at least 1 */
    double wait_total_s;     /* time for which this rank waited for communication in the whole run */
    long landing_moves; /* stream: number of times that landings of layers were moved, because averages had
                                arrived late, or early for several periods */
    double corrected_step_s; /* predicted_step_s for the rate of the link that training has observed in the
                                last period */
    const struct ddp_chosen *chosen; /* auto: the choice and its reason, borrowed until ddp_close. NULL before
                                        it, and under other strategies */
} ddp_stats;

/* ddp_get_stats - stores the current statistics of this rank in *out. Call it between hooks. Local. */
DDP_API void ddp_get_stats(ddp_ctx *d, ddp_stats *out);

/* ddp_divergence - returns this rank's share of Gamma, |average - own|^2, at the last averaging of that
 * layer, or 0 before it. Local. */
DDP_API double ddp_divergence(const ddp_ctx *d, int layer);

/* ddp_last_algorithm - returns the algorithm of the last all-reduce of link 0: "full" (all-to-all exchange),
 * "direct" or "ring", or "none" if there was no all-reduce. A constant string. Local. */
DDP_API const char *ddp_last_algorithm(const ddp_ctx *d);

/* ddp_plan_get - returns the current plan, borrowed until the next ddp_step_end, or NULL if there is none
 * yet, or if the strategy follows no such plan. Local. */
DDP_API const struct ddp_plan *ddp_plan_get(const ddp_ctx *d);

/* ddp_profile_get - returns the current profile, measured or read, borrowed until the next ddp_step_end, or
 * NULL if there is none yet. Local. */
DDP_API const struct ddp_profile *ddp_profile_get(const ddp_ctx *d);

/* ddp_plan_adopt - uses a plan (copied) from now on, instead of planning. Collective, with the same plan on
 * all ranks. Returns 0 or the context's first error. Errors: DDP_ARG for NULL or another number of layers;
 * DDP_USAGE if the strategy follows no such plan, or for a worker that joined before the end of its first
 * step; DDP_MEMORY; DDP_MISMATCH, DDP_UNSUPPORTED, DDP_IO, DDP_FORMAT or DDP_MEMORY if it starts the session.
 * Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_plan_adopt(ddp_ctx *d, const struct ddp_plan *plan);

/* ddp_plan_read - reads the JSON that `plan partial` prints, for a model of `layers` layers. *out is
 * untouched on error. Otherwise, the caller frees it with ddp_plan_free. Safe from any thread. Errors: DDP_IO
 * for the file, DDP_FORMAT for its text, DDP_MISMATCH for another number of layers, DDP_ARG for layers or
 * period out of range, or DDP_MEMORY. */
DDP_API ddp_status ddp_plan_read(const char *path, int layers, struct ddp_plan *out, ddp_error *err);

/* ddp_trace_copy - copies the newest `room` spans (compute of this rank and its communication) into out,
 * oldest first. Returns their number. Records more than the statistics need only with debug.trace_spans.
 * Local. */
DDP_API int ddp_trace_copy(ddp_ctx *d, struct ddp_span *out, int room);

/* ddp_dump - writes a record of this rank's last 2,000 operations to path as JSON lines: first the run and
 * its error, then one line per operation, the newest last. Operations in flight list the ranks that have not
 * started them. %r in path is replaced by the rank. The file is written completely or not at all.
 *
 * Any thread may call it, also while others wait and after a failure, but not during ddp_add_layer or
 * ddp_close. The context's own error does not change. Errors: DDP_ARG for NULL or an empty path, DDP_USAGE in
 * a forked process, DDP_IO, or DDP_MEMORY. */
DDP_API ddp_status ddp_dump(ddp_ctx *d, const char *path, ddp_error *err);

/* Kinds of notes: events of a run such as stragglers, new plans and changes of the members. */
typedef enum ddp_note_kind {
    DDP_NOTE_SLOW,   /* a straggler: the rank computes `now` seconds per step, the median rank `before` */
    DDP_NOTE_EVEN,   /* the rank is no longer a straggler */
    DDP_NOTE_REPLAN, /* the link changed: averaging a layer of mean size took `before` seconds when the plan
                        was made, and now takes `now`. A new plan was made. */
    DDP_NOTE_LOST,   /* the rank was lost */
    DDP_NOTE_JOINED  /* a worker joined as this rank */
} ddp_note_kind;

/* One event of a run. */
typedef struct ddp_note {
    ddp_note_kind kind; /* what happened */
    long step;          /* completed steps at that time */
    double time_s;      /* ddp_now() */
    int rank;           /* -1 if the note is not about a rank */
    int workers;        /* number of live workers from then on */
    double before, now; /* seconds, or 0 if the kind has no such value */
} ddp_note;

/* ddp_notes - copies the newest `room` of the last 64 notes of this context into out, oldest first. Returns
 * the number copied. A straggler is noted when it is logged: from 1.25 times the median on, and again when
 * that ratio changes by a fifth. Call it on the context's thread, between hooks. Local. */
DDP_API int ddp_notes(const ddp_ctx *d, ddp_note *out, int room);

/* ddp_note_name - returns the text of a kind: "slow", "even", "replan", "lost" or "joined", and "?" for any
 * other value. A constant string. Pure and safe from any thread. */
DDP_API const char *ddp_note_name(ddp_note_kind kind);

/* ddp_note_text - writes the note as one sentence without a full stop into out, truncated to `room` bytes.
 * Pure and safe from any thread. */
DDP_API void ddp_note_text(const ddp_note *note, char *out, size_t room);
