/* [long, test-all: slow] Workers that join a running job: a killed one returns, even if others die meanwhile;
 * invalid ones are rejected. Ranks are processes. */
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

/* ---- SHA-256 ---- */

static void digest_is(const char *text, size_t times, const char *hex)
{
    unsigned char d[DDP__SHA256_BYTES];
    char got[65], *all = (char *)malloc(times * strlen(text) + 1);
    size_t i;
    assert_non_null(all);
    for (i = 0; i < times; i++) memcpy(all + i * strlen(text), text, strlen(text));
    ddp__sha256(all, times * strlen(text), d);
    free(all);
    for (i = 0; i < 32; i++) snprintf(got + 2 * i, 3, "%02x", d[i]);
    assert_string_equal(got, hex);
}

/* FIPS 180-4's examples, and lengths around a block. */
static void sha256_matches_the_standard_digests(void **state)
{
    (void)state;
    digest_is("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    digest_is("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    digest_is("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    digest_is("a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    digest_is("a", 55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
    digest_is("a", 56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
    digest_is("a", 64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

static const int *sites; /* of workers by number, the joining worker's last, or NULL for none */

static void killed_and_back(ddp_strategy strategy, ddp_wire wire, int victim)
{
    plan_of_run p;
    pid_t pid[4];
    int left[3], n = 0, witness = victim == 0 ? 1 : 0;
    static int calls;

    if (calls++ % SAMPLED(2)) return; /* every second one under sanitizers */
    run_begin(&p, strategy, 3, 1000);
    /* until half of the first loss; auto: whole periods of 5 steps, which its table permits */
    p.steps_after = strategy == DDP_SPARSELOCO ? 120 : strategy == DDP_AUTO ? 40 : 32;
    p.wire = wire;
    if (sites) memcpy(p.site, sites, 4 * sizeof *sites);
    for (int i = 0; i < 3; i++) pid[i] = start(&p, i, 0);
    until_step(&p, witness, 12);
    kill(pid[victim], SIGKILL);
    wait_for(pid[victim]);
    if (victim == 0) snprintf(p.addr, sizeof p.addr, "%s", p.b->address[2]); /* its own address is gone */
    pid[3] = start(&p, 3, 1);
    for (int i = 0; i < 4; i++)
        if (i != victim) wait_for(pid[i]);
    for (int i = 0; i < 3; i++)
        if (i != victim) left[n++] = i;
    left[n++] = 3;
    all_well(&p, left, n);
    assert_int_equal(p.b->rank[3], victim);
    assert_true(p.b->entered[3] > 12);
    assert_int_equal(p.b->rest[3], 0); /* it has no changes yet, and the residual of its donor stays with the
                                        * donor */
    assert_true(p.b->last_loss[3] < 0.5 * p.b->first_loss[witness]);
    for (int i = 0; sites && i < n; i++) {
        long want = 0, *known = &p.b->sites[left[i]];
        for (int r = 0; r < 3; r++) want = 10 * want + p.site[r == victim ? 3 : r];
        if (sites[4] ? *known != want : *known)
            fail_msg("worker %d knows sites %ld, not %ld", left[i], *known, want);
    }
    events(1, 1);
    print_message("%s: entered at step %ld\n", ddp_strategy_name(strategy), p.b->entered[3]);
    munmap(p.b, sizeof *p.b);
}

static void killed_worker_rejoins(void **state)
{
    (void)state;
    killed_and_back(DDP_LOCALSGD, DDP_WIRE_F32, 1);
    killed_and_back(DDP_DREAMDDP, DDP_WIRE_F32, 2);
    killed_and_back(DDP_WFBP, DDP_WIRE_F32, 1);
    killed_and_back(DDP_SSGD, DDP_WIRE_F32, 2);
    killed_and_back(DDP_USBYTE, DDP_WIRE_F32, 1); /* its updates are applied in the next forward pass */
    killed_and_back(DDP_DEFT, DDP_WIRE_F32, 2);   /* deferred gradients are applied before the worker enters
                                                   * */
}

/* The parameters at the last average, and the residual, also work in an elastic world. */
static void killed_worker_rejoins_with_int8_blocks(void **state)
{
    (void)state;
    killed_and_back(DDP_LOCALSGD, DDP_WIRE_INT8, 0);
    killed_and_back(DDP_DREAMDDP, DDP_WIRE_INT8, 2);
    killed_and_back(DDP_WFBP, DDP_WIRE_INT8, 1);
    killed_and_back(DDP_SSGD, DDP_WIRE_INT8, 2);
    killed_and_back(DDP_DEFT, DDP_WIRE_INT8, 1);
}

/* The joining worker receives the anchor, the shared momentum and late deltas, and has no changes yet. */
static void killed_worker_rejoins_with_outer_steps(void **state)
{
    (void)state;
    overlap = DDP_OVERLAP_NONE;
    killed_and_back(DDP_DILOCO, DDP_WIRE_F32, 1);
    killed_and_back(DDP_SPARSELOCO, DDP_WIRE_TOPK, 2);
    killed_and_back(DDP_DILOCO, DDP_WIRE_INT4, 0);
    killed_and_back(DDP_SPARSELOCO, DDP_WIRE_E3M0, 1);
    overlap = DDP_OVERLAP_STREAM;
    killed_and_back(DDP_DILOCO, DDP_WIRE_F32, 2);
    killed_and_back(DDP_DILOCO, DDP_WIRE_INT8, 1);
    mean_itself = 1;
    killed_and_back(DDP_DILOCO, DDP_WIRE_F32, 0);
    mean_itself = 0;
    overlap = DDP_OVERLAP_EAGER;
    killed_and_back(DDP_DILOCO, DDP_WIRE_F32, 1);
    killed_and_back(DDP_DILOCO, DDP_WIRE_BF16, 2);
    overlap = DDP_OVERLAP_DEFAULT;
}

/* Fails if the run has not chosen diloco when its profile is complete, or from the beginning of a joining
 * worker. */
static int has_chosen_diloco(const plan_of_run *p, ddp_ctx *d, int number)
{
    ddp_stats s;

    (void)p;
    ddp_get_stats(d, &s);
    if (ddp_step(d) < 8 && number < 3) return 0;
    return s.chosen && s.chosen->strategy == (int)DDP_DILOCO && !strcmp(s.strategy, "diloco") ? 0 : 1;
}

/* The joining worker receives the choice before it registers its layers. */
static void killed_worker_rejoins_with_the_choice_of_the_run(void **state)
{
    char path[] = "/tmp/ddp_losses_XXXXXX";
    const int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");

    (void)state;
    assert_non_null(f);
    fprintf(f, "strategy,overlap,period,workers,wire,steps,loss,source\nssgd,none,0,3,f32,100,2.5,a test\n"
               "ssgd,none,0,3,f32,1000,2,a test\ndiloco,stream,5,3,f32,1000,2.001,a test\n"
               "diloco,stream,5,3,int8,1000,2.001,a test\ndiloco,stream,20,3,f32,1000,3.9,a test\n");
    assert_int_equal(fclose(f), 0);
    losses = path;
    between = has_chosen_diloco;
    killed_and_back(DDP_AUTO, DDP_WIRE_F32, 1);
    killed_and_back(DDP_AUTO, DDP_WIRE_F32, 0);
    between = NULL;
    losses = NULL;
    assert_int_equal(unlink(path), 0);
}

/* It joins in another site than the killed worker's. Then also all workers in one site, or each in its own,
 * so that averages are not hierarchical. */
static void killed_worker_rejoins_with_sites(void **state)
{
    static const int cases[][5] = {
        {1, 2, 1, 2, 1}, {1, 2, 3, 1, 1}, {4, 4, 5, 4, 0}, {1, 1, 2, 3, 1}, {1, 2, 2, 3, 0}};

    (void)state;
    sites = cases[0];
    killed_and_back(DDP_LOCALSGD, DDP_WIRE_F32, 2);
    killed_and_back(DDP_DILOCO, DDP_WIRE_INT4, 0);
    sites = cases[1];
    killed_and_back(DDP_DREAMDDP, DDP_WIRE_INT8, 2);
    sites = cases[2];
    killed_and_back(DDP_SSGD, DDP_WIRE_BF16, 2);
    sites = cases[3];
    killed_and_back(DDP_WFBP, DDP_WIRE_INT8, 2);
    sites = cases[4];
    killed_and_back(DDP_LOCALSGD, DDP_WIRE_INT8, 1);
    sites = NULL;
}

static void killed_worker_rejoins_with_bfloat16(void **state)
{
    (void)state;
    killed_and_back(DDP_LOCALSGD, DDP_WIRE_BF16, 1);
}

/* Rank 0 coordinates, and is the lowest rank again when it has rejoined. */
static void coordinator_rejoins_through_another_member(void **state)
{
    (void)state;
    killed_and_back(DDP_DREAMDDP, DDP_WIRE_F32, 0);
    killed_and_back(DDP_WFBP, DDP_WIRE_F32, 0);
}

/* Members receive nothing from it until its epoch: its links are silent for longer than any heartbeat, and
 * stay open. */
static void joining_worker_waits_for_the_end_of_a_long_period(void **state)
{
    plan_of_run p;
    pid_t pid[4];
    int left[3] = {0, 1, 3}, k;
    (void)state;

    run_begin(&p, DDP_LOCALSGD, 3, 3000);
    p.peer_s = 5; /* a link that is silent for a fourth of this time is suspected */
    for (k = 0; k < 3; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 20);
    kill(pid[2], SIGKILL);
    wait_for(pid[2]);
    ddp__atomic_store(&p.b->step_ms, 700);
    pid[3] = start(&p, 3, 1);
    for (k = 0; k < 4; k++)
        if (k != 2) wait_for(pid[k]);
    all_well(&p, left, 3);
    munmap(p.b, sizeof *p.b);
}

/* Joining workers are killed at any moment of joining. The last one is not. */
static void dead_joining_workers_free_their_ids(void **state)
{
    ddp_rng rng = ddp_rng_seed(21 + seed_base(), 0);
    plan_of_run p;
    pid_t pid[3], guest = 0;
    int all[3] = {0, 1, 3}, k;
    (void)state;
    run_begin(&p, DDP_LOCALSGD, 3, LARGE);
    for (k = 0; k < 3; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 8);
    kill(pid[2], SIGKILL);
    wait_for(pid[2]);
    for (k = 0; k < 6; k++) {
        guest = start(&p, 4, 1);
        ddp__sleep_until(ddp_now() + 0.02 + 0.15 * ddp_rng_uniform(&rng));
        kill(guest, SIGKILL);
        wait_for(guest);
        assert_int_equal(p.b->done[0] | p.b->done[1], 0);
    }
    p.b->entered[4] = -1;
    guest = start(&p, 3, 1);
    wait_for(guest);
    for (k = 0; k < 2; k++) wait_for(pid[k]);
    all_well(&p, all, 3);
    events(7, 1);
    print_message("after six dead ones, entered at step %ld\n", p.b->entered[3]);
    munmap(p.b, sizeof *p.b);
}

/* Silent connections to the listening socket do not delay a worker that joins. */
static void silent_callers_do_not_delay_a_join(void **state)
{
    enum { SILENT = 40 };
    plan_of_run p;
    pid_t pid[4];
    int all[3] = {0, 1, 3}, fd[SILENT], k, count;
    ddp__addr at;
    (void)state;

    run_begin(&p, DDP_LOCALSGD, 3, 3000);
    for (k = 0; k < 3; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 10);
    kill(pid[2], SIGKILL);
    wait_for(pid[2]);
    assert_int_equal(ddp__addr_parse(p.addr, &at, 1, &count, NULL), DDP_OK);
    for (k = 0; k < SILENT; k++) fd[k] = ddp__tcp_dial(&at, ddp_now() + 5);
    pid[3] = start(&p, 3, 1);
    until_step(&p, 3, 1); /* it joins while every silent caller is connected */
    for (k = 0; k < SILENT; k++) close(fd[k]);
    for (k = 0; k < 4; k++)
        if (k != 2) wait_for(pid[k]);
    all_well(&p, all, 3);
    munmap(p.b, sizeof *p.b);
}

/* Gets the id of a lost worker, and sends nothing more. */
static int sit_down(const plan_of_run *p)
{
    unsigned char b[DDP__JOIN_PLACE], hello[DDP__HELLO_BYTES], request[DDP__JOIN_REQUEST];
    ddp__hello self;
    ddp__addr at;
    int count, fd;

    memset(&self, 0, sizeof self);
    memset(request, 0, sizeof request);
    self.version = DDP__PROTOCOL;
    self.run_id = ddp__run_id(p->run);
    ddp__hello_pack(&self, DDP__JOIN_ASK, DDP__WELCOME, 0, hello);
    ddp__hello_put(request, DDP__JOIN_ENTER, 4);
    assert_int_equal(ddp__addr_parse(p->addr, &at, 1, &count, NULL), DDP_OK);
    fd = ddp__tcp_dial(&at, ddp_now() + 5);
    assert_true(fd >= 0);
    assert_int_equal(ddp__stream_send_all(NULL, fd, hello, sizeof hello, ddp_now() + 5), 0);
    assert_int_equal(ddp__stream_send_all(NULL, fd, request, sizeof request, ddp_now() + 5), 0);
    assert_int_equal(ddp__stream_recv_all(NULL, fd, b, sizeof b, NULL, ddp_now() + 5), 0);
    assert_int_equal(ddp__hello_get(b, 4), DDP__JOIN_OK);
    return fd;
}

static void stalled_joining_worker_loses_its_id(void **state)
{
    plan_of_run p;
    pid_t pid[3], guest;
    int all[3] = {0, 1, 3}, k, fd;
    (void)state;

    run_begin(&p, DDP_LOCALSGD, 3, 3000);
    p.op_s = 5;
    for (k = 0; k < 3; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 10);
    kill(pid[2], SIGKILL);
    wait_for(pid[2]);
    for (k = 0; k < 2; k++) until_live(&p, k, 2);
    fd = sit_down(&p);
    guest = start(&p, 3, 1);
    wait_for(guest);
    for (k = 0; k < 2; k++) wait_for(pid[k]);
    all_well(&p, all, 3);
    close(fd);
    munmap(p.b, sizeof *p.b);
}

/* The donor is the highest live rank. It is killed while a worker joins. */
static void joining_worker_survives_its_donor(void **state)
{
    ddp_rng rng = ddp_rng_seed(22 + seed_base(), 0);
    int k, turn;
    (void)state;
    for (turn = 0; turn < INSTANCES(8) && turn < 4; turn++) {
        plan_of_run p;
        pid_t pid[5];
        int all[4] = {0, 1, 2, 5};
        run_begin(&p, turn % 2 ? DDP_DREAMDDP : DDP_SSGD, 5, LARGE);
        for (k = 0; k < 5; k++) pid[k] = start(&p, k, 0);
        until_step(&p, 0, 8);
        kill(pid[3], SIGKILL);
        wait_for(pid[3]);
        until_step(&p, 0, ddp__atomic_load(&p.b->step[0]) + 2);
        pid[3] = start(&p, 5, 1);
        ddp__sleep_until(ddp_now() + 0.02 + 0.1 * ddp_rng_uniform(&rng));
        kill(pid[4], SIGKILL);
        for (k = 0; k < 5; k++) wait_for(pid[k]);
        all_well(&p, all, 4);
        events(2, 1);
        munmap(p.b, sizeof *p.b);
    }
}

/* No worker is lost: joining workers get new ids, until there are no more. */
static void grows(ddp_strategy strategy, int world, int max_world)
{
    plan_of_run p;
    pid_t pid[WORKERS];
    int all[WORKERS], k;

    run_begin(&p, strategy, world, 3000);
    p.max_world = max_world;
    p.last_comer = world == 1 ? -1 : max_world - 1; /* a full run must reject one more */
    for (k = 0; k < world; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 10);
    for (; k < max_world; k++) {
        if (k == max_world - 1 && world > 1) { /* another worker is lost: an old and a new id are free */
            kill(pid[world - 1], SIGKILL);
            wait_for(pid[world - 1]);
        }
        pid[k] = start(&p, k, 1);
        until_step(&p, k, 1);
        if (k < max_world - 1) assert_int_equal(p.b->rank[k], k);
    }
    if (world == 1) { /* the run is full now */
        waits_in_vain(p, WORKERS - 1, "raise max_world");
        end_soon(&p);
    }
    for (k = 0; k < max_world; k++)
        if (k != world - 1 || world == 1) wait_for(pid[k]);
    for (k = 0; k < max_world; k++) all[k] = k;
    if (world > 1) all[world - 1] = 0;
    all_well(&p, all, max_world);
    events(world > 1, max_world - world);
    munmap(p.b, sizeof *p.b);
}

static void workers_join_with_new_ids(void **state)
{
    (void)state;
    grows(DDP_DREAMDDP, 3, 5);
    grows(DDP_SSGD, 2, 4);
    grows(DDP_LOCALSGD, 1, 3); /* it started with one worker */
}

/* Rank 0 waits for rank 1, and does not answer a third worker before all are connected. */
static void joining_worker_waits_until_the_run_has_started(void **state)
{
    static const int all[3] = {0, 1, 2};
    plan_of_run p;
    pid_t pid[3];

    (void)state;
    run_begin(&p, DDP_LOCALSGD, 2, 3000);
    p.max_world = 3;
    pid[0] = start(&p, 0, 0);
    pid[2] = start(&p, 2, 1);
    ddp__sleep_until(ddp_now() + 0.3);
    if (p.b->done[2]) fail_msg("the joining worker has ended: %s", p.b->text[2]);
    pid[1] = start(&p, 1, 0);
    for (int k = 0; k < 3; k++) wait_for(pid[k]);
    all_well(&p, all, 3);
    assert_int_equal(p.b->rank[2], 2);
    munmap(p.b, sizeof *p.b);
}

static void invalid_max_world_is_rejected(void **state)
{
    ddp_config c;
    ddp_error err;
    ddp__hello a, b;
    char text[300];
    (void)state;
    memset(&c, 0, sizeof c);
    c.no_env = 1;
    c.world = 4;
    c.elastic.max_world = 3;
    c.elastic.min_world = 1;
    assert_null(ddp_open(&c, &err));
    assert_non_null(strstr(err.msg, "max_world 3 is out of range for an elastic world of 4 workers: use 4"));
    c.elastic.max_world = 65;
    assert_null(ddp_open(&c, &err));
    c.elastic.max_world = 8;
    c.elastic.min_world = 0;
    assert_null(ddp_open(&c, &err));
    assert_non_null(strstr(err.msg, "set min_world"));
    c.elastic.min_world = 1;
    c.transport = DDP_THREADS;
    assert_null(ddp_open(&c, &err));
    assert_non_null(strstr(err.msg, "need the tcp transport"));
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    a.world = ddp__hello_world(4, 8);
    b.world = ddp__hello_world(4, 4);
    b.rank = 1;
    assert_int_equal(b.world, 4);
    assert_int_equal(ddp__hello_check(&a, &b), DDP__REFUSE_WORLD);
    ddp__hello_dispute(&a, DDP__REFUSE_WORLD, &b, "x", text, sizeof text);
    assert_string_equal(text, "x expects 4 ranks, but rank 0 expects 4 ranks of at most 8: set the same "
                              "world size on all ranks");
    b.world = a.world;
    assert_int_equal(ddp__hello_check(&a, &b), DDP__WELCOME);
    b.rank = 5; /* it cannot take part in the rendezvous */
    assert_int_equal(ddp__hello_check(&a, &b), DDP__REFUSE_RANK);
}

static void mismatched_joining_workers_are_rejected(void **state)
{
    plan_of_run p, joining;
    pid_t pid[3];
    (void)state;

    run_begin(&p, DDP_LOCALSGD, 3, 3000); /* all three are live */
    for (int k = 0; k < 3; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 10);
    waits_in_vain(p, 3, "the run is full");
    kill(pid[2], SIGKILL);
    wait_for(pid[2]);
    joining = p;
    joining.last_comer = -1;
    joining.layers = LAYERS - 1;
    refused(&joining, "the joining worker has 5 layers with layout ");
    joining.layers = LAYERS;
    joining.period = 6;
    refused(&joining, "this run uses localsgd with period 4");
    joining.period = p.period;
    joining.wire = DDP_WIRE_BF16;
    refused(&joining, "wire bf16, but this run uses localsgd with period 4, 1 micro-batches and wire f32");
    joining.wire = p.wire;
    joining.average_state = 1;
    refused(&joining,
            "the joining worker has average_state 1, but this run has 0: start it with the same value");
    joining.average_state = 0;
    joining.run = "another";
    refused(&joining, "set the same DREAMDDP_RUN_ID");
    survivors_end(&p, pid);

    run_loses_one(&p, pid, 1);
    joining = p;
    joining.last_comer = -1;
    memset(joining.site, 0, sizeof joining.site);
    refused(
        &joining,
        "the joining worker has a site (0: no, 1: yes) 0, but this run has 1: start it with the same value");
    survivors_end(&p, pid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_matches_the_standard_digests),
        cmocka_unit_test(killed_worker_rejoins),
        cmocka_unit_test(killed_worker_rejoins_with_int8_blocks),
        cmocka_unit_test(killed_worker_rejoins_with_outer_steps),
        cmocka_unit_test(killed_worker_rejoins_with_the_choice_of_the_run),
        cmocka_unit_test(killed_worker_rejoins_with_bfloat16),
        cmocka_unit_test(killed_worker_rejoins_with_sites),
        cmocka_unit_test(coordinator_rejoins_through_another_member),
        cmocka_unit_test(joining_worker_waits_for_the_end_of_a_long_period),
        cmocka_unit_test(dead_joining_workers_free_their_ids),
        cmocka_unit_test(silent_callers_do_not_delay_a_join),
        cmocka_unit_test(stalled_joining_worker_loses_its_id),
        cmocka_unit_test(joining_worker_survives_its_donor),
        cmocka_unit_test(workers_join_with_new_ids),
        cmocka_unit_test(joining_worker_waits_until_the_run_has_started),
        cmocka_unit_test(invalid_max_world_is_rejected),
        cmocka_unit_test(mismatched_joining_workers_are_rejected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
