/* Builds a graph (layers, recomputation segments, inputs, operators) and describes it. */
#include "graph/graph_internal.h"

long ddp_shape_count(const ddp_shape *s)
{
    long n = 1;

    for (int i = 0; i < s->dims; i++) n *= s->dim[i];
    return n;
}

long ddp_shape_rows(const ddp_shape *s)
{
    long n = 1;

    for (int i = 0; i + 1 < s->dims; i++) n *= s->dim[i];
    return n;
}

void ddp_op_parallel(const ddp_op_call *c, long items, long grain,
                     void (*fn)(void *user, long first, long last), void *user)
{
    ddp__pool_run((ddp__pool *)c->pool, items, grain, fn, user);
}

const ddp_allocator *ddp__graph_allocator(const ddp_graph *g) { return g->host ? &g->host->allocator : NULL; }

const ddp_backend *ddp__graph_backend(const ddp_graph *g) { return g->host ? g->host->backend : NULL; }

static const ddp_error ddp__no_graph = {DDP_MEMORY, "out of memory for a graph"}; /* from ddp_graph_new */
const ddp_error *ddp_graph_error(const ddp_graph *g) { return g ? &g->error : &ddp__no_graph; }

/* Result of growing a list (ddp__reserve): returns 1 if it has capacity for another element, or 0 and
 * sets the graph's error. */
static int ddp__graph_room(ddp_graph *g, int room, int count)
{
    if (room && count < DDP__MOST_NODES) return 1;
    return !ddp__fail(&g->error, DDP_MEMORY, "out of memory for a graph of more than %d entries", count);
}

/* Reserves capacity for another element of a list of the graph. Returns 1, or 0 and sets the graph's
 * error. */
#define ddp__graph_reserve(g, list) \
    ddp__graph_room(g, ddp__reserve(list, ddp__count(list) + 1), ddp__count(list))

/* Returns 1 if function `what` may still change the graph. Otherwise sets the error. */
static int ddp__graph_open(ddp_graph *g, const char *what)
{
    if (!g || g->error.code) return 0;
    if (!g->built) return 1;
    return !ddp__fail(&g->error, DDP_USAGE, "%s after ddp_graph_build: a built graph cannot change", what);
}

/* Returns NULL after a failure, for functions that return a node. */
static ddp_node *ddp__no_node(ddp_status failure)
{
    (void)failure;
    return NULL;
}

/* ---- layers ---- */

static int ddp__layer_named(const ddp_graph *g, const char *name)
{
    int i = 0;

    while (i < ddp__count(g->layer) && strcmp(g->layer[i].name, name)) i++;
    return i < ddp__count(g->layer);
}

static void ddp__layer_new(ddp_graph *g, const char *name)
{
    const int layers = ddp__count(g->layer);
    ddp__graph_layer *l = &g->layer[layers];
    const uint64_t base = ddp__hash(DDP__HASH_START, name, strlen(name));
    char text[256];
    int repeat = 0;

    for (int i = layers - 1; i >= 0 && repeat == 0; i--)
        if (g->layer[i].base_hash == base) repeat = g->layer[i].repeat + 1;
    snprintf(text, sizeof text, "%.200s", name);
    if (repeat) snprintf(text + strlen(text), sizeof text - strlen(text), ".%d", repeat);
    while (ddp__layer_named(g, text)) /* the user may have named a layer "hidden.1" */
        snprintf(text, sizeof text, "%.200s.%d", name, ++repeat);
    memset(l, 0, sizeof *l);
    l->name = ddp__strdup(text);
    l->base_hash = base;
    l->repeat = repeat;
    l->first = l->last = -1;
    if (!l->name) {
        ddp__fail(&g->error, DDP_MEMORY, "out of memory for layer \"%s\"", text);
        return;
    }
    g->open_layer = layers;
    stbds_arrsetlen(g->layer, layers + 1);
}

const char *ddp__layer_name(const ddp_graph *g, int layer) { return layer >= 0 ? g->layer[layer].name : ""; }

