/* Settings by name: one row for each field of ddp_config that a text can say. What the environment fills,
 * what ddp_config_set takes, ranges, defaults, what ranks compare and docs/settings.md are of these rows. */
#include "config/settings.h"
#include "plan/names.h"
#include "plan/partial/partial_names.h"

#ifdef __APPLE__
#include <crt_externs.h>
#define DDP__ENVIRON (*_NSGetEnviron())
#else
#define DDP__ENVIRON environ
#endif

typedef enum ddp__kind { /* no number, whole numbers, real ones */
                         DDP__K_TEXT,
                         DDP__K_PAIR,
                         DDP__K_FLAG,
                         DDP__K_WHOLE,
                         DDP__K_CHOICE,
                         DDP__K_WIRE,
                         DDP__K_STRATEGY,
                         DDP__K_SERVERS,
                         DDP__K_REAL,
                         DDP__K_DEFER
} ddp__kind;

enum {
    DDP__ALL = 1,       /* the same on all ranks, or they do not start */
    DDP__MATCH = 3,     /* and compared as a number with those that ddp__settings lists */
    DDP__JOINED = 7,    /* a newcomer's too */
    DDP__FILL = 8,      /* 0 becomes the default before the strategy settles */
    DDP__ZERO = 16,     /* 0 in words is a value, which the field has as -1 */
    DDP__LAUNCHED = 32, /* ddp__env_read reads the variable, with the launchers' */
    DDP__KEYS = 64      /* variables of keys count where the program has set none of them */
};

typedef struct ddp__knob {
    const char *field, *variable;
    ddp__kind kind;
    unsigned flags;
    size_t at, size;
    double least, most;               /* beside the default; most 0: no limit */
    const char *unit, *preset, *help; /* the unit of servers, defer and pairs: what values they have */
    const char *const *names;         /* of a choice, by value; that of 0 is the default's */
} ddp__knob;

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

#define DDP__ABOVE_0 DBL_MIN
#define DDP__BELOW_1 (1 - DBL_EPSILON)
#define DDP__KNOB(field, variable, kind, flags, least, most, unit, preset, names, help)  \
    {                                                                                    \
#field, "DREAMDDP_" variable, DDP__K_##kind, flags, offsetof(ddp_config, field), \
            sizeof((ddp_config *)0)->field, least, most, unit, preset, help, names       \
    }
#define DDP__OF_T(field, variable, flags, preset, help) \
    DDP__KNOB(field, variable, TEXT, flags, 0, 0, "", preset, NULL, help)
#define DDP__OF_B(field, variable, flags, help) \
    DDP__KNOB(field, variable, FLAG, flags, 0, 1, "", "0", NULL, help)
#define DDP__OF_C(field, variable, flags, names, help) \
    DDP__KNOB(field, variable, CHOICE, flags, 0, 0, "", NULL, names, help)
#define DDP__OF_N(field, variable, flags, least, most, unit, preset, help) \
    DDP__KNOB(field, variable, WHOLE, flags, least, most, unit, preset, NULL, help)
#define DDP__OF_R(field, variable, flags, least, most, unit, preset, help) \
    DDP__KNOB(field, variable, REAL, flags, least, most, unit, preset, NULL, help)
