/* Fuzzes the readers of data from other machines and from launchers, with libFuzzer (`make fuzz`). The
 * first byte of an input chooses the reader.
 * tests/io/test_corpus_net.c replays tests/io/corpus_net/ through the same function. */
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

enum {
    FUZZ_HELLO,
    FUZZ_FRAME,
    FUZZ_ENTRY,
    FUZZ_ADDRESS,
    FUZZ_ENVIRONMENT,
    FUZZ_ENGINE,
    FUZZ_ELASTIC,
    FUZZ_KINDS
};

static void fuzz_expect(int holds)
{
    if (!holds) abort();
}

/* An accepted hello encodes to the same bytes again, and every rejected hello has an error message. */
static void fuzz_hello(const uint8_t *p, size_t n)
{
    unsigned char again[DDP__HELLO_BYTES];
    char text[256];
    ddp__hello self, h;
    ddp__refusal why;

    memset(&self, 0, sizeof self);
    self.version = DDP__PROTOCOL;
    self.world = 4;
    self.rank = 1;
    (void)ddp__hello_begins(p, n);
    (void)ddp__stream_is_tls(p, n);
    if (n < DDP__HELLO_BYTES || !ddp__hello_parse(p, &h)) return;
    ddp__hello_pack(&h, (ddp__hello_kind)h.kind, (ddp__refusal)h.reason, (int)h.detail, again);
    why = ddp__hello_check(&self, &h);
    fuzz_expect(h.damaged == (why == DDP__REFUSE_DAMAGED));
    if (!h.damaged) memcpy(again + 14, p + 14, 2); /* the checksum field is optional: it may be 0 */
    fuzz_expect(h.damaged || !memcmp(again, p, sizeof again));
    if (!why) fuzz_expect(h.rank < 4 && h.rank != 1 && h.version == DDP__PROTOCOL);
    text[0] = 0;
    ddp__hello_dispute(&self, why, &h, "127.0.0.1:1", text, sizeof text);
    fuzz_expect(text[0] && strlen(text) < sizeof text - 1);
}

static void fuzz_frame(const uint8_t *p, size_t n)
{
    unsigned char again[DDP__FRAME_BYTES];
    ddp__frame f;

    if (n < DDP__FRAME_BYTES || !ddp__frame_decode(p, &f)) return;
    ddp__frame_encode(&f, again);
    fuzz_expect(!memcmp(again, p, sizeof again));
}

/* An entry of the address table. */
static void fuzz_entry(const uint8_t *p, size_t n)
{
    char text[DDP__ADDR_TEXT];
    unsigned char ip[16];
    ddp__addr a;
    uint32_t family;

    if (n < 24) return;
    family = (uint32_t)ddp__hello_get(p, 2);
    if (!ddp__ip_parse(family, p + 8, &a)) return;
    ddp__addr_set_port(&a, (int)ddp__hello_get(p + 2, 2));
    fuzz_expect(ddp__addr_port(&a) == (int)ddp__hello_get(p + 2, 2));
    fuzz_expect(ddp__ip_pack(&a, ip) == family && !memcmp(ip, p + 8, family == 6 ? 16 : 4));
    fuzz_expect(strchr(ddp__addr_text(&a, text), ':') != NULL);
    (void)ddp__addr_is_loopback(&a);
}

static char *fuzz_string(const uint8_t *p, size_t n)
{
    char *s = (char *)malloc(n + 1);

    if (!s) return NULL;
    memcpy(s, p, n);
    s[n] = 0;
    return s;
}

/* Texts of the user: an address or a shaped link. No name is resolved. */
static void fuzz_address(const uint8_t *p, size_t n)
{
    char host[DDP__HOST_TEXT], *s = fuzz_string(p, n);
    double rate = 0, delay = 0;
    int port = -1;
    ddp_error err;

    if (!s) return;
    memset(&err, 0, sizeof err);
    if (ddp__addr_split(s, host, &port, &err) == DDP_OK)
        fuzz_expect(port >= 0 && port <= 65535 && host[0] && strlen(host) < sizeof host);
    else
        fuzz_expect(err.code == DDP_ARG && err.msg[0]);
    if (ddp_net_parse(s, &rate, &delay, &err) == DDP_OK)
        fuzz_expect(rate >= 0 && delay >= 0);
    else
        fuzz_expect(err.msg[0] != 0);
    free(s);
}

