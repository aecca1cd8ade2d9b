/* Accounts for the time of a step: spans, the layer timer, the hidden share, and the rate of the
 * links in use. */
#include "context/clock.h"
#include "context/context.h"
#include "exchange/exchange.h"
#include "measure/account.h"
#include "measure/measure.h"
#include "measure/timing.h"

/* Copies the operations of both links into op_scratch. */
static int ddp__link_spans(ddp_ctx *d, double begin, double end)
{
    int n = ddp__engine_spans(ddp__engine_of(d, 0), begin, end, d->measure->op_scratch, d->measure->op_room);

    if (ddp__second_of(d))
        n += ddp__engine_spans(ddp__second_of(d), begin, end, d->measure->op_scratch + n,
                               d->measure->op_room - n);
    return n;
}

static ddp_span ddp__span_of(const ddp__op_span *o, ddp_span_kind kind, double begin, double end)
{
    const ddp_span s = {
        begin, end, o->step, o->layer >= 0 ? o->layer : -1, kind, kind == DDP_SPAN_PEER_WAIT ? 0 : o->bytes};

    return s;
}

/* Collects the compute and communication intervals that overlap begin..end, clipped to it. Adds the waits for
 * slower peers to *peer_wait_s. */
static int ddp__gather_spans(ddp_ctx *d, double begin, double end, double *peer_wait_s)
{
    int n = 0, ops;
    const long oldest = ddp__clock_oldest(d);

    for (long s = ddp__clock_newest(d) - 1; s >= oldest && n < d->measure->merge_room; s--) {
        const ddp_span *x = ddp__clock_span(d, s);
        if (x->end_s <= begin) break;
        if (x->kind == DDP_SPAN_WAIT || x->begin_s >= end)
            continue; /* a device may be a step ahead of its accounting */
        d->measure->merge[n] = *x;
        if (d->measure->merge[n].begin_s < begin) d->measure->merge[n].begin_s = begin;
        n++;
    }
    ops = ddp__link_spans(d, begin, end);
    for (int i = 0; i < ops && n < d->measure->merge_room; i++) {
        const ddp__op_span *o = &d->measure->op_scratch[i];
        /* the wait of an operation for a slower peer is not communication */
        double from = o->begin + o->peer_wait, b = from > begin ? from : begin;
        double e = o->end >= 0 && o->end < end ? o->end : end;
        if (o->filler || e <= b) continue;
        d->measure->merge[n++] = ddp__span_of(o, DDP_SPAN_COMM, b, e);
        if (o->end >= 0) *peer_wait_s += o->peer_wait;
    }
    return n;
}

/* Sorts by begin without allocating. The spans are nearly sorted, because they come from two ordered
 * sources. */
static void ddp__sort_spans(ddp_span *s, int n)
{
    int j;

    for (int i = 1; i < n; i++) {
        ddp_span x = s[i];
        for (j = i; j > 0 && s[j - 1].begin_s > x.begin_s; j--) s[j] = s[j - 1];
        s[j] = x;
    }
}

/* Computes, in one sweep over sorted spans, the length of the union of communication, and of the part of it
 * that no compute span covers. */
static void ddp__sweep_spans(const ddp_span *s, int n, double *comm, double *exposed)
{
    double at = -1, comm_until = -1, busy_until = -1;

    *comm = *exposed = 0;
    for (int i = 0; i <= n; i++) {
        double next = i < n ? s[i].begin_s : DBL_MAX;
        while (at < next && comm_until > at) { /* communication runs from `at` on */
            double stop = comm_until < next ? comm_until : next;
            int covered = busy_until > at;
            if (covered && busy_until < stop) stop = busy_until;
            *comm += stop - at;
            if (!covered) *exposed += stop - at;
            at = stop;
        }
        if (i == n) return;
        if (at < next) at = next;
        if (s[i].kind == DDP_SPAN_COMM)
            comm_until = s[i].end_s > comm_until ? s[i].end_s : comm_until;
        else
            busy_until = s[i].end_s > busy_until ? s[i].end_s : busy_until;
    }
}

/* ---- the rate of the links, from operations ---- */