int ddp__layer_is_a(const ddp_graph *g, int layer, const char *name)
{
    return layer >= 0 && g->layer[layer].base_hash == ddp__hash(DDP__HASH_START, name, strlen(name));
}

int ddp__layer_range(const ddp_graph *g, int layer, int *first, int *last)
{
    if (layer < 0 || g->layer[layer].first < 0) return 0;
    *first = g->layer[layer].first;
    *last = g->layer[layer].last;
    return 1;
}

int ddp__layer_unit(const ddp_graph *g, int layer)
{
    return layer < 0 || g->layer[layer].first < 0 ? -1 : g->layer[layer].unit;
}

size_t ddp__array_place(const ddp_node *n, int buffers, int k)
{
    const ddp__graph_layer *l = &n->graph->layer[n->layer];

    return (size_t)(buffers ? n->buffer[k] - l->buffers : n->param[k] - l->params);
}

void ddp_layer_begin(ddp_graph *g, const char *name)
{
    if (!ddp__graph_open(g, "ddp_layer_begin")) return;
    if (!name || !*name) name = "layer";
    if (g->open_layer >= 0)
        ddp__fail(&g->error, DDP_USAGE, "layer \"%s\" begins inside layer \"%s\": call ddp_layer_end first",
                  name, g->layer[g->open_layer].name);
    else if (ddp__count(g->layer) == DDP__MOST_LAYERS)
        ddp__fail(&g->error, DDP_ARG,
                  "layer \"%.100s\" would be number %d, but a graph has at most %d layers; build fewer, or "
                  "put several operators into one",
                  name, ddp__count(g->layer) + 1, DDP__MOST_LAYERS);
    else if (ddp__graph_reserve(g, g->layer))
        ddp__layer_new(g, name);
}

void ddp_layer_end(ddp_graph *g)
{
    if (!ddp__graph_open(g, "ddp_layer_end")) return;
    if (g->open_layer < 0)
        ddp__fail(&g->error, DDP_USAGE, "ddp_layer_end without ddp_layer_begin");
    else if (g->layer[g->open_layer].first < 0)
        ddp__fail(&g->error, DDP_USAGE,
                  "layer \"%s\" has no operators: build some between "
                  "ddp_layer_begin and ddp_layer_end",
                  g->layer[g->open_layer].name);
    g->open_layer = -1;
}

/* ---- segments to recompute ---- */

void ddp_recompute_begin(ddp_graph *g)
{
    if (!ddp__graph_open(g, "ddp_recompute_begin")) return;
    if (g->open_segment >= 0) {
        ddp__fail(&g->error, DDP_USAGE, "ddp_recompute_begin inside a segment: call ddp_recompute_end first");
    } else if (ddp__graph_reserve(g, g->segment)) {
        const ddp__recompute_segment none = {-1, -1};
        g->open_segment = ddp__count(g->segment);
        stbds_arrput(g->segment, none);
    }
}

void ddp_recompute_end(ddp_graph *g)
{
    if (!ddp__graph_open(g, "ddp_recompute_end")) return;
    if (g->open_segment < 0)
        ddp__fail(&g->error, DDP_USAGE, "ddp_recompute_end without ddp_recompute_begin");
    else if (g->segment[g->open_segment].first < 0)
        ddp__fail(&g->error, DDP_USAGE,
                  "a segment to recompute has no operators: build some "
                  "between ddp_recompute_begin and ddp_recompute_end");
    g->open_segment = -1;
}

/* ---- nodes ---- */

static ddp_node *ddp__node_add(ddp_graph *g)
{
    ddp_node *n;

    if (!ddp__graph_reserve(g, g->node)) return NULL;
    n = (ddp_node *)ddp__calloc(1, sizeof *n);
    if (!n)
        return ddp__no_node(
            ddp__fail(&g->error, DDP_MEMORY, "out of memory for node %d of the graph", ddp__count(g->node)));
    n->graph = g;
    n->index = ddp__count(g->node);
    n->layer = n->segment = n->tied = n->from = n->to = -1;
    n->type = DDP_F32;
    stbds_arrput(g->node, n);
    return n;
}

