/* The full exchange: each rank sends all its values to everybody, and everybody adds them up in
 * rank order: the bits of the direct way, after one delay instead of two, for n / 2 times its bytes.
 *
 * A rank must not overwrite a chunk of its own values with the sum before all others were sent it.
 * Nothing else is new: contributions take slots as in the direct way, a chunk gives them back once
 * all of its contributions are here, and chunks come in order, so what keeps direct operations from
 * locking up (ddp__may_stage) holds for these. Not in elastic worlds, whose survivors would hold
 * sums over unlike members, nor for bfloat16 or int8, where the owner's rounding makes the ranks
 * equal. */
#include "net/elastic.h"

#define DDP__FULL_BYTES ((size_t)64 << 10) /* of two ranks on unshaped wires */

size_t ddp__full_bytes(const ddp__engine *e)
{
    double world = (double)e->world, flight = e->farthest * e->slowest;
    double window = (double)(e->credits - e->width - (int)DDP__LANES) *
                    (double)(e->chunk * sizeof(float));

    if (e->world < 2 || e->elastic || e->cfg.min_world > 0) return 0;
    if (e->cfg.full_bytes > 0) return e->cfg.full_bytes;
    if (e->cfg.links && e->cfg.links->by_pair) return 0;
    if (!(e->slowest > 0)) return DDP__FULL_BYTES * 2 / ((size_t)e->world * (size_t)(e->world - 1));
    /* one delay against n / 2 times the bytes; what is sent stays staged for one more */
    if (e->world == 2) return 2 * flight <= window ? SIZE_MAX : (size_t)window;
    flight *= world / ((world - 1) * (world - 2));
    return (size_t)(flight < window ? flight : window);
}

int ddp__full_sent(ddp__engine *e, const ddp__op *op, size_t at, size_t count)
{
    for (int r = 0; r < e->world; r++) {
        const ddp__peer *p = &e->peers[r];
        if (r == e->rank) continue;
        if (ddp__row(e, op, r)->sent < at + count) return 0;
        if (p->out_op == op && p->out.offset < at + count) return 0;
    }
    return 1;
}

void ddp__own_part(const ddp__engine *e, const ddp__op *op, size_t *from, size_t *to)
{
    *from = 0;
    *to = op->n;
    if (!op->full) ddp__segment(e, op, e->rank, from, to);
}

int ddp__full_over(ddp__engine *e, const ddp__op *op, int peer)
{
    const ddp__exchange *x = ddp__row(e, op, peer);
    size_t got = x->taken;

    for (int s = e->peers[peer].first_pending; s >= 0; s = e->slot[s].next)
        if (e->slot[s].f.seq == op->seq && !e->slot[s].f.p2p)
            got += ddp__frame_values(&e->slot[s].f);
    return x->sent >= op->n && got >= op->n;
}
