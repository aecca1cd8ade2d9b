/* FusionLLM's workload estimator: what an assignment of operators to devices costs. */
#pragma once

#include "profile/network.h"
#include "profile/profile.h"

struct ddp_adatopk_options; /* compress/compress.h */

typedef struct ddp_workload_options {
    int microbatches;    /* n_b per iteration; 0 = 1 */
    double samples;      /* N_s per iteration; 0 = the number of micro-batches */
    int forward_only;    /* 1 = no backward pass */
    double state_factor; /* memory per byte of parameters; 0 = 4 (gradients, Adam's two moments),
                            or 1 if forward only */
} ddp_workload_options;

/* A tensor that crosses devices, once per micro-batch. */
typedef struct ddp_workload_message {
    int op;       /* whose result it is, or whose result's gradient */
    int user;     /* the first operator on the other device that takes it (a gradient is named
                        "op-user" in the paper) */
    int from, to; /* devices */
    int gradient; /* 0 = the result, forward; 1 = its gradient, backward */
    double bytes, seconds;
} ddp_workload_message;

/* Seconds of one micro-batch, [N] each. Owned by the caller of ddp_workload_estimate. */
typedef struct ddp_workload {
    int devices;
    double *compute_s;    /* C_p */
    double *receive_s;    /* R_p */
    double *memory_bytes; /* parameters and their state, results kept for backward */
    double latency_s;     /* Eq. 2 */
    double pipeline_s;    /* Eq. 3: one iteration */
    double throughput;    /* Eq. 4: samples per second */
    int messages;
    ddp_workload_message *message; /* [messages], by op */
} ddp_workload;

/* ddp_workload_estimate - Eq. 1-4 of FusionLLM (arXiv:2410.12707) for any assignment.
 *
 *   device_of [ops] the device that runs each operator, 0..N-1
 *   out       untouched on error, else freed by ddp_workload_free
 *
 *   C_p    sum of flops / speed[p] over the operators of p, three times that with backward
 *   R_p    sum of delay + bytes/rate over what p receives: a producer's result once per remote device that
 *          uses it, however many users it has there; with backward the gradient of that result the other way,
 *          charged to the producer's device
 *   T_lat  sum of C_p + R_p                                          Eq. 2
 *   T_pipe T_lat + (n_b - 1) max over p of max(C_p, R_p)             Eq. 3
 *   phi    N_s / T_pipe                                              Eq. 4
 * Readings: the paper's "outputs of f" in R is the parent's output; reading and writing local memory costs
 * nothing; input data (leaves without parameters) receives no gradient, other leaves and operators do.
 * Memory: state_factor x parameters + what stays until backward, that is results and received results of all
 * n_b micro-batches (of one, if forward only). O(operators + args). Pure; safe from any thread.
 * Errors: DDP_ARG (no speeds in the network, no such device, bad costs), DDP_MEMORY. */
DDP_API ddp_status ddp_workload_estimate(const ddp_oplist *list, const ddp_network *net, const int *device_of,
                                         const ddp_workload_options *o, ddp_workload *out, ddp_error *err);
DDP_API void ddp_workload_free(ddp_workload *w); /* all-zero is fine */

/* ddp_speed_fit - the fraction lambda of its peak that a device reaches: S(p) = lambda S*(p). flops, seconds
 * [n] of
 *   measured operators; peak = S*(p) in FLOP/s
 * Least squares through the origin of seconds on flops / peak; lambda = 1 / slope. A link's alpha and beta
 * come from ddp_link_fit. *lambda is untouched on error.
 * Errors: DDP_ARG (no sample, negative or not finite, nothing but zeros). */
DDP_API ddp_status ddp_speed_fit(const double *flops, const double *seconds, int n, double peak,
                                 double *lambda, ddp_error *err);

/* ddp_workload_compress - the estimate w with every message compressed by AdaTopK or uniformly.
 *
 *   w, net, work  an estimate, and the network and options that it was made with
 *   out           its copy with shorter messages; untouched on error, else freed by ddp_workload_free
 *
 * R_p of Eq. 7 is what device p receives, without delays; its ratio applies to each message that it receives,
 * in floats. A message that would not shrink is sent dense. Delays stay as they are, and so does computing:
 * the time to compress is not counted.
 *   T_lat  = sum of C_p + R'_p,  T_pipe = T_lat + (n_b - 1) max over p of max(C_p, R'_p)
 * which is Eq. 8 without its two slips (see ddp_adatopk).
 *
 * Source: FusionLLM (arXiv:2410.12707) section 5.2. Pure; safe from any thread.
 * Errors: DDP_ARG (as ddp_adatopk, or net has another number of devices), DDP_MEMORY. */
DDP_API ddp_status ddp_workload_compress(const ddp_workload *w, const ddp_network *net,
                                         const ddp_workload_options *work,
                                         const struct ddp_adatopk_options *o, ddp_workload *out,
                                         ddp_error *err);
