/* Proven placements: tries every partition if there are few, otherwise branch and bound over the
 * composition of stages. */
#include "plan/place/place_solvers.h"
#include "plan/tour.h"

/* Stages are composed in path order. Devices with equal rows (towards all other devices) form a class. Only
 * the number of devices of each class in a stage matters. A node of the search fixes the first k stages. Its
 * lower bound is the sum of:
 *   - the larger of the largest DP so far and the least DP that any remaining device can have
 *   - the hops so far
 *   - the least hop from the last stage to the remaining devices
 *   - the least hop of any device, for each of the remaining hops
 * Partial stages are bounded too: a load only grows when devices are added. */

/* ---- every partition ---- */

typedef struct ddp__place_all {
    ddp__place *p;
    int *at;    /* [N] members so far, stage by stage: at[j * D ..] */
    int *count; /* [S] */
} ddp__place_all;

/* Adds device v to each stage with room in turn, of the empty stages only to the first. */
static int ddp__place_all_from(ddp__place_all *a, int v)
{
    ddp__place *p = a->p;
    if (v == p->N) {
        if (!ddp__place_next(p)) return 0;
        ddp__place_offer(p, p->line, ddp__place_evaluate(p, a->at, DBL_MAX));
        return 1;
    }
    for (int j = 0; j < p->S; j++) {
        if (a->count[j] == p->D) continue;
        a->at[(size_t)j * (size_t)p->D + (size_t)a->count[j]++] = v;
        if (!ddp__place_all_from(a, v + 1)) return 0;
        if (--a->count[j] == 0) break;
    }
    return 1;
}

int ddp__place_enumerate(ddp__place *p)
{
    ddp__place_all a;
    double count = 1;
    /* N! / (D!^S S!) as a product over the devices after the first of each stage */
    for (int k = 0; k < p->N && count <= 20000; k++)
        if (k % p->D) count = count * (p->N - k) / (p->D - k % p->D);
    if (count > 20000 || p->S > DDP_TOUR_EXACT) return 0;
    a.p = p;
    a.at = ddp__ints(&p->room, (size_t)p->N);
    a.count = ddp__ints(&p->room, (size_t)p->S);
    if (ddp__scratch_failed(&p->room)) return 1;
    if (p->S == 1) {
        for (int k = 0; k < p->N; k++) a.at[k] = k;
        p->candidates++;
        ddp__place_offer(p, p->line, ddp__place_evaluate(p, a.at, DBL_MAX));
        p->proven = 1;
    } else {
        p->proven = ddp__place_all_from(&a, 0) && !p->stop;
    }
    return 1;
}

/* ---- branch and bound ---- */

typedef struct ddp__place_tree {
    ddp__place *p;
    int classes;
    int *member;     /* [N] devices sorted by class */
    int *first;      /* [classes + 1] where each class begins in member */
    double *dp, *pp; /* [classes x classes] between two devices of these classes */
    double *near;    /* [classes] least hop of a device */
    double *least;   /* [classes] least DP of a device */
    int *left;       /* [classes] devices not yet in a stage */
    int *mix;        /* [S x classes] composition of the stages so far */
    int *mate;       /* [D] */
    int *a, *b;      /* [D] classes of the members of two stages */
    int *at;         /* [N] */
    double *load;    /* [S x classes] load of one device of the class, from the members so far */
    double low;      /* the least hop of all */
    long looks;
} ddp__place_tree;

static int ddp__place_same(const ddp__place *p, int i, int k)
{
    size_t N = (size_t)p->N, a = (size_t)i, b = (size_t)k, m;
    for (m = 0; m < N; m++)
        if (m != a && m != b &&
            (p->dp[a * N + m] != p->dp[b * N + m] || p->pp[a * N + m] != p->pp[b * N + m]))
            return 0;
    return 1;
}

/* The pair term between devices of classes c and d, or 0 for a class of one device with itself. */
static double ddp__place_between(const ddp__place_tree *t, const double *w, int c, int d)
{
    if (c == d && t->first[c + 1] - t->first[c] < 2) return 0;
    return w[t->member[t->first[c]] * t->p->N + t->member[t->first[d] + (c == d)]];
}

static void ddp__place_classes(ddp__place_tree *t)
{
    ddp__place *p = t->p;
    int *of = t->at, v, c, n = 0;
    for (v = 0; v < p->N; v++) {
        for (c = 0; c < t->classes && !ddp__place_same(p, t->mix[c], v); c++) {
        }
        if (c == t->classes) t->mix[t->classes++] = v; /* the first device of each class */
        of[v] = c;
    }
    for (c = 0; c < t->classes; c++) {
        t->first[c] = n;
        for (v = 0; v < p->N; v++)
            if (of[v] == c) t->member[n++] = v;
    }
    t->first[c] = n;
}

