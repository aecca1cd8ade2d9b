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
    if (d->levels && largest < DDP__PROBE_MOST * DDP__PROBE_FLOATS) /* probes cross sites too */
        largest = DDP__PROBE_MOST * DDP__PROBE_FLOATS;
    DDP__TRY(ddp__stage_open(b, d->host.device, d->engine, d->layers, ddp__device_room(d),
                             largest * sizeof(float), total * sizeof(float), &d->stage, err));
    return d->cfg.nccl ? ddp__direct_open(d, ddp__device_room(d), err) : DDP_OK;
}

void ddp__device_stop(ddp_ctx *d)
{
    ddp__direct_stop(d); /* the stager may wait behind an average that never ends */
    ddp__stage_stop(d->stage);
}

void ddp__device_close(ddp_ctx *d)
{
    ddp__stage_free(d->stage);
    ddp__clock_free(d);
    ddp__direct_close(d);
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

ddp_status ddp__post(ddp_ctx *d, const ddp__message *m, int there, long *ticket, ddp_error *err)
{
    if (!d->stage && m->mean) return ddp__submit_mean(d, m, ticket, err);
    if (!d->stage) return ddp__ctx_submit(d, m, ticket, err);
    if (there && ddp__direct_takes(d, m)) return ddp__direct_post(d, m, ticket, err);
    return ddp__stage_submit(d->stage, m, there ? DDP__BEHIND_WORK : DDP__HERE, ticket, err);
}

ddp_status ddp__post_wait(ddp_ctx *d, long ticket, ddp_error *err)
{
    if (!d->stage) return ddp__engine_wait(d->engine, ticket, err);
    return ddp__stage_wait(d->stage, ticket, err);
}

ddp_status ddp__post_hold(ddp_ctx *d, int link, long ticket, int layer, ddp_error *err)
{
    const double begin = ddp_now();
    ddp_status s = DDP_OK;

    if (!d->stage) {
        s = ddp__engine_wait(ddp__engine_of(d, link), ticket, err);
        d->wait_this_step += ddp_now() - begin;
        ddp__record(d, DDP_SPAN_WAIT, layer, begin, ddp_now());
        return s;
    }
    ddp__clock_note(d, DDP__M_HOLD, layer, DDP__OUTSIDE);
    if (ticket < -1) s = ddp__direct_hold(d, ticket, err);
    else if (d->loaded) ddp__stage_hold(d->stage, ticket);
    else s = ddp__stage_wait(d->stage, ticket, err);
    ddp__clock_note(d, DDP__M_HELD, layer, DDP__OUTSIDE);
    return s ? s : ddp__stage_error(d->stage, err);
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
    DDP__TRY(ddp__stage_submit(d->stage, &m, DDP__BEHIND_WORK, &ticket, err));
    return ddp__stage_wait(d->stage, ticket, err);
}
