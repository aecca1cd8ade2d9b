/* [long, asan, test-all: slow] The outer-optimizer family between sites, bit for bit: floats inside a site,
 * each coding between sites, error feedback on the rank that encodes, and the survivors if workers leave. */
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
#include "strategy/strategy_lab.h"

/* Settings of a run that its workers read. */
static struct {
    int site[LAB_RANKS];
    int leaves[LAB_RANKS]; /* the step before which a rank leaves, or 0 for never */
} world_of;

static void own_site(ddp_ctx *d, const lab *x)
{
    (void)x;
    d->cfg.site = world_of.site[ddp_rank(d)]; /* one context per rank, as DREAMDDP_SITE sets it */
}

static int leaves(const lab *x, int rank, int step)
{
    (void)x;
    return world_of.leaves[rank] && step == world_of.leaves[rank];
}

static lab sites_lab(int world, const int *site, lab_model model, ddp_wire wire)
{
    lab x;

    memset(&world_of, 0, sizeof world_of);
    memcpy(world_of.site, site, (size_t)world * sizeof *site);
    lab_new(&x, world, DDP_DILOCO, 3);
    x.model = model;
    x.rule = LAB_ADAMW;
    x.cfg.outer.lr = 0.7;
    x.cfg.outer.momentum = 0.9;
    x.cfg.wire = wire;
    x.no_sync_all = 1; /* ends in the middle of a period */
    x.opened = own_site;
    x.leaves = leaves;
    return x;
}

static void same(const lab *a, const lab *b, const char *what)
{
    for (int r = 0; r < a->cfg.world; r++)
        if (!world_of.leaves[r] && memcmp(a->params[r], b->params[r], *a->values * sizeof(float)))
            fail_msg("%s, %d workers, model %d, wire %d, rank %d", what, a->cfg.world, (int)a->model,
                     (int)a->cfg.wire, r);
}

/* ---- the rule, replayed ---- */

typedef struct replay {
    float theta[LAB_RANKS][LAB_VALUES], anchor[LAB_VALUES], m[LAB_VALUES];
    /* residuals: of deltas sent by its site, of results that it finished */
    float kept[LAB_RANKS][LAB_VALUES];
    float d[LAB_RANKS][LAB_VALUES], step[LAB_VALUES];
} replay;

/* The live ranks of each site. */
typedef struct lie {
    int live, sites, slices;
    int alive[LAB_RANKS], place[LAB_RANKS]; /* place: in its own site, or -1 for lost */
} lie;

static float times(float a, float b)
{
    volatile float product = a * b;

    return product;
}

static lie lie_of(const lab *x, int step)
{
    int size, most = 0, least = LAB_RANKS;
    lie s;

    memset(&s, 0, sizeof s);
    for (int r = 0; r < x->cfg.world; r++) s.alive[r] = !world_of.leaves[r] || step < world_of.leaves[r];
    for (int r = 0; r < x->cfg.world; r++) {
        s.place[r] = s.alive[r] ? 0 : -1;
        s.live += s.alive[r];
        size = 0;
        for (int q = 0; q < x->cfg.world && s.alive[r]; q++) {
            if (!s.alive[q] || world_of.site[q] != world_of.site[r]) continue;
            size++;
            s.place[r] += q < r;
        }
        s.sites += s.place[r] == 0;
        if (s.alive[r] && size > most) most = size;
        if (s.alive[r] && size < least) least = size;
    }
    s.slices = most == least ? most : 1;
    return s;
}

static ddp_coding coding_of(ddp_wire wire)
{
    return wire == DDP_WIRE_BF16   ? DDP_AS_BFLOAT
           : wire == DDP_WIRE_INT8 ? DDP_AS_INT8
           : wire == DDP_WIRE_INT4 ? DDP_AS_INT4
           : wire == DDP_WIRE_E3M0 ? DDP_AS_E3M0
                                   : DDP_AS_FLOAT;
}

static size_t cut_at(size_t n, size_t parts, size_t i) { return n / parts * i + n % parts * i / parts; }

/* Sums values first..last of rank o's site, in rank order. */
static void sum_inside(const lab *x, const replay *y, const lie *s, int o, size_t first, size_t last,
                       float *sum)
{
    int terms = 0;

    for (int r = 0; r < x->cfg.world; r++) {
        if (!s->alive[r] || world_of.site[r] != world_of.site[o]) continue;
        for (size_t i = first; i < last; i++) sum[i] = terms ? sum[i] + y->d[r][i] : y->d[r][i];
        terms++;
    }
}

/* The message plus the residual is the input, bit for bit. */
static void says_all(const void *message, size_t bytes, int keep, const float *kept, const float *was,
                     size_t n)
{
    static float sum[LAB_VALUES];

    memcpy(sum, kept, n * sizeof *sum);
    assert_int_equal(ddp_sparse_add(message, bytes, keep, sum, n, NULL), 0);
    assert_memory_equal(sum, was, n * sizeof *sum);
}

