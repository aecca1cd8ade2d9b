/* A job: a model as an OP-DAG (FusionLLM), partitioned over nodes. A broker sends each node a description in
 * JSON. Include it after dreamddp.h with its implementation: it uses private functions, because no public
 * function returns all properties of an operator. */
#ifndef EXAMPLES_BROKER_JOB_H
#define EXAMPLES_BROKER_JOB_H

enum { JOB_VERSION = 1, JOB_NAME = 120 }; /* JOB_NAME: capacity of a name in bytes, with its NUL */

/* Table 2 of FusionLLM (arXiv:2410.12707). */
typedef enum job_type {
    JOB_PLACEHOLDER, /* an input: stored on each node that reads it. It is never sent and has no gradient */
    JOB_VARIABLE,    /* a parameter that is not an output */
    JOB_PARAMETRIC,
    JOB_NON_PARAMETRIC,
    JOB_LOSS
} job_type;

/* The optimizer of one parametric operator. Rate 0 means the optimizer of the job. */
typedef struct job_rule {
    char name[16];                     /* sgd, nesterov, adam or adamw, or "" for the job's rule */
    double lr, momentum, weight_decay; /* momentum: for sgd and nesterov */
} job_rule;

typedef struct job_op {
    char name[JOB_NAME];
    char op[JOB_NAME];    /* its kernel, built in or registered on the node, or "" for an input */
    char layer[JOB_NAME]; /* "": in no layer */
    job_type type;
    int args[DDP_OP_INPUTS], arg_count; /* operators whose outputs it takes, in order */
    int tied;                           /* operator whose parameter 0 it shares, or -1 */
    double attribute[DDP_OP_ARGS];
    ddp_dtype dtype;
    ddp_shape shape; /* shape of the output. If dims is -1, the kernel determines it */
    double flops, backward_flops;
    int params, buffers;                                    /* -1 if the kernel determines it */
    ddp_param param[DDP_OP_PARAMS], buffer[DDP_OP_BUFFERS]; /* without names */
    int node;                                               /* node that runs it, 0..nodes-1, or -1 if not
                                                               assigned yet */
    int requires_grad; /* of a partitioned job: it has parameters, or depends on an operator that has */
    job_rule rule;
    ddp_op stand_in; /* its kernel is needed only on other nodes */
} job_op;

/* A job. It must outlive the graphs that are built from it. */
typedef struct job {
    int ops, nodes, node; /* node: the node that it describes, or -1 if not known yet */
    int loss;             /* operator */
    job_op *op;           /* [ops] arguments before their users */
    long steps;
    int micro_batches; /* micro-batches per step */
    uint64_t seed;     /* seed of initial values, dropout and data order */
    ddp_pipeline schedule;
    ddp_edge_wire edge; /* coding of all messages, set by job_wire */
    job_rule rule;      /* optimizer of operators without their own */
} job;

/* A message between nodes (FusionLLM, section 3.4). An output is forwarded from node to node, once to each
 * node that uses it. Its gradients are summed on the way back. */
typedef struct job_message {
    int op;       /* name. Its users are op_users. */
    int user;     /* actual_op_user: the first operator on the receiving node that takes it */
    int from, to; /* nodes */
    int gradient; /* 1 for the gradient of the output, sent backwards ("op-user" in Table 3) */
    int is_loss, require_grad;
    long local_iter;
    int micro_batch;            /* number of bytes in a description */
    ddp_edge_wire compress_cfg; /* adatopk: inputs of the ratio of each link, known after the nodes have
                                 * connected */
} job_message;

/* ---- a variable: a parameter that is an output, with the dimensions as attributes ---- */

static ddp_status job_variable_shape(ddp_op_spec *s, ddp_error *err)
{
    while (s->out.dims < 4 && s->arg[s->out.dims] >= 1 && s->arg[s->out.dims] <= 1e9) {
        s->out.dim[s->out.dims] = (long)s->arg[s->out.dims];
        s->out.dims++;
    }
    if (s->inputs || !s->out.dims || s->arg[s->out.dims] != 0)
        return ddp__fail(err, DDP_ARG,
                         "variable: no inputs, and as attributes one to four dimensions of at least 1");
    s->params = 1;
    s->param[0].name = "weight";
    s->param[0].shape = s->out;
    s->param[0].init = DDP_INIT_NORMAL;
    s->param[0].scale = 1;
    return DDP_OK;
}

