/* What compression does to a pipeline's iteration, before anything is sent. */
#ifndef DDP_PLAN_ESTIMATE_H
#define DDP_PLAN_ESTIMATE_H

#include "compress/topk.h"
#include "plan/workload.h"

/* ddp_workload_compress - the estimate w with every message compressed by AdaTopK or uniformly.
 *
 *   w, net, work  an estimate, and the network and options that it was made with
 *   out           its copy with shorter messages; untouched on error, else freed by ddp_workload_free
 *
 * R_p of Eq. 7 is what device p receives, without delays; its ratio applies to each message that it receives, in
 * floats. A message that would not shrink is sent dense. Delays stay as they are, and so does computing: the time to
 * compress is not counted.
 *   T_lat  = sum of C_p + R'_p,  T_pipe = T_lat + (n_b - 1) max over p of max(C_p, R'_p)
 * which is Eq. 8 without its two slips (see ddp_adatopk).
 *
 * Source: FusionLLM (arXiv:2410.12707) section 5.2. Pure; safe from any thread.
 * Errors: DDP_ARG (as ddp_adatopk, or net has another number of devices), DDP_MEMORY. */
DDP_API ddp_status ddp_workload_compress(const ddp_workload *w, const ddp_network *net,
                                         const ddp_workload_options *work, const ddp_adatopk_options *o,
                                         ddp_workload *out, ddp_error *err);

#endif /* DDP_PLAN_ESTIMATE_H */
