/* [patient] Workers that come while a run goes on: a killed one comes back, even if others die meanwhile; wrong
 * ones are refused. Ranks are processes. */
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
#include "wire/meet.h"
#ifdef DDP_USE_OPENSSL
#include "wire/tls_lab.h"
#include "strategy/outer.h"
#endif

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
static void sha256_gives_the_standard_digests(void **state)
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

/* ---- a run of processes ---- */

enum { WORKERS = 8, LAYERS = 6 };

/* Steps of a run that waits for a newcomer, however slow; it ends so many after its entry. */
enum { STEPS_MOST = 30000, STEPS_AFTER = 120, LARGE = 30000 / ALONE(5) };

typedef struct board { /* shared memory; a worker's number is the order of its start */
    long last;                 /* atomic: where all stop, the same for all */
    long step_ms;              /* atomic: what a step takes; 4 again when the last newcomer is in */
    long step[WORKERS];        /* atomic */
    int  rank[WORKERS], status[WORKERS], done[WORKERS];
    long entered[WORKERS];     /* step at which a newcomer came in, -1 */
    long sites[WORKERS];       /* those of the living as it knows them, a digit each; 0: one level */
    long rest[WORKERS];        /* of a newcomer, after its first period: kept_rest */
    uint64_t hash[WORKERS], averaged[WORKERS]; /* after and before the last ddp_sync_all */
    double first_loss[WORKERS], last_loss[WORKERS];
    char text[WORKERS][300];
    char door[WORKERS][DDP__ADDR_TEXT];
} board;

static ddp_overlap overlap; /* of the outer family */
static int mean_itself;     /* rate 1 and no momentum */

typedef struct plan_of_run {
    board *b;
    ddp_strategy strategy;
    ddp_wire wire;
    int  world, min_world, max_world, layers;
    int  last_comer;           /* who enters last: the run ends so many steps after that */
    size_t count;              /* floats of a layer */
    char addr[DDP__ADDR_TEXT];
    int  optimizer;            /* 1: with state */
    int  average_state;
    int  site[WORKERS];        /* 0: none */
    double op_s;
    const char *psk;
    const char *folder, *cert; /* of certificates, rank-R.pem, or CERT.pem of this worker */
    int  period;
    const char *run;
    double connect_s;
} plan_of_run;

static float *params[LAYERS], *grads[LAYERS];

static double compute(const plan_of_run *p, int rank, long step)
{
    double loss = 0;
    for (int l = 0; l < p->layers; l++)
        for (size_t i = 0; i < p->count; i++) {
            float noise = (float)((rank * 7 + step * 3 + (long)i) % 11 - 5) * 0.02f;
            float off = params[l][i] - (float)(l + 1);
            grads[l][i] += off + noise;
            if (i < 100) loss += (double)off * (double)off;
        }
    return loss;
}

/* Values that are not 0 of what sparse changes left to be sent, and layers whose first period is not over. */
static long kept_rest(const plan_of_run *p, const ddp_ctx *d)
{
    const int outer = p->strategy == DDP_DILOCO || p->strategy == DDP_SPARSELOCO;
    long n = 0;

    for (int l = 0; outer && l < p->layers; l++) n += ((const ddp__outer *)d->self)->layer[l].fresh;

    for (int i = 0; i < d->kepts; i++)
        for (size_t k = 0; !strcmp(d->kept[i].name, "residual") && k < d->kept[i].count; k++) n += d->kept[i].data[k] != 0;
    return n;
}

