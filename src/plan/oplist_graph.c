/* Converts a ddp_graph to the operator list that planners read. */
#include "graph/graph_internal.h"
#include "plan/oplist_graph.h"

/* The operators of one kind in a layer are numbered from the second one on. */
static void ddp__oplist_graph_name(const ddp_graph *g, const ddp_node *n, char *text, size_t size)
{
    const char *layer = ddp__layer_name(g, n->layer);
    int first = 0, last, before = 0;

    (void)ddp__layer_range(g, n->layer, &first, &last);
    for (int i = first; i < n->index; i++) before += g->node[i]->op == n->op && g->node[i]->layer == n->layer;
    if (before)
        snprintf(text, size, "%s%s%.60s.%d", layer, *layer ? "/" : "", n->op->name, before);
    else
        snprintf(text, size, "%s%s%.60s", layer, *layer ? "/" : "", n->op->name);
}

/* Fills the list. place[node] is the index of the operator in it, or -1 for inputs. */
static ddp_status ddp__oplist_graph_fill(const ddp_graph *g, const int *place, ddp_oplist *list,
                                         ddp_error *err)
{
    for (int i = 0; i < ddp__count(g->node); i++) {
        int args[DDP_OP_INPUTS], count = 0;
        ddp_node_info info;
        char name[300];

        if (place[i] < 0) continue;
        ddp_node_describe(g, i, &info);
        for (int k = 0; k < info.inputs; k++)
            if (place[info.input[k]] >= 0) args[count++] = place[info.input[k]];
        ddp__oplist_graph_name(g, g->node[i], name, sizeof name);
        DDP__TRY(ddp_oplist_set(list, place[i], name, args, count, info.flops, info.output_bytes,
                                info.param_bytes, err));
        list->op[place[i]].module = g->node[i]->layer + 1;
    }
    return DDP_OK;
}

ddp_status ddp_graph_oplist(const ddp_graph *g, ddp_oplist *out, ddp_error *err)
{
    int i, count = 0, *place;
    ddp_status code;
    ddp_oplist list;
    if (!g || !out)
        return ddp__fail(err, DDP_ARG, "ddp_graph_oplist: the graph and the list must not be NULL");
    if (g->error.code) return ddp__fail(err, g->error.code, "%s", g->error.msg);
    place = (int *)ddp__calloc((size_t)ddp__count(g->node), sizeof *place);
    if (!place)
        return ddp__fail(err, DDP_MEMORY, "out of memory for a list of %d operators", ddp__count(g->node));
    for (i = 0; i < ddp__count(g->node); i++) place[i] = g->node[i]->op ? count++ : -1;
    memset(&list, 0, sizeof list);
    code = count ? ddp_oplist_new(count, &list, err)
                 : ddp__fail(err, DDP_ARG, "ddp_graph_oplist: the graph has no operators");
    if (code == DDP_OK) code = ddp__oplist_graph_fill(g, place, &list, err);
    DDP_FREE(place);
    if (code == DDP_OK)
        *out = list;
    else
        ddp_oplist_free(&list);
    return code;
}
