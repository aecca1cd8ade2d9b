/* DeFT: one stage's choice of parts, and the queues and cases that lead to the steady period. */
#include "plan/internal.h"

/* One stage's choice, Knap and SelectNew of plan/deft.h: which of the parts left[N] travel on which link; on[l * N + i]
 * parts of bucket i on link l. room = end of the stage. */

/* Lists the parts left of buckets 0..last, output side first, into item; returns their number. */
static int ddp__deft_list(ddp__deft *d, const int *left, int last, double offset)
{
    int i, j, n = 0;
    for (i = last; i >= 0; i--)
        for (j = 0; j < left[i]; j++) {
            d->item[n] = d->part_s[i];
            d->item_ready[n] = offset + d->ready[i];
            d->bucket[n++] = i;
        }
    return n;
}

/* Each part in the order of the list, over the first link that has it there in time. */
static void ddp__deft_queue(ddp__deft *d, const ddp_knapsack_problem *p)
{
    double busy[2] = {p->start_s[0], p->start_s[1]}, after;
    for (int i = 0, l; i < p->items; i++) {
        d->assign[i] = -1;
        for (l = 0; l < p->links && d->assign[i] < 0; l++) {
            after = busy[l];
            ddp__link_take(&after, p->ready_s ? p->ready_s[i] : 0, p->item_s[i] * p->slowdown[l]);
            if (after > p->deadline_s[l] * (1 + 1e-13)) continue; /* mere rounding */
            d->assign[i] = l;
            busy[l] = after;
        }
    }
}

/* Fills the links from start[l] to room with the n listed parts; adds up what goes where. */
static ddp_status ddp__deft_fill(ddp__deft *d, int n, const double *ready, const double *start, double room, int *on,
                                 double *sum, int *sent, ddp_error *err)
{
    ddp_knapsack_solver solver = d->solver;
    ddp_knapsack_problem p;
    if (solver == DDP_KNAPSACK_DEFAULT && ddp__deft_spent(*d->work)) solver = DDP_KNAPSACK_GREEDY;
    memset(on, 0, 2 * (size_t)d->buckets * sizeof *on);
    *sum = 0;
    *sent = 0;
    if (n == 0 || !(room > 0)) return DDP_OK;
    memset(&p, 0, sizeof p);
    p.items = n;
    p.item_s = d->item;
    p.ready_s = ready;
    p.links = d->links;
    for (int l = 0; l < d->links; l++) {
        p.start_s[l] = start[l];
        p.deadline_s[l] = room;
        p.slowdown[l] = l ? d->mu : 1;
    }
    if (d->queue) ddp__deft_queue(d, &p);
    else DDP__TRY(ddp__knapsack_within(&p, solver, d->most, d->work, d->assign, sum, err));
    for (int i = 0; i < n; i++)
        if (d->assign[i] >= 0) {
            on[d->assign[i] * d->buckets + d->bucket[i]]++;
            ++*sent;
        }
    return DDP_OK;
}

/* Parts that wait for nothing; *all = 1 if none is left out. */
static ddp_status ddp__deft_old(ddp__deft *d, const int *left, double room, int *on, int *all, ddp_error *err)
{
    static const double now[2] = {0, 0};
    int n = ddp__deft_list(d, left, d->buckets - 1, 0), sent = 0;
    double sum = 0;
    DDP__TRY(ddp__deft_fill(d, n, NULL, now, room, on, &sum, &sent, err));
    *all = sent == n;
    return DDP_OK;
}

/* Algorithm 1: level j knows only that nothing can start before bucket j is ready, and forgets that the buckets nearer
 * to the input are ready later still. Equal sums keep the shorter list. */
static ddp_status ddp__deft_levels(ddp__deft *d, const int *left, const double *busy, double offset, double room,
                                   int *on, ddp_error *err)
{
    int *best = d->count + 2 * d->buckets, j, l, n, sent;
    double start[2], sum, most = 0;
    memset(best, 0, 2 * (size_t)d->buckets * sizeof *best);
    for (j = 0; j < d->buckets; j++) {
        n = ddp__deft_list(d, left, j, offset);
        for (l = 0; l < 2; l++) start[l] = busy[l] > offset + d->ready[j] ? busy[l] : offset + d->ready[j];
        DDP__TRY(ddp__deft_fill(d, n, NULL, start, room, on, &sum, &sent, err));
        if (!(sum > most)) continue;
        most = sum;
        memcpy(best, on, 2 * (size_t)d->buckets * sizeof *best);
    }
    memcpy(on, best, 2 * (size_t)d->buckets * sizeof *best);
    return DDP_OK;
}

