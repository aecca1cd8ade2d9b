/* osp: the most important layers are pushed and applied at once (RS). The others are deferred: they are sent
 * during the next step's computing (ICS). Meanwhile the worker continues with predicted parameters (LGP),
 * which are corrected afterwards. An answer is the mean gradient. Every rank applies it as the server does,
 * with a bit-identical result, and thereby has the optimizer state that a prediction needs. */
#include "context/stats.h"
#include "plan/osp/osp_internal.h"
#include "strategy/server.h"

static const float ddp__lgp_past = 0.9f;  /* EMA-LGP: weight of the past means */
static const double ddp__late_most = 0.8; /* share of the model, if the loss decides */

/* Saved in checkpoints, identical on all workers. */
typedef struct ddp__late_numbers {
    double begun;             /* nonzero: the importance is known */
    double epoch, sum, count; /* of the losses of the current epoch */
    double first, last;       /* mean loss of the first epoch and of the last complete one, or 0 for none */
    double u_max, budget;     /* in bytes */
    double rate;              /* learning rate of the deferred layers */
    double sent, late;        /* bytes of all gradients, and of deferred ones */
} ddp__late_numbers;

typedef struct ddp__late {
    ddp__servers servers; /* must be the first member */
    size_t room;          /* limit of deferred floats */
    /* saved: [room] of deferred layers, at servers.late_at: old parameters, own gradients, mean gradients */
    float *old, *own, *mean;
    float **past_of;            /* [layers] EMA-LGP: running mean of mean gradients, or NULL otherwise */
    float *work, *state;        /* buffers for the largest layer: parameters, optimizer state */
    double *importance, *bytes; /* [layers] importance is saved */
    /* one bit per layer. now: sent at once (GIB). late: deferred and not yet corrected, saved. */
    unsigned char *now, *late;
    ddp__osp *split;
    ddp__late_numbers *number;
    double compute_s; /* of this step */
    int placed;       /* 1 if servers.late_at is known */
} ddp__late;

static void ddp__bit_set(unsigned char *set, int layer, int on)
{
    const int bit = 1 << layer % 8;

    set[layer / 8] = (unsigned char)(on ? set[layer / 8] | bit : set[layer / 8] & ~bit);
}

/* ---- start ---- */

/* Allocates memory for deferred layers, where the layers are. */
static int ddp__late_pools(ddp_ctx *d, ddp__late *x)
{
    const ddp_config *c = ddp_settings(d);
    const double share = c->osp.defer > 0 ? c->osp.defer : c->osp.defer < 0 ? 0 : ddp__late_most;
    const int worker = ddp_rank(d) < x->servers.workers;
    size_t most = 1, state = 1, n;

    x->room = worker ? (size_t)(share * (double)x->servers.model) : 0;
    for (int l = 0; l < ddp_layers(d); l++) {
        (void)ddp_state_of(d, l, &n);
        if (n > state) state = n;
        if (x->servers.floats[l] > most) most = x->servers.floats[l];
    }
    x->work = ddp_keep(d, DDP_NO_LAYER, "a layer", most, DDP_KEPT_NOWHERE);
    x->state = ddp_keep(d, DDP_NO_LAYER, "its state", state, DDP_KEPT_NOWHERE);
    if (!x->work || !x->state) return DDP_MEMORY;
    if (x->room == 0) return 0;
    x->old = ddp_keep(d, DDP_NO_LAYER, "late parameters", x->room, 0);
    x->own = ddp_keep(d, DDP_NO_LAYER, "late gradients", x->room, 0);
    x->mean = ddp_keep(d, DDP_NO_LAYER, "late mean gradients", x->room, 0);
    if (!x->old || !x->own || !x->mean) return DDP_MEMORY;
    for (int l = 0; l < ddp_layers(d) && c->osp.lgp == DDP_LGP_EMA; l++) {
        if (x->servers.floats[l] == 0) continue;
        x->past_of[l] = ddp_keep(d, l, "past gradients", x->servers.floats[l], 0);
        if (!x->past_of[l]) return DDP_MEMORY;
    }
    return 0;
}

