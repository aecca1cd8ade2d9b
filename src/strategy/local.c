/* Strategies that average parameters: localsgd, enp and dreamddp (Algorithm 1 and Eq. 5). */
#include "context/stats.h"
#include "measure/timing.h"
#include "plan/partial/exposed.h"
#include "strategy/strategy.h"

/* ---- localsgd ---- */

int ddp__local_backward_end(ddp_ctx *d, void *self, int layer)
{
    (void)self;
    /* clipping needs the norm of all gradients: updates are then made at the end of the step */
    return ddp__updates_last(d) ? 0 : ddp_update_layer(d, layer, NULL);
}

int ddp__updates_last(const ddp_ctx *d)
{
    return ddp_settings(d)->average.first || ddp_settings(d)->clip_norm > 0;
}

int ddp__clip_and_update(ddp_ctx *d, int averaged)
{
    if (!ddp__updates_last(d) || averaged != !!ddp_settings(d)->average.first) return 0;
    DDP__DO(ddp_clip(d));
    return ddp__update_all(d);
}

int ddp__period_ends(const ddp_ctx *d) { return (ddp_step(d) + 1) % ddp_settings(d)->period == 0; }

int ddp__local_due(const ddp_ctx *d, const void *self, int layer)
{
    (void)d;
    (void)self;
    (void)layer;
    return 0;
}

static int ddp__hold_all(ddp_ctx *d)
{
    for (int l = ddp_layers(d) - 1; l >= 0; l--) DDP__DO(ddp_average_hold(d, l));
    return 0;
}

int ddp__local_step_end(ddp_ctx *d, void *self, int forward)
{
    (void)self;
    (void)forward;
    DDP__DO(ddp__clip_and_update(d, 0));
    if (ddp__period_ends(d)) {
        for (int l = ddp_layers(d) - 1; l >= 0; l--) DDP__DO(ddp_average(d, l, 0, 0));
        DDP__DO(ddp__hold_all(d));
    }
    return ddp__clip_and_update(d, 1);
}

int ddp__local_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room)
{
    int i, layers = ddp_layers(d);

    (void)self;
    *period = ddp_settings(d)->period;
    for (i = 0; i < layers && i < room; i++) {
        const ddp_transfer t = {*period - 1, layers - 1 - i, layers - 1 - i, -1};
        out[i] = t;
    }
    return i;
}

void ddp__strategy_localsgd(ddp_strategy_ops *ops)
{
    ops->averages = DDP_AVERAGES_PARAMETERS;
    ops->traits = DDP_WITH_ALL;
    ops->backward_end = ddp__local_backward_end;
    ops->step_end = ddp__local_step_end;
    ops->transfers = ddp__local_transfers;
    ops->due = ddp__local_due;
}

/* ---- enp, dreamddp: average each layer, or each part of it, once per period by a plan ---- */

/* The marks of a layer's parts in a table of the plan, for the current step. */
static const unsigned char *ddp__marks_of(const ddp_ctx *d, const ddp__partial *x, const unsigned char *table,
                                          int layer)
{
    const size_t h = (size_t)(ddp_step(d) % x->plan.period);

    return table + h * (size_t)x->plan.layers + (size_t)x->first[layer];
}

int ddp__partial_due(const ddp_ctx *d, const void *self, int layer)
{
    const ddp__partial *x = (const ddp__partial *)self;
    const size_t parts = (size_t)(x->first[layer + 1] - x->first[layer]);

    return memchr(ddp__marks_of(d, x, x->due, layer), 1, parts) ||
           memchr(ddp__marks_of(d, x, x->plan.fill, layer), 1, parts);
}

void ddp__turn_ready(ddp__partial *x, int layer) { x->ready[layer] = 1; }

int ddp__turn_next(const ddp_ctx *d, ddp__partial *x)
{
    while (x->next >= 0 && !ddp__partial_due(d, x, x->next)) x->next--;
    return x->next >= 0 && x->ready[x->next] ? x->next-- : -1;
}

void ddp__turn_again(const ddp_ctx *d, ddp__partial *x)
{
    memset(x->ready, 0, (size_t)ddp_layers(d));
    x->next = ddp_layers(d) - 1;
}

