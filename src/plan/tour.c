/* Orders nodes: a shortest open path through all nodes, and the ring whose slowest hop is as fast as
 * possible. */
#include "plan/arrays.h"
#include "plan/order.h"
#include "plan/tour_internal.h"

/* ---- few nodes: Held-Karp ---- */

static double ddp__tour_join(double path, double hop, int slowest)
{
    return !slowest ? path + hop : path > hop ? path : hop;
}

/* best[set * n + e] = the least cost of a path that visits exactly `set` and ends at e. Sets are visited
 * in ascending order, so that every smaller set is complete. The path is then traced back through these
 * minima. */
double ddp__held_karp(int n, const double *cost, int first, int last, int slowest, double *best, int *order)
{
    size_t N = (size_t)n, sets = (size_t)1 << n, set, rest, e, b, at = 0, from;
    double least = DBL_MAX, least_here, via;

    for (set = 1; set < sets; set++)
        for (e = 0; e < N; e++) {
            double *to = &best[set * N + e];
            *to = DBL_MAX;
            if (!(set >> e & 1)) continue;
            rest = set & ~((size_t)1 << e);
            if (!rest && (first < 0 || first == (int)e)) *to = slowest ? -DBL_MAX : 0;
            for (b = 0; rest && b < N; b++) {
                if (!(rest >> b & 1)) continue;
                via = ddp__tour_join(best[rest * N + b], cost[b * N + e], slowest);
                if (via < *to) *to = via;
            }
        }
    set = sets - 1;
    for (e = 0; e < N; e++) {
        via = best[set * N + e];
        if (n > 1 && first >= 0 && first == last)
            via = ddp__tour_join(via, cost[e * N + (size_t)first], slowest);
        else if (last >= 0 && last != (int)e)
            continue;
        if (via < least) {
            least = via;
            at = e;
        }
    }
    for (int k = n - 1; k >= 0; k--, set = rest, at = from) {
        rest = set & ~((size_t)1 << at);
        order[k] = (int)at;
        for (b = from = 0, least_here = DBL_MAX; k > 0 && b < N; b++) {
            if (!(rest >> b & 1)) continue;
            via = ddp__tour_join(best[rest * N + b], cost[b * N + at], slowest);
            if (via < least_here) {
                least_here = via;
                from = b;
            }
        }
    }
    return least;
}

/* ---- many nodes: nearest neighbour, then 2-opt and or-opt ---- */

/* Builds a path from `start` to the nearest remaining node each time (ties: the lowest). `last`, if given,
 * comes last. */
static void ddp__tour_nearest(int n, const double *cost, int start, int last, int *order)
{
    const int end = last >= 0 ? n - 1 : n;
    ddp__shuffle(order, n, NULL);
    ddp__swap(order, 0, start);
    for (int k = 1; last >= 0 && k < end; k++)
        if (order[k] == last) ddp__swap(order, k, end);
    for (int k = 1, best; k < end; k++) {
        const double *row = cost + (size_t)order[k - 1] * (size_t)n;
        best = k;
        for (int v = k + 1; v < end; v++)
            if (row[order[v]] < row[order[best]] ||
                (row[order[v]] <= row[order[best]] && order[v] < order[best]))
                best = v;
        ddp__swap(order, k, best);
    }
}

/* Moves the range i..j, reversed if `turned`, between the positions p and p+1, both outside of it. */
static void ddp__tour_move(int *order, int i, int j, int p, int turned)
{
    const int from = p < i ? p + 1 : i, to = p < i ? j : p;
    if (!turned) ddp__reverse(order, i, j);
    if (p < i)
        ddp__reverse(order, from, i - 1);
    else
        ddp__reverse(order, j + 1, to);
    ddp__reverse(order, from, to);
}

typedef struct ddp__tour {
    int n, lo, hi; /* positions lo..hi may change */
    const double *cost;
    int *order;
    double *along, *against; /* [n] cost of order[0..k], and of the same path in reverse */
    int (*over)(void *);     /* nonzero ends the improvement, or NULL for never */
    void *user;
} ddp__tour;

