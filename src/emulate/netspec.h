/* The text of a slow link: "100mbit,20ms". */
#pragma once

#include "base/status.h"

/* ddp_net_parse - a link from "RATE", "RATE,DELAY" or "RATE,DELAY,JITTER".
 *
 *   RATE    number and bit, kbit, mbit or gbit (per second, decimal), or 0 or none: no limit
 *   DELAY   number and us, ms or s, one way; without it 0
 *   JITTER  likewise: every message is late by up to as much more, evenly spread; without it 0
 *   bytes_per_s, delay_s  receive the values, 0 = unshaped, the delay with half the jitter: its
 *           mean; untouched on error
 *
 * Pure; safe from any thread. Errors: DDP_ARG, naming the part that is wrong and an example. */
DDP_API ddp_status ddp_net_parse(const char *spec, double *bytes_per_s, double *delay_s, ddp_error *err);
