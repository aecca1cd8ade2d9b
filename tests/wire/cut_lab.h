/* Processes that are killed, and a link between network namespaces that is cut. Include after dreamddp.h and
 * cmocka.h, with _GNU_SOURCE for setns. */
#ifndef CUT_LAB_H
#define CUT_LAB_H

#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include "comm/net_world.h"
#include "wire/meet.h"

static void live_until_killed(int rank, int world, int listener, const char *addr)
{
    meet_rank m[MEET_MAX];
    unsigned char all[MEET_MAX];

    meet_prepare(m, world, listener, addr);
    m[rank].how.resume = 1;
    meet_run(&m[rank]);
    memset(all, 1, sizeof all);
    all[rank] = 0;
    for (;;)
        if (!m[rank].status)
            m[rank].wire->table->wait(m[rank].wire, NULL, all, ddp_now() + 1);
        else
            ddp__sleep_until(ddp_now() + 1);
}

/* Time until the survivor notices that the other rank was killed. */
static DDP__UNUSED double seconds_to_notice(int victim)
{
    int survivor = !victim, status;
    meet_rank m[MEET_MAX];
    char addr[DDP__ADDR_TEXT];
    int listener = meet_listen(addr);
    unsigned char all[2] = {1, 1};
    double begin;
    char c;
    long n;
    pid_t pid = fork();

    if (pid == 0) {
        if (victim != 0) close(listener);
        live_until_killed(victim, 2, listener, addr);
    }
    if (survivor != 0) close(listener);
    meet_prepare(m, 2, survivor == 0 ? listener : -1, addr);
    m[survivor].how.resume = 1;
    meet_run(&m[survivor]);
    assert_string_equal(m[survivor].err.msg, "");
    kill(pid, SIGKILL);
    begin = ddp_now();
    while ((n = m[survivor].wire->table->recv(m[survivor].wire, victim, &c, 1)) >= 0 &&
           ddp_now() < begin + 15)
        m[survivor].wire->table->wait(m[survivor].wire, NULL, all, begin + 15);
    begin = ddp_now() - begin;
    assert_int_equal(n, -1);
    m[survivor].wire->table->close(m[survivor].wire);
    waitpid(pid, &status, 0);
    return begin;
}

#ifdef __linux__
static char ns[16]; /* with the id of this process: others may run the same test */

/* Runs a command in which each NS is replaced by the prefix of the namespaces' names. */
static int shell(const char *command)
{
    char line[1200];
    const char *at;
    size_t used = (size_t)snprintf(line, sizeof line, "(");

    for (; (at = strstr(command, "NS")) != NULL; command = at + 2)
        used += (size_t)snprintf(line + used, sizeof line - used, "%.*s%s", (int)(at - command), command, ns);
    snprintf(line + used, sizeof line - used, "%s) >/dev/null 2>&1", command);
    return system(line);
}

static DDP__UNUSED void namespaces_off(void) { shell("ip netns del NS0; ip netns del NS1"); }

static int namespaces_on(void)
{
    snprintf(ns, sizeof ns, "djo%ld", (long)getpid());
    return shell("set -e; ip netns add NS0; ip netns add NS1;"
                 "ip link add NSa netns NS0 type veth peer name NSb netns NS1;"
                 "ip -n NS0 addr add 10.77.5.1/24 dev NSa; ip -n NS0 link set NSa up;"
                 "ip -n NS0 link set lo up;"
                 "ip -n NS1 addr add 10.77.5.2/24 dev NSb; ip -n NS1 link set NSb up;"
                 "ip -n NS1 link set lo up;"
                 "ip netns exec NS0 tc qdisc add dev NSa root tbf rate 200mbit burst 64kb "
                 "latency 50ms;"
                 "ip netns exec NS1 tc qdisc add dev NSb root tbf rate 200mbit burst 64kb "
                 "latency 50ms") == 0;
}

typedef struct cut_board { /* shared memory */
    int ready[2], done[2], status[2], wrong[2];
    double end[2];
    char text[2][300];
} cut_board;

