/* Averages from device to device, over the network that the devices have of their own (NCCL).
 *
 * One level: the arrays of all ranks become their mean in place. With sites (levels.c) that network
 * joins the ranks of one site: they sum, the first of them sends the sum over the slow links to the
 * first ones of the other sites, and the site gets the result from it when later work needs it. Sums
 * go as levels.c says. With nccl 2 this network is one of two links, the engine the other
 * (balance.c). */
#include "base/platform.h"
#include "base/clock.h"
#include "base/memory.h"
#include "sync/device.h"
#include "sync/group.h"
#include "sync/stage.h"

/* The part of an average in two levels that crosses sites, until it is held. */
typedef struct ddp__crossing {
    const ddp__piece *pieces;
    int               piece_count;
    long              ticket; /* the stager's; -1: this rank is not the first of its site */
} ddp__crossing;

struct ddp__direct {
    const ddp_sites *site;       /* NULL = one level */
    ddp__crossing   *crossing;   /* [slots] */
    int              slots;
    int64_t          messages, bytes;
    double           left_s;     /* when a rank was first seen to have left; 0 = none has */
    float          **data;       /* [room] of the message that is being made */
    size_t          *count;
    int              room;
    float           *zeros;      /* on the device, what the link is probed with */
};

/* The bytes of a name travel as floats: the engine moves nothing else. */
static ddp_status ddp__direct_share(void *user, void *bytes, size_t count, ddp_error *err)
{
    ddp_ctx *d = (ddp_ctx *)user;
    const ddp_sites *site = d->direct->site;
    unsigned char *byte = (unsigned char *)bytes;
    float *x = (float *)ddp__calloc(count, sizeof *x);
    ddp__piece p;
    ddp_status s;
    size_t i;

    if (!x) return ddp__fail(err, DDP_MEMORY, "out of memory for a message of %zu bytes", count);
    for (i = 0; i < count; i++) x[i] = (float)byte[i];
    p.data = x;
    p.count = count;
    s = ddp__blocking_in(d, site ? site->inside : 0, DDP__BROADCAST, &p, 1, 1, err);
    for (i = 0; s == DDP_OK && i < count; i++) byte[i] = (unsigned char)x[i];
    DDP_FREE(x);
    return s;
}

/* Who closed its context has done its part of all that was in flight, or will never do it: what is
 * not done soon after that waits for it in vain. */
static ddp_status ddp__direct_watch(void *user, double since, ddp_error *err)
{
    ddp_ctx *d = (ddp_ctx *)user;
    struct ddp__direct *x = d->direct;
    int gone;

    DDP__TRY(ddp__engine_error(d->engine, err));
    DDP__TRY(ddp__stage_error(d->stage, err));
    gone = since > 0 ? ddp__engine_left(d->engine) : -1;
    if (gone < 0) return DDP_OK;
    if (x->left_s <= 0) x->left_s = ddp_now();
    if (ddp_now() - (since > x->left_s ? since : x->left_s) < d->cfg.peer_timeout_s) return DDP_OK;
    return ddp__fail(err, DDP_PEER_LOST,
                     "rank %d closed its context while rank %d waits for an average with it: every "
                     "rank must run the same steps",
                     gone, d->rank);
}

ddp_status ddp__direct_open(ddp_ctx *d, int slots, ddp_error *err)
{
    const ddp_backend *b = d->host.backend;
    struct ddp__direct *x = (struct ddp__direct *)ddp__calloc(1, sizeof *x);
    ddp_backend_peers p;

    if (!x) return ddp__fail(err, DDP_MEMORY, "out of memory for the network of the devices");
    d->direct = x;
    x->slots = slots;
    x->site = ddp__levels_site(d);
    x->crossing = (ddp__crossing *)ddp__calloc((size_t)slots, sizeof *x->crossing);
    if (!x->crossing)
        return ddp__fail(err, DDP_MEMORY, "out of memory for %d messages of devices", slots);
    x->zeros = (float *)b->alloc(d->host.device, DDP__PROBE_FLOATS * sizeof(float));
    if (!x->zeros) {
        DDP__TRY(b->check(d->host.device, err));
        return ddp__fail(err, DDP_MEMORY, "out of device memory for the %d floats that links are "
                         "probed with; use a smaller batch or model", DDP__PROBE_FLOATS);
    }
    memset(&p, 0, sizeof p);
    p.rank = x->site ? x->site->place : d->rank;
    p.world = x->site ? x->site->members : d->world;
    p.join_timeout_s = d->cfg.join_timeout_s;
    p.op_timeout_s = d->cfg.op_timeout_s;
    p.share = ddp__direct_share;
    p.watch = ddp__direct_watch;
    p.user = d;
    DDP__TRY(b->join(d->host.device, &p, err));
    d->joined = 1;
    return DDP_OK;
}

