/* Allocates the part of a context that belongs to src/measure. */
#include "measure/measure.h"
#include "context/clock.h"
#include "measure/account.h"
#include "measure/arrivals.h"
#include "measure/pace.h"
#include "measure/timing.h"

int ddp__measure_open(ddp_ctx *d)
{
    d->measure = (struct ddp__measure *)ddp__scratch_take(ddp__lists_of(d), 1, sizeof *d->measure);
    if (!d->measure) return 0;
    d->measure->period = 1;
    return 1;
}

ddp_status ddp__measure_start(ddp_ctx *d, ddp_error *err)
{
    struct ddp__measure *m = d->measure;
    ddp__scratch *lists = ddp__lists_of(d);
    const size_t world = (size_t)ddp_world(d);

    m->op_room =
        ddp__cfg(d)->debug.trace_spans > 0 ? 2048 : (ddp__cfg(d)->site > 0 ? 12 : 4) * ddp__layers(d) + 64;
    m->merge_room = ddp__clock_spans_of_step(d) + m->op_room;
    m->op_scratch = (ddp__op_span *)ddp__scratch_take(lists, (size_t)m->op_room, sizeof *m->op_scratch);
    m->merge = (ddp_span *)ddp__scratch_take(lists, (size_t)m->merge_room, sizeof *m->merge);
    m->pace = (ddp__pace_word *)ddp__scratch_take(lists, world, sizeof *m->pace);
    m->pace_sorted = ddp__doubles(lists, world);
    m->pace_ticket = -1;
    DDP__TRY(ddp__arrivals_start(d, err));
    if (!ddp__scratch_failed(lists)) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "out of memory for the spans of %d layers", ddp__layers(d));
}

int ddp__follows(const ddp_ctx *d) { return d->measure->follows; }
void ddp__follows_set(ddp_ctx *d, int follows) { d->measure->follows = follows; }

ddp_link ddp__link_is(const ddp_ctx *d, int link) { return d->measure->link[link]; }
double ddp__gap_is(const ddp_ctx *d, int link) { return d->measure->gap_s[link]; }
void ddp__link_set(ddp_ctx *d, int link, ddp_link is) { d->measure->link[link] = is; }
void ddp__gap_set(ddp_ctx *d, int link, double seconds) { d->measure->gap_s[link] = seconds; }
ddp_link ddp__link_followed(const ddp_ctx *d, int link) { return d->measure->fit[link].link; }
double ddp__mean_layer_bytes(const ddp_ctx *d) { return d->measure->mean_layer_bytes; }

int ddp__operations_since(ddp_ctx *d, double begun, const ddp__op_span **out)
{
    struct ddp__measure *m = d->measure;

    *out = m->op_scratch;
    return ddp__engine_spans(ddp__engine_of(d, 0), begun, DBL_MAX, m->op_scratch, m->op_room);
}
