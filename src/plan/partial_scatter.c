#include "base/platform.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/memory.h"
#include "base/rng.h"
#include "plan/partial_core.h"

/* Non-contiguous assignment: longest transfer first from several starts, then single moves and
 * swaps, then the same from small disturbances of the best. Contiguous sets leave the link idle
 * while the output side of every later step runs backward; scattering uses that time, and
 * convergence needs only each layer once per period. Bounded by a count of looked-at members, so
 * that the plan is the same on every machine; the clock is only a safety net. */

/* Members looked at, for each pair of layer and step, and at most. */
#define DDP__SCATTER_VISITS_EACH 2e4
#define DDP__SCATTER_VISITS      2e7

typedef struct ddp__scatter_state {
    const ddp__costs *c;
    int     period;
    int    *step;    /* [L] */
    int    *member;  /* [L] layers grouped by step, ascending in a step; sending layers only */
    int    *begin;   /* [H+1] */
    double *excess;  /* [H] */
    double *load;    /* [H] sum of comm */
    double  total, eps, visits, most_visits, deadline;
} ddp__scatter_state;

/* Layers that send nothing cost nothing anywhere, except that Eq. 8 starts a set at its first
 * layer whether it sends or not. */
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

/* Rebuilds lists and costs from step; layers of step -1 are not placed yet. */
static void ddp__scatter_index(ddp__scatter_state *s)
{
    int i, h, L = s->c->layers;

    memset(s->begin, 0, ((size_t)s->period + 1) * sizeof(int));
    for (h = 0; h < s->period; h++) s->load[h] = 0;
    for (i = 0; i < L; i++)
        if (s->step[i] >= 0 && ddp__scatter_counts(s->c, i)) {
            s->begin[s->step[i] + 1]++;
            s->load[s->step[i]] += s->c->comm[i];
        }
    for (h = 0; h < s->period; h++) s->begin[h + 1] += s->begin[h];
    for (i = 0; i < L; i++)
        if (s->step[i] >= 0 && ddp__scatter_counts(s->c, i)) s->member[s->begin[s->step[i]]++] = i;
    for (h = s->period; h > 0; h--) s->begin[h] = s->begin[h - 1];
    s->begin[0] = 0;
    s->total = 0;
    for (h = 0; h < s->period; h++) s->total += s->excess[h] = ddp__scatter_try(s, h, -1, -1);
    s->visits += L;
}

/* Places the layers in the given order where they add least; equal: on the emptiest step
 * (sign 1) or on the fullest (sign -1), then the earliest. */
static void ddp__scatter_greedy(ddp__scatter_state *s, const int *order, int sign)
{
    int n, i, h, L = s->c->layers, best;
    double add, least;

    for (i = 0; i < L; i++) s->step[i] = ddp__scatter_counts(s->c, i) ? -1 : 0;
    ddp__scatter_index(s);
    for (n = 0; n < L; n++) {
        i = order[n];
        if (!ddp__scatter_counts(s->c, i)) continue;
        best = 0;
        least = INFINITY;
        for (h = 0; h < s->period; h++) {
            add = ddp__scatter_try(s, h, -1, i) - s->excess[h];
            if (add < least - s->eps ||
                (add <= least + s->eps && sign * (s->load[h] - s->load[best]) < 0)) {
                least = add;
                best = h;
            }
        }
        s->step[i] = best;
        ddp__scatter_index(s);
    }
}

static int ddp__scatter_stop(const ddp__scatter_state *s)
{
    return s->visits > s->most_visits || ddp_now() > s->deadline;
}

/* Moves layer x of an exposed step to where it adds least, if that gains. */
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

/* Exchanges x with the first layer of another step that gains. */
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

/* Down to a local minimum of moves, then of moves and swaps. */
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

typedef struct ddp__scatter_key {
    double comm;
    int    layer;
} ddp__scatter_key;

