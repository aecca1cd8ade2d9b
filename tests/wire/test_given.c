/* Transport sockets: results over connections of the program are bit-identical to the threads transport; a
 * peer that dies; and invalid descriptors. */
#include "dreamddp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#ifndef DDP__UNUSED
#define DDP__UNUSED __attribute__((unused))
#endif
#include "wire/given_lab.h"

enum { WORLD = 3, LAYERS = 3, VALUES = 70000, STEPS = 7 };

static ddp_config small(ddp_strategy strategy)
{
    ddp_config cfg;

    memset(&cfg, 0, sizeof cfg);
    cfg.strategy = strategy;
    cfg.world = WORLD;
    cfg.period = 2;
    cfg.deterministic = 1;
    cfg.no_env = 1;
    cfg.timeout.peer_s = cfg.timeout.op_s = 300; /* a failure is noticed by the end of the connection */
    return cfg;
}

/* State that the ranks of a run share, in shared memory. */
typedef struct board {
    uint64_t hash[WORLD];
    int status[WORLD];
    int dies; /* the rank that ends its process in step 3, or -1 for none */
    char text[WORLD][DDP_ERROR_TEXT];
} board;

static int train(ddp_ctx *d, void *user)
{
    board *b = (board *)user;
    const int rank = ddp_rank(d);
    float *w = (float *)calloc(2 * LAYERS * VALUES, sizeof *w), *g = w + LAYERS * VALUES;
    ddp_optimizer sgd = ddp_sgd(0.05f, 0.5f);
    int bad = 0;

    for (int l = 0; l < LAYERS && !bad; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        for (int i = 0; i < VALUES; i++) w[l * VALUES + i] = (float)(i % 7) - 3;
        layer.params = w + l * VALUES;
        layer.grads = g + l * VALUES;
        layer.count = VALUES;
        bad = ddp_add_layer(d, &layer);
    }
    if (!bad) bad = ddp_set_optimizer(d, &sgd);
    for (int step = 0; step < STEPS && !bad; step++) {
        if (rank == b->dies && step == 3) raise(SIGKILL);
        for (int l = LAYERS - 1; l >= 0 && !bad; l--) {
            for (int i = l * VALUES; i < (l + 1) * VALUES; i++)
                g[i] += 0.1f * w[i] + 0.01f * (float)(rank + i % 5);
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_sync_all(d);
    if (!bad) b->hash[rank] = 1 | ddp_hash_floats(0, w, LAYERS * VALUES);
    free(w);
    return bad;
}

static void results_are_bit_identical_to_the_threads_transport(void **state)
{
    static const struct {
        ddp_strategy strategy;
        int servers, buffer;
        ddp_algorithm algorithm;
        const char *net;
    } run[] = {{DDP_SSGD, 0, 0, DDP_ALGORITHM_DEFAULT, NULL},
               {DDP_DREAMDDP, 0, 4096, DDP_DIRECT, NULL},
               {DDP_DILOCO, 0, 0, DDP_FULL, NULL},
               {DDP_BSP, DDP_SERVERS_COLOCATED, 0, DDP_ALGORITHM_DEFAULT, NULL},
               {DDP_WFBP, 0, 0, DDP_ALGORITHM_DEFAULT, "2gbit,1ms"}};

    (void)state;
    for (size_t i = 0; i < sizeof run / sizeof run[0]; i++) {
        board threads, sockets;
        ddp_config cfg = small(run[i].strategy);
        ddp_error err;
        memset(&threads, 0, sizeof threads);
        memset(&sockets, 0, sizeof sockets);
        threads.dies = sockets.dies = -1;
        cfg.server.count = run[i].servers;
        cfg.algorithm = run[i].algorithm;
        cfg.net = run[i].net;
        if (given_launch(&cfg, run[i].buffer, train, &sockets, &err))
            fail_msg("run %d over sockets: %s", (int)i, err.msg);
        cfg.transport = DDP_THREADS;
        if (ddp_launch(&cfg, train, &threads, &err)) fail_msg("run %d over threads: %s", (int)i, err.msg);
        for (int r = 0; r < WORLD; r++) assert_true(threads.hash[r] && threads.hash[r] == sockets.hash[r]);
    }
}

/* ---- processes, of which one dies ---- */

static void as_processes(board *b, ddp_config cfg)
{
    given_pairs pairs;
    pid_t pid[WORLD];

    given_connect(&pairs, WORLD, 0);
    for (int r = 0; r < WORLD; r++) {
        pid[r] = fork();
        if (pid[r]) continue;
        given_close(&pairs, r, 1);
        cfg.transport = DDP_SOCKETS;
        cfg.rank = r;
        cfg.sockets = pairs.fd[r];
        {
            ddp_error err;
            ddp_ctx *d = ddp_open(&cfg, &err);
            b->status[r] = d ? train(d, b) : (int)err.code;
            snprintf(b->text[r], sizeof b->text[r], "%s", d ? ddp_last_error(d)->msg : err.msg);
            ddp_close(d);
        }
        _exit(0);
    }
    given_close(&pairs, -1, 0);
    for (int r = 0; r < WORLD; r++) waitpid(pid[r], NULL, 0);
}

static board *shared_board(int dies)
{
    board *b = (board *)mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(b != MAP_FAILED);
    b->dies = dies;
    return b;
}

static void death_of_a_rank_is_an_error_of_the_others(void **state)
{
    board *b = shared_board(1);
    int named = 0;

    (void)state;
    as_processes(b, small(DDP_WFBP));
    for (int r = 0; r < WORLD; r += 2) {
        if (b->status[r] != (int)DDP_PEER_LOST) fail_msg("rank %d: %d '%s'", r, b->status[r], b->text[r]);
        named += strstr(b->text[r], "rank 1 (descriptor ") != NULL;
    }
    assert_true(named > 0); /* the other rank may have learned it from this one */
    munmap(b, sizeof *b);
}

static void elastic_world_continues_without_the_dead_rank(void **state)
{
    board *b = shared_board(2);
    ddp_config cfg = small(DDP_LOCALSGD);

    (void)state;
    cfg.elastic.min_world = 2;
    as_processes(b, cfg);
    for (int r = 0; r < 2; r++)
        if (b->status[r]) fail_msg("rank %d: %d '%s'", r, b->status[r], b->text[r]);
    assert_true(b->hash[0] && b->hash[0] == b->hash[1] && !b->hash[2]);
    munmap(b, sizeof *b);
}

/* ---- invalid sockets ---- */

static void refused(ddp_config cfg, const int *sockets, ddp_status code, const char *says)
{
    ddp_error err;

    cfg.sockets = sockets;
    assert_null(ddp_open(&cfg, &err));
    if (err.code != code || !strstr(err.msg, says))
        fail_msg("%d '%s', not %d '%s'", (int)err.code, err.msg, (int)code, says);
}

static int nothing(ddp_ctx *d, void *user)
{
    (void)d;
    (void)user;
    return 0;
}

static void wrong_descriptor_is_named(void **state)
{
    ddp_config cfg = small(DDP_SSGD);
    int pair[2], other[2], datagram[2], list[WORLD] = {-1, -1, -1}, file, alone, closed;
    ddp_error err;

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, datagram), 0);
    file = open("/dev/null", O_RDWR);
    alone = socket(AF_INET, SOCK_STREAM, 0);
    closed = dup(file);
    close(closed);
    cfg.transport = DDP_SOCKETS;
    refused(cfg, NULL, DDP_ARG, "transport sockets with 3 ranks needs ddp_config.sockets");
    list[1] = other[0];
    list[2] = closed;
    refused(cfg, list, DDP_ARG, "sockets[2] is descriptor");
    list[2] = -1;
    refused(cfg, list, DDP_ARG, "sockets[2] is descriptor -1, which is not an open socket");
    list[2] = file;
    refused(cfg, list, DDP_ARG, "which is not an open socket");
    list[2] = datagram[0];
    refused(cfg, list, DDP_ARG, "a socket without a byte stream");
    list[2] = alone;
    refused(cfg, list, DDP_ARG, "which is not connected");
    list[1] = list[2] = pair[0];
    refused(cfg, list, DDP_ARG, "sockets[1] and sockets[2] are both descriptor");
    cfg.security.psk = "key";
    refused(cfg, list, DDP_ARG, "transport sockets with tls_psk");
    cfg.security.psk = NULL;
    cfg.network.net2 = "1gbit";
    refused(cfg, list, DDP_ARG, "a second link needs the tcp or threads transport");
    cfg.network.net2 = NULL;
    cfg.sockets = list;
    assert_int_equal(ddp_launch(&cfg, nothing, NULL, &err), DDP_USAGE);
    if (!strstr(err.msg, "call ddp_open in each of the 3 processes")) fail_msg("%s", err.msg);
    assert_int_equal(ddp_launch_pipelines(&cfg, 1, 1, nothing, NULL, &err), DDP_UNSUPPORTED);
    if (!strstr(err.msg, "min_replicas 1 with transport sockets")) fail_msg("%s", err.msg);
    cfg.transport = DDP_TCP;
    refused(cfg, list, DDP_ARG, "ddp_config.sockets is set for another transport");
    for (int i = 0; i < 2; i++) {
        close(pair[i]);
        close(other[i]);
        close(datagram[i]);
    }
    close(file);
    close(alone);
}

