/* All-reduce between ranks that are threads of one process: no values pass through a wire.
 *
 * A rank that begins such an operation sends the others an OFFER frame, which says where its values are. When
 * all have done so, each rank repeatedly takes a chunk that no rank has taken, adds all ranks' values in rank
 * order and writes the sum into all their arrays. Values are read once and overwritten while they are in the
 * cache, and a rank that gets no processor delays no other. A rank that finds no chunk left sends SUMMED,
 * after which it does not touch the operation's memory. The operation is complete once all ranks have sent
 * it. As elsewhere, frames also carry the data for detecting mismatches, late ranks and ranks that left.
 *
 * If a divergence is requested, a rank takes only the chunks of its own segment, in order: the rounding of a
 * sum of doubles must not depend on which rank was faster.
 *
 * A rank that fails must not free memory that others are using. It closes its offers, after which no rank
 * begins to use them, and waits for the ranks that already do. They take at most a few chunks
 * (DDP__SHARE_BATCH) and never wait meanwhile. */
#include "comm/state.h"

#define DDP__SHARE_BYTES ((size_t)256 << 10) /* below this size, two rounds of frames take longer */
#define DDP__SHARE_BLOCK 2048 /* floats. The blocks of all ranks fit in the second-level cache. */
#define DDP__SHARE_BATCH 8    /* chunks after which the thread handles its frames again */

DDP_STATIC_ASSERT((int)DDP__OFFERS == (int)DDP__WINDOW, "one offer for each position of the window");

enum { DDP__SHARE_OFFERED, DDP__SHARE_OVER, DDP__SHARE_STUCK }; /* ddp__op.u.share.state */

static ddp__offer *ddp__offer_of(const ddp__engine *e, int rank, int row)
{
    return &e->wire->offers[rank * DDP__OFFERS + row];
}

static ddp__offer *ddp__offered(ddp__engine *e, const ddp__op *op, int rank)
{
    return ddp__offer_of(e, rank, rank == e->rank ? op->row : ddp__row(e, op, rank)->u.share.row);
}

size_t ddp__share_bytes(const ddp__engine *e)
{
    if (!e->wire->offers || e->shaped || e->membership || e->links.acts > 0) return SIZE_MAX;
    return e->cfg.share_bytes > 0 ? e->cfg.share_bytes : DDP__SHARE_BYTES;
}

static int ddp__share_fits(const ddp__engine *e, const ddp__op *op)
{
    return op->m.verb == DDP_ALL_REDUCE && op->m.coding == DDP_AS_FLOAT && !op->m.overlap && !op->m.owner &&
           op->n > 0 && op->n * sizeof(float) >= e->share_bytes && ddp__team_of(e, op).members > 1;
}

static void ddp__share_begin(ddp__engine *e, ddp__op *op)
{
    const ddp__members team = ddp__team_of(e, op);
    ddp__offer *own = ddp__offer_of(e, e->rank, op->row);

    op->u.share.state = DDP__SHARE_OFFERED;
    op->u.share.next = 0;
    op->left = 2 * op->n * (size_t)(team.members - 1); /* one n per SUMMED sent and received */
    for (int i = 0; i < team.members; i++)
        if (team.member[i] != e->rank) ddp__op_expect(e, op, team.member[i]);
    own->op = op;
    own->row = ddp__row(e, op, 0);
    ddp__atomic_store(&own->next, (size_t)0);
    ddp__atomic_add(&own->users, (long)DDP__OFFER_OPEN);
}

/* Waits until no rank uses the operation's memory, and prevents further use. */
static void ddp__share_finished(ddp__engine *e, const ddp__op *op)
{
    ddp__offer *own = ddp__offer_of(e, e->rank, op->row);

    if (ddp__atomic_load(&own->users) < (long)DDP__OFFER_OPEN) return;
    ddp__atomic_add(&own->users, -(long)DDP__OFFER_OPEN);
    while (ddp__atomic_load(&own->users) > 0) ddp__sleep_until(ddp_now() + 50e-6);
}

/* ---- frames ---- */

static int ddp__share_next(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    const ddp__exchange *x = ddp__row(e, op, peer);

    if (x->u.share.frames == 0 && ddp__may_stage(e, op, peer, 0)) {
        ddp__describe(f, op, DDP__FRAME_OFFER, (size_t)op->row, 0);
        return 1;
    }
    if (x->u.share.frames != 1 || (op->u.share.state != DDP__SHARE_OVER && x->u.share.complaint == 0))
        return 0;
    ddp__describe(f, op, DDP__FRAME_SUMMED, x->u.share.complaint, 0);
    return 1;
}

