/* Runs of worker processes over TCP that other workers join. Include after dreamddp.h and cmocka.h. */
#ifndef JOIN_LAB_H
#define JOIN_LAB_H

#include <signal.h>
#include <sys/mman.h>

#include "wire/meet.h"

enum { WORKERS = 8, LAYERS = 6 };

/* A run trains until the last joining worker has entered, and STEPS_AFTER steps more; STEPS_MOST limits it. A
 * run that no worker enters ends after PERIODS_REST periods: ranks may be a period apart. */
enum { STEPS_MOST = 30000, STEPS_AFTER = 12, PERIODS_REST = 4, LARGE = 30000 / ALONE(5) };

typedef struct board {  /* shared memory. A worker's number is the order of its start. */
    long last;          /* atomic: the step in which all ranks stop */
    long step_ms;       /* atomic: duration of a step; 4 again when the last joining worker has entered */
    long step[WORKERS]; /* atomic */
    int live[WORKERS];  /* atomic: live workers of its epoch, as the worker knows them */
    int rank[WORKERS], status[WORKERS], done[WORKERS];
    long entered[WORKERS]; /* step at which a joining worker entered, -1 */
    long sites[WORKERS];   /* sites of the live workers as it knows them, a digit each; 0: not hierarchical */
    long rest[WORKERS];    /* of a joining worker, after its first period: kept_rest */
    int opened;            /* atomic: a joining worker has a context, and asks for its entry next */
    int probes[WORKERS];   /* measurements of the links */
    uint64_t hash[WORKERS], averaged[WORKERS]; /* hash after and before the last ddp_sync_all */
    uint64_t state[WORKERS];                   /* hash of a program's own optimizer after the last step */
    long loaded[WORKERS];     /* atomic: the step whose state it received when it joined, -1 */
    long early[WORKERS];      /* of a joining worker: the step of its state with `early`, -1 */
    int saves[WORKERS];       /* atomic: calls of a save function of ddp_add_state */
    int early_saves[WORKERS]; /* atomic: the same of a state with `early` */
    double first_loss[WORKERS], last_loss[WORKERS];
    char text[WORKERS][300];
    char address[WORKERS][DDP__ADDR_TEXT];
} board;

static DDP__UNUSED ddp_overlap overlap; /* for strategies with an outer optimizer */
static DDP__UNUSED int mean_itself;     /* outer_lr 1 without momentum */
static DDP__UNUSED const char *losses;  /* of strategy auto: the loss table */

typedef struct plan_of_run {
    board *b;
    ddp_strategy strategy;
    ddp_wire wire;
    int world, min_world, max_world, layers;
    int last_comer; /* the worker that enters last: the run ends steps_after steps later */
    int steps_after;
    size_t count; /* number of floats in a layer */
    char addr[DDP__ADDR_TEXT];
    int optimizer; /* 1: with state; 2: the program's own optimizer, which `between` applies */
    int average_state;
    int site[WORKERS]; /* 0: none */
    double op_s, peer_s;
    const char *psk;
    const char *folder, *cert; /* of certificates, rank-R.pem, or CERT.pem of this worker */
    int period;
    const char *run;
    double connect_s;
    int insecure;
    size_t elastic_bytes;
} plan_of_run;

/* NULL, or the calls of a worker: before ddp_set_optimizer, after it, and after each ddp_step_end. Returns 0,
 * or the context's error. */
typedef int (*lab_part)(const plan_of_run *p, ddp_ctx *d, int number);
static DDP__UNUSED lab_part registers, starts, between;

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

/* Number of nonzero values in the residual of sparse deltas, plus the number of layers whose first period is
 * not over. */
static long kept_rest(const plan_of_run *p, const ddp_ctx *d)
{
    const int outer = p->strategy == DDP_DILOCO || p->strategy == DDP_SPARSELOCO;
    long n = 0;

    for (int l = 0; outer && l < p->layers; l++) n += ((const ddp__outer *)d->self)->layer[l].fresh;

    for (int i = 0; i < ddp__count(d->exchange->kept); i++)
        for (size_t k = 0; !strcmp(d->exchange->kept[i].name, "residual") && k < d->exchange->kept[i].count;
             k++)
            n += d->exchange->kept[i].data[k] != 0;
    return n;
}

