/* Defines the part of a context that belongs to src/measure. */
#pragma once

#include "context/context.h"
#include "device/device.h"
#include "measure/lines.h"

enum { DDP__NOTES = 64 };

/* Times that the ranks exchange every few periods. */
typedef struct ddp__pace_word {
    double compute_s; /* mean compute time of its steps since the last exchange, without waits */
    double lr;        /* learning rate of this step */
    double present;   /* 1. 0 means that the rank is lost. */
} ddp__pace_word;

/* Sums over steps, in seconds. */
typedef struct ddp__totals {
    long steps;
    double step_s, wait_s, comm_s, exposed_s, peer_wait_s;
} ddp__totals;

struct ddp__measure {
    ddp_link line[2][DDP__LINES]; /* cost of an average over each link, by its algorithm */
    double gap_s[2];              /* per-message overhead of each link (ddp_profile), or 0 if not measured */
    ddp__follow follow[2];        /* follows each link while training, from these costs */
    double followed[2];           /* the factor of its time per byte that all ranks use; 0: none yet */
    double mean_layer_bytes;
    int follows;          /* 1 if the plan comes from measured times */
    double compute_sum_s; /* compute time of this rank, without waits */
    long compute_steps;
    ddp__pace_word *pace;      /* [world] */
    double *pace_sorted;       /* [world] workspace to sort their times */
    long pace_ticket;          /* ticket of the exchange, or -1 */
    double pace_told;          /* ratio in the last log line, or 0 for no straggler */
    int pace_place;            /* index in the team of the rank that line was about */
    ddp_note note[DDP__NOTES]; /* ring buffer */
    long notes;                /* notes ever added */
    uint64_t noted_live;       /* live workers at the last check, or 0 for no check yet */
    ddp_span *merge;           /* [merge_room] workspace for the hidden share */
    ddp__op_span *op_scratch;  /* [op_room] workspace for statistics and traces */
    int op_room, merge_room;
    struct ddp__arrival *arrival; /* [layers] arrivals of the layers' averages (arrivals.c) */
    double arrivals_until;        /* the newest arrival that is accounted for */
    double arrivals_waited;       /* seconds that this rank waited for them since they were last taken */
    long arrivals_span;           /* number of the next span of the clock */
    double step_begin;            /* end of the previous step */
    int period;                   /* steps in a period of the strategy's transfers */
    /* all: the steps since the statistics began. part: the steps of the current period. whole: the steps of
     * whole periods. begun, whole_from: the first step of all, and of whole */
    ddp__totals all, part, whole;
    long begun, whole_from;
    double wait_total_s; /* of all steps of the run */
    double planning_s;   /* wait between the step before and step_begin, which belongs to no step */
};

/* open returns 0 if memory is short. start: call it when the layers are known (part.c). */
DDP_LIB int ddp__measure_open(ddp_ctx *d);
DDP_LIB ddp_status ddp__measure_start(ddp_ctx *d, ddp_error *err);
/* Returns 1 if the plan comes from measured times. The links are then followed during training. */
DDP_LIB int ddp__follows(const ddp_ctx *d);
DDP_LIB void ddp__follows_set(ddp_ctx *d, int follows);
/* Returns the factor by which the time of a byte has changed since the plan, by the last window of
 * observations. A rank that begins its transfers late observes a factor that is too small, so with a plan the
 * ranks agree on one. */
DDP_LIB double ddp__link_followed(const ddp_ctx *d, int link);
DDP_LIB void ddp__link_followed_set(ddp_ctx *d, int link, double factor);
DDP_LIB double ddp__mean_layer_bytes(const ddp_ctx *d);
/* Stores the operations of link 0 that began since `begun` in *out, valid until the next call. Returns their
 * number. */
DDP_LIB int ddp__operations_since(ddp_ctx *d, double begun, const ddp__op_span **out);
