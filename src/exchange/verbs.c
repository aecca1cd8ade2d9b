/* Implements the calls that a strategy's events may make: messages, updates, arithmetic, state. */
#include "context/clock.h"
#include "context/context.h"
#include "exchange/exchange.h"
#include "exchange/average.h"
#include "exchange/events.h"
#include "exchange/post.h"
#include "exchange/sites.h"
#include "exchange/update.h"
#include "exchange/verbs.h"
#include "member/rest.h"

static int ddp__has_layer(const ddp_ctx *d, int layer) { return d && layer >= 0 && layer < ddp__layers(d); }

static ddp_status ddp__verb_layer(ddp_ctx *d, const char *verb, int layer)
{
    DDP__TRY(ddp__verb_enter(d, verb));
    if (ddp__has_layer(d, layer)) return DDP_OK;
    return (ddp_status)ddp_complain(d, DDP_ARG,
                                    "%s: layer %d does not exist; %d layers are registered, numbered from "
                                    "0",
                                    verb, layer, ddp__layers(d));
}

/* Checks that the current event may post messages. */
static ddp_status ddp__verb_posts(ddp_ctx *d)
{
    switch (ddp__event_of(d)) {
    case DDP__EVENT_start:
    case DDP__EVENT_wait:
    case DDP__EVENT_plan_make:
    case DDP__EVENT_plan_whole:
    case DDP__EVENT_plan_adopt:
    case DDP__EVENT_plan_take:
    case DDP__EVENT_plan_fits:
    case DDP__EVENT_plan_adapt:
        return ddp__fail(
            ddp__error(d), DDP_USAGE,
            "strategy %s posts a message in %s: start declares state and wait "
            "finishes what is in flight; post in forward_begin, backward_end, step_end, arrived or sync_all",
            ddp__ops(d)->name, ddp__event_name(ddp__event_of(d)));
    default:
        return DDP_OK;
    }
}

/* ---- messages ---- */

ddp_status ddp__posted_open(ddp_ctx *d, ddp_error *err)
{
    d->exchange->posted_room = 5 * ddp__layers(d) + 64;
    d->exchange->posted = (ddp__posted *)ddp__scratch_take(ddp__lists_of(d), (size_t)d->exchange->posted_room,
                                                           sizeof *d->exchange->posted);
    return d->exchange->posted ? DDP_OK
                               : ddp__fail(err, DDP_MEMORY,
                                           "out of memory for %d messages of strategy "
                                           "%s",
                                           d->exchange->posted_room, ddp__ops(d)->name);
}

void ddp__posted_close(ddp_ctx *d)
{
    for (int i = 0; d->exchange->posted && i < d->exchange->posted_room; i++)
        ddp__array_free(d->exchange->posted[i].sum);
    for (int i = 0; i < ddp__count(d->exchange->kept); i++) {
        const ddp__own_state *k = &d->exchange->kept[i];
        if (k->equal & DDP_KEPT_HERE)
            ddp__release(ddp__allocator_of(d), k->data, k->count * sizeof(float));
        else
            ddp__host_release(ddp__host_of(d), k->data, k->count * sizeof(float));
    }
    ddp__array_free(d->exchange->kept);
}

static int ddp__in_layer(const ddp__unit *u, const ddp_piece *list, int n)
{
    for (int i = 0; i < n; i++)
        for (int b = 0; b < ddp__count(u->block); b++) {
            const ddp_block *k = &u->block[b];
            if (list[i].data >= k->params && list[i].data < k->params + k->count) return 1;
            if (k->grads && list[i].data >= k->grads && list[i].data < k->grads + k->count) return 1;
        }
    return 0;
}

