/* Random moves on a flat arrangement: trial, acceptance, and the sums of the cost. */
#include "plan/order.h"
#include "plan/place/place_moves.h"

struct ddp__moves_trial {
    int count;           /* positions with another device, each in its own stage */
    int *pos, *was;      /* [S] position, its device before */
    double *data;        /* [S] DP_j of each changed stage */
    int *worst;          /* [S] */
    int edges, *edge_at; /* [2 S] edges that change */
    float *edge_was;
    int hops, *hop_at; /* [2 S] hops that change */
    double *most_was, *next_was, *sum_was;
};

static int ddp__moves_below(ddp__moves *s, int n)
{
    return (int)((ddp_rng_u64(&s->p->rng) >> 32) * (uint64_t)n >> 32);
}

/* The cost increase that Metropolis acceptance with 1/(1 + x/16)^16 in place of exp(-x) allows. */
static double ddp__moves_limit(ddp__moves *s) { return s->heat * s->table[ddp_rng_u64(&s->p->rng) >> 54]; }

static float ddp__moves_pair(const ddp__moves *s, int x, int y)
{
    return s->pp[(size_t)x * (size_t)s->N + (size_t)y];
}

double ddp__moves_cost(const ddp__moves *s)
{
    return s->top + s->hops + (s->lam * s->all + s->nu * s->loads + s->mu * s->sums);
}

static void ddp__moves_rebuild_stage(ddp__moves *s, int j)
{
    const size_t N = (size_t)s->N;
    const int *stage = s->at + (size_t)j * (size_t)s->D;
    double *toward = s->toward + (size_t)j * N;
    s->data[j] = -1;
    for (size_t v = 0; v < N; v++) {
        toward[v] = 0;
        for (int a = 0; a < s->D; a++) toward[v] += (double)s->dp[v * N + (size_t)stage[a]];
    }
    for (int a = 0; a < s->D; a++) {
        const double load = toward[stage[a]];
        s->loads += load / 2;
        if (!(load > s->data[j])) continue;
        s->data[j] = load;
        s->worst[j] = stage[a];
    }
}

/* Computes the two largest edges of a hop. */
static void ddp__moves_largest(ddp__moves *s, int j)
{
    const float *edge = s->edge + (size_t)j * (size_t)s->D;
    float most = 0, next = 0;
    for (int i = 0; i < s->D; i++) {
        const float w = edge[i];
        next = w > most ? most : w > next ? w : next;
        most = w > most ? w : most;
    }
    s->most[j] = (double)most;
    s->next[j] = (double)next;
}

void ddp__moves_rebuild(ddp__moves *s)
{
    s->top = s->all = s->hops = s->sums = s->loads = 0;
    for (int j = 0; j < s->S; j++) {
        const int *stage = s->at + (size_t)j * (size_t)s->D;
        ddp__moves_rebuild_stage(s, j);
        s->sum[j] = 0;
        for (int a = 0; a < s->D && j + 1 < s->S; a++) {
            s->edge[j * s->D + a] = ddp__moves_pair(s, stage[a], stage[a + s->D]);
            s->sum[j] += (double)s->edge[j * s->D + a];
        }
        ddp__moves_largest(s, j);
        s->all += s->data[j];
        s->hops += s->most[j];
        s->sums += s->sum[j];
        if (s->data[j] > s->top) s->top = s->data[j];
    }
}

/* ---- trial of edges ---- */

/* Sets the edge at a position to w and saves the old value for ddp__moves_undo. */
static void ddp__moves_edge(ddp__moves *s, int at, float w)
{
    struct ddp__moves_trial *t = s->trial;
    const int j = s->stage[at];
    int k;
    for (k = 0; k < t->edges; k++)
        if (t->edge_at[k] == at) return;
    t->edge_at[t->edges] = at;
    t->edge_was[t->edges++] = s->edge[at];
    for (k = 0; k < t->hops && t->hop_at[k] != j; k++) {
    }
    if (k == t->hops) {
        t->hop_at[k] = j;
        t->most_was[k] = s->most[j];
        t->next_was[k] = s->next[j];
        t->sum_was[k] = s->sum[j];
        t->hops++;
    }
    s->sum[j] += (double)w - (double)s->edge[at];
    s->edge[at] = w;
}

