/* Parts of a page: numbers, escaped text, line charts, and swimlanes of the workers. */
#include "config/config.h"
#include "config/names.h"
#include "io/json.h"
#include "report/page.h"

/* The size of a chart, and the edges of its plot area. */
#define DDP__CHART_W      540
#define DDP__CHART_H      300
#define DDP__CHART_LEFT   52
#define DDP__CHART_RIGHT  432 /* the labels of the lines are to the right of it */
#define DDP__CHART_TOP    20
#define DDP__CHART_BOTTOM 260
#define DDP__CHART_NAME_H 14

/* ---- numbers and text ---- */

void ddp__add_fixed(ddp__text *t, double v, int decimals)
{
    long long unit = 1, n;

    for (int i = 0; i < decimals; i++) unit *= 10;
    if (!ddp__within(fabs(v), 0, 9e18 / (double)unit)) {
        ddp__text_addf(t, "-");
        return;
    }
    n = llround(v * (double)unit);
    if (n < 0) ddp__text_addf(t, "-");
    n = n < 0 ? -n : n;
    ddp__text_addf(t, "%lld", n / unit);
    if (decimals > 0) ddp__text_addf(t, ".%0*lld", decimals, n % unit);
}

static void ddp__add_short(ddp__text *t, double v, int decimals)
{
    size_t before = t->size;

    ddp__add_fixed(t, v, decimals);
    if (t->failed || decimals < 1 || t->size < before + 3) return;
    while (t->data[t->size - 1] == '0') t->size--;
    if (t->data[t->size - 1] == '.') t->size--;
    t->data[t->size] = 0;
}

static void ddp__add_escaped(ddp__text *t, const char *s)
{
    size_t left = s ? strlen(s) : 0;

    while (left) {
        int n = ddp__utf8_length((const unsigned char *)s, left);
        if (n == 3 && (!memcmp(s, "\xef\xbf\xbe", 3) || !memcmp(s, "\xef\xbf\xbf", 3)))
            n = 0; /* the two code points that XML forbids */
        switch (*s) {
        case '&':
            ddp__text_add(t, "&amp;", 5);
            break;
        case '<':
            ddp__text_add(t, "&lt;", 4);
            break;
        case '>':
            ddp__text_add(t, "&gt;", 4);
            break;
        case '"':
            ddp__text_add(t, "&quot;", 6);
            break;
        case '\'':
            ddp__text_add(t, "&#39;", 5);
            break;
        default:
            if (n == 0)
                ddp__text_add(t, "?", 1);
            else if (n == 1 && ((unsigned char)*s < 0x20 || *s == 0x7f))
                ddp__text_add(t, " ", 1);
            else
                ddp__text_add(t, s, (size_t)n);
        }
        n = n ? n : 1;
        s += n;
        left -= (size_t)n;
    }
}

void ddp__add_page(ddp__text *t, const char *fmt, ...)
{
    va_list list;

    va_start(list, fmt);
    while (*fmt) {
        const size_t plain = strcspn(fmt, "$^@%");
        char kind;
        ddp__text_add(t, fmt, plain);
        fmt += plain;
        kind = *fmt ? *fmt++ : 0;
        if (kind == '$') {
            ddp__add_escaped(t, va_arg(list, const char *));
        } else if (kind == '^' || kind == '@') {
            const int decimals = *fmt == '*' ? va_arg(list, int) : *fmt - '0';
            (kind == '@' ? ddp__add_short : ddp__add_fixed)(t, va_arg(list, double), decimals);
            fmt++;
        } else if (kind && *fmt == 'l') {
            fmt += 2;
            ddp__text_addf(t, "%ld", va_arg(list, long));
        } else if (kind) {
            if (*fmt == 'd')
                ddp__text_addf(t, "%d", va_arg(list, int));
            else if (*fmt == 's')
                ddp__text_addf(t, "%s", va_arg(list, const char *));
            else
                ddp__text_add(t, "%", 1);
            fmt++;
        }
    }
    va_end(list);
}

