/* Turns a graph into arrays: checks, memory plan, parameters, registration of the layers. Also creates and
 * frees graphs. */
#include "graph/graph_internal.h"

static ddp_status ddp__build_check(ddp_graph *g)
{
    int i, operators = 0;

    if (g->open_layer >= 0)
        return ddp__fail(&g->error, DDP_USAGE,
                         "layer \"%s\" is still open: call ddp_layer_end "
                         "before ddp_graph_build",
                         g->layer[g->open_layer].name);
    if (g->open_segment >= 0)
        return ddp__fail(&g->error, DDP_USAGE,
                         "a segment to recompute is still open: call "
                         "ddp_recompute_end before ddp_graph_build");
    for (i = 0; i < ddp__count(g->node); i++) {
        const ddp_node *n = g->node[i];
        if (!n->op) continue;
        operators++;
        if (n->layer < 0 && (n->spec.params > (n->tied >= 0) || n->spec.buffers))
            return ddp__fail(&g->error, DDP_USAGE,
                             "operator %.60s (node %d) has %s but is outside layers: build it between "
                             "ddp_layer_begin and ddp_layer_end",
                             n->op->name, i, n->spec.params > (n->tied >= 0) ? "parameters" : "buffers");
    }
    if (!operators) return ddp__fail(&g->error, DDP_USAGE, "the graph has no operators");
    return DDP_OK;
}

/* Bytes of the gradient of one use of a tied parameter. */
static size_t ddp__use_bytes(const ddp_node *n)
{
    return (size_t)ddp_shape_count(&n->spec.param[0].shape) * sizeof(float);
}

/* 1 if this process runs this use of a tied parameter, or owns the parameter. */
static int ddp__use_is_here(const ddp_graph *g, const ddp_node *n)
{
    return n->tied >= 0 && (n->here == (int)DDP__HERE_OWN || g->node[n->tied]->here == (int)DDP__HERE_OWN);
}

/* 1 if another stage owns the parameter and sends its values in every step. */
static int ddp__use_is_guest(const ddp_graph *g, const ddp_node *n)
{
    return n->tied >= 0 && n->here == (int)DDP__HERE_OWN && g->node[n->tied]->here != (int)DDP__HERE_OWN;
}

static double ddp__build_parameters(const ddp_graph *g)
{
    double bytes = 0;

    for (int i = 0; i < ddp__count(g->layer); i++) {
        bytes += 4 * (2 * (double)g->layer[i].count + (double)g->layer[i].buffer_count);
        if (g->element < 4) bytes += (double)g->element * (double)g->layer[i].count;
    }
    for (int i = 0; i < ddp__count(g->node); i++)
        if (ddp__use_is_here(g, g->node[i])) bytes += (double)ddp__use_bytes(g->node[i]);
    return bytes;
}

/* Memory of the machine in bytes, or 0 if unknown, or the user's allocator decides. */
static double ddp__build_memory(const ddp_graph *g)
{
    const ddp_allocator *a = ddp__graph_allocator(g);
    const ddp_backend *b = ddp__graph_backend(g);
    double total, unused;

    if (!b) return a && a->alloc ? 0 : ddp__memory_total();
    b->memory(g->host->device, &total, &unused);
    return unused;
}

void ddp__graph_takes(ddp_graph *g, double bytes) { g->owned.bytes += bytes; }

int ddp__graph_may_take(const ddp_graph *g, double more)
{
    const double total = ddp__memory_total();

    return !(total > 0) || g->owned.bytes + more <= total;
}

static ddp_status ddp__build_too_large(ddp_graph *g)
{
    const double parameters = ddp__build_parameters(g), activations = (double)g->reuse.bytes[DDP__ARENA_OWN];
    const double total = ddp__build_memory(g);
    const char *remedy = "use a smaller batch, or recompute the blocks (recompute of the model, "
                         "--recompute of a trainer, ddp_recompute_begin)";
    const ddp_backend *b = ddp__graph_backend(g);
    char has[80] = "";

    if (ddp__count(g->segment)) remedy = "use a smaller batch";
    if (parameters > activations) remedy = "use a smaller model";
    if (b)
        ddp__format(has, sizeof has, "; the device has %.0f free", total);
    else if (total > 0)
        ddp__format(has, sizeof has, "; this process may use %.0f", total);
    return ddp__fail(&g->error, DDP_MEMORY,
                     "out of memory: the graph needs %.0f bytes, %.0f for "
                     "parameters and gradients and %.0f for activations%s: %s",
                     parameters + activations, parameters, activations, has, remedy);
}

