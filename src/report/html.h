/* The report as one HTML file. */
#ifndef DDP_REPORT_HTML_H
#define DDP_REPORT_HTML_H

#include "base/status.h"
#include "report/data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_report_html - a self-contained page: no script, nothing fetched, light and dark.
 *
 * Facts of the run, the summary table, the lanes of computing and communication of every run on
 * one time scale, loss against time and against bytes sent, divergence against steps, the layers
 * with the step of the period that averages each, prediction beside measurement. What the data
 * lacks is left out. Texts may hold anything: they are escaped.
 *
 * The page is built in memory and written to a temporary name, then renamed: on failure PATH is
 * untouched. Safe from any thread. Errors: DDP_MEMORY, DDP_IO (names the path and the reason). */
DDP_API ddp_status ddp_report_html(const ddp_report_data *d, const char *path, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_HTML_H */
