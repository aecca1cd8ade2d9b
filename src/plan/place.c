#include "base/core.h"
#include "base/tools.h"
#include "plan/place.h"
#include "plan/place_core.h"
#include "plan/tour.h"

static const char *const ddp__place_names[] = {"anneal", "anneal", "genetic", "genetic-code",
                                               "kl",     "random", "exact"};
enum { DDP__PLACE_NAMES = sizeof ddp__place_names / sizeof ddp__place_names[0] };

const char *ddp_place_solver_name(ddp_place_solver solver)
{
    return (int)solver >= 0 && (int)solver < DDP__PLACE_NAMES ? ddp__place_names[solver] : "unknown";
}

ddp_status ddp_place_solver_named(const char *name, ddp_place_solver *out, ddp_error *err)
{
    for (int k = 1; name && k < DDP__PLACE_NAMES; k++)
        if (!strcmp(name, ddp__place_names[k])) {
            *out = (ddp_place_solver)k;
            return DDP_OK;
        }
    return ddp__fail(err, DDP_ARG, "solver '%.60s' is unknown; use anneal, genetic, genetic-code, kl, random or exact",
                     name ? name : "NULL");
}

/* ---- evaluation ---- */

double ddp__place_datap(const ddp__place *p, const int *at)
{
    double most = 0;

    for (int j = 0; j < p->S; j++)
        for (int a = 0; a < p->D; a++) {
            const int *stage = at + (size_t)j * (size_t)p->D;
            const double *row = p->dp + (size_t)stage[a] * (size_t)p->N;
            double sum = 0;
            for (int b = 0; b < p->D; b++) sum += row[stage[b]];
            if (sum > most) most = sum;
        }
    return most;
}

