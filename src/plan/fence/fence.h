/* OP-Fence, FusionLLM's scheduler: a model's operators cut over unlike devices and links. */
#pragma once

#include "plan/fence/workload.h"

typedef enum ddp_fence_solver {
    DDP_FENCE_DEFAULT,    /* fence */
    DDP_FENCE_CUT,        /* OP-Fence: clusters, device order, exact cut */
    DDP_FENCE_EQUAL_OPS,  /* baseline: modules / devices each, devices in index order */
    DDP_FENCE_EQUAL_FLOPS /* baseline: whole modules of about equal FLOPs, blind to speed */
} ddp_fence_solver;

/* All-zero = the defaults. Those from allow_idle on are read by OP-Fence only. */
typedef struct ddp_fence_options {
    ddp_fence_solver solver;
    ddp_workload_options work;
    int no_memory;        /* 1 = the devices' memory is no limit */
    int allow_idle;       /* 1 = devices may stay without an operator */
    double message_bytes; /* M that weighs links; 0 = the median over all cuts */
    double resolution;    /* of the clustering; 0 = 1 */
} ddp_fence_options;

/* Operators first .. end-1 of the list run on `device`. */
typedef struct ddp_fence_segment {
    int device, first, end;
} ddp_fence_segment;

typedef struct ddp_fence_plan {
    ddp_fence_solver solver;
    int devices, ops;
    int segments;
    ddp_fence_segment *segment; /* [segments] in pipeline order, none empty, all operators */
    int *order;                 /* [N] devices along the pipeline, idle ones included */
    int *cluster;               /* [N] found by Louvain, 0..clusters-1 (baselines too) */
    int clusters;
    int *device_of;       /* [ops]: input data is where its first user is */
    double message_bytes; /* M that weighed the links */
    int proven;           /* no cut along `order` has a smaller pipeline_s */
    int connected;        /* every cluster's operators form a connected sub-graph */
    ddp_workload work;    /* C_p, R_p, memory, messages, latency, pipeline, throughput */
} ddp_fence_plan;

/* ddp_fence - which device runs which operators.
 *
 *   list, net  borrowed; net->speed is needed, net->memory_bytes limits where given
 *   out        untouched on error, else freed by ddp_fence_plan_free
 *
 * FusionLLM (arXiv:2410.12707) section 4 leaves open how; here, each step deterministic:
 *  1. link weight M / (seconds for M bytes), both directions averaged; ddp_louvain
 *  2. clusters in the order of the shortest open tour over their cheapest links
 *  3. devices inside a cluster along a shortest path that enters and leaves at the devices of those links
 *  (with two or
 *     more devices, never the same one)
 *  4. consecutive segments of the list along that order: the minimum of T_pipe (Eq. 3) under memory, with
 *  backward and
 *     skip edges exactly as ddp_workload_estimate counts them
 *  5. 2-opt over the joined order (reversals, and swaps of two devices) on T_pipe itself with the cut held,
 *  then a new
 *     cut, until nothing improves
 *  6. with up to 7 devices every order (as long as 3e8 steps allow)
 * The order is also tried backwards and against index order, so that no baseline is better. If memory fits
 * none of them, one that fits is looked for: among all orders of a few devices (up to 16 with 95 operators,
 * 12 with 2,000), else by swaps.
 * The cut: for a cap on max(C_p, R_p) a best-first search over (operators placed, device, where results in
 * use lie) finds the least latency, guided by a dynamic programme that is exact where no result is used
 * beyond the next device; the cap is bisected over all values that matter. The effort is bounded by counts;
 * if they end it, `proven` is 0 and the best found is returned. Input data (leaves without FLOPs and
 * parameters, such as inputs and labels) is read where their first user runs, whatever segment their place in
 * the list falls in.
 *
 * The baselines cut between modules only (ddp_oplist_entry), as the paper's do. Without allow_idle every
 * device gets an operator, as in the paper's figures. Pure; safe from any thread. Errors: DDP_ARG (bad list,
 * network or option; fewer operators than devices without allow_idle), DDP_FAILED (memory that nothing fits;
 * of a baseline: fewer modules than devices, or the device that its cut overfills), DDP_UNSUPPORTED (with n
 * operators and N devices, N n^2 / 2, plus 4 N^2 n if idle devices are allowed, beyond 1e9), DDP_MEMORY. */
DDP_API ddp_status ddp_fence(const ddp_oplist *list, const ddp_network *net, const ddp_fence_options *o,
                             ddp_fence_plan *out, ddp_error *err);
DDP_API void ddp_fence_plan_free(ddp_fence_plan *plan); /* all-zero is fine */

/* "fence", "equal_ops", "equal_flops"; DEFAULT gives "fence", a bad value "unknown". The inverse fails with
 * DDP_ARG and a sentence that lists the names. */
DDP_API const char *ddp_fence_solver_name(ddp_fence_solver solver);
DDP_API ddp_status ddp_fence_solver_named(const char *name, ddp_fence_solver *out, ddp_error *err);
