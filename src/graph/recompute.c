/* Segments whose activations are dropped after forward and computed again in backward (Chen et al.
 * 2016, Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174). */
#include "base/platform.h"
#include "graph/graph_internal.h"

void ddp_recompute_begin(ddp_graph *g)
{
    if (!ddp__graph_open(g, "ddp_recompute_begin")) return;
    if (g->open_segment >= 0) {
        ddp__fail(&g->error, DDP_USAGE, "ddp_recompute_begin inside a segment: call "
                  "ddp_recompute_end first");
        return;
    }
    if (!ddp__graph_grow(g, (void **)&g->segment, g->segments, &g->segment_room,
                         sizeof *g->segment))
        return;
    g->segment[g->segments].first = g->segment[g->segments].last = -1;
    g->open_segment = g->segments++;
}

void ddp_recompute_end(ddp_graph *g)
{
    if (!ddp__graph_open(g, "ddp_recompute_end")) return;
    if (g->open_segment < 0)
        ddp__fail(&g->error, DDP_USAGE, "ddp_recompute_end without ddp_recompute_begin");
    else if (g->segment[g->open_segment].first < 0)
        ddp__fail(&g->error, DDP_USAGE, "a segment to recompute has no operators: build some "
                  "between ddp_recompute_begin and ddp_recompute_end");
    g->open_segment = -1;
}

/* Drops what only the segment of its own node uses. What nobody uses is a result. */
static void ddp__fates_drop(const ddp_graph *g, unsigned char *fate)
{
    enum { OUTSIDE = DDP__AGAIN + 1 };
    int i, k;

    memset(fate, DDP__KEPT, (size_t)g->nodes);
    for (i = 0; i < g->nodes; i++)
        for (k = 0; k < g->node[i]->spec.inputs; k++) {
            const ddp_node *p = g->node[g->node[i]->input[k]];

            if (p->segment < 0 || ddp__stays(p)) continue;
            if (p->segment != g->node[i]->segment) fate[p->index] = OUTSIDE;
            else if (fate[p->index] != OUTSIDE) fate[p->index] = DDP__DROPPED;
        }
    for (i = 0; i < g->nodes; i++)
        if (fate[i] == OUTSIDE) fate[i] = DDP__KEPT;
}

/* From the last operator to the first, so that all that asks for an output is known before it.
 * An operator whose dropped result nobody asks for, as the last product of a block, is spared. */
void ddp__recompute_fates(const ddp_graph *g, unsigned char *fate)
{
    int i, k;

    ddp__fates_drop(g, fate);
    for (i = g->nodes - 1; i >= 0; i--) {
        const ddp_node *d = g->node[i];

        if (d->segment < 0) continue;
        if (fate[i] == DDP__DROPPED && d->has_gradient && (d->spec.saved || !ddp__forgets_out(d)))
            fate[i] = DDP__AGAIN;
        if (fate[i] != DDP__AGAIN && (!d->has_gradient || d->spec.in_place_ok)) continue;
        for (k = 0; k < d->spec.inputs; k++) /* read by this second forward, or by backward */
            if (fate[d->input[k]] == DDP__DROPPED) fate[d->input[k]] = DDP__AGAIN;
    }
}
