/* [pure] The baselines' timelines, compared with simulations in whole ticks, with their identities, with
 * hand-worked numbers, and with DeFT's table of the buckets of VGG-19. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "plan/timeline_oracle.h"

static ddp_timeline_options options(const world *w, ddp_scheme scheme)
{
    ddp_timeline_options o;

    memset(&o, 0, sizeof o);
    o.scheme = scheme;
    o.alpha_s = (double)w->alpha / 64;
    if (w->partition) o.partition_s = (double)(w->alpha + w->partition) / 64;
    return o;
}

static ddp_timeline timeline(const ddp_profile *p, const ddp_timeline_options *o)
{
    ddp_timeline t;
    ddp_error err;

    err.msg[0] = 0;
    if (ddp_plan_timeline(p, o, &t, &err) != DDP_OK) fail_msg("%s", err.msg);
    return t;
}

static double iteration(const world *w, const ddp_timeline_options *o)
{
    ddp_timeline t = timeline(&w->p, o);
    double s = t.iteration_s;

    ddp_timeline_free(&t);
    return s;
}

static double simple(const world *w, ddp_scheme scheme)
{
    ddp_timeline_options o = options(w, scheme);

    return iteration(w, &o);
}

/* Asserts that both are close to each other and finite. */
static void close_to(double a, double b)
{
    if (!(fabs(a - b) <= 1e-11 * (1 + 2 * fmin(fabs(a), fabs(b))))) fail_msg("%.17g is not %.17g", a, b);
}

static void ticks(double seconds, long expected) { close_to(seconds * 64, (double)expected); }

/* ---- properties of every timeline ---- */

/* No operation starts before its gradient is ready; one at a time per lane; every part once, with its
 * startup. */
static void check_intervals(const world *w, const ddp_timeline *t, long most)
{
    double lane_end[MOST], sent[MOST], ready, previous = 0, now = 0;
    int i, l, parts[MOST];

    memset(lane_end, 0, sizeof lane_end);
    memset(sent, 0, sizeof sent);
    memset(parts, 0, sizeof parts);
    for (i = 0; i < 2 * w->n; i++) {
        const ddp_interval *x = &t->interval[i];
        int forward = i >= w->n;
        assert_int_equal(x->kind, forward ? DDP_INTERVAL_FORWARD : DDP_INTERVAL_BACKWARD);
        assert_int_equal(x->bucket, forward ? i - w->n : w->n - 1 - i);
        assert_true(x->begin_s >= now);
        now = x->end_s;
        close_to(now - x->begin_s, forward ? w->forward[x->bucket] : w->backward[x->bucket]);
    }
    close_to(now, t->iteration_s);
    for (; i < t->intervals; i++) {
        const ddp_interval *x = &t->interval[i];
        double begin;
        assert_int_equal(x->kind, DDP_INTERVAL_LINK);
        assert_true(x->lane < most && x->begin_s >= previous && x->end_s > x->begin_s);
        previous = x->begin_s;
        ready = (double)readies(w, x->bucket) / 64;
        assert_true(x->begin_s >= ready && x->begin_s >= lane_end[x->lane]);
        lane_end[x->lane] = x->end_s;
        for (l = x->bucket; l <= x->last; l++) {
            begin = t->interval[w->n + l].begin_s;
            if (t->parts[l] && x->end_s > begin + 1e-9)
                fail_msg("row %d is used at %g before it arrives at %g", l, begin, x->end_s);
            if (!t->parts[l]) continue;
            assert_int_equal(x->part, parts[l]); /* in order, none twice */
            parts[l] += x->parts;
        }
        sent[x->bucket] += x->end_s - x->begin_s;
    }
    for (i = 0; i < w->n; i++) assert_int_equal(parts[i], t->parts[i]);
    if (t->scheme == DDP_SCHEME_BYTESCHEDULER)
        for (i = 0; i < w->n; i++) ticks(sent[i], w->parts[i] * (w->alpha + w->work[i]));
    if (t->scheme == DDP_SCHEME_SSGD || t->scheme == DDP_SCHEME_WFBP)
        for (i = 0; i < w->n; i++) ticks(sent[i], comm(w, i));
}

