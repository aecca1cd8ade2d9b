/* Strategies with an outer optimizer (DiLoCo, arXiv:2311.08105). Each worker makes H local steps. The mean
 * over the workers of their parameter deltas is then the gradient of an outer optimizer: SGD with Nesterov
 * momentum.
 *
 * For each layer, theta are the parameters of the worker. The anchor is theta after the last outer step,
 * identical on all ranks. d = anchor - theta. Let D be the mean of d. The rank that sums a segment of D
 * stores the same segment of the momentum m. It replaces D by the outer step, m = mu m + D, step = nu (D + mu
 * m), and sends that to all ranks. Then theta = anchor = anchor - step.
 *
 * In an elastic world a rank may be lost with its segment of m, so every rank stores all of m. With float32,
 * D itself is sent to all ranks, and every rank computes the outer step. Other wire formats round the outer
 * step, so the rank that sums still computes it, and the other ranks recover m from it: D = (step / nu - mu^2
 * m) / (1 + mu), therefore m = mu / (1 + mu) m + step / (nu (1 + mu)). They receive the rounded step, so
 * their m differs by at most 2 max |error| / nu. It is used only when a rank takes over a segment. */
#include "compress/compress.h"
#include "exchange/average.h"
#include "strategy/outer.h"

/* ---- the rule ---- */

static void ddp__outer_rule(const ddp__outer_layer *y, float *x, float *m, size_t n)
{
    const float nu = y->all->nu, mu = y->all->mu;

    for (size_t i = 0; i < n; i++) {
        float v = x[i];
        if (m) {
            float kept = mu * m[i];
            DDP__ROUNDED(kept);
            m[i] = kept + v;
            kept = mu * m[i];
            DDP__ROUNDED(kept);
            v += kept;
        }
        x[i] = nu * v;
    }
}

/* Elastic: saves the state before the rule changes it. */
static void ddp__outer_save(ddp__outer_layer *y, size_t at, size_t n)
{
    if (!y->made) y->made_from = at;
    DDP_ASSERT(y->made + n <= y->room);
    memcpy(y->undo + y->made, y->error + at, n * sizeof *y->undo);
    if (y->momentum) memcpy(y->undo + y->room + y->made, y->momentum + at, n * sizeof *y->undo);
    y->made += n;
}

/* ddp_owner.again: restores the state before the message. */
static void ddp__outer_undo(void *user)
{
    ddp__outer_layer *y = (ddp__outer_layer *)user;

    memcpy(y->error + y->made_from, y->undo, y->made * sizeof *y->undo);
    if (y->momentum) memcpy(y->momentum + y->made_from, y->undo + y->room, y->made * sizeof *y->undo);
    y->made = 0;
}

/* ddp_message.owner, called on the comm thread. The quantisation residual of a step is added to the next one.
 * A step that cannot be encoded ends the run when it is sent. */
static void ddp__outer_own(void *user, size_t at, float *x, size_t n)
{
    ddp__outer_layer *y = (ddp__outer_layer *)user;
    float *error = y->error ? y->error + (at - y->from) : NULL;

    if (y->all->elastic) {
        /* always computed: messages do not wait for each other, so *trained is not known yet */
        ddp__outer_save(y, at, n);
    } else if (!(*y->trained > 0)) {
        memset(x, 0, n * sizeof *x);
        return;
    }
    if (y->previous) ddp__late_compensate(x, y->anchor + at, y->previous + (at - y->from), n, y->all->lambda);
    ddp__outer_rule(y, x, y->momentum ? y->momentum + (at - y->from) : NULL, n);
    if (!error) return;
    for (size_t i = 0; i < n; i++) error[i] += x[i];
    if (ddp_split(y->all->coding, error, x, n, NULL)) memcpy(x, error, n * sizeof *x);
}

