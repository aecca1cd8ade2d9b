/* The overlapped variants of diloco. Streaming (arXiv:2501.18512) sends each layer in its own step and
 * applies the result some steps later. Eager (arXiv:2502.12996) overlaps a transfer with the whole next
 * period. */
#include "measure/arrivals.h"
#include "measure/timing.h"
#include "plan/partial/stream.h"
#include "strategy/outer.h"

/* ---- pending outer steps ---- */

/* The saved value is 1 + the step modulo this number, which exceeds any period. 0 if no step is pending. */
enum { DDP__LATE_STEPS = 1 << 20 };

static int ddp__late_set(ddp_ctx *d, ddp__outer_layer *y, long lands)
{
    y->lands = lands;
    return ddp_set(d, y->all->late + y->layer, 1, lands < 0 ? 0 : (float)(lands % DDP__LATE_STEPS + 1));
}

/* Runs before the first step after start, or after a checkpoint was loaded. */
static int ddp__late_read(ddp_ctx *d, ddp__outer *o)
{
    const long now = ddp_step(d);
    double square;

    for (int l = 0; !o->read && l < ddp_layers(d); l++) {
        if (ddp_norm2(d, o->late + l, 1, &square)) return DDP_FAILED;
        o->layer[l].lands = -1;
        if (square > 0) {
            const long at = (long)sqrt(square) - 1,
                       past = (at - now % DDP__LATE_STEPS + DDP__LATE_STEPS) % DDP__LATE_STEPS;
            o->layer[l].lands = now + past;
        }
    }
    o->read = 1;
    return 0;
}

/* Applies x to the anchor, and mixes the anchor into the parameters. */
static int ddp__late_land(ddp_ctx *d, ddp__outer_layer *y)
{
    const ddp__outer *o = y->all;
    const ddp_piece *p = y->piece;

    DDP__DO(ddp__outer_arrive(d, y, y->layer));
    if (!(*y->trained > 0)) return ddp__late_set(d, y, -1); /* no rank has a delta: the layer is unchanged */
    DDP__DO(o->mean ? ddp_copy(d, y->anchor, y->x, y->count) : ddp_axpy(d, y->anchor, y->x, y->count, -1));
    for (size_t at = 0; at < y->count; at += p++->count)
        DDP__DO(ddp_late_apply(d, p->data, y->anchor + at, NULL, p->count, DDP_LATE_MIX, o->mixture));
    return ddp__late_set(d, y, -1);
}

static int ddp__late_land_before(ddp_ctx *d, ddp__outer *o, long step)
{
    for (int l = ddp_layers(d) - 1; l >= 0; l--)
        if (o->layer[l].lands >= 0 && o->layer[l].lands < step) DDP__DO(ddp__late_land(d, &o->layer[l]));
    return 0;
}

static int ddp__late_others(ddp_ctx *d, ddp__outer *o)
{
    /* these waits are not about a landing, so they count for no layer */
    for (int l = ddp_layers(d) - 1; l >= 0; l--)
        DDP__DO(ddp__hold_once(d, &o->layer[l].other_ticket, DDP_NO_LAYER));
    return 0;
}

static int ddp__late_start(ddp_ctx *d, void *self)
{
    ddp__outer *o = (ddp__outer *)self;

    o->late = ddp_keep(d, DDP_NO_LAYER, "late", (size_t)ddp_layers(d), 1);
    o->landing = (int *)ddp__lists(d, 4 * (size_t)ddp_layers(d), sizeof *o->landing);
    o->words = (ddp_piece *)ddp__lists(d, (size_t)ddp_layers(d), sizeof *o->words);
    if (!o->late || !o->landing || !o->words) return DDP_FAILED;
    o->early = o->landing + ddp_layers(d);
    o->early_periods = o->early + ddp_layers(d);
    o->sends = o->early_periods + ddp_layers(d);
    return ddp__outer_start(d, self);
}

/* Waits for all messages in flight. Applies nothing before its time. */
static int ddp__late_wait(ddp_ctx *d, void *self)
{
    ddp__outer *o = (ddp__outer *)self;

    if (!o->layer) return 0;
    DDP__DO(ddp__late_others(d, o));
    for (int l = ddp_layers(d) - 1; l >= 0; l--) {
        DDP__DO(ddp__hold_once(d, &o->layer[l].told_ticket, DDP_NO_LAYER));
        DDP__DO(ddp__outer_arrive(d, &o->layer[l], DDP_NO_LAYER));
    }
    return 0;
}