static void job_variable_forward(const ddp_op_call *c)
{
    memcpy(c->out, c->param[0], (size_t)ddp_shape_count(&c->spec->out) * sizeof(float));
}

static void job_variable_backward(const ddp_op_call *c)
{
    const long n = ddp_shape_count(&c->spec->out);

    for (long i = 0; c->grad_param[0] && i < n; i++)
        ((float *)c->grad_param[0])[i] += ((const float *)c->grad_out)[i];
}

static const ddp_op job_variable = {"variable", job_variable_shape, job_variable_forward,
                                    job_variable_backward};

/* ---- from a graph ---- */

/* Fills the properties that the kernel determines. */
static void job_fill(job_op *o, const ddp_node *n, int is_loss)
{
    o->type = !n->op                   ? JOB_PLACEHOLDER
              : is_loss                ? JOB_LOSS
              : n->op == &job_variable ? JOB_VARIABLE
              : n->spec.params         ? JOB_PARAMETRIC
                                       : JOB_NON_PARAMETRIC;
    o->dtype = n->type;
    o->shape = n->spec.out;
    o->flops = n->spec.flops;
    o->backward_flops = n->spec.backward_flops;
    o->params = n->spec.params;
    o->buffers = n->spec.buffers;
    memcpy(o->param, n->spec.param, sizeof o->param);
    memcpy(o->buffer, n->spec.buffer, sizeof o->buffer);
}

/* Fills a job with the operators of g, without a partition. g may be a graph without memory (ddp_paper). The
 * caller sets steps, optimizer and seed. loss: a node of g. */
static inline ddp_status job_of_graph(const ddp_graph *g, const ddp_node *loss, job *out, ddp_error *err)
{
    ddp_oplist list;
    job j;
    int at = 0;

    memset(&j, 0, sizeof j);
    if (!g || !out || !loss || loss->graph != g)
        return ddp__fail(err, DDP_ARG, "job_of_graph: a graph, its loss and a job are needed");
    DDP__TRY(ddp_graph_oplist(g, &list, err));
    j.op = (job_op *)calloc((size_t)ddp__count(g->node), sizeof *j.op);
    if (!j.op) ddp_oplist_free(&list);
    if (!j.op)
        return ddp__fail(err, DDP_MEMORY, "out of memory for a job of %d operators", ddp__count(g->node));
    j.ops = ddp__count(g->node);
    j.loss = loss->index;
    j.node = -1;
    j.steps = j.micro_batches = 1;
    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_node *n = g->node[i];
        job_op *o = &j.op[i];
        snprintf(o->name, sizeof o->name, "%s", n->op ? list.op[at++].name : n->name);
        snprintf(o->op, sizeof o->op, "%s", n->op ? n->op->name : "");
        snprintf(o->layer, sizeof o->layer, "%s", n->layer >= 0 ? g->layer[n->layer].name : "");
        o->arg_count = n->spec.inputs;
        for (int k = 0; k < o->arg_count; k++) o->args[k] = n->input[k];
        o->tied = n->tied;
        o->node = -1;
        memcpy(o->attribute, n->spec.arg, sizeof o->attribute);
        job_fill(o, n, i == j.loss);
    }
    ddp_oplist_free(&list);
    *out = j;
    return DDP_OK;
}

/* j may be all zero. */
static void job_free(job *j)
{
    if (!j) return;
    free(j->op);
    memset(j, 0, sizeof *j);
}

/* ---- to a graph ---- */

/* A kernel that this node does not have. job_stand_in takes its properties from the job. */
static ddp_status job_elsewhere_shape(ddp_op_spec *s, ddp_error *err)
{
    (void)s;
    (void)err;
    return DDP_OK;
}

static void job_elsewhere(const ddp_op_call *c) { (void)c; }

/* Finds the kernel by name. A kernel that only other nodes run may be missing. */
static ddp_status job_kernel(job *j, ddp_graph *g, job_op *o, ddp_error *err)
{
    const ddp_op *known = ddp__op_find(g, o->op);

    if (!known && !strcmp(o->op, job_variable.name)) {
        known = &job_variable;
        ddp_register_op(g, known);
    }
    if (known && known->shape != job_elsewhere_shape) return DDP_OK;
    if ((j->node >= 0 && o->node == j->node) || o->shape.dims < 0 || o->params < 0)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "operator %s is of kind %s, which this program does not know: register it "
                         "by that name with ddp_register_op (examples/compnode/compnode.c shows how)",
                         o->name, o->op);
    o->stand_in.name = o->op;
    o->stand_in.shape = job_elsewhere_shape;
    o->stand_in.forward = o->stand_in.backward = job_elsewhere;
    return known ? DDP_OK : (ddp_status)ddp_register_op(g, &o->stand_in);
}

