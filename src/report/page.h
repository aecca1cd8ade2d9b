/* What the writers of a page share: numbers and texts in XML, line charts, the lanes of workers and
 * the cells of the table. Colours come from classes of the page. */
#pragma once

#include "base/core.h"
#include "report/report.h"

/* ---- numbers and texts ---- */

/* v with a fixed number of decimals (0..6) and a point whatever the locale; "-" if not finite. */
DDP_LIB void ddp__add_fixed(ddp__text *t, double v, int decimals);

/* Appends fmt, which knows
 *   %d %ld %s %%  as printf, without widths
 *   $             the next argument, a text: the five XML characters escaped, control characters as
 *                 blanks and bytes that are not UTF-8 as '?', so that the page stays well-formed
 *                 whatever a file is called; NULL = nothing
 *   ^N  @N        the next argument, a double, as ddp__add_fixed with N decimals; @ without
 *                 trailing zeros: for coordinates and tick labels */
DDP_LIB void ddp__add_page(ddp__text *t, const char *fmt, ...);

/* Writes the text to out, and frees it; what: for errors. */
DDP_LIB ddp_status ddp__text_print(ddp__text *t, FILE *out, const char *what, ddp_error *err);

/* ---- charts ---- */

typedef enum ddp__curve { DDP__CURVE_TIME, DDP__CURVE_BYTES, DDP__CURVE_DIVERGENCE } ddp__curve;

DDP_LIB int ddp__note_marks(const ddp_report_note *note); /* 1: charts show it */

/* The smallest of 1, 2, 5 x 10^k that cuts range into at most most parts; *decimals to print it. */
DDP_LIB double ddp__tick_step(double range, int most, int *decimals);

/* An <svg> of 540 x 300 with axes, grid, a path for each run and the name of its strategy at the end, and
 * dashed lines across for the notes: the loss against time or bytes, or the divergence, in decades, against
 * steps. x starts at 0; points that are not finite are stepped over. over: lines are means over so many
 * steps, which stand behind them, pale; 1 = no means. */
DDP_LIB void ddp__svg_chart(ddp__text *t, const ddp_report_data *d, ddp__curve what, int over);

/* ---- lanes: spans sorted into rows, so that nothing in a row overlaps ---- */

typedef struct ddp__lane_item {
    ddp_span span; /* cut to the window */
    int row;
} ddp__lane_item;

/* In rising order of begin_s. rows is at least 1. items are freed by DDP_FREE. */
typedef struct ddp__lane {
    ddp__lane_item *items;
    int count, rows;
} ddp__lane;

#define DDP__LANE_COMPUTE (DDP_SPAN_COMPUTE | 1u << DDP_SPAN_WAIT)
#define DDP__LANE_COMM    (1u << DDP_SPAN_COMM | 1u << DDP_SPAN_FILL | 1u << DDP_SPAN_PEER_WAIT)

/* The worker's finished spans of the given kinds inside [begin, end); each goes to the first row that is
 * free. t->failed and an empty lane when memory is short. O(n log n + n x rows). */
DDP_LIB void ddp__lane_make(ddp__text *t, const ddp_report_worker *w, unsigned kinds, double begin,
                            double end, ddp__lane *out);

/* From a run's first to its last span (0, 0 if there is none); its window: what it says, or that. */
DDP_LIB void ddp__run_all(const ddp_report_run *r, double *begin, double *end);
DDP_LIB void ddp__run_window(const ddp_report_run *r, double *begin, double *end);

/* The run's window as an <svg>, scale_s seconds wide, so that runs drawn with one scale compare
 * by eye: per worker a lane of computing and one of communication; spans carry class "k<kind>" and
 * a <title> with kind, layer, step, ms and MB. At most DDP__SWIM_WORKERS workers are drawn. */
#define DDP__SWIM_WORKERS 8
DDP_LIB void ddp__svg_swimlanes(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r,
                                double scale_s);

/* ---- stages.c: steps of pipelines ---- */

DDP_LIB const char *ddp__slot_text(const ddp_pipeline_slot *s); /* "forward", "sends activations" */

/* One <svg>, all steps on one time scale; space: the attribute that a file of its own needs, or "". */
DDP_LIB void ddp__svg_stages(ddp__text *t, const char *space, const ddp_report_pipeline *p, int count);

/* ---- the table: one row per strategy, the same cells in text and in HTML ---- */

#define DDP__SUMMARY_COLUMNS 8

/* The cell of a run in column 0..DDP__SUMMARY_COLUMNS-1, or (NULL) its heading: strategy, step ms, as
 * predicted, ratio to the strategy that others are measured against, seconds to the common loss, MB sent per
 * worker, hidden %, final loss. */
DDP_LIB void ddp__summary_cell(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, int column);
