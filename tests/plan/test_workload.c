/* [pure] FusionLLM's estimator, compared with hand-worked numbers; reading and writing of graph files. */
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

static void the_estimator_follows_the_equations_by_hand(void **state)
{
    /* a, b, c of 20, 30, 40 FLOPs on devices 0, 0, 1 of 10 and 20 FLOP/s; results of 8, 6, 2 bytes. Link 0 to
     * 1: 1 s + bytes / 2, back: 3 s + bytes. Two micro-batches, forward only: C = 5, 2; R = 0, 1 + 6/2 = 4;
     * latency 11, pipeline 11 + 1 x 5. */
    const int device_of[3] = {0, 0, 1};
    ddp_oplist list = list_of(3);
    ddp_network net = net_of(2, 1, 2);
    ddp_workload_options o;
    ddp_workload w;
    ddp_error err;

    (void)state;
    op(&list, 0, "a", -1, -1, 20, 8, 1);
    op(&list, 1, "b", 0, -1, 30, 6, 100);
    op(&list, 2, "c", 1, -1, 40, 2, 10);
    net.speed[1] = 20;
    net.delay_s[2] = 3;
    net.rate[2] = 1;
    memset(&o, 0, sizeof o);
    o.microbatches = 2;
    o.samples = 48;
    o.forward_only = 1;
    must(ddp_workload_estimate(&list, &net, device_of, &o, &w, &err), &err);
    close_to(w.compute_s[0], 5);
    close_to(w.compute_s[1], 2);
    assert_true(w.receive_s[0] <= 0);
    close_to(w.receive_s[1], 4);
    close_to(w.latency_s, 11);
    close_to(w.pipeline_s, 16);
    close_to(w.throughput, 3);
    close_to(w.memory_bytes[0], 101 + 8 + 6);
    close_to(w.memory_bytes[1], 10 + 2 + 6);
    assert_int_equal(w.messages, 1);
    ddp_workload_free(&w);
    /* with backward: C is three times as large, and device 0 receives b's gradient in 3 + 6 = 9 s: latency 15
     * + 9 + 6 + 4 = 34, worst 15; memory 4 x parameters, two micro-batches stored */
    o.forward_only = 0;
    o.samples = 0;
    must(ddp_workload_estimate(&list, &net, device_of, &o, &w, &err), &err);
    close_to(w.compute_s[0], 15);
    close_to(w.receive_s[0], 9);
    close_to(w.receive_s[1], 4);
    close_to(w.latency_s, 34);
    close_to(w.pipeline_s, 49);
    close_to(w.throughput, 2.0 / 49);
    close_to(w.memory_bytes[0], 4 * 101 + 2 * 14);
    close_to(w.memory_bytes[1], 4 * 10 + 2 * 8);
    assert_int_equal(w.messages, 2);
    ddp_workload_free(&w);
    /* network-bound: R of device 0 is the largest */
    net.delay_s[2] = 30;
    must(ddp_workload_estimate(&list, &net, device_of, &o, &w, &err), &err);
    close_to(w.pipeline_s, 61 + 36);
    ddp_workload_free(&w);
    o.state_factor = 2; /* as with plain SGD */
    must(ddp_workload_estimate(&list, &net, device_of, &o, &w, &err), &err);
    close_to(w.memory_bytes[0], 2 * 101 + 2 * 14);
    close_to(w.memory_bytes[1], 2 * 10 + 2 * 8);
    ddp_workload_free(&w);
    ddp_workload_free(NULL);
    ddp_oplist_free(&list);
    ddp_network_free(&net);
}

/* 1 if exactly one message of w has these fields. */
static int sent(const ddp_workload *w, int gradient, int op_index, int user, int from, int to)
{
    int i, count = 0;

    for (i = 0; i < w->messages; i++)
        count += w->message[i].gradient == gradient && w->message[i].op == op_index &&
                 w->message[i].user == user && w->message[i].from == from && w->message[i].to == to;
    return count == 1;
}

