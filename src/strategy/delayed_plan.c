/* DeFT's schedule at run time. ddp_plan_delayed computes it from the profile, the Preserver accepts or
 * rejects it, and all ranks receive it as bytes. */
#include "exchange/collective.h"
#include "plan/timeline/preserver.h"
#include "strategy/delayed.h"

/* ---- the queues ---- */

static int ddp__parts_fresh(const ddp__parcel *m) { return m->what >> 1 & 1; }

int ddp__queues_send(const ddp__schedule *s, ddp__queues *q, const ddp__parcel *m)
{
    const int layer = m->what >> 2;

    if (layer < 0 || layer >= s->head.layers || m->from != q->sent[layer] || m->to <= m->from ||
        m->to > s->cut[layer])
        return 0;
    q->sent[layer] = m->to;
    q->left -= m->to - m->from;
    return 1;
}

int ddp__queues_begin(const ddp__schedule *s, ddp__queues *q, int iteration)
{
    for (int i = s->first[iteration]; i < s->first[iteration + 1] && !ddp__parts_fresh(&s->parts[i]); i++)
        if (!q->merged || !ddp__queues_send(s, q, &s->parts[i])) return 0;
    q->opens = !q->merged || !q->left;
    if (!q->opens) return 1;
    memset(q->sent, 0, (size_t)s->head.layers * sizeof *q->sent);
    for (int l = q->left = 0; l < s->head.layers; l++) q->left += s->cut[l];
    return 1;
}

void ddp__queues_end(ddp__queues *q, int *k)
{
    k[0] = k[1] = 0;
    q->stored++;
    if (!q->opens) return;
    k[0] = q->merged;
    q->merged = q->stored;
    q->stored = 0;
    if (q->left) return;
    k[1] = q->merged;
    q->merged = 0;
}

int ddp__queues_pass(const ddp__schedule *s, ddp__queues *q, int iteration, int *k)
{
    if (!ddp__queues_begin(s, q, iteration)) return 0;
    for (int i = s->first[iteration]; i < s->first[iteration + 1]; i++)
        if (ddp__parts_fresh(&s->parts[i]) && (!q->opens || !ddp__queues_send(s, q, &s->parts[i]))) return 0;
    ddp__queues_end(q, k);
    return 1;
}

/* 1: every part is sent once, the steady period ends in the state in which it begins, and its updates match
 * k[]. sent: [2 x layers] */
static int ddp__schedule_holds(const ddp__schedule *s, int32_t *sent)
{
    const size_t row = (size_t)s->head.layers * sizeof *sent;
    ddp__queues q, then;
    int updates = 0, k[2];

    memset(&q, 0, sizeof q);
    memset(sent, 0, 2 * row);
    q.sent = sent;
    then = q;
    for (int i = 0; i < s->head.iterations; i++) {
        if (!ddp__queues_pass(s, &q, i, k)) return 0;
        for (int j = 0; j < 2 && i >= s->head.warmup; j++)
            if (k[j] && (updates == s->head.updates || s->k[updates++] != k[j])) return 0;
        if (i + 1 != s->head.warmup) continue;
        then = q;
        memcpy(sent + s->head.layers, sent, row);
    }
    return updates == s->head.updates && q.merged == then.merged && q.stored == then.stored &&
           (!q.merged || !memcmp(sent, sent + s->head.layers, row));
}

/* ---- serialisation ---- */

static size_t ddp__schedule_bytes(const ddp__packed_schedule *h)
{
    return sizeof *h +
           ((size_t)h->layers + (size_t)h->updates + (size_t)h->iterations + 1) * sizeof(int32_t) +
           (size_t)h->messages * sizeof(ddp__parcel);
}

/* Sets the pointers to the lists that follow the head. */
static void ddp__schedule_lists(ddp__schedule *s, void *room)
{
    s->room = room;
    s->cut = (int32_t *)room;
    s->k = s->cut + s->head.layers;
    s->first = s->k + s->head.updates;
    s->parts = (ddp__parcel *)(void *)(s->first + s->head.iterations + 1);
}

void ddp__schedule_free(ddp__schedule *s)
{
    if (s->room) DDP_FREE(s->room);
    memset(s, 0, sizeof *s);
}

