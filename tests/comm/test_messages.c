/* All forms of a message: bytes or floats, between lists of pieces, in place, to other memory or added to it,
 * received from any rank; and errors for corrupt data and invalid frames. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "comm/net_world.h"

/* Divides n values of `unit` bytes into pieces with a gap after each, at offsets that depend on salt. */
static int cut(ddp_piece *piece, int want, void *memory, size_t n, size_t unit, unsigned salt)
{
    size_t at = 0;

    for (int i = 0; i < want; i++) {
        size_t end = i + 1 == want
                         ? n
                         : n * (size_t)(i + 1) / (size_t)want - (n > 50 ? (salt * 7 + (size_t)i) % 23 : 0);
        piece[i].bytes = (unsigned char *)memory + (at + (size_t)i) * unit;
        piece[i].count = end - at;
        at = end;
    }
    return want;
}

/* ---- bytes ---- */

enum { BYTES = 300003, PIECES = 3 };

static unsigned char byte_of(int rank, size_t k)
{
    return (unsigned char)(k * 31 + k / 251 + (size_t)rank * 89);
}

static void fill(const ddp_piece *piece, int count, int rank)
{
    size_t k = 0;

    for (int i = 0; i < count; i++)
        for (size_t j = 0; j < piece[i].count; j++) ((unsigned char *)piece[i].bytes)[j] = byte_of(rank, k++);
}

/* Expects the values of rank there; -1: in each rank's block its own values. */
static void expect(net_rank *me, const ddp_piece *piece, int count, int rank, size_t n)
{
    size_t k = 0;

    for (int i = 0; i < count; i++)
        for (size_t j = 0; j < piece[i].count; j++, k++) {
            const int of = rank >= 0 ? rank : (int)(k / (n / (size_t)me->world));
            if (((unsigned char *)piece[i].bytes)[j] != byte_of(of, k))
                net_fail(me, "byte %lu", (unsigned long)k);
        }
}

static void bytes_of_all_kinds(net_rank *me, void *user)
{
    unsigned char *a = (unsigned char *)malloc(BYTES + PIECES), *b = (unsigned char *)malloc(BYTES + PIECES);
    const size_t block = BYTES / 3 * 3;
    ddp_piece from[PIECES], to[PIECES];
    ddp_message m;

    (void)user;
    for (int verb = 0; verb < 3; verb++) {
        const size_t n = verb == 1 ? block : (size_t)BYTES;
        int pieces = cut(from, PIECES, a, n, 1, (unsigned)me->rank);
        fill(from, pieces, me->rank);
        net_message(&m, verb == 0 ? DDP_BROADCAST : DDP_ALL_GATHER, from, pieces);
        m.bytes = 1;
        m.peer = 2;
        if (verb == 2) { /* each rank sends to the next, from its list into another */
            if (me->rank == 2) break;
            m.verb = me->rank ? DDP_RECEIVE : DDP_SEND;
            m.peer = !me->rank;
            m.to = to;
            m.to_count = cut(to, PIECES - 1, b, n, 1, 3);
            memset(b, 0, BYTES + PIECES);
        }
        net_ok(me, net_do(me, &m));
        if (verb < 2)
            expect(me, from, pieces, verb ? -1 : 2, n);
        else if (me->rank)
            expect(me, to, PIECES - 1, 0, n);
    }
    free(a);
    free(b);
}

static void bytes_arrive_unchanged(void **state)
{
    net_setup set;

    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++) {
        net_defaults(&set, 3);
        set.tcp = tcp;
        net_run(&set, bytes_of_all_kinds, NULL);
    }
}

static void sum_bytes(net_rank *me, void *user)
{
    unsigned char one = 1;
    ddp_piece p;
    ddp_message m;

    (void)user;
    p.bytes = &one;
    p.count = 1;
    net_message(&m, DDP_ALL_REDUCE, &p, 1);
    m.bytes = 1;
    if (net_do(me, &m) != DDP_ARG || !strstr(me->err.msg, "only floats can be summed"))
        net_fail(me, "%s", me->err.msg);
}

static void bytes_are_not_summed(void **state)
{
    net_setup set;

    (void)state;
    net_defaults(&set, 2);
    net_run(&set, sum_bytes, NULL);
}

/* ---- destination of the result ---- */

enum { IN_PLACE, OWN, ADDED, COMPLETIONS, FLOATS = 70001 };

static float before(int rank, size_t k)
{
    return (float)((int)(k % 513) - 256 + rank * 16);
} /* sums are exact */

