/* [pure] Pipeline schedules: order, memory, known lengths, and the time of a step compared with an oracle
 * that counts ticks. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

static struct {
    long left, live;
} memory = {-1, 0}; /* left: allocations that succeed, below 0: all; live: blocks */

void *heap_realloc(void *p, size_t bytes)
{
    if (memory.left == 0) return NULL;
    if (memory.left > 0) memory.left--;
    memory.live += !p;
    return realloc(p, bytes);
}

void heap_free(void *p)
{
    memory.live -= p != NULL;
    free(p);
}

enum { STAGES = 9, MICRO = 21, WAYS = 2 * 10 };

static void same(double a, double b) { assert_true(fabs(a - b) < 1e-9); }

static const ddp_pipeline all[] = {DDP_PIPELINE_GPIPE, DDP_PIPELINE_1F1B, DDP_PIPELINE_ZB};

/* An invalid schedule number; C++ warns about a direct cast. */
static ddp_pipeline pipeline_of(int number)
{
    ddp_pipeline p;

    memcpy(&p, &number, sizeof p);
    return p;
}

static int tasks_of(ddp_pipeline p, int stages, int stage, int M, int ahead, ddp_task *task)
{
    const ddp_pipeline_shape shape = {p, stages, M, ahead};

    return ddp_pipeline_tasks(&shape, stage, task);
}

static int held_of(ddp_pipeline p, int stages, int stage, int M, int ahead)
{
    const ddp_pipeline_shape shape = {p, stages, M, ahead};

    return ddp_pipeline_held(&shape, stage);
}

/* Checks that all tasks run once, each kind in the order of micro-batches, after their inputs, and that no
 * more than `held` micro-batches are stored. */
static void order_of(ddp_pipeline p, int stages, int stage, int M, int ahead)
{
    ddp_task task[3 * MICRO];
    const int n = tasks_of(p, stages, stage, M, ahead, task);
    int done[6] = {0, 0, 0, 0, 0, 0}, most = 0;

    assert_int_equal(n, (p == DDP_PIPELINE_ZB ? 3 : 2) * M);
    for (int i = 0; i < n; i++) {
        const int last = p == DDP_PIPELINE_ZB ? (int)DDP_TASK_WEIGHT_GRADIENT : (int)DDP_TASK_BACKWARD;
        assert_int_equal(task[i].micro_batch, done[task[i].kind]++);
        assert_true(done[DDP_TASK_BACKWARD] <= done[DDP_TASK_FORWARD]);
        assert_true(done[DDP_TASK_INPUT_GRADIENT] <= done[DDP_TASK_FORWARD]);
        assert_true(done[DDP_TASK_WEIGHT_GRADIENT] <= done[DDP_TASK_INPUT_GRADIENT]);
        if (done[DDP_TASK_FORWARD] - done[last] > most) most = done[DDP_TASK_FORWARD] - done[last];
    }
    assert_true(most <= held_of(p, stages, stage, M, ahead));
    if (p != DDP_PIPELINE_ZB) assert_int_equal(most, held_of(p, stages, stage, M, ahead));
    assert_int_equal(done[DDP_TASK_SEND] + done[DDP_TASK_RECEIVE], 0);
}

static void tasks_are_in_order_and_within_the_memory_limit(void **state)
{
    ddp_task task[3 * MICRO];

    (void)state;
    for (int i = 0; i < 3; i++)
        for (int stages = 1; stages < STAGES; stages++)
            for (int M = 1; M < MICRO; M++)
                for (int stage = 0; stage < stages; stage++)
                    for (int ahead = 0; ahead < 2 + M; ahead += 1 + ahead)
                        order_of(all[i], stages, stage, M, ahead);
    assert_int_equal(held_of(DDP_PIPELINE_GPIPE, 4, 0, 16, 2), 16);
    assert_int_equal(held_of(DDP_PIPELINE_1F1B, 4, 1, 16, 0), 3);
    assert_int_equal(held_of(DDP_PIPELINE_1F1B, 4, 1, 16, 2), 5);
    assert_int_equal(held_of(DDP_PIPELINE_1F1B, 4, 1, 16, INT_MAX), 16);
    assert_int_equal(held_of(DDP_PIPELINE_ZB, 4, 3, 16, 0), 4);
    assert_int_equal(held_of(DDP_PIPELINE_ZB, 4, 3, 16, 5), 9);
    assert_int_equal(held_of(DDP_PIPELINE_ZB, 4, 3, 16, -1), 0);
    assert_int_equal(held_of(DDP_PIPELINE_DEFAULT, 1024, 0, 2000, 0), 1024);
    assert_int_equal(tasks_of(DDP_PIPELINE_DEFAULT, 1, 0, 1, 0, task), 2);
    for (int i = 0; i < 3; i++)
        for (int bad = 0; bad < 8; bad++) { /* one invalid field in an otherwise valid shape */
            const int stages = bad == 0 ? 0 : bad == 1 ? 1025 : 4, stage = bad == 2 ? -1 : bad == 3 ? 4 : 0;
            const ddp_pipeline p = bad == 4   ? pipeline_of(-1)
                                   : bad == 5 ? pipeline_of((int)DDP_PIPELINE_ZB + 1)
                                              : all[i];
            assert_int_equal(held_of(p, stages, stage, bad == 6 ? 0 : 16, bad == 7 ? -1 : 0), 0);
            assert_int_equal(tasks_of(p, stages, stage, bad == 6 ? 0 : 16, bad == 7 ? -1 : 0, task), 0);
        }
}

