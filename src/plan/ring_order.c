#include "base/core.h"
#include "plan/ring_order.h"

typedef struct ddp__hops {
    int           n;
    const double *rate, *delay_s;
    double       *cost; /* [n x n] above DDP_RING_EXACT: grows steeply as the rate falls */
} ddp__hops;

static size_t ddp__ring_at(const ddp__hops *g, int from, int to) { return (size_t)from * (size_t)g->n + (size_t)to; }

static double ddp__ring_least(const ddp__hops *g, const int *order)
{
    double least = INFINITY;

    for (int k = 0; k < g->n; k++) {
        const double r = g->rate[ddp__ring_at(g, order[k], order[(k + 1) % g->n])];
        if (r < least) least = r;
    }
    return g->n > 1 ? least : 0;
}

/* ---- up to 12 workers ---- */

/* best[set * n + e]: of the paths from worker 0 through exactly `set` to e, the fastest slowest hop (floor_rate < 0),
 * or the least sum of delays over hops of at least floor_rate, negated, so that larger is better in both. */
static double ddp__ring_hop(const ddp__hops *g, int from, int to, double floor_rate)
{
    const size_t at = ddp__ring_at(g, from, to);

    if (floor_rate < 0) return g->rate[at];
    if (g->rate[at] < floor_rate) return -INFINITY;
    return g->delay_s ? -g->delay_s[at] : 0;
}

static double ddp__ring_join(double path, double hop, double floor_rate)
{
    return floor_rate < 0 ? (path < hop ? path : hop) : path + hop;
}

static double ddp__ring_exact(const ddp__hops *g, double floor_rate, double *best, int *order)
{
    const int n = g->n, full = (1 << n) - 1;
    double value = -INFINITY;
    int end = 0, set = full;

    for (int s = 1; s <= full; s += 2) /* worker 0 is in all of them */
        for (int e = 0; e < n; e++) {
            double *to = &best[s * n + e];
            *to = -INFINITY;
            if (s == 1 && e == 0) *to = floor_rate < 0 ? INFINITY : 0;
            if (e == 0 || !(s >> e & 1)) continue;
            for (int b = 0; b < n; b++) {
                double via;
                if (b == e || !(s >> b & 1)) continue;
                via = ddp__ring_join(best[(s & ~(1 << e)) * n + b], ddp__ring_hop(g, b, e, floor_rate), floor_rate);
                if (via > *to) *to = via;
            }
        }
    for (int e = 1; e < n; e++) {
        double closed = ddp__ring_join(best[full * n + e], ddp__ring_hop(g, e, 0, floor_rate), floor_rate);
        if (closed > value) value = closed, end = e;
    }
    for (int k = n - 1; k >= 0; k--) { /* read back from the values */
        const int rest = set & ~(1 << end);
        int from = 0;
        order[k] = end;
        for (int b = 0; b < n && k > 0; b++)
            if ((rest >> b & 1) && ddp__ring_join(best[rest * n + b], ddp__ring_hop(g, b, end, floor_rate),
                                                  floor_rate) == best[set * n + end]) {
                from = b;
                break;
            }
        set = rest;
        end = from;
    }
    return value;
}

/* ---- beyond ---- */

static double ddp__ring_cost(const ddp__hops *g, const int *order)
{
    double sum = 0;

    for (int k = 0; k < g->n; k++) sum += g->cost[ddp__ring_at(g, order[k], order[(k + 1) % g->n])];
    return sum;
}

/* A steep power: the slowest hop outweighs all others, yet what a move gains elsewhere counts. */
static void ddp__ring_costs(ddp__hops *g)
{
    double most = 0, late = 0;

    for (int i = 0; i < g->n * g->n; i++) {
        if (i % (g->n + 1) == 0) continue;
        if (g->rate[i] > most) most = g->rate[i];
        if (g->delay_s && g->delay_s[i] > late) late = g->delay_s[i];
    }
    for (int i = 0; i < g->n * g->n; i++) {
        const double slow = i % (g->n + 1) ? most / g->rate[i] : 0;
        g->cost[i] = slow > 0 ? pow(slow, 12) : 0;
        if (late > 0 && i % (g->n + 1)) g->cost[i] += 1e-3 * g->delay_s[i] / late;
    }
}

