/* The activations and gradients of one micro-batch. */
#include "base/core.h"
#include "graph/graph_internal.h"

void *ddp__state_at(const ddp_state *s, size_t offset) { return offset == DDP__NOWHERE ? NULL : s->arena + offset; }

ddp_state *ddp__state_open(ddp_graph *g, const ddp__layout *layout)
{
    ddp_state *s = (ddp_state *)ddp__calloc(1, sizeof *s);

    if (!s) return NULL;
    s->graph = g;
    s->layout = layout;
    s->pass = g->states_made++ << 32; /* states count their passes from unlike numbers */
    s->written = (unsigned char *)ddp__calloc((size_t)g->nodes, 1);
    s->arena = (char *)ddp__host_alloc(g->host, layout->bytes);
    if (s->written && s->arena) return s;
    ddp_state_free(s);
    return NULL;
}

void ddp__node_one(const ddp_node *n, void *at)
{
    void *device;
    const ddp_backend *b = ddp__graph_backend(n->graph, &device);
    const float one = 1;

    if (!b) *(float *)at = one;
    else if (n->spec.out.dims == 0 || n->graph->element == sizeof one)
        b->fill(device, (float *)at, 1, one);
    else b->upload_elements(device, at, &one, 1);
}

ddp_state *ddp_state_new(ddp_graph *g)
{
    const ddp_allocator *a = g ? ddp__graph_allocator(g) : NULL;
    const int own = g && g->host && g->host->backend; /* a device says itself what it has not */
    const double total = own || (a && a->alloc) ? 0 : ddp__memory_total();
    ddp_state *s;
    int i, k;

    if (!g || !g->built || (total > 0 && (double)g->plain.bytes > total)) return NULL;
    s = ddp__state_open(g, &g->plain);
    if (!s) return NULL;

    /* written marks the used here; a scalar nobody uses is a loss, whose gradient is 1 */
    for (i = 0; i < g->nodes; i++)
        for (k = 0; k < g->node[i]->spec.inputs; k++) s->written[g->node[i]->input[k]] = 1;
    for (i = 0; i < g->nodes; i++)
        if (!s->written[i] && g->node[i]->op && ddp_shape_count(&g->node[i]->spec.out) == 1)
            ddp__node_one(g->node[i], ddp__state_at(s, g->plain.gradient[i]));
    return s;
}

void ddp_state_free(ddp_state *s)
{
    if (!s) return;
    ddp__host_release(s->graph->host, s->arena, s->layout->bytes);
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
    int i;

    if (!g || !g->state || !name) return NULL;
    for (i = 0; i < g->nodes; i++)
        if (!g->node[i]->op && strcmp(g->node[i]->name, name) == 0)
            return g->node[i]->feed ? g->node[i]->feed : ddp_state_data(g->state, g->node[i]);
    return NULL;
}

void ddp__feed_inputs(const ddp_graph *g)
{
    void *device;
    const ddp_backend *b = ddp__graph_backend(g, &device);
    int i;

    for (i = 0; b && i < g->nodes; i++) {
        const ddp_node *n = g->node[i];
        const size_t count = (size_t)ddp_shape_count(&n->spec.out);
        void *to;

        if (n->op) continue;
        to = ddp_state_data(g->state, n);
        if (ddp__output_bytes(n) == 4 * count) b->upload(device, to, n->feed, 4 * count);
        else b->upload_elements(device, to, (const float *)n->feed, count);
    }
}

/* What a node shows comes from the device when it is asked for; NULL where that fails. */
static const float *ddp__output_show(ddp_graph *g, const ddp_node *n, const void *from)
{
    void *device;
    const ddp_backend *b = ddp__graph_backend(g, &device);
    const size_t count = (size_t)ddp_shape_count(&n->spec.out);
    ddp_node *own = g->node[n->index];
    ddp_status s;

    if (!b || !from) return (const float *)from;
    if (!own->shown) own->shown = (float *)ddp__calloc(count, sizeof *own->shown);
    if (!own->shown) return NULL;
    s = ddp__output_bytes(n) == 4 * count
            ? b->download(device, own->shown, from, 4 * count, &g->error)
            : b->download_elements(device, own->shown, from, count, &g->error);
    return s == DDP_OK ? own->shown : NULL;
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

void ddp__value_early(ddp_graph *g)
{
    void *device;
    const ddp_backend *b = ddp__graph_backend(g, &device);
    const ddp_node *n = g->node[g->nodes - 1];
    const float *from;

    g->early = -1;
    if (!b || n->type != DDP_F32 || n->spec.out.dims) return;
    if (g->state->layout->fate[n->index] != DDP__KEPT) return;
    from = (const float *)ddp_state_data(g->state, n);
    if (!from) return;
    b->early(device, from);
    g->early = n->index;
}

float ddp_value(ddp_graph *g, const ddp_node *n)
{
    const ddp_backend *b;
    const float *out;
    void *device;
    float value;

    if (g && n && g->state && n->graph == g && g->early == n->index) {
        b = ddp__graph_backend(g, &device);
        out = (const float *)ddp_state_data(g->state, n);
        if (b->early_value(device, out, &value)) return value;
    }
    out = n && ddp_shape_count(&n->spec.out) == 1 ? ddp_output(g, n) : NULL;
    return out ? *out : NAN;
}
