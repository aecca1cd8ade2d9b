/* Clients without a key flood the listening socket of rank 0: a joining worker is answered, no rank is lost,
 * and the addresses are served in turn. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/tools.h"
#include "base/core.h"
#include "wire/socket.h"
#include "comm/state.h"
#include "wire/wire.h"
#include "wire/acceptor.h"
#include <setjmp.h>
#include <time.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "comm/net_world.h"

enum { CLIENTS = 500, VISITS = 10 };

/* ---- clients without a key ---- */

static const char *const first_words[] = {"", "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02", "dream"};

/* Each reconnects as soon as it is closed. */
static void flood(const ddp__addr *at)
{
    static struct pollfd polls[CLIENTS];

    for (int i = 0; i < CLIENTS; i++) ddp__poll_set(&polls[i], -1, 0);
    for (;;) {
        for (int i = 0; i < CLIENTS; i++) {
            const char *words = first_words[i % 4];
            char sink[64];
            if (polls[i].fd >= 0 && !polls[i].revents) continue;
            if (polls[i].events == POLLOUT && polls[i].fd >= 0) { /* connected */
                if (words[0]) (void)send(polls[i].fd, words, strlen(words), MSG_NOSIGNAL);
                polls[i].events = POLLIN;
                continue;
            }
            if (polls[i].fd >= 0 && recv(polls[i].fd, sink, sizeof sink, 0) > 0) continue;
            if (polls[i].fd >= 0) close(polls[i].fd);
            ddp__poll_set(&polls[i], ddp__tcp_dial_begin(at), POLLOUT);
        }
        (void)poll(polls, CLIENTS, 10);
    }
}

/* ---- the run ---- */

static void open_engines(meet_rank *m, ddp__engine **e)
{
    for (int r = 0; r < 2; r++) {
        net_setup set;
        ddp__links links;
        ddp__engine_config cfg;
        net_defaults(&set, 2);
        set.cfg.peer_timeout_s = 10;
        set.cfg.max_count = 1;
        cfg = net_config(&set, r, &links);
        cfg.wire = m[r].wire;
        assert_int_equal(ddp__engine_open(&cfg, &e[r], &m[r].err), DDP_OK);
    }
}

/* Returns 1 if both ranks got the sum. Does not assert, so that the flood continues. */
static int sum_both(meet_rank *m, ddp__engine **e)
{
    float x[2] = {1, 2};
    long ticket[2] = {-1, -1};
    int good = 1;

    for (int r = 0; r < 2; r++) {
        ddp_piece piece = {{&x[r]}, 1};
        ddp_message all;
        net_message(&all, DDP_ALL_REDUCE, &piece, 1);
        good &= ddp__engine_submit(e[r], &all, &ticket[r], &m[r].err) == DDP_OK;
    }
    for (int r = 0; r < 2 && good; r++)
        good &= ddp__engine_wait(e[r], ticket[r], &m[r].err) == DDP_OK && x[r] == 3;
    return good;
}

/* A joining worker's first request: the number of connections until a run without min_world answers that no
 * worker can join. 99: no answer. */
static int visit(const ddp__addr *at, ddp__tls *tls)
{
    const double begin = ddp_now();
    unsigned char b[DDP__HELLO_BYTES];
    ddp__hello self, answer;
    int told = 0, dials = 0;

    memset(&self, 0, sizeof self);
    self.version = DDP__PROTOCOL;
    self.run_id = 7;
    while (!told && ddp_now() < begin + 60) {
        int fd = ddp__tcp_dial(at, ddp_now() + 60);
        dials++;
        ddp__hello_pack(&self, DDP__JOIN_ASK, DDP__WELCOME, 0, b);
        told = fd >= 0 && ddp__stream_begin(tls, fd, 0) == 0 &&
               ddp__stream_greet(tls, fd, ddp_now() + 60) == 0 &&
               ddp__stream_send_all(tls, fd, b, sizeof b, ddp_now() + 60) == 0 &&
               ddp__stream_recv_all(tls, fd, b, sizeof b, NULL, ddp_now() + 60) == 0 &&
               ddp__hello_parse(b, &answer);
        ddp__stream_close(tls, fd);
        if (!told) ddp__sleep_until(ddp_now() + 0.2);
    }
    return told ? dials : 99;
}

/* psk: file with the key of the run, or NULL. */
static void flooded(const char *psk)
{
    char addr[DDP__ADDR_TEXT];
    double longest = 0, sum = 0;
    int most = 0, summed;
    ddp__engine *e[2];
    meet_rank m[2];
    ddp__addr at;
    ddp__tls_files files;
    ddp__tls *tls[3];
    int count;
    pid_t pid;

    memset(&files, 0, sizeof files);
    files.psk = psk;
    meet_prepare(m, 2, meet_listen(addr), addr);
    for (int i = 0; i < 3; i++) assert_int_equal(ddp__tls_open(&files, 7, &tls[i], NULL), DDP_OK);
    for (int r = 0; r < 2; r++) m[r].how.wire.tls = tls[r];
    m[0].how.resume = m[1].how.resume = 1;
    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    meet_start(m, 2);
    meet_join(m, 2);
    assert_int_equal(m[0].status | m[1].status, DDP_OK);
    open_engines(m, e);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) { /* it ends with the test, and does not keep its pipes open */
        alarm(120);
        for (int fd = 1; fd < 256; fd++) close(fd);
        flood(&at);
    }
    ddp__sleep_until(ddp_now() + 0.5);
    for (int i = 0; i < VISITS; i++) {
        const double begin = ddp_now();
        const int dials = visit(&at, tls[2]);
        const double took = ddp_now() - begin;
        sum += took;
        if (took > longest) longest = took;
        if (dials > most) most = dials;
    }
    summed = sum_both(m, e);
    kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    ddp__engine_close(e[1]);
    ddp__engine_close(e[0]);
    print_message("%d questions took %.3f s, the longest %.3f s and at most %d connections\n", (int)VISITS,
                  sum, longest, most);
    for (int i = 0; i < 3; i++) ddp__tls_free(tls[i]);
    if (!summed) fail_msg("rank 0: %s; rank 1: %s", m[0].err.msg, m[1].err.msg);
    assert_in_range(most, 1, 2);
}

