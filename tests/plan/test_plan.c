/* [pure] The partial planner, compared with hand-worked numbers, exhaustive search and measured profiles. */
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

enum { MOST = 16 };

#include "plan/partial_lab.h"

/* kind 0: equal, with zeros; 1: comm much longer; 2: comm much shorter; 3: heavy tails, one huge layer. All
 * times are multiples of 1/64 in every other instance, so that ties are exact. */
static void instance_random(instance *x, ddp_rng *r, int most_layers, int kind, int round)
{
    int l;

    instance_init(x, (int)ddp_rng_below(r, (uint64_t)most_layers) + 1);
    for (l = 0; l < x->p.layers; l++) {
        double b = ddp_rng_uniform(r), c = ddp_rng_uniform(r), f = 0.5 * ddp_rng_uniform(r);
        if (kind == 0 && ddp_rng_below(r, 4) == 0) b = 0;
        if (kind == 0 && ddp_rng_below(r, 4) == 0) c = 0;
        if (kind == 0 && ddp_rng_below(r, 4) == 0) f = 0;
        if (kind == 1) c *= 20;
        if (kind == 2) c *= 0.1;
        if (kind == 3) c = 0.2 / (c + 0.02);
        x->b[l] = round ? floor(64 * b) / 64 : b;
        x->c[l] = round ? floor(64 * c) / 64 : c;
        x->f[l] = round ? floor(64 * f) / 64 : f;
    }
}

/* The objective of an assignment, with its filling if `filled`, by event simulation. */
static double simulate(const ddp_profile *p, const ddp_plan *plan, int filled)
{
    unsigned char member[512];
    double sum = 0, t = 0;
    int h, l;

    for (h = 0; h < plan->period; h++) {
        for (l = 0; l < p->layers; l++)
            member[l] = plan->step_of[l] == h || (filled && plan->fill[h * p->layers + l]);
        assert_int_equal(ddp__brute_step(p, plan->cost, member, &t, NULL), DDP_OK);
        sum += t;
    }
    return sum;
}

/* Asserts that both are close to each other and finite. */
static void close_to(double a, double b)
{
    if (!(fabs(a - b) <= 1e-11 * (1 + 2 * fmin(fabs(a), fabs(b))))) fail_msg("%.17g is not %.17g", a, b);
}

static const ddp_cost all_costs[3] = {DDP_COST_TIMELINE, DDP_COST_SUM, DDP_COST_WINDOW};

static void transfers_queue_behind_each_other(void **state)
{
    /* backward runs layer 2 (10 s), 1 (20 s), 0 (30 s). Transfers take 7, 40 and 5 s: layer 2: 10..17, layer
     * 1: 30..70, layer 0: ready at 60, 70..75. */
    const int all[3] = {0, 0, 0}, some[3] = {0, 1, 0};
    instance x;
    double t = 0;

    (void)state;
    instance_init(&x, 3);
    x.b[0] = 30;
    x.b[1] = 20;
    x.b[2] = 10;
    x.c[0] = 5;
    x.c[1] = 40;
    x.c[2] = 7;
    assert_int_equal(ddp_plan_step_time(&x.p, all, 0, DDP_COST_TIMELINE, &t, NULL), DDP_OK);
    close_to(t, 75);
    /* one message of 52 s after layer 2 at 10 */
    assert_int_equal(ddp_plan_step_time(&x.p, all, 0, DDP_COST_SUM, &t, NULL), DDP_OK);
    close_to(t, 62);
    /* layers 2 and 0: 10..17 and 60..65 */
    assert_int_equal(ddp_plan_step_time(&x.p, some, 0, DDP_COST_TIMELINE, &t, NULL), DDP_OK);
    close_to(t, 65);
    /* an empty step is the backward pass */
    assert_int_equal(ddp_plan_step_time(&x.p, some, 7, DDP_COST_WINDOW, &t, NULL), DDP_OK);
    close_to(t, 60);
    /* every message arrives 2 s after it has left the link */
    x.p.alpha_s = 2;
    assert_int_equal(ddp_plan_step_time(&x.p, all, 0, DDP_COST_TIMELINE, &t, NULL), DDP_OK);
    close_to(t, 77);
    assert_int_equal(ddp_plan_step_time(&x.p, some, 7, DDP_COST_TIMELINE, &t, NULL), DDP_OK);
    close_to(t, 60);
}

