/* The part of the page that says what changed during a run: slow ranks, re-plans, workers lost. */
#ifndef DDP_REPORT_CHANGES_H
#define DDP_REPORT_CHANGES_H

#include "report/data.h"
#include "report/svg.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A sentence on the slowest rank and the re-plans of each run, and the table of its notes; nothing
 * where nothing is known. */
DDP_LIB void ddp__html_changes(ddp__text *t, const ddp_report_data *d);

/* The notes of all runs as marks of a chart over seconds, or over steps; those on slow ranks, which
 * can be many, are left to the table. *out is the caller's (NULL without notes). Returns how many. */
DDP_LIB int ddp__changes_marks(ddp__text *t, const ddp_report_data *d, int over_time,
                               ddp__mark **out);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_CHANGES_H */
