/* Profile -> plan: what the hooks measured becomes one profile, rank 0 plans, all ranks adopt. */
#include "base/platform.h"
#include "base/clock.h"
#include "sync/context.h"
#include "sync/device.h"

/* ---- profile ---- */

static double ddp__unit_flops(const ddp__unit *u)
{
    return u->flops > 0 ? u->flops : 2.0 * (double)(u->count + 1);
}

size_t ddp__unit_wire_bytes(const ddp_ctx *d, const ddp__unit *u)
{
    return ddp__coded_bytes(d, u->trained,
                            u->count - u->trained + (d->cfg.average_state ? u->state_count : 0));
}

ddp_status ddp__profile_start(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    int l;

    memset(p, 0, sizeof *p);
    DDP__TRY(ddp_profile_new(d->layers, p, err));
    for (l = 0; l < d->layers; l++) {
        p->name[l] = ddp__strdup(d->unit[l].name);
        p->params[l] = (double)d->unit[l].count;
        if (p->name[l]) continue;
        ddp_profile_free(p);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a profile of %d layers", d->layers);
    }
    return DDP_OK;
}

ddp_status ddp__profile_blank(ddp_ctx *d, ddp_error *err)
{
    ddp_profile_free(&d->profile);
    return ddp__profile_start(d, &d->profile, err);
}

/* Averaging b bytes over P ranks moves 2(P-1)/P x b over each uplink, there and back. */
ddp_link ddp__link_nominal(const ddp_ctx *d, const ddp__links *links)
{
    ddp_link k;
    /* 1 Gbit/s where no link is described */
    double rate = links->plan_rate > 0 ? links->plan_rate : 125e6;
    int n = d->team ? d->team_size : ddp_workers(d);

    k.beta_s = 2.0 * (n - 1) / n / rate;
    k.alpha_s = n > 1 ? 2 * links->plan_delay_s : 0;
    return k;
}

static void ddp__profile_link(ddp_ctx *d, ddp_profile *p)
{
    /* only so many operations are in flight, and each takes alpha at least */
    double least = d->engine ? d->link.alpha_s / ddp__engine_width(d->engine) : 0;
    int l;

    p->alpha_s = d->link.alpha_s;
    for (l = 0; l < d->layers; l++) {
        double bytes = (double)ddp__unit_wire_bytes(d, &d->unit[l]),
               seconds = d->link.beta_s * bytes;
        p->comm_s[l] = bytes > 0 && seconds < least ? least : seconds;
    }
}

/* Without clocks: 10 GFLOP/s, backward twice the forward, the nominal link. */
void ddp__profile_nominal(ddp_ctx *d, ddp_profile *p)
{
    int l;

    d->link = ddp__link_nominal(d, &d->links);
    for (l = 0; l < d->layers; l++) {
        p->forward_s[l] = 1e-10 * ddp__unit_flops(&d->unit[l]);
        p->backward_s[l] = 2 * p->forward_s[l];
    }
    ddp__profile_link(d, p);
}

/* Scales x so that it sums to total, where both are known. */
static void ddp__scale_to(double *x, int n, double total)
{
    double sum = 0;
    int i;

    for (i = 0; i < n; i++) sum += x[i];
    for (i = 0; sum > 0 && total > 0 && i < n; i++) x[i] *= total / sum;
}

/* What this rank measured; times that no hook told apart are split by FLOPs. */
static void ddp__profile_local(const ddp_ctx *d, ddp_profile *p)
{
    double flops = 0, last = 2 * ddp__unit_flops(&d->unit[d->layers - 1]);
    int l;

    for (l = 0; l < d->layers; l++) {
        p->forward_s[l] = ddp__timer_median(&d->timer, DDP__T_FORWARD, l);
        p->backward_s[l] = ddp__timer_median(&d->timer, DDP__T_BACKWARD, l);
        flops += ddp__unit_flops(&d->unit[l]);
    }
    /* layers in proportion to their medians, passes as long as passes are */
    ddp__scale_to(p->forward_s, d->layers, ddp__timer_median_sum(&d->timer, DDP__T_FORWARD));
    ddp__scale_to(p->backward_s, d->layers, ddp__timer_median_sum(&d->timer, DDP__T_BACKWARD));
    l = d->layers - 1;
    if (d->timer.whole > 0) { /* no forward hook: forward and the last layer's backward are one */
        int k;
        for (k = 0; k < d->layers; k++)
            p->forward_s[k] = d->timer.whole * ddp__unit_flops(&d->unit[k]) / (flops + last);
        p->backward_s[l] += d->timer.whole * last / (flops + last);
    } else if (p->backward_s[l] <= 0) { /* forward hooks, no backward_begin */
        p->backward_s[l] = p->forward_s[l] * 2 / 3;
        p->forward_s[l] /= 3;
    }
    for (l = 0; l < d->layers; l++)
        p->backward_s[l] += ddp__timer_median(&d->timer, DDP__T_UPDATE, l);
}

