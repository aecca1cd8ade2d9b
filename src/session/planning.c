/* Makes a plan from a profile. The first rank of a team lets its strategy plan, all ranks use that plan, and
 * it is recomputed when the link has changed by more than 20 %. Only the strategy interprets a plan. This
 * file treats it as bytes. */
#include "context/context.h"
#include "device/device.h"
#include "exchange/events.h"
#include "exchange/exchange.h"
#include "exchange/post.h"
#include "exchange/verbs.h"
#include "measure/account.h"
#include "measure/arrivals.h"
#include "measure/measure.h"
#include "measure/pace.h"
#include "measure/timing.h"
#include "plan/link_clock.h"
#include "plan/partial/partial.h"
#include "session/part.h"
#include "session/planning.h"

enum { DDP__DRIFT_STEPS = 4 }; /* fewest steps between two decisions about a new plan */
static const double ddp__drift_limit = 0.2;

/* ---- what the strategy sends in a period ---- */

/* Lists the messages of a period of *steps steps. The caller frees *list. *list is NULL and *n is 0 if the
 * strategy does not list its messages. */
static ddp_status ddp__transfers(ddp_ctx *d, ddp_transfer **list, int *n, int *steps, ddp_error *err)
{
    int room = ddp__layers(d);

    *list = NULL;
    *n = 0;
    *steps = 1;
    for (; ddp__ops(d)->transfers; room *= 2) { /* the list was full, so there may be more messages */
        if (!ddp__reserve(*list, room)) {
            ddp__array_free(*list);
            return ddp__fail(err, DDP_MEMORY, "out of memory for %d transfers", room);
        }
        *n = ddp__ops(d)->transfers(d, ddp__self(d), steps, *list, room);
        if (*n < room || room > 1000 * ddp__layers(d)) break;
    }
    return DDP_OK;
}

int ddp__period_of(ddp_ctx *d)
{
    int steps = ddp__ops(d)->averages == DDP_AVERAGES_GRADIENTS ? 1 : ddp__cfg(d)->period;
    ddp_transfer none;

    if (!ddp__engine_of(d, 0)) return 1;
    if (ddp__ops(d)->transfers) (void)ddp__ops(d)->transfers(d, ddp__self(d), &steps, &none, 0);
    return steps > 0 ? steps : 1;
}

/* Returns the earliest start of a message, in seconds from the start of its step's backward pass. */
static double ddp__transfer_ready(const ddp_profile *p, const ddp_transfer *t)
{
    double ready = 0;

    for (int l = p->layers - 1; l >= (t->behind > 0 ? t->behind : 0); l--) ready += p->backward_s[l];
    return ready;
}

/* ---- two links: results are bit-identical over either link, because sums run in rank order ---- */

/* Assigns a message to the link that would complete it first, after the messages already assigned to that
 * link (list scheduling). */
static void ddp__transfer_link(ddp_ctx *d, const ddp_transfer *t, double ready, const ddp_link *link,
                               double *free_at)
{
    double bytes = 0, takes[2], alpha[2];
    int k;

    for (int l = t->first; l >= t->last; l--) bytes += (double)ddp__layer_bytes(d, l);
    for (k = 0; k < 2; k++) {
        takes[k] = link[k].beta_s * bytes + ddp__gap_is(d, k);
        alpha[k] = link[k].alpha_s;
    }
    k = ddp__link_first(2, free_at, ready, takes, alpha);
    (void)ddp__link_take(&free_at[k], ready, takes[k]);
    for (int l = t->first; l >= t->last; l--) ddp__unit_link_set(d, l, k);
}

static void ddp__transfer_links(ddp_ctx *d, const ddp_profile *p, const ddp_transfer *t, int n)
{
    ddp_link link[2];
    double free_at[2] = {0, 0};
    int step = 0;

    for (int k = 0; k < 2; k++)
        link[k] = ddp__link_is(d, k).beta_s > 0 ? ddp__link_is(d, k) : ddp__link_nominal(d, k);
    for (int i = 0; i < n; i++) {
        if (t[i].step != step) free_at[0] = free_at[1] = 0;
        step = t[i].step;
        ddp__transfer_link(d, &t[i], ddp__transfer_ready(p, &t[i]), link, free_at);
    }
}