static void complete(net_rank *me, void *user)
{
    float *a = (float *)malloc((FLOATS + PIECES) * sizeof *a),
          *b = (float *)malloc((FLOATS + PIECES) * sizeof *b);
    ddp_piece from[PIECES], to[PIECES];
    ddp_message m;

    (void)user;
    for (int how = 0; how < COMPLETIONS; how++) {
        const ddp_piece *result = how ? to : from;
        int pieces = cut(from, PIECES, a, FLOATS, sizeof *a, (unsigned)how),
            there = how ? PIECES - 1 : pieces;
        size_t k = 0;
        for (int i = 0; i < pieces; i++)
            for (size_t j = 0; j < from[i].count; j++) from[i].data[j] = before(me->rank, k++);
        for (k = 0; k < FLOATS + PIECES; k++) b[k] = 1000;
        net_message(&m, DDP_ALL_REDUCE, from, pieces);
        m.scale = 0.5f;
        m.add = how == ADDED;
        if (how) {
            m.to = to;
            m.to_count = cut(to, there, b, FLOATS, sizeof *b, (unsigned)(me->rank + 5));
        }
        net_ok(me, net_do(me, &m));
        k = 0;
        for (int i = 0; i < there; i++)
            for (size_t j = 0; j < result[i].count; j++, k++) {
                float want = how == ADDED ? 1000 : 0;
                for (int r = 0; r < me->world; r++) want += before(r, k) * 0.5f;
                if (result[i].data[j] < want || result[i].data[j] > want)
                    net_fail(me, "completion %d, value %lu: %g, not %g", how, (unsigned long)k,
                             (double)result[i].data[j], (double)want);
            }
        for (k = 0; how == OWN && k < from[0].count; k++)
            if (from[0].data[k] < before(me->rank, k) || from[0].data[k] > before(me->rank, k))
                net_fail(me, "input %lu was written", (unsigned long)k);
    }
    free(a);
    free(b);
}

/* Direct, ring, all-to-all exchange, shared memory: whole lists, summed in place, into other memory, added to
 * it. */
static void results_overwrite_add_or_use_other_memory(void **state)
{
    net_setup set;

    (void)state;
    for (int way = 0; way < 4; way++)
        for (int tcp = 0; tcp <= NET_TCP; tcp++) {
            net_defaults(&set, 3);
            set.tcp = tcp;
            set.cfg.share_bytes = way == 3 ? 1 : SIZE_MAX;
            set.cfg.deterministic = way != 1;
            set.cfg.ring_bytes = way == 1 ? 1 : SIZE_MAX;
            set.cfg.full_bytes = way == 2 ? SIZE_MAX : 1;
            net_run(&set, complete, NULL);
        }
}

/* The link delays by 0.1 s: contributions arrive after one delay, results after two. */
static void release(net_rank *me, void *user)
{
    float a[64], b[64];
    ddp_piece from, to;
    ddp_message m;
    long ticket = -1;

    (void)user;
    for (size_t k = 0; k < 64; k++) a[k] = before(me->rank, k);
    from.data = a;
    to.data = b;
    from.count = to.count = 64;
    net_message(&m, DDP_ALL_REDUCE, &from, 1);
    m.to = &to;
    m.to_count = 1;
    net_ok(me, ddp__engine_submit(me->engine, &m, &ticket, &me->err));
    net_ok(me, ddp__engine_wait_input(me->engine, ticket, &me->err));
    if (ddp__engine_done(me->engine, ticket)) net_fail(me, "the input was released only with the result");
    for (size_t k = 0; k < 64; k++) a[k] = -1e9f;
    net_ok(me, ddp__engine_wait(me->engine, ticket, &me->err));
    for (size_t k = 0; k < 64; k++) {
        float want = before(0, k) + before(1, k);
        if (b[k] < want || b[k] > want) net_fail(me, "value %lu: %g", (unsigned long)k, (double)b[k]);
    }
}

static void input_is_released_before_the_result_arrives(void **state)
{
    net_setup set;

    (void)state;
    net_defaults(&set, 2);
    set.delay_s = 1; /* longer than a thread waits for a processor */
    net_run(&set, release, NULL);
}

/* ---- receiving from any rank ---- */

