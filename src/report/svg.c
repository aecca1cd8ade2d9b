#include "base/platform.h"
#include "report/svg.h"
#include "base/memory.h"
#include "report/summary.h"

#define DDP__CHART_W      540
#define DDP__CHART_H      300
#define DDP__CHART_LEFT   52
#define DDP__CHART_RIGHT  108 /* room for the names of the lines */
#define DDP__CHART_TOP    20
#define DDP__CHART_BOTTOM 40
#define DDP__CHART_NAME_H 14

/* Length of the UTF-8 sequence at s, 0 if it is none or XML forbids the character. */
static int ddp__xml_length(const unsigned char *s)
{
    int n = s[0] < 0x80   ? 1
            : s[0] < 0xc2 ? 0
            : s[0] < 0xe0 ? 2
            : s[0] < 0xf0 ? 3
            : s[0] < 0xf5 ? 4
                          : 0,
        i;

    for (i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    /* over-long forms, surrogates, values above U+10FFFF, and the two non-characters of XML */
    if (n == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f))) return 0;
    if (n == 3 && s[0] == 0xef && s[1] == 0xbf && s[2] >= 0xbe) return 0;
    if (n == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))) return 0;
    return n;
}

void ddp__add_escaped(ddp__text *t, const char *s)
{
    while (s && *s) {
        int n = ddp__xml_length((const unsigned char *)s);

        switch (*s) {
        case '&': ddp__text_add(t, "&amp;", 5); break;
        case '<': ddp__text_add(t, "&lt;", 4); break;
        case '>': ddp__text_add(t, "&gt;", 4); break;
        case '"': ddp__text_add(t, "&quot;", 6); break;
        case '\'': ddp__text_add(t, "&#39;", 5); break;
        default:
            if (n == 0)
                ddp__text_add(t, "?", 1);
            else if (n == 1 && ((unsigned char)*s < 0x20 || *s == 0x7f))
                ddp__text_add(t, " ", 1);
            else
                ddp__text_add(t, s, (size_t)n);
        }
        s += n ? n : 1;
    }
}

double ddp__tick_step(double range, int most, int *decimals)
{
    double unit, ratio;
    int k;

    *decimals = 0;
    if (!(range > 0) || range > 1e300) return 1;
    k = (int)floor(log10(range / most));
    unit = pow(10, k);
    ratio = range / most / unit;
    if (ratio > 5) {
        k++;
        unit *= 10;
    } else if (ratio > 2) {
        unit *= 5;
    } else if (ratio > 1) {
        unit *= 2;
    }
    *decimals = k < 0 ? (k > -6 ? -k : 6) : 0;
    return unit;
}

typedef struct ddp__axes {
    double x1, y0, y1; /* x runs from 0; y in decades if log_y */
    int    log_y;
} ddp__axes;

static double ddp__axes_x(const ddp__axes *a, double x)
{
    return DDP__CHART_LEFT + x / a->x1 * (DDP__CHART_W - DDP__CHART_LEFT - DDP__CHART_RIGHT);
}

static double ddp__axes_y(const ddp__axes *a, double y)
{
    double v = a->log_y ? log10(y) : y;

    return DDP__CHART_TOP +
           (a->y1 - v) / (a->y1 - a->y0) * (DDP__CHART_H - DDP__CHART_TOP - DDP__CHART_BOTTOM);
}

/* Is point i of s on the chart? */
static int ddp__series_has(const ddp__series *s, int i, int log_y)
{
    return fabs(s->x[i]) <= DBL_MAX && fabs(s->y[i]) <= DBL_MAX && (!log_y || s->y[i] > 0);
}

/* Bounds over all points; 0 if there is none. */
static int ddp__axes_fit(ddp__axes *a, const ddp__chart *c)
{
    int i, k, any = 0;
    double pad;

    memset(a, 0, sizeof *a);
    a->log_y = c->log_y;
    for (k = 0; k < c->count; k++) {
        for (i = 0; i < c->series[k].count; i++) {
            double y = c->series[k].y[i], x = c->series[k].x[i];

            if (!ddp__series_has(&c->series[k], i, c->log_y)) continue;
            if (c->log_y) y = log10(y);
            if (x > a->x1) a->x1 = x;
            if (!any || y < a->y0) a->y0 = y;
            if (!any || y > a->y1) a->y1 = y;
            any = 1;
        }
    }
    if (!(a->x1 > 0)) a->x1 = 1;
    pad = 0.05 * (a->y1 - a->y0);
    if (!(pad > 0)) pad = fabs(a->y1) > 0 ? 0.1 * fabs(a->y1) : 1;
    a->y0 -= pad;
    a->y1 += pad;
    return any;
}

