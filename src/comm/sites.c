/* The hierarchical all-reduce as one operation, also for worlds that may lose a worker during it. Live ranks,
 * sites, and the place of each rank in its site are determined when it begins, and again when it restarts.
 *
 * Values are divided into one slice per place in a site. If the sites of the live ranks differ in size there
 * is a single slice, which belongs to the lowest rank of each site. Each rank sends every slice to the rank
 * of its site that has that place, which adds them in rank order. The ranks of one place divide the slice
 * into one part per site and exchange these sums as a direct all-reduce does. Final values are then sent to
 * their sites. Two ranks of a site exchange a slice, and two ranks of one place in different sites a part of
 * it. All other pairs exchange no values. A rank's contribution to a value always arrives before its result
 * is returned, and sums inside a site never wait for messages between sites, so slots suffice, as in
 * direct.c.
 *
 * With a coding, the sums of sites and their results are coded, in blocks from the start of the slice. Values
 * that stay inside a site are floats. A residual is added to the sum of the own slice before rounding, and
 * then receives the rounding error. The part of the residual outside the slice dates from a different slice,
 * so it is added to the own values of this rank, inside the site. If only one site is left, nothing is
 * rounded and no residual is stored. */
#include "comm/state.h"

void ddp__engine_sites(ddp__engine *e, const int *site)
{
    pthread_mutex_lock(&e->lock);
    memcpy(e->site, site, (size_t)e->world * sizeof *site);
    e->knows_sites = 1;
    pthread_mutex_unlock(&e->lock);
}

/* Determines for each live rank its place in its site, and its index among the ranks of that place in all
 * sites. */
static void ddp__sites_count(ddp__engine *e, ddp__op *op)
{
    int sites = 0, most = 0, least = e->world;

    for (int i = 0; i < e->members; i++) {
        const int r = e->member[i];
        int size = 0;
        e->site_place[r] = e->site_part[r] = 0;
        for (int k = 0; k < e->members; k++) {
            const int other = e->member[k];
            size += e->site[other] == e->site[r];
            e->site_place[r] += e->site[other] == e->site[r] && other < r;
        }
        for (int k = 0; k < i; k++) e->site_part[r] += e->site_place[e->member[k]] == e->site_place[r];
        sites += e->site_place[r] == 0;
        if (size > most) most = size;
        if (size < least) least = size;
        if (r == e->rank) op->u.sites.members = size;
    }
    op->u.sites.sites = sites;
    op->u.sites.slices = most == least ? most : 1;
}

static int ddp__sites_inside(const ddp__engine *e, int peer) { return e->site[peer] == e->site[e->rank]; }

/* The slice of a place, empty if no rank of that place sends between sites. ddp__sites_part: the part of it
 * that rank `of` completes. */
static void ddp__sites_slice(const ddp__op *op, int place, size_t *from, size_t *to)
{
    *from = *to = 0;
    if (place >= op->u.sites.slices) return;
    *from = ddp__part_start(op->n, (size_t)op->u.sites.slices, (size_t)place);
    *to = ddp__part_start(op->n, (size_t)op->u.sites.slices, (size_t)place + 1);
    if (op->m.coding < DDP_AS_INT4) return;
    *from -= *from % 2; /* no byte is split */
    if (*to < op->n) *to -= *to % 2;
}

static void ddp__sites_part(const ddp__engine *e, const ddp__op *op, int of, size_t *from, size_t *to)
{
    const size_t sites = (size_t)op->u.sites.sites, part = (size_t)e->site_part[of];
    size_t first, last;

    ddp__sites_slice(op, e->site_place[of], &first, &last);
    *from = first + ddp__part_start(last - first, sites, part);
    *to = first + ddp__part_start(last - first, sites, part + 1);
    if (!ddp__in_blocks((int)op->m.coding)) return;
    *from -= (*from - first) % DDP__CODING_BLOCK; /* no block is split */
    if (*to < last) *to -= (*to - first) % DDP__CODING_BLOCK;
}

/* The range that this rank sums with values of a peer, to which it returns the result. comes = 0: the range
 * that the peer sums. */
static size_t ddp__sites_range(const ddp__engine *e, const ddp__op *op, int peer, int comes, size_t *from,
                               size_t *to)
{
    const int of = comes ? e->rank : peer;

    *from = *to = 0;
    if (e->place[peer] < 0) return 0;
    if (ddp__sites_inside(e, peer))
        ddp__sites_slice(op, e->site_place[of], from, to);
    else if (e->site_place[peer] == e->site_place[e->rank])
        ddp__sites_part(e, op, of, from, to);
    return *to - *from;
}

static int ddp__sites_fits(const ddp__engine *e, const ddp__op *op)
{
    return op->m.levels && e->knows_sites && op->m.verb == DDP_ALL_REDUCE && op->m.group == 0;
}

/* Prepares the sum of the own site, from an offset on, to be sent between sites. Returns 0 after a
 * failure. */
static int ddp__sites_crosses(ddp__engine *e, ddp__op *op, size_t at, size_t count)
{
    if (!op->m.residual) return 1;
    if (op->u.sites.sites > 1) return ddp__code_input(e, op, at, count);
    ddp__residual_add(op, at, count);
    return 1;
}

