/* Rank 0 as a relay: the relay alone, and rendezvous in which pairs cannot connect. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "wire/meet.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "wire/meet_check.h"

/* ---- the relay ---- */

/* A TCP connection within this process. */
static void connect_two(int *a, int *b)
{
    char addr[DDP__ADDR_TEXT];
    int listener = meet_listen(addr), count;
    ddp__addr at;

    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    *a = ddp__tcp_dial(&at, ddp_now() + 60);
    assert_true(*a >= 0);
    assert_true(ddp__fd_wait(listener, POLLIN, ddp_now() + 60));
    *b = ddp__tcp_accept(listener, NULL);
    assert_true(*b >= 0);
    close(listener);
}

/* Connects two ends through the relay. */
static void join_two(ddp__relay *relay, int *a, int *b)
{
    int inner[2];

    connect_two(a, &inner[0]);
    connect_two(b, &inner[1]);
    assert_int_equal(ddp__relay_add(relay, inner[0], inner[1], 0, NULL), DDP_OK);
}

typedef struct talker {
    int fd;
    unsigned seed;
    size_t bytes, got;
    int right, slow;
    pthread_t thread;
} talker;

static unsigned char byte_of(unsigned seed, size_t i)
{
    return (unsigned char)(seed * 31 + i * 7 + (i >> 8) * 13 + (i >> 16));
}

static void *talk(void *arg)
{
    talker *t = (talker *)arg;
    unsigned char b[4096];
    size_t at = 0, n, i;

    while (at < t->bytes) {
        n = t->bytes - at < sizeof b ? t->bytes - at : sizeof b;
        for (i = 0; i < n; i++) b[i] = byte_of(t->seed, at + i);
        if (ddp__stream_send_all(NULL, t->fd, b, n, ddp_now() + 100) < 0) break;
        at += n;
    }
    shutdown(t->fd, SHUT_WR);
    return NULL;
}

static void *hear(void *arg)
{
    talker *t = (talker *)arg;
    unsigned char b[4096];
    double end = ddp_now() + 100;

    t->right = 1;
    while (ddp_now() < end) {
        ssize_t n = recv(t->fd, b, sizeof b, 0), i;
        if (n == 0) break;
        if (n < 0 && errno != EAGAIN) t->right = 0;
        if (n < 0 && errno != EAGAIN) break;
        if (n < 0) ddp__fd_wait(t->fd, POLLIN, end);
        for (i = 0; i < n; i++)
            if (b[i] != byte_of(t->seed, t->got + (size_t)i)) t->right = 0;
        if (n > 0) t->got += (size_t)n;
        if (t->slow && t->got < 200000) ddp__sleep_until(ddp_now() + 0.001);
    }
    return NULL;
}

static void bytes_are_relayed_unchanged_in_both_directions(void **state)
{
    enum { PAIRS = 11, BYTES = 1500000 };
    static talker say[2 * PAIRS], listen_to[2 * PAIRS];
    ddp__relay *relay = NULL;
    int i;
    (void)state;

    memset(say, 0, sizeof say);
    memset(listen_to, 0, sizeof listen_to);
    assert_int_equal(ddp__relay_open(&relay, NULL), DDP_OK);
    for (i = 0; i < PAIRS; i++) {
        join_two(relay, &say[2 * i].fd, &say[2 * i + 1].fd);
        say[2 * i].seed = (unsigned)(2 * i);
        say[2 * i + 1].seed = (unsigned)(2 * i + 1);
        say[2 * i].bytes = (size_t)(BYTES + i);
        say[2 * i + 1].bytes = (size_t)(i % 3 ? 1000 * i : 0);
        listen_to[2 * i].fd = say[2 * i + 1].fd;
        listen_to[2 * i].slow = i == 0; /* the relay waits for it with a full buffer */
        listen_to[2 * i + 1].fd = say[2 * i].fd;
    }
    for (i = 0; i < 2 * PAIRS; i++) {
        listen_to[i].seed = (unsigned)i;
        assert_int_equal(pthread_create(&say[i].thread, NULL, talk, &say[i]), 0);
        assert_int_equal(pthread_create(&listen_to[i].thread, NULL, hear, &listen_to[i]), 0);
    }
    for (i = 0; i < 2 * PAIRS; i++) {
        pthread_join(say[i].thread, NULL);
        pthread_join(listen_to[i].thread, NULL);
        assert_true(listen_to[i].right);
        assert_int_equal(listen_to[i].got, say[i].bytes);
    }
    for (i = 0; i < 2 * PAIRS; i++) close(say[i].fd);
    assert_true(ddp__relay_bytes(relay) >= (int64_t)PAIRS * BYTES);
    ddp__relay_close(relay);
}

