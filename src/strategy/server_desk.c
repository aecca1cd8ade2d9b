/* The server side: receives pushes and pulls of each worker, updates, answers. One thread does all of it. */
#include "exchange/collective.h"
#include "nn/exact.h"
#include "plan/osp/osp.h"
#include "strategy/server.h"

/* ---- memory ---- */

static int ddp__clients_open(ddp_ctx *d, ddp__servers *s, ddp__store *t)
{
    const size_t words = DDP__HEAD_WORDS + (size_t)s->set_words, in = words + t->share->count;
    const size_t layers = (size_t)t->share->layers, workers = (size_t)s->workers;
    const size_t each = in + words + DDP__HEAD_WORDS + 2 * layers;
    float *room = (float *)ddp__lists(d, workers * each, sizeof *room);

    t->client = (ddp__client *)ddp__lists(d, workers, sizeof *t->client);
    t->ticket = (long *)ddp__lists(d, workers, sizeof *t->ticket);
    t->at = (size_t *)ddp__lists(d, layers, sizeof *t->at);
    t->state = (float **)ddp__lists(d, layers, sizeof *t->state);
    t->sum = (float *)ddp__lists(d, t->share->count, sizeof *t->sum);
    if (!room || !t->client || !t->ticket || !t->at || !t->state || !t->sum) return DDP_MEMORY;
    for (int w = 0; w < s->workers; w++, room += each) {
        t->client[w].in = room;
        t->client[w].ask = room + in;
        t->client[w].head = room + in + words;
    }
    return 0;
}

/* Optimizer state. A worker leaves the layer's own state unused, so the server takes that, except with osp.
 * If layers are on a device the server needs its own state in host memory. */
static int ddp__store_state(ddp_ctx *d, ddp__servers *s, ddp__store *t)
{
    size_t n;

    for (int i = 0; i < t->share->layers; i++) {
        t->state[i] = ddp_state_of(d, t->share->layer[i], &n);
        if (!t->state[i] || s->own < 0 || (!s->returns_mean && !ddp_settings(d)->backend)) continue;
        t->state[i] = ddp_keep(d, t->share->layer[i], "server state", n, DDP_KEPT_HERE);
        if (!t->state[i]) return DDP_MEMORY;
    }
    return 0;
}

int ddp__store_open(ddp_ctx *d, ddp__servers *s, const ddp__line *share)
{
    const size_t layers = (size_t)share->layers, numbers = 2 * layers + 2 * (size_t)s->workers + 1;
    ddp__store *t = (ddp__store *)ddp__lists(d, 1, sizeof *t);
    float *kept;
    size_t at = 0;
    int n;

    if (!t) return DDP_MEMORY;
    s->store = t;
    t->share = share;
    DDP__DO(ddp__clients_open(d, s, t));
    kept = ddp_keep(d, DDP_NO_LAYER, "server numbers", 2 * numbers, DDP_KEPT_HERE);
    if (!kept) return DDP_MEMORY;
    t->version = (int64_t *)(void *)kept;
    t->importance = (double *)(void *)(t->version + layers);
    t->clock = t->version + 2 * layers;
    t->pulled = t->clock + s->workers;
    t->pushes = t->pulled + s->workers;
    if (share->count == 0) return 0;
    t->params = ddp_keep(d, DDP_NO_LAYER, "server parameters", share->count, DDP_KEPT_HERE);
    if (!t->params) return DDP_MEMORY;
    DDP__DO(ddp__store_state(d, s, t));
    for (int i = 0; i < share->layers; i++) {
        const ddp_piece *p = ddp_trained_of(d, share->layer[i], &n);
        t->at[i] = at;
        for (; n-- > 0; at += p++->count) DDP__DO(ddp_download(d, t->params + at, p->data, p->count));
    }
    return 0;
}

/* ---- updates ---- */

static ddp__push_head ddp__push_head_of(const float *in)
{
    ddp__push_head head;

    memcpy(&head, in, sizeof head);
    return head;
}

