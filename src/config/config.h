/* ddp_config: the settings of a context. */
#pragma once

#include "base/status.h"
#include "plan/osp/rule.h"
#include "plan/partial/choice.h"

typedef struct ddp_ctx ddp_ctx;
typedef struct ddp_config ddp_config;

struct ddp_backend;

typedef enum ddp_strategy {
    DDP_STRATEGY_DEFAULT, /* dreamddp */
    DDP_SSGD,             /* average of the gradients after the whole backward pass, then one update */
    DDP_WFBP,             /* gradients in buckets, sent during the backward pass, bit-identical to ssgd */
    DDP_LOCALSGD,         /* local updates, and an average of all parameters in every H-th step */
    DDP_ENP,              /* partial averages: an equal number of layers per step */
    DDP_DREAMDDP,         /* partial averages: each layer in the step where its transfer overlaps */
    DDP_MGWFBP,           /* wfbp with buckets by measured times. This strategy and the next three are
                             bit-identical to ssgd. */
    DDP_ASCWFBP,          /* wfbp with several messages in flight */
    DDP_BYTESCHEDULER,    /* parts of gradients by priority: the first layers first */
    DDP_USBYTE,           /* bytescheduler with unequal parts and a searched order */
    DDP_DEFT,             /* merged gradients of several steps, sent during later steps, applied late */
    DDP_BSP,        /* gradients to servers, one update (docs/howto/servers.md), bit-identical to ssgd */
    DDP_ASP,        /* each push to a server is a separate update */
    DDP_SSP,        /* asp. No worker is more than server.staleness steps ahead. */
    DDP_R2SP,       /* asp, but the workers push one after the other */
    DDP_OSP,        /* bsp. The least important layers are sent and corrected during the next step. */
    DDP_DILOCO,     /* deltas of H steps, averaged for an outer optimizer (docs/explanation/diloco.md) */
    DDP_SPARSELOCO, /* diloco with the largest 1/64 of the deltas, in 2 bits each */
    DDP_AUTO        /* one of wfbp, dreamddp and diloco, chosen after the measured steps */
} ddp_strategy;

/* diloco, sparseloco: the step in which an average must be complete. */
typedef enum ddp_overlap {
    DDP_OVERLAP_DEFAULT, /* none */
    DDP_OVERLAP_NONE,    /* the step that starts it */
    DDP_OVERLAP_STREAM,  /* a later step, for some layers at a time */
    DDP_OVERLAP_EAGER    /* the end of the next period. Until then each worker uses its own delta. */
} ddp_overlap;
/* outer.momentum and outer.mixture of 0, because 0 is their default. */
#define DDP_NO_MOMENTUM (-1.0)
#define DDP_OVERWRITE   (-1.0)

typedef enum ddp_transport {
    DDP_TRANSPORT_DEFAULT, /* tcp */
    DDP_THREADS,           /* ranks are threads of one process (only with ddp_launch) */
    DDP_TCP,               /* ranks are processes */
    DDP_MPI,               /* ranks of mpirun or srun; needs DDP_USE_MPI: docs/howto/launch.md */
    DDP_SOCKETS            /* ranks are processes, over connections of the program: ddp_config.sockets */
} ddp_transport;

/* server.count: every worker serves a share of the layers. osp.defer: no layer is late. */
enum { DDP_SERVERS_COLOCATED = -1, DDP_DEFER_NONE = -1 };

/* osp: update of a late layer until its correction. */
typedef enum ddp_lgp {
    DDP_LGP_DEFAULT, /* on */
    DDP_LGP_ON,      /* by the worker's own gradient */
    DDP_LGP_OFF,     /* none */
    DDP_LGP_EMA      /* by 0.9 of the mean of past means and 0.1 of the worker's own gradient */
} ddp_lgp;

/* osp: time of the correction of late layers. */
typedef enum ddp_correct {
    DDP_CORRECT_DEFAULT,  /* deferred */
    DDP_CORRECT_DEFERRED, /* all before the next update */
    DDP_CORRECT_EAGER     /* each on arrival, but not between its forward and its backward pass */
} ddp_correct;

