/* DeFT: gradients of several iterations are merged, sent when the schedule hides them behind later ones, and applied when
 * all of a merged gradient has come. A layer has two sums beside its gradient: the pending one, which is on its way,
 * and the one that gathers behind it. */
#include "run/collective.h"
#include "run/config.h"
#include "run/stats.h"
#include "strategy/delayed.h"

static float *ddp__sum(const ddp__delayed *x, int layer, int which) { return x->sum[2 * layer + which]; }

/* ---- messages ---- */

/* Holds the n oldest. */
static int ddp__flights_hold(ddp_ctx *d, ddp__delayed *x, int n)
{
    int bad = 0;

    for (int i = 0; i < n && !bad; i++) bad = ddp_hold(d, x->flight[i], x->flight_of[i]);
    x->flights -= n;
    x->old -= n < x->old ? n : x->old;
    memmove(x->flight, x->flight + n, (size_t)x->flights * sizeof *x->flight);
    memmove(x->flight_of, x->flight_of + n, (size_t)x->flights * sizeof *x->flight_of);
    return bad;
}

/* Rounding adds what earlier messages of the layer cut off: they have to be done. */
static int ddp__flights_before(const ddp__delayed *x, int layer, int rounds)
{
    int n = x->flights == x->room;

    for (int i = 0; rounds && i < x->flights; i++)
        if (x->flight_of[i] == layer) n = i + 1;
    return n;
}

/* Parts from..to-1 of a layer's sum. */
static int ddp__parts_post(ddp_ctx *d, ddp__delayed *x, int layer, int which, int from, int to, int link)
{
    const int cut = x->plan.cut[layer];
    const size_t begin = ddp__part_begins(x->count[layer], from, cut),
                 end = ddp__part_begins(x->count[layer], to, cut);
    ddp_piece piece;
    ddp_message m;
    int bad;

    if (ddp_world(d) == 1 || begin == end) return 0;
    memset(&m, 0, sizeof m);
    piece.data = ddp__sum(x, layer, which) + begin;
    piece.count = end - begin;
    m.verb = DDP_ALL_REDUCE;
    m.from = &piece;
    m.from_count = 1;
    m.mean = 1;
    m.group = ddp_group_of(d, layer);
    m.step = ddp_step(d);
    m.layer = layer;
    m.coding = ddp_coding_of(d);
    m.residual = ddp_residual_of(d, layer);
    m.link = ddp_links(d) == 2 && link;
    bad = ddp__flights_hold(d, x, ddp__flights_before(x, layer, m.residual != NULL));
    if (m.residual) m.residual += begin;
    if (!bad) bad = ddp_post(d, &m, &x->flight[x->flights]);
    if (!bad) x->flight_of[x->flights++] = layer;
    return bad;
}

static int ddp__parts_send(ddp_ctx *d, ddp__delayed *x, const ddp__parcel *m, int which)
{
    return ddp__parts_post(d, x, m->what >> 2, which, m->from, m->to, m->what & 1);
}

/* Applies a merged gradient of k iterations, which is whole. */
static int ddp__merged_apply(ddp_ctx *d, ddp__delayed *x, int which, int k)
{
    int bad = 0;

    for (int l = ddp_layers(d) - 1; l >= 0 && !bad; l--) bad = ddp_update_late(d, l, ddp__sum(x, l, which), x->rate);
    x->averaged = k;
    x->noise.updates++;
    ddp_stats_of(d)->updates++;
    return bad;
}

/* ---- where it stands ---- */

/* A number of 24 bits that names the plan. */
static float ddp__delayed_plan_name(const ddp__schedule *s)
{
    return (float)(ddp__hash(ddp__hash(DDP__HASH_START, &s->head, sizeof s->head), s->parts,
                             (size_t)s->head.messages * sizeof *s->parts) & 0xffffff);
}