static ddp_status ddp__balance_by(ddp_ctx *d, const ddp_profile *p, ddp_error *err)
{
    int32_t *links = (int32_t *)ddp__calloc((size_t)ddp__layers(d), sizeof *links);
    ddp_transfer *t;
    ddp_status s;
    int n, steps, taken = 0;

    if (!links) return ddp__fail(err, DDP_MEMORY, "out of memory for the links of %d layers", ddp__layers(d));
    s = ddp__transfers(d, &t, &n, &steps, err);
    if (s == DDP_OK) ddp__transfer_links(d, p, t, n);
    if (s == DDP_OK) ddp__array_free(t);
    for (int l = 0; l < ddp__layers(d); l++) links[l] = ddp__unit_of(d, l)->link;
    if (s == DDP_OK) s = ddp__tell(d, ddp__team_group(d), links, (size_t)ddp__layers(d) * sizeof *links, err);
    for (int l = 0; l < ddp__layers(d); l++) {
        ddp__unit_link_set(d, l, links[l] != 0);
        taken += links[l] != 0;
    }
    DDP_FREE(links);
    if (s == DDP_OK && ddp__team_place(d) == 0)
        ddp__log(ddp__log_of(d), DDP_LOG_INFO, "step %ld: %d of %d layers go over the second link",
                 ddp_step(d), taken, ddp__layers(d));
    return s;
}

ddp_status ddp__balance_links(ddp_ctx *d, const ddp_profile *p, ddp_error *err)
{
    ddp_profile nominal;
    ddp_status s;

    if (ddp_links(d) < 2 || ddp__ops(d)->traits & DDP_CHOOSES_LINKS) return DDP_OK;
    if (p) return ddp__balance_by(d, p, err);
    DDP__TRY(ddp__profile_start(d, &nominal, err));
    ddp__profile_nominal(d, &nominal);
    s = ddp__balance_by(d, &nominal, err);
    ddp_profile_free(&nominal);
    return s;
}

/* ---- prediction ---- */

/* Returns the cost of a message if a byte takes `scale` times as long as when the plan was made. */
static ddp__message_cost ddp__transfer_cost(const ddp_ctx *d, const ddp_profile *p, const ddp_transfer *t,
                                            double scale)
{
    double bytes = 0, comm = 0;
    ddp__message_cost m;

    for (int l = t->first; l >= t->last; l--) {
        bytes += (double)ddp__layer_bytes(d, l);
        comm += p->comm_s[l];
    }
    m = ddp__average_cost(d, p, bytes, comm, 0);
    if (m.takes > p->gap_s) m.takes = (m.takes - p->gap_s) * scale + p->gap_s;
    return m;
}

/* Strategies that average deltas first send message `tell` about the trained layers. Returns it if transfers
 * wait for it, or -1. Packed deltas do not. */
static int ddp__transfers_tell(const ddp_ctx *d, ddp__shared_link *link, int tell, double ready)
{
    const ddp__message_cost cost = ddp__tell_cost(d, 0);

    if (ddp__ops(d)->averages != DDP_AVERAGES_CHANGES) return -1;
    ddp__shared_send(link, tell, &cost, ready, -1, 0);
    return ddp__cfg(d)->wire == DDP_WIRE_TOPK ? -1 : tell;
}

/* Returns the exposed seconds of the n transfers of a step after its backward pass, which takes `backward`
 * seconds. Adds their seconds to *comm. x: [n + 1] workspace */
static double ddp__step_transfers(const ddp_ctx *d, const ddp_profile *p, const ddp_transfer *t, int n,
                                  double scale, double backward, ddp__shared_message *x, double *comm)
{
    const int width = ddp__messages_at_once(d);
    ddp__shared_link link;
    double end = backward;
    int after;

    ddp__shared_start(&link, x, n + 1, width);
    after = ddp__transfers_tell(d, &link, n, ddp__transfer_ready(p, t));
    for (int i = 0; i < n; i++) {
        const ddp__message_cost m = ddp__transfer_cost(d, p, &t[i], scale);
        if (m.takes > 0) ddp__shared_send(&link, i, &m, ddp__transfer_ready(p, &t[i]), after, 0);
        *comm += m.takes;
    }
    for (int i = 0; i < n; i++) end = fmax(end, ddp__shared_arrival(&link, i));
    return end - backward;
}

