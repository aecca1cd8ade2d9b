/* [long] The outer-optimizer family: bit-identical to local SGD, to plain SGD, and to a replay of the rule in
 * one thread. */
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
#include "strategy/strategy_lab.h"

static lab outer_lab(int world, lab_model model, lab_rule rule, double nu, double mu)
{
    lab x;

    lab_new(&x, world, DDP_DILOCO, 3);
    x.model = model;
    x.rule = rule;
    x.cfg.outer.lr = nu;
    x.cfg.outer.momentum = mu > 0 ? mu : DDP_NO_MOMENTUM;
    return x;
}

static void same(const lab *a, const lab *b, const char *what)
{
    for (int r = 0; r < a->cfg.world; r++)
        if (memcmp(a->params[r], b->params[r], *a->values * sizeof(float)))
            fail_msg("%s, %d workers, model %d, rule %d, rank %d of %s", what, a->cfg.world, (int)a->model,
                     (int)a->rule, r, ddp_strategy_name(a->cfg.strategy));
}

static void ranks_are_equal(const lab *x)
{
    for (int r = 1; r < x->cfg.world; r++)
        assert_memory_equal(x->params[r], x->params[0], *x->values * sizeof(float));
}

/* ---- the rule, replayed ---- */

/* The outer state of all layers, one after the other. */
typedef struct replay {
    float theta[LAB_RANKS][LAB_VALUES]; /* parameters of each worker */
    float anchor[LAB_VALUES], m[LAB_VALUES];
    float kept[LAB_RANKS][LAB_VALUES], lost[LAB_VALUES]; /* residuals: of the deltas sent, of outer steps */
    float step[LAB_VALUES];                              /* the pending outer step */
    float own[LAB_RANKS][LAB_VALUES];                    /* eager: parameters at the start of a period */
    int late[LAB_LAYERS]; /* stream: 1 + the step in which the layer lands; eager: 1 */
} replay;

static float times(float a, float b)
{
    volatile float product = a * b;

    return product;
}

static ddp_coding coding_of(ddp_wire wire)
{
    return wire == DDP_WIRE_BF16   ? DDP_AS_BFLOAT
           : wire == DDP_WIRE_INT8 ? DDP_AS_INT8
           : wire == DDP_WIRE_INT4 ? DDP_AS_INT4
           : wire == DDP_WIRE_E3M0 ? DDP_AS_E3M0
                                   : DDP_AS_FLOAT;
}

/* Replaces a delta by its encoded value. `kept` receives the residual (bfloat16 has none). */
static void replay_send(const lab *x, float *change, float *kept, size_t n)
{
    static float message[LAB_VALUES];
    static uint64_t scratch[1 << 18];
    const int keep = ddp_sparse_keep(x->cfg.topk_fraction);
    const size_t bytes = ddp_sparse_bytes(n, keep);
    const ddp_coding coding = coding_of(x->cfg.wire);

    if (x->cfg.world == 1) return;
    if (x->cfg.wire == DDP_WIRE_TOPK) {
        for (size_t i = 0; i < n; i++) kept[i] = times(kept[i], 0.95f) + change[i];
        assert_int_equal(
            ddp_sparse_pack(kept, n, keep, message, sizeof message, scratch, sizeof scratch, NULL), 0);
        memset(change, 0, n * sizeof *change);
        assert_int_equal(ddp_sparse_add(message, bytes, keep, change, n, NULL), 0);
    } else if (coding != DDP_AS_FLOAT) {
        for (size_t i = 0; i < n; i++) kept[i] += change[i];
        assert_int_equal(ddp_split(coding, kept, change, n, NULL), 0);
        if (coding == DDP_AS_BFLOAT) memset(kept, 0, n * sizeof *kept);
    }
}

