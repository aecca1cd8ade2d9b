/* Operators on images: shapes against plain counting, costs, refusals, and that a graph with them
 * is planned but not built. */
#include <stddef.h>

/* Bookkeeping goes through a counter, so that "nothing is allocated" can be asserted. */
static void *count_realloc(void *p, size_t bytes);
#define DDP_REALLOC(p, bytes) count_realloc(p, bytes)
#define DDP_FREE(p)           free(p)
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

static size_t g_bytes;

static void *count_realloc(void *p, size_t bytes)
{
    g_bytes += bytes;
    return realloc(p, bytes);
}

static ddp_node *image(ddp_graph *g, long b, long c, long h, long w)
{
    ddp_shape s;

    s.dims = 4;
    s.dim[0] = b;
    s.dim[1] = c;
    s.dim[2] = h;
    s.dim[3] = w;
    return ddp_input_shape(g, "x", DDP_F32, &s);
}

static ddp_node_info describe(const ddp_graph *g, int i)
{
    ddp_node_info info;

    assert_int_equal(ddp_node_describe(g, i, &info), DDP_OK);
    return info;
}

/* How often a window fits: its first element walks from -padding in steps of stride. */
static long positions(long size, long kernel, long stride, long padding)
{
    long at, n = 0;

    for (at = -padding; at + kernel <= size + padding; at += stride) n++;
    return n;
}

static void windows_of_odd_sizes_are_counted_right(void **unused)
{
    ddp_rng r = ddp_rng_seed(20, 26);
    int round, refused = 0;

    (void)unused;
    for (round = 0; round < 3000; round++) {
        const long b = 1 + (long)ddp_rng_below(&r, 4), h = 1 + (long)ddp_rng_below(&r, 40);
        const long w = 1 + (long)ddp_rng_below(&r, 40), groups = 1 + (long)ddp_rng_below(&r, 4);
        const long depth = 1 + (long)ddp_rng_below(&r, 5), c = groups * depth;
        const long out = groups * (1 + (long)ddp_rng_below(&r, 5));
        const long k = 1 + (long)ddp_rng_below(&r, 9);
        const int kind = round % 3, bias = (int)ddp_rng_below(&r, 2);
        const long stride = 1 + (long)ddp_rng_below(&r, 4);
        const long pad = (long)ddp_rng_below(&r, (uint64_t)(kind ? k / 2 + 1 : 6));
        const long oh = positions(h, k, stride, pad), ow = positions(w, k, stride, pad);
        ddp_graph *g = ddp_graph_new(NULL);
        ddp_node *x = image(g, b, c, h, w);
        ddp_node_info info;

        ddp_layer_begin(g, "l");
        x = kind == 0 ? ddp_conv2d(g, x, out, k, stride, pad, groups, bias)
          : kind == 1 ? ddp_max_pool2d(g, x, k, stride, pad) : ddp_avg_pool2d(g, x, k, stride, pad);
        if (oh < 1 || ow < 1) {
            assert_null(x);
            assert_non_null(strstr(ddp_graph_error(g)->msg, "does not fit"));
            refused++;
        } else {
            const double elements = (double)(b * (kind ? c : out) * oh * ow);

            if (!x) fail_msg("%s", ddp_graph_error(g)->msg);
            info = describe(g, ddp_node_index(x));
            assert_int_equal(info.out.dims, 4);
            assert_int_equal(info.out.dim[0], b);
            assert_int_equal(info.out.dim[1], kind ? c : out);
            assert_int_equal(info.out.dim[2], oh);
            assert_int_equal(info.out.dim[3], ow);
            assert_true(info.output_bytes == 4 * elements);
            assert_true(info.flops == elements * (double)(kind ? k * k : 2 * depth * k * k));
            assert_true(info.param_bytes ==
                        4.0 * (double)(kind ? 0 : out * (depth * k * k + bias)));
        }
        ddp_graph_free(g);
    }
    assert_true(refused > 30 && refused < 1500); /* both outcomes were met often */
}

