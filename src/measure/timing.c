/* Determines the times of layers and links: from FLOPs and the configured links, or as measured by hooks and
 * probes, equal on all ranks. */
#include "context/clock.h"
#include "context/context.h"
#include "measure/measure.h"
#include "device/device.h"
#include "exchange/post.h"
#include "exchange/verbs.h"
#include "measure/lines.h"
#include "measure/timing.h"

/* ---- layers ---- */

double ddp__nominal_flops(double flops, double count) { return flops > 0 ? flops : 2.0 * (count + 1); }

static double ddp__unit_flops(const ddp__unit *u) { return ddp__nominal_flops(u->flops, (double)u->count); }

ddp_status ddp__profile_start(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    memset(p, 0, sizeof *p);
    DDP__TRY(ddp_profile_new(ddp__layers(d), p, err));
    for (int l = 0; l < ddp__layers(d); l++) {
        p->name[l] = ddp__strdup(ddp__unit_of(d, l)->name);
        p->params[l] = (double)ddp__unit_of(d, l)->count;
        if (p->name[l]) continue;
        ddp_profile_free(p);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a profile of %d layers", ddp__layers(d));
    }
    return DDP_OK;
}

/* Returns how long an average of `bytes` bytes occupies the link, in seconds, without gap_s. */
static double ddp__occupancy(const ddp_ctx *d, double bytes)
{
    return ddp__link_for(d, 0, bytes).beta_s * bytes;
}

/* Without measurements, plans use the costs of the direct algorithm for all messages. Predictions derive the
 * costs of the other algorithms. */
static ddp__message_cost ddp__known_cost(const ddp_ctx *d, ddp_link k, char algorithm, double bytes,
                                         int plans)
{
    ddp_link line[DDP__LINES];
    ddp__message_cost m;

    if (!ddp__follows(d) && plans && algorithm != 'p') algorithm = 'd';
    if (!ddp__follows(d) && !plans && !ddp__has_nccl(d)) {
        ddp__lines_derive(ddp__link_is(d, 0), ddp__team_size(d), line);
        k = ddp__line_of(line, algorithm);
    }
    m = ddp__line_cost(d, 0, k, algorithm, bytes);
    m.alpha_s = fmax(m.alpha_s - d->measure->gap_s[0], 0); /* one message takes both */
    return m;
}

ddp__message_cost ddp__average_cost(const ddp_ctx *d, const ddp_profile *p, double bytes, double comm_s,
                                    int plans)
{
    ddp__message_cost m =
        ddp__known_cost(d, ddp__link_for(d, 0, bytes), ddp__algorithm_for(d, 0, bytes), bytes, plans);

    if (bytes > 0) m.takes += d->measure->gap_s[0];
    if (ddp__cfg(d)->profile_path && !(p->alpha_s > 0)) { /* measured times, which include the latency */
        m.halves = 0;
        m.takes = comm_s > 0 ? comm_s + p->gap_s : 0;
        m.alpha_s = 0;
    }
    return m;
}

ddp__message_cost ddp__tell_cost(const ddp_ctx *d, int plans)
{
    return ddp__known_cost(d, ddp__link_control(d, 0), ddp__algorithm_control(d, 0), 0, plans);
}

int ddp__messages_at_once(const ddp_ctx *d)
{
    return ddp__engine_of(d, 0) ? ddp__engine_width(ddp__engine_of(d, 0)) : (int)DDP__LINK_WIDTH;
}

/* The planners know one latency for all layers: the longest. */
static void ddp__profile_startup(const ddp_ctx *d, ddp_profile *p, double alpha)
{
    p->gap_s = d->measure->gap_s[0];
    p->alpha_s = fmax(alpha - p->gap_s, 0); /* one message takes both */
}

void ddp__profile_link(ddp_ctx *d, ddp_profile *p)
{
    double alpha = 0;

    for (int l = 0; l < ddp__layers(d); l++) {
        const double bytes = (double)ddp__layer_bytes(d, l);
        p->comm_s[l] = ddp__occupancy(d, bytes);
        if (bytes > 0) alpha = fmax(alpha, ddp__link_for(d, 0, bytes).alpha_s);
    }
    ddp__profile_startup(d, p, alpha);
}

/* Estimates without measuring: 10 GFLOP/s, backward twice the forward, the nominal link. */
double ddp_nominal_compute_s(const ddp_ctx *d)
{
    double flops = 0;

    for (int l = 0; l < ddp__layers(d); l++) flops += ddp__unit_flops(ddp__unit_of(d, l));
    return 3e-10 * flops;
}

static void ddp__nominal_times(ddp_profile *p, int l, double flops)
{
    p->forward_s[l] = 1e-10 * flops;
    p->backward_s[l] = 2 * p->forward_s[l];
}

void ddp__profile_nominal(ddp_ctx *d, ddp_profile *p)
{
    ddp__link_set(d, 0, ddp__link_nominal(d, 0));
    d->measure->gap_s[0] = d->measure->gap_s[1] = 0;
    for (int l = 0; l < ddp__layers(d); l++) ddp__nominal_times(p, l, ddp__unit_flops(ddp__unit_of(d, l)));
    ddp__profile_link(d, p);
}

