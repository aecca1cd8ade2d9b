/* The choice of a strategy and its predictions: against the planners, sums by hand and all candidates. */
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

enum { LAYERS = 6 };

/* A profile that contains its arrays. */
typedef struct model {
    ddp_profile p;
    double params[LAYERS], f[LAYERS], b[LAYERS], c[LAYERS];
} model;

/* layers of 64000 to 384000 parameters. A step computes for 21 x 30 ms */
static void model_init(model *x)
{
    memset(x, 0, sizeof *x);
    x->p.layers = LAYERS;
    x->p.params = x->params;
    x->p.forward_s = x->f;
    x->p.backward_s = x->b;
    x->p.comm_s = x->c;
    for (int l = 0; l < LAYERS; l++) {
        x->params[l] = 64000.0 * (l + 1);
        x->f[l] = 0.01 * (l + 1);
        x->b[l] = 0.02 * (l + 1);
    }
}

static int is_near(double x, double y) { return fabs(x - y) <= 1e-9 * (1 + fabs(y)); }

static ddp_candidate candidate(const char *strategy, int stream, int period, ddp_coding coding)
{
    ddp_candidate c;

    c.strategy = strategy;
    c.stream = stream;
    c.period = period;
    c.coding = coding;
    return c;
}

/* The averages of all layers take comm_s, with a latency of alpha_s. */
static ddp_prediction predicted(model *x, double comm_s, double alpha_s, ddp_candidate c)
{
    ddp_prediction out;
    ddp_error err;

    for (int l = 0; l < LAYERS; l++) x->c[l] = comm_s * (l + 1) / 21;
    x->p.alpha_s = alpha_s;
    memset(&out, 0, sizeof out);
    if (ddp_predict_step(&x->p, 4, &c, &out, &err) != DDP_OK) fail_msg("%s", err.msg);
    return out;
}

/* ---- predictions ---- */

static void a_step_is_its_compute_and_the_exposed_transfers(void **state)
{
    const double bytes = 4 * 21 * 64000.0;
    ddp_prediction r;
    model x;

    (void)state;
    model_init(&x);
    r = predicted(&x, 2.1, 0.1, candidate("ssgd", 0, 0, DDP_AS_FLOAT));
    assert_true(is_near(r.compute_s, 0.63) && is_near(r.step_s, 0.63 + 2.1 + 0.1));
    assert_true(is_near(r.sent_bytes, 1.5 * bytes)); /* 2 x 3/4 of the model */
    r = predicted(&x, 2.1, 0.1, candidate("localsgd", 0, 5, DDP_AS_FLOAT));
    assert_true(is_near(r.step_s, 0.63 + 2.2 / 5) && is_near(r.sent_bytes, 1.5 * bytes / 5));
    /* the list of trained layers takes one more delay, half of alpha */
    r = predicted(&x, 2.1, 0.1, candidate("diloco", 0, 5, DDP_AS_FLOAT));
    assert_true(is_near(r.step_s, 0.63 + 2.25 / 5));
    /* 0.63 s overlap 2.1 / 5, but not 5 */
    r = predicted(&x, 2.1, 0.1, candidate("diloco", 1, 5, DDP_AS_FLOAT));
    assert_true(is_near(r.step_s, 0.63));
    r = predicted(&x, 5, 0.1, candidate("diloco", 1, 5, DDP_AS_FLOAT));
    assert_true(is_near(r.step_s, 1));
    /* two delays within a period of 2 steps */
    r = predicted(&x, 0.1, 4, candidate("diloco", 1, 2, DDP_AS_FLOAT));
    assert_true(is_near(r.step_s, 4));
}

static void partial_averaging_has_the_exposed_time_of_its_plan(void **state)
{
    ddp_plan_options o;
    ddp_prediction r;
    ddp_plan plan;
    ddp_error err;
    model x;

    (void)state;
    model_init(&x);
    r = predicted(&x, 4, 0.05, candidate("dreamddp", 0, 3, DDP_AS_FLOAT));
    memset(&o, 0, sizeof o);
    o.period = 3;
    assert_int_equal(ddp_plan_partial(&x.p, &o, &plan, &err), DDP_OK);
    assert_true(plan.exposed_s > 0 && is_near(r.step_s, 0.63 + plan.exposed_s / 3));
    ddp_plan_free(&plan);
}

