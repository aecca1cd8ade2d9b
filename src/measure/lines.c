/* Corrects the cost of averages over a link by the transfers of training. */
#include "comm/frame.h"
#include "measure/lines.h"

static const double ddp__follow_fade = 0.7937;    /* 2^(-1/3) */
static const double ddp__follow_prior = 0.1;      /* weight of the model itself, which never fades */
static const double ddp__follow_most = 2.7725887; /* log 16: one stalled transfer is no new rate */

void ddp__follow_add(ddp__follow *f, const ddp__observed *o)
{
    /* transfers that consist mostly of latency say little about the rate */
    const double part = o->modelled_s / (o->modelled_s + o->alpha_s);
    double change;

    if (!(o->modelled_s > 0) || !ddp__finite(o->seconds)) return;
    change = o->seconds > 0 ? log(o->seconds / o->modelled_s) : -ddp__follow_most;
    change = fmax(-ddp__follow_most, fmin(change, ddp__follow_most));
    f->weight = ddp__follow_fade * f->weight + part * part;
    f->sum = ddp__follow_fade * f->sum + part * part * change;
}

double ddp__follow_scale(const ddp__follow *f) { return exp(f->sum / (f->weight + ddp__follow_prior)); }

/* ---- observations ---- */

enum { DDP__CONTROL_BYTES = 1024 }; /* control messages up to this size take no time of the link */

/* Returns the bytes of a message as sent. */
static double ddp__span_bytes(const ddp__op_span *o)
{
    const size_t unit = o->coding == (char)DDP__AS_BYTES ? 1 : sizeof(float);
    const double bytes = (double)ddp__frame_payload(o->coding, (size_t)o->size / unit);

    /* an all-gather of n blocks takes as long as an all-reduce of half of their bytes */
    return o->verb == DDP_ALL_GATHER ? bytes / 2 : bytes;
}

static int ddp__span_is_word(const ddp__op_span *o)
{
    return o->layer < 0 && o->layer != (int)DDP_ALL_LAYERS && o->size <= (int64_t)DDP__CONTROL_BYTES;
}

/* Returns 1 for averages of layers. */
static int ddp__span_counts(const ddp__op_span *o)
{
    return (o->layer >= 0 || o->layer == (int)DDP_ALL_LAYERS) &&
           (o->verb == DDP_ALL_REDUCE || o->verb == DDP_ALL_GATHER);
}

static ddp_link ddp__span_line(const ddp_link line[DDP__LINES], const ddp__op_span *o)
{
    return ddp__line_of(line, (char)(o->verb == DDP_ALL_GATHER ? 'p' : o->algorithm));
}

/* Operations that follow each other without a pause of the link. */
typedef struct ddp__busy {
    double begin, submitted, free; /* free: when the last byte had left the link, alpha before its arrival */
    double end, takes, gaps, alpha;
    int ops, partly; /* partly: an operation runs, or is no average */
} ddp__busy;

static void ddp__busy_count(const ddp__busy *b, double from, double since, ddp__observed *out)
{
    /* waiting for a slower rank is not communication, and the second delay of the direct algorithm may
     * overlap with other messages: times that the model could have had are no evidence against it */
    const double least = fmax(b->free - b->begin - b->gaps, 0), most = b->free + b->alpha / 2 - b->submitted;

    if (b->ops == 0 || b->partly || b->submitted < from || b->end <= since) return;
    out->seconds += fmax(least, fmin(b->takes, most));
    out->modelled_s += b->takes;
    out->alpha_s += b->alpha + b->gaps;
}

/* Sorts by submission. The operations are nearly sorted. */
static void ddp__ops_sort(ddp__op_span *o, int n)
{
    for (int i = 1; i < n; i++) {
        const ddp__op_span x = o[i];
        int j = i;
        for (; j > 0 && o[j - 1].submitted > x.submitted; j--) o[j] = o[j - 1];
        o[j] = x;
    }
}

void ddp__lines_observe(const ddp_link line[DDP__LINES], double gap_s, ddp__op_span *ops, int n, double from,
                        double since, ddp__observed *out)
{
    ddp__busy b = DDP__ZEROS;

    ddp__ops_sort(ops, n);
    for (int i = 0; i < n; i++) {
        const ddp__op_span *o = &ops[i];
        const ddp_link own = ddp__span_line(line, o);
        const double bytes = ddp__span_bytes(o);
        if (ddp__span_is_word(o)) continue;
        if (b.ops == 0 || o->submitted > b.free) {
            ddp__busy_count(&b, from, since, out);
            memset(&b, 0, sizeof b);
            b.begin = fmax(o->submitted, o->begin + o->peer_wait);
            b.submitted = o->submitted;
        }
        b.ops++;
        b.takes += own.beta_s * bytes;
        b.gaps += gap_s;
        if (o->end < 0 || !ddp__span_counts(o)) b.partly = 1;
        if (o->end < 0) b.free = DBL_MAX;
        if (o->end > b.end) {
            b.end = o->end;
            b.alpha = fmax(own.alpha_s - gap_s, 0);
            b.free = fmax(b.free, o->end - b.alpha);
        }
    }
    ddp__busy_count(&b, from, since, out);
}

void ddp__lines_saturated(const ddp_link line[DDP__LINES], double gap_s, const ddp__op_span *o, int n,
                          double since, ddp__observed *out)
{
    double begin = -1, end = -1, takes = 0, gaps = 0, waited = 0, covered, next;

    for (int j = 0; j < n; j++)
        if (o[j].end > begin && o[j].end <= since) begin = o[j].end;
    for (int j = 0; j < n && begin >= 0; j++) {
        if (o[j].end <= begin || ddp__span_is_word(&o[j])) continue;
        if (!ddp__span_counts(&o[j])) return;
        if (o[j].end > end) end = o[j].end;
        takes += ddp__span_line(line, &o[j]).beta_s * ddp__span_bytes(&o[j]);
        gaps += gap_s;
        waited += o[j].peer_wait;
    }
    for (covered = begin; covered < end; covered = next) {
        next = covered;
        for (int j = 0; j < n; j++)
            if (o[j].begin <= covered && (o[j].end < 0 || o[j].end > next))
                next = o[j].end < 0 ? end : o[j].end;
        if (next <= covered) return;
    }
    if (!(takes > 0) || waited >= 0.1 * (end - begin)) return;
    out->seconds += fmax(end - begin - gaps, 0);
    out->modelled_s += takes;
    out->alpha_s += gaps;
}
