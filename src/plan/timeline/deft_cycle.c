/* DeFT: chooses the parts of one stage, and runs the queues and cases until the steady period. */
#include "plan/arrays.h"
#include "plan/link_clock.h"
#include "plan/timeline/deft_internal.h"
#include "plan/timeline/knapsack_internal.h"

/* About half a second, but counted in work, so that every machine makes the same plan. */
int ddp__deft_spent(int64_t work) { return work > 50000000; }

/* The choice of one stage, Knap and SelectNew of plan/timeline/deft.h: the link on which each of the parts
 * left[N] travels. d->on[l * N + i] is the number of parts of bucket i on link l. room = end of the stage. A
 * part of bucket i is ready at offset + ready[i]. The offset of a gradient that is ready already is
 * -infinity. */

static double ddp__deft_ready(const ddp__deft *d, double offset, int i)
{
    return fmax(0, offset + d->ready[i]);
}

/* Assigns each part, in list order, to the first link that can deliver it by the deadline. */
static void ddp__deft_queue(ddp__deft *d, const ddp_knapsack_problem *p)
{
    double busy[2] = {p->start_s[0], p->start_s[1]}, after;
    for (int i = 0, l; i < p->items; i++) {
        d->assign[i] = -1;
        for (l = 0; l < p->links && d->assign[i] < 0; l++) {
            after = busy[l];
            ddp__link_take(&after, p->ready_s[i], p->item_s[i] * p->slowdown[l]);
            if (after > p->deadline_s[l] * (1 + 1e-13)) continue; /* rounding error only */
            d->assign[i] = l;
            busy[l] = after;
        }
    }
}

/* Fills the links from start[l] to room with the parts left of buckets 0..last, output side first. *sum
 * receives their total. */
static ddp_status ddp__deft_fill(ddp__deft *d, const int *left, int last, double offset, const double *start,
                                 double room, double *sum, ddp_error *err)
{
    ddp_knapsack_solver solver = d->solver;
    ddp_knapsack_problem p = DDP__ZEROS;
    if (solver == DDP_KNAPSACK_DEFAULT && ddp__deft_spent(*d->work)) solver = DDP_KNAPSACK_GREEDY;
    memset(d->on, 0, 2 * (size_t)d->buckets * sizeof *d->on);
    *sum = 0;
    for (int i = last; i >= 0; i--)
        for (int j = 0; j < left[i]; j++) {
            d->item[p.items] = d->part_s[i];
            d->item_ready[p.items] = ddp__deft_ready(d, offset, i);
            d->bucket[p.items++] = i;
        }
    if (p.items == 0 || !(room > 0)) return DDP_OK;
    p.item_s = d->item;
    p.ready_s = d->item_ready;
    p.links = d->links;
    for (int l = 0; l < d->links; l++) {
        p.start_s[l] = start[l];
        p.deadline_s[l] = room;
        p.slowdown[l] = l ? d->mu : 1;
    }
    if (d->queue)
        ddp__deft_queue(d, &p);
    else
        DDP__TRY(ddp__knapsack_within(&p, solver, d->most, d->work, d->assign, sum, err));
    for (int i = 0; i < p.items; i++)
        if (d->assign[i] >= 0) d->on[d->assign[i] * d->buckets + d->bucket[i]]++;
    return DDP_OK;
}

/* Algorithm 1. Level j only uses that nothing can start before bucket j is ready, and ignores that buckets
 * nearer to the input become ready later. Ties go to the shorter list. */
static ddp_status ddp__deft_levels(ddp__deft *d, const int *left, const double *busy, double offset,
                                   double room, ddp_error *err)
{
    const size_t bytes = 2 * (size_t)d->buckets * sizeof *d->on;
    int *best = d->on + 2 * d->buckets;
    double start[2], sum, most = 0;
    memset(best, 0, bytes);
    for (int j = 0; j < d->buckets; j++) {
        for (int l = 0; l < 2; l++) start[l] = fmax(busy[l], offset + d->ready[j]);
        DDP__TRY(ddp__deft_fill(d, left, j, -DBL_MAX, start, room, &sum, err));
        if (!(sum > most)) continue;
        most = sum;
        memcpy(best, d->on, bytes);
    }
    memcpy(d->on, best, bytes);
    return DDP_OK;
}

