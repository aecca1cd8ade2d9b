/* ddp_config: everything that a program can set, one comment per field. */
#pragma once

#include "base/status.h"
#include "plan/osp/rule.h"
#include "plan/partial/choice.h"

typedef struct ddp_ctx ddp_ctx;
typedef struct ddp_config ddp_config;

struct ddp_backend;

typedef enum ddp_strategy {
    DDP_STRATEGY_DEFAULT, /* dreamddp */
    DDP_SSGD,             /* gradients averaged after the whole backward, then one update */
    DDP_WFBP,             /* gradients in buckets, sent while the backward goes on; same bits as ssgd */
    DDP_LOCALSGD,         /* local updates; all parameters averaged every H-th step */
    DDP_ENP,              /* partial averaging, equal number of layers per step */
    DDP_DREAMDDP,         /* partial averaging, each layer in the step where its transfer hides */
    DDP_MGWFBP,  /* wfbp, in buckets that the measured times choose; same bits as ssgd, as the next three */
    DDP_ASCWFBP, /* wfbp, several messages at once */
    DDP_BYTESCHEDULER, /* gradients in parts, those that the next forward needs first go first */
    DDP_USBYTE,        /* the same with unequal parts and a searched order */
    DDP_DEFT,          /* gradients of several steps merged, sent behind later steps, applied late */
    DDP_BSP,       /* gradients to servers (docs/servers.md): all workers, one update; same bits as ssgd */
    DDP_ASP,       /* each push is an update of its own */
    DDP_SSP,       /* asp, but no worker is more than `staleness` steps ahead */
    DDP_R2SP,      /* asp, the workers one after the other */
    DDP_OSP,       /* bsp, but what matters least is sent and corrected during the next step */
    DDP_DILOCO,    /* what parameters changed by in H steps, averaged, is a gradient to an outer optimizer
                     (docs/outer.md) */
    DDP_SPARSELOCO /* the same, of which the largest 1 in 64 travel, in 2 bits each */
} ddp_strategy;

/* diloco, sparseloco: when an average is waited for. */
typedef enum ddp_overlap {
    DDP_OVERLAP_DEFAULT, /* none */
    DDP_OVERLAP_NONE,    /* in the step that posts it */
    DDP_OVERLAP_STREAM,  /* some layers at a time, each some steps later */
    DDP_OVERLAP_EAGER    /* a period later; until then each worker goes on with its own change */
} ddp_overlap;
/* outer_momentum and mixture of 0, since 0 is their default. */
#define DDP_NO_MOMENTUM (-1.0)
#define DDP_OVERWRITE   (-1.0)

typedef enum ddp_transport {
    DDP_TRANSPORT_DEFAULT, /* tcp */
    DDP_THREADS,           /* ranks are threads of one process: only through ddp_launch */
    DDP_TCP,               /* ranks are processes */
    DDP_MPI,               /* of mpirun or srun; needs DDP_USE_MPI. The comm thread calls MPI: docs/mpi.md */
    DDP_SOCKETS            /* ranks are processes that the program has connected: ddp_config.sockets */
} ddp_transport;

/* ddp_config.servers: every worker serves a share of the layers. ddp_config.defer: nothing. */
enum { DDP_SERVERS_COLOCATED = -1, DDP_DEFER_NONE = -1 };

/* osp: what a layer that is late is in the meantime. */
typedef enum ddp_lgp {
    DDP_LGP_DEFAULT, /* on */
    DDP_LGP_ON,      /* updated with the worker's own gradient */
    DDP_LGP_OFF,     /* as it was */
    DDP_LGP_EMA      /* updated with a mean of past means (0.9) and the worker's own gradient (0.1) */
} ddp_lgp;

/* osp: when a late layer is corrected. */
typedef enum ddp_correct {
    DDP_CORRECT_DEFAULT,  /* deferred */
    DDP_CORRECT_DEFERRED, /* all before the next update */
    DDP_CORRECT_EAGER     /* each when it has come, but not between its forward and its backward */
} ddp_correct;

/* How averages travel; sums are in float32 in any case. */
typedef enum ddp_wire {
    DDP_WIRE_DEFAULT, /* float32 */
    DDP_WIRE_F32,
    DDP_WIRE_BF16, /* bfloat16, half the bytes: to nearest even when sent; never a ring */
    DDP_WIRE_INT8, /* blocks of 64 values with a scale each (compress/quantise.h), 0.27 of the bytes; never a
                      ring. What rounding cuts off is sent with the next message. Gradients as they are; of
                      parameters what they changed by since the layer's last average; buffers and optimizer
                      state as float32 */
    DDP_WIRE_INT4, /* changes alone (diloco): the same with half a byte for each value, 0.14 of the bytes */
    DDP_WIRE_E3M0, /* changes: half a byte, a sign and seven powers of two beside 0 */
    DDP_WIRE_TOPK  /* changes: the largest of each 4096, in 2 bits with 12 bits of index (topk_fraction); what
                      is not sent is kept, and decays (sparseloco's way) */
} ddp_wire;

