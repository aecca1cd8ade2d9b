/* OP-Fence: clusters of near devices, the order in which a pipeline visits them, and orders along which a
 * cut fits into memory. */
#include "plan/arrays.h"
#include "plan/fence/fence_order.h"
#include "plan/fence/louvain.h"
#include "plan/order.h"
#include "plan/tour.h"

typedef struct ddp__fence_map {
    int devices, clusters;
    double *hop;        /* [N x N] seconds for a cut between two devices */
    double *cost;       /* [N x N] bytes per second for a typical message, later scratch for the tours */
    int *member;        /* [N] devices sorted by cluster */
    int *from;          /* [N + 1] devices of cluster c: member[from[c]] .. member[from[c+1]-1] */
    int *tour;          /* [N] */
    int *entry, *leave; /* [N] for each place in the tour of clusters: a device, -1 = free */
    ddp__scratch room;
} ddp__fence_map;

static ddp_status ddp__fence_map_open(const ddp_network *net, double bytes, int backward, ddp__fence_map *m,
                                      ddp_error *err)
{
    size_t N = (size_t)net->devices, i, j;
    memset(m, 0, sizeof *m);
    m->devices = net->devices;
    m->hop = ddp__doubles(&m->room, N * N);
    m->cost = ddp__doubles(&m->room, N * N);
    m->from = ddp__ints(&m->room, N + 1);
    m->member = ddp__ints(&m->room, N);
    m->tour = ddp__ints(&m->room, N);
    m->entry = ddp__ints(&m->room, N);
    m->leave = ddp__ints(&m->room, N);
    DDP__TRY(ddp__scratch_check(&m->room, net->devices, "devices", err));
    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++) {
            double there, back;
            if (i == j) continue;
            there = ddp__workload_transfer(net, (int)i, (int)j, bytes);
            back = ddp__workload_transfer(net, (int)j, (int)i, bytes);
            m->hop[i * N + j] = backward ? there + back : there;
            m->cost[i * N + j] = 2 * bytes / (there + back);
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
    double best = DBL_MAX, hop;
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

/* Sets m->tour: the order of the clusters, and the device where each is entered and left. */
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

/* Writes the devices of the k-th cluster of the tour to `order`, along a shortest path. */
static ddp_status ddp__fence_path(ddp__fence_map *m, int k, int *order, ddp_error *err)
{
    const int *member = m->member + m->from[m->tour[k]];
    int size = m->from[m->tour[k] + 1] - m->from[m->tour[k]], i, j, first = -1, last = -1;
    double length;
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

ddp_status ddp__fence_order(const ddp_network *net, double bytes, int backward, double resolution,
                            int *cluster, int *clusters, int *order, ddp_error *err)
{
    ddp__fence_map m;
    int k, at = 0;
    ddp_status status = ddp__fence_map_open(net, bytes, backward, &m, err);
    if (status == DDP_OK)
        status = ddp_louvain(m.devices, m.cost, resolution, cluster, &m.clusters, NULL, err);
    if (status == DDP_OK && order) {
        ddp__fence_map_members(&m, cluster);
        status = ddp__fence_tour(&m, err);
        for (k = 0; k < m.clusters && status == DDP_OK; k++) {
            status = ddp__fence_path(&m, k, order + at, err);
            at += m.from[m.tour[k] + 1] - m.from[m.tour[k]];
        }
    }
    *clusters = m.clusters;
    ddp__scratch_free(&m.room);
    return status;
}

/* Finds an order of the devices along which some cut fits into memory. The memory of a segment depends on
 * where it begins and ends, not on where its inputs are. So for a few devices it is enough to compute, for
 * every set of devices, the cuts that the set can reach in some order. The answer is exact. With more
 * devices, devices are swapped while that increases the number of operators placed. */

#define DDP__FENCE_SETS 1e8 /* limit on the steps over all sets of devices: less than a second */
#define DDP__FENCE_FITS 3e8 /* limit on the steps of swapping */

typedef struct ddp__fence_fit {
    const ddp__fence_tape *tape;
    int N, idle;
    int *last;            /* [N, n] end of the longest segment of each device that begins at each cut */
    int *sweep;           /* [n + 2] scratch */
    unsigned char *reach; /* [rows, n + 1] */
    double work;
    int *order;
} ddp__fence_fit;

/* Fills f->last. need [n + 1] is scratch: the memory of a segment from a to b, which grows with b. */
static void ddp__fence_fit_segments(ddp__fence_fit *f, double *need)
{
    const ddp__fence_tape *t = f->tape;
    const double *room = t->graph.net->memory_bytes;
    double most = 0, kept;
    int a, b, i, d, end;

    for (d = 0; d < f->N; d++) most = fmax(most, room[d]);
    for (a = 0; a < t->n; a++) {
        kept = 0;
        i = t->from[a];
        for (b = a + 1; b <= t->n; b++) {
            for (; i < t->from[a + 1] && t->live[i].next < b; i++)
                kept += t->graph.kept * t->graph.list->op[t->live[i].op].output_bytes;
            need[b] = t->memory[b] - t->memory[a] + kept;
            if (need[b] > most) break;
        }
        for (d = 0; d < f->N; d++) {
            for (end = a; end + 1 < b && need[end + 1] <= room[d]; end++) {
            }
            f->last[(size_t)d * (size_t)t->n + (size_t)a] = end;
        }
    }
}

/* Adds to `to` the cuts that one segment of device d reaches from the cuts in `from`. */
static void ddp__fence_fit_extend(ddp__fence_fit *f, const unsigned char *from, int d, unsigned char *to)
{
    const int *last = f->last + (size_t)d * (size_t)f->tape->n;
    int n = f->tape->n, a, open = 0;
    memset(f->sweep, 0, ((size_t)n + 2) * sizeof(int));
    for (a = 0; a <= n; a++) {
        open += f->sweep[a];
        if (open > 0) to[a] = 1;
        if (a == n || !from[a] || last[a] == a) continue;
        f->sweep[a + 1]++;
        f->sweep[last[a] + 1]--;
    }
    f->work += n;
}

/* Tries every order, by dynamic programming over the sets of devices. */
static int ddp__fence_fit_all(ddp__fence_fit *f, int *order)
{
    size_t row = (size_t)f->tape->n + 1, sets = (size_t)1 << f->N, s, rest, goal = 0;
    int n = f->tape->n, d, b, at, k;
    f->reach[0] = 1;
    for (s = 0; s < sets; s++)
        for (d = 0; d < f->N; d++)
            if (!(s >> d & 1))
                ddp__fence_fit_extend(f, f->reach + s * row, d, f->reach + (s | (size_t)1 << d) * row);
    for (s = f->idle ? 1 : sets - 1; s < sets && !goal; s++)
        if (f->reach[s * row + (size_t)n]) goal = s;
    if (!goal) return 0;
    for (d = 0, at = f->N; d < f->N; d++) /* devices without an operator come last */
        if (!(goal >> d & 1)) order[--at] = d;
    for (s = goal, b = n; s; s = rest, b = k) {
        for (d = -1, k = b; k == b;) { /* the first device that may have the last segment, from k to b */
            rest = s & ~((size_t)1 << ++d);
            for (k = rest == s ? b : 0; k < b; k++)
                if (f->reach[rest * row + (size_t)k] && f->last[(size_t)d * (size_t)n + (size_t)k] >= b)
                    break;
        }
        order[--at] = d;
    }
    return 1;
}

/* How far an order gets: first the number of positions with an operator, then the number of operators. */
static double ddp__fence_fit_far(ddp__fence_fit *f, const int *order)
{
    size_t row = (size_t)f->tape->n + 1;
    double far = 0;
    int k, a;

    memset(f->reach, 0, row);
    f->reach[0] = 1;
    for (k = 0; k < f->N; k++) {
        unsigned char *now = f->reach + (k % 2 ? row : 0), *then = f->reach + (k % 2 ? 0 : row);
        if (f->idle)
            memcpy(then, now, row);
        else
            memset(then, 0, row);
        ddp__fence_fit_extend(f, now, order[k], then);
        for (a = f->tape->n; a > 0 && !then[a]; a--) {
        }
        if (a == 0 && !f->idle) break;
        far = (double)(f->idle ? 0 : k) * (double)row + a;
    }
    return far;
}

/* The amount left to place. 0 means that everything is placed. */
static double ddp__fence_fit_lacks(void *user)
{
    ddp__fence_fit *f = (ddp__fence_fit *)user;
    const double goal = (double)(f->idle ? 0 : f->N - 1) * ((double)f->tape->n + 1) + f->tape->n;
    return f->work > DDP__FENCE_FITS ? DBL_MAX : goal - ddp__fence_fit_far(f, f->order);
}

ddp_status ddp__fence_fit_order(const ddp__fence_tape *t, int idle, int *order, int *found, int *every,
                                ddp_error *err)
{
    const int N = t->graph.net->devices;
    size_t n = (size_t)t->n;
    ddp__scratch room = {NULL, 0};
    ddp__fence_fit f = DDP__ZEROS;
    double *need, lacks;

    *every = N <= 20 && ldexp((double)N * (double)t->n, N) <= DDP__FENCE_SETS;
    f.tape = t;
    f.N = N;
    f.idle = idle;
    f.order = order;
    f.last = ddp__ints(&room, (size_t)N * n);
    f.sweep = ddp__ints(&room, n + 2);
    f.reach = (unsigned char *)ddp__scratch_take(&room, *every ? (size_t)1 << N : 2, n + 1);
    need = ddp__doubles(&room, n + 1);
    DDP__TRY(ddp__scratch_check(&room, t->n, "operators", err));
    ddp__fence_fit_segments(&f, need);
    if (*every) {
        *found = ddp__fence_fit_all(&f, order);
    } else {
        lacks = ddp__fence_fit_lacks(&f);
        while (ddp__improve(order, N, 0, ddp__fence_fit_lacks, &f, &lacks)) {
        }
        *found = lacks <= 0;
    }
    ddp__scratch_free(&room);
    return DDP_OK;
}
