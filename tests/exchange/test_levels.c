/* [asan] Hierarchical averages: inside the sites, then between them; messages that wait for other
 * messages. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "context/context.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "comm/net_world.h"

/* ---- messages that wait for other messages ---- */

/* Chains of three messages in groups of different ranks, many in flight, each rank at its own pace. */
static void chains(net_rank *me, void *user)
{
    enum { CHAINS = 30, LENGTH = 701 };
    static const int pairs[2][2] = {{0, 1}, {2, 3}}, across[2][2] = {{0, 2}, {1, 3}};
    float *x = (float *)malloc((size_t)CHAINS * LENGTH * sizeof *x);
    int inside = 0, between = 0, gather = 0, group;
    long ticket[CHAINS];
    ddp_piece piece, slice;
    ddp_message m;

    (void)user;
    for (int i = 0; i < 6; i++) {
        const int *ranks = i < 2 ? pairs[i] : i < 4 ? across[i - 2] : pairs[i - 4];
        net_ok(me, ddp__engine_group(me->engine, ranks, 2, &group, &me->err));
        if (ranks[0] != me->rank && ranks[1] != me->rank) continue;
        if (i < 2)
            inside = group;
        else if (i < 4)
            between = group;
        else
            gather = group;
    }
    for (int i = 0; i < CHAINS; i++) {
        const size_t half = LENGTH / 2, own = me->rank % 2 ? LENGTH - half : half;
        float *data = x + (size_t)i * LENGTH;
        long before;
        for (size_t k = 0; k < LENGTH; k++) data[k] = net_value(me->rank, k, (unsigned)i);
        piece.data = data;
        piece.count = LENGTH;
        slice.data = data + (me->rank % 2 ? half : 0);
        slice.count = own;
        net_message(&m, DDP_REDUCE_SCATTER, &piece, 1);
        m.group = inside;
        m.ragged = 1;
        m.priority = i * 5 % 3;
        net_ok(me, ddp__engine_submit(me->engine, &m, &before, &me->err));
        m.verb = DDP_ALL_REDUCE;
        m.group = between;
        m.from = &slice;
        m.after = before + 1;
        net_ok(me, ddp__engine_submit(me->engine, &m, &before, &me->err));
        m.verb = DDP_ALL_GATHER;
        m.group = gather;
        m.from = &piece;
        m.after = before + 1;
        net_ok(me, ddp__engine_submit(me->engine, &m, &ticket[i], &me->err));
        if ((i + me->rank) % 7 == 0) usleep(2000);
        if (i == 11 && me->rank == 2) net_ok(me, ddp__engine_wait(me->engine, ticket[i], &me->err));
    }
    for (int i = CHAINS - 1; i >= 0; i--) {
        net_ok(me, ddp__engine_wait(me->engine, ticket[i], &me->err));
        for (size_t k = 0; k < LENGTH; k++) {
            float want = (net_value(0, k, (unsigned)i) + net_value(1, k, (unsigned)i)) +
                         (net_value(2, k, (unsigned)i) + net_value(3, k, (unsigned)i));
            if (x[(size_t)i * LENGTH + k] != want) {
                net_fail(me, "chain %d, value %lu", i, (unsigned long)k);
                break;
            }
        }
    }
    free(x);
}

static void message_starts_when_its_predecessor_is_complete(void **state)
{
    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        net_setup set;
        net_defaults(&set, 4);
        set.tcp = kind % 2;
        if (kind & 2) set.cfg.chunk_bytes = 256;
        if (kind & 4) set.delay_s = 0.0005;
        set.cfg.check_writes = kind == 2;
        set.cfg.max_count = kind == 2 ? 1000 : 0;
        net_run(&set, chains, NULL);
    }
}

/* ---- strategies ---- */

enum { RANKS = 5, LAYERS = 3, MOST = 1500, STEPS = 12 };
static const size_t counts[LAYERS] = {701, 2, 600};

typedef struct run {
    ddp_config cfg;
    int site[RANKS];
    int leaves[RANKS]; /* the step before which a rank closes its context, or 0 for never */
    float w[RANKS][MOST];
    int64_t sent[RANKS];
} run;

