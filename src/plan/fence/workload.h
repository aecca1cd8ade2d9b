/* The workload estimator of FusionLLM: computes the cost of an assignment of operators to devices. */
#pragma once

#include "profile/network.h"
#include "profile/profile.h"

struct ddp_adatopk_options; /* compress/compress.h */

/* Options of the estimate. All-zero selects the defaults. */
typedef struct ddp_workload_options {
    int microbatches;    /* n_b, micro-batches per iteration (default: 1) */
    double samples;      /* N_s, samples per iteration, or 0 for the number of micro-batches */
    int forward_only;    /* 1 = no backward pass */
    double state_factor; /* memory per byte of parameters (default: 4 for parameters, gradients and two
                            moments of Adam, 1 with forward_only) */
} ddp_workload_options;

/* A tensor that one device sends to another, once per micro-batch. */
typedef struct ddp_workload_message {
    int op;                /* the operator whose result (or whose result's gradient) is sent */
    int user;              /* the first operator on the other device that uses the result (the paper names a
                     gradient "op-user") */
    int from, to;          /* devices */
    int gradient;          /* 1 if the gradient is sent, in backward, 0 if the result is, in forward */
    double bytes, seconds; /* size, and receive time on the link */
} ddp_workload_message;

/* The costs of one micro-batch. Arrays are [N]. The caller of ddp_workload_estimate owns it. */
typedef struct ddp_workload {
    int devices;                   /* N */
    double *compute_s;             /* C_p, compute time */
    double *receive_s;             /* R_p, receive time */
    double *memory_bytes;          /* parameters and their state, and the results retained for backward */
    double latency_s;              /* Eq. 2, one micro-batch */
    double pipeline_s;             /* Eq. 3, one iteration */
    double throughput;             /* Eq. 4, samples per second */
    int messages;                  /* number of messages */
    ddp_workload_message *message; /* [messages], sorted by op */
} ddp_workload;

/* ddp_workload_estimate - computes Eq. 1-4 of FusionLLM (arXiv:2410.12707) for any assignment.
 *
 *   device_of  [ops] the device that runs each operator, 0..N-1
 *   o          borrowed. All-zero selects the defaults.
 *   out        untouched on error. Otherwise, the caller frees it with ddp_workload_free.
 *
 *   C_p     sum of flops / speed[p] over the operators on p, times 3 with backward
 *   R_p     sum of delay + bytes / rate over the messages that p receives. A result is sent once to each
 *           remote device that uses it, however many users it has there. With backward, the gradient of that
 *           result returns to the producer's device, which is charged for receiving it
 *   T_lat   sum of C_p + R_p                                          Eq. 2
 *   T_pipe  T_lat + (n_b - 1) max over p of max(C_p, R_p)             Eq. 3
 *   phi     N_s / T_pipe                                              Eq. 4
 *
 * Interpretations of the paper: "outputs of f" in R means the output of the parent. Access to local memory is
 * free. Input data (a leaf without parameters) receives no gradient. Every other leaf and operator does.
 *
 * Memory: state_factor x parameters, plus the results and received results retained for backward. They are
 * counted for all n_b micro-batches, or for one with forward_only.
 *
 * Cost: O(operators + args). Pure and safe from any thread. Errors: DDP_ARG (no speeds in the network, no
 * such device, an option or a cost out of range), DDP_NUMERIC (the costs add up to more than 1e200),
 * DDP_UNSUPPORTED (more than 2^31 - 1 args), DDP_MEMORY. */
DDP_API ddp_status ddp_workload_estimate(const ddp_oplist *list, const ddp_network *net, const int *device_of,
                                         const ddp_workload_options *o, ddp_workload *out, ddp_error *err);

/* ddp_workload_free - frees the arrays of an estimate. Accepts an all-zero one. */
DDP_API void ddp_workload_free(ddp_workload *w);

/* ddp_speed_fit - fits lambda, the fraction of its peak speed that a device reaches: S(p) = lambda S*(p).
 *
 *   flops, seconds  [n] FLOPs and measured times of n operators
 *   peak            S*(p) in FLOP/s
 *   lambda          receives the fraction. Unchanged on error.
 *
 * Least squares through the origin of seconds over flops / peak, with lambda = 1 / slope. To fit alpha and
 * beta of a link, use ddp_link_fit. Pure and safe from any thread. Errors: DDP_ARG (no sample, a value is
 * negative or not finite, or all values are zero). */
DDP_API ddp_status ddp_speed_fit(const double *flops, const double *seconds, int n, double peak,
                                 double *lambda, ddp_error *err);

/* ddp_workload_compress - the estimate w with every message compressed, by AdaTopK or uniformly.
 *
 *   w, net, work  an estimate, and the network and options that produced it
 *   out           receives a copy of w with smaller messages. Unchanged on error. Otherwise, the caller frees
 *                 it with ddp_workload_free.
 *
 * R_p of Eq. 7 is the receive time of device p without delays. The ratio of the device applies to each
 * message that it receives, counted in floats. A message that compression would not shrink is sent dense.
 * Delays and compute times do not change: the time for compression itself is not included.
 *   T_lat = sum of C_p + R'_p,  T_pipe = T_lat + (n_b - 1) max over p of max(C_p, R'_p)
 * This is Eq. 8 with its two errors corrected (see ddp_adatopk).
 *
 * Source: FusionLLM (arXiv:2410.12707) section 5.2. Pure and safe from any thread. Errors: DDP_ARG (an option
 * out of range, or the network has a different number of devices), DDP_NUMERIC (a time that is not finite),
 * DDP_MEMORY. */
DDP_API ddp_status ddp_workload_compress(const ddp_workload *w, const ddp_network *net,
                                         const ddp_workload_options *work,
                                         const struct ddp_adatopk_options *o, ddp_workload *out,
                                         ddp_error *err);
