/* Inside of a ddp_ctx. */
#ifndef DDP_SYNC_CONTEXT_H
#define DDP_SYNC_CONTEXT_H

#include "base/fail.h"
#include "base/memory.h"
#include "graph/host.h"
#include "net/engine.h"
#include "net/wire_threads.h"
#include "profile/linkfit.h"
#include "profile/timer.h"
#include "sync/session.h"

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
    size_t      count;          /* floats that averaging moves, optimizer state left out */
    size_t      state_count;    /* floats of optimizer state */
    float      *state;
    ddp__piece *average;        /* [averages] what averaging the layer moves */
    int         averages;
    ddp__piece *gradient;       /* [gradients] */
    int         gradients;
    long        ticket;         /* transfer in flight, or -1 */
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
    int         first, last, missing;
    ddp__piece *piece;
    int         pieces;
    long        ticket;
} ddp__bucket;

struct ddp_ctx {
    ddp__host    host; /* first: src/graph reads the context as a host */
    ddp_config   cfg;  /* resolved; strings owned by the context */
    int          rank, world;
    double       rate, delay_s; /* of cfg.net; 0 = unshaped */
    const ddp__strategy_table *strategy;
    ddp__engine *engine; /* NULL with one worker */

    ddp__unit   *unit; /* [layers], grows until the session starts */
    int          layers, room;
    ddp_optimizer optimizer;
    float        lr;
    int          started;
    int          aborted;        /* ddp_abort with one worker; atomic */

    long         step;
    int          hooks_forward;  /* every layer had its forward_begin in the last whole step */
    ddp__phase   phase;
    int          phase_layer;
    double       mark;           /* when the last hook returned */

    ddp__bucket *bucket;         /* wfbp */
    int          buckets, next_bucket;
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
    int          measured;       /* the plan came from clocks: it follows the link */
    int          plan_final;     /* the plan will not be replaced by a measured one */

    ddp_span    *span;           /* ring of compute and wait spans */
    int          spans;          /* ring size */
    long         span_count;     /* spans ever recorded */
    ddp__op_span *op_scratch;    /* for statistics and traces */
    int          op_room;
    ddp_span    *merge;          /* scratch of the hidden share */
    int          merge_room;

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
DDP_LIB const ddp__strategy_table *ddp__strategy_find(ddp_strategy s);

/* start.c: freezes the layers: comparison, memory, rank 0's parameters. Idempotent. */
DDP_LIB ddp_status ddp__session_start(ddp_ctx *d, ddp_error *err);
/* A 64-bit value travels as four floats of 16 bits each: exact, and the engine moves floats. */
#define DDP__WORDS 4
DDP_LIB void       ddp__pack64(float *out, uint64_t v);
DDP_LIB uint64_t   ddp__unpack64(const float *in);

/* update.c */
DDP_LIB void   ddp__update_layer(ddp_ctx *d, int layer);
DDP_LIB void   ddp__clip_gradients(ddp_ctx *d);
DDP_LIB void   ddp__mean_gradients(ddp_ctx *d, int layer); /* divides by micro_batches */

/* averaging.c, gradient.c */
DDP_LIB const ddp__strategy_table *ddp__averaging_strategies(int *count);
DDP_LIB const ddp__strategy_table *ddp__gradient_strategies(int *count);
DDP_LIB ddp_status ddp__average_layer(ddp_ctx *d, int layer, int filler, ddp_error *err);
DDP_LIB ddp_status ddp__average_wait(ddp_ctx *d, int layer, ddp_error *err);
DDP_LIB ddp_status ddp__average_wait_all(ddp_ctx *d, ddp_error *err);
/* Blocks for a ticket and records the wait. */
DDP_LIB ddp_status ddp__ticket_wait(ddp_ctx *d, long ticket, int layer, ddp_error *err);
/* Submits one message and waits for it; with one worker only the scale is applied. */
DDP_LIB ddp_status ddp__blocking(ddp_ctx *d, ddp__verb verb, const ddp__piece *pieces, int count,
                                 float scale, int peer, ddp_error *err);

/* planning.c */
DDP_LIB ddp_status ddp__plan_first(ddp_ctx *d, ddp_error *err);   /* before the first averaging */
DDP_LIB ddp_status ddp__plan_measured(ddp_ctx *d, ddp_error *err); /* after the profile steps */
DDP_LIB ddp_status ddp__plan_again(ddp_ctx *d, ddp_error *err);   /* same layers, another link */
DDP_LIB size_t     ddp__unit_wire_bytes(const ddp_ctx *d, const ddp__unit *u);

/* drift.c */
DDP_LIB void       ddp__drift_start(ddp_ctx *d);
DDP_LIB void ddp__drift_observe(ddp_ctx *d, double since, double now); /* overwrites op_scratch */
DDP_LIB ddp_status ddp__drift_step(ddp_ctx *d, ddp_error *err);

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