static void the_window_uses_the_next_forward(void **state)
{
    /* As above with forward times 3, 4, 8. Link: layer 2 10..17, layer 1 30..60, interrupted by layer 0
     * 60..65, then 65..75. Forward: layer 0 65..68, layer 1 75..79, layer 2 79..87; 87 less 15 s of forward =
     * 72. */
    const int all[3] = {0, 0, 0};
    instance x;
    double t = 0;

    (void)state;
    instance_init(&x, 3);
    x.b[0] = 30;
    x.b[1] = 20;
    x.b[2] = 10;
    x.c[0] = 5;
    x.c[1] = 40;
    x.c[2] = 7;
    x.f[0] = 3;
    x.f[1] = 4;
    x.f[2] = 8;
    assert_int_equal(ddp_plan_step_time(&x.p, all, 0, DDP_COST_WINDOW, &t, NULL), DDP_OK);
    close_to(t, 72);
    x.c[1] = 20; /* layer 1 30..50, layer 0 60..65: only layer 0 causes a wait, 5 s */
    assert_int_equal(ddp_plan_step_time(&x.p, all, 0, DDP_COST_WINDOW, &t, NULL), DDP_OK);
    close_to(t, 65);
}

static void closed_forms_equal_the_simulation(void **state)
{
    ddp_rng r = ddp_rng_seed(7, 0);
    int n, k, l;

    (void)state;
    for (n = 0; n < 20000; n++) {
        instance x;
        ddp_plan plan;
        instance_random(&x, &r, MOST, n % 4, n % 2);
        if (n % 3 == 0) x.p.alpha_s = 0.3 * ddp_rng_uniform(&r);
        if (n % 7 == 0) x.p.gap_s = 0.3 * ddp_rng_uniform(&r);
        assert_int_equal(ddp_plan_new(x.p.layers, 3, &plan, NULL), DDP_OK);
        for (l = 0; l < x.p.layers; l++) plan.step_of[l] = (int)ddp_rng_below(&r, 3);
        for (k = 0; k < 3; k++) {
            assert_int_equal(ddp_plan_evaluate(&x.p, all_costs[k], &plan, NULL), DDP_OK);
            close_to(plan.objective_s, simulate(&x.p, &plan, 0));
            assert_true(plan.lower_bound_s <= plan.objective_s * (1 + 1e-12) + 1e-12);
        }
        ddp_plan_free(&plan);
    }
}

static void optimal_equals_brute_force(void **state)
{
    ddp_rng r = ddp_rng_seed(8, 0);
    int n, k;

    (void)state;
    for (n = 0; n < 10000; n++) {
        instance x;
        int period = (int)ddp_rng_below(&r, 5) + 1;
        instance_random(&x, &r, 12, n % 4, (n / 4) % 2);
        if (n % 5 == 4) x.p.alpha_s = 0.5 * ddp_rng_uniform(&r);
        if (n % 7 == 0) x.p.gap_s = 0.3 * ddp_rng_uniform(&r);
        for (k = 0; k < 3; k++) {
            ddp_plan a = solve(&x.p, DDP_SOLVER_OPTIMAL, all_costs[k], period, DDP_FILL_NONE);
            ddp_plan b = solve(&x.p, DDP_SOLVER_BRUTE, all_costs[k], period, DDP_FILL_NONE);
            close_to(a.objective_s, b.objective_s);
            close_to(a.objective_s, simulate(&x.p, &a, 0));
            assert_true(a.lower_bound_s <= a.objective_s + 1e-11);
            ddp_plan_free(&a);
            ddp_plan_free(&b);
        }
    }
}

/* The theorem of partial_search.c. With the sum cost, Algorithm 2 may be worse than the optimum but never
 * better. */
static void algorithm_2_is_exact_on_the_timeline(void **state)
{
    ddp_rng r = ddp_rng_seed(9, 0);
    int n, k, worse = 0;

    (void)state;
    for (n = 0; n < 6000; n++) {
        instance x;
        int period = (int)ddp_rng_below(&r, 6) + 1;
        instance_random(&x, &r, MOST, n % 4, (n / 4) % 2);
        for (k = 0; k < 3; k++) {
            ddp_plan a = solve(&x.p, DDP_SOLVER_DFS, all_costs[k], period, DDP_FILL_NONE);
            ddp_plan b = solve(&x.p, DDP_SOLVER_OPTIMAL, all_costs[k], period, DDP_FILL_NONE);
            if (all_costs[k] == DDP_COST_SUM) {
                assert_true(a.objective_s >= b.objective_s - 1e-11);
                worse += a.objective_s > b.objective_s + 1e-9;
            } else {
                close_to(a.objective_s, b.objective_s);
            }
            ddp_plan_free(&a);
            ddp_plan_free(&b);
        }
    }
    assert_true(worse > 50);
}

