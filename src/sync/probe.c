/* All pairs, one round of disjoint pairs after the other. In a pair the lower rank leads: it sends
 * pings, then transfers; then the other one sends transfers.
 *
 * On a busy machine a thread wakes up late, which is no property of the link: times are those at
 * which the comm thread's events were due, and an answer says how long its question lay until the
 * rank woke up. */
#include "base/platform.h"
#include "base/clock.h"
#include "net/state.h"
#include "sync/context.h"
#include "sync/probe.h"

enum {
    DDP__PINGS = 20,
    DDP__PINGS_LEAST = 8,
    DDP__PING_FLOATS = 8,   /* [0] more will follow; [1..4] the wall clock of the answering rank, */
    DDP__PING_LAY = 5,      /* and how long the ping lay there, seconds */
    DDP__PROBE_SMALL = 16384,  /* floats: 64 KiB */
    DDP__PROBE_LARGE = 262144, /* 1 MiB */
    DDP__PROBE_TIMES = 3,
    DDP__PROBE_TIMES_MOST = 16,
    DDP__PAIR_NUMBERS = 7,
    DDP__PROBE_SPANS = 16,
    DDP__PROBE_SIZES = 3 /* that fit a pair: a ping, small, large */
};

/* Interference only delays: when the two fastest of some transfers differ by more, the fastest
 * was probably delayed too. */
static const double ddp__probe_agree = 0.02;
static const double ddp__probe_patience_s = 3; /* of repeating one size */

typedef struct ddp__prober {
    ddp_ctx *d;
    float   *x;                 /* [DDP__PROBE_LARGE] */
    double   bytes[DDP__PROBE_SIZES], seconds[DDP__PROBE_SIZES]; /* the fastest of the pair in hand */
    int      n;
    double  *all_bytes, *all_seconds; /* the same of all pairs */
    int      all;
} ddp__prober;