static ddp_status train(const plan_of_run *p, ddp_ctx *d, int number)
{
    board *b = p->b;
    ddp__epoch_info epoch;
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
        ddp_optimizer o = p->optimizer == 2 ? ddp_own_update() : ddp_sgd(0.02f, p->optimizer ? 0.5f : 0);
        if (registers && registers(p, d, number)) return ddp_last_error(d)->code;
        if (ddp_set_optimizer(d, &o)) return ddp_last_error(d)->code;
        if (starts && starts(p, d, number)) return ddp_last_error(d)->code;
    }
    b->rank[number] = ddp_rank(d);
    b->entered[number] = ddp_step(d);
    /* the others wait for this one at the end of the next period, so no rank is past the new last step */
    if (number == p->last_comer) {
        ddp__atomic_store(&b->last, ddp_step(d) + p->steps_after);
        ddp__atomic_store(&b->step_ms, 4);
    }
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
        if (between && between(p, d, number)) return ddp_last_error(d)->code;
        if (number == p->last_comer && s + 1 == b->entered[number] + p->period)
            b->rest[number] = kept_rest(p, d);
        ddp__engine_epoch(d->engine, &epoch);
        ddp__atomic_store(&b->live[number], epoch.workers);
        ddp__atomic_store(&b->step[number], s + 1);
    }
    if (ddp_wait(d)) return ddp_last_error(d)->code;
    for (int r = 0; d->exchange->levels && !ddp_sites_of(d)->members && r < p->world; r++)
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
    c->security.ca = path[0];
    c->security.cert = path[1];
    c->security.key = path[2];
}

/* The run waits for no more joining workers: it ends with a period, later than any rank is. */
static void end_soon(const plan_of_run *p)
{
    board *b = p->b;
    long at = 0;

    for (int i = 0; i < WORKERS; i++)
        if (ddp__atomic_load(&b->step[i]) > at) at = ddp__atomic_load(&b->step[i]);
    ddp__atomic_store(&b->last, (at / p->period + PERIODS_REST) * p->period);
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
    c.outer.overlap = overlap;
    if (p->strategy == DDP_DEFT)
        c.deft.update_frequency = 0.5; /* merged gradients wait when a worker is lost */
    c.outer.lr = mean_itself;
    c.outer.momentum = mean_itself ? DDP_NO_MOMENTUM : 0;
    c.average.state = p->average_state;
    c.site = p->site[number];
    c.rank = join ? 0 : number;
    c.world = join ? 0 : p->world;
    c.elastic.min_world = p->min_world;
    c.elastic.max_world = join ? 0 : p->max_world;
    c.elastic.join = join;
    c.addr = p->addr;
    c.run_id = p->run;
    c.period = p->strategy == DDP_AUTO ? 0 : p->period;
    if (p->strategy == DDP_AUTO) {
        c.net = "20mbit,1ms";
        c.choice.loss_table = losses;
        c.choice.loss_budget = 0.01;
    }
    c.no_env = 1;
    c.timeout.peer_s = p->peer_s;
    c.timeout.op_s = p->op_s;
    c.security.psk = p->psk;
    c.security.insecure = p->insecure;
    c.elastic.bytes = p->elastic_bytes;
    c.profile_steps = p->elastic_bytes ? -1 : 0; /* probes of the link have 4 MiB */
    if (p->folder) certify(p, &c);
    c.timeout.connect_s = p->connect_s;
    if (getenv("JOIN_LOG")) c.logger.level = DDP_LOG_INFO;
    if (getenv("JOIN_LOG")) {
        c.no_env = 0;
        setenv("DREAMDDP_LOG", "info", 1);
    }
    d = ddp_open(&c, &err);
    s = err.code;
    if (d && d->session->join) ddp__addr_text(&d->session->join->address[d->rank], p->b->address[number]);
    if (d) {
        s = train(p, d, number);
        if (s != DDP_OK) err = *ddp_last_error(d);
        ddp_close(d);
    }
    snprintf(p->b->text[number], sizeof p->b->text[number], "%.290s", err.msg);
    p->b->status[number] = (int)s;
    if (number == p->last_comer && s != DDP_OK) end_soon(p);
    ddp__atomic_store(&p->b->done[number], 1);
    _exit(0);
}

static pid_t start(const plan_of_run *p, int number, int join)
{
    pid_t pid = fork();
    if (pid == 0) work(p, number, join);
    return pid;
}

/* For `make soak`: other random moments, and a count of events. */
static DDP__UNUSED uint64_t seed_base(void)
{
    return getenv("SEED_BASE") ? strtoull(getenv("SEED_BASE"), NULL, 10) : 0;
}

/* Number of repetitions of a test's runs: ELASTIC, for `make soak`. */
static DDP__UNUSED int repeats(void) { return getenv("ELASTIC") ? atoi(getenv("ELASTIC")) : 1; }

static DDP__UNUSED void events(int kills, int joins)
{
    if (getenv("SOAK")) {
        printf("events %d 0 0 %d\n", kills, joins);
        fflush(stdout);
    }
}

