/* [long] Errors that end a worker of an elastic world: loss of the quorum, cut links, and workers that leave
 * in order. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
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

#include "member/elastic.h"

#include "member/elastic_lab.h"
#include "wire/beside.h"

static lab_world lab;

typedef struct ending {
    int world, min_world;
    unsigned dies;    /* workers that die at once */
    int cut_a, cut_b; /* a link without bytes in either direction, or -1 for none */
    unsigned fails;   /* workers that end with DDP_PEER_LOST */
    const char *says;
    unsigned apart; /* no byte passes between these workers and the others */
    int closes;     /* 1 if a dying worker closes its streams, as the death of a process does */
} ending;

static int arrived, ended;

static void end_or_go_on(net_rank *me, void *user)
{
    const ending *c = (const ending *)user;
    float x[100];
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    piece.data = x;
    piece.count = 100;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.mean = 1;
    for (int i = 0; i < 100; i++) x[i] = (float)me->rank;
    net_ok(me, net_do(me, &m));
    ddp__atomic_add(&arrived, 1); /* all have completed this operation when the first worker dies */
    while (ddp__atomic_load(&arrived) < c->world) ddp__sleep_until(ddp_now() + 0.001);
    if (c->dies >> me->rank & 1) { /* all at one moment: one by one, each would leave a quorum */
        for (int r = 0; r < c->world; r++)
            if (c->dies >> r & 1) ddp__atomic_store(&lab.dead[r], 1);
        if (c->closes) {
            lab.wire[me->rank].engine = me->engine;
            lab_die(&lab.wire[me->rank]);
        }
        ddp__engine_abort(me->engine, DDP_ABORTED, "dead");
        while (ddp__atomic_load(&ended) + ddp__bit_count(c->dies) < c->world)
            ddp__sleep_until(ddp_now() + 0.01); /* its streams stay as they are */
        return;
    }
    if (me->rank == c->cut_a || me->rank == c->cut_b) {
        int other = c->cut_a + c->cut_b - me->rank;
        ddp__atomic_store(&lab.cut[me->rank][other], 1);
    }
    for (int r = 0; c->apart && r < c->world; r++)
        if ((c->apart >> r & 1) != (c->apart >> me->rank & 1)) ddp__atomic_store(&lab.cut[me->rank][r], 1);
    s = net_do(me, &m);
    ddp__atomic_add(&ended, 1);
    if (!(c->fails >> me->rank & 1)) {
        net_ok(me, s);
    } else if (s != DDP_PEER_LOST || !strstr(me->err.msg, c->says)) {
        net_fail(me, "status %d, \"%.200s\" lacks \"%s\"", (int)s, me->err.msg, c->says);
    } else if (!strstr(me->err.msg, "(rank ") && !strstr(me->err.msg, "all-reduce of layer ")) {
        net_fail(me, "the error names no operation: \"%.400s\"", me->err.msg);
    }
    if (c->fails == 0) ddp__sleep_until(ddp_now() + 0.1);
}

static const char *try_ending(const ending *c, net_setup *set)
{
    const char *failure = "";

    set->cfg.min_world = c->min_world;
    log_to(set);
    for (int k = 0; k < TRIES && (k == 0 || failure[0]); k++) {
        ending again = *c;
        arrived = ended = 0;
        failure = lab_try(&lab, set, end_or_go_on, &again);
    }
    return failure;
}

/* A partitioned worker fails after peer_timeout_s. The higher of two workers fails as soon as the
 * connection ends, long before that time-out. */
static const ending cut_off[] = {
    {3, 1, 0, -1, -1, 0x4u, "can continue without this worker (rank 2)", 0x4u, 0},
    {3, 1, 0, -1, -1, 0x1u, "can continue without this worker (rank 0)", 0x1u, 0},
    {5, 1, 0, -1, -1, 0x18u, "can continue without this worker (rank ", 0x18u, 0},
    {4, 1, 0, -1, -1, 0xfu, "; 2 of 4 workers are left, a quorum of 3 is needed", 0xcu, 0},
    {2, 1, 0x1u, -1, -1, 0x2u, "of two workers, only rank 0 may continue alone", 0, 1},
};

static const char *one_cut_off(int i)
{
    const ending *c = &cut_off[i];
    net_setup set;

    net_defaults(&set, c->world);
    set.tcp = i % 2 == 0;
    set.cfg.peer_timeout_s = c->closes ? 60 : 3;
    return try_ending(c, &set);
}

static void partitioned_worker_fails_after_the_peer_timeout(void **state)
{
    (void)state;
    run_beside((int)(sizeof cut_off / sizeof cut_off[0]), one_cut_off);
}

static const ending may_not[] = {
    {4, 1, 0xcu, -1, -1, 0x3u, "2 of 4 workers are left, a quorum of 3 is needed", 0, 0},
    {5, 4, 0x18u, -1, -1, 0x7u, "3 of 5 workers are left, min_world is 4", 0, 0},
    {2, 1, 0x2u, -1, -1, 0, "", 0, 0},
    {2, 1, 0x1u, -1, -1, 0x2u, "of two workers, only rank 0 may continue alone", 0, 0},
    {3, 3, 0x4u, -1, -1, 0x3u, "2 of 3 workers are left, min_world is 3", 0, 0},
    {3, 1, 0, 0, 2, 0x4u, "the other workers continue without this one (rank 2)", 0, 0},
    {4, 1, 0, 0, 1, 0x2u, "the other workers continue without this one (rank 1)", 0, 0},
    {4, 1, 0x1u, 1, 2, 0xeu, "workers are left, a quorum of 3 is needed", 0, 0},
};