static const ddp__knob ddp__knobs[] = {
    DDP__KNOB(strategy, "STRATEGY", STRATEGY, DDP__ALL, 0, 0, "", NULL, NULL,
              "what is averaged, and when (docs/choose.md)"),
    DDP__OF_N(period, "PERIOD", DDP__MATCH | DDP__FILL, 1, 1000000, "steps", "5",
              "H, in which each layer is averaged once"),
    DDP__OF_C(transport, "TRANSPORT", DDP__ALL | DDP__FILL, ddp__transports,
              "how ranks reach each other; threads only with ddp_launch, sockets with ddp_config.sockets"),
    DDP__OF_N(rank, "RANK", DDP__LAUNCHED, 0, 65534, "", "0",
              "which of the workers this is; read where world is 0"),
    DDP__OF_N(world, "WORLD_SIZE", DDP__LAUNCHED | DDP__ALL | DDP__FILL, 1, 65535, "", "1",
              "number of workers; at most 4096 in a real run, more only in a simulation"),
    DDP__OF_T(addr, "ADDR", DDP__LAUNCHED | DDP__ALL, "127.0.0.1:29500",
              "rank 0: HOST:PORT, [V6]:PORT, or file://PATH in which it tells; read where world is 0"),
    DDP__OF_T(run_id, "RUN_ID", DDP__LAUNCHED | DDP__ALL, "",
              "what the run is called: workers of another are refused"),
    DDP__OF_T(socket_ifname, "SOCKET_IFNAME", 0, "that from which rank 0 is reached",
              "interfaces to listen on: eth, =eth0, ^lo,docker"),
    DDP__OF_T(net, "NET", 0, "unshaped",
              "shape of this worker's links, 100mbit,20ms or 100mbit,20ms,JITTER, or a topology FILE.json"),
    DDP__OF_T(net_script, "NET_SCRIPT", 0, "none", "file of stalls, drops, kills and rates (docs/links.md)"),
    DDP__OF_T(net2, "NET2", 0, "none", "as net, of a second link between the same workers"),
    DDP__OF_T(addr2, "ADDR2", DDP__ALL, "a free port of addr", "HOST:PORT of rank 0 on the second link"),
    DDP__KNOB(wire, "WIRE", WIRE, DDP__MATCH, 0, 0, "", NULL, ddp__wires,
              "how averages travel (docs/links.md, docs/outer.md)"),
    DDP__OF_R(topk_fraction, "TOPK_FRACTION", DDP__JOINED, DDP__ABOVE_0, 1, "", "1/64",
              "topk: the share of values that travels"),
    DDP__OF_N(
        site, "SITE", 0, 0, 1000000, "", "none",
        "this worker's site: averages go inside sites, then between them; every worker has one, or none"),
    DDP__OF_N(threads, "THREADS", DDP__FILL, 1, 1024, "", "1", "operator threads of this worker"),
    DDP__OF_C(kernels, "KERNELS", 0, ddp__kernel_sets,
              "instruction set of the CPU operators; one set gives equal bits on all x86-64 processors"),
    DDP__OF_N(seed, "SEED", DDP__JOINED, 0, 0, "", "0", "of initialisation and dropout"),
    DDP__OF_N(micro_batches, "MICRO_BATCHES", DDP__ALL | DDP__FILL, 1, 0, "", "1",
              "backward passes of a step; the mean of their gradients is used"),
    DDP__OF_R(clip_norm, "CLIP_NORM", DDP__JOINED, 0, 0, "", "none", "limit of the gradients' global norm"),
    DDP__OF_B(average_first, "AVERAGE_FIRST", DDP__JOINED,
              "average parameters as they stand before a step's update"),
    DDP__OF_B(average_state, "AVERAGE_STATE", DDP__JOINED,
              "average the optimizer's state with the parameters"),
    DDP__KNOB(state_period, "STATE_PERIOD", PAIR, DDP__ALL, 1, 1000000, "1 to 1000000 periods each, or 0,0",
              "1,1 with average_state", NULL,
              "how often the first array of state (momentum) and the others are averaged, as in 3,6"),
    DDP__OF_N(split_params, "SPLIT_PARAMS", DDP__JOINED, 0, 0, "parameters", "whole layers",
              "dreamddp, enp: larger layers are averaged in equal parts"),
    DDP__OF_C(algorithm, "ALGORITHM", DDP__JOINED, ddp__algorithms,
              "of all-reduces; auto is by size and link"),
    DDP__OF_B(deterministic, "DETERMINISTIC", DDP__JOINED,
              "equal bits on every transport, a plan without clocks"),
    DDP__OF_B(paper, "PAPER", DDP__JOINED, "the paper's own rule: contiguous sets, all complete at step end"),
    DDP__OF_C(solver, "SOLVER", DDP__MATCH, ddp__solvers_set, "of the partial plan (docs/plan.md)"),
    DDP__OF_C(cost, "COST", DDP__MATCH, ddp__costs_set,
              "of the partial plan; timeline without forward hooks"),
    DDP__OF_C(fill, "FILL", DDP__MATCH, ddp__fills_set, "of the partial plan's bubbles"),
    DDP__OF_N(profile_steps, "PROFILE_STEPS", DDP__MATCH | DDP__FILL | DDP__ZERO, 1, 0, "steps", "6",
              "measured before the plan is made; 0 plans at once"),
    DDP__OF_T(profile_path, "PROFILE", DDP__ALL, "none", "CSV that replaces measuring"),
    DDP__OF_T(plan_path, "PLAN", DDP__ALL, "none", "JSON of `plan partial` that replaces planning"),
    DDP__OF_N(bucket_bytes, "BUCKET_BYTES", DDP__JOINED | DDP__FILL, 1, 0, "bytes", "26214400",
              "wfbp, ascwfbp: a bucket; the first holds 1 MiB"),
    DDP__OF_N(partition_bytes, "PARTITION_BYTES", DDP__MATCH | DDP__FILL, 256, 0, "bytes", "26000000",
              "bytescheduler, usbyte, deft: most of a layer in one part"),
    DDP__OF_R(credit, "CREDIT", DDP__MATCH | DDP__FILL, DDP__ABOVE_0, 1e6, "", "1",
              "bytescheduler: parts on their way at once"),
    DDP__OF_B(merge_sum, "MERGE_SUM", DDP__MATCH,
              "deft: a merged gradient is the sum of its steps', not their mean"),
    DDP__OF_B(no_barrier, "NO_BARRIER", DDP__MATCH, "deft: plan sends that straddle forward and backward"),
    DDP__OF_R(update_frequency, "UPDATE_FREQUENCY", DDP__MATCH, DDP__ABOVE_0, 1, "", "as many as hide",
              "deft: updates for each step that the plan must reach"),
    DDP__OF_R(preserve, "PRESERVE", DDP__MATCH | DDP__FILL, DDP__ABOVE_0, 1e6, "", "0.01",
              "deft: how far from 1 the Preserver's ratio of losses may be"),
    DDP__KNOB(servers, "SERVERS", SERVERS, DDP__MATCH, 0, 65535, "a number of ranks that serve, or colocated",
              "none", NULL, "bsp, asp, ssp, r2sp, osp: the last ranks"),
    DDP__OF_N(staleness, "STALENESS", DDP__MATCH, 0, 0, "steps", "0",
              "ssp: that a worker may be ahead of the slowest"),
    DDP__OF_R(push_scale, "PUSH_SCALE", DDP__MATCH, DDP__ABOVE_0, 0, "", "1 / workers",
              "asp, ssp, r2sp: a push's update has this times the learning rate"),
    DDP__KNOB(defer, "DEFER", DEFER, DDP__MATCH | DDP__ZERO, DDP__ABOVE_0, 1,
              "auto, or a share of the model from 0 to 1", "auto", NULL,
              "osp: of the model's bytes those that may be late; auto is by the loss"),
    DDP__OF_C(lgp, "LGP", DDP__MATCH, ddp__lgps, "osp: what updates a late layer in the meantime"),
    DDP__OF_C(correct, "CORRECT", DDP__MATCH, ddp__corrects, "osp: when a late layer is corrected"),
    DDP__OF_C(split, "SPLIT", DDP__MATCH, ddp__splits, "osp: which layers are late"),
    DDP__OF_R(outer_lr, "OUTER_LR", DDP__JOINED, DDP__ABOVE_0, 1e6, "", "0.7; sparseloco, eager: 1",
              "diloco, sparseloco: rate of the outer optimizer"),
    DDP__OF_R(outer_momentum, "OUTER_MOMENTUM", DDP__JOINED | DDP__ZERO, DDP__ABOVE_0, DDP__BELOW_1, "",
              "0.9; sparseloco, eager: 0", "its momentum"),
    DDP__OF_C(overlap, "OVERLAP", DDP__JOINED | DDP__FILL, ddp__overlaps,
              "diloco, sparseloco: when an average is waited for"),
    DDP__OF_R(mixture, "MIXTURE", DDP__JOINED | DDP__ZERO, DDP__ABOVE_0, DDP__BELOW_1, "", "0.5",
              "stream: share of its own that a worker keeps when layers land"),
    DDP__OF_N(fragments, "FRAGMENTS", DDP__JOINED, 0, 0, "", "the planner's steps",
              "stream: every so many-th layer travels together"),
    DDP__OF_N(landing, "LANDING", DDP__JOINED, 0, 0, "steps", "0",
              "stream with fragments: after which one lands, below the period"),
    DDP__OF_R(compensation, "COMPENSATION", DDP__JOINED, 0, 1e6, "", "0",
              "eager: lambda of what corrects a change that comes late"),
    DDP__OF_R(connect_timeout_s, "CONNECT_TIMEOUT", DDP__FILL, DDP__ABOVE_0, 0, "seconds", "30",
              "for rank 0 to answer"),
    DDP__OF_R(join_timeout_s, "JOIN_TIMEOUT", 0, DDP__ABOVE_0, 0, "seconds", "connect_timeout_s",
              "for all ranks to come"),
    DDP__OF_R(peer_timeout_s, "PEER_TIMEOUT", 0, DDP__ABOVE_0, 0, "seconds", "30; min_world: 10",
              "of silence after which a peer is lost"),
    DDP__OF_R(op_timeout_s, "OP_TIMEOUT", DDP__FILL, DDP__ABOVE_0, 0, "seconds", "1800",
              "after the first rank began it an operation fails"),
    DDP__OF_T(dump_path, "DUMP", 0, "none", "where a failure's last operations are written, %r = rank"),
    DDP__OF_B(overwrite, "OVERWRITE", 0, "checkpoints replace what another run has saved in their folder"),
    DDP__OF_N(min_world, "MIN_WORLD", DDP__MATCH, 0, 0, "", "a lost worker is an error",
              "training goes on while so many workers are left (docs/elastic.md)"),
    DDP__OF_N(max_world, "MAX_WORLD", DDP__MATCH, 0, 64, "", "world",
              "min_world: ids that the run has room for"),
    DDP__OF_B(join, "JOIN", 0, "come into a run that is going on, whose workers addr names"),
    DDP__OF_N(elastic_bytes, "ELASTIC_BYTES", 0, 1, 0, "bytes", "twice the longest message",
              "min_world: for inputs and results in flight"),
    DDP__OF_B(insecure, "INSECURE", 0, "addresses beyond this machine without encryption (docs/security.md)"),
    DDP__OF_T(tls_psk, "TLS_PSK", DDP__KEYS, "none", "file with the key of all workers: TLS 1.3 on TCP"),
    DDP__OF_T(tls_ca, "TLS_CA", DDP__KEYS, "none", "or certificates (PEM files): of who signed them all"),
    DDP__OF_T(tls_cert, "TLS_CERT", DDP__KEYS, "none", "this worker's certificate, with the name rank-R"),
    DDP__OF_T(tls_key, "TLS_KEY", DDP__KEYS, "none", "the private key of tls_cert"),
    DDP__OF_B(no_checksum, "NO_CHECKSUM", DDP__MATCH, "bytes on tcp without TLS travel without a CRC-32C"),
    DDP__OF_B(no_finite_check, "NO_FINITE_CHECK", 0, "gradients that are NaN or infinite are not reported"),
    DDP__OF_B(check_writes, "CHECK_WRITES", 0, "report writes to a layer in flight; on under DREAMDDP_DEBUG"),
    DDP__OF_N(trace_spans, "TRACE_SPANS", 0, 0, 0, "", "what statistics need", "kept for ddp_trace_copy"),
    DDP__OF_N(nccl, "NCCL", DDP__MATCH, 0, 2, "", "0",
              "with a backend, layers go: 0 by transport, 1 from device to device, 2 over both"),
    {"no_env", NULL, DDP__K_FLAG, 0, offsetof(ddp_config, no_env), sizeof(int), 0, 1, "", "0",
     "never read the environment", NULL}};
