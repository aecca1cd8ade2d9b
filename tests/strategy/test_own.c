/* Faulty strategies of a program: each ends the run, on all ranks, with an error that names the strategy. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { LAYERS = 2, N = 50, STEPS = 4 };

/* The fault. A fault without a comment is explained by its name. */
typedef enum fault {
    NOTHING,
    POSTS_IN_START,
    POSTS_IN_WAIT,
    POSTS_OUTSIDE, /* the program calls a verb between two hooks */
    KEEPS_OUTSIDE,
    KEEPS_LATE,
    KEEPS_NAMELESS,
    KEEPS_NOTHING,
    KEEPS_FOR_NO_LAYER, /* of a layer that does not exist */
    FORGETS_LAYER,      /* a message in a layer's memory, in flight at the end of a step */
    FORGETS_IN_WAIT,    /* a message in its own memory, in flight at the end of wait */
    FORGETS_IN_SYNC_ALL,
    FORGETS_MANY, /* more messages in flight at the end of each step */
    HOLDS_TWICE,
    HOLDS_NONE, /* it was never posted */
    RETURNS,    /* an error code without an error text */
    RETURNS_IN_START,
    RETURNS_IN_ARRIVED,
    COMPLAINS,
    COMPLAINS_AND_GOES_ON,
    NO_MESSAGE,
    NO_TICKET,
    NO_ARRAY,
    NO_LIST,
    UNKNOWN_VERB,
    UNKNOWN_PEER,
    ITSELF_AS_PEER,
    UNKNOWN_GROUP,
    UNKNOWN_LINK,
    OTHER_CODING,
    ADDS_TO_NOTHING,
    SUMS_BYTES,
    SERVES, /* without the trait */
    AVERAGES_NO_LAYER,
    HOLDS_NO_LAYER,
    UPDATES_NO_LAYER,
    AVERAGES_TWICE,
    STEPS_IN_EVENT, /* calls the hooks of a training loop */
    WAITS_IN_WAIT,
    COLLECTIVE_IN_EVENT,
    NEEDS_FORWARD,     /* the program has no such hooks */
    FORWARD_FORGOTTEN, /* waits at the next forward_begin, which never comes */
    FAULTS
} fault;

static fault now;
static float spare[LAYERS + 1][2 * N];

typedef struct own {
    long ticket;
    float *kept;
} own;

static int post(ddp_ctx *d, const ddp_piece *p, int layer, long *ticket)
{
    ddp_message m;

    memset(&m, 0, sizeof m);
    m.verb = DDP_ALL_REDUCE;
    m.from = p;
    m.from_count = 1;
    m.mean = 1;
    m.layer = layer;
    m.step = ddp_step(d);
    return ddp_post(d, &m, ticket);
}

static int start(ddp_ctx *d, void *self)
{
    own *o = (own *)self;
    ddp_piece p = {{spare[ddp_rank(d)]}, N};

    o->ticket = -1;
    if (now == RETURNS_IN_START) return DDP_FAILED;
    if (now == POSTS_IN_START) return post(d, &p, DDP_NO_LAYER, &o->ticket);
    if (now == KEEPS_NAMELESS) return ddp_keep(d, 0, NULL, N, 0) ? 0 : 1;
    if (now == KEEPS_NOTHING) return ddp_keep(d, 0, "nothing", 0, 0) ? 0 : 1;
    if (now == KEEPS_FOR_NO_LAYER) return ddp_keep(d, LAYERS, "beyond", N, 0) ? 0 : 1;
    o->kept = ddp_keep(d, DDP_NO_LAYER, "kept", N, 0);
    return o->kept ? 0 : 1;
}