/* Cost of the edge from one position to another, or 0 before the first and after the last position. */
static double ddp__tour_edge(const ddp__tour *t, int a, int b)
{
    if (a < 0 || b >= t->n) return 0;
    return t->cost[(size_t)t->order[a] * (size_t)t->n + (size_t)t->order[b]];
}

static void ddp__tour_sums(ddp__tour *t)
{
    t->along[0] = t->against[0] = 0;
    for (int k = 1; k < t->n; k++) {
        t->along[k] = t->along[k - 1] + ddp__tour_edge(t, k - 1, k);
        t->against[k] = t->against[k - 1] + ddp__tour_edge(t, k, k - 1);
    }
}

static double ddp__tour_inside(const ddp__tour *t, int i, int j, int turned)
{
    return turned ? t->against[j] - t->against[i] : t->along[j] - t->along[i];
}

/* Reverses the range i..j if that makes the path shorter. */
static int ddp__tour_two_opt(ddp__tour *t, int i, int j, double least)
{
    double old = ddp__tour_edge(t, i - 1, i) + ddp__tour_inside(t, i, j, 0) + ddp__tour_edge(t, j, j + 1);
    double now = ddp__tour_edge(t, i - 1, j) + ddp__tour_inside(t, i, j, 1) + ddp__tour_edge(t, i, j + 1);
    if (!(old - now > least)) return 0;
    ddp__reverse(t->order, i, j);
    ddp__tour_sums(t);
    return 1;
}

/* Moves the range i..j if that makes the path shorter. */
static int ddp__tour_or_opt(ddp__tour *t, int i, int j, int p, int turned, double least)
{
    int head = turned ? j : i, tail = turned ? i : j;
    double old = ddp__tour_edge(t, i - 1, i) + ddp__tour_inside(t, i, j, 0) + ddp__tour_edge(t, j, j + 1) +
                 ddp__tour_edge(t, p, p + 1);
    double now = ddp__tour_edge(t, i - 1, j + 1) + ddp__tour_edge(t, p, head) +
                 ddp__tour_inside(t, i, j, turned) + ddp__tour_edge(t, tail, p + 1);

    if (!(old - now > least)) return 0;
    ddp__tour_move(t->order, i, j, p, turned);
    ddp__tour_sums(t);
    return 1;
}

/* Applies all moves until none shortens the path by more than a rounding error, or the time is over. */
static double ddp__tour_improve(ddp__tour *t)
{
    int i, j, p, turned, better = 1;
    double least;
    ddp__tour_sums(t);
    least = 1e-12 * (t->along[t->n - 1] + t->against[t->n - 1]);
    while (better) {
        better = 0;
        for (i = t->lo; i <= t->hi; i++) {
            if (t->over && t->over(t->user)) return t->along[t->n - 1];
            for (j = i + 1; j <= t->hi; j++) better |= ddp__tour_two_opt(t, i, j, least);
            for (j = i; j <= t->hi && j < i + 3; j++)
                for (p = t->lo - 1; p <= t->hi; p++)
                    for (turned = 0; turned < 2 && (p < i - 1 || p > j); turned++)
                        better |= ddp__tour_or_opt(t, i, j, p, turned, least);
        }
    }
    return t->along[t->n - 1];
}

int ddp__tour_local(int n, const double *cost, int first, int last, int (*over)(void *), void *user,
                    int *order, double *length)
{
    const int starts = first >= 0 ? 1 : n <= 64 ? n : n < 1024 ? 4096 / n : 4;
    ddp__scratch room = {NULL, 0};
    ddp__tour t;
    double now;

    t.n = n;
    t.cost = cost;
    t.over = over;
    t.user = user;
    t.along = ddp__doubles(&room, (size_t)n);
    t.against = ddp__doubles(&room, (size_t)n);
    t.order = ddp__ints(&room, (size_t)n);
    t.lo = first >= 0 ? 1 : 0;
    t.hi = last >= 0 ? n - 2 : n - 1;
    *length = DBL_MAX;
    for (int start = 0; start < starts && !ddp__scratch_failed(&room); start++) {
        if (first < 0 && start == last) continue;
        if (*length < DBL_MAX && over && over(user)) break;
        ddp__tour_nearest(n, cost, first >= 0 ? first : start, last, t.order);
        now = ddp__tour_improve(&t);
        if (!(now < *length)) continue;
        *length = now;
        memcpy(order, t.order, (size_t)n * sizeof(int));
    }
    ddp__scratch_free(&room);
    return !ddp__scratch_failed(&room);
}

