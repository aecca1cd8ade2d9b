/* The context: a training loop registers its layers and calls a few hooks; the library decides
 * when a layer is updated and what is sent when (DESIGN sections 3 to 5). */
#ifndef DDP_SYNC_SESSION_H
#define DDP_SYNC_SESSION_H

#include "base/alloc.h"
#include "base/backend.h"
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
    DDP_TCP,               /* ranks are processes */
    DDP_MPI                /* ranks are processes of mpirun or srun; needs DDP_USE_MPI. MPI is
                              called by the comm thread: docs/mpi.md */
} ddp_transport;

/* How averages travel; sums are in float32 in any case. */
typedef enum ddp_wire {
    DDP_WIRE_DEFAULT, /* float32 */
    DDP_WIRE_F32,
    DDP_WIRE_BF16,    /* bfloat16, half the bytes: to nearest even when sent; never a ring */
    DDP_WIRE_INT8     /* int8 blocks of 64 values with a scale each (compress/quantise.h), 0.27 of
                         the bytes; never a ring. What rounding cuts off is sent with the next
                         message. Gradients as they are; of parameters what they changed by since
                         the layer's last average; buffers and optimizer state as float32 */
} ddp_wire;

/* How sums over all ranks are made; what differs is time, and for rings the order of the sums. */
typedef enum ddp_algorithm {
    DDP_ALGORITHM_DEFAULT, /* by the array's size and the link */
    DDP_FULL,              /* everybody sends everything to everybody; not in elastic worlds */
    DDP_DIRECT,            /* each rank sums one segment and sends it back to all */
    DDP_RING               /* from rank to rank; not where deterministic, nor with two ranks */
} ddp_algorithm;

/* Everything is optional: zero = the default named on the line. Strings are read during
 * ddp_open and need not outlive it. With world == 0 and no_env == 0 the environment (DREAMDDP_*,
 * then torchrun, Open MPI, MPICH, PMIx, Slurm names) says rank, world and address, and fills any
 * other field below that is zero and has a DREAMDDP_ variable; world > 0 makes rank literal. */