/* 1 if the lengths are valid, and first[] rises from 0 to the number of messages. */
static int ddp__schedule_looks(const ddp__schedule *s)
{
    const ddp__packed_schedule *h = &s->head;

    if (s->first[0] != 0 || s->first[h->iterations] != h->messages) return 0;
    for (int i = 0; i < h->iterations; i++)
        if (s->first[i] > s->first[i + 1] || s->first[i + 1] > h->messages) return 0;
    for (int l = 0; l < h->layers; l++)
        if (s->cut[l] < 0 || s->cut[l] > UINT16_MAX) return 0;
    return 1;
}

int ddp__schedule_read(ddp_ctx *d, const ddp_blob *blob, ddp__schedule *out)
{
    const ddp__packed_schedule *h = &out->head;
    int32_t *sent;
    int bad = 0;

    memset(out, 0, sizeof *out);
    if (blob->size >= sizeof *h) memcpy(&out->head, blob->bytes, sizeof *h);
    if (h->layers != ddp_layers(d) || h->warmup < 0 || h->iterations <= h->warmup || h->updates < 0 ||
        h->messages < 0 || h->iterations > 1 << 20 || h->updates > 1 << 20 || h->messages > 1 << 20 ||
        blob->size != ddp__schedule_bytes(h))
        return ddp_complain(d, DDP_MISMATCH,
                            "a plan of %lu bytes for %d layers does not fit this model of %d layers",
                            (unsigned long)blob->size, (int)h->layers, ddp_layers(d));
    ddp__schedule_lists(out, ddp__calloc(blob->size, 1));
    sent = (int32_t *)ddp__calloc((size_t)h->layers, 2 * sizeof *sent);
    if (!out->room || !sent)
        bad = ddp_complain(d, DDP_MEMORY, "out of memory for a plan of %d layers", (int)h->layers);
    else
        memcpy(out->room, blob->bytes + sizeof *h, blob->size - sizeof *h);
    if (!bad && !(ddp__schedule_looks(out) && ddp__schedule_holds(out, sent)))
        bad =
            ddp_complain(d, DDP_MISMATCH, "a plan of %d iterations does not send every gradient exactly once",
                         (int)h->iterations);
    if (sent) DDP_FREE(sent);
    if (bad) ddp__schedule_free(out);
    return bad;
}

/* Appends the messages of one stage in the planner's order: per link, output side first, one message per
 * layer. stage 0: sent in the forward pass, 1: sent before the new gradients exist, 2: new gradients. range:
 * [4 x layers] */
static void ddp__schedule_stage(ddp__schedule *s, const ddp_delayed_plan *p, int iteration, int stage,
                                int swapped, int *range)
{
    const ddp_delayed_step *step = &p->step[iteration];

    memset(range, 0, 4 * (size_t)p->buckets * sizeof *range);
    for (int i = step->first_send; i < step->first_send + step->sends; i++) {
        const ddp_delayed_send *x = &p->send[i];
        int *r = &range[4 * x->bucket + 2 * x->link];
        if (stage != (x->fresh ? 2 : p->no_barrier || x->begin_s >= p->step[x->iteration].forward_s))
            continue;
        if (r[1] == 0 || x->part < r[0]) r[0] = x->part;
        if (x->part + 1 > r[1]) r[1] = x->part + 1;
    }
    for (int l = p->buckets - 1; l >= 0; l--)
        for (int link = 0; link < 2; link++) {
            const int *r = &range[4 * l + 2 * link];
            const ddp__parcel m = {l << 2 | (stage == 2) << 1 | (link ^ swapped), (uint16_t)r[0],
                                   (uint16_t)r[1]};
            if (r[1]) s->parts[s->head.messages++] = m;
        }
}

/* Exposed time of a period when ddp__delayed_step_end runs it, after the queues have reached their steady
 * length. A message starts when it may and its link is free. Only an update waits, for the last message of
 * its gradient. */