static void the_papers_figure_3_exchanges_what_it_says(void **state)
{
    enum { INPUT, CONV, TENSOR, RELU, ADD, LINEAR, LABEL, CE };
    const int device_of[8] = {0, 0, 1, 1, 2, 2, 2, 2};
    ddp_oplist list = list_of(8);
    ddp_network net = net_of(3, 1, 1);
    ddp_workload_options o;
    ddp_workload w;
    ddp_error err;

    (void)state;
    op(&list, INPUT, "Input", -1, -1, 0, 4, 0);
    op(&list, CONV, "Conv", INPUT, -1, 9, 4, 36);
    op(&list, TENSOR, "TensorA", -1, -1, 0, 4, 0);
    op(&list, RELU, "ReLu", TENSOR, -1, 1, 4, 0);
    op(&list, ADD, "Add", RELU, CONV, 1, 4, 0);
    op(&list, LINEAR, "Linear", ADD, -1, 9, 4, 16);
    op(&list, LABEL, "Label", -1, -1, 0, 4, 0);
    op(&list, CE, "CE", LABEL, LINEAR, 2, 4, 0);
    memset(&o, 0, sizeof o);
    must(ddp_workload_estimate(&list, &net, device_of, &o, &w, &err), &err);
    assert_int_equal(w.messages, 4);
    assert_true(sent(&w, 0, CONV, ADD, 0, 2)); /* node 1 sends Conv and requires Conv-Add */
    assert_true(sent(&w, 1, CONV, ADD, 2, 0));
    assert_true(sent(&w, 0, RELU, ADD, 1, 2)); /* node 2 sends ReLu and requires ReLu-Add */
    assert_true(sent(&w, 1, RELU, ADD, 2, 1));
    ddp_workload_free(&w);
    ddp_oplist_free(&list);
    ddp_network_free(&net);
}

static void a_skip_edge_counts_once_per_remote_device(void **state)
{
    /* a is used by b and c on device 1 and by d on device 2; b, c stay on 1; d uses a and c */
    const int device_of[4] = {0, 1, 1, 2};
    ddp_oplist list = list_of(4);
    ddp_network net = net_of(3, 1, 1);
    ddp_workload_options o;
    ddp_workload w;
    ddp_error err;
    const int three[3] = {0, 1, 0};

    (void)state;
    op(&list, 0, "a", -1, -1, 10, 4, 4);
    op(&list, 1, "b", 0, -1, 10, 5, 0);
    must(ddp_oplist_set(&list, 2, "c", three, 3, 10, 6, 0, &err), &err); /* reads a twice */
    op(&list, 3, "d", 0, 2, 10, 1, 0);
    memset(&o, 0, sizeof o);
    o.forward_only = 1;
    must(ddp_workload_estimate(&list, &net, device_of, &o, &w, &err), &err);
    close_to(w.receive_s[1], 1 + 4);
    close_to(w.receive_s[2], 1 + 4 + 1 + 6);
    assert_int_equal(w.messages, 3);
    ddp_workload_free(&w);
    o.forward_only = 0; /* device 0 receives a's gradient from 1 and from 2, device 1 c's gradient */
    must(ddp_workload_estimate(&list, &net, device_of, &o, &w, &err), &err);
    close_to(w.receive_s[0], 5 + 5);
    close_to(w.receive_s[1], 5 + 7);
    close_to(w.receive_s[2], 5 + 7);
    assert_int_equal(w.messages, 6);
    ddp_workload_free(&w);
    ddp_oplist_free(&list);
    ddp_network_free(&net);
}

