/* Measures what averages over a link cost: their latency by short messages, and the sustained rate by trains,
 * of which the first half or a shorter train does not count, because a token bucket lets the first bytes pass
 * at a higher rate. Contains the meter: transfers of one size, each repeated until its fastest times agree.
 *
 * The first rank decides what is measured next, within a limit of time, because all ranks wait meanwhile. */
#include "comm/frame.h"
#include "context/clock.h"
#include "context/context.h"
#include "device/device.h"
#include "exchange/post.h"
#include "exchange/verbs.h"
#include "measure/measure.h"
#include "measure/timing.h"

enum {
    DDP__METER_LEAST = 3,
    DDP__TRAIN = 4,          /* messages of a train, which are in flight together */
    DDP__SHORT_FLOATS = 64,  /* of a message that measures the latency */
    DDP__FIRST_FLOATS = 256, /* of a train's messages if no transfer gives an estimate of the rate */
    DDP__GROWTH = 4,         /* a train is at most this times as long as the transfers that determined it */
    DDP__SPANS_SEEN = 256,   /* operations of the steps before */
    DDP__BURST = 16,
    DDP__BURSTS = 5
};
#ifndef DDP__METER_AGREE /* tests under sanitizers, whose times have no meaning, measure less */
#define DDP__METER_AGREE \
    0.03 /* interference only delays: if the two fastest of some transfers differ by more, the fastest was
            probably delayed too */
#define DDP__PROBE_LAST_S 0.12 /* seconds for a train, where a late wake-up has little effect */
#endif
static const double ddp__meter_patience_s = 3;    /* seconds for repeating one size */
static const double ddp__probe_limit_part = 0.02; /* share of the steps that are measured */

int ddp__meter_add(ddp__meter *m, double bytes, double seconds, double *fastest)
{
    const double now = ddp_now();
    double first = DBL_MAX, second = DBL_MAX;
    int times;

    if (m->n == m->first) m->begun = now;
    if (m->n == (int)(sizeof m->bytes / sizeof *m->bytes)) m->n--;
    m->bytes[m->n] = bytes;
    m->seconds[m->n++] = seconds;
    for (int i = m->first; i < m->n; i++) {
        const double t = m->seconds[i];
        second = t < first ? first : t < second ? t : second;
        first = t < first ? t : first;
    }
    times = m->n - m->first;
    *fastest = first;
    if (times < DDP__METER_LEAST) return 0;
    if (times < DDP__METER_MOST && second > (1 + DDP__METER_AGREE) * first &&
        now < m->begun + ddp__meter_patience_s)
        return 0;
    m->first = m->n;
    return 1;
}

/* ---- what is measured ---- */

/* Pieces to send. They are the same few zeros again and again, so that the largest message needs no memory.
 * */
typedef struct ddp__probe_list {
    float x[DDP__PROBE_FLOATS];
    ddp_piece piece[DDP__PROBE_MOST + 1];
} ddp__probe_list;

/* Times of one algorithm. */
typedef struct ddp__probed {
    double short_s[2]; /* the two fastest short messages */
    int shorts, trains;
    double floats;            /* in a message of the last train */
    double half_s;            /* of the fastest train of that size: seconds until half of it was done, */
    double train_s, second_s; /* and all of it. The same of the fastest train but one */
    double rest_s[DDP__METER_MOST]; /* [same] of the trains of that size: seconds of their second half */
    int same;
    double small_floats, small_s; /* size of the trains before, and their fastest, or 0 */
} ddp__probed;

typedef enum ddp__probe_kind {
    DDP__PROBE_OVER, /* 0: also the sum of no values, if the first rank is lost */
    DDP__PROBE_SHORT,
    DDP__PROBE_TRAIN
} ddp__probe_kind;

/* The next transfer, as the first rank sends it. All others send zeros. */
typedef struct ddp__probe_turn {
    float kind, floats;
} ddp__probe_turn;

typedef struct ddp__link_prober {
    ddp_ctx *d;
    int link, members;
    int messages; /* of a train */
    ddp__probe_list *list;
    ddp__op_span *spans;         /* [DDP__OPLOG] workspace */
    ddp__sizes sizes;            /* of the engine before the measurement */
    int chooses;                 /* the sizes can be set */
    double begun, limit_s;       /* of the measurement */
    double word_s;               /* fastest control message */
    double rough_s, rough_bytes; /* seconds per byte of the longest transfers so far, and their bytes, or 0 */
    ddp__probed of[DDP__LINES];
} ddp__link_prober;