static void job_stand_in(ddp_graph *g, ddp_node *n, const job_op *o)
{
    n->spec.out = o->shape;
    n->spec.flops = o->flops;
    n->spec.backward_flops = o->backward_flops;
    n->spec.params = o->params;
    n->spec.buffers = o->buffers;
    memcpy(n->spec.param, o->param, sizeof n->spec.param);
    memcpy(n->spec.buffer, o->buffer, sizeof n->spec.buffer);
    n->has_gradient |= o->params > 0;
    ddp__layer_add(g, n);
}

/* Checks shapes against the job, and sets the initial values of the job. */
static ddp_status job_agree(ddp_graph *g, ddp_node *n, const job_op *o, ddp_error *err)
{
    int same = o->params < 0 || o->params == n->spec.params;

    if (o->shape.dims >= 0 && !ddp__shape_equal(&o->shape, &n->spec.out))
        return ddp__fail(err, DDP_MISMATCH,
                         "operator %s: its shape in the job differs from that of kernel %s", o->name, o->op);
    for (int k = 0; same && k < o->params; k++) {
        same = ddp__shape_equal(&o->param[k].shape, &n->spec.param[k].shape);
        n->spec.param[k].init = o->param[k].init;
        ddp_init_scale(g, n, k, o->param[k].scale);
    }
    if (!same)
        return ddp__fail(err, DDP_MISMATCH, "operator %s: the job has other parameters than its kernel %s",
                         o->name, o->op);
    return DDP_OK;
}

/* The operators of a layer must be contiguous. */
static ddp_status job_layer(job *j, ddp_graph *g, const job_op *o, ddp_error *err)
{
    const char *open = g->open_layer >= 0 ? g->layer[g->open_layer].name : "";

    if (!strcmp(open, o->layer)) return DDP_OK;
    if (*open) ddp_layer_end(g);
    if (*o->layer) ddp_layer_begin(g, o->layer);
    if (*o->layer && g->open_layer >= 0 && strcmp(g->layer[g->open_layer].name, o->layer))
        return ddp__fail(err, DDP_ARG,
                         "operator %s returns to layer %s: the operators of a layer must be contiguous",
                         j->op[o - j->op].name, o->layer);
    return g->error.code ? ddp__fail(err, g->error.code, "%s", g->error.msg) : DDP_OK;
}

static ddp_status job_node(job *j, ddp_graph *g, int i, ddp_error *err)
{
    job_op *o = &j->op[i];
    ddp_node *args[DDP_OP_INPUTS], *n;

    if (o->type == JOB_PLACEHOLDER) {
        n = ddp_input_shape(g, o->name, o->dtype, &o->shape);
    } else {
        DDP__TRY(job_layer(j, g, o, err));
        DDP__TRY(job_kernel(j, g, o, err));
        for (int k = 0; k < o->arg_count; k++) args[k] = g->node[o->args[k]];
        n = ddp_apply(g, o->op, o->arg_count, args, DDP_OP_ARGS, o->attribute,
                      o->tied >= 0 ? g->node[o->tied] : NULL);
    }
    if (!n) return ddp__fail(err, g->error.code, "operator %.60s: %.400s", o->name, g->error.msg);
    if (n->op && n->op->shape == job_elsewhere_shape) {
        job_stand_in(g, n, o);
        return DDP_OK;
    }
    if (n->op) DDP__TRY(job_agree(g, n, o, err));
    job_fill(o, n, i == j->loss);
    return DDP_OK;
}

/* Adds the operators of the job to g, one graph node each. g must be empty except for registered operators.
 * *loss: as for ddp_pipe_open. Fills shapes, costs and parameters that the job does not state. A kernel that
 * g does not have is an error if j->node runs it. Otherwise the properties in the job suffice. */
static ddp_status job_build(job *j, ddp_graph *g, ddp_node **loss, ddp_error *err)
{
    if (!j || !g || !loss || !j->ops)
        return ddp__fail(err, DDP_ARG, "job_build: a job, a graph and a loss are needed");
    if (ddp__count(g->node) || g->built)
        return ddp__fail(err, DDP_USAGE, "job_build: the graph has operators already");
    for (int i = 0; i < j->ops; i++) DDP__TRY(job_node(j, g, i, err));
    if (g->open_layer >= 0) ddp_layer_end(g);
    if (g->error.code) return ddp__fail(err, g->error.code, "%s", g->error.msg);
    *loss = g->node[j->loss];
    return DDP_OK;
}