/* Returns the exposed seconds of a period's transfers, outside of the backward passes. *comm receives the
 * total seconds. */
static double ddp__transfers_exposed(const ddp_ctx *d, const ddp_profile *p, const ddp_transfer *t, int n,
                                     double scale, double *comm)
{
    double exposed = 0, backward = 0;

    *comm = 0;
    for (int l = 0; l < p->layers; l++) backward += p->backward_s[l];
    for (int i = 0, k; i < n; i = k) {
        for (k = i + 1; k < n && t[k].step == t[i].step;) k++;
        exposed +=
            ddp__step_transfers(d, p, t + i, k - i, scale, backward, d->session->transfer_message, comm);
    }
    return exposed;
}

/* "step 6: dreamddp sends 12 messages in 5 steps (3 2 3 2 2); a step should take 41.2 ms, 93 % of .." */
static void ddp__plan_tell(ddp_ctx *d, const ddp_transfer *t, int n, int steps)
{
    char sets[64] = "";
    size_t at = 0;

    for (int s = 0, i = 0; s < steps && at < sizeof sets - 8; s++) {
        const int from = i;
        while (i < n && t[i].step <= s) i++;
        at += (size_t)snprintf(sets + at, sizeof sets - at, "%s%d", s ? " " : "", i - from);
        if (at >= sizeof sets - 8 && s + 1 < steps) snprintf(sets + at, sizeof sets - at, " ..");
    }
    ddp__log(ddp__log_of(d), DDP_LOG_INFO,
             "step %ld: %s sends %d message%s in %d step%s (%s); a step should take %.1f ms, with "
             "%.0f %% of communication hidden",
             ddp_step(d), ddp__ops(d)->name, n, n == 1 ? "" : "s", steps, steps == 1 ? "" : "s", sets,
             1e3 * ddp__stats(d)->predicted_step_s, ddp__stats(d)->predicted_hidden_pct);
}

static const double ddp__drift_margin = 1.25; /* for transfers that the exchange waits for */

/* Returns how many of the last steps of a period an exchange about a new plan needs to arrive: only some of
 * them may wait for messages. Only messages beyond the number that may be in flight stop the exchange, and
 * strategies may send a short message with each. compute_s: compute time of a step without times that differ
 * between ranks. comm_s: time of the messages of a period. */
static double ddp__drift_takes(const ddp_ctx *d, double compute_s, double backward, double comm_s)
{
    const ddp_transfer *t = d->session->transfer;
    const double width = ddp__engine_of(d, 0) ? ddp__engine_width(ddp__engine_of(d, 0)) : DBL_MAX;
    const double messages = 2 * d->session->transfers;
    /* the exchange is an all-gather, which takes no longer than the delay of an average */
    const double need = ddp__drift_margin * d->session->profile.alpha_s +
                        (messages > width ? comm_s * (1 - width / messages) : 0);
    double passed = 0, comm = 0;
    int h = d->session->plan_steps, end = d->session->transfers;

    while (h > 0 && passed < need) {
        int from = end;
        for (h--; from > 0 && t[from - 1].step == h;) from--;
        passed += compute_s;
        if (from < end)
            passed += ddp__step_transfers(d, &d->session->profile, t + from, end - from, 1, backward,
                                          d->session->transfer_message, &comm);
        end = from;
    }
    if (passed < need && passed > 0) return ceil(need / passed * d->session->plan_steps);
    return d->session->plan_steps - h;
}

