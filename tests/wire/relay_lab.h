/* A relay between ranks of one test process that breaks connections: one thread and several routes, each from
 * a separate port to the listening port of a rank. Include after dreamddp.h. */
#ifndef RELAY_H
#define RELAY_H

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

enum { RELAY_ROUTES = 16, RELAY_PAIRS = 64, RELAY_BUFFER = 8192 };

typedef struct relay_pair {
    int fd[2];             /* -1: unused */
    long budget;           /* bytes until it breaks; < 0: never */
    size_t len[2], off[2]; /* read from fd[i], not yet written to the other */
    char buf[2][RELAY_BUFFER];
} relay_pair;

typedef struct relay {
    int routes, listener[RELAY_ROUTES];
    ddp__addr at[RELAY_ROUTES], to[RELAY_ROUTES];
    relay_pair pair[RELAY_PAIRS];
    ddp_rng rng;
    long mean;        /* mean number of bytes until a connection breaks, or 0 for none breaks */
    long least;       /* each connection passes at least this number of bytes */
    int stop, stall;  /* atomic; stall: nothing is forwarded */
    long stall_after; /* it stalls by itself after this number of bytes, or 0 for never */
    int breaks;       /* atomic */
    pthread_t thread;
} relay;

static void relay_close(int fd, int reset)
{
    struct linger hard;
    hard.l_onoff = 1;
    hard.l_linger = 0;
    if (reset) setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(fd);
}

static void relay_break(relay *r, relay_pair *p, int counted)
{
    int reset = (int)ddp_rng_below(&r->rng, 2);
    relay_close(p->fd[0], reset);
    relay_close(p->fd[1], reset);
    p->fd[0] = p->fd[1] = -1;
    if (counted) ddp__atomic_add(&r->breaks, 1);
}

static void relay_accept(relay *r, int route)
{
    int fd = ddp__tcp_accept(r->listener[route], NULL), i;
    long mean = ddp__atomic_load(&r->mean);
    if (fd < 0) return;
    for (i = 0; i < RELAY_PAIRS; i++) {
        relay_pair *p = &r->pair[i];
        if (p->fd[0] >= 0) continue;
        p->fd[1] = ddp__tcp_dial(&r->to[route], ddp_now() + 2);
        if (p->fd[1] < 0) break;
        p->fd[0] = fd;
        p->len[0] = p->len[1] = p->off[0] = p->off[1] = 0;
        p->budget = mean ? 1 + r->least + (long)ddp_rng_below(&r->rng, (uint64_t)(2 * mean)) : -1;
        return;
    }
    close(fd);
}

/* Moves bytes in one direction. Returns 0 when the pair must break. */
static int relay_move(relay *r, relay_pair *p, int way)
{
    ssize_t n;
    size_t most;
    if (!p->len[way]) {
        most = RELAY_BUFFER;
        n = recv(p->fd[way], p->buf[way], most, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return 0;
        if (n < 0) return 1;
        p->len[way] = (size_t)n;
        p->off[way] = 0;
    }
    most = p->len[way];
    if (p->budget >= 0 && (long)most > p->budget) most = (size_t)p->budget;
    n = send(p->fd[!way], p->buf[way] + p->off[way], most, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return 0;
    if (n > 0) {
        p->len[way] -= (size_t)n;
        p->off[way] += (size_t)n;
        if (p->budget >= 0) p->budget -= (long)n;
        if (r->stall_after > 0 && (r->stall_after -= (long)n) <= 0) ddp__atomic_store(&r->stall, 1);
    }
    return p->budget != 0;
}

static void *relay_run(void *arg)
{
    relay *r = (relay *)arg;
    while (!ddp__atomic_load(&r->stop)) {
        struct pollfd polls[RELAY_ROUTES + 2 * RELAY_PAIRS];
        int i, way, n = 0;
        if (ddp__atomic_load(&r->stall)) {
            ddp__sleep_until(ddp_now() + 0.002);
            continue;
        }
        for (i = 0; i < r->routes; i++, n++) {
            polls[n].fd = r->listener[i];
            polls[n].events = POLLIN;
        }
        for (i = 0; i < RELAY_PAIRS; i++)
            for (way = 0; way < 2; way++, n++) {
                relay_pair *p = &r->pair[i];
                polls[n].fd = p->fd[way];
                polls[n].events = 0;
                if (!p->len[way]) polls[n].events |= POLLIN;
                if (p->len[!way]) polls[n].events |= POLLOUT;
            }
        if (poll(polls, (nfds_t)n, 20) <= 0) continue;
        for (i = 0; i < r->routes; i++)
            if (polls[i].revents) relay_accept(r, i);
        for (i = 0; i < RELAY_PAIRS; i++) {
            relay_pair *p = &r->pair[i];
            int ok = 1;
            if (p->fd[0] < 0 || !(polls[r->routes + 2 * i].revents | polls[r->routes + 2 * i + 1].revents))
                continue;
            for (way = 0; way < 2 && ok; way++) ok = relay_move(r, p, way);
            if (!ok) relay_break(r, p, p->budget == 0);
        }
    }
    return NULL;
}

/* Creates a route to the rank that listens at `to`. Returns its own address. */
static const ddp__addr *relay_route(relay *r, const ddp__addr *to)
{
    int count, k = r->routes++;
    assert_true(k < RELAY_ROUTES);
    r->to[k] = *to;
    assert_int_equal(ddp__addr_parse("127.0.0.1:0", &r->at[k], 1, &count, NULL), DDP_OK);
    assert_int_equal(ddp__tcp_listen(&r->at[k], &r->listener[k], &r->at[k], NULL), DDP_OK);
    return &r->at[k];
}

static void relay_begin(relay *r, uint64_t seed)
{
    int i;
    memset(r, 0, sizeof *r);
    r->rng = ddp_rng_seed(seed, 0);
    for (i = 0; i < RELAY_PAIRS; i++) r->pair[i].fd[0] = r->pair[i].fd[1] = -1;
}

static void relay_end(relay *r)
{
    int i;
    ddp__atomic_store(&r->stop, 1);
    pthread_join(r->thread, NULL);
    for (i = 0; i < RELAY_PAIRS; i++)
        if (r->pair[i].fd[0] >= 0) relay_break(r, &r->pair[i], 0);
    for (i = 0; i < r->routes; i++) close(r->listener[i]);
}

#endif /* RELAY_H */