static void a_format_shortens_transfers_by_its_payload(void **state)
{
    ddp_prediction r;
    model x;

    (void)state;
    model_init(&x);
    /* 4 bits per value and a float per 64 values: 4.5 of 32 bits */
    r = predicted(&x, 2.1, 0, candidate("localsgd", 0, 5, DDP_AS_INT4));
    assert_true(is_near(r.step_s, 0.63 + 2.1 * 4.5 / 32 / 5));
    assert_true(is_near(r.sent_bytes, 1.5 * 4 * 21 * 64000.0 * 4.5 / 32 / 5));
    r = predicted(&x, 2.1, 0, candidate("localsgd", 0, 5, DDP_AS_BFLOAT));
    assert_true(is_near(r.step_s, 0.63 + 2.1 / 2 / 5));
    /* 64 of 4096 values with 14 bits each, and a scale; every worker sends them to all others */
    r = predicted(&x, 2.1, 0, candidate("sparseloco", 0, 5, DDP_AS_FLOAT));
    assert_true(fabs(r.sent_bytes / (3 * 21 * 64000.0 / 4096 * 116 / 5) - 1) < 0.01);
    assert_true(fabs((r.step_s - 0.63) / (2.1 * 2 * 116 / (4 * 4096.0) / 5) - 1) < 0.01);
}

