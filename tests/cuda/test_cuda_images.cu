/* [test-all: compiles the GPU companion] Batch norm with and without relu, pools and flatten on the device
 * compared with the CPU, at sizes that are not multiples of a vector. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "cuda/families.h"
#include "cuda/cuda_check.h"

static void image_ops(ddp__cuda *dev)
{
    cuda_batch_norm_ops(dev);
    cuda_pool_ops(dev);
    cuda_elementwise_ops(dev);
}

static const long sizes[][4] = {
    {3, 5, 7, 9},                     /* a pixel is not a multiple of a vector */
    {2, 16, 8, 7},                    /* a pixel is a multiple of a vector */
    {300, 2, 2, 4},   {5, 2, 36, 42}, /* several parts, which end inside images */
    {4, 1, 1, 1},     {6, 16, 1, 1},  /* images of one pixel */
    {5, 304, 4, 5},                   /* more channels than 32 lanes hold, and several parts */
    {3, 128, 20, 24},                 /* more parts than a warp has lanes */
};

static void batch_norm_matches_the_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        cuda_case k = cuda_case_of("batch_norm2d", sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
        cuda_check_case(&k, image_ops);
        k.training = 0;
        cuda_check_case(&k, image_ops);
    }
}

/* Values near 1000 that differ by hundredths keep their variance. */
static void large_mean_keeps_the_variance_exact(void **state)
{
    (void)state;
    for (long i, channels = 2; channels < 5; channels += 2) {
        const cuda_case k = cuda_case_of("batch_norm2d", 3, channels, 40, 43);
        ddp__cuda *dev = cuda_device(DDP_CUDA_F32, image_ops);
        ddp_op_call cpu, gpu;
        cuda_check c;
        float *got;
        cuda_open(&c, dev, &k);
        for (i = 0; i < c.in[0].n; i++) c.in[0].cpu[i] = 1000 + 0.01f * c.in[0].cpu[i];
        cuda_each(&c, cuda_send_one);
        cuda_call(&c, 0, 0, &cpu);
        cuda_call(&c, 1, 0, &gpu);
        c.cpu->forward(&cpu);
        c.gpu->forward(&gpu);
        cuda_ok(dev);
        got = cuda_get(&c, &c.saved, "saved");
        for (i = 0; i < 2 * channels; i++) assert_true(fabsf(got[i] / c.saved.cpu[i] - 1) < 1e-5f);
        free(got);
        cuda_shut(&c);
        ddp__cuda_close(dev);
    }
}

enum { RELU_RESULTS = 8 };

/* Runs the two operators separately, or as a pair. Bits of adds: the relu or the batch norm adds to the
 * gradient of its input. */
static void relu_run(cuda_check *n, cuda_check *r, const ddp_op_pair *pair, int adds, float **got)
{
    ddp_op_call norm, relu;
    cuda_array *const result[RELU_RESULTS] = {&n->out,           &r->out,       &n->saved,
                                              &n->buffer[0],     &n->buffer[1], &n->grad_param[0],
                                              &n->grad_param[1], &n->grad_in[0]};

    cuda_each(n, cuda_send_one);
    cuda_each(r, cuda_send_one);
    cuda_call(n, 1, adds >> 1, &norm);
    cuda_call(r, 1, adds & 1, &relu);
    relu.in[0] = norm.out;
    relu.grad_in[0] = (void *)norm.grad_out;
    if (pair) {
        pair->forward(&norm, &relu);
        pair->backward(&norm, &relu);
    } else {
        n->gpu->forward(&norm);
        r->gpu->forward(&relu);
        r->gpu->backward(&relu);
        n->gpu->backward(&norm);
    }
    cuda_ok(n->dev);
    for (int i = 0; i < RELU_RESULTS; i++) got[i] = cuda_get(n, result[i], "a result of a pair");
}