/* Layer at..at+n-1: computes the outer step from the deltas since `since`. */
static void replay_step(const lab *x, replay *y, size_t at, size_t n, float (*since)[LAB_VALUES])
{
    static float d[LAB_RANKS][LAB_VALUES];
    const int world = x->cfg.world;
    const float part = 1.0f / (float)world, nu = (float)x->cfg.outer.lr;
    const float mu = x->cfg.outer.momentum > 0 ? (float)x->cfg.outer.momentum : 0;
    float *step = d[0];

    for (int r = 0; r < world; r++) {
        for (size_t i = 0; i < n; i++) d[r][i] = (since ? since[r] : y->anchor)[at + i] - y->theta[r][at + i];
        replay_send(x, d[r], y->kept[r] + at, n);
        for (size_t i = 0; r && i < n; i++) step[i] += d[r][i];
    }
    for (size_t i = 0; i < n; i++) {
        float *m = &y->m[at + i];
        if (world > 1) step[i] = times(step[i], part);
        if (mu > 0) {
            *m = times(mu, *m) + step[i];
            step[i] += times(mu, *m);
        }
        step[i] = times(nu, step[i]);
    }
    if (world > 1 && coding_of(x->cfg.wire) != DDP_AS_FLOAT) {
        for (size_t i = 0; i < n; i++) y->lost[at + i] += step[i];
        assert_int_equal(ddp_split(coding_of(x->cfg.wire), y->lost + at, step, n, NULL), 0);
    }
    memcpy(y->step + at, step, n * sizeof *step);
}

static void replay_land(const lab *x, replay *y, size_t at, size_t n)
{
    const float a = x->cfg.outer.overlap == DDP_OVERLAP_STREAM && x->cfg.outer.mixture > 0
                        ? (float)x->cfg.outer.mixture
                        : 0;

    for (size_t i = at; i < at + n; i++) {
        y->anchor[i] -= y->step[i];
        for (int r = 0; r < x->cfg.world; r++)
            y->theta[r][i] = a > 0 ? times(a, y->theta[r][i]) + times(1 - a, y->anchor[i]) : y->anchor[i];
    }
}

/* ---- what happens at the end of a step ---- */

static void replay_waits(const lab *x, replay *y, const size_t *count, int L, int step)
{
    size_t at = 0;

    for (int l = 0; (step + 1) % x->cfg.period == 0 && l < L; at += count[l++]) {
        replay_step(x, y, at, count[l], NULL);
        replay_land(x, y, at, count[l]);
    }
}

/* Fragments of every n-th layer. */
static void replay_streams(const lab *x, replay *y, const size_t *count, int L, int step)
{
    const int H = x->cfg.period, n = x->cfg.outer.fragments;
    size_t at = 0;

    for (int l = 0; l < L; at += count[l++]) {
        if ((step + 1) % H == (l % n + 1) * H / n % H) {
            replay_step(x, y, at, count[l], NULL);
            y->late[l] = step + x->cfg.outer.landing + 1;
        }
        if (y->late[l] == step + 1) replay_land(x, y, at, count[l]);
    }
}

static void replay_is_eager(const lab *x, replay *y, const size_t *count, int L, int step)
{
    static float last[LAB_VALUES];
    const int K = x->cfg.world;
    const float part = (float)x->cfg.outer.lr / (float)K;
    size_t at = 0;

    for (int l = 0; (step + 1) % x->cfg.period == 0 && l < L; at += count[l++]) {
        memcpy(last + at, y->step + at, count[l] * sizeof *last);
        replay_step(x, y, at, count[l], y->own);
        for (size_t i = at; i < at + count[l]; i++) {
            if (y->late[l]) y->anchor[i] -= last[i];
            for (int r = 0; r < K; r++)
                y->theta[r][i] = y->own[r][i] = y->anchor[i] - times(part, y->own[r][i] - y->theta[r][i]);
        }
        y->late[l] = 1;
    }
}

/* Local steps of all workers, and an outer step after each period. */
static void replay_run(const lab *x, replay *y)
{
    static float g[LAB_RANKS][LAB_VALUES], s[LAB_RANKS][2 * LAB_VALUES];
    size_t count[LAB_LAYERS], at, n = 0;
    const int L = lab_sizes(x->model, count), K = x->cfg.world;
    ddp_optimizer o = lab_optimizer(x->rule);

    memset(y, 0, sizeof *y);
    memset(g, 0, sizeof g);
    memset(s, 0, sizeof s);
    for (int l = 0; l < L; n += count[l++])
        for (size_t i = 0; i < count[l]; i++) y->anchor[n + i] = lab_start(0, l, i);
    for (int r = 0; r < K; r++) memcpy(y->theta[r], y->anchor, n * sizeof(float));
    for (int r = 0; r < K; r++) memcpy(y->own[r], y->anchor, n * sizeof(float));
    for (int step = 0; step < x->steps; step++) {
        for (int r = 0; r < K; r++) {
            lab_replica part;
            at = 0;
            for (int l = 0; l < L; at += count[l++]) {
                part.w[l] = y->theta[r] + at;
                part.g[l] = g[r] + at;
                part.s[l] = s[r] + 2 * at;
                lab_gradient(part.w[l], part.g[l], count[l], r, l, step * 10);
                lab_update(&o, &part, l, count[l], step);
            }
        }
        if (x->cfg.outer.overlap == DDP_OVERLAP_STREAM)
            replay_streams(x, y, count, L, step);
        else if (x->cfg.outer.overlap == DDP_OVERLAP_EAGER)
            replay_is_eager(x, y, count, L, step);
        else
            replay_waits(x, y, count, L, step);
    }
}

