/* The cost of an assignment of layers to steps, and DreamDDP's solvers: contiguous sets (memoised search,
 * dynamic programme, Algorithm 2) and scattered sets. */
#include "plan/arrays.h"
#include "plan/partial/partial_search.h"
#include "plan/times.h"

/* Interval and set costs of the partial planner in closed form (stated in plan/partial/partial.h).
 *
 * Timeline: from the last time at which it was free, the link is busy without a gap. That time is the
 * backward end P(i+1) of some layer. So the last transfer ends at the largest P(i+1) + comm of the set from
 * i on.
 *
 * Window: the forward of a layer cannot begin before its transfer ends, so the step is late by the largest
 * (transfer end - due time). Layers from i towards the input are released at P(i+1) or later and due no
 * later than layer i. So one of them is late by at least P(i+1) + their comm - due(i). Serving the input
 * side first attains the largest of these bounds, because layer i then waits for nothing else.
 *
 * In both cases the maximum is the clock of a link that serves the set in backward order, with layer i
 * ready at w(i). */

/* Seconds for which the message of row l alone occupies the link, or 0 if row l sends no bytes. */
static double ddp__occupies(const ddp_profile *p, int l)
{
    return p->comm_s[l] > 0 ? p->comm_s[l] + p->gap_s : 0;
}

ddp_status ddp__costs_open(const ddp_profile *p, ddp_cost cost, ddp__costs *c, ddp_error *err)
{
    double before = 0; /* forward time of the layers before layer i in the forward pass */
    ddp_status status;
    size_t L;
    int i, l;

    memset(c, 0, sizeof *c);
    DDP__TRY(ddp_profile_check(p, err));
    if (cost == DDP_COST_DEFAULT) cost = DDP_COST_WINDOW;
    if (cost != DDP_COST_TIMELINE && cost != DDP_COST_SUM && cost != DDP_COST_WINDOW)
        return ddp__fail(err, DDP_ARG, "cost %d is unknown; use timeline, sum or window", (int)cost);
    L = (size_t)p->layers;
    c->cost = cost;
    c->layers = p->layers;
    c->alpha = p->alpha_s;
    c->step = ddp__ints(&c->room, L);
    c->list = ddp__ints(&c->room, L);
    c->comm = ddp__doubles(&c->room, L);
    c->w = ddp__doubles(&c->room, L);
    c->k = ddp__doubles(&c->room, L);
    c->P = ddp__doubles(&c->room, L + 1);
    c->C = ddp__doubles(&c->room, L + 1);
    DDP__TRY(ddp__scratch_check(&c->room, p->layers, "layers", err));
    for (i = 0; i < c->layers; i++) {
        l = c->layers - 1 - i;
        c->comm[i] = ddp__occupies(p, l);
        c->P[i + 1] = c->P[i] + p->backward_s[l];
        c->C[i + 1] = c->C[i] + c->comm[i];
    }
    c->T = c->P[c->layers];
    for (i = c->layers - 1; i >= 0; i--) {
        l = c->layers - 1 - i;
        c->w[i] = c->P[i + 1] - before;
        c->k[i] = c->comm[i] > 0 ? c->w[i] - c->C[i] : -DBL_MAX;
        if (cost == DDP_COST_WINDOW && p->forward_s) before += p->forward_s[l];
    }
    status = ddp__check_sum(c->T + c->C[c->layers] + before + c->alpha, DBL_MAX, err);
    if (status != DDP_OK) ddp__scratch_free(&c->room);
    return status;
}

/* The excess of the interval [a, b). kmax = max of k over it (used by timeline and window only). */
static double ddp__excess_interval(const ddp__costs *c, int a, int b, double kmax)
{
    double late;
    if (c->C[b] <= c->C[a]) return 0;
    late = c->cost == DDP_COST_SUM ? c->w[a] + (c->C[b] - c->C[a]) : kmax + c->C[b];
    late += c->alpha - c->T;
    return late > 0 ? late : 0;
}

double ddp__excess_list(const ddp__costs *c, const int *list, int n, int less, int more)
{
    double late = -DBL_MAX, sum = 0;
    int i = n - 1, x, first = -1;
    while (i >= 0 || more >= 0) {
        if (i < 0 || (more >= 0 && more > list[i])) {
            x = more;
            more = -1;
        } else {
            x = list[i--];
            if (x == less) continue;
        }
        first = x;
        if (!(c->comm[x] > 0)) continue;
        sum += c->comm[x];
        if (c->w[x] + sum > late) late = c->w[x] + sum;
    }
    if (!(sum > 0)) return 0;
    if (c->cost == DDP_COST_SUM) late = c->w[first] + sum;
    late += c->alpha - c->T;
    return late > 0 ? late : 0;
}

