/* AdaTopK: computes each link's ratio from the amount of data and the rate of the link. */
#include "compress/compress.h"
#include "exchange/collective.h"
#include "exchange/post.h"
#include "pipe/executor.h"

/* Floats per micro-batch from stage to stage, [stages x stages]: activations above the diagonal, gradients
 * below. */
static void ddp__crossings(const ddp_graph *g, int stages, double *floats)
{
    for (int x = 0; x < ddp__count(g->node); x++) {
        const ddp_node *n = g->node[x];
        const double count = (double)ddp_shape_count(&n->spec.out);
        int at = n->stage;
        for (int s = n->op ? ddp__stage_after(g, n, at) : -1; s >= 0; at = s, s = ddp__stage_after(g, n, s)) {
            floats[at * stages + s] += count;
            if (n->has_gradient && !n->parts) floats[s * stages + at] += count;
            for (int i = 0; i < n->parts; i++)
                if (ddp__part_stage(n, i) >= s) floats[s * stages + at] += count;
        }
    }
}

/* The rate of a link between stages is its slowest rate in any pipeline, so that all replicas use the same
 * ratio, or 0 for no limit. With emulated links, each rank contributes its links to the stages of its
 * pipeline, and its access link. */
static ddp_status ddp__rates_emulated(ddp_pipe *p, double *rate, ddp_error *err)
{
    const int S = p->stages, world = ddp_world(p->d);
    const ddp__links *l = ddp__links_of(p->d, 0);
    double *told = (double *)ddp__calloc((size_t)world * (size_t)(S + 1), sizeof *told), *own;
    ddp_status s;

    if (!told) return ddp__fail(err, DDP_MEMORY, "out of memory for the links of %d ranks", world);
    own = told + (size_t)ddp_rank(p->d) * (size_t)(S + 1);
    own[S] = l->own.rate;
    for (int to = 0; to < S; to++)
        own[to] = to == p->stage ? 0 : ddp__slower(l->path[ddp__pipe_rank(p, to)].rate, own[S]);
    s = ddp__gather_words(p->d, 0, told, (size_t)(S + 1) * sizeof *told, err);
    for (int i = 0; i < world * S; i++) {
        double *r = &rate[i % (S * S)];
        *r = ddp__slower(*r, told[p->rank_of[i / S] * (S + 1) + i % S]);
        *r = ddp__slower(*r, told[p->rank_of[i / S / S * S + i % S] * (S + 1) + S]);
    }
    DDP_FREE(told);
    return s;
}

/* Measured rates, or equal rates if deterministic. */
static ddp_status ddp__rates_measured(ddp_pipe *p, double *rate, ddp_error *err)
{
    const int S = p->stages, world = ddp_world(p->d);
    ddp_probe_result r;

    for (int at = 0; at < S * S && ddp__cfg(p->d)->deterministic; at++) rate[at] = 1;
    if (ddp__cfg(p->d)->deterministic) return DDP_OK;
    if (ddp_probe(p->d, &r)) return err->code;
    for (int i = 0; i < world * S; i++)
        rate[i % (S * S)] = ddp__slower(
            rate[i % (S * S)], r.pair[p->rank_of[i / S] * world + p->rank_of[i / S / S * S + i % S]].rate);
    ddp_probe_free(&r);
    return DDP_OK;
}

ddp_status ddp__edge_ratios(ddp_pipe *p, double *ratio, ddp_error *err)
{
    const size_t links = (size_t)p->stages * (size_t)p->stages;
    const ddp_adatopk_options o = {p->edge.ratio, p->edge.factor, DDP_PACK_I32, 0};
    ddp__scratch room = {NULL, 0};
    double *floats = ddp__doubles(&room, links), *time = ddp__doubles(&room, links);
    size_t *count = (size_t *)ddp__scratch_take(&room, links, sizeof *count);
    ddp_link_compression *each = (ddp_link_compression *)ddp__scratch_take(&room, links, sizeof *each);
    ddp_status s = DDP_OK;

    if (ddp__scratch_failed(&room))
        s = ddp__fail(err, DDP_MEMORY, "out of memory for the links of %d stages", p->stages);
    if (s == DDP_OK) ddp__crossings(p->g, p->stages, floats);
    if (s == DDP_OK) /* rates, converted to times below */
        s = ddp__links_of(p->d, 0)->slowest > 0 ? ddp__rates_emulated(p, time, err)
                                                : ddp__rates_measured(p, time, err);
    for (size_t at = 0; s == DDP_OK && at < links; at++) {
        time[at] = time[at] > 0 ? 4 * floats[at] / time[at] : 0;
        count[at] = floats[at] > 0 ? (size_t)floats[at] : 1; /* 1 without data, takes no time */
    }
    if (s == DDP_OK) s = ddp_adatopk(time, count, (int)links, &o, each, err);
    for (size_t at = 0; s == DDP_OK && at < links; at++) ratio[at] = each[at].ratio;
    ddp__scratch_free(&room);
    return s;
}
