/* What a pipeline's executor is made of; inside of src/pipe. */
#pragma once

#include "device/device.h"
#include "exchange/exchange.h"
#include "measure/measure.h"
#include "session/cut.h"
#include "graph/graph_internal.h"
#include "pipe/pipe.h"

/* What an edge carries one way: a message for each micro-batch. */
typedef struct ddp__flow {
    long *ticket;           /* [micro_batches] -1: none */
    ddp_edge_coding coding; /* aq: of activations; their gradients are int8 */
    double ratio;           /* of topk */
    size_t bytes;           /* of a message; of aq where all of its samples have crossed before */
    size_t room;            /* for the longest */
    unsigned char *wire;    /* [states x room] messages, coded; NULL: they lie in the states as floats */
    float *last;            /* [samples x values] aq: what each sample is at the other end, the same at both;
                                else NULL */
    size_t values;          /* of a sample */
    size_t residual;        /* of who sends, with feedback: where its values begin in those of the cut */
} ddp__flow;

/* All outputs that hop between this stage and another one. */
typedef struct ddp__hop {
    int stage; /* the other */
    int *node; /* [nodes] rising */
    int nodes;
    ddp__flow flow[2]; /* activations, gradients */
} ddp__hop;

/* One use of a tied weight away from it, seen from either end. */
typedef struct ddp__guest {
    int node, peer;
    long ticket[2]; /* of the weight, of its gradient; -1: none */
    float *arrived; /* here, where the owner is on a device: its gradient on the way there; NULL */
} ddp__guest;

typedef struct ddp__lane_mark {
    double now_s, waited_s;
} ddp__lane_mark;

/* What this stage did. Without trace_spans no slots, sums alone. */
typedef struct ddp__lanes {
    ddp_pipeline_slot *slot; /* [room] of the last step */
    ddp_pipeline_slot *post; /* [4 x micro_batches] messages that were given to the link from begin to end */
    int slots, room, posts;
    double begun;                                     /* the step */
    double sum[DDP_TASK_WEIGHT_GRADIENT + 1], step_s; /* seconds, by ddp_task_kind and in all, of `steps`
                                                         steps */
    long steps;
    int warm; /* 1: the first is not among them */
} ddp__lanes;

/* Work space of coding: of Top-K; of changes of aq (value); and of a device's arrays, which are coded
 * here. */
typedef struct ddp__select {
    void *scratch;
    size_t scratch_bytes, values, keeps; /* values: of the longest array; keeps: the most that is sent of
                                               one */
    uint64_t *index;                     /* [keeps], not of aq */
    float *value, *here;                 /* [keeps], [values] */
} ddp__select;

enum { DDP__NAMED = 2 };

/* The samples that the program names, for aq. All edges have seen the same. */
typedef struct ddp__samples {
    long count;
    int batch;
    long *id;     /* [micro_batches x batch] of this step, or of the next */
    char *fresh;  /* [micro_batches x batch] 1: it crosses for the first time in this step; DDP__NAMED: it is
                      of the next */
    char *seen;   /* [count], before fresh */
    double bytes; /* of what all edges keep */
} ddp__samples;

