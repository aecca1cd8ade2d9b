/* States of the program (ddp_add_state) and joining workers: a joining worker receives a member's bytes of
 * exactly the step in which it enters, or of an earlier one (`early`). Ranks are processes. */
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

/* ---- the program: its own optimizer with momentum ---- */

enum { VALUES = 300, TAIL = 7 };

typedef struct program {
    const plan_of_run *p;
    ddp_ctx *d;
    int number;
    long schedule; /* the next step, as counted by a schedule of the program */
    float momentum[LAYERS][VALUES];
} program;

static program own; /* of this process */
static size_t more; /* bytes after the momentum */

/* NULL, or called first in save or load. Its nonzero result is the result of the call. */
static int (*saves_first)(void **bytes, size_t *size, ddp_error *err);
static int (*loads_first)(ddp_error *err);

/* The length changes from step to step. */
static size_t tail_of(const program *x) { return more + (size_t)(x->schedule % TAIL); }

/* The schedule, the momentum and a tail. */
static int save(void *user, void **bytes, size_t *size, ddp_error *err)
{
    const program *x = (const program *)user;
    const size_t tail = tail_of(x);
    char *out;

    ddp__atomic_store(&x->p->b->saves[x->number], ddp__atomic_load(&x->p->b->saves[x->number]) + 1);
    if (saves_first && saves_first(bytes, size, err)) return 1;
    if (saves_first && *size) return 0;
    *size = sizeof x->schedule + sizeof x->momentum + tail;
    out = (char *)malloc(*size);
    if (!out) return 1;
    memcpy(out, &x->schedule, sizeof x->schedule);
    memcpy(out + sizeof x->schedule, x->momentum, sizeof x->momentum);
    for (size_t i = 0; i < tail; i++) out[*size - tail + i] = (char)(i * 7);
    *bytes = out;
    return 0;
}

static int load(void *user, const void *bytes, size_t size, ddp_error *err)
{
    program *x = (program *)user;
    const char *in = (const char *)bytes;
    size_t tail;

    if (loads_first && loads_first(err)) return 1;
    if (size < sizeof x->schedule + sizeof x->momentum) return 2;
    memcpy(&x->schedule, in, sizeof x->schedule);
    memcpy(x->momentum, in + sizeof x->schedule, sizeof x->momentum);
    tail = size - sizeof x->schedule - sizeof x->momentum;
    if (tail != tail_of(x)) return 3;
    for (size_t i = 0; i < tail; i++)
        if (in[size - tail + i] != (char)(i * 7)) return 4;
    /* called while the worker enters: the step is already the one in which it enters */
    if (x->schedule != ddp_step(x->d) || ddp_workers(x->d) < 1) return 5;
    ddp__atomic_store(&x->p->b->loaded[x->number], x->schedule);
    return 0;
}

static void release(void *user, void *bytes)
{
    (void)user;
    if (!saves_first) free(bytes);
}

static const char *name_of_state = "optimizer";
static int early; /* of this state */

static int registers_momentum(const plan_of_run *p, ddp_ctx *d, int number)
{
    const ddp_program_state s = {name_of_state, save, load, release, &own, early};

    own.p = p;
    own.d = d;
    own.number = number;
    return ddp_add_state(d, &s);
}

/* The update after each step, which also zeroes the gradients. */
static int updates_by_itself(const plan_of_run *p, ddp_ctx *d, int number)
{
    uint64_t h = DDP__HASH_START;

    (void)d;
    for (int l = 0; l < p->layers; l++) {
        for (size_t i = 0; i < p->count; i++) {
            own.momentum[l][i] = 0.5f * own.momentum[l][i] + grads[l][i];
            params[l][i] -= 0.02f * own.momentum[l][i];
            grads[l][i] = 0;
        }
        h = ddp_hash_floats(h, own.momentum[l], p->count);
    }
    own.schedule++;
    p->b->state[number] = h;
    return 0;
}

static void own_run_begin(plan_of_run *p, ddp_strategy strategy, int world)
{
    run_begin(p, strategy, world, VALUES);
    p->optimizer = 2;
    p->max_world = world + 1;
    registers = registers_momentum;
    between = updates_by_itself;
}

static void own_run_end(const plan_of_run *p)
{
    registers = between = NULL;
    saves_first = NULL;
    loads_first = NULL;
    munmap(p->b, sizeof *p->b);
}