/* The slowest rank of each layer, because an average cannot start before the last worker is
 * there; the passes as long as the slowest rank's: unlike ranks stumble over unlike layers. */
static void ddp__slowest(const float *all, int world, size_t layers, double *out)
{
    double longest = 0;
    size_t l;
    int r;

    memset(out, 0, layers * sizeof *out);
    for (r = 0; r < world; r++) {
        const float *x = all + (size_t)r * 2 * layers;
        double pass = 0;
        for (l = 0; l < layers; l++) {
            pass += (double)x[l];
            if ((double)x[l] > out[l]) out[l] = (double)x[l];
        }
        if (pass > longest) longest = pass;
    }
    ddp__scale_to(out, (int)layers, longest);
}

static ddp_status ddp__profile_agree(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    size_t L = (size_t)d->layers, l;
    float *all = (float *)ddp__calloc((size_t)d->team_size * 2 * L, sizeof *all), *own;
    ddp__piece piece;
    ddp_status s;

    if (!all)
        return ddp__fail(err, DDP_MEMORY, "out of memory agreeing on a profile of %d layers",
                         d->layers);
    own = all + (size_t)d->team_place * 2 * L;
    for (l = 0; l < L; l++) {
        own[l] = (float)p->forward_s[l];
        own[L + l] = (float)p->backward_s[l];
    }
    piece.data = all;
    piece.count = (size_t)d->team_size * 2 * L;
    s = ddp__blocking_in(d, d->team, DDP__ALL_GATHER, &piece, 1, 1, err);
    if (s == DDP_OK) {
        ddp__slowest(all, d->team_size, L, p->forward_s);
        ddp__slowest(all + L, d->team_size, L, p->backward_s);
    }
    DDP_FREE(all);
    return s;
}

/* ---- link ---- */

enum {
    DDP__PROBE_SHORT = 1,
    DDP__PROBE_MEDIUM = 16,
    DDP__PROBE_LEAST = 3,
    DDP__PROBE_REPEATS = 8
};

/* Transfers timed so far; those from `first` on are of `pieces` pieces each. */
typedef struct ddp__probe {
    double bytes[3 * DDP__PROBE_REPEATS], seconds[3 * DDP__PROBE_REPEATS];
    int    n, first, pieces;
} ddp__probe;

/* How many pieces to average next; 0: enough. A size is done when its two fastest transfers agree
 * within 3 per cent. The last size takes 0.12 s, where a thread that wakes up late matters little.
 */
static int ddp__probe_next(ddp__probe *q)
{
    double fastest = INFINITY, second = INFINITY, in_time;
    int i;

    for (i = q->first; i < q->n; i++) {
        double t = q->seconds[i];
        if (t < fastest) {
            second = fastest;
            fastest = t;
        } else if (t < second) {
            second = t;
        }
    }
    i = q->n - q->first;
    if (i < DDP__PROBE_LEAST || (i < DDP__PROBE_REPEATS && second > 1.03 * fastest))
        return q->pieces;
    q->first = q->n;
    if (q->pieces == DDP__PROBE_SHORT) return q->pieces = DDP__PROBE_MEDIUM;
    if (q->pieces != DDP__PROBE_MEDIUM) return 0;
    in_time = 0.12 / fastest * q->pieces;
    q->pieces = in_time < (double)DDP__PROBE_MOST ? (int)in_time : DDP__PROBE_MOST;
    if (q->pieces < 2 * DDP__PROBE_MEDIUM) q->pieces = 2 * DDP__PROBE_MEDIUM;
    return q->pieces;
}

