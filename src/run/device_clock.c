#include "base/platform.h"
#include "base/tools.h"
#include "base/core.h"
#include "run/device.h"

typedef struct ddp__moment {
    ddp__moment_kind kind;
    int              layer;
    ddp__phase       phase;
} ddp__moment;

/* Moments first..next-1 are to come; moment i has the device's mark i % room. */
typedef struct ddp__clock ddp__clock;
struct ddp__clock {
    ddp__moment *moment; /* [room] */
    int    room;
    long   first, next;
    /* where the accounts stand, behind the hooks */
    ddp__phase phase;
    int    phase_layer;
    double mark, begun;
    long   step;
};

ddp_status ddp__clock_open(ddp_ctx *d, ddp_error *err)
{
    ddp__clock *c = (ddp__clock *)ddp__calloc(1, sizeof *c);

    if (!c) return ddp__fail(err, DDP_MEMORY, "out of memory for the times of a device");
    d->clock = c;
    /* a host may be so many steps ahead of its device */
    c->room = 4 * (12 * d->layers * d->cfg.micro_batches + 8);
    c->moment = (ddp__moment *)ddp__calloc((size_t)c->room, sizeof *c->moment);
    c->step = d->step;
    c->phase = DDP__OUTSIDE;
    c->mark = ddp_now();
    if (c->moment && d->host.backend->marks(d->host.device, c->room)) return DDP_OK;
    DDP__TRY(d->host.backend->check(d->host.device, err)); /* it may have failed by itself */
    return ddp__fail(err, DDP_MEMORY, "out of memory for the times of %d layers", d->layers);
}

void ddp__clock_free(ddp_ctx *d)
{
    if (!d->clock) return;
    if (d->clock->moment) DDP_FREE(d->clock->moment);
    DDP_FREE(d->clock);
    d->clock = NULL;
}

/* What came at a time, on a device or here. */
static void ddp__clock_account(ddp_ctx *d, const ddp__moment *m, double now, double *begun)
{
    switch (m->kind) {
    case DDP__M_ENTER:
        ddp__account_hook(d, now, m->layer, m->phase);
        break;
    case DDP__M_LEAVE:
        d->phase = m->phase;
        d->phase_layer = m->layer;
        d->mark = now;
        break;
    case DDP__M_HOLD:
    case DDP__M_UPDATE:
        *begun = now;
        break;
    case DDP__M_HELD:
        d->wait_this_step += now - *begun;
        ddp__record(d, DDP_SPAN_WAIT, m->layer, *begun, now);
        break;
    case DDP__M_UPDATED:
        ddp__record(d, DDP_SPAN_UPDATE, m->layer, *begun, now);
        break;
    case DDP__M_STEP:
        ddp__account_step(d, now);
        break;
    }
}

void ddp__clock_collect(ddp_ctx *d)
{
    ddp__clock *c = d->clock;
    const ddp__phase phase = d->phase;
    const int layer = d->phase_layer;
    const double mark = d->mark;
    const long step = d->step;

    d->phase = c->phase;
    d->phase_layer = c->phase_layer;
    d->mark = c->mark;
    for (; c->first < c->next; c->first++) {
        const int i = (int)(c->first % c->room);
        const double now = d->host.backend->marked(d->host.device, i);

        if (now < 0) break;
        d->step = c->step;
        ddp__clock_account(d, &c->moment[i], now, &c->begun);
        c->step += c->moment[i].kind == DDP__M_STEP;
    }
    c->phase = d->phase;
    c->phase_layer = d->phase_layer;
    c->mark = d->mark;
    d->phase = phase;
    d->phase_layer = layer;
    d->mark = mark;
    d->step = step;
}

void ddp__clock_note(ddp_ctx *d, ddp__moment_kind kind, int layer, ddp__phase phase)
{
    ddp__clock *c = d->clock;
    ddp__moment m;

    m.kind = kind;
    m.layer = layer;
    m.phase = phase;
    if (!c) {
        ddp__clock_account(d, &m, ddp_now(), &d->begun);
        return;
    }
    if (c->next == c->first && kind == DDP__M_ENTER) c->step = d->step;
    ddp__clock_collect(d);
    while (c->next - c->first >= c->room - 1) { /* the last mark read is what others count from */
        ddp__sleep_until(ddp_now() + 1e-4);
        ddp__clock_collect(d);
        if (d->host.backend->check(d->host.device, NULL)) return;
    }
    c->moment[c->next % c->room] = m;
    d->host.backend->mark(d->host.device, (int)(c->next % c->room));
    c->next++;
}
