/* Lists the state of a context for checkpoints and joining workers. */
#include "context/context.h"
#include "exchange/average.h"
#include "exchange/events.h"
#include "exchange/exchange.h"
#include "exchange/verbs.h"
#include "measure/measure.h"
#include "measure/timing.h"
#include "member/rest.h"
#include "session/keep.h"
#include "session/part.h"
#include "session/planning.h"

enum { DDP__N_STEP, DDP__N_TAKEN, DDP__N_FINAL, DDP__N_NUMBERS, DDP__SMALL = 7 };

/* ---- values of the model's layers that a worker has ---- */

/* Position in the list of a layer's shares. */
typedef struct ddp__share_walk {
    size_t at[2]; /* values of its parameters and of its buffers so far */
    int piece;    /* piece that the optimizer updates as one */
    size_t in_piece, trained, state;
} ddp__share_walk;

/* Returns the offset, within the whole layer, of value `at` of unit l's parameters or buffers. Reduces *n to
 * the number of values that are contiguous there too. */
static size_t ddp__share_from(const ddp_ctx *d, int l, int buffers, size_t at, size_t *n)
{
    const ddp__cut *c = d->session->cut;

    for (int i = 0; c && i < c->spans; i++) {
        const ddp__cut_span *s = &c->span[i];
        if (s->unit != l || s->buffers != buffers || at < s->at || at >= s->at + s->count) continue;
        if (*n > s->at + s->count - at) *n = s->at + s->count - at;
        return s->from + (at - s->at);
    }
    return at;
}

/* Stores the shares of a block in out, unless it is NULL. Returns their number. */
static int ddp__shares_block(const ddp_ctx *d, int l, int b, ddp__share_walk *w, ddp__share *out)
{
    const ddp__unit *u = ddp__unit_of(d, l);
    const ddp_block *k = &u->block[b];
    const int buffers = k->kind == DDP_BUFFERS;
    size_t at = 0, n;
    int count = 0;

    for (; at < k->count; at += n, w->at[buffers] += n) {
        ddp__share h = {
            l, b, d->session->cut ? d->session->cut->whole[l] : l, buffers, 0, (int64_t)at, 0, -1, 0, 0, 0};
        n = k->count - at;
        h.from = (int64_t)ddp__share_from(d, l, buffers, w->at[buffers], &n);
        if (!buffers && !ddp__block_is_frozen(k)) {
            const size_t whole = u->trains[w->piece].count;
            const int states = ddp__piece_state(d, u, w->piece);
            if (n > whole - w->in_piece) n = whole - w->in_piece;
            h.trained = (int64_t)w->trained;
            h.state = (int64_t)(w->state + w->in_piece);
            h.states = states;
            h.stride = (int64_t)whole;
            w->trained += n;
            w->in_piece += n;
            if (w->in_piece == whole) {
                w->state += whole * (size_t)states;
                w->in_piece = 0;
                w->piece++;
            }
        }
        h.count = (int64_t)n;
        if (out) out[count] = h;
        count++;
    }
    return count;
}

/* Stores the shares of a started session in out, unless it is NULL. Returns their number. */
static int ddp__shares(const ddp_ctx *d, ddp__share *out)
{
    int count = 0;

    for (int l = 0; l < ddp__layers(d); l++) {
        ddp__share_walk w;
        memset(&w, 0, sizeof w);
        for (int b = 0; b < ddp__count(ddp__unit_of(d, l)->block); b++)
            count += ddp__shares_block(d, l, b, &w, out ? out + count : NULL);
    }
    return count;
}

/* ---- the list ---- */

/* Size of a profile as numbers: each layer's forward and backward times, then the link's alpha, beta and
 * gap. */
static size_t ddp__profile_numbers(int layers) { return 2 * (size_t)layers + 3; }