/* Rank 0 of 2, with this program at the other end of its socket. says: expected in the error; sent: bytes
 * that the peer sends first. */
static void met(ddp_config cfg, const void *sent, size_t bytes, int leaves, ddp_status code, const char *says)
{
    int pair[2], list[2] = {-1, -1};

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(write(pair[1], sent, bytes), (long)bytes);
    if (leaves) shutdown(pair[1], SHUT_WR);
    cfg.transport = DDP_SOCKETS;
    cfg.world = 2;
    list[1] = pair[0];
    refused(cfg, list, code, says);
    assert_true(fcntl(pair[0], F_GETFD) >= 0); /* the program still owns the descriptor */
    close(pair[0]);
    close(pair[1]);
}

static void wrong_peer_is_named(void **state)
{
    static const char letter[64] = "GET / HTTP/1.1";
    ddp_config cfg = small(DDP_SSGD);
    int yes = 1;

    (void)state;
    met(cfg, letter, sizeof letter, 0, DDP_MISMATCH, "is not a dreamddp rank");
    met(cfg, letter, 20, 1, DDP_PEER_LOST, "rank 1 closed the connection on descriptor");
    cfg.cancel = &yes;
    met(cfg, letter, 20, 0, DDP_ABORTED, "cancelled");
    cfg.cancel = NULL;
    cfg.timeout.join_s = 0.05;
    met(cfg, letter, 20, 0, DDP_TIMEOUT, "rank 1 sent nothing on descriptor");
}

