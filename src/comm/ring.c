/* The ring all-reduce. Segment j starts at rank j + 1 and collects every rank's values on its way to rank j,
 * which scales the sum once. From there the result travels around the ring to rank j - 1. Each segment is
 * thus summed along one path and then copied, so the result is bit-identical on all ranks and in every run,
 * but differs from a sum in rank order. (Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms for
 * clusters of workstations, section 3, here in chunks.)
 *
 * A partial sum is computed in, and sent on from, the staging slot it arrived in. The parameters do not
 * change until the result overwrites them, and results are sent on from there.
 *
 * Why there is no deadlock. Results need no credit, so only partial sums can wait for each other.
 * 1. Only the oldest ring operation for which a rank has partial sums to send may send them. Let O be the
 *    oldest operation that is unfinished on any rank. If O is a ring, a rank that has sent all of O's sums
 *    needs no more slots for it, and no other rank occupies slots with sums of a younger ring at the next
 *    rank.
 * 2. Every operation younger than O that takes a slot at the next rank leaves one free (the bubble), and two
 *    while O has none (ddp__may_stage). Operations older than O are finished, and their slots drain.
 * 3. A sum that enters the ring also leaves the bubble free. A sum that is sent on may take the bubble. It
 *    frees the slot it was in, which becomes the bubble of the previous rank. So at all times some rank has a
 *    free slot ahead of it, or one that is about to be free (bubble flow control: Carrion et al. 1997).
 * 4. Suppose nothing of O could move. Then every rank with a sum to send on has no free slot ahead, so the
 *    next rank has such a sum too, and so on around the ring, which contradicts 3. If no sum is in flight, O
 *    has no slot anywhere, two are free, and the next sum may enter.
 * 5. If O is not a ring, younger rings leave it a slot, as all operations do. So O finishes, and by induction
 *    every operation does. */
#include "comm/state.h"

/* The live id k places after another in the ring, k from 0 to the number of live ids. */
static int ddp__ring_after(const ddp__engine *e, int id, int k)
{
    return e->ring[(e->turn[id] + k) % e->members];
}
static int ddp__ring_next(const ddp__engine *e) { return ddp__ring_after(e, e->rank, 1); }
static int ddp__ring_prev(const ddp__engine *e) { return ddp__ring_after(e, e->rank, e->members - 1); }

size_t ddp__engine_window(const ddp__engine *e)
{
    return (size_t)(e->credits - e->width - e->lanes) * e->chunk * sizeof(float);
}

/* Minimum size for the ring, in bytes. The direct algorithm takes 2 delays and the ring 2 (n - 1), but the
 * ring avoids incast if ranks are out of step. (In step, both take 1 to 2 % more than the transfer of 2 (n -
 * 1) / n M / B, measured with 4 and 8 ranks.) So the ring is used if its extra delay is at most 2 %. A hop
 * takes the link's delay and one chunk. The ring is never used without an emulated link, or if the round trip
 * exceeds staging. */
size_t ddp__ring_bytes(const ddp__engine *e)
{
    double world = (double)e->world, chunk = (double)(e->chunk * sizeof(float));

    if (e->cfg.deterministic || e->world < 3) return SIZE_MAX;
    if (e->cfg.ring_bytes > 0) return e->cfg.ring_bytes;
    if (!(e->links.slowest > 0) || e->links.by_pair) return SIZE_MAX;
    if (2 * e->links.farthest * e->links.slowest > (double)ddp__engine_window(e)) return SIZE_MAX;
    return (size_t)(50 * world * (world - 2) / (world - 1) * (e->links.farthest * e->links.slowest + chunk));
}

void ddp__ring_reset(ddp__engine *e)
{
    for (int i = 0; i < e->world; i++) e->order[i] = i;
    e->ring_bytes = ddp__ring_bytes(e);
}