/* ---- streaming ---- */

/* The layer's message about trained layers was posted. */
static int ddp__streaming_post(ddp_ctx *d, ddp__outer *o, int layer)
{
    ddp__outer_layer *y = &o->layer[layer];

    if (o->mean && y->fresh) DDP__DO(ddp_kept_wait(d, layer));
    if (!o->mean)
        DDP__DO(ddp__outer_change(d, y, y->anchor));
    else if (y->fresh)
        DDP__DO(ddp_copy(d, y->x, y->anchor, y->count));
    else
        DDP__DO(ddp__pieces_read(d, y->piece, y->pieces, y->x));
    y->fresh = 0;
    DDP__DO(ddp__outer_post(d, y));
    return ddp__late_set(d, y, ddp_step(d) + o->landing[layer]);
}

static int ddp__streaming_send(ddp_ctx *d, ddp__outer *o, int layer)
{
    ddp__outer_layer *y = &o->layer[layer];

    if (y->lands >= 0) DDP__DO(ddp__late_land(d, y)); /* it was sent by another plan */
    DDP__DO(ddp__outer_others(d, y));
    if (!y->count) return 0;
    if (!o->mean) DDP__DO(ddp__outer_tell(d, o, layer, layer));
    return ddp__streaming_post(d, o, layer);
}

static int ddp__streaming_due(const ddp_ctx *d, const ddp__outer *o, int layer)
{
    return o->partial.plan.step_of[layer] == (int)(ddp_step(d) % o->partial.plan.period);
}

static int ddp__streaming_forward_begin(ddp_ctx *d, void *self, int layer)
{
    ddp__outer *o = (ddp__outer *)self;
    ddp__outer_layer *y = &o->layer[layer];

    DDP__DO(ddp__late_read(d, o));
    DDP__DO(ddp__hold_once(d, &y->other_ticket, DDP_NO_LAYER));
    return y->lands < 0 || y->lands >= ddp_step(d) ? 0 : ddp__late_land(d, y);
}

/* 1 if layers are sent at the end of a step: the plan sends them together, or a layer is sent after its
 * update, which waits for the norm of all gradients. */
static int ddp__sends_last(const ddp_ctx *d, const ddp__outer *o)
{
    return o->together || (ddp__updates_last(d) && !ddp_settings(d)->average.first);
}

/* Sends the layers of this step after one message about trained layers. */
static int ddp__streaming_send_all(ddp_ctx *d, ddp__outer *o)
{
    int n = 0;

    for (int l = ddp_layers(d) - 1; l >= 0; l--) {
        ddp__outer_layer *y = &o->layer[l];
        if (!ddp__streaming_due(d, o, l)) continue;
        if (y->lands >= 0) DDP__DO(ddp__late_land(d, y));
        DDP__DO(ddp__outer_others(d, y));
        if (y->count) o->sends[n++] = l;
    }
    if (!o->mean) DDP__DO(ddp__outer_tell_some(d, o, o->sends, n));
    for (int i = 0; i < n; i++) DDP__DO(ddp__streaming_post(d, o, o->sends[i]));
    return 0;
}

static int ddp__streaming_backward_end(ddp_ctx *d, void *self, int layer)
{
    ddp__outer *o = (ddp__outer *)self;

    DDP__DO(ddp__late_read(d, o));
    DDP__DO(ddp__local_backward_end(d, NULL, layer));
    if (ddp__sends_last(d, o)) return 0;
    ddp__turn_ready(&o->partial, layer);
    for (int l; (l = ddp__turn_next(d, &o->partial)) >= 0;)
        if (ddp__streaming_due(d, o, l)) DDP__DO(ddp__streaming_send(d, o, l));
    return 0;
}

static int ddp__streaming_is_due(const ddp_ctx *d, const void *self, int layer)
{
    return !ddp__sends_last(d, (const ddp__outer *)self) && ddp__partial_due(d, self, layer);
}