/* Sets both edges of the device at a position, from s->at. */
static void ddp__moves_edges(ddp__moves *s, int a)
{
    if (a >= s->D) ddp__moves_edge(s, a - s->D, ddp__moves_pair(s, s->at[a - s->D], s->at[a]));
    if (a + s->D < s->N) ddp__moves_edge(s, a, ddp__moves_pair(s, s->at[a], s->at[a + s->D]));
}

/* How much the hops on trial grow: their maxima and their sums. */
static void ddp__moves_growth(ddp__moves *s, double *maxima, double *sums)
{
    const struct ddp__moves_trial *t = s->trial;
    *maxima = *sums = 0;
    for (int k = 0; k < t->hops; k++) {
        ddp__moves_largest(s, t->hop_at[k]);
        *maxima += s->most[t->hop_at[k]] - t->most_was[k];
        *sums += s->sum[t->hop_at[k]] - t->sum_was[k];
    }
}

static void ddp__moves_undo(ddp__moves *s)
{
    const struct ddp__moves_trial *t = s->trial;
    for (int k = 0; k < t->edges; k++) s->edge[t->edge_at[k]] = t->edge_was[k];
    for (int k = 0; k < t->hops; k++) {
        s->most[t->hop_at[k]] = t->most_was[k];
        s->next[t->hop_at[k]] = t->next_was[k];
        s->sum[t->hop_at[k]] = t->sum_was[k];
    }
}

/* ---- moves that change stages ---- */

/* DP_j with device y in place of x. *worst receives the device that attains it. */
static double ddp__moves_data(const ddp__moves *s, int pos, int x, int *worst)
{
    const size_t N = (size_t)s->N;
    const int j = s->stage[pos], y = s->at[pos];
    const int *stage = s->at + (size_t)j * (size_t)s->D;
    const float *rx = s->dp + (size_t)x * N, *ry = s->dp + (size_t)y * N;
    const double *toward = s->toward + (size_t)j * N;
    double most = -1;
    for (int i = 0; i < s->D; i++) {
        const int m = stage[i];
        const double load = m == y ? toward[y] - (double)ry[x] : toward[m] + ((double)ry[m] - (double)rx[m]);
        if (!(load > most)) continue;
        most = load;
        *worst = m;
    }
    return most;
}

/* The largest averaging time of all stages with the values on trial. */
static double ddp__moves_top(const ddp__moves *s)
{
    const struct ddp__moves_trial *t = s->trial;
    double top = 0;
    int held = 0;
    for (int c = 0; c < t->count; c++) {
        if (t->data[c] > top) top = t->data[c];
        held |= s->data[s->stage[t->pos[c]]] >= s->top;
    }
    if (!held) return top > s->top ? top : s->top;
    for (int m = 0; m < s->S; m++) {
        int c = 0;
        if (!(s->data[m] > top)) continue;
        while (c < t->count && s->stage[t->pos[c]] != m) c++;
        if (c == t->count) top = s->data[m];
    }
    return top;
}

static void ddp__moves_apply(ddp__moves *s)
{
    const struct ddp__moves_trial *t = s->trial;
    const size_t N = (size_t)s->N;
    for (int c = 0; c < t->count; c++) {
        const int j = s->stage[t->pos[c]];
        const float *rx = s->dp + (size_t)t->was[c] * N, *ry = s->dp + (size_t)s->at[t->pos[c]] * N;
        double *toward = s->toward + (size_t)j * N;
        for (size_t v = 0; v < N; v++) toward[v] += (double)ry[v] - (double)rx[v];
        s->data[j] = t->data[c];
        s->worst[j] = t->worst[c];
    }
}

/* Decides about the devices on trial, which are already in s->at. A lower bound rejects most of them before
 * the averaging of the changed stages is computed. */