static ddp_status train(const plan_of_run *p, ddp_ctx *d, int number)
{
    board *b = p->b;
    char name[16];

    for (int l = 0; l < p->layers; l++) {
        ddp_layer layer;
        ddp_block block;
        memset(&layer, 0, sizeof layer);
        memset(&block, 0, sizeof block);
        params[l] = (float *)calloc(p->count, sizeof(float));
        grads[l] = (float *)calloc(p->count, sizeof(float));
        snprintf(name, sizeof name, "l%d", l);
        block.params = params[l];
        block.grads = grads[l];
        block.count = p->count;
        layer.name = name;
        layer.blocks = &block;
        layer.block_count = 1;
        if (ddp_add_layer(d, &layer)) return ddp_last_error(d)->code;
    }
    {
        ddp_optimizer o = p->optimizer ? ddp_sgd(0.02f, 0.5f) : ddp_sgd(0.02f, 0);
        if (ddp_set_optimizer(d, &o)) return ddp_last_error(d)->code;
    }
    b->rank[number] = ddp_rank(d);
    b->entered[number] = ddp_step(d);
    /* the others wait for this one at the next period's end: none is past the new last step */
    if (number == p->last_comer) ddp__atomic_store(&b->last, ddp_step(d) + STEPS_AFTER), ddp__atomic_store(&b->step_ms, 4);
    for (long s = ddp_step(d); s < ddp__atomic_load(&b->last); s++) {
        double loss;
        for (int l = 0; l < p->layers; l++)
            if (ddp_forward_begin(d, l)) return ddp_last_error(d)->code;
        loss = compute(p, ddp_rank(d), s);
        if (s == b->entered[number]) b->first_loss[number] = loss;
        b->last_loss[number] = loss;
        for (int l = p->layers - 1; l >= 0; l--)
            if (ddp_backward_end(d, l)) return ddp_last_error(d)->code;
        ddp__sleep_until(ddp_now() + 1e-3 * (double)ddp__atomic_load(&b->step_ms));
        if (ddp_step_end(d)) return ddp_last_error(d)->code;
        if (number == p->last_comer && s + 1 == b->entered[number] + p->period) b->rest[number] = kept_rest(p, d);
        ddp__atomic_store(&b->step[number], s + 1);
    }
    if (ddp_wait(d)) return ddp_last_error(d)->code;
    for (int r = 0; d->levels && !ddp_sites_of(d)->members && r < p->world; r++)
        if (d->engine->place[r] >= 0) b->sites[number] = 10 * b->sites[number] + d->engine->site[r];
    for (int l = 0; l < p->layers; l++)
        b->averaged[number] = ddp_hash_floats(b->averaged[number], params[l], p->count);
    if (ddp_sync_all(d)) return ddp_last_error(d)->code;
    for (int l = 0; l < p->layers; l++)
        b->hash[number] = ddp_hash_floats(b->hash[number], params[l], p->count);
    return DDP_OK;
}

static void certify(const plan_of_run *p, ddp_config *c)
{
    static char path[3][100];
    char name[20];

    snprintf(name, sizeof name, "rank-%d", c->rank);
    snprintf(path[0], sizeof path[0], "%s/ca.pem", p->folder);
    snprintf(path[1], sizeof path[1], "%s/%s.pem", p->folder, p->cert ? p->cert : name);
    snprintf(path[2], sizeof path[2], "%s/%s.key", p->folder, p->cert ? p->cert : name);
    c->tls_ca = path[0], c->tls_cert = path[1], c->tls_key = path[2];
}