ddp_status ddp__text_print(ddp__text *t, FILE *out, const char *what, ddp_error *err)
{
    const int short_of = t->failed,
              bad = short_of || fwrite(t->data, 1, t->size, out) != t->size || fflush(out);
    const int why = errno;

    ddp__text_free(t);
    if (!bad) return DDP_OK;
    return ddp__fail(err, short_of ? DDP_MEMORY : DDP_IO, "cannot print the %s: %s", what,
                     short_of ? "out of memory" : strerror(why));
}

/* ---- charts ---- */

double ddp__tick_step(double range, int most, int *decimals)
{
    const int known = range > 0 && range <= 1e300, low = known ? (int)floor(log10(range / most)) : 0;
    const double unit = pow(10, low), ratio = known ? range / most / unit : 1;
    const int k = low + (ratio > 5);

    *decimals = k < 0 ? (k > -6 ? -k : 6) : 0;
    return unit * (ratio > 5 ? 10 : ratio > 2 ? 5 : ratio > 1 ? 2 : 1);
}

typedef struct ddp__chart {
    const ddp_report_data *d;
    ddp__curve what;
    int log_y;         /* 1 for the divergence: y0 and y1 are in decades, and values <= 0 are skipped */
    double x1, y0, y1; /* bounds. x starts at 0 */
} ddp__chart;

static double ddp__chart_x(const ddp__chart *c, double x)
{
    return DDP__CHART_LEFT + x / c->x1 * (DDP__CHART_RIGHT - DDP__CHART_LEFT);
}

static double ddp__chart_y(const ddp__chart *c, double y)
{
    double v = c->log_y ? log10(y) : y;

    return DDP__CHART_TOP + (c->y1 - v) / (c->y1 - c->y0) * (DDP__CHART_BOTTOM - DDP__CHART_TOP);
}

/* The point of one step of a run. Returns 0 if the point cannot be drawn. */
static int ddp__chart_point(const ddp__chart *c, const ddp_report_run *r, int i, double *x, double *y)
{
    const ddp_report_step *s = &r->steps[i];

    *x = c->what == DDP__CURVE_TIME ? s->time_s : c->log_y ? i + 1 : (double)s->bytes / 1e6;
    *y = c->log_y ? s->divergence : s->loss;
    return ddp__finite(*x) && ddp__finite(*y) && (!c->log_y || *y > 0);
}

/* Computes the bounds over all points. Returns 0 if there are no points. */
static int ddp__chart_fit(ddp__chart *c)
{
    int any = 0;
    double pad, x, y;

    for (const ddp_report_run *r = c->d->runs; r < c->d->runs + c->d->run_count; r++)
        for (int i = 0; i < r->step_count; i++) {
            if (!ddp__chart_point(c, r, i, &x, &y)) continue;
            if (c->log_y) y = log10(y);
            if (x > c->x1) c->x1 = x;
            if (!any || y < c->y0) c->y0 = y;
            if (!any || y > c->y1) c->y1 = y;
            any = 1;
        }
    if (!(c->x1 > 0)) c->x1 = 1;
    pad = 0.05 * (c->y1 - c->y0);
    if (!(pad > 0)) pad = fabs(c->y1) > 0 ? 0.1 * fabs(c->y1) : 1;
    c->y0 -= pad;
    c->y1 += pad;
    return any;
}

/* A tick at y = digit x 10^exponent of a logarithmic axis. Small and large values are written as 2e-5. */
static void ddp__svg_y_tick(ddp__text *t, const ddp__chart *c, double y, int digit, int exponent,
                            int decimals)
{
    double at = ddp__chart_y(c, y);

    ddp__add_page(t, "<path class=\"grid\" d=\"M%d @1H%d\"/><text class=\"end\" x=\"%d\" y=\"@1\">",
                  DDP__CHART_LEFT, at, DDP__CHART_RIGHT, DDP__CHART_LEFT - 6, at + 4);
    if (c->log_y && (exponent < -3 || exponent > 3))
        ddp__add_page(t, "%de%d</text>", digit, exponent);
    else
        ddp__add_page(t, "@*</text>", decimals, y);
}

