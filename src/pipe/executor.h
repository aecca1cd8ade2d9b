/* The data structures and internal functions of the pipeline executor. */
#pragma once

#include "device/device.h"
#include "exchange/exchange.h"
#include "measure/measure.h"
#include "session/cut.h"
#include "graph/graph_internal.h"
#include "pipe/pipe.h"

/* One direction of an edge: one message per micro-batch. */
typedef struct ddp__flow {
    long *ticket;           /* [micro_batches] -1: none */
    ddp_edge_coding coding; /* for aq: coding of the activations. Gradients use int8. */
    double ratio;           /* ratio of topk */
    size_t bytes;           /* size of a message; for aq: if all its samples were sent before */
    size_t room;            /* size of the longest message */
    unsigned char *wire;    /* [states x room] encoded messages, or NULL for sent as floats from the states */
    /* [samples x values] aq: each sample as the receiver has it, identical at both ends, or NULL otherwise */
    float *last;
    size_t values;   /* values of a sample */
    size_t residual; /* sender with feedback: first of its residuals in ddp__cut */
} ddp__flow;

/* All outputs that are sent between this stage and another one. */
typedef struct ddp__hop {
    int stage; /* the other stage */
    int *node; /* [nodes] in ascending order */
    int nodes;
    ddp__flow flow[2]; /* activations, gradients */
} ddp__hop;

/* One use of a tied weight on another stage than its owner's. Both stages have an entry. */
typedef struct ddp__guest {
    int node, peer;
    long ticket[2]; /* of the message with the weight, with its gradient, or -1 for none */
    float *arrived; /* owner on a device: host memory for the received gradient, or NULL otherwise */
} ddp__guest;

typedef struct ddp__lane_mark {
    double now_s, waited_s;
} ddp__lane_mark;

/* The activity of this stage. Without trace_spans only the sums are recorded. */
typedef struct ddp__lanes {
    ddp_pipeline_slot *slot; /* [room] of the last step */
    ddp_pipeline_slot *post; /* [4 x micro_batches] tasks that posted messages, and when */
    int slots, room, posts;
    double begun; /* start of the step */
    /* in seconds, by ddp_task_kind; step_s: of the whole steps; both over `steps` steps */
    double sum[DDP_TASK_WEIGHT_GRADIENT + 1], step_s;
    long steps;
    int warm; /* 1 if the first step is excluded */
} ddp__lanes;

/* Work space for encoding: Top-K; deltas of aq (value); host copies of arrays on a device. */
typedef struct ddp__select {
    void *scratch;
    /* values: of the longest array; keeps: the most values sent of one array */
    size_t scratch_bytes, values, keeps;
    uint64_t *index;     /* [keeps], unused by aq */
    float *value, *here; /* [keeps], [values] */
} ddp__select;

enum { DDP__NAMED = 2 };

/* The samples of aq, as named by the program. All edges have sent the same samples. */
typedef struct ddp__samples {
    long count;
    int batch;
    long *id; /* [micro_batches x batch] samples of this or the next step */
    /* [micro_batches x batch] 1: sent for the first time in this step; DDP__NAMED: belongs to the next
     * step */
    char *fresh;
    char *seen;   /* [count] 1: sent in an earlier step */
    double bytes; /* memory of `last` of all edges */
} ddp__samples;

