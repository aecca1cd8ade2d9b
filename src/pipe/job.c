/* Jobs: from a graph, to a graph, cut over nodes, and what then travels between them. */
#include "graph/graph_internal.h"
#include "pipe/job.h"
#include "plan/workload.h"

/* ---- a variable: a parameter that is an output; its attributes are the dimensions ---- */

static ddp_status ddp__variable_shape(ddp_op_spec *s, ddp_error *err)
{
    while (s->out.dims < 4 && s->arg[s->out.dims] >= 1 && s->arg[s->out.dims] <= 1e9) {
        s->out.dim[s->out.dims] = (long)s->arg[s->out.dims];
        s->out.dims++;
    }
    if (s->inputs || !s->out.dims || s->arg[s->out.dims] != 0)
        return ddp__fail(err, DDP_ARG, "variable: no inputs, and as attributes one to four dimensions of at least 1");
    s->params = 1;
    s->param[0].name = "weight";
    s->param[0].shape = s->out;
    s->param[0].init = DDP_INIT_NORMAL;
    s->param[0].scale = 1;
    return DDP_OK;
}

static void ddp__variable_forward(const ddp_op_call *c)
{
    memcpy(c->out, c->param[0], (size_t)ddp_shape_count(&c->spec->out) * sizeof(float));
}

static void ddp__variable_backward(const ddp_op_call *c)
{
    const long n = ddp_shape_count(&c->spec->out);

    for (long i = 0; c->grad_param[0] && i < n; i++) ((float *)c->grad_param[0])[i] += ((const float *)c->grad_out)[i];
}

static const ddp_op ddp__variable = {"variable", ddp__variable_shape, ddp__variable_forward, ddp__variable_backward};

/* ---- from a graph ---- */

/* What the kernel says of the operator. */
static void ddp__job_fill(ddp_job_op *o, const ddp_node *n, int is_loss)
{
    o->type = !n->op ? DDP_JOB_PLACEHOLDER : is_loss ? DDP_JOB_LOSS : n->op == &ddp__variable ? DDP_JOB_VARIABLE
              : n->spec.params ? DDP_JOB_PARAMETRIC : DDP_JOB_NON_PARAMETRIC;
    o->dtype = n->type;
    o->shape = n->spec.out;
    o->flops = n->spec.flops;
    o->backward_flops = n->spec.backward_flops;
    o->params = n->spec.params;
    o->buffers = n->spec.buffers;
    memcpy(o->param, n->spec.param, sizeof o->param);
    memcpy(o->buffer, n->spec.buffer, sizeof o->buffer);
}

ddp_status ddp_job_of_graph(const ddp_graph *g, const ddp_node *loss, ddp_job *out, ddp_error *err)
{
    ddp_oplist list;
    ddp_job j;
    int at = 0;

    memset(&j, 0, sizeof j);
    if (!g || !out || !loss || loss->graph != g)
        return ddp__fail(err, DDP_ARG, "ddp_job_of_graph: a graph, its loss and a job are needed");
    DDP__TRY(ddp_graph_oplist(g, &list, err));
    j.op = (ddp_job_op *)ddp__calloc((size_t)g->nodes, sizeof *j.op);
    if (!j.op) ddp_oplist_free(&list);
    if (!j.op) return ddp__fail(err, DDP_MEMORY, "out of memory for a job of %d operators", g->nodes);
    j.ops = g->nodes;
    j.loss = loss->index;
    j.node = -1;
    j.steps = j.micro_batches = 1;
    for (int i = 0; i < g->nodes; i++) {
        const ddp_node *n = g->node[i];
        ddp_job_op *o = &j.op[i];
        snprintf(o->name, sizeof o->name, "%s", n->op ? list.op[at++].name : n->name);
        snprintf(o->op, sizeof o->op, "%s", n->op ? n->op->name : "");
        snprintf(o->layer, sizeof o->layer, "%s", n->layer >= 0 ? g->layer[n->layer].name : "");
        o->arg_count = n->spec.inputs;
        for (int k = 0; k < o->arg_count; k++) o->args[k] = n->input[k];
        o->tied = n->tied;
        o->node = -1;
        memcpy(o->attribute, n->spec.arg, sizeof o->attribute);
        ddp__job_fill(o, n, i == j.loss);
    }
    ddp_oplist_free(&list);
    *out = j;
    return DDP_OK;
}

void ddp_job_free(ddp_job *j)
{
    if (!j) return;
    if (j->op) DDP_FREE(j->op);
    memset(j, 0, sizeof *j);
}

