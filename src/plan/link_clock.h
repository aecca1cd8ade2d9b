/* The clock of a link that carries one message at a time. */
#pragma once

#include "base/core.h"

/* Sends a message that becomes ready at `ready` and occupies the link for `takes` seconds. Returns the
 * start time, and sets *free_at to the time at which the link is free again. The message arrives alpha
 * later. */
DDP_LIB double ddp__link_take(double *free_at, double ready, double takes);
/* The index of the link that would deliver the message first. The lowest index wins a tie. */
DDP_LIB int ddp__link_first(int links, const double *free_at, double ready, const double *takes,
                            const double *alpha);