static int ddp__over_nccl(const ddp_ctx *d, int link)
{
    return ddp__has_nccl(d) && link == 0 && !ddp__team_group(d);
}

static int ddp__emulated(const ddp__link_prober *q) { return ddp__links_of(q->d, q->link)->path != NULL; }

/* An all-reduce of `floats` values. gathers: the all-gather that takes as long. Its messages are all sent at
 * once, so that their arrivals follow each other at the rate of the link. In an all-reduce, the sums of early
 * messages compete with the values of later ones. */
static ddp_message ddp__probe_message(ddp__link_prober *q, double floats, int gathers)
{
    const size_t block = (size_t)fmax(1, floor(2 * floats / q->members)),
                 n = gathers ? block * (size_t)q->members : (size_t)floats,
                 whole = n / (size_t)DDP__PROBE_FLOATS, rest = n % (size_t)DDP__PROBE_FLOATS;
    ddp_message m;

    for (size_t i = 0; i < whole; i++) q->list->piece[i].count = DDP__PROBE_FLOATS;
    q->list->piece[whole].count = rest;
    m = ddp__message(q->d, gathers ? DDP_ALL_GATHER : DDP_ALL_REDUCE, q->list->piece,
                     (int)(whole + (rest > 0)), DDP__OWN_WORD);
    m.group = ddp__team_group(q->d);
    m.overlap = m.mean = !gathers;
    m.link = q->link;
    return m;
}

/* Sets at[i] to the time at which message i of the newest train was due, if the comm thread recorded it:
 * this thread may wake up late. */
static void ddp__train_recorded(const ddp__link_prober *q, double begin, ddp_verb verb, int messages,
                                double *at)
{
    ddp__op_span seen[2 * DDP__TRAIN];
    int n = ddp__engine_spans(ddp__engine_of(q->d, q->link), begin, ddp_now(), seen, 2 * DDP__TRAIN);

    for (int i = messages; i > 0 && n > 0; n--)
        if (seen[n - 1].verb == verb && seen[n - 1].submitted >= begin && seen[n - 1].due >= begin)
            at[--i] = seen[n - 1].due - begin;
}

/* Sends `messages` equal messages together. at[i]: seconds until message i was done. */
static ddp_status ddp__train_run(ddp__link_prober *q, double floats, int gathers, int messages, double *at,
                                 ddp_error *err)
{
    const double begin = ddp_now();
    long ticket[DDP__TRAIN];
    const ddp_message m = ddp__probe_message(q, floats, gathers);
    ddp_ctx *d = q->d;
    const int nccl = ddp__over_nccl(d, q->link) && ddp__nccl_takes(d, &m);

    DDP__TRY(ddp__post_flush(d, err));
    for (int i = 0; i < messages; i++)
        DDP__TRY(nccl ? ddp__nccl_post(d, &m, &ticket[i], err) : ddp__post_here(d, &m, &ticket[i], err));
    for (int i = 0; i < messages; i++) {
        if (nccl) {
            DDP__TRY(ddp__nccl_hold(d, ticket[i], err));
            DDP__TRY(ddp__device_wait(d, err));
        } else {
            DDP__TRY(ddp__engine_wait(ddp__engine_of(d, q->link), ticket[i], err));
        }
        at[i] = ddp_now() - begin;
    }
    if (!nccl) ddp__train_recorded(q, begin, m.verb, messages, at);
    return DDP_OK;
}

/* Lets all all-reduces but control messages use one algorithm. */
static ddp_status ddp__probe_force(ddp__link_prober *q, int line, ddp_error *err)
{
    const size_t word = sizeof(ddp__probe_turn);
    ddp__sizes sizes = {q->sizes.full < word ? q->sizes.full : word, SIZE_MAX};

    if (!q->chooses) return DDP_OK;
    if (line == (int)DDP__LINE_RING) sizes.ring = word + 1;
    return ddp__engine_choose(ddp__engine_of(q->d, q->link), sizes, err);
}