static void the_speed_is_fitted_through_the_origin(void **state)
{
    const double flops[3] = {1e9, 2e9, 4e9}, exact[3] = {0.25, 0.5, 1}, noisy[3] = {0.5, 0.5, 1};
    double lambda = 7, bad[1] = {-1};
    ddp_error err;

    (void)state;
    must(ddp_speed_fit(flops, exact, 3, 8e9, &lambda, &err), &err);
    close_to(lambda, 0.5); /* 4e9 FLOP/s of 8e9 */
    /* x = 1/8, 2/8, 4/8: slope (0.0625 + 0.125 + 0.5) / (21/64) = 44/21 */
    must(ddp_speed_fit(flops, noisy, 3, 8e9, &lambda, &err), &err);
    close_to(lambda, 21.0 / 44);
    assert_int_equal(ddp_speed_fit(flops, exact, 0, 8e9, &lambda, &err), DDP_ARG);
    assert_int_equal(ddp_speed_fit(flops, exact, 3, 0, &lambda, &err), DDP_ARG);
    assert_int_equal(ddp_speed_fit(flops, bad, 1, 8e9, &lambda, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "in -1 s"));
    bad[0] = 0;
    assert_int_equal(ddp_speed_fit(flops, bad, 1, 8e9, &lambda, &err), DDP_ARG);
    close_to(lambda, 21.0 / 44);
}

static void estimates_and_fits_of_nonsense_are_refused(void **state)
{
    const double one[2] = {1, 1}, none[2] = {0, 0}, minus[2] = {1, -1}, huge[2] = {1, 1e101};
    int device_of[2] = {0, 1};
    ddp_oplist list = list_of(2);
    ddp_network net = net_of(2, 1, 2);
    ddp_workload_options o;
    ddp_workload w;
    double lambda = 7, *speed = net.speed;
    ddp_error err;

    (void)state;
    op(&list, 0, "a", -1, -1, 20, 8, 1);
    op(&list, 1, "b", 0, -1, 30, 6, 100);
    memset(&o, 0, sizeof o);
    memset(&w, 7, sizeof w);
#define REFUSED(status, says)                                                                  \
    do {                                                                                       \
        assert_int_equal(ddp_workload_estimate(&list, &net, device_of, &o, &w, &err), status); \
        if (!strstr(err.msg, says)) fail_msg("'%s' does not say '%s'", err.msg, says);         \
        assert_int_equal(w.devices, 0x07070707);                                               \
    } while (0)
    assert_int_equal(ddp_workload_estimate(&list, &net, NULL, &o, &w, &err), DDP_ARG);
    assert_int_equal(ddp_workload_estimate(&list, &net, device_of, NULL, &w, &err), DDP_ARG);
    assert_int_equal(ddp_workload_estimate(&list, &net, device_of, &o, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "device_of, options and out must not be NULL"));
    o.microbatches = 1000000001;
    REFUSED(DDP_ARG, "1000000001 micro-batches are impossible");
    o.microbatches = 0;
    o.samples = -1;
    REFUSED(DDP_ARG, "-1 samples per iteration are impossible");
    o.samples = 1e101;
    REFUSED(DDP_ARG, "1e+101 samples per iteration are impossible");
    o.samples = 0;
    o.state_factor = 1e7;
    REFUSED(DDP_ARG, "state_factor is 1e+07");
    o.state_factor = 0;
    device_of[1] = 2;
    REFUSED(DDP_ARG, "operator 1 is assigned to device 2; devices run from 0 to 1");
    device_of[1] = -1;
    REFUSED(DDP_ARG, "operator 1 is assigned to device -1");
    device_of[1] = 1;
    speed[1] = 1e101;
    REFUSED(DDP_ARG, "the speed of device 1 is 1e+101 FLOP/s");
    speed[1] = 1e-101;
    REFUSED(DDP_ARG, "the speed of device 1 is 1e-101 FLOP/s");
    speed[1] = 1;
    net.rate[1] = 1e-101;
    REFUSED(DDP_ARG, "the link from device 0 to device 1 (1 s, 1e-101 bytes/s)");
    net.rate[1] = 1;
    net.delay_s[2] = 1e101;
    REFUSED(DDP_ARG, "the link from device 1 to device 0 (1e+101 s, 2 bytes/s)");
    net.delay_s[2] = 1;
    list.op[0].flops = list.op[1].flops = 0;
    device_of[1] = 0;
    REFUSED(DDP_NUMERIC, "an iteration takes 0 s; the operators need FLOPs or bytes");
    list.op[0].flops = 1e200; /* 3e300 s per micro-batch */
    speed[0] = 1e-100;
    o.microbatches = 1000000000;
    REFUSED(DDP_NUMERIC, "an iteration takes inf s");
#undef REFUSED
    assert_int_equal(ddp_speed_fit(NULL, one, 2, 1, &lambda, &err), DDP_ARG);
    assert_int_equal(ddp_speed_fit(one, NULL, 2, 1, &lambda, &err), DDP_ARG);
    assert_int_equal(ddp_speed_fit(one, one, 2, 1, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_speed_fit(one, one, 2, 1e101, &lambda, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "the peak is 1e+101 FLOP/s"));
    assert_int_equal(ddp_speed_fit(minus, one, 2, 1, &lambda, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "sample 1 (-1 FLOPs in 1 s)"));
    assert_int_equal(ddp_speed_fit(huge, one, 2, 1, &lambda, &err), DDP_ARG);
    assert_int_equal(ddp_speed_fit(one, huge, 2, 1, &lambda, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "sample 1 (1 FLOPs in 1e+101 s)"));
    assert_int_equal(ddp_speed_fit(none, one, 2, 1, &lambda, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "2 samples without FLOPs or without time fit no speed"));
    close_to(lambda, 7);
    ddp_oplist_free(&list);
    ddp_network_free(&net);
}

/* ---- graph files ---- */

static ddp_status read_text(const char *text, ddp_oplist *list, ddp_error *err)
{
    char path[] = "/tmp/ddp_oplist_XXXXXX";
    int fd = mkstemp(path);
    ddp_status status;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (int)strlen(text));
    close(fd);
    status = ddp_oplist_read(path, list, err);
    unlink(path);
    return status;
}

