/* Forked ranks and their supervisor: results, errors, deaths, and no orphans. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "session/launch.c"

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

/* Shared by a test and its ranks. */
typedef struct board {
    int pid[8];
    int go, cancel;
    char addr[8][DDP__ADDR_TEXT];
} board;

static board *new_board(void)
{
    board *b = (board *)mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANON, -1, 0);
    assert_true((void *)b != MAP_FAILED);
    memset(b, 0, sizeof *b);
    return b;
}

/* Waits up to 10 s for a process to end that is not a child of this one. */
static int gone(int pid)
{
    double end = ddp_now() + 10;
    while (ddp_now() < end) {
        if (kill((pid_t)pid, 0) < 0 && errno == ESRCH) return 1;
        ddp__sleep_until(ddp_now() + 0.01);
    }
    return 0;
}

static void sit(double seconds) { ddp__sleep_until(ddp_now() + seconds); }

static ddp_status meet_and_leave(int rank, int fd, const char *addr, void *user, ddp_error *err)
{
    board *b = (board *)user;
    ddp__rendezvous r;
    ddp__wire *w = NULL;

    memset(&r, 0, sizeof r);
    r.wire.rank = rank;
    r.world = 3;
    r.addr = addr;
    r.wire.listen_fd = fd;
    b->pid[rank] = (int)getpid();
    snprintf(b->addr[rank], sizeof b->addr[rank], "%s", addr);
    DDP__TRY(ddp__rendezvous_tcp(&r, &w, err));
    w->table->close(w);
    return DDP_OK;
}

static void forked_ranks_connect_at_the_given_address(void **state)
{
    board *b = new_board();
    ddp_error err;
    int r;
    (void)state;
    memset(&err, 0, sizeof err);
    assert_int_equal(ddp__spawn(3, 0, NULL, 0, meet_and_leave, b, &err), DDP_OK);
    assert_string_equal(err.msg, "");
    assert_int_equal(strncmp(b->addr[0], "127.0.0.1:", 10), 0);
    for (r = 0; r < 3; r++) {
        assert_true(b->pid[r] > 0 && b->pid[r] != (int)getpid());
        assert_string_equal(b->addr[r], b->addr[0]);
        assert_true(gone(b->pid[r]));
    }
    munmap(b, sizeof *b);
}

static ddp_status fail_in_turn(int rank, int fd, const char *addr, void *user, ddp_error *err)
{
    board *b = (board *)user;
    double end = ddp_now() + 10;
    int first;
    (void)fd;
    (void)addr;
    if (rank == 1) {
        ddp__atomic_store(&b->pid[1], (int)getpid());
        return ddp__fail(err, DDP_FORMAT, "layer 'head' has no parameters");
    }
    while (!(first = ddp__atomic_load(&b->pid[1])) && ddp_now() < end) sit(0.01);
    gone(first); /* after rank 1, as a consequence of its failure */
    return DDP_PEER_LOST;
}

static void first_failing_rank_gives_code_and_message(void **state)
{
    board *b = new_board();
    ddp_error err;
    (void)state;
    assert_int_equal(ddp__spawn(3, 0, NULL, 0, fail_in_turn, b, &err), DDP_FORMAT);
    assert_string_equal(err.msg, "rank 1: layer 'head' has no parameters");
    munmap(b, sizeof *b);
}

static ddp_status only_two_fails(int rank, int fd, const char *addr, void *user, ddp_error *err)
{
    (void)fd;
    (void)addr;
    (void)user;
    return rank == 2 ? ddp__fail(err, DDP_NUMERIC, "loss is not finite at step 3") : DDP_OK;
}

static void error_message_is_returned_from_processes_and_threads(void **state)
{
    ddp_error err;
    (void)state;
    assert_int_equal(ddp__spawn(4, 0, NULL, 0, only_two_fails, NULL, &err), DDP_NUMERIC);
    assert_int_equal(err.code, DDP_NUMERIC);
    assert_string_equal(err.msg, "rank 2: loss is not finite at step 3");
    assert_int_equal(ddp__spawn_threads(4, only_two_fails, NULL, &err), DDP_NUMERIC);
    assert_string_equal(err.msg, "rank 2: loss is not finite at step 3");
    assert_int_equal(ddp__spawn_threads(2, only_two_fails, NULL, &err), DDP_OK);
}

static ddp_status one_kills_itself(int rank, int fd, const char *addr, void *user, ddp_error *err)
{
    board *b = (board *)user;
    (void)fd;
    (void)addr;
    (void)err;
    b->pid[rank] = (int)getpid();
    if (rank == 1) {
        sit(0.1);
        kill(getpid(), SIGKILL);
    }
    if (rank == 0) { /* does not end by itself, nor after SIGTERM */
        signal(SIGTERM, SIG_IGN);
        sit(60);
    }
    return ddp__fail(err, DDP_PEER_LOST, "noticed"); /* perhaps before the supervisor detects it */
}