/* A lower bound. Let v(s) be such that a step that averages a subset X of the layers s.. (and possibly
 * others) costs at least v(s) + alpha + comm(X). For timeline and window, v(s) is w(s). For sum, the step
 * may have started with an earlier layer a, whose comm then counts too. Summed over the n steps that
 * contain such layers, the excess is at least comm[s..L) - n (T - v(s) - alpha). The worst case is n = H
 * if that slack is positive, and n = 1 otherwise. A single layer s gives the same bound with its own comm. */
double ddp__excess_bound(const ddp__costs *c, int period)
{
    double best = 0, early = DBL_MAX, v, slack, rest, one;
    for (int s = 0; s < c->layers; s++) {
        v = c->w[s];
        if (c->cost == DDP_COST_SUM) {
            if (early < v) v = early;
            if (c->w[s] + c->comm[s] < early) early = c->w[s] + c->comm[s];
        }
        slack = c->T - v - c->alpha;
        rest = c->C[c->layers] - c->C[s];
        if (!(rest > 0)) break;
        rest -= slack > 0 ? slack * period : slack;
        one = c->comm[s] > 0 ? c->comm[s] - slack : 0;
        if (rest > best) best = rest;
        if (one > best) best = one;
    }
    return best;
}

/* Algorithm 2 of DreamDDP: exact and memoised, and as printed.
 *
 * Let m(l) be the largest b for which [l, b) is completely overlapped. Algorithm 2 ends a set that begins at
 * l only at m(l) or m(l)+1. With the timeline or window cost and alpha 0 this loses nothing:
 *   - Cutting before m(l) never helps: the cost of [a, b) falls with a, so the later sets lose layers at no
 *     cost to this one.
 *   - Cutting after m(l)+1 never helps: moving [m+1, x) to the next set saves this set exactly its comm. The
 *     next set grows by no more, because w does not decrease (and w <= T).
 * So the tree contains an optimum, and one table over (sets left, l) finds it in O(L H). */

/* m(l), and the excess of [l, m(l)+1) and of [l, L). */
typedef struct ddp__windows {
    int *m, *queue;
    double *next, *last;
} ddp__windows;

/* Computes them with two pointers and a queue of the maxima of k. */
static void ddp__search_windows(const ddp__costs *c, ddp__windows *x)
{
    int L = c->layers, l, b = 0, head = 0, tail = 0;
    double top = -DBL_MAX, kmax, late;
    for (l = L - 1; l >= 0; l--) {
        if (c->k[l] > top) top = c->k[l];
        x->last[l] = ddp__excess_interval(c, l, L, top);
    }
    for (l = 0; l < L; l++) {
        while (head < tail && x->queue[head] < l) head++;
        if (b < l) b = l;
        x->next[l] = 0;
        for (; b < L; b++) {
            kmax = head < tail && c->k[x->queue[head]] > c->k[b] ? c->k[x->queue[head]] : c->k[b];
            late = ddp__excess_interval(c, l, b + 1, kmax);
            if (late > 0) {
                x->next[l] = late;
                break;
            }
            while (head < tail && c->k[x->queue[tail - 1]] <= c->k[b]) tail--;
            x->queue[tail++] = b;
        }
        x->m[l] = b;
    }
}

/* Fills row r of best [L+1] and pick [L+1] from the previous row, `was`. r is the number of sets left minus
 * one. */
static void ddp__search_row(const ddp__costs *c, const ddp__windows *x, int r, const double *was, double *now,
                            int *pick)
{
    for (int l = 0; l < c->layers; l++) {
        int b = x->m[l];
        double add, stay;
        if (r == 0 || b == c->layers) {
            now[l] = x->last[l];
            pick[l] = c->layers;
            continue;
        }
        add = x->next[l] + was[b + 1];
        stay = was[b];
        pick[l] = add <= stay || b == l ? b + 1 : b;
        now[l] = pick[l] == b ? stay : add;
    }
}

