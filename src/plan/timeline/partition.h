/* Options that cut buckets into parts: their checks, and the startup of each part. */
#pragma once

#include "base/core.h"
#include "profile/profile.h"

/* Checks the options of a partition: alpha_s, the startup included in each comm_s, and the largest part in
 * seconds or in parameters (0 = no limit). `cut` is 1 if buckets are cut into parts. Errors: DDP_ARG
 * (names the value). */
DDP_LIB ddp_status ddp__check_partition(const ddp_profile *p, double alpha_s, double partition_s,
                                        double partition_params, int cut, ddp_error *err);
/* Seconds for which each message occupies the link in addition to its comm_s: alpha_s + gap_s of the
 * profile. */
DDP_LIB double ddp__startup(const ddp_profile *p);
