/* Tied weights across the cut. The owner's stage updates the weight. It sends the values at the start of each
 * step, and receives the gradients of the uses on other stages at the end. */
#include "exchange/post.h"
#include "pipe/executor.h"

static size_t ddp__guest_floats(const ddp_pipe *p, const ddp__guest *u)
{
    return (size_t)ddp_shape_count(&p->g->node[u->node]->spec.param[0].shape);
}

/* Posts a message with the weight or its gradient. The receive of a gradient is posted during the whole step.
 * On a device it would block staging memory, and with it all later messages, so it is received in host
 * memory. */
static ddp_status ddp__guest_post(ddp_pipe *p, ddp_verb verb, ddp__guest *u, int gradient)
{
    const ddp_node *n = p->g->node[u->node], *own = p->g->node[n->tied];
    const int here = gradient && u->arrived;
    ddp_message m = ddp__message(p->d, verb, p->piece, 1, DDP__MICRO_BATCH);

    p->piece[0].data = here                              ? u->arrived
                       : gradient                        ? n->grad[0]
                       : own->here == (int)DDP__HERE_OWN ? own->param[0]
                                                         : n->param[0];
    p->piece[0].count = ddp__guest_floats(p, u);
    return ddp__pipe_post(p, &m, u->peer, here, &u->ticket[gradient]);
}

ddp_status ddp__guests_begin(ddp_pipe *p)
{
    for (int i = 0; i < p->guests; i++) {
        ddp__guest *u = &p->guest[i];
        DDP__TRY(ddp__pipe_hold(p, &u->ticket[1], 0));
        ddp__host_zero(ddp__host_of(p->d), p->g->node[u->node]->grad[0],
                       ddp__guest_floats(p, u) * sizeof(float));
        DDP__TRY(ddp__guest_post(p, DDP_RECEIVE, u, 0));
    }
    for (int i = 0; i < p->guests; i++) DDP__TRY(ddp__pipe_hold(p, &p->guest[i].ticket[0], 0));
    return DDP_OK;
}

ddp_status ddp__hosts_begin(ddp_pipe *p, int trains)
{
    for (int i = 0; i < p->hosts; i++) {
        DDP__TRY(ddp__guest_post(p, DDP_SEND, &p->host[i], 0));
        if (trains) DDP__TRY(ddp__guest_post(p, DDP_RECEIVE, &p->host[i], 1));
    }
    return DDP_OK;
}

/* Called before the gradient of an owner is complete: waits until the weight is sent, and adds the gradients
 * of its uses on other stages. */
static int ddp__hosts_end(void *user, int owner)
{
    ddp_pipe *p = (ddp_pipe *)user;

    for (int i = 0; i < p->hosts; i++) {
        ddp__guest *u = &p->host[i];
        ddp_node *n = p->g->node[u->node];
        const int comes = u->arrived && u->ticket[1] != -1;
        if (n->tied != owner) continue;
        DDP__DO(ddp__pipe_hold(p, &u->ticket[0], 0));
        DDP__DO(ddp__pipe_hold(p, &u->ticket[1], u->arrived != NULL));
        if (comes)
            ddp__host_upload(ddp__host_of(p->d), n->grad[0], u->arrived,
                             ddp__guest_floats(p, u) * sizeof(float));
    }
    return 0;
}

ddp_status ddp__guests_end(ddp_pipe *p)
{
    for (int i = 0; i < p->guests; i++) DDP__TRY(ddp__guest_post(p, DDP_SEND, &p->guest[i], 1));
    return DDP_OK;
}

ddp_status ddp__hosts_leave(ddp_pipe *p)
{
    for (int i = 0; i < p->hosts; i++) DDP__TRY(ddp__pipe_hold(p, &p->host[i].ticket[0], 0));
    return DDP_OK;
}

/* ---- opening ---- */

int ddp__tied_open(ddp_pipe *p)
{
    const size_t nodes = (size_t)ddp__count(p->g->node);

    p->guest = (ddp__guest *)ddp__scratch_take(&p->room, nodes, sizeof *p->guest);
    p->host = (ddp__guest *)ddp__scratch_take(&p->room, nodes, sizeof *p->host);
    if (ddp__scratch_failed(&p->room)) return 0;
    for (int i = 0; i < ddp__count(p->g->node); i++) {
        const ddp_node *n = p->g->node[i], *own = n->tied >= 0 ? p->g->node[n->tied] : NULL;
        ddp__guest u = {i, 0, {-1, -1}, NULL};
        if (!own || n->stage == own->stage) continue;
        if (n->here == (int)DDP__HERE_OWN) {
            u.peer = ddp__pipe_rank(p, own->stage);
            p->guest[p->guests++] = u;
        }
        if (own->here == (int)DDP__HERE_OWN) {
            u.peer = ddp__pipe_rank(p, n->stage);
            p->host[p->hosts++] = u;
        }
    }
    for (int i = 0; ddp__backend_of(p->d) && i < p->hosts; i++)
        p->host[i].arrived =
            (float *)ddp__scratch_take(&p->room, ddp__guest_floats(p, &p->host[i]), sizeof(float));
    p->g->fetch_uses = ddp__hosts_end;
    p->g->fetch_user = p;
    return !ddp__scratch_failed(&p->room);
}