/* The rule for a rank that stores all of the momentum. It uses verbs, which also work on a device. */
static int ddp__outer_rule_there(ddp_ctx *d, const ddp__outer_layer *y, float *x, float *m, size_t n)
{
    const float mu = y->all->mu;

    if (m && (ddp_scale(d, m, n, mu) || ddp_axpy(d, m, x, n, 1) || ddp_axpy(d, x, m, n, mu)))
        return DDP_FAILED;
    return ddp_scale(d, x, n, y->all->nu);
}

/* ---- a layer: sends its delta, receives the outer step ---- */

int ddp__outer_others(ddp_ctx *d, ddp__outer_layer *y)
{
    ddp_message m = ddp__mean_message(d, y->layer, NULL, 0);

    m.from = ddp_others_of(d, y->layer, &m.from_count);
    return m.from_count ? ddp_post(d, &m, &y->other_ticket) : 0;
}

/* Determines whether this rank has a delta of the layer. first: the first layer of the message about it */
static void ddp__outer_look(ddp_ctx *d, ddp__outer_layer *y, int first)
{
    y->idle = y->fresh || ddp_updates_of(d, y->layer) == y->updates;
    y->updates = ddp_updates_of(d, y->layer);
    *y->trained = !y->idle;
    y->holder = first;
}

/* One message for adjacent layers of the same group. */
static int ddp__outer_tell_run(ddp_ctx *d, ddp__outer *o, int first, int last)
{
    const ddp_piece word = {{o->trained + last}, (size_t)(first - last + 1)};
    ddp_message m = ddp__mean_message(d, first, &word, 1);
    long ticket;

    for (int l = first; l >= last; l--) ddp__outer_look(d, &o->layer[l], first);
    m.here = 1;
    DDP__DO(ddp_post(d, &m, &ticket));
    for (int l = first; l >= last; l--) o->layer[l].told = ticket;
    o->layer[first].told_ticket = ticket;
    return 0;
}

int ddp__outer_tell_some(ddp_ctx *d, ddp__outer *o, const int *layer, int n)
{
    for (int i = 0, k; i < n; i = k) {
        const int group = ddp_group_of(d, layer[i]);
        ddp_message m = ddp__mean_message(d, layer[i], o->words, 0);
        long ticket;
        for (k = i; k < n && ddp_group_of(d, layer[k]) == group; k++) {
            ddp__outer_look(d, &o->layer[layer[k]], layer[i]);
            o->words[m.from_count].data = o->trained + layer[k];
            o->words[m.from_count++].count = 1;
        }
        m.here = 2;
        DDP__DO(ddp_post(d, &m, &ticket));
        for (int j = i; j < k; j++) o->layer[layer[j]].told = ticket;
        o->layer[layer[i]].told_ticket = ticket;
    }
    return 0;
}

int ddp__outer_tell(ddp_ctx *d, ddp__outer *o, int first, int last)
{
    for (int l = first; l >= last; l--) {
        if (l > last && ddp_group_of(d, l - 1) == ddp_group_of(d, l)) continue;
        DDP__DO(ddp__outer_tell_run(d, o, first, l));
        first = l - 1;
    }
    return 0;
}

int ddp__outer_change(ddp_ctx *d, ddp__outer_layer *y, const float *since)
{
    const ddp_piece *p = y->piece;

    if (!y->fresh && !y->idle) DDP__DO(ddp_kept_wait(d, y->layer));
    for (size_t at = 0; at < y->count; at += p++->count) {
        float *x = y->x ? y->x + at : p->data;
        if (y->fresh || y->idle) {
            DDP__DO(ddp_set(d, x, p->count, 0));
        } else if (y->x) {
            DDP__DO(ddp_copy(d, x, since + at, p->count));
            DDP__DO(ddp_axpy(d, x, p->data, p->count, -1));
        } else {
            DDP__DO(ddp_scale(d, x, p->count, -1));
            DDP__DO(ddp_axpy(d, x, since + at, p->count, 1));
        }
    }
    if (y->fresh && y->error) /* the residual is a copy of its donor's, which the donor sends */
        memset(y->error, 0, (y->all->keep ? y->share : y->length) * sizeof *y->error);
    y->fresh = 0;
    return 0;
}