ddp_status ddp__posted_none(ddp_ctx *d, int in_layers, const char *when)
{
    const ddp__posted *p = d->exchange->posted;
    const char *layer;
    int i = 0;

    while (in_layers && i < d->exchange->posted_count && !p[i].in_layer) i++;
    if (i == d->exchange->posted_count) return DDP_OK;
    p += i;
    layer = p->layer >= 0 && p->layer < ddp__layers(d) ? ddp__unit_of(d, p->layer)->name : "no layer";
    return ddp__fail(ddp__error(d), DDP_USAGE,
                     "strategy %s posted a message of %s%s in step %ld and did not hold it "
                     "%s: every message has to be held, at the latest in its event wait",
                     ddp__ops(d)->name, ddp__layer_prefix(layer), layer, p->step, when);
}

ddp_status ddp__posted_of_layer(ddp_ctx *d, int layer)
{
    for (int i = 0; i < d->exchange->posted_count; i++)
        if (d->exchange->posted[i].in_layer && d->exchange->posted[i].layer == layer &&
            d->exchange->posted[i].step < ddp_step(d))
            return ddp__fail(ddp__error(d), DDP_USAGE,
                             "strategy %s: %s%s was used in step %ld while its message "
                             "of step %ld was still on its way: hold it in forward_begin or in step_end",
                             ddp__ops(d)->name, ddp__layer_prefix(ddp__unit_of(d, layer)->name),
                             ddp__unit_of(d, layer)->name, ddp_step(d), d->exchange->posted[i].step);
    return DDP_OK;
}

/* Replaces an adding message, which devices do not support: received values replace `from`, which is then
 * added to `to`. */
static ddp_status ddp__posted_sums(ddp__posted *p, const ddp_message *m, ddp_error *err)
{
    const int most = m->from_count + m->to_count;

    if (!ddp__reserve(p->sum, most))
        return ddp__fail(err, DDP_MEMORY, "out of memory for a message of %d arrays", most);
    stbds_arrsetlen(p->sum, most);
    p->from = m->from_count;
    p->to = m->to_count;
    for (int i = 0; i < most; i++) p->sum[i] = i < p->from ? m->from[i] : m->to[i - p->from];
    return DDP_OK;
}

static ddp__posted *ddp__posted_find(ddp_ctx *d, long ticket)
{
    for (int i = 0; i < d->exchange->posted_count; i++)
        if (d->exchange->posted[i].name == ticket) return &d->exchange->posted[i];
    return NULL;
}

/* Resolves m->after. On the same link the engine orders the two messages by ticket. Otherwise the caller or
 * the device waits for the first one. */
static ddp_status ddp__posted_after(ddp_ctx *d, ddp_message *m, ddp_error *err)
{
    const ddp__posted *before = m->after ? ddp__posted_find(d, m->after - 1) : NULL;

    m->after = 0;
    if (!before || !ddp__engine_of(d, 0)) return DDP_OK; /* already done */
    if (d->exchange->over) return ddp__post_hold(d, before->link, before->ticket, DDP_NO_LAYER, err);
    if (before->link != m->link) return ddp__post_wait(d, before->link, before->ticket, err);
    m->after = before->ticket + 1;
    return DDP_OK;
}

static ddp_status ddp__posted_send(ddp_ctx *d, ddp__posted *p, const ddp_message *m, ddp_error *err)
{
    ddp_message in_place = *m;

    DDP__TRY(ddp__posted_after(d, &in_place, err));
    m = &in_place;
    p->to = 0;
    if (ddp__coded_rounds(m) && !d->exchange->over &&
        !ddp__levels_takes(d, m)) /* else the rank that sends between sites rounds, or the stager */
        DDP__TRY(ddp__coded_round(d, m, err));
    if (!m->add || !d->exchange->over) return ddp__post(d, m, 1, &p->ticket, err);
    DDP__TRY(ddp__posted_sums(p, m, err));
    in_place.add = 0;
    in_place.to = NULL;
    return ddp__post(d, &in_place, 1, &p->ticket, err);
}