ddp_status ddp_tour_open(int n, const double *cost, int first, int last, int *order, double *length,
                         ddp_error *err)
{
    double *best = NULL, found = 0, most = 0;
    ddp__scratch room = {NULL, 0};

    if (n < 1 || !cost || !order || !length)
        return ddp__fail(err, DDP_ARG, "a tour of %d nodes or a NULL array; it has at least 1 node", n);
    if (first < -1 || first >= n || last < -1 || last >= n)
        return ddp__fail(err, DDP_ARG,
                         "the tour must go from node %d to node %d; nodes are 0 to %d, -1 = free", first,
                         last, n - 1);
    if (n > 1 && first >= 0 && first == last)
        return ddp__fail(err, DDP_ARG,
                         "the tour must begin and end at node %d; an open tour of %d nodes has two ends",
                         first, n);
    for (int u = 0; u < n; u++)
        for (int v = 0; v < n; v++) {
            double c = cost[(size_t)u * (size_t)n + (size_t)v];
            if (u != v)
                DDP__TRY(ddp__check_finite(c, 0, err, "the cost from node %d to node %d is %g", u, v, c));
            if (u != v && c > most) most = c;
        }
    if (!ddp__finite(most * n) || most * n > DBL_MAX / 4)
        return ddp__fail(err, DDP_NUMERIC,
                         "a tour of %d nodes with costs up to %g may be longer than a double holds; "
                         "use a larger unit",
                         n, most);
    if (n <= DDP_TOUR_EXACT)
        best = ddp__doubles(&room, (size_t)n << n);
    else if (!ddp__tour_local(n, cost, first, last, NULL, NULL, order, &found))
        ddp__scratch_fail(&room);
    DDP__TRY(ddp__scratch_check(&room, n, "nodes", err));
    *length = best ? ddp__held_karp(n, cost, first, last, 0, best, order) : found;
    ddp__scratch_free(&room);
    return DDP_OK;
}

/* ---- rings ---- */

static double ddp__ring_cost(int n, const double *cost, const int *order)
{
    double sum = 0;
    for (int k = 0; k < n; k++) sum += cost[(size_t)order[k] * (size_t)n + (size_t)order[(k + 1) % n]];
    return sum;
}

/* The cost of a hop in a large ring: a steep power of its slowness. The slowest hop outweighs all others,
 * but a gain at another hop still counts. */
static void ddp__ring_costs(int n, const double *rate, const double *delay_s, double *cost)
{
    double most = 0, late = 0;
    for (int i = 0; i < n * n; i++) {
        if (i % (n + 1) == 0) continue;
        if (rate[i] > most) most = rate[i];
        if (delay_s && delay_s[i] > late) late = delay_s[i];
    }
    for (int i = 0; i < n * n; i++) {
        const double slow = i % (n + 1) ? most / rate[i] : 0;
        cost[i] = slow > 0 ? pow(slow, 12) : 0;
        if (late > 0 && i % (n + 1)) cost[i] += 1e-3 * delay_s[i] / late;
    }
}

/* Applies one move that shortens the ring `order`. Returns 0 if there is none. Position 0 stays. */
static int ddp__ring_improve(int n, const double *weight, int *order, int *trial, double *cost)
{
    const size_t bytes = (size_t)n * sizeof *order;
    for (int i = 1; i < n; i++)
        for (int j = i; j < n; j++)
            for (int k = -1; k < (j - i < 3 ? n : 0); k++) {
                double c;
                if (k >= i && k <= j) continue;
                memcpy(trial, order, bytes);
                ddp__tour_move(trial, i, j, k < 0 ? i - 1 : k, k < 0);
                c = ddp__ring_cost(n, weight, trial);
                if (!(c < *cost * (1 - 1e-12))) continue;
                memcpy(order, trial, bytes);
                *cost = c;
                return 1;
            }
    return 0;
}