static void replay_is(const lab *x, const char *what)
{
    static replay y;

    replay_run(x, &y);
    for (int r = 0; r < x->cfg.world; r++)
        if (memcmp(x->params[r], y.theta[r], *x->values * sizeof(float)))
            fail_msg("%s: %d workers, model %d, rule %d, rank %d", what, x->cfg.world, (int)x->model,
                     (int)x->rule, r);
}

/* ---- diloco without overlap ---- */

static void with_rate_1_and_no_momentum_it_is_local_sgd(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world += SAMPLED(2))
        for (int model = 0; model < LAB_MODELS; model++) {
            lab a = outer_lab(world, (lab_model)model, (lab_rule)((world + model) % LAB_RULES), 1, 0);
            lab b = outer_lab(world, (lab_model)model, a.rule, 1, 0);
            b.cfg.strategy = DDP_LOCALSGD;
            if (world == 3) a.cfg.transport = DDP_TCP;
            a.no_sync_all = b.no_sync_all = model % 2;
            a.forward_hooks = world % 2;
            lab_run(&a);
            lab_run(&b);
            same(&a, &b, "unlike localsgd");
            lab_free(&a);
            lab_free(&b);
        }
}

static void it_is_bit_identical_to_the_outer_rule(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world += SAMPLED(2))
        for (int rule = 0; rule < LAB_RULES; rule++)
            for (int model = LAB_TINY; model < LAB_MODELS; model += LAB_ODD - LAB_TINY) {
                lab x =
                    outer_lab(world, (lab_model)model, (lab_rule)rule, 0.7, rule == LAB_MOMENTUM ? 0 : 0.9);
                x.no_sync_all = 1; /* ends in the middle of a period */
                x.forward_hooks = rule == LAB_SGD;
                if (world == 4) x.cfg.transport = DDP_TCP;
                if (world == 2) x.cfg.net = "20mbit,1ms"; /* a rank's segment has several chunks */
                lab_run(&x);
                replay_is(&x, "differs from the replay");
                lab_free(&x);
            }
}

static void momentum_in_segments_is_bit_identical_to_whole_momentum(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world += 3) {
        lab x = outer_lab(world, LAB_ODD, LAB_ADAMW, 0.6, 0.8),
            y = outer_lab(world, LAB_ODD, LAB_ADAMW, 0.6, 0.8);
        y.cfg.elastic.min_world = 1; /* elastic: every rank stores all of the momentum */
        y.cfg.transport = DDP_TCP;
        lab_run(&x);
        lab_run(&y);
        same(&x, &y, "in parts");
        ranks_are_equal(&x);
        lab_free(&x);
        lab_free(&y);
    }
}

static void after_an_outer_update_all_ranks_are_equal(void **state)
{
    (void)state;
    for (int model = 0; model < LAB_MODELS; model++) {
        lab x = outer_lab(4, (lab_model)model, LAB_ADAMW, 0.7, 0.9);
        x.steps = 9;
        x.no_sync_all = 1;
        x.cfg.clip_norm = 0.5f;
        lab_run(&x);
        ranks_are_equal(&x);
        lab_free(&x);
    }
}

/* ---- compressed wires ---- */

static const ddp_wire few[] = {DDP_WIRE_BF16, DDP_WIRE_INT8, DDP_WIRE_INT4, DDP_WIRE_E3M0, DDP_WIRE_TOPK};
enum { FEW = sizeof few / sizeof few[0] };