/* Runs the two queues of DeFT, iteration by iteration, until a state repeats. The iterations since its
 * first occurrence can then be repeated forever. */

/* The number of iterations within which a state must repeat. */
#define DDP__DEFT_ITERATIONS 4096

/* The state is state[0..N+1]: the pending parts of each bucket, k of the pending gradient (0 without such a
 * gradient), and k of the stored gradients. */
typedef struct ddp__deft_run {
    ddp__deft *d;
    int n;                  /* number of integers in a state */
    int *state;             /* the current state */
    int *history;           /* [DDP__DEFT_ITERATIONS x n] the state before each iteration */
    uint64_t *hash;         /* [DDP__DEFT_ITERATIONS] */
    int born;               /* the iteration that opened the pending gradient */
    ddp_delayed_step *step; /* [DDP__DEFT_ITERATIONS] */
    int *delay;             /* [DDP__DEFT_ITERATIONS] delay of the applied gradient */
    ddp_delayed_send *send; /* a list */
    ddp__scratch room;
} ddp__deft_run;

static ddp_status ddp__deft_no_memory(const ddp__deft *d, ddp_error *err)
{
    return ddp__fail(err, DDP_MEMORY, "no memory to plan %d buckets in %d parts", d->buckets, d->parts);
}

/* Sends the chosen parts, output side first, which is the order of release, lowest part numbers first.
 * Removes them from the state and advances busy[l]. at = start of the stage within the iteration. */
static ddp_status ddp__deft_send(ddp__deft_run *r, int iteration, double at, double offset, double *busy,
                                 ddp_error *err)
{
    ddp__deft *d = r->d;
    double begin;
    for (int i = d->buckets - 1; i >= 0; i--)
        for (int l = 0; l < d->links; l++)
            for (int j = 0; j < d->on[l * d->buckets + i]; j++) {
                ddp_delayed_send *x;
                if (!ddp__reserve(r->send, stbds_arrlenu(r->send) + 1)) return ddp__deft_no_memory(d, err);
                x = stbds_arraddnptr(r->send, 1u);
                memset(x, 0, sizeof *x); /* clears the padding too: plans are compared byte by byte */
                begin =
                    ddp__link_take(&busy[l], ddp__deft_ready(d, offset, i), d->part_s[i] * (l ? d->mu : 1));
                x->iteration = iteration;
                x->fresh = offset >= 0;
                x->bucket = i;
                x->part = d->parts_of[i] - r->state[i]--;
                x->link = l;
                x->begin_s = at + begin;
                x->end_s = at + busy[l];
            }
    return DDP_OK;
}

/* Chooses among the pending parts, and sends the chosen ones. */
static ddp_status ddp__deft_stage(ddp__deft_run *r, int iteration, double at, double offset, double *busy,
                                  double room, ddp_error *err)
{
    ddp__deft *d = r->d;
    double sum;
    if (offset >= 0 && d->select == DDP_SELECT_PAPER)
        DDP__TRY(ddp__deft_levels(d, r->state, busy, offset, room, err));
    else
        DDP__TRY(ddp__deft_fill(d, r->state, d->buckets - 1, offset, busy, room, &sum, err));
    return ddp__deft_send(r, iteration, at, offset, busy, err);
}

/* Seconds by which sends make a stage longer than its compute, or 0 for a rounding error. */
static double ddp__deft_overrun(double compute, const double *busy)
{
    double last = busy[0] > busy[1] ? busy[0] : busy[1];
    return last > compute * (1 + 1e-11) ? last - compute : 0;
}

static int ddp__deft_pending(const ddp__deft_run *r)
{
    for (int i = 0; i < r->d->buckets; i++)
        if (r->state[i] > 0) return 1;
    return 0;
}