static int strange_message(ddp_ctx *d, own *o)
{
    ddp_piece p = {{o->kept}, N};
    ddp_message m;
    long ticket;

    memset(&m, 0, sizeof m);
    m.verb = DDP_ALL_REDUCE;
    m.from = &p;
    m.from_count = 1;
    m.layer = DDP_NO_LAYER;
    switch (now) {
    case NO_MESSAGE:
        return ddp_post(d, NULL, &ticket);
    case NO_TICKET:
        return ddp_post(d, &m, NULL);
    case NO_ARRAY:
        p.data = NULL;
        break;
    case NO_LIST:
        m.from = NULL;
        break;
    case UNKNOWN_VERB:
        m.verb = (ddp_verb)99;
        break;
    case UNKNOWN_PEER:
        m.verb = DDP_SEND;
        m.peer = 77;
        break;
    case ITSELF_AS_PEER:
        m.verb = DDP_RECEIVE;
        m.peer = ddp_rank(d);
        break;
    case UNKNOWN_GROUP:
        m.group = 3;
        break;
    case UNKNOWN_LINK:
        m.link = 1;
        break;
    case OTHER_CODING:
        m.coding = DDP_AS_INT8;
        break;
    case ADDS_TO_NOTHING:
        m.add = 1;
        break;
    case SUMS_BYTES:
        m.bytes = 1;
        break;
    default:
        m.verb = DDP_SERVE;
        m.peer = DDP_ANY;
    }
    return ddp_post(d, &m, &ticket);
}

static int backward_end(ddp_ctx *d, void *self, int layer)
{
    own *o = (own *)self;
    int count;
    const ddp_piece *p = ddp_parameters_of(d, layer, &count);

    if (ddp_step(d) == 1 && layer == 1) {
        if (now == RETURNS) return 42;
        if (now == COMPLAINS) return ddp_complain(d, DDP_FAILED, "the moon is %s", "full");
        if (now == COMPLAINS_AND_GOES_ON) ddp_complain(d, DDP_FAILED, "the moon is %s", "full");
        if (now == KEEPS_LATE) return ddp_keep(d, 0, "late", N, 0) ? 0 : 1;
        if (now == STEPS_IN_EVENT) return ddp_step_end(d);
        if (now == COLLECTIVE_IN_EVENT) return ddp_barrier(d);
        if (now == AVERAGES_NO_LAYER) return ddp_average(d, LAYERS, 0, 0);
        if (now == HOLDS_NO_LAYER) return ddp_average_hold(d, -1);
        if (now == UPDATES_NO_LAYER) return ddp_update_layer(d, 1000000, NULL);
        if (now == AVERAGES_TWICE) return ddp_average(d, 1, 0, 0) || ddp_average(d, 1, 0, 0);
        if (now == HOLDS_NONE) return ddp_hold(d, 12345, layer);
        if (now >= NO_MESSAGE && now <= SERVES) return strange_message(d, o);
    }
    if (layer == 0 && now != NOTHING) {
        const int in_layer = now == FORGETS_LAYER || now == FORWARD_FORGOTTEN;
        ddp_piece own_memory = {{o->kept}, N};
        int many = now == FORGETS_MANY ? 30 : 0, bad = 0;
        for (own_memory.count = many ? 0 : N; many > 0 && !bad; many--)
            bad = post(d, &own_memory, 0, &o->ticket);
        if (bad) return bad;
        if (o->ticket < 0)
            return ddp_update_layer(d, layer, NULL) || post(d, in_layer ? p : &own_memory, layer, &o->ticket);
    }
    return ddp_update_layer(d, layer, NULL);
}

static int forgets(void)
{
    return now == FORGETS_LAYER || now == FORGETS_IN_WAIT || now == FORGETS_MANY || now == FORWARD_FORGOTTEN;
}

static int hold(ddp_ctx *d, own *o)
{
    const long ticket = o->ticket;

    if (ticket < 0) return 0;
    o->ticket = -1;
    return ddp_hold(d, ticket, 0) || (now == HOLDS_TWICE && ddp_hold(d, ticket, 0));
}

static int step_end(ddp_ctx *d, void *self, int forward)
{
    (void)forward;
    return forgets() ? 0 : hold(d, (own *)self);
}

static int forward_begin(ddp_ctx *d, void *self, int layer)
{
    (void)layer;
    return now == FORWARD_FORGOTTEN ? 0 : hold(d, (own *)self);
}

static int arrived(ddp_ctx *d, void *self, long ticket)
{
    (void)d;
    (void)self;
    (void)ticket;
    return now == RETURNS_IN_ARRIVED ? 7 : 0;
}

static int finish(ddp_ctx *d, void *self)
{
    ddp_piece p = {{((own *)self)->kept}, N};

    if (now == POSTS_IN_WAIT) return post(d, &p, DDP_NO_LAYER, &((own *)self)->ticket);
    if (now == WAITS_IN_WAIT) return ddp_wait(d);
    return now == FORGETS_IN_WAIT ? 0 : hold(d, (own *)self);
}

