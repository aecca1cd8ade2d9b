/* Determines the times of layers and links: from FLOPs and the configured links, or as measured by hooks and
 * probes, equal on all ranks. Contains the meter: transfers of one size after the other, each repeated until
 * its fastest times agree. */
#include "context/clock.h"
#include "context/context.h"
#include "measure/measure.h"
#include "device/device.h"
#include "exchange/post.h"
#include "exchange/verbs.h"
#include "measure/timing.h"

enum {
    DDP__METER_LEAST = 3,
    DDP__METER_MOST = 16,
    DDP__PROBE_MEDIUM = 16, /* pieces */
    DDP__BURST = 16,
    DDP__BURSTS = 5
};
#ifndef DDP__METER_AGREE /* tests under sanitizers, whose times have no meaning, measure less */
#define DDP__METER_AGREE \
    0.03 /* interference only delays: if the two fastest of some transfers differ by more, the fastest was
            probably delayed too */
#define DDP__PROBE_LAST_S 0.12 /* seconds for the last size, where a late wake-up has little effect */
#endif
static const double ddp__meter_patience_s = 3; /* seconds for repeating one size */

int ddp__meter_add(ddp__meter *m, double bytes, double seconds, double *fastest)
{
    const double now = ddp_now();
    double first = DBL_MAX, second = DBL_MAX;
    int times;

    if (m->n == m->first) m->begun = now;
    if (m->n == (int)(sizeof m->bytes / sizeof *m->bytes)) m->n--;
    m->bytes[m->n] = bytes;
    m->seconds[m->n++] = seconds;
    for (int i = m->first; i < m->n; i++) {
        const double t = m->seconds[i];
        second = t < first ? first : t < second ? t : second;
        first = t < first ? t : first;
    }
    times = m->n - m->first;
    *fastest = first;
    if (times < DDP__METER_LEAST) return 0;
    if (times < DDP__METER_MOST && second > (1 + DDP__METER_AGREE) * first &&
        now < m->begun + ddp__meter_patience_s)
        return 0;
    m->first = m->n;
    return 1;
}

/* Returns the number of pieces to average next, or 0 for enough. */
static int ddp__probe_next(int pieces, double fastest)
{
    double in_time;

    if (pieces < DDP__PROBE_MEDIUM) return DDP__PROBE_MEDIUM;
    if (pieces > DDP__PROBE_MEDIUM) return 0;
    in_time = DDP__PROBE_LAST_S / fastest * pieces;
    if (in_time < 2 * DDP__PROBE_MEDIUM) return 2 * DDP__PROBE_MEDIUM;
    return in_time < (double)DDP__PROBE_MOST ? (int)in_time : (int)DDP__PROBE_MOST;
}

static ddp_status ddp__probe_once(ddp_ctx *d, int link, const ddp_piece *list, int pieces, ddp_error *err)
{
    ddp_message m = ddp__message(d, DDP_ALL_REDUCE, list, pieces, DDP__OWN_WORD);
    long ticket;

    m.group = ddp__team_group(d);
    m.overlap = 1;
    m.mean = 1;
    m.link = link;
    DDP__TRY(ddp__post_flush(d, err));
    if (ddp__has_nccl(d) && ddp__nccl_takes(d, &m)) {
        DDP__TRY(ddp__nccl_post(d, &m, &ticket, err));
        DDP__TRY(ddp__nccl_hold(d, ticket, err));
        return ddp__device_wait(d, err);
    }
    DDP__TRY(ddp__post_here(d, &m, &ticket, err));
    return ddp__engine_wait(ddp__engine_of(d, link), ticket, err);
}

/* Times averages of increasing size. They send the same few zeros again and again, so that the largest size
 * needs no memory. *pieces: pieces of the last size. */