void ddp__direct_stop(ddp_ctx *d)
{
    const ddp_backend *b = d->host.backend;

    if (!d->joined) return;
    if (d->host.error.code != DDP_OK) b->raise_all(d->host.device); /* it may wait for one */
    b->leave(d->host.device, d->host.error.code != DDP_OK);
    d->joined = 0;
}

void ddp__direct_close(ddp_ctx *d)
{
    struct ddp__direct *x = d->direct;

    if (!x) return;
    if (x->zeros)
        d->host.backend->release(d->host.device, x->zeros, DDP__PROBE_FLOATS * sizeof(float));
    if (x->crossing) DDP_FREE(x->crossing);
    if (x->data) DDP_FREE((void *)x->data);
    if (x->count) DDP_FREE(x->count);
    DDP_FREE(x);
    d->direct = NULL;
}

int ddp__direct_takes(const ddp_ctx *d, const ddp__message *m)
{
    return d->joined && !m->group && m->link == 0 && m->verb == DDP__ALL_REDUCE && m->mean;
}

float *ddp__direct_zeros(const ddp_ctx *d) { return d->direct->zeros; }

void ddp__direct_stats(const ddp_ctx *d, ddp_link_stats *out)
{
    out->operations = d->direct->messages;
    out->bytes_sent = d->direct->bytes;
    out->algorithm = "nccl";
}

/* As the backend takes arrays; *total is their floats. */
static ddp_status ddp__direct_arrays(struct ddp__direct *x, const ddp__piece *pieces, int n,
                                     size_t *total, ddp_error *err)
{
    int i;

    if (n > x->room) {
        if (x->data) DDP_FREE((void *)x->data);
        if (x->count) DDP_FREE(x->count);
        x->data = (float **)ddp__calloc((size_t)n, sizeof *x->data);
        x->count = (size_t *)ddp__calloc((size_t)n, sizeof *x->count);
        x->room = x->data && x->count ? n : 0;
        if (!x->room) return ddp__fail(err, DDP_MEMORY, "out of memory for a message of %d arrays", n);
    }
    *total = 0;
    for (i = 0; i < n; i++) {
        x->data[i] = pieces[i].data;
        x->count[i] = pieces[i].count;
        *total += pieces[i].count;
    }
    return DDP_OK;
}

/* The first of a site sends the sum of its site when the device has it. */
static ddp_status ddp__direct_cross(ddp_ctx *d, const ddp__message *m, ddp__crossing *c,
                                    ddp_error *err)
{
    const ddp_sites *site = d->direct->site;
    ddp__message part = *m;

    c->pieces = m->pieces;
    c->piece_count = m->piece_count;
    c->ticket = -1;
    if (site->place) return DDP_OK;
    part.group = site->across;
    part.mean = 0;
    part.scale = 1.0f / (float)d->world;
    part.divergence = NULL;
    return ddp__stage_submit(d->stage, &part, DDP__BEHIND_AVERAGES, &c->ticket, err);
}

ddp_status ddp__direct_post(ddp_ctx *d, const ddp__message *m, long *ticket, ddp_error *err)
{
    struct ddp__direct *x = d->direct;
    const int slot = (int)(x->messages++ % x->slots);
    size_t total;

    DDP__TRY(ddp__direct_arrays(x, m->pieces, m->piece_count, &total, err));
    x->bytes += (int64_t)(total * sizeof(float));
    DDP__TRY(d->host.backend->average(d->host.device, slot, x->data, x->count, m->piece_count,
                                      x->site != NULL, err));
    *ticket = -2 - slot;
    return x->site ? ddp__direct_cross(d, m, &x->crossing[slot], err) : DDP_OK;
}

ddp_status ddp__direct_hold(ddp_ctx *d, long ticket, ddp_error *err)
{
    const ddp_backend *b = d->host.backend;
    struct ddp__direct *x = d->direct;
    const int slot = (int)(-2 - ticket);
    const ddp__crossing *c = &x->crossing[slot];

    if (x->site) {
        unsigned turn = 0;
        int held = 0;
        size_t total;
        if (c->ticket >= 0 && d->loaded) ddp__stage_flag(d->stage, c->ticket, &held, &turn);
        else if (c->ticket >= 0) DDP__TRY(ddp__stage_wait(d->stage, c->ticket, err));
        DDP__TRY(ddp__direct_arrays(x, c->pieces, c->piece_count, &total, err));
        DDP__TRY(b->spread(d->host.device, slot, held, turn, x->data, x->count, c->piece_count, err));
    }
    b->finish(d->host.device, slot);
    return DDP_OK;
}

ddp_status ddp__direct_run(ddp_ctx *d, const ddp__message *m, ddp_error *err)
{
    long ticket;

    DDP__TRY(ddp__direct_post(d, m, &ticket, err));
    DDP__TRY(ddp__direct_hold(d, ticket, err));
    DDP__TRY(d->host.backend->wait(d->host.device, err));
    return ddp__device_check(d, err);
}
