/* The progress line and the closing table of a program, on a FILE that the program chooses. */
#ifndef DDP_REPORT_PROGRESS_H
#define DDP_REPORT_PROGRESS_H

#include <stdio.h>

#include "base/status.h"
#include "report/data.h"

/* State of one progress line; fill through ddp_progress_start. One thread at a time. */
typedef struct ddp_progress {
    FILE       *out;     /* borrowed; NULL = silent */
    const char *label;   /* borrowed: strategy or run name */
    long        total;   /* steps */
    double      every_s; /* seconds between two lines: 0.1 on a terminal, else 10 */
    int         terminal, colour;
    double      start_s, shown_s, step_s; /* step_s: moving mean of the time between steps */
    double      last_s;
    double      tokens_per_s;
    int         width; /* of the line that stands on the terminal */
} ddp_progress;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_progress_start - begins a line `label  step 12/100  loss 2.345  81.2 ms  6.3k tok/s  ETA 7s`.
 * On a terminal it is redrawn in place at most ten times a second, bold unless NO_COLOR is set or
 * TERM is dumb; otherwise a plain line appears at most every 10 s (set every_s for another rhythm)
 * and one at the last step.
 * ddp_progress_step - after step `done` (1..total). loss NAN = unknown; tokens (or images) of this
 * step over all workers, 0 = not shown. Allocates nothing.
 * ddp_progress_end - closes the line, so that what follows begins on a fresh one. */
DDP_API void ddp_progress_start(ddp_progress *p, FILE *out, const char *label, long total);
DDP_API void ddp_progress_step(ddp_progress *p, long done, double loss, double tokens);
DDP_API void ddp_progress_end(ddp_progress *p);

/* ddp_report_table - aligned columns, one row per run: strategy, step ms, step time of ssgd over
 * this run's, seconds to the common loss, MB (1e6 bytes) sent per worker, hidden communication %,
 * final loss; `-` where a figure is not known. Errors: DDP_MEMORY, DDP_IO. */
DDP_API ddp_status ddp_report_table(const ddp_report_data *d, FILE *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_PROGRESS_H */
