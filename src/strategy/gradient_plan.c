/* Gradient strategies that follow a plan: mgwfbp, ascwfbp, bytescheduler and usbyte. ddp_plan_timeline
 * decides from the profile which gradients share a message, and the order of messages. */
#include "plan/timeline/timeline.h"
#include "strategy/gradient.h"

/* The serialised plan, identical on all ranks: a head, then the messages in the order in which they are
 * sent. */
typedef struct ddp__packed_messages {
    int32_t layers, messages;
    double exposed_s, barrier_s; /* exposed time of a step, with and without forward hooks */
} ddp__packed_messages;

typedef struct ddp__packed_message {
    int32_t first, last, from, to, cut;
} ddp__packed_message;

/* Computes the timeline. It has at most four messages per layer, because that is the number that can be
 * posted at once (ddp_post). If every message has a fixed cost, larger parts may be faster, so this function
 * doubles the part size and returns the timeline with the shortest step. */
static ddp_status ddp__timeline_of(ddp_ctx *d, ddp_scheme scheme, const ddp_profile *p, double alpha,
                                   ddp_timeline *t, ddp_error *err)
{
    const double least = ddp__gradient_part_least(p, alpha);
    const ddp_config *c = ddp_settings(d);
    ddp_timeline_options o = DDP__ZEROS;
    ddp_timeline next;
    double largest = 0;

    for (int l = 0; l < p->layers; l++) largest = p->params[l] > largest ? p->params[l] : largest;
    memset(t, 0, sizeof *t);
    o.scheme = scheme;
    o.partition_params = (double)c->gradient.partition_bytes / sizeof(float);
    if (o.partition_params < least) o.partition_params = least;
    o.credit = c->gradient.credit;
    if (scheme == DDP_SCHEME_ASCWFBP) o.bucket_bytes = (double)c->gradient.bucket_bytes;
    if (c->gradient.bucket_bytes < DDP__FIRST_BUCKET_BYTES) o.first_bucket_bytes = o.bucket_bytes;
    for (;; o.partition_params *= 2) {
        DDP__TRY(ddp_plan_timeline(p, &o, &next, err));
        if (next.intervals - 2 * p->layers > 4 * p->layers ||
            (t->buckets && next.iteration_s >= t->iteration_s)) {
            ddp_timeline_free(&next);
        } else {
            ddp_timeline_free(t);
            *t = next;
        }
        if (t->buckets && (!(p->gap_s > 0) || o.partition_params >= largest)) return DDP_OK;
    }
}

static ddp__packed_message *ddp__packed_list(const ddp_blob *blob)
{
    return (ddp__packed_message *)(void *)(blob->bytes + sizeof(ddp__packed_messages));
}

static int ddp__timeline_pack(ddp_ctx *d, const ddp_profile *p, double alpha, const ddp_timeline *t,
                              ddp_blob *out)
{
    const ddp_interval *x = t->interval + 2 * p->layers;
    ddp__packed_messages head = {p->layers, t->intervals - 2 * p->layers, 0, 0};
    ddp_error err;

    if (ddp_timeline_exposed(p, t, alpha, &head.exposed_s, &head.barrier_s, &err))
        return ddp__plan_failed(d, &err);
    *out = ddp_blob_new(sizeof head + (size_t)head.messages * sizeof(ddp__packed_message));
    if (!out->bytes) return ddp_complain(d, DDP_MEMORY, "out of memory for %d messages", (int)head.messages);
    memcpy(out->bytes, &head, sizeof head);
    for (int i = 0; i < head.messages; i++, x++) {
        const ddp__packed_message m = {x->last, x->bucket, x->part, x->part + x->parts, t->parts[x->bucket]};
        ddp__packed_list(out)[i] = m;
    }
    return 0;
}

DDP_STATIC_ASSERT((int)DDP_USBYTE - (int)DDP_MGWFBP == (int)DDP_SCHEME_USBYTE - (int)DDP_SCHEME_MGWFBP,
                  "schemes and strategies must have the same order");

static int ddp__timeline_make(ddp_ctx *d, void *self, const ddp_profile *p, int measured, ddp_blob *out)
{
    const int scheme = (int)DDP_SCHEME_MGWFBP + (int)ddp_settings(d)->strategy - (int)DDP_MGWFBP;
    ddp_profile own = DDP__ZEROS;
    ddp_timeline t = DDP__ZEROS;
    ddp_error err;
    ddp_status s;
    int bad;

    (void)self;
    (void)measured;
    s = ddp__gradient_profile(d, p, &own, &err);
    if (s == DDP_OK) s = ddp__timeline_of(d, (ddp_scheme)scheme, &own, p->alpha_s, &t, &err);
    bad = s == DDP_OK ? ddp__timeline_pack(d, &own, p->alpha_s, &t, out) : ddp__plan_failed(d, &err);
    ddp_timeline_free(&t);
    ddp_profile_free(&own);
    return bad;
}

/* Adds the buckets of a planned message. Merged layers need one bucket per group, and several if they have
 * many arrays. */
static int ddp__message_take(ddp_ctx *d, ddp__gradient *g, const ddp__packed_message *m)
{
    int first = m->first, pieces = 0, n;

    for (int l = m->first; l >= m->last; l--) {
        ddp__bucket *b = &g->bucket[g->buckets];
        (void)ddp_gradients_of(d, l, &n);
        pieces += n;
        if (l > m->last && !ddp__bucket_ends(d, l, pieces)) continue;
        b->from = m->from;
        b->to = m->to;
        b->cut = m->cut;
        g->buckets++;
        DDP__DO(ddp__bucket_fill(d, b, first, l));
        first = l - 1;
        pieces = 0;
    }
    return 0;
}