/* For any interval cost that does not fall as the set grows:
 *     best(r, l) = min over b > l of excess[l, b) + best(r-1, b)
 * Empty sets go to the end, because the cost of a set does not depend on its step. */
static void ddp__programme_row(const ddp__costs *c, int r, const double *was, double *now, int *pick)
{
    for (int L = c->layers, l = L - 1; l >= 0; l--) {
        double kmax = -DBL_MAX, least = DBL_MAX, excess;
        for (int b = l + 1; b <= L; b++) {
            if (c->k[b - 1] > kmax) kmax = c->k[b - 1];
            excess = ddp__excess_interval(c, l, b, kmax);
            if (r == 0 && b < L) continue;
            if (excess > least) break;
            if (r == 0 || excess + was[b] <= least) {
                least = r == 0 ? excess : excess + was[b];
                pick[l] = b;
            }
        }
        now[l] = least;
    }
}

ddp_status ddp__contiguous(const ddp__costs *c, int period, int windows, int *cut, double *curve,
                           ddp_error *err)
{
    int L = c->layers, rows = period < L ? period : L;
    size_t row = (size_t)L + 1;
    ddp__scratch room = {NULL, 0};
    double *best[2] = {ddp__doubles(&room, row), ddp__doubles(&room, row)};
    int *choice = ddp__ints(&room, row * (size_t)rows);
    ddp__windows x = {ddp__ints(&room, row), ddp__ints(&room, row), ddp__doubles(&room, row),
                      ddp__doubles(&room, row)};

    DDP__TRY(ddp__scratch_check(&room, L, "layers", err));
    if (windows) ddp__search_windows(c, &x);
    for (int r = 0; r < rows; r++) {
        double *now = best[r % 2], *was = best[1 - r % 2];
        int *pick = choice + (size_t)r * row;
        now[L] = 0;
        pick[L] = L;
        if (windows)
            ddp__search_row(c, &x, r, was, now, pick);
        else
            ddp__programme_row(c, r, was, now, pick);
        if (curve) curve[r] = now[0];
    }
    for (int r = rows; curve && r < period; r++) curve[r] = curve[rows - 1];
    if (cut) cut[0] = 0;
    for (int h = 0; cut && h < period; h++)
        cut[h + 1] = h < rows && cut[h] < L ? choice[(size_t)(rows - 1 - h) * row + (size_t)cut[h]] : L;
    ddp__scratch_free(&room);
    return DDP_OK;
}

ddp_status ddp__optimal(const ddp__costs *c, int period, int *cut, double *curve, ddp_error *err)
{
    return ddp__contiguous(c, period, c->cost != DDP_COST_SUM && !(c->alpha > 0), cut, curve, err);
}

#define DDP__DFS_LEAVES 4000000L
#define DDP__DFS_DEPTH  10000

typedef struct ddp__dfs_state {
    const ddp__costs *c;
    int period;
    int *cut, *best_cut; /* [period+1] */
    double best;
    long leaves;
} ddp__dfs_state;

static void ddp__dfs_leaf(ddp__dfs_state *s, int h, double excess)
{
    s->leaves++;
    if (!(excess < s->best)) return;
    s->best = excess;
    memcpy(s->best_cut, s->cut, (size_t)(h + 1) * sizeof(int));
    for (int i = h + 1; i <= s->period; i++) s->best_cut[i] = s->c->layers;
}

/* Lines 8-30 of Algorithm 2 with corrections: the last set is one solution (line 15), the first branch
 * gets its own copy (line 28), and the second branch continues with h+1 (line 30). One pass of the loop is
 * one level of the recursion. */
static void ddp__dfs_set(ddp__dfs_state *s, int l, int h, double excess)
{
    const ddp__costs *c = s->c;
    int L = c->layers, b = l;
    double kmax = -DBL_MAX, own = 0, more;
    if (s->leaves > DDP__DFS_LEAVES) return;
    s->cut[h] = l;
    if (l == L) { /* line 9: no layer left */
        ddp__dfs_leaf(s, h, excess);
        return;
    }
    if (h == s->period - 1) { /* line 12: the last set takes the rest */
        for (; b < L; b++)
            if (c->k[b] > kmax) kmax = c->k[b];
        ddp__dfs_leaf(s, h, excess + ddp__excess_interval(c, l, L, kmax));
        return;
    }
    for (; b < L; b++) {
        if (c->k[b] > kmax) kmax = c->k[b];
        more = ddp__excess_interval(c, l, b + 1, kmax);
        if (b == l || !(more > 0)) { /* lines 17-22: at least one layer, and all that are overlapped */
            own = more;
            continue;
        }
        if (!(own > 0)) ddp__dfs_set(s, b + 1, h + 1, excess + more); /* lines 26-28 */
        break;                                                        /* lines 23-24 and 29-30 */
    }
    ddp__dfs_set(s, b, h + 1, excess + own);
}

