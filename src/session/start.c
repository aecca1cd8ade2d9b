/* The start of a session: layers are frozen, compared across ranks and made equal. */
#include "config/settings.h"
#include "context/clock.h"
#include "context/context.h"
#include "device/device.h"
#include "exchange/average.h"
#include "exchange/events.h"
#include "exchange/exchange.h"
#include "exchange/post.h"
#include "exchange/verbs.h"
#include "measure/account.h"
#include "measure/measure.h"
#include "session/admission.h"
#include "session/part.h"
#include "session/planning.h"
#include "session/serve.h"
#include "session/start.h"

/* ---- what lies in two layers: the same arrays once more are a tied weight, anything else is a mistake
 * ---- */

typedef struct ddp__array {
    const float *from, *to;
    int layer, block, gradients;
} ddp__array;

static int ddp__array_order(const void *a, const void *b)
{
    const ddp__array *x = (const ddp__array *)a, *y = (const ddp__array *)b;

    if (x->from != y->from) return (uintptr_t)x->from < (uintptr_t)y->from ? -1 : 1;
    if (x->gradients != y->gradients) return x->gradients - y->gradients;
    return x->layer != y->layer ? x->layer - y->layer : x->block - y->block;
}

/* All arrays of all layers, by address; how many. */
static int ddp__arrays(const ddp_ctx *d, ddp__array *out)
{
    int n = 0;

    for (int l = 0; l < ddp__layers(d); l++)
        for (int b = 0; b < ddp__count(d->unit[l].block); b++) {
            const ddp_block *k = &d->unit[l].block[b];
            const ddp__array params = {k->params, k->params + k->count, l, b, 0},
                             grads = {k->grads, k->grads + k->count, l, b, 1};
            out[n++] = params;
            if (k->grads) out[n++] = grads;
        }
    qsort(out, (size_t)n, sizeof *out, ddp__array_order);
    return n;
}

/* A tied weight belongs to the layer that is first in the forward, and so last in the backward. */
static void ddp__arrays_tie(ddp_ctx *d, const ddp__array *x, int n)
{
    for (int i = 1, kept = 0; i < n; i++) {
        const ddp_block *a = &d->unit[x[kept].layer].block[x[kept].block];
        ddp_block *b = &d->unit[x[i].layer].block[x[i].block];
        if (!x[i].gradients && a != b && a->params == b->params && a->grads == b->grads &&
            a->count == b->count && a->kind == b->kind)
            b->count = 0;
        else
            kept = i;
    }
    for (int l = 0; l < ddp__layers(d); l++) {
        ddp__unit *u = &d->unit[l];
        int left = 0;
        for (int b = 0; b < ddp__count(u->block); b++)
            if (u->block[b].count) u->block[left++] = u->block[b];
        stbds_arrsetlen(u->block, left);
    }
}

static ddp_status ddp__spans_settle(ddp_ctx *d, ddp_error *err)
{
    const ddp__array *far; /* that which reaches furthest so far */
    ddp__array *all;
    int n = 0;

    for (int l = 0; l < ddp__layers(d); l++) n += 2 * ddp__count(d->unit[l].block);
    all = (ddp__array *)ddp__calloc((size_t)n + 1, sizeof *all);
    if (!all) return ddp__fail(err, DDP_MEMORY, "out of memory for the arrays of %d layers", ddp__layers(d));
    ddp__arrays_tie(d, all, ddp__arrays(d, all));
    n = ddp__arrays(d, all);
    err->code = DDP_OK;
    for (int i = 1, k = 0; i < n; i++) {
        const ddp__array *x = &all[i];
        far = &all[k];
        if (x->from < far->to) {
            ddp__fail(
                err, DDP_ARG,
                "%s of layer %d (%s) and %s of layer %d (%s) overlap by %zu bytes: give each value once; "
                "a weight that two layers share has the same params, grads and count in both",
                far->gradients ? "gradients" : "parameters", far->layer, d->unit[far->layer].name,
                x->gradients ? "gradients" : "parameters", x->layer, d->unit[x->layer].name,
                (size_t)((x->to < far->to ? x->to : far->to) - x->from) * sizeof(float));
            break;
        }
        if (x->to > far->to) k = i;
    }
    DDP_FREE(all);
    return err->code;
}

