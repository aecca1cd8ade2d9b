/* Inside of a ddp_ctx. */
#ifndef DDP_SYNC_CONTEXT_H
#define DDP_SYNC_CONTEXT_H

#include "base/fail.h"
#include "base/memory.h"
#include "graph/host.h"
#include "net/engine.h"
#include "net/stream.h"
#include "net/wire_threads.h"
#include "profile/linkfit.h"
#include "profile/timer.h"
#include "sync/session.h"
#include "sync/notes.h"

/* What the time since the last hook was spent on. */
typedef enum ddp__phase {
    DDP__OUTSIDE,       /* between steps: data loading, reports */
    DDP__IN_FORWARD,    /* after forward_begin(layer) */
    DDP__IN_BACKWARD,   /* after backward_begin(layer) */
    DDP__AFTER_BACKWARD /* after backward_end: the next layer's backward, if no hook says otherwise
                         */
} ddp__phase;

/* A registered layer. */
typedef struct ddp__unit {
    char       *name;
    ddp_block  *block;          /* [blocks] */
    int         blocks;
    double      flops;
    int         group;          /* that averages it; 0 = all ranks */
    int         link;           /* that its messages take; of a bucket: its last layer's */
    size_t      count;          /* floats that averaging moves, optimizer state left out */
    size_t      state_count;    /* floats of optimizer state */
    float      *state;
    ddp__piece *average;        /* [averages] what averaging the layer moves */
    int         averages;
    ddp__piece *gradient;       /* [gradients] */
    int         gradients;
    long        ticket;         /* transfer in flight, or -1 */
    size_t      trained;        /* floats with gradients */
    float      *residual, *base, *delta; /* [trained] int8 blocks: still to be sent, the last
                                   average, what is in flight; NULL without; coded.c */
    ddp__piece *other;          /* [others] int8 blocks: what is averaged as floats */
    int         others;
    long        other_ticket;
    int         changing;       /* delta is in flight, or was */
    long        updates;        /* updates applied so far */
    int         passes;         /* backward_end calls in this step */
    long        forward_step;   /* last step with a forward_begin */
    double divergence; /* of the last averaging; written by the comm thread while in flight */
    double      last_divergence;
} ddp__unit;

/* A strategy decides, at each event, what is updated and what is sent. */
typedef struct ddp__strategy_table {
    const char  *name;
    ddp_strategy id;
    int          partial;  /* averages each layer in its own step, by a plan */
    ddp_status (*start)(ddp_ctx *d);                   /* after the layers are known; may be NULL */
    ddp_status (*backward_end)(ddp_ctx *d, int layer); /* the layer's gradient is complete */
    ddp_status (*step_end)(ddp_ctx *d);                /* all layers have had theirs */
} ddp__strategy_table;

/* A wfbp bucket: layers first..last (first >= last: backward order). */
typedef struct ddp__bucket {
    int         first, last, missing, group;
    ddp__piece *piece;
    int         pieces;
    long        ticket;
} ddp__bucket;

enum { DDP__NOTES = 64 };

struct ddp_ctx {
    ddp__host    host; /* first: src/graph reads the context as a host */
    ddp_config   cfg;  /* resolved; strings owned by the context */
    int          rank, world;    /* id, and how many ids there are */
    int          met;            /* ids that are there from the start */
    ddp__links   links;         /* of cfg.net and cfg.net_script; no paths: neither is set */
    const ddp__strategy_table *strategy;
    ddp__engine *engine; /* NULL with one worker */
    ddp__engine *second; /* of link 1; NULL without */
    ddp__links   second_links;
    ddp_link     second_link; /* measured */
    ddp__tls *tls;       /* NULL = plain */
    struct ddp__join *join;     /* serves newcomers; NULL where none can come */
    struct ddp__joiner *joiner; /* this worker is one, not yet in; else NULL */

    ddp__unit   *unit; /* [layers], grows until the session starts */
    int          layers, room;
    ddp_optimizer optimizer;
    float        lr;
    int          team;           /* group of the ranks that this one plans with; 0 = all ranks; */
    int          team_size, team_place, team_root; /* their number, this rank's place, the first */
    struct ddp__levels *levels;  /* averages go in two; NULL: in one */
    int          mixed;          /* layers belong to unlike groups */
    int          started;
    int          aborts;         /* ddp_abort with one worker: how often; atomic */
    int          aborted;        /* atomic: abort_text is there */
    char         abort_text[DDP_ERROR_TEXT];
    int          dumping;        /* somebody writes a dump; atomic */
    int          dumped;         /* cfg.dump_path was written, or could not be */

    long         step;
    int64_t      taken;          /* micro-batches of all ranks together */
    int          hooks_forward;  /* every layer had its forward_begin in the last whole step */
    ddp__phase   phase;
    int          phase_layer;
    double       mark;           /* when the last hook returned */

