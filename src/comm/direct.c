/* Three algorithms that send values directly from the rank that has them to the ranks that need them.
 *
 * Plain: values that are not summed, in broadcasts, all-gathers and messages between two ranks.
 *
 * Direct all-reduce and reduce-scatter: each rank sends every other rank the values of that rank's segment,
 * sums its own segment in rank order, and (all-reduce) sends the result to all ranks.
 *
 * All-to-all exchange ("full"): each rank sends all its values to every rank, and every rank sums them in
 * rank order. The result is bit-identical to the direct all-reduce, after one delay instead of two, for n / 2
 * times the bytes. A rank must not overwrite a chunk of its own values with the sum before it has sent the
 * chunk to all ranks. Contributions use slots as in the direct algorithm. A chunk frees them once all of its
 * contributions have arrived, and chunks come in order, so the rules that prevent a deadlock of direct
 * operations (ddp__may_stage) also hold here. It is not used with a membership, because survivors could have
 * sums over different members. It is not used for bfloat16 or int8, because only the owner's rounding makes
 * the ranks equal. */
#include "comm/state.h"

/* ---- plain ---- */

static size_t ddp__plain_part(const ddp__engine *e, const ddp__op *op, int peer, int comes, size_t *from,
                              size_t *to)
{
    const int of = comes ? peer : e->rank;

    *from = *to = 0;
    if (op->p2p)
        *to = (op->m.verb >= DDP_RECEIVE) == comes && op->m.peer == peer ? op->n : 0;
    else if (ddp__team_of(e, op).place[peer] < 0)
        return 0;
    else if (op->m.verb == DDP_ALL_GATHER)
        ddp__segment(e, op, of, from, to);
    else
        *to = ddp__root(e, op) == of ? op->n : 0;
    return *to - *from;
}

static void ddp__plain_begin(ddp__engine *e, ddp__op *op)
{
    const int lost = op->m.verb == DDP_ALL_GATHER && op->m.group == 0 && e->members < e->blocks;
    const size_t block = op->n / (size_t)e->blocks;

    for (int r = 0; lost && r < e->blocks; r++) { /* the blocks of lost ranks become 0 */
        size_t at = block * (size_t)r, end = at + block, here;
        for (; e->place[r] < 0 && at < end; at += here) {
            void *data = ddp__memory_at(op, &op->to, at, end - at, &here);
            memset(data, 0, here * op->unit);
        }
    }
    ddp__flow_begin(e, op);
}

const ddp__algorithm *ddp__plain_way(void)
{
    static const ddp__algorithm way = {'p',
                                       "plain",
                                       1u << DDP__FRAME_DATA,
                                       0,
                                       0,
                                       0,
                                       NULL,
                                       ddp__plain_part,
                                       ddp__plain_begin,
                                       ddp__flow_next,
                                       ddp__flow_leaves,
                                       NULL,
                                       NULL,
                                       ddp__flow_arrived,
                                       ddp__flow_unsent,
                                       ddp__flow_over,
                                       NULL};

    return &way;
}

/* ---- direct, and all-to-all ---- */

#define DDP__FULL_BYTES ((size_t)64 << 10) /* for two ranks without emulated links */

size_t ddp__full_bytes(const ddp__engine *e)
{
    double world = (double)e->world, flight = e->links.farthest * e->links.slowest,
           window = (double)ddp__engine_window(e);

    if (e->membership) return 0;
    if (e->cfg.full_bytes > 0) return e->cfg.full_bytes;
    if (e->links.by_pair) return 0;
    if (!(e->links.slowest > 0)) return DDP__FULL_BYTES * 2 / ((size_t)e->world * (size_t)(e->world - 1));
    /* one delay is traded for n / 2 times the bytes. A sent chunk stays staged for one more delay. */
    if (e->world == 2) return 2 * flight <= window ? SIZE_MAX : (size_t)window;
    flight *= world / ((world - 1) * (world - 2));
    return (size_t)(flight < window ? flight : window);
}

static int ddp__full_fits(const ddp__engine *e, const ddp__op *op)
{
    return op->m.verb == DDP_ALL_REDUCE && op->m.group == 0 && !op->m.coding && !op->m.owner && op->n > 0 &&
           op->n * sizeof(float) <= e->full_bytes;
}

static int ddp__direct_fits(const ddp__engine *e, const ddp__op *op)
{
    (void)e;
    return ddp__sums(op);
}

static size_t ddp__direct_part(const ddp__engine *e, const ddp__op *op, int peer, int comes, size_t *from,
                               size_t *to)
{
    ddp__segment(e, op, comes ? e->rank : peer, from, to);
    return *to - *from;
}

/* Contributions first: each causes a result, which arrives two delays later. The results fill the uplink
 * after the last contribution, so a long message ends one delay after its last byte has left. */
static int ddp__direct_next(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    return ddp__flow_next(e, op, peer, f) ||
           (ddp__flow_returns(op) && ddp__flow_result(e, op, peer, op->reduced, f));
}

/* Releases the input once all contributions were written and the own segment is summed, because no code reads
 * the input after that. */
