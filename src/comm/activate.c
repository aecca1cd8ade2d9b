/* Moves operations from the queue into the window: decides which operation begins when. */
#include "comm/state.h"

/* Completes an operation for the only live worker, or for a group of one. */
static void ddp__do_alone(ddp__engine *e, ddp__op *op)
{
    double *divergence = op->m.divergence ? &ddp__row(e, op, e->rank)->divergence : NULL;

    if (op->m.levels && op->m.residual) ddp__residual_add(op, 0, op->n); /* no rank to round for */
    if (ddp__sums(op) && (op->scale != 1 || op->to.strip != op->from.strip || op->m.owner))
        ddp__memory_sum(e, op, 0, op->n, 0, 1, op->scale, divergence);
    ddp__op_advance(e, op, op->left);
}

/* Runs the message's maker, if any, to fill the memory to be sent. Returns 0 after a failure. */
static int ddp__made(ddp__engine *e, const ddp__op *op)
{
    const int made = op->m.maker && (op->m.verb == DDP_BROADCAST || op->m.verb == DDP_ALL_GATHER);
    char text[160];
    ddp_error err;
    ddp_status s = DDP_OK;

    if (made) s = op->m.maker->make(op->m.maker->user, &err);
    return s == DDP_OK || ddp__fault(e, s, "%s: %.400s", ddp__op_text(e, op, text, sizeof text), err.msg);
}

void ddp__start(ddp__engine *e, ddp__op *op, int again, double now)
{
    const ddp__algorithm *way;

    op->active_at = op->last_move = op->clock = now;
    op->note_s = e->cfg.note_s;
    op->left = op->reduced = 0;
    op->missing = 0;
    op->waiting_since = -1;
    op->scale = op->m.mean ? 1.0f / (float)ddp__team_of(e, op).members : op->m.scale;
    if (!op->p2p)
        memset(ddp__row(e, op, 0), 0, (size_t)e->world * sizeof(ddp__exchange));
    else
        memset(ddp__row(e, op, op->m.peer), 0, sizeof(ddp__exchange));
    way = ddp__way_of(e, op);
    if (way != op->way) { /* e.g. fewer than three live workers cannot form a ring */
        pthread_mutex_lock(&e->lock);
        op->way = way;
        if (op->m.verb == DDP_ALL_REDUCE) op->span.algorithm = way->letter;
        pthread_mutex_unlock(&e->lock);
    }
    if (!again && !ddp__made(e, op)) return;
    if (op->m.round && !ddp__code_input(e, op, 0, op->n)) return;
    if (e->membership && !op->p2p) e->membership->began(e, op, again);
    if (!op->p2p && op->way == way && ddp__team_of(e, op).members == 1) {
        if (op->m.verb == DDP_ALL_GATHER) op->way->begin(e, op); /* zeroes the blocks of lost workers */
        ddp__do_alone(e, op);
        return;
    }
    op->way->begin(e, op);
    if (e->fault.code != DDP_OK) return;
    if (op->left == 0)
        ddp__op_advance(e, op, 0);
    else
        ddp__collect_early(e, op, now);
    for (int r = 0; r < e->world && op->state == DDP__OP_ACTIVE; r++)
        if (r != e->rank && e->peers[r].left) ddp__check_left(e, r);
}

/* Begins an operation that the carrier moves from here on. */
static void ddp__begin_carried(ddp__engine *e, ddp__op *op, double now)
{
    op->active_at = op->last_move = op->clock = now;
    op->note_s = e->cfg.note_s;
    op->waiting_since = -1;
    op->way = ddp__way_of(e, op);
    if (op->m.verb == DDP_ALL_REDUCE) op->span.algorithm = op->way->letter;
    if (ddp__made(e, op)) e->wire->carrier->begins(e->wire, op);
}

static void ddp__begin(ddp__engine *e, ddp__op *op, int row, double now)
{
    op->row = row;
    op->state = DDP__OP_ACTIVE;
    if (op->p2p && e->wire->carrier) {
        op->seq = 0; /* the carrier orders its own messages */
    } else if (op->p2p) {
        uint32_t *next = &e->peers[op->m.peer].paired_seq[ddp__paired(op)];
        op->seq = (uint32_t)ddp__paired_lane(op) << 30 | ((*next)++ & 0x3fffffffu);
        if (op->m.received) {
            op->m.received->peer = op->m.peer;
            op->m.received->layer = op->m.layer;
            op->m.received->count = op->n;
            if (op->m.verb != DDP_SERVE) op->m.received->verb = DDP_SEND;
        }
    } else {
        op->seq = ddp__seq(e, op->m.group, op->m.group ? e->group_next[op->m.group]++ : e->next_seq++);
    }
    op->span.seq = op->seq;
    if (e->wire->carrier) {
        ddp__begin_carried(e, op, now);
        return;
    }
    if (op->p2p && e->peers[op->m.peer].out_of_world) {
        ddp__fault_is_about(e, op->m.peer);
        ddp__fault(e, DDP_PEER_LOST, "rank %d is no longer in the world: no message can be %s it", op->m.peer,
                   op->m.verb < DDP_RECEIVE ? "sent to" : "received from");
        return;
    }
    ddp__start(e, op, 0, now);
}

/* Returns 1 if an operation must wait for another message, or for an operation of its group that waits. Each
 * such operation reserves a window position, so that the oldest of all always has one. */
static int ddp__must_wait(ddp__engine *e, const ddp__op *op, uint64_t *groups)
{
    const uint64_t group = (uint64_t)1 << op->m.group;
    const long after = op->m.after - 1; /* -1: none */
    const int over = after < e->first || e->ops[after % e->cfg.queue].state == DDP__OP_DONE;

    if (over && !(*groups & group)) return 0;
    *groups |= group;
    e->waiting[e->waits++] = op->ticket;
    return 1;
}

