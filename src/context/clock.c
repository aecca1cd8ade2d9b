/* Assigns the time between two hooks to a phase of the step: by the host's clock or, on a device, from marks
 * in the order of its work. */
#include "context/clock.h"
#include "context/context.h"

void ddp__record(ddp_ctx *d, ddp_span_kind kind, int layer, double begin, double end)
{
    const ddp_span s = {begin, end, d->step, layer, kind, 0};

    d->times.span[d->times.span_count++ % d->times.spans] = s;
    if (kind != DDP_SPAN_WAIT) d->times.compute_this_step += end - begin;
    if (d->step >= d->cfg.profile_steps || kind == DDP_SPAN_WAIT) return;
    if (layer < 0)
        ddp__timer_add_whole(&d->times.timer, end - begin);
    else
        ddp__timer_add(&d->times.timer,
                       kind == DDP_SPAN_FORWARD    ? DDP__T_FORWARD
                       : kind == DDP_SPAN_BACKWARD ? DDP__T_BACKWARD
                                                   : DDP__T_UPDATE,
                       layer, end - begin);
}

/* Charges the time since the last hook returned to the phase that ran. entering: the phase that the hook of
 * `layer` opens. */
static void ddp__clock_hook(ddp_ctx *d, double now, int layer, ddp__phase entering)
{
    const ddp__phase ran = d->times.at.phase;
    const int backward = entering == DDP__IN_BACKWARD || entering == DDP__AFTER_BACKWARD;

    if ((ran == DDP__OUTSIDE || ran == DDP__AFTER_BACKWARD) && !backward) return;
    /* without a forward hook, the forward pass and the first layer's backward pass cannot be distinguished */
    if (ran == DDP__OUTSIDE)
        layer = -1;
    else if (ran != DDP__AFTER_BACKWARD)
        layer = d->times.at.layer;
    ddp__record(d, ran == DDP__OUTSIDE || ran == DDP__IN_FORWARD ? DDP_SPAN_FORWARD : DDP_SPAN_BACKWARD,
                layer, d->times.at.mark, now);
}

typedef struct ddp__moment {
    ddp__moment_kind kind;
    int layer;
    ddp__phase phase;
} ddp__moment;

/* Moments first..next-1 are pending. Moment i uses the device's mark i % room. */
typedef struct ddp__clock {
    ddp__moment *moment; /* [room] */
    int room;
    long first, next, step;
    ddp__at at; /* position of the accounting, which is later than the hooks */
} ddp__clock;

/* Capacity for 4 steps: the host may be that far ahead of its device. */
int ddp__clock_room(const ddp_ctx *d) { return 4 * (12 * d->layers * d->cfg.micro_batches + 8); }

int ddp__clock_spans_of_step(const ddp_ctx *d) { return 8 * d->layers * d->cfg.micro_batches + 64; }

ddp_status ddp__clock_memory(ddp_ctx *d, ddp_error *err)
{
    const int per_step = ddp__clock_spans_of_step(d), timed = d->cfg.profile_steps + 1;
    ddp__times *t = &d->times;

    t->spans = d->cfg.debug.trace_spans > per_step ? d->cfg.debug.trace_spans : per_step;
    t->span = (ddp_span *)ddp__scratch_take(&d->lists, (size_t)t->spans, sizeof *t->span);
    t->ended_room = ddp__clock_room(d);
    t->ended = (ddp__ended *)ddp__scratch_take(&d->lists, (size_t)t->ended_room, sizeof *t->ended);
    ddp__timer_open(&t->timer, d->layers, timed, &d->lists);
    if (!ddp__scratch_failed(&d->lists)) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "out of memory for the spans of %d layers", d->layers);
}

ddp_status ddp__clock_open(ddp_ctx *d, ddp_error *err)
{
    ddp__clock *c = (ddp__clock *)ddp__scratch_take(&d->lists, 1, sizeof *c);

    if (!c) return ddp__fail(err, DDP_MEMORY, "out of memory for the times of a device");
    d->times.clock = c;
    c->room = ddp__clock_room(d);
    c->moment = (ddp__moment *)ddp__scratch_take(&d->lists, (size_t)c->room, sizeof *c->moment);
    c->step = d->step;
    c->at.mark = ddp_now();
    if (c->moment && d->host.backend->marks(d->host.device, c->room)) return DDP_OK;
    DDP__TRY(d->host.backend->check(d->host.device, err)); /* returns the device's own failure, if there is
                                                              one */
    return ddp__fail(err, DDP_MEMORY, "out of memory for the times of %d layers", d->layers);
}

void ddp__clock_start(ddp_ctx *d) { d->times.at.mark = ddp_now(); }