/* Numbers below a drawing, from 0 to most, `unit` apart, starting at `left`. */
static void ddp__svg_x_ticks(ddp__text *t, double left, double unit, double most, int parts, int top,
                             int bottom, int below, const char *of)
{
    int decimals;
    const double step = ddp__tick_step(most, parts, &decimals);

    for (double v = 0; v * step <= most * (1 + 1e-9); v += 1) {
        const double x = left + v * step * unit;
        ddp__add_page(
            t, "<path class=\"grid\" d=\"M@1 %dV%d\"/><text class=\"mid\" x=\"@1\" y=\"%d\">@*%s</text>", x,
            top, bottom, x, bottom + below, decimals, v * step, v > 0 ? "" : of);
    }
}

static void ddp__svg_axes(ddp__text *t, const ddp__chart *c)
{
    static const int part[3] = {1, 2, 5};
    const double high = c->y1 - c->y0;
    int decimals;
    const double step = ddp__tick_step(high, 6, &decimals);

    for (double v = ceil(c->y0 / step); !c->log_y && v * step <= c->y1; v += 1)
        ddp__svg_y_tick(t, c, v * step, 0, 0, decimals);
    for (double k = floor(c->y0); c->log_y && k <= ceil(c->y1); k += floor(high / 8) + 1)
        for (int i = 0; i < (high <= 2 ? 3 : 1); i++) {
            const double y = part[i] * pow(10, k);
            if (log10(y) >= c->y0 && log10(y) <= c->y1) ddp__svg_y_tick(t, c, y, part[i], (int)k, 3);
        }
    ddp__svg_x_ticks(t, DDP__CHART_LEFT, (DDP__CHART_RIGHT - DDP__CHART_LEFT) / c->x1, c->x1, 6,
                     DDP__CHART_TOP, DDP__CHART_BOTTOM, 16, "");
    ddp__add_page(
        t,
        "<path class=\"axis\" d=\"M%d %dV%dH%d\"/><text class=\"mid label\" x=\"%d\" y=\"%d\">$</text>"
        "<text class=\"label\" x=\"4\" y=\"11\">$</text>",
        DDP__CHART_LEFT, DDP__CHART_TOP, DDP__CHART_BOTTOM, DDP__CHART_RIGHT,
        (DDP__CHART_LEFT + DDP__CHART_RIGHT) / 2, DDP__CHART_H - 6,
        c->log_y                     ? "step"
        : c->what == DDP__CURVE_TIME ? "seconds"
                                     : "MB sent by a worker",
        c->log_y ? "divergence (log scale)" : "loss");
}

/* The style of a run. The default strategy is always s0. The others use the styles s1 to s7 in order, and
 * again with other dashes if there are more. The value is 8 x round + style. */
static int ddp__run_style(const ddp_report_data *d, int run)
{
    const char *first = ddp_strategy_name(DDP_STRATEGY_DEFAULT);
    int style = 0, is_first = 0;

    for (int i = 0; i <= run; i++) {
        is_first = d->runs[i].strategy && !strcmp(d->runs[i].strategy, first);
        style += !is_first;
    }
    return is_first ? 0 : 1 + (style - 1) % 7 + (style - 1) / 7 * 8;
}

/* The mean of the losses of `over` steps, up to and including step `last`. */
static double ddp__loss_mean(const ddp_report_run *r, int last, int over)
{
    double sum = 0;
    int n = 0;

    for (int i = last; i >= 0 && i > last - over; i--)
        if (ddp__finite(r->steps[i].loss)) {
            sum += r->steps[i].loss;
            n++;
        }
    return sum / n;
}

/* Draws one path: the means over `over` points, or with 0 the points themselves, pale. *end_y receives the
 * y where it ends. A long series is thinned to about a thousand points. */
