/* Placement by simulated annealing, and for large networks by descent on the two-level cost. */
#include "plan/order.h"
#include "plan/place/place_solvers.h"

/* Descent on the two-level cost, for networks where annealing single edges makes hardly any progress. A
 * move takes a device at the slowest edge of a random hop's best matching and exchanges it with any device
 * of another stage. Up to four hops change and are matched again, and the move stays if the cost is not
 * worse. Every factor is a power of two, so that the search is the same with every compiler. */

typedef struct ddp__descent {
    ddp__place *p;
    int *at;            /* [N] */
    int *mate, *fresh;  /* [S x D] matching of each hop, [4 x D] of the hops on trial */
    double *hop, *data; /* [S] value of each matching, averaging time of each stage */
    double top, all;    /* the largest of data, the sum of hop */
} ddp__descent;

/* Returns a device at an end of the slowest edge of a random hop. */
static int ddp__descent_slowest(ddp__descent *s)
{
    ddp__place *p = s->p;
    int D = p->D, j = (int)ddp_rng_below(&p->rng, (uint64_t)p->S - 1), a;
    const int *mate = s->mate + j * D;
    for (a = 0; a + 1 < D; a++)
        if (p->pp[(size_t)s->at[j * D + a] * (size_t)p->N + (size_t)s->at[(j + 1) * D + mate[a]]] >=
            s->hop[j])
            break;
    return ddp_rng_below(&p->rng, 2) ? j * D + a : (j + 1) * D + mate[a];
}

/* Tries one exchange. Returns 1 if it stays. */
static int ddp__descent_move(ddp__descent *s)
{
    ddp__place *p = s->p;
    int D = p->D, x = ddp__descent_slowest(s), z = (int)ddp_rng_below(&p->rng, (uint64_t)p->N);
    int j = x / D, k = z / D, near[4], hops = 0, h, m;
    double slack = 0x1p-11 * p->cost, now[4], change = 0, dj, dk, top;

    if (j == k) return 0;
    ddp__swap(s->at, x, z);
    dj = ddp__place_averaging(p, s->at, j);
    dk = ddp__place_averaging(p, s->at, k);
    top = dj > dk ? dj : dk;
    for (m = 0; m < p->S; m++)
        if (m != j && m != k && s->data[m] > top) top = s->data[m];
    change = top - s->top;
    for (m = 0; m < 4 && change <= slack; m++) { /* a later hop rarely makes up for more */
        h = (m < 2 ? j : k) - 1 + m % 2;
        if (h < 0 || h + 1 >= p->S || (m > 1 && (h == j - 1 || h == j))) continue;
        near[hops] = h;
        now[hops] = ddp__place_match(p, s->at + h * D, s->at + (h + 1) * D, s->fresh + hops * D);
        change += now[hops] - s->hop[h];
        hops++;
    }
    if (change > 0) {
        ddp__swap(s->at, x, z);
        return 0;
    }
    for (m = 0; m < hops; m++) {
        s->all += now[m] - s->hop[near[m]];
        s->hop[near[m]] = now[m];
        memcpy(s->mate + near[m] * D, s->fresh + m * D, (size_t)D * sizeof(int));
    }
    s->data[j] = dj;
    s->data[k] = dk;
    s->top = top;
    return 1;
}

/* Writes the pipelines along the matchings to p->line and offers them as the best. */
static void ddp__descent_offer(ddp__descent *s)
{
    ddp__place *p = s->p;
    for (int i = 0; i < p->D; i++)
        for (int j = 0, member = i; j < p->S; j++) {
            p->line[j * p->D + i] = s->at[j * p->D + member];
            if (j + 1 < p->S) member = s->mate[j * p->D + member];
        }
    ddp__place_offer(p, p->line, ddp__place_flat(p, p->line, NULL, NULL));
}

/* Runs the descent. A re-matching takes about as long as 4 D moves of annealing and counts as 4 D
 * candidates. */
