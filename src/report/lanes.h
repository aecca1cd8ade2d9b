/* Spans sorted into the rows of one lane, so that nothing in a row overlaps. */
#ifndef DDP_REPORT_LANES_H
#define DDP_REPORT_LANES_H

#include "report/data.h"

typedef struct ddp__lane_item {
    ddp_span span; /* cut to the window */
    int      row;
} ddp__lane_item;

/* In rising order of begin_s. rows is at least 1. Freed by ddp__lane_free. */
typedef struct ddp__lane {
    ddp__lane_item *items;
    int             count, rows;
} ddp__lane;

#define DDP__LANE_COMPUTE (DDP_SPAN_COMPUTE | 1u << DDP_SPAN_WAIT)
#define DDP__LANE_COMM    (1u << DDP_SPAN_COMM | 1u << DDP_SPAN_FILL | 1u << DDP_SPAN_PEER_WAIT)

#ifdef __cplusplus
extern "C" {
#endif

/* The worker's finished spans of the given kinds inside [begin, end); each goes to the first row
 * that is free. 0 when memory is short (*out is then empty). O(n log n + n x rows). */
DDP_LIB int ddp__lane_make(const ddp_report_worker *w, unsigned kinds, double begin, double end,
                           ddp__lane *out);
DDP_LIB void ddp__lane_free(ddp__lane *lane);

/* The window of a run: what it says, or from its first to its last span (0, 0 if there is none). */
DDP_LIB void ddp__run_window(const ddp_report_run *r, double *begin, double *end);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_LANES_H */
