#include "base/platform.h"
#include "plan/ring_order.h"
#include "sync/context.h"
#include "sync/device.h"
#include "sync/group.h"

int ddp_group(ddp_ctx *d, const int *ranks, int n, int *group)
{
    DDP__ENTER(d);
    if (!ranks || !group)
        return ddp__ctx_failf(d, DDP_ARG, "ddp_group: the list or the result is NULL");
    if (!d->engine) { /* alone: every group is the world */
        if (n != 1 || ranks[0] != 0)
            return ddp__ctx_failf(d, DDP_ARG, "ddp_group: a group of %d ranks in a world of 1", n);
        *group = 0;
        return 0;
    }
    if (ddp__engine_group(d->engine, ranks, n, group, &d->host.error) ||
        (d->second && ddp__engine_group(d->second, ranks, n, group, &d->host.error)))
        return ddp__ctx_fail(d, &d->host.error);
    return 0;
}

static int ddp__group_run(ddp_ctx *d, const char *name, int group, ddp__verb verb, float *x,
                          size_t n, float scale, int root)
{
    ddp__message m;
    ddp__piece p;

    DDP__ENTER(d);
    if (!x && n) return ddp__ctx_failf(d, DDP_ARG, "%s: the array is NULL", name);
    if (!d->engine) {
        size_t i;
        for (i = 0; scale != 1 && i < n; i++) x[i] *= scale;
        return 0;
    }
    p.data = x;
    p.count = n;
    memset(&m, 0, sizeof m);
    m.verb = verb;
    m.pieces = &p;
    m.piece_count = 1;
    m.scale = scale;
    m.group = group;
    m.peer = root;
    m.step = d->step;
    m.layer = DDP__NO_LAYER;
    m.filler = 1;
    if (ddp__post_flush(d, &d->host.error) || ddp__engine_run(d->engine, &m, &d->host.error))
        return ddp__ctx_fail(d, &d->host.error);
    return 0;
}

/* Ranks of a group, 1 where it is none (the engine then says so). */
static size_t ddp__group_size(const ddp_ctx *d, int group)
{
    return d && d->engine ? (size_t)ddp__engine_group_size(d->engine, group) : 1;
}

int ddp_group_all_reduce(ddp_ctx *d, int group, float *x, size_t n, float scale)
{
    return ddp__group_run(d, "ddp_group_all_reduce", group, DDP__ALL_REDUCE, x, n, scale, 0);
}

int ddp_group_broadcast(ddp_ctx *d, int group, float *x, size_t n, int root)
{
    return ddp__group_run(d, "ddp_group_broadcast", group, DDP__BROADCAST, x, n, 1, root);
}

int ddp_group_all_gather(ddp_ctx *d, int group, float *x, size_t n)
{
    return ddp__group_run(d, "ddp_group_all_gather", group, DDP__ALL_GATHER, x,
                          n * ddp__group_size(d, group), 1, 0);
}

int ddp_group_reduce_scatter(ddp_ctx *d, int group, float *x, size_t n, float scale)
{
    return ddp__group_run(d, "ddp_group_reduce_scatter", group, DDP__REDUCE_SCATTER, x,
                          n * ddp__group_size(d, group), scale, 0);
}

int ddp_group_barrier(ddp_ctx *d, int group)
{
    float *token;
    int s;

    DDP__ENTER(d);
    token = (float *)ddp__calloc(ddp__group_size(d, group), sizeof *token);
    if (!token) return ddp__ctx_failf(d, DDP_MEMORY, "ddp_group_barrier: out of memory");
    s = ddp_group_all_gather(d, group, token, 1);
    DDP_FREE(token);
    return s;
}

/* ---- two levels ---- */

/* The ranks r with key[r] == value, in list; how many. */
static int ddp__ranks_with(int world, const int *key, int value, int *list)
{
    int n = 0, r;

    for (r = 0; r < world; r++)
        if (key[r] == value) list[n++] = r;
    return n;
}