static void ddp__place_descend(ddp__place *p)
{
    size_t N = (size_t)p->N, S = (size_t)p->S, D = (size_t)p->D;
    const long weight = 4 * (long)p->D;
    ddp__descent s = DDP__ZEROS;
    s.p = p;
    s.at = ddp__ints(&p->room, N);
    s.mate = ddp__ints(&p->room, N);
    s.fresh = ddp__ints(&p->room, 4 * D);
    s.hop = ddp__doubles(&p->room, S);
    s.data = ddp__doubles(&p->room, S);
    if (ddp__scratch_failed(&p->room)) return;
    memcpy(s.at, p->best, N * sizeof(int));
    for (int j = 0; j < p->S; j++) {
        s.data[j] = ddp__place_averaging(p, s.at, j);
        if (s.data[j] > s.top) s.top = s.data[j];
        if (j + 1 == p->S) continue;
        s.hop[j] =
            ddp__place_match(p, s.at + (size_t)j * D, s.at + (size_t)(j + 1) * D, s.mate + (size_t)j * D);
        s.all += s.hop[j];
    }
    while (p->limit - p->candidates >= weight && ddp__place_next(p)) {
        p->candidates += weight - 1;
        if (ddp__descent_move(&s) && s.top + s.all < p->cost - 0x1p-13 * p->cost) ddp__descent_offer(&s);
    }
    ddp__descent_offer(&s);
    ddp__place_offer(p, p->line, ddp__place_evaluate(p, s.at, DBL_MAX));
}

/* Annealing on the flat form at[stage][pipeline], where every hop is within one pipeline. The true cost is a
 * maximum of maxima and flat almost everywhere. So annealing minimises
 *     max_j DP_j + lam sum_j DP_j + nu (sum over devices of their averaging) + sum over hops (max_i w + mu
 *     sum_i w)
 * and the best arrangement is chosen by the true cost. lam, mu and nu are powers of two, and the
 * acceptance rule is a table of exactly rounded operations, so that the search is the same with every
 * compiler. Moves: exchange two devices of different stages (half of them from a slowest edge) or of one
 * pipeline, exchange a range of stages of two pipelines (its tail, if it reaches the end), or reverse a range
 * of stages. */

#define DDP__ANNEAL_CHUNK 512 /* moves between two checks of the clock */
#define DDP__ANNEAL_TABLE 4096

typedef struct ddp__anneal {
    ddp__place *p;
    int N, D, S;
    float *dp, *pp;     /* [N x N] as in p, in units of 2^unit seconds */
    float *edge;        /* [N] at position j D + i: pp between stages j and j+1 of pipeline i */
    int *spare;         /* [D] */
    double *load;       /* [N] by position: sum of dp over the other devices of its stage */
    double *fresh;      /* [2 D] loads of the two stages that a trial changes */
    double *data;       /* [S] DP_j */
    double *most, *sum; /* [S] maximum and sum of each hop's edges */
    int *at, *best;     /* [N] the current arrangement, the best so far by true cost */
    int *stage;         /* [N] stage of each position */
    double top, all;    /* maximum and sum of data */
    double hops;        /* sum of most */
    double lam, mu, nu, heat, best_cost;
    int unit; /* all costs here are in units of 2^unit seconds */
    int improved;
    double *table;            /* [DDP__ANNEAL_TABLE] accepted cost increase, in units of heat */
    int hop_count, hop_at[4]; /* hops that a trial changes, with their old values */
    double most_was[4], sum_was[4];
    int edge_count, edge_at[4];
    float edge_was[4];
} ddp__anneal;

static int ddp__anneal_below(ddp__anneal *s, int n)
{
    return (int)((ddp_rng_u64(&s->p->rng) >> 32) * (uint64_t)n >> 32);
}

/* Metropolis acceptance with 1/(1 + x/16)^16 in place of exp(-x), as a limit on x drawn in advance. */
static int ddp__anneal_accepts(ddp__anneal *s, double worse)
{
    if (worse <= 0) return 1;
    return worse < s->heat * s->table[ddp_rng_u64(&s->p->rng) >> 52];
}

static float ddp__anneal_pair(const ddp__anneal *s, int x, int y)
{
    return s->pp[(size_t)x * (size_t)s->N + (size_t)y];
}

