/* The start of a session and ddp_sync_all compare hashes: every difference is found, only arrays that differ
 * are sent, and nothing is sent if all are equal. */
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

enum { WORLD = 4, LAYERS = 6, VALUES = 40000 };

/* A difference of rank `rank` in bit `bit` of value `at` of a layer, before the start (begin 1) or before
 * ddp_sync_all. */
typedef struct difference {
    int rank, layer, at, bit, begin;
} difference;

typedef struct model {
    float w[LAYERS][VALUES], g[LAYERS][VALUES];
} model;

static uint32_t bits_of(const float *x)
{
    uint32_t b;

    memcpy(&b, x, sizeof b);
    return b;
}

static void flip(float *x, int bit)
{
    const uint32_t b = bits_of(x) ^ (uint32_t)1 << bit;

    memcpy(x, &b, sizeof b);
}

/* Value `at` of a layer before the difference: also -0, a NaN and a denormal, of which each bit counts. */
static float value_of(int layer, int at)
{
    static const uint32_t special[] = {0x80000000u, 0x7fc00001u, 1u, 0u};
    float x = (float)((layer * 31 + at * 7) % 1009) / 64.0f;

    if (at < 4) memcpy(&x, &special[at], sizeof x);
    return x;
}

static void fill(model *m, const ddp_ctx *d, const difference *x, int begin)
{
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < VALUES; i++) m->w[l][i] = value_of(l, i);
    if (x && x->begin == begin && ddp_rank(d) == x->rank) flip(&m->w[x->layer][x->at], x->bit);
}

/* Returns the bytes of values that this rank has sent: more than heartbeats, hashes and settings. */
static double sent(ddp_ctx *d)
{
    ddp_stats s;

    ddp_get_stats(d, &s);
    return (double)s.bytes_sent;
}

/* Checks that all ranks have bit-identical parameters. */
static int are_equal(ddp_ctx *d, const model *m)
{
    uint64_t hash[WORLD], own = ddp__hash(DDP__HASH_START, m->w, sizeof m->w);
    ddp_error err;

    hash[ddp_rank(d)] = own;
    if (ddp__gather_words(d, 0, hash, sizeof *hash, &err)) return 0;
    for (int r = 0; r < WORLD; r++)
        if (hash[r] != own) return 0;
    return 1;
}

static int starts(ddp_ctx *d, void *user)
{
    const difference *x = (const difference *)user;
    const double layer = VALUES * sizeof(float);
    model *m = (model *)calloc(1, sizeof *m);
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    char name[32];
    double before, most;
    int bad = 0;

    fill(m, d, x, 1);
    for (int l = 0; l < LAYERS && !bad; l++) {
        snprintf(name, sizeof name, "l%d", l);
        bad = ddp_add_block(d, name, m->w[l], m->g[l], VALUES);
    }
    before = sent(d);
    bad = bad || ddp_set_optimizer(d, &o);
    most = x && x->begin ? layer * (double)WORLD : 0; /* at most one layer to each rank */
    if (!bad && sent(d) - before > most + 0.2 * layer) bad = 100;
    if (!bad && x && x->begin && ddp_rank(d) == 0 && sent(d) - before < layer / (double)WORLD) bad = 101;
    if (!bad && !are_equal(d, m)) bad = 102;
    if (!bad && x && x->begin) { /* rank 0's value has won */
        float want = value_of(x->layer, x->at);
        if (x->rank == 0) flip(&want, x->bit);
        if (bits_of(&m->w[x->layer][x->at]) != bits_of(&want)) bad = 103;
    }
    if (!bad) fill(m, d, x, 0);
    before = sent(d);
    bad = bad || ddp_sync_all(d);
    if (!bad && sent(d) - before > (x && !x->begin ? 2 * layer : 0) + 0.2 * layer) bad = 104;
    if (!bad && !x && bits_of(&m->w[1][1]) != 0x7fc00001u) bad = 105; /* equal values are unchanged */
    if (!bad && !are_equal(d, m)) bad = 106;
    if (bad > 99) {
        snprintf(name, sizeof name, "check %d failed", bad);
        ddp_abort(d, name);
    }
    bad = bad || ddp_barrier(d);
    free(m);
    return bad;
}

static void run(ddp_strategy strategy, int elastic, difference *x)
{
    ddp_config c = DDP__ZEROS;
    ddp_error err = DDP__ZEROS;

    c.strategy = strategy;
    c.world = WORLD;
    c.period = 4;
    c.transport = elastic ? DDP_TCP : DDP_THREADS;
    c.elastic.min_world = elastic;
    c.no_env = 1;
    if (ddp_launch(&c, starts, x, &err)) {
        if (x)
            fail_msg("%s, rank %d, layer %d, value %d, bit %d: %s", ddp_strategy_name(strategy), x->rank,
                     x->layer, x->at, x->bit, err.msg);
        fail_msg("%s: %s", ddp_strategy_name(strategy), err.msg);
    }
}

static void equal_ranks_send_no_values(void **state)
{
    static const ddp_strategy all[] = {DDP_WFBP, DDP_LOCALSGD, DDP_DREAMDDP, DDP_DILOCO};

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) run(all[i], 0, NULL);
    run(DDP_LOCALSGD, 3, NULL);
}

static void every_single_bit_is_found(void **state)
{
    ddp_rng rng = ddp_rng_seed(41, 0);

    (void)state;
    for (int turn = 0; turn < 24; turn++) {
        difference x;
        x.rank = turn % WORLD;
        x.layer = (int)ddp_rng_below(&rng, LAYERS);
        x.at = turn < 8 ? turn / 2 : turn < 10 ? VALUES - 1 : (int)ddp_rng_below(&rng, VALUES);
        x.bit = turn < 8 ? 31 * (turn % 2) : (int)ddp_rng_below(&rng, 32);
        x.begin = turn % 3 != 0;
        if (x.begin == 0) { /* a mean with an infinity or NaN is one */
            x.at = 4 + (int)ddp_rng_below(&rng, VALUES - 4);
            x.bit = (int)ddp_rng_below(&rng, 23);
        }
        run(turn % 2 ? DDP_LOCALSGD : DDP_WFBP, turn % 8 == 7 ? 2 : 0, &x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_ranks_send_no_values),
        cmocka_unit_test(every_single_bit_is_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
