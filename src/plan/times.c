/* Checks on the times of a profile. */
#include "plan/times.h"

ddp_status ddp__check_sum(double sum, double most, ddp_error *err)
{
    return ddp__finite(sum) && sum <= most
               ? DDP_OK
               : ddp__fail(err, DDP_NUMERIC,
                           "the times of the profile add up to more than a double "
                           "holds; times are in seconds");
}
