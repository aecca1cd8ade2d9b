/* Simulates one step of a pipeline: computing, sending and receiving of every stage. */
#include "base/core.h"
#include "pipe/schedule.h"

/* Messages of one boundary in one direction, in the order of micro-batches. */
typedef struct ddp__played_way {
    int sent, begun, arrived; /* begun is 1 after the first byte has arrived, for one message at a time */
    double *first_byte;       /* [micro_batches] arrival at the receiver */
    double *arrives;          /* [micro_batches] */
} ddp__played_way;

/* A message that is computed and not sent: boundary x 2 + gradient, micro-batch. */
typedef struct ddp__played_send {
    int way, micro_batch;
    double ready;
} ddp__played_send;

typedef struct ddp__played_stage {
    ddp_task *task;
    int tasks, next;
    double free_at[2];      /* when its slots are free: computing, sending */
    int arriving;           /* messages being received, which share the downlink, valid from `since` */
    double since, backlog;  /* backlog: seconds of data that wait for the downlink */
    ddp__played_send *send; /* in order */
    int sends, sent;
} ddp__played_stage;

enum { DDP__SLOT_COMPUTE, DDP__SLOT_SEND };

typedef struct ddp__played {
    const ddp_pipeline_costs *c;
    ddp__played_stage *stage;
    ddp__played_way *way; /* [2 x boundaries] forward, backward */
    ddp_pipeline_times *out;
    double busy;
    ddp__scratch room;
} ddp__played;

static const ddp_boundary *ddp__played_boundary(const ddp__played *x, int way)
{
    return &x->c->boundary[way / 2];
}
static int ddp__played_end(const ddp_boundary *b, int gradient) { return gradient ? b->from : b->to; }
static double ddp__played_cost(const ddp_boundary *b, int gradient)
{
    return gradient ? b->backward_s : b->forward_s;
}

/* ---- the next event of a stage and its time, DBL_MAX if there is no event ---- */

/* Time at which all inputs of the stage's next task have arrived, or DBL_MAX. */
static double ddp__compute_ready(const ddp__played *x, int s)
{
    const ddp__played_stage *k = &x->stage[s];
    const ddp_task *t = &k->task[k->next];
    double ready = 0;

    if (k->next == k->tasks) return DBL_MAX;
    if (t->kind == DDP_TASK_WEIGHT_GRADIENT) return 0;
    for (int w = 0; w < 2 * x->c->boundaries; w++) {
        const ddp_boundary *b = ddp__played_boundary(x, w);
        if (w % 2 != (t->kind != DDP_TASK_FORWARD) || ddp__played_end(b, w % 2) != s || (w % 2 && b->one_way))
            continue;
        if (x->way[w].arrived <= t->micro_batch) return DBL_MAX;
        if (x->way[w].arrives[t->micro_batch] > ready) ready = x->way[w].arrives[t->micro_batch];
    }
    return ready;
}

/* The first time at which a message to stage s begins or ends. *way receives its boundary and direction. */
static double ddp__receive_ready(const ddp__played *x, int s, int *way)
{
    double first = DBL_MAX;

    for (int w = 0; w < 2 * x->c->boundaries; w++) {
        const ddp__played_way *y = &x->way[w];
        const ddp_boundary *b = ddp__played_boundary(x, w);
        const int ends = y->arrived < y->begun;
        double at;
        if (ddp__played_end(b, w % 2) != s || y->arrived == y->sent) continue;
        at = y->first_byte[y->arrived] + (ends ? ddp__played_cost(b, w % 2) : 0);
        if (!(at < first)) continue;
        first = at;
        *way = w;
    }
    return first;
}

/* ---- events ---- */

static void ddp__slot_add(ddp__played *x, int stage, int way, ddp_task_kind kind, int micro_batch,
                          double begin, double end)
{
    const ddp_pipeline_slot s = {
        stage, way < 0 ? -1 : way / 2, {kind, micro_batch}, way >= 0 && way % 2, begin, end};

    x->out->slot[x->out->slots++] = s;
}

