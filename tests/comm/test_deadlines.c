/* Time-outs, log lines about long waits, and abort from another thread. */
#include "dreamddp.h"

#include <netinet/in.h>
#include <sys/mman.h>

#include "base/tools.h"
#include "base/core.h"
#include "wire/socket.h"
#include "comm/state.h"
#include "wire/wire.h"
#include <setjmp.h>
#include <cmocka.h>
#include "comm/net_world.h"

static const double GENEROUS_S = 60; /* only a failure takes this long */

/* ---- the clock of an operation ---- */

typedef struct arrivals {
    double at[4]; /* when a rank submits; < 0: never */
    size_t floats;
    double least;    /* seconds from the start until all ranks fail. 0 means that all succeed. */
    const char *who; /* expected in every message except rank 2's */
    double first;    /* when the first rank started, under first_lock. 0 means that none has. */
} arrivals;

static pthread_mutex_t first_lock = PTHREAD_MUTEX_INITIALIZER;

/* The time-out counts from the start of the first rank, which need not be rank 0 on a busy machine. */
static double first_begin(arrivals *a, double begin)
{
    double first;

    pthread_mutex_lock(&first_lock);
    if (a->first == 0 || begin < a->first) a->first = begin;
    first = a->first;
    pthread_mutex_unlock(&first_lock);
    return first;
}

static void arrive(net_rank *me, void *user)
{
    arrivals *a = (arrivals *)user;
    float *data = (float *)calloc(a->floats, sizeof *data);
    double begin = ddp_now(), took;
    ddp_piece piece;
    ddp_message m;
    ddp_status s;

    piece.data = data;
    piece.count = a->floats;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    m.step = 81;
    if (a->at[me->rank] < 0) {
        while ((s = ddp__engine_error(me->engine, &me->err)) == DDP_OK && ddp_now() < begin + GENEROUS_S)
            ddp__sleep_until(ddp_now() + 0.01);
        took = a->least;
    } else {
        ddp__sleep_until(begin + a->at[me->rank]);
        (void)first_begin(a, begin);
        s = net_do(me, &m);
        took = ddp_now() - first_begin(a, begin);
    }
    if (a->least <= 0) {
        net_ok(me, s);
    } else if (s != DDP_TIMEOUT || took < a->least || !strstr(me->err.msg, "DREAMDDP_OP_TIMEOUT") ||
               (!strstr(me->err.msg, a->who) && !strstr(me->err.msg, "this rank (2)"))) {
        net_fail(me, "status %d after %.2f s: %.200s", (int)s, took, me->err.msg);
    }
    free(data);
}

static void time_out_counts_from_the_first_rank(void **state)
{
    static const arrivals never = {{0, 0.4, -1, 0}, 1000, 0.9, "rank 2", 0};
    static const arrivals late = {{0, 0.3, 0.1, 0.2}, 1000, 0, "", 0};
    arrivals use;
    net_setup set;

    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++) {
        net_defaults(&set, 4);
        set.tcp = tcp;
        set.cfg.op_timeout_s = 1;
        use = never;
        net_run(&set, arrive, &use);
        use = late;
        set.cfg.op_timeout_s = GENEROUS_S;
        net_run(&set, arrive, &use);
    }
}

/* For a single value, only its owner needs data from rank 2, whether it has submitted or not. */
static void missing_rank_is_named_even_if_it_owes_no_data(void **state)
{
    arrivals use = {{0, 0, -1, 0}, 1, 0.9, "rank 2 did not submit", 0};
    net_setup set;

    (void)state;
    net_defaults(&set, 4);
    set.cfg.op_timeout_s = 1;
    net_run(&set, arrive, &use);
}

/* 4 MB at 100 kB/s make progress all the time, and still exceed the time-out. */
static void operation_with_progress_times_out_too(void **state)
{
    arrivals use = {{0, 0, 0, 0}, 1000000, 0.9, "values still to send", 0};
    net_setup set;

    (void)state;
    net_defaults(&set, 2);
    set.cfg.op_timeout_s = 1;
    set.rate = 1e5;
    net_run(&set, arrive, &use);
}

/* ---- lines about waits ---- */

typedef struct lines {
    pthread_mutex_t lock;
    double began;  /* ddp_now() before the operation */
    double at[16]; /* when each line about an operation that was not submitted arrived */
    int waits;
    char text[4000];
} lines;

static void note(void *user, ddp_log_level level, const char *line)
{
    lines *l = (lines *)user;
    size_t n;

    (void)level;
    pthread_mutex_lock(&l->lock);
    n = strlen(l->text);
    snprintf(l->text + n, sizeof l->text - n, "%s\n", line);
    if (strstr(line, "not submitted by") && l->waits < 16) l->at[l->waits++] = ddp_now();
    pthread_mutex_unlock(&l->lock);
}