static void closed_end_still_receives(void **state)
{
    ddp__relay *relay = NULL;
    char c[8] = "";
    int a, b;
    (void)state;

    assert_int_equal(ddp__relay_open(&relay, NULL), DDP_OK);
    join_two(relay, &a, &b);
    assert_int_equal(ddp__stream_send_all(NULL, a, "last", 4, ddp_now() + 60), 0);
    shutdown(a, SHUT_WR);
    assert_int_equal(ddp__stream_recv_all(NULL, b, c, 4, NULL, ddp_now() + 60), 0);
    assert_memory_equal(c, "last", 4);
    assert_int_equal(ddp__stream_recv_all(NULL, b, c, 1, NULL, ddp_now() + 60), -1);
    assert_int_equal(errno, ECONNRESET); /* the end */
    assert_int_equal(ddp__stream_send_all(NULL, b, "back", 4, ddp_now() + 60), 0);
    assert_int_equal(ddp__stream_recv_all(NULL, a, c, 4, NULL, ddp_now() + 60), 0);
    assert_memory_equal(c, "back", 4);
    close(a);
    close(b);
    ddp__relay_close(relay);
}

static double seconds_to_close(ddp__relay *relay)
{
    double begin = ddp_now();

    ddp__relay_close(relay);
    return ddp_now() - begin;
}

/* The relay waits for the last bytes of a silent pair. */
static double seconds_to_close_a_silent_pair(void)
{
    ddp__relay *relay = NULL;
    double took;
    int a, b;

    assert_int_equal(ddp__relay_open(&relay, NULL), DDP_OK);
    join_two(relay, &a, &b);
    took = seconds_to_close(relay);
    close(a);
    close(b);
    assert_true(took > 0.5);
    return took;
}