static int ddp__scatter_longer(const void *a, const void *b)
{
    const ddp__scatter_key *x = (const ddp__scatter_key *)a, *y = (const ddp__scatter_key *)b;

    if (x->comm != y->comm) return x->comm > y->comm ? -1 : 1;
    return y->layer - x->layer;
}

static void ddp__scatter_keep(ddp__scatter_state *s, int *best, double *least)
{
    if (s->total < *least) {
        *least = s->total;
        memcpy(best, s->step, (size_t)s->c->layers * sizeof(int));
    }
}

/* Iterated local search around the best; an equal result replaces it, to cross plateaus. */
static void ddp__scatter_disturb(ddp__scatter_state *s, int *best, double *least, double bound)
{
    ddp_rng rng = ddp_rng_seed(1, (uint64_t)s->c->layers);
    uint64_t L = (uint64_t)s->c->layers, H = (uint64_t)s->period;
    int n;

    while (!ddp__scatter_stop(s) && *least > bound + s->eps) {
        memcpy(s->step, best, (size_t)L * sizeof(int));
        for (n = (int)ddp_rng_below(&rng, 3) + 1; n >= 0; n--) {
            int x = (int)ddp_rng_below(&rng, L), h = (int)ddp_rng_below(&rng, H);
            if (ddp__scatter_counts(s->c, x)) s->step[x] = h;
        }
        ddp__scatter_descend(s);
        if (s->total <= *least + s->eps / 8) {
            if (s->total < *least) *least = s->total;
            memcpy(best, s->step, (size_t)L * sizeof(int));
        }
        s->visits += 64;
    }
}

ddp_status ddp__scatter(const ddp__costs *c, int period, double time_limit_s, int *step,
                        ddp_error *err)
{
    ddp__scatter_state s;
    ddp__scatter_key *key;
    size_t L = (size_t)c->layers, H = (size_t)(period < c->layers ? period : c->layers);
    double *real = (double *)ddp__calloc(2 * H, sizeof *real);
    double least, bound = ddp__excess_bound(c, period);
    int *order = (int *)ddp__calloc(3 * L + H + 1, sizeof *order), i, n;

    key = (ddp__scatter_key *)ddp__calloc(L, sizeof *key);
    if (!real || !order || !key) {
        DDP_FREE(real);
        DDP_FREE(order);
        DDP_FREE(key);
        return ddp__fail(err, DDP_MEMORY, "no memory to plan %d layers over %d steps", c->layers,
                         period);
    }
    memset(&s, 0, sizeof s);
    s.c = c;
    s.period = (int)H; /* with more steps than layers the rest stay empty */
    s.excess = real;
    s.load = real + H;
    s.step = order + L;
    s.member = order + 2 * L;
    s.begin = order + 3 * L;
    s.most_visits = DDP__SCATTER_VISITS_EACH * (double)L * (double)H;
    if (s.most_visits > DDP__SCATTER_VISITS) s.most_visits = DDP__SCATTER_VISITS;
    s.eps = 1e-12 * (c->T + c->C[c->layers] + c->alpha);
    s.deadline = ddp_now() + (time_limit_s > 0 ? time_limit_s : 60);
    memcpy(s.step, step, L * sizeof(int));
    ddp__scatter_index(&s);
    least = s.total;
    for (n = 0; n < 5 && least > bound + s.eps; n++) {
        for (i = 0; i < c->layers; i++) {
            key[i].comm = n > 2 ? 0 : c->comm[i]; /* the last two: from the input side */
            key[i].layer = i;
        }
        qsort(key, L, sizeof *key, ddp__scatter_longer);
        for (i = 0; i < c->layers; i++) order[i] = key[i].layer;
        if (n > 0) ddp__scatter_greedy(&s, order, n % 2 ? 1 : -1);
        ddp__scatter_descend(&s);
        ddp__scatter_keep(&s, step, &least);
    }
    ddp__scatter_disturb(&s, step, &least, bound);
    DDP_FREE(real);
    DDP_FREE(order);
    DDP_FREE(key);
    return DDP_OK;
}
