#include "base/core.h"
#include "plan/tour.h"
#include "plan/place_core.h"

/* ---- up to 16 nodes: Held-Karp ---- */

/* best[set * n + e] = shortest path that visits exactly `set` and ends at e; sets in ascending order, so that every
 * smaller set is done first. The path is read back from the lengths. */
double ddp__tour_exact(int n, const double *cost, int first, int last, double *best, int *order)
{
    size_t N = (size_t)n, sets = (size_t)1 << n, set, e, b, at;
    double length = INFINITY;

    for (set = 1; set < sets; set++)
        for (e = 0; e < N; e++) {
            double *to = &best[set * N + e];
            size_t rest = set & ~((size_t)1 << e);
            *to = INFINITY;
            if (!(set >> e & 1)) continue;
            if (!rest) {
                if (first < 0 || first == (int)e) *to = 0;
                continue;
            }
            for (b = 0; b < N; b++) {
                double via = best[rest * N + b] + cost[b * N + e];
                if ((rest >> b & 1) && via < *to) *to = via;
            }
        }
    set = sets - 1;
    for (e = 0, at = 0; e < N; e++)
        if ((last < 0 || last == (int)e) && best[set * N + e] < length) length = best[set * N + e], at = e;
    for (int k = n - 1; k >= 0; k--) {
        size_t rest = set & ~((size_t)1 << at), from = 0;
        order[k] = (int)at;
        for (b = 0; k > 0 && b < N; b++)
            if ((rest >> b & 1) && best[rest * N + b] + cost[b * N + at] == best[set * N + at]) {
                from = b;
                break;
            }
        set = rest;
        at = from;
    }
    return length;
}

/* ---- beyond: nearest neighbour, then 2-opt and or-opt ---- */

typedef struct ddp__tour {
    int n, lo, hi; /* positions lo..hi may change */
    const double *cost;
    int *order, *spare;
    double *along, *against; /* [n] cost of order[0..k], and of the same way back */
    int (*over)(void *);     /* nonzero ends the improvement; NULL = never */
    void *user;
} ddp__tour;