/* Checks a message. An error in it is the strategy's. */
static ddp_status ddp__posted_check(ddp_ctx *d, const ddp_message *m)
{
    ddp_error why;

    if (!ddp__engine_of(d, 0) || !ddp__engine_accepts(ddp__engine_of(d, m->link), m, &why)) return DDP_OK;
    return ddp__fail(ddp__error(d), why.code, "strategy %s: %s", ddp__ops(d)->name, why.msg);
}

int ddp_post(ddp_ctx *d, const ddp_message *m, long *ticket)
{
    ddp__posted *p;
    ddp_message among;
    char who[64];

    DDP__VERB("ddp_post");
    if (!m || !ticket)
        return ddp_complain(d, DDP_ARG, "ddp_post: the message and the ticket must not be NULL");
    DDP__DO(ddp__verb_posts(d));
    snprintf(who, sizeof who, "strategy %s", ddp__ops(d)->name);
    DDP__DO(ddp__message_looks(d, who, m, ddp__error(d)));
    if (d->exchange->posted_count == d->exchange->posted_room)
        return (int)ddp__fail(ddp__error(d), DDP_USAGE,
                              "strategy %s has %d messages that it did not hold; hold some "
                              "of them before it posts more",
                              ddp__ops(d)->name, d->exchange->posted_room);
    p = &d->exchange->posted[d->exchange->posted_count];
    if (d->exchange->computing && m->group == 0 && (m->verb < DDP_SEND)) {
        among = *m;
        among.group = d->exchange->computing;
        m = &among;
    }
    DDP__DO(ddp__posted_check(d, m));
    DDP__DO(ddp__posted_send(d, p, m, ddp__error(d)));
    p->layer = m->layer;
    p->link = m->link;
    p->step = ddp_step(d);
    p->told = 0;
    p->here = m->here;
    p->in_layer = m->layer >= 0 && m->layer < ddp__layers(d) &&
                  (ddp__in_layer(ddp__unit_of(d, m->layer), m->from, m->from_count) ||
                   ddp__in_layer(ddp__unit_of(d, m->layer), m->to, m->to ? m->to_count : 0));
    *ticket = p->name = d->exchange->posted_next++;
    d->exchange->posted_count++;
    return 0;
}

static ddp_status ddp__posted_tell(ddp_ctx *d, ddp__posted *p)
{
    ddp__strategy_event event;
    long name = p->name;
    int code;

    if (p->told || !ddp__ops(d)->arrived) return DDP_OK;
    p->told = 1;
    event = ddp__event_set(d, DDP__EVENT_arrived);
    code = ddp__ops(d)->arrived(d, ddp__self(d), name);
    DDP__TRY(ddp__event_over(d, code));
    ddp__event_set(d, event);
    return DDP_OK;
}

ddp_status ddp__posted_look(ddp_ctx *d)
{
    if (!ddp__ops(d)->arrived) return DDP_OK;
    for (int i = 0; i < d->exchange->posted_count; i++)
        if (!d->exchange->posted[i].told &&
            ddp__post_is_done(d, d->exchange->posted[i].link, d->exchange->posted[i].ticket))
            DDP__TRY(ddp__posted_tell(d, &d->exchange->posted[i]));
    return DDP_OK;
}

int ddp_hold(ddp_ctx *d, long ticket, int layer)
{
    ddp__posted *p, held;
    float *from, *to;
    ddp__walk w;
    size_t n;

    DDP__VERB("ddp_hold");
    p = ddp__posted_find(d, ticket);
    if (!p) return ddp_complain(d, DDP_USAGE, "message %ld was held before, or was never posted", ticket);
    held = *p;
    *p = d->exchange->posted[--d->exchange->posted_count];
    d->exchange->posted[d->exchange->posted_count] = held; /* the list stays in its slot */
    if (!ddp__has_layer(d, layer)) layer = DDP_NO_LAYER;
    DDP__DO(ddp__post_hold(d, held.link, held.ticket, layer, ddp__error(d)));
    if (held.here && d->exchange->over) DDP__DO(ddp__post_wait(d, held.link, held.ticket, ddp__error(d)));
    w = ddp__walk_of(held.sum, held.from, held.sum ? held.sum + held.from : NULL, held.to);
    while ((n = ddp__walk_next(&w, &from, &to)) > 0) ddp__axpy(d, to, from, n, 1);
    return (int)ddp__posted_tell(d, &held);
}