/* The rule of ZB-H1, unit by unit: done[s][n] is the kind of the n-th task, count[s] the number of each
 * kind. */
static int by_the_rule(int stages, int stage, int M, int ahead, ddp_task *task)
{
    int done[STAGES][3 * MICRO], length[STAGES], count[STAGES][6], was[STAGES][6], n = 0;
    const int F = (int)DDP_TASK_FORWARD, I = (int)DDP_TASK_INPUT_GRADIENT, W = (int)DDP_TASK_WEIGHT_GRADIENT;

    memset(count, 0, sizeof count);
    memset(length, 0, sizeof length);
    for (int unit = 0; length[stage] < 3 * M; unit++) {
        assert_true(unit < 100 * MICRO);
        memcpy(was, count, sizeof was);
        for (int s = 0; s < stages; s++) {
            const int *own = was[s], most = stages + ahead < M ? stages + ahead : M;
            const int whole = own[F] - own[W] == most; /* the memory limit is reached */
            const int f = own[F] < M && !whole && (s == 0 || was[s - 1][F] > own[F]);
            const int i = own[I] < own[F] && (s + 1 == stages || was[s + 1][I] > own[I]), w = own[W] < own[I];
            int k = length[s] - 1, turn, kind;
            while (k >= 0 && done[s][k] == W) k--;
            turn = k < 0 || done[s][k] == I; /* the turn of a forward, if one is left */
            if (f && (turn || own[F] < stages - s + ahead))
                kind = F;
            else if (w && turn && whole && own[F] < M)
                kind = W;
            else if (i || f)
                kind = i ? I : F;
            else if (w)
                kind = W;
            else
                continue;
            if (s == stage) {
                task[n].kind = (ddp_task_kind)kind;
                task[n++].micro_batch = count[s][kind];
            }
            count[s][kind]++;
            done[s][length[s]++] = kind;
        }
    }
    return n;
}

static void zero_bubble_follows_its_rule(void **state)
{
    ddp_task task[3 * MICRO], want[3 * MICRO];

    (void)state;
    for (int stages = 1; stages < STAGES; stages++)
        for (int M = 1; M < MICRO; M += 1 + M / 6)
            for (int stage = 0; stage < stages; stage++)
                for (int ahead = 0; ahead < 2 + M; ahead += 1 + ahead) {
                    const int n = tasks_of(DDP_PIPELINE_ZB, stages, stage, M, ahead, task);
                    assert_int_equal(n, by_the_rule(stages, stage, M, ahead, want));
                    for (int k = 0; k < n; k++) {
                        assert_int_equal(task[k].kind, want[k].kind);
                        assert_int_equal(task[k].micro_batch, want[k].micro_batch);
                    }
                }
}

static double equal_stages(ddp_pipeline p, int stages, int M, double forward, double inputs, double weights,
                           double *bubble)
{
    ddp_stage_cost cost[STAGES];
    ddp_boundary edge[STAGES];
    ddp_pipeline_costs c = {{p, stages, M, 0}, cost, stages - 1, edge};
    ddp_pipeline_times t;
    ddp_error err;

    memset(edge, 0, sizeof edge);
    for (int s = 0; s < stages; s++) {
        cost[s].forward_s = forward;
        cost[s].inputs_s = inputs;
        cost[s].weights_s = weights;
        edge[s].from = s;
        edge[s].to = s + 1;
    }
    assert_int_equal(ddp_pipeline_time(&c, &t, &err), DDP_OK);
    *bubble = t.bubble_pct;
    forward = t.step_s;
    ddp_pipeline_times_free(&t);
    return forward;
}

