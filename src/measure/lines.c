/* Follows the cost of averages over a link by the transfers of training.
 *
 * A busy time of the link gives two bounds of its rate. Delays and waits for other ranks overlap with
 * transfers, so how long the link was occupied is known only within these bounds. A rate that the model can
 * explain is no evidence against the model. */
#include "comm/frame.h"
#include "measure/lines.h"

static const double ddp__follow_most = 16;    /* largest change that one window may show, and 1 / smallest */
static const double ddp__follow_newest = 0.5; /* share of a window that counts, by the seconds of the model */
static const double ddp__follow_share = 0.25; /* quantile of their bounds */
static const double ddp__follow_exact = 0.18; /* error of the upper bound: other bytes can hide a delay */
static const double ddp__wake_s = 1e-3;       /* a thread may wake up this late */

/* ---- windows ---- */

void ddp__follow_add(ddp__follow *f, const ddp__observed *o)
{
    if (!(o->modelled_s > 0) || !ddp__finite(o->least_s) || !ddp__finite(o->most_s)) return;
    f->seen[f->count++ % DDP__OBSERVED] = *o;
}

/* A bound of one busy time, as a factor of the time of a byte. */
typedef struct ddp__bound {
    double factor, weight;
} ddp__bound;

static int ddp__bound_rising(const void *a, const void *b)
{
    const double x = ((const ddp__bound *)a)->factor, y = ((const ddp__bound *)b)->factor;

    return (x > y) - (x < y);
}

/* Returns a low quantile, because interference makes transfers slower, never faster. */
static double ddp__bound_of(ddp__bound *b, int n, double weight)
{
    double sum = 0;
    int i = 0;

    qsort(b, (size_t)n, sizeof *b, ddp__bound_rising);
    for (; i < n - 1 && sum + b[i].weight < ddp__follow_share * weight; i++) sum += b[i].weight;
    return b[i].factor;
}

/* Only the newest half of a window counts, so that a change in its first half is seen completely. A link that
 * became faster has a rate between the bounds: its messages consist mostly of delays. */
double ddp__follow_window(ddp__follow *f)
{
    ddp__bound least[DDP__OBSERVED], most[DDP__OBSERVED];
    long first = f->count - (long)DDP__OBSERVED > f->window ? f->count - (long)DDP__OBSERVED : f->window;
    double all = 0, weight = 0, from, to;
    int n = 0;

    for (long i = first; i < f->count; i++) all += f->seen[i % DDP__OBSERVED].modelled_s;
    for (long i = f->count - 1; i >= first && (n == 0 || weight < ddp__follow_newest * all); i--, n++) {
        const ddp__observed *o = &f->seen[i % DDP__OBSERVED];
        weight += least[n].weight = most[n].weight = o->modelled_s;
        least[n].factor = o->least_s / o->modelled_s;
        most[n].factor = o->most_s / o->modelled_s;
    }
    f->window = f->count;
    if (n == 0) return 0;
    from = ddp__bound_of(least, n, weight);
    to = fmax(from, ddp__bound_of(most, n, weight));
    f->scale = from > 1 ? from : to < 1 - ddp__follow_exact ? sqrt(fmax(from, to / 4) * to) : 1;
    f->scale = fmax(1 / ddp__follow_most, fmin(f->scale, ddp__follow_most));
    return f->scale;
}

double ddp__follow_scale(const ddp__follow *f) { return f->scale > 0 ? f->scale : 1; }

void ddp__follow_restart(ddp__follow *f, double now)
{
    memset(f, 0, sizeof *f);
    f->ended = f->busy_until = now;
}

/* ---- busy times ---- */

enum {
    DDP__CONTROL_BYTES = 1024, /* messages up to this size take no time of the link */
    DDP__FLOW_PARTS = 4,       /* parts from which the first one is a small share of a message */
    DDP__BUSY_MOST = 8 /* finished averages after which a busy time is evaluated although it continues */
};

/* Returns the bytes of a message as sent. */
static double ddp__span_bytes(const ddp__op_span *o)
{
    const size_t unit = o->coding == (char)DDP__AS_BYTES ? 1 : sizeof(float);
    const double bytes = (double)ddp__frame_payload(o->coding, (size_t)o->size / unit);

    /* an all-gather of n blocks takes as long as an all-reduce of half of their bytes */
    return o->verb == DDP_ALL_GATHER ? bytes / 2 : bytes;
}

/* Returns 1 for averages of layers. Other operations may take another time per byte. */
static int ddp__span_counts(const ddp__op_span *o)
{
    return (o->layer >= 0 || o->layer == (int)DDP_ALL_LAYERS) &&
           (o->verb == DDP_ALL_REDUCE || o->verb == DDP_ALL_GATHER);
}

static ddp_link ddp__span_line(const ddp_link line[DDP__LINES], const ddp__op_span *o)
{
    return ddp__line_of(line, (char)(o->verb == DDP_ALL_GATHER ? 'p' : o->algorithm));
}