static int ddp__moves_decide(ddp__moves *s, double limit)
{
    struct ddp__moves_trial *t = s->trial;
    const size_t N = (size_t)s->N;
    double maxima, sums, loads = 0, change = 0, top = 0, fixed, worse;
    int c, held = 0;

    t->edges = t->hops = 0;
    for (c = 0; c < t->count; c++) ddp__moves_edges(s, t->pos[c]);
    ddp__moves_growth(s, &maxima, &sums);
    for (c = 0; c < t->count; c++) {
        const int j = s->stage[t->pos[c]], x = t->was[c], y = s->at[t->pos[c]], w = s->worst[j];
        const double *toward = s->toward + (size_t)j * N;
        const float *rw = s->dp + (size_t)w * N;
        const double own = toward[y] - (double)s->dp[(size_t)y * N + (size_t)x];
        double low = w == x ? own : s->data[j] + ((double)rw[y] - (double)rw[x]);
        if (own > low) low = own;
        loads += own - toward[x];
        change += low - s->data[j];
        if (low > top) top = low;
        held |= s->data[j] >= s->top;
    }
    fixed = maxima + (s->mu * sums + s->nu * loads);
    if (!held && top < s->top) top = s->top;
    if (fixed + (top - s->top + s->lam * change) <= limit) {
        change = 0;
        for (c = 0; c < t->count; c++) {
            t->data[c] = ddp__moves_data(s, t->pos[c], t->was[c], &t->worst[c]);
            change += t->data[c] - s->data[s->stage[t->pos[c]]];
        }
        top = ddp__moves_top(s);
        worse = fixed + (top - s->top + s->lam * change);
        if (worse <= 0 || worse < limit) {
            ddp__moves_apply(s);
            s->top = top;
            s->all += change;
            s->loads += loads;
            s->hops += maxima;
            s->sums += sums;
            return 1;
        }
    }
    ddp__moves_undo(s);
    for (c = 0; c < t->count; c++) s->at[t->pos[c]] = t->was[c];
    return 0;
}

/* ---- lower bounds: a fraction of the time of a full trial, and they change nothing ---- */

/* How much hop j grows in its maximum if one edge changes from `old` to w. */
static double ddp__moves_grows(const ddp__moves *s, int j, float old, float w)
{
    const double rest = (double)old >= s->most[j] ? s->next[j] : s->most[j];
    return ((double)w > rest ? (double)w : rest) - s->most[j];
}

/* The least that hop j grows in its maximum if two edges change. */
static double ddp__moves_grows_two(const ddp__moves *s, int j, const float *old, const float *w)
{
    const int one = (double)old[0] >= s->next[j], two = (double)old[1] >= s->next[j];
    const double now = (double)(w[0] > w[1] ? w[0] : w[1]);
    double rest = s->most[j];
    if ((double)old[0] >= rest || (double)old[1] >= rest) rest = one && two ? 0 : s->next[j];
    return (now > rest ? now : rest) - s->most[j];
}

/* A lower bound on DP_j with device y in place of x. */
static double ddp__moves_least(const ddp__moves *s, int j, int x, int y, double own)
{
    const int w = s->worst[j];
    const float *row = s->dp + (size_t)w * (size_t)s->N;
    double low;
    if (w == x) return own;
    low = s->data[j] + ((double)row[y] - (double)row[x]);
    return low > own ? low : own;
}

/* Adds the growth of the hops of position a with device y to the maxima and the sums, except for the hop
 * `both`, which a second change affects too. */
static void ddp__moves_hops(const ddp__moves *s, int a, int y, int both, double *maxima, double *sums)
{
    const float *row = s->pp + (size_t)y * (size_t)s->N;
    const int D = s->D, j = s->stage[a];
    if (j > 0 && j - 1 != both) {
        const float w = row[s->at[a - D]], old = s->edge[a - D];
        *maxima += ddp__moves_grows(s, j - 1, old, w);
        *sums += (double)w - (double)old;
    }
    if (j + 1 < s->S && j != both) {
        const float w = row[s->at[a + D]], old = s->edge[a];
        *maxima += ddp__moves_grows(s, j, old, w);
        *sums += (double)w - (double)old;
    }
}

