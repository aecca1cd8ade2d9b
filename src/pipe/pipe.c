/* The executor of a pipeline: receives ahead, computes in the schedule's order, sends behind. */
#include "pipe/executor.h"

static size_t ddp__pipe_count(const ddp_pipe *p, int node) { return (size_t)ddp_shape_count(&p->g->node[node]->spec.out); }
static ddp_state *ddp__pipe_state(const ddp_pipe *p, int m) { return p->state[m % p->states]; }

/* ---- messages ---- */

static ddp_status ddp__pipe_post(ddp_pipe *p, ddp_verb verb, int peer, int pieces, int urgent, long *ticket)
{
    ddp_message m = ddp__message(p->d, verb, p->piece, pieces, DDP_NO_LAYER);

    *ticket = -1;
    if (pieces == 0) return DDP_OK;
    m.peer = peer;
    m.priority = urgent ? -1 : 0;
    m.filler = 0;
    return ddp__post(p->d, &m, p->d->host.backend != NULL, ticket, &p->d->host.error);
}

static ddp_status ddp__pipe_hold(ddp_pipe *p, long *ticket)
{
    const long held = *ticket;

    *ticket = -1;
    return held == -1 ? DDP_OK : ddp__post_hold(p->d, 0, held, DDP_NO_LAYER, &p->d->host.error);
}

/* The edge's outputs in the state of micro-batch m, or the gradients of those that have one. */
static int ddp__hop_list(ddp_pipe *p, const ddp__hop *e, int m, int gradients)
{
    ddp_state *s = ddp__pipe_state(p, m);
    int n = 0;

    for (int i = 0; i < e->nodes; i++) {
        const ddp_node *x = p->g->node[e->node[i]];
        if (gradients && !x->has_gradient) continue;
        p->piece[n].data = (float *)(gradients ? ddp_state_gradient(s, x) : ddp_state_data(s, x));
        p->piece[n++].count = ddp__pipe_count(p, x->index);
    }
    return n;
}

static ddp_status ddp__hops_post(ddp_pipe *p, ddp__hop *e, int edges, int m, int gradients, ddp_verb verb)
{
    for (int i = 0; i < edges; i++)
        DDP__TRY(ddp__pipe_post(p, verb, e[i].peer, ddp__hop_list(p, &e[i], m, gradients), 1,
                                gradients ? &e[i].back[m] : &e[i].data[m]));
    return DDP_OK;
}

static ddp_status ddp__hops_hold(ddp_pipe *p, ddp__hop *e, int edges, int m, int gradients)
{
    for (int i = 0; i < edges; i++) DDP__TRY(ddp__pipe_hold(p, gradients ? &e[i].back[m] : &e[i].data[m]));
    return DDP_OK;
}

/* What was sent out of the state of micro-batch m has left it. */
static ddp_status ddp__state_leave(ddp_pipe *p, int m)
{
    DDP__TRY(ddp__hops_hold(p, p->out, p->outs, m, 0));
    return ddp__hops_hold(p, p->in, p->ins, m, 1);
}

/* Activations are asked for as soon as there is a state for them; up to m at least. */
static ddp_status ddp__receive_ahead(ddp_pipe *p, int m)
{
    for (; p->received < p->asked; p->received++) {
        const int before = p->received - p->states;
        if (before >= p->finished) return DDP_OK;
        if (before >= 0 && p->received <= m) DDP__TRY(ddp__state_leave(p, before));
        for (int i = 0; before >= 0 && i < p->outs; i++)
            if (p->out[i].data[before] != -1 && !ddp__post_is_done(p->d, 0, p->out[i].data[before])) return DDP_OK;
        for (int i = 0; before >= 0 && i < p->ins; i++)
            if (p->in[i].back[before] != -1 && !ddp__post_is_done(p->d, 0, p->in[i].back[before])) return DDP_OK;
        if (before >= 0) DDP__TRY(ddp__state_leave(p, before));
        DDP__TRY(ddp__hops_post(p, p->in, p->ins, p->received, 0, DDP_RECEIVE));
    }
    return DDP_OK;
}

