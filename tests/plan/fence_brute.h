/* Random instances for OP-Fence, and the best of all cuts by exhaustive search. Eq. 2 and 3 are implemented
 * from their text and share no code with the library. Include after fence_lab.h. */
#ifndef TESTS_FENCE_BRUTE_H
#define TESTS_FENCE_BRUTE_H

enum { MOST_OPS = 12, MOST_DEVICES = 7 };

static void net_memory(ddp_network *net, double bytes)
{
    int i;

    if (!net->memory_bytes) net->memory_bytes = (double *)calloc((size_t)net->devices, sizeof(double));
    for (i = 0; i < net->devices; i++) net->memory_bytes[i] = bytes;
}

typedef struct instance {
    ddp_oplist list;
    ddp_network net;
    ddp_fence_options o;
} instance;

static void instance_free(instance *x)
{
    ddp_oplist_free(&x->list);
    ddp_network_free(&x->net);
}

/* A chain with skip edges and some leaves. Every other instance has whole numbers, so that ties are exact. In
 * some only the network matters, and gradients are larger than results. */
static instance instance_random(ddp_rng *r, int most_ops, int most_devices, int whole)
{
    instance x;
    int n = 1 + (int)ddp_rng_below(r, (uint64_t)most_ops), i, j, k, P;
    int network = ddp_rng_below(r, 3) == 0;
    ddp_error err;

    x.list = list_of(n);
    for (i = 0; i < n; i++) {
        int args[MOST_OPS], count = 0;
        int leaf = ddp_rng_below(r, 8) == 0, data = leaf && ddp_rng_below(r, 2);
        double flops = ddp_rng_uniform(r) * 20, out = ddp_rng_uniform(r) * 10;
        double params = ddp_rng_below(r, 2) ? ddp_rng_uniform(r) * 10 : 0;
        if (!leaf && i > 0) args[count++] = i - 1;
        for (j = 0; !leaf && j + 1 < i; j++)
            if (ddp_rng_below(r, 5) == 0) args[count++] = j;
        if (data) flops = params = 0;
        if (ddp_rng_below(r, 8) == 0) out = 0;
        if (network) flops *= 0.01;
        if (whole) {
            flops = floor(flops);
            out = floor(out);
            params = floor(params);
        }
        must(ddp_oplist_set(&x.list, i, NULL, args, count, flops, out, params, &err), &err);
    }
    P = 1 + (int)ddp_rng_below(r, (uint64_t)most_devices);
    x.net = net_of(P, 0, 1);
    for (i = 0; i < P; i++) {
        x.net.speed[i] = whole ? 10 : 1 + ddp_rng_uniform(r) * 20;
        for (k = 0; k < P; k++) {
            if (k == i) continue;
            x.net.delay_s[i * P + k] = whole ? (double)ddp_rng_below(r, 2) : ddp_rng_uniform(r);
            x.net.rate[i * P + k] = whole ? 4 : 0.5 + ddp_rng_uniform(r) * 20;
            if (network && i > k) x.net.delay_s[i * P + k] += 3 * ddp_rng_uniform(r);
        }
    }
    memset(&x.o, 0, sizeof x.o);
    x.o.work.microbatches = 1 + (int)ddp_rng_below(r, 2) * (int)ddp_rng_below(r, 20);
    x.o.work.forward_only = (int)ddp_rng_below(r, 2);
    x.o.allow_idle = n < P ? 1 : (int)ddp_rng_below(r, 2);
    if (ddp_rng_below(r, 3) == 0) {
        net_memory(&x.net, 0);
        for (i = 0; i < P; i++) x.net.memory_bytes[i] = ddp_rng_uniform(r) * 400;
    }
    return x;
}

/* Eq. 2 and 3 as printed: for every ordered pair of devices, the data sent from one to the other. Infinity if
 * memory is exceeded. */
static double plain_pipeline(const instance *x, const int *where)
{
    int n = x->list.count, P = x->net.devices, p, q, i, j, k, used;
    int back = !x->o.work.forward_only, turns = x->o.work.microbatches;
    double sum = 0, worst = 0, c, r, mem, bytes;

    for (p = 0; p < P; p++) {
        c = r = mem = 0;
        for (i = 0; i < n; i++) {
            const ddp_oplist_entry *e = &x->list.op[i];
            int gradient = back && (e->arg_count > 0 || e->param_bytes > 0);
            bytes = e->output_bytes;
            if (where[i] == p) {
                c += e->flops / x->net.speed[p] * (back ? 3 : 1);
                mem += e->param_bytes * (back ? 4 : 1) + bytes * (back ? turns : 1);
            }
            for (q = 0; q < P; q++) { /* does q use i? */
                for (used = 0, j = i + 1; j < n; j++)
                    for (k = 0; k < x->list.op[j].arg_count; k++)
                        if (x->list.op[j].args[k] == i && where[j] == q) used = 1;
                if (!used || q == where[i]) continue;
                if (q == p) {
                    r += x->net.delay_s[where[i] * P + p] + bytes / x->net.rate[where[i] * P + p];
                    mem += bytes * (back ? turns : 1);
                }
                if (where[i] == p && gradient)
                    r += x->net.delay_s[q * P + p] + bytes / x->net.rate[q * P + p];
            }
        }
        if (x->net.memory_bytes && mem > x->net.memory_bytes[p]) return INFINITY;
        sum += c + r;
        worst = fmax(worst, fmax(c, r));
    }
    return sum + (turns - 1) * worst;
}

/* The device of each operator, if position k of `order` runs cut[k]..cut[k+1]-1. */
static void place(const instance *x, const int *order, const int *cut, int *where)
{
    int n = x->list.count, i, j, k, user;

    for (k = 0; k < x->net.devices; k++)
        for (i = cut[k]; i < cut[k + 1]; i++) where[i] = order[k];
    for (i = n - 1; i >= 0; i--) { /* input data are placed with their first user */
        const ddp_oplist_entry *e = &x->list.op[i];
        if (e->arg_count > 0 || e->param_bytes > 0 || e->flops > 0) continue;
        for (user = -1, j = n - 1; j > i; j--)
            for (k = 0; k < x->list.op[j].arg_count; k++)
                if (x->list.op[j].args[k] == i) user = j;
        if (user >= 0) where[i] = where[user];
    }
}

/* The best of all cuts from position k on. */
static double best_cut(const instance *x, const int *order, int *cut, int k)
{
    int where[MOST_OPS], P = x->net.devices, b;
    double best = INFINITY;

    if (k == P - 1) {
        cut[P] = x->list.count;
        if (cut[P] == cut[k] && !x->o.allow_idle) return INFINITY;
        place(x, order, cut, where);
        return plain_pipeline(x, where);
    }
    for (b = cut[k] + (x->o.allow_idle ? 0 : 1); b <= x->list.count; b++) {
        cut[k + 1] = b;
        best = fmin(best, best_cut(x, order, cut, k + 1));
    }
    return best;
}

#endif /* TESTS_FENCE_BRUTE_H */