/* The mean of d over values first..last, the slice of place q; blocks or bfloat16 between sites. kept:
 * residuals from there on. */
static void mean_coded(const lab *x, replay *y, const lie *s, int q, size_t at, size_t first, size_t last,
                       float *out)
{
    static float sum[LAB_VALUES], rest[LAB_VALUES];
    const ddp_coding coding = s->sites > 1 ? coding_of(x->cfg.wire) : DDP_AS_FLOAT;
    const int blocks = ddp__in_blocks((int)coding_of(x->cfg.wire));
    const float scale = 1.0f / (float)s->live;
    const size_t n = last - first;
    size_t terms = 0;

    for (int o = 0; o < x->cfg.world; o++) {
        float *kept = y->kept[o] + at;
        if (s->place[o] != q) continue;
        sum_inside(x, y, s, o, first, last, sum);
        for (size_t i = first; i < last && blocks; i++) {
            sum[i] += kept[i];
            kept[i] = 0;
        }
        memcpy(rest + first, sum + first, n * sizeof *sum);
        if (coding != DDP_AS_FLOAT)
            assert_int_equal(ddp_split(coding, rest + first, sum + first, n, NULL), 0);
        for (size_t i = first; i < last && blocks && s->sites > 1; i++) kept[i] = rest[i];
        for (size_t i = first; i < last; i++) out[i] = terms ? out[i] + sum[i] : sum[i];
        terms++;
    }
    for (size_t i = first; i < last; i++) rest[i] = out[i] = times(out[i], scale);
    if (coding == DDP_AS_FLOAT) return;
    assert_int_equal(ddp_split(coding, rest + first, out + first, n, NULL), 0);
    for (int o = 0, part = 0; o < x->cfg.world; o++) {
        size_t from, to;
        if (s->place[o] != q) continue;
        from = cut_at(n, terms, (size_t)part++);
        to = cut_at(n, terms, (size_t)part);
        if (blocks) {
            from -= from % 64;
            to -= to < n ? to % 64 : 0;
        }
        for (size_t i = first + from; i < first + to && blocks; i++) y->kept[o][at + i] += rest[i] / scale;
    }
}

/* The same for sparse deltas. packed: the share of a site's mean plus the decayed residual. */
static void mean_sparse(const lab *x, replay *y, const lie *s, int q, size_t at, size_t first, size_t last,
                        float *out)
{
    static float mean[LAB_VALUES], message[LAB_VALUES];
    static uint64_t scratch[1 << 18];
    const int keep = ddp_sparse_keep(x->cfg.topk_fraction);
    const size_t n = last - first, bytes = ddp_sparse_bytes(n, keep);

    memset(out + first, 0, n * sizeof *out);
    for (int o = 0; o < x->cfg.world && n; o++) {
        float *kept = y->kept[o] + at + first;
        if (s->place[o] != q) continue;
        sum_inside(x, y, s, o, first, last, mean);
        for (size_t i = 0; i < n; i++) {
            mean[first + i] = times(mean[first + i], (float)s->sites / (float)s->live);
            kept[i] = times(kept[i], 0.95f) + mean[first + i];
        }
        memcpy(mean, kept, n * sizeof *mean);
        assert_int_equal(
            ddp_sparse_pack(kept, n, keep, message, sizeof message, scratch, sizeof scratch, NULL), 0);
        assert_int_equal(ddp_sparse_add(message, bytes, keep, out + first, n, NULL), 0);
        says_all(message, bytes, keep, kept, mean, n);
    }
    for (size_t i = first; i < last; i++) out[i] = times(out[i], 1.0f / (float)s->sites);
}

/* Layer at..at+n-1 of the mean change, into y->step. */
static void replay_mean(const lab *x, replay *y, const lie *s, size_t at, size_t n)
{
    const int blocks = ddp__in_blocks((int)coding_of(x->cfg.wire)),
              half = coding_of(x->cfg.wire) >= DDP_AS_INT4;
    size_t first[LAB_RANKS], last[LAB_RANKS];

    for (int q = 0; q < s->slices; q++) {
        first[q] = cut_at(n, (size_t)s->slices, (size_t)q);
        last[q] = cut_at(n, (size_t)s->slices, (size_t)q + 1);
        if (!half) continue; /* no byte is truncated */
        first[q] -= first[q] % 2;
        if (last[q] < n) last[q] -= last[q] % 2;
    }
    for (int r = 0; r < x->cfg.world; r++) {
        if (!s->alive[r]) continue;
        for (size_t i = 0; i < n; i++) y->d[r][i] = y->anchor[at + i] - y->theta[r][at + i];
        for (size_t i = 0; i < n && blocks; i++) { /* residuals of the previous slices */
            const int own = s->place[r] < s->slices && i >= first[s->place[r]] && i < last[s->place[r]];
            if (!own && y->kept[r][at + i] != 0) {
                y->d[r][i] += y->kept[r][at + i];
                y->kept[r][at + i] = 0;
            }
        }
    }
    for (int q = 0; q < s->slices; q++)
        (x->cfg.wire == DDP_WIRE_TOPK ? mean_sparse : mean_coded)(x, y, s, q, at, first[q], last[q],
                                                                  y->step + at);
}