static int occurrences(const char *text, const char *of)
{
    int n = 0;

    for (; (text = strstr(text, of)) != NULL; text++) n++;
    return n;
}

static lines heard; /* of rank 0 */

static int waits_heard(void)
{
    int n;

    pthread_mutex_lock(&heard.lock);
    n = heard.waits;
    pthread_mutex_unlock(&heard.lock);
    return n;
}

/* Rank 1 submits after rank 0 has logged twice that it waits. */
static void come_late(net_rank *me, void *user)
{
    enum { N = 3000000 };
    ddp_verb verb = *(const ddp_verb *)user;
    float *data = (float *)calloc(N, sizeof *data);
    ddp_piece piece;
    ddp_message m;

    piece.data = data;
    piece.count = N;
    net_message(&m, verb, &piece, 1);
    m.step = 81;
    m.peer = 1;
    if (verb == DDP_ALL_GATHER) m.layer = DDP__BARRIER;
    if (me->rank == 1) {
        while (waits_heard() < 2) ddp__sleep_until(ddp_now() + 0.01);
        if (verb == DDP_SEND) m.verb = DDP_RECEIVE;
        if (verb == DDP_RECEIVE) m.verb = DDP_SEND;
        if (m.verb != verb) m.peer = 0;
    }
    if (!me->rank) heard.began = ddp_now();
    if (me->rank < 2 || (verb != DDP_SEND && verb != DDP_RECEIVE)) net_ok(me, net_do(me, &m));
    free(data);
}

static void rank_zero_is_heard(ddp__engine_config *cfg, int rank)
{
    cfg->note_s = 0.2;
    cfg->op_timeout_s = 60;
    if (rank) return;
    cfg->log.fn = note;
    cfg->log.user = &heard;
    cfg->log.level = DDP_LOG_WARN;
}

static void long_waits_log_the_missing_ranks_and_the_end(void **state)
{
    static const char *const text[] = {
        "all-reduce of layer h.0.mlp (step 81)", "broadcast of layer h.0.mlp (step 81)",
        "all-gather of a barrier (step 81)", "send to rank 1 of layer h.0.mlp (step 81)",
        "receive from rank 1 of layer h.0.mlp (step 81)"};

    static const ddp_verb verbs[] = {DDP_ALL_REDUCE, DDP_BROADCAST, DDP_ALL_GATHER, DDP_SEND, DDP_RECEIVE};

    (void)state;
    for (int v = 0; v < 5; v++) {
        ddp_verb verb = verbs[v];
        net_setup set;
        char line[200];
        net_defaults(&set, 3);
        set.tune = rank_zero_is_heard;
        memset(&heard, 0, sizeof heard);
        pthread_mutex_init(&heard.lock, NULL);
        net_run(&set, come_late, &verb);
        pthread_mutex_destroy(&heard.lock);
        /* for rank 2, which owes no data in some operations, the next heartbeat reports it */
        snprintf(line, sizeof line, "in %s, operation 0, not submitted by rank", text[v]);
        if (occurrences(heard.text, line) != heard.waits || occurrences(heard.text, "continues after ") < 1 ||
            !(strstr(heard.text, "by rank 1") || strstr(heard.text, "by ranks 1, 2")))
            fail_msg("%s: %s", text[v], heard.text);
        /* after 0.2, 0.4, 0.8 s and so on: never earlier, but later on a busy machine */
        for (int i = 0; i < heard.waits; i++)
            if (heard.at[i] - heard.began < 0.2 * (1 << i)) fail_msg("line %d: %s", i, heard.text);
    }
}

/* ---- abort from a second thread, in each kind of wait ---- */

enum { IN_REDUCE, IN_BROADCAST, IN_GATHER, IN_BARRIER, IN_SEND, IN_RECV, IN_STEP, KINDS };

typedef struct abort_world {
    int kind;
    int code[3];
    double took[3]; /* seconds from the abort to the return */
    double aborted; /* ddp_now(): the same clock in all processes of the machine */
    int waits;      /* atomic: ranks that are about to wait */
    int ended;      /* atomic: ranks whose wait has ended */
    char msg[3][DDP_ERROR_TEXT];
} abort_world;

static abort_world *shared;

static void *abort_soon(void *arg)
{
    while (ddp__atomic_load(&shared->waits) < 2) ddp__sleep_until(ddp_now() + 0.001);
    ddp__sleep_until(ddp_now() + 0.05); /* both are in the call */
    shared->aborted = ddp_now();
    ddp_abort((ddp_ctx *)arg, "the lights went out");
    return NULL;
}

