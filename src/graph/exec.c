/* Runs forward and backward of a micro-batch over the graph, its stage, or a range of operators, and
 * manages its activations and gradients. */
#include "graph/graph_internal.h"

/* ---- states ---- */

/* The array at an offset, or NULL if it does not exist. */
static void *ddp__state_at(const ddp_state *s, size_t offset)
{
    if (offset == DDP__NOWHERE) return NULL;
    return s->arena[offset >> DDP__ARENA_SHIFT] + (offset & (((size_t)1 << DDP__ARENA_SHIFT) - 1));
}

void *ddp__part_at(const ddp_state *s, const ddp_node *n, int part)
{
    return (char *)ddp__state_at(s, s->layout->gradient[n->index]) + (size_t)(1 + part) * ddp__part_stride(n);
}

ddp_state *ddp__state_open(ddp_graph *g, const ddp__layout *layout)
{
    const size_t bytes = layout->bytes[DDP__ARENA_OWN];
    ddp_state *s = (ddp_state *)ddp__calloc(1, sizeof *s);

    if (!s) return NULL;
    s->graph = g;
    s->layout = layout;
    s->pass = g->states_made++ << 32; /* each state counts its passes from a different number */
    s->written = (unsigned char *)ddp__calloc((size_t)ddp__count(g->node), 1);
    if (bytes) s->arena[DDP__ARENA_OWN] = (char *)ddp__host_alloc(g->host, bytes);
    if (s->written && (s->arena[DDP__ARENA_OWN] || !bytes)) return s;
    ddp_state_free(s);
    return NULL;
}

/* Sets the only element of node n's output or gradient to 1. */
static void ddp__node_one(const ddp_node *n, void *at)
{
    const ddp_backend *b = ddp__graph_backend(n->graph);
    const float one = 1;

    if (!b)
        *(float *)at = one;
    else if (n->spec.out.dims == 0 || n->graph->element == 4)
        b->fill(n->graph->host->device, (float *)at, 1, one);
    else
        b->upload_elements(n->graph->host->device, at, &one, &n->spec.out);
}

ddp_state *ddp_state_new(ddp_graph *g)
{
    const ddp_allocator *a = g ? ddp__graph_allocator(g) : NULL;
    const int own = g && ddp__graph_backend(g); /* a device reports missing memory itself */
    const double total = own || (a && a->alloc) ? 0 : ddp__memory_total();
    ddp_state *s;

    if (!g || !g->built || (total > 0 && (double)g->plain.bytes[DDP__ARENA_OWN] > total)) return NULL;
    s = ddp__state_open(g, &g->plain);
    if (!s || g->stages) return s;

    /* written marks outputs with users. A scalar without users is a loss, whose gradient is 1. */
    for (int i = 0; i < ddp__count(g->node); i++)
        for (int k = 0; k < g->node[i]->spec.inputs; k++) s->written[g->node[i]->input[k]] = 1;
    for (int i = 0; i < ddp__count(g->node); i++)
        if (!s->written[i] && g->node[i]->op && ddp_shape_count(&g->node[i]->spec.out) == 1 &&
            g->plain.gradient[i] != DDP__NOWHERE)
            ddp__node_one(g->node[i], ddp__state_at(s, g->plain.gradient[i]));
    return s;
}

size_t ddp__state_bytes(const ddp_graph *g, ddp__arena arena) { return g->plain.bytes[arena]; }

int ddp__output_stays(const ddp_node *n) { return n->graph->plain.fate[n->index] == DDP__KEPT; }

void ddp_state_free(ddp_state *s)
{
    if (!s) return;
    ddp__host_release(s->graph->host, s->arena[DDP__ARENA_OWN], s->layout->bytes[DDP__ARENA_OWN]);
    DDP_FREE(s->written);
    DDP_FREE(s);
}

