/* Layers without a gradient (ddp_skip), with every strategy: a layer that all ranks skip keeps its
 * parameters, and a layer that some ranks skip is updated as on the other ranks. ddp_sync_all always makes
 * the replicas equal. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "context/context.h"

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

enum { RANKS = 4, LAYERS = 3, EACH = 70, VALUES = LAYERS * EACH, PERIOD = 2 };

/* When the middle layer is skipped. */
typedef enum way {
    NEVER,
    ALL_FROM_4,
    RANK_1_AT_TIMES,
    ZEROS_AT_TIMES,
    ALL_AT_TIMES,
    NO_GRADIENT_YET,
    ALL_FOR_A_PERIOD
} way;

/* When ddp_skip is called: in the layer's turn, only in the first micro-batch, or after all other layers. */
typedef enum moment { IN_TURN, ONCE, LAST, MOMENTS } moment;

typedef struct run {
    ddp_config cfg;
    way way;
    moment moment;
    int steps, hooks, sites; /* sites: two ranks per site */
    int at;                  /* above 0: the step before which all ranks synchronise and save the layer */
    float before[VALUES], end[RANKS + 1][VALUES];
} run;

static const ddp_strategy every[] = {DDP_SSGD,   DDP_WFBP,      DDP_MGWFBP,   DDP_ASCWFBP, DDP_BYTESCHEDULER,
                                     DDP_USBYTE, DDP_DEFT,      DDP_BSP,      DDP_ASP,     DDP_SSP,
                                     DDP_R2SP,   DDP_OSP,       DDP_LOCALSGD, DDP_ENP,     DDP_DREAMDDP,
                                     DDP_DILOCO, DDP_SPARSELOCO};
enum { EVERY = sizeof every / sizeof *every };

static void begin(run *x, ddp_strategy s, int workers, way w)
{
    memset(x, 0, sizeof *x);
    x->cfg.world = workers;
    x->cfg.transport = DDP_THREADS;
    x->cfg.strategy = s;
    x->cfg.period = PERIOD;
    x->cfg.no_env = x->cfg.deterministic = 1;
    x->cfg.timeout.peer_s = 60;
    if (ddp_strategy_traits(s) & DDP_NEEDS_SERVERS) x->cfg.server.count = DDP_SERVERS_COLOCATED;
    x->way = w;
    x->steps = 8;
    x->hooks = workers % 2;
}

static int skips(const run *x, int rank, int step)
{
    switch (x->way) {
    case ALL_FROM_4:
        return step >= 4;
    case RANK_1_AT_TIMES:
        return rank == 1 && step % 3 != 1;
    case ALL_AT_TIMES:
        return step % 3 == 1;
    case NO_GRADIENT_YET:
        return step < 4;
    case ALL_FOR_A_PERIOD:
        return step == 4 || step == 5;
    case NEVER:
    case ZEROS_AT_TIMES:
        break;
    }
    return 0;
}

static int backward(ddp_ctx *d, const run *x, const float *w, float *g, int step, int micro)
{
    const int rank = ddp_rank(d), none = skips(x, rank, step);
    int bad = 0;

    for (int l = LAYERS - 1; l >= 0 && !bad; l--) {
        const int zeros = x->way == ZEROS_AT_TIMES && rank == 1 && step % 3 != 1;
        for (int i = l * EACH; i < (l + 1) * EACH && !(l == 1 && (none || zeros)); i++)
            g[i] += 0.2f * w[i] + 0.1f * (float)((3 * i + 5 * step + 7 * rank + micro) % 11 - 5);
        for (int i = l * EACH; i < (l + 1) * EACH && l == 1 && none; i++)
            g[i] = 777; /* an old value, which must not be used */
        if (l != 1 || !none)
            bad = ddp_backward_end(d, l);
        else if (x->moment == IN_TURN || (x->moment == ONCE && micro == 0))
            bad = ddp_skip(d, l);
    }
    return bad || !none || x->moment != LAST ? bad : ddp_skip(d, 1);
}

static int train(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    const int rank = ddp_rank(d), micros = x->cfg.micro_batches ? x->cfg.micro_batches : 1;
    float *w = x->end[rank], g[VALUES];
    ddp_optimizer o = ddp_adamw(0.05f, 0.9f, 0.999f, 1e-8f, 0.1f);
    int bad = 0;

    memset(g, 0, sizeof g);
    if (x->sites) d->cfg.site = 1 + rank / 2; /* as with DREAMDDP_SITE */
    for (int i = 0; i < VALUES; i++) w[i] = 0.25f * (float)(i % 11) - 1;
    for (int l = 0; l < LAYERS && !bad; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = w + l * EACH;
        layer.grads = g + l * EACH;
        layer.count = EACH;
        bad = ddp_add_layer(d, &layer);
    }
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && rank >= ddp_world(d) - ddp_servers(d)) return ddp_serve(d);
    for (int s = 0; s < x->steps && !bad; s++) {
        if (s && s == x->at) bad = ddp_sync_all(d);
        if (s == x->at && rank == 0) memcpy(x->before, w, sizeof x->before);
        for (int m = 0; m < micros && !bad; m++) {
            for (int l = 0; l < LAYERS && x->hooks && !bad; l++) bad = ddp_forward_begin(d, l);
            if (!bad) bad = backward(d, x, w, g, s, m);
        }
        if (!bad) bad = ddp_step_end(d);
    }
    return bad ? bad : ddp_sync_all(d);
}