#undef DDP__KNOB
#undef DDP__OF_T
#undef DDP__OF_B
#undef DDP__OF_C
#undef DDP__OF_N
#undef DDP__OF_R
#define DDP__KNOBS        ((int)(sizeof ddp__knobs / sizeof *ddp__knobs))
#define DDP__EACH_KNOB(r) for (const ddp__knob *r = ddp__knobs; r < ddp__knobs + DDP__KNOBS; r++)

/* Variables that are no field. */
static const char *const ddp__others[][2] = {
    {"DREAMDDP_LOG",
     "off, error, warn, info or debug: where the program has no logger of its own, lines on stderr"},
    {"DREAMDDP_LOCAL_RANK", "which of the workers of this machine this is; the rank"},
    {"DREAMDDP_RESUME", "0: a connection that breaks is a lost peer (docs/elastic-join.md); 1"},
    {"DREAMDDP_TCP_CONGESTION", "TCP congestion control, such as bbr; the system's"}};
#define DDP__OTHERS ((int)(sizeof ddp__others / sizeof *ddp__others))

/* ---- names to values ---- */

/* The value of a name; that of the default is its own where it has one. */
static int ddp__chosen(const char *const *names, const char *name, void *out)
{
    int i = 1;

    while (name && names[i] && strcmp(names[i], name)) i++;
    if (!name || !names[i]) i = name && !strcmp(names[0], name) ? 0 : -1;
    if (i >= 0) memcpy(out, &i, sizeof i); /* an enum is an int */
    return i >= 0;
}

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

