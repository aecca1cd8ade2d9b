/* Opens the backend of a context, checks and waits for the device, and averages from device to device over
 * the devices' own network (NCCL).
 *
 * Without sites the arrays of all ranks become their mean in place. With sites (sites.c) that network
 * connects the ranks of one site: they sum, the first of them exchanges the sum with the first ranks of the
 * other sites over the slow links, and the site receives the result from it when later work needs it. Sums
 * run in the order of sites.c. With nccl 2 this network is one of two links, and the engine the other
 * (planning.c). */
#include "context/clock.h"
#include "context/context.h"
#include "device/device.h"
#include "device/stager.h"
#include "exchange/exchange.h"
#include "exchange/post.h"
#include "exchange/sites.h"
#include "exchange/transport.h"
#include "exchange/verbs.h"

int ddp__has_stager(const ddp_ctx *d) { return d->gpu->stager != NULL; }

void ddp__nccl_stats(const ddp_ctx *d, int64_t *messages, int64_t *bytes)
{
    *messages = d->gpu->nccl->messages;
    *bytes = d->gpu->nccl->bytes;
}

float *ddp__nccl_zeros(const ddp_ctx *d) { return d->gpu->nccl->zeros; }

int ddp__has_nccl(const ddp_ctx *d) { return d->gpu->nccl != NULL; }

int ddp__gpu_open(ddp_ctx *d)
{
    d->gpu = (struct ddp__gpu *)ddp__scratch_take(ddp__lists_of(d), 1, sizeof *d->gpu);
    return d->gpu != NULL;
}

/* ---- from device to device ---- */

/* An average that is not held yet. */
typedef struct ddp__crossing {
    float **data; /* lists: the arrays, and their numbers of floats */
    size_t *count;
    long ticket; /* stager's ticket for the part between sites. -1 means that this rank is not the first of
                  * its site. */
} ddp__crossing;

static ddp_status ddp__nccl_share(void *user, void *bytes, size_t count, ddp_error *err)
{
    ddp_ctx *d = (ddp_ctx *)user;

    return ddp__tell(d, d->gpu->nccl->site ? d->gpu->nccl->site->inside : 0, bytes, count, err);
}

/* Watches for ranks that have left. A rank that has closed its context has either sent all its contributions
 * or will never send them, so an average that does not complete soon afterwards fails. */
static ddp_status ddp__nccl_watch(void *user, double since, ddp_error *err)
{
    ddp_ctx *d = (ddp_ctx *)user;
    struct ddp__nccl *x = d->gpu->nccl;
    int gone;

    DDP__TRY(ddp__engine_error(ddp__engine_of(d, 0), err));
    DDP__TRY(ddp__stager_error(d->gpu->stager, err));
    gone = since > 0 ? ddp__engine_left(ddp__engine_of(d, 0)) : -1;
    if (gone < 0) return DDP_OK;
    if (x->left_s <= 0) x->left_s = ddp_now();
    if (ddp_now() - (since > x->left_s ? since : x->left_s) < ddp__cfg(d)->timeout.peer_s) return DDP_OK;
    return ddp__fail(err, DDP_PEER_LOST,
                     "rank %d closed its context while rank %d waits for an average with it: every "
                     "rank must run the same steps",
                     gone, ddp_rank(d));
}

/* Finds the lost peer after a failure of the devices' network, which does not report it: the transport soon
 * detects which rank has left. */
static ddp_status ddp__nccl_lost(ddp_ctx *d, ddp_status s, ddp_error *err)
{
    const double until = ddp_now() + ddp__cfg(d)->timeout.peer_s;
    ddp_error why;
    int gone = -1;

    while (s == DDP_PEER_LOST && d->gpu->joined && gone < 0 && ddp_now() < until) {
        if (ddp__engine_error(ddp__engine_of(d, 0), &why)) {
            *err = why;
            return why.code;
        }
        gone = ddp__engine_left(ddp__engine_of(d, 0));
        if (gone < 0) ddp__sleep_until(ddp_now() + 1e-3);
    }
    if (gone < 0) return s;
    return ddp__fail(
        err, s,
        "rank %d closed its context while rank %d averages with it: every rank must run the same "
        "steps",
        gone, ddp_rank(d));
}

