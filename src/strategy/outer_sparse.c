/* Sparse parameter deltas: the largest values of each chunk are sent (SparseLoCo, arXiv:2508.15706). The
 * other values stay in the residual, which decays and is added to the next delta. Every rank receives the
 * values of all ranks, adds them in rank order, and computes the outer step itself.
 *
 * With sites, each exchange takes three messages, and the comm thread makes the second and third. First, each
 * rank of a site sums its share of the layer in floats. If sites differ in size, the lowest rank sums all of
 * it. Second, each rank packs its share of the site's mean, and the ranks with the same place in all sites
 * exchange it. Third, each site gathers the shares of the mean, again in floats. */
#include "compress/compress.h"
#include "exchange/collective.h"
#include "strategy/outer.h"

#define DDP__SPARSE_DECAY 0.95f

/* The first byte of a block. It stays 0 if the rank was lost. A rank without a delta sends no values and
 * retains its residual. */
enum { DDP__SPARSE_SENT = 1, DDP__SPARSE_NOTHING = 2 };

/* ---- packing ---- */

/* Packs this rank's block from its share of the residual. */
static ddp_status ddp__sparse_pack(ddp__outer_layer *y, ddp_error *err)
{
    const ddp__outer *o = y->all;
    unsigned char *own = y->gather + (size_t)y->place * y->block,
                  *scratch = o->scratch + (size_t)y->link * o->scratch_bytes;
    ddp_error why;

    *own = DDP__SPARSE_SENT;
    if (ddp_sparse_pack(y->error, y->share, o->keep, own + 1, y->block - 1, scratch, o->scratch_bytes,
                        &why) == DDP_OK)
        return DDP_OK;
    return ddp__fail(err, why.code,
                     "cannot encode the parameter delta: %.200s; lower the learning rate, warm it up or "
                     "clip gradients",
                     why.msg);
}

static void ddp__sparse_nothing(ddp__outer_layer *y)
{
    unsigned char *own = y->gather + (size_t)y->place * y->block;

    memset(own, 0, y->block);
    *own = DDP__SPARSE_NOTHING;
}

/* The mean of all blocks. */
static ddp_status ddp__sparse_mean(const ddp__outer_layer *y, float *x, ddp_error *err)
{
    ddp_error why;
    int sent = 0;

    memset(x, 0, y->share * sizeof *x);
    for (int r = 0; r < y->blocks; r++) {
        const unsigned char *p = y->gather + (size_t)r * y->block;
        if (!*p) continue; /* the rank was lost */
        sent++;
        if (*p == DDP__SPARSE_NOTHING) continue;
        if (ddp_sparse_add(p + 1, y->block - 1, y->all->keep, x, y->share, &why))
            return ddp__fail(err, DDP_NET, "the delta of member %d of %d is damaged: %.200s", r, y->blocks,
                             why.msg);
    }
    for (size_t i = 0; i < y->share; i++) x[i] *= 1.0f / (float)(sent ? sent : 1);
    return DDP_OK;
}

/* ---- between sites, on the comm thread ---- */

/* Returns the values of the share from `at` on. *n receives the number of contiguous values. */
static float *ddp__share_at(const ddp__outer_layer *y, size_t at, size_t *n)
{
    const ddp_piece *p = y->moves;
    size_t from = y->first + at;

    for (; from >= p->count; p++) from -= p->count;
    *n = p->count - from < y->share - at ? p->count - from : y->share - at;
    return p->data + from;
}

static ddp_status ddp__share_pack(void *layer, ddp_error *err)
{
    ddp__outer_layer *y = (ddp__outer_layer *)layer;
    size_t n;

    if (!(*y->trained > 0)) {
        ddp__sparse_nothing(y);
        return DDP_OK;
    }
    for (size_t at = 0; at < y->share; at += n) {
        const float *x = ddp__share_at(y, at, &n);
        for (size_t i = 0; i < n; i++) {
            float kept = DDP__SPARSE_DECAY * y->error[at + i];
            DDP__ROUNDED(kept);
            y->error[at + i] = kept + x[i];
        }
    }
    return ddp__sparse_pack(y, err);
}

static ddp_status ddp__share_spread(void *layer, ddp_error *err)
{
    ddp__outer_layer *y = (ddp__outer_layer *)layer;
    float *mean = y->all->shared + (size_t)y->link * y->all->most;
    size_t n;

    DDP__TRY(ddp__sparse_mean(y, mean, err));
    for (size_t at = 0; at < y->share; at += n) {
        float *x = ddp__share_at(y, at, &n);
        memcpy(x, mean + at, n * sizeof *x);
    }
    return DDP_OK;
}