static void graph_files_are_read_and_checked(void **state)
{
    static const char *const bad[][2] = {
        {"{}", "a graph is a list"},
        {"[]", "a graph is a list"},
        {"[1]", "name"},
        {"[{\"name\":\"a\",\"args\":[],\"flops\":1}]", "output_bytes"},
        {"[{\"name\":\"a\",\"args\":[],\"output_bytes\":1}]", "flops"},
        {"[{\"name\":\"a\",\"flops\":1,\"output_bytes\":1}]", "args"},
        {"[{\"name\":\"a\",\"args\":[3],\"flops\":1,\"output_bytes\":1}]", "in quotes"},
        {"[{\"name\":\"a\",\"args\":[\"b\"],\"flops\":1,\"output_bytes\":1}]", "'b' names no operator"},
        {"[{\"name\":\"a\",\"args\":[\"a\"],\"flops\":1,\"output_bytes\":1}]", "'a' does not precede"},
        {"[{\"name\":\"a\",\"args\":[],\"flops\":1,\"output_bytes\":1,\"module\":7}]", "module"},
        {"[{\"name\":\"a\",\"args\":[],\"flops\":-1,\"output_bytes\":1}]", "flops is -1"},
        {"[{\"name\":\"a\",\"args\":[],\"flops\":1,\"output_bytes\":1},"
         "{\"name\":\"a\",\"args\":[],\"flops\":1,\"output_bytes\":1}]",
         "both named 'a'"}};
    ddp_oplist list;
    ddp_error err;
    size_t k;

    (void)state;
    must(read_text("[{\"name\":\"x\",\"args\":[],\"flops\":0,\"output_bytes\":8},"
                   "{\"name\":\"b\",\"args\":[\"x\",\"x\"],\"flops\":3.5,\"output_bytes\":2,"
                   "\"param_bytes\":7,\"note\":1}]",
                   &list, &err),
         &err);
    assert_int_equal(list.count, 2);
    assert_string_equal(list.op[1].name, "b");
    assert_int_equal(list.op[1].arg_count, 2);
    assert_int_equal(list.op[1].args[1], 0);
    close_to(list.op[1].flops, 3.5);
    close_to(list.op[0].output_bytes, 8);
    close_to(list.op[1].param_bytes, 7);
    assert_true(list.op[0].param_bytes <= 0);
    ddp_oplist_free(&list);
    for (k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        memset(&list, 7, sizeof list);
        assert_int_equal(read_text(bad[k][0], &list, &err), DDP_FORMAT);
        if (!strstr(err.msg, bad[k][1])) fail_msg("'%s' does not say '%s'", err.msg, bad[k][1]);
        assert_int_equal(list.count, 0x07070707);
    }
    assert_int_equal(ddp_oplist_read("/nonexistent/g.json", &list, &err), DDP_IO);
}