static int ddp__partial_send(ddp_ctx *d, const ddp__partial *x, int layer)
{
    const ddp_plan *p = &x->plan;
    /* the first layer of the next forward has the highest priority. The paper sends first come, first
     * served. */
    const int priority = ddp_settings(d)->plan.paper ? 0 : layer;
    const unsigned char *due = ddp__marks_of(d, x, x->due, layer),
                        *fill = ddp__marks_of(d, x, p->fill, layer);
    const size_t parts = (size_t)(x->first[layer + 1] - x->first[layer]);

    /* one message per layer: parts that only fill idle time are skipped if other parts of the layer are
     * due */
    if (memchr(due, 1, parts)) return ddp_average_parts(d, layer, due, priority, 0);
    return ddp_average_parts(d, layer, fill, priority, 1);
}

static int ddp__partial_backward_end(ddp_ctx *d, void *self, int layer)
{
    ddp__partial *x = (ddp__partial *)self;

    /* Eq. 5 as printed updates, then averages. average_first averages the parameters before the update. */
    DDP__DO(ddp__local_backward_end(d, NULL, layer));
    ddp__turn_ready(x, layer);
    for (int l; (l = ddp__turn_next(d, x)) >= 0;) DDP__DO(ddp__partial_send(d, x, l));
    return 0;
}

static int ddp__partial_forward_begin(ddp_ctx *d, void *self, int layer)
{
    (void)self;
    return ddp_average_hold(d, layer);
}

static int ddp__partial_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__turn_again(d, (ddp__partial *)self);
    /* with forward hooks a transfer may continue until the layer's own next forward */
    if (forward && !ddp_settings(d)->plan.paper) return 0;
    DDP__DO(ddp__hold_all(d));
    return ddp__clip_and_update(d, 1);
}

/* ---- the serialised plan, identical on all ranks: a head, step_of, fill ---- */

static int ddp__rows_of(const ddp_ctx *d)
{
    int rows = 0;

    for (int l = 0; l < ddp_layers(d); l++) rows += ddp_parts_of(d, l);
    return rows;
}

typedef struct ddp__packed_plan {
    int32_t layers, period, solver, cost;
    double objective_s, exposed_s, lower_bound_s;
} ddp__packed_plan;

int ddp__plan_pack(ddp_ctx *d, const ddp_plan *p, size_t more, ddp_blob *out)
{
    const size_t steps = (size_t)p->layers * sizeof(int32_t), fill = (size_t)p->layers * (size_t)p->period;
    const ddp__packed_plan head = {p->layers,      p->period,    (int32_t)p->solver, (int32_t)p->cost,
                                   p->objective_s, p->exposed_s, p->lower_bound_s};

    *out = ddp_blob_new(sizeof head + steps + fill + more);
    if (!out->bytes) return ddp_complain(d, DDP_MEMORY, "out of memory for the plan of %d layers", p->layers);
    memcpy(out->bytes, &head, sizeof head);
    memcpy(out->bytes + sizeof head, p->step_of, steps);
    if (p->fill) memcpy(out->bytes + sizeof head + steps, p->fill, fill);
    return 0;
}

int ddp__plan_unpack(ddp_ctx *d, const ddp_blob *blob, ddp_plan *out)
{
    const int rows = ddp__rows_of(d);
    const size_t steps = (size_t)rows * sizeof(int32_t);
    ddp__packed_plan head = DDP__ZEROS;
    ddp_error err;
    int bad = 0;

    if (blob->size >= sizeof head) memcpy(&head, blob->bytes, sizeof head);
    if (head.layers != rows || head.period < 1 || head.period > 1000000 ||
        blob->size != sizeof head + steps + (size_t)rows * (size_t)head.period)
        return ddp_complain(d, DDP_MISMATCH,
                            "a plan of %lu bytes for %d layers and period %d does not fit this model "
                            "of %d layers",
                            (unsigned long)blob->size, (int)head.layers, (int)head.period, rows);
    if (ddp_plan_new(rows, head.period, out, &err)) return ddp__plan_failed(d, &err);
    out->solver = (ddp_solver)head.solver;
    out->cost = (ddp_cost)head.cost;
    out->objective_s = head.objective_s;
    out->exposed_s = head.exposed_s;
    out->lower_bound_s = head.lower_bound_s;
    memcpy(out->step_of, blob->bytes + sizeof head, steps);
    memcpy(out->fill, blob->bytes + sizeof head + steps, (size_t)rows * (size_t)head.period);
    for (int l = 0; l < rows; l++) bad |= out->step_of[l] < 0 || out->step_of[l] >= head.period;
    if (!bad) return 0;
    ddp_plan_free(out);
    return ddp_complain(d, DDP_MISMATCH, "the plan assigns a layer to a step outside its period of %d",
                        (int)head.period);
}

