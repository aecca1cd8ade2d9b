/* [calm] Memory of a pipeline: a step allocates nothing, recorded or not; all is given back; memory that ends at any
 * allocation is told. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

enum { STAGES = 2, MICRO_BATCHES = 3, STEPS = 5 };

static struct {
    pthread_mutex_t lock;
    long live, taken, fail_at; /* blocks; allocations so far; this one fails, 0 = none */
} memory = {PTHREAD_MUTEX_INITIALIZER, 0, 0, 0};

static __thread long own_calls; /* of the thread that trains */

void *heap_realloc(void *p, size_t bytes)
{
    int refuse;

    own_calls++;
    pthread_mutex_lock(&memory.lock);
    refuse = ++memory.taken == memory.fail_at;
    memory.live += !refuse && !p;
    pthread_mutex_unlock(&memory.lock);
    return refuse ? NULL : realloc(p, bytes ? bytes : 1);
}

void heap_free(void *p)
{
    own_calls++;
    pthread_mutex_lock(&memory.lock);
    memory.live -= p != NULL;
    pthread_mutex_unlock(&memory.lock);
    free(p);
}

typedef struct job {
    ddp_config      cfg;
    ddp_pipe_config pipe;
    long            calls[STAGES];
} job;

static int fill_and_step(ddp_ctx *d, ddp_pipe *p)
{
    float loss;

    for (int m = 0; m < MICRO_BATCHES; m++) {
        float *x = (float *)ddp_pipe_input(p, m, "inputs");
        int32_t *y = (int32_t *)ddp_pipe_input(p, m, "labels");
        for (int i = 0; x && i < 6; i++) x[i] = (float)(i * m) * 0.1f;
        for (int i = 0; y && i < 2; i++) y[i] = (i + m) % 3;
    }
    if (ddp_pipe_step(p) || ddp_step_end(d)) return DDP_FAILED;
    loss = ddp_pipe_loss(p);
    return loss > 0 ? 0 : DDP_FAILED;
}

static int worker(ddp_ctx *d, void *user)
{
    job *j = (job *)user;
    const ddp_optimizer sgd = ddp_sgd(0.1f, 0.9f);
    ddp_graph *g = ddp_graph_new(d);
    ddp_mlp_config c;
    ddp_pipe_stats s;
    ddp_pipe *p;
    int bad;

    memset(&c, 0, sizeof c);
    c.batch = 2, c.inputs = 3, c.hidden[0] = c.hidden[1] = 4, c.classes = 3;
    if (!g) return DDP_MEMORY;
    p = ddp_pipe_open(d, g, ddp_mlp(g, &c, NULL), &j->pipe);
    bad = p ? ddp_set_optimizer(d, &sgd) : (int)ddp_last_error(d)->code;
    for (int step = 0; !bad && step < STEPS; step++) {
        if (step == 2) own_calls = 0;
        bad = fill_and_step(d, p);
    }
    j->calls[ddp_rank(d)] = own_calls;
    if (!bad) bad = ddp_pipe_get_stats(p, &s);
    ddp_pipe_close(p);
    return bad;
}

static int run(job *j, ddp_pipeline schedule, int trace, ddp_error *err)
{
    memset(j, 0, sizeof *j);
    memset(err, 0, sizeof *err);
    j->cfg.world = STAGES;
    j->cfg.micro_batches = MICRO_BATCHES;
    j->cfg.transport = DDP_THREADS;
    j->cfg.strategy = DDP_SSGD;
    j->cfg.no_env = j->cfg.deterministic = 1;
    j->cfg.trace_spans = trace;
    j->cfg.peer_timeout_s = 20;
    j->pipe.stages = STAGES;
    j->pipe.schedule = schedule;
    memory.taken = memory.live = 0;
    return ddp_launch(&j->cfg, worker, j, err);
}

static void a_step_allocates_nothing(void **state)
{
    ddp_error err;
    job j;

    (void)state;
    memory.fail_at = 0;
    for (int p = DDP_PIPELINE_GPIPE; p <= DDP_PIPELINE_ZB; p++)
        for (int trace = 0; trace < 200; trace += 100) {
            if (run(&j, (ddp_pipeline)p, trace, &err)) fail_msg("%s", err.msg);
            for (int s = 0; s < STAGES; s++)
                if (j.calls[s]) fail_msg("schedule %d, stage %d: %ld allocations", p, s, j.calls[s]);
            assert_int_equal(memory.live, 0);
        }
}

static void memory_that_ends_is_told(void **state)
{
    (void)state;
    for (long k = 1;; k += SAMPLED(7)) {
        ddp_error err;
        job j;
        int code;

        memory.fail_at = k;
        code = run(&j, DDP_PIPELINE_ZB, 100, &err);
        if (memory.live) fail_msg("allocation %ld fails: %ld blocks are not given back", k, memory.live);
        if (memory.taken < k) {
            if (code) fail_msg("%s", err.msg);
            assert_true(k > 100);
            return;
        }
        /* the stage that saw the other leave may be the first to report */
        if (code != DDP_MEMORY && code != DDP_PEER_LOST) fail_msg("allocation %ld fails: status %d \"%s\"", k, code, err.msg);
        assert_true(strlen(err.msg) > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(memory_that_ends_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