/* Two workers, which a third joins. */
static void joins(plan_of_run *p, pid_t *pid)
{
    for (int k = 0; k < 2; k++) pid[k] = start(p, k, 0);
    until_step(p, 0, 5);
    pid[2] = start(p, 2, 1);
    for (int k = 0; k < 3; k++) wait_for(pid[k]);
}

static void all_ended_well(const plan_of_run *p, const int *numbers, int count)
{
    for (int i = 0; i < count; i++) {
        const int n = numbers[i];
        if (p->b->status[n]) fail_msg("worker %d: %s", n, p->b->text[n]);
        assert_int_equal(p->b->step[n], p->b->last);
        assert_true(p->b->hash[n] == p->b->hash[numbers[0]]);
    }
}

/* ---- a worker joins ---- */

/* Two workers, which a third joins: its parameters and momentum are bit-identical to the members'. */
static void joins_bit_identical(plan_of_run *p)
{
    static const int all[] = {0, 1, 2};
    pid_t pid[3];

    joins(p, pid);
    all_ended_well(p, all, 3);
    assert_true(p->b->entered[2] > 0);
    assert_int_equal(p->b->loaded[2], p->b->entered[2]);
    for (int k = 0; k < 2; k++) {
        assert_true(p->b->averaged[k] == p->b->averaged[2]); /* before ddp_sync_all */
        assert_true(p->b->state[k] == p->b->state[2]);
        assert_int_equal(p->b->loaded[k], -1);
    }
    assert_int_equal(p->b->saves[0], 1); /* only the lowest member saves */
    assert_int_equal(p->b->saves[1] + p->b->saves[2], 0);
}

static void momentum_is_bit_identical_under_strategies_that_average_gradients(void **state)
{
    static const ddp_strategy with[] = {DDP_WFBP, DDP_USBYTE};
    plan_of_run p;

    (void)state;
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++) {
        own_run_begin(&p, with[i], 2);
        joins_bit_identical(&p);
        own_run_end(&p);
    }
}

/* More than one message, and more than elastic_bytes. */
static void state_of_megabytes_arrives_in_parts(void **state)
{
    plan_of_run p;

    (void)state;
    own_run_begin(&p, DDP_WFBP, 2);
    more = ((size_t)9 << 20) + 5;
    joins_bit_identical(&p);
    own_run_end(&p);
    own_run_begin(&p, DDP_WFBP, 2);
    more = (size_t)1 << 20;
    p.elastic_bytes = 70001;
    joins_bit_identical(&p);
    more = 0;
    own_run_end(&p);
}

static void parameters_are_equal_after_sync_all_under_strategies_that_average_parameters(void **state)
{
    static const ddp_strategy with[] = {DDP_LOCALSGD, DDP_DREAMDDP, DDP_DILOCO};
    static const int all[] = {0, 1, 2};
    plan_of_run p;
    pid_t pid[3];

    (void)state;
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++) {
        own_run_begin(&p, with[i], 2);
        joins(&p, pid);
        all_ended_well(&p, all, 3);
        assert_int_equal(p.b->entered[2] % p.period, 0);
        assert_int_equal(p.b->loaded[2], p.b->entered[2]);
        own_run_end(&p);
    }
}

/* ---- a state of an earlier step ---- */

/* The optimizer as two states: the momentum, with its step and `more` bytes, and the schedule. */
static int save_momentum(void *user, void **bytes, size_t *size, ddp_error *err)
{
    const program *x = (const program *)user;
    char *out;

    ddp__atomic_store(&x->p->b->early_saves[x->number],
                      ddp__atomic_load(&x->p->b->early_saves[x->number]) + 1);
    if (saves_first && saves_first(bytes, size, err)) return 1;
    *size = sizeof x->schedule + sizeof x->momentum + more;
    out = (char *)malloc(*size);
    if (!out) return 1;
    memcpy(out, &x->schedule, sizeof x->schedule);
    memcpy(out + sizeof x->schedule, x->momentum, sizeof x->momentum);
    for (size_t i = 0; i < more; i++) out[*size - more + i] = (char)(i * 7);
    *bytes = out;
    return 0;
}

