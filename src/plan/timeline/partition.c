/* Options that cut buckets into parts: their checks, and the startup of each part. */
#include "plan/timeline/partition.h"

double ddp__startup(const ddp_profile *p) { return p->alpha_s + p->gap_s; }

ddp_status ddp__check_partition(const ddp_profile *p, double alpha_s, double partition_s,
                                double partition_params, int cut, ddp_error *err)
{
    int sends = 0, sized = 0;
    DDP__TRY(ddp__check_finite(alpha_s, 0, err, "alpha_s is %g", alpha_s));
    DDP__TRY(ddp__check_finite(partition_s, 0, err, "partition_s is %g", partition_s));
    DDP__TRY(ddp__check_finite(partition_params, 0, err, "partition_params is %g", partition_params));
    for (int i = 0; i < p->layers; i++) {
        if (!(p->comm_s[i] > 0)) continue;
        if (p->comm_s[i] < alpha_s)
            return ddp__fail(err, DDP_ARG,
                             "bucket %d (%s): comm_s is %g s, shorter than the startup alpha_s of %g s "
                             "that it contains; lower alpha_s",
                             i, p->name && p->name[i] ? p->name[i] : "unnamed", p->comm_s[i], alpha_s);
        sends = 1;
        if (p->params && p->params[i] > 0) sized = 1;
    }
    if (partition_s > 0 && partition_params > 0)
        return ddp__fail(err, DDP_ARG, "a partition of %g parameters and of %g s was given; give one of them",
                         partition_params, partition_s);
    if (cut && partition_s > 0 && !(partition_s > alpha_s + ddp__startup(p)))
        return ddp__fail(err, DDP_ARG, "a partition of %g s is not longer than the startup of %g s; raise it",
                         partition_s, alpha_s + ddp__startup(p));
    if (cut && partition_params > 0 && sends && !sized)
        return ddp__fail(err, DDP_ARG,
                         "no bucket that sends has params, so none can be cut by %g parameters; give the "
                         "partition in seconds (partition_s)",
                         partition_params);
    return DDP_OK;
}
