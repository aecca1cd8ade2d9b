/* Messages of a device over the host: two threads between pinned memory and the engine. */
#include "run/device.h"

/* Layers are sent one by one and links are slow: so much pinned memory keeps them busy. */
#define DDP__STAGER_BYTES ((size_t)256 << 20)

typedef enum ddp__stager_state {
    DDP__STAGER_FREE,
    DDP__STAGER_QUEUED, /* its event may not have come */
    DDP__STAGER_SENT,   /* the engine has it */
    DDP__STAGER_BACK    /* the engine is done; it is copied to the device */
} ddp__stager_state;

typedef struct ddp__stager_entry {
    ddp_message       m;
    ddp_piece        *piece;     /* [pieces] of m.from and m.to, then as the engine has it; grows */
    int               pieces;
    int               there;
    ddp__stager_state state;
    ddp_piece        *host;      /* [m.here + 1] what is here, then the values of the device, pinned */
    void             *codes;     /* on the device, where that has made blocks of it; NULL */
    size_t            codes_end; /* as codes_head when it was queued */
    size_t            at, end;   /* bytes of the ring that it takes; equal: none */
    long              operation; /* the engine's ticket */
    double            divergence;
} ddp__stager_entry;

struct ddp__stager {
    ddp_ctx     *d;
    const ddp_backend *b;
    void        *device;
    ddp__engine *engine;
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    pthread_t    out, in;     /* to the engine, and back */
    int          threads;     /* how many of them run */
    int          stop;        /* atomic: both end */
    int          woken;       /* atomic: the second looks at its list again */
    int          room;
    int          slots;       /* the device has them */
    ddp__stager_entry *entry;  /* [room] ticket t lies in entry t % room */
    long         submitted, sent, first; /* tickets below first are done */
    long        *waiting;     /* [room] engine tickets, scratch of the second thread */
    int         *waiting_at;  /* [room] their entries */
    char        *ring;        /* pinned */
    size_t       ring_bytes, head, tail, used;
    char        *codes;       /* on the device: blocks that are not copied yet, a ring too; NULL */
    size_t       codes_bytes, codes_head, codes_tail; /* the latter two count on */
    double      *divergence;  /* [layers] */
    int          layers;
    ddp_error    error;
};

static unsigned ddp__stager_turn(const ddp__stager *s, long ticket) { return (unsigned)(ticket / s->room) + 1; }

/* Under the lock. Who waits on the device or here must not wait forever. */
static void ddp__stager_fail(ddp__stager *s, const ddp_error *why)
{
    if (s->error.code == DDP_OK) s->error = *why;
    s->b->raise_all(s->device);
    pthread_cond_broadcast(&s->changed);
}

static size_t ddp__stager_unit(const ddp_message *m) { return m->bytes ? 1 : sizeof(float); }

/* Values of a message that are on the device. */
static size_t ddp__stager_count(const ddp_message *m)
{
    size_t n = 0;

    for (int i = m->here; i < m->from_count; i++) n += m->from[i].count;
    return n;
}

/* That it needs of the ring: its values, and blocks behind them. */
static size_t ddp__stager_bytes(const ddp__stager_entry *x)
{
    const size_t n = x->there ? ddp__stager_count(&x->m) : 0;

    return n * ddp__stager_unit(&x->m) + (x->codes ? ddp__coded_bytes(&x->m, n) : 0);
}

/* Under the lock: a contiguous part of the ring, first come, first served. 0 = not yet. */
static int ddp__stager_take(ddp__stager *s, size_t bytes, ddp__stager_entry *x)
{
    bytes = (bytes + 255) / 256 * 256;
    if (s->used == 0) s->head = s->tail = 0;
    if (s->head < s->tail || (s->used && s->head == s->tail)) { /* free: head..tail */
        if (s->tail - s->head < bytes) return 0;
    } else if (s->ring_bytes - s->head < bytes) { /* free: head..end and 0..tail */
        if (s->tail < bytes) return 0;
        s->used += s->ring_bytes - s->head;
        s->head = 0;
    }
    x->at = s->head;
    x->end = s->head + bytes;
    s->head = x->end;
    s->used += bytes;
    return 1;
}

/* Under the lock: the oldest that are done give their part of the ring back. */
static void ddp__stager_reap(ddp__stager *s)
{
    while (s->first < s->sent && s->entry[s->first % s->room].state == DDP__STAGER_FREE) {
        ddp__stager_entry *x = &s->entry[s->first % s->room];
        if (x->end > x->at) {
            if (x->at < s->tail) { /* the ring began again behind tail */
                s->used -= s->ring_bytes - s->tail;
                s->tail = 0;
            }
            s->used -= x->end - x->at;
            s->tail = x->end;
        }
        s->first++;
    }
    pthread_cond_broadcast(&s->changed);
}

