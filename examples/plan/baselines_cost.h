/* The cost of a GPT's step on a network under DT-FM, Megatron, ZeRO and FSDP. docs/explanation/placement.md
 * has the formulas and their sources. */
#ifndef EXAMPLES_PLAN_BASELINES_COST_H
#define EXAMPLES_PLAN_BASELINES_COST_H

#include "common.h"

typedef struct baselines_arguments {
    const char *network, *variant, *json;
    long layers, dim, heads, seq, vocab, batch, micro_batch, pipelines, stages, degrees, seed, seeds,
        candidates;
    double peak, share, memory, gradient_bytes; /* in TFLOP/s, 0..1, GB, bytes per value */
    int keep, overlap, machines, all, text;
} baselines_arguments;

typedef struct baselines_case {
    const baselines_arguments *a;
    ddp_network n; /* bytes is for the grid of DT-FM, and rates is the share of each device */
    double *whole; /* [devices x devices] rates as in the file */
    int *machine;  /* [devices] first device of the same machine */
    int *leaving;  /* [devices] scratch for counts */
    double params;
    double layer_s;                       /* forward time of one layer for one sequence on one device */
    double back;                          /* backward time divided by forward time */
    double hop_bytes;                     /* bytes of one sequence's activations at a boundary */
    double flops;                         /* per step, recomputation included */
    double dtfm_s;                        /* step time under DT-FM, 0 if not computed yet */
    int tensor_share;                     /* tensor rings of the grid that share a machine's external link */
    int *order;                           /* [devices] rank -> device */
    int *at;                              /* [devices] (replica x stages + stage) x tensor + part -> device */
    ddp_stage_cost *stage, *stage_before; /* [devices] stages of a pipeline */
    ddp_boundary *edge, *edge_before;
} baselines_case;

typedef struct baselines_row {
    const char *scheme;
    int tensor, pipeline, data;
    long micro_batch;                   /* sequences */
    long flushes;                       /* pipeline flushes per step, or micro-steps per step of ZeRO */
    double step_s, compute_s, bubble_s; /* the rest of step_s is exposed communication. step_s is 0 if
                                           impossible */
    double best_s;                      /* best of several layouts, whose mean is step_s, or 0 otherwise */
    double memory;                      /* largest memory of a device in bytes */
    char why[320];
} baselines_row;

static int baselines_fits(const baselines_case *c, const baselines_row *r)
{
    return r->step_s > 0 && r->memory <= c->a->memory * 1e9;
}

static void baselines_costs(baselines_case *c)
{
    const baselines_arguments *a = c->a;
    const double s = (double)a->seq, d = (double)a->dim, L = (double)a->layers, batch = (double)a->batch;
    const double forward = 24 * s * d * d * (1 + s / (6 * d)); /* per layer and sequence (Narayanan and others
                                                                * 2021) */

    c->back = a->keep ? 2 : 3;
    c->params = L * (12 * d * d + 13 * d) + (double)a->vocab * d + s * d;
    c->layer_s = forward / (1e12 * a->peak * a->share);
    c->hop_bytes = 2 * s * d;
    c->flops = batch * L * forward * (1 + c->back);
    c->n.dp_bytes = c->params / c->n.stages * a->gradient_bytes;
    c->n.pp_bytes = batch / c->n.pipelines * c->hop_bytes;
}

/* ---- links: the mean of both directions, as in the placement ---- */

static double baselines_mean(const baselines_case *c, const double *matrix, int x, int y)
{
    const size_t N = (size_t)c->n.devices;

    return (matrix[(size_t)x * N + (size_t)y] + matrix[(size_t)y * N + (size_t)x]) / 2;
}

/* Finds the machines. A machine is a group whose internal links are faster than the other links of its
 * devices, which share its external link. The rate between two machines is divided by the number of devices
 * of the larger one, as if all of them send at the same time. */
