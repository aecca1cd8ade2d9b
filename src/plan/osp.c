/* OSP's planner: importance, which layers are late, and how many bytes. */
#include "base/core.h"
#include "plan/internal.h"

/* Sums go in parts of a fixed shape, so that a GPU can give the same bits: each chunk in 32 lanes, elements in turn,
 * and the chunks in 32 lanes again; then lanes in pairs. */
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
        return ddp__fail(err, DDP_ARG, "ddp_osp_importance: %zu elements or a NULL array; it needs at least 1", n);
    memset(chunks, 0, sizeof chunks);
    for (begin = 0; begin < n; begin = end) {
        end = n - begin < DDP__OSP_CHUNK ? n : begin + DDP__OSP_CHUNK;
        memset(lane, 0, sizeof lane);
        for (i = begin; i < end; i++) {
            x = fabs((double)gradient[i] * (double)parameter[i]);
            if (!(x <= DBL_MAX))
                return ddp__fail(err, DDP_NUMERIC, "element %zu: gradient %g and parameter %g; both must be finite", i,
                                 (double)gradient[i], (double)parameter[i]);
            lane[i % DDP__OSP_LANES] += x;
        }
        chunks[begin / DDP__OSP_CHUNK % DDP__OSP_LANES] += ddp__osp_lanes(lane);
    }
    x = ddp__osp_lanes(chunks);
    *out = mean ? x / (double)n : x;
    return DDP_OK;
}

typedef struct ddp__osp_key {
    double key, bytes;
    int    layer;
} ddp__osp_key;

static int ddp__osp_order(const void *a, const void *b)
{
    const ddp__osp_key *x = (const ddp__osp_key *)a, *y = (const ddp__osp_key *)b;

    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->layer - y->layer;
}

/* late[l] = 1 for the layers that the walk defers; returns their bytes. */
static double ddp__osp_walk(int layers, const double *importance, const double *bytes, double budget, ddp_osp_rule rule,
                            ddp__osp_key *key, int *late)
{
    double sum = 0;

    for (int i = 0; i < layers; i++) {
        key[i].layer = i;
        key[i].bytes = bytes[i];
        key[i].key = importance[i];
        late[i] = 0;
        if (rule == DDP_OSP_DENSITY && bytes[i] > 0) key[i].key /= bytes[i];
    }
    qsort(key, (size_t)layers, sizeof *key, ddp__osp_order);
    for (int i = 0; i < layers; i++) {
        if (!(key[i].bytes > 0)) continue; /* nothing to defer; so budget 0 defers no layer */
        if (sum + key[i].bytes <= budget) {
            sum += key[i].bytes;
            late[key[i].layer] = 1;
        } else if (rule == DDP_OSP_STOP) {
            break;
        }
    }
    return sum;
}

/* ---- the knapsack rule: least importance with bytes between those of the walk and the budget ----
 *
 * By rising importance per byte, the layers at the front are deferred, those at the back are sent, and only a window
 * around the place where the walk's bytes are reached is in doubt. All subsets of the window are met in the middle:
 * each half lists its subsets by bytes, and as the front's bytes fall, those of the back that keep within both bounds
 * slide up; a queue holds their minimum. With no more layers than the window has, that is the optimum. */

/* Layers in the window, half of them on each side: 2^16 subsets each. */
enum { DDP__OSP_HALF = 16 };

typedef struct ddp__osp_subset {
    double   bytes, importance;
    unsigned set;
} ddp__osp_subset;

/* All subsets of n layers, by rising bytes: with each layer the list is merged with itself moved up. to and spare have
 * room for 2^n; returns which of the two holds the list. */
static ddp__osp_subset *ddp__osp_subsets(const ddp__osp_key *key, const double *importance, int n, ddp__osp_subset *to,
                                         ddp__osp_subset *spare)
{
    ddp__osp_subset *swap;
    size_t size = 1, i, j, k;

    memset(to, 0, sizeof *to);
    for (int l = 0; l < n; l++, size *= 2) {
        for (i = j = k = 0; j < size; k++) {
            if (i < size && to[i].bytes <= to[j].bytes + key[l].bytes) {
                spare[k] = to[i++];
                continue;
            }
            spare[k] = to[j++];
            spare[k].bytes += key[l].bytes;
            spare[k].importance += importance[key[l].layer];
            spare[k].set |= 1u << l;
        }
        swap = to;
        to = spare;
        spare = swap;
    }
    return to;
}

