/* Layers that only some ranks average: pipeline stages with replicas, and layers of a few ranks together
 * with layers that all ranks share. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { RANKS = 4, MOST = 3000, STEPS = 13 };

typedef enum shape { STAGES, EXPERTS } shape;

typedef struct run {
    ddp_config cfg;
    shape shape;
    int stage; /* of a run with only this stage, or -1 for both stages */
    int hooks;
    int bad; /* the usage error of one rank */
    float w[RANKS][MOST];
    int step_of[RANKS][8];
    int layers[RANKS];
    ddp_stats stats[RANKS];
} run;

/* Stage 0 has three layers, stage 1 five. With EXPERTS all ranks have these four layers. */
static int sizes_of(shape s, int stage, size_t *count)
{
    static const size_t first[] = {700, 33, 1000}, second[] = {1, 512, 77, 400, 900},
                        mixed[] = {300, 640, 129, 65};
    int n = s == EXPERTS ? 4 : stage ? 5 : 3;

    memcpy(count, s == EXPERTS ? mixed : stage ? second : first, (size_t)n * sizeof *count);
    return n;
}

/* Layers 1 and 2 are averaged by one half of the ranks. */
static int is_expert(shape s, int layer) { return s == EXPERTS && (layer == 1 || layer == 2); }

static float start_of(int half, int layer, size_t i)
{
    return (float)((int)(i * 37 + (size_t)layer * 11 + (size_t)half * 5) % 101 - 50) / 64.0f;
}

static float gradient_of(float w, int half, int place, int layer, size_t i, int step)
{
    uint32_t h = (uint32_t)(place * 977 + layer * 131 + step * 31 + half);

    h += (uint32_t)i * 2654435761u;
    h ^= h >> 15;
    h *= 2246822519u;
    return 0.3f * w + (float)(h >> 16) / 65536.0f - 0.5f;
}