static void run_begin(plan_of_run *p, ddp_strategy strategy, int world, size_t count)
{
    static char run[40];
    static int runs;

    memset(p, 0, sizeof *p);
    p->b = (board *)mmap(NULL, sizeof *p->b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p->b != MAP_FAILED);
    for (int i = 0; i < WORKERS; i++) p->b->entered[i] = p->b->loaded[i] = p->b->early[i] = -1;
    p->strategy = strategy;
    p->world = p->last_comer = world;
    p->steps_after = STEPS_AFTER;
    p->min_world = 1;
    p->layers = LAYERS;
    p->b->last = STEPS_MOST;
    p->b->step_ms = 4;
    p->count = count;
    p->optimizer = 1;
    p->period = 4;
    /* another run may listen on the address of a run that has ended */
    snprintf(run, sizeof run, "join %ld %d", (long)getpid(), runs);
    p->run = run;
    p->op_s = p->peer_s = 20; /* reached in failures only: the death of a process closes its connections */
    p->connect_s = 40;        /* it may have to retry */
    /* an address of this process: the system may give a port of 127.0.0.1 to a connection before a worker
     * listens on it */
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

/* Waits until a worker knows that `workers` are live. */
static DDP__UNUSED void until_live(const plan_of_run *p, int number, int workers)
{
    double end = ddp_now() + 60;

    while (ddp__atomic_load(&p->b->live[number]) != workers && !ddp__atomic_load(&p->b->done[number]) &&
           ddp_now() < end)
        ddp__sleep_until(ddp_now() + 0.002);
    assert_int_equal(ddp__atomic_load(&p->b->live[number]), workers);
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

static DDP__UNUSED void all_well(const plan_of_run *p, const int *numbers, int count)
{
    for (int i = 0; i < count; i++) {
        int n = numbers[i];
        if (p->b->status[n]) fail_msg("worker %d: %s", n, p->b->text[n]);
        assert_int_equal(p->b->done[n], 1);
        assert_int_equal(p->b->step[n], p->b->last);
        assert_true(p->b->hash[n] == p->b->hash[numbers[0]]);
        /* the other strategies end with an average of all layers; auto chooses streams here */
        if (p->strategy != DDP_DREAMDDP && p->strategy != DDP_AUTO && overlap <= DDP_OVERLAP_NONE)
            assert_true(p->b->averaged[n] == p->b->averaged[numbers[0]]);
    }
}

/* A run of three workers, of which rank 2 is killed. Every one has a site, or none. */
static DDP__UNUSED void run_loses_one(plan_of_run *p, pid_t *pid, int sites)
{
    run_begin(p, DDP_LOCALSGD, 3, 3000);
    for (int k = 0; k < 3; k++) p->site[k] = sites;
    for (int k = 0; k < 3; k++) pid[k] = start(p, k, 0);
    until_step(p, 0, 10);
    kill(pid[2], SIGKILL);
    wait_for(pid[2]);
}

/* A worker tries to join and fails with the error `what`. The run continues. */
static DDP__UNUSED void refused(const plan_of_run *joining, const char *what)
{
    board *b = joining->b;

    b->text[3][0] = 0;
    wait_for(start(joining, 3, 1));
    if (!strstr(b->text[3], what)) fail_msg("\"%s\" does not contain \"%s\"", b->text[3], what);
    assert_int_equal(b->entered[3], -1);
    assert_int_equal(b->done[0] | b->done[1], 0);
}

/* A worker that the run refuses temporarily: it asks again until its connect_timeout_s. On a busy machine a
 * short one may end before the first answer, so a longer one follows. */
static DDP__UNUSED void waits_in_vain(plan_of_run joining, int number, const char *what)
{
    board *b = joining.b;

    joining.last_comer = -1;
    joining.connect_s = 0.5;
    do {
        b->text[number][0] = 0;
        wait_for(start(&joining, number, 1));
        joining.connect_s *= 3;
    } while (!strstr(b->text[number], what) && joining.connect_s < 60);
    if (!strstr(b->text[number], what)) fail_msg("\"%s\" does not contain \"%s\"", b->text[number], what);
    assert_int_equal(b->entered[number], -1);
}

/* The survivors of run_loses_one complete the run without an error. */
static DDP__UNUSED void survivors_end(plan_of_run *p, const pid_t *pid)
{
    end_soon(p);
    for (int k = 0; k < 2; k++) {
        wait_for(pid[k]);
        assert_string_equal(p->b->text[k], "");
        assert_int_equal(p->b->step[k], p->b->last);
    }
    munmap(p->b, sizeof *p->b);
}

#endif /* JOIN_LAB_H */