struct ddp_pipe {
    ddp_ctx *d;
    ddp_graph *g;
    ddp_node *loss;
    ddp_pipeline schedule;
    int stages, stage, number; /* number: of the pipeline */
    int micro_batches, ahead;
    int *rank_of;   /* [pipelines x stages] */
    int team;       /* the ranks of this pipeline */
    ddp_task *task; /* [tasks] */
    int tasks;
    ddp_state **state; /* [states]; micro-batch m runs on state m % states */
    int states;
    char *arena; /* of micro-batch m, from its forward to its backward, part m % held; then that of
                               every pass */
    int held;
    ddp__hop *hop[2]; /* to later stages, which activations leave by; to earlier ones, by which
                               gradients do */
    int hops[2];
    ddp_edge_wire edge;
    int trains; /* 0: it evaluates */
    ddp__select select;
    ddp__samples samples;
    ddp_piece *piece;         /* room for the longest list */
    const ddp_shape **shape;  /* of what edges carry, beside it */
    ddp__guest *guest, *host; /* uses here of weights elsewhere; uses elsewhere of weights here */
    int guests, hosts;
    char **feed; /* [inputs x micro_batches] */
    int *input;  /* [inputs] nodes */
    int inputs;
    int asked;              /* micro-batches of this step or evaluation */
    int received, finished; /* of them: whose activations are asked for; whose last task has run */
    int evaluated;          /* the micro-batch that was last; -1: none */
    ddp__lanes lanes;
    double loss_sum;
    int losses;
    ddp__cut cut;      /* what checkpoints know of it */
    ddp__scratch room; /* of all lists but the states' arrays */
};

static inline ddp_pipeline_shape ddp__pipe_shape(const ddp_pipe *p)
{
    const ddp_pipeline_shape x = {p->schedule, p->stages, p->micro_batches, p->ahead};

    return x;
}

/* The rank of a stage of this pipeline. */
static inline int ddp__pipe_rank(const ddp_pipe *p, int stage)
{
    return p->rank_of[p->number * p->stages + stage];
}

static inline ddp_state *ddp__pipe_state(const ddp_pipe *p, int m) { return p->state[m % p->states]; }

/* The slower of two rates, where 0 has no limit. */
static inline double ddp__slower(double a, double b) { return a > 0 && (!(b > 0) || a < b) ? a : b; }

/* edge.c. open: 0 out of memory. post: a message of p->piece to or from a rank. hold: until a ticket is done.
 * here: it is in this machine's memory, whoever computes. */
DDP_LIB int ddp__edges_open(ddp_pipe *p);
DDP_LIB ddp_status ddp__pipe_post(ddp_pipe *p, ddp_message *m, int peer, int here, long *ticket);
DDP_LIB ddp_status ddp__pipe_hold(ddp_pipe *p, long *ticket, int here);
/* Activations of micro-batch m, or gradients: sent or asked for; waited for. */
DDP_LIB ddp_status ddp__edges_post(ddp_pipe *p, ddp_verb verb, int m, int gradients);
DDP_LIB ddp_status ddp__edges_hold(ddp_pipe *p, int m, int gradients);
/* What was sent out of the state of micro-batch m has left it: waits; asks. */
DDP_LIB ddp_status ddp__edges_leave(ddp_pipe *p, int m);
DDP_LIB int ddp__edges_have_left(const ddp_pipe *p, int m);

/* edge_wire.c. list: the edge's outputs, or the gradients of those that have one, in the state of micro-batch
 * m, into p->piece. open: after the states. code: from the state into the message of micro-batch m (sends),
 * or back. */
DDP_LIB int ddp__hop_list(ddp_pipe *p, const ddp__hop *e, int m, int gradients);
DDP_LIB ddp_status ddp__wires_open(ddp_pipe *p, ddp_error *err);
DDP_LIB ddp_status ddp__flow_code(ddp_pipe *p, ddp__hop *e, int m, int gradients, int sends);
/* samples.c. open: before the edges' messages. keep: of a flow of so many values; 0: there is no memory, of
 * which memory speaks. begin: a step, whose samples are named. size: of the message of micro-batch m. cross:
 * n values, which lie behind `at` others, into the message or (sends 0) out of it, on to what lies behind
 * them. */
DDP_LIB ddp_status ddp__samples_open(ddp_pipe *p, ddp_error *err);
DDP_LIB int ddp__samples_keep(ddp_pipe *p, ddp__flow *l, size_t values);
DDP_LIB ddp_status ddp__samples_memory(const ddp_pipe *p, ddp_error *err);
DDP_LIB ddp_status ddp__samples_begin(ddp_pipe *p);
DDP_LIB size_t ddp__samples_size(const ddp_pipe *p, const ddp__flow *l, int m);
DDP_LIB ddp_status ddp__samples_cross(ddp_pipe *p, const ddp__flow *l, int m, int sends, float *x, size_t n,
                                      size_t at, unsigned char **message, ddp_error *err);