static double ddp__schedule_exposed(const ddp__schedule *s, const ddp_delayed_plan *p, const ddp__hardware *w)
{
    const double compute = p->forward_s + p->backward_s;
    const int block = p->period * (1 + 64 / p->period), first = p->warmup + block;
    double busy[2] = {0, 0}, now = 0, before = 0, pending = 0;

    for (int i = 0; i < first + block; i++) {
        const int t = i < p->warmup ? i : p->warmup + (i - p->warmup) % p->period;
        double fresh = 0, end = now + compute;
        if (i == first) before = now;
        for (int j = s->first[t]; j < s->first[t + 1]; j++) {
            const ddp__parcel *m = &s->parts[j];
            const int layer = m->what >> 2, link = m->what & 1;
            double ready = now + (ddp__parts_fresh(m) ? p->forward_s : 0),
                   *last = ddp__parts_fresh(m) ? &fresh : &pending;
            for (int l = s->head.layers - 1; ddp__parts_fresh(m) && l >= layer; l--)
                ready += w->profile->backward_s[l];
            busy[link] = fmax(busy[link], ready) +
                         (m->to - m->from) * p->part_s[layer] * (link ^ w->swapped ? w->mu : 1);
            *last = fmax(*last, busy[link] + w->alpha);
            if (w->paper) end = fmax(end, *last);
        }
        if (p->step[t].applied) end = fmax(end, pending);
        if (p->step[t].applied_now) end = fmax(end, fresh);
        if (p->step[t].opened) pending = fresh;
        now = end;
    }
    return fmax(now - before - block * compute, 0) / block * p->period;
}

/* Allocates *out and sets the lists by the counts in the head. Then resets head.messages, which counts the
 * messages appended. */
static int ddp__schedule_begin(ddp_ctx *d, ddp__schedule *s, ddp_blob *out)
{
    const size_t bytes = ddp__schedule_bytes(&s->head);

    *out = ddp_blob_new(bytes);
    if (!out->bytes)
        return ddp_complain(d, DDP_MEMORY, "out of memory for a plan of %lu bytes", (unsigned long)bytes);
    ddp__schedule_lists(s, out->bytes + sizeof s->head);
    s->head.messages = 0;
    return 0;
}

static void ddp__schedule_end(const ddp__schedule *s, ddp_blob *out)
{
    memcpy(out->bytes, &s->head, sizeof s->head);
    out->size = ddp__schedule_bytes(&s->head);
}

int ddp__schedule_pack(ddp_ctx *d, const ddp_delayed_plan *plan, const ddp__hardware *w, int accepted,
                       ddp_blob *out)
{
    int *range = (int *)ddp__calloc((size_t)plan->buckets, 4 * sizeof *range), bad;
    ddp__schedule s = DDP__ZEROS;

    if (!range) return ddp_complain(d, DDP_MEMORY, "out of memory for a plan of %d layers", plan->buckets);
    s.head.layers = plan->buckets;
    s.head.warmup = plan->warmup;
    s.head.iterations = plan->warmup + plan->period;
    s.head.updates = plan->updates;
    s.head.messages = plan->sends;
    s.head.measured = 1;
    s.head.accepted = accepted;
    s.head.scale = plan->capacity_scale;
    bad = ddp__schedule_begin(d, &s, out);
    for (int i = 0; !bad && i < s.head.iterations; i++)
        for (int stage = 0; stage < 3; stage++) {
            s.first[i] = stage ? s.first[i] : s.head.messages;
            ddp__schedule_stage(&s, plan, i, stage, w->swapped, range);
        }
    DDP_FREE(range);
    if (bad) return bad;
    s.first[s.head.iterations] = s.head.messages;
    for (int l = 0; l < plan->buckets; l++) s.cut[l] = plan->parts_of[l];
    for (int i = 0; i < plan->updates; i++) s.k[i] = plan->k[i];
    s.head.exposed_s = ddp__schedule_exposed(&s, plan, w);
    ddp__schedule_end(&s, out);
    return 0;
}

/* Exposed time of a step of the plan without merging. */
static double ddp__plain_exposed(const ddp_profile *p)
{
    double ready = 0, busy = 0;

    for (int l = p->layers - 1; l >= 0; l--) {
        ready += p->backward_s[l];
        if (p->comm_s[l] > 0) busy = fmax(busy, ready) + p->comm_s[l] + p->gap_s;
    }
    return busy > 0 ? fmax(busy + p->alpha_s - ready, 0) : 0;
}

/* The plan without merging: each gradient is sent whole in its own backward pass and applied at the end of
 * it. exposed_s: exposed time of a step, or 0 if it is unknown. */
