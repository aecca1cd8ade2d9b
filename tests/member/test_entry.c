/* The moment at which a worker enters a run, and the calls and dumps that are possible before. Ranks are
 * processes. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <netinet/in.h>
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
#include "member/join_lab.h"

static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[100];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void contains(const char *name, const char *what)
{
    ddp__text t;
    ddp_error err;

    memset(&t, 0, sizeof t);
    if (ddp__file_read(in_folder(name), &t, &err)) fail_msg("%s", err.msg);
    if (!strstr(t.data, what)) fail_msg("\"%s\" is not in:\n%s", what, t.data);
    DDP_FREE(t.data);
}

/* ---- the dump of a worker that cannot join ---- */

/* Opens a context that joins, dumps, ends the members and starts the session, which fails. Exits with its
 * status. */
static void joins_a_run_that_dies(const plan_of_run *p, const pid_t *member)
{
    char dump_path[100];
    ddp_config c;
    ddp_error err;
    ddp_layer layer;
    ddp_optimizer o = ddp_sgd(0.02f, 0.5f);
    ddp_ctx *d;
    float w[2] = {1, 2}, g[2] = {0, 0};

    snprintf(dump_path, sizeof dump_path, "%s", in_folder("failure.jsonl"));
    memset(&c, 0, sizeof c);
    c.strategy = p->strategy;
    c.elastic.min_world = p->min_world;
    c.elastic.join = 1;
    c.addr = p->addr;
    c.run_id = p->run;
    c.period = p->period;
    c.no_env = 1;
    c.timeout.connect_s = 20;
    c.debug.dump_path = dump_path;
    d = ddp_open(&c, &err);
    if (!d || ddp_dump(d, in_folder("joining.jsonl"), NULL)) _exit(99);
    for (int r = 0; r < 2; r++) kill(member[r], SIGKILL);
    memset(&layer, 0, sizeof layer);
    layer.name = "l0";
    layer.params = w;
    layer.grads = g;
    layer.count = 2;
    d->cfg.timeout.connect_s = 0.5;
    d->session->joiner->c.connect_timeout_s = 0.5;
    if (ddp_add_layer(d, &layer) || !ddp_set_optimizer(d, &o)) _exit(98);
    if (ddp_dump(d, in_folder("after.jsonl"), NULL)) _exit(97);
    if (!strstr(ddp_last_error(d)->msg, "the last operations are in ")) _exit(96);
    err = *ddp_last_error(d);
    ddp_close(d);
    _exit((int)err.code);
}

