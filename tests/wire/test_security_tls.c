/* [test-all: needs OpenSSL] Rendezvous and wires with TLS, and the clients that must be refused. */
#ifndef DDP_USE_OPENSSL
#include <stdio.h>

int main(void)
{
    puts("skipped: built without OpenSSL");
    return 77;
}
#else
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
#include "wire/log_lab.h"
#include "wire/tls_lab.h"

/* ---- ranks of one run ---- */

/* Ranks 0..world-1 of one run with the key, or with the certificates rank-R. */
static void secure(meet_rank *m, int world, int by_key)
{
    char name[24];
    int r;

    for (r = 0; r < world; r++) {
        snprintf(name, sizeof name, "rank-%d", r);
        m[r].how.wire.tls = by_key ? lab_open("run.key", NULL, NULL, 7) : lab_open(NULL, "ca", name, 7);
    }
}

static void close_all(meet_rank *m, int world)
{
    int r;

    for (r = 0; r < world; r++) {
        if (m[r].wire) m[r].wire->table->close(m[r].wire);
        ddp__tls_free(m[r].how.wire.tls);
    }
}

typedef struct talk {
    ddp__wire *wire;
    size_t bytes;
    int wrong;
} talk;

static unsigned char talk_byte(int rank, size_t i)
{
    return (unsigned char)(i * 7 + i / 251 + (size_t)rank * 101);
}

/* Sends `bytes` to every peer and reads as many from each, in odd pieces, without blocking on one. */
static void *talk_run(void *arg)
{
    talk *t = (talk *)arg;
    ddp__wire *w = t->wire;
    size_t sent[MEET_MAX] = {0}, got[MEET_MAX] = {0};
    unsigned char out[70001], in[40009], send_to[MEET_MAX], recv_from[MEET_MAX];
    double end = ddp_now() + 100;
    int busy = 1, p;

    while (busy && !t->wrong && ddp_now() < end) {
        busy = 0;
        for (p = 0; p < w->world; p++) {
            struct iovec iov[2];
            size_t n = t->bytes - sent[p], i;
            long did;
            send_to[p] = recv_from[p] = 0;
            if (p == w->rank) continue;
            if (n > sizeof out) n = sizeof out;
            for (i = 0; i < n; i++) out[i] = talk_byte(w->rank, sent[p] + i);
            iov[0].iov_base = out;
            iov[0].iov_len = n / 3;
            iov[1].iov_base = out + n / 3;
            iov[1].iov_len = n - n / 3;
            did = n ? w->table->send(w, p, iov, 2) : 0;
            if (did < 0)
                t->wrong = __LINE__;
            else
                sent[p] += (size_t)did;
            n = t->bytes - got[p] > sizeof in ? sizeof in : t->bytes - got[p];
            did = n ? w->table->recv(w, p, in, n) : 0;
            if (did < 0) t->wrong = __LINE__;
            for (i = 0; did > 0 && i < (size_t)did; i++)
                if (in[i] != talk_byte(p, got[p] + i)) t->wrong = __LINE__;
            if (did > 0) got[p] += (size_t)did;
            send_to[p] = sent[p] < t->bytes;
            recv_from[p] = got[p] < t->bytes;
            busy |= send_to[p] | recv_from[p];
        }
        if (busy) w->table->wait(w, send_to, recv_from, ddp_now() + 1);
    }
    if (busy && !t->wrong) t->wrong = __LINE__;
    return NULL;
}

static void assert_all_hear_each_other(meet_rank *m, int world, size_t bytes)
{
    pthread_t thread[MEET_MAX];
    talk t[MEET_MAX];
    int r;

    for (r = 0; r < world; r++) {
        assert_says(&m[r], DDP_OK, "");
        t[r].wire = m[r].wire;
        t[r].bytes = bytes;
        t[r].wrong = 0;
        pthread_create(&thread[r], NULL, talk_run, &t[r]);
    }
    for (r = 0; r < world; r++) pthread_join(thread[r], NULL);
    for (r = 0; r < world; r++)
        if (t[r].wrong) fail_msg("rank %d failed in line %d", r, t[r].wrong);
}

