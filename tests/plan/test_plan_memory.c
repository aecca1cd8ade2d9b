/* [pure] Allocations of the searches fail. The planner returns an error, leaks no memory, and plans as before
 * afterwards. */
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

#include "plan/fence_lab.h"

static long taken, fail_at, alive;

#ifdef __cplusplus
extern "C" {
#endif
void *heap_realloc(void *p, size_t bytes)
{
    void *q;

    if (++taken == fail_at) return NULL;
    q = realloc(p, bytes);
    alive += q && !p;
    return q;
}

void heap_free(void *p)
{
    alive -= p != NULL;
    free(p);
}
#ifdef __cplusplus
}
#endif

/* Runs a planner and returns its result as one number. Frees the result. */
typedef ddp_status (*planner)(const void *problem, double *answer, ddp_error *err);

/* Each of the first 200 allocations fails, and some of the others. If the planner can do without one, its
 * result is unchanged. */
static void without_memory(planner plan, const void *problem)
{
    double whole = -1, answer;
    long all, before = alive, failed = 0;
    ddp_error err;

    fail_at = 0;
    taken = 0;
    err.msg[0] = 0;
    if (plan(problem, &whole, &err) != DDP_OK) fail_msg("%s", err.msg);
    all = taken;
    assert_true(all > 0 && alive == before);
    for (long k = 1; k <= all; k += k < 200 ? 1 : all / 100 + 1) {
        ddp_status status;
        err.msg[0] = 0;
        answer = -1;
        taken = 0;
        fail_at = k;
        status = plan(problem, &answer, &err);
        fail_at = 0;
        if (alive != before) fail_msg("allocation %ld of %ld: %ld blocks are left", k, all, alive - before);
        if (status == DDP_OK) {
            close_to(answer, whole);
            continue;
        }
        failed++;
        assert_int_equal(status, DDP_MEMORY);
        if (!strstr(err.msg, "memory")) fail_msg("allocation %ld of %ld: '%s'", k, all, err.msg);
        assert_true(answer == -1);
    }
    assert_true(failed > 0);
    assert_int_equal(plan(problem, &answer, &err), DDP_OK);
    close_to(answer, whole);
}

/* ---- placement ---- */

typedef struct placing {
    ddp_network net;
    ddp_place_options o;
} placing;

static ddp_status placed(const void *problem, double *answer, ddp_error *err)
{
    const placing *x = (const placing *)problem;
    ddp_placement p;
    ddp_status status = ddp_place(&x->net, &x->o, &p, err);

    if (status != DDP_OK) return status;
    *answer = p.cost_s;
    ddp_placement_free(&p);
    return DDP_OK;
}

static void a_placement(ddp_place_solver solver, int D, int S, long candidates)
{
    ddp_rng r = ddp_rng_seed(41, (uint64_t)(D * S));
    const int N = D * S;
    placing x;

    memset(&x, 0, sizeof x);
    assert_int_equal(ddp_network_new(N, &x.net, NULL), DDP_OK);
    x.net.pipelines = D;
    x.net.stages = S;
    x.net.dp_bytes = x.net.pp_bytes = 1e6;
    for (int i = 0; i < N * N; i++) {
        x.net.rate[i] = 1e6 * (1 + floor(8 * ddp_rng_uniform(&r)));
        x.net.delay_s[i] = i / N % 4 == i % N % 4 ? 0.01 : 0.5;
    }
    x.o.solver = solver;
    x.o.max_candidates = candidates;
    without_memory(placed, &x);
    ddp_network_free(&x.net);
}

static void placement_of_few_devices_survives_failed_allocations(void **state)
{
    (void)state;
    a_placement(DDP_PLACE_ANNEAL, 2, 3, 100); /* tries all of them */
    a_placement(DDP_PLACE_EXACT, 4, 4, 3000);
    a_placement(DDP_PLACE_GENETIC, 4, 4, 150);
    a_placement(DDP_PLACE_GENETIC_CODE, 4, 4, 120);
    a_placement(DDP_PLACE_KL, 4, 4, 120);
    a_placement(DDP_PLACE_RANDOM, 4, 4, 20);
    a_placement(DDP_PLACE_ANNEAL, 4, 4, 3000);
}

static void placement_of_many_devices_survives_failed_allocations(void **state)
{
    (void)state;
    a_placement(DDP_PLACE_ANNEAL, 1, 20, 400);  /* a tour too long for the exact solver */
    a_placement(DDP_PLACE_ANNEAL, 65, 4, 2000); /* descent */
}

/* ---- OP-Fence ---- */

typedef struct fencing {
    ddp_oplist list;
    ddp_network net;
    ddp_fence_options o;
} fencing;