static void a_prediction_that_is_impossible_is_an_error(void **state)
{
    static const struct {
        ddp_candidate c;
        const char *why;
    } bad[] = {
        {{"dreamdp", 0, 5, DDP_AS_FLOAT}, "strategy 'dreamdp' has no prediction; use the name of a built-in"},
        {{NULL, 0, 5, DDP_AS_FLOAT}, "strategy '' has no prediction"},
        {{"dreamddp", 0, 0, DDP_AS_FLOAT}, "period 0 of dreamddp: use 1 to 1000000 steps"},
        {{"wfbp", 0, 5, DDP_AS_FLOAT}, "period 5 of wfbp: use 0, because the strategy has no period"},
        {{"wfbp", 0, 0, DDP_AS_BFLOAT}, "wfbp with format 1 is not bit-identical to ssgd; use DDP_AS_FLOAT"},
        {{"diloco", 0, 5, DDP__AS_BYTES}, "format 5 of diloco: use a constant from DDP_AS_FLOAT"},
        {{"dreamddp", 1, 5, DDP_AS_FLOAT}, "dreamddp cannot stream; only diloco can"},
    };
    ddp_candidate good = candidate("ssgd", 0, 0, DDP_AS_FLOAT);
    ddp_prediction out;
    ddp_error err;
    model x;

    (void)state;
    model_init(&x);
    memset(&out, 0, sizeof out);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(ddp_predict_step(&x.p, 4, &bad[i].c, &out, &err), DDP_ARG);
        if (!strstr(err.msg, bad[i].why)) fail_msg("%s", err.msg);
    }
    assert_int_equal(ddp_predict_step(&x.p, 1, &good, &out, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "a prediction for 1 workers is impossible"));
    assert_int_equal(ddp_predict_step(&x.p, 4, NULL, &out, &err), DDP_ARG);
    x.p.params = NULL;
    assert_int_equal(ddp_predict_step(&x.p, 4, &good, &out, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the profile has no params"));
    model_init(&x);
    memset(x.params, 0, sizeof x.params);
    assert_int_equal(ddp_predict_step(&x.p, 4, &good, &out, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "0 bytes of parameters"));
    assert_true(out.step_s <= 0);
}

/* ---- the choice ---- */

static ddp_choice_options options_of(const model *x, double mbit)
{
    ddp_choice_options o;

    memset(&o, 0, sizeof o);
    o.profile = &x->p;
    o.workers = 4;
    o.rate = mbit * 125e3;
    o.delay_s = 2e-3;
    o.steps = 400;
    return o;
}

static ddp_choice chosen(const ddp_choice_options *o)
{
    ddp_choice c;
    ddp_error err;

    if (ddp_choose(o, &c, &err) != DDP_OK) fail_msg("%s", err.msg);
    return c;
}

static int is_exact(const ddp_choice_row *r) { return !strcmp(r->candidate.strategy, "wfbp"); }

/* The index of the default candidate that the rules name, from its own prediction and fit. */
static int by_hand(const ddp_choice_options *o, const ddp_profile *p)
{
    const double budget = o->loss_budget < 0 ? 0 : o->loss_budget > 0 ? o->loss_budget : 0.05;
    double least = DBL_MAX, exact = DBL_MAX;
    ddp_loss_fit f;
    ddp_error err;
    int best = -1, first = -1, n;
    const ddp_candidate *c = ddp_choice_candidates(&n);

    assert_int_equal(ddp_loss_fit_new(NULL, &f, &err), DDP_OK);
    for (int i = 0; i < n; i++) {
        double penalty, steps, seconds;
        ddp_prediction r;
        if (ddp_loss_penalty(&f, &c[i], o->workers, o->steps, &penalty, &err) != DDP_OK || penalty > budget)
            continue;
        assert_int_equal(ddp_loss_steps(&f, &c[i], o->workers, o->steps, &steps, &err), DDP_OK);
        assert_int_equal(ddp_predict_step(p, o->workers, &c[i], &r, &err), DDP_OK);
        seconds = steps * r.step_s;
        if (!strcmp(c[i].strategy, "wfbp") && seconds < exact) {
            exact = seconds;
            first = i;
        }
        if (seconds < least) {
            least = seconds;
            best = i;
        }
    }
    ddp_loss_fit_free(&f);
    return least > 0.95 * exact ? first : best;
}

static void the_choice_is_the_best_of_all_candidates(void **state)
{
    static const double budgets[] = {DDP_LOSS_EXACT, 0, 0.08, 0.3, 1};
    uint64_t random = 9;
    int n, inexact = 0;
    const ddp_candidate *list = ddp_choice_candidates(&n);
    model x;

    (void)state;
    for (int round = 0; round < 40; round++) {
        ddp_profile p;
        ddp_choice_options o;
        ddp_choice c;
        ddp_link link;
        int expected;
        model_init(&x);
        for (int l = 0; l < LAYERS; l++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            x.params[l] = 1000.0 * (double)(1 + (random >> 33) % 900);
            x.b[l] = 1e-3 * (double)(1 + (random >> 40) % 50);
            x.f[l] = x.b[l] / 2;
        }
        o = options_of(&x, pow(10, (double)(random >> 50 & 7) / 2));
        o.loss_budget = budgets[round % 5];
        o.steps = 300.0 * (1 + round % 7);
        c = chosen(&o);
        p = x.p;
        link = ddp_link_average(o.rate, o.delay_s, o.workers);
        for (int l = 0; l < LAYERS; l++) x.c[l] = link.beta_s * 4 * x.params[l];
        p.alpha_s = link.alpha_s;
        expected = by_hand(&o, &p);
        assert_true(expected >= 0);
        assert_string_equal(c.row[c.chosen].candidate.strategy, list[expected].strategy);
        assert_int_equal(c.row[c.chosen].candidate.period, list[expected].period);
        assert_int_equal(c.row[c.chosen].candidate.stream, list[expected].stream);
        assert_int_equal(c.row[c.chosen].candidate.coding, list[expected].coding);
        inexact += !is_exact(&c.row[c.chosen]);
        ddp_choice_free(&c);
    }
    assert_true(inexact > 5 && inexact < 35);
}

static void a_tighter_budget_never_chooses_a_larger_penalty(void **state)
{
    model x;

    (void)state;
    model_init(&x);
    for (double mbit = 1; mbit < 1000; mbit *= 3) {
        double before = -1;
        for (int budget = -1; budget <= 20; budget++) {
            ddp_choice_options o = options_of(&x, mbit);
            ddp_choice c;
            o.loss_budget = budget < 0 ? DDP_LOSS_EXACT : 0.005 + 0.015 * budget;
            c = chosen(&o);
            assert_true(c.row[c.chosen].penalty <= (budget < 0 ? 0 : o.loss_budget));
            assert_true(c.row[c.chosen].penalty >= before);
            before = c.row[c.chosen].penalty;
            ddp_choice_free(&c);
        }
    }
}

static void a_slower_link_never_returns_to_exact_gradients(void **state)
{
    int averaged = 0, exact = 0;
    model x;

    (void)state;
    model_init(&x);
    for (double mbit = 2000; mbit > 0.1; mbit /= 1.3) {
        ddp_choice_options o = options_of(&x, mbit);
        ddp_choice c = chosen(&o);
        const ddp_choice_row *r = &c.row[c.chosen];
        if (is_exact(r)) {
            exact++;
            assert_int_equal(averaged, 0);
        } else {
            averaged++;
            for (int i = 0; i < c.count; i++)
                if (is_exact(&c.row[i])) assert_true(r->seconds <= 0.95 * c.row[i].seconds);
        }
        assert_true(c.ssgd_s > 0);
        ddp_choice_free(&c);
    }
    assert_true(averaged > 5 && exact > 5);
}

static void a_gain_below_5_percent_keeps_the_exact_strategy(void **state)
{
    const ddp_candidate list[] = {candidate("wfbp", 0, 0, DDP_AS_FLOAT),
                                  candidate("dreamddp", 0, 5, DDP_AS_FLOAT)};
    /* dreamddp costs almost no loss: only the step is shorter */
    const ddp_loss_point point[] = {{"ssgd", 0, 0, 4, DDP_AS_FLOAT, 400, 2},
                                    {"ssgd", 0, 0, 4, DDP_AS_FLOAT, 4000, 1},
                                    {"dreamddp", 0, 5, 4, DDP_AS_FLOAT, 400, 2}};
    const ddp_loss_table losses = {3, point};
    int kept = 0, changed = 0;
    model x;

    (void)state;
    model_init(&x);
    for (double gap = 0.001; gap < 0.1; gap *= 1.2) {
        ddp_choice_options o = options_of(&x, 0);
        ddp_choice c;
        double wfbp = 0, dreamddp = 0;
        memset(x.c, 0, sizeof x.c);
        x.c[0] = gap; /* the first layer's gradient is the last one: wfbp waits for it */
        o.losses = &losses;
        o.candidate = list;
        o.candidates = 2;
        c = chosen(&o);
        assert_int_equal(c.count, 2);
        for (int i = 0; i < 2; i++) *(is_exact(&c.row[i]) ? &wfbp : &dreamddp) = c.row[i].seconds;
        assert_int_equal(!is_exact(&c.row[c.chosen]), dreamddp <= 0.95 * wfbp);
        kept += dreamddp < wfbp && dreamddp > 0.95 * wfbp;
        changed += dreamddp <= 0.95 * wfbp;
        ddp_choice_free(&c);
    }
    assert_true(kept > 3 && changed > 3);
}

static void an_exact_budget_allows_only_exact_strategies(void **state)
{
    ddp_choice_options o;
    ddp_choice c;
    ddp_error err;
    model x;

    (void)state;
    model_init(&x);
    o = options_of(&x, 0.5);
    o.loss_budget = DDP_LOSS_EXACT;
    c = chosen(&o);
    assert_true(is_exact(&c.row[c.chosen]) && c.runner_up == -1 && c.chosen == 0);
    for (int i = 0; i < c.count; i++) assert_int_equal(c.row[i].allowed, is_exact(&c.row[i]));
    assert_non_null(strstr(c.reason, "the least of the strategies that are bit-identical to ssgd"));
    ddp_choice_free(&c);
    o.candidate = ddp_choice_candidates(&o.candidates) + 1;
    o.candidates = 5;
    memset(&c, 0, sizeof c);
    assert_int_equal(ddp_choose(&o, &c, &err), DDP_UNSUPPORTED);
    assert_string_equal(
        err.msg, "none of 5 candidates has a predicted loss increase of at most 0 % and reaches the loss "
                 "of ssgd; add wfbp to them, or raise the loss budget");
    assert_true(!c.row);
}

static void a_candidate_that_never_reaches_the_loss_is_not_chosen(void **state)
{
    const ddp_candidate list[] = {candidate("dreamddp", 0, 5, DDP_AS_FLOAT),
                                  candidate("wfbp", 0, 0, DDP_AS_FLOAT)};
    /* the loss of ssgd falls by 0.1 % only */
    const ddp_loss_point point[] = {{"ssgd", 0, 0, 4, DDP_AS_FLOAT, 400, 2},
                                    {"ssgd", 0, 0, 4, DDP_AS_FLOAT, 4000, 1.998},
                                    {"dreamddp", 0, 5, 4, DDP_AS_FLOAT, 400, 2.06}};
    const ddp_loss_table losses = {3, point};
    ddp_choice_options o;
    ddp_choice c;
    ddp_error err;
    model x;

    (void)state;
    model_init(&x);
    o = options_of(&x, 1);
    o.losses = &losses;
    o.candidate = list;
    o.candidates = 2;
    c = chosen(&o);
    assert_true(is_exact(&c.row[c.chosen]) && c.row[1].seconds >= DBL_MAX && c.runner_up == -1);
    ddp_choice_free(&c);
    o.candidates = 1;
    assert_int_equal(ddp_choose(&o, &c, &err), DDP_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "none of 1 candidates has a predicted loss increase of at most 5 %"));
}