static const char *const fuzz_variables[] = {"RANK",
                                             "WORLD_SIZE",
                                             "LOCAL_RANK",
                                             "LOCAL_WORLD_SIZE",
                                             "MASTER_ADDR",
                                             "MASTER_PORT",
                                             "TORCHELASTIC_USE_AGENT_STORE",
                                             "TORCHELASTIC_RUN_ID",
                                             "OMPI_COMM_WORLD_RANK",
                                             "OMPI_COMM_WORLD_SIZE",
                                             "OMPI_COMM_WORLD_LOCAL_RANK",
                                             "PMI_RANK",
                                             "PMI_SIZE",
                                             "PMIX_RANK",
                                             "SLURM_PROCID",
                                             "SLURM_NTASKS",
                                             "SLURM_LOCALID",
                                             "SLURM_STEP_ID",
                                             "SLURM_JOB_ID",
                                             "SLURM_STEP_NODELIST",
                                             "SLURM_STEP_NUM_NODES",
                                             "SLURM_STEP_NUM_TASKS",
                                             "DREAMDDP_RANK",
                                             "DREAMDDP_WORLD_SIZE",
                                             "DREAMDDP_ADDR",
                                             "DREAMDDP_RUN_ID",
                                             "DREAMDDP_TLS_PSK",
                                             "DREAMDDP_PERIODS"};
enum { FUZZ_VARIABLES = sizeof fuzz_variables / sizeof fuzz_variables[0] };

/* Lines with a byte that chooses a variable, then its value. */
static void fuzz_environment(const uint8_t *p, size_t n)
{
    const uint8_t *end = p + n;
    ddp__env env;
    ddp_error err;
    int i;

    for (i = 0; i < FUZZ_VARIABLES; i++) unsetenv(fuzz_variables[i]);
    while (p < end) {
        const uint8_t *line = (const uint8_t *)memchr(p, '\n', (size_t)(end - p));
        size_t length = (size_t)((line ? line : end) - p);
        char *value = length ? fuzz_string(p + 1, length - 1) : NULL;
        if (value) setenv(fuzz_variables[p[0] % FUZZ_VARIABLES], value, 1);
        free(value);
        p += length + (line != NULL);
    }
    memset(&err, 0, sizeof err);
    if (ddp__env_read(&env, &err) == DDP_OK)
        fuzz_expect(env.world >= 1 && env.rank >= 0 && env.rank < env.world &&
                    strlen(env.addr) < sizeof env.addr);
    else
        fuzz_expect(err.code != DDP_OK && err.msg[0]);
    for (i = 0; i < FUZZ_VARIABLES; i++) unsetenv(fuzz_variables[i]);
}

/* ---- an engine whose peer sends arbitrary frames ---- */

typedef struct fuzz_wire {
    ddp__wire base;
    const uint8_t *p, *end;
    unsigned char head[DDP__FRAME_BYTES];
    size_t head_left, body_left;
} fuzz_wire;

static long fuzz_send(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    long n = 0;
    int i;

    (void)w;
    (void)peer;
    for (i = 0; i < count; i++) n += (long)iov[i].iov_len;
    return n;
}

static uint32_t fuzz_number(fuzz_wire *f)
{
    uint32_t v = f->p < f->end ? *f->p++ : 0;

    if (v < 240) return v; /* small numbers match real operations. The others are extreme values. */
    return v & 1 ? 0xffffffffu - (v & 14) : (v & 15) << 28 | 4;
}

/* Sends the next frame: a valid checksum, fields from the input, then its payload. */
static int fuzz_next(fuzz_wire *w)
{
    ddp__frame f;
    uint8_t kind;

    if (w->p >= w->end) return 0;
    kind = *w->p++;
    f.type = kind % 16;
    f.p2p = kind >> 4 & 1;
    f.verb = kind >> 5;
    f.seq = fuzz_number(w);
    f.count = fuzz_number(w);
    f.offset = fuzz_number(w);
    f.length = 4 * fuzz_number(w);
    f.layer = (int32_t)fuzz_number(w);
    f.coding = f.layer >> 3 & 1   ? (int)DDP_AS_BFLOAT
               : f.layer >> 4 & 1 ? (int)DDP_AS_INT8
                                  : (int)DDP_AS_FLOAT;
    f.sent = 0;
    if (kind == 255) f.length++;
    ddp__frame_encode(&f, w->head);
    w->head_left = sizeof w->head;
    w->body_left = f.length;
    return 1;
}