/* y = digit x 10^exponent on a logarithmic axis, where small and large ticks read 2e-5. */
static void ddp__svg_y_tick(ddp__text *t, const ddp__axes *a, double y, int digit, int exponent,
                            int decimals)
{
    double at = ddp__axes_y(a, y);

    ddp__text_addf(t, "<path class=\"grid\" d=\"M%d ", DDP__CHART_LEFT);
    ddp__add_short(t, at, 1);
    ddp__text_addf(t, "H%d\"/><text class=\"end\" x=\"%d\" y=\"", DDP__CHART_W - DDP__CHART_RIGHT,
                   DDP__CHART_LEFT - 6);
    ddp__add_short(t, at + 4, 1);
    ddp__text_addf(t, "\">");
    if (a->log_y && (exponent < -3 || exponent > 3))
        ddp__text_addf(t, "%de%d", digit, exponent);
    else
        ddp__add_short(t, y, decimals);
    ddp__text_addf(t, "</text>");
}

static void ddp__svg_axes(ddp__text *t, const ddp__axes *a, const ddp__chart *c)
{
    const int bottom = DDP__CHART_H - DDP__CHART_BOTTOM;
    double step, v;
    int decimals, i, k;

    if (a->log_y) {
        static const int part[3] = {1, 2, 5};
        int parts = a->y1 - a->y0 <= 2 ? 3 : 1, every = (int)((a->y1 - a->y0) / 8) + 1;

        for (k = (int)floor(a->y0); k <= (int)ceil(a->y1); k += every) {
            for (i = 0; i < parts; i++) {
                v = part[i] * pow(10, k);
                if (log10(v) >= a->y0 && log10(v) <= a->y1) ddp__svg_y_tick(t, a, v, part[i], k, 3);
            }
        }
    } else {
        step = ddp__tick_step(a->y1 - a->y0, 6, &decimals);
        for (v = ceil(a->y0 / step); v * step <= a->y1; v += 1)
            ddp__svg_y_tick(t, a, v * step, 0, 0, decimals);
    }
    step = ddp__tick_step(a->x1, 6, &decimals);
    for (v = 0; v * step <= a->x1 * (1 + 1e-9); v += 1) {
        ddp__text_addf(t, "<path class=\"grid\" d=\"M");
        ddp__add_short(t, ddp__axes_x(a, v * step), 1);
        ddp__text_addf(t, " %dV%d\"/><text class=\"mid\" x=\"", DDP__CHART_TOP, bottom);
        ddp__add_short(t, ddp__axes_x(a, v * step), 1);
        ddp__text_addf(t, "\" y=\"%d\">", bottom + 16);
        ddp__add_short(t, v * step, decimals);
        ddp__text_addf(t, "</text>");
    }
    ddp__text_addf(t, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>", DDP__CHART_LEFT, DDP__CHART_TOP,
                   bottom, DDP__CHART_W - DDP__CHART_RIGHT);
    ddp__text_addf(t, "<text class=\"mid label\" x=\"%d\" y=\"%d\">",
                   (DDP__CHART_LEFT + DDP__CHART_W - DDP__CHART_RIGHT) / 2, DDP__CHART_H - 6);
    ddp__add_escaped(t, c->x_label);
    ddp__text_addf(t, "</text><text class=\"label\" x=\"4\" y=\"11\">");
    ddp__add_escaped(t, c->y_label);
    ddp__text_addf(t, "</text>");
}

