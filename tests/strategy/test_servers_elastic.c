/* [long, asan, test-all: slow] Servers in an elastic world, as processes over TCP. If a worker is killed the
 * others continue. If a server is killed the run ends. */
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
#include <signal.h>
#include <sys/time.h>

#include "strategy/strategy_lab.h"

enum { W = 3 };
static const ddp_strategy every[] = {DDP_BSP, DDP_ASP, DDP_SSP, DDP_R2SP, DDP_OSP};

/* the rank that dies, at the start of which step, and how long after it */
static int victim, at_step, microseconds;

static void dies(const lab *x, int rank, int step)
{
    struct itimerval t;

    (void)x;
    if (rank != victim || step != at_step) return;
    if (!microseconds) raise(SIGKILL);
    memset(&t, 0, sizeof t);
    t.it_value.tv_usec = microseconds;
    setitimer(ITIMER_REAL, &t, NULL); /* SIGALRM ends it */
}

static void elastic(lab *x, ddp_strategy s, int servers, int least)
{
    lab_new(x, W + servers, s, 3);
    x->cfg.server.count = servers;
    x->cfg.elastic.min_world = least;
    x->cfg.transport = DDP_TCP;
    x->cfg.server.staleness = s == DDP_SSP ? 2 : 0;
    x->cfg.osp.defer = 0.5;
    x->before_step = dies;
    x->model = LAB_ODD;
}

static size_t values_of(const lab *x)
{
    size_t count[LAB_LAYERS], n = 0;

    for (int l = lab_sizes(x->model, count) - 1; l >= 0; l--) n += count[l];
    return n;
}

static void living_equal(const lab *x, const float *want)
{
    const size_t n = values_of(x);

    for (int r = 0; r < W; r++) {
        if (r == victim) continue;
        if (!want) want = x->params[r];
        if (memcmp(want, x->params[r], n * sizeof *want)) fail_msg("rank %d holds other parameters", r);
    }
    for (size_t i = 0; i < n; i++) assert_true(want[i] > -1e6f && want[i] < 1e6f);
}

/* The same training without the library. bsp, osp without deferral and ssp 0 (means): the mean of all workers
 * until the victim dies, then of the others. The rest: one update per push, in the order of steps and
 * ranks. */
static void replay(const lab *x, int means, float *out)
{
    static float mine[W][LAB_VALUES], g[W][LAB_VALUES], state[2 * LAB_VALUES];
    size_t count[LAB_LAYERS], at = 0, n = values_of(x);
    const ddp_optimizer o = lab_optimizer(x->rule);
    const int L = lab_sizes(x->model, count);
    long done = 0;

    memset(state, 0, sizeof state);
    for (int l = 0; l < L; at += count[l++])
        for (size_t i = 0; i < count[l]; i++) out[at + i] = lab_start(0, l, i);
    for (int w = 0; w < W; w++) memcpy(mine[w], out, n * sizeof *out);
    for (int step = 0; step < x->steps; step++) {
        int living = 0, of = 0;
        for (int w = 0; w < W; w++) {
            if (w == victim && step >= at_step) continue;
            living++;
            of += x->samples ? w + 1 : 1;
            memset(g[w], 0, sizeof g[w]);
            at = 0;
            for (int l = 0; l < L && means; at += count[l++])
                lab_gradient(out + at, g[w] + at, count[l], w, l, step * 10);
        }
        for (int w = 0; w < W; w++) {
            ddp_update u;
            if (w == victim && step >= at_step) continue;
            at = 0;
            if (!means) {
                for (int l = 0; l < L; at += count[l++])
                    lab_gradient(mine[w] + at, g[w] + at, count[l], w, l, step * 10);
            } else {
                static float sum[LAB_VALUES];
                for (size_t i = 0; i < n; i++) {
                    float one = x->samples ? (float)((double)(w + 1) / of) * g[w][i] : g[w][i];
                    DDP__ROUNDED(one);
                    sum[i] = living == 0 || w == (victim == 0 && step >= at_step) ? one : sum[i] + one;
                }
                if (w != (victim == 2 && step >= at_step ? 1 : 2)) continue;
                for (size_t i = 0; i < n; i++)
                    g[w][i] = x->samples ? sum[i] : sum[i] * (1.0f / (float)living);
            }
            at = 0;
            for (int l = 0; l < L; at += count[l++]) {
                memset(&u, 0, sizeof u);
                u.layer = l;
                u.params = out + at;
                u.grads = g[w] + at;
                u.state = state + 2 * at;
                u.count = count[l];
                u.step = done;
                u.lr = means ? o.lr : o.lr * (1.0f / (float)W);
                o.update(&o, &u);
            }
            done++;
            memcpy(mine[w], out, n * sizeof *out);
        }
    }
}