/* Encoding, residuals of deltas and of outer steps, and the order of additions. */
static void coded_deltas_are_bit_identical_to_the_rule(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world += SAMPLED(2))
        for (int w = 0; w < FEW; w++) {
            lab x = outer_lab(world, world % 2 ? LAB_ODD : LAB_TINY, (lab_rule)((world + w) % LAB_RULES), 0.7,
                              0.9);
            x.cfg.wire = few[w];
            x.cfg.topk_fraction = world == 3 ? 0.1 : world == 5 ? 0.5 : 0;
            x.no_sync_all = 1;
            if (world == 4) x.cfg.transport = DDP_TCP;
            if (world == 3) x.cfg.net = "20mbit,1ms"; /* many small chunks */
            lab_run(&x);
            replay_is(&x, "coded");
            lab_free(&x);
        }
}

static void elastic_is_like_plain(lab *x, int tcp)
{
    lab y;

    lab_new(&y, x->cfg.world, x->cfg.strategy, x->cfg.period);
    y.model = x->model;
    y.rule = x->rule;
    y.no_sync_all = x->no_sync_all = 1;
    y.steps = x->steps = 14;
    y.cfg = x->cfg;
    y.cfg.elastic.min_world = 1 + x->cfg.world / 2;
    if (tcp) y.cfg.transport = DDP_TCP;
    lab_run(x);
    lab_run(&y);
    same(x, &y, "in an elastic world");
    lab_free(x);
    lab_free(&y);
}

/* In an elastic world, too, the outer step is rounded and not the mean. */
static void an_elastic_world_is_bit_identical_to_a_plain_one(void **state)
{
    static const ddp_overlap overlaps[] = {DDP_OVERLAP_NONE, DDP_OVERLAP_STREAM, DDP_OVERLAP_EAGER};

    (void)state;
    for (int w = 0; w < FEW; w++)
        for (int kind = w % SAMPLED(2); kind < 5; kind += SAMPLED(2)) {
            lab x = outer_lab(2 + (w + kind) % 4, kind % 2 ? LAB_ODD : LAB_TINY,
                              (lab_rule)((w + kind) % LAB_RULES), 0.7, 0.9);
            x.cfg.wire = few[w];
            x.cfg.outer.overlap = overlaps[kind % 3];
            if (kind == 1) {
                x.cfg.outer.fragments = 2;
                x.cfg.outer.landing = 1;
            }
            if (kind == 2) x.cfg.outer.compensation = 0.5;
            if (kind == 3) {
                x.cfg.strategy = DDP_SPARSELOCO;
                x.cfg.outer.lr = x.cfg.outer.momentum = 0;
            }
            if (kind == 4) {
                x.model = LAB_ODD;
                x.cfg.net = "20mbit,1ms";
            } /* planned; many small chunks */
            elastic_is_like_plain(&x, kind % 2);
        }
}

static int rank_2_leaves(const lab *x, int rank, int step)
{
    (void)x;
    return rank == 2 && step == 15;
}

static lab left_by_rank_2(ddp_wire wire)
{
    lab x = outer_lab(4, LAB_ODD, LAB_SGD, 0.7, 0.9);

    x.steps = 24;
    x.no_sync_all = 1;
    x.leaves = rank_2_leaves;
    x.cfg.elastic.min_world = 2;
    x.cfg.transport = DDP_TCP;
    x.cfg.wire = wire;
    lab_run(&x);
    for (int r = 1; r < 4; r += 2) assert_memory_equal(x.params[r], x.params[0], *x.values * sizeof(float));
    return x;
}

/* With float32 every rank has all of the momentum. With fewer bits, a rank that takes over a segment recovers
 * it from the outer steps. Without recovery the results would be 0.22 apart. */
static void a_rank_that_leaves_loses_no_momentum(void **state)
{
    lab a = left_by_rank_2(DDP_WIRE_F32);

    (void)state;
    for (int w = 0; w + 1 < FEW; w++) {
        lab b = left_by_rank_2(few[w]);
        double apart = 0, moved = 0;
        for (size_t i = 0; i < *a.values; i++) {
            apart += pow((double)b.params[0][i] - (double)a.params[0][i], 2);
            moved += pow((double)a.params[0][i], 2);
        }
        if (!(sqrt(apart / moved) < 0.12))
            fail_msg("wire %d: %g of the way apart", (int)few[w], sqrt(apart / moved));
        lab_free(&b);
    }
    lab_free(&a);
}