static ddp_status ddp__probe_sizes(ddp_ctx *d, int link, const ddp_piece *list, ddp__meter *meter,
                                   int *pieces, ddp_error *err)
{
    float next = 1;
    ddp_message m;
    ddp_piece p;

    while (next > 0) {
        const double begin = ddp_now();
        double fastest;
        *pieces = (int)next;
        DDP__TRY(ddp__probe_once(d, link, list, *pieces, err));
        next = 0; /* stays 0 if the first rank is lost */
        if (ddp__meter_add(meter, sizeof(float) * DDP__PROBE_FLOATS * (double)*pieces, ddp_now() - begin,
                           &fastest)) {
            if (ddp__leads(d)) next = (float)ddp__probe_next(*pieces, fastest);
        } else if (ddp__leads(d)) {
            next = (float)*pieces;
        }
        /* the first rank decides. This also synchronises the ranks, as far as the link allows. */
        m = ddp__own_word(d, &p, DDP_ALL_REDUCE, ddp__team_group(d), &next, 1);
        m.bytes = 0;
        m.link = link;
        DDP__TRY(ddp__run(d, &m, 0, err));
    }
    return DDP_OK;
}

/* Pieces to send, or x if they are in host memory. */
typedef struct ddp__probe_list {
    float x[DDP__PROBE_FLOATS];
    ddp_piece piece[DDP__PROBE_MOST];
} ddp__probe_list;

static ddp_status ddp__probe_fit(ddp_ctx *d, int link, const ddp_piece *list, ddp_link *out, ddp_error *err)
{
    ddp__meter meter = DDP__ZEROS;
    int pieces = 0;

    DDP__TRY(ddp__probe_sizes(d, link, list, &meter, &pieces, err));
    if (pieces < 2 * DDP__PROBE_MEDIUM)
        *out = ddp__link_nominal(d, 0); /* the first rank was lost */
    else
        DDP__TRY(ddp_link_fit(meter.bytes, meter.seconds, meter.n, out, err));
    return ddp__tell(d, ddp__team_group(d), out, sizeof *out, err);
}

ddp_status ddp__probe_link(ddp_ctx *d, int link, ddp_error *err)
{
    ddp__probe_list *list = (ddp__probe_list *)ddp__calloc(1, sizeof *list);
    ddp_status s;

    if (!list) return ddp__fail(err, DDP_MEMORY, "out of memory to measure link %d", link);
    for (int i = 0; i < DDP__PROBE_MOST; i++) {
        list->piece[i].data =
            ddp__has_nccl(d) && link == 0 && !ddp__team_group(d) ? ddp__nccl_zeros(d) : list->x;
        list->piece[i].count = DDP__PROBE_FLOATS;
    }
    s = ddp__probe_fit(d, link, list->piece, &d->measure->link[link], err);
    DDP_FREE(list);
    return s;
}

/* Starts the first `messages` of the list at once, each as its own average, and waits for all. */
static ddp_status ddp__probe_burst(ddp_ctx *d, int link, const ddp_piece *list, int messages, double *seconds,
                                   ddp_error *err)
{
    const double begin = ddp_now();
    long ticket[DDP__BURST];

    for (int i = 0; i < messages; i++) {
        ddp_message m = ddp__message(d, DDP_ALL_REDUCE, &list[i], 1, DDP__OWN_WORD);
        m.group = ddp__team_group(d);
        m.mean = 1;
        m.link = link;
        DDP__TRY(ddp__post_here(d, &m, &ticket[i], err));
    }
    for (int i = 0; i < messages; i++) DDP__TRY(ddp__engine_wait(ddp__engine_of(d, link), ticket[i], err));
    *seconds = ddp_now() - begin;
    return DDP_OK;
}

/* Selects the sizes of n layers that are averaged, evenly spaced from the first to the last. */
static void ddp__burst_sizes(ddp_ctx *d, ddp_piece *list, int n)
{
    int sending = 0, before = 0, i = 0;

    for (int l = 0; l < ddp__layers(d); l++) sending += ddp__layer_bytes(d, l) > 0;
    for (int l = 0; l < ddp__layers(d); l++) {
        const size_t floats = ddp__layer_bytes(d, l) / sizeof(float);
        if (floats == 0) continue;
        before++;
        for (; i < n && i * sending < before * n; i++)
            list[i].count = floats < DDP__PROBE_FLOATS ? floats : (size_t)DDP__PROBE_FLOATS;
    }
    for (; i < n; i++) list[i].count = 1; /* no layer is averaged */
}

