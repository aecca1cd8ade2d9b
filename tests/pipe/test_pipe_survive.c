/* [long] Pipelines continue without those that have lost a rank. The result is bit-identical to as many
 * unpipelined workers as pipelines are left, starting from the state before the interrupted step. */
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

enum { RANKS = 6, BATCH = 2, STEPS = 9, MICRO = 4, WORLDS = 3 };

/* The moment of a step at which a victim dies. */
typedef enum moment { FORWARD, UPDATE, LOSS, EVALUATION, LEAVES, MOMENTS } moment;

/* Shared by all processes. Per world of the survivors: number of pipelines, first step. */
typedef struct board {
    uint64_t hash[RANKS];
    float loss[RANKS];
    ddp_error err[RANKS];
    int worlds[RANKS], replicas[RANKS][WORLDS];
    long from[RANKS][WORLDS];
} board;

typedef struct job {
    ddp_config cfg;
    ddp_pipeline schedule;
    int stages, replicas, min_replicas;
    int victim[2], step[2], victims; /* victim: rank in the i-th world; step: in which it dies */
    moment when;
    int adamw;
    ddp_edge_wire edge; /* if set, all pipelines have the same data, and the reference is one pipeline */
    board *b;
    /* of the reference: one part of the run */
    const char *load, *save;
    long to;
} job;

static int deadly; /* of this process: the update in which it dies, from 1 */

static void update(const ddp_optimizer *self, const ddp_update *u)
{
    const ddp_optimizer *o = (const ddp_optimizer *)self->user;

    if (deadly && u->step == deadly - 1) kill(getpid(), SIGKILL);
    o->update(o, u);
}

/* Micro-batch g of the run. */
static void fill(float *x, int32_t *labels, long g)
{
    ddp_rng r = ddp_rng_seed((uint64_t)g, 1), q = ddp_rng_seed((uint64_t)g, 2);

    for (int i = 0; x && i < 7 * BATCH; i++) x[i] = (float)ddp_rng_normal(&r);
    for (int i = 0; labels && i < BATCH; i++) labels[i] = (int32_t)ddp_rng_below(&q, 5);
}

static long sample(const job *j, long step, int M, int m, int R, int number)
{
    return j->edge.coding ? step * M + m : (step * M + m) * R + number;
}

static ddp_node *model(ddp_graph *g, const job *j)
{
    ddp_mlp_config m;

    memset(&m, 0, sizeof m);
    m.batch = BATCH;
    m.inputs = 7;
    m.hidden[0] = 9;
    m.hidden[1] = j->edge.coding ? 40 : 5;
    m.hidden[2] = 11;
    m.classes = 5;
    return ddp_mlp(g, &m, NULL);
}

static ddp_optimizer optimizer(const job *j, ddp_optimizer *plain)
{
    ddp_optimizer o;

    *plain = j->adamw ? ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0.1f) : ddp_sgd(0.1f, 0.9f);
    o = *plain;
    o.update = update;
    o.user = plain;
    return o;
}

/* 1: this rank dies in this step of this world. */
static int doomed(const ddp_ctx *d, const job *j, int world, long step)
{
    return world < j->victims && ddp_rank(d) == j->victim[world] && step == j->step[world];
}

static int train(ddp_ctx *d, const job *j, ddp_pipe *p, int world, int own)
{
    const int R = ddp_world(d) / j->stages, M = ddp_pipe_micro_batches(p);

    for (long step = ddp_step(d); step < STEPS; step++) {
        const int now = doomed(d, j, world, step);
        int bad;
        if (now && (j->when == FORWARD || j->when == LEAVES))
            ddp__sleep_until(ddp_now() + 0.3); /* all others reach the barrier */
        if (now && j->when == LEAVES) return (int)DDP_ABORTED;
        if (now && j->when == FORWARD) kill(getpid(), SIGKILL);
        if (now && j->when == UPDATE) deadly = (int)step + 1;
        for (int m = 0; m < M; m++)
            fill((float *)ddp_pipe_input(p, m, "x"), (int32_t *)ddp_pipe_input(p, m, "labels"),
                 sample(j, step, M, m, R, ddp_pipe_number(p)));
        bad = ddp_pipe_step(p);
        if (now && j->when == LOSS) kill(getpid(), SIGKILL);
        if (!bad) j->b->loss[own] = ddp_pipe_loss(p);
        if (!bad) bad = ddp_step_end(d);
        if (now && j->when == EVALUATION) kill(getpid(), SIGKILL);
        if (!bad && step % 3 == 1) bad = ddp_wait(d); /* averages may be in flight */
        if (!bad && step % 3 == 1) bad = ddp_pipe_evaluate(p, 2);
        if (bad) return bad;
    }
    return 0;
}