const char *ddp_wire_name(ddp_wire wire)
{
    return ddp__wires[wire > DDP_WIRE_DEFAULT && wire <= DDP_WIRE_TOPK ? wire : DDP_WIRE_F32];
}

/* ---- rows ---- */

static void *ddp__knob_at(const ddp__knob *r, const ddp_config *c) { return (char *)(uintptr_t)c + r->at; }

static int ddp__knob_unset(const ddp__knob *r, const ddp_config *c)
{
    static const unsigned char zero[16] = {0};

    return !memcmp(ddp__knob_at(r, c), zero, r->size);
}

static double ddp__knob_number(const ddp__knob *r, const ddp_config *c)
{
    const void *at = ddp__knob_at(r, c);
    uint64_t large;

    if (r->kind <= DDP__K_PAIR) return 0;
    if (r->kind >= DDP__K_REAL)
        return r->size == sizeof(float) ? (double)*(const float *)at : *(const double *)at;
    if (r->size == sizeof(int)) return *(const int *)at;
    memcpy(&large, at, sizeof large);
    return (double)large;
}

static void ddp__knob_put(const ddp__knob *r, ddp_config *c, double x, long n)
{
    void *at = ddp__knob_at(r, c);
    const uint64_t large = (uint64_t)n;

    if (r->kind >= DDP__K_REAL && r->size == sizeof(float))
        *(float *)at = (float)x;
    else if (r->kind >= DDP__K_REAL)
        *(double *)at = x;
    else if (r->size == sizeof(int))
        *(int *)at = (int)n;
    else
        memcpy(at, &large, sizeof large);
}

