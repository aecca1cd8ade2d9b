/* The table of settings: one row for each field of ddp_config that text can set. It connects the member of
 * the struct, the name, the variable, the range, the default, and whether all ranks must agree. The
 * environment, ddp_config_set, the checks of ddp_open, the comparison of ranks and
 * docs/reference/settings.md all read it. */
#include "config/knob.h"
#include "config/settings.h"
#include "plan/names.h"
#include "plan/partial/partial_names.h"

#ifdef __APPLE__
#include <crt_externs.h>
#define DDP__ENVIRON (*_NSGetEnviron())
#else
#define DDP__ENVIRON environ
#endif

#define DDP__NAMES_OF(name, ...) static const char *const name[] = {__VA_ARGS__, NULL}
DDP__NAMES_OF(ddp__transports, "tcp", "threads", "tcp", "mpi", "sockets");
DDP__NAMES_OF(ddp__algorithms, "auto", "full", "direct", "ring");
DDP__NAMES_OF(ddp__kernel_sets, "auto", "base", "avx2", "avx512");
DDP__NAMES_OF(ddp__wires, "f32", "f32", "bf16", "int8", "int4", "e3m0", "topk");
DDP__NAMES_OF(ddp__lgps, "on", "on", "off", "ema");
DDP__NAMES_OF(ddp__corrects, "deferred", "deferred", "eager");
DDP__NAMES_OF(ddp__splits, "walk", "stop", "density", "knapsack");
DDP__NAMES_OF(ddp__overlaps, "none", "none", "stream", "eager");
DDP__NAMES_OF(ddp__solvers_set, DDP__SOLVERS);
DDP__NAMES_OF(ddp__costs_set, DDP__COSTS);
DDP__NAMES_OF(ddp__fills_set, DDP__FILLS);

#define DDP__KNOB(member, name, variable, kind, flags, least, most, unit, preset, names, help)   \
    {                                                                                            \
#member, name, "DREAMDDP_" variable, DDP__K_##kind, flags, offsetof(ddp_config, member), \
            sizeof((ddp_config *)0)->member, least, most, unit, preset, help, names              \
    }
#define DDP__OF_T(member, name, variable, flags, preset, help) \
    DDP__KNOB(member, name, variable, TEXT, flags, 0, 0, "", preset, NULL, help)
#define DDP__OF_B(member, name, variable, flags, help) \
    DDP__KNOB(member, name, variable, FLAG, flags, 0, 1, "", "0", NULL, help)
#define DDP__OF_C(member, name, variable, flags, names, help) \
    DDP__KNOB(member, name, variable, CHOICE, flags, 0, 0, "", NULL, names, help)
#define DDP__OF_N(member, name, variable, flags, least, most, unit, preset, help) \
    DDP__KNOB(member, name, variable, WHOLE, flags, least, most, unit, preset, NULL, help)
#define DDP__OF_R(member, name, variable, flags, least, most, unit, preset, help) \
    DDP__KNOB(member, name, variable, REAL, flags, least, most, unit, preset, NULL, help)

/* In the order of ddp_config, chapter by chapter. ddp_config_describe and docs/reference/settings.md use this
 * order. */