static void ddp__sites_begin(ddp__engine *e, ddp__op *op)
{
    size_t from, to;

    ddp__sites_count(e, op);
    op->u.sites.summed = 0;
    ddp__sites_slice(op, e->site_place[e->rank], &from, &to);
    if (op->m.residual) {
        ddp__residual_add(op, 0, from);
        ddp__residual_add(op, to, op->n - to);
    }
    if (op->u.sites.members == 1) { /* its own values are the site's sum */
        if (!ddp__sites_crosses(e, op, from, to - from)) return;
        op->u.sites.summed = to - from;
    }
    ddp__flow_begin(e, op);
}

/* The number of final values of the own slice, from `at` on. */
static size_t ddp__sites_final(ddp__engine *e, const ddp__op *op, size_t at)
{
    const int place = e->site_place[e->rank];
    size_t from = 0, to = 0;

    for (int i = 0; i < e->members; i++) {
        const int r = e->member[i];
        if (e->site_place[r] != place) continue;
        ddp__sites_part(e, op, r, &from, &to);
        if (at < from || at >= to) continue;
        from += r == e->rank ? op->reduced : ddp__row(e, op, r)->u.flow.finished;
        return from > at ? from - at : 0;
    }
    return 0;
}

static int ddp__sites_agrees(const ddp__engine *e, const ddp__op *op, int peer, const ddp__frame *f)
{
    const int coding = ddp__sites_inside(e, peer) ? (int)DDP_AS_FLOAT : (int)op->m.coding;

    return (f->type == DDP__FRAME_PART || f->type == DDP__FRAME_RESULT) && f->coding == coding;
}

static int ddp__sites_next(ddp__engine *e, ddp__op *op, int peer, ddp__frame *f)
{
    const ddp__exchange *x = ddp__row(e, op, peer);
    const int inside = ddp__sites_inside(e, peer);
    size_t first, last, from, to, ready = op->reduced;

    ddp__sites_slice(op, e->site_place[e->rank], &first, &last);
    if (inside) ready = x->u.flow.results + ddp__sites_final(e, op, first + x->u.flow.results);
    if (!ddp__flow_result(e, op, peer, ready, f)) {
        (void)ddp__sites_range(e, op, peer, 0, &from, &to);
        from += x->u.flow.sent;
        if (to - from > e->chunk) to = from + e->chunk;
        if (!inside && first + op->u.sites.summed < to) return 0; /* the site's sum is not complete */
        if (!ddp__flow_next(e, op, peer, f)) return 0;
    }
    if (inside) {
        f->length = (uint32_t)(ddp__frame_values(f) * sizeof(float));
        f->coding = (int)DDP_AS_FLOAT;
    }
    return 1;
}

/* Adds a chunk with those of all peers inside the site, or between sites. Returns 0 if one is missing. */
static int ddp__sites_sum(ddp__engine *e, ddp__op *op, int inside, size_t at, size_t count)
{
    const int coded = !inside && op->m.coding && op->u.sites.sites > 1;
    int ranks = 0;

    for (int i = 0; i < e->members; i++) {
        const int r = e->member[i], near = ddp__sites_inside(e, r);
        if (r == e->rank || (inside ? near : !near && e->site_place[r] == e->site_place[e->rank]))
            e->site_side[ranks++] = r;
    }
    return ddp__sum_chunk(e, op, e->site_side, ranks, at, count, coded, inside ? 1 : op->scale);
}

/* Adds every chunk for which all contributions have arrived: of the slice inside the site, then of the part
 * between sites. */
static void ddp__sites_ready(ddp__engine *e, ddp__op *op, double now)
{
    const int place = e->site_place[e->rank];
    size_t first, last, from, to, at, count;

    ddp__sites_slice(op, place, &first, &last);
    ddp__sites_part(e, op, e->rank, &from, &to);
    while (first + op->u.sites.summed < last) {
        at = first + op->u.sites.summed;
        count = last - at < e->chunk ? last - at : e->chunk;
        if (!ddp__sites_sum(e, op, 1, at, count) || !ddp__sites_crosses(e, op, at, count)) break;
        op->u.sites.summed += count;
        ddp__op_moves(e, op, now);
    }
    while (from + op->reduced < to) {
        at = from + op->reduced;
        count = to - at < e->chunk ? to - at : e->chunk;
        if (first + op->u.sites.summed < at + count || !ddp__sites_sum(e, op, 0, at, count)) break;
        op->reduced += count;
        ddp__op_moves(e, op, now);
    }
}

static void ddp__sites_arrived(ddp__engine *e, ddp__op *op, int peer, int slot, const ddp__frame *f,
                               double now)
{
    if (f->type == DDP__FRAME_PART)
        ddp__sites_ready(e, op, now);
    else
        ddp__flow_arrived(e, op, peer, slot, f, now);
}

const ddp__algorithm *ddp__sites_way(void)
{
    static const ddp__algorithm way = {'l',
                                       "levels",
                                       1u << DDP__FRAME_PART | 1u << DDP__FRAME_RESULT,
                                       0,
                                       1,
                                       0,
                                       ddp__sites_fits,
                                       ddp__sites_range,
                                       ddp__sites_begin,
                                       ddp__sites_next,
                                       ddp__flow_leaves,
                                       NULL,
                                       ddp__sites_agrees,
                                       ddp__sites_arrived,
                                       ddp__flow_unsent,
                                       ddp__flow_over,
                                       NULL};

    return &way;
}