/* Returns when an operation began to occupy the link: after waiting for slower ranks, which is not
 * communication. */
static double ddp__span_from(const ddp__op_span *o) { return fmax(o->submitted, o->begin + o->peer_wait); }

/* Returns when the last byte had left the link, alpha before its arrival. */
static double ddp__span_free(const ddp_link line[DDP__LINES], double gap_s, const ddp__op_span *o)
{
    if (o->end < 0) return DBL_MAX;
    return fmax(o->end - fmax(ddp__span_line(line, o).alpha_s - gap_s, 0), ddp__span_from(o));
}

/* Operations that follow each other without a pause of the link. */
typedef struct ddp__busy {
    double until, until_other; /* end of all operations so far, and of those that are no averages */
    double first;              /* begin of the first average */
    double seconds, other_s;   /* for which operations occupied the link, and those that are no averages */
    double takes, gaps, alpha; /* alpha: of the average that ended last */
    double ended;
    int averages, open; /* open: an operation runs */
    int flows; /* 1 if the results of the average that ended last follow its contributions in parts */
} ddp__busy;

static void ddp__busy_begin(ddp__busy *b, double at)
{
    memset(b, 0, sizeof *b);
    b->until = b->until_other = at;
    b->first = DBL_MAX;
}

static void ddp__busy_store(const ddp__busy *b, ddp__follow *f)
{
    ddp__observed o;

    o.modelled_s = b->takes;
    o.least_s = fmax(b->seconds - b->other_s - b->gaps - ddp__wake_s, 0);
    /* the link was idle for at most half of alpha, and less if contributions left while results arrived */
    if (b->flows) o.least_s = fmin(o.least_s + b->alpha / 2, 2 * o.least_s);
    /* the second delay of the direct algorithm may overlap with other messages */
    o.most_s = fmax(b->until + b->alpha / 2 - b->first - b->gaps, o.least_s);
    ddp__follow_add(f, &o);
    f->ended = fmax(f->ended, b->ended);
    f->busy_until = b->until;
}

static void ddp__busy_add(ddp__busy *b, const ddp_link line[DDP__LINES], double gap_s, double part_bytes,
                          const ddp__op_span *o, double after)
{
    const ddp_link own = ddp__span_line(line, o);
    const double from = fmax(ddp__span_from(o), after), until = ddp__span_free(line, gap_s, o);

    if (o->end < 0) {
        b->open = 1;
        return;
    }
    b->ended = fmax(b->ended, o->end);
    if (!ddp__span_counts(o)) {
        b->other_s += fmax(until - fmax(from, b->until_other), 0);
        b->until_other = fmax(b->until_other, until);
    } else {
        b->averages++;
        b->takes += own.beta_s * ddp__span_bytes(o);
        b->gaps += gap_s;
        b->first = fmin(b->first, fmax(o->begin, after));
        if (until >= b->until) {
            b->alpha = fmax(own.alpha_s - gap_s, 0);
            b->flows = o->algorithm == 'd' && part_bytes > 0 &&
                       ddp__span_bytes(o) >= (int)DDP__FLOW_PARTS * part_bytes;
        }
    }
    b->seconds += fmax(until - fmax(from, b->until), 0);
    b->until = fmax(b->until, until);
}

/* Sorts by begin. The operations are nearly sorted. */
static void ddp__ops_sort(ddp__op_span *o, int n)
{
    for (int i = 1; i < n; i++) {
        const ddp__op_span x = o[i];
        int j = i;
        for (; j > 0 && ddp__span_from(&o[j - 1]) > ddp__span_from(&x); j--) o[j] = o[j - 1];
        o[j] = x;
    }
}

void ddp__lines_observe(const ddp_link line[DDP__LINES], double gap_s, double part_bytes, ddp__op_span *ops,
                        int n, int end, ddp__follow *f)
{
    const double after = f->busy_until, since = f->ended;
    double newest = since;
    ddp__busy b = DDP__ZEROS;
    int busy = 0;

    ddp__ops_sort(ops, n);
    for (int i = 0; i < n; i++) {
        const ddp__op_span *o = &ops[i];
        newest = fmax(newest, o->end);
        if (o->size <= (int64_t)DDP__CONTROL_BYTES || (o->end >= 0 && o->end <= since)) continue;
        if (!busy || (!b.open && ddp__span_from(o) > b.until)) {
            if (busy) ddp__busy_store(&b, f);
            ddp__busy_begin(&b, fmax(ddp__span_from(o), after));
        }
        busy = 1;
        ddp__busy_add(&b, line, gap_s, part_bytes, o, after);
    }
    if (busy && (!b.open || (b.averages > 0 && (end || b.averages >= (int)DDP__BUSY_MOST))))
        ddp__busy_store(&b, f);
    if (!busy) f->ended = newest;
}
