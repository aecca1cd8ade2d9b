/* Predicts the step time of every strategy with the planner of the strategy. */
#pragma once

#include "base/status.h"
#include "comm/message.h"
#include "profile/profile.h"

/* How much training differs from ssgd, in increasing order. */
typedef enum ddp_result_kind {
    DDP_RESULT_EXACT,    /* parameters are bit-identical to ssgd after each step */
    DDP_RESULT_AVERAGED, /* every layer is averaged once per period, without delay */
    DDP_RESULT_LATE,     /* parts of the gradient are applied at least one iteration late */
    DDP_RESULT_OUTER     /* an outer optimizer averages the parameter deltas of a period */
} ddp_result_kind;

/* A way to train: a strategy with the settings that change its step time and its loss. */
typedef struct ddp_candidate {
    const char *strategy; /* name, as of ddp_strategy_name. Borrowed */
    int stream;           /* 1: diloco with overlap "stream" */
    int period;           /* H in steps, or 0 for a strategy without a period */
    ddp_coding coding;    /* number format on the wire (default: float32). DDP_AS_FLOAT for strategies that
                             average no parameters */
} ddp_candidate;

/* The predicted step of a candidate. */
typedef struct ddp_prediction {
    double step_s;     /* seconds of a step, as a mean over a period */
    double compute_s;  /* seconds of its compute */
    double sent_bytes; /* bytes that a worker sends per step */
} ddp_prediction;

/* ddp_predict_step - predicts the mean step time of a candidate.
 *
 *   p        the costs of the layers. params is needed. comm_s and alpha_s are the costs of averages in
 *            float32 over all workers: measured, or computed from a link with ddp_link_average
 *   workers  number of workers, at least 2
 *
 * ssgd, wfbp, mgwfbp, ascwfbp, bytescheduler and usbyte: ddp_plan_timeline and ddp_timeline_exposed. localsgd
 * and diloco: all transfers follow the last step of a period. diloco first exchanges which layers were
 * trained. enp and dreamddp: ddp_plan_partial with window cost. diloco with stream: ddp_plan_landing, and a
 * delta needs two delays within a period. deft: ddp_plan_delayed. Its Preserver rejects plans that merge more
 * than two iterations, so for slower links a step is as long as the transfer of half of the gradients. osp:
 * ddp_osp_umax decides what is sent during the next step. bsp, asp, ssp and r2sp: a push and a pull to
 * servers on the workers, all equally fast. sparseloco: every worker sends its top-k values to every other
 * worker.
 *
 * *out is unchanged on error. Pure and safe from any thread. Errors: DDP_ARG (NULL; the profile; a value out
 * of range; an unknown strategy), DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_predict_step(const ddp_profile *p, int workers, const ddp_candidate *c,
                                    ddp_prediction *out, ddp_error *err);

/* ddp_result_of - returns how much training under a strategy differs from ssgd. Pure and safe from any
 * thread. Errors: DDP_ARG for an unknown strategy. */
DDP_API ddp_status ddp_result_of(const char *strategy, ddp_result_kind *out, ddp_error *err);

/* ddp_result_reason - describes a kind in a phrase: "parameters are bit-identical to ssgd after each step".
 * An invalid value gives "unknown". A constant string. Pure and safe from any thread. */
DDP_API const char *ddp_result_reason(ddp_result_kind kind);
