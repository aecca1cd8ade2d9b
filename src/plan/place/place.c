/* DT-FM's placement: selects the solver, checks networks and limits, and builds the result. */
#include "plan/arrays.h"
#include "plan/names.h"
#include "plan/order.h"
#include "plan/place/place_solvers.h"
#include "plan/tour.h"

static const char *const ddp__places[] = {"anneal", "anneal", "genetic", "genetic-code",
                                          "kl",     "random", "exact",   NULL};

DDP__NAMES(ddp_place_solver, ddp__places, 1, "solver")

static void ddp__place_close(ddp__place *p)
{
    ddp__array_free(p->curve);
    ddp__scratch_free(&p->room);
}

/* Computes the pair terms, averaged over both directions. Fails if the sums of a whole placement would not
 * be finite. */
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
            if (!ddp__finite((p->dp[i * N + j] + p->pp[i * N + j] + net->dp_bytes / b) * p->N))
                return ddp__fail(err, DDP_NUMERIC,
                                 "sending from device %zu to device %zu takes more than a double "
                                 "holds; rates are bytes per second",
                                 i, j);
        }
    return DDP_OK;
}

static ddp_status ddp__place_shape(const ddp_network *net, int *pipelines, int *stages, ddp_error *err)
{
    DDP__TRY(ddp_network_check(net, err));
    if (*pipelines < 0 || *stages < 0)
        return ddp__fail(err, DDP_ARG,
                         "%d pipelines of %d stages are impossible; both are at least 1, or 0 for what "
                         "the network says",
                         *pipelines, *stages);
    if (!*pipelines && !*stages) {
        *pipelines = net->pipelines;
        *stages = net->stages;
    }
    if (!*stages && *pipelines) *stages = net->devices / *pipelines;
    if (!*pipelines && *stages) *pipelines = net->devices / *stages;
    if (!*pipelines || !*stages || (double)*pipelines * *stages != (double)net->devices)
        return ddp__fail(err, DDP_ARG,
                         "%d devices are not D_dp x D_pp = %d x %d; pipelines times stages must use "
                         "every device",
                         net->devices, *pipelines, *stages);
    return DDP_OK;
}

static ddp_status ddp__place_open(ddp__place *p, const ddp_network *net, int D, int S, ddp_error *err)
{
    size_t n = (size_t)net->devices, d = (size_t)D, s = (size_t)S;
    memset(p, 0, sizeof *p);
    p->N = net->devices;
    p->D = D;
    p->S = S;
    p->cost = DBL_MAX;
    p->dp = ddp__doubles(&p->room, n * n);
    p->pp = ddp__doubles(&p->room, n * n);
    p->kl = ddp__doubles(&p->room, n * n);
    p->best = ddp__ints(&p->room, n);
    p->line = ddp__ints(&p->room, n);
    p->weight = ddp__doubles(&p->room, d * d);
    p->hop = ddp__doubles(&p->room, s * s);
    p->mate = ddp__ints(&p->room, s * s * d);
    p->order = ddp__ints(&p->room, s);
    p->reach = ddp__doubles(&p->room, s);
    p->tour = ddp__doubles(&p->room, S <= DDP_TOUR_EXACT ? s << s : 1);
    ddp__matching_open(&p->matching, D, &p->room);
    DDP__TRY(ddp__scratch_check(&p->room, net->devices, "devices", err));
    return ddp__place_pairs(p, net, err);
}

/* Random shuffles. Stage order and pipelines are not optimised. */
static void ddp__place_random(ddp__place *p)
{
    while (ddp__place_next(p)) {
        ddp__shuffle(p->line, p->N, &p->rng);
        ddp__place_offer(p, p->line, ddp__place_flat(p, p->line, NULL, NULL));
    }
}

static void ddp__place_solve(ddp__place *p)
{
    int ours = p->o->solver == DDP_PLACE_EXACT || p->o->solver == DDP_PLACE_ANNEAL ||
               p->o->solver == DDP_PLACE_DEFAULT;
    if (ours && ddp__place_enumerate(p)) return;
    switch (p->o->solver) {
    case DDP_PLACE_GENETIC:
    case DDP_PLACE_GENETIC_CODE:
    case DDP_PLACE_KL:
        ddp__place_genetic(p, p->o->solver);
        break;
    case DDP_PLACE_RANDOM:
        ddp__place_random(p);
        break;
    case DDP_PLACE_EXACT:
        ddp__place_exact(p);
        break;
    case DDP_PLACE_ANNEAL:
    case DDP_PLACE_DEFAULT:
        ddp__place_anneal(p);
        break;
    }
}