/* The least important pair with bytes from low to high; 0 if there is none. queue: room for nb. */
static int ddp__osp_pair(const ddp__osp_subset *a, size_t na, const ddp__osp_subset *b, size_t nb, double low,
                         double high, int *queue, unsigned *set_a, unsigned *set_b)
{
    size_t head = 0, tail = 0, entered = 0;
    double least = INFINITY;

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
    return least < INFINITY;
}

/* Sets late[l] of all layers by the window's best choice; 0 if none keeps to low..high. room [5 most], most = the
 * subsets of half a window. */
static int ddp__osp_window(int layers, const double *importance, const double *bytes, double low, double high,
                           ddp__osp_key *key, ddp__osp_subset *room, size_t most, int *late)
{
    ddp__osp_subset *a, *b;
    unsigned set[2] = {0, 0};
    double fixed = 0;
    int i, n = 0, from = 0, half, rest;

    for (i = 0; i < layers; i++) {
        late[i] = 0;
        if (!(bytes[i] > 0)) continue;
        key[n].layer = i;
        key[n].bytes = bytes[i];
        key[n++].key = importance[i] / bytes[i];
    }
    qsort(key, (size_t)n, sizeof *key, ddp__osp_order);
    while (from < n && fixed < low) fixed += key[from++].bytes;
    from = from - DDP__OSP_HALF < n - 2 * DDP__OSP_HALF ? from - DDP__OSP_HALF : n - 2 * DDP__OSP_HALF;
    if (from < 0) from = 0;
    for (fixed = 0, i = 0; i < from; i++) {
        fixed += key[i].bytes;
        late[key[i].layer] = 1;
    }
    rest = n - from < 2 * DDP__OSP_HALF ? n - from : 2 * DDP__OSP_HALF;
    half = rest / 2;
    a = ddp__osp_subsets(key + from, importance, half, room, room + most);
    b = ddp__osp_subsets(key + from + half, importance, rest - half, room + 2 * most, room + 3 * most);
    if (!ddp__osp_pair(a, (size_t)1 << half, b, (size_t)1 << (rest - half), low - fixed, high - fixed,
                       (int *)(room + 4 * most), &set[0], &set[1]))
        return 0;
    for (i = 0; i < rest; i++)
        late[key[from + i].layer] = i < half ? (int)(set[0] >> i & 1) : (int)(set[1] >> (i - half) & 1);
    return 1;
}

/* Takes the choice `next` if it keeps to *deferred..budget bytes with less importance than `late`, whose bytes
 * *deferred are; low = the least bytes allowed. */
static void ddp__osp_take(int layers, const double *importance, const double *bytes, double low, double budget,
                          const int *next, int *late, double *deferred)
{
    double sum = 0, before = 0, after = 0;

    for (int i = 0; i < layers; i++) {
        if (late[i]) before += importance[i];
        if (!next[i]) continue;
        sum += bytes[i];
        after += importance[i];
    }
    if (sum < low || sum > budget || !(after < before)) return;
    memcpy(late, next, (size_t)layers * sizeof *late);
    *deferred = sum;
}

/* Improves the walk's choice `late`, *deferred bytes. next: scratch [layers]. */
static ddp_status ddp__osp_knapsack(int layers, const double *importance, const double *bytes, double budget,
                                    ddp__osp_key *key, int *next, int *late, double *deferred, ddp_error *err)
{
    int half = layers < 2 * DDP__OSP_HALF ? (layers + 1) / 2 : DDP__OSP_HALF;
    size_t most = (size_t)1 << half;
    double low = *deferred;
    ddp__osp_subset *room;

    if (!(low > 0)) return DDP_OK;
    room = (ddp__osp_subset *)ddp__calloc(5 * most, sizeof *room);
    if (!room) return ddp__fail(err, DDP_MEMORY, "no memory to rank %d layers", layers);
    ddp__osp_walk(layers, importance, bytes, budget, DDP_OSP_DENSITY, key, next);
    ddp__osp_take(layers, importance, bytes, low, budget, next, late, deferred);
    if (ddp__osp_window(layers, importance, bytes, low, budget, key, room, most, next))
        ddp__osp_take(layers, importance, bytes, low, budget, next, late, deferred);
    DDP_FREE(room);
    return DDP_OK;
}