static int ddp__schedule_plain(ddp_ctx *d, int measured, double exposed_s, ddp_blob *out)
{
    const int layers = ddp_layers(d);
    ddp__schedule s = DDP__ZEROS;

    s.head.layers = s.head.messages = layers;
    s.head.iterations = s.head.updates = 1;
    s.head.measured = measured;
    s.head.accepted = -1;
    s.head.scale = 1;
    s.head.exposed_s = exposed_s;
    DDP__DO(ddp__schedule_begin(d, &s, out));
    for (int l = layers - 1; l >= 0; l--) {
        const ddp__parcel m = {l << 2 | 2, 0, 1};
        s.cut[l] = ddp__gradient_count(d, l) > 0;
        if (s.cut[l]) s.parts[s.head.messages++] = m;
    }
    s.k[0] = 1;
    s.first[1] = s.head.messages;
    ddp__schedule_end(&s, out);
    return 0;
}

/* ---- the plan ---- */

/* Fills in the Preserver's model of this training. Returns 0 if there is no estimate yet. batch counts
 * workers' micro-batches, the unit of sigma. The model assumes plain SGD, where an update lowers the loss by
 * eta mu. Optimizers such as Adam lower it more, so mu is at least the measured decrease. */
static int ddp__delayed_model(ddp_ctx *d, const ddp__noise *n, ddp_preserver *model)
{
    const ddp_config *c = ddp_settings(d);

    memset(model, 0, sizeof *model);
    model->eta = (double)ddp_rate(d);
    model->mu = fmax(fmax(n->mu, n->gain / model->eta), 0);
    model->sigma = sqrt(n->square);
    model->batch = ddp_workers(d);
    model->start = n->loss;
    model->tolerance = c->deft.preserve;
    model->sum = c->deft.merge_sum;
    return n->samples > 0 && n->loss > 0 && model->eta > 0 && !(c->deft.update_frequency > 0);
}

int ddp__delayed_stale(ddp_ctx *d, const void *self)
{
    const ddp__delayed *x = (const ddp__delayed *)self;
    ddp_preserver model;
    ddp_preserved now;

    if (x->plan.head.accepted < 0 || !ddp__delayed_model(d, &x->noise, &model)) return 0;
    if (x->plan.head.scale > 1 && x->noise.gain < 0.5 * x->noise.planned) return 1;
    return ddp_preserver_test(&model, x->plan.k, x->plan.head.updates, &now, NULL) == DDP_OK &&
           now.accepted != x->plan.head.accepted;
}

/* Returns the number of links. Scales the profile to the faster link, and sets mu for the other one. */
static int ddp__delayed_links(ddp_ctx *d, ddp_profile *p, ddp__hardware *w)
{
    ddp_link_stats second;

    w->mu = 1;
    if (ddp_links(d) < 2 || ddp_get_link_stats(d, 1, &second) || !(second.mu > 0)) return 1;
    w->swapped = second.mu < 1;
    w->mu = w->swapped ? 1 / second.mu : second.mu;
    for (int l = 0; w->swapped && l < p->layers; l++) p->comm_s[l] *= second.mu;
    return 2;
}

/* formats "2, 1, 1" */
static const char *ddp__delayed_sequence(const ddp_delayed_plan *p, char *text, size_t room)
{
    size_t n = 0;

    text[0] = 0;
    for (int i = 0; i < p->updates && n + 16 < room; i++)
        n += (size_t)snprintf(text + n, room - n, "%s%d", i ? ", " : "", p->k[i]);
    if (n + 16 >= room) snprintf(text + n, room - n, ", ...");
    return text;
}

static void ddp__delayed_tell(ddp_ctx *d, const ddp_delayed_plan *p, const ddp_preserved *judged)
{
    char k[96], verdict[96] = "not tested";

    if (judged)
        ddp__format(verdict, sizeof verdict, "ratio of expected losses %.4f %s", judged->ratio,
                    judged->accepted ? "accepted" : "not accepted, but no plan is better");
    ddp_say(d, DDP_LOG_INFO,
            "step %ld: %d updates in %d steps, merging %s; %d parts, %d link%s, knapsacks x %.2f; "
            "Preserver: %s",
            ddp_step(d), p->updates, p->period, ddp__delayed_sequence(p, k, sizeof k), p->parts, p->links,
            p->links > 1 ? "s" : "", p->capacity_scale, verdict);
}

