/* Ranks that exchange streams of known bytes in random pieces. Include after net_world.h. */
#ifndef TALK_H
#define TALK_H

#include "wire/meet.h"

#define STREAM_BYTES (600000)

typedef struct talker {
    ddp__wire *w;
    pthread_t thread;
    uint64_t seed;
    int bad;   /* bytes that differ, or failures */
    int *left; /* ranks that have not finished */
    int cuts;  /* one of this number of rounds begins with a cut, or 0 for none */
    int cut;   /* number of rounds that did */
} talker;

static void *talk(void *arg)
{
    talker *t = (talker *)arg;
    ddp__wire *w = t->w;
    ddp_rng rng = ddp_rng_seed(t->seed, (uint64_t)w->rank);
    size_t sent[MEET_MAX], got[MEET_MAX];
    unsigned char want_send[MEET_MAX], want_recv[MEET_MAX], *buf, *expect;
    double end = ddp_now() + 100;
    int p, open = 1, done = 0;

    memset(sent, 0, sizeof sent);
    memset(got, 0, sizeof got);
    buf = (unsigned char *)malloc(30000);
    expect = (unsigned char *)malloc(30000);
    while (ddp__atomic_load(t->left) > 0) { /* the last bytes may be lost in transit */
        open = 0;
        if (t->cuts && ddp_rng_below(&rng, (uint64_t)t->cuts) == 0) {
            p = (int)ddp_rng_below(&rng, (uint64_t)w->world);
            if (p != w->rank) {
                w->table->cut(w, p);
                t->cut++;
            }
        }
        for (p = 0; p < w->world; p++) {
            struct iovec iov;
            size_t n = 1 + (size_t)ddp_rng_below(&rng, ddp_rng_below(&rng, 4) ? 300 : 30000);
            long moved;
            want_send[p] = 0;
            want_recv[p] = p != w->rank;
            if (p == w->rank) continue;
            if (sent[p] < STREAM_BYTES) {
                if (n > STREAM_BYTES - sent[p]) n = STREAM_BYTES - sent[p];
                fill_stream(w->rank, p, sent[p], buf, n);
                iov.iov_base = buf;
                iov.iov_len = n;
                moved = w->table->send(w, p, &iov, 1);
                if (moved < 0)
                    t->bad++;
                else
                    sent[p] += (size_t)moved;
                want_send[p] = moved == 0;
            }
            n = 1 + (size_t)ddp_rng_below(&rng, 30000);
            moved = w->table->recv(w, p, buf, n);
            if (moved < 0) t->bad++;
            if (moved > 0) {
                fill_stream(p, w->rank, got[p], expect, (size_t)moved);
                if (memcmp(buf, expect, (size_t)moved)) t->bad++;
                got[p] += (size_t)moved;
                if (got[p] > STREAM_BYTES) t->bad++;
            }
            if (sent[p] < STREAM_BYTES || got[p] < STREAM_BYTES) open = 1;
            if (sent[p] < STREAM_BYTES && !want_send[p]) open = 2; /* more can be sent at once */
        }
        if (!open && !done) {
            done = 1;
            ddp__atomic_add(t->left, -1);
        }
        if (ddp_now() > end) t->bad++;
        if (t->bad) ddp__atomic_store(t->left, 0);
        if (open < 2) w->table->wait(w, want_send, want_recv, ddp_now() + 0.02);
    }
    free(buf);
    free(expect);
    return NULL;
}

/* Opens a TLS for each rank with the same new key. Skips the test in a build without TLS. */
static DDP__UNUSED void talk_keys(ddp__tls **tls, int world)
{
    char path[] = "/tmp/dreamddp-psk-XXXXXX";
    ddp__tls_files files;
    ddp_error err;
    ddp_status bad = DDP_OK;
    int fd = mkstemp(path), k;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, "0123456789abcdef0123456789abcdef", 32), 32);
    close(fd);
    memset(&files, 0, sizeof files);
    files.psk = path;
    memset(tls, 0, (size_t)world * sizeof *tls);
    for (k = 0; k < world && !bad; k++) bad = ddp__tls_open(&files, 7, &tls[k], &err);
    unlink(path);
    if (bad == DDP_UNSUPPORTED) SKIP("built without OpenSSL");
    assert_int_equal(bad, DDP_OK);
}

#endif /* TALK_H */
