/* Elastic worlds that a worker joins: it takes part from its epoch on, even if some workers are late or die
 * meanwhile. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "member/elastic.h"

#include "member/elastic_lab.h"

static lab_world lab;

static int admitted, tuned;

/* One of 4 workers joins after 6 operations. */
static void come(net_rank *me, void *user)
{
    float x[500];
    ddp_piece piece;
    ddp_message m;
    ddp__epoch_info info;
    int comes = *(int *)user, from = me->rank == comes ? 6 : 0;

    piece.data = x;
    piece.count = 500;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.mean = 1;
    if (me->rank == comes) net_ok(me, ddp__engine_joined(me->engine, 60, &me->err));
    for (int i = from; i < 12; i++) {
        float want = i < 6 ? (float)(6 - comes) * (1.0f / 3) : 1.5f;
        if (i == 6 && me->rank != comes)
            net_ok(me, ddp__engine_admit(me->engine, comes, NULL, NULL, &me->err));
        if (i == 3 && tuned) { /* only the members know this order, and that messages of any size use the ring
                                * */
            static const int order[4] = {2, 0, 3, 1};
            net_ok(me, ddp__engine_ring(me->engine, order, 4, &me->err));
        }
        for (int j = 0; j < 500; j++) x[j] = (float)me->rank;
        net_ok(me, net_do(me, &m));
        for (int j = 0; j < 500 && !me->failure[0]; j++)
            if (x[j] != want) net_fail(me, "operation %d: %g, not %g", i, (double)x[j], (double)want);
    }
    ddp__engine_epoch(me->engine, &info);
    if (info.live != 0xf || info.workers != 4 || info.ballot == 0)
        net_fail(me, "live %lx, %d workers, ballot %lu", (unsigned long)info.live, info.workers,
                 (unsigned long)info.ballot);
    ddp__atomic_add(&admitted, 1);
    while (ddp__atomic_load(&admitted) < 4) ddp__sleep_until(ddp_now() + 0.001);
}

static int coming;

static void newcomer_config(ddp__engine_config *cfg, int rank)
{
    cfg->live = 0xf & ~((uint64_t)1 << coming);
    cfg->joining = rank == coming;
    cfg->deterministic = !tuned;
}

static void joining_worker_takes_part_from_its_epoch_on(void **state)
{
    (void)state;
    for (coming = 0; coming < 4; coming++)
        for (int tcp = 0; tcp < 2; tcp++) {
            net_setup set;
            net_defaults(&set, 4);
            set.tcp = tcp;
            set.cfg.min_world = 1;
            set.tune = newcomer_config;
            admitted = 0;
            lab_run(&lab, &set, come, &coming);
        }
}

static void members_drop_their_ring_order_when_a_worker_joins(void **state)
{
    tuned = 1;
    joining_worker_takes_part_from_its_epoch_on(state);
    tuned = 0;
}

/* The joining worker dies before the others admit it, or one of them dies while they do. */
static void come_and_die(net_rank *me, void *user)
{
    int dies = *(int *)user;
    float x[500];
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    piece.data = x;
    piece.count = 500;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.mean = 1;
    for (int j = 0; j < 500; j++) x[j] = (float)me->rank;
    if (me->rank != coming) net_ok(me, net_do(me, &m));
    if (me->rank == dies) {
        lab.wire[me->rank].engine = me->engine;
        lab_die(&lab.wire[me->rank]);
        return;
    }
    if (me->rank == coming) {
        net_ok(me, ddp__engine_joined(me->engine, 60, &me->err));
    } else {
        s = ddp__engine_admit(me->engine, coming, NULL, NULL, &me->err);
        if (s != DDP_OK && (s != DDP_PEER_LOST || dies != coming)) /* it may die just after that */
            net_fail(me, "admit: status %d, %.200s", (int)s, me->err.msg);
    }
    for (int j = 0; j < 500; j++) x[j] = (float)me->rank;
    net_ok(me, net_do(me, &m));
    for (int j = 0; j < 500 && !me->failure[0]; j++)
        if (x[j] != (float)(6 - dies) * (1.0f / 3)) net_fail(me, "%g", (double)x[j]);
}