static int ddp__svg_line(ddp__text *t, const ddp__chart *c, int run, int over, double *end_y)
{
    const ddp_report_run *r = &c->d->runs[run];
    const int stride = r->step_count / 1000 + 1, style = ddp__run_style(c->d, run);
    int points = 0;
    double x, y;

    for (int i = 0; i < r->step_count; i++) {
        if (!ddp__chart_point(c, r, i, &x, &y)) continue;
        if (points++ % stride && i != r->step_count - 1) continue;
        if (points == 1)
            ddp__add_page(t, "<path class=\"%s s%d r%d\" d=\"", over ? "line" : "faint", style % 8,
                          style / 8);
        *end_y = ddp__chart_y(c, over > 1 ? ddp__loss_mean(r, i, over) : y);
        ddp__add_page(t, "%s@1 @1", points == 1 ? "M" : "L", ddp__chart_x(c, x), *end_y);
    }
    if (points)
        ddp__add_page(t, r->strategy && over ? "\"><title>$</title></path>" : "\"></path>", r->strategy);
    return points;
}

/* Labels the lines in the order of their ends, and moves labels apart so that no label covers another. */
static void ddp__svg_names(ddp__text *t, const ddp_report_data *d, const double *end_y, int *order)
{
    double floor_y = DDP__CHART_TOP - DDP__CHART_NAME_H, limit;
    int j, n = 0;

    for (int i = 0; i < d->run_count; i++) {
        if (!d->runs[i].strategy || end_y[i] < 0) continue;
        for (j = n++; j > 0 && end_y[order[j - 1]] > end_y[i]; j--) order[j] = order[j - 1];
        order[j] = i;
    }
    for (int i = 0; i < n; i++) {
        const int style = ddp__run_style(d, order[i]);
        double y = end_y[order[i]];
        limit = DDP__CHART_BOTTOM - (double)(n - 1 - i) * DDP__CHART_NAME_H;
        if (y > limit) y = limit;
        if (y < floor_y + DDP__CHART_NAME_H) y = floor_y + DDP__CHART_NAME_H;
        floor_y = y;
        ddp__add_page(t,
                      "<path class=\"line s%d r%d\" d=\"M%d @1h18\"/>"
                      "<text class=\"name s%d\" x=\"%d\" y=\"@1\">$</text>",
                      style % 8, style / 8, DDP__CHART_RIGHT + 8, y, style % 8, DDP__CHART_RIGHT + 31, y + 4,
                      d->runs[order[i]].strategy);
    }
}

int ddp__note_marks(const ddp_report_note *note)
{
    return !note->kind || (strcmp(note->kind, "slow") && strcmp(note->kind, "even"));
}

static void ddp__svg_marks(ddp__text *t, const ddp__chart *c)
{
    for (const ddp_report_run *r = c->d->runs; r < c->d->runs + c->d->run_count; r++)
        for (int k = 0; k < r->note_count && c->what != DDP__CURVE_BYTES; k++) {
            const ddp_report_note *note = &r->notes[k];
            const double x = c->log_y ? (double)note->step : note->time_s;
            if (ddp__note_marks(note) && x >= 0 && x <= c->x1)
                ddp__add_page(t, "<path class=\"mark\" d=\"M@1 %dV%d\"><title>$</title></path>",
                              ddp__chart_x(c, x), DDP__CHART_TOP, DDP__CHART_BOTTOM, note->text);
        }
}