static int ddp__knob_fits(const ddp__knob *r, double x)
{
    return x >= r->least && (r->most == 0 || x <= r->most);
}

void ddp__strategy_names(const ddp__strategies *list, char *out, size_t room)
{
    size_t n = 0;

    out[0] = '\0';
    for (int i = 0; list->number(i) != DDP_STRATEGY_DEFAULT && n + 1 < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%s",
                              i == 0                                        ? ""
                              : list->number(i + 1) == DDP_STRATEGY_DEFAULT ? " or "
                                                                            : ", ",
                              list->name(list->number(i)));
}

/* "tcp, threads or mpi": the default first. */
static void ddp__choices(const char *const *names, ddp__text *out)
{
    const char *held = names[0];

    for (int i = 1; names[i]; i++) { /* one is held back, as the last follows "or" */
        if (!strcmp(names[i], names[0])) continue;
        ddp__text_addf(out, "%s%s", held == names[0] ? "" : ", ", held);
        held = names[i];
    }
    ddp__text_addf(out, " or %s", held);
}

/* What a text for the row may be. */
static void ddp__knob_values(const ddp__strategies *list, const ddp__knob *r, char *out, size_t room)
{
    const char *unit = r->unit, *from = r->flags & DDP__ZERO || r->least == 0 ? "from 0" : "above 0";
    ddp__text t = DDP__ZEROS;

    t.data = out;
    t.room = room;
    t.fixed = 1;
    out[0] = 0;
    if (r->kind == DDP__K_STRATEGY)
        ddp__strategy_names(list, out, room);
    else if (r->kind == DDP__K_FLAG)
        ddp__text_addf(&t, "1 or 0");
    else if (r->names)
        ddp__choices(r->names, &t);
    else if (r->kind == DDP__K_TEXT)
        ddp__text_addf(&t, "text");
    else if (r->kind == DDP__K_SERVERS || r->kind == DDP__K_DEFER || r->kind == DDP__K_PAIR)
        ddp__text_addf(&t, "%s", unit);
    else if (r->kind == DDP__K_WHOLE) {
        if (r->most > 0)
            ddp__text_addf(&t, "%.0f to %.0f", r->least, r->most);
        else
            ddp__text_addf(&t, "%.0f or more", r->least);
        ddp__text_addf(&t, "%s%s", *unit ? " " : "", unit);
    } else {
        ddp__text_addf(&t, "%s %s", *unit ? unit : "a number", from);
        if (r->most == DDP__BELOW_1)
            ddp__text_addf(&t, ", below 1");
        else if (r->most > 0)
            ddp__text_addf(&t, ", at most %g", r->most);
    }
    if (r->kind == DDP__K_WIRE) ddp__text_addf(&t, ":FRACTION");
}