static void work(const plan_of_run *p, int number, int join)
{
    ddp_config c;
    ddp_error err;
    ddp_ctx *d;
    ddp_status s;

    memset(&c, 0, sizeof c);
    memset(&err, 0, sizeof err);
    c.strategy = p->strategy;
    c.wire = p->wire;
    c.overlap = overlap;
    if (p->strategy == DDP_DEFT) c.update_frequency = 0.5; /* gradients wait, merged, when a worker is lost and comes */
    c.outer_lr = mean_itself;
    c.outer_momentum = mean_itself ? DDP_NO_MOMENTUM : 0;
    c.average_state = p->average_state;
    c.site = p->site[number];
    c.rank = join ? 0 : number;
    c.world = join ? 0 : p->world;
    c.min_world = p->min_world;
    c.max_world = join ? 0 : p->max_world;
    c.join = join;
    c.addr = p->addr;
    c.run_id = p->run;
    c.period = p->period;
    c.no_env = 1;
    c.peer_timeout_s = 5;
    c.op_timeout_s = p->op_s;
    c.tls_psk = p->psk;
    if (p->folder) certify(p, &c);
    c.connect_timeout_s = p->connect_s;
    if (getenv("JOIN_LOG")) c.logger.level = DDP_LOG_INFO;
    if (getenv("JOIN_LOG")) c.no_env = 0, setenv("DREAMDDP_LOG", "info", 1);
    d = ddp_open(&c, &err);
    s = err.code;
    if (d && d->join) ddp__addr_text(&d->join->door[d->rank], p->b->door[number]);
    if (d) {
        s = train(p, d, number);
        if (s != DDP_OK) err = *ddp_last_error(d);
        ddp_close(d);
    }
    snprintf(p->b->text[number], sizeof p->b->text[number], "%.290s", err.msg);
    p->b->status[number] = (int)s;
    if (number == p->last_comer && s != DDP_OK) { /* the others need not wait for it */
        long at = 0;
        for (int i = 0; i < WORKERS; i++)
            if (ddp__atomic_load(&p->b->step[i]) > at) at = ddp__atomic_load(&p->b->step[i]);
        ddp__atomic_store(&p->b->last, at + STEPS_AFTER);
    }
    ddp__atomic_store(&p->b->done[number], 1);
    _exit(0);
}

static pid_t start(const plan_of_run *p, int number, int join)
{
    pid_t pid = fork();
    if (pid == 0) work(p, number, join);
    return pid;
}

/* For `make soak`: other random moments, and what happened in a run. */
static uint64_t seed_base(void)
{
    return getenv("SEED_BASE") ? strtoull(getenv("SEED_BASE"), NULL, 10) : 0;
}

static void events(int kills, int joins)
{
    if (getenv("SOAK")) printf("events %d 0 0 %d\n", kills, joins), fflush(stdout);
}

static void run_begin(plan_of_run *p, ddp_strategy strategy, int world, size_t count)
{
    static char run[40];
    static int runs;

    memset(p, 0, sizeof *p);
    p->b = (board *)mmap(NULL, sizeof *p->b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                         0);
    assert_true(p->b != MAP_FAILED);
    for (int i = 0; i < WORKERS; i++) p->b->entered[i] = -1;
    p->strategy = strategy;
    p->world = p->last_comer = world;
    p->min_world = 1;
    p->layers = LAYERS;
    p->b->last = STEPS_MOST;
    p->b->step_ms = 4;
    p->count = count;
    p->optimizer = 1;
    p->period = 4;
    snprintf(run, sizeof run, "join %ld %d", (long)getpid(), runs); /* a door that is gone may be another world's by now */
    p->run = run;
    p->op_s = 20;
    p->connect_s = 40; /* it may have to begin again */
    /* an address of this process: a port of 127.0.0.1 may be given to somebody's connection before a worker listens on it */
    snprintf(p->addr, sizeof p->addr, "127.%d.%d.%d:%d", 1 + (getpid() >> 15) % 127, (getpid() >> 7) % 256,
             1 + getpid() % 128, 20000 + runs++ % 8000);
}

static void until_step(const plan_of_run *p, int number, long step)
{
    double end = ddp_now() + 60;
    while (ddp__atomic_load(&p->b->step[number]) < step && !ddp__atomic_load(&p->b->done[number]) &&
           ddp_now() < end)
        ddp__sleep_until(ddp_now() + 0.002);
    if (p->b->text[number][0]) fail_msg("worker %d: %s", number, p->b->text[number]);
    assert_true(ddp__atomic_load(&p->b->step[number]) >= step);
}

static void wait_for(pid_t pid)
{
    double end = ddp_now() + 200;
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (ddp_now() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            fail_msg("process %ld did not end", (long)pid);
        }
        ddp__sleep_until(ddp_now() + 0.005);
    }
}

static void all_well(const plan_of_run *p, const int *numbers, int count)
{
    for (int i = 0; i < count; i++) {
        int n = numbers[i];
        if (p->b->status[n]) fail_msg("worker %d: %s", n, p->b->text[n]);
        assert_int_equal(p->b->done[n], 1);
        assert_int_equal(p->b->step[n], p->b->last);
        assert_true(p->b->hash[n] == p->b->hash[numbers[0]]);
        if (p->strategy != DDP_DREAMDDP && overlap <= DDP_OVERLAP_NONE) /* the others end with an average, of all layers */
            assert_true(p->b->averaged[n] == p->b->averaged[numbers[0]]);
    }
}

