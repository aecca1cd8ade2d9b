/* Defines the private state of a ddp_ctx, and the functions through which other modules read and change
 * it. */
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

/* The events of a strategy, with the names of the members of ddp_strategy_ops. */
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
    X(plan_fits)       \
    X(plan_adapt)      \
    X(choose)

/* clang-format off */
typedef enum ddp__strategy_event {
    DDP__NO_EVENT,
#define DDP__EVENT_ID(name) DDP__EVENT_##name,
    DDP__EVENTS(DDP__EVENT_ID)
#undef DDP__EVENT_ID
    DDP__EVENT_COUNT
} ddp__strategy_event;
/* clang-format on */

/* Phase that the time since the last hook belongs to. */
typedef enum ddp__phase {
    DDP__OUTSIDE,       /* between steps: data loading, reports */
    DDP__IN_FORWARD,    /* after forward_begin(layer) */
    DDP__IN_BACKWARD,   /* after backward_begin(layer) */
    DDP__AFTER_BACKWARD /* after backward_end: the next layer's backward pass, unless a hook opens another
                           phase */
} ddp__phase;

/* Position of the time accounting within a step. */
typedef struct ddp__at {
    ddp__phase phase;
    int layer;    /* layer of the phase */
    double mark;  /* time at which the last hook returned */
    double begun; /* start time of the current wait or update */
} ddp__at;

/* Number and end time of a step, and how long the step waited, in seconds. */
typedef struct ddp__ended {
    long step;
    double at, wait_s;
} ddp__ended;

/* Progress of a worker that joins a run. */
typedef enum ddp__joining {
    DDP__JOINS_NOT,
    DDP__JOINS,      /* has not entered the run yet */
    DDP__HAS_ENTERED /* has entered, and has not called a hook of a layer yet */
} ddp__joining;

/* The clock of a context (clock.c). */
typedef struct ddp__times {
    ddp__at at;
    ddp__timer timer;
    ddp_span *span; /* [spans] ring buffer of compute and waits */
    int spans;
    long span_count; /* spans ever recorded */
    double compute_this_step, wait_this_step;
    ddp__ended *ended; /* [ended_room] ring buffer of completed steps. Steps below ended_first are accounted
                          for. */
    int ended_room;
    long ended_first, ended_next;
    struct ddp__clock *clock; /* clock of a device. NULL without a device, where the time of a hook is the
                               * time of the call. */
} ddp__times;

/* A registered layer. context/layers.c fills it at registration and at the start. All modules read it. */
typedef struct ddp__unit {
    char *name;
    ddp_block *block;   /* a list */
    ddp_matrix *matrix; /* [matrices] */
    int matrices;
    double flops;
    int group, link;             /* group that averages it, or 0 for all ranks, and link of its messages. A
                                    bucket uses the link of its last layer. */
    size_t count;                /* floats that averaging transfers, without optimizer state */
    float *state;                /* [state_count] state of the optimizer */
    size_t state_count, trained; /* trained: floats that are updated */
    ddp_piece *average;          /* [averages] arrays that averaging the layer transfers */
    ddp_piece *gradient,
        *trains; /* [gradients] gradients (data is NULL for DDP_OWN_PARAMS), and their parameters, divided
                          as the optimizer takes them */
    ddp_matrix *shape; /* [gradients] shapes, with rows 0 if it is not a matrix */
    ddp_piece *other;  /* [others] further arrays that averaging transfers: buffers, optimizer state */
    int averages, gradients, others;
} ddp__unit;

