/* The activations and gradients of one micro-batch. */
#include "base/platform.h"
#include "base/memory.h"
#include "graph/graph_internal.h"

void *ddp__state_at(const ddp_state *s, size_t offset)
{
    return offset == DDP__NOWHERE ? NULL : s->arena + offset;
}

ddp_state *ddp__state_open(ddp_graph *g, const ddp__layout *layout)
{
    ddp_state *s = (ddp_state *)ddp__calloc(1, sizeof *s);

    if (!s) return NULL;
    s->graph = g;
    s->layout = layout;
    s->pass = g->states_made++ << 32; /* states count their passes from unlike numbers */
    s->written = (unsigned char *)ddp__calloc((size_t)g->nodes, 1);
    s->arena = (char *)ddp__alloc(ddp__graph_allocator(g), layout->bytes);
    if (s->written && s->arena) return s;
    ddp_state_free(s);
    return NULL;
}

ddp_state *ddp_state_new(ddp_graph *g)
{
    const ddp_allocator *a = g ? ddp__graph_allocator(g) : NULL;
    const double total = a && a->alloc ? 0 : ddp__memory_total();
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
            *(float *)ddp__state_at(s, g->plain.gradient[i]) = 1;
    return s;
}

void ddp_state_free(ddp_state *s)
{
    if (!s) return;
    ddp__release(ddp__graph_allocator(s->graph), s->arena, s->layout->bytes);
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
            return ddp_state_data(g->state, g->node[i]);
    return NULL;
}

const float *ddp_output(ddp_graph *g, const ddp_node *n)
{
    if (!g || !g->state || !n || n->graph != g || n->type != DDP_F32) return NULL;
    if (g->state->layout->fate[n->index] != DDP__KEPT) return NULL;
    return (const float *)ddp_state_data(g->state, n);
}

float ddp_value(ddp_graph *g, const ddp_node *n)
{
    const float *out = ddp_output(g, n);

    return out && ddp_shape_count(&n->spec.out) == 1 ? *out : NAN;
}
