/* What a pipeline's executor is made of; inside of src/pipe. */
#ifndef DDP_PIPE_EXECUTOR_H
#define DDP_PIPE_EXECUTOR_H

#include "graph/graph_internal.h"
#include "pipe/pipe.h"
#include "run/device.h"

/* All outputs that hop between this stage and another one, as one message for each micro-batch. */
typedef struct ddp__hop {
    int   peer;        /* rank */
    int   stage;       /* of it */
    int  *node;        /* [nodes] rising */
    int   nodes;
    long *data, *back; /* [micro_batches] tickets of activations, of gradients; -1: none */
} ddp__hop;

/* One use of a tied weight away from it, seen from either end. */
typedef struct ddp__guest {
    int  node, peer;
    long weight, gradient; /* tickets, -1: none */
} ddp__guest;

struct ddp_pipe {
    ddp_ctx     *d;
    ddp_graph   *g;
    ddp_node    *loss;
    ddp_pipeline schedule;
    int          stages, stage, number; /* number: of the pipeline */
    int          micro_batches;
    int          team;      /* the ranks of this pipeline */
    ddp_task    *task;      /* [tasks] */
    int          tasks;
    ddp_state  **state;     /* [states]; micro-batch m runs on state m % states */
    int          states;
    ddp__hop   *in, *out;  /* from earlier stages, to later ones */
    int          ins, outs;
    ddp_piece   *piece;     /* room for the longest list */
    ddp__guest  *guest, *host; /* uses here of weights elsewhere; uses elsewhere of weights here */
    int          guests, hosts;
    char       **feed;      /* [inputs x micro_batches] */
    int         *input;     /* [inputs] nodes */
    int          inputs;
    int          asked;     /* micro-batches of this step or evaluation */
    int          received, finished; /* of them: whose activations are asked for; whose last task has run */
    int          evaluated; /* the micro-batch that was last; -1: none */
    double       loss_sum;
    int          losses;
};

/* The rank of a stage of this pipeline. */
static inline int ddp__pipe_rank(const ddp_pipe *p, int stage) { return p->number * p->stages + stage; }

DDP_LIB int ddp__uses_fetch(void *user, int node);
/* word.c: the norm over all stages. */
DDP_LIB void ddp__pipe_clips(ddp_pipe *p);

#endif /* DDP_PIPE_EXECUTOR_H */