/* ---- the cut ---- */

/* Assigns operator i to node node_of[i], which is not read for inputs. */
static inline ddp_status job_cut(job *j, const int *node_of, int nodes, ddp_error *err)
{
    if (!j || !node_of || nodes < 1)
        return ddp__fail(err, DDP_ARG, "job_cut: a job, a list and nodes are needed");
    for (int i = 0; i < j->ops; i++)
        if (j->op[i].type != JOB_PLACEHOLDER && (node_of[i] < 0 || node_of[i] >= nodes))
            return ddp__fail(err, DDP_ARG, "the cut assigns operator %s to node %d; nodes are 0..%d",
                             j->op[i].name, node_of[i], nodes - 1);
    j->nodes = nodes;
    for (int i = 0; i < j->ops; i++) {
        job_op *o = &j->op[i];
        o->requires_grad = o->type == JOB_PARAMETRIC || o->type == JOB_VARIABLE;
        for (int k = 0; k < o->arg_count; k++) o->requires_grad |= j->op[o->args[k]].requires_grad;
    }
    for (int i = j->ops - 1; i >= 0; i--) {
        job_op *o = &j->op[i];
        if (o->type != JOB_PLACEHOLDER) o->node = node_of[i];
        for (int k = 0; k < o->arg_count; k++) /* an input is on the node of its first user */
            if (j->op[o->args[k]].type == JOB_PLACEHOLDER) j->op[o->args[k]].node = o->node;
    }
    return DDP_OK;
}

/* Sets the coding of messages, as for ddp_edge_wire_parse. Rejects bottleneck:R, which adds operators at the
 * cut, and aq:BITS, which needs sample ids. */
static inline ddp_status job_wire(job *j, const char *text, ddp_error *err)
{
    ddp_edge_wire w;

    memset(&w, 0, sizeof w);
    DDP__TRY(ddp_edge_wire_parse(text, &w, err));
    if (w.coding == DDP_EDGE_BOTTLENECK)
        return ddp__fail(
            err, DDP_ARG,
            "edge wire %.60s adds operators at the cut, and a job lists its operators before it "
            "is cut: choose f32, bf16, int8, topk:R or adatopk:R, or a model with its own ddp_bottleneck",
            text);
    if (w.coding == DDP_EDGE_AQ)
        return ddp__fail(err, DDP_ARG,
                         "edge wire %.60s stores values of each sample, and a job has no sample ids: choose "
                         "f32, bf16, int8, topk:R or adatopk:R",
                         text);
    j->edge = w;
    return DDP_OK;
}

/* Writes the nodes in the form of ddp_pipe_config.stage_of, [ops]. */
static inline void job_stages(const job *j, int *stage_of)
{
    for (int i = 0; i < j->ops; i++) stage_of[i] = j->op[i].node;
}

/* Returns the first operator on `node` that takes the output of operator i, or -1. */
static int job_user(const job *j, int i, int node)
{
    for (int u = i + 1; u < j->ops; u++)
        for (int k = 0; j->op[u].node == node && k < j->op[u].arg_count; k++)
            if (j->op[u].args[k] == i) return u;
    return -1;
}

/* Lists the messages that `node` sends and receives in one micro-batch, at most room. Returns their number.
 * The gradients of several uses of an output are one entry, also if they are sent separately
 * (docs/howto/pipeline.md). */
static int job_messages(const job *j, int node, job_message *out, int room)
{
    int n = 0;

    for (int i = 0; i < j->ops; i++) {
        int from = j->op[i].node;
        if (j->op[i].type == JOB_PLACEHOLDER) continue;
        for (int to = from + 1; to < j->nodes; to++) {
            const int user = job_user(j, i, to), grad = j->op[i].requires_grad;
            for (int back = 0; user >= 0 && (from == node || to == node) && back <= grad; back++, n++) {
                const job_message m = {i,    user, back ? to : from, back ? from : to, back, i == j->loss,
                                       grad, 0,    j->micro_batches, j->edge};
                if (n < room) out[n] = m;
            }
            if (user >= 0) from = to;
        }
    }
    return n;
}

#endif /* EXAMPLES_BROKER_JOB_H */