/* Parts that are ready at offset + ready[i], on links that are busy until busy[l]. */
static ddp_status ddp__deft_new(ddp__deft *d, const int *left, const double *busy, double offset, double room, int *on,
                         ddp_error *err)
{
    double sum = 0;
    int sent, n;
    if (d->select == DDP_SELECT_PAPER) return ddp__deft_levels(d, left, busy, offset, room, on, err);
    n = ddp__deft_list(d, left, d->buckets - 1, offset);
    return ddp__deft_fill(d, n, d->item_ready, busy, room, on, &sum, &sent, err);
}

/* The two queues of DeFT, iteration by iteration, until a state comes back. From there the iterations since its first
 * appearance can be repeated forever. */

/* Iterations that may pass before a state must have come back. */
#define DDP__DEFT_ITERATIONS 4096

/* The state is state[0..N+1]: parts pending per bucket, k of the pending gradient (0 = none), k of the stored ones. */
typedef struct ddp__deft_run {
    ddp__deft        *d;
    int               n;        /* integers in a state */
    int              *state;    /* the present one */
    int              *history;  /* [DDP__DEFT_ITERATIONS x n] the state before each iteration */
    uint64_t         *hash;     /* [DDP__DEFT_ITERATIONS] */
    int               born;     /* the iteration that opened the pending gradient */
    int              *on;       /* [2 N] */
    ddp_delayed_step *step;     /* [DDP__DEFT_ITERATIONS] */
    int              *delay;    /* [2 x DDP__DEFT_ITERATIONS] of applied and applied_now */
    ddp_delayed_send *send;
    int               sends;
    size_t            most; /* room of send */
    ddp__scratch      room;
} ddp__deft_run;

static ddp_status ddp__deft_no_memory(const ddp__deft *d, ddp_error *err)
{
    return ddp__fail(err, DDP_MEMORY, "no memory to plan %d buckets in %d parts", d->buckets, d->parts);
}

/* Sends on[l * N + i] parts of bucket i over link l, output side first, which is the order of release; lowest parts
 * first. left loses them, busy[l] moves on. at = start of the stage in the iteration. */
static ddp_status ddp__deft_send(ddp__deft_run *r, int iteration, int fresh, double at, double offset, int *left,
                                 double *busy, ddp_error *err)
{
    ddp__deft *d = r->d;
    double begin;
    for (int i = d->buckets - 1; i >= 0; i--)
        for (int l = 0; l < d->links; l++)
            for (int j = 0; j < r->on[l * d->buckets + i]; j++) {
                ddp_delayed_send *x = (ddp_delayed_send *)ddp__grow(r->send, &r->most, (size_t)r->sends + 1, sizeof *x);
                if (!x) return ddp__deft_no_memory(d, err);
                r->send = x;
                x += r->sends++;
                memset(x, 0, sizeof *x); /* its gaps as well: plans are compared byte by byte */
                begin = ddp__link_take(&busy[l], fresh ? offset + d->ready[i] : 0, d->part_s[i] * (l ? d->mu : 1));
                x->iteration = iteration;
                x->fresh = fresh;
                x->bucket = i;
                x->part = d->parts_of[i] - left[i]--;
                x->link = l;
                x->begin_s = at + begin, x->end_s = at + busy[l];
            }
    return DDP_OK;
}

/* How much longer than it computes a stage lasts because of its sends; 0 for mere rounding. */
static double ddp__deft_overrun(double compute, const double *busy)
{
    double last = busy[0] > busy[1] ? busy[0] : busy[1];
    return last > compute * (1 + 1e-11) ? last - compute : 0;
}

static int ddp__deft_pending(const ddp__deft *d, const int *left)
{
    for (int i = 0; i < d->buckets; i++)
        if (left[i] > 0) return 1;
    return 0;
}