static int load_momentum(void *user, const void *bytes, size_t size, ddp_error *err)
{
    program *x = (program *)user;
    const char *in = (const char *)bytes;

    (void)err;
    if (size != sizeof x->schedule + sizeof x->momentum + more || x->p->b->loaded[x->number] >= 0) return 2;
    memcpy(&x->p->b->early[x->number], in, sizeof x->schedule);
    memcpy(x->momentum, in + sizeof x->schedule, sizeof x->momentum);
    for (size_t i = 0; i < more; i++)
        if (in[size - more + i] != (char)(i * 7)) return 3;
    return 0;
}

static void release_momentum(void *user, void *bytes)
{
    (void)user;
    free(bytes);
}

static int save_schedule(void *user, void **bytes, size_t *size, ddp_error *err)
{
    program *x = (program *)user;

    (void)err;
    ddp__atomic_store(&x->p->b->saves[x->number], ddp__atomic_load(&x->p->b->saves[x->number]) + 1);
    *bytes = &x->schedule;
    *size = sizeof x->schedule;
    return 0;
}

static int load_schedule(void *user, const void *bytes, size_t size, ddp_error *err)
{
    program *x = (program *)user;

    (void)err;
    if (size != sizeof x->schedule || x->p->b->early[x->number] < 0) return 2;
    memcpy(&x->schedule, bytes, size);
    ddp__atomic_store(&x->p->b->loaded[x->number], x->schedule);
    return 0;
}

static int registers_two_states(const plan_of_run *p, ddp_ctx *d, int number)
{
    const ddp_program_state momentum = {"optimizer:momentum", save_momentum, load_momentum,
                                        release_momentum,     &own,          1};
    const ddp_program_state schedule = {"optimizer", save_schedule, load_schedule, NULL, &own, 0};

    own.p = p;
    own.d = d;
    own.number = number;
    return ddp_add_state(d, &momentum) ? 1 : ddp_add_state(d, &schedule);
}

static void early_run_begin(plan_of_run *p, ddp_strategy strategy, int world)
{
    own_run_begin(p, strategy, world);
    registers = registers_two_states;
}

/* The momentum of joining worker n is of an earlier period, and the schedule of the step in which it
 * entered. */
static void enters_with_an_earlier_momentum(const plan_of_run *p, int n)
{
    const board *b = p->b;

    assert_int_equal(b->loaded[n], b->entered[n]);
    assert_true(b->early[n] > 0 && b->early[n] < b->entered[n]);
    assert_int_equal(b->early[n] % p->period, 0);
}

/* The lowest member, which sends all that a worker receives when it enters, does not even save the
 * momentum. */
static void early_state_is_sent_before_the_worker_enters(void **state)
{
    static const ddp_strategy with[] = {DDP_LOCALSGD, DDP_DREAMDDP, DDP_DILOCO};
    static const int all[] = {0, 1, 2};
    plan_of_run p;
    pid_t pid[3];

    (void)state;
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++) {
        early_run_begin(&p, with[i], 2);
        more = i ? 0 : ((size_t)9 << 20) + 5;
        joins(&p, pid);
        more = 0;
        all_ended_well(&p, all, 3);
        enters_with_an_earlier_momentum(&p, 2);
        assert_int_equal(p.b->early_saves[0], 0);
        assert_true(p.b->early_saves[1] > 0);
        assert_int_equal(p.b->saves[0], 1);
        assert_int_equal(p.b->saves[1], 0);
        own_run_end(&p);
    }
}

static void early_state_is_of_the_same_step_under_strategies_that_average_gradients(void **state)
{
    plan_of_run p;

    (void)state;
    early_run_begin(&p, DDP_WFBP, 2);
    joins_bit_identical(&p);
    assert_int_equal(p.b->early[2], p.b->entered[2]);
    assert_int_equal(p.b->early_saves[0], 1);
    assert_int_equal(p.b->early_saves[1], 0);
    own_run_end(&p);
}

/* Starts three members, and a joining worker when they have trained 5 steps. */
static void three_and_a_joining_worker(plan_of_run *p, pid_t pid[4])
{
    for (int k = 0; k < 3; k++) pid[k] = start(p, k, 0);
    until_step(p, 1, 5);
    pid[3] = start(p, 3, 1);
}

static int dying; /* rank that is lost in its save */