static void baselines_machines(baselines_case *c)
{
    const int N = c->n.devices;

    memcpy(c->whole, c->n.rate, (size_t)N * (size_t)N * sizeof *c->whole);
    for (int x = 0; x < N; x++) {
        double out = 0;
        c->machine[x] = x;
        for (int y = 0; y < N && c->a->machines && c->n.group; y++)
            if (c->n.group[y] != c->n.group[x]) out = fmax(out, baselines_mean(c, c->whole, x, y));
        for (int y = x - 1; y >= 0 && out > 0; y--)
            if (c->n.group[y] == c->n.group[x] && baselines_mean(c, c->whole, x, y) > out)
                c->machine[x] = c->machine[y];
        c->leaving[c->machine[x]]++;
    }
    for (int x = 0; x < N; x++)
        for (int y = 0; y < N; y++) {
            const int a = c->leaving[c->machine[x]], b = c->leaving[c->machine[y]];
            if (c->machine[x] != c->machine[y]) c->n.rate[(size_t)x * (size_t)N + (size_t)y] /= a > b ? a : b;
        }
}

/* Counts the links of rings that leave a machine, and returns the largest number for one machine. Ring i has
 * `count` devices, `stride` apart, from c->at + i x step on. */
static int baselines_leaving(baselines_case *c, int rings, int step, int count, int stride)
{
    int most = 1;

    memset(c->leaving, 0, (size_t)c->n.devices * sizeof *c->leaving);
    for (int i = 0; i < rings * count && c->a->machines; i++) {
        const int *ring = c->at + i / count * step, x = ring[i % count * stride],
                  y = ring[(i + 1) % count * stride];
        const int from = c->machine[x];
        if (from != c->machine[y] && ++c->leaving[from] > most) most = c->leaving[from];
    }
    return most;
}

/* Returns the seconds of one pass over a ring of device[0], device[stride], ...: a reduce-scatter or an
 * all-gather. The pass has count - 1 turns at the rate of the slowest link, and the delays of all links but
 * the one with the shortest delay. *slow receives the index at which the slowest link begins. */
static double baselines_ring(const baselines_case *c, const int *device, int count, int stride, double bytes,
                             int share, int *slow)
{
    double sum = 0, least = DBL_MAX, rate = DBL_MAX;

    for (int i = 0; i < count && count > 1; i++) {
        const int x = device[i * stride], y = device[(i + 1) % count * stride];
        const double a = baselines_mean(c, c->n.delay_s, x, y);
        const double b = baselines_mean(c, c->whole, x, y) / (c->machine[x] != c->machine[y] ? share : 1);
        sum += a;
        if (a < least) least = a;
        if (b < rate) {
            rate = b;
            if (slow) *slow = i;
        }
    }
    return count > 1 ? sum - least + (count - 1) * bytes / count / rate : 0;
}

/* ---- memory ---- */

/* Returns the bytes of a layer's activations for b sequences (Korthikanti and others 2022, Eq. 2). */
static double baselines_working(const baselines_case *c, double b, int tensor)
{
    const double s = (double)c->a->seq, d = (double)c->a->dim, heads = (double)c->a->heads;

    return s * b * d * (10 + 24.0 / tensor + 5 * heads * s / (d * tensor));
}

/* Returns the bytes of `held` micro-batches of `layers` layers, and of `state` bytes per parameter. */
static double baselines_memory(const baselines_case *c, double params, double state, double layers, double b,
                               double held, int tensor)
{
    const double working = baselines_working(c, b, tensor);

    return params * state +
           (c->a->keep ? layers * held * working : layers * held * b * c->hop_bytes + working);
}

/* ---- a grid of tensor x pipeline x data devices ---- */

typedef struct baselines_way {
    ddp_pipeline schedule;
    int blocking; /* 1 if a stage does not compute while it sends */
    int sharded;  /* 1 if the optimizer state is sharded over the replicas */
    int eq2;      /* 1 if the sharded server of DT-FM averages gradients, 0 for rings */
} baselines_way;

/* Returns the seconds for which a message occupies its sender. */
static double baselines_send(const baselines_case *c, const baselines_way *w, double bytes, int x, int y)
{
    return bytes / baselines_mean(c, c->n.rate, x, y) +
           (w->blocking ? baselines_mean(c, c->n.delay_s, x, y) : 0);
}

