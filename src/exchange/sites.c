/* Makes groups of ranks, and hierarchical averages: the ranks of a site reduce-scatter, the ranks with the
 * same place in all sites all-reduce their segment over the slow links, and each site all-gathers. Sites of
 * different sizes reduce to their lowest ranks, which broadcast the result. Messages between sites use the
 * coding of the message. Messages inside a site are floats. Sums run in rank order inside a site, then in the
 * order of sites, so the result is bit-identical on all ranks, but not to a flat average. */
#include "config/settings.h"
#include "exchange/exchange.h"
#include "context/context.h"
#include "exchange/collective.h"
#include "exchange/post.h"
#include "exchange/sites.h"
#include "exchange/verbs.h"

/* ---- groups and sites ---- */

int ddp_group(ddp_ctx *d, const int *ranks, int n, int *group)
{
    DDP__ENTER(d);
    if (!ranks || !group) return ddp__ctx_failf(d, DDP_ARG, "ddp_group: the list or the result is NULL");
    if ((ddp__cfg(d)->elastic.min_world > 0 || ddp__cfg(d)->elastic.join) &&
        ddp__goes_check(ddp__cfg(d), ddp__ops(d), 1, ddp__error(d)))
        return ddp__ctx_fail(d, ddp__error(d));
    if (!ddp__engine_of(d, 0)) { /* one worker: every group is the world */
        if (n != 1 || ranks[0] != 0)
            return ddp__ctx_failf(d, DDP_ARG, "ddp_group: a group of %d ranks in a world of 1", n);
        *group = 0;
        return 0;
    }
    if (ddp__engine_group(ddp__engine_of(d, 0), ranks, n, group, ddp__error(d)) ||
        (ddp__second_of(d) && ddp__engine_group(ddp__second_of(d), ranks, n, group, ddp__error(d))))
        return ddp__ctx_fail(d, ddp__error(d));
    return 0;
}

/* Stores the ranks r with key[r] == value in list. Returns their number. */
static int ddp__ranks_with(int world, const int *key, int value, int *list)
{
    int n = 0;

    for (int r = 0; r < world; r++)
        if (key[r] == value) list[n++] = r;
    return n;
}

/* Makes the groups of the sites. list: [2 x world] workspace. gathers 1: makes another group per site for
 * all-gathers. */
static int ddp__sites_make(ddp_ctx *d, const int *site_of, int gathers, ddp_sites *out, int *list)
{
    int *place = list + ddp_world(d), n, group, bad = 0, most = 0, least = ddp_world(d);

    for (int r = 0; !bad && r < ddp_world(d); r++) { /* a site is created when its lowest rank is reached */
        n = ddp__ranks_with(ddp_world(d), site_of, site_of[r], list);
        for (place[r] = 0; list[place[r]] != r; place[r]++) {
        }
        if (n > most) most = n;
        if (n < least) least = n;
        if (place[r]) continue;
        out->sites++;
        bad = ddp_group(d, list, n, &group);
        if (site_of[r] == site_of[ddp_rank(d)]) {
            out->inside = group;
            out->members = n;
            out->leader = r;
        }
        if (gathers && !bad) bad = ddp_group(d, list, n, &group);
        if (site_of[r] == site_of[ddp_rank(d)]) out->gather = group;
    }
    out->place = place[ddp_rank(d)];
    out->equal = most == least;
    for (int q = 0; !bad && q < (out->equal ? most : 1); q++) {
        n = ddp__ranks_with(ddp_world(d), place, q, list);
        bad = ddp_group(d, list, n, &group);
        if (q == out->place) out->across = group;
    }
    return bad;
}

int ddp_sites_open(ddp_ctx *d, const int *site_of, ddp_sites *out)
{
    int *work, bad;

    DDP__ENTER(d);
    if (!site_of || !out)
        return ddp__ctx_failf(d, DDP_ARG, "ddp_sites_open: the sites or the result are NULL");
    memset(out, 0, sizeof *out);
    work = (int *)ddp__calloc(2 * (size_t)ddp_world(d), sizeof *work);
    if (!work) return ddp__ctx_failf(d, DDP_MEMORY, "ddp_sites_open: out of memory");
    bad = ddp__sites_make(d, site_of, 0, out, work);
    DDP_FREE(work);
    return bad;
}

