/* Shared code of all placement searches: exact evaluation, limits, the best arrangement so far, and start
 * arrangements. */
#include "plan/place/place_core.h"
#include "plan/tour_internal.h"

double ddp__place_averaging(const ddp__place *p, const int *at, int j)
{
    const int *stage = at + (size_t)j * (size_t)p->D;
    double most = 0, sum;
    for (int a = 0; a < p->D; a++) {
        const double *row = p->dp + (size_t)stage[a] * (size_t)p->N;
        sum = 0;
        for (int b = 0; b < p->D; b++) sum += row[stage[b]];
        if (sum > most) most = sum;
    }
    return most;
}

double ddp__place_flat(const ddp__place *p, const int *at, double *datap, double *hops)
{
    double data = 0, sum = 0;
    for (int j = 0; j < p->S; j++) data = fmax(data, ddp__place_averaging(p, at, j));
    for (int j = 0; j + 1 < p->S; j++) {
        const int *here = at + (size_t)j * (size_t)p->D, *there = here + p->D;
        double most = 0;
        for (int i = 0; i < p->D; i++) {
            double w = p->pp[(size_t)here[i] * (size_t)p->N + (size_t)there[i]];
            if (w > most) most = w;
        }
        sum += most;
    }
    if (datap) *datap = data;
    if (hops) *hops = sum;
    return data + sum;
}

double ddp__place_match(ddp__place *p, const int *here, const int *there, int *mate)
{
    size_t D = (size_t)p->D;
    for (size_t a = 0; a < D; a++) {
        const double *row = p->pp + (size_t)here[a] * (size_t)p->N;
        for (size_t b = 0; b < D; b++) p->weight[a * D + b] = row[there[b]];
    }
    return mate ? ddp__matching_solve(&p->matching, p->weight, mate) : ddp__matching_bound(p->D, p->weight);
}

/* Computes the hop values of every pair of stages into p->hop, and the partners into p->mate. Without
 * `exact`, only lower bounds of the values. Returns 0 if the search is late. */
static int ddp__place_match_all(ddp__place *p, const int *at, int exact)
{
    size_t D = (size_t)p->D, S = (size_t)p->S;
    for (size_t j = 0; j < S; j++) {
        for (size_t k = j + 1; k < S; k++) {
            int *mate = p->mate + (j * S + k) * D, *back = p->mate + (k * S + j) * D;
            p->hop[j * S + k] = p->hop[k * S + j] =
                ddp__place_match(p, at + j * D, at + k * D, exact ? mate : NULL);
            for (size_t a = 0; exact && a < D; a++) back[mate[a]] = (int)a;
        }
        if (p->cost < DBL_MAX && ddp__place_late(p)) return 0;
    }
    return 1;
}

static int ddp__place_over(void *search) { return ddp__place_late((ddp__place *)search); }

/* A lower bound on the path through all stages: the weight of a minimum spanning tree (Prim). p->order and
 * p->reach are scratch. */
static double ddp__place_span(ddp__place *p)
{
    size_t S = (size_t)p->S, at = 0, next, k, j;
    double sum = 0;
    memset(p->order, 0, S * sizeof(int));
    for (j = 0; j < S; j++) p->reach[j] = DBL_MAX;
    for (k = 1; k < S; k++, at = next) {
        p->order[at] = 1;
        for (j = 0, next = at; j < S; j++) {
            if (p->order[j]) continue;
            p->reach[j] = fmin(p->reach[j], p->hop[at * S + j]);
            if (next == at || p->reach[j] < p->reach[next]) next = j;
        }
        sum += p->reach[next];
    }
    return sum;
}

double ddp__place_evaluate(ddp__place *p, const int *at, double enough)
{
    size_t D = (size_t)p->D, S = (size_t)p->S, k, i;
    double length = 0, data = 0;
    for (int j = 0; j < p->S && enough < DBL_MAX; j++) data = fmax(data, ddp__place_averaging(p, at, j));
    if (data >= enough) return DBL_MAX;
    for (int exact = !(enough < DBL_MAX); exact < 2; exact++) {
        if (!ddp__place_match_all(p, at, exact)) return DBL_MAX;
        if (enough < DBL_MAX && data + ddp__place_span(p) >= enough * (1 + 1e-9)) return DBL_MAX;
    }
    if (p->S <= DDP_TOUR_EXACT) {
        length = ddp__held_karp(p->S, p->hop, -1, -1, 0, p->tour, p->order);
    } else if (!ddp__tour_local(p->S, p->hop, -1, -1, ddp__place_over, p, p->order, &length)) {
        ddp__scratch_fail(&p->room);
        return DBL_MAX;
    }
    for (i = 0; i < D; i++) {
        size_t member = i;
        for (k = 0; k < S; k++) {
            size_t stage = (size_t)p->order[k];
            if (k) member = (size_t)p->mate[((size_t)p->order[k - 1] * S + stage) * D + member];
            p->line[k * D + i] = at[stage * D + member];
        }
    }
    return ddp__place_flat(p, p->line, NULL, NULL);
}

