/* [asan] Theorem 1 of DreamDDP, tested on the library: a strongly convex quadratic, the step sizes of the
 * theorem, bounded noise. Every w_r^k is stored, so that Lemma 4 (divergence) and Eq. 6 (error of the
 * weighted mean of all iterates) are evaluated as printed. */
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

/* Each layer holds SEEDS independent runs. SGD on a separable quadratic never mixes coordinates, so one run
 * of the library is an expectation over SEEDS. */
enum { RANKS = 4, LAYERS = 6, SEEDS = 16, DIMS = 13, STEPS = 600, VALUES = SEEDS * DIMS };

/* f(w) = 1/2 sum c_l w_i^2, identical on all workers; w* = 0, f* = 0. */
static const int dims[LAYERS] = {4, 3, 2, 2, 1, 1};
static const double curvature[LAYERS] = {1, 1, 2, 3, 5, 8};
static const double mu = 1, beta = 8, noise = 0.5, start = 0.1;

typedef struct course {
    ddp_config cfg;
    double a;                                /* shift of the step sizes */
    int hooks;                               /* 1: calls ddp_forward_begin, so averages may arrive late */
    float w[RANKS][STEPS + 1][VALUES];       /* w_r^k */
    float g[RANKS][STEPS][VALUES];           /* its stochastic gradient */
    double divergence[RANKS][STEPS][LAYERS]; /* as reported after step r */
    double whole[RANKS];                     /* final ddp_stats.divergence */
    int step_of[LAYERS];
} course;

static float step_size(const course *c, int r) { return (float)(4 / (mu * (c->a + r))); }

/* Offset of a layer's values. */
static int layer_at(int layer)
{
    int l, at = 0;

    for (l = 0; l < layer; l++) at += SEEDS * dims[l];
    return at;
}

static void stochastic_gradient(const float *w, float *g, float *keep, int rank, int layer, int r)
{
    ddp_rng rng = ddp_rng_seed((uint64_t)(1 + rank), (uint64_t)r * LAYERS + (uint64_t)layer);
    int i;

    for (i = 0; i < SEEDS * dims[layer]; i++) {
        double x = noise * (2 * ddp_rng_uniform(&rng) - 1);
        g[i] = keep[i] = (float)(curvature[layer] * (double)w[i] + x);
    }
}

/* Stores the iterate before step r, and the divergence measured by the previous step. */
static int look(ddp_ctx *d, course *c, const float *w, int r)
{
    int k = ddp_rank(d), l;

    for (l = 0; c->hooks && l < LAYERS; l++)
        if (ddp_forward_begin(d, l)) return 1;
    memcpy(c->w[k][r], w, sizeof c->w[k][r]);
    for (l = 0; r && l < LAYERS; l++) c->divergence[k][r - 1][l] = ddp_divergence(d, l);
    return 0;
}