/* Returns 1 if an exchange of the positions a and b of different stages costs more than the limit. */
static int ddp__moves_hopeless(const ddp__moves *s, int a, int b, double limit)
{
    const size_t N = (size_t)s->N;
    const int D = s->D, j = s->stage[a], k = s->stage[b], x = s->at[a], y = s->at[b];
    const double *tj = s->toward + (size_t)j * N, *tk = s->toward + (size_t)k * N;
    const double each = (double)s->dp[(size_t)x * N + (size_t)y], oy = tj[y] - each, ox = tk[x] - each;
    const double dj = ddp__moves_least(s, j, x, y, oy), dk = ddp__moves_least(s, k, y, x, ox);
    const int both = k == j + 1 ? j : j == k + 1 ? k : -1; /* the hop between the two stages */
    double maxima = 0, sums = 0, top = dj > dk ? dj : dk;

    ddp__moves_hops(s, a, y, both, &maxima, &sums);
    ddp__moves_hops(s, b, x, both, &maxima, &sums);
    if (both >= 0 && a - b != D && b - a != D) {
        const int near = j < k ? a : b, far = j < k ? b : a; /* at the ends of the hop */
        const float old[2] = {s->edge[near], s->edge[far - D]};
        const float w[2] = {ddp__moves_pair(s, s->at[far], s->at[near + D]),
                            ddp__moves_pair(s, s->at[far - D], s->at[near])};
        maxima += ddp__moves_grows_two(s, both, old, w);
        sums += (double)w[0] - (double)old[0] + ((double)w[1] - (double)old[1]);
    }
    if (s->data[j] < s->top && s->data[k] < s->top && top < s->top) top = s->top;
    return maxima + (s->mu * sums + s->nu * (oy - tj[x] + (ox - tk[y]))) +
               (top - s->top + s->lam * (dj - s->data[j] + (dk - s->data[k]))) >
           limit;
}

/* Exchanges the devices of two positions in different stages. */
static int ddp__moves_exchange(ddp__moves *s, int a, int b)
{
    struct ddp__moves_trial *t = s->trial;
    const double limit = ddp__moves_limit(s);
    if (ddp__moves_hopeless(s, a, b, limit)) return 0;
    t->count = 2;
    t->pos[0] = a;
    t->pos[1] = b;
    t->was[0] = s->at[a];
    t->was[1] = s->at[b];
    ddp__swap(s->at, a, b);
    return ddp__moves_decide(s, limit);
}

/* Rotates the devices of pipeline i in the stages j..k: each moves to the next stage, or to the previous one
 * if `back`, and the last one to the other end. */
static int ddp__moves_rotate(ddp__moves *s, int i, int j, int k, int back)
{
    struct ddp__moves_trial *t = s->trial;
    const int n = k - j + 1;
    t->count = n;
    for (int c = 0; c < n; c++) {
        t->pos[c] = (j + c) * s->D + i;
        t->was[c] = s->at[t->pos[c]];
    }
    for (int c = 0; c < n; c++) s->at[t->pos[c]] = t->was[(c + (back ? 1 : n - 1)) % n];
    return ddp__moves_decide(s, ddp__moves_limit(s));
}

/* ---- moves that keep stages ---- */

/* The new edges of the pipelines i and l of the hop at a position if they exchange all stages after it. Adds
 * a lower bound on its growth to the maxima, and its growth to the sums. */
static void ddp__moves_crossing(const ddp__moves *s, int hop, int i, int l, float (*w)[2], double *maxima,
                                double *sums)
{
    const int *here = s->at + hop, *there = here + s->D;
    const float old[2] = {s->edge[hop + i], s->edge[hop + l]};
    (*w)[0] = ddp__moves_pair(s, here[i], there[l]);
    (*w)[1] = ddp__moves_pair(s, here[l], there[i]);
    *maxima += ddp__moves_grows_two(s, s->stage[hop], old, *w);
    *sums += (double)(*w)[0] - (double)old[0] + ((double)(*w)[1] - (double)old[1]);
}

/* Exchanges stages j..k of the pipelines i and l. Every stage retains its devices. */
static int ddp__moves_cross(ddp__moves *s, int i, int l, int j, int k)
{
    const int D = s->D, first = j * D, last = k * D;
    const double limit = ddp__moves_limit(s);
    double maxima = 0, sums = 0, worse;
    float hop[2][2];

    if (j > 0) ddp__moves_crossing(s, first - D, i, l, &hop[0], &maxima, &sums);
    if (k + 1 < s->S) ddp__moves_crossing(s, last, i, l, &hop[1], &maxima, &sums);
    if (maxima + s->mu * sums > limit) return 0;
    s->trial->edges = s->trial->hops = 0;
    for (int h = 0; h < 2; h++) {
        if (h ? k + 1 == s->S : j == 0) continue;
        ddp__moves_edge(s, (h ? last : first - D) + i, hop[h][h]);
        ddp__moves_edge(s, (h ? last : first - D) + l, hop[h][1 - h]);
    }
    ddp__moves_growth(s, &maxima, &sums);
    worse = maxima + s->mu * sums;
    if (!(worse <= 0 || worse < limit)) {
        ddp__moves_undo(s);
        return 0;
    }
    for (int m = first; m <= last; m += D) {
        ddp__swap(s->at, m + i, m + l);
        if (m < last) {
            float t = s->edge[m + i];
            s->edge[m + i] = s->edge[m + l];
            s->edge[m + l] = t;
        }
    }
    s->hops += maxima;
    s->sums += sums;
    return 1;
}