int ddp_hold_input(ddp_ctx *d, long ticket)
{
    const ddp__posted *p;

    DDP__VERB("ddp_hold_input");
    p = ddp__posted_find(d, ticket);
    if (p && p->to) return 0; /* `from` is in use until the message is held */
    return p ? (int)ddp__post_hold_input(d, p->link, p->ticket, ddp__error(d)) : 0;
}

int ddp_is_done(ddp_ctx *d, long ticket)
{
    const ddp__posted *p = d && !ddp__host_forked(ddp__host_of(d)) ? ddp__posted_find(d, ticket) : NULL;

    return p ? ddp__post_is_done(d, p->link, p->ticket) : 1;
}

/* ---- layers ---- */

int ddp_average_parts(ddp_ctx *d, int layer, const unsigned char *takes, int priority, int filler)
{
    const char *name = takes ? "ddp_average_parts" : "ddp_average";

    DDP__DO(ddp__verb_layer(d, name, layer));
    DDP__DO(ddp__verb_posts(d));
    if (d->exchange->sending[layer].ticket != -1 || d->exchange->sending[layer].other_ticket != -1)
        return ddp_complain(d, DDP_USAGE,
                            "%s of %s%s, whose last average is still on its way: hold it "
                            "first with ddp_average_hold",
                            name, ddp__layer_prefix(ddp__unit_of(d, layer)->name),
                            ddp__unit_of(d, layer)->name);
    return (int)ddp__average_layer(d, layer, takes, priority, filler, 0, ddp__error(d));
}

int ddp_average(ddp_ctx *d, int layer, int priority, int filler)
{
    return ddp_average_parts(d, layer, NULL, priority, filler);
}

int ddp_average_hold(ddp_ctx *d, int layer)
{
    DDP__DO(ddp__verb_layer(d, "ddp_average_hold", layer));
    return (int)ddp__average_hold(d, layer, ddp__error(d));
}

int ddp_average_exact(ddp_ctx *d, int layer)
{
    DDP__DO(ddp__verb_layer(d, "ddp_average_exact", layer));
    DDP__DO(ddp__verb_posts(d));
    return (int)ddp__average_exact(d, layer, ddp__error(d));
}

int ddp_update_layer(ddp_ctx *d, int layer, const float *from)
{
    DDP__DO(ddp__verb_layer(d, "ddp_update_layer", layer));
    ddp__update_layer(d, layer, from, ddp__lr(d));
    return 0;
}

int ddp_update_late(ddp_ctx *d, int layer, const float *from, float rate)
{
    DDP__DO(ddp__verb_layer(d, "ddp_update_late", layer));
    ddp__update_layer(d, layer, from, rate);
    return 0;
}

int ddp_update_copy(ddp_ctx *d, int layer, float *params, float *state, const float *from, float rate)
{
    DDP__DO(ddp__verb_layer(d, "ddp_update_copy", layer));
    ddp__update_memory(d, layer, params, from, state, d->exchange->sending[layer].updates, rate, 1);
    return 0;
}

int ddp_clip(ddp_ctx *d)
{
    DDP__VERB("ddp_clip");
    return ddp__cfg(d)->clip_norm > 0 ? (int)ddp__clip_gradients(d, ddp__error(d)) : 0;
}

/* ---- state ---- */