static void ranks_with_the_same_key_connect(void **state)
{
    meet_rank m[MEET_MAX];
    char addr[DDP__ADDR_TEXT];
    int world;
    (void)state;
    for (world = 2; world <= 4; world++) {
        meet_prepare(m, world, meet_listen(addr), addr);
        secure(m, world, 1);
        meet_start(m, world);
        meet_join(m, world);
        assert_all_hear_each_other(m, world, 3000001); /* more than the socket buffers hold */
        close_all(m, world);
    }
}

static void ranks_with_certificates_connect(void **state)
{
    meet_rank m[3];
    char addr[DDP__ADDR_TEXT];
    (void)state;
    meet_prepare(m, 3, meet_listen(addr), addr);
    secure(m, 3, 0);
    meet_start(m, 3);
    meet_join(m, 3);
    assert_all_hear_each_other(m, 3, 100003);
    close_all(m, 3);
}

static void relayed_pair_has_an_end_to_end_session(void **state)
{
    meet_rank m[3];
    char addr[DDP__ADDR_TEXT];
    int by_key, r;
    (void)state;
    for (by_key = 0; by_key < 2; by_key++) {
        meet_prepare(m, 3, meet_listen(addr), addr);
        secure(m, 3, by_key);
        for (r = 0; r < 3; r++) m[r].how.relay_all = 1;
        meet_start(m, 3);
        meet_join(m, 3);
        assert_says(&m[1], DDP_OK, "");
        assert_true(!strncmp(m[1].wire->names[2], "via ", 4));
        assert_all_hear_each_other(m, 3, 300007);
        close_all(m, 3);
    }
}

/* Two ends of one connection, client and server. */
static void pair_of_sockets(int *fd)
{
    char addr[DDP__ADDR_TEXT];
    ddp__addr at;
    int listener = meet_listen(addr), count;

    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    fd[0] = ddp__tcp_dial(&at, ddp_now() + 60);
    assert_true(fd[0] >= 0 && ddp__fd_wait(listener, POLLIN, ddp_now() + 60));
    fd[1] = ddp__tcp_accept(listener, NULL);
    assert_true(fd[1] >= 0);
    close(listener);
}

static void no_plain_text_is_sent(void **state)
{
    static const char secret[] = "attack at dawn, attack at dawn";
    ddp__tls *a = lab_open("run.key", NULL, NULL, 7), *b = lab_open("run.key", NULL, NULL, 7);
    struct iovec iov;
    char raw[4096], seen[64];
    int fd[2], i, done = 0;
    ssize_t n;
    size_t at;
    (void)state;

    pair_of_sockets(fd);
    iov.iov_base = (void *)(uintptr_t)secret;
    iov.iov_len = sizeof secret;
    /* without a session nothing is sent */
    assert_int_equal(ddp__stream_send(a, fd[0], &iov, 1), -1);
    assert_int_equal(errno, EPROTO);
    assert_int_equal(ddp__stream_begin(a, fd[0], 0), 0);
    assert_int_equal(ddp__stream_begin(b, fd[1], 1), 0);
    for (i = 0; i < 200 && done != 2; i++) {
        done = (ddp__stream_shake(a, fd[0]) == 1) + (ddp__stream_shake(b, fd[1]) == 1);
        ddp__sleep_until(ddp_now() + 0.005);
    }
    assert_int_equal(done, 2);
    assert_int_equal(ddp__stream_send(a, fd[0], &iov, 1), (long)sizeof secret);
    assert_true(ddp__fd_wait(fd[1], POLLIN, ddp_now() + 60));
    n = recv(fd[1], raw, sizeof raw, MSG_PEEK);
    assert_true(n > (ssize_t)sizeof secret);
    for (at = 0; at + 6 <= (size_t)n; at++) assert_int_not_equal(memcmp(raw + at, "attack", 6), 0);
    assert_int_equal(ddp__stream_recv_all(b, fd[1], seen, sizeof secret, NULL, ddp_now() + 60), 0);
    assert_string_equal(seen, secret);
    ddp__stream_close(a, fd[0]);
    assert_int_equal(ddp__stream_recv_all(b, fd[1], seen, 1, NULL, ddp_now() + 60), -1);
    assert_int_equal(errno, ECONNRESET);
    ddp__stream_close(b, fd[1]);
    ddp__tls_free(a);
    ddp__tls_free(b);
}

