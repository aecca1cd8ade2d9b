/* Strategies that average gradients before the update: ssgd and wfbp, and the buckets that all of them use.
 * Values are added in rank order, element by element. The result is therefore bit-identical however gradients
 * are divided into messages. */
#include "strategy/gradient.h"

size_t ddp__part_begins(size_t n, int part, int cut)
{
    return part == cut ? n : n / (size_t)cut * (size_t)part;
}

/* Appends gradients begin..end-1 of a layer to the bucket. */
static void ddp__bucket_add(ddp_ctx *d, ddp__bucket *b, int layer, size_t begin, size_t end)
{
    int n;
    const ddp_piece *own = ddp_gradients_of(d, layer, &n);

    for (size_t at = 0; n-- > 0 && at < end; at += own++->count) {
        const size_t from = begin > at ? begin - at : 0, to = end - at < own->count ? end - at : own->count;
        if (from >= to) continue;
        b->piece[b->pieces].data = own->data + from;
        b->piece[b->pieces++].count = to - from;
    }
}

int ddp__bucket_fill(ddp_ctx *d, ddp__bucket *b, int first, int last)
{
    int n, room = 0;

    for (int l = first; l >= last; l--, room += n) (void)ddp_gradients_of(d, l, &n);
    b->piece = (ddp_piece *)ddp__calloc((size_t)room + 1, sizeof *b->piece);
    if (!b->piece)
        return ddp_complain(d, DDP_MEMORY, "out of memory for the gradients of %d layers", first - last + 1);
    if (!b->cut) b->to = b->cut = 1;
    b->offset = ddp__part_begins(ddp__gradient_count(d, first), b->from, b->cut);
    for (int l = first; l >= last; l--) {
        const size_t all = ddp__gradient_count(d, l);
        ddp__bucket_add(d, b, l, ddp__part_begins(all, b->from, b->cut),
                        ddp__part_begins(all, b->to, b->cut));
    }
    b->first = first;
    b->last = last;
    b->ticket = -1;
    return 0;
}

int ddp__buckets_room(ddp_ctx *d, ddp__gradient *g, int buckets)
{
    g->bucket = (ddp__bucket *)ddp__calloc((size_t)buckets, sizeof *g->bucket);
    if (!g->of) g->of = (ddp__gradient_layer *)ddp__calloc((size_t)ddp_layers(d), sizeof *g->of);
    return g->bucket && g->of ? 0 : ddp_complain(d, DDP_MEMORY, "out of memory for %d buckets", buckets);
}

int ddp__bucket_ends(ddp_ctx *d, int layer, int pieces)
{
    int more;

    if (layer == 0 || ddp_group_of(d, layer - 1) != ddp_group_of(d, layer)) return 1;
    (void)ddp_gradients_of(d, layer - 1, &more);
    return pieces + more > (int)DDP__BUCKET_PIECES;
}

/* Makes buckets in backward order. A bucket closes when it reaches its size or where it must end. */
static int ddp__buckets_new(ddp_ctx *d, ddp__gradient *g, size_t first_bytes, size_t most)
{
    const int layers = ddp_layers(d);
    size_t bytes = 0;
    int first = layers - 1, pieces = 0, n;

    DDP__DO(ddp__buckets_room(d, g, layers));
    for (int l = layers - 1; l >= 0; l--) {
        const size_t limit = g->buckets == 0 && first_bytes < most ? first_bytes : most;
        (void)ddp_gradients_of(d, l, &n);
        pieces += n;
        bytes += ddp__gradient_count(d, l) * sizeof(float);
        if (bytes < limit && !ddp__bucket_ends(d, l, pieces)) continue;
        DDP__DO(ddp__bucket_fill(d, &g->bucket[g->buckets++], first, l));
        first = l - 1;
        bytes = 0;
        pieces = 0;
    }
    return 0;
}

static int ddp__bucket_send(ddp_ctx *d, const ddp__gradient *g, ddp__bucket *b)
{
    ddp_message m = ddp__mean_message(d, b->last, b->piece, b->pieces);

    if (ddp_world(d) == 1 || b->pieces == 0) return 0;
    if (g->layer < 0) m.layer = g->layer;
    m.coding = ddp_coding_of(d);
    m.residual = ddp_residual_of(d, b->first);
    if (m.residual) m.residual += b->offset;
    /* forward waits layer by layer: the plan's first message has priority */
    m.priority = g->waits ? g->next : 0;
    return ddp_post(d, &m, &b->ticket);
}

/* Sends each bucket when all its layers are ready and all earlier buckets were sent, so that all ranks send
 * in the same order. */
static int ddp__buckets_send(ddp_ctx *d, ddp__gradient *g)
{
    for (; g->next < g->buckets; g->next++) {
        ddp__bucket *b = &g->bucket[g->next];
        for (int l = b->last; l <= b->first; l++)
            if (!g->of[l].ready) return 0;
        DDP__DO(ddp__bucket_send(d, g, b));
    }
    return 0;
}