void ddp__svg_chart(ddp__text *t, const ddp_report_data *d, ddp__curve what, int over)
{
    double *end_y = (double *)ddp__calloc((size_t)d->run_count, sizeof *end_y);
    int *order = (int *)ddp__calloc((size_t)d->run_count, sizeof *order);
    ddp__chart c = {d, what, what == DDP__CURVE_DIVERGENCE, 0, 0, 0};

    if (!end_y || !order) {
        t->failed = 1;
    } else if (ddp__chart_fit(&c)) {
        ddp__text_addf(t, "<svg viewBox=\"0 0 %d %d\" role=\"img\">", DDP__CHART_W, DDP__CHART_H);
        ddp__svg_axes(t, &c);
        ddp__svg_marks(t, &c);
        for (int i = 0; i < d->run_count && over > 1; i++) ddp__svg_line(t, &c, i, 0, &end_y[i]);
        for (int i = 0; i < d->run_count; i++)
            if (!ddp__svg_line(t, &c, i, over, &end_y[i])) end_y[i] = -1;
        ddp__svg_names(t, d, end_y, order);
        ddp__text_addf(t, "</svg>\n");
    } else {
        ddp__text_addf(t, "<p class=\"note\">Nothing was measured.</p>\n");
    }
    DDP_FREE(end_y);
    DDP_FREE(order);
}

/* ---- lanes ---- */

static int ddp__lane_order(const void *pa, const void *pb)
{
    const ddp_span *a = &((const ddp__lane_item *)pa)->span, *b = &((const ddp__lane_item *)pb)->span;

    if (a->begin_s < b->begin_s || a->begin_s > b->begin_s) return a->begin_s < b->begin_s ? -1 : 1;
    return (a->end_s < b->end_s) - (a->end_s > b->end_s);
}

void ddp__lane_make(ddp__text *t, const ddp_report_worker *w, unsigned kinds, double begin, double end,
                    ddp__lane *out)
{
    double *row_end = (double *)ddp__calloc((size_t)w->count, sizeof *row_end);

    memset(out, 0, sizeof *out);
    out->rows = 1;
    out->items = (ddp__lane_item *)ddp__calloc((size_t)w->count, sizeof *out->items);
    if (!out->items || !row_end) t->failed = 1;
    for (int i = 0; i < w->count && !t->failed; i++) {
        ddp_span s = w->spans[i];
        if ((unsigned)s.kind >= DDP_SPAN_KINDS || !(kinds >> s.kind & 1u)) continue;
        if (s.begin_s < begin) s.begin_s = begin;
        if (s.end_s > end) s.end_s = end;
        if (s.end_s > s.begin_s) out->items[out->count++].span = s;
    }
    if (out->count) qsort(out->items, (size_t)out->count, sizeof *out->items, ddp__lane_order);
    for (int i = 0; i < out->count; i++) {
        int row = 0;
        while (row < i && row < out->rows && row_end[row] > out->items[i].span.begin_s) row++;
        if (row == out->rows) out->rows++;
        out->items[i].row = row;
        row_end[row] = out->items[i].span.end_s;
    }
    DDP_FREE(row_end);
}

void ddp__run_all(const ddp_report_run *r, double *begin, double *end)
{
    int any = 0;

    *begin = *end = 0;
    for (int w = 0; w < r->worker_count; w++)
        for (int i = 0; i < r->workers[w].count; i++) {
            const ddp_span *s = &r->workers[w].spans[i];
            if (!(s->end_s > s->begin_s)) continue;
            if (!any || s->begin_s < *begin) *begin = s->begin_s;
            if (!any || s->end_s > *end) *end = s->end_s;
            any = 1;
        }
}

void ddp__run_window(const ddp_report_run *r, double *begin, double *end)
{
    if (!(r->window_end_s > r->window_begin_s))
        ddp__run_all(r, begin, end);
    else {
        *begin = r->window_begin_s;
        *end = r->window_end_s;
    }
}

/* ---- the drawing ---- */

#define DDP__SWIM_W       1100
#define DDP__SWIM_LEFT    56
#define DDP__SWIM_TOP     16 /* height of the step numbers */
#define DDP__SWIM_COMPUTE 14 /* heights of the lanes */
#define DDP__SWIM_COMM    12
#define DDP__SWIM_WORKER  34 /* distance from one worker to the next */
#define DDP__SWIM_BOTTOM  18 /* height of the time axis */

typedef struct ddp__swim {
    double begin, end, per_s; /* the window, and drawing units per second */
} ddp__swim;