static float gradient_of(float w, int rank, int layer, size_t i, int step)
{
    return 0.3f * w + net_value(rank, i, (unsigned)(step * 10 + layer)) * 1e-4f;
}

static int worker(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    const int rank = ddp_rank(d);
    float *w = (float *)calloc(2 * MOST, sizeof *w), *g = w + MOST;
    ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    ddp_layer layer;
    ddp_stats stats;
    size_t at = 0;
    int bad = 0, l, step;

    d->cfg.site = x->site[rank]; /* a different site per rank, as with DREAMDDP_SITE */
    for (l = 0; !bad && l < LAYERS; at += counts[l++]) {
        memset(&layer, 0, sizeof layer);
        layer.params = w + at;
        layer.grads = g + at;
        layer.count = counts[l];
        bad = ddp_add_layer(d, &layer);
    }
    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (step = 0; !bad && step < STEPS; step++) {
        if (x->leaves[rank] && step == x->leaves[rank]) {
            free(w);
            return 0;
        }
        for (l = 0; !bad && l < LAYERS; l++) bad = ddp_forward_begin(d, l);
        for (l = LAYERS - 1, at = 701 + 2 + 600; !bad && l >= 0; l--) {
            at -= counts[l];
            for (size_t i = 0; i < counts[l]; i++) g[at + i] = gradient_of(w[at + i], rank, l, i, step);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_wait(d);
    if (!bad && x->cfg.strategy != DDP_WFBP && x->cfg.strategy != DDP_SSGD) bad = ddp_sync_all(d);
    memcpy(x->w[rank], w, MOST * sizeof *w);
    ddp_get_stats(d, &stats);
    x->sent[rank] = stats.bytes_sent;
    free(w);
    return bad;
}

static void run_config(run *x, ddp_strategy strategy, int world, const int *site)
{
    memset(x, 0, sizeof *x);
    x->cfg.no_env = 1;
    x->cfg.world = world;
    x->cfg.strategy = strategy;
    x->cfg.transport = DDP_THREADS;
    x->cfg.deterministic = 1;
    x->cfg.period = 3;
    x->cfg.gradient.bucket_bytes = 2500;
    x->cfg.timeout.peer_s = 60;
    for (int r = 0; r < world; r++) x->site[r] = site[r];
}

static void run_it(run *x)
{
    ddp_error err;

    if (ddp_launch(&x->cfg, worker, x, &err)) fail_msg("%s", err.msg);
}

/* Reference: sums the gradients inside the sites, then over the sites. */
static void plain(const run *x, float (*w)[MOST])
{
    static float v[RANKS][MOST], g[RANKS][MOST];
    const int world = x->cfg.world;

    memset(v, 0, sizeof v);
    memset(w, 0, RANKS * sizeof *w);
    for (int step = 0; step < STEPS; step++) {
        size_t at = 0;
        int live = 0;
        for (int r = 0; r < world; r++) live += !x->leaves[r] || step < x->leaves[r];
        for (int l = 0; l < LAYERS; at += counts[l++])
            for (size_t i = 0; i < counts[l]; i++) {
                float all = 0;
                for (int first = 0, sites = 0, seen = 0; first < world; first++) { /* sites in the order of
                                                                                    * their lowest ranks */
                    float sum = 0;
                    int n = 0;
                    if ((x->leaves[first] && step >= x->leaves[first]) || seen >> x->site[first] & 1)
                        continue;
                    seen |= 1 << x->site[first];
                    for (int r = first; r < world; r++) {
                        float own = gradient_of(w[r][at + i], r, l, i, step);
                        if (x->site[r] != x->site[first] || (x->leaves[r] && step >= x->leaves[r])) continue;
                        sum = n++ ? sum + own : own;
                    }
                    all = sites++ ? all + sum : sum;
                }
                for (int r = 0; r < world; r++) g[r][at + i] = all * (1.0f / (float)live);
            }
        for (int r = 0; r < world; r++)
            for (size_t i = 0; i < at; i++) {
                v[r][i] = 0.9f * v[r][i] + g[r][i];
                w[r][i] -= 0.1f * v[r][i];
            }
    }
}

static const int equal_sites[4] = {1, 2, 1, 2}, unequal_sites[5] = {1, 2, 2, 3, 2},
                 one_site[4] = {7, 7, 7, 7};

static void gradients_are_summed_inside_the_sites_first(void **state)
{
    static run x;
    static float want[RANKS][MOST];
    (void)state;
    for (int s = 0; s < 2; s++)
        for (int unlike = 0; unlike < 2; unlike++) {
            run_config(&x, s ? DDP_WFBP : DDP_SSGD, unlike ? 5 : 4, unlike ? unequal_sites : equal_sites);
            run_it(&x);
            plain(&x, want);
            for (int r = 0; r < x.cfg.world; r++) assert_memory_equal(x.w[r], want[0], 1303 * sizeof(float));
        }
}

static double distance(const run *a, const run *b)
{
    double far = 0, size = 0;

    for (int i = 0; i < 1303; i++) {
        double off = (double)a->w[0][i] - (double)b->w[0][i];
        far += off * off;
        size += (double)a->w[0][i] * (double)a->w[0][i];
    }
    return sqrt(far / size);
}

static void parameters_are_the_same_on_all_ranks(void **state)
{
    static const ddp_strategy strategies[] = {DDP_LOCALSGD, DDP_ENP, DDP_DREAMDDP};
    static const int none[5] = {0, 0, 0, 0, 0};
    static run two, one;
    (void)state;
    for (int s = 0; s < 3; s++)
        for (int kind = 0; kind < 4; kind++) {
            const int unlike = kind % 2;
            run_config(&two, strategies[s], unlike ? 5 : 4, unlike ? unequal_sites : equal_sites);
            run_config(&one, strategies[s], unlike ? 5 : 4, none);
            if (kind == 2) two.cfg.wire = one.cfg.wire = DDP_WIRE_BF16;
            if (kind == 3) {
                two.cfg.deterministic = 0;
                two.cfg.profile_steps = 3;
            }
            run_it(&two);
            run_it(&one);
            for (int r = 1; r < two.cfg.world; r++) assert_memory_equal(two.w[r], two.w[0], sizeof two.w[0]);
            assert_true(distance(&two, &one) < (kind == 2 ? 0.02 : kind == 3 ? 0.5 : 1e-5));
        }
}

/* With a single site no message crosses sites, so no message is quantised. */
static void single_site_is_bit_identical_to_no_sites(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_LOCALSGD};
    static const ddp_wire wires[] = {DDP_WIRE_F32, DDP_WIRE_BF16, DDP_WIRE_INT8};
    static const int none[5] = {0, 0, 0, 0, 0};
    static run two, one;

    (void)state;
    for (int s = 0; s < 2; s++)
        for (int w = 0; w < 3; w++) {
            run_config(&two, strategies[s], 4, one_site);
            run_config(&one, strategies[s], 4, none);
            two.cfg.wire = wires[w];
            two.cfg.elastic.min_world = w == 1;
            run_it(&two);
            run_it(&one);
            for (int r = 0; r < 4; r++) /* parameter deltas in blocks round differently in the last bit */
                if (s && wires[w] == DDP_WIRE_INT8)
                    assert_true(distance(&two, &one) < 1e-6);
                else
                    assert_memory_equal(two.w[r], one.w[0], sizeof two.w[0]);
        }
}

/* Compares threads with processes over TCP, which write their results to shared memory. */
static void processes_are_bit_identical_to_threads(void **state)
{
    static const ddp_strategy strategies[] = {DDP_WFBP, DDP_LOCALSGD, DDP_DREAMDDP};
    static run threads;
    run *tcp = (run *)mmap(NULL, sizeof *tcp, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_true(tcp != MAP_FAILED);
    for (int s = 0; s < 3; s++)
        for (int kind = 0; kind < 3; kind++) {
            const int world = kind == 1 ? 5 : 4, *site = kind == 1 ? unequal_sites : equal_sites;
            run_config(&threads, strategies[s], world, site);
            run_config(tcp, strategies[s], world, site);
            tcp->cfg.transport = DDP_TCP;
            if (kind == 2) threads.cfg.wire = tcp->cfg.wire = DDP_WIRE_BF16;
            run_it(&threads);
            run_it(tcp);
            for (int r = 0; r < world; r++) {
                assert_memory_equal(tcp->w[r], threads.w[0], sizeof threads.w[0]);
                assert_true(tcp->sent[r] > 0);
            }
        }
    munmap(tcp, sizeof *tcp);
}

/* Without a lost rank, an elastic world is bit-identical to a fixed one, with about the same bytes. */
static void elastic_world_is_bit_identical_to_a_fixed_one(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD, DDP_DREAMDDP};
    static const ddp_wire wires[] = {DDP_WIRE_F32, DDP_WIRE_BF16, DDP_WIRE_INT8};
    static run elastic, fixed;

    (void)state;
    for (int s = 0; s < 4; s++)
        for (int kind = 0; kind < 6; kind++) {
            const int unlike = kind % 2;
            run_config(&elastic, strategies[s], unlike ? 5 : 4, unlike ? unequal_sites : equal_sites);
            run_config(&fixed, strategies[s], unlike ? 5 : 4, unlike ? unequal_sites : equal_sites);
            elastic.cfg.wire = fixed.cfg.wire = wires[kind / 2];
            elastic.cfg.elastic.min_world = 2;
            elastic.cfg.debug.check_writes = 1;
            run_it(&elastic);
            run_it(&fixed);
            for (int r = 0; r < elastic.cfg.world; r++)
                assert_memory_equal(elastic.w[r], fixed.w[0], sizeof fixed.w[0]);
            for (int r = 0; r < elastic.cfg.world; r++) /* the same messages between sites, plus control
                                                         * messages */
                assert_true((double)elastic.sent[r] < 1.05 * (double)fixed.sent[r] + 4000);
        }
}

/* Ranks leave one after another: one of a site, its lowest rank, its last rank. The sites continue with
 * the live ranks. */
static void sites_continue_without_ranks_that_left(void **state)
{
    static const int leaves[][5] = {
        {0, 0, 4, 0, 0}, {0, 4, 0, 0, 0}, {4, 0, 0, 0, 0}, {0, 3, 6, 0, 0}, {0, 3, 0, 5, 0}};
    static float want[RANKS][MOST];
    static run threads;
    run *tcp = (run *)mmap(NULL, sizeof *tcp, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    (void)state;
    assert_true(tcp != MAP_FAILED);
    for (int i = 0; i < 5; i++)
        for (int over_tcp = 0; over_tcp < 2; over_tcp++) {
            run *x = over_tcp ? tcp : &threads;
            run_config(x, DDP_SSGD, 5, unequal_sites);
            x->cfg.transport = over_tcp ? DDP_TCP : DDP_THREADS;
            x->cfg.elastic.min_world = 2;
            memcpy(x->leaves, leaves[i], sizeof x->leaves);
            run_it(x);
            plain(x, want);
            for (int r = 0; r < 5; r++)
                if (!x->leaves[r] && memcmp(x->w[r], want[r], 1303 * sizeof(float)))
                    fail_msg("case %d, rank %d, over %s", i, r, over_tcp ? "tcp" : "threads");
        }
    munmap(tcp, sizeof *tcp);
}

/* Constant gradients. In each block one is a thousand times the others, which would be rounded to 0
 * without error feedback. */
static int constant(ddp_ctx *d, void *user)
{
    run *x = (run *)user;
    const int rank = ddp_rank(d);
    float *w = (float *)calloc(2 * MOST, sizeof *w), *g = w + MOST;
    ddp_optimizer o = ddp_sgd(0.5f, 0);
    ddp_layer layer;
    int bad;

    d->cfg.site = x->site[rank];
    memset(&layer, 0, sizeof layer);
    layer.params = w;
    layer.grads = g;
    layer.count = 1303;
    bad = ddp_add_layer(d, &layer);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (int step = 0; !bad && step < 300; step++) {
        for (size_t i = 0; i < 1303; i++) g[i] = i % 50 ? 0.01f * (float)(1 + (i + (size_t)rank) % 3) : 10.0f;
        bad = ddp_backward_end(d, 0);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_wait(d);
    memcpy(x->w[rank], w, MOST * sizeof *w);
    free(w);
    return bad;
}

static void int8_between_sites_uses_error_feedback(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_LOCALSGD};
    static run x;
    ddp_error err;

    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        const int world = kind % 2 ? 5 : 4, *site = kind % 2 ? unequal_sites : equal_sites;
        run_config(&x, strategies[kind / 2], world, site);
        x.cfg.wire = DDP_WIRE_INT8;
        if (ddp_launch(&x.cfg, constant, &x, &err)) fail_msg("%s", err.msg);
        for (int i = 0; i < 1303; i++) {
            double mean = 0;
            for (int r = 0; r < world; r++) mean += (i % 50 ? 0.01 * (1 + (i + r) % 3) : 10.0) / world;
            /* a quantisation level is 10 members / 127; sums and results are each rounded by up to half of
             * it */
            if (fabs((double)x.w[0][i] + 150 * mean) > 0.5 * (kind / 2 ? 3 : 1) * 3 * 10.0 * 3 / 127)
                fail_msg("kind %d, value %d: %g, not %g", kind, i, (double)x.w[0][i], -150 * mean);
        }
    }
}

/* Messages between sites are int8 blocks, inside sites floats. All ranks and transports must be
 * bit-identical, and near the result of floats. */
static void only_messages_between_sites_are_quantised(void **state)
{
    static const ddp_strategy strategies[] = {DDP_SSGD, DDP_WFBP, DDP_LOCALSGD, DDP_DREAMDDP};
    static run threads, floats;
    run *tcp = (run *)mmap(NULL, sizeof *tcp, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    (void)state;
    assert_true(tcp != MAP_FAILED);
    for (int s = 0; s < 4; s++)
        for (int unlike = 0; unlike < 2; unlike++) {
            const int world = unlike ? 5 : 4, *site = unlike ? unequal_sites : equal_sites;
            run_config(&threads, strategies[s], world, site);
            run_config(&floats, strategies[s], world, site);
            run_config(tcp, strategies[s], world, site);
            threads.cfg.wire = tcp->cfg.wire = DDP_WIRE_INT8;
            threads.cfg.debug.check_writes = 1;
            tcp->cfg.transport = DDP_TCP;
            run_it(&threads);
            run_it(&floats);
            run_it(tcp);
            for (int r = 0; r < world; r++) {
                assert_memory_equal(threads.w[r], threads.w[0], sizeof threads.w[0]);
                assert_memory_equal(tcp->w[r], threads.w[0], sizeof threads.w[0]);
            }
            assert_true(distance(&threads, &floats) < 0.05 && distance(&threads, &floats) > 0);
            assert_true(threads.sent[0] < floats.sent[0]);
        }
    munmap(tcp, sizeof *tcp);
}

static void invalid_settings_fail_with_an_error(void **state)
{
    static const int some[4] = {1, 2, 0, 1};
    static run x;
    ddp_error err;
    (void)state;
    run_config(&x, DDP_WFBP, 4, some);
    assert_int_equal(ddp_launch(&x.cfg, worker, &x, &err), DDP_MISMATCH);
    assert_non_null(
        strstr(err.msg, "rank 2 has a site (0: no, 1: yes) 0, rank 0 has 1: start every rank with the same"));
    run_config(&x, DDP_WFBP, 4, equal_sites);
    x.cfg.site = -1;
    assert_int_equal(ddp_launch(&x.cfg, worker, &x, &err), DDP_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(message_starts_when_its_predecessor_is_complete),
        cmocka_unit_test(gradients_are_summed_inside_the_sites_first),
        cmocka_unit_test(parameters_are_the_same_on_all_ranks),
        cmocka_unit_test(single_site_is_bit_identical_to_no_sites),
        cmocka_unit_test(processes_are_bit_identical_to_threads),
        cmocka_unit_test(elastic_world_is_bit_identical_to_a_fixed_one),
        cmocka_unit_test(sites_continue_without_ranks_that_left),
        cmocka_unit_test(int8_between_sites_uses_error_feedback),
        cmocka_unit_test(only_messages_between_sites_are_quantised),
        cmocka_unit_test(invalid_settings_fail_with_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
