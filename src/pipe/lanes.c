/* What a stage did of a step and when; what its tasks take, and what a step should take. */
#include "pipe/executor.h"

/* ---- the record of a step ---- */

/* 0: out of memory. Times of a device come later than its calls return: there nothing is recorded. */
int ddp__lanes_open(ddp_pipe *p)
{
    ddp__lanes *x = &p->lanes;
    const size_t M = (size_t)p->micro_batches, ends = (size_t)(p->ins + p->outs);

    if (p->d->host.backend || p->d->cfg.trace_spans <= 0) return 1;
    x->room = (int)(3 * M + 2 * M * ends);
    x->slot = (ddp_pipeline_slot *)ddp__calloc((size_t)x->room, sizeof *x->slot);
    x->post = (ddp__lane_post *)ddp__calloc(4 * M, sizeof *x->post);
    return x->slot && x->post;
}

void ddp__lanes_close(ddp_pipe *p)
{
    if (p->lanes.slot) DDP_FREE(p->lanes.slot);
    if (p->lanes.post) DDP_FREE(p->lanes.post);
}

void ddp__lanes_begin(ddp_pipe *p)
{
    ddp__lanes *x = &p->lanes;

    if (x->steps == 1 && !x->warm) { /* the first step meets cold memory, and connections */
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
    const ddp__lane_mark at = {ddp_now(), p->d->wait_this_step};

    return at;
}

static void ddp__lane_add(ddp_pipe *p, const ddp_pipeline_slot *s)
{
    if (p->lanes.slots < p->lanes.room) p->lanes.slot[p->lanes.slots++] = *s;
}

/* Hooks may have waited for averages meanwhile, which is no computing. */
void ddp__lane_task(ddp_pipe *p, ddp__lane_mark from, ddp_task_kind kind, int m)
{
    const double now = ddp_now();
    const ddp_pipeline_slot s = {p->stage, -1, {kind, m}, 0, from.now_s, now};

    p->lanes.sum[kind] += fmax(0, now - from.now_s - (p->d->wait_this_step - from.waited_s));
    ddp__lane_add(p, &s);
}

void ddp__lane_posted(ddp_pipe *p, ddp__lane_mark from, ddp_task_kind kind, int gradient, int m)
{
    ddp__lane_post *x = &p->lanes.post[p->lanes.posts];

    if (!p->lanes.room || p->lanes.posts == 4 * p->micro_batches) return;
    p->lanes.posts++;
    x->begin = from.now_s;
    x->end = ddp_now();
    x->task.kind = kind;
    x->task.micro_batch = m;
    x->gradient = gradient;
}

/* The messages of a post are those that the link was given meanwhile. */
static void ddp__lane_messages(ddp_pipe *p)
{
    const ddp_ctx *d = p->d;
    const int n = ddp__engine_spans(d->engine, p->lanes.begun, DBL_MAX, d->op_scratch, d->op_room);

    for (int i = 0; i < n; i++) {
        const ddp__op_span *o = &d->op_scratch[i];
        ddp_pipeline_slot s = {p->stage, 0, {DDP_TASK_SEND, 0}, 0, o->begin + o->peer_wait, o->end};
        while (s.boundary < p->stages && ddp__pipe_rank(p, s.boundary) != o->peer) s.boundary++;
        for (int k = 0; k < p->lanes.posts && s.boundary < p->stages && o->end >= 0; k++) {
            const ddp__lane_post *x = &p->lanes.post[k];
            if (o->submitted < x->begin || o->submitted > x->end ||
                o->verb != (x->task.kind == DDP_TASK_SEND ? DDP_SEND : DDP_RECEIVE)) continue;
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
    if (p->lanes.room && p->d->engine && !p->d->stager) ddp__lane_messages(p);
}

int ddp_pipe_lanes(const ddp_pipe *p, ddp_pipeline_slot *out, int room)
{
    const int n = !p ? 0 : p->lanes.slots < room ? p->lanes.slots : room;

    if (n > 0) memcpy(out, p->lanes.slot, (size_t)n * sizeof *out);
    return n > 0 ? n : 0;
}

/* ---- what all stages of a pipeline know together ---- */

/* What a stage tells: itself, and of each other stage what it sends there, and how its links to and from it are. */
enum { DDP__TELLS_STAGE, DDP__TELLS_COST, DDP__TELLS_STEP = DDP__TELLS_COST + 3, DDP__TELLS_BUSY, DDP__TELLS_EXPOSED,
       DDP__TELLS_RATE, DDP__TELLS_OTHERS };
enum { DDP__OTHER_FORWARD, DDP__OTHER_BACKWARD, DDP__OTHER_RATE, DDP__OTHER_DELAY, DDP__OTHERS };

static size_t ddp__row_size(const ddp_pipe *p) { return DDP__TELLS_OTHERS + DDP__OTHERS * (size_t)p->stages; }
static const double *ddp__row_other(const double *row, int stage) { return row + DDP__TELLS_OTHERS + DDP__OTHERS * stage; }

/* What averaging adds to a step, by the strategy's plan. */
static double ddp__stage_exposed(ddp_ctx *d)
{
    const ddp_profile *f = ddp_profile_get(d);
    double compute;

    if (!(d->stats.predicted_step_s > 0) || !f) return 0;
    compute = f->between_s;
    for (int l = 0; l < f->layers; l++) compute += f->forward_s[l] + f->backward_s[l];
    return fmax(0, d->stats.predicted_step_s - compute);
}

static void ddp__row_fill(ddp_pipe *p, double *row)
{
    const ddp__lanes *x = &p->lanes;
    const double steps = x->steps > 0 ? (double)x->steps : 1, tasks = steps * p->micro_batches;

    row[DDP__TELLS_STAGE] = p->stage;
    row[DDP__TELLS_COST] = x->sum[DDP_TASK_FORWARD] / tasks;
    row[DDP__TELLS_COST + 1] = (x->sum[DDP_TASK_BACKWARD] + x->sum[DDP_TASK_INPUT_GRADIENT]) / tasks;
    row[DDP__TELLS_COST + 2] = x->sum[DDP_TASK_WEIGHT_GRADIENT] / tasks;
    row[DDP__TELLS_STEP] = x->step_s / steps;
    for (int k = 0; k <= (int)DDP_TASK_WEIGHT_GRADIENT; k++) row[DDP__TELLS_BUSY] += x->sum[k] / steps;
    row[DDP__TELLS_EXPOSED] = ddp__stage_exposed(p->d);
    row[DDP__TELLS_RATE] = p->d->links[0].own.rate;
    for (int s = 0; s < p->stages; s++) {
        const int rank = ddp__pipe_rank(p, s);
        double *other = row + DDP__TELLS_OTHERS + DDP__OTHERS * s;
        if (s == p->stage || !p->d->links[0].path) continue;
        other[DDP__OTHER_RATE] = p->d->links[0].path[rank].rate;
        other[DDP__OTHER_DELAY] = p->d->links[0].path[rank].delay_s;
    }
    for (int i = 0; i < p->outs; i++) {
        double *other = row + DDP__TELLS_OTHERS + DDP__OTHERS * p->out[i].stage;
        other[DDP__OTHER_FORWARD] = (double)p->out[i].flow[0].bytes;
        other[DDP__OTHER_BACKWARD] = (double)p->out[i].flow[1].bytes;
    }
}

static double ddp__way_s(const double *from, const double *to, int to_stage, double bytes)
{
    const double rate = ddp__slower(ddp__slower(from[DDP__TELLS_RATE], to[DDP__TELLS_RATE]),
                                    ddp__row_other(from, to_stage)[DDP__OTHER_RATE]);

    return rate > 0 ? bytes / rate : 0;
}

/* All that the stages tell, in their order, into the costs of a step; stage and boundary are room. */
static void ddp__rows_costs(const ddp_pipe *p, const double *const *row, ddp_stage_cost *stage, ddp_boundary *boundary,
                            ddp_pipeline_costs *c, ddp_pipe_stats *out)
{
    c->shape = ddp__pipe_shape(p);
    c->stage = stage;
    c->boundary = boundary;
    for (int s = 0; s < p->stages; s++) {
        const double *cost = row[s] + DDP__TELLS_COST;
        stage[s].forward_s = cost[0], stage[s].inputs_s = cost[1], stage[s].weights_s = cost[2];
        out->step_s = fmax(out->step_s, row[s][DDP__TELLS_STEP]);
        for (int t = s + 1; t < p->stages; t++) {
            const double *to = ddp__row_other(row[s], t);
            ddp_boundary *b = &boundary[c->boundaries];
            if (!(to[DDP__OTHER_FORWARD] > 0)) continue;
            c->boundaries++;
            out->boundary_bytes += p->micro_batches * (to[DDP__OTHER_FORWARD] + to[DDP__OTHER_BACKWARD]);
            b->from = s, b->to = t;
            b->forward_s = ddp__way_s(row[s], row[t], t, to[DDP__OTHER_FORWARD]);
            b->backward_s = ddp__way_s(row[t], row[s], s, to[DDP__OTHER_BACKWARD]);
            b->alpha_s = (to[DDP__OTHER_DELAY] + ddp__row_other(row[t], s)[DDP__OTHER_DELAY]) / 2;
            b->one_way = !(to[DDP__OTHER_BACKWARD] > 0);
        }
    }
    for (int s = 0; s < p->stages && out->step_s > 0; s++)
        out->bubble_pct += 100 * (1 - row[s][DDP__TELLS_BUSY] / out->step_s) / p->stages;
}

static ddp_status ddp__stats_play(const ddp_pipe *p, const double *const *row, ddp_pipe_stats *out, ddp_error *err)
{
    const size_t S = (size_t)p->stages;
    ddp_stage_cost *stage = (ddp_stage_cost *)ddp__calloc(S, sizeof *stage);
    ddp_boundary *boundary = (ddp_boundary *)ddp__calloc(S * S, sizeof *boundary);
    ddp_pipeline_costs c;
    ddp_pipeline_times t;
    double exposed = 0;
    ddp_status s;

    memset(&c, 0, sizeof c);
    memset(&t, 0, sizeof t);
    if (!stage || !boundary) {
        s = ddp__fail(err, DDP_MEMORY, "out of memory for the costs of %d stages", p->stages);
    } else {
        ddp__rows_costs(p, row, stage, boundary, &c, out);
        s = ddp_pipeline_time(&c, &t, err);
    }
    for (int i = 0; i < p->stages; i++) exposed = fmax(exposed, row[i][DDP__TELLS_EXPOSED]);
    out->predicted_step_s = t.step_s + exposed;
    ddp_pipeline_times_free(&t);
    if (stage) DDP_FREE(stage);
    if (boundary) DDP_FREE(boundary);
    return s;
}

static ddp_status ddp__stats_gather(ddp_pipe *p, double *all, const double **row, ddp_error *err)
{
    const size_t n = ddp__row_size(p);
    int place = 0;

    for (int s = 0; s < p->stages; s++) place += ddp__pipe_rank(p, s) < p->d->rank;
    ddp__row_fill(p, all + (size_t)place * n);
    if (p->stages > 1) DDP__TRY(ddp__gather_words(p->d, p->team, all, n * sizeof *all, err));
    for (int i = 0; i < p->stages; i++) row[(int)all[(size_t)i * n]] = all + (size_t)i * n;
    return DDP_OK;
}

int ddp_pipe_get_stats(ddp_pipe *p, ddp_pipe_stats *out)
{
    double *all;
    const double **row;
    ddp_status s;

    if (!p || !out) return (int)DDP_ARG;
    DDP__ENTER(p->d);
    memset(out, 0, sizeof *out);
    all = (double *)ddp__calloc((size_t)p->stages * ddp__row_size(p), sizeof *all);
    row = (const double **)ddp__calloc((size_t)p->stages, sizeof *row);
    s = all && row ? ddp__stats_gather(p, all, row, &p->d->host.error) :
        ddp__fail(&p->d->host.error, DDP_MEMORY, "out of memory for what %d stages tell", p->stages);
    if (s == DDP_OK) s = ddp__stats_play(p, row, out, &p->d->host.error);
    if (s == DDP_OK && p->d->host.backend) out->step_s = out->bubble_pct = out->predicted_step_s = (double)NAN;
    out->steps = p->lanes.steps;
    if (all) DDP_FREE(all);
    if (row) DDP_FREE((void *)row);
    return s ? ddp__ctx_fail(p->d, &p->d->host.error) : 0;
}