static void fused_batch_norm_and_relu_are_bit_identical(void **state)
{
    const ddp_op_pair *pair = cuda_batch_norm_pair("batch_norm2d", "relu");

    (void)state;
    assert_non_null(pair);
    assert_null(cuda_batch_norm_pair("batch_norm2d", "gelu"));
    for (size_t i = 0; i < 4 * sizeof sizes / sizeof *sizes; i++)
        for (int numbers = 0; numbers < 3; numbers += 2) {
            const long *z = sizes[i / 4];
            const cuda_case k = cuda_case_of("batch_norm2d", z[0], z[1], z[2], z[3]),
                            of = cuda_case_of("relu", z[0], z[1], z[2], z[3]);
            ddp__cuda *dev = cuda_device((ddp_cuda_numbers)numbers, image_ops);
            float *want[RELU_RESULTS], *got[RELU_RESULTS];
            cuda_check n, r;
            cuda_open(&n, dev, &k);
            cuda_open(&r, dev, &of);
            for (long j = 0; j < r.out.n; j++) r.grad_out.cpu[j] *= -2; /* two arrays from one seed */
            relu_run(&n, &r, NULL, (int)i % 4, want);
            relu_run(&n, &r, pair, (int)i % 4, got);
            for (int j = 0; j < RELU_RESULTS; j++) {
                const long count = j < 2 || j > 6 ? n.out.n : j == 2 ? n.saved.n : z[1];
                if (memcmp(got[j], want[j], (size_t)count * sizeof **got))
                    fail_msg("%ld x %ld x %ld x %ld, adds %d: result %d differs", z[0], z[1], z[2], z[3],
                             (int)i % 4, j);
                free(got[j]);
                free(want[j]);
            }
            cuda_shut(&n);
            cuda_shut(&r);
            ddp__cuda_close(dev);
        }
}

/* Kernel, stride, padding. */
static const double windows[][3] = {{2, 2, 0}, {3, 2, 1}, {3, 1, 1}, {2, 3, 1}, {5, 1, 0}};

static void pools_match_the_cpu(void **state)
{
    static const char *const ops[] = {"max_pool2d", "avg_pool2d"};

    (void)state;
    for (size_t o = 0; o < 2; o++)
        for (size_t i = 0; i < 2; i++)
            for (size_t j = 0; j < sizeof windows / sizeof *windows; j++) {
                cuda_case k = cuda_case_of(ops[o], sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
                memcpy(k.arg, windows[j], sizeof windows[j]);
                cuda_check_case(&k, image_ops);
            }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        cuda_case k = cuda_case_of("global_avg_pool2d", sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
        cuda_check_case(&k, image_ops);
        k.op = "flatten";
        cuda_check_case(&k, image_ops);
        k.in[0].dims = i % 2 ? 2 : 3; /* not images: elements keep the order of rows */
        cuda_check_case(&k, image_ops);
    }
}

/* Value and place: the first of equal maxima, also if all values are -infinity, and the first NaN. */
static void maximum_position_matches_the_cpu(void **state)
{
    (void)state;
    for (long i, channels = 3; channels < 9; channels += 5) {
        cuda_case k = cuda_case_of("max_pool2d", 2, channels, 9, 11);
        ddp__cuda *dev = cuda_device(DDP_CUDA_F32, image_ops);
        ddp_op_call cpu, gpu;
        cuda_check c;
        float *got;
        memcpy(k.arg, windows[1], sizeof windows[1]);
        cuda_open(&c, dev, &k);
        c.saved.shape = c.spec.out;
        for (i = 0; i < c.in[0].n; i++) c.in[0].cpu[i] = (float)(i * 7 % 3);
        for (i = 5; i < c.in[0].n; i += 17) c.in[0].cpu[i] = NAN;
        for (i = 22; i < 66; i++) c.in[0].cpu[i] = -INFINITY;
        cuda_each(&c, cuda_send_one);
        cuda_call(&c, 0, 0, &cpu);
        cuda_call(&c, 1, 0, &gpu);
        c.cpu->forward(&cpu);
        c.gpu->forward(&gpu);
        cuda_ok(dev);
        got = cuda_get(&c, &c.saved, "saved");
        for (i = 0; i < c.saved.n; i++) assert_true(got[i] == c.saved.cpu[i]);
        free(got);
        got = cuda_get(&c, &c.out, "out");
        for (i = 0; i < c.out.n; i++)
            assert_true(got[i] == c.out.cpu[i] || (isnan(got[i]) && isnan(c.out.cpu[i])));
        free(got);
        cuda_shut(&c);
        ddp__cuda_close(dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_norm_matches_the_cpu),
        cmocka_unit_test(large_mean_keeps_the_variance_exact),
        cmocka_unit_test(fused_batch_norm_and_relu_are_bit_identical),
        cmocka_unit_test(pools_match_the_cpu),
        cmocka_unit_test(maximum_position_matches_the_cpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