static int ddp__late_lists(ddp_ctx *d, ddp__late *x)
{
    const size_t L = (size_t)ddp_layers(d), words = (size_t)x->servers.set_words;

    x->servers.late_at = (size_t *)ddp__lists(d, L, sizeof *x->servers.late_at);
    x->past_of = (float **)ddp__lists(d, L, sizeof *x->past_of);
    x->bytes = (double *)ddp__lists(d, L, sizeof *x->bytes);
    x->now = (unsigned char *)ddp__lists(d, words, 4);
    if (!x->servers.late_at || !x->past_of || !x->bytes || !x->now) return DDP_MEMORY;
    x->split = ddp__osp_open((int)L, ddp_settings(d)->osp.split);
    if (!x->split) return ddp_complain(d, DDP_MEMORY, "out of memory for the lists of %d layers", (int)L);
    for (int l = 0; l < (int)L; l++) x->bytes[l] = (double)(x->servers.floats[l] * sizeof(float));
    return 0;
}

static int ddp__osp_start(ddp_ctx *d, void *self)
{
    ddp__late *x = (ddp__late *)self;
    const size_t L = (size_t)ddp_layers(d);

    x->servers.rule = DDP_SERVING_TOGETHER;
    x->servers.ahead = -1;
    x->servers.returns_mean = 1;
    DDP__DO(ddp__servers_start(d, &x->servers));
    DDP__DO(ddp__late_lists(d, x));
    DDP__DO(ddp__late_pools(d, x));
    x->importance = (double *)(void *)ddp_keep(d, DDP_NO_LAYER, "importance", 2 * L, DDP_KEPT_HERE);
    x->number = (ddp__late_numbers *)(void *)ddp_keep(d, DDP_NO_LAYER, "deferral", sizeof *x->number / 4,
                                                      DDP_KEPT_HERE);
    x->late = (unsigned char *)ddp_keep(d, DDP_NO_LAYER, "late layers", (size_t)x->servers.set_words,
                                        DDP_KEPT_HERE);
    return x->importance && x->number && x->late ? 0 : DDP_MEMORY;
}

static void ddp__late_close(ddp_ctx *d, void *self)
{
    (void)d;
    ddp__osp_close(((ddp__late *)self)->split);
}

/* ---- budget ---- */

/* The budget follows the loss from epoch to epoch. It also follows the rate of the link and the computing
 * time, if the resulting limit changes by more than 20 %. */
static int ddp__budget_follow(ddp_ctx *d, ddp__late *x, const ddp__answer_head *told)
{
    const ddp_config *c = ddp_settings(d);
    const double model = (double)(x->servers.model * sizeof(float)), epoch = floor((double)told->epoch);
    ddp__late_numbers *n = x->number;
    double u_max = 0;
    ddp_error err;
    int again;

    if (c->osp.defer != 0) {
        n->budget = c->osp.defer > 0 ? c->osp.defer * model : 0;
        return 0;
    }
    if (told->bytes_per_s > 0 && ddp_osp_umax((double)told->bytes_per_s, 0, (double)told->compute_s,
                                              (int)told->workers, model, c->plan.paper, &u_max, &err))
        return ddp__plan_failed(d, &err);
    again = n->count > 0 && epoch > n->epoch;
    if (again) {
        n->last = n->sum / n->count;
        if (n->first == 0) n->first = n->last;
        n->sum = n->count = 0;
    }
    if (again || fabs(u_max - n->u_max) > 0.2 * n->u_max) {
        n->u_max = u_max;
        n->budget = n->first != 0 ? ddp_osp_budget(n->last, n->first, u_max) : 0;
    }
    n->epoch = epoch;
    n->sum += (double)told->loss;
    n->count++;
    return 0;
}

