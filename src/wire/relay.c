/* Rank 0 passes on what two others say to each other. */
#include "base/core.h"
#include "base/tools.h"
#include "base/thread.h"
#include "wire/relay.h"
#include "wire/tcp.h"

#define DDP__RELAY_ROOM ((size_t)64 << 10)
#define DDP__RELAY_LEAVE 5.0 /* seconds for those who are still talking when the relay closes */
#define DDP__RELAY_QUIET 1.0 /* and for those who are not */

/* One direction: from its socket into the buffer, from there to the other socket. */
typedef struct ddp__relay_way {
    unsigned char *bytes; /* [DDP__RELAY_ROOM] */
    size_t begin, end;    /* what waits in it */
    int ended;            /* nothing more comes */
    int deaf;             /* the other socket takes nothing more: what comes is dropped */
    int shut;             /* the other socket was told the end */
} ddp__relay_way;

typedef struct ddp__splice {
    int fd[2];
    ddp__relay_way way[2]; /* [i] begins at fd[i] */
    uint32_t name;         /* 0 = none */
    int cut;               /* it has to go */
} ddp__splice;

struct ddp__relay {
    pthread_mutex_t lock;
    pthread_t thread;
    ddp__waker bell;      /* rings when there is news */
    ddp__splice **splice; /* [count], under the lock with the next four */
    int count, room;
    int stop;
    double leave;
    int64_t bytes;
    struct pollfd *polls; /* [2 x poll_room + 1], the thread's */
    int poll_room;
};

static void ddp__splice_free(ddp__splice *s)
{
    int i;

    if (!s) return;
    for (i = 0; i < 2; i++) {
        if (s->fd[i] >= 0) close(s->fd[i]);
        if (s->way[i].bytes) DDP_FREE(s->way[i].bytes);
    }
    DDP_FREE(s);
}

