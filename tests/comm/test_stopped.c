/* Ranks that do not run for longer than the peer time-out: processes that are stopped together, and a starved
 * thread. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/tools.h"
#include "base/core.h"
#include "wire/socket.h"
#include "comm/state.h"
#include "wire/wire.h"
#include "wire/mesh.h"
#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "comm/net_world.h"
#include "member/elastic_lab.h"

static const double TIMEOUT_S = 2, STOP_S = 7, APART_S = 0.1;
enum { RANKS = 3 };

static ddp_status sum_ones(ddp__engine *e, ddp_error *err)
{
    float x[100];
    ddp_piece piece = {{x}, 100};
    ddp_message m;

    for (int i = 0; i < 100; i++) x[i] = 1;
    net_message(&m, DDP_ALL_REDUCE, &piece, 1);
    DDP__TRY(ddp__engine_run(e, &m, err));
    return x[99] == (float)RANKS ? DDP_OK : ddp__fail(err, DDP_NUMERIC, "a sum of %g", (double)x[99]);
}

/* ---- processes ---- */

typedef struct stop_plan { /* shared by the processes */
    int min_world, meets;  /* meets: they are stopped while rank 0 waits for the last rank to connect */
    int ready[RANKS], go;
    ddp_error err[RANKS];
} stop_plan;

static void wait_for(const int *flag)
{
    while (!ddp__atomic_load(flag)) ddp__sleep_until(ddp_now() + 0.01);
}

static ddp_status stopped_run(stop_plan *k, ddp__engine *e, int rank)
{
    ddp_error *err = &k->err[rank];

    DDP__TRY(sum_ones(e, err));
    ddp__atomic_store(&k->ready[rank], 1);
    if (rank == 0) wait_for(&k->go); /* the others wait in a call */
    DDP__TRY(sum_ones(e, err));
    ddp__sleep_until(ddp_now() + TIMEOUT_S);
    return sum_ones(e, err);
}

static void stopped_process(stop_plan *k, meet_rank *m)
{
    const int rank = m->how.wire.rank;
    ddp__engine *e = NULL;
    ddp__links links;
    net_setup set;
    ddp_status s;

    alarm(300); /* if the test fails, no process keeps waiting for `go` */
    net_defaults(&set, RANKS);
    set.cfg.min_world = k->min_world;
    set.cfg.max_count = 100;
    set.cfg.peer_timeout_s = TIMEOUT_S;
    set.cfg.op_timeout_s = 60;
    m->how.resume = 1;
    m->how.wire.peer_timeout_s = TIMEOUT_S;
    if (k->meets) {
        m->how.timeout_s = STOP_S - 2;
        ddp__atomic_store(&k->ready[rank], 1);
        if (rank == RANKS - 1) wait_for(&k->go);
    }
    (void)meet_run(m);
    s = m->status;
    k->err[rank] = m->err;
    if (s == DDP_OK) {
        ddp__engine_config cfg = net_config(&set, rank, &links);
        cfg.wire = m->wire;
        s = ddp__engine_open(&cfg, &e, &k->err[rank]);
    }
    if (s == DDP_OK) s = stopped_run(k, e, rank);
    if (e) ddp__engine_close(e);
    _exit((int)s);
}

static void start_processes(stop_plan *k, pid_t *pid)
{
    char addr[DDP__ADDR_TEXT];
    const int listen_fd = meet_listen(addr);
    meet_rank m[RANKS];

    meet_prepare(m, RANKS, listen_fd, addr);
    fflush(NULL);
    for (int r = 0; r < RANKS; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r] == 0) {
            if (r > 0) close(listen_fd);
            stopped_process(k, &m[r]);
        }
    }
    close(listen_fd);
}