/* The maximum and the sum of the hop between row j and row k, if they were neighbours. */
static double ddp__moves_between(const ddp__moves *s, int j, int k, double *sum)
{
    const int *here = s->at + (size_t)j * (size_t)s->D, *there = s->at + (size_t)k * (size_t)s->D;
    double most = 0, w;
    for (int i = 0; i < s->D; i++) {
        w = (double)ddp__moves_pair(s, here[i], there[i]);
        *sum += w;
        if (w > most) most = w;
    }
    return most;
}

/* Reverses the order of the stages j..k. */
static int ddp__moves_reverse(ddp__moves *s, int j, int k)
{
    const size_t bytes = (size_t)s->D * sizeof(int);
    const double limit = ddp__moves_limit(s);
    double most = 0, sum = 0, worse;
    if (j > 0) {
        most += ddp__moves_between(s, j - 1, k, &sum) - s->most[j - 1];
        sum -= s->sum[j - 1];
    }
    if (k + 1 < s->S) {
        most += ddp__moves_between(s, j, k + 1, &sum) - s->most[k];
        sum -= s->sum[k];
    }
    worse = most + s->mu * sum;
    if (!(worse <= 0 || worse < limit)) return 0;
    for (; j < k; j++, k--) {
        int *one = s->at + (size_t)j * (size_t)s->D, *two = s->at + (size_t)k * (size_t)s->D;
        memcpy(s->spare, one, bytes);
        memcpy(one, two, bytes);
        memcpy(two, s->spare, bytes);
    }
    ddp__moves_rebuild(s);
    return 1;
}

/* ---- choice of moves ---- */

/* Returns the position of a device at an end of the slowest edge of a random hop. */
static int ddp__moves_slowest(ddp__moves *s)
{
    const int j = ddp__moves_below(s, s->S - 1);
    const float *edge = s->edge + (size_t)j * (size_t)s->D;
    int i = 0;
    while (i + 1 < s->D && (double)edge[i] < s->most[j]) i++;
    return (j + ddp__moves_below(s, 2)) * s->D + i;
}

/* Returns the position of the device that averages for the longest time, in a random stage. */
static int ddp__moves_busiest(ddp__moves *s)
{
    const int j = ddp__moves_below(s, s->S);
    const int *stage = s->at + (size_t)j * (size_t)s->D;
    int i = 0;
    while (i + 1 < s->D && stage[i] != s->worst[j]) i++;
    return j * s->D + i;
}

int ddp__moves_try(ddp__moves *s)
{
    const int kind = (int)(ddp_rng_u64(&s->p->rng) >> 58); /* 0..63 */
    int a, b, j, k;

    if (kind < 36 && s->D > 1) {
        a = kind < 14 ? ddp__moves_slowest(s) : kind < 18 ? ddp__moves_busiest(s) : ddp__moves_below(s, s->N);
        b = ddp__moves_below(s, s->N - s->D);
        if (b >= s->stage[a] * s->D) b += s->D;
        return ddp__moves_exchange(s, a, b);
    }
    j = ddp__moves_below(s, s->S);
    k = ddp__moves_below(s, s->S - 1);
    if (k >= j) k++;
    if (kind < 41 || s->D == 1) {
        a = ddp__moves_below(s, s->D);
        if (s->D == 1 && kind >= 32) return ddp__moves_reverse(s, j < k ? j : k, j < k ? k : j);
        return ddp__moves_exchange(s, j * s->D + a, k * s->D + a);
    }
    if (kind < 44)
        return ddp__moves_rotate(s, ddp__moves_below(s, s->D), j < k ? j : k, j < k ? k : j, kind & 1);
    if (kind < 61) {
        if (kind < 51)
            k = j;
        else if (kind < 57)
            k = s->S - 1;
        a = ddp__moves_below(s, s->D);
        b = ddp__moves_below(s, s->D - 1);
        if (b >= a) b++;
        return ddp__moves_cross(s, a, b, j < k ? j : k, j < k ? k : j);
    }
    return ddp__moves_reverse(s, j < k ? j : k, j < k ? k : j);
}