static void ddp__probed_short(ddp__probed *x, double seconds)
{
    if (x->shorts++ == 0) x->short_s[0] = x->short_s[1] = DBL_MAX;
    if (seconds < x->short_s[0]) {
        x->short_s[1] = x->short_s[0];
        x->short_s[0] = seconds;
    } else if (seconds < x->short_s[1]) {
        x->short_s[1] = seconds;
    }
}

static void ddp__probed_train(ddp__probed *x, double floats, int messages, const double *at)
{
    const double last = at[messages - 1], half = messages > 1 ? at[messages / 2 - 1] : 0;

    if (floats != x->floats || x->trains == 0) {
        x->small_floats = x->floats;
        x->small_s = x->train_s;
        x->train_s = x->second_s = DBL_MAX;
        x->same = 0;
    }
    x->floats = floats;
    x->trains++;
    if (x->same < DDP__METER_MOST) x->rest_s[x->same++] = last - half;
    if (last >= x->train_s) {
        x->second_s = fmin(x->second_s, last);
        return;
    }
    x->second_s = x->train_s;
    x->train_s = last;
    x->half_s = half;
}

/* Seconds per byte of an algorithm. On an emulated link, all-gathers arrive one after the other, so the
 * second half of a train gives the rate. Headers count as bytes there, because they are a large part of
 * short messages: a block of an all-gather takes as long as an all-reduce of members / 2 times its bytes.
 * The median is used, because a rank that wakes up late reads the last messages together. On a real link,
 * trains of two sizes differ by the bytes that a token bucket does not let pass faster. */
static double ddp__probed_beta(const ddp__link_prober *q, int line)
{
    const ddp__probed *x = &q->of[line];
    const double bytes = sizeof(float) * x->floats * q->messages, small = x->small_floats / x->floats;
    const double headers = (double)DDP__FRAME_BYTES * q->messages * q->members / 2;
    double rest[DDP__METER_MOST], beta = fmax(x->train_s - x->short_s[0], 0) / bytes;

    if (line != (int)DDP__LINE_FULL && x->small_s > 0) /* interference may have delayed the shorter train */
        return fmax(beta, (x->train_s - x->small_s) / (bytes * (1 - small)));
    if (line != (int)DDP__LINE_FULL) return beta;
    memcpy(rest, x->rest_s, sizeof rest);
    qsort(rest, (size_t)x->same, sizeof *rest, ddp__rising);
    return fmax(rest[x->same / 2], 1e-9) * q->messages /
           ((bytes + headers) * (q->messages - q->messages / 2));
}

/* ---- what to measure next ---- */

/* The rest of the limit, without the control messages that follow the last transfer. */
static double ddp__probe_left(const ddp__link_prober *q)
{
    return q->begun + q->limit_s - ddp_now() - 3 * (q->word_s < DBL_MAX ? q->word_s : 0);
}

static ddp__probe_turn ddp__turn_train(double floats)
{
    const double most = 0.5 * (double)DDP__PROBE_MOST *
                        (double)DDP__PROBE_FLOATS; /* an all-gather has twice as many values */
    const ddp__probe_turn t = {DDP__PROBE_TRAIN, (float)floor(fmin(fmax(floats, DDP__SHORT_FLOATS), most))};

    return t;
}

/* Decides whether to send another short message: repeated while that takes a small part of the limit. */
static ddp__probe_turn ddp__turn_short(const ddp__link_prober *q, const ddp__probed *x)
{
    const ddp__probe_turn over = DDP__ZEROS, more = {DDP__PROBE_SHORT, 0};
    const int agree =
        x->shorts >= DDP__METER_LEAST && x->short_s[1] <= (1 + DDP__METER_AGREE) * x->short_s[0];

    return agree || x->shorts >= DDP__METER_MOST ||
                   (x->shorts + 1) * (x->short_s[0] + q->word_s) > 0.1 * q->limit_s
               ? over
               : more;
}

/* The first train of an algorithm: as long as it should take by the transfers so far. */
static ddp__probe_turn ddp__turn_first(const ddp__link_prober *q, double latency, double wanted)
{
    const ddp__probe_turn over = DDP__ZEROS;
    double bytes = 4.0 * (double)DDP__FIRST_FLOATS * q->messages;

    if (q->rough_s > 0) bytes = fmin(wanted / q->rough_s, (double)DDP__GROWTH * q->rough_bytes);
    /* without trains, the rate of an emulated link follows from its setting */
    if (ddp__emulated(q) && latency + q->word_s + 0.5 * wanted > ddp__probe_left(q)) return over;
    return ddp__turn_train(bytes / sizeof(float) / q->messages);
}