static ddp_status ddp__probe_once(ddp_ctx *d, int link, const ddp__piece *list, int pieces,
                                  ddp_error *err)
{
    ddp__message m;
    long ticket;

    memset(&m, 0, sizeof m);
    m.verb = DDP__ALL_REDUCE;
    m.group = d->team;
    m.pieces = list;
    m.piece_count = pieces;
    m.overlap = 1;
    m.step = d->step;
    m.layer = DDP__NO_LAYER;
    m.link = link;
    m.filler = 1;
    DDP__TRY(ddp__post_flush(d, err));
    m.mean = d->direct && link == 0;
    if (m.mean && ddp__direct_takes(d, &m)) return ddp__direct_run(d, &m, err);
    m.mean = 0;
    if (!d->levels) return ddp__engine_run(ddp__engine_of(d, link), &m, err);
    DDP__TRY(ddp__submit_mean(d, &m, &ticket, err));
    return ddp__engine_wait(ddp__engine_of(d, link), ticket, err);
}

/* Times averaging a few sizes; every rank then takes rank 0's fit. The same few zeros are sent
 * over and over, so that the largest size needs no memory. */
ddp_status ddp__probe_link(ddp_ctx *d, int link, ddp_link *out, ddp_error *err)
{
    float fit[2], next, *x = (float *)ddp__calloc(DDP__PROBE_FLOATS, sizeof *x);
    ddp__piece one, *list = (ddp__piece *)ddp__calloc(DDP__PROBE_MOST, sizeof *list), p;
    ddp__probe q;
    ddp_status s = DDP_OK;
    int i;

    if (!x || !list) s = ddp__fail(err, DDP_MEMORY, "out of memory probing the link");
    for (i = 0; s == DDP_OK && i < DDP__PROBE_MOST; i++) {
        list[i].data = d->direct && link == 0 && !d->team ? ddp__direct_zeros(d) : x;
        list[i].count = DDP__PROBE_FLOATS;
    }
    one.data = &next;
    one.count = 1;
    memset(&q, 0, sizeof q);
    q.pieces = DDP__PROBE_SHORT;
    while (s == DDP_OK) {
        double begin;
        /* rank 0 decides; and all ranks leave this together, as far as the link allows */
        next = 0; /* full: who led was lost, and the next one began anew */
        if (ddp__leads(d) && q.n < 3 * DDP__PROBE_REPEATS) next = (float)ddp__probe_next(&q);
        s = ddp__blocking_on(d, link, d->team, DDP__ALL_REDUCE, &one, 1, 1, 0, err);
        if (s != DDP_OK || !(next > 0)) break;
        begin = ddp_now();
        s = ddp__probe_once(d, link, list, (int)next, err);
        q.bytes[q.n] = sizeof(float) * DDP__PROBE_FLOATS * (double)next;
        q.seconds[q.n++] = ddp_now() - begin;
    }
    DDP_FREE(list);
    DDP_FREE(x);
    DDP__TRY(s);
    if (ddp__leads(d) || d->cfg.min_world) /* any of them may have to lead in the next moment */
        s = ddp_link_fit(q.bytes, q.seconds, q.n, out, err);
    if (s != DDP_OK && d->cfg.min_world)
        *out = ddp__link_nominal(d, &d->links); /* it ended too early */
    else DDP__TRY(s);
    fit[0] = (float)(out->alpha_s * 1e6);
    fit[1] = (float)(out->beta_s * 1e12);
    p.data = fit;
    p.count = 2;
    DDP__TRY(ddp__blocking_in(d, d->team, DDP__BROADCAST, &p, 1, 1, err));
    out->alpha_s = (double)fit[0] * 1e-6;
    out->beta_s = (double)fit[1] * 1e-12;
    return DDP_OK;
}

/* ---- plan ---- */

static int ddp__forward_hooks_now(const ddp_ctx *d)
{
    int l;

    if (d->hooks_forward) return 1;
    for (l = 0; l < d->layers; l++)
        if (d->unit[l].forward_step != d->step) return 0;
    return 1;
}