static const int *sites; /* of workers by number, the newcomer's last; NULL: none */

static void killed_and_back(ddp_strategy strategy, ddp_wire wire, int victim)
{
    plan_of_run p;
    pid_t pid[4];
    int left[3], n = 0, witness = victim == 0 ? 1 : 0;
    static int calls;

    if (calls++ % SAMPLED(2)) return; /* each second one under the sanitizers */
    run_begin(&p, strategy, 3, 3000);
    p.wire = wire;
    if (sites) memcpy(p.site, sites, 4 * sizeof *sites);
    for (int i = 0; i < 3; i++) pid[i] = start(&p, i, 0);
    until_step(&p, witness, 60);
    kill(pid[victim], SIGKILL);
    wait_for(pid[victim]);
    if (victim == 0) snprintf(p.addr, sizeof p.addr, "%s", p.b->door[2]); /* its own is gone */
    pid[3] = start(&p, 3, 1);
    for (int i = 0; i < 4; i++)
        if (i != victim) wait_for(pid[i]);
    for (int i = 0; i < 3; i++)
        if (i != victim) left[n++] = i;
    left[n++] = 3;
    all_well(&p, left, n);
    assert_int_equal(p.b->rank[3], victim);
    assert_true(p.b->entered[3] > 60);
    assert_int_equal(p.b->rest[3], 0); /* it has changed nothing, and what its donor keeps is the donor's */
    assert_true(p.b->last_loss[3] < 0.5 * p.b->first_loss[witness]);
    for (int i = 0; sites && i < n; i++) {
        long want = 0, *known = &p.b->sites[left[i]];
        for (int r = 0; r < 3; r++) want = 10 * want + p.site[r == victim ? 3 : r];
        if (sites[4] ? *known != want : *known) fail_msg("worker %d knows sites %ld, not %ld", left[i], *known, want);
    }
    events(1, 1);
    print_message("%s: entered at step %ld\n", ddp_strategy_name(strategy), p.b->entered[3]);
    munmap(p.b, sizeof *p.b);
}

static void a_killed_worker_comes_back(void **state)
{
    (void)state;
    killed_and_back(DDP_LOCALSGD, DDP_WIRE_F32, 1);
    killed_and_back(DDP_DREAMDDP, DDP_WIRE_F32, 2);
    killed_and_back(DDP_WFBP, DDP_WIRE_F32, 1);
    killed_and_back(DDP_SSGD, DDP_WIRE_F32, 2);
    killed_and_back(DDP_USBYTE, DDP_WIRE_F32, 1); /* its updates come in the next forward */
    killed_and_back(DDP_DEFT, DDP_WIRE_F32, 2); /* what it put off is applied before the newcomer enters */
}

/* The base that changes are counted from, and what is still to be sent, live in an elastic world. */
static void a_killed_worker_comes_back_to_int8_blocks(void **state)
{
    (void)state;
    killed_and_back(DDP_LOCALSGD, DDP_WIRE_INT8, 0);
    killed_and_back(DDP_DREAMDDP, DDP_WIRE_INT8, 2);
    killed_and_back(DDP_WFBP, DDP_WIRE_INT8, 1);
    killed_and_back(DDP_SSGD, DDP_WIRE_INT8, 2);
    killed_and_back(DDP_DEFT, DDP_WIRE_INT8, 1);
}