/* Nothing is in flight: the position is all that is not a sum. */
static int ddp__position_write(ddp_ctx *d, ddp__delayed *x)
{
    const float value[DDP__POSITIONS] = {(float)x->at, (float)x->now, x->rate, ddp__delayed_plan_name(&x->plan)};
    int bad = 0;

    for (int i = 0; i < DDP__POSITIONS && !bad; i++) bad = ddp_set(d, x->position + i, 1, value[i]);
    return bad;
}

/* A number >= 0 that may be a device's. */
static int ddp__delayed_word(ddp_ctx *d, const float *word, double *out)
{
    const int bad = ddp_norm2(d, word, 1, out);

    *out = sqrt(*out);
    return bad;
}

/* ---- the Preserver's model: mu = |g|^2 and the variance of g . g_w over workers, g an averaged gradient and g_w the
 * worker's own one of a later iteration, so that g does not hold its noise (deft.h) ---- */

enum { DDP__NOISE_EVERY = 16, DDP__NOISE_MEMORY = 16 }; /* steps; samples that the mean is of */

static int ddp__noise_due(ddp_ctx *d, const ddp__delayed *x)
{
    return x->noise.measured && x->noise.ticket < 0 && x->q.opens && (x->q.merged || x->averaged) &&
           (!x->plan.head.measured || ddp_step(d) % DDP__NOISE_EVERY == 0);
}

/* g . g_w = (|g + g_w|^2 - |g|^2 - |g_w|^2) / 2 with the verbs that a device has; g is nobody's, g_w is consumed. */
static int ddp__noise_product(ddp_ctx *d, ddp__delayed *x, double *out)
{
    double all = 0, part;
    int n, bad = 0;

    for (int l = 0; l < ddp_layers(d) && !bad; l++) {
        const ddp_piece *own = ddp_gradients_of(d, l, &n);
        float *g = ddp__sum(x, l, x->now);
        if (x->count[l]) bad = ddp_norm2(d, g, x->count[l], &part);
        if (x->count[l]) all -= part;
        for (float *at = g; n-- > 0 && !bad; at += own++->count) {
            bad = ddp_norm2(d, own->data, own->count, &part);
            all -= part;
            if (!bad) bad = ddp_axpy(d, at, own->data, own->count, 1);
            if (!bad) bad = ddp_set(d, own->data, own->count, 0);
        }
        if (x->count[l] && !bad) bad = ddp_norm2(d, g, x->count[l], &part);
        if (x->count[l]) all += part;
    }
    *out = all / 2;
    return bad;
}

/* Words are >= 0: a device's can be read by ddp_norm2 alone. */
static int ddp__noise_post(ddp_ctx *d, ddp__delayed *x)
{
    double product, value[DDP__NOISE_WORDS];
    ddp_piece piece;
    ddp_message m;
    int bad = ddp__noise_product(d, x, &product);

    if (ddp_settings(d)->merge_sum) product /= x->averaged;
    value[0] = fmax(product, 0);
    value[1] = fmax(-product, 0);
    value[2] = product * product;
    value[3] = fmax(ddp_reported(d)->loss, 0);
    for (int i = 0; i < DDP__NOISE_WORDS && !bad; i++) bad = ddp_set(d, x->noise.words + i, 1, (float)value[i]);
    memset(&m, 0, sizeof m);
    piece.data = x->noise.words;
    piece.count = DDP__NOISE_WORDS;
    m.verb = DDP_ALL_REDUCE;
    m.from = &piece;
    m.from_count = 1;
    m.mean = 1;
    m.layer = DDP_NO_LAYER;
    m.step = ddp_step(d);
    return bad ? bad : ddp_post(d, &m, &x->noise.ticket);
}

/* The mean of the first, then of about the last samples; n: with this one. */
static void ddp__noise_add(double *mean, double sample, int n)
{
    *mean += (sample - *mean) / (n < DDP__NOISE_MEMORY ? n : DDP__NOISE_MEMORY);
}

