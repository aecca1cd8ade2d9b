/* The genetic searches of DT-FM: the search of the paper, and the search that the authors released. */
#include "plan/order.h"
#include "plan/place/place_solvers.h"
#include "plan/tour.h"

/* The hybrid genetic search of the paper (DT-FM section 3.4), and the population that the released variant
 * shares. A genome is the stage of each device, label[N].
 *
 * Local search, as interpreted here. The fastest link of a group is the lightest pair (d1, d2) of its
 * unlocked devices. Two groups have four candidate swaps: one end of one link with one end of the other. The
 * gain of a swap is
 *     gain = mean of w(d, C') - w(d1, d2) + mean of w(d', C) - w(d1', d2')
 * A chain begins with the best swap of all. It continues from the second group to the best third one, and
 * locks each swapped device. It ends when it returns to the first group or when no group has two unlocked
 * devices. It is truncated at its largest sum of gains. w is one direction, a + c_pp/b. */

enum { DDP__PLACE_POPULATION = 100, DDP__PLACE_CROSSED = 5 };

typedef struct ddp__place_pool {
    int size;
    int *label;       /* [size x N] stage of each device in each genome */
    double *cost;     /* [size], -1 if not evaluated yet */
    long pass, whole; /* number of candidates that a child and an evaluation count beyond one, 0 if everything
                         is evaluated at once */
    int *child, *at;  /* [N] */
} ddp__place_pool;

static double ddp__place_judge(ddp__place *p, ddp__place_pool *pool, const int *label, double enough)
{
    double cost;
    int n = 0;
    for (int j = 0; j < p->S; j++)
        for (int v = 0; v < p->N; v++)
            if (label[v] == j) pool->at[n++] = v;
    cost = ddp__place_evaluate(p, pool->at, enough);
    ddp__place_offer(p, p->line, cost);
    if (cost < DBL_MAX) p->candidates += pool->whole;
    if (p->candidates > p->limit) p->candidates = p->limit;
    return cost;
}

/* The cost of a member, evaluated if it is not known yet. */
static double ddp__place_known(ddp__place *p, ddp__place_pool *pool, int k)
{
    if (pool->cost[k] < 0)
        pool->cost[k] = ddp__place_judge(p, pool, pool->label + (size_t)k * (size_t)p->N, DBL_MAX);
    return pool->cost[k];
}

/* Fills the population with random shuffles, fewer than 100 if the limits end first. */
static void ddp__place_pool_open(ddp__place *p, ddp__place_pool *pool)
{
    size_t N = (size_t)p->N;
    pool->label = ddp__ints(&p->room, DDP__PLACE_POPULATION * N);
    pool->cost = ddp__doubles(&p->room, DDP__PLACE_POPULATION);
    pool->child = ddp__ints(&p->room, N);
    pool->at = ddp__ints(&p->room, N);
    while (pool->size < DDP__PLACE_POPULATION && ddp__place_next(p)) {
        ddp__shuffle(pool->at, p->N, &p->rng);
        for (int v = 0; v < p->N; v++) pool->child[pool->at[v]] = v / p->D;
        pool->cost[pool->size] = pool->pass ? -1 : ddp__place_judge(p, pool, pool->child, DBL_MAX);
        memcpy(pool->label + (size_t)pool->size++ * N, pool->child, N * sizeof(int));
    }
}

/* "Five-point crossover": copies the second parent, except that five random devices take their group from
 * the first. Then each device of an over-full group moves to the first group with room. The parents may be
 * equal. */
