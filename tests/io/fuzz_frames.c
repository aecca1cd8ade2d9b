/* Fuzzes the frames that a peer sends after its handshake, with libFuzzer (`make fuzz`). Frames are sent
 * to a real engine, and in a run of two workers one worker's frames are changed in transit. Every input
 * must end in time, without an error or with a one-line error.
 * tests/io/test_corpus_frames.c replays tests/io/corpus_frames/ through the same function. */
#ifndef DREAMDDP_H
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#endif

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C"
#endif
    int
    LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_RUN, FUZZ_ENGINE, FUZZ_RECORDS, FUZZ_KINDS };
enum { FUZZ_ROOM = 1 << 16 }; /* bytes of one frame, or of all data that a raw peer sends */

static const double fuzz_deadline = 20; /* seconds: a hundred times the time-outs in this file */

static void fuzz_expect(int holds)
{
    if (!holds) abort();
}

/* Returns 1 for success. An error must have the returned code and a message of one line. */
static int fuzz_good(int s, const ddp_error *err)
{
    fuzz_expect(s == (int)DDP_OK ||
                (err->code == (ddp_status)s && err->msg[0] && !strpbrk(err->msg, "\n\r")));
    return s == (int)DDP_OK;
}

/* ---- the input ---- */

typedef struct fuzz_input {
    const uint8_t *p, *end;
} fuzz_input;

static uint8_t fuzz_byte(fuzz_input *in) { return in->p < in->end ? *in->p++ : 0; }

/* Small numbers match real operations. The others are extreme values. */
static uint32_t fuzz_number(fuzz_input *in)
{
    const uint32_t v = fuzz_byte(in);

    if (v < 240) return v;
    return v & 1 ? 0xffffffffu - (v & 14) : (v & 15) << 28 | 4;
}

/* Appends a frame with a valid checksum; its fields and payload come from the input. */
static void fuzz_frame(fuzz_input *in, unsigned char *out, size_t *n)
{
    const uint8_t kind = fuzz_byte(in);
    ddp__frame f;

    memset(&f, 0, sizeof f);
    f.type = kind % 16;
    f.p2p = kind >> 4 & 1;
    f.verb = kind >> 5;
    f.seq = fuzz_number(in);
    f.count = fuzz_number(in);
    f.offset = fuzz_number(in);
    f.length = fuzz_number(in);
    f.layer = (int32_t)(fuzz_number(in) - 8);
    f.coding = fuzz_byte(in) % 8;
    ddp__frame_encode(&f, out + *n);
    *n += DDP__FRAME_BYTES;
    for (uint32_t i = 0; i < f.length && i < 240; i++) out[(*n)++] = fuzz_byte(in);
}

/* ---- an engine whose peer sends arbitrary frames ---- */

static ddp__engine *engine_open(ddp__wire *wire, int elastic)
{
    ddp__engine_config c;
    ddp__engine *e = NULL;
    ddp_error err;

    memset(&c, 0, sizeof c);
    c.wire = wire;
    c.world = 2;
    c.chunk_bytes = 4096;
    c.peer_timeout_s = c.op_timeout_s = 0.1;
    c.queue = 8;
    c.serves = 1;
    c.min_world = elastic;
    c.coding = DDP_AS_INT8;
    c.coder = ddp__blocks_coder();
    if (elastic) c.membership = ddp__elastic_membership();
    fuzz_expect(ddp__engine_open(&c, &e, &err) == DDP_OK);
    return e;
}

/* Submits messages of most kinds, all in flight at the same time. */
static int engine_submit(ddp__engine *e, float (*x)[24], long *ticket)
{
    static const ddp_verb verb[] = {DDP_ALL_REDUCE, DDP_RECEIVE, DDP_BROADCAST,
                                    DDP_ALL_GATHER, DDP_SERVE,   DDP_SEND};
    ddp_error err;
    int n = 0, good = 1;

    for (; good && n < (int)(sizeof verb / sizeof *verb); n += good) {
        ddp_piece piece;
        ddp_message m;
        memset(&m, 0, sizeof m);
        memset(&piece, 0, sizeof piece);
        piece.data = x[n];
        piece.count = 24;
        m.verb = verb[n];
        m.from = &piece;
        m.from_count = 1;
        m.peer = 1;
        good = fuzz_good((int)ddp__engine_submit(e, &m, &ticket[n], &err), &err);
    }
    return n;
}