static ddp_status ddp__osp_check(int layers, const double *importance, const double *bytes, double budget,
                                 ddp_osp_rule rule, ddp_error *err)
{
    double total = 0;

    if (layers < 1 || !importance || !bytes)
        return ddp__fail(err, DDP_ARG, "ddp_osp_rank: %d layers or a NULL array; it needs at least 1", layers);
    if (!(budget >= 0 && budget <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "budget is %g bytes; it must be finite and at least 0", budget);
    if (rule != DDP_OSP_WALK && rule != DDP_OSP_STOP && rule != DDP_OSP_DENSITY && rule != DDP_OSP_KNAPSACK)
        return ddp__fail(err, DDP_ARG, "rule %d is unknown; use walk, stop, density or knapsack", (int)rule);
    for (int i = 0; i < layers; i++) {
        if (!(importance[i] >= 0 && importance[i] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG, "layer %d has importance %g; it must be finite and at least 0", i,
                             importance[i]);
        if (!(bytes[i] >= 0 && bytes[i] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG, "layer %d has %g bytes; it must be finite and at least 0", i, bytes[i]);
        total += bytes[i];
    }
    if (!(total <= DBL_MAX)) return ddp__fail(err, DDP_NUMERIC, "the layers have more bytes than a double holds");
    return DDP_OK;
}

ddp_status ddp_osp_rank(int layers, const double *importance, const double *bytes, double budget, ddp_osp_rule rule,
                        unsigned char *gib, double *deferred, ddp_error *err)
{
    ddp_status status = DDP_OK;
    ddp__osp_key *key;
    double sum;
    int *whole, i;
    size_t L;

    DDP__TRY(ddp__osp_check(layers, importance, bytes, budget, rule, err));
    if (!gib) return ddp__fail(err, DDP_ARG, "ddp_osp_rank: gib is NULL");
    L = (size_t)layers;
    key = (ddp__osp_key *)ddp__calloc(L, sizeof *key);
    whole = (int *)ddp__calloc(2 * L, sizeof *whole);
    if (!key || !whole) {
        status = ddp__fail(err, DDP_MEMORY, "no memory to rank %d layers", layers);
    } else {
        sum = ddp__osp_walk(layers, importance, bytes, budget, rule, key, whole);
        if (rule == DDP_OSP_KNAPSACK)
            status = ddp__osp_knapsack(layers, importance, bytes, budget, key, whole + L, whole, &sum, err);
        if (status == DDP_OK) {
            memset(gib, 0, (L + 7) / 8);
            for (i = 0; i < layers; i++)
                if (!whole[i]) gib[i / 8] = (unsigned char)(gib[i / 8] | 1 << i % 8);
            if (deferred) *deferred = sum;
        }
    }
    DDP_FREE(key);
    DDP_FREE(whole);
    return status;
}

ddp_status ddp_osp_umax(double bytes_per_s, double loss_rate, double compute_s, int workers, double model_bytes,
                        int literal, double *out, ddp_error *err)
{
    double u;

    if (!(bytes_per_s > 0 && bytes_per_s <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "the server sends %g bytes a second; it must be finite and above 0",
                         bytes_per_s);
    if (!(loss_rate >= 0 && loss_rate <= 1))
        return ddp__fail(err, DDP_ARG, "the loss rate is %g; it must be from 0 to 1", loss_rate);
    if (!(compute_s >= 0 && compute_s <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "computing takes %g s; it must be finite and at least 0", compute_s);
    if (workers < 1) return ddp__fail(err, DDP_ARG, "%d workers; there is at least 1", workers);
    if (!(model_bytes >= 0 && model_bytes <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "the model has %g bytes; it must be finite and at least 0", model_bytes);
    if (!out) return ddp__fail(err, DDP_ARG, "ddp_osp_umax: out is NULL");
    u = bytes_per_s * compute_s / workers;
    u = literal ? u * (1 + loss_rate) : u / (1 + loss_rate);
    *out = u < 0.8 * model_bytes ? u : 0.8 * model_bytes;
    return DDP_OK;
}

double ddp_osp_budget(double loss, double first_loss, double u_max)
{
    double part;

    if (!(u_max > 0) || !(first_loss > 0 && first_loss <= DBL_MAX) || !(fabs(loss) <= DBL_MAX)) return 0;
    part = 1 - loss / first_loss;
    return part <= 0 ? 0 : part >= 1 ? u_max : part * u_max;
}