static void ddp__place_cross(ddp__place *p, ddp__place_pool *pool, int *one, int *two)
{
    size_t N = (size_t)p->N;
    int *child = pool->child, *count = pool->at, k, v, q;
    *one = (int)ddp_rng_below(&p->rng, (uint64_t)pool->size);
    *two = (int)ddp_rng_below(&p->rng, (uint64_t)pool->size);
    memcpy(child, pool->label + (size_t)*two * N, N * sizeof(int));
    for (k = 0; k < DDP__PLACE_CROSSED; k++) {
        v = (int)ddp_rng_below(&p->rng, (uint64_t)p->N);
        child[v] = pool->label[(size_t)*one * N + (size_t)v];
    }
    memset(count, 0, N * sizeof(int));
    for (v = 0; v < p->N; v++) count[child[v]]++;
    for (v = q = 0; v < p->N; v++) {
        if (count[child[v]] <= p->D) continue;
        while (count[q] >= p->D) q++;
        count[child[v]]--;
        count[q]++;
        child[v] = q;
    }
}

/* ---- the paper's swaps ---- */

typedef struct ddp__place_swap {
    int u, v; /* a device of each of the two groups */
    double gain;
} ddp__place_swap;

/* The lightest pair of unlocked devices in each group. end[2g] is -1 if the group has no such pair. */
static void ddp__place_fastest(const ddp__place *p, const int *label, const char *locked, int *end,
                               double *link)
{
    int g, u, v;
    for (g = 0; g < p->S; g++) {
        end[2 * g] = end[2 * g + 1] = -1;
        link[g] = DBL_MAX;
    }
    for (u = 0; u < p->N; u++)
        for (v = u + 1; v < p->N; v++) {
            double w = p->pp[(size_t)u * (size_t)p->N + (size_t)v] / 2;
            g = label[u];
            if (label[v] != g || locked[u] || locked[v] || !(w < link[g])) continue;
            link[g] = w;
            end[2 * g] = u;
            end[2 * g + 1] = v;
        }
}

/* The mean weight between u and the devices of group g (in its own group, u itself counts as 0). */
static double ddp__place_mean(const ddp__place *p, const int *label, int u, int g)
{
    double sum = 0;
    for (int v = 0; v < p->N; v++)
        if (label[v] == g) sum += p->pp[(size_t)u * (size_t)p->N + (size_t)v] / 2;
    return sum / p->D;
}

/* The best swap of group g (-1 = any group) with another group. */
static ddp__place_swap ddp__place_best_swap(const ddp__place *p, const int *end, const double *link,
                                            const double *mean, int g)
{
    ddp__place_swap best = {-1, -1, -DBL_MAX};
    for (int a = g < 0 ? 0 : g; a < (g < 0 ? p->S : g + 1); a++)
        for (int b = 0; b < p->S; b++)
            for (int k = 0; k < 4 && b != a && end[2 * a] >= 0 && end[2 * b] >= 0; k++) {
                int u = 2 * a + k / 2, v = 2 * b + k % 2;
                double gain = mean[(size_t)u * (size_t)p->S + (size_t)b] - link[a] +
                              mean[(size_t)v * (size_t)p->S + (size_t)a] - link[b];
                if (!(gain > best.gain)) continue;
                best.gain = gain;
                best.u = end[u];
                best.v = end[v];
            }
    return best;
}

typedef struct ddp__place_chain {
    char *locked;          /* [N] */
    int *end;              /* [2 S] */
    double *link;          /* [S] */
    double *mean;          /* [2 S x S] mean weight of each end to each group */
    ddp__place_swap *swap; /* [N] */
} ddp__place_chain;