/* y = weight x, or y += weight x. The product is rounded before the addition. */
static void ddp__sum_add(float *y, const float *x, size_t n, float weight, int first)
{
    size_t i = 0;

    for (; i + 4 <= n; i += 4) {
        const ddp__f4 v = ddp__f4_mul(ddp__f4_all(weight), ddp__f4_load(x + i));
        ddp__f4_store(y + i, first ? v : ddp__f4_load(y + i) + v);
    }
    for (; i < n; i++) {
        float v = weight * x[i];
        DDP__ROUNDED(v);
        y[i] = first ? v : y[i] + v;
    }
}

static int ddp__has_pushed(const ddp__client *x) { return x->state == DDP__CLIENT_PUSHED; }

/* The mean of the pushes, added in rank order as an all-reduce does. Weighted by samples if workers have
 * different numbers of samples. first: the lowest rank in `pushed`. */
static void ddp__push_mean(ddp__servers *s, ddp__store *t, int first, int pushed, size_t n)
{
    const size_t skip = DDP__HEAD_WORDS + (size_t)s->set_words;
    const int64_t samples = ddp__push_head_of(t->client[first].in).samples;
    int64_t all = 0;
    int equal = 1;
    double loss = 0;

    for (int w = first; w < s->workers; w++) {
        const int64_t own = ddp__push_head_of(t->client[w].in).samples;
        if (!ddp__has_pushed(&t->client[w])) continue;
        equal &= own == samples;
        all += own;
    }
    memset(&t->told, 0, sizeof t->told);
    t->told.workers = pushed;
    for (int w = first; w < s->workers; w++) {
        const ddp__push_head head = ddp__push_head_of(t->client[w].in);
        const double part = equal ? 1.0 / pushed : (double)head.samples / (double)all;
        if (!ddp__has_pushed(&t->client[w])) continue;
        ddp__sum_add(t->sum, t->client[w].in + skip, n, equal ? 1 : (float)part, w == first);
        loss += part * (double)head.loss;
        if (head.compute_s > t->told.compute_s) t->told.compute_s = head.compute_s;
        if (head.bytes_per_s > t->told.bytes_per_s) t->told.bytes_per_s = head.bytes_per_s;
    }
    t->told.loss = (float)loss;
    t->told.epoch = ddp__push_head_of(t->client[first].in).epoch;
    if (equal && pushed > 1) ddp__sum_add(t->sum, t->sum, n, 1.0f / (float)pushed, 1);
}

/* Updates the layers of a push, which are contiguous in `gradient`. */
static int ddp__store_update(ddp_ctx *d, ddp__servers *s, ddp__store *t, const float *set,
                             const float *gradient, float rate)
{
    ddp_error err;
    size_t at = 0;

    for (int i = 0; i < t->share->layers; i++) {
        const int l = t->share->layer[i];
        if (!ddp__in_set((const unsigned char *)set, l)) continue;
#ifndef DDP_NO_PLANNERS
        if (s->returns_mean && s->floats[l] &&
            ddp_osp_importance(gradient + at, t->params + t->at[i], s->floats[l], 0, &t->importance[i], &err))
            return ddp_server_fail(d, err.code, "layer %d: %s", l, err.msg);
#endif
        (void)err;
        if (!ddp_no_gradient(gradient + at, s->floats[l])) {
            if (s->floats[l])
                ddp_update_apart(d, l, t->params + t->at[i], gradient + at, t->state[i], (long)t->version[i],
                                 rate);
            t->version[i]++;
        }
        at += s->floats[l];
    }
    return 0;
}

static int ddp__client_gone(const ddp__client *x)
{
    return x->state == DDP__CLIENT_LEFT || x->state == DDP__CLIENT_LOST;
}