/* Checks a plan before the parameters are changed, so that a rejected plan leaves them unchanged. */
static ddp_status ddp__plan_is_sane(ddp_ctx *d, const ddp__worker *s)
{
    const ddp__tensor *plan = ddp__worker_find(s, "plan");
    ddp_blob blob;

    blob.bytes = (unsigned char *)plan->data;
    blob.size = plan->count;
    if (!plan->count) return DDP_OK;
    return DDP__EVENT(d, plan_fits, (d, ddp__self(d), &blob));
}

static ddp_status ddp__worker_is_sane(const ddp__worker *s, long step, const char *path, ddp_error *err)
{
    const int64_t *number = (const int64_t *)ddp__worker_find(s, "numbers")->data;
    const ddp__tensor *profile = ddp__worker_find(s, "profile");

    if ((step >= 0 && number[DDP__N_STEP] != step) || number[DDP__N_STEP] < 0 ||
        number[DDP__N_TAKEN] < number[DDP__N_STEP] ||
        (profile->count && profile->count != ddp__profile_numbers(s->layers)))
        return ddp__fail(
            err, DDP_FORMAT,
            "%.200s: its step or its profile differs from the manifest: take an older checkpoint", path);
    return s->takes_plan ? ddp__plan_is_sane((ddp_ctx *)s->owner, s) : DDP_OK;
}

/* Adds the arrays of a layer to the list. told: flag for parameters and optimizer state that are equal on all
 * workers between steps. */
static void ddp__worker_layer(ddp_ctx *d, ddp__worker *s, int l, int told)
{
    const int there = ddp__backend_of(d) ? DDP__WORKER_THERE : 0;
    const ddp__unit *u = ddp__unit_of(d, l);

    for (int b = 0; b < ddp__count(u->block); b++)
        ddp__worker_add(s, "layer", l, b, u->block[b].params, u->block[b].count,
                        told | there | (u->block[b].kind == DDP_BUFFERS ? DDP__WORKER_OWN : 0));
    if (u->state_count) ddp__worker_add(s, "state", l, -1, u->state, u->state_count, told | there);
    /* the layer's last average. It may have changed since a joining worker's clone was taken. */
    if (ddp__base_of(d, l))
        ddp__worker_add(s, "base", l, -1, ddp__base_of(d, l), u->trained, there | DDP__WORKER_TOLD);
    if (ddp__residual_memory(d, l) && u->trained)
        ddp__worker_add(s, "residual", l, -1, ddp__residual_memory(d, l), u->trained,
                        DDP__WORKER_OWN | (ddp__coded_on_device(d) ? there : 0));
}

/* Upper bound of the size of a plan, so that received data never determine the size of an allocation. */
static size_t ddp__plan_most(const ddp_ctx *d)
{
    return 65536 + 16 * (size_t)ddp__layers(d) * ((size_t)ddp__cfg(d)->period + 16);
}