static const ddp__knob ddp__knobs[] = {
    DDP__KNOB(strategy, "strategy", "STRATEGY", STRATEGY, DDP__ALL, 0, 0, "", NULL, NULL,
              "algorithm that decides what is sent and when (docs/howto/choose.md)"),
    DDP__OF_N(period, "period", "PERIOD", DDP__MATCH | DDP__FILL, 1, 1000000, "steps", "5",
              "H, the steps in which each layer is averaged once"),
    DDP__OF_C(transport, "transport", "TRANSPORT", DDP__ALL | DDP__FILL, ddp__transports,
              "transport between ranks; threads only with ddp_launch, sockets only with ddp_config.sockets"),
    DDP__OF_N(rank, "rank", "RANK", DDP__LAUNCHED, 0, 65534, "", "0",
              "rank of this worker; the variable counts only where world is 0"),
    DDP__OF_N(world, "world", "WORLD_SIZE", DDP__LAUNCHED | DDP__ALL | DDP__FILL, 1, 65535, "", "1",
              "number of ranks; at most 4096 in a real run, more only in a simulation"),
    DDP__OF_T(addr, "addr", "ADDR", DDP__LAUNCHED | DDP__ALL, "127.0.0.1:29500",
              "address of rank 0: HOST:PORT, [V6]:PORT, or file://PATH, a file to which rank 0 writes it; "
              "the variable counts only where world is 0"),
    DDP__OF_T(run_id, "run_id", "RUN_ID", DDP__LAUNCHED | DDP__ALL, "",
              "name of the run: ranks with another name are rejected"),
    DDP__OF_T(net, "net", "NET", 0, "unshaped",
              "emulated link of this worker: 100mbit,20ms or 100mbit,20ms,JITTER, or a topology FILE.json"),
    DDP__KNOB(wire, "wire", "WIRE", WIRE, DDP__MATCH, 0, 0, "", NULL, ddp__wires,
              "number format of averages (docs/howto/wire.md, docs/explanation/diloco.md)"),
    DDP__OF_R(topk_fraction, "topk_fraction", "TOPK_FRACTION", DDP__JOINED, DDP__ABOVE_0, 1, "", "1/64",
              "share of the values that is sent, with wire topk"),
    DDP__OF_N(
        site, "site", "SITE", 0, 0, 1000000, "", "no sites",
        "site of this worker: averages go inside sites, then between them; all workers have one, or none"),
    DDP__OF_N(threads, "threads", "THREADS", DDP__FILL, 1, 1024, "", "1", "operator threads of this worker"),
    DDP__OF_C(kernels, "kernels", "KERNELS", 0, ddp__kernel_sets,
              "instruction set of the CPU operators; a set gives equal bits on all x86-64 processors"),
    DDP__OF_N(seed, "seed", "SEED", DDP__JOINED, 0, 0, "", "0", "seed of initialisation and dropout"),
    DDP__OF_N(micro_batches, "micro_batches", "MICRO_BATCHES", DDP__ALL | DDP__FILL, 1, 0, "", "1",
              "backward passes per step, whose mean gradient is used"),
    DDP__OF_R(clip_norm, "clip_norm", "CLIP_NORM", DDP__JOINED, 0, 0, "", "none",
              "limit of the global gradient norm"),
    DDP__OF_C(algorithm, "algorithm", "ALGORITHM", DDP__JOINED, ddp__algorithms,
              "algorithm of all-reduces; auto chooses by size and link"),
    DDP__OF_B(deterministic, "deterministic", "DETERMINISTIC", DDP__JOINED,
              "bit-identical results on every transport, and plans without clocks"),
    DDP__OF_N(profile_steps, "profile_steps", "PROFILE_STEPS", DDP__MATCH | DDP__FILL | DDP__ZERO, 1, 0,
              "steps", "6", "steps that are measured before planning; 0 plans at once"),
    DDP__OF_T(profile_path, "profile_path", "PROFILE", DDP__ALL, "none",
              "CSV profile that replaces measuring"),
    DDP__OF_T(plan_path, "plan_path", "PLAN", DDP__ALL, "none",
              "JSON plan of `plan partial` that replaces planning"),
    {"no_env", "no_env", NULL, DDP__K_FLAG, 0, offsetof(ddp_config, no_env), sizeof(int), 0, 1, "", "0",
     "ignore the environment", NULL},

    DDP__OF_B(average.first, "average_first", "AVERAGE_FIRST", DDP__JOINED,
              "average parameters as they are before the update of the step"),
    DDP__OF_B(average.state, "average_state", "AVERAGE_STATE", DDP__JOINED,
              "average the optimizer state with the parameters"),
    DDP__KNOB(average.state_period, "state_period", "STATE_PERIOD", PAIR, DDP__ALL, 1, 1000000,
              "1 to 1000000 periods each, or 0,0", "1,1 with average_state", NULL,
              "periods between averages of the first state array (momentum) and of the others, as in 3,6"),
    DDP__OF_N(average.split_params, "split_params", "SPLIT_PARAMS", DDP__JOINED, 0, 0, "parameters",
              "whole layers", "dreamddp, enp: larger layers are averaged in equal parts"),

    DDP__OF_B(plan.paper, "paper", "PAPER", DDP__JOINED,
              "follow the paper's own rule: contiguous sets, all complete at step end"),
    DDP__OF_C(plan.solver, "solver", "SOLVER", DDP__MATCH, ddp__solvers_set,
              "search method of the partial plan (docs/explanation/dreamddp-plan.md)"),
    DDP__OF_C(plan.cost, "cost", "COST", DDP__MATCH, ddp__costs_set,
              "cost model of the partial plan; timeline if the program calls no ddp_forward_begin"),
    DDP__OF_C(plan.fill, "fill", "FILL", DDP__MATCH, ddp__fills_set,
              "extra transfers of the partial plan in the idle time of the link"),

    DDP__OF_R(
        choice.steps, "choice_steps", "CHOICE_STEPS", DDP__MATCH, DDP__ABOVE_0, 1e12, "steps",
        "1000; the trainers: --steps",
        "auto: steps of the whole run, N; the choice compares the time to the loss of ssgd after N steps"),
    DDP__OF_R(choice.loss_budget, "loss_budget", "LOSS_BUDGET", DDP__MATCH | DDP__ZERO, DDP__ABOVE_0, 1, "",
              "0.05",
              "auto: largest predicted loss increase over ssgd, as a share; 0: bit-identical to ssgd"),
    DDP__OF_T(choice.loss_table, "loss_table", "LOSS_TABLE", DDP__ALL, "the built-in table",
              "auto: CSV of measured losses, with the columns of bench/loss_table.csv"),

    DDP__OF_N(gradient.bucket_bytes, "bucket_bytes", "BUCKET_BYTES", DDP__JOINED | DDP__FILL, 1, 0, "bytes",
              "26214400", "wfbp, ascwfbp: size of a bucket; the first has 1 MiB"),
    DDP__OF_N(gradient.partition_bytes, "partition_bytes", "PARTITION_BYTES", DDP__MATCH | DDP__FILL, 256, 0,
              "bytes", "26000000", "bytescheduler, usbyte, deft: largest part of a layer"),
    DDP__OF_R(gradient.credit, "credit", "CREDIT", DDP__MATCH | DDP__FILL, DDP__ABOVE_0, 1e6, "", "1",
              "bytescheduler: parts in flight"),

    DDP__OF_B(deft.merge_sum, "merge_sum", "MERGE_SUM", DDP__MATCH,
              "deft: use the sum of merged gradients, not their mean"),
    DDP__OF_B(deft.no_barrier, "no_barrier", "NO_BARRIER", DDP__MATCH,
              "deft: plan transfers that overlap both forward and backward passes"),
    DDP__OF_R(deft.update_frequency, "update_frequency", "UPDATE_FREQUENCY", DDP__MATCH, DDP__ABOVE_0, 1, "",
              "computed from the overlap", "deft: updates per step that the plan must reach"),
    DDP__OF_R(deft.preserve, "preserve", "PRESERVE", DDP__MATCH | DDP__FILL, DDP__ABOVE_0, 1e6, "", "0.01",
              "deft: largest deviation from 1 of the loss ratio in its convergence test"),

    DDP__KNOB(server.count, "servers", "SERVERS", SERVERS, DDP__MATCH, 0, 65535,
              "a number of ranks, or colocated", "none", NULL,
              "bsp, asp, ssp, r2sp, osp: number of server ranks, the highest ranks"),
    DDP__OF_N(server.staleness, "staleness", "STALENESS", DDP__MATCH, 0, 0, "steps", "0",
              "ssp: steps a worker may be ahead of the slowest"),
    DDP__OF_R(server.push_scale, "push_scale", "PUSH_SCALE", DDP__MATCH, DDP__ABOVE_0, 1e6, "", "1 / workers",
              "asp, ssp, r2sp: factor on the learning rate of each push"),

    DDP__KNOB(osp.defer, "defer", "DEFER", DEFER, DDP__MATCH | DDP__ZERO, DDP__ABOVE_0, 1,
              "auto, or a share of the model from 0 to 1", "auto", NULL,
              "osp: share of the model's bytes that may be late; auto computes it from the loss that "
              "ddp_report gets"),
    DDP__OF_C(osp.lgp, "lgp", "LGP", DDP__MATCH, ddp__lgps,
              "osp: update of a late layer until its correction"),
    DDP__OF_C(osp.correct, "correct", "CORRECT", DDP__MATCH, ddp__corrects,
              "osp: time of the correction of a late layer"),
    DDP__OF_C(osp.split, "split", "SPLIT", DDP__MATCH, ddp__splits, "osp: rule that chooses the late layers"),

    DDP__OF_R(outer.lr, "outer_lr", "OUTER_LR", DDP__JOINED, DDP__ABOVE_0, 1e6, "",
              "0.7; sparseloco, eager: 1", "diloco, sparseloco: learning rate of the outer optimizer"),
    DDP__OF_R(outer.momentum, "outer_momentum", "OUTER_MOMENTUM", DDP__JOINED | DDP__ZERO, DDP__ABOVE_0,
              DDP__BELOW_1, "", "0.5 up to H = 50, stream up to H = 5, else 0.9; sparseloco, eager: 0",
              "diloco, sparseloco: Nesterov momentum of the outer optimizer"),
    DDP__OF_C(outer.overlap, "overlap", "OVERLAP", DDP__JOINED | DDP__FILL, ddp__overlaps,
              "diloco, sparseloco: when an average must be complete"),
    DDP__OF_R(outer.mixture, "mixture", "MIXTURE", DDP__JOINED | DDP__ZERO, DDP__ABOVE_0, DDP__BELOW_1, "",
              "0.5", "stream: share of its own parameters that a worker retains when an average arrives"),
    DDP__OF_N(outer.fragments, "fragments", "FRAGMENTS", DDP__JOINED, 0, 0, "",
              "a step for each layer by the planner",
              "stream: number of fragments; fragment i has the layers i, i + n, i + 2 n, .."),
    DDP__OF_N(outer.landing, "landing", "LANDING", DDP__JOINED, 0, 0, "steps", "0",
              "stream: steps from the send of a fragment until it is applied, below the period"),
    DDP__OF_R(outer.compensation, "compensation", "COMPENSATION", DDP__JOINED, 0, 1e6, "", "0",
              "eager: lambda of the correction of the delay"),

    DDP__OF_R(timeout.connect_s, "connect_timeout_s", "CONNECT_TIMEOUT", DDP__FILL, DDP__ABOVE_0, 0,
              "seconds", "30", "time-out for rank 0 to answer"),
    DDP__OF_R(timeout.join_s, "join_timeout_s", "JOIN_TIMEOUT", 0, DDP__ABOVE_0, 0, "seconds",
              "connect_timeout_s", "time-out for all ranks to connect"),
    DDP__OF_R(timeout.peer_s, "peer_timeout_s", "PEER_TIMEOUT", 0, DDP__ABOVE_0, 0, "seconds",
              "30; min_world: 10", "silence until a peer is lost"),
    DDP__OF_R(timeout.op_s, "op_timeout_s", "OP_TIMEOUT", DDP__FILL, DDP__ABOVE_0, 0, "seconds", "1800",
              "time-out of an operation, from its start on the first rank"),

    DDP__OF_N(elastic.min_world, "min_world", "MIN_WORLD", DDP__MATCH, 0, 0, "", "a lost worker is an error",
              "continue without lost workers while at least this number is alive "
              "(docs/explanation/elastic-protocol.md)"),
    DDP__OF_N(elastic.max_world, "max_world", "MAX_WORLD", DDP__MATCH, 0, 64, "", "world",
              "min_world: number of ids, joining workers included"),
    DDP__OF_B(elastic.join, "join", "JOIN", 0, "join a running run, whose workers addr names"),
    DDP__OF_N(elastic.bytes, "elastic_bytes", "ELASTIC_BYTES", 0, 1, 0, "bytes", "twice the longest message",
              "min_world: memory that retains unfinished operations for a restart"),

    DDP__OF_B(security.insecure, "insecure", "INSECURE", 0,
              "allow addresses beyond this machine without encryption (docs/howto/tls.md)"),
    DDP__OF_T(security.psk, "tls_psk", "TLS_PSK", DDP__KEYS, "none",
              "file with the pre-shared key of all workers: TLS 1.3 on TCP"),
    DDP__OF_T(security.ca, "tls_ca", "TLS_CA", DDP__KEYS, "none",
              "PEM file of the authority that signed all certificates"),
    DDP__OF_T(security.cert, "tls_cert", "TLS_CERT", DDP__KEYS, "none",
              "PEM file of this worker's certificate, with the name rank-R"),
    DDP__OF_T(security.key, "tls_key", "TLS_KEY", DDP__KEYS, "none",
              "PEM file of the private key of tls_cert"),
    DDP__OF_B(security.no_checksum, "no_checksum", "NO_CHECKSUM", DDP__MATCH,
              "omit the CRC-32C of data on unencrypted TCP"),

    DDP__OF_T(network.socket_ifname, "socket_ifname", "SOCKET_IFNAME", 0, "the interface that reaches rank 0",
              "interfaces to listen on: eth, =eth0, ^lo,docker"),
    DDP__OF_T(network.net_script, "net_script", "NET_SCRIPT", 0, "none",
              "file that schedules stalls, dropped connections, kills and rate changes of net "
              "(docs/howto/emulate-network.md)"),
    DDP__OF_T(network.net2, "net2", "NET2", 0, "none",
              "emulated second link between the same workers, as net"),
    DDP__OF_T(network.addr2, "addr2", "ADDR2", DDP__ALL, "a free port of addr",
              "HOST:PORT of rank 0 on the second link"),

    DDP__OF_N(device.nccl, "nccl", "NCCL", DDP__MATCH, 0, 2, "", "0",
              "route of averages with a backend: 0 transport; 1 NCCL, and transport between sites; 2 both"),

    DDP__OF_T(debug.dump_path, "dump_path", "DUMP", 0, "none",
              "file for the last operations before a failure; %r is the rank"),
    DDP__OF_N(debug.trace_spans, "trace_spans", "TRACE_SPANS", 0, 0, 0, "", "enough for statistics",
              "spans that ddp_trace_copy can return"),
    DDP__OF_B(debug.check_writes, "check_writes", "CHECK_WRITES", 0,
              "report writes to a layer in flight; always on if compiled with -DDREAMDDP_DEBUG"),
    DDP__OF_B(debug.no_finite_check, "no_finite_check", "NO_FINITE_CHECK", 0,
              "do not report gradients that are NaN or infinite"),
    DDP__OF_B(debug.overwrite, "overwrite", "OVERWRITE", 0,
              "replace checkpoints of another run in the same folder")};