/* Improves label by one chain of swaps. */
static void ddp__place_circulate(ddp__place *p, ddp__place_chain *c, int *label)
{
    double sum = 0, most = 0;
    int n, keep = 0, first = -1, g = -1, k, h;

    for (int v = 0; v < p->N; v++) c->locked[v] = 0;
    for (n = 0; n < p->N && !ddp__place_late(p); n++) {
        ddp__place_swap s;
        ddp__place_fastest(p, label, c->locked, c->end, c->link);
        for (k = 0; k < 2 * p->S; k++)
            for (h = 0; h < p->S && c->end[k] >= 0; h++)
                c->mean[(size_t)k * (size_t)p->S + (size_t)h] = ddp__place_mean(p, label, c->end[k], h);
        s = ddp__place_best_swap(p, c->end, c->link, c->mean, g);
        if (s.u < 0) break;
        if (first < 0) first = label[s.u];
        g = label[s.v];
        ddp__swap(label, s.u, s.v);
        c->locked[s.u] = c->locked[s.v] = 1;
        c->swap[n] = s;
        sum += s.gain;
        if (sum > most) {
            most = sum;
            keep = n + 1;
        }
        if (g == first) {
            n++;
            break;
        }
    }
    while (n-- > keep) ddp__swap(label, c->swap[n].u, c->swap[n].v);
}

/* The search that the authors of DT-FM released: cyclic partition moves. Each move takes one device out of
 * the group that received the last one. The gain of moving v to group q is one of:
 *     genetic-code  mean of w(v, u in q) - own(v), own(v) = the lightest w(v, u) in v's group. Only the
 *                   unlocked v with the smallest own of its group may move.
 *     kl            s(v, q) - s(v, own group), s = sum of (c_pp - c_dp)/b. Any unlocked v may move.
 * with w = a + c_pp/b one way. A cycle begins at the group S0 with the largest gain and ends when it
 * returns to S0. It is closed at the move with the largest value of: gains so far, plus the gain of
 * sending the device directly to S0. If no such value is positive, the cycle is undone. A device stays
 * locked for the whole pass. */

typedef struct ddp__place_cycle {
    ddp__place *p;
    int kl, *label;
    int *size;         /* [S] current number of devices in each group */
    char *locked;      /* [N] */
    char *got;         /* [S] 1 = the group has received a device in this pass */
    int *moved, *from; /* [N] moves of this cycle */
    double *sum;       /* weight between one device and group q, at index q x stride */
    size_t stride;     /* 1, or N in the table */
    double *table;     /* [S x N] sums of each device, updated in place, or NULL for summed again each time */
} ddp__place_cycle;

/* Sums the weights of v with every group into c->sum. Returns the lightest weight in its own group. */
static double ddp__place_weigh(ddp__place_cycle *c, int v)
{
    const ddp__place *p = c->p;
    const double *row = (c->kl ? p->kl : p->pp) + (size_t)v * (size_t)p->N;
    double own = DBL_MAX;
    if (c->table) {
        c->sum = c->table + v;
        return 0;
    }
    memset(c->sum, 0, (size_t)p->S * sizeof(double));
    for (int u = 0; u < p->N; u++) {
        if (u == v) continue;
        c->sum[c->label[u]] += row[u];
        if (c->label[u] == c->label[v] && row[u] < own) own = row[u];
    }
    return own < DBL_MAX ? own : 0;
}

/* The gain of sending the device that was weighed last, with own link `own`, to group q. pp is twice w. */
static double ddp__place_gain(const ddp__place_cycle *c, int v, double own, int q)
{
    if (c->kl) return c->sum[(size_t)q * c->stride] - c->sum[(size_t)c->label[v] * c->stride];
    return ((c->size[q] ? c->sum[q] / c->size[q] : 0) - own) / 2;
}

/* The best move out of group g: the device (-1 if no device is unlocked), its new group, and the gain. */
static int ddp__place_leave(ddp__place_cycle *c, int g, int *to, double *gain)
{
    const ddp__place *p = c->p;
    double least = DBL_MAX, own, now;
    int v, q, best = -1, only = -1;
    *gain = -DBL_MAX;
    if (p->S < 2) return -1;
    for (v = 0; v < p->N && !c->kl; v++) {
        if (c->label[v] != g || c->locked[v]) continue;
        own = ddp__place_weigh(c, v);
        if (only < 0 || own < least) {
            only = v;
            least = own;
        }
    }
    for (v = 0; v < p->N; v++) {
        if (c->label[v] != g || c->locked[v] || (!c->kl && v != only)) continue;
        own = ddp__place_weigh(c, v);
        for (q = 0; q < p->S; q++) {
            if (q == g) continue;
            now = ddp__place_gain(c, v, own, q);
            if (best >= 0 && !(now > *gain)) continue;
            best = v;
            *to = q;
            *gain = now;
        }
    }
    return best;
}