/* The first chunk of the next message in a lane from that peer. -1 means that it has not arrived. */
static int ddp__first_chunk(const ddp__engine *e, int peer, int lane)
{
    const uint32_t seq = (uint32_t)lane << 30 | (e->peers[peer].paired_seq[2 * lane + 1] & 0x3fffffffu);
    int s = e->peers[peer].pending.first;

    while (s >= 0 && !(e->slot[s].f.p2p && e->slot[s].f.seq == seq)) s = e->slot[s].next;
    return s;
}

/* Sets the peer of a receive without a peer to the rank whose message arrived first. A serve gets the length
 * of the peer's message. Returns 0 if no message has arrived, or if it does not fit. */
static int ddp__bind(ddp__engine *e, ddp__op *op)
{
    const int lane = ddp__paired_lane(op);
    const ddp__frame *f;
    int slot = -1;

    for (int r = 0; r < e->world; r++) {
        const int other = r != e->rank && (op->m.peer == DDP_ANY || op->m.peer == r);
        const int s = other && !e->peers[r].paired[ddp__paired(op)] ? ddp__first_chunk(e, r, lane) : -1;
        if (s >= 0 && (slot < 0 || e->slot[s].arrived < e->slot[slot].arrived)) slot = s;
    }
    if (slot < 0) return 0;
    f = &e->slot[slot].f;
    pthread_mutex_lock(&e->lock);
    op->m.peer = op->span.peer = e->slot[slot].peer;
    if (op->m.verb == DDP_SERVE) op->m.layer = op->span.layer = f->layer;
    pthread_mutex_unlock(&e->lock);
    if (op->m.verb != DDP_SERVE) return 1;
    if (f->count > op->n)
        return ddp__fault(e, DDP_MISMATCH,
                          "rank %d pushes %lu values of layer %d, rank %d serves at most %lu at a "
                          "time",
                          op->m.peer, (unsigned long)f->count, op->m.layer, e->rank, (unsigned long)op->n);
    op->n = f->count;
    if (op->m.received) op->m.received->verb = f->verb == (int)DDP__ASK ? DDP_PULL : DDP_PUSH;
    return 1;
}

/* Returns 1 if this is a serve or an answer of a lost peer, which is then complete. A served peer that has
 * left, with no message here, is reported to the membership. Without a membership it is an error. */
static int ddp__serves_lost(ddp__engine *e, ddp__op *op)
{
    const int peer = op->m.peer;

    if (peer == DDP_ANY || e->wire->carrier) return 0; /* a carrier has its own messages */
    if (e->peers[peer].out_of_world) return ddp__op_void(e, op);
    if (op->m.verb != DDP_SERVE || !e->peers[peer].left ||
        ddp__first_chunk(e, peer, ddp__paired_lane(op)) >= 0)
        return 0;
    if (e->membership) {
        e->membership->left(e, peer);
        return 0;
    }
    ddp__fault_is_about(e, peer);
    return !ddp__fault(e, DDP_PEER_LOST,
                       "rank %d closed its context, but its request is still queued; call ddp_sync_all on "
                       "every rank before ddp_close",
                       peer);
}

/* The position that an operation between two ranks can use now, or NULL. */
static ddp__op **ddp__paired_place(ddp__engine *e, ddp__op *op)
{
    ddp__op **place;

    if (e->wire->carrier) {
        e->carried = NULL;
        return &e->carried; /* any number of messages may be in flight */
    }
    if ((op->m.peer == DDP_ANY || op->m.verb == DDP_SERVE) && !ddp__bind(e, op)) return NULL;
    place = &e->peers[op->m.peer].paired[ddp__paired(op)];
    return *place ? NULL : place;
}

/* The same for a collective, and its row. *full: later collectives have to wait. */
static ddp__op **ddp__window_place(ddp__engine *e, const ddp__op *op, uint64_t *groups, int *full, int *row)
{
    int vacant = -e->waits; /* positions that are neither used nor reserved */

    for (int i = 0; i < e->width; i++) vacant += e->window[i] == NULL;
    if (vacant <= 0) *full = 1;
    if (*full || ddp__must_wait(e, op, groups)) return NULL;
    for (*row = 0; *row < e->width - 1 && e->window[*row]; ++*row) {
    }
    return e->window[*row] ? NULL : &e->window[*row];
}

void ddp__activate(ddp__engine *e, double now)
{
    int later = 0, full = 0; /* full: collectives begin in order, and the next one has to wait */

    while (e->dirty && e->fault.code == DDP_OK) {
        uint64_t groups = 0; /* bit per group with an operation that waits */
        e->dirty = full = e->waits = 0;
        while (e->queued_from < e->taken && e->ops[e->queued_from % e->cfg.queue].state != DDP__OP_QUEUED)
            e->queued_from++;
        for (long t = e->queued_from; t < e->taken && e->fault.code == DDP_OK; t++) {
            ddp__op *op = &e->ops[t % e->cfg.queue], **place;
            int row = (int)DDP__WINDOW + ddp__paired(op);
            if (op->state != DDP__OP_QUEUED) continue;
            if (op->span.submitted > now) { /* its submission time on the emulated link is still ahead */
                later = 1;
                break;
            }
            if (op->p2p && ddp__serves_lost(e, op)) continue;
            place = op->p2p ? ddp__paired_place(e, op) : ddp__window_place(e, op, &groups, &full, &row);
            if (!place) continue;
            if (e->membership && !e->membership->may_begin(e, op)) {
                full |= !op->p2p;
                continue;
            }
            *place = op;
            ddp__begin(e, op, row, now);
        }
    }
    e->dirty |= later;
}