/* How sums over all ranks are made; what differs is time, and for rings the order of the sums. */
typedef enum ddp_algorithm {
    DDP_ALGORITHM_DEFAULT, /* by the array's size and the link */
    DDP_FULL,              /* everybody sends everything to everybody; not in elastic worlds */
    DDP_DIRECT,            /* each rank sums one segment and sends it back to all */
    DDP_RING               /* from rank to rank; not where deterministic, nor with two ranks */
} ddp_algorithm;

/* The instruction set of the operators' CPU kernels. Each set sums in an order of its own, so it has bits of
 * its own. */
typedef enum ddp_kernels {
    DDP_KERNELS_DEFAULT, /* the fastest that this processor has */
    DDP_KERNELS_BASE,    /* every processor: SSE2 on x86-64, NEON on arm64 */
    DDP_KERNELS_AVX2,    /* x86-64 with AVX2 and FMA */
    DDP_KERNELS_AVX512   /* x86-64 with AVX-512F */
} ddp_kernels;

/* Everything is optional: zero = the default named last on the line. Strings are read during ddp_open and
 * need not outlive it. With world == 0 and no_env == 0 the environment says rank, world and address
 * (DREAMDDP_*, then torchrun, Open MPI, MPICH, PMIx, Slurm names) and fills what is zero, from DREAMDDP_ and
 * the field's name in capitals, without _s or _path (DREAMDDP_PERIOD, DREAMDDP_OP_TIMEOUT, DREAMDDP_DUMP;
 * docs/settings.md). world > 0 makes rank literal. */