/* list, place: [world] to work with. */
static int ddp__sites_make(ddp_ctx *d, const int *site_of, ddp_sites *out, int *list, int *place)
{
    int r, q, n, group, bad = 0, most = 0, least = d->world;

    for (r = 0; !bad && r < d->world; r++) { /* a site is made where its lowest rank comes */
        n = ddp__ranks_with(d->world, site_of, site_of[r], list);
        for (place[r] = 0; list[place[r]] != r; place[r]++) {}
        if (n > most) most = n;
        if (n < least) least = n;
        if (place[r]) continue;
        bad = ddp_group(d, list, n, &group);
        if (site_of[r] != site_of[d->rank]) continue;
        out->inside = group;
        out->members = n;
        out->leader = r;
    }
    out->place = place[d->rank];
    out->equal = most == least;
    for (q = 0; !bad && q < (out->equal ? most : 1); q++) {
        n = ddp__ranks_with(d->world, place, q, list);
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
    work = (int *)ddp__calloc(2 * (size_t)d->world, sizeof *work);
    if (!work) return ddp__ctx_failf(d, DDP_MEMORY, "ddp_sites_open: out of memory");
    bad = ddp__sites_make(d, site_of, out, work, work + d->world);
    DDP_FREE(work);
    return bad;
}

int ddp_sites_all_reduce(ddp_ctx *d, const ddp_sites *s, float *x, size_t n, float scale)
{
    size_t block, whole;
    int bad;

    DDP__ENTER(d);
    if (!s || s->members < 1)
        return ddp__ctx_failf(d, DDP_ARG, "ddp_sites_all_reduce: the sites come from ddp_sites_open");
    if (!s->equal) {
        bad = ddp_group_all_reduce(d, s->inside, x, n, 1);
        if (!bad && s->place == 0) bad = ddp_group_all_reduce(d, s->across, x, n, scale);
        return bad ? bad : ddp_group_broadcast(d, s->inside, x, n, s->leader);
    }
    block = n / (size_t)s->members;
    whole = block * (size_t)s->members;
    bad = ddp_group_reduce_scatter(d, s->inside, x, block, 1);
    if (!bad)
        bad = ddp_group_all_reduce(d, s->across, x + block * (size_t)s->place, block, scale);
    if (!bad) bad = ddp_group_all_gather(d, s->inside, x, block);
    if (bad || whole == n) return bad;
    bad = ddp_group_all_reduce(d, s->inside, x + whole, n - whole, 1);
    return bad ? bad : ddp_group_all_reduce(d, s->across, x + whole, n - whole, scale);
}

/* ---- the measured ring ---- */

static ddp_ring_choice ddp__ring_choose(const ddp_network *net, double least, size_t window)
{
    const double n = net->devices;
    double slowest = INFINITY, access = INFINITY, delay = 0, direct, ring;
    ddp_ring_choice c;
    int i, j;

    for (i = 0; i < net->devices; i++) {
        double most = 0;
        for (j = 0; j < net->devices; j++) {
            const size_t at = (size_t)i * (size_t)net->devices + (size_t)j;
            if (i == j) continue;
            if (net->rate[at] < slowest) slowest = net->rate[at];
            if (net->rate[at] > most) most = net->rate[at];
            delay += net->delay_s[at] / (n * (n - 1));
        }
        if (most < access) access = most;
    }
    direct = 2 * (n - 1) / (n * access);
    if (2 / (n * slowest) > direct) direct = 2 / (n * slowest);
    direct *= 1.1;
    ring = 2 * (n - 1) / (n * least);
    c.least_rate = least;
    c.from_bytes = direct > ring ? 2 * (n - 2) * delay / (direct - ring) : INFINITY;
    if (c.from_bytes < 1) c.from_bytes = 1;
    /* partial sums under way are staged at the next rank */
    if (2 * delay * least > (double)window) c.from_bytes = INFINITY;
    return c;
}

static int ddp__ring_set(ddp_ctx *d, const ddp_network *net, ddp_ring_choice *out)
{
    int *order = (int *)ddp__calloc((size_t)d->world, sizeof *order), bad;
    double least;
    size_t from;

    if (!order) return ddp__ctx_failf(d, DDP_MEMORY, "ddp_ring_tune: out of memory");
    bad = (int)ddp_plan_ring(d->world, net->rate, net->delay_s, order, &least, &d->host.error);
    if (!bad) {
        *out = ddp__ring_choose(net, least, ddp__engine_window(d->engine));
        from = out->from_bytes < 1e18 ? (size_t)out->from_bytes : SIZE_MAX;
        bad = (int)ddp__engine_ring(d->engine, order, from, &d->host.error);
    }
    DDP_FREE(order);
    return bad ? ddp__ctx_fail(d, &d->host.error) : 0;
}

int ddp_ring_tune(ddp_ctx *d, const ddp_probe_result *r, ddp_ring_choice *out)
{
    ddp_ring_choice own;
    ddp_network net;
    int bad;

    DDP__ENTER(d);
    if (!r || r->world != d->world)
        return ddp__ctx_failf(d, DDP_ARG, "ddp_ring_tune: a measurement of this world is needed");
    if (!out) out = &own;
    out->least_rate = 0;
    out->from_bytes = INFINITY;
    if (d->world < 3) return 0;
    if (ddp_probe_network(r, &net, &d->host.error)) return ddp__ctx_fail(d, &d->host.error);
    bad = ddp__ring_set(d, &net, out);
    ddp_network_free(&net);
    return bad;
}