/* ---- to a graph ---- */

/* Of a kernel that this node does not have: the job says the rest, ddp__job_stand_in. */
static ddp_status ddp__elsewhere_shape(ddp_op_spec *s, ddp_error *err)
{
    (void)s, (void)err;
    return DDP_OK;
}

static void ddp__elsewhere(const ddp_op_call *c) { (void)c; }

/* The kernel by name; one that only others run may be missing. */
static ddp_status ddp__job_kernel(ddp_job *j, ddp_graph *g, ddp_job_op *o, ddp_error *err)
{
    const ddp_op *known = ddp__op_find(g, o->op);

    if (!known && !strcmp(o->op, ddp__variable.name)) known = &ddp__variable, ddp_register_op(g, known);
    if (known && known->shape != ddp__elsewhere_shape) return DDP_OK;
    if ((j->node >= 0 && o->node == j->node) || o->shape.dims < 0 || o->params < 0)
        return ddp__fail(err, DDP_UNSUPPORTED, "operator %s is of kind %s, which this program does not know: register it "
                         "by that name with ddp_register_op (examples/compnode/compnode.c shows how)", o->name, o->op);
    o->stand_in.name = o->op;
    o->stand_in.shape = ddp__elsewhere_shape;
    o->stand_in.forward = o->stand_in.backward = ddp__elsewhere;
    return known ? DDP_OK : (ddp_status)ddp_register_op(g, &o->stand_in);
}

static void ddp__job_stand_in(ddp_graph *g, ddp_node *n, const ddp_job_op *o)
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

/* What the job says of shapes holds, and initial values start as it says. */
static ddp_status ddp__job_agree(ddp_graph *g, ddp_node *n, const ddp_job_op *o, ddp_error *err)
{
    int same = o->params < 0 || o->params == n->spec.params;

    if (o->shape.dims >= 0 && !ddp__shape_equal(&o->shape, &n->spec.out))
        return ddp__fail(err, DDP_MISMATCH, "operator %s: the job says another shape than its kernel %s makes", o->name, o->op);
    for (int k = 0; same && k < o->params; k++) {
        same = ddp__shape_equal(&o->param[k].shape, &n->spec.param[k].shape);
        n->spec.param[k].init = o->param[k].init;
        ddp_init_scale(g, n, k, o->param[k].scale);
    }
    if (!same)
        return ddp__fail(err, DDP_MISMATCH, "operator %s: the job says other parameters than its kernel %s has", o->name, o->op);
    return DDP_OK;
}

/* Operators of a layer follow each other. */
static ddp_status ddp__job_layer(ddp_job *j, ddp_graph *g, const ddp_job_op *o, ddp_error *err)
{
    const char *open = g->open_layer >= 0 ? g->layer[g->open_layer].name : "";

    if (!strcmp(open, o->layer)) return DDP_OK;
    if (*open) ddp_layer_end(g);
    if (*o->layer) ddp_layer_begin(g, o->layer);
    if (*o->layer && g->open_layer >= 0 && strcmp(g->layer[g->open_layer].name, o->layer))
        return ddp__fail(err, DDP_ARG, "operator %s comes back to layer %s: operators of a layer follow each other",
                         j->op[o - j->op].name, o->layer);
    return g->error.code ? ddp__fail(err, g->error.code, "%s", g->error.msg) : DDP_OK;
}

static ddp_status ddp__job_node(ddp_job *j, ddp_graph *g, int i, ddp_error *err)
{
    ddp_job_op *o = &j->op[i];
    ddp_node *args[DDP_OP_INPUTS], *n;

    if (o->type == DDP_JOB_PLACEHOLDER) {
        n = ddp_input_shape(g, o->name, o->dtype, &o->shape);
    } else {
        DDP__TRY(ddp__job_layer(j, g, o, err));
        DDP__TRY(ddp__job_kernel(j, g, o, err));
        for (int k = 0; k < o->arg_count; k++) args[k] = g->node[o->args[k]];
        n = ddp_apply(g, o->op, o->arg_count, args, DDP_OP_ARGS, o->attribute, o->tied >= 0 ? g->node[o->tied] : NULL);
    }
    if (!n) return ddp__fail(err, g->error.code, "operator %.60s: %.400s", o->name, g->error.msg);
    if (n->op && n->op->shape == ddp__elsewhere_shape) {
        ddp__job_stand_in(g, n, o);
        return DDP_OK;
    }
    if (n->op) DDP__TRY(ddp__job_agree(g, n, o, err));
    ddp__job_fill(o, n, i == j->loss);
    return DDP_OK;
}