/* Recomputes everything that depends on s->at. */
static void ddp__anneal_rebuild(ddp__anneal *s)
{
    s->top = s->all = s->hops = 0;
    for (int j = 0; j < s->S; j++) {
        const int *stage = s->at + (size_t)j * (size_t)s->D;
        s->data[j] = s->most[j] = s->sum[j] = 0;
        for (int a = 0; a < s->D; a++) {
            const float *row = s->dp + (size_t)stage[a] * (size_t)s->N;
            double sum = 0;
            for (int b = 0; b < s->D; b++) sum += (double)row[stage[b]];
            s->load[j * s->D + a] = sum;
            if (sum > s->data[j]) s->data[j] = sum;
            if (j + 1 == s->S) continue;
            s->edge[j * s->D + a] = ddp__anneal_pair(s, stage[a], stage[a + s->D]);
            s->sum[j] += (double)s->edge[j * s->D + a];
            if ((double)s->edge[j * s->D + a] > s->most[j]) s->most[j] = (double)s->edge[j * s->D + a];
        }
        s->all += s->data[j];
        s->hops += s->most[j];
        if (s->data[j] > s->top) s->top = s->data[j];
    }
}

/* ---- trial of single edges ---- */

/* Sets edge i of hop j to w and saves the old value for ddp__anneal_undo. */
static void ddp__anneal_edge(ddp__anneal *s, int at, float w)
{
    int j = s->stage[at], k;
    float old = s->edge[at];
    for (k = 0; k < s->edge_count; k++)
        if (s->edge_at[k] == at) return;
    s->edge_at[s->edge_count] = at;
    s->edge_was[s->edge_count++] = old;
    for (k = 0; k < s->hop_count && s->hop_at[k] != j; k++) {
    }
    if (k == s->hop_count) {
        s->hop_at[k] = j;
        s->most_was[k] = s->most[j];
        s->sum_was[k] = s->sum[j];
        s->hop_count++;
    }
    s->edge[at] = w;
    s->sum[j] += (double)w - (double)old;
    if ((double)w >= s->most[j]) {
        s->most[j] = (double)w;
    } else if ((double)old >= s->most[j]) {
        const float *edge = s->edge + (size_t)j * (size_t)s->D;
        float most = edge[0];
        for (k = 1; k < s->D; k++) most = edge[k] > most ? edge[k] : most;
        s->most[j] = (double)most;
    }
}

/* Sets both edges of the device at a position, from s->at. */
static void ddp__anneal_edges(ddp__anneal *s, int a)
{
    if (a >= s->D) ddp__anneal_edge(s, a - s->D, ddp__anneal_pair(s, s->at[a - s->D], s->at[a]));
    if (a + s->D < s->N) ddp__anneal_edge(s, a, ddp__anneal_pair(s, s->at[a], s->at[a + s->D]));
}

/* How much the hops on trial grew: the sum of their maxima, and the total with the smoothing term. */
static double ddp__anneal_growth(const ddp__anneal *s, double *maxima)
{
    double most = 0, sum = 0;
    for (int k = 0; k < s->hop_count; k++) {
        most += s->most[s->hop_at[k]] - s->most_was[k];
        sum += s->sum[s->hop_at[k]] - s->sum_was[k];
    }
    *maxima = most;
    return most + s->mu * sum;
}

static void ddp__anneal_undo(ddp__anneal *s)
{
    for (int k = 0; k < s->edge_count; k++) s->edge[s->edge_at[k]] = s->edge_was[k];
    for (int k = 0; k < s->hop_count; k++) {
        s->most[s->hop_at[k]] = s->most_was[k];
        s->sum[s->hop_at[k]] = s->sum_was[k];
    }
}

/* ---- moves: each returns 1 if it was accepted ---- */

