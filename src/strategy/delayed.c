/* DeFT merges the gradients of several iterations. The schedule overlaps their transfers with later
 * iterations, and a merged gradient is applied when all its parts have arrived. Besides its gradient a layer
 * has two sums: the pending one, which is being sent, and the stored one, which collects the next
 * iterations. */
#include "context/stats.h"
#include "exchange/collective.h"
#include "session/session.h"
#include "strategy/delayed.h"

/* ---- messages ---- */

/* Waits for the n oldest messages. */
static int ddp__flights_hold(ddp_ctx *d, ddp__delayed *x, int n)
{
    for (int i = 0; i < n; i++) DDP__DO(ddp_hold(d, x->flight[i].ticket, x->flight[i].layer));
    x->flights -= n;
    x->old -= n < x->old ? n : x->old;
    memmove(x->flight, x->flight + n, (size_t)x->flights * sizeof *x->flight);
    return 0;
}

/* With error feedback, a message needs the residual of the layer's earlier messages. Returns how many of the
 * oldest messages must complete before the next one is posted. */
static int ddp__flights_before(const ddp__delayed *x, int layer, int rounds)
{
    int n = x->flights == x->room;

    for (int i = 0; rounds && i < x->flights; i++)
        if (x->flight[i].layer == layer) n = i + 1;
    return n;
}

/* Posts parts from..to-1 of a layer's sum as one message. */
static int ddp__parts_post(ddp_ctx *d, ddp__delayed *x, int layer, int which, int from, int to, int link)
{
    const int cut = x->plan.cut[layer];
    const size_t begin = ddp__part_begins(x->of[layer].count, from, cut),
                 end = ddp__part_begins(x->of[layer].count, to, cut);
    const ddp_piece piece = {{x->of[layer].sum[which] + begin}, end - begin};
    ddp_message m = ddp__mean_message(d, layer, &piece, 1);

    if (ddp_world(d) == 1 || begin == end) return 0;
    m.coding = ddp_coding_of(d);
    m.residual = ddp_residual_of(d, layer);
    m.link = ddp_links(d) == 2 && link;
    DDP__DO(ddp__flights_hold(d, x, ddp__flights_before(x, layer, m.residual != NULL)));
    if (m.residual) m.residual += begin;
    DDP__DO(ddp_post(d, &m, &x->flight[x->flights].ticket));
    x->flight[x->flights++].layer = layer;
    return 0;
}

static int ddp__parts_send(ddp_ctx *d, ddp__delayed *x, const ddp__parcel *m, int which)
{
    return ddp__parts_post(d, x, m->what >> 2, which, m->from, m->to, m->what & 1);
}

/* Applies a complete merged gradient of k iterations. */
static int ddp__merged_apply(ddp_ctx *d, ddp__delayed *x, int which, int k)
{
    for (int l = ddp_layers(d) - 1; l >= 0; l--) DDP__DO(ddp_update_late(d, l, x->of[l].sum[which], x->rate));
    x->averaged = k;
    x->noise.updates++;
    ddp_stats_of(d)->updates++;
    return 0;
}

/* ---- the saved position ---- */

/* A 24-bit hash that identifies the plan. */
static float ddp__delayed_plan_name(const ddp__schedule *s)
{
    return (float)(ddp__hash(ddp__hash(DDP__HASH_START, &s->head, sizeof s->head), s->parts,
                             (size_t)s->head.messages * sizeof *s->parts) &
                   0xffffff);
}

/* Saves the position in the schedule. No message is in flight, so the sums and these values are the whole
 * state. */
static int ddp__position_write(ddp_ctx *d, ddp__delayed *x)
{
    const float value[DDP__POSITIONS] = {(float)x->at, (float)x->now, x->rate,
                                         ddp__delayed_plan_name(&x->plan)};

    for (int i = 0; i < DDP__POSITIONS; i++) DDP__DO(ddp_set(d, x->position + i, 1, value[i]));
    return 0;
}

/* Reads one number >= 0, which may be in device memory. */
static int ddp__delayed_word(ddp_ctx *d, const float *word, double *out)
{
    const int bad = ddp_norm2(d, word, 1, out);

    *out = sqrt(*out);
    return bad;
}

/* ---- the Preserver's model: mu = |g|^2 and the variance of g . g_w over the workers. g is an averaged
 * gradient, g_w the worker's gradient of a later iteration, so that g does not contain its noise (deft.h)
 * ---- */

enum { DDP__NOISE_EVERY = 16, DDP__NOISE_MEMORY = 16 }; /* in steps, and in samples of the running mean */

