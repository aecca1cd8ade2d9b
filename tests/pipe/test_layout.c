/* Layouts from files of planners: valid files are followed, and errors name the fault. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

static struct {
    long left, live;
} memory = {-1, 0}; /* allocations that succeed, below 0: all */

void *heap_realloc(void *p, size_t bytes)
{
    if (memory.left == 0) return NULL;
    if (memory.left > 0) memory.left--;
    memory.live += !p;
    return realloc(p, bytes);
}

void heap_free(void *p)
{
    memory.live -= p != NULL;
    free(p);
}

enum { BATCH = 2, OPERATORS = 6 };

/* linear a - relu b - linear c on one arm, linear d on the other, their sum e, the loss f. */
static ddp_node *two_arms(ddp_graph *g)
{
    ddp_node *x = ddp_input(g, "x", DDP_F32, BATCH, 6), *labels = ddp_input(g, "labels", DDP_I32, BATCH, 1),
             *a, *c, *d;

    ddp_layer_begin(g, "all");
    a = ddp_linear(g, x, 5);
    c = ddp_linear(g, ddp_relu(g, a), 5);
    d = ddp_linear(g, x, 5);
    a = ddp_cross_entropy(g, ddp_add(g, c, d), labels);
    ddp_layer_end(g);
    return a;
}