static void killed_rank_is_named_and_the_others_are_ended(void **state)
{
    board *b = new_board();
    char expected[100];
    ddp_error err;
    double begin = ddp_now();
    int r;
    (void)state;
    assert_int_equal(ddp__spawn(3, 0, NULL, 0.5, one_kills_itself, b, &err), DDP_PEER_LOST);
    snprintf(expected, sizeof expected, "rank 1 (process %d) was killed by signal 9", b->pid[1]);
    assert_int_equal(strncmp(err.msg, expected, strlen(expected)), 0);
    assert_true(ddp_now() - begin < 30);
    for (r = 0; r < 3; r++) assert_true(gone(b->pid[r]));
    munmap(b, sizeof *b);
}

static ddp_status sit_long(int rank, int fd, const char *addr, void *user, ddp_error *err)
{
    board *b = (board *)user;
    (void)fd;
    (void)addr;
    (void)err;
    b->pid[rank] = (int)getpid();
    ddp__atomic_add(&b->go, 1);
    sit(60);
    return DDP_OK;
}

static void *cancel_soon(void *arg)
{
    board *b = (board *)arg;
    double end = ddp_now() + 10;
    while (ddp__atomic_load(&b->go) < 2 && ddp_now() < end) sit(0.01);
    ddp__atomic_store(&b->cancel, 1);
    return NULL;
}

static void stop_request_ends_all_ranks(void **state)
{
    board *b = new_board();
    pthread_t thread;
    ddp_error err;
    double begin = ddp_now();
    (void)state;
    pthread_create(&thread, NULL, cancel_soon, b);
    assert_int_equal(ddp__spawn(2, 0, &b->cancel, 0, sit_long, b, &err), DDP_ABORTED);
    pthread_join(thread, NULL);
    assert_string_equal(err.msg, "stopped by request");
    assert_true(ddp_now() - begin < 30);
    assert_true(gone(b->pid[0]) && gone(b->pid[1]));
    munmap(b, sizeof *b);
}

static void outlived(int stopped)
{
    board *b = new_board();
    double end = ddp_now() + 10;
    pid_t supervisor;
    int code, r;
#ifndef __linux__
    SKIP("it needs Linux");
#endif
    supervisor = fork();
    if (supervisor == 0) {
        ddp__spawn(2, 0, NULL, 0, sit_long, b, NULL);
        _exit(0);
    }
    while (ddp__atomic_load(&b->go) < 2 && ddp_now() < end) sit(0.01);
    assert_int_equal(ddp__atomic_load(&b->go), 2);
    for (r = 0; stopped && r < 2; r++) kill((pid_t)b->pid[r], SIGSTOP);
    kill(supervisor, SIGKILL);
    waitpid(supervisor, &code, 0);
    assert_true(gone(b->pid[0]) && gone(b->pid[1]));
    munmap(b, sizeof *b);
}

static void ranks_end_when_the_supervisor_is_killed(void **state)
{
    (void)state;
    outlived(0);
}

/* A stopped process receives no signal except SIGKILL. */
static void stopped_ranks_end_when_the_supervisor_is_killed(void **state)
{
    (void)state;
    outlived(1);
}

static ddp_status leave_by_exit(int rank, int fd, const char *addr, void *user, ddp_error *err)
{
    (void)fd;
    (void)addr;
    (void)user;
    (void)err;
    if (rank == 1) _exit(42);
    return DDP_OK;
}

static void rank_that_calls_exit_is_named(void **state)
{
    ddp_error err;
    (void)state;
    assert_int_equal(ddp__spawn(2, 0, NULL, 0, leave_by_exit, NULL, &err), DDP_FAILED);
    assert_non_null(strstr(err.msg, "rank 1 (process "));
    assert_non_null(strstr(err.msg, "ended by exit(42)"));
}

static ddp_status print_something(int rank, int fd, const char *addr, void *user, ddp_error *err)
{
    (void)fd;
    (void)addr;
    (void)err;
    fprintf((FILE *)user, "rank %d\n", rank); /* left in the stdio buffer */
    return DDP_OK;
}

static void buffered_text_is_written_once(void **state)
{
    FILE *f = tmpfile();
    char text[100];
    size_t n;
    (void)state;
    fprintf(f, "before\n");
    assert_int_equal(ddp__spawn(2, 0, NULL, 0, print_something, f, NULL), DDP_OK);
    rewind(f);
    n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    assert_int_equal(n, 7 + 7 + 7);
    assert_non_null(strstr(text, "rank 0\n"));
    assert_non_null(strstr(text, "rank 1\n"));
    fclose(f);
}

static void invalid_worker_counts_fail(void **state)
{
    ddp_error err;
    (void)state;
    assert_int_equal(ddp__spawn(0, 0, NULL, 0, only_two_fails, NULL, &err), DDP_ARG);
    assert_int_equal(ddp__spawn_threads(-1, only_two_fails, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "-1 ranks"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forked_ranks_connect_at_the_given_address),
        cmocka_unit_test(first_failing_rank_gives_code_and_message),
        cmocka_unit_test(error_message_is_returned_from_processes_and_threads),
        cmocka_unit_test(killed_rank_is_named_and_the_others_are_ended),
        cmocka_unit_test(stop_request_ends_all_ranks),
        cmocka_unit_test(ranks_end_when_the_supervisor_is_killed),
        cmocka_unit_test(stopped_ranks_end_when_the_supervisor_is_killed),
        cmocka_unit_test(rank_that_calls_exit_is_named),
        cmocka_unit_test(buffered_text_is_written_once),
        cmocka_unit_test(invalid_worker_counts_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
