/* What workers did, when: spans sorted into the rows of lanes, and the picture of them. */
#include "base/core.h"
#include "report/page.h"

static int ddp__lane_order(const void *pa, const void *pb)
{
    const ddp_span *a = &((const ddp__lane_item *)pa)->span, *b = &((const ddp__lane_item *)pb)->span;

    if (a->begin_s < b->begin_s || a->begin_s > b->begin_s) return a->begin_s < b->begin_s ? -1 : 1;
    return (a->end_s < b->end_s) - (a->end_s > b->end_s);
}

int ddp__lane_make(const ddp_report_worker *w, unsigned kinds, double begin, double end, ddp__lane *out)
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
        for (row = 0; row < i && row < out->rows && row_end[row] > out->items[i].span.begin_s; row++) {
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

/* ---- the picture ---- */

#define DDP__SWIM_W       1100
#define DDP__SWIM_LEFT    56
#define DDP__SWIM_TOP     16 /* step numbers */
#define DDP__SWIM_COMPUTE 14 /* heights of the lanes */
#define DDP__SWIM_COMM    12
#define DDP__SWIM_WORKER  34 /* from one worker to the next */
#define DDP__SWIM_BOTTOM  18 /* time axis */

typedef struct ddp__swim {
    double begin, end, per_s; /* window, and units of the drawing per second */
} ddp__swim;

static double ddp__swim_x(const ddp__swim *m, double s)
{
    return DDP__SWIM_LEFT + (s - m->begin) * m->per_s;
}

static void ddp__swim_title(ddp__text *t, const ddp_report_data *d, const ddp_span *s)
{
    ddp__add_page(t, "<title>%s", ddp_span_kind_name(s->kind));
    if (s->layer >= 0 && s->layer < d->layer_count && d->layers[s->layer].name)
        ddp__add_page(t, " $", d->layers[s->layer].name);
    else if (s->layer >= 0) ddp__add_page(t, " layer %d", s->layer);
    ddp__add_page(t, ", step %ld: @3 ms", s->step, (s->end_s - s->begin_s) * 1e3);
    if (s->bytes > 0) ddp__add_page(t, ", @3 MB", (double)s->bytes / 1e6);
    ddp__add_page(t, "</title>");
}

static void ddp__swim_lane(ddp__text *t, const ddp_report_data *d, const ddp__swim *m,
                           const ddp__lane *lane, double top, double height)
{
    double row_h = height / lane->rows;
    int i;

    for (i = 0; i < lane->count; i++) {
        const ddp_span *s = &lane->items[i].span;
        double x = ddp__swim_x(m, s->begin_s), w = ddp__swim_x(m, s->end_s) - x;

        ddp__add_page(t, "<rect class=\"k%d\" x=\"@2\" y=\"@1\" width=\"@2\" height=\"@1\">",
                      (int)s->kind, x, top + row_h * lane->items[i].row, w > 0.3 ? w : 0.3, row_h);
        ddp__swim_title(t, d, s);
        ddp__add_page(t, "</rect>");
    }
    ddp__add_page(t, "\n");
}

/* A line where worker 0 begins the computing of a step, numbered where there is room. */
static void ddp__swim_steps(ddp__text *t, const ddp__swim *m, const ddp__lane *lane, int bottom)
{
    double named = -1e9;
    long step = -1;
    int i;

    for (i = 0; i < lane->count; i++) {
        double x = ddp__swim_x(m, lane->items[i].span.begin_s);

        if (lane->items[i].span.step <= step || lane->items[i].span.kind == DDP_SPAN_WAIT) continue;
        step = lane->items[i].span.step;
        ddp__add_page(t, "<path class=\"step\" d=\"M@1 4V%d\"/>", x, bottom);
        if (x - named < 46) continue;
        named = x;
        ddp__add_page(t, "<text x=\"@1\" y=\"11\">step %ld</text>", x + 3, step);
    }
}

static void ddp__swim_axis(ddp__text *t, const ddp__swim *m, double scale_s, int bottom)
{
    int decimals;
    double ms = scale_s * 1e3, step = ddp__tick_step(ms, 14, &decimals), v;

    for (v = 0; v * step <= ms * (1 + 1e-9); v += 1) {
        double x = ddp__swim_x(m, m->begin + v * step / 1e3);

        ddp__add_page(t, "<path class=\"grid\" d=\"M@1 %dV%d\"/>"
                         "<text class=\"mid\" x=\"@1\" y=\"%d\">@*%s</text>",
                      x, DDP__SWIM_TOP, bottom, x, bottom + 13, decimals, v * step,
                      v > 0 ? "" : " ms");
    }
}

void ddp__svg_swimlanes(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, double scale_s)
{
    int workers = r->worker_count < DDP__SWIM_WORKERS ? r->worker_count : DDP__SWIM_WORKERS, w;
    int bottom = DDP__SWIM_TOP + 2 + workers * DDP__SWIM_WORKER;
    ddp__lane compute, comm;
    ddp__swim m;

    ddp__run_window(r, &m.begin, &m.end);
    if (workers < 1 || !(m.end > m.begin) || !(scale_s > 0)) {
        ddp__text_addf(t, "<p class=\"note\">No spans were recorded.</p>\n");
        return;
    }
    m.per_s = (DDP__SWIM_W - DDP__SWIM_LEFT - 16) / scale_s;
    ddp__text_addf(t, "<svg class=\"lanes\" viewBox=\"0 0 %d %d\" role=\"img\">", DDP__SWIM_W,
                   bottom + DDP__SWIM_BOTTOM);
    ddp__swim_axis(t, &m, scale_s, bottom);
    for (w = 0; w < workers; w++) {
        int top = DDP__SWIM_TOP + 4 + w * DDP__SWIM_WORKER;

        if (!ddp__lane_make(&r->workers[w], DDP__LANE_COMPUTE, m.begin, m.end, &compute)) break;
        if (!ddp__lane_make(&r->workers[w], DDP__LANE_COMM, m.begin, m.end, &comm)) {
            ddp__lane_free(&compute);
            break;
        }
        if (w == 0) ddp__swim_steps(t, &m, &compute, bottom);
        ddp__add_page(t, "<text class=\"end\" x=\"%d\" y=\"%d\">rank %d</text>", DDP__SWIM_LEFT - 8, top + 17, w);
        ddp__swim_lane(t, d, &m, &compute, top, DDP__SWIM_COMPUTE);
        ddp__swim_lane(t, d, &m, &comm, top + DDP__SWIM_COMPUTE + 1, DDP__SWIM_COMM);
        ddp__lane_free(&compute);
        ddp__lane_free(&comm);
    }
    if (w < workers) t->failed = 1;
    ddp__text_addf(t, "</svg>\n");
    if (workers < r->worker_count)
        ddp__text_addf(t, "<p class=\"note\">The first %d of %d workers.</p>\n", workers, r->worker_count);
}
