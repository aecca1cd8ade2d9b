/* A job: a model as FusionLLM's OP-DAG, cut over nodes, that a broker describes to each node in JSON. */
#ifndef DDP_PIPE_JOB_H
#define DDP_PIPE_JOB_H

#include "graph/graph.h"
#include "nn/optimizer.h"
#include "pipe/pipe.h"

#define DDP_JOB_VERSION 1
#define DDP_JOB_NAME    120 /* bytes of a name, its NUL included */

/* Table 2 of FusionLLM (arXiv:2410.12707). */
typedef enum ddp_job_type {
    DDP_JOB_PLACEHOLDER, /* the paper's word for an input: of each node that reads it; never sent, no gradient */
    DDP_JOB_VARIABLE,    /* a parameter that is nobody's output */
    DDP_JOB_PARAMETRIC, DDP_JOB_NON_PARAMETRIC, DDP_JOB_LOSS
} ddp_job_type;

/* Of one parametric operator; rate 0: the job's. */
typedef struct ddp_job_rule {
    char   name[16]; /* sgd, nesterov, adam or adamw; "": the job's */
    double lr, momentum, weight_decay; /* momentum: of sgd and nesterov */
} ddp_job_rule;

typedef struct ddp_job_op {
    char         name[DDP_JOB_NAME];
    char         op[DDP_JOB_NAME];    /* of its kernel, built in or registered on the node; "" of an input */
    char         layer[DDP_JOB_NAME]; /* "": outside layers */
    ddp_job_type type;
    int          args[DDP_OP_INPUTS], arg_count; /* whose outputs it takes, in order */
    int          tied;                /* whose parameter 0 it uses; -1: its own */
    double       attribute[DDP_OP_ARGS];
    ddp_dtype    dtype;
    ddp_shape    shape;               /* of its output; dims -1: as the kernel says */
    double       flops, backward_flops;
    int          params, buffers;     /* -1: as the kernel says */
    ddp_param    param[DDP_OP_PARAMS], buffer[DDP_OP_BUFFERS]; /* without names */
    int          node;                /* where it runs, 0..nodes-1; -1: not cut yet */
    int          requires_grad;       /* of a job that is cut: a parameter is at it or above it */
    ddp_job_rule rule;
    ddp_op       stand_in;            /* of a kernel that only other nodes need */
} ddp_job_op;

/* ddp_job_free: all-zero is fine. A job outlives the graphs that are built of it. */
typedef struct ddp_job {
    int          ops, nodes, node; /* node: whose description it is; -1: nobody's yet */
    int          loss;             /* operator */
    ddp_job_op  *op;               /* [ops] args before their users */
    long         steps;
    int          micro_batches;    /* of a step */
    uint64_t     seed;             /* of initial values, dropout and the order of the data */
    ddp_pipeline schedule;
    ddp_edge_wire edge;            /* of all messages; ddp_job_wire */
    ddp_job_rule rule;             /* of operators without their own */
} ddp_job;

/* A message between nodes: the record of section 3.4 of the paper. An output goes once to each node that uses it, from
 * one to the next; its gradients are added up on the way back. */
typedef struct ddp_op_data {
    int  op;            /* name; its users are op_users */
    int  user;          /* actual_op_user: the first of the operators, on the later node, that take it */
    int  from, to;      /* nodes */
    int  gradient;      /* 1: of the output, and goes back: "op-user" in Table 3 */
    int  is_loss, require_grad;
    long local_iter;
    int  micro_batch;   /* in a description: how many there are */
    ddp_edge_wire compress_cfg; /* of adatopk: what the ratio of each link is made of, once the nodes have met */
} ddp_op_data;

/* ddp_job_of_graph - the operators of g, which nobody has cut yet; g may be on paper. Steps, rule and seed are the
 *   caller's to fill. loss: a node of g.
 * ddp_job_build - its operators, one node of the graph each, into g, which is empty but for registered operators; *loss as
 *   for ddp_pipe_open. Shapes, costs and parameters that the job leaves open are filled. A kernel that g does not know is
 *   an error where j->node runs it; elsewhere what the job says of it will do.
 * ddp_job_cut - operator i to node node_of[i], which for inputs is not read.
 * ddp_job_wire - how messages travel, as for ddp_edge_wire_parse; not bottleneck:R, which puts operators where the cut is.
 * ddp_job_stages - the same as ddp_pipe_config.stage_of asks for it, [ops].
 * ddp_job_user - the first operator on `node` that takes the output of operator i; -1: none does.
 * ddp_job_messages - what `node` sends and receives in one micro-batch, up to room; how many there are. Gradients of
 *   several uses that go back apart (docs/pipeline.md) are one entry, as those that are added up on the way.
 * Errors: DDP_ARG, DDP_UNSUPPORTED (a kernel that is not here), DDP_MEMORY; each names the operator. */
DDP_API ddp_status ddp_job_of_graph(const ddp_graph *g, const ddp_node *loss, ddp_job *out, ddp_error *err);
DDP_API ddp_status ddp_job_build(ddp_job *j, ddp_graph *g, ddp_node **loss, ddp_error *err);
DDP_API ddp_status ddp_job_cut(ddp_job *j, const int *node_of, int nodes, ddp_error *err);
DDP_API ddp_status ddp_job_wire(ddp_job *j, const char *text, ddp_error *err);
DDP_API void       ddp_job_stages(const ddp_job *j, int *stage_of);
DDP_API int        ddp_job_user(const ddp_job *j, int i, int node);
DDP_API int        ddp_job_messages(const ddp_job *j, int node, ddp_op_data *out, int room);
DDP_API void       ddp_job_free(ddp_job *j);

/* ddp_job_read - of n bytes of JSON; name is for errors. *out is untouched on error.
 * ddp_job_text - the description of `node` (-1: of the whole job): versioned JSON, with what the node sends and requires.
 *   Freed by ddp_job_text_free; NULL: out of memory.
 * Errors: DDP_FORMAT (names the place, or the operator and the value; another version; a hash that does not fit),
 * DDP_MEMORY. */
DDP_API ddp_status ddp_job_read(const char *name, const char *text, size_t n, ddp_job *out, ddp_error *err);
DDP_API char      *ddp_job_text(const ddp_job *j, int node);
DDP_API void       ddp_job_text_free(char *text);

/* What one node trains of a job: an optimizer for each operator, and the operators' state by themselves, so that another
 * cut can take them over.
 *
 * ddp_job_open - g: built of j. first: the step at which training goes on. NULL: *err. Freed by ddp_job_close, behind
 *   ddp_close.
 * ddp_job_optimizer - for ddp_set_optimizer; its rate is 1.
 * ddp_job_floats - of operator i here: parameters, buffers and the state of its optimizer; 0: none here. Without state
 *   (`bare`) it is what a file of weights holds.
 * ddp_job_get, ddp_job_put - them, [ddp_job_floats]. put before the first step, of floats or of bare ones; get between
 *   steps, after the first one. Return 0 or a ddp_status. */
typedef struct ddp_job_part ddp_job_part;
DDP_API ddp_job_part *ddp_job_open(const ddp_job *j, ddp_graph *g, long first, ddp_error *err);
DDP_API void          ddp_job_close(ddp_job_part *p);
DDP_API ddp_optimizer ddp_job_optimizer(ddp_job_part *p);
DDP_API size_t        ddp_job_floats(const ddp_job_part *p, int op, int bare);
DDP_API int           ddp_job_get(ddp_job_part *p, int op, int bare, float *out);
DDP_API int           ddp_job_put(ddp_job_part *p, int op, const float *from, size_t floats);

#endif /* DDP_PIPE_JOB_H */