/* The file written gives the same list when read. Nothing is written if writing fails. */
static void graph_files_are_written(void **state)
{
    char path[] = "/tmp/ddp_oplist_XXXXXX";
    const int none[1] = {0}, one[2] = {0, 0}, two[2] = {0, 1};
    ddp_oplist list, again;
    ddp_error err;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    must(ddp_oplist_new(4, &list, &err), &err);
    must(ddp_oplist_set(&list, 0, "x \"1\"", none, 0, 0, 8, 0, &err), &err);
    must(ddp_oplist_set(&list, 1, "b", one, 2, 1.0 / 3, 1e300 / 1e290, 7, &err), &err);
    must(ddp_oplist_set(&list, 2, "c", two, 2, 2, 4, 0, &err), &err);
    assert_int_equal(ddp_oplist_write(&list, path, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "operator 3 has no name"));
    must(ddp_oplist_set(&list, 3, "b", none, 1, 2, 4, 0, &err), &err);
    assert_int_equal(ddp_oplist_write(&list, path, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "operators 1 and 3 are both named 'b'"));
    must(ddp_oplist_set(&list, 3, "d", none, 1, 2, 4, 0, &err), &err);
    list.op[1].module = list.op[2].module = 5;
    list.op[3].module = 4;
    assert_int_equal(ddp_oplist_write(&list, "/nonexistent/g.json", &err), DDP_IO);
    must(ddp_oplist_write(&list, path, &err), &err);
    must(ddp_oplist_read(path, &again, &err), &err);
    assert_int_equal(again.count, 4);
    for (int i = 0; i < 4; i++) {
        const ddp_oplist_entry *a = &list.op[i], *b = &again.op[i];
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->arg_count, b->arg_count);
        assert_memory_equal(a->args, b->args, (size_t)a->arg_count * sizeof *a->args);
        assert_memory_equal(&a->flops, &b->flops, sizeof a->flops);
        assert_memory_equal(&a->output_bytes, &b->output_bytes, sizeof a->output_bytes);
        assert_memory_equal(&a->param_bytes, &b->param_bytes, sizeof a->param_bytes);
    }
    assert_true(!again.op[0].module && again.op[1].module && again.op[1].module == again.op[2].module);
    assert_true(again.op[3].module && again.op[3].module != again.op[2].module);
    ddp_oplist_free(&list);
    ddp_oplist_free(&again);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_estimator_follows_the_equations_by_hand),
        cmocka_unit_test(the_papers_figure_3_exchanges_what_it_says),
        cmocka_unit_test(a_skip_edge_counts_once_per_remote_device),
        cmocka_unit_test(the_speed_is_fitted_through_the_origin),
        cmocka_unit_test(estimates_and_fits_of_nonsense_are_refused),
        cmocka_unit_test(graph_files_are_read_and_checked),
        cmocka_unit_test(graph_files_are_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