ddp_status ddp__profile_model(ddp_ctx *d, const ddp__layer_cost *model, int layers, ddp_profile *p,
                              ddp_error *err)
{
    double alpha = 0;

    DDP__TRY(ddp_profile_new(layers, p, err));
    ddp__link_set(d, 0, ddp__link_nominal(d, 0));
    d->measure->gap_s[0] = d->measure->gap_s[1] = 0;
    for (int l = 0; l < p->layers; l++) {
        const ddp__layer_cost *c = &model[l];
        const double bytes =
            (double)ddp__average_bytes(d, ddp__team_group(d), (size_t)c->trained, (size_t)c->others);
        ddp__nominal_times(p, l, ddp__nominal_flops(c->flops, c->count));
        p->params[l] = c->count;
        p->comm_s[l] = ddp__occupancy(d, bytes);
        if (bytes > 0) alpha = fmax(alpha, ddp__link_for(d, 0, bytes).alpha_s);
    }
    ddp__profile_startup(d, p, alpha);
    return DDP_OK;
}

/* Scales x so that its sum is total, if both are known. */
static void ddp__scale_to(double *x, int n, double total)
{
    double sum = 0;

    for (int i = 0; i < n; i++) sum += x[i];
    for (int i = 0; sum > 0 && total > 0 && i < n; i++) x[i] *= total / sum;
}

/* Sets the compute time of all micro-batches but one. Updates count once. */
void ddp__profile_between(const ddp_ctx *d, ddp_profile *p)
{
    double pass = -ddp__timer_median(ddp__clock_timer(d), DDP__T_UPDATE, -1);

    for (int l = 0; l < p->layers; l++) pass += p->forward_s[l] + p->backward_s[l];
    p->between_s = (ddp__cfg(d)->micro_batches - 1) * fmax(pass, 0);
}

/* Fills in the times of one micro-batch on this rank. Times that the hooks do not separate are divided by
 * FLOPs. */
static void ddp__profile_local(const ddp_ctx *d, ddp_profile *p)
{
    double flops = 0, last = 2 * ddp__unit_flops(ddp__unit_of(d, ddp__layers(d) - 1));
    int l;

    for (l = 0; l < ddp__layers(d); l++) {
        p->forward_s[l] = ddp__timer_median(ddp__clock_timer(d), DDP__T_FORWARD, l);
        p->backward_s[l] = ddp__timer_median(ddp__clock_timer(d), DDP__T_BACKWARD, l);
        flops += ddp__unit_flops(ddp__unit_of(d, l));
    }
    /* layers in proportion to their medians, so that they add up to the time of the pass */
    ddp__scale_to(p->forward_s, ddp__layers(d), ddp__timer_median(ddp__clock_timer(d), DDP__T_FORWARD, -1));
    ddp__scale_to(p->backward_s, ddp__layers(d), ddp__timer_median(ddp__clock_timer(d), DDP__T_BACKWARD, -1));
    l = ddp__layers(d) - 1;
    if (ddp__timer_whole(ddp__clock_timer(d)) >
        0) { /* no forward hook: forward and the last layer's backward are one time */
        for (int k = 0; k < ddp__layers(d); k++)
            p->forward_s[k] =
                ddp__timer_whole(ddp__clock_timer(d)) * ddp__unit_flops(ddp__unit_of(d, k)) / (flops + last);
        p->backward_s[l] += ddp__timer_whole(ddp__clock_timer(d)) * last / (flops + last);
    } else if (p->backward_s[l] <= 0) { /* forward hooks, no backward_begin */
        p->backward_s[l] = p->forward_s[l] * 2 / 3;
        p->forward_s[l] /= 3;
    }
    for (l = 0; l < ddp__layers(d); l++) {
        p->forward_s[l] /= ddp__cfg(d)->micro_batches;
        p->backward_s[l] = p->backward_s[l] / ddp__cfg(d)->micro_batches +
                           ddp__timer_median(ddp__clock_timer(d), DDP__T_UPDATE, l);
    }
}

/* Takes the slowest rank of each layer, because an average cannot start before the last worker is ready. The
 * total is the duration of the slowest rank's pass, because heterogeneous ranks are slow in different
 * layers. */
static void ddp__slowest(const double *all, int world, size_t layers, double *out)
{
    double longest = 0;

    memset(out, 0, layers * sizeof *out);
    for (int r = 0; r < world; r++) {
        const double *x = all + (size_t)r * 2 * layers;
        double pass = 0;
        for (size_t l = 0; l < layers; l++) {
            pass += x[l];
            if (x[l] > out[l]) out[l] = x[l];
        }
        if (pass > longest) longest = pass;
    }
    ddp__scale_to(out, (int)layers, longest);
}

static ddp_status ddp__profile_agree(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    const size_t L = (size_t)ddp__layers(d), row = 2 * L * sizeof(double);
    double *all = (double *)ddp__calloc((size_t)ddp__team_size(d), row), *own;
    ddp_status s;

    if (!all)
        return ddp__fail(err, DDP_MEMORY, "out of memory agreeing on a profile of %d layers", ddp__layers(d));
    own = all + (size_t)ddp__team_place(d) * 2 * L;
    memcpy(own, p->forward_s, L * sizeof *own);
    memcpy(own + L, p->backward_s, L * sizeof *own);
    s = ddp__gather_words(d, ddp__team_group(d), all, row, err);
    if (s == DDP_OK) {
        ddp__slowest(all, ddp__team_size(d), L, p->forward_s);
        ddp__slowest(all + L, ddp__team_size(d), L, p->backward_s);
    }
    DDP_FREE(all);
    return s;
}

ddp_status ddp__profile_measured(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    ddp_profile_free(p);
    DDP__TRY(ddp__profile_start(d, p, err));
    ddp__profile_local(d, p);
    if (ddp__engine_of(d, 0)) {
        for (int k = 0; k < ddp_links(d); k++) DDP__TRY(ddp__probe_link(d, k, 1, err));
        DDP__TRY(ddp__profile_agree(d, p, err));
    }
    ddp__profile_link(d, p);
    ddp__profile_between(d, p);
    return DDP_OK;
}