static ddp_status ddp__nccl_open(ddp_ctx *d, int slots, ddp_error *err)
{
    const ddp_backend *b = ddp__backend_of(d);
    struct ddp__nccl *x = (struct ddp__nccl *)ddp__scratch_take(ddp__lists_of(d), 1, sizeof *x);
    ddp_backend_peers p = DDP__ZEROS;

    if (!x) return ddp__fail(err, DDP_MEMORY, "out of memory for the network of the devices");
    d->gpu->nccl = x;
    x->slots = slots;
    x->site = ddp_sites_of(d);
    x->crossing = (ddp__crossing *)ddp__scratch_take(ddp__lists_of(d), (size_t)slots, sizeof *x->crossing);
    if (!x->crossing) return ddp__fail(err, DDP_MEMORY, "out of memory for %d messages of devices", slots);
    x->zeros = (float *)b->alloc(ddp__device_of(d), DDP__PROBE_FLOATS * sizeof(float));
    if (!x->zeros) {
        DDP__TRY(b->check(ddp__device_of(d), err));
        return ddp__fail(err, DDP_MEMORY,
                         "out of device memory for the %d floats that links are "
                         "probed with; use a smaller batch or model",
                         DDP__PROBE_FLOATS);
    }
    p.rank = x->site ? x->site->place : ddp_rank(d);
    p.world = x->site ? x->site->members : ddp_world(d);
    p.join_timeout_s = ddp__cfg(d)->timeout.join_s;
    p.op_timeout_s = ddp__cfg(d)->timeout.op_s;
    p.share = ddp__nccl_share;
    p.watch = ddp__nccl_watch;
    p.user = d;
    DDP__TRY(b->join(ddp__device_of(d), &p, err));
    d->gpu->joined = 1;
    return DDP_OK;
}

static void ddp__nccl_stop(ddp_ctx *d)
{
    const ddp_backend *b = ddp__backend_of(d);

    if (!d->gpu->joined) return;
    if (ddp__error(d)->code != DDP_OK) b->raise_all(ddp__device_of(d)); /* the device may wait for a flag */
    b->leave(ddp__device_of(d), ddp__error(d)->code != DDP_OK);
    d->gpu->joined = 0;
}

static void ddp__nccl_close(ddp_ctx *d)
{
    struct ddp__nccl *x = d->gpu->nccl;

    if (!x) return;
    if (x->zeros) ddp__backend_of(d)->release(ddp__device_of(d), x->zeros, DDP__PROBE_FLOATS * sizeof(float));
    for (int i = 0; x->crossing && i < x->slots; i++) {
        ddp__array_free(x->crossing[i].data);
        ddp__array_free(x->crossing[i].count);
    }
    d->gpu->nccl = NULL;
}

int ddp__nccl_takes(const ddp_ctx *d, const ddp_message *m)
{
    return d->gpu->joined && !m->group && m->link == 0 && m->verb == DDP_ALL_REDUCE && m->mean && !m->to &&
           !m->here;
}

/* Lists the arrays as the backend takes them. *total receives the number of floats. */
static ddp_status ddp__nccl_arrays(ddp__crossing *c, const ddp_message *m, size_t *total, ddp_error *err)
{
    const int n = m->from_count;

    if (!ddp__reserve(c->data, n) || !ddp__reserve(c->count, n))
        return ddp__fail(err, DDP_MEMORY, "out of memory for a message of %d arrays", n);
    stbds_arrsetlen(c->data, n);
    stbds_arrsetlen(c->count, n);
    *total = 0;
    for (int i = 0; i < n; i++) {
        c->data[i] = m->from[i].data;
        c->count[i] = m->from[i].count;
        *total += m->from[i].count;
    }
    return DDP_OK;
}

