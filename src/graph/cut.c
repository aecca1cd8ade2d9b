/* Cuts a graph into pipeline stages: which nodes this process runs, and which outputs it receives and
 * sends. */
#include "graph/graph_internal.h"

/* ---- layers that are inserted into a built list, where the model is cut ---- */

/* The new index of element i after the elements from end on were moved to at. */
static int ddp__moved(int i, int at, int end, int added)
{
    return i < at ? i : i < end ? i + added : i - (end - at);
}

static void ddp__nodes_move(ddp_graph *g, int at, int end)
{
    const int added = ddp__count(g->node) - end;

    for (int i = 0; i < added; i++) { /* insert one node at a time. The rest moves up. */
        ddp_node *n = g->node[end + i];
        memmove(g->node + at + i + 1, g->node + at + i, (size_t)(end - at) * sizeof *g->node);
        g->node[at + i] = n;
    }
    for (int i = 0; i < ddp__count(g->node); i++) {
        ddp_node *n = g->node[i];
        n->index = i;
        for (int k = 0; k < n->spec.inputs; k++) n->input[k] = ddp__moved(n->input[k], at, end, added);
        if (n->tied >= 0) n->tied = ddp__moved(n->tied, at, end, added);
    }
    for (int l = 0; l < ddp__count(g->layer); l++) {
        g->layer[l].first = ddp__moved(g->layer[l].first, at, end, added);
        g->layer[l].last = ddp__moved(g->layer[l].last, at, end, added);
    }
    for (int s = 0; s < ddp__count(g->segment); s++) {
        g->segment[s].first = ddp__moved(g->segment[s].first, at, end, added);
        g->segment[s].last = ddp__moved(g->segment[s].last, at, end, added);
    }
}

/* Keeps layers in the order of their operators. */
static void ddp__layers_move(ddp_graph *g, int at, int end)
{
    const int added = ddp__count(g->layer) - end;

    for (int i = 0; i < added; i++) {
        const ddp__graph_layer l = g->layer[end + i];
        memmove(g->layer + at + i + 1, g->layer + at + i, (size_t)(end - at) * sizeof *g->layer);
        g->layer[at + i] = l;
    }
    for (int i = 0; i < ddp__count(g->node); i++)
        if (g->node[i]->layer >= 0) g->node[i]->layer = ddp__moved(g->node[i]->layer, at, end, added);
}

int ddp__place_behind(const ddp_node *x)
{
    const ddp_graph *g = x->graph;
    int at = x->index;

    if (x->layer >= 0) at = g->layer[x->layer].last;
    if (x->segment >= 0 && g->segment[x->segment].last > at) at = g->segment[x->segment].last;
    return at + 1;
}

void ddp__nodes_insert(ddp_graph *g, int at, int nodes, int layers)
{
    int begun = 0;

    for (int l = 0; l < layers; l++) begun += g->layer[l].first < at;
    g->node[at - 1]->pair = NULL; /* its successor has changed */
    ddp__nodes_move(g, at, nodes);
    ddp__layers_move(g, begun, layers);
}

/* ---- operators of this stage ---- */

static ddp_status ddp__cut_check(ddp_graph *g, const int *stage_of, int stages, int own)
{
    if (g->error.code) return g->error.code;
    if (g->built || g->stages)
        return ddp__fail(&g->error, DDP_USAGE, "ddp_graph_cut must be called once, before ddp_graph_build");
    if (!stage_of || stages < 1 || own < 0 || own >= stages)
        return ddp__fail(&g->error, DDP_ARG,
                         "ddp_graph_cut: stage %d of %d does not exist, or the list is NULL", own, stages);
    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_node *n = g->node[i];
        if (n->op && (stage_of[i] < 0 || stage_of[i] >= stages))
            return ddp__fail(&g->error, DDP_ARG,
                             "the cut puts operator %.60s (node %d) into stage %d, stages are 0..%d",
                             n->op->name, i, stage_of[i], stages - 1);
        for (int k = 0; k < n->spec.inputs; k++) {
            const int p = n->input[k];
            if (g->node[p]->op && stage_of[p] > stage_of[i])
                return ddp__fail(&g->error, DDP_ARG,
                                 "the cut puts node %d into stage %d and its user, node %d, into the "
                                 "earlier stage %d: data flow from stage to later stage",
                                 p, stage_of[p], i, stage_of[i]);
        }
    }
    for (int s = 0; s < stages; s++) {
        int i = 0;
        while (i < ddp__count(g->node) && (!g->node[i]->op || stage_of[i] != s)) i++;
        if (i == ddp__count(g->node))
            return ddp__fail(&g->error, DDP_ARG,
                             "the cut leaves stage %d of %d without operators: use fewer stages", s, stages);
    }
    return DDP_OK;
}