/* Cases 2 to 4. offset: when backward begins in the stage (0, or T_f without barrier). */
static ddp_status ddp__deft_backward(ddp__deft_run *r, int t, double at, double offset, ddp_error *err)
{
    ddp__deft *d = r->d;
    int N = d->buckets, all = 1, *cur = r->state, *k_cur = r->state + N, *k_fut = k_cur + 1;
    double busy[2] = {0, 0}, room = (offset + d->backward) * d->scale;
    ddp_delayed_step *s = &r->step[t];

    ++*k_fut; /* this iteration's gradient joins the stored ones */
    if (ddp__deft_pending(d, cur)) {
        DDP__TRY(ddp__deft_old(d, cur, room, r->on, &all, err));
        DDP__TRY(ddp__deft_send(r, t, 0, at, 0, cur, busy, err));
    }
    if (all) {
        s->applied = *k_cur;
        r->delay[2 * t] = t - r->born;
        memcpy(cur, d->parts_of, (size_t)N * sizeof *cur);
        s->opened = *k_cur = *k_fut;
        r->born = t;
        *k_fut = 0;
        DDP__TRY(ddp__deft_new(d, cur, busy, offset, room, r->on, err));
        DDP__TRY(ddp__deft_send(r, t, 1, at, offset, cur, busy, err));
        if (!ddp__deft_pending(d, cur)) {
            s->applied_now = *k_cur;
            r->delay[2 * t + 1] = 0;
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
    int all;

    memset(s, 0, sizeof *s);
    s->first_send = r->sends;
    s->forward_s = d->forward;
    if (!d->way.no_barrier && ddp__deft_pending(d, r->state)) { /* case 1 */
        DDP__TRY(ddp__deft_old(d, r->state, d->forward * d->scale, r->on, &all, err));
        DDP__TRY(ddp__deft_send(r, t, 0, 0, 0, r->state, busy, err));
        s->forward_s += ddp__deft_overrun(d->forward, busy);
    }
    DDP__TRY(ddp__deft_backward(r, t, d->way.no_barrier ? 0 : s->forward_s, d->way.no_barrier ? d->forward : 0, err));
    s->sends = r->sends - s->first_send;
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

/* Iterations [first, end) are the steady period. */
static ddp_status ddp__deft_result(ddp__deft_run *r, int first, int end, ddp_delayed_plan *out, ddp_error *err)
{
    ddp__deft *d = r->d;
    size_t N = (size_t)d->buckets;
    ddp_delayed_plan p;
    double sum = 0;
    int t, i, n = 0;

    memset(&p, 0, sizeof p);
    for (t = first; t < end; t++) n += (r->step[t].applied > 0) + (r->step[t].applied_now > 0);
    p.buckets = d->buckets;
    p.parts = d->parts;
    p.links = d->links;
    p.warmup = first, p.period = end - first;
    p.sends = r->sends;
    p.parts_of = (int *)ddp__copy(d->parts_of, N, sizeof *p.parts_of);
    p.part_s = (double *)ddp__copy(d->part_s, N, sizeof *p.part_s);
    p.step = (ddp_delayed_step *)ddp__copy(r->step, (size_t)end, sizeof *p.step);
    p.send = (ddp_delayed_send *)ddp__copy(r->send, (size_t)r->sends, sizeof *p.send);
    p.k = (int *)ddp__calloc((size_t)n, sizeof *p.k);
    p.delay = (int *)ddp__calloc((size_t)n, sizeof *p.delay);
    if (!p.parts_of || !p.part_s || !p.step || !p.send || !p.k || !p.delay) {
        ddp_delayed_plan_free(&p);
        return ddp__deft_no_memory(d, err);
    }
    qsort(p.send, (size_t)r->sends, sizeof *p.send, ddp__deft_send_order);
    for (t = first; t < end; t++) {
        sum += (p.step[t].forward_s - d->forward) + (p.step[t].backward_s - d->backward);
        for (i = 0; i < 2; i++) {
            int k = i ? p.step[t].applied_now : p.step[t].applied;
            if (k == 0) continue;
            p.k[p.updates] = k;
            p.delay[p.updates++] = r->delay[2 * t + i];
        }
    }
    p.forward_s = d->forward, p.backward_s = d->backward;
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
        *r->d->work += 64 * r->d->parts + t; /* greedy knapsacks, and the comparisons above */
    }
    return ddp__fail(err, DDP_UNSUPPORTED, "no steady period within %d iterations of %d parts; use fewer, larger parts",
                     DDP__DEFT_ITERATIONS, r->d->parts);
}

ddp_status ddp__deft_cycle(ddp__deft *d, ddp_delayed_plan *out, ddp_error *err)
{
    size_t N = (size_t)d->buckets, most = DDP__DEFT_ITERATIONS;
    ddp__deft_run r;
    ddp_status status;
    memset(&r, 0, sizeof r);
    r.d = d;
    r.n = d->buckets + 2;
    r.history = ddp__ints(&r.room, most * (N + 2));
    r.state = ddp__ints(&r.room, N + 2);
    r.on = ddp__ints(&r.room, 2 * N);
    r.delay = ddp__ints(&r.room, 2 * most);
    r.hash = (uint64_t *)ddp__scratch_take(&r.room, most, sizeof *r.hash);
    r.step = (ddp_delayed_step *)ddp__scratch_take(&r.room, most, sizeof *r.step);
    status = r.room.failed ? ddp__deft_no_memory(d, err) : ddp__deft_to_steady(&r, out, err);
    ddp__scratch_free(&r.room);
    DDP_FREE(r.send);
    return status;
}
