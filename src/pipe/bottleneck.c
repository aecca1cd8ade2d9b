/* Inserts bottlenecks where a graph is cut, so that less data crosses the cut. */
#include "nn/models.h"
#include "pipe/executor.h"

/* 1 if input k of node i is the output of x, in a later stage. */
static int ddp__takes_later(const ddp_graph *g, int i, int k, const ddp_node *x)
{
    return k < g->node[i]->spec.inputs && g->node[i]->input[k] == x->index && g->node[i]->stage > x->stage;
}

/* Adds a bottleneck after x, and makes it the input of x's users in later stages. */
static ddp_status ddp__bottleneck_add(ddp_graph *g, ddp_node *x, int next, int at, double ratio,
                                      ddp_error *err)
{
    const ddp_shape *s = &x->spec.out;
    const long wide = s->dims == 4 ? s->dim[1] : s->dim[s->dims - 1], width = (long)((double)wide / ratio);
    const int nodes = ddp__count(g->node), layers = ddp__count(g->layer);
    int half;
    ddp_node *y;

    if (width < 1)
        return ddp__fail(err, DDP_ARG,
                         "edge wire bottleneck:%g: a width of %ld channels leaves none; use at most "
                         "bottleneck:%ld, or a wider model",
                         ratio, wide, wide);
    y = ddp_bottleneck_down(g, x, width);
    half = ddp__count(g->node);
    y = ddp_bottleneck_up(g, y, wide);
    if (!y) return ddp__fail(err, g->error.code, "%s", g->error.msg);
    for (int i = 0; i < nodes; i++)
        for (int k = 0; k < DDP_OP_INPUTS; k++)
            if (ddp__takes_later(g, i, k, x)) g->node[i]->input[k] = y->index;
    for (int i = nodes; i < ddp__count(g->node); i++) g->node[i]->stage = i < half ? x->stage : next;
    ddp__nodes_insert(g, at, nodes, layers);
    return DDP_OK;
}

/* 1 if x is the narrow side of a bottleneck already, of ours or of the model. */
static int ddp__is_narrow(const ddp_graph *g, const ddp_node *x)
{
    return ddp__layer_is_a(g, x->layer, "bottleneck.down");
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
        at = ddp__place_behind(x);
        for (int user = i + 1; user < at; user++)
            for (int k = 0; k < DDP_OP_INPUTS; k++)
                if (ddp__takes_later(g, user, k, x))
                    return ddp__fail(
                        err, DDP_ARG,
                        "edge wire bottleneck:%g: the cut splits layer \"%.100s\", but a bottleneck "
                        "needs a cut between layers; move the cut",
                        ratio, ddp__layer_name(g, x->layer));
        DDP__TRY(ddp__bottleneck_add(g, x, next, at, ratio, err));
    }
    more = (int *)ddp__calloc((size_t)ddp__count(g->node), sizeof *more);
    if (!more) return ddp__fail(err, DDP_MEMORY, "out of memory for a cut of %d nodes", ddp__count(g->node));
    DDP_FREE(*stage_of);
    *stage_of = more;
    for (int i = 0; i < ddp__count(g->node); i++) more[i] = g->node[i]->stage;
    return DDP_OK;
}