/* end: the window ends, so operations count even if the link is still busy. */
static void ddp__drift_observe(ddp_ctx *d, int link, int end)
{
    struct ddp__measure *m = d->measure;
    const int ops =
        ddp__engine_spans(ddp__engine_of(d, link), m->follow[link].ended, DBL_MAX, m->op_scratch, m->op_room);

    ddp__lines_observe(m->line[link], m->gap_s[link], ddp__direct_part_bytes(d, link), m->op_scratch, ops,
                       end, &m->follow[link]);
}

double ddp__drift_window(ddp_ctx *d, int link)
{
    if (link >= ddp_links(d)) return 0;
    ddp__drift_observe(d, link, 1);
    return ddp__follow_window(&d->measure->follow[link]);
}

void ddp__drift_start(ddp_ctx *d)
{
    double bytes = 0;

    for (int l = 0; l < ddp__layers(d); l++) bytes += (double)ddp__layer_bytes(d, l) / ddp__layers(d);
    d->measure->mean_layer_bytes = bytes;
    for (int link = 0; link < 2; link++) {
        ddp__follow_restart(&d->measure->follow[link], ddp_now());
        ddp__link_followed_set(d, link, 0);
    }
}

/* ---- steps and statistics ---- */

static void ddp__totals_add(ddp__totals *to, const ddp__totals *s)
{
    to->steps += s->steps;
    to->step_s += s->step_s;
    to->wait_s += s->wait_s;
    to->comm_s += s->comm_s;
    to->exposed_s += s->exposed_s;
    to->peer_wait_s += s->peer_wait_s;
}

static void ddp__totals_clear(struct ddp__measure *m)
{
    const ddp__totals none = DDP__ZEROS;

    m->all = m->part = m->whole = none;
}

/* Counts a period if it is whole. A step may wait for transfers of the step before, which belong to the plan
 * only if the statistics began before that step. */
static void ddp__account_whole(struct ddp__measure *m, long next)
{
    const ddp__totals none = DDP__ZEROS;

    if (next % m->period) return;
    if (m->part.steps == m->period && m->all.steps > m->period) {
        if (!m->whole.steps) m->whole_from = next - m->period;
        ddp__totals_add(&m->whole, &m->part);
    }
    m->part = none;
}

static void ddp__account_step(ddp_ctx *d, long step, double now, double wait_s)
{
    struct ddp__measure *m = d->measure;
    ddp__totals s = {1, now - m->step_begin, wait_s - m->planning_s, 0, 0, 0};

    if (ddp__engine_of(d, 0)) {
        int n = ddp__gather_spans(d, m->step_begin, now, &s.peer_wait_s);
        ddp__sort_spans(m->merge, n);
        ddp__sweep_spans(m->merge, n, &s.comm_s, &s.exposed_s);
        /* with nccl, the engine's operations do not measure the devices' network */
        for (int link = 0; ddp__follows(d) && !ddp__has_nccl(d) && link < ddp_links(d); link++)
            ddp__drift_observe(d, link, 0);
    }
    if (!m->all.steps) m->begun = step;
    ddp__totals_add(&m->all, &s);
    ddp__totals_add(&m->part, &s);
    ddp__account_whole(m, step + 1);
    m->wait_total_s += s.wait_s;
    m->planning_s = 0;
    m->step_begin = now;
}

void ddp__account_steps(ddp_ctx *d)
{
    double at, wait_s;
    long step;

    while (ddp__clock_next_step(d, &step, &at, &wait_s)) ddp__account_step(d, step, at, wait_s);
}

void ddp__account_reset(ddp_ctx *d)
{
    ddp__account_steps(d);
    ddp__totals_clear(d->measure);
    d->measure->begun = ddp_step(d);
    d->measure->planning_s = ddp__clock_waited(d);
    d->measure->step_begin = ddp_now();
}

void ddp__account_period(ddp_ctx *d, int steps)
{
    ddp__account_steps(d);
    if (steps != d->measure->period) ddp__totals_clear(d->measure);
    d->measure->period = steps;
}