static int ddp__streaming_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__outer *o = (ddp__outer *)self;

    ddp__turn_again(d, &o->partial);
    DDP__DO(ddp__clip_and_update(d, 0));
    if (ddp__sends_last(d, o)) DDP__DO(ddp__streaming_send_all(d, o));
    if (forward) return 0; /* a result due now is awaited in its layer's next forward */
    DDP__DO(ddp__late_others(d, o));
    DDP__DO(ddp__late_land_before(d, o, ddp_step(d) + 1));
    return ddp__clip_and_update(d, 1);
}

static int ddp__streaming_wait(ddp_ctx *d, void *self)
{
    ddp__outer *o = (ddp__outer *)self;

    DDP__DO(ddp__late_wait(d, self));
    /* a checkpoint does not save pending layers without a delta */
    for (int l = 0; o->read && l < ddp_layers(d); l++)
        if (o->layer[l].lands >= 0 && !(*o->layer[l].trained > 0))
            DDP__DO(ddp__late_set(d, &o->layer[l], -1));
    return o->read ? ddp__late_land_before(d, o, ddp_step(d)) : 0;
}

/* Applies all pending outer steps before their time: a joining worker does not receive them. */
static int ddp__streaming_drain(ddp_ctx *d, void *self)
{
    ddp__outer *o = (ddp__outer *)self;

    DDP__DO(ddp__late_read(d, o));
    return ddp__late_land_before(d, o, LONG_MAX);
}

static int ddp__late_restart(ddp_ctx *d, void *self)
{
    ddp__outer *o = (ddp__outer *)self;

    DDP__DO(ddp__late_read(d, o));
    DDP__DO(ddp__outer_restart(d, self));
    for (int l = 0; l < ddp_layers(d); l++) {
        ddp__outer_layer *y = &o->layer[l];
        if (!y->count) continue;
        if (y->own) DDP__DO(ddp_copy(d, y->own, y->anchor, y->count));
        if (y->previous) DDP__DO(ddp_copy(d, y->previous, y->anchor + y->from, y->length));
        DDP__DO(ddp__late_set(d, y, -1));
    }
    return 0;
}

/* ---- the plan of stream: dreamddp's plan, its exposed time, and the landings ---- */

static int ddp__streaming_strided(ddp_ctx *d, ddp_plan *plan)
{
    const ddp_config *c = ddp_settings(d);
    ddp_error err;

    if (ddp_plan_new(ddp_layers(d), c->period, plan, &err)) return ddp__plan_failed(d, &err);
    ddp__overlap_fragments(plan->layers, c->period, c->outer.fragments, plan->step_of);
    return 0;
}

/* Returns the landing of layer l that the transfer of its last average needs, in steps of step_s seconds. */
static int ddp__landing_seen(ddp_ctx *d, const ddp_profile *p, const ddp_plan *plan, int l, double step_s,
                             double slack_s)
{
    const double takes = ddp__arrivals_last(d, l);
    double lasts = takes + slack_s + p->between_s;

    if (!(takes > 0)) return 0;
    for (int k = 0; k < p->layers; k++) {
        if (p->forward_s && (k >= l || plan->cost != DDP_COST_WINDOW)) lasts += p->forward_s[k];
        if (k >= l) lasts += p->backward_s[k];
    }
    return (int)fmin(ceil(lasts / step_s), plan->period) - 1;
}

/* A plan in the making. */
typedef struct ddp__overlap_draft {
    ddp_plan plan;
    ddp__message_cost *message; /* [layers] */
    int *landing;               /* [layers] */
    int together;
    double exposed_s;
} ddp__overlap_draft;

/* A delta may be sent only after the message of ddp__outer_tell has arrived. An elastic world does not wait
 * for that message, but has the same plan. Landings have slack for transfers that take longer than the model
 * says, and for steps that are shorter. */
static ddp__overlap_costs ddp__streaming_costs(ddp_ctx *d, const ddp__outer *o, const ddp_profile *p,
                                               ddp__message_cost *m)
{
    const ddp__overlap_costs c = {
        p, m, ddp__tell_cost(d, 1), !o->mean, o->waits, ddp__messages_at_once(d), ddp_has_forward(d), 0};

    for (int l = 0; l < p->layers; l++)
        m[l] = ddp__average_cost(d, p, (double)ddp__layer_bytes(d, l), p->comm_s[l], 1);
    return c;
}