static void ddp__plan_options(const ddp_ctx *d, ddp_plan_options *o)
{
    memset(o, 0, sizeof *o);
    o->period = d->cfg.period;
    o->fill = d->cfg.fill;
    o->cost = d->cfg.cost;
    o->solver = d->cfg.solver;
    if (o->cost == DDP_COST_DEFAULT)
        o->cost = ddp__forward_hooks_now(d) && !d->cfg.paper && !(d->cfg.clip_norm > 0)
                      ? DDP_COST_WINDOW
                      : DDP_COST_TIMELINE;
    if (o->solver == DDP_SOLVER_DEFAULT)
        o->solver = d->cfg.paper ? DDP_SOLVER_OPTIMAL : DDP_SOLVER_SCATTER;
    if (d->strategy->id == DDP_ENP) o->solver = DDP_SOLVER_ENP;
}

static ddp_status ddp__plan_copy(const ddp_plan *from, ddp_plan *to, ddp_error *err)
{
    ddp_plan p;
    size_t fill = (size_t)from->layers * (size_t)from->period;

    DDP__TRY(ddp_plan_new(from->layers, from->period, &p, err));
    memcpy(p.step_of, from->step_of, (size_t)from->layers * sizeof *p.step_of);
    if (from->fill) memcpy(p.fill, from->fill, fill);
    p.solver = from->solver;
    p.cost = from->cost;
    p.objective_s = from->objective_s;
    p.exposed_s = from->exposed_s;
    p.lower_bound_s = from->lower_bound_s;
    ddp_plan_free(to);
    *to = p;
    return DDP_OK;
}

/* Everyone takes rank 0's plan; its hash proves that it arrived whole. */
static ddp_status ddp__plan_share(ddp_ctx *d, ddp_error *err)
{
    size_t L = (size_t)d->layers, fill = L * (size_t)d->plan.period, n = L + fill + 2, i;
    float *x;
    ddp__piece p;
    ddp_status s;
    uint32_t hash = (uint32_t)ddp_plan_hash(&d->plan);

    if (!d->engine) return DDP_OK;
    x = (float *)ddp__calloc(n, sizeof *x);
    if (!x)
        return ddp__fail(err, DDP_MEMORY, "out of memory sharing the plan of %d layers", d->layers);
    for (i = 0; i < L; i++) x[i] = (float)d->plan.step_of[i];
    for (i = 0; i < fill; i++) x[L + i] = (float)d->plan.fill[i];
    x[n - 2] = (float)(hash & 0xffff);
    x[n - 1] = (float)(hash >> 16);
    p.data = x;
    p.count = n;
    s = ddp__blocking_in(d, d->team, DDP__BROADCAST, &p, 1, 1, err);
    for (i = 0; i < L; i++) d->plan.step_of[i] = (int)x[i];
    for (i = 0; i < fill; i++) d->plan.fill[i] = (unsigned char)x[L + i];
    hash = (uint32_t)x[n - 2] | (uint32_t)x[n - 1] << 16;
    DDP_FREE(x);
    if (s == DDP_OK && hash != (uint32_t)ddp_plan_hash(&d->plan))
        s = ddp__fail(err, DDP_MISMATCH,
                      "rank %d received a plan whose hash is %08x, rank 0 sent %08x", d->rank,
                      (unsigned)ddp_plan_hash(&d->plan), (unsigned)hash);
    return s;
}

/* The objective hardly tells a plan that just fits from one with room to spare, but a link that is
 * a little slower than measured does. So the plan for a link that is a tenth slower is preferred,
 * where it costs at most one per cent on the link as measured. */
static ddp_status ddp__plan_with_slack(const ddp_profile *p, const ddp_plan_options *o,
                                       ddp_plan *plan, ddp_error *err)
{
    ddp_profile slower = *p;
    ddp_plan other;
    ddp_status s;
    int l;

    DDP__TRY(ddp_plan_partial(p, o, plan, err));
    slower.comm_s = (double *)ddp__calloc((size_t)p->layers, sizeof *slower.comm_s);
    for (l = 0; slower.comm_s && l < p->layers; l++) slower.comm_s[l] = 1.1 * p->comm_s[l];
    slower.alpha_s *= 1.1;
    memset(&other, 0, sizeof other);
    s = slower.comm_s ? ddp_plan_partial(&slower, o, &other, err)
                      : ddp__fail(err, DDP_MEMORY, "out of memory planning %d layers", p->layers);
    if (s == DDP_OK) s = ddp_plan_evaluate(p, other.cost, &other, err);
    if (s == DDP_OK && other.objective_s <= 1.01 * plan->objective_s) {
        ddp_plan swap = *plan;
        *plan = other;
        other = swap;
    }
    ddp_plan_free(&other);
    DDP_FREE(slower.comm_s);
    if (s != DDP_OK) ddp_plan_free(plan);
    return s;
}