int ddp__outer_post(ddp_ctx *d, ddp__outer_layer *y)
{
    ddp_message m = ddp__mean_message(d, y->layer, y->x ? &y->whole : y->piece, y->x ? 1 : y->pieces);

    if (!y->count) return 0;
    /* *trained must be known before one rank computes the step for all. If every rank computes it, it is
     * enough to know it on arrival */
    if (!y->all->mean && !y->all->elastic && (!y->all->whole || y->all->sites)) m.after = y->told + 1;
#ifndef DDP_NO_PLANNERS
    if (y->all->keep) return ddp__sparse_send(d, y, &m);
#endif
    m.coding = y->all->coding;
    if (!y->idle) m.residual = ddp_residual_of(d, y->layer);
    m.owner = y->all->whole || y->all->mean ? NULL : &y->owner;
    y->made = 0;
    return ddp_post(d, &m, &y->ticket);
}

/* Sets the outer step to 0 in place. */
static int ddp__outer_still(ddp_ctx *d, const ddp__outer_layer *y)
{
    for (int i = 0; i < y->pieces; i++) DDP__DO(ddp_set(d, y->piece[i].data, y->piece[i].count, 0));
    return 0;
}

/* Recovers the momentum of n values from `at` on from their outer step x, except those this rank computed. */
static void ddp__outer_follow(ddp__outer_layer *y, size_t at, const float *x, size_t n)
{
    const float nu = y->all->nu, mu = y->all->mu, decay = mu / (1 + mu), part = 1 / (nu * (1 + mu));

    for (size_t i = 0; i < n; i++) {
        float *m = &y->momentum[at + i], kept = decay * *m, more = part * x[i];
        DDP__ROUNDED(kept);
        DDP__ROUNDED(more);
        if (at + i < y->made_from || at + i >= y->made_from + y->made) *m = kept + more;
    }
}

/* Elastic: updates the momentum after the message. If layers are on a device, a download waits until the
 * message is done, because the rule may still be running. */
static int ddp__outer_made(ddp_ctx *d, ddp__outer_layer *y)
{
    const ddp_piece *p = y->x ? &y->whole : y->piece;
    const int keeps = y->momentum && *y->trained > 0;

    if (y->all->arrived && !keeps) DDP__DO(ddp_download(d, y->all->arrived, p->data, 1));
    for (size_t at = 0; keeps && at < y->count; at += p++->count) {
        if (y->all->arrived) DDP__DO(ddp_download(d, y->all->arrived, p->data, p->count));
        ddp__outer_follow(y, at, y->all->arrived ? y->all->arrived : p->data, p->count);
    }
    if (!(*y->trained > 0)) ddp__outer_undo(y);
    return 0;
}

int ddp__outer_arrive(ddp_ctx *d, ddp__outer_layer *y, int layer)
{
    const ddp__outer *o = y->all;
    const ddp_piece *p = y->piece;

    if (y->ticket == -1) return 0;
    if (!o->mean) DDP__DO(ddp__hold_once(d, &o->layer[y->holder].told_ticket, layer));
    DDP__DO(ddp__hold_once(d, &y->ticket, layer));
    DDP__DO(ddp_kept_wait(d, y->layer));
#ifndef DDP_NO_PLANNERS
    if (o->keep) DDP__DO(ddp__sparse_arrive(d, y));
#endif
    if (o->elastic) DDP__DO(ddp__outer_made(d, y));
    if (!o->mean && !(*y->trained > 0)) return y->x ? ddp_set(d, y->x, y->count, 0) : ddp__outer_still(d, y);
    if (o->whole && y->previous)
        DDP__DO(ddp_late_apply(d, y->anchor, y->x, y->previous, y->count, DDP_LATE_COMPENSATE, o->lambda));
    for (size_t at = 0; o->whole && !o->mean && at < y->count; at += p++->count)
        DDP__DO(ddp__outer_rule_there(d, y, y->x ? y->x + at : p->data, y->momentum ? y->momentum + at : NULL,
                                      p->count));
    return 0;
}