/* Qi et al., section 2: bubbles of (p - 1)(F + B + W) and, for ZB-H1, (p - 1)(F + B - W). */
static void lengths_are_the_published_ones(void **state)
{
    double bubble[3];

    (void)state;
    for (int p = 1; p < STAGES; p++)
        for (int M = p; M < MICRO; M++)
            for (double w = 0.25; w <= 1; w *= 2) {
                const double work = M * (2 + w), full = work + (p - 1) * (2 + w);
                same(equal_stages(DDP_PIPELINE_GPIPE, p, M, 1, 1, w, &bubble[0]), full);
                same(equal_stages(DDP_PIPELINE_1F1B, p, M, 1, 1, w, &bubble[1]), full);
                same(equal_stages(DDP_PIPELINE_ZB, p, M, 1, 1, w, &bubble[2]), work + (p - 1) * (2 - w));
                same(bubble[1], 100 * (1 - work / full));
                assert_true(bubble[2] <= bubble[1] + 1e-9 && bubble[1] <= bubble[0] + 1e-9);
            }
}

/* docs/howto/pipeline.md states the bubble of ZB-H1 for W <= F <= B. In other cases the step takes longer. */
static void the_documented_bubble_of_zb_needs_w_f_b_in_ascending_order(void **state)
{
    static const double time[] = {0.5, 1, 2};
    int longer = 0;

    (void)state;
    for (int i = 0; i < 27; i++) {
        const double f = time[i % 3], b = time[i / 3 % 3], w = time[i / 9],
                     formula = 8 * (f + b + w) + 3 * (f + b - w);
        double bubble;
        const double step = equal_stages(DDP_PIPELINE_ZB, 4, 8, f, b, w, &bubble);
        if (w <= f && f <= b)
            same(step, formula);
        else
            assert_true(step >= formula - 1e-9);
        longer += step > formula + 1e-9;
    }
    assert_true(longer > 0);
}

/* On slow links the number of micro-batches in flight matters: with all of them ahead, 1f1b has gpipe's
 * order. */
static double slow_edges(ddp_pipeline p, int ahead)
{
    ddp_stage_cost cost[4];
    ddp_boundary edge[3];
    ddp_pipeline_costs c = {{p, 4, 8, ahead}, cost, 3, edge};
    ddp_pipeline_times t;
    double step;

    memset(edge, 0, sizeof edge);
    for (int s = 0; s < 4; s++) {
        cost[s].forward_s = 5;
        cost[s].inputs_s = cost[s].weights_s = 5;
    }
    for (int s = 0; s < 3; s++) {
        edge[s].from = s;
        edge[s].to = s + 1;
        edge[s].forward_s = edge[s].backward_s = 8;
        edge[s].alpha_s = 2;
    }
    assert_int_equal(ddp_pipeline_time(&c, &t, NULL), DDP_OK);
    step = t.step_s;
    ddp_pipeline_times_free(&t);
    return step;
}

static void more_micro_batches_in_flight_hide_slow_links(void **state)
{
    const double gpipe = slow_edges(DDP_PIPELINE_GPIPE, 0);

    (void)state;
    same(slow_edges(DDP_PIPELINE_1F1B, 8), gpipe);
    for (int i = 1; i < 3; i++) {
        assert_true(slow_edges(all[i], 0) > 1.1 * gpipe);
        assert_true(slow_edges(all[i], 2) < 0.95 * slow_edges(all[i], 0));
        assert_true(slow_edges(all[i], 6) < gpipe);
    }
}