/* max(T_f + T_b, b_last + T_c), with one startup only where several can be saved. */
static void check_bound(const world *w, const ddp_timeline *t)
{
    int save = t->scheme == DDP_SCHEME_MGWFBP || t->scheme == DDP_SCHEME_ASCWFBP, i, n = 0;
    long link = w->b[w->n - 1], compute = forward_total(w) + readies(w, 0);

    for (i = 0; i < w->n; i++) {
        n += w->parts[i] > 0;
        link += comm(w, i);
    }
    if (save && n > 1) link -= (n - 1) * w->alpha;
    ticks(t->lower_bound_s, link > compute ? link : compute);
    assert_true(t->iteration_s >= t->lower_bound_s - 1e-9);
}

static void every_list(void (*check)(const world *w, ddp_rng *r))
{
    ddp_rng r = ddp_rng_seed(2025, 11);
    world w;
    int i;

    for (i = 0; i < LISTS; i++) {
        world_random(&w, &r, i % 5);
        check(&w, &r);
    }
}

static void check_every_scheme(const world *w, ddp_rng *r)
{
    int s;

    (void)r;
    for (s = 0; s < DDP_SCHEME_DEFT; s++) {
        ddp_timeline_options o = options(w, (ddp_scheme)s);
        ddp_timeline t = timeline(&w->p, &o);
        check_bound(w, &t);
        check_intervals(w, &t, s == DDP_SCHEME_ASCWFBP ? 4 : 1);
        ddp_timeline_free(&t);
    }
}

static void no_scheme_beats_its_bound_or_sends_early_or_twice(void **state)
{
    (void)state;
    every_list(check_every_scheme);
}

static void check_fifo(const world *w, ddp_rng *r)
{
    long sum = forward_total(w) + readies(w, 0), c[MOST];
    int i;

    for (i = 0; i < w->n; i++) sum += c[i] = comm(w, i);
    ticks(simple(w, DDP_SCHEME_SSGD), sum);
    ticks(simple(w, DDP_SCHEME_WFBP), recurrence(w, c));
    /* the first iteration or a later one: the schedule is steady from the start */
    i = (int)ddp_rng_below(r, 3);
    assert_int_equal(slots_run(w, DDP_SCHEME_SSGD, HUGE_CREDIT, i), sum);
    assert_int_equal(slots_run(w, DDP_SCHEME_WFBP, HUGE_CREDIT, i), recurrence(w, c));
}

static void ssgd_is_the_sum_and_wfbp_its_recurrence_and_a_slot_simulation(void **state)
{
    (void)state;
    every_list(check_fifo);
}

static void check_merge(const world *w, ddp_rng *r)
{
    ddp_timeline_options o = options(w, DDP_SCHEME_MGWFBP);

    (void)r;
    ticks(simple(w, DDP_SCHEME_MGWFBP), merged(w));
    assert_true(simple(w, DDP_SCHEME_MGWFBP) <= simple(w, DDP_SCHEME_WFBP) + 1e-9);
    o.alpha_s = 0;
    close_to(iteration(w, &o), simple(w, DDP_SCHEME_WFBP));
}

static void mgwfbp_follows_its_rule_is_never_slower_and_without_startups_is_wfbp(void **state)
{
    (void)state;
    every_list(check_merge);
}

static void check_shared(const world *w, ddp_rng *r)
{
    ddp_timeline_options o = options(w, DDP_SCHEME_ASCWFBP);
    double fifo = simple(w, DDP_SCHEME_WFBP), t;

    o.operations = 1;
    close_to(iteration(w, &o), fifo);
    o.operations = 2 + (long)ddp_rng_below(r, MOST);
    t = iteration(w, &o);
    close_to(64 * t, shared(w, (int)o.operations));
    assert_true(t <= fifo + 1e-9);
    o.alpha_s = 0;
    close_to(iteration(w, &o), fifo);
}

static void ascwfbp_shares_the_link_is_never_slower_and_alone_is_wfbp(void **state)
{
    (void)state;
    every_list(check_shared);
}

static void check_bytescheduler(const world *w, ddp_rng *r)
{
    ddp_timeline_options o = options(w, DDP_SCHEME_BYTESCHEDULER);
    long limit = w->partition * (1 + (long)ddp_rng_below(r, 4)), c[MOST];
    world apart = *w;
    int i;

    o.credit = (double)limit / (double)w->partition;
    i = (int)ddp_rng_below(r, 3);
    ticks(iteration(w, &o), slots_run(w, DDP_SCHEME_BYTESCHEDULER, limit, i));
    /* everything is committed as it becomes ready; rows that are ready together would still be ordered */
    for (i = 0; i < w->n; i++) apart.b[i] += w->b[i] == 0;
    world_profile(&apart);
    o.credit = HUGE_CREDIT;
    for (i = 0; i < w->n; i++) c[i] = w->parts[i] * (w->alpha + w->work[i]);
    ticks(iteration(&apart, &o), recurrence(&apart, c));
    o.partition_s = 0;
    o.partition_params = 1e9; /* one part each */
    close_to(iteration(&apart, &o), simple(&apart, DDP_SCHEME_WFBP));
}

