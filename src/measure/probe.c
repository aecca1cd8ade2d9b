/* Measures all pairs of ranks, one round of disjoint pairs after the other. In a pair the lower rank leads:
 * it sends pings, then transfers. Then the other one sends transfers.
 *
 * On a busy machine a thread wakes up late, which is not a property of the link. Times are therefore the due
 * times of the comm thread's events, and an answer contains the time that the question waited until the rank
 * woke up. */
#include "comm/engine.h"
#include "measure/measure.h"
#include "context/context.h"
#include "exchange/collective.h"
#include "exchange/post.h"
#include "measure/timing.h"
#include "plan/tour.h"
#include "profile/network.h"

enum {
    DDP__PINGS = 20,
    DDP__PINGS_LEAST = 8,
    DDP__PARTS_SENT = 4,        /* messages of a transfer */
    DDP__PROBE_SMALL = 8192,    /* bytes of the first transfer */
    DDP__PROBE_LARGE = 4194304, /* bytes of the longest transfer */
    DDP__PROBE_GROWTH = 4,
    DDP__PROBE_SPANS = 16,
    DDP__PROBE_SIZES = 2 /* sizes in the fit of a pair: a ping, and the longest transfer */
};
static const double ddp__pair_s = 0.25; /* wanted duration of a transfer, in seconds */

/* Control message between transfers. */
typedef struct ddp__probe_word {
    double next;   /* bytes of the next transfer, 0 for a ping, or negative for the end */
    double wall_s; /* wall clock of the answering rank, or in the last message the time of a ping */
    double lay_s;  /* seconds that the question waited until the rank woke up */
    double part_s[DDP__PARTS_SENT]; /* when each message of a transfer was received, after the first one */
} ddp__probe_word;

typedef struct ddp__prober {
    ddp_ctx *d;
    char *x;                 /* [DDP__PROBE_LARGE] */
    double *bytes, *seconds; /* [n] the fastest time of each size of each pair, the current one last */
    int n;
} ddp__prober;

static int ddp__probe_bytes(ddp__prober *q, ddp_verb verb, void *data, size_t bytes, int peer)
{
    ddp_piece p;
    ddp_message m = ddp__own_word(q->d, &p, verb, 0, data, bytes);

    m.peer = peer;
    return ddp_exchange(q->d, &m);
}

static int ddp__say(ddp__prober *q, ddp__probe_word *w, int peer)
{
    return ddp__probe_bytes(q, DDP_SEND, w, sizeof *w, peer);
}

static int ddp__hear(ddp__prober *q, ddp__probe_word *w, int peer)
{
    memset(w, 0, sizeof *w);
    return ddp__probe_bytes(q, DDP_RECEIVE, w, sizeof *w, peer);
}

/* Returns the newest message of the verb since `since`, as recorded by the comm thread. */
static ddp__op_span ddp__recorded(ddp__prober *q, ddp_verb verb, double since)
{
    ddp__op_span seen[DDP__PROBE_SPANS], last;
    double now = ddp_now();
    int n = ddp__engine_spans(ddp__engine_of(q->d, 0), since, now, seen, DDP__PROBE_SPANS);

    while (n > 0 && (seen[n - 1].verb != verb || seen[n - 1].end < 0)) n--;
    if (n > 0) return seen[n - 1];
    memset(&last, 0, sizeof last);
    last.submitted = since;
    last.due = now;
    return last;
}

/* Returns how long the last received message has waited on this rank, in seconds. */
static double ddp__lay(ddp__prober *q, double since)
{
    double seconds = ddp_now() - ddp__recorded(q, DDP_RECEIVE, since).due;

    return seconds > 0 ? seconds : 0;
}

/* ---- pings ---- */

static int ddp__ping(ddp__prober *q, int peer, ddp_pair *out)
{
    double trip[DDP__PINGS], shortest = DBL_MAX, begin = ddp_now();
    int n = -1; /* the first ping wakes the threads up and does not count */

    for (; n < DDP__PINGS && (n < DDP__PINGS_LEAST || ddp_now() < begin + 3); n++) {
        ddp__probe_word w;
        double t0, w0, asked;
        memset(&w, 0, sizeof w);
        w0 = ddp__wall();
        t0 = ddp_now();
        DDP__DO(ddp__say(q, &w, peer));
        DDP__DO(ddp__hear(q, &w, peer));
        if (n < 0) continue;
        asked = ddp__recorded(q, DDP_SEND, t0).submitted;
        trip[n] = ddp__recorded(q, DDP_RECEIVE, t0).due - asked - w.lay_s;
        if (trip[n] < 1e-9) trip[n] = 1e-9;
        if (trip[n] < shortest) {
            shortest = trip[n];
            out->offset_s = w.wall_s - w.lay_s - (w0 + asked - t0) - shortest / 2;
        }
    }
    qsort(trip, (size_t)n, sizeof *trip, ddp__rising);
    out->ping_s = trip[0] / 2;
    out->ping_median_s = (trip[(n - 1) / 2] + trip[n / 2]) / 4;
    return 0;
}

