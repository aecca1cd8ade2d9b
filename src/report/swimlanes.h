/* The picture of a run: per worker one lane of computing and one of communication. */
#ifndef DDP_REPORT_SWIMLANES_H
#define DDP_REPORT_SWIMLANES_H

#include "base/text.h"
#include "report/data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The run's window as an <svg>, scale_s seconds wide, so that runs drawn with one scale compare
 * by eye; spans carry class "k<kind>" and a <title> with kind, layer, step, ms and MB. At most
 * DDP__SWIM_WORKERS workers are drawn. */
#define DDP__SWIM_WORKERS 8
DDP_LIB void ddp__svg_swimlanes(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r,
                                double scale_s);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_SWIMLANES_H */