static const char *file(const char *name, const char *text)
{
    static char path[2][100];
    char *p = path[name[0] == 'c'];
    FILE *f;

    snprintf(p, sizeof path[0], "/tmp/ddp_layout_%ld_%s", (long)getpid(), name);
    f = fopen(p, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    return p;
}

/* place, cut: file contents, or NULL. */
static ddp_status layout(const char *place, const char *cut, int world, ddp_pipe_layout *l, ddp_error *err)
{
    const char *p = place ? file("place", place) : NULL, *c = cut ? file("cut", cut) : NULL;
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_status s;

    assert_non_null(two_arms(g));
    memset(err, 0, sizeof *err);
    memset(l, 0, sizeof *l);
    s = ddp_pipe_layout_read(p, c, g, world, l, err);
    ddp_graph_free(g);
    if (p) remove(p);
    if (c) remove(c);
    return s;
}

static void refused(const char *place, const char *cut, int world, ddp_status code, const char *why)
{
    ddp_pipe_layout l;
    ddp_error err;

    if (layout(place, cut, world, &l, &err) != code || !strstr(err.msg, why))
        fail_msg("%s, %s: '%s', not '%s'", place ? place : "-", cut ? cut : "-", err.msg, why);
    assert_null(l.rank_of);
    assert_null(l.stage_of);
}

static void the_cheapest_of_several_placements_is_used(void **state)
{
    static const int best[] = {3, 0, 1, 2};
    ddp_pipe_layout l;
    ddp_error err;

    (void)state;
    assert_int_equal(layout("{\"cost_s\": 3, \"assign\": [[0, 1], [2, 3]]}\n"
                            "{\"cost_s\": 2, \"assign\": [[3, 0], [1, 2]]}\n\n"
                            "{\"cost_s\": 2, \"assign\": [[2, 0], [1, 3]]}\n",
                            NULL, 4, &l, &err),
                     DDP_OK);
    assert_int_equal(l.stages, 2);
    assert_int_equal(l.pipelines, 2);
    assert_memory_equal(l.rank_of, best, sizeof best);
    assert_null(l.stage_of);
    ddp_pipe_layout_free(&l);
}

/* Nodes: x, labels, a, relu, c, d, sum, loss. */
static void stages_follow_the_data_flow_and_ranks_the_devices(void **state)
{
    static const int stage[] = {0, 0, 0, 0, 1, 1, 2, 2}, ranks[] = {1, 0, 2, 4, 3, 5};
    ddp_pipe_layout l;
    ddp_error err;

    (void)state; /* the devices with operators are 2, 7 and 9. The sum's device is listed first. */
    assert_int_equal(
        layout(NULL,
               "{\"pipeline_s\": 1, \"operators\": 6, \"param_bytes\": 400, \"segments\": ["
               "{\"device\": 9, \"first\": 4, \"end\": 6}, {\"device\": 7, \"first\": 0, \"end\": 2},"
               "{\"device\": 2, \"first\": 2, \"end\": 3}, {\"device\": 2, \"first\": 3, \"end\": 4}]}",
               6, &l, &err),
        DDP_OK);
    assert_int_equal(l.stages, 3);
    assert_int_equal(l.pipelines, 2);
    assert_memory_equal(l.stage_of, stage, sizeof stage);
    assert_memory_equal(l.rank_of, ranks, sizeof ranks);
    ddp_pipe_layout_free(&l);
}

static void a_stage_follows_all_its_inputs(void **state)
{
    static const int stage[] = {0, 0, 0, 0, 2, 1, 2, 2}, ranks[] = {1, 0, 2};
    ddp_pipe_layout l;
    ddp_error err;

    (void)state; /* device 2 has c and d; d alone could run before device 0, but c, sum and loss need d */
    assert_int_equal(
        layout(NULL,
               "{\"pipeline_s\": 1, \"segments\": [{\"device\": 1, \"first\": 0, \"end\": 2},"
               "{\"device\": 2, \"first\": 2, \"end\": 3}, {\"device\": 0, \"first\": 3, \"end\": 4},"
               "{\"device\": 2, \"first\": 4, \"end\": 6}]}",
               3, &l, &err),
        DDP_OK);
    assert_memory_equal(l.stage_of, stage, sizeof stage);
    assert_memory_equal(l.rank_of, ranks, sizeof ranks);
    ddp_pipe_layout_free(&l);
}

static void a_placement_and_a_cut_can_be_combined(void **state)
{
    static const char cut[] = "{\"pipeline_s\": 1, \"segments\": [{\"device\": 4, \"first\": 0, \"end\": 3},"
                              "{\"device\": 3, \"first\": 3, \"end\": 6}]}";
    static const int stage[] = {0, 0, 0, 0, 0, 1, 1, 1}, ranks[] = {2, 0, 3, 1};
    ddp_pipe_layout l;
    ddp_error err;

    (void)state;
    assert_int_equal(layout("{\"cost_s\": 0, \"assign\": [[2, 0], [3, 1]]}", cut, 4, &l, &err), DDP_OK);
    assert_memory_equal(l.stage_of, stage, sizeof stage);
    assert_memory_equal(l.rank_of, ranks, sizeof ranks);
    ddp_pipe_layout_free(&l);
    refused("{\"cost_s\": 0, \"assign\": [[2, 0, 3, 1]]}", cut, 4, DDP_ARG,
            "2 stages, but the placement has 4");
}

#define SEGMENTS(list)              "{\"pipeline_s\": 1, \"segments\": [" list "]}"
#define SEGMENT(device, first, end) "{\"device\": " #device ", \"first\": " #first ", \"end\": " #end "}"

static void a_file_that_does_not_fit_is_an_error(void **state)
{
    (void)state;
    refused("", NULL, 4, DDP_FORMAT, "is empty; it must be an output file of `plan place --json FILE`");
    refused("{\"assign\": [[0]]}", NULL, 1, DDP_FORMAT, "plan 1 has no number \"cost_s\"");
    refused("{\"cost_s\": \"1\", \"assign\": [[0]]}", NULL, 1, DDP_FORMAT, "plan 1 has no number \"cost_s\"");
    refused("{\"cost_s\": 1}", NULL, 4, DDP_FORMAT, "no list \"assign\"");
    refused("{\"cost_s\": 1, \"assign\": 4}", NULL, 4, DDP_FORMAT, "no list \"assign\"");
    refused("{\"cost_s\": 1, \"assign\": []}", NULL, 4, DDP_FORMAT, "no list \"assign\"");
    refused("{\"cost_s\": 1, \"assign\": [0, 1]}", NULL, 2, DDP_FORMAT, "no list \"assign\"");
    refused("{\"cost_s\": 1, \"assign\": [[]]}", NULL, 2, DDP_ARG, "0 devices");
    refused("{\"cost_s\": 1, \"assign\"", NULL, 2, DDP_FORMAT, "plan 1");
    refused("{\"cost_s\": 1, \"assign\": [[0, 1], [2, 3]]}", NULL, 6, DDP_ARG,
            "on 4 devices, but the run has 6 workers");
    refused("{\"cost_s\": 1, \"assign\": [[0, 1], [2]]}", NULL, 4, DDP_FORMAT,
            "pipeline 1 and pipeline 0 have different numbers of stages");
    refused("{\"cost_s\": 1, \"assign\": [[0, 1], 2]}", NULL, 4, DDP_FORMAT,
            "pipeline 1 and pipeline 0 have different numbers of stages");
    refused("{\"cost_s\": 1, \"assign\": [[0, 1], [\"2\", 3]]}", NULL, 4, DDP_ARG,
            "each of 0..3 must appear once");
    refused("{\"cost_s\": 1, \"assign\": [[0, 1], [1, 3]]}", NULL, 4, DDP_ARG,
            "stage 0 of pipeline 1 has an invalid or duplicate device");
    refused("{\"cost_s\": 1, \"assign\": [[0, 1], [2, 4]]}", NULL, 4, DDP_ARG,
            "each of 0..3 must appear once");
    refused("{\"cost_s\": 1, \"assign\": [[0, 1], [2, 0.5]]}", NULL, 4, DDP_ARG,
            "each of 0..3 must appear once");
    refused(NULL, "{\"pipeline_s\": 1}", 2, DDP_FORMAT, "no list \"segments\"");
    refused(NULL, "{\"pipeline_s\": 1, \"segments\": 6}", 2, DDP_FORMAT, "no list \"segments\"");
    refused(NULL, "[1]", 2, DDP_FORMAT,
            "no number \"pipeline_s\"; it must be an output file of `plan fence --json FILE`");
    refused(NULL, "{\"pipeline_s\": 1, \"operators\": 9, \"segments\": []}", 2, DDP_ARG,
            "cuts 9 operators, but this model has 6");
    refused(NULL, "{\"pipeline_s\": 1, \"param_bytes\": 404, \"segments\": []}", 2, DDP_ARG,
            "404 bytes of parameters, but this one has 400");
    refused(NULL, SEGMENTS(SEGMENT(0, 0, 3) "," SEGMENT(1, 4, 6)), 2, DDP_ARG,
            "has no device for operator 3 (all/linear.2)");
    refused(NULL, SEGMENTS(SEGMENT(0, 0, 3) "," SEGMENT(1, 2, 6)), 2, DDP_ARG,
            "operator 2 (all/linear.1) on device 0 and on device 1");
    refused(NULL, SEGMENTS(SEGMENT(0, 0, 7)), 2, DDP_ARG, "out of 6");
    refused(NULL, SEGMENTS(SEGMENT(-1, 0, 6)), 2, DDP_ARG, "a device >= 0");
    refused(NULL, SEGMENTS(SEGMENT(0, -1, 6)), 2, DDP_ARG, "from \"first\" to before \"end\", out of 6");
    refused(NULL, SEGMENTS("{\"first\": 0, \"end\": 6}"), 2, DDP_ARG, "a device >= 0");
    refused(NULL, SEGMENTS("6"), 2, DDP_ARG, "a device >= 0");
    refused(NULL, SEGMENTS(SEGMENT(0, 3, 3)), 2, DDP_ARG, "column 32: a segment");
    refused(NULL, SEGMENTS(SEGMENT(0, 0, 1) "," SEGMENT(1, 1, 2) "," SEGMENT(0, 2, 6)), 2, DDP_ARG,
            "from device 0 to device 1 and back");
    refused(NULL, SEGMENTS(SEGMENT(0, 0, 2) "," SEGMENT(1, 2, 4) "," SEGMENT(2, 4, 6)), 4, DDP_ARG,
            "start a multiple of 3");
}

/* Planners that know no sizes write 0, which fits any size. */
static void a_cut_without_sizes_fits_every_model_with_its_operators(void **state)
{
    const char *cut =
        "{\"pipeline_s\": 1, \"operators\": 6, \"param_bytes\": 0, \"segments\": [" SEGMENT(0, 0, 6) "]}";
    const char *path;
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_pipe_layout l;
    ddp_error err;

    (void)state;
    path = file("place", "{\"cost_s\": 1, \"assign\": [[1, 0]]}"); /* a placement alone needs no graph */
    assert_int_equal(ddp_pipe_layout_read(path, NULL, NULL, 2, &l, &err), DDP_OK);
    assert_int_equal(l.stages, 2);
    ddp_pipe_layout_free(&l);
    remove(path);
    assert_int_equal(layout(NULL, cut, 2, &l, &err), DDP_OK);
    assert_int_equal(l.stages, 1);
    assert_int_equal(l.pipelines, 2);
    ddp_pipe_layout_free(&l);
    assert_non_null(two_arms(g));
    path = file("cut", cut);
    assert_int_equal(ddp_pipe_layout_read(NULL, path, g, 2, &l, NULL), DDP_OK);
    ddp_pipe_layout_free(&l);
    assert_null(l.rank_of);
    ddp_pipe_layout_free(NULL);
    assert_int_equal(ddp_pipe_layout_read(NULL, path, g, 2, NULL, &err), DDP_ARG);
    assert_non_null(
        strstr(err.msg, "out must not be NULL, world must be at least 1, and a cut needs a graph"));
    assert_int_equal(ddp_pipe_layout_read(NULL, path, g, 0, &l, &err), DDP_ARG);
    assert_int_equal(ddp_pipe_layout_read(NULL, path, NULL, 2, &l, &err), DDP_ARG);
    remove(path);
    assert_int_equal(ddp_pipe_layout_read(NULL, path, g, 2, &l, NULL), DDP_IO);
    ddp_graph_free(g);
}

static void every_allocation_may_fail_of(int placed)
{
    for (long k = 0;; k++) {
        ddp_pipe_layout l;
        ddp_error err;
        ddp_status s;
        ddp_graph *g = ddp_graph_new(NULL);
        long live;
        const char *cut = file("cut", SEGMENTS(SEGMENT(0, 0, 3) "," SEGMENT(1, 3, 6)));
        const char *place = placed ? file("place", "{\"cost_s\": 0, \"assign\": [[2, 0], [3, 1]]}") : NULL;

        assert_non_null(two_arms(g));
        memset(&l, 0, sizeof l);
        live = memory.live;
        memory.left = k;
        s = ddp_pipe_layout_read(place, cut, g, 4, &l, &err);
        memory.left = -1;
        live = memory.live - live - (s == DDP_OK ? 2 : 0);
        assert_true(live == 0);
        ddp_graph_free(g);
        remove(cut);
        if (place) remove(place);
        if (s == DDP_OK) {
            assert_true(k > 8);
            ddp_pipe_layout_free(&l);
            return;
        }
        assert_int_equal(s, DDP_MEMORY);
        assert_true(*err.msg);
        assert_null(l.rank_of);
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    every_allocation_may_fail_of(0);
    every_allocation_may_fail_of(1);
}

/* Must be the last test. */
static void no_memory_leaks(void **state)
{
    (void)state;
    assert_int_equal(memory.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cheapest_of_several_placements_is_used),
        cmocka_unit_test(stages_follow_the_data_flow_and_ranks_the_devices),
        cmocka_unit_test(a_stage_follows_all_its_inputs),
        cmocka_unit_test(a_placement_and_a_cut_can_be_combined),
        cmocka_unit_test(a_file_that_does_not_fit_is_an_error),
        cmocka_unit_test(a_cut_without_sizes_fits_every_model_with_its_operators),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(no_memory_leaks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