/* Measures the per-message overhead from bursts of messages as large as layers. All ranks receive the result
 * of the first rank. A burst has no more messages than may be in flight at a time, so that the delay of
 * further ones does not count. Short messages use another algorithm than long ones, so a burst is a sample of
 * the layers. Long messages are shortened so that the overhead remains visible. The median is used, because a
 * busy machine increases the work per message, unlike the time per byte, in the run as well. */
static ddp_status ddp__probe_gap(ddp_ctx *d, int link, ddp_link fit, double *out, ddp_error *err)
{
    const int width = ddp__engine_width(ddp__engine_of(d, link)), n = width < DDP__BURST ? width : DDP__BURST;
    double one, all, more[DDP__BURSTS], bytes = 0;
    ddp_piece list[DDP__BURST];
    float x[DDP__PROBE_FLOATS];

    *out = 0;
    if (n < 2 || (ddp__has_nccl(d) && link == 0)) return DDP_OK;
    memset(x, 0, sizeof x);
    ddp__burst_sizes(d, list, n);
    for (int i = 0; i < n; i++) {
        list[i].data = x;
        if (i > 0) bytes += (double)(list[i].count * sizeof *x);
    }
    for (int i = 0; i < DDP__BURSTS; i++) {
        DDP__TRY(ddp__probe_burst(d, link, list, 1, &one, err));
        DDP__TRY(ddp__probe_burst(d, link, list, n, &all, err));
        more[i] = all - one;
    }
    qsort(more, DDP__BURSTS, sizeof *more, ddp__rising);
    *out = (more[DDP__BURSTS / 2] - fit.beta_s * bytes) / (n - 1);
    if (!(*out > 0)) *out = 0;
    return ddp__tell(d, ddp__team_group(d), out, sizeof *out, err);
}

double ddp_described_rate(const ddp_ctx *d, double *delay_s)
{
    *delay_s = ddp__links_of(d, 0)->plan_delay_s;
    return ddp__links_of(d, 0)->plan_rate > 0 ? ddp__links_of(d, 0)->plan_rate : 0;
}

/* 1 Gbit/s if no link is described. */
static double ddp__nominal_rate(const ddp__links *l) { return l->plan_rate > 0 ? l->plan_rate : 125e6; }

double ddp_nominal_rate(const ddp_ctx *d) { return ddp__nominal_rate(ddp__links_of(d, 0)); }

/* Averaging b bytes over P ranks moves 2(P-1)/P x b over each uplink, in each direction. */
ddp_link ddp__link_nominal(const ddp_ctx *d, int link)
{
    const int n = ddp__team_group(d) ? ddp__team_size(d) : ddp_workers(d);
    ddp_link k;

    k.beta_s = 2.0 * (n - 1) / n / ddp__nominal_rate(ddp__links_of(d, link));
    k.alpha_s = n > 1 ? 2 * ddp__links_of(d, link)->plan_delay_s : 0;
    return k;
}

/* ---- layers ---- */

double ddp__nominal_flops(double flops, double count) { return flops > 0 ? flops : 2.0 * (count + 1); }

static double ddp__unit_flops(const ddp__unit *u) { return ddp__nominal_flops(u->flops, (double)u->count); }

ddp_status ddp__profile_start(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    memset(p, 0, sizeof *p);
    DDP__TRY(ddp_profile_new(ddp__layers(d), p, err));
    for (int l = 0; l < ddp__layers(d); l++) {
        p->name[l] = ddp__strdup(ddp__unit_of(d, l)->name);
        p->params[l] = (double)ddp__unit_of(d, l)->count;
        if (p->name[l]) continue;
        ddp_profile_free(p);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a profile of %d layers", ddp__layers(d));
    }
    return DDP_OK;
}