/* Each over threads, and every third over TCP too. */
static const char *one_that_may_not(int number)
{
    const ending *c = &may_not[number / 2];
    net_setup set;

    if (number % 2 && number / 2 % 3) return "";
    net_defaults(&set, c->world);
    set.tcp = number % 2;
    set.cfg.peer_timeout_s = 3;
    return try_ending(c, &set);
}

static void worker_without_quorum_fails_with_the_reason(void **state)
{
    (void)state;
    run_beside(2 * (int)(sizeof may_not / sizeof may_not[0]), one_that_may_not);
}

/* Rank 2 ends its work early and in order; the others need nothing from it. */
static void leave_early(net_rank *me, void *user)
{
    float x[1000];
    ddp_piece piece;
    ddp_message m;
    int steps = me->rank == 2 ? 5 : 12;

    (void)user;
    piece.data = x;
    piece.count = 1000;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.mean = 1;
    for (int i = 0; i < steps; i++) {
        float want = i < 5 ? 1 : 0.5f;
        for (int j = 0; j < 1000; j++) x[j] = (float)me->rank;
        net_ok(me, net_do(me, &m));
        for (int j = 0; j < 1000 && !me->failure[0]; j++)
            if (x[j] != want) net_fail(me, "step %d: %g, not %g", i, (double)x[j], (double)want);
    }
}

static void worker_that_leaves_in_order_delays_no_operation(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        net_setup set;
        net_defaults(&set, 3);
        set.tcp = tcp;
        set.cfg.min_world = 1;
        lab_run(&lab, &set, leave_early, NULL);
    }
}

/* Rank 0 sends 3 MB to rank 1 over 10 Mbit/s, most of it in one operation, and nothing to rank 2 for longer
 * than the peer time-out. Its heartbeats overtake the average that fills its link. */
static void send_for_long(net_rank *me, void *user)
{
    enum { MANY = 750000 };
    float *x = (float *)calloc(MANY, sizeof *x);
    double begin = ddp_now();
    ddp__epoch_info info;
    ddp_piece piece;
    ddp_message m;

    piece.data = x;
    piece.count = MANY;
    net_message(&m, me->rank == 0 ? DDP_SEND : DDP_RECEIVE, &piece, 1);
    m.peer = 1 - me->rank;
    if (me->rank < 2) net_ok(me, net_do(me, &m));
    piece.count = 1000;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    net_ok(me, net_do(me, &m));
    ddp__engine_epoch(me->engine, &info);
    if (info.changes) net_fail(me, "%d changes of the world", (int)info.changes);
    if (me->rank == 0) *(double *)user = ddp_now() - begin;
    free(x);
}

static const char *one_full_link(int tcp)
{
    static char text[100];
    const char *failure;
    double took = 0;
    net_setup set;

    net_defaults(&set, 3);
    set.tcp = tcp;
    set.cfg.min_world = 1;
    set.rate = 10e6 / 8;
    set.delay_s = 0.02;
    set.cfg.peer_timeout_s = lab_patience(1.2);
    failure = lab_try(&lab, &set, send_for_long, &took);
    if (failure[0]) return failure;
    if (took < 2.3) snprintf(text, sizeof text, "3 MB over 10 Mbit/s in %.2f s", took);
    return text;
}

static void heartbeats_overtake_data_on_a_full_link(void **state)
{
    (void)state;
    run_beside(2, one_full_link);
}

/* ---- memory ---- */

static void look_at_memory(net_rank *me, void *user)
{
    static float x[8][5000];
    int elastic = *(int *)user;
    ddp__net_stats before, after;
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    ddp__engine_stats(me->engine, &before);
    piece.data = x[me->rank];
    piece.count = 5000;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    s = net_do(me, &m);
    ddp__engine_stats(me->engine, &after);
    if (elastic == 2) {
        if (s != DDP_ARG || !strstr(me->err.msg, "raise elastic_bytes"))
            net_fail(me, "status %d, %.200s", (int)s, me->err.msg);
        return;
    }
    net_ok(me, s);
    if (!elastic && (before.kept_bytes || after.kept_bytes))
        net_fail(me, "%lu bytes", (unsigned long)after.kept_bytes);
    if (elastic && (after.kept_bytes < 20000 || after.staging_bytes < after.kept_bytes ||
                    after.kept_bytes > before.kept_bytes + ((size_t)1 << 20)))
        net_fail(me, "%lu, %lu bytes", (unsigned long)before.kept_bytes, (unsigned long)after.kept_bytes);
}

static void elastic_memory_is_reported_and_bounded(void **state)
{
    (void)state;
    for (int elastic = 0; elastic < 3; elastic++) {
        net_setup set;
        net_defaults(&set, 3);
        set.cfg.min_world = elastic > 0;
        if (elastic == 2) set.cfg.kept_bytes = 10000;
        net_run(&set, look_at_memory, &elastic);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partitioned_worker_fails_after_the_peer_timeout),
        cmocka_unit_test(worker_without_quorum_fails_with_the_reason),
        cmocka_unit_test(worker_that_leaves_in_order_delays_no_operation),
        cmocka_unit_test(heartbeats_overtake_data_on_a_full_link),
        cmocka_unit_test(elastic_memory_is_reported_and_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
