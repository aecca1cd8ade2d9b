/* Strategies that average gradients before the update: ssgd and wfbp. Sums go in rank order
 * element by element, so how gradients are cut into messages cannot change a bit. */
#include "run/config.h"
#include "strategy/strategy.h"

#define DDP__FIRST_BUCKET_BYTES ((size_t)1 << 20)

/* Layers first..last (first >= last: backward order), as one message. */
typedef struct ddp__bucket {
    int        first, last, missing;
    ddp_piece *piece;
    int        pieces;
    long       ticket;
} ddp__bucket;

typedef struct ddp__gradient {
    ddp__bucket *bucket;
    int          buckets, next; /* the next one to leave */
    int          layer;         /* < 0: of its messages; 0: the last one of the bucket */
} ddp__gradient;

/* Gradient pieces of layers first down to last, as one list. */
static int ddp__bucket_fill(ddp_ctx *d, ddp__bucket *b, int first, int last)
{
    const ddp_piece *own;
    int n, room = 0;

    for (int l = first; l >= last; l--) {
        (void)ddp_gradients_of(d, l, &n);
        room += n;
    }
    b->piece = (ddp_piece *)ddp__calloc((size_t)room + 1, sizeof *b->piece);
    if (!b->piece) return ddp_complain(d, DDP_MEMORY, "out of memory for the gradients of %d layers", first - last + 1);
    for (int l = first; l >= last; l--) {
        own = ddp_gradients_of(d, l, &n);
        if (n) memcpy(b->piece + b->pieces, own, (size_t)n * sizeof *own);
        b->pieces += n;
    }
    b->first = first;
    b->last = last;
    b->missing = first - last + 1;
    b->ticket = -1;
    return 0;
}

static size_t ddp__gradient_bytes(ddp_ctx *d, int layer)
{
    int n;
    const ddp_piece *p = ddp_gradients_of(d, layer, &n);
    size_t bytes = 0;

    for (int i = 0; i < n; i++) bytes += p[i].count * sizeof(float);
    return bytes;
}

/* Buckets in backward order: a bucket closes when it has reached its size, and at layers of another group. */
static int ddp__buckets_new(ddp_ctx *d, ddp__gradient *g, size_t first_bytes, size_t most)
{
    const int layers = ddp_layers(d);
    size_t bytes = 0;
    int bad, first = layers - 1;

    g->bucket = (ddp__bucket *)ddp__calloc((size_t)layers, sizeof *g->bucket);
    if (!g->bucket) return ddp_complain(d, DDP_MEMORY, "out of memory for %d buckets", layers);
    for (int l = layers - 1; l >= 0; l--) {
        size_t limit = g->buckets == 0 && first_bytes < most ? first_bytes : most;
        bytes += ddp__gradient_bytes(d, l);
        if (bytes < limit && l > 0 && ddp_group_of(d, l - 1) == ddp_group_of(d, l)) continue;
        bad = ddp__bucket_fill(d, &g->bucket[g->buckets++], first, l);
        if (bad) return bad;
        first = l - 1;
        bytes = 0;
    }
    return 0;
}

static int ddp__bucket_send(ddp_ctx *d, const ddp__gradient *g, ddp__bucket *b)
{
    ddp_message m;

    if (ddp_world(d) == 1 || b->pieces == 0) return 0;
    memset(&m, 0, sizeof m);
    m.verb = DDP_ALL_REDUCE;
    m.from = b->piece;
    m.from_count = b->pieces;
    m.mean = 1;
    m.group = ddp_group_of(d, b->last);
    m.step = ddp_step(d);
    m.layer = g->layer < 0 ? g->layer : b->last;
    m.coding = ddp_coding_of(d);
    m.residual = ddp_residual_of(d, b->first);
    m.link = ddp_link_of(d, b->last);
    return ddp_post(d, &m, &b->ticket);
}

/* A bucket leaves when all its layers are done and all earlier buckets have left: one order on all ranks. */
static int ddp__buckets_send(ddp_ctx *d, ddp__gradient *g)
{
    int bad = 0;

    for (; !bad && g->next < g->buckets && g->bucket[g->next].missing == 0; g->next++)
        bad = ddp__bucket_send(d, g, &g->bucket[g->next]);
    return bad;
}