static void shake_both(ddp__tls *a, ddp__tls *b, const int *fd)
{
    int i, done = 0;

    assert_int_equal(ddp__stream_begin(a, fd[0], 0), 0);
    assert_int_equal(ddp__stream_begin(b, fd[1], 1), 0);
    for (i = 0; i < 400 && done != 2; i++) {
        done = (ddp__stream_shake(a, fd[0]) == 1) + (ddp__stream_shake(b, fd[1]) == 1);
        ddp__sleep_until(ddp_now() + 0.002);
    }
    assert_int_equal(done, 2);
}

/* Which certificates may join a run, and with which id. */
static void certificate_determines_the_id_of_a_joining_worker(void **state)
{
    static const struct {
        const char *cert;
        int may, id;
        const char *name;
    } cases[] = {
        {"rank-1", 1, 1, ""},        {"rank-2", 1, 2, ""},
        {"join-5", 1, -1, "join-5"}, {"join-b", 1, -1, "join-b.7"},
        {"host", 0, -1, ""},         {"star", 0, -1, ""},
        {NULL, 1, -1, ""},
    };
    char name[DDP__STREAM_NAME], why[DDP__STREAM_TEXT];
    size_t i;
    int fd[2], id;
    (void)state;

    assert_int_equal(ddp__stream_may_join(NULL, 3, &id, name, why), 1);
    assert_int_equal(id, -1);
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int by_key = !cases[i].cert;
        ddp__tls *a = by_key ? lab_open("run.key", NULL, NULL, 7) : lab_open(NULL, "ca", cases[i].cert, 7);
        ddp__tls *b = by_key ? lab_open("run.key", NULL, NULL, 7) : lab_open(NULL, "ca", "rank-0", 7);
        pair_of_sockets(fd);
        assert_int_equal(ddp__stream_may_join(b, fd[1], &id, name, why), 0); /* no handshake yet */
        shake_both(a, b, fd);
        why[0] = 0;
        assert_int_equal(ddp__stream_may_join(b, fd[1], &id, name, why), cases[i].may);
        assert_int_equal(id, cases[i].id);
        assert_string_equal(name, cases[i].name);
        if (!cases[i].may) assert_non_null(strstr(why, "does not name a rank-R or join-NAME"));
        ddp__stream_close(a, fd[0]);
        ddp__stream_close(b, fd[1]);
        ddp__tls_free(a);
        ddp__tls_free(b);
    }
}

typedef struct parted {
    ddp__tls *tls;
    int fd, bad;
} parted;

static void *answer_alone(void *arg)
{
    parted *p = (parted *)arg;
    char text[6] = "";

    p->bad = ddp__stream_recv_all(p->tls, p->fd, text, 5, NULL, ddp_now() + 60);
    if (!p->bad && strcmp(text, "hello")) p->bad = 1;
    if (!p->bad) p->bad = ddp__stream_send_all(p->tls, p->fd, "there", 5, ddp_now() + 60);
    ddp__stream_close(p->tls, p->fd);
    return NULL;
}

/* A session that is moved to another thread, while its first owner serves others. */
static void session_can_be_moved_to_another_thread(void **state)
{
    ddp__tls *a = lab_open("run.key", NULL, NULL, 7), *b = lab_open("run.key", NULL, NULL, 7);
    int one[2], two[2];
    char text[6] = "";
    pthread_t thread;
    parted p;
    (void)state;

    pair_of_sockets(one);
    pair_of_sockets(two);
    shake_both(a, b, one);
    memset(&p, 0, sizeof p);
    p.fd = one[1];
    assert_int_equal(ddp__stream_part(b, one[1], &p.tls), 0);
    assert_non_null(p.tls);
    assert_int_equal(pthread_create(&thread, NULL, answer_alone, &p), 0);
    assert_int_equal(ddp__stream_send_all(a, one[0], "hello", 5, ddp_now() + 60), 0);
    shake_both(a, b, two);
    assert_int_equal(ddp__stream_recv_all(a, one[0], text, 5, NULL, ddp_now() + 60), 0);
    assert_string_equal(text, "there");
    pthread_join(thread, NULL);
    assert_int_equal(p.bad, 0);
    ddp__tls_free(p.tls);
    assert_int_equal(ddp__stream_part(NULL, 3, &p.tls), 0);
    assert_null(p.tls);
    ddp__stream_close(a, one[0]);
    ddp__stream_close(a, two[0]);
    ddp__stream_close(b, two[1]);
    ddp__tls_free(a);
    ddp__tls_free(b);
}

