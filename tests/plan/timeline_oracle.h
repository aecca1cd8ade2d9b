/* References for the baselines' timelines: random worlds whose times are whole ticks, a simulation tick by
 * tick, and a second implementation of the definitions. Shares no code with src/. */
#ifndef TESTS_TIMELINE_ORACLE_H
#define TESTS_TIMELINE_ORACLE_H

enum { MOST = 12, LISTS = 1000, HUGE_CREDIT = 1000000 };

/* Times are in ticks of 1/64 s, so that all sums are exact. A row has parts[i] parts of work[i] ticks each,
 * and each part has a startup of alpha. comm_s is the time of one message. */
typedef struct world {
    int n, parts[MOST];
    long f[MOST], b[MOST], work[MOST], alpha, partition;
    ddp_profile p;
    double forward[MOST], backward[MOST], comm[MOST], params[MOST];
} world;

static long comm(const world *w, int i) { return w->parts[i] ? w->alpha + w->parts[i] * w->work[i] : 0; }

/* The profile of the world; forward_s NULL if it has none. */
static void world_profile(world *w)
{
    int i;

    memset(&w->p, 0, sizeof w->p);
    w->p.layers = w->n;
    w->p.params = w->params;
    w->p.forward_s = w->forward;
    w->p.backward_s = w->backward;
    w->p.comm_s = w->comm;
    for (i = 0; i < w->n; i++) {
        w->forward[i] = (double)w->f[i] / 64;
        w->backward[i] = (double)w->b[i] / 64;
        w->comm[i] = (double)comm(w, i) / 64;
    }
}

/* kind 0: equal, with zeros; 1: comm much longer; 2: much shorter; 3: startups dominate; 4: many small parts.
 * A partition of s divides a row into k parts of d ticks if k - 1 < k d / s <= k. */
static void world_random(world *w, ddp_rng *r, int kind)
{
    long s, d;
    int i, k, most = kind == 1 || kind == 4 ? 9 : kind == 2 ? 2 : 4;

    memset(w, 0, sizeof *w);
    w->n = 1 + (int)ddp_rng_below(r, MOST);
    w->partition = s = 1 + (long)ddp_rng_below(r, kind == 2 || kind == 4 ? 4 : 12);
    w->alpha = kind == 3 ? 1 + (long)ddp_rng_below(r, 20) : (long)ddp_rng_below(r, 3);
    for (i = 0; i < w->n; i++) {
        w->f[i] = (long)ddp_rng_below(r, 20);
        w->b[i] = (long)ddp_rng_below(r, 30);
        if (ddp_rng_below(r, 5) == 0) w->f[i] = 0;
        if (ddp_rng_below(r, 5) == 0) w->b[i] = 0;
        k = 1 + (int)ddp_rng_below(r, (uint64_t)most);
        d = s - (long)ddp_rng_below(r, (uint64_t)((s - 1) / k + 1));
        while (k > 1 && k * d <= (k - 1) * s) d++;
        w->parts[i] = i > 0 && ddp_rng_below(r, 6) == 0 ? 0 : k;
        w->work[i] = d;
        w->params[i] = (double)(w->parts[i] * d);
    }
    world_profile(w);
}

/* ---- a worker and its link, tick by tick, over several iterations without a reset ---- */

typedef struct slots {
    const world *w;
    ddp_scheme scheme;
    long limit, credit; /* ticks of work */
    int at;             /* 0..n-1 backward of row n-1-at, n..2n-1 forward of row at-n */
    long busy;          /* ticks left of it, or -1 if not started */
    int ready[MOST], unsent[MOST], missing[MOST];
    int row[128], head, tail; /* committed to the link, in order */
    long link;                /* ticks left of row[head], or -1 if not started */
} slots;

static void slots_iteration_begins(slots *s)
{
    int i;

    assert_int_equal(s->head, s->tail); /* the previous iteration sent everything */
    s->at = s->head = s->tail = 0;
    s->busy = s->link = -1;
    for (i = 0; i < s->w->n; i++) {
        s->ready[i] = 0;
        s->unsent[i] = s->scheme == DDP_SCHEME_BYTESCHEDULER ? s->w->parts[i] : s->w->parts[i] > 0;
        s->missing[i] = s->unsent[i];
    }
}

static int slots_may_begin(const slots *s)
{
    int i, row = s->at - s->w->n;

    if (row < 0) return 1;
    if (s->scheme == DDP_SCHEME_BYTESCHEDULER) return s->missing[row] == 0;
    for (i = 0; i < s->w->n; i++)
        if (s->missing[i]) return 0;
    return 1;
}