/* 1 if all dimensions are at least 1 and the array is not too large. */
static int ddp__shape_ok(const ddp_shape *s)
{
    double n = 1;

    if (s->dims < 0 || s->dims > 4) return 0;
    for (int i = 0; i < s->dims; i++) {
        if (s->dim[i] < 1) return 0;
        n *= (double)s->dim[i];
    }
    return n <= DDP__MOST_FLOATS;
}

/* Appends "(32, 64)". */
static void ddp__shape_text(const ddp_shape *s, char *text, size_t size)
{
    for (int i = 0; i < s->dims && i < 4; i++)
        snprintf(text + strlen(text), size - strlen(text), i ? ", %ld" : "(%ld", s->dim[i]);
    snprintf(text + strlen(text), size - strlen(text), s->dims > 0 ? ")" : "()");
}

int ddp__shape_equal(const ddp_shape *a, const ddp_shape *b)
{
    if (a->dims != b->dims) return 0;
    for (int i = 0; i < a->dims; i++)
        if (a->dim[i] != b->dim[i]) return 0;
    return 1;
}

ddp_node *ddp_input_shape(ddp_graph *g, const char *name, ddp_dtype type, const ddp_shape *s)
{
    ddp_node *n;
    char text[160] = "";

    if (!ddp__graph_open(g, "ddp_input")) return NULL;
    if (!name || !*name || !s || (type != DDP_F32 && type != DDP_I32))
        return ddp__no_node(
            ddp__fail(&g->error, DDP_ARG, "an input needs a name, a shape and type DDP_F32 or DDP_I32"));
    if (!ddp__shape_ok(s)) {
        ddp__shape_text(s, text, sizeof text);
        return ddp__no_node(ddp__fail(&g->error, DDP_ARG,
                                      "input \"%.80s\": the shape %s needs at most 4 dimensions "
                                      "of at least 1",
                                      name, text));
    }
    for (int i = 0; i < ddp__count(g->node); i++)
        if (!g->node[i]->op && !strcmp(g->node[i]->name, name))
            return ddp__no_node(ddp__fail(&g->error, DDP_ARG,
                                          "input \"%.80s\" exists already: give each input its own "
                                          "name",
                                          name));
    n = ddp__node_add(g);
    if (!n) return NULL;
    n->type = type;
    n->spec.out = *s;
    n->name = ddp__strdup(name);
    if (n->name) return n;
    (void)stbds_arrpop(g->node);
    DDP_FREE(n);
    return ddp__no_node(ddp__fail(&g->error, DDP_MEMORY, "out of memory for input \"%.80s\"", name));
}

ddp_node *ddp_input(ddp_graph *g, const char *name, ddp_dtype type, long rows, long cols)
{
    const ddp_shape s = {2, {rows, cols, 0, 0}};

    return ddp_input_shape(g, name, type, &s);
}

/* ---- operators ---- */

const ddp_op *ddp__op_find(const ddp_graph *g, const char *name)
{
    for (int i = 0; i < ddp__count(g->ops); i++)
        if (strcmp(g->ops[i]->name, name) == 0) return g->ops[i];
    return g->builtin(name);
}

int ddp_register_op(ddp_graph *g, const ddp_op *op)
{
    if (!g) return (int)DDP_ARG;
    if (!ddp__graph_open(g, "ddp_register_op")) return (int)g->error.code;
    if (!op || !op->name || !*op->name || !op->shape || !op->forward)
        return (int)ddp__fail(&g->error, DDP_ARG,
                              "ddp_register_op: operator \"%.80s\" needs a name, a shape rule and a "
                              "forward function",
                              op && op->name ? op->name : "");
    if (ddp__op_find(g, op->name))
        return (int)ddp__fail(&g->error, DDP_ARG,
                              "ddp_register_op: an operator \"%.80s\" exists already: choose another "
                              "name",
                              op->name);
    if (!ddp__graph_reserve(g, g->ops)) return (int)g->error.code;
    stbds_arrput(g->ops, op);
    return 0;
}