static void dump_is_written_at_every_moment_of_a_join(void **state)
{
    plan_of_run p;
    pid_t pid[3];
    int status = 0;

    (void)state;
    run_begin(&p, DDP_LOCALSGD, 2, 100);
    p.max_world = 3;
    for (int r = 0; r < 2; r++) pid[r] = start(&p, r, 0);
    until_step(&p, 0, 4);
    pid[2] = fork();
    if (pid[2] == 0) joins_a_run_that_dies(&p, pid);
    assert_int_equal(waitpid(pid[2], &status, 0), pid[2]);
    for (int r = 0; r < 2; r++) wait_for(pid[r]);
    if (WIFSIGNALED(status)) fail_msg("the joining worker died of signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) != (int)DDP_PEER_LOST && WEXITSTATUS(status) != (int)DDP_TIMEOUT)
        fail_msg("the joining worker ended with status %d", WEXITSTATUS(status));
    contains("joining.jsonl", "\"error\":null,\"peers\":[],\"operations\":0,");
    contains("failure.jsonl", "\"error\":{\"code\":");
    contains("after.jsonl", "\"error\":{\"code\":");
    munmap(p.b, sizeof *p.b);
}

/* ---- collectives of the program ---- */

/* Measures all links, which needs all workers. */
static int probes(ddp_ctx *d, int *count)
{
    ddp_probe_result r;

    if (ddp_workers(d) < ddp_world(d)) return 0;
    if (ddp_probe(d, &r)) return 1;
    ddp_probe_free(&r);
    ++*count;
    return 0;
}

/* After a step: a mean, an average of all layers, a checkpoint, a measurement of the links and a barrier. A
 * worker that takes part in one of them takes part in all. The mean of the workers' step equals the step. */
static int saves_and_averages(const plan_of_run *p, ddp_ctx *d, int number)
{
    float step = (float)ddp_step(d), workers = 1;

    if (ddp_all_mean(d, &step, 1)) return 1;
    if ((long)step != ddp_step(d))
        return ddp_abort(d, "a worker of another step took part in a mean"), ddp_barrier(d);
    if (ddp_all_reduce(d, &workers, 1, 1)) return 1;
    if ((int)workers != ddp_workers(d))
        return ddp_abort(d, "a mean was over others than the workers"), ddp_barrier(d);
    if (ddp_step(d) % 2 == 0 && ddp_checkpoint_save(d, in_folder(p->run), 2)) return 1;
    if (ddp_step(d) % p->period == 0 && ddp_sync_all(d)) return 1;
    if (ddp_step(d) % (2 * p->period) == 0 && probes(d, &p->b->probes[number])) return 1;
    return ddp_barrier(d);
}

/* Two workers, which two others join one after the other. */
static void enters_between(ddp_strategy strategy, int run)
{
    static const int all[] = {0, 1, 2, 3};
    ddp_rng rng = ddp_rng_seed(23 + seed_base() + (uint64_t)run, (uint64_t)strategy);
    plan_of_run p;
    pid_t pid[4];

    run_begin(&p, strategy, 2, 300);
    p.max_world = 4;
    p.last_comer = 3;
    between = saves_and_averages;
    for (int k = 0; k < 2; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 4);
    for (int k = 2; k < 4; k++) {
        ddp__sleep_until(ddp_now() + 0.05 * ddp_rng_uniform(&rng));
        pid[k] = start(&p, k, 1);
        until_step(&p, k, 1);
    }
    for (int k = 0; k < 4; k++) wait_for(pid[k]);
    all_well(&p, all, 4);
    for (int k = 2; k < 4; k++) assert_int_equal(p.b->entered[k] % p.period, 0);
    for (int k = 0; k < 4; k++) assert_true(p.b->probes[k] > 0);
    between = NULL;
    events(0, 2);
    munmap(p.b, sizeof *p.b);
}

static void worker_enters_after_the_collectives_between_two_steps(void **state)
{
    (void)state;
    for (int run = 0; run < repeats(); run++) {
        enters_between(DDP_DREAMDDP, run);
        enters_between(DDP_WFBP, run);
    }
}

/* Called on the joining worker, which has an id: it does not retry for long from now on. */
static int notes_that_it_opened(const plan_of_run *p, ddp_ctx *d, int number)
{
    if (number < 2) return 0;
    d->cfg.timeout.connect_s = d->session->joiner->c.connect_timeout_s = 1;
    ddp__atomic_store(&p->b->opened, 1);
    return 0;
}

/* Members do not start their third step before the joining worker has an id. */
static int waits_for_the_joining_worker(const plan_of_run *p, ddp_ctx *d, int number)
{
    const double end = ddp_now() + 60;

    while (number < 2 && ddp_step(d) == 2 && !ddp__atomic_load(&p->b->opened) && ddp_now() < end)
        ddp__sleep_until(ddp_now() + 0.002);
    return saves_and_averages(p, d, number);
}

/* The run ends at the end of a period while a joining worker waits for its entry: the members' last
 * collectives do not include it. */
static void run_ends_without_the_worker_that_still_joins(void **state)
{
    plan_of_run p;
    pid_t pid[3];
    long at;

    (void)state;
    run_begin(&p, DDP_LOCALSGD, 2, 300);
    p.max_world = 3;
    p.last_comer = -1;
    registers = notes_that_it_opened;
    between = waits_for_the_joining_worker;
    p.b->step_ms = 60;
    p.b->last = 8; /* its message takes two periods to reach the members */
    for (int k = 0; k < 2; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 1);
    pid[2] = start(&p, 2, 1);
    for (int k = 0; k < 3; k++) wait_for(pid[k]);
    registers = between = NULL;
    assert_int_equal(p.b->opened, 1);
    at = p.b->entered[2];
    if (at < 0)
        assert_true(p.b->status[2] == (int)DDP_TIMEOUT || p.b->status[2] == (int)DDP_PEER_LOST);
    else
        assert_int_equal(at, 4); /* it joined in time */
    for (int k = 0; k < 2; k++) {
        assert_string_equal(p.b->text[k], "");
        assert_int_equal(p.b->step[k], 8);
    }
    munmap(p.b, sizeof *p.b);
}

/* ---- settings that must be equal on a joining worker, and calls that it must not make ---- */

static int64_t steps_of_program;

static int registers_steps(const plan_of_run *p, ddp_ctx *d, int number)
{
    (void)p;
    (void)number;
    return ddp_same(d, "steps", steps_of_program);
}

static int begins_with_a_mean(const plan_of_run *p, ddp_ctx *d, int number)
{
    float x = 1;

    (void)p;
    return number == 3 ? ddp_all_mean(d, &x, 1) : 0;
}

static int begins_with_a_checkpoint(const plan_of_run *p, ddp_ctx *d, int number)
{
    (void)p;
    return number == 3 ? ddp_checkpoint_save(d, in_folder("early"), 0) : 0;
}

static int begins_with_an_old_checkpoint(const plan_of_run *p, ddp_ctx *d, int number)
{
    (void)p;
    return number == 3 ? ddp_checkpoint_load(d, in_folder("early"), NULL) : 0;
}

static int begins_with_an_average(const plan_of_run *p, ddp_ctx *d, int number)
{
    (void)p;
    return number == 3 ? ddp_sync_all(d) : 0;
}

static int begins_with_a_barrier(const plan_of_run *p, ddp_ctx *d, int number)
{
    (void)p;
    return number == 3 ? ddp_barrier(d) : 0;
}

static void worker_that_does_not_fit_fails_alone(void **state)
{
    plan_of_run p, joining;
    pid_t pid[3];

    (void)state;
    registers = registers_steps;
    steps_of_program = 120;
    run_loses_one(&p, pid, 0);
    joining = p;
    joining.last_comer = -1;
    steps_of_program = 140;
    refused(&joining, "the joining worker has steps 140, but this run has steps 120: start it with the same");
    registers = NULL;
    refused(&joining, "the joining worker has nothing 0, but this run has steps 120: start it with the same");
    registers = begins_with_a_barrier;
    refused(&joining, "ddp_barrier before ddp_set_optimizer: this worker joins a run");
    registers = registers_steps;
    steps_of_program = 120;
    for (int i = 0; i < 4; i++) {
        static const lab_part part[4] = {begins_with_a_mean, begins_with_a_checkpoint,
                                         begins_with_an_old_checkpoint, begins_with_an_average};
        static const char *const call[4] = {"ddp_all_mean", "ddp_checkpoint_save", "ddp_checkpoint_load",
                                            "ddp_sync_all"};
        char what[80];
        snprintf(what, sizeof what, "%s: this worker joined before step ", call[i]);
        starts = part[i];
        refused(&joining, what);
    }
    registers = starts = NULL;
    survivors_end(&p, pid);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_entry.XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **state)
{
    char command[100];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dump_is_written_at_every_moment_of_a_join),
        cmocka_unit_test(worker_enters_after_the_collectives_between_two_steps),
        cmocka_unit_test(run_ends_without_the_worker_that_still_joins),
        cmocka_unit_test(worker_that_does_not_fit_fails_alone),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