/* What the field holds, as ddp__knob_set takes it. */
static void ddp__knob_text(const ddp__strategies *list, const ddp__knob *r, const ddp_config *c, char *out,
                           size_t room)
{
    const int *n = (const int *)ddp__knob_at(r, c);
    const double x = ddp__knob_number(r, c);

    if (ddp__knob_unset(r, c))
        snprintf(out, room, "%s", "");
    else if (r->kind == DDP__K_TEXT)
        snprintf(out, room, "%s", *(const char *const *)ddp__knob_at(r, c));
    else if (r->kind == DDP__K_STRATEGY)
        snprintf(out, room, "%s", list->name((ddp_strategy)*n));
    else if (r->names)
        snprintf(out, room, "%s", ddp__name_of(r->names, *n));
    else if (r->kind == DDP__K_PAIR)
        snprintf(out, room, "%d,%d", n[0], n[1]);
    else if (r->kind == DDP__K_SERVERS && x < 0)
        snprintf(out, room, "colocated");
    else if (r->flags & DDP__ZERO && x < 0)
        snprintf(out, room, "0");
    else if (r->kind < DDP__K_REAL)
        ddp__format(out, room, "%.0f", x);
    else
        ddp__format(out, room, r->size == sizeof(float) ? "%.7g" : "%.15g", x);
}

static const char *ddp__knob_preset(const ddp__strategies *list, const ddp__knob *r)
{
    return r->preset ? r->preset : r->names ? r->names[0] : list->name(list->number(0));
}

/* "period -3: 1 to 1000000 steps; H, in which each layer is averaged once (5)" */
static ddp_status ddp__knob_refuse(const ddp__strategies *list, const ddp__knob *r, const char *said,
                                   char between, const char *text, ddp_error *err)
{
    const char *whole = "";
    char values[400];
    long n;

    if (r->kind == DDP__K_WHOLE && !ddp__parse_long(text, &n)) whole = "a whole number, ";
    if (r->kind == DDP__K_FLAG)
        return ddp__fail(err, DDP_ARG, "%s%c%.60s is neither 1 nor 0", said, between, text);
    ddp__knob_values(list, r, values, sizeof values);
    if (r->names || r->kind == DDP__K_STRATEGY)
        return ddp__fail(err, DDP_ARG, "%s%c%.60s is unknown: choose %s", said, between, text, values);
    return ddp__fail(err, DDP_ARG, "%s%c%.60s: %s%s; %s (default: %s)", said, between, text, whole, values,
                     r->help, ddp__knob_preset(list, r));
}