/* Rejects a graph that cannot fit: an allocation beyond the machine's memory may succeed, and the process
 * is then killed when it uses the memory. */
static ddp_status ddp__build_plan(ddp_graph *g)
{
    const double total = ddp__build_memory(g);

    DDP__TRY(ddp__layout_plan(g, 1, &g->reuse, &g->error));
    DDP__TRY(ddp__layout_plan(g, 0, &g->plain, &g->error));
    if (total > 0 && ddp__build_parameters(g) + (double)g->reuse.bytes[DDP__ARENA_OWN] > total)
        return ddp__build_too_large(g);
    return DDP_OK;
}

/* Allocates floats and, if use is not NULL, the mirror that operators read. Returns 0 if memory is short. */
static int ddp__build_floats(const ddp_graph *g, float **at, size_t count, const void **use)
{
    const ddp_backend *b = ddp__graph_backend(g);

    *at = (float *)ddp__host_alloc(g->host, count * sizeof **at);
    if (use && *at) *use = b ? b->mirror(g->host->device, *at, count) : *at;
    return !count || (*at && (!use || *use));
}

static ddp_status ddp__build_layers(ddp_graph *g)
{
    int fits = 1;

    for (int i = 0; fits && i < ddp__count(g->layer); i++) {
        ddp__graph_layer *l = &g->layer[i];
        fits = ddp__build_floats(g, &l->params, l->count, &l->use) &&
               ddp__build_floats(g, &l->grads, l->count, NULL) &&
               ddp__build_floats(g, &l->buffers, l->buffer_count, NULL);
    }
    for (int i = 0; fits && i < ddp__count(g->node); i++) {
        ddp_node *n = g->node[i];
        const size_t count = ddp__use_is_here(g, n) ? ddp__use_bytes(n) / sizeof(float) : 0;
        fits = ddp__build_floats(g, &n->grad[0], count, NULL) &&
               (!ddp__use_is_guest(g, n) || ddp__build_floats(g, &n->param[0], count, &n->use[0]));
    }
    return fits ? DDP_OK : ddp__build_too_large(g);
}

/* Sets the array pointers of every node. Arrays follow each other without gaps. */
static void ddp__build_pointers(ddp_graph *g)
{
    size_t used = 0, buffered = 0;
    int i, k, layer = -1;

    for (i = 0; i < ddp__count(g->node); i++) {
        ddp_node *n = g->node[i];
        if (n->layer != layer) used = buffered = 0;
        layer = n->layer;
        if (n->here != (int)DDP__HERE_OWN) continue;
        if (n->tied >= 0 && !ddp__use_is_guest(g, n)) {
            n->param[0] = g->node[n->tied]->param[0];
            n->use[0] = g->node[n->tied]->use[0];
        }
        for (k = n->tied >= 0; k < n->spec.params; k++) {
            n->param[k] = g->layer[layer].params + used;
            n->use[k] = (const char *)g->layer[layer].use + used * g->element;
            n->grad[k] = g->layer[layer].grads + used;
            used += (size_t)ddp_shape_count(&n->spec.param[k].shape);
        }
        for (k = 0; k < n->spec.buffers; k++) {
            n->buffer[k] = g->layer[layer].buffers + buffered;
            buffered += (size_t)ddp_shape_count(&n->spec.buffer[k].shape);
        }
    }
}

void ddp__node_places(ddp_graph *g)
{
    size_t params = 0, buffers = 0;
    int layer = -1;

    for (int i = 0; i < ddp__count(g->node); i++) {
        ddp_node *n = g->node[i];
        if (n->layer != layer) {
            params = 0;
            buffers = n->layer >= 0 ? g->layer[n->layer].count : 0;
        }
        layer = n->layer;
        n->place = params;
        n->buffer_place = buffers;
        params += ddp__arrays_count(n->spec.param, n->tied >= 0, n->spec.params);
        buffers += ddp__arrays_count(n->spec.buffer, 0, n->spec.buffers);
    }
}

static void ddp__param_fill(const ddp_param *p, ddp_rng r, float *w)
{
    const long count = p->init == DDP_INIT_ZERO ? 0 : ddp_shape_count(&p->shape); /* already zeroed */

    for (long i = 0; i < count; i++)
        w[i] = p->init == DDP_INIT_ONE
                   ? 1
                   : (float)((double)p->scale *
                             (p->init == DDP_INIT_NORMAL ? ddp_rng_normal(&r) : 2 * ddp_rng_uniform(&r) - 1));
}