static void broken_end_closes_the_other(void **state)
{
    static char much[1 << 20];
    ddp__relay *relay = NULL;
    struct linger now;
    char c;
    int a, b;
    (void)state;

    assert_int_equal(ddp__relay_open(&relay, NULL), DDP_OK);
    join_two(relay, &a, &b);
    now.l_onoff = 1;
    now.l_linger = 0;
    setsockopt(a, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(a); /* a reset */
    assert_int_equal(ddp__stream_recv_all(NULL, b, &c, 1, NULL, ddp_now() + 60), -1);
    assert_int_not_equal(errno, ETIMEDOUT);
    ddp__stream_send_all(NULL, b, much, sizeof much, ddp_now() + 60); /* no other end delays this one */
    close(b);
    ddp__sleep_until(ddp_now() + 0.2);
    /* the pair has ended: the relay does not wait for its last bytes */
    assert_true(seconds_to_close(relay) < seconds_to_close_a_silent_pair());
}

/* The relay waits for last bytes, but not for silent pairs. */
static void closing_waits_only_for_last_bytes(void **state)
{
    static talker t, u;
    ddp__relay *relay = NULL;
    const double silent = seconds_to_close_a_silent_pair();
    (void)state;

    assert_int_equal(ddp__relay_open(&relay, NULL), DDP_OK);
    join_two(relay, &t.fd, &u.fd);
    t.bytes = 400000;
    u.slow = 1;
    assert_int_equal(pthread_create(&t.thread, NULL, talk, &t), 0);
    assert_int_equal(pthread_create(&u.thread, NULL, hear, &u), 0);
    ddp__relay_close(relay);
    pthread_join(t.thread, NULL);
    pthread_join(u.thread, NULL);
    assert_int_equal(u.got, 400000);
    close(t.fd);
    close(u.fd);

    assert_int_equal(ddp__relay_open(&relay, NULL), DDP_OK);
    assert_true(seconds_to_close(relay) < silent); /* no pair is left */
    ddp__relay_close(NULL);
}

/* Rank 0 is behind NAT too: rank 2 relays between it and rank 1, and must notify it. */
static void relay_names_the_rank_that_has_not_asked(void **state)
{
    ddp__tcp_config c;
    ddp__pairs pairs;
    ddp__hello h;
    int mine, asks[2], other;
    (void)state;

    memset(&c, 0, sizeof c);
    memset(&pairs, 0, sizeof pairs);
    memset(&h, 0, sizeof h);
    c.rank = 2;
    pairs.c = &c;
    for (int k = 0; k < 2; k++) {
        connect_two(&asks[k], &mine);
        h.rank = (uint32_t)(1 - k);
        h.detail = (uint32_t)k;
        assert_int_equal(ddp__pairs_take(&pairs, &h, mine, &other, NULL), DDP_OK);
        assert_int_equal(other, k ? -1 : 0); /* first rank 1 has requested rank 0, then both have */
    }
    for (int k = 0; k < 2; k++) close(asks[k]);
    ddp__relay_close(c.relay);
    ddp__pairs_close(&pairs);
}

/* ---- rendezvous ---- */

typedef struct lines {
    pthread_mutex_t lock;
    char text[4000];
} lines;

static void keep_lines(void *user, ddp_log_level level, const char *line)
{
    lines *l = (lines *)user;
    size_t n;

    if (level != DDP_LOG_WARN) return;
    pthread_mutex_lock(&l->lock);
    n = strlen(l->text);
    snprintf(l->text + n, sizeof l->text - n, "%s\n", line);
    pthread_mutex_unlock(&l->lock);
}

static void listen_in(meet_rank *m, int count, lines *l)
{
    int r;

    memset(l, 0, sizeof *l);
    pthread_mutex_init(&l->lock, NULL);
    for (r = 0; r < count; r++) {
        m[r].how.wire.log.fn = keep_lines;
        m[r].how.wire.log.user = l;
        m[r].how.wire.log.level = DDP_LOG_WARN;
    }
}

static void pairs_that_cannot_connect_are_relayed(void **state)
{
    meet_rank m[MEET_MAX];
    char addr[DDP__ADDR_TEXT], line[100];
    lines log;
    int mask, a, b;
    (void)state;

    for (mask = 2; mask < 32; mask += 10) { /* which ranks cannot dial: 1; 2 3; 1 2 4 */
        static const char *const name[2] = {"127.0.0.1:", "via rank 0 at 127.0.0.1:"};
        meet_prepare(m, MEET_MAX, meet_listen(addr), addr);
        for (a = 1; a < MEET_MAX; a++) m[a].how.relay_all = mask >> a & 1;
        listen_in(m, MEET_MAX, &log);
        meet_start(m, MEET_MAX);
        meet_join(m, MEET_MAX);
        for (a = 0; a < MEET_MAX; a++) assert_says(&m[a], DDP_OK, "");
        for (a = 0; a < MEET_MAX; a++) {
            for (b = 0; b < MEET_MAX; b++) {
                int high = a > b ? a : b, want = a && b && (mask >> high & 1);
                const char *text;
                if (a == b) continue;
                text = m[a].wire->names[b];
                assert_memory_equal(text, name[want], strlen(name[want]));
                if (a > b || !want) continue;
                snprintf(line, sizeof line, "ranks %d and %d cannot connect directly: rank 0 relays", a, b);
                assert_non_null(strstr(log.text, line));
                snprintf(line, sizeof line, "rank %d cannot connect to rank %d at 127.0.0.1:", b, a);
                assert_non_null(strstr(log.text, line));
            }
        }
        assert_pairs_are_right(m, MEET_MAX);
        assert_all_met(m, MEET_MAX);
        pthread_mutex_destroy(&log.lock);
    }
}

/* Rank 0's wire closes first, as it may; the others still receive each other's bytes. */
static void rank_0_stays_until_a_pair_has_its_last_bytes(void **state)
{
    meet_rank m[3];
    char addr[DDP__ADDR_TEXT], c = 0;
    struct iovec iov;
    double end;
    int r;
    (void)state;

    meet_prepare(m, 3, meet_listen(addr), addr);
    m[2].how.relay_all = 1;
    meet_start(m, 3);
    meet_join(m, 3);
    for (r = 0; r < 3; r++) assert_says(&m[r], DDP_OK, "");
    iov.iov_base = (void *)(uintptr_t) "x";
    iov.iov_len = 1;
    assert_int_equal(m[1].wire->table->send(m[1].wire, 2, &iov, 1), 1);
    m[0].wire->table->close(m[0].wire);
    end = ddp_now() + 60;
    while (m[2].wire->table->recv(m[2].wire, 1, &c, 1) == 0 && ddp_now() < end) {
    }
    assert_int_equal(c, 'x');
    m[1].wire->table->close(m[1].wire);
    m[2].wire->table->close(m[2].wire);
}

/* A simulated rank 1: sends its listening address, and answers rank 0's request. */
typedef struct puppet {
    ddp__hello self;
    ddp__addr root;
    int control, relayed;
    double took;
} puppet;

static ddp__hello puppet_hears(int fd)
{
    unsigned char b[DDP__HELLO_BYTES];
    ddp__hello h;

    assert_int_equal(ddp__stream_recv_all(NULL, fd, b, sizeof b, NULL, ddp_now() + 60), 0);
    assert_true(ddp__hello_parse(b, &h));
    return h;
}

static void puppet_says(const puppet *p, int fd, ddp__hello_kind kind, int detail)
{
    unsigned char b[DDP__HELLO_BYTES];

    ddp__hello_pack(&p->self, kind, DDP__WELCOME, detail, b);
    assert_int_equal(ddp__stream_send_all(NULL, fd, b, sizeof b, ddp_now() + 60), 0);
}

static void puppet_plays(puppet *p, const char *addr, const char *listens)
{
    unsigned char table[3 * 24];
    ddp__addr own;
    ddp__hello h;
    double begin;
    int count;

    memset(p, 0, sizeof *p);
    p->self.version = DDP__PROTOCOL;
    p->self.run_id = 7;
    p->self.rank = 1;
    p->self.world = 3;
    assert_int_equal(ddp__addr_parse(listens, &own, 1, &count, NULL), DDP_OK);
    p->self.family = ddp__ip_pack(&own, p->self.ip);
    p->self.port = (uint32_t)ddp__addr_port(&own);
    assert_int_equal(ddp__addr_parse(addr, &p->root, 1, &count, NULL), DDP_OK);
    p->control = ddp__tcp_dial(&p->root, ddp_now() + 60);
    assert_true(p->control >= 0);
    puppet_says(p, p->control, DDP__HELLO, 0);
    assert_int_equal(puppet_hears(p->control).kind, DDP__HELLO);
    assert_int_equal(puppet_hears(p->control).kind, DDP__TABLE);
    assert_int_equal(ddp__stream_recv_all(NULL, p->control, table, sizeof table, NULL, ddp_now() + 60), 0);
    begin = ddp_now();
    h = puppet_hears(p->control);
    p->took = ddp_now() - begin;
    assert_int_equal(h.kind, DDP__RELAY);
    assert_int_equal(h.detail, 2);
    p->relayed = ddp__tcp_dial(&p->root, ddp_now() + 60);
    assert_true(p->relayed >= 0);
    puppet_says(p, p->relayed, DDP__RELAY, 2);
    h = puppet_hears(p->relayed);
    assert_int_equal(h.kind, DDP__RELAY);
    assert_int_equal(h.detail, 2);
    puppet_says(p, p->control, DDP__READY, 0);
    assert_int_equal(puppet_hears(p->control).kind, DDP__GO);
}

/* Rank 2 is real and cannot connect to the address of rank 1: no process listens, or one that never answers.
 * */
static void failed_direct_attempt_falls_back_to_the_relay(void **state)
{
    double took[2];
    int silent;
    (void)state;

    for (silent = 0; silent < 2; silent++) {
        meet_rank m[3];
        char addr[DDP__ADDR_TEXT], where[DDP__ADDR_TEXT], c = 0;
        int listener = meet_listen(where);
        struct iovec iov;
        puppet p;

        if (!silent) close(listener);
        meet_prepare(m, 3, meet_listen(addr), addr);
        meet_start(m, 1);
        meet_start(m + 2, 1);
        puppet_plays(&p, addr, where);
        took[silent] = p.took;
        meet_join(m, 1);
        meet_join(m + 2, 1);
        assert_says(&m[0], DDP_OK, "");
        assert_says(&m[2], DDP_OK, "");
        assert_true(!strncmp(m[2].wire->names[1], "via ", 4));
        iov.iov_base = (void *)(uintptr_t) "y";
        iov.iov_len = 1;
        assert_int_equal(m[2].wire->table->send(m[2].wire, 1, &iov, 1), 1);
        assert_int_equal(ddp__stream_recv_all(NULL, p.relayed, &c, 1, NULL, ddp_now() + 60), 0);
        assert_int_equal(c, 'y');
        close(p.control);
        close(p.relayed);
        if (silent) close(listener);
        m[2].wire->table->close(m[2].wire);
        m[0].wire->table->close(m[0].wire);
    }
    assert_true(took[1] > 2.5 && took[0] < took[1]); /* a refused connection is not waited for */
}

/* A rank fails while its partner waits for it at rank 0. */
static void death_in_a_relayed_pair_ends_the_rendezvous(void **state)
{
    meet_rank m[3];
    char addr[DDP__ADDR_TEXT], where[DDP__ADDR_TEXT];
    ddp__hello h;
    unsigned char table[3 * 24];
    puppet p;
    int count;
    (void)state;

    meet_unused(where);
    meet_prepare(m, 3, meet_listen(addr), addr);
    meet_start(m, 1);
    meet_start(m + 2, 1);
    memset(&p, 0, sizeof p);
    p.self.version = DDP__PROTOCOL;
    p.self.run_id = 7;
    p.self.rank = 1;
    p.self.world = 3;
    p.self.port = 1; /* no family: the address that it connected from, at which no process listens */
    assert_int_equal(ddp__addr_parse(addr, &p.root, 1, &count, NULL), DDP_OK);
    p.control = ddp__tcp_dial(&p.root, ddp_now() + 60);
    puppet_says(&p, p.control, DDP__HELLO, 0);
    assert_int_equal(puppet_hears(p.control).kind, DDP__HELLO);
    assert_int_equal(puppet_hears(p.control).kind, DDP__TABLE);
    assert_int_equal(ddp__stream_recv_all(NULL, p.control, table, sizeof table, NULL, ddp_now() + 60), 0);
    h = puppet_hears(p.control);
    assert_int_equal(h.kind, DDP__RELAY);
    close(p.control);
    meet_join(m, 1);
    meet_join(m + 2, 1);
    assert_says(&m[0], DDP_PEER_LOST, "rank 1 disconnected");
    assert_says(&m[2], DDP_PEER_LOST, "rank 1 disconnected");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_relayed_unchanged_in_both_directions),
        cmocka_unit_test(closed_end_still_receives),
        cmocka_unit_test(broken_end_closes_the_other),
        cmocka_unit_test(closing_waits_only_for_last_bytes),
        cmocka_unit_test(relay_names_the_rank_that_has_not_asked),
        cmocka_unit_test(pairs_that_cannot_connect_are_relayed),
        cmocka_unit_test(rank_0_stays_until_a_pair_has_its_last_bytes),
        cmocka_unit_test(failed_direct_attempt_falls_back_to_the_relay),
        cmocka_unit_test(death_in_a_relayed_pair_ends_the_rendezvous),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