/* Writes 'layer "x", operator linear' for error messages, at most size bytes. */
static void ddp__node_where(const ddp_graph *g, const char *op, int layer, char *text, size_t size)
{
    if (layer >= 0)
        snprintf(text, size, "layer \"%.100s\", operator %.60s", g->layer[layer].name, op);
    else
        snprintf(text, size, "operator %.60s outside layers", op);
}

/* Checks the result of a shape rule, which may be the user's own. Returns the reason why it cannot run,
 * or NULL. */
static const char *ddp__spec_fault(const ddp_op_spec *s, const ddp_node *owner)
{
    if (!ddp__shape_ok(&s->out)) return "its shape rule gave an impossible output shape";
    if (s->params < 0 || s->params > DDP_OP_PARAMS || (double)s->saved > DDP__MOST_FLOATS)
        return "its shape rule gave an impossible number of parameters or saved elements";
    for (int i = 0; i < s->params; i++)
        if (!ddp__shape_ok(&s->param[i].shape)) return "its shape rule gave an impossible parameter shape";
    if (s->buffers < 0 || s->buffers > DDP_OP_BUFFERS)
        return "its shape rule gave an impossible number of buffers";
    for (int i = 0; i < s->buffers; i++)
        if (!ddp__shape_ok(&s->buffer[i].shape)) return "its shape rule gave an impossible buffer shape";
    if (owner && (s->params < 1 || !ddp__shape_equal(&s->param[0].shape, &owner->spec.param[0].shape)))
        return "the tied node's parameter 0 has another shape than it needs";
    return NULL;
}

/* Runs the shape rule. The tied parameter replaces parameter 0 of the operator. A rule that needs it to
 * compute the output shape receives it as an argument. */
static ddp_status ddp__shape_apply(const ddp_op *op, const ddp_node *owner, ddp_op_spec *spec, ddp_error *why)
{
    const ddp_op_spec given = *spec;
    ddp_status code = op->shape(spec, why);

    if (!owner || (code == DDP_OK && spec->params > 0)) return code;
    *spec = given;
    spec->params = 1;
    spec->param[0] = owner->spec.param[0];
    return op->shape(spec, why);
}

/* 1 if all inputs are nodes of this graph. */
static int ddp__inputs_ok(ddp_graph *g, const char *where, int count, ddp_node *const *inputs,
                          const ddp_node *tied)
{
    if (count < 0 || count > DDP_OP_INPUTS || (count && !inputs))
        return !ddp__fail(&g->error, DDP_ARG, "%s: %d inputs given, 0 to %d are possible", where, count,
                          DDP_OP_INPUTS);
    for (int i = 0; i < count; i++) {
        if (inputs[i] && inputs[i]->graph == g) continue;
        return !ddp__fail(&g->error, DDP_ARG, "%s: input %d is %s", where, i,
                          inputs[i] ? "a node of another graph" : "NULL");
    }
    if (tied && (tied->graph != g || tied->spec.params < 1))
        return !ddp__fail(&g->error, DDP_ARG, "%s: the tied node %s", where,
                          tied->graph != g ? "belongs to another graph" : "has no parameter to share");
    return 1;
}

size_t ddp__arrays_count(const ddp_param *p, int first, int n)
{
    size_t count = 0;

    for (; first < n; first++) count += (size_t)ddp_shape_count(&p[first].shape);
    return count;
}

void ddp__layer_add(ddp_graph *g, const ddp_node *n)
{
    ddp__graph_layer *l = n->layer >= 0 ? &g->layer[n->layer] : NULL;

    if (!l) return;
    if (l->first < 0) l->first = n->index;
    l->last = n->index;
    l->flops += n->spec.flops;
    l->count += ddp__arrays_count(n->spec.param, n->tied >= 0, n->spec.params);
    l->buffer_count += ddp__arrays_count(n->spec.buffer, 0, n->spec.buffers);
}

/* Sets the node's layer, segment, and properties that follow from its inputs. */
static void ddp__node_place(ddp_graph *g, ddp_node *n)
{
    n->layer = g->open_layer;
    n->segment = g->open_segment;
    if (n->segment >= 0) {
        if (g->segment[n->segment].first < 0) g->segment[n->segment].first = n->index;
        g->segment[n->segment].last = n->index;
    }
    n->has_gradient = n->op->backward && n->spec.params > 0;
    for (int i = 0; i < n->spec.inputs; i++)
        if (n->op->backward && g->node[n->input[i]]->has_gradient) n->has_gradient = 1;
    ddp__layer_add(g, n);
}

