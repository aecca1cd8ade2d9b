/* The private state of a ddp_ctx. */
#pragma once

#include "config/settings.h"
#include "config/strategy.h"
#include "context/reading.h"
#include "context/stats.h"
#include "emulate/links.h"
#include "member/join.h"
#include "nn/exact.h"
#include "plan/partial/partial.h"
#include "profile/timer.h"
#include "profile/trace.h"

/* The events of a strategy, by their names in ddp_strategy_ops. */
#define DDP__EVENTS(X) \
    X(start)           \
    X(forward_begin)   \
    X(backward_end)    \
    X(step_end)        \
    X(arrived)         \
    X(wait)            \
    X(drain)           \
    X(sync_all)        \
    X(restart)         \
    X(members_changed) \
    X(tell_servers)    \
    X(plan_make)       \
    X(plan_whole)      \
    X(plan_adopt)      \
    X(plan_take)       \
    X(plan_fits)

/* clang-format off */
typedef enum ddp__strategy_event {
    DDP__NO_EVENT,
#define DDP__EVENT_ID(name) DDP__EVENT_##name,
    DDP__EVENTS(DDP__EVENT_ID)
#undef DDP__EVENT_ID
    DDP__EVENT_COUNT
} ddp__strategy_event;
/* clang-format on */

/* What the time since the last hook was spent on. */
typedef enum ddp__phase {
    DDP__OUTSIDE,       /* between steps: data loading, reports */
    DDP__IN_FORWARD,    /* after forward_begin(layer) */
    DDP__IN_BACKWARD,   /* after backward_begin(layer) */
    DDP__AFTER_BACKWARD /* after backward_end: the next layer's backward, if no hook says otherwise */
} ddp__phase;

/* Where the accounts of a step stand. */
typedef struct ddp__at {
    ddp__phase phase;
    int layer;    /* of the phase */
    double mark;  /* when the last hook returned */
    double begun; /* the wait or the update that is under way */
} ddp__at;

/* When a step was over, and how long it waited. */
typedef struct ddp__ended {
    double at, wait_s;
} ddp__ended;

/* Where a worker that joins a run stands. */
typedef enum ddp__joining {
    DDP__JOINS_NOT,
    DDP__JOINS,      /* it is not in yet */
    DDP__HAS_ENTERED /* it is in, and has not called a hook of a layer yet */
} ddp__joining;

/* The clock of a context (clock.c). */
typedef struct ddp__times {
    ddp__at at;
    ddp__timer timer;
    ddp_span *span; /* [spans] ring of compute and waits */
    int spans;
    long span_count; /* spans ever recorded */
    double compute_this_step, wait_this_step;
    ddp__ended *ended; /* [ended_room] ring of steps that are over; those below ended_first are accounted */
    int ended_room;
    long ended_first, ended_next;
    struct ddp__clock *clock; /* of a device's times; NULL = hooks are punctual */
} ddp__times;

/* A registered layer: made by context/layers.c at its registration and at the start, read by all. */
typedef struct ddp__unit {
    char *name;
    ddp_block *block;   /* a list */
    ddp_matrix *matrix; /* [matrices] */
    int matrices;
    double flops;
    int group, link;             /* that averages it, 0: all; that its messages take, of a bucket its last
                                     layer's */
    size_t count;                /* floats that averaging moves, optimizer state left out */
    float *state;                /* [state_count] of the optimizer */
    size_t state_count, trained; /* the latter: floats with gradients */
    ddp_piece *average;          /* [averages] what averaging the layer moves */
    ddp_piece *gradient,
        *trains;       /* [gradients] gradients, and what they are of, as the optimizer takes them */
    ddp_matrix *shape; /* [gradients] rows 0: no matrix */
    ddp_piece *other;  /* [others] what else averaging moves: buffers, optimizer state */
    int averages, gradients, others;
} ddp__unit;