/* One world. */
static int worker(ddp_ctx *d, void *user)
{
    const job *j = (const job *)user;
    const int world = j->replicas - ddp_world(d) / j->stages; /* one pipeline is lost at a time */
    ddp_optimizer plain, o = optimizer(j, &plain);
    ddp_graph *g = ddp_graph_new(d);
    ddp_pipe_config c;
    ddp_pipe *p;
    int bad, own = ddp_rank(d);

    memset(&c, 0, sizeof c);
    c.stages = j->stages;
    c.schedule = j->schedule;
    c.edge = j->edge;
    p = ddp_pipe_open(d, g, model(g, j), &c);
    bad = p ? ddp_set_optimizer(d, &o) : (int)ddp_last_error(d)->code;
    if (!bad) bad = ddp_pipe_resume(p);
    if (!bad) {
        j->b->replicas[own][world] = ddp_world(d) / j->stages;
        j->b->from[own][world] = ddp_step(d);
        j->b->worlds[own] = world + 1;
        if (ddp_pipe_ends(p)) {
            if (ddp_pipe_number(p) == 0) bad = ddp_pipe_hash(p, &j->b->hash[own]);
            ddp_pipe_close(p);
            return bad;
        }
        bad = train(d, j, p, world, own);
    }
    if (!bad) bad = ddp_sync_all(d);
    if (!bad) bad = ddp_pipe_hash(p, &j->b->hash[own]);
    if (ddp_last_error(d)->code) j->b->err[own] = *ddp_last_error(d);
    ddp_pipe_close(p);
    return bad;
}

/* Trains from ddp_step to j->to, unpipelined or, with coded edges, as one pipeline. */
static int whole(ddp_ctx *d, void *user)
{
    const job *j = (const job *)user;
    const int R = ddp_world(d), M = j->cfg.micro_batches;
    ddp_optimizer plain, o = optimizer(j, &plain);
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = model(g, j);
    ddp_pipe_config c;
    ddp_pipe *p = NULL;
    uint64_t hash = 0;
    int bad;

    memset(&c, 0, sizeof c);
    c.stages = j->stages;
    c.schedule = j->schedule;
    c.edge = j->edge;
    if (j->edge.coding) p = ddp_pipe_open(d, g, loss, &c);
    bad = j->edge.coding ? (int)ddp_last_error(d)->code : ddp_graph_build(g);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && j->load) bad = ddp_checkpoint_load(d, j->load, NULL);
    for (long step = ddp_step(d); step < j->to && !bad; step++) {
        for (int m = 0; m < M && !bad; m++) {
            float *x = (float *)(p ? ddp_pipe_input(p, m, "x") : ddp_data(g, "x"));
            fill(x, (int32_t *)(p ? ddp_pipe_input(p, m, "labels") : ddp_data(g, "labels")),
                 sample(j, step, M, m, R, ddp_rank(d)));
            if (!p) bad = ddp_forward(g);
            if (!p && !bad) bad = ddp_backward(g, loss);
        }
        if (p && !bad) bad = ddp_pipe_step(p);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_sync_all(d);
    if (!bad && j->save) bad = ddp_checkpoint_save(d, j->save, 0);
    for (int l = 0; !bad && !p && l < ddp__count(g->layer); l++)
        hash = ddp_hash_floats(hash, g->layer[l].params, g->layer[l].count);
    if (!bad && p) bad = ddp_pipe_hash(p, &hash);
    j->b->hash[ddp_rank(d)] = hash;
    ddp_pipe_close(p);
    return bad;
}

static board *boards(void)
{
    board *b = (board *)mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(b != MAP_FAILED);
    return b;
}

