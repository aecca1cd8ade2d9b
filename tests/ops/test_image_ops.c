/* [pure] Image operators: shapes compared with plain counting, costs, errors, buffers. */
#define DREAMDDP_IMPLEMENTATION
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
#include "ops/op_check.h"

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

/* Number of positions of a window. Its first element starts at -padding and advances by stride. */
static long positions(long size, long kernel, long stride, long padding)
{
    long at, n = 0;

    for (at = -padding; at + kernel <= size + padding; at += stride) n++;
    return n;
}

static void output_sizes_of_windows_are_correct(void **unused)
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
        x = kind == 0   ? ddp_conv2d(g, x, out, k, stride, pad, groups, bias)
            : kind == 1 ? ddp_max_pool2d(g, x, k, stride, pad)
                        : ddp_avg_pool2d(g, x, k, stride, pad);
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
            assert_true(info.param_bytes == 4.0 * (double)(kind ? 0 : out * (depth * k * k + bias)));
        }
        ddp_graph_free(g);
    }
    assert_true(refused > 30 && refused < 1500); /* both outcomes occur often */
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
    assert_int_equal(ddp_batch_norm2d(g, x)->spec.saved, 2 * 5); /* mean and rstd */
    /* the positions of the maxima */
    assert_int_equal(ddp_max_pool2d(g, x, 3, 2, 1)->spec.saved, 3 * 5 * 4 * 6);
    assert_int_equal(ddp_avg_pool2d(g, x, 3, 2, 1)->spec.saved, 0);
    ddp_graph_free(g);
}

