/* [asan, test-all: slow] Every strategy that supports elastic worlds, with each wire that it supports:
 * workers are killed at any moment of a training, and the survivors end with equal parameters. Ranks are
 * processes over TCP. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/time.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "strategy/strategy_lab.h"

enum { STEPS = 60 };

static ddp_optimizer gently; /* slow enough that outer steps stay finite with any coding */
static int victims, victim[2], at_step[2], microseconds[2]; /* the victims, and the time from the start of a
                                                             * step to their death */

static int number_of(const char *name, int otherwise)
{
    return getenv(name) ? atoi(getenv(name)) : otherwise;
}

static void dies(const lab *x, int rank, int step)
{
    (void)x;
    for (int v = 0; v < victims; v++) {
        struct itimerval t;
        if (rank != victim[v] || step != at_step[v]) continue;
        memset(&t, 0, sizeof t);
        t.it_value.tv_usec = microseconds[v];
        setitimer(ITIMER_REAL, &t, NULL); /* SIGALRM ends the process */
    }
}

/* A wire that the traits allow. */
static ddp_wire some_wire(ddp_rng *r, unsigned traits)
{
    static const struct {
        unsigned trait;
        ddp_wire wire;
    } wires[] = {{DDP_WITH_BF16, DDP_WIRE_BF16},
                 {DDP_WITH_INT8, DDP_WIRE_INT8},
                 {DDP_WITH_INT4, DDP_WIRE_INT4},
                 {DDP_WITH_TOPK, DDP_WIRE_TOPK}};
    const uint64_t k = ddp_rng_below(r, 8);

    return k < 4 && (traits & wires[k].trait) ? wires[k].wire : DDP_WIRE_DEFAULT;
}

/* 3 to 5 workers, of which a quorum survives; servers, if the strategy needs them, all survive. */
static void make(lab *x, ddp_rng *r, ddp_strategy s)
{
    const unsigned traits = ddp_strategy_traits(s);
    const int workers = 3 + (int)ddp_rng_below(r, 3),
              servers = traits & DDP_NEEDS_SERVERS ? 1 + (int)ddp_rng_below(r, 2) : 0;

    lab_new(x, workers + servers, s, 2 + (int)ddp_rng_below(r, 3));
    x->cfg.server.count = servers;
    x->cfg.elastic.min_world = 1;
    x->cfg.transport = DDP_TCP;
    x->cfg.deterministic = s != DDP_DEFT && ddp_rng_below(r, 2); /* deft's plan from FLOPs takes seconds */
    x->cfg.wire = some_wire(r, traits);
    x->cfg.server.staleness = s == DDP_SSP ? 2 : 0;
    x->cfg.deft.update_frequency = s == DDP_DEFT ? 0.5 : 0;
    if (traits & DDP_WITH_INT4)
        x->cfg.outer.overlap = (ddp_overlap)(1 + ddp_rng_below(r, 3)); /* strategies with an outer optimizer
                                                                        * */
    x->model = ddp_rng_below(r, 2) ? LAB_TINY : LAB_ODD;
    gently = ddp_rng_below(r, 2) ? ddp_sgd(0.003f, 0.9f) : ddp_adamw(0.001f, 0.9f, 0.999f, 1e-8f, 0.1f);
    x->optimizer = &gently;
    x->forward_hooks = traits & DDP_NEEDS_FORWARD || ddp_rng_below(r, 2);
    x->steps = STEPS;
    x->before_step = dies;
    victims = workers == 5 ? 1 + (int)ddp_rng_below(r, 2) : 1;
    victim[0] = (int)ddp_rng_below(r, (uint64_t)workers);
    victim[1] = (victim[0] + 1 + (int)ddp_rng_below(r, (uint64_t)workers - 1)) % workers;
    for (int v = 0; v < 2; v++) {
        at_step[v] = (int)ddp_rng_below(r, STEPS - 10);
        microseconds[v] = 1 + (int)ddp_rng_below(r, 4000);
    }
}

static int lives(int rank) { return rank != victim[0] && (victims < 2 || rank != victim[1]); }

static void one_run(int seed, ddp_strategy s)
{
    ddp_rng r = ddp_rng_seed((uint64_t)seed, 0);
    ddp_error err;
    int first = 0;
    lab x;

    make(&x, &r, s);
    if (ddp_launch(&x.cfg, lab_worker, &x, &err))
        fail_msg("seed %d, %s: %s", seed, ddp_strategy_name(s), err.msg);
    while (!lives(first)) first++;
    for (int rank = first; rank < x.cfg.world - x.cfg.server.count; rank++)
        for (int i = 0; lives(rank) && i < LAB_VALUES; i++)
            if (x.params[rank][i] != x.params[first][i])
                fail_msg("seed %d, %s: value %d is %g on rank %d, %g on rank %d", seed, ddp_strategy_name(s),
                         i, (double)x.params[first][i], first, (double)x.params[rank][i], rank);
    lab_free(&x);
}

/* ELASTIC=N runs; SEED_BASE and SEED as in test_elastic.c. The seed chooses the strategy. */
static void survivors_agree_after_deaths_in_every_strategy(void **state)
{
    const int first = 70001 + number_of("SEED_BASE", 0);
    ddp_strategy takes[64];
    int n = 0;

    (void)state;
    for (int i = 0; ddp_strategy_number(i) && n < 64; i++)
        if (ddp_strategy_traits(ddp_strategy_number(i)) & DDP_WITH_ELASTIC)
            takes[n++] = ddp_strategy_number(i);
    assert_true(n >= 17);
    for (int seed = first; seed < first + number_of("ELASTIC", n); seed++) {
        if (number_of("SEED", seed) != seed) continue;
        one_run(seed, takes[seed % n]);
        if (getenv("SOAK")) {
            printf("events %d 0 0 0 %s\n", victims, ddp_strategy_name(takes[seed % n]));
            fflush(stdout);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_agree_after_deaths_in_every_strategy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