/* ---- transfers ----
 *
 * A transfer is a few messages that follow each other without a pause. Only the second half of them counts,
 * because a token bucket lets the first bytes pass at a higher rate. Their receiver measures how long it
 * takes to receive them, so that delays cancel out. */

/* Sends or receives the messages of a transfer. */
static int ddp__probe_parts(ddp__prober *q, ddp_verb verb, size_t bytes, int peer)
{
    long ticket[DDP__PARTS_SENT];
    ddp_error *err = ddp__error(q->d);

    for (int i = 0; i < DDP__PARTS_SENT; i++) {
        ddp_piece p;
        ddp_message m = ddp__own_word(q->d, &p, verb, 0, q->x, bytes / DDP__PARTS_SENT);
        m.peer = peer;
        if (ddp__post_here(q->d, &m, &ticket[i], err)) return ddp__ctx_fail(q->d, err);
    }
    for (int i = 0; i < DDP__PARTS_SENT; i++)
        if (ddp__engine_wait(ddp__engine_of(q->d, 0), ticket[i], err)) return ddp__ctx_fail(q->d, err);
    return 0;
}

/* Stores when the parts of the newest transfer were received. */
static void ddp__parts_received(ddp__prober *q, double since, double part_s[DDP__PARTS_SENT])
{
    ddp__op_span seen[DDP__PROBE_SPANS];
    int n = ddp__engine_spans(ddp__engine_of(q->d, 0), since, ddp_now(), seen, DDP__PROBE_SPANS);

    for (int i = DDP__PARTS_SENT; i > 0 && n > 0; n--)
        if (seen[n - 1].verb == DDP_RECEIVE && seen[n - 1].end >= 0) part_s[--i] = seen[n - 1].due;
    for (int i = DDP__PARTS_SENT; i-- > 0;) part_s[i] -= part_s[0];
}

/* Times a transfer. w->part_s receives when its messages were received, and *seconds its duration without the
 * answer's way back, half a round trip. */
static int ddp__transfer(ddp__prober *q, int peer, size_t bytes, double back_s, ddp__probe_word *w,
                         double *seconds)
{
    double since;

    memset(w, 0, sizeof *w);
    w->next = (double)bytes;
    DDP__DO(ddp__say(q, w, peer));
    since = ddp_now();
    DDP__DO(ddp__probe_parts(q, DDP_SEND, bytes, peer));
    DDP__DO(ddp__hear(q, w, peer));
    *seconds = ddp__recorded(q, DDP_RECEIVE, since).due - since - w->lay_s - back_s;
    if (*seconds < 1e-9) *seconds = 1e-9;
    return 0;
}

/* Transfers of one size. */
typedef struct ddp__timed_size {
    ddp__meter meter;
    double fastest_s;
    int times;
    /* seconds of each: from the first message to the second, from the last but one to the last, of the
     * second half, and of all */
    double begun_s[DDP__METER_MOST], ended_s[DDP__METER_MOST], half_s[DDP__METER_MOST],
        all_s[DDP__METER_MOST];
} ddp__timed_size;

/* Times one more transfer. Returns 1 after a failure. *enough: whether more of this size are needless. */
static int ddp__size_add(ddp__prober *q, int peer, size_t bytes, double back_s, ddp__timed_size *t,
                         int *enough)
{
    const int last = DDP__PARTS_SENT - 1, half = DDP__PARTS_SENT / 2;
    ddp__probe_word w;
    double seconds;

    DDP__DO(ddp__transfer(q, peer, bytes, back_s, &w, &seconds));
    if (t->times < DDP__METER_MOST) {
        t->begun_s[t->times] = w.part_s[1];
        t->ended_s[t->times] = w.part_s[last] - w.part_s[last - 1];
        t->half_s[t->times] = w.part_s[last] - w.part_s[half - 1];
        t->all_s[t->times++] = seconds;
    }
    *enough = ddp__meter_add(&t->meter, (double)bytes, seconds, &t->fastest_s);
    return 0;
}

