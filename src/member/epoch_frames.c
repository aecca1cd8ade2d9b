/* The frames of the search for the next epoch: what a worker knows, and the decision. */
#include "member/elastic_state.h"

static unsigned char *ddp__put(unsigned char *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) p[i] = (unsigned char)(v >> (8 * i));
    return p + bytes;
}

static const unsigned char *ddp__take(const unsigned char *p, uint64_t *v, int bytes)
{
    *v = 0;
    for (int i = 0; i < bytes; i++) *v |= (uint64_t)p[i] << (8 * i);
    return p + bytes;
}

static uint32_t ddp__word_write(const ddp__engine *e, const ddp__word *w, unsigned char *out)
{
    unsigned char *p = out;

    p = ddp__put(p, w->round, 4);
    p = ddp__put(p, w->vote, 8);
    p = ddp__put(p, w->joining, 8);
    p = ddp__put(p, w->left, 8);
    p = ddp__put(p, w->base.ballot, 4);
    p = ddp__put(p, w->base.live, 8);
    p = ddp__put(p, w->done.from, 4);
    p = ddp__put(p, w->done.bits, 8);
    p = ddp__put(p, w->refused, 8);
    p = ddp__put(p, w->refused_at, 4);
    p = ddp__put(p, (uint64_t)w->attempts, 4);
    for (int i = 0; i < w->attempts; i++) {
        p = ddp__put(p, w->attempt[i].ballot, 4);
        p = ddp__put(p, w->attempt[i].live, 8);
    }
    for (int r = 0; r < e->world; r++) p = ddp__put(p, w->edge[r], 8);
    return (uint32_t)(p - out);
}

int ddp__word_read(const ddp__engine *e, const unsigned char *p, uint32_t length, ddp__word *w)
{
    uint64_t v;

    memset(w, 0, sizeof *w);
    if (length < 68 + 8 * (uint32_t)e->world) return 0;
    p = ddp__take(p, &v, 4), w->round = (uint32_t)v;
    p = ddp__take(p, &w->vote, 8);
    p = ddp__take(p, &w->joining, 8);
    p = ddp__take(p, &w->left, 8);
    p = ddp__take(p, &v, 4), w->base.ballot = (uint32_t)v;
    p = ddp__take(p, &w->base.live, 8);
    p = ddp__take(p, &v, 4), w->done.from = (uint32_t)v;
    p = ddp__take(p, &w->done.bits, 8);
    p = ddp__take(p, &w->refused, 8);
    p = ddp__take(p, &v, 4), w->refused_at = (uint32_t)v;
    p = ddp__take(p, &v, 4);
    if (v > DDP__ATTEMPTS || length != 68 + 12 * (uint32_t)v + 8 * (uint32_t)e->world) return 0;
    w->attempts = (int)v;
    for (int i = 0; i < w->attempts; i++) {
        p = ddp__take(p, &v, 4), w->attempt[i].ballot = (uint32_t)v;
        p = ddp__take(p, &w->attempt[i].live, 8);
    }
    for (int r = 0; r < e->world; r++) p = ddp__take(p, &w->edge[r], 8);
    return 1;
}

/* The decision: ballot, live set, and what each of it had completed. */
static uint32_t ddp__decision_write(const ddp__engine *e, unsigned char *out)
{
    const ddp__elastic *el = e->elastic;
    unsigned char *p = out;

    p = ddp__put(p, el->view.ballot, 4);
    p = ddp__put(p, el->view.live, 8);
    for (int r = 0; r < e->world; r++) {
        if (!(el->view.live >> r & 1)) continue;
        p = ddp__put(p, el->table[r].from, 4);
        p = ddp__put(p, el->table[r].bits, 8);
    }
    return (uint32_t)(p - out);
}

int ddp__decision_read(const ddp__engine *e, const unsigned char *p, uint32_t length,
                       ddp__view *view, ddp__done_set *table)
{
    uint64_t v;

    if (length < 12) return 0;
    p = ddp__take(p, &v, 4), view->ballot = (uint32_t)v;
    p = ddp__take(p, &view->live, 8);
    if (length != 12 + 12 * (uint32_t)ddp__bit_count(view->live) ||
        (e->world < 64 && view->live >> e->world) || view->live == 0)
        return 0;
    for (int r = 0; r < e->world; r++) {
        if (!(view->live >> r & 1)) continue;
        p = ddp__take(p, &v, 4), table[r].from = (uint32_t)v;
        p = ddp__take(p, &table[r].bits, 8);
    }
    return 1;
}

int ddp__epoch_frame(ddp__engine *e, int peer, int urgent, ddp__frame *f)
{
    ddp__elastic *el = e->elastic;
    ddp__elastic_peer *ep = &el->peer[peer];

    if (!urgent) return ddp__shadow_frame(e, peer, f);
    if (ep->want_epoch) {
        ep->want_epoch = 0;
        f->type = DDP__FRAME_EPOCH;
        f->length = ddp__decision_write(e, ep->out);
    } else if (e->peers[peer].out_of_world || (ep->want_state && e->peers[peer].left)) {
        ep->want_state = 0;
        return 0;
    } else if (ep->want_state) {
        ep->want_state = 0;
        f->type = DDP__FRAME_STATE;
        f->length = ddp__word_write(e, &el->own, ep->out);
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

int ddp__epoch_drops(const ddp__engine *e, int peer, const ddp__frame *f)
{
    const ddp__elastic *el = e->elastic;
    const ddp__elastic_peer *ep = &el->peer[peer];

    if (e->peers[peer].out_of_world) return 1;
    switch (f->type) {
    case DDP__FRAME_STATE:
    case DDP__FRAME_EPOCH: return e->closing;
    case DDP__FRAME_PART:
    case DDP__FRAME_SUM:
    case DDP__FRAME_RESULT:
    case DDP__FRAME_DONE:
    case DDP__FRAME_WANT: break;
    case DDP__FRAME_DATA:
    case DDP__FRAME_CREDIT:
        if (f->p2p) return 0;
        break;
    default: return 0;
    }
    return e->frozen || ep->marked != el->view.ballot;
}
