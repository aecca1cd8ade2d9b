/* A graph cut into stages, of which this process holds one: what is here, what enters and leaves, and its passes. */
#include "graph/graph_internal.h"

/* ---- which operators are here ---- */

static ddp_status ddp__cut_check(ddp_graph *g, const int *stage_of, int stages, int own)
{
    int *operators;
    ddp_status code = DDP_OK;

    if (g->error.code) return g->error.code;
    if (g->built || g->stages) return ddp__fail(&g->error, DDP_USAGE, "ddp_graph_cut comes once, before ddp_graph_build");
    if (!stage_of || stages < 1 || own < 0 || own >= stages)
        return ddp__fail(&g->error, DDP_ARG, "ddp_graph_cut: stage %d of %d does not exist, or the list is NULL", own,
                         stages);
    operators = (int *)ddp__calloc((size_t)stages, sizeof *operators);
    if (!operators) return ddp__fail(&g->error, DDP_MEMORY, "out of memory for a cut into %d stages", stages);
    for (int i = 0; code == DDP_OK && i < g->nodes; i++) {
        const ddp_node *n = g->node[i];
        if (!n->op) continue;
        if (stage_of[i] < 0 || stage_of[i] >= stages) {
            code = ddp__fail(&g->error, DDP_ARG, "the cut puts operator %.60s (node %d) into stage %d, stages are 0..%d",
                             n->op->name, i, stage_of[i], stages - 1);
            break;
        }
        operators[stage_of[i]]++;
        for (int k = 0; k < n->spec.inputs; k++) {
            const int p = n->input[k];
            if (g->node[p]->op && stage_of[p] > stage_of[i])
                code = ddp__fail(&g->error, DDP_ARG, "the cut puts node %d into stage %d and its user, node %d, into the "
                                 "earlier stage %d: data flow from stage to later stage", p, stage_of[p], i, stage_of[i]);
        }
    }
    for (int s = 0; code == DDP_OK && s < stages; s++)
        if (!operators[s])
            code = ddp__fail(&g->error, DDP_ARG, "the cut leaves stage %d of %d without operators: use fewer stages", s,
                             stages);
    DDP_FREE(operators);
    return code;
}

/* Output p goes from stage to stage, to each that uses it: where it comes from to this one, where it goes on to. */
static void ddp__cut_hops(ddp_graph *g, ddp_node *p)
{
    const int own = g->own_stage;
    int here = p->stage == own, before = p->stage < own ? p->stage : -1, after = -1;

    for (int i = p->index + 1; i < g->nodes; i++)
        for (int k = 0; g->node[i]->op && k < g->node[i]->spec.inputs; k++) {
            const int s = g->node[i]->stage;
            if (g->node[i]->input[k] != p->index) continue;
            here |= s == own;
            if (s < own && s > before) before = s;
            if (s > own && (after < 0 || s < after)) after = s;
        }
    p->here = p->stage == own ? DDP__HERE_OWN : here ? DDP__HERE_ENTERS : DDP__HERE_NOT;
    p->from = here && p->stage != own ? before : -1;
    p->to = here ? after : -1;
}

/* One worker adds the gradients of an output's uses up from the last use to the first. On the way back from stage to stage
 * that order is another one where stages do not follow the uses. Two make the same sum; of more each has an array of its
 * own until p's stage adds them up. */
static void ddp__cut_parts(ddp_graph *g, ddp_node *p)
{
    int uses = 0, strays = 0, stage = g->stages;

    for (int i = g->nodes - 1; i > p->index && p->has_gradient; i--) {
        ddp_node *n = g->node[i];
        for (int k = 0; n->has_gradient && k < n->spec.inputs; k++) {
            if (n->input[k] != p->index) continue;
            n->part[k] = uses++;
            strays |= n->stage > stage;
            stage = n->stage;
        }
    }
    if (!strays || uses < 3) return;
    p->parts = uses;
    p->pair = NULL; /* the sum comes between the two */
}

int ddp__part_stage(const ddp_node *n, int part)
{
    const ddp_graph *g = n->graph;

    for (int i = n->index + 1; i < g->nodes; i++)
        for (int k = 0; g->node[i]->has_gradient && k < g->node[i]->spec.inputs; k++)
            if (g->node[i]->input[k] == n->index && g->node[i]->part[k] == part) return g->node[i]->stage;
    return -1;
}

/* Layers are what they have here; where an array lies in the whole layer decides how it starts. */
static void ddp__cut_layers(ddp_graph *g)
{
    for (int l = 0; l < g->layers; l++) {
        ddp__graph_layer *layer = &g->layer[l];
        int first = -1, last = -1;
        layer->count = layer->buffer_count = 0;
        layer->flops = 0;
        for (int i = layer->first; i >= 0 && i <= layer->last; i++) {
            const ddp_node *n = g->node[i];
            if (!n->op || n->layer != l || n->here != DDP__HERE_OWN) continue;
            if (first < 0) first = i;
            last = i;
            layer->flops += n->spec.flops;
            for (int k = n->tied >= 0; k < n->spec.params; k++)
                layer->count += (size_t)ddp_shape_count(&n->spec.param[k].shape);
            for (int k = 0; k < n->spec.buffers; k++)
                layer->buffer_count += (size_t)ddp_shape_count(&n->spec.buffer[k].shape);
        }
        layer->first = first, layer->last = last;
    }
}