static void flatten_and_global_pooling_give_rows(void **unused)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *x = image(g, 3, 5, 7, 11);
    ddp_node_info a = describe(g, ddp_node_index(ddp_flatten(g, x)));
    ddp_node_info b = describe(g, ddp_node_index(ddp_global_avg_pool2d(g, x)));
    ddp_node_info c = describe(g, ddp_node_index(ddp_batch_norm2d(g, x)));

    (void)unused;
    assert_true(a.out.dims == 2 && a.out.dim[0] == 3 && a.out.dim[1] == 5 * 7 * 11 && a.flops == 0);
    assert_true(b.out.dims == 2 && b.out.dim[0] == 3 && b.out.dim[1] == 5);
    assert_true(b.flops == 3 * 5 * 7 * 11 && b.backward_flops == b.flops);
    assert_true(c.out.dims == 4 && c.out.dim[3] == 11);
    assert_true(c.param_bytes == 2 * 5 * 4 && c.buffer_bytes == 2 * 5 * 4);
    assert_int_equal(ddp_batch_norm2d(g, x)->spec.saved, 2 * 5);              /* mean and rstd */
    assert_int_equal(ddp_max_pool2d(g, x, 3, 2, 1)->spec.saved,
                     3 * 5 * 4 * 6); /* where they were */
    assert_int_equal(ddp_avg_pool2d(g, x, 3, 2, 1)->spec.saved, 0);
    ddp_graph_free(g);
}

/* Activations of a planned graph count its gradients: without has_gradient through operators that
 * have no kernels only the outputs of forward would remain. */
static void activation_bytes_of_a_planned_graph_include_its_gradients(void **unused)
{
    ddp_graph *g = ddp_graph_new(NULL);
    const size_t large = 4 * 2 * 8 * 64 * 64; /* one array of the first two operators */
    ddp_node *x = image(g, 2, 3, 64, 64);

    (void)unused;
    ddp_layer_begin(g, "l");
    x = ddp_conv2d(g, x, 8, 3, 1, 1, 1, 1);
    x = ddp_relu(g, ddp_batch_norm2d(g, x));
    x = ddp_linear(g, ddp_global_avg_pool2d(g, x), 10);
    ddp_cross_entropy(g, x, ddp_input(g, "labels", DDP_I32, 2, 1));
    ddp_layer_end(g);
    assert_int_equal(ddp_graph_error(g)->code, DDP_OK);
    /* backward of relu: outputs of conv and norm, gradients of relu and norm */
    assert_true(ddp_activation_bytes(g) > 4 * large && ddp_activation_bytes(g) < 5 * large);
    ddp_graph_free(g);
}

/* ---- mistakes ---- */

static void expect_error(ddp_graph *g, const ddp_node *refused, const char *part)
{
    assert_null(refused);
    assert_int_equal(ddp_graph_error(g)->code, DDP_ARG);
    if (!strstr(ddp_graph_error(g)->msg, part))
        fail_msg("\"%s\" lacks \"%s\"", ddp_graph_error(g)->msg, part);
    ddp_graph_free(g);
}

typedef struct bad_window {
    long        in[4], channels, kernel, stride, padding, groups;
    const char *part; /* of the sentence */
} bad_window;

