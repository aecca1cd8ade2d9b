/* [long, asan, test-all: slow] Every cell of the table of valid combinations (src/config/compatibility.c):
 * where it says yes, a small training runs to its end; where it says no, opening fails with the error of the
 * table. The test also generates docs/reference/compatibility.md: it compares the page, or writes it with
 * REWRITE=1 in the environment. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "quick_meter.h"
#include "device/fake_device.h"
#include "session/launch.h"
#include "strategy/strategy.h"
#include "wire/given_lab.h"
#include "wire/meet.h"

enum { WORLD = 4, LAYERS = 3, N = 70, STEPS = 7, AFTER = 6, UNKNOWN = 100000 };

/* ---- the settings, one bit each ---- */

#define SETTINGS(X)                                                               \
    X(CLIP, "`clip_norm`", 0)                                                     \
    X(BF16, "`wire` bf16", 0)                                                     \
    X(INT8, "`wire` int8", 0)                                                     \
    X(INT4, "`wire` int4, e3m0", 0)                                               \
    X(TOPK, "`wire` topk", 0)                                                     \
    X(FIRST, "your own update, `average_first`", 0)                               \
    X(PARTS, "`split_params`", 0)                                                 \
    X(GROUPS, "layers of a group", 0)                                             \
    X(SITE, "`site`", 0)                                                          \
    X(ELASTIC, "`min_world`", 0)                                                  \
    X(ROOM, "`max_world`", 1 << ELASTIC) /* which is valid only with min_world */ \
    X(JOIN, "`join`", 0)                                                          \
    X(SECOND, "`net2`, `addr2`", 0)                                               \
    X(THREADS, "`transport` threads", 0)                                          \
    X(MPI, "`transport` mpi", 0)                                                  \
    X(SOCKETS, "`transport` sockets", 0)                                          \
    X(TLS, "`tls_psk`, `tls_ca`", 0)                                              \
    X(RING, "`algorithm` ring", 0)                                                \
    X(DETERMINISTIC, "`deterministic`", 0)                                        \
    X(DEVICE, "`backend`", 0)                                                     \
    X(NCCL1, "`nccl` 1", 1 << DEVICE)                                             \
    X(NCCL2, "`nccl` 2", 1 << DEVICE)                                             \
    X(STREAM, "`cuda_stream`", 1 << DEVICE)                                       \
    X(SERVERS, "`servers` colocated", 0)

#define NUMBER(id, name, needs) id,
#define NAME(id, name, needs)   name,
#define NEEDS(id, name, needs)  needs,
enum { SETTINGS(NUMBER) SETTING_COUNT };
static const char *const setting_name[] = {SETTINGS(NAME)};
static const unsigned setting_needs[] = {SETTINGS(NEEDS)};

static const ddp_strategy strategies[] = {
    DDP_SSGD,    DDP_WFBP,          DDP_LOCALSGD, DDP_ENP,    DDP_DREAMDDP,   DDP_MGWFBP,
    DDP_ASCWFBP, DDP_BYTESCHEDULER, DDP_USBYTE,   DDP_DILOCO, DDP_SPARSELOCO, DDP_DEFT,
    DDP_AUTO,    DDP_BSP,           DDP_ASP,      DDP_SSP,    DDP_R2SP,       DDP_OSP};
enum { STRATEGIES = sizeof strategies / sizeof strategies[0], WITHOUT_SERVERS = STRATEGIES - 5 };

/* Two values of one setting. */
static int exclude_each_other(int a, int b)
{
    static const int pair[][2] = {{BF16, INT8},   {BF16, INT4},  {BF16, TOPK},   {INT8, INT4},
                                  {INT8, TOPK},   {INT4, TOPK},  {THREADS, MPI}, {THREADS, SOCKETS},
                                  {MPI, SOCKETS}, {NCCL1, NCCL2}};
    size_t i;

    for (i = 0; i < sizeof pair / sizeof pair[0]; i++)
        if ((pair[i][0] == a && pair[i][1] == b) || (pair[i][0] == b && pair[i][1] == a)) return 1;
    return 0;
}

typedef struct board { /* shared by the processes of a run */
    long last;         /* atomic: the step in which all stop */
    long step[3];      /* atomic: steps of the members of a run that a worker joins */
    uint64_t hash[WORLD + 1];
    int status[WORLD + 1];
    char text[WORLD + 1][DDP_ERROR_TEXT];
} board;

