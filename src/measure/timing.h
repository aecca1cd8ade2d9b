/* Times of layers and links, estimated from FLOPs and settings or measured. */
#pragma once

#include "context/context.h"

/* What planning needs of a layer of the whole model, which may be on several stages. Counts are of floats. */
typedef struct ddp__layer_cost {
    double flops;
    double count, trained, others; /* ddp__unit's count and trained; what else an average moves, optimizer
                                      state included */
    double holders;                /* stages that have some of the trained */
} ddp__layer_cost;

/* The links as measured, else nominal: average of n bytes takes alpha + beta n; the gap that a message
 * occupies the link for beside its bytes. */
DDP_LIB ddp_link ddp__link_is(const ddp_ctx *d, int link);
DDP_LIB double ddp__gap_is(const ddp_ctx *d, int link);
DDP_LIB void ddp__link_set(ddp_ctx *d, int link, ddp_link is);
DDP_LIB void ddp__gap_set(ddp_ctx *d, int link, double seconds);

/* timing.c: names and sizes of the layers, no times; times without clocks: 10 GFLOP/s, the link as
 * configured; as measured, agreed on by the team; what transfers take, from d->measure->link[0]. */
DDP_LIB ddp_status ddp__profile_start(ddp_ctx *d, ddp_profile *p, ddp_error *err);
DDP_LIB void ddp__profile_nominal(ddp_ctx *d, ddp_profile *p);
DDP_LIB void ddp__profile_between(const ddp_ctx *d, ddp_profile *p);
DDP_LIB ddp_status ddp__profile_measured(ddp_ctx *d, ddp_profile *p, ddp_error *err);
DDP_LIB void ddp__profile_link(ddp_ctx *d, ddp_profile *p);
DDP_LIB double ddp__nominal_flops(double flops, double count); /* of a layer's forward; flops 0:
                                                                      unknown */
/* A profile of all layers of a model that is cut into stages, without clocks. */
DDP_LIB ddp_status ddp__profile_model(ddp_ctx *d, const ddp__layer_cost *model, int layers, ddp_profile *p,
                                      ddp_error *err);

/* timing.c, probe.c: the link as configured; transfers of one size after the other, each repeated until it is
 * settled */
DDP_LIB ddp_link ddp__link_nominal(const ddp_ctx *d, int link);
typedef struct ddp__meter {
    double bytes[64], seconds[64];
    int n, first; /* those from `first` on are of one size */
    double begun; /* of that size; 0: not yet */
} ddp__meter;
/* 1: the two fastest of this size agree, or it took long enough, and another begins. */
DDP_LIB int ddp__meter_add(ddp__meter *m, double bytes, double seconds, double *fastest);
/* Times averages over one link, of at most DDP__PROBE_MOST times DDP__PROBE_FLOATS floats; all ranks get the
 * first one's fit. */
DDP_LIB ddp_status ddp__probe_link(ddp_ctx *d, int link, ddp_error *err);
