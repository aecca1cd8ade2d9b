#include "base/platform.h"
#include "base/fail.h"
#include "base/memory.h"
#include "plan/partial_core.h"

/* Interval and set costs of the partial planner in closed form (stated in plan/partial.h).
 *
 * Timeline: the link is busy without a gap from the last moment at which it was free, which is
 * some layer's backward end P(i+1), so the last transfer ends at the largest P(i+1) + comm of
 * the set from i on. Window: a layer's forward cannot begin before its transfer, so the step is
 * late by the largest (transfer end - due time). Layers from i towards the input are released at
 * P(i+1) or later and due no later than layer i, so some of them is late by at least
 * P(i+1) + their comm - due(i); serving the input side first attains the largest of these,
 * because layer i then waits for nothing else. */

ddp_status ddp__costs_open(const ddp_profile *p, ddp_cost cost, ddp__costs *c, ddp_error *err)
{
    double before = 0; /* forward time of the layers ahead of layer i in the forward pass */
    double *store;
    size_t L;
    int i, l;

    memset(c, 0, sizeof *c);
    DDP__TRY(ddp_profile_check(p, err));
    if (cost == DDP_COST_DEFAULT) cost = DDP_COST_WINDOW;
    if (cost != DDP_COST_TIMELINE && cost != DDP_COST_SUM && cost != DDP_COST_WINDOW)
        return ddp__fail(err, DDP_ARG, "cost %d is unknown; use timeline, sum or window",
                         (int)cost);
    L = (size_t)p->layers;
    store = (double *)ddp__calloc(5 * L + 2, sizeof *store);
    if (!store) return ddp__fail(err, DDP_MEMORY, "no memory to plan %d layers", p->layers);
    c->cost = cost;
    c->layers = p->layers;
    c->alpha = p->alpha_s;
    c->comm = store;
    c->w = store + L;
    c->k = store + 2 * L;
    c->P = store + 3 * L;
    c->C = store + 4 * L + 1;
    for (i = 0; i < c->layers; i++) {
        l = c->layers - 1 - i;
        c->comm[i] = p->comm_s[l];
        c->P[i + 1] = c->P[i] + p->backward_s[l];
        c->C[i + 1] = c->C[i] + c->comm[i];
    }
    c->T = c->P[c->layers];
    for (i = c->layers - 1; i >= 0; i--) {
        l = c->layers - 1 - i;
        c->w[i] = c->P[i + 1] - before;
        c->k[i] = c->comm[i] > 0 ? c->w[i] - c->C[i] : -INFINITY;
        if (cost == DDP_COST_WINDOW && p->forward_s) before += p->forward_s[l];
    }
    if (!(c->T + c->C[c->layers] + before + c->alpha <= DBL_MAX)) {
        ddp__costs_close(c);
        return ddp__fail(err, DDP_NUMERIC,
                         "the times of the profile add up to more than a double holds; "
                         "times are in seconds");
    }
    return DDP_OK;
}

void ddp__costs_close(ddp__costs *c)
{
    if (c->comm) DDP_FREE(c->comm);
    memset(c, 0, sizeof *c);
}

double ddp__excess_interval(const ddp__costs *c, int a, int b, double kmax)
{
    double late;

    if (a >= b || c->C[b] <= c->C[a]) return 0;
    late = c->cost == DDP_COST_SUM ? c->w[a] + (c->C[b] - c->C[a]) : kmax + c->C[b];
    late += c->alpha - c->T;
    return late > 0 ? late : 0;
}

double ddp__excess_list(const ddp__costs *c, const int *list, int n, int less, int more)
{
    double late = -INFINITY, sum = 0, bound;
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
        bound = c->w[x] + sum;
        if (bound > late) late = bound;
    }
    if (!(sum > 0)) return 0;
    if (c->cost == DDP_COST_SUM) late = c->w[first] + sum;
    late += c->alpha - c->T;
    return late > 0 ? late : 0;
}

/* Let v(s) be such that a step which averages a subset X of the layers s.. (maybe with others)
 * costs at least v(s) + alpha + comm(X): w(s) for timeline and window; for sum the step may have
 * started with an earlier layer a, whose comm then counts too. Summed over the n steps that hold
 * such layers the excess is at least comm[s..L) - n (T - v(s) - alpha), with n = H the worst case
 * if that slack is positive and n = 1 if not; a single layer s gives the same with its own comm. */
double ddp__excess_bound(const ddp__costs *c, int period)
{
    double best = 0, early = INFINITY, v, slack, rest, one;
    int s;

    for (s = 0; s < c->layers; s++) {
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