#undef DDP__KNOB
#undef DDP__OF_T
#undef DDP__OF_B
#undef DDP__OF_C
#undef DDP__OF_N
#undef DDP__OF_R
#define DDP__KNOBS        ((int)(sizeof ddp__knobs / sizeof *ddp__knobs))
#define DDP__EACH_KNOB(r) for (const ddp__knob *r = ddp__knobs; r < ddp__knobs + DDP__KNOBS; r++)

/* Variables without a field. */
static const char *const ddp__others[][2] = {
    {"DREAMDDP_CUDA_HOPPER",
     "auto: a GPU uses the specialised kernels that pass a self-check at start; 0: the same, but no "
     "kernels for Hopper GPUs only; 1: all kernels, without the self-check; portable: no specialised "
     "kernel and no self-check (default: auto)"},
    {"DREAMDDP_CUDA_WAITS",
     "1: a GPU's stream waits for messages; 0: the calling thread does; auto: the stream if a test at "
     "start succeeds (default: auto)"},
    {"DREAMDDP_LOG", "level of the log on stderr, without a logger of the program: off, error, warn, info or "
                     "debug (default: no lines)"},
    {"DREAMDDP_LOCAL_RANK", "rank of this worker on its machine (default: the rank)"},
    {"DREAMDDP_RESUME", "1: broken connections reconnect (docs/howto/wan-elastic.md); 0: a broken connection "
                        "is a lost peer (default: 1)"},
    {"DREAMDDP_TCP_CONGESTION",
     "TCP congestion control, such as bbr (default: the setting of the system, but reno "
     "instead of bbr between ranks less than 5 ms apart)"}};