static int ddp__share_leaves(ddp__engine *e, ddp__op *op, int peer, const ddp__frame *f)
{
    ddp__row(e, op, peer)->u.share.frames++;
    if (f->type == DDP__FRAME_OFFER) ddp__hold_credit(e, op, peer);
    return -1;
}

static void ddp__share_sent(ddp__engine *e, ddp__op *op, const ddp__frame *f, double now)
{
    (void)now;
    /* a SUMMED frame with a complaint does not complete anything */
    ddp__op_advance(e, op, f->type == DDP__FRAME_SUMMED && f->offset == 0 ? op->n : 0);
}

static void ddp__share_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f,
                               double now)
{
    if (f->type == DDP__FRAME_OFFER) {
        ddp__row(e, op, peer)->u.share.row = (int)f->offset;
        ddp__slot_free(e, slot);
        return;
    }
    if (f->offset > 0) { /* the peer found values that differ from those that were submitted */
        size_t at = f->offset - 1, from, to;
        ddp__segment(e, op, ddp__segment_of(e, op, at), &from, &to);
        if (ddp__guard_check(e, op, at, to - at < e->chunk ? to - at : e->chunk)) ddp__guard_fault(e, op);
        return;
    }
    ddp__row(e, op, peer)->u.share.over = 1;
    ddp__op_moves(e, op, now);
    ddp__op_advance(e, op, op->n);
}

static int ddp__share_unsent(ddp__engine *e, const ddp__op *op, int peer)
{
    return ddp__row(e, op, peer)->u.share.frames == 0;
}

static int ddp__share_is_over(ddp__engine *e, const ddp__op *op, int peer)
{
    return ddp__row(e, op, peer)->u.share.over;
}

/* ---- sums ---- */

/* Returns 0 if the values of some rank differ from those that it submitted, and sends a frame that reports it
 * to that rank. */
static int ddp__share_intact(ddp__engine *e, ddp__op *op, size_t at, size_t count)
{
    const ddp__members team = ddp__team_of(e, op);

    for (int i = 0; i < team.members; i++) {
        int r = team.member[i];
        if (ddp__guard_intact(e, ddp__offered(e, op, r)->op, at, count)) continue;
        op->u.share.state = DDP__SHARE_STUCK;
        if (r == e->rank)
            ddp__guard_fault(e, op);
        else
            ddp__row(e, op, r)->u.share.complaint = at + 1;
        return 0;
    }
    return 1;
}

/* Where this rank accumulates its part of another rank's divergence, or NULL. */
static double *ddp__share_divergence(const ddp__engine *e, const ddp__offer *offer)
{
    return offer->op->m.divergence ? &offer->row[e->rank].divergence : NULL;
}

static void ddp__share_sum(ddp__engine *e, ddp__op *op, size_t at, size_t count, int measures)
{
    const ddp__members team = ddp__team_of(e, op);
    const ddp__offer *own = ddp__offered(e, op, e->rank);
    size_t here, skip;

    for (; count > 0; at += here, count -= here) {
        float *sum, *to;
        here = !measures && count > DDP__SHARE_BLOCK ? (size_t)DDP__SHARE_BLOCK : count;
        for (int i = 0; i < team.members; i++) {
            const ddp__op *theirs = ddp__offered(e, op, team.member[i])->op;
            (void)ddp__memory_at(theirs, &theirs->to, at, here, &here);
            e->terms[i] = (const float *)ddp__memory_at(theirs, &theirs->from, at, here, &here);
        }
        sum = (float *)ddp__memory_at(op, ddp__result_of(op), at, here, &skip);
        ddp__floats_sum(sum, e->terms, team.members, here, op->scale, ddp__share_divergence(e, own));
        for (int i = 0; i < team.members; i++) {
            const ddp__offer *offer = ddp__offered(e, op, team.member[i]);
            to = (float *)ddp__memory_at(offer->op, &offer->op->to, at, here, &skip);
            if (offer->op->m.add)
                ddp__floats_add(to, sum, here);
            else if (offer != own)
                ddp__floats_store(to, sum, here, ddp__share_divergence(e, offer));
        }
    }
}