struct ddp_ctx {
    ddp__host host;       /* first: src/graph reads the context as a host */
    ddp_config cfg;       /* resolved; strings owned by the context */
    int rank, world, met; /* id, how many ids there are, and how many from the start */
    ddp__links links[2];  /* of cfg.net and cfg.net_script, and of cfg.net2; no paths: they are not
                             set */
    ddp_strategy_ops ops;
    void *self;                   /* the strategy's memory */
    ddp__strategy_event event;    /* that the strategy is in */
    const char *call;             /* the program's last call: "ddp_step_end" */
    int said_where;               /* the error says in which call and step this rank was */
    ddp__engine *engine, *second; /* NULL with one worker; of link 1, NULL without */
    ddp__unit *unit;              /* [layers], grows until the session starts */
    int layers;                   /* of the list unit */
    ddp_optimizer optimizer;
    float lr;
    int team;                             /* group of the ranks that this one plans with; 0 = all ranks; */
    int team_size, team_place, team_root; /* their number, this rank's place, the first */
    int started;                          /* the layers are frozen */
    const char *in_program; /* "save" or "load": such a function of ddp_add_state runs; NULL = none */
    ddp__joining joining;   /* this worker joins a run */
    int aborts, aborted;    /* atomic; ddp_abort with one worker: how often, and abort_text is there */
    char abort_text[DDP_ERROR_TEXT];
    int engine_held;     /* atomic: a thread uses `engine`, which must not close meanwhile */
    int dumping, dumped; /* somebody writes a dump, atomic; cfg.dump_path was written, or could not be */
    long step;
    int64_t taken; /* micro-batches of all ranks together */
    ddp_stats stats;
    ddp__scratch lists; /* all of fixed length */
    ddp__times times;

    /* The parts of other modules, each of which only that module reads and writes. */
    struct ddp__exchanging *exchange;
    struct ddp__gpu *gpu;
    struct ddp__measure *measure;
    struct ddp__session *session;
    struct ddp__keeper *keeper; /* of a pipeline that others go on without; NULL */
};

/* First line of every hook: a forked child's error, the sticky error; events of strategies and functions of
 * ddp_add_state do not call hooks. */
#define DDP__ENTER(d)                                                                        \
    do {                                                                                     \
        if (!(d)) return DDP_ARG;                                                            \
        if (ddp__host_check(&(d)->host, &(d)->host.error)) return (int)(d)->host.error.code; \
        if ((d)->host.error.code) return (int)(d)->host.error.code;                          \
        if ((d)->event || (d)->in_program) return ddp__hook_in_event(d);                     \
        (d)->call = __func__;                                                                \
    } while (0)
DDP_LIB int ddp__hook_in_event(ddp_ctx *d);
DDP_LIB ddp__strategy_event ddp__event_set(ddp_ctx *d,
                                           ddp__strategy_event event); /* returns the one before */
DDP_LIB ddp__strategy_event ddp__event_of(const ddp_ctx *d);
DDP_LIB const char *ddp__event_name(ddp__strategy_event event); /* "backward_end" */

/* ---- facts.c: what other modules may know of a context ----
 *
 * Only src/context reads and writes the members of a ddp_ctx that are its own. ddp_rank, ddp_world and
 * ddp_step are in reading.h. */
DDP_LIB const ddp_config *ddp__cfg(const ddp_ctx *d);       /* as resolved */
DDP_LIB const ddp_strategy_ops *ddp__ops(const ddp_ctx *d); /* of the strategy that runs */
DDP_LIB void *ddp__self(const ddp_ctx *d);                  /* the strategy's memory */
DDP_LIB ddp_error *ddp__error(ddp_ctx *d);                  /* the first error of the context; sticky */
DDP_LIB const ddp_logger *ddp__log_of(const ddp_ctx *d);
DDP_LIB ddp__host *ddp__host_of(ddp_ctx *d); /* what graphs may know */
DDP_LIB const ddp__host *ddp__host_seen(const ddp_ctx *d);
DDP_LIB const ddp_allocator *ddp__allocator_of(const ddp_ctx *d);
DDP_LIB ddp__pool *ddp__pool_of(const ddp_ctx *d);
DDP_LIB const ddp_backend *ddp__backend_of(const ddp_ctx *d); /* where the layers are; NULL: here */
DDP_LIB void *ddp__device_of(const ddp_ctx *d);
DDP_LIB ddp__scratch *ddp__lists_of(ddp_ctx *d); /* memory that ddp_close frees */
DDP_LIB ddp_stats *ddp__stats(ddp_ctx *d);
DDP_LIB ddp__engine *ddp__second_of(const ddp_ctx *d);               /* of link 1; NULL without */
DDP_LIB const ddp__links *ddp__links_of(const ddp_ctx *d, int link); /* emulated ones */
DDP_LIB int ddp__is_on_paper(const ddp_ctx *d); /* 1: no value of a layer is read or written (src/sim) */
DDP_LIB int ddp__layers(const ddp_ctx *d);
DDP_LIB int ddp__started(const ddp_ctx *d); /* the layers are frozen */
DDP_LIB const ddp_optimizer *ddp__optimizer(const ddp_ctx *d);
DDP_LIB float ddp__lr(const ddp_ctx *d);
/* Ranks that plan and measure together: their group (0: all ranks), their number, this rank's place. */
DDP_LIB int ddp__team_group(const ddp_ctx *d);
DDP_LIB int ddp__team_size(const ddp_ctx *d);
DDP_LIB int ddp__team_place(const ddp_ctx *d);