static ddp_status ddp__plan_make(ddp_ctx *d, const ddp_profile *p, ddp_error *err)
{
    ddp_plan_options o;
    ddp_plan plan;
    ddp_status s;

    ddp__plan_options(d, &o);
    memset(&plan, 0, sizeof plan);
    /* who leads may be lost before it has shared its plan */
    if (d->team_place == 0 || d->cfg.min_world)
        s = d->cfg.paper ? ddp_plan_partial(p, &o, &plan, err)
                         : ddp__plan_with_slack(p, &o, &plan, err);
    else s = ddp_plan_new(d->layers, o.period, &plan, err);
    DDP__TRY(s);
    if (!plan.solver) plan.solver = o.solver;
    if (!plan.cost) plan.cost = o.cost;
    ddp_plan_free(&d->plan);
    d->plan = plan;
    DDP__TRY(ddp__plan_share(d, err));
    return ddp_plan_evaluate(p, d->plan.cost, &d->plan, err); /* the same figures on every rank */
}

static ddp_status ddp__plan_from_file(ddp_ctx *d, ddp_error *err)
{
    ddp_plan plan;

    memset(&plan, 0, sizeof plan);
    DDP__TRY(ddp_plan_read(d->cfg.plan_path, d->layers, &plan, err));
    if (plan.period != d->cfg.period) {
        int period = plan.period;
        ddp_plan_free(&plan);
        return ddp__fail(
            err, DDP_MISMATCH,
            "the plan %s is for period %d, this run has period %d: set the period to %d",
            d->cfg.plan_path, period, d->cfg.period, period);
    }
    ddp_plan_free(&d->plan);
    d->plan = plan;
    return ddp__plan_share(d, err);
}

static ddp_status ddp__profile_from_file(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    d->link = ddp__link_nominal(d, &d->links);
    DDP__TRY(ddp_profile_read(d->cfg.profile_path, &d->link, p, err));
    if (p->layers != d->layers) {
        int rows = p->layers;
        ddp_profile_free(p);
        return ddp__fail(
            err, DDP_MISMATCH,
            "the profile %s has %d rows, the model has %d layers: one row per layer is needed",
            d->cfg.profile_path, rows, d->layers);
    }
    return DDP_OK;
}

ddp_status ddp__plan_first(ddp_ctx *d, ddp_error *err)
{
    ddp_profile p;
    ddp_status s;

    memset(&p, 0, sizeof p);
    if (d->cfg.profile_path) {
        DDP__TRY(ddp__profile_from_file(d, &p, err));
    } else {
        DDP__TRY(ddp__profile_start(d, &p, err));
        ddp__profile_nominal(d, &p);
    }
    if (d->cfg.plan_path) {
        s = ddp__plan_from_file(d, err);
        if (s == DDP_OK) s = ddp_plan_evaluate(&p, d->plan.cost, &d->plan, err);
    } else if (d->plan_final) {
        s = ddp__plan_make(d, &p, err);
    } else {
        /* while profiling: equal numbers of layers, which needs no measurement */
        ddp_plan_options o;
        ddp__plan_options(d, &o);
        o.solver = DDP_SOLVER_ENP;
        o.fill = DDP_FILL_NONE;
        s = ddp_plan_partial(&p, &o, &d->plan, err);
    }
    if (s != DDP_OK) {
        ddp_profile_free(&p);
        return s;
    }
    if (d->plan_final) {
        d->profile = p;
        DDP__TRY(ddp__balance_links(d, &d->profile, err));
        d->hooks_forward = ddp__forward_hooks_now(d);
        ddp__account_predict(d);
    } else {
        ddp_profile_free(&p);
    }
    return DDP_OK;
}