static double ddp__middle(const double *x, int n)
{
    double sorted[DDP__METER_MOST];

    memcpy(sorted, x, (size_t)n * sizeof *x);
    qsort(sorted, (size_t)n, sizeof *sorted, ddp__rising);
    return sorted[n / 2];
}

/* Returns a larger size if these transfers were too short, or contained the burst of a token bucket: their
 * first messages arrived faster than their last ones. */
static size_t ddp__size_next(size_t bytes, const ddp__timed_size *t)
{
    const double begun = ddp__middle(t->begun_s, t->times), ended = ddp__middle(t->ended_s, t->times);
    double growth = fmin(DDP__PROBE_GROWTH, ddp__pair_s / t->fastest_s);

    if (begun < 0.85 * ended && t->fastest_s < 2 * ddp__pair_s) growth = fmax(growth, 2);
    if (growth < 1.25) return bytes;
    return (size_t)fmin(growth * (double)bytes, DDP__PROBE_LARGE) / DDP__PARTS_SENT * DDP__PARTS_SENT;
}

/* Bytes per second: the median of the second halves, because a receiver that wakes up late reads the last
 * messages together. After a loss TCP holds back the bytes that follow the lost ones. This delays the first
 * half of many transfers but not their end, so the second half seems too fast. The time of whole transfers
 * limits the rate, because a token bucket passes only a small part of a long transfer faster. */
static double ddp__size_rate(size_t bytes, double ping_s, const ddp__timed_size *t)
{
    const double half = (double)(bytes / DDP__PARTS_SENT) * (DDP__PARTS_SENT - DDP__PARTS_SENT / 2);
    const double rate = half / fmax(ddp__middle(t->half_s, t->times), 1e-9);
    /* TCP needs a few round trips until it fills a link with a long delay */
    const double all_s = ddp__middle(t->all_s, t->times) - 5 * ping_s, tolerance = 1.1;

    return all_s > ddp__pair_s / 5 ? fmin(rate, tolerance * (double)bytes / all_s) : rate;
}

/* Measures the rate to a peer: transfers that grow until they are long enough, and repetitions of that size.
 * A busy machine may delay a single transfer, so the fastest decides whether a size is long enough. */
static int ddp__source(ddp__prober *q, int peer, ddp_pair *out)
{
    const int first = q->n;
    ddp__probe_word over = DDP__ZEROS;
    ddp__timed_size t;
    size_t bytes, next = DDP__PROBE_SMALL;
    int enough;

    over.next = -1;
    over.wall_s = out->ping_s;
    do {
        bytes = next;
        memset(&t, 0, sizeof t);
        do {
            DDP__DO(ddp__size_add(q, peer, bytes, out->ping_s, &t, &enough));
            next = ddp__size_next(bytes, &t);
        } while (next == bytes && !enough);
    } while (next > bytes);
    DDP__DO(ddp__say(q, &over, peer));
    out->rate = ddp__size_rate(bytes, out->ping_s, &t);
    q->bytes[q->n] = 0; /* the few bytes of a ping pass a token bucket in no time */
    q->seconds[q->n++] = out->ping_s;
    q->bytes[q->n] = (double)bytes;
    q->seconds[q->n++] = out->ping_s + (double)bytes / out->rate;
    return (int)ddp_link_fit(q->bytes + first, q->seconds + first, q->n - first, &out->link,
                             ddp__error(q->d));
}

/* Answers pings and transfers until the end. *w is the last control message. */
static int ddp__probe_answer(ddp__prober *q, int peer, ddp__probe_word *w)
{
    for (;;) {
        const double since = ddp_now();
        DDP__DO(ddp__hear(q, w, peer));
        if (!(w->next >= 0 && w->next <= (double)DDP__PROBE_LARGE)) return 0;
        if (w->next > 0) {
            DDP__DO(ddp__probe_parts(q, DDP_RECEIVE, (size_t)w->next, peer));
            ddp__parts_received(q, since, w->part_s);
        }
        w->lay_s = ddp__lay(q, since);
        w->wall_s = ddp__wall();
        DDP__DO(ddp__say(q, w, peer));
    }
}