static ddp_status ddp__worker_values(ddp_ctx *d, ddp__worker *s, int told, ddp_error *err)
{
    const size_t L = (size_t)ddp__layers(d), times = ddp__profile_numbers(ddp__layers(d));
    const int shares = ddp__shares(d, NULL);
    int64_t *number, *updates, *random;
    ddp__share *share;
    unsigned char *plan;
    double *profile;
    float *lr;

    number = (int64_t *)ddp__worker_small(s, "numbers", DDP_ST_I64, DDP__N_NUMBERS, 0, DDP__WORKER_TOLD);
    updates = (int64_t *)ddp__worker_small(s, "updates", DDP_ST_I64, L, 0, told);
    random = (int64_t *)ddp__worker_small(s, "random", DDP_ST_I64, ddp__passes_count(d), 0, 0);
    plan = (unsigned char *)ddp__worker_small(s, "plan", DDP_ST_U8, d->session->plan.size, ddp__plan_most(d),
                                              DDP__WORKER_TOLD | DDP__WORKER_BLOB);
    profile = (double *)ddp__worker_small(s, "profile", DDP_ST_F64, ddp__follows(d) ? times : 0, times,
                                          DDP__WORKER_TOLD | DDP__WORKER_BLOB | DDP__WORKER_OWN);
    lr = (float *)ddp__worker_small(s, "lr", DDP_ST_F32, 1, 0, DDP__WORKER_TOLD);
    share = (ddp__share *)ddp__worker_small(s, "shares", DDP_ST_I64, (size_t)shares * DDP__SHARE_WORDS, 0, 0);
    if (!share || !number || !updates || !random || !plan || !profile || !lr)
        return ddp__fail(err, DDP_MEMORY, "out of memory for the state of %d layers", ddp__layers(d));
    ddp__shares(d, share);
    s->cut = ddp__hash(DDP__HASH_START, share, (size_t)shares * sizeof *share);
    number[DDP__N_STEP] = ddp_step(d);
    number[DDP__N_TAKEN] = ddp_taken(d);
    number[DDP__N_FINAL] = d->session->plan_final;
    for (int l = 0; l < ddp__layers(d); l++) updates[l] = ddp_updates_of(d, l);
    ddp__passes_get(d, random);
    if (d->session->plan.size) memcpy(plan, d->session->plan.bytes, d->session->plan.size);
    *lr = ddp__lr(d);
    if (!ddp__follows(d)) return DDP_OK;
    memcpy(profile, d->session->profile.forward_s, L * sizeof *profile);
    memcpy(profile + L, d->session->profile.backward_s, L * sizeof *profile);
    profile[2 * L] = ddp__link_is(d, 0).alpha_s;
    profile[2 * L + 1] = ddp__link_is(d, 0).beta_s;
    profile[2 * L + 2] = ddp__gap_is(d, 0);
    return DDP_OK;
}

void ddp__worker_turns(ddp_ctx *d, ddp__worker *s)
{
    const ddp_plan *plan = ddp__ops(d)->plan_view ? ddp__ops(d)->plan_view(ddp__self(d)) : NULL;
    const int L = ddp__layers(d), rows = plan && plan->layers == L;

    for (int i = 0; i < s->tensors; i++) {
        ddp__tensor *t = &s->tensor[i];
        const long period = rows && plan->period > 0 ? plan->period : 1;
        const long at = rows && t->layer && t->l < L ? plan->step_of[t->l] : 0;
        t->turn = (at + period - ddp_step(d) % period) % period * L + L - t->l;
    }
}

ddp_status ddp__worker_list(ddp_ctx *d, ddp__worker *s, ddp_error *err)
{
    const int told = ddp__ops(d)->averages == DDP_AVERAGES_GRADIENTS ? DDP__WORKER_TOLD : 0;
    const int there = ddp__backend_of(d) ? DDP__WORKER_THERE : 0;
    int room = DDP__SMALL + ddp__count(ddp__kept_list(d)) + d->session->programs + 1;

    for (int l = 0; l < ddp__layers(d); l++) room += ddp__count(ddp__unit_of(d, l)->block) + 3;
    DDP__TRY(ddp__later_wait(d, DDP__REST_ALL, err));
    DDP__TRY(ddp__worker_open(s, ddp__layers(d), room, err));
    s->host = ddp__host_of(d);
    ddp__coded_fold(d);
    s->engine = ddp__engine_of(d, 0);
    s->rank = ddp_rank(d);
    s->world = ddp_world(d);
    s->hub = ddp__hub_of(d);
    s->step = ddp_step(d);
    s->strategy = ddp__ops(d)->name;
    s->optimizer = ddp__optimizer(d)->name;
    s->period = ddp__cfg(d)->period;
    if (d->session->chosen.strategy) {
        s->overlap = ddp__overlap_name(ddp__cfg(d)->outer.overlap);
        s->wire = ddp_wire_name(ddp__cfg(d)->wire);
    }
    s->model = ddp__model_hash(d);
    s->run = d->session->saves_as;
    s->check = ddp__worker_is_sane;
    s->owner = d;
    s->part =
        (size_t)(ddp__cfg(d)->elastic.bytes / 64 * 64); /* rounded to 64 bytes, the unit of allocation */
    s->takes_plan = 1;
    s->whole = d->session->cut ? d->session->cut->name : s->layer;
    s->wholes = d->session->cut ? d->session->cut->layers : ddp__layers(d);
    s->copies = d->session->cut ? d->session->cut->copies : ddp_world(d);
    s->copy = d->session->cut ? d->session->cut->copy : ddp_rank(d);
    for (int l = 0; l < ddp__layers(d); l++) s->layer[l] = ddp__unit_of(d, l)->name;
    DDP__TRY(ddp__worker_values(d, s, told, err));
    for (int l = 0; l < ddp__layers(d); l++) ddp__worker_layer(d, s, l, told);
    for (int i = 0; i < ddp__count(ddp__kept_list(d)); i++) {
        const ddp__own_state *k = &ddp__kept_list(d)[i];
        const int own = k->equal & DDP_KEPT_DRAINED ? 0 : k->equal & 1 ? DDP__WORKER_TOLD : DDP__WORKER_OWN;
        const int enters = (k->equal & DDP_KEPT_TOLD ? DDP__WORKER_TOLD : 0) |
                           (k->equal & DDP_KEPT_LATER ? DDP__WORKER_LATER : 0);
        if (k->equal & DDP_KEPT_NOWHERE) continue;
        ddp__worker_add(s, k->name, k->layer < 0 ? ddp__layers(d) : k->layer, -1, k->data, k->count,
                        own | enters | (k->equal & DDP_KEPT_HERE ? 0 : there));
    }
    if (d->session->cut && d->session->cut->residuals)
        ddp__worker_add(s, DDP__EDGE_RESIDUAL, ddp__layers(d), -1, d->session->cut->residual,
                        d->session->cut->residuals, DDP__WORKER_OWN);
    return DDP_OK;
}