/* Starts and ends the compute tasks of the current tick; 1 at the end of the iteration. */
static int slots_compute(slots *s)
{
    for (;;) {
        int n = s->w->n, row = s->at < n ? n - 1 - s->at : s->at - n;
        if (s->busy < 0) {
            if (!slots_may_begin(s)) return 0;
            s->busy = s->at < n ? s->w->b[row] : s->w->f[row];
        }
        if (s->busy > 0) return 0;
        if (s->at < n) s->ready[row] = 1;
        s->busy = -1;
        if (++s->at == 2 * n) return 1;
    }
}

/* The row that the scheme commits next, or -1. */
static int slots_choice(const slots *s)
{
    int i;

    if (s->scheme == DDP_SCHEME_BYTESCHEDULER) {
        for (i = 0; i < s->w->n && s->credit > 0; i++)
            if (s->ready[i] && s->unsent[i]) return i;
        return -1;
    }
    for (i = s->w->n - 1; i >= 0; i--)
        if (s->unsent[i]) return s->ready[i] && (s->scheme == DDP_SCHEME_WFBP || s->ready[0]) ? i : -1;
    return -1;
}

static void slots_link(slots *s)
{
    int i;

    while ((i = slots_choice(s)) >= 0) {
        s->unsent[i]--;
        s->credit -= s->w->work[i];
        s->row[s->tail++] = i;
    }
    if (s->link < 0 && s->head < s->tail) {
        i = s->row[s->head];
        s->link = s->scheme == DDP_SCHEME_BYTESCHEDULER ? s->w->alpha + s->w->work[i] : comm(s->w, i);
    }
}

/* Length of iteration `number`, counted from 0. */
static long slots_run(const world *w, ddp_scheme scheme, long limit, int number)
{
    slots s;
    long t, began = 0;

    memset(&s, 0, sizeof s);
    s.w = w;
    s.scheme = scheme;
    s.limit = s.credit = limit;
    slots_iteration_begins(&s);
    for (t = 0;; t++) {
        if (s.link == 0) {
            int i = s.row[s.head++];
            s.missing[i]--;
            s.credit += w->work[i];
            if (s.credit > limit) s.credit = limit;
            s.link = -1;
        }
        while (slots_compute(&s)) {
            if (number-- == 0) return t - began;
            began = t;
            slots_iteration_begins(&s);
        }
        slots_link(&s);
        if (s.busy > 0) s.busy--;
        if (s.link > 0) s.link--;
    }
}

/* ---- the other definitions, as printed ---- */

static long readies(const world *w, int i)
{
    long t = 0;

    for (; i < w->n; i++) t += w->b[i];
    return t;
}

static long forward_total(const world *w)
{
    long t = 0;
    int i;

    for (i = 0; i < w->n; i++) t += w->f[i];
    return t;
}

/* e_i = max(e_{i+1}, ready_i) + c_i for any c; T_f + max(T_b, e_0). */
static long recurrence(const world *w, const long *c)
{
    long e = 0;
    int i;

    for (i = w->n - 1; i >= 0; i--)
        if (c[i]) e = (e > readies(w, i) ? e : readies(w, i)) + c[i];
    return forward_total(w) + (e > readies(w, 0) ? e : readies(w, 0));
}

/* MG-WFBP's loop as printed, which restarts after each merge. Rows that send nothing are omitted: j-1 below
 * is the next row that sends. */
static long merged(const world *w)
{
    long c[MOST], start[MOST], r0, r1;
    int row[MOST], n = 0, i, l;

    for (i = 0; i < w->n; i++)
        if (w->parts[i]) {
            row[n] = i;
            c[n++] = comm(w, i);
        }
    for (l = n - 1; l > 0; l--) {
        for (i = n - 1; i >= 0; i--) {
            start[i] = i == n - 1 ? 0 : start[i + 1] + c[i + 1];
            r0 = readies(w, row[i]);
            if (start[i] < r0) start[i] = r0;
        }
        r1 = readies(w, row[l - 1]);
        if (r1 < start[l] + c[l] && (start[l] > r1 || r1 - start[l] < w->alpha)) {
            c[l - 1] += c[l] - w->alpha;
            c[l] = 0;
        }
    }
    r0 = 0;
    for (i = n - 1; i >= 0; i--)
        if (c[i]) r0 = (r0 > readies(w, row[i]) ? r0 : readies(w, row[i])) + c[i];
    r1 = readies(w, 0);
    return forward_total(w) + (r0 > r1 ? r0 : r1);
}

