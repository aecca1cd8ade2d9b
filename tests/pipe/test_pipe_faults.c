/* [long] A rank of a pipeline is lost or fails: every other rank ends with an error that names its stage and
 * pipeline. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "heap.h"

enum { RANKS = 6, BATCH = 2, STEPS = 6 };

/* The moment at which the victim dies. */
typedef enum moment { OPENING, FORWARD, UPDATE, LOSS, EVALUATION, NOT_FINITE, SCRIPT, MOMENTS } moment;

typedef struct board {
    ddp_error err[RANKS];
} board;

typedef struct job {
    ddp_config cfg;
    ddp_pipeline schedule;
    int stages, victim;
    moment when;
    board *b;
} job;

/* SGD without momentum. The victim dies in its second step, when gradients are averaged or being averaged. */
static int deadly;
static void update(const ddp_optimizer *self, const ddp_update *u)
{
    (void)self;
    if (deadly && u->step == 1) kill(getpid(), SIGKILL);
    for (size_t i = 0; i < u->count; i++) u->params[i] -= u->lr * u->grads[i];
}

static void dies(const ddp_ctx *d, const job *j, moment now, int step)
{
    if (ddp_rank(d) == j->victim && j->when == now && step == 1) kill(getpid(), SIGKILL);
}

static void fill(ddp_pipe *p, int step)
{
    for (int m = 0; m < 4; m++) {
        float *x = (float *)ddp_pipe_input(p, m, "x");
        int32_t *labels = (int32_t *)ddp_pipe_input(p, m, "labels");
        ddp_rng r = ddp_rng_seed((uint64_t)(ddp_pipe_number(p) * 100 + step), (uint64_t)m);
        for (int i = 0; x && i < 7 * BATCH; i++) x[i] = (float)ddp_rng_normal(&r);
        for (int i = 0; labels && i < BATCH; i++) labels[i] = (int32_t)ddp_rng_below(&r, 5);
    }
}

static int train(ddp_ctx *d, const job *j, ddp_pipe *p)
{
    for (int step = 0; step < STEPS || j->when == SCRIPT; step++) {
        ddp_step_info info;
        int bad;
        memset(&info, 0, sizeof info);
        fill(p, step);
        dies(d, j, FORWARD, step);
        bad = ddp_pipe_step(p);
        if (bad) return bad;
        dies(d, j, LOSS, step);
        info.loss = (double)ddp_pipe_loss(p);
        if (j->when == NOT_FINITE && ddp_rank(d) == j->victim && step == 1) info.loss = (double)NAN;
        if (!ddp_last_error(d)->code) ddp_report(d, &info);
        bad = ddp_step_end(d);
        if (bad) return bad;
        dies(d, j, EVALUATION, step);
        bad = ddp_wait(d); /* averages in flight write the parameters */
        if (!bad) bad = ddp_pipe_evaluate(p, 2);
        if (bad) return bad;
    }
    return 0;
}

static int worker(ddp_ctx *d, void *user)
{
    const job *j = (const job *)user;
    ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_pipe_config c;
    ddp_mlp_config m;
    ddp_graph *g = ddp_graph_new(d);
    ddp_pipe *p;
    int bad;

    memset(&m, 0, sizeof m);
    m.batch = BATCH;
    m.inputs = 7;
    m.hidden[0] = 9;
    m.hidden[1] = 5;
    m.hidden[2] = 11;
    m.classes = 5;
    memset(&c, 0, sizeof c);
    c.stages = j->stages;
    c.schedule = j->schedule;
    p = ddp_pipe_open(d, g, ddp_mlp(g, &m, NULL), &c);
    if (j->when == OPENING && ddp_rank(d) == j->victim)
        ddp__sleep_until(ddp_now() + 0.2); /* the others wait for it */
    dies(d, j, OPENING, 1);
    bad = p ? 0 : (int)ddp_last_error(d)->code;
    if (j->when == UPDATE && ddp_rank(d) == j->victim) deadly = 1;
    o.update = update;
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad) bad = train(d, j, p);
    j->b->err[ddp_rank(d)] = *ddp_last_error(d);
    ddp_pipe_close(p);
    return bad;
}