static void ddp__play_compute(ddp__played *x, int s, double begin)
{
    ddp__played_stage *k = &x->stage[s];
    const ddp_task *t = &k->task[k->next++];
    const ddp_stage_cost *c = &x->c->stage[s];
    const double cost = t->kind == DDP_TASK_FORWARD
                            ? c->forward_s
                            : (t->kind == DDP_TASK_WEIGHT_GRADIENT ? 0 : c->inputs_s) +
                                  (t->kind == DDP_TASK_INPUT_GRADIENT ? 0 : c->weights_s);
    const double end = begin + cost;

    ddp__slot_add(x, s, -1, t->kind, t->micro_batch, begin, end);
    k->free_at[DDP__SLOT_COMPUTE] = end;
    x->busy += cost;
    if (end > x->out->step_s) x->out->step_s = end;
    for (int w = 0; w < 2 * x->c->boundaries && t->kind != DDP_TASK_WEIGHT_GRADIENT; w++) {
        const ddp_boundary *b = ddp__played_boundary(x, w);
        const ddp__played_send m = {w, t->micro_batch, end};
        if (w % 2 != (t->kind != DDP_TASK_FORWARD) || ddp__played_end(b, !(w % 2)) != s ||
            (w % 2 && b->one_way))
            continue;
        k->send[k->sends++] = m;
    }
}

static void ddp__play_send(ddp__played *x, int s, double begin)
{
    ddp__played_stage *k = &x->stage[s];
    const ddp__played_send *m = &k->send[k->sent++];
    const ddp_boundary *b = ddp__played_boundary(x, m->way);
    ddp__played_way *y = &x->way[m->way];

    k->free_at[DDP__SLOT_SEND] = begin + ddp__played_cost(b, m->way % 2);
    ddp__slot_add(x, s, m->way, DDP_TASK_SEND, m->micro_batch, begin, k->free_at[DDP__SLOT_SEND]);
    y->first_byte[y->sent++] = begin + b->alpha_s;
}

/* The downlink delivers bytes in order of arrival. A message is complete when all bytes that arrived before
 * its last byte have passed, including those of other messages. */
static void ddp__play_receive(ddp__played *x, int s, int way, double now)
{
    ddp__played_way *y = &x->way[way];
    ddp__played_stage *k = &x->stage[s];

    k->backlog = fmax(0, k->backlog + (k->arriving - 1) * (now - k->since));
    k->since = now;
    if (y->arrived == y->begun) {
        y->begun++;
        k->arriving++;
        return;
    }
    k->arriving--;
    ddp__slot_add(x, s, way, DDP_TASK_RECEIVE, y->arrived, y->first_byte[y->arrived], now + k->backlog);
    y->arrives[y->arrived++] = now + k->backlog;
}

/* Plays the earliest event. Events that it causes cannot be earlier. 0 means that the step is complete. */
static int ddp__play_next(ddp__played *x)
{
    double least = DBL_MAX;
    int stage = -1, slot = 0, way = 0;

    for (int s = 0; s < x->c->shape.stages; s++) {
        const ddp__played_stage *k = &x->stage[s];
        const double computed = k->sent < k->sends ? k->send[k->sent].ready : DBL_MAX;
        int from = 0;
        const double begin[3] = {fmax(ddp__compute_ready(x, s), k->free_at[DDP__SLOT_COMPUTE]),
                                 fmax(computed, k->free_at[DDP__SLOT_SEND]), ddp__receive_ready(x, s, &from)};
        for (int i = 0; i < 3; i++) {
            if (!(begin[i] < least)) continue;
            least = begin[i];
            stage = s;
            slot = i;
            way = from;
        }
    }
    if (stage < 0) return 0;
    if (slot == DDP__SLOT_COMPUTE)
        ddp__play_compute(x, stage, least);
    else if (slot == DDP__SLOT_SEND)
        ddp__play_send(x, stage, least);
    else
        ddp__play_receive(x, stage, way, least);
    return 1;
}

/* ---- checks and memory ---- */