/* It gets the anchor, the momentum of all and what is late, and has changed nothing yet. */
static void a_killed_worker_comes_back_to_outer_steps(void **state)
{
    (void)state;
    overlap = DDP_OVERLAP_NONE;
    killed_and_back(DDP_DILOCO, DDP_WIRE_F32, 1);
    killed_and_back(DDP_SPARSELOCO, DDP_WIRE_TOPK, 2);
    killed_and_back(DDP_DILOCO, DDP_WIRE_INT4, 0);
    overlap = DDP_OVERLAP_STREAM;
    killed_and_back(DDP_DILOCO, DDP_WIRE_F32, 2);
    mean_itself = 1;
    killed_and_back(DDP_DILOCO, DDP_WIRE_F32, 0);
    mean_itself = 0;
    overlap = DDP_OVERLAP_EAGER;
    killed_and_back(DDP_DILOCO, DDP_WIRE_F32, 1);
    overlap = DDP_OVERLAP_DEFAULT;
}

/* In another one than who was killed, and back where all are in one, or each in its own: then there is one level. */
static void a_killed_worker_comes_back_to_sites(void **state)
{
    static const int cases[][5] = {{1, 2, 1, 2, 1}, {1, 2, 3, 1, 1}, {4, 4, 5, 4, 0}, {1, 1, 2, 3, 1}, {1, 2, 2, 3, 0}};

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

static void a_killed_worker_comes_back_to_bfloat16(void **state)
{
    (void)state;
    killed_and_back(DDP_LOCALSGD, DDP_WIRE_BF16, 1);
}

/* Rank 0 coordinates, and is the lowest again when it is back. */
static void the_coordinator_comes_back_by_another_door(void **state)
{
    (void)state;
    killed_and_back(DDP_DREAMDDP, DDP_WIRE_F32, 0);
    killed_and_back(DDP_WFBP, DDP_WIRE_F32, 0);
}

/* Members hear it from its epoch on: until then its links are silent for longer than any heartbeat, and stay. */
static void a_newcomer_waits_for_the_end_of_a_long_period(void **state)
{
    plan_of_run p;
    pid_t pid[4];
    int left[3] = {0, 1, 3}, k;
    (void)state;

    run_begin(&p, DDP_LOCALSGD, 3, 3000);
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

/* Newcomers are killed at any moment of their coming; the last one is not. */
static void newcomers_that_die_are_forgotten(void **state)
{
    ddp_rng rng = ddp_rng_seed(21 + seed_base(), 0);
    plan_of_run p;
    pid_t pid[3], guest = 0;
    int all[3] = {0, 1, 3}, k;
    (void)state;
    run_begin(&p, DDP_LOCALSGD, 3, LARGE);
    for (k = 0; k < 3; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 20);
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

/* Callers that say nothing at the door: one who speaks comes in. */
static void silent_callers_keep_nobody_out(void **state)
{
    enum { SILENT = 40 };
    plan_of_run p;
    pid_t pid[4];
    int all[3] = {0, 1, 3}, fd[SILENT], k, count;
    ddp__addr at;
    double begin;
    (void)state;

    run_begin(&p, DDP_LOCALSGD, 3, 3000);
    for (k = 0; k < 3; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 10);
    kill(pid[2], SIGKILL);
    wait_for(pid[2]);
    assert_int_equal(ddp__addr_parse(p.addr, &at, 1, &count, NULL), DDP_OK);
    for (k = 0; k < SILENT; k++) fd[k] = ddp__tcp_dial(&at, ddp_now() + 5);
    begin = ddp_now();
    pid[3] = start(&p, 3, 1);
    until_step(&p, 3, 1);
    begin = ddp_now() - begin;
    for (k = 0; k < SILENT; k++) close(fd[k]);
    for (k = 0; k < 4; k++)
        if (k != 2) wait_for(pid[k]);
    all_well(&p, all, 3);
    print_message("came in after %.2f s\n", begin);
    assert_true(begin < 8);
    munmap(p.b, sizeof *p.b);
}

/* Takes the place of a lost worker, and says nothing more. */
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

static void a_newcomer_that_stands_still_is_forgotten(void **state)
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
    ddp__sleep_until(ddp_now() + 1.5); /* its loss is known */
    fd = sit_down(&p);
    guest = start(&p, 3, 1);
    wait_for(guest);
    for (k = 0; k < 2; k++) wait_for(pid[k]);
    all_well(&p, all, 3);
    close(fd);
    munmap(p.b, sizeof *p.b);
}

/* The donor is the highest that lives: it is killed while a newcomer is on its way. */
static void a_newcomer_survives_its_donor(void **state)
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
        until_step(&p, 0, 20);
        kill(pid[3], SIGKILL);
        wait_for(pid[3]);
        until_step(&p, 0, ddp__atomic_load(&p.b->step[0]) + 5);
        pid[3] = start(&p, 5, 1);
        ddp__sleep_until(ddp_now() + 0.02 + 0.1 * ddp_rng_uniform(&rng));
        kill(pid[4], SIGKILL);
        for (k = 0; k < 5; k++) wait_for(pid[k]);
        all_well(&p, all, 4);
        events(2, 1);
        munmap(p.b, sizeof *p.b);
    }
}

