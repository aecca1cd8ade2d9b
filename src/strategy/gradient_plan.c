/* Gradient strategies that follow a plan: mgwfbp, ascwfbp, bytescheduler and usbyte. What leaves together and in which
 * order is what ddp_plan_timeline makes of the profile. */
#include "plan/timeline.h"
#include "run/config.h"
#include "strategy/gradient.h"

/* As bytes, the same on all ranks: a head, then its messages in the order in which they leave. */
typedef struct ddp__packed_messages {
    int32_t layers, messages;
    double  exposed_s, barrier_s; /* beyond the step's computing: with, and without, forward hooks */
} ddp__packed_messages;

typedef struct ddp__packed_message {
    int32_t first, last, from, to, cut;
} ddp__packed_message;

/* At most four messages for each layer: so many can be posted at once (ddp_post). Where messages cost time of their own
 * larger parts may be better: those with the shortest step. */
static ddp_status ddp__timeline_of(ddp_ctx *d, ddp_scheme scheme, const ddp_profile *p, double alpha, ddp_timeline *t,
                                   ddp_error *err)
{
    const double least = ddp__gradient_part_least(p, alpha);
    const ddp_config *c = ddp_settings(d);
    ddp_timeline_options o;
    ddp_timeline next;
    double largest = 0;

    for (int l = 0; l < p->layers; l++) largest = p->params[l] > largest ? p->params[l] : largest;
    memset(&o, 0, sizeof o);
    memset(t, 0, sizeof *t);
    o.scheme = scheme;
    o.partition_params = (double)c->partition_bytes / sizeof(float);
    if (o.partition_params < least) o.partition_params = least;
    o.credit = c->credit;
    if (scheme == DDP_SCHEME_ASCWFBP) o.bucket_bytes = (double)c->bucket_bytes;
    if (c->bucket_bytes < DDP__FIRST_BUCKET_BYTES) o.first_bucket_bytes = o.bucket_bytes;
    for (;; o.partition_params *= 2) {
        DDP__TRY(ddp_plan_timeline(p, &o, &next, err));
        if (next.intervals - 2 * p->layers > 4 * p->layers || (t->buckets && next.iteration_s >= t->iteration_s)) {
            ddp_timeline_free(&next);
        } else {
            ddp_timeline_free(t);
            *t = next;
        }
        if (t->buckets && (!(p->gap_s > 0) || o.partition_params >= largest)) return DDP_OK;
    }
}

static int ddp__timeline_pack(ddp_ctx *d, const ddp_profile *p, double alpha, const ddp_timeline *t, ddp_blob *out)
{
    const ddp_interval *x = t->interval + 2 * p->layers;
    ddp__packed_messages head;
    unsigned char *at;
    ddp_error err;

    memset(&head, 0, sizeof head);
    head.layers = p->layers;
    head.messages = t->intervals - 2 * p->layers;
    if (ddp_timeline_exposed(p, t, alpha, &head.exposed_s, &head.barrier_s, &err) != DDP_OK)
        return ddp_complain(d, err.code, "%s", err.msg);
    *out = ddp_blob_new(sizeof head + (size_t)head.messages * sizeof(ddp__packed_message));
    if (!out->bytes) return ddp_complain(d, DDP_MEMORY, "out of memory for %d messages", (int)head.messages);
    at = out->bytes + sizeof head;
    for (int i = 0; i < head.messages; i++, at += sizeof(ddp__packed_message)) {
        const ddp__packed_message m = {x[i].last, x[i].bucket, x[i].part, x[i].part + x[i].parts, t->parts[x[i].bucket]};
        memcpy(at, &m, sizeof m);
    }
    memcpy(out->bytes, &head, sizeof head);
    return 0;
}