static ddp_status ddp__play_check(const ddp_pipeline_costs *c, ddp_error *err)
{
    if (!c || !c->stage || c->boundaries < 0 || (c->boundaries && !c->boundary))
        return ddp__fail(err, DDP_ARG,
                         "ddp_pipeline_time: the costs of all stages and boundaries must not be NULL");
    if (!ddp_pipeline_held(&c->shape, 0))
        return ddp__fail(
            err, DDP_ARG,
            "ddp_pipeline_time: invalid pipeline: %d stages (1..1024), %d micro-batches (at least 1), %d "
            "ahead (at least 0), schedule %d",
            c->shape.stages, c->shape.micro_batches, c->shape.ahead, (int)c->shape.schedule);
    for (int s = 0; s < c->shape.stages; s++) {
        const ddp_stage_cost *k = &c->stage[s];
        const double sum = k->forward_s + k->inputs_s + k->weights_s;
        if (!(k->forward_s >= 0) || !(k->inputs_s >= 0) || !(k->weights_s >= 0) || !ddp__finite(sum))
            return ddp__fail(err, DDP_NUMERIC,
                             "stage %d: times of %g, %g and %g s must be finite and at least 0", s,
                             k->forward_s, k->inputs_s, k->weights_s);
    }
    for (int i = 0; i < c->boundaries; i++) {
        const ddp_boundary *b = &c->boundary[i];
        if (b->from < 0 || b->to <= b->from || b->to >= c->shape.stages)
            return ddp__fail(err, DDP_ARG,
                             "boundary %d goes from stage %d to %d of %d stages; it must go to a later one",
                             i, b->from, b->to, c->shape.stages);
        if (!(b->forward_s >= 0) || !(b->backward_s >= 0) || !(b->alpha_s >= 0) ||
            !ddp__finite(b->forward_s + b->backward_s + b->alpha_s))
            return ddp__fail(err, DDP_NUMERIC,
                             "boundary %d: times of %g, %g and %g s must be finite and at least 0", i,
                             b->forward_s, b->backward_s, b->alpha_s);
    }
    return DDP_OK;
}

/* Returns 0 if out of memory. */
static int ddp__play_open(ddp__played *x)
{
    const ddp_pipeline_costs *c = x->c;
    const size_t S = (size_t)c->shape.stages, M = (size_t)c->shape.micro_batches,
                 ways = 2 * (size_t)c->boundaries;
    ddp_task *task = (ddp_task *)ddp__scratch_take(&x->room, 3 * S * M, sizeof *task);
    ddp__played_send *send = (ddp__played_send *)ddp__scratch_take(&x->room, S * ways * M, sizeof *send);
    double *at = ddp__doubles(&x->room, 2 * ways * M);

    x->stage = (ddp__played_stage *)ddp__scratch_take(&x->room, S, sizeof *x->stage);
    x->way = (ddp__played_way *)ddp__scratch_take(&x->room, ways, sizeof *x->way);
    x->out->held = (int *)ddp__calloc(S, sizeof *x->out->held);
    x->out->slot = (ddp_pipeline_slot *)ddp__calloc(3 * S * M + 2 * ways * M, sizeof *x->out->slot);
    if (ddp__scratch_failed(&x->room) || !x->out->held || !x->out->slot) return 0;
    for (size_t s = 0; s < S; s++) {
        x->stage[s].task = task + 3 * s * M;
        x->stage[s].send = send + s * ways * M;
        x->stage[s].tasks = ddp_pipeline_tasks(&c->shape, (int)s, x->stage[s].task);
        x->out->held[s] = ddp_pipeline_held(&c->shape, (int)s);
    }
    for (size_t w = 0; w < ways; w++) {
        x->way[w].first_byte = at + 2 * w * M;
        x->way[w].arrives = x->way[w].first_byte + M;
    }
    return 1;
}

ddp_status ddp_pipeline_time(const ddp_pipeline_costs *c, ddp_pipeline_times *out, ddp_error *err)
{
    ddp__played x = DDP__ZEROS;
    ddp_status status = DDP_OK;

    if (!out) return ddp__fail(err, DDP_ARG, "ddp_pipeline_time: out must not be NULL");
    memset(out, 0, sizeof *out);
    DDP__TRY(ddp__play_check(c, err));
    x.c = c;
    x.out = out;
    if (ddp__play_open(&x))
        while (ddp__play_next(&x)) continue;
    else
        status = ddp__fail(err, DDP_MEMORY, "out of memory for %d stages of %d micro-batches",
                           c->shape.stages, c->shape.micro_batches);
    ddp__scratch_free(&x.room);
    if (status != DDP_OK)
        ddp_pipeline_times_free(out);
    else if (out->step_s > 0)
        out->bubble_pct = 100 * (1 - x.busy / (out->step_s * c->shape.stages));
    return status;
}

void ddp_pipeline_times_free(ddp_pipeline_times *t)
{
    if (!t) return;
    if (t->held) DDP_FREE(t->held);
    if (t->slot) DDP_FREE(t->slot);
    memset(t, 0, sizeof *t);
}