/* theta = anchor = anchor - x. */
static int ddp__outer_land(ddp_ctx *d, ddp__outer_layer *y)
{
    const ddp_piece *p = y->piece;

    for (size_t at = 0; at < y->count; at += p++->count)
        DDP__DO(ddp_axpy(d, y->anchor + at, y->x ? y->x + at : p->data, p->count, -1));
    return ddp__pieces_write(d, y->piece, y->pieces, y->anchor);
}

/* Sets the anchor to theta. */
static int ddp__outer_anchor(ddp_ctx *d, ddp__outer_layer *y)
{
    return y->anchor ? ddp__pieces_read(d, y->piece, y->pieces, y->anchor) : 0;
}

/* ---- start, and the end of a step ---- */

/* Allocates n floats for the layer, unless n is 0. Returns 0 if out of memory. */
static int ddp__outer_keep(ddp_ctx *d, const ddp__outer_layer *y, const char *name, size_t n, int equal,
                           float **out)
{
    if (n) *out = ddp_keep(d, y->layer, name, n, equal);
    return !n || *out;
}

/* The largest number of n values that a rank sums: when the world has shrunk to its minimum size. Blocks are
 * not split. */
static size_t ddp__outer_room(const ddp_ctx *d, size_t n)
{
    const size_t least =
        ddp_settings(d)->elastic.min_world > 0 ? (size_t)ddp_settings(d)->elastic.min_world : 1;
    const size_t room = n / least + DDP_QUANTISE_BLOCK;

    return room < n ? room : n;
}

static int ddp__outer_layer_start(ddp_ctx *d, ddp__outer *o, int layer)
{
    ddp__outer_layer *y = &o->layer[layer];
    const ddp_overlap overlap = ddp_settings(d)->outer.overlap;
    const int eager = overlap == DDP_OVERLAP_EAGER, late = overlap != DDP_OVERLAP_NONE;

    y->all = o;
    y->layer = layer;
    y->owner.rule = ddp__outer_own;
    y->owner.user = y;
    y->owner.again = ddp__outer_undo;
    y->ticket = y->other_ticket = y->before[0] = y->before[1] = y->lands = y->told = y->told_ticket = -1;
    y->trained = o->trained + layer;
    *y->trained = 1;
    y->piece = ddp_trained_of(d, layer, &y->pieces);
    y->count = ddp__gradient_count(d, layer);
    if (!y->count || (o->mean && !late)) return 0;
    y->fresh = ddp_settings(d)->elastic.join;
    y->length = y->count;
    if (!o->whole && !o->elastic)
        y->length = ddp_segment_of(d, ddp_group_of(d, layer), o->coding, y->count, &y->from);
    y->room = ddp__outer_room(d, y->count);
    if (!ddp__outer_keep(d, y, "anchor", y->count, 1 | DDP_KEPT_LATER, &y->anchor) ||
        !ddp__outer_keep(d, y, "momentum", o->mu > 0 ? y->length : 0,
                         o->whole     ? 1 | DDP_KEPT_LATER
                         : o->elastic ? DDP_KEPT_HERE | DDP_KEPT_TOLD | DDP_KEPT_LATER
                                      : DDP_KEPT_HERE,
                         &y->momentum) ||
        !ddp__outer_keep(d, y, "error", o->coding != DDP_AS_FLOAT && !o->whole ? y->length : 0, DDP_KEPT_HERE,
                         &y->error) ||
        !ddp__outer_keep(d, y, "undo", o->elastic ? y->room * (o->mu > 0 ? 2 : 1) : 0,
                         DDP_KEPT_HERE | DDP_KEPT_NOWHERE, &y->undo) ||
        !ddp__outer_keep(d, y, "flight", late ? y->count : 0, eager ? 1 | DDP_KEPT_LATER : DDP_KEPT_DRAINED,
                         &y->x) ||
        !ddp__outer_keep(d, y, "own", eager ? y->count : 0, 0, &y->own) ||
        !ddp__outer_keep(d, y, "previous", eager && o->lambda > 0 ? y->length : 0,
                         o->whole || o->elastic ? 1 | DDP_KEPT_LATER : 0, &y->previous))
        return DDP_FAILED;
    if (!late && !o->sites) y->x = o->shared; /* with overlap, x is separate until it is applied */
#ifndef DDP_NO_PLANNERS
    if (o->keep && ddp__sparse_start(d, y)) return DDP_FAILED;
#endif
    y->whole.data = y->x;
    y->whole.count = y->count;
    if (ddp__outer_anchor(d, y) || (y->own && ddp_copy(d, y->own, y->anchor, y->count))) return DDP_FAILED;
    return y->previous ? ddp_copy(d, y->previous, y->anchor + y->from, y->length) : 0;
}