#define DDP__OTHERS ((int)(sizeof ddp__others / sizeof *ddp__others))

/* ---- names to values ---- */

ddp_transport ddp_transport_named(const char *name)
{
    ddp_transport t = DDP_TRANSPORT_DEFAULT;

    (void)ddp__chosen(ddp__transports, name, &t);
    return t;
}

int ddp_algorithm_named(const char *name, ddp_algorithm *out)
{
    return ddp__chosen(ddp__algorithms, name, out);
}
int ddp_wire_named(const char *name, ddp_wire *out) { return ddp__chosen(ddp__wires, name, out); }

int ddp__overlap_named(const char *name, ddp_overlap *out) { return ddp__chosen(ddp__overlaps, name, out); }
const char *ddp__overlap_name(ddp_overlap overlap) { return ddp__name_of(ddp__overlaps, (int)overlap); }

const char *ddp_wire_name(ddp_wire wire)
{
    return ddp__wires[wire > DDP_WIRE_DEFAULT && wire <= DDP_WIRE_TOPK ? wire : DDP_WIRE_F32];
}

/* ---- all rows ---- */

ddp_status ddp__settings_check(const ddp__strategies *list, const ddp_config *c, ddp_error *err)
{
    char text[64];

    DDP__EACH_KNOB(r)
    {
        const double x = ddp__knob_number(r, c);
        const int below = r->flags & DDP__ZERO || r->kind == DDP__K_SERVERS; /* -1 is a value of these fields
                                                                              * */
        if (x == 0 || r->kind == DDP__K_FLAG || r->kind == DDP__K_STRATEGY || (x == -1 && below) ||
            (r->names ? strcmp(ddp__name_of(r->names, (int)x), "unknown") != 0 : ddp__knob_fits(r, x)))
            continue;
        ddp__format(text, sizeof text, "%.15g", x);
        return ddp__knob_refuse(list, r, r->name, ' ', text, r->names ? "unknown" : "out of range", err);
    }
    return DDP_OK;
}