void ddp__moves_run(ddp__moves *s, long moves)
{
    const size_t bytes = (size_t)s->N * sizeof(int);
    s->best_cost = s->top + s->hops;
    memcpy(s->best, s->at, bytes);
    for (; moves > 0; moves--) {
        if (!ddp__moves_try(s) || !(s->top + s->hops < s->best_cost)) continue;
        s->best_cost = s->top + s->hops;
        memcpy(s->best, s->at, bytes);
    }
}

/* ---- memory ---- */

int ddp__moves_share(ddp__moves *s, const ddp__moves *from)
{
    ddp__scratch *room = &from->p->room;
    const size_t N = (size_t)from->N, D = (size_t)from->D, S = (size_t)from->S;
    struct ddp__moves_trial *t;
    *s = *from;
    s->at = ddp__ints(room, N);
    s->best = ddp__ints(room, N);
    s->edge = (float *)ddp__scratch_take(room, N, sizeof(float));
    s->most = ddp__doubles(room, S);
    s->next = ddp__doubles(room, S);
    s->sum = ddp__doubles(room, S);
    s->toward = ddp__doubles(room, S * N);
    s->data = ddp__doubles(room, S);
    s->worst = ddp__ints(room, S);
    s->spare = ddp__ints(room, D);
    t = s->trial = (struct ddp__moves_trial *)ddp__scratch_take(room, 1, sizeof *t);
    if (ddp__scratch_failed(room)) return 0;
    t->pos = ddp__ints(room, S);
    t->was = ddp__ints(room, S);
    t->data = ddp__doubles(room, S);
    t->worst = ddp__ints(room, S);
    t->edge_at = ddp__ints(room, 2 * S);
    t->edge_was = (float *)ddp__scratch_take(room, 2 * S, sizeof(float));
    t->hop_at = ddp__ints(room, 2 * S);
    t->most_was = ddp__doubles(room, 2 * S);
    t->next_was = ddp__doubles(room, 2 * S);
    t->sum_was = ddp__doubles(room, 2 * S);
    return !ddp__scratch_failed(room);
}

int ddp__moves_open(ddp__moves *s, ddp__place *p)
{
    const size_t N = (size_t)p->N, D = (size_t)p->D;
    double most = 0;

    memset(s, 0, sizeof *s);
    s->p = p;
    s->N = p->N;
    s->D = p->D;
    s->S = p->S;
    s->lam = 0x1p-4;
    s->mu = s->nu = 0x1p-3;
    s->dp = (float *)ddp__scratch_take(&p->room, N * N, sizeof(float));
    s->pp = (float *)ddp__scratch_take(&p->room, N * N, sizeof(float));
    s->stage = ddp__ints(&p->room, N);
    s->table = ddp__doubles(&p->room, DDP__MOVES_TABLE);
    if (ddp__scratch_failed(&p->room)) return 0;
    for (size_t k = 0; k < N * N; k++) {
        if (p->dp[k] > most) most = p->dp[k];
        if (p->pp[k] > most) most = p->pp[k];
    }
    (void)frexp(most, &s->unit); /* a power of two does not change the search. The largest value is then 0.5
                                    to 1 */
    for (size_t k = 0; k < N * N; k++) {
        s->dp[k] = (float)ldexp(p->dp[k], -s->unit);
        s->pp[k] = (float)ldexp(p->pp[k], -s->unit);
    }
    for (size_t k = 0; k < N; k++) s->stage[k] = (int)(k / D);
    for (int i = 0; i < DDP__MOVES_TABLE; i++)
        s->table[i] = 16 / sqrt(sqrt(sqrt(sqrt((i + 0.5) / DDP__MOVES_TABLE)))) - 16;
    return ddp__moves_share(s, s);
}