struct ddp_ctx {
    ddp__host host;       /* must be first: src/graph reads the context as a host */
    ddp_config cfg;       /* resolved, with strings owned by the context */
    int rank, world, met; /* id, number of ids, number of ranks at the start */
    ddp__links links[2];  /* emulated links of cfg.net and cfg.net_script, and of cfg.net2. Without paths if
                             these are not set. */
    const ddp__strategies *list; /* the available strategies */
    ddp_strategy_ops ops;
    void *self;                   /* the strategy's memory */
    ddp__strategy_event event;    /* event that the strategy is handling */
    const char *call;             /* last call of the program, such as "ddp_step_end" */
    int said_where;               /* the error text names the call and the step of this rank */
    ddp__engine *engine, *second; /* engines of link 0 (NULL with one worker) and link 1 (NULL without a
                                     second link) */
    ddp__unit *unit;              /* [layers], grows until the session starts */
    int layers;                   /* length of the list unit */
    ddp_optimizer optimizer;
    float lr;
    int team;                             /* group of the ranks that this rank plans with, or 0 for all
                                           * ranks */
    int team_size, team_place, team_root; /* their number, this rank's index among them, the first of them */
    int started;                          /* the layers are frozen */
    const char *in_program; /* "save" or "load": that function of ddp_add_state is running, or NULL */
    ddp__joining joining;   /* progress, if this worker joins a run */
    int aborts, aborted;    /* atomic, for ddp_abort with one worker. aborts: number of calls. aborted:
                               abort_text is set. */
    char abort_text[DDP_ERROR_TEXT];
    int engine_held;     /* atomic: a thread uses `engine`, which must not be closed meanwhile */
    int dumping, dumped; /* atomic. dumping: a thread writes a dump. dumped: cfg.dump_path was written, or the
                            write failed. */
    long step;
    int64_t taken; /* micro-batches of all ranks together */
    ddp_stats stats;
    ddp__scratch lists; /* arrays of fixed length, freed by ddp_close */
    ddp__times times;

    /* The parts of other modules. Each is read and written by its own module only. */
    struct ddp__exchanging *exchange;
    struct ddp__gpu *gpu;
    struct ddp__measure *measure;
    struct ddp__session *session;
    struct ddp__keeper *keeper; /* of a pipeline that continues after a loss, or NULL otherwise */
};

/* First line of every hook. Returns the error of a forked child, or the context's first error. Fails if an
 * event of a strategy or a function of ddp_add_state calls a hook. */
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
                                           ddp__strategy_event event); /* returns the previous one */
DDP_LIB ddp__strategy_event ddp__event_of(const ddp_ctx *d);
DDP_LIB const char *ddp__event_name(ddp__strategy_event event); /* "backward_end" */

/* ---- facts.c: read access for other modules ----
 *
 * Only src/context reads and writes its own members of a ddp_ctx. ddp_rank, ddp_world and ddp_step are in
 * reading.h. */
DDP_LIB const ddp_config *ddp__cfg(const ddp_ctx *d);       /* as resolved */
DDP_LIB const ddp_strategy_ops *ddp__ops(const ddp_ctx *d); /* of the running strategy */
/* open.c: closes the strategy and prepares the chosen one, whose event `start` follows. It may declare state
 * until ddp__layers_freeze. Nothing is in flight. Errors leave the strategy as it was. */
DDP_LIB ddp_status ddp__strategy_replace(ddp_ctx *d, const ddp_chosen *chosen, ddp_error *err);
DDP_LIB const ddp__strategies *ddp__strategies_of(const ddp_ctx *d); /* the available strategies */
DDP_LIB void *ddp__self(const ddp_ctx *d);                           /* the strategy's memory */
DDP_LIB ddp_error *ddp__error(ddp_ctx *d); /* the first error of the context, which stays
                                                               set */
DDP_LIB const ddp_logger *ddp__log_of(const ddp_ctx *d);
DDP_LIB ddp__host *ddp__host_of(ddp_ctx *d); /* the part that graphs use */
DDP_LIB const ddp__host *ddp__host_seen(const ddp_ctx *d);
DDP_LIB const ddp_allocator *ddp__allocator_of(const ddp_ctx *d);
DDP_LIB ddp__pool *ddp__pool_of(const ddp_ctx *d);
DDP_LIB const ddp_backend *ddp__backend_of(const ddp_ctx *d); /* device of the layers, or NULL for host
                                                               * memory */
DDP_LIB void *ddp__device_of(const ddp_ctx *d);
DDP_LIB ddp__scratch *ddp__lists_of(ddp_ctx *d); /* memory that ddp_close frees */
DDP_LIB ddp_stats *ddp__stats(ddp_ctx *d);
DDP_LIB ddp__engine *ddp__second_of(const ddp_ctx *d);               /* engine of link 1, or NULL */
DDP_LIB const ddp__links *ddp__links_of(const ddp_ctx *d, int link); /* emulated links */
DDP_LIB int ddp__is_on_paper(const ddp_ctx *d); /* 1 if no value of a layer is read or written (src/sim) */
DDP_LIB int ddp__layers(const ddp_ctx *d);
DDP_LIB int ddp__started(const ddp_ctx *d); /* the layers are frozen */
DDP_LIB const ddp_optimizer *ddp__optimizer(const ddp_ctx *d);
DDP_LIB float ddp__lr(const ddp_ctx *d);
/* The team: the ranks that plan and measure together. Their group (0 for all ranks), their number, this
 * rank's index. */
