/* Corrects the cost of averages over a link (profile/average.h) by the transfers of training. */
#pragma once

#include "comm/engine.h"
#include "context/context.h"
#include "profile/average.h"

/* Follows a link during training: the logarithm of the observed over the modelled time of its bytes, as a
 * mean in which the weight of a step halves every three steps. All-zero: no observation. */
typedef struct ddp__follow {
    double weight, sum;
} ddp__follow;

/* What operations show about a link: the seconds for which they occupied it, the same by the model, and the
 * latency that the model subtracted. All-zero: nothing yet. */
typedef struct ddp__observed {
    double seconds, modelled_s, alpha_s;
} ddp__observed;

/* Adds an observation. Returns the factor by which it changes the time of a byte. */
DDP_LIB void ddp__follow_add(ddp__follow *f, const ddp__observed *o);
DDP_LIB double ddp__follow_scale(const ddp__follow *f);

/* Adds to *out the busy periods of a link that ended after `since`, and whose operations all began after
 * `from`. ops: [n], reordered. gap_s: per-message overhead. */
DDP_LIB void ddp__lines_observe(const ddp_link line[DDP__LINES], double gap_s, ddp__op_span *ops, int n,
                                double from, double since, ddp__observed *out);
/* The same for a link that is never idle, so that no busy period ends. */
DDP_LIB void ddp__lines_saturated(const ddp_link line[DDP__LINES], double gap_s, const ddp__op_span *ops,
                                  int n, double since, ddp__observed *out);