/* Returns how long the average of a layer of `bytes` bytes occupies the link, in seconds. */
static double ddp__occupancy(const ddp_ctx *d, double bytes)
{
    /* the number of operations in flight is limited, and each takes at least alpha */
    const double least =
        ddp__engine_of(d, 0)
            ? d->measure->link[0].alpha_s / ddp__engine_width(ddp__engine_of(d, 0)) - d->measure->gap_s[0]
            : 0;
    const double seconds = d->measure->link[0].beta_s * bytes;

    return bytes > 0 && seconds < least ? least : seconds;
}

static void ddp__profile_startup(const ddp_ctx *d, ddp_profile *p)
{
    p->gap_s = d->measure->gap_s[0];
    p->alpha_s = d->measure->link[0].alpha_s > p->gap_s ? d->measure->link[0].alpha_s - p->gap_s
                                                        : 0; /* one message takes both */
}

void ddp__profile_link(ddp_ctx *d, ddp_profile *p)
{
    ddp__profile_startup(d, p);
    for (int l = 0; l < ddp__layers(d); l++) p->comm_s[l] = ddp__occupancy(d, (double)ddp__layer_bytes(d, l));
}

/* Estimates without measuring: 10 GFLOP/s, backward twice the forward, the nominal link. */
double ddp_nominal_compute_s(const ddp_ctx *d)
{
    double flops = 0;

    for (int l = 0; l < ddp__layers(d); l++) flops += ddp__unit_flops(ddp__unit_of(d, l));
    return 3e-10 * flops;
}

static void ddp__nominal_times(ddp_profile *p, int l, double flops)
{
    p->forward_s[l] = 1e-10 * flops;
    p->backward_s[l] = 2 * p->forward_s[l];
}

void ddp__profile_nominal(ddp_ctx *d, ddp_profile *p)
{
    d->measure->link[0] = ddp__link_nominal(d, 0);
    d->measure->gap_s[0] = d->measure->gap_s[1] = 0;
    for (int l = 0; l < ddp__layers(d); l++) ddp__nominal_times(p, l, ddp__unit_flops(ddp__unit_of(d, l)));
    ddp__profile_link(d, p);
}

ddp_status ddp__profile_model(ddp_ctx *d, const ddp__layer_cost *model, int layers, ddp_profile *p,
                              ddp_error *err)
{
    DDP__TRY(ddp_profile_new(layers, p, err));
    d->measure->link[0] = ddp__link_nominal(d, 0);
    d->measure->gap_s[0] = d->measure->gap_s[1] = 0;
    ddp__profile_startup(d, p);
    for (int l = 0; l < p->layers; l++) {
        const ddp__layer_cost *c = &model[l];
        ddp__nominal_times(p, l, ddp__nominal_flops(c->flops, c->count));
        p->params[l] = c->count;
        p->comm_s[l] = ddp__occupancy(
            d, (double)ddp__average_bytes(d, ddp__team_group(d), (size_t)c->trained, (size_t)c->others));
    }
    return DDP_OK;
}

/* Scales x so that its sum is total, if both are known. */
static void ddp__scale_to(double *x, int n, double total)
{
    double sum = 0;

    for (int i = 0; i < n; i++) sum += x[i];
    for (int i = 0; sum > 0 && total > 0 && i < n; i++) x[i] *= total / sum;
}

/* Sets the compute time of all micro-batches but one. Updates count once. */
void ddp__profile_between(const ddp_ctx *d, ddp_profile *p)
{
    double pass = -ddp__timer_median(ddp__clock_timer(d), DDP__T_UPDATE, -1);

    for (int l = 0; l < p->layers; l++) pass += p->forward_s[l] + p->backward_s[l];
    p->between_s = (ddp__cfg(d)->micro_batches - 1) * fmax(pass, 0);
}

/* Fills in the times of one micro-batch on this rank. Times that the hooks do not separate are divided by
 * FLOPs. */