/* Decides after a train: a longer one if this one is shorter than `wanted`, or longer == 1, which the limit
 * of time may prevent. Otherwise the same again until the two fastest agree. */
static ddp__probe_turn ddp__turn_further(const ddp__link_prober *q, const ddp__probed *x, double latency,
                                         double wanted, int longer)
{
    const ddp__probe_turn over = DDP__ZEROS;
    const double took = fmax(x->train_s - latency, 1e-9), left = ddp__probe_left(q);
    const double growth = fmin(DDP__GROWTH, fmax(2, wanted / took));
    const ddp__probe_turn next = ddp__turn_train(growth * x->floats);

    if ((took < wanted || longer) && next.floats > (float)x->floats &&
        latency + growth * took + q->word_s < left)
        return next;
    return x->second_s > (1 + DDP__METER_AGREE) * x->train_s && x->same < DDP__METER_LEAST &&
                   x->train_s + q->word_s < left
               ? ddp__turn_train(x->floats)
               : over;
}

static ddp__probe_turn ddp__turn_of(const ddp__link_prober *q, int line)
{
    const ddp__probed *x = &q->of[line];
    const int gathers = line == (int)DDP__LINE_FULL;
    const double latency = gathers ? q->word_s : x->short_s[0];
    /* only in long transfers of a real link, messages that meet at a rank are lost and sent again */
    const double least = gathers || !(DDP__PROBE_LAST_S > 1e-3) ? DDP__PROBE_LAST_S : q->limit_s / 5;
    const double wanted = fmin(fmax(least, latency), fmax(ddp__probe_left(q) / 2, 1e-6));
    const double took = x->train_s - latency;
    /* on a link with a long delay the first train is the only one */
    const double first = 0.5 * fmin(least, DDP__PROBE_LAST_S);
    ddp__probe_turn t;

    if (x->trains == 0) return ddp__turn_first(q, latency, gathers ? wanted : fmax(wanted / 2, first));
    /* within the burst of a token bucket the first messages are faster than the last */
    if (gathers)
        return ddp__turn_further(q, x, latency, 0.7 * wanted,
                                 x->half_s - latency < 0.85 * (x->train_s - x->half_s));
    /* the two sizes that count are measured more than once */
    if (took < 0.35 * wanted) return ddp__turn_further(q, x, latency, 0.5 * wanted, 0);
    t = ddp__turn_further(q, x, latency, 0, 0);
    if (t.kind > 0) return t;
    return ddp__turn_further(q, x, latency, 0.7 * wanted,
                             !(x->small_s > 0) ||
                                 x->train_s * x->small_floats > 1.2 * x->small_s * x->floats);
}

/* Sends the first rank's decision to all. This also synchronises the ranks, as far as the link allows, and it
 * is the shortest message, so its time is a latency too. */
static ddp_status ddp__probe_agree(ddp__link_prober *q, ddp__probe_turn *t, int counts, ddp_error *err)
{
    const double begin = ddp_now();
    ddp_piece p;
    ddp_message m;

    if (!ddp__leads(q->d)) memset(t, 0, sizeof *t);
    m = ddp__own_word(q->d, &p, DDP_ALL_REDUCE, ddp__team_group(q->d), t, sizeof *t / sizeof(float));
    m.bytes = 0;
    m.link = q->link;
    DDP__TRY(ddp__run(q->d, &m, 0, err));
    if (counts) q->word_s = fmin(q->word_s, ddp_now() - begin);
    return DDP_OK;
}

static ddp_status ddp__probe_shorts(ddp__link_prober *q, int line, ddp_error *err)
{
    ddp__probe_turn t = {DDP__PROBE_SHORT, 0};
    double at;

    DDP__TRY(ddp__probe_force(q, line, err));
    while (t.kind > 0) {
        DDP__TRY(ddp__train_run(q, DDP__SHORT_FLOATS, 0, 1, &at, err));
        ddp__probed_short(&q->of[line], at);
        t = ddp__turn_short(q, &q->of[line]);
        DDP__TRY(ddp__probe_agree(q, &t, 1, err));
    }
    return DDP_OK;
}

