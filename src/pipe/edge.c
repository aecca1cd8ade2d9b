/* Edges between stages: which outputs cross, as one message for each micro-batch, and their gradients back. */
#include "pipe/executor.h"

/* ---- opening and closing ---- */

/* The edge to a stage, made where it is the first. NULL: out of memory. */
static ddp__hop *ddp__hop_of(ddp_pipe *p, ddp__hop *list, int *n, int stage)
{
    const size_t M = (size_t)p->micro_batches;
    ddp__hop *e = list;

    while (e < list + *n && e->stage != stage) e++;
    if (e < list + *n) return e;
    e->stage = stage;
    e->peer = ddp__pipe_rank(p, stage);
    e->node = (int *)ddp__calloc((size_t)p->g->nodes, sizeof *e->node);
    ++*n; /* also where memory is short: it is freed */
    for (int i = 0; i < 2; i++) {
        e->flow[i].ticket = (long *)ddp__calloc(M, sizeof *e->flow[i].ticket);
        for (size_t m = 0; e->flow[i].ticket && m < M; m++) e->flow[i].ticket[m] = -1;
    }
    return e->node && e->flow[0].ticket && e->flow[1].ticket ? e : NULL;
}

static void ddp__hop_add(ddp__hop *e, const ddp_node *n)
{
    e->node[e->nodes++] = n->index;
}

int ddp__edges_open(ddp_pipe *p)
{
    size_t pieces = 0;

    for (int i = 0; i < p->g->nodes; i++) pieces += 1 + (size_t)p->g->node[i]->parts;
    p->in = (ddp__hop *)ddp__calloc((size_t)p->stages, sizeof *p->in);
    p->out = (ddp__hop *)ddp__calloc((size_t)p->stages, sizeof *p->out);
    p->piece = (ddp_piece *)ddp__calloc(pieces, sizeof *p->piece);
    if (!p->in || !p->out || !p->piece) return 0;
    for (int i = 0; i < p->g->nodes; i++) {
        const ddp_node *n = p->g->node[i];
        ddp__hop *from = n->from >= 0 ? ddp__hop_of(p, p->in, &p->ins, n->from) : NULL;
        ddp__hop *to = n->to >= 0 ? ddp__hop_of(p, p->out, &p->outs, n->to) : NULL;
        if ((n->from >= 0 && !from) || (n->to >= 0 && !to)) return 0;
        if (from) ddp__hop_add(from, n);
        if (to) ddp__hop_add(to, n);
    }
    return 1;
}

static void ddp__hops_free(ddp__hop *e, int n)
{
    for (int i = 0; e && i < n; i++) {
        if (e[i].node) DDP_FREE(e[i].node);
        for (ddp__flow *l = e[i].flow; l < e[i].flow + 2; l++) {
            if (l->ticket) DDP_FREE(l->ticket);
            if (l->wire) DDP_FREE(l->wire);
        }
    }
    if (e) DDP_FREE(e);
}

void ddp__edges_close(ddp_pipe *p)
{
    ddp__hops_free(p->in, p->ins);
    ddp__hops_free(p->out, p->outs);
    if (p->piece) DDP_FREE(p->piece);
}

/* ---- messages ---- */

ddp_status ddp__pipe_post(ddp_pipe *p, ddp_verb verb, int peer, int pieces, int urgent, long *ticket)
{
    ddp_message m = ddp__message(p->d, verb, p->piece, pieces, DDP_NO_LAYER);

    *ticket = -1;
    if (pieces == 0) return DDP_OK;
    m.peer = peer;
    m.priority = urgent ? -1 : 0;
    m.filler = 0;
    return ddp__post(p->d, &m, p->d->host.backend != NULL, ticket, &p->d->host.error);
}

ddp_status ddp__pipe_hold(ddp_pipe *p, long *ticket)
{
    const long held = *ticket;

    *ticket = -1;
    return held == -1 ? DDP_OK : ddp__post_hold(p->d, 0, held, DDP_NO_LAYER, &p->d->host.error);
}