/* Number format of averages. Sums are float32. int4, e3m0 and topk are for parameter deltas only (diloco). */
typedef enum ddp_wire {
    DDP_WIRE_DEFAULT, /* float32 */
    DDP_WIRE_F32,
    DDP_WIRE_BF16, /* bfloat16, rounded to nearest even. Half the bytes. Never uses the ring. */
    DDP_WIRE_INT8, /* blocks of 64 values with a scale, with error feedback. 0.27 of the bytes. Never uses the
                      ring. Gradients, or deltas of parameters since the layer's last average; buffers and
                      optimizer state as float32 */
    DDP_WIRE_INT4, /* as int8 with 4 bits per value: 0.14 of the bytes */
    DDP_WIRE_E3M0, /* 4 bits per value: a sign, and 0 or one of seven powers of two */
    DDP_WIRE_TOPK  /* the largest topk_fraction of each 4096 values: 2 bits and an index of 12 bits each, with
                      error feedback that decays (sparseloco) */
} ddp_wire;

/* Algorithm of all-reduces. They differ in time, and a ring in the order of its sums. */
typedef enum ddp_algorithm {
    DDP_ALGORITHM_DEFAULT, /* by the size of the array and the link */
    DDP_FULL,              /* all-to-all exchange (not in elastic worlds) */
    DDP_DIRECT,            /* each rank sums one segment and sends the result to all */
    DDP_RING               /* from rank to rank; not with deterministic, nor with two ranks */
} ddp_algorithm;

/* Instruction set of the CPU operators. The order of sums, and so the last bits, differ between sets. */
typedef enum ddp_kernels {
    DDP_KERNELS_DEFAULT, /* the fastest of this processor */
    DDP_KERNELS_BASE,    /* SSE2 on x86-64, NEON on arm64: every processor */
    DDP_KERNELS_AVX2,    /* x86-64 with AVX2 and FMA */
    DDP_KERNELS_AVX512   /* x86-64 with AVX-512F */
} ddp_kernels;

/* Settings of a context. Zero is the default of every field, so an all-zero ddp_config is valid. Fields that
 * every program may need are flat. The others are in structs, one for each topic ("chapters"). Strings are
 * read during ddp_open and need not outlive it.
 *
 * Unless no_env is set, DREAMDDP_ variables fill fields that are zero. If world is 0, they and the variables
 * of torchrun, Open MPI, MPICH, PMIx and Slurm supply rank, world and address too.
 * docs/reference/settings.md lists the
 * variable of each field, its range, and its name for ddp_config_set, Python and the flags of programs. */
struct ddp_config {
    ddp_strategy strategy; /* what is sent and when (default: dreamddp) */
    /* in place of strategy: your own (docs/howto/custom-strategy.md); copied by ddp_open (default: NULL) */
    const struct ddp_strategy_ops *own_strategy;
    int period;              /* H: steps in which each layer is averaged once (default: 5) */
    ddp_transport transport; /* how ranks reach each other (default: tcp) */
    int rank, world;         /* this rank, number of ranks; world > 0: both are literal (default: 0 of 1) */
    /* DDP_SOCKETS: [world] stream sockets, connected to the ranks. The entry of this rank is ignored.
     * ddp_open duplicates the descriptors and sets O_NONBLOCK. Close yours afterwards. The connections end
     * with ddp_close, or when ddp_open fails (default: NULL) */
    const int *sockets;
    /* of rank 0: "host:port", "[v6]:port", or "file://PATH", a file to which rank 0 writes the address
     * (default: "127.0.0.1:29500") */
    const char *addr;
    const char *run_id; /* name of the run: ranks with another name are rejected (default: "") */
    /* emulated link of this worker, "RATE,DELAY,JITTER" as in "100mbit,20ms"; or a topology, "FILE.json",
     * then ":VARIANT" for a member of it, then "@0,16,32" for the devices that are the workers, the same on
     * all ranks (default: no emulation) */
    const char *net;
    /* number format of averages, but not of ddp_sync_all and plain collectives. int8 needs memory for one
     * float per parameter with a gradient, for three where parameters are averaged (default: f32) */
    ddp_wire wire;
    /* DDP_WIRE_TOPK: share of each 4096 values that is sent, at least 1 (default: 1/64) */
    double topk_fraction;
    /* > 0: site of this worker. Averages run inside sites, then between them (docs/howto/sites.md). Either
     * all workers have a site, or no worker has one (default: 0). */
    int site;
    int threads; /* operator threads of this worker (default: 1) */
    /* instruction set of the CPU operators: bit-identical on all processors of an architecture (default: the
     * fastest of this processor) */
    ddp_kernels kernels;
    uint64_t seed;     /* of initialisation and dropout (default: 0) */
    int micro_batches; /* backward passes per step, whose mean gradient is used (default: 1) */
    /* limit of the global gradient norm. Sets average.first of dreamddp and enp (default: 0, none) */
    float clip_norm;
    ddp_algorithm algorithm;  /* of all-reduces (default: by size and link) */
    int deterministic;        /* 1: bit-identical on every transport, plans without clocks (default: 0) */
    int profile_steps;        /* steps measured before planning, the first discarded; -1: none (default: 6) */
    const char *profile_path; /* CSV profile in place of measuring (default: NULL) */
    const char *plan_path;    /* JSON of `plan partial` in place of planning (default: NULL) */
    int no_env;               /* 1: ignore the environment, for embedders (default: 0) */
    /* a non-zero value ends ddp_open, and ddp_launch stops its workers. Borrowed (default: NULL) */
    const volatile int *cancel;
    /* device of layers and activations, such as &ddp_cuda(...); borrowed until ddp_close (default: NULL, the
     * CPU) */
    const struct ddp_backend *backend;
    ddp_allocator allocator; /* memory of tensors, optimizer state and staging (default: malloc) */
    ddp_logger logger;       /* log lines (default: none; stderr if DREAMDDP_LOG is set) */