/* FusionLLM, Eq. 3: a chain that runs only forward takes sum (C + R) + (n - 1) max (C, R). */
static void forwards_take_the_time_of_fusionllm_eq_3(void **state)
{
    ddp_rng r = ddp_rng_seed(5, 0);

    (void)state;
    for (int trial = 0; trial < 300; trial++) {
        const int stages = 1 + (int)ddp_rng_below(&r, STAGES - 1), M = 1 + (int)ddp_rng_below(&r, MICRO - 1);
        ddp_stage_cost cost[STAGES];
        ddp_boundary edge[STAGES];
        ddp_pipeline_costs c = {{DDP_PIPELINE_GPIPE, stages, M, 0}, cost, stages - 1, edge};
        ddp_pipeline_times t;
        double sum = 0, most = 0;

        memset(cost, 0, sizeof cost);
        memset(edge, 0, sizeof edge);
        for (int s = 0; s < stages; s++) {
            cost[s].forward_s = ddp_rng_uniform(&r);
            edge[s].from = s;
            edge[s].to = s + 1;
            edge[s].one_way = 1;
            edge[s].forward_s = 2 * ddp_rng_uniform(&r);
            sum += cost[s].forward_s + (s + 1 < stages ? edge[s].forward_s : 0);
            most = fmax(most, fmax(cost[s].forward_s, s + 1 < stages ? edge[s].forward_s : 0));
        }
        assert_int_equal(ddp_pipeline_time(&c, &t, NULL), DDP_OK);
        same(t.step_s, sum + (M - 1) * most);
        ddp_pipeline_times_free(&t);
    }
}

/* ---- the oracle: in whole ticks, starts everything that can start ---- */

typedef struct oracle {
    const ddp_pipeline_costs *c;
    ddp_task task[STAGES][3 * MICRO];
    int tasks[STAGES], next[STAGES];
    long until[STAGES][2]; /* its slots are busy until then */
    long backlog[STAGES];  /* ticks of data waiting at the downlink */
    int queue[STAGES][WAYS * MICRO], queued[STAGES], sent[STAGES];
    long queued_at[STAGES][WAYS * MICRO];
    long first[WAYS][MICRO], arrives[WAYS][MICRO];
    int sends[WAYS], coming[WAYS], arrived[WAYS];
    long rest[WAYS]; /* of the message being received */
    long end;
} oracle;

static int to_of(const oracle *o, int w)
{
    return w % 2 ? o->c->boundary[w / 2].from : o->c->boundary[w / 2].to;
}
static int from_of(const oracle *o, int w)
{
    return w % 2 ? o->c->boundary[w / 2].to : o->c->boundary[w / 2].from;
}

static long cost_of(const oracle *o, int w)
{
    return (long)(w % 2 ? o->c->boundary[w / 2].backward_s : o->c->boundary[w / 2].forward_s);
}

static int travels(const oracle *o, int w, const ddp_task *t)
{
    return t->kind != DDP_TASK_WEIGHT_GRADIENT && w % 2 == (t->kind != DDP_TASK_FORWARD) &&
           !(w % 2 && o->c->boundary[w / 2].one_way);
}

/* 1: a task or message started. */
static int oracle_stage(oracle *o, int s, long now)
{
    const ddp_stage_cost *k = &o->c->stage[s];
    int began = 0;

    if (o->next[s] < o->tasks[s] && o->until[s][0] <= now) {
        const ddp_task *t = &o->task[s][o->next[s]];
        int ready = 1;
        for (int w = 0; w < 2 * o->c->boundaries; w++)
            if (to_of(o, w) == s && travels(o, w, t) &&
                (o->arrived[w] <= t->micro_batch || o->arrives[w][t->micro_batch] > now))
                ready = 0;
        if (ready) {
            long cost = 0;
            if (t->kind == DDP_TASK_FORWARD) cost = (long)k->forward_s;
            if (t->kind == DDP_TASK_BACKWARD) cost = (long)(k->inputs_s + k->weights_s);
            if (t->kind == DDP_TASK_INPUT_GRADIENT) cost = (long)k->inputs_s;
            if (t->kind == DDP_TASK_WEIGHT_GRADIENT) cost = (long)k->weights_s;
            o->until[s][0] = now + cost;
            if (now + cost > o->end) o->end = now + cost;
            o->next[s]++;
            for (int w = 0; w < 2 * o->c->boundaries; w++)
                if (from_of(o, w) == s && travels(o, w, t)) {
                    o->queue[s][o->queued[s]] = w;
                    o->queued_at[s][o->queued[s]++] = now + cost;
                }
            began = 1;
        }
    }
    if (o->sent[s] < o->queued[s] && o->queued_at[s][o->sent[s]] <= now && o->until[s][1] <= now) {
        const int w = o->queue[s][o->sent[s]++];
        o->until[s][1] = now + cost_of(o, w);
        o->first[w][o->sends[w]++] = now + (long)o->c->boundary[w / 2].alpha_s;
        began = 1;
    }
    return began;
}

