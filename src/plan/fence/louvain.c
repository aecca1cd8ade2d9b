/* Finds communities in a weighted graph by Louvain's method. */
#include "plan/arrays.h"
#include "plan/fence/louvain.h"
#include "plan/order.h"

enum { DDP__LOUVAIN_STARTS = 16, DDP__LOUVAIN_MANY = 1024 };
enum { DDP__LOUVAIN_TURNS = 1000 }; /* never reached, guards against moves that cycle because of rounding */

/* A level of the hierarchy: its nodes are the communities of the level below. */
typedef struct ddp__louvain {
    int n, size;              /* number of nodes in the graph, and in the level */
    double resolution, total; /* total = 2m */
    double *graph;            /* [n x n] symmetric, diagonal 0 */
    double *w;                /* [size x size] weights of the level. The diagonal is twice the inner
                               * weight. */
    double *degree;           /* [size] */
    double *inside;           /* [size] sum of the degrees of each community's members */
    double *link;             /* [size] weight from the current node into each community */
    int *community;           /* [size] community of each node of the level */
    int *flat;                /* [n] node of the level that contains each node of the graph */
    int *order;               /* [n] */
    int *number;              /* [n] scratch for renumbering */
    int *best;                /* [n] */
    ddp__scratch room;
} ddp__louvain;

static ddp_status ddp__louvain_open(int n, const double *weights, double resolution, ddp__louvain *g,
                                    ddp_error *err)
{
    size_t N = (size_t)(n > 0 ? n : 0), i, j;

    memset(g, 0, sizeof *g);
    if (n < 1 || !weights)
        return ddp__fail(err, DDP_ARG, "a graph of %d nodes%s has no communities", n,
                         n < 1 ? "" : " without weights");
    if (!(resolution > 0 && resolution <= 1e100))
        return ddp__fail(err, DDP_ARG, "resolution is %g; it must be above 0 (1 = modularity)", resolution);
    for (i = 0; i < N * N; i++)
        if (i % (N + 1))
            DDP__TRY(ddp__check_finite(weights[i], 0, err, "the weight from node %zu to node %zu is %g",
                                       i / N, i % N, weights[i]));
    g->n = n;
    g->resolution = resolution;
    g->graph = ddp__doubles(&g->room, N * N);
    g->w = ddp__doubles(&g->room, N * N);
    g->degree = ddp__doubles(&g->room, N);
    g->inside = ddp__doubles(&g->room, N);
    g->link = ddp__doubles(&g->room, N);
    g->community = ddp__ints(&g->room, N);
    g->flat = ddp__ints(&g->room, N);
    g->order = ddp__ints(&g->room, N);
    g->number = ddp__ints(&g->room, N);
    g->best = ddp__ints(&g->room, N);
    DDP__TRY(ddp__scratch_check(&g->room, n, "nodes", err));
    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++) {
            if (i == j) continue;
            g->graph[i * N + j] = 0.5 * weights[i * N + j] + 0.5 * weights[j * N + i];
            g->total += g->graph[i * N + j];
        }
    if (g->total <= 1e150) return DDP_OK;
    ddp__scratch_free(&g->room);
    return ddp__fail(err, DDP_NUMERIC, "the weights add up to %g; scale them below 1e150", g->total);
}

/* Renumbers communities as 0.. by their lowest node and returns their number. */
static int ddp__louvain_renumber(int n, int *community, int *number)
{
    int i, next = 0;
    for (i = 0; i < n; i++) number[i] = -1;
    for (i = 0; i < n; i++) {
        if (number[community[i]] < 0) number[community[i]] = next++;
        community[i] = number[community[i]];
    }
    return next;
}

/* Q of a partition of the graph's nodes into `communities` communities. */
static double ddp__louvain_quality(const ddp__louvain *g, const int *community)
{
    size_t n = (size_t)g->n, i, j;
    double q = 0, *inner = g->link, *ends = g->inside;
    if (!(g->total > 0)) return 0;
    for (i = 0; i < n; i++) inner[i] = ends[i] = 0;
    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++) {
            ends[community[i]] += g->graph[i * n + j];
            if (community[i] == community[j]) inner[community[i]] += g->graph[i * n + j];
        }
    for (i = 0; i < n; i++)
        q += inner[i] / g->total - g->resolution * (ends[i] / g->total) * (ends[i] / g->total);
    return q;
}

/* Builds the level whose nodes are the sets of g->flat (numbered 0..size-1). */
static void ddp__louvain_level(ddp__louvain *g, int size)
{
    size_t n = (size_t)g->n, k = (size_t)size, i, j;
    g->size = size;
    for (i = 0; i < k * k; i++) g->w[i] = 0;
    for (i = 0; i < n; i++)
        for (j = 0; j < n; j++) g->w[(size_t)g->flat[i] * k + (size_t)g->flat[j]] += g->graph[i * n + j];
    for (i = 0; i < k; i++) {
        g->degree[i] = 0;
        for (j = 0; j < k; j++) g->degree[i] += g->w[i * k + j];
    }
}

