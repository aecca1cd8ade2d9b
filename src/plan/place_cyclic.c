#include "base/core.h"
#include "plan/place_core.h"

/* The search that the DT-FM authors released: cyclic partition moves, one device at a time, each into the group that
 * the last one left for. Two gains of moving v to group q:
 *     genetic-code  mean of w(v, u in q) - own(v),  own(v) = the lightest w(v, u) in v's group; only the unlocked v
 *                   with the smallest own of its group may move
 *     kl            s(v, q) - s(v, own group),  s = sum of (c_pp - c_dp)/b; any unlocked v
 * with w = a + c_pp/b one way. A cycle begins at the group S0 with the largest gain and ends when it comes back to it;
 * it is closed where the gains so far plus that of sending the device straight to S0 are largest, and undone if that is
 * nowhere positive. Locks last for the whole pass. */

typedef struct ddp__place_cycle {
    ddp__place *p;
    int kl;
    int *label;
    int *size;         /* [S] devices in each group now */
    char *locked;      /* [N] */
    char *got;         /* [S] has received a device in this pass */
    int *moved, *from; /* [N] moves of this cycle */
    double *sum;       /* [S] weight between one device and each group */
} ddp__place_cycle;

/* Sums of v's weights with every group into c->sum; the lightest weight in its own group. */
static double ddp__place_weigh(ddp__place_cycle *c, int v)
{
    const ddp__place *p = c->p;
    const double *row = (c->kl ? p->kl : p->pp) + (size_t)v * (size_t)p->N;
    double own = INFINITY;

    memset(c->sum, 0, (size_t)p->S * sizeof(double));
    for (int u = 0; u < p->N; u++) {
        if (u == v) continue;
        c->sum[c->label[u]] += row[u];
        if (c->label[u] == c->label[v] && row[u] < own) own = row[u];
    }
    return own < INFINITY ? own : 0;
}

/* The gain of sending the device last weighed, with that own link, to group q. pp is twice w. */
static double ddp__place_gain(const ddp__place_cycle *c, int v, double own, int q)
{
    if (c->kl) return c->sum[q] - c->sum[c->label[v]];
    return ((c->size[q] ? c->sum[q] / c->size[q] : 0) - own) / 2;
}

/* The best move out of group g: the device (-1 = none unlocked), where to, and the gain. */
static int ddp__place_leave(ddp__place_cycle *c, int g, int *to, double *gain)
{
    const ddp__place *p = c->p;
    double least = INFINITY, own, now;
    int v, q, best = -1, only = -1;

    *gain = -INFINITY;
    if (p->S < 2) return -1;
    for (v = 0; v < p->N && !c->kl; v++) {
        const double *row = p->pp + (size_t)v * (size_t)p->N;
        int u;
        if (c->label[v] != g || c->locked[v]) continue;
        for (u = 0, own = INFINITY; u < p->N; u++)
            if (u != v && c->label[u] == g && row[u] < own) own = row[u];
        if (only < 0 || own < least) only = v, least = own;
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
    c->size[c->label[v]]--;
    c->size[q]++;
    c->label[v] = q;
}

/* One cycle; 0 where no group has an unlocked device, or it is too late. */
static int ddp__place_cycle_once(ddp__place_cycle *c)
{
    int home = -1, g, v, to = 0, n = 0, keep = 0, k;
    double most = -INFINITY, gain, sum = 0, close, best = 0;

    for (g = 0; g < c->p->S; g++) {
        if (ddp__place_late(c->p)) return 0;
        v = ddp__place_leave(c, g, &to, &gain);
        if (v >= 0 && (home < 0 || gain > most)) home = g, most = gain;
    }
    if (home < 0) return 0;
    for (g = home; n < c->p->N && !(n && ddp__place_late(c->p)); g = to) {
        v = ddp__place_leave(c, g, &to, &gain);
        if (v < 0) break;
        if (n) {
            double own = ddp__place_weigh(c, v);
            close = sum + ddp__place_gain(c, v, own, home);
            if (close > best) best = close, keep = n;
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

/* The device of the last move where the chain ran into a group without an unlocked device goes on to S0: that is the
 * closing at the last prefix. */
int ddp__place_cyclic_pass(ddp__place *p, int *label, int kl)
{
    size_t N = (size_t)p->N, S = (size_t)p->S;
    ddp__place_cycle c;
    int k, g, ok;

    memset(&c, 0, sizeof c);
    c.p = p;
    c.kl = kl;
    c.label = label;
    c.size = (int *)ddp__calloc(S + 2 * N, sizeof(int));
    c.locked = (char *)ddp__calloc(N + S, 1);
    c.sum = (double *)ddp__calloc(S, sizeof(double));
    ok = c.size && c.locked && c.sum;
    if (ok) {
        c.moved = c.size + S;
        c.from = c.moved + N;
        c.got = c.locked + N;
        for (k = 0; k < p->N; k++) c.size[label[k]]++;
        for (k = 0; k < p->S && ddp__place_cycle_once(&c); k++) {
            for (g = 0; g < p->S && c.got[g]; g++) {
            }
            if (g == p->S) break;
        }
    }
    DDP_FREE(c.size);
    DDP_FREE(c.locked);
    DDP_FREE(c.sum);
    return ok;
}

void ddp__place_cyclic(ddp__place *p, int kl)
{
    size_t N = (size_t)p->N;
    ddp__place_pool pool;
    int one, two;
    double cost;

    if (!ddp__place_pool_open(p, &pool)) return;
    while (ddp__place_next(p)) {
        ddp__place_cross(p, &pool, &one, &two);
        if (!ddp__place_cyclic_pass(p, pool.child, kl)) {
            p->failed = 1;
            break;
        }
        cost = ddp__place_judge(p, &pool);
        if (!(cost < pool.cost[one])) continue;
        if (pool.cost[two] > pool.cost[one]) one = two;
        pool.cost[one] = cost;
        memcpy(pool.label + (size_t)one * N, pool.child, N * sizeof(int));
    }
    ddp__place_pool_close(&pool);
}