/* Computes the pair terms between classes, and the least hop and DP of each class. */
static void ddp__place_tables(ddp__place_tree *t)
{
    int C = t->classes, c, d, k;

    t->low = DBL_MAX;
    for (c = 0; c < C; c++) {
        t->near[c] = DBL_MAX;
        for (d = 0; d < C; d++) {
            size_t at = (size_t)c * (size_t)C + (size_t)d;
            t->dp[at] = ddp__place_between(t, t->p->dp, c, d);
            t->pp[at] = ddp__place_between(t, t->p->pp, c, d);
            if ((c != d || t->first[c + 1] - t->first[c] > 1) && t->pp[at] < t->near[c])
                t->near[c] = t->pp[at];
        }
        if (t->near[c] < t->low) t->low = t->near[c];
    }
    for (c = 0; c < C; c++) { /* the D - 1 nearest companions, by repeated selection */
        memset(t->left, 0, (size_t)C * sizeof(int));
        for (int need = t->p->D - 1, best, room; need > 0; need -= room) {
            best = -1;
            for (d = 0; d < C; d++)
                if (!t->left[d] && t->first[d + 1] - t->first[d] > (c == d) &&
                    (best < 0 || t->dp[c * C + d] < t->dp[c * C + best]))
                    best = d;
            if (best < 0) break;
            t->left[best] = 1;
            room = t->first[best + 1] - t->first[best] - (c == best);
            if (room > need) room = need;
            for (k = 0; k < room; k++) t->least[c] += t->dp[c * C + best];
        }
    }
    for (c = 0; c < C; c++) t->left[c] = t->first[c + 1] - t->first[c];
}

/* The exact hop between two compositions. */
static double ddp__place_tree_hop(ddp__place_tree *t, const int *x, const int *y)
{
    int D = t->p->D, C = t->classes, c, k, n = 0, m = 0;
    for (c = 0; c < C; c++) {
        for (k = 0; k < x[c]; k++) t->a[n++] = c;
        for (k = 0; k < y[c]; k++) t->b[m++] = c;
    }
    for (n = 0; n < D; n++)
        for (m = 0; m < D; m++) t->p->weight[n * D + m] = t->pp[t->a[n] * C + t->b[m]];
    return ddp__matching_solve(&t->p->matching, t->p->weight, t->mate);
}

/* The least hop from composition x to the remaining devices, or 0 if none remain. */
static double ddp__place_tree_reach(const ddp__place_tree *t, const int *x)
{
    int C = t->classes, c, d;
    double most = 0, least;
    for (c = 0; c < C; c++) {
        if (!x[c]) continue;
        least = DBL_MAX;
        for (d = 0; d < C; d++)
            if (t->left[d] && t->pp[c * C + d] < least) least = t->pp[c * C + d];
        if (least < DBL_MAX && least > most) most = least;
    }
    return most;
}

static int ddp__place_tree_worse(const ddp__place_tree *t, double bound)
{
    return bound >= t->p->cost * (1 - 1e-9);
}

static int ddp__place_tree_node(ddp__place_tree *t, int k, double top, double hops);

/* Continues with a complete stage k. Returns 0 to stop the search. */
static int ddp__place_tree_stage(ddp__place_tree *t, int k, double top, double hops)
{
    ddp__place *p = t->p;
    int C = t->classes, c;
    const int *x = t->mix + (size_t)k * (size_t)C;
    const double *load = t->load + (size_t)k * (size_t)C;

    if (!ddp__place_next(p)) return 0;
    for (c = 0; c < C; c++) {
        double now = load[c] - t->dp[c * C + c];
        if (x[c] && now > top) top = now;
    }
    if (k) hops += ddp__place_tree_hop(t, x - C, x);
    if (k + 1 < p->S) {
        double reach = ddp__place_tree_reach(t, x);
        if (ddp__place_tree_worse(t, top + hops + reach + (p->S - k - 2) * t->low)) return 1;
    } else if (ddp__place_tree_worse(t, top + hops)) {
        return 1;
    }
    return ddp__place_tree_node(t, k + 1, top, hops);
}