struct ddp_pipe {
    ddp_ctx *d;
    ddp_graph *g;
    ddp_node *loss;
    ddp_pipeline schedule;
    int stages, stage, number; /* number: of this pipeline */
    int micro_batches, ahead;
    int *rank_of;   /* [pipelines x stages] */
    int team;       /* process group of this pipeline's ranks */
    ddp_task *task; /* [tasks] */
    int tasks;
    ddp_state **state; /* [states]; micro-batch m uses state m % states */
    int states;
    /* activations of micro-batch m, from its forward to its backward, in part m % held; then the memory of
     * every pass */
    char *arena;
    int held;
    /* [0]: to later stages, which receive activations; [1]: to earlier stages, which receive gradients */
    ddp__hop *hop[2];
    int hops[2];
    ddp_edge_wire edge;
    int trains; /* 0: evaluation */
    ddp__select select;
    ddp__samples samples;
    ddp_piece *piece;        /* [pieces of the longest list] */
    const ddp_shape **shape; /* shapes of the arrays in `piece` */
    /* guest: uses here of weights owned elsewhere; host: uses elsewhere of weights owned here */
    ddp__guest *guest, *host;
    int guests, hosts;
    char **feed; /* [inputs x micro_batches] */
    int *input;  /* [inputs] their nodes */
    int inputs;
    int asked;              /* micro-batches of this step or evaluation */
    int received, finished; /* micro-batches whose activations are requested; whose last task has run */
    int evaluated;          /* the last micro-batch evaluated, or -1 for none */
    ddp__lanes lanes;
    double loss_sum;
    int losses;
    ddp__cut cut;      /* the stage's share of the model, for checkpoints */
    ddp__scratch room; /* memory of all lists, except the arrays of states */
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

/* The slower of two rates. 0 means no limit. */
static inline double ddp__slower(double a, double b) { return a > 0 && (!(b > 0) || a < b) ? a : b; }

/* edge.c
 * Lists the edges of this stage, or 0 for out of memory. */
DDP_LIB int ddp__edges_open(ddp_pipe *p);
/* Posts a message from or to a rank, with the arrays in p->piece. here: they are in host memory even if
 * layers are on a device. */
DDP_LIB ddp_status ddp__pipe_post(ddp_pipe *p, ddp_message *m, int peer, int here, long *ticket);
/* Waits for a ticket and sets it to -1. */
DDP_LIB ddp_status ddp__pipe_hold(ddp_pipe *p, long *ticket, int here);
/* Posts the sends or receives of the activations or gradients of micro-batch m. */
DDP_LIB ddp_status ddp__edges_post(ddp_pipe *p, ddp_verb verb, int m, int gradients);
/* Waits for the receives and decodes them. */
DDP_LIB ddp_status ddp__edges_hold(ddp_pipe *p, int m, int gradients);
/* Waits until all sends of micro-batch m's state are complete. */
DDP_LIB ddp_status ddp__edges_leave(ddp_pipe *p, int m);
/* 1 if they are complete. */
DDP_LIB int ddp__edges_have_left(const ddp_pipe *p, int m);

/* edge_wire.c
 * Lists in p->piece the edge's outputs in the state of micro-batch m, or their gradients. Returns how
 * many. */
DDP_LIB int ddp__hop_list(ddp_pipe *p, const ddp__hop *e, int m, int gradients);
/* Allocates the messages of compressed edges. Call after the states exist. */
DDP_LIB ddp_status ddp__wires_open(ddp_pipe *p, ddp_error *err);
/* Encodes the state into the message of micro-batch m (sends), or decodes it. */
DDP_LIB ddp_status ddp__flow_code(ddp_pipe *p, ddp__hop *e, int m, int gradients, int sends);
/* samples.c
 * Checks the settings of aq. Call before the edges' messages are allocated. */
DDP_LIB ddp_status ddp__samples_open(ddp_pipe *p, ddp_error *err);
/* Allocates the samples of a flow. 0 means that out of memory, which ddp__samples_memory reports. */
DDP_LIB int ddp__samples_keep(ddp_pipe *p, ddp__flow *l, size_t values);
DDP_LIB ddp_status ddp__samples_memory(const ddp_pipe *p, ddp_error *err);
/* Starts a step. All its samples must be named. */
DDP_LIB ddp_status ddp__samples_begin(ddp_pipe *p);
/* Size of the message of micro-batch m. */
DDP_LIB size_t ddp__samples_size(const ddp_pipe *p, const ddp__flow *l, int m);
/* Encodes or decodes n values, which follow `at` other values of the flow, and advances *message. */
DDP_LIB ddp_status ddp__samples_cross(ddp_pipe *p, const ddp__flow *l, int m, int sends, float *x, size_t n,
                                      size_t at, unsigned char **message, ddp_error *err);
/* Size of the encoded deltas of n values. */
DDP_LIB size_t ddp__change_bytes(int bits, size_t n);
/* Encodes n finite values. */
DDP_LIB void ddp__changes_code(const float *x, size_t n, int bits, unsigned char *out);
/* Decodes n deltas and adds them to `last`. */
DDP_LIB ddp_status ddp__changes_add(const unsigned char *in, size_t n, int bits, float *last, ddp_error *err);
/* edge_ratio.c: the ratio of each link for adatopk, [stages x stages] from row to column. Collective. */
DDP_LIB ddp_status ddp__edge_ratios(ddp_pipe *p, double *ratio, ddp_error *err);
/* bottleneck.c: inserts bottlenecks where *stage_of cuts the graph. *stage_of grows with the nodes. */
DDP_LIB ddp_status ddp__bottlenecks_add(ddp_graph *g, double ratio, int **stage_of, ddp_error *err);

/* tied.c: exchange of tied weights and their gradients */
DDP_LIB int ddp__tied_open(ddp_pipe *p);
/* Before the first forward of a step: receives the weights. */
DDP_LIB ddp_status ddp__guests_begin(ddp_pipe *p);
/* After the first forward of the owner's stage, whose hooks have completed the weight: sends it. */
DDP_LIB ddp_status ddp__hosts_begin(ddp_pipe *p, int trains);
/* After the last backward: sends the gradients. */
DDP_LIB ddp_status ddp__guests_end(ddp_pipe *p);
/* Waits until the weights are sent. */
DDP_LIB ddp_status ddp__hosts_leave(ddp_pipe *p);

/* lanes.c: measurement. ddp__lanes_open returns 0 if out of memory. ddp__lane_now takes a mark;
 * ddp__lane_task and ddp__lane_posted record the activity since a mark. */
DDP_LIB int ddp__lanes_open(ddp_pipe *p);
DDP_LIB void ddp__lanes_begin(ddp_pipe *p);
DDP_LIB void ddp__lanes_end(ddp_pipe *p);
DDP_LIB ddp__lane_mark ddp__lane_now(const ddp_pipe *p);
DDP_LIB void ddp__lane_task(ddp_pipe *p, ddp__lane_mark from, ddp_task_kind kind, int m);
DDP_LIB void ddp__lane_posted(ddp_pipe *p, ddp__lane_mark from, ddp_verb verb, int gradient, int m);

/* A rank's complete state before a step, from which a smaller world can resume; step -1: none. */
typedef struct ddp__kept_step {
    long step;
    unsigned char *bytes; /* the format in which a worker's state is sent to another worker */
    size_t size;
} ddp__kept_step;

/* kept: a step that all ranks have saved; next: the following step, if it is unknown whether all have; ends:
 * 1 = training has ended. */
typedef struct ddp__keeper {
    ddp__kept_step kept, next;
    int ends;
} ddp__keeper;

/* faults.c
 * Makes errors name ranks by stage and pipeline. */
DDP_LIB void ddp__pipe_names(const ddp_pipe *p);
/* Saves the state before a step, if ddp_launch_pipelines runs this pipeline. */
DDP_LIB ddp_status ddp__pipe_keep(ddp_pipe *p);
DDP_LIB void ddp__kept_free(ddp__kept_step *k);

/* word.c
 * Makes clipping use the norm over all stages. */
DDP_LIB void ddp__pipe_clips(ddp_pipe *p);
/* The number of parameters of a whole layer. */
DDP_LIB size_t ddp__whole_layer(const ddp_graph *g, int layer);
/* Sends bytes to a stage, receives them from it, or broadcasts them (DDP_BROADCAST). */
DDP_LIB ddp_status ddp__word_exchange(ddp_pipe *p, ddp_verb verb, int stage, void *bytes, size_t n);

/* shares.c: lists this stage's share of the model, or 0 for out of memory. */
DDP_LIB int ddp__shares_open(ddp_pipe *p);