/* Nobody is lost: newcomers get ids that nobody had before, until there are no more. */
static void grows(ddp_strategy strategy, int world, int max_world)
{
    plan_of_run p, late;
    pid_t pid[WORKERS], refused;
    int all[WORKERS], k;

    run_begin(&p, strategy, world, 3000);
    p.max_world = max_world;
    p.last_comer = max_world - 1;
    for (k = 0; k < world; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 30);
    for (; k < max_world; k++) {
        if (k == max_world - 1 && world > 1) { /* somebody else goes: an old and a new id are free */
            kill(pid[world - 1], SIGKILL);
            wait_for(pid[world - 1]);
        }
        pid[k] = start(&p, k, 1);
        until_step(&p, k, 1);
        if (k < max_world - 1) assert_int_equal(p.b->rank[k], k);
    }
    if (world == 1) { /* it is full now */
        late = p;
        late.connect_s = 0.5;
        late.last_comer = -1;
        refused = start(&late, WORKERS - 1, 1);
        wait_for(refused);
        assert_non_null(strstr(p.b->text[WORKERS - 1], "max_world made no room for more"));
    }
    for (k = 0; k < max_world; k++)
        if (k != world - 1 || world == 1) wait_for(pid[k]);
    for (k = 0; k < max_world; k++) all[k] = k;
    if (world > 1) all[world - 1] = 0;
    all_well(&p, all, max_world);
    events(world > 1, max_world - world);
    munmap(p.b, sizeof *p.b);
}

static void new_workers_come(void **state)
{
    (void)state;
    grows(DDP_DREAMDDP, 3, 5);
    grows(DDP_SSGD, 2, 4);
    grows(DDP_LOCALSGD, 1, 3); /* it began alone */
}

/* Rank 0 waits for rank 1, and has nothing to say to a third one before all are there. */
static void a_newcomer_waits_until_the_run_has_begun(void **state)
{
    static const int all[3] = {0, 1, 2};
    plan_of_run p;
    pid_t pid[3];

    (void)state;
    run_begin(&p, DDP_LOCALSGD, 2, 3000);
    p.max_world = 3;
    pid[0] = start(&p, 0, 0);
    pid[2] = start(&p, 2, 1);
    ddp__sleep_until(ddp_now() + 1);
    if (p.b->done[2]) fail_msg("the newcomer has ended: %s", p.b->text[2]);
    pid[1] = start(&p, 1, 0);
    for (int k = 0; k < 3; k++) wait_for(pid[k]);
    all_well(&p, all, 3);
    assert_int_equal(p.b->rank[2], 2);
    munmap(p.b, sizeof *p.b);
}

