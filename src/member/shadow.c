/* The memory of an elastic world: the input of each operation until it is complete, then its result until all
 * live workers have it. A FIFO ring. With a residual the input has two parts: the values and the residual. */
#include "member/elastic.h"

#define DDP__SHADOW_LEAST ((size_t)1 << 20)

uint64_t ddp__bit(int id) { return (uint64_t)1 << id; }
int ddp__lowest(uint64_t bits) { return bits ? __builtin_ctzll(bits) : 63; }
int ddp__bit_count(uint64_t bits) { return __builtin_popcountll(bits); }

static size_t ddp__shadow_part(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Bytes for an operation or message of n values. */
static size_t ddp__shadow_bytes(const ddp_message *m, size_t n)
{
    return ddp__shadow_part(n * (m->bytes ? 1 : sizeof(float))) * (m->residual ? 2 : 1);
}

static int ddp__done_has(const ddp__done_set *d, uint32_t seq)
{
    int32_t ahead = (int32_t)(seq - d->from);
    return ahead < 0 || (ahead < 64 && (d->bits >> ahead & 1));
}

static void ddp__done_add(ddp__done_set *d, uint32_t seq)
{
    d->bits |= (uint64_t)1 << (seq - d->from);
    while (d->bits & 1) {
        d->bits >>= 1;
        d->from++;
    }
}

ddp_status ddp__shadow_room(ddp__engine *e, size_t room, ddp_error *err)
{
    ddp__elastic *el = e->member_data;
    unsigned char *ring = room ? (unsigned char *)ddp__alloc(&e->cfg.allocator, room) : NULL;

    if (room && !ring)
        return ddp__fail(err, DDP_MEMORY,
                         "out of memory: an elastic world needs %lu bytes to retain unfinished operations",
                         (unsigned long)room);
    ddp__release(&e->cfg.allocator, el->ring, el->room);
    e->stats.staging_bytes += room - el->room;
    e->stats.kept_bytes += room - el->room;
    el->ring = ring;
    el->room = room;
    el->head = el->tail = 0;
    return DDP_OK;
}

/* The ring may be replaced only while the comm thread retains nothing in it. */
ddp_status ddp__shadow_fit(ddp__engine *e, const ddp_message *m, ddp_error *err)
{
    ddp__elastic *el = e->member_data;
    size_t n = 0, bytes;
    const char *why = m->after ? "messages after one another in an elastic world (min_world)" : NULL;

    if (m->verb >= DDP_SEND) return DDP_OK;
    if (m->verb == DDP_REDUCE_SCATTER)
        why = "a reduce-scatter in an elastic world (min_world), because the block of a lost rank is lost: "
              "use an all-reduce";
    if (m->add)
        why = "a message with add in an elastic world (min_world): receive into another array, then add it";
    if (why) return ddp__fail(err, DDP_UNSUPPORTED, "%s", why);
    for (int i = 0; i < m->from_count; i++) n += m->from[i].count;
    bytes = ddp__shadow_bytes(m, n);
    if (bytes > el->room && e->cfg.kept_bytes > 0)
        return ddp__fail(err, DDP_ARG,
                         "elastic_bytes %lu is too small: the library must store %lu bytes of a message "
                         "until it is complete; raise elastic_bytes",
                         (unsigned long)e->cfg.kept_bytes, (unsigned long)bytes);
    if (bytes > el->room) {
        while (e->error.code == DDP_OK && el->released < el->collectives)
            pthread_cond_wait(&e->changed, &e->lock);
        if (e->error.code != DDP_OK) return DDP_OK; /* the caller detects it */
        DDP__TRY(ddp__shadow_room(e, 2 * bytes > DDP__SHADOW_LEAST ? 2 * bytes : DDP__SHADOW_LEAST, err));
    }
    el->collectives++; /* from here on only an error prevents it from being queued */
    return DDP_OK;
}

/* The position of the next `bytes` contiguous bytes in the ring. */
static size_t ddp__shadow_place(const ddp__elastic *el, size_t bytes)
{
    const size_t at = el->head % el->room;

    return at + bytes > el->room ? el->head + el->room - at : el->head;
}

int ddp__shadow_may(ddp__engine *e, const ddp__op *op)
{
    ddp__elastic *el = e->member_data;
    size_t bytes = ddp__shadow_bytes(&op->m, op->n);

    if (e->frozen) return 0;
    if (op->p2p) return 1;
    if (e->next_seq - el->oldest >= DDP__ELASTIC_SPAN) return 0;
    if (e->next_seq == el->oldest) el->head = el->tail = 0;
    return bytes == 0 || ddp__shadow_place(el, bytes) + bytes - el->tail <= el->room;
}

static ddp__kept *ddp__kept_of(ddp__elastic *el, uint32_t seq) { return &el->kept[seq % DDP__ELASTIC_SPAN]; }

static void ddp__shadow_copy(ddp__engine *e, const ddp__op *op, const ddp__strips *strips, int back)
{
    ddp__elastic *el = e->member_data;
    const ddp__kept *k = ddp__kept_of(el, op->seq);
    unsigned char *at = op->n ? el->ring + k->at % el->room : NULL;

    for (int i = 0; i < strips->count; i++) {
        const ddp__strip *s = &strips->strip[i];
        unsigned char *place = at + s->start * op->unit;
        if (back)
            memcpy(s->data, place, s->count * op->unit);
        else
            memcpy(place, s->data, s->count * op->unit);
    }
}

static unsigned char *ddp__shadow_residual(const ddp__elastic *el, const ddp__op *op)
{
    return el->ring + el->kept[op->seq % DDP__ELASTIC_SPAN].at % el->room +
           ddp__shadow_part(op->n * op->unit);
}

static void ddp__shadow_take(ddp__engine *e, const ddp__op *op)
{
    ddp__elastic *el = e->member_data;
    ddp__kept *k = ddp__kept_of(el, op->seq);
    size_t bytes = ddp__shadow_bytes(&op->m, op->n);

    memset(k, 0, sizeof *k);
    ddp__describe(&k->frame, op, DDP__FRAME_RESULT, 0, 0);
    k->frame.coding = op->unit == 1 ? (int)DDP__AS_BYTES : (int)DDP_AS_FLOAT; /* of the result, as stored */
    k->unit = op->unit;
    k->at = bytes ? ddp__shadow_place(el, bytes) : el->head;
    k->end = el->head = k->at + bytes;
    ddp__shadow_copy(e, op, &op->from, 0);
    if (op->m.residual && op->n)
        memcpy(ddp__shadow_residual(e->member_data, op), op->m.residual, op->n * sizeof(float));
}

void ddp__shadow_restore(ddp__engine *e, const ddp__op *op) { ddp__shadow_copy(e, op, &op->from, 1); }

void ddp__shadow_result(ddp__engine *e, ddp__op *op)
{
    ddp__elastic *el = e->member_data;

    ddp__shadow_copy(e, op, &op->to, 0);
    ddp__kept_of(el, op->seq)->result = 1;
    ddp__done_add(&el->own.done, op->seq);
    for (int r = 0; r < e->world; r++) el->peer[r].want_done = !e->peers[r].out_of_world && r != e->rank;
    ddp__shadow_release(e);
}

void ddp__shadow_release(ddp__engine *e)
{
    ddp__elastic *el = e->member_data;
    uint32_t before = el->oldest;

    while (el->oldest != e->next_seq) {
        const ddp__kept *k = ddp__kept_of(el, el->oldest);
        /* servers take no part in operations after ddp__engine_retire */
        const int takers = (int32_t)(el->oldest - e->retired_at) < 0 ? e->world : e->blocks;
        int all = k->result;
        for (int r = 0; r < takers && all; r++)
            all = r == e->rank || e->peers[r].out_of_world || e->peers[r].left ||
                  ddp__done_has(&el->peer[r].done, el->oldest);
        if (!all) break;
        el->tail = k->end;
        el->oldest++;
    }
    if (el->oldest == before) return;
    e->dirty = 1;
    pthread_mutex_lock(&e->lock);
    el->released += (long)(el->oldest - before);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

int ddp__shadow_busy(const ddp__engine *e)
{
    for (uint32_t s = e->member_data->oldest; s != e->next_seq; s++)
        if (e->member_data->kept[s % DDP__ELASTIC_SPAN].result) return 1;
    return 0;
}

/* The worker that forwards the result of an operation in this epoch, or -1 if no worker had it. */
static int ddp__shadow_donor(ddp__engine *e, uint32_t seq)
{
    /* sequence numbers wrap: those after the table must not appear to be before it */
    if ((int32_t)(seq - e->member_data->table_until) >= 0) e->member_data->table_used = 0;
    if (!e->member_data->table_used) return -1;
    for (int r = 0; r < e->world; r++)
        if ((e->member_data->view.live >> r & 1) && ddp__done_has(&e->member_data->table[r], seq)) return r;
    return -1;
}

/* ---- the algorithm for an operation that another worker has completed ---- */

static size_t ddp__handed_part(const ddp__engine *e, const ddp__op *op, int peer, int comes, size_t *from,
                               size_t *to)
{
    (void)e;
    (void)peer;
    (void)comes;
    *from = 0;
    return *to = op->n;
}

static void ddp__handed_begin(ddp__engine *e, ddp__op *op)
{
    (void)e;
    op->left = op->n;
    op->sums = NULL; /* its chunks are divided differently */
}

static int ddp__handed_over(ddp__engine *e, const ddp__op *op, int peer)
{
    (void)e;
    return op->u.handed.donor != peer;
}

static int ddp__handed_agrees(const ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f)
{
    (void)e;
    return f->type == DDP__FRAME_RESULT && peer == op->u.handed.donor;
}

static const ddp__algorithm *ddp__handed_way(void)
{
    static const ddp__algorithm way = {'h',
                                       "handed over",
                                       0,
                                       0,
                                       0,
                                       0,
                                       NULL,
                                       ddp__handed_part,
                                       ddp__handed_begin,
                                       NULL,
                                       NULL,
                                       NULL,
                                       ddp__handed_agrees,
                                       ddp__flow_arrived,
                                       NULL,
                                       ddp__handed_over,
                                       NULL};

    return &way;
}

void ddp__shadow_began(ddp__engine *e, ddp__op *op, int again)
{
    int donor;

    if (!again) ddp__shadow_take(e, op);
    donor = ddp__shadow_donor(e, op->seq);
    if (donor >= 0) {
        op->way = ddp__handed_way();
        op->u.handed.donor = donor;
        op->u.handed.asked = 0;
    } else if (again) {
        if (op->m.residual && op->n)
            memcpy(op->m.residual, ddp__shadow_residual(e->member_data, op), op->n * sizeof(float));
        if (op->m.verb == DDP_ALL_REDUCE && op->m.owner) op->m.owner->again(op->m.owner->user);
    }
}

int ddp__handed_wanted(ddp__engine *e, int peer, ddp__frame *f)
{
    for (int i = 0; i < DDP__WINDOW && !e->frozen; i++) {
        ddp__op *op = e->window[i];
        if (!op || op->way != ddp__handed_way() || op->u.handed.donor != peer || op->u.handed.asked) continue;
        op->u.handed.asked = 1;
        f->type = DDP__FRAME_WANT;
        f->seq = op->seq;
        return 1;
    }
    return 0;
}

/* ---- requests for results ---- */

void ddp__shadow_asked(ddp__engine *e, int peer, uint32_t seq)
{
    ddp__elastic *el = e->member_data;
    ddp__kept *k = ddp__kept_of(el, seq);

    if (e->next_seq - el->oldest > seq - el->oldest && k->result) {
        k->asked |= ddp__bit(peer);
        return;
    }
    ddp__fault(e, DDP_NET,
               "rank %d requested the result of operation %lu, which this rank has released: run the same "
               "version of this library on all ranks",
               peer, (unsigned long)seq);
}

int ddp__shadow_frame(ddp__engine *e, int peer, ddp__frame *f)
{
    ddp__elastic *el = e->member_data;
    ddp__elastic_peer *ep = &el->peer[peer];
    const ddp__kept *k;
    size_t count;

    if (e->frozen || e->peers[peer].out_of_world) return 0;
    for (uint32_t s = el->oldest; s != e->next_seq && !ep->giving; s++) {
        ddp__kept *asked = ddp__kept_of(el, s);
        if (!(asked->asked >> peer & 1)) continue;
        asked->asked &= ~ddp__bit(peer);
        ep->giving = 1;
        ep->giving_seq = s;
        ep->given = 0;
    }
    if (!ep->giving) return 0;
    k = ddp__kept_of(el, ep->giving_seq);
    count = e->chunk * sizeof(float) / k->unit;
    if (count > k->frame.count - ep->given) count = k->frame.count - ep->given;
    *f = k->frame;
    f->offset = (uint32_t)ep->given;
    f->length = (uint32_t)(count * k->unit);
    e->peers[peer].out_text = (const char *)el->ring + k->at % el->room + ep->given * k->unit;
    ep->given += count;
    ep->giving = ep->given < k->frame.count;
    return 1;
}