/* Processor sharing: each operation in progress gets an equal share of the link. */
static double shared(const world *w, int most)
{
    double startup[MOST], left[MOST], t = 0;
    int flying = 0, next = w->n - 1, i, active;

    for (;;) {
        double step = INFINITY;
        for (; next >= 0 && flying < most; next--) {
            if (!w->parts[next]) continue;
            if (flying == 0 && t < (double)readies(w, next)) t = (double)readies(w, next);
            if (t < (double)readies(w, next)) break;
            startup[flying] = (double)w->alpha;
            left[flying++] = (double)(comm(w, next) - w->alpha);
        }
        if (!flying) break;
        for (i = active = 0; i < flying; i++) active += startup[i] <= 0;
        for (i = 0; i < flying; i++) step = fmin(step, startup[i] > 0 ? startup[i] : left[i] * active);
        if (next >= 0 && flying < most) step = fmin(step, (double)readies(w, next) - t);
        t += step;
        for (i = 0; i < flying; i++)
            if (startup[i] > 0)
                startup[i] = startup[i] - step < 1e-9 ? 0 : startup[i] - step;
            else
                left[i] -= step / active;
        for (i = active = 0; i < flying; i++)
            if (startup[i] > 0 || left[i] > 1e-9) {
                startup[active] = startup[i];
                left[active++] = left[i];
            }
        flying = active;
    }
    return (double)forward_total(w) + fmax(t, (double)readies(w, 0));
}

/* US-Byte with given priorities (0 = highest); first [n] receives the start of each row. */
static long blocks(const world *w, const int *priority, long *first)
{
    long t = 0, end = readies(w, 0), arrive[MOST], gap, startup;
    int left[MOST], before = -1, i, g, k;

    for (i = 0; i < w->n; i++) {
        left[i] = w->parts[i];
        arrive[i] = 0;
        first[i] = -1;
    }
    while (t < end) {
        long next = end;
        for (g = -1, i = 0; i < w->n; i++) {
            long r = readies(w, i);
            if (w->parts[i] && r > t && r < next) next = r;
            if (left[i] && r <= t && (g < 0 || priority[i] < priority[g])) g = i;
        }
        if (g < 0) {
            t = next;
            before = -1;
            continue;
        }
        gap = next - t;
        startup = g == before ? 0 : w->alpha;
        if (startup + left[g] * w->work[g] <= gap)
            k = left[g];
        else if (gap <= startup)
            k = 1;
        else
            k = (int)((gap - startup + w->work[g] - 1) / w->work[g]);
        if (k > left[g]) k = left[g];
        if (first[g] < 0) first[g] = t;
        t += startup + k * w->work[g];
        left[g] -= k;
        arrive[g] = t;
        before = g;
    }
    for (i = 0; i < w->n; i++)
        if (left[i]) {
            if (first[i] < 0) first[i] = t;
            t += w->alpha + left[i] * w->work[i];
            arrive[i] = t;
        }
    for (t = end, i = 0; i < w->n; i++) t = (t > arrive[i] ? t : arrive[i]) + w->f[i];
    return t;
}

/* The search over the rows that send. start receives the length without the search, own [n] the
 * priorities. */
static long blocks_search(const world *w, long *start, int *own)
{
    int tried[MOST], row[MOST], n = 0, i, j, k, l;
    long first[MOST], first_tried[MOST], best, t, tau;

    memset(own, 0, sizeof tried);
    for (i = 0; i < w->n; i++)
        if (w->parts[i]) {
            own[i] = n;
            row[n++] = i;
        }
    *start = best = blocks(w, own, first);
    for (l = n - 1; l > 0; l--) {
        tau = first[row[l]] + comm(w, row[l]);
        for (k = l; k > 0 && readies(w, row[k - 1]) < tau; k--) {
        }
        if (k == l) continue;
        memcpy(tried, own, sizeof tried);
        tried[row[l]] = own[row[k]];
        for (j = k; j < l; j++) tried[row[j]] = own[row[j]] + 1;
        t = blocks(w, tried, first_tried);
        if (t >= best) continue;
        best = t;
        memcpy(own, tried, sizeof tried);
        memcpy(first, first_tried, sizeof first);
        l = k;
    }
    return best;
}

#endif /* TESTS_TIMELINE_ORACLE_H */