static int descend(ddp_ctx *d, void *user)
{
    course *c = (course *)user;
    ddp_optimizer o = ddp_sgd(1000, 0); /* replaced in every step */
    float w[VALUES], g[VALUES];
    int k = ddp_rank(d), l, r, i, bad;
    const ddp_plan *plan;
    ddp_stats stats;

    memset(g, 0, sizeof g);
    for (i = 0; i < VALUES; i++) w[i] = (float)start;
    for (l = 0; l < LAYERS; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = w + layer_at(l);
        layer.grads = g + layer_at(l);
        layer.count = (size_t)(SEEDS * dims[l]);
        if (ddp_add_layer(d, &layer)) return 1;
    }
    bad = ddp_set_optimizer(d, &o);
    for (r = 0; !bad && r < STEPS; r++) {
        ddp_step_info info;
        memset(&info, 0, sizeof info);
        info.lr = step_size(c, r);
        bad = ddp_report(d, &info) || look(d, c, w, r);
        for (l = LAYERS - 1; !bad && l >= 0; l--) {
            stochastic_gradient(w + layer_at(l), g + layer_at(l), c->g[k][r] + layer_at(l), k, l, r);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_wait(d) || look(d, c, w, STEPS);
    ddp_get_stats(d, &stats);
    c->whole[k] = stats.divergence;
    plan = ddp_plan_get(d);
    for (l = 0; k == 0 && l < LAYERS; l++) c->step_of[l] = plan ? plan->step_of[l] : c->cfg.period - 1;
    return bad;
}

static course *run(ddp_strategy strategy, int period, int world)
{
    course *c = (course *)calloc(1, sizeof *c);
    ddp_error err;

    assert_non_null(c);
    c->cfg.world = world;
    c->cfg.strategy = strategy;
    c->cfg.period = period;
    c->cfg.transport = DDP_THREADS;
    c->cfg.deterministic = 1;
    c->cfg.no_env = 1;
    c->cfg.timeout.peer_s = 60; /* for sanitizers on a busy machine */
    c->hooks = strategy == DDP_DREAMDDP && world == 2;
    c->a = 1 + (16 * beta / mu > period ? 16 * beta / mu : period);
    if (ddp_launch(&c->cfg, descend, c, &err)) fail_msg("%s", err.msg);
    return c;
}

/* 1 if step r ended with the average of that layer (Eq. 5). */
static int averaged(const course *c, int r, int layer) { return r % c->cfg.period == c->step_of[layer]; }

/* Mean over seeds of |x_layer|^2. */
static double square(const float *x, int layer)
{
    double sum = 0;
    int i;

    for (i = layer_at(layer); i < layer_at(layer + 1); i++) sum += (double)x[i] * (double)x[i];
    return sum / (int)SEEDS;
}

/* Gamma_r of one layer, mean over seeds: 1/K sum_k |mean - w_r^k|^2. */
static double gamma_of(const course *c, int r, int layer)
{
    int K = c->cfg.world, i, k;
    double sum = 0;

    for (i = layer_at(layer); i < layer_at(layer + 1); i++) {
        /* relative to w_r^0: exactly zero if all workers are equal */
        double mean = 0, first = (double)c->w[0][r][i];
        for (k = 0; k < K; k++) mean += ((double)c->w[k][r][i] - first) / K;
        for (k = 0; k < K; k++) sum += pow((double)c->w[k][r][i] - first - mean, 2) / K;
    }
    return sum / (int)SEEDS;
}

static double gamma_whole(const course *c, int r)
{
    double sum = 0;
    int l;

    for (l = 0; l < LAYERS; l++) sum += gamma_of(c, r, l);
    return sum;
}

/* G^2: the largest E|gradient|^2 of any worker in any step. */
static double gradient_bound(const course *c)
{
    double most = 0;
    int k, r, l;

    for (k = 0; k < c->cfg.world; k++)
        for (r = 0; r < STEPS; r++) {
            double sum = 0;
            for (l = 0; l < LAYERS; l++) sum += square(c->g[k][r], l);
            if (sum > most) most = sum;
        }
    return most;
}

/* Each w_{r+1}^k is w_r^k - eta_r g, bit for bit, unless Eq. 5 averages. If it averages, the reported
 * divergence is the distance by which the average moved this worker. */
static void check_steps(const course *c)
{
    int k, r, l, i;

    for (k = 0; k < c->cfg.world; k++)
        for (r = 0; r < STEPS; r++)
            for (l = 0; l < LAYERS; l++) {
                double moved = 0;
                for (i = layer_at(l); i < layer_at(l + 1); i++) {
                    volatile float change = step_size(c, r) * c->g[k][r][i]; /* no fused multiply-add */
                    float half = c->w[k][r][i] - change;
                    if (!averaged(c, r, l) || c->cfg.world == 1) assert_true(c->w[k][r + 1][i] == half);
                    moved += pow((double)c->w[k][r + 1][i] - (double)half, 2);
                }
                if (!averaged(c, r, l) || c->cfg.world == 1) continue;
                assert_true(moved > 0);
                assert_true(fabs(c->divergence[k][r][l] - moved) <= 1e-5 * moved);
            }
}

/* Lemma 4 at every r. Its proof bounds each layer, which is checked too: with r0 the layer's last average,
 * Gamma_r^l <= (r - r0) eta_r0^2 sum of E|g^l|^2 since then, and 0 at r0. */
static void check_lemma_4(const course *c)
{
    double G2 = gradient_bound(c);
    int K = c->cfg.world, H = c->cfg.period, r, l, k, h, last[LAYERS];

    for (l = 0; l < LAYERS; l++) last[l] = 0;
    for (r = 0; r <= STEPS; r++) {
        double eta = (double)step_size(c, r), gamma = gamma_whole(c, r);
        if (gamma > 4 * H * H * eta * eta * G2)
            fail_msg("world %d, H %d, r %d: divergence %g exceeds 4 H^2 eta^2 G^2 = %g", K, H, r, gamma,
                     4 * H * H * eta * eta * G2);
        for (l = 0; l < LAYERS; l++) {
            double since = 0, eta0;
            if (r && averaged(c, r - 1, l)) last[l] = r;
            assert_true(r - last[l] <= H);
            eta0 = (double)step_size(c, last[l]);
            for (k = 0; k < K; k++)
                for (h = last[l]; h < r; h++) since += square(c->g[k][h], l) / K;
            /* 1e-6 for the rounding of float iterates */
            if (gamma_of(c, r, l) > (1 + 1e-6) * (r - last[l]) * eta0 * eta0 * since)
                fail_msg("world %d, H %d, r %d, layer %d: divergence %g exceeds %g", K, H, r, l,
                         gamma_of(c, r, l), (r - last[l]) * eta0 * eta0 * since);
        }
    }
}

/* Eq. 6 after every number of steps R. */
static void check_equation_6(const course *c, double *error, double *bound)
{
    double G2 = gradient_bound(c), sigma2 = (int)DIMS * noise * noise / 3,
           distance = (int)DIMS * start * start;
    double S = 0, a = c->a, *sum = (double *)calloc(VALUES, sizeof *sum);
    int K = c->cfg.world, H = c->cfg.period, R, l, i, k;

    assert_non_null(sum);
    for (R = 1; R <= STEPS; R++) {
        double p = (a + R - 1) * (a + R - 1), n = R;
        S += p;
        assert_true(S >= n * n * n / 3);
        assert_true(fabs(S - n / 6 * (2 * n * n + 6 * a * n - 3 * n + 6 * a * a - 6 * a + 1)) < 1e-9 * S);
        *error = 0;
        for (l = 0; l < LAYERS; l++)
            for (i = layer_at(l); i < layer_at(l + 1); i++) {
                for (k = 0; k < K; k++) sum[i] += p * (double)c->w[k][R - 1][i] / K;
                *error += curvature[l] / 2 * pow(sum[i] / S, 2) / (int)SEEDS;
            }
        *bound = mu * a * a * a / (2 * S) * distance + 4 * n * (n + 2 * a) / (mu * K * S) * sigma2 +
                 256 * n / (mu * mu * S) * G2 * H * H * beta;
        if (*error > *bound)
            fail_msg("world %d, H %d, R %d: error %g exceeds the bound %g", K, H, R, *error, *bound);
    }
    free(sum);
}

static const int periods[] = {1, 2, 5, 10}, worlds[] = {1, 2, 4};

static void check_theorem(ddp_strategy strategy)
{
    int p, n;

    for (p = 0; p < 4; p++)
        for (n = 0; n < 3; n++) {
            course *c = run(strategy, periods[p], worlds[n]);
            double error, bound, mean = 0;
            int r;
            check_lemma_4(c);
            check_steps(c);
            check_equation_6(c, &error, &bound);
            for (r = 0; r <= STEPS; r++) mean += gamma_whole(c, r) / (STEPS + 1);
            print_message("%-8s H %2d, %d workers: error %.2e, Eq. 6 allows %.2e; mean divergence %.2e\n",
                          ddp_strategy_name(strategy), periods[p], worlds[n], error, bound, mean);
            free(c);
        }
}

static void localsgd_satisfies_lemma_4_and_theorem_1(void **state)
{
    (void)state;
    check_theorem(DDP_LOCALSGD);
}

static void dreamddp_satisfies_lemma_4_and_theorem_1(void **state)
{
    (void)state;
    check_theorem(DDP_DREAMDDP);
}

/* Figure 5(b): local SGD's divergence grows and is reset. DreamDDP's is always present, because each layer is
 * reset in its own step. Both report the mean over the ranks. */
static void full_averaging_resets_the_divergence_and_partial_does_not(void **state)
{
    int p, n, r, l, k;

    (void)state;
    for (p = 1; p < 4; p++)
        for (n = 1; n < 3; n++) {
            course *full = run(DDP_LOCALSGD, periods[p], worlds[n]),
                   *part = run(DDP_DREAMDDP, periods[p], worlds[n]);
            for (r = 0; r <= STEPS; r++) {
                assert_true((gamma_whole(full, r) == 0) == (r % periods[p] == 0));
                assert_true((gamma_whole(part, r) == 0) == (r == 0));
                for (l = 0; r && l < LAYERS; l++)
                    assert_true((gamma_of(part, r, l) == 0) == averaged(part, r - 1, l));
            }
            for (k = 0; k < worlds[n]; k++) {
                double sum = 0;
                for (l = 0; l < LAYERS; l++) sum += part->divergence[k][STEPS - 1][l];
                assert_true(fabs(part->whole[k] - sum) <= 1e-12 * sum);
            }
            free(full);
            free(part);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(localsgd_satisfies_lemma_4_and_theorem_1),
        cmocka_unit_test(dreamddp_satisfies_lemma_4_and_theorem_1),
        cmocka_unit_test(full_averaging_resets_the_divergence_and_partial_does_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