static void engine_finish(ddp__engine *e, const long *ticket, int n)
{
    ddp_error err;

    for (int i = 0; i < n; i++) (void)fuzz_good((int)ddp__engine_wait(e, ticket[i], &err), &err);
    ddp__engine_close(e);
}

/* With the threads transport: reads and discards what the engine sends. */
static void engine_told(ddp__engine *e, ddp__wire *peer, const unsigned char *bytes, size_t n)
{
    const double until = ddp_now() + 1;
    unsigned char sink[4096];
    ddp_error err;
    size_t at = 0;

    while (at < n && ddp_now() < until && ddp__engine_error(e, &err) == DDP_OK) {
        struct iovec iov;
        long took;
        iov.iov_base = (void *)(uintptr_t)(bytes + at);
        iov.iov_len = n - at;
        took = peer->table->send(peer, 0, &iov, 1);
        if (took < 0) break;
        at += (size_t)took;
        while (peer->table->recv(peer, 0, sink, sizeof sink) > 0) {
        }
        if (!took) ddp__sleep_until(ddp_now() + 1e-4);
    }
}

static void fuzz_engine(fuzz_input *in)
{
    unsigned char *bytes = (unsigned char *)malloc(FUZZ_ROOM);
    const int elastic = fuzz_byte(in) & 1;
    ddp__hub *hub = ddp__hub_new(2);
    ddp__wire *wire[2];
    ddp__engine *e;
    ddp_error err;
    float x[8][24];
    long ticket[8];
    size_t size = 0;
    int n;

    fuzz_expect(bytes && hub);
    memset(x, 0, sizeof x);
    for (int r = 0; r < 2; r++) {
        fuzz_expect(ddp__wire_threads(hub, r, &wire[r], &err) == DDP_OK);
        wire[r]->offers = NULL; /* the peer offers no shared memory */
    }
    while (in->p < in->end && size < FUZZ_ROOM - 300) fuzz_frame(in, bytes, &size);
    e = engine_open(wire[0], elastic);
    n = engine_submit(e, x, ticket);
    engine_told(e, wire[1], bytes, size);
    wire[1]->table->close(wire[1]);
    engine_finish(e, ticket, n);
    ddp__hub_free(hub);
    free(bytes);
}

/* ---- the same over a connection that can reconnect: frames inside records ---- */

/* Creates both ends of a connection. */
static void records_connect(int fd[2])
{
    static int listener = -1;
    static ddp__addr at;
    int count = 0;

    if (listener < 0)
        fuzz_expect(ddp__addr_parse("127.0.0.1:0", &at, 1, &count, NULL) == DDP_OK &&
                    ddp__tcp_listen(&at, &listener, &at, NULL) == DDP_OK);
    fd[1] = ddp__tcp_dial(&at, ddp_now() + 5);
    fuzz_expect(fd[1] >= 0 && ddp__fd_wait(listener, POLLIN, ddp_now() + 5) != 0);
    fd[0] = ddp__tcp_accept(listener, NULL);
    fuzz_expect(fd[0] >= 0);
}

static void records_head(unsigned char *out, size_t *n, int kind, uint32_t value)
{
    out[*n] = (unsigned char)kind;
    memcpy(out + *n + 1, "ddp", 3);
    ddp__hello_put(out + *n + 4, value, 4);
    *n += DDP__RECORD_BYTES;
}

/* Appends a record whose kind and value come from the input. A DATA record contains a frame, and may
 * declare a wrong length. */
static void records_next(fuzz_input *in, unsigned char *out, size_t *n)
{
    const uint8_t kind = fuzz_byte(in);
    unsigned char frame[300];
    size_t size = 0;

    if (kind % 8 != DDP__RECORD_DATA) {
        records_head(out, n, kind % 8, fuzz_number(in));
        return;
    }
    fuzz_frame(in, frame, &size);
    records_head(out, n, DDP__RECORD_DATA, kind & 128 ? fuzz_number(in) : (uint32_t)size);
    memcpy(out + *n, frame, size);
    *n += size;
}