static int lose(job *j, ddp_transport transport, ddp_error *err)
{
    memset(j->b, 0, sizeof *j->b);
    memset(err, 0, sizeof *err);
    j->cfg.world = j->stages * j->replicas;
    j->cfg.micro_batches = MICRO;
    j->cfg.no_env = 1;
    j->cfg.deterministic = 1;
    j->cfg.seed = 3;
    j->cfg.transport = transport;
    j->cfg.timeout.peer_s = 30;
    return ddp_launch_pipelines(&j->cfg, j->stages, j->min_replicas, worker, j, err);
}

/* The same steps as rank 0's worlds, without pipelines or losses. */
static uint64_t reference(const job *like)
{
    const board *b = like->b;
    const int n = b->worlds[0];
    char folder[WORLDS][40];
    uint64_t hash;
    job j = *like;

    j.b = boards();
    j.cfg.transport = DDP_THREADS;
    for (int i = 0; i < n; i++) {
        ddp_error err;
        snprintf(folder[i], sizeof folder[i], "/tmp/ddp-survive-%d.%d", (int)getpid(), i);
        j.cfg.world = b->replicas[0][i];
        j.cfg.micro_batches = MICRO * like->replicas / j.cfg.world;
        if (j.edge.coding) j.cfg.world = j.stages;
        j.load = i ? folder[i - 1] : NULL;
        j.save = i + 1 < n ? folder[i] : NULL;
        j.to = i + 1 < n ? b->from[0][i + 1] : (long)STEPS;
        if (ddp_launch(&j.cfg, whole, &j, &err)) fail_msg("the reference: %s", err.msg);
    }
    hash = j.b->hash[0];
    for (int i = 0; i < n; i++) {
        char command[140];
        snprintf(command, sizeof command, "rm -rf %s", folder[i]);
        if (system(command)) fail_msg("%s", command);
    }
    munmap(j.b, sizeof *j.b);
    return hash;
}

/* All survivors have parameters bit-identical to the reference. */
static void expect(const job *j, int left, int exactly)
{
    const board *b = j->b;
    const uint64_t hash = exactly ? reference(j) : b->hash[0];
    const int world = b->worlds[0] - 1;

    assert_int_equal(b->worlds[0], j->victims + 1);
    /* lost in the step of the victim, or in an adjacent one that other ranks were in */
    for (int i = 0; i < world; i++) {
        const int beside = j->when != FORWARD && j->when != LEAVES, before = exactly ? beside : j->cfg.period;
        if (b->from[0][i + 1] < j->step[i] - before || b->from[0][i + 1] > j->step[i] + beside)
            fail_msg("moment %d: lost in step %d, resumed from %ld", (int)j->when, j->step[i],
                     b->from[0][i + 1]);
    }
    for (int r = 0; r < left * j->stages; r++) {
        assert_int_equal(b->replicas[r][world], left);
        assert_int_equal(b->from[r][world], b->from[0][world]);
        assert_true(b->loss[r] > 0 && b->loss[r] < 100);
        if (b->hash[r] != hash)
            fail_msg("%d stages, %s, moment %d, %s: rank %d of %d pipelines, from step %ld on, differs",
                     j->stages, ddp_pipeline_name(j->schedule), (int)j->when,
                     ddp_strategy_name(j->cfg.strategy), r, left, b->from[0][world]);
    }
}

static void survivors_are_bit_identical_to_a_smaller_run(void **state)
{
    static const ddp_strategy all[] = {DDP_SSGD, DDP_WFBP, DDP_USBYTE};
    ddp_error err;
    job j;

    (void)state;
    for (int when = FORWARD; when < LEAVES; when++)
        for (int s = DDP_PIPELINE_GPIPE; s <= DDP_PIPELINE_ZB; s++) {
            memset(&j, 0, sizeof j);
            j.b = boards();
            j.schedule = (ddp_pipeline)s;
            j.when = (moment)when;
            j.cfg.strategy = all[(when + s) % 3];
            j.adamw = when % 2;
            j.stages = 2 + s % 2;
            j.replicas = 6 / j.stages;
            j.min_replicas = 1;
            j.victims = 1;
            j.victim[0] = (when * 4 + s) % 6;
            j.step[0] = (when + s) % 4;
            if (lose(&j, DDP_TCP, &err)) fail_msg("moment %d: %s", when, err.msg);
            expect(&j, j.replicas - 1, 1);
            munmap(j.b, sizeof *j.b);
        }
}