typedef struct opener {
    ddp_config cfg;
    ddp_error err;
    pthread_t thread;
} opener;

static void *opens(void *arg)
{
    opener *o = (opener *)arg;
    ddp_ctx *d = ddp_open(&o->cfg, &o->err);

    ddp_close(d);
    return NULL;
}

/* Ranks 0 and 1 of 2; `change` changes the configuration of rank 1. Both fail with an error that contains
 * `says`. */
static void differ(void (*change)(ddp_config *), ddp_status code, const char *says)
{
    given_pairs pairs;
    opener o[2];

    given_connect(&pairs, 3, 0);
    memset(o, 0, sizeof o);
    for (int r = 0; r < 2; r++) {
        o[r].cfg = small(DDP_SSGD);
        o[r].cfg.transport = DDP_SOCKETS;
        o[r].cfg.world = 2;
        o[r].cfg.rank = r;
        o[r].cfg.sockets = pairs.fd[r];
        if (r) change(&o[r].cfg);
        pthread_create(&o[r].thread, NULL, opens, &o[r]);
    }
    for (int r = 0; r < 2; r++) pthread_join(o[r].thread, NULL);
    if (o[0].err.code != code || !strstr(o[0].err.msg, says))
        fail_msg("%d '%s'", (int)o[0].err.code, o[0].err.msg);
    given_close(&pairs, -1, 0);
}