static void search_and_programme_agree_on_large_instances(void **state)
{
    enum { L = 300, H = 70 };
    static double b[L], c[L], f[L], fast[H], slow[H];
    ddp_rng r = ddp_rng_seed(10, 0);
    int n, l, h;

    (void)state;
    for (n = 0; n < 12; n++) {
        ddp_profile p;
        ddp__costs costs;
        memset(&p, 0, sizeof p);
        p.layers = L;
        p.backward_s = b;
        p.comm_s = c;
        p.forward_s = f;
        for (l = 0; l < L; l++) {
            b[l] = ddp_rng_uniform(&r);
            c[l] = (n % 4 + 1) * 4 * ddp_rng_uniform(&r) * ddp_rng_uniform(&r);
            f[l] = 0.4 * ddp_rng_uniform(&r);
        }
        assert_int_equal(ddp__costs_open(&p, n % 2 ? DDP_COST_WINDOW : DDP_COST_TIMELINE, &costs, NULL),
                         DDP_OK);
        assert_int_equal(ddp__contiguous(&costs, H, 1, NULL, fast, NULL), DDP_OK);
        assert_int_equal(ddp__contiguous(&costs, H, 0, NULL, slow, NULL), DDP_OK);
        for (h = 0; h < H; h++) close_to(fast[h], slow[h]);
        ddp__scratch_free(&costs.room);
    }
}

static void the_curve_falls_with_the_period(void **state)
{
    ddp_rng r = ddp_rng_seed(11, 0);
    int n, k, h;

    (void)state;
    for (n = 0; n < 500; n++) {
        instance x;
        double curve[20];
        instance_random(&x, &r, MOST, n % 4, 0);
        if (n % 3 == 2) x.p.alpha_s = 0.2;
        for (k = 0; k < 3; k++) {
            assert_int_equal(ddp_plan_curve(&x.p, all_costs[k], 20, curve, NULL), DDP_OK);
            for (h = 0; h < 20; h++) {
                ddp_plan a = solve(&x.p, DDP_SOLVER_OPTIMAL, all_costs[k], h + 1, DDP_FILL_NONE);
                close_to(a.exposed_s, curve[h]);
                if (h > 0) assert_true(curve[h] <= curve[h - 1] + 1e-12);
                ddp_plan_free(&a);
            }
        }
    }
}

/* The best of all H^L assignments, each subset simulated. */
static double every_assignment(const ddp_profile *p, ddp_cost cost, int period)
{
    unsigned char member[MOST];
    double cost_of[1 << 7], sum, best = INFINITY;
    int mask[MOST], n = 1, i, l, h, set;

    for (set = 0; set < 1 << p->layers; set++) {
        for (l = 0; l < p->layers; l++) member[l] = (unsigned char)((set >> l) & 1);
        assert_int_equal(ddp__brute_step(p, cost, member, &cost_of[set], NULL), DDP_OK);
    }
    for (l = 0; l < p->layers; l++) n *= period;
    for (i = 0; i < n; i++) {
        int code = i;
        memset(mask, 0, sizeof mask);
        for (l = 0; l < p->layers; l++, code /= period) mask[code % period] |= 1 << l;
        for (sum = 0, h = 0; h < period; h++) sum += cost_of[mask[h]];
        if (sum < best) best = sum;
    }
    return best;
}

static void scatter_finds_the_optimum_of_small_instances(void **state)
{
    ddp_rng r = ddp_rng_seed(12, 0);
    int n, k, hits = 0, tries = 0;

    (void)state;
    for (n = 0; n < 80; n++) {
        instance x;
        int period = (int)ddp_rng_below(&r, 3) + 2;
        instance_random(&x, &r, 7, n % 4, (n / 4) % 2);
        if (n % 5 == 4) x.p.alpha_s = 0.3;
        if (n % 3 == 1) x.p.gap_s = 0.2;
        for (k = 0; k < 3; k++) {
            ddp_plan a = solve(&x.p, DDP_SOLVER_SCATTER, all_costs[k], period, DDP_FILL_NONE);
            ddp_plan b = solve(&x.p, DDP_SOLVER_OPTIMAL, all_costs[k], period, DDP_FILL_NONE);
            double best = every_assignment(&x.p, all_costs[k], period);
            close_to(a.objective_s, simulate(&x.p, &a, 0));
            assert_true(a.objective_s <= b.objective_s + 1e-11);
            assert_true(a.objective_s >= best - 1e-11);
            assert_true(a.lower_bound_s <= best + 1e-11);
            hits += a.objective_s <= best + 1e-9;
            tries++;
            ddp_plan_free(&a);
            ddp_plan_free(&b);
        }
    }
    print_message("scatter is the true optimum in %d of %d small instances\n", hits, tries);
    assert_true(hits >= tries - 1); /* all of them, except for rounding */
}

