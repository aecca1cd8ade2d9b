/* bytes, seconds -> link model -> re-plan: the link is followed while training, and when it has
 * moved by a fifth all ranks plan again. */
#include "base/platform.h"
#include "run/context.h"
#include "run/device.h"

enum { DDP__DRIFT_PERIODS = 4 };    /* how often rank 0 says whether to plan again */
static const double ddp__drift_limit = 0.2;

/* Operations that overlap share the link: together they tell seconds for bytes. Grows the
 * cluster that begins with operation i; 0 if i is not its first or not all of it is known. */
static int ddp__cluster(const ddp_ctx *d, int ops, int i, double *begin, double *end, double *bytes)
{
    const ddp__op_span *o = d->op_scratch;
    int j, before = -1, size = 0;

    *begin = o[i].begin;
    *end = o[i].end;
    while (size != before) { /* until no further operation overlaps */
        before = size;
        size = 0;
        *bytes = 0;
        for (j = 0; j < ops; j++) {
            if (o[j].begin >= *end || (o[j].end >= 0 && o[j].end <= *begin)) continue;
            if (o[j].begin < *begin || (o[j].begin == *begin && j < i)) return 0;
            if (o[j].end < 0 || o[j].layer < 0 || o[j].verb != DDP_ALL_REDUCE) return 0;
            if (o[j].end > *end) *end = o[j].end;
            *bytes += (double)ddp__layer_bytes(d, o[j].layer);
            size++;
        }
    }
    return 1;
}

/* The messages of an average in two levels become one operation, from the first byte of the first
 * to the last byte of the last; one that is not all here has no layer. How many are left. */
static int ddp__chains(ddp_ctx *d, int ops)
{
    const int whole = ddp__levels_messages(d);
    ddp__op_span *o = d->op_scratch;
    int i, j, n = 0;

    for (i = 0; i < ops; i++) {
        for (j = 0; j < n && (o[i].layer < 0 || o[j].layer != o[i].layer || o[j].step != o[i].step);)
            j++;
        if (j == n) {
            o[n] = o[i];
            o[n++].peer = 1; /* messages so far */
            continue;
        }
        o[j].verb = DDP_ALL_REDUCE;
        o[j].peer++;
        if (o[i].begin < o[j].begin) o[j].begin = o[i].begin;
        if (o[i].end < 0 || (o[j].end >= 0 && o[i].end > o[j].end)) o[j].end = o[i].end;
    }
    for (j = 0; j < n; j++)
        if (o[j].peer != whole) o[j].layer = DDP_NO_LAYER;
    return n;
}

void ddp__drift_observe(ddp_ctx *d, double since, double now)
{
    /* a step more than is new, so that no cluster is seen without its beginning */
    int ops, i;

    if (d->nccl) return; /* the engine's operations tell nothing of the devices' network */
    ops = ddp__engine_spans(d->engine, 2 * since - now, now, d->op_scratch, d->op_room);
    if (d->levels) ops = ddp__chains(d, ops);
    for (i = 0; i < ops; i++) {
        double begin, end, bytes;
        if (d->op_scratch[i].end < 0 || !ddp__cluster(d, ops, i, &begin, &end, &bytes)) continue;
        if (end > since) ddp_linkfit_add(&d->fit, bytes, end - begin);
    }
}

void ddp__drift_start(ddp_ctx *d)
{
    double bytes = 0;
    int l;

    for (l = 0; l < d->layers; l++)
        bytes += (double)ddp__layer_bytes(d, l) / d->layers;
    d->mean_layer_bytes = bytes;
    ddp_linkfit_start(&d->fit, d->link, bytes, 4.0 * d->layers);
    d->drift_ticket = -1;
}

/* The first rank's word travels unhurried, during the period after it was given. */
static ddp_status ddp__drift_ask(ddp_ctx *d, ddp_error *err)
{
    double moved = ddp_link_drift(d->link, d->fit.link, &d->mean_layer_bytes, 1);
    ddp_message m;
    ddp_piece p;

    d->drift_word.again = moved > ddp__drift_limit || moved < -ddp__drift_limit;
    d->drift_word.link = d->fit.link;
    p.bytes = &d->drift_word;
    p.count = sizeof d->drift_word;
    ddp__own_word(d, &m, DDP_BROADCAST, &p);
    m.group = d->team;
    m.peer = d->team_root;
    return ddp__post(d, &m, 0, &d->drift_ticket, err);
}

ddp_status ddp__drift_step(ddp_ctx *d, ddp_error *err)
{
    long every = (long)d->plan_steps * DDP__DRIFT_PERIODS;
    double before;

    if (!d->engine || !d->ops.plan_make || d->nccl) return DDP_OK;
    if (d->step % every == 0) return ddp__drift_ask(d, err);
    if (d->drift_ticket < 0 || d->step % every != d->plan_steps) return DDP_OK;
    DDP__TRY(ddp__post_wait(d, 0, d->drift_ticket, err));
    d->drift_ticket = -1;
    if (!d->drift_word.again) return DDP_OK;
    ddp__log(&d->host.log, DDP_LOG_INFO,
             "step %ld: averaging a layer now takes %.2f ms + %.1f ns per byte (was %.2f ms + %.1f "
             "ns): planning again",
             d->step, 1e3 * d->drift_word.link.alpha_s, 1e9 * d->drift_word.link.beta_s,
             1e3 * d->link.alpha_s, 1e9 * d->link.beta_s);
    before = d->link.alpha_s + d->link.beta_s * d->mean_layer_bytes;
    d->link = d->drift_word.link;
    d->stats.replans++;
    ddp__note_add(d, DDP_NOTE_REPLAN, -1, before,
                  d->link.alpha_s + d->link.beta_s * d->mean_layer_bytes);
    return ddp__plan_again(d, err);
}