static void replay_land(const lab *x, replay *y, size_t at, size_t n)
{
    const float nu = (float)x->cfg.outer.lr, mu = (float)x->cfg.outer.momentum;

    for (size_t i = at; i < at + n; i++) {
        y->m[i] = times(mu, y->m[i]) + y->step[i];
        y->step[i] = times(nu, y->step[i] + times(mu, y->m[i]));
        y->anchor[i] -= y->step[i];
        for (int r = 0; r < x->cfg.world; r++) y->theta[r][i] = y->anchor[i];
    }
}

static void replay_run(const lab *x, replay *y)
{
    static float g[LAB_RANKS][LAB_VALUES], moments[LAB_RANKS][2 * LAB_VALUES];
    size_t count[LAB_LAYERS], at, n = 0;
    const int L = lab_sizes(x->model, count);
    ddp_optimizer o = lab_optimizer(x->rule);

    memset(y, 0, sizeof *y);
    memset(g, 0, sizeof g);
    memset(moments, 0, sizeof moments);
    for (int l = 0; l < L; n += count[l++])
        for (size_t i = 0; i < count[l]; i++) y->anchor[n + i] = lab_start(0, l, i);
    for (int r = 0; r < x->cfg.world; r++) memcpy(y->theta[r], y->anchor, n * sizeof(float));
    for (int step = 0; step < x->steps; step++) {
        const lie s = lie_of(x, step);
        for (int r = 0; r < x->cfg.world; r++) {
            lab_replica part;
            at = 0;
            for (int l = 0; l < L; at += count[l++]) {
                part.w[l] = y->theta[r] + at;
                part.g[l] = g[r] + at;
                part.s[l] = moments[r] + 2 * at;
                lab_gradient(part.w[l], part.g[l], count[l], r, l, step * 10);
                lab_update(&o, &part, l, count[l], step);
            }
        }
        at = 0;
        for (int l = 0; (step + 1) % x->cfg.period == 0 && l < L; at += count[l++]) {
            replay_mean(x, y, &s, at, count[l]);
            replay_land(x, y, at, count[l]);
        }
    }
}

static void replay_is(const lab *x, const char *what)
{
    static replay y;

    replay_run(x, &y);
    for (int r = 0; r < x->cfg.world; r++)
        if (!world_of.leaves[r] && memcmp(x->params[r], y.theta[r], *x->values * sizeof(float)))
            fail_msg("%s: %d workers, model %d, wire %d, elastic %d, transport %d, rank %d", what,
                     x->cfg.world, (int)x->model, (int)x->cfg.wire, x->cfg.elastic.min_world,
                     (int)x->cfg.transport, r);
}

/* ---- blocks ---- */

static const ddp_wire coded[] = {DDP_WIRE_F32, DDP_WIRE_BF16, DDP_WIRE_INT8, DDP_WIRE_INT4, DDP_WIRE_E3M0};
enum { CODED = sizeof coded / sizeof coded[0], CASES = 5 };
static const int cases[CASES][LAB_RANKS] = {/* of 3, 4, 4, 5, 5 workers */
                                            {1, 2, 1},
                                            {1, 2, 1, 2},
                                            {1, 2, 2, 1},
                                            {1, 2, 2, 3, 2},
                                            {3, 1, 3, 3, 1}};
static const int workers[CASES] = {3, 4, 4, 5, 5};

static void codings_between_sites_are_bit_identical_to_the_rule(void **state)
{
    (void)state;
    for (int c = 0; c < CASES; c += SAMPLED(2))
        for (int w = 0; w < CODED; w++)
            for (int elastic = 0; elastic < 2; elastic++) {
                lab x = sites_lab(workers[c], cases[c], (c + w) % 2 ? LAB_ODD : LAB_TINY, coded[w]);
                x.cfg.elastic.min_world = elastic;
                if ((c + w + elastic) % 2) x.cfg.transport = DDP_TCP;
                if (w == 2) x.cfg.net = "20mbit,1ms"; /* many small chunks */
                lab_run(&x);
                replay_is(&x, "coded");
                lab_free(&x);
            }
}

/* Loses one rank of a site, its lowest, its last, one after the other, until one site or one worker is left.
 * The residuals of the survivors are sent. */