static void another_run(ddp_config *c) { c->run_id = "another"; }
static void another_world(ddp_config *c) { c->world = 3; }

static void mismatched_ranks_fail_with_both_values(void **state)
{
    (void)state;
    differ(another_run, DDP_MISMATCH, "belongs to run");
    differ(another_world, DDP_MISMATCH, "expects 3 ranks, but rank 0 expects 2 ranks");
}

/* Rank 0 passes its two sockets in the wrong order. */
static void unsorted_sockets_are_reported(void **state)
{
    given_pairs pairs;
    opener o[WORLD];

    (void)state;
    given_connect(&pairs, WORLD, 0);
    memset(o, 0, sizeof o);
    for (int r = 0; r < WORLD; r++) {
        o[r].cfg = small(DDP_SSGD);
        o[r].cfg.transport = DDP_SOCKETS;
        o[r].cfg.rank = r;
        o[r].cfg.sockets = pairs.fd[r];
        if (!r) {
            pairs.fd[0][0] = pairs.fd[0][1];
            pairs.fd[0][1] = pairs.fd[0][2];
            pairs.fd[0][2] = pairs.fd[0][0];
        }
        pthread_create(&o[r].thread, NULL, opens, &o[r]);
    }
    for (int r = 0; r < WORLD; r++) pthread_join(o[r].thread, NULL);
    pairs.fd[0][0] = -1;
    if (!strstr(o[0].err.msg, "is connected to rank 2: sort the sockets by rank"))
        fail_msg("%s", o[0].err.msg);
    given_close(&pairs, -1, 0);
}

/* ---- descriptors ---- */

static int descriptors(void)
{
    int n = 0;

    for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static int child_closes(ddp_ctx *d, void *user)
{
    int status = -1;
    float x = 1;
    pid_t pid = ddp_rank(d) ? 0 : fork();

    if (!ddp_rank(d) && pid == 0) {
        ddp_close(d); /* the parent's connections stay open */
        _exit(0);
    }
    if (pid > 0 && (waitpid(pid, &status, 0) != pid || status)) return (int)DDP_FAILED;
    (void)user;
    return ddp_all_mean(d, &x, 1);
}

static void no_descriptor_is_left_open(void **state)
{
    const int before = descriptors();
    board b;
    ddp_config cfg = small(DDP_SSGD);
    ddp_error err;

    (void)state;
    memset(&b, 0, sizeof b);
    b.dies = -1;
    if (given_launch(&cfg, 0, train, &b, &err)) fail_msg("%s", err.msg);
    assert_int_equal(descriptors(), before);
    if (given_launch(&cfg, 0, child_closes, NULL, &err)) fail_msg("%s", err.msg);
    assert_int_equal(descriptors(), before);
    wrong_peer_is_named(NULL);
    wrong_descriptor_is_named(NULL);
    assert_int_equal(descriptors(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_bit_identical_to_the_threads_transport),
        cmocka_unit_test(death_of_a_rank_is_an_error_of_the_others),
        cmocka_unit_test(elastic_world_continues_without_the_dead_rank),
        cmocka_unit_test(wrong_descriptor_is_named),
        cmocka_unit_test(wrong_peer_is_named),
        cmocka_unit_test(mismatched_ranks_fail_with_both_values),
        cmocka_unit_test(unsorted_sockets_are_reported),
        cmocka_unit_test(no_descriptor_is_left_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