/* A move costs O(n) to evaluate and there are O(n^2) moves, so a large n gets few starts. room [2 n]. */
static void ddp__ring_search(int n, const double *weight, int *order, int *room)
{
    const int starts = n <= 24 ? n : n <= 64 ? 4 : 1;
    const long moves = n <= 64 ? 1000 : n <= 256 ? 100 : 0;
    int *trial = room, *own = room + n;
    double best = -1, cost;

    for (int s = 0; s < starts; s++) {
        int zero = 0;
        long left = moves;
        ddp__tour_nearest(n, weight, s * (n / starts), -1, trial);
        while (trial[zero]) zero++;
        for (int k = 0; k < n; k++) own[k] = trial[(zero + k) % n];
        cost = ddp__ring_cost(n, weight, own);
        while (left-- > 0 && ddp__ring_improve(n, weight, own, trial, &cost)) {
        }
        if (best >= 0 && cost >= best) continue;
        best = cost;
        memcpy(order, own, (size_t)n * sizeof *own);
    }
}

static ddp_status ddp__ring_check(int n, const double *rate, const double *delay_s, ddp_error *err)
{
    if (n < 1 || n > 4096)
        return ddp__fail(err, DDP_ARG, "ddp_plan_ring: a ring of %d workers; it must have 1 to 4096", n);
    for (int i = 0; i < n * n; i++) {
        if (i % (n + 1) == 0) continue;
        if (!(rate[i] > 0) || !ddp__finite(rate[i]))
            return ddp__fail(err, DDP_ARG, "ddp_plan_ring: rate %g from worker %d to %d is not a number > 0",
                             rate[i], i / n, i % n);
        if (delay_s && !ddp__within(delay_s[i], 0, DBL_MAX))
            return ddp__fail(err, DDP_ARG,
                             "ddp_plan_ring: delay %g s from worker %d to %d is not a number >= 0",
                             delay_s[i], i / n, i % n);
    }
    return DDP_OK;
}

ddp_status ddp_plan_ring(int n, const double *rate, const double *delay_s, int *order, double *least,
                         ddp_error *err)
{
    ddp__scratch room = {NULL, 0};
    double *cost, *best, slowest;
    size_t N = (size_t)n;
    int *lists;

    DDP__TRY(ddp__ring_check(n, rate, delay_s, err));
    *least = 0;
    if (n == 1) {
        order[0] = 0;
        return DDP_OK;
    }
    cost = ddp__doubles(&room, N * N);
    best = ddp__doubles(&room, n <= DDP_RING_EXACT ? N << n : 1);
    lists = ddp__ints(&room, 2 * N);
    DDP__TRY(ddp__scratch_check(&room, n, "workers", err));
    if (n <= DDP_RING_EXACT) { /* first the fastest slowest hop, then the least delays over hops no slower
                                  than that */
        for (size_t i = 0; i < N * N; i++) cost[i] = -rate[i];
        slowest = -ddp__held_karp(n, cost, 0, 0, 1, best, order);
        for (size_t i = 0; i < N * N; i++) cost[i] = rate[i] < slowest ? DBL_MAX : delay_s ? delay_s[i] : 0;
        (void)ddp__held_karp(n, cost, 0, 0, 0, best, order);
    } else {
        ddp__ring_costs(n, rate, delay_s, cost);
        ddp__ring_search(n, cost, order, lists);
    }
    *least = DBL_MAX;
    for (int k = 0; k < n; k++)
        *least = fmin(*least, rate[(size_t)order[k] * N + (size_t)order[(k + 1) % n]]);
    ddp__scratch_free(&room);
    return DDP_OK;
}