/* The moves of anneal without a limit, 8 to 10 s on one core: 3.5 million per device, for at most 32 devices,
 * and fewer for more pipelines, whose moves take longer. */
static long ddp__place_default(const ddp__place *p)
{
    return 3500000 * (long)(p->N < 32 ? p->N : 32) * 8 / (p->D < 8 ? 8 : p->D);
}

static void ddp__place_limits(ddp__place *p)
{
    const ddp_place_options *o = p->o;
    int exact = o->solver == DDP_PLACE_EXACT;
    int anneal = o->solver == DDP_PLACE_ANNEAL || o->solver == DDP_PLACE_DEFAULT;
    p->limit = o->max_candidates > 0 ? o->max_candidates : LONG_MAX;
    p->limit_s = o->time_limit_s > 0 && ddp__finite(o->time_limit_s) ? o->time_limit_s : DBL_MAX;
    if (p->limit == LONG_MAX && p->limit_s == DBL_MAX) {
        if (exact)
            p->limit_s = 60;
        else
            p->limit = anneal ? ddp__place_default(p) : 5000;
    }
    p->rng = ddp_rng_seed(o->seed, 0);
    p->start = ddp_now();
}

ddp_status ddp_place(const ddp_network *net, const ddp_place_options *o, ddp_placement *out, ddp_error *err)
{
    ddp__place p;
    ddp_placement r = DDP__ZEROS;
    ddp_status status;

    if (!o || !out) return ddp__fail(err, DDP_ARG, "ddp_place: options and out must not be NULL");
    if ((int)o->solver < 0 || o->solver > DDP_PLACE_EXACT)
        return ddp__fail(err, DDP_ARG, "solver %d is unknown; use one of ddp_place_solver", (int)o->solver);
    if (ddp__is_nan(o->time_limit_s) || o->time_limit_s < 0 || o->max_candidates < 0)
        return ddp__fail(err, DDP_ARG,
                         "the limits are %g s and %ld candidates; both must be at least 0, 0 = none",
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
        r.points = ddp__count(p.curve) / 2;
        r.curve = (double *)ddp__copy(p.curve, stbds_arrlenu(p.curve), sizeof *r.curve);
        if (ddp__scratch_failed(&p.room) || !r.assign || !r.curve)
            status = ddp__fail(err, DDP_MEMORY, "no memory to place %d devices", p.N);
    }
    if (status == DDP_OK) {
        for (int i = 0; i < p.D; i++)
            for (int j = 0; j < p.S; j++)
                r.assign[(size_t)i * (size_t)p.S + (size_t)j] = p.best[(size_t)j * (size_t)p.D + (size_t)i];
        r.cost_s = ddp__place_flat(&p, p.best, &r.datap_s, &r.pipelinep_s);
        r.proven = p.proven;
        r.solve_s = ddp_now() - p.start;
        r.candidates = p.candidates;
        *out = r;
    } else {
        DDP_FREE(r.assign);
        DDP_FREE(r.curve);
    }
    ddp__place_close(&p);
    return status;
}

ddp_status ddp_place_cost(const ddp_network *net, int pipelines, int stages, const int *assign,
                          double *cost_s, double *datap_s, double *pipelinep_s, ddp_error *err)
{
    double cost, datap = 0, hops = 0;
    ddp__place p;
    ddp_status status;
    if (!assign || !cost_s)
        return ddp__fail(err, DDP_ARG, "ddp_place_cost: assign and cost_s must not be NULL");
    DDP__TRY(ddp__place_shape(net, &pipelines, &stages, err));
    status = ddp__place_open(&p, net, pipelines, stages, err);
    for (int i = 0; status == DDP_OK && i < pipelines; i++)
        for (int j = 0; status == DDP_OK && j < stages; j++) {
            int device = assign[(size_t)i * (size_t)stages + (size_t)j];
            if (device < 0 || device >= p.N || p.best[device]++)
                status = ddp__fail(err, DDP_ARG,
                                   "stage %d of pipeline %d is on device %d; each of the devices 0 to %d "
                                   "runs exactly one stage",
                                   j, i, device, p.N - 1);
            else
                p.line[(size_t)j * (size_t)p.D + (size_t)i] = device;
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