/* ---- planning ---- */

/* The objective barely distinguishes a plan that just fits from one with slack, but a link slightly slower
 * than measured does. Therefore plans for a link that is 10 % slower, and uses that plan if it costs at most
 * 1 % more on the measured link. */
static ddp_status ddp__plan_with_slack(const ddp_profile *p, const ddp_plan_options *o, ddp_plan *plan,
                                       ddp_error *err)
{
    ddp_profile slower = *p;
    ddp_plan other = DDP__ZEROS;
    ddp_status s = ddp_plan_partial(p, o, plan, err);

    if (s != DDP_OK) return s;
    slower.comm_s = (double *)ddp__calloc((size_t)p->layers, sizeof *slower.comm_s);
    for (int l = 0; slower.comm_s && l < p->layers; l++) slower.comm_s[l] = 1.1 * p->comm_s[l];
    slower.alpha_s *= 1.1;
    s = slower.comm_s ? ddp_plan_partial(&slower, o, &other, err)
                      : ddp__fail(err, DDP_MEMORY, "out of memory planning %d layers", p->layers);
    if (s == DDP_OK) s = ddp_plan_evaluate(p, other.cost, &other, err);
    if (s == DDP_OK && other.objective_s <= 1.01 * plan->objective_s) {
        ddp_plan swap = *plan;
        *plan = other;
        other = swap;
    }
    ddp_plan_free(&other);
    DDP_FREE(slower.comm_s);
    if (s != DDP_OK) ddp_plan_free(plan);
    return s;
}

int ddp__partial_plan(ddp_ctx *d, const ddp_profile *p, int unmeasured, ddp_plan *out)
{
    const ddp_config *c = ddp_settings(d);
    ddp_plan_options o = DDP__ZEROS;
    ddp_error err;

    o.period = c->period;
    o.fill = unmeasured ? DDP_FILL_NONE : c->plan.fill;
    o.cost = c->plan.cost;
    o.solver = unmeasured || c->strategy == DDP_ENP ? DDP_SOLVER_ENP : c->plan.solver;
    if (o.cost == DDP_COST_DEFAULT)
        o.cost =
            ddp_has_forward(d) && !c->plan.paper && !(c->clip_norm > 0) ? DDP_COST_WINDOW : DDP_COST_TIMELINE;
    if (o.solver == DDP_SOLVER_DEFAULT) o.solver = c->plan.paper ? DDP_SOLVER_OPTIMAL : DDP_SOLVER_SCATTER;
    if (unmeasured || c->plan.paper ? ddp_plan_partial(p, &o, out, &err)
                                    : ddp__plan_with_slack(p, &o, out, &err))
        return ddp__plan_failed(d, &err);
    if (!out->solver) out->solver = o.solver;
    if (!out->cost) out->cost = o.cost;
    return 0;
}

/* ---- layers in parts ---- */

enum { DDP__PARTS = 16 }; /* limit of parts per layer, on average */

/* Makes a profile with a row per part, as the planner's --split-params does. Its params count only parameters
 * with gradients. The caller frees it. */
static int ddp__rows_split(ddp_ctx *d, const ddp_profile *p, ddp_profile *out)
{
    const int split = ddp_settings(d)->average.split_params;
    double rows = 0;
    ddp_error err;

    for (int l = 0; l < p->layers; l++)
        rows += split && p->params[l] > split ? ceil(p->params[l] / split) : 1;
    if (rows > (double)DDP__PARTS * p->layers)
        return ddp_complain(
            d, DDP_ARG,
            "split_params %d makes %.0f parts of %d layers, the limit is %d per layer: choose a larger "
            "value",
            split, rows, p->layers, (int)DDP__PARTS);
    if (ddp_profile_split(p, split ? split : DBL_MAX, 0, out, NULL, &err)) return ddp__plan_failed(d, &err);
    return 0;
}