static void impossible_windows_are_refused_in_a_sentence(void **unused)
{
    static const bad_window bad[] = {
        {{2, 6, 9, 9}, 8, 3, 1, 1, 4, "with inputs (2, 6, 9, 9): conv2d: groups must divide the "
         "channels: 4 groups for 6 channels in and 8 out"},
        {{2, 8, 9, 9}, 6, 3, 1, 1, 4, "4 groups for 8 channels in and 6 out"},
        {{2, 3, 3, 5}, 8, 7, 2, 1, 1, "a kernel of 7 does not fit into 3 x 5 padded by 1: use a "
         "smaller kernel or more padding"},
        {{2, 3, 5, 3}, 8, 7, 2, 1, 1, "a kernel of 7 does not fit into 5 x 3 padded by 1"},
        {{2, 3, 9, 9}, 0, 3, 1, 1, 1, "the number of channels must be a whole number of at least"},
        {{2, 3, 9, 9}, 8, 0, 1, 1, 1, "the kernel must be a whole number of at least 1, got 0"},
        {{2, 3, 9, 9}, 8, 3, -1, 1, 1, "the stride must be a whole number of at least 1, got -1"},
        {{2, 3, 9, 9}, 8, 3, 1, -2, 1, "the padding must be a whole number of at least 0, got -2"},
        {{2, 3, 9, 9}, 8, 3, 1, 1, 0, "the number of groups must be a whole number of at least 1"},
        /* no overflow on the way to the refusal */
        {{2147483647, 3, 9, 9}, 2147483647, 3, 1, 2147483647, 1, "impossible output shape"}};
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof bad / sizeof *bad; i++) {
        const bad_window *b = &bad[i];
        ddp_graph *g = ddp_graph_new(NULL);
        ddp_node *x = image(g, b->in[0], b->in[1], b->in[2], b->in[3]);

        x = ddp_conv2d(g, x, b->channels, b->kernel, b->stride, b->padding, b->groups, 1);
        expect_error(g, x, b->part);
    }
}

static void other_bad_arguments_are_refused_in_a_sentence(void **unused)
{
    static const char *const ops[] = {"conv2d", "batch_norm2d", "max_pool2d", "avg_pool2d",
                                      "global_avg_pool2d"};
    double arg[6] = {8, 3, 1, 1, 1, 1};
    ddp_graph *g;
    ddp_node *x;
    char part[200];
    int i;

    (void)unused;
    for (i = 0; i < 5; i++) {
        g = ddp_graph_new(NULL);
        ddp_layer_begin(g, "stem");
        x = ddp_input(g, "x", DDP_F32, 32, 64);
        snprintf(part, sizeof part, "layer \"stem\", operator %s with inputs (32, 64): %s: the "
                 "input must be (batch, channels, height, width), not of 2 dimensions; "
                 "ddp_input_shape makes one", ops[i], ops[i]);
        expect_error(g, ddp_apply(g, ops[i], 1, &x, 6, arg, NULL), part);
    }
    g = ddp_graph_new(NULL);
    expect_error(g, ddp_flatten(g, ddp_input(g, "x", DDP_I32, 32, 64)), "input 0 must hold floats");
    g = ddp_graph_new(NULL);
    expect_error(g, ddp_apply(g, "flatten", 0, NULL, 0, NULL, NULL), "needs 1 inputs, got 0");
    g = ddp_graph_new(NULL);
    expect_error(g, ddp_max_pool2d(g, image(g, 2, 3, 9, 9), 3, 2, 2),
                 "the padding is 2, it must be at most half the kernel of 3");
    g = ddp_graph_new(NULL);
    x = image(g, 2, 3, 9, 9); /* missing arguments are zeros */
    expect_error(g, ddp_apply(g, "avg_pool2d", 1, &x, 1, arg, NULL), "the stride must be");
    arg[5] = 0.5;
    g = ddp_graph_new(NULL);
    x = image(g, 2, 3, 9, 9);
    expect_error(g, ddp_apply(g, "conv2d", 1, &x, 6, arg, NULL),
                 "the bias must be 1 (with) or 0 (without), got 0.5");
    arg[3] = 0.5;
    arg[5] = 0;
    g = ddp_graph_new(NULL);
    x = image(g, 2, 3, 9, 9);
    expect_error(g, ddp_apply(g, "conv2d", 1, &x, 6, arg, NULL),
                 "the padding must be a whole number of at least 0, got 0.5");
}

