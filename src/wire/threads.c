/* Streams between threads: one lock-free ring per ordered pair, one bell per rank.
 *
 * A rank that wants to sleep arms its bell by an atomic swap and then checks its rings again. A peer that
 * moved bytes swaps the bell to 0 and rings only if it was armed. Both are read-modify-writes of one
 * variable, so that the later one sees the effect of the earlier: no wake-up is lost, and no thread spins or
 * takes a lock while bytes flow. */
#include "wire/wire.h"

#define DDP__RING_BYTES ((size_t)64 << 10) /* a power of two */
#define DDP__LINE       64                 /* bytes of a cache line */

typedef struct ddp__ring {
    size_t head; /* bytes ever written, by the sender */
    char gap0[DDP__LINE - sizeof(size_t)];
    size_t tail; /* bytes ever read, by the receiver */
    char gap1[DDP__LINE - sizeof(size_t)];
    int ended; /* the sender has closed */
    int deaf;  /* the receiver has closed */
    unsigned char *data;
} ddp__ring;

typedef struct ddp__bell {
    int armed;  /* its rank sleeps or is about to */
    int called; /* wake() was called since the last wait */
    int taken;  /* a wire was made for this rank */
    int rung;   /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t cond;
} ddp__bell;

struct ddp__hub {
    int refs, world;
    int bells_ready;         /* bells with initialised lock and condition */
    ddp__bell *bells;        /* [world] */
    ddp__ring *rings;        /* [world][world - 1], sender major. A rank has no ring to itself. */
    unsigned char *data;     /* all rings */
    ddp__offer *offers;      /* [world][DDP__OFFERS] */
    struct ddp__hub *second; /* or NULL */
    ddp__wire_fn attach;     /* makes the wires, or NULL */
    void *attach_user;
    int link;
};

typedef struct ddp__thread_wire {
    ddp__wire base;
    ddp__hub *hub;
    unsigned char *told; /* [world] bit 0: recv has reported the end, bit 1: send has */
} ddp__thread_wire;

int ddp__wire_init(ddp__wire *w, const ddp__wire_table *table, int rank, int world)
{
    w->table = table;
    w->rank = rank;
    w->world = world;
    w->names = (char(*)[DDP__WIRE_NAME])ddp__calloc((size_t)world, sizeof *w->names);
    return w->names != NULL;
}

int ddp__wire_relay(const ddp__wire *w, int peer)
{
    return w->relays ? ddp__atomic_load(&w->relays[peer]) - 1 : -1;
}

static ddp__ring *ddp__hub_ring(ddp__hub *hub, int from, int to)
{
    return &hub->rings[(size_t)from * (size_t)(hub->world - 1) + (size_t)(to - (to > from))];
}

void ddp__hub_free(ddp__hub *hub)
{
    if (!hub || ddp__atomic_add(&hub->refs, -1) > 1) return;
    ddp__hub_free(hub->second);
    for (int r = 0; r < hub->bells_ready; r++) {
        pthread_mutex_destroy(&hub->bells[r].lock);
        pthread_cond_destroy(&hub->bells[r].cond);
    }
    DDP_FREE(hub->bells);
    DDP_FREE(hub->rings);
    DDP_FREE(hub->offers);
    DDP_FREE(hub->data);
    DDP_FREE(hub);
}

ddp__hub *ddp__hub_new(int world)
{
    ddp__hub *hub;
    size_t pairs, i;

    if (world < 1 || world > 4096) return NULL;
    pairs = (size_t)world * (size_t)(world - 1);
    hub = (ddp__hub *)ddp__calloc(1, sizeof *hub);
    if (!hub) return NULL;
    hub->refs = 1;
    hub->world = world;
    hub->bells = (ddp__bell *)ddp__calloc((size_t)world, sizeof *hub->bells);
    hub->rings = (ddp__ring *)ddp__calloc(pairs, sizeof *hub->rings);
    hub->offers = (ddp__offer *)ddp__calloc((size_t)world * DDP__OFFERS, sizeof *hub->offers);
    hub->data = (unsigned char *)DDP_REALLOC(NULL, pairs * DDP__RING_BYTES + 1); /* not touched yet */
    for (i = 0; hub->rings && i < pairs; i++) hub->rings[i].data = hub->data + i * DDP__RING_BYTES;
    while (hub->bells && hub->bells_ready < world && ddp__cond_init(&hub->bells[hub->bells_ready].cond) == 0)
        pthread_mutex_init(&hub->bells[hub->bells_ready++].lock, NULL); /* does not fail */
    if (hub->rings && hub->offers && hub->data && hub->bells_ready == world) return hub;
    ddp__hub_free(hub);
    return NULL;
}