static int ddp__noise_take(ddp_ctx *d, ddp__noise *n)
{
    const double workers = fmax(ddp_workers(d), 2);
    double word[DDP__NOISE_WORDS], mean;
    int bad;

    if (n->ticket < 0) return 0;
    bad = ddp_hold(d, n->ticket, DDP_NO_LAYER);
    n->ticket = -1;
    for (int i = 0; i < DDP__NOISE_WORDS && !bad; i++) bad = ddp__delayed_word(d, n->words + i, &word[i]);
    if (bad) return bad;
    n->samples++;
    mean = word[0] - word[1];
    ddp__noise_add(&n->mu, mean, n->samples);
    ddp__noise_add(&n->square, fmax(word[2] - mean * mean, 0) * workers / (workers - 1), n->samples);
    if (n->samples > 1 && n->updates) ddp__noise_add(&n->gain, (n->loss - word[3]) / n->updates, n->samples - 1);
    n->loss = word[3];
    n->updates = 0;
    return 0;
}

/* Where nothing is planned again nothing is measured; groups have no common gradient. */
static int ddp__noise_start(ddp_ctx *d, ddp__noise *n)
{
    const ddp_config *c = ddp_settings(d);
    int grouped = 0;

    for (int l = 0; l < ddp_layers(d); l++) grouped |= ddp_group_of(d, l) != 0;
    n->ticket = -1;
    n->measured = ddp_world(d) > 1 && !c->deterministic && !(c->update_frequency > 0) && !grouped;
    n->words = ddp_keep(d, DDP_NO_LAYER, "noise", DDP__NOISE_WORDS, 1);
    return n->words ? 0 : (int)ddp_last_error(d)->code;
}

/* ---- a step ---- */

/* What is pending leaves as early as it can, at the end of the step before; left: it has (ddp__delayed_wait). */
static int ddp__delayed_begin(ddp_ctx *d, ddp__delayed *x, int left)
{
    const ddp__schedule *s = &x->plan;
    int bad = 0;

    (void)ddp__queues_begin(s, &x->q, x->at);
    for (x->next = s->first[x->at]; x->next < s->first[x->at + 1] && !(s->parts[x->next].what & 2) && !bad; x->next++)
        if (!left) bad = ddp__parts_send(d, x, &s->parts[x->next], x->now);
    x->old = x->flights;
    x->sampling = ddp__noise_due(d, x);
    memset(x->ready, 0, (size_t)ddp_layers(d));
    return bad;
}

/* The layer's gradient joins the stored ones; k: iterations, with this one. */
static int ddp__delayed_merge(ddp_ctx *d, ddp__delayed *x, int layer, int k)
{
    float *sum = ddp__sum(x, layer, !x->now);
    int n, bad = 0;
    const ddp_piece *own = ddp_gradients_of(d, layer, &n);

    for (float *at = sum; n-- > 0 && !bad; at += own++->count) {
        bad = k == 1 ? ddp_copy(d, at, own->data, own->count) : ddp_axpy(d, at, own->data, own->count, 1);
        if (!bad && !x->sampling) bad = ddp_set(d, own->data, own->count, 0);
    }
    return bad;
}

/* The stored sum becomes the mean. */
static int ddp__delayed_mean(ddp_ctx *d, ddp__delayed *x, int layer, int k)
{
    if (k == 1 || ddp_settings(d)->merge_sum || !x->count[layer]) return 0;
    return ddp_scale(d, ddp__sum(x, layer, !x->now), x->count[layer], 1.0f / (float)k);
}

static int ddp__delayed_backward_end(ddp_ctx *d, void *self, int layer)
{
    ddp__delayed *x = (ddp__delayed *)self;
    const ddp__schedule *s = &x->plan;
    int bad = ddp__delayed_merge(d, x, layer, x->q.stored + 1);

    if (!x->q.opens || bad) return bad;
    bad = ddp__delayed_mean(d, x, layer, x->q.stored + 1);
    x->ready[layer] = 1;
    for (; !bad && x->next < s->first[x->at + 1] && x->ready[s->parts[x->next].what >> 2]; x->next++) {
        (void)ddp__queues_send(s, &x->q, &s->parts[x->next]);
        bad = ddp__parts_send(d, x, &s->parts[x->next], !x->now);
    }
    return bad;
}