/* Cases 2 to 4. offset: the start of backward within the stage (0, or T_f without a barrier). */
static ddp_status ddp__deft_backward(ddp__deft_run *r, int t, double at, double offset, ddp_error *err)
{
    ddp__deft *d = r->d;
    int *k_cur = r->state + d->buckets, *k_fut = k_cur + 1;
    double busy[2] = {0, 0}, room = (offset + d->backward) * d->scale;
    ddp_delayed_step *s = &r->step[t];

    ++*k_fut; /* this iteration's gradient joins the stored ones */
    if (ddp__deft_pending(r)) DDP__TRY(ddp__deft_stage(r, t, at, -DBL_MAX, busy, room, err));
    if (!ddp__deft_pending(r)) {
        s->applied = *k_cur;
        r->delay[t] = t - r->born;
        memcpy(r->state, d->parts_of, (size_t)d->buckets * sizeof *r->state);
        s->opened = *k_cur = *k_fut;
        r->born = t;
        *k_fut = 0;
        DDP__TRY(ddp__deft_stage(r, t, at, offset, busy, room, err));
        if (!ddp__deft_pending(r)) {
            s->applied_now = *k_cur;
            *k_cur = 0;
        }
    }
    s->backward_s = d->backward + ddp__deft_overrun(offset + d->backward, busy);
    return DDP_OK;
}

static ddp_status ddp__deft_iterate(ddp__deft_run *r, int t, ddp_error *err)
{
    ddp__deft *d = r->d;
    ddp_delayed_step *s = &r->step[t];
    double busy[2] = {0, 0};

    s->first_send = ddp__count(r->send);
    s->forward_s = d->forward;
    if (!d->way.no_barrier && ddp__deft_pending(r)) { /* case 1 */
        DDP__TRY(ddp__deft_stage(r, t, 0, -DBL_MAX, busy, d->forward * d->scale, err));
        s->forward_s += ddp__deft_overrun(d->forward, busy);
    }
    DDP__TRY(ddp__deft_backward(r, t, d->way.no_barrier ? 0 : s->forward_s,
                                d->way.no_barrier ? d->forward : 0, err));
    s->sends = ddp__count(r->send) - s->first_send;
    return DDP_OK;
}

static int ddp__deft_send_order(const void *a, const void *b)
{
    const ddp_delayed_send *x = (const ddp_delayed_send *)a, *y = (const ddp_delayed_send *)b;
    if (x->iteration != y->iteration) return x->iteration < y->iteration ? -1 : 1;
    if (x->begin_s < y->begin_s || x->begin_s > y->begin_s) return x->begin_s < y->begin_s ? -1 : 1;
    if (x->link != y->link) return x->link - y->link;
    if (x->fresh != y->fresh) return x->fresh - y->fresh;
    if (x->bucket != y->bucket) return y->bucket - x->bucket;
    return x->part - y->part;
}