static int step_through(ddp_ctx *d)
{
    static float params[3][64], grads[3][64];
    ddp_layer layer;
    int bad;

    memset(&layer, 0, sizeof layer);
    layer.name = "only";
    layer.params = params[ddp_rank(d)];
    layer.grads = grads[ddp_rank(d)];
    layer.count = 64;
    bad = ddp_add_layer(d, &layer);
    if (!bad) bad = ddp_backward_end(d, 0);
    return bad ? bad : ddp_step_end(d);
}

static int wait_in(ddp_ctx *d, int kind, float *x, size_t n)
{
    if (ddp_rank(d) == 2 && (kind == IN_SEND || kind == IN_RECV)) return ddp_barrier(d);
    switch (kind) {
    case IN_REDUCE:
        return ddp_all_reduce(d, x, n, 1);
    case IN_BROADCAST:
        return ddp_broadcast(d, x, n, 2);
    case IN_GATHER:
        return ddp_all_gather(d, x, n / 3);
    case IN_BARRIER:
        return ddp_barrier(d);
    case IN_SEND:
        return ddp_send(d, x, n, 2);
    case IN_RECV:
        return ddp_recv(d, x, n, 2);
    default:
        return step_through(d);
    }
}

static int aborted_rank(ddp_ctx *d, void *user)
{
    enum { N = 3000000 };
    const double begun = ddp_now();
    float *x = (float *)calloc(N, sizeof *x);
    int r = ddp_rank(d);
    pthread_t thread;

    (void)user;
    if (r == 0) pthread_create(&thread, NULL, abort_soon, d);
    /* rank 2 submits after the others have the error: earlier, its data could complete their operation */
    while (r == 2 && ddp__atomic_load(&shared->ended) < 2 && ddp_now() < begun + GENEROUS_S)
        ddp__sleep_until(ddp_now() + 0.01);
    ddp__atomic_add(&shared->waits, 1);
    shared->code[r] = wait_in(d, shared->kind, x, N);
    shared->took[r] = ddp_now() - shared->aborted;
    ddp__atomic_add(&shared->ended, 1);
    snprintf(shared->msg[r], sizeof shared->msg[r], "%s", ddp_last_error(d)->msg);
    if (r == 0) pthread_join(thread, NULL);
    free(x);
    return shared->code[r];
}