void ddp__settings_default(const ddp__strategies *list, ddp_config *c)
{
    DDP__EACH_KNOB(r)
    if (r->flags & DDP__FILL && ddp__knob_unset(r, c))
        (void)ddp__knob_set(list, r, c, r->name, ddp__knob_preset(list, r), NULL);
}

int ddp__settings_own(ddp_config *c)
{
    int owned = 1;

    DDP__EACH_KNOB(r)
    {
        const char **text = (const char **)ddp__knob_at(r, c);
        if (r->kind != DDP__K_TEXT || !*text) continue;
        *text = ddp__strdup(*text);
        owned &= *text != NULL;
    }
    return owned;
}

void ddp__settings_disown(ddp_config *c)
{
    DDP__EACH_KNOB(r)
    {
        const char *text = r->kind == DDP__K_TEXT ? *(const char **)ddp__knob_at(r, c) : NULL;
        if (text) DDP_FREE((void *)(uintptr_t)text);
    }
}

/* The value for comparison: a choice's default and its name are equal. */
static double ddp__knob_compared(const ddp__knob *r, const ddp_config *c)
{
    const double x = ddp__knob_number(r, c);
    int named = 0;

    return x == 0 && r->names && ddp__chosen(r->names, r->names[0], &named) ? (double)named : x;
}