static void bytescheduler_is_a_slot_simulation_and_with_enormous_credit_fifo(void **state)
{
    (void)state;
    every_list(check_bytescheduler);
}

static void check_usbyte(const world *w, ddp_rng *r)
{
    ddp_timeline_options o = options(w, DDP_SCHEME_USBYTE);
    int priority[MOST], i;
    long start, best = blocks_search(w, &start, priority);
    ddp_timeline t = timeline(&w->p, &o);

    (void)r;
    assert_true(best <= start);
    ticks(t.iteration_s, best);
    for (i = 0; i < w->n; i++) assert_true(!w->parts[i] || t.priority[i] == priority[i]);
    ddp_timeline_free(&t);
}

static void usbyte_follows_its_definition_and_its_search_never_loses(void **state)
{
    (void)state;
    every_list(check_usbyte);
}

/* ---- small numbers and the paper's table ---- */

static void three_buckets_by_hand(void **state)
{
    /* Backward: row 2 0..10, row 1 10..30, row 0 30..60; forward 3, 4, 8. Messages of 7, 40 and 5,
     * startup 1. WFBP: 10..17, 30..70, 70..75, then 15 of forward. */
    world w;
    ddp_timeline_options o;
    ddp_timeline t;

    (void)state;
    memset(&w, 0, sizeof w);
    w.n = 3;
    w.alpha = 1;
    w.b[0] = 30;
    w.b[1] = 20;
    w.b[2] = 10;
    w.f[0] = 3;
    w.f[1] = 4;
    w.f[2] = 8;
    w.parts[0] = 1;
    w.parts[1] = 3;
    w.parts[2] = 1;
    w.work[0] = 4;
    w.work[1] = 13;
    w.work[2] = 6;
    w.partition = 13;
    world_profile(&w);
    ticks(simple(&w, DDP_SCHEME_SSGD), 60 + 52 + 15);
    ticks(simple(&w, DDP_SCHEME_WFBP), 90);
    /* row 2 has left when row 1 is ready. Row 1 ends at 70 and row 0 is ready at 60: waiting 30 for it would
     * cost more than the startup. */
    ticks(simple(&w, DDP_SCHEME_MGWFBP), 90);
    /* row 0 is sent from 60: startup to 61, then it shares with the remaining 9 of row 1: 4 x 2 to 69, the
     * rest of row 1 alone to 74 */
    ticks(simple(&w, DDP_SCHEME_ASCWFBP), 74 + 15);
    /* parts of row 1: 30..44..58..72; row 0 72..77. With a credit of 13 a part of 13 uses it up. */
    ticks(simple(&w, DDP_SCHEME_BYTESCHEDULER), 77 + 15);
    /* row 1 from 30: 30 to the next, ceil(29/13) = 3 blocks: 30..70; row 0 70..75; forward 78.. */
    ticks(simple(&w, DDP_SCHEME_USBYTE), 90);
    w.p.forward_s = NULL;
    ticks(simple(&w, DDP_SCHEME_WFBP), 75);
    w.p.forward_s = w.forward;
    w.p.alpha_s = 2.0 / 64; /* added to comm_s, and busy too: 10..19, 30..72, 72..79 */
    ticks(simple(&w, DDP_SCHEME_WFBP), 94);
    w.p.alpha_s = 0;
    w.alpha = 31; /* waiting for row 0 is better now: 30 to 60, then 40 + 5 - startup */
    o = options(&w, DDP_SCHEME_MGWFBP);
    o.alpha_s = 31.0 / 64;
    w.comm[0] = w.comm[1] = w.comm[2] = 40.0 / 64;
    t = timeline(&w.p, &o); /* row 2 joins row 1 (20 < 31), both join row 0 (30 < 31): 60..118 */
    ticks(t.iteration_s, 60 + 40 + 9 + 9 + 15);
    assert_int_equal(t.intervals, 7);
    assert_int_equal(t.interval[6].bucket, 0);
    assert_int_equal(t.interval[6].last, 2);
    ddp_timeline_free(&t);
}