ddp_status ddp_job_build(ddp_job *j, ddp_graph *g, ddp_node **loss, ddp_error *err)
{
    if (!j || !g || !loss || !j->ops) return ddp__fail(err, DDP_ARG, "ddp_job_build: a job, a graph and a loss are needed");
    if (g->nodes || g->built) return ddp__fail(err, DDP_USAGE, "ddp_job_build: the graph has operators already");
    for (int i = 0; i < j->ops; i++) DDP__TRY(ddp__job_node(j, g, i, err));
    if (g->open_layer >= 0) ddp_layer_end(g);
    if (g->error.code) return ddp__fail(err, g->error.code, "%s", g->error.msg);
    *loss = g->node[j->loss];
    return DDP_OK;
}

/* ---- the cut ---- */

ddp_status ddp_job_cut(ddp_job *j, const int *node_of, int nodes, ddp_error *err)
{
    if (!j || !node_of || nodes < 1) return ddp__fail(err, DDP_ARG, "ddp_job_cut: a job, a list and nodes are needed");
    for (int i = 0; i < j->ops; i++)
        if (j->op[i].type != DDP_JOB_PLACEHOLDER && (node_of[i] < 0 || node_of[i] >= nodes))
            return ddp__fail(err, DDP_ARG, "the cut puts operator %s on node %d, nodes are 0..%d", j->op[i].name, node_of[i],
                             nodes - 1);
    j->nodes = nodes;
    for (int i = 0; i < j->ops; i++) {
        ddp_job_op *o = &j->op[i];
        o->requires_grad = o->type == DDP_JOB_PARAMETRIC || o->type == DDP_JOB_VARIABLE;
        for (int k = 0; k < o->arg_count; k++) o->requires_grad |= j->op[o->args[k]].requires_grad;
    }
    for (int i = j->ops - 1; i >= 0; i--) {
        ddp_job_op *o = &j->op[i];
        if (o->type != DDP_JOB_PLACEHOLDER) o->node = node_of[i];
        for (int k = 0; k < o->arg_count; k++) /* an input is where its first user is */
            if (j->op[o->args[k]].type == DDP_JOB_PLACEHOLDER) j->op[o->args[k]].node = o->node;
    }
    return DDP_OK;
}

ddp_status ddp_job_wire(ddp_job *j, const char *text, ddp_error *err)
{
    ddp_edge_wire w;

    memset(&w, 0, sizeof w);
    DDP__TRY(ddp_edge_wire_parse(text, &w, err));
    if (w.coding == DDP_EDGE_BOTTLENECK)
        return ddp__fail(err, DDP_ARG, "edge wire %.60s puts operators where the cut is, and a job lists its operators before it "
                         "is cut: choose f32, bf16, int8, topk:R or adatopk:R, or a model with its own ddp_bottleneck", text);
    if (w.coding == DDP_EDGE_AQ)
        return ddp__fail(err, DDP_ARG, "edge wire %.60s keeps what each sample was, and a job does not name its samples: choose "
                         "f32, bf16, int8, topk:R or adatopk:R", text);
    j->edge = w;
    return DDP_OK;
}

void ddp_job_stages(const ddp_job *j, int *stage_of)
{
    for (int i = 0; i < j->ops; i++) stage_of[i] = j->op[i].node;
}

int ddp_job_user(const ddp_job *j, int i, int node)
{
    for (int u = i + 1; u < j->ops; u++)
        for (int k = 0; j->op[u].node == node && k < j->op[u].arg_count; k++)
            if (j->op[u].args[k] == i) return u;
    return -1;
}

int ddp_job_messages(const ddp_job *j, int node, ddp_op_data *out, int room)
{
    int n = 0;

    for (int i = 0; i < j->ops; i++) {
        int from = j->op[i].node;
        if (j->op[i].type == DDP_JOB_PLACEHOLDER) continue;
        for (int to = from + 1; to < j->nodes; to++) {
            const int user = ddp_job_user(j, i, to), grad = j->op[i].requires_grad;
            for (int back = 0; user >= 0 && (from == node || to == node) && back <= grad; back++, n++) {
                const ddp_op_data m = {i, user, back ? to : from, back ? from : to, back, i == j->loss, grad, 0,
                                       j->micro_batches, j->edge};
                if (n < room) out[n] = m;
            }
            if (user >= 0) from = to;
        }
    }
    return n;
}
