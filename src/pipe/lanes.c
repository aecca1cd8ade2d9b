/* Measurement of a stage: its activity in a step, and the predicted duration of a step. */
#include "context/clock.h"
#include "exchange/post.h"
#include "pipe/executor.h"

/* ---- the record of a step ---- */

/* Returns 0 if out of memory. On a device nothing is recorded, because tasks end after the calls return. */
int ddp__lanes_open(ddp_pipe *p)
{
    ddp__lanes *x = &p->lanes;
    const size_t M = (size_t)p->micro_batches, ends = (size_t)(p->hops[0] + p->hops[1]);

    if (ddp__backend_of(p->d) || ddp__cfg(p->d)->debug.trace_spans <= 0) return 1;
    x->room = (int)(3 * M + 2 * M * ends);
    x->slot = (ddp_pipeline_slot *)ddp__scratch_take(&p->room, (size_t)x->room, sizeof *x->slot);
    x->post = (ddp_pipeline_slot *)ddp__scratch_take(&p->room, 4 * M, sizeof *x->post);
    return !ddp__scratch_failed(&p->room);
}

void ddp__lanes_begin(ddp_pipe *p)
{
    ddp__lanes *x = &p->lanes;

    if (x->steps == 1 && !x->warm) { /* excludes the first step, which opens connections and warms caches */
        memset(x->sum, 0, sizeof x->sum);
        x->step_s = 0;
        x->steps = 0;
        x->warm = 1;
    }
    x->slots = x->posts = 0;
    x->begun = ddp_now();
}

ddp__lane_mark ddp__lane_now(const ddp_pipe *p)
{
    const ddp__lane_mark at = {ddp_now(), ddp__clock_waited(p->d)};

    return at;
}

static void ddp__lane_add(ddp_pipe *p, const ddp_pipeline_slot *s)
{
    if (p->lanes.slots < p->lanes.room) p->lanes.slot[p->lanes.slots++] = *s;
}

/* Hooks may have waited for averages in this time, which is not computing time. */
void ddp__lane_task(ddp_pipe *p, ddp__lane_mark from, ddp_task_kind kind, int m)
{
    const double now = ddp_now();
    const ddp_pipeline_slot s = {p->stage, -1, {kind, m}, 0, from.now_s, now};

    p->lanes.sum[kind] += fmax(0, now - from.now_s - (ddp__clock_waited(p->d) - from.waited_s));
    ddp__lane_add(p, &s);
}

void ddp__lane_posted(ddp_pipe *p, ddp__lane_mark from, ddp_verb verb, int gradient, int m)
{
    const ddp_pipeline_slot s = {
        p->stage, -1,         {verb == DDP_SEND ? DDP_TASK_SEND : DDP_TASK_RECEIVE, m},
        gradient, from.now_s, ddp_now()};

    if (p->lanes.room && p->lanes.posts < 4 * p->micro_batches) p->lanes.post[p->lanes.posts++] = s;
}

/* Adds a slot for each message of the step, with the task that posted it. */
static void ddp__lane_messages(ddp_pipe *p)
{
    const ddp__op_span *spans;
    const int n = ddp__operations_since(p->d, p->lanes.begun, &spans);

    for (int i = 0; i < n; i++) {
        const ddp__op_span *o = &spans[i];
        ddp_pipeline_slot s = {p->stage, 0, {DDP_TASK_SEND, 0}, 0, o->begin + o->peer_wait, o->end};
        while (s.boundary < p->stages && ddp__pipe_rank(p, s.boundary) != o->peer) s.boundary++;
        for (int k = 0; k < p->lanes.posts && s.boundary < p->stages && o->end >= 0; k++) {
            const ddp_pipeline_slot *x = &p->lanes.post[k];
            if (o->submitted < x->begin_s || o->submitted > x->end_s ||
                o->verb != (x->task.kind == DDP_TASK_SEND ? DDP_SEND : DDP_RECEIVE))
                continue;
            s.task = x->task;
            s.gradient = x->gradient;
            ddp__lane_add(p, &s);
            break;
        }
    }
}

