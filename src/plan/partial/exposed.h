/* Exposed time of the steps of a plan whose messages share a link. */
#pragma once

#include "plan/link_clock.h"
#include "plan/partial/partial.h"

/* Returns the seconds that a period is longer than its compute. Unlike ddp_plan.exposed_s, it counts which
 * delays overlap with transfers, and how many messages may be in flight.
 *   message  [layers of the plan] the cost of each layer's message
 *   width    messages in flight at a time
 *   x        [layers of the plan] workspace */
DDP_LIB double ddp__plan_exposed(const ddp_profile *p, const ddp_plan *plan, const ddp__message_cost *message,
                                 int width, ddp__shared_message *x);
