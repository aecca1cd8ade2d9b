/* Tied weights across the cut: the owner's stage updates, every step's first word is its values, its last the gradients
 * of their uses elsewhere. */
#include "pipe/executor.h"

static ddp_status ddp__guest_post(ddp_pipe *p, ddp_verb verb, const ddp__guest *u, int gradient, long *ticket)
{
    const ddp_node *n = p->g->node[u->node], *own = p->g->node[n->tied];

    p->piece[0].data = gradient ? n->grad[0] : own->here == (int)DDP__HERE_OWN ? own->param[0] : n->param[0];
    p->piece[0].count = (size_t)ddp_shape_count(&n->spec.param[0].shape);
    return ddp__pipe_post(p, verb, u->peer, 1, 0, ticket);
}

ddp_status ddp__guests_begin(ddp_pipe *p)
{
    for (int i = 0; i < p->guests; i++) {
        const ddp_node *n = p->g->node[p->guest[i].node];
        DDP__TRY(ddp__pipe_hold(p, &p->guest[i].gradient));
        ddp__host_zero(&p->d->host, n->grad[0], (size_t)ddp_shape_count(&n->spec.param[0].shape) * sizeof(float));
        DDP__TRY(ddp__guest_post(p, DDP_RECEIVE, &p->guest[i], 0, &p->guest[i].weight));
    }
    for (int i = 0; i < p->guests; i++) DDP__TRY(ddp__pipe_hold(p, &p->guest[i].weight));
    return DDP_OK;
}

ddp_status ddp__hosts_begin(ddp_pipe *p, int trains)
{
    for (int i = 0; i < p->hosts; i++) {
        DDP__TRY(ddp__guest_post(p, DDP_SEND, &p->host[i], 0, &p->host[i].weight));
        if (trains) DDP__TRY(ddp__guest_post(p, DDP_RECEIVE, &p->host[i], 1, &p->host[i].gradient));
    }
    return DDP_OK;
}

/* Before the gradient of an owner is complete: the weight has left, the gradients of its uses elsewhere are here. */
static ddp_status ddp__hosts_end(ddp_pipe *p, int owner)
{
    for (int i = 0; i < p->hosts; i++) {
        if (p->g->node[p->host[i].node]->tied != owner) continue;
        DDP__TRY(ddp__pipe_hold(p, &p->host[i].weight));
        DDP__TRY(ddp__pipe_hold(p, &p->host[i].gradient));
    }
    return DDP_OK;
}

static int ddp__uses_fetch(void *user, int node) { return (int)ddp__hosts_end((ddp_pipe *)user, node); }

ddp_status ddp__guests_end(ddp_pipe *p)
{
    for (int i = 0; i < p->guests; i++)
        DDP__TRY(ddp__guest_post(p, DDP_SEND, &p->guest[i], 1, &p->guest[i].gradient));
    return DDP_OK;
}

ddp_status ddp__hosts_leave(ddp_pipe *p)
{
    for (int i = 0; i < p->hosts; i++) DDP__TRY(ddp__pipe_hold(p, &p->host[i].weight));
    return DDP_OK;
}

/* ---- opening and closing ---- */

int ddp__tied_open(ddp_pipe *p)
{
    const size_t nodes = (size_t)p->g->nodes;

    p->guest = (ddp__guest *)ddp__calloc(nodes, sizeof *p->guest);
    p->host = (ddp__guest *)ddp__calloc(nodes, sizeof *p->host);
    if (!p->guest || !p->host) return 0;
    for (int i = 0; i < p->g->nodes; i++) {
        const ddp_node *n = p->g->node[i], *own = n->tied >= 0 ? p->g->node[n->tied] : NULL;
        ddp__guest u = {i, 0, -1, -1};
        if (!own || n->stage == own->stage) continue;
        if (n->here == (int)DDP__HERE_OWN) u.peer = ddp__pipe_rank(p, own->stage), p->guest[p->guests++] = u;
        if (own->here == (int)DDP__HERE_OWN) u.peer = ddp__pipe_rank(p, n->stage), p->host[p->hosts++] = u;
    }
    p->g->fetch_uses = ddp__uses_fetch;
    p->g->fetch_user = p;
    return 1;
}

void ddp__tied_close(ddp_pipe *p)
{
    if (p->g) p->g->fetch_uses = NULL;
    if (p->guest) DDP_FREE(p->guest);
    if (p->host) DDP_FREE(p->host);
}