static ddp_status fenced(const void *problem, double *answer, ddp_error *err)
{
    const fencing *x = (const fencing *)problem;
    ddp_fence_plan p;
    ddp_status status = ddp_fence(&x->list, &x->net, &x->o, &p, err);

    if (status != DDP_OK) return status;
    *answer = p.work.pipeline_s;
    ddp_fence_plan_free(&p);
    return DDP_OK;
}

/* Two machines of two devices, a skip edge, and one operator that only the last device can hold. */
static void cuts_survive_failed_allocations(void **state)
{
    fencing x;

    (void)state;
    memset(&x, 0, sizeof x);
    x.list = list_of(7);
    for (int i = 0; i < 7; i++) op(&x.list, i, NULL, i - 1, i == 5 ? 1 : -1, 10 + i, 4, 1);
    x.net = net_of(4, 0.001, 1000);
    for (int i = 0; i < 16; i++)
        if (i / 4 / 2 != i % 4 / 2) x.net.rate[i] = 1;
    x.o.work.microbatches = 3;
    without_memory(fenced, &x);
    x.o.allow_idle = 1;
    without_memory(fenced, &x);
    x.o.solver = DDP_FENCE_EQUAL_FLOPS;
    x.o.allow_idle = 0;
    without_memory(fenced, &x);
    x.o.solver = DDP_FENCE_CUT;
    x.list.op[0].param_bytes = 1000;
    x.net.memory_bytes = (double *)calloc(4, sizeof(double));
    for (int i = 0; i < 4; i++) x.net.memory_bytes[i] = i == 2 ? 5000 : 70; /* at neither end of a tour */
    without_memory(fenced, &x);
    ddp_oplist_free(&x.list);
    ddp_network_free(&x.net);
}

static ddp_status estimated(const void *problem, double *answer, ddp_error *err)
{
    static const int device_of[7] = {0, 0, 1, 1, 2, 3, 3};
    const fencing *x = (const fencing *)problem;
    ddp_workload w, less;
    ddp_adatopk_options o;
    ddp_status status = ddp_workload_estimate(&x->list, &x->net, device_of, &x->o.work, &w, err);

    if (status != DDP_OK) return status;
    memset(&o, 0, sizeof o);
    o.ratio = 10;
    status = ddp_workload_compress(&w, &x->net, &x->o.work, &o, &less, err);
    ddp_workload_free(&w);
    if (status != DDP_OK) return status;
    *answer = less.pipeline_s;
    ddp_workload_free(&less);
    return DDP_OK;
}

static void estimates_survive_failed_allocations(void **state)
{
    fencing x;

    (void)state;
    memset(&x, 0, sizeof x);
    x.list = list_of(7);
    for (int i = 0; i < 7; i++) op(&x.list, i, NULL, i - 1, -1, 10, 4e4, 1);
    x.net = net_of(4, 0.001, 1000);
    without_memory(estimated, &x);
    ddp_oplist_free(&x.list);
    ddp_network_free(&x.net);
}

/* ---- DreamDDP, DeFT, and their components ---- */

enum { ROWS = 24 };

typedef struct rows {
    ddp_profile p;
    double f[ROWS], b[ROWS], c[ROWS];
    int way;
} rows;

static ddp_status planned(const void *problem, double *answer, ddp_error *err)
{
    static const ddp_solver solvers[4] = {DDP_SOLVER_OPTIMAL, DDP_SOLVER_DFS, DDP_SOLVER_BRUTE,
                                          DDP_SOLVER_SCATTER};
    const rows *x = (const rows *)problem;
    ddp_plan_options o;
    ddp_plan p;
    ddp_status status;

    memset(&o, 0, sizeof o);
    o.period = 3;
    o.solver = solvers[x->way];
    o.fill = DDP_FILL_EXACT;
    status = ddp_plan_partial(&x->p, &o, &p, err);
    if (status != DDP_OK) return status;
    status = ddp_plan_evaluate(&x->p, DDP_COST_SUM, &p, err);
    if (status == DDP_OK) *answer = p.objective_s;
    ddp_plan_free(&p);
    return status;
}

static ddp_status delayed(const void *problem, double *answer, ddp_error *err)
{
    const rows *x = (const rows *)problem;
    ddp_delayed_options o;
    ddp_delayed_plan p;
    ddp_status status;

    memset(&o, 0, sizeof o);
    o.links = 2;
    o.mu = 2;
    o.target_frequency = x->way ? 0.9 : 0;
    status = ddp_plan_delayed(&x->p, &o, &p, err);
    if (status != DDP_OK) return status;
    *answer = p.iteration_s / p.update_frequency;
    ddp_delayed_plan_free(&p);
    return DDP_OK;
}

static void random_rows(rows *x, int n, double busy)
{
    ddp_rng r = ddp_rng_seed(42, (uint64_t)n);

    memset(x, 0, sizeof *x);
    for (int l = 0; l < n; l++) {
        x->f[l] = ddp_rng_uniform(&r);
        x->b[l] = 2 * ddp_rng_uniform(&r);
        x->c[l] = busy * ddp_rng_uniform(&r);
    }
    x->p.layers = n;
    x->p.forward_s = x->f;
    x->p.backward_s = x->b;
    x->p.comm_s = x->c;
}