ddp__hub *ddp__hub_making(int world, ddp__wire_fn attach, void *user)
{
    ddp__hub *hub = (ddp__hub *)ddp__calloc(1, sizeof *hub);

    if (!hub) return NULL;
    hub->refs = 1;
    hub->world = world;
    hub->attach = attach;
    hub->attach_user = user;
    return hub;
}

ddp__hub *ddp__hub_second(ddp__hub *hub, int make)
{
    if (!hub->second && make) {
        hub->second = hub->attach ? ddp__hub_making(hub->world, hub->attach, hub->attach_user)
                                  : ddp__hub_new(hub->world);
        if (hub->second) hub->second->link = 1;
    }
    return hub->second;
}

static void ddp__bell_ring(ddp__bell *b)
{
    if (!ddp__atomic_swap(&b->armed, 0)) return;
    pthread_mutex_lock(&b->lock);
    b->rung = 1;
    pthread_cond_signal(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

static long ddp__threads_send(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    ddp__hub *hub = ((ddp__thread_wire *)(void *)w)->hub;
    ddp__ring *ring = ddp__hub_ring(hub, w->rank, peer);
    size_t head = ring->head, room, moved = 0;

    if (ddp__atomic_load(&ring->deaf)) {
        ((ddp__thread_wire *)(void *)w)->told[peer] |= 2;
        errno = EPIPE;
        return -1;
    }
    room = DDP__RING_BYTES - (head - ddp__atomic_load(&ring->tail));
    for (int i = 0; i < count && room; i++) {
        const unsigned char *from = (const unsigned char *)iov[i].iov_base;
        size_t n = iov[i].iov_len < room ? iov[i].iov_len : room;
        size_t at = head & (DDP__RING_BYTES - 1), first = DDP__RING_BYTES - at;
        if (!n) continue;
        if (first > n) first = n;
        memcpy(ring->data + at, from, first);
        if (n > first) memcpy(ring->data, from + first, n - first);
        head += n;
        moved += n;
        room -= n;
    }
    if (moved) {
        ddp__atomic_store(&ring->head, head);
        ddp__bell_ring(&hub->bells[peer]);
    }
    return (long)moved;
}

static long ddp__threads_recv(ddp__wire *w, int peer, void *buf, size_t bytes)
{
    ddp__hub *hub = ((ddp__thread_wire *)(void *)w)->hub;
    ddp__ring *ring = ddp__hub_ring(hub, peer, w->rank);
    size_t tail = ring->tail, at = tail & (DDP__RING_BYTES - 1), first = DDP__RING_BYTES - at;
    int ended = ddp__atomic_load(&ring->ended); /* read before head: bytes sent before the end count */
    size_t n = ddp__atomic_load(&ring->head) - tail;

    if (!n && ended) {
        ((ddp__thread_wire *)(void *)w)->told[peer] |= 1;
        errno = ECONNRESET;
        return -1;
    }
    if (n > bytes) n = bytes;
    if (!n) return 0;
    if (first > n) first = n;
    memcpy(buf, ring->data + at, first);
    if (n > first) memcpy((unsigned char *)buf + first, ring->data, n - first);
    ddp__atomic_store(&ring->tail, tail + n);
    ddp__bell_ring(&hub->bells[peer]);
    return (long)n;
}

/* Returns 1 if wait() may return. A sender waits for a quarter of the ring to be free, not for a few bytes.
 * An end is reported once. */
static int ddp__threads_ready(ddp__wire *w, const unsigned char *want_send, const unsigned char *want_recv)
{
    ddp__thread_wire *t = (ddp__thread_wire *)(void *)w;
    ddp__hub *hub = t->hub;

    if (ddp__atomic_swap(&hub->bells[w->rank].called, 0)) return 1;
    for (int p = 0; p < w->world; p++) {
        if (p == w->rank) continue;
        if ((!want_recv || want_recv[p]) && !(t->told[p] & 1)) {
            ddp__ring *in = ddp__hub_ring(hub, p, w->rank);
            if (ddp__atomic_load(&in->head) != in->tail || ddp__atomic_load(&in->ended)) return 1;
        }
        if (want_send && want_send[p] && !(t->told[p] & 2)) {
            ddp__ring *out = ddp__hub_ring(hub, w->rank, p);
            size_t used = out->head - ddp__atomic_load(&out->tail);
            if (used <= DDP__RING_BYTES / 4 * 3 || ddp__atomic_load(&out->deaf)) return 1;
        }
    }
    return 0;
}

static void ddp__threads_wait(ddp__wire *w, const unsigned char *want_send, const unsigned char *want_recv,
                              double until)
{
    ddp__bell *b = &((ddp__thread_wire *)(void *)w)->hub->bells[w->rank];
    int late = 0;

    while (!late) {
        ddp__atomic_swap(&b->armed, 1);
        if (ddp__threads_ready(w, want_send, want_recv)) break;
        pthread_mutex_lock(&b->lock);
        while (!b->rung && !late) late = ddp__cond_wait_until(&b->cond, &b->lock, until) == ETIMEDOUT;
        b->rung = 0;
        pthread_mutex_unlock(&b->lock);
    }
    ddp__atomic_swap(&b->armed, 0);
}

static void ddp__threads_wake(ddp__wire *w)
{
    ddp__bell *b = &((ddp__thread_wire *)(void *)w)->hub->bells[w->rank];
    ddp__atomic_store(&b->called, 1);
    ddp__bell_ring(b);
}

/* Ends one direction: `from` sends no more, `to` receives no more. */
static void ddp__hub_end(ddp__hub *hub, int from, int to)
{
    ddp__atomic_store(&ddp__hub_ring(hub, from, to)->ended, 1);
    ddp__atomic_store(&ddp__hub_ring(hub, to, from)->deaf, 1);
    ddp__bell_ring(&hub->bells[to]);
}

void ddp__hub_leave(ddp__hub *hub, int rank)
{
    if (hub->attach) return; /* the carrier of the messages knows */
    for (int p = 0; p < hub->world; p++)
        if (p != rank) ddp__hub_end(hub, rank, p);
    if (hub->second && !ddp__atomic_load(&hub->second->bells[rank].taken))
        ddp__hub_leave(hub->second, rank); /* that rank will not use the second hub either */
}

static void ddp__threads_cut(ddp__wire *w, int peer)
{
    ddp__hub *hub = ((ddp__thread_wire *)(void *)w)->hub;

    ddp__hub_end(hub, w->rank, peer);
    ddp__hub_end(hub, peer, w->rank);
}

static void ddp__threads_free(ddp__thread_wire *t)
{
    DDP_FREE(t->told);
    DDP_FREE(t->base.names);
    DDP_FREE(t);
}

static void ddp__threads_close(ddp__wire *w)
{
    ddp__thread_wire *t = (ddp__thread_wire *)(void *)w;

    ddp__hub_leave(t->hub, w->rank);
    ddp__hub_free(t->hub);
    ddp__threads_free(t);
}

static const ddp__wire_table ddp__threads_table = {ddp__threads_send,
                                                   ddp__threads_recv,
                                                   ddp__threads_wait,
                                                   ddp__threads_wake,
                                                   ddp__threads_close,
                                                   ddp__threads_cut,
                                                   NULL};

ddp_status ddp__wire_threads(ddp__hub *hub, int rank, ddp__wire **out, ddp_error *err)
{
    ddp__thread_wire *t;

    if (!hub || !out) return ddp__fail(err, DDP_ARG, "hub and out must not be NULL");
    if (rank < 0 || rank >= hub->world)
        return ddp__fail(err, DDP_ARG, "rank %d is outside 0..%d", rank, hub->world - 1);
    if (hub->attach) return hub->attach(hub->attach_user, hub->link, rank, out, err);
    t = (ddp__thread_wire *)ddp__calloc(1, sizeof *t);
    if (t) t->told = (unsigned char *)ddp__calloc((size_t)hub->world, 1);
    if (!t || !t->told || !ddp__wire_init(&t->base, &ddp__threads_table, rank, hub->world)) {
        if (t) ddp__threads_free(t);
        return ddp__fail(err, DDP_MEMORY, "out of memory for the wire of rank %d", rank);
    }
    if (ddp__atomic_swap(&hub->bells[rank].taken, 1)) {
        ddp__threads_free(t);
        return ddp__fail(err, DDP_ARG, "rank %d is already used: give each thread a different rank", rank);
    }
    for (int p = 0; p < hub->world; p++) snprintf(t->base.names[p], DDP__WIRE_NAME, "thread %d", p);
    t->base.pair_bytes = DDP__RING_BYTES;
    t->base.offers = hub->offers;
    t->base.intact = 1;
    t->hub = hub;
    ddp__atomic_add(&hub->refs, 1);
    *out = &t->base;
    return DDP_OK;
}