static void pipelines_can_be_lost_one_after_another(void **state)
{
    ddp_error err;
    job j;

    (void)state;
    memset(&j, 0, sizeof j);
    j.b = boards();
    j.cfg.strategy = DDP_SSGD;
    j.adamw = 1;
    j.stages = 2;
    j.replicas = 3;
    j.min_replicas = 1;
    j.victims = 2;
    j.victim[0] = 0; /* all others reached the barrier of that step */
    j.step[0] = 2;
    j.victim[1] = 3; /* rank in the second world */
    j.step[1] = 5;
    if (lose(&j, DDP_TCP, &err)) fail_msg("%s", err.msg);
    expect(&j, 1, 1);
    munmap(j.b, sizeof *j.b);
}

/* Parameters not averaged yet, gradients not applied, quantisation residuals. */
static void state_of_each_replica_is_resumed(void **state)
{
    static const ddp_strategy all[] = {DDP_LOCALSGD, DDP_DREAMDDP, DDP_ENP, DDP_DEFT};
    ddp_error err;
    job j;

    (void)state;
    for (int i = 0; i < 4; i++) {
        memset(&j, 0, sizeof j);
        j.b = boards();
        j.cfg.strategy = all[i];
        j.cfg.period = 3;
        j.stages = 2;
        j.replicas = 3;
        j.min_replicas = 2;
        j.victims = 1;
        j.victim[0] = 2 + i;
        j.cfg.wire = i == 1 ? DDP_WIRE_INT8 : DDP_WIRE_F32;
        j.step[0] = 4;
        j.when = i == 1 ? UPDATE : FORWARD;
        if (lose(&j, DDP_TCP, &err)) fail_msg("%s", err.msg);
        expect(&j, 2, 0);
        munmap(j.b, sizeof *j.b);
    }
}

static void edge_residuals_are_resumed(void **state)
{
    static const ddp_edge_wire all[] = {{DDP_EDGE_INT8, 0, 0, 1}, {DDP_EDGE_TOPK, 4, 0, 1}};
    ddp_error err;
    job j;

    (void)state;
    for (int i = 0; i < 2; i++) {
        memset(&j, 0, sizeof j);
        j.b = boards();
        j.cfg.strategy = DDP_SSGD;
        j.schedule = i ? DDP_PIPELINE_ZB : DDP_PIPELINE_1F1B;
        j.edge = all[i];
        j.stages = 2;
        j.replicas = 2;
        j.min_replicas = 1;
        j.victims = 1;
        j.victim[0] = 1 + i;
        j.step[0] = 4;
        j.when = i ? UPDATE : FORWARD;
        if (lose(&j, DDP_TCP, &err)) fail_msg("%s", err.msg);
        expect(&j, 1, 1);
        munmap(j.b, sizeof *j.b);
    }
}

static void a_thread_can_leave(void **state)
{
    ddp_error err;
    job j;

    (void)state;
    memset(&j, 0, sizeof j);
    j.b = boards();
    j.cfg.strategy = DDP_SSGD;
    j.when = LEAVES;
    j.stages = 2;
    j.replicas = 2;
    j.min_replicas = 1;
    j.victims = 1;
    j.victim[0] = 1;
    j.step[0] = 3;
    assert_int_equal(lose(&j, DDP_THREADS, &err), DDP_ABORTED);
    assert_non_null(strstr(err.msg, "rank 1 has left"));
    expect(&j, 1, 1);
    munmap(j.b, sizeof *j.b);
}

/* Trains with as many workers as before that step. */
static uint64_t half(const job *like)
{
    ddp_error err;
    uint64_t hash;
    job j = *like;

    j.b = boards();
    j.cfg.transport = DDP_THREADS;
    j.cfg.world = like->replicas;
    j.to = like->b->from[0][1];
    if (ddp_launch(&j.cfg, whole, &j, &err)) fail_msg("the reference: %s", err.msg);
    hash = j.b->hash[0];
    munmap(j.b, sizeof *j.b);
    return hash;
}