void *ddp_state_data(ddp_state *s, const ddp_node *n)
{
    if (!s || !n || n->graph != s->graph) return NULL;
    return ddp__state_at(s, s->layout->out[n->index]);
}

void *ddp_state_gradient(ddp_state *s, const ddp_node *n)
{
    if (!s || !n || n->graph != s->graph) return NULL;
    return ddp__state_at(s, s->layout->gradient[n->index]);
}

void ddp_state_micro_batch(ddp_state *s, uint64_t number)
{
    if (!s) return;
    s->pass = number;
    s->pass_given = 1;
}

/* ---- the built-in state ---- */

void *ddp_data(ddp_graph *g, const char *name)
{
    if (!g || !g->state || !name) return NULL;
    for (int i = 0; i < ddp__count(g->node); i++)
        if (!g->node[i]->op && strcmp(g->node[i]->name, name) == 0)
            return g->node[i]->feed ? g->node[i]->feed : ddp_state_data(g->state, g->node[i]);
    return NULL;
}

void ddp__node_feed(const ddp_node *n, void *to, const void *from)
{
    const ddp__host *h = n->graph->host;

    if (n->type != DDP_F32 || !h || !h->backend)
        ddp__host_upload(h, to, from, 4 * (size_t)ddp_shape_count(&n->spec.out));
    else
        h->backend->upload_elements(h->device, to, (const float *)from, &n->spec.out);
}

/* Uploads the inputs that the user filled. */
static void ddp__feed_inputs(const ddp_graph *g)
{
    const ddp_backend *b = ddp__graph_backend(g);

    for (int i = 0; b && i < ddp__count(g->node); i++)
        if (!g->node[i]->op)
            ddp__node_feed(g->node[i], ddp_state_data(g->state, g->node[i]), g->node[i]->feed);
}

/* Downloads a node's output when the user asks for it, or NULL on failure. */
const float *ddp__output_show(ddp_graph *g, const ddp_node *n, const void *from)
{
    const ddp_backend *b = ddp__graph_backend(g);
    ddp_node *own = g->node[n->index];

    if (!b || !from) return (const float *)from;
    if (!own->shown)
        own->shown = (float *)ddp__calloc((size_t)ddp_shape_count(&n->spec.out), sizeof *own->shown);
    if (!own->shown) return NULL;
    return b->download_elements(g->host->device, own->shown, from, &n->spec.out, &g->error) == DDP_OK
               ? own->shown
               : NULL;
}

const float *ddp_output(ddp_graph *g, const ddp_node *n)
{
    if (!g || !g->state || !n || n->graph != g || n->type != DDP_F32) return NULL;
    if (g->state->layout->fate[n->index] != DDP__KEPT) return NULL;
    return ddp__output_show(g, n, ddp_state_data(g->state, n));
}

int ddp_graph_read(ddp_graph *g, float *to, const float *from, size_t count)
{
    if (!g || !to || !from) return (int)DDP_ARG;
    return (int)ddp__host_download(g->host, to, from, count * sizeof *to, &g->error);
}

int ddp_graph_write(ddp_graph *g, float *to, const float *from, size_t count)
{
    if (!g || !to || !from) return (int)DDP_ARG;
    ddp__host_upload(g->host, to, from, count * sizeof *to);
    return 0;
}

/* Starts an early copy of the last scalar of a pass (usually the loss), which is read while later work
 * runs. */
static void ddp__value_early(ddp_graph *g)
{
    const ddp_backend *b = ddp__graph_backend(g);
    const ddp_node *n = g->node[ddp__count(g->node) - 1];
    const float *from;

    g->early = -1;
    if (!b || n->type != DDP_F32 || n->spec.out.dims) return;
    if (g->state->layout->fate[n->index] != DDP__KEPT) return;
    from = (const float *)ddp_state_data(g->state, n);
    if (!from) return;
    b->early(g->host->device, from);
    g->early = n->index;
}