int ddp_sites_all_reduce(ddp_ctx *d, const ddp_sites *s, float *x, size_t n, float scale)
{
    ddp_piece all = {{x}, n}, own = all;
    ddp_message m, across;

    DDP__ENTER(d);
    if (!s || s->members < 1)
        return ddp__ctx_failf(d, DDP_ARG, "ddp_sites_all_reduce: the sites come from ddp_sites_open");
    m = ddp__message(d, s->equal ? DDP_REDUCE_SCATTER : DDP_ALL_REDUCE, &all, 1, DDP_NO_LAYER);
    m.ragged = 1;
    m.group = s->inside;
    if (ddp__run(d, &m, 0, ddp__error(d))) return ddp__ctx_fail(d, ddp__error(d));
    if (s->equal) { /* divided as the segments of an all-reduce */
        const size_t k = (size_t)s->members, j = (size_t)s->place, first = ddp__part_start(n, k, j);
        own.data = x + first;
        own.count = ddp__part_start(n, k, j + 1) - first;
    }
    across = ddp__message(d, DDP_ALL_REDUCE, &own, 1, DDP_NO_LAYER);
    across.group = s->across;
    across.scale = scale;
    if ((s->equal || s->place == 0) && ddp__run(d, &across, 0, ddp__error(d)))
        return ddp__ctx_fail(d, ddp__error(d));
    m.verb = s->equal ? DDP_ALL_GATHER : DDP_BROADCAST;
    m.group = s->gather;
    m.peer = s->leader;
    return ddp__run(d, &m, 0, ddp__error(d)) ? ddp__ctx_fail(d, ddp__error(d)) : 0;
}

/* ---- a strategy's averages ---- */

ddp_status ddp__levels_open(ddp_ctx *d, const int *site, ddp_error *err)
{
    int *list, bad = 0, alike = 1, unlike = 1;

    if (!(ddp__cfg(d)->site > 0)) return DDP_OK;
    list = (int *)ddp__calloc(2 * (size_t)ddp_world(d), sizeof *list);
    if (!list) return ddp__fail(err, DDP_MEMORY, "out of memory for the sites of %d ranks", ddp_world(d));
    if (!d->exchange->sites)
        d->exchange->sites = (ddp_sites *)ddp__scratch_take(ddp__lists_of(d), 1, sizeof *d->exchange->sites);
    if (!d->exchange->sites) {
        DDP_FREE(list);
        return ddp__fail(err, DDP_MEMORY, "out of memory for the sites of %d ranks", ddp_world(d));
    }
    memset(d->exchange->sites, 0, sizeof *d->exchange->sites);
    d->exchange->levels = d->exchange->sites;
    for (int r = 0; r < ddp_world(d); r++)
        for (int q = 0; q < r && site[r]; q++) {
            alike &= site[r] == site[q] || !site[q];
            unlike &= site[r] != site[q];
        }
    if (alike) d->exchange->sites->members = ddp_world(d);
    for (int link = 0; link < ddp_links(d) && !alike; link++)
        ddp__engine_sites(ddp__engine_of(d, link), site);
    if (!alike && !(ddp__cfg(d)->elastic.min_world > 0))
        bad = ddp__sites_make(d, site, 1, d->exchange->sites, list);
    DDP_FREE(list);
    if (bad) return (ddp_status)bad; /* err is the context's */
    /* A flat average suffices. Over the devices' network, the ranks of a site use that network in any
     * case. */
    if ((alike && ddp__cfg(d)->backend) || (unlike && !ddp__cfg(d)->device.nccl)) d->exchange->levels = NULL;
    return DDP_OK;
}

ddp_status ddp__levels_again(ddp_ctx *d, ddp_error *err)
{
    int *site;
    ddp_status s;

    if (!(ddp__cfg(d)->site > 0)) return DDP_OK;
    site = (int *)ddp__calloc((size_t)ddp_world(d), sizeof *site);
    if (!site) return ddp__fail(err, DDP_MEMORY, "out of memory for the sites of %d ranks", ddp_world(d));
    site[ddp_rank(d)] = ddp__cfg(d)->site;
    s = ddp__gather_words(d, 0, site, sizeof *site, err);
    d->exchange->levels = NULL;
    if (s == DDP_OK) s = ddp__levels_open(d, site, err);
    DDP_FREE(site);
    return s;
}

const ddp_sites *ddp_sites_of(const ddp_ctx *d) { return d->exchange->levels; }

int ddp__levels_takes(const ddp_ctx *d, const ddp_message *m)
{
    return d->exchange->levels && m->mean && !m->group && m->verb == DDP_ALL_REDUCE && !m->to;
}

void ddp__levels_across(const ddp_ctx *d, const ddp_message *m, ddp_message *part)
{
    *part = *m;
    part->group = d->exchange->levels->across;
    part->mean = 0;
    part->scale = 1.0f / (float)ddp_world(d);
    part->divergence = NULL;
    part->round = m->residual != NULL;
}

ddp_status ddp__levels_submit(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err)
{
    ddp_message one = *m;

    if (d->exchange->levels->members == ddp_world(d)) { /* only one site: floats, flat */
        one.coding = DDP_AS_FLOAT;
        one.residual = NULL;
    } else {
        one.levels = 1;
        one.divergence = NULL;
    }
    return ddp__engine_submit(ddp__engine_of(d, m->link), &one, ticket, err);
}