static void sparseloco_is_rate_1_without_momentum(void **state)
{
    lab x = outer_lab(4, LAB_ODD, LAB_ADAMW, 0, 0);

    (void)state;
    x.cfg.strategy = DDP_SPARSELOCO;
    x.cfg.outer.momentum = 0; /* the defaults */
    x.no_sync_all = 1;
    lab_run(&x);
    x.cfg.outer.lr = 1;
    x.cfg.wire = DDP_WIRE_TOPK;
    replay_is(&x, "sparseloco");
    lab_free(&x);
}

/* Error feedback adds the residual later, so all codings end close to each other. */
static void all_codings_end_close_to_float32(void **state)
{
    (void)state;
    for (int w = 0; w < FEW; w++) {
        lab a = outer_lab(3, LAB_ODD, LAB_SGD, 0.7, 0.5), b = outer_lab(3, LAB_ODD, LAB_SGD, 0.7, 0.5);
        double apart = 0, moved = 0;
        size_t count[LAB_LAYERS], at = 0;
        const int L = lab_sizes(LAB_ODD, count);
        a.steps = b.steps = 48;
        b.cfg.wire = few[w];
        b.cfg.topk_fraction = 0.25;
        lab_run(&a);
        lab_run(&b);
        ranks_are_equal(&b);
        for (int l = 0; l < L; at += count[l++])
            for (size_t i = 0; i < count[l]; i++) {
                apart += pow((double)a.params[0][at + i] - (double)b.params[0][at + i], 2);
                moved += pow((double)a.params[0][at + i] - (double)lab_start(0, l, i), 2);
            }
        if (!(sqrt(apart / moved) < 0.2))
            fail_msg("wire %d: %g of the way apart", (int)few[w], sqrt(apart / moved));
        lab_free(&a);
        lab_free(&b);
    }
}

/* ---- streaming ---- */

static void streaming_in_one_set_at_once_is_diloco(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world += SAMPLED(2))
        for (int model = 0; model < LAB_MODELS; model++) {
            /* averages the parameters themselves too */
            const double nu = model % 2 ? 0.7 : 1, mu = model % 2 ? 0.9 : 0;
            lab a = outer_lab(world, (lab_model)model, (lab_rule)((world + model) % LAB_RULES), nu, mu);
            lab b = outer_lab(world, (lab_model)model, a.rule, nu, mu);
            b.cfg.outer.overlap = DDP_OVERLAP_STREAM;
            b.cfg.outer.fragments = 1;
            b.cfg.outer.mixture = DDP_OVERWRITE;
            b.forward_hooks = world % 2;
            if (world == 3) b.cfg.transport = DDP_TCP;
            if (world == 4) a.cfg.clip_norm = b.cfg.clip_norm = 0.5f;
            if (world == 2) a.cfg.wire = b.cfg.wire = DDP_WIRE_INT4;
            lab_run(&a);
            lab_run(&b);
            same(&b, &a, "streaming differs from diloco");
            lab_free(&a);
            lab_free(&b);
        }
}

static void streaming_is_bit_identical_to_the_rule(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world += SAMPLED(2))
        for (int kind = 0; kind < 4; kind++) {
            lab x = outer_lab(world, kind % 2 ? LAB_ODD : LAB_TINY, (lab_rule)((world + kind) % LAB_RULES),
                              0.7, 0.9);
            x.cfg.outer.overlap = DDP_OVERLAP_STREAM;
            x.cfg.outer.fragments = 1 + kind % 3;
            x.cfg.outer.landing = kind % 3;
            x.cfg.outer.mixture = kind == 2 ? DDP_OVERWRITE : 0.5 - 0.125 * kind;
            x.cfg.wire = kind == 3 ? DDP_WIRE_TOPK : kind == 2 ? DDP_WIRE_E3M0 : DDP_WIRE_F32;
            x.forward_hooks = world % 2;
            x.steps = 14;
            x.no_sync_all = 1;
            if (world == 4) x.cfg.transport = DDP_TCP;
            if (world == 5) x.cfg.net = "200mbit,2ms";
            lab_run(&x);
            replay_is(&x, "streaming");
            lab_free(&x);
        }
}

/* The predicted duration of a step that the link dominates. */
static double predicted_of(int world, ddp_wire wire)
{
    lab x = outer_lab(world, LAB_ODD, LAB_SGD, 0.7, 0.9);
    double step_s;

    x.cfg.outer.overlap = DDP_OVERLAP_STREAM;
    x.cfg.wire = wire;
    x.cfg.net = "4mbit";
    x.steps = 1;
    lab_run(&x);
    step_s = x.stats[0].predicted_step_s;
    lab_free(&x);
    return step_s;
}