/* Stores the predicted step time in the statistics, and the list of messages for corrections of it. */
static ddp_status ddp__predict(ddp_ctx *d, ddp_error *err)
{
    const ddp_profile *p = &d->session->profile;
    double forward = 0, backward = 0, comm = 0, exposed = 0;
    int n, steps;

    ddp__array_free(d->session->transfer);
    ddp__array_free(d->session->transfer_message);
    DDP__TRY(ddp__transfers(d, &d->session->transfer, &n, &steps, err));
    if (!ddp__reserve(d->session->transfer_message, n + 1))
        return ddp__fail(err, DDP_MEMORY, "out of memory for %d transfers", n);
    for (int l = 0; l < p->layers; l++) {
        forward += p->forward_s ? p->forward_s[l] : 0;
        backward += p->backward_s[l];
    }
    if (ddp__team_size(d) > 1) exposed = ddp__transfers_exposed(d, p, d->session->transfer, n, 1, &comm);
    d->session->transfers = n;
    d->session->exposed_s = exposed;
    d->session->plan_steps = steps;
    d->session->computes_s = forward + p->between_s + backward;
    if (!ddp__ops(d)->transfers) return DDP_OK; /* without a list of messages there is no prediction */
    if (ddp__ops(d)->plan_exposed) exposed = ddp__ops(d)->plan_exposed(ddp__self(d));
    d->session->drift_takes = ddp__drift_takes(d, forward + backward, backward, comm);
    ddp__stats(d)->predicted_step_s = ddp__stats(d)->corrected_step_s =
        d->session->computes_s + exposed / steps;
    ddp__stats(d)->predicted_hidden_pct = !(comm > 0) ? 100 : exposed < comm ? 100 * (1 - exposed / comm) : 0;
    if (ddp__team_size(d) > 1 && ddp__leads(d)) ddp__plan_tell(d, d->session->transfer, n, steps);
    return DDP_OK;
}

/* Corrects the prediction: training has observed that a byte of the first link takes `scale` times as long as
 * planned. */
static void ddp__predict_again(ddp_ctx *d, double scale)
{
    double comm;
    const double exposed = ddp__transfers_exposed(d, &d->session->profile, d->session->transfer,
                                                  d->session->transfers, scale, &comm);

    ddp__stats(d)->corrected_step_s =
        fmax(d->session->computes_s,
             ddp__stats(d)->predicted_step_s + (exposed - d->session->exposed_s) / d->session->plan_steps);
}

/* ---- one plan for all ---- */

/* Header that all ranks receive before the plan. */
typedef struct ddp__plan_head {
    uint64_t size, hash;
} ddp__plan_head;

enum { DDP__PLAN_MOST = 1 << 28 }; /* bytes */

static uint64_t ddp__plan_hash(const ddp_blob *b) { return ddp__hash(DDP__HASH_START, b->bytes, b->size); }

/* Replaces *b by the plan of the first rank. In an elastic world the first rank may be lost between its two
 * messages. Then the next rank sends both again. */
static ddp_status ddp__plan_share(ddp_ctx *d, ddp_blob *b, ddp_error *err)
{
    uint64_t live;

    if (!ddp__engine_of(d, 0)) return DDP_OK;
    do {
        ddp__plan_head head;
        ddp_blob got;
        ddp_status s;

        live = ddp__live(d);
        head.size = b->size;
        head.hash = ddp__plan_hash(b);
        DDP__TRY(ddp__tell(d, ddp__team_group(d), &head, sizeof head, err));
        if (head.size > DDP__PLAN_MOST)
            return ddp__fail(err, DDP_FORMAT,
                             "rank %d sends a plan of %" PRIu64
                             " bytes; at most %d are possible: build all ranks "
                             "from one header",
                             ddp__team_root(d), head.size, (int)DDP__PLAN_MOST);
        got = ddp_blob_new((size_t)head.size);
        if (!got.bytes)
            return ddp__fail(err, DDP_MEMORY, "out of memory for a plan of %lu bytes",
                             (unsigned long)head.size);
        if (b->size) memcpy(got.bytes, b->bytes, got.size < b->size ? got.size : b->size);
        s = ddp__tell(d, ddp__team_group(d), got.bytes, got.size, err);
        if (s == DDP_OK && ddp__plan_hash(&got) == head.hash) {
            ddp_blob_free(b);
            *b = got;
            return DDP_OK;
        }
        ddp_blob_free(&got);
        DDP__TRY(s);
    } while (ddp__live(d) != live);
    return ddp__fail(err, DDP_MISMATCH, "rank %d received another plan than rank %d sent", ddp_rank(d),
                     ddp__team_root(d));
}