    ddp__bucket *bucket;         /* wfbp */
    int          buckets, next_bucket;
    float       *coded;          /* int8 blocks: of all layers; NULL without */
    size_t       coded_count;
    ddp__piece  *all_gradients;  /* ssgd: every gradient as one message */
    int          all_gradient_pieces;

    ddp_plan     plan;           /* plan.layers 0 = none yet */
    ddp_profile  profile;        /* profile.layers 0 = none yet */
    ddp_link     link;
    ddp__timer   timer;
    ddp_linkfit  fit;            /* follows the link while training */
    double       mean_layer_bytes;
    long         drift_ticket;   /* rank 0's word on planning again, or -1 */
    float        drift_word[3];  /* again?, alpha in us, beta in ps per byte */
    ddp__piece   drift_piece;
    double       compute_this_step, compute_sum_s; /* of this rank, waits left out */
    long         compute_steps;
    float       *pace;           /* [2 x world] mean of each rank's step; room to sort it */
    ddp__piece   pace_piece;
    long         pace_ticket;    /* the exchange of these, or -1 */
    double       pace_told;      /* the ratio that was logged last; 0 = nobody is slow */
    int          pace_rank, pace_place;
    ddp_note     note[DDP__NOTES]; /* ring */
    long         notes;          /* ever */
    uint64_t     noted_live;     /* the workers at the last look; 0 = none yet */
    int          measured;       /* the plan came from clocks: it follows the link */
    int          plan_final;     /* the plan will not be replaced by a measured one */

    ddp_span    *span;           /* ring of compute and wait spans */
    int          spans;          /* ring size */
    long         span_count;     /* spans ever recorded */
    ddp__op_span *op_scratch;    /* for statistics and traces */
    int          op_room;
    ddp_span    *merge;          /* scratch of the hidden share */
    int          merge_room;

    struct ddp__stage *stage;    /* of a device's messages; NULL = they are here */
    struct ddp__clock *clock;    /* of a device's times; NULL = hooks are punctual */
    int          loaded;         /* a step has run on the device: what it launches is there */
    int          joined;         /* the devices have a network of their own */
    struct ddp__direct *direct;  /* and what is sent over it */
    double       begun;          /* the wait or the update that is under way */

    double       step_begin;     /* end of the previous step */
    double       wait_this_step;
    ddp_stats    stats;
    double       sum_step_s, sum_wait_s;
};