/* One bit of a record is changed in transit. */
static void changed_byte_ends_the_connection(void **state)
{
    ddp__tls *a = lab_open("run.key", NULL, NULL, 7), *b = lab_open("run.key", NULL, NULL, 7);
    int left[2], right[2], i, done = 0;
    struct iovec iov;
    char raw[4096];
    ssize_t n;
    (void)state;

    pair_of_sockets(left);  /* a - middle */
    pair_of_sockets(right); /* middle - b */
    assert_int_equal(ddp__stream_begin(a, left[0], 0), 0);
    assert_int_equal(ddp__stream_begin(b, right[1], 1), 0);
    for (i = 0; i < 400 && done != 2; i++) {
        done = (ddp__stream_shake(a, left[0]) == 1) + (ddp__stream_shake(b, right[1]) == 1);
        n = recv(left[1], raw, sizeof raw, 0);
        if (n > 0) assert_int_equal(send(right[0], raw, (size_t)n, 0), n);
        n = recv(right[0], raw, sizeof raw, 0);
        if (n > 0) assert_int_equal(send(left[1], raw, (size_t)n, 0), n);
        ddp__sleep_until(ddp_now() + 0.002);
    }
    assert_int_equal(done, 2);
    iov.iov_base = raw + 2000;
    iov.iov_len = 100;
    memset(raw, 'x', sizeof raw);
    assert_int_equal(ddp__stream_send(a, left[0], &iov, 1), 100);
    assert_true(ddp__fd_wait(left[1], POLLIN, ddp_now() + 60));
    n = recv(left[1], raw, sizeof raw, 0);
    assert_true(n > 100);
    raw[60] ^= 1;
    assert_int_equal(send(right[0], raw, (size_t)n, 0), n);
    assert_int_equal(ddp__stream_recv_all(b, right[1], raw, 1, NULL, ddp_now() + 60), -1);
    assert_int_equal(errno, EPROTO);
    assert_non_null(ddp__stream_why(b, right[1]));
    ddp__stream_close(a, left[0]);
    ddp__stream_close(b, right[1]);
    close(left[1]);
    close(right[0]);
    ddp__tls_free(a);
    ddp__tls_free(b);
}

/* ---- unknown clients ---- */

enum { STAYS = 60 }; /* seconds until a client gives up; rank 0 disconnects it after 5 */

/* An unknown client: connects, optionally completes a handshake with tls, sends `first` and, as rank 1 of 2
 * in run `run`, its hello. seconds: until rank 0 has disconnected; `why` receives the TLS error. */
typedef struct stranger {
    const char *addr, *first;
    size_t bytes;
    double pace; /* in seconds: between the bytes of `first` */
    ddp__tls *tls;
    int greets, rank;
    uint64_t run;
    double seconds;
    char why[DDP__STREAM_TEXT];
    int answer; /* reason of the refusal in a frame, -1: none */
    pthread_t thread;
} stranger;

static void *stranger_run(void *arg)
{
    stranger *s = (stranger *)arg;
    unsigned char b[DDP__HELLO_BYTES];
    ddp__hello self, h;
    ddp__addr at;
    double begin;
    size_t i;
    int fd, count, bad = 0;

    if (ddp__addr_parse(s->addr, &at, 1, &count, NULL)) return NULL;
    s->answer = -1;
    s->seconds = 99;
    fd = ddp__tcp_dial(&at, ddp_now() + 60);
    if (fd < 0) return NULL;
    begin = ddp_now();
    if (s->tls && ddp__stream_begin(s->tls, fd, 0) < 0) return NULL;
    if (s->tls) bad = ddp__stream_greet(s->tls, fd, begin + STAYS);
    for (i = 0; !bad && i < s->bytes && ddp_now() < begin + STAYS; i++) {
        bad = ddp__stream_send_all(NULL, fd, s->first + i, 1, begin + STAYS);
        if (s->pace > 0 && ddp__fd_wait(fd, POLLIN, ddp_now() + s->pace)) bad = 1;
    }
    if (!bad && s->greets) {
        memset(&self, 0, sizeof self);
        self.version = DDP__PROTOCOL;
        self.run_id = s->run;
        self.rank = (uint32_t)s->rank;
        self.world = 2;
        ddp__hello_pack(&self, DDP__HELLO, DDP__WELCOME, 0, b);
        bad = ddp__stream_send_all(s->tls, fd, b, sizeof b, begin + STAYS);
    }
    while (!bad) {
        bad = ddp__stream_recv_all(s->tls, fd, b, sizeof b, NULL, begin + STAYS);
        if (!bad && ddp__hello_parse(b, &h) && h.kind == DDP__REFUSED) s->answer = (int)h.reason;
    }
    s->seconds = ddp_now() - begin;
    if (ddp__stream_why(s->tls, fd)) snprintf(s->why, sizeof s->why, "%s", ddp__stream_why(s->tls, fd));
    ddp__stream_close(s->tls, fd);
    return NULL;
}