static int ddp__keep(ddp_ctx *d, int layer, const char *name, size_t n, int equal, float **out)
{
    ddp__own_state *k;
    int room;

    DDP__VERB("ddp_keep");
    if (ddp__started(d) || ddp__event_of(d) != DDP__EVENT_start)
        return ddp_complain(d, DDP_USAGE, "state %s is declared in %s; only start may", name,
                            ddp__event_name(ddp__event_of(d)));
    if (layer >= ddp__layers(d) || !name || strlen(name) >= sizeof k->name || n == 0)
        return ddp_complain(d, DDP_ARG,
                            "state '%.40s' of %zu floats for layer %d: the name must have at most %d "
                            "characters, the size must not be 0, and the layer must be below %d",
                            name ? name : "", n, layer, (int)sizeof k->name - 1, ddp__layers(d));
    room = ddp__reserve(d->exchange->kept, ddp__count(d->exchange->kept) + 1);
    if (room && equal & DDP_KEPT_HERE)
        *out = (float *)ddp__alloc(ddp__allocator_of(d), n * sizeof **out);
    else if (room)
        *out = (float *)ddp__host_alloc(ddp__host_of(d), n * sizeof **out);
    if (!*out) return ddp_complain(d, DDP_MEMORY, "out of memory for %zu floats of state %s", n, name);
    k = stbds_arraddnptr(d->exchange->kept, 1u);
    memset(k, 0, sizeof *k);
    snprintf(k->name, sizeof k->name, "%s", name);
    k->layer = layer < 0 ? DDP_NO_LAYER : layer;
    k->equal = equal;
    k->data = *out;
    k->count = n;
    return 0;
}

float *ddp_keep(ddp_ctx *d, int layer, const char *name, size_t n, int equal)
{
    float *data = NULL;

    (void)ddp__keep(d, layer, name, n, equal, &data);
    return data;
}

void ddp__later_set(ddp_ctx *d, struct ddp__rest *rest) { d->exchange->rest = rest; }

void ddp__later_close(ddp_ctx *d)
{
    ddp__rest_close(d->exchange->rest);
    d->exchange->rest = NULL;
}

ddp_status ddp__later_wait(ddp_ctx *d, int layer, ddp_error *err)
{
    int over = 0;

    if (!d->exchange->rest) return DDP_OK;
    DDP__TRY(ddp__rest_take(d->exchange->rest, ddp__engine_of(d, 0), layer, &over, err));
    if (over) ddp__later_close(d);
    return DDP_OK;
}

int ddp_kept_wait(ddp_ctx *d, int layer)
{
    DDP__DO(ddp__verb_layer(d, "ddp_kept_wait", layer));
    return (int)ddp__later_wait(d, layer, ddp__error(d));
}

ddp_blob ddp_blob_new(size_t size)
{
    ddp_blob b;

    b.size = size;
    b.bytes = (unsigned char *)ddp__calloc(size ? size : 1, 1);
    return b;
}

void ddp_blob_free(ddp_blob *b)
{
    if (b->bytes) DDP_FREE(b->bytes);
    memset(b, 0, sizeof *b);
}

/* ---- reading ---- */

int ddp_group_size(const ddp_ctx *d, int group) { return ddp__group_size(d, group); }

int ddp_parts_of(const ddp_ctx *d, int layer) { return ddp__parts_for(d, ddp__unit_of(d, layer)->trained); }

int ddp_has_forward(const ddp_ctx *d)
{
    if (ddp__cfg(d)->average.first) return 0; /* no step waits for a forward hook */
    return d->exchange->hooks_forward || ddp__forward_all(d);
}

int ddp_layers(const ddp_ctx *d) { return d ? ddp__layers(d) : 0; }

const char *ddp_name_of(const ddp_ctx *d, int layer)
{
    return ddp__has_layer(d, layer) ? ddp__unit_of(d, layer)->name : "?";
}

const ddp_piece *ddp_gradients_of(const ddp_ctx *d, int layer, int *count)
{
    *count = ddp__has_layer(d, layer) ? ddp__unit_of(d, layer)->gradients : 0;
    return *count ? ddp__unit_of(d, layer)->gradient : NULL;
}