/* ---- memory of the layers ---- */

/* The first matrix of a block at or behind `at`; NULL: none, or the rule takes all alike. */
static const ddp_matrix *ddp__next_matrix(const ddp_ctx *d, const ddp__unit *u, const ddp_block *k, size_t at)
{
    const ddp_matrix *next = NULL, *x = u->matrix;

    for (; ddp__optimizer(d)->matrix_state && x < u->matrix + u->matrices; x++)
        if (x->params >= k->params + at && x->params < k->params + k->count &&
            (!next || x->params < next->params))
            next = x;
    return next;
}

/* A block as the optimizer takes it: each of its matrices, and what lies around them. */
static void ddp__unit_trains(const ddp_ctx *d, ddp__unit *u, const ddp_block *k)
{
    size_t at = 0, n;

    for (; at < k->count; at += n) {
        const ddp_matrix *x = ddp__next_matrix(d, u, k, at);
        n = (x ? (size_t)(x->params - k->params) : k->count) - at;
        if (n == 0) {
            u->shape[u->gradients] = *x;
            n = x->rows * x->columns;
        }
        u->trains[u->gradients].data = k->params + at;
        u->gradient[u->gradients].data = k->grads + at;
        u->trains[u->gradients].count = u->gradient[u->gradients].count = n;
        u->state_count += n * (size_t)ddp__piece_state(d, u, u->gradients++);
    }
    u->trained += k->count;
}

/* Room for the lists, and another where what averaging moves does not always go whole. */
static ddp_status ddp__unit_lists(ddp_ctx *d, ddp__unit *u, ddp_error *err)
{
    const size_t room = (size_t)(ddp__count(u->block) + 2 * u->matrices + 1);
    const int arrays = ddp__cfg(d)->average.state ? ddp__optimizer(d)->state_per_param : 0;
    int parts;

    u->shape = (ddp_matrix *)ddp__scratch_take(ddp__lists_of(d), room, sizeof *u->shape);
    u->gradient = (ddp_piece *)ddp__scratch_take(ddp__lists_of(d), 4 * room, sizeof *u->gradient);
    if (ddp__scratch_failed(ddp__lists_of(d)))
        return ddp__fail(err, DDP_MEMORY, "%s%s: out of memory", ddp__layer_prefix(u->name), u->name);
    u->trains = u->gradient + room;
    u->average = u->trains + room;
    u->other = u->average + room;
    for (int b = 0; b < ddp__count(u->block); b++) {
        const ddp_block *k = &u->block[b];
        const ddp_piece values = {{k->params}, k->count};
        if (k->kind == DDP_PARAMS && !k->grads) continue; /* frozen: equal from the start on */
        u->average[u->averages++] = values;
        u->count += k->count;
        if (k->kind == DDP_PARAMS)
            ddp__unit_trains(d, u, k);
        else
            u->other[u->others++] = values;
    }
    u->forward_step = -1;
    parts = ddp_parts_of(d, (int)(u - d->unit));
    if (parts == 1 &&
        !(u->state_count && arrays &&
          (ddp__cfg(d)->average.state_period[0] > 1 || ddp__cfg(d)->average.state_period[1] > 1)))
        return DDP_OK;
    u->moved = (ddp_piece *)ddp__scratch_take(ddp__lists_of(d), ddp__unit_pieces(d, u), sizeof *u->moved);
    return u->moved ? DDP_OK
                    : ddp__fail(err, DDP_MEMORY, "%s%s: out of memory", ddp__layer_prefix(u->name), u->name);
}

static ddp_status ddp__unit_state(ddp_ctx *d, ddp__unit *u, ddp_error *err)
{
    if (u->state_count == 0) return DDP_OK;
    u->state = (float *)ddp__host_alloc(ddp__host_of(d), u->state_count * sizeof(float));
    if (!u->state)
        return ddp__fail(err, DDP_MEMORY, "%s%s: out of memory for %zu bytes of optimizer state",
                         ddp__layer_prefix(u->name), u->name, u->state_count * sizeof(float));
    if (ddp__cfg(d)->average.state) {
        const ddp_piece state = {{u->state}, u->state_count};
        u->average[u->averages++] = u->other[u->others++] = state;
    }
    return DDP_OK;
}