static ddp_status ddp__probe_trains(ddp__link_prober *q, int line, ddp_error *err)
{
    double at[DDP__TRAIN];

    for (;;) {
        ddp__probe_turn t = ddp__turn_of(q, line);
        DDP__TRY(ddp__probe_agree(q, &t, 1, err));
        if (!(t.kind > 0)) return DDP_OK;
        DDP__TRY(ddp__train_run(q, (double)t.floats, line == (int)DDP__LINE_FULL, q->messages, at, err));
        ddp__probed_train(&q->of[line], (double)t.floats, q->messages, at);
    }
}

/* ---- from times to lines ---- */

/* Estimates the rate from the longest transfers before, to choose the length of the first train. */
static void ddp__probe_rough(ddp__link_prober *q)
{
    ddp__op_span *s = q->spans;
    const int n = ddp__engine_spans(ddp__engine_of(q->d, q->link), -1, DBL_MAX, s, DDP__SPANS_SEEN);
    const double latency = q->of[DDP__LINE_DIRECT].short_s[0];
    double bytes = 0;

    for (int i = 0; i < n; i++)
        if (s[i].verb == DDP_ALL_REDUCE && s[i].end >= 0) bytes = fmax(bytes, (double)s[i].size);
    for (int i = 0; i < n; i++) {
        const double took = s[i].end - s[i].begin - s[i].peer_wait, size = (double)s[i].size;
        const double rough = fmax(took - latency, 0.25 * took) / size;
        if (s[i].verb != DDP_ALL_REDUCE || s[i].end < 0 || size < bytes / 2 || !(took > 0)) continue;
        if (q->rough_bytes > 0 && rough >= q->rough_s) continue;
        q->rough_s = rough;
        q->rough_bytes = size;
    }
}

/* The line of the direct algorithm or the ring. The rate of an emulated link follows from the all-gathers.
 * Without them, and without trains, it is the rate of the setting, or of the transfers before. */
static ddp_link ddp__probed_line(const ddp__link_prober *q, int line)
{
    const ddp__probed *x = &q->of[line];
    ddp_link k = {0, ddp__emulated(q) ? ddp__link_nominal(q->d, q->link).beta_s : q->rough_s};

    if (q->of[DDP__LINE_FULL].trains) k.beta_s = ddp__probed_beta(q, DDP__LINE_FULL);
    if (x->trains) k.beta_s = ddp__probed_beta(q, line);
    k.alpha_s = fmax(x->short_s[0] - k.beta_s * sizeof(float) * (double)DDP__SHORT_FLOATS, 0);
    return k;
}

/* The ring is used from the size on at which its bytes save more time than its delays cost. On links that are
 * slower than the processors, long direct transfers take longer than the trains show, because the messages of
 * several ranks meet in the queue before a receiver: 20 MB between 4 ranks behind 100 Mbit/s token buckets
 * took 1.14 times as long as in a ring. */
static size_t ddp__ring_from(const ddp_link *line)
{
    const double meeting = 1.15, slow_s = 1e-8; /* seconds per byte */
    const ddp_link direct = line[DDP__LINE_DIRECT], ring = line[DDP__LINE_RING];
    const double less = direct.beta_s * (direct.beta_s > slow_s ? meeting : 1) - ring.beta_s;
    const double bytes = less > 0 ? fmax(ring.alpha_s - direct.alpha_s, 0) / less : DBL_MAX;

    return bytes < 1e18 ? (size_t)fmax(bytes, 65536) : SIZE_MAX;
}

/* Whether the strategy's averages may use the ring, and nothing else decides about it. */
static int ddp__ring_is_possible(const ddp__link_prober *q)
{
    const ddp__engine *e = ddp__engine_of(q->d, q->link);
    ddp_message m = DDP__ZEROS;

    if (!q->chooses || ddp__team_group(q->d) || !ddp__engine_may_ring(e)) return 0;
    m.verb = DDP_ALL_REDUCE; /* threads of one process may sum in shared memory instead */
    return ddp__engine_algorithm(e, &m, (size_t)1 << 20) == 'd';
}

/* Whether the ring is worth measuring: messages are long enough, and there is time. */
static int ddp__ring_is_open(const ddp__link_prober *q)
{
    const ddp__probed *x = &q->of[DDP__LINE_DIRECT];

    return x->trains && sizeof(float) * x->floats >= 65536 &&
           2 * x->train_s + 2 * x->short_s[0] * q->members < ddp__probe_left(q);
}