static void processes_stopped_together_for_longer_than_the_peer_timeout_continue(void **state)
{
    enum { RUNS = 3 }; /* in parallel: a plain run, one with min_world, and one whose ranks still connect */
    stop_plan *k =
        (stop_plan *)mmap(NULL, RUNS * sizeof *k, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[RUNS][RANKS];

    (void)state;
    assert_true((void *)k != MAP_FAILED);
    k[1].min_world = 2;
    k[2].meets = 1;
    for (int i = 0; i < RUNS; i++) start_processes(&k[i], pid[i]);
    for (int i = 0; i < RUNS; i++)
        for (int r = 0; r < RANKS; r++)
            while (!ddp__atomic_load(&k[i].ready[r]) && waitpid(pid[i][r], NULL, WNOHANG) == 0)
                ddp__sleep_until(ddp_now() + 0.01);
    for (int i = 0; i < RUNS * RANKS; i++) kill(pid[i / RANKS][i % RANKS], SIGSTOP);
    ddp__sleep_until(ddp_now() + STOP_S);
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < RUNS; i++) kill(pid[i][r], SIGCONT);
        ddp__sleep_until(ddp_now() + APART_S);
    }
    for (int i = 0; i < RUNS; i++) ddp__atomic_store(&k[i].go, 1);
    for (int i = 0; i < RUNS * RANKS; i++) {
        const int run = i / RANKS, r = i % RANKS;
        int code = 0;
        assert_int_equal(waitpid(pid[run][r], &code, 0), pid[run][r]);
        if (code) print_message("run %d, rank %d: %s\n", run, r, k[run].err[r].msg);
        assert_int_equal(code, 0);
    }
    munmap(k, RUNS * sizeof *k);
}

/* The stop may happen at any time, not only in a wait: only the time since the last check of the limit
 * matters. */
static void stop_between_two_waits_extends_the_rendezvous_limits(void **state)
{
    ddp__rendezvous r;
    ddp__leg leg[2];
    ddp__meeting m;
    double now;

    (void)state;
    memset(&r, 0, sizeof r);
    memset(&m, 0, sizeof m);
    memset(leg, 0, sizeof leg);
    r.world = 2;
    m.r = &r;
    m.leg = leg;
    now = ddp_now();
    m.begin = now - STOP_S - 3;
    m.seen = now - STOP_S - 1;
    m.until = leg[1].until = leg[1].limit = now - 4;
    m.next_note = now - STOP_S;
    assert_int_equal(ddp__meeting_over(&m), 0);
    assert_true(m.until >= now + STOP_S - 4);
    assert_true(m.begin >= now - 3);
    assert_true(m.next_note >= now);
    assert_true(leg[1].until >= m.until && leg[1].limit >= m.until);
    m.until = now + 60;
    assert_int_equal(ddp__meeting_over(&m), 0);
    assert_true(m.until == now + 60); /* not extended a second time */
    m.until = now;
    assert_int_equal(ddp__meeting_over(&m), 1);
}

/* ---- threads of one process ---- */

/* Rank 1 sends and reads nothing for a while, because its comm thread gets no processor time. */
static void starved_thread(net_rank *me, void *user)
{
    lab_wire *wire = (lab_wire *)(void *)me->wire;

    (void)user;
    net_ok(me, sum_ones(me->engine, &me->err));
    if (me->rank == 1) {
        wire->stall_s = 2 * TIMEOUT_S;
        ddp__atomic_store(&wire->countdown, 0);
    }
    net_ok(me, sum_ones(me->engine, &me->err));
}

static void share_memory(ddp__engine_config *cfg, int rank)
{
    lab_wire *wire = (lab_wire *)(void *)cfg->wire;

    (void)rank;
    wire->base.offers = wire->inner->offers;
}

static void silence_between_threads_is_not_a_failure(void **state)
{
    static lab_world lab;

    (void)state;
    for (int min_world = 0; min_world <= 2; min_world += 2) {
        net_setup set;
        net_defaults(&set, RANKS);
        set.cfg.min_world = min_world;
        set.cfg.max_count = 100;
        set.cfg.peer_timeout_s = TIMEOUT_S;
        set.cfg.op_timeout_s = 60;
        set.tune = share_memory;
        lab_run(&lab, &set, starved_thread, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_stopped_together_for_longer_than_the_peer_timeout_continue),
        cmocka_unit_test(stop_between_two_waits_extends_the_rendezvous_limits),
        cmocka_unit_test(silence_between_threads_is_not_a_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