static void too_few_pipelines_end_the_run(void **state)
{
    ddp_error err;
    job j;

    (void)state;
    memset(&j, 0, sizeof j);
    j.b = boards();
    j.cfg.strategy = DDP_SSGD;
    j.stages = 2;
    j.replicas = 3;
    j.min_replicas = 3;
    j.victims = 1;
    j.victim[0] = 5;
    j.step[0] = 3;
    assert_int_equal(lose(&j, DDP_TCP, &err), DDP_PEER_LOST);
    assert_non_null(strstr(err.msg, "stage 1 of pipeline 2 (rank 5)"));
    if (!strstr(err.msg, "2 of 3 pipelines are left, min_replicas is 3")) fail_msg("%s", err.msg);
    assert_int_equal(j.b->worlds[0], 2); /* called again, to save */
    assert_in_range(j.b->from[0][1], 2, 4);
    assert_true(j.b->hash[0] == half(&j));
    munmap(j.b, sizeof *j.b);
}

static void unsupported_settings_are_an_error(void **state)
{
    static const struct {
        int world, stages, least, micro;
        const char *net, *says;
        ddp_strategy strategy;
    } bad[] = {{4, 2, 1, 4, NULL, "min_replicas 1 with strategy diloco: each replica stores", DDP_DILOCO},
               {4, 2, 3, 4, NULL, "min_replicas 3 with 2 pipelines of 2 stages: choose 1 to 2", DDP_SSGD},
               {4, 2, 0, 4, NULL, "min_replicas 0 with 2 pipelines", DDP_SSGD},
               {4, 3, 1, 4, NULL, "3 stages with 4 ranks", DDP_SSGD},
               {6, 2, 1, 3, NULL,
                "3 micro-batches in each of 3 pipelines cannot be divided among 2; choose a multiple of 2",
                DDP_SSGD},
               {4, 2, 1, 4, "two.json", "two.json: a topology", DDP_SSGD}};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ddp_config cfg;
        ddp_error err;
        memset(&cfg, 0, sizeof cfg);
        cfg.world = bad[i].world;
        cfg.micro_batches = bad[i].micro;
        cfg.net = bad[i].net;
        cfg.strategy = bad[i].strategy;
        cfg.no_env = 1;
        assert_true(ddp_launch_pipelines(&cfg, bad[i].stages, bad[i].least, worker, NULL, &err) != 0);
        if (!strstr(err.msg, bad[i].says)) fail_msg("'%s' does not say '%s'", err.msg, bad[i].says);
    }
}

/* The survivors are ordered by rank, so other layouts are not supported. */
static int opens_in_another_order(ddp_ctx *d, void *user)
{
    static const int rank_of[] = {0, 2, 1, 3};
    ddp_graph *g = ddp_graph_new(d);
    ddp_pipe_config c;

    memset(&c, 0, sizeof c);
    c.stages = 2;
    c.rank_of = rank_of;
    assert_null(ddp_pipe_open(d, g, model(g, (const job *)user), &c));
    return (int)ddp_last_error(d)->code;
}

static void a_layout_in_another_order_is_an_error(void **state)
{
    ddp_error err;
    job j;

    (void)state;
    memset(&j, 0, sizeof j);
    j.stages = 2;
    j.cfg.world = 4;
    j.cfg.micro_batches = 4;
    j.cfg.strategy = DDP_SSGD;
    j.cfg.no_env = 1;
    assert_int_equal(ddp_launch_pipelines(&j.cfg, 2, 1, opens_in_another_order, &j, &err), DDP_UNSUPPORTED);
    if (!strstr(err.msg, "the layout has rank 2 at place 1, but ddp_launch_pipelines needs the ranks in "
                         "ascending order; remove rank_of"))
        fail_msg("'%s'", err.msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_are_bit_identical_to_a_smaller_run),
        cmocka_unit_test(pipelines_can_be_lost_one_after_another),
        cmocka_unit_test(state_of_each_replica_is_resumed),
        cmocka_unit_test(edge_residuals_are_resumed),
        cmocka_unit_test(a_thread_can_leave),
        cmocka_unit_test(too_few_pipelines_end_the_run),
        cmocka_unit_test(unsupported_settings_are_an_error),
        cmocka_unit_test(a_layout_in_another_order_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