/* ---- the per-message overhead ---- */

/* Starts the first `messages` of the list at once, each as its own average, and waits for all. */
static ddp_status ddp__probe_burst(ddp_ctx *d, int link, const ddp_piece *list, int messages, double *seconds,
                                   ddp_error *err)
{
    const double begin = ddp_now();
    long ticket[DDP__BURST];

    for (int i = 0; i < messages; i++) {
        ddp_message m = ddp__message(d, DDP_ALL_REDUCE, &list[i], 1, DDP__OWN_WORD);
        m.group = ddp__team_group(d);
        m.mean = 1;
        m.link = link;
        DDP__TRY(ddp__post_here(d, &m, &ticket[i], err));
    }
    for (int i = 0; i < messages; i++) DDP__TRY(ddp__engine_wait(ddp__engine_of(d, link), ticket[i], err));
    *seconds = ddp_now() - begin;
    return DDP_OK;
}

/* Selects the sizes of n layers that are averaged, evenly spaced from the first to the last. */
static void ddp__burst_sizes(ddp_ctx *d, ddp_piece *list, int n)
{
    int sending = 0, before = 0, i = 0;

    for (int l = 0; l < ddp__layers(d); l++) sending += ddp__layer_bytes(d, l) > 0;
    for (int l = 0; l < ddp__layers(d); l++) {
        const size_t floats = ddp__layer_bytes(d, l) / sizeof(float);
        if (floats == 0) continue;
        before++;
        for (; i < n && i * sending < before * n; i++)
            list[i].count = floats < DDP__PROBE_FLOATS ? floats : (size_t)DDP__PROBE_FLOATS;
    }
    for (; i < n; i++) list[i].count = 1; /* no layer is averaged */
}

/* The seconds that the first n messages of a burst take without an overhead per message. */
static double ddp__burst_takes(const ddp__link_prober *q, const ddp_link *line, const ddp_piece *list, int n)
{
    ddp__shared_message message[DDP__BURST];
    ddp__shared_link clock;
    double takes = 0;

    ddp__shared_start(&clock, message, n, n);
    for (int i = 0; i < n; i++) {
        const double bytes = (double)(list[i].count * sizeof(float));
        const char algorithm = ddp__algorithm_for(q->d, q->link, bytes);
        const ddp__message_cost m =
            ddp__line_cost(q->d, q->link, ddp__line_of(line, algorithm), algorithm, bytes);
        ddp__shared_send(&clock, i, &m, 0, -1, 0);
    }
    for (int i = 0; i < n; i++) takes = fmax(takes, ddp__shared_arrival(&clock, i));
    return takes;
}

/* Measures the per-message overhead from bursts of messages as large as layers, as many as the limit of time
 * permits. A burst has no more messages than may be in flight at a time, so that the delay of further ones
 * does not count. Long messages are shortened so that the overhead remains visible. The median is used,
 * because a busy machine increases the work per message, unlike the time per byte, in the run as well. */
static ddp_status ddp__probe_gap(ddp__link_prober *q, const ddp_link *line, double *out, ddp_error *err)
{
    ddp_ctx *d = q->d;
    const int width = ddp__engine_width(ddp__engine_of(d, q->link)),
              n = width < DDP__BURST ? width : DDP__BURST;
    double one, all, more[DDP__BURSTS], first, takes;
    ddp_piece list[DDP__BURST];
    ddp__probe_turn t = DDP__ZEROS;

    *out = 0;
    if (n < 2 || ddp__layers(d) == 0 || ddp__over_nccl(d, q->link)) return DDP_OK;
    ddp__burst_sizes(d, list, n);
    for (int i = 0; i < n; i++) list[i].data = q->list->x;
    first = ddp__burst_takes(q, line, list, 1);
    takes = ddp__burst_takes(q, line, list, n);
    /* the first message alone, and all of them */
    t.floats = (float)fmax(0, floor(ddp__probe_left(q) / (first + takes + 1e-9)));
    t.floats = fminf(t.floats, DDP__BURSTS);
    DDP__TRY(ddp__probe_agree(q, &t, 0, err));
    for (int i = 0; i < (int)t.floats; i++) {
        DDP__TRY(ddp__probe_burst(d, q->link, list, 1, &one, err));
        DDP__TRY(ddp__probe_burst(d, q->link, list, n, &all, err));
        more[i] = all - one;
    }
    if (!(t.floats > 0)) return DDP_OK;
    qsort(more, (size_t)t.floats, sizeof *more, ddp__rising);
    *out = fmax(0, (more[(int)t.floats / 2] - (takes - first)) / (n - 1));
    return DDP_OK;
}