/* Deferred layers are stored in ascending order, in checkpoints too. */
static void ddp__late_places(ddp_ctx *d, ddp__late *x)
{
    size_t at = 0;

    for (int l = 0; l < ddp_layers(d); l++) {
        x->servers.late_at[l] = at;
        if (ddp__in_set(x->late, l)) at += x->servers.floats[l];
    }
    x->placed = 1;
}

/* Chooses the GIB of this step. All layers are sent at once until the importance is known. */
static int ddp__late_choose(ddp_ctx *d, ddp__late *x)
{
    ddp_error err;

    memset(x->now, 0xff, 4 * (size_t)x->servers.set_words);
    if (x->number->begun != 0 && ddp__osp_split(x->split, x->importance, x->bytes, x->number->budget,
                                                ddp_settings(d)->osp.split, x->now, NULL, &err))
        return ddp__plan_failed(d, &err);
    for (int l = 0; l < ddp_layers(d); l++) {
        ddp__bit_set(x->late, l, !ddp__in_set(x->now, l));
        if (ddp__in_set(x->late, l)) x->number->late += x->bytes[l];
    }
    ddp__late_places(d, x);
    x->number->sent += (double)(x->servers.model * sizeof(float));
    return 0;
}

/* ---- a deferred layer ---- */

/* x->work = the old parameters updated with `gradient`. The optimizer state does not change. */
static int ddp__late_guess(ddp_ctx *d, ddp__late *x, int l, const float *gradient)
{
    size_t n;
    const float *state = ddp_state_of(d, l, &n);

    DDP__DO(ddp_copy(d, x->work, x->old + x->servers.late_at[l], x->servers.floats[l]));
    if (state) DDP__DO(ddp_copy(d, x->state, state, n));
    return ddp_update_copy(d, l, x->work, state ? x->state : NULL, gradient, (float)x->number->rate);
}

/* y = past y + (1 - past) x, each product rounded. */
static int ddp__past_mix(ddp_ctx *d, float *y, const float *x, size_t n)
{
    DDP__DO(ddp_scale(d, y, n, ddp__lgp_past));
    return ddp_axpy(d, y, x, n, 1 - ddp__lgp_past);
}

/* LGP: saves the gradient and replaces the parameters by the prediction. */
static int ddp__late_put_off(ddp_ctx *d, ddp__late *x, int l)
{
    const size_t count = x->servers.floats[l], at = x->servers.late_at[l];
    int n;
    const ddp_piece *p = ddp_trained_of(d, l, &n), *g = ddp_gradients_of(d, l, &n);
    const float *guess = x->own + at;

    DDP__DO(ddp__pieces_read(d, g, n, x->own + at));
    DDP__DO(ddp__pieces_read(d, p, n, x->old + at));
    DDP__DO(ddp__gradients_zero(d, l));
    if (ddp_settings(d)->osp.lgp == DDP_LGP_OFF) return 0;
    if (x->past_of[l]) {
        DDP__DO(ddp_copy(d, x->mean + at, x->past_of[l], count));
        DDP__DO(ddp__past_mix(d, x->mean + at, x->own + at, count));
        guess = x->mean + at;
    }
    DDP__DO(ddp__late_guess(d, x, l, guess));
    return ddp__pieces_write(d, p, n, x->work);
}

/* After the mean has arrived, updates the old parameters with it. paper: Eq. 7 as printed, which subtracts
 * the own update from the prediction and adds the mean one, with rounding errors. */