static double ddp__wall(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int ddp__order_doubles(const void *a, const void *b)
{
    double p = *(const double *)a, q = *(const double *)b;

    return (p > q) - (p < q);
}

/* The newest message of the verb since then, as the comm thread recorded it. */
static ddp__op_span ddp__recorded(ddp__prober *q, ddp__verb verb, double since)
{
    ddp__op_span seen[DDP__PROBE_SPANS], last;
    double now = ddp_now();
    int n = ddp__engine_spans(q->d->engine, since, now, seen, DDP__PROBE_SPANS);

    while (n > 0 && (seen[n - 1].verb != verb || seen[n - 1].end < 0)) n--;
    if (n > 0) return seen[n - 1];
    memset(&last, 0, sizeof last);
    last.submitted = since, last.due = now;
    return last;
}

/* Seconds for which what was received last has lain here. */
static float ddp__lay(ddp__prober *q, double since)
{
    double seconds = ddp_now() - ddp__recorded(q, DDP__RECV, since).due;

    return seconds > 0 ? (float)seconds : 0.0f;
}

/* ---- pings ---- */

static int ddp__ping(ddp__prober *q, int peer, ddp_pair *out)
{
    double trip[DDP__PINGS], shortest = DBL_MAX, begin = ddp_now();
    int n, bad = 0;

    for (n = -1; !bad && n < DDP__PINGS; n++) { /* the first wakes everybody up, and is not kept */
        double t0, w0, asked;
        int enough = n + 1 >= DDP__PINGS || (n + 1 >= DDP__PINGS_LEAST && ddp_now() > begin + 3);
        q->x[0] = enough ? 0.0f : 1.0f;
        w0 = ddp__wall();
        t0 = ddp_now();
        bad = ddp_send(q->d, q->x, DDP__PING_FLOATS, peer);
        if (!bad) bad = ddp_recv(q->d, q->x, DDP__PING_FLOATS, peer);
        if (bad || n < 0) continue;
        asked = ddp__recorded(q, DDP__SEND, t0).submitted;
        trip[n] = ddp__recorded(q, DDP__RECV, t0).due - asked - (double)q->x[DDP__PING_LAY];
        if (trip[n] < 1e-9) trip[n] = 1e-9;
        if (trip[n] < shortest) {
            shortest = trip[n];
            out->offset_s = 1e-6 * (double)(int64_t)ddp__unpack64(q->x + 1) -
                            (double)q->x[DDP__PING_LAY] - (w0 + asked - t0) - shortest / 2;
        }
        if (!enough) continue;
        n++;
        break;
    }
    if (bad) return bad;
    qsort(trip, (size_t)n, sizeof *trip, ddp__order_doubles);
    out->ping_s = trip[0] / 2;
    out->ping_median_s = (trip[(n - 1) / 2] + trip[n / 2]) / 4;
    return 0;
}

static int ddp__pong(ddp__prober *q, int peer)
{
    int bad, more;

    do {
        double since = ddp_now();
        bad = ddp_recv(q->d, q->x, DDP__PING_FLOATS, peer);
        more = q->x[0] > 0;
        q->x[DDP__PING_LAY] = ddp__lay(q, since);
        ddp__pack64(q->x + 1, (uint64_t)(int64_t)(1e6 * ddp__wall()));
        if (!bad) bad = ddp_send(q->d, q->x, DDP__PING_FLOATS, peer);
    } while (!bad && more);
    return bad;
}

/* ---- transfers ---- */

/* The way back of the last word is half a round trip. */
static int ddp__transfer(ddp__prober *q, int peer, size_t floats, double back_s, double *seconds)
{
    float head = (float)floats, lay;
    double since;
    int bad = ddp_send(q->d, &head, 1, peer);

    *seconds = 0;
    if (bad || floats == 0) return bad;
    since = ddp_now();
    bad = ddp_send(q->d, q->x, floats, peer);
    if (!bad) bad = ddp_recv(q->d, &lay, 1, peer);
    if (bad) return bad;
    *seconds = ddp__recorded(q, DDP__RECV, since).due -
               ddp__recorded(q, DDP__SEND, since).submitted - (double)lay - back_s;
    if (*seconds < 1e-9) *seconds = 1e-9;
    return 0;
}

/* The fastest of at least three transfers, and of more until two agree. */
static int ddp__repeat(ddp__prober *q, int peer, size_t floats, double back_s, double *fastest)
{
    double second = DBL_MAX, begin = ddp_now();
    int i;

    *fastest = DBL_MAX;
    for (i = 0; i < DDP__PROBE_TIMES_MOST; i++) {
        double seconds;
        int bad = ddp__transfer(q, peer, floats, back_s, &seconds);
        if (bad) return bad;
        if (seconds < *fastest) {
            second = *fastest;
            *fastest = seconds;
        } else if (seconds < second) {
            second = seconds;
        }
        if (i + 1 < DDP__PROBE_TIMES) continue;
        if (second <= *fastest * (1 + ddp__probe_agree)) break;
        if (ddp_now() > begin + ddp__probe_patience_s) break;
    }
    q->bytes[q->n] = (double)(floats * sizeof(float));
    q->seconds[q->n++] = *fastest;
    return 0;
}

static int ddp__source(ddp__prober *q, int peer, ddp_pair *out)
{
    double best, data, none;
    size_t floats = DDP__PROBE_SMALL;
    int i, bad;

    q->n = 0;
    q->bytes[q->n] = DDP__PING_FLOATS * sizeof(float);
    q->seconds[q->n++] = out->ping_s;
    memset(q->x, 0, DDP__PROBE_LARGE * sizeof *q->x);
    bad = ddp__repeat(q, peer, floats, out->ping_s, &best);
    if (bad) return bad;
    data = best > 2 * out->ping_s ? best - out->ping_s : best / 2;
    data = 0.25 / data * (double)DDP__PROBE_SMALL; /* floats in a quarter of a second */
    floats = data < (double)DDP__PROBE_LARGE ? (size_t)data : (size_t)DDP__PROBE_LARGE;
    if (floats > DDP__PROBE_SMALL) bad = ddp__repeat(q, peer, floats, out->ping_s, &best);
    else floats = DDP__PROBE_SMALL;
    if (!bad) bad = ddp__transfer(q, peer, 0, 0, &none);
    if (bad) return bad;
    for (i = 0; i < q->n; i++) {
        q->all_bytes[q->all] = q->bytes[i];
        q->all_seconds[q->all++] = q->seconds[i];
    }
    data = best - out->ping_s;
    out->rate = (double)(floats * sizeof(float)) / (data > best / 2 ? data : best);
    return (int)ddp_link_fit(q->bytes, q->seconds, q->n, &out->link, &q->d->host.error);
}

static int ddp__sink(ddp__prober *q, int peer)
{
    float head = 0, lay;
    int bad;

    do {
        double since = ddp_now();
        bad = ddp_recv(q->d, &head, 1, peer);
        if (!bad && !(head >= 0 && head <= (float)DDP__PROBE_LARGE)) head = 0;
        if (!bad && head > 0) bad = ddp_recv(q->d, q->x, (size_t)head, peer);
        lay = ddp__lay(q, since);
        if (!bad && head > 0) bad = ddp_send(q->d, &lay, 1, peer);
    } while (!bad && head > 0);
    return bad;
}

static int ddp__probe_pair(ddp__prober *q, int peer, ddp_pair *out)
{
    float trip[DDP__WORDS];
    int bad, leads = q->d->rank < peer;

    if (leads) {
        bad = ddp__ping(q, peer, out);
        ddp__pack64(trip, (uint64_t)(out->ping_s * 1e9));
        if (!bad) bad = ddp_send(q->d, trip, DDP__WORDS, peer);
        if (!bad) bad = ddp__source(q, peer, out);
        return bad ? bad : ddp__sink(q, peer);
    }
    bad = ddp__pong(q, peer);
    if (!bad) bad = ddp_recv(q->d, trip, DDP__WORDS, peer);
    if (bad) return bad;
    out->ping_s = 1e-9 * (double)ddp__unpack64(trip);
    bad = ddp__sink(q, peer);
    return bad ? bad : ddp__source(q, peer, out);
}

/* ---- all of them ---- */

/* Whom a rank meets in a round of a tournament of `even` players; the last one keeps its seat. */
static int ddp__opponent(int rank, int round, int even)
{
    int seats = even - 1;

    if (rank == even - 1) return round;
    if (rank == round) return even - 1;
    return (2 * round - rank + 2 * seats) % seats;
}

/* The wire names such a peer by its way: wire_tcp.c. */
static int ddp__is_relayed(const ddp_ctx *d, int peer)
{
    ddp__wire *w = d->engine->wire;

    return !strncmp(w->table->peer_name(w, peer), "via ", 4);
}

static int ddp__probe_rounds(ddp__prober *q, ddp_probe_result *out)
{
    int world = q->d->world, even = world + world % 2, round, bad = 0;

    for (round = 0; !bad && round < even - 1; round++) {
        int peer = ddp__opponent(q->d->rank, round, even);
        bad = ddp_barrier(q->d);
        if (bad || peer >= world) continue;
        bad = ddp__probe_pair(q, peer, &out->pair[q->d->rank * world + peer]);
        out->pair[q->d->rank * world + peer].relayed = ddp__is_relayed(q->d, peer);
    }
    return bad;
}

static void ddp__pack_number(float *at, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    ddp__pack64(at, bits);
}

static double ddp__unpack_number(const float *at)
{
    uint64_t bits = ddp__unpack64(at);
    double v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Every rank's row to everybody: numbers as four floats each, the host's name as one per letter. */
static int ddp__probe_share(ddp__prober *q, ddp_probe_result *out)
{
    size_t world = (size_t)q->d->world, r, c, k;
    size_t row = (world * DDP__PAIR_NUMBERS + 2) * DDP__WORDS + sizeof *out->name;
    float *all = (float *)ddp__calloc(world * row, sizeof *all), *at;
    int bad;

    if (!all) return ddp__ctx_failf(q->d, DDP_MEMORY, "out of memory for %zu probed rows", world);
    at = all + (size_t)q->d->rank * row;
    for (c = 0; c < world; c++) {
        const ddp_pair *p = &out->pair[(size_t)q->d->rank * world + c];
        double v[DDP__PAIR_NUMBERS];
        v[0] = p->ping_s, v[1] = p->ping_median_s, v[2] = p->link.alpha_s, v[3] = p->link.beta_s;
        v[4] = p->rate, v[5] = p->offset_s, v[6] = p->relayed;
        for (k = 0; k < DDP__PAIR_NUMBERS; k++, at += DDP__WORDS) ddp__pack_number(at, v[k]);
    }
    ddp__pack_number(at, out->host[q->d->rank].alpha_s);
    ddp__pack_number(at + DDP__WORDS, out->host[q->d->rank].beta_s);
    at += 2 * DDP__WORDS;
    for (k = 0; k < sizeof *out->name; k++)
        at[k] = (float)(unsigned char)out->name[q->d->rank][k];
    bad = ddp_all_gather(q->d, all, row);
    for (r = 0, at = all; !bad && r < world; r++) {
        for (c = 0; c < world; c++, at += DDP__PAIR_NUMBERS * DDP__WORDS) {
            ddp_pair *p = &out->pair[r * world + c];
            p->ping_s = ddp__unpack_number(at);
            p->ping_median_s = ddp__unpack_number(at + DDP__WORDS);
            p->link.alpha_s = ddp__unpack_number(at + 2 * DDP__WORDS);
            p->link.beta_s = ddp__unpack_number(at + 3 * DDP__WORDS);
            p->rate = ddp__unpack_number(at + 4 * DDP__WORDS);
            p->offset_s = ddp__unpack_number(at + 5 * DDP__WORDS);
            p->relayed = ddp__unpack_number(at + 6 * DDP__WORDS) > 0;
        }
        out->host[r].alpha_s = ddp__unpack_number(at);
        out->host[r].beta_s = ddp__unpack_number(at + DDP__WORDS);
        at += 2 * DDP__WORDS;
        for (k = 0; k < sizeof *out->name; k++, at++) out->name[r][k] = (char)(unsigned char)*at;
    }
    DDP_FREE(all);
    /* round trips have one end that measured them */
    for (r = 0; !bad && r < world; r++)
        for (c = 0; c < r; c++) {
            const ddp_pair *led = &out->pair[c * world + r];
            ddp_pair *p = &out->pair[r * world + c];
            p->ping_s = led->ping_s;
            p->ping_median_s = led->ping_median_s;
            p->offset_s = -led->offset_s;
        }
    return bad;
}

int ddp_probe(ddp_ctx *d, ddp_probe_result *out)
{
    ddp__prober q;
    size_t world;
    double begin = ddp_now();
    int bad;

    DDP__ENTER(d);
    if (!out) return ddp__ctx_failf(d, DDP_ARG, "ddp_probe: the result is NULL");
    if (ddp_workers(d) < d->world)
        return ddp__ctx_failf(d, DDP_UNSUPPORTED,
                              "ddp_probe: %d of %d workers are there; links are measured when all "
                              "are, so without max_world", ddp_workers(d), d->world);
    if (d->world < 2)
        return ddp__ctx_failf(d, DDP_USAGE, "ddp_probe: one worker has no links to measure");
    world = (size_t)d->world;
    memset(out, 0, sizeof *out);
    memset(&q, 0, sizeof q);
    q.d = d;
    out->world = d->world;
    out->pair = (ddp_pair *)ddp__calloc(world * world, sizeof *out->pair);
    out->host = (ddp_link *)ddp__calloc(world, sizeof *out->host);
    out->name = (char (*)[64])ddp__calloc(world, sizeof *out->name);
    q.x = (float *)ddp__calloc(DDP__PROBE_LARGE, sizeof *q.x);
    q.all_bytes = (double *)ddp__calloc(world * DDP__PROBE_SIZES, sizeof(double));
    q.all_seconds = (double *)ddp__calloc(world * DDP__PROBE_SIZES, sizeof(double));
    if (!out->pair || !out->host || !out->name || !q.x || !q.all_bytes || !q.all_seconds) {
        bad = ddp__ctx_failf(d, DDP_MEMORY, "out of memory for probing %d ranks", d->world);
    } else {
        (void)gethostname(out->name[d->rank], sizeof *out->name - 1);
        bad = ddp__probe_rounds(&q, out);
        if (!bad)
            bad = (int)ddp_link_fit(q.all_bytes, q.all_seconds, q.all, &out->host[d->rank],
                                    &d->host.error);
        bad = bad ? ddp__ctx_fail(d, &d->host.error) : ddp__probe_share(&q, out);
    }
    DDP_FREE(q.x);
    DDP_FREE(q.all_bytes);
    DDP_FREE(q.all_seconds);
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
    int i, n;

    if (!r || !out || r->world < 2)
        return ddp__fail(err, DDP_ARG, "ddp_probe_network: the probed world has %d ranks",
                         r ? r->world : 0);
    DDP__TRY(ddp_network_new(r->world, out, err));
    n = r->world * r->world;
    for (i = 0; i < n; i++) {
        out->delay_s[i] = r->pair[i].ping_s;
        out->rate[i] = r->pair[i].link.beta_s > 0 ? 1 / r->pair[i].link.beta_s : r->pair[i].rate;
    }
    return DDP_OK;
}
