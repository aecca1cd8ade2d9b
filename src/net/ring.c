/* The ring all-reduce. Segment j starts at rank j + 1 and gathers every rank's values on its way
 * to rank j, which scales the sum once; from there the result goes round to rank j - 1. Every
 * segment is thus summed along one path and then copied: the same bits on all ranks, each time,
 * though not those of a sum in rank order. (Patarasuk and Yuan 2009, Bandwidth optimal all-reduce
 * algorithms for clusters of workstations, section 3; here in chunks.)
 *
 * A partial sum is made and sent on in the staging slot it arrived in; the parameters stay as they
 * are until the result overwrites them, and results are sent on from there.
 *
 * Why this cannot lock up. Results need no credit, so only partial sums can wait for each other.
 * 1. Only the oldest ring operation of which a rank has partial sums to send may send them. Let O
 *    be the oldest operation that is unfinished on any rank. If it is a ring, a rank that has sent
 *    all of O's sums needs no more slots for it, and no other holds sums of a younger ring at the
 *    next rank.
 * 2. Everything younger than O that takes a slot at the next rank leaves it one (the bubble), and
 *    two while O holds none (ddp__may_stage). What is older than O is finished and drains.
 * 3. A sum that enters the ring leaves the bubble too; one that is sent on may take it, and gives
 *    back the slot it was in, where it becomes the bubble of the rank before. So at all times some
 *    rank has a free slot ahead of it or one about to be free (bubble flow control: Carrion et
 *    al. 1997).
 * 4. If nothing of O could move, every rank with a sum to send on would have no free slot ahead,
 *    so the next rank would hold one too, and so round the ring, against 3. If no sum is under
 *    way, O holds no slot anywhere, two are free, and the next sum may enter.
 * 5. If O is not a ring, younger rings leave it a slot like everybody else.
 * So O finishes, and by induction everything. */
#include "net/state.h"

/* The live id that is k places after another in the ring, k from 0 to their number. */
static int ddp__ring_after(const ddp__engine *e, int id, int k)
{
    return e->ring[(e->turn[id] + k) % e->members];
}
static int ddp__ring_next(const ddp__engine *e) { return ddp__ring_after(e, e->rank, 1); }
static int ddp__ring_prev(const ddp__engine *e)
{
    return ddp__ring_after(e, e->rank, e->members - 1);
}

size_t ddp__ring_bytes(const ddp__engine *e)
{
    double world = (double)e->world, chunk = (double)(e->chunk * sizeof(float)), bytes;
    double window = (double)(e->credits - e->width - (int)DDP__LANES) * chunk;

    if (e->cfg.deterministic || e->world < 3) return SIZE_MAX;
    if (e->cfg.ring_bytes > 0) return e->cfg.ring_bytes;
    if (!(e->slowest > 0) || (e->cfg.links && e->cfg.links->by_pair)) return SIZE_MAX;
    if (2 * e->farthest * e->slowest > window) return SIZE_MAX;
    bytes = 50 * world * (world - 2) / (world - 1) * (e->farthest * e->slowest + chunk);
    return (size_t)bytes;
}

int ddp__by_ring(const ddp__engine *e, const ddp__op *op)
{
    return op->m.verb == DDP__ALL_REDUCE && op->m.group == 0 && !op->m.coding && e->members > 2 &&
           op->n * sizeof(float) >= e->ring_bytes;
}

static size_t ddp__ring_length(const ddp__engine *e, const ddp__op *op, int of)
{
    size_t from, to;

    ddp__segment(e, op, of, &from, &to);
    return to - from;
}

void ddp__ring_begin(ddp__engine *e, ddp__op *op)
{
    int prev = ddp__ring_prev(e), next = ddp__ring_next(e);
    size_t results = op->n - ddp__ring_length(e, op, e->rank); /* that come */

    op->sums_left = op->n - ddp__ring_length(e, op, e->rank);
    op->results_left = op->n - ddp__ring_length(e, op, next);
    op->to_come = results + op->n - ddp__ring_length(e, op, prev);
    op->left = op->sums_left + op->results_left + results;
    op->first_sum = op->last_sum = -1;
    op->missing = op->n > 0;
    /* the first sum of the rank before depends on nobody else */
    ddp__row(e, op, prev)->expected =
        ddp__ring_length(e, op, ddp__ring_after(e, prev, e->members - 1)) > 0;
}

int ddp__ring_needs(const ddp__engine *e, const ddp__op *op, int peer)
{
    return (peer == ddp__ring_next(e) && op->sums_left + op->results_left > 0) ||
           (peer == ddp__ring_prev(e) && op->to_come > 0);
}