ddp_status ddp__plan_take(ddp_ctx *d, const ddp_blob *plan, const ddp_profile *p, ddp_error *err)
{
    ddp_blob own = ddp_blob_new(plan->size);

    if (!own.bytes) return ddp__fail(err, DDP_MEMORY, "out of memory for a plan of %zu bytes", plan->size);
    memcpy(own.bytes, plan->bytes, plan->size);
    ddp_blob_free(&d->session->plan);
    d->session->plan = own;
    d->session->plans++;
    DDP__TRY(DDP__EVENT(d, plan_take, (d, ddp__self(d), &d->session->plan, p)));
    ddp__account_period(d, ddp__period_of(d));
    return DDP_OK;
}

ddp_status ddp__plan_set(ddp_ctx *d, ddp_blob *plan, const ddp_profile *p, ddp_error *err)
{
    ddp_status s = ddp__plan_share(d, plan, err);

    if (s == DDP_OK) s = ddp__plan_take(d, plan, p, err);
    ddp_blob_free(plan);
    return s;
}

static ddp_status ddp__plan_make(ddp_ctx *d, const ddp_profile *p, ddp_error *err)
{
    ddp_blob plan = {NULL, 0};

    if (!ddp__ops(d)->plan_make) return DDP_OK;
    /* the first rank may be lost before it has sent its plan */
    if (ddp__team_place(d) == 0 || ddp__cfg(d)->elastic.min_world)
        DDP__TRY(DDP__EVENT(d, plan_make, (d, ddp__self(d), p, 1, &plan)));
    DDP__TRY(ddp__plan_set(d, &plan, p, err));
    ddp__arrivals_restart(d, DDP_NO_LAYER);
    return DDP_OK;
}

/* Passes a plan to the strategy. From a plan of the whole model passes only the rows of this stage. Frees the
 * plan. p: the own times of the rank. */
static ddp_status ddp__plan_adopt(ddp_ctx *d, ddp_plan *plan, const ddp_profile *p, ddp_error *err)
{
    ddp_blob blob = {NULL, 0};
    ddp_plan own = DDP__ZEROS;
    ddp_status s = d->session->model ? ddp__stages_take(d, plan, &own, err) : DDP_OK;

    if (s == DDP_OK) s = DDP__EVENT(d, plan_adopt, (d, ddp__self(d), d->session->model ? &own : plan, &blob));
    ddp_plan_free(&own);
    ddp_plan_free(plan);
    return s == DDP_OK ? ddp__plan_set(d, &blob, p, err) : s;
}

static ddp_status ddp__plan_from_file(ddp_ctx *d, const ddp_profile *p, ddp_error *err)
{
    ddp_plan plan;

    DDP__TRY(ddp__plan_open(d, &plan, err));
    return ddp__plan_adopt(d, &plan, p, err);
}

/* Makes one plan for all stages: the first rank of each team computes it from the same numbers. */
static ddp_status ddp__plan_of_model(ddp_ctx *d, const ddp_profile *model, const ddp_profile *p,
                                     ddp_error *err)
{
    ddp_blob none = {NULL, 0};
    ddp_plan plan;

    if (ddp__team_place(d) > 0) return ddp__plan_set(d, &none, p, err);
    DDP__TRY(ddp__stages_make(d, model, &plan, err));
    return ddp__plan_adopt(d, &plan, p, err);
}

/* Computes the transfers of a profile without measured ones from the link and the messages of this run. */
static ddp_status ddp__profile_sends(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    const ddp_link none = {0, 0};
    ddp_profile file;
    int measured = 0;

    DDP__TRY(ddp_profile_read(ddp__cfg(d)->profile_path, &none, &file, err));
    for (int l = 0; l < file.layers; l++) measured |= file.comm_s[l] > 0;
    ddp_profile_free(&file);
    if (!measured) ddp__profile_link(d, p);
    return DDP_OK;
}