/* Muon's room, and what it cannot do. */
/* A system that promises more memory than it has would end the process later, without a word. */
static ddp_status ddp__session_fits(const ddp_ctx *d, ddp_error *err)
{
    const double total = ddp__memory_total();
    double state = 0, graphs = 0;
    const ddp__owned *o;

    if (ddp__backend_of(d) || d->host.allocator.alloc || !(total > 0)) return DDP_OK;
    for (int l = 0; l < ddp__layers(d); l++) state += (double)d->unit[l].state_count * sizeof(float);
    for (o = d->host.owned; o; o = o->next) graphs += o->bytes;
    if (state + graphs <= total) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY,
                     "out of memory: %.0f bytes of optimizer state (%.40s) beside %.0f of parameters, "
                     "gradients and activations; this process may use %.0f: use a smaller model, or an "
                     "optimizer with less "
                     "state",
                     state, ddp__optimizer(d)->name, graphs, total);
}

static ddp_status ddp__session_memory(ddp_ctx *d, ddp_error *err)
{
    for (int l = 0; l < ddp__layers(d); l++) DDP__TRY(ddp__unit_lists(d, &d->unit[l], err));
    DDP__TRY(ddp__session_fits(d, err));
    for (int l = 0; l < ddp__layers(d); l++) DDP__TRY(ddp__unit_state(d, &d->unit[l], err));
    DDP__TRY(ddp__muon_open(d, d->session->cut != NULL, err));
    DDP__TRY(ddp__coded_memory(d, err));
    DDP__TRY(ddp__posted_open(d, err));
    DDP__TRY(ddp__clock_memory(d, err));
    return ddp__measure_start(d, err);
}

/* ---- teams ---- */

/* A team are the ranks that register the same layers, and plan and measure together: those of the group of
 * all of a rank's layers; all ranks where layers belong to none or to several. */
static ddp_status ddp__team_find(ddp_ctx *d, ddp_error *err)
{
    ddp_config checked = *ddp__cfg(d);
    int i, groups = 0, place = ddp_rank(d), team = d->unit[0].group;

    for (int l = 0; l < ddp__layers(d); l++) {
        const int group = d->unit[l].group,
                  *ranks = ddp__engine_of(d, 0) ? ddp__engine_group_ranks(ddp__engine_of(d, 0), group) : NULL;
        int n = ranks ? ddp__engine_group_size(ddp__engine_of(d, 0), group) : 0;
        for (i = 0; i < n && ranks[i] != ddp_rank(d); i++) {
        }
        if (group && (i == n || !ranks))
            return ddp__fail(err, DDP_ARG,
                             "layer %d (%s) belongs to group %d, which rank %d is not in: make the group "
                             "with ddp_group, and leave the layer to its ranks",
                             l, d->unit[l].name, group, ddp_rank(d));
        if (group) groups = 1;
        if (group != d->unit[0].group) d->session->mixed = 1;
    }
    if (ddp__norm_is_shared(d)) checked.clip_norm = 0; /* which a pipeline knows */
    DDP__TRY(ddp__goes_check(&checked, ddp__ops(d), groups, err));
    if (d->session->mixed) team = 0;
    ddp__team_set(d, team, team ? ddp__engine_group_size(ddp__engine_of(d, 0), team) : ddp_world(d),
                  ddp__group_root(d, team), place);
    for (i = 0; i < ddp__team_size(d); i++)
        if (ddp__team_rank(d, i) == ddp_rank(d)) place = i;
    ddp__team_set(d, team, ddp__team_size(d), ddp__team_root(d), place);
    return DDP_OK;
}

/* Everybody starts from the parameters of rank 0, or of the first rank of a layer's group, buffers
 * and frozen layers included. */
ddp_status ddp__share_parameters(ddp_ctx *d, ddp_error *err)
{
    for (int l = 0; l < ddp__layers(d); l++)
        for (int b = 0; b < ddp__count(d->unit[l].block); b++) {
            const ddp_block *k = &d->unit[l].block[b];
            ddp_piece p;
            ddp_message m = ddp__own_word(d, &p, DDP_BROADCAST, d->unit[l].group, k->params, k->count);
            m.bytes = 0;
            m.layer = DDP__ALL_VALUES;
            DDP__TRY(ddp__run(d, &m, 1, err));
        }
    return DDP_OK;
}