    /* Averages of parameters: localsgd, enp, dreamddp. */
    struct {
        /* 1: average parameters as they are before the update, which ddp_step_end then makes. Required with
         * ddp_own_update (default: 0) */
        int first;
        int state; /* 1: average the optimizer state with the parameters (default: 0) */
        /* periods between averages of the first state array (momentum), and of the others (default: 1 with
         * average.state; the second: as the first) */
        int state_period[2];
        /* dreamddp, enp: larger layers, in parameters, are averaged in equal parts, each in the step of the
         * plan (default: 0, whole layers) */
        int split_params;
    } average;

    /* The plan of partial averaging: dreamddp, enp (docs/explanation/dreamddp-plan.md). */
    struct {
        /* 1: rule of the paper: contiguous sets, timeline cost, complete at step end; deft: Algorithm 1
         * (default: 0) */
        int paper;
        ddp_solver solver; /* search method (default: scatter) */
        ddp_cost cost;     /* cost model (default: window; timeline without forward hooks) */
        ddp_fill fill;     /* extra transfers in the idle time of the link (default: none) */
    } plan;

    /* The choice of strategy auto (docs/explanation/choice.md). */
    struct {
        double steps; /* N, the steps of the whole run (default: 1000) */
        /* largest predicted loss increase over ssgd after N steps, as a share, at most 1; or DDP_LOSS_EXACT:
         * only strategies that are bit-identical to ssgd (default: 0.05) */
        double loss_budget;
        const char *loss_table; /* CSV of measured losses in place of the built-in one (default: NULL) */
    } choice;

    /* Messages of gradients: wfbp, ascwfbp, bytescheduler, usbyte, deft. */
    struct {
        size_t bucket_bytes;    /* wfbp, ascwfbp: size of a bucket (default: 25 MiB; the first 1 MiB) */
        size_t partition_bytes; /* bytescheduler, usbyte, deft: largest part of a layer (default: 26 MB) */
        double credit;          /* bytescheduler: parts in flight (default: 1) */
    } gradient;

    /* Delayed, merged gradients (docs/explanation/deft.md). */
    struct {
        int merge_sum;  /* 1: a merged gradient is the sum over the steps, 0: the mean (default: 0) */
        int no_barrier; /* 1: plans transfers that overlap both forward and backward passes (default: 0) */
        /* updates per step, at most 1, of the plan (default: 0, by overlap and Preserver) */
        double update_frequency;
        double preserve; /* largest deviation from 1 of the loss ratio (default: 0.01) */
    } deft;

    /* Parameter servers: bsp, asp, ssp, r2sp, osp (docs/howto/servers.md). */
    struct {
        /* number of server ranks, or DDP_SERVERS_COLOCATED. The server ranks are the highest. They call
         * ddp_serve and do not compute (default: 0, none) */
        int count;
        int staleness;    /* ssp: steps a worker may be ahead of the slowest (default: 0, as bsp) */
        float push_scale; /* asp, ssp, r2sp: factor on the rate of a push (default: 1 / workers) */
    } server;