static ddp_status ddp__graph_cut(ddp_graph *g, const int *stage_of, int stages, int own)
{
    DDP__TRY(ddp__cut_check(g, stage_of, stages, own));
    ddp__node_places(g);
    g->stages = stages;
    g->own_stage = own;
    for (int i = 0; i < g->nodes; i++) g->node[i]->stage = g->node[i]->op ? stage_of[i] : -1;
    for (int i = 0; i < g->nodes; i++) {
        ddp_node *n = g->node[i];
        if (i + 1 < g->nodes && n->stage != g->node[i + 1]->stage) n->pair = NULL;
        ddp__cut_parts(g, n);
        if (n->op) ddp__cut_hops(g, n);
        else n->here = DDP__HERE_NOT, n->from = n->to = -1;
        for (int k = 0; n->here == DDP__HERE_OWN && k < n->spec.inputs; k++)
            if (!g->node[n->input[k]]->op) g->node[n->input[k]]->here = DDP__HERE_OWN;
    }
    ddp__cut_layers(g);
    return DDP_OK;
}

int ddp_graph_cut(ddp_graph *g, const int *stage_of, int stages, int own)
{
    return g ? (int)ddp__graph_cut(g, stage_of, stages, own) : (int)DDP_MEMORY;
}

/* ---- passes of one micro-batch ---- */

int ddp__cut_forward(ddp_state *s, int training)
{
    ddp_graph *g = s->graph;
    const ddp__hooks *hooks = training && g->host ? g->host->hooks : NULL;
    int code = 0;

    for (int i = 0; i < g->nodes && !code; i++) {
        const ddp_node *n = g->node[i];
        if (!n->op || n->here != DDP__HERE_OWN) continue;
        if (hooks && n->layer >= 0 && g->layer[n->layer].first == i)
            code = ddp__hook(g, hooks->forward_begin, n->layer);
        if (!code) ddp__pass_forward(s, i, training);
    }
    return code;
}

/* Gradients that later stages have sent are there, and the loss's will be. What nothing reaches stays out. */
static void ddp__cut_reached(ddp_state *s, const ddp_node *loss)
{
    const ddp_graph *g = s->graph;

    for (int i = 0; i < g->nodes; i++) s->written[i] = g->node[i]->to >= 0 && g->node[i]->has_gradient;
    if (loss && loss->here == DDP__HERE_OWN) s->written[loss->index] = 1;
}

/* Parts of uses that nothing has reached are zero, as nobody writes them. */
static void ddp__parts_add(const ddp_state *s, const ddp_node *n)
{
    float *sum = (float *)ddp__state_at(s, s->layout->gradient[n->index]);

    ddp__host_copy(s->graph->host, sum, ddp__part_at(s, n, 0), ddp__output_bytes(n));
    for (int i = 1; i < n->parts; i++)
        ddp__host_add(s->graph->host, sum, (const float *)ddp__part_at(s, n, i), (size_t)ddp_shape_count(&n->spec.out));
}

/* What the stage before waits for is there, also where nothing has reached it. */
static void ddp__cut_entered(ddp_state *s)
{
    const ddp_graph *g = s->graph;

    for (int i = 0; i < g->nodes; i++) {
        const ddp_node *n = g->node[i];
        if (n->from < 0 || !n->has_gradient || n->parts || s->written[i]) continue;
        ddp__host_zero(g->host, ddp__state_at(s, s->layout->gradient[i]), ddp__output_bytes(n));
    }
}

/* Node i's part of a backward, and that of the one before it where both run as one. The last that has run. A segment
 * that is computed again has its weight gradients at once: its activations do not stay. */
static int ddp__cut_node(ddp_state *s, int i, const ddp_node *loss, ddp__cut_part part)
{
    const ddp_node *n = s->graph->node[i];

    if (n->parts && part != DDP__CUT_WEIGHTS) ddp__parts_add(s, n);
    if (n == loss && part != DDP__CUT_WEIGHTS) ddp__node_one(n, ddp__state_at(s, s->layout->gradient[i]));
    if (part == DDP__CUT_BOTH || (n->segment >= 0 && part == DDP__CUT_INPUTS)) return ddp__pass_backward(s, i);
    if (n->segment < 0) ddp__run_backward_part(s, n, part);
    return i;
}

int ddp__cut_backward(ddp_state *s, const ddp_node *loss, ddp__cut_part part)
{
    ddp_graph *g = s->graph;
    const ddp__hooks *hooks = g->host ? g->host->hooks : NULL;
    int done = -1, segment = -1, code = 0;

    if (part != DDP__CUT_WEIGHTS) ddp__cut_reached(s, loss);
    for (int i = g->nodes - 1; i >= 0 && !code; i--) {
        const ddp_node *n = g->node[i];
        if (!n->op || n->here != DDP__HERE_OWN) continue;
        if (hooks && n->layer >= 0 && g->layer[n->layer].last == i)
            code = ddp__hook(g, hooks->backward_begin, n->layer);
        if (!code && s->written[i] && n->has_gradient && i != done) {
            if (n->segment >= 0 && n->segment != segment && part != DDP__CUT_WEIGHTS) ddp__run_again(s, n->segment);
            segment = n->segment;
            done = ddp__cut_node(s, i, loss, part);
        }
        if (part == DDP__CUT_INPUTS || n->layer < 0 || g->layer[n->layer].first != i || code) continue;
        code = ddp__layer_uses_add(g, n->layer);
        if (!code && hooks) code = ddp__hook(g, hooks->backward_end, n->layer);
    }
    if (part != DDP__CUT_WEIGHTS) ddp__cut_entered(s);
    return code;
}
