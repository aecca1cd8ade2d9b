#include "base/core.h"
#include "plan/fence_core.h"
#include "plan/louvain.h"
#include "plan/tour.h"

/* Clusters of near devices, and the order in which a pipeline visits them. */

typedef struct ddp__fence_map {
    int     devices, clusters;
    double *hop;     /* [N x N] seconds that a boundary costs between two devices */
    double *weight;  /* [N x N] bytes per second of a typical message */
    double *cost;    /* [N x N] scratch for the tours */
    int    *member;  /* [N] devices by cluster */
    int    *from;    /* [N + 1] cluster c: member[from[c]] .. member[from[c+1]-1] */
    int    *tour;    /* [N] */
    int    *entry, *leave; /* [N] per place in the tour of clusters: a device, -1 = free */
} ddp__fence_map;

static void ddp__fence_map_close(ddp__fence_map *m)
{
    DDP_FREE(m->hop);
    DDP_FREE(m->from);
}

static ddp_status ddp__fence_map_open(const ddp_network *net, double bytes, int backward, ddp__fence_map *m,
                                      ddp_error *err)
{
    size_t N = (size_t)net->devices, i, j;

    memset(m, 0, sizeof *m);
    m->devices = net->devices;
    m->hop = (double *)ddp__calloc(3 * N, N * sizeof(double));
    m->from = (int *)ddp__calloc(5 * N + 1, sizeof(int));
    if (!m->hop || !m->from) {
        ddp__fence_map_close(m);
        return ddp__fail(err, DDP_MEMORY, "no memory to order %d devices", net->devices);
    }
    m->weight = m->hop + N * N;
    m->cost = m->hop + 2 * N * N;
    m->member = m->from + N + 1;
    m->tour = m->from + 2 * N + 1;
    m->entry = m->from + 3 * N + 1;
    m->leave = m->from + 4 * N + 1;
    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++) {
            double there, back;
            if (i == j) continue;
            there = ddp__workload_transfer(net, (int)i, (int)j, bytes);
            back = ddp__workload_transfer(net, (int)j, (int)i, bytes);
            m->hop[i * N + j] = backward ? there + back : there;
            m->weight[i * N + j] = 2 * bytes / (there + back);
        }
    return DDP_OK;
}

static void ddp__fence_map_members(ddp__fence_map *m, const int *cluster)
{
    int c, d, at = 0;

    for (c = 0; c < m->clusters; c++) {
        m->from[c] = at;
        for (d = 0; d < m->devices; d++)
            if (cluster[d] == c) m->member[at++] = d;
    }
    m->from[m->clusters] = at;
}

/* The cheapest link from cluster a to cluster b that does not leave from device `not_this`. */
static double ddp__fence_link(const ddp__fence_map *m, int a, int b, int not_this, int *leave, int *enter)
{
    double best = INFINITY, hop;

    *leave = *enter = -1;
    for (int i = m->from[a]; i < m->from[a + 1]; i++)
        for (int j = m->from[b]; j < m->from[b + 1]; j++) {
            hop = m->hop[(size_t)m->member[i] * (size_t)m->devices + (size_t)m->member[j]];
            if (m->member[i] == not_this || !(hop < best)) continue;
            best = hop;
            *leave = m->member[i];
            *enter = m->member[j];
        }
    return best;
}

/* m->tour: the clusters in order, and where each is entered and left. */
static ddp_status ddp__fence_tour(ddp__fence_map *m, ddp_error *err)
{
    double length;
    int a, b, k, leave, enter, alone;

    for (a = 0; a < m->clusters; a++)
        for (b = 0; b < m->clusters; b++)
            m->cost[(size_t)a * (size_t)m->clusters + (size_t)b] =
                a == b ? 0 : ddp__fence_link(m, a, b, -1, &leave, &enter);
    DDP__TRY(ddp_tour_open(m->clusters, m->cost, -1, -1, m->tour, &length, err));
    m->entry[0] = -1;
    for (k = 0; k + 1 < m->clusters; k++) {
        a = m->tour[k];
        alone = m->from[a + 1] - m->from[a] == 1;
        ddp__fence_link(m, a, m->tour[k + 1], alone ? -1 : m->entry[k], &m->leave[k], &m->entry[k + 1]);
    }
    m->leave[m->clusters - 1] = -1;
    return DDP_OK;
}

/* The devices of the k-th cluster of the tour along a shortest path, into order. */
static ddp_status ddp__fence_path(ddp__fence_map *m, int k, int *order, ddp_error *err)
{
    const int *member = m->member + m->from[m->tour[k]];
    int size = m->from[m->tour[k] + 1] - m->from[m->tour[k]], i, j, first = -1, last = -1;
    double length;

    if (size == 1) {
        order[0] = member[0];
        return DDP_OK;
    }
    for (i = 0; i < size; i++) {
        if (member[i] == m->entry[k]) first = i;
        if (member[i] == m->leave[k]) last = i;
        for (j = 0; j < size; j++)
            m->cost[(size_t)i * (size_t)size + (size_t)j] =
                m->hop[(size_t)member[i] * (size_t)m->devices + (size_t)member[j]];
    }
    DDP__TRY(ddp_tour_open(size, m->cost, first, last, order, &length, err));
    for (i = 0; i < size; i++) order[i] = member[order[i]];
    return DDP_OK;
}

ddp_status ddp__fence_order(const ddp_network *net, double bytes, int backward, double resolution, int *cluster,
                            int *clusters, int *order, ddp_error *err)
{
    ddp__fence_map m;
    ddp_status status;
    int k, at = 0;

    DDP__TRY(ddp__fence_map_open(net, bytes, backward, &m, err));
    status = ddp_louvain(m.devices, m.weight, resolution, cluster, &m.clusters, NULL, err);
    if (status == DDP_OK && order) {
        ddp__fence_map_members(&m, cluster);
        status = ddp__fence_tour(&m, err);
        for (k = 0; k < m.clusters && status == DDP_OK; k++) {
            status = ddp__fence_path(&m, k, order + at, err);
            at += m.from[m.tour[k] + 1] - m.from[m.tour[k]];
        }
    }
    *clusters = m.clusters;
    ddp__fence_map_close(&m);
    return status;
}