static long fuzz_recv(ddp__wire *w, int peer, void *buf, size_t bytes)
{
    fuzz_wire *f = (fuzz_wire *)(void *)w;

    (void)peer;
    if (!f->head_left && !f->body_left && !fuzz_next(f)) {
        errno = ECONNRESET;
        return -1;
    }
    if (f->head_left) {
        if (bytes > f->head_left) bytes = f->head_left;
        memcpy(buf, f->head + sizeof f->head - f->head_left, bytes);
        f->head_left -= bytes;
        return (long)bytes;
    }
    if (bytes > f->body_left) bytes = f->body_left;
    memset(buf, 1, bytes);
    if ((f->head[3] & 15) == DDP__FRAME_STATE || (f->head[3] & 15) == DDP__FRAME_EPOCH) {
        size_t have = (size_t)(f->end - f->p) < bytes ? (size_t)(f->end - f->p) : bytes;
        memcpy(buf, f->p, have); /* the input supplies bytes that have a meaning */
        f->p += have;
    }
    f->body_left -= bytes;
    return (long)bytes;
}

static void fuzz_wait(ddp__wire *w, const unsigned char *want_send, const unsigned char *want_recv,
                      double until)
{
    double soon = ddp_now() + 0.0001;

    (void)w;
    (void)want_send;
    (void)want_recv;
    ddp__sleep_until(until >= 0 && until < soon ? until : soon);
}

static void fuzz_wake(ddp__wire *w) { (void)w; }
static void fuzz_close(ddp__wire *w) { (void)w; }

static void fuzz_peer(const uint8_t *p, size_t n, int min_world)
{
    static const ddp__wire_table table = {fuzz_send, fuzz_recv, fuzz_wait, fuzz_wake, fuzz_close, NULL, NULL};
    static char names[2][DDP__WIRE_NAME] = {"self", "a peer"};
    static const ddp_verb verbs[] = {DDP_ALL_REDUCE, DDP_RECEIVE, DDP_BROADCAST, DDP_ALL_GATHER};
    ddp__engine_config c;
    ddp__engine *e = NULL;
    float x[4][24];
    fuzz_wire w;
    long ticket[4];
    ddp_error err;
    int i, known = 1;

    memset(&w, 0, sizeof w);
    w.base.table = &table;
    w.base.world = 2;
    w.base.names = names;
    w.p = p;
    w.end = p + n;
    memset(&c, 0, sizeof c);
    memset(x, 0, sizeof x);
    memset(&err, 0, sizeof err);
    c.wire = &w.base;
    c.world = 2;
    c.chunk_bytes = 4096;
    c.peer_timeout_s = c.op_timeout_s = 1;
    c.queue = 8;
    c.min_world = min_world;
    c.coding = DDP_AS_INT8;
    c.coder = ddp__blocks_coder();
    if (min_world) c.membership = ddp__elastic_membership();
    if (ddp__engine_open(&c, &e, &err) != DDP_OK) return;
    for (i = 0; i < 4 && known; i++) {
        ddp_message m;
        ddp_piece piece;
        memset(&m, 0, sizeof m);
        piece.data = x[i];
        piece.count = 24;
        m.verb = verbs[i];
        m.from = &piece;
        m.from_count = 1;
        m.peer = 1;
        if (n % 2 && m.verb == DDP_ALL_REDUCE) m.coding = DDP_AS_INT8;
        known = ddp__engine_submit(e, &m, &ticket[i], &err) == DDP_OK;
        if (known) known = ddp__engine_wait(e, ticket[i], &err) == DDP_OK;
        fuzz_expect(known || err.msg[0]);
    }
    ddp__engine_close(e);
}

static void fuzz_engine(const uint8_t *p, size_t n) { fuzz_peer(p, n, 0); }
static void fuzz_elastic(const uint8_t *p, size_t n) { fuzz_peer(p, n, 1); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const reader[FUZZ_KINDS])(const uint8_t *, size_t) = {
        fuzz_hello, fuzz_frame, fuzz_entry, fuzz_address, fuzz_environment, fuzz_engine, fuzz_elastic};
    uint8_t *copy;

    if (size < 1) return 0;
    /* a separate allocation, so that a sanitizer detects reads past the end */
    copy = (uint8_t *)malloc(size - 1 ? size - 1 : 1);
    if (!copy) return 0;
    memcpy(copy, data + 1, size - 1);
    reader[data[0] % FUZZ_KINDS](copy, size - 1);
    free(copy);
    return 0;
}
