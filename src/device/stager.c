/* Implements the stager: two threads between pinned memory and the engine. */
#include "context/context.h"
#include "device/device.h"
#include "device/stager.h"
#include "exchange/average.h"
#include "exchange/exchange.h"

/* Limit of pinned memory. Layers are sent one by one and links are slow, so this amount is enough. */
#define DDP__STAGER_BYTES ((size_t)256 << 20)

typedef enum ddp__stager_state {
    DDP__STAGER_FREE,
    DDP__STAGER_QUEUED, /* its event may be pending */
    DDP__STAGER_SENT,   /* the engine has it */
    DDP__STAGER_BACK    /* the engine is done. The result is copied to the device. */
} ddp__stager_state;

/* A ring buffer. Parts are freed in the order in which they are allocated. head and tail never decrease. */
typedef struct ddp__stager_ring {
    char *data;
    size_t bytes, head, tail;
} ddp__stager_ring;

typedef struct ddp__stager_entry {
    ddp_message m;
    ddp_piece *piece; /* a list: m.from and m.to, then as the engine has it */
    int there;
    ddp__stager_state state;
    ddp_piece *host;  /* [m.here + 1] pieces in host memory, then the device's values, pinned */
    void *codes;      /* on the device: blocks that it has made, or NULL */
    size_t codes_end; /* end in the ring of blocks, free when copied */
    size_t end;       /* end in the pinned ring, free when done, or 0 for none used */
    char *pinned;
    long operation; /* ticket of the engine */
    double divergence;
} ddp__stager_entry;

struct ddp__stager {
    ddp_ctx *d;
    const ddp_backend *b;
    void *device;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t out, in; /* to the engine, and back */
    int threads;       /* number of running threads */
    int stop;          /* atomic: both threads end */
    int woken;         /* atomic: the second thread reads its list again */
    int room;
    int slots;                      /* flags on the device */
    ddp__stager_entry *entry;       /* [room] ticket t is in entry t % room */
    long submitted, sent, first;    /* tickets below first are done */
    long *waiting;                  /* [2 x room] the tickets of the engine, then of the stager. Workspace of
                                       the second thread. */
    ddp__stager_ring pinned, codes; /* codes: on the device, blocks that are not copied yet. May be empty. */
    ddp_error error;
};

static unsigned ddp__stager_turn(const ddp__stager *s, long ticket)
{
    return (unsigned)(ticket / s->room) + 1;
}

/* Stores the first error. Call it under the lock. Releases all waiting threads and device work. */
static void ddp__stager_fail(ddp__stager *s, const ddp_error *why)
{
    if (s->error.code == DDP_OK) s->error = *why;
    s->b->raise_all(s->device);
    pthread_cond_broadcast(&s->changed);
}

static size_t ddp__stager_unit(const ddp_message *m) { return m->bytes ? 1 : sizeof(float); }

/* Returns the number of values of a message that are on the device. */
static size_t ddp__stager_count(const ddp_message *m)
{
    size_t n = 0;

    for (int i = m->here; i < m->from_count; i++) n += m->from[i].count;
    return n;
}

/* Returns the bytes of the ring that it needs: its values, followed by blocks. */
static size_t ddp__stager_bytes(const ddp__stager_entry *x)
{
    const size_t n = x->there ? ddp__stager_count(&x->m) : 0;

    return n * ddp__stager_unit(&x->m) + (x->codes ? ddp__coded_bytes(&x->m, n) : 0);
}

/* Allocates a contiguous part of a ring, and stores its end. Returns NULL if the part is not free yet. Call
 * it under the lock. */
static char *ddp__stager_take(ddp__stager_ring *r, size_t bytes, size_t *end)
{
    size_t at;

    bytes = (bytes + 255) / 256 * 256;
    if (r->head == r->tail) r->head = r->tail = 0;
    at = r->head;
    if (at % r->bytes + bytes > r->bytes) at += r->bytes - at % r->bytes;
    if (at + bytes - r->tail > r->bytes) return NULL;
    *end = r->head = at + bytes;
    return r->data + at % r->bytes;
}