static void dies_at(ddp_strategy s, int who, int servers, lab_rule rule, int samples)
{
    static float want[LAB_VALUES];
    const int means = s == DDP_BSP || s == DDP_OSP;
    lab x;

    elastic(&x, s, servers, 1);
    x.rule = rule;
    x.samples = samples;
    x.cfg.osp.defer = DDP_DEFER_NONE;
    x.model = who == 1 ? LAB_TINY : LAB_ODD;
    victim = who;
    at_step = 4;
    microseconds = 0;
    lab_run(&x);
    replay(&x, means, want);
    living_equal(&x, want);
    lab_free(&x);
}

static void survivors_continue_bit_for_bit(void **state)
{
    (void)state;
    for (int s = 0; s < 5; s++)
        for (int who = 0; who < W; who++)
            dies_at(every[s], who, 1 + (s + who) % 2, (lab_rule)((s + who) % LAB_RULES), 0);
    dies_at(DDP_BSP, 1, 2, LAB_ADAMW, 1);
    dies_at(DDP_BSP, 0, 1, LAB_SGD, 1);
}

static void a_worker_may_die_at_any_moment(void **state)
{
    /* half of the moments combine each strategy with each victim too */
    const int moments = INSTANCES(4) == 4 ? 30 : 15;

    (void)state;
    for (int k = 0; k < moments; k++) {
        lab x;
        elastic(&x, every[k % 5], 1 + k % 2, 1);
        x.cfg.deterministic = k % 3 == 0;
        x.steps = 300;
        x.model = k % 4 ? LAB_TINY : LAB_ODD;
        victim = k % W;
        at_step = 5 + k;
        microseconds = 1 + 977 * k % 5000;
        lab_run(&x);
        living_equal(&x, NULL);
        lab_free(&x);
    }
}

static void only_rank_1_stays(const lab *x, int rank, int step)
{
    (void)x;
    if (rank != 1 && step == 4) raise(SIGKILL);
}

/* No majority is left, and none is needed: the server decides which workers are live. */
static void all_workers_but_one_may_die_at_once(void **state)
{
    (void)state;
    for (int s = 0; s < 5; s++) {
        lab x;
        elastic(&x, every[s], 1, 1);
        x.before_step = only_rank_1_stays;
        x.steps = 40;
        lab_run(&x);
        assert_int_equal(x.stats[1].steps, 40);
        lab_free(&x);
    }
}

static void fails_with(lab *x, const char *says, const char *too)
{
    ddp_error err;

    assert_int_equal(ddp_launch(&x->cfg, lab_worker, x, &err), DDP_PEER_LOST);
    if (!strstr(err.msg, says) || !strstr(err.msg, too))
        fail_msg("'%s' has no '%s' and '%s'", err.msg, says, too);
    lab_free(x);
}

static void fewer_than_min_world_is_an_error(void **state)
{
    (void)state;
    for (int s = 0; s < 5; s++) {
        lab x;
        elastic(&x, every[s], 1, W);
        victim = s % W;
        at_step = 3;
        microseconds = 0;
        fails_with(&x, "2 of 3 workers are left", "min_world is 3");
    }
}

/* ---- a server dies, and the run resumes from its checkpoint ---- */

static pid_t *process; /* [rank], shared */
static int kills_server;
static char folder[] = "/tmp/ddp_served_XXXXXX";

static void saves_and_kills(const lab *x, int rank, int step)
{
    (void)x;
    if (kills_server && rank == 0 && step == 8) kill(process[W + 1], SIGKILL);
}

typedef struct saved {
    lab *x;
    int resumes;
} saved;