/* From text; that of a field of text is borrowed. "" is the default. */
static ddp_status ddp__knob_set(const ddp__strategies *list, const ddp__knob *r, ddp_config *c,
                                const char *said, const char *text, ddp_error *err)
{
    void *at = ddp__knob_at(r, c);
    double x = 0;
    long n = 0, second;
    char *comma;
    int ok = 1;

    if (r->kind == DDP__K_DEFER && !strcmp(text, "auto")) text = "";
    switch (*text ? r->kind : DDP__K_TEXT) {
    case DDP__K_TEXT:
        memset(at, 0, r->size);
        if (*text) memcpy(at, &text, sizeof text);
        break;
    case DDP__K_SERVERS:
    case DDP__K_FLAG:
    case DDP__K_WHOLE:
    case DDP__K_REAL:
    case DDP__K_DEFER:
        if (r->kind >= DDP__K_REAL)
            ok = ddp__parse_ratio(text, &x);
        else {
            ok = ddp__parse_long(text, &n) && (r->size > sizeof(int) || n <= INT_MAX);
            x = (double)n;
        }
        if (r->kind == DDP__K_FLAG && text[1]) ok = 0;
        if (r->kind == DDP__K_SERVERS && !strcmp(text, "colocated")) {
            n = DDP_SERVERS_COLOCATED;
            ok = 1;
        } else if (x == 0 && r->flags & DDP__ZERO) {
            n = -1;
            x = -1;
        } else
            ok = ok && ddp__knob_fits(r, x);
        if (ok) ddp__knob_put(r, c, x, n);
        break;
    case DDP__K_CHOICE:
    case DDP__K_WIRE:
        if (r->kind == DDP__K_WIRE && !strncmp(text, "topk:", 5)) {
            ok = ddp__parse_ratio(text + 5, &x) && x > 0 && x <= 1;
            if (ok) {
                c->topk_fraction = x;
                text = "topk";
            }
        }
        ok = ok && ddp__chosen(r->names, text, at);
        break;
    case DDP__K_STRATEGY:
        ok = list->named(text) != DDP_STRATEGY_DEFAULT;
        if (ok) c->strategy = list->named(text);
        break;
    case DDP__K_PAIR:
        n = second = strtol(text, &comma, 10);
        ok = comma > text && (!*comma || (*comma == ',' && ddp__parse_long(comma + 1, &second)));
        ok = ok && ddp__knob_fits(r, (double)n) && ddp__knob_fits(r, (double)second);
        if (ok) {
            ((int *)at)[0] = (int)n;
            ((int *)at)[1] = (int)second;
        }
        break;
    }
    return ok ? DDP_OK : ddp__knob_refuse(list, r, said, '=', text, err);
}

/* ---- all rows ---- */

ddp_status ddp__settings_check(const ddp__strategies *list, const ddp_config *c, ddp_error *err)
{
    char text[64];

    DDP__EACH_KNOB(r)
    {
        const double x = ddp__knob_number(r, c);
        const int below = r->flags & DDP__ZERO || r->kind == DDP__K_SERVERS; /* -1 is a value */
        if (x == 0 || r->kind == DDP__K_FLAG || r->kind == DDP__K_STRATEGY || (x == -1 && below) ||
            (r->names ? strcmp(ddp__name_of(r->names, (int)x), "unknown") != 0 : ddp__knob_fits(r, x)))
            continue;
        ddp__format(text, sizeof text, "%.15g", x);
        return ddp__knob_refuse(list, r, r->field, ' ', text, err);
    }
    return DDP_OK;
}