static void joining_worker_is_answered_at_once_in_a_flood(void **state)
{
    (void)state;
    flooded(NULL);
}

#ifdef DDP_USE_OPENSSL
static void joining_worker_with_the_key_is_answered_at_once_in_a_flood(void **state)
{
    char path[] = "/tmp/dreamddp-key-XXXXXX";
    const int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "0123456789abcdef0123456789abcdef", 32), 32);
    close(fd);
    flooded(path);
    unlink(path);
}
#endif

/* ---- order of service ---- */

enum { CROWD = 60 };

typedef struct order {
    int decided[256], count; /* ranks of the callers in the order in which they were served */
} order;

/* A ddp__acceptor_fn that takes 1 ms, as a TLS handshake does. */
static ddp__refusal slow_decision(void *user, const ddp__caller *c, const ddp__hello *h, char *why)
{
    order *o = (order *)user;
    clock_t end = clock() + CLOCKS_PER_SEC / 1000;

    (void)c;
    (void)why;
    while (clock() < end) {
    }
    if (o->count < 256) o->decided[o->count++] = (int)h->rank;
    return DDP__REFUSE_MUTE;
}

static int knows_127_77(void *user, const ddp__addr *from)
{
    (void)user;
    return ntohl(from->in.sin_addr.s_addr) >> 16 == 0x7f4d;
}

/* A client of that address that has sent a hello of that rank. */
static int client_from(const ddp__addr *at, unsigned address, int rank)
{
    unsigned char b[DDP__HELLO_BYTES];
    struct sockaddr_in own;
    ddp__hello self;
    int s = socket(AF_INET, SOCK_STREAM, 0);

    memset(&own, 0, sizeof own);
    memset(&self, 0, sizeof self);
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(address);
    self.version = DDP__PROTOCOL;
    self.rank = (uint32_t)rank;
    self.world = 200;
    ddp__hello_pack(&self, DDP__HELLO, DDP__WELCOME, 0, b);
    assert_int_equal(bind(s, (const struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(connect(s, (const struct sockaddr *)&at->sa, at->size), 0);
    assert_int_equal(send(s, b, sizeof b, 0), sizeof b);
    return s;
}

static int place_of(const order *o, int rank)
{
    for (int i = 0; i < o->count; i++)
        if (o->decided[i] == rank) return i;
    return -1;
}

/* CROWD clients of one address, or of as many addresses, connect first; then one of an unknown and one of a
 * known address. */
static void hear_a_crowd(int addresses, order *o)
{
    ddp__tcp_config c;
    ddp__acceptor acceptor;
    ddp__addr at;
    char addr[DDP__ADDR_TEXT];
    int fd[CROWD + 2], count;
    const double end = ddp_now() + 20;

    memset(&acceptor, 0, sizeof acceptor);
    memset(&c, 0, sizeof c);
    memset(o, 0, sizeof *o);
    c.world = 200;
    c.self.version = DDP__PROTOCOL;
    c.self.world = 200;
    c.self.rank = 199;
    c.log.level = DDP_LOG_ERROR;
    acceptor.listen_fd = meet_listen(addr);
    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    assert_int_equal(ddp__acceptor_open(&acceptor, &c, slow_decision, o), 1);
    acceptor.knows = knows_127_77;
    for (int i = 0; i < CROWD; i++) fd[i] = client_from(&at, 0x7f800001u + (unsigned)(i % addresses), i);
    fd[CROWD] = client_from(&at, 0x7fc80001u, CROWD);
    fd[CROWD + 1] = client_from(&at, 0x7f4d0001u, CROWD + 1);
    while (o->count < CROWD + 2 && ddp_now() < end) {
        ddp__acceptor_serve(&acceptor, ddp_now());
        ddp__sleep_until(ddp_now() + 0.001);
    }
    assert_int_equal(o->count, CROWD + 2);
    for (int i = 0; i < CROWD + 2; i++) close(fd[i]);
    ddp__acceptor_close(&acceptor);
}

static void client_waits_for_few_clients_of_another_address(void **state)
{
    order o;

    (void)state;
    hear_a_crowd(1, &o);
    assert_in_range(place_of(&o, CROWD), 0, 12);
    assert_in_range(place_of(&o, CROWD + 1), 0, 12);
}

static void rank_waits_for_few_clients_of_unknown_addresses(void **state)
{
    order o;

    (void)state;
    hear_a_crowd(CROWD, &o);
    assert_in_range(place_of(&o, CROWD + 1), 0, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(client_waits_for_few_clients_of_another_address),
        cmocka_unit_test(rank_waits_for_few_clients_of_unknown_addresses),
        cmocka_unit_test(joining_worker_is_answered_at_once_in_a_flood),
#ifdef DDP_USE_OPENSSL
        cmocka_unit_test(joining_worker_with_the_key_is_answered_at_once_in_a_flood),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
