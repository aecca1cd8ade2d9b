/* Relay: forwards the bytes of two other ranks that cannot connect directly, with a thread per direction. */
#include "wire/tcp.h"

#define DDP__RELAY_ROOM  ((size_t)64 << 10)
#define DDP__RELAY_LEAVE 5.0 /* in seconds: for connections with traffic when the relay closes */
#define DDP__RELAY_QUIET 1.0 /* in seconds: for connections without traffic */

typedef struct ddp__relay_way {
    struct ddp__splice *splice;
    int from, to;
    unsigned char bytes[DDP__RELAY_ROOM];
} ddp__relay_way;

/* Two joined connections. */
typedef struct ddp__splice {
    struct ddp__relay *relay;
    struct ddp__splice *next;
    int fd[2], ways; /* directions that have not ended */
    uint32_t name;   /* 0: none */
    ddp__relay_way way[2];
} ddp__splice;

struct ddp__relay {
    pthread_mutex_t lock; /* of the list and its elements */
    pthread_cond_t changed;
    ddp__splice *first;
    int64_t bytes;
};

static void ddp__splice_shut(ddp__splice *s)
{
    shutdown(s->fd[0], SHUT_RDWR);
    shutdown(s->fd[1], SHUT_RDWR);
}

/* Ends one direction and shuts down the other end. The last of the two closes the connections. */
static void ddp__way_over(ddp__splice *s)
{
    ddp__splice **at;
    ddp__relay *r = s->relay;

    pthread_mutex_lock(&r->lock);
    if (--s->ways == 0) {
        for (at = &r->first; *at != s; at = &(*at)->next) {
        }
        *at = s->next;
        close(s->fd[0]);
        close(s->fd[1]);
        DDP_FREE(s);
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
}

/* Forwards one direction. A broken connection counts as ended: bytes already received are delivered. Bytes
 * that the receiver does not take are dropped. */
static void *ddp__way_run(void *arg)
{
    ddp__relay_way *w = (ddp__relay_way *)arg;
    int deaf = 0;
    long n;

    ddp__thread_prompt();
    while ((n = ddp__stream_recv(NULL, w->from, w->bytes, sizeof w->bytes)) >= 0) {
        if (n == 0) (void)ddp__fd_wait(w->from, POLLIN, ddp_now() + 3600);
        if (n > 0 && !deaf)
            deaf = ddp__stream_send_all(NULL, w->to, w->bytes, (size_t)n, ddp_now() + 1e9) < 0;
        ddp__atomic_add(&w->splice->relay->bytes, (int64_t)n);
    }
    shutdown(w->to, SHUT_WR);
    ddp__way_over(w->splice);
    return NULL;
}

ddp_status ddp__relay_open(ddp__relay **out, ddp_error *err)
{
    ddp__relay *r = (ddp__relay *)ddp__calloc(1, sizeof *r);

    if (!r || ddp__cond_init(&r->changed)) {
        DDP_FREE(r);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a relay");
    }
    pthread_mutex_init(&r->lock, NULL);
    *out = r;
    return DDP_OK;
}

void ddp__relay_cut(ddp__relay *r, uint32_t name)
{
    pthread_mutex_lock(&r->lock);
    for (ddp__splice *s = r->first; s; s = s->next)
        if (s->name == name) ddp__splice_shut(s);
    pthread_mutex_unlock(&r->lock);
}

ddp_status ddp__relay_add(ddp__relay *r, int a, int b, uint32_t name, ddp_error *err)
{
    ddp__splice *s = (ddp__splice *)ddp__calloc(1, sizeof *s);
    pthread_t thread;
    int k, why = 0;

    if (!s) {
        close(a);
        close(b);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a relayed connection");
    }
    s->relay = r;
    s->fd[0] = a;
    s->fd[1] = b;
    s->name = name;
    s->ways = 2;
    pthread_mutex_lock(&r->lock);
    s->next = r->first;
    r->first = s;
    for (k = 0; k < 2; k++) {
        s->way[k].splice = s;
        s->way[k].from = s->fd[k];
        s->way[k].to = s->fd[1 - k];
        why = pthread_create(&thread, NULL, ddp__way_run, &s->way[k]);
        if (why) break;
        pthread_detach(thread);
    }
    if (why) ddp__splice_shut(s);
    pthread_mutex_unlock(&r->lock);
    for (; k < 2; k++) ddp__way_over(s); /* the directions without a thread */
    return why ? ddp__fail(err, DDP_FAILED, "cannot start a relay: %s", strerror(why)) : DDP_OK;
}

int64_t ddp__relay_bytes(ddp__relay *r) { return ddp__atomic_load(&r->bytes); }

void ddp__relay_close(ddp__relay *r)
{
    double now = ddp_now(), moved = now, leave = now + DDP__RELAY_LEAVE;
    int64_t last = -1;

    if (!r) return;
    pthread_mutex_lock(&r->lock);
    while (r->first) {
        now = ddp_now();
        if (ddp__relay_bytes(r) != last) moved = now;
        last = ddp__relay_bytes(r);
        if (now >= leave || now >= moved + DDP__RELAY_QUIET)
            for (ddp__splice *s = r->first; s; s = s->next) ddp__splice_shut(s);
        (void)ddp__cond_wait_until(&r->changed, &r->lock, now + 0.1);
    }
    pthread_mutex_unlock(&r->lock);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    DDP_FREE(r);
}

/* A relay thread may have held the lock during the fork. Then the list may be inconsistent, and its
 * descriptors stay open. */
void ddp__relay_disown(ddp__relay *r)
{
    if (!r || pthread_mutex_trylock(&r->lock)) return;
    for (ddp__splice *s = r->first; s; s = s->next)
        for (int k = 0; k < 2; k++) ddp__fd_close(&s->fd[k]);
    pthread_mutex_unlock(&r->lock);
}

/* ---- requests for a relayed connection ---- */

/* Returns the entry of that pair, creating it if needed, or NULL if memory is short. */
static ddp__pair *ddp__pairs_find(ddp__pairs *x, int low, int high)
{
    const ddp__pair fresh = {low, high, {-1, -1}};

    for (int i = 0; i < ddp__count(x->pair); i++)
        if (x->pair[i].low == low && x->pair[i].high == high) return &x->pair[i];
    if (!ddp__reserve(x->pair, ddp__count(x->pair) + 1)) return NULL;
    stbds_arrput(x->pair, fresh);
    return &stbds_arrlast(x->pair);
}

int ddp__pairs_tell(ddp__pairs *x, int fd, int about)
{
    return ddp__hello_send(x->c->tls, fd, &x->c->self, DDP__RELAY, DDP__WELCOME, about);
}

/* Both ends are connected: notifies and joins them. */
static ddp_status ddp__pairs_join(ddp__pairs *x, ddp__pair *p, uint32_t name, ddp_error *err)
{
    ddp__pair v = *p;
    ddp_status bad = DDP_OK;

    *p = stbds_arrpop(x->pair);
    if (!x->c->relay) bad = ddp__relay_open(&x->c->relay, err);
    for (int k = 0; k < 2 && !bad; k++)
        bad = ddp__tcp_tune(v.fd[k], x->c->peer_timeout_s, x->c->congestion, err);
    if (bad || ddp__pairs_tell(x, v.fd[0], v.high) < 0 || ddp__pairs_tell(x, v.fd[1], v.low) < 0) {
        for (int k = 0; k < 2; k++)
            ddp__stream_close(x->c->tls, v.fd[k]); /* its end notices and asks again */
        return bad;
    }
    for (int k = 0; k < 2; k++)
        ddp__stream_leave(x->c->tls, v.fd[k]); /* all further bytes are between these two */
    ddp__log(&x->c->log, DDP_LOG_WARN, "ranks %d and %d cannot connect directly: rank %d relays between them",
             v.low, v.high, x->c->rank);
    return ddp__relay_add(x->c->relay, v.fd[0], v.fd[1], name, err);
}

ddp_status ddp__pairs_take(ddp__pairs *x, const ddp__hello *h, int fd, int *waits_for, ddp_error *err)
{
    int me = (int)h->rank, other = (int)h->detail, high = me > other;
    ddp__pair *p = ddp__pairs_find(x, high ? other : me, high ? me : other);
    uint32_t name;
    int before;

    *waits_for = -1;
    if (!p) {
        ddp__stream_close(x->c->tls, fd);
        return ddp__fail(err, DDP_MEMORY, "out of memory for the relay of ranks %d and %d", me, other);
    }
    name = (uint32_t)p->low << 16 | (uint32_t)p->high;
    if (x->c->relay) ddp__relay_cut(x->c->relay, name); /* the other end then notices and asks again */
    before = p->fd[high];                               /* an earlier attempt of the same rank */
    p->fd[high] = fd;
    ddp__stream_close(x->c->tls, before);
    if (p->fd[1 - high] >= 0) return ddp__pairs_join(x, p, name, err);
    *waits_for = other;
    return DDP_OK;
}

void ddp__pairs_close(ddp__pairs *x)
{
    for (int i = 0; i < ddp__count(x->pair); i++)
        for (int k = 0; k < 2; k++) ddp__stream_close(x->c->tls, x->pair[i].fd[k]);
    ddp__array_free(x->pair);
    memset(x, 0, sizeof *x);
}