static stranger *stranger_start(stranger *s, const char *addr, ddp__tls *tls)
{
    memset(s, 0, sizeof *s);
    s->addr = addr;
    s->tls = tls;
    s->run = 7;
    s->rank = 1;
    return s;
}

static void strangers_run(stranger *s, int count)
{
    int i;
    for (i = 0; i < count; i++) pthread_create(&s[i].thread, NULL, stranger_run, &s[i]);
}

static void strangers_leave(stranger *s, int count)
{
    int i;
    for (i = 0; i < count; i++) {
        pthread_join(s[i].thread, NULL);
        ddp__tls_free(s[i].tls);
        if (s[i].seconds >= STAYS) fail_msg("rank 0 has not disconnected client %d", i);
    }
}

static void assert_logged(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("no '%s' in the log:\n%s", part, text);
}

/* Bytes that look like the start of a TLS handshake, sent slowly. */
static const char trickle[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";

static void clients_without_the_key_are_refused(void **state)
{
    meet_rank m[2];
    stranger s[8];
    char addr[DDP__ADDR_TEXT], text[8000];
    (void)state;

    meet_prepare(m, 2, meet_listen(addr), addr);
    secure(m, 2, 1);
    listen_in(&m[0], text);
    stranger_start(&s[0], addr, NULL)->first = "GET / HTTP/1.1\r\n\r\n";
    s[0].bytes = 18;
    stranger_start(&s[1], addr, NULL)->first = "\x9f\x12\x00\xfe\x80\x31\x77\xaa\x03\x5c";
    s[1].bytes = 10;
    stranger_start(&s[2], addr, NULL)->first = trickle;
    s[2].bytes = sizeof trickle - 1;
    s[2].pace = 1;
    stranger_start(&s[3], addr, NULL)->greets = 1; /* a dreamddp rank without TLS */
    stranger_start(&s[4], addr, lab_open("other.key", NULL, NULL, 7))->greets = 1;
    stranger_start(&s[5], addr, lab_open("run.key", NULL, NULL, 8))->greets = 1;
    stranger_start(&s[6], addr, lab_open(NULL, "ca", "rank-1", 7))->greets = 1;
    stranger_start(&s[7], addr, lab_open("run.key", NULL, NULL, 7))->greets = 1;
    s[7].run = 9; /* a client with the key may still belong to another run */
    m[0].how.world = m[1].how.world = 2;
    meet_start(m, 1);
    strangers_run(s, 8);
    strangers_leave(s, 2); /* the other clients first, except the slow one */
    strangers_leave(s + 3, 5);
    meet_start(m + 1, 1);
    meet_join(m, 2);
    strangers_leave(s + 2, 1);
    assert_all_hear_each_other(m, 2, 20011);
    close_all(m, 2);
    assert_logged(text, "does not speak TLS");
    assert_logged(text, "is a rank without TLS: give it --tls-psk or certificates too");
    assert_logged(text, "has a different pre-shared key");
    assert_logged(text, "belongs to another run: give every rank the same DREAMDDP_RUN_ID");
    assert_logged(text, "belongs to run 9, but rank 0 to run 7");
    assert_logged(text, "broke the TLS handshake");
    assert_non_null(strstr(s[4].why, "has a different pre-shared key"));
    assert_non_null(strstr(s[5].why, "belongs to another run or uses certificates"));
    assert_int_equal(s[7].answer, DDP__REFUSE_RUN);
    assert_null(strstr(text, "6b1d4f0c")); /* the key */
}

static void slow_handshake_is_dropped_and_delays_no_rank(void **state)
{
    enum { SLOW = 100 };
    static stranger s[SLOW];
    meet_rank m[2];
    char addr[DDP__ADDR_TEXT];
    int i;
    (void)state;

    meet_prepare(m, 2, meet_listen(addr), addr);
    secure(m, 2, 1);
    for (i = 0; i < SLOW; i++) {
        stranger_start(&s[i], addr, NULL)->first = trickle;
        s[i].bytes = sizeof trickle - 1;
        s[i].pace = 1;
    }
    meet_start(m, 1);
    strangers_run(s, SLOW);
    ddp__sleep_until(ddp_now() + 0.3);
    meet_start(m + 1, 1);
    meet_join(m, 2); /* within its time-out */
    strangers_leave(s, SLOW);
    assert_all_hear_each_other(m, 2, 20011);
    close_all(m, 2);
}

static void lone_slow_handshake_ends_after_five_seconds(void **state)
{
    meet_rank m[2];
    stranger s;
    char addr[DDP__ADDR_TEXT], text[8000];
    (void)state;

    meet_prepare(m, 2, meet_listen(addr), addr);
    secure(m, 2, 1);
    listen_in(&m[0], text);
    stranger_start(&s, addr, NULL)->first = trickle;
    s.bytes = sizeof trickle - 1;
    s.pace = 1;
    meet_start(m, 1);
    strangers_run(&s, 1);
    strangers_leave(&s, 1);
    meet_start(m + 1, 1);
    meet_join(m, 2);
    assert_true(s.seconds > 4.5);
    assert_logged(text, "no hello within 5");
    assert_all_hear_each_other(m, 2, 20011);
    close_all(m, 2);
}

/* Hundreds of clients that disconnect at once, as port scanners do. */
static void flood_of_scanners_does_not_block_a_rank(void **state)
{
    meet_rank m[2];
    char addr[DDP__ADDR_TEXT], text[8000];
    ddp__addr at;
    int i, count;
    (void)state;

    meet_prepare(m, 2, meet_listen(addr), addr);
    secure(m, 2, 1);
    listen_in(&m[0], text);
    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    meet_start(m, 1);
    for (i = 0; i < 300; i++) {
        int fd = ddp__tcp_dial(&at, ddp_now() + 60);
        if (fd >= 0) close(fd);
    }
    meet_start(m + 1, 1);
    meet_join(m, 2);
    assert_all_hear_each_other(m, 2, 20011);
    close_all(m, 2);
    assert_logged(text, "disconnected before identifying itself");
}

static void invalid_certificates_are_refused(void **state)
{
    static const struct {
        const char *ca, *cert, *logged, *told;
    } cases[] = {
        {"ca", "expired", "has an invalid certificate: certificate has expired", "expired"},
        {"ca", "foreign", "has an invalid certificate: certificate signature failure",
         "refused our TLS handshake"},
        {"ca", "rank-0", "has a certificate of 'rank-0' that does not name rank-1", NULL},
        {"ca", "rank-2", "that does not name rank-1", NULL},
        {"ca", "star", "that does not name rank-1", NULL},
    };
    enum { CASES = sizeof cases / sizeof cases[0] };
    meet_rank m[2];
    stranger s[CASES + 1];
    char addr[DDP__ADDR_TEXT], text[8000];
    int i;
    (void)state;

    meet_prepare(m, 2, meet_listen(addr), addr);
    secure(m, 2, 0);
    listen_in(&m[0], text);
    meet_start(m, 1);
    for (i = 0; i < CASES; i++) {
        stranger_start(&s[i], addr, lab_open(NULL, cases[i].ca, cases[i].cert, 7))->greets = 1;
        strangers_run(&s[i], 1);
    }
    stranger_start(&s[CASES], addr, lab_open("run.key", NULL, NULL, 7))->greets = 1;
    strangers_run(&s[CASES], 1);
    strangers_leave(s, CASES + 1);
    meet_start(m + 1, 1);
    meet_join(m, 2);
    for (i = 0; i < CASES; i++) {
        assert_logged(text, cases[i].logged);
        if (cases[i].told && !strstr(s[i].why, cases[i].told))
            fail_msg("stranger %d heard '%s'", i, s[i].why);
        if (!cases[i].told) assert_int_equal(s[i].answer, DDP__REFUSE_NAME);
    }
    assert_logged(text, "refused our TLS handshake (unknown CA)"); /* the rank with a key */
    assert_all_hear_each_other(m, 2, 20011);
    close_all(m, 2);
}

/* A TLS client without a certificate: it must not read a single byte. */
static void plain_tls_client(const char *addr, int version)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    ddp__addr at;
    char c;
    int fd, count;

    SSL_set_min_proto_version(ssl, version);
    SSL_set_max_proto_version(ssl, version);
    assert_int_equal(ddp__addr_parse(addr, &at, 1, &count, NULL), DDP_OK);
    fd = ddp__tcp_dial(&at, ddp_now() + 60);
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_SETFL, 0), 0); /* blocking */
    SSL_set_fd(ssl, fd);
    if (SSL_connect(ssl) == 1) assert_true(SSL_read(ssl, &c, 1) <= 0);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
}