static void partial_plans_survive_failed_allocations(void **state)
{
    rows x;

    (void)state;
    random_rows(&x, 8, 4);
    for (x.way = 0; x.way < 4; x.way++) without_memory(planned, &x);
}

static void delayed_plans_survive_failed_allocations(void **state)
{
    rows x;

    (void)state;
    random_rows(&x, 4, 5);
    for (x.way = 0; x.way < 2; x.way++) without_memory(delayed, &x);
}

static ddp_status graphs(const void *problem, double *answer, ddp_error *err)
{
    const placing *x = (const placing *)problem;
    const int n = x->net.devices;
    int order[24], count;
    double length, q, least;
    ddp_status status = ddp_tour_open(n, x->net.delay_s, -1, -1, order, &length, err);

    if (status == DDP_OK) status = ddp_louvain(n, x->net.rate, 1, order, &count, &q, err);
    if (status == DDP_OK) status = ddp_modularity(n, x->net.rate, 1, order, &q, err);
    if (status == DDP_OK) status = ddp_plan_ring(n, x->net.rate, x->net.delay_s, order, &least, err);
    if (status == DDP_OK) *answer = length + q + least;
    return status;
}

static void tours_and_communities_survive_failed_allocations(void **state)
{
    static const int sizes[2] = {8, 20};

    (void)state;
    for (int k = 0; k < 2; k++) {
        const int n = sizes[k];
        ddp_rng r = ddp_rng_seed(43, (uint64_t)n);
        placing x;
        memset(&x, 0, sizeof x);
        assert_int_equal(ddp_network_new(n, &x.net, NULL), DDP_OK);
        for (int i = 0; i < n * n; i++) {
            x.net.rate[i] = 1 + ddp_rng_uniform(&r);
            x.net.delay_s[i] = ddp_rng_uniform(&r);
        }
        without_memory(graphs, &x);
        ddp_network_free(&x.net);
    }
}

static ddp_status packed(const void *problem, double *answer, ddp_error *err)
{
    const rows *x = (const rows *)problem;
    unsigned char gib[ROWS / 8];
    double value, late;
    int assign[ROWS];
    ddp_knapsack_problem p;
    ddp_status status;

    memset(&p, 0, sizeof p);
    p.items = x->p.layers;
    p.item_s = x->c;
    p.links = 2;
    p.deadline_s[0] = p.deadline_s[1] = 8;
    p.slowdown[1] = 1.5;
    status = ddp_knapsack(&p, DDP_KNAPSACK_EXACT, assign, &value, err);
    if (status == DDP_OK) status = ddp_osp_rank(ROWS, x->b, x->c, 30, DDP_OSP_KNAPSACK, gib, &late, err);
    if (status == DDP_OK) *answer = value + late;
    return status;
}

static void knapsacks_survive_failed_allocations(void **state)
{
    rows x;

    (void)state;
    random_rows(&x, ROWS, 4);
    x.p.layers = 14;
    without_memory(packed, &x);
}

static ddp_status served(const void *problem, double *answer, ddp_error *err)
{
    const ddp_served *s = (const ddp_served *)problem;
    double own;
    void *room = calloc(ddp_served_room(s->workers, s->servers), 1);
    ddp_status status = ddp_served_step(s, NULL, &own, err);

    assert_non_null(room);
    if (status == DDP_OK) status = ddp_served_step(s, room, answer, err); /* the caller owns this memory */
    if (status == DDP_OK) assert_true(*answer == own);
    free(room);
    return status;
}

static void predictions_with_servers_survive_failed_allocations(void **state)
{
    static const double bytes[2] = {1e6, 2e6};
    ddp_served s;

    (void)state;
    memset(&s, 0, sizeof s);
    s.rule = DDP_SERVING_EACH;
    s.ahead = -1;
    s.workers = 3;
    s.servers = 2;
    s.compute_s = 0.1;
    s.bytes_per_s = 25e6;
    s.bytes = bytes;
    without_memory(served, &s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placement_of_few_devices_survives_failed_allocations),
        cmocka_unit_test(placement_of_many_devices_survives_failed_allocations),
        cmocka_unit_test(cuts_survive_failed_allocations),
        cmocka_unit_test(estimates_survive_failed_allocations),
        cmocka_unit_test(partial_plans_survive_failed_allocations),
        cmocka_unit_test(delayed_plans_survive_failed_allocations),
        cmocka_unit_test(tours_and_communities_survive_failed_allocations),
        cmocka_unit_test(knapsacks_survive_failed_allocations),
        cmocka_unit_test(predictions_with_servers_survive_failed_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
