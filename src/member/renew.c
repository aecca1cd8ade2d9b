/* The change from one epoch to the next: incomplete operations restart from their saved inputs, unless a
 * survivor forwards the result. */
#include "member/elastic.h"

/* ---- losses ---- */

void ddp__edge_add(ddp__word *w, int a, int b)
{
    w->edge[a] |= ddp__bit(b);
    w->edge[b] |= ddp__bit(a);
}

void ddp__epoch_lost(ddp__engine *e, int peer, const char *why)
{
    ddp__elastic *el = e->member_data;

    if (e->peers[peer].out_of_world || e->peers[peer].left || el->own.edge[e->rank] >> peer & 1) return;
    if (!el->peer[peer].why[0]) snprintf(el->peer[peer].why, sizeof el->peer[peer].why, "%s", why);
    if (el->lost_at < 0) el->lost_at = ddp_now();
    ddp__edge_add(&el->own, e->rank, peer);
    el->look = 1;
}

const char *ddp__epoch_why(const ddp__engine *e, int peer)
{
    const ddp__elastic *el = e->member_data;

    if (e->peers[peer].left || (el->own.left >> peer & 1)) return "it closed its context";
    return el->peer[peer].why[0] ? el->peer[peer].why : "other workers reported it";
}

/* ---- dropping incomplete work ---- */

static int ddp__is_collective(const ddp__frame *f) { return f->type < DDP__FRAME_CREDIT && !f->p2p; }

int ddp__of_epoch(const ddp__frame *f)
{
    return (f->type <= DDP__FRAME_CREDIT && !f->p2p) || f->type == DDP__FRAME_DONE ||
           f->type == DDP__FRAME_WANT;
}

/* Drops frames that have not begun. Of messages between two ranks, only if the peer is lost. A frame that has
 * begun must be sent to its last byte: from a copy, since its memory will be written, and released, before
 * the peer has received everything. */
static void ddp__out_drop(ddp__engine *e, int peer, int lost)
{
    ddp__peer *p = &e->peers[peer];
    ddp__elastic_peer *ep = &e->member_data->peer[peer];

    ep->giving = 0;
    if (p->out_state == DDP__OUT_IDLE || !(lost ? p->out_op != NULL : ddp__is_collective(&p->out))) return;
    if (p->out_state == DDP__OUT_SERIALISING || p->out_sent == 0) {
        p->out_state = DDP__OUT_IDLE;
    } else if (p->out.coding && p->out.coding != (int)DDP__AS_BYTES) {
        /* the rounded copy stays valid until the next frame */
    } else if (p->out_slot >= 0) {
        memcpy(ep->tail, e->slot[p->out_slot].data, p->out.length);
    } else if (p->out_op) {
        const ddp__op *op = p->out_op;
        size_t at = 0, values = p->out.length / op->unit, here;
        for (; at < values; at += here) {
            const void *data =
                ddp__memory_at(op, ddp__sent_from(e, op, &p->out), p->out.offset + at, values - at, &here);
            memcpy(ep->tail + at * op->unit, data, here * op->unit);
        }
    } else if ((const unsigned char *)p->out_text != ep->tail) {
        memcpy(ep->tail, p->out_text, p->out.length);
    }
    if (p->out_slot >= 0) ddp__slot_free(e, p->out_slot);
    p->out_slot = -1;
    p->out_op = NULL;
    p->out_text = (const char *)ep->tail;
}

static void ddp__in_drop(ddp__engine *e, int peer, int lost)
{
    ddp__peer *p = &e->peers[peer];

    if (p->in_state == DDP__IN_HEAD || !(lost ? p->in_op != NULL : ddp__is_collective(&p->in))) return;
    if (p->in_state == DDP__IN_PAYLOAD && !p->discard && p->in_slot >= 0) ddp__slot_free(e, p->in_slot);
    p->in_slot = -1;
    p->in_op = NULL;
    p->in_state = DDP__IN_PAYLOAD;
    p->discard = 1;
}