/* A startup within comm_s gives the same result as one given separately in the profile. */
static void check_startup(const world *w, ddp_rng *r)
{
    double apart[MOST];
    ddp_profile q = w->p;
    int i, s;

    (void)r;
    for (i = 0; i < w->n; i++) {
        apart[i] = w->comm[i] > 0 ? w->comm[i] - (double)w->alpha / 64 : 0;
        if (w->comm[i] > 0 && !(apart[i] > 0)) return;
    }
    q.comm_s = apart;
    q.alpha_s = (double)w->alpha / 64;
    for (s = 0; s < DDP_SCHEME_DEFT; s++) {
        ddp_timeline_options o = options(w, (ddp_scheme)s);
        ddp_timeline t = timeline(&w->p, &o), u;
        o.alpha_s = 0;
        u = timeline(&q, &o);
        close_to(t.iteration_s, u.iteration_s);
        close_to(t.lower_bound_s, u.lower_bound_s);
        ddp_timeline_free(&u);
        q.gap_s = q.alpha_s;
        q.alpha_s = 0; /* a gap occupies the link too. It does not overlap in ascwfbp. */
        u = timeline(&q, &o);
        if (s != DDP_SCHEME_ASCWFBP)
            close_to(t.iteration_s, u.iteration_s);
        else
            assert_true(u.iteration_s >= t.iteration_s - 1e-9);
        q.alpha_s = q.gap_s;
        q.gap_s = 0;
        ddp_timeline_free(&t);
        ddp_timeline_free(&u);
    }
}

static void a_startup_may_be_within_comm_s_or_separate(void **state)
{
    (void)state;
    every_list(check_startup);
}

static void startups_merge_overlap_and_leave_the_bound(void **state)
{
    static double ones[4] = {1, 1, 1, 1}, ten[4] = {11, 11, 11, 11}, odd[1] = {0.07};
    ddp_timeline_options o;
    ddp_timeline t;
    ddp_profile p;

    (void)state;
    memset(&p, 0, sizeof p);
    memset(&o, 0, sizeof o);
    p.layers = 4;
    p.params = p.backward_s = ones;
    p.comm_s = ten;
    o.alpha_s = 10;
    o.scheme = DDP_SCHEME_ASCWFBP; /* ready 1, 2, 3, 4: all four start at once; 11..12 to 14..15 */
    t = timeline(&p, &o);
    close_to(t.iteration_s, 15);
    ddp_timeline_free(&t);
    o.scheme = DDP_SCHEME_WFBP; /* one message of 10 + 4 from 4 on. The bound is 1 + 44 - 30. */
    o.bucket_bytes = o.first_bucket_bytes = 1e6;
    t = timeline(&p, &o);
    close_to(t.iteration_s, 18);
    close_to(t.lower_bound_s, 15);
    ddp_timeline_free(&t);
    memset(&o, 0, sizeof o); /* 0.07 / 0.01 is above 7 in binary; seven parts nevertheless */
    o.scheme = DDP_SCHEME_BYTESCHEDULER;
    o.partition_s = 0.01;
    p.layers = 1;
    p.comm_s = odd;
    t = timeline(&p, &o);
    assert_int_equal(t.parts[0], 7);
    ddp_timeline_free(&t);
}

static void one_bucket_and_silent_buckets_are_fine(void **state)
{
    world w;
    int s;

    (void)state;
    memset(&w, 0, sizeof w);
    w.n = 1;
    w.b[0] = 10;
    w.f[0] = 5;
    w.parts[0] = 2;
    w.work[0] = 4;
    w.partition = 4;
    world_profile(&w);
    for (s = 0; s < DDP_SCHEME_DEFT; s++) ticks(simple(&w, (ddp_scheme)s), 10 + 8 + 5);
    w.parts[0] = 0;
    world_profile(&w);
    for (s = 0; s < DDP_SCHEME_DEFT; s++) ticks(simple(&w, (ddp_scheme)s), 15);
}

