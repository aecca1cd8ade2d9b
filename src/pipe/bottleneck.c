/* Bottlenecks where a graph is cut: what crosses is as narrow as they are. */
#include "nn/models.h"
#include "pipe/executor.h"

/* Where index i lies after what was added behind `end` has come to stand at `at`. */
static int ddp__moved(int i, int at, int end, int added)
{
    return i < at ? i : i < end ? i + added : i - (end - at);
}

static void ddp__nodes_move(ddp_graph *g, int at, int end)
{
    const int added = ddp__count(g->node) - end;

    for (int i = 0; i < added; i++) { /* one after the other, the rest moves up */
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

/* The same of layers, which stay in the order of their operators. */
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

/* Node i takes x's output at its input k, in a later stage. */
static int ddp__takes_later(const ddp_graph *g, int i, int k, const ddp_node *x)
{
    return k < g->node[i]->spec.inputs && g->node[i]->input[k] == x->index && g->node[i]->stage > x->stage;
}

/* Where a layer of its own may stand behind x: after its layer and its segment. */
static int ddp__place_behind(const ddp_graph *g, const ddp_node *x)
{
    int at = x->index;

    if (x->layer >= 0) at = g->layer[x->layer].last;
    if (x->segment >= 0 && g->segment[x->segment].last > at) at = g->segment[x->segment].last;
    return at + 1;
}

/* Users of x in later stages read what its bottleneck passes on. */
static ddp_status ddp__bottleneck_add(ddp_graph *g, ddp_node *x, int next, int at, double ratio,
                                      ddp_error *err)
{
    const ddp_shape *s = &x->spec.out;
    const long wide = s->dims == 4 ? s->dim[1] : s->dim[s->dims - 1], width = (long)((double)wide / ratio);
    const int nodes = ddp__count(g->node), layers = ddp__count(g->layer);
    int begun = 0, half;
    ddp_node *y;

    if (width < 1)
        return ddp__fail(err, DDP_ARG,
                         "edge wire bottleneck:%g: of %ld channels nothing is left to cross; take at most "
                         "bottleneck:%ld, or a wider model",
                         ratio, wide, wide);
    for (int l = 0; l < layers; l++) begun += g->layer[l].first < at;
    y = ddp_bottleneck_down(g, x, width);
    half = ddp__count(g->node);
    y = ddp_bottleneck_up(g, y, wide);
    if (!y) return ddp__fail(err, g->error.code, "%s", g->error.msg);
    for (int i = 0; i < nodes; i++)
        for (int k = 0; k < DDP_OP_INPUTS; k++)
            if (ddp__takes_later(g, i, k, x)) g->node[i]->input[k] = y->index;
    for (int i = nodes; i < ddp__count(g->node); i++) g->node[i]->stage = i < half ? x->stage : next;
    g->node[at - 1]->pair = NULL; /* what stood behind it stands there no more */
    ddp__nodes_move(g, at, nodes);
    ddp__layers_move(g, begun, layers);
    return DDP_OK;
}

/* 1: narrow already, by one of these or by the model's own. */
static int ddp__is_narrow(const ddp_graph *g, const ddp_node *x)
{
    static const char down[] = "bottleneck.down";

    return x->layer >= 0 && g->layer[x->layer].base_hash == ddp__hash(DDP__HASH_START, down, sizeof down - 1);
}

ddp_status ddp__bottlenecks_add(ddp_graph *g, double ratio, int **stage_of, ddp_error *err)
{
    int *more;

    if (!(ratio >= 1))
        return ddp__fail(err, DDP_ARG, "edge wire bottleneck:%g: the ratio must be at least 1", ratio);
    for (int i = 0; i < ddp__count(g->node); i++) g->node[i]->stage = (*stage_of)[i];
    for (int i = 0; i < ddp__count(g->node); i++) {
        ddp_node *x = g->node[i];
        const int next = x->op ? ddp__stage_after(g, x, x->stage) : -1;
        int at;
        if (next < 0 || !x->has_gradient || !x->spec.out.dims || ddp__is_narrow(g, x)) continue;
        at = ddp__place_behind(g, x);
        for (int user = i + 1; user < at; user++)
            for (int k = 0; k < DDP_OP_INPUTS; k++)
                if (ddp__takes_later(g, user, k, x))
                    return ddp__fail(
                        err, DDP_ARG,
                        "edge wire bottleneck:%g: the cut parts layer \"%.100s\", and a bottleneck "
                        "stands between layers: cut there",
                        ratio, x->layer >= 0 ? g->layer[x->layer].name : "");
        DDP__TRY(ddp__bottleneck_add(g, x, next, at, ratio, err));
    }
    more = (int *)ddp__calloc((size_t)ddp__count(g->node), sizeof *more);
    if (!more) return ddp__fail(err, DDP_MEMORY, "out of memory for a cut of %d nodes", ddp__count(g->node));
    DDP_FREE(*stage_of);
    *stage_of = more;
    for (int i = 0; i < ddp__count(g->node); i++) more[i] = g->node[i]->stage;
    return DDP_OK;
}