/* Sets the costs of a micro-batch in stage p of replica d. */
static void baselines_stage(baselines_case *c, const baselines_row *r, const baselines_way *w, int d, int p)
{
    const int T = r->tensor, P = r->pipeline, *mine = c->at + (d * P + p) * T, *next = mine + T,
              *before = mine - T;
    const double layers = (double)c->a->layers / P, b = (double)r->micro_batch, bytes = b * c->hop_bytes;
    const double reduce =
        2 * baselines_ring(c, mine, T, 1, bytes, c->tensor_share, NULL); /* two all-reduces per layer and
                                                                          * pass */
    double forward = layers * (b * c->layer_s / T + 2 * reduce), up = 0, down = 0;
    double backward = layers * (c->back * b * c->layer_s / T + 2 * (c->back - 1) * reduce);

    for (int t = 0; t < T; t++) {
        if (p + 1 < P) down = fmax(down, baselines_send(c, w, bytes, mine[t], next[t]));
        if (p > 0) up = fmax(up, baselines_send(c, w, bytes, mine[t], before[t]));
    }
    if (w->blocking) {
        forward += down;
        backward += up;
    }
    c->stage[p].forward_s = forward;
    c->stage[p].inputs_s = c->stage[p].weights_s = backward / 2;
    if (p + 1 == P) return;
    memset(&c->edge[p], 0, sizeof c->edge[p]);
    c->edge[p].from = p;
    c->edge[p].to = p + 1;
    if (w->blocking) return;
    c->edge[p].forward_s = c->edge[p].backward_s = down;
    for (int t = 0; t < T; t++)
        c->edge[p].alpha_s = fmax(c->edge[p].alpha_s, baselines_mean(c, c->n.delay_s, mine[t], next[t]));
}

/* Computes the pipeline time of the slowest replica, and the ideal time without communication. */
static ddp_status baselines_pipelines(baselines_case *c, const baselines_row *r, const baselines_way *w,
                                      long micro_batches, double *out, double *ideal, ddp_error *err)
{
    const size_t P = (size_t)r->pipeline;
    ddp_pipeline_costs costs;
    ddp_pipeline_times t;
    ddp_status s = DDP_OK;

    memset(&costs, 0, sizeof costs);
    costs.shape.schedule = w->schedule;
    costs.shape.stages = r->pipeline;
    costs.shape.micro_batches = (int)micro_batches;
    costs.stage = c->stage;
    costs.boundaries = r->pipeline - 1;
    costs.boundary = c->edge;
    *out = 0;
    /* equal stages without communication: M + P - 1 forward and backward passes, under both schedules */
    *ideal = (double)(micro_batches + r->pipeline - 1) * (double)c->a->layers / r->pipeline * (1 + c->back) *
             (double)r->micro_batch * c->layer_s / r->tensor;
    for (int d = 0; d < r->data && s == DDP_OK; d++) {
        for (int p = 0; p < r->pipeline; p++) baselines_stage(c, r, w, d, p);
        if (d > 0 && !memcmp(c->stage, c->stage_before, P * sizeof *c->stage) &&
            !memcmp(c->edge, c->edge_before, (P - 1) * sizeof *c->edge))
            continue; /* same costs as the previous replica */
        memcpy(c->stage_before, c->stage, P * sizeof *c->stage);
        memcpy(c->edge_before, c->edge, (P - 1) * sizeof *c->edge);
        s = ddp_pipeline_time(&costs, &t, err);
        if (s == DDP_OK && t.step_s > *out) *out = t.step_s;
        if (s == DDP_OK) ddp_pipeline_times_free(&t);
    }
    return s;
}

/* Computes the time to average the gradients of the slowest stage. */
static ddp_status baselines_average(baselines_case *c, const baselines_row *r, const baselines_way *w,
                                    double *out, ddp_error *err)
{
    const int T = r->tensor, P = r->pipeline;
    const double bytes = c->params / ((double)P * T) * c->a->gradient_bytes;
    double cost = 0, hops = 0;
    int share;

    *out = 0;
    if (w->eq2) return ddp_place_cost(&c->n, r->data, P, c->at, &cost, out, &hops, err);
    share = baselines_leaving(c, P * T, 1, r->data, P * T);
    for (int i = 0; i < P * T; i++)
        *out = fmax(*out, 2 * baselines_ring(c, c->at + i, r->data, P * T, bytes, share, NULL));
    return DDP_OK;
}