void ddp__lanes_end(ddp_pipe *p)
{
    p->lanes.step_s += ddp_now() - p->lanes.begun;
    p->lanes.steps++;
    if (p->lanes.room && ddp__engine_of(p->d, 0) && !ddp__has_stager(p->d)) ddp__lane_messages(p);
}

int ddp_pipe_lanes(const ddp_pipe *p, ddp_pipeline_slot *out, int room)
{
    const int n = !p ? 0 : p->lanes.slots < room ? p->lanes.slots : room;

    if (n > 0) memcpy(out, p->lanes.slot, (size_t)n * sizeof *out);
    return n > 0 ? n : 0;
}

/* ---- exchange between the stages of a pipeline ---- */

/* The figures that a stage sends: its times and, for each other stage, the bytes of a micro-batch and the
 * link. */
typedef struct ddp__told {
    ddp_stage_cost cost;
    double step_s, busy_s, exposed_s, rate;
} ddp__told;
typedef struct ddp__told_way {
    double forward, backward, rate, delay_s;
} ddp__told_way;

/* The figures of all stages, in the order of their ranks, and the lists computed from them. */
typedef struct ddp__all_told {
    ddp__told *stage;   /* [stages] */
    ddp__told_way *way; /* [stages x stages] from, to. A row is in stage order. */
    int *at;            /* [stages] index of a stage */
    ddp_stage_cost *cost;
    ddp_boundary *boundary;
} ddp__all_told;

static const ddp__told_way *ddp__told_to(const ddp_pipe *p, const ddp__all_told *a, int from, int to)
{
    return &a->way[a->at[from] * p->stages + to];
}

/* Exposed time of averaging according to the strategy's plan. */
static double ddp__stage_exposed(ddp_ctx *d)
{
    const ddp_profile *f = ddp_profile_get(d);
    double compute;

    if (!(ddp__stats(d)->predicted_step_s > 0) || !f) return 0;
    compute = f->between_s;
    for (int l = 0; l < f->layers; l++) compute += f->forward_s[l] + f->backward_s[l];
    return fmax(0, ddp__stats(d)->predicted_step_s - compute);
}

static void ddp__told_fill(ddp_pipe *p, ddp__told *own, ddp__told_way *way)
{
    const ddp__lanes *x = &p->lanes;
    const double steps = x->steps > 0 ? (double)x->steps : 1, tasks = steps * p->micro_batches;

    own->cost.forward_s = x->sum[DDP_TASK_FORWARD] / tasks;
    own->cost.inputs_s = (x->sum[DDP_TASK_BACKWARD] + x->sum[DDP_TASK_INPUT_GRADIENT]) / tasks;
    own->cost.weights_s = x->sum[DDP_TASK_WEIGHT_GRADIENT] / tasks;
    own->step_s = x->step_s / steps;
    for (int k = 0; k <= (int)DDP_TASK_WEIGHT_GRADIENT; k++) own->busy_s += x->sum[k] / steps;
    own->exposed_s = ddp__stage_exposed(p->d);
    own->rate = ddp__links_of(p->d, 0)->own.rate;
    for (int s = 0; s < p->stages; s++) {
        const int rank = ddp__pipe_rank(p, s);
        if (s == p->stage || !ddp__links_of(p->d, 0)->path) continue;
        way[s].rate = ddp__links_of(p->d, 0)->path[rank].rate;
        way[s].delay_s = ddp__links_of(p->d, 0)->path[rank].delay_s;
    }
    for (int i = 0; i < p->hops[0]; i++) {
        const ddp__hop *e = &p->hop[0][i];
        way[e->stage].forward = (double)e->flow[0].bytes;
        way[e->stage].backward = (double)e->flow[1].bytes;
    }
}

static ddp_status ddp__told_gather(ddp_pipe *p, const ddp__all_told *a, ddp_error *err)
{
    const size_t S = (size_t)p->stages;

    for (int s = 0; s < p->stages; s++)
        for (int t = 0; t < p->stages; t++) a->at[s] += ddp__pipe_rank(p, t) < ddp__pipe_rank(p, s);
    ddp__told_fill(p, &a->stage[a->at[p->stage]], &a->way[(size_t)a->at[p->stage] * S]);
    if (p->stages == 1) return DDP_OK;
    DDP__TRY(ddp__gather_words(p->d, p->team, a->stage, sizeof *a->stage, err));
    return ddp__gather_words(p->d, p->team, a->way, S * sizeof *a->way, err);
}