static int ddp__late_correct(ddp_ctx *d, ddp__late *x, int l)
{
    const size_t count = x->servers.floats[l], at = x->servers.late_at[l];
    int n;
    const ddp_piece *p = ddp_trained_of(d, l, &n);
    const int literal =
        ddp_settings(d)->plan.paper && ddp_settings(d)->osp.lgp != DDP_LGP_OFF && !x->past_of[l];
    float *guess = x->own + at, *own = x->work, *now = x->mean + at, *old = x->old + at;

    ddp__bit_set(x->late, l, 0);
    if (x->past_of[l]) DDP__DO(ddp__past_mix(d, x->past_of[l], now, count));
    if (literal) DDP__DO(ddp__late_guess(d, x, l, guess));
    if (literal) DDP__DO(ddp__pieces_read(d, p, n, guess));
    DDP__DO(ddp__pieces_write(d, p, n, old));
    DDP__DO(ddp_update_late(d, l, now, (float)x->number->rate));
    if (!literal) return 0;
    DDP__DO(ddp__pieces_read(d, p, n, now));
    DDP__DO(ddp_axpy(d, own, old, count, -1));
    DDP__DO(ddp_axpy(d, now, old, count, -1));
    DDP__DO(ddp_axpy(d, guess, own, count, -1));
    DDP__DO(ddp_axpy(d, guess, now, count, 1));
    return ddp__pieces_write(d, p, n, guess);
}

/* ---- messages ---- */

/* 1 if the server has layers of the set. RS pushes to every server, as a barrier of all workers. */
static int ddp__line_has(const ddp__line *k, const unsigned char *set)
{
    for (int i = 0; i < k->layers; i++)
        if (ddp__in_set(set, k->layer[i])) return 1;
    return 0;
}

static void ddp__importance_note(ddp__late *x, const ddp__line *k)
{
    for (int i = 0; i < k->layers; i++)
        memcpy(&x->importance[k->layer[i]], k->in + DDP__HEAD_WORDS + 2 * i, sizeof *x->importance);
}

static int ddp__line_arrived(ddp_ctx *d, ddp__late *x, ddp__line *k)
{
    DDP__DO(ddp__hold_once(d, &k->push_ticket, DDP_NO_LAYER));
    if (k->pull_ticket < 0) return 0;
    DDP__DO(ddp__line_pulled(d, &x->servers, k));
    ddp__importance_note(x, k);
    return 0;
}

/* Waits for deferred layers without applying them, so that the results of the next steps do not change. */
static int ddp__osp_wait(ddp_ctx *d, void *self)
{
    ddp__late *x = (ddp__late *)self;

    for (int k = 0; k < x->servers.lines; k++) DDP__DO(ddp__line_arrived(d, x, &x->servers.line[k]));
    return 0;
}

static int ddp__late_settle(ddp_ctx *d, ddp__late *x)
{
    DDP__DO(ddp__osp_wait(d, x));
    if (!x->placed) ddp__late_places(d, x);
    for (int l = ddp_layers(d) - 1; l >= 0; l--)
        if (ddp__in_set(x->late, l)) DDP__DO(ddp__late_correct(d, x, l));
    return 0;
}

/* RS: replaces the gradients of the important layers by their mean. The servers answer when all workers have
 * pushed. */
static int ddp__late_now(ddp_ctx *d, ddp__late *x)
{
    ddp__servers *s = &x->servers;
    const int nominal = ddp_settings(d)->deterministic;
    const double begin = ddp_now();
    ddp__answer_head told;
    double floats = 0, seconds;

    DDP__DO(ddp__servers_exchange(d, s, x->now, 1));
    for (int k = 0; k < s->lines; k++) ddp__importance_note(x, &s->line[k]);
    for (int l = 0; l < ddp_layers(d); l++)
        if (ddp__in_set(x->now, l)) floats += (double)s->floats[l];
    seconds = ddp_now() - begin;
    memcpy(&told, s->line[0].in, sizeof told);
    s->compute_s = (float)(nominal ? ddp_nominal_compute_s(d) : x->compute_s);
    if (nominal)
        s->bytes_per_s = (float)(ddp_nominal_rate(d) * s->lines);
    else if (floats > 0 && seconds > 0) { /* estimates the rate for deferred layers */
        const float rate = (float)(sizeof(float) * floats * told.workers / seconds);
        s->bytes_per_s = s->bytes_per_s > 0 ? 0.8f * s->bytes_per_s + 0.2f * rate : rate;
    }
    return ddp__budget_follow(d, x, &told);
}