int ddp__stage_after(const ddp_graph *g, const ddp_node *x, int stage)
{
    int next = -1;

    for (int i = x->index + 1; i < ddp__count(g->node); i++)
        for (int k = 0; k < g->node[i]->spec.inputs; k++)
            if (g->node[i]->input[k] == x->index && g->node[i]->stage > stage &&
                (next < 0 || g->node[i]->stage < next))
                next = g->node[i]->stage;
    return next;
}

/* Output p travels through all stages that use it: finds the stage that sends it to this one, and the
 * stage to send it to. */
static void ddp__cut_hops(ddp_graph *g, ddp_node *p)
{
    int at = p->stage, before = -1;

    while (at >= 0 && at < g->own_stage) {
        before = at;
        at = ddp__stage_after(g, p, at);
    }
    p->here = at != g->own_stage ? DDP__HERE_NOT : before < 0 ? DDP__HERE_OWN : DDP__HERE_ENTERS;
    p->from = at == g->own_stage ? before : -1;
    p->to = at == g->own_stage ? ddp__stage_after(g, p, at) : -1;
}

/* A single worker sums the gradients of an output's uses from the last use to the first. In a pipeline
 * the order differs if stages do not follow the order of uses. Two gradients give the same sum in either
 * order. With more, each has its own array until p's stage adds them up. */
static void ddp__cut_parts(ddp_graph *g, ddp_node *p)
{
    int uses = 0, strays = 0, stage = g->stages;

    for (int i = ddp__count(g->node) - 1; i > p->index && p->has_gradient; i--) {
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
    p->pair = NULL; /* the gradients are summed between the two */
}

int ddp__part_stage(const ddp_node *n, int part)
{
    const ddp_graph *g = n->graph;

    for (int i = n->index + 1; i < ddp__count(g->node); i++)
        for (int k = 0; g->node[i]->has_gradient && k < g->node[i]->spec.inputs; k++)
            if (g->node[i]->input[k] == n->index && g->node[i]->part[k] == part) return g->node[i]->stage;
    return -1;
}

/* A layer has only its operators on this stage. The place of an array in the whole layer determines its
 * initial values. */
static void ddp__cut_layers(ddp_graph *g)
{
    for (int i = 0; i < ddp__count(g->layer); i++) {
        ddp__graph_layer *l = &g->layer[i];
        l->first = l->last = -1;
        l->count = l->buffer_count = 0;
        l->flops = 0;
    }
    for (int i = 0; i < ddp__count(g->node); i++)
        if (g->node[i]->op && g->node[i]->here == (int)DDP__HERE_OWN) ddp__layer_add(g, g->node[i]);
}

int ddp_graph_cut(ddp_graph *g, const int *stage_of, int stages, int own)
{
    if (!g) return (int)DDP_MEMORY;
    DDP__DO(ddp__cut_check(g, stage_of, stages, own));
    ddp__node_places(g);
    g->stages = stages;
    g->own_stage = own;
    for (int i = 0; i < ddp__count(g->node); i++) g->node[i]->stage = g->node[i]->op ? stage_of[i] : -1;
    for (int i = 0; i < ddp__count(g->node); i++) {
        ddp_node *n = g->node[i];
        if (i + 1 < ddp__count(g->node) && n->stage != g->node[i + 1]->stage) n->pair = NULL;
        ddp__cut_parts(g, n);
        if (n->op)
            ddp__cut_hops(g, n);
        else
            n->here = DDP__HERE_NOT;
        for (int k = 0; n->here == DDP__HERE_OWN && k < n->spec.inputs; k++)
            if (!g->node[n->input[k]]->op) g->node[n->input[k]]->here = DDP__HERE_OWN;
    }
    ddp__cut_layers(g);
    return 0;
}