static void rows_are_ranked_and_the_reason_has_the_figures(void **state)
{
    ddp_choice_options o;
    ddp_choice c;
    char text[64], options[64];
    model x;

    (void)state;
    model_init(&x);
    o = options_of(&x, 2);
    o.loss_budget = 0.3;
    c = chosen(&o);
    for (int i = 0; i + 1 < c.count; i++)
        assert_true(c.row[i].allowed > c.row[i + 1].allowed ||
                    (c.row[i].allowed == c.row[i + 1].allowed && c.row[i].seconds <= c.row[i + 1].seconds));
    assert_true(!is_exact(&c.row[c.chosen]) && c.runner_up >= 0);
    assert_string_not_equal(c.row[c.runner_up].candidate.strategy, c.row[c.chosen].candidate.strategy);
    (void)ddp_candidate_options(&c.row[c.chosen].candidate, options, sizeof options);
    snprintf(text, sizeof text, "%s %.40s reaches", c.row[c.chosen].candidate.strategy, options);
    if (strncmp(c.reason, text, strlen(text))) fail_msg("%s", c.reason);
    snprintf(text, sizeof text, "%.4g s; ssgd: %.4g s", c.row[c.runner_up].seconds, c.ssgd_s);
    if (!strstr(c.reason, text)) fail_msg("%s", c.reason);
    ddp_choice_free(&c);
    o = options_of(&x, 1e5);
    c = chosen(&o);
    assert_non_null(
        strstr(c.reason, "no strategy within the loss budget of 5 % reaches its loss at least 5 % sooner"));
    ddp_choice_free(&c);
    ddp_choice_free(NULL);
}