/* Loads of the stage of position a if its device x is replaced by y. Returns the largest. */
static double ddp__anneal_load(const ddp__anneal *s, int a, int x, int y, double *fresh)
{
    const float *rx = s->dp + (size_t)x * (size_t)s->N, *ry = s->dp + (size_t)y * (size_t)s->N;
    int first = s->stage[a] * s->D, i;
    const int *stage = s->at + first;
    const double *load = s->load + first;
    double own = 0, most = 0;

    for (i = 0; i < s->D; i++) {
        double in = (double)ry[stage[i]], now = load[i] + (in - (double)rx[stage[i]]);
        fresh[i] = now;
        if (first + i == a) continue;
        own += in;
        if (now > most) most = now;
    }
    fresh[a - first] = own;
    return own > most ? own : most;
}

static double ddp__anneal_top(const ddp__anneal *s, int j, int k, double dj, double dk)
{
    double top = dj > dk ? dj : dk;
    if (s->data[j] < s->top && s->data[k] < s->top) return top > s->top ? top : s->top;
    for (int m = 0; m < s->S; m++)
        if (m != j && m != k && s->data[m] > top) top = s->data[m];
    return top;
}

static int ddp__anneal_exchange(ddp__anneal *s, int a, int b)
{
    int j = s->stage[a], k = s->stage[b], x = s->at[a], y = s->at[b];
    double dj, dk, top, growth, maxima, change, loads;
    dj = ddp__anneal_load(s, a, x, y, s->fresh);
    dk = ddp__anneal_load(s, b, y, x, s->fresh + s->D);
    top = ddp__anneal_top(s, j, k, dj, dk);
    change = dj - s->data[j] + (dk - s->data[k]);
    loads = s->fresh[a - j * s->D] - s->load[a] + (s->fresh[s->D + b - k * s->D] - s->load[b]);
    s->at[a] = y;
    s->at[b] = x;
    s->edge_count = s->hop_count = 0;
    ddp__anneal_edges(s, a);
    ddp__anneal_edges(s, b);
    growth = ddp__anneal_growth(s, &maxima);
    if (!ddp__anneal_accepts(s, top - s->top + s->lam * change + s->nu * loads + growth)) {
        ddp__anneal_undo(s);
        ddp__swap(s->at, a, b);
        return 0;
    }
    memcpy(s->load + (size_t)j * (size_t)s->D, s->fresh, (size_t)s->D * sizeof(double));
    memcpy(s->load + (size_t)k * (size_t)s->D, s->fresh + s->D, (size_t)s->D * sizeof(double));
    s->data[j] = dj;
    s->data[k] = dk;
    s->top = top;
    s->all += change;
    s->hops += maxima;
    return 1;
}

/* Exchanges stages j..k of the pipelines i and l. Every stage retains its devices. */
static int ddp__anneal_cross(ddp__anneal *s, int i, int l, int j, int k)
{
    int D = s->D, first = j * D, last = k * D, m;
    double growth, maxima;

    s->edge_count = s->hop_count = 0;
    if (j > 0) {
        const int *at = s->at + first - D;
        ddp__anneal_edge(s, first - D + i, ddp__anneal_pair(s, at[i], at[D + l]));
        ddp__anneal_edge(s, first - D + l, ddp__anneal_pair(s, at[l], at[D + i]));
    }
    if (k + 1 < s->S) {
        const int *at = s->at + last;
        ddp__anneal_edge(s, last + i, ddp__anneal_pair(s, at[l], at[D + i]));
        ddp__anneal_edge(s, last + l, ddp__anneal_pair(s, at[i], at[D + l]));
    }
    growth = ddp__anneal_growth(s, &maxima);
    if (!ddp__anneal_accepts(s, growth)) {
        ddp__anneal_undo(s);
        return 0;
    }
    for (m = first; m <= last; m += D) {
        double load = s->load[m + i];
        ddp__swap(s->at, m + i, m + l);
        s->load[m + i] = s->load[m + l];
        s->load[m + l] = load;
        if (m < last) {
            float t = s->edge[m + i];
            s->edge[m + i] = s->edge[m + l];
            s->edge[m + l] = t;
        }
    }
    s->hops += maxima;
    return 1;
}