/* Finds out whether the backend fuses the node with the preceding operator. */
static void ddp__node_pair(const ddp_graph *g, const ddp_node *n)
{
    const ddp_backend *b = ddp__graph_backend(g);
    ddp_node *first = n->index > 0 ? g->node[n->index - 1] : NULL;

    if (b && b->pair && first && first->op && n->spec.inputs && n->input[0] == first->index)
        first->pair = b->pair(g->host->device, first->op->name, n->op->name);
}

int ddp__pair_inside(const ddp_graph *g, int i)
{
    return g->node[i]->pair && g->node[i]->segment == g->node[i + 1]->segment;
}

ddp_node *ddp_apply(ddp_graph *g, const char *op, int count, ddp_node *const *inputs, int arg_count,
                    const double *args, ddp_node *tied)
{
    const ddp_op *entry;
    const char *fault;
    ddp_node *n, *owner;
    ddp_op_spec spec = DDP__ZEROS;
    ddp_error why = {DDP_OK, ""};
    ddp_status code;
    char where[200], shapes[200] = "";

    if (!ddp__graph_open(g, "an operator is added")) return NULL;
    ddp__node_where(g, op ? op : "(NULL)", g->open_layer, where, sizeof where);
    if (!ddp__inputs_ok(g, where, count, inputs, tied)) return NULL;
    entry = op ? ddp__op_find(g, op) : NULL;
    if (!entry)
        return ddp__no_node(
            ddp__fail(&g->error, DDP_ARG, "%s: no such operator; ddp_register_op adds one", where));
    if (arg_count < 0 || arg_count > DDP_OP_ARGS || (arg_count && !args))
        return ddp__no_node(ddp__fail(&g->error, DDP_ARG, "%s: %d arguments given, 0 to %d are possible",
                                      where, arg_count, DDP_OP_ARGS));

    owner = tied && tied->tied >= 0 ? g->node[tied->tied] : tied;
    spec.inputs = count;
    for (int i = 0; i < count; i++) {
        spec.in[i] = inputs[i]->spec.out;
        spec.in_type[i] = inputs[i]->type;
        if (i) snprintf(shapes + strlen(shapes), sizeof shapes - strlen(shapes), " and ");
        ddp__shape_text(&spec.in[i], shapes, sizeof shapes);
    }
    if (arg_count) memcpy(spec.arg, args, (size_t)arg_count * sizeof *args);
    code = ddp__shape_apply(entry, owner, &spec, &why);
    if (code)
        return ddp__no_node(ddp__fail(&g->error, code, "%s with inputs %s: %.150s", where, shapes,
                                      why.msg[0] ? why.msg : "its shape rule rejected them"));
    fault = ddp__spec_fault(&spec, owner);
    if (fault)
        return ddp__no_node(ddp__fail(&g->error, DDP_ARG, "%s with inputs %s: %s", where, shapes, fault));

    n = ddp__node_add(g);
    if (!n) return NULL;
    n->op = entry;
    n->spec = spec;
    n->tied = owner ? owner->index : -1;
    if (owner) owner->uses++;
    for (int i = 0; i < count; i++) {
        n->input[i] = inputs[i]->index;
        g->node[n->input[i]]->reader = n->index;
        g->node[n->input[i]]->readers++;
    }
    ddp__node_place(g, n);
    ddp__node_pair(g, n);
    return n;
}

void ddp_init_scale(ddp_graph *g, ddp_node *n, int param, float scale)
{
    if (!n || !ddp__graph_open(g, "ddp_init_scale")) return;
    if (n->graph != g || param < 0 || param >= n->spec.params || !ddp__within((double)scale, 0, FLT_MAX)) {
        ddp__fail(&g->error, DDP_ARG,
                  "ddp_init_scale: node %d has no parameter %d, or the scale %g is not a finite "
                  "number >= 0",
                  n->index, param, (double)scale);
        return;
    }
    n->spec.param[param].scale = scale;
}