typedef struct cell {
    ddp_config cfg;
    unsigned on;
    int comes; /* 1: this worker joins later */
    int number;
    board *b;
} cell;

static board *shared;
static ddp_backend device;
static char psk_path[64];

static int has(unsigned on, int setting) { return on >> setting & 1; }

/* Sets the configuration. as_joiner: of the joining worker; otherwise of the members. */
static void configure(cell *c, unsigned on, ddp_strategy strategy)
{
    static int stream;
    ddp_config *g = &c->cfg;
    int i;

    for (i = 0; i < SETTING_COUNT; i++)
        if (has(on, i)) on |= setting_needs[i];
    memset(c, 0, sizeof *c);
    c->on = on;
    c->b = shared;
    g->strategy = strategy;
    g->no_env = 1;
    g->world = WORLD;
    g->period = strategy == DDP_AUTO ? 0 : 2;
    /* the test device's network connects threads */
    g->transport =
        has(on, THREADS) || ((has(on, NCCL1) || has(on, NCCL2)) && !has(on, ROOM) && !has(on, JOIN))
            ? DDP_THREADS
            : DDP_TCP;
    g->timeout.connect_s = 60;
    g->timeout.peer_s = 60; /* for sanitizers on a busy machine */
    g->clip_norm = has(on, CLIP) ? 0.5f : 0;
    g->wire = has(on, BF16)   ? DDP_WIRE_BF16
              : has(on, INT8) ? DDP_WIRE_INT8
              : has(on, TOPK) ? DDP_WIRE_TOPK
              : has(on, INT4) ? (strategy % 2 ? DDP_WIRE_INT4 : DDP_WIRE_E3M0)
                              : DDP_WIRE_DEFAULT;
    g->average.split_params = has(on, PARTS) ? N / 3 : 0;
    g->average.first = has(on, FIRST);
    g->site = has(on, SITE);
    g->elastic.min_world = has(on, ELASTIC);
    g->elastic.max_world = has(on, ROOM) ? WORLD + 1 : 0;
    g->network.net2 = has(on, SECOND) ? "500mbit,1ms" : NULL;
    if (has(on, MPI)) g->transport = DDP_MPI;
    if (has(on, SOCKETS)) g->transport = DDP_SOCKETS;
    g->security.psk = has(on, TLS) ? psk_path : NULL;
    g->algorithm = has(on, RING) ? DDP_RING : DDP_ALGORITHM_DEFAULT;
    g->deterministic = has(on, DETERMINISTIC);
    g->backend = has(on, DEVICE) ? &device : NULL;
    g->device.nccl = has(on, NCCL1) ? 1 : has(on, NCCL2) ? 2 : 0;
    g->device.cuda_stream = has(on, STREAM) ? &stream : NULL;
    /* strategies that need servers always have them */
    if (has(on, SERVERS) || (strategy >= DDP_BSP && strategy <= DDP_OSP))
        g->server.count = has(on, ELASTIC) && !has(on, SERVERS) ? 1 : DDP_SERVERS_COLOCATED;
    if (has(on, JOIN)) {
        g->elastic.join = 1;
        g->world = 0;
    }
}

static int is_there(const cell *c) { return has(c->on, DEVICE); }

/* ---- a small training ---- */

static int make_layers(ddp_ctx *d, const cell *c, float *w, float *g)
{
    static const int half[2][2] = {{0, 1}, {2, 3}};
    static const ddp_program_state none = {"no momentum", NULL, NULL, NULL, NULL, 0};
    ddp_optimizer o = has(c->on, FIRST) ? ddp_own_update() : ddp_sgd(0.05f, 0.5f);
    ddp_layer layer;
    int group[2] = {0, 0}, l, i;

    for (i = 0; i < 2 && has(c->on, GROUPS); i++)
        if (ddp_group(d, half[i], 2, &group[i])) return 1;
    if (has(c->on, SITE) && !has(c->on, GROUPS))
        d->cfg.site = 1 + ddp_rank(d) / 2; /* as DREAMDDP_SITE sets
                                                                                     * it */
    for (l = 0; l < LAYERS; l++) {
        for (i = 0; i < N; i++) w[l * N + i] = (float)(i % 7) - 3;
        memset(&layer, 0, sizeof layer);
        layer.params = w + l * N;
        layer.grads = g + l * N;
        layer.count = N;
        if (is_there(c)) {
            layer.params = (float *)fake_away(w + l * N);
            layer.grads = (float *)fake_away(g + l * N);
        }
        layer.group = group[ddp_rank(d) / 2 % 2];
        if (ddp_add_layer(d, &layer)) return 1;
    }
    if (has(c->on, FIRST) && ddp_add_state(d, &none)) return 1;
    return ddp_set_optimizer(d, &o);
}