float ddp_value(ddp_graph *g, const ddp_node *n)
{
    const float *out;
    float value;

    if (g && n && g->state && n->graph == g && g->early == n->index) {
        out = (const float *)ddp_state_data(g->state, n);
        if (g->host->backend->early_value(g->host->device, out, &value)) return value;
    }
    out = n && ddp_shape_count(&n->spec.out) == 1 ? ddp_output(g, n) : NULL;
    return out ? *out : (float)ddp__unknown();
}

/* ---- one operator ---- */

/* again: the recomputed output, if there is one. */
static size_t ddp__output_at(const ddp__layout *l, int node, int again)
{
    return again && l->fate[node] == DDP__AGAIN ? l->out_again[node] : l->out[node];
}

static void ddp__call_fill(const ddp_state *s, const ddp_node *n, int training, int again, ddp_op_call *c)
{
    const ddp_graph *g = s->graph;
    const ddp__layout *l = s->layout;
    ddp_rng r = ddp_rng_seed(g->host ? g->host->seed : 0, s->pass);

    memset(c, 0, sizeof *c);
    c->spec = &n->spec;
    for (int i = 0; i < n->spec.inputs; i++)
        c->in[i] = ddp__state_at(s, ddp__output_at(l, n->input[i], again));
    for (int i = 0; i < n->spec.params; i++) c->param[i] = n->use[i];
    for (int i = 0; i < n->spec.buffers; i++) c->buffer[i] = n->buffer[i];
    c->out = ddp__state_at(s, ddp__output_at(l, n->index, again));
    again = again && l->fate[n->index] == DDP__AGAIN;
    c->saved = ddp__state_at(s, again ? l->saved_again[n->index] : l->saved[n->index]);
    c->pool = g->pool;
    if (g->host && g->host->backend) c->pool = g->host->backend->compute(g->host->device);
    c->training = training;
    c->kernels = g->host ? g->host->kernels : 0;
    r = ddp_rng_seed(ddp_rng_u64(&r), (uint64_t)(unsigned)n->index);
    c->random = ddp_rng_u64(&r);
}

/* A recomputed operator's buffers, as its first forward found them, are stored one after the other in its
 * shadow. So both forwards see the same values, and only the first updates them. */
static void ddp__shadow(const ddp_state *s, const ddp_node *n, int fill, void **at)
{
    float *shadow = (float *)ddp__state_at(s, s->layout->shadow[n->index]);

    for (int k = 0; shadow && k < n->spec.buffers; k++) {
        const size_t count = (size_t)ddp_shape_count(&n->spec.buffer[k].shape);
        if (fill)
            ddp__host_copy(s->graph->host, shadow, n->buffer[k], count * sizeof *shadow);
        else
            at[k] = shadow;
        shadow += count;
    }
}

static void ddp__run_forward(const ddp_state *s, const ddp_node *n, int training, int again)
{
    ddp_op_call c;

    ddp__call_fill(s, n, training, again, &c);
    if (training) ddp__shadow(s, n, !again, c.buffer);
    n->run->forward(&c);
}

/* Runs forward of node first and the next node as one fused pair. */
static void ddp__run_pair(const ddp_state *s, const ddp_node *first, int training, int again)
{
    ddp_op_call a, b;

    ddp__call_fill(s, first, training, again, &a);
    ddp__call_fill(s, s->graph->node[first->index + 1], training, again, &b);
    if (training) ddp__shadow(s, first, !again, a.buffer);
    first->pair->forward(&a, &b);
}

/* Runs node i of a whole pass. A pair runs when its second node is due, because that node's layer may
 * have to be waited for. */
static void ddp__pass_forward(const ddp_state *s, int i, int training)
{
    const ddp_graph *g = s->graph;

    if (g->node[i]->pair) return;
    if (i > 0 && g->node[i - 1]->pair)
        ddp__run_pair(s, g->node[i - 1], training, 0);
    else
        ddp__run_forward(s, g->node[i], training, 0);
}