/* From now to now + 1: queues one tick of data of every message being received, and delivers one tick. */
static void oracle_downlink(oracle *o, int s, long now)
{
    for (int w = 0; w < 2 * o->c->boundaries; w++) {
        if (to_of(o, w) != s) continue;
        if (!o->rest[w] && o->coming[w] < o->sends[w] && o->first[w][o->coming[w]] <= now) {
            o->coming[w]++;
            o->rest[w] = cost_of(o, w);
        }
        if (o->rest[w]) o->backlog[s]++;
    }
    if (o->backlog[s]) o->backlog[s]--;
    for (int w = 0; w < 2 * o->c->boundaries; w++)
        if (to_of(o, w) == s && o->rest[w] && --o->rest[w] == 0)
            o->arrives[w][o->arrived[w]++] = now + 1 + o->backlog[s];
}

static long oracle_time(const ddp_pipeline_costs *c)
{
    static oracle o;
    int left = 1;

    memset(&o, 0, sizeof o);
    o.c = c;
    for (int s = 0; s < c->shape.stages; s++) o.tasks[s] = ddp_pipeline_tasks(&c->shape, s, o.task[s]);
    for (long now = 0; left; now++) {
        int again = 1;
        assert_true(now < 100000);
        while (again) {
            again = 0;
            for (int s = 0; s < c->shape.stages; s++) again |= oracle_stage(&o, s, now);
        }
        for (int s = 0; s < c->shape.stages; s++) oracle_downlink(&o, s, now);
        left = 0;
        for (int s = 0; s < c->shape.stages; s++) left |= o.next[s] < o.tasks[s];
    }
    return o.end;
}

/* Boundaries of any acyclic cut, some over several stages, some without gradients. */
static void steps_take_the_time_of_the_oracle(void **state)
{
    ddp_rng r = ddp_rng_seed(7, 0);

    (void)state;
    for (int trial = 0; trial < 600; trial++) {
        const int stages = 1 + (int)ddp_rng_below(&r, 5), M = 1 + (int)ddp_rng_below(&r, 8);
        ddp_stage_cost cost[STAGES];
        ddp_boundary edge[WAYS / 2];
        ddp_pipeline_costs c = {{all[trial % 3], stages, M, (int)ddp_rng_below(&r, 4)}, cost, 0, edge};
        ddp_pipeline_times t;

        for (int s = 0; s < stages; s++) {
            cost[s].forward_s = 1 + (double)ddp_rng_below(&r, 5);
            cost[s].inputs_s = 1 + (double)ddp_rng_below(&r, 5);
            cost[s].weights_s = 1 + (double)ddp_rng_below(&r, 5);
        }
        for (int from = 0; from < stages; from++)
            for (int to = from + 1; to < stages; to++) {
                if (c.boundaries == WAYS / 2 || (to > from + 1 && ddp_rng_below(&r, 2))) continue;
                memset(&edge[c.boundaries], 0, sizeof *edge);
                edge[c.boundaries].from = from;
                edge[c.boundaries].to = to;
                edge[c.boundaries].forward_s = 1 + (double)ddp_rng_below(&r, 6);
                edge[c.boundaries].backward_s = 1 + (double)ddp_rng_below(&r, 6);
                edge[c.boundaries].alpha_s = (double)ddp_rng_below(&r, 4);
                edge[c.boundaries++].one_way = ddp_rng_below(&r, 5) == 0;
            }
        assert_int_equal(ddp_pipeline_time(&c, &t, NULL), DDP_OK);
        same(t.step_s, (double)oracle_time(&c));
        ddp_pipeline_times_free(&t);
    }
}