#ifndef DDP_NO_PLANNERS
/* Allocates the buffers from which sparse deltas are packed, one layer at a time. */
static int ddp__outer_shared(ddp_ctx *d, ddp__outer *o)
{
    const size_t links = o->sites ? (size_t)ddp_links(d) : 1; /* without sites one thread packs */

    o->most = 1;
    for (int l = 0; l < ddp_layers(d); l++)
        if (ddp__gradient_count(d, l) > o->most) o->most = ddp__gradient_count(d, l);
    o->scratch_bytes = ddp_sparse_scratch(o->keep);
    o->scratch = (unsigned char *)ddp__lists(d, links, o->scratch_bytes);
    o->shared = ddp_keep(d, DDP_NO_LAYER, "a change", links * o->most, DDP_KEPT_NOWHERE);
    if (o->shared && ddp_settings(d)->backend) {
        o->packed = ddp_keep(d, DDP_NO_LAYER, "a change here", o->most, DDP_KEPT_HERE | DDP_KEPT_NOWHERE);
        if (!o->packed) return DDP_MEMORY;
    }
    return o->scratch && o->shared ? 0 : DDP_MEMORY;
}
#endif

/* Allocates host memory for outer steps of layers on a device. */
static int ddp__outer_arrived(ddp_ctx *d, ddp__outer *o)
{
    size_t most = 1;

    for (int l = 0; l < ddp_layers(d); l++)
        if (ddp__gradient_count(d, l) > most) most = ddp__gradient_count(d, l);
    o->arrived = ddp_keep(d, DDP_NO_LAYER, "a step here", most, DDP_KEPT_HERE | DDP_KEPT_NOWHERE);
    return o->arrived ? 0 : DDP_FAILED;
}