static void other_tls_clients_are_refused(void **state)
{
    meet_rank m[2];
    char addr[DDP__ADDR_TEXT], text[8000];
    (void)state;

    meet_prepare(m, 2, meet_listen(addr), addr);
    secure(m, 2, 0);
    listen_in(&m[0], text);
    meet_start(m, 1);
    plain_tls_client(addr, TLS1_3_VERSION);
    plain_tls_client(addr, TLS1_2_VERSION);
    meet_start(m + 1, 1);
    meet_join(m, 2);
    assert_all_hear_each_other(m, 2, 20011);
    close_all(m, 2);
    assert_logged(text, "has no certificate: give every rank --tls-cert and --tls-key");
    assert_logged(text, "unsupported protocol");
}

/* ---- the wrong rank 0 ---- */

static void meet_two(meet_rank *m, ddp__tls *root, ddp__tls *worker, char *text)
{
    char addr[DDP__ADDR_TEXT];

    meet_prepare(m, 2, meet_listen(addr), addr);
    m[0].how.wire.tls = root;
    m[1].how.wire.tls = worker;
    m[0].how.timeout_s = 2;
    m[1].how.timeout_s = 60;
    listen_in(&m[0], text);
    meet_start(m, 2);
    meet_join(m, 2);
    assert_int_equal(m[0].status, DDP_TIMEOUT);
    close_all(m, 2);
}