static int dies_in_its_save(void **bytes, size_t *size, ddp_error *err)
{
    (void)bytes;
    (void)size;
    (void)err;
    if (own.number == dying) raise(SIGKILL);
    return 0;
}

static void another_member_sends_the_early_state_when_the_first_is_lost_in_its_save(void **state)
{
    static const int left[] = {0, 1, 3};
    plan_of_run p;
    pid_t pid[4];

    (void)state;
    early_run_begin(&p, DDP_LOCALSGD, 3);
    saves_first = dies_in_its_save;
    dying = 2;
    three_and_a_joining_worker(&p, pid);
    for (int k = 0; k < 4; k++) wait_for(pid[k]);
    all_ended_well(&p, left, 3);
    enters_with_an_earlier_momentum(&p, 3);
    assert_int_equal(p.b->early_saves[2], 1);
    assert_true(p.b->early_saves[1] > 0);
    own_run_end(&p);
}

/* The joining worker has received the clone, or is receiving it, when the coordinator is lost. It joins
 * again. */
static void early_state_is_received_again_when_the_coordinator_is_lost(void **state)
{
    static const int left[] = {1, 2, 3};
    const double end = ddp_now() + 60;
    plan_of_run p;
    pid_t pid[4];

    (void)state;
    early_run_begin(&p, DDP_LOCALSGD, 3);
    three_and_a_joining_worker(&p, pid);
    while (!ddp__atomic_load(&p.b->early_saves[2]) && ddp_now() < end) ddp__sleep_until(ddp_now() + 0.001);
    kill(pid[0], SIGKILL);
    for (int k = 0; k < 4; k++) wait_for(pid[k]);
    all_ended_well(&p, left, 3);
    enters_with_an_earlier_momentum(&p, 3);
    own_run_end(&p);
}

/* ---- the member that sends is lost ---- */

static void next_member_sends_when_the_first_is_lost_in_its_save(void **state)
{
    static const int left[] = {1, 2, 3};
    plan_of_run p;
    pid_t pid[4];

    (void)state;
    own_run_begin(&p, DDP_WFBP, 3);
    saves_first = dies_in_its_save;
    dying = 0;
    three_and_a_joining_worker(&p, pid);
    for (int k = 0; k < 4; k++) wait_for(pid[k]);
    all_ended_well(&p, left, 3);
    assert_int_equal(p.b->saves[0], 1);
    assert_int_equal(p.b->saves[1], 1);
    assert_int_equal(p.b->loaded[3], p.b->entered[3]);
    for (int k = 1; k < 3; k++) {
        assert_true(p.b->averaged[k] == p.b->averaged[3]);
        assert_true(p.b->state[k] == p.b->state[3]);
    }
    own_run_end(&p);
}

/* ---- failures ---- */

/* The joining worker fails with the error `what`, and the members complete the run. */
static void joining_worker_fails_alone(plan_of_run *p, const char *what)
{
    pid_t pid[3];

    p->last_comer = -1;
    for (int k = 0; k < 2; k++) pid[k] = start(p, k, 0);
    until_step(p, 0, 5);
    wait_for(start(p, 2, 1));
    if (!strstr(p->b->text[2], what)) fail_msg("\"%s\" does not contain \"%s\"", p->b->text[2], what);
    assert_int_equal(p->b->done[0] | p->b->done[1], 0);
    end_soon(p);
    for (int k = 0; k < 2; k++) {
        wait_for(pid[k]);
        assert_string_equal(p->b->text[k], "");
        assert_int_equal(p->b->step[k], p->b->last);
    }
    assert_true(p->b->averaged[0] == p->b->averaged[1]);
}

static int cannot_load(ddp_error *err)
{
    snprintf(err->msg, sizeof err->msg, "there is no optimizer of that kind here");
    return 1;
}

static void failing_load_ends_the_joining_worker_alone(void **state)
{
    plan_of_run p;

    (void)state;
    own_run_begin(&p, DDP_WFBP, 2);
    loads_first = cannot_load;
    joining_worker_fails_alone(
        &p, "rank 2: the load function of the state 'optimizer' (ddp_add_state) returned 1: there is no "
            "optimizer of that kind here");
    own_run_end(&p);
}

/* More than any machine has, or the members would read the bytes. */
static int promises_a_pebibyte(void **bytes, size_t *size, ddp_error *err)
{
    static char some[8];

    (void)err;
    *bytes = some;
    *size = (size_t)1 << 50;
    return 0;
}