struct ddp_config {
    ddp_strategy strategy;                       /* dreamddp */
    const struct ddp_strategy_ops *own_strategy; /* yours instead (docs/own-strategy.md); copied; NULL */
    int period;                                  /* H, steps in which each layer is averaged once; 5 */
    ddp_transport transport;                     /* tcp */
    int rank, world;                             /* 0 of 1 */
    const int *sockets;        /* transport DDP_SOCKETS: [world] descriptors of stream sockets, connected to
                                 the ranks; the own entry is ignored. ddp_open makes duplicates and sets
                                 O_NONBLOCK: close yours after it, or later. The connections end with
                                 ddp_close, or when ddp_open fails; NULL */
    const char *addr;          /* of rank 0: "host:port", "tcp://host:port", "[v6]:port", or
                                 "file://PATH", in which rank 0 tells it; "127.0.0.1:29500" */
    const char *run_id;        /* workers with another id are refused; "" */
    const char *socket_ifname; /* interfaces to listen on: "eth", "=eth0", "^lo,docker";
                                  that from which rank 0 is reached */
    const char *net;        /* shape this worker's links, "RATE,DELAY,JITTER": "100mbit,20ms"; or a topology,
                        "FILE.json", with ":VARIANT" where that member of it is meant, then "@0,16,32" where
                        those devices are the workers, the same on all ranks; unshaped */
    const char *net_script; /* file of stalls, drops, kills, rates (docs/links.md); none */
    const char *net2;  /* as net, for a second link between the same workers, which no script touches; none */
    const char *addr2; /* host:port of rank 0 on the second link's interface; where
                                 net2 is set and this is not, a free port of addr */
    ddp_wire wire;     /* how what strategies average travels; ddp_sync_all and plain collectives do not. int8
                      takes one float for each parameter with a gradient, three where parameters are averaged;
                      f32 */
    double topk_fraction;     /* topk: of each 4096 values those that travel, at least one; 1/64 */
    int site;                 /* > 0: this worker's site, and every other has one: averages go inside the
                                 sites, then between them (docs/links.md); 0 = one level */
    int threads;              /* operator threads of this worker; 1 */
    ddp_kernels kernels;      /* CPU kernels of the operators: the same set gives the same bits on processors
                                 of one architecture; the fastest that this processor has */
    uint64_t seed;            /* of initialisation and dropout; 0 */
    int micro_batches;        /* backward passes per step; their mean gradient is used; 1 */
    float clip_norm;          /* global gradient norm limit; dreamddp and enp then average_first; 0 = none */
    int average_first;        /* 1: a step's averages are of parameters as they stand before its update, which
                                 is made in ddp_step_end when they are whole; so with your own update
                                 (ddp_own_update); 0 */
    int average_state;        /* 1: average the optimizer state with the parameters */
    int state_period[2];      /* average_state with the first array of state (momentum) in every so many-th
                                 period alone, the other arrays in every so many-th; the second as the first;
                                 1 with average_state */
    int split_params;         /* dreamddp, enp: a layer of more parameters than this is averaged in equal
                                 parts, each in the step that the plan gives it; 0 = layers are averaged
                                 whole */
    ddp_algorithm algorithm;  /* of all-reduces; by size and link */
    int deterministic;        /* 1: equal bits on every transport, plan from FLOPs and bytes, not from
                                 clocks */
    int paper;                /* 1: the paper's own rule: contiguous sets, timeline cost, all complete at step
                                 end; deft: Algorithm 1 as printed */
    ddp_solver solver;        /* scatter */
    ddp_cost cost;            /* window with forward hooks, else timeline */
    ddp_fill fill;            /* none */
    int profile_steps;        /* measured before the plan is made, the first discarded; 6 */
    const char *profile_path; /* CSV that replaces measuring; NULL */
    const char *plan_path;    /* JSON of `plan partial` that replaces planning; NULL */
    size_t bucket_bytes;      /* wfbp, ascwfbp: a bucket; 25 MiB (the first holds 1 MiB) */
    size_t partition_bytes;   /* bytescheduler, usbyte, deft: most of a layer in one part; 26 MB */
    double credit;            /* bytescheduler: parts on their way at once; 1 */
    int merge_sum;            /* deft: 1: a merged gradient is the sum of its steps'; 0 = their mean */
    int no_barrier;           /* deft: 1: plans sends that straddle forward and backward */
    double update_frequency;  /* deft: updates for each step that the plan must reach, up to 1; 0 = as many as
                                 hide, or as the Preserver asks for */
    double preserve;          /* deft: how far from 1 the Preserver's ratio of losses may be; 0.01 */
    int servers;              /* > 0: the last so many ranks compute nothing and serve (ddp_serve): with bsp,
                                 asp, ssp, r2sp, osp. DDP_SERVERS_COLOCATED: every worker serves a share;
                                 none */
    int staleness;            /* ssp: s, steps that a worker may be ahead of the slowest; 0, the rule of
                                 bsp */
    float push_scale;         /* asp, ssp, r2sp: a push's update has this times the learning rate; 1 /
                                 workers */
    double defer;             /* osp: share of the model's bytes that may be late, at most 1, or
                                 DDP_DEFER_NONE; 0 = by the loss that ddp_report tells (and its epoch), as
                                 much as hides behind computing */
    ddp_lgp lgp;              /* osp: on */
    ddp_correct correct;      /* osp: deferred */
    ddp_osp_rule split;       /* osp: which layers are late; by rising importance */
    double outer_lr;          /* diloco, sparseloco: nu; 0.7; 1 of sparseloco and of eager */
    double outer_momentum;    /* mu of Nesterov's momentum, below 1; DDP_NO_MOMENTUM is 0; 0.9; none of those
                                 two */
    ddp_overlap overlap;      /* diloco, sparseloco: none */
    double mixture;           /* stream: the share of its own parameters that a worker keeps when the others'
                                 land; 0.5, DDP_OVERWRITE is 0 */
    int fragments;            /* stream: layers 0, n, 2 n.. are the first of n fragments (at most H), which
                                 are sent in equal distances; 0: each layer when the planner says, landing
                                 when it can */
    int landing;              /* stream with fragments: steps after which one lands, below H; 0 */
    double compensation;      /* eager: lambda of what corrects a change that comes late; 0 = none */
    double connect_timeout_s; /* for rank 0 to answer; 30 */
    double join_timeout_s;    /* for all ranks to come; connect_timeout_s */
    double peer_timeout_s;    /* silence after which a peer is lost; 30, with min_world 10 */
    double op_timeout_s;      /* an operation fails so long after the first rank began it; 1800 */
    const char *dump_path;    /* where ddp_dump writes when the context fails (not when it
                                 is aborted), %r = rank; NULL = nowhere */
    int overwrite; /* 1: ddp_checkpoint_save replaces what another run has saved in its folder; 0 = that is an
                      error */
    int min_world; /* > 0: training goes on without lost workers while a majority (or all servers)
                                 and at least so many that compute are left (docs/elastic.md); 0 = an error */
    int max_world; /* min_world, tcp: ids that the run has room for, at most 64:
                                 newcomers get those beyond world too; world */
    int join;      /* 1: come into a run that is going on, whose workers addr names, separated by
                                 commas; rank, world and min_world are its (docs/elastic-join.md) */
    size_t elastic_bytes; /* min_world: memory for inputs and results in flight, at least the
                                 longest message (int8 blocks: two of it); twice that */
    int insecure;         /* 1: allow addresses beyond this machine without encryption */
    const char *tls_psk;  /* file with the pre-shared key of all workers: TLS 1.3 on TCP */
    const char *tls_ca, *tls_cert, *tls_key; /* or certificates (PEM files), this worker's with the name
                                                rank-R */
    int no_env;                              /* 1: never read the environment (embedders) */
    int no_checksum;                         /* 1: bytes on tcp without TLS travel without a CRC-32C; 0 */
    int no_finite_check;                     /* 1: gradients that are NaN or infinite are not reported; 0 */
    int check_writes;           /* 1: report writes to a layer in flight; on under DREAMDDP_DEBUG */
    int trace_spans;            /* kept for ddp_trace_copy; 0 = only what statistics need */
    const volatile int *cancel; /* non-zero ends ddp_open, and ddp_launch stops its workers; borrowed */
    const struct ddp_backend *backend; /* where layers and activations live: &ddp_cuda(...) of
                                          dreamddp_cuda.cuh, borrowed until ddp_close; the CPU */
    int nccl;                /* with a backend, averages of layers go: 0: by transport; 1: from device to
                                 device (NCCL), and between sites by transport; 2: over both, as two links,
                                 each by the one that should finish it first. All else goes by transport */
    void *cuda_stream;       /* with a backend: the program's own stream (cudaStream_t), so that its kernels
                                 and the library's follow each other, borrowed until ddp_close; one of the
                                 context's own */
    ddp_allocator allocator; /* malloc */
    ddp_logger logger;       /* none (DREAMDDP_LOG=info prints to stderr) */
};

