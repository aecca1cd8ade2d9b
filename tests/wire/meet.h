/* Ranks of one test process that connect over TCP or threads. Include after dreamddp.h. */
#ifndef MEET_H
#define MEET_H

#include "wire/replay.h"

#define MEET_MAX 5

typedef struct meet_rank {
    ddp__rendezvous how;
    ddp__wire *wire;
    ddp_status status;
    ddp_error err;
    double pause; /* in seconds: before it connects */
    pthread_t thread;
} meet_rank;

/* A plain wire over connected sockets. */
static DDP__UNUSED ddp_status net_wire(int rank, int world, const int *fds, const char *congestion,
                                       ddp__wire **out, ddp_error *err)
{
    ddp__tcp_config c;

    memset(&c, 0, sizeof c);
    c.rank = rank;
    c.world = world;
    c.fds = fds;
    c.congestion = congestion;
    c.once = 1;
    c.listen_fd = -1;
    return ddp__wire_tcp(&c, out, err);
}

/* The socket to a peer. */
static DDP__UNUSED int meet_fd(ddp__wire *w, int peer)
{
    return ((ddp__resume_wire *)(void *)w)->way[peer].fd;
}

static void *meet_run(void *arg)
{
    meet_rank *m = (meet_rank *)arg;
    if (m->pause > 0) ddp__sleep_until(ddp_now() + m->pause);
    m->status = ddp__rendezvous_tcp(&m->how, &m->wire, &m->err);
    return NULL;
}

/* Creates a listening socket on a free port of host, such as "127.0.0.1:0"; addr[DDP__ADDR_TEXT] receives the
 * address with the port. */
static DDP__UNUSED int meet_listen_at(const char *host, char *addr)
{
    ddp__addr at;
    int fd = -1, count;
    if (ddp__addr_parse(host, &at, 1, &count, NULL) || ddp__tcp_listen(&at, &fd, &at, NULL)) return -1;
    ddp__addr_text(&at, addr);
    return fd;
}

static DDP__UNUSED int meet_listen(char *addr) { return meet_listen_at("127.0.0.1:0", addr); }

/* A port on which no process listens. The address belongs to this process, so that no other program takes the
 * port. */
static DDP__UNUSED void meet_unused(char *addr)
{
    const int own = (int)getpid();
    char host[32];

    snprintf(host, sizeof host, "127.%d.%d.%d:0", 1 + own / 64516 % 254, 1 + own / 254 % 254, 1 + own % 254);
    close(meet_listen_at(host, addr));
}

/* Prepares ranks 0..world-1 of one run. Rank 0 takes ownership of listen_fd. */
static DDP__UNUSED void meet_prepare(meet_rank *m, int world, int listen_fd, const char *addr)
{
    int r;
    memset(m, 0, (size_t)world * sizeof *m);
    for (r = 0; r < world; r++) {
        m[r].how.wire.rank = r;
        m[r].how.world = world;
        m[r].how.addr = addr;
        m[r].how.wire.listen_fd = r == 0 ? listen_fd : -1;
        m[r].how.wire.self.run_id = 7;
        m[r].how.timeout_s = 20; /* reached only after a failure, as the next one */
        m[r].how.wire.peer_timeout_s = 20;
    }
}

static DDP__UNUSED void meet_start(meet_rank *m, int count)
{
    int r;
    for (r = 0; r < count; r++) pthread_create(&m[r].thread, NULL, meet_run, &m[r]);
}

static DDP__UNUSED void meet_join(meet_rank *m, int count)
{
    int r;
    for (r = 0; r < count; r++) pthread_join(m[r].thread, NULL);
}

/* The k-th byte of the stream from one rank to another. */
static DDP__UNUSED unsigned char stream_byte(int from, int to, size_t k)
{
    uint64_t x = (uint64_t)(k / 8) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)(from * 64 + to) * 977;
    x ^= x >> 29;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return (unsigned char)(x >> (8 * (k & 7)));
}

static DDP__UNUSED void fill_stream(int from, int to, size_t at, unsigned char *b, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++) b[i] = stream_byte(from, to, at + i);
}

#endif /* MEET_H */
