/* The context: a training loop registers its layers and calls a few hooks; the library decides
 * when a layer is updated and what is sent when (DESIGN sections 3 to 5). */
#ifndef DDP_SYNC_SESSION_H
#define DDP_SYNC_SESSION_H

#include "base/alloc.h"
#include "base/log.h"
#include "base/status.h"
#include "graph/layer.h"
#include "nn/optimizer.h"
#include "plan/partial.h"
#include "profile/trace.h"

typedef enum ddp_strategy {
    DDP_STRATEGY_DEFAULT, /* dreamddp */
    DDP_SSGD,             /* gradients averaged after the whole backward, then one update */
    DDP_WFBP,     /* gradients in buckets, sent while the backward goes on; same bits as ssgd */
    DDP_LOCALSGD, /* local updates; all parameters averaged every H-th step */
    DDP_ENP,      /* partial averaging, equal number of layers per step */
    DDP_DREAMDDP  /* partial averaging, each layer in the step where its transfer hides */
} ddp_strategy;

typedef enum ddp_transport {
    DDP_TRANSPORT_DEFAULT, /* tcp */
    DDP_THREADS,           /* ranks are threads of one process: only through ddp_launch */
    DDP_TCP                /* ranks are processes */
} ddp_transport;

/* Everything is optional: zero = the default named on the line. Strings are read during
 * ddp_open and need not outlive it. With world == 0 and no_env == 0 the environment (DREAMDDP_*,
 * then torchrun, Open MPI, MPICH, Slurm names) says rank, world and address, and fills any other
 * field below that is zero and has a DREAMDDP_ variable; world > 0 makes rank literal. */
typedef struct ddp_config {
    ddp_strategy   strategy;        /* dreamddp; DREAMDDP_STRATEGY */
    int period; /* H, steps in which each layer is averaged once; 5; DREAMDDP_PERIOD */
    ddp_transport  transport;       /* tcp; DREAMDDP_TRANSPORT */
    int            rank, world;     /* 0 of 1 */
    const char    *addr;            /* host:port of rank 0; "127.0.0.1:29500"; DREAMDDP_ADDR */
    const char    *run_id;          /* workers with another id are refused; ""; DREAMDDP_RUN_ID */
    const char *net; /* "RATE,DELAY": shape this worker's links, e.g. "100mbit,20ms"; unshaped;
                        DREAMDDP_NET */
    int            threads;         /* operator threads of this worker; 1; DREAMDDP_THREADS */
    uint64_t       seed;            /* of initialisation and dropout; 0 */
    int            micro_batches;   /* backward passes per step; their mean gradient is used; 1 */
    float clip_norm;                /* global gradient norm limit; 0 = none. Makes dreamddp and enp
                                       average before the update (their transfer needs no gradient) */
    int            average_state;   /* 1: average the optimizer state with the parameters */
    int deterministic; /* 1: equal bits on every transport, plan from FLOPs and bytes, never from
                          clocks */
    int paper; /* 1: the paper's own rule: contiguous sets, timeline cost, all complete at step end
                */
    ddp_solver     solver;          /* scatter */
    ddp_cost       cost;            /* window with forward hooks, else timeline */
    ddp_fill       fill;            /* none */
    int profile_steps; /* steps measured before the plan is made; 6 (the first is discarded) */
    const char    *profile_path;    /* CSV that replaces measuring; NULL */
    const char    *plan_path;       /* JSON of `plan partial` that replaces planning; NULL */
    size_t         bucket_bytes;    /* wfbp bucket; 25 MiB (the first holds 1 MiB) */
    double         connect_timeout_s; /* 30; DREAMDDP_CONNECT_TIMEOUT */
    double peer_timeout_s; /* silence after which a peer is lost; 10; DREAMDDP_PEER_TIMEOUT */
    double op_timeout_s;   /* an operation that stands still for so long fails; 300;
                              DREAMDDP_OP_TIMEOUT */
    int insecure; /* 1: allow addresses beyond this machine without encryption; DREAMDDP_INSECURE */
    int            no_env;          /* 1: never read the environment (embedders) */
    int check_writes; /* 1: report writes to a layer in flight; on under DREAMDDP_DEBUG */
    int trace_spans;  /* spans kept for ddp_trace_copy; 0 = only what statistics need */
    const volatile int
        *cancel; /* ddp_launch stops its workers when this becomes non-zero; borrowed */
    ddp_allocator  allocator;       /* malloc */
    ddp_logger     logger;          /* none (DREAMDDP_LOG=info prints to stderr) */
} ddp_config;

