/* The membership of an elastic world: its callbacks, the admission of workers, and the frames of the search
 * for an epoch. */
#include "member/elastic.h"

/* ---- frames: structs as they are in memory, up to the last id of the world ---- */

static uint32_t ddp__word_bytes(const ddp__engine *e)
{
    return (uint32_t)(offsetof(ddp__word, edge) + (size_t)e->world * sizeof(uint64_t));
}

static uint32_t ddp__decision_bytes(const ddp__engine *e)
{
    return (uint32_t)(sizeof(ddp__view) + (size_t)e->world * sizeof(ddp__done_set));
}

/* Reads the payload of a STATE frame. Returns 0 if it is malformed. */
static int ddp__word_take(const ddp__engine *e, const unsigned char *in, uint32_t length, ddp__word *w)
{
    memset(w, 0, sizeof *w);
    if (length != ddp__word_bytes(e)) return 0;
    memcpy(w, in, length);
    return w->attempts <= DDP__ATTEMPTS;
}

/* Reads the payload of an EPOCH frame: ballot, live set, and the operations that each worker had completed.
 * table must be zero on entry. */
static int ddp__decision_take(const ddp__engine *e, const unsigned char *in, uint32_t length, ddp__view *view,
                              ddp__done_set *table)
{
    if (length != ddp__decision_bytes(e)) return 0;
    memcpy(view, in, sizeof *view);
    memcpy(table, in + sizeof *view, length - sizeof *view);
    return view->live != 0 && (e->world >= 64 || view->live >> e->world == 0);
}

static void ddp__elastic_read(ddp__engine *e, int peer, const ddp__frame *f, double now)
{
    ddp__elastic_peer *ep = &e->member_data->peer[peer];
    ddp__done_set table[DDP__ELASTIC_WORLD] = {{0, 0}};
    ddp__view view;
    ddp__word w;

    if (f->type == DDP__FRAME_WANT) {
        ddp__shadow_asked(e, peer, f->seq);
    } else if (f->type == DDP__FRAME_DONE) {
        ep->done.from = f->seq;
        ep->done.bits = f->count | (uint64_t)f->offset << 32;
        ddp__shadow_release(e);
    } else if (f->type == DDP__FRAME_STATE && ddp__word_take(e, ep->in, f->length, &w)) {
        ddp__state_read(e, peer, &w, now);
    } else if (f->type == DDP__FRAME_EPOCH && ddp__decision_take(e, ep->in, f->length, &view, table)) {
        ddp__decision_read(e, peer, &view, table, now);
    } else {
        ddp__fault(e, DDP_NET,
                   "rank %d sent a malformed message about the next epoch: run the same version of this "
                   "library on all ranks",
                   peer);
    }
}

static int ddp__elastic_frame(ddp__engine *e, int peer, int urgent, ddp__frame *f)
{
    ddp__elastic *el = e->member_data;
    ddp__elastic_peer *ep = &el->peer[peer];

    if (!urgent) return ddp__shadow_frame(e, peer, f);
    if (ep->want_epoch) {
        ep->want_epoch = 0;
        f->type = DDP__FRAME_EPOCH;
        f->length = ddp__decision_bytes(e);
        memcpy(ep->out, &el->view, sizeof el->view);
        memcpy(ep->out + sizeof el->view, el->table, f->length - sizeof el->view);
    } else if (e->peers[peer].out_of_world || (ep->want_state && e->peers[peer].left)) {
        ep->want_state = 0;
        return 0;
    } else if (ep->want_state) {
        ep->want_state = 0;
        f->type = DDP__FRAME_STATE;
        f->length = ddp__word_bytes(e);
        memcpy(ep->out, &el->own, f->length);
    } else if (ep->want_done && !e->frozen) {
        ep->want_done = 0;
        f->type = DDP__FRAME_DONE;
        f->seq = el->own.done.from;
        f->count = (uint32_t)el->own.done.bits;
        f->offset = (uint32_t)(el->own.done.bits >> 32);
    } else {
        return ddp__handed_wanted(e, peer, f);
    }
    e->peers[peer].out_text = (const char *)ep->out;
    return 1;
}

static int ddp__elastic_drops(const ddp__engine *e, int peer, const ddp__frame *f)
{
    if (e->peers[peer].out_of_world) return 1;
    if (f->type == DDP__FRAME_STATE || f->type == DDP__FRAME_EPOCH) return e->closing;
    return ddp__of_epoch(f) &&
           (e->frozen || e->member_data->peer[peer].marked != e->member_data->view.ballot);
}

/* ---- the membership ---- */

static void ddp__elastic_close(ddp__engine *e)
{
    if (!e->member_data) return;
    ddp__release(&e->cfg.allocator, e->member_data->ring, e->member_data->room);
    ddp__release(&e->cfg.allocator, e->member_data, e->member_data->bytes);
    e->member_data = NULL;
}