static double ddp__swim_x(const ddp__swim *m, double s) { return DDP__SWIM_LEFT + (s - m->begin) * m->per_s; }

static void ddp__swim_lane(ddp__text *t, const ddp_report_data *d, const ddp__swim *m, const ddp__lane *lane,
                           double top, double height)
{
    double row_h = height / lane->rows;

    for (int i = 0; i < lane->count; i++) {
        const ddp_span *s = &lane->items[i].span;
        double x = ddp__swim_x(m, s->begin_s), w = ddp__swim_x(m, s->end_s) - x;
        ddp__add_page(t, "<rect class=\"k%d\" x=\"@2\" y=\"@1\" width=\"@2\" height=\"@1\">", (int)s->kind, x,
                      top + row_h * lane->items[i].row, w > 0.3 ? w : 0.3, row_h);
        ddp__add_page(t, "<title>%s", ddp_span_kind_name(s->kind));
        if (s->layer >= 0 && s->layer < d->layer_count && d->layers[s->layer].name)
            ddp__add_page(t, " $", d->layers[s->layer].name);
        else if (s->layer >= 0)
            ddp__add_page(t, " layer %d", s->layer);
        ddp__add_page(t, ", step %ld: @3 ms", s->step, (s->end_s - s->begin_s) * 1e3);
        if (s->bytes > 0) ddp__add_page(t, ", @3 MB", (double)s->bytes / 1e6);
        ddp__add_page(t, "</title></rect>");
    }
    ddp__add_page(t, "\n");
}

/* Draws a line where worker 0 begins the compute of each step, numbered if there is space. */
static void ddp__swim_steps(ddp__text *t, const ddp__swim *m, const ddp__lane *lane, int bottom)
{
    double named = -1e9;
    long step = -1;

    for (int i = 0; i < lane->count; i++) {
        double x = ddp__swim_x(m, lane->items[i].span.begin_s);
        if (lane->items[i].span.step <= step || lane->items[i].span.kind == DDP_SPAN_WAIT) continue;
        step = lane->items[i].span.step;
        ddp__add_page(t, "<path class=\"step\" d=\"M@1 4V%d\"/>", x, bottom);
        if (x - named < 46) continue;
        named = x;
        ddp__add_page(t, "<text x=\"@1\" y=\"11\">step %ld</text>", x + 3, step);
    }
}

void ddp__svg_swimlanes(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, double scale_s)
{
    const int workers = r->worker_count < DDP__SWIM_WORKERS ? r->worker_count : DDP__SWIM_WORKERS;
    const int bottom = DDP__SWIM_TOP + 2 + workers * DDP__SWIM_WORKER;
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
    ddp__svg_x_ticks(t, DDP__SWIM_LEFT, m.per_s / 1e3, scale_s * 1e3, 14, DDP__SWIM_TOP, bottom, 13, " ms");
    for (int w = 0; w < workers; w++) {
        const int top = DDP__SWIM_TOP + 4 + w * DDP__SWIM_WORKER;
        ddp__lane_make(t, &r->workers[w], DDP__LANE_COMPUTE, m.begin, m.end, &compute);
        ddp__lane_make(t, &r->workers[w], DDP__LANE_COMM, m.begin, m.end, &comm);
        if (w == 0) ddp__swim_steps(t, &m, &compute, bottom);
        ddp__add_page(t, "<text class=\"end\" x=\"%d\" y=\"%d\">rank %d</text>", DDP__SWIM_LEFT - 8, top + 17,
                      w);
        ddp__swim_lane(t, d, &m, &compute, top, DDP__SWIM_COMPUTE);
        ddp__swim_lane(t, d, &m, &comm, top + DDP__SWIM_COMPUTE + 1, DDP__SWIM_COMM);
        DDP_FREE(compute.items);
        DDP_FREE(comm.items);
    }
    ddp__text_addf(t, "</svg>\n");
    if (workers < r->worker_count)
        ddp__text_addf(t, "<p class=\"note\">The first %d of %d workers.</p>\n", workers, r->worker_count);
}