/* ---- a link ---- */

/* The result, which all ranks receive from the first one. */
typedef struct ddp__probe_result_word {
    ddp_link line[DDP__LINES];
    double gap_s;
    uint64_t ring;
} ddp__probe_result_word;

static ddp_status ddp__probe_measure(ddp__link_prober *q, ddp__probe_result_word *out, ddp_error *err)
{
    ddp_ctx *d = q->d;
    const int nccl = ddp__over_nccl(d, q->link), real = nccl || !ddp__emulated(q);
    const int ring = real && ddp__ring_is_possible(q);
    const double limit_s = q->limit_s;
    ddp__probe_turn t = DDP__ZEROS;

    DDP__TRY(ddp__probe_agree(q, &t, 0, err)); /* all ranks begin now */
    q->begun = ddp_now();
    if (ring) q->limit_s = 0.55 * limit_s;
    DDP__TRY(ddp__probe_shorts(q, DDP__LINE_DIRECT, err));
    ddp__probe_rough(q);
    /* on a real link, messages that meet at a rank may take longer than their bytes */
    DDP__TRY(ddp__probe_trains(q, real ? DDP__LINE_DIRECT : DDP__LINE_FULL, err));
    ddp__lines_derive(ddp__probed_line(q, DDP__LINE_DIRECT), q->members, out->line);
    if (!(out->line[DDP__LINE_DIRECT].beta_s > 0)) /* the first rank was lost */
        ddp__lines_derive(ddp__link_nominal(d, q->link), q->members, out->line);
    q->limit_s = limit_s;
    if (ring) {
        t.kind = (float)ddp__ring_is_open(q);
        DDP__TRY(ddp__probe_agree(q, &t, 1, err));
    }
    if (t.kind > 0) {
        DDP__TRY(ddp__probe_shorts(q, DDP__LINE_RING, err));
        DDP__TRY(ddp__probe_trains(q, DDP__LINE_RING, err));
        if (q->of[DDP__LINE_RING].trains) out->line[DDP__LINE_RING] = ddp__probed_line(q, DDP__LINE_RING);
    }
    if (q->sizes.full >= sizeof t && !ddp__team_group(d) && !nccl)
        out->line[DDP__LINE_FULL].alpha_s = fmin(q->word_s, out->line[DDP__LINE_DIRECT].alpha_s);
    if (ddp__cfg(d)->algorithm != DDP_ALGORITHM_DEFAULT) /* all sizes use the algorithm that was measured */
        out->line[DDP__LINE_FULL] = out->line[DDP__LINE_RING] = out->line[DDP__LINE_DIRECT];
    if (q->chooses) DDP__TRY(ddp__engine_choose(ddp__engine_of(d, q->link), q->sizes, err));
    return ddp__probe_gap(q, out->line, &out->gap_s, err);
}

/* Corrects the lines by the transfers of the steps before. In training, ranks also compute, and the messages
 * are those that the plan is for. The first step does not count, because it loads and warms up. Direct
 * transfers say nothing about the ring on a real link, where they may disturb each other. */
static void ddp__probe_correct(const ddp__link_prober *q, ddp__probe_result_word *w)
{
    ddp__op_span *s = q->spans;
    const int n = ddp__engine_spans(ddp__engine_of(q->d, q->link), -1, DBL_MAX, s, DDP__SPANS_SEEN);
    int kept = 0;
    ddp__follow f = DDP__ZEROS;
    long first = LONG_MAX;
    int ring = ddp__emulated(q);

    for (int i = 0; i < n; i++)
        if (s[i].layer >= 0 || s[i].layer == (int)DDP_ALL_LAYERS)
            first = s[i].step < first ? s[i].step : first;
    for (int i = 0; i < n; i++)
        if (s[i].step > first) {
            ring |= s[i].algorithm == 'r';
            s[kept++] = s[i];
        }
    ddp__lines_observe(w->line, w->gap_s, ddp__direct_part_bytes(q->d, q->link), s, kept, 1, &f);
    (void)ddp__follow_window(&f);
    for (int k = 0; k < (int)DDP__LINES; k++)
        if (k != (int)DDP__LINE_RING || ring) w->line[k].beta_s *= ddp__follow_scale(&f);
}