static int ddp__noise_due(ddp_ctx *d, const ddp__delayed *x)
{
    return x->noise.measured && x->noise.ticket < 0 && x->q.opens && (x->q.merged || x->averaged) &&
           (!x->plan.head.measured || ddp_step(d) % DDP__NOISE_EVERY == 0);
}

/* g . g_w = (|g + g_w|^2 - |g|^2 - |g_w|^2) / 2, computed with verbs that also work on a device. g is no
 * longer needed, and g_w is set to 0. */
static int ddp__noise_product(ddp_ctx *d, ddp__delayed *x, double *out)
{
    double all = 0, part;
    int n;

    for (int l = 0; l < ddp_layers(d); l++) {
        const ddp_piece *own = ddp_gradients_of(d, l, &n);
        float *g = x->of[l].sum[x->now];
        if (!x->of[l].count) continue;
        DDP__DO(ddp_norm2(d, g, x->of[l].count, &part));
        all -= part;
        for (float *at = g; n-- > 0; at += own++->count) {
            DDP__DO(ddp_norm2(d, own->data, own->count, &part));
            all -= part;
            DDP__DO(ddp_axpy(d, at, own->data, own->count, 1));
        }
        DDP__DO(ddp_norm2(d, g, x->of[l].count, &part));
        all += part;
        DDP__DO(ddp__gradients_zero(d, l));
    }
    *out = all / 2;
    return 0;
}

/* All words are >= 0, because ddp_norm2 is the only verb that reads a value from a device. */
static int ddp__noise_post(ddp_ctx *d, ddp__delayed *x)
{
    const ddp_piece piece = {{x->noise.words}, DDP__NOISE_WORDS};
    const ddp_message m = ddp__mean_message(d, DDP_NO_LAYER, &piece, 1);
    double product, value[DDP__NOISE_WORDS];

    DDP__DO(ddp__noise_product(d, x, &product));
    if (ddp_settings(d)->deft.merge_sum) product /= x->averaged;
    value[0] = fmax(product, 0);
    value[1] = fmax(-product, 0);
    value[2] = product * product;
    value[3] = fmax(ddp_reported(d)->loss, 0);
    for (int i = 0; i < DDP__NOISE_WORDS; i++) DDP__DO(ddp_set(d, x->noise.words + i, 1, (float)value[i]));
    return ddp_post(d, &m, &x->noise.ticket);
}

/* A running mean: of all samples at first, then of about the last DDP__NOISE_MEMORY. n counts this sample. */
static void ddp__noise_add(double *mean, double sample, int n)
{
    *mean += (sample - *mean) / (n < DDP__NOISE_MEMORY ? n : DDP__NOISE_MEMORY);
}

static int ddp__noise_take(ddp_ctx *d, ddp__noise *n)
{
    const double workers = fmax(ddp_workers(d), 2);
    double word[DDP__NOISE_WORDS], mean;

    if (n->ticket < 0) return 0;
    DDP__DO(ddp__hold_once(d, &n->ticket, DDP_NO_LAYER));
    for (int i = 0; i < DDP__NOISE_WORDS; i++) DDP__DO(ddp__delayed_word(d, n->words + i, &word[i]));
    n->samples++;
    mean = word[0] - word[1];
    ddp__noise_add(&n->mu, mean, n->samples);
    ddp__noise_add(&n->square, fmax(word[2] - mean * mean, 0) * workers / (workers - 1), n->samples);
    if (n->samples > 1 && n->updates)
        ddp__noise_add(&n->gain, (n->loss - word[3]) / n->updates, n->samples - 1);
    n->loss = word[3];
    n->updates = 0;
    return 0;
}

/* Disables estimation if the plan can never change, or if layers have groups: those have no common
 * gradient. */
static int ddp__noise_start(ddp_ctx *d, ddp__noise *n)
{
    const ddp_config *c = ddp_settings(d);
    int grouped = 0;

    for (int l = 0; l < ddp_layers(d); l++) grouped |= ddp_group_of(d, l) != 0;
    n->ticket = -1;
    n->measured = ddp_world(d) > 1 && !c->deterministic && !(c->deft.update_frequency > 0) && !grouped;
    n->words = ddp_keep(d, DDP_NO_LAYER, "noise", DDP__NOISE_WORDS, 1);
    return n->words ? 0 : DDP_FAILED;
}

/* ---- a step ---- */

/* Starts an iteration at the end of the previous step, so that parts of the pending gradient are sent as
 * early as possible. left: they were already sent before ddp__delayed_wait. */
static int ddp__delayed_begin(ddp_ctx *d, ddp__delayed *x, int left)
{
    const ddp__schedule *s = &x->plan;

    (void)ddp__queues_begin(s, &x->q, x->at);
    for (x->next = s->first[x->at]; x->next < s->first[x->at + 1] && !(s->parts[x->next].what & 2); x->next++)
        if (!left) DDP__DO(ddp__parts_send(d, x, &s->parts[x->next], x->now));
    x->old = x->flights;
    x->sampling = ddp__noise_due(d, x);
    for (int l = 0; l < ddp_layers(d); l++) x->of[l].ready = 0;
    return 0;
}

