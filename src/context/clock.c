/* The clock of a step: which phase the time between two hooks belongs to, on this machine or, from marks in
 * the order of its work, on a device. */
#include "context/clock.h"
#include "context/context.h"

void ddp__record(ddp_ctx *d, ddp_span_kind kind, int layer, double begin, double end)
{
    const ddp_span s = {begin, end, d->step, layer, kind, 0};

    d->span[d->span_count++ % d->spans] = s;
    if (kind != DDP_SPAN_WAIT) d->compute_this_step += end - begin;
    if (d->step >= d->cfg.profile_steps || kind == DDP_SPAN_WAIT) return;
    if (layer < 0)
        ddp__timer_add_whole(&d->timer, end - begin);
    else
        ddp__timer_add(&d->timer,
                       kind == DDP_SPAN_FORWARD    ? DDP__T_FORWARD
                       : kind == DDP_SPAN_BACKWARD ? DDP__T_BACKWARD
                                                   : DDP__T_UPDATE,
                       layer, end - begin);
}

/* Charges the time since the last hook returned to whatever ran in it. entering is the phase
 * that the hook of layer opens. */
static void ddp__clock_hook(ddp_ctx *d, double now, int layer, ddp__phase entering)
{
    const ddp__phase ran = d->at.phase;
    const int backward = entering == DDP__IN_BACKWARD || entering == DDP__AFTER_BACKWARD;

    if ((ran == DDP__OUTSIDE || ran == DDP__AFTER_BACKWARD) && !backward) return;
    /* without a forward hook the forward pass and the first layer's backward look like one */
    if (ran == DDP__OUTSIDE)
        layer = -1;
    else if (ran != DDP__AFTER_BACKWARD)
        layer = d->at.layer;
    ddp__record(d, ran == DDP__OUTSIDE || ran == DDP__IN_FORWARD ? DDP_SPAN_FORWARD : DDP_SPAN_BACKWARD,
                layer, d->at.mark, now);
}

typedef struct ddp__moment {
    ddp__moment_kind kind;
    int layer;
    ddp__phase phase;
} ddp__moment;

/* Moments first..next-1 are to come; moment i has the device's mark i % room. */
typedef struct ddp__clock {
    ddp__moment *moment; /* [room] */
    int room;
    long first, next, step;
    ddp__at at; /* where the accounts stand, behind the hooks */
} ddp__clock;

/* A host may be so many steps ahead of its device. */
int ddp__clock_room(const ddp_ctx *d) { return 4 * (12 * d->layers * d->cfg.micro_batches + 8); }

ddp_status ddp__clock_open(ddp_ctx *d, ddp_error *err)
{
    ddp__clock *c = (ddp__clock *)ddp__scratch_take(&d->lists, 1, sizeof *c);

    if (!c) return ddp__fail(err, DDP_MEMORY, "out of memory for the times of a device");
    d->clock = c;
    c->room = ddp__clock_room(d);
    c->moment = (ddp__moment *)ddp__scratch_take(&d->lists, (size_t)c->room, sizeof *c->moment);
    c->step = d->step;
    c->at.mark = ddp_now();
    if (c->moment && d->host.backend->marks(d->host.device, c->room)) return DDP_OK;
    DDP__TRY(d->host.backend->check(d->host.device, err)); /* it may have failed by itself */
    return ddp__fail(err, DDP_MEMORY, "out of memory for the times of %d layers", d->layers);
}

void ddp__clock_start(ddp_ctx *d) { d->at.mark = ddp_now(); }

/* Each step has at least three moments, so that the list has room for those that are not accounted yet. */
static void ddp__clock_step(ddp_ctx *d, double now)
{
    const ddp__ended e = {now, d->wait_this_step};

    if (d->step < d->cfg.profile_steps) ddp__timer_step(&d->timer);
    d->ended[d->ended_next++ % d->ended_room] = e;
    d->wait_this_step = 0;
}

/* What came at a time, on a device or here. */
static void ddp__clock_account(ddp_ctx *d, const ddp__moment *m, double now)
{
    switch (m->kind) {
    case DDP__M_ENTER:
        ddp__clock_hook(d, now, m->layer, m->phase);
        break;
    case DDP__M_LEAVE:
        d->at.phase = m->phase;
        d->at.layer = m->layer;
        d->at.mark = now;
        break;
    case DDP__M_BEGIN:
        d->at.begun = now;
        break;
    case DDP__M_HELD:
        d->wait_this_step += now - d->at.begun;
        d->at.mark += now - d->at.begun; /* between two hooks, it is no computing of theirs */
        ddp__record(d, DDP_SPAN_WAIT, m->layer, d->at.begun, now);
        break;
    case DDP__M_UPDATED:
        ddp__record(d, DDP_SPAN_UPDATE, m->layer, d->at.begun, now);
        break;
    case DDP__M_STEP:
        ddp__clock_step(d, now);
        break;
    }
}

void ddp__clock_collect(ddp_ctx *d)
{
    ddp__clock *c = d->clock;
    const ddp__at here = d->at;
    const long step = d->step;

    if (!c) return;
    d->at = c->at;
    for (; c->first < c->next; c->first++) {
        const int i = (int)(c->first % c->room);
        const double now = d->host.backend->marked(d->host.device, i);

        if (now < 0) break;
        d->step = c->step;
        ddp__clock_account(d, &c->moment[i], now);
        c->step += c->moment[i].kind == DDP__M_STEP;
    }
    c->at = d->at;
    d->at = here;
    d->step = step;
}

void ddp__clock_note(ddp_ctx *d, ddp__moment_kind kind, int layer, ddp__phase phase)
{
    ddp__clock *c = d->clock;
    const ddp__moment m = {kind, layer, phase};

    if (!c) {
        ddp__clock_account(d, &m, ddp_now());
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