/* Moves the level's nodes, in g->order, until no move gains. Starts from community [size] and improves it.
 * Returns 1 if a node moved. */
static int ddp__louvain_move(ddp__louvain *g)
{
    int size = g->size, moved = 0, changed = 1, turn, at, i, j, own, best;
    const double least = 1e-12 * g->total;
    double gain, top, stay;

    for (i = 0; i < size; i++) g->inside[i] = 0;
    for (i = 0; i < size; i++) g->inside[g->community[i]] += g->degree[i];
    for (turn = 0; changed && turn < DDP__LOUVAIN_TURNS; turn++) {
        changed = 0;
        for (at = 0; at < size; at++) {
            const double *row;
            i = g->order[at];
            row = g->w + (size_t)i * (size_t)size;
            if (!(g->degree[i] > 0)) continue;
            own = g->community[i];
            for (j = 0; j < size; j++) g->link[j] = 0;
            for (j = 0; j < size; j++)
                if (j != i) g->link[g->community[j]] += row[j];
            g->inside[own] -= g->degree[i];
            stay = g->link[own] - g->resolution * g->degree[i] * (g->inside[own] / g->total);
            top = stay + least;
            best = own;
            for (j = 0; j < size; j++) {
                if (j == own) continue;
                gain = g->link[j] - g->resolution * g->degree[i] * (g->inside[j] / g->total);
                if (gain > top) {
                    top = gain;
                    best = j;
                }
            }
            g->inside[best] += g->degree[i];
            g->community[i] = best;
            if (best != own) changed = moved = 1;
        }
    }
    return moved;
}

/* Builds levels from single nodes upwards and then moves single nodes again, until nothing gains. Each
 * further round has moved a node, which raises Q. r NULL = index order. */
static int ddp__louvain_climb(ddp__louvain *g, ddp_rng *r)
{
    int i, k, size, turn, moved = 1;
    for (i = 0; i < g->n; i++) g->community[i] = i;
    for (size = g->n, turn = 0; moved && turn < DDP__LOUVAIN_TURNS; turn++) {
        for (i = 0; i < g->n; i++) g->flat[i] = i;
        ddp__louvain_level(g, g->n);
        ddp__shuffle(g->order, g->n, r);
        moved = ddp__louvain_move(g);
        size = ddp__louvain_renumber(g->n, g->community, g->number);
        for (i = 0; i < g->n; i++) g->flat[i] = g->community[i];
        for (k = 1; k;) {
            ddp__louvain_level(g, size);
            for (i = 0; i < size; i++) g->community[i] = i;
            ddp__shuffle(g->order, size, r);
            k = ddp__louvain_move(g);
            moved |= k;
            size = ddp__louvain_renumber(size, g->community, g->number);
            for (i = 0; i < g->n; i++) g->flat[i] = g->community[g->flat[i]];
        }
        for (i = 0; i < g->n; i++) g->community[i] = g->flat[i];
    }
    return size;
}

ddp_status ddp_modularity(int n, const double *weights, double resolution, const int *community, double *out,
                          ddp_error *err)
{
    ddp__louvain g;
    int i;
    DDP__TRY(ddp__louvain_open(n, weights, resolution, &g, err));
    for (i = 0; community && i < n; i++)
        if (community[i] < 0 || community[i] >= n) break;
    if (community && out && i == n) *out = ddp__louvain_quality(&g, community);
    ddp__scratch_free(&g.room);
    if (!community || !out)
        return ddp__fail(err, DDP_ARG, "ddp_modularity: community and out must not be NULL");
    if (i < n)
        return ddp__fail(err, DDP_ARG, "node %d is in community %d; numbers run from 0 to %d", i,
                         community[i], n - 1);
    return DDP_OK;
}

ddp_status ddp_louvain(int n, const double *weights, double resolution, int *community, int *communities,
                       double *modularity, ddp_error *err)
{
    double q, best = -DBL_MAX;
    int i, start, size, most = 0;
    ddp__louvain g;
    ddp_rng r;

    DDP__TRY(ddp__louvain_open(n, weights, resolution, &g, err));
    if (!community) {
        ddp__scratch_free(&g.room);
        return ddp__fail(err, DDP_ARG, "ddp_louvain: community is NULL; it receives the result");
    }
    for (start = 0; start < (n <= DDP__LOUVAIN_MANY ? DDP__LOUVAIN_STARTS : 1); start++) {
        r = ddp_rng_seed(1, (uint64_t)start);
        size = ddp__louvain_climb(&g, start ? &r : NULL);
        q = ddp__louvain_quality(&g, g.flat);
        if (!(q > best + 1e-12)) continue;
        best = q;
        most = size;
        for (i = 0; i < n; i++) g.best[i] = g.flat[i];
    }
    for (i = 0; i < n; i++) community[i] = g.best[i];
    if (communities) *communities = most;
    if (modularity) *modularity = best;
    ddp__scratch_free(&g.room);
    return DDP_OK;
}