/* ICS: sends the deferred layers to their servers. */
static int ddp__late_send(ddp_ctx *d, ddp__late *x)
{
    ddp__servers *s = &x->servers;

    for (int k = 0; k < s->lines; k++) {
        if (!ddp__line_has(&s->line[k], x->late)) continue;
        DDP__DO(ddp__line_push(d, s, &s->line[k], x->late, x->own));
        DDP__DO(ddp__line_pull(d, s, &s->line[k], x->late, x->mean));
    }
    return 0;
}

/* ---- events ---- */

static int ddp__late_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__late *x = (ddp__late *)self;

    (void)forward;
    x->compute_s = ddp_computed_s(d);
    DDP__DO(ddp__late_settle(d, x));
    DDP__DO(ddp__late_choose(d, x));
    DDP__DO(ddp__late_now(d, x));
    x->number->begun = 1;
    x->number->rate = (double)ddp_rate(d);
    for (int l = ddp_layers(d) - 1; l >= 0; l--) {
        if (ddp__in_set(x->late, l)) {
            DDP__DO(ddp__late_put_off(d, x, l));
            continue;
        }
        if (x->past_of[l]) {
            int n;
            const ddp_piece *g = ddp_gradients_of(d, l, &n);
            DDP__DO(ddp__pieces_read(d, g, n, x->work));
            DDP__DO(ddp__past_mix(d, x->past_of[l], x->work, x->servers.floats[l]));
        }
        DDP__DO(ddp_update_layer(d, l, NULL));
    }
    DDP__DO(ddp__late_send(d, x));
    if (x->number->sent > 0) ddp_stats_of(d)->deferred_pct = 100 * x->number->late / x->number->sent;
    return ddp__served_predict(d, &x->servers, x->compute_s, x->late);
}

/* correct = eager: corrects a layer before its forward if its mean has arrived. This depends on timing, so it
 * is disabled if deterministic. */
static int ddp__late_forward_begin(ddp_ctx *d, void *self, int l)
{
    ddp__late *x = (ddp__late *)self;
    ddp__line *k = &x->servers.line[x->servers.line_of[l]];
    const ddp_config *c = ddp_settings(d);

    if (c->osp.correct != DDP_CORRECT_EAGER || c->deterministic || !x->placed || !ddp__in_set(x->late, l))
        return 0;
    if (!ddp__line_is_here(d, &x->servers, k)) return 0;
    DDP__DO(ddp__line_arrived(d, x, k));
    return ddp__late_correct(d, x, l);
}

static int ddp__late_sync_all(ddp_ctx *d, void *self)
{
    ddp__late *x = (ddp__late *)self;

    DDP__DO(ddp__late_settle(d, x));
    if (!ddp_settings(d)->plan.paper) return ddp__servers_average_buffers(d, &x->servers);
    /* Eq. 7 as printed leaves parameters that differ by rounding */
    for (int l = ddp_layers(d) - 1; l >= 0; l--) DDP__DO(ddp_average_exact(d, l));
    return ddp__servers_meet(d, &x->servers);
}

void ddp__strategy_osp(ddp_strategy_ops *ops)
{
    ddp__strategy_bsp(ops);
    ops->averages = DDP_AVERAGES_PARAMETERS;
    ops->self_bytes = sizeof(ddp__late);
    ops->start = ddp__osp_start;
    ops->forward_begin = ddp__late_forward_begin;
    ops->step_end = ddp__late_step_end;
    ops->wait = ddp__osp_wait;
    ops->sync_all = ddp__late_sync_all;
    ops->close = ddp__late_close;
}