static int ddp__would_block(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

/* Moves what can be moved in one direction; bytes that came. A connection that breaks counts as ended: what it said
 * before is still delivered. */
static size_t ddp__way_move(ddp__relay_way *w, int from, int to)
{
    size_t came = 0;
    ssize_t n;

    if (!w->ended && w->end < DDP__RELAY_ROOM) {
        n = recv(from, w->bytes + w->end, DDP__RELAY_ROOM - w->end, 0);
        if (n > 0) came = (size_t)n;
        else if (n == 0 || !ddp__would_block()) w->ended = 1;
        w->end += came;
    }
    while (w->begin < w->end && !w->deaf) {
        n = send(to, w->bytes + w->begin, w->end - w->begin, DDP__NOSIGNAL);
        if (n < 0 && ddp__would_block()) break;
        if (n < 0) w->deaf = 1;
        else w->begin += (size_t)n;
    }
    if (w->deaf || w->begin == w->end) w->begin = w->end = 0;
    if (w->ended && w->begin == w->end && !w->shut) {
        shutdown(to, SHUT_WR);
        w->shut = 1;
    }
    return came;
}

/* What to wait for on fd[i]. */
static short ddp__splice_events(const ddp__splice *s, int i)
{
    const ddp__relay_way *out = &s->way[1 - i];
    int events = 0;

    if (!s->way[i].ended && s->way[i].end < DDP__RELAY_ROOM) events |= POLLIN;
    if (out->begin < out->end) events |= POLLOUT;
    return (short)events;
}

/* Fills the poll list under the lock; the number of pairs, or -1 when the thread has to end. */
static int ddp__relay_list(ddp__relay *r, double now, double moved)
{
    int count, i, k;

    pthread_mutex_lock(&r->lock);
    for (i = 0; i < r->count; i++) {
        ddp__splice *s = r->splice[i];
        if (!s->cut && (!s->way[0].shut || !s->way[1].shut)) continue;
        ddp__splice_free(s);
        r->splice[i--] = r->splice[--r->count];
    }
    count = r->count;
    if (count > r->poll_room) {
        struct pollfd *grown = (struct pollfd *)DDP_REALLOC(r->polls, (2 * (size_t)r->room + 1) * sizeof *r->polls);
        if (grown) {
            r->polls = grown;
            r->poll_room = r->room;
        } else {
            count = r->poll_room; /* the others wait for a place */
        }
    }
    for (i = 0; i < count; i++) {
        for (k = 0; k < 2; k++) {
            struct pollfd *p = &r->polls[2 * i + k];
            p->events = ddp__splice_events(r->splice[i], k);
            p->fd = p->events ? r->splice[i]->fd[k] : -1; /* else a hang-up would keep us awake */
            p->revents = 0;
        }
    }
    if (r->stop && (!count || now >= r->leave || now >= moved + DDP__RELAY_QUIET)) count = -1;
    pthread_mutex_unlock(&r->lock);
    return count;
}

static void *ddp__relay_run(void *arg)
{
    ddp__relay *r = (ddp__relay *)arg;
    double moved = ddp_now();
    int count, i, stopping = 0;

    ddp__thread_prompt();
    while ((count = ddp__relay_list(r, ddp_now(), moved)) >= 0) {
        struct pollfd *bell = &r->polls[2 * count];
        bell->fd = r->bell.fd[0];
        bell->events = POLLIN;
        bell->revents = 0;
        if (poll(r->polls, (nfds_t)(2 * count + 1), stopping ? 100 : -1) < 0) continue;
        if (bell->revents) {
            ddp__waker_drain(&r->bell);
            pthread_mutex_lock(&r->lock);
            if (r->stop && !stopping) {
                stopping = 1;
                moved = ddp_now();
            }
            pthread_mutex_unlock(&r->lock);
        }
        for (i = 0; i < count; i++) { /* only this thread takes pairs away: they stay in place */
            ddp__splice *s;
            size_t came;
            if (!r->polls[2 * i].revents && !r->polls[2 * i + 1].revents) continue;
            pthread_mutex_lock(&r->lock); /* the list may be moved by one who adds to it */
            s = r->splice[i];
            pthread_mutex_unlock(&r->lock);
            came = ddp__way_move(&s->way[0], s->fd[0], s->fd[1]);
            came += ddp__way_move(&s->way[1], s->fd[1], s->fd[0]);
            if (!came) continue;
            moved = ddp_now();
            ddp__atomic_add(&r->bytes, (int64_t)came);
        }
    }
    return NULL;
}

ddp_status ddp__relay_open(ddp__relay **out, ddp_error *err)
{
    ddp__relay *r = (ddp__relay *)ddp__calloc(1, sizeof *r);
    ddp_status bad = DDP_OK;
    int why;

    if (r) r->polls = (struct pollfd *)ddp__calloc(1, sizeof *r->polls);
    if (!r || !r->polls) bad = ddp__fail(err, DDP_MEMORY, "out of memory for a relay");
    if (!bad) bad = ddp__waker_open(&r->bell, err);
    if (!bad) {
        pthread_mutex_init(&r->lock, NULL);
        why = pthread_create(&r->thread, NULL, ddp__relay_run, r);
        if (why) {
            bad = ddp__fail(err, DDP_FAILED, "cannot start the relay: %s", strerror(why));
            pthread_mutex_destroy(&r->lock);
        }
    }
    if (!bad) {
        *out = r;
        return DDP_OK;
    }
    if (r) ddp__waker_close(&r->bell);
    if (r) DDP_FREE(r->polls);
    DDP_FREE(r);
    return bad;
}

void ddp__relay_cut(ddp__relay *r, uint32_t name)
{
    int i;

    pthread_mutex_lock(&r->lock);
    for (i = 0; i < r->count; i++)
        if (r->splice[i]->name == name) r->splice[i]->cut = 1;
    pthread_mutex_unlock(&r->lock);
    ddp__waker_wake(&r->bell);
}

ddp_status ddp__relay_add(ddp__relay *r, int a, int b, uint32_t name, ddp_error *err)
{
    ddp__splice *s = (ddp__splice *)ddp__calloc(1, sizeof *s), **grown;
    int ok = 0, i;

    if (!s) {
        close(a);
        close(b);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a relayed connection");
    }
    s->fd[0] = a;
    s->fd[1] = b;
    s->name = name;
    for (i = 0; i < 2; i++) s->way[i].bytes = (unsigned char *)ddp__calloc(1, DDP__RELAY_ROOM);
    if (s->way[0].bytes && s->way[1].bytes) {
        pthread_mutex_lock(&r->lock);
        if (r->count == r->room) {
            int room = r->room ? 2 * r->room : 8;
            grown = (ddp__splice **)DDP_REALLOC(r->splice, (size_t)room * sizeof *grown);
            if (grown) {
                r->splice = grown;
                r->room = room;
            }
        }
        ok = r->count < r->room;
        if (ok) r->splice[r->count++] = s;
        pthread_mutex_unlock(&r->lock);
    }
    if (!ok) {
        ddp__splice_free(s);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a relayed connection");
    }
    ddp__waker_wake(&r->bell);
    return DDP_OK;
}

int64_t ddp__relay_bytes(ddp__relay *r) { return ddp__atomic_load(&r->bytes); }

void ddp__relay_close(ddp__relay *r)
{
    int i;

    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->stop = 1;
    r->leave = ddp_now() + DDP__RELAY_LEAVE;
    pthread_mutex_unlock(&r->lock);
    ddp__waker_wake(&r->bell);
    pthread_join(r->thread, NULL);
    for (i = 0; i < r->count; i++) ddp__splice_free(r->splice[i]);
    pthread_mutex_destroy(&r->lock);
    ddp__waker_close(&r->bell);
    if (r->splice) DDP_FREE(r->splice);
    DDP_FREE(r->polls);
    DDP_FREE(r);
}

/* ---- who asks ---- */

/* The entry of that pair, a new one if there is none; NULL when memory is short. */
static ddp__pair *ddp__pairs_find(ddp__pairs *x, int low, int high)
{
    ddp__pair *p;
    int i;

    for (i = 0; i < x->count; i++)
        if (x->pair[i].low == low && x->pair[i].high == high) return &x->pair[i];
    if (x->count == x->room) {
        int room = x->room ? 2 * x->room : 8;
        p = (ddp__pair *)DDP_REALLOC(x->pair, (size_t)room * sizeof *p);
        if (!p) return NULL;
        x->pair = p;
        x->room = room;
    }
    p = &x->pair[x->count++];
    p->low = low;
    p->high = high;
    p->fd[0] = p->fd[1] = -1;
    return p;
}

int ddp__pairs_tell(ddp__pairs *x, int fd, int about)
{
    unsigned char b[DDP__HELLO_BYTES];

    ddp__hello_pack(x->self, DDP__RELAY, DDP__WELCOME, about, b);
    return ddp__stream_send_all(x->tls, fd, b, sizeof b, ddp_now() + 1);
}

/* Both ends are here: tells them, and joins their connections. */
static ddp_status ddp__pairs_join(ddp__pairs *x, ddp__pair *p, uint32_t name, ddp_error *err)
{
    ddp__pair v = *p;
    ddp_status bad = DDP_OK;
    int k;

    *p = x->pair[--x->count];
    if (!x->relay) bad = ddp__relay_open(&x->relay, err);
    for (k = 0; k < 2 && !bad; k++) bad = ddp__tcp_tune(v.fd[k], x->peer_timeout_s, x->congestion, err);
    if (bad || ddp__pairs_tell(x, v.fd[0], v.high) < 0 || ddp__pairs_tell(x, v.fd[1], v.low) < 0) {
        for (k = 0; k < 2; k++) ddp__stream_close(x->tls, v.fd[k]); /* its end sees that, and asks once more */
        return bad;
    }
    for (k = 0; k < 2; k++) ddp__stream_leave(x->tls, v.fd[k]); /* what follows is between those two */
    ddp__log(x->log, DDP_LOG_WARN, "ranks %d and %d cannot connect directly: rank 0 relays between them", v.low,
             v.high);
    return ddp__relay_add(x->relay, v.fd[0], v.fd[1], name, err);
}

ddp_status ddp__pairs_take(ddp__pairs *x, const ddp__hello *h, int fd, int *waits_for, ddp_error *err)
{
    int me = (int)h->rank, other = (int)h->detail, high = me > other;
    ddp__pair *p = ddp__pairs_find(x, high ? other : me, high ? me : other);
    uint32_t name;

    *waits_for = 0;
    if (!p) {
        ddp__stream_close(x->tls, fd);
        return ddp__fail(err, DDP_MEMORY, "out of memory for the relay of ranks %d and %d", me, other);
    }
    name = (uint32_t)p->low << 16 | (uint32_t)p->high;
    if (x->relay) ddp__relay_cut(x->relay, name); /* so that the other end hears of it, and asks too */
    ddp__stream_close(x->tls, p->fd[high]);       /* an earlier attempt of the same rank */
    p->fd[high] = fd;
    if (p->fd[1 - high] >= 0) return ddp__pairs_join(x, p, name, err);
    *waits_for = other;
    return DDP_OK;
}

void ddp__pairs_close(ddp__pairs *x)
{
    for (int i = 0; i < x->count; i++)
        for (int k = 0; k < 2; k++) ddp__stream_close(x->tls, x->pair[i].fd[k]);
    if (x->pair) DDP_FREE(x->pair);
    memset(x, 0, sizeof *x);
}