/* 0 without a path; else a number computed from the bytes of the file. 1 if the file cannot be read, which is
 * reported where it is used. */
static double ddp__path_number(const char *path)
{
    ddp__text t = DDP__ZEROS;
    double number = 1;

    if (!path) return 0;
    if (ddp__file_read(path, &t, NULL) == DDP_OK)
        number = 2 + (double)(uint32_t)ddp__hash(DDP__HASH_START, t.data, t.size);
    ddp__text_free(&t);
    return number;
}

#define DDP__MORE_SETTINGS 6
DDP_STATIC_ASSERT(DDP__KNOBS + DDP__MORE_SETTINGS + DDP__SESSION_SETTINGS <= (int)DDP__SETTINGS,
                  "the ranks compare every setting");

int ddp__settings_compared(const ddp_config *c, int joined, ddp__setting *out)
{
    const unsigned which = joined ? DDP__JOINED : DDP__MATCH;
    /* The first two are files on this machine, for which each rank has its own path. A joining worker
     * receives the plan of the run. They come first because they change other values. */
    const ddp__setting more[DDP__MORE_SETTINGS] = {
        {"profile_path (0: none, else a hash of the file)", ddp__path_number(c->profile_path), NULL},
        {"plan_path (0: none, else a hash of the file)", ddp__path_number(c->plan_path), NULL},
        {"first state_period", (double)c->average.state_period[0], NULL},
        {"second state_period", (double)c->average.state_period[1], NULL},
        {"a site (0: no, 1: yes)", (double)(c->site > 0), NULL},
        {"seed (last 32 bits)", (double)(c->seed & 0xffffffffu), NULL}}; /* of 64 bits. A double holds 53. */
    int n = 0;

    for (int i = 0; i < 2 && !joined; i++) out[n++] = more[i];
    DDP__EACH_KNOB(r)
    if ((r->flags & which) == which) {
        out[n].name = r->name;
        out[n].names = r->names;
        out[n++].value = ddp__knob_compared(r, c);
    }
    for (int i = 2; i < DDP__MORE_SETTINGS; i++) out[n++] = more[i];
    return n;
}