/* A strategy's scheme has its name. */
static int ddp__timeline_make(ddp_ctx *d, void *self, const ddp_profile *p, ddp_blob *out)
{
    ddp_scheme scheme = DDP_SCHEME_SSGD;
    ddp_profile own;
    ddp_timeline t;
    ddp_error err;
    ddp_status s;
    int bad;

    (void)self;
    memset(&own, 0, sizeof own);
    memset(&t, 0, sizeof t);
    s = ddp_scheme_named(ddp_strategy_name(ddp_settings(d)->strategy), &scheme, &err);
    if (s == DDP_OK) s = ddp__gradient_profile(d, p, &own, &err);
    if (s == DDP_OK) s = ddp__timeline_of(d, scheme, &own, p->alpha_s, &t, &err);
    bad = s == DDP_OK ? ddp__timeline_pack(d, &own, p->alpha_s, &t, out) : ddp_complain(d, s, "%s", err.msg);
    ddp_timeline_free(&t);
    ddp_profile_free(&own);
    return bad;
}

/* A message of merged layers is one for each group. */
static int ddp__message_take(ddp_ctx *d, ddp__gradient *g, const ddp__packed_message *m)
{
    int first = m->first, bad = 0;

    for (int l = m->first; l >= m->last && !bad; l--) {
        ddp__bucket *b = &g->bucket[g->buckets];
        if (l > m->last && ddp_group_of(d, l - 1) == ddp_group_of(d, l)) continue;
        b->from = m->from;
        b->to = m->to;
        b->cut = m->cut;
        g->buckets++;
        bad = ddp__bucket_fill(d, b, first, l);
        first = l - 1;
    }
    return bad;
}

/* 1: the messages are of this model, and of every layer all parts; seen: [2 x layers], zero. */
static int ddp__messages_fit(ddp_ctx *d, const unsigned char *at, int n, int *seen)
{
    const int layers = ddp_layers(d);
    ddp__packed_message m;

    for (int i = 0; i < n; i++, at += sizeof m) {
        memcpy(&m, at, sizeof m);
        if (m.last < 0 || m.first < m.last || m.first >= layers || m.from < 0 || m.from >= m.to || m.to > m.cut ||
            (m.cut > 1 && m.first > m.last))
            return 0;
        for (int l = m.last; l <= m.first; l++) {
            seen[2 * l] += m.to - m.from;
            seen[2 * l + 1] = m.cut;
        }
    }
    for (int l = 0; l < layers; l++)
        if (seen[2 * l] != seen[2 * l + 1] || (!seen[2 * l] && ddp__gradient_count(d, l))) return 0;
    return 1;
}

static int ddp__messages_check(ddp_ctx *d, const ddp_blob *blob, const ddp__packed_messages *head)
{
    int *seen = (int *)ddp__calloc((size_t)ddp_layers(d), 2 * sizeof *seen), fit;

    if (!seen) return ddp_complain(d, DDP_MEMORY, "out of memory for the messages of %d layers", ddp_layers(d));
    fit = head->layers == ddp_layers(d) && head->messages >= 0 &&
          blob->size == sizeof *head + (size_t)head->messages * sizeof(ddp__packed_message) &&
          ddp__messages_fit(d, blob->bytes + sizeof *head, head->messages, seen);
    DDP_FREE(seen);
    if (fit) return 0;
    return ddp_complain(d, DDP_MISMATCH, "a plan of %lu bytes for %d layers does not fit this model of %d layers",
                        (unsigned long)blob->size, (int)head->layers, ddp_layers(d));
}

/* Each layer's buckets as a list, for those that update a layer in its next forward. */
static void ddp__buckets_list(ddp_ctx *d, ddp__gradient *g)
{
    for (int l = 0; l < ddp_layers(d); l++) g->of_layer[l] = -1;
    for (int i = g->buckets - 1; i >= 0; i--) {
        g->bucket[i].next_of_layer = g->of_layer[g->bucket[i].first];
        g->of_layer[g->bucket[i].first] = i;
    }
}