/* Initialises the parameters of nodes first..last-1. Every array has its own random stream, so
 * several threads may fill arrays. The stream depends on the array's place in its whole layer (buffers
 * after parameters), not on the node index, so that an inserted dropout or another loss elsewhere in the
 * model does not change it. */
static void ddp__build_fill(void *user, long first, long last)
{
    ddp_graph *g = (ddp_graph *)user;
    uint64_t seed = g->host ? g->host->seed : 0;

    for (long i = first; i < last; i++) {
        ddp_node *n = g->node[i];
        const ddp__graph_layer *l = n->layer >= 0 ? &g->layer[n->layer] : NULL;
        size_t place = n->place;
        if (n->here != (int)DDP__HERE_OWN) continue;
        for (int k = n->tied >= 0; k < n->spec.params + n->spec.buffers; k++) {
            const int b = k - n->spec.params; /* index of a buffer */
            const ddp_param *p = b < 0 ? &n->spec.param[k] : &n->spec.buffer[b];
            float *at = b < 0 ? n->param[k] : n->buffer[b];
            if (l->image) at = l->image + (b < 0 ? at - l->params : at - l->buffers + (long)l->count);
            if (b == 0) place = n->buffer_place;
            ddp__param_fill(p, ddp_rng_seed(seed, ((uint64_t)(unsigned)n->layer << 40) + place), at);
            place += (size_t)ddp_shape_count(&p->shape);
        }
    }
}

/* On a device, the initial values are computed on the host and then uploaded. */
static ddp_status ddp__build_values(ddp_graph *g)
{
    const ddp_backend *b = ddp__graph_backend(g);
    ddp_status s = DDP_OK;

    for (int i = 0; b && i < ddp__count(g->layer); i++) {
        ddp__graph_layer *l = &g->layer[i];
        l->image = (float *)ddp__calloc(l->count + l->buffer_count, sizeof *l->image);
        if (!l->image) s = ddp__build_too_large(g);
    }
    if (s == DDP_OK)
        ddp__pool_run(g->host ? g->host->pool : NULL, ddp__count(g->node), 1, ddp__build_fill, g);
    for (int i = 0; b && i < ddp__count(g->layer); i++) {
        ddp__graph_layer *l = &g->layer[i];
        if (s == DDP_OK) {
            ddp__host_upload(g->host, l->params, l->image, l->count * sizeof *l->image);
            ddp__host_upload(g->host, l->buffers, l->image + l->count, l->buffer_count * sizeof *l->image);
        }
        DDP_FREE(l->image);
        l->image = NULL;
    }
    return s;
}

/* CPU operators need a pool with working memory: the context's pool or, if the context has one thread, a
 * pool of the graph. */
static ddp_status ddp__build_rooms(ddp_graph *g)
{
    if (ddp__graph_backend(g)) return DDP_OK;
    g->pool = g->host ? g->host->pool : NULL;
    if (!g->pool) g->pool = g->own_pool = ddp__pool_open(1);
    return g->pool && ddp__pool_rooms(g->pool) ? DDP_OK : ddp__build_too_large(g);
}

/* Selects the implementation of each node and reserves its extra memory. */
static ddp_status ddp__build_operators(ddp_graph *g)
{
    const ddp_backend *b = ddp__graph_backend(g);
    size_t most = 0, bytes;

    for (int i = 0; i < ddp__count(g->node); i++) {
        ddp_node *n = g->node[i];
        if (n->here != (int)DDP__HERE_OWN) continue;
        n->run = n->op && b ? b->op(g->host->device, n->op->name) : n->op;
        if (!n->op) continue;
        if (!n->run)
            return ddp__fail(&g->error, DDP_UNSUPPORTED,
                             "operator %.60s (node %d) has no kernel for the %s backend: "
                             "build the model without it, or on the CPU",
                             n->op->name, i, b->name);
        bytes = b ? b->scratch(g->host->device, n->run, &n->spec) : 0;
        if (bytes == (size_t)-1)
            return ddp__fail(&g->error, DDP_UNSUPPORTED,
                             "operator %.60s (node %d) works on rows, but the %s backend stores arrays of "
                             "four dimensions as images: call ddp_flatten first, or train on the CPU",
                             n->op->name, i, b->name);
        if (bytes > most) most = bytes;
    }
    return !b || b->reserve(g->host->device, most) ? DDP_OK : ddp__build_too_large(g);
}