/* The maximum and the sum of the hop between row j and row k, if they were neighbours. */
static double ddp__anneal_between(const ddp__anneal *s, int j, int k, double *sum)
{
    const int *here = s->at + (size_t)j * (size_t)s->D, *there = s->at + (size_t)k * (size_t)s->D;
    double most = 0, w;
    for (int i = 0; i < s->D; i++) {
        w = (double)ddp__anneal_pair(s, here[i], there[i]);
        *sum += w;
        if (w > most) most = w;
    }
    return most;
}

static void ddp__anneal_turn(int *at, int *spare, int D, int j, int k)
{
    size_t bytes = (size_t)D * sizeof(int);
    for (; j < k; j++, k--) {
        memcpy(spare, at + (size_t)j * (size_t)D, bytes);
        memcpy(at + (size_t)j * (size_t)D, at + (size_t)k * (size_t)D, bytes);
        memcpy(at + (size_t)k * (size_t)D, spare, bytes);
    }
}

static int ddp__anneal_reverse(ddp__anneal *s, int j, int k)
{
    double most = 0, sum = 0;
    if (j > 0) {
        most += ddp__anneal_between(s, j - 1, k, &sum) - s->most[j - 1];
        sum -= s->sum[j - 1];
    }
    if (k + 1 < s->S) {
        most += ddp__anneal_between(s, j, k + 1, &sum) - s->most[k];
        sum -= s->sum[k];
    }
    if (!ddp__anneal_accepts(s, most + s->mu * sum)) return 0;
    ddp__anneal_turn(s->at, s->spare, s->D, j, k);
    ddp__anneal_rebuild(s);
    return 1;
}

/* Returns a device at an end of the slowest edge of a random hop. */
static int ddp__anneal_slowest(ddp__anneal *s)
{
    int j = ddp__anneal_below(s, s->S - 1), i;
    const float *edge = s->edge + (size_t)j * (size_t)s->D;
    for (i = 0; i + 1 < s->D && (double)edge[i] < s->most[j]; i++) {
    }
    return (j + ddp__anneal_below(s, 2)) * s->D + i;
}

/* Tries one move. There are at least two stages: one stage is solved by enumeration. */
static int ddp__anneal_move(ddp__anneal *s)
{
    int kind = (int)(ddp_rng_u64(&s->p->rng) >> 58), a, b, j, k; /* 0..63 */

    if (kind < 36 && s->D > 1) {
        a = kind < 18 ? ddp__anneal_slowest(s) : ddp__anneal_below(s, s->N);
        b = ddp__anneal_below(s, s->N - s->D);
        if (b >= s->stage[a] * s->D) b += s->D;
        return ddp__anneal_exchange(s, a, b);
    }
    j = ddp__anneal_below(s, s->S);
    k = ddp__anneal_below(s, s->S - 1);
    if (k >= j) k++;
    if (kind < 42 || s->D == 1) {
        a = ddp__anneal_below(s, s->D);
        if (s->D == 1 && kind >= 32) return ddp__anneal_reverse(s, j < k ? j : k, j < k ? k : j);
        return ddp__anneal_exchange(s, j * s->D + a, k * s->D + a);
    }
    if (kind < 60) {
        if (kind < 50)
            k = j;
        else if (kind < 56)
            k = s->S - 1;
        a = ddp__anneal_below(s, s->D);
        b = ddp__anneal_below(s, s->D - 1);
        if (b >= a) b++;
        return ddp__anneal_cross(s, a, b, j < k ? j : k, j < k ? k : j);
    }
    return ddp__anneal_reverse(s, j < k ? j : k, j < k ? k : j);
}

/* Cools from heat `hot` to `cold` within `moves` moves and `seconds` seconds, whichever ends first,
 * starting from s->at. The best arrangement is left in s->best and offered. */
