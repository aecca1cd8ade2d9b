#include "base/core.h"
#include "base/tools.h"
#include "wire/relay.h"
#include "wire/socket.h"

#include <poll.h>

#define DDP__RELAY_ROOM  ((size_t)64 << 10)
#define DDP__RELAY_LEAVE 5.0 /* seconds for those who are still talking when the relay closes */
#define DDP__RELAY_QUIET 1.0 /* and for those who are not */

/* One direction: from its socket into the buffer, from there to the other socket. */
typedef struct ddp__relay_way {
    unsigned char *bytes;      /* [DDP__RELAY_ROOM] */
    size_t begin, end;         /* what waits in it */
    int ended;                 /* nothing more comes */
    int deaf;                  /* the other socket takes nothing more: what comes is dropped */
    int shut;                  /* the other socket was told the end */
} ddp__relay_way;

typedef struct ddp__splice {
    int fd[2];
    ddp__relay_way way[2];           /* [i] begins at fd[i] */
    uint32_t name;                   /* 0 = none */
    int cut;                         /* it has to go */
} ddp__splice;

struct ddp__relay {
    pthread_mutex_t lock;
    pthread_t thread;
    int bell[2];               /* a pipe: a byte when there is news */
    ddp__splice **splice;      /* [count], under the lock with the next four */
    int count, room;
    int stop;
    double leave;
    int64_t bytes;
    struct pollfd *polls;      /* [2 x poll_room + 1], the thread's */
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

static int ddp__would_block(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

/* Moves what can be moved in one direction; bytes that came. A connection that breaks counts as
 * ended: what it said before is still delivered. */
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
        struct pollfd *grown = (struct pollfd *)DDP_REALLOC(
            r->polls, (2 * (size_t)r->room + 1) * sizeof *r->polls);
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
    char sink[64];
    int count, i, stopping = 0;

    ddp__thread_prompt();
    while ((count = ddp__relay_list(r, ddp_now(), moved)) >= 0) {
        struct pollfd *bell = &r->polls[2 * count];
        bell->fd = r->bell[0];
        bell->events = POLLIN;
        bell->revents = 0;
        if (poll(r->polls, (nfds_t)(2 * count + 1), stopping ? 100 : -1) < 0) continue;
        if (bell->revents) {
            while (read(r->bell[0], sink, sizeof sink) > 0) {}
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

static void ddp__relay_ring(ddp__relay *r)
{
    ssize_t n;

    do n = write(r->bell[1], "", 1); /* a full pipe rings by itself */
    while (n < 0 && errno == EINTR);
}

ddp_status ddp__relay_open(ddp__relay **out, ddp_error *err)
{
    ddp__relay *r = (ddp__relay *)ddp__calloc(1, sizeof *r);
    ddp_status bad = DDP_OK;
    int why;

    if (r) r->polls = (struct pollfd *)ddp__calloc(1, sizeof *r->polls);
    if (!r || !r->polls) {
        if (r) DDP_FREE(r);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a relay");
    }
    if (pipe(r->bell) < 0) {
        bad = ddp__fail(err, DDP_NET, "cannot make a pipe: %s", strerror(errno));
    } else {
        pthread_mutex_init(&r->lock, NULL);
        why = ddp__fd_prepare(r->bell[0]) < 0 || ddp__fd_prepare(r->bell[1]) < 0
                  ? errno
                  : pthread_create(&r->thread, NULL, ddp__relay_run, r);
        if (why) {
            bad = ddp__fail(err, DDP_FAILED, "cannot start the relay: %s", strerror(why));
            pthread_mutex_destroy(&r->lock);
            close(r->bell[0]);
            close(r->bell[1]);
        }
    }
    if (bad) {
        DDP_FREE(r->polls);
        DDP_FREE(r);
        return bad;
    }
    *out = r;
    return DDP_OK;
}

ddp_status ddp__relay_add(ddp__relay *r, int a, int b, ddp_error *err)
{
    return ddp__relay_add_named(r, a, b, 0, err);
}

void ddp__relay_cut(ddp__relay *r, uint32_t name)
{
    int i;

    pthread_mutex_lock(&r->lock);
    for (i = 0; i < r->count; i++)
        if (r->splice[i]->name == name) r->splice[i]->cut = 1;
    pthread_mutex_unlock(&r->lock);
    ddp__relay_ring(r);
}

ddp_status ddp__relay_add_named(ddp__relay *r, int a, int b, uint32_t name, ddp_error *err)
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
    ddp__relay_ring(r);
    return DDP_OK;
}

uint32_t ddp__relay_name(int low, int high) { return (uint32_t)low << 16 | (uint32_t)high; }

int64_t ddp__relay_bytes(ddp__relay *r) { return ddp__atomic_load(&r->bytes); }

void ddp__relay_close(ddp__relay *r)
{
    int i;

    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->stop = 1;
    r->leave = ddp_now() + DDP__RELAY_LEAVE;
    pthread_mutex_unlock(&r->lock);
    ddp__relay_ring(r);
    pthread_join(r->thread, NULL);
    for (i = 0; i < r->count; i++) ddp__splice_free(r->splice[i]);
    pthread_mutex_destroy(&r->lock);
    close(r->bell[0]);
    close(r->bell[1]);
    if (r->splice) DDP_FREE(r->splice);
    DDP_FREE(r->polls);
    DDP_FREE(r);
}