static void ddp__profile_local(const ddp_ctx *d, ddp_profile *p)
{
    double flops = 0, last = 2 * ddp__unit_flops(ddp__unit_of(d, ddp__layers(d) - 1));
    int l;

    for (l = 0; l < ddp__layers(d); l++) {
        p->forward_s[l] = ddp__timer_median(ddp__clock_timer(d), DDP__T_FORWARD, l);
        p->backward_s[l] = ddp__timer_median(ddp__clock_timer(d), DDP__T_BACKWARD, l);
        flops += ddp__unit_flops(ddp__unit_of(d, l));
    }
    /* layers in proportion to their medians, so that they add up to the time of the pass */
    ddp__scale_to(p->forward_s, ddp__layers(d), ddp__timer_median(ddp__clock_timer(d), DDP__T_FORWARD, -1));
    ddp__scale_to(p->backward_s, ddp__layers(d), ddp__timer_median(ddp__clock_timer(d), DDP__T_BACKWARD, -1));
    l = ddp__layers(d) - 1;
    if (ddp__timer_whole(ddp__clock_timer(d)) >
        0) { /* no forward hook: forward and the last layer's backward are one time */
        for (int k = 0; k < ddp__layers(d); k++)
            p->forward_s[k] =
                ddp__timer_whole(ddp__clock_timer(d)) * ddp__unit_flops(ddp__unit_of(d, k)) / (flops + last);
        p->backward_s[l] += ddp__timer_whole(ddp__clock_timer(d)) * last / (flops + last);
    } else if (p->backward_s[l] <= 0) { /* forward hooks, no backward_begin */
        p->backward_s[l] = p->forward_s[l] * 2 / 3;
        p->forward_s[l] /= 3;
    }
    for (l = 0; l < ddp__layers(d); l++) {
        p->forward_s[l] /= ddp__cfg(d)->micro_batches;
        p->backward_s[l] = p->backward_s[l] / ddp__cfg(d)->micro_batches +
                           ddp__timer_median(ddp__clock_timer(d), DDP__T_UPDATE, l);
    }
}

/* Takes the slowest rank of each layer, because an average cannot start before the last worker is ready. The
 * total is the duration of the slowest rank's pass, because heterogeneous ranks are slow in different
 * layers. */
static void ddp__slowest(const double *all, int world, size_t layers, double *out)
{
    double longest = 0;

    memset(out, 0, layers * sizeof *out);
    for (int r = 0; r < world; r++) {
        const double *x = all + (size_t)r * 2 * layers;
        double pass = 0;
        for (size_t l = 0; l < layers; l++) {
            pass += x[l];
            if (x[l] > out[l]) out[l] = x[l];
        }
        if (pass > longest) longest = pass;
    }
    ddp__scale_to(out, (int)layers, longest);
}

static ddp_status ddp__profile_agree(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    const size_t L = (size_t)ddp__layers(d), row = 2 * L * sizeof(double);
    double *all = (double *)ddp__calloc((size_t)ddp__team_size(d), row), *own;
    ddp_status s;

    if (!all)
        return ddp__fail(err, DDP_MEMORY, "out of memory agreeing on a profile of %d layers", ddp__layers(d));
    own = all + (size_t)ddp__team_place(d) * 2 * L;
    memcpy(own, p->forward_s, L * sizeof *own);
    memcpy(own + L, p->backward_s, L * sizeof *own);
    s = ddp__gather_words(d, ddp__team_group(d), all, row, err);
    if (s == DDP_OK) {
        ddp__slowest(all, ddp__team_size(d), L, p->forward_s);
        ddp__slowest(all + L, ddp__team_size(d), L, p->backward_s);
    }
    DDP_FREE(all);
    return s;
}

ddp_status ddp__profile_measured(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    ddp_profile_free(p);
    DDP__TRY(ddp__profile_start(d, p, err));
    ddp__profile_local(d, p);
    if (ddp__engine_of(d, 0)) {
        for (int k = 0; k < ddp_links(d); k++) {
            DDP__TRY(ddp__probe_link(d, k, err));
            DDP__TRY(ddp__probe_gap(d, k, d->measure->link[k], &d->measure->gap_s[k], err));
        }
        DDP__TRY(ddp__profile_agree(d, p, err));
    }
    ddp__profile_link(d, p);
    ddp__profile_between(d, p);
    return DDP_OK;
}