/* Recomputes the forward of a segment. The plan holds at this time: no node of the segment has run
 * backward, and all later nodes have. */
static void ddp__run_again(const ddp_state *s, int segment)
{
    const ddp_graph *g = s->graph;

    for (int i = g->segment[segment].first; i <= g->segment[segment].last; i++) {
        if (s->layout->fate[i] != DDP__AGAIN || g->node[i]->here != (int)DDP__HERE_OWN) continue;
        if (ddp__pair_inside(g, i) && s->layout->fate[i + 1] == DDP__AGAIN)
            ddp__run_pair(s, g->node[i++], 1, 1);
        else
            ddp__run_forward(s, g->node[i], 1, 1);
    }
}

/* every_float: compute gradients of all float inputs, not only if parameters are above. The first writer
 * of a gradient overwrites it and the others add to it, unless each use has its own part. */
static void ddp__backward_fill(ddp_state *s, const ddp_node *n, int every_float, ddp_op_call *c)
{
    const ddp_graph *g = s->graph;

    ddp__call_fill(s, n, 1, 1, c);
    c->grad_out = ddp__state_at(s, s->layout->gradient[n->index]);
    for (int i = 0; i < n->spec.inputs; i++) {
        int p = n->input[i];
        if (every_float ? g->node[p]->type != DDP_F32 : !g->node[p]->has_gradient) continue;
        c->grad_in[i] = g->node[p]->parts ? ddp__part_at(s, g->node[p], n->part[i])
                                          : ddp__state_at(s, s->layout->gradient[p]);
        c->add_in[i] = s->written[p] && !g->node[p]->parts;
        s->written[p] = 1;
    }
    for (int i = 0; i < n->spec.params; i++) c->grad_param[i] = n->grad[i];
}

static void ddp__run_backward(ddp_state *s, const ddp_node *n, int every_float, ddp__cut_part part)
{
    ddp_op_call c;

    if (part == DDP__CUT_WEIGHTS && !n->spec.params) return;
    ddp__backward_fill(s, n, every_float, &c);
    for (int i = 0; i < DDP_OP_INPUTS && part == DDP__CUT_WEIGHTS; i++) c.grad_in[i] = NULL;
    for (int i = 0; i < DDP_OP_PARAMS && part == DDP__CUT_INPUTS; i++) c.grad_param[i] = NULL;
    n->run->backward(&c);
}

/* 1 if nodes i - 1 and i run backward as a fused pair. */
static int ddp__pair_backward(const ddp_graph *g, int i)
{
    return i > 0 && ddp__pair_inside(g, i - 1) && g->node[i - 1]->has_gradient;
}

/* The output of a pair's first node, if the reader of its second also runs backward through the second, or
 * NULL otherwise. The output does not exist in another segment or stage. */
static const void *ddp__pair_inner(const ddp_state *s, int second)
{
    const ddp_graph *g = s->graph;
    const ddp_node *n = g->node[second], *reader = g->node[n->reader];
    const char *name = ddp__pair_backward(g, second) ? g->node[second - 1]->pair->reader : NULL;

    if (!name || n->readers != 1 || reader->input[0] != second || strcmp(reader->op->name, name) ||
        reader->segment != n->segment || reader->stage != n->stage)
        return NULL;
    return ddp__state_at(s, ddp__output_at(s->layout, second - 1, 1));
}

/* Runs backward of node i, and of the node before it if both are fused. Returns the last node that ran. */
static int ddp__pass_backward(ddp_state *s, int i)
{
    const ddp_graph *g = s->graph;
    const ddp_node *n = g->node[i];
    ddp_op_call a, b;

    ddp__backward_fill(s, n, 0, &b);
    if (!ddp__pair_backward(g, i)) {
        b.inner = ddp__pair_inner(s, n->input[0]);
        n->run->backward(&b);
        return i;
    }
    b.through = ddp__pair_inner(s, i) != NULL;
    ddp__backward_fill(s, g->node[i - 1], 0, &a);
    a.inner = ddp__pair_inner(s, g->node[i - 1]->input[0]);
    g->node[i - 1]->pair->backward(&a, &b);
    return i - 1;
}

