/* Determines the times of layers and links: estimated from FLOPs and settings, or measured. */
#pragma once

#include "context/context.h"
#include "plan/link_clock.h"

/* Figures of a layer of the whole model for planning. The layer may be on several stages. Counts are of
 * floats. */
typedef struct ddp__layer_cost {
    double flops;
    double count, trained, others; /* count and trained as in ddp__unit. others: further floats that an
                                      average transfers, with optimizer state. */
    double holders;                /* number of stages that have some of the trained floats */
} ddp__layer_cost;

/* Cost of the links, measured, else nominal: averaging n bytes takes alpha + beta n seconds (part.c).
 *   algorithm_for  the letter of the algorithm of an average of `bytes` bytes by the strategy
 *   algorithm_control  the same for an all-reduce of a few floats
 *   for            the cost of such an average
 *   control        the cost of an all-reduce of a few floats
 *   is, set        the cost by the direct algorithm. set sets the same cost for the others
 *   scale          multiplies the time of a byte
 *   gap            per-message overhead in seconds */
DDP_LIB char ddp__algorithm_for(const ddp_ctx *d, int link, double bytes);
DDP_LIB char ddp__algorithm_control(const ddp_ctx *d, int link);
DDP_LIB ddp_link ddp__link_for(const ddp_ctx *d, int link, double bytes);
DDP_LIB ddp_link ddp__link_control(const ddp_ctx *d, int link);
DDP_LIB void ddp__link_scale(ddp_ctx *d, int link, double scale);
DDP_LIB ddp_link ddp__link_is(const ddp_ctx *d, int link);
DDP_LIB double ddp__gap_is(const ddp_ctx *d, int link);
DDP_LIB void ddp__link_set(ddp_ctx *d, int link, ddp_link is);
DDP_LIB void ddp__gap_set(ddp_ctx *d, int link, double seconds);

/* Profiles (timing.c).
 *   start     makes a profile with names and sizes of the layers, without times
 *   nominal   fills in times without measuring: 10 GFLOP/s, the link as configured
 *   between   sets the compute time of all micro-batches but one
 *   measured  makes a profile of measured times, equal on all ranks of the team
 *   link      fills in the transfer times, from the cost of link 0 */
DDP_LIB ddp_status ddp__profile_start(ddp_ctx *d, ddp_profile *p, ddp_error *err);
DDP_LIB void ddp__profile_nominal(ddp_ctx *d, ddp_profile *p);
DDP_LIB void ddp__profile_between(const ddp_ctx *d, ddp_profile *p);
DDP_LIB ddp_status ddp__profile_measured(ddp_ctx *d, ddp_profile *p, ddp_error *err);
DDP_LIB void ddp__profile_link(ddp_ctx *d, ddp_profile *p);
DDP_LIB double ddp__nominal_flops(double flops, double count); /* FLOPs of a layer's forward pass. flops is 0
                                                                  if unknown. */
/* Costs of messages.
 *   direct_part_bytes  bytes of a direct all-reduce that has one part, or 0 without a link
 *   line_cost        of a message with an algorithm whose cost on the link is k
 *   average_cost     of the average of layers with `bytes` bytes on link 0, which takes comm_s by the
 *                    profile. The size of the whole message selects the algorithm. plans: 1 for a plan, which
 *                    must not depend on the algorithms without measurements: they differ in an elastic world
 *   tell_cost        of a control message on link 0
 *   messages_at_once messages that may be in flight on link 0 */
DDP_LIB double ddp__direct_part_bytes(const ddp_ctx *d, int link);
DDP_LIB ddp__message_cost ddp__line_cost(const ddp_ctx *d, int link, ddp_link k, char algorithm,
                                         double bytes);
DDP_LIB ddp__message_cost ddp__average_cost(const ddp_ctx *d, const ddp_profile *p, double bytes,
                                            double comm_s, int plans);
DDP_LIB ddp__message_cost ddp__tell_cost(const ddp_ctx *d, int plans);
DDP_LIB int ddp__messages_at_once(const ddp_ctx *d);
/* Makes a profile of all layers of a model that is cut into stages, without measuring. */
DDP_LIB ddp_status ddp__profile_model(ddp_ctx *d, const ddp__layer_cost *model, int layers, ddp_profile *p,
                                      ddp_error *err);

/* Returns the cost of a link as configured, by the direct algorithm. */
DDP_LIB ddp_link ddp__link_nominal(const ddp_ctx *d, int link);
/* Meter: transfers of one size after the other. Each size is repeated until its fastest times agree
 * (link_probe.c, probe.c). */
enum { DDP__METER_MOST = 16 }; /* repetitions of a size */
typedef struct ddp__meter {
    double bytes[64], seconds[64];
    int n, first; /* measurements. Those from `first` on have the current size. */
    double begun; /* start of that size, or 0 if not started */
} ddp__meter;
/* Adds a measurement. Returns 1 if the current size is complete: its two fastest times agree, or the time for
 * it is over. */
DDP_LIB int ddp__meter_add(ddp__meter *m, double bytes, double seconds, double *fastest);
/* Measures one link with averages of at most DDP__PROBE_MOST times DDP__PROBE_FLOATS floats, its per-message
 * overhead if layers are known, and chooses between the direct algorithm and the ring. Takes about limit_s
 * seconds, or 2 % of the steps so far if that is longer. All ranks receive the first rank's result. */
DDP_LIB ddp_status ddp__probe_link(ddp_ctx *d, int link, double limit_s, ddp_error *err);
