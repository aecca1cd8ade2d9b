/* Parses the specification of an emulated link, such as "100mbit,20ms". */
#pragma once

#include "base/status.h"

/* ddp_net_parse - parses the specification of an emulated link: "RATE", "RATE,DELAY" or "RATE,DELAY,JITTER".
 *
 *   RATE         number and unit (bit, kbit, mbit or gbit per second, decimal), 0 or none = unlimited
 *   DELAY        number and unit (us, ms or s), one way (default: 0)
 *   JITTER       in the same units: each message is delayed by a further 0 to JITTER, uniformly distributed
 *                (default: 0)
 *   bytes_per_s  receives the rate in bytes/s, or 0 for unlimited
 *   delay_s      receives the mean delay in seconds: DELAY plus half of JITTER
 *
 * On error the outputs are unchanged. Pure and safe from any thread. Errors: DDP_ARG, which names the invalid
 * part and gives an example. */
DDP_API ddp_status ddp_net_parse(const char *spec, double *bytes_per_s, double *delay_s, ddp_error *err);