/* The fragments and the landing of the settings. */
static ddp_status ddp__streaming_given(const ddp__overlap_costs *c, ddp__overlap_draft *t, int landing,
                                       double compute, ddp_error *err)
{
    ddp__overlap_plan plan = {t->plan.step_of, t->landing, t->plan.period, 0};
    double each, all;

    for (int l = 0; l < c->p->layers; l++) t->landing[l] = landing;
    DDP__TRY(ddp__overlap_period(c, &plan, &each, NULL, err));
    plan.together = 1;
    DDP__TRY(ddp__overlap_period(c, &plan, &all, NULL, err));
    t->together = all < 0.99 * each;
    t->exposed_s = fmax(0, fmin(each, all) - compute * t->plan.period);
    return DDP_OK;
}

/* A new plan in a running training may come from a model that is still wrong. So landings are also those that
 * the last transfers need, up to the largest landing in use. */
static void ddp__streaming_seen(ddp_ctx *d, const ddp__outer *o, const ddp__overlap_costs *c,
                                ddp__overlap_draft *t, double compute)
{
    const double step = compute + t->exposed_s / t->plan.period;
    int most = 0;

    for (int l = 0; l < c->p->layers; l++) most = o->landing[l] > most ? o->landing[l] : most;
    for (int l = 0; l < c->p->layers && c->slack_s > 0; l++) {
        const int seen = ddp__landing_seen(d, c->p, &t->plan, l, step, c->slack_s);
        if (seen <= t->landing[l]) continue;
        t->landing[l] = seen < most ? seen : most > t->landing[l] ? most : t->landing[l];
    }
}

static int ddp__streaming_draft(ddp_ctx *d, const ddp__outer *o, const ddp_profile *p, int measured,
                                ddp__overlap_draft *t)
{
    const ddp_config *c = ddp_settings(d);
    ddp__overlap_costs costs = ddp__streaming_costs(d, o, p, t->message);
    ddp_profile soon = *p;
    double compute = p->between_s;
    ddp_error err;

    for (int l = 0; l < p->layers; l++) compute += p->backward_s[l] + (p->forward_s ? p->forward_s[l] : 0);
    if (c->outer.fragments) {
        DDP__DO(ddp__streaming_strided(d, &t->plan));
        return ddp__streaming_given(&costs, t, c->outer.landing, compute, &err) ? ddp__plan_failed(d, &err)
                                                                                : 0;
    }
    if (!c->deterministic) costs.slack_s = ddp__arrivals_slack(d, DDP_NO_LAYER, compute);
    soon.alpha_s = 0; /* no step waits for the delay of its messages: landings include it */
    DDP__DO(ddp__partial_plan(d, &soon, !measured, &t->plan));
    if (ddp__overlap_choose(&costs, &t->plan, t->landing, &t->together, &t->exposed_s, &err) ||
        ddp_plan_evaluate(&soon, t->plan.cost, &t->plan, &err))
        return ddp__plan_failed(d, &err);
    ddp__streaming_seen(d, o, &costs, t, compute);
    return 0;
}

/* The bytes that follow the partial plan: the exposed time, whether the layers of a step are sent together,
 * and the landings. */
static size_t ddp__streaming_more(ddp_ctx *d)
{
    return sizeof(double) + ((size_t)ddp_layers(d) + 1) * sizeof(int);
}

static int ddp__streaming_make(ddp_ctx *d, void *self, const ddp_profile *p, int measured, ddp_blob *out)
{
    const size_t L = (size_t)ddp_layers(d), more = ddp__streaming_more(d);
    ddp__scratch room = DDP__ZEROS;
    ddp__overlap_draft t = DDP__ZEROS;
    unsigned char *end;
    int bad;

    t.message = (ddp__message_cost *)ddp__scratch_take(&room, L, sizeof *t.message);
    t.landing = ddp__ints(&room, L);
    bad = ddp__scratch_failed(&room)
              ? ddp_complain(d, DDP_MEMORY, "out of memory for the plan of %d layers", ddp_layers(d))
              : ddp__streaming_draft(d, (const ddp__outer *)self, p, measured, &t);
    if (!bad) bad = ddp__plan_pack(d, &t.plan, more, out);
    if (!bad) {
        end = out->bytes + out->size - more;
        memcpy(end, &t.exposed_s, sizeof t.exposed_s);
        memcpy(end + sizeof t.exposed_s, &t.together, sizeof t.together);
        memcpy(end + sizeof t.exposed_s + sizeof t.together, t.landing, L * sizeof *t.landing);
    }
    ddp_plan_free(&t.plan);
    ddp__scratch_free(&room);
    return bad;
}