/* ---- tied weights across the cut: the owner updates, every step's first word is its values ---- */

static ddp_status ddp__guest_post(ddp_pipe *p, ddp_verb verb, const ddp__guest *u, int gradient, long *ticket)
{
    const ddp_node *n = p->g->node[u->node], *own = p->g->node[n->tied];

    p->piece[0].data = gradient ? n->grad[0] : own->here == (int)DDP__HERE_OWN ? own->param[0] : n->param[0];
    p->piece[0].count = (size_t)ddp_shape_count(&n->spec.param[0].shape);
    return ddp__pipe_post(p, verb, u->peer, 1, 0, ticket);
}

/* Before the first forward of a step. */
static ddp_status ddp__guests_begin(ddp_pipe *p)
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

/* After the first forward of the owner's stage, whose hooks have made the weight whole. */
static ddp_status ddp__hosts_begin(ddp_pipe *p, int trains)
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

int ddp__uses_fetch(void *user, int node) { return (int)ddp__hosts_end((ddp_pipe *)user, node); }

/* ---- tasks ---- */

static void ddp__inputs_feed(ddp_pipe *p, int m)
{
    ddp_state *s = ddp__pipe_state(p, m);

    for (int i = 0; i < p->inputs; i++) {
        const ddp_node *n = p->g->node[p->input[i]];
        const char *from = p->feed[i * p->micro_batches + m];
        const size_t count = ddp__pipe_count(p, n->index);
        if (!p->d->host.backend || ddp__output_bytes(n) == 4 * count)
            ddp__host_upload(&p->d->host, ddp_state_data(s, n), from, 4 * count);
        else p->d->host.backend->upload_elements(p->d->host.device, ddp_state_data(s, n), (const float *)(const void *)from,
                                                 count);
    }
}

static ddp_status ddp__loss_take(ddp_pipe *p, int m)
{
    float value;

    if (p->loss->here != (int)DDP__HERE_OWN) return DDP_OK;
    DDP__TRY(ddp__host_download(&p->d->host, &value, ddp_state_data(ddp__pipe_state(p, m), p->loss), sizeof value,
                                &p->d->host.error));
    p->loss_sum += (double)value;
    p->losses++;
    return DDP_OK;
}

static ddp_status ddp__pipe_forward(ddp_pipe *p, int m, int training)
{
    ddp_state *s = ddp__pipe_state(p, m);

    DDP__TRY(ddp__receive_ahead(p, m));
    if (m == 0) DDP__TRY(ddp__guests_begin(p));
    DDP__TRY(ddp__hops_hold(p, p->in, p->ins, m, 0));
    ddp__inputs_feed(p, m);
    ddp_state_micro_batch(s, p->g->state->pass + (uint64_t)m + 1);
    if (ddp__cut_forward(s, training)) return p->d->host.error.code;
    if (m == 0) DDP__TRY(ddp__hosts_begin(p, training));
    DDP__TRY(ddp__hops_post(p, p->out, p->outs, m, 0, DDP_SEND));
    if (training) DDP__TRY(ddp__hops_post(p, p->out, p->outs, m, 1, DDP_RECEIVE));
    return ddp__loss_take(p, m);
}

static ddp_status ddp__pipe_backward(ddp_pipe *p, const ddp_task *t)
{
    const int m = t->micro_batch, inputs = t->kind != DDP_TASK_WEIGHT_GRADIENT;
    const ddp__cut_part part = t->kind == DDP_TASK_BACKWARD ? DDP__CUT_BOTH : inputs ? DDP__CUT_INPUTS : DDP__CUT_WEIGHTS;

    if (inputs) DDP__TRY(ddp__hops_hold(p, p->out, p->outs, m, 1));
    if (ddp__cut_backward(ddp__pipe_state(p, m), p->loss, part)) return p->d->host.error.code;
    if (inputs) DDP__TRY(ddp__hops_post(p, p->in, p->ins, m, 1, DDP_SEND));
    if (part == DDP__CUT_INPUTS) return DDP_OK;
    p->finished = m + 1;
    for (int i = 0; m + 1 == p->micro_batches && i < p->guests; i++)
        DDP__TRY(ddp__guest_post(p, DDP_SEND, &p->guest[i], 1, &p->guest[i].gradient));
    return ddp__receive_ahead(p, -1);
}