/* A coded message lies in this machine's memory, whoever computes. */
static ddp_status ddp__flow_post(ddp_pipe *p, ddp_verb verb, int peer, ddp__flow *l, int m)
{
    ddp_message message = ddp__message(p->d, verb, p->piece, 1, DDP_NO_LAYER);

    l->ticket[m] = -1;
    p->piece[0].bytes = l->wire + (size_t)(m % p->states) * l->bytes;
    p->piece[0].count = l->bytes;
    message.bytes = 1;
    message.counts_as = (char)(p->edge.coding == DDP_EDGE_BF16   ? DDP_WIRE_BF16
                               : p->edge.coding == DDP_EDGE_INT8 ? DDP_WIRE_INT8 : DDP_WIRE_TOPK);
    message.peer = peer;
    message.priority = -1;
    message.filler = 0;
    return ddp__post(p->d, &message, 0, &l->ticket[m], &p->d->host.error);
}

/* Until it is done: for this machine, not for the device alone. */
static ddp_status ddp__flow_wait(ddp_pipe *p, long *ticket)
{
    const long held = *ticket;

    if (!p->d->stager) return ddp__pipe_hold(p, ticket);
    *ticket = -1;
    return held == -1 ? DDP_OK : ddp__post_wait(p->d, 0, held, &p->d->host.error);
}

/* The edges that gradients leave by are those that activations came by. */
static int ddp__edges_of(ddp_pipe *p, int in, ddp__hop **list)
{
    *list = in ? p->in : p->out;
    return in ? p->ins : p->outs;
}

static ddp_status ddp__edges_post(ddp_pipe *p, int m, int gradients, int in, ddp_verb verb)
{
    ddp__hop *e;
    const int n = ddp__edges_of(p, in, &e);

    for (int i = 0; i < n; i++) {
        ddp__flow *l = &e[i].flow[gradients];
        if (l->wire) {
            if (verb == DDP_SEND) DDP__TRY(ddp__flow_pack(p, &e[i], m, gradients));
            DDP__TRY(ddp__flow_post(p, verb, e[i].peer, l, m));
        } else {
            DDP__TRY(ddp__pipe_post(p, verb, e[i].peer, ddp__hop_list(p, &e[i], m, gradients), 1, &l->ticket[m]));
        }
    }
    return DDP_OK;
}

static ddp_status ddp__edges_end(ddp_pipe *p, int m, int gradients, int in)
{
    ddp__hop *e;
    const int n = ddp__edges_of(p, in, &e);

    for (int i = 0; i < n; i++) {
        ddp__flow *l = &e[i].flow[gradients];
        DDP__TRY(l->wire ? ddp__flow_wait(p, &l->ticket[m]) : ddp__pipe_hold(p, &l->ticket[m]));
    }
    return DDP_OK;
}

ddp_status ddp__edges_send(ddp_pipe *p, int m, int gradients)
{
    return ddp__edges_post(p, m, gradients, gradients, DDP_SEND);
}

ddp_status ddp__edges_receive(ddp_pipe *p, int m, int gradients)
{
    return ddp__edges_post(p, m, gradients, !gradients, DDP_RECEIVE);
}

ddp_status ddp__edges_hold(ddp_pipe *p, int m, int gradients)
{
    ddp__hop *e;
    const int n = ddp__edges_of(p, !gradients, &e);

    DDP__TRY(ddp__edges_end(p, m, gradients, !gradients));
    for (int i = 0; i < n; i++)
        if (e[i].flow[gradients].wire) DDP__TRY(ddp__flow_unpack(p, &e[i], m, gradients));
    return DDP_OK;
}

ddp_status ddp__edges_leave(ddp_pipe *p, int m)
{
    DDP__TRY(ddp__edges_end(p, m, 0, 0));
    return ddp__edges_end(p, m, 1, 1);
}

static int ddp__flow_has_left(const ddp_pipe *p, const ddp__flow *l, int m)
{
    return l->ticket[m] == -1 || ddp__post_is_done(p->d, 0, l->ticket[m]);
}

int ddp__edges_have_left(const ddp_pipe *p, int m)
{
    for (int i = 0; i < p->outs; i++)
        if (!ddp__flow_has_left(p, &p->out[i].flow[0], m)) return 0;
    for (int i = 0; i < p->ins; i++)
        if (!ddp__flow_has_left(p, &p->in[i].flow[1], m)) return 0;
    return 1;
}