static void ddp__ring_reverse(int *order, int i, int j)
{
    for (; i < j; i++, j--) {
        const int t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

/* Moves the workers at i..j behind the one at k, outside of them. */
static void ddp__ring_shift(int *order, int i, int j, int k)
{
    if (k > j) {
        ddp__ring_reverse(order, i, j);
        ddp__ring_reverse(order, j + 1, k);
        ddp__ring_reverse(order, i, k);
    } else {
        ddp__ring_reverse(order, k + 1, i - 1);
        ddp__ring_reverse(order, i, j);
        ddp__ring_reverse(order, k + 1, j);
    }
}

/* One move that shortens the tour, kept in order; 0 if there is none. Position 0 stays. */
static int ddp__ring_improve(const ddp__hops *g, int *order, int *trial, double *cost)
{
    const size_t bytes = (size_t)g->n * sizeof *order;

    for (int i = 1; i < g->n; i++)
        for (int j = i; j < g->n; j++)
            for (int k = -1; k < (j - i < 3 ? g->n : 0); k++) {
                double c;
                if (k >= i && k <= j) continue;
                memcpy(trial, order, bytes);
                if (k < 0) ddp__ring_reverse(trial, i, j);
                else ddp__ring_shift(trial, i, j, k);
                c = ddp__ring_cost(g, trial);
                if (!(c < *cost * (1 - 1e-12))) continue;
                memcpy(order, trial, bytes);
                *cost = c;
                return 1;
            }
    return 0;
}

static void ddp__ring_nearest(const ddp__hops *g, int start, int *order, char *seen)
{
    memset(seen, 0, (size_t)g->n);
    order[0] = start;
    seen[start] = 1;
    for (int k = 1; k < g->n; k++) {
        int next = -1;
        for (int v = 0; v < g->n; v++)
            if (!seen[v] &&
                (next < 0 || g->cost[ddp__ring_at(g, order[k - 1], v)] < g->cost[ddp__ring_at(g, order[k - 1], next)]))
                next = v;
        order[k] = next;
        seen[next] = 1;
    }
}

/* A move costs O(n) to judge and there are O(n^2) of them: few starts where n is large. */
static void ddp__ring_search(const ddp__hops *g, int *order, int *trial, int *own, char *seen)
{
    const int starts = g->n <= 24 ? g->n : g->n <= 64 ? 4 : 1;
    const long moves = g->n <= 64 ? 1000 : g->n <= 256 ? 100 : 0;
    double best = -1;

    for (int s = 0; s < starts; s++) {
        double cost;
        int zero = 0;
        long left = moves;
        ddp__ring_nearest(g, s * (g->n / starts), own, seen);
        while (own[zero]) zero++;
        for (int k = 0; k < g->n; k++) trial[k] = own[(zero + k) % g->n];
        memcpy(own, trial, (size_t)g->n * sizeof *own);
        cost = ddp__ring_cost(g, own);
        while (left-- > 0 && ddp__ring_improve(g, own, trial, &cost)) {
        }
        if (best >= 0 && cost >= best) continue;
        best = cost;
        memcpy(order, own, (size_t)g->n * sizeof *own);
    }
}

/* ---- */

static ddp_status ddp__ring_check(int n, const double *rate, const double *delay_s, ddp_error *err)
{
    if (n < 1 || n > 4096) return ddp__fail(err, DDP_ARG, "ddp_plan_ring: a ring of %d workers; 1 to 4096 can be", n);
    for (int i = 0; i < n * n; i++) {
        if (i % (n + 1) == 0) continue;
        if (!(rate[i] > 0) || !(rate[i] < INFINITY))
            return ddp__fail(err, DDP_ARG, "ddp_plan_ring: rate %g from worker %d to %d is not a number > 0", rate[i],
                             i / n, i % n);
        if (delay_s && (!(delay_s[i] >= 0) || !(delay_s[i] < INFINITY)))
            return ddp__fail(err, DDP_ARG, "ddp_plan_ring: delay %g s from worker %d to %d is not a number >= 0",
                             delay_s[i], i / n, i % n);
    }
    return DDP_OK;
}

ddp_status ddp_plan_ring(int n, const double *rate, const double *delay_s, int *order, double *least, ddp_error *err)
{
    const int exact = n <= DDP_RING_EXACT;
    ddp__hops g;
    double *work;
    int *lists;
    size_t count;

    DDP__TRY(ddp__ring_check(n, rate, delay_s, err));
    count = (size_t)n;
    g.n = n;
    g.rate = rate;
    g.delay_s = delay_s;
    if (n == 1) {
        order[0] = 0;
        *least = 0;
        return DDP_OK;
    }
    work = (double *)ddp__calloc((exact ? (size_t)1 << n : count) * count, sizeof *work);
    lists = (int *)ddp__calloc(4 * count, sizeof *lists);
    if (!work || !lists) {
        if (work) DDP_FREE(work);
        if (lists) DDP_FREE(lists);
        return ddp__fail(err, DDP_MEMORY, "out of memory ordering a ring of %d workers", n);
    }
    g.cost = work;
    if (exact) {
        (void)ddp__ring_exact(&g, ddp__ring_exact(&g, -1, work, lists), work, order);
    } else {
        ddp__ring_costs(&g);
        ddp__ring_search(&g, order, lists, lists + n, (char *)(lists + 2 * n));
    }
    *least = ddp__ring_least(&g, order);
    DDP_FREE(work);
    DDP_FREE(lists);
    return DDP_OK;
}