/* A stage computes one task and sends one message at a time, and all tasks and messages are in the result. */
static void slots_do_not_overlap(void **state)
{
    const ddp_stage_cost cost[3] = {{2, 2, 1}, {3, 2, 2}, {1, 3, 1}};
    const ddp_boundary edge[3] = {{0, 1, 1, 2, 0.5, 0}, {1, 2, 4, 1, 1, 0}, {0, 2, 1, 1, 0, 0}};
    ddp_pipeline_costs c = {{DDP_PIPELINE_GPIPE, 3, 6, 0}, cost, 3, edge};

    (void)state;
    for (int i = 0; i < 3; i++) {
        ddp_pipeline_times t;
        c.shape.schedule = all[i];
        assert_int_equal(ddp_pipeline_time(&c, &t, NULL), DDP_OK);
        assert_int_equal(t.slots, (all[i] == DDP_PIPELINE_ZB ? 3 : 2) * 18 + 2 * 2 * 18);
        for (int a = 0; a < t.slots; a++)
            for (int b = 0; b < a; b++) {
                const ddp_pipeline_slot *x = &t.slot[a], *y = &t.slot[b];
                if (x->stage != y->stage || (x->boundary < 0) != (y->boundary < 0)) continue;
                if (x->boundary >= 0 && (x->task.kind != DDP_TASK_SEND || y->task.kind != DDP_TASK_SEND))
                    continue;
                assert_true(x->begin_s >= y->end_s - 1e-12 || y->begin_s >= x->end_s - 1e-12);
            }
        ddp_pipeline_times_free(&t);
    }
}

static void refused(const ddp_pipeline_costs *c, const char *what)
{
    ddp_pipeline_times t;
    ddp_error err;

    assert_int_not_equal(ddp_pipeline_time(c, &t, &err), DDP_OK);
    if (!strstr(err.msg, what)) fail_msg("'%s' does not say '%s'", err.msg, what);
    assert_null(t.slot);
}

static void invalid_costs_are_an_error(void **state)
{
    ddp_stage_cost cost[2] = {{1, 1, 1}, {1, 1, 1}};
    ddp_boundary edge = {0, 1, 1, 1, 0, 0};
    ddp_pipeline_costs c = {{DDP_PIPELINE_ZB, 2, 4, 0}, cost, 1, &edge};
    ddp_pipeline p;
    ddp_error err;

    (void)state;
    c.shape.micro_batches = 0;
    refused(&c, "0 micro-batches");
    c.shape.micro_batches = 4;
    c.shape.stages = 2000;
    refused(&c, "2000 stages");
    c.shape.stages = 2;
    c.shape.ahead = -1;
    refused(&c, "-1 ahead");
    c.shape.ahead = 0;
    c.shape.schedule = pipeline_of(9);
    refused(&c, "schedule 9");
    c.shape.schedule = DDP_PIPELINE_GPIPE;
    for (int k = 0; k < 3; k++) { /* each time below 0, not a number, or too large in sum */
        double *time = k == 0 ? &cost[1].forward_s : k == 1 ? &cost[1].inputs_s : &cost[1].weights_s;
        double *way = k == 0 ? &edge.forward_s : k == 1 ? &edge.backward_s : &edge.alpha_s;
        *time = -1;
        refused(&c, "stage 1: times of");
        *time = NAN;
        refused(&c, "stage 1: times of");
        *time = INFINITY;
        refused(&c, "must be finite and at least 0");
        *time = 1;
        *way = -1;
        refused(&c, "boundary 0: times of");
        *way = NAN;
        refused(&c, "boundary 0: times of");
        *way = INFINITY;
        refused(&c, "must be finite and at least 0");
        *way = 1;
    }
    edge.to = 0;
    refused(&c, "from stage 0 to 0");
    edge.to = 2;
    refused(&c, "from stage 0 to 2 of 2 stages; it must go to a later one");
    edge.to = 1;
    edge.from = -1;
    refused(&c, "from stage -1 to 1");
    edge.from = 0;
    c.stage = NULL;
    refused(&c, "costs of all stages and boundaries must not be NULL");
    c.stage = cost;
    c.boundary = NULL;
    refused(&c, "costs of all stages and boundaries must not be NULL");
    c.boundary = &edge;
    c.boundaries = -1;
    refused(&c, "costs of all stages and boundaries must not be NULL");
    c.boundaries = 1;
    refused(NULL, "costs of all stages and boundaries must not be NULL");
    assert_int_equal(ddp_pipeline_time(&c, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "out must not be NULL"));
    assert_string_equal(ddp_pipeline_name(pipeline_of(-1)), "unknown");
    assert_string_equal(ddp_pipeline_name(pipeline_of((int)DDP_PIPELINE_ZB + 1)), "unknown");
    assert_string_equal(ddp_pipeline_name(DDP_PIPELINE_DEFAULT), "1f1b");
    assert_int_equal(ddp_pipeline_named(NULL, &p, &err), DDP_ARG);
    assert_string_equal(err.msg, "unknown pipeline schedule ''; use gpipe, 1f1b or zb");
    assert_int_equal(ddp_pipeline_named("2f2b", &p, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "2f2b"));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ddp_pipeline_named(ddp_pipeline_name(all[i]), &p, NULL), DDP_OK);
        assert_int_equal(p, all[i]);
    }
}