static ddp_status ddp__pipe_run(ddp_pipe *p)
{
    p->received = p->finished = p->losses = 0;
    p->asked = p->micro_batches;
    p->evaluated = -1;
    p->loss_sum = 0;
    for (int i = 0; i < p->tasks; i++)
        DDP__TRY(p->task[i].kind == DDP_TASK_FORWARD ? ddp__pipe_forward(p, p->task[i].micro_batch, 1)
                                                     : ddp__pipe_backward(p, &p->task[i]));
    for (int m = 0; m < p->micro_batches; m++) DDP__TRY(ddp__state_leave(p, m));
    p->g->state->pass += (uint64_t)p->micro_batches;
    return DDP_OK;
}

int ddp_pipe_step(ddp_pipe *p)
{
    if (!p) return (int)DDP_ARG;
    DDP__ENTER(p->d);
    return ddp__pipe_run(p) ? ddp__ctx_fail(p->d, &p->d->host.error) : 0;
}

static ddp_status ddp__pipe_evaluate(ddp_pipe *p, int n)
{
    p->received = p->losses = 0;
    p->asked = n;
    p->loss_sum = 0;
    for (int m = 0; m < n; m++) {
        p->finished = m;
        DDP__TRY(ddp__pipe_forward(p, m, 0));
    }
    for (int i = 0; i < p->hosts; i++) DDP__TRY(ddp__pipe_hold(p, &p->host[i].weight));
    for (int m = 0; m < n; m++) DDP__TRY(ddp__state_leave(p, m));
    p->evaluated = n - 1;
    return DDP_OK;
}

int ddp_pipe_evaluate(ddp_pipe *p, int n)
{
    if (!p) return (int)DDP_ARG;
    DDP__ENTER(p->d);
    if (n < 1 || n > p->micro_batches)
        return ddp__ctx_failf(p->d, DDP_ARG, "ddp_pipe_evaluate: %d micro-batches; a step has %d", n, p->micro_batches);
    return ddp__pipe_evaluate(p, n) ? ddp__ctx_fail(p->d, &p->d->host.error) : 0;
}

float ddp_pipe_loss(ddp_pipe *p)
{
    float mean = NAN;
    ddp_piece piece;
    ddp_message m;

    if (!p || p->d->host.error.code) return mean;
    if (p->losses) mean = (float)(p->loss_sum / p->losses);
    if (p->stages == 1) return mean;
    m = ddp__own_word(p->d, &piece, DDP_BROADCAST, p->team, &mean, sizeof mean);
    m.peer = ddp__pipe_rank(p, p->loss->stage);
    if (ddp__run(p->d, &m, 0, &p->d->host.error)) {
        ddp__ctx_fail(p->d, &p->d->host.error);
        return NAN;
    }
    return mean;
}

const float *ddp_pipe_output(ddp_pipe *p, const ddp_node *n)
{
    if (!p || p->evaluated < 0 || !n || n->graph != p->g || !n->op || n->here != (int)DDP__HERE_OWN) return NULL;
    return ddp__output_show(p->g, n, ddp_state_data(ddp__pipe_state(p, p->evaluated), n));
}

int ddp_pipe_stage(const ddp_pipe *p) { return p ? p->stage : -1; }
int ddp_pipe_number(const ddp_pipe *p) { return p ? p->number : -1; }

void *ddp_pipe_input(ddp_pipe *p, int m, const char *name)
{
    if (!p || !name || m < 0 || m >= p->micro_batches) return NULL;
    for (int i = 0; i < p->inputs; i++)
        if (!strcmp(p->g->node[p->input[i]]->name, name)) return p->feed[i * p->micro_batches + m];
    return NULL;
}