/* Each rank receives the blocks of all others. With floats it sends and receives 2 (W - 1) / W. */
static void a_plan_predicts_the_bytes_of_topk(void **state)
{
    size_t count[LAB_LAYERS];
    const int L = lab_sizes(LAB_ODD, count);

    (void)state;
    for (int world = 2; world <= 4; world += 2) {
        const double sparse = predicted_of(world, DDP_WIRE_TOPK), floats = predicted_of(world, DDP_WIRE_F32);
        double gathered = 0, all = 0;
        for (int l = 0; l < L; l++) {
            gathered += (double)(ddp_sparse_bytes(count[l], ddp_sparse_keep(0)) * (size_t)world / 2);
            all += 4.0 * (double)count[l];
        }
        assert_true(floats > 0);
        assert_true(fabs(sparse / floats - gathered / all) < 1e-6);
    }
}

/* Whatever the plan is, all ranks have the same one, and threads and TCP are bit-identical. */
static void planned_streaming_is_identical_on_all_ranks(void **state)
{
    (void)state;
    for (int model = 0; model < LAB_MODELS; model++) {
        lab a = outer_lab(4, (lab_model)model, LAB_ADAMW, 0.7, 0.9),
            b = outer_lab(4, (lab_model)model, LAB_ADAMW, 0.7, 0.9);
        a.cfg.outer.overlap = b.cfg.outer.overlap = DDP_OVERLAP_STREAM;
        a.cfg.net = b.cfg.net = "20mbit,1ms"; /* layers land later */
        a.forward_hooks = b.forward_hooks = 1;
        b.cfg.transport = DDP_TCP;
        lab_run(&a);
        lab_run(&b);
        ranks_are_equal(&a);
        same(&a, &b, "planned");
        lab_free(&a);
        lab_free(&b);
    }
}

/* A measured plan, made again while results are pending. */
static void measured_streaming_ends_with_equal_ranks(void **state)
{
    lab x = outer_lab(3, LAB_GPT, LAB_ADAMW, 0.7, 0.9);

    (void)state;
    x.cfg.outer.overlap = DDP_OVERLAP_STREAM;
    x.cfg.deterministic = 0;
    x.cfg.profile_steps = 5;
    x.cfg.net = "20mbit,2ms";
    x.steps = 20;
    lab_run(&x);
    ranks_are_equal(&x);
    lab_free(&x);
}

/* ---- eager ---- */

static void eager_is_bit_identical_to_the_rule(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world += SAMPLED(2))
        for (int kind = 0; kind < 4; kind++) {
            lab x = outer_lab(world, kind % 2 ? LAB_ODD : LAB_TINY, (lab_rule)((world + kind) % LAB_RULES),
                              0.7, kind ? 0.9 : 0);
            x.cfg.outer.overlap = DDP_OVERLAP_EAGER;
            x.cfg.wire = kind == 3 ? DDP_WIRE_TOPK : kind == 2 ? DDP_WIRE_INT8 : DDP_WIRE_F32;
            x.forward_hooks = world % 2;
            x.steps = 14;
            x.no_sync_all = 1;
            if (world == 4) x.cfg.transport = DDP_TCP;
            if (world == 5) x.cfg.net = "200mbit,2ms";
            lab_run(&x);
            replay_is(&x, "eager");
            lab_free(&x);
        }
}

