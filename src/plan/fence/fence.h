/* OP-Fence, the scheduler of FusionLLM: splits a model's operators over devices of different speed, joined
 * by links of different speed, as the stages of a pipeline. */
#pragma once

#include "plan/fence/workload.h"

/* Solvers of ddp_fence. */
typedef enum ddp_fence_solver {
    DDP_FENCE_DEFAULT,    /* fence */
    DDP_FENCE_CUT,        /* OP-Fence: clusters, device order, optimal cut */
    DDP_FENCE_EQUAL_OPS,  /* baseline: an equal number of modules per device, devices in index order */
    DDP_FENCE_EQUAL_FLOPS /* baseline: whole modules with about equal FLOPs per device, whatever the device
                             speed */
} ddp_fence_solver;

/* All-zero selects the defaults. The baselines ignore allow_idle and the fields after it. */
typedef struct ddp_fence_options {
    ddp_fence_solver solver;   /* (default: fence) */
    ddp_workload_options work; /* how the cost is computed */
    int no_memory;             /* 1 = ignore the memory limits of the devices */
    int allow_idle;            /* 1 = a device may run no operator */
    double message_bytes;      /* message size M for the link weights, in bytes, or 0 for the median over all
                           * cuts */
    double resolution;         /* of the clustering, see ddp_louvain (default: 1) */
} ddp_fence_options;

/* Operators first .. end-1 of the list run on `device`. */
typedef struct ddp_fence_segment {
    int device, first, end; /* end is one past the last operator */
} ddp_fence_segment;

/* A plan. The caller of ddp_fence owns it and frees it with ddp_fence_plan_free. */
typedef struct ddp_fence_plan {
    ddp_fence_solver solver;    /* solver that made it */
    int devices, ops;           /* number of devices (N) and of operators */
    int segments;               /* number of segments */
    ddp_fence_segment *segment; /* [segments] in pipeline order. None is empty, and together they have all
                                   operators. */
    int *order;                 /* [N] devices in pipeline order, idle ones included */
    int *cluster;               /* [N] cluster found by Louvain, 0..clusters-1 (also for the baselines) */
    int clusters;               /* number of clusters */
    int *device_of;             /* [ops]. Input data is on the device of its first user. */
    double message_bytes;       /* the M that the link weights used, in bytes */
    int proven;                 /* 1 = no other cut along `order` has a smaller pipeline_s */
    int connected;              /* 1 = the operators of each cluster form a connected subgraph */
    ddp_workload work;          /* costs of the plan: C_p, R_p, memory, messages, latency, pipeline time,
                             throughput */
} ddp_fence_plan;

/* ddp_fence - assigns each operator to a device.
 *
 *   list, net  borrowed. net->speed is required, and net->memory_bytes, if set, limits each device.
 *   o          borrowed. All-zero selects the defaults.
 *   out        untouched on error. Otherwise, the caller frees it with ddp_fence_plan_free.
 *
 * FusionLLM (arXiv:2410.12707) section 4 does not specify the algorithm. This implementation is
 * deterministic:
 *  1. Weight each link with M / (seconds for M bytes), averaged over both directions, and cluster the
 *     devices with ddp_louvain.
 *  2. Order the clusters along the shortest open tour over the cheapest link between each pair of clusters.
 *  3. Order the devices of each cluster along a shortest path that begins and ends at the endpoints of those
 *     links. In a cluster of two or more devices the path begins and ends at different devices.
 *  4. Cut the list into consecutive segments along that order. The cut minimises T_pipe (Eq. 3) within the
 *     memory limits, and counts backward messages and skip edges exactly as ddp_workload_estimate does.
 *  5. Improve the order with 2-opt (reversals, and swaps of two devices) on T_pipe with the cut fixed, then
 *     cut again. Repeat until there is no improvement.
 *  6. With up to 7 devices, try every order, up to a total of 3e8 steps.
 * The reversed order and index order are also tried, so that no baseline is better. If no cut along any of
 * these orders fits into memory, the planner searches for an order that fits. With few devices it tries all
 * orders (up to 16 devices with 95 operators, 12 with 2,000). Otherwise it swaps devices.
 *
 * The cut: for a given upper bound on max(C_p, R_p), a best-first search finds the cut of least latency. A
 * search state is the number of operators placed, the device, and the location of each result still in use. A
 * dynamic programme guides the search. It is exact if no result is used beyond the next device. The upper
 * bound is bisected over all values that can matter. Step counts limit the effort. If a limit ends the
 * search, `proven` is 0 and the best cut found so far is returned. Input data (leaves without FLOPs and
 * parameters, such as inputs and labels) is read on the device of its first user, even if its place in the
 * list falls into another segment.
 *
 * The baselines cut only between modules (ddp_oplist_entry), as in the paper. Without allow_idle every device
 * gets an operator, as in the paper's figures. Pure and safe from any thread.
 *
 * Errors:
 *   DDP_ARG          bad list, network or option; fewer operators than devices without allow_idle
 *   DDP_FAILED       no assignment fits into memory; for a baseline: fewer modules than devices, or its cut
 *                    exceeds the memory of the device that the message names
 *   DDP_UNSUPPORTED  for n operators and N devices, N n^2 / 2 exceeds 1e9; with allow_idle, N n^2 / 2 + 4
 *                    N^2 n
 *   DDP_NUMERIC      the costs of the list add up to more than 1e200
 *   DDP_MEMORY       out of memory */
DDP_API ddp_status ddp_fence(const ddp_oplist *list, const ddp_network *net, const ddp_fence_options *o,
                             ddp_fence_plan *out, ddp_error *err);

/* ddp_fence_plan_free - frees the arrays of a plan. Accepts an all-zero one. */
DDP_API void ddp_fence_plan_free(ddp_fence_plan *plan);

/* ddp_fence_solver_name - returns the name of a solver: "fence", "equal_ops" or "equal_flops".
 * DDP_FENCE_DEFAULT gives "fence". An invalid value gives "unknown". A constant string. Pure and safe from
 * any thread. */
DDP_API const char *ddp_fence_solver_name(ddp_fence_solver solver);

/* ddp_fence_solver_named - finds the solver with the given name. Pure and safe from any thread. Errors:
 * DDP_ARG, with a list of the valid names. */
DDP_API ddp_status ddp_fence_solver_named(const char *name, ddp_fence_solver *out, ddp_error *err);