static void worker_rejects_an_untrusted_rank_0(void **state)
{
    char text[8000];
    meet_rank m[2];
    (void)state;

    meet_two(m, lab_open("other.key", NULL, NULL, 7), lab_open("run.key", NULL, NULL, 7), text);
    assert_says(&m[1], DDP_MISMATCH, "has a different pre-shared key");
    assert_says(&m[0], DDP_TIMEOUT, "last refused: ");
    assert_says(&m[0], DDP_TIMEOUT, "has a different pre-shared key");
    /* it has certificates that any TLS client may accept, but not the key */
    meet_two(m, lab_open(NULL, "ca", "rank-0", 7), lab_open("run.key", NULL, NULL, 7), text);
    assert_says(&m[1], DDP_MISMATCH, "uses a certificate, but this rank uses a pre-shared key");
    meet_two(m, lab_open(NULL, "ca", "rank-2", 7), lab_open(NULL, "ca", "rank-1", 7), text);
    assert_says(&m[1], DDP_MISMATCH, "that does not name rank-0");
    meet_two(m, lab_open(NULL, "ca", "expired", 7), lab_open(NULL, "ca", "rank-1", 7), text);
    assert_says(&m[1], DDP_MISMATCH, "certificate has expired");
    meet_two(m, lab_open(NULL, "ca", "foreign", 7), lab_open(NULL, "ca", "rank-1", 7), text);
    assert_says(&m[1], DDP_MISMATCH, "has an invalid certificate");
}

static void tls_and_plain_ranks_fail_on_both_sides(void **state)
{
    char text[8000];
    meet_rank m[2];
    (void)state;

    meet_two(m, NULL, lab_open("run.key", NULL, NULL, 7), text);
    assert_says(&m[1], DDP_MISMATCH, "does not support TLS 1.3");
    assert_logged(text, "uses TLS, but this rank does not");
    meet_two(m, lab_open("run.key", NULL, NULL, 7), NULL, text);
    assert_says(&m[1], DDP_MISMATCH, "uses TLS, but this rank does not: give it the same --tls-psk");
    assert_logged(text, "is a rank without TLS");
}

/* ---- files ---- */