/* D = mean(d(t-1)) + (d_w(t) - d_w(t-1)) / W, as in the paper, except for rounding. */
static void eager_is_the_printed_form(float nu)
{
    static float theta[LAB_RANKS][LAB_VALUES], begun[LAB_RANKS][LAB_VALUES], before[LAB_RANKS][LAB_VALUES],
        change[LAB_RANKS][LAB_VALUES], g[LAB_VALUES], s[LAB_RANKS][2 * LAB_VALUES];
    lab x = outer_lab(3, LAB_ODD, LAB_SGD, (double)nu, 0);
    size_t count[LAB_LAYERS], n = 0;
    const int L = lab_sizes(LAB_ODD, count), K = x.cfg.world;
    ddp_optimizer o = lab_optimizer(LAB_SGD);

    x.cfg.outer.overlap = DDP_OVERLAP_EAGER;
    if (nu >= 1) x.cfg.outer.lr = x.cfg.outer.momentum = 0; /* the defaults */
    memset(before, 0, sizeof before);
    memset(s, 0, sizeof s);
    x.steps = 12;
    x.no_sync_all = 1;
    lab_run(&x);
    for (int l = 0; l < L; n += count[l++])
        for (int r = 0; r < K; r++)
            for (size_t i = 0; i < count[l]; i++) theta[r][n + i] = begun[r][n + i] = lab_start(0, l, i);
    for (int step = 0; step < x.steps; step++) {
        for (int r = 0; r < K; r++) {
            size_t at = 0;
            for (int l = 0; l < L; at += count[l++]) {
                lab_replica part;
                memset(g, 0, count[l] * sizeof *g);
                part.w[l] = theta[r] + at;
                part.g[l] = g;
                part.s[l] = s[r];
                lab_gradient(part.w[l], g, count[l], r, l, step * 10);
                lab_update(&o, &part, l, count[l], step);
            }
        }
        for (size_t i = 0; (step + 1) % x.cfg.period == 0 && i < n; i++) {
            float mean = 0;
            for (int r = 0; r < K; r++) mean += before[r][i] / (float)K;
            for (int r = 0; r < K; r++) {
                change[r][i] = begun[r][i] - theta[r][i];
                begun[r][i] -= nu * (mean + (change[r][i] - before[r][i]) / (float)K);
                theta[r][i] = begun[r][i];
            }
            for (int r = 0; r < K; r++) before[r][i] = change[r][i];
        }
    }
    for (int r = 0; r < K; r++)
        for (size_t i = 0; i < n; i++)
            if (fabsf(theta[r][i] - x.params[r][i]) > 2e-5f)
                fail_msg("rank %d, %zu: %g, printed %g", r, i, (double)x.params[r][i], (double)theta[r][i]);
    lab_free(&x);
}

static void eager_without_momentum_is_the_equation_of_the_paper(void **state)
{
    (void)state;
    eager_is_the_printed_form(0.7f);
    eager_is_the_printed_form(1);
}

static void eager_ranks_are_equal_after_sync_all(void **state)
{
    (void)state;
    for (int model = 0; model < LAB_MODELS; model++)
        for (int kind = 0; kind < 3; kind++) {
            lab x = outer_lab(4, (lab_model)model, LAB_ADAMW, 0.7, 0.9), y = x;
            x.cfg.outer.overlap = DDP_OVERLAP_EAGER;
            x.cfg.outer.compensation = kind ? 0.5 : 0;
            x.cfg.elastic.min_world = kind == 2; /* all of the momentum on every rank, with compensation */
            if (kind == 2) x.cfg.transport = DDP_TCP;
            lab_run(&x);
            ranks_are_equal(&x);
            if (kind == 2) {
                lab_new(&y, 4, DDP_DILOCO, 3);
                y.model = x.model;
                y.rule = x.rule;
                y.cfg = x.cfg;
                y.cfg.elastic.min_world = 0;
                lab_run(&y);
                same(&y, &x, "compensated in segments");
                lab_free(&y);
            }
            lab_free(&x);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_rate_1_and_no_momentum_it_is_local_sgd),
        cmocka_unit_test(it_is_bit_identical_to_the_outer_rule),
        cmocka_unit_test(momentum_in_segments_is_bit_identical_to_whole_momentum),
        cmocka_unit_test(coded_deltas_are_bit_identical_to_the_rule),
        cmocka_unit_test(an_elastic_world_is_bit_identical_to_a_plain_one),
        cmocka_unit_test(a_rank_that_leaves_loses_no_momentum),
        cmocka_unit_test(sparseloco_is_rate_1_without_momentum),
        cmocka_unit_test(all_codings_end_close_to_float32),
        cmocka_unit_test(streaming_in_one_set_at_once_is_diloco),
        cmocka_unit_test(streaming_is_bit_identical_to_the_rule),
        cmocka_unit_test(planned_streaming_is_identical_on_all_ranks),
        cmocka_unit_test(a_plan_predicts_the_bytes_of_topk),
        cmocka_unit_test(measured_streaming_ends_with_equal_ranks),
        cmocka_unit_test(eager_is_bit_identical_to_the_rule),
        cmocka_unit_test(eager_without_momentum_is_the_equation_of_the_paper),
        cmocka_unit_test(eager_ranks_are_equal_after_sync_all),
        cmocka_unit_test(after_an_outer_update_all_ranks_are_equal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