ddp_status ddp__nccl_post(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err)
{
    struct ddp__nccl *x = d->gpu->nccl;
    const int slot = (int)(x->messages++ % x->slots);
    ddp__crossing *c = &x->crossing[slot];
    ddp_message part;
    size_t total = 0;
    ddp_status s;

    DDP__TRY(ddp__nccl_arrays(c, m, &total, err));
    x->bytes += (int64_t)(total * sizeof(float));
    s = ddp__backend_of(d)->average(ddp__device_of(d), slot, c->data, c->count, ddp__count(c->data),
                                    x->site != NULL, err);
    if (s != DDP_OK) return ddp__nccl_lost(d, s, err);
    *ticket = -2 - slot;
    c->ticket = -1;
    if (!x->site || x->site->place) return DDP_OK;
    /* the first rank of a site sends the sum of its site when the device has computed it */
    ddp__levels_across(d, m, &part);
    return ddp__stager_submit(d->gpu->stager, &part, DDP__BEHIND_AVERAGES, &c->ticket, err);
}

ddp_status ddp__nccl_hold(ddp_ctx *d, long ticket, ddp_error *err)
{
    const ddp_backend *b = ddp__backend_of(d);
    struct ddp__nccl *x = d->gpu->nccl;
    const int slot = (int)(-2 - ticket);
    const ddp__crossing *c = &x->crossing[slot];

    if (x->site) {
        unsigned turn = 0;
        int held = 0;
        if (c->ticket >= 0 && d->gpu->loaded)
            ddp__stager_flag(d->gpu->stager, c->ticket, &held, &turn);
        else if (c->ticket >= 0)
            DDP__TRY(ddp__stager_wait(d->gpu->stager, c->ticket, 0, err));
        DDP__TRY(b->spread(ddp__device_of(d), slot, held, turn, c->data, c->count, ddp__count(c->data), err));
    }
    b->finish(ddp__device_of(d), slot);
    return DDP_OK;
}

/* ---- the transport table ---- */

static ddp_status ddp__device_post(ddp_ctx *d, const ddp_message *m, int there, long *ticket, ddp_error *err)
{
    if (there && ddp__nccl_takes(d, m)) return ddp__nccl_post(d, m, ticket, err);
    return ddp__stager_submit(d->gpu->stager, m, there ? DDP__BEHIND_WORK : DDP__HERE, ticket, err);
}

static ddp_status ddp__device_run(ddp_ctx *d, const ddp_message *m, ddp_error *err)
{
    long ticket;

    DDP__TRY(ddp__stager_submit(d->gpu->stager, m, DDP__BEHIND_WORK, &ticket, err));
    return ddp__stager_wait(d->gpu->stager, ticket, 0, err);
}

/* The first step waits on the host: kernels are loaded at their first launch, and loading may wait for all
 * queued device work, including work that waits for a message. */
static ddp_status ddp__device_hold(ddp_ctx *d, long ticket, ddp_error *err)
{
    if (ticket < -1)
        DDP__TRY(ddp__nccl_hold(d, ticket, err));
    else if (d->gpu->loaded)
        ddp__stager_hold(d->gpu->stager, ticket);
    else
        DDP__TRY(ddp__stager_wait(d->gpu->stager, ticket, 0, err));
    return ddp__stager_error(d->gpu->stager, err);
}

static ddp_status ddp__device_hold_input(ddp_ctx *d, long ticket, ddp_error *err)
{
    return ticket < -1 ? ddp__nccl_hold(d, ticket, err) : ddp__stager_wait(d->gpu->stager, ticket, 1, err);
}

static ddp_status ddp__device_wait_for(ddp_ctx *d, long ticket, ddp_error *err)
{
    return ddp__stager_wait(d->gpu->stager, ticket, 0, err);
}

static int ddp__device_is_done(ddp_ctx *d, long ticket)
{
    return ticket >= 0 && ddp__stager_is_done(d->gpu->stager, ticket);
}

static ddp_status ddp__device_flush(ddp_ctx *d, ddp_error *err)
{
    return ddp__stager_flush(d->gpu->stager, err);
}

static double ddp__device_divergence(ddp_ctx *d, const double *of)
{
    return ddp__stager_divergence(d->gpu->stager, of);
}

static const ddp__transport ddp__device_transport = {
    ddp__device_post,     ddp__device_run,     ddp__device_hold,  ddp__device_hold_input,
    ddp__device_wait_for, ddp__device_is_done, ddp__device_flush, ddp__device_divergence};

/* ---- opening ---- */