ddp_status ddp__engine_ring(ddp__engine *e, const int *order, size_t ring_bytes, ddp_error *err)
{
    ddp_status status = DDP_OK;
    ddp__epoch_info info;

    for (int i = 0; order && i < e->world; i++) {
        int times = 0;
        for (int j = 0; j < e->world; j++) times += order[j] == i;
        if (times != 1) return ddp__fail(err, DDP_ARG, "a ring order that names rank %d %d times", i, times);
    }
    ddp__engine_epoch(e, &info);
    pthread_mutex_lock(&e->lock);
    if (e->first != e->submitted) {
        status = ddp__fail(err, DDP_USAGE, "cannot change the ring's order while %ld messages are in flight",
                           e->submitted - e->first);
    } else {
        for (int i = 0; i < e->world; i++) e->order[i] = order ? order[i] : i;
        ddp__members_set(e, info.live);
        e->ring_bytes = ring_bytes && !e->cfg.deterministic && e->world > 2 ? ring_bytes : ddp__ring_bytes(e);
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

ddp__sizes ddp__engine_sizes(const ddp__engine *e)
{
    const ddp__sizes sizes = {e->full_bytes, e->ring_bytes};

    return sizes;
}

ddp_status ddp__engine_choose(ddp__engine *e, ddp__sizes sizes, ddp_error *err)
{
    long sums = 0;
    ddp_status status = DDP_OK;

    pthread_mutex_lock(&e->lock);
    for (long t = e->first; t < e->submitted; t++) {
        const ddp__op *op = &e->ops[t % e->cfg.queue];
        sums += !op->done && op->m.verb == DDP_ALL_REDUCE;
    }
    if (sums > 0) {
        status = ddp__fail(err, DDP_USAGE, "cannot choose the algorithm while %ld all-reduces are in flight",
                           sums);
    } else {
        e->full_bytes = sizes.full;
        e->ring_bytes = sizes.ring;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

int ddp__engine_may_ring(const ddp__engine *e)
{
    return e->members > 2 && !e->membership && !e->shaped && !e->cfg.deterministic && !e->cfg.coding &&
           !e->cfg.ring_bytes;
}

/* Operations of groups never use the ring: ranks may submit operations of different groups in different
 * orders, and rings must wait for each other in one order. In an elastic world, operations with an owner do
 * not use it, because the survivors of a loss must be able to undo the owner's rule. */
static int ddp__ring_fits(const ddp__engine *e, const ddp__op *op)
{
    return op->m.verb == DDP_ALL_REDUCE && op->m.group == 0 && !op->m.coding &&
           !(op->m.owner && e->membership) && e->members > 2 && op->n * sizeof(float) >= e->ring_bytes;
}

static void ddp__ring_begin(ddp__engine *e, ddp__op *op)
{
    int prev = ddp__ring_prev(e), next = ddp__ring_next(e);
    size_t results = op->n - ddp__segment_length(e, op, e->rank); /* results to receive */

    op->u.ring.sums_left = op->n - ddp__segment_length(e, op, e->rank);
    op->u.ring.results_left = op->n - ddp__segment_length(e, op, next);
    op->u.ring.to_come = results + op->n - ddp__segment_length(e, op, prev);
    op->left = op->u.ring.sums_left + op->u.ring.results_left + results;
    op->u.ring.sums.first = op->u.ring.sums.last = -1;
    op->missing = op->n > 0; /* until a chunk arrives that has been at every rank */
    /* the first sum of the previous rank depends on no other rank */
    if (ddp__segment_length(e, op, ddp__ring_after(e, prev, e->members - 1)) > 0) ddp__op_expect(e, op, prev);
}

static int ddp__ring_unsent(ddp__engine *e, const ddp__op *op, int peer)
{
    return peer == ddp__ring_next(e) && op->u.ring.sums_left > 0;
}

static int ddp__ring_over(ddp__engine *e, const ddp__op *op, int peer)
{
    return !(peer == ddp__ring_next(e) && op->u.ring.sums_left + op->u.ring.results_left > 0) &&
           !(peer == ddp__ring_prev(e) && op->u.ring.to_come > 0);
}

static int ddp__ring_is_oldest(const ddp__engine *e, const ddp__op *op)
{
    for (int i = 0; i < DDP__WINDOW; i++) {
        const ddp__op *other = e->window[i];
        if (other && other->way == op->way && other->ticket < op->ticket && other->u.ring.sums_left > 0)
            return 0;
    }
    return 1;
}

/* The chunk that has travelled farthest goes first: results, then sums in flight, then the first sums of the
 * segment that starts here. */
static int ddp__ring_frame(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    size_t from, to, at;
    int start = ddp__ring_prev(e);

    if (peer != ddp__ring_next(e)) return 0;
    for (int k = 2; k <= e->members && op->u.ring.results_left > 0; k++) {
        int of = ddp__ring_after(e, e->rank, k);
        const ddp__exchange *x = ddp__row(e, op, of);
        size_t count = x->u.flow.finished - x->u.flow.results;
        if (count == 0) continue;
        ddp__segment(e, op, of, &from, &to);
        ddp__describe(f, op, DDP__FRAME_RESULT, from + x->u.flow.results,
                      count < e->chunk ? count : e->chunk);
        return 1;
    }
    if (op->u.ring.sums_left == 0 || !ddp__ring_is_oldest(e, op)) return 0;
    if (op->u.ring.sums.first >= 0 && ddp__may_stage(e, op, peer, 1)) {
        const ddp__frame *sum = &e->slot[op->u.ring.sums.first].f;
        ddp__describe(f, op, DDP__FRAME_SUM, sum->offset, sum->length / sizeof(float));
        return 1;
    }
    ddp__segment(e, op, start, &from, &to);
    at = from + ddp__row(e, op, start)->u.flow.sent;
    if (at < to && ddp__may_stage(e, op, peer, 0)) {
        ddp__describe(f, op, DDP__FRAME_SUM, at, to - at < e->chunk ? to - at : e->chunk);
        return 1;
    }
    return 0;
}

static int ddp__ring_leaves(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f)
{
    const int of = ddp__segment_of(e, op, f->offset);
    ddp__exchange *x = ddp__row(e, op, of);
    const size_t count = f->length / sizeof(float);
    int slot;

    if (f->type == DDP__FRAME_RESULT) {
        x->u.flow.results += count;
        op->u.ring.results_left -= count;
        return -1;
    }
    x->u.flow.sent += count;
    op->u.ring.sums_left -= count;
    ddp__hold_credit(e, op, peer);
    if (of == ddp__ring_prev(e)) {
        (void)ddp__guard_check(e, op, f->offset, count);
        return -1;
    }
    slot = op->u.ring.sums.first;
    ddp__chain_remove(e, &op->u.ring.sums, slot);
    return slot;
}

/* Counts a chunk as received. Returns 0 if no rank of this ring would send it. */
static int ddp__ring_counts(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f)
{
    const int of = ddp__segment_of(e, op, f->offset), result = f->type == DDP__FRAME_RESULT;
    ddp__exchange *x = ddp__row(e, op, of);
    size_t count = f->length / sizeof(float), from, to, rest;

    ddp__segment(e, op, of, &from, &to);
    rest = to - f->offset;
    if (peer != ddp__ring_prev(e) || of == (result ? e->rank : ddp__ring_prev(e)) ||
        count != (rest < e->chunk ? rest : e->chunk))
        return ddp__fault(e, DDP_NET,
                          "rank %d sent values from %lu of operation %lu, but its ring starts elsewhere: all "
                          "ranks must use the same chunk size and order of the ring",
                          peer, (unsigned long)f->offset, (unsigned long)op->seq);
    if (!ddp__in_order(e, peer, f, from, to, result ? &x->u.flow.finished : &x->u.flow.taken)) return 0;
    op->u.ring.to_come -= count;
    /* Results, and the sums of the own segment, have been at every rank. */
    if (result || of == e->rank) op->missing = 0;
    return 1;
}

/* Adds this rank's values to a partial sum, which is then sent on, or is final. */
static void ddp__ring_take(ddp__engine *e, ddp__op *op, int slot, const ddp__frame *f)
{
    ddp__slot *s = &e->slot[slot];
    size_t count = f->length / sizeof(float), done = 0, here;

    if (!ddp__guard_check(e, op, f->offset, count)) return;
    if (ddp__segment_of(e, op, f->offset) == e->rank) {
        ddp__exchange *x = ddp__row(e, op, e->rank);
        e->terms[0] = s->data;
        ddp__memory_sum(e, op, f->offset, count, 1, 2, op->scale, op->m.divergence ? &x->divergence : NULL);
        ddp__guard_update(e, op, f->offset, count);
        x->u.flow.finished += count;
        ddp__slot_free(e, slot);
        return;
    }
    for (; done < count; done += here) {
        const void *own = ddp__memory_at(op, &op->from, f->offset + done, count - done, &here);
        ddp__floats_add(s->data + done, (const float *)own, here);
    }
    ddp__chain_add(e, &op->u.ring.sums, slot, op->u.ring.sums.last);
}

/* Stores a result, also in the memory from which it is sent on. */
static void ddp__ring_store(ddp__engine *e, ddp__op *op, int slot, const ddp__frame *f)
{
    ddp__exchange *x = ddp__row(e, op, e->slot[slot].peer);
    const size_t count = f->length / sizeof(float);
    float *data = e->slot[slot].data;

    if (!ddp__guard_check(e, op, f->offset, count)) return;
    if (op->m.add) ddp__memory_copy(op, ddp__result_of(op), f->offset, count, data, 1);
    ddp__memory_store(op, f->offset, data, count, op->m.divergence ? &x->divergence : NULL);
    ddp__slot_free(e, slot);
}

static void ddp__ring_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f,
                              double now)
{
    if (!ddp__ring_counts(e, op, peer, f)) return;
    if (f->type == DDP__FRAME_SUM) {
        ddp__ring_take(e, op, slot, f);
        ddp__op_moves(e, op, now);
        return;
    }
    if (slot >= 0) ddp__ring_store(e, op, slot, f);
    ddp__guard_update(e, op, f->offset, f->length / sizeof(float)); /* it will be sent on */
    ddp__op_moves(e, op, now);
    ddp__op_advance(e, op, f->length / sizeof(float));
}

const ddp__algorithm *ddp__ring_way(void)
{
    static const ddp__algorithm way = {'r',
                                       "ring",
                                       1u << DDP__FRAME_SUM | 1u << DDP__FRAME_RESULT,
                                       0,
                                       0,
                                       1,
                                       ddp__ring_fits,
                                       NULL,
                                       ddp__ring_begin,
                                       ddp__ring_frame,
                                       ddp__ring_leaves,
                                       NULL,
                                       NULL,
                                       ddp__ring_arrived,
                                       ddp__ring_unsent,
                                       ddp__ring_over,
                                       NULL};

    return &way;
}
