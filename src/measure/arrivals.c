/* Compares the arrival of each layer's average with the moment at which the layer needs it. A late average
 * arrives during the wait of its layer, an early one before it. */
#include "measure/arrivals.h"
#include "context/clock.h"
#include "context/context.h"
#include "measure/measure.h"

static const double ddp__least_slack = 0.5; /* steps */

/* What is known about the averages of one layer. */
struct ddp__arrival {
    double at;              /* arrival of the newest average, or 0 if its layer has needed it */
    double posted;          /* the call that posted its first message */
    long step;              /* the step that posted it */
    double since;           /* averages that were posted before follow another plan, and do not count */
    double last;            /* seconds of its last transfer, or 0 for none by this plan */
    double usual, deviates; /* seconds: running means of the transfer time, and of its difference from the
                               mean */
    double late;            /* largest time from the need until the arrival, in seconds, negative if early */
    int needed;             /* 1 if `late` is known */
    double need, lost;      /* the last need, and the seconds of its wait */
};

ddp_status ddp__arrivals_start(ddp_ctx *d, ddp_error *err)
{
    ddp__scratch *lists = ddp__lists_of(d);

    d->measure->arrival =
        (struct ddp__arrival *)ddp__scratch_take(lists, (size_t)ddp__layers(d), sizeof *d->measure->arrival);
    if (d->measure->arrival) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "out of memory for the arrivals of %d layers", ddp__layers(d));
}

/* Adds a message of the average of a layer, which may have several. */
static void ddp__arrival_add(struct ddp__arrival *a, const ddp__op_span *o)
{
    if (!(a->at > 0) || a->step != o->step) {
        a->at = 0;
        a->posted = o->submitted;
        a->step = o->step;
    }
    a->at = fmax(a->at, o->end);
    a->posted = fmin(a->posted, o->submitted);
}

/* Adds the messages that arrived since the last step. */
static void ddp__arrivals_note(ddp_ctx *d)
{
    struct ddp__measure *m = d->measure;
    double newest = m->arrivals_until;

    for (int link = 0; link < ddp_links(d); link++) {
        const int n =
            ddp__engine_spans(ddp__engine_of(d, link), m->arrivals_until, DBL_MAX, m->op_scratch, m->op_room);
        for (int i = 0; i < n; i++) {
            const ddp__op_span *o = &m->op_scratch[i];
            if (o->layer < 0 || o->layer >= ddp__layers(d) || !(o->end > m->arrivals_until)) continue;
            newest = fmax(newest, o->end);
            ddp__arrival_add(&m->arrival[o->layer], o);
        }
    }
    m->arrivals_until = newest;
}

/* The running means of RFC 6298, which TCP uses for its round trips. */
static void ddp__arrival_learn(struct ddp__arrival *a)
{
    const double takes = a->at - a->posted, error = takes - a->usual;

    a->deviates = a->usual > 0 ? 0.75 * a->deviates + 0.25 * fabs(error) : a->deviates;
    a->last = takes;
    a->usual = a->usual > 0 ? a->usual + 0.125 * error : takes;
}

/* Accounts for the need of a layer at time `need`. If other layers waited since its average was posted, it
 * had these seconds more. It must not rely on them, because those waits disappear when these layers are
 * needed later. */
static void ddp__arrival_needed(ddp_ctx *d, struct ddp__arrival *a, double need)
{
    double late = a->at - need;

    ddp__arrival_learn(a);
    a->lost = fmax(late, 0);
    a->need = need;
    for (int l = 0; l < ddp__layers(d); l++) {
        const struct ddp__arrival *other = &d->measure->arrival[l];
        if (other->need > a->posted && other->need < need) late += other->lost;
    }
    if (!a->needed || late > a->late) a->late = late;
    a->needed = 1;
}

void ddp__arrivals_step(ddp_ctx *d)
{
    struct ddp__measure *m = d->measure;
    const long oldest = ddp__clock_oldest(d), newest = ddp__clock_newest(d);

    ddp__arrivals_note(d);
    for (long i = m->arrivals_span > oldest ? m->arrivals_span : oldest; i < newest; i++) {
        const ddp_span *s = ddp__clock_span(d, i);
        struct ddp__arrival *a;
        if (s->kind != DDP_SPAN_WAIT || s->layer < 0) continue;
        m->arrivals_waited += s->end_s - s->begin_s;
        a = &m->arrival[s->layer];
        if (a->at > 0 && a->posted >= a->since) ddp__arrival_needed(d, a, s->begin_s);
        a->at = 0;
    }
    m->arrivals_span = newest;
}

double ddp__arrivals_slack(const ddp_ctx *d, int layer, double step_s)
{
    double most = ddp__least_slack * step_s;

    for (int l = 0; l < ddp__layers(d); l++)
        if (layer == DDP_NO_LAYER || l == layer) most = fmax(most, 2 * d->measure->arrival[l].deviates);
    return most < step_s ? most : step_s;
}

double ddp__arrivals_last(const ddp_ctx *d, int layer) { return d->measure->arrival[layer].last; }

double ddp__arrivals_take(ddp_ctx *d, double step_s, signed char *late)
{
    const double waited = d->measure->arrivals_waited;

    d->measure->arrivals_waited = 0;
    for (int l = 0; l < ddp__layers(d); l++) {
        struct ddp__arrival *a = &d->measure->arrival[l];
        const double steps = step_s > 0 ? ceil((a->late + ddp__arrivals_slack(d, l, step_s)) / step_s) : 0;

        late[l] = (signed char)(!a->needed ? (int)DDP_ARRIVAL_UNKNOWN : (int)fmin(fmax(steps, -127), 127));
        a->needed = 0;
    }
    return waited;
}

void ddp__arrivals_restart(ddp_ctx *d, int layer)
{
    for (int l = 0; l < ddp__layers(d); l++) {
        struct ddp__arrival *a = &d->measure->arrival[l];
        if (layer != DDP_NO_LAYER && l != layer) continue;
        a->needed = 0;
        a->since = ddp_now();
        if (layer == DDP_NO_LAYER) a->last = a->usual = 0; /* other transfers are ahead of it */
    }
    if (layer == DDP_NO_LAYER) d->measure->arrivals_waited = 0;
}
