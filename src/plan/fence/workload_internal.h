/* The graph of an operator list: the users of each result, and the cost of a transfer. */
#pragma once

#include "base/core.h"
#include "plan/fence/workload.h"

/* One operator list on one network, prepared for the estimator. */
typedef struct ddp__workload_graph {
    const ddp_oplist *list;
    const ddp_network *net;
    double turns;   /* n_b - 1 */
    double samples; /* N_s */
    double compute; /* compute time in units of the forward pass: 1, or 3 with backward */
    double kept;    /* number of micro-batches whose results are in memory at the same time */
    double state_factor;
    int backward;
    int *users;              /* users of op i: users[from[i]] .. users[from[i+1]-1], ascending, distinct */
    int *from;               /* [ops + 2] */
    unsigned char *gradient; /* [ops] 1 = a remote user returns the gradient of the result */
    int *seen;               /* [max(N, ops)] scratch */
    ddp__scratch room;
} ddp__workload_graph;

/* Checks the list, the network and the options. The caller frees g->room, also after an error. */
DDP_LIB ddp_status ddp__workload_graph_open(const ddp_oplist *list, const ddp_network *net,
                                            const ddp_workload_options *o, ddp__workload_graph *g,
                                            ddp_error *err);

/* Seconds for one message: Tcomm of Eq. 1. */
DDP_LIB double ddp__workload_transfer(const ddp_network *net, int from, int to, double bytes);

/* Fills w: C_p, R_p and memory of every device, T_lat, T_pipe, and the messages if w->message is not NULL. */
DDP_LIB void ddp__workload_sum(ddp__workload_graph *g, const int *device_of, ddp_workload *w);
