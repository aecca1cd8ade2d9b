#include "base/platform.h"
#include "base/fail.h"
#include "base/memory.h"
#include "plan/partial_core.h"

/* O(L^2 H) dynamic programme over contiguous sets, for any interval cost that does not fall as
 * the set grows: best(r, l) = min over b > l of excess[l, b) + best(r-1, b). Empty sets
 * are left to the end: the cost of a set does not depend on its step. */
ddp_status ddp__programme(const ddp__costs *c, int period, int *cut, double *curve, ddp_error *err)
{
    int L = c->layers, rows = period < L ? period : L, r, l, b;
    size_t row = (size_t)L + 1;
    double *best = (double *)ddp__calloc(2 * row, sizeof *best);
    int *choice = (int *)ddp__calloc(row * (size_t)rows, sizeof *choice);
    double *now = best, *was = best + row, *swap;

    if (!best || !choice) {
        DDP_FREE(best);
        DDP_FREE(choice);
        return ddp__fail(err, DDP_MEMORY, "no memory to plan %d layers over %d steps", L, period);
    }
    for (r = 0; r < rows; r++) {
        int *pick = choice + (size_t)r * row;
        now[L] = 0;
        pick[L] = L;
        for (l = L - 1; l >= 0; l--) {
            double kmax = -INFINITY, least = INFINITY, excess;
            for (b = l + 1; b <= L; b++) {
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
