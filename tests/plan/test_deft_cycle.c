/* [pure] The components of DeFT's planner: the choice of a stage, the order of sends, and the ways that each
 * solver and selection tries. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "plan/timeline/deft.c"
#include "plan/timeline/deft_cycle.c"

#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

/* ---- the choice of one stage ---- */

/* Buckets of one part each that take 6, 5 and 5 s. All are ready. */
typedef struct stage {
    ddp__deft d;
    double ready[3], part_s[3], item[3], item_ready[3];
    int parts_of[3], bucket[3], assign[3], on[12];
    int64_t work;
} stage;

static void stage_init(stage *x, ddp_knapsack_solver solver, int64_t work)
{
    memset(x, 0, sizeof *x);
    x->d.buckets = x->d.parts = 3;
    x->d.links = 1;
    x->d.mu = x->d.scale = 1;
    x->d.solver = solver;
    x->d.most = 1 << 20;
    x->d.work = &x->work;
    x->d.ready = x->ready;
    x->d.part_s = x->part_s;
    x->d.parts_of = x->parts_of;
    x->d.item = x->item;
    x->d.item_ready = x->item_ready;
    x->d.bucket = x->bucket;
    x->d.assign = x->assign;
    x->d.on = x->on;
    for (int i = 0; i < 3; i++) {
        x->parts_of[i] = 1;
        x->part_s[i] = i == 2 ? 6 : 5;
    }
    x->work = work;
}

/* Within 10 s, greedy takes the longest part, 6 s. The best choice is the other two. */
static double filled(ddp_knapsack_solver solver, int64_t work)
{
    const double start[2] = {0, 0};
    double sum = -1;
    stage x;

    stage_init(&x, solver, work);
    assert_int_equal(ddp__deft_fill(&x.d, x.parts_of, 2, -DBL_MAX, start, 10, &sum, NULL), DDP_OK);
    assert_true(sum == 6 ? x.on[2] == 1 && x.on[0] + x.on[1] == 0 : x.on[2] == 0 && x.on[0] + x.on[1] == 2);
    return sum;
}

static void a_solver_that_was_asked_for_stays_when_all_work_is_spent(void **state)
{
    const int64_t enough = 50000000;

    (void)state;
    assert_false(ddp__deft_spent(enough));
    assert_true(ddp__deft_spent(enough + 1));
    assert_true(filled(DDP_KNAPSACK_DEFAULT, 0) == 10);
    assert_true(filled(DDP_KNAPSACK_DEFAULT, enough + 1) == 6);
    assert_true(filled(DDP_KNAPSACK_EXACT, 0) == 10);
    assert_true(filled(DDP_KNAPSACK_EXACT, enough + 1) == 10);
    assert_true(filled(DDP_KNAPSACK_GREEDY, 0) == 6);
}

static void a_stage_without_room_or_parts_takes_nothing(void **state)
{
    const double start[2] = {0, 0};
    const int none[3] = {0, 0, 0};
    double sum = -1;
    stage x;

    (void)state;
    stage_init(&x, DDP_KNAPSACK_DEFAULT, 0);
    x.on[0] = x.on[5] = 3; /* of the previous stage */
    assert_int_equal(ddp__deft_fill(&x.d, x.parts_of, 2, -DBL_MAX, start, 0, &sum, NULL), DDP_OK);
    for (int i = 0; i < 6; i++) assert_int_equal(x.on[i], 0);
    assert_true(sum == 0);
    x.on[0] = 3;
    sum = -1;
    assert_int_equal(ddp__deft_fill(&x.d, none, 2, -DBL_MAX, start, 10, &sum, NULL), DDP_OK);
    assert_true(sum == 0 && x.on[0] == 0);
}

/* ---- the order of sends ---- */

static int before(const ddp_delayed_send *x, const ddp_delayed_send *y)
{
    const double a[6] = {(double)x->iteration, x->begin_s,         (double)x->link,
                         (double)x->fresh,     -(double)x->bucket, (double)x->part};
    const double b[6] = {(double)y->iteration, y->begin_s,         (double)y->link,
                         (double)y->fresh,     -(double)y->bucket, (double)y->part};

    for (int k = 0; k < 6; k++)
        if (a[k] < b[k] || a[k] > b[k]) return a[k] < b[k];
    return 0;
}

/* Order: iteration, start, link; the pending gradient first; from the output side; part. */
static void sends_have_one_order(void **state)
{
    enum { MANY = 64 };
    ddp_delayed_send all[MANY];

    (void)state;
    memset(all, 0, sizeof all);
    for (int i = 0; i < MANY; i++) {
        all[i].iteration = i & 1;
        all[i].begin_s = i >> 1 & 1;
        all[i].link = i >> 2 & 1;
        all[i].fresh = i >> 3 & 1;
        all[i].bucket = i >> 4 & 1;
        all[i].part = i >> 5 & 1;
    }
    for (int i = 0; i < MANY; i++)
        for (int j = 0; j < MANY; j++) {
            const int order = ddp__deft_send_order(&all[i], &all[j]);
            assert_int_equal(order < 0, before(&all[i], &all[j]));
            assert_int_equal(order == 0, i == j);
        }
}

/* ---- the ways to partition that are tried ---- */