/* Rule TOGETHER: updates once all live workers have pushed. */
static int ddp__push_together(ddp_ctx *d, ddp__servers *s, ddp__store *t)
{
    const size_t words = DDP__HEAD_WORDS + (size_t)s->set_words;
    const ddp__client *one;
    int w, gone = 0, pushed = 0, first = 0;

    for (w = 0; w < s->workers; w++) {
        gone += ddp__client_gone(&t->client[w]);
        if (ddp__has_pushed(&t->client[w]) && pushed++ == 0) first = w;
    }
    if (gone && pushed && ddp_settings(d)->elastic.min_world == 0)
        return -ddp_server_fail(d, DDP_PEER_LOST,
                                "a worker has left while %d others continue: every rank must run the same "
                                "number of steps",
                                pushed);
    if (!pushed || pushed + gone < s->workers) return 0;
    one = &t->client[first];
    for (w = first + 1; w < s->workers; w++)
        if (ddp__has_pushed(&t->client[w]) &&
            (t->client[w].got.count != one->got.count ||
             memcmp(t->client[w].in + DDP__HEAD_WORDS, one->in + DDP__HEAD_WORDS, 4 * (size_t)s->set_words)))
            return -ddp_server_fail(d, DDP_MISMATCH, "rank %d pushes other layers than rank %d", w, first);
    t->sum_count = one->got.count - words;
    ddp__push_mean(s, t, first, pushed, t->sum_count);
    w = ddp__store_update(d, s, t, one->in + DDP__HEAD_WORDS, t->sum, ddp__push_head_of(one->in).rate);
    if (w) return -w;
    ++*t->pushes;
    for (w = first; w < s->workers; w++) {
        if (!ddp__has_pushed(&t->client[w])) continue;
        t->clock[w]++;
        t->client[w].state = DDP__CLIENT_DONE;
    }
    return 1;
}

/* Mixes in parameters that a worker has updated itself. */
static void ddp__store_merge(ddp__store *t, const float *theirs, float scale)
{
    for (size_t i = 0; i < t->share->count; i++) {
        float change = scale * (theirs[i] - t->params[i]);
        DDP__ROUNDED(change);
        t->params[i] += change;
    }
    for (int i = 0; i < t->share->layers; i++) t->version[i]++;
}

static int ddp__push_each(ddp_ctx *d, ddp__servers *s, ddp__store *t, int w)
{
    const float given = ddp_settings(d)->server.push_scale,
                scale = given > 0 ? given : 1.0f / (float)s->workers;
    const float *in = t->client[w].in + DDP__HEAD_WORDS;
    ddp__client *x = &t->client[w];
    int bad = 0;

    x->staleness = (int)(*t->pushes - t->pulled[w]);
    if (s->pushes_params)
        ddp__store_merge(t, in + s->set_words, scale);
    else
        bad = ddp__store_update(d, s, t, in, in + s->set_words, ddp__push_head_of(x->in).rate * scale);
    ++*t->pushes;
    t->clock[w]++;
    x->state = DDP__CLIENT_DONE;
    return bad ? -bad : 1;
}

/* Rule IN_TURN: returns the worker whose push is applied next: the one with the fewest steps, then the lowest
 * rank. Returns -1 until the worker that pushed last has received its answer. */
static int ddp__push_turn(const ddp__servers *s, const ddp__store *t)
{
    int first = -1;

    for (int w = 0; w < s->workers; w++) {
        if (ddp__client_gone(&t->client[w])) continue;
        if (t->client[w].owes && !ddp__has_pushed(&t->client[w])) return -1;
        if (first < 0 || t->clock[w] < t->clock[first]) first = w;
    }
    return first;
}

static int ddp__store_apply(ddp_ctx *d, ddp__servers *s, ddp__store *t)
{
    int moved = 0;

    if (s->rule == DDP_SERVING_TOGETHER) return ddp__push_together(d, s, t);
    for (int w = 0; w < s->workers && moved >= 0; w++) {
        if (!ddp__has_pushed(&t->client[w])) continue;
        if (s->rule == DDP_SERVING_IN_TURN && w != ddp__push_turn(s, t)) continue;
        moved = ddp__push_each(d, s, t, w);
    }
    return moved;
}

/* ---- answers ---- */

/* The fewest steps among the live workers. */
static int64_t ddp__least_clock(const ddp__servers *s, const ddp__store *t)
{
    int64_t least = INT64_MAX;

    for (int w = 0; w < s->workers; w++)
        if (!ddp__client_gone(&t->client[w]) && t->clock[w] < least) least = t->clock[w];
    return least;
}