static void state_beyond_the_memory_ends_the_joining_worker_alone(void **state)
{
    plan_of_run p;

    (void)state;
    own_run_begin(&p, DDP_WFBP, 2);
    saves_first = promises_a_pebibyte;
    joining_worker_fails_alone(
        &p, "rank 0 sends 1125899906842624 bytes of the state 'optimizer', but this process may use only ");
    own_run_end(&p);
}

/* A clone may be larger than the model only if it has states of the program, and never larger than the
 * memory. */
static void clone_beyond_the_memory_ends_the_joining_worker_alone(void **state)
{
    static ddp__joiner j;
    ddp__worker s;
    ddp_error err;

    (void)state;
    memset(&err, 0, sizeof err);
    assert_int_equal(ddp__worker_open(&s, 1, 2, &err), DDP_OK);
    assert_non_null(ddp__worker_small(&s, "numbers", DDP_ST_I64, 3, 0, DDP__WORKER_TOLD));
    assert_int_equal(ddp__joiner_fits(&j, &s, 100, &err), DDP_OK);
    assert_int_equal(ddp__joiner_fits(&j, &s, 1 << 20, &err), DDP_MISMATCH);
    assert_non_null(ddp__worker_small(&s, DDP__PROGRAM "optimizer", DDP_ST_U8, 0, 0,
                                      DDP__WORKER_PROGRAM | DDP__WORKER_BLOB));
    assert_int_equal(ddp__joiner_fits(&j, &s, 1 << 20, &err), DDP_OK);
    assert_int_equal(ddp__joiner_fits(&j, &s, (uint64_t)1 << 50, &err), DDP_MEMORY);
    if (!strstr(err.msg, "a clone of 1125899906842624 bytes, but this process may use only "))
        fail_msg("%s", err.msg);
    ddp__worker_free(&s);
}

static int cannot_save(void **bytes, size_t *size, ddp_error *err)
{
    (void)bytes;
    (void)size;
    snprintf(err->msg, sizeof err->msg, "the disk is full");
    return 1;
}

static void failing_save_ends_the_run(void **state)
{
    const char *what =
        "rank 0: the save function of the state 'optimizer' (ddp_add_state) returned 1: the disk is full";
    plan_of_run p;
    pid_t pid[3];

    (void)state;
    own_run_begin(&p, DDP_WFBP, 2);
    saves_first = cannot_save;
    joins(&p, pid);
    assert_int_equal(p.b->status[0], (int)DDP_FAILED);
    for (int k = 0; k < 2; k++)
        if (!strstr(p.b->text[k], what))
            fail_msg("worker %d: \"%s\" does not contain \"%s\"", k, p.b->text[k], what);
    assert_true(p.b->status[2] != 0);
    own_run_end(&p);
}

static void failing_save_of_an_early_state_ends_the_run(void **state)
{
    const char *what =
        "rank 1: the save function of the state 'optimizer:momentum' (ddp_add_state) returned 1: "
        "the disk is full";
    plan_of_run p;
    pid_t pid[3];

    (void)state;
    early_run_begin(&p, DDP_LOCALSGD, 2);
    saves_first = cannot_save;
    for (int k = 0; k < 2; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 5);
    p.connect_s = 1; /* the joining worker retries until then */
    pid[2] = start(&p, 2, 1);
    for (int k = 0; k < 3; k++) wait_for(pid[k]);
    assert_int_equal(p.b->status[1], (int)DDP_FAILED);
    for (int k = 0; k < 2; k++)
        if (!strstr(p.b->text[k], what))
            fail_msg("worker %d: \"%s\" does not contain \"%s\"", k, p.b->text[k], what);
    assert_true(p.b->status[2] != 0);
    own_run_end(&p);
}

static int asks_the_others(void **bytes, size_t *size, ddp_error *err)
{
    (void)bytes;
    (void)size;
    (void)err;
    return ddp_barrier(own.d) == 0;
}

static void functions_of_a_state_may_not_call_collectives(void **state)
{
    plan_of_run p;
    pid_t pid[3];

    (void)state;
    own_run_begin(&p, DDP_WFBP, 2);
    saves_first = asks_the_others;
    joins(&p, pid);
    assert_int_equal(p.b->status[0], (int)DDP_USAGE);
    if (!strstr(p.b->text[0], "a save function of ddp_add_state calls the context that called it"))
        fail_msg("%s", p.b->text[0]);
    own_run_end(&p);
}