/* Returns the partial plan without the exposed time and the landings that follow it. */
static ddp_blob ddp__streaming_partial(ddp_ctx *d, const ddp_blob *blob)
{
    const size_t more = ddp__streaming_more(d);
    ddp_blob partial = *blob;

    partial.size = blob->size > more ? blob->size - more : 0;
    return partial;
}

static int ddp__streaming_fits(ddp_ctx *d, void *self, const ddp_blob *blob)
{
    const ddp_blob partial = ddp__streaming_partial(d, blob);
    ddp_plan plan;
    int bad = 0, landing = 0;

    (void)self;
    DDP__DO(ddp__plan_unpack(d, &partial, &plan));
    for (int l = 0; l < ddp_layers(d) && !bad; l++) {
        memcpy(&landing,
               blob->bytes + partial.size + sizeof(double) + sizeof(int) + (size_t)l * sizeof landing,
               sizeof landing);
        bad = landing < 0 || landing >= plan.period;
    }
    if (bad)
        (void)ddp_complain(
            d, DDP_MISMATCH,
            "a plan applies a layer %d steps after sending, in a period of %d: make the plan again, or build "
            "all ranks from one header",
            landing, plan.period);
    ddp_plan_free(&plan);
    return bad;
}

/* Periods in which a layer's averages must arrive at least two steps early before its landing is moved
 * earlier. One of these steps remains as slack, and each such move doubles the number, so that landings do
 * not move forth and back. */
enum { DDP__LANDING_PATIENCE = 4, DDP__LANDING_PATIENCE_MOST = 1 << 20 };

static int ddp__streaming_take(ddp_ctx *d, void *self, const ddp_blob *blob, const ddp_profile *profile)
{
    const ddp_blob partial = ddp__streaming_partial(d, blob);
    ddp__outer *o = (ddp__outer *)self;

    /* a new plan in a running training: results pending by the old plan are applied first */
    if (profile) DDP__DO(ddp__late_read(d, o));
    if (profile) DDP__DO(ddp__late_land_before(d, o, LONG_MAX));
    DDP__DO(ddp__streaming_fits(d, self, blob));
    DDP__DO(ddp__partial_take(d, self, &partial, NULL));
    memcpy(&o->exposed_s, blob->bytes + partial.size, sizeof o->exposed_s);
    memcpy(o->landing, blob->bytes + partial.size + sizeof o->exposed_s + sizeof o->together,
           (size_t)ddp_layers(d) * sizeof *o->landing);
    memcpy(&o->together, blob->bytes + partial.size + sizeof o->exposed_s, sizeof o->together);
    memset(o->early_periods, 0, (size_t)ddp_layers(d) * sizeof *o->early_periods);
    o->patience = DDP__LANDING_PATIENCE;
    return 0;
}

static int ddp__streaming_moves(ddp__outer *o, int l, int late)
{
    const int most = o->partial.plan.period - 1 - o->landing[l];

    if (late > -2) o->early_periods[l] = 0;
    if (late > 0) return late < most ? late : most;
    if (late > -2) return 0;
    if (!o->early_periods[l] || late > o->early[l]) o->early[l] = late;
    if (++o->early_periods[l] < o->patience) return 0;
    o->early_periods[l] = 0;
    return o->early[l] + 1 > -o->landing[l] ? o->early[l] + 1 : -o->landing[l];
}

static int ddp__streaming_adapt(ddp_ctx *d, void *self, const int *late, ddp_blob *plan, int *moved)
{
    ddp__outer *o = (ddp__outer *)self;
    const ddp_blob partial = ddp__streaming_partial(d, plan);
    int earlier = 0;

    for (int l = 0; l < ddp_layers(d); l++) {
        if (late[l] == (int)DDP_ARRIVAL_UNKNOWN) continue;
        moved[l] = ddp__streaming_moves(o, l, late[l]);
        o->landing[l] += moved[l];
        earlier |= moved[l] < 0;
    }
    if (earlier && o->patience < (int)DDP__LANDING_PATIENCE_MOST) o->patience *= 2;
    memcpy(plan->bytes + partial.size + sizeof o->exposed_s + sizeof o->together, o->landing,
           (size_t)ddp_layers(d) * sizeof *o->landing);
    return 0;
}

