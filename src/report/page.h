/* Shared code of the page writers: numbers and text in XML, line charts, swimlanes of workers, and the
 * cells of the summary table. Colours come from CSS classes of the page. */
#pragma once

#include "base/core.h"
#include "report/report.h"

/* ---- numbers and text ---- */

/* Appends v with a fixed number of decimals (0..6) and a decimal point in every locale; "-" if v is not
 * finite. */
DDP_LIB void ddp__add_fixed(ddp__text *t, double v, int decimals);

/* Appends fmt, which supports
 *   %d %ld %s %%  as printf, without widths
 *   $             the next argument, a string, made safe for XML: the five XML characters are escaped,
 *                 control characters become blanks, and bytes that are not UTF-8 become '?'. So the page is
 *                 well-formed for any file name. NULL = nothing
 *   ^N, @N        the next argument, a double, as ddp__add_fixed with N decimals; @ drops trailing zeros
 *                 (for coordinates and tick labels) */
DDP_LIB void ddp__add_page(ddp__text *t, const char *fmt, ...);

/* Writes the text to out and frees it. `what` names the output in errors. */
DDP_LIB ddp_status ddp__text_print(ddp__text *t, FILE *out, const char *what, ddp_error *err);

/* ---- charts ---- */

typedef enum ddp__curve { DDP__CURVE_TIME, DDP__CURVE_BYTES, DDP__CURVE_DIVERGENCE } ddp__curve;

DDP_LIB int ddp__note_marks(const ddp_report_note *note); /* 1 = charts show it */

/* The smallest step of the form 1, 2 or 5 x 10^k that divides the range into at most `most` parts.
 * *decimals receives the number of decimals needed to print it. */
DDP_LIB double ddp__tick_step(double range, int most, int *decimals);

/* Appends an <svg> of 540 x 300 with axes, a grid, one path per run labelled with its strategy, and a
 * dashed line for each note. It shows loss against time or bytes, or divergence in decades against steps.
 * x starts at 0; points that are not finite are skipped. `over` is the number of steps that a line
 * averages over, drawn above the pale unaveraged line; 1 = no averaging. */
DDP_LIB void ddp__svg_chart(ddp__text *t, const ddp_report_data *d, ddp__curve what, int over);

/* ---- lanes: spans sorted into rows so that no two spans in a row overlap ---- */

typedef struct ddp__lane_item {
    ddp_span span; /* clipped to the window */
    int row;
} ddp__lane_item;

/* Items in ascending order of begin_s. rows is at least 1. The caller frees items with DDP_FREE. */
typedef struct ddp__lane {
    ddp__lane_item *items;
    int count, rows;
} ddp__lane;

#define DDP__LANE_COMPUTE (DDP_SPAN_COMPUTE | 1u << DDP_SPAN_WAIT)
#define DDP__LANE_COMM    (1u << DDP_SPAN_COMM | 1u << DDP_SPAN_FILL | 1u << DDP_SPAN_PEER_WAIT)

/* Collects the worker's finished spans of the given kinds inside [begin, end). Each goes to the first free
 * row. If memory is exhausted, sets t->failed and returns an empty lane. O(n log n + n x rows). */
DDP_LIB void ddp__lane_make(ddp__text *t, const ddp_report_worker *w, unsigned kinds, double begin,
                            double end, ddp__lane *out);

/* ddp__run_all: from the first to the last span of a run; 0, 0 without spans. ddp__run_window: the window
 * that the run specifies, or else the same range. */
DDP_LIB void ddp__run_all(const ddp_report_run *r, double *begin, double *end);
DDP_LIB void ddp__run_window(const ddp_report_run *r, double *begin, double *end);

/* Appends the run's window as an <svg> that is scale_s seconds wide, so that runs drawn with one scale can
 * be compared by eye. Each worker has one lane for compute and one for communication. Spans carry class
 * "k<kind>" and a <title> with kind, layer, step, ms and MB. At most DDP__SWIM_WORKERS workers are drawn. */
#define DDP__SWIM_WORKERS 8
DDP_LIB void ddp__svg_swimlanes(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r,
                                double scale_s);

/* ---- stages.c: steps of pipelines ---- */

DDP_LIB const char *ddp__slot_text(const ddp_pipeline_slot *s); /* "forward", "sends activations" */

/* Appends one <svg> with all steps on one time scale. `space` is the attribute that a standalone file
 * needs, or "". */
DDP_LIB void ddp__svg_stages(ddp__text *t, const char *space, const ddp_report_pipeline *p, int count);

/* ---- the table: one row per strategy, the same cells in text and in HTML ---- */

#define DDP__SUMMARY_COLUMNS 8

/* Appends the cell of a run in column 0..DDP__SUMMARY_COLUMNS-1, or the column heading if r is NULL. The
 * columns are: strategy, step ms, predicted step ms, ratio to the baseline strategy, seconds to the common
 * loss, MB sent per worker, hidden %, final loss. */
DDP_LIB void ddp__summary_cell(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, int column);
