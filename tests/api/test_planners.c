/* [pure] Planners and compressors of a program that only uses the header: one call of each has a result
 * that can be checked by hand, and one call fails. */
#include "dreamddp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

static ddp_error err;

#define OK(call)                                                                 \
    do {                                                                         \
        if ((call) != DDP_OK) fail_msg("%s: %d '%s'", #call, err.code, err.msg); \
    } while (0)
/* The call fails with this status and a message of one line. */
#define REFUSED(status, call)                                                                           \
    do {                                                                                                \
        memset(&err, 0, sizeof err);                                                                    \
        if ((call) != (status) || err.code != (status) || strlen(err.msg) < 8 || strchr(err.msg, '\n')) \
            fail_msg("%s: %d '%s'", #call, err.code, err.msg);                                          \
    } while (0)

/* Four layers that compute for one second forward and one second backward, with the given transfer times. */
static ddp_profile profile(const double *comm)
{
    ddp_profile p;
    int l;

    OK(ddp_profile_new(4, &p, &err));
    for (l = 0; l < 4; l++) {
        p.params[l] = 1000;
        p.forward_s[l] = p.backward_s[l] = 1;
        p.comm_s[l] = comm[l];
    }
    return p;
}

static void partial_averaging(void **state)
{
    const double comm[] = {1, 1, 1, 1};
    ddp_profile p = profile(comm);
    ddp_plan_options o;
    ddp_plan plan;
    ddp_solver solver;
    ddp_cost cost;
    double step_s, curve[3];
    int s;

    (void)state;
    memset(&o, 0, sizeof o);
    o.period = 2;
    for (s = DDP_SOLVER_OPTIMAL; s <= DDP_SOLVER_SCATTER; s++) {
        o.solver = (ddp_solver)s;
        o.cost = DDP_COST_TIMELINE;
        OK(ddp_plan_partial(&p, &o, &plan, &err));
        assert_int_equal(plan.layers, 4);
        assert_true(plan.objective_s >= plan.lower_bound_s && plan.exposed_s >= 0);
        OK(ddp_plan_evaluate(&p, DDP_COST_TIMELINE, &plan, &err));
        OK(ddp_plan_step_time(&p, plan.step_of, 0, DDP_COST_TIMELINE, &step_s, &err));
        assert_true(step_s >= 4 && ddp_plan_hash(&plan) != 0);
        ddp_plan_free(&plan);
        OK(ddp_solver_named(ddp_solver_name(o.solver), &solver, &err));
        assert_int_equal(solver, s);
    }
    OK(ddp_plan_curve(&p, DDP_COST_TIMELINE, 3, curve, &err));
    assert_true(curve[0] >= curve[2]);
    o.period = 0;
    REFUSED(DDP_ARG, ddp_plan_partial(&p, &o, &plan, &err));
    o.period = 2;
    REFUSED(DDP_ARG, ddp_plan_partial(NULL, &o, &plan, &err));
    p.comm_s[2] = NAN;
    REFUSED(DDP_ARG, ddp_plan_partial(&p, &o, &plan, &err));
    REFUSED(DDP_ARG, ddp_solver_named("best", &solver, &err));
    OK(ddp_cost_named(ddp_cost_name(DDP_COST_SUM), &cost, &err));
    assert_int_equal(cost, DDP_COST_SUM);
    ddp_profile_free(&p);
}

static void published_schemes(void **state)
{
    const double comm[] = {2, 2, 2, 2};
    ddp_profile p = profile(comm);
    ddp_timeline_options o;
    ddp_timeline t;
    ddp_scheme scheme;
    double ssgd = 0;
    int s;

    (void)state;
    memset(&o, 0, sizeof o);
    o.partition_s = 1;
    for (s = DDP_SCHEME_SSGD; s < DDP_SCHEME_DEFT; s++) {
        o.scheme = (ddp_scheme)s;
        OK(ddp_plan_timeline(&p, &o, &t, &err));
        if (s == DDP_SCHEME_SSGD) ssgd = t.iteration_s;
        assert_true(t.iteration_s <= ssgd && t.iteration_s >= t.lower_bound_s - 1e-9 && t.intervals > 0);
        OK(ddp_scheme_named(ddp_scheme_name(o.scheme), &scheme, &err));
        ddp_timeline_free(&t);
    }
    assert_true(ssgd == 4 + 4 + 8);
    o.scheme = DDP_SCHEME_DEFT;
    REFUSED(DDP_UNSUPPORTED, ddp_plan_timeline(&p, &o, &t, &err));
    REFUSED(DDP_ARG, ddp_plan_timeline(NULL, &o, &t, &err));
    ddp_profile_free(&p);
}

static void delayed_gradients(void **state)
{
    const double comm[] = {3, 3, 3, 3}, item[] = {3, 5, 6, 2};
    ddp_profile p = profile(comm);
    ddp_knapsack_problem k;
    ddp_delayed_options o;
    ddp_delayed_plan plan;
    ddp_preserver model;
    ddp_preserved judged;
    int assign[4], i;
    double value, sent = 0;

    (void)state;
    memset(&k, 0, sizeof k);
    k.items = 4;
    k.item_s = item;
    k.links = 1;
    k.deadline_s[0] = 8;
    OK(ddp_knapsack(&k, DDP_KNAPSACK_EXACT, assign, &value, &err));
    for (i = 0; i < 4; i++) sent += assign[i] == 0 ? item[i] : 0;
    assert_true(value == 8 && sent == 8);
    k.items = -1;
    REFUSED(DDP_ARG, ddp_knapsack(&k, DDP_KNAPSACK_EXACT, assign, &value, &err));

    memset(&o, 0, sizeof o);
    OK(ddp_plan_delayed(&p, &o, &plan, &err));
    assert_true(plan.iteration_s >= 8 && plan.update_frequency <= 1 && plan.updates > 0 && plan.sends > 0);
    memset(&model, 0, sizeof model);
    model.eta = 0.01;
    model.mu = 1;
    model.sigma = 1;
    model.batch = 32;
    model.start = 2;
    OK(ddp_preserver_test(&model, plan.k, plan.updates, &judged, &err));
    assert_true(judged.ratio > 0 && ddp_preserver_expect(&model, 2, 1) < 2);
    ddp_delayed_plan_free(&plan);
    OK(ddp_preserver_plan(&p, &o, &model, &plan, &judged, &err));
    ddp_delayed_plan_free(&plan);
    o.links = 3;
    REFUSED(DDP_ARG, ddp_plan_delayed(&p, &o, &plan, &err));
    model.eta = -1;
    assign[0] = 1;
    REFUSED(DDP_ARG, ddp_preserver_test(&model, assign, 1, &judged, &err));
    ddp_profile_free(&p);
}

static void important_layers_first(void **state)
{
    const float g[] = {1, -2, 3}, w[] = {1, 1, -1};
    const double importance[] = {5, 1, 3}, bytes[] = {100, 100, 100};
    unsigned char gib = 0;
    double out, most;

    (void)state;
    OK(ddp_osp_importance(g, w, 3, 0, &out, &err));
    assert_true(out == 6);
    OK(ddp_osp_rank(3, importance, bytes, 150, DDP_OSP_WALK, &gib, &out, &err));
    assert_true((gib & 7) == 5 && out == 100);
    OK(ddp_osp_umax(1e6, 0, 2, 4, 1e9, 0, &most, &err));
    assert_true(most == 5e5 && ddp_osp_budget(1, 2, most) == most / 2);
    REFUSED(DDP_ARG, ddp_osp_rank(3, importance, NULL, 1, DDP_OSP_WALK, &gib, &out, &err));
    REFUSED(DDP_ARG, ddp_osp_umax(1e6, 2, 2, 4, 1e9, 0, &most, &err));
}

/* Two pairs of devices with fast links inside and slow links between them. */
static ddp_network two_sites(void)
{
    ddp_network n;
    int i, j;

    OK(ddp_network_new(4, &n, &err));
    n.pipelines = n.stages = 2;
    n.dp_bytes = 1e8;
    n.pp_bytes = 1e6;
    n.speed = (double *)calloc(4, sizeof(double));
    assert_non_null(n.speed);
    for (i = 0; i < 4; i++)
        for (n.speed[i] = 1e12, j = 0; j < 4; j++)
            if (i != j) {
                n.rate[4 * i + j] = i / 2 == j / 2 ? 1e9 : 1e7;
                n.delay_s[4 * i + j] = 0.001;
            }
    return n;
}

static void placement(void **state)
{
    const double cost[] = {0, 1, 9, 1, 0, 1, 9, 1, 0};
    ddp_network net = two_sites();
    ddp_place_options o;
    ddp_placement best;
    double value, again, q;
    int order[4], community[4], communities;

    (void)state;
    OK(ddp_tour_open(3, cost, -1, -1, order, &value, &err));
    assert_true(value == 2 && order[1] == 1);
    OK(ddp_plan_ring(4, net.rate, net.delay_s, order, &value, &err));
    assert_true(value == 1e7);
    OK(ddp_louvain(4, net.rate, 1, community, &communities, &q, &err));
    assert_true(communities == 2 && community[0] == community[1] && community[2] == community[3]);
    OK(ddp_modularity(4, net.rate, 1, community, &again, &err));
    assert_true(fabs(q - again) < 1e-12);

    memset(&o, 0, sizeof o);
    /* the replicas of a stage average more data than a pipeline sends */
    OK(ddp_place(&net, &o, &best, &err));
    assert_true(best.assign[0] / 2 == best.assign[2] / 2 && best.assign[1] / 2 == best.assign[3] / 2);
    OK(ddp_place_cost(&net, 2, 2, best.assign, &value, NULL, NULL, &err));
    assert_true(fabs(value - best.cost_s) < 1e-9);
    ddp_placement_free(&best);
    net.pipelines = 3;
    REFUSED(DDP_ARG, ddp_place(&net, &o, &best, &err));
    net.pipelines = 2;
    net.rate[1] = -1;
    REFUSED(DDP_ARG, ddp_network_check(&net, &err));
    REFUSED(DDP_ARG, ddp_tour_open(3, cost, 1, 1, order, &value, &err));
    REFUSED(DDP_ARG, ddp_louvain(4, NULL, 1, community, NULL, NULL, &err));
    ddp_network_free(&net);
}

static void operators_over_devices(void **state)
{
    ddp_network net = two_sites();
    ddp_oplist list;
    ddp_workload_options work;
    ddp_workload w, smaller;
    ddp_fence_options o;
    ddp_fence_plan plan;
    ddp_adatopk_options rule;
    const int device_of[] = {0, 1, 2, 3};
    const double flops[] = {1e9, 2e9}, seconds[] = {0.002, 0.004};
    double lambda;
    int i;

    (void)state;
    OK(ddp_oplist_new(4, &list, &err));
    for (i = 0; i < 4; i++) {
        const int before = i - 1;
        OK(ddp_oplist_set(&list, i, "op", &before, i > 0, 1e9, 1e6, 1e3, &err));
    }
    OK(ddp_oplist_check(&list, &err));
    memset(&work, 0, sizeof work);
    OK(ddp_workload_estimate(&list, &net, device_of, &work, &w, &err));
    assert_true(w.devices == 4 && w.messages == 6 && fabs(w.compute_s[0] - 0.003) < 1e-12);
    memset(&rule, 0, sizeof rule);
    rule.ratio = 100;
    OK(ddp_workload_compress(&w, &net, &work, &rule, &smaller, &err));
    assert_true(smaller.latency_s < w.latency_s);
    memset(&o, 0, sizeof o);
    OK(ddp_fence(&list, &net, &o, &plan, &err));
    assert_true(plan.segments == 4 && plan.work.pipeline_s <= w.pipeline_s && plan.proven);
    OK(ddp_speed_fit(flops, seconds, 2, 1e12, &lambda, &err));
    assert_true(fabs(lambda - 0.5) < 1e-12);
    REFUSED(DDP_ARG, ddp_workload_estimate(&list, &net, NULL, &work, &w, &err));
    REFUSED(DDP_ARG, ddp_fence(NULL, &net, &o, &plan, &err));
    REFUSED(DDP_ARG, ddp_oplist_set(&list, 9, NULL, NULL, 0, 1, 1, 1, &err));
    ddp_fence_plan_free(&plan);
    ddp_workload_free(&smaller);
    ddp_workload_free(&w);
    ddp_oplist_free(&list);
    ddp_network_free(&net);
}

static void links_from_measurements(void **state)
{
    const double bytes[] = {1000, 2000, 4000}, seconds[] = {0.012, 0.014, 0.018};
    ddp_linkfit fit;
    ddp_link link, half;

    (void)state;
    OK(ddp_link_fit(bytes, seconds, 3, &link, &err));
    assert_true(fabs(link.alpha_s - 0.01) < 1e-9 && fabs(link.beta_s - 2e-6) < 1e-12);
    half.alpha_s = link.alpha_s / 2;
    half.beta_s = link.beta_s / 2;
    assert_true(fabs(ddp_link_drift(link, half, bytes, 3) + 0.5) < 1e-9);
    ddp_linkfit_start(&fit, link, 2000, 4);
    ddp_linkfit_add(&fit, 2000, 0.014);
    assert_true(fabs(fit.link.beta_s - 2e-6) < 1e-9);
    REFUSED(DDP_ARG, ddp_link_fit(bytes, seconds, 0, &link, &err));
}

static void compressors(void **state)
{
    enum { N = 1000, K = 10 };
    float x[N], residual[N], back[N], value[K];
    uint64_t index[K];
    unsigned char message[8 * N];
    size_t bytes, i, room = ddp_topk_scratch(N, K) + ddp_randomk_scratch(N);
    void *scratch = malloc(room);
    const double link_s[] = {1, 4};
    const size_t count[] = {1000, 1000};
    ddp_adatopk_options o;
    ddp_link_compression c[2];
    ddp_packing packing;
    ddp_packed packed;
    int p;

    (void)state;
    assert_non_null(scratch);
    for (i = 0; i < N; i++) x[i] = (i % 2 ? 1.0f : -1.0f) * (float)(1 + (i * 37) % N);
    memset(residual, 0, sizeof residual);
    OK(ddp_feedback_add(residual, x, N, &err));
    OK(ddp_topk(residual, N, K, scratch, room, index, value, &err));
    for (i = 0; i < K; i++) assert_true(fabsf(value[i]) >= N - K && value[i] == x[index[i]]);
    for (p = DDP_PACK_I64; p <= DDP_PACK_DELTA; p++) {
        OK(ddp_pack_sparse((ddp_packing)p, N, K, index, value, message, sizeof message, &bytes, &err));
        assert_true(bytes <= ddp_pack_bound((ddp_packing)p, N, K));
        OK(ddp_packed_read(message, bytes, &packed, &err));
        assert_true(packed.packing == (ddp_packing)p && packed.n == N && packed.k == K);
        OK(ddp_unpack_store(message, bytes, back, N, &err));
        for (i = 0; i < K; i++) assert_true(back[index[i]] == value[i]);
        OK(ddp_packing_named(ddp_packing_name((ddp_packing)p), &packing, &err));
    }
    OK(ddp_feedback_keep(residual, N, index, K, &err));
    OK(ddp_unpack_add(message, bytes, residual, N, &err));
    assert_memory_equal(residual, x, sizeof x);
    OK(ddp_pack_quantised(DDP_PACK_INT8, x, N, message, sizeof message, &bytes, &err));
    OK(ddp_feedback_subtract(message, bytes, residual, N, &err));
    for (i = 0; i < N; i++) assert_true(fabsf(residual[i]) <= 4);
    OK(ddp_pack_dense(x, N, message, sizeof message, &bytes, &err));
    assert_int_equal(bytes, 24 + 4 * N);
    OK(ddp_randomk(x, N, K, 7, scratch, room, index, value, &err));
    assert_true(index[0] < index[K - 1] && index[K - 1] < N);
    memset(&o, 0, sizeof o);
    o.ratio = 10;
    OK(ddp_adatopk(link_s, count, 2, &o, c, &err));
    assert_true(c[1].keep < c[0].keep && ddp_keep_count(1000, 10) == 100);

    REFUSED(DDP_ARG, ddp_topk(x, N, N + 1, scratch, room, index, value, &err));
    REFUSED(DDP_ARG, ddp_topk(NULL, N, K, scratch, room, index, value, &err));
    REFUSED(DDP_FORMAT, ddp_unpack_store("DDPC and a text of 32 characters", 32, back, N, &err));
    REFUSED(DDP_ARG, ddp_packing_named("zip", &packing, &err));
    o.ratio = 0.5;
    REFUSED(DDP_ARG, ddp_adatopk(link_s, count, 2, &o, c, &err));
    x[3] = NAN;
    REFUSED(DDP_NUMERIC, ddp_topk(x, N, K, scratch, room, index, value, &err));
    free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partial_averaging),
        cmocka_unit_test(published_schemes),
        cmocka_unit_test(delayed_gradients),
        cmocka_unit_test(important_layers_first),
        cmocka_unit_test(placement),
        cmocka_unit_test(operators_over_devices),
        cmocka_unit_test(links_from_measurements),
        cmocka_unit_test(compressors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
