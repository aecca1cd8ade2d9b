/* The pipeline executor: posts receives early, computes in the order of the schedule, and sends in the
 * background. */
#include "pipe/executor.h"
#include "session/start.h"

/* Posts receives of activations while there is a free state, at least up to micro-batch m. */
static ddp_status ddp__receive_ahead(ddp_pipe *p, int m)
{
    for (; p->received < p->asked; p->received++) {
        const int before = p->received - p->states;
        if (before >= p->finished) return DDP_OK;
        if (before >= 0 && p->received > m && !ddp__edges_have_left(p, before)) return DDP_OK;
        if (before >= 0) DDP__TRY(ddp__edges_leave(p, before));
        DDP__TRY(ddp__edges_post(p, DDP_RECEIVE, p->received, 0));
    }
    return DDP_OK;
}

static void ddp__inputs_feed(ddp_pipe *p, int m)
{
    ddp_state *s = ddp__pipe_state(p, m);

    for (int i = 0; i < p->inputs; i++) {
        const ddp_node *n = p->g->node[p->input[i]];
        ddp__node_feed(n, ddp_state_data(s, n), p->feed[i * p->micro_batches + m]);
    }
}

static ddp_status ddp__loss_take(ddp_pipe *p, int m)
{
    float value;

    if (p->loss->here != (int)DDP__HERE_OWN) return DDP_OK;
    DDP__TRY(ddp__host_download(ddp__host_of(p->d), &value, ddp_state_data(ddp__pipe_state(p, m), p->loss),
                                sizeof value, ddp__error(p->d)));
    p->loss_sum += (double)value;
    p->losses++;
    return DDP_OK;
}

static ddp_status ddp__pipe_forward(ddp_pipe *p, int m, int training)
{
    ddp_state *s = ddp__pipe_state(p, m);
    ddp__lane_mark at;

    DDP__TRY(ddp__receive_ahead(p, m));
    if (m == 0) DDP__TRY(ddp__guests_begin(p));
    DDP__TRY(ddp__edges_hold(p, m, 0));
    s->arena[DDP__ARENA_HELD] = p->arena + (size_t)(m % p->held) * ddp__state_bytes(p->g, DDP__ARENA_HELD);
    s->arena[DDP__ARENA_PASS] = p->arena + (size_t)p->held * ddp__state_bytes(p->g, DDP__ARENA_HELD);
    ddp__inputs_feed(p, m);
    ddp_state_micro_batch(s, p->g->state->pass + (uint64_t)m + 1);
    at = ddp__lane_now(p);
    if (ddp__graph_forward(s, training)) return ddp__error(p->d)->code;
    if (training) ddp__lane_task(p, at, DDP_TASK_FORWARD, m);
    if (m == 0) DDP__TRY(ddp__hosts_begin(p, training));
    DDP__TRY(ddp__edges_post(p, DDP_SEND, m, 0));
    if (training) DDP__TRY(ddp__edges_post(p, DDP_RECEIVE, m, 1));
    return ddp__loss_take(p, m);
}

static ddp_status ddp__pipe_backward(ddp_pipe *p, const ddp_task *t)
{
    const int m = t->micro_batch, inputs = t->kind != DDP_TASK_WEIGHT_GRADIENT;
    const ddp__cut_part part = t->kind == DDP_TASK_BACKWARD ? DDP__CUT_BOTH
                               : inputs                     ? DDP__CUT_INPUTS
                                                            : DDP__CUT_WEIGHTS;
    ddp__lane_mark at;

    if (inputs) DDP__TRY(ddp__edges_hold(p, m, 1));
    at = ddp__lane_now(p);
    if (ddp__graph_backward(ddp__pipe_state(p, m), p->loss, part)) return ddp__error(p->d)->code;
    ddp__lane_task(p, at, t->kind, m);
    if (inputs) DDP__TRY(ddp__edges_post(p, DDP_SEND, m, 1));
    if (part == DDP__CUT_INPUTS) return DDP_OK;
    p->finished = m + 1;
    if (m + 1 == p->micro_batches) DDP__TRY(ddp__guests_end(p));
    return ddp__receive_ahead(p, -1);
}

/* A device sends through memory that the session allocates. The first hook would start the session too
 * late. */
static ddp_status ddp__pipe_begin(ddp_pipe *p, int micro_batches, int trains)
{
    p->received = p->finished = p->losses = 0;
    p->asked = micro_batches;
    p->trains = trains;
    p->loss_sum = 0;
    return ddp__backend_of(p->d) && !ddp__started(p->d) ? ddp__session_start(p->d, ddp__error(p->d)) : DDP_OK;
}

static ddp_status ddp__pipe_run(ddp_pipe *p)
{
    DDP__TRY(ddp__pipe_begin(p, p->micro_batches, 1));
    DDP__TRY(ddp__samples_begin(p));
    ddp__lanes_begin(p);
    p->evaluated = -1;
    for (int i = 0; i < p->tasks; i++)
        DDP__TRY(p->task[i].kind == DDP_TASK_FORWARD ? ddp__pipe_forward(p, p->task[i].micro_batch, 1)
                                                     : ddp__pipe_backward(p, &p->task[i]));
    for (int m = 0; m < p->micro_batches; m++) DDP__TRY(ddp__edges_leave(p, m));
    p->g->state->pass += (uint64_t)p->micro_batches;
    ddp__lanes_end(p);
    return DDP_OK;
}

int ddp_pipe_step(ddp_pipe *p)
{
    if (!p) return (int)DDP_ARG;
    DDP__ENTER(p->d);
    return ddp__pipe_keep(p) || ddp__pipe_run(p) ? ddp__ctx_fail(p->d, ddp__error(p->d)) : 0;
}

static ddp_status ddp__pipe_evaluate(ddp_pipe *p, int n)
{
    DDP__TRY(ddp__pipe_begin(p, n, 0));
    for (int m = 0; m < n; m++) {
        p->finished = m;
        DDP__TRY(ddp__pipe_forward(p, m, 0));
    }
    DDP__TRY(ddp__hosts_leave(p));
    for (int m = 0; m < n; m++) DDP__TRY(ddp__edges_leave(p, m));
    p->evaluated = n - 1;
    return DDP_OK;
}

int ddp_pipe_evaluate(ddp_pipe *p, int n)
{
    if (!p) return (int)DDP_ARG;
    DDP__ENTER(p->d);
    if (n < 1 || n > p->micro_batches)
        return ddp__ctx_failf(p->d, DDP_ARG, "ddp_pipe_evaluate: %d micro-batches, but a step has %d", n,
                              p->micro_batches);
    return ddp__pipe_evaluate(p, n) ? ddp__ctx_fail(p->d, ddp__error(p->d)) : 0;
}

float ddp_pipe_loss(ddp_pipe *p)
{
    float mean = (float)ddp__unknown();

    if (!p || ddp__host_check(ddp__host_of(p->d), ddp__error(p->d)) || ddp__error(p->d)->code) return mean;
    if (p->losses) mean = (float)(p->loss_sum / p->losses);
    if (p->stages == 1) return mean;
    if (!ddp__word_exchange(p, DDP_BROADCAST, p->loss->stage, &mean, sizeof mean)) return mean;
    ddp__ctx_fail(p->d, ddp__error(p->d));
    return (float)ddp__unknown();
}

const float *ddp_pipe_output(ddp_pipe *p, const ddp_node *n)
{
    if (!p || p->evaluated < 0 || !n || n->graph != p->g || !n->op || n->here != (int)DDP__HERE_OWN)
        return NULL;
    if (!ddp__output_stays(n)) return NULL;
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
