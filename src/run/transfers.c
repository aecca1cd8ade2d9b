/* What the strategy sends in a period: over which of two links each message goes, and how long a step
 * should take. The bits do not depend on the link, since sums go in rank order over either. */
#include "plan/internal.h"
#include "run/device.h"

/* When a message may begin, from the start of its step's backward. */
static double ddp__transfer_ready(const ddp_profile *p, const ddp_transfer *t)
{
    double ready = 0;

    for (int l = p->layers - 1; l >= (t->behind > 0 ? t->behind : 0); l--) ready += p->backward_s[l];
    return ready;
}

/* ---- two links ---- */

/* A message takes the link that would finish it first, behind what was given to that link before: the
 * rule of a list scheduler. */
static void ddp__transfer_link(ddp_ctx *d, const ddp_transfer *t, double ready, const ddp_link *link, double *free_at)
{
    double bytes = 0, takes[2], alpha[2];
    int k;

    for (int l = t->first; l >= t->last; l--) bytes += (double)ddp__layer_bytes(d, l);
    for (k = 0; k < 2; k++) {
        takes[k] = link[k].beta_s * bytes + d->gap_s[k];
        alpha[k] = link[k].alpha_s;
    }
    k = ddp__link_first(2, free_at, ready, takes, alpha);
    (void)ddp__link_take(&free_at[k], ready, takes[k]);
    for (int l = t->first; l >= t->last; l--) d->unit[l].link = k;
}

static void ddp__transfer_links(ddp_ctx *d, const ddp_profile *p, const ddp_transfer *t, int n)
{
    ddp_link link[2];
    double free_at[2] = {0, 0};
    int step = 0;

    for (int k = 0; k < 2; k++) link[k] = d->link[k].beta_s > 0 ? d->link[k] : ddp__link_nominal(d, k);
    for (int i = 0; i < n; i++) {
        if (t[i].step != step) free_at[0] = free_at[1] = 0;
        step = t[i].step;
        ddp__transfer_link(d, &t[i], ddp__transfer_ready(p, &t[i]), link, free_at);
    }
}

static ddp_status ddp__balance_by(ddp_ctx *d, const ddp_profile *p, ddp_error *err)
{
    int32_t *links = (int32_t *)ddp__calloc((size_t)d->layers, sizeof *links);
    ddp_transfer *t;
    ddp_status s;
    int n, steps, taken = 0;

    if (!links) return ddp__fail(err, DDP_MEMORY, "out of memory for the links of %d layers", d->layers);
    s = ddp__transfers(d, &t, &n, &steps, err);
    if (s == DDP_OK) ddp__transfer_links(d, p, t, n);
    if (s == DDP_OK && t) DDP_FREE(t);
    for (int l = 0; l < d->layers; l++) links[l] = d->unit[l].link;
    if (s == DDP_OK) s = ddp__tell(d, d->team, links, (size_t)d->layers * sizeof *links, err);
    for (int l = 0; l < d->layers; l++) taken += d->unit[l].link = links[l] != 0;
    DDP_FREE(links);
    if (s == DDP_OK && d->team_place == 0)
        ddp__log(&d->host.log, DDP_LOG_INFO, "step %ld: %d of %d layers go over the second link",
                 d->step, taken, d->layers);
    return s;
}

ddp_status ddp__balance_links(ddp_ctx *d, const ddp_profile *p, ddp_error *err)
{
    ddp_profile nominal;
    ddp_status s;

    if (ddp_links(d) < 2 || d->ops.traits & DDP_CHOOSES_LINKS) return DDP_OK;
    if (p) return ddp__balance_by(d, p, err);
    DDP__TRY(ddp__profile_start(d, &nominal, err));
    ddp__profile_nominal(d, &nominal);
    s = ddp__balance_by(d, &nominal, err);
    ddp_profile_free(&nominal);
    return s;
}

/* ---- prediction ---- */

/* Seconds of a period's transfers in all, and outside of its backward passes. */
static double ddp__transfers_exposed(ddp_ctx *d, const ddp_profile *p, const ddp_transfer *t, int n,
                                     double backward, double *comm)
{
    double exposed = 0, free_at = 0, behind;
    int i;

    for (i = 0, *comm = 0; i < n; i++) {
        double takes = 0;
        for (int l = t[i].first; l >= t[i].last; l--) takes += p->comm_s[l];
        if (takes > 0) takes += p->gap_s;
        (void)ddp__link_take(&free_at, ddp__transfer_ready(p, &t[i]), takes);
        *comm += takes;
        if (i + 1 < n && t[i + 1].step == t[i].step) continue;
        behind = free_at + p->alpha_s - backward;
        if (free_at > 0 && behind > 0) exposed += behind;
        free_at = 0;
    }
    return d->ops.plan_exposed ? d->ops.plan_exposed(d->self) : exposed;
}

ddp_status ddp__predict(ddp_ctx *d, ddp_error *err)
{
    const ddp_profile *p = &d->profile;
    double forward = 0, backward = 0, comm = 0, exposed = 0;
    int n, steps;
    ddp_transfer *t;

    DDP__TRY(ddp__transfers(d, &t, &n, &steps, err));
    for (int l = 0; l < p->layers; l++) {
        forward += p->forward_s ? p->forward_s[l] : 0;
        backward += p->backward_s[l];
    }
    if (d->team_size > 1) exposed = ddp__transfers_exposed(d, p, t, n, backward, &comm);
    if (t) DDP_FREE(t);
    d->plan_steps = steps;
    if (!d->ops.transfers) return DDP_OK; /* nobody knows */
    d->stats.predicted_step_s = forward + p->between_s + backward + exposed / steps;
    d->stats.predicted_hidden_pct = !(comm > 0) ? 100 : exposed < comm ? 100 * (1 - exposed / comm) : 0;
    return DDP_OK;
}