static void ddp__direct_release(ddp__engine *e, ddp__op *op)
{
    const ddp__members team = ddp__team_of(e, op);

    if (op->to.strip == op->from.strip || op->m.add || op->released) return;
    for (int i = 0; i < team.members; i++) {
        const int r = team.member[i];
        if ((r == e->rank ? op->reduced : ddp__row(e, op, r)->u.flow.sent) < ddp__segment_length(e, op, r))
            return;
        if (e->peers[r].out_op == op && e->peers[r].out.type != DDP__FRAME_RESULT) return;
    }
    pthread_mutex_lock(&e->lock);
    op->released = 1;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* 1 if the wire has taken a chunk of this rank's values for every peer. */
static int ddp__sent_to_all(ddp__engine *e, const ddp__op *op, size_t at, size_t count)
{
    for (int r = 0; r < e->world; r++) {
        const ddp__peer *p = &e->peers[r];
        if (r == e->rank) continue;
        if (ddp__row(e, op, r)->u.flow.sent < at + count) return 0;
        if (p->out_op == op && p->out.offset < at + count) return 0;
    }
    return 1;
}

int ddp__sum_chunk(ddp__engine *e, ddp__op *op, const int *rank, int ranks, size_t at, size_t count,
                   int coded, float scale)
{
    double *divergence = op->m.divergence ? &ddp__row(e, op, e->rank)->divergence : NULL;
    int own = 0;

    for (int i = 0; i < ranks; i++) {
        const int r = rank[i], s = r == e->rank ? -1 : ddp__pending(e, r, op);
        if (r == e->rank)
            own = i;
        else if (s < 0)
            return 0;
        else if (e->slot[s].f.offset != at || ddp__frame_values(&e->slot[s].f) != count)
            return ddp__out_of_order(e, r, &e->slot[s].f, at);
        else
            e->terms[i] = e->slot[s].data;
    }
    if (op->way->whole && !ddp__sent_to_all(e, op, at, count)) return 0;
    if (!ddp__guard_check(e, op, at, count)) return 0;
    if (coded && !ddp__reduce_coded(e, op, at, count, own, ranks, divergence)) return 0;
    if (!coded) ddp__memory_sum(e, op, at, count, own, ranks, scale, divergence);
    for (int i = 0; i < ranks; i++) {
        const int s = i == own ? -1 : ddp__pending(e, rank[i], op);
        if (s < 0) continue;
        ddp__row(e, op, rank[i])->u.flow.taken += count;
        ddp__chain_remove(e, &e->peers[rank[i]].pending, s);
        ddp__slot_free(e, s);
    }
    return 1;
}

/* Sums each chunk of the own segment for which all contributions have arrived. */
static void ddp__reduce_ready(ddp__engine *e, ddp__op *op, double now)
{
    const ddp__members team = ddp__team_of(e, op);
    size_t from, to;

    ddp__segment(e, op, e->rank, &from, &to);
    while (e->fault.code == DDP_OK && op->state == DDP__OP_ACTIVE && from + op->reduced < to) {
        size_t at = from + op->reduced, count = to - at < e->chunk ? to - at : e->chunk;
        if (!ddp__sum_chunk(e, op, team.member, team.members, at, count, op->m.coding != 0, op->scale))
            return;
        ddp__guard_update(e, op, at, count);
        op->reduced += count;
        ddp__op_moves(e, op, now);
        ddp__direct_release(e, op);
        if (!ddp__flow_returns(op)) ddp__op_advance(e, op, count * (size_t)(team.members - 1));
    }
}

static void ddp__direct_sent(ddp__engine *e, ddp__op *op, const ddp__frame *f, double now)
{
    if (f->type != DDP__FRAME_RESULT) ddp__direct_release(e, op);
    ddp__op_advance(e, op, ddp__frame_values(f));
    if (op->way->whole && op->state == DDP__OP_ACTIVE) ddp__reduce_ready(e, op, now);
}

static void ddp__direct_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f,
                                double now)
{
    if (f->type == DDP__FRAME_PART)
        ddp__reduce_ready(e, op, now);
    else
        ddp__flow_arrived(e, op, peer, slot, f, now);
}

const ddp__algorithm *ddp__direct_way(int whole)
{
    static const ddp__algorithm way[2] = {
        {'d', "direct", 1u << DDP__FRAME_PART | 1u << DDP__FRAME_RESULT, 0, 1, 0, ddp__direct_fits,
         ddp__direct_part, ddp__flow_begin, ddp__direct_next, ddp__flow_leaves, ddp__direct_sent, NULL,
         ddp__direct_arrived, ddp__flow_unsent, ddp__flow_over, NULL},
        {'f', "full", 1u << DDP__FRAME_PART, 1, 1, 0, ddp__full_fits, ddp__direct_part, ddp__flow_begin,
         ddp__direct_next, ddp__flow_leaves, ddp__direct_sent, NULL, ddp__direct_arrived, ddp__flow_unsent,
         ddp__flow_over, NULL}};

    return &way[whole];
}