static void a_period_replaces_those_of_the_candidates(void **state)
{
    ddp_choice_options o;
    ddp_choice c;
    int n = 0;
    model x;

    (void)state;
    model_init(&x);
    o = options_of(&x, 2);
    o.period = 7;
    c = chosen(&o);
    for (int i = 0; i < c.count; i++) {
        assert_true(c.row[i].candidate.period == 7 || c.row[i].candidate.period == 0);
        n += !strcmp(c.row[i].candidate.strategy, "dreamddp");
    }
    assert_int_equal(n, 3); /* once in each number format */
    ddp_choice_free(&c);
}

static void measured_transfers_and_a_link_give_the_same_choice(void **state)
{
    ddp_choice_options o;
    ddp_choice a, b;
    ddp_link link;
    model x;

    (void)state;
    model_init(&x);
    o = options_of(&x, 5);
    a = chosen(&o);
    link = ddp_link_average(o.rate, o.delay_s, 4);
    for (int l = 0; l < LAYERS; l++) x.c[l] = link.beta_s * 4 * x.params[l];
    x.p.alpha_s = link.alpha_s;
    o.rate = 0;
    b = chosen(&o);
    assert_string_equal(a.reason, b.reason);
    ddp_choice_free(&a);
    ddp_choice_free(&b);
}