/* Returns whether to run another step. In a run that a worker joins, all ranks stop several steps after it
 * has joined. The members wait until it has chosen the last step: a strategy that merges gradients may not
 * exchange anything for many steps, in which a member would pass that step. */
static int goes_on(ddp_ctx *d, const cell *c)
{
    if (!c->number) return ddp_step(d) < STEPS;
    while (ddp_workers(d) == 3 && ddp__atomic_load(&c->b->last) == UNKNOWN)
        ddp__sleep_until(ddp_now() + 1e-3);
    return ddp_step(d) < ddp__atomic_load(&c->b->last);
}

static int train(ddp_ctx *d, void *user)
{
    const cell *c = (const cell *)user;
    float *w = (float *)calloc(2 * LAYERS * N, sizeof *w), *g = w + LAYERS * N;
    int bad = make_layers(d, c, w, g), l, i;

    if (!bad && ddp_rank(d) >= ddp_world(d) - ddp_servers(d)) {
        bad = ddp_serve(d);
        free(w);
        return bad;
    }
    if (!bad && c->comes) ddp__atomic_store(&c->b->last, ddp_step(d) + AFTER);
    while (!bad && goes_on(d, c)) {
        for (l = 0; l < LAYERS && !bad; l++) bad = ddp_forward_begin(d, l);
        for (l = LAYERS - 1; l >= 0 && !bad; l--) {
            for (i = l * N; i < (l + 1) * N; i++) g[i] += 0.1f * w[i] + 0.01f * (float)(ddp_rank(d) + i % 5);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
        for (i = 0; i < LAYERS * N && !bad && has(c->on, FIRST); i++) {
            w[i] -= 0.05f * g[i];
            g[i] = 0;
        }
        if (c->number) ddp__atomic_store(&c->b->step[c->number - 1], ddp_step(d));
    }
    if (!bad) bad = ddp_sync_all(d);
    if (!bad) c->b->hash[ddp_rank(d)] = 1 | ddp_hash_floats(0, w, LAYERS * N);
    for (i = 0; i < LAYERS * N && !bad; i++) bad = isfinite(w[i]) ? 0 : (int)DDP_NUMERIC;
    free(w);
    return bad ? (int)ddp_last_error(d)->code : 0;
}

/* The ranks of a group, or all ranks, end with equal parameters. */
static int equal_at_the_end(const cell *c, int workers)
{
    int r, equal = 1;

    for (r = 0; r < workers; r++)
        equal &= c->b->hash[r] && c->b->hash[r] == c->b->hash[has(c->on, GROUPS) ? r / 2 * 2 : 0];
    return equal;
}

/* ---- a run that a worker joins ---- */

static void come(cell c, int number, const char *addr)
{
    ddp_error err;
    ddp_ctx *d;
    int bad;

    c.number = number + 1;
    c.comes = number == 2;
    c.cfg.addr = addr;
    c.cfg.rank = c.comes ? 0 : number;
    if (!c.comes) c.on &= ~(1u << GROUPS); /* the run never has any */
    if (!c.comes) {
        c.cfg.elastic.join = 0;
        c.cfg.world = 2;
        c.cfg.elastic.min_world = 1;
        c.cfg.elastic.max_world = 3;
    }
    d = ddp_open(&c.cfg, &err);
    bad = d ? train(d, &c) : (int)err.code;
    if (d) err = *ddp_last_error(d);
    c.b->status[number] = bad;
    snprintf(c.b->text[number], sizeof c.b->text[number], "%s", bad ? err.msg : "");
    if (bad && c.comes) { /* the others need not wait for it, and run on while this is written */
        const long a = ddp__atomic_load(&c.b->step[0]), b = ddp__atomic_load(&c.b->step[1]);
        ddp__atomic_store(&c.b->last, (a > b ? a : b) + 30 * AFTER);
    }
    ddp_close(d);
    _exit(bad != 0);
}

/* told: the expected error of the joining worker, or NULL if it joins. Returns nonzero and why if the result
 * differs. */
static int run_joined(const cell *c, const char *told, char *why, size_t room)
{
    char addr[DDP__ADDR_TEXT];
    int number, status, bad = 0;
    pid_t pid[3];

    meet_unused(addr);
    c->b->last = UNKNOWN;
    for (number = 0; number < 3; number++) {
        pid[number] = fork();
        if (pid[number] == 0) come(*c, number, addr);
        if (number == 1) ddp__sleep_until(ddp_now() + 0.1);
    }
    for (number = 0; number < 3; number++) {
        waitpid(pid[number], &status, 0);
        if (number == 2 && *told && !bad) {
            bad = strcmp(c->b->text[number], told);
            if (bad) snprintf(why, room, "'%.200s', not '%.200s'", c->b->text[number], told);
        } else if (!bad && (status || c->b->status[number])) {
            snprintf(why, room, "worker %d: %d '%.200s'", number, status, c->b->text[number]);
            bad = 1;
        }
    }
    if (!bad && !*told && !equal_at_the_end(c, 3))
        bad = snprintf(why, room, "the ranks have different parameters") > 0;
    return bad;
}

/* ---- cells ---- */

/* Returns 1 if the table allows the combination. */
static int table_says(const cell *c, const ddp_strategy_ops *ops, ddp_error *err)
{
    memset(err, 0, sizeof *err);
    return ddp__goes_check(&c->cfg, ops, has(c->on, GROUPS), err) == DDP_OK;
}

static int cannot_run(const cell *c)
{
#ifndef DDP_USE_OPENSSL
    if (has(c->on, TLS)) return 1;
#endif
    return has(c->on, MPI); /* needs mpirun: tested in tests/session/test_mpi.py */
}

/* The message without the prefix that names the process. */
static const char *sentence_of(const ddp_error *err)
{
    const char *end = strncmp(err->msg, "rank ", 5) ? NULL : strchr(err->msg, ':');

    return end ? end + 2 : err->msg;
}

/* Threads are faster than processes. If the table says the same for both, 7 of 8 cells run as threads; with
 * PROCESSES=1 in the environment, none. */
static void prefer_threads(cell *c, const ddp_strategy_ops *ops)
{
    static int cells;
    ddp_error as_processes[2], as_threads[2];
    int same = 1, groups;

    if (getenv("PROCESSES") || c->cfg.transport != DDP_TCP || c->cfg.elastic.join || cells++ % 8 == 0) return;
    memset(as_processes, 0, sizeof as_processes);
    memset(as_threads, 0, sizeof as_threads);
    for (groups = 0; groups <= has(c->on, GROUPS); groups++) { /* 0: before the layers are registered */
        (void)ddp__goes_check(&c->cfg, ops, groups, &as_processes[groups]);
        c->cfg.transport = DDP_THREADS;
        (void)ddp__goes_check(&c->cfg, ops, groups, &as_threads[groups]);
        c->cfg.transport = DDP_TCP;
        same &= as_threads[groups].code == as_processes[groups].code &&
                !strcmp(as_threads[groups].msg, as_processes[groups].msg);
    }
    if (same) c->cfg.transport = DDP_THREADS;
}

/* Returns 0 and why if the library behaves differently from the table. */
static int is_so(cell *c, const ddp_strategy_ops *ops, char *why, size_t room)
{
    ddp_error told, err;
    const int goes = table_says(c, ops, &told);

    prefer_threads(c, ops);
    memset(&err, 0, sizeof err);
    memset(shared, 0, sizeof *shared);
    if (cannot_run(c)) return 1;
    if (c->cfg.elastic.join && (goes || has(c->on, GROUPS))) return !run_joined(c, told.msg, why, room);
    if (goes) {
        const int bad = has(c->on, SOCKETS) ? given_launch(&c->cfg, 0, train, c, &err)
                                            : ddp_launch(&c->cfg, train, c, &err);
        (void)fake_nets(); /* the networks of the next run are new */
        if (bad) return snprintf(why, room, "goes, but '%s'", err.msg) < 0;
        return equal_at_the_end(c, WORLD - (c->cfg.server.count > 0 ? c->cfg.server.count : 0)) ||
               snprintf(why, room, "the ranks have different parameters") < 0;
    }
    if (c->cfg.elastic.join) {
        ddp_ctx *d = ddp_open(&c->cfg, &err);
        if (d) snprintf(err.msg, sizeof err.msg, "opened");
        ddp_close(d);
    } else {
        ddp_launch(&c->cfg, train, c, &err);
    }
    if (err.code == told.code && !strcmp(sentence_of(&err), told.msg)) return 1;
    return snprintf(why, room, "%d '%s', not %d '%s'", (int)err.code, err.msg, (int)told.code, told.msg) < 0;
}

/* Processor seconds of this process and its children so far. */
static double cpu_s(void)
{
    struct rusage self, children;

    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    return (double)(self.ru_utime.tv_sec + self.ru_stime.tv_sec + children.ru_utime.tv_sec +
                    children.ru_stime.tv_sec) +
           1e-6 * (double)(self.ru_utime.tv_usec + self.ru_stime.tv_usec + children.ru_utime.tv_usec +
                           children.ru_stime.tv_usec);
}

static char wrong_cell[3 * DDP_ERROR_TEXT]; /* the last one */

static int check(unsigned on, ddp_strategy strategy, const char *what, const char *with)
{
    ddp_strategy_ops ops;
    char why[2 * DDP_ERROR_TEXT] = "";
    double begin, cpu;
    cell c;

    configure(&c, on, strategy);
    memset(&ops, 0, sizeof ops);
    if (!ddp__built_in()->fill(strategy, &ops)) fail_msg("no strategy %d", (int)strategy);
    if (ops.settle)
        assert_int_equal(ops.settle(&ops, &c.cfg, NULL), DDP_OK); /* the defaults of the strategy */
    begin = ddp_now();
    cpu = cpu_s();
    if (is_so(&c, &ops, why, sizeof why)) {
        if (getenv("SHOW"))
            fprintf(stderr, "%6.3f s, cpu %6.3f s: %s with %s, %d\n", ddp_now() - begin, cpu_s() - cpu, what,
                    with, (int)strategy);
        return 0;
    }
    snprintf(wrong_cell, sizeof wrong_cell, "%s with %s, %s: %s", what, with, ops.name, why);
    print_error("%s\n", wrong_cell);
    return 1;
}

/* Under sanitizers, which slow each cell down many times, only some cells are tested. */
static int is_tried(int n, int of) { return INSTANCES(4) == 4 || n % of == 0; }

/* Layers of a group are known when they are registered, all other settings before a rank connects. */
static void every_pair_of_settings_matches_the_table(void **state)
{
    int a, b, n = 0, wrong = 0;

    (void)state;
    for (a = 0; a < SETTING_COUNT; a++)
        for (b = 0; b < a; b++, n++)
            if (!exclude_each_other(a, b) && is_tried(n, 8))
                wrong += check(1u << a | 1u << b,
                               a == PARTS || b == PARTS ? DDP_DREAMDDP : strategies[n % WITHOUT_SERVERS],
                               setting_name[a], setting_name[b]);
    wrong +=
        check(1u << SITE | 1u << ELASTIC | 1u << TOPK, DDP_DILOCO, setting_name[SITE], "min_world and topk");
    wrong +=
        check(1u << SITE | 1u << ELASTIC | 1u << INT4, DDP_DILOCO, setting_name[SITE], "min_world and int4");
    if (wrong) fail_msg("%d cells differ from the table, the last one: %s", wrong, wrong_cell);
}

static void every_built_in_strategy_with_every_setting_matches_the_table(void **state)
{
    int a, s, wrong = 0;

    (void)state;
    for (s = 0; s < STRATEGIES; s++) {
        wrong += check(0, strategies[s], "nothing", "anything");
        for (a = 0; a < SETTING_COUNT; a++)
            if (is_tried(a + s, STRATEGIES))
                wrong += check(1u << a, strategies[s], setting_name[a], "nothing else");
    }
    if (wrong) fail_msg("%d cells differ from the table, the last one: %s", wrong, wrong_cell);
    assert_int_equal(ddp__built_in()->number(STRATEGIES), DDP_STRATEGY_DEFAULT);
}

/* ---- traits: a custom strategy ---- */

static const struct {
    unsigned trait;
    const char *name;
    int setting;
} traits[] = {
    {DDP_WITH_CLIP, "DDP_WITH_CLIP", CLIP},           {DDP_WITH_FIRST, "DDP_WITH_FIRST", FIRST},
    {DDP_WITH_BF16, "DDP_WITH_BF16", BF16},           {DDP_WITH_INT8, "DDP_WITH_INT8", INT8},
    {DDP_WITH_INT4, "DDP_WITH_INT4", INT4},           {DDP_WITH_TOPK, "DDP_WITH_TOPK", TOPK},
    {DDP_WITH_PARTS, "DDP_WITH_PARTS", PARTS},        {DDP_WITH_GROUPS, "DDP_WITH_GROUPS", GROUPS},
    {DDP_WITH_SITES, "DDP_WITH_SITES", SITE},         {DDP_WITH_ELASTIC, "DDP_WITH_ELASTIC", ELASTIC},
    {DDP_WITH_ELASTIC, "DDP_WITH_ELASTIC", JOIN},     {DDP_WITH_DEVICE, "DDP_WITH_DEVICE", DEVICE},
    {DDP_NEEDS_SERVERS, "DDP_NEEDS_SERVERS", SERVERS}};
enum {
    TRAITS = sizeof traits / sizeof traits[0],
    EVERY = DDP_WITH_ALL | DDP_WITH_INT4 | DDP_WITH_TOPK | DDP_WITH_PARTS
};

static int own_backward_end(ddp_ctx *d, void *self, int layer)
{
    (void)self;
    return ddp_update_layer(d, layer, NULL) || ddp_average_exact(d, layer);
}

static void every_missing_trait_is_rejected_with_its_error(void **state)
{
    ddp_strategy_ops ops;
    char why[2 * DDP_ERROR_TEXT];
    unsigned all = 0;
    int i, a, wrong = 0;
    cell c;

    (void)state;
    memset(&ops, 0, sizeof ops);
    ops.name = "own";
    ops.averages = DDP_AVERAGES_PARAMETERS;
    ops.backward_end = own_backward_end;
    for (i = 0; i < TRAITS; i++) {
        all |= traits[i].trait;
        for (a = 0; a < SETTING_COUNT; a++) {
            ddp_error told;
            configure(&c, 1u << a, DDP_STRATEGY_DEFAULT);
            ops.traits = EVERY & ~traits[i].trait;
            c.cfg.own_strategy = &ops;
            if (table_says(&c, &ops, &told) == (traits[i].setting == a || a == SERVERS) && a != ROOM &&
                a < NCCL1 && !(traits[i].trait == DDP_WITH_ELASTIC && (a == ELASTIC || a == JOIN)))
                fail_msg("%s and %s: '%s'", traits[i].name, setting_name[a], told.msg);
            if (traits[i].setting != a && (i + 1 < TRAITS || !is_tried(a, 4)))
                continue; /* the last one covers others */
            if (is_so(&c, &ops, why, sizeof why)) continue;
            print_error("custom strategy without %s, with %s: %s\n", traits[i].name, setting_name[a], why);
            wrong++;
        }
    }
    assert_int_equal(all, EVERY | DDP_NEEDS_SERVERS);
    ops.traits = DDP_NEEDS_SERVERS;
    for (a = 0; a < 2; a++) {
        configure(&c, a ? 1u << SERVERS : 0, DDP_STRATEGY_DEFAULT);
        c.cfg.own_strategy = &ops;
        if (!is_so(&c, &ops, why, sizeof why))
            fail_msg("custom strategy with %s servers: %s", a ? "its" : "no", why);
    }
    ops.traits = DDP_NEEDS_TWO_LINKS;
    for (a = 0; a < 2; a++) {
        configure(&c, a ? 1u << SECOND : 0, DDP_STRATEGY_DEFAULT);
        c.cfg.own_strategy = &ops;
        if (!is_so(&c, &ops, why, sizeof why)) fail_msg("custom strategy with %d links: %s", 1 + a, why);
    }
    if (wrong) fail_msg("%d cells differ from the table, the last one: %s", wrong, wrong_cell);
}

/* ---- the page ---- */

static const char *reasons[64];
static int reason_count;

static int reason(const char *why)
{
    int i = 0;

    while (i < reason_count && strcmp(reasons[i], why)) i++;
    if (i == reason_count) reasons[reason_count++] = why;
    return i + 1;
}

static void put(char *page, const char *fmt, ...)
{
    const size_t at = strlen(page);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(page + at, 32768 - at, fmt, ap);
    va_end(ap);
}

/* The row that rejects these settings together, or NULL. */
static const ddp__goes_row *row_of(unsigned on)
{
    cell c;

    configure(&c, on, DDP_STRATEGY_DEFAULT);
    return ddp__goes_refuses(ddp__features_on(&c.cfg, has(c.on, GROUPS)));
}

static void page_of_settings(char *page)
{
    int a, b;

    put(page, "| |");
    for (b = 0; b < SETTING_COUNT; b++) put(page, " %d |", b + 1);
    put(page, "\n|---|");
    for (b = 0; b < SETTING_COUNT; b++) put(page, ":-:|");
    put(page, "\n");
    for (a = 0; a < SETTING_COUNT; a++) {
        put(page, "| %d %s |", a + 1, setting_name[a]);
        for (b = 0; b < SETTING_COUNT; b++) {
            const ddp__goes_row *row = row_of(1u << a | 1u << b);
            if (b >= a)
                put(page, " |");
            else if (exclude_each_other(a, b))
                put(page, " - |");
            else if (row)
                put(page, " %c |", 'a' + reason(row->why) - 1);
            else
                put(page, " yes |");
        }
        put(page, "\n");
    }
    put(page, "\nA letter means no, with this error:\n\n");
    for (a = 0; a < reason_count; a++) put(page, "* %c: %s\n", 'a' + a, reasons[a]);
}

static int three_that_do_not_go(int a, int b, int c)
{
    const unsigned A = 1u << a, B = 1u << b, C = 1u << c;

    if (exclude_each_other(a, b) || exclude_each_other(a, c) || exclude_each_other(b, c)) return 0;
    return !row_of(A | B) && !row_of(A | C) && !row_of(B | C) && row_of(A | B | C);
}

static void page_of_three(char *page)
{
    put(page, "\nThree settings that are invalid together, although each pair is valid:\n\n");
    for (int a = 0; a < SETTING_COUNT; a++)
        for (int b = 0; b < a; b++)
            for (int c = 0; c < b; c++)
                if (three_that_do_not_go(a, b, c))
                    put(page, "* %s, %s, %s: %s\n", setting_name[c], setting_name[b], setting_name[a],
                        row_of(1u << a | 1u << b | 1u << c)->why);
}

static void page_of_strategies(char *page)
{
    put(page, "| setting | cannot be combined with |\n|---|---|\n");
    for (int a = 0; a < SETTING_COUNT; a++) {
        int n = 0;
        for (int s = 0; s < STRATEGIES; s++) {
            ddp_strategy_ops ops;
            cell c;
            configure(&c, 1u << a | (s >= WITHOUT_SERVERS ? 1u << SERVERS : 0), strategies[s]);
            memset(&ops, 0, sizeof ops);
            assert_true(ddp__built_in()->fill(strategies[s], &ops));
            if (!ddp__goes_lacks(ddp__features_on(&c.cfg, has(c.on, GROUPS)), ops.traits)) continue;
            if (!n++) put(page, "| %s | ", setting_name[a]);
            put(page, "%s%s", n > 1 ? ", " : "", ops.name);
        }
        if (n) put(page, " |\n");
    }
}

static void page_of_traits(char *page)
{
    int i;

    put(page, "| without the trait | rejected setting | reason |\n|---|---|---|\n");
    for (i = 0; i < TRAITS; i++) {
        const ddp__goes_trait *t;
        cell c;
        configure(&c, 1u << traits[i].setting, DDP_STRATEGY_DEFAULT);
        t = ddp__goes_lacks(ddp__features_on(&c.cfg, has(c.on, GROUPS)), EVERY & ~traits[i].trait);
        assert_non_null(t);
        put(page, "| `%s` | %s | %s |\n", traits[i].name, setting_name[traits[i].setting], t->why);
    }
    put(page, "\nA strategy with the trait `DDP_NEEDS_TWO_LINKS` needs `net2`, `addr2` or `nccl` 2; one with "
              "`DDP_NEEDS_SERVERS`\nneeds `servers`.\n");
}

static void page_matches_the_table(void **state)
{
    static char page[32768], there[32768];
    const char *path = "docs/reference/compatibility.md";
    FILE *f;
    size_t n;

    (void)state;
    put(page,
        "# Compatible settings\n\n"
        "Use this page to look up which settings of `ddp_config` can be combined. For an unsupported "
        "combination `ddp_open` and\n"
        "`ddp_launch` fail with an error that names both settings. Layers of a process group fail in "
        "`ddp_group` or in the\n"
        "first step.\n\n"
        "* `max_world` needs `min_world`. `nccl` and `cuda_stream` need `backend`.\n"
        "* `join` is the setting of a joining worker. The other workers of the run have the same second "
        "setting.\n"
        "* With your own update, `max_world` and `join` need a program state\n"
        "  ([embed](../howto/embed.md#save-the-state-of-your-optimizer)).\n\n"
        "The page is generated from src/config/compatibility.c. tests/config/test_compatibility.c also tries "
        "each cell: a small\n"
        "training must succeed where the table has \"yes\". tests/session/test_mpi.py tries some cells of "
        "`transport` mpi. To\n"
        "write the page again:\n\n"
        "```console\n$ make build/plain/config/test_compatibility && REWRITE=1 "
        "build/plain/config/test_compatibility\n```\n\n"
        "## Pairs of settings\n\n"
        "The cell of two settings is \"yes\" if they can be combined, \"-\" if they are values of the same "
        "setting, or the letter of the\n"
        "error below the table.\n\n");
    page_of_settings(page);
    page_of_three(page);
    put(page, "\n## Strategies\n\nThe built-in strategies support every setting above except these. bsp, "
              "asp, ssp, r2sp and osp need `servers`\n([servers](../howto/servers.md)):\n\n");
    page_of_strategies(page);
    put(page, "\nThe traits of a custom strategy ([custom-strategy](../howto/custom-strategy.md)) state the "
              "settings that it supports:\n\n");
    page_of_traits(page);
    if (getenv("REWRITE")) {
        f = fopen(path, "w");
        assert_non_null(f);
        fputs(page, f);
        assert_int_equal(fclose(f), 0);
    }
    f = fopen(path, "r");
    if (!f) fail_msg("%s not found: run this test in the repository, with REWRITE=1", path);
    n = fread(there, 1, sizeof there - 1, f);
    fclose(f);
    there[n] = 0;
    if (strcmp(there, page)) fail_msg("%s differs from the table: run this test with REWRITE=1", path);
}

/* Each setting of the table is one of this test's, with its complement: the condition that it is not set. */
static void test_covers_every_setting(void **state)
{
    unsigned on = 0, conditions = 0;
    cell c;
    int i, n = 0;

    (void)state;
    for (i = 0; i < SETTING_COUNT; i++) {
        configure(&c, 1u << i, DDP_STRATEGY_DEFAULT);
        on |= ddp__features_on(&c.cfg, has(c.on, GROUPS));
    }
    configure(&c, 0, DDP_STRATEGY_DEFAULT);
    conditions = ddp__features_on(&c.cfg, 0);
    while (ddp__feature_name(n)) n++;
    assert_int_equal(on, (1u << n) - 1);
    assert_true(conditions && conditions != on);
}

int main(void)
{
    static const char key[] = "00112233445566778899aabbccddeeff";
    int fd, failed;
    void *p = mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_covers_every_setting),
        cmocka_unit_test(page_matches_the_table),
        cmocka_unit_test(every_built_in_strategy_with_every_setting_matches_the_table),
        cmocka_unit_test(every_pair_of_settings_matches_the_table),
        cmocka_unit_test(every_missing_trait_is_rejected_with_its_error),
    };

    if (p == MAP_FAILED) return 1;
    shared = (board *)p;
    device = fake_backend();
    snprintf(psk_path, sizeof psk_path, "/tmp/dreamddp-goes-XXXXXX");
    fd = mkstemp(psk_path);
    if (fd < 0 || write(fd, key, sizeof key - 1) != (ssize_t)sizeof key - 1) return 1;
    close(fd);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(psk_path);
    return failed;
}