/* Two stages, one micro-batch: checks the stage, kind, boundary and gradient flag of each slot. */
static void slots_have_their_kind_and_boundary(void **state)
{
    static const int want[][4] = {/* stage, kind, boundary, gradient */
                                  {0, DDP_TASK_FORWARD, -1, 0},  {0, DDP_TASK_SEND, 0, 0},
                                  {1, DDP_TASK_RECEIVE, 0, 0},   {1, DDP_TASK_FORWARD, -1, 0},
                                  {1, DDP_TASK_BACKWARD, -1, 0}, {1, DDP_TASK_SEND, 0, 1},
                                  {0, DDP_TASK_RECEIVE, 0, 1},   {0, DDP_TASK_BACKWARD, -1, 0}};
    const ddp_stage_cost cost[2] = {{1, 1, 1}, {1, 1, 1}}, none[1] = {{0, 0, 0}};
    const ddp_boundary edge = {0, 1, 1, 1, 0, 0};
    ddp_pipeline_costs c = {{DDP_PIPELINE_GPIPE, 2, 1, 0}, cost, 1, &edge};
    ddp_pipeline_times t;

    (void)state;
    assert_int_equal(ddp_pipeline_time(&c, &t, NULL), DDP_OK);
    assert_int_equal(t.slots, 8);
    for (int i = 0; i < 8; i++) {
        const int *w = want[i];
        int found = 0;
        for (int k = 0; k < t.slots; k++)
            found += t.slot[k].stage == w[0] && (int)t.slot[k].task.kind == w[1] &&
                     t.slot[k].boundary == w[2] && t.slot[k].gradient == w[3];
        assert_int_equal(found, 1);
    }
    ddp_pipeline_times_free(&t);
    ddp_pipeline_times_free(NULL);
    c.shape.stages = 1; /* without a boundary */
    c.boundaries = 0;
    c.boundary = NULL;
    assert_int_equal(ddp_pipeline_time(&c, &t, NULL), DDP_OK);
    same(t.step_s, 3);
    ddp_pipeline_times_free(&t);
    c.stage = none; /* a step of no duration has no bubble */
    assert_int_equal(ddp_pipeline_time(&c, &t, NULL), DDP_OK);
    assert_true(t.step_s == 0 && t.bubble_pct == 0);
    ddp_pipeline_times_free(&t);
}

static void every_allocation_may_fail(void **state)
{
    const ddp_stage_cost cost[2] = {{1, 1, 1}, {1, 1, 1}};
    const ddp_boundary edge = {0, 1, 1, 1, 0, 0};
    const ddp_pipeline_costs c = {{DDP_PIPELINE_ZB, 2, 4, 0}, cost, 1, &edge};
    const long had = memory.live;
    ddp_pipeline_times t;
    ddp_error err;
    ddp_status s;
    long k = 0;

    (void)state;
    for (;; k++) {
        memset(&err, 0, sizeof err);
        memory.left = k;
        s = ddp_pipeline_time(&c, &t, &err);
        memory.left = -1;
        if (s == DDP_OK) break;
        assert_int_equal(s, DDP_MEMORY);
        assert_string_equal(err.msg, "out of memory for 2 stages of 4 micro-batches");
        assert_true(!t.held && !t.slot && t.slots == 0);
        assert_int_equal(memory.live, had);
    }
    assert_int_equal(k, 7);
    ddp_pipeline_times_free(&t);
}

/* Must be the last test. */
static void no_memory_leaks(void **state)
{
    (void)state;
    assert_int_equal(memory.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_are_in_order_and_within_the_memory_limit),
        cmocka_unit_test(zero_bubble_follows_its_rule),
        cmocka_unit_test(lengths_are_the_published_ones),
        cmocka_unit_test(the_documented_bubble_of_zb_needs_w_f_b_in_ascending_order),
        cmocka_unit_test(more_micro_batches_in_flight_hide_slow_links),
        cmocka_unit_test(forwards_take_the_time_of_fusionllm_eq_3),
        cmocka_unit_test(steps_take_the_time_of_the_oracle),
        cmocka_unit_test(slots_do_not_overlap),
        cmocka_unit_test(slots_have_their_kind_and_boundary),
        cmocka_unit_test(invalid_costs_are_an_error),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(no_memory_leaks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