typedef struct ddp_config {
    ddp_strategy   strategy;        /* dreamddp; DREAMDDP_STRATEGY */
    int period; /* H, steps in which each layer is averaged once; 5; DREAMDDP_PERIOD */
    ddp_transport  transport;       /* tcp; DREAMDDP_TRANSPORT */
    int            rank, world;     /* 0 of 1 */
    const char *addr; /* of rank 0: "host:port", "tcp://host:port", "[v6]:port", or "file://PATH", a
                         file in which rank 0 tells it; "127.0.0.1:29500"; DREAMDDP_ADDR */
    const char    *run_id;          /* workers with another id are refused; ""; DREAMDDP_RUN_ID */
    const char *socket_ifname; /* interfaces to listen on: "eth", "=eth0", "^lo,docker"; NULL = that
                                  from which rank 0 is reached; DREAMDDP_SOCKET_IFNAME */
    const char *net; /* "RATE,DELAY,JITTER": shape this worker's links, e.g. "100mbit,20ms"; or a
                        topology, "FILE.json" or "FILE.json@0,16,32" where those devices are the
                        workers; the same on all ranks; unshaped; DREAMDDP_NET */
    const char *net_script; /* file of stalls, drops, kills and rates (docs/links.md); none;
                               DREAMDDP_NET_SCRIPT */
    const char *net2;  /* as net, for a second link between the same workers, which no script
                          touches; none; DREAMDDP_NET2 */
    const char *addr2; /* host:port of rank 0 on the second link's interface; where net2 is set and
                          this is not, a free port of addr; DREAMDDP_ADDR2 */
    ddp_wire       wire;            /* f32; bf16, int8: how what strategies average travels;
                                       ddp_sync_all and plain collectives do not; int8 takes one
                                       float for each parameter with a gradient, three where
                                       parameters are averaged; DREAMDDP_WIRE */
    int site; /* > 0: this worker's site, and every other has one: averages go in two levels, inside
                 the sites and then between them (docs/links.md); 0 = one level; DREAMDDP_SITE */
    int            threads;         /* operator threads of this worker; 1; DREAMDDP_THREADS */
    uint64_t       seed;            /* of initialisation and dropout; 0 */
    int            micro_batches;   /* backward passes per step; their mean gradient is used; 1 */
    float clip_norm;                /* global gradient norm limit; 0 = none. Makes dreamddp and enp
                                       average before the update (their transfer needs no gradient) */
    int            average_state;   /* 1: average the optimizer state with the parameters */
    ddp_algorithm  algorithm;       /* of all-reduces; by size and link */
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
    double connect_timeout_s; /* for rank 0 to answer; 30; DREAMDDP_CONNECT_TIMEOUT */
    double join_timeout_s;    /* for all ranks to come; connect_timeout_s; DREAMDDP_JOIN_TIMEOUT */
    double peer_timeout_s; /* silence after which a peer is lost; 10; DREAMDDP_PEER_TIMEOUT */
    double op_timeout_s;   /* an operation fails so long after the first rank began it; 1800;
                              DREAMDDP_OP_TIMEOUT */
    const char *dump_path; /* where ddp_dump writes when the context fails (not when it is
                              aborted), %r = rank; NULL = nowhere; DREAMDDP_DUMP */
    int min_world; /* > 0: training goes on without lost workers while a majority and at least so
                      many are left (docs/elastic.md); 0 = a lost worker is an error, as without;
                      DREAMDDP_MIN_WORLD */
    int max_world; /* min_world, tcp: ids that the run has room for, at most 64: newcomers get those
                      beyond world too, not only those of lost workers; world; DREAMDDP_MAX_WORLD */
    int join; /* 1: come into a run that is going on, whose workers addr names, separated by commas;
                 rank, world and min_world are its (docs/elastic-join.md); DREAMDDP_JOIN */
    size_t elastic_bytes; /* min_world: memory for inputs and results in flight, at least the
                             longest message (int8 blocks: two of it); 0 = twice that */
    int insecure; /* 1: allow addresses beyond this machine without encryption; DREAMDDP_INSECURE */
    const char *tls_psk; /* file with the pre-shared key of all workers: TLS 1.3 on TCP; NULL = none;
                            DREAMDDP_TLS_PSK */
    const char *tls_ca, *tls_cert, *tls_key; /* or certificates (PEM files), this worker's with the
                            name rank-R; DREAMDDP_TLS_CA, _CERT, _KEY */
    int            no_env;          /* 1: never read the environment (embedders) */
    int check_writes; /* 1: report writes to a layer in flight; on under DREAMDDP_DEBUG */
    int trace_spans;  /* spans kept for ddp_trace_copy; 0 = only what statistics need */
    const volatile int
        *cancel; /* non-zero ends ddp_open, and ddp_launch stops its workers; borrowed */
    const ddp_backend *backend; /* where layers and activations live: the CPU; &ddp_cuda(...) of
                                   dreamddp_cuda.cuh. Borrowed until ddp_close */
    int nccl; /* with a backend, averages of layers go: 0: by transport; 1: from device to device
                 (NCCL), and between sites by transport; 2: over both, as two links, each by the
                 one that should finish it first. All else goes by transport */
    void *cuda_stream; /* with a backend: the program's own stream (cudaStream_t), so that its
                          kernels and the library's follow each other; one of the context's own.
                          Borrowed until ddp_close */
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
    double  comm_cpu_s;       /* processor time of the comm threads in the whole run, without what
                                 blocking calls moved themselves; 0 where the system does not tell */
    double  predicted_step_s; /* by the plan's model, forward included; 0 = no plan */
    double  predicted_hidden_pct;
    double divergence; /* Gamma of DreamDDP section 2.4, this rank's share: sum over layers of
                          |average - own|^2 at their last averaging; mean over ranks = Gamma */
    ddp_link link;            /* measured: averaging n bytes takes alpha_s + beta_s n */
    long     replans;         /* how often the link had moved by a fifth and a new plan was made */
    /* Every few periods, over the steps since: forward, backward and update, waits left out. */
    double   compute_s;       /* mean of a step on this rank */
    double   median_compute_s; /* the median rank's; of two ranks the faster one's */
    int      slowest_rank;    /* whose steps are longest ... */
    double   slow_ratio;      /* ... against the median; 0 = not known yet */
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
 * Returns DDP_OK when every rank did (with min_world: when so many did and the others were killed
 * or lost), else the first failure with its sentence in *err. */
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
 * ddp_abort - fails everything in flight on all ranks with this sentence: whoever waits there, or
 * comes to wait, returns within a second. Any thread.
 * ddp_dump - writes what this rank knows of its last 2,000 operations to path (%r becomes the rank)
 * as JSON lines: the run and its error, then one line per operation, the newest last; those in
 * flight name the ranks that have not begun them. Any thread, also while others wait and after a
 * failure, not during ddp_add_layer or ddp_close. The file appears whole or not at all.
 * Errors: DDP_ARG, DDP_IO, DDP_MEMORY; the context's own error is left as it is. */
DDP_API int  ddp_wait(ddp_ctx *d);
DDP_API int  ddp_sync_all(ddp_ctx *d);
DDP_API void ddp_abort(ddp_ctx *d, const char *why);
DDP_API ddp_status ddp_dump(ddp_ctx *d, const char *path, ddp_error *err);

/* Reading the context. ddp_last_error is never NULL; code DDP_OK means none. ddp_taken: so many
 * micro-batches all workers together have trained on since the first step, also those before a
 * checkpoint was loaded, on whatever world. Divided by ddp_world and rounded down it is the number
 * of the next one of each worker. */
DDP_API int  ddp_rank(const ddp_ctx *d);
DDP_API int  ddp_world(const ddp_ctx *d);
DDP_API long ddp_step(const ddp_ctx *d);
DDP_API int64_t ddp_taken(const ddp_ctx *d);
DDP_API void ddp_set_lr(ddp_ctx *d, float lr);
DDP_API const ddp_error *ddp_last_error(const ddp_ctx *d);
DDP_API void ddp_get_stats(ddp_ctx *d, ddp_stats *out);
DDP_API double ddp_divergence(const ddp_ctx *d, int layer); /* this rank's share, last averaging */
/* How the last all-reduce travelled: "full" (exchange), "direct", "ring"; "none": no one did. */
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

/* Elastic worlds (ddp_config.min_world). ddp_rank and ddp_world are ids and their number (with
 * max_world that): they stay what they were when workers are lost or come. ddp_workers is the number of those that are live,
 * ddp_live has bit r set for each of them (all ones of world where not elastic), ddp_epoch rises
 * with each change. They may change in any hook or collective. */
DDP_API int      ddp_workers(const ddp_ctx *d);
DDP_API uint64_t ddp_live(const ddp_ctx *d);
DDP_API unsigned ddp_epoch(const ddp_ctx *d);

/* Plain collectives over all ranks, usable without layers or hooks; each returns 0 or the first
 * error. In place; n counts floats. All ranks call them in the same order, never between the
 * first hook and ddp_step_end of a step.
 *   ddp_all_reduce  x[n] becomes scale x (sum over ranks)
 *   ddp_all_reduce_bf16  the same in bfloat16, for contexts opened with DDP_WIRE_BF16
 *   ddp_all_reduce_int8  the same in int8 blocks, for contexts opened with DDP_WIRE_INT8; nothing
 *                   is kept of what is cut off; DDP_NUMERIC where a value is not finite
 *   ddp_all_mean    x[n] becomes the mean over the live workers
 *   ddp_broadcast   if root is not live: the lowest live rank's
 *   ddp_all_gather  x[world x n]: rank r's block is the r-th; 0 if r is not live
 *   ddp_reduce_scatter  x[world x n]: the rank-th block becomes scale x (sum over ranks), the
 *                   others stay; with ddp_all_gather behind it the bits of a direct all-reduce.
 *                   Not in elastic worlds (DDP_UNSUPPORTED) */
DDP_API int ddp_all_reduce(ddp_ctx *d, float *x, size_t n, float scale);
DDP_API int ddp_all_reduce_bf16(ddp_ctx *d, float *x, size_t n, float scale);
DDP_API int ddp_all_reduce_int8(ddp_ctx *d, float *x, size_t n, float scale);
DDP_API int ddp_all_mean(ddp_ctx *d, float *x, size_t n);
DDP_API int ddp_broadcast(ddp_ctx *d, float *x, size_t n, int root);
DDP_API int ddp_all_gather(ddp_ctx *d, float *x, size_t n);
DDP_API int ddp_reduce_scatter(ddp_ctx *d, float *x, size_t n, float scale);
DDP_API int ddp_barrier(ddp_ctx *d);
DDP_API int ddp_send(ddp_ctx *d, float *x, size_t n, int to);
DDP_API int ddp_recv(ddp_ctx *d, float *x, size_t n, int from);

/* A second link, opened beside the first where net2 or addr2 is set: its own connections, comm
 * worker and measurements; operations on the two do not wait for one another. The plain collectives
 * exist for either link (0 or 1); those above are link 0's.
 *   ddp_links           how many this context has: 0 with one worker, 1 or 2; with nccl the
 *                       devices' network is the first
 *   ddp_measure_links   times averages on each link alone. Collective, between steps
 *   ddp_get_link_stats  0, or DDP_ARG for a link that does not exist; *out is zero then */
typedef struct ddp_link_stats {
    int64_t     bytes_sent; /* headers included */
    int64_t     operations;
    double      busy_s;     /* union of its operations */
    ddp_link    link;       /* as measured, else nominal; 0 before */
    double      mu;         /* beta of this link over that of link 0; 0 = unknown */
    const char *algorithm;  /* of its last all-reduce: "direct", "ring" or "none" */
} ddp_link_stats;
DDP_API int ddp_links(const ddp_ctx *d);
DDP_API int ddp_measure_links(ddp_ctx *d);
DDP_API int ddp_get_link_stats(ddp_ctx *d, int link, ddp_link_stats *out);
DDP_API int ddp_all_reduce_on(ddp_ctx *d, int link, float *x, size_t n, float scale);
DDP_API int ddp_broadcast_on(ddp_ctx *d, int link, float *x, size_t n, int root);
DDP_API int ddp_all_gather_on(ddp_ctx *d, int link, float *x, size_t n);
DDP_API int ddp_reduce_scatter_on(ddp_ctx *d, int link, float *x, size_t n, float scale);

/* Names as in --strategy and back; DDP_STRATEGY_DEFAULT / "default" where unknown. */
DDP_API const char  *ddp_strategy_name(ddp_strategy s);
DDP_API ddp_strategy ddp_strategy_named(const char *name);
/* auto, full, direct, ring; 0 where the name is unknown. */
DDP_API int ddp_algorithm_named(const char *name, ddp_algorithm *out);
/* f32, bf16, int8; 0 where the name is unknown. */
DDP_API int ddp_wire_named(const char *name, ddp_wire *out);
/* tcp, threads, mpi; DDP_TRANSPORT_DEFAULT where unknown. */
DDP_API ddp_transport ddp_transport_named(const char *name);

#ifdef __cplusplus
}
#endif

#endif /* DDP_SYNC_SESSION_H */