static void cut_rank(cut_board *board, int rank, size_t count, double peer_timeout_s)
{
    char path[40];
    ddp__rendezvous how;
    ddp__engine_config cfg;
    ddp__engine *e = NULL;
    ddp__wire *w = NULL;
    ddp_message m;
    ddp_piece piece;
    ddp_error err;
    long ticket = 0;
    int fd;

    memset(&err, 0, sizeof err);
    snprintf(path, sizeof path, "/run/netns/%s%d", ns, rank);
    fd = open(path, O_RDONLY);
    if (fd < 0 || setns(fd, CLONE_NEWNET) < 0) _exit(9);
    memset(&how, 0, sizeof how);
    how.wire.rank = rank;
    how.world = 2;
    how.addr = "10.77.5.1:29555";
    how.wire.listen_fd = -1;
    how.insecure = 1;
    how.timeout_s = 60;
    how.wire.peer_timeout_s = peer_timeout_s;
    how.resume = 1;
    memset(&cfg, 0, sizeof cfg);
    board->status[rank] = (int)ddp__rendezvous_tcp(&how, &w, &err);
    cfg.wire = w;
    cfg.rank = rank;
    cfg.world = 2;
    cfg.deterministic = 1;
    cfg.peer_timeout_s = peer_timeout_s;
    if (cfg.min_world > 0) cfg.membership = ddp__elastic_membership();
    if (!board->status[rank]) board->status[rank] = (int)ddp__engine_open(&cfg, &e, &err);
    if (!board->status[rank]) {
        piece.count = count;
        piece.data = (float *)malloc(count * sizeof(float));
        for (size_t i = 0; i < count; i++) piece.data[i] = net_value(rank, i, 1);
        net_message(&m, DDP_ALL_REDUCE, &piece, 1);
        ddp__atomic_store(&board->ready[rank], 1);
        board->status[rank] = (int)ddp__engine_submit(e, &m, &ticket, &err);
        if (!board->status[rank]) board->status[rank] = (int)ddp__engine_wait(e, ticket, &err);
        board->end[rank] = ddp_now();
        for (size_t i = 0; i < count; i++) {
            float sum = 0;
            for (int r = 0; r < 2; r++) sum += net_value(r, i, 1);
            board->wrong[rank] |= memcmp(&sum, &piece.data[i], sizeof sum) != 0;
        }
        ddp__engine_close(e);
    }
    snprintf(board->text[rank], sizeof board->text[rank], "%.290s", err.msg);
    ddp__atomic_store(&board->done[rank], 1);
    _exit(0);
}

static void all_arrived(const cut_board *board)
{
    int bad = board->status[0] | board->status[1] | board->wrong[0] | board->wrong[1];

    if (!bad) return;
    namespaces_off();
    fail_msg("values wrong: %d and %d; \"%s\", \"%s\"", board->wrong[0], board->wrong[1], board->text[0],
             board->text[1]);
}

/* Cuts the link 0.3 s after the start of an all-reduce of `count` floats at 200 Mbit/s, which must complete.
 * Returns the seconds from the return of the link to the end. */
static DDP__UNUSED double cut_for(double seconds, const char *down, const char *up, double peer_timeout_s,
                                  size_t count, cut_board *board)
{
    double until, back;
    pid_t pid[2];
    int k, status;

    memset(board, 0, sizeof *board);
    for (k = 0; k < 2; k++) {
        pid[k] = fork();
        if (pid[k] == 0) cut_rank(board, k, count, peer_timeout_s);
    }
    until = ddp_now() + 60;
    while (!(ddp__atomic_load(&board->ready[0]) && ddp__atomic_load(&board->ready[1])) && ddp_now() < until &&
           !board->done[0] && !board->done[1])
        ddp__sleep_until(ddp_now() + 0.005);
    ddp__sleep_until(ddp_now() + 0.3);
    if (shell(down)) fail_msg("no: %s", down);
    ddp__sleep_until(ddp_now() + seconds);
    back = ddp_now();
    if (shell(up)) fail_msg("no: %s", up);
    for (k = 0; k < 2; k++) waitpid(pid[k], &status, 0);
    all_arrived(board);
    return (board->end[0] > board->end[1] ? board->end[0] : board->end[1]) - back;
}

static DDP__UNUSED cut_board *board_or_skip(void)
{
    void *board;

    if (geteuid() != 0 || !namespaces_on()) {
        namespaces_off();
        SKIP("it needs root and network namespaces");
    }
    board = mmap(NULL, sizeof(cut_board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(board != MAP_FAILED);
    return (cut_board *)board;
}
#else
typedef int cut_board;
static DDP__UNUSED cut_board *board_or_skip(void)
{
    SKIP("it needs Linux");
    return NULL;
}
#define cut_for(seconds, down, up, timeout, count, board) ((void)(board), 1.0)
#define namespaces_off()
#endif

#endif /* CUT_LAB_H */