static double ddp__streaming_exposed(const void *self) { return ((const ddp__outer *)self)->exposed_s; }

static void ddp__outer_stream(ddp_strategy_ops *ops, const ddp_config *c)
{
    ops->start = ddp__late_start;
    ops->forward_begin = ddp__streaming_forward_begin;
    ops->backward_end = ddp__streaming_backward_end;
    ops->step_end = ddp__streaming_step_end;
    ops->wait = ddp__streaming_wait;
    ops->drain = ddp__streaming_drain;
    ops->sync_all = ddp__outer_sync_all;
    ops->restart = ddp__late_restart;
    ops->plan_make = ddp__streaming_make;
    ops->plan_take = ddp__streaming_take;
    ops->plan_fits = ddp__streaming_fits;
    ops->plan_view = ddp__partial_view;
    ops->plan_exposed = ddp__streaming_exposed;
    if (!c->outer.fragments && !c->deterministic) ops->plan_adapt = ddp__streaming_adapt;
    ops->transfers = ddp__partial_transfers;
    ops->due = ddp__streaming_is_due;
}

/* ---- eager ---- */

/* The anchor is updated by the deltas of the previous period only. Each worker then starts from the anchor
 * plus its own contribution to the mean of this period, which is in flight. With mu 0: D = mean(d(t-1)) +
 * (d_w(t) - d_w(t-1)) / W. */
static int ddp__eager_layer(ddp_ctx *d, ddp__outer_layer *y)
{
    const float part = y->all->nu / (float)ddp_group_size(d, ddp_group_of(d, y->layer));

    DDP__DO(ddp__outer_others(d, y));
    if (!y->count) return 0;
    DDP__DO(ddp_kept_wait(d, y->layer));
    if (y->lands >= 0) {
        if (y->previous) DDP__DO(ddp_copy(d, y->previous, y->anchor + y->from, y->length));
        DDP__DO(ddp_axpy(d, y->anchor, y->x, y->count, -1));
    }
    DDP__DO(ddp__outer_change(d, y, y->own));
    DDP__DO(ddp_late_apply(d, y->own, y->anchor, y->x, y->count, DDP_LATE_OWN, part));
    DDP__DO(ddp__pieces_write(d, y->piece, y->pieces, y->own));
    DDP__DO(ddp__outer_post(d, y));
    return ddp__late_set(d, y, ddp_step(d) + ddp_settings(d)->period);
}

static int ddp__eager_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__outer *o = (ddp__outer *)self;

    (void)forward;
    DDP__DO(ddp__late_read(d, o));
    DDP__DO(ddp__clip_and_update(d, 0));
    for (int l = ddp_layers(d) - 1; ddp__period_ends(d) && l >= 0; l--) {
        DDP__DO(ddp__hold_once(d, &o->layer[l].told_ticket, DDP_NO_LAYER));
        DDP__DO(ddp__outer_arrive(d, &o->layer[l], l));
    }
    if (ddp__period_ends(d)) DDP__DO(ddp__outer_tell(d, o, ddp_layers(d) - 1, 0));
    for (int l = ddp_layers(d) - 1; ddp__period_ends(d) && l >= 0; l--)
        DDP__DO(ddp__eager_layer(d, &o->layer[l]));
    DDP__DO(ddp__late_others(d, o));
    return ddp__clip_and_update(d, 1);
}

/* Adds this worker's delta since the start of the period to the common anchor. */
static int ddp__eager_join(ddp_ctx *d, ddp__outer_layer *y)
{
    const ddp_piece *p = y->piece;

    if (y->lands >= 0) DDP__DO(ddp_axpy(d, y->anchor, y->x, y->count, -1));
    for (size_t at = 0; at < y->count; at += p++->count) {
        DDP__DO(y->fresh ? ddp_set(d, p->data, p->count, 0)
                         : ddp_axpy(d, p->data, y->own + at, p->count, -1));
        DDP__DO(ddp_axpy(d, p->data, y->anchor + at, p->count, 1));
    }
    return ddp__late_set(d, y, -1);
}