/* Names as in --strategy and so on, and back. Unknown: "default", the _DEFAULT value, or 0.
 *   algorithm  auto, full, direct, ring      wire       f32, bf16, int8, int4, e3m0, topk
 *   transport  tcp, threads, mpi, sockets    (all others: ddp_config_set) */
DDP_API const char *ddp_strategy_name(ddp_strategy s);
DDP_API ddp_strategy ddp_strategy_named(const char *name);
DDP_API ddp_strategy ddp_strategy_number(int i); /* the i-th built-in one; DDP_STRATEGY_DEFAULT: no more */
DDP_API unsigned ddp_strategy_traits(ddp_strategy s); /* what it needs and goes with: config/strategy.h;
                                                             unknown: 0 */
DDP_API ddp_transport ddp_transport_named(const char *name);
DDP_API int ddp_algorithm_named(const char *name, ddp_algorithm *out);
DDP_API int ddp_wire_named(const char *name, ddp_wire *out);
DDP_API const char *ddp_wire_name(ddp_wire wire); /* the default's is f32 */
/* A row of the table of settings, which docs/settings.md shows. */
typedef struct ddp_setting {
    const char *field, *variable; /* "period", "DREAMDDP_PERIOD"; NULL where it has none */
    const char *preset;           /* what the field's zero means; NULL of a variable without a field */
    const char *help;
    int same;         /* 1: all ranks must have the same */
    char values[256]; /* "1 to 1000000 steps", "none, stream or eager" */
    char value[256];  /* the field's; "" where it is zero */
} ddp_setting;

/* ddp_config_set - sets a field by its name, as "period" to "5" or "wire" to "topk:0.01"; "" is the default.
 * A text is borrowed until ddp_open or ddp_launch. Errors: DDP_ARG for a name that no field has (with the one
 * that was meant) or a value that it cannot have, *c is as it was.
 * ddp_config_describe - setting i, with what c (may be NULL) has it set to; 0: there are no more. Fields that
 * are pointers of the program (own_strategy, backend, allocator..) are in no row. */
DDP_API ddp_status ddp_config_set(ddp_config *c, const char *field, const char *value, ddp_error *err);
DDP_API int ddp_config_describe(const ddp_config *c, int i, ddp_setting *out);

/* ddp_launched - who started this process as one rank of several: "DREAMDDP_RANK" (ddprun), "torchrun", "Open
 * MPI", "MPICH", "PMIx" or "Slurm", with its rank and the number of ranks; NULL, 0 and 0 if no launcher did.
 * A program reads it to choose by the number of ranks before it opens a context; ddp_open and ddp_launch read
 * the same. Errors: DDP_ARG as ddp_open, for variables that contradict each other. Not while another thread
 * changes the environment. */
DDP_API ddp_status ddp_launched(const char **launcher, int *rank, int *world, ddp_error *err);