double ddp__place_flat(const ddp__place *p, const int *at, double *datap, double *hops)
{
    double data = ddp__place_datap(p, at), sum = 0;

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

/* Matches every pair of stages: hop values into p->hop, partners into p->mate. 0 = too late. */
static int ddp__place_match_all(ddp__place *p, const int *at)
{
    size_t N = (size_t)p->N, D = (size_t)p->D, S = (size_t)p->S, j, k, a, b;

    for (j = 0; j < S; j++) {
        for (k = j + 1; k < S; k++) {
            int *there = p->mate + (j * S + k) * D, *back = p->mate + (k * S + j) * D;
            for (a = 0; a < D; a++)
                for (b = 0; b < D; b++) p->weight[a * D + b] = p->pp[(size_t)at[j * D + a] * N + (size_t)at[k * D + b]];
            p->hop[j * S + k] = ddp__matching_solve(&p->matching, p->weight, there);
            p->hop[k * S + j] = p->hop[j * S + k];
            for (a = 0; a < D; a++) back[there[a]] = (int)a;
        }
        if (p->cost < INFINITY && ddp__place_late(p)) return 0;
    }
    return 1;
}

static int ddp__place_over(void *search) { return ddp__place_late((ddp__place *)search); }

double ddp__place_evaluate(ddp__place *p, const int *at)
{
    size_t D = (size_t)p->D, S = (size_t)p->S, k, i;
    double length = 0;

    if (!ddp__place_match_all(p, at)) return INFINITY;
    if (p->S <= DDP_TOUR_EXACT) {
        length = ddp__tour_exact(p->S, p->hop, -1, -1, p->tour, p->order);
    } else if (!ddp__tour_local(p->S, p->hop, -1, -1, ddp__place_over, p, p->order, &length)) {
        p->failed = p->stop = 1;
        return INFINITY;
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

/* ---- limits and the best so far ---- */

double ddp__place_clock(ddp__place *p)
{
    double now = ddp_now() - p->start;

    if (now >= p->limit_s && !p->stop) p->stop = 1;
    if (p->o->progress && p->stop < 2 && now - p->told >= 0.1 && p->cost < INFINITY) {
        p->told = now;
        if (p->o->progress(p->o->user, now, p->cost)) p->stop = 2;
    }
    return now;
}

int ddp__place_late(ddp__place *p)
{
    if (p->limit_s == INFINITY && !p->o->progress) return 0;
    return ddp__place_clock(p) > 1.1 * p->limit_s || p->stop == 2;
}

int ddp__place_next(ddp__place *p)
{
    if (p->stop || p->candidates >= p->limit) return 0;
    if (p->limit_s < INFINITY || p->o->progress) ddp__place_clock(p);
    if (p->stop && p->cost < INFINITY) return 0;
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
    if (p->points == p->room) {
        int room = p->room ? 2 * p->room : 64;
        double *more = (double *)DDP_REALLOC(p->curve, 2 * (size_t)room * sizeof(double));
        if (!more) {
            p->failed = p->stop = 1;
            return;
        }
        p->curve = more;
        p->room = room;
    }
    p->curve[2 * p->points] = now;
    p->curve[2 * p->points + 1] = cost;
    p->points++;
    if (!p->o->progress || p->stop == 2) return;
    p->told = now;
    if (p->o->progress(p->o->user, now, cost)) p->stop = 2;
}

void ddp__place_shuffle(ddp__place *p, int *at)
{
    int k, m, swap;

    for (k = 0; k < p->N; k++) at[k] = k;
    for (k = p->N - 1; k > 0; k--) {
        m = (int)ddp_rng_below(&p->rng, (uint64_t)k + 1);
        swap = at[k];
        at[k] = at[m];
        at[m] = swap;
    }
}

void ddp__place_random(ddp__place *p)
{
    while (ddp__place_next(p)) {
        ddp__place_shuffle(p, p->line);
        ddp__place_offer(p, p->line, ddp__place_flat(p, p->line, NULL, NULL));
    }
}

/* ---- opening and closing a search ---- */

static void ddp__place_close(ddp__place *p)
{
    DDP_FREE(p->dp);
    DDP_FREE(p->best);
    DDP_FREE(p->curve);
    DDP_FREE(p->weight);
    DDP_FREE(p->hop);
    DDP_FREE(p->mate);
    DDP_FREE(p->tour);
    DDP_FREE(p->order);
    ddp__matching_close(&p->matching);
    memset(p, 0, sizeof *p);
}

/* Pair terms, averaged over directions; the sums of a whole placement must stay finite. */
static ddp_status ddp__place_pairs(ddp__place *p, const ddp_network *net, ddp_error *err)
{
    size_t N = (size_t)p->N, i, j;

    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++) {
            double a, b, data, pipe;
            if (i == j) continue;
            a = net->delay_s[i * N + j] / 2 + net->delay_s[j * N + i] / 2;
            b = net->rate[i * N + j] / 2 + net->rate[j * N + i] / 2;
            data = net->dp_bytes / p->D / b;
            pipe = net->pp_bytes / b;
            p->dp[i * N + j] = 2 * (a + data);
            p->pp[i * N + j] = 2 * (a + pipe);
            p->kl[i * N + j] = pipe - net->dp_bytes / b;
            if (!((p->dp[i * N + j] + p->pp[i * N + j] + net->dp_bytes / b) * p->N <= DBL_MAX))
                return ddp__fail(err, DDP_NUMERIC,
                                 "sending from device %zu to device %zu takes more than a double holds; rates are "
                                 "bytes per second",
                                 i, j);
        }
    return DDP_OK;
}

static ddp_status ddp__place_shape(const ddp_network *net, int *pipelines, int *stages, ddp_error *err)
{
    DDP__TRY(ddp_network_check(net, err));
    if (*pipelines < 0 || *stages < 0)
        return ddp__fail(err, DDP_ARG,
                         "%d pipelines of %d stages are impossible; both are at least 1, or 0 for what the network "
                         "says",
                         *pipelines, *stages);
    if (!*pipelines && !*stages) *pipelines = net->pipelines, *stages = net->stages;
    if (!*stages && *pipelines) *stages = net->devices / *pipelines;
    if (!*pipelines && *stages) *pipelines = net->devices / *stages;
    if (!*pipelines || !*stages || (double)*pipelines * *stages != (double)net->devices)
        return ddp__fail(err, DDP_ARG,
                         "%d devices are not D_dp x D_pp = %d x %d; pipelines times stages must use every device",
                         net->devices, *pipelines, *stages);
    return DDP_OK;
}

static ddp_status ddp__place_open(ddp__place *p, const ddp_network *net, int D, int S, ddp_error *err)
{
    size_t n = (size_t)net->devices, d = (size_t)D, s = (size_t)S;
    int ok;

    memset(p, 0, sizeof *p);
    p->N = net->devices;
    p->D = D;
    p->S = S;
    p->cost = INFINITY;
    p->dp = (double *)ddp__calloc(3 * n * n, sizeof(double));
    p->best = (int *)ddp__calloc(2 * n, sizeof(int));
    p->weight = (double *)ddp__calloc(d * d, sizeof(double));
    p->hop = (double *)ddp__calloc(s * s, sizeof(double));
    p->mate = (int *)ddp__calloc(s * s * d, sizeof(int));
    p->order = (int *)ddp__calloc(s, sizeof(int));
    p->tour = (double *)ddp__calloc(S <= DDP_TOUR_EXACT ? s << s : 1, sizeof(double));
    ok = ddp__matching_open(&p->matching, D);
    if (!ok || !p->dp || !p->best || !p->weight || !p->hop || !p->mate || !p->order || !p->tour) {
        ddp__place_close(p);
        return ddp__fail(err, DDP_MEMORY, "no memory to place %d devices", net->devices);
    }
    p->line = p->best + n;
    p->pp = p->dp + n * n;
    p->kl = p->pp + n * n;
    return ddp__place_pairs(p, net, err);
}

static void ddp__place_solve(ddp__place *p)
{
    int ours = p->o->solver == DDP_PLACE_EXACT || p->o->solver == DDP_PLACE_ANNEAL || p->o->solver == DDP_PLACE_DEFAULT;

    if (ours && ddp__place_enumerate(p)) return;
    switch (p->o->solver) {
    case DDP_PLACE_GENETIC:
        ddp__place_genetic(p);
        break;
    case DDP_PLACE_GENETIC_CODE:
        ddp__place_cyclic(p, 0);
        break;
    case DDP_PLACE_KL:
        ddp__place_cyclic(p, 1);
        break;
    case DDP_PLACE_RANDOM:
        ddp__place_random(p);
        break;
    case DDP_PLACE_EXACT:
        ddp__place_exact(p);
        break;
    default:
        ddp__place_anneal(p);
        break;
    }
}

static void ddp__place_limits(ddp__place *p)
{
    const ddp_place_options *o = p->o;
    int exact = o->solver == DDP_PLACE_EXACT;
    int anneal = o->solver == DDP_PLACE_ANNEAL || o->solver == DDP_PLACE_DEFAULT;

    p->limit = o->max_candidates > 0 ? o->max_candidates : LONG_MAX;
    p->limit_s = o->time_limit_s > 0 ? o->time_limit_s : INFINITY;
    if (p->limit == LONG_MAX && p->limit_s == INFINITY) {
        if (exact) p->limit_s = 60;
        else p->limit = anneal ? 4000000 : 5000;
    }
    p->rng = ddp_rng_seed(o->seed, 0);
    p->start = ddp_now();
}

ddp_status ddp_place(const ddp_network *net, const ddp_place_options *o, ddp_placement *out, ddp_error *err)
{
    ddp__place p;
    ddp_placement r;
    ddp_status status;

    memset(&r, 0, sizeof r);
    if (!o || !out) return ddp__fail(err, DDP_ARG, "ddp_place: options and out must not be NULL");
    if ((int)o->solver < 0 || (int)o->solver >= DDP__PLACE_NAMES)
        return ddp__fail(err, DDP_ARG, "solver %d is unknown; use one of ddp_place_solver", (int)o->solver);
    if (!(o->time_limit_s >= 0) || o->max_candidates < 0)
        return ddp__fail(err, DDP_ARG, "the limits are %g s and %ld candidates; both must be at least 0, 0 = none",
                         o->time_limit_s, o->max_candidates);
    r.pipelines = o->pipelines;
    r.stages = o->stages;
    DDP__TRY(ddp__place_shape(net, &r.pipelines, &r.stages, err));
    status = ddp__place_open(&p, net, r.pipelines, r.stages, err);
    if (status == DDP_OK) {
        p.o = o;
        ddp__place_limits(&p);
        ddp__place_solve(&p);
        r.assign = (int *)ddp__calloc((size_t)p.N, sizeof(int));
        if (p.failed || !r.assign) status = ddp__fail(err, DDP_MEMORY, "no memory to place %d devices", p.N);
    }
    if (status == DDP_OK) {
        for (int i = 0; i < p.D; i++)
            for (int j = 0; j < p.S; j++)
                r.assign[(size_t)i * (size_t)p.S + (size_t)j] = p.best[(size_t)j * (size_t)p.D + (size_t)i];
        r.cost_s = ddp__place_flat(&p, p.best, &r.datap_s, &r.pipelinep_s);
        r.proven = p.proven;
        r.solve_s = ddp_now() - p.start;
        r.candidates = p.candidates;
        r.points = p.points;
        r.curve = p.curve;
        p.curve = NULL;
        *out = r;
    } else {
        DDP_FREE(r.assign);
    }
    ddp__place_close(&p);
    return status;
}

ddp_status ddp_place_cost(const ddp_network *net, int pipelines, int stages, const int *assign, double *cost_s,
                          double *datap_s, double *pipelinep_s, ddp_error *err)
{
    double cost, datap = 0, hops = 0;
    ddp__place p;
    ddp_status status;

    if (!assign || !cost_s) return ddp__fail(err, DDP_ARG, "ddp_place_cost: assign and cost_s must not be NULL");
    DDP__TRY(ddp__place_shape(net, &pipelines, &stages, err));
    status = ddp__place_open(&p, net, pipelines, stages, err);
    for (int i = 0; status == DDP_OK && i < pipelines; i++)
        for (int j = 0; status == DDP_OK && j < stages; j++) {
            int device = assign[(size_t)i * (size_t)stages + (size_t)j];
            if (device < 0 || device >= p.N || p.best[device]++)
                status = ddp__fail(err, DDP_ARG,
                                   "stage %d of pipeline %d is on device %d; each of the devices 0 to %d runs exactly "
                                   "one stage",
                                   j, i, device, p.N - 1);
            else p.line[(size_t)j * (size_t)p.D + (size_t)i] = device;
        }
    if (status == DDP_OK) {
        cost = ddp__place_flat(&p, p.line, &datap, &hops);
        *cost_s = cost;
        if (datap_s) *datap_s = datap;
        if (pipelinep_s) *pipelinep_s = hops;
    }
    ddp__place_close(&p);
    return status;
}

void ddp_placement_free(ddp_placement *p)
{
    if (!p) return;
    DDP_FREE(p->assign);
    DDP_FREE(p->curve);
    memset(p, 0, sizeof *p);
}