static void launch(run *x)
{
    ddp_error err;

    if (ddp_launch(&x->cfg, train, x, &err))
        fail_msg("%s, way %d: %s", ddp_strategy_name(x->cfg.strategy), (int)x->way, err.msg);
    for (int r = 1; r < x->cfg.world - (x->cfg.server.count > 0 ? x->cfg.server.count : 0); r++)
        if (memcmp(x->end[0], x->end[r], sizeof x->end[0]))
            fail_msg("%s, way %d: rank %d has other parameters", ddp_strategy_name(x->cfg.strategy),
                     (int)x->way, r);
}

/* With one, two and four workers the mean of equal values is exact. */
static void layer_skipped_by_all_ranks_keeps_its_parameters(void **state)
{
    static run x;

    (void)state;
    for (int s = 0; s < EVERY; s++)
        for (int workers = 1; workers <= 4; workers *= 2) {
            begin(&x, every[s], workers, ALL_FROM_4);
            x.at = 4;
            launch(&x);
            if (memcmp(x.before + EACH, x.end[0] + EACH, EACH * sizeof(float)))
                fail_msg("%s, %d workers: the skipped layer changed", ddp_strategy_name(every[s]), workers);
            if (!memcmp(x.before, x.end[0], EACH * sizeof(float)))
                fail_msg("%s, %d workers: the other layers did not change", ddp_strategy_name(every[s]),
                         workers);
        }
}

static void replicas_are_equal_after_any_skip(void **state)
{
    static run x;

    (void)state;
    for (int s = 0; s < EVERY; s++)
        for (int w = RANK_1_AT_TIMES; w <= NO_GRADIENT_YET; w++)
            for (int k = 0; k < 3 * MOMENTS; k++) {
                begin(&x, every[s], k / MOMENTS ? 3 : 2, (way)w);
                x.moment = (moment)(k % MOMENTS);
                x.cfg.micro_batches = k / MOMENTS == 2 ? 4 : 1;
                x.cfg.period = 1 + k % 2; /* 1: every layer in every step */
                if (every[s] == DDP_DILOCO && k % 2) x.cfg.outer.overlap = DDP_OVERLAP_STREAM;
                launch(&x);
            }
}

/* With skips, gradient strategies, bsp and ssp stay bit-identical to ssgd, with every all-reduce
 * algorithm. */
static void gradient_strategies_with_skips_are_bit_identical(void **state)
{
    static const ddp_strategy same[] = {DDP_WFBP,   DDP_MGWFBP, DDP_ASCWFBP, DDP_BYTESCHEDULER,
                                        DDP_USBYTE, DDP_BSP,    DDP_SSP};
    static run a, b;

    (void)state;
    for (int w = RANK_1_AT_TIMES; w <= NO_GRADIENT_YET; w++) {
        begin(&a, DDP_SSGD, 3, (way)w);
        launch(&a);
        for (int s = 0; s < (int)(sizeof same / sizeof *same); s++) {
            begin(&b, same[s], 3, (way)w);
            launch(&b);
            assert_memory_equal(a.end[0], b.end[0], sizeof a.end[0]);
        }
        for (int k = 0; k < 2; k++) {
            begin(&b, DDP_WFBP, 3, (way)w);
            b.cfg.algorithm = k ? DDP_FULL : DDP_DIRECT;
            launch(&b);
            assert_memory_equal(a.end[0], b.end[0], sizeof a.end[0]);
        }
    }
}

/* An elastic world computes an outer step before it knows that all ranks skipped the layer for a period. */
static void elastic_world_with_skips_is_bit_identical(void **state)
{
    static const ddp_wire wires[] = {DDP_WIRE_F32, DDP_WIRE_BF16, DDP_WIRE_INT8, DDP_WIRE_INT4,
                                     DDP_WIRE_E3M0};
    static run a, b;

    (void)state;
    for (int k = 0; k < 5; k++)
        for (int o = (int)DDP_OVERLAP_NONE; o <= (int)DDP_OVERLAP_EAGER; o++)
            for (int w = ALL_AT_TIMES; w <= ALL_FOR_A_PERIOD; w++) {
                begin(&a, DDP_DILOCO, 3, (way)w);
                a.steps = 12;
                a.cfg.outer.momentum = 0.9;
                a.cfg.wire = wires[k];
                a.cfg.outer.overlap = (ddp_overlap)o;
                b = a;
                b.cfg.elastic.min_world = 2;
                launch(&a);
                launch(&b);
                if (memcmp(a.end[0], b.end[0], sizeof a.end[0]))
                    fail_msg("wire %d, overlap %d, way %d", (int)wires[k], o, w);
            }
}