/* The opened gradient becomes the pending one; both that are whole are applied, in their order. */
static int ddp__delayed_open(ddp_ctx *d, ddp__delayed *x, const int *k)
{
    int bad = 0;

    if (k[0]) bad = ddp__flights_hold(d, x, x->old);
    if (k[0] && !bad) bad = ddp__merged_apply(d, x, x->now, k[0]);
    if (x->sampling && !bad) bad = ddp__noise_post(d, x);
    x->now = !x->now;
    x->rate = ddp_rate(d);
    x->averaged = 0;
    if (k[1] && !bad) bad = ddp__flights_hold(d, x, x->flights);
    if (k[1] && !bad) bad = ddp__merged_apply(d, x, x->now, k[1]);
    return bad;
}

static int ddp__delayed_step_end(ddp_ctx *d, void *self, int forward)
{
    ddp__delayed *x = (ddp__delayed *)self;
    const int opens = x->q.opens;
    int k[2], bad = ddp__noise_take(d, &x->noise);

    (void)forward;
    ddp__queues_end(&x->q, k);
    if (opens && !bad) bad = ddp__delayed_open(d, x, k);
    if (ddp_settings(d)->paper && !bad) bad = ddp__flights_hold(d, x, x->flights);
    if (++x->at == x->plan.head.iterations) x->at = x->plan.head.warmup;
    return bad ? bad : ddp__delayed_begin(d, x, 0);
}

/* ---- between steps ---- */

static int ddp__delayed_wait(ddp_ctx *d, void *self)
{
    ddp__delayed *x = (ddp__delayed *)self;
    int bad = ddp__flights_hold(d, x, x->flights);

    if (!bad) bad = ddp__noise_take(d, &x->noise);
    return bad || !x->plan.room ? bad : ddp__position_write(d, x);
}

/* Posts the rest of a merged gradient and applies it. */
static int ddp__merged_finish(ddp_ctx *d, ddp__delayed *x, int which, const int32_t *sent)
{
    int bad = 0;

    for (int l = ddp_layers(d) - 1; l >= 0 && !bad; l--)
        if ((sent ? sent[l] : 0) < x->plan.cut[l])
            bad = ddp__parts_post(d, x, l, which, sent ? sent[l] : 0, x->plan.cut[l], 0);
    if (!bad) bad = ddp__flights_hold(d, x, x->flights);
    return bad ? bad : ddp__merged_apply(d, x, which, 1);
}

/* The pending gradient, then what has gathered behind it: none is lost. The plan begins again. */
static int ddp__delayed_drain(ddp_ctx *d, void *self)
{
    ddp__delayed *x = (ddp__delayed *)self;
    const int k = x->q.stored;
    int bad = 0;

    if (!x->plan.room) return 0;
    if (x->q.merged) bad = ddp__merged_finish(d, x, x->now, x->q.opens ? x->plan.cut : x->q.sent);
    for (int l = 0; k && l < ddp_layers(d) && !bad; l++) bad = ddp__delayed_mean(d, x, l, k);
    if (k) x->rate = ddp_rate(d);
    if (k && !bad) bad = ddp__merged_finish(d, x, !x->now, NULL);
    x->q.merged = x->q.stored = x->at = x->now = x->averaged = 0;
    x->rate = 0;
    if (!bad) bad = ddp__delayed_begin(d, x, 0);
    return bad ? bad : ddp__position_write(d, x);
}