static int worker(ddp_ctx *d, void *user)
{
    static const int halves[2][2] = {{0, 1}, {2, 3}};
    run *x = (run *)user;
    const int rank = ddp_rank(d), alone = x->stage >= 0;
    const int half = alone ? x->stage : rank / 2, place = rank % 2;
    float *w = (float *)calloc(2 * MOST, sizeof *w), *g = w + MOST;
    ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    size_t count[8], at = 0;
    ddp_layer layer;
    int L = sizes_of(x->shape, half, count), bad = 0, group[2] = {0, 0}, l, step;

    for (l = 0; !bad && !alone && l < 2; l++) bad = ddp_group(d, halves[l], 2, &group[l]);
    if (x->bad == 1 && rank == 3) L--;
    if (x->bad == 2 && rank == 3) count[1]++;
    for (l = 0, at = 0; !bad && l < L; at += count[l++]) {
        size_t i;
        for (i = 0; i < count[l]; i++) w[at + i] = start_of(half, l, i) + (float)place;
        memset(&layer, 0, sizeof layer);
        layer.params = w + at;
        layer.grads = g + at;
        layer.count = count[l];
        layer.group = x->shape == EXPERTS && !is_expert(x->shape, l) ? 0 : group[half];
        if (x->bad == 3 && rank == 3) layer.group = group[0];
        if (x->bad == 4 && rank == 3 && l == 0) layer.group = 0;
        if (x->bad == 5 && rank == 3 && l == 1) layer.group = 0;
        bad = ddp_add_layer(d, &layer);
    }
    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (step = 0; !bad && step < STEPS; step++) {
        for (l = 0; !bad && x->hooks && l < L; l++) bad = ddp_forward_begin(d, l);
        for (l = L - 1, at = 0; l >= 0; l--) at += count[l];
        for (l = L - 1; !bad && l >= 0; l--) {
            size_t i;
            at -= count[l];
            for (i = 0; i < count[l]; i++) g[at + i] = gradient_of(w[at + i], half, place, l, i, step);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_sync_all(d);
    memcpy(x->w[rank], w, MOST * sizeof *w);
    x->layers[rank] = L;
    for (l = 0; !bad && ddp_plan_get(d) && l < L; l++) x->step_of[rank][l] = ddp_plan_get(d)->step_of[l];
    ddp_get_stats(d, &x->stats[rank]);
    free(w);
    return bad;
}

static run *run_new(ddp_strategy strategy, int world)
{
    void *p = mmap(NULL, sizeof(run), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run *x = (run *)p;

    assert_true(p != MAP_FAILED);
    x->cfg.no_env = 1;
    x->cfg.world = world;
    x->cfg.strategy = strategy;
    x->cfg.transport = DDP_THREADS;
    x->cfg.deterministic = 1;
    x->cfg.period = 4;
    x->cfg.gradient.bucket_bytes = 3000;
    x->cfg.timeout.peer_s = 60;
    x->stage = -1;
    return x;
}

static void run_free(run *x) { munmap(x, sizeof *x); }

static void run_it(run *x)
{
    ddp_error err;

    if (ddp_launch(&x->cfg, worker, x, &err)) fail_msg("%s", err.msg);
}

static const ddp_strategy every[] = {DDP_SSGD,     DDP_WFBP,   DDP_LOCALSGD,   DDP_ENP,
                                     DDP_DREAMDDP, DDP_MGWFBP, DDP_ASCWFBP,    DDP_BYTESCHEDULER,
                                     DDP_USBYTE,   DDP_DILOCO, DDP_SPARSELOCO, DDP_DEFT};
enum { EVERY = sizeof every / sizeof every[0] };

/* Two stages that train at the same time are bit-identical to each stage trained by two workers. */
static void two_stages_are_bit_identical_to_separate_runs(void **state)
{
    (void)state;
    for (int s = 0; s < EVERY; s++)
        for (int kind = 0; kind < 3; kind++) {
            run *both = run_new(every[s], RANKS), *one = run_new(every[s], 2);
            both->hooks = one->hooks = kind > 0;
            both->cfg.wire = one->cfg.wire = kind == 2 ? DDP_WIRE_INT8 : DDP_WIRE_F32;
            both->cfg.transport = kind == 1 ? DDP_TCP : DDP_THREADS;
            run_it(both);
            for (one->stage = 0; one->stage < 2; one->stage++) {
                memset(one->w, 0, sizeof one->w);
                run_it(one);
                for (int r = 0; r < 2; r++) {
                    assert_memory_equal(both->w[2 * one->stage + r], one->w[0], sizeof one->w[0]);
                    assert_memory_equal(both->step_of[2 * one->stage + r], one->step_of[0],
                                        sizeof one->step_of[0]);
                }
            }
            run_free(both);
            run_free(one);
        }
}

/* Reference: layers 0 and 3 are averaged over all ranks, layers 1 and 2 over half of them. */
static void experts_plain(int period, float (*w)[MOST])
{
    static float v[RANKS][MOST], g[RANKS][MOST];
    size_t count[8], at, i;
    int L = sizes_of(EXPERTS, 0, count), l, r, q, step;

    memset(v, 0, sizeof v);
    memset(w, 0, RANKS * sizeof *w);
    for (r = 0; r < RANKS; r++)
        for (l = 0, at = 0; l < L; at += count[l++])
            for (i = 0; i < count[l]; i++) w[r][at + i] = start_of(is_expert(EXPERTS, l) ? r / 2 : 0, l, i);
    for (step = 0; step < STEPS; step++) {
        for (r = 0; r < RANKS; r++)
            for (l = 0, at = 0; l < L; at += count[l++])
                for (i = 0; i < count[l]; i++)
                    g[r][at + i] = gradient_of(w[r][at + i], r / 2, r % 2, l, i, step);
        /* first pass: gradients and the update; second pass: parameters */
        for (int pass = 0; pass < 2; pass++) {
            float(*x)[MOST] = pass ? w : g;
            for (r = 0; r < RANKS && pass; r++)
                for (i = 0; i < MOST; i++) {
                    v[r][i] = 0.9f * v[r][i] + g[r][i];
                    w[r][i] -= 0.1f * v[r][i];
                }
            if (pass ? period == 0 || (step + 1) % period : period > 0) continue;
            for (l = 0, at = 0; l < L; at += count[l++])
                for (i = at; i < at + count[l]; i++)
                    for (int h = 0; h < 2; h++) {
                        int from = is_expert(EXPERTS, l) ? 2 * h : 0;
                        int n = is_expert(EXPERTS, l) ? 2 : RANKS;
                        float sum = x[from][i];
                        if (!is_expert(EXPERTS, l) && h) continue;
                        for (q = 1; q < n; q++) sum += x[from + q][i];
                        for (q = 0; q < n; q++) x[from + q][i] = sum * (1.0f / (float)n);
                    }
        }
    }
}

static void shared_layers_and_layers_of_some_ranks_train_together(void **state)
{
    static float want[RANKS][MOST];
    (void)state;
    for (int s = 0; s < 3; s++)
        for (int tcp = 0; tcp < 2; tcp++) {
            run *x = run_new(every[s], RANKS);
            x->shape = EXPERTS;
            x->cfg.transport = tcp ? DDP_TCP : DDP_THREADS;
            x->cfg.period = STEPS; /* average in the last step, so that ddp_sync_all finds equal parameters */
            run_it(x);
            experts_plain(every[s] == DDP_LOCALSGD ? STEPS : 0, want);
            for (int r = 0; r < RANKS; r++) {
                size_t n = 300 + 640 + 129 + 65;
                assert_memory_equal(x->w[r], want[r], n * sizeof(float));
            }
            run_free(x);
        }
    for (int s = 3; s < 5; s++) { /* shared layers are equal on all ranks, expert layers within each half */
        run *x = run_new(every[s], RANKS);
        x->shape = EXPERTS;
        x->hooks = 1;
        run_it(x);
        for (int r = 1; r < RANKS; r++) {
            assert_memory_equal(x->w[r], x->w[0], 300 * sizeof(float));
            assert_memory_equal(x->w[r] + 1069, x->w[0] + 1069, 65 * sizeof(float));
            assert_memory_equal(x->w[r] + 300, x->w[r / 2 * 2] + 300, 769 * sizeof(float));
        }
        assert_memory_not_equal(x->w[2] + 300, x->w[0] + 300, 769 * sizeof(float));
        run_free(x);
    }
}

/* Each stage makes its own profile, link measurements and plan. */
static void stages_measure_and_plan_separately(void **state)
{
    run *x = run_new(DDP_DREAMDDP, RANKS);
    (void)state;
    x->cfg.deterministic = 0;
    x->cfg.profile_steps = 3;
    x->cfg.period = 2;
    x->hooks = 1;
    run_it(x);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(x->layers[r], r < 2 ? 3 : 5);
        assert_memory_equal(x->step_of[r], x->step_of[r / 2 * 2], sizeof x->step_of[r]);
        assert_memory_equal(x->w[r], x->w[r / 2 * 2], sizeof x->w[r]);
        /* on a busy machine, starting a message between threads can take as long as the whole message */
        assert_true(x->stats[r].link.alpha_s + x->stats[r].link.beta_s > 0);
        assert_true(x->stats[r].slowest_rank / 2 == r / 2); /* a rank of the same stage */
    }
    run_free(x);
}

static void invalid_settings_fail_with_an_error(void **state)
{
    static const struct {
        shape shape;
        int bad;
        ddp_status status;
        const char *words[2];
    } table[] = {
        {STAGES, 1, DDP_MISMATCH, {"rank 3 registered 4 layers, rank 2 has 5", "of a group"}},
        {STAGES,
         2,
         DDP_MISMATCH,
         {"layer 1: rank 3 registered layer 1 with 513 values in ", ", rank 2 layer 1 with "}},
        {STAGES, 3, DDP_ARG, {"belongs to group 1, which rank 3 is not in", "ddp_group"}},
        {STAGES, 4, DDP_MISMATCH, {"belong to group ", "to none or to several"}},
        {EXPERTS, 5, DDP_MISMATCH, {"layer 1 (layer 1) belongs to group", "register it with the same group"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        run *x = run_new(DDP_WFBP, RANKS);
        ddp_error err;
        x->shape = table[i].shape;
        x->bad = table[i].bad;
        assert_int_equal(ddp_launch(&x->cfg, worker, x, &err), table[i].status);
        if (!strstr(err.msg, table[i].words[0]) || !strstr(err.msg, table[i].words[1]))
            fail_msg("mistake %d: %s", table[i].bad, err.msg);
        x->bad = 0;
        x->cfg.clip_norm = 1;
        assert_int_equal(ddp_launch(&x->cfg, worker, x, &err), DDP_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "set clip_norm to 0"));
        run_free(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_stages_are_bit_identical_to_separate_runs),
        cmocka_unit_test(shared_layers_and_layers_of_some_ranks_train_together),
        cmocka_unit_test(stages_measure_and_plan_separately),
        cmocka_unit_test(invalid_settings_fail_with_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