void ddp__setting_text(const ddp__setting *s, double value, int digits, char *out, size_t room)
{
    if (s->names)
        snprintf(out, room, "%s", ddp__name_of(s->names, ddp__within(value, 0, INT_MAX) ? (int)value : -1));
    else
        ddp__format(out, room, "%.*g", digits, value);
}

/* ---- by name ---- */

/* Returns the name of a setting or variable (without DREAMDDP_) that is closest in spelling, or NULL if more
 * than 3 letters, or half of them, differ. */
static const char *ddp__nearest(int variables, const char *name, size_t n)
{
    const char *nearest = NULL;
    int least = n / 2 < 4 ? (int)(n / 2) : 4;

    for (int i = 0; i < DDP__KNOBS + (variables ? DDP__OTHERS : 0); i++) {
        const char *known = i >= DDP__KNOBS ? ddp__others[i - DDP__KNOBS][0]
                            : variables     ? ddp__knobs[i].variable
                                            : ddp__knobs[i].name;
        const int d = known ? ddp__word_distance(name, n, known + (variables ? 9 : 0)) : least;
        if (d < least) {
            least = d;
            nearest = known;
        }
    }
    return nearest;
}

ddp_status ddp__setting_set(const ddp__strategies *list, ddp_config *c, const char *field, const char *value,
                            ddp_error *err)
{
    const ddp__knob *r = ddp__knobs;
    const char *nearest = NULL;

    if (!c || !field || !value)
        return ddp__fail(err, DDP_ARG, "ddp_config_set: the configuration, field and value must not be NULL");
    while (r < ddp__knobs + DDP__KNOBS && strcmp(r->name, field)) r++;
    if (r < ddp__knobs + DDP__KNOBS) return ddp__knob_set(list, r, c, field, value, err);
    DDP__EACH_KNOB(other)
    if (!strcmp(other->member, field)) nearest = other->name; /* the name of the member in the C struct */
    if (!nearest) nearest = ddp__nearest(0, field, strlen(field));
    if (nearest)
        return ddp__fail(err, DDP_ARG, "unknown setting %.60s=%.60s: did you mean %s?", field, value,
                         nearest);
    return ddp__fail(err, DDP_ARG,
                     "unknown setting %.60s=%.60s: docs/reference/settings.md lists all settings", field,
                     value);
}