static void plans_repeat_bit_for_bit(void **state)
{
    ddp_rng r = ddp_rng_seed(13, 0);
    instance x;
    ddp_plan a, b;

    (void)state;
    instance_random(&x, &r, MOST, 3, 0);
    a = solve(&x.p, DDP_SOLVER_DEFAULT, DDP_COST_DEFAULT, 4, DDP_FILL_EXACT);
    b = solve(&x.p, DDP_SOLVER_SCATTER, DDP_COST_WINDOW, 4, DDP_FILL_EXACT);
    assert_true(ddp_plan_hash(&a) == ddp_plan_hash(&b));
    assert_int_equal(a.solver, DDP_SOLVER_SCATTER);
    assert_int_equal(a.cost, DDP_COST_WINDOW);
    b.step_of[0] = (b.step_of[0] + 1) % 4;
    assert_true(ddp_plan_hash(&a) != ddp_plan_hash(&b));
    ddp_plan_free(&a);
    ddp_plan_free(&b);
    /* a plan of one layer and one step, hashed by hand: 01 00 00 00, the same, 0, one byte 0 */
    assert_int_equal(ddp_plan_new(1, 1, &a, NULL), DDP_OK);
    {
        const unsigned char bytes[13] = {1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0};
        assert_true(ddp_plan_hash(&a) == ddp__hash(DDP__HASH_START, bytes, 13));
    }
    ddp_plan_free(&a);
}

static void equal_number_counts_layers_with_parameters(void **state)
{
    /* rows 0..6, parameters in 0, 2, 3, 5, 6: ceil(5/2) = 3 in the first step, from the output side 6, 5, 3.
     * Row 4 is assigned with 3, row 1 with 0. */
    double params[7] = {1, 0, 1, 1, 0, 1, 1};
    const int want[7] = {1, 1, 1, 0, 0, 0, 0};
    instance x;
    ddp_plan a;
    int l;

    (void)state;
    instance_init(&x, 7);
    for (l = 0; l < 7; l++) x.b[l] = x.c[l] = 1;
    x.p.params = params;
    a = solve(&x.p, DDP_SOLVER_ENP, DDP_COST_TIMELINE, 2, DDP_FILL_NONE);
    for (l = 0; l < 7; l++) assert_int_equal(a.step_of[l], want[l]);
    ddp_plan_free(&a);
    a = solve(&x.p, DDP_SOLVER_ENP, DDP_COST_TIMELINE, 9, DDP_FILL_NONE);
    for (l = 0; l < 7; l++) assert_in_range((unsigned)a.step_of[l], 0, 4);
    ddp_plan_free(&a);
}

static void filling_is_free_and_longest(void **state)
{
    ddp_rng r = ddp_rng_seed(14, 0);
    int n, k, h, l, more = 0;

    (void)state;
    for (n = 0; n < 3000; n++) {
        instance x;
        int L, period = (int)ddp_rng_below(&r, 5) + 1;
        ddp_solver solver = n % 2 ? DDP_SOLVER_SCATTER : DDP_SOLVER_OPTIMAL;
        instance_random(&x, &r, n % 2 ? 5 : 12, n % 4, 0);
        L = x.p.layers;
        if (n % 2) solver = DDP_SOLVER_ENP;
        for (k = 0; k < 3; k++) {
            ddp_plan a = solve(&x.p, solver, all_costs[k], period, DDP_FILL_EXACT);
            ddp_plan b = solve(&x.p, solver, all_costs[k], period, DDP_FILL_EQ12);
            assert_true(simulate(&x.p, &a, 1) <= a.objective_s + 1e-11);
            assert_true(simulate(&x.p, &b, 1) <= b.objective_s + 1e-11);
            for (h = 0; h < period; h++) {
                unsigned char member[MOST];
                double own = 0, grown = 0;
                int grew = 0;
                for (l = 0; l < L; l++) member[l] = a.step_of[l] == h;
                assert_int_equal(ddp__brute_step(&x.p, all_costs[k], member, &own, NULL), DDP_OK);
                for (l = L - 1; l >= 0; l--) { /* filled exactly until the cost grows */
                    if (x.c[l] > 0) member[l] = 1;
                    assert_int_equal(ddp__brute_step(&x.p, all_costs[k], member, &grown, NULL), DDP_OK);
                    if (grown > own + 1e-9) grew = 1;
                    if (a.step_of[l] == h || x.c[l] <= 0)
                        assert_int_equal(a.fill[h * L + l], 0);
                    else if (fabs(grown - own) > 1e-9 || !grew)
                        assert_int_equal(a.fill[h * L + l], !grew);
                    more += a.fill[h * L + l] - b.fill[h * L + l];
                }
            }
            ddp_plan_free(&a);
            ddp_plan_free(&b);
        }
    }
    assert_true(more > 0);
}

