#include "base/platform.h"
#include "base/clock.h"
#include "base/text.h"
#include "sync/device.h"
#include "sync/stage.h"

/* ---- opening ---- */

/* The place of this rank among those of its machine, as a launcher says it. */
static int ddp__device_local(const ddp_ctx *d)
{
    static const char *const names[] = {"DREAMDDP_LOCAL_RANK", "LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "SLURM_LOCALID"};
    size_t i;
    long v;

    for (i = 0; !d->cfg.no_env && i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text && ddp__parse_long(text, &v) && v >= 0 && v < 65536) return (int)v;
    }
    return d->rank;
}

ddp_status ddp__device_open(ddp_ctx *d, ddp_error *err)
{
    const ddp_backend *b = d->cfg.backend;

    if (!b) return DDP_OK;
    DDP__TRY(b->open(b, ddp__device_local(d), d->cfg.cuda_stream, &d->host.device, err));
    d->host.backend = b;
    return DDP_OK;
}

/* The bytes of a name travel as floats: the engine moves nothing else. */
static ddp_status ddp__device_share(void *user, void *bytes, size_t count, ddp_error *err)
{
    ddp_ctx *d = (ddp_ctx *)user;
    unsigned char *byte = (unsigned char *)bytes;
    float *x = (float *)ddp__calloc(count, sizeof *x);
    ddp__piece p;
    ddp_status s;
    size_t i;

    if (!x) return ddp__fail(err, DDP_MEMORY, "out of memory for a message of %zu bytes", count);
    for (i = 0; i < count; i++) x[i] = (float)byte[i];
    p.data = x;
    p.count = count;
    s = ddp__blocking(d, DDP__BROADCAST, &p, 1, 1, 0, err);
    for (i = 0; s == DDP_OK && i < count; i++) byte[i] = (unsigned char)x[i];
    DDP_FREE(x);
    return s;
}

/* Messages that may be under way: a layer has one at most, and a few are the context's own. */
static int ddp__device_room(const ddp_ctx *d) { return 2 * d->layers + 16; }

ddp_status ddp__device_start(ddp_ctx *d, ddp_error *err)
{
    const ddp_backend *b = d->host.backend;
    size_t total = 0, largest = 0;
    int l, k;

    if (!b) return DDP_OK;
    DDP__TRY(ddp__clock_open(d, err));
    if (!d->engine) return DDP_OK;
    for (l = 0; l < d->layers; l++) {
        const ddp__unit *u = &d->unit[l];
        size_t layer = u->count + u->state_count;

        for (k = 0; k < u->blocks; k++) /* frozen ones are shared once */
            if (u->block[k].kind == DDP_PARAMS && !u->block[k].grads) layer += u->block[k].count;
        total += layer;
        if (layer > largest) largest = layer;
    }
    if (d->strategy->id == DDP_SSGD || d->strategy->id == DDP_WFBP) largest = total;
    DDP__TRY(ddp__stage_open(b, d->host.device, d->engine, d->layers, ddp__device_room(d),
                             largest * sizeof(float), total * sizeof(float), &d->stage, err));
    if (!d->cfg.nccl) return DDP_OK;
    DDP__TRY(b->join(d->host.device, d->rank, d->world, d->cfg.peer_timeout_s, ddp__device_share, d,
                     err));
    d->joined = 1;
    return DDP_OK;
}

void ddp__device_stop(ddp_ctx *d)
{
    ddp__stage_stop(d->stage);
    if (d->joined) d->host.backend->leave(d->host.device, d->host.error.code != DDP_OK);
    d->joined = 0;
}

void ddp__device_close(ddp_ctx *d)
{
    ddp__stage_free(d->stage);
    ddp__clock_free(d);
    if (d->host.backend) d->host.backend->close(d->host.device);
    d->host.backend = NULL;
    d->stage = NULL;
}

ddp_status ddp__device_check(ddp_ctx *d, ddp_error *err)
{
    const ddp_backend *b = d->host.backend;

    if (!b) return DDP_OK;
    DDP__TRY(b->check(d->host.device, err));
    if (d->joined) DDP__TRY(b->poll(d->host.device, err));
    return d->stage ? ddp__stage_error(d->stage, err) : DDP_OK;
}