static void room_has_to_make_sense(void **state)
{
    ddp_config c;
    ddp_error err;
    ddp__hello a, b;
    char text[300];
    (void)state;
    memset(&c, 0, sizeof c);
    c.no_env = 1;
    c.world = 4;
    c.max_world = 3;
    c.min_world = 1;
    assert_null(ddp_open(&c, &err));
    assert_non_null(strstr(err.msg, "max_world 3: an elastic world of 4 workers has room for 4"));
    c.max_world = 65;
    assert_null(ddp_open(&c, &err));
    c.max_world = 8;
    c.min_world = 0;
    assert_null(ddp_open(&c, &err));
    assert_non_null(strstr(err.msg, "set min_world"));
    c.min_world = 1;
    c.transport = DDP_THREADS;
    assert_null(ddp_open(&c, &err));
    assert_non_null(strstr(err.msg, "over tcp"));
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    a.world = ddp__hello_world(4, 8);
    b.world = ddp__hello_world(4, 4);
    b.rank = 1;
    assert_int_equal(b.world, 4);
    assert_int_equal(ddp__hello_check(&a, &b), DDP__REFUSE_WORLD);
    ddp__hello_dispute(&a, DDP__REFUSE_WORLD, &b, "x", text, sizeof text);
    assert_string_equal(text, "x counts 4 ranks, rank 0 counts 4 ranks of at most 8: give all the "
                              "same world size");
    b.world = a.world;
    assert_int_equal(ddp__hello_check(&a, &b), DDP__WELCOME);
    b.rank = 5; /* it cannot be at the meeting */
    assert_int_equal(ddp__hello_check(&a, &b), DDP__REFUSE_RANK);
}

#define SPEAKS_NO_TLS  "speaks no TLS 1.3: give every rank --tls-psk or certificates, or none"
#define AVERAGES_STATE "the newcomer has average_state 1, this run 0: start it with the same"

#define HAS_NO_SITE    "the newcomer has a site (0: no, 1: yes) 0, this run 1: start it with the same"

/* What a worker hears that tries to come into a run of three, of which `lost` are gone. */
static void refused(int lost, int layers, int period, ddp_wire wire, const char *run,
                    const char *what)
{
    char key[] = "/tmp/test_join_XXXXXX";
    plan_of_run p, other;
    pid_t pid[3], guest;
    int k, fd = mkstemp(key);

    assert_true(fd >= 0 && write(fd, "0123456789abcdef0123456789abcdef", 32) == 32);
    close(fd);
    run_begin(&p, DDP_LOCALSGD, 3, 3000);
    for (k = 0; k < 3; k++) p.site[k] = !strcmp(what, HAS_NO_SITE);
    for (k = 0; k < 3; k++) pid[k] = start(&p, k, 0);
    until_step(&p, 0, 10);
    if (lost) kill(pid[2], SIGKILL);
    other = p;
    other.layers = layers;
    other.period = period;
    other.wire = wire;
    memset(other.site, 0, sizeof other.site);
    other.average_state = !strcmp(what, AVERAGES_STATE);
    if (run) other.run = run;
    other.connect_s = lost ? 40 : 0.5;
    if (!strcmp(what, SPEAKS_NO_TLS)) other.psk = key;
    guest = start(&other, 3, 1);
    wait_for(guest);
    for (k = 0; k < 3; k++) wait_for(pid[k]);
    unlink(key);
    if (!strstr(p.b->text[3], what)) fail_msg("\"%s\" does not say \"%s\"", p.b->text[3], what);
    assert_int_equal(p.b->entered[3], -1);
    for (k = 0; k < 3 - lost; k++) {
        assert_string_equal(p.b->text[k], "");
        assert_int_equal(p.b->step[k], p.b->last);
    }
    munmap(p.b, sizeof *p.b);
}

static void those_who_do_not_fit_are_refused(void **state)
{
    (void)state;
    refused(1, LAYERS - 1, 4, DDP_WIRE_F32, NULL, "the newcomer has 5 layers with layout ");
    refused(1, LAYERS, 6, DDP_WIRE_F32, NULL, "this run localsgd with period 4");
    refused(1, LAYERS, 4, DDP_WIRE_BF16, NULL, "wire bf16, this run localsgd with period 4, 1 micro-batches and wire f32");
    refused(1, LAYERS, 4, DDP_WIRE_F32, NULL, AVERAGES_STATE);
    refused(1, LAYERS, 4, DDP_WIRE_F32, NULL, HAS_NO_SITE);
#ifdef DDP_USE_OPENSSL
    refused(1, LAYERS, 4, DDP_WIRE_F32, NULL, SPEAKS_NO_TLS);
#endif
    refused(1, LAYERS, 4, DDP_WIRE_F32, "another", "set the same DREAMDDP_RUN_ID");
    refused(0, LAYERS, 4, DDP_WIRE_F32, NULL, "nobody's place is free");
}