static void bubbles_are_filled_by_hand(void **state)
{
    /* two layers of 10 s, comm 4 s (row 1, output side) and 6 s, period 3. Row 1 at 10..14 and row 0 exposed:
     * the optimum averages both in step 0: 10..14, 20..26. Steps 1 and 2 are empty; exact filling adds row 1
     * there, Eq. 12 nothing. */
    instance x;
    ddp_plan a;

    (void)state;
    instance_init(&x, 2);
    x.b[0] = x.b[1] = 10;
    x.c[0] = 6;
    x.c[1] = 4;
    a = solve(&x.p, DDP_SOLVER_OPTIMAL, DDP_COST_TIMELINE, 3, DDP_FILL_EXACT);
    close_to(a.objective_s, 66);
    close_to(a.exposed_s, 6);
    close_to(a.lower_bound_s, 66);
    assert_int_equal(a.step_of[0], 0);
    assert_int_equal(a.step_of[1], 0);
    assert_int_equal(a.fill[2 + 1], 1);
    assert_int_equal(a.fill[2 + 0], 0);
    assert_int_equal(a.fill[4 + 1], 1);
    ddp_plan_free(&a);
    a = solve(&x.p, DDP_SOLVER_OPTIMAL, DDP_COST_TIMELINE, 3, DDP_FILL_EQ12);
    assert_int_equal(a.fill[2 + 1], 0);
    ddp_plan_free(&a);
    /* three layers, the middle one alone in a step: P(a+1) = 20, 10 s available, 3 s used; the output-side
     * layer's 4 s fit, so Eq. 12 adds it */
    instance_init(&x, 3);
    x.b[0] = x.b[1] = x.b[2] = 10;
    x.c[0] = 6;
    x.c[1] = 3;
    x.c[2] = 4;
    a = solve(&x.p, DDP_SOLVER_ENP, DDP_COST_TIMELINE, 3, DDP_FILL_EQ12);
    assert_int_equal(a.step_of[1], 1);
    assert_int_equal(a.fill[3 + 2], 1);
    assert_int_equal(a.fill[6 + 2], 0); /* step 2 has row 0, which leaves no time */
    ddp_plan_free(&a);
}

static void the_bound_knows_that_a_layer_is_not_split(void **state)
{
    /* Row 1 is ready at 1 of 2 s and takes 10 s: 9 s exceed the step, in any number of steps. By the link's
     * time alone, 3 steps could overlap 3 s. */
    instance x;

    (void)state;
    instance_init(&x, 2);
    x.b[0] = x.b[1] = 1;
    x.c[1] = 10;
    for (int k = 0; k < 3; k++) {
        ddp_plan a = solve(&x.p, DDP_SOLVER_SCATTER, all_costs[k], 3, DDP_FILL_NONE);
        close_to(a.lower_bound_s, 6 + 9);
        close_to(a.objective_s, 6 + 9);
        ddp_plan_free(&a);
    }
    x.c[0] = 10; /* in one step the link is busy from 1 to 21 */
    for (int k = 0; k < 3; k++) {
        ddp_plan a = solve(&x.p, DDP_SOLVER_SCATTER, all_costs[k], 1, DDP_FILL_NONE);
        close_to(a.lower_bound_s, 21);
        close_to(a.objective_s, 21);
        ddp_plan_free(&a);
    }
}

static void refused(const ddp_profile *p, int period, int solver, int cost, const char *why)
{
    ddp_plan_options o;
    ddp_plan plan;
    ddp_error err;

    memset(&o, 0, sizeof o);
    memset(&plan, 42, sizeof plan);
    memset(&err, 0, sizeof err);
    o.period = period;
    memcpy(&o.solver, &solver, sizeof o.solver); /* not a value of the enum */
    memcpy(&o.cost, &cost, sizeof o.cost);
    assert_int_not_equal(ddp_plan_partial(p, &o, &plan, &err), DDP_OK);
    assert_int_equal(plan.layers, 0x2a2a2a2a); /* unchanged */
    if (!strstr(err.msg, why)) fail_msg("'%s' does not say '%s'", err.msg, why);
}

static void bad_input_is_named(void **state)
{
    static double ones[200];
    char *names[3];
    char embed[] = "embed";
    instance x;
    ddp_profile wide;
    ddp_solver solver = DDP_SOLVER_DEFAULT;
    ddp_error err;
    int l;

    (void)state;
    memset(names, 0, sizeof names);
    names[0] = embed;
    for (l = 0; l < 200; l++) ones[l] = 1;
    instance_init(&x, 3);
    x.p.name = names;
    refused(&x.p, 0, 0, 0, "period 0");
    refused(&x.p, -3, 0, 0, "period -3");
    refused(&x.p, 2, 77, 0, "solver 77 is unknown");
    refused(&x.p, 2, 0, 9, "cost 9 is unknown");
    x.c[0] = NAN;
    refused(&x.p, 2, 0, 0, "layer 0 (embed): comm_s is nan");
    x.c[0] = 0;
    x.b[2] = -1;
    refused(&x.p, 2, 0, 0, "layer 2 (unnamed): backward_s is -1");
    x.b[2] = 1e308;
    x.b[1] = 1e308;
    refused(&x.p, 2, 0, 0, "add up to more");
    x.p.layers = 0;
    refused(&x.p, 2, 0, 0, "0 layers");
    memset(&wide, 0, sizeof wide);
    wide.layers = 200;
    refused(&wide, 2, 0, 0, "no backward_s");
    wide.backward_s = wide.comm_s = ones;
    refused(&wide, 10, DDP_SOLVER_BRUTE, 0, "use solver optimal");
    assert_int_equal(ddp_solver_named("greedy", &solver, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "solver 'greedy' is unknown; use optimal, dfs, enp, brute or scatter"));
    assert_int_equal(ddp_solver_named("scatter", &solver, &err), DDP_OK);
    assert_int_equal(solver, DDP_SOLVER_SCATTER);
}