static int ddp__buckets_hold(ddp_ctx *d, ddp__gradient *g)
{
    int bad = 0;

    for (int i = 0; i < g->buckets && !bad; i++) {
        ddp__bucket *b = &g->bucket[i];
        if (b->ticket != -1) bad = ddp_hold(d, b->ticket, b->last);
        b->ticket = -1;
        b->missing = b->first - b->last + 1;
    }
    g->next = 0;
    return bad;
}

static int ddp__gradient_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__gradient *g = (ddp__gradient *)self;
    int bad = ddp__buckets_hold(d, g);

    (void)forward;
    if (!bad) bad = ddp_clip(d);
    for (int l = ddp_layers(d) - 1; l >= 0 && !bad; l--) bad = ddp_update_layer(d, l, NULL);
    return bad;
}

static void ddp__gradient_close(ddp_ctx *d, void *self)
{
    ddp__gradient *g = (ddp__gradient *)self;

    (void)d;
    for (int i = 0; i < g->buckets; i++)
        if (g->bucket[i].piece) DDP_FREE(g->bucket[i].piece);
    if (g->bucket) DDP_FREE(g->bucket);
}

/* ---- ssgd: all at once, after the whole backward; one message for each group ---- */

static int ddp__ssgd_start(ddp_ctx *d, void *self)
{
    ddp__gradient *g = (ddp__gradient *)self;
    int bad = ddp__buckets_new(d, g, SIZE_MAX, SIZE_MAX);

    if (g->buckets == 1) g->layer = DDP_ALL_LAYERS;
    return bad;
}

static int ddp__ssgd_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__gradient *g = (ddp__gradient *)self;
    int bad;

    for (int i = 0; i < g->buckets; i++) g->bucket[i].missing = 0;
    bad = ddp__buckets_send(d, g);
    return bad ? bad : ddp__gradient_step_end(d, self, forward);
}

static int ddp__ssgd_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room)
{
    const ddp__gradient *g = (const ddp__gradient *)self;
    int i;

    (void)d;
    *period = 1;
    for (i = 0; i < g->buckets && i < room; i++) {
        const ddp_transfer t = {0, g->bucket[i].first, g->bucket[i].last, -1};
        out[i] = t;
    }
    return i;
}

/* ---- wfbp: in buckets, while the backward goes on ---- */

static int ddp__wfbp_start(ddp_ctx *d, void *self)
{
    return ddp__buckets_new(d, (ddp__gradient *)self, DDP__FIRST_BUCKET_BYTES, ddp_settings(d)->bucket_bytes);
}

static int ddp__wfbp_backward_end(ddp_ctx *d, void *self, int layer)
{
    ddp__gradient *g = (ddp__gradient *)self;
    int i = 0;

    while (layer < g->bucket[i].last) i++;
    g->bucket[i].missing--;
    return ddp__buckets_send(d, g);
}

static int ddp__wfbp_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room)
{
    int n = ddp__ssgd_transfers(d, self, period, out, room);

    for (int i = 0; i < n; i++) out[i].behind = out[i].last;
    return n;
}

void ddp__strategy_ssgd(ddp_strategy_ops *ops)
{
    ops->name = "ssgd";
    ops->averages = DDP_AVERAGES_GRADIENTS;
    ops->traits = DDP_WITH_ALL;
    ops->self_bytes = sizeof(ddp__gradient);
    ops->start = ddp__ssgd_start;
    ops->step_end = ddp__ssgd_step_end;
    ops->transfers = ddp__ssgd_transfers;
    ops->close = ddp__gradient_close;
}

void ddp__strategy_wfbp(ddp_strategy_ops *ops)
{
    ddp__strategy_ssgd(ops);
    ops->name = "wfbp";
    ops->start = ddp__wfbp_start;
    ops->backward_end = ddp__wfbp_backward_end;
    ops->step_end = ddp__gradient_step_end;
    ops->transfers = ddp__wfbp_transfers;
}
