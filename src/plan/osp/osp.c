/* OSP's planner: the importance of layers, the choice of the late layers, and the byte budget. */
#include "plan/order.h"
#include "plan/osp/osp_internal.h"

/* Sums have parts of a fixed shape, so that a GPU can give a bit-identical result. Each chunk is summed in
 * 32 lanes, one element after another. The chunks are summed in 32 lanes again. Then the lanes are added
 * in pairs. */
static double ddp__osp_lanes(double *lane)
{
    for (int half = DDP__OSP_LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

ddp_status ddp_osp_importance(const float *gradient, const float *parameter, size_t n, int mean, double *out,
                              ddp_error *err)
{
    double chunks[DDP__OSP_LANES], lane[DDP__OSP_LANES], x;
    size_t i, begin, end;
    if (!gradient || !parameter || !out || n == 0)
        return ddp__fail(err, DDP_ARG,
                         "ddp_osp_importance: %zu elements or a NULL array; it needs at least 1", n);
    memset(chunks, 0, sizeof chunks);
    for (begin = 0; begin < n; begin = end) {
        end = n - begin < DDP__OSP_CHUNK ? n : begin + DDP__OSP_CHUNK;
        memset(lane, 0, sizeof lane);
        for (i = begin; i < end; i++) {
            x = fabs((double)gradient[i] * (double)parameter[i]);
            if (!ddp__finite(x))
                return ddp__fail(err, DDP_NUMERIC,
                                 "element %zu: gradient %g and parameter %g; both must be finite", i,
                                 (double)gradient[i], (double)parameter[i]);
            lane[i % DDP__OSP_LANES] += x;
        }
        chunks[begin / DDP__OSP_CHUNK % DDP__OSP_LANES] += ddp__osp_lanes(lane);
    }
    x = ddp__osp_lanes(chunks);
    *out = mean ? x / (double)n : x;
    return DDP_OK;
}

struct ddp__osp {
    int layers;
    const double *importance, *bytes;
    double budget;
    ddp__ranked *rank;              /* [layers] scratch */
    int *late, *next;               /* [layers] 1 = deferred: the current choice, and a candidate */
    struct ddp__osp_subset *subset; /* scratch of the knapsack rule, 5 x the subsets of half a window,
                                       otherwise NULL */
    ddp__scratch room;
};

/* Sets late[l] = 1 for the layers that the walk defers. Returns their bytes. */
static double ddp__osp_walk(ddp__osp *s, ddp_osp_rule rule, int *late)
{
    double sum = 0, bytes;
    for (int l = 0; l < s->layers; l++) {
        s->rank[l].i = l;
        s->rank[l].key = s->importance[l];
        if (rule == DDP_OSP_DENSITY && s->bytes[l] > 0) s->rank[l].key /= s->bytes[l];
        late[l] = 0;
    }
    qsort(s->rank, (size_t)s->layers, sizeof *s->rank, ddp__by_rank);
    for (int i = 0; i < s->layers; i++) {
        bytes = s->bytes[s->rank[i].i];
        if (!(bytes > 0)) continue; /* nothing to defer, so budget 0 defers no layer */
        if (sum + bytes <= s->budget) {
            sum += bytes;
            late[s->rank[i].i] = 1;
        } else if (rule == DDP_OSP_STOP) {
            break;
        }
    }
    return sum;
}

/* ---- the knapsack rule: least importance with bytes between those deferred by the walk and the budget ----
 *
 * In the order of importance per byte, the layers at the front are deferred and the layers at the back are
 * sent. Only a window around the place where the bytes of the walk are reached is undecided. A
 * meet-in-the-middle search tries all subsets of the window. Each half lists its subsets by bytes. As the
 * bytes of the first half fall, the subsets of the second half that satisfy both bounds move up, and a
 * queue stores their minimum. If the window contains all layers, the result is the optimum. */

/* Half of the layers in the window. Each half has 2^16 subsets. */
enum { DDP__OSP_HALF = 16 };

typedef struct ddp__osp_subset {
    double bytes, importance;
    unsigned set;
} ddp__osp_subset;

/* Lists all subsets of the n layers of `rank` by ascending bytes. For each layer, the list is merged with
 * a copy of itself that contains the layer. to and spare have room for 2^n. Returns the buffer that holds the
 * list. */
static ddp__osp_subset *ddp__osp_subsets(const ddp__osp *s, const ddp__ranked *rank, int n,
                                         ddp__osp_subset *to, ddp__osp_subset *spare)
{
    ddp__osp_subset *swap;
    size_t size = 1, i, j, k;
    memset(to, 0, sizeof *to);
    for (int l = 0; l < n; l++, size *= 2) {
        double bytes = s->bytes[rank[l].i];
        for (i = j = k = 0; j < size; k++) {
            if (i < size && to[i].bytes <= to[j].bytes + bytes) {
                spare[k] = to[i++];
                continue;
            }
            spare[k] = to[j++];
            spare[k].bytes += bytes;
            spare[k].importance += s->importance[rank[l].i];
            spare[k].set |= 1u << l;
        }
        swap = to;
        to = spare;
        spare = swap;
    }
    return to;
}

/* Finds the least important pair with low to high bytes. Returns 0 if there is none. queue has room for nb
 * entries. */
static int ddp__osp_pair(const ddp__osp_subset *a, size_t na, const ddp__osp_subset *b, size_t nb, double low,
                         double high, int *queue, unsigned *set_a, unsigned *set_b)
{
    size_t head = 0, tail = 0, entered = 0;
    double least = DBL_MAX;
    while (na-- > 0) {
        for (; entered < nb && a[na].bytes + b[entered].bytes <= high; entered++) {
            while (tail > head && b[queue[tail - 1]].importance >= b[entered].importance) tail--;
            queue[tail++] = (int)entered;
        }
        while (head < tail && a[na].bytes + b[queue[head]].bytes < low) head++;
        if (head == tail || !(a[na].importance + b[queue[head]].importance < least)) continue;
        least = a[na].importance + b[queue[head]].importance;
        *set_a = a[na].set;
        *set_b = b[queue[head]].set;
    }
    return least < DBL_MAX;
}

/* The number of subsets of half a window for a model of `layers` layers. */
static size_t ddp__osp_most(int layers)
{
    return (size_t)1 << (layers < 2 * DDP__OSP_HALF ? (layers + 1) / 2 : DDP__OSP_HALF);
}

/* Sets s->next to the best choice of the window with at least `low` bytes. Returns 0 if there is none.
 * s->rank is sorted by density. */
static int ddp__osp_window(ddp__osp *s, double low)
{
    const size_t most = ddp__osp_most(s->layers);
    ddp__osp_subset *room = s->subset, *a, *b;
    unsigned set[2] = {0, 0};
    double fixed = 0;
    int i, n = 0, from = 0, half, rest;

    for (i = 0; i < s->layers; i++) {
        s->next[i] = 0;
        if (s->bytes[s->rank[i].i] > 0) s->rank[n++] = s->rank[i];
    }
    while (from < n && fixed < low) fixed += s->bytes[s->rank[from++].i];
    from = from - DDP__OSP_HALF < n - 2 * DDP__OSP_HALF ? from - DDP__OSP_HALF : n - 2 * DDP__OSP_HALF;
    if (from < 0) from = 0;
    for (fixed = 0, i = 0; i < from; i++) {
        fixed += s->bytes[s->rank[i].i];
        s->next[s->rank[i].i] = 1;
    }
    rest = n - from < 2 * DDP__OSP_HALF ? n - from : 2 * DDP__OSP_HALF;
    half = rest / 2;
    a = ddp__osp_subsets(s, s->rank + from, half, room, room + most);
    b = ddp__osp_subsets(s, s->rank + from + half, rest - half, room + 2 * most, room + 3 * most);
    if (!ddp__osp_pair(a, (size_t)1 << half, b, (size_t)1 << (rest - half), low - fixed, s->budget - fixed,
                       (int *)(room + 4 * most), &set[0], &set[1]))
        return 0;
    for (i = 0; i < rest; i++)
        s->next[s->rank[from + i].i] = (int)(i < half ? set[0] >> i & 1 : set[1] >> (i - half) & 1);
    return 1;
}

/* Replaces s->late by s->next if that has low..budget bytes and less importance. *deferred holds the bytes
 * of s->late. */
static void ddp__osp_take(ddp__osp *s, double low, double *deferred)
{
    double sum = 0, before = 0, after = 0;
    for (int i = 0; i < s->layers; i++) {
        if (s->late[i]) before += s->importance[i];
        if (!s->next[i]) continue;
        sum += s->bytes[i];
        after += s->importance[i];
    }
    if (sum < low || sum > s->budget || !(after < before)) return;
    memcpy(s->late, s->next, (size_t)s->layers * sizeof *s->late);
    *deferred = sum;
}

static ddp_status ddp__osp_check(int layers, const double *importance, const double *bytes, double budget,
                                 ddp_osp_rule rule, ddp_error *err)
{
    double total = 0;
    if (!importance || !bytes) return ddp__fail(err, DDP_ARG, "ddp_osp_rank: a NULL array");
    DDP__TRY(ddp__check_finite(budget, 0, err, "budget is %g", budget));
    if (rule != DDP_OSP_WALK && rule != DDP_OSP_STOP && rule != DDP_OSP_DENSITY && rule != DDP_OSP_KNAPSACK)
        return ddp__fail(err, DDP_ARG, "rule %d is unknown; use walk, stop, density or knapsack", (int)rule);
    for (int i = 0; i < layers; i++) {
        DDP__TRY(ddp__check_finite(importance[i], 0, err, "layer %d has importance %g", i, importance[i]));
        DDP__TRY(ddp__check_finite(bytes[i], 0, err, "layer %d has %g bytes", i, bytes[i]));
        total += bytes[i];
    }
    if (!ddp__finite(total))
        return ddp__fail(err, DDP_NUMERIC, "the layers have more bytes than a double holds");
    return DDP_OK;
}

ddp__osp *ddp__osp_open(int layers, ddp_osp_rule rule)
{
    const size_t L = (size_t)layers;
    ddp__osp *s = (ddp__osp *)ddp__calloc(1, sizeof *s);

    if (!s) return NULL;
    s->layers = layers;
    s->rank = (ddp__ranked *)ddp__scratch_take(&s->room, L, sizeof *s->rank);
    s->late = ddp__ints(&s->room, L);
    s->next = ddp__ints(&s->room, L);
    if (rule == DDP_OSP_KNAPSACK)
        s->subset =
            (ddp__osp_subset *)ddp__scratch_take(&s->room, 5 * ddp__osp_most(layers), sizeof *s->subset);
    if (!ddp__scratch_failed(&s->room)) return s;
    ddp__osp_close(s);
    return NULL;
}

void ddp__osp_close(ddp__osp *s)
{
    if (!s) return;
    ddp__scratch_free(&s->room);
    DDP_FREE(s);
}

ddp_status ddp__osp_split(ddp__osp *s, const double *importance, const double *bytes, double budget,
                          ddp_osp_rule rule, unsigned char *gib, double *deferred, ddp_error *err)
{
    double sum, low;

    DDP__TRY(ddp__osp_check(s->layers, importance, bytes, budget, rule, err));
    s->importance = importance;
    s->bytes = bytes;
    s->budget = budget;
    low = sum = ddp__osp_walk(s, rule, s->late);
    if (rule == DDP_OSP_KNAPSACK && low > 0) { /* try to improve on the walk */
        ddp__osp_walk(s, DDP_OSP_DENSITY, s->next);
        ddp__osp_take(s, low, &sum);
        if (ddp__osp_window(s, low)) ddp__osp_take(s, low, &sum);
    }
    memset(gib, 0, ((size_t)s->layers + 7) / 8);
    for (int l = 0; l < s->layers; l++)
        if (!s->late[l]) gib[l / 8] = (unsigned char)(gib[l / 8] | 1 << l % 8);
    if (deferred) *deferred = sum;
    return DDP_OK;
}

ddp_status ddp_osp_rank(int layers, const double *importance, const double *bytes, double budget,
                        ddp_osp_rule rule, unsigned char *gib, double *deferred, ddp_error *err)
{
    ddp__osp *s;
    ddp_status status;

    if (layers < 1) return ddp__fail(err, DDP_ARG, "ddp_osp_rank: %d layers; it needs at least 1", layers);
    if (!gib) return ddp__fail(err, DDP_ARG, "ddp_osp_rank: gib is NULL");
    s = ddp__osp_open(layers, rule);
    if (!s) return ddp__fail(err, DDP_MEMORY, "no memory to rank %d layers", layers);
    status = ddp__osp_split(s, importance, bytes, budget, rule, gib, deferred, err);
    ddp__osp_close(s);
    return status;
}

ddp_status ddp_osp_umax(double bytes_per_s, double loss_rate, double compute_s, int workers,
                        double model_bytes, int literal, double *out, ddp_error *err)
{
    double u;
    DDP__TRY(ddp__check_finite(bytes_per_s, 1, err, "the server sends %g bytes a second", bytes_per_s));
    if (!ddp__within(loss_rate, 0, 1))
        return ddp__fail(err, DDP_ARG, "the loss rate is %g; it must be from 0 to 1", loss_rate);
    DDP__TRY(ddp__check_finite(compute_s, 0, err, "computing takes %g s", compute_s));
    if (workers < 1) return ddp__fail(err, DDP_ARG, "%d workers; there is at least 1", workers);
    DDP__TRY(ddp__check_finite(model_bytes, 0, err, "the model has %g bytes", model_bytes));
    if (!out) return ddp__fail(err, DDP_ARG, "ddp_osp_umax: out is NULL");
    u = bytes_per_s * compute_s / workers;
    u = literal ? u * (1 + loss_rate) : u / (1 + loss_rate);
    *out = u < 0.8 * model_bytes ? u : 0.8 * model_bytes;
    return DDP_OK;
}

double ddp_osp_budget(double loss, double first_loss, double u_max)
{
    double part;
    if (!(u_max > 0) || !ddp__finite(first_loss) || first_loss <= 0 || !ddp__finite(loss)) return 0;
    part = 1 - loss / first_loss;
    return part <= 0 ? 0 : part >= 1 ? u_max : part * u_max;
}