/* user: 1 after rank 0 has received from rank 2 */
static void first_come(net_rank *me, void *user)
{
    int *second = (int *)user;
    float x[2];
    ddp_piece p;
    ddp_message m;
    ddp_received got;

    p.data = x;
    p.count = 2;
    if (me->rank) {
        while (me->rank == 1 && !ddp__atomic_load(second)) ddp__sleep_until(ddp_now() + 0.01);
        x[0] = x[1] = (float)me->rank;
        net_message(&m, DDP_SEND, &p, 1);
        m.peer = 0;
        net_ok(me, net_do(me, &m));
        return;
    }
    for (int from = 2; from > 0; from--) {
        net_message(&m, DDP_RECEIVE, &p, 1);
        m.peer = DDP_ANY;
        m.received = &got;
        net_ok(me, net_do(me, &m));
        if (got.peer != from || got.count != 2 || got.verb != DDP_SEND || (int)x[1] != from)
            net_fail(me, "%g from rank %d, not from %d", (double)x[1], got.peer, from);
        ddp__atomic_store(second, 1);
    }
}

static void receive_from_any_rank_takes_the_first(void **state)
{
    net_setup set;

    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++) {
        int second = 0;

        net_defaults(&set, 3);
        set.tcp = tcp;
        net_run(&set, first_come, &second);
    }
}

/* ---- corrupt bytes ---- */

typedef struct faulty { /* a wire that flips a bit of the bytes that it reads */
    ddp__wire w;
    ddp__wire *inner;
    ddp__wire_table table;
    size_t read;
} faulty;

static ddp__wire *inner_of(ddp__wire *w) { return ((faulty *)(void *)w)->inner; }
static long faulty_send(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    return inner_of(w)->table->send(inner_of(w), peer, iov, count);
}
static long faulty_recv(ddp__wire *w, int peer, void *buf, size_t bytes)
{
    faulty *f = (faulty *)(void *)w;
    long got = f->inner->table->recv(f->inner, peer, buf, bytes);

    if (got > 0 && f->read < 2000 && f->read + (size_t)got >= 2000) /* within the first payload */
        ((unsigned char *)buf)[2000 - f->read - 1] ^= 0x10;
    if (got > 0) f->read += (size_t)got;
    return got;
}
static void faulty_wait(ddp__wire *w, const unsigned char *s, const unsigned char *r, double until)
{
    inner_of(w)->table->wait(inner_of(w), s, r, until);
}
static void faulty_wake(ddp__wire *w) { inner_of(w)->table->wake(inner_of(w)); }
static void faulty_close(ddp__wire *w)
{
    inner_of(w)->table->close(inner_of(w));
    free(w);
}

static void make_faulty(ddp__engine_config *cfg, int rank)
{
    faulty *f = (faulty *)calloc(1, sizeof *f);

    f->w = *cfg->wire;
    f->inner = cfg->wire;
    f->table.send = faulty_send;
    f->table.recv = faulty_recv;
    f->table.wait = faulty_wait;
    f->table.wake = faulty_wake;
    f->table.close = faulty_close;
    f->w.table = &f->table;
    if (rank == 0) f->read = 1 << 20; /* the other rank reads uncorrupted bytes */
    cfg->wire = &f->w;
}

static void send_over_faulty(net_rank *me, void *user)
{
    static float data[2][5000];
    float *x = data[me->rank];
    const int unchecked = *(int *)user;
    ddp_piece p;
    ddp_message m;
    ddp_status s;
    int changed = 0;

    for (size_t k = 0; k < 5000; k++) x[k] = me->rank ? 0 : before(0, k);
    p.data = x;
    p.count = 5000;
    net_message(&m, me->rank ? DDP_RECEIVE : DDP_SEND, &p, 1);
    m.peer = !me->rank;
    s = net_do(me, &m);
    if (!me->rank) return;
    for (size_t k = 0; k < 5000; k++) changed += x[k] < before(0, k) || x[k] > before(0, k);
    if (unchecked && (s != DDP_OK || changed != 1))
        net_fail(me, "status %d, %d values changed", (int)s, changed);
    if (!unchecked && (s != DDP_NET || !strstr(me->err.msg, "from rank 0 (127.0.0.1:") ||
                       !strstr(me->err.msg, "were corrupted: its network or memory is faulty")))
        net_fail(me, "status %d: %s", (int)s, me->err.msg);
}

static void corrupt_frame_ends_the_link_unless_checksums_are_off(void **state)
{
    net_setup set;
    int unchecked;

    (void)state;
    for (unchecked = 0; unchecked < 2; unchecked++) {
        net_defaults(&set, 2);
        set.tcp = 1;
        set.tune = make_faulty;
        set.cfg.no_checksum = unchecked;
        net_run(&set, send_over_faulty, &unchecked);
    }
}

/* All pieces of the receive are the same memory, so the flipped byte is overwritten before the frame is
 * complete. */