int ddp__outer_start(ddp_ctx *d, void *self)
{
    const ddp_config *c = ddp_settings(d);
    ddp__outer *o = (ddp__outer *)self;
    const int alone = ddp_world(d) == 1; /* makes no message and encodes no values */

    o->nu = (float)c->outer.lr;
    o->mu = c->outer.momentum > 0 ? (float)c->outer.momentum : 0;
    o->lambda = (float)c->outer.compensation;
    o->mixture = c->outer.mixture > 0 ? (float)c->outer.mixture : 0;
    o->coding = alone ? DDP_AS_FLOAT : ddp_coding_of(d);
#ifndef DDP_NO_PLANNERS
    o->sites = ddp_sites_of(d);
    if (c->wire == DDP_WIRE_TOPK && !alone && !(o->sites && o->sites->members == ddp_world(d)))
        o->keep = ddp_sparse_keep(c->topk_fraction);
    if (!o->keep) o->sites = NULL;
    if (o->keep) DDP__DO(ddp__outer_shared(d, o));
#endif
    /* in these cases a segment is not summed by one rank of this world on the host */
    o->whole =
        alone || o->keep || c->site > 0 || (c->backend && (c->device.nccl || c->outer.compensation > 0));
    o->waits = !o->whole || o->sites;
    /* a rank may be lost with its segment of the momentum */
    if (c->elastic.min_world > 0 || c->elastic.join) {
        o->whole |= o->coding == DDP_AS_FLOAT;
        o->elastic = !o->whole;
    }
    o->mean = o->nu == 1 && !(o->mu > 0) && o->coding == DDP_AS_FLOAT && !o->keep &&
              c->outer.overlap != DDP_OVERLAP_EAGER;
    o->waits &= !o->mean;
    o->layer = (ddp__outer_layer *)ddp__lists(d, (size_t)ddp_layers(d), sizeof *o->layer);
    o->trained = (float *)ddp__lists(d, (size_t)ddp_layers(d), sizeof *o->trained);
    if (!o->layer || !o->trained) return DDP_MEMORY;
    if (o->elastic && c->backend) DDP__DO(ddp__outer_arrived(d, o));
    for (int l = 0; l < ddp_layers(d); l++) DDP__DO(ddp__outer_layer_start(d, o, l));
    return 0;
}

/* All layers exchange their deltas in the last step of a period. */
int ddp__outer_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__outer *o = (ddp__outer *)self;

    if (o->mean) return ddp__local_step_end(d, self, forward);
    DDP__DO(ddp__clip_and_update(d, 0));
    if (ddp__period_ends(d)) DDP__DO(ddp__outer_tell(d, o, ddp_layers(d) - 1, 0));
    for (int l = ddp_layers(d) - 1; ddp__period_ends(d) && l >= 0; l--) {
        DDP__DO(ddp__outer_others(d, &o->layer[l]));
        DDP__DO(ddp__outer_change(d, &o->layer[l], o->layer[l].anchor));
        DDP__DO(ddp__outer_post(d, &o->layer[l]));
    }
    for (int l = ddp_layers(d) - 1; ddp__period_ends(d) && l >= 0; l--) {
        DDP__DO(ddp__hold_once(d, &o->layer[l].other_ticket, l));
        DDP__DO(ddp__hold_once(d, &o->layer[l].told_ticket, DDP_NO_LAYER));
        DDP__DO(ddp__outer_arrive(d, &o->layer[l], l));
        DDP__DO(ddp__outer_land(d, &o->layer[l]));
    }
    return ddp__clip_and_update(d, 1);
}

int ddp__outer_sync_all(ddp_ctx *d, void *self)
{
    ddp__outer *o = (ddp__outer *)self;

    for (int l = ddp_layers(d) - 1; l >= 0; l--) {
        ddp__outer_layer *y = &o->layer[l];
        /* a joining worker without a delta takes the anchor */
        if (y->fresh) DDP__DO(ddp__pieces_write(d, y->piece, y->pieces, y->anchor));
    }
    DDP__DO(ddp__average_differing(d));
    for (int l = ddp_layers(d) - 1; l >= 0; l--) DDP__DO(ddp__outer_anchor(d, &o->layer[l]));
    return 0;
}

/* Parameters were replaced, so the momentum and the residuals are reset. */
int ddp__outer_restart(ddp_ctx *d, void *self)
{
    ddp__outer *o = (ddp__outer *)self;

    for (int l = 0; l < ddp_layers(d); l++) {
        ddp__outer_layer *y = &o->layer[l];
        if (y->momentum && o->whole)
            DDP__DO(ddp_set(d, y->momentum, y->length, 0));
        else if (y->momentum)
            memset(y->momentum, 0, y->length * sizeof *y->momentum);
        if (y->error) memset(y->error, 0, (o->keep ? y->share : y->length) * sizeof *y->error);
        y->fresh = 0;
        y->updates = ddp_updates_of(d, l);
        DDP__DO(ddp__outer_anchor(d, y));
    }
    return 0;
}