/* From where the kept position is: the beginning, or a checkpoint's. */
static int ddp__delayed_take(ddp_ctx *d, void *self, const ddp_blob *blob, const ddp_profile *p)
{
    ddp__delayed *x = (ddp__delayed *)self;
    double word[DDP__POSITIONS];
    ddp__schedule s;
    int bad, k[2];

    (void)p;
    bad = ddp__schedule_read(d, blob, &s);
    for (int i = 0; i < DDP__POSITIONS && !bad; i++) bad = ddp__delayed_word(d, x->position + i, &word[i]);
    if (bad) return bad;
    if (word[0] > 0 && (!(word[0] < s.head.iterations) || (float)word[3] != ddp__delayed_plan_name(&s))) {
        ddp__schedule_free(&s);
        return ddp_complain(d, DDP_MISMATCH, "the checkpoint has gradients that wait for their sending under another "
                            "plan: go on with as many workers, or save after ddp_sync_all");
    }
    ddp__schedule_free(&x->plan);
    x->plan = s;
    x->now = word[1] > 0;
    x->rate = (float)word[2];
    x->averaged = x->q.merged = x->q.stored = x->q.left = 0;
    for (x->at = 0; x->at < (int)word[0]; x->at++) (void)ddp__queues_pass(&x->plan, &x->q, x->at, k);
    return ddp__delayed_begin(d, x, 1);
}

static int ddp__delayed_start(ddp_ctx *d, void *self)
{
    ddp__delayed *x = (ddp__delayed *)self;
    const size_t layers = (size_t)ddp_layers(d);
    int bad;

    x->room = 4 * ddp_layers(d) + 32;
    x->sum = (float **)ddp__calloc(2 * layers, sizeof *x->sum);
    x->count = (size_t *)ddp__calloc(layers, sizeof *x->count);
    x->ready = (unsigned char *)ddp__calloc(layers, 1);
    x->q.sent = (int32_t *)ddp__calloc(layers, sizeof *x->q.sent);
    x->flight = (long *)ddp__calloc((size_t)x->room, sizeof *x->flight);
    x->flight_of = (int *)ddp__calloc((size_t)x->room, sizeof *x->flight_of);
    if (!x->sum || !x->count || !x->ready || !x->q.sent || !x->flight || !x->flight_of)
        return ddp_complain(d, DDP_MEMORY, "out of memory for %d layers", ddp_layers(d));
    x->position = ddp_keep(d, DDP_NO_LAYER, "position", DDP__POSITIONS, 1);
    bad = x->position ? ddp__noise_start(d, &x->noise) : (int)ddp_last_error(d)->code;
    for (int l = 0; l < ddp_layers(d) && !bad; l++) {
        x->count[l] = ddp__gradient_count(d, l);
        for (int i = 0; i < 2 && x->count[l] && !bad; i++) {
            x->sum[2 * l + i] = ddp_keep(d, l, i ? "merged1" : "merged0", x->count[l], DDP_KEPT_DRAINED);
            if (!x->sum[2 * l + i]) bad = (int)ddp_last_error(d)->code;
        }
    }
    return bad;
}

static void ddp__delayed_close(ddp_ctx *d, void *self)
{
    ddp__delayed *x = (ddp__delayed *)self;

    (void)d;
    ddp__schedule_free(&x->plan);
    if (x->sum) DDP_FREE(x->sum);
    if (x->count) DDP_FREE(x->count);
    if (x->ready) DDP_FREE(x->ready);
    if (x->q.sent) DDP_FREE(x->q.sent);
    if (x->flight) DDP_FREE(x->flight);
    if (x->flight_of) DDP_FREE(x->flight_of);
}

void ddp__strategy_deft(ddp_strategy_ops *ops)
{
    ops->name = "deft";
    ops->averages = DDP_AVERAGES_GRADIENTS;
    ops->traits = DDP_CHOOSES_LINKS | (DDP_WITH_ALL & ~DDP_WITH_CLIP);
    ops->self_bytes = sizeof(ddp__delayed);
    ops->start = ddp__delayed_start;
    ops->backward_end = ddp__delayed_backward_end;
    ops->step_end = ddp__delayed_step_end;
    ops->wait = ddp__delayed_wait;
    ops->drain = ddp__delayed_drain;
    ops->close = ddp__delayed_close;
    ops->plan_first = ddp__delayed_first;
    ops->plan_make = ddp__delayed_make;
    ops->plan_take = ddp__delayed_take;
    ops->plan_stale = ddp__delayed_stale;
    ops->plan_exposed = ddp__delayed_exposed;
    ops->transfers = ddp__delayed_transfers;
}
