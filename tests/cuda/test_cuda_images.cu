/* [calm] Batch norm, pools and flatten on the device against the CPU, at sizes that no vector divides. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "cuda/batch_norm.cuh"
#include "cuda/pool.cuh"
#include "cuda/cuda_check.h"

static void image_ops(ddp__cuda *dev)
{
    ddp__cuda_batch_norm_ops(dev);
    ddp__cuda_pool_ops(dev);
}

static const long sizes[][4] = {
    {3, 5, 7, 9},    /* a plane is no multiple of a vector */
    {2, 3, 8, 8},    /* vectors; a thread goes over several planes */
    {300, 2, 2, 4},
    {5, 2, 36, 42},  /* several parts of a channel, which end inside planes */
    {4, 1, 1, 1},
};

static void batch_norm_is_the_cpus(void **state)
{
    cuda_case k;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        k = cuda_case_of("batch_norm2d", sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
        cuda_check_case(&k, image_ops);
        k.training = 0;
        cuda_check_case(&k, image_ops);
    }
}

/* Values near 1000 that differ by hundredths: their variance is not lost. */
static void a_mean_far_from_0_costs_no_digits(void **state)
{
    const cuda_case k = cuda_case_of("batch_norm2d", 3, 2, 40, 43);
    ddp__cuda *dev = cuda_device(DDP_CUDA_F32, image_ops);
    ddp_op_call cpu, gpu;
    cuda_check c;
    float *got;
    long i;

    (void)state;
    cuda_open(&c, dev, &k);
    for (i = 0; i < c.in[0].n; i++) c.in[0].cpu[i] = 1000 + 0.01f * c.in[0].cpu[i];
    cuda_each(&c, cuda_send_one);
    cuda_call(&c, 0, 0, &cpu);
    cuda_call(&c, 1, 0, &gpu);
    c.cpu->forward(&cpu);
    c.gpu->forward(&gpu);
    cuda_ok(dev);
    got = cuda_get(&c, &c.saved, "saved");
    for (i = 0; i < 4; i++) assert_true(fabsf(got[i] / c.saved.cpu[i] - 1) < 1e-5f);
    free(got);
    cuda_shut(&c);
    ddp__cuda_close(dev);
}

/* Kernel, stride, padding. */
static const double windows[][3] = {{2, 2, 0}, {3, 2, 1}, {3, 1, 1}, {2, 3, 1}, {5, 1, 0}};

static void pools_are_the_cpus(void **state)
{
    static const char *const ops[] = {"max_pool2d", "avg_pool2d"};
    size_t o, i, j;

    (void)state;
    for (o = 0; o < 2; o++)
        for (i = 0; i < 2; i++)
            for (j = 0; j < sizeof windows / sizeof *windows; j++) {
                cuda_case k =
                    cuda_case_of(ops[o], sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
                memcpy(k.arg, windows[j], sizeof windows[j]);
                cuda_check_case(&k, image_ops);
            }
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        cuda_case k = cuda_case_of("global_avg_pool2d", sizes[i][0], sizes[i][1], sizes[i][2],
                                   sizes[i][3]);
        cuda_check_case(&k, image_ops);
        k.op = "flatten";
        cuda_check_case(&k, image_ops);
    }
}

/* The first of equals has the maximum, and the first NaN before all: place and value. */
static void a_maximum_has_the_cpus_place(void **state)
{
    cuda_case k = cuda_case_of("max_pool2d", 2, 3, 9, 11);
    ddp__cuda *dev = cuda_device(DDP_CUDA_F32, image_ops);
    ddp_op_call cpu, gpu;
    cuda_check c;
    float *got;
    long i;

    (void)state;
    memcpy(k.arg, windows[1], sizeof windows[1]);
    cuda_open(&c, dev, &k);
    for (i = 0; i < c.in[0].n; i++) c.in[0].cpu[i] = (float)(i * 7 % 3);
    for (i = 5; i < c.in[0].n; i += 17) c.in[0].cpu[i] = NAN;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_norm_is_the_cpus),
        cmocka_unit_test(a_mean_far_from_0_costs_no_digits),
        cmocka_unit_test(pools_are_the_cpus),
        cmocka_unit_test(a_maximum_has_the_cpus_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