static double ddp__way_s(const ddp_pipe *p, const ddp__all_told *a, int from, int to, double bytes)
{
    const double rate = ddp__slower(ddp__slower(a->stage[a->at[from]].rate, a->stage[a->at[to]].rate),
                                    ddp__told_to(p, a, from, to)->rate);

    return rate > 0 ? bytes / rate : 0;
}

/* Fills in the costs of a step. */
static void ddp__told_costs(const ddp_pipe *p, const ddp__all_told *a, ddp_pipeline_costs *c,
                            ddp_pipe_stats *out)
{
    c->shape = ddp__pipe_shape(p);
    c->stage = a->cost;
    c->boundary = a->boundary;
    for (int s = 0; s < p->stages; s++) {
        a->cost[s] = a->stage[a->at[s]].cost;
        out->step_s = fmax(out->step_s, a->stage[s].step_s);
        for (int t = s + 1; t < p->stages; t++) {
            const ddp__told_way *to = ddp__told_to(p, a, s, t);
            ddp_boundary *b = &a->boundary[c->boundaries];
            if (!(to->forward > 0)) continue;
            c->boundaries++;
            out->boundary_bytes += p->micro_batches * (to->forward + to->backward);
            b->from = s;
            b->to = t;
            b->forward_s = ddp__way_s(p, a, s, t, to->forward);
            b->backward_s = ddp__way_s(p, a, t, s, to->backward);
            b->alpha_s = (to->delay_s + ddp__told_to(p, a, t, s)->delay_s) / 2;
            b->one_way = !(to->backward > 0);
        }
    }
    for (int s = 0; s < p->stages && out->step_s > 0; s++)
        out->bubble_pct += 100 * (1 - a->stage[s].busy_s / out->step_s) / p->stages;
}

static ddp_status ddp__told_play(ddp_pipe *p, const ddp__all_told *a, ddp_pipe_stats *out, ddp_error *err)
{
    ddp_pipeline_costs c = DDP__ZEROS;
    ddp_pipeline_times t = DDP__ZEROS;
    double exposed = 0;
    ddp_status s;

    DDP__TRY(ddp__told_gather(p, a, err));
    ddp__told_costs(p, a, &c, out);
    s = ddp_pipeline_time(&c, &t, err);
    for (int i = 0; i < p->stages; i++) exposed = fmax(exposed, a->stage[i].exposed_s);
    out->predicted_step_s = t.step_s + exposed;
    ddp_pipeline_times_free(&t);
    return s;
}

int ddp_pipe_get_stats(ddp_pipe *p, ddp_pipe_stats *out)
{
    const size_t S = p ? (size_t)p->stages : 0;
    ddp__scratch room = {NULL, 0};
    ddp__all_told a;
    ddp_status s;

    if (!p || !out) return (int)DDP_ARG;
    DDP__ENTER(p->d);
    memset(out, 0, sizeof *out);
    a.stage = (ddp__told *)ddp__scratch_take(&room, S, sizeof *a.stage);
    a.way = (ddp__told_way *)ddp__scratch_take(&room, S * S, sizeof *a.way);
    a.at = ddp__ints(&room, S);
    a.cost = (ddp_stage_cost *)ddp__scratch_take(&room, S, sizeof *a.cost);
    a.boundary = (ddp_boundary *)ddp__scratch_take(&room, S * S, sizeof *a.boundary);
    s = !ddp__scratch_failed(&room) ? ddp__told_play(p, &a, out, ddp__error(p->d))
                                    : ddp__fail(ddp__error(p->d), DDP_MEMORY,
                                                "out of memory for the statistics of %d stages", p->stages);
    if (s == DDP_OK && ddp__backend_of(p->d))
        out->step_s = out->bubble_pct = out->predicted_step_s = ddp__unknown();
    out->steps = p->lanes.steps;
    ddp__scratch_free(&room);
    return s ? ddp__ctx_fail(p->d, ddp__error(p->d)) : 0;
}