static void ddp__anneal_run(ddp__anneal *s, double hot, double cold, long moves, double seconds)
{
    static const double ratio = 0x1.ea4afa2a490dap-1; /* 2^(-1/16) */
    ddp__place *p = s->p;
    double begin = ddp__place_clock(p), now = begin, spent;
    long done = 0, k, chunk;
    int levels = 0, level = 0;
    double h;

    for (h = hot; h > cold; h *= ratio) levels++;
    s->heat = hot;
    ddp__anneal_rebuild(s);
    s->best_cost = s->top + s->hops;
    s->improved = 1;
    memcpy(s->best, s->at, (size_t)s->N * sizeof(int));
    while (done < moves && !p->stop && p->candidates < p->limit) {
        chunk = moves - done < DDP__ANNEAL_CHUNK ? moves - done : DDP__ANNEAL_CHUNK;
        if (chunk > p->limit - p->candidates) chunk = p->limit - p->candidates;
        for (k = 0; k < chunk; k++) {
            if (!ddp__anneal_move(s) || !(s->top + s->hops < s->best_cost)) continue;
            s->best_cost = s->top + s->hops;
            s->improved = 1;
            memcpy(s->best, s->at, (size_t)s->N * sizeof(int));
        }
        done += chunk;
        p->candidates += chunk;
        if (s->improved && s->best_cost < ldexp(p->cost, -s->unit) * (1 + 1e-6))
            ddp__place_offer(p, s->best, ddp__place_flat(p, s->best, NULL, NULL));
        s->improved = 0;
        spent = (double)done / (double)moves;
        if (p->limit_s < DBL_MAX || p->o->progress) {
            now = ddp__place_clock(p);
            if (seconds < DBL_MAX && (now - begin) / seconds > spent) spent = (now - begin) / seconds;
        }
        for (; level < (int)(spent * levels); level++) s->heat *= ratio;
        if (spent >= 1) break;
    }
}

static int ddp__anneal_open(ddp__anneal *s, ddp__place *p)
{
    size_t N = (size_t)p->N, D = (size_t)p->D, S = (size_t)p->S, k;
    double most = 0;

    memset(s, 0, sizeof *s);
    s->p = p;
    s->N = p->N;
    s->D = p->D;
    s->S = p->S;
    s->dp = (float *)ddp__scratch_take(&p->room, N * N, sizeof(float));
    s->pp = (float *)ddp__scratch_take(&p->room, N * N, sizeof(float));
    s->edge = (float *)ddp__scratch_take(&p->room, N, sizeof(float));
    s->load = ddp__doubles(&p->room, N);
    s->fresh = ddp__doubles(&p->room, 2 * D);
    s->data = ddp__doubles(&p->room, S);
    s->most = ddp__doubles(&p->room, S);
    s->sum = ddp__doubles(&p->room, S);
    s->at = ddp__ints(&p->room, N);
    s->best = ddp__ints(&p->room, N);
    s->stage = ddp__ints(&p->room, N);
    s->spare = ddp__ints(&p->room, D);
    s->table = ddp__doubles(&p->room, DDP__ANNEAL_TABLE);
    if (ddp__scratch_failed(&p->room)) return 0;
    for (k = 0; k < N * N; k++) {
        if (p->dp[k] > most) most = p->dp[k];
        if (p->pp[k] > most) most = p->pp[k];
    }
    (void)frexp(most, &s->unit); /* a power of two does not change the search. The largest value is then 0.5
                                    to 1 */
    for (k = 0; k < N * N; k++) {
        s->dp[k] = (float)ldexp(p->dp[k], -s->unit);
        s->pp[k] = (float)ldexp(p->pp[k], -s->unit);
    }
    for (k = 0; k < N; k++) s->stage[k] = (int)(k / D);
    for (int i = 0; i < DDP__ANNEAL_TABLE; i++)
        s->table[i] = 16 / sqrt(sqrt(sqrt(sqrt((i + 0.5) / DDP__ANNEAL_TABLE)))) - 16;
    return 1;
}

/* With more than LARGE devices, no budget is long enough to change the structure of a placement. So the
 * best start is refined, at a heat that suits the smaller share of one device in the cost. */
#define DDP__ANNEAL_STARTS 4
#define DDP__ANNEAL_LARGE  256

/* One run within a share of the limits. Heats are fractions of the best cost so far. The result is then
 * matched and ordered exactly. */
