/* The spans of all workers as a Chrome trace, which ui.perfetto.dev and chrome://tracing open. */
#ifndef DDP_REPORT_PERFETTO_H
#define DDP_REPORT_PERFETTO_H

#include "base/status.h"
#include "report/data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_report_trace - every finished span of every run (not only the window) in the array form.
 *
 * A worker of a run is a process, "dreamddp rank 0", numbered 1 + rank + 1000 x run (more where a
 * run has more workers); its threads are "compute" and "communication", the latter several times
 * where transfers overlap. One "X" event per span: name = layer or kind, cat = kind, ts and dur in
 * microseconds, args step, layer, bytes. Each run starts at 0, so that runs lie side by side.
 *
 * Written to a temporary name, then renamed: on failure PATH is untouched.
 * Errors: DDP_MEMORY, DDP_IO (names the path and the reason). Safe from any thread. */
DDP_API ddp_status ddp_report_trace(const ddp_report_data *d, const char *path, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_PERFETTO_H */