void ddp__buckets_again(ddp_ctx *d, ddp__gradient *g)
{
    g->next = 0;
    for (int l = 0; l < ddp_layers(d); l++) g->of[l].ready = 0;
}

int ddp__gradient_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__gradient *g = (ddp__gradient *)self;

    (void)forward;
    for (int l = 0; l < ddp_layers(d); l++) g->of[l].ready = 1;
    DDP__DO(ddp__buckets_send(d, g)); /* only ssgd has unsent buckets here */
    for (int i = 0; i < g->buckets; i++) DDP__DO(ddp__hold_once(d, &g->bucket[i].ticket, g->bucket[i].last));
    ddp__buckets_again(d, g);
    DDP__DO(ddp_clip(d));
    return ddp__update_all(d);
}

void ddp__buckets_free(ddp__gradient *g)
{
    for (int i = 0; i < g->buckets; i++)
        if (g->bucket[i].piece) DDP_FREE(g->bucket[i].piece);
    if (g->bucket) DDP_FREE(g->bucket);
    g->bucket = NULL;
    g->buckets = 0;
}

static void ddp__gradient_close(ddp_ctx *d, void *self)
{
    ddp__gradient *g = (ddp__gradient *)self;

    (void)d;
    ddp__buckets_free(g);
    if (g->of) DDP_FREE(g->of);
}

/* ---- the profile for plans of gradients ---- */

/* Layers whose transfer is too fast to measure still take part in the plan. A message occupies the link for
 * its bytes and arrives alpha later, so the timeline has no startups. */
ddp_status ddp__gradient_profile(ddp_ctx *d, const ddp_profile *p, ddp_profile *own, ddp_error *err)
{
    DDP__TRY(ddp_profile_new(p->layers, own, err));
    own->gap_s = p->gap_s;
    own->between_s = p->between_s;
    for (int l = 0; l < p->layers; l++) {
        const size_t n = ddp__gradient_count(d, l);
        own->params[l] = (double)n;
        own->forward_s[l] = p->forward_s ? p->forward_s[l] : 0;
        own->backward_s[l] = p->backward_s[l];
        own->comm_s[l] = n == 0 ? 0 : p->comm_s[l] > 0 ? p->comm_s[l] : 1e-12 * (double)n;
    }
    return DDP_OK;
}

double ddp__gradient_part_least(const ddp_profile *p, double alpha)
{
    double comm = 0, params = 0;

    for (int l = 0; l < p->layers; l++) {
        comm += p->comm_s[l];
        params += p->params[l];
    }
    return comm > 0 ? params * (alpha / comm < 1 ? alpha / comm : 1) : 0;
}

/* ---- ssgd: sends after the backward pass, one message per group, or several if it has many arrays ---- */

static int ddp__ssgd_start(ddp_ctx *d, void *self)
{
    ddp__gradient *g = (ddp__gradient *)self;

    DDP__DO(ddp__buckets_new(d, g, SIZE_MAX, SIZE_MAX));
    if (g->buckets == 1) g->layer = DDP_ALL_LAYERS;
    return 0;
}

static int ddp__gradient_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room)
{
    const ddp__gradient *g = (const ddp__gradient *)self;
    const int whole = ddp_settings(d)->strategy == DDP_SSGD;
    int n = 0;

    *period = 1;
    for (int i = 0; i < g->buckets && n < room; i++) {
        const ddp__bucket *b = &g->bucket[i];
        const ddp_transfer t = {0, b->first, b->last, whole ? -1 : b->last};
        if (b->from == 0) out[n++] = t; /* counts a layer once */
    }
    return n;
}

/* ---- wfbp: sends buckets during the backward pass ---- */

static int ddp__wfbp_start(ddp_ctx *d, void *self)
{
    return ddp__buckets_new(d, (ddp__gradient *)self, DDP__FIRST_BUCKET_BYTES,
                            ddp_settings(d)->gradient.bucket_bytes);
}

static int ddp__wfbp_backward_end(ddp_ctx *d, void *self, int layer)
{
    ddp__gradient *g = (ddp__gradient *)self;

    g->of[layer].ready = 1;
    return ddp__buckets_send(d, g);
}

void ddp__strategy_ssgd(ddp_strategy_ops *ops)
{
    ops->averages = DDP_AVERAGES_GRADIENTS;
    ops->traits = DDP_WITH_ALL;
    ops->self_bytes = sizeof(ddp__gradient);
    ops->start = ddp__ssgd_start;
    ops->step_end = ddp__gradient_step_end;
    ops->transfers = ddp__gradient_transfers;
    ops->close = ddp__gradient_close;
}

void ddp__strategy_wfbp(ddp_strategy_ops *ops)
{
    ddp__strategy_ssgd(ops);
    ops->start = ddp__wfbp_start;
    ops->backward_end = ddp__wfbp_backward_end;
}