/* Adds the layer's gradient to the stored sum. k: iterations in it, including this one. */
static int ddp__delayed_merge(ddp_ctx *d, ddp__delayed *x, int layer, int k)
{
    int n;
    const ddp_piece *own = ddp_gradients_of(d, layer, &n);

    for (float *at = x->of[layer].sum[!x->now]; n-- > 0; at += own++->count)
        DDP__DO(k == 1 ? ddp_copy(d, at, own->data, own->count) : ddp_axpy(d, at, own->data, own->count, 1));
    return x->sampling ? 0 : ddp__gradients_zero(d, layer);
}

/* Turns the stored sum into a mean. */
static int ddp__delayed_mean(ddp_ctx *d, ddp__delayed *x, int layer, int k)
{
    const ddp__delayed_layer *of = &x->of[layer];

    if (k == 1 || ddp_settings(d)->deft.merge_sum || !of->count) return 0;
    return ddp_scale(d, of->sum[!x->now], of->count, 1.0f / (float)k);
}

static int ddp__delayed_backward_end(ddp_ctx *d, void *self, int layer)
{
    ddp__delayed *x = (ddp__delayed *)self;
    const ddp__schedule *s = &x->plan;

    DDP__DO(ddp__delayed_merge(d, x, layer, x->q.stored + 1));
    if (!x->q.opens) return 0;
    DDP__DO(ddp__delayed_mean(d, x, layer, x->q.stored + 1));
    x->of[layer].ready = 1;
    for (; x->next < s->first[x->at + 1] && x->of[s->parts[x->next].what >> 2].ready; x->next++) {
        (void)ddp__queues_send(s, &x->q, &s->parts[x->next]);
        DDP__DO(ddp__parts_send(d, x, &s->parts[x->next], !x->now));
    }
    return 0;
}

/* The stored gradient becomes the pending one. Complete gradients are applied, the older one first. */
static int ddp__delayed_open(ddp_ctx *d, ddp__delayed *x, const int *k)
{
    if (k[0]) DDP__DO(ddp__flights_hold(d, x, x->old));
    if (k[0]) DDP__DO(ddp__merged_apply(d, x, x->now, k[0]));
    if (x->sampling) DDP__DO(ddp__noise_post(d, x));
    x->now = !x->now;
    x->rate = ddp_rate(d);
    x->averaged = 0;
    if (!k[1]) return 0;
    DDP__DO(ddp__flights_hold(d, x, x->flights));
    return ddp__merged_apply(d, x, x->now, k[1]);
}

static int ddp__delayed_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__delayed *x = (ddp__delayed *)self;
    const int opens = x->q.opens;
    int k[2];

    (void)forward;
    DDP__DO(ddp__noise_take(d, &x->noise));
    ddp__queues_end(&x->q, k);
    if (opens) DDP__DO(ddp__delayed_open(d, x, k));
    if (ddp_settings(d)->plan.paper) DDP__DO(ddp__flights_hold(d, x, x->flights));
    if (++x->at == x->plan.head.iterations) x->at = x->plan.head.warmup;
    return ddp__delayed_begin(d, x, 0);
}

/* ---- between steps ---- */

static int ddp__delayed_wait(ddp_ctx *d, void *self)
{
    ddp__delayed *x = (ddp__delayed *)self;

    DDP__DO(ddp__flights_hold(d, x, x->flights));
    DDP__DO(ddp__noise_take(d, &x->noise));
    return x->plan.room ? ddp__position_write(d, x) : 0;
}

/* Posts the unsent parts of a merged gradient and applies it. sent: parts of each layer already sent, or
 * NULL. */
static int ddp__merged_finish(ddp_ctx *d, ddp__delayed *x, int which, const int32_t *sent)
{
    for (int l = ddp_layers(d) - 1; l >= 0; l--)
        DDP__DO(ddp__parts_post(d, x, l, which, sent ? sent[l] : 0, x->plan.cut[l], 0));
    DDP__DO(ddp__flights_hold(d, x, x->flights));
    return ddp__merged_apply(d, x, which, 1);
}

/* Sends and applies the pending gradient, then the stored one, so that no gradient is lost. Restarts the
 * plan. */