int ddp__ring_unsent(const ddp__engine *e, const ddp__op *op, int peer)
{
    return peer == ddp__ring_next(e) && op->sums_left > 0;
}

static int ddp__ring_is_oldest(const ddp__engine *e, const ddp__op *op)
{
    for (int i = 0; i < DDP__WINDOW; i++) {
        const ddp__op *other = e->window[i];
        if (other && other->ring && other->ticket < op->ticket && other->sums_left > 0) return 0;
    }
    return 1;
}

/* What has come farthest goes first: results, then sums under way, then the own segment's start. */
int ddp__ring_frame(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    size_t from, to, at;
    int start = ddp__ring_prev(e);

    if (peer != ddp__ring_next(e)) return 0;
    for (int k = 2; k <= e->members && op->results_left > 0; k++) {
        int of = ddp__ring_after(e, e->rank, k);
        const ddp__exchange *x = ddp__row(e, op, of);
        size_t count = x->finished - x->results;
        if (count == 0) continue;
        ddp__segment(e, op, of, &from, &to);
        ddp__describe(f, op, DDP__FRAME_RESULT, from + x->results,
                      count < e->chunk ? count : e->chunk);
        return 1;
    }
    if (op->sums_left == 0 || !ddp__ring_is_oldest(e, op)) return 0;
    if (op->first_sum >= 0 && ddp__may_stage(e, op, peer, 1)) {
        const ddp__frame *sum = &e->slot[op->first_sum].f;
        ddp__describe(f, op, DDP__FRAME_SUM, sum->offset, sum->length / sizeof(float));
        return 1;
    }
    ddp__segment(e, op, start, &from, &to);
    at = from + ddp__row(e, op, start)->sent;
    if (at < to && ddp__may_stage(e, op, peer, 0)) {
        ddp__describe(f, op, DDP__FRAME_SUM, at, to - at < e->chunk ? to - at : e->chunk);
        return 1;
    }
    return 0;
}

int ddp__ring_started(ddp__engine *e, ddp__op *op, const ddp__frame *f)
{
    size_t count = f->length / sizeof(float);
    int slot;

    if (f->type == DDP__FRAME_RESULT) {
        op->results_left -= count;
        return -1;
    }
    op->sums_left -= count;
    if (ddp__segment_of(e, op, f->offset) == ddp__ring_prev(e)) return -1;
    slot = op->first_sum;
    op->first_sum = e->slot[slot].next;
    if (op->first_sum < 0) op->last_sum = -1;
    return slot;
}

int ddp__ring_arrived(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f)
{
    int of = ddp__segment_of(e, op, f->offset), result = f->type == DDP__FRAME_RESULT;
    size_t count = f->length / sizeof(float), from, to, rest;

    ddp__segment(e, op, of, &from, &to);
    rest = to - f->offset;
    if (peer != ddp__ring_prev(e) || of == (result ? e->rank : ddp__ring_prev(e)) ||
        count != (rest < e->chunk ? rest : e->chunk))
        return 0;
    op->to_come -= count;
    /* Results, and the sums of the own segment, have been at every rank. */
    if (result || of == e->rank) op->missing = 0;
    return 1;
}

static void ddp__ring_reduce(ddp__engine *e, ddp__op *op, const ddp__slot *s, size_t count)
{
    ddp__exchange *x = ddp__row(e, op, e->rank);
    double *divergence = op->m.divergence ? &x->divergence : NULL;
    size_t done = 0, here;

    for (; done < count; done += here) {
        float *own = ddp__memory_at(op, s->f.offset + done, count - done, &here);
        e->terms[0] = s->data + done;
        e->terms[1] = own;
        e->memory.reduce(own, e->terms, 1, 2, here, op->scale, divergence);
    }
    ddp__guard_update(e, op, s->f.offset, count);
    x->finished += count;
}

void ddp__ring_take(ddp__engine *e, ddp__op *op, int slot, double now)
{
    ddp__slot *s = &e->slot[slot];
    size_t count = s->f.length / sizeof(float), done = 0, here;

    if (!ddp__guard_check(e, op, s->f.offset, count)) return;
    if (ddp__segment_of(e, op, s->f.offset) == e->rank) {
        ddp__ring_reduce(e, op, s, count);
        ddp__slot_free(e, slot);
    } else {
        for (; done < count; done += here) {
            const float *own = ddp__memory_at(op, s->f.offset + done, count - done, &here);
            e->memory.add(s->data + done, own, here);
        }
        s->next = -1;
        if (op->last_sum >= 0) e->slot[op->last_sum].next = slot;
        else op->first_sum = slot;
        op->last_sum = slot;
    }
    ddp__op_moves(e, op, now);
}
