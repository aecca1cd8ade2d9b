/* The verbs that a strategy's events may call: every kind of message, its completion, and the arithmetic.
 * Runs with threads, with processes, on the second of two links, and on a device whose memory only the verbs
 * can access. */
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
#include "device/fake_device.h"

enum { N = 90, STEPS = 3, WORLD = 3, LARGE = 5000 };

typedef struct own {
    float *a, *b, *c, *large; /* from ddp_keep */
    long posted, arrived;
    long last; /* ticket of the last message that arrived */
} own;

typedef int (*scenario)(ddp_ctx *d, own *o);

static scenario now;
static int on_device, link_used;
static unsigned traits;

#define CHECK(cond)                                                                                   \
    do {                                                                                              \
        if (!(cond))                                                                                  \
            return ddp_complain(d, DDP_FAILED, "line %d, rank %d: %s", __LINE__, ddp_rank(d), #cond); \
    } while (0)

/* The host address of a pointer. */
static float *at(float *p) { return on_device ? (float *)fake_here(p) : p; }

static float value(int rank, size_t i) { return (float)((rank + 1) * 10 + (int)(i % 7)); }

static void fill(float *x, size_t n, int rank)
{
    size_t i;

    for (i = 0; i < n; i++) at(x)[i] = value(rank, i);
}

static float sum_of(int world, size_t i)
{
    float s = 0;
    int r;

    for (r = 0; r < world; r++) s += value(r, i);
    return s;
}

static ddp_message message(ddp_verb verb, const ddp_piece *from, int count)
{
    ddp_message m;

    memset(&m, 0, sizeof m);
    m.verb = verb;
    m.from = from;
    m.from_count = count;
    m.layer = DDP_NO_LAYER;
    m.link = link_used;
    return m;
}

static int post(ddp_ctx *d, own *o, const ddp_message *m, long *ticket)
{
    o->posted++;
    return ddp_post(d, m, ticket);
}

static int post_and_hold(ddp_ctx *d, own *o, const ddp_message *m)
{
    long ticket;

    return post(d, o, m, &ticket) || ddp_hold(d, ticket, DDP_NO_LAYER);
}

/* ---- collectives ---- */

static int lists(ddp_ctx *d, own *o)
{
    const ddp_piece from[] = {{{o->a}, 3}, {{o->a + 3}, 0}, {{o->a + 3}, N - 3}};
    const ddp_piece to[] = {{{o->b + 40}, N - 40}, {{o->b}, 40}};
    ddp_message m = message(DDP_ALL_REDUCE, from, 3);
    const int world = ddp_world(d);
    size_t i;

    fill(o->a, N, ddp_rank(d));
    m.to = to;
    m.to_count = 2;
    m.scale = 2;
    CHECK(!post_and_hold(d, o, &m));
    for (i = 0; i < N; i++) {
        /* the second list has other pieces in another order */
        CHECK(at(o->b)[(i + 40) % N] == 2 * sum_of(world, i));
        CHECK(at(o->a)[i] == value(ddp_rank(d), i)); /* the input list is unchanged */
    }
    CHECK(!post_and_hold(d, o, (m = message(DDP_ALL_REDUCE, from, 3), m.mean = 1, &m)));
    for (i = 0; i < N; i++) CHECK(at(o->a)[i] == sum_of(world, i) * (1.0f / (float)world)); /* in place */
    return 0;
}

static int adds(ddp_ctx *d, own *o)
{
    const ddp_piece from = {{o->a}, N}, to[] = {{{o->b}, 50}, {{o->b + 50}, N - 50}};
    ddp_message m = message(DDP_ALL_REDUCE, &from, 1);
    size_t i;

    fill(o->a, N, ddp_rank(d));
    CHECK(!ddp_set(d, o->b, N, 0.5f));
    m.to = to;
    m.to_count = 2;
    m.add = 1;
    CHECK(!post_and_hold(d, o, &m));
    for (i = 0; i < N; i++) CHECK(at(o->b)[i] == 0.5f + sum_of(ddp_world(d), i));
    return 0;
}

static int spreads(ddp_ctx *d, own *o)
{
    const int world = ddp_world(d), rank = ddp_rank(d);
    const ddp_piece all = {{o->a}, N};
    ddp_message m = message(DDP_BROADCAST, &all, 1);
    const size_t n = N / (size_t)world;
    size_t i;

    fill(o->a, N, rank);
    m.peer = world - 1;
    CHECK(!post_and_hold(d, o, &m));
    for (i = 0; i < N; i++) CHECK(at(o->a)[i] == value(world - 1, i));
    fill(o->a + (size_t)rank * n, n, rank);
    m = message(DDP_ALL_GATHER, &all, 1);
    CHECK(!post_and_hold(d, o, &m));
    for (i = 0; i < n * (size_t)world; i++) CHECK(at(o->a)[i] == value((int)(i / n), i % n));
    fill(o->a, N, rank);
    m = message(DDP_REDUCE_SCATTER, &all, 1);
    CHECK(!post_and_hold(d, o, &m));
    for (i = 0; i < N; i++) CHECK(at(o->a)[i] == (i / n == (size_t)rank ? sum_of(world, i) : value(rank, i)));
    return 0;
}

static int bytes(ddp_ctx *d, own *o)
{
    const int world = ddp_world(d), rank = ddp_rank(d);
    unsigned char *text = (unsigned char *)o->a;
    ddp_piece p;
    ddp_message m = message(DDP_BROADCAST, &p, 1);
    size_t i;

    for (i = 0; i < 4 * N; i++) ((unsigned char *)at(o->a))[i] = (unsigned char)(rank * 50 + (int)i);
    p.bytes = text + 1;
    p.count = 13; /* not a multiple of four */
    m.bytes = 1;
    m.peer = 1 % world;
    CHECK(!post_and_hold(d, o, &m));
    for (i = 0; i < 4 * N; i++)
        CHECK(((unsigned char *)at(o->a))[i] ==
              (unsigned char)((i > 0 && i < 14 ? m.peer : rank) * 50 + (int)i));
    p.bytes = text;
    p.count = 5 * (size_t)world;
    m = message(DDP_ALL_GATHER, &p, 1);
    m.bytes = 1;
    for (i = 0; i < 5; i++) ((unsigned char *)at(o->a))[5 * (size_t)rank + i] = (unsigned char)(200 + rank);
    CHECK(!post_and_hold(d, o, &m));
    for (i = 0; i < 5 * (size_t)world; i++)
        CHECK(((unsigned char *)at(o->a))[i] == (unsigned char)(200 + (int)i / 5));
    return 0;
}

static int one_after_the_other(ddp_ctx *d, own *o)
{
    const ddp_piece a = {{o->a}, N}, b = {{o->b}, N};
    ddp_message first = message(DDP_ALL_REDUCE, &a, 1), second = first;
    long one, two;
    size_t i;

    fill(o->a, N, ddp_rank(d));
    first.to = &b;
    first.to_count = 1;
    second.from = &b;
    second.mean = 1;
    CHECK(!post(d, o, &first, &one));
    second.after = one + 1; /* it sends what the first message receives */
    CHECK(!post(d, o, &second, &two) && !ddp_hold(d, one, DDP_NO_LAYER) && !ddp_hold(d, two, DDP_NO_LAYER));
    for (i = 0; i < N; i++) CHECK(fabsf(at(o->b)[i] - sum_of(ddp_world(d), i)) < 1e-3f);
    second.after = one + 1; /* which is complete */
    CHECK(!post_and_hold(d, o, &second));
    return 0;
}

/* ---- point-to-point messages ---- */

static int round_the_ring(ddp_ctx *d, own *o)
{
    const int world = ddp_world(d), rank = ddp_rank(d), next = (rank + 1) % world,
              before = (rank + world - 1) % world;
    const ddp_piece a = {{o->a}, N}, b = {{o->b}, N}, c = {{o->c}, N};
    ddp_message send = message(DDP_SEND, &a, 1), receive = message(DDP_RECEIVE, &b, 1);
    long sent, got;
    size_t i;

    fill(o->a, N, rank);
    send.peer = next;
    receive.peer = before;
    CHECK(!post(d, o, &receive, &got) && !post(d, o, &send, &sent));
    CHECK(!ddp_hold_input(d, sent) && !ddp_set(d, o->a, N, -1)); /* the input was copied */
    CHECK(!ddp_hold(d, got, DDP_NO_LAYER) && !ddp_hold(d, sent, DDP_NO_LAYER));
    for (i = 0; i < N; i++) CHECK(at(o->b)[i] == value(before, i) && at(o->a)[i] == -1);
    CHECK(!ddp_set(d, o->c, N, 1000));
    receive.to = &c;
    receive.to_count = 1;
    receive.add = 1; /* b is scratch memory */
    fill(o->a, N, rank);
    CHECK(!post(d, o, &receive, &got) && !post(d, o, &send, &sent));
    CHECK(!ddp_hold(d, got, DDP_NO_LAYER) && !ddp_hold(d, sent, DDP_NO_LAYER));
    for (i = 0; i < N; i++) CHECK(at(o->c)[i] == 1000 + value(before, i));
    receive = message(DDP_RECEIVE, NULL, 0);
    receive.peer = before;
    receive.to = &b;
    receive.to_count = 1; /* uses only `to` */
    CHECK(!ddp_set(d, o->b, N, 0) && !post(d, o, &receive, &got) && !post(d, o, &send, &sent));
    CHECK(!ddp_hold(d, got, DDP_NO_LAYER) && !ddp_hold(d, sent, DDP_NO_LAYER) && ddp_is_done(d, got));
    for (i = 0; i < N; i++) CHECK(at(o->b)[i] == value(before, i));
    return 0;
}

/* Rank 0 receives from the first rank that sends. */
static int from_any(ddp_ctx *d, own *o)
{
    const int world = ddp_world(d), rank = ddp_rank(d);
    const ddp_piece p = {{rank ? o->a : o->b}, 20}, one = {{o->c}, 1};
    ddp_message all = message(DDP_ALL_REDUCE, &one, 1); /* a barrier: no rank is a step ahead */
    ddp_received got;
    ddp_message m = message(rank ? DDP_SEND : DDP_RECEIVE, &p, 1);
    unsigned seen = 1;
    size_t i;
    int k;

    fill(o->a, N, rank);
    m.peer = rank ? 0 : DDP_ANY;
    if (rank) return post_and_hold(d, o, &m) || post_and_hold(d, o, &all);
    m.received = &got;
    for (k = 1; k < world; k++) {
        memset(&got, 0, sizeof got);
        CHECK(!post_and_hold(d, o, &m));
        CHECK(got.verb == DDP_SEND && got.peer > 0 && got.peer < world && got.count == 20 &&
              !(seen >> got.peer & 1));
        seen |= 1u << got.peer;
        for (i = 0; i < 20; i++) CHECK(at(o->b)[i] == value(got.peer, i));
    }
    return post_and_hold(d, o, &all);
}

/* Rank 0 serves: it adds up what is pushed, and answers those who pull. */
static int serves(ddp_ctx *d, own *o)
{
    const int world = ddp_world(d), rank = ddp_rank(d);
    const ddp_piece a = {{o->a}, 30}, b = {{o->b}, 30}, c = {{o->c}, 30};
    ddp_message m = message(rank ? DDP_PUSH : DDP_SERVE, rank ? &a : &b, 1), answer;
    ddp_received got;
    int k, pulled[WORLD], pulls = 0;
    size_t i;

    fill(o->a, N, rank);
    m.peer = rank ? 0 : DDP_ANY;
    if (rank) {
        CHECK(!post_and_hold(d, o, &m));
        m = message(DDP_PULL, &c, 1);
        CHECK(!post_and_hold(d, o, &m));
        for (i = 0; i < 30; i++) CHECK(at(o->c)[i] == sum_of(world, i));
        return 0;
    }
    CHECK(!ddp_copy(d, o->c, o->a, 30));
    m.received = &got;
    for (k = 0; k < 2 * (world - 1); k++) {
        memset(&got, 0, sizeof got);
        CHECK(!post_and_hold(d, o, &m) && got.peer > 0 && got.peer < world);
        CHECK(got.verb == DDP_PUSH || got.verb == DDP_PULL);
        if (got.verb == DDP_PUSH)
            CHECK(!ddp_axpy(d, o->c, o->b, 30, 1));
        else
            pulled[pulls++] = got.peer;
    }
    CHECK(pulls == world - 1);
    for (k = 0; k < pulls; k++) { /* when all have pushed */
        answer = message(DDP_ANSWER, &c, 1);
        answer.peer = pulled[k];
        CHECK(!post_and_hold(d, o, &answer));
    }
    return 0;
}

/* A small message overtakes a large one of the same pair; each meets its own. */
static int urgent(ddp_ctx *d, own *o)
{
    const int rank = ddp_rank(d);
    const ddp_piece large = {{o->large}, LARGE}, small = {{rank ? o->b : o->a}, 5};
    ddp_message much = message(rank ? DDP_RECEIVE : DDP_SEND, &large, 1), little = much;
    long slow, quick;
    size_t i;

    if (rank > 1) return 0;
    much.peer = little.peer = 1 - rank;
    little.from = &small;
    little.priority = -1;
    CHECK(!ddp_set(d, o->large, LARGE, rank ? 0 : 7) && !ddp_set(d, o->b, 5, 0));
    fill(o->a, 5, rank);
    CHECK(!post(d, o, &much, &slow) && !post(d, o, &little, &quick));
    CHECK(!ddp_hold(d, quick, DDP_NO_LAYER));
    for (i = 0; i < 5 && rank; i++) CHECK(at(o->b)[i] == value(0, i));
    CHECK(!ddp_hold(d, slow, DDP_NO_LAYER) && at(o->large)[0] == 7 && at(o->large)[LARGE - 1] == 7);
    return 0;
}

/* ---- arithmetic, updates ---- */

static int arithmetic(ddp_ctx *d, own *o)
{
    double squares;
    size_t i;

    fill(o->a, N, 0);
    CHECK(!ddp_copy(d, o->b, o->a, N) && !ddp_axpy(d, o->b, o->a, N, 2) && !ddp_scale(d, o->b, N, 0.5f));
    for (i = 0; i < N; i++) CHECK(at(o->b)[i] == 1.5f * value(0, i));
    CHECK(!ddp_set(d, o->b + 1, N - 2, 2) && at(o->b)[0] == 15 && at(o->b)[N - 1] == 1.5f * value(0, N - 1));
    CHECK(!ddp_norm2(d, o->b + 1, N - 2, &squares) && squares == 4.0 * (N - 2));
    return 0;
}

static int updates(ddp_ctx *d, own *o)
{
    int count;
    const ddp_piece *w = ddp_parameters_of(d, 0, &count), *g = ddp_gradients_of(d, 0, &count);
    size_t i;

    CHECK(count == 1 && w[0].count == N && g[0].count == N && ddp_layers(d) == 1 && ddp_group_of(d, 0) == 0);
    CHECK(!ddp_copy(d, o->a, w[0].data, N) && !ddp_set(d, o->b, N, 2));
    CHECK(!ddp_set(d, g[0].data, N, 5) && !ddp_update_layer(d, 0, o->b)); /* from an array: gradients stay */
    for (i = 0; i < N; i++)
        CHECK(at(w[0].data)[i] == at(o->a)[i] - 2 && at(g[0].data)[i] == 5 && at(o->b)[i] == 2);
    CHECK(!ddp_update_layer(d, 0, NULL)); /* with its own, which are zeroed */
    for (i = 0; i < N; i++) CHECK(at(w[0].data)[i] == at(o->a)[i] - 7 && at(g[0].data)[i] == 0);
    CHECK(ddp_rate(d) == 1 && !ddp_update_late(d, 0, o->b, 3) && ddp_rate(d) == 1); /* at a rate of its own
                                                                                       step */
    for (i = 0; i < N; i++) CHECK(at(w[0].data)[i] == at(o->a)[i] - 13);
    return ddp_average_exact(d, 0);
}

/* ---- a strategy around them ---- */

static int start(ddp_ctx *d, void *self)
{
    own *o = (own *)self;
    size_t i;

    o->last = -1;
    o->a = ddp_keep(d, 0, "a", N, 0);
    o->b = ddp_keep(d, 0, "b", N, 0);
    o->c = ddp_keep(d, DDP_NO_LAYER, "c", N, 1);
    o->large = ddp_keep(d, DDP_NO_LAYER, "large", LARGE, 0);
    if (!o->a || !o->b || !o->c || !o->large) return DDP_MEMORY;
    for (i = 0; i < N; i++) CHECK(at(o->a)[i] == 0 && at(o->c)[i] == 0);
    return 0;
}

static int arrived(ddp_ctx *d, void *self, long ticket)
{
    own *o = (own *)self;

    CHECK(ticket >= 0 && ticket != o->last);
    o->last = ticket;
    o->arrived++;
    return 0;
}

static int step_end(ddp_ctx *d, void *self, int forward)
{
    own *o = (own *)self;

    (void)forward;
    CHECK(!now(d, o));
    CHECK(o->arrived == o->posted); /* one event per message */
    return 0;
}

static int train(ddp_ctx *d, void *user)
{
    float *w = (float *)calloc(2 * N, sizeof *w);
    ddp_optimizer sgd = ddp_sgd(1, 0);
    ddp_layer layer;
    int bad, step;

    (void)user;
    memset(&layer, 0, sizeof layer);
    layer.params = on_device ? (float *)fake_away(w) : w;
    layer.grads = on_device ? (float *)fake_away(w + N) : w + N;
    layer.count = N;
    bad = ddp_add_layer(d, &layer) || ddp_set_optimizer(d, &sgd);
    for (step = 0; step < STEPS && !bad; step++) bad = ddp_backward_end(d, 0) || ddp_step_end(d);
    if (!bad) bad = ddp_sync_all(d);
    free(w);
    return bad ? (int)ddp_last_error(d)->code : 0;
}

static void try_with(const ddp_config *given, scenario s)
{
    ddp_config cfg = *given;
    ddp_strategy_ops ops;
    ddp_error err;

    memset(&ops, 0, sizeof ops);
    ops.name = "verbs";
    ops.averages = DDP_AVERAGES_PARAMETERS;
    ops.traits = DDP_WITH_DEVICE | traits;
    ops.self_bytes = sizeof(own);
    ops.start = start;
    ops.step_end = step_end;
    ops.arrived = arrived;
    now = s;
    cfg.own_strategy = &ops;
    if (traits & DDP_NEEDS_SERVERS) cfg.server.count = DDP_SERVERS_COLOCATED;
    cfg.no_env = 1;
    if (ddp_launch(&cfg, train, NULL, &err)) fail_msg("%s", err.msg);
}

/* With threads and processes, two and three ranks; over the second of two links; on a device. */
static void try_everywhere(scenario s)
{
    const ddp_backend b = fake_backend();
    ddp_config cfg;

    memset(&cfg, 0, sizeof cfg);
    for (cfg.world = 2; cfg.world <= WORLD; cfg.world++)
        for (cfg.transport = DDP_THREADS; cfg.transport <= DDP_TCP;
             cfg.transport = (ddp_transport)(cfg.transport + 1))
            try_with(&cfg, s);
    cfg.world = WORLD;
    cfg.transport = DDP_THREADS;
    cfg.network.net2 = "1000mbit,1ms";
    link_used = 1;
    try_with(&cfg, s);
    link_used = 0;
    cfg.network.net2 = NULL;
    cfg.backend = &b;
    on_device = 1;
    for (cfg.world = 2; cfg.world <= WORLD; cfg.world++)
        for (cfg.transport = DDP_THREADS; cfg.transport <= DDP_TCP;
             cfg.transport = (ddp_transport)(cfg.transport + 1))
            try_with(&cfg, s);
    on_device = 0;
    assert_int_equal(fake.alive + fake_nets().joined, 0);
}

#define EVERYWHERE(name, s)        \
    static void name(void **state) \
    {                              \
        (void)state;               \
        try_everywhere(s);         \
    }

EVERYWHERE(messages_are_copied_between_lists, lists)
EVERYWHERE(received_values_can_be_added, adds)
EVERYWHERE(broadcast_and_gather_deliver_all_values, spreads)
EVERYWHERE(bytes_can_be_sent, bytes)
EVERYWHERE(a_message_waits_for_the_one_it_names, one_after_the_other)
EVERYWHERE(input_can_be_changed_after_hold_input, round_the_ring)
EVERYWHERE(receive_from_any_takes_the_first_message, from_any)
EVERYWHERE(a_small_message_overtakes_a_large_one, urgent)
EVERYWHERE(arithmetic_works_on_a_device, arithmetic)
EVERYWHERE(a_layer_is_updated_from_an_array_or_its_gradient, updates)

static void a_rank_serves_pushes_and_pulls(void **state)
{
    (void)state;
    traits = DDP_NEEDS_SERVERS;
    try_everywhere(serves);
    traits = 0;
}

static void with_one_rank_a_sum_is_its_input(void **state)
{
    static const scenario all[] = {lists, adds, spreads, one_after_the_other, arithmetic, updates};
    ddp_config cfg;
    size_t i;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.world = 1;
    for (i = 0; i < sizeof all / sizeof all[0]; i++) try_with(&cfg, all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_copied_between_lists),
        cmocka_unit_test(received_values_can_be_added),
        cmocka_unit_test(broadcast_and_gather_deliver_all_values),
        cmocka_unit_test(bytes_can_be_sent),
        cmocka_unit_test(a_message_waits_for_the_one_it_names),
        cmocka_unit_test(input_can_be_changed_after_hold_input),
        cmocka_unit_test(receive_from_any_takes_the_first_message),
        cmocka_unit_test(a_small_message_overtakes_a_large_one),
        cmocka_unit_test(arithmetic_works_on_a_device),
        cmocka_unit_test(a_layer_is_updated_from_an_array_or_its_gradient),
        cmocka_unit_test(a_rank_serves_pushes_and_pulls),
        cmocka_unit_test(with_one_rank_a_sum_is_its_input),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