/* Of n finite values: bytes of their changes, coded; and what those bytes say is added to last. */
DDP_LIB size_t ddp__change_bytes(int bits, size_t n);
DDP_LIB void ddp__changes_code(const float *x, size_t n, int bits, unsigned char *out);
DDP_LIB ddp_status ddp__changes_add(const unsigned char *in, size_t n, int bits, float *last, ddp_error *err);
/* edge_ratio.c: what each link of adatopk keeps, ratio [stages x stages] from row to column. All ranks call
 * it. */
DDP_LIB ddp_status ddp__edge_ratios(ddp_pipe *p, double *ratio, ddp_error *err);
/* bottleneck.c: puts bottlenecks where *stage_of, which grows with the nodes, cuts the graph. */
DDP_LIB ddp_status ddp__bottlenecks_add(ddp_graph *g, double ratio, int **stage_of, ddp_error *err);

/* tied.c. guests_begin: before the first forward of a step. hosts_begin: after the first forward of the
 * owner's stage, whose hooks have made the weight whole. guests_end: after the last backward. hosts_leave:
 * the weights are sent. */
DDP_LIB int ddp__tied_open(ddp_pipe *p);
DDP_LIB ddp_status ddp__guests_begin(ddp_pipe *p);
DDP_LIB ddp_status ddp__hosts_begin(ddp_pipe *p, int trains);
DDP_LIB ddp_status ddp__guests_end(ddp_pipe *p);
DDP_LIB ddp_status ddp__hosts_leave(ddp_pipe *p);

/* lanes.c. open: 0 out of memory. A mark, and what was done or posted since. */
DDP_LIB int ddp__lanes_open(ddp_pipe *p);
DDP_LIB void ddp__lanes_begin(ddp_pipe *p);
DDP_LIB void ddp__lanes_end(ddp_pipe *p);
DDP_LIB ddp__lane_mark ddp__lane_now(const ddp_pipe *p);
DDP_LIB void ddp__lane_task(ddp_pipe *p, ddp__lane_mark from, ddp_task_kind kind, int m);
DDP_LIB void ddp__lane_posted(ddp_pipe *p, ddp__lane_mark from, ddp_verb verb, int gradient, int m);

/* What a rank could go on from, in a world of fewer: the whole of its state before a step, -1: none. */
typedef struct ddp__kept_step {
    long step;
    unsigned char *bytes; /* as a worker's state is packed for another */
    size_t size;
} ddp__kept_step;

/* kept: all have that step; next: the one after it, where it is not known of all; ends: nothing more is
 * trained. */
typedef struct ddp__keeper {
    ddp__kept_step kept, next;
    int ends;
} ddp__keeper;

/* faults.c: errors call ranks by stage and pipeline; before a step its state is kept, where somebody wants
 * it. */
DDP_LIB void ddp__pipe_names(const ddp_pipe *p);
DDP_LIB ddp_status ddp__pipe_keep(ddp_pipe *p);
DDP_LIB void ddp__kept_free(ddp__kept_step *k);

/* word.c: the norm over all stages; parameters of a whole layer; bytes to, from or (DDP_BROADCAST) of a
 * stage. */
DDP_LIB void ddp__pipe_clips(ddp_pipe *p);
DDP_LIB size_t ddp__whole_layer(const ddp_graph *g, int layer);
DDP_LIB ddp_status ddp__word_exchange(ddp_pipe *p, ddp_verb verb, int stage, void *bytes, size_t n);

/* shares.c. open: 0 out of memory. */
DDP_LIB int ddp__shares_open(ddp_pipe *p);
