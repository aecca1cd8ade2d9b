/* Unions and overlaps of spans, and the share of communication that computing hides. */
#include "base/core.h"
#include "profile/trace.h"

typedef struct ddp__interval { double begin, end; } ddp__interval;

const char *ddp_span_kind_name(ddp_span_kind kind)
{
    static const char *const name[] = {"forward", "backward", "update", "wait", "comm", "fill", "peer wait"};
    return (unsigned)kind < DDP_SPAN_KINDS ? name[kind] : "?";
}

/* The union of the chosen spans as disjoint intervals in rising order, into out [n]. */
static int ddp__span_merge(const ddp_span *spans, int n, unsigned kinds, ddp__interval *out)
{
    int count = 0, last = 0;
    for (int i = 0; i < n; i++) {
        if ((unsigned)spans[i].kind >= DDP_SPAN_KINDS || !(kinds >> spans[i].kind & 1u)) continue;
        if (!(spans[i].end_s > spans[i].begin_s)) continue;
        out[count].begin = spans[i].begin_s;
        out[count++].end = spans[i].end_s;
    }
    if (count == 0) return 0;
    qsort(out, (size_t)count, sizeof *out, ddp__rising);
    for (int i = 1; i < count; i++) {
        if (out[i].begin > out[last].end) out[++last] = out[i];
        else if (out[i].end > out[last].end) out[last].end = out[i].end;
    }
    return last + 1;
}

/* Length of the intersection of two unions: one walk over both. */
static double ddp__interval_common(const ddp__interval *a, int na, const ddp__interval *b, int nb)
{
    double sum = 0;
    int i = 0, j = 0;

    while (i < na && j < nb) {
        double begin = a[i].begin > b[j].begin ? a[i].begin : b[j].begin;
        double end = a[i].end < b[j].end ? a[i].end : b[j].end;

        if (end > begin) sum += end - begin;
        if (a[i].end < b[j].end) i++;
        else j++;
    }
    return sum;
}

/* Union of kinds a, and what of it kinds b cover; 0 when memory is short. */
static int ddp__span_measure(const ddp_span *spans, int n, unsigned a, unsigned b, double *whole, double *common)
{
    size_t count = n > 0 ? (size_t)n : 0;
    ddp__interval *room = (ddp__interval *)ddp__calloc(count * 2, sizeof *room);
    int na, nb;
    if (!room) return 0;
    na = ddp__span_merge(spans, n, a, room);
    nb = ddp__span_merge(spans, n, b, room + count);
    *whole = 0;
    for (int i = 0; i < na; i++) *whole += room[i].end - room[i].begin;
    *common = ddp__interval_common(room, na, room + count, nb);
    DDP_FREE(room);
    return 1;
}

double ddp_span_union(const ddp_span *spans, int n, unsigned kinds)
{
    double whole, common;
    return ddp__span_measure(spans, n, kinds, 0, &whole, &common) ? whole : (double)NAN;
}

double ddp_span_overlap(const ddp_span *spans, int n, unsigned a, unsigned b)
{
    double whole, common;
    return ddp__span_measure(spans, n, a, b, &whole, &common) ? common : (double)NAN;
}

double ddp_hidden_share(const ddp_span *spans, int n)
{
    double whole, common;
    if (!ddp__span_measure(spans, n, 1u << DDP_SPAN_COMM, DDP_SPAN_COMPUTE, &whole, &common)) return (double)NAN;
    if (!(whole > 0)) return 1;
    return common < whole ? common / whole : 1;
}