static int ddp__delayed_drain(ddp_ctx *d, void *self)
{
    ddp__delayed *x = (ddp__delayed *)self;
    const int k = x->q.stored;

    if (!x->plan.room) return 0;
    if (x->q.merged) DDP__DO(ddp__merged_finish(d, x, x->now, x->q.opens ? x->plan.cut : x->q.sent));
    for (int l = 0; k && l < ddp_layers(d); l++) DDP__DO(ddp__delayed_mean(d, x, l, k));
    if (k) x->rate = ddp_rate(d);
    if (k) DDP__DO(ddp__merged_finish(d, x, !x->now, NULL));
    x->q.merged = x->q.stored = x->at = x->now = x->averaged = 0;
    x->rate = 0;
    DDP__DO(ddp__delayed_begin(d, x, 0));
    return ddp__position_write(d, x);
}

static int ddp__delayed_fits(ddp_ctx *d, void *self, const ddp_blob *blob)
{
    ddp__schedule s;

    (void)self;
    DDP__DO(ddp__schedule_read(d, blob, &s));
    ddp__schedule_free(&s);
    return 0;
}

/* Continues from the saved position: the start, or the position in a checkpoint. */
static int ddp__delayed_take(ddp_ctx *d, void *self, const ddp_blob *blob, const ddp_profile *p)
{
    ddp__delayed *x = (ddp__delayed *)self;
    double word[DDP__POSITIONS];
    ddp__schedule s;
    int k[2];

    (void)p;
    for (int i = 0; i < DDP__POSITIONS; i++) DDP__DO(ddp__delayed_word(d, x->position + i, &word[i]));
    DDP__DO(ddp__schedule_read(d, blob, &s));
    if (word[0] > 0 && (!(word[0] < s.head.iterations) || (float)word[3] != ddp__delayed_plan_name(&s))) {
        ddp__schedule_free(&s);
        return ddp_complain(d, DDP_MISMATCH,
                            "the checkpoint has gradients that were to be sent by another plan: resume with "
                            "the same number of workers, or call ddp_sync_all before you save");
    }
    ddp__schedule_free(&x->plan);
    x->plan = s;
    x->now = word[1] > 0;
    x->rate = (float)word[2];
    x->averaged = x->q.merged = x->q.stored = x->q.left = 0;
    for (x->at = 0; (double)x->at < word[0]; x->at++) (void)ddp__queues_pass(&x->plan, &x->q, x->at, k);
    return ddp__delayed_begin(d, x, 1);
}

static int ddp__delayed_start(ddp_ctx *d, void *self)
{
    ddp__delayed *x = (ddp__delayed *)self;
    const size_t layers = (size_t)ddp_layers(d);

    x->room = 4 * ddp_layers(d) + 32;
    x->of = (ddp__delayed_layer *)ddp__lists(d, layers, sizeof *x->of);
    x->q.sent = (int32_t *)ddp__lists(d, layers, sizeof *x->q.sent);
    x->flight = (ddp__flight *)ddp__lists(d, (size_t)x->room, sizeof *x->flight);
    x->position = ddp_keep(d, DDP_NO_LAYER, "position", DDP__POSITIONS, 1);
    if (!x->of || !x->q.sent || !x->flight || !x->position) return DDP_FAILED;
    DDP__DO(ddp__noise_start(d, &x->noise));
    for (int l = 0; l < ddp_layers(d); l++) {
        x->of[l].count = ddp__gradient_count(d, l);
        for (int i = 0; i < 2 && x->of[l].count; i++) {
            x->of[l].sum[i] = ddp_keep(d, l, i ? "merged1" : "merged0", x->of[l].count, DDP_KEPT_DRAINED);
            if (!x->of[l].sum[i]) return DDP_FAILED;
        }
    }
    return 0;
}

static void ddp__delayed_close(ddp_ctx *d, void *self)
{
    (void)d;
    ddp__schedule_free(&((ddp__delayed *)self)->plan);
}

void ddp__strategy_deft(ddp_strategy_ops *ops)
{
    ops->averages = DDP_AVERAGES_GRADIENTS;
    ops->traits = DDP_CHOOSES_LINKS | (DDP_WITH_ALL & ~(DDP_WITH_CLIP | DDP_WITH_FIRST));
    ops->self_bytes = sizeof(ddp__delayed);
    ops->start = ddp__delayed_start;
    ops->backward_end = ddp__delayed_backward_end;
    ops->step_end = ddp__delayed_step_end;
    ops->wait = ddp__delayed_wait;
    ops->drain = ddp__delayed_drain;
    ops->close = ddp__delayed_close;
    ops->plan_make = ddp__delayed_make;
    ops->plan_take = ddp__delayed_take;
    ops->plan_fits = ddp__delayed_fits;
    ops->plan_stale = ddp__delayed_stale;
    ops->plan_exposed = ddp__delayed_exposed;
    ops->transfers = ddp__delayed_transfers;
}