static ddp_status ddp__elastic_open(ddp__engine *e, ddp_error *err)
{
    const uint64_t all = e->world >= 64 ? ~(uint64_t)0 : ddp__bit(e->world) - 1;
    const size_t world = (size_t)e->world, chunk = e->chunk * sizeof(float), bounded = e->cfg.kept_bytes;
    const size_t longest = e->cfg.max_count * sizeof(float),
                 bytes = sizeof(ddp__elastic) + world * (sizeof(ddp__elastic_peer) + chunk);
    ddp__elastic *el;
    unsigned char *at;
    ddp_status code;

    if (e->cfg.min_world < 1 || e->cfg.min_world > e->world - e->cfg.servers)
        return ddp__fail(err, DDP_ARG, "min_world %d is out of range for %d workers: use 1 to %d",
                         e->cfg.min_world, e->world - e->cfg.servers, e->world - e->cfg.servers);
    if (e->world > DDP__ELASTIC_WORLD)
        return ddp__fail(err, DDP_ARG, "an elastic world has at most %d workers, not %d",
                         (int)DDP__ELASTIC_WORLD, e->world);
    if (bounded && longest > bounded / 64 * 64)
        return ddp__fail(err, DDP_ARG,
                         "elastic_bytes is %lu, but the longest message has %lu bytes: raise elastic_bytes "
                         "to at least that",
                         (unsigned long)bounded, (unsigned long)longest);
    at = (unsigned char *)ddp__alloc(&e->cfg.allocator, bytes);
    if (!at)
        return ddp__fail(err, DDP_MEMORY, "out of memory: an elastic engine needs %lu bytes",
                         (unsigned long)bytes);
    e->member_data = el = (ddp__elastic *)(void *)at;
    el->bytes = bytes;
    el->peer = (ddp__elastic_peer *)(void *)(at + sizeof *el);
    at += sizeof *el + world * sizeof *el->peer;
    for (int r = 0; r < e->world; r++, at += chunk) el->peer[r].tail = at;
    el->view.live = e->cfg.live ? e->cfg.live & all : all;
    el->own.base = el->view;
    el->lost_at = el->hopeless_at = -1;
    e->newcomer = e->frozen = e->cfg.joining != 0;
    e->epoch.live = el->view.live;
    e->epoch.workers = ddp__bit_count(el->view.live);
    for (int r = 0; r < e->world; r++) e->peers[r].out_of_world = !(el->view.live >> r & 1);
    ddp__members_set(e, e->newcomer ? ddp__bit(e->rank) : el->view.live);
    e->stats.kept_bytes = bytes;
    e->stats.staging_bytes += bytes;
    code = ddp__shadow_room(e, bounded ? bounded / 64 * 64 : 2 * ((longest + 63) / 64 * 64), err);
    if (code != DDP_OK) ddp__elastic_close(e);
    return code;
}

static void ddp__elastic_left(ddp__engine *e, int peer)
{
    if (!e->peers[peer].out_of_world) e->member_data->look = 1;
}

static unsigned char *ddp__elastic_payload(ddp__engine *e, int peer, const ddp__frame *f)
{
    if (f->type != DDP__FRAME_STATE && f->type != DDP__FRAME_EPOCH) return NULL;
    return f->length <= DDP__WORD_BYTES ? e->member_data->peer[peer].in : NULL;
}

const ddp__membership *ddp__elastic_membership(void)
{
    static const ddp__membership table = {
        ddp__elastic_open,  ddp__elastic_close,   ddp__shadow_fit,    ddp__shadow_may,
        ddp__shadow_began,  ddp__shadow_result,   ddp__epoch_lost,    ddp__elastic_left,
        ddp__elastic_frame, ddp__elastic_payload, ddp__elastic_read,  ddp__elastic_drops,
        ddp__epoch_run,     ddp__epoch_check,     ddp__epoch_stopped, ddp__shadow_busy};

    return &table;
}

/* ---- joining workers ---- */

ddp_status ddp__engine_admit(ddp__engine *e, int id, ddp__attach_fn attach, void *user, ddp_error *err)
{
    ddp__elastic *el = e->member_data;
    ddp_status status = DDP_OK;

    if (!el) return ddp__fail(err, DDP_USAGE, "workers can join only an elastic world: set min_world");
    if (id < 0 || id >= e->world)
        return ddp__fail(err, DDP_ARG, "worker %d cannot join a world of %d ids", id, e->world);
    pthread_mutex_lock(&e->lock);
    if (e->first != e->submitted || el->admit)
        status = ddp__fail(err, DDP_USAGE, "worker %d cannot join while messages are in flight", id);
    else if (e->epoch.live >> id & 1)
        status = ddp__fail(err, DDP_USAGE, "worker %d is already in the world", id);
    if (status == DDP_OK) {
        el->admit = 1;
        el->admit_id = id;
        el->attach = attach;
        el->attach_user = user;
        ddp__notify(e);
        while (el->admit < 3 && e->error.code == DDP_OK) pthread_cond_wait(&e->changed, &e->lock);
        status = e->error.code;
        if (status != DDP_OK && err) *err = e->error;
        if (status == DDP_OK && el->admit == 4)
            status = ddp__fail(err, DDP_PEER_LOST, "worker %d was lost while it joined", id);
        el->admit = 0;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

ddp_status ddp__engine_joined(ddp__engine *e, double timeout_s, ddp_error *err)
{
    ddp__elastic *el = e->member_data;
    double until = ddp_now() + timeout_s;
    ddp_status status;
    int late = 0;

    if (!el) return ddp__fail(err, DDP_USAGE, "a worker can join only an elastic world: set min_world");
    pthread_mutex_lock(&e->lock);
    while (e->epoch.changes == 0 && e->error.code == DDP_OK && !late && e->cfg.joining)
        late = ddp__cond_wait_until(&e->changed, &e->lock, until) == ETIMEDOUT;
    status = e->error.code;
    if (status != DDP_OK && err) *err = e->error;
    if (status == DDP_OK && e->cfg.joining && e->epoch.changes == 0)
        status = ddp__fail(err, DDP_TIMEOUT, "rank %d was not admitted within %g s", e->rank, timeout_s);
    pthread_mutex_unlock(&e->lock);
    return status;
}