    /* Late layers of osp, until their correction (docs/howto/servers.md). */
    struct {
        /* share of the bytes that may be late, at most 1, or DDP_DEFER_NONE (default: 0, by the loss and
         * epoch of ddp_report, at most what overlaps computing) */
        double defer;
        ddp_lgp lgp;         /* update of a late layer until its correction (default: on) */
        ddp_correct correct; /* time of the correction (default: deferred) */
        ddp_osp_rule split;  /* rule that chooses the late layers (default: walk) */
    } osp;

    /* The outer optimizer: diloco, sparseloco (docs/explanation/diloco.md). */
    struct {
        double lr; /* learning rate (default: 0.7, or 1 for sparseloco and eager) */
        /* Nesterov momentum, below 1. DDP_NO_MOMENTUM is 0 (default: 0.5 up to a period of 50, or of 5 with
         * stream, otherwise 0.9; 0 for sparseloco and eager). */
        double momentum;
        ddp_overlap overlap; /* when an average must be complete (default: none) */
        /* stream: share of its own parameters that a worker retains when an average arrives, below 1.
         * DDP_OVERWRITE is 0 (default: 0.5). */
        double mixture;
        /* stream: n fragments, at most H, of the layers 0, n, 2 n, ..; 1, n + 1, ..; sent at equal distances
         * (default: 0, a step for each layer by the planner) */
        int fragments;
        int landing; /* stream with fragments: steps from the send of one until it is applied (default: 0) */
        double compensation; /* eager: lambda of the correction of the delay (default: 0) */
    } outer;

    /* Time-outs, in seconds. */
    struct {
        double connect_s; /* for rank 0 to answer (default: 30) */
        double join_s;    /* for all ranks to connect (default: timeout.connect_s) */
        double peer_s;    /* of silence until a peer is declared lost (default: 30; 10 with min_world) */
        double op_s;      /* for an operation, from its start on the first rank (default: 1800) */
    } timeout;

    /* Worlds that lose and admit workers (docs/explanation/elastic-protocol.md, docs/howto/wan-elastic.md).
     * */
    struct {
        /* > 0: training continues without lost workers while a quorum is alive, or all servers, and at least
         * this number of computing workers (default: 0, a lost worker is an error) */
        int min_world;
        /* min_world, tcp: number of ids, at most 64, for joining workers too (default: world) */
        int max_world;
        /* 1: join the run whose workers addr names, separated by commas. That run determines rank, world and
         * min_world (default: 0) */
        int join;
        /* min_world: memory that retains unfinished operations for a restart (default: twice the longest
         * message) */
        size_t bytes;
    } elastic;

    /* Encryption and integrity of TCP connections (docs/howto/tls.md). */
    struct {
        int insecure;    /* 1: allow addresses beyond this machine without encryption (default: 0) */
        const char *psk; /* file with the pre-shared key of all workers: TLS 1.3 (default: NULL) */
        /* or PEM files: authority, certificate with the name rank-R, its private key (default: NULL) */
        const char *ca, *cert, *key;
        int no_checksum; /* 1: no CRC-32C of data without TLS (default: 0) */
    } security;

    /* Interfaces, second link, faults (docs/howto/emulate-network.md). */
    struct {
        /* interfaces to listen on: "eth", "=eth0", "^lo,docker" (default: that to rank 0) */
        const char *socket_ifname;
        /* file that schedules stalls, dropped connections, kills and rate changes of net (default: NULL) */
        const char *net_script;
        const char *net2;  /* a second link of the workers, as net; without scripts (default: NULL) */
        const char *addr2; /* host:port of rank 0 on the second link (default: a free port of addr) */
    } network;

    /* Used with backend (docs/tutorials/gpu.md). */
    struct {
        /* route of layer averages: 0: transport; 1: NCCL, and transport between sites; 2: both, each average
         * on the link that should finish it first (default: 0) */
        int nccl;
        /* cudaStream_t of the program, borrowed until ddp_close (default: NULL, one of the context) */
        void *cuda_stream;
    } device;

    /* Checks, traces and dumps. */
    struct {
        const char *dump_path; /* file for ddp_dump on a failure, not on an abort; %r: rank (default: NULL) */
        int trace_spans;       /* spans for ddp_trace_copy (default: 0, enough for statistics) */
        int check_writes;    /* 1: report writes to a layer in flight (default: 0; 1 with -DDREAMDDP_DEBUG) */
        int no_finite_check; /* 1: do not report gradients that are NaN or infinite (default: 0) */
        /* 1: ddp_checkpoint_save replaces those of another run (default: 0, an error) */
        int overwrite;
    } debug;
};