static void abort_ends_every_wait_on_all_ranks(void **state)
{
    (void)state;
    shared =
        (abort_world *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    for (int i = 0; i < 2 * KINDS; i++) {
        ddp_config cfg;
        ddp_error err;
        memset(&cfg, 0, sizeof cfg);
        memset(shared, 0, sizeof *shared);
        shared->kind = i / 2;
        if (i % 2 && shared->kind % 3) continue; /* over TCP: reduce, barrier, step */
        cfg.world = 3;
        cfg.no_env = 1;
        cfg.strategy = DDP_SSGD;
        cfg.transport = i % 2 ? DDP_TCP : DDP_THREADS;
#if defined(__SANITIZE_THREAD__)
        if (i % 2) continue; /* threads in forked processes */
#endif
        assert_int_equal(ddp_launch(&cfg, aborted_rank, NULL, &err), DDP_ABORTED);
        for (int r = 0; r < 3; r++)
            if (shared->code[r] != DDP_ABORTED || shared->took[r] > GENEROUS_S ||
                strncmp(shared->msg[r], "the lights went out", 19))
                fail_msg("kind %d, rank %d: %d after %.2f s: %s", shared->kind, r, shared->code[r],
                         shared->took[r], shared->msg[r]);
    }
    munmap(shared, sizeof *shared);
}

/* ---- after a failure the library does not access the caller's memory ---- */

static int let_go; /* atomic: the comm thread of rank 0, which logs its failure slowly, has released the
                    * memory */

static void slow_to_fail(void *user, ddp_log_level level, const char *line)
{
    (void)user;
    if (level != DDP_LOG_ERROR || !strstr(line, "rank 0: ")) return;
    ddp__sleep_until(ddp_now() + 0.2);
    ddp__atomic_store(&let_go, 1);
}

static void log_slowly(ddp__engine_config *cfg, int rank)
{
    if (rank) return;
    cfg->log.fn = slow_to_fail;
    cfg->log.level = DDP_LOG_ERROR;
}

static void fail_in_flight(net_rank *me, void *user)
{
    static float data[2][1000];
    ddp_piece piece;
    ddp_message m;
    long ticket;

    piece.data = data[me->rank];
    piece.count = 1000;
    (void)user;
    if (me->rank) {
        while (!ddp__atomic_load(&let_go)) ddp__sleep_until(ddp_now() + 0.01);
        return;
    }
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    net_ok(me, ddp__engine_submit(me->engine, &m, &ticket, &me->err));
    ddp__engine_abort(me->engine, DDP_ABORTED, "the lights went out");
    if (ddp__engine_submit(me->engine, &m, &ticket, &me->err) != DDP_ABORTED || !ddp__atomic_load(&let_go))
        net_fail(me, "the second message was rejected while the first one was in flight");
    ddp__atomic_store(&let_go, 1); /* for rank 1, whatever the result is */
}

/* *user: 1 until the hook has returned; 2: passed, 3: too early. */
static int misuse_in_flight(ddp_ctx *d, void *user)
{
    if (ddp_rank(d)) return ddp_barrier(d);
    if (ddp_backward_end(d, 5) == DDP_ARG) *(int *)user = ddp__atomic_load(&let_go) ? 2 : 3;
    return 1;
}

static void failure_releases_the_callers_memory(void **state)
{
    net_setup set;
    ddp_config cfg;
    ddp_error err;
    int hook = 1;

    (void)state;
    net_defaults(&set, 2);
    set.tune = log_slowly;
    ddp__atomic_store(&let_go, 0);
    net_run(&set, fail_in_flight, NULL);

    memset(&cfg, 0, sizeof cfg);
    cfg.world = 2;
    cfg.no_env = 1;
    cfg.transport = DDP_THREADS;
    cfg.logger.fn = slow_to_fail;
    cfg.logger.level = DDP_LOG_ERROR;
    ddp__atomic_store(&let_go, 0);
    memset(&err, 0, sizeof err);
    assert_int_not_equal(ddp_launch(&cfg, misuse_in_flight, &hook, &err), 0);
    assert_int_equal(hook, 2);
}

static void single_worker_reports_the_abort_reason(void **state)
{
    ddp_config cfg;
    ddp_ctx *d;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.no_env = 1;
    d = ddp_open(&cfg, NULL);
    assert_non_null(d);
    ddp_abort(d, "no more power");
    ddp_abort(d, "a second reason");
    assert_int_equal(step_through(d), DDP_ABORTED);
    assert_string_equal(ddp_last_error(d)->msg, "no more power");
    ddp_close(d);
}

/* ---- the rendezvous ---- */

/* An address of this process, so that two runs of this test do not connect to each other. */
static const char *own_address(void)
{
    static char addr[40];
    const int id = (int)getpid();

    snprintf(addr, sizeof addr, "127.%d.%d.%d:29583", 1 + (id >> 15) % 127, (id >> 7) % 256, 1 + id % 128);
    return addr;
}

static volatile int cancelled;

static void *cancel_soon(void *arg)
{
    (void)arg;
    ddp__sleep_until(ddp_now() + 0.2);
    __atomic_store_n(&cancelled, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void cancel_ends_the_rendezvous(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        ddp_config cfg;
        ddp_error err;
        pthread_t thread;
        double begin = ddp_now();
        memset(&cfg, 0, sizeof cfg);
        cfg.no_env = 1;
        cfg.world = 2;
        cfg.rank = rank;
        cfg.addr = own_address();
        cfg.cancel = &cancelled;
        cancelled = 0;
        pthread_create(&thread, NULL, cancel_soon, NULL);
        assert_null(ddp_open(&cfg, &err));
        assert_int_equal(err.code, DDP_ABORTED);
        assert_true(ddp_now() - begin < 20); /* the time-outs are 30 s */
        pthread_join(thread, NULL);
    }
}

static void each_rendezvous_time_out_names_its_variable(void **state)
{
    static const char *const name[] = {"DREAMDDP_JOIN_TIMEOUT", "DREAMDDP_CONNECT_TIMEOUT"};

    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        ddp_config cfg;
        ddp_error err;
        double begin = ddp_now();
        memset(&cfg, 0, sizeof cfg);
        cfg.world = 2;
        cfg.rank = rank;
        cfg.addr = own_address();
        setenv(name[rank], "0.4", 1); /* the other time-out remains 30 s */
        assert_null(ddp_open(&cfg, &err));
        unsetenv(name[rank]);
        assert_int_equal(err.code, DDP_TIMEOUT);
        if (!strstr(err.msg, name[rank])) fail_msg("%s", err.msg);
        assert_true(ddp_now() - begin < 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_out_counts_from_the_first_rank),
        cmocka_unit_test(missing_rank_is_named_even_if_it_owes_no_data),
        cmocka_unit_test(operation_with_progress_times_out_too),
        cmocka_unit_test(long_waits_log_the_missing_ranks_and_the_end),
        cmocka_unit_test(abort_ends_every_wait_on_all_ranks),
        cmocka_unit_test(failure_releases_the_callers_memory),
        cmocka_unit_test(single_worker_reports_the_abort_reason),
        cmocka_unit_test(cancel_ends_the_rendezvous),
        cmocka_unit_test(each_rendezvous_time_out_names_its_variable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