static void ddp_buckets_close_at_their_limit(void **state)
{
    /* From the output side in MiB: 0.5 + 0.75 exceed the first limit of 1; 20 + 10 exceed 25; 3. */
    static const double mib[5] = {3, 10, 20, 0.75, 0.5};
    static const int first[3] = {3, 1, 0}, last[3] = {4, 2, 0};
    ddp_timeline_options o;
    ddp_timeline t;
    world w;
    int i;

    (void)state;
    memset(&w, 0, sizeof w);
    w.n = 5;
    w.alpha = 1;
    for (i = 0; i < 5; i++) {
        w.b[i] = 10;
        w.parts[i] = 1;
        w.work[i] = 3;
        w.params[i] = mib[i] * 262144;
    }
    world_profile(&w);
    o = options(&w, DDP_SCHEME_WFBP);
    o.bucket_bytes = 25 * 1048576.0;
    t = timeline(&w.p, &o);
    assert_int_equal(t.intervals, 13);
    for (i = 0; i < 3; i++) {
        assert_int_equal(t.interval[10 + i].bucket, first[i]);
        assert_int_equal(t.interval[10 + i].last, last[i]);
    }
    ticks(t.interval[10].begin_s, 20); /* 20..27, 40..47, 50..54 */
    ticks(t.interval[10].end_s, 27);
    ticks(t.iteration_s, 54);
    ticks(t.lower_bound_s, 50);
    ddp_timeline_free(&t);
    o.first_bucket_bytes = 100 * 1048576.0;
    t = timeline(&w.p, &o);
    assert_int_equal(t.intervals, 11);
    ticks(t.iteration_s, 50 + 16);
    ddp_timeline_free(&t);
}

/* DeFT, Table II (microseconds); 6.5 M parameters are 11.3 ms of bucket 4. */
static void vgg19(world *w, double scale, double more)
{
    static const double us[6][3] = {{1238, 72496, 1968},  {28799, 12786, 11262}, {4801, 4872, 15447},
                                    {1899, 2319, 178643}, {326, 484, 31754},     {103, 162, 8651}};
    int i;

    memset(w, 0, sizeof *w);
    w->n = 6;
    world_profile(w);
    for (i = 0; i < 6; i++) {
        w->forward[i] = us[i][0] * 1e-6;
        w->backward[i] = us[i][1] * 1e-6;
        w->comm[i] = (us[i][2] + (i == 3 ? more : 0)) * 1e-6 * scale;
    }
}

static void ms(const world *w, ddp_scheme scheme, double partition_ms, double expected)
{
    ddp_timeline_options o;
    double t;

    memset(&o, 0, sizeof o);
    o.scheme = scheme;
    o.partition_s = partition_ms * 1e-3;
    t = 1e3 * iteration(w, &o);
    if (!(fabs(t - expected) < 0.06)) fail_msg("%s: %g ms, not %g", ddp_scheme_name(scheme), t, expected);
}

static void the_buckets_of_vgg19_take_what_the_table_says(void **state)
{
    world w;

    (void)state;
    vgg19(&w, 1, 0);
    ms(&w, DDP_SCHEME_SSGD, 11.3, 378.0);
    ms(&w, DDP_SCHEME_WFBP, 11.3, 285.05);
    ms(&w, DDP_SCHEME_MGWFBP, 11.3, 285.05);
    ms(&w, DDP_SCHEME_ASCWFBP, 11.3, 285.05);
    ms(&w, DDP_SCHEME_BYTESCHEDULER, 11.3, 248.3);
    ms(&w, DDP_SCHEME_USBYTE, 11.3, 248.3);
    vgg19(&w, 1, 10000); /* bucket 4 so that the total matches */
    ms(&w, DDP_SCHEME_SSGD, 11.3, 388.0);
    ms(&w, DDP_SCHEME_WFBP, 11.3, 295.05);
    ms(&w, DDP_SCHEME_BYTESCHEDULER, 11.3, 258.3);
    ms(&w, DDP_SCHEME_USBYTE, 11.3, 258.3);
    vgg19(&w, 0.5, 0); /* 6.5 M parameters now take 5.65 ms */
    ms(&w, DDP_SCHEME_SSGD, 5.65, 254.15);
    ms(&w, DDP_SCHEME_WFBP, 5.65, 161.2);
    ms(&w, DDP_SCHEME_BYTESCHEDULER, 5.65, 139.4);
    ms(&w, DDP_SCHEME_USBYTE, 11.3, 134.15); /* also the order by row at 5.65 ms */
    ms(&w, DDP_SCHEME_USBYTE, 5.65, 133.28); /* the search moves bucket 5 to the front */
}

static void a_larger_credit_loses_priority(void **state)
{
    ddp_timeline_options o;
    world w;
    double one, four, fifo;

    (void)state;
    vgg19(&w, 0.5, 0);
    memset(&o, 0, sizeof o);
    o.scheme = DDP_SCHEME_BYTESCHEDULER;
    o.partition_s = 5.65e-3;
    one = iteration(&w, &o);
    o.credit = 4;
    four = iteration(&w, &o);
    o.credit = HUGE_CREDIT;
    fifo = iteration(&w, &o);
    assert_true(one < four && four < fifo);
}