/* Hash of the model properties that layer names and sizes do not show, such as the number of heads:
 * operators, arguments, parameter shapes. The batch size and dropout are excluded, because they may
 * change between runs. */
static uint64_t ddp__build_hash(const ddp_graph *g)
{
    uint64_t h = DDP__HASH_START;

    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_node *n = g->node[i];
        if (!n->op || !strcmp(n->op->name, "dropout")) continue;
        h = ddp__hash(h, n->op->name, strlen(n->op->name) + 1);
        h = ddp__hash(h, n->spec.arg, sizeof n->spec.arg);
        for (int k = 0; k < n->spec.params; k++) {
            const ddp_shape *s = &n->spec.param[k].shape;
            h = ddp__hash(h, s->dim, (size_t)s->dims * sizeof *s->dim);
        }
    }
    return h;
}

/* Hash of the dropout settings that ddp__build_hash excludes. */
static void ddp__build_dropout(ddp_graph *g)
{
    uint64_t h = DDP__HASH_START;

    g->owned.most_dropout = 0;
    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_node *n = g->node[i];
        if (!n->op || strcmp(n->op->name, "dropout")) continue;
        h = ddp__hash(h, &i, sizeof i);
        h = ddp__hash(h, n->spec.arg, sizeof n->spec.arg);
        if (n->spec.arg[0] > g->owned.most_dropout) g->owned.most_dropout = n->spec.arg[0];
    }
    g->owned.dropout = h;
}

static ddp_status ddp__build_state(ddp_graph *g)
{
    const ddp_backend *b = ddp__graph_backend(g);

    g->state = ddp__state_open(g, &g->reuse);
    if (!g->state) return ddp__build_too_large(g);
    for (int i = 0; b && i < ddp__count(g->node); i++) {
        const size_t bytes = 4 * (size_t)ddp_shape_count(&g->node[i]->spec.out);
        if (g->node[i]->op || g->stages) continue;
        g->node[i]->feed = b->pin(g->host->device, bytes);
        if (!g->node[i]->feed)
            return ddp__fail(&g->error, DDP_MEMORY,
                             "out of memory: input \"%.80s\" needs %zu "
                             "bytes that the device can read",
                             g->node[i]->name, bytes);
    }
    g->owned.passes = &g->state->pass;
    g->owned.model = ddp__build_hash(g);
    ddp__build_dropout(g);
    g->owned.bytes = b ? 0 : ddp__build_parameters(g) + (double)g->reuse.bytes[DDP__ARENA_OWN];
    return DDP_OK;
}

/* Lists the matrices of a layer, up to room, and returns their number. The last operator with parameters
 * is the head. */
static int ddp__build_matrices(const ddp_graph *g, int layer, ddp_matrix *out, int room)
{
    int head = ddp__count(g->node) - 1, n = 0;

    while (head > 0 && !g->node[head]->spec.params) head--;
    for (int i = 0; i < head; i++) {
        const ddp_node *x = g->node[i];
        for (int k = x->tied >= 0;
             x->layer == layer && x->here == (int)DDP__HERE_OWN && k < x->spec.params && n < room; k++) {
            const ddp_shape *s = &x->spec.param[k].shape;
            if (!x->spec.param[k].matrix) continue;
            out[n].params = x->param[k];
            out[n].rows = (size_t)s->dim[0];
            out[n++].columns = (size_t)(ddp_shape_count(s) / s->dim[0]);
        }
    }
    return n;
}

static ddp_status ddp__build_register(ddp_graph *g)
{
    const int room = DDP_OP_PARAMS * ddp__count(g->node);
    ddp_matrix *matrix;
    int i, code = 0;

    if (!g->host || !g->host->hooks || !g->host->hooks->add_layer) return DDP_OK;
    matrix = (ddp_matrix *)ddp__calloc((size_t)room, sizeof *matrix);
    if (!matrix)
        return ddp__fail(&g->error, DDP_MEMORY, "out of memory for the matrices of %d operators",
                         ddp__count(g->node));
    for (i = 0; i < ddp__count(g->layer) && !code; i++) {
        ddp__graph_layer *l = &g->layer[i];
        const int matrices = ddp__build_matrices(g, i, matrix, room);
        const ddp_block buffers = {l->buffers, NULL, l->buffer_count, DDP_BUFFERS};
        const ddp_layer layer = {l->name,  l->params, l->grads, l->count, &buffers, l->buffer_count > 0,
                                 l->flops, g->group,  matrix,   matrices};
        if (g->stages && l->first < 0) continue;
        l->unit = g->registered++; /* even a failed call may have stored a pointer */
        code = g->host->hooks->add_layer((ddp_ctx *)(void *)g->host, &layer);
    }
    DDP_FREE(matrix);
    if (!code) return DDP_OK;
    return ddp__fail(&g->error, (ddp_status)code, "%s",
                     g->host->error.code ? g->host->error.msg : "the context rejected a layer of the graph");
}