/* 0 if the worker is too far ahead of the slowest one, and its answer has to wait. */
static int ddp__may_answer(const ddp__servers *s, const ddp__store *t, int w)
{
    if (s->ahead < 0 || !t->client[w].owes) return 1;
    return t->clock[w] - ddp__least_clock(s, t) <= s->ahead;
}

/* The values of an answer. Parameters may change while the answer is being sent, so it is a copy, except with
 * rule TOGETHER. */
static float *ddp__answer_values(const ddp__servers *s, const ddp__store *t, const ddp__client *x, size_t *n)
{
    *n = s->returns_mean ? t->sum_count : t->share->count;
    if (s->rule == DDP_SERVING_TOGETHER) return s->returns_mean ? t->sum : t->params;
    if (*n) memcpy(x->in, t->params, *n * sizeof *x->in);
    return x->in;
}

static int ddp__answer(ddp_ctx *d, ddp__servers *s, ddp__store *t, int w)
{
    ddp__client *x = &t->client[w];
    ddp_piece list[2];
    ddp_message m = DDP__ZEROS;
    size_t n;
    float *values = ddp__answer_values(s, t, x, &n);

    t->told.staleness = x->owes ? x->staleness : 0;
    memcpy(x->head, &t->told, sizeof t->told);
    if (t->share->layers)
        memcpy(x->head + DDP__HEAD_WORDS, t->importance, (size_t)t->share->layers * sizeof(double));
    x->owes = 0;
    t->pulled[w] = *t->pushes;
    x->state = DDP__CLIENT_ANSWERS;
    list[0].data = x->head;
    list[0].count = DDP__HEAD_WORDS + (s->returns_mean ? 2 * (size_t)t->share->layers : 0);
    list[1].data = values;
    list[1].count = n;
    if (w == s->own) {
        ddp__line *k = &s->line[s->own];
        k->answer = values;
        ddp__atomic_store(&k->asked, 0);
        x->state = DDP__CLIENT_FREE;
        ddp_server_set(d, &k->answered, 1);
        return 0;
    }
    m.verb = DDP_ANSWER;
    m.from = list;
    m.from_count = 2;
    m.peer = w;
    m.layer = DDP_ALL_LAYERS;
    return ddp_server_post(d, &m, &x->ticket);
}

/* ---- receives ---- */

static int ddp__client_listen(ddp_ctx *d, ddp__servers *s, ddp__store *t, int w, float *to, size_t count,
                              ddp__client_state state)
{
    ddp__client *x = &t->client[w];
    ddp_piece p;
    ddp_message m = DDP__ZEROS;

    x->state = state;
    x->ticket = -1;
    if (w == s->own) return 0;
    p.data = to;
    p.count = count;
    m.verb = DDP_SERVE;
    m.from = &p;
    m.from_count = 1;
    m.peer = w;
    m.layer = DDP_ALL_LAYERS;
    m.received = &x->got;
    return ddp_server_post(d, &m, &x->ticket);
}

/* The new state of a worker whose receive has completed. If the receive returned without a message, it is
 * posted again. */
static ddp__client_state ddp__client_word(const ddp_ctx *d, int w, ddp__client *x)
{
    const int hears = x->state == DDP__CLIENT_HEARS, kind = ddp__push_head_of(hears ? x->in : x->ask).kind;

    if (x->got.verb == DDP_SERVE && w < 64 && !(ddp_live(d) >> w & 1)) return DDP__CLIENT_LOST;
    if (x->got.verb == DDP_SERVE) return hears ? DDP__CLIENT_FREE : DDP__CLIENT_DONE;
    if (x->got.verb == DDP_PULL) return DDP__CLIENT_ASKED;
    if (kind == DDP__SAVES) return DDP__CLIENT_SAVES;
    if (kind == DDP__LEAVES) return DDP__CLIENT_LEFT;
    x->owes = 1;
    return DDP__CLIENT_PUSHED;
}

