/* What the layers and the link take: from FLOPs and the link as configured, or as the hooks measured it,
 * the same on all ranks. */
#include "run/context.h"

static double ddp__unit_flops(const ddp__unit *u) { return u->flops > 0 ? u->flops : 2.0 * (double)(u->count + 1); }

ddp_status ddp__profile_start(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    memset(p, 0, sizeof *p);
    DDP__TRY(ddp_profile_new(d->layers, p, err));
    for (int l = 0; l < d->layers; l++) {
        p->name[l] = ddp__strdup(d->unit[l].name);
        p->params[l] = (double)d->unit[l].count;
        if (p->name[l]) continue;
        ddp_profile_free(p);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a profile of %d layers", d->layers);
    }
    return DDP_OK;
}

void ddp__profile_link(ddp_ctx *d, ddp_profile *p)
{
    /* only so many operations are in flight, and each takes alpha at least */
    double least = d->engine ? d->link[0].alpha_s / ddp__engine_width(d->engine) - d->gap_s[0] : 0;

    p->gap_s = d->gap_s[0];
    p->alpha_s = d->link[0].alpha_s > p->gap_s ? d->link[0].alpha_s - p->gap_s : 0; /* a single message takes both */
    for (int l = 0; l < d->layers; l++) {
        double bytes = (double)ddp__layer_bytes(d, l), seconds = d->link[0].beta_s * bytes;
        p->comm_s[l] = bytes > 0 && seconds < least ? least : seconds;
    }
}

/* Without clocks: 10 GFLOP/s, backward twice the forward, the nominal link. */
double ddp_nominal_compute_s(const ddp_ctx *d)
{
    double flops = 0;

    for (int l = 0; l < d->layers; l++) flops += ddp__unit_flops(&d->unit[l]);
    return 3e-10 * flops;
}

void ddp__profile_nominal(ddp_ctx *d, ddp_profile *p)
{
    d->link[0] = ddp__link_nominal(d, 0);
    d->gap_s[0] = d->gap_s[1] = 0;
    for (int l = 0; l < d->layers; l++) {
        p->forward_s[l] = 1e-10 * ddp__unit_flops(&d->unit[l]);
        p->backward_s[l] = 2 * p->forward_s[l];
    }
    ddp__profile_link(d, p);
}

/* Scales x so that it sums to total, where both are known. */
static void ddp__scale_to(double *x, int n, double total)
{
    double sum = 0;

    for (int i = 0; i < n; i++) sum += x[i];
    for (int i = 0; sum > 0 && total > 0 && i < n; i++) x[i] *= total / sum;
}

/* The step's micro-batches but one; updates come once. */
void ddp__profile_between(const ddp_ctx *d, ddp_profile *p)
{
    double pass = -ddp__timer_median(&d->timer, DDP__T_UPDATE, -1);

    for (int l = 0; l < p->layers; l++) pass += p->forward_s[l] + p->backward_s[l];
    p->between_s = (d->cfg.micro_batches - 1) * fmax(pass, 0);
}

/* What one micro-batch took on this rank; times that no hook told apart are split by FLOPs. */
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
    ddp__scale_to(p->forward_s, d->layers, ddp__timer_median(&d->timer, DDP__T_FORWARD, -1));
    ddp__scale_to(p->backward_s, d->layers, ddp__timer_median(&d->timer, DDP__T_BACKWARD, -1));
    l = d->layers - 1;
    if (d->timer.whole > 0) { /* no forward hook: forward and the last layer's backward are one */
        for (int k = 0; k < d->layers; k++)
            p->forward_s[k] = d->timer.whole * ddp__unit_flops(&d->unit[k]) / (flops + last);
        p->backward_s[l] += d->timer.whole * last / (flops + last);
    } else if (p->backward_s[l] <= 0) { /* forward hooks, no backward_begin */
        p->backward_s[l] = p->forward_s[l] * 2 / 3;
        p->forward_s[l] /= 3;
    }
    for (l = 0; l < d->layers; l++) {
        p->forward_s[l] /= d->cfg.micro_batches;
        p->backward_s[l] = p->backward_s[l] / d->cfg.micro_batches + ddp__timer_median(&d->timer, DDP__T_UPDATE, l);
    }
}

/* The slowest rank of each layer, because an average cannot start before the last worker is
 * there; the passes as long as the slowest rank's: unlike ranks stumble over unlike layers. */
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
    const size_t L = (size_t)d->layers, row = 2 * L * sizeof(double);
    double *all = (double *)ddp__calloc((size_t)d->team_size, row), *own;
    ddp_status s;

    if (!all) return ddp__fail(err, DDP_MEMORY, "out of memory agreeing on a profile of %d layers", d->layers);
    own = all + (size_t)d->team_place * 2 * L;
    memcpy(own, p->forward_s, L * sizeof *own);
    memcpy(own + L, p->backward_s, L * sizeof *own);
    s = ddp__gather_words(d, d->team, all, row, err);
    if (s == DDP_OK) {
        ddp__slowest(all, d->team_size, L, p->forward_s);
        ddp__slowest(all + L, d->team_size, L, p->backward_s);
    }
    DDP_FREE(all);
    return s;
}

ddp_status ddp__profile_measured(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    ddp_profile_free(p);
    DDP__TRY(ddp__profile_start(d, p, err));
    ddp__profile_local(d, p);
    if (d->engine) {
        for (int k = 0; k < ddp_links(d); k++) {
            DDP__TRY(ddp__probe_link(d, k, &d->link[k], err));
            DDP__TRY(ddp__probe_gap(d, k, d->link[k], &d->gap_s[k], err));
        }
        DDP__TRY(ddp__profile_agree(d, p, err));
    }
    ddp__profile_link(d, p);
    ddp__profile_between(d, p);
    return DDP_OK;
}
