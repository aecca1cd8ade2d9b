#include "base/platform.h"
#include "base/fail.h"
#include "base/memory.h"
#include "plan/knapsack.h"
#include "plan/osp.h"

ddp_status ddp_osp_importance(const float *gradient, const float *parameter, size_t n, int mean,
                              double *out, ddp_error *err)
{
    double sum = 0, x;
    size_t i;

    if (!gradient || !parameter || !out || n == 0)
        return ddp__fail(err, DDP_ARG, "ddp_osp_importance: %zu elements or a NULL array; it needs "
                         "at least 1", n);
    for (i = 0; i < n; i++) {
        x = fabs((double)gradient[i] * (double)parameter[i]);
        if (!(x <= DBL_MAX))
            return ddp__fail(err, DDP_NUMERIC, "element %zu: gradient %g and parameter %g; both "
                             "must be finite", i, (double)gradient[i], (double)parameter[i]);
        sum += x;
    }
    *out = mean ? sum / (double)n : sum;
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
static double ddp__osp_walk(int layers, const double *importance, const double *bytes,
                            double budget, ddp_osp_rule rule, ddp__osp_key *key, int *late)
{
    double sum = 0;
    int i;

    for (i = 0; i < layers; i++) {
        key[i].layer = i;
        key[i].bytes = bytes[i];
        key[i].key = importance[i];
        late[i] = 0;
        if (rule == DDP_OSP_DENSITY && bytes[i] > 0) key[i].key /= bytes[i];
    }
    qsort(key, (size_t)layers, sizeof *key, ddp__osp_order);
    for (i = 0; i < layers; i++) {
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

/* Replaces the walk's choice by the knapsack's where that is at least as good in both respects.
 * *deferred: bytes of the walk, then of the result. item, value, on: scratch [layers]. */
static ddp_status ddp__osp_knapsack(int layers, const double *importance, const double *bytes,
                                    double budget, double *item, double *value, int *on, int *late,
                                    double *deferred, ddp_error *err)
{
    ddp_knapsack_problem p;
    double total = 0, sum = 0, before = 0, after = 0;
    int i, n = 0;

    for (i = 0; i < layers; i++) {
        total += bytes[i];
        if (late[i]) before += importance[i];
        if (!(bytes[i] > 0)) continue;
        item[n] = bytes[i];
        value[n++] = importance[i];
    }
    if (n == 0 || !(total > *deferred) || !(*deferred > 0)) return DDP_OK;
    memset(&p, 0, sizeof p);
    p.items = n;
    p.item_s = item;
    p.value = value;
    p.links = 1;
    p.deadline_s[0] = total - *deferred;
    DDP__TRY(ddp_knapsack(&p, DDP_KNAPSACK_DEFAULT, on, NULL, err));
    for (i = n = 0; i < layers; i++) {
        if (!(bytes[i] > 0)) continue;
        if (on[n++] >= 0) continue;
        sum += bytes[i];
        after += importance[i];
    }
    if (sum < *deferred || sum > budget || after > before) return DDP_OK;
    *deferred = sum;
    for (i = n = 0; i < layers; i++)
        if (bytes[i] > 0) late[i] = on[n++] < 0;
    return DDP_OK;
}

static ddp_status ddp__osp_check(int layers, const double *importance, const double *bytes,
                                 double budget, ddp_osp_rule rule, ddp_error *err)
{
    double total = 0;
    int i;

    if (layers < 1 || !importance || !bytes)
        return ddp__fail(err, DDP_ARG, "ddp_osp_rank: %d layers or a NULL array; it needs at "
                         "least 1", layers);
    if (!(budget >= 0 && budget <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "budget is %g bytes; it must be finite and at least 0",
                         budget);
    if (rule != DDP_OSP_WALK && rule != DDP_OSP_STOP && rule != DDP_OSP_DENSITY &&
        rule != DDP_OSP_KNAPSACK)
        return ddp__fail(err, DDP_ARG, "rule %d is unknown; use walk, stop, density or knapsack",
                         (int)rule);
    for (i = 0; i < layers; i++) {
        if (!(importance[i] >= 0 && importance[i] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG,
                             "layer %d has importance %g; it must be finite and at least 0", i,
                             importance[i]);
        if (!(bytes[i] >= 0 && bytes[i] <= DBL_MAX))
            return ddp__fail(err, DDP_ARG,
                             "layer %d has %g bytes; it must be finite and at least 0", i,
                             bytes[i]);
        total += bytes[i];
    }
    if (!(total <= DBL_MAX))
        return ddp__fail(err, DDP_NUMERIC, "the layers have more bytes than a double holds");
    return DDP_OK;
}

ddp_status ddp_osp_rank(int layers, const double *importance, const double *bytes, double budget,
                        ddp_osp_rule rule, unsigned char *gib, double *deferred, ddp_error *err)
{
    ddp_status status = DDP_OK;
    ddp__osp_key *key;
    double *real, sum;
    int *whole, i;
    size_t L;

    DDP__TRY(ddp__osp_check(layers, importance, bytes, budget, rule, err));
    if (!gib) return ddp__fail(err, DDP_ARG, "ddp_osp_rank: gib is NULL");
    L = (size_t)layers;
    key = (ddp__osp_key *)ddp__calloc(L, sizeof *key);
    real = (double *)ddp__calloc(2 * L, sizeof *real);
    whole = (int *)ddp__calloc(2 * L, sizeof *whole);
    if (!key || !real || !whole) {
        status = ddp__fail(err, DDP_MEMORY, "no memory to rank %d layers", layers);
    } else {
        sum = ddp__osp_walk(layers, importance, bytes, budget, rule, key, whole);
        if (rule == DDP_OSP_KNAPSACK)
            status = ddp__osp_knapsack(layers, importance, bytes, budget, real, real + L, whole + L,
                                       whole, &sum, err);
        if (status == DDP_OK) {
            memset(gib, 0, (L + 7) / 8);
            for (i = 0; i < layers; i++)
                if (!whole[i]) gib[i / 8] = (unsigned char)(gib[i / 8] | 1 << i % 8);
            if (deferred) *deferred = sum;
        }
    }
    DDP_FREE(key);
    DDP_FREE(real);
    DDP_FREE(whole);
    return status;
}

ddp_status ddp_osp_umax(double bytes_per_s, double loss_rate, double compute_s, int workers,
                        double model_bytes, int literal, double *out, ddp_error *err)
{
    double u;

    if (!(bytes_per_s > 0 && bytes_per_s <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "the server sends %g bytes a second; it must be finite and "
                         "above 0", bytes_per_s);
    if (!(loss_rate >= 0 && loss_rate <= 1))
        return ddp__fail(err, DDP_ARG, "the loss rate is %g; it must be from 0 to 1", loss_rate);
    if (!(compute_s >= 0 && compute_s <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "computing takes %g s; it must be finite and at least 0",
                         compute_s);
    if (workers < 1) return ddp__fail(err, DDP_ARG, "%d workers; there is at least 1", workers);
    if (!(model_bytes >= 0 && model_bytes <= DBL_MAX))
        return ddp__fail(err, DDP_ARG, "the model has %g bytes; it must be finite and at least 0",
                         model_bytes);
    if (!out) return ddp__fail(err, DDP_ARG, "ddp_osp_umax: out is NULL");
    u = bytes_per_s * compute_s / workers;
    u = literal ? u * (1 + loss_rate) : u / (1 + loss_rate);
    *out = u < 0.8 * model_bytes ? u : 0.8 * model_bytes;
    return DDP_OK;
}

double ddp_osp_budget(double loss, double first_loss, double u_max)
{
    double part;

    if (!(u_max > 0) || !(first_loss > 0 && first_loss <= DBL_MAX) || !(fabs(loss) <= DBL_MAX))
        return 0;
    part = 1 - loss / first_loss;
    return part <= 0 ? 0 : part >= 1 ? u_max : part * u_max;
}