/* Removes all slots from a list unless they belong to messages between two ranks. */
static void ddp__chain_drop(ddp__engine *e, ddp__chain *c)
{
    for (int next, s = c->first; s >= 0; s = next) {
        next = e->slot[s].next;
        if (!ddp__is_collective(&e->slot[s].f)) continue;
        ddp__chain_remove(e, c, s);
        ddp__slot_free(e, s);
    }
}

void ddp__epoch_freeze(ddp__engine *e, double now)
{
    int controls = 0;

    e->frozen = 1;
    e->last_move = now;
    for (int i = 0; i < DDP__ELASTIC_SPAN; i++) e->member_data->kept[i].asked = 0;
    for (int i = 0; i < DDP__WINDOW; i++) {
        ddp__op *op = e->window[i];
        if (op && op->way == ddp__ring_way()) ddp__chain_drop(e, &op->u.ring.sums);
    }
    ddp__chain_drop(e, &e->due);
    for (int r = 0; r < e->world; r++) {
        if (r == e->rank) continue;
        ddp__out_drop(e, r, 0);
        ddp__in_drop(e, r, 0);
        ddp__chain_drop(e, &e->peers[r].pending);
    }
    for (int r = 0; r < e->world; r++) { /* credits of dropped chunks are not returned: all ranks restart with
                                            all their credits */
        ddp__peer *p = &e->peers[r];
        int n = 0;
        for (int i = 0; i < p->owed_count; i++)
            if (p->owed[i].p2p) p->owed[n++] = p->owed[i];
        p->owed_count = n;
    }
    for (int i = 0; i < e->control_count; i++) {
        ddp__control *c = &e->control[(e->control_first + i) % e->control_room];
        if (!ddp__of_epoch(&c->f)) e->control[(e->control_first + controls++) % e->control_room] = *c;
    }
    e->control_count = controls;
}

/* ---- restart ---- */

static void ddp__say_epoch(ddp__engine *e, uint64_t before, double took)
{
    const ddp__view *v = &e->member_data->view;
    char who[300] = "";
    size_t used = 0;

    for (int r = 0; r < e->world && used + 100 < sizeof who; r++)
        if ((before ^ v->live) >> r & 1)
            used += (size_t)snprintf(
                who + used, sizeof who - used, "; worker %d %s%s", r,
                v->live >> r & 1 ? "joined" : "was lost: ", v->live >> r & 1 ? "" : ddp__epoch_why(e, r));
    ddp__log(&e->cfg.log, before & ~v->live ? DDP_LOG_WARN : DDP_LOG_INFO,
             "rank %d: epoch %lu with %d workers after %.3f s%s", e->rank, (unsigned long)v->ballot,
             e->members, took, who);
}

/* Notifies workers that are not in the epoch once, and ignores their frames from now on. */
static void ddp__peers_renew(ddp__engine *e)
{
    ddp__elastic *el = e->member_data;

    for (int r = 0; r < e->world; r++) {
        ddp__peer *p = &e->peers[r];
        ddp__elastic_peer *ep = &el->peer[r];
        int was = !p->out_of_world;
        p->held_collective = 0;
        ep->want_epoch = r != e->rank && was && !p->closed && !p->left;
        ep->want_state = ep->heard = 0;
        ep->done = el->table[r];
        p->out_of_world = !((el->view.live | el->own.joining) >> r & 1);
        ep->want_done = !p->out_of_world && r != e->rank;
        if (!p->out_of_world || !was) continue;
        ddp__out_drop(e, r, 1);
        ddp__in_drop(e, r, 1); /* it was being read directly into the operation's memory */
        for (int i = 0; i < DDP__PAIRED; i++) {
            char text[128];
            if (!p->paired[i] || ddp__op_void(e, p->paired[i])) continue;
            ddp__fault_is_about(e, r);
            ddp__fault(e, DDP_PEER_LOST, "rank %d was lost during %s: only collectives continue after a loss",
                       r, ddp__op_text(e, p->paired[i], text, sizeof text));
        }
    }
}