ddp_status ddp__device_open(ddp_ctx *d, ddp_error *err)
{
    const ddp_backend *b = ddp__cfg(d)->backend;
    void *device = NULL;

    if (!b || ddp__is_server(d)) return DDP_OK; /* a server uses host memory */
    DDP__TRY(b->open(b, ddp_local_rank(d), ddp__cfg(d)->device.cuda_stream, &device, err));
    if (b->attach) b->attach(device, ddp__log_of(d), ddp__cfg(d)->timeout.op_s);
    ddp__device_set(d, b, device); /* ddp__device_close closes it after a failure of prepare */
    return b->prepare ? b->prepare(device, ddp__cfg(d)->no_env, err) : DDP_OK;
}

/* Number of messages that may be in flight: messages of the strategy and of a pipeline, and a few of the
 * context. */
static int ddp__device_room(const ddp_ctx *d, int edge_messages)
{
    return ddp__posted_room(d) + 2 * ddp__layers(d) + 16 + edge_messages;
}

ddp_status ddp__device_start(ddp_ctx *d, int edge_messages, size_t edge_bytes, ddp_error *err)
{
    const ddp_backend *b = ddp__backend_of(d);
    size_t total = 0, largest = 0;

    if (!b) return DDP_OK;
    DDP__TRY(ddp__clock_open(d, err));
    if (!ddp__engine_of(d, 0)) return DDP_OK;
    for (int l = 0; l < ddp__layers(d); l++) {
        const ddp__unit *u = ddp__unit_of(d, l);
        size_t layer = u->count + u->state_count;

        for (int k = 0; k < ddp__count(u->block); k++) /* frozen arrays are broadcast once */
            if (ddp__block_is_frozen(&u->block[k])) layer += u->block[k].count;
        total += layer;
        if (layer > largest) largest = layer;
    }
    if (ddp__ops(d)->averages != DDP_AVERAGES_PARAMETERS || ddp__cfg(d)->server.count)
        largest = total;                                                  /* one message has all layers */
    if (ddp_sites_of(d) && largest < DDP__PROBE_MOST * DDP__PROBE_FLOATS) /* probes between sites */
        largest = DDP__PROBE_MOST * DDP__PROBE_FLOATS;
    if (ddp__coded_on_device(d)) {
        largest += largest / 3 + 1;
        total += total / 3 + 1;
    } /* with its blocks */
    DDP__TRY(ddp__stager_open(d, ddp__device_room(d, edge_messages), largest * sizeof(float) + edge_bytes,
                              total * sizeof(float) + edge_bytes, &d->gpu->stager, err));
    ddp__transport_set(d, &ddp__device_transport);
    return ddp__cfg(d)->device.nccl ? ddp__nccl_open(d, ddp__device_room(d, edge_messages), err) : DDP_OK;
}

void ddp__device_loaded(ddp_ctx *d) { d->gpu->loaded = 1; }

void ddp__device_stop(ddp_ctx *d)
{
    ddp__nccl_stop(d); /* the stager may wait for an average that never ends */
    ddp__stager_stop(d->gpu->stager);
}

void ddp__device_close(ddp_ctx *d)
{
    ddp__stager_free(d->gpu->stager);
    ddp__nccl_close(d);
    if (ddp__backend_of(d)) ddp__backend_of(d)->close(ddp__device_of(d));
    ddp__device_set(d, NULL, NULL);
    d->gpu->stager = NULL;
    ddp__transport_set(d, NULL);
}

ddp_status ddp__device_check(ddp_ctx *d, ddp_error *err)
{
    const ddp_backend *b = ddp__backend_of(d);

    if (!b) return DDP_OK;
    DDP__TRY(b->check(ddp__device_of(d), err));
    if (d->gpu->joined) DDP__TRY(ddp__nccl_lost(d, b->poll(ddp__device_of(d), err), err));
    return d->gpu->stager ? ddp__stager_error(d->gpu->stager, err) : DDP_OK;
}

ddp_status ddp__device_wait(ddp_ctx *d, ddp_error *err)
{
    if (!ddp__backend_of(d)) return DDP_OK;
    DDP__TRY(ddp__nccl_lost(d, ddp__backend_of(d)->wait(ddp__device_of(d), err), err));
    ddp__clock_collect(d);
    return ddp__device_check(d, err);
}