/* "step 6: measured the link in 0.42 s: an average takes 0.21 ms + 120.1 ns per byte (direct), ..." */
static void ddp__probe_tell(const ddp__link_prober *q, const ddp__probe_result_word *w)
{
    static const char *const names[] = {"full", "direct", "ring"};
    char text[256] = "";
    size_t at = 0;

    for (int k = 0; k < (int)DDP__LINES; k++) {
        if (k == (int)DDP__LINE_FULL && q->sizes.full == 0) continue;
        if (k == (int)DDP__LINE_RING && !q->of[k].trains) continue;
        at +=
            (size_t)ddp__format(text + at, sizeof text - at, "%s%.3g ms + %.4g ns per byte (%s)",
                                at ? ", " : "", 1e3 * w->line[k].alpha_s, 1e9 * w->line[k].beta_s, names[k]);
    }
    ddp__log(ddp__log_of(q->d), DDP_LOG_INFO, "step %ld: measured %s in %.2f s: an average takes %s",
             ddp_step(q->d), q->link ? "the second link" : "the link", ddp_now() - q->begun, text);
}

static ddp_status ddp__probe_run(ddp__link_prober *q, double limit_s, ddp_error *err)
{
    ddp_ctx *d = q->d;
    ddp__engine *e = ddp__engine_of(d, q->link);
    ddp__probe_result_word w = DDP__ZEROS;

    q->sizes = ddp__engine_sizes(e);
    q->chooses = ddp__cfg(d)->algorithm == DDP_ALGORITHM_DEFAULT && !ddp__cfg(d)->elastic.min_world &&
                 !ddp__over_nccl(d, q->link);
    q->messages = ddp__over_nccl(d, q->link) ? 1 : (int)DDP__TRAIN;
    if (ddp__engine_width(e) < q->messages) q->messages = ddp__engine_width(e);
    q->members = ddp__team_group(d) ? ddp__team_size(d) : ddp_workers(d);
    q->word_s = DBL_MAX;
    q->limit_s = fmax(limit_s, ddp__probe_limit_part * d->measure->all.step_s) / ddp_links(d);
    if (ddp__leads(d))
        ddp__log(ddp__log_of(d), DDP_LOG_INFO, "step %ld: measuring %s, for about %.1f s", ddp_step(d),
                 q->link ? "the second link" : "the link", q->limit_s);
    DDP__TRY(ddp__probe_measure(q, &w, err));
    if (ddp__leads(d)) ddp__probe_correct(q, &w);
    if (q->of[DDP__LINE_RING].trains) w.ring = ddp__ring_from(w.line);
    DDP__TRY(ddp__tell(d, ddp__team_group(d), &w, sizeof w, err));
    memcpy(d->measure->line[q->link], w.line, sizeof w.line);
    d->measure->gap_s[q->link] = w.gap_s;
    if (w.ring) {
        q->sizes.ring = w.ring < SIZE_MAX ? (size_t)w.ring : SIZE_MAX;
        DDP__TRY(ddp__engine_choose(e, q->sizes, err));
    }
    if (ddp__leads(d)) ddp__probe_tell(q, &w);
    return DDP_OK;
}

ddp_status ddp__probe_link(ddp_ctx *d, int link, double limit_s, ddp_error *err)
{
    ddp__link_prober q = DDP__ZEROS;
    ddp_status s;

    q.d = d;
    q.link = link;
    q.list = (ddp__probe_list *)ddp__calloc(1, sizeof *q.list);
    q.spans = (ddp__op_span *)ddp__calloc(DDP__SPANS_SEEN, sizeof *q.spans);
    if (!q.list || !q.spans) {
        DDP_FREE(q.list);
        DDP_FREE(q.spans);
        return ddp__fail(err, DDP_MEMORY, "out of memory to measure link %d", link);
    }
    for (int i = 0; i <= DDP__PROBE_MOST; i++)
        q.list->piece[i].data = ddp__over_nccl(d, link) ? ddp__nccl_zeros(d) : q.list->x;
    s = ddp__probe_run(&q, limit_s, err);
    DDP_FREE(q.list);
    DDP_FREE(q.spans);
    return s;
}