/* What the program knows of its step; zero fields are ignored. */
typedef struct ddp_step_info {
    double loss;
    long   samples; /* local samples of the step */
    double epoch;
    float  lr;      /* > 0: learning rate of this step's updates that are still to come */
} ddp_step_info;

/* Numbers since the profile steps ended, whatever the strategy, or since ddp_plan_adopt.
 * Shares and times are of this rank. */
typedef struct ddp_stats {
    long    steps;            /* finished steps in all */
    long    counted_steps;    /* steps the figures below are about */
    double  step_s;           /* mean time of a step */
    double  wait_s;           /* mean time a step waited for communication */
    double  comm_s;           /* total communication, union of operations */
    double  exposed_s;        /* of it, outside compute */
    double  hidden_pct;       /* 100 x (1 - exposed / comm); 100 without communication */
    double  peer_wait_s;      /* waiting for a slower peer, counted apart */
    int64_t bytes_sent;       /* all bytes of the whole run, headers included */
    double  predicted_step_s; /* by the plan's model, forward included; 0 = no plan */
    double  predicted_hidden_pct;
    double divergence; /* Gamma of DreamDDP section 2.4, this rank's share: sum over layers of
                          |average - own|^2 at their last averaging; mean over ranks = Gamma */
    ddp_link link;            /* measured: averaging n bytes takes alpha_s + beta_s n */
} ddp_stats;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_open - joins the world that cfg (NULL = all zero) describes; blocks until all ranks are
 * there. NULL on failure, then *err (may be NULL) says why. One context belongs to one thread;
 * several contexts in one process are independent. ddp_close frees it (NULL is fine). */
DDP_API ddp_ctx *ddp_open(const ddp_config *cfg, ddp_error *err);
DDP_API void     ddp_close(ddp_ctx *d);

/* ddp_launch - runs fn once per rank: cfg->world threads (DDP_THREADS) or processes (DDP_TCP, on
 * a free loopback port), or once here when a launcher already made the ranks or world <= 1. fn
 * gets an open context, which ddp_launch closes; it returns 0 or a ddp_status. With processes
 * the parent only supervises: nothing that fn stores is seen by it.
 * Returns DDP_OK when every rank did, else the first failure with its sentence in *err. */
DDP_API int ddp_launch(const ddp_config *cfg, int (*fn)(ddp_ctx *, void *), void *user,
                       ddp_error *err);

/* ddp_add_layer - registers the next layer, in forward order, the same on every rank. Layers are
 * numbered from 0. ddp_set_optimizer - registers the update rule (copied; default ddp_sgd(0.01,
 * 0)). Called after the layers it also starts the session: layer lists are compared and every rank
 * takes rank 0's parameters; otherwise the first hook does. Collective. */
DDP_API int ddp_add_layer(ddp_ctx *d, const ddp_layer *layer);
DDP_API int ddp_set_optimizer(ddp_ctx *d, const ddp_optimizer *o);

/* The hooks of a step. Each returns 0 or the context's first error; after a failure every call
 * returns it and does nothing.
 *   ddp_forward_begin   before layer is used: waits until its parameters are whole. Optional, but
 *                       once used for a layer, used in every step
 *   ddp_backward_begin  optional: timing
 *   ddp_backward_end    the gradient of layer is complete (for this micro-batch). From here until
 *                       ddp_forward_begin(layer), or ddp_step_end where that hook is not used,
 *                       its parameters and gradients are the library's. Gradients come back zeroed
 *   ddp_report          optional, before ddp_step_end
 *   ddp_step_end        every layer must have had its ddp_backward_end */