void ddp_init_normal(ddp_graph *g, ddp_node *n, int param, float deviation)
{
    ddp_init_scale(g, n, param, deviation);
    if (g && n && !g->error.code) n->spec.param[param].init = deviation > 0 ? DDP_INIT_NORMAL : DDP_INIT_ZERO;
}

/* ---- reading ---- */

int ddp_node_count(const ddp_graph *g) { return g ? ddp__count(g->node) : 0; }
int ddp_node_index(const ddp_node *n) { return n ? n->index : -1; }
int ddp_layer_count(const ddp_graph *g) { return g ? ddp__count(g->layer) : 0; }

int ddp_node_describe(const ddp_graph *g, int index, ddp_node_info *out)
{
    const ddp_node *n;

    if (!g || !out || index < 0 || index >= ddp__count(g->node)) return DDP_ARG;
    n = g->node[index];
    memset(out, 0, sizeof *out);
    out->name = n->op ? n->op->name : "input";
    out->layer = n->layer >= 0 ? g->layer[n->layer].name : "";
    out->layer_index = n->layer;
    out->inputs = n->spec.inputs;
    memcpy(out->input, n->input, sizeof out->input);
    out->out = n->spec.out;
    out->flops = n->spec.flops;
    if (n->op && n->op->backward)
        out->backward_flops = n->spec.backward_flops > 0 ? n->spec.backward_flops : 2 * n->spec.flops;
    out->output_bytes = 4.0 * (double)ddp_shape_count(&n->spec.out);
    out->param_bytes = 4.0 * (double)ddp__arrays_count(n->spec.param, n->tied >= 0, n->spec.params);
    out->buffer_bytes = 4.0 * (double)ddp__arrays_count(n->spec.buffer, 0, n->spec.buffers);
    return DDP_OK;
}

size_t ddp_param_count(const ddp_graph *g)
{
    size_t count = 0;

    for (int i = 0; g && i < ddp__count(g->node); i++)
        count += ddp__arrays_count(g->node[i]->spec.param, g->node[i]->tied >= 0, g->node[i]->spec.params);
    return count;
}

/* Returns one block of a layer. of: selects parameters, gradients or buffers. */
static float *ddp__layer_block(const ddp_graph *g, int layer, char of, size_t *count)
{
    const ddp__graph_layer *l = g && layer >= 0 && layer < ddp__count(g->layer) ? &g->layer[layer] : NULL;

    if (count) *count = !l ? 0 : of == 'b' ? l->buffer_count : l->count;
    return !l ? NULL : of == 'b' ? l->buffers : of == 'g' ? l->grads : l->params;
}

float *ddp_layer_params(ddp_graph *g, int layer, size_t *count)
{
    return ddp__layer_block(g, layer, 'p', count);
}
float *ddp_layer_gradients(ddp_graph *g, int layer, size_t *count)
{
    return ddp__layer_block(g, layer, 'g', count);
}
float *ddp_layer_buffers(ddp_graph *g, int layer, size_t *count)
{
    return ddp__layer_block(g, layer, 'b', count);
}

float *ddp_node_param(ddp_graph *g, const ddp_node *n, int k, ddp_shape *shape)
{
    if (!g || !n || n->graph != g || k < 0 || k >= n->spec.params) return NULL;
    if (shape) *shape = n->spec.param[k].shape;
    return n->param[k];
}

float *ddp_node_gradient(ddp_graph *g, const ddp_node *n, int k)
{
    if (!g || !n || n->graph != g || k < 0 || k >= n->spec.params) return NULL;
    return n->tied >= 0 && k == 0 ? g->node[n->tied]->grad[0] : n->grad[k];
}

float *ddp_node_buffer(ddp_graph *g, const ddp_node *n, int k, ddp_shape *shape)
{
    if (!g || !n || n->graph != g || k < 0 || k >= n->spec.buffers) return NULL;
    if (shape) *shape = n->spec.buffer[k].shape;
    return n->buffer[k];
}