/* Reads the profile, which has a row for each layer of the model. */
static ddp_status ddp__profile_from_file(ddp_ctx *d, ddp_profile *p, ddp_error *err)
{
    const int layers = d->session->cut ? d->session->cut->layers : ddp__layers(d);
    ddp_link link;

    link = ddp__link_nominal(d, 0);
    ddp__gap_set(d, 0, 0);
    ddp__gap_set(d, 1, 0);
    DDP__TRY(ddp_profile_read(ddp__cfg(d)->profile_path, &link, p, err));
    ddp__link_set(d, 0, link);
    if (p->layers != layers) {
        int rows = p->layers;
        ddp_profile_free(p);
        return ddp__fail(err, DDP_MISMATCH,
                         "the profile %s has %d rows, the model has %d layers: one row per layer is "
                         "needed",
                         ddp__cfg(d)->profile_path, rows, layers);
    }
    return d->session->cut ? DDP_OK : ddp__profile_sends(d, p, err);
}

ddp_status ddp__profile_first(ddp_ctx *d, ddp_profile *model, ddp_profile *p, ddp_error *err)
{
    if (ddp__cfg(d)->profile_path && !d->session->cut) return ddp__profile_from_file(d, p, err);
    if (ddp__cfg(d)->profile_path) {
        DDP__TRY(ddp__profile_from_file(d, model, err));
        return ddp__stages_profile(d, model, p, err);
    }
    DDP__TRY(ddp__profile_start(d, p, err));
    ddp__profile_nominal(d, p);
    return d->session->model && !ddp__cfg(d)->plan_path
               ? ddp__profile_model(d, d->session->model, d->session->cut->layers, model, err)
               : DDP_OK;
}

/* Assigns links and predicts the step time from a profile that will not change. */
static ddp_status ddp__plan_settled(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(ddp__balance_links(d, &d->session->profile, err));
    return ddp__predict(d, err);
}

/* Makes the plan without measured times. */
static ddp_status ddp__plan_unmeasured(ddp_ctx *d, const ddp_profile *model, const ddp_profile *p,
                                       ddp_error *err)
{
    ddp_blob plan = {NULL, 0};
    ddp_status s;

    if (ddp__cfg(d)->plan_path) return ddp__plan_from_file(d, p, err);
    if (d->session->model) return ddp__plan_of_model(d, model, p, err);
    if (d->session->plan_final) return ddp__plan_make(d, p, err);
    /* all ranks compute the same plan, so it needs no broadcast */
    s = DDP__EVENT(d, plan_make, (d, ddp__self(d), p, 0, &plan));
    if (s == DDP_OK) s = ddp__plan_take(d, &plan, p, err);
    ddp_blob_free(&plan);
    return s;
}

/* Makes the plan before the strategy receives the first gradient. */
static ddp_status ddp__plan_first(ddp_ctx *d, ddp_error *err)
{
    ddp_profile model = DDP__ZEROS, p = DDP__ZEROS;
    ddp_status s = ddp__profile_first(d, &model, &p, err);

    if (s == DDP_OK) {
        ddp__profile_between(d, &model);
        ddp__profile_between(d, &p);
        if (ddp_links(d) == 2) ddp__link_set(d, 1, ddp__link_nominal(d, 1));
        s = ddp__plan_unmeasured(d, &model, &p, err);
    }
    ddp_profile_free(&model);
    if (s != DDP_OK || !d->session->plan_final) {
        ddp_profile_free(&p);
        return s;
    }
    ddp_profile_free(&d->session->profile);
    d->session->profile = p;
    ddp__forward_hooks(d, ddp_has_forward(d));
    return ddp__plan_settled(d, err);
}

/* Reads the profile of a strategy that follows no plan, only for the prediction. */
static ddp_status ddp__predict_from_file(ddp_ctx *d, ddp_error *err)
{
    ddp_profile p = DDP__ZEROS;
    const ddp_status s = ddp__profile_from_file(d, &p, err);

    if (s != DDP_OK) {
        ddp_profile_free(&p);
        return s;
    }
    ddp__profile_between(d, &p);
    d->session->profile = p;
    return ddp__predict(d, err);
}