static void receive_into_one_place(net_rank *me, void *user)
{
    static float sent[5000], place[500];
    ddp_piece p[10];
    ddp_message m;
    ddp_status s;

    (void)user;
    for (size_t k = 0; k < 10; k++) {
        p[k].data = me->rank ? place : sent + 500 * k;
        p[k].count = 500;
    }
    net_message(&m, me->rank ? DDP_RECEIVE : DDP_SEND, p, 10);
    m.peer = !me->rank;
    s = net_do(me, &m);
    if (me->rank && (s != DDP_NET || !strstr(me->err.msg, "were corrupted")))
        net_fail(me, "status %d: %s", (int)s, me->err.msg);
}

static void corrupt_frame_ends_the_link_if_pieces_overlap(void **state)
{
    net_setup set;

    (void)state;
    net_defaults(&set, 2);
    set.tcp = 1;
    set.tune = make_faulty;
    net_run(&set, receive_into_one_place, NULL);
}

/* Rank 0 sends the header of its frame, and then its memory is freed: nothing else arrives in its place. */
enum { GONE = 5000 };
static ddp__wire_table send_of[2];
static const ddp__wire_table *real_of[2];
static float *gone;

static long send_the_head(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    const int first = w->rank == 0 && gone && count > 1;
    const long took = real_of[w->rank]->send(w, peer, iov, first ? 1 : count);

    if (first) {
        munmap(gone, GONE * sizeof *gone);
        gone = NULL;
    }
    return took;
}

static void lose_memory(ddp__engine_config *cfg, int rank)
{
    real_of[rank] = cfg->wire->table;
    send_of[rank] = *cfg->wire->table;
    send_of[rank].send = send_the_head;
    cfg->wire->table = &send_of[rank];
}

static void send_what_is_lost(net_rank *me, void *user)
{
    static float got[GONE];
    ddp_piece p;
    ddp_message m;
    ddp_status s;

    (void)user;
    p.data = me->rank ? got : gone;
    p.count = GONE;
    net_message(&m, me->rank ? DDP_RECEIVE : DDP_SEND, &p, 1);
    m.peer = !me->rank;
    s = net_do(me, &m);
    if (s != (me->rank ? DDP_PEER_LOST : DDP_USAGE) ||
        !strstr(me->err.msg, me->rank ? "rank 0 ("
                                      : "the memory for send to rank 1 of layer h.0.mlp (step 0) was freed "
                                        "before it was done"))
        net_fail(me, "status %d: %s", (int)s, me->err.msg);
}

static void frame_with_freed_memory_ends_the_link(void **state)
{
    net_setup set;

    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        net_defaults(&set, 2);
        set.tcp = tcp;
        set.tune = lose_memory;
        gone = (float *)mmap(NULL, GONE * sizeof *gone, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                             -1, 0);
        assert_true(gone != MAP_FAILED);
        net_run(&set, send_what_is_lost, NULL);
        assert_null(gone);
    }
}

static int config_of(ddp_ctx *d, void *user)
{
    if (d->rank == 0) *(int *)user = d->engine->cfg.no_checksum;
    return 0;
}

static void environment_disables_checksums(void **state)
{
    ddp_config cfg;
    ddp_error err;
    int off = 0;

    (void)state;
    memset(&cfg, 0, sizeof cfg);
    cfg.world = 2;
    cfg.transport = DDP_THREADS;
    setenv("DREAMDDP_NO_CHECKSUM", "1", 1);
    if (ddp_launch(&cfg, config_of, &off, &err) != DDP_OK) fail_msg("%s", err.msg);
    assert_int_equal(off, 1);
    unsetenv("DREAMDDP_NO_CHECKSUM");
    off = 0;
    assert_int_equal(ddp_launch(&cfg, config_of, &off, &err), DDP_OK);
    assert_int_equal(off, 0);
}

/* ---- peers that violate the protocol ---- */