/* The steps that the statistics cover: whole periods, or all steps until one is complete. */
static void ddp__counted(const struct ddp__measure *m, ddp_stats *out)
{
    const ddp__totals *s = m->whole.steps ? &m->whole : &m->all;
    const double steps = s->steps ? (double)s->steps : 1;

    out->period = m->period;
    out->counted_steps = s->steps;
    out->counted_periods = m->whole.steps / m->period;
    out->counted_from = m->whole.steps ? m->whole_from : m->begun;
    out->step_s = s->step_s / steps;
    out->wait_s = s->wait_s / steps;
    out->comm_s = s->comm_s;
    out->exposed_s = s->exposed_s;
    out->peer_wait_s = s->peer_wait_s;
    out->hidden_pct = s->comm_s > 0 ? 100 * (1 - s->exposed_s / s->comm_s) : 100;
    out->wait_total_s = m->wait_total_s;
}

void ddp_get_stats(ddp_ctx *d, ddp_stats *out)
{
    double largest = 0;

    memset(out, 0, sizeof *out);
    if (!d) return;
    if (!ddp__host_forked(ddp__host_of(d))) {
        ddp__clock_collect(d);
        ddp__account_steps(d);
    }
    *out = *ddp__stats(d);
    out->strategy = ddp__ops(d)->name;
    out->steps = ddp_step(d);
    ddp__counted(d->measure, out);
    for (int link = 0; link < 2; link++) {
        ddp__engine *e = link ? ddp__second_of(d) : ddp__engine_of(d, 0);
        ddp__net_stats net;
        if (!e || !ddp__has_engine(d)) continue;
        ddp__engine_stats(e, &net);
        out->bytes_sent += net.bytes_sent;
        for (int as = 0; as <= (int)DDP_WIRE_TOPK; as++) out->bytes_as[as] += net.sent_as[as];
        out->comm_cpu_s += net.cpu_s;
    }
    out->divergence = 0;
    out->optimizer_bytes = ddp__muon_floats(d) * sizeof(float);
    for (int l = 0; l < ddp__layers(d); l++) {
        out->divergence += ddp__divergence_of(d, l);
        out->optimizer_bytes += ddp__unit_of(d, l)->state_count * sizeof(float);
    }
    for (int l = 0; l < ddp__layers(d); l++) largest = fmax(largest, (double)ddp__layer_bytes(d, l));
    out->link = ddp__link_for(d, 0, largest);
    if (ddp__follows(d)) out->link.beta_s *= ddp__link_followed(d, 0);
}

double ddp_divergence(const ddp_ctx *d, int layer)
{
    return d && layer >= 0 && layer < ddp__layers(d) ? ddp__divergence_of(d, layer) : 0;
}

const char *ddp_last_algorithm(const ddp_ctx *d)
{
    ddp__net_stats net;

    if (!d || !ddp__has_engine(d)) return "none";
    ddp__engine_stats(ddp__engine_of(d, 0), &net);
    return ddp__algorithm_name(net.algorithm);
}

int ddp_trace_copy(ddp_ctx *d, ddp_span *out, int room)
{
    long oldest;
    int n = 0, ops = 0;

    if (ddp__host_forked(ddp__host_of(d))) return 0;
    ddp__clock_collect(d);
    oldest = ddp__clock_oldest(d);
    if (ddp__engine_of(d, 0)) ops = ddp__link_spans(d, -1, DBL_MAX);
    /* newest last: if room is short, the oldest compute spans are omitted */
    if (ops > room / 2) ops = room / 2; /* each may add two spans */
    if (ddp__clock_newest(d) - oldest > room - 2 * ops) oldest = ddp__clock_newest(d) - (room - 2 * ops);
    for (long s = oldest; s < ddp__clock_newest(d); s++) out[n++] = *ddp__clock_span(d, s);
    for (int i = 0; i < ops; i++) {
        const ddp__op_span *o = &d->measure->op_scratch[i];
        if (o->end < 0) continue;
        /* as in the statistics: waiting for a slower peer is not communication */
        if (o->peer_wait > 0 && n + ops - i < room)
            out[n++] = ddp__span_of(o, DDP_SPAN_PEER_WAIT, o->begin, o->begin + o->peer_wait);
        out[n++] =
            ddp__span_of(o, o->filler ? DDP_SPAN_FILL : DDP_SPAN_COMM, o->begin + o->peer_wait, o->end);
    }
    return n;
}