/* Builds the plan in which iterations [first, end) are the steady period. */
static ddp_status ddp__deft_result(ddp__deft_run *r, int first, int end, ddp_delayed_plan *out,
                                   ddp_error *err)
{
    ddp__deft *d = r->d;
    size_t N = (size_t)d->buckets;
    ddp_delayed_plan p = DDP__ZEROS;
    double sum = 0;
    int t, i, n = 0;

    for (t = first; t < end; t++) n += (r->step[t].applied > 0) + (r->step[t].applied_now > 0);
    p.buckets = d->buckets;
    p.parts = d->parts;
    p.links = d->links;
    p.warmup = first;
    p.period = end - first;
    p.sends = ddp__count(r->send);
    p.parts_of = (int *)ddp__copy(d->parts_of, N, sizeof *p.parts_of);
    p.part_s = (double *)ddp__copy(d->part_s, N, sizeof *p.part_s);
    p.step = (ddp_delayed_step *)ddp__copy(r->step, (size_t)end, sizeof *p.step);
    p.send = (ddp_delayed_send *)ddp__copy(r->send, stbds_arrlenu(r->send), sizeof *p.send);
    p.k = (int *)ddp__calloc((size_t)n, sizeof *p.k);
    p.delay = (int *)ddp__calloc((size_t)n, sizeof *p.delay);
    if (!p.parts_of || !p.part_s || !p.step || !p.send || !p.k || !p.delay) {
        ddp_delayed_plan_free(&p);
        return ddp__deft_no_memory(d, err);
    }
    qsort(p.send, stbds_arrlenu(r->send), sizeof *p.send, ddp__deft_send_order);
    for (t = first; t < end; t++) {
        sum += (p.step[t].forward_s - d->forward) + (p.step[t].backward_s - d->backward);
        for (i = 0; i < 2; i++) {
            int k = i ? p.step[t].applied_now : p.step[t].applied;
            if (k == 0) continue;
            p.k[p.updates] = k;
            p.delay[p.updates++] = i ? 0 : r->delay[t];
        }
    }
    p.forward_s = d->forward;
    p.backward_s = d->backward;
    for (i = 0; i < d->buckets; i++) p.comm_s += d->parts_of[i] * d->part_s[i];
    p.iteration_s = d->forward + d->backward + sum / p.period;
    p.update_frequency = (double)p.updates / p.period;
    p.lower_bound_s =
        fmax(d->forward + d->backward, p.update_frequency * p.comm_s / (d->links == 2 ? 1 + 1 / d->mu : 1));
    p.capacity_scale = d->scale;
    p.no_barrier = d->way.no_barrier;
    *out = p;
    return DDP_OK;
}

static ddp_status ddp__deft_to_steady(ddp__deft_run *r, ddp_delayed_plan *out, ddp_error *err)
{
    size_t bytes = (size_t)r->n * sizeof *r->state;
    for (int t = 0; t < DDP__DEFT_ITERATIONS; t++) {
        r->hash[t] = ddp__hash(DDP__HASH_START, r->state, bytes);
        memcpy(r->history + (size_t)t * (size_t)r->n, r->state, bytes);
        for (int u = 0; u < t; u++)
            if (r->hash[u] == r->hash[t] && !memcmp(r->history + (size_t)u * (size_t)r->n, r->state, bytes))
                return ddp__deft_result(r, u, t, out, err);
        DDP__TRY(ddp__deft_iterate(r, t, err));
        *r->d->work += 64 * r->d->parts + t; /* the greedy knapsacks, and the comparisons above */
    }
    return ddp__fail(err, DDP_UNSUPPORTED,
                     "no steady period within %d iterations of %d parts; use fewer, larger parts",
                     DDP__DEFT_ITERATIONS, r->d->parts);
}

ddp_status ddp__deft_cycle(ddp__deft *d, ddp_delayed_plan *out, ddp_error *err)
{
    size_t N = (size_t)d->buckets, most = DDP__DEFT_ITERATIONS;
    ddp__deft_run r = DDP__ZEROS;
    ddp_status status;
    r.d = d;
    r.n = d->buckets + 2;
    r.history = ddp__ints(&r.room, most * (N + 2));
    r.state = ddp__ints(&r.room, N + 2);
    r.delay = ddp__ints(&r.room, most);
    r.hash = (uint64_t *)ddp__scratch_take(&r.room, most, sizeof *r.hash);
    r.step = (ddp_delayed_step *)ddp__scratch_take(&r.room, most, sizeof *r.step);
    status = ddp__scratch_failed(&r.room) ? ddp__deft_no_memory(d, err) : ddp__deft_to_steady(&r, out, err);
    ddp__scratch_free(&r.room);
    ddp__array_free(r.send);
    return status;
}

void ddp_delayed_plan_free(ddp_delayed_plan *plan)
{
    if (!plan) return;
    DDP_FREE(plan->parts_of);
    DDP_FREE(plan->part_s);
    DDP_FREE(plan->step);
    DDP_FREE(plan->send);
    DDP_FREE(plan->k);
    DDP_FREE(plan->delay);
    memset(plan, 0, sizeof *plan);
}