/* ---- passes over the graph, or over this process's stage of it, with the hooks of its layers ---- */

static int ddp__hook(ddp_graph *g, int (*fn)(ddp_ctx *ctx, int layer), int layer)
{
    return fn ? fn((ddp_ctx *)(void *)g->host, g->layer[layer].unit) : 0;
}

static ddp_status ddp__runnable(ddp_graph *g, const char *what)
{
    if (!g) return DDP_MEMORY;
    DDP__TRY(ddp__host_check(g->host, &g->error));
    if (g->error.code) return g->error.code;
    if (!g->built) return ddp__fail(&g->error, DDP_USAGE, "%s before ddp_graph_build", what);
    if (g->stages)
        return ddp__fail(&g->error, DDP_USAGE,
                         "%s: this process holds stage %d of %d of the model: run it with "
                         "ddp_pipe_step",
                         what, g->own_stage, g->stages);
    return DDP_OK;
}

int ddp__graph_forward(ddp_state *s, int training)
{
    ddp_graph *g = s->graph;
    const ddp__hooks *hooks = training && g->host ? g->host->hooks : NULL;
    int code = 0;

    for (int i = 0; i < ddp__count(g->node) && !code; i++) {
        const ddp_node *n = g->node[i];
        if (!n->op || n->here != (int)DDP__HERE_OWN) continue;
        if (hooks && n->layer >= 0 && g->layer[n->layer].first == i)
            code = ddp__hook(g, hooks->forward_begin, n->layer);
        if (!code) ddp__pass_forward(s, i, training);
    }
    return code;
}

static int ddp__whole_forward(ddp_graph *g, const char *what, int training)
{
    int code = (int)ddp__runnable(g, what);

    if (code) return code;
    g->state->ready = 0;
    g->state->pass += (uint64_t)training;
    ddp__feed_inputs(g);
    code = ddp__graph_forward(g->state, training);
    if (code) return code;
    ddp__value_early(g);
    g->state->ready = training;
    return 0;
}

int ddp_forward(ddp_graph *g) { return ddp__whole_forward(g, "ddp_forward", 1); }
int ddp_evaluate(ddp_graph *g) { return ddp__whole_forward(g, "ddp_evaluate", 0); }

/* The gradient of each use of a tied parameter is summed separately over micro-batches, because the use
 * may be on another machine. The sums are added in the order of backward, then to the owner's gradient. */
static void ddp__uses_add(ddp_graph *g, int owner)
{
    const size_t count = (size_t)ddp_shape_count(&g->node[owner]->spec.param[0].shape);
    float *sum = NULL;

    for (int i = ddp__count(g->node) - 1; i > owner; i--) {
        float *use = g->node[i]->grad[0];
        if (g->node[i]->tied != owner) continue;
        if (sum) ddp__host_add(g->host, sum, use, count);
        if (sum)
            ddp__host_zero(g->host, use, count * sizeof *use);
        else
            sum = use;
    }
    if (!sum) return;
    ddp__host_add(g->host, g->node[owner]->grad[0], sum, count);
    ddp__host_zero(g->host, sum, count * sizeof *sum);
}

/* Adds them in the last pass of a step. */
static int ddp__layer_uses_add(ddp_graph *g, int layer)
{
    const ddp__hooks *hooks = g->host ? g->host->hooks : NULL;
    int code = 0;

    if (hooks && !hooks->last_pass((const ddp_ctx *)(const void *)g->host, g->layer[layer].unit)) return 0;
    for (int i = g->layer[layer].first; i <= g->layer[layer].last && !code; i++) {
        if (!g->node[i]->uses || g->node[i]->here != (int)DDP__HERE_OWN) continue;
        if (g->fetch_uses) code = g->fetch_uses(g->fetch_user, i);
        if (!code) ddp__uses_add(g, i);
    }
    return code;
}