/* Ends a step. A step has at least three moments, so the list has space for the steps that are not accounted
 * for yet. */
static void ddp__clock_step(ddp_ctx *d, double now)
{
    const ddp__ended e = {d->step, now, d->times.wait_this_step};

    if (d->step < d->cfg.profile_steps) ddp__timer_step(&d->times.timer);
    d->times.ended[d->times.ended_next++ % d->times.ended_room] = e;
    d->times.wait_this_step = 0;
}

/* Accounts for a moment at time `now`, on a device or on the host. */
static void ddp__clock_account(ddp_ctx *d, const ddp__moment *m, double now)
{
    switch (m->kind) {
    case DDP__M_ENTER:
        ddp__clock_hook(d, now, m->layer, m->phase);
        break;
    case DDP__M_LEAVE:
        d->times.at.phase = m->phase;
        d->times.at.layer = m->layer;
        d->times.at.mark = now;
        break;
    case DDP__M_BEGIN:
        d->times.at.begun = now;
        break;
    case DDP__M_HELD:
        d->times.wait_this_step += now - d->times.at.begun;
        d->times.at.mark += now - d->times.at.begun; /* a wait between two hooks does not count as their
                                                        compute */
        ddp__record(d, DDP_SPAN_WAIT, m->layer, d->times.at.begun, now);
        break;
    case DDP__M_UPDATED:
        ddp__record(d, DDP_SPAN_UPDATE, m->layer, d->times.at.begun, now);
        break;
    case DDP__M_STEP:
        ddp__clock_step(d, now);
        break;
    }
}

void ddp__clock_collect(ddp_ctx *d)
{
    ddp__clock *c = d->times.clock;
    const ddp__at here = d->times.at;
    const long step = d->step;

    if (!c) return;
    d->times.at = c->at;
    for (; c->first < c->next; c->first++) {
        const int i = (int)(c->first % c->room);
        const double now = d->host.backend->marked(d->host.device, i);

        if (now < 0) break;
        d->step = c->step;
        ddp__clock_account(d, &c->moment[i], now);
        c->step += c->moment[i].kind == DDP__M_STEP;
    }
    c->at = d->times.at;
    d->times.at = here;
    d->step = step;
}

void ddp__clock_note(ddp_ctx *d, ddp__moment_kind kind, int layer, ddp__phase phase)
{
    ddp__clock *c = d->times.clock;
    const ddp__moment m = {kind, layer, phase};

    if (!c) {
        ddp__clock_account(d, &m, ddp_now());
        return;
    }
    if (c->next == c->first && kind == DDP__M_ENTER) c->step = d->step;
    ddp__clock_collect(d);
    while (c->next - c->first >= c->room - 1) { /* one mark stays free: other marks are measured relative
                                                   to the last one read */
        ddp__sleep_until(ddp_now() + 1e-4);
        ddp__clock_collect(d);
        if (d->host.backend->check(d->host.device, NULL)) return;
    }
    c->moment[c->next % c->room] = m;
    d->host.backend->mark(d->host.device, (int)(c->next % c->room));
    c->next++;
}

/* ---- reading ---- */

void ddp__clock_wait(ddp_ctx *d, double begin, double end)
{
    d->times.wait_this_step += end - begin;
    ddp__record(d, DDP_SPAN_WAIT, DDP_NO_LAYER, begin, end);
}

double ddp__clock_waited(const ddp_ctx *d) { return d->times.wait_this_step; }
double ddp__clock_computed(const ddp_ctx *d) { return d->times.compute_this_step; }

double ddp__clock_take_computed(ddp_ctx *d)
{
    const double seconds = d->times.compute_this_step;

    d->times.compute_this_step = 0;
    return seconds;
}

const ddp__timer *ddp__clock_timer(const ddp_ctx *d) { return &d->times.timer; }
int ddp__clock_outside(const ddp_ctx *d) { return d->times.at.phase == DDP__OUTSIDE; }

long ddp__clock_oldest(const ddp_ctx *d)
{
    const ddp__times *t = &d->times;

    return t->span_count > t->spans ? t->span_count - t->spans : 0;
}

long ddp__clock_newest(const ddp_ctx *d) { return d->times.span_count; }

const ddp_span *ddp__clock_span(const ddp_ctx *d, long number)
{
    return &d->times.span[number % d->times.spans];
}

int ddp__clock_next_step(ddp_ctx *d, long *step, double *at, double *wait_s)
{
    ddp__times *t = &d->times;
    const ddp__ended *e;

    if (t->ended_first == t->ended_next) return 0;
    e = &t->ended[t->ended_first++ % t->ended_room];
    *step = e->step;
    *at = e->at;
    *wait_s = e->wait_s;
    return 1;
}