DDP_LIB int ddp__team_group(const ddp_ctx *d);
DDP_LIB int ddp__team_size(const ddp_ctx *d);
DDP_LIB int ddp__team_place(const ddp_ctx *d);

DDP_LIB int ddp__team_root(const ddp_ctx *d); /* first rank of the team */
DDP_LIB ddp__joining ddp__joining_of(const ddp_ctx *d);
DDP_LIB int ddp__met(const ddp_ctx *d); /* ranks at the start, if others may join */

/* ---- layers.c: the registered layers ----
 *
 *   unit_of         returns layer l
 *   block_is_frozen returns 1 for parameters that are never updated
 *   unit_add        checks and registers a layer. unit_add_block: another block of layer l
 *   unit_named      returns the number of a layer, or -1
 *   units_describe  runs when all layers are registered: assigns shared weights to the first of their layers,
 *                   and makes the lists for messages and updates
 *   units_state     allocates the state of the optimizer
 *   unit_link_set   sets the link of the layer's messages */
DDP_LIB const ddp__unit *ddp__unit_of(const ddp_ctx *d, int l);
DDP_LIB int ddp__block_is_frozen(const ddp_block *b);
DDP_LIB ddp_status ddp__unit_add(ddp_ctx *d, const ddp_layer *layer, ddp_error *err);
DDP_LIB int ddp__unit_add_block(ddp_ctx *d, int l, const ddp_block *block); /* 0 if out of memory */
DDP_LIB int ddp__unit_named(const ddp_ctx *d, const char *name);
DDP_LIB ddp_status ddp__units_describe(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__units_state(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__unit_link_set(ddp_ctx *d, int l, int link);
DDP_LIB void ddp__units_free(ddp_ctx *d);

/* ---- open.c: creation, end and changes of a context ----
 *
 *   context_new    creates a context from its configuration, with links and operator threads. NULL means that
 *                  the reason is in *err.
 *   graphs_free    the first step of the end, before strategy_close and context_free; other modules free
 *                  their parts in between
 *   links_second   opens the emulated links of link 1
 *   context_joins  sets the place of a joining worker in the run, and the links of that world
 *   optimizer_set  sets the optimizer; with an update by the program after the step, also average_first
 *   step_over      ends a step in which all ranks together took `taken` micro-batches
 *   profile_for    extends profiling by `more` steps
 *   call_is        records the program's call, for errors */
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
/* Records that a function of ddp_add_state runs, "save" or "load". NULL after it has returned. Returns the
 * previous value. */
DDP_LIB const char *ddp__program_runs(ddp_ctx *d, const char *function);
DDP_LIB void ddp__joining_set(ddp_ctx *d, ddp__joining state);

/* ---- context.c: errors, ranks, links, groups and sizes ---- */

/* Stores err as the context's first error, unless there is one already, and reports it to the other ranks. */
DDP_LIB int ddp__ctx_fail(ddp_ctx *d, const ddp_error *err);
DDP_LIB int ddp__ctx_failf(ddp_ctx *d, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);
/* Appends text to the message of the current error. Does nothing without an error. */
DDP_LIB void ddp__explain(ddp_ctx *d, const char *text);
/* live: bit mask of the live workers. is_first: whether this rank is the lowest of them, which performs what
 * is done once. leads: whether this rank is the first of its team. */
DDP_LIB uint64_t ddp__live(const ddp_ctx *d);
DDP_LIB int ddp__is_first(const ddp_ctx *d);
DDP_LIB int ddp__leads(const ddp_ctx *d);
DDP_LIB int ddp__is_server(const ddp_ctx *d); /* this rank only serves */
/* Returns the rank that relays control messages of all ranks (ddp__gather_by): in an elastic world with
 * servers the first server. Returns 0 if collectives are used instead. */
DDP_LIB int ddp__hub_of(const ddp_ctx *d);
DDP_LIB int ddp__two_links(const ddp_config *c);
DDP_LIB ddp__engine *ddp__engine_of(const ddp_ctx *d, int link);
/* First check in collectives that the program calls: returns an error on a joining worker that has not begun
 * a step, because the members expect no collective from it. Only this worker fails. */
DDP_LIB ddp_status ddp__is_in_step(ddp_ctx *d, const char *call);
/* Returns DDP_ABORTED after ddp_abort on a context without an engine. With an engine, the engine reports
 * it. */
DDP_LIB ddp_status ddp__abort_check(const ddp_ctx *d, ddp_error *err);
/* Access to `engine` (engine_slot.c). Other threads dump and abort while a joining worker opens and closes
 * its engine. `engine` does not change between hold and release, and set waits for the release. */
DDP_LIB void ddp__engine_hold(ddp_ctx *d);
DDP_LIB void ddp__engine_release(ddp_ctx *d);
DDP_LIB void ddp__engine_set(ddp_ctx *d, ddp__engine *e);
/* Sizes, ranks and hashes for other files (context.c). */
DDP_LIB int ddp__has_engine(const ddp_ctx *d);            /* 0 with one worker, and in a forked child, which
                                                        must not lock the engine */
DDP_LIB int ddp__team_rank(const ddp_ctx *d, int i);      /* rank number i of the team */
DDP_LIB int ddp__group_size(const ddp_ctx *d, int group); /* live workers of a group. Group 0 has all workers
                                                             that compute. */
DDP_LIB int ddp__group_root(const ddp_ctx *d, int group); /* first rank of a group */
DDP_LIB ddp_coding ddp__wire_coding(ddp_wire wire);
/* Optimizer state per parameter of trains[i], in floats. Array k of the state starts k counts after the
 * first. */
DDP_LIB int ddp__piece_state(const ddp_ctx *d, const ddp__unit *u, int i);
DDP_LIB int ddp__plan_rows(const ddp_ctx *d);                 /* number of parts of all layers */
DDP_LIB int ddp__parts_for(const ddp_ctx *d, size_t trained); /* number of parts of a layer with `trained`
                                                                 floats that have gradients */
DDP_LIB size_t ddp__layer_bytes(const ddp_ctx *d, int layer); /* bytes that averaging the layer transfers */
/* Bytes of a layer's average over a group: `trained` floats with gradients, and `others` without. */
DDP_LIB size_t ddp__average_bytes(const ddp_ctx *d, int group, size_t trained, size_t others);
DDP_LIB size_t ddp__layer_others(const ddp_ctx *d, int layer);
/* Hashes: of one layer, of layers and optimizer, and of the operators. */
DDP_LIB uint64_t ddp__unit_hash(const ddp__unit *u);
DDP_LIB uint64_t ddp__layout_hash(const ddp_ctx *d);
DDP_LIB uint64_t ddp__model_hash(const ddp_ctx *d);
/* Host memory that the graphs use, in bytes. */
DDP_LIB double ddp__graphs_bytes(const ddp_ctx *d);
/* The numbers that determine the random masks of the built graphs, one per graph, newest graph first: their
 * count, a copy of them, and new values. */
DDP_LIB size_t ddp__passes_count(const ddp_ctx *d);
DDP_LIB void ddp__passes_get(const ddp_ctx *d, int64_t *out);
DDP_LIB void ddp__passes_set(ddp_ctx *d, const int64_t *passes);
DDP_LIB uint64_t ddp__dropout_hash(const ddp_ctx *d); /* positions and probabilities of dropout in the
                                                         graphs */
DDP_LIB double ddp__dropout(const ddp_ctx *d);        /* largest dropout probability in the graphs, or 0
                                                         without dropout */

/* Pieces of a layer's longest message: an average of all its parts, with each array of optimizer state as a
 * part (context.c). */
DDP_LIB size_t ddp__unit_pieces(const ddp_ctx *d, const ddp__unit *u);
/* Allocates space in the engines for a message of all layers, such as a push to a server. No message may be
 * in flight. */
DDP_LIB ddp_status ddp__session_pieces(ddp_ctx *d, ddp_error *err);

/* Writes the dump to cfg.dump_path, and appends the file name to the context's error (dump.c). */
DDP_LIB double ddp__wall(void); /* seconds since 1970 */
DDP_LIB void ddp__dump_failure(ddp_ctx *d);