/* Marks gradients that later stages have sent, and the gradient of the loss. Nodes that no gradient
 * reaches stay unmarked. */
static void ddp__backward_reached(ddp_state *s, const ddp_node *loss)
{
    const ddp_graph *g = s->graph;

    for (int i = 0; i < ddp__count(g->node); i++)
        s->written[i] = g->node[i]->to >= 0 && g->node[i]->has_gradient;
    if (loss && loss->here == (int)DDP__HERE_OWN) s->written[loss->index] = 1;
}

/* Sums the parts of node n. Parts that no gradient reached are zeroed first, because no operator writes
 * them. */
static void ddp__parts_add(const ddp_state *s, const ddp_node *n)
{
    float *sum = (float *)ddp__state_at(s, s->layout->gradient[n->index]);

    ddp__host_copy(s->graph->host, sum, ddp__part_at(s, n, 0), ddp__output_bytes(n));
    for (int i = 1; i < n->parts; i++)
        ddp__host_add(s->graph->host, sum, (const float *)ddp__part_at(s, n, i),
                      (size_t)ddp_shape_count(&n->spec.out));
}

/* Completes the gradients that the previous stage waits for. Gradients that no consumer added to are zero. */
static void ddp__backward_entered(ddp_state *s)
{
    const ddp_graph *g = s->graph;

    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_node *n = g->node[i];
        if (n->from < 0 || !n->has_gradient || n->parts || s->written[i]) continue;
        ddp__host_zero(g->host, ddp__state_at(s, s->layout->gradient[i]), ddp__output_bytes(n));
    }
}

/* Runs the requested part of node i's backward, and of the node before it if both are fused. Returns the
 * last node that ran. A recomputed segment computes its weight gradients at once, because its activations
 * are not kept. */
static int ddp__backward_node(ddp_state *s, int i, const ddp_node *loss, ddp__cut_part part)
{
    const ddp_node *n = s->graph->node[i];

    if (n->parts && part != DDP__CUT_WEIGHTS) ddp__parts_add(s, n);
    if (n == loss && part != DDP__CUT_WEIGHTS) ddp__node_one(n, ddp__state_at(s, s->layout->gradient[i]));
    if (part == DDP__CUT_BOTH || (n->segment >= 0 && part == DDP__CUT_INPUTS))
        return ddp__pass_backward(s, i);
    if (n->segment < 0) ddp__run_backward(s, n, 0, part);
    return i;
}

int ddp__graph_backward(ddp_state *s, const ddp_node *loss, ddp__cut_part part)
{
    ddp_graph *g = s->graph;
    const ddp__hooks *hooks = g->host ? g->host->hooks : NULL;
    int done = -1, segment = -1, code = 0;

    if (part != DDP__CUT_WEIGHTS) ddp__backward_reached(s, loss);
    /* the hooks run for every layer, even if no gradient flows: a context waits for each */
    for (int i = ddp__count(g->node) - 1; i >= 0 && !code; i--) {
        const ddp_node *n = g->node[i];
        if (!n->op || n->here != (int)DDP__HERE_OWN) continue;
        if (hooks && n->layer >= 0 && g->layer[n->layer].last == i)
            code = ddp__hook(g, hooks->backward_begin, n->layer);
        if (!code && s->written[i] && n->has_gradient && i != done) {
            if (n->segment >= 0 && n->segment != segment && part != DDP__CUT_WEIGHTS)
                ddp__run_again(s, n->segment);
            segment = n->segment;
            done = ddp__backward_node(s, i, loss, part);
        }
        if (part == DDP__CUT_INPUTS || n->layer < 0 || g->layer[n->layer].first != i || code) continue;
        code = ddp__layer_uses_add(g, n->layer);
        if (!code && hooks) code = ddp__hook(g, hooks->backward_end, n->layer);
    }
    if (part != DDP__CUT_WEIGHTS) ddp__backward_entered(s);
    return code;
}

