/* Simulates periods of averages that may span several steps, as strategy/outer_late.c sends and applies them.
 */
#include "plan/partial/stream.h"

/* Periods of a simulation. The first ones fill the queue of a link that limits the step time. */
enum { DDP__OVERLAP_PERIODS = 10, DDP__OVERLAP_COUNTED = 4 };

static const double ddp__overlap_better = 0.01; /* a smaller gain does not justify other steps */

/* A simulation. */
typedef struct ddp__overlap_run {
    const ddp__overlap_costs *c;
    const ddp__overlap_plan *plan;
    ddp__shared_link link;
    unsigned char *busy; /* [period] 1 if the step sends or applies layers */
    double *sent;        /* [layers] end of the step that sends the layer */
    long *due;           /* [layers] the step before whose forward the layer is needed, or -1 */
    double *lag;         /* [layers] or NULL */
    double compute;      /* of a step */
    double now;
} ddp__overlap_run;

static int ddp__overlap_sends(const ddp__overlap_run *s, int l, int h)
{
    return s->plan->step_of[l] == h && s->c->message[l].takes > 0;
}

/* Sends the message about trained layers that precedes layer l. Returns its index, or -1 if the layer does
 * not wait for it. */
static int ddp__overlap_tell(ddp__overlap_run *s, int l)
{
    const int tell = s->c->p->layers + l;

    if (!s->c->tells) return -1;
    (void)ddp__shared_arrival(&s->link, tell); /* of the period before */
    ddp__shared_send(&s->link, tell, &s->c->tell, s->now, -1, 0);
    return s->c->waits ? tell : -1;
}

static void ddp__overlap_send(ddp__overlap_run *s, int l, int after, long step)
{
    ddp__shared_send(&s->link, l, &s->c->message[l], s->now, after, 0);
    s->due[l] = step + 1 + s->plan->landing[l];
}

static void ddp__overlap_await(ddp__overlap_run *s, int l, long step)
{
    const ddp_profile *p = s->c->p;
    double arrives;

    if (s->due[l] < 0 || s->due[l] > step) return;
    arrives = ddp__shared_arrival(&s->link, l);
    s->now = fmax(s->now, arrives);
    s->due[l] = -1;
    if (!s->lag) return;
    s->lag[l] = arrives - s->sent[l];
    for (int k = 0; k < l && s->c->window && p->forward_s; k++) s->lag[l] -= p->forward_s[k];
}

static void ddp__overlap_backward(ddp__overlap_run *s, long step, int h)
{
    const ddp_profile *p = s->c->p;
    int tell = -1, first = 1;

    s->now += p->between_s;
    for (int l = p->layers - 1; l >= 0; l--) {
        s->now += p->backward_s[l];
        if (!s->plan->together && ddp__overlap_sends(s, l, h))
            ddp__overlap_send(s, l, ddp__overlap_tell(s, l), step);
    }
    for (int l = p->layers - 1; l >= 0 && s->plan->together; l--) {
        if (!ddp__overlap_sends(s, l, h)) continue;
        if (first) tell = ddp__overlap_tell(s, l);
        first = 0;
        ddp__overlap_send(s, l, tell, step);
    }
    for (int l = 0; l < p->layers; l++)
        if (s->plan->step_of[l] == h) s->sent[l] = s->now;
}

static void ddp__overlap_step(ddp__overlap_run *s, long step, int h)
{
    const ddp_profile *p = s->c->p;

    if (!s->busy[h]) {
        s->now += s->compute;
        return;
    }
    for (int l = 0; l < p->layers; l++) {
        if (s->c->window) ddp__overlap_await(s, l, step);
        s->now += p->forward_s ? p->forward_s[l] : 0;
    }
    ddp__overlap_backward(s, step, h);
    for (int l = 0; l < p->layers && !s->c->window; l++) ddp__overlap_await(s, l, step + 1);
}

/* Marks the steps that send a layer or wait for one. */
static void ddp__overlap_mark(ddp__overlap_run *s)
{
    const int H = s->plan->period;

    for (int l = 0; l < s->c->p->layers; l++) {
        const int sends = s->plan->step_of[l], wait = s->plan->landing[l] + (s->c->window ? 1 : 0);
        s->due[l] = -1;
        if (!(s->c->message[l].takes > 0)) continue;
        s->busy[sends] = s->busy[(sends + wait) % H] = 1;
    }
}

ddp_status ddp__overlap_period(const ddp__overlap_costs *c, const ddp__overlap_plan *plan, double *period_s,
                               double *lag, ddp_error *err)
{
    const size_t L = (size_t)c->p->layers;
    ddp__scratch room = DDP__ZEROS;
    ddp__overlap_run s = DDP__ZEROS;
    ddp__shared_message *message;
    double counted = 0;

    s.c = c;
    s.plan = plan;
    s.lag = lag;
    message = (ddp__shared_message *)ddp__scratch_take(&room, 2 * L, sizeof *message);
    s.sent = ddp__doubles(&room, L);
    s.due = (long *)ddp__scratch_take(&room, L, sizeof *s.due);
    s.busy = (unsigned char *)ddp__scratch_take(&room, (size_t)plan->period, 1);
    if (ddp__scratch_failed(&room)) {
        ddp__scratch_free(&room);
        return ddp__fail(err, DDP_MEMORY, "no memory for a period of %d steps", plan->period);
    }
    s.compute = c->p->between_s;
    for (size_t l = 0; l < L; l++)
        s.compute += c->p->backward_s[l] + (c->p->forward_s ? c->p->forward_s[l] : 0);
    ddp__overlap_mark(&s);
    ddp__shared_start(&s.link, message, 2 * c->p->layers, c->width);
    for (int round = 0; round < (int)DDP__OVERLAP_PERIODS; round++) {
        if (round == (int)DDP__OVERLAP_PERIODS - (int)DDP__OVERLAP_COUNTED) counted = s.now;
        for (int h = 0; h < plan->period; h++) ddp__overlap_step(&s, (long)round * plan->period + h, h);
    }
    *period_s = (s.now - counted) / (double)DDP__OVERLAP_COUNTED;
    ddp__scratch_free(&room);
    return DDP_OK;
}