static void plans_of_another_model_are_an_error(void **state)
{
    static const int below = -1, nine = 9;
    instance x;
    ddp_plan_options o;
    ddp_plan plan, other;
    ddp_fill fill = DDP_FILL_NONE;
    ddp_error err;
    double curve[1] = {7};
    int *steps;

    (void)state;
    instance_init(&x, 3);
    x.b[0] = x.b[1] = x.b[2] = x.c[0] = 1;
    memset(&plan, 42, sizeof plan);
    assert_int_equal(ddp_plan_new(0, 2, &plan, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "a plan of 0 layers"));
    assert_int_equal(ddp_plan_new(3, 0, &plan, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "period 0 is impossible"));
    assert_int_equal(ddp_plan_partial(&x.p, NULL, &plan, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "needs options"));
    memset(&o, 0, sizeof o);
    o.period = 2;
    memcpy(&o.solver, &below, sizeof o.solver);
    assert_int_equal(ddp_plan_partial(&x.p, &o, &plan, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "solver -1 is unknown"));
    o.solver = DDP_SOLVER_DEFAULT;
    memcpy(&o.fill, &nine, sizeof o.fill);
    assert_int_equal(ddp_plan_partial(&x.p, &o, &plan, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "filling 9 is unknown"));
    memcpy(&o.fill, &below, sizeof o.fill);
    assert_int_equal(ddp_plan_partial(&x.p, &o, &plan, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "filling -1 is unknown"));
    o.fill = DDP_FILL_NONE;
    o.time_limit_s = -1;
    assert_int_equal(ddp_plan_partial(&x.p, &o, &plan, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "time limit -1 s"));
    o.time_limit_s = INFINITY;
    assert_int_equal(ddp_plan_partial(&x.p, &o, &plan, &err), DDP_ARG);
    assert_int_equal(plan.layers, 0x2a2a2a2a); /* unchanged */
    assert_int_equal(ddp_plan_curve(&x.p, DDP_COST_DEFAULT, 0, curve, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "a curve up to period 0 is empty"));
    assert_true(curve[0] == 7);

    assert_int_equal(ddp_plan_new(3, 2, &plan, &err), DDP_OK);
    assert_int_equal(ddp_plan_new(2, 2, &other, &err), DDP_OK);
    assert_int_equal(ddp_plan_evaluate(&x.p, DDP_COST_SUM, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the plan has 0 layers, the profile 3"));
    assert_int_equal(ddp_plan_evaluate(&x.p, DDP_COST_SUM, &other, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the plan has 2 layers, the profile 3"));
    steps = plan.step_of;
    plan.step_of = NULL;
    assert_int_equal(ddp_plan_evaluate(&x.p, DDP_COST_SUM, &plan, &err), DDP_ARG);
    plan.step_of = steps;
    plan.step_of[1] = 2;
    assert_int_equal(ddp_plan_evaluate(&x.p, DDP_COST_SUM, &plan, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "layer 1 is in step 2; the steps of the plan are 0 to 1"));
    plan.step_of[1] = -1;
    assert_int_equal(ddp_plan_evaluate(&x.p, DDP_COST_SUM, &plan, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "layer 1 is in step -1"));
    plan.step_of[1] = 1;
    memcpy(&o.cost, &nine, sizeof o.cost);
    assert_int_equal(ddp_plan_evaluate(&x.p, o.cost, &plan, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "cost 9 is unknown"));
    ddp_plan_free(&plan);
    ddp_plan_free(&other);
    ddp_plan_free(NULL);

    assert_int_equal(ddp_fill_named("eq12", &fill, &err), DDP_OK);
    assert_int_equal(fill, DDP_FILL_EQ12);
    assert_string_equal(ddp_fill_name(DDP_FILL_EXACT), "exact");
    assert_int_equal(ddp_fill_named("full", &fill, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "filling 'full' is unknown"));
}

static void forward_times_may_be_unknown(void **state)
{
    ddp_rng r = ddp_rng_seed(17, 0);

    (void)state;
    for (int n = 0; n < 200; n++) { /* as with forward times of 0 */
        instance x;
        ddp_plan a, b;
        instance_random(&x, &r, 8, n % 4, n % 2);
        memset(x.f, 0, sizeof x.f);
        a = solve(&x.p, DDP_SOLVER_BRUTE, DDP_COST_WINDOW, 3, DDP_FILL_NONE);
        x.p.forward_s = NULL;
        b = solve(&x.p, DDP_SOLVER_BRUTE, DDP_COST_WINDOW, 3, DDP_FILL_NONE);
        assert_true(a.objective_s == b.objective_s);
        ddp_plan_free(&b);
        b = solve(&x.p, DDP_SOLVER_OPTIMAL, DDP_COST_WINDOW, 3, DDP_FILL_NONE);
        close_to(a.objective_s, b.objective_s);
        close_to(b.objective_s, simulate(&x.p, &b, 0));
        ddp_plan_free(&a);
        ddp_plan_free(&b);
    }
}

static void extreme_shapes_are_planned(void **state)
{
    instance x;
    ddp_plan a;
    int k, s;
    static const ddp_solver solvers[5] = {DDP_SOLVER_OPTIMAL, DDP_SOLVER_DFS, DDP_SOLVER_ENP,
                                          DDP_SOLVER_BRUTE, DDP_SOLVER_SCATTER};

    (void)state;
    instance_init(&x, 1);
    for (k = 0; k < 3; k++)
        for (s = 0; s < 5; s++) { /* one layer, all zero. Then one that sends, over many steps. */
            x.c[0] = 0;
            a = solve(&x.p, solvers[s], all_costs[k], 1, DDP_FILL_EXACT);
            close_to(a.objective_s, 0);
            ddp_plan_free(&a);
            x.c[0] = 2;
            a = solve(&x.p, solvers[s], all_costs[k], 1000, DDP_FILL_EXACT);
            close_to(a.objective_s, 2);
            ddp_plan_free(&a);
        }
}

/* 20 layers in 8 steps have 888,030 partitions. A planner without time tries only some of them. */
static void a_planner_without_time_returns_its_best_plan(void **state)
{
    static const ddp_solver solvers[2] = {DDP_SOLVER_BRUTE, DDP_SOLVER_SCATTER};
    static double b[20], c[20];
    ddp_rng r = ddp_rng_seed(16, 0);
    ddp_plan_options o;
    ddp_profile p;
    ddp_plan best;

    (void)state;
    for (int l = 0; l < 20; l++) {
        b[l] = ddp_rng_uniform(&r);
        c[l] = 6 * ddp_rng_uniform(&r);
    }
    memset(&p, 0, sizeof p);
    memset(&o, 0, sizeof o);
    p.layers = 20;
    p.backward_s = b;
    p.comm_s = c;
    o.period = 8;
    o.time_limit_s = 1e-9;
    best = solve(&p, DDP_SOLVER_OPTIMAL, DDP_COST_TIMELINE, 8, DDP_FILL_NONE);
    for (int k = 0; k < 2; k++) {
        ddp_plan late, whole = solve(&p, solvers[k], DDP_COST_TIMELINE, 8, DDP_FILL_NONE);
        double began = ddp_now();
        o.cost = DDP_COST_TIMELINE;
        o.solver = solvers[k];
        assert_int_equal(ddp_plan_partial(&p, &o, &late, NULL), DDP_OK);
        assert_true(ddp_now() - began < 60); /* the limit is 1 ns. The rest is for a busy machine. */
        close_to(late.objective_s, simulate(&p, &late, 0));
        if (!k) { /* contiguous: the output side's sets come first, and may be the optimum */
            assert_true(late.objective_s >= best.objective_s - 1e-11);
            close_to(whole.objective_s, best.objective_s);
            for (int l = 1; l < 20; l++) assert_true(late.step_of[l] <= late.step_of[l - 1]);
        } else { /* starts with the optimum of contiguous sets, and has no time for more */
            assert_true(whole.objective_s < best.objective_s - 1e-9);
            close_to(late.objective_s, best.objective_s);
        }
        ddp_plan_free(&late);
        ddp_plan_free(&whole);
    }
    ddp_plan_free(&best);
}

/* Nearly all of the 67 sets of these layers end at one of two times. */
static void problems_too_large_for_a_solver_are_an_error(void **state)
{
    static double ones[10001], fifty[200];
    ddp_plan_options o;
    ddp_profile p;
    ddp_plan plan;
    ddp_error err;

    (void)state;
    memset(&p, 0, sizeof p);
    memset(&o, 0, sizeof o);
    for (int l = 0; l < 10001; l++) ones[l] = 1;
    for (int l = 0; l < 200; l++) fifty[l] = 50;
    p.layers = 200;
    p.backward_s = ones;
    p.comm_s = fifty;
    o.solver = DDP_SOLVER_DFS;
    o.cost = DDP_COST_TIMELINE;
    o.period = 70;
    assert_int_equal(ddp_plan_partial(&p, &o, &plan, &err), DDP_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "more than 4000000 solutions for 200 layers and period 70"));
    p.layers = 10001;
    p.comm_s = ones;
    o.period = 10001;
    assert_int_equal(ddp_plan_partial(&p, &o, &plan, &err), DDP_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "10001 is too deep; use solver optimal"));
    p.layers = 2001;
    o.period = 1;
    o.solver = DDP_SOLVER_BRUTE;
    assert_int_equal(ddp_plan_partial(&p, &o, &plan, &err), DDP_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "brute force over 2001 layers and period 1 is too much"));
}

/* Section 5 of the DreamDDP notes: exposed communication in units of period x backward. */
static void measured_profiles_reach_the_published_figures(void **state)
{
    static const struct {
        const char *name;
        int period;
        double optimal, scatter;
    } want[] = {{"a6000_gpt2", 10, .8465, .682},
                {"a6000_llama2-175m", 10, 1.0396, .929},
                {"a6000_resnet18-cifar10", 10, 1.4367, 1.379},
                {"a6000_resnet50-cifar100", 10, .4576, .360},
                {"h100_gpt2", 10, .6692, .525},
                {"a800_llama2-175m", 5, .2306, .103},
                {"ae_gpt2_16w_1gbit", 10, 5.7431, 5.732}};
    const char *data = getenv("DDP_DATA");
    size_t i;
    int seen = 0, l, h;

    (void)state;
    for (i = 0; i < sizeof want / sizeof want[0]; i++) {
        char path[4096];
        ddp_profile p;
        ddp_error err;
        double unit = 0;
        snprintf(path, sizeof path, "%s/profiles/%s.csv", data ? data : "data", want[i].name);
        if (access(path, R_OK)) continue;
        seen++;
        if (ddp_profile_read(path, NULL, &p, &err) != DDP_OK) fail_msg("%s", err.msg);
        for (l = 0; l < p.layers; l++) unit += want[i].period * p.backward_s[l];
        for (h = 5; h <= 10; h += 5) {
            ddp_plan o = solve(&p, DDP_SOLVER_OPTIMAL, DDP_COST_TIMELINE, h, DDP_FILL_NONE);
            ddp_plan d = solve(&p, DDP_SOLVER_DFS, DDP_COST_TIMELINE, h, DDP_FILL_NONE);
            ddp_plan e = solve(&p, DDP_SOLVER_ENP, DDP_COST_TIMELINE, h, DDP_FILL_NONE);
            close_to(o.objective_s, simulate(&p, &o, 0));
            assert_true(o.objective_s <= d.objective_s + 1e-12);
            assert_true(o.objective_s <= e.objective_s + 1e-12);
            if (h == want[i].period) {
                ddp_plan s = solve(&p, DDP_SOLVER_SCATTER, DDP_COST_TIMELINE, h, DDP_FILL_EXACT);
                assert_true(fabs(o.exposed_s / unit - want[i].optimal) < 1e-3);
                assert_true(s.exposed_s / unit <= want[i].scatter + 5e-4); /* printed with 3 digits */
                close_to(s.objective_s, simulate(&p, &s, 1));
                print_message("%-24s H=%-2d enp %.4f optimal %.4f scatter %.4f bound %.4f\n", want[i].name, h,
                              e.exposed_s / unit, o.exposed_s / unit, s.exposed_s / unit,
                              (s.lower_bound_s - s.objective_s + s.exposed_s) / unit);
                ddp_plan_free(&s);
            }
            ddp_plan_free(&o);
            ddp_plan_free(&d);
            ddp_plan_free(&e);
        }
        ddp_profile_free(&p);
    }
    if (!seen) SKIP("no profiles under $DDP_DATA");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_queue_behind_each_other),
        cmocka_unit_test(the_window_uses_the_next_forward),
        cmocka_unit_test(closed_forms_equal_the_simulation),
        cmocka_unit_test(optimal_equals_brute_force),
        cmocka_unit_test(algorithm_2_is_exact_on_the_timeline),
        cmocka_unit_test(search_and_programme_agree_on_large_instances),
        cmocka_unit_test(the_curve_falls_with_the_period),
        cmocka_unit_test(scatter_finds_the_optimum_of_small_instances),
        cmocka_unit_test(plans_repeat_bit_for_bit),
        cmocka_unit_test(equal_number_counts_layers_with_parameters),
        cmocka_unit_test(filling_is_free_and_longest),
        cmocka_unit_test(bubbles_are_filled_by_hand),
        cmocka_unit_test(the_bound_knows_that_a_layer_is_not_split),
        cmocka_unit_test(bad_input_is_named),
        cmocka_unit_test(plans_of_another_model_are_an_error),
        cmocka_unit_test(forward_times_may_be_unknown),
        cmocka_unit_test(extreme_shapes_are_planned),
        cmocka_unit_test(a_planner_without_time_returns_its_best_plan),
        cmocka_unit_test(problems_too_large_for_a_solver_are_an_error),
        cmocka_unit_test(measured_profiles_reach_the_published_figures),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