#ifdef DDP_USE_OPENSSL
static void comes_in_vain(const plan_of_run *run, const char *cert, const char *what)
{
    plan_of_run p = *run;
    pid_t guest;

    p.cert = cert;
    p.connect_s = 1;
    p.last_comer = -1;
    p.b->text[7][0] = 0;
    guest = start(&p, 7, 1);
    wait_for(guest);
    if (!strstr(p.b->text[7], what)) fail_msg("\"%s\" does not say \"%s\"", p.b->text[7], what);
    assert_int_equal(p.b->entered[7], -1);
    assert_int_equal(p.b->done[0] | p.b->done[2], 0);
}

/* Ranks 1 and 3 of four are lost. Who has another name than those of ranks and newcomers gets nothing
 * to see, and keeps nobody waiting; a rank's certificate gives that rank. */
static void a_certificate_says_which_worker_may_come(void **state)
{
    static const int dies[2] = {1, 3};
    plan_of_run p;
    pid_t pid[6];
    int all[4] = {0, 2, 4, 5}, k;

    assert_int_equal(lab_begin(state), 0);
    lab_certificate("rank-3", "rank-3", NULL, "ca", 24);
    lab_certificate("rank-9", "rank-9", NULL, "ca", 24);
    run_begin(&p, DDP_LOCALSGD, 4, 3000);
    p.folder = lab_folder;
    p.last_comer = 5;
    for (k = 0; k < 4; k++) pid[k] = start(&p, k, 0);
    for (k = 0; k < 2; k++) {
        until_step(&p, 0, ddp__atomic_load(&p.b->step[0]) + 30);
        kill(pid[dies[k]], SIGKILL);
        wait_for(pid[dies[k]]);
    }
    until_step(&p, 0, ddp__atomic_load(&p.b->step[0]) + 30);
    comes_in_vain(&p, "host", "takes only workers whose certificates name rank-R or join-NAME");
    comes_in_vain(&p, "rank-2", "certificate names rank 2 alone, and in the run of 4 that place is not");
    comes_in_vain(&p, "rank-9", "certificate names rank 9 alone");
    p.cert = "rank-3";
    pid[4] = start(&p, 4, 1);
    until_step(&p, 4, 1);
    p.cert = "join-5";
    pid[5] = start(&p, 5, 1);
    for (k = 0; k < 6; k++)
        if (k != 1 && k != 3) wait_for(pid[k]);
    all_well(&p, all, 4);
    assert_int_equal(p.b->rank[4], 3); /* though 1 is free */
    assert_int_equal(p.b->rank[5], 1);
    munmap(p.b, sizeof *p.b);
    lab_end(state);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_gives_the_standard_digests),
        cmocka_unit_test(a_killed_worker_comes_back),
        cmocka_unit_test(a_killed_worker_comes_back_to_int8_blocks),
        cmocka_unit_test(a_killed_worker_comes_back_to_outer_steps),
        cmocka_unit_test(a_killed_worker_comes_back_to_bfloat16),
        cmocka_unit_test(a_killed_worker_comes_back_to_sites),
        cmocka_unit_test(the_coordinator_comes_back_by_another_door),
        cmocka_unit_test(a_newcomer_waits_for_the_end_of_a_long_period),
        cmocka_unit_test(newcomers_that_die_are_forgotten),
        cmocka_unit_test(silent_callers_keep_nobody_out),
        cmocka_unit_test(a_newcomer_that_stands_still_is_forgotten),
        cmocka_unit_test(a_newcomer_survives_its_donor),
        cmocka_unit_test(new_workers_come),
        cmocka_unit_test(a_newcomer_waits_until_the_run_has_begun),
        cmocka_unit_test(room_has_to_make_sense),
        cmocka_unit_test(those_who_do_not_fit_are_refused),
#ifdef DDP_USE_OPENSSL
        cmocka_unit_test(a_certificate_says_which_worker_may_come),
#endif
    };
    cmocka_set_test_filter(getenv("ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