/* If computing dominates, the iteration equals its bound, which is summed in another order. */
static void a_bound_that_is_attained_is_not_above_the_iteration_by_rounding(void **state)
{
    ddp_timeline_options o;
    ddp_rng r = ddp_rng_seed(2026, 1);
    world w;

    (void)state;
    memset(&o, 0, sizeof o);
    for (int round = 0; round < 200; round++) {
        ddp_timeline t;
        memset(&w, 0, sizeof w);
        w.n = MOST;
        world_profile(&w);
        for (int i = 0; i < w.n; i++) {
            w.forward[i] = ddp_rng_uniform(&r);
            w.backward[i] = ddp_rng_uniform(&r);
            w.comm[i] = 0;
        }
        o.scheme = (ddp_scheme)(round % DDP_SCHEME_DEFT);
        o.partition_s = round % 2 ? 0 : 1;
        o.partition_params = round % 2 ? 5 : 0; /* params of rows that send nothing are not used */
        t = timeline(&w.p, &o);
        assert_true(t.lower_bound_s <= t.iteration_s);
        close_to(t.lower_bound_s, t.iteration_s);
        ddp_timeline_free(&t);
    }
}

static void only_schemes_that_merge_rows_use_bucket_bytes(void **state)
{
    world w;

    (void)state;
    vgg19(&w, 1, 0);
    for (int i = 0; i < w.n; i++) w.params[i] = 1e6;
    for (int s = 0; s < DDP_SCHEME_DEFT; s++) {
        ddp_timeline_options o;
        double apart, joined;
        memset(&o, 0, sizeof o);
        o.scheme = (ddp_scheme)s;
        o.partition_s = 11.3e-3;
        apart = iteration(&w, &o);
        o.bucket_bytes = o.first_bucket_bytes = 1e9;
        joined = iteration(&w, &o);
        if (s == DDP_SCHEME_WFBP || s == DDP_SCHEME_ASCWFBP)
            assert_true(joined > apart);
        else
            assert_true(joined == apart);
    }
}

/* ---- exposed time of an iteration ---- */

/* Backward ends at 6, forward takes 1, 2, 4. Row 2's parts arrive in no order, the last at 9. Row 1 arrives
 * at 7. */
static void transfers_after_backward_are_exposed(void **state)
{
    static double forward[3] = {1, 2, 4}, backward[3] = {1, 2, 3};
    static const double end[5] = {6, 9, 4, 7, 50};
    static const int row[5] = {2, 2, 2, 1, 0};
    double each = -1, all = -1;
    ddp_interval x[5];
    ddp_timeline t;
    ddp_profile p;

    (void)state;
    memset(x, 0, sizeof x);
    memset(&t, 0, sizeof t);
    memset(&p, 0, sizeof p);
    for (int i = 0; i < 5; i++) {
        x[i].kind = i == 4 ? DDP_INTERVAL_FORWARD : DDP_INTERVAL_LINK;
        x[i].bucket = x[i].last = row[i];
        x[i].end_s = end[i];
    }
    t.buckets = p.layers = 3;
    t.intervals = 5;
    t.interval = x;
    p.forward_s = forward;
    p.backward_s = p.comm_s = backward;
    /* row 0 6..7, row 1 7..9, row 2 9..13 */
    assert_int_equal(ddp_timeline_exposed(&p, &t, 0, &each, &all, NULL), DDP_OK);
    assert_true(each == 0 && all == 3);
    /* 2 later: row 1 9..11, row 2 11..15 */
    assert_int_equal(ddp_timeline_exposed(&p, &t, 2, &each, &all, NULL), DDP_OK);
    assert_true(each == 2 && all == 5);
    p.forward_s = NULL; /* without forward times only the last arrival counts */
    assert_int_equal(ddp_timeline_exposed(&p, &t, 2, &each, &all, NULL), DDP_OK);
    assert_true(each == 5 && all == 5);
    for (int i = 0; i < 4; i++) x[i].end_s = 1;
    assert_int_equal(ddp_timeline_exposed(&p, &t, 1, &each, &all, NULL), DDP_OK);
    assert_true(each == 0 && all == 0);
}