/* One path; *end_y is where it stops. A long series is thinned to about a thousand points. */
static int ddp__svg_line(ddp__text *t, const ddp__axes *a, const ddp__series *s, double *end_y)
{
    int i, points = 0, stride = s->count / 1000 + 1;

    for (i = 0; i < s->count; i++) {
        if (!ddp__series_has(s, i, a->log_y)) continue;
        if (points++ % stride && i != s->count - 1) continue;
        if (points == 1) {
            ddp__text_addf(t, "<path class=\"%s s%d\" d=\"M", s->faint ? "faint" : "line",
                           s->style);
        } else {
            ddp__text_addf(t, "L");
        }
        ddp__add_short(t, ddp__axes_x(a, s->x[i]), 1);
        ddp__text_addf(t, " ");
        ddp__add_short(t, ddp__axes_y(a, s->y[i]), 1);
        *end_y = ddp__axes_y(a, s->y[i]);
    }
    if (!points) return 0;
    ddp__text_addf(t, "\">");
    if (s->name) {
        ddp__text_addf(t, "<title>");
        ddp__add_escaped(t, s->name);
        ddp__text_addf(t, "</title>");
    }
    ddp__text_addf(t, "</path>");
    return 1;
}

/* Names in the order of the ends of their lines, pushed apart so that none covers another. */
static void ddp__svg_names(ddp__text *t, const ddp__chart *c, const double *end_y, int *order)
{
    double floor_y = DDP__CHART_TOP - DDP__CHART_NAME_H, limit;
    int i, j, n = 0;

    for (i = 0; i < c->count; i++) {
        if (!c->series[i].name || end_y[i] < 0) continue;
        for (j = n++; j > 0 && end_y[order[j - 1]] > end_y[i]; j--) order[j] = order[j - 1];
        order[j] = i;
    }
    for (i = 0; i < n; i++) {
        const ddp__series *s = &c->series[order[i]];
        double y = end_y[order[i]];

        limit = DDP__CHART_H - DDP__CHART_BOTTOM - (double)(n - 1 - i) * DDP__CHART_NAME_H;
        if (y > limit) y = limit;
        if (y < floor_y + DDP__CHART_NAME_H) y = floor_y + DDP__CHART_NAME_H;
        floor_y = y;
        ddp__text_addf(t, "<path class=\"line s%d\" d=\"M%d ", s->style,
                       DDP__CHART_W - DDP__CHART_RIGHT + 8);
        ddp__add_short(t, y, 1);
        ddp__text_addf(t, "h18\"/><text class=\"name s%d\" x=\"%d\" y=\"", s->style,
                       DDP__CHART_W - DDP__CHART_RIGHT + 31);
        ddp__add_short(t, y + 4, 1);
        ddp__text_addf(t, "\">");
        ddp__add_escaped(t, s->name);
        ddp__text_addf(t, "</text>");
    }
}

static void ddp__svg_marks(ddp__text *t, const ddp__axes *a, const ddp__chart *c)
{
    int i;

    for (i = 0; i < c->marks; i++) {
        if (!(c->mark[i].x >= 0 && c->mark[i].x <= a->x1)) continue;
        ddp__text_addf(t, "<path class=\"mark\" d=\"M");
        ddp__add_short(t, ddp__axes_x(a, c->mark[i].x), 1);
        ddp__text_addf(t, " %dV%d\"><title>", DDP__CHART_TOP, DDP__CHART_H - DDP__CHART_BOTTOM);
        ddp__add_escaped(t, c->mark[i].text);
        ddp__text_addf(t, "</title></path>");
    }
}

void ddp__svg_chart(ddp__text *t, const ddp__chart *c)
{
    double *end_y = (double *)ddp__calloc((size_t)c->count, sizeof *end_y);
    int *order = (int *)ddp__calloc((size_t)c->count, sizeof *order), i, pass;
    ddp__axes a;

    if (!end_y || !order) {
        t->failed = 1;
    } else if (ddp__axes_fit(&a, c)) {
        ddp__text_addf(t, "<svg viewBox=\"0 0 %d %d\" role=\"img\">", DDP__CHART_W, DDP__CHART_H);
        ddp__svg_axes(t, &a, c);
        ddp__svg_marks(t, &a, c);
        for (pass = 1; pass >= 0; pass--) { /* pale lines lie behind all others */
            for (i = 0; i < c->count; i++) {
                if (c->series[i].faint != pass) continue;
                if (!ddp__svg_line(t, &a, &c->series[i], &end_y[i])) end_y[i] = -1;
            }
        }
        ddp__svg_names(t, c, end_y, order);
        ddp__text_addf(t, "</svg>\n");
    } else {
        ddp__text_addf(t, "<p class=\"note\">Nothing was measured.</p>\n");
    }
    DDP_FREE(end_y);
    DDP_FREE(order);
}
