/* Edges between stages. Each sends the outputs that the other stage uses, as one message per micro-batch, and
 * receives their gradients. */
#include "exchange/post.h"
#include "pipe/executor.h"

/* ---- opening ---- */

/* Adds a node to the edge to or from a stage, and creates the edge if needed. Returns 0 if out of memory. */
static int ddp__hop_add(ddp_pipe *p, int side, int stage, int node)
{
    ddp__hop *e = p->hop[side];
    int at = 0;

    if (stage < 0) return 1;
    while (at < p->hops[side] && e[at].stage != stage) at++;
    e += at;
    if (at == p->hops[side]) {
        p->hops[side]++;
        e->stage = stage;
        e->node = ddp__ints(&p->room, (size_t)ddp__count(p->g->node));
        for (int i = 0; i < 2; i++) {
            e->flow[i].ticket = (long *)ddp__scratch_take(&p->room, (size_t)p->micro_batches, sizeof(long));
            if (ddp__scratch_failed(&p->room)) return 0;
            for (int m = 0; m < p->micro_batches; m++) e->flow[i].ticket[m] = -1;
        }
    }
    e->node[e->nodes++] = node;
    return 1;
}

int ddp__edges_open(ddp_pipe *p)
{
    size_t pieces = 0;

    for (int i = 0; i < ddp__count(p->g->node); i++) pieces += 1 + (size_t)p->g->node[i]->parts;
    for (int side = 0; side < 2; side++)
        p->hop[side] = (ddp__hop *)ddp__scratch_take(&p->room, (size_t)p->stages, sizeof(ddp__hop));
    p->piece = (ddp_piece *)ddp__scratch_take(&p->room, pieces, sizeof *p->piece);
    p->shape = (const ddp_shape **)ddp__scratch_take(&p->room, pieces, sizeof *p->shape);
    if (ddp__scratch_failed(&p->room)) return 0;
    for (int i = 0; i < ddp__count(p->g->node); i++)
        if (!ddp__hop_add(p, 0, p->g->node[i]->to, i) || !ddp__hop_add(p, 1, p->g->node[i]->from, i))
            return 0;
    return 1;
}

/* ---- messages ---- */

ddp_status ddp__pipe_post(ddp_pipe *p, ddp_message *m, int peer, int here, long *ticket)
{
    *ticket = -1;
    if (m->from_count == 0) return DDP_OK;
    m->peer = peer;
    m->filler = 0;
    return ddp__post(p->d, m, ddp__backend_of(p->d) && !here, ticket, ddp__error(p->d));
}

ddp_status ddp__pipe_hold(ddp_pipe *p, long *ticket, int here)
{
    const long held = *ticket;

    *ticket = -1;
    if (held == -1) return DDP_OK;
    return here && ddp__has_stager(p->d) ? ddp__post_wait(p->d, 0, held, ddp__error(p->d))
                                         : ddp__post_hold(p->d, 0, held, DDP_NO_LAYER, ddp__error(p->d));
}

static ddp_status ddp__flow_post(ddp_pipe *p, ddp_verb verb, ddp__hop *e, int m, int gradients)
{
    ddp__flow *l = &e->flow[gradients];
    const int pieces = l->wire ? 1 : ddp__hop_list(p, e, m, gradients);
    ddp_message x = ddp__message(p->d, verb, p->piece, pieces, DDP__MICRO_BATCH);

    x.priority = -1;
    if (l->wire) {
        if (verb == DDP_SEND) DDP__TRY(ddp__flow_code(p, e, m, gradients, 1));
        p->piece[0].bytes = l->wire + (size_t)(m % p->states) * l->room;
        p->piece[0].count = l->last ? ddp__samples_size(p, l, m) : l->bytes;
        x.bytes = 1;
        x.counts_as = (char)(l->coding == DDP_EDGE_BF16    ? DDP_WIRE_BF16
                             : l->coding == DDP_EDGE_INT8  ? DDP_WIRE_INT8
                             : l->coding != DDP_EDGE_AQ    ? DDP_WIRE_TOPK
                             : p->piece[0].count < l->room ? DDP_WIRE_INT4
                                                           : DDP_WIRE_F32);
    }
    return ddp__pipe_post(p, &x, ddp__pipe_rank(p, e->stage), l->wire != NULL, &l->ticket[m]);
}

ddp_status ddp__edges_post(ddp_pipe *p, ddp_verb verb, int m, int gradients)
{
    const ddp__lane_mark at = ddp__lane_now(p);
    const int side = verb == DDP_SEND ? gradients : !gradients;

    for (int i = 0; i < p->hops[side]; i++) DDP__TRY(ddp__flow_post(p, verb, &p->hop[side][i], m, gradients));
    ddp__lane_posted(p, at, verb, gradients, m);
    return DDP_OK;
}

ddp_status ddp__edges_hold(ddp_pipe *p, int m, int gradients)
{
    for (int i = 0; i < p->hops[!gradients]; i++) {
        ddp__hop *e = &p->hop[!gradients][i];
        const int coded = e->flow[gradients].wire != NULL;
        DDP__TRY(ddp__pipe_hold(p, &e->flow[gradients].ticket[m], coded));
        if (coded) DDP__TRY(ddp__flow_code(p, e, m, gradients, 0));
    }
    return DDP_OK;
}

ddp_status ddp__edges_leave(ddp_pipe *p, int m)
{
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < p->hops[side]; i++) {
            ddp__flow *l = &p->hop[side][i].flow[side];
            DDP__TRY(ddp__pipe_hold(p, &l->ticket[m], l->wire != NULL));
        }
    return DDP_OK;
}

int ddp__edges_have_left(const ddp_pipe *p, int m)
{
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < p->hops[side]; i++) {
            const long ticket = p->hop[side][i].flow[side].ticket[m];
            if (ticket != -1 && !ddp__post_is_done(p->d, 0, ticket)) return 0;
        }
    return 1;
}