static int ddp__timeline_take(ddp_ctx *d, void *self, const ddp_blob *blob, const ddp_profile *p)
{
    ddp__gradient *g = (ddp__gradient *)self;
    const unsigned char *at = blob->bytes + sizeof(ddp__packed_messages);
    ddp__packed_messages head;
    int bad;

    (void)p;
    memset(&head, 0, sizeof head);
    if (blob->size >= sizeof head) memcpy(&head, blob->bytes, sizeof head);
    bad = ddp__messages_check(d, blob, &head);
    if (bad) return bad;
    ddp__buckets_free(g);
    bad = ddp__buckets_room(d, g, head.messages + ddp_layers(d)); /* groups may part what was merged */
    for (int i = 0; i < head.messages && !bad; i++, at += sizeof(ddp__packed_message)) {
        ddp__packed_message m;
        memcpy(&m, at, sizeof m);
        bad = ddp__message_take(d, g, &m);
    }
    if (bad) return bad;
    if (g->of_layer) ddp__buckets_list(d, g);
    g->exposed_s = g->of_layer && ddp_has_forward(d) && !(ddp_settings(d)->clip_norm > 0) ? head.exposed_s
                                                                                        : head.barrier_s;
    return 0;
}

static double ddp__timeline_exposed(const void *self) { return ((const ddp__gradient *)self)->exposed_s; }

/* ---- bytescheduler, usbyte: a layer is whole again, and updated, before its own next forward ---- */

static int ddp__by_priority_start(ddp_ctx *d, void *self)
{
    ddp__gradient *g = (ddp__gradient *)self;

    g->of_layer = (int *)ddp__calloc((size_t)ddp_layers(d), sizeof *g->of_layer);
    g->late = (unsigned char *)ddp__calloc((size_t)ddp_layers(d), 1);
    return g->of_layer && g->late ? 0 : ddp_complain(d, DDP_MEMORY, "out of memory for %d layers", ddp_layers(d));
}

static int ddp__by_priority_forward_begin(ddp_ctx *d, void *self, int layer)
{
    ddp__gradient *g = (ddp__gradient *)self;
    int bad = 0;

    if (!g->late[layer]) return 0;
    for (int i = g->of_layer[layer]; i >= 0 && !bad; i = g->bucket[i].next_of_layer)
        bad = ddp__bucket_hold(d, &g->bucket[i]);
    g->late[layer] = 0;
    return bad ? bad : ddp_update_late(d, layer, NULL, g->rate);
}

static int ddp__by_priority_wait(ddp_ctx *d, void *self)
{
    int bad = 0;

    for (int l = ddp_layers(d) - 1; l >= 0 && !bad; l--) bad = ddp__by_priority_forward_begin(d, self, l);
    return bad;
}

static int ddp__by_priority_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__gradient *g = (ddp__gradient *)self;

    if (!forward || ddp_settings(d)->clip_norm > 0) return ddp__gradient_step_end(d, self, forward);
    g->rate = ddp_rate(d);
    memset(g->late, 1, (size_t)ddp_layers(d));
    ddp__buckets_again(d, g);
    return 0;
}

void ddp__strategy_mgwfbp(ddp_strategy_ops *ops)
{
    ddp__strategy_wfbp(ops);
    ops->name = "mgwfbp";
    ops->start = NULL;
    ops->plan_first = ops->plan_make = ddp__timeline_make;
    ops->plan_take = ddp__timeline_take;
    ops->plan_exposed = ddp__timeline_exposed;
}

void ddp__strategy_ascwfbp(ddp_strategy_ops *ops)
{
    ddp__strategy_mgwfbp(ops);
    ops->name = "ascwfbp";
}

void ddp__strategy_bytescheduler(ddp_strategy_ops *ops)
{
    ddp__strategy_mgwfbp(ops);
    ops->name = "bytescheduler";
    ops->start = ddp__by_priority_start;
    ops->forward_begin = ddp__by_priority_forward_begin;
    ops->step_end = ddp__by_priority_step_end;
    ops->wait = ddp__by_priority_wait;
}

void ddp__strategy_usbyte(ddp_strategy_ops *ops)
{
    ddp__strategy_bytescheduler(ops);
    ops->name = "usbyte";
}