/* Cost of the edge between two positions; beyond the ends there is none. */
static double ddp__tour_edge(const ddp__tour *t, int a, int b)
{
    if (a < 0 || b < 0 || a >= t->n || b >= t->n) return 0;
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

static void ddp__tour_reverse(int *order, int i, int j)
{
    for (; i < j; i++, j--) {
        int swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

static double ddp__tour_inside(const ddp__tour *t, int i, int j, int turned)
{
    return turned ? t->against[j] - t->against[i] : t->along[j] - t->along[i];
}

/* Reverses the run i..j where that is shorter. */
static int ddp__tour_two_opt(ddp__tour *t, int i, int j, double least)
{
    double old = ddp__tour_edge(t, i - 1, i) + ddp__tour_inside(t, i, j, 0) + ddp__tour_edge(t, j, j + 1);
    double now = ddp__tour_edge(t, i - 1, j) + ddp__tour_inside(t, i, j, 1) + ddp__tour_edge(t, i, j + 1);

    if (!(old - now > least)) return 0;
    ddp__tour_reverse(t->order, i, j);
    ddp__tour_sums(t);
    return 1;
}

/* Puts the run i..j, perhaps turned, between the positions p and p+1, both outside of it. */
static int ddp__tour_or_opt(ddp__tour *t, int i, int j, int p, int turned, double least)
{
    int head = turned ? j : i, tail = turned ? i : j, k, w = 0;
    double old = ddp__tour_edge(t, i - 1, i) + ddp__tour_inside(t, i, j, 0) + ddp__tour_edge(t, j, j + 1) +
                 ddp__tour_edge(t, p, p + 1);
    double now = ddp__tour_edge(t, i - 1, j + 1) + ddp__tour_edge(t, p, head) + ddp__tour_inside(t, i, j, turned) +
                 ddp__tour_edge(t, tail, p + 1);

    if (!(old - now > least)) return 0;
    for (k = -1; k < t->n; k++) {
        int m;
        if (k >= 0 && (k < i || k > j)) t->spare[w++] = t->order[k];
        if (k != p) continue;
        for (m = 0; m <= j - i; m++) t->spare[w++] = t->order[turned ? j - m : i + m];
    }
    memcpy(t->order, t->spare, (size_t)t->n * sizeof(int));
    ddp__tour_sums(t);
    return 1;
}

/* All moves until none shortens the path by more than rounding, or the time is over. */
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

static void ddp__tour_nearest(ddp__tour *t, int start, int last)
{
    int *order = t->order, k, v, best;

    for (v = 0; v < t->n; v++) order[v] = v;
    order[0] = start;
    order[start] = 0;
    if (last >= 0) {
        for (k = 1; order[k] != last; k++) {
        }
        order[k] = order[t->n - 1];
        order[t->n - 1] = last;
    }
    for (k = 1; k < (last >= 0 ? t->n - 1 : t->n); k++) {
        for (v = best = k; v < (last >= 0 ? t->n - 1 : t->n); v++) {
            double a = ddp__tour_edge(t, k - 1, v), b = ddp__tour_edge(t, k - 1, best);
            if (a < b || (a == b && order[v] < order[best])) best = v;
        }
        v = order[k];
        order[k] = order[best];
        order[best] = v;
    }
}

int ddp__tour_local(int n, const double *cost, int first, int last, int (*over)(void *), void *user, int *order,
                    double *length)
{
    ddp__tour t;
    double *sums = (double *)ddp__calloc(2 * (size_t)n, sizeof(double)), now;
    int *room = (int *)ddp__calloc(2 * (size_t)n, sizeof(int));
    int start, starts = n <= 64 ? n : n < 1024 ? 4096 / n : 4;

    if (sums && room) {
        t.n = n;
        t.cost = cost;
        t.over = over;
        t.user = user;
        t.along = sums;
        t.against = sums + n;
        t.order = room;
        t.spare = room + n;
        t.lo = first >= 0 ? 1 : 0;
        t.hi = last >= 0 ? n - 2 : n - 1;
        *length = INFINITY;
        for (start = 0; start < (first >= 0 ? 1 : starts); start++) {
            if (first < 0 && start == last) continue;
            if (*length < INFINITY && over && over(user)) break;
            ddp__tour_nearest(&t, first >= 0 ? first : start, last);
            now = ddp__tour_improve(&t);
            if (!(now < *length)) continue;
            *length = now;
            memcpy(order, t.order, (size_t)n * sizeof(int));
        }
    }
    start = sums && room;
    DDP_FREE(sums);
    DDP_FREE(room);
    return start;
}

ddp_status ddp_tour_open(int n, const double *cost, int first, int last, int *order, double *length, ddp_error *err)
{
    double *best, found = 0, most = 0;
    int *path, u, v, ok;

    if (n < 1 || !cost || !order || !length)
        return ddp__fail(err, DDP_ARG, "a tour of %d nodes or a NULL array; it has at least 1 node", n);
    if (first < -1 || first >= n || last < -1 || last >= n)
        return ddp__fail(err, DDP_ARG, "the tour is to go from node %d to node %d; nodes are 0 to %d, -1 = free", first,
                         last, n - 1);
    if (n > 1 && first >= 0 && first == last)
        return ddp__fail(err, DDP_ARG, "the tour is to begin and end at node %d; an open tour of %d nodes has two ends",
                         first, n);
    for (u = 0; u < n; u++)
        for (v = 0; v < n; v++) {
            double c = cost[(size_t)u * (size_t)n + (size_t)v];
            if (u != v && !(c >= 0 && c <= DBL_MAX))
                return ddp__fail(err, DDP_ARG,
                                 "the cost from node %d to node %d is %g; it must be finite and at least 0", u, v, c);
            if (u != v && c > most) most = c;
        }
    if (!(most * n <= DBL_MAX / 4))
        return ddp__fail(err, DDP_NUMERIC,
                         "a tour of %d nodes with costs up to %g may be longer than a double holds; use a larger unit",
                         n, most);
    path = (int *)ddp__calloc((size_t)n, sizeof(int));
    best = (double *)ddp__calloc(n > DDP_TOUR_EXACT ? 1 : (size_t)n << n, sizeof(double));
    ok = path && best;
    if (ok && n > DDP_TOUR_EXACT) ok = ddp__tour_local(n, cost, first, last, NULL, NULL, path, &found);
    else if (ok) found = ddp__tour_exact(n, cost, first, last, best, path);
    if (ok) {
        memcpy(order, path, (size_t)n * sizeof(int));
        *length = found;
    }
    DDP_FREE(path);
    DDP_FREE(best);
    return ok ? DDP_OK : ddp__fail(err, DDP_MEMORY, "no memory for a tour of %d nodes", n);
}