/* Reads the requests of the worker in this process. */
static void ddp__own_hear(ddp__servers *s, ddp__client *x)
{
    ddp__line *k = &s->line[s->own];
    const int asked = ddp__atomic_load(&k->asked); /* read before `pushed`, which the worker sets first */

    if (x->state == DDP__CLIENT_HEARS && ddp__atomic_load(&k->pushed)) {
        x->got.count = 0;
        for (int i = 0; i < k->pushes; i++) x->got.count += k->push[i].count;
        x->owes = 1;
        x->state = DDP__CLIENT_PUSHED;
        ddp__atomic_store(&k->pushed, 0);
    } else if (asked) {
        x->state = DDP__CLIENT_ASKED;
    } else if (ddp__atomic_load(&k->leaves)) {
        x->state = DDP__CLIENT_LEFT;
    }
}

/* Advances one worker's state. 1 = it changed, < 0 = failed. */
static int ddp__client_turn(ddp_ctx *d, ddp__servers *s, ddp__store *t, int w)
{
    const size_t words = DDP__HEAD_WORDS + (size_t)s->set_words;
    ddp__client *x = &t->client[w];
    const ddp__client_state before = x->state;
    int bad = 0;

    switch (before) {
    case DDP__CLIENT_FREE:
        bad = ddp__client_listen(d, s, t, w, x->in, words + t->share->count, DDP__CLIENT_HEARS);
        break;
    case DDP__CLIENT_DONE:
        bad = ddp__client_listen(d, s, t, w, x->ask, words, DDP__CLIENT_WAITS);
        break;
    case DDP__CLIENT_HEARS:
    case DDP__CLIENT_WAITS:
        if (w == s->own)
            ddp__own_hear(s, x);
        else if (ddp_server_done(d, x->ticket))
            x->state = ddp__client_word(d, w, x);
        break;
    case DDP__CLIENT_ASKED:
        if (ddp__may_answer(s, t, w)) bad = ddp__answer(d, s, t, w);
        break;
    case DDP__CLIENT_ANSWERS:
        if (ddp_server_done(d, x->ticket)) x->state = DDP__CLIENT_FREE;
        break;
    case DDP__CLIENT_PUSHED:
    case DDP__CLIENT_SAVES:
    case DDP__CLIENT_LEFT:
    case DDP__CLIENT_LOST:
        break;
    }
    return bad ? -bad : x->state != before;
}

int ddp__store_turn(ddp_ctx *d, ddp__servers *s)
{
    int moved = 0;

    for (int w = 0; w <= s->workers; w++) {
        const int one =
            w < s->workers ? ddp__client_turn(d, s, s->store, w) : ddp__store_apply(d, s, s->store);
        if (one < 0) return one;
        moved |= one;
    }
    return moved;
}

static int ddp__clients_in(const ddp__servers *s, ddp__client_state state)
{
    int n = 0;

    for (int w = 0; w < s->workers; w++) n += s->store->client[w].state == state;
    return n;
}

int ddp__servers_serve(ddp_ctx *d, void *self)
{
    ddp__servers *s = (ddp__servers *)self;
    ddp__store *t = s->store;
    int bad = 0;

    while (!bad) {
        int moved, here, n = 0;
        do moved = ddp__store_turn(d, s);
        while (moved > 0);
        if (moved < 0) return -moved;
        here = s->workers - ddp__clients_in(s, DDP__CLIENT_LEFT) - ddp__clients_in(s, DDP__CLIENT_LOST);
        if (here == 0) return 0;
        if (ddp__clients_in(s, DDP__CLIENT_SAVES) == here) {
            for (int w = 0; w < s->workers; w++) {
                /* a replacement of a lost worker starts at the step of the others */
                if (ddp__client_gone(&t->client[w]))
                    t->clock[w] = ddp__least_clock(s, t);
                else
                    t->client[w].state = DDP__CLIENT_FREE;
            }
            return DDP_SERVE_SAVE;
        }
        for (int w = 0; w < s->workers; w++)
            if (t->client[w].state == DDP__CLIENT_HEARS || t->client[w].state == DDP__CLIENT_WAITS ||
                t->client[w].state == DDP__CLIENT_ANSWERS)
                if (w != s->own) t->ticket[n++] = t->client[w].ticket;
        bad = ddp_server_wait(d, t->ticket, n);
    }
    return bad;
}