static void ddp__place_send(ddp__place_cycle *c, int v, int q)
{
    const ddp__place *p = c->p;
    const double *row = p->kl + (size_t)v * (size_t)p->N;
    if (c->table) {
        double *left = c->table + (size_t)c->label[v] * (size_t)p->N,
               *joined = c->table + (size_t)q * (size_t)p->N;
        for (int u = 0; u < p->N; u++) {
            left[u] -= row[u];
            joined[u] += row[u];
        }
    }
    c->size[c->label[v]]--;
    c->size[q]++;
    c->label[v] = q;
}

/* Runs one cycle. Returns 0 if no group has an unlocked device, or if the search is late. */
static int ddp__place_cycle_once(ddp__place_cycle *c)
{
    int home = -1, g, v, to = 0, n = 0, keep = 0, k;
    double most = -DBL_MAX, gain, sum = 0, close, best = 0;

    for (g = 0; g < c->p->S; g++) {
        if (ddp__place_late(c->p)) return 0;
        v = ddp__place_leave(c, g, &to, &gain);
        if (v >= 0 && (home < 0 || gain > most)) {
            home = g;
            most = gain;
        }
    }
    if (home < 0) return 0;
    for (g = home; n < c->p->N && !(n && ddp__place_late(c->p)); g = to) {
        v = ddp__place_leave(c, g, &to, &gain);
        if (v < 0) break;
        if (n) {
            double own = ddp__place_weigh(c, v);
            close = sum + ddp__place_gain(c, v, own, home);
            if (close > best) {
                best = close;
                keep = n;
            }
        }
        c->moved[n] = v;
        c->from[n++] = g;
        ddp__place_send(c, v, to);
        c->locked[v] = 1;
        sum += gain;
        if (to == home) break;
    }
    for (k = n - 1; k > keep; k--) ddp__place_send(c, c->moved[k], c->from[k]);
    ddp__place_send(c, c->moved[keep], home);
    for (k = 0; k <= keep && keep > 0; k++) c->got[c->label[c->moved[k]]] = 1;
    return 1;
}

/* If the chain reaches a group without an unlocked device, the device of the last move moves to S0
 * instead. This is the closing at the last prefix of the chain. */
static int ddp__place_cyclic_pass(ddp__place *p, int *label, int kl, double *table)
{
    size_t N = (size_t)p->N, S = (size_t)p->S;
    ddp__scratch room = {NULL, 0};
    ddp__place_cycle c = DDP__ZEROS;
    int k, g;

    c.p = p;
    c.kl = kl;
    c.label = label;
    c.size = ddp__ints(&room, S);
    c.moved = ddp__ints(&room, N);
    c.from = ddp__ints(&room, N);
    c.locked = (char *)ddp__scratch_take(&room, N, 1);
    c.got = (char *)ddp__scratch_take(&room, S, 1);
    c.sum = ddp__doubles(&room, S);
    c.stride = table ? N : 1;
    c.table = table;
    if (table) memset(table, 0, N * S * sizeof(double));
    for (k = 0; !ddp__scratch_failed(&room) && k < p->N; k++) {
        c.size[label[k]]++;
        for (size_t u = 0; table && u < N; u++) table[(size_t)label[k] * N + u] += p->kl[(size_t)k * N + u];
    }
    for (k = 0; !ddp__scratch_failed(&room) && k < p->S && ddp__place_cycle_once(&c); k++) {
        for (g = 0; g < p->S && c.got[g]; g++) {
        }
        if (g == p->S) break;
    }
    ddp__scratch_free(&room);
    return !ddp__scratch_failed(&room);
}