/* Rank 1 sends messages that rank 0 waits for, and reads nothing: the credits for it accumulate. */
static void peer_that_never_reads_is_detected(void **state)
{
    enum { MESSAGES = DDP__SLOTS_MAX + 40, LARGE = 4 << 20 };
    static float got[MESSAGES][4];
    float *large = (float *)calloc(LARGE / sizeof *large, sizeof *large);
    ddp__hub *hub = ddp__hub_new(2);
    ddp__wire *wire[2];
    ddp__engine *engine;
    ddp__engine_config cfg;
    ddp_error err;
    ddp_piece p;
    ddp_message m;
    net_setup set;
    ddp_status s = DDP_OK;

    (void)state;
    memset(&err, 0, sizeof err);
    for (int r = 0; r < 2; r++) assert_int_equal(ddp__wire_threads(hub, r, &wire[r], &err), DDP_OK);
    net_defaults(&set, 2);
    cfg = set.cfg;
    cfg.queue = MESSAGES + 8;
    cfg.wire = wire[0];
    assert_int_equal(ddp__engine_open(&cfg, &engine, &err), DDP_OK);
    p.data = large;
    p.count = LARGE / sizeof *large;
    net_message(&m, DDP_SEND, &p, 1);
    m.peer = 1;
    assert_int_equal(ddp__engine_submit(engine, &m, NULL, &err), DDP_OK); /* it cannot receive any credit */
    for (int i = 0; i < MESSAGES; i++) {
        p.data = got[i];
        p.count = 4;
        net_message(&m, DDP_RECEIVE, &p, 1);
        m.peer = 1;
        assert_int_equal(ddp__engine_submit(engine, &m, NULL, &err), DDP_OK);
    }
    for (int i = 0; i < MESSAGES && s == DDP_OK; i++) {
        unsigned char bytes[DDP__FRAME_BYTES + sizeof got[0]];
        size_t sent = 0;
        ddp__frame f;
        memset(&f, 0, sizeof f);
        memset(bytes, 0, sizeof bytes);
        f.type = DDP__FRAME_DATA;
        f.p2p = 1;
        f.verb = (int)DDP_SEND;
        f.seq = (uint32_t)i;
        f.count = 4;
        f.length = sizeof got[0];
        f.layer = 1;
        ddp__frame_encode(&f, bytes);
        while (sent < sizeof bytes && s == DDP_OK) {
            struct iovec iov;
            long took;
            iov.iov_base = bytes + sent;
            iov.iov_len = sizeof bytes - sent;
            took = wire[1]->table->send(wire[1], 0, &iov, 1);
            if (took > 0)
                sent += (size_t)took;
            else
                ddp__sleep_until(ddp_now() + 1e-3);
            s = ddp__engine_error(engine, &err);
        }
        ddp__sleep_until(ddp_now() + 2e-4);
    }
    for (double until = ddp_now() + 5; s == DDP_OK && ddp_now() < until; s = ddp__engine_error(engine, &err))
        ddp__sleep_until(ddp_now() + 1e-2);
    assert_int_equal(s, DDP_NET);
    assert_non_null(strstr(err.msg, "rank 1 sends more than its credits allow"));
    ddp__engine_close(engine);
    wire[1]->table->close(wire[1]);
    ddp__hub_free(hub);
    free(large);
}

/* ---- ranks with different settings ---- */

static void unlike_coding(ddp__engine_config *cfg, int rank)
{
    cfg->coding = rank ? DDP_AS_INT8 : DDP_AS_FLOAT;
    cfg->coder = ddp__blocks_coder();
}

static void sum_unlike(net_rank *me, void *user)
{
    static float data[2][40000];
    ddp_piece p;
    ddp_message m;
    ddp_status s;

    (void)user;
    p.data = data[me->rank];
    p.count = 40000;
    net_message(&m, DDP_ALL_REDUCE, &p, 1);
    m.coding = me->rank ? DDP_AS_INT8 : DDP_AS_FLOAT;
    s = net_do(me, &m);
    /* values may arrive before their operation is known */
    if (s == DDP_MISMATCH && strstr(me->err.msg, "averages in int8 blocks of layer h.0.mlp")) return;
    if (s != DDP_NET ||
        !strstr(me->err.msg, "sent a chunk that fits no operation (type 1, operation 0, coding ") ||
        !strstr(me->err.msg, "all ranks must use the same wire format"))
        net_fail(me, "status %d: %s", (int)s, me->err.msg);
}

static void int8_on_one_rank_alone_is_an_error_on_both(void **state)
{
    net_setup set;

    (void)state;
    for (int tcp = 0; tcp <= NET_TCP; tcp++) {
        net_defaults(&set, 2);
        set.tcp = tcp;
        set.tune = unlike_coding;
        net_run(&set, sum_unlike, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_arrive_unchanged),
        cmocka_unit_test(bytes_are_not_summed),
        cmocka_unit_test(results_overwrite_add_or_use_other_memory),
        cmocka_unit_test(input_is_released_before_the_result_arrives),
        cmocka_unit_test(receive_from_any_rank_takes_the_first),
        cmocka_unit_test(corrupt_frame_ends_the_link_unless_checksums_are_off),
        cmocka_unit_test(corrupt_frame_ends_the_link_if_pieces_overlap),
        cmocka_unit_test(frame_with_freed_memory_ends_the_link),
        cmocka_unit_test(environment_disables_checksums),
        cmocka_unit_test(peer_that_never_reads_is_detected),
        cmocka_unit_test(int8_on_one_rank_alone_is_an_error_on_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