static void deaths_during_a_join_lose_no_operation(void **state)
{
    (void)state;
    coming = 3;
    for (int round = 0; round < 3; round++)
        for (int dies = 0; dies < 4; dies++) {
            net_setup set;
            net_defaults(&set, 4);
            set.tcp = round % 2;
            set.cfg.min_world = 1;
            set.cfg.peer_timeout_s = lab_patience(3);
            set.tune = newcomer_config;
            log_to(&set);
            lab_run(&lab, &set, come_and_die, &dies);
        }
}

/* For rank 0 the broadcast ends long before it ends for the others, which admit the worker only then. Rank 2
 * does so much later. The ranks that are ready wait without a new epoch, and no rank is declared lost. */
static void come_late(net_rank *me, void *user)
{
    size_t n = 100000;
    float *x = (float *)calloc(n, sizeof *x);
    ddp_piece piece;
    ddp_message m;
    ddp__epoch_info info;

    (void)user;
    piece.data = x;
    piece.count = n;
    net_message(&m, DDP_BROADCAST, &piece, 1);
    m.peer = 0;
    if (me->rank == coming) {
        net_ok(me, ddp__engine_joined(me->engine, 60, &me->err));
    } else {
        for (size_t j = 0; j < n; j++) x[j] = (float)me->rank;
        net_ok(me, net_do(me, &m));
        if (x[0] != 0 || x[n - 1] != 0) net_fail(me, "%g, %g", (double)x[0], (double)x[n - 1]);
        if (me->rank == 2) ddp__sleep_until(ddp_now() + 1.6); /* longer than peer_timeout_s */
        net_ok(me, ddp__engine_admit(me->engine, coming, NULL, NULL, &me->err));
    }
    ddp__engine_epoch(me->engine, &info);
    if (info.changes != 1 || info.workers != 4)
        net_fail(me, "%ld changes, %d workers", info.changes, info.workers);
    piece.count = 100;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    for (int j = 0; j < 100; j++) x[j] = (float)me->rank;
    net_ok(me, net_do(me, &m));
    if (x[0] != 6) net_fail(me, "%g, not 6", (double)x[0]);
    free(x);
}

static void first_admitting_worker_waits_for_the_others(void **state)
{
    (void)state;
    coming = 3;
    for (int tcp = 0; tcp < 2; tcp++) {
        net_setup set;
        net_defaults(&set, 4);
        set.tcp = tcp;
        set.cfg.min_world = 1;
        set.rate = 4e6;
        set.cfg.peer_timeout_s = 1.2;
        set.tune = newcomer_config;
        log_to(&set);
        lab_run(&lab, &set, come_late, NULL);
    }
}

static int gave_up; /* atomic: ranks whose call has failed */

/* One of the members never admits the worker. */
static void come_never(net_rank *me, void *user)
{
    ddp_status s;

    (void)user;
    if (me->rank == 1) {
        while (ddp__atomic_load(&gave_up) < 3) ddp__sleep_until(ddp_now() + 0.005);
        return;
    }
    if (me->rank == coming)
        s = ddp__engine_joined(me->engine, 10, &me->err);
    else
        s = ddp__engine_admit(me->engine, coming, NULL, NULL, &me->err);
    ddp__atomic_add(&gave_up, 1);
    if (s != DDP_TIMEOUT || !strstr(me->err.msg, "no admitting call from rank 1"))
        net_fail(me, "status %d, %.200s", (int)s, me->err.msg);
}