static int ddp__rows_profile(ddp_ctx *d, const ddp_profile *p, ddp_profile *out)
{
    const int layers = ddp_layers(d);
    ddp_profile own = *p;
    int bad;

    own.params = (double *)ddp__calloc((size_t)layers, sizeof *own.params);
    if (!own.params) return ddp_complain(d, DDP_MEMORY, "out of memory for a profile of %d layers", layers);
    /* the sizes of this model: a profile from a file may have others */
    for (int l = 0; l < layers; l++) own.params[l] = (double)ddp__gradient_count(d, l);
    bad = ddp__rows_split(d, &own, out);
    DDP_FREE(own.params);
    return bad;
}

/* Before the profile is measured, assigns equal numbers of layers, which needs no times. */
static int ddp__partial_make(ddp_ctx *d, void *self, const ddp_profile *p, int measured, ddp_blob *out)
{
    ddp_profile rows;
    ddp_plan plan = DDP__ZEROS;
    int bad;

    (void)self;
    DDP__DO(ddp__rows_profile(d, p, &rows));
    bad = ddp__partial_plan(d, &rows, !measured, &plan);
    if (!bad) bad = ddp__plan_pack(d, &plan, 0, out);
    ddp_plan_free(&plan);
    ddp_profile_free(&rows);
    return bad;
}

static int ddp__partial_whole(ddp_ctx *d, void *self, const ddp_profile *p, ddp_plan *out)
{
    ddp_profile rows;
    int bad;

    (void)self;
    DDP__DO(ddp__rows_split(d, p, &rows));
    bad = ddp__partial_plan(d, &rows, 0, out);
    ddp_profile_free(&rows);
    return bad;
}

static int ddp__partial_adopt(ddp_ctx *d, void *self, const ddp_plan *plan, ddp_blob *out)
{
    (void)self;
    return ddp__plan_pack(d, plan, 0, out);
}

/* Sets the costs of the parts of all layers. rows: their profile */
static void ddp__rows_cost(const ddp_ctx *d, const ddp_profile *rows, ddp__message_cost *m)
{
    for (int l = 0, r = 0; l < ddp_layers(d); l++) {
        const double count = (double)ddp__gradient_count(d, l), bytes = (double)ddp__layer_bytes(d, l);
        for (int i = ddp_parts_of(d, l); i > 0; i--, r++) {
            const double part = count > 0 ? rows->params[r] / count : 1;
            m[r] = ddp__average_cost(d, rows, bytes * part, rows->comm_s[r], 0);
        }
    }
}

static ddp_status ddp__rows_exposed(const ddp_ctx *d, const ddp_profile *rows, const ddp_plan *plan,
                                    double *exposed_s, ddp_error *err)
{
    ddp__scratch room = DDP__ZEROS;
    const size_t n = (size_t)rows->layers;
    ddp__message_cost *m = (ddp__message_cost *)ddp__scratch_take(&room, n, sizeof *m);
    ddp__shared_message *x = (ddp__shared_message *)ddp__scratch_take(&room, n, sizeof *x);
    const int failed = ddp__scratch_failed(&room);

    if (!failed) {
        ddp__rows_cost(d, rows, m);
        *exposed_s = ddp__plan_exposed(rows, plan, m, ddp__messages_at_once(d), x);
    }
    ddp__scratch_free(&room);
    return failed ? ddp__fail(err, DDP_MEMORY, "out of memory for %zu messages", n) : DDP_OK;
}

/* Evaluates the plan by the shared profile, so that every rank has the same figures. */
static int ddp__rows_evaluate(ddp_ctx *d, const ddp_profile *profile, ddp__partial *x)
{
    ddp_profile rows;
    ddp_status s;
    ddp_error err;

    DDP__DO(ddp__rows_profile(d, profile, &rows));
    s = ddp_plan_evaluate(&rows, x->plan.cost, &x->plan, &err);
    if (s == DDP_OK) s = ddp__rows_exposed(d, &rows, &x->plan, &x->exposed_s, &err);
    ddp_profile_free(&rows);
    return s ? ddp__plan_failed(d, &err) : 0;
}