ddp_status ddp__worker_apply(ddp_ctx *d, const ddp__worker *s, int keep_plan, ddp_error *err)
{
    const int64_t *number = (const int64_t *)ddp__worker_find(s, "numbers")->data,
                  *updates = (const int64_t *)ddp__worker_find(s, "updates")->data,
                  *random = (const int64_t *)ddp__worker_find(s, "random")->data;
    const ddp__tensor *plan = ddp__worker_find(s, "plan");
    ddp_blob blob;

    ddp__step_set(d, (long)number[DDP__N_STEP], number[DDP__N_TAKEN]);
    d->session->saves_as = s->run;
    ddp_set_lr(d, *(const float *)ddp__worker_find(s, "lr")->data);
    for (int l = 0; l < ddp__layers(d); l++) ddp__updates_set(d, l, (long)updates[l]);
    ddp__passes_set(d, random);
    if (keep_plan && number[DDP__N_FINAL]) d->session->plan_final = 1;
    d->session->timed_from = ddp_step(d);
    if (!d->session->plan_final) ddp__profile_for(d, ddp_step(d)); /* the plan has still to be measured */
    if (!keep_plan || !plan->count) return DDP_OK;
    blob.bytes = (unsigned char *)plan->data;
    blob.size = plan->count;
    return ddp__plan_take(d, &blob, NULL, err);
}

ddp_status ddp__worker_follow(ddp_ctx *d, const ddp__worker *s, ddp_error *err)
{
    const ddp__tensor *t = ddp__worker_find(s, "profile");
    const double *profile = (const double *)t->data;
    const size_t L = (size_t)ddp__layers(d);
    ddp_link link = DDP__ZEROS;

    ddp__follows_set(d, t->count != 0);
    d->session->drift_ticket = -1;
    if (!ddp__follows(d)) return DDP_OK;
    ddp_profile_free(&d->session->profile);
    DDP__TRY(ddp__profile_start(d, &d->session->profile, err));
    memcpy(d->session->profile.forward_s, profile, L * sizeof *profile);
    memcpy(d->session->profile.backward_s, profile + L, L * sizeof *profile);
    link.alpha_s = profile[2 * L];
    link.beta_s = profile[2 * L + 1];
    ddp__link_set(d, 0, link);
    ddp__gap_set(d, 0, profile[2 * L + 2]);
    ddp__profile_between(d, &d->session->profile);
    return DDP_OK;
}