/* ---- to the engine ---- */

static ddp_status ddp__stager_fetch(ddp__stager *s, ddp__stager_entry *x, int slot, ddp_error *err)
{
    char *to = x->pinned;

    (x->host + x->m.here)->bytes = to;
    (x->host + x->m.here)->count = ddp__stager_count(&x->m);
    if (x->codes) { /* copy the small blocks. The host makes the values. */
        to += x->host->count * sizeof(float);
        return s->b->fetch(s->device, slot, to, x->codes, ddp__coded_bytes(&x->m, x->host->count), err);
    }
    for (int i = x->m.here; i < x->m.from_count; i++) {
        const ddp_piece *p = &x->m.from[i];
        const size_t bytes = p->count * ddp__stager_unit(&x->m);
        DDP__TRY(s->b->fetch(s->device, slot, to, p->bytes, bytes, err));
        to += bytes;
    }
    return DDP_OK;
}

static ddp_status ddp__stager_send(ddp__stager *s, ddp__stager_entry *x, int slot, ddp_error *err)
{
    ddp_message m = x->m;

    if (x->there) {
        DDP__TRY(ddp__stager_fetch(s, x, slot, err));
        m.from = x->host;
        m.from_count = m.here + 1;
        m.to = NULL;
        if (x->codes)
            DDP__TRY(ddp__coded_read(s->d, &m, (const unsigned char *)(x->host->data + x->host->count), err));
        else if (ddp__coded_rounds(&m))
            DDP__TRY(ddp__coded_round(s->d, &m, err));
    }
    if (m.divergence) m.divergence = &x->divergence;
    return ddp__engine_submit(ddp__engine_of(s->d, 0), &m, &x->operation, err);
}