static int ddp__eager_sync_all(ddp_ctx *d, void *self)
{
    ddp__outer *o = (ddp__outer *)self;

    DDP__DO(ddp__late_read(d, o));
    for (int l = ddp_layers(d) - 1; l >= 0; l--)
        if (o->layer[l].count) DDP__DO(ddp__eager_join(d, &o->layer[l]));
    DDP__DO(ddp__outer_sync_all(d, self));
    for (int l = ddp_layers(d) - 1; l >= 0; l--) {
        const ddp__outer_layer *y = &o->layer[l];
        if (y->count) DDP__DO(ddp_copy(d, y->own, y->anchor, y->count));
        if (y->previous) DDP__DO(ddp_copy(d, y->previous, y->anchor + y->from, y->length));
    }
    return 0;
}

/* ---- diloco and sparseloco ---- */

/* The best measured values (docs/results/accuracy.md), and with longer periods the value of the papers. */
static double ddp__outer_momentum(const ddp_config *c)
{
    const int longest = c->outer.overlap == DDP_OVERLAP_STREAM ? 5 : 50;
    return c->period <= longest ? 0.5 : 0.9;
}

/* sparseloco is diloco with other defaults. */
static ddp_status ddp__outer_settle(ddp_strategy_ops *ops, ddp_config *c, ddp_error *err)
{
    const int sparse = !strcmp(ops->name, "sparseloco");
    /* momentum overshoots if few values are sent, or a period late (docs/explanation/diloco.md) */
    const int plain = sparse || c->outer.overlap == DDP_OVERLAP_EAGER;

    if ((c->outer.mixture != 0 || c->outer.fragments || c->outer.landing) &&
        c->outer.overlap != DDP_OVERLAP_STREAM)
        return ddp__fail(
            err, DDP_ARG,
            "strategy %s: mixture, fragments and landing need overlap stream: set overlap to stream, "
            "or remove them",
            ops->name);
    if (c->outer.landing && !c->outer.fragments)
        return ddp__fail(err, DDP_ARG,
                         "strategy %s: landing %d needs fragments: set fragments, or remove landing and let "
                         "the plan choose",
                         ops->name, c->outer.landing);
    if (c->outer.compensation > 0 && c->outer.overlap != DDP_OVERLAP_EAGER)
        return ddp__fail(err, DDP_ARG,
                         "strategy %s: compensation %g needs overlap eager, which applies deltas late: set "
                         "overlap to eager, "
                         "or remove compensation",
                         ops->name, c->outer.compensation);
    if (c->outer.overlap == DDP_OVERLAP_STREAM) ddp__outer_stream(ops, c);
    if (c->outer.overlap == DDP_OVERLAP_EAGER) {
        ops->start = ddp__late_start;
        ops->step_end = ddp__eager_step_end;
        ops->wait = ddp__late_wait;
        ops->sync_all = ddp__eager_sync_all;
        ops->restart = ddp__late_restart;
    }
    if (c->outer.mixture == 0 && c->outer.overlap == DDP_OVERLAP_STREAM) c->outer.mixture = 0.5;
    if (!(c->outer.lr > 0)) c->outer.lr = plain ? 1 : 0.7;
    if (c->outer.momentum == 0) c->outer.momentum = plain ? DDP_NO_MOMENTUM : ddp__outer_momentum(c);
    if (sparse && c->wire == DDP_WIRE_DEFAULT) c->wire = DDP_WIRE_TOPK;
    return DDP_OK;
}

void ddp__strategy_diloco(ddp_strategy_ops *ops)
{
    ops->averages = DDP_AVERAGES_CHANGES;
    ops->traits = DDP_WITH_ALL | DDP_WITH_INT4;
#ifndef DDP_NO_PLANNERS
    ops->traits |= DDP_WITH_TOPK;
#endif
    ops->self_bytes = sizeof(ddp__outer);
    ops->settle = ddp__outer_settle;
    ops->start = ddp__outer_start;
    ops->backward_end = ddp__local_backward_end;
    ops->step_end = ddp__outer_step_end;
    ops->sync_all = ddp__outer_sync_all;
    ops->restart = ddp__outer_restart;
    ops->close = ddp__partial_close;
    ops->transfers = ddp__local_transfers;
    ops->due = ddp__local_due;
}
