/* Shared by the estimator and OP-Fence: who uses whose result, and the price of a transfer. */
#ifndef DDP_PLAN_WORKLOAD_CORE_H
#define DDP_PLAN_WORKLOAD_CORE_H

#include "plan/workload.h"

/* Of one list on one network. ddp__workload_graph_open checks list, network and options. */
typedef struct ddp__workload_graph {
    const ddp_oplist  *list;
    const ddp_network *net;
    double  turns;        /* n_b - 1 */
    double  samples;      /* N_s */
    double  compute;      /* compute time in units of the forward pass: 1, or 3 with backward */
    double  kept;         /* micro-batches whose results are in memory at once */
    double  state_factor;
    int     backward;
    int    *users;        /* of op i: users[from[i]] .. users[from[i+1]-1], ascending, distinct */
    int    *from;         /* [ops + 2] */
    unsigned char *gradient; /* [ops] 1 = a remote user sends the result's gradient back */
    int    *seen;         /* [max(N, ops)] scratch */
} ddp__workload_graph;

DDP_LIB ddp_status ddp__workload_graph_open(const ddp_oplist *list, const ddp_network *net,
                                            const ddp_workload_options *o, ddp__workload_graph *g, ddp_error *err);
DDP_LIB void       ddp__workload_graph_close(ddp__workload_graph *g);

/* Seconds of one message, Tcomm of Eq. 1. */
DDP_LIB double ddp__workload_transfer(const ddp_network *net, int from, int to, double bytes);

/* C_p, R_p and memory of every device, each [N], and T_lat; returns T_pipe. message (NULL = not wanted) receives the
 * messages, *messages (NULL) their number. */
DDP_LIB double ddp__workload_sum(ddp__workload_graph *g, const int *device_of, double *compute_s, double *receive_s,
                                 double *memory, double *latency_s, ddp_workload_message *message, int *messages);

#endif /* DDP_PLAN_WORKLOAD_CORE_H */
