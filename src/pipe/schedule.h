/* Pipelines: in which order a stage runs its micro-batches, and how long a step takes. */
#pragma once

#include "base/status.h"

/* All have the same gradients: each stage adds them up in the order of micro-batches. */
typedef enum ddp_pipeline {
    DDP_PIPELINE_DEFAULT, /* 1f1b */
    DDP_PIPELINE_GPIPE,   /* all forwards, then all backwards in the same order, as DT-FM runs it */
    DDP_PIPELINE_1F1B,    /* one forward, one backward in turn (PipeDream-flush): fewer activations */
    DDP_PIPELINE_ZB       /* the same with the backward in two halves: weight gradients fill what would be
                             waiting (ZB-H1 of Qi and others 2023, Zero Bubble Pipeline Parallelism,
                             arXiv:2401.10241) */
} ddp_pipeline;

typedef enum ddp_task_kind {
    DDP_TASK_FORWARD,
    DDP_TASK_BACKWARD,        /* both halves */
    DDP_TASK_INPUT_GRADIENT,  /* the half that the stage before waits for */
    DDP_TASK_WEIGHT_GRADIENT, /* the half that nobody waits for */
    DDP_TASK_SEND,
    DDP_TASK_RECEIVE /* of activations after a forward, of gradients after a backward */
} ddp_task_kind;

typedef struct ddp_task {
    ddp_task_kind kind;
    int micro_batch;
} ddp_task;

/* "gpipe", "1f1b", "zb". named: DDP_ARG where the name is another one. */
DDP_API const char *ddp_pipeline_name(ddp_pipeline p);
DDP_API ddp_status ddp_pipeline_named(const char *name, ddp_pipeline *out, ddp_error *err);

/* A pipeline as all of its stages know it. */
typedef struct ddp_pipeline_shape {
    ddp_pipeline schedule;
    int stages;        /* 1..1024 */
    int micro_batches; /* of a step */
    int ahead;         /* 1f1b, zb: so many forwards more before a stage's first backward, and as
                                   many micro-batches more in flight and held: on slow links what waits for
                                   the way there and back; 0 = none */
} ddp_pipeline_shape;

/* ddp_pipeline_tasks - what `stage` (0..stages-1, from the input) computes in one step, in order, into out
 *   [3 x micro_batches]; how many, or 0 where a number is out of range. Pure.
 * ddp_pipeline_held - the most micro-batches whose activations the stage holds at one time: as many states as
 * it needs. */
DDP_API int ddp_pipeline_tasks(const ddp_pipeline_shape *p, int stage, ddp_task *out);
DDP_API int ddp_pipeline_held(const ddp_pipeline_shape *p, int stage);

/* Seconds for one micro-batch of a stage. */
typedef struct ddp_stage_cost {
    double forward_s;
    double inputs_s, weights_s; /* the two halves of its backward */
} ddp_stage_cost;

/* What one stage sends a later one: for each micro-batch one message, and its gradient back. A message
 * occupies the sender's uplink, one after the other, and, alpha_s later, the receiver's downlink, which bytes
 * of several senders pass in the order in which they come. */
typedef struct ddp_boundary {
    int from, to;
    double forward_s, backward_s; /* of the link, seconds */
    double alpha_s;               /* one way */
    int one_way;                  /* 1: no gradient comes back */
} ddp_boundary;

typedef struct ddp_pipeline_costs {
    ddp_pipeline_shape shape;
    const ddp_stage_cost *stage; /* [stages] */
    int boundaries;
    const ddp_boundary *boundary; /* [boundaries]; NULL: none */
} ddp_pipeline_costs;

/* A stage computes, sends and receives at the same time: three slots, of which messages alone may overlap as
 * they come. */
typedef struct ddp_pipeline_slot {
    int stage, boundary; /* -1: computing */
    ddp_task task;
    int gradient; /* 1: the message is one */
    double begin_s, end_s;
} ddp_pipeline_slot;

typedef struct ddp_pipeline_times {
    double step_s;     /* until the last stage has computed its last */
    double bubble_pct; /* of the stages' time in a step, that in which they do not compute */
    int *held;         /* [stages] of ddp_pipeline_held */
    ddp_pipeline_slot *slot;
    int slots;
} ddp_pipeline_times;

/* ddp_pipeline_time - plays one step. O(slots x stages). Errors: DDP_ARG (names the stage or boundary),
 * DDP_NUMERIC, DDP_MEMORY; *out is empty then. free: what it has allocated. */
DDP_API ddp_status ddp_pipeline_time(const ddp_pipeline_costs *c, ddp_pipeline_times *out, ddp_error *err);
DDP_API void ddp_pipeline_times_free(ddp_pipeline_times *t);