/* The next chunk for this rank, or 0 if there is none. */
static int ddp__share_take(ddp__engine *e, ddp__op *op, int measures, size_t *at, size_t *count)
{
    const ddp__members team = ddp__team_of(e, op);
    const size_t per = (op->n / (size_t)team.members + e->chunk) / e->chunk; /* chunks per segment */
    size_t *next = &ddp__offered(e, op, team.member[0])->next, from, to, unit;

    do {
        if (measures)
            unit = op->u.share.next++;
        else
            unit = ddp__atomic_add(next, (size_t)1);
        if (unit >= (measures ? per : per * (size_t)team.members)) return 0;
        ddp__segment(e, op, measures ? e->rank : team.member[unit / per], &from, &to);
        *at = from + unit % per * e->chunk;
    } while (*at >= to);
    *count = to - *at < e->chunk ? to - *at : e->chunk;
    return 1;
}

/* by = 1: marks all offers as in use, so that no rank frees their memory until by = -1. Returns 0 if a rank
 * has closed its offer. */
static int ddp__share_hold(ddp__engine *e, const ddp__op *op, long by)
{
    const ddp__members team = ddp__team_of(e, op);
    int open = 1;

    for (int i = 0; i < team.members; i++)
        open &= ddp__atomic_add(&ddp__offered(e, op, team.member[i])->users, by) >= (long)DDP__OFFER_OPEN;
    return open;
}

/* Counts bytes as if the values had been sent: the owner of a segment receives it from the others, and sends
 * its sum. */
static void ddp__share_account(ddp__engine *e, ddp__op *op)
{
    const size_t own = ddp__segment_length(e, op, e->rank),
                 others = (size_t)(ddp__team_of(e, op).members - 1);
    const int64_t bytes = (int64_t)((own * others + op->n - own) * sizeof(float));

    ddp__count_sent(e, op, DDP_AS_FLOAT, bytes);
    ddp__atomic_add(&e->bytes_sent, bytes);
    ddp__atomic_add(&e->bytes_received, bytes);
}

/* The highest-priority operation with chunks to add. */
static ddp__op *ddp__share_best(const ddp__engine *e)
{
    ddp__op *best = NULL;

    for (int i = 0; i < DDP__WINDOW; i++) {
        ddp__op *op = e->window[i];
        if (!op || op->way != ddp__share_way() || op->missing || op->u.share.state != DDP__SHARE_OFFERED)
            continue;
        if (!best || op->m.priority < best->m.priority ||
            (op->m.priority == best->m.priority && op->ticket < best->ticket))
            best = op;
    }
    return best;
}

int ddp__share_run(ddp__engine *e, double now)
{
    ddp__op *op = ddp__share_best(e);
    int measures = 0; /* 1: at least one rank measures its divergence */
    size_t at, count;
    ddp__members team;

    if (!op) return 0;
    if (!ddp__share_hold(e, op, 1)) {
        (void)ddp__share_hold(e, op, -1);
        op->u.share.state = DDP__SHARE_STUCK; /* until the report of the failure arrives */
        return 0;
    }
    team = ddp__team_of(e, op);
    for (int i = 0; i < team.members; i++)
        measures |= ddp__offered(e, op, team.member[i])->op->m.divergence != NULL;
    for (int k = 0; k < DDP__SHARE_BATCH && op->u.share.state == DDP__SHARE_OFFERED; k++) {
        if (!ddp__share_take(e, op, measures, &at, &count))
            op->u.share.state = DDP__SHARE_OVER;
        else if (ddp__share_intact(e, op, at, count))
            ddp__share_sum(e, op, at, count, measures);
    }
    (void)ddp__share_hold(e, op, -1);
    if (op->u.share.state == DDP__SHARE_OVER) ddp__share_account(e, op);
    ddp__op_moves(e, op, now);
    return 1;
}

const ddp__algorithm *ddp__share_way(void)
{
    /* a shared sum is bit-identical to the direct algorithm's, and is reported under that name */
    static const ddp__algorithm way = {'d',
                                       "direct",
                                       1u << DDP__FRAME_OFFER | 1u << DDP__FRAME_SUMMED,
                                       0,
                                       0,
                                       0,
                                       ddp__share_fits,
                                       NULL,
                                       ddp__share_begin,
                                       ddp__share_next,
                                       ddp__share_leaves,
                                       ddp__share_sent,
                                       NULL,
                                       ddp__share_arrived,
                                       ddp__share_unsent,
                                       ddp__share_is_over,
                                       ddp__share_finished};

    return &way;
}