static ddp_delayed_plan plan_of(const ddp_profile *p, const ddp_delayed_options *o)
{
    ddp_delayed_plan plan;
    ddp_error err;

    if (ddp_plan_delayed(p, o, &plan, &err) != DDP_OK) fail_msg("%s", err.msg);
    return plan;
}

/* With the paper's selection only its first solver is used, which is greedy if there are startups or two
 * links. Otherwise further solvers are tried and never give a worse plan. */
static void the_printed_selection_is_tried_with_one_solver(void **state)
{
    ddp_rng r = ddp_rng_seed(51, 0);
    int better = 0;

    (void)state;
    for (int n = 0; n < 60; n++) {
        double f[10], b[10], c[10], each;
        ddp_delayed_options o, greedy;
        ddp_delayed_plan first, second;
        ddp_profile p;
        memset(&p, 0, sizeof p);
        memset(&o, 0, sizeof o);
        p.layers = 4 + n % 7;
        p.forward_s = f;
        p.backward_s = b;
        p.comm_s = c;
        for (int l = 0; l < p.layers; l++) {
            f[l] = ddp_rng_uniform(&r);
            b[l] = 2 * ddp_rng_uniform(&r);
            c[l] = 0.1 + 4 * ddp_rng_uniform(&r);
        }
        o.links = 1 + n % 2;
        o.mu = o.links == 2 ? 1 + ddp_rng_uniform(&r) : 0;
        if (o.links == 1) o.alpha_s = 0.05;
        for (int paper = 0; paper < 2; paper++) {
            o.select = paper ? DDP_SELECT_PAPER : DDP_SELECT_RELEASE;
            greedy = o;
            greedy.solver = DDP_KNAPSACK_GREEDY;
            first = plan_of(&p, &o);
            second = plan_of(&p, &greedy);
            each = first.iteration_s / first.update_frequency;
            if (paper) {
                assert_true(first.iteration_s == second.iteration_s && first.updates == second.updates);
                assert_int_equal(first.period, second.period);
                assert_int_equal(first.sends, second.sends);
                assert_memory_equal(first.send, second.send, (size_t)first.sends * sizeof *first.send);
            } else {
                assert_true(each <= second.iteration_s / second.update_frequency * (1 + 1e-9));
                better += each < second.iteration_s / second.update_frequency * (1 - 1e-9);
            }
            ddp_delayed_plan_free(&first);
            ddp_delayed_plan_free(&second);
        }
    }
    print_message("%d of 60 plans are better than with greedy knapsacks alone\n", better);
    assert_true(better > 0);
}

/* The limits are the shorter stage over mu, the shorter stage, and the same for the longer one. A stage
 * without computing does not count. Coarse stages are as long as both. */
static void rules_limit_a_part_by_a_stage(void **state)
{
    static const double seconds[4][2] = {{2, 6}, {6, 2}, {0, 6}, {6, 0}};
    static const double want[4][4] = {{1, 2, 3, 6}, {1, 2, 3, 6}, {3, 6, 3, 6}, {3, 6, 3, 6}};

    (void)state;
    for (int k = 0; k < 4; k++)
        for (int rule = 0; rule < 4; rule++) {
            const double both = seconds[k][0] + seconds[k][1];
            double longest = -1;
            ddp__deft d;
            memset(&d, 0, sizeof d);
            d.forward = seconds[k][0];
            d.backward = seconds[k][1];
            d.mu = 2;
            d.way.rule = rule;
            assert_true(ddp__deft_limit(&d, &longest) == want[k][rule]);
            assert_true(longest == 6);
            d.way.coarse = 1;
            assert_true(ddp__deft_limit(&d, &longest) == (rule % 2 ? both : both / 2));
            assert_true(longest == both);
        }
}

/* With startups every rule is tried. Once all work is spent one plan suffices, but there must be one. */
static void rules_end_with_the_work_once_there_is_a_plan(void **state)
{
    double f[3] = {1, 1, 1}, b[3] = {2, 2, 2}, c[3] = {7, 8, 9};
    ddp_profile p;

    (void)state;
    memset(&p, 0, sizeof p);
    p.layers = 3;
    p.forward_s = f;
    p.backward_s = b;
    p.comm_s = c;
    for (int k = 0; k < 2; k++) {
        const ddp__deft_way way = {0, 0, 0, 0};
        ddp_delayed_options o;
        ddp__deft_search s;
        memset(&o, 0, sizeof o);
        memset(&s, 0, sizeof s);
        o.links = 2;
        o.mu = 1.5;
        o.alpha_s = 0.1;
        s.p = &p;
        s.o = &o;
        s.work = k ? 50000001 : 0;
        assert_int_equal(ddp__deft_rules(&s, way, NULL), DDP_OK);
        assert_true(s.best.period > 0);
        assert_true(k ? s.ways == 1 : s.ways > 2);
        ddp_delayed_plan_free(&s.best);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_solver_that_was_asked_for_stays_when_all_work_is_spent),
        cmocka_unit_test(a_stage_without_room_or_parts_takes_nothing),
        cmocka_unit_test(sends_have_one_order),
        cmocka_unit_test(the_printed_selection_is_tried_with_one_solver),
        cmocka_unit_test(rules_limit_a_part_by_a_stage),
        cmocka_unit_test(rules_end_with_the_work_once_there_is_a_plan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