static void options_are_those_of_the_trainers(void **state)
{
    static const struct {
        ddp_candidate c;
        const char *text;
    } wanted[] = {
        {{"wfbp", 0, 0, DDP_AS_FLOAT}, ""},
        {{"dreamddp", 0, 5, DDP_AS_FLOAT}, "--period 5"},
        {{"dreamddp", 0, 5, DDP_AS_BFLOAT}, "--wire bf16 --period 5"},
        {{"diloco", 1, 50, DDP_AS_FLOAT}, "--overlap stream --period 50"},
        {{"diloco", 1, 50, DDP_AS_INT4}, "--overlap stream --wire int4 --period 50"},
    };
    char out[64], small[8];

    (void)state;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        assert_int_equal(ddp_candidate_options(&wanted[i].c, out, sizeof out), strlen(wanted[i].text));
        assert_string_equal(out, wanted[i].text);
    }
    assert_int_equal(ddp_candidate_options(&wanted[4].c, small, sizeof small), strlen(wanted[4].text));
    assert_string_equal(small, "--overl");
}

static void an_option_out_of_range_is_an_error(void **state)
{
    ddp_choice_options o;
    ddp_choice c;
    ddp_error err;
    model x;

    (void)state;
    model_init(&x);
    memset(&c, 0, sizeof c);
#define REFUSES(member, value, why)                                       \
    do {                                                                  \
        o = options_of(&x, 10);                                           \
        o.member = value;                                                 \
        err.msg[0] = 0;                                                   \
        assert_int_equal(ddp_choose(&o, &c, &err), DDP_ARG);              \
        if (!strstr(err.msg, why)) fail_msg("%s, but: %s", why, err.msg); \
    } while (0)
    REFUSES(workers, 1, "a choice for 1 workers is impossible");
    REFUSES(profile, NULL, "the profile has 0 layers");
    REFUSES(rate, -1, "a link of -1 bytes/s with a delay of 0.002 s is impossible");
    REFUSES(delay_s, -1, "a delay of -1 s is impossible");
    REFUSES(period, -1, "period -1: use 1 to 1000000 steps");
    REFUSES(steps, -1, "-1 steps: use 1 to 1e12, or 0 for 1000");
    REFUSES(loss_budget, -0.5, "a loss budget of -0.5 is impossible; use 0 to 1, or DDP_LOSS_EXACT");
    REFUSES(loss_budget, 1.5, "a loss budget of 1.5 is impossible");
    REFUSES(candidates, 3, "the list of 3 candidates is NULL");
    assert_int_equal(ddp_choose(NULL, &c, &err), DDP_ARG);
    assert_int_equal(ddp_choose(&o, NULL, &err), DDP_ARG);
    assert_true(!c.row && !c.count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_its_compute_and_the_exposed_transfers),
        cmocka_unit_test(partial_averaging_has_the_exposed_time_of_its_plan),
        cmocka_unit_test(a_format_shortens_transfers_by_its_payload),
        cmocka_unit_test(a_prediction_that_is_impossible_is_an_error),
        cmocka_unit_test(the_choice_is_the_best_of_all_candidates),
        cmocka_unit_test(a_tighter_budget_never_chooses_a_larger_penalty),
        cmocka_unit_test(a_slower_link_never_returns_to_exact_gradients),
        cmocka_unit_test(a_gain_below_5_percent_keeps_the_exact_strategy),
        cmocka_unit_test(an_exact_budget_allows_only_exact_strategies),
        cmocka_unit_test(a_candidate_that_never_reaches_the_loss_is_not_chosen),
        cmocka_unit_test(rows_are_ranked_and_the_reason_has_the_figures),
        cmocka_unit_test(a_period_replaces_those_of_the_candidates),
        cmocka_unit_test(measured_transfers_and_a_link_give_the_same_choice),
        cmocka_unit_test(options_are_those_of_the_trainers),
        cmocka_unit_test(an_option_out_of_range_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