static void invalid_key_files_fail_with_a_clear_error(void **state)
{
    struct {
        const char *psk, *ca, *cert, *key;
        ddp_status status;
        const char *part;
    } c[] = {
        {"none.key", NULL, NULL, NULL, DDP_IO, "none.key: No such file"},
        {"short.key", NULL, NULL, NULL, DDP_ARG, "has 31 bytes, but a pre-shared key needs at least 32"},
        {"long.key", NULL, NULL, NULL, DDP_ARG, "longer than 4096 bytes"},
        {"open.key", NULL, NULL, NULL, DDP_ARG, "other users can read this key (mode 0644)"},
        {"group.key", NULL, NULL, NULL, DDP_ARG, "other users can read this key (mode 0640)"},
        {"run.key", "ca.pem", "rank-0.pem", "rank-0.key", DDP_ARG, "cannot be used together"},
        {NULL, NULL, "rank-0.pem", "rank-0.key", DDP_ARG, "--tls-ca is missing"},
        {NULL, "ca.pem", NULL, "rank-0.key", DDP_ARG, "--tls-cert is missing"},
        {NULL, "ca.pem", "rank-0.pem", NULL, DDP_ARG, "--tls-key is missing"},
        {NULL, "none.pem", "rank-0.pem", "rank-0.key", DDP_IO, "none.pem: No such file"},
        {NULL, "ca.pem", "none.pem", "rank-0.key", DDP_IO, "none.pem: No such file"},
        {NULL, "ca.pem", "rank-0.pem", "none.key", DDP_IO, "none.key: No such file"},
        {NULL, "ca.pem", "run.key", "rank-0.key", DDP_FORMAT, "run.key: cannot read a certificate in PEM"},
        {NULL, "ca.pem", "rank-0.pem", "rank-1.key", DDP_ARG, "rank-1.key is not the key of"},
        {NULL, "ca.pem", "rank-0.pem", "run.key", DDP_FORMAT, "run.key: cannot read a private key in PEM"},
        {NULL, "ca.pem", "rank-0.pem", "open.key", DDP_ARG, "other users can read this key"},
    };
    char p[4][64];
    size_t i;
    (void)state;

    lab_write("short.key", "0123456789012345678901234567890 \n\n", 0600);
    lab_write("open.key", "01234567890123456789012345678901", 0644);
    lab_write("group.key", "01234567890123456789012345678901", 0640);
    {
        char big[4200];
        memset(big, 'k', sizeof big);
        big[sizeof big - 1] = 0;
        lab_write("long.key", big, 0600);
    }
    for (i = 0; i < sizeof c / sizeof c[0]; i++) {
        ddp__tls_files f;
        ddp__tls *t = NULL;
        ddp_error err;
        f.psk = c[i].psk ? lab_path(p[0], c[i].psk) : NULL;
        f.ca = c[i].ca ? lab_path(p[1], c[i].ca) : NULL;
        f.cert = c[i].cert ? lab_path(p[2], c[i].cert) : NULL;
        f.key = c[i].key ? lab_path(p[3], c[i].key) : NULL;
        memset(&err, 0, sizeof err);
        if (ddp__tls_open(&f, 7, &t, &err) != c[i].status || t || !strstr(err.msg, c[i].part))
            fail_msg("case %zu: %d '%s', expected '%s'", i, (int)err.code, err.msg, c[i].part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_with_the_same_key_connect),
        cmocka_unit_test(ranks_with_certificates_connect),
        cmocka_unit_test(relayed_pair_has_an_end_to_end_session),
        cmocka_unit_test(no_plain_text_is_sent),
        cmocka_unit_test(certificate_determines_the_id_of_a_joining_worker),
        cmocka_unit_test(session_can_be_moved_to_another_thread),
        cmocka_unit_test(changed_byte_ends_the_connection),
        cmocka_unit_test(clients_without_the_key_are_refused),
        cmocka_unit_test(slow_handshake_is_dropped_and_delays_no_rank),
        cmocka_unit_test(lone_slow_handshake_ends_after_five_seconds),
        cmocka_unit_test(flood_of_scanners_does_not_block_a_rank),
        cmocka_unit_test(invalid_certificates_are_refused),
        cmocka_unit_test(other_tls_clients_are_refused),
        cmocka_unit_test(worker_rejects_an_untrusted_rank_0),
        cmocka_unit_test(tls_and_plain_ranks_fail_on_both_sides),
        cmocka_unit_test(invalid_key_files_fail_with_a_clear_error),
    };
    return cmocka_run_group_tests(tests, lab_begin, lab_end);
}
#endif
