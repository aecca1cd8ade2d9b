#include "base/platform.h"
#include "base/fail.h"
#include "base/memory.h"
#include "plan/partial_core.h"

/* Bubble filling: in each step average further layers from the output side, where it is free.
 * exact: the longest prefix 0..m-1 (own layers in it count once) with which the step costs no
 *        more than without; empty steps too.
 * eq12:  the paper's test, T - P(a+1) >= comm of set and prefix, where a is the first sending
 *        layer of the set and the prefix ends before it; empty steps have no a and stay empty. */

/* Excess of the step's own layers and the prefix 0..m-1; list has room for L. */
static double ddp__fill_excess(const ddp__costs *c, const int *step, int h, int m, int *list)
{
    int i, n = 0;

    for (i = 0; i < c->layers; i++)
        if (step[i] == h || (i < m && c->comm[i] > 0)) list[n++] = i;
    return ddp__excess_list(c, list, n, -1, -1);
}

/* A longer prefix costs no less. (With the sum cost the first filled layer may make the step start
 * sooner and so cheaper than without; from there on the same holds.) Bisection finds the last. */
static int ddp__fill_exact(const ddp__costs *c, const int *step, int h, int *list)
{
    double own = ddp__fill_excess(c, step, h, 0, list);
    int low = 0, high = c->layers, mid;

    while (low < high) {
        mid = low + (high - low + 1) / 2;
        if (ddp__fill_excess(c, step, h, mid, list) <= own) low = mid;
        else high = mid - 1;
    }
    return low;
}

static int ddp__fill_eq12(const ddp__costs *c, const int *step, int h)
{
    double room, sum = 0;
    int a = 0, i, m;

    while (a < c->layers && !(step[a] == h && c->comm[a] > 0)) a++;
    if (a == c->layers) return 0;
    for (i = a; i < c->layers; i++)
        if (step[i] == h) sum += c->comm[i];
    room = c->T - c->P[a + 1];
    if (sum > room) room = sum;
    for (m = 0; m < a; m++) {
        sum += c->comm[m];
        if (sum > room) break;
    }
    return m;
}

ddp_status ddp__fill(const ddp__costs *c, ddp_fill rule, const int *step, ddp_plan *plan,
                     ddp_error *err)
{
    int L = c->layers, h, i, m, *list;

    if (rule == DDP_FILL_NONE) return DDP_OK;
    list = (int *)ddp__calloc((size_t)L, sizeof *list);
    if (!list) return ddp__fail(err, DDP_MEMORY, "no memory to fill %d layers", L);
    for (h = 0; h < plan->period; h++) {
        m = rule == DDP_FILL_EXACT ? ddp__fill_exact(c, step, h, list) : ddp__fill_eq12(c, step, h);
        for (i = 0; i < m; i++)
            if (step[i] != h && c->comm[i] > 0)
                plan->fill[(size_t)h * (size_t)L + (size_t)(L - 1 - i)] = 1;
    }
    DDP_FREE(list);
    return DDP_OK;
}