ddp_status ddp__dfs(const ddp__costs *c, int period, int *cut, ddp_error *err)
{
    ddp__dfs_state s = DDP__ZEROS;
    if (period > DDP__DFS_DEPTH && c->layers > DDP__DFS_DEPTH)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "Algorithm 2 recurses once per step and %d is too deep; use solver optimal", period);
    s.c = c;
    s.period = period;
    s.best_cut = cut;
    s.best = DBL_MAX;
    s.cut = (int *)ddp__calloc((size_t)period + 1, sizeof(int));
    if (!s.cut) return ddp__fail(err, DDP_MEMORY, "no memory to plan %d steps", period);
    ddp__dfs_set(&s, 0, 0, 0);
    DDP_FREE(s.cut);
    if (s.leaves > DDP__DFS_LEAVES)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "Algorithm 2 has more than %ld solutions for %d layers and period %d; "
                         "solver optimal finds the best of them at once",
                         DDP__DFS_LEAVES, c->layers, period);
    return DDP_OK;
}

/* Non-contiguous assignment: single moves and swaps, from the contiguous assignment and then from small
 * perturbations of the best one. Contiguous sets leave the link idle while the output side of every later
 * step runs backward. Scattered sets use that time, and convergence only needs each layer once per period. A
 * count of visited members limits the search, so that the plan is the same on every machine. The clock is
 * only a safety net. */

/* The members to visit for each pair of layer and step, and the total limit. */
#define DDP__SCATTER_VISITS_EACH 2e4
#define DDP__SCATTER_VISITS      2e7

typedef struct ddp__scatter_state {
    const ddp__costs *c;
    int period;
    int *step;      /* [L] */
    int *member;    /* [L] sending layers grouped by step, ascending within a step */
    int *begin;     /* [H+1] */
    double *excess; /* [H] */
    double total, eps, visits, most_visits, deadline;
} ddp__scatter_state;

/* Layers that send no bytes are free in any step. The exception is Eq. 8 means that a set starts at its
 * first layer even if that layer sends no bytes. */
static int ddp__scatter_counts(const ddp__costs *c, int i)
{
    return c->comm[i] > 0 || c->cost == DDP_COST_SUM;
}

static double ddp__scatter_try(ddp__scatter_state *s, int h, int less, int more)
{
    int n = s->begin[h + 1] - s->begin[h];
    s->visits += n + 4;
    return ddp__excess_list(s->c, s->member + s->begin[h], n, less, more);
}

/* Rebuilds the lists and the costs from step. */
static void ddp__scatter_index(ddp__scatter_state *s)
{
    int i, h, L = s->c->layers;
    memset(s->begin, 0, ((size_t)s->period + 1) * sizeof(int));
    for (i = 0; i < L; i++)
        if (ddp__scatter_counts(s->c, i)) s->begin[s->step[i] + 1]++;
    for (h = 0; h < s->period; h++) s->begin[h + 1] += s->begin[h];
    for (i = 0; i < L; i++)
        if (ddp__scatter_counts(s->c, i)) s->member[s->begin[s->step[i]]++] = i;
    for (h = s->period; h > 0; h--) s->begin[h] = s->begin[h - 1];
    s->begin[0] = 0;
    s->total = 0;
    for (h = 0; h < s->period; h++) s->total += s->excess[h] = ddp__scatter_try(s, h, -1, -1);
    s->visits += L;
}

static int ddp__scatter_stop(const ddp__scatter_state *s)
{
    return s->visits > s->most_visits || ddp_now() > s->deadline;
}

/* Moves layer x of an exposed step to the step where it adds least, if that gains. */
static int ddp__scatter_move(ddp__scatter_state *s, int x, double gain)
{
    int g, h = s->step[x], best = h;
    double add, least = gain - s->eps;
    for (g = 0; g < s->period; g++) {
        if (g == h) continue;
        add = ddp__scatter_try(s, g, -1, x) - s->excess[g];
        if (add < least) {
            least = add;
            best = g;
        }
    }
    if (best == h) return 0;
    s->step[x] = best;
    ddp__scatter_index(s);
    return 1;
}