/* Ring all-reduces, and sums in bfloat16 or int8, also transfer the information that a layer was skipped. */
static void every_algorithm_and_wire_transfers_skips(void **state)
{
    static run x;

    (void)state;
    for (int k = 0; k < 8; k++) {
        begin(&x, k % 2 ? DDP_DEFT : DDP_WFBP, 4, ALL_FROM_4);
        x.at = 4;
        x.cfg.deterministic = k >= 2;
        x.cfg.profile_steps = 1;
        if (k < 2) x.cfg.algorithm = DDP_RING;
        if (k == 2) x.cfg.wire = DDP_WIRE_BF16;
        if (k > 2) x.cfg.wire = DDP_WIRE_INT8;
        x.sites = k >= 5;
        if (k == 7) x.cfg.elastic.min_world = 2;
        launch(&x);
        if (memcmp(x.before + EACH, x.end[0] + EACH, EACH * sizeof(float)))
            fail_msg("case %d: the skipped layer changed", k);
    }
}

/* A rank that skips a layer contributes zeros. */
static void rank_that_skips_contributes_zeros(void **state)
{
    static const ddp_strategy some[] = {DDP_SSGD, DDP_BSP, DDP_BYTESCHEDULER, DDP_DEFT, DDP_OSP};
    static run a, b;

    (void)state;
    for (int s = 0; s < 5; s++) {
        begin(&a, some[s], 2, RANK_1_AT_TIMES);
        begin(&b, some[s], 2, ZEROS_AT_TIMES);
        a.cfg.osp.defer = b.cfg.osp.defer = DDP_DEFER_NONE;
        launch(&a);
        launch(&b);
        if (memcmp(a.end[0], b.end[0], sizeof a.end[0]))
            fail_msg("%s: the result differs from zero gradients", ddp_strategy_name(some[s]));
    }
}

/* ---- replicas made unequal by the program ---- */

enum { OWN_UPDATE_LEFT_OUT, WRITES_PARAMETERS, WRITES_FROZEN };

static int unequal(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    const int rank = ddp_rank(d), what = x->at;
    float *w = x->end[rank], g[VALUES];
    ddp_optimizer o = what == OWN_UPDATE_LEFT_OUT ? ddp_own_update() : ddp_sgd(0.1f, 0.9f);
    int bad = 0;

    memset(g, 0, sizeof g);
    for (int i = 0; i < VALUES; i++) w[i] = 0.25f * (float)(i % 11) - 1;
    for (int l = 0; l < LAYERS && !bad; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = w + l * EACH;
        layer.grads = what == WRITES_FROZEN && l == 1 ? NULL : g + l * EACH;
        layer.count = EACH;
        bad = ddp_add_layer(d, &layer);
    }
    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (int s = 0; s < 3 && !bad; s++) {
        for (int i = 0; i < VALUES; i++) g[i] = 0.2f * w[i] + (float)((i + s + rank) % 5);
        for (int l = LAYERS - 1; l >= 0 && !bad; l--) bad = ddp_backward_end(d, l);
        if (!bad) bad = ddp_step_end(d);
        for (int i = 0; what == OWN_UPDATE_LEFT_OUT && !(s == 1 && rank == 1) && i < VALUES; i++)
            w[i] -= 0.1f * g[i];
    }
    if (what != OWN_UPDATE_LEFT_OUT && rank == 1) w[EACH + 3] += 0.5f;
    return bad ? bad : ddp_sync_all(d);
}

static void sync_all_makes_unequal_parameters_equal(void **state)
{
    static run x;
    ddp_error err;

    (void)state;
    for (int s = 0; s < EVERY; s++)
        for (int what = OWN_UPDATE_LEFT_OUT; what <= WRITES_FROZEN; what++) {
            const int later = (ddp_strategy_traits(every[s]) & DDP_NEEDS_SERVERS) || every[s] == DDP_DEFT;
            /* these strategies reject updates by the program */
            if (what == OWN_UPDATE_LEFT_OUT && later) continue;
            begin(&x, every[s], 3, NEVER);
            x.at = what;
            if (ddp_launch(&x.cfg, unequal, &x, &err))
                fail_msg("%s: %s", ddp_strategy_name(every[s]), err.msg);
            for (int r = 1; r < 3; r++)
                if (memcmp(x.end[0], x.end[r], sizeof x.end[0]))
                    fail_msg("%s, case %d: rank %d has other parameters", ddp_strategy_name(every[s]), what,
                             r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_skipped_by_all_ranks_keeps_its_parameters),
        cmocka_unit_test(replicas_are_equal_after_any_skip),
        cmocka_unit_test(gradient_strategies_with_skips_are_bit_identical),
        cmocka_unit_test(elastic_world_with_skips_is_bit_identical),
        cmocka_unit_test(every_algorithm_and_wire_transfers_skips),
        cmocka_unit_test(rank_that_skips_contributes_zeros),
        cmocka_unit_test(sync_all_makes_unequal_parameters_equal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