ddp_status ddp__plan_early(ddp_ctx *d, ddp_error *err)
{
    if (ddp__ops(d)->plan_make) return d->session->plan.bytes ? DDP_OK : ddp__plan_first(d, err);
    if (!ddp__cfg(d)->profile_path || !ddp__ops(d)->transfers || d->session->cut ||
        d->session->profile.layers)
        return DDP_OK;
    return ddp__predict_from_file(d, err);
}

ddp_status ddp__plan_measure(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(ddp__strategy_drain(d, err));
    DDP__TRY(ddp__device_wait(d, err));
    DDP__TRY(ddp__profile_measured(d, &d->session->profile, err));
    d->session->plan_final = 1;
    return DDP_OK;
}

ddp_status ddp__plan_measured(ddp_ctx *d, ddp_error *err)
{
    ddp__profile_link(d, &d->session->profile); /* a chosen strategy has other messages */
    ddp__follows_set(d, 1);
    DDP__TRY(ddp__plan_make(d, &d->session->profile, err));
    ddp__drift_start(d);
    d->session->drift_ticket = -1;
    DDP__TRY(ddp__plan_settled(d, err));
    ddp__account_reset(d);
    return DDP_OK;
}

ddp_status ddp__plan_again(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(ddp__strategy_drain(d, err));
    ddp__profile_link(d, &d->session->profile);
    DDP__TRY(ddp__plan_make(d, &d->session->profile, err));
    ddp__drift_start(d);
    d->session->drift_ticket = -1;
    DDP__TRY(ddp__plan_settled(d, err));
    ddp__account_reset(d);
    return DDP_OK;
}

/* ---- drift ---- */

/* Steps from one decision about a new plan to the next: one period, but not more than one in some steps. */
static long ddp__drift_steps(const ddp_ctx *d)
{
    long steps = d->session->plan_steps > ddp__cfg(d)->period ? d->session->plan_steps : ddp__cfg(d)->period;

    return steps > DDP__DRIFT_STEPS ? steps : (long)DDP__DRIFT_STEPS;
}

/* Returns the steps from the exchange about a new plan until the decision: half a period, so that the
 * decision is about recent transfers, but more if the exchange would not have arrived by then. */
static long ddp__drift_ahead(const ddp_ctx *d)
{
    const long most = ddp__drift_steps(d), least = (most + 1) / 2;
    const double steps = fmin(d->session->drift_takes, (double)most);

    /* a joining worker does not know the time of a message */
    if (ddp__cfg(d)->elastic.min_world || ddp__cfg(d)->elastic.join) return most;
    return (long)steps > least ? (long)steps : least;
}

/* Posts what this rank observed. With the lowest priority it would not arrive on a link that is never
 * idle. */
static ddp_status ddp__drift_ask(ddp_ctx *d, ddp_error *err)
{
    double bytes = ddp__mean_layer_bytes(d);
    const size_t size = (size_t)ddp__team_size(d) * sizeof *d->session->drift;
    ddp__drift_word own = DDP__ZEROS;
    ddp_piece p;
    ddp_message m = ddp__own_word(d, &p, DDP_ALL_GATHER, ddp__team_group(d), d->session->drift, size);

    m.priority = 0;
    if (ddp__ops(d)->plan_stale && ddp__ops(d)->plan_stale(d, ddp__self(d))) own.stale = 1;
    for (int link = 0; link < 2; link++) {
        const ddp_link was = ddp__link_for(d, link, bytes);
        ddp_link is = was;
        own.scale[link] = ddp__drift_window(d, link);
        is.beta_s *= own.scale[link];
        own.moved[link] = own.scale[link] > 0 && fabs(ddp_link_drift(was, is, &bytes, 1)) > ddp__drift_limit;
    }
    memset(d->session->drift, 0, size); /* a lost rank sends nothing */
    d->session->drift[ddp__team_place(d)] = own;
    return ddp__post(d, &m, 0, &d->session->drift_ticket, err);
}