/* ---- who may join ---- */

static int registers_no_state(const plan_of_run *p, ddp_ctx *d, int number)
{
    const ddp_program_state s = {"none", NULL, NULL, NULL, NULL, 0};

    (void)p;
    (void)number;
    return ddp_add_state(d, &s);
}

/* Plain SGD. */
static int updates_without_momentum(const plan_of_run *p, ddp_ctx *d, int number)
{
    (void)d;
    (void)number;
    for (int l = 0; l < p->layers; l++)
        for (size_t i = 0; i < p->count; i++) {
            params[l][i] -= 0.02f * grads[l][i];
            grads[l][i] = 0;
        }
    return 0;
}

static void optimizer_without_state_may_join(void **state)
{
    static const int all[] = {0, 1, 2};
    plan_of_run p;
    pid_t pid[3];

    (void)state;
    own_run_begin(&p, DDP_WFBP, 2);
    registers = registers_no_state;
    between = updates_without_momentum;
    joins(&p, pid);
    all_ended_well(&p, all, 3);
    for (int k = 0; k < 2; k++) assert_true(p.b->averaged[k] == p.b->averaged[2]);
    own_run_end(&p);
}

static void different_states_are_rejected(void **state)
{
    plan_of_run p, joining;
    pid_t pid[2];

    (void)state;
    own_run_begin(&p, DDP_WFBP, 2);
    p.last_comer = -1;
    p.b->step[3] = 0;
    for (int k = 0; k < 2; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 2);
    joining = p;
    name_of_state = "schedule";
    refused(&joining,
            "the joining worker has the states 'schedule' (ddp_add_state), but this run has 'optimizer': "
            "register the same");
    registers = NULL;
    refused(&joining, "join with your own update: a joining worker needs the state of your optimizer: "
                      "register it with ddp_add_state");
    name_of_state = "optimizer";
    registers = registers_momentum;
    early = 1;
    refused(&joining,
            "the joining worker has the states 'early \"optimizer\"' (ddp_add_state), but this run has "
            "'optimizer': register the same");
    early = 0;
    survivors_end(&p, pid);
    registers = between = NULL;
}

static void max_world_needs_a_state_or_a_promise(void **state)
{
    plan_of_run p;
    pid_t pid[2];

    (void)state;
    own_run_begin(&p, DDP_WFBP, 2);
    registers = NULL;
    for (int k = 0; k < 2; k++) pid[k] = start(&p, k, 0);
    for (int k = 0; k < 2; k++) wait_for(pid[k]);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(p.b->status[k], (int)DDP_UNSUPPORTED);
        if (!strstr(p.b->text[k], "max_world with your own update: ")) fail_msg("%s", p.b->text[k]);
    }
    own_run_end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(momentum_is_bit_identical_under_strategies_that_average_gradients),
        cmocka_unit_test(state_of_megabytes_arrives_in_parts),
        cmocka_unit_test(parameters_are_equal_after_sync_all_under_strategies_that_average_parameters),
        cmocka_unit_test(early_state_is_sent_before_the_worker_enters),
        cmocka_unit_test(early_state_is_of_the_same_step_under_strategies_that_average_gradients),
        cmocka_unit_test(another_member_sends_the_early_state_when_the_first_is_lost_in_its_save),
        cmocka_unit_test(early_state_is_received_again_when_the_coordinator_is_lost),
        cmocka_unit_test(clone_beyond_the_memory_ends_the_joining_worker_alone),
        cmocka_unit_test(failing_save_of_an_early_state_ends_the_run),
        cmocka_unit_test(next_member_sends_when_the_first_is_lost_in_its_save),
        cmocka_unit_test(failing_load_ends_the_joining_worker_alone),
        cmocka_unit_test(state_beyond_the_memory_ends_the_joining_worker_alone),
        cmocka_unit_test(failing_save_ends_the_run),
        cmocka_unit_test(functions_of_a_state_may_not_call_collectives),
        cmocka_unit_test(optimizer_without_state_may_join),
        cmocka_unit_test(different_states_are_rejected),
        cmocka_unit_test(max_world_needs_a_state_or_a_promise),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
