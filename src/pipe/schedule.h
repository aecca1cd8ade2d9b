/* Pipelines: the order in which a stage runs its micro-batches, and the predicted time of a step. */
#pragma once

#include "base/status.h"

/* Schedules. All give bit-identical gradients: each stage sums them in the order of micro-batches. */
typedef enum ddp_pipeline {
    DDP_PIPELINE_DEFAULT, /* 1f1b */
    DDP_PIPELINE_GPIPE,   /* all forwards, then all backwards in the same order, as in DT-FM */
    DDP_PIPELINE_1F1B,    /* one forward and one backward in turn (PipeDream-flush): fewer activations */
    DDP_PIPELINE_ZB       /* 1f1b with the backward in two halves: weight gradients fill idle time (ZB-H1 of
                             Qi et al. 2023, Zero Bubble Pipeline Parallelism, arXiv:2401.10241) */
} ddp_pipeline;

/* Kinds of tasks of a stage. */
typedef enum ddp_task_kind {
    DDP_TASK_FORWARD,
    DDP_TASK_BACKWARD,        /* both halves */
    DDP_TASK_INPUT_GRADIENT,  /* the half that the previous stage waits for */
    DDP_TASK_WEIGHT_GRADIENT, /* the half that no other stage waits for */
    DDP_TASK_SEND,            /* activations after a forward, gradients after a backward */
    DDP_TASK_RECEIVE          /* the same */
} ddp_task_kind;

/* One task of a stage. */
typedef struct ddp_task {
    ddp_task_kind kind; /* what the stage does */
    int micro_batch;    /* from 0 */
} ddp_task;

/* ddp_pipeline_name - returns the name of a schedule: "gpipe", "1f1b" or "zb". DDP_PIPELINE_DEFAULT gives the
 * name of the default. A constant string. Pure and safe from any thread. */
DDP_API const char *ddp_pipeline_name(ddp_pipeline p);

/* ddp_pipeline_named - finds the schedule with the given name. Pure and safe from any thread. Errors:
 * DDP_ARG, with a list of the valid names. */
DDP_API ddp_status ddp_pipeline_named(const char *name, ddp_pipeline *out, ddp_error *err);

/* The shape of a pipeline, equal on all stages. */
typedef struct ddp_pipeline_shape {
    ddp_pipeline schedule; /* (default: 1f1b) */
    int stages;            /* 1..1024 */
    int micro_batches;     /* micro-batches of a step, at least 1 */
    int ahead;             /* 1f1b, zb: extra forwards before a stage's first backward, which hide the round
                              trip of slow links (default: 0). As many more micro-batches are in flight and
                              retained. */
} ddp_pipeline_shape;

/* ddp_pipeline_tasks - lists the tasks that a stage computes in one step, in order.
 *
 *   stage  0..stages-1, from the input
 *   out    [3 x micro_batches] receives the tasks
 *
 * Returns their number, or 0 if a field of the shape or stage is out of range. Pure and safe from any
 * thread. */
DDP_API int ddp_pipeline_tasks(const ddp_pipeline_shape *p, int stage, ddp_task *out);

/* ddp_pipeline_held - returns the largest number of micro-batches whose activations a stage retains at one
 * time, and thus the number of states that it needs, or 0 if a field of the shape or stage is out of range.
 * Pure and safe from any thread. */
DDP_API int ddp_pipeline_held(const ddp_pipeline_shape *p, int stage);

/* Compute times of one micro-batch on a stage, in seconds. */
typedef struct ddp_stage_cost {
    double forward_s;           /* the forward */
    double inputs_s, weights_s; /* the two halves of the backward: input gradient, weight gradient */
} ddp_stage_cost;

/* Messages from a stage to a later stage, one per micro-batch, and the gradients back. A message occupies the
 * sender's uplink, one message after the other, and, alpha_s later, the receiver's downlink, which serves
 * bytes of several senders in the order of arrival. */
typedef struct ddp_boundary {
    int from, to;                 /* stages */
    double forward_s, backward_s; /* seconds for which a message occupies the link: activations, gradient */
    double alpha_s;               /* one-way delay, in seconds */
    int one_way;                  /* 1 if no gradient is sent back */
} ddp_boundary;

/* Input of ddp_pipeline_time. All arrays are borrowed. */
typedef struct ddp_pipeline_costs {
    ddp_pipeline_shape shape;     /* schedule, stages and micro-batches */
    const ddp_stage_cost *stage;  /* [stages] */
    int boundaries;               /* number of boundaries */
    const ddp_boundary *boundary; /* [boundaries]. May be NULL. */
} ddp_pipeline_costs;

/* One activity of a stage. A stage computes, sends and receives at the same time, one computation at a
 * time. */
typedef struct ddp_pipeline_slot {
    int stage, boundary;   /* boundary -1: the stage computes */
    ddp_task task;         /* task and micro-batch */
    int gradient;          /* 1 if the message is a gradient */
    double begin_s, end_s; /* seconds since the start of the step */
} ddp_pipeline_slot;

/* Result of ddp_pipeline_time. */
typedef struct ddp_pipeline_times {
    double step_s;           /* seconds until the last stage has finished its last task */
    double bubble_pct;       /* share of the stages' time in a step in which they do not compute, in % */
    int *held;               /* [stages] ddp_pipeline_held of each stage */
    ddp_pipeline_slot *slot; /* [slots] */
    int slots;               /* number of slots */
} ddp_pipeline_times;

/* ddp_pipeline_time - simulates one step of a pipeline with discrete events. O(slots x stages). *out is empty
 * on error. Otherwise, the caller frees it with ddp_pipeline_times_free. Pure and safe from any thread.
 * Errors: DDP_ARG (names the stage or boundary), DDP_NUMERIC for times that add up to infinity,
 * DDP_MEMORY. */
DDP_API ddp_status ddp_pipeline_time(const ddp_pipeline_costs *c, ddp_pipeline_times *out, ddp_error *err);

/* ddp_pipeline_times_free - frees the arrays of simulated times. Accepts an all-zero one. */
DDP_API void ddp_pipeline_times_free(ddp_pipeline_times *t);