static int ddp__partial_fits(ddp_ctx *d, void *self, const ddp_blob *blob)
{
    ddp_plan p;

    (void)self;
    DDP__DO(ddp__plan_unpack(d, blob, &p));
    ddp_plan_free(&p);
    return 0;
}

int ddp__partial_take(ddp_ctx *d, void *self, const ddp_blob *blob, const ddp_profile *profile)
{
    ddp__partial *x = (ddp__partial *)self;
    const size_t layers = (size_t)ddp_layers(d);
    ddp_plan p;

    DDP__DO(ddp__plan_unpack(d, blob, &p));
    ddp_plan_free(&x->plan);
    x->plan = p;
    x->exposed_s = p.exposed_s;
    if (profile) DDP__DO(ddp__rows_evaluate(d, profile, x));
    if (x->due) DDP_FREE(x->due);
    x->due = (unsigned char *)ddp__calloc((size_t)p.period, (size_t)p.layers);
    if (!x->first) x->first = (int *)ddp__calloc(layers + 1, sizeof *x->first);
    if (!x->ready) x->ready = (unsigned char *)ddp__calloc(layers, 1);
    if (!x->due || !x->first || !x->ready)
        return ddp_complain(d, DDP_MEMORY, "out of memory for the plan of %d layers", p.layers);
    for (size_t l = 0; l < layers; l++) x->first[l + 1] = x->first[l] + ddp_parts_of(d, (int)l);
    for (int r = 0; r < p.layers; r++) x->due[(size_t)p.step_of[r] * (size_t)p.layers + (size_t)r] = 1;
    ddp__turn_again(d, x);
    return 0;
}

const ddp_plan *ddp__partial_view(const void *self)
{
    const ddp_plan *p = &((const ddp__partial *)self)->plan;

    return p->layers ? p : NULL;
}

static double ddp__partial_exposed(const void *self) { return ((const ddp__partial *)self)->exposed_s; }

/* A layer in parts counts once, in the step of its last part. */
int ddp__partial_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room)
{
    const ddp__partial *x = (const ddp__partial *)self;
    const ddp_plan *p = &x->plan;
    int n = 0;

    *period = p->layers ? p->period : ddp_settings(d)->period;
    for (int h = 0; p->layers && h < p->period; h++)
        for (int l = ddp_layers(d) - 1; l >= 0 && n < room; l--) {
            const ddp_transfer t = {h, l, l, l};
            if (p->step_of[x->first[l + 1] - 1] == h) out[n++] = t;
        }
    return n;
}

void ddp__partial_close(ddp_ctx *d, void *self)
{
    ddp__partial *x = (ddp__partial *)self;

    (void)d;
    ddp_plan_free(&x->plan);
    if (x->due) DDP_FREE(x->due);
    if (x->first) DDP_FREE(x->first);
    if (x->ready) DDP_FREE(x->ready);
}

/* Clipping needs the norm of all gradients, so updates are made last. A layer's transfer needs no gradient,
 * so it can start before the update. */
static ddp_status ddp__partial_settle(ddp_strategy_ops *ops, ddp_config *c, ddp_error *err)
{
    (void)ops;
    (void)err;
    if (c->clip_norm > 0) c->average.first = 1;
    return DDP_OK;
}

void ddp__strategy_dreamddp(ddp_strategy_ops *ops)
{
    ops->averages = DDP_AVERAGES_PARAMETERS;
    ops->traits = DDP_WITH_ALL | DDP_WITH_PARTS;
    ops->self_bytes = sizeof(ddp__partial);
    ops->settle = ddp__partial_settle;
    ops->forward_begin = ddp__partial_forward_begin;
    ops->backward_end = ddp__partial_backward_end;
    ops->step_end = ddp__partial_step_end;
    ops->close = ddp__partial_close;
    ops->plan_make = ddp__partial_make;
    ops->plan_whole = ddp__partial_whole;
    ops->plan_adopt = ddp__partial_adopt;
    ops->plan_take = ddp__partial_take;
    ops->plan_fits = ddp__partial_fits;
    ops->plan_view = ddp__partial_view;
    ops->plan_exposed = ddp__partial_exposed;
    ops->transfers = ddp__partial_transfers;
    ops->due = ddp__partial_due;
}