ddp_status ddp__plan_measured(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(ddp__average_wait_all(d, err));
    DDP__TRY(ddp__device_wait(d, err));
    ddp_profile_free(&d->profile);
    DDP__TRY(ddp__profile_start(d, &d->profile, err));
    ddp__profile_local(d, &d->profile);
    if (d->engine) {
        DDP__TRY(ddp__probe_link(d, 0, &d->link, err));
        if (ddp_links(d) == 2) DDP__TRY(ddp__probe_link(d, 1, &d->second_link, err));
        DDP__TRY(ddp__profile_agree(d, &d->profile, err));
    }
    ddp__profile_link(d, &d->profile);
    d->plan_final = d->measured = 1;
    if (d->strategy->partial) DDP__TRY(ddp__plan_make(d, &d->profile, err));
    DDP__TRY(ddp__balance_links(d, &d->profile, err));
    ddp__drift_start(d);
    ddp__account_predict(d);
    ddp__account_reset(d);
    return DDP_OK;
}

ddp_status ddp__plan_again(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(ddp__average_wait_all(d, err));
    ddp__profile_link(d, &d->profile);
    DDP__TRY(ddp__plan_make(d, &d->profile, err));
    DDP__TRY(ddp__balance_links(d, &d->profile, err));
    ddp__drift_start(d);
    ddp__account_predict(d);
    return DDP_OK;
}

int ddp_plan_adopt(ddp_ctx *d, const ddp_plan *plan)
{
    DDP__ENTER(d);
    if (!d->strategy->partial)
        return ddp__ctx_failf(d, DDP_USAGE,
                              "ddp_plan_adopt: strategy %s follows no plan; use dreamddp or enp",
                              d->strategy->name);
    if (!plan || plan->layers != d->layers || plan->period < 1)
        return ddp__ctx_failf(
            d, DDP_ARG,
            "ddp_plan_adopt: a plan for %d layers is needed, this one has %d layers and period %d",
            d->layers, plan ? plan->layers : 0, plan ? plan->period : 0);
    if (!d->started && ddp__session_start(d, &d->host.error))
        return ddp__ctx_fail(d, &d->host.error);
    if (ddp__average_wait_all(d, &d->host.error) ||
        ddp__plan_copy(plan, &d->plan, &d->host.error) || ddp__plan_share(d, &d->host.error) ||
        (d->profile.layers ? ddp__balance_links(d, &d->profile, &d->host.error)
                           : ddp__balance_nominal(d, &d->host.error)))
        return ddp__ctx_fail(d, &d->host.error);
    d->plan_final = 1;
    ddp__account_reset(d);
    return 0;
}

/* ---- prediction ---- */

void ddp__account_predict(ddp_ctx *d)
{
    const ddp_profile *p = &d->profile;
    double forward = 0, backward = 0, comm = 0, step, exposed;
    int l, H = d->cfg.period;

    for (l = 0; l < p->layers; l++) {
        forward += p->forward_s ? p->forward_s[l] : 0;
        backward += p->backward_s[l];
        comm += d->team_size > 1 ? p->comm_s[l] : 0;
    }
    exposed = comm > 0 ? comm + p->alpha_s : 0;
    if (d->strategy->partial) {
        exposed = d->team_size > 1 ? d->plan.exposed_s : 0;
        step = exposed / d->plan.period;
    } else if (d->strategy->id == DDP_LOCALSGD) {
        step = exposed / H;
    } else if (d->strategy->id == DDP_WFBP) {
        /* a bucket leaves when its last layer is done */
        double link = 0, t = 0;
        int b;
        for (b = 0, l = p->layers - 1; b < d->buckets; b++) {
            double transfer = 0;
            for (; l >= d->bucket[b].last; l--) {
                t += p->backward_s[l];
                transfer += p->comm_s[l];
            }
            link = (link > t ? link : t) + transfer;
        }
        exposed = comm > 0 && link + p->alpha_s > backward ? link + p->alpha_s - backward : 0;
        step = exposed;
    } else {
        step = exposed;
    }
    d->stats.predicted_step_s = forward + backward + step;
    d->stats.predicted_hidden_pct = comm > 0 && exposed < comm ? 100 * (1 - exposed / comm)
                                    : comm > 0                 ? 0
                                                               : 100;
}