/* The reason why backward cannot start at loss, or NULL. */
static const char *ddp__loss_fault(const ddp_graph *g, const ddp_node *loss)
{
    if (!loss || loss->graph != g) return "the loss is not a node of this graph";
    if (ddp_shape_count(&loss->spec.out) != 1) return "the loss is not a scalar";
    if (!loss->has_gradient) return "the loss does not depend on any parameter";
    if (!g->state->ready) return "call ddp_forward before each ddp_backward, which consumes the activations";
    return NULL;
}

int ddp_backward(ddp_graph *g, ddp_node *loss)
{
    const int code = (int)ddp__runnable(g, "ddp_backward");
    const char *fault = code ? NULL : ddp__loss_fault(g, loss);

    if (code) return code;
    if (fault) return (int)ddp__fail(&g->error, DDP_USAGE, "ddp_backward: %s", fault);
    g->state->ready = 0;
    return ddp__graph_backward(g->state, loss, DDP__CUT_BOTH);
}

void ddp_zero_gradients(ddp_graph *g)
{
    for (int i = 0; g && i < ddp__count(g->layer); i++)
        if (g->layer[i].grads) ddp__host_zero(g->host, g->layer[i].grads, g->layer[i].count * sizeof(float));
    for (int i = 0; g && i < ddp__count(g->node); i++) {
        const ddp_node *n = g->node[i];
        if (n->tied >= 0 && n->grad[0])
            ddp__host_zero(g->host, n->grad[0],
                           (size_t)ddp_shape_count(&n->spec.param[0].shape) * sizeof(float));
    }
}

/* ---- ranges of operators on a separate state ---- */

static ddp_status ddp__range_ok(ddp_state *s, const char *what, int first, int last)
{
    if (!s) return DDP_ARG;
    DDP__TRY(ddp__runnable(s->graph, what));
    if (first < 0 || last >= ddp__count(s->graph->node) || first > last)
        return ddp__fail(&s->graph->error, DDP_ARG, "%s: operators %d..%d are not within 0..%d", what, first,
                         last, ddp__count(s->graph->node) - 1);
    return DDP_OK;
}

int ddp_forward_range(ddp_state *s, int first, int last)
{
    int i, code = (int)ddp__range_ok(s, "ddp_forward_range", first, last);

    if (code) return code;
    if (!s->pass_given && (first < s->next || s->next == 0)) s->pass++;
    s->next = last + 1;
    s->graph->early = -1;
    for (i = first; i <= last; i++)
        if (s->graph->node[i]->op) ddp__run_forward(s, s->graph->node[i], 1, 0);
    return 0;
}

int ddp_backward_range(ddp_state *s, int first, int last)
{
    ddp_graph *g;
    int i, k, code = (int)ddp__range_ok(s, "ddp_backward_range", first, last);

    if (code) return code;
    g = s->graph;

    /* Present before the range runs: gradients of outputs used after it, and of outputs without users.
     * Bit 2 marks outputs with users. */
    memset(s->written, 0, (size_t)ddp__count(g->node));
    for (i = 0; i < ddp__count(g->node); i++)
        for (k = 0; k < g->node[i]->spec.inputs; k++)
            s->written[g->node[i]->input[k]] |= i > last && g->node[i]->op->backward ? 3 : 2;
    for (i = 0; i < ddp__count(g->node); i++)
        s->written[i] = s->written[i] ? s->written[i] & 1 : (unsigned char)(g->node[i]->op != NULL);

    for (i = last; i >= first; i--) {
        const ddp_node *n = g->node[i];
        if (n->op && n->op->backward && s->written[i]) ddp__run_backward(s, n, 1, DDP__CUT_BOTH);
        if (n->uses) ddp__uses_add(g, i);
    }
    return 0;
}