/* A user's operator with kernels and a buffer. */
static ddp_status counted_shape(ddp_op_spec *s, ddp_error *err)
{
    (void)err;
    s->out = s->in[0];
    s->buffers = (int)s->arg[0];
    s->buffer[0].name = "calls";
    s->buffer[0].shape.dims = 1;
    s->buffer[0].shape.dim[0] = (long)s->arg[1];
    return DDP_OK;
}

static void counted_forward(const ddp_op_call *c) { (void)c; }

static void what_has_no_kernels_is_planned_but_not_built(void **unused)
{
    static const ddp_op counted = {"counted", counted_shape, counted_forward, NULL, NULL, NULL};
    static const char *const ops[] = {"conv2d", "batch_norm2d", "max_pool2d", "avg_pool2d",
                                      "global_avg_pool2d", "flatten"};
    double arg[2] = {1, 6};
    ddp_graph *g;
    ddp_node *x;
    char part[120];
    size_t before;
    int i;

    (void)unused;
    for (i = 0; i < 6; i++) {
        g = ddp_graph_new(NULL);
        x = image(g, 100, 64, 200, 200);
        ddp_layer_begin(g, "body");
        x = i == 0 ? ddp_conv2d(g, x, 64, 3, 1, 1, 1, 1) : i == 1 ? ddp_batch_norm2d(g, x)
          : i == 2 ? ddp_max_pool2d(g, x, 3, 2, 1)       : i == 3 ? ddp_avg_pool2d(g, x, 3, 2, 1)
          : i == 4 ? ddp_global_avg_pool2d(g, x)         : ddp_flatten(g, x);
        ddp_layer_end(g);
        assert_non_null(x);
        before = g_bytes;
        assert_int_equal(ddp_graph_build(g), DDP_UNSUPPORTED);
        assert_int_equal(g_bytes, before); /* refused before anything is allocated */
        snprintf(part, sizeof part, "operator %s (node 1, layer body) has no kernels: this graph "
                 "can be planned but not run", ops[i]);
        assert_string_equal(ddp_graph_error(g)->msg, part);
        assert_int_equal(ddp_forward(g), DDP_UNSUPPORTED); /* sticky */
        assert_true(describe(g, 1).output_bytes > 0); /* still readable */
        ddp_graph_free(g);
    }

    g = ddp_graph_new(NULL);
    assert_int_equal(ddp_register_op(g, &counted), DDP_OK);
    x = image(g, 1, 2, 3, 4);
    assert_non_null(ddp_apply(g, "counted", 1, &x, 2, arg, NULL));
    assert_true(describe(g, 1).buffer_bytes == 24 && describe(g, 1).backward_flops == 0);
    assert_int_equal(ddp_graph_build(g), DDP_UNSUPPORTED);
    assert_string_equal(ddp_graph_error(g)->msg, "operator counted (node 1) has no place for its "
                        "buffers: this graph can be planned but not run");
    ddp_graph_free(g);

    for (i = 0; i < 2; i++) { /* too many buffers, an empty one */
        g = ddp_graph_new(NULL);
        ddp_register_op(g, &counted);
        x = image(g, 1, 2, 3, 4);
        arg[0] = i ? 1 : 3;
        arg[1] = i ? 0 : 6;
        expect_error(g, ddp_apply(g, "counted", 1, &x, 2, arg, NULL),
                     i ? "impossible buffer shape" : "impossible number of buffers");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_of_odd_sizes_are_counted_right),
        cmocka_unit_test(flatten_and_global_pooling_give_rows),
        cmocka_unit_test(activation_bytes_of_a_planned_graph_include_its_gradients),
        cmocka_unit_test(impossible_windows_are_refused_in_a_sentence),
        cmocka_unit_test(other_bad_arguments_are_refused_in_a_sentence),
        cmocka_unit_test(what_has_no_kernels_is_planned_but_not_built),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