static board *boards(void)
{
    board *b = (board *)mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(b != MAP_FAILED);
    return b;
}

/* Every survivor ends with that code and names the victim. */
static void expect(const job *j, ddp_status code, const char *does)
{
    char who[96];

    snprintf(who, sizeof who, "stage %d of pipeline %d (rank %d)", j->victim % j->stages,
             j->victim / j->stages, j->victim);
    for (int r = 0; r < j->cfg.world; r++) {
        const ddp_error *e = &j->b->err[r];
        if (r == j->victim) continue;
        if (e->code != code || !strstr(e->msg, who) || !strstr(e->msg, does))
            fail_msg("%d stages, %s, moment %d: rank %d reports (%d) '%s', expected '%s' and '%s'", j->stages,
                     ddp_pipeline_name(j->schedule), (int)j->when, r, (int)e->code, e->msg, who, does);
    }
}

static void lose(job *j, int world, ddp_transport transport)
{
    ddp_error err;
    double begin = ddp_now();
    int code;

    memset(j->b, 0, sizeof *j->b);
    memset(&err, 0, sizeof err);
    j->cfg.world = world;
    j->cfg.micro_batches = 4;
    j->cfg.no_env = 1;
    j->cfg.transport = transport;
    j->cfg.timeout.peer_s = transport == DDP_THREADS ? 3 : 20;
    code = ddp_launch(&j->cfg, worker, j, &err);
    if (j->when == NOT_FINITE) {
        assert_int_equal(code, DDP_NUMERIC);
        expect(j, DDP_NUMERIC, "the loss is nan");
        return;
    }
    assert_int_equal(code, DDP_PEER_LOST);
    assert_int_equal(ddp_status_exit_code((ddp_status)code), 3);
    expect(j, DDP_PEER_LOST, " was lost");
    assert_true(ddp_now() - begin < 15); /* without a time-out, because the process ended */
}

static void a_lost_rank_is_named_at_any_moment(void **state)
{
    static const ddp_strategy all[] = {DDP_SSGD, DDP_LOCALSGD, DDP_DREAMDDP};
    job j;

    (void)state;
    for (int when = OPENING; when < SCRIPT; when++)
        for (int s = DDP_PIPELINE_GPIPE; s <= DDP_PIPELINE_ZB; s++) {
            memset(&j, 0, sizeof j);
            j.b = boards();
            j.cfg.strategy = all[(when + s) % 3];
            j.cfg.period = 2;
            j.schedule = (ddp_pipeline)s;
            j.stages = 2 + (when + s) % 2;
            j.when = (moment)when;
            j.victim = (when * 5 + s) % 6;
            lose(&j, 6, DDP_TCP);
            munmap(j.b, sizeof *j.b);
        }
}

static void a_thread_with_a_cut_link_is_named(void **state)
{
    job j;

    (void)state;
    for (int s = DDP_PIPELINE_GPIPE; s <= DDP_PIPELINE_ZB; s++) {
        char path[] = "/tmp/ddp-faults-XXXXXX", text[64];
        const int fd = mkstemp(path);
        memset(&j, 0, sizeof j);
        j.b = boards();
        j.when = SCRIPT;
        j.schedule = (ddp_pipeline)s;
        j.stages = 2;
        j.victim = s;
        j.cfg.strategy = s == DDP_PIPELINE_ZB ? DDP_DREAMDDP : DDP_SSGD;
        snprintf(text, sizeof text, "t=0.4 stall %d for 60\n", j.victim);
        assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
        close(fd);
        j.cfg.network.net_script = path;
        lose(&j, 4, DDP_THREADS);
        unlink(path);
        munmap(j.b, sizeof *j.b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_rank_is_named_at_any_moment),
        cmocka_unit_test(a_thread_with_a_cut_link_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