static void fuzz_records(fuzz_input *in)
{
    unsigned char *bytes = (unsigned char *)malloc(FUZZ_ROOM), sink[4096];
    const int once = fuzz_byte(in) & 1;
    const struct linger gone = {1, 0};
    ddp__tcp_config c;
    ddp__wire *wire = NULL;
    ddp__engine *e;
    ddp_error err;
    float x[8][24];
    long ticket[8];
    size_t size = 0, at = 0;
    int fd[2], fds[2] = {-1, -1}, n;

    fuzz_expect(bytes != NULL);
    memset(x, 0, sizeof x);
    memset(&c, 0, sizeof c);
    records_connect(fd);
    fds[1] = fd[0];
    c.world = 2;
    c.fds = fds;
    c.once = once;
    c.listen_fd = -1;
    c.peer_timeout_s = 0.05;
    c.replay_bytes = 65536;
    c.self.version = DDP__PROTOCOL;
    c.self.world = 2;
    while (in->p < in->end && size < FUZZ_ROOM - 400) {
        if (once)
            fuzz_frame(in, bytes, &size);
        else
            records_next(in, bytes, &size);
    }
    fuzz_expect(ddp__wire_tcp(&c, &wire, &err) == DDP_OK);
    e = engine_open(wire, 0);
    n = engine_submit(e, x, ticket);
    while (at < size && ddp__engine_error(e, &err) == DDP_OK) {
        const long took = (long)send(fd[1], bytes + at, size - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (took <= 0) break;
        at += (size_t)took;
    }
    shutdown(fd[1], SHUT_WR);
    while (recv(fd[1], sink, sizeof sink, MSG_DONTWAIT) > 0) {
    }
    engine_finish(e, ticket, n);
    setsockopt(fd[1], SOL_SOCKET, SO_LINGER, &gone, sizeof gone); /* leave no port in TIME_WAIT */
    close(fd[1]);
    free(bytes);
}

/* ---- a run of two workers, with a meddler that changes what rank 1 sends to rank 0 ---- */

typedef struct meddler {
    ddp__wire base;
    ddp__wire *inner;
    fuzz_input *in;
    int passing; /* frames until the next change */
    int cut;
    size_t got;      /* bytes of the current frame that have arrived */
    size_t from, to; /* bytes in out that the engine has not yet read */
    unsigned char frame[FUZZ_ROOM], out[4 * FUZZ_ROOM], held[FUZZ_ROOM];
    size_t held_bytes; /* size of the frame in held, which is sent after the next one */
} meddler;

static void meddle_put(meddler *m, const unsigned char *p, size_t n)
{
    fuzz_expect(m->to + n <= sizeof m->out);
    memcpy(m->out + m->to, p, n);
    m->to += n;
}

static void meddle_field(meddler *m, ddp__frame *f)
{
    const int field = fuzz_byte(m->in) % 8;
    const uint32_t v = fuzz_number(m->in);

    if (field == 0)
        f->type = (int)(v % 16);
    else if (field == 1)
        f->p2p ^= 1;
    else if (field == 2)
        f->verb = (int)(v % 8);
    else if (field == 3)
        f->seq += v;
    else if (field == 4)
        f->count = v;
    else if (field == 5)
        f->offset = v;
    else if (field == 6)
        f->layer += (int32_t)(v & 0xff) - 8;
    else
        f->coding = (int)(v % 8);
    ddp__frame_encode(f, m->frame);
}

/* Changes bytes of the payload. fits: the checksum is updated. */
static void meddle_payload(meddler *m, ddp__frame *f, int fits)
{
    unsigned char *payload = m->frame + DDP__FRAME_BYTES;

    if (!f->length) return;
    for (int i = fuzz_byte(m->in) % 8; i >= 0; i--)
        payload[fuzz_byte(m->in) * 7u % f->length] ^= fuzz_byte(m->in);
    if (fits && f->check) f->check = ddp__crc32c(0, payload, f->length);
    if (fits) ddp__frame_encode(f, m->frame);
}

/* Called when a whole frame has arrived. */
static void meddle(meddler *m, ddp__frame *f, size_t size)
{
    enum {
        PASS,
        DROP,
        TWICE,
        FIELD,
        PAYLOAD,
        BROKEN_PAYLOAD,
        BROKEN_HEAD,
        INSERT,
        CUT,
        BEHIND,
        SHORTER,
        WAYS
    };
    int way = PASS;

    if (m->passing-- == 0 && m->in->p < m->in->end) {
        way = fuzz_byte(m->in) % WAYS;
        m->passing = fuzz_byte(m->in) % 32;
    }
    if (way == FIELD) meddle_field(m, f);
    if (way == PAYLOAD || way == BROKEN_PAYLOAD) meddle_payload(m, f, way == PAYLOAD);
    if (way == BROKEN_HEAD)
        m->frame[fuzz_byte(m->in) % DDP__FRAME_BYTES] ^= (unsigned char)(fuzz_byte(m->in) | 1);
    if (way == INSERT) fuzz_frame(m->in, m->out, &m->to);
    if (way == SHORTER && f->length > 4) {
        f->length -= 4;
        if (f->check) f->check = ddp__crc32c(0, m->frame + DDP__FRAME_BYTES, f->length);
        ddp__frame_encode(f, m->frame);
        size -= 4;
    }
    m->cut |= way == CUT;
    if (way == BEHIND && !m->held_bytes) {
        memcpy(m->held, m->frame, size);
        m->held_bytes = size;
        return;
    }
    if (way != DROP && way != CUT) meddle_put(m, m->frame, size);
    if (way == TWICE) meddle_put(m, m->frame, size);
    meddle_put(m, m->held, m->held_bytes);
    m->held_bytes = 0;
}

static long meddler_send(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    meddler *m = (meddler *)(void *)w;

    return m->inner->table->send(m->inner, peer, iov, count);
}

static long meddler_recv(ddp__wire *w, int peer, void *buf, size_t bytes)
{
    meddler *m = (meddler *)(void *)w;
    ddp__frame f;
    size_t size = DDP__FRAME_BYTES;

    while (m->from == m->to) {
        long n;
        m->from = m->to = 0;
        if (m->cut) {
            errno = ECONNRESET;
            return -1;
        }
        if (m->got >= DDP__FRAME_BYTES) fuzz_expect(ddp__frame_decode(m->frame, &f));
        if (m->got >= DDP__FRAME_BYTES) size = DDP__FRAME_BYTES + f.length;
        fuzz_expect(size <= sizeof m->frame);
        if (m->got == size) {
            m->got = 0;
            meddle(m, &f, size);
            size = DDP__FRAME_BYTES;
            continue;
        }
        n = m->inner->table->recv(m->inner, peer, m->frame + m->got, size - m->got);
        if (n <= 0) return n;
        m->got += (size_t)n;
    }
    if (bytes > m->to - m->from) bytes = m->to - m->from;
    memcpy(buf, m->out + m->from, bytes);
    m->from += bytes;
    return (long)bytes;
}

static void meddler_wait(ddp__wire *w, const unsigned char *want_send, const unsigned char *want_recv,
                         double until)
{
    meddler *m = (meddler *)(void *)w;

    if (m->from == m->to || (want_recv && !want_recv[1]))
        m->inner->table->wait(m->inner, want_send, want_recv, until);
}

static void meddler_wake(ddp__wire *w)
{
    ((meddler *)(void *)w)->inner->table->wake(((meddler *)(void *)w)->inner);
}

static void meddler_close(ddp__wire *w)
{
    meddler *m = (meddler *)(void *)w;

    m->inner->table->close(m->inner);
    free(m);
}

static const ddp__wire_table meddler_table = {meddler_send,  meddler_recv, meddler_wait, meddler_wake,
                                              meddler_close, NULL,         NULL};

typedef struct run_world {
    ddp__hub *inside, *hub; /* hub: its wires wrap those of inside */
    ddp_config cfg;
    fuzz_input *in;
    int meddles;
    int good[2];
    float params[2][2][32];
} run_world;

/* A ddp__wire_fn. */
static ddp_status run_attach(void *user, int link, int rank, ddp__wire **out, ddp_error *err)
{
    run_world *w = (run_world *)user;
    meddler *m;

    (void)link;
    DDP__TRY(ddp__wire_threads(w->inside, rank, out, err));
    (*out)->offers = NULL; /* no shared memory */
    if (rank || !w->meddles) return DDP_OK;
    m = (meddler *)calloc(1, sizeof *m);
    fuzz_expect(m != NULL);
    m->base = **out;
    m->base.table = &meddler_table;
    m->inner = *out;
    m->in = w->in;
    m->passing = fuzz_byte(w->in) % 64;
    *out = &m->base;
    return DDP_OK;
}

static int run_steps(ddp_ctx *d, float (*params)[32])
{
    const ddp_optimizer rule = ddp_sgd(0.1f, 0.9f);
    float grads[2][32];
    ddp_layer layer;
    int bad = 0;

    for (int l = 0; l < 2; l++) {
        memset(&layer, 0, sizeof layer);
        layer.params = params[l];
        layer.grads = grads[l];
        layer.count = l ? 32 : 7;
        if (!bad) bad = ddp_add_layer(d, &layer);
    }
    memset(grads, 0, sizeof grads);
    if (!bad) bad = ddp_set_optimizer(d, &rule);
    for (int step = 0; step < 3 && !bad; step++) {
        for (int l = 1; l >= 0; l--) {
            for (int i = 0; i < 32; i++) grads[l][i] = 0.01f * (float)(i + ddp_rank(d) - step);
            ddp_backward_end(d, l);
        }
        bad = ddp_step_end(d);
    }
    return bad ? bad : ddp_sync_all(d);
}

static void run_rank(run_world *w, int rank)
{
    ddp_config c = w->cfg;
    ddp_error err;
    ddp_ctx *d;
    int bad;

    c.rank = rank;
    d = ddp__open(&c, ddp__built_in(), w->hub, -1, &err);
    if (!d) {
        (void)fuzz_good((int)err.code, &err);
        ddp__hub_leave(w->inside, rank);
        return;
    }
    bad = run_steps(d, w->params[rank]);
    w->good[rank] = fuzz_good(bad, ddp_last_error(d));
    ddp_close(d);
}

static void *run_other(void *user)
{
    run_rank((run_world *)user, 1);
    return NULL;
}

/* Input: a byte of options, a byte for the frames before the first change, then the changes. Without
 * changes the run must succeed. */
static void fuzz_run(fuzz_input *in)
{
    static const ddp_strategy strategy[] = {DDP_SSGD,   DDP_DREAMDDP,   DDP_BSP,
                                            DDP_DILOCO, DDP_SPARSELOCO, DDP_WFBP};
    const uint8_t how = fuzz_byte(in);
    pthread_t other;
    run_world w;

    memset(&w, 0, sizeof w);
    w.in = in;
    w.meddles = in->p < in->end;
    w.inside = ddp__hub_new(2);
    w.hub = ddp__hub_making(2, run_attach, &w);
    w.cfg.world = 2;
    w.cfg.transport = DDP_THREADS;
    w.cfg.no_env = w.cfg.deterministic = 1;
    w.cfg.period = 2;
    w.cfg.strategy = strategy[how % 6];
    if (w.cfg.strategy == DDP_BSP)
        w.cfg.server.count = DDP_SERVERS_COLOCATED;
    else if (how / 6 % 3 == 1 && how % 6 < 2)
        w.cfg.wire = DDP_WIRE_INT8;
    else if (how / 6 % 3 == 2 && how % 6 < 2)
        w.cfg.elastic.min_world = 1;
    w.cfg.timeout.peer_s = w.cfg.timeout.op_s = w.meddles ? 0.15 : 60;
    fuzz_expect(w.inside && w.hub);
    if (pthread_create(&other, NULL, run_other, &w)) abort();
    run_rank(&w, 0);
    pthread_join(other, NULL);
    if (!w.meddles)
        fuzz_expect(w.good[0] && w.good[1] && !memcmp(w.params[0], w.params[1], sizeof w.params[0]));
    ddp__hub_free(w.hub);
    ddp__hub_free(w.inside);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const peer[FUZZ_KINDS])(fuzz_input *) = {fuzz_run, fuzz_engine, fuzz_records};
    const double begin = ddp_now();
    fuzz_input in = {data + 1, data + size};

    if (size < 2) return 0;
    peer[data[0] % FUZZ_KINDS](&in);
    fuzz_expect(ddp_now() - begin < fuzz_deadline);
    return 0;
}
