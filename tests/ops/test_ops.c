/* Every operator: finite differences of the double reference, the float kernels compared with it,
 * accumulation, threads; and the matrix product and row kernels of every instruction set. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
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

#define SCALAR            \
    {                     \
        0, { 0, 0, 0, 0 } \
    }
#define D1(a)             \
    {                     \
        1, { a, 0, 0, 0 } \
    }
#define D2(a, b)          \
    {                     \
        2, { a, b, 0, 0 } \
    }
#define D3(a, b, c)       \
    {                     \
        3, { a, b, c, 0 } \
    }
#define D4(a, b, c, d)    \
    {                     \
        4, { a, b, c, d } \
    }
#define IMAGE(name, shape, ...)                                          \
    {                                                                    \
        name, 1, {shape, SCALAR}, {F, F}, {__VA_ARGS__}, SCALAR, 1, 0, 0 \
    }
#define F DDP_F32
#define I DDP_I32

/* Small cases for finite differences, with odd sizes and sizes of 1. */
static const op_case small_cases[] = {
    {"linear", 1, {D2(5, 7), SCALAR}, {F, F}, {3, 0}, SCALAR, 1, 0, 0},
    {"linear", 1, {D3(2, 3, 17), SCALAR}, {F, F}, {9, 0}, SCALAR, 1, 0, 0},
    {"linear", 1, {D1(4), SCALAR}, {F, F}, {1, 0}, SCALAR, 1, 0, 0},
    {"linear_no_bias", 1, {D2(3, 1), SCALAR}, {F, F}, {13, 0}, SCALAR, 1, 0, 0},
    {"linear_tied", 1, {D3(2, 3, 5), SCALAR}, {F, F}, {0, 0}, D2(11, 5), 1, 0, 0},
    {"embedding", 1, {D2(3, 5), SCALAR}, {I, F}, {7, 9}, SCALAR, 1, 0, 6},
    {"embedding", 1, {D1(1), SCALAR}, {I, F}, {1, 1}, SCALAR, 1, 0, 0},
    {"position", 1, {D3(3, 5, 7), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"layer_norm", 1, {D2(4, 9), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"layer_norm", 1, {D3(2, 2, 33), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"layer_norm", 1, {D2(3, 16), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"attention", 1, {D3(1, 1, 3), SCALAR}, {F, F}, {1, 0}, SCALAR, 1, 0, 0},
    {"attention", 1, {D3(2, 7, 18), SCALAR}, {F, F}, {2, 0}, SCALAR, 1, 0, 0},
    {"attention", 1, {D3(1, 13, 45), SCALAR}, {F, F}, {3, 0}, SCALAR, 1, 0, 0},
    {"attention", 1, {D3(2, 7, 8 * 3), SCALAR}, {F, F}, {4, 2}, SCALAR, 1, 0, 0},
    {"attention", 1, {D3(2, 9, 5 * 5), SCALAR}, {F, F}, {3, 1}, SCALAR, 1, 0, 0},
    {"rms_norm", 1, {D2(4, 9), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"rms_norm", 1, {D3(2, 2, 33), SCALAR}, {F, F}, {0.1, 0}, SCALAR, 1, 0, 0},
    {"rms_norm", 1, {D1(1), SCALAR}, {F, F}, {0.5, 0}, SCALAR, 1, 0, 0},
    {"rope", 1, {D3(2, 7, 3 * 6), SCALAR}, {F, F}, {1, 0}, SCALAR, 1, 0, 0},
    {"rope", 1, {D3(3, 5, 8 * 2), SCALAR}, {F, F}, {4, 2}, SCALAR, 1, 0, 0},
    {"rope", 1, {D3(1, 3, 4 * 34), SCALAR}, {F, F}, {2, 1}, SCALAR, 1, 0, 0},
    {"swiglu", 1, {D2(7, 22), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"swiglu", 2, {D3(2, 3, 17), D3(2, 3, 17)}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"gelu", 1, {D2(7, 11), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"relu", 1, {D2(7, 11), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"add", 2, {D2(7, 11), D2(7, 11)}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"dropout", 1, {D2(9, 11), SCALAR}, {F, F}, {0.3, 0}, SCALAR, 1, 0, 0},
    {"dropout", 1, {D2(9, 11), SCALAR}, {F, F}, {0.3, 0}, SCALAR, 0, 0, 0},
    {"cross_entropy", 2, {D2(7, 11), D2(7, 1)}, {F, I}, {0, 0}, SCALAR, 1, -1, 10},
    {"cross_entropy", 2, {D3(2, 5, 17), D2(2, 5)}, {F, I}, {0, 0}, SCALAR, 1, 0, 16},
    {"cross_entropy", 2, {D2(3, 2), D1(3)}, {F, I}, {0, 0}, SCALAR, 1, -1, -1},
    {"linear_cross_entropy", 2, {D2(7, 5), D2(7, 1)}, {F, I}, {11, 0}, SCALAR, 1, -1, 10},
    {"linear_cross_entropy", 2, {D3(2, 5, 3), D2(2, 5)}, {F, I}, {0, 0}, D2(17, 3), 1, 0, 16},
    {"linear_cross_entropy", 2, {D2(3, 4), D1(3)}, {F, I}, {2, 0}, SCALAR, 1, -1, -1},
    /* channels, kernel, stride, padding, groups, bias */
    IMAGE("conv2d", D4(2, 3, 5, 7), 4, 3, 1, 1, 1, 1),
    IMAGE("conv2d", D4(2, 3, 5, 7), 4, 3, 2, 1, 1, 0),
    IMAGE("conv2d", D4(1, 4, 6, 5), 6, 2, 1, 0, 2, 1),
    IMAGE("conv2d", D4(2, 3, 4, 4), 3, 3, 1, 2, 3, 0), /* depthwise, padded by more than half the kernel */
    IMAGE("conv2d", D4(2, 3, 5, 4), 5, 1, 1, 0, 1, 1),
    IMAGE("conv2d", D4(2, 2, 7, 6), 3, 1, 3, 0, 1, 0), /* the stride skips input elements */
    IMAGE("conv2d", D4(1, 2, 1, 9), 2, 1, 2, 0, 1, 0),
    IMAGE("conv2d", D4(1, 2, 9, 11), 3, 2, 4, 1, 1, 1),
    IMAGE("conv2d", D4(1, 1, 9, 9), 2, 7, 2, 3, 1, 0),
    IMAGE("conv2d", D4(1, 1, 1, 1), 1, 1, 1, 0, 1, 1),
    IMAGE("batch_norm2d", D4(3, 2, 3, 5), 0),
    IMAGE("batch_norm2d", D4(5, 3, 1, 1), 0),
    IMAGE("max_pool2d", D4(2, 3, 6, 6), 2, 2, 0), /* kernel, stride, padding */
    IMAGE("max_pool2d", D4(2, 2, 7, 5), 3, 2, 1),
    IMAGE("avg_pool2d", D4(2, 2, 7, 5), 3, 2, 1),
    IMAGE("avg_pool2d", D4(1, 2, 5, 5), 2, 1, 0),
    IMAGE("global_avg_pool2d", D4(2, 3, 5, 3), 0),
    IMAGE("flatten", D4(2, 3, 2, 3), 0),
};

/* Larger cases: several parallel blocks, several tiles of every loop, odd remainders. */
static const op_case large_cases[] = {
    {"linear", 1, {D2(211, 300), SCALAR}, {F, F}, {301, 0}, SCALAR, 1, 0, 0},
    {"linear", 1, {D3(2, 100, 65), SCALAR}, {F, F}, {700, 0}, SCALAR, 1, 0, 0},
    {"linear_no_bias", 1, {D2(33, 129), SCALAR}, {F, F}, {67, 0}, SCALAR, 1, 0, 0},
    {"linear_tied", 1, {D3(3, 21, 48), SCALAR}, {F, F}, {0, 0}, D2(517, 48), 1, 0, 0},
    {"embedding", 1, {D2(9, 50), SCALAR}, {I, F}, {61, 131}, SCALAR, 1, 0, 60},
    {"position", 1, {D3(3, 129, 131), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"layer_norm", 1, {D3(3, 51, 387), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"attention", 1, {D3(2, 300, 3 * 66), SCALAR}, {F, F}, {3, 0}, SCALAR, 1, 0, 0}, /* split into parts */
    {"attention", 1, {D3(1, 70, 3 * 512), SCALAR}, {F, F}, {1, 0}, SCALAR, 1, 0, 0}, /* largest width */
    {"attention", 1, {D3(2, 131, 8 * 22), SCALAR}, {F, F}, {6, 1}, SCALAR, 1, 0, 0},
    {"attention", 1, {D3(1, 523, 10 * 17), SCALAR}, {F, F}, {6, 2}, SCALAR, 1, 0, 0},
    {"attention", 1, {D3(1, 65, 18 * 8), SCALAR}, {F, F}, {6, 6}, SCALAR, 1, 0, 0},
    {"rms_norm", 1, {D3(3, 51, 387), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"rope", 1, {D3(3, 129, 8 * 38), SCALAR}, {F, F}, {4, 2}, SCALAR, 1, 0, 0},
    {"rope", 1, {D3(1, 300, 3 * 128), SCALAR}, {F, F}, {1, 0}, SCALAR, 1, 0, 0},
    {"swiglu", 1, {D3(3, 51, 2 * 171), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"swiglu", 2, {D2(203, 131), D2(203, 131)}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"attention", 1, {D3(1, 65, 3 * 5), SCALAR}, {F, F}, {5, 0}, SCALAR, 1, 0, 0},
    {"gelu", 1, {D2(203, 131), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"relu", 1, {D2(203, 131), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"add", 2, {D2(203, 131), D2(203, 131)}, {F, F}, {0, 0}, SCALAR, 1, 0, 0},
    {"dropout", 1, {D2(203, 131), SCALAR}, {F, F}, {0.1, 0}, SCALAR, 1, 0, 0},
    {"cross_entropy", 2, {D2(103, 1031), D1(103)}, {F, I}, {0, 0}, SCALAR, 1, -1, 1030},
    {"linear_cross_entropy",
     2,
     {D3(3, 201, 21), D2(3, 201)},
     {F, I},
     {0, 0},
     D2(77, 21),
     1,
     -1,
     76}, /* three chunks */
    {"linear_cross_entropy", 2, {D2(5, 48), D1(5)}, {F, I}, {1031, 0}, SCALAR, 1, 0, 1030},
    IMAGE("conv2d", D4(2, 65, 19, 33), 70, 3, 1, 1, 1, 1),
    IMAGE("conv2d", D4(3, 30, 23, 17), 50, 3, 2, 1, 2, 0),
    IMAGE("conv2d", D4(37, 50, 4, 4), 290, 3, 1, 1, 1, 0), /* images in a strip; blocks of rows for several
                                                            * threads */
    IMAGE("conv2d", D4(3, 19, 5, 4), 570, 3, 1, 1, 1, 1),  /* for one thread too */
    IMAGE("conv2d", D4(33, 9, 2, 3), 11, 3, 1, 1, 1, 0),
    IMAGE("conv2d", D4(2, 3, 65, 61), 21, 7, 2, 3, 1, 0),
    IMAGE("conv2d", D4(3, 300, 7, 9), 37, 1, 1, 0, 1, 1),
    IMAGE("conv2d", D4(3, 250, 14, 9), 37, 1, 2, 0, 1, 0),
    IMAGE("conv2d", D4(2, 24, 13, 11), 48, 5, 1, 2, 24, 1),
    IMAGE("conv2d", D4(1, 2, 3, 1100), 5, 3, 1, 1, 1, 0), /* a row in parts */
    IMAGE("conv2d", D4(1, 2, 5, 1300), 5, 3, 2, 1, 1, 0),
    IMAGE("conv2d", D4(2, 3, 40, 48), 8, 16, 16, 0, 1, 1), /* more taps than fit into a block */
    /* by Winograd's algorithm: rows of tiles in parts, groups, more padding than the kernel needs, none */
    IMAGE("conv2d", D4(2, 20, 5, 131), 18, 3, 1, 1, 1, 0),
    IMAGE("conv2d", D4(2, 40, 6, 71), 36, 3, 1, 1, 2, 1),
    IMAGE("conv2d", D4(2, 17, 9, 10), 16, 3, 1, 2, 1, 0),
    IMAGE("conv2d", D4(3, 130, 8, 7), 70, 3, 1, 0, 1, 1),
    IMAGE("conv2d", D4(1, 2, 70, 81), 3, 64, 60, 3, 1, 1),
    IMAGE("batch_norm2d", D4(7, 19, 13, 17), 0),
    {"batch_norm2d", 1, {D4(7, 19, 13, 17), SCALAR}, {F, F}, {0}, SCALAR, 0, 0, 0},
    IMAGE("max_pool2d", D4(5, 31, 19, 23), 3, 2, 1),
    IMAGE("avg_pool2d", D4(5, 31, 19, 23), 3, 2, 1),
    IMAGE("global_avg_pool2d", D4(61, 131, 5, 7), 0),
    IMAGE("flatten", D4(21, 13, 5, 7), 0),
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void gradients_match_finite_differences(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(small_cases); i++) {
        op_check c;
        op_open(&c, &small_cases[i]);
        op_check_slopes(&c, small_cases[i].op);
        op_check_adds(&c, small_cases[i].op);
        op_close(&c);
    }
}

static void float_kernels_match_the_reference(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(small_cases) + COUNT(large_cases); i++) {
        const op_case *k = i < COUNT(small_cases) ? &small_cases[i] : &large_cases[i - COUNT(small_cases)];
        op_check c;
        op_open(&c, k);
        op_check_float(&c, k->op, 0);
        op_check_float(&c, k->op, 1);
        op_close(&c);
    }
}

static void threads_are_bit_identical_to_one_thread(void **state)
{
    size_t i;
    int threads;

    (void)state;
    for (threads = 1; threads <= 3; threads++) {
        ddp__pool *pool = ddp__pool_open(threads);
        assert_non_null(pool);
        assert_true(ddp__pool_rooms(pool));
        for (i = 0; i < COUNT(large_cases); i++) {
            op_check c;
            uint64_t alone;
            op_open(&c, &large_cases[i]);
            alone = op_run_hashed(&c, NULL);
            if (op_run_hashed(&c, pool) != alone)
                fail_msg("%s differs with %d threads", large_cases[i].op, threads);
            op_close(&c);
        }
        ddp__pool_close(pool);
    }
}

/* The memory sharing that the specs allow: out overwrites input 0, grad_in overwrites in. */
static void sharing_memory_does_not_change_results(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(large_cases); i++) {
        const op_case *k = &large_cases[i];
        ddp_op_call call;
        op_check a, b;
        size_t bytes;
        op_open(&a, k);
        op_open(&b, k);
        (void)op_run_hashed(&a, NULL);
        if (b.spec.in_place_ok) {
            bytes = (size_t)ddp_shape_count(&b.spec.out) * sizeof(float);
            op_call_of(&b, 0, 0, NULL, &call);
            call.out = b.side[0].in[0];
            b.op->forward(&call);
            assert_memory_equal(call.out, a.side[0].out, bytes);
            /* backward reads neither of them */
            call.in[0] = NULL;
            call.out = NULL;
            op_preset(&b, 0.5, 0.25);
            b.op->backward(&call);
            assert_memory_equal(b.side[0].grad_in[0], a.side[0].grad_in[0], bytes);
        } else if (b.spec.out_unread) {
            op_call_of(&b, 0, 0, NULL, &call);
            b.op->forward(&call);
            call.out = NULL;
            if (b.spec.grad_over_input) call.grad_in[0] = b.side[0].in[0];
            op_preset(&b, 0.5, 0.25);
            b.op->backward(&call);
            bytes = (size_t)ddp_shape_count(&b.spec.in[0]) * sizeof(float);
            if (call.grad_in[0]) assert_memory_equal(call.grad_in[0], a.side[0].grad_in[0], bytes);
        }
        op_close(&a);
        op_close(&b);
    }
}

static void unrequested_gradients_are_not_written(void **state)
{
    size_t i;
    int real, j;

    (void)state;
    for (i = 0; i < COUNT(small_cases); i++)
        for (real = 0; real < 2; real++) {
            ddp_op_call call;
            op_check c;
            op_open(&c, &small_cases[i]);
            op_forward(&c, real, NULL);
            op_call_of(&c, real, 0, NULL, &call);
            for (j = 0; j < DDP_OP_INPUTS; j++) call.grad_in[j] = NULL;
            for (j = 0; j < DDP_OP_PARAMS; j++) call.grad_param[j] = NULL;
            (real ? c.ref->backward : c.op->backward)(&call); /* an access would crash */
            op_close(&c);
        }
}

static void dropout_keeps_the_given_share_and_repeats_its_mask(void **state)
{
    const op_case k = {"dropout", 1, {D2(300, 211), SCALAR}, {F, F}, {0.25, 0}, SCALAR, 1, 0, 0};
    const long n = 300 * 211;
    const float *x, *y, *dx, *dy;
    long i, kept = 0, same = 0, pairs = 0;
    float *before;
    ddp_op_call call;
    op_check c;

    (void)state;
    op_open(&c, &k);
    op_forward(&c, 0, NULL);
    op_backward(&c, 0, 0, NULL);
    x = (const float *)c.side[0].in[0];
    y = (const float *)c.side[0].out;
    dx = (const float *)c.side[0].grad_in[0];
    dy = (const float *)c.side[0].grad_out;
    for (i = 0; i < n; i++) {
        assert_int_equal(y[i] != 0, dx[i] != 0);
        if (y[i] == 0) continue;
        kept++;
        assert_true(fabsf(y[i] - x[i] / 0.75f) < 1e-6f && fabsf(dx[i] - dy[i] / 0.75f) < 1e-6f);
    }
    /* the deviation is sqrt(n p q) = 109. The bound is five of them. */
    assert_true(labs(kept - 47475) < 545);
    /* neighbours are independent, so the same holds for pairs with p^2 + q^2 = 0.625 */
    for (i = 0; i < n; i += 2) pairs += (y[i] != 0) == (y[i + 1] != 0);
    assert_true(labs(pairs - 19781) < 430);
    /* another seed gives another, independent mask */
    before = (float *)op_new((size_t)n, sizeof *before);
    memcpy(before, y, (size_t)n * sizeof *before);
    op_call_of(&c, 0, 0, NULL, &call);
    call.random++;
    c.op->forward(&call);
    for (i = 0; i < n; i++) same += (before[i] != 0) == (y[i] != 0);
    assert_true(labs(same - 39562) < 610);
    call.training = 0;
    c.op->forward(&call);
    assert_memory_equal(y, x, (size_t)n * sizeof *y);
    free(before);
    op_close(&c);
}

static void cross_entropy_of_equal_logits_is_log_n(void **state)
{
    const op_case k = {"cross_entropy", 2, {D2(3, 5), D1(3)}, {F, I}, {0, 0}, SCALAR, 1, 0, 4};
    float *x, *loss;
    op_check c;
    int i;

    (void)state;
    op_open(&c, &k);
    x = (float *)c.side[0].in[0];
    loss = (float *)c.side[0].out;
    for (i = 0; i < 15; i++) x[i] = 3;
    ((int32_t *)c.side[0].in[1])[1] = -1; /* two rows count */
    op_forward(&c, 0, NULL);
    assert_true(fabsf(*loss - 1.6094379f) < 1e-6f);
    *(float *)c.side[0].grad_out = 1;
    op_backward(&c, 0, 0, NULL);
    for (i = 0; i < 15; i++) {
        const int label = ((int32_t *)c.side[0].in[1])[i / 5];
        const float want = label == -1 ? 0.0f : (0.2f - (label == i % 5 ? 1.0f : 0.0f)) / 2;
        assert_true(fabsf(((float *)c.side[0].grad_in[0])[i] - want) < 1e-6f);
    }
    /* logits that are far apart do not overflow */
    for (i = 0; i < 15; i++) x[i] = i % 5 ? -1e30f : 1e30f;
    for (i = 0; i < 3; i++) ((int32_t *)c.side[0].in[1])[i] = 0;
    op_forward(&c, 0, NULL);
    assert_true(*loss == 0);
    op_close(&c);
}

static void indices_out_of_range_give_nan(void **state)
{
    const op_case e = {"embedding", 1, {D1(3), SCALAR}, {I, F}, {4, 5}, SCALAR, 1, 0, 3};
    const op_case l = {"cross_entropy", 2, {D2(3, 5), D1(3)}, {F, I}, {0, 0}, SCALAR, 1, 0, 4};
    const int32_t bad[2] = {-2, 5};
    op_check c;
    int i, real;

    (void)state;
    for (real = 0; real < 2; real++)
        for (i = 0; i < 2; i++) {
            op_open(&c, &e);
            ((int32_t *)c.side[real].in[0])[1] = bad[i];
            op_forward(&c, real, NULL);
            assert_true(isnan(op_get(&c, real, c.side[real].out, 5)));
            assert_true(!isnan(op_get(&c, real, c.side[real].out, 4)));
            assert_true(!isnan(op_get(&c, real, c.side[real].out, 10)));
            op_backward(&c, real, 0, NULL);
            op_close(&c);
            op_open(&c, &l);
            ((int32_t *)c.side[real].in[1])[1] = bad[i];
            op_forward(&c, real, NULL);
            assert_true(isnan(op_get(&c, real, c.side[real].out, 0)));
            op_backward(&c, real, 0, NULL);
            assert_true(isnan(op_get(&c, real, c.side[real].grad_in[0], 5)));
            op_close(&c);
        }
}

static void nan_propagates(void **state)
{
    static const char *const names[] = {"gelu", "relu", "layer_norm", "rms_norm"};
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(names); i++) {
        op_case k = {"", 1, {D2(3, 21), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0};
        op_check c;
        k.op = names[i];
        op_open(&c, &k);
        ((float *)c.side[0].in[0])[30] = NAN;
        op_forward(&c, 0, NULL);
        assert_true(isnan(((float *)c.side[0].out)[30]));
        op_close(&c);
    }
}

static void expect_refusal(const op_case *k, const char *word)
{
    const ddp_op *op = ddp__builtin_op(k->op);
    ddp_op_spec s;
    ddp_error err;
    int i;

    memset(&s, 0, sizeof s);
    memset(&err, 0, sizeof err);
    s.inputs = k->inputs;
    for (i = 0; i < k->inputs; i++) {
        s.in[i] = k->in[i];
        s.in_type[i] = k->type[i];
    }
    for (i = 0; i < 6; i++) s.arg[i] = k->arg[i];
    if (k->tied.dims) {
        s.params = 1;
        s.param[0].shape = k->tied;
    }
    assert_int_equal(op->shape(&s, &err), DDP_ARG);
    if (!strstr(err.msg, word) || strncmp(err.msg, k->op, strlen(k->op)))
        fail_msg("\"%s\" does not begin with %s and name \"%s\"", err.msg, k->op, word);
}

static void mismatched_shapes_fail_with_an_error(void **state)
{
    static const struct {
        op_case k;
        const char *word;
    } bad[] = {
        {{"linear", 1, {D2(2, 3), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0}, "got 0"},
        {{"linear", 1, {D2(2, 3), SCALAR}, {F, F}, {2.5, 0}, SCALAR, 1, 0, 0}, "got 2.5"},
        {{"linear", 1, {SCALAR, SCALAR}, {F, F}, {2, 0}, SCALAR, 1, 0, 0}, "scalar"},
        {{"linear", 1, {D2(2, 3), SCALAR}, {I, F}, {2, 0}, SCALAR, 1, 0, 0}, "integers"},
        {{"linear_tied", 1, {D2(2, 3), SCALAR}, {F, F}, {0, 0}, D2(7, 4), 1, 0, 0}, "rows of 4"},
        {{"linear_tied", 1, {D2(2, 3), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0}, "weight"},
        {{"embedding", 1, {D2(2, 3), SCALAR}, {F, F}, {7, 4}, SCALAR, 1, 0, 0}, "integers"},
        {{"embedding", 1, {D2(2, 3), SCALAR}, {I, F}, {7, -4}, SCALAR, 1, 0, 0}, "got -4"},
        {{"position", 1, {D2(2, 3), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0}, "got 2"},
        {{"attention", 1, {D3(2, 3, 18), SCALAR}, {F, F}, {4, 0}, SCALAR, 1, 0, 0}, "4 heads"},
        {{"attention", 1, {D3(2, 3, 17), SCALAR}, {F, F}, {1, 0}, SCALAR, 1, 0, 0}, "(17)"},
        {{"attention", 1, {D2(2, 18), SCALAR}, {F, F}, {1, 0}, SCALAR, 1, 0, 0}, "got 2"},
        {{"attention", 1, {D3(2, 3, 18), SCALAR}, {F, F}, {4, 3}, SCALAR, 1, 0, 0}, "3 heads of"},
        {{"attention", 1, {D3(2, 3, 20), SCALAR}, {F, F}, {4, 1}, SCALAR, 1, 0, 0}, "of 6"},
        {{"attention", 1, {D3(2, 3, 18), SCALAR}, {F, F}, {4, -1}, SCALAR, 1, 0, 0}, "got -1"},
        {{"attention", 1, {D3(2, 3, 1539), SCALAR}, {F, F}, {1, 0}, SCALAR, 1, 0, 0}, "513 wide"},
        {{"rope", 1, {D3(2, 3, 9), SCALAR}, {F, F}, {1, 0}, SCALAR, 1, 0, 0}, "3 wide"},
        {{"rope", 1, {D3(2, 3, 18), SCALAR}, {F, F}, {4, 3}, SCALAR, 1, 0, 0}, "3 heads of"},
        {{"rms_norm", 1, {D2(2, 3), SCALAR}, {F, F}, {-1, 0}, SCALAR, 1, 0, 0}, "eps is -1"},
        {{"swiglu", 1, {D2(2, 3), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0}, "(3)"},
        {{"swiglu", 2, {D2(2, 3), D2(2, 4)}, {F, F}, {0, 0}, SCALAR, 1, 0, 0}, "3 and 4"},
        {{"add", 2, {D2(2, 3), D2(2, 4)}, {F, F}, {0, 0}, SCALAR, 1, 0, 0}, "3 and 4"},
        {{"add", 1, {D2(2, 3), SCALAR}, {F, F}, {0, 0}, SCALAR, 1, 0, 0}, "got 1"},
        {{"dropout", 1, {D2(2, 3), SCALAR}, {F, F}, {1, 0}, SCALAR, 1, 0, 0}, "got 1"},
        {{"cross_entropy", 2, {D2(2, 3), D1(3)}, {F, I}, {0, 0}, SCALAR, 1, 0, 0}, "3 labels"},
        {{"cross_entropy", 2, {D2(2, 3), D1(2)}, {F, F}, {0, 0}, SCALAR, 1, 0, 0}, "integers"},
        {{"linear_cross_entropy", 2, {D2(2, 3), D1(3)}, {F, I}, {5, 0}, SCALAR, 1, 0, 0}, "3 labels"},
        {{"linear_cross_entropy", 2, {D2(2, 3), D1(2)}, {F, I}, {0, 0}, SCALAR, 1, 0, 0}, "width must be"},
        {{"linear_cross_entropy", 2, {D2(2, 3), D1(2)}, {F, I}, {0, 0}, D2(7, 4), 1, 0, 0}, "rows of 4"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(bad); i++) expect_refusal(&bad[i].k, bad[i].word);
    assert_null(ddp__builtin_op("sofmax"));
}

/* ---- matrix product ---- */

/* On the calling thread only, with the given kernels. */
static void matmul_serial(const ddp__kernels *kernels, const ddp__matmul *g)
{
    static ddp__matmul_room room;
    ddp__matmul_job job;
    const long blocks = ddp__matmul_split(&job, g, kernels, 1);

    ddp__matmul_blocks(&job, &room, 0, blocks);
}

static void product_case(const ddp__kernels *kn, long m, long n, long k, int mode, int add, int bias)
{
    const long wide = 3; /* rows of a, b and c have padding */
    ddp_rng r = ddp_rng_seed((uint64_t)(m * 1000 + n), (uint64_t)k);
    const long an = m > k ? m : k, bn = n > k ? n : k;
    const long la = an + wide, lb = bn + wide, lc = n + wide;
    float *a = (float *)op_new((size_t)(la * la), sizeof *a);
    float *b = (float *)op_new((size_t)(lb * lb), sizeof *b);
    float *c = (float *)op_new((size_t)(m * lc + 1), sizeof *c);
    float *old = (float *)op_new((size_t)(m * lc + 1), sizeof *old);
    float *shift = (float *)op_new((size_t)n, sizeof *shift);
    ddp__matmul g;
    long i, j, p;

    for (i = 0; i < la * la; i++) a[i] = (float)(ddp_rng_uniform(&r) - 0.5);
    for (i = 0; i < lb * lb; i++) b[i] = (float)(ddp_rng_uniform(&r) - 0.5);
    for (i = 0; i < m * lc; i++) c[i] = old[i] = (float)(ddp_rng_uniform(&r) - 0.5);
    for (i = 0; i < n; i++) shift[i] = (float)i;
    memset(&g, 0, sizeof g);
    g.m = m;
    g.n = n;
    g.k = k;
    g.a = a;
    g.a_row = mode & 1 ? 1 : la;
    g.a_col = mode & 1 ? la : 1;
    g.b = b;
    g.b_row = mode & 2 ? 1 : lb;
    g.b_col = mode & 2 ? lb : 1;
    g.c = c;
    g.c_row = lc;
    g.add = add;
    g.bias = bias ? shift : NULL;
    matmul_serial(kn, &g);
    for (i = 0; i < m; i++)
        for (j = 0; j < lc; j++) {
            double want = j < n && !add ? (bias ? (double)shift[j] : 0) : (double)old[i * lc + j];
            double size = fabs(want) + 1;
            for (p = 0; j < n && p < k; p++) {
                const double term =
                    (double)a[i * g.a_row + p * g.a_col] * (double)b[p * g.b_row + j * g.b_col];
                want += term;
                size += fabs(term);
            }
            if (!(fabs((double)c[i * lc + j] - want) <= 1e-6 * size))
                fail_msg("%s %ldx%ldx%ld mode %d add %d: c[%ld][%ld] is %g, not %g", kn->name, m, n, k, mode,
                         add, i, j, (double)c[i * lc + j], want);
        }
    free(a);
    free(b);
    free(c);
    free(old);
    free(shift);
}

static void products_of_all_sizes_match_the_triple_loop(void **state)
{
    static const long odd[][3] = {{12, 32, 256}, {13, 33, 257}, {193, 7, 300}, {5, 259, 31},
                                  {64, 64, 64},  {1, 100, 513}, {100, 1, 513}, {191, 255, 3}};
    const ddp__kernels *kn;
    long m, n, k;
    int set, mode;
    size_t i;

    (void)state;
    for (set = 0; (kn = ddp__kernels_at(set)) != NULL; set++)
        for (mode = 0; mode < 4; mode++) {
            for (m = 1; m <= 17; m += 1 + (m > 2))
                for (n = 1; n <= 17; n += 1 + (n > 2))
                    for (k = 0; k <= 17; k += 1 + 3 * (k > 1))
                        product_case(kn, m, n, k, mode, (int)((m + n + k) & 1), 0);
            for (i = 0; i < COUNT(odd); i++) {
                product_case(kn, odd[i][0], odd[i][1], odd[i][2], mode, 0, (int)(i & 1));
                product_case(kn, odd[i][0], odd[i][1], odd[i][2], mode, 1, 0);
            }
        }
    assert_true(set >= 1);
}

/* ---- row kernels of every instruction set, compared with libm in double ---- */

static void row_case(const ddp__kernels *kn, long n)
{
    ddp_rng r = ddp_rng_seed(3, (uint64_t)n);
    float x[200], y[200], z[200], stat[2], max = -1e30f;
    double sum = 0, dot = 0, mean = 0, var = 0;
    long i;

    for (i = 0; i < n; i++) {
        x[i] = (float)(20 * ddp_rng_uniform(&r) - 10);
        z[i] = (float)(ddp_rng_uniform(&r) - 0.5);
        if (x[i] > max) max = x[i];
        dot += (double)x[i] * (double)z[i];
        mean += (double)x[i] / (double)n;
    }
    y[n] = 77; /* must not be overwritten */
    assert_true(kn->max(x, n) == max);
    assert_true(fabs((double)kn->dot(x, z, n) - dot) < 1e-5 * (1 + 10 * sqrt((double)n)));
    for (i = 0; i < n; i++) sum += exp(0.5 * (double)x[i] - (double)max);
    assert_true(fabs((double)kn->softmax(y, x, n, 0.5f, max, 1, 0) / sum - 1) < 1e-6);
    for (i = 0; i < n; i++) {
        const double e = 0.5 * (double)x[i] - (double)max; /* the rounding error is relative to max */
        assert_true(fabs((double)y[i] / exp(e) - 1) < 3e-6);
    }
    assert_true(fabs((double)kn->softmax(NULL, x, n, 0.5f, max, 1, 0) / sum - 1) < 1e-6);
    kn->gelu(y, x, n);
    for (i = 0; i < n; i++) {
        const double v = (double)x[i];
        const double want = 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
        assert_true(fabs((double)y[i] - want) < 1e-6 * (1 + fabs(want)));
    }
    for (i = 0; i < n; i++) var += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)n;
    kn->norm(y, x, z, z, n, 1e-5f, stat);
    for (i = 0; i < n; i++) {
        const double want = ((double)x[i] - mean) / sqrt(var + 1e-5) * (double)z[i] + (double)z[i];
        assert_true(fabs((double)y[i] - want) < (n == 1 ? 1e-3 : 1e-5));
    }
    assert_true(y[n] == 77);
}

/* Transposes and gathers rows of every width and length, and checks sums and linear updates. */
static void copy_case(const ddp__kernels *kn, long rows, long k)
{
    const long width = rows <= kn->mr ? kn->mr : kn->nr;
    float x[2100], y[2100], sum[2], *out = (float *)op_new((size_t)(width * k + kn->nr), sizeof *y);
    long at[64], i, p;
    double one = 0, two = 0;

    for (i = 0; i < 2100; i++) x[i] = (float)((i * 37 % 101) - 50);
    for (i = 0; i < 64; i++) at[i] = i * 29 % 64 * 31;
    for (i = 0; i < width * k + kn->nr; i++) out[i] = 77;
    kn->turn(out, width, x, at, rows, k);
    for (p = 0; p < k; p++)
        for (i = 0; i < rows; i++) assert_true(out[p * width + i] == x[at[i] + p]);
    for (i = width * k + kn->nr / 2; i < width * k + kn->nr; i++) assert_true(out[i] == 77);

    for (i = 0; i < width * k + kn->nr; i++) out[i] = 77;
    kn->gather(out, width, x, at, k, rows);
    for (p = 0; p < k; p++)
        for (i = 0; i < width; i++) assert_true(out[p * width + i] == (i < rows ? x[at[p] + i] : 77));

    kn->moments(x, x + 50, k, 3, 5, sum);
    for (i = 0; i < k; i++) {
        one += (double)x[i + 50] - 5;
        two += ((double)x[i + 50] - 5) * ((double)x[i] - 3);
    }
    assert_true((double)sum[0] == one && (double)sum[1] == two); /* whole numbers */
    for (i = 0; i < k + 1; i++) y[i] = 1;
    kn->affine(y, x, x + 50, k, 2, 3, 4, 1);
    for (i = 0; i < k; i++) assert_true(y[i] == 1 + 2 * x[i] + 3 * x[i + 50] + 4);
    kn->affine(y, x, NULL, k, 2, 3, 4, 0);
    for (i = 0; i < k; i++) assert_true(y[i] == 2 * x[i] + 4);
    assert_true(y[k] == 1);
    free(out);
}

static void copy_kernels_of_every_set_match_plain_loops(void **state)
{
    const ddp__kernels *kn;
    long rows, k;
    int set;

    (void)state;
    for (set = 0; (kn = ddp__kernels_at(set)) != NULL; set++)
        for (rows = 1; rows <= kn->nr; rows++)
            for (k = 1; k < 50; k++) copy_case(kn, rows, k);
}

/* Sum of the products of `lines` lines of n floats, one every x_step and y_step floats. */
static double inner(const float *x, long x_step, const float *y, long y_step, int lines, long n)
{
    double sum = 0;
    long i;
    int e;

    for (e = 0; e < lines; e++)
        for (i = 0; i < n; i++) sum += (double)x[e * x_step + i] * (double)y[e * y_step + i];
    return sum;
}

/* A tile of n channels: output(weight(w) * input(x)) is the convolution of x and w, and the other two
 * transforms are the transposes of output and weight. */
static void winograd_case(const ddp__kernels *kn, long n)
{
    enum { STEP = 96 }; /* n <= 64, rounded up to a vector, and some more */
    ddp_rng r = ddp_rng_seed(5, (uint64_t)n);
    static float x[16 * STEP], w[9 * STEP], v[16 * STEP], u[16 * STEP], y[4 * STEP], q[16 * STEP],
        g[9 * STEP];
    const float *x_line[16], *square[4];
    float *y_line[4];
    long i;
    int e, a, b;

    for (i = 0; i < 16 * STEP; i++) x[i] = (float)(2 * ddp_rng_uniform(&r) - 1);
    for (i = 0; i < 9 * STEP; i++) w[i] = (float)(2 * ddp_rng_uniform(&r) - 1);
    for (e = 0; e < 16; e++) x_line[e] = x + e * STEP;
    for (e = 0; e < 4; e++) square[e] = y_line[e] = y + e * STEP;
    kn->winograd_input(v, STEP, x_line, n);
    kn->winograd_weight(u, STEP, w, STEP, n);
    for (i = 0; i < 16 * STEP; i++) v[i] *= u[i];
    kn->winograd_output(y_line, v, STEP, n);
    for (e = 0; e < 4; e++)
        for (i = 0; i < n; i++) {
            double want = 0;
            for (a = 0; a < 3; a++)
                for (b = 0; b < 3; b++)
                    want += (double)x[((e / 2 + a) * 4 + e % 2 + b) * STEP + i] *
                            (double)w[(3 * a + b) * STEP + i];
            assert_true(fabs((double)y[e * STEP + i] - want) < 1e-5);
        }
    kn->winograd_output_grad(q, STEP, square, n);
    assert_true(fabs(inner(q, STEP, v, STEP, 16, n) - inner(y, STEP, y, STEP, 4, n)) < 1e-4 * (double)n);
    kn->winograd_weight_grad(g, STEP, v, STEP, n);
    assert_true(fabs(inner(g, STEP, w, STEP, 9, n) - inner(u, STEP, v, STEP, 16, n)) < 1e-4 * (double)n);
}

static void winograd_transforms_of_every_set_give_the_convolution(void **state)
{
    const ddp__kernels *kn;
    int set;
    long n;

    (void)state;
    for (set = 0; (kn = ddp__kernels_at(set)) != NULL; set++)
        for (n = 1; n <= 64; n++) winograd_case(kn, n);
}

/* The row kernels of Llama's operators. Each may write only y[0..n). */
static void llama_row_case(const ddp__kernels *kn, long n)
{
    ddp_rng r = ddp_rng_seed(4, (uint64_t)n);
    float x[400], y[401], z[200], w[201], stat;
    double square = 0;
    long i;

    for (i = 0; i < 2 * n; i++) x[i] = (float)(20 * ddp_rng_uniform(&r) - 10);
    for (i = 0; i < n; i++) {
        z[i] = (float)(ddp_rng_uniform(&r) - 0.5);
        square += (double)x[i] * (double)x[i] / (double)n;
    }
    y[n] = w[n] = 77;
    kn->norm(y, x, z, NULL, n, 1e-5f, &stat);
    for (i = 0; i < n; i++)
        assert_true(fabs((double)y[i] - (double)(x[i] * z[i]) / sqrt(square + 1e-5)) < 1e-5);
    kn->swiglu(y, x, z, n);
    for (i = 0; i < n; i++) {
        const double v = (double)x[i], want = v / (1 + exp(-v)) * (double)z[i];
        assert_true(fabs((double)y[i] - want) < 1e-6 * (1 + fabs(want)));
    }
    kn->swiglu_grad(NULL, w, x, z, x + n, n, 0, 0);
    kn->swiglu_grad(y, NULL, x, z, x + n, n, 0, 0);
    for (i = 0; i < n; i++) {
        const double v = (double)x[i], s = 1 / (1 + exp(-v)), d = (double)x[n + i];
        assert_true(fabs((double)w[i] - d * v * s) < 1e-4);
        assert_true(fabs((double)y[i] - d * (double)z[i] * (s + v * s * (1 - s))) < 1e-4);
    }
    assert_true(y[n] == 77 && w[n] == 77);
    y[2 * n] = 77;
    kn->rotate(y, x, z, w, n, 0);
    for (i = 0; i < n; i++) {
        const double a = (double)x[i], b = (double)x[n + i], c = (double)z[i], s = (double)w[i];
        assert_true(fabs((double)y[i] - (a * c - b * s)) < 1e-4 * (1 + fabs(a * c) + fabs(b * s)));
        assert_true(fabs((double)y[n + i] - (b * c + a * s)) < 1e-4 * (1 + fabs(b * c) + fabs(a * s)));
    }
    assert_true(y[2 * n] == 77);
}

static void row_kernels_of_every_set_match_libm(void **state)
{
    const ddp__kernels *kn;
    int set;
    long n;

    (void)state;
    for (set = 0; (kn = ddp__kernels_at(set)) != NULL; set++)
        for (n = 1; n < 200; n += n < 70 ? 1 : 13) {
            row_case(kn, n);
            llama_row_case(kn, n);
        }
}

static void exp_is_accurate_over_its_whole_range(void **state)
{
    const ddp__kernels *kn;
    float x[64], y[64], worst = 0;
    int set, i, at;

    (void)state;
    for (set = 0; (kn = ddp__kernels_at(set)) != NULL; set++) {
        for (at = -87 * 64; at < 88 * 64; at += 63) {
            for (i = 0; i < 64; i++) x[i] = (float)(at + i) / 64.0f;
            kn->softmax(y, x, 64, 1, 0, 1, 0);
            for (i = 0; i < 64; i++) {
                const float e = (float)fabs((double)y[i] / exp((double)x[i]) - 1);
                if (!(e <= worst)) worst = e;
            }
        }
        x[0] = -1e9f;
        x[1] = -INFINITY;
        x[2] = NAN;
        x[3] = 1e9f;
        kn->softmax(y, x, 4, 1, 0, 1, 0);
        assert_true(y[0] < 1e-37f && y[1] < 1e-37f && isnan(y[2]) && y[3] > 1e38f);
    }
    if (!(worst < 2.5e-7f)) fail_msg("exp differs by %g", (double)worst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(float_kernels_match_the_reference),
        cmocka_unit_test(threads_are_bit_identical_to_one_thread),
        cmocka_unit_test(sharing_memory_does_not_change_results),
        cmocka_unit_test(unrequested_gradients_are_not_written),
        cmocka_unit_test(dropout_keeps_the_given_share_and_repeats_its_mask),
        cmocka_unit_test(cross_entropy_of_equal_logits_is_log_n),
        cmocka_unit_test(indices_out_of_range_give_nan),
        cmocka_unit_test(nan_propagates),
        cmocka_unit_test(mismatched_shapes_fail_with_an_error),
        cmocka_unit_test(products_of_all_sizes_match_the_triple_loop),
        cmocka_unit_test(copy_kernels_of_every_set_match_plain_loops),
        cmocka_unit_test(winograd_transforms_of_every_set_give_the_convolution),
        cmocka_unit_test(row_kernels_of_every_set_match_libm),
        cmocka_unit_test(exp_is_accurate_over_its_whole_range),
    };

#if defined(__SANITIZE_THREAD__) /* the other tests have no threads */
    cmocka_set_test_filter("threads_*");
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