/* Takes the observation of the slowest rank for each link, because all ranks wait for it. All ranks get the
 * same result. */
static void ddp__drift_join(const ddp_ctx *d, ddp__drift_word *out)
{
    memset(out, 0, sizeof *out);
    for (int r = 0; r < ddp__team_size(d); r++) {
        const ddp__drift_word *w = &d->session->drift[r];
        out->stale = fmax(out->stale, w->stale);
        for (int link = 0; link < 2; link++) {
            if (!(w->scale[link] > out->scale[link])) continue;
            out->scale[link] = w->scale[link];
            out->moved[link] = w->moved[link];
        }
    }
}

/* Makes a new plan for the changed links. */
static ddp_status ddp__drift_plan(ddp_ctx *d, const ddp__drift_word *seen, ddp_error *err)
{
    const double change[2] = {seen->moved[0] > 0 ? fabs(log(seen->scale[0])) : 0,
                              seen->moved[1] > 0 ? fabs(log(seen->scale[1])) : 0};
    const int link = change[1] > change[0];
    const ddp_link was = ddp__link_for(d, link, ddp__mean_layer_bytes(d));
    ddp_link is = was;

    if (seen->scale[link] > 0) is.beta_s *= seen->scale[link];
    if (!(change[link] > 0))
        ddp__log(ddp__log_of(d), DDP_LOG_INFO, "step %ld: strategy %s plans again", ddp_step(d),
                 ddp__ops(d)->name);
    else
        ddp__log(ddp__log_of(d), DDP_LOG_INFO,
                 "step %ld: averaging a layer%s now takes %.2f ms + %.1f ns per byte (was "
                 "%.2f ms + %.1f ns): planning again",
                 ddp_step(d), link ? " over the second link" : "", 1e3 * is.alpha_s, 1e9 * is.beta_s,
                 1e3 * was.alpha_s, 1e9 * was.beta_s);
    for (int k = 0; k < 2; k++)
        if (seen->scale[k] > 0) ddp__link_scale(d, k, seen->scale[k]);
    ddp__stats(d)->replans++;
    ddp__note_add(d, DDP_NOTE_REPLAN, -1, was.alpha_s + was.beta_s * ddp__mean_layer_bytes(d),
                  is.alpha_s + is.beta_s * ddp__mean_layer_bytes(d));
    return ddp__plan_again(d, err);
}

/* Reads the exchange in flight. Corrects the prediction, or makes a new plan. */
static ddp_status ddp__drift_read(ddp_ctx *d, ddp_error *err)
{
    ddp__drift_word seen;

    DDP__TRY(ddp__post_wait(d, 0, d->session->drift_ticket, err));
    d->session->drift_ticket = -1;
    ddp__drift_join(d, &seen);
    for (int link = 0; link < 2; link++)
        if (seen.scale[link] > 0) ddp__link_followed_set(d, link, seen.scale[link]);
    if (seen.scale[0] > 0) ddp__predict_again(d, seen.scale[0]);
    return seen.stale + seen.moved[0] + seen.moved[1] > 0 ? ddp__drift_plan(d, &seen, err) : DDP_OK;
}

/* At the end of each period the ranks decide about a new plan, from the observations that they exchanged. */
ddp_status ddp__drift_step(ddp_ctx *d, ddp_error *err)
{
    const long steps = ddp__drift_steps(d), left = steps - ddp_step(d) % steps;

    if (!ddp__engine_of(d, 0) || ddp__has_nccl(d)) return DDP_OK;
    if (left == steps && !ddp__ops(d)->plan_make) {
        const double scale = ddp__drift_window(d, 0);
        if (!(scale > 0)) return DDP_OK;
        ddp__link_followed_set(d, 0, scale);
        ddp__predict_again(d, scale);
        return DDP_OK;
    }
    if (left == steps && d->session->drift_ticket >= 0) DDP__TRY(ddp__drift_read(d, err));
    return ddp__ops(d)->plan_make && left == ddp__drift_ahead(d) ? ddp__drift_ask(d, err) : DDP_OK;
}
