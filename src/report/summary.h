/* The table of a report: one row per strategy, the same cells in text and in HTML. */
#ifndef DDP_REPORT_SUMMARY_H
#define DDP_REPORT_SUMMARY_H

#include "base/text.h"
#include "report/data.h"

#define DDP__SUMMARY_COLUMNS 7

#ifdef __cplusplus
extern "C" {
#endif

/* v with a fixed number of decimals (0..6) and a point whatever the locale; "-" if not finite. */
DDP_LIB void ddp__add_fixed(ddp__text *t, double v, int decimals);
/* The same without trailing zeros: for coordinates and tick labels. */
DDP_LIB void ddp__add_short(ddp__text *t, double v, int decimals);

/* Heading of column 0..DDP__SUMMARY_COLUMNS-1, and the cell of a run: strategy, step ms, ratio to
 * S-SGD, seconds to the common loss, MB sent per worker, hidden %, final loss. */
DDP_LIB const char *ddp__summary_heading(int column);
DDP_LIB void ddp__summary_cell(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r,
                               int column);

/* Step time of the run called ssgd over that of r: above 1 = faster. NAN without such a run. */
DDP_LIB double ddp__summary_ratio(const ddp_report_data *d, const ddp_report_run *r);
/* The run with the smallest step time, or NULL. */
DDP_LIB const ddp_report_run *ddp__summary_fastest(const ddp_report_data *d);

/* The aligned text of ddp_report_table. */
DDP_LIB void ddp__summary_text(ddp__text *t, const ddp_report_data *d);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_SUMMARY_H */
