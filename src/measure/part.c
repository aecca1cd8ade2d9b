/* Allocates the part of a context that belongs to src/measure. */
#include "measure/measure.h"
#include "context/clock.h"
#include "device/device.h"
#include "exchange/verbs.h"
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

/* ---- the cost of a link ---- */

double ddp_described_rate(const ddp_ctx *d, double *delay_s)
{
    *delay_s = ddp__links_of(d, 0)->plan_delay_s;
    return ddp__links_of(d, 0)->plan_rate > 0 ? ddp__links_of(d, 0)->plan_rate : 0;
}

/* 1 Gbit/s if no link is described. */
static double ddp__nominal_rate(const ddp__links *l) { return l->plan_rate > 0 ? l->plan_rate : 125e6; }

double ddp_nominal_rate(const ddp_ctx *d) { return ddp__nominal_rate(ddp__links_of(d, 0)); }

ddp_link ddp__link_nominal(const ddp_ctx *d, int link)
{
    const int n = ddp__team_group(d) ? ddp__team_size(d) : ddp_workers(d);

    return ddp_link_average(ddp__nominal_rate(ddp__links_of(d, link)), ddp__links_of(d, link)->plan_delay_s,
                            n);
}

/* The letter of the algorithm of an all-reduce over the team. like: its coding and owner. */
static char ddp__algorithm_of(const ddp_ctx *d, int link, const ddp_message *like, double bytes)
{
    const ddp__engine *e = ddp__engine_of(d, link);
    ddp_message m = *like;

    if (!e || (ddp__has_nccl(d) && link == 0)) return 'd';
    m.verb = DDP_ALL_REDUCE;
    m.group = ddp__team_group(d);
    return ddp__engine_algorithm(e, &m, (size_t)(bytes / sizeof(float)));
}

char ddp__algorithm_for(const ddp_ctx *d, int link, double bytes)
{
    const ddp_owner rule = DDP__ZEROS;
    ddp_message m = DDP__ZEROS;

    if (ddp__cfg(d)->wire == DDP_WIRE_TOPK) return 'p';
    m.coding = ddp__wire_coding(ddp__cfg(d)->wire);
    if (ddp__ops(d)->averages == DDP_AVERAGES_CHANGES) m.owner = &rule;
    return ddp__algorithm_of(d, link, &m, bytes);
}

char ddp__algorithm_control(const ddp_ctx *d, int link)
{
    const ddp_message m = DDP__ZEROS;

    return ddp__algorithm_of(d, link, &m, sizeof(float));
}

ddp_link ddp__link_control(const ddp_ctx *d, int link)
{
    return ddp__line_of(d->measure->line[link], ddp__algorithm_control(d, link));
}

ddp_link ddp__link_for(const ddp_ctx *d, int link, double bytes)
{
    return ddp__line_of(d->measure->line[link], ddp__algorithm_for(d, link, bytes));
}

ddp_link ddp__link_is(const ddp_ctx *d, int link) { return d->measure->line[link][DDP__LINE_DIRECT]; }

/* Plans without measurements must not depend on the algorithms, which differ in an elastic world. */
void ddp__link_set(ddp_ctx *d, int link, ddp_link is)
{
    for (int k = 0; k < (int)DDP__LINES; k++) d->measure->line[link][k] = is;
}

void ddp__link_scale(ddp_ctx *d, int link, double scale)
{
    for (int k = 0; k < (int)DDP__LINES; k++) d->measure->line[link][k].beta_s *= scale;
}

double ddp__direct_part_bytes(const ddp_ctx *d, int link)
{
    const ddp__engine *e = ddp__engine_of(d, link);

    return e ? (double)(ddp__engine_chunk(e) * (size_t)ddp__team_size(d)) : 0;
}

/* The parts of a message, or of each half of a direct all-reduce. */
static int ddp__message_parts(const ddp_ctx *d, int link, double bytes, int direct)
{
    const double part = ddp__direct_part_bytes(d, link) / (direct ? 1 : ddp__team_size(d));

    return part > 0 ? (int)fmax(1, fmin(ceil(bytes / part), DDP__LINK_PARTS)) : 1;
}

ddp__message_cost ddp__line_cost(const ddp_ctx *d, int link, ddp_link k, char algorithm, double bytes)
{
    const int direct = algorithm == 'd' && !ddp__has_nccl(d);
    const ddp__message_cost m = {k.beta_s * bytes, k.alpha_s, direct,
                                 ddp__message_parts(d, link, bytes, direct)};

    return m;
}

double ddp__gap_is(const ddp_ctx *d, int link) { return d->measure->gap_s[link]; }
void ddp__gap_set(ddp_ctx *d, int link, double seconds) { d->measure->gap_s[link] = seconds; }
double ddp__link_followed(const ddp_ctx *d, int link)
{
    return d->measure->followed[link] > 0 ? d->measure->followed[link] : 1;
}
void ddp__link_followed_set(ddp_ctx *d, int link, double factor) { d->measure->followed[link] = factor; }
double ddp__mean_layer_bytes(const ddp_ctx *d) { return d->measure->mean_layer_bytes; }

int ddp__operations_since(ddp_ctx *d, double begun, const ddp__op_span **out)
{
    struct ddp__measure *m = d->measure;

    *out = m->op_scratch;
    return ddp__engine_spans(ddp__engine_of(d, 0), begun, DBL_MAX, m->op_scratch, m->op_room);
}