DDP_API int ddp_forward_begin(ddp_ctx *d, int layer);
DDP_API int ddp_backward_begin(ddp_ctx *d, int layer);
DDP_API int ddp_backward_end(ddp_ctx *d, int layer);
DDP_API int ddp_report(ddp_ctx *d, const ddp_step_info *info);
DDP_API int ddp_step_end(ddp_ctx *d);

/* ddp_wait - finishes what is in flight and averages nothing more: parameters can be read.
 * ddp_sync_all - finishes and averages: every rank leaves with equal parameters. Collective.
 * ddp_abort - fails everything in flight on all ranks with this sentence. Any thread. */
DDP_API int  ddp_wait(ddp_ctx *d);
DDP_API int  ddp_sync_all(ddp_ctx *d);
DDP_API void ddp_abort(ddp_ctx *d, const char *why);

/* Reading the context. ddp_last_error is never NULL; code DDP_OK means none. */
DDP_API int  ddp_rank(const ddp_ctx *d);
DDP_API int  ddp_world(const ddp_ctx *d);
DDP_API long ddp_step(const ddp_ctx *d);
DDP_API void ddp_set_lr(ddp_ctx *d, float lr);
DDP_API const ddp_error *ddp_last_error(const ddp_ctx *d);
DDP_API void ddp_get_stats(ddp_ctx *d, ddp_stats *out);
DDP_API double ddp_divergence(const ddp_ctx *d, int layer); /* this rank's share, last averaging */
/* How the last all-reduce travelled: "direct", "ring", or "none" before there was one. */
DDP_API const char *ddp_last_algorithm(const ddp_ctx *d);
/* Copies the newest spans (compute of this rank and its communication), oldest first. */
DDP_API int  ddp_trace_copy(ddp_ctx *d, ddp_span *out, int room);

/* The plan and the profile in force, borrowed until the next ddp_step_end; NULL before there is
 * one. ddp_plan_adopt - takes a plan (copied) at once instead of planning; collective, same plan
 * on all ranks. ddp_plan_read - reads the JSON of `plan partial` for a model of layers layers. */
DDP_API const ddp_plan    *ddp_plan_get(const ddp_ctx *d);
DDP_API const ddp_profile *ddp_profile_get(const ddp_ctx *d);
DDP_API int                ddp_plan_adopt(ddp_ctx *d, const ddp_plan *plan);
DDP_API ddp_status ddp_plan_read(const char *path, int layers, ddp_plan *out, ddp_error *err);

/* Plain collectives over all ranks, usable without layers or hooks; each returns 0 or the first
 * error. In place; n counts floats. All ranks call them in the same order, never between the
 * first hook and ddp_step_end of a step.
 *   ddp_all_reduce  x[n] becomes scale x (sum over ranks): 1/world for the mean
 *   ddp_all_gather  x[world x n]: rank r's block is the r-th */
DDP_API int ddp_all_reduce(ddp_ctx *d, float *x, size_t n, float scale);
DDP_API int ddp_broadcast(ddp_ctx *d, float *x, size_t n, int root);
DDP_API int ddp_all_gather(ddp_ctx *d, float *x, size_t n);
DDP_API int ddp_barrier(ddp_ctx *d);
DDP_API int ddp_send(ddp_ctx *d, float *x, size_t n, int to);
DDP_API int ddp_recv(ddp_ctx *d, float *x, size_t n, int from);

/* Names as in --strategy and back; DDP_STRATEGY_DEFAULT / "default" where unknown. */
DDP_API const char  *ddp_strategy_name(ddp_strategy s);
DDP_API ddp_strategy ddp_strategy_named(const char *name);

#ifdef __cplusplus
}
#endif

#endif /* DDP_SYNC_SESSION_H */
