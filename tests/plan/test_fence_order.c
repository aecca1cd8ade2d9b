/* [pure] OP-Fence with too many devices to try every order. */
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
#include "plan/fence_brute.h"

/* With more than seven devices not every order is tried. Exchanging any two devices must not make a plan
 * faster, nor any cut along its order. */
static void no_exchange_of_two_devices_is_faster(void **state)
{
    ddp_rng r = ddp_rng_seed(18, 0);
    int count = 0;

    (void)state;
    while (count < 60) {
        instance x = instance_random(&r, MOST_OPS, 10, 0);
        const int n = x.list.count, P = x.net.devices;
        int where[MOST_OPS], order[10], cut[11];
        ddp_fence_plan plan;
        ddp_error err;

        if (P > 7 && n >= P && ddp_fence(&x.list, &x.net, &x.o, &plan, &err) == DDP_OK) {
            for (int a = 0; a < P; a++)
                for (int b = a + 1; b < P; b++) {
                    for (int i = 0; i < n; i++) {
                        const int d = plan.device_of[i];
                        where[i] = d == a ? b : d == b ? a : d;
                    }
                    assert_true(plain_pipeline(&x, where) >= plan.work.pipeline_s * (1 - 1e-8));
                }
            close_to(plain_pipeline(&x, plan.device_of), plan.work.pipeline_s);
            for (int k = cut[0] = 0; k < plan.segments; k++) order[k] = plan.segment[k].device;
            if (!x.o.allow_idle) close_to(best_cut(&x, order, cut, 0), plan.work.pipeline_s);
            ddp_fence_plan_free(&plan);
            count++;
        }
        instance_free(&x);
    }
}

/* Two of many devices can hold all operators. If devices may stay empty, the others are skipped and the order
 * stays; else no order works. */
static void devices_without_memory_are_passed_over(void **state)
{
    enum { N = 21 };
    ddp_oplist list = list_of(6);
    ddp_network net = net_of(N, 0, 1e9);
    ddp_workload_options work;
    ddp__fence_tape tape;
    ddp_error err;

    (void)state;
    for (int i = 0; i < 6; i++)
        op(&list, i, NULL, i - 1, -1, 10, 1, 10); /* 10 bytes of parameters, a result of 1 byte */
    memset(&work, 0, sizeof work);
    work.microbatches = 10;
    work.forward_only = 1;
    net_memory(&net, 5);
    net.memory_bytes[10] = net.memory_bytes[15] = 40;
    must(ddp__fence_tape_open(&list, &net, &work, &tape, &err), &err);
    for (int idle = 0; idle < 2; idle++) {
        int order[N], found = 7, every = 7;
        for (int k = 0; k < N; k++) order[k] = k;
        must(ddp__fence_fit_order(&tape, idle, order, &found, &every, &err), &err);
        assert_int_equal(found, idle);
        assert_false(every);
        for (int k = 0; k < N && idle; k++) assert_int_equal(order[k], k);
    }
    ddp__scratch_free(&tape.graph.room);
    ddp_oplist_free(&list);
    ddp_network_free(&net);
}

/* With few devices every order is tried; empty devices come last. */
static void devices_without_an_operator_come_last(void **state)
{
    int order[5] = {7, 7, 7, 7, 7}, found = 0, every = 0;
    ddp_oplist list = list_of(6);
    ddp_network net = net_of(5, 0, 1e9);
    ddp_workload_options work;
    ddp__fence_tape tape;
    ddp_error err;

    (void)state;
    for (int i = 0; i < 6; i++) op(&list, i, NULL, i - 1, -1, 10, 1, 10);
    memset(&work, 0, sizeof work);
    work.microbatches = 10;
    work.forward_only = 1;
    net_memory(&net, 5);
    net.memory_bytes[1] = net.memory_bytes[3] = 40;
    must(ddp__fence_tape_open(&list, &net, &work, &tape, &err), &err);
    must(ddp__fence_fit_order(&tape, 1, order, &found, &every, &err), &err);
    assert_true(found && every);
    assert_true(order[0] == 1 || order[0] == 3);
    assert_int_equal(order[0] + order[1], 4);
    assert_true(order[2] == 4 && order[3] == 2 && order[4] == 0);
    ddp__scratch_free(&tape.graph.room);
    ddp_oplist_free(&list);
    ddp_network_free(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_exchange_of_two_devices_is_faster),
        cmocka_unit_test(devices_without_memory_are_passed_over),
        cmocka_unit_test(devices_without_an_operator_come_last),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