static int sync_all(ddp_ctx *d, void *self)
{
    own *o = (own *)self;
    ddp_piece p = {{o->kept}, N};
    int l, bad = 0;

    if (now == FORGETS_IN_SYNC_ALL) return post(d, &p, DDP_NO_LAYER, &o->ticket);
    for (l = 0; l < LAYERS && !bad; l++) bad = ddp_average_exact(d, l);
    return bad;
}

static ddp_strategy_ops crooked(fault f)
{
    ddp_strategy_ops ops;

    memset(&ops, 0, sizeof ops);
    ops.name = "crooked";
    ops.averages = DDP_AVERAGES_PARAMETERS;
    ops.traits = f == NEEDS_FORWARD ? DDP_NEEDS_FORWARD : 0;
    ops.self_bytes = sizeof(own);
    ops.start = start;
    ops.forward_begin = forward_begin;
    ops.backward_end = backward_end;
    ops.step_end = step_end;
    ops.arrived = arrived;
    ops.wait = finish;
    ops.sync_all = sync_all;
    return ops;
}

static int train(ddp_ctx *d, void *user)
{
    float w[LAYERS][N], g[LAYERS][N];
    int l, i, step, bad = 0;
    long ticket;
    ddp_piece p = {{w[0]}, N};

    (void)user;
    for (l = 0; l < LAYERS; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        for (i = 0; i < N; i++) {
            w[l][i] = (float)i;
            g[l][i] = 0;
        }
        layer.params = w[l];
        layer.grads = g[l];
        layer.count = N;
        ddp_add_layer(d, &layer);
    }
    for (step = 0; step < STEPS && !bad; step++) {
        for (l = 0; l < LAYERS && (now == FORWARD_FORGOTTEN || now == WAITS_IN_WAIT) && !bad; l++)
            bad = ddp_forward_begin(d, l);
        for (l = LAYERS - 1; l >= 0 && !bad; l--) {
            for (i = 0; i < N; i++) g[l][i] = 1;
            bad = ddp_backward_end(d, l);
        }
        if (!bad && step == 1 && now == POSTS_OUTSIDE) bad = post(d, &p, DDP_NO_LAYER, &ticket);
        if (!bad && step == 1 && now == KEEPS_OUTSIDE) bad = !ddp_keep(d, 0, "outside", N, 0);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_wait(d);
    if (!bad) bad = ddp_sync_all(d);
    return bad ? (int)ddp_last_error(d)->code : 0;
}

static ddp_status launch(const ddp_strategy_ops *ops, int world, ddp_transport transport, ddp_error *err)
{
    ddp_config cfg;

    memset(&cfg, 0, sizeof cfg);
    memset(err, 0, sizeof *err);
    cfg.own_strategy = ops;
    cfg.world = world;
    cfg.transport = transport;
    cfg.no_env = 1;
    return (ddp_status)ddp_launch(&cfg, train, NULL, err);
}

/* 1 if the error is one line, without a full stop or a repeated name. */
static int is_sentence(const ddp_error *err, ddp_status code, const char *name, const char *words)
{
    const char *at = strstr(err->msg, name);

    if (err->code != code || !at || !strstr(err->msg, words) || strchr(err->msg, '\n') ||
        strstr(at + strlen(name), name) || strlen(err->msg) < 30 || err->msg[strlen(err->msg) - 1] == '.') {
        print_error("%d '%s', expected %d, %s, '%s'\n", (int)err->code, err->msg, (int)code, name, words);
        return 0;
    }
    return 1;
}

static void expect_sentence(const ddp_error *err, ddp_status code, const char *name, const char *words)
{
    assert_true(is_sentence(err, code, name, words));
}

static void each_fault_ends_the_run_with_one_error(void **state)
{
    static const struct {
        fault f;
        ddp_status code;
        int together; /* 1 if it holds only in runs with several ranks */
        const char *words;
    } all[] = {{POSTS_IN_START, DDP_USAGE, 0, "posts a message in start"},
               {POSTS_IN_WAIT, DDP_USAGE, 0, "posts a message in wait"},
               {POSTS_OUTSIDE, DDP_USAGE, 0, "ddp_post was called outside of an event"},
               {KEEPS_OUTSIDE, DDP_USAGE, 0, "ddp_keep was called outside of an event"},
               {KEEPS_LATE, DDP_USAGE, 0, "state late is declared in backward_end"},
               {KEEPS_NAMELESS, DDP_ARG, 0, "state ''"},
               {KEEPS_NOTHING, DDP_ARG, 0, "state 'nothing' of 0 floats"},
               {KEEPS_FOR_NO_LAYER, DDP_ARG, 0, "layer 2"},
               {FORGETS_LAYER, DDP_USAGE, 0, "a message of layer 0 in step 0 and did not hold it"},
               {FORGETS_IN_WAIT, DDP_USAGE, 0, "did not hold it in its event wait"},
               {FORGETS_IN_SYNC_ALL, DDP_USAGE, 0, "did not hold it at the end of its event sync_all"},
               {FORGETS_MANY, DDP_USAGE, 0, "messages that it did not hold"},
               {HOLDS_TWICE, DDP_USAGE, 0, "was held before, or was never posted"},
               {HOLDS_NONE, DDP_USAGE, 0, "message 12345 was held before, or was never posted"},
               {RETURNS, DDP_FAILED, 0, "backward_end returned 42 and gave no reason"},
               {RETURNS_IN_START, DDP_FAILED, 0, "start returned"},
               {RETURNS_IN_ARRIVED, DDP_FAILED, 0, "arrived returned 7"},
               {COMPLAINS, DDP_FAILED, 0, "the moon is full"},
               {COMPLAINS_AND_GOES_ON, DDP_FAILED, 0, "the moon is full"},
               {NO_MESSAGE, DDP_ARG, 0, "ddp_post: the message and the ticket"},
               {NO_TICKET, DDP_ARG, 0, "the ticket must not be NULL"},
               {NO_ARRAY, DDP_ARG, 0, "is NULL"},
               {NO_LIST, DDP_ARG, 0, "is NULL"},
               {UNKNOWN_VERB, DDP_ARG, 0, "verb 99"},
               {UNKNOWN_PEER, DDP_ARG, 1, "77"},
               {ITSELF_AS_PEER, DDP_ARG, 1, "peer"},
               {UNKNOWN_GROUP, DDP_ARG, 1, "group 3"},
               {UNKNOWN_LINK, DDP_ARG, 1, "link 1"},
               {OTHER_CODING, DDP_ARG, 1, "int8"},
               {ADDS_TO_NOTHING, DDP_ARG, 1, "adds to nothing"},
               {SUMS_BYTES, DDP_ARG, 1, "bytes"},
               {SERVES, DDP_USAGE, 1, "DDP_NEEDS_SERVERS"},
               {AVERAGES_NO_LAYER, DDP_ARG, 0, "layer 2"},
               {HOLDS_NO_LAYER, DDP_ARG, 0, "layer -1"},
               {UPDATES_NO_LAYER, DDP_ARG, 0, "layer 1000000"},
               {AVERAGES_TWICE, DDP_USAGE, 1, "layer 1"},
               {STEPS_IN_EVENT, DDP_USAGE, 0, "backward_end"},
               {WAITS_IN_WAIT, DDP_USAGE, 0, "wait"},
               {COLLECTIVE_IN_EVENT, DDP_USAGE, 0, "backward_end"},
               {NEEDS_FORWARD, DDP_USAGE, 0, "needs ddp_forward_begin"},
               {FORWARD_FORGOTTEN, DDP_USAGE, 0, "was still on its way"}};
    const int cases = (int)(sizeof all / sizeof all[0]);
    int i, world, wrong = 0;

    (void)state;
    assert_int_equal(cases, FAULTS - 1);
    for (i = 0; i < cases; i++)
        for (world = 1; world <= 3; world++) {
            const ddp_strategy_ops ops = crooked(all[i].f);
            ddp_error err;
            now = all[i].f;
            if (world == 1 && all[i].together) continue;
            launch(&ops, world, world == 2 ? DDP_TCP : DDP_THREADS, &err);
            wrong += !is_sentence(&err, all[i].code, "crooked", all[i].words);
        }
    assert_int_equal(wrong, 0);
}

static int reads_beyond(ddp_ctx *d, void *self, int layer)
{
    int count = 1;

    (void)layer;
    if (ddp_parameters_of(d, LAYERS, &count) || count || ddp_gradients_of(d, -1, &count) || count ||
        ddp_group_of(d, 99) || ddp_link_of(d, -5) || ddp_residual_of(d, LAYERS))
        return ddp_complain(d, DDP_FAILED, "there are more layers than were registered");
    return backward_end(d, self, layer);
}

static void layers_that_do_not_exist_are_empty(void **state)
{
    ddp_strategy_ops ops = crooked(NOTHING);
    ddp_error err;

    (void)state;
    now = NOTHING;
    ops.backward_end = reads_beyond;
    if (launch(&ops, 2, DDP_THREADS, &err)) fail_msg("%s", err.msg);
}

static void without_a_fault_it_trains(void **state)
{
    const ddp_strategy_ops ops = crooked(NOTHING);
    ddp_error err;
    int world;

    (void)state;
    now = NOTHING;
    for (world = 1; world <= 3; world++)
        if (launch(&ops, world, world == 2 ? DDP_TCP : DDP_THREADS, &err)) fail_msg("%s", err.msg);
}

/* An invalid table fails before any rank connects. */
static void an_invalid_table_is_an_error(void **state)
{
    static const char *const bad_names[] = {NULL, "", "ssgd", "dreamddp",
                                            "a name that has more than 31 letters"};
    ddp_strategy_ops ops;
    ddp_error err;
    size_t i;

    (void)state;
    now = NOTHING;
    for (i = 0; i < sizeof bad_names / sizeof bad_names[0]; i++) {
        ops = crooked(NOTHING);
        ops.name = bad_names[i];
        launch(&ops, 2, DDP_THREADS, &err);
        expect_sentence(&err, DDP_ARG, bad_names[i] && *bad_names[i] && i > 3 ? bad_names[i] : "own_strategy",
                        "a name of at most 31 characters");
    }
    memset(&ops, 0, sizeof ops);
    ops.name = "crooked";
    launch(&ops, 2, DDP_THREADS, &err);
    expect_sentence(&err, DDP_ARG, "crooked", "declares no events");
    ops.start = start; /* no training events */
    launch(&ops, 1, DDP_TCP, &err);
    expect_sentence(&err, DDP_ARG, "crooked", "declares no events");
    ops = crooked(NOTHING);
    ops.averages = (ddp_averages)9;
    launch(&ops, 2, DDP_THREADS, &err);
    expect_sentence(&err, DDP_ARG, "crooked", "averages 9");
    if (INSTANCES(4) < 4) return; /* sanitizers end a program that allocates this much */
    ops = crooked(NOTHING);
    ops.self_bytes = SIZE_MAX / 2;
    launch(&ops, 2, DDP_THREADS, &err);
    expect_sentence(&err, DDP_MEMORY, "crooked", "out of memory");
}

/* Two programs with different strategies fail before the first step. */
static int join_with(const char *name, int rank, const char *place)
{
    ddp_strategy_ops ops = crooked(NOTHING);
    ddp_config cfg;
    ddp_error err;
    ddp_ctx *d;
    int bad;

    memset(&cfg, 0, sizeof cfg);
    ops.name = name;
    cfg.own_strategy = &ops;
    cfg.world = 2;
    cfg.rank = rank;
    cfg.addr = place;
    cfg.no_env = 1;
    d = ddp_open(&cfg, &err);
    bad = d ? train(d, NULL) : (int)err.code;
    if (d) err = *ddp_last_error(d);
    if (bad != DDP_MISMATCH || !strstr(err.msg, "crooked") || !strstr(err.msg, "straight"))
        fprintf(stderr, "rank %d: %d '%s'\n", rank, bad, err.msg);
    bad = bad == DDP_MISMATCH && strstr(err.msg, "crooked") && strstr(err.msg, "straight") ? 0 : 1;
    ddp_close(d);
    return bad;
}

static void different_strategies_are_a_mismatch(void **state)
{
    char folder[] = "/tmp/dreamddp-own-XXXXXX", place[64];
    int status;
    pid_t child;

    (void)state;
    now = NOTHING;
    assert_non_null(mkdtemp(folder));
    snprintf(place, sizeof place, "file://%s/place", folder);
    child = fork();
    if (child == 0) _exit(join_with("straight", 1, place));
    assert_int_equal(join_with("crooked", 0, place), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    snprintf(place, sizeof place, "%s/place", folder);
    unlink(place);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_fault_ends_the_run_with_one_error),
        cmocka_unit_test(without_a_fault_it_trains),
        cmocka_unit_test(layers_that_do_not_exist_are_empty),
        cmocka_unit_test(an_invalid_table_is_an_error),
        cmocka_unit_test(different_strategies_are_a_mismatch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