static void ddp__anneal_phase(ddp__anneal *s, double mu, double hot, double cold, double share)
{
    ddp__place *p = s->p;
    double moves = p->limit < LONG_MAX ? share * (double)p->limit : 1e15;
    double scale = s->N > DDP__ANNEAL_LARGE ? 64.0 * 64 / s->N / s->N : 1, cost;
    if (p->stop || ddp__scratch_failed(&p->room) || p->candidates >= p->limit) return;
    s->lam = 0x1p-4;
    s->nu = 0x1p-3;
    s->mu = s->N > DDP__ANNEAL_LARGE ? mu / 4 : mu;
    scale *= ldexp(p->cost, -s->unit);
    hot *= scale;
    cold *= scale;
    ddp__anneal_run(s, hot, cold, (long)moves + 1, share * p->limit_s);
    cost = ddp__place_evaluate(p, s->best, DBL_MAX);
    ddp__place_offer(p, p->line, cost);
}

/* Runs the search of DDP_PLACE_KL from this seed for two fifths of the limits. If its result is near the
 * best, it continues to 85 % of the limits. Because its steps are cheaper, it then visits more candidates
 * than DDP_PLACE_KL does in the whole time. */
static void ddp__anneal_cycles(ddp__place *p)
{
    const ddp_rng rng = p->rng;
    const ddp__place_limit whole = {p->limit_s, p->limit};
    const double now = p->limit_s < DBL_MAX ? ddp__place_clock(p) : 0, spent = (double)p->candidates;
    ddp__place_limit more = whole;
    if (p->stop || ddp__scratch_failed(&p->room)) return;
    p->rng = ddp_rng_seed(p->o->seed, 0);
    p->limit_s = fmin(whole.seconds, now + 0.4 * whole.seconds);
    more.seconds = fmin(whole.seconds, now + 0.85 * whole.seconds);
    if (whole.candidates < LONG_MAX) {
        p->limit = (long)fmin((double)whole.candidates, spent + 0.4 * (double)whole.candidates);
        more.candidates = (long)fmin((double)whole.candidates, spent + 0.85 * (double)whole.candidates);
    }
    ddp__place_genetic(p, DDP_PLACE_KL, &more);
    p->limit_s = whole.seconds;
    p->limit = whole.candidates;
    p->rng = rng;
    if (p->stop == 1) p->stop = 0;
}

/* With more than LARGE devices, annealing refines the best start for a tenth of the limits and descent
 * uses the rest. Otherwise short runs from each start show which structure of the network is good (from
 * cold random starts, a run mostly freezes in a worse one). If no structure is good, the cyclic moves of kl
 * find more. The remaining budget anneals the best arrangement at low heat, in up to two runs. */
void ddp__place_anneal(ddp__place *p)
{
    size_t N = (size_t)p->N;
    double cost[DDP__ANNEAL_STARTS];
    int *kept, k, n;
    ddp__anneal s;

    kept = ddp__ints(&p->room, DDP__ANNEAL_STARTS * N);
    if (!ddp__anneal_open(&s, p)) return;
    n = ddp__place_starts(p, DDP__ANNEAL_STARTS, kept, cost);
    for (k = 0; k < n && p->N <= DDP__ANNEAL_LARGE; k++) {
        memcpy(s.at, kept + (size_t)k * N, N * sizeof(int));
        ddp__anneal_phase(&s, 0x1p-2, 0.01, 2e-4, 0.02);
    }
    if (p->N <= DDP__ANNEAL_LARGE) {
        ddp__shuffle(s.at, p->N, &p->rng);
        ddp__anneal_phase(&s, 0x1p-2, 0.05, 2e-4, 0.02);
    }
    if (p->N <= DDP__ANNEAL_LARGE) ddp__anneal_cycles(p);
    for (k = 0; k < (p->N <= DDP__ANNEAL_LARGE ? 2 : 1); k++) {
        memcpy(s.at, p->best, N * sizeof(int));
        ddp__anneal_phase(&s, 0x1p-3, 0.004, 5e-4, p->N <= DDP__ANNEAL_LARGE ? 0.25 : 0.1);
    }
    if (p->N > DDP__ANNEAL_LARGE && !p->stop) ddp__place_descend(p);
}