static int ddp__probe_pair(ddp__prober *q, int peer, ddp_pair *out)
{
    ddp__probe_word last;

    if (ddp_rank(q->d) < peer) {
        DDP__DO(ddp__ping(q, peer, out));
        DDP__DO(ddp__source(q, peer, out));
        return ddp__probe_answer(q, peer, &last);
    }
    DDP__DO(ddp__probe_answer(q, peer, &last));
    out->ping_s = last.wall_s;
    return ddp__source(q, peer, out);
}

/* ---- all pairs ---- */

/* Returns the partner of a rank in a round-robin tournament of `even` players. The last one keeps its
 * place. */
static int ddp__opponent(int rank, int round, int even)
{
    const int seats = even - 1;

    if (rank == seats || rank == round) return rank == seats ? round : seats;
    return (2 * round - rank + 2 * seats) % seats;
}

static int ddp__probe_rounds(ddp__prober *q, ddp_probe_result *out)
{
    const int world = ddp_world(q->d), even = world + world % 2;

    for (int round = 0; round < even - 1; round++) {
        const int peer = ddp__opponent(ddp_rank(q->d), round, even);
        ddp_pair *pair = &out->pair[ddp_rank(q->d) * world + peer];
        DDP__DO(ddp_barrier(q->d));
        if (peer >= world) continue;
        DDP__DO(ddp__probe_pair(q, peer, pair));
        pair->relayed = ddp__engine_relayed(ddp__engine_of(q->d, 0), peer);
    }
    return 0;
}

/* Shares the measurements of every rank with all ranks. */
static int ddp__probe_share(ddp__prober *q, ddp_probe_result *out)
{
    const size_t world = (size_t)ddp_world(q->d);
    ddp_error *err = ddp__error(q->d);

    if (ddp__gather_words(q->d, 0, out->pair, world * sizeof *out->pair, err) ||
        ddp__gather_words(q->d, 0, out->host, sizeof *out->host, err) ||
        ddp__gather_words(q->d, 0, out->name, sizeof *out->name, err))
        return ddp__ctx_fail(q->d, err);
    /* a round trip is measured by one of its ends */
    for (size_t r = 0; r < world; r++)
        for (size_t c = 0; c < r; c++) {
            const ddp_pair *led = &out->pair[c * world + r];
            ddp_pair *p = &out->pair[r * world + c];
            p->ping_s = led->ping_s;
            p->ping_median_s = led->ping_median_s;
            p->offset_s = -led->offset_s;
        }
    return 0;
}

int ddp_probe(ddp_ctx *d, ddp_probe_result *out)
{
    ddp__prober q = DDP__ZEROS;
    size_t world;
    double begin = ddp_now();
    int bad;

    DDP__ENTER(d);
    if (!out) return ddp__ctx_failf(d, DDP_ARG, "ddp_probe: the result is NULL");
    if (ddp_workers(d) < ddp_world(d))
        return ddp__ctx_failf(d, DDP_UNSUPPORTED,
                              "ddp_probe: %d of %d workers are live; links can be measured only with all "
                              "workers, so without max_world",
                              ddp_workers(d), ddp_world(d));
    if (ddp_world(d) < 2)
        return ddp__ctx_failf(d, DDP_USAGE, "ddp_probe: one worker has no links to measure");
    world = (size_t)ddp_world(d);
    memset(out, 0, sizeof *out);
    q.d = d;
    out->world = ddp_world(d);
    out->pair = (ddp_pair *)ddp__calloc(world * world, sizeof *out->pair);
    out->host = (ddp_link *)ddp__calloc(world, sizeof *out->host);
    out->name = (char(*)[64])ddp__calloc(world, sizeof *out->name);
    q.x = (char *)ddp__calloc(DDP__PROBE_LARGE, 1);
    q.bytes = (double *)ddp__calloc(2 * world * DDP__PROBE_SIZES, sizeof *q.bytes);
    if (!out->pair || !out->host || !out->name || !q.x || !q.bytes) {
        bad = ddp__ctx_failf(d, DDP_MEMORY, "out of memory for probing %d ranks", ddp_world(d));
    } else {
        q.seconds = q.bytes + world * DDP__PROBE_SIZES;
        (void)gethostname(out->name[ddp_rank(d)], sizeof *out->name - 1);
        bad = ddp__probe_rounds(&q, out);
        if (!bad) bad = (int)ddp_link_fit(q.bytes, q.seconds, q.n, &out->host[ddp_rank(d)], ddp__error(d));
        bad = bad ? ddp__ctx_fail(d, ddp__error(d)) : ddp__probe_share(&q, out);
    }
    DDP_FREE(q.x);
    DDP_FREE(q.bytes);
    out->seconds = ddp_now() - begin;
    if (bad) ddp_probe_free(out);
    return bad;
}