int ddp_graph_build(ddp_graph *g)
{
    if (!g) return (int)DDP_MEMORY; /* ddp_graph_new was out of memory */
    DDP__DO(ddp__host_check(g->host, &g->error));
    if (g->error.code) return (int)g->error.code;
    if (g->built) return (int)ddp__fail(&g->error, DDP_USAGE, "ddp_graph_build was called twice");
    DDP__DO(ddp__build_check(g));
    if (!g->stages) ddp__node_places(g);
    DDP__DO(ddp__build_plan(g));
    DDP__DO(ddp__build_layers(g));
    ddp__build_pointers(g);
    DDP__DO(ddp__build_rooms(g));
    DDP__DO(ddp__build_operators(g));
    DDP__DO(ddp__build_values(g));
    DDP__DO(ddp__build_state(g));
    DDP__DO(ddp__build_register(g));
    g->built = 1;
    return 0;
}

/* ---- creating and freeing a graph ---- */

static void ddp__graph_destroy(ddp__owned *self)
{
    ddp_graph *g = (ddp_graph *)self;
    const ddp__host *h = g->host;
    const ddp_backend *backend = ddp__graph_backend(g);

    ddp_state_free(g->state);
    ddp__layout_free(&g->reuse);
    ddp__layout_free(&g->plain);
    for (int i = 0; i < ddp__count(g->layer); i++) {
        ddp__graph_layer *l = &g->layer[i];
        if (backend && l->use) backend->forget(g->host->device, l->params);
        ddp__host_release(h, l->params, l->count * sizeof(float));
        ddp__host_release(h, l->grads, l->count * sizeof(float));
        ddp__host_release(h, l->buffers, l->buffer_count * sizeof(float));
        DDP_FREE(l->name);
    }
    for (int i = ddp__count(g->node) - 1; i >= 0; i--) { /* users of a weight are freed before its owner */
        ddp_node *n = g->node[i];
        if (n->tied >= 0) ddp__host_release(h, n->grad[0], ddp__use_bytes(n));
        if (ddp__use_is_guest(g, n)) {
            if (backend && n->use[0]) backend->forget(g->host->device, n->param[0]);
            ddp__host_release(h, n->param[0], ddp__use_bytes(n));
        }
        if (n->feed) backend->unpin(g->host->device, n->feed, 4 * (size_t)ddp_shape_count(&n->spec.out));
        DDP_FREE(n->shown);
        DDP_FREE(n->name);
        DDP_FREE(n);
    }
    ddp__array_free(g->layer);
    ddp__array_free(g->segment);
    ddp__array_free(g->node);
    ddp__array_free(g->ops);
    ddp__pool_close(g->own_pool);
    DDP_FREE(g);
}

ddp_graph *ddp__graph_new(ddp_ctx *d, const ddp_op *(*builtin)(const char *name))
{
    ddp_graph *g = (ddp_graph *)ddp__calloc(1, sizeof *g);

    if (!g) return NULL;
    g->builtin = builtin;
    g->open_layer = g->open_segment = g->early = -1;
    g->owned.destroy = ddp__graph_destroy;
    g->host = (ddp__host *)(void *)d; /* a context begins with its host */
    g->element = sizeof(float);
    if (g->host) {
        g->owned.next = g->host->owned;
        g->host->owned = &g->owned;
        if (g->host->backend) g->element = (size_t)g->host->backend->element_bytes(g->host->device);
    }
    return g;
}

void ddp_graph_free(ddp_graph *g)
{
    ddp__owned **link;

    if (!g || g->registered) return; /* the context still uses the layers and frees the graph */
    link = g->host ? &g->host->owned : NULL;
    while (link && *link != &g->owned) link = &(*link)->next;
    if (link) *link = g->owned.next;
    ddp__graph_destroy(&g->owned);
}