static void activation_bytes_of_a_planned_graph_include_its_gradients(void **unused)
{
    ddp_graph *g = ddp_graph_new(NULL);
    const size_t large = 4 * 2 * 8 * 64 * 64; /* size of an output of the first two operators */
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

/* ---- errors ---- */

static void expect_error(ddp_graph *g, const ddp_node *refused, const char *part)
{
    assert_null(refused);
    assert_int_equal(ddp_graph_error(g)->code, DDP_ARG);
    if (!strstr(ddp_graph_error(g)->msg, part))
        fail_msg("\"%s\" lacks \"%s\"", ddp_graph_error(g)->msg, part);
    ddp_graph_free(g);
}

typedef struct bad_window {
    long in[4], channels, kernel, stride, padding, groups;
    const char *part; /* part of the message */
} bad_window;

static void impossible_windows_fail_with_an_error(void **unused)
{
    static const bad_window bad[] = {
        {{2, 6, 9, 9},
         8,
         3,
         1,
         1,
         4,
         "with inputs (2, 6, 9, 9): conv2d: groups must divide the "
         "channels: 4 groups for 6 channels in and 8 out"},
        {{2, 8, 9, 9}, 6, 3, 1, 1, 4, "4 groups for 8 channels in and 6 out"},
        {{2, 3, 3, 5},
         8,
         7,
         2,
         1,
         1,
         "a kernel of 7 does not fit into 3 x 5 padded by 1: use a "
         "smaller kernel or more padding"},
        {{2, 3, 5, 3}, 8, 7, 2, 1, 1, "a kernel of 7 does not fit into 5 x 3 padded by 1"},
        {{2, 3, 9, 9}, 0, 3, 1, 1, 1, "the number of channels must be a whole number of at least"},
        {{1, 3, 99, 99}, 8, 65, 1, 1, 1, "conv2d: the kernel may be at most 64, got 65"},
        {{2, 3, 9, 9}, 8, 0, 1, 1, 1, "the kernel must be a whole number of at least 1, got 0"},
        {{2, 3, 9, 9}, 8, 3, -1, 1, 1, "the stride must be a whole number of at least 1, got -1"},
        {{2, 3, 9, 9}, 8, 3, 1, -2, 1, "the padding must be a whole number of at least 0, got -2"},
        {{2, 3, 9, 9}, 8, 3, 1, 1, 0, "the number of groups must be a whole number of at least 1"},
        /* no overflow before the error */
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

static void other_invalid_arguments_fail_with_an_error(void **unused)
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
        snprintf(part, sizeof part,
                 "layer \"stem\", operator %s with inputs (32, 64): %s: the "
                 "input must be (batch, channels, height, width), not of 2 dimensions; "
                 "ddp_input_shape makes one",
                 ops[i], ops[i]);
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
    x = image(g, 2, 3, 9, 9); /* missing arguments are 0 */
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

/* A user-defined operator with kernels and a buffer. */
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

/* Counts the training passes in its buffer. The output is the count. */
static void counted_forward(const ddp_op_call *c)
{
    float *calls = (float *)c->buffer[0];
    long i;

    if (c->training) calls[0]++;
    for (i = 0; i < ddp_shape_count(&c->spec->out); i++) ((float *)c->out)[i] = calls[0];
}

static void only_training_forwards_change_a_buffer(void **unused)
{
    static const ddp_op counted = {"counted", counted_shape, counted_forward, NULL};
    double arg[2] = {1, 6};
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_state *one, *two;
    ddp_shape shape;
    ddp_node *x, *y;
    float *calls;
    size_t count;
    int i;

    (void)unused;
    assert_int_equal(ddp_register_op(g, &counted), DDP_OK);
    ddp_layer_begin(g, "plain");
    x = ddp_relu(g, image(g, 1, 2, 3, 4));
    ddp_layer_end(g);
    ddp_layer_begin(g, "counting");
    y = ddp_apply(g, "counted", 1, &x, 2, arg, NULL);
    y = ddp_apply(g, "counted", 1, &y, 2, arg, NULL);
    ddp_layer_end(g);
    assert_true(describe(g, 2).buffer_bytes == 24 && describe(g, 2).backward_flops == 0);
    assert_null(ddp_node_buffer(g, y, 0, NULL)); /* not allocated yet */
    assert_int_equal(ddp_graph_build(g), DDP_OK);

    calls = ddp_node_buffer(g, y, 0, &shape);
    assert_true(shape.dims == 1 && shape.dim[0] == 6);
    assert_null(ddp_node_buffer(g, y, 1, NULL));
    assert_null(ddp_node_buffer(g, x, 0, NULL));
    assert_null(ddp_layer_buffers(g, 0, &count));
    assert_int_equal(count, 0);
    /* all buffers of a layer form one block, in order */
    assert_ptr_equal(ddp_layer_buffers(g, 1, &count), calls - 6);
    assert_int_equal(count, 12);
    assert_true(calls[0] == 0);
    for (i = 0; i < 3; i++) assert_int_equal(ddp_forward(g), DDP_OK);
    assert_int_equal(ddp_evaluate(g), DDP_OK);
    assert_true(calls[0] == 3 && *ddp_output(g, y) == 3);
    one = ddp_state_new(g); /* states share the buffers, so each pass sees the previous ones */
    two = ddp_state_new(g);
    assert_int_equal(ddp_forward_range(one, 0, 3), DDP_OK);
    assert_int_equal(ddp_forward_range(two, 0, 3), DDP_OK);
    assert_true(*(float *)ddp_state_data(one, y) == 4 && *(float *)ddp_state_data(two, y) == 5);
    ddp_state_free(one);
    ddp_state_free(two);
    ddp_graph_free(g);
}

static void impossible_buffers_fail_with_an_error(void **unused)
{
    static const ddp_op counted = {"counted", counted_shape, counted_forward, NULL};
    double arg[2] = {1, 6};
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *x;
    int i;

    (void)unused;
    ddp_register_op(g, &counted);
    x = image(g, 1, 2, 3, 4);
    assert_non_null(ddp_apply(g, "counted", 1, &x, 2, arg, NULL));
    assert_int_equal(ddp_graph_build(g), DDP_USAGE);
    assert_string_equal(ddp_graph_error(g)->msg,
                        "operator counted (node 1) has buffers but is outside layers: build it "
                        "between ddp_layer_begin and ddp_layer_end");
    ddp_graph_free(g);
    for (i = 0; i < 2; i++) { /* too many buffers, and an empty one */
        g = ddp_graph_new(NULL);
        ddp_register_op(g, &counted);
        x = image(g, 1, 2, 3, 4);
        arg[0] = i ? 1 : 3;
        arg[1] = i ? 0 : 6;
        expect_error(g, ddp_apply(g, "counted", 1, &x, 2, arg, NULL),
                     i ? "impossible buffer shape" : "impossible number of buffers");
    }
}

/* Channels, kernel, stride, padding, groups, bias. */
#define PLANES(b, c, h, w, ...)                                                                 \
    {                                                                                           \
        "conv2d", 1, {{4, {b, c, h, w}}, {0, {0, 0, 0, 0}}}, {DDP_F32, DDP_F32}, {__VA_ARGS__}, \
            {0, {0, 0, 0, 0}}, 1, 0, 0                                                          \
    }

static void convolutions_of_single_planes_agree_with_the_reference(void **unused)
{
    static const op_case cases[] = {
        PLANES(2, 3, 5, 4, 3, 3, 1, 1, 3, 1),
        PLANES(2, 3, 6, 7, 6, 3, 2, 1, 3, 0),  /* two outputs per channel */
        PLANES(1, 2, 9, 11, 2, 2, 5, 0, 2, 0), /* the stride skips input elements */
        PLANES(1, 2, 4, 4, 2, 3, 1, 4, 2, 0),  /* windows that only cover padding */
        PLANES(1, 2, 1, 9, 2, 1, 2, 0, 2, 1),
        PLANES(3, 17, 28, 28, 17, 3, 1, 1, 17, 0),
        PLANES(2, 16, 29, 31, 16, 3, 2, 1, 16, 1),
        PLANES(2, 8, 14, 14, 8, 7, 1, 3, 8, 0),
        PLANES(1, 3, 190, 201, 3, 3, 1, 1, 3, 0), /* a plane in blocks of rows */
        PLANES(1, 2, 203, 190, 2, 5, 2, 2, 2, 0),
        PLANES(1, 2, 5, 33000, 2, 3, 1, 1, 2, 0), /* rows too long, and */
        PLANES(2, 6, 9, 8, 6, 8, 1, 4, 6, 0),     /* a kernel too large for the fast path */
        PLANES(2, 4, 9, 8, 12, 3, 1, 1, 4, 0),    /* three outputs per channel */
    };
    ddp__pool *pool = ddp__pool_open(3);
    size_t i;

    (void)unused;
    assert_non_null(pool);
    assert_true(ddp__pool_rooms(pool));
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t alone;
        op_check c;
        op_open(&c, &cases[i]);
        if (i < 5) {
            op_check_slopes(&c, "conv2d");
            op_check_adds(&c, "conv2d");
        }
        op_check_float(&c, "conv2d", 0);
        op_check_float(&c, "conv2d", 1);
        alone = op_run_hashed(&c, NULL);
        if (op_run_hashed(&c, pool) != alone) fail_msg("case %zu differs with 3 threads", i);
        op_close(&c);
    }
    ddp__pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_of_single_planes_agree_with_the_reference),
        cmocka_unit_test(output_sizes_of_windows_are_correct),
        cmocka_unit_test(flatten_and_global_pooling_give_rows),
        cmocka_unit_test(activation_bytes_of_a_planned_graph_include_its_gradients),
        cmocka_unit_test(impossible_windows_fail_with_an_error),
        cmocka_unit_test(other_invalid_arguments_fail_with_an_error),
        cmocka_unit_test(only_training_forwards_change_a_buffer),
        cmocka_unit_test(impossible_buffers_fail_with_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