static void survivors_continue_with_their_residuals(void **state)
{
    static const int leaving[][LAB_RANKS] = {{0, 0, 4}, {4}, {0, 4, 0, 7}, {0, 4, 8, 6, 11}, {0, 9, 5, 0, 4}};

    (void)state;
    for (int c = 0; c < 5; c += SAMPLED(2))
        for (int w = 0; w < CODED; w++)
            for (int world = 4; world <= 5; world++) {
                lab x = sites_lab(world, cases[world == 5 ? 3 + c % 2 : 1 + c % 2], LAB_ODD, coded[w]);
                memcpy(world_of.leaves, leaving[c], sizeof world_of.leaves);
                if (world == 4) world_of.leaves[4] = 0;
                x.cfg.elastic.min_world = 1;
                x.steps = 17;
                if ((c + w) % 2) x.cfg.transport = DDP_TCP;
                lab_run(&x);
                replay_is(&x, "with the survivors");
                lab_free(&x);
            }
}

/* Over two links too, and with layers of one value, which one rank of a site has. */
static void sparse_deltas_between_sites_are_bit_identical_to_the_rule(void **state)
{
    (void)state;
    for (int c = 0; c < CASES; c++)
        for (int kind = 0; kind < 4; kind++) {
            lab x = sites_lab(workers[c], cases[c], kind ? LAB_ODD : LAB_TINY, DDP_WIRE_TOPK);
            x.cfg.topk_fraction = kind == 3 ? 0.1 : 0;
            if ((c + kind) % 2) x.cfg.transport = DDP_TCP;
            if (kind == 1) x.cfg.net = x.cfg.network.net2 = "20mbit,1ms";
            x.forward_hooks = kind == 2;
            lab_run(&x);
            replay_is(&x, "sparse");
            lab_free(&x);
        }
}

/* Streaming in one fragment without delay equals no overlap. Eager ends with equal ranks. Threads and sockets
 * are bit-identical. */
static void overlap_between_sites_is_identical_on_all_transports(void **state)
{
    (void)state;
    for (int c = 0; c < CASES; c += SAMPLED(2))
        for (int w = 2; w < CODED + 1; w++) {
            const ddp_wire wire = w < CODED ? coded[w] : DDP_WIRE_TOPK;
            lab a = sites_lab(workers[c], cases[c], LAB_ODD, wire),
                b = sites_lab(workers[c], cases[c], LAB_ODD, wire);
            lab e = sites_lab(workers[c], cases[c], LAB_ODD, wire),
                f = sites_lab(workers[c], cases[c], LAB_ODD, wire);
            b.cfg.outer.overlap = DDP_OVERLAP_STREAM;
            b.cfg.outer.fragments = 1;
            b.cfg.outer.mixture = DDP_OVERWRITE;
            b.cfg.transport = c % 2 ? DDP_TCP : DDP_THREADS;
            e.cfg.outer.overlap = f.cfg.outer.overlap = c % 2 ? DDP_OVERLAP_EAGER : DDP_OVERLAP_STREAM;
            e.cfg.net = f.cfg.net = "200mbit,2ms"; /* layers land later */
            e.forward_hooks = f.forward_hooks = c % 2 == 0;
            f.cfg.transport = DDP_TCP;
            f.no_sync_all = e.no_sync_all = 0;
            lab_run(&a);
            lab_run(&b);
            lab_run(&e);
            lab_run(&f);
            same(&a, &b, "streamed");
            same(&e, &f, "late");
            for (int r = 1; r < workers[c]; r++)
                assert_memory_equal(e.params[r], e.params[0], *e.values * sizeof(float));
            lab_free(&a);
            lab_free(&b);
            lab_free(&e);
            lab_free(&f);
        }
}

static void a_single_site_sends_floats(void **state)
{
    static const int one[LAB_RANKS] = {7, 7, 7, 7};

    (void)state;
    for (int w = 1; w < CODED + 1; w++) {
        lab a = sites_lab(4, one, LAB_ODD, w < CODED ? coded[w] : DDP_WIRE_TOPK),
            b = sites_lab(4, one, LAB_ODD, DDP_WIRE_F32);
        b.opened = NULL;
        a.cfg.elastic.min_world = w % 2 && w < CODED;
        lab_run(&a);
        lab_run(&b);
        same(&a, &b, "one site");
        lab_free(&a);
        lab_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codings_between_sites_are_bit_identical_to_the_rule),
        cmocka_unit_test(survivors_continue_with_their_residuals),
        cmocka_unit_test(sparse_deltas_between_sites_are_bit_identical_to_the_rule),
        cmocka_unit_test(overlap_between_sites_is_identical_on_all_transports),
        cmocka_unit_test(a_single_site_sends_floats),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