/* Ends the wait of ddp__engine_admit if the joining worker is in, or was lost meanwhile. */
static void ddp__admitted(ddp__engine *e, double now)
{
    ddp__elastic *el = e->member_data;
    int id = el->admit_id;
    uint64_t bit = ddp__bit(id);

    if (!(el->own.joining & bit)) return;
    if (!(el->view.live & bit) && !el->own.edge[id]) { /* not all members were ready for it */
        el->admit_at = now;
        return;
    }
    el->own.joining &= ~bit;
    if (!(el->view.live & bit)) {
        e->peers[id].out_of_world = 1;
        el->own.refused = bit;
        el->own.refused_at = el->own.done.from;
    }
    el->admit = el->view.live & bit ? 3 : 4;
}

void ddp__epoch_install(ddp__engine *e, const ddp__view *view, const ddp__done_set *table, double now)
{
    ddp__elastic *el = e->member_data;
    uint64_t before = el->view.live, lost;
    double took;

    if (!e->frozen) ddp__epoch_freeze(e, now);
    took = el->lost_at >= 0 ? now - el->lost_at : 0;
    el->view = *view;
    memcpy(el->table, table, sizeof el->table);
    el->table_used = 1;
    el->table_until = table[e->rank].from;
    for (int r = 0; r < e->world; r++)
        if ((view->live >> r & 1) && (int32_t)(table[r].from + 64 - el->table_until) > 0)
            el->table_until = table[r].from + 64;
    if (e->newcomer) {
        e->next_seq = el->oldest = table[e->rank].from;
        el->own.done = table[e->rank];
    }
    for (int i = 0; i < DDP__WINDOW; i++)
        if (e->window[i]) ddp__shadow_restore(e, e->window[i]);
    pthread_mutex_lock(&e->lock);
    if (view->live & ~before) ddp__ring_reset(e); /* a joining worker does not know the measured order */
    ddp__members_set(e, view->live);
    for (long t = e->first; t < e->submitted; t++) {
        ddp__op *op = &e->ops[t % e->cfg.queue];
        if (op->state == DDP__OP_QUEUED || op->state == DDP__OP_ACTIVE) ddp__guard_all(e, op);
    }
    e->epoch.ballot = view->ballot;
    e->epoch.live = view->live;
    e->epoch.workers = ddp__bit_count(view->live);
    e->epoch.changes++;
    ddp__admitted(e, now);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    ddp__peers_renew(e);
    ddp__say_epoch(e, before, took);
    e->frozen = e->newcomer = 0;
    el->lost_at = el->hopeless_at = -1;
    el->own.base = *view;
    el->own.round = view->ballot;
    el->own.vote = 0;
    el->own.left &= view->live;
    el->own.attempts = 0;
    if (el->seen < view->ballot) el->seen = view->ballot;
    lost = el->own.edge[e->rank] & view->live;
    memset(el->own.edge, 0, sizeof el->own.edge);
    for (int r = 0; r < e->world; r++) /* lost since the vote. No peer knows of it yet. */
        if (lost >> r & 1) ddp__epoch_lost(e, r, el->peer[r].why);
    for (int r = 0; r < e->world && el->own.joining; r++) el->peer[r].want_state = r != e->rank;
    e->last_move = now;
    e->dirty = 1;
    if (e->fault.code != DDP_OK) return;
    for (uint32_t seq = el->oldest; seq != e->next_seq; seq++) /* oldest first */
        for (int i = 0; i < DDP__WINDOW && e->fault.code == DDP_OK; i++)
            if (e->window[i] && e->window[i]->seq == seq) ddp__start(e, e->window[i], 1, now);
    ddp__shadow_release(e);
}
