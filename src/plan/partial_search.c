#include "base/platform.h"
#include "base/fail.h"
#include "base/memory.h"
#include "plan/partial_core.h"

/* Algorithm 2 of DreamDDP: exact and memoised, and as printed.
 *
 * Let m(l) be the largest b for which [l, b) is hidden. Algorithm 2 ends a set that begins at l
 * only at m(l) or m(l)+1. With the timeline or window cost and alpha 0 that loses nothing:
 *  - cutting before m(l) never helps: the cost of [a, b) falls with a, so the later sets lose
 *    layers at no cost to this one;
 *  - cutting after m(l)+1 never helps: handing [m+1, x) to the next set saves this set exactly its
 *    comm, and the next set grows by no more, because w does not decrease (and w <= T).
 * So the tree contains an optimum, and one table over (sets left, l) finds it in O(L H). */

void ddp__cut_from_choice(const int *choice, int layers, int rows, int period, int *cut)
{
    int h, l = 0;

    cut[0] = 0;
    for (h = 0; h < period; h++) {
        l = h < rows && l < layers
                ? choice[(size_t)(rows - 1 - h) * (size_t)(layers + 1) + (size_t)l]
                : layers;
        cut[h + 1] = l;
    }
}

/* m[l], the excess of [l, m(l)+1) and of [l, L), by two pointers and a queue of the maxima of k. */
static void ddp__search_windows(const ddp__costs *c, int *m, double *next, double *last, int *queue)
{
    int L = c->layers, l, b = 0, head = 0, tail = 0;
    double top = -INFINITY, kmax, late;

    for (l = L - 1; l >= 0; l--) {
        if (c->k[l] > top) top = c->k[l];
        last[l] = ddp__excess_interval(c, l, L, top);
    }
    for (l = 0; l < L; l++) {
        while (head < tail && queue[head] < l) head++;
        if (b < l) b = l;
        next[l] = 0;
        for (; b < L; b++) {
            kmax = head < tail && c->k[queue[head]] > c->k[b] ? c->k[queue[head]] : c->k[b];
            late = ddp__excess_interval(c, l, b + 1, kmax);
            if (late > 0) {
                next[l] = late;
                break;
            }
            while (head < tail && c->k[queue[tail - 1]] <= c->k[b]) tail--;
            queue[tail++] = b;
        }
        m[l] = b;
    }
}

ddp_status ddp__search(const ddp__costs *c, int period, int *cut, double *curve, ddp_error *err)
{
    int L = c->layers, rows = period < L ? period : L, r, l, b;
    size_t row = (size_t)L + 1;
    double *best = (double *)ddp__calloc(4 * row, sizeof *best); /* of r and r-1 sets, next, last */
    int *choice = (int *)ddp__calloc(row * ((size_t)rows + 2), sizeof *choice);
    double *now = best, *was = best + row, *swap, *next, *last, stay, add;
    int *m, *queue;

    if (!best || !choice) {
        DDP_FREE(best);
        DDP_FREE(choice);
        return ddp__fail(err, DDP_MEMORY, "no memory to plan %d layers over %d steps", L, period);
    }
    next = best + 2 * row;
    last = best + 3 * row;
    m = choice + (size_t)rows * row;
    queue = m + row;
    ddp__search_windows(c, m, next, last, queue);
    for (r = 0; r < rows; r++) {
        int *pick = choice + (size_t)r * row;
        now[L] = 0;
        pick[L] = L;
        for (l = 0; l < L; l++) {
            b = m[l];
            if (r == 0 || b == L) {
                now[l] = last[l];
                pick[l] = L;
                continue;
            }
            add = next[l] + was[b + 1];
            stay = was[b];
            pick[l] = add <= stay || b == l ? b + 1 : b;
            now[l] = pick[l] == b ? stay : add;
        }
        if (curve) curve[r] = now[0];
        swap = now;
        now = was;
        was = swap;
    }
    for (r = rows; curve && r < period; r++) curve[r] = curve[rows - 1];
    if (cut) ddp__cut_from_choice(choice, L, rows, period, cut);
    DDP_FREE(best);
    DDP_FREE(choice);
    return DDP_OK;
}

ddp_status ddp__optimal(const ddp__costs *c, int period, int *cut, double *curve, ddp_error *err)
{
    if (c->cost != DDP_COST_SUM && !(c->alpha > 0)) return ddp__search(c, period, cut, curve, err);
    return ddp__programme(c, period, cut, curve, err);
}

#define DDP__DFS_LEAVES 4000000L
#define DDP__DFS_DEPTH  10000

typedef struct ddp__dfs_state {
    const ddp__costs *c;
    int    period;
    int   *cut, *best_cut; /* [period+1] */
    double best;
    long   leaves;
} ddp__dfs_state;

static void ddp__dfs_leaf(ddp__dfs_state *s, int h, double excess)
{
    int i;

    s->leaves++;
    if (!(excess < s->best)) return;
    s->best = excess;
    memcpy(s->best_cut, s->cut, (size_t)(h + 1) * sizeof(int));
    for (i = h + 1; i <= s->period; i++) s->best_cut[i] = s->c->layers;
}

/* Lines 8-30 with the corrections: the last set is one solution (15), the first branch gets its
 * own copy (28), the second goes on to h+1 (30). A layer of the recursion is a turn of the loop. */
static void ddp__dfs_set(ddp__dfs_state *s, int l, int h, double excess)
{
    const ddp__costs *c = s->c;
    int L = c->layers, b = l;
    double kmax = -INFINITY, own = 0, more;

    if (s->leaves > DDP__DFS_LEAVES) return;
    s->cut[h] = l;
    if (l == L) { /* line 9: nothing left */
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
        if (b == l || !(more > 0)) { /* lines 17-22: at least one, and whatever is hidden */
            own = more;
            continue;
        }
        if (!(own > 0)) ddp__dfs_set(s, b + 1, h + 1, excess + more); /* lines 26-28 */
        break;                                                       /* lines 23-24 and 29-30 */
    }
    ddp__dfs_set(s, b, h + 1, excess + own);
}

ddp_status ddp__dfs(const ddp__costs *c, int period, int *cut, ddp_error *err)
{
    ddp__dfs_state s;

    if (period > DDP__DFS_DEPTH && c->layers > DDP__DFS_DEPTH)
        return ddp__fail(
            err, DDP_UNSUPPORTED,
            "Algorithm 2 recurses once per step and %d is too deep; use solver optimal", period);
    memset(&s, 0, sizeof s);
    s.c = c;
    s.period = period;
    s.best_cut = cut;
    s.best = INFINITY;
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