/* LAB_TINY, with a checkpoint after step 5, or resumed from it. */
static int saves_or_resumes(ddp_ctx *d, void *user)
{
    const saved *v = (const saved *)user;
    lab *x = v->x;
    size_t count[LAB_LAYERS], at = 0;
    float w[16], g[16] = {0};
    const int L = lab_sizes(LAB_TINY, count);
    const ddp_optimizer o = lab_optimizer(x->rule);
    int bad = 0;

    process[ddp_rank(d)] = getpid();
    for (int l = 0; l < L; at += count[l++]) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        for (size_t i = 0; i < count[l]; i++) w[at + i] = lab_start(0, l, i);
        layer.params = w + at;
        layer.grads = g + at;
        layer.count = count[l];
        if (ddp_add_layer(d, &layer)) return 1;
    }
    bad = ddp_set_optimizer(d, &o);
    if (!bad && v->resumes) bad = ddp_checkpoint_load(d, folder, NULL);
    if (!bad && lab_serves(d)) return ddp_serve(d);
    for (int step = (int)ddp_step(d); !bad && step < x->steps; step++) {
        x->before_step(x, ddp_rank(d), step);
        at = 0;
        for (int l = 0; l < L; at += count[l++])
            lab_gradient(w + at, g + at, count[l], ddp_rank(d), l, step * 10);
        for (int l = L - 1; !bad && l >= 0; l--) bad = ddp_backward_end(d, l);
        if (!bad) bad = ddp_step_end(d);
        if (!bad && step == 5 && !v->resumes) bad = ddp_checkpoint_save(d, folder, 1);
    }
    if (!bad) bad = ddp_sync_all(d);
    if (!bad) memcpy(x->params[ddp_rank(d)], w, at * sizeof(float));
    return bad;
}

static void a_lost_server_is_named_with_its_layers_and_the_run_resumes(void **state)
{
    static float want[LAB_VALUES];

    (void)state;
    process = (pid_t *)lab_share(LAB_RANKS * sizeof *process);
    assert_non_null(mkdtemp(folder));
    victim = -1;
    for (int s = 0; s < 5; s++)
        for (int run = 0; run < 3; run++) { /* 0: uninterrupted; 1: killed; 2: resumed */
            saved v;
            lab x;
            ddp_error err;
            elastic(&x, every[s], 2, 2);
            x.model = LAB_TINY;
            x.rule = LAB_ADAMW;
            x.before_step = saves_and_kills;
            x.cfg.debug.overwrite = 1;
            v.x = &x;
            v.resumes = run == 2;
            kills_server = run == 1;
            if (run == 1) {
                assert_int_equal(ddp_launch(&x.cfg, saves_or_resumes, &v, &err), DDP_PEER_LOST);
                if (!strstr(err.msg, "rank 4 was lost") ||
                    !strstr(err.msg, "restart the job from its last checkpoint"))
                    fail_msg("'%s'", err.msg);
                if (!strstr(err.msg, "it served 2 layers: layer 0, layer 1")) fail_msg("'%s'", err.msg);
            } else {
                if (ddp_launch(&x.cfg, saves_or_resumes, &v, &err)) fail_msg("%s", err.msg);
                if (run == 0) memcpy(want, x.params[0], sizeof want);
                living_equal(&x, want);
            }
            lab_free(&x);
        }
}

/* The checkpoint of a run that has lost a worker has no file of that rank. Its replacement resumes at the
 * step of the others. */
static void a_run_that_lost_a_worker_can_save(void **state)
{
    (void)state;
    for (int s = 0; s < 5; s++)
        for (int resumes = 0; resumes < 2; resumes++) {
            saved v;
            lab x;
            ddp_error err;
            elastic(&x, every[s], 2, 2);
            x.model = LAB_TINY;
            x.cfg.debug.overwrite = 1;
            victim = resumes ? -1 : 1;
            at_step = 3;
            microseconds = 0;
            v.x = &x;
            v.resumes = resumes;
            if (ddp_launch(&x.cfg, saves_or_resumes, &v, &err)) fail_msg("%s", err.msg);
            living_equal(&x, NULL);
            lab_free(&x);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_continue_bit_for_bit),
        cmocka_unit_test(a_worker_may_die_at_any_moment),
        cmocka_unit_test(all_workers_but_one_may_die_at_once),
        cmocka_unit_test(fewer_than_min_world_is_an_error),
        cmocka_unit_test(a_lost_server_is_named_with_its_layers_and_the_run_resumes),
        cmocka_unit_test(a_run_that_lost_a_worker_can_save),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