/* ---- limits, and the best arrangement so far ---- */

double ddp__place_clock(ddp__place *p)
{
    double now = ddp_now() - p->start;
    if (now >= p->limit_s && !p->stop) p->stop = 1;
    if (p->o->progress && p->stop < 2 && now - p->told >= 0.1 && p->cost < DBL_MAX) {
        p->told = now;
        if (p->o->progress(p->o->user, now, p->cost)) p->stop = 2;
    }
    return now;
}

int ddp__place_late(ddp__place *p)
{
    if (p->limit_s == DBL_MAX && !p->o->progress) return 0;
    return ddp__place_clock(p) > 1.1 * p->limit_s || p->stop == 2;
}

int ddp__place_next(ddp__place *p)
{
    if (p->stop || ddp__scratch_failed(&p->room) || p->candidates >= p->limit) return 0;
    if (p->limit_s < DBL_MAX || p->o->progress) ddp__place_clock(p);
    if (p->stop && p->cost < DBL_MAX) return 0;
    p->candidates++;
    return 1;
}

void ddp__place_offer(ddp__place *p, const int *at, double cost)
{
    double now;
    if (!(cost < p->cost)) return;
    now = ddp_now() - p->start;
    memcpy(p->best, at, (size_t)p->N * sizeof(int));
    p->cost = cost;
    if (!ddp__reserve(p->curve, stbds_arrlenu(p->curve) + 2)) {
        ddp__scratch_fail(&p->room);
        return;
    }
    stbds_arrput(p->curve, now);
    stbds_arrput(p->curve, cost);
    if (!p->o->progress || p->stop == 2) return;
    p->told = now;
    if (p->o->progress(p->o->user, now, cost)) p->stop = 2;
}

/* Start arrangements that follow the structure of the network.
 *
 * The line of devices is the order in which Prim's algorithm reaches them over the lightest hops, so well
 * connected devices are neighbours. Cutting the heaviest steps of the line gives clusters. From the line,
 * and from index order:
 *   pipelines inside clusters:  each run of S devices is a pipeline
 *   stages inside clusters:     each run of D devices is a stage
 *   packed:                     a cluster smaller than a pipeline gives one device to each of the first
 *                               free stages of a pipeline, largest clusters first; tried for the cuts with
 *                               the largest relative steps */

enum { DDP__STARTS_CUTS = 4 };

typedef struct ddp__starts {
    ddp__place *p;
    int *line;              /* [N] */
    double *step;           /* [N] weight of the hop over which line[k] was reached */
    double *sorted;         /* [N] */
    int *at, *fill, *chunk; /* [N], [D], [2 N] */
    int most, count, *kept;
    double *cost;
} ddp__starts;

static void ddp__starts_line(ddp__starts *s)
{
    const ddp__place *p = s->p;
    double *reach = s->sorted;
    int k, v, best, last = 0;
    for (v = 0; v < p->N; v++) {
        s->line[v] = v;
        reach[v] = DBL_MAX;
    }
    s->step[0] = DBL_MAX;
    for (k = 1; k < p->N; k++) {
        for (v = best = k; v < p->N; v++) {
            double w = p->pp[(size_t)last * (size_t)p->N + (size_t)s->line[v]];
            if (w < reach[s->line[v]]) reach[s->line[v]] = w;
            if (reach[s->line[v]] < reach[s->line[best]] ||
                (reach[s->line[v]] <= reach[s->line[best]] && s->line[v] < s->line[best]))
                best = v;
        }
        last = s->line[best];
        s->line[best] = s->line[k];
        s->line[k] = last;
        s->step[k] = reach[last];
    }
}

