#include "base/platform.h"
#include "report/lanes.h"
#include "base/memory.h"

static int ddp__lane_order(const void *pa, const void *pb)
{
    const ddp_span *a = &((const ddp__lane_item *)pa)->span,
                   *b = &((const ddp__lane_item *)pb)->span;

    if (a->begin_s < b->begin_s || a->begin_s > b->begin_s) return a->begin_s < b->begin_s ? -1 : 1;
    return (a->end_s < b->end_s) - (a->end_s > b->end_s);
}

int ddp__lane_make(const ddp_report_worker *w, unsigned kinds, double begin, double end,
                   ddp__lane *out)
{
    double *row_end;
    int i, row;

    memset(out, 0, sizeof *out);
    out->rows = 1;
    out->items = (ddp__lane_item *)ddp__calloc((size_t)w->count, sizeof *out->items);
    row_end = (double *)ddp__calloc((size_t)w->count, sizeof *row_end);
    if (!out->items || !row_end) {
        DDP_FREE(row_end);
        ddp__lane_free(out);
        return 0;
    }
    for (i = 0; i < w->count; i++) {
        ddp_span s = w->spans[i];

        if ((unsigned)s.kind >= DDP_SPAN_KINDS || !(kinds >> s.kind & 1u)) continue;
        if (s.begin_s < begin) s.begin_s = begin;
        if (s.end_s > end) s.end_s = end;
        if (s.end_s > s.begin_s) out->items[out->count++].span = s;
    }
    if (out->count) qsort(out->items, (size_t)out->count, sizeof *out->items, ddp__lane_order);
    for (i = 0; i < out->count; i++) {
        for (row = 0; row < i && row < out->rows && row_end[row] > out->items[i].span.begin_s;
             row++) {
        }
        if (row == out->rows) out->rows++;
        out->items[i].row = row;
        row_end[row] = out->items[i].span.end_s;
    }
    DDP_FREE(row_end);
    return 1;
}

void ddp__lane_free(ddp__lane *lane)
{
    if (lane->items) DDP_FREE(lane->items);
    memset(lane, 0, sizeof *lane);
}

void ddp__run_window(const ddp_report_run *r, double *begin, double *end)
{
    int w, i, any = 0;

    *begin = r->window_begin_s;
    *end = r->window_end_s;
    if (*end > *begin) return;
    *begin = *end = 0;
    for (w = 0; w < r->worker_count; w++) {
        for (i = 0; i < r->workers[w].count; i++) {
            const ddp_span *s = &r->workers[w].spans[i];

            if (!(s->end_s > s->begin_s)) continue;
            if (!any || s->begin_s < *begin) *begin = s->begin_s;
            if (!any || s->end_s > *end) *end = s->end_s;
            any = 1;
        }
    }
}
