/* Two links: which message goes over which. By the time that measured (or nominal) alpha and beta
 * tell, a message takes the link that would finish it first, behind what was given to that link
 * before: the rule of a list scheduler. The bits are those of one link, since sums go in rank
 * order over either. */
#include "base/platform.h"
#include "sync/context.h"

typedef struct ddp__balance {
    ddp_link link[2];
    double   free_at[2];
} ddp__balance;

static int ddp__balance_next(ddp__balance *s, double ready, double bytes)
{
    double end[2], begin;
    int k, best;

    for (k = 0; k < 2; k++) {
        begin = ready > s->free_at[k] ? ready : s->free_at[k];
        end[k] = begin + s->link[k].beta_s * bytes;
    }
    best = end[1] + s->link[1].alpha_s < end[0] + s->link[0].alpha_s;
    s->free_at[best] = end[best];
    return best;
}

/* Layers first down to last as one message, once the backward of the last is done. */
static void ddp__balance_message(ddp_ctx *d, ddp__balance *s, int first, int last, double ready)
{
    double bytes = 0;
    int l, link;

    for (l = first; l >= last; l--) bytes += (double)ddp__unit_wire_bytes(d, &d->unit[l]);
    link = ddp__balance_next(s, ready, bytes);
    for (l = first; l >= last; l--) d->unit[l].link = link;
}

/* One step, or that step of a period in which a layer is averaged. */
static void ddp__balance_step(ddp_ctx *d, ddp__balance *s, const ddp_profile *p, int h)
{
    double ready = 0, whole = 0;
    int l, b = 0;

    s->free_at[0] = s->free_at[1] = 0;
    for (l = 0; l < d->layers; l++) whole += p->backward_s[l];
    for (l = d->layers - 1; l >= 0; l--) {
        ready += p->backward_s[l];
        if (d->buckets) {
            if (l > d->bucket[b].last) continue;
            ddp__balance_message(d, s, d->bucket[b].first, l,
                               d->strategy->id == DDP_SSGD ? whole : ready);
            b++;
        } else if (d->strategy->id == DDP_SSGD) {
            if (l == 0) ddp__balance_message(d, s, d->layers - 1, 0, whole);
        } else if (d->strategy->partial) {
            if (d->plan.step_of[l] == h) ddp__balance_message(d, s, l, l, ready);
        } else {
            ddp__balance_message(d, s, l, l, whole);
        }
    }
}

ddp_status ddp__balance_links(ddp_ctx *d, const ddp_profile *p, ddp_error *err)
{
    float *links;
    ddp__piece piece;
    ddp__balance s;
    ddp_status status;
    int l, h, taken = 0;

    if (ddp_links(d) < 2) return DDP_OK;
    links = (float *)ddp__calloc((size_t)d->layers, sizeof *links);
    if (!links)
        return ddp__fail(err, DDP_MEMORY, "out of memory for the links of %d layers", d->layers);
    memset(&s, 0, sizeof s);
    s.link[0] = d->link.beta_s > 0 ? d->link : ddp__link_nominal(d, &d->links);
    s.link[1] = d->second_link.beta_s > 0 ? d->second_link
                                          : ddp__link_nominal(d, &d->second_links);
    for (h = 0; h < (d->strategy->partial ? d->plan.period : 1); h++) ddp__balance_step(d, &s, p, h);
    for (l = 0; l < d->layers; l++) links[l] = (float)d->unit[l].link;
    piece.data = links;
    piece.count = (size_t)d->layers;
    status = ddp__blocking_in(d, d->team, DDP__BROADCAST, &piece, 1, 1, err);
    for (l = 0; l < d->layers; l++) taken += d->unit[l].link = links[l] != 0.0f;
    DDP_FREE(links);
    if (status == DDP_OK && d->team_place == 0)
        ddp__log(&d->host.log, DDP_LOG_INFO, "step %ld: %d of %d layers go over the second link",
                 d->step, taken, d->layers);
    return status;
}

ddp_status ddp__balance_nominal(ddp_ctx *d, ddp_error *err)
{
    ddp_profile p;
    ddp_status s;

    if (ddp_links(d) < 2) return DDP_OK;
    DDP__TRY(ddp__profile_start(d, &p, err));
    ddp__profile_nominal(d, &p);
    s = ddp__balance_links(d, &p, err);
    ddp_profile_free(&p);
    return s;
}