/* Computes a row from c->at and from the row's grid and micro-batch. */
static ddp_status baselines_grid(baselines_case *c, baselines_row *r, const baselines_way *w, ddp_error *err)
{
    const int P = r->pipeline;
    const double layers = (double)c->a->layers / P;
    const double state = w->sharded ? 4 + 12.0 / r->data : 16;
    const double params = c->params / ((double)P * r->tensor), room = c->a->memory * 1e9;
    const long all = c->a->batch / r->data / r->micro_batch;
    long m = all;
    double pipeline = 0, ideal = 0, average = 0;
    ddp_status s;

    for (;; m--) { /* gpipe stores all micro-batches of a flush: use the largest flush that fits into
                    * memory */
        const double held = w->schedule == DDP_PIPELINE_GPIPE ? (double)m : fmin((double)all, P);
        r->memory = baselines_memory(c, params, state, layers, (double)r->micro_batch, held, r->tensor);
        if (w->schedule != DDP_PIPELINE_GPIPE || m == 1 || (all % m == 0 && r->memory <= room)) break;
    }
    r->flushes = all / m;
    c->tensor_share = baselines_leaving(c, P * r->data, r->tensor, r->tensor, 1);
    s = baselines_pipelines(c, r, w, m, &pipeline, &ideal, err);
    if (s == DDP_OK) s = baselines_average(c, r, w, &average, err);
    r->compute_s = (double)all * layers * (1 + c->back) * (double)r->micro_batch * c->layer_s / r->tensor;
    r->bubble_s = (double)r->flushes * ideal - r->compute_s;
    r->step_s = (double)r->flushes * pipeline + average;
    snprintf(r->why, sizeof r->why,
             "%s %ld x %ld micro-batches of %ld, transfers %s: %.4g s; averaging %.4g s by %s",
             ddp_pipeline_name(w->schedule), r->flushes, m, r->micro_batch,
             w->blocking ? "blocking" : "overlapped", (double)r->flushes * pipeline, average,
             w->eq2 ? "a sharded server" : "rings");
    return s;
}

/* Assigns devices in Megatron's order of ranks: neighbouring ranks are tensor parts, then replicas, then
 * stages. */
static void baselines_megatron_ranks(baselines_case *c, const baselines_row *r)
{
    const int T = r->tensor, P = r->pipeline, D = r->data;

    for (int p = 0; p < P; p++)
        for (int d = 0; d < D; d++)
            for (int t = 0; t < T; t++) c->at[(d * P + p) * T + t] = c->order[(p * D + d) * T + t];
}

/* ---- layouts ---- */

/* Sets the order of the devices. Layout -1 is the order of the file. Others are random, with the seed --seed
 * + layout. */
static ddp_status baselines_order(baselines_case *c, long layout, ddp_error *err)
{
    ddp_place_options o;
    ddp_placement p;
    ddp_status s = DDP_OK;

    for (int i = 0; i < c->n.devices; i++) c->order[i] = i;
    if (layout < 0) return s;
    memset(&o, 0, sizeof o);
    memset(&p, 0, sizeof p);
    o.solver = DDP_PLACE_RANDOM;
    o.max_candidates = 1;
    o.seed = (uint64_t)(c->a->seed + layout);
    s = ddp_place(&c->n, &o, &p, err);
    for (int i = 0; s == DDP_OK && i < c->n.devices; i++) c->order[i] = p.assign[i];
    ddp_placement_free(&p);
    return s;
}

static ddp_status baselines_dtfm(baselines_case *c, baselines_row *r, ddp_error *err)
{
    const baselines_way way = {DDP_PIPELINE_GPIPE, 0, 0, 1};
    ddp_place_options o;
    ddp_placement p;
    ddp_status s;

    memset(&o, 0, sizeof o);
    memset(&p, 0, sizeof p);
    o.seed = (uint64_t)c->a->seed;
    o.max_candidates = c->a->candidates;
    s = ddp_place(&c->n, &o, &p, err);
    for (int i = 0; s == DDP_OK && i < c->n.devices; i++) c->at[i] = p.assign[i];
    ddp_placement_free(&p);
    return s == DDP_OK ? baselines_grid(c, r, &way, err) : s;
}