/* ---- the choice ---- */

void ddp__overlap_fragments(int layers, int period, int n, int *step_of)
{
    for (int l = 0; l < layers; l++) step_of[l] = (int)((int64_t)(l % n + 1) * period / n) - 1;
}

/* A candidate with its landings. */
typedef struct ddp__overlap_try {
    int *step_of, *landing; /* [layers] */
    int together;
    double period_s;
} ddp__overlap_try;

static ddp_status ddp__overlap_evaluate(const ddp__overlap_costs *c, int period, ddp__overlap_try *t,
                                        double *lag, ddp_error *err)
{
    const ddp__overlap_plan plan = {t->step_of, t->landing, period, t->together};

    return ddp__overlap_period(c, &plan, &t->period_s, lag, err);
}

/* Sets the landings to the smallest ones with which layers wait no longer than if all are needed as late as
 * possible. */
static ddp_status ddp__overlap_land(const ddp__overlap_costs *c, int period, ddp__overlap_try *t, double *lag,
                                    ddp_error *err)
{
    double latest;

    for (int l = 0; l < c->p->layers; l++) {
        t->landing[l] = period - 1;
        lag[l] = 0;
    }
    DDP__TRY(ddp__overlap_evaluate(c, period, t, lag, err));
    latest = t->period_s;
    for (int l = 0; l < c->p->layers && latest > 0; l++) {
        const double steps = ceil((lag[l] + c->slack_s) * period / latest * (1 - 1e-12));
        t->landing[l] = !(c->message[l].takes > 0) || steps < 0 ? 0 : (int)fmin(steps, period - 1);
    }
    DDP__TRY(ddp__overlap_evaluate(c, period, t, NULL, err));
    if (t->period_s <= latest * (1 + ddp__overlap_better / 10)) return DDP_OK;
    for (int l = 0; l < c->p->layers; l++) t->landing[l] = period - 1;
    return ddp__overlap_evaluate(c, period, t, NULL, err);
}

/* Replaces *best by *t if its period is shorter by more than a share `least`. */
static void ddp__overlap_keep(ddp__overlap_try *best, ddp__overlap_try *t, double least)
{
    const ddp__overlap_try was = *best;

    if (!(t->period_s < (1 - least) * best->period_s)) return;
    *best = *t;
    *t = was;
}

static ddp_status ddp__overlap_search(const ddp__overlap_costs *c, int period, ddp__overlap_try *best,
                                      ddp__overlap_try *t, double *lag, double compute, ddp_error *err)
{
    const int L = c->p->layers, most = L < period ? L : period;

    DDP__TRY(ddp__overlap_land(c, period, best, lag, err));
    if (best->period_s <= compute * (1 + ddp__overlap_better)) return DDP_OK;
    t->together = 1;
    memcpy(t->step_of, best->step_of, (size_t)L * sizeof *t->step_of);
    DDP__TRY(ddp__overlap_land(c, period, t, lag, err));
    ddp__overlap_keep(best, t, ddp__overlap_better);
    for (int n = most; n > 0; n /= 2) {
        t->together = 1;
        ddp__overlap_fragments(L, period, n, t->step_of);
        DDP__TRY(ddp__overlap_land(c, period, t, lag, err));
        ddp__overlap_keep(best, t, ddp__overlap_better);
    }
    t->together = 1;
    ddp__overlap_fragments(L, period, 1, t->step_of);
    memset(t->landing, 0, (size_t)L * sizeof *t->landing);
    DDP__TRY(ddp__overlap_evaluate(c, period, t, NULL, err));
    ddp__overlap_keep(best, t, 0);
    return DDP_OK;
}

ddp_status ddp__overlap_choose(const ddp__overlap_costs *c, ddp_plan *plan, int *landing, int *together,
                               double *exposed_s, ddp_error *err)
{
    const size_t L = (size_t)c->p->layers;
    double compute = c->p->between_s, *lag;
    ddp__overlap_try best = DDP__ZEROS, t = DDP__ZEROS;
    ddp__scratch room = DDP__ZEROS;
    ddp_status s;

    for (size_t l = 0; l < L; l++)
        compute += c->p->backward_s[l] + (c->p->forward_s ? c->p->forward_s[l] : 0);
    compute *= plan->period;
    best.step_of = ddp__ints(&room, L);
    best.landing = ddp__ints(&room, L);
    t.step_of = ddp__ints(&room, L);
    t.landing = ddp__ints(&room, L);
    lag = ddp__doubles(&room, L);
    s = ddp__scratch_failed(&room) ? ddp__fail(err, DDP_MEMORY, "no memory for a plan of %zu layers", L)
                                   : DDP_OK;
    if (s == DDP_OK) {
        memcpy(best.step_of, plan->step_of, L * sizeof *best.step_of);
        s = ddp__overlap_search(c, plan->period, &best, &t, lag, compute, err);
    }
    if (s == DDP_OK) {
        memcpy(plan->step_of, best.step_of, L * sizeof *best.step_of);
        memcpy(landing, best.landing, L * sizeof *best.landing);
        *together = best.together;
        *exposed_s = fmax(0, best.period_s - compute);
    }
    ddp__scratch_free(&room);
    return s;
}