static void lone_admitting_worker_fails_after_the_time_out(void **state)
{
    net_setup set;

    (void)state;
    coming = 3;
    gave_up = 0;
    net_defaults(&set, 4);
    set.cfg.min_world = 1;
    set.cfg.op_timeout_s = 0.4;
    set.tune = newcomer_config;
    lab_run(&lab, &set, come_never, NULL);
}

typedef struct late_death {
    int dies;
    long after;
    double apart; /* some workers notice it later than others */
    uint64_t seed;
} late_death;

/* A worker dies at any moment of the admission, or of the operation after it. */
static void come_and_die_later(net_rank *me, void *user)
{
    const late_death *c = (const late_death *)user;
    ddp_rng rng = ddp_rng_seed(c->seed, 100 + (uint64_t)me->rank);
    float x[500];
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    piece.data = x;
    piece.count = 500;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.mean = 1;
    for (int j = 0; j < 500; j++) x[j] = (float)me->rank;
    if (me->rank != coming) net_ok(me, net_do(me, &m));
    ddp__sleep_until(ddp_now() + 0.004 * ddp_rng_uniform(&rng));
    if (me->rank == c->dies) {
        lab.wire[me->rank].engine = me->engine;
        lab.wire[me->rank].apart = c->apart;
        ddp__atomic_store(&lab.wire[me->rank].countdown, c->after);
    }
    if (me->rank == coming)
        s = ddp__engine_joined(me->engine, 60, &me->err);
    else
        s = ddp__engine_admit(me->engine, coming, NULL, NULL, &me->err);
    if (me->rank != c->dies && s != DDP_OK && (s != DDP_PEER_LOST || c->dies != coming))
        net_fail(me, "seed %lu: admit: status %d, %.200s", (unsigned long)c->seed, (int)s, me->err.msg);
    if (me->rank == coming && s != DDP_OK) return; /* without an epoch its operations would block */
    for (int j = 0; j < 500; j++) x[j] = (float)me->rank;
    s = net_do(me, &m);
    if (me->rank == c->dies) {
        lab_die(&lab.wire[me->rank]);
        return;
    }
    net_ok(me, s);
    for (int j = 0; j < 500 && !me->failure[0]; j++)
        if (x[j] != (x[0] == 1.5f ? 1.5f : (float)(6 - c->dies) * (1.0f / 3)))
            net_fail(me, "seed %lu: %g", (unsigned long)c->seed, (double)x[j]);
}

static void deaths_during_an_admission_leave_equal_results(void **state)
{
    uint64_t first = 41001 + (uint64_t)env_number("SEED_BASE", 0);
    int count = env_runs(60);

    (void)state;
    coming = 3;
    for (uint64_t seed = first; seed < first + (uint64_t)count; seed++) {
        ddp_rng rng = ddp_rng_seed(seed, 7);
        late_death c;
        net_setup set;
        if (env_number("SEED", (int)seed) != (int)seed) continue;
        net_defaults(&set, 4);
        c.seed = seed;
        c.dies = (int)ddp_rng_below(&rng, 4);
        c.after = (long)ddp_rng_below(&rng, ddp_rng_below(&rng, 2) ? 600 : 3000);
        set.tcp = seed % 2 == 0;
        c.apart = seed % 4 == 0 ? 0.02 : 0;
        set.cfg.min_world = 1;
        set.cfg.peer_timeout_s = lab_patience(3);
        set.cfg.op_timeout_s = lab_patience(15);
        set.tune = newcomer_config;
        log_to(&set);
        lab_run(&lab, &set, come_and_die_later, &c);
        lab_events(1, 0, 0, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joining_worker_takes_part_from_its_epoch_on),
        cmocka_unit_test(members_drop_their_ring_order_when_a_worker_joins),
        cmocka_unit_test(deaths_during_a_join_lose_no_operation),
        cmocka_unit_test(first_admitting_worker_waits_for_the_others),
        cmocka_unit_test(lone_admitting_worker_fails_after_the_time_out),
        cmocka_unit_test(deaths_during_an_admission_leave_equal_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