#ifdef __cplusplus
extern "C" {
#endif

/* First line of every hook: the sticky error. */
#define DDP__ENTER(d)                                        \
    do {                                                     \
        if (!(d)) return DDP_ARG;                            \
        if ((d)->host.error.code) return (int)(d)->host.error.code; \
    } while (0)

/* Makes err the context's sticky error (the first one stays) and tells the other ranks. */
DDP_LIB int ddp__ctx_fail(ddp_ctx *d, const ddp_error *err);
DDP_LIB int ddp__ctx_failf(ddp_ctx *d, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);

/* session.c: ddp_open with what only ddp_launch has: the meeting place of threads, or the socket
 * on which rank 0 already listens (-1 = none; closed here). */
DDP_LIB ddp_ctx *ddp__open(const ddp_config *cfg, ddp__hub *hub, int listen_fd, ddp_error *err);

/* config.c */
DDP_LIB ddp_status ddp__config_resolve(const ddp_config *given, ddp_config *out, ddp_error *err);
DDP_LIB void       ddp__config_free(ddp_config *c);

/* links.c: what cfg.net and cfg.net_script say about this rank; *out stays empty if neither is
 * set. Freed by ddp__links_free. */
DDP_LIB ddp_status ddp__links_open(const ddp_config *c, ddp__links *out, ddp_error *err);

DDP_LIB const ddp__strategy_table *ddp__strategy_find(ddp_strategy s);

/* start.c: freezes the layers: comparison, memory, rank 0's parameters. Idempotent. */
DDP_LIB ddp_status ddp__session_start(ddp_ctx *d, ddp_error *err);
/* A 64-bit value travels as four floats of 16 bits each: exact, and the engine moves floats. */
#define DDP__WORDS 4
DDP_LIB void       ddp__pack64(float *out, uint64_t v);
DDP_LIB uint64_t   ddp__unpack64(const float *in);

/* Live workers, and whether this rank does what is done once: it is the lowest live one. */
DDP_LIB uint64_t   ddp__live(const ddp_ctx *d);
/* The lowest rank that lives; the first one of those who share this rank's layers. */
DDP_LIB int        ddp__is_first(const ddp_ctx *d);
DDP_LIB int        ddp__leads(const ddp_ctx *d);

/* team.c: the ranks that register the same layers, and plan and measure together: those of the
 * group of all of a rank's layers; all ranks where layers belong to none or to several. */
DDP_LIB ddp_status ddp__team_find(ddp_ctx *d, ddp_error *err);
/* Whether all ranks see teams and the layers' groups alike. */
DDP_LIB ddp_status ddp__team_agree(ddp_ctx *d, const float *teams, size_t stride, ddp_error *err);
DDP_LIB ddp_status ddp__team_layers(ddp_ctx *d, ddp_error *err);
/* Number i of the team's ranks. */
DDP_LIB int        ddp__team_rank(const ddp_ctx *d, int i);
/* ddp__blocking within a group; the root is the first of its ranks. */
DDP_LIB int        ddp__group_root(const ddp_ctx *d, int group); /* its first rank */
DDP_LIB ddp_status ddp__blocking_in(ddp_ctx *d, int group, ddp__verb verb, const ddp__piece *pieces,
                                    int count, float scale, ddp_error *err);

/* update.c */
DDP_LIB void   ddp__update_layer(ddp_ctx *d, int layer);
DDP_LIB void   ddp__clip_gradients(ddp_ctx *d);
DDP_LIB void   ddp__mean_gradients(ddp_ctx *d, int layer); /* divides by micro_batches */

/* averaging.c, gradient.c */
DDP_LIB const ddp__strategy_table *ddp__averaging_strategies(int *count);
DDP_LIB const ddp__strategy_table *ddp__gradient_strategies(int *count);
DDP_LIB ddp_status ddp__average_layer(ddp_ctx *d, int layer, int filler, ddp_error *err);
/* In float32, whatever the wire. */
DDP_LIB ddp_status ddp__average_exact(ddp_ctx *d, int layer, ddp_error *err);
DDP_LIB ddp_status ddp__average_wait(ddp_ctx *d, int layer, ddp_error *err);
DDP_LIB ddp_status ddp__average_wait_all(ddp_ctx *d, ddp_error *err);
/* "direct" and its like of a span or of the statistics; "none" of 0. */
DDP_LIB const char *ddp__algorithm_name(char algorithm);
/* Submits one message and waits for it; with one worker only the scale is applied. DDP__MEAN as
 * scale divides the sum by the live workers. */
#define DDP__MEAN (-1.0e30f)
DDP_LIB void       ddp__message_fill(const ddp_ctx *d, ddp__message *m, ddp__verb verb,
                                     const ddp__piece *pieces, int count, float scale, int peer);
DDP_LIB ddp_status ddp__blocking(ddp_ctx *d, ddp__verb verb, const ddp__piece *pieces, int count,
                                 float scale, int peer, ddp_error *err);

/* start.c: settings that all ranks must have alike, as numbers, and what they are called */
enum { DDP__ALIKE = 10 };
DDP_LIB void        ddp__alike(const ddp_ctx *d, float *value);
DDP_LIB const char *ddp__alike_name(int i);

/* coded.c: int8 blocks */
DDP_LIB const ddp__coder *ddp__int8_coder(void);
DDP_LIB ddp__coding ddp__wire_coding(ddp_wire wire);
/* Bytes that averaging a layer moves: of parameters with gradients, and of anything else. */
DDP_LIB size_t     ddp__coded_bytes(const ddp_ctx *d, size_t trained, size_t others);
DDP_LIB ddp_status ddp__coded_memory(ddp_ctx *d, ddp_error *err);
DDP_LIB void       ddp__coded_close(ddp_ctx *d);
/* A layer's parameters are what all ranks hold alike. */
DDP_LIB void       ddp__coded_base(ddp_ctx *d, int layer);
/* Nothing is left to be sent; base: all parameters are alike. */
DDP_LIB void       ddp__coded_start(ddp_ctx *d, int base);
/* Rounds gradients to blocks, in place, with what was cut off before; layer is for errors. */
DDP_LIB ddp_status ddp__coded_gradients(ddp_ctx *d, const ddp__piece *pieces, int count, int layer,
                                        float *residual, ddp_error *err);
/* Submits a layer's average: m lacks pieces, coding and divergence. */
DDP_LIB ddp_status ddp__coded_average(ddp_ctx *d, int layer, ddp__message *m, ddp_error *err);
DDP_LIB void       ddp__coded_arrived(ddp_ctx *d, int layer);

/* second.c */
DDP_LIB int        ddp__two_links(const ddp_config *c);
/* What cfg.net2 says about this rank. */
DDP_LIB ddp_status ddp__second_links(const ddp_config *c, ddp__links *out, ddp_error *err);
/* Where the ranks meet for link 1, told over link 0: the address, and on rank 0 the socket that
 * listens there, or -1. */
DDP_LIB ddp_status ddp__second_place(ddp_ctx *d, char *addr, size_t room, int *listen_fd,
                                     ddp_error *err);
/* The engine of a message's link. */
DDP_LIB ddp__engine *ddp__engine_of(const ddp_ctx *d, int link);
DDP_LIB ddp_status   ddp__ctx_submit(ddp_ctx *d, const ddp__message *m, long *ticket,
                                     ddp_error *err);
/* ddp__blocking over a link, within a group. */
DDP_LIB ddp_status ddp__blocking_on(ddp_ctx *d, int link, int group, ddp__verb verb,
                                    const ddp__piece *pieces, int count, float scale, int peer,
                                    ddp_error *err);

/* levels.c: averages inside sites, then between them */
/* site: [world] of each rank; all 0: none. Collective. */
DDP_LIB ddp_status ddp__levels_open(ddp_ctx *d, const float *site, size_t stride, ddp_error *err);
DDP_LIB void       ddp__levels_close(ddp_ctx *d);
/* How this rank lies in sites; NULL: in one level. */
DDP_LIB const struct ddp_sites *ddp__levels_site(const ddp_ctx *d);
/* Submits a mean over the message's group, in two levels where there are any; the ticket of the
 * last message. Within two levels divergence is not measured. */
DDP_LIB ddp_status ddp__submit_mean(ddp_ctx *d, const ddp__message *m, long *ticket,
                                    ddp_error *err);
/* How many messages an average is on this rank, where it goes in two levels. */
DDP_LIB int        ddp__levels_messages(const ddp_ctx *d);

/* balance.c: with two links, each message goes over the one that should finish it first. The team
 * agrees on its first rank's choice; p are its times. Nothing may be in flight. */
DDP_LIB ddp_status ddp__balance_links(ddp_ctx *d, const ddp_profile *p, ddp_error *err);
/* The same before anything is measured, from FLOPs and the links as configured. */
DDP_LIB ddp_status ddp__balance_nominal(ddp_ctx *d, ddp_error *err);

/* planning.c */
DDP_LIB ddp_status ddp__profile_start(ddp_ctx *d, ddp_profile *p, ddp_error *err);
DDP_LIB void       ddp__profile_nominal(ddp_ctx *d, ddp_profile *p);
DDP_LIB ddp_link   ddp__link_nominal(const ddp_ctx *d, const ddp__links *links);
/* Times averages over one link, of at most so many times as many floats; all ranks get rank 0's
 * fit. */
enum { DDP__PROBE_FLOATS = 1024, DDP__PROBE_MOST = 1024 };
DDP_LIB ddp_status ddp__probe_link(ddp_ctx *d, int link, ddp_link *out, ddp_error *err);
DDP_LIB ddp_status ddp__plan_first(ddp_ctx *d, ddp_error *err);   /* before the first averaging */
DDP_LIB ddp_status ddp__plan_measured(ddp_ctx *d, ddp_error *err); /* after the profile steps */
DDP_LIB ddp_status ddp__profile_blank(ddp_ctx *d, ddp_error *err); /* names and sizes, no times */
DDP_LIB ddp_status ddp__plan_again(ddp_ctx *d, ddp_error *err);   /* same layers, another link */
DDP_LIB size_t     ddp__unit_wire_bytes(const ddp_ctx *d, const ddp__unit *u);

/* drift.c */
DDP_LIB void       ddp__drift_start(ddp_ctx *d);
DDP_LIB void ddp__drift_observe(ddp_ctx *d, double since, double now); /* overwrites op_scratch */
DDP_LIB ddp_status ddp__drift_step(ddp_ctx *d, ddp_error *err);

/* dump.c */
/* path with %r replaced; NULL when memory is short; the caller's. */
DDP_LIB char      *ddp__rank_path(const char *path, int rank);
/* Writes cfg.dump_path, and into the context's error where that is. */
DDP_LIB void       ddp__dump_failure(ddp_ctx *d);

/* pace.c: at the end of every step */
DDP_LIB ddp_status ddp__pace_step(ddp_ctx *d, ddp_error *err);

/* notes.c: what changed; members are looked at, after every step */
DDP_LIB void ddp__note_add(ddp_ctx *d, ddp_note_kind kind, int rank, double before, double now);
DDP_LIB void ddp__note_members(ddp_ctx *d);

/* account.c */
DDP_LIB void ddp__record(ddp_ctx *d, ddp_span_kind kind, int layer, double begin, double end);
DDP_LIB void ddp__account_hook(ddp_ctx *d, double now, int layer, ddp__phase entering);
DDP_LIB void ddp__account_step(ddp_ctx *d, double now);
DDP_LIB void ddp__account_reset(ddp_ctx *d);
DDP_LIB void ddp__account_predict(ddp_ctx *d);

#ifdef __cplusplus
}
#endif

#endif /* DDP_SYNC_CONTEXT_H */