const ddp_piece *ddp_parameters_of(const ddp_ctx *d, int layer, int *count)
{
    *count = ddp__has_layer(d, layer) ? ddp__unit_of(d, layer)->averages : 0;
    return *count ? ddp__unit_of(d, layer)->average : NULL;
}

const ddp_piece *ddp_trained_of(const ddp_ctx *d, int layer, int *count)
{
    *count = ddp__has_layer(d, layer) ? ddp__unit_of(d, layer)->gradients : 0;
    return *count ? ddp__unit_of(d, layer)->trains : NULL;
}

float *ddp_state_of(const ddp_ctx *d, int layer, size_t *count)
{
    *count = ddp__has_layer(d, layer) ? ddp__unit_of(d, layer)->state_count : 0;
    return *count ? ddp__unit_of(d, layer)->state : NULL;
}

long ddp_updates_of(const ddp_ctx *d, int layer)
{
    return ddp__has_layer(d, layer) ? d->exchange->sending[layer].updates : 0;
}

double ddp_computed_s(const ddp_ctx *d) { return ddp__clock_computed(d); }

const struct ddp_step_info *ddp_reported(const ddp_ctx *d) { return d->exchange->reported; }

ddp_stats *ddp_stats_of(ddp_ctx *d) { return ddp__stats(d); }
const ddp_piece *ddp_others_of(const ddp_ctx *d, int layer, int *count)
{
    *count = ddp__has_layer(d, layer) ? ddp__unit_of(d, layer)->others : 0;
    return *count ? ddp__average_takes(d, layer, ddp__unit_of(d, layer)->other, count) : NULL;
}

int ddp_blocks_of(const ddp_ctx *d, int group, int *own)
{
    const int *ranks = ddp__engine_of(d, 0) ? ddp__engine_group_ranks(ddp__engine_of(d, 0), group) : NULL;

    for (*own = 0; ranks && ranks[*own] != ddp_rank(d); ++*own) {
    }
    if (!ranks) *own = ddp_rank(d);
    return ranks ? ddp__engine_group_size(ddp__engine_of(d, 0), group) : ddp_world(d);
}

size_t ddp_segment_of(const ddp_ctx *d, int group, ddp_coding coding, size_t n, size_t *from)
{
    size_t to = n;

    *from = 0;
    if (ddp__engine_of(d, 0)) ddp__engine_segment(ddp__engine_of(d, 0), group, coding, n, from, &to);
    return to - *from;
}

int ddp_group_of(const ddp_ctx *d, int layer)
{
    return ddp__has_layer(d, layer) ? ddp__unit_of(d, layer)->group : 0;
}

const ddp_config *ddp_settings(const ddp_ctx *d) { return ddp__cfg(d); }

float ddp_rate(const ddp_ctx *d) { return ddp__lr(d); }

ddp_coding ddp_coding_of(const ddp_ctx *d) { return ddp__wire_coding(ddp__cfg(d)->wire); }

int ddp_link_of(const ddp_ctx *d, int layer)
{
    return ddp__has_layer(d, layer) ? ddp__unit_of(d, layer)->link : 0;
}

float *ddp_residual_of(const ddp_ctx *d, int layer)
{
    return ddp__has_layer(d, layer) ? d->exchange->sending[layer].residual : NULL;
}

/* ---- calls of the session ---- */

ddp_status ddp__strategy_wait(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(DDP__EVENT(d, wait, (d, ddp__self(d))));
    for (int l = ddp__layers(d) - 1; l >= 0; l--) DDP__TRY(ddp__average_hold(d, l, err));
    return ddp__posted_none(d, 0, "in its event wait");
}

ddp_status ddp__strategy_drain(ddp_ctx *d, ddp_error *err)
{
    DDP__TRY(ddp__strategy_wait(d, err));
    return DDP__EVENT(d, drain, (d, ddp__self(d)));
}