void ddp_probe_free(ddp_probe_result *r)
{
    if (!r) return;
    if (r->pair) DDP_FREE(r->pair);
    if (r->host) DDP_FREE(r->host);
    if (r->name) DDP_FREE(r->name);
    memset(r, 0, sizeof *r);
}

ddp_status ddp_probe_network(const ddp_probe_result *r, ddp_network *out, ddp_error *err)
{
    int n;

    if (!r || !out || r->world < 2)
        return ddp__fail(err, DDP_ARG, "ddp_probe_network: the probed world has %d ranks", r ? r->world : 0);
    DDP__TRY(ddp_network_new(r->world, out, err));
    n = r->world * r->world;
    for (int i = 0; i < n; i++) {
        out->delay_s[i] = r->pair[i].ping_s;
        out->rate[i] = r->pair[i].link.beta_s > 0 ? 1 / r->pair[i].link.beta_s : r->pair[i].rate;
    }
    return DDP_OK;
}

/* ---- the measured ring ---- */

static ddp_ring_choice ddp__ring_choose(const ddp_network *net, double least, size_t window)
{
    const double n = net->devices;
    double slowest = DBL_MAX, access = DBL_MAX, delay = 0, direct, ring;
    ddp_ring_choice c;

    for (int i = 0; i < net->devices; i++) {
        double most = 0;
        for (int j = 0; j < net->devices; j++) {
            const size_t at = (size_t)i * (size_t)net->devices + (size_t)j;
            if (i == j) continue;
            if (net->rate[at] < slowest) slowest = net->rate[at];
            if (net->rate[at] > most) most = net->rate[at];
            delay += net->delay_s[at] / (n * (n - 1));
        }
        if (most < access) access = most;
    }
    direct = 2 * (n - 1) / (n * access);
    if (2 / (n * slowest) > direct) direct = 2 / (n * slowest);
    direct *= 1.1;
    ring = 2 * (n - 1) / (n * least);
    c.least_rate = least;
    c.from_bytes = direct > ring ? 2 * (n - 2) * delay / (direct - ring) : DBL_MAX;
    if (c.from_bytes < 1) c.from_bytes = 1;
    /* partial sums in flight are staged at the next rank */
    if (2 * delay * least > (double)window) c.from_bytes = DBL_MAX;
    return c;
}

static int ddp__ring_set(ddp_ctx *d, const ddp_network *net, ddp_ring_choice *out)
{
    int *order = (int *)ddp__calloc((size_t)ddp_world(d), sizeof *order), bad;
    double least;
    size_t from;

    if (!order) return ddp__ctx_failf(d, DDP_MEMORY, "ddp_ring_tune: out of memory");
    bad = (int)ddp_plan_ring(ddp_world(d), net->rate, net->delay_s, order, &least, ddp__error(d));
    if (!bad) {
        *out = ddp__ring_choose(net, least, ddp__engine_window(ddp__engine_of(d, 0)));
        from = out->from_bytes < 1e18 ? (size_t)out->from_bytes : SIZE_MAX;
        bad = (int)ddp__engine_ring(ddp__engine_of(d, 0), order, from, ddp__error(d));
    }
    DDP_FREE(order);
    return bad ? ddp__ctx_fail(d, ddp__error(d)) : 0;
}

int ddp_ring_tune(ddp_ctx *d, const ddp_probe_result *r, ddp_ring_choice *out)
{
    ddp_ring_choice own;
    ddp_network net;
    int bad;

    DDP__ENTER(d);
    if (!r || r->world != ddp_world(d))
        return ddp__ctx_failf(d, DDP_ARG, "ddp_ring_tune: the probe must be a measurement of this world");
    if (!out) out = &own;
    out->least_rate = 0;
    out->from_bytes = DBL_MAX;
    if (ddp_world(d) < 3) return 0;
    if (ddp_probe_network(r, &net, ddp__error(d))) return ddp__ctx_fail(d, ddp__error(d));
    bad = ddp__ring_set(d, &net, out);
    ddp_network_free(&net);
    return bad;
}
