/* A strategy's averages in two levels: the ranks of a site sum each a segment, those of one place
 * in all sites average theirs over the slow links, and each site gathers. Three messages, each of
 * which begins when the one before it is done, so that the next layers' do not wait for the caller
 * to come back. Sums go in rank order inside a site, then in the order of sites: the same bits on
 * all ranks, not those of one level. */
#include "base/platform.h"
#include "sync/context.h"
#include "sync/group.h"

typedef struct ddp__levels {
    ddp_sites   site;
    int         gather;  /* the ranks of site.inside once more, in an order of its own */
    ddp__piece *slice;   /* [room] a segment of a message */
    int         room;
} ddp__levels;

/* Pieces of the longest message: all that is averaged, all gradients, or the probe's. */
static int ddp__levels_room(const ddp_ctx *d)
{
    int l, n = 1024;

    for (l = 0; l < d->layers; l++) n += d->unit[l].averages + d->unit[l].gradients;
    return n;
}

static int ddp__levels_make(ddp_ctx *d, ddp__levels *v, const int *site, int *list)
{
    int bad = ddp_sites_open(d, site, &v->site), r, q, n, first, group;

    for (r = 0; !bad && r < d->world; r++) {
        for (q = n = 0, first = 1; q < d->world; q++) {
            if (site[q] != site[r]) continue;
            if (q < r) first = 0;
            list[n++] = q;
        }
        if (!first) continue;
        bad = ddp_group(d, list, n, &group);
        if (site[r] == site[d->rank]) v->gather = group;
    }
    return bad;
}

ddp_status ddp__levels_open(ddp_ctx *d, const float *site, size_t stride, ddp_error *err)
{
    ddp__levels *v;
    int *all, r, bad, alike = 1, unlike = 1;

    for (r = 0; r < d->world; r++)
        if ((site[(size_t)r * stride] > 0) != (site[0] > 0))
            return ddp__fail(err, DDP_MISMATCH,
                             "rank %d has %s site, rank 0 has %s: give every rank its site, or "
                             "none",
                             r, site[0] > 0 ? "no" : "a", site[0] > 0 ? "one" : "none");
    if (!(site[0] > 0)) return DDP_OK;
    all = (int *)ddp__calloc(2 * (size_t)d->world, sizeof *all);
    v = (ddp__levels *)ddp__calloc(1, sizeof *v);
    if (v) v->room = ddp__levels_room(d);
    if (v) v->slice = (ddp__piece *)ddp__calloc((size_t)v->room, sizeof *v->slice);
    d->levels = v;
    if (!all || !v || !v->slice) {
        if (all) DDP_FREE(all);
        return ddp__fail(err, DDP_MEMORY, "out of memory for the sites of %d ranks", d->world);
    }
    for (r = 0; r < d->world; r++) all[r] = (int)site[(size_t)r * stride];
    bad = ddp__levels_make(d, v, all, all + d->world);
    for (r = 1; r < d->world; r++) {
        int q;
        alike &= all[r] == all[0];
        for (q = 0; q < r; q++) unlike &= all[r] != all[q];
    }
    DDP_FREE(all);
    if (bad) { /* the context has the error */
        if (err != &d->host.error) *err = d->host.error;
        return (ddp_status)bad;
    }
    /* one level is all there is; the devices' own network joins those of a site in any case */
    if (alike || (unlike && !d->cfg.nccl)) ddp__levels_close(d);
    return DDP_OK;
}

const ddp_sites *ddp__levels_site(const ddp_ctx *d) { return d->levels ? &d->levels->site : NULL; }

void ddp__levels_close(ddp_ctx *d)
{
    if (!d->levels) return;
    if (d->levels->slice) DDP_FREE(d->levels->slice);
    DDP_FREE(d->levels);
    d->levels = NULL;
}

int ddp__levels_messages(const ddp_ctx *d)
{
    return d->levels->site.equal || d->levels->site.place == 0 ? 3 : 2;
}

/* Values from..to of a list of pieces. */
static int ddp__levels_slice(ddp__levels *v, const ddp__message *m, size_t from, size_t to)
{
    size_t at = 0;
    int i, n = 0;

    for (i = 0; i < m->piece_count; at += m->pieces[i++].count) {
        const ddp__piece *p = &m->pieces[i];
        size_t a = from > at ? from - at : 0, b = to > at ? to - at : 0;
        if (b > p->count) b = p->count;
        if (a >= b) continue;
        v->slice[n].data = p->data + a;
        v->slice[n++].count = b - a;
    }
    return n;
}

ddp_status ddp__submit_mean(ddp_ctx *d, const ddp__message *m, long *ticket, ddp_error *err)
{
    ddp__levels *v = d->levels;
    ddp__message part = *m;
    size_t n = 0, k, j;
    long before;
    int i;

    if (!v || m->piece_count > v->room) return ddp__ctx_submit(d, m, ticket, err);
    for (i = 0; i < m->piece_count; i++) n += m->pieces[i].count;
    part.verb = v->site.equal ? DDP__REDUCE_SCATTER : DDP__ALL_REDUCE;
    part.group = v->site.inside;
    part.ragged = 1;
    part.mean = 0;
    part.scale = 1;
    part.coding = DDP__AS_FLOAT;
    part.divergence = NULL;
    DDP__TRY(ddp__ctx_submit(d, &part, &before, err));
    part.after = before + 1;
    if (ddp__levels_messages(d) == 3) {
        part.verb = DDP__ALL_REDUCE;
        part.group = v->site.across;
        part.scale = m->mean ? 1.0f / (float)d->world : m->scale;
        part.coding = m->coding;
        if (v->site.equal) { /* as an all-reduce cuts its segments */
            k = (size_t)v->site.members;
            j = (size_t)v->site.place;
            part.piece_count = ddp__levels_slice(v, m, n / k * j + n % k * j / k,
                                                 n / k * (j + 1) + n % k * (j + 1) / k);
            part.pieces = v->slice;
        }
        DDP__TRY(ddp__ctx_submit(d, &part, &before, err));
        part.after = before + 1;
    }
    part.verb = v->site.equal ? DDP__ALL_GATHER : DDP__BROADCAST;
    part.group = v->gather;
    part.peer = v->site.leader;
    part.scale = 1;
    part.coding = DDP__AS_FLOAT;
    part.pieces = m->pieces;
    part.piece_count = m->piece_count;
    return ddp__ctx_submit(d, &part, ticket, err);
}