/* Evaluates s->at exactly and retains it if it is among the best. */
static void ddp__starts_keep(ddp__starts *s)
{
    ddp__place *p = s->p;
    size_t N = (size_t)p->N;
    double cost;
    int k;

    if (!ddp__place_next(p)) return;
    cost = ddp__place_evaluate(p, s->at, DBL_MAX);
    ddp__place_offer(p, p->line, cost);
    for (k = 0; k < s->count && s->cost[k] < cost; k++) {
    }
    if (k < s->count && !(cost < s->cost[k])) return; /* a duplicate */
    if (k == s->most) return;
    if (s->count < s->most) s->count++;
    memmove(s->kept + (size_t)(k + 1) * N, s->kept + (size_t)k * N,
            (size_t)(s->count - 1 - k) * N * sizeof(int));
    memmove(s->cost + k + 1, s->cost + k, (size_t)(s->count - 1 - k) * sizeof(double));
    memcpy(s->kept + (size_t)k * N, p->line, N * sizeof(int));
    s->cost[k] = cost;
}

static void ddp__starts_runs(ddp__starts *s, const int *line)
{
    const ddp__place *p = s->p;
    for (int k = 0; k < p->N; k++) s->at[k % p->S * p->D + k / p->S] = line ? line[k] : k;
    ddp__starts_keep(s);
    for (int k = 0; k < p->N; k++) s->at[k] = line ? line[k] : k;
    ddp__starts_keep(s);
}

static int ddp__starts_larger(const void *a, const void *b)
{
    const int *x = (const int *)a, *y = (const int *)b; /* begin, length */
    return x[1] != y[1] ? y[1] - x[1] : x[0] - y[0];
}

/* Adds devices to the pipeline with the fewest devices so far. */
static void ddp__starts_lay(ddp__starts *s, int begin, int length)
{
    const ddp__place *p = s->p;
    while (length > 0) {
        int i, best = 0;
        for (i = 1; i < p->D; i++)
            if (s->fill[i] < s->fill[best]) best = i;
        for (; length > 0 && s->fill[best] < p->S; length--)
            s->at[s->fill[best]++ * p->D + best] = s->line[begin++];
    }
}

static void ddp__starts_pack(ddp__starts *s, double cut)
{
    const ddp__place *p = s->p;
    int chunks = 0, k, begin = 0;
    for (k = 1; k <= p->N; k++) {
        if (k < p->N && !(s->step[k] > cut) && k - begin < p->S) continue;
        s->chunk[2 * chunks] = begin;
        s->chunk[2 * chunks++ + 1] = k - begin;
        begin = k;
    }
    qsort(s->chunk, (size_t)chunks, 2 * sizeof(int), ddp__starts_larger);
    memset(s->fill, 0, (size_t)p->D * sizeof(int));
    for (k = 0; k < chunks; k++) ddp__starts_lay(s, s->chunk[2 * k], s->chunk[2 * k + 1]);
    ddp__starts_keep(s);
}

/* Finds the cuts with the largest relative steps between neighbouring distinct weights of the line. */
static void ddp__starts_cuts(ddp__starts *s)
{
    const ddp__place *p = s->p;
    double cut[DDP__STARTS_CUTS], jump[DDP__STARTS_CUTS];
    int n = 0, k, m;
    memcpy(s->sorted, s->step, (size_t)p->N * sizeof(double));
    qsort(s->sorted, (size_t)p->N, sizeof(double), ddp__rising);
    for (k = 0; k + 2 < p->N; k++) { /* the last weight is the infinity of the first device */
        double low = s->sorted[k], ratio = (s->sorted[k + 1] - low) / s->sorted[k + 1];
        if (!(s->sorted[k + 1] > low)) continue;
        for (m = n < DDP__STARTS_CUTS ? n++ : DDP__STARTS_CUTS; m > 0 && jump[m - 1] < ratio; m--)
            if (m < DDP__STARTS_CUTS) {
                jump[m] = jump[m - 1];
                cut[m] = cut[m - 1];
            }
        if (m < DDP__STARTS_CUTS) {
            jump[m] = ratio;
            cut[m] = low;
        }
    }
    for (m = 0; m < n; m++) ddp__starts_pack(s, cut[m]);
}

int ddp__place_starts(ddp__place *p, int most, int *kept, double *cost)
{
    size_t N = (size_t)p->N;
    ddp__starts s = DDP__ZEROS;
    s.p = p;
    s.most = most;
    s.kept = kept;
    s.cost = cost;
    s.line = ddp__ints(&p->room, N);
    s.at = ddp__ints(&p->room, N);
    s.chunk = ddp__ints(&p->room, 2 * N);
    s.fill = ddp__ints(&p->room, (size_t)p->D);
    s.step = ddp__doubles(&p->room, N);
    s.sorted = ddp__doubles(&p->room, N);
    if (ddp__scratch_failed(&p->room)) return 0;
    ddp__starts_line(&s);
    ddp__starts_runs(&s, s.line);
    ddp__starts_runs(&s, NULL);
    ddp__starts_cuts(&s);
    return s.count;
}