void ddp__settings_default(const ddp__strategies *list, ddp_config *c)
{
    DDP__EACH_KNOB(r)
    if (r->flags & DDP__FILL && ddp__knob_unset(r, c))
        (void)ddp__knob_set(list, r, c, r->field, ddp__knob_preset(list, r), NULL);
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

/* A choice's default and its name are one value. */
static double ddp__knob_compared(const ddp__knob *r, const ddp_config *c)
{
    const double x = ddp__knob_number(r, c);
    int named = 0;

    return x == 0 && r->names && ddp__chosen(r->names, r->names[0], &named) ? (double)named : x;
}

/* 0 without a path; of a file a number of its bytes; 1 if it cannot be read, which is an error where it is
 * used. */
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
    /* The first two are files of this machine: each rank has its own path. The plan of a run reaches a
     * joining worker. They come first because they change the values of others. */
    const ddp__setting more[DDP__MORE_SETTINGS] = {
        {"profile_path (0: none, else a hash of the file)", ddp__path_number(c->profile_path), NULL},
        {"plan_path (0: none, else a hash of the file)", ddp__path_number(c->plan_path), NULL},
        {"first state_period", (double)c->state_period[0], NULL},
        {"second state_period", (double)c->state_period[1], NULL},
        {"a site (0: no, 1: yes)", (double)(c->site > 0), NULL},
        {"seed, of which the last 32 bits are", (double)(c->seed & 0xffffffffu), NULL}}; /* of 64, a double
                                                                                            has 53 */
    int n = 0;

    for (int i = 0; i < 2 && !joined; i++) out[n++] = more[i];
    DDP__EACH_KNOB(r)
    if ((r->flags & which) == which) {
        out[n].name = r->field;
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

/* The field, or the variable behind DREAMDDP_, that is spelled most like name; NULL: more than 3 letters
 * differ. */
static const char *ddp__nearest(int variables, const char *name, size_t n)
{
    const char *nearest = NULL;
    int least = 4;

    for (int i = 0; i < DDP__KNOBS + (variables ? DDP__OTHERS : 0); i++) {
        const char *known = i >= DDP__KNOBS ? ddp__others[i - DDP__KNOBS][0]
                            : variables     ? ddp__knobs[i].variable
                                            : ddp__knobs[i].field;
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
    const char *nearest;

    if (!c || !field || !value)
        return ddp__fail(err, DDP_ARG, "ddp_config_set: a configuration, a field and a value are needed");
    while (r < ddp__knobs + DDP__KNOBS && strcmp(r->field, field)) r++;
    if (r < ddp__knobs + DDP__KNOBS) return ddp__knob_set(list, r, c, field, value, err);
    nearest = ddp__nearest(0, field, strlen(field));
    if (nearest)
        return ddp__fail(err, DDP_ARG, "no setting is called %.60s: did you mean %s?", field, nearest);
    return ddp__fail(err, DDP_ARG, "no setting is called %.60s: docs/settings.md lists them", field);
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
    out->field = r->field;
    out->variable = r->variable;
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
                         "unknown environment variable %.*s: a field of ddp_config without a variable is "
                         "set in the program; docs/settings.md lists them",
                         n, *e);
    }
    return DDP_OK;
}

ddp_status ddp__env_settings(const ddp__strategies *list, ddp_config *c, ddp_error *err)
{
    const char *resume = ddp__env_get("DREAMDDP_RESUME"); /* connect.c's */
    const int keys = c->tls_psk || c->tls_ca || c->tls_cert || c->tls_key;

    DDP__EACH_KNOB(r)
    {
        const char *text = r->flags & DDP__LAUNCHED ? NULL : ddp__env_get(r->variable);
        if (!text || !ddp__knob_unset(r, c) || (keys && r->flags & DDP__KEYS) ||
            (r->kind == DDP__K_STRATEGY && c->own_strategy))
            continue;
        DDP__TRY(ddp__knob_set(list, r, c, r->variable, text, err));
    }
    if (resume && strcmp(resume, "0") && strcmp(resume, "1"))
        return ddp__fail(err, DDP_ARG, "DREAMDDP_RESUME=%.60s is neither 1 nor 0", resume);
    return DDP_OK;
}
#undef DDP__EACH_KNOB
