#include "base/core.h"
#include "plan/place_core.h"

/* Arrangements that follow the structure of the network. The line of devices is the order in which Prim's algorithm
 * reaches them over the lightest hops, so that well connected ones are neighbours; cutting its heavy steps gives
 * clusters. From the line, and from the order given:
 *   pipelines inside clusters: each run of S devices is a pipeline
 *   stages inside clusters: each run of D devices is a stage
 *   packed: a cluster smaller than a pipeline gives one device to each of the first free stages of a pipeline, the
 *   largest clusters first, for the cuts with the largest relative steps */

enum { DDP__STARTS_CUTS = 4 };

typedef struct ddp__starts {
    ddp__place *p;
    int *line;              /* [N] */
    double *step;           /* [N] hop over which line[k] was reached */
    double *sorted;         /* [N] */
    int *at, *fill, *chunk; /* [N], [D], [2 N] */
    int most, count;
    int *kept;
    double *cost;
} ddp__starts;

static void ddp__starts_line(ddp__starts *s)
{
    const ddp__place *p = s->p;
    double *reach = s->sorted;
    int k, v, best, last = 0;

    for (v = 0; v < p->N; v++) s->line[v] = v, reach[v] = INFINITY;
    s->step[0] = INFINITY;
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

/* Evaluates s->at exactly and keeps it among the best. */
static void ddp__starts_keep(ddp__starts *s)
{
    ddp__place *p = s->p;
    size_t N = (size_t)p->N;
    double cost;
    int k;

    if (!ddp__place_next(p)) return;
    cost = ddp__place_evaluate(p, s->at);
    ddp__place_offer(p, p->line, cost);
    for (k = 0; k < s->count && s->cost[k] < cost; k++) {
    }
    if (k < s->count && !(cost < s->cost[k])) return; /* the same again */
    if (k == s->most) return;
    if (s->count < s->most) s->count++;
    memmove(s->kept + (size_t)(k + 1) * N, s->kept + (size_t)k * N, (size_t)(s->count - 1 - k) * N * sizeof(int));
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

/* Lays devices into the pipeline with the fewest so far. */
static void ddp__starts_lay(ddp__starts *s, int begin, int length)
{
    const ddp__place *p = s->p;

    while (length > 0) {
        int i, best = 0;
        for (i = 1; i < p->D; i++)
            if (s->fill[i] < s->fill[best]) best = i;
        for (; length > 0 && s->fill[best] < p->S; length--) s->at[s->fill[best]++ * p->D + best] = s->line[begin++];
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

static int ddp__starts_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The cuts with the largest relative steps between neighbouring distinct weights of the line. */
static void ddp__starts_cuts(ddp__starts *s)
{
    const ddp__place *p = s->p;
    double cut[DDP__STARTS_CUTS], jump[DDP__STARTS_CUTS];
    int n = 0, k, m;

    memcpy(s->sorted, s->step, (size_t)p->N * sizeof(double));
    qsort(s->sorted, (size_t)p->N, sizeof(double), ddp__starts_order);
    for (k = 0; k + 2 < p->N; k++) { /* the last one is the first device's infinity */
        double low = s->sorted[k], ratio = (s->sorted[k + 1] - low) / s->sorted[k + 1];
        if (!(s->sorted[k + 1] > low)) continue;
        for (m = n < DDP__STARTS_CUTS ? n++ : DDP__STARTS_CUTS; m > 0 && jump[m - 1] < ratio; m--)
            if (m < DDP__STARTS_CUTS) jump[m] = jump[m - 1], cut[m] = cut[m - 1];
        if (m < DDP__STARTS_CUTS) jump[m] = ratio, cut[m] = low;
    }
    for (m = 0; m < n; m++) ddp__starts_pack(s, cut[m]);
}

int ddp__place_starts(ddp__place *p, int most, int *kept, double *cost)
{
    size_t N = (size_t)p->N, D = (size_t)p->D;
    ddp__starts s;

    memset(&s, 0, sizeof s);
    s.p = p;
    s.most = most;
    s.kept = kept;
    s.cost = cost;
    s.line = (int *)ddp__calloc(4 * N + D, sizeof(int));
    s.step = (double *)ddp__calloc(2 * N, sizeof(double));
    if (s.line && s.step) {
        s.at = s.line + N;
        s.chunk = s.at + N;
        s.fill = s.chunk + 2 * N;
        s.sorted = s.step + N;
        ddp__starts_line(&s);
        ddp__starts_runs(&s, s.line);
        ddp__starts_runs(&s, NULL);
        ddp__starts_cuts(&s);
    } else {
        p->failed = p->stop = 1;
    }
    DDP_FREE(s.line);
    DDP_FREE(s.step);
    return s.count;
}