int ddp__setting_describe(const ddp__strategies *list, const ddp_config *c, int i, ddp_setting *out)
{
    const ddp__knob *r;

    memset(out, 0, sizeof *out);
    if (i < 0 || i >= DDP__KNOBS + DDP__OTHERS) return 0;
    if (i >= DDP__KNOBS) {
        out->variable = ddp__others[i - DDP__KNOBS][0];
        out->help = ddp__others[i - DDP__KNOBS][1];
        return 1;
    }
    r = &ddp__knobs[i];
    out->field = r->name;
    out->member = r->member;
    ddp__knob_chapter(r, out->chapter, sizeof out->chapter);
    out->variable = r->variable;
    ddp__knob_flag(r, out->flag, sizeof out->flag);
    out->preset = ddp__knob_preset(list, r);
    out->help = r->help;
    out->same = r->flags & DDP__ALL;
    ddp__knob_values(list, r, out->values, sizeof out->values);
    if (c) ddp__knob_text(list, r, c, out->value, sizeof out->value);
    return 1;
}

/* ---- from the environment ---- */

ddp_status ddp__env_check_names(ddp_error *err)
{
    for (char **e = DDP__ENVIRON; e && *e; e++) {
        const char *end = strchr(*e, '='), *nearest;
        int n;
        if (strncmp(*e, "DREAMDDP_", 9) || !end) continue;
        n = (int)(end - *e);
        nearest = ddp__nearest(1, *e + 9, (size_t)n - 9);
        if (nearest && !strncmp(nearest, *e, (size_t)n) && !nearest[n]) continue;
        if (n > 69) n = 69;
        if (nearest)
            return ddp__fail(err, DDP_ARG, "unknown environment variable %.*s: did you mean %s?", n, *e,
                             nearest);
        return ddp__fail(err, DDP_ARG,
                         "unknown environment variable %.*s: docs/reference/settings.md lists all variables; "
                         "set fields without a variable in the program",
                         n, *e);
    }
    return DDP_OK;
}

ddp_status ddp__env_settings(const ddp__strategies *list, ddp_config *c, ddp_error *err)
{
    const char *resume = ddp__env_get("DREAMDDP_RESUME");      /* read in connect.c */
    const char *hopper = ddp__env_get("DREAMDDP_CUDA_HOPPER"); /* read in cuda/self_check.cuh */
    const char *waits = ddp__env_get("DREAMDDP_CUDA_WAITS");   /* read in cuda/self.cuh */
    const int keys = c->security.psk || c->security.ca || c->security.cert || c->security.key;

    DDP__EACH_KNOB(r)
    {
        const char *text = r->flags & DDP__LAUNCHED ? NULL : ddp__env_get(r->variable);
        if (!text || !ddp__knob_unset(r, c) || (keys && r->flags & DDP__KEYS) ||
            (r->kind == DDP__K_STRATEGY && c->own_strategy))
            continue;
        DDP__TRY(ddp__knob_set(list, r, c, r->variable, text, err));
    }
    if (resume && strcmp(resume, "0") && strcmp(resume, "1"))
        return ddp__fail(err, DDP_ARG, "DREAMDDP_RESUME=%.60s is invalid: choose 1 or 0 (default: 1)",
                         resume);
    if (hopper && strcmp(hopper, "0") && strcmp(hopper, "1") && strcmp(hopper, "auto") &&
        strcmp(hopper, "portable"))
        return ddp__fail(
            err, DDP_ARG,
            "DREAMDDP_CUDA_HOPPER=%.60s is invalid: choose auto, 0, 1 or portable (default: auto)", hopper);
    if (waits && strcmp(waits, "0") && strcmp(waits, "1") && strcmp(waits, "auto"))
        return ddp__fail(err, DDP_ARG,
                         "DREAMDDP_CUDA_WAITS=%.60s is invalid: choose auto, 1 or 0 (default: auto)", waits);
    return DDP_OK;
}
#undef DDP__EACH_KNOB
