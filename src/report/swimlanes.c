#include "base/platform.h"
#include "report/swimlanes.h"
#include "report/lanes.h"
#include "report/summary.h"
#include "report/svg.h"

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
    ddp__text_addf(t, "<title>%s", ddp_span_kind_name(s->kind));
    if (s->layer >= 0 && s->layer < d->layer_count && d->layers[s->layer].name) {
        ddp__text_addf(t, " ");
        ddp__add_escaped(t, d->layers[s->layer].name);
    } else if (s->layer >= 0) {
        ddp__text_addf(t, " layer %d", s->layer);
    }
    ddp__text_addf(t, ", step %ld: ", s->step);
    ddp__add_short(t, (s->end_s - s->begin_s) * 1e3, 3);
    ddp__text_addf(t, " ms");
    if (s->bytes > 0) {
        ddp__text_addf(t, ", ");
        ddp__add_short(t, (double)s->bytes / 1e6, 3);
        ddp__text_addf(t, " MB");
    }
    ddp__text_addf(t, "</title>");
}

static void ddp__swim_lane(ddp__text *t, const ddp_report_data *d, const ddp__swim *m,
                           const ddp__lane *lane, double top, double height)
{
    double row_h = height / lane->rows;
    int i;

    for (i = 0; i < lane->count; i++) {
        const ddp_span *s = &lane->items[i].span;
        double x = ddp__swim_x(m, s->begin_s), w = ddp__swim_x(m, s->end_s) - x;

        ddp__text_addf(t, "<rect class=\"k%d\" x=\"", (int)s->kind);
        ddp__add_short(t, x, 2);
        ddp__text_addf(t, "\" y=\"");
        ddp__add_short(t, top + row_h * lane->items[i].row, 1);
        ddp__text_addf(t, "\" width=\"");
        ddp__add_short(t, w > 0.3 ? w : 0.3, 2);
        ddp__text_addf(t, "\" height=\"");
        ddp__add_short(t, row_h, 1);
        ddp__text_addf(t, "\">");
        ddp__swim_title(t, d, s);
        ddp__text_addf(t, "</rect>");
    }
    ddp__text_addf(t, "\n");
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
        ddp__text_addf(t, "<path class=\"step\" d=\"M");
        ddp__add_short(t, x, 1);
        ddp__text_addf(t, " 4V%d\"/>", bottom);
        if (x - named < 46) continue;
        named = x;
        ddp__text_addf(t, "<text x=\"");
        ddp__add_short(t, x + 3, 1);
        ddp__text_addf(t, "\" y=\"11\">step %ld</text>", step);
    }
}

static void ddp__swim_axis(ddp__text *t, const ddp__swim *m, double scale_s, int bottom)
{
    int decimals;
    double ms = scale_s * 1e3, step = ddp__tick_step(ms, 14, &decimals), v;

    for (v = 0; v * step <= ms * (1 + 1e-9); v += 1) {
        double x = ddp__swim_x(m, m->begin + v * step / 1e3);

        ddp__text_addf(t, "<path class=\"grid\" d=\"M");
        ddp__add_short(t, x, 1);
        ddp__text_addf(t, " %dV%d\"/><text class=\"mid\" x=\"", DDP__SWIM_TOP, bottom);
        ddp__add_short(t, x, 1);
        ddp__text_addf(t, "\" y=\"%d\">", bottom + 13);
        ddp__add_short(t, v * step, decimals);
        ddp__text_addf(t, v > 0 ? "</text>" : " ms</text>");
    }
}

void ddp__svg_swimlanes(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r,
                        double scale_s)
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

        if (!ddp__lane_make(&r->workers[w], DDP__LANE_COMPUTE, m.begin, m.end, &compute)) {
            t->failed = 1;
            return;
        }
        if (w == 0) ddp__swim_steps(t, &m, &compute, bottom);
        ddp__text_addf(t, "<text class=\"end\" x=\"%d\" y=\"%d\">rank %d</text>",
                       DDP__SWIM_LEFT - 8, top + 17, w);
        ddp__swim_lane(t, d, &m, &compute, top, DDP__SWIM_COMPUTE);
        ddp__lane_free(&compute);
        if (!ddp__lane_make(&r->workers[w], DDP__LANE_COMM, m.begin, m.end, &comm)) {
            t->failed = 1;
            return;
        }
        ddp__swim_lane(t, d, &m, &comm, top + DDP__SWIM_COMPUTE + 1, DDP__SWIM_COMM);
        ddp__lane_free(&comm);
    }
    ddp__text_addf(t, "</svg>\n");
    if (workers < r->worker_count)
        ddp__text_addf(t, "<p class=\"note\">The first %d of %d workers.</p>\n", workers,
                       r->worker_count);
}