ddp_status ddp__device_wait(ddp_ctx *d, ddp_error *err)
{
    if (!d->host.backend) return DDP_OK;
    DDP__TRY(d->host.backend->wait(d->host.device, err));
    if (d->clock) ddp__clock_collect(d);
    return ddp__device_check(d, err);
}

/* ---- messages ---- */

/* An average that goes from device to device. Its ticket is below -1: -2 - slot. */
static ddp_status ddp__post_direct(ddp_ctx *d, const ddp__message *m, long *ticket, ddp_error *err)
{
    const int slot = (int)(d->direct++ % (unsigned)ddp__device_room(d));
    int i;

    if (m->piece_count > d->direct_room) {
        DDP_FREE((void *)d->direct_data);
        DDP_FREE(d->direct_count);
        d->direct_data = (float **)ddp__calloc((size_t)m->piece_count, sizeof *d->direct_data);
        d->direct_count = (size_t *)ddp__calloc((size_t)m->piece_count, sizeof *d->direct_count);
        d->direct_room = d->direct_data && d->direct_count ? m->piece_count : 0;
        if (!d->direct_room)
            return ddp__fail(err, DDP_MEMORY, "out of memory for a message of %d arrays",
                             m->piece_count);
    }
    for (i = 0; i < m->piece_count; i++) {
        d->direct_data[i] = m->pieces[i].data;
        d->direct_count[i] = m->pieces[i].count;
    }
    *ticket = -2 - slot;
    return d->host.backend->average(d->host.device, slot, d->direct_data, d->direct_count,
                                    m->piece_count, err);
}

ddp_status ddp__post(ddp_ctx *d, const ddp__message *m, int there, long *ticket, ddp_error *err)
{
    if (!d->stage && m->mean) return ddp__submit_mean(d, m, ticket, err);
    if (!d->stage) return ddp__ctx_submit(d, m, ticket, err);
    if (there && d->joined && !m->group && m->verb == DDP__ALL_REDUCE && m->mean)
        return ddp__post_direct(d, m, ticket, err);
    return ddp__stage_submit(d->stage, m, there, ticket, err);
}

ddp_status ddp__post_wait(ddp_ctx *d, long ticket, ddp_error *err)
{
    if (!d->stage) return ddp__engine_wait(d->engine, ticket, err);
    return ddp__stage_wait(d->stage, ticket, err);
}

ddp_status ddp__post_hold(ddp_ctx *d, int link, long ticket, int layer, ddp_error *err)
{
    const double begin = ddp_now();
    ddp_status s;

    if (!d->stage) {
        s = ddp__engine_wait(ddp__engine_of(d, link), ticket, err);
        d->wait_this_step += ddp_now() - begin;
        ddp__record(d, DDP_SPAN_WAIT, layer, begin, ddp_now());
        return s;
    }
    ddp__clock_note(d, DDP__M_HOLD, layer, DDP__OUTSIDE);
    if (ticket < -1) d->host.backend->finish(d->host.device, (int)(-2 - ticket));
    else ddp__stage_hold(d->stage, ticket);
    ddp__clock_note(d, DDP__M_HELD, layer, DDP__OUTSIDE);
    return ddp__stage_error(d->stage, err);
}

ddp_status ddp__post_flush(ddp_ctx *d, ddp_error *err)
{
    return d->stage ? ddp__stage_flush(d->stage, err) : DDP_OK;
}

ddp_status ddp__layer_blocking(ddp_ctx *d, int group, ddp__verb verb, float *data, size_t count,
                               float scale, int peer, ddp_error *err)
{
    ddp__piece p;
    ddp__message m;
    long ticket;

    p.data = data;
    p.count = count;
    if (!d->stage) return ddp__blocking_on(d, 0, group, verb, &p, 1, scale, peer, err);
    ddp__message_fill(d, &m, verb, &p, 1, scale, peer);
    m.group = group;
    DDP__TRY(ddp__stage_submit(d->stage, &m, 1, &ticket, err));
    return ddp__stage_wait(d->stage, ticket, err);
}