/* The longest message of a session is all its layers at once. */
static ddp_status ddp__guard_layers(ddp_ctx *d, ddp_error *err)
{
    size_t count = 0;

    for (int l = 0; l < ddp__layers(d); l++)
        count += d->unit[l].count + (ddp__cfg(d)->average.state ? d->unit[l].state_count : 0);
    if (ddp__second_of(d)) DDP__TRY(ddp__engine_guard(ddp__second_of(d), count, err));
    return ddp__engine_guard(ddp__engine_of(d, 0), count, err);
}

/* Without this, ranks whose program forgot to give the gradients would part in silence. */
static ddp_status ddp__gradients_given(const ddp_ctx *d, ddp_error *err)
{
    int frozen = 0;

    if (ddp__ops(d)->averages != DDP_AVERAGES_GRADIENTS || !ddp__engine_of(d, 0)) return DDP_OK;
    for (int l = 0; l < ddp__layers(d); l++) {
        if (d->unit[l].gradients) return DDP_OK;
        frozen += ddp__count(d->unit[l].block);
    }
    if (ddp__team_group(d) && !frozen) return DDP_OK; /* a stage of a pipeline that has nothing to train */
    return ddp__fail(err, DDP_USAGE,
                     "strategy %s averages gradients, and none of %d layers has any: give them in "
                     "ddp_layer.grads, or choose a strategy that averages parameters",
                     ddp__ops(d)->name, ddp__layers(d));
}

/* A joining worker whose optimizer began at zero would take other steps than the members, without an
 * error. */
static ddp_status ddp__own_state_given(const ddp_ctx *d, ddp_error *err)
{
    if (ddp__optimizer(d)->update || d->session->programs ||
        (!ddp__cfg(d)->elastic.join && d->met >= ddp_world(d)))
        return DDP_OK;
    return ddp__fail(err, DDP_UNSUPPORTED,
                     "%s with your own update: a joining worker needs the state of your optimizer: register "
                     "it with ddp_add_state before ddp_set_optimizer, or leave join and max_world 0",
                     ddp__cfg(d)->elastic.join ? "join" : "max_world");
}

ddp_status ddp__session_start(ddp_ctx *d, ddp_error *err)
{
    const int joins = d->session->joiner != NULL;

    if (ddp__started(d)) return DDP_OK;
    if (ddp__layers(d) == 0)
        return ddp__fail(err, DDP_USAGE,
                         "no layer is registered: call ddp_add_layer, or ddp_graph_build, before the "
                         "first step");
    DDP__TRY(ddp__spans_settle(d, err));
    DDP__TRY(ddp__team_find(d, err));
    DDP__TRY(ddp__session_memory(d, err));
    DDP__TRY(ddp__gradients_given(d, err));
    DDP__TRY(ddp__own_state_given(d, err));
    DDP__TRY(ddp__session_pieces(d, err));
    if (ddp__engine_of(d, 0)) {
        if (ddp__cfg(d)->debug.check_writes) DDP__TRY(ddp__guard_layers(d, err));
        DDP__TRY(ddp__agree(d, err));
        DDP__TRY(ddp__stages_open(d, err));
        DDP__TRY(ddp__plan_fits_stages(d, err));
    }
    if (!joins) DDP__TRY(ddp__device_start(d, d->session->edge_messages, d->session->edge_bytes, err));
    if (ddp__engine_of(d, 0)) {
        DDP__TRY(ddp__share_parameters(d, err));
        ddp__computing_team(d);
        ddp__coded_start(d, 1);
    }
    DDP__TRY(DDP__EVENT(d, start, (d, ddp__self(d))));
    if (ddp__engine_of(d, 0)) ddp__admission_ready(d);
    if (joins) { /* from here on it has an engine, and the members' state */
        DDP__TRY(ddp__arrival_enter(d, err));
        DDP__TRY(ddp__device_start(d, d->session->edge_messages, d->session->edge_bytes, err));
    }
    if (d->session->plan_final && !ddp__ops(d)->plan_make && !ddp__is_server(d))
        DDP__TRY(ddp__balance_links(d, NULL, err));
    DDP__TRY(ddp__desk_open(d, err));
    ddp__layers_freeze(d);
    ddp__clock_start(d);
    ddp__account_reset(d);
    return DDP_OK;
}