static void exposed_time_of_another_model_is_an_error(void **state)
{
    double each = 7, all = 8;
    ddp_timeline_options o;
    ddp_timeline t;
    ddp_error err;
    world w;

    (void)state;
    vgg19(&w, 1, 0);
    memset(&o, 0, sizeof o);
    t = timeline(&w.p, &o);
    assert_int_equal(ddp_timeline_exposed(&w.p, NULL, 0, &each, &all, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the timeline has 0 rows, but the profile has 6"));
    assert_int_equal(ddp_timeline_exposed(&w.p, &t, 0, NULL, &all, &err), DDP_ARG);
    assert_int_equal(ddp_timeline_exposed(&w.p, &t, 0, &each, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_timeline_exposed(&w.p, &t, -1, &each, &all, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the latency is -1 s; it must be at least 0"));
    assert_int_equal(ddp_timeline_exposed(&w.p, &t, (double)INFINITY, &each, &all, &err), DDP_ARG);
    w.p.layers = 5;
    assert_int_equal(ddp_timeline_exposed(&w.p, &t, 0, &each, &all, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the timeline has 6 rows, but the profile has 5"));
    w.p.layers = 0;
    assert_int_equal(ddp_timeline_exposed(&w.p, &t, 0, &each, &all, &err), DDP_ARG);
    assert_true(each == 7 && all == 8);
    ddp_timeline_free(&t);
    ddp_timeline_free(NULL);
}

/* ---- names and errors ---- */

static void names_are_read_back(void **state)
{
    ddp_scheme s = DDP_SCHEME_SSGD;
    ddp_error err;
    int i;

    (void)state;
    for (i = 0; i <= DDP_SCHEME_DEFT; i++) {
        assert_int_equal(ddp_scheme_named(ddp_scheme_name((ddp_scheme)i), &s, NULL), DDP_OK);
        assert_int_equal(s, i);
    }
    assert_int_equal(ddp_scheme_named("wfbp", NULL, NULL), DDP_ARG);
    assert_string_equal(ddp_scheme_name((ddp_scheme)7), "unknown");
    assert_int_equal(ddp_scheme_named("gpipe", &s, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "'gpipe' is unknown; use ssgd, wfbp, mgwfbp"));
    assert_int_equal(ddp_scheme_named(NULL, &s, NULL), DDP_ARG);
}

static void refused(const ddp_profile *p, const ddp_timeline_options *o, ddp_status code, const char *says)
{
    ddp_timeline t;
    ddp_error err;
    ddp_status got;

    memset(&t, 7, sizeof t);
    got = ddp_plan_timeline(p, o, &t, &err);
    if (got != code) fail_msg("status %d, not %d, for %s", (int)got, (int)code, says);
    if (!strstr(err.msg, says)) fail_msg("'%s' does not say '%s'", err.msg, says);
    assert_int_equal(t.buckets, 0x07070707); /* unchanged */
}

static void invalid_input_is_named(void **state)
{
    static const int below = -1;
    char *names[6], fc6[] = "fc6";
    ddp_timeline_options o;
    ddp_error err;
    ddp_timeline t;
    world w;

    (void)state;
    vgg19(&w, 1, 0);
    memset(&o, 0, sizeof o);
    memset(names, 0, sizeof names);
    names[3] = fc6;
    refused(NULL, &o, DDP_ARG, "the profile has 0 layers");
    assert_int_equal(ddp_plan_timeline(&w.p, NULL, &t, &err), DDP_ARG);
    assert_int_equal(ddp_plan_timeline(&w.p, &o, NULL, &err), DDP_ARG);
    w.p.layers = 0;
    refused(&w.p, &o, DDP_ARG, "the profile has 0 layers");
    w.p.layers = 6;
    w.comm[2] = -1;
    refused(&w.p, &o, DDP_ARG, "layer 2 (unnamed): comm_s is -1");
    w.comm[2] = (double)NAN;
    refused(&w.p, &o, DDP_ARG, "layer 2 (unnamed): comm_s is ");
    w.comm[2] = (double)INFINITY;
    refused(&w.p, &o, DDP_ARG, "comm_s is inf");
    w.comm[2] = DBL_MAX;
    refused(&w.p, &o, DDP_NUMERIC, "more than a double holds");
    vgg19(&w, 1, 0);
    o.scheme = DDP_SCHEME_DEFT;
    refused(&w.p, &o, DDP_UNSUPPORTED, "ddp_plan_delayed");
    o.scheme = (ddp_scheme)7;
    refused(&w.p, &o, DDP_ARG, "scheme 7 is unknown");
    memcpy(&o.scheme, &below, sizeof o.scheme);
    refused(&w.p, &o, DDP_ARG, "scheme -1 is unknown");
    o.scheme = DDP_SCHEME_BYTESCHEDULER;
    refused(&w.p, &o, DDP_ARG, "no bucket that sends has params, so none can be cut by 6.5e+06");
    o.partition_s = -1;
    refused(&w.p, &o, DDP_ARG, "partition_s is -1");
    o.partition_s = (double)NAN;
    refused(&w.p, &o, DDP_ARG, "partition_s is ");
    o.partition_s = 1e-9;
    refused(&w.p, &o, DDP_ARG, "more than 1000000 cannot be planned");
    o.partition_s = 1e-300;
    refused(&w.p, &o, DDP_ARG, "more than 1000000 cannot be planned");
    o.alpha_s = 1e-3;
    o.partition_s = 1e-3;
    refused(&w.p, &o, DDP_ARG, "not longer than the startup of 0.001 s");
    o.partition_params = 100;
    refused(&w.p, &o, DDP_ARG, "a partition of 100 parameters and of 0.001 s was given");
    o.partition_params = 0;
    o.partition_s = 0.01;
    o.alpha_s = 2e-3;
    refused(&w.p, &o, DDP_ARG,
            "bucket 0 (unnamed): comm_s is 0.001968 s, shorter than the startup alpha_s of 0.002 s");
    w.p.name = names;
    refused(&w.p, &o, DDP_ARG, "bucket 0 (unnamed)"); /* this profile has no names */
    names[0] = fc6;
    refused(&w.p, &o, DDP_ARG, "bucket 0 (fc6): comm_s is 0.001968 s, shorter");
    w.p.name = NULL;
    o.alpha_s = 0;
    o.partition_params = -5;
    refused(&w.p, &o, DDP_ARG, "partition_params is -5");
    o.partition_params = 0;
    o.credit = -2;
    refused(&w.p, &o, DDP_ARG, "credit is -2");
    o.credit = 0;
    o.operations = -3;
    refused(&w.p, &o, DDP_ARG, "operations is -3");
    o.operations = 0;
    o.scheme = DDP_SCHEME_WFBP;
    o.bucket_bytes = 1;
    refused(&w.p, &o, DDP_ARG, "no row that sends has params, so bucket_bytes 1 cannot be applied");
    w.p.params = NULL;
    refused(&w.p, &o, DDP_ARG, "no row that sends has params, so bucket_bytes 1 cannot be applied");
    o.bucket_bytes = -1;
    refused(&w.p, &o, DDP_ARG, "bucket_bytes is -1");
    o.bucket_bytes = 0;
    o.first_bucket_bytes = (double)INFINITY;
    refused(&w.p, &o, DDP_ARG, "first_bucket_bytes is inf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_buckets_by_hand),
        cmocka_unit_test(a_startup_may_be_within_comm_s_or_separate),
        cmocka_unit_test(startups_merge_overlap_and_leave_the_bound),
        cmocka_unit_test(one_bucket_and_silent_buckets_are_fine),
        cmocka_unit_test(ddp_buckets_close_at_their_limit),
        cmocka_unit_test(no_scheme_beats_its_bound_or_sends_early_or_twice),
        cmocka_unit_test(ssgd_is_the_sum_and_wfbp_its_recurrence_and_a_slot_simulation),
        cmocka_unit_test(mgwfbp_follows_its_rule_is_never_slower_and_without_startups_is_wfbp),
        cmocka_unit_test(ascwfbp_shares_the_link_is_never_slower_and_alone_is_wfbp),
        cmocka_unit_test(bytescheduler_is_a_slot_simulation_and_with_enormous_credit_fifo),
        cmocka_unit_test(usbyte_follows_its_definition_and_its_search_never_loses),
        cmocka_unit_test(the_buckets_of_vgg19_take_what_the_table_says),
        cmocka_unit_test(a_larger_credit_loses_priority),
        cmocka_unit_test(a_bound_that_is_attained_is_not_above_the_iteration_by_rounding),
        cmocka_unit_test(only_schemes_that_merge_rows_use_bucket_bytes),
        cmocka_unit_test(transfers_after_backward_are_exposed),
        cmocka_unit_test(exposed_time_of_another_model_is_an_error),
        cmocka_unit_test(names_are_read_back),
        cmocka_unit_test(invalid_input_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
