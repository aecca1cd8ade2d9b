/* Strategies that average gradients before the update: ssgd and wfbp. Sums go in rank order
 * element by element, so how gradients are cut into messages cannot change a bit. */
#include "base/platform.h"
#include "sync/context.h"
#include "sync/device.h"

/* Of layers from first down; residual: what int8 blocks have still to send of them. */
static ddp_status ddp__gradients_submit(ddp_ctx *d, const ddp__piece *pieces, int count, int layer,
                                        int group, int link, float *residual, long *ticket)
{
    ddp__message m;

    if (residual)
        DDP__TRY(ddp__coded_gradients(d, pieces, count, layer, residual, &d->host.error));
    memset(&m, 0, sizeof m);
    m.verb = DDP__ALL_REDUCE;
    m.pieces = pieces;
    m.piece_count = count;
    m.mean = 1;
    m.group = group;
    m.step = d->step;
    m.layer = layer;
    m.coding = ddp__wire_coding(d->cfg.wire);
    m.residual = residual;
    m.link = link;
    return ddp__post(d, &m, 1, ticket, &d->host.error);
}

static void ddp__update_all(ddp_ctx *d)
{
    int l;

    if (d->cfg.clip_norm > 0) ddp__clip_gradients(d);
    for (l = d->layers - 1; l >= 0; l--) ddp__update_layer(d, l);
}

/* Gradient pieces of layers first down to last, as one list; NULL when memory is short. */
static ddp__piece *ddp__gradient_pieces(ddp_ctx *d, int first, int last, int *count)
{
    ddp__piece *list;
    int l, n = 0;

    for (l = first; l >= last; l--) n += d->unit[l].gradients;
    list = (ddp__piece *)ddp__calloc((size_t)n, sizeof *list);
    if (!list) return NULL;
    n = 0;
    for (l = first; l >= last; l--) {
        if (d->unit[l].gradients)
            memcpy(list + n, d->unit[l].gradient, (size_t)d->unit[l].gradients * sizeof *list);
        n += d->unit[l].gradients;
    }
    *count = n;
    return list;
}

/* ---- buckets ---- */

static size_t ddp__unit_gradient_bytes(const ddp__unit *u)
{
    size_t n = 0;
    int i;

    for (i = 0; i < u->gradients; i++) n += u->gradient[i].count * sizeof(float);
    return n;
}

/* Buckets in backward order: a bucket closes when it has reached its size, and at layers of
 * another group. */
static ddp_status ddp__buckets_new(ddp_ctx *d, const char *name, size_t first_bytes, size_t most)
{
    size_t bytes = 0;
    int l, first = d->layers - 1;

    d->bucket = (ddp__bucket *)ddp__calloc((size_t)d->layers, sizeof *d->bucket);
    if (!d->bucket)
        return ddp__fail(&d->host.error, DDP_MEMORY, "%s: out of memory for %d buckets", name,
                         d->layers);
    for (l = d->layers - 1; l >= 0; l--) {
        size_t limit = d->buckets == 0 && first_bytes < most ? first_bytes : most;
        ddp__bucket *b = &d->bucket[d->buckets];
        bytes += ddp__unit_gradient_bytes(&d->unit[l]);
        if (bytes < limit && l > 0 && d->unit[l - 1].group == d->unit[l].group) continue;
        b->first = first;
        b->last = l;
        b->missing = first - l + 1;
        b->group = d->unit[l].group;
        b->ticket = -1;
        b->piece = ddp__gradient_pieces(d, first, l, &b->pieces);
        if (!b->piece)
            return ddp__fail(&d->host.error, DDP_MEMORY, "%s: out of memory for bucket %d", name,
                             d->buckets);
        d->buckets++;
        first = l - 1;
        bytes = 0;
    }
    return DDP_OK;
}

/* A bucket leaves when all its layers are done and all earlier buckets have left: one order
 * on all ranks. */
static ddp_status ddp__buckets_send(ddp_ctx *d)
{
    while (d->next_bucket < d->buckets && d->bucket[d->next_bucket].missing == 0) {
        ddp__bucket *b = &d->bucket[d->next_bucket];
        if (d->engine && b->pieces)
            DDP__TRY(ddp__gradients_submit(d, b->piece, b->pieces, b->last, b->group,
                                           d->unit[b->last].link, d->unit[b->first].residual,
                                           &b->ticket));
        d->next_bucket++;
    }
    return DDP_OK;
}

static ddp_status ddp__buckets_end(ddp_ctx *d)
{
    int i;

    for (i = 0; i < d->buckets; i++) {
        ddp__bucket *b = &d->bucket[i];
        if (b->ticket != -1)
            DDP__TRY(ddp__post_hold(d, d->unit[b->last].link, b->ticket, b->last,
                                    &d->host.error));
        b->ticket = -1;
        b->missing = b->first - b->last + 1;
    }
    d->next_bucket = 0;
    ddp__update_all(d);
    return DDP_OK;
}

/* ---- ssgd ---- */

static ddp_status ddp__ssgd_start(ddp_ctx *d)
{
    if (d->mixed) return ddp__buckets_new(d, "ssgd", SIZE_MAX, SIZE_MAX); /* one for each group */
    d->all_gradients = ddp__gradient_pieces(d, d->layers - 1, 0, &d->all_gradient_pieces);
    return d->all_gradients
               ? DDP_OK
               : ddp__fail(&d->host.error, DDP_MEMORY, "ssgd: out of memory for the message list");
}

static ddp_status ddp__ssgd_backward_end(ddp_ctx *d, int layer)
{
    (void)d;
    (void)layer;
    return DDP_OK;
}

static ddp_status ddp__ssgd_step_end(ddp_ctx *d)
{
    int i;

    for (i = 0; i < d->buckets; i++) d->bucket[i].missing = 0;
    if (d->buckets) {
        DDP__TRY(ddp__buckets_send(d));
        return ddp__buckets_end(d);
    }
    if (d->engine && d->all_gradient_pieces) {
        long ticket;
        DDP__TRY(ddp__gradients_submit(d, d->all_gradients, d->all_gradient_pieces, DDP__ALL_LAYERS,
                                       d->team, d->unit[0].link, d->coded, &ticket));
        DDP__TRY(ddp__post_hold(d, d->unit[0].link, ticket, -1, &d->host.error));
    }
    ddp__update_all(d);
    return DDP_OK;
}

/* ---- wfbp ---- */

#define DDP__FIRST_BUCKET_BYTES ((size_t)1 << 20)

static ddp_status ddp__wfbp_start(ddp_ctx *d)
{
    return ddp__buckets_new(d, "wfbp", DDP__FIRST_BUCKET_BYTES, d->cfg.bucket_bytes);
}

static ddp_status ddp__wfbp_backward_end(ddp_ctx *d, int layer)
{
    int i = 0;

    while (layer < d->bucket[i].last) i++;
    d->bucket[i].missing--;
    return ddp__buckets_send(d);
}

const ddp__strategy_table *ddp__gradient_strategies(int *count)
{
    static const ddp__strategy_table table[] = {
        {"ssgd", DDP_SSGD, 0, ddp__ssgd_start, ddp__ssgd_backward_end, ddp__ssgd_step_end},
        {"wfbp", DDP_WFBP, 0, ddp__wfbp_start, ddp__wfbp_backward_end, ddp__buckets_end},
    };

    *count = (int)(sizeof table / sizeof table[0]);
    return table;
}