/* Exchanges x with the first layer of another step for which that gains. */
static int ddp__scatter_swap(ddp__scatter_state *s, int x, double gain)
{
    int h = s->step[x], y, g;
    double there, here;
    for (y = 0; y < s->c->layers; y++) {
        g = s->step[y];
        if (g == h || !ddp__scatter_counts(s->c, y)) continue;
        there = ddp__scatter_try(s, g, y, x) - s->excess[g];
        if (!(there < gain - s->eps)) continue;
        here = ddp__scatter_try(s, h, x, y) - s->excess[h];
        if (!(here + there < -s->eps)) continue;
        s->step[x] = g;
        s->step[y] = h;
        ddp__scatter_index(s);
        return 1;
    }
    return 0;
}

/* Descends to a local minimum of moves, then of moves and swaps. */
static void ddp__scatter_descend(ddp__scatter_state *s)
{
    int x, moved, swaps;
    double gain;
    ddp__scatter_index(s);
    do {
        moved = 0;
        for (swaps = 0; swaps < 2 && !moved; swaps++)
            for (x = 0; x < s->c->layers; x++) {
                if (!ddp__scatter_counts(s->c, x) || !(s->excess[s->step[x]] > s->eps)) continue;
                if (ddp__scatter_stop(s)) return;
                gain = s->excess[s->step[x]] - ddp__scatter_try(s, s->step[x], x, -1);
                if (!(gain > s->eps)) continue;
                moved |= swaps ? ddp__scatter_swap(s, x, gain) : ddp__scatter_move(s, x, gain);
            }
    } while (moved);
}

/* Iterated local search around the best assignment. The first round has no perturbation. An equal result
 * replaces the best, so that the search can cross plateaus. */
static void ddp__scatter_search(ddp__scatter_state *s, int *best, double bound)
{
    ddp_rng rng = ddp_rng_seed(1, (uint64_t)s->c->layers);
    uint64_t L = (uint64_t)s->c->layers, H = (uint64_t)s->period;
    double least;
    int disturbed = 0;

    memcpy(s->step, best, (size_t)L * sizeof(int));
    ddp__scatter_index(s);
    least = s->total;
    for (; !ddp__scatter_stop(s) && least > bound + s->eps; disturbed = (int)ddp_rng_below(&rng, 3) + 2) {
        memcpy(s->step, best, (size_t)L * sizeof(int));
        for (int n = 0; n < disturbed; n++) {
            int x = (int)ddp_rng_below(&rng, L), h = (int)ddp_rng_below(&rng, H);
            if (ddp__scatter_counts(s->c, x)) s->step[x] = h;
        }
        ddp__scatter_descend(s);
        if (s->total <= least + s->eps / 8) {
            if (s->total < least) least = s->total;
            memcpy(best, s->step, (size_t)L * sizeof(int));
        }
        s->visits += 64;
    }
}

ddp_status ddp__scatter(const ddp__costs *c, int period, double time_limit_s, int *step, ddp_error *err)
{
    ddp__scatter_state s = DDP__ZEROS;
    size_t L = (size_t)c->layers, H = (size_t)(period < c->layers ? period : c->layers);
    ddp__scratch room = {NULL, 0};

    s.excess = ddp__doubles(&room, H);
    s.step = ddp__ints(&room, L);
    s.member = ddp__ints(&room, L);
    s.begin = ddp__ints(&room, H + 1);
    DDP__TRY(ddp__scratch_check(&room, c->layers, "layers", err));
    s.c = c;
    s.period = (int)H; /* with more steps than layers, the remaining steps stay empty */
    s.most_visits = DDP__SCATTER_VISITS_EACH * (double)L * (double)H;
    if (s.most_visits > DDP__SCATTER_VISITS) s.most_visits = DDP__SCATTER_VISITS;
    s.eps = 1e-12 * (c->T + c->C[c->layers] + c->alpha);
    s.deadline = ddp_now() + (time_limit_s > 0 ? time_limit_s : 60);
    ddp__scatter_search(&s, step, ddp__excess_bound(c, period));
    ddp__scratch_free(&room);
    return DDP_OK;
}