/* Computes and serialises a plan. *out stays empty if the plan has too many bytes. */
static ddp_status ddp__delayed_solve(ddp_ctx *d, const ddp__noise *noise, const ddp__hardware *w,
                                     const ddp_delayed_options *o, ddp_blob *out, ddp_error *err)
{
    ddp_preserver model;
    ddp_preserved judged = DDP__ZEROS;
    ddp_delayed_plan plan = DDP__ZEROS;
    const int tests = ddp__delayed_model(d, noise, &model);
    /* below the limit of a checkpoint (ddp_blob_new) */
    const size_t most = 65536 + 256 * (size_t)ddp_layers(d);
    int bad;

    if (tests)
        DDP__TRY(ddp_preserver_plan(w->profile, o, &model, &plan, &judged, err));
    else
        DDP__TRY(ddp_plan_delayed(w->profile, o, &plan, err));
    bad = ddp__schedule_pack(d, &plan, w, tests ? judged.accepted : -1, out);
    if (!bad && out->size > most)
        ddp_blob_free(out);
    else if (!bad)
        ddp__delayed_tell(d, &plan, tests ? &judged : NULL);
    ddp_delayed_plan_free(&plan);
    return bad ? ddp__fail(err, DDP_MEMORY, "out of memory for a plan") : DDP_OK;
}

int ddp__delayed_make(ddp_ctx *d, void *self, const ddp_profile *p, int measured, ddp_blob *out)
{
    ddp__noise *noise = &((ddp__delayed *)self)->noise;
    const ddp_config *c = ddp_settings(d);
    ddp_delayed_options o = DDP__ZEROS;
    ddp__hardware w = DDP__ZEROS;
    ddp_profile own = DDP__ZEROS;
    ddp_error err;
    ddp_status s;
    double params = 0, plain_s;

    if (!measured || ddp_world(d) == 1)
        return ddp__schedule_plain(d, measured, 0, out); /* one worker sends nothing */
    noise->planned = noise->gain;
    memset(out, 0, sizeof *out);
    s = ddp__gradient_profile(d, p, &own, &err);
    if (s != DDP_OK) return ddp__plan_failed(d, &err);
    plain_s = ddp__plain_exposed(&own);
    w.profile = &own;
    w.alpha = p->alpha_s;
    w.paper = c->plan.paper;
    o.links = ddp__delayed_links(d, &own, &w);
    o.mu = w.mu;
    o.select = c->plan.paper ? DDP_SELECT_PAPER : DDP_SELECT_RELEASE;
    o.no_barrier = c->deft.no_barrier;
    o.target_frequency = c->deft.update_frequency;
    o.partition_params =
        fmax((double)c->gradient.partition_bytes / sizeof(float), ddp__gradient_part_least(&own, w.alpha));
    for (int l = 0; l < own.layers; l++) params += own.params[l];
    for (; s == DDP_OK && !out->bytes; o.partition_params *= 2) {
        s = ddp__delayed_solve(d, noise, &w, &o, out, &err);
        if (s == DDP_OK && !out->bytes && o.partition_params > params)
            s = ddp__fail(&err, DDP_UNSUPPORTED, "the plan is too long to be saved");
    }
    ddp_profile_free(&own);
    if (s == DDP_OK || s == DDP_MEMORY) return s ? ddp__plan_failed(d, &err) : 0;
    ddp_say(d, DDP_LOG_WARN, "%s; every gradient is sent in its own step instead", err.msg);
    return ddp__schedule_plain(d, 1, plain_s, out);
}

double ddp__delayed_exposed(const void *self) { return ((const ddp__delayed *)self)->plan.head.exposed_s; }

/* The transfers of the plan. Messages of the pending gradient may start at the beginning of a step. */
int ddp__delayed_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room)
{
    const ddp__schedule *s = &((const ddp__delayed *)self)->plan;
    int n = 0;

    *period = s->room ? s->head.iterations - s->head.warmup : 1;
    for (int t = 0; s->room && t < *period; t++)
        for (int i = s->first[s->head.warmup + t]; i < s->first[s->head.warmup + t + 1] && n < room; i++) {
            const ddp__parcel *m = &s->parts[i];
            const int layer = m->what >> 2;
            const ddp_transfer x = {t, layer, layer, ddp__parts_fresh(m) ? layer : ddp_layers(d)};
            if (m->from == 0) out[n++] = x; /* counts a layer once */
        }
    return n;
}