/* ---- to the engine ---- */

static ddp_status ddp__stager_fetch(ddp__stager *s, ddp__stager_entry *x, int slot, ddp_error *err)
{
    char *to = s->ring + x->at;

    (x->host + x->m.here)->bytes = to;
    (x->host + x->m.here)->count = ddp__stager_count(&x->m);
    if (x->codes) { /* which are few; values are made of them here */
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
        if (x->codes) DDP__TRY(ddp__coded_read(s->d, &m, (const unsigned char *)(x->host->data + x->host->count), err));
        else if (ddp__coded_rounds(&m)) DDP__TRY(ddp__coded_round(s->d, &m, err));
    }
    if (m.divergence) m.divergence = &x->divergence;
    return ddp__engine_submit(s->engine, &m, &x->operation, err);
}

static void *ddp__stager_out(void *user)
{
    ddp__stager *s = (ddp__stager *)user;
    ddp_error why;

    memset(&why, 0, sizeof why);
    pthread_mutex_lock(&s->lock);
    while (!s->stop && s->error.code == DDP_OK) {
        ddp__stager_entry *x = &s->entry[s->sent % s->room];
        const size_t bytes = s->sent < s->submitted ? ddp__stager_bytes(x) : 0;
        const int slot = (int)(s->sent % s->room);

        if (s->sent == s->submitted || (bytes && !ddp__stager_take(s, bytes, x))) {
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
            if (x->codes) s->codes_tail = x->codes_end;
            s->sent++;
            pthread_cond_broadcast(&s->changed);
            ddp__atomic_store(&s->woken, 1);
            ddp__engine_nudge(s->engine);
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

    if (!x->there || (x->m.verb >= DDP_SEND && x->m.verb < DDP_RECEIVE)) return DDP_OK; /* nothing comes back */
    from = (const char *)(x->host + x->m.here)->bytes;
    for (int i = x->m.here; i < count; i++) {
        const size_t bytes = to[i].count * ddp__stager_unit(&x->m);
        DDP__TRY(s->b->give(s->device, to[i].bytes, from, bytes, err));
        from += bytes;
    }
    return DDP_OK;
}

/* Under the lock, which it leaves meanwhile. */
static void ddp__stager_return(ddp__stager *s, int slot)
{
    ddp__stager_entry *x = &s->entry[slot];
    const int layer = x->m.layer;
    ddp_error why;
    ddp_status bad;
    long ticket = s->first - s->first % s->room + slot;

    if (ticket < s->first) ticket += s->room;
    x->state = DDP__STAGER_BACK;
    memset(&why, 0, sizeof why);
    pthread_mutex_unlock(&s->lock);
    bad = ddp__engine_wait(s->engine, x->operation, &why);
    if (bad == DDP_OK) bad = ddp__stager_give(s, x, &why);
    if (bad == DDP_OK && x->codes) bad = ddp__coded_rest(s->d, &x->m, x->host->count, &why);
    if (bad == DDP_OK) s->b->raise(s->device, slot, ddp__stager_turn(s, ticket));
    pthread_mutex_lock(&s->lock);
    if (bad != DDP_OK) {
        ddp__stager_fail(s, &why);
        return;
    }
    if (x->m.divergence && layer >= 0 && layer < s->layers) s->divergence[layer] = x->divergence;
    x->state = DDP__STAGER_FREE;
    ddp__stager_reap(s);
}

static void *ddp__stager_in(void *user)
{
    ddp__stager *s = (ddp__stager *)user;

    pthread_mutex_lock(&s->lock);
    while (!s->stop && s->error.code == DDP_OK) {
        int n = 0, done;

        ddp__atomic_store(&s->woken, 0);
        for (long t = s->first; t < s->sent; t++) {
            const int slot = (int)(t % s->room);
            if (s->entry[slot].state != DDP__STAGER_SENT) continue;
            s->waiting[n] = s->entry[slot].operation;
            s->waiting_at[n++] = slot;
        }
        if (n == 0) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        done = ddp__engine_wait_any(s->engine, s->waiting, n, &s->woken);
        pthread_mutex_lock(&s->lock);
        /* none: something was added, or the engine failed, which the oldest then says */
        if (done < 0 && !ddp__atomic_load(&s->woken)) done = 0;
        if (done >= 0 && !s->stop) ddp__stager_return(s, s->waiting_at[done]);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- opening and closing ---- */

static int ddp__stager_memory(ddp__stager *s, size_t bytes, size_t total)
{
    const size_t n = (size_t)s->room;

    s->ring_bytes = total < DDP__STAGER_BYTES ? total : DDP__STAGER_BYTES;
    if (s->ring_bytes < bytes) s->ring_bytes = bytes;
    s->ring_bytes = (s->ring_bytes / 256 + 1 + n) * 256; /* parts are rounded up */
    s->entry = (ddp__stager_entry *)ddp__calloc(n, sizeof *s->entry);
    s->waiting = (long *)ddp__calloc(n, sizeof *s->waiting);
    s->waiting_at = (int *)ddp__calloc(n, sizeof *s->waiting_at);
    s->divergence = (double *)ddp__calloc((size_t)s->layers, sizeof *s->divergence);
    s->ring = (char *)s->b->pin(s->device, s->ring_bytes);
    s->slots = s->ring && s->b->slots(s->device, s->room);
    if (s->d->coded_there) {
        s->codes_bytes = (2 * bytes > total ? 2 * bytes : total) / 5 + 1024; /* of a value with its blocks: 1.07 of 5.3 */
        s->codes = (char *)s->b->alloc(s->device, s->codes_bytes);
    }
    return s->entry && s->waiting && s->waiting_at && s->divergence && s->slots && (s->codes || !s->codes_bytes);
}

ddp_status ddp__stager_open(ddp_ctx *d, int room, size_t bytes, size_t total, ddp__stager **out, ddp_error *err)
{
    ddp__stager *s = (ddp__stager *)ddp__calloc(1, sizeof *s);

    if (!s) return ddp__fail(err, DDP_MEMORY, "out of memory for the stager");
    s->d = d;
    s->b = d->host.backend;
    s->device = d->host.device;
    s->engine = d->engine;
    s->layers = d->layers;
    s->room = room;
    if (pthread_mutex_init(&s->lock, NULL)) {
        DDP_FREE(s);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a lock");
    }
    if (ddp__cond_init(&s->changed)) {
        pthread_mutex_destroy(&s->lock);
        DDP_FREE(s);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a condition");
    }
    *out = s;
    if (!ddp__stager_memory(s, bytes, total)) {
        DDP__TRY(s->b->check(s->device, err)); /* it may have failed by itself */
        return ddp__fail(err, DDP_MEMORY, "out of memory: the messages of this model need %zu bytes of pinned host "
                         "memory; use a smaller model, or raise the limit of locked memory", s->ring_bytes);
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
    ddp__engine_nudge(s->engine);
    if (s->threads > 0) pthread_join(s->out, NULL);
    if (s->threads > 1) pthread_join(s->in, NULL);
}

void ddp__stager_free(ddp__stager *s)
{
    if (!s) return;
    for (int i = 0; s->entry && i < s->room; i++)
        if (s->entry[i].piece) DDP_FREE(s->entry[i].piece);
    if (s->codes) s->b->release(s->device, s->codes, s->codes_bytes);
    if (s->ring) s->b->unpin(s->device, s->ring, s->ring_bytes);
    if (s->entry) DDP_FREE(s->entry);
    if (s->waiting) DDP_FREE(s->waiting);
    if (s->waiting_at) DDP_FREE(s->waiting_at);
    if (s->divergence) DDP_FREE(s->divergence);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    DDP_FREE(s);
}

/* ---- the context's thread ---- */

/* The entry is free, so that no other thread looks at it. */
static ddp_status ddp__stager_fill(const ddp__stager *s, ddp__stager_entry *x, const ddp_message *m,
                                   int there, ddp_error *err)
{
    const int to = m->to ? m->to_count : 0, given = m->from_count + to, n = given + m->here + 1;
    const size_t bytes = ddp__stager_count(m) * ddp__stager_unit(m);

    x->codes = NULL;
    if (there && bytes > s->ring_bytes)
        return ddp__fail(err, DDP_ARG, "a message of %zu bytes is too long: those of a device have "
                         "%zu at most; post it in parts", bytes, s->ring_bytes);
    if (n > x->pieces) {
        ddp_piece *grown = (ddp_piece *)DDP_REALLOC(x->piece, (size_t)n * sizeof *grown);
        if (!grown) return ddp__fail(err, DDP_MEMORY, "out of memory for a message of %d arrays", n);
        x->piece = grown;
        x->pieces = n;
    }
    if (m->from_count) memcpy(x->piece, m->from, (size_t)m->from_count * sizeof *x->piece);
    if (to) memcpy(x->piece + m->from_count, m->to, (size_t)to * sizeof *x->piece);
    x->m = *m;
    x->m.from = x->piece;
    if (to) x->m.to = x->piece + m->from_count;
    if (m->from_count == 0 && to) { /* a receive that names its memory as `to` */
        x->m.from = x->m.to;
        x->m.from_count = to;
        x->m.to = NULL;
    }
    x->host = x->piece + given;
    if (m->here) *x->host = *x->m.from;
    x->there = there;
    x->at = x->end = 0;
    x->divergence = 0;
    return DDP_OK;
}

/* Under the lock: a part of the device's ring for blocks, when those of long ago are copied; NULL after a failure. */
static char *ddp__stager_place(ddp__stager *s, ddp__stager_entry *x)
{
    const size_t bytes = (ddp__coded_bytes(&x->m, ddp__stager_count(&x->m)) + 255) / 256 * 256, all = s->codes_bytes;
    size_t at = s->codes_head;

    if (at % all + bytes > all) at += all - at % all;
    while (s->error.code == DDP_OK && at + bytes - s->codes_tail > all) pthread_cond_wait(&s->changed, &s->lock);
    s->codes_head = x->codes_end = at + bytes;
    return s->error.code == DDP_OK ? s->codes + at % all : NULL;
}

ddp_status ddp__stager_submit(ddp__stager *s, const ddp_message *m, ddp__stager_from from, long *ticket, ddp_error *err)
{
    ddp_status bad;

    pthread_mutex_lock(&s->lock);
    while (s->error.code == DDP_OK && s->submitted - s->first >= s->room) pthread_cond_wait(&s->changed, &s->lock);
    bad = s->error.code;
    if (bad != DDP_OK) {
        if (err) *err = s->error;
    } else {
        ddp__stager_entry *x = &s->entry[s->submitted % s->room];
        bad = ddp__stager_fill(s, x, m, from != DDP__HERE, err);
        if (bad != DDP_OK) {
            pthread_mutex_unlock(&s->lock);
            return bad;
        }
        x->state = DDP__STAGER_QUEUED;
        if (from == DDP__BEHIND_WORK && ddp__coded_goes_there(s->d, m)) x->codes = ddp__stager_place(s, x);
        if (x->codes) ddp__coded_there(s->d, m, x->codes);
        if (from == DDP__BEHIND_WORK) s->b->record(s->device, (int)(s->submitted % s->room));
        if (from == DDP__BEHIND_AVERAGES) s->b->follow(s->device, (int)(s->submitted % s->room));
        *ticket = s->submitted++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return bad;
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
    if (!ddp__stager_is_done(s, ticket)) s->b->hold(s->device, (int)(ticket % s->room), ddp__stager_turn(s, ticket));
}

void ddp__stager_flag(const ddp__stager *s, long ticket, int *slot, unsigned *turn)
{
    *slot = (int)(ticket % s->room);
    *turn = ddp__stager_turn(s, ticket);
}

/* Until `over` says of the ticket that it is, or the stager has failed. */
static ddp_status ddp__stager_until(ddp__stager *s, int (*over)(const ddp__stager *, long), long ticket, ddp_error *err)
{
    ddp_status bad = DDP_OK;

    pthread_mutex_lock(&s->lock);
    while (s->error.code == DDP_OK && !over(s, ticket)) pthread_cond_wait(&s->changed, &s->lock);
    if (!over(s, ticket)) {
        if (err) *err = s->error;
        bad = s->error.code;
    }
    pthread_mutex_unlock(&s->lock);
    return bad;
}

static int ddp__stager_has_sent(const ddp__stager *s, long ticket) { return s->sent > ticket; }

ddp_status ddp__stager_wait(ddp__stager *s, long ticket, ddp_error *err)
{
    return ddp__stager_until(s, ddp__stager_done, ticket, err);
}

ddp_status ddp__stager_sent(ddp__stager *s, long ticket, ddp_error *err)
{
    return ddp__stager_until(s, ddp__stager_has_sent, ticket, err);
}

/* Only the context's thread submits, so that this is the last. */
ddp_status ddp__stager_flush(ddp__stager *s, ddp_error *err)
{
    DDP__TRY(ddp__stager_until(s, ddp__stager_has_sent, s->submitted - 1, err));
    return ddp__stager_error(s, err);
}

ddp_status ddp__stager_error(ddp__stager *s, ddp_error *err)
{
    ddp_status bad;

    pthread_mutex_lock(&s->lock);
    bad = s->error.code;
    if (bad != DDP_OK && err) *err = s->error;
    pthread_mutex_unlock(&s->lock);
    return bad;
}

double ddp__stager_divergence(ddp__stager *s, int layer)
{
    double x;

    pthread_mutex_lock(&s->lock);
    x = s->divergence[layer];
    pthread_mutex_unlock(&s->lock);
    return x;
}