DDP_LIB int ddp__team_root(const ddp_ctx *d); /* the first of them */
DDP_LIB ddp__joining ddp__joining_of(const ddp_ctx *d);
DDP_LIB int ddp__met(const ddp_ctx *d); /* ranks from the start, where others may join */

/* ---- layers.c: the registered layers ----
 *
 *   layer        one of them
 *   add          registers one, which is checked; add_block: another block of layer l
 *   named        the number of a layer, or -1
 *   describe     when all are registered: weights that two layers share become the first one's, and the lists
 *                that messages and updates take are made
 *   state        memory for the optimizer
 *   link_set     which link its messages take */
DDP_LIB const ddp__unit *ddp__unit_of(const ddp_ctx *d, int l);
DDP_LIB ddp_status ddp__unit_add(ddp_ctx *d, const ddp_layer *layer, ddp_error *err);
DDP_LIB int ddp__unit_add_block(ddp_ctx *d, int l, const ddp_block *block); /* 0: out of memory */
DDP_LIB int ddp__unit_named(const ddp_ctx *d, const char *name);
DDP_LIB ddp_status ddp__units_describe(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__units_state(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__unit_link_set(ddp_ctx *d, int l, int link);
DDP_LIB void ddp__units_free(ddp_ctx *d);

/* ---- open.c: a context from its configuration, its end, and what changes of it ----
 *
 *   new           also links and operator threads; NULL: *err says why
 *   graphs_free, strategy_close, free   in this order, with the other modules' parts between them
 *   links_second  opens the emulated links of link 1
 *   joins         of a joining worker: its place in the run, and the links of that world
 *   optimizer_set an own update has average_first
 *   step_over     a step is over, in which all ranks took so many micro-batches
 *   profile_for   profiling goes on for so many steps more
 *   call_is       the program's call, for errors */
DDP_LIB ddp_ctx *ddp__context_new(const ddp_config *cfg, const ddp__strategies *list, const ddp__hooks *hooks,
                                  ddp_error *err);
DDP_LIB void ddp__graphs_free(ddp_ctx *d);
DDP_LIB void ddp__strategy_close(ddp_ctx *d);
DDP_LIB void ddp__context_free(ddp_ctx *d);
DDP_LIB ddp_status ddp__links_second(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__context_joins(ddp_ctx *d, int rank, int world, int min_world, ddp_error *err);
DDP_LIB void ddp__sockets_taken(ddp_ctx *d);
DDP_LIB void ddp__second_set(ddp_ctx *d, ddp__engine *e);
DDP_LIB void ddp__device_set(ddp_ctx *d, const ddp_backend *backend, void *device);
DDP_LIB void ddp__paper_set(ddp_ctx *d, const unsigned char *paper, size_t bytes);
DDP_LIB void ddp__optimizer_set(ddp_ctx *d, const ddp_optimizer *o);
DDP_LIB void ddp__team_set(ddp_ctx *d, int group, int size, int root, int place);
DDP_LIB void ddp__layers_freeze(ddp_ctx *d);
DDP_LIB void ddp__step_over(ddp_ctx *d, int64_t taken);
DDP_LIB void ddp__step_set(ddp_ctx *d, long step, int64_t taken);
DDP_LIB void ddp__profile_for(ddp_ctx *d, long more);
DDP_LIB void ddp__call_is(ddp_ctx *d, const char *name);
/* A function of ddp_add_state runs: "save" or "load"; NULL: it is over. Returns what ran before. */
DDP_LIB const char *ddp__program_runs(ddp_ctx *d, const char *function);
DDP_LIB void ddp__joining_set(ddp_ctx *d, ddp__joining state);

/* ---- context.c: what it knows of itself ---- */

/* Makes err the context's sticky error (the first one stays) and tells the other ranks. */
DDP_LIB int ddp__ctx_fail(ddp_ctx *d, const ddp_error *err);
DDP_LIB int ddp__ctx_failf(ddp_ctx *d, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);
/* Adds what is known of the error to its text; without an error does nothing. */
DDP_LIB void ddp__explain(ddp_ctx *d, const char *text);
/* Live workers; whether this rank is the lowest of them, which does what is done once; whether it is
 * the first of those who share its layers. */
DDP_LIB uint64_t ddp__live(const ddp_ctx *d);
DDP_LIB int ddp__is_first(const ddp_ctx *d);
DDP_LIB int ddp__leads(const ddp_ctx *d);
DDP_LIB int ddp__is_server(const ddp_ctx *d); /* this rank serves in place of the steps */
/* The rank by which words of all go (ddp__gather_by): the first server of an elastic world; 0: by
 * collectives. */
DDP_LIB int ddp__hub_of(const ddp_ctx *d);
DDP_LIB int ddp__two_links(const ddp_config *c);
DDP_LIB ddp__engine *ddp__engine_of(const ddp_ctx *d, int link);
/* First check of the program's collectives: fails on a joining worker that has not begun a step, of which the
 * members expect none. Only this worker ends. */
DDP_LIB ddp_status ddp__is_in_step(ddp_ctx *d, const char *call);
/* DDP_ABORTED after ddp_abort of a context without an engine, which would report it. */
DDP_LIB ddp_status ddp__abort_check(const ddp_ctx *d, ddp_error *err);
/* engine_slot.c: other threads dump and abort while a joining worker opens and closes its engine. Between
 * hold and release `engine` does not change; set waits for the release. */
DDP_LIB void ddp__engine_hold(ddp_ctx *d);
DDP_LIB void ddp__engine_release(ddp_ctx *d);
DDP_LIB void ddp__engine_set(ddp_ctx *d, ddp__engine *e);
/* context.c: sizes, ranks and hashes that other files need */
DDP_LIB int ddp__has_engine(const ddp_ctx *d);       /* 0: one worker, or a forked child, where nothing may
                                                           lock it */
DDP_LIB int ddp__team_rank(const ddp_ctx *d, int i); /* number i of its team */
DDP_LIB int ddp__group_size(const ddp_ctx *d, int group); /* its live workers; 0: all that compute */
DDP_LIB int ddp__group_root(const ddp_ctx *d, int group); /* the first rank of a group */
DDP_LIB ddp_coding ddp__wire_coding(ddp_wire wire);
/* Floats of state of a parameter of trains[i]; array k of it lies k counts behind the first. */
DDP_LIB int ddp__piece_state(const ddp_ctx *d, const ddp__unit *u, int i);
DDP_LIB int ddp__plan_rows(const ddp_ctx *d);                 /* parts of all layers */
DDP_LIB int ddp__parts_for(const ddp_ctx *d, size_t trained); /* of a layer with `trained` floats
                                                                          that have gradients */
DDP_LIB size_t ddp__layer_bytes(const ddp_ctx *d, int layer); /* that averaging it moves */
/* Bytes of a layer's average over a group: floats with gradients, and others. */
DDP_LIB size_t ddp__average_bytes(const ddp_ctx *d, int group, size_t trained, size_t others);
DDP_LIB size_t ddp__layer_others(const ddp_ctx *d, int layer);
/* Fingerprints of layers and optimizer, and of the operators. */
DDP_LIB uint64_t ddp__unit_hash(const ddp__unit *u);
DDP_LIB uint64_t ddp__layout_hash(const ddp_ctx *d);
DDP_LIB uint64_t ddp__model_hash(const ddp_ctx *d);
/* Bytes of this machine's memory that the graphs take. */
DDP_LIB double ddp__graphs_bytes(const ddp_ctx *d);
/* The numbers that the random masks of the built graphs depend on, one per graph, newest graph first: their
 * count, a copy of them, and new values. */
DDP_LIB size_t ddp__passes_count(const ddp_ctx *d);
DDP_LIB void ddp__passes_get(const ddp_ctx *d, int64_t *out);
DDP_LIB void ddp__passes_set(ddp_ctx *d, const int64_t *passes);
DDP_LIB uint64_t ddp__dropout_hash(const ddp_ctx *d); /* where dropout is in the graphs, and how much */
DDP_LIB double ddp__dropout(const ddp_ctx *d);        /* its largest probability in the graphs; 0: there is
                                                            none */

/* context.c: pieces of a layer's longest message: an average of all its parts, with each array of optimizer
 * state as a part. */
DDP_LIB size_t ddp__unit_pieces(const ddp_ctx *d, const ddp__unit *u);
/* Makes room in the engines for a message of all layers, such as a push to a server. No message is in
 * flight. */
DDP_LIB ddp_status ddp__session_pieces(ddp_ctx *d, ddp_error *err);

/* dump.c: writes cfg.dump_path, and into the context's error where that is. */
DDP_LIB double ddp__wall(void); /* seconds since 1970 */
DDP_LIB void ddp__dump_failure(ddp_ctx *d);
