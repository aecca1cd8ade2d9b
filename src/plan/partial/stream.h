/* The steady state of averages that may span several steps, and the choice of the steps in which they are
 * sent and applied. */
#pragma once

#include "plan/link_clock.h"
#include "plan/partial/partial.h"

/* What the averages of a model cost. */
typedef struct ddp__overlap_costs {
    const ddp_profile *p;
    const ddp__message_cost *message; /* [layers] of the delta of each layer */
    ddp__message_cost tell;           /* of the message about trained layers */
    int tells;                        /* 1 if there is such a message */
    int waits;                        /* 1 if deltas wait for its arrival */
    int width;                        /* messages in flight at a time */
    int window;                       /* 1: a layer is needed in its own forward. 0: at the end of the step */
    double slack_s;                   /* by which averages must arrive earlier than they are needed */
} ddp__overlap_costs;

/* What is sent in which step, and when it is applied. */
typedef struct ddp__overlap_plan {
    const int *step_of; /* [layers] the step of the period that sends the layer */
    const int *landing; /* [layers] steps from sending to applying */
    int period;
    int together; /* 1: all layers of a step are sent at its end, after one message about trained layers. 0:
                     each when its backward ends, after a message of its own */
} ddp__overlap_plan;

/* Computes the seconds of a period in the steady state. lag: NULL, or [layers] receives the seconds from the
 * end of the step that sends a layer until the average has arrived, minus the forward time before the layer.
 */
DDP_LIB ddp_status ddp__overlap_period(const ddp__overlap_costs *c, const ddp__overlap_plan *plan,
                                       double *period_s, double *lag, ddp_error *err);

/* Chooses the plan with the shortest period among: the plan as given, the same with the layers of a step sent
 * together, fragments at equal intervals, and all layers at the end of the period without overlap. Equal
 * periods: in this order.
 *   plan       period, step_of and cost are input. step_of is replaced by the chosen steps.
 *   landing    [layers] receives the smallest landings with which no layer waits longer than with the largest
 *   together   receives the member of ddp__overlap_plan
 *   exposed_s  receives the seconds of the period beyond its compute */
DDP_LIB ddp_status ddp__overlap_choose(const ddp__overlap_costs *c, ddp_plan *plan, int *landing,
                                       int *together, double *exposed_s, ddp_error *err);

/* Assigns the steps of n fragments with every n-th layer, at equal intervals. step_of: [layers] */
DDP_LIB void ddp__overlap_fragments(int layers, int period, int n, int *step_of);