static int ddp__sparse_cross(ddp_ctx *d, ddp__outer_layer *y, const ddp_message *like)
{
    const ddp_sites *s = y->all->sites;
    ddp_piece all;
    ddp_message m = *like, packed;

    m.mean = 0;
    m.ragged = 1;
    m.group = s->inside;
    m.verb = s->equal ? DDP_REDUCE_SCATTER : DDP_ALL_REDUCE;
    /* makes the sum of the sites' values the mean over all ranks */
    m.scale = (float)s->sites / (float)ddp_world(d);
    if (ddp_post(d, &m, &y->before[0])) return DDP_FAILED;
    m.after = y->before[0] + 1;
    m.group = s->gather;
    m.verb = s->equal ? DDP_ALL_GATHER : DDP_BROADCAST;
    m.peer = s->leader;
    m.scale = 0;
    if (y->share) {
        all.bytes = y->gather;
        all.count = (size_t)y->blocks * y->block;
        packed = m;
        packed.group = s->across;
        packed.verb = DDP_ALL_GATHER;
        packed.ragged = 0;
        packed.bytes = 1;
        packed.from = &all;
        packed.from_count = 1;
        packed.maker = &y->packs;
        if (ddp_post(d, &packed, &y->before[1])) return DDP_FAILED;
        m.after = y->before[1] + 1;
        m.maker = &y->spreads;
    }
    return ddp_post(d, &m, &y->ticket);
}

/* ---- a layer ---- */

int ddp__sparse_start(ddp_ctx *d, ddp__outer_layer *y)
{
    const ddp_sites *s = y->all->sites;

    y->share = y->count;
    if (s && s->equal)
        y->share = ddp_segment_of(d, s->inside, DDP_AS_FLOAT, y->count, &y->first);
    else if (s && s->place)
        y->share = 0;
    y->packs.make = ddp__share_pack;
    y->spreads.make = ddp__share_spread;
    y->packs.user = y->spreads.user = y;
    if (!y->share) return 0;
    y->block = 1 + ddp_sparse_bytes(y->share, y->all->keep);
    y->blocks = ddp_blocks_of(d, s ? s->across : ddp_group_of(d, y->layer), &y->place);
    y->error = ddp_keep(d, y->layer, "residual", y->share, DDP_KEPT_HERE);
    if (!y->error) return DDP_FAILED;
    y->gather = (unsigned char *)ddp__lists(d, (size_t)y->blocks, y->block);
    return y->gather ? 0 : DDP_MEMORY;
}

int ddp__sparse_send(ddp_ctx *d, ddp__outer_layer *y, const ddp_message *like)
{
    const float *x = y->all->packed ? y->all->packed : y->x;
    ddp_piece all;
    ddp_message m = *like;
    ddp_error err;

    if (y->all->sites) {
        y->moves = like->from;
        y->link = like->link;
        return ddp__sparse_cross(d, y, like);
    }
    if (!y->idle && y->all->packed && ddp_download(d, y->all->packed, y->x, y->count)) return DDP_FAILED;
    if (y->idle) {
        ddp__sparse_nothing(y);
    } else {
        ddp__scale(y->error, y->count, DDP__SPARSE_DECAY);
        for (size_t i = 0; i < y->count; i++) y->error[i] += x[i];
        if (ddp__sparse_pack(y, &err))
            return ddp_complain(d, err.code, "step %ld: %s%s: %.300s", ddp_step(d),
                                ddp__layer_prefix(ddp_name_of(d, y->layer)), ddp_name_of(d, y->layer),
                                err.msg);
    }
    all.bytes = y->gather;
    all.count = (size_t)y->blocks * y->block;
    m.verb = DDP_ALL_GATHER;
    m.mean = 0;
    m.bytes = 1;
    m.coding = DDP_AS_FLOAT;
    m.from = &all;
    m.from_count = 1;
    m.here = 1;
    return ddp_post(d, &m, &y->ticket);
}

int ddp__sparse_arrive(ddp_ctx *d, ddp__outer_layer *y)
{
    float *x = y->all->packed ? y->all->packed : y->x;
    ddp_error err;

    for (int i = 0; i < 2; i++) DDP__DO(ddp__hold_once(d, &y->before[i], y->layer));
    if (y->all->sites) return 0;
    if (ddp__sparse_mean(y, x, &err) == DDP_OK) return x == y->x ? 0 : ddp_upload(d, y->x, x, y->count);
    return ddp_complain(d, err.code, "step %ld: %s%s: %.300s", ddp_step(d),
                        ddp__layer_prefix(ddp_name_of(d, y->layer)), ddp_name_of(d, y->layer), err.msg);
}
