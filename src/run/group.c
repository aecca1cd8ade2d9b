/* Groups of ranks, and the ring of all of them as it was measured. */
#include "base/platform.h"
#include "plan/ring_order.h"
#include "run/context.h"
#include "profile/network.h"
#include "run/group.h"

int ddp_group(ddp_ctx *d, const int *ranks, int n, int *group)
{
    DDP__ENTER(d);
    if (!ranks || !group)
        return ddp__ctx_failf(d, DDP_ARG, "ddp_group: the list or the result is NULL");
    if ((d->cfg.min_world > 0 || d->cfg.join) && ddp__goes_check(&d->cfg, &d->ops, 1, &d->host.error))
        return ddp__ctx_fail(d, &d->host.error);
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