/* Computes the mean of the layouts into *r. The rest of *r is from the last layout. */
static ddp_status baselines_layouts(baselines_case *c, baselines_row *r, const baselines_way *w, int megatron,
                                    long layouts, ddp_error *err)
{
    double sum = 0, best = DBL_MAX, worst = 0;
    ddp_status s = DDP_OK;
    size_t end;

    for (long i = 0; i < (layouts ? layouts : 1) && s == DDP_OK; i++) {
        s = baselines_order(c, layouts ? i : -1, err);
        if (megatron)
            baselines_megatron_ranks(c, r);
        else
            memcpy(c->at, c->order, (size_t)c->n.devices * sizeof *c->at);
        if (s == DDP_OK) s = baselines_grid(c, r, w, err);
        sum += r->step_s;
        best = fmin(best, r->step_s);
        worst = fmax(worst, r->step_s);
    }
    if (s != DDP_OK || !layouts) return s;
    r->step_s = sum / (double)layouts;
    r->best_s = best;
    end = strlen(r->why);
    snprintf(r->why + end, sizeof r->why - end, "; %ld layouts, %.4g to %.4g s", layouts, best, worst);
    return s;
}

/* ---- data parallelism over all devices ---- */

typedef enum baselines_zero_kind { BASELINES_ZERO1, BASELINES_ZERO3, BASELINES_FSDP } baselines_zero_kind;

static void baselines_link_name(const ddp_network *n, int x, int y, char *out, size_t room)
{
    if (n->group && n->group_name)
        snprintf(out, room, "%.40s - %.40s", n->group_name[n->group[x]], n->group_name[n->group[y]]);
    else
        snprintf(out, room, "devices %d - %d", x, y);
}

/* Computes a row of ZeRO or FSDP. It uses the largest micro-batch that fits into memory, because the traffic
 * of a micro-step does not depend on its size. */
static void baselines_zero(baselines_case *c, baselines_row *r, baselines_zero_kind kind)
{
    const int N = c->n.devices;
    const double L = (double)c->a->layers, layer = c->params / L, room = c->a->memory * 1e9;
    const double params =
        kind == BASELINES_ZERO1 ? c->params * (4 + 12.0 / N) : c->params * 16 / N + 4 * layer;
    const long mine = c->a->batch / N;
    double g, f, b, whole;
    char link[100];
    int slow = 0;

    r->tensor = r->pipeline = 1;
    r->data = N;
    if (c->a->batch % N) {
        snprintf(r->why, sizeof r->why, "a batch of %ld is not a multiple of %d devices", c->a->batch, N);
        return;
    }
    for (r->micro_batch = mine;; r->micro_batch--) {
        r->memory = params + baselines_memory(c, 0, 0, L, (double)r->micro_batch, 1, 1);
        if (r->micro_batch == 1 || (mine % r->micro_batch == 0 && r->memory <= room)) break;
    }
    r->flushes = mine / r->micro_batch;
    r->compute_s = (double)mine * L * (1 + c->back) * c->layer_s;
    for (int i = 0; i < N; i++) c->order[i] = i;
    whole = baselines_ring(c, c->order, N, 1, 2 * c->params, 1, &slow);
    g = baselines_ring(c, c->order, N, 1, 2 * layer, 1, NULL);
    f = (double)r->micro_batch * c->layer_s;
    b = c->back * f;
    if (kind == BASELINES_ZERO1)
        r->step_s = r->compute_s + 2 * whole;
    else if (kind == BASELINES_ZERO3)
        r->step_s = r->compute_s + (double)r->flushes * 3 * L * g;
    else
        r->step_s =
            (double)r->flushes * (g + (L - 1) * fmax(g, f) + f + 2 * g + (L - 1) * fmax(2 * g, b) + b);
    baselines_link_name(&c->n, slow, (slow + 1) % N, link, sizeof link);
    snprintf(
        r->why, sizeof r->why,
        "%ld micro-steps of %ld; one pass over the ring takes %.4g s for %s, limited by %s (%.4g Gbit/s)",
        r->flushes, r->micro_batch, kind == BASELINES_ZERO1 ? whole : g,
        kind == BASELINES_ZERO1 ? "all parameters, 2 passes per step"
                                : "a layer, 3 passes per layer and micro-step",
        link, N > 1 ? 8e-9 * baselines_mean(c, c->whole, slow, (slow + 1) % N) : 0);
}

#endif /* EXAMPLES_PLAN_BASELINES_COST_H */
