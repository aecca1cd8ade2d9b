/* Pieces of SVG: escaped text, nice ticks, line charts. Colours come from classes of the page. */
#ifndef DDP_REPORT_SVG_H
#define DDP_REPORT_SVG_H

#include "base/text.h"

/* One line of a chart. Points whose x or y is not finite are stepped over. */
typedef struct ddp__series {
    const char   *name;  /* written at the end of the line; NULL = none */
    int           style; /* class "s<style>" */
    int           faint; /* thin and pale: the raw values behind a mean */
    const double *x, *y; /* [count] */
    int           count;
} ddp__series;

/* A dashed line across the chart, at x; its text is shown where a pointer rests on it. */
typedef struct ddp__mark {
    double      x;
    const char *text;
} ddp__mark;

typedef struct ddp__chart {
    const char        *x_label, *y_label;
    const ddp__mark   *mark; /* [marks] */
    int                marks;
    int                log_y; /* decades; values <= 0 are stepped over */
    const ddp__series *series;
    int                count;
} ddp__chart;

#ifdef __cplusplus
extern "C" {
#endif

/* s (NULL = nothing) with the five XML characters escaped, control characters as blanks and bytes
 * that are not UTF-8 as '?', so that the page stays well-formed whatever a file is called. */
DDP_LIB void ddp__add_escaped(ddp__text *t, const char *s);

/* The smallest of 1, 2, 5 x 10^k that cuts range into at most most parts; *decimals to print it. */
DDP_LIB double ddp__tick_step(double range, int most, int *decimals);

/* An <svg> of 540 x 300 with axes, grid and one path per series; x starts at 0. */
DDP_LIB void ddp__svg_chart(ddp__text *t, const ddp__chart *c);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_SVG_H */