static void *ddp__stager_out(void *user)
{
    ddp__stager *s = (ddp__stager *)user;
    ddp_error why = DDP__ZEROS;

    pthread_mutex_lock(&s->lock);
    while (!s->stop && s->error.code == DDP_OK) {
        ddp__stager_entry *x = &s->entry[s->sent % s->room];
        const size_t bytes = s->sent < s->submitted ? ddp__stager_bytes(x) : 0;
        const int slot = (int)(s->sent % s->room);

        if (bytes) x->pinned = ddp__stager_take(&s->pinned, bytes, &x->end);
        if (s->sent == s->submitted || (bytes && !x->pinned)) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        (void)ddp__stager_send(s, x, slot, &why);
        pthread_mutex_lock(&s->lock);
        if (why.code != DDP_OK) {
            ddp__stager_fail(s, &why);
        } else {
            x->state = DDP__STAGER_SENT;
            if (x->codes) s->codes.tail = x->codes_end;
            s->sent++;
            pthread_cond_broadcast(&s->changed);
            ddp__atomic_store(&s->woken, 1);
            ddp__engine_nudge(ddp__engine_of(s->d, 0));
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- and back ---- */

static ddp_status ddp__stager_give(ddp__stager *s, const ddp__stager_entry *x, ddp_error *err)
{
    const ddp_piece *to = x->m.to ? x->m.to : x->m.from;
    const int count = x->m.to ? x->m.to_count : x->m.from_count;
    const char *from;

    if (!x->there || (x->m.verb >= DDP_SEND && x->m.verb < DDP_RECEIVE))
        return DDP_OK; /* a send has no result to copy back */
    from = (const char *)(x->host + x->m.here)->bytes;
    for (int i = x->m.here; i < count; i++) {
        const size_t bytes = to[i].count * ddp__stager_unit(&x->m);
        DDP__TRY(s->b->give(s->device, to[i].bytes, from, bytes, err));
        from += bytes;
    }
    return DDP_OK;
}

/* Copies a result back. Call it under the lock, which it releases meanwhile. */
static void ddp__stager_return(ddp__stager *s, long ticket)
{
    const int slot = (int)(ticket % s->room);
    ddp__stager_entry *x = &s->entry[slot];
    ddp_error why = DDP__ZEROS;
    ddp_status bad;

    x->state = DDP__STAGER_BACK;
    pthread_mutex_unlock(&s->lock);
    bad = ddp__engine_wait(ddp__engine_of(s->d, 0), x->operation, &why);
    if (bad == DDP_OK) bad = ddp__stager_give(s, x, &why);
    if (bad == DDP_OK && x->codes) bad = ddp__coded_rest(s->d, &x->m, x->host->count, &why);
    if (bad == DDP_OK) s->b->raise(s->device, slot, ddp__stager_turn(s, ticket));
    pthread_mutex_lock(&s->lock);
    if (bad != DDP_OK) {
        ddp__stager_fail(s, &why);
        return;
    }
    if (x->m.divergence) *x->m.divergence = x->divergence;
    x->state = DDP__STAGER_FREE;
    while (s->first < s->sent && s->entry[s->first % s->room].state == DDP__STAGER_FREE) {
        const ddp__stager_entry *oldest = &s->entry[s->first++ % s->room];
        if (oldest->end) s->pinned.tail = oldest->end;
    }
    pthread_cond_broadcast(&s->changed);
}

static void *ddp__stager_in(void *user)
{
    ddp__stager *s = (ddp__stager *)user;

    pthread_mutex_lock(&s->lock);
    while (!s->stop && s->error.code == DDP_OK) {
        int n = 0, done;

        ddp__atomic_store(&s->woken, 0);
        for (long t = s->first; t < s->sent; t++) {
            const ddp__stager_entry *x = &s->entry[t % s->room];
            if (x->state != DDP__STAGER_SENT) continue;
            s->waiting[n] = x->operation;
            s->waiting[s->room + n++] = t;
        }
        if (n == 0) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        done = ddp__engine_wait_any(ddp__engine_of(s->d, 0), s->waiting, n, &s->woken);
        pthread_mutex_lock(&s->lock);
        /* none: a message was added, or the engine failed and the oldest message then reports it */
        if (done < 0 && !ddp__atomic_load(&s->woken)) done = 0;
        if (done >= 0 && !s->stop) ddp__stager_return(s, s->waiting[s->room + done]);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- opening and closing ---- */

static int ddp__stager_memory(ddp__stager *s, size_t bytes, size_t total)
{
    const size_t n = (size_t)s->room;

    s->pinned.bytes = total < DDP__STAGER_BYTES ? total : DDP__STAGER_BYTES;
    if (s->pinned.bytes < bytes) s->pinned.bytes = bytes;
    s->pinned.bytes = (s->pinned.bytes / 256 + 1 + n) * 256; /* parts are rounded up to 256 */
    s->entry = (ddp__stager_entry *)ddp__scratch_take(ddp__lists_of(s->d), n, sizeof *s->entry);
    s->waiting = (long *)ddp__scratch_take(ddp__lists_of(s->d), 2 * n, sizeof *s->waiting);
    s->pinned.data = (char *)s->b->pin(s->device, s->pinned.bytes);
    s->slots = s->pinned.data && s->b->slots(s->device, s->room);
    if (ddp__coded_on_device(s->d)) {
        /* 1.07 of the 5.3 bytes of a value with its blocks are blocks */
        s->codes.bytes = (2 * bytes > total ? 2 * bytes : total) / 5 + 1024;
        s->codes.data = (char *)s->b->alloc(s->device, s->codes.bytes);
    }
    return !ddp__scratch_failed(ddp__lists_of(s->d)) && s->slots && (s->codes.data || !s->codes.bytes);
}

ddp_status ddp__stager_open(ddp_ctx *d, int room, size_t bytes, size_t total, ddp__stager **out,
                            ddp_error *err)
{
    ddp__stager *s = (ddp__stager *)ddp__scratch_take(ddp__lists_of(d), 1, sizeof *s);
    int locked;

    if (!s) return ddp__fail(err, DDP_MEMORY, "out of memory for the stager");
    s->d = d;
    s->b = ddp__backend_of(d);
    s->device = ddp__device_of(d);
    s->room = room;
    locked = !pthread_mutex_init(&s->lock, NULL);
    if (!locked || ddp__cond_init(&s->changed)) {
        if (locked) pthread_mutex_destroy(&s->lock);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a lock");
    }
    *out = s;
    if (!ddp__stager_memory(s, bytes, total)) {
        DDP__TRY(s->b->check(s->device, err)); /* returns the device's own failure */
        return ddp__fail(err, DDP_MEMORY,
                         "out of memory: the messages of this model need %zu bytes of pinned host "
                         "memory; use a smaller model, or raise the limit of locked memory",
                         s->pinned.bytes);
    }
    if (!pthread_create(&s->out, NULL, ddp__stager_out, s)) s->threads = 1;
    if (s->threads == 1 && !pthread_create(&s->in, NULL, ddp__stager_in, s)) s->threads = 2;
    if (s->threads == 2) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "cannot start the two threads of the stager");
}

void ddp__stager_stop(ddp__stager *s)
{
    if (!s || s->stop) return;
    pthread_mutex_lock(&s->lock);
    s->stop = 1;
    ddp__atomic_store(&s->woken, 1);
    if (s->slots) s->b->raise_all(s->device);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    ddp__engine_nudge(ddp__engine_of(s->d, 0));
    if (s->threads > 0) pthread_join(s->out, NULL);
    if (s->threads > 1) pthread_join(s->in, NULL);
}

void ddp__stager_free(ddp__stager *s)
{
    if (!s) return;
    for (int i = 0; s->entry && i < s->room; i++) ddp__array_free(s->entry[i].piece);
    if (s->codes.data) s->b->release(s->device, s->codes.data, s->codes.bytes);
    if (s->pinned.data) s->b->unpin(s->device, s->pinned.data, s->pinned.bytes);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
}

/* ---- the context's thread ---- */

/* Fills an entry. It is free, so no other thread reads it. */
static ddp_status ddp__stager_fill(const ddp__stager *s, ddp__stager_entry *x, const ddp_message *m,
                                   int there, ddp_error *err)
{
    const int to = m->to ? m->to_count : 0, given = m->from_count + to, n = given + m->here + 1;
    const size_t bytes = ddp__stager_count(m) * ddp__stager_unit(m);

    x->codes = NULL;
    if (there && bytes > s->pinned.bytes)
        return ddp__fail(
            err, DDP_ARG,
            "a message of %zu bytes is too long for a device, the limit is %zu; post it in parts", bytes,
            s->pinned.bytes);
    if (!ddp__reserve(x->piece, n))
        return ddp__fail(err, DDP_MEMORY, "out of memory for a message of %d arrays", n);
    stbds_arrsetlen(x->piece, n);
    if (m->from_count) memcpy(x->piece, m->from, (size_t)m->from_count * sizeof *x->piece);
    if (to) memcpy(x->piece + m->from_count, m->to, (size_t)to * sizeof *x->piece);
    x->m = *m;
    x->m.from = x->piece;
    if (to) x->m.to = x->piece + m->from_count;
    if (m->from_count == 0 && to) { /* a receive whose memory is `to` */
        x->m.from = x->m.to;
        x->m.from_count = to;
        x->m.to = NULL;
    }
    x->host = x->piece + given;
    if (m->here) *x->host = *x->m.from;
    x->there = there;
    x->end = 0;
    x->divergence = 0;
    return DDP_OK;
}

/* Allocates a part of the device's ring for blocks, once older ones are copied. Returns NULL after a failure.
 * Call it under the lock. */
static char *ddp__stager_place(ddp__stager *s, ddp__stager_entry *x)
{
    const size_t bytes = ddp__coded_bytes(&x->m, ddp__stager_count(&x->m));
    char *place = NULL;

    while (s->error.code == DDP_OK && !(place = ddp__stager_take(&s->codes, bytes, &x->codes_end)))
        pthread_cond_wait(&s->changed, &s->lock);
    return place;
}

/* Under the lock. */
static ddp_status ddp__stager_bad(const ddp__stager *s, ddp_error *err)
{
    if (s->error.code != DDP_OK && err) *err = s->error;
    return s->error.code;
}

/* Waits for a free entry and fills it. The stager's threads do not read it before it is submitted. */
static ddp_status ddp__stager_reserve(ddp__stager *s, ddp__stager_entry *x, const ddp_message *m,
                                      ddp__stager_from from, ddp_error *err)
{
    ddp_status bad;

    pthread_mutex_lock(&s->lock);
    while (s->error.code == DDP_OK && s->submitted - s->first >= s->room)
        pthread_cond_wait(&s->changed, &s->lock);
    bad = ddp__stager_bad(s, err);
    if (bad == DDP_OK) bad = ddp__stager_fill(s, x, m, from != DDP__HERE, err);
    if (bad == DDP_OK) {
        x->state = DDP__STAGER_QUEUED;
        if (from == DDP__BEHIND_WORK && ddp__coded_goes_there(s->d, m)) x->codes = ddp__stager_place(s, x);
    }
    pthread_mutex_unlock(&s->lock);
    return bad;
}

/* Queues work on the device without the lock: such a call may block until a flag is raised, which takes the
 * lock. */
ddp_status ddp__stager_submit(ddp__stager *s, const ddp_message *m, ddp__stager_from from, long *ticket,
                              ddp_error *err)
{
    const int slot = (int)(s->submitted % s->room); /* only the context's thread submits */
    ddp__stager_entry *x = &s->entry[slot];

    DDP__TRY(ddp__stager_reserve(s, x, m, from, err));
    if (x->codes) ddp__coded_there(s->d, m, x->codes);
    if (from == DDP__BEHIND_WORK) s->b->record(s->device, slot);
    if (from == DDP__BEHIND_AVERAGES) s->b->follow(s->device, slot);
    pthread_mutex_lock(&s->lock);
    *ticket = s->submitted++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return DDP_OK;
}

/* Under the lock. */
static int ddp__stager_done(const ddp__stager *s, long ticket)
{
    return ticket < s->first || s->entry[ticket % s->room].state == DDP__STAGER_FREE;
}

int ddp__stager_is_done(ddp__stager *s, long ticket)
{
    int done;

    pthread_mutex_lock(&s->lock);
    done = ddp__stager_done(s, ticket);
    pthread_mutex_unlock(&s->lock);
    return done;
}

void ddp__stager_hold(ddp__stager *s, long ticket)
{
    if (!ddp__stager_is_done(s, ticket))
        s->b->hold(s->device, (int)(ticket % s->room), ddp__stager_turn(s, ticket));
}

void ddp__stager_flag(const ddp__stager *s, long ticket, int *slot, unsigned *turn)
{
    *slot = (int)(ticket % s->room);
    *turn = ddp__stager_turn(s, ticket);
}

ddp_status ddp__stager_wait(ddp__stager *s, long ticket, int sent, ddp_error *err)
{
    ddp_status bad = DDP_OK;
    int over;

    pthread_mutex_lock(&s->lock);
    while (!(over = sent ? s->sent > ticket : ddp__stager_done(s, ticket)) && s->error.code == DDP_OK)
        pthread_cond_wait(&s->changed, &s->lock);
    if (!over) bad = ddp__stager_bad(s, err);
    pthread_mutex_unlock(&s->lock);
    return bad;
}

/* Waits for the last message, because only the context's thread submits. */
ddp_status ddp__stager_flush(ddp__stager *s, ddp_error *err)
{
    DDP__TRY(ddp__stager_wait(s, s->submitted - 1, 1, err));
    return ddp__stager_error(s, err);
}

ddp_status ddp__stager_error(ddp__stager *s, ddp_error *err)
{
    ddp_status bad;

    pthread_mutex_lock(&s->lock);
    bad = ddp__stager_bad(s, err);
    pthread_mutex_unlock(&s->lock);
    return bad;
}

double ddp__stager_divergence(ddp__stager *s, const double *of)
{
    double x;

    pthread_mutex_lock(&s->lock);
    x = *of;
    pthread_mutex_unlock(&s->lock);
    return x;
}