/* Chooses how many devices of class c and later classes stage k gets, `need` in total. */
static int ddp__place_tree_fill(ddp__place_tree *t, int k, int c, int need, double top, double hops)
{
    int C = t->classes, *x = t->mix + (size_t)k * (size_t)C, d, m, most;
    double *load = t->load + (size_t)k * (size_t)C, rest;
    if (need == 0) return ddp__place_tree_stage(t, k, top, hops);
    if (++t->looks % 1024 == 0 && (ddp__place_clock(t->p), t->p->stop)) return 0;
    for (d = c, m = 0; d < C; d++) m += t->left[d];
    if (m < need) return 1;
    most = t->left[c] < need ? t->left[c] : need;
    for (m = most; m >= 0; m--) {
        double worst = top;
        int go = 1;
        x[c] = m;
        t->left[c] -= m;
        for (d = 0; d < C; d++) load[d] += m * t->dp[d * C + c];
        for (d = 0; d <= c; d++)
            if (x[d] && load[d] - t->dp[d * C + d] > worst) worst = load[d] - t->dp[d * C + d];
        rest = (t->p->S - 1 - k + (k > 0)) * t->low;
        if (!ddp__place_tree_worse(t, worst + hops + rest))
            go = ddp__place_tree_fill(t, k, c + 1, need - m, top, hops);
        for (d = 0; d < C; d++) load[d] -= m * t->dp[d * C + c];
        t->left[c] += m;
        x[c] = 0;
        if (!go) return 0;
    }
    return 1;
}

/* All stages are composed: takes the devices of each class in order and evaluates exactly. Returns 0 to
 * stop the search. */
static int ddp__place_tree_leaf(ddp__place_tree *t)
{
    ddp__place *p = t->p;
    int C = t->classes, j, c, m, n = 0;
    memset(t->left, 0, (size_t)C * sizeof(int));
    for (j = 0; j < p->S; j++)
        for (c = 0; c < C; c++)
            for (m = 0; m < t->mix[j * C + c]; m++) t->at[n++] = t->member[t->first[c] + t->left[c]++];
    memset(t->left, 0, (size_t)C * sizeof(int));
    ddp__place_offer(p, p->line, ddp__place_evaluate(p, t->at, DBL_MAX));
    return !p->stop;
}

static int ddp__place_tree_node(ddp__place_tree *t, int k, double top, double hops)
{
    int C = t->classes, c;
    if (k == t->p->S) return ddp__place_tree_leaf(t);
    for (c = 0; c < C; c++)
        if (t->left[c] && t->least[c] > top) top = t->least[c];
    if (ddp__place_tree_worse(t, top + hops + (t->p->S - 1 - k + (k > 0)) * t->low)) return 1;
    memset(t->load + (size_t)k * (size_t)C, 0, (size_t)C * sizeof(double));
    return ddp__place_tree_fill(t, k, 0, t->p->D, top, hops);
}

static int ddp__place_tree_open(ddp__place_tree *t, ddp__place *p)
{
    size_t N = (size_t)p->N, D = (size_t)p->D, S = (size_t)p->S, C;
    memset(t, 0, sizeof *t);
    t->p = p;
    t->member = ddp__ints(&p->room, N);
    t->at = ddp__ints(&p->room, N);
    t->left = ddp__ints(&p->room, N);
    t->first = ddp__ints(&p->room, N + 1);
    t->mate = ddp__ints(&p->room, D);
    t->a = ddp__ints(&p->room, D);
    t->b = ddp__ints(&p->room, D);
    t->mix = ddp__ints(&p->room, N);
    if (ddp__scratch_failed(&p->room)) return 0;
    ddp__place_classes(t);
    C = (size_t)t->classes;
    t->mix = ddp__ints(&p->room, S * C);
    t->dp = ddp__doubles(&p->room, C * C);
    t->pp = ddp__doubles(&p->room, C * C);
    t->near = ddp__doubles(&p->room, C);
    t->least = ddp__doubles(&p->room, C);
    t->load = ddp__doubles(&p->room, S * C);
    if (ddp__scratch_failed(&p->room)) return 0;
    ddp__place_tables(t);
    return 1;
}

void ddp__place_exact(ddp__place *p)
{
    ddp__place_tree t;
    long limit = p->limit;
    double limit_s = p->limit_s;
    /* first find a good placement: 400,000 moves, at most a quarter of the limits */
    p->limit = limit < 1600000 ? (limit + 3) / 4 : 400000;
    p->limit_s = limit_s / 4;
    ddp__place_anneal(p);
    p->limit = limit;
    p->limit_s = limit_s;
    if (ddp__scratch_failed(&p->room) || p->stop == 2) return;
    p->stop = 0;
    if (ddp__place_tree_open(&t, p)) p->proven = ddp__place_tree_node(&t, 0, 0, 0) && p->S <= DDP_TOUR_EXACT;
}