/* 1: the messages belong to this model and contain every part of every layer. seen: [2 x layers], zeroed. */
static int ddp__messages_fit(ddp_ctx *d, const ddp__packed_message *m, int n, int *seen)
{
    const int layers = ddp_layers(d);

    for (; n-- > 0; m++) {
        if (m->last < 0 || m->first < m->last || m->first >= layers || m->from < 0 || m->from >= m->to ||
            m->to > m->cut || (m->cut > 1 && m->first > m->last))
            return 0;
        for (int l = m->last; l <= m->first; l++) {
            seen[2 * l] += m->to - m->from;
            seen[2 * l + 1] = m->cut;
        }
    }
    for (int l = 0; l < layers; l++)
        if (seen[2 * l] != seen[2 * l + 1] || (!seen[2 * l] && ddp__gradient_count(d, l))) return 0;
    return 1;
}

static int ddp__messages_check(ddp_ctx *d, const ddp_blob *blob, const ddp__packed_messages *head)
{
    int *seen = (int *)ddp__calloc((size_t)ddp_layers(d), 2 * sizeof *seen), fit;

    if (!seen)
        return ddp_complain(d, DDP_MEMORY, "out of memory for the messages of %d layers", ddp_layers(d));
    fit = head->layers == ddp_layers(d) && head->messages >= 0 &&
          blob->size == sizeof *head + (size_t)head->messages * sizeof(ddp__packed_message) &&
          ddp__messages_fit(d, ddp__packed_list(blob), head->messages, seen);
    DDP_FREE(seen);
    if (fit) return 0;
    return ddp_complain(d, DDP_MISMATCH,
                        "a plan of %lu bytes for %d layers does not fit this model of %d layers",
                        (unsigned long)blob->size, (int)head->layers, ddp_layers(d));
}

static int ddp__timeline_fits(ddp_ctx *d, void *self, const ddp_blob *blob)
{
    ddp__packed_messages head = DDP__ZEROS;

    (void)self;
    if (blob->size >= sizeof head) memcpy(&head, blob->bytes, sizeof head);
    return ddp__messages_check(d, blob, &head);
}

static int ddp__timeline_take(ddp_ctx *d, void *self, const ddp_blob *blob, const ddp_profile *p)
{
    ddp__gradient *g = (ddp__gradient *)self;
    ddp__packed_messages head = DDP__ZEROS;

    (void)p;
    if (blob->size >= sizeof head) memcpy(&head, blob->bytes, sizeof head);
    DDP__DO(ddp__messages_check(d, blob, &head));
    ddp__buckets_free(g);
    /* merged layers may need several buckets */
    DDP__DO(ddp__buckets_room(d, g, head.messages + ddp_layers(d)));
    for (int i = 0; i < head.messages; i++) DDP__DO(ddp__message_take(d, g, &ddp__packed_list(blob)[i]));
    g->waits = (int)ddp_settings(d)->strategy >= (int)DDP_BYTESCHEDULER;
    g->exposed_s =
        g->waits && ddp_has_forward(d) && !(ddp_settings(d)->clip_norm > 0) ? head.exposed_s : head.barrier_s;
    return 0;
}

static double ddp__timeline_exposed(const void *self) { return ((const ddp__gradient *)self)->exposed_s; }

/* ---- bytescheduler, usbyte: a layer is complete and updated before its own next forward ---- */

static int ddp__by_priority_forward_begin(ddp_ctx *d, void *self, int layer)
{
    ddp__gradient *g = (ddp__gradient *)self;

    if (!g->of || !g->of[layer].late) return 0;
    g->of[layer].late = 0;
    for (int i = 0; i < g->buckets; i++)
        if (g->bucket[i].last == layer) DDP__DO(ddp__hold_once(d, &g->bucket[i].ticket, layer));
    return ddp_update_late(d, layer, NULL, g->rate);
}

static int ddp__by_priority_wait(ddp_ctx *d, void *self)
{
    for (int l = ddp_layers(d) - 1; l >= 0; l--) DDP__DO(ddp__by_priority_forward_begin(d, self, l));
    return 0;
}

static int ddp__by_priority_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__gradient *g = (ddp__gradient *)self;

    if (!forward || ddp_settings(d)->clip_norm > 0) return ddp__gradient_step_end(d, self, forward);
    g->rate = ddp_rate(d);
    for (int l = 0; l < ddp_layers(d); l++) g->of[l].late = 1;
    ddp__buckets_again(d, g);
    return 0;
}

void ddp__strategy_mgwfbp(ddp_strategy_ops *ops)
{
    ddp__strategy_wfbp(ops);
    ops->start = NULL;
    ops->plan_make = ddp__timeline_make;
    ops->plan_take = ddp__timeline_take;
    ops->plan_fits = ddp__timeline_fits;
    ops->plan_exposed = ddp__timeline_exposed;
}

void ddp__strategy_bytescheduler(ddp_strategy_ops *ops)
{
    ddp__strategy_mgwfbp(ops);
    ops->forward_begin = ddp__by_priority_forward_begin;
    ops->step_end = ddp__by_priority_step_end;
    ops->wait = ddp__by_priority_wait;
}