/* How many candidates the walk of kl gets per move of annealing, as a share of 12, after `children`
 * children, the best of which costs `own`: three while it leads, two until it has settled, then a third
 * while it is near the best, and none after that. */
static int ddp__place_turn(const ddp__place *p, long children, double own)
{
    return own <= p->cost ? 36 : children < 2000 ? 24 : own < 1.1 * p->cost ? 4 : 0;
}

struct ddp__place_genetic_walk {
    ddp_place_solver solver;
    ddp__place_pool pool;
    ddp__place_chain chain;
    double *table; /* [S x N], or NULL if nothing is updated in place */
    long children;
    double own; /* the best cost of a child */
};

ddp__place_genetic_walk *ddp__place_genetic_open(ddp__place *p, ddp_place_solver solver, int quick)
{
    const size_t N = (size_t)p->N, S = (size_t)p->S;
    ddp__place_genetic_walk *w = (ddp__place_genetic_walk *)ddp__scratch_take(&p->room, 1, sizeof *w);
    if (!w) return NULL;
    w->solver = solver;
    w->own = DBL_MAX;
    w->table = quick ? ddp__doubles(&p->room, N * S) : NULL;
    if (quick) {
        w->pool.pass = (long)(S * N * N / 128 + 1);
        w->pool.whole = (long)(N * N / 8 + (S <= DDP_TOUR_EXACT ? (S * S << S) / 96 : S * S * S));
    }
    ddp__place_pool_open(p, &w->pool);
    w->chain.locked = (char *)ddp__scratch_take(&p->room, N, 1);
    w->chain.end = ddp__ints(&p->room, 2 * S);
    w->chain.link = ddp__doubles(&p->room, S);
    w->chain.mean = ddp__doubles(&p->room, 2 * S * S);
    w->chain.swap = (ddp__place_swap *)ddp__scratch_take(&p->room, N, sizeof *w->chain.swap);
    return ddp__scratch_failed(&p->room) ? NULL : w;
}

int ddp__place_genetic_child(ddp__place *p, ddp__place_genetic_walk *w)
{
    const int released = w->solver != DDP_PLACE_GENETIC;
    ddp__place_pool *pool = &w->pool;
    const size_t N = (size_t)p->N;
    int one, two, out = 0;
    double cost;

    if (!ddp__place_next(p)) return 0;
    ddp__place_cross(p, pool, &one, &two);
    if (!released)
        ddp__place_circulate(p, &w->chain, pool->child);
    else if (!ddp__place_cyclic_pass(p, pool->child, w->solver == DDP_PLACE_KL, w->table))
        ddp__scratch_fail(&p->room);
    for (int k = 0; k < pool->size; k++)
        if (pool->cost[k] > pool->cost[out]) out = k;
    if (released) out = one;
    w->children++;
    p->candidates += pool->pass;
    cost = ddp__place_judge(p, pool, pool->child, w->table ? ddp__place_known(p, pool, out) : DBL_MAX);
    if (!(cost < pool->cost[out])) return 1;
    w->own = fmin(w->own, cost);
    if (released) out = ddp__place_known(p, pool, two) > pool->cost[one] ? two : one;
    pool->cost[out] = cost;
    memcpy(pool->label + (size_t)out * N, pool->child, N * sizeof(int));
    return 1;
}

int ddp__place_genetic_turn(ddp__place *p, ddp__place_genetic_walk *w, long moves)
{
    const long end = p->candidates + moves * ddp__place_turn(p, w->children, w->own) / 12;
    while (p->candidates < end)
        if (!ddp__place_genetic_child(p, w)) return 0;
    return 1;
}

void ddp__place_genetic(ddp__place *p, ddp_place_solver solver)
{
    ddp__place_genetic_walk *w = ddp__place_genetic_open(p, solver, 0);
    while (w && ddp__place_genetic_child(p, w)) {
    }
}
