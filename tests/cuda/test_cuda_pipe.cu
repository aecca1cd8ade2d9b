/* [calm] Stages on a GPU: the bits of unpipelined workers on it, in float32. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp_cuda.cuh"

#include <cuda_runtime.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern "C" {
#include <cmocka.h>
}

#include "graph/graph_internal.h"
#include "pipe/device_lab.h"

static int have_gpu(void)
{
    int n = 0;
    const int ok = cudaGetDeviceCount(&n) == cudaSuccess && n > 0;

    (void)cudaGetLastError();
    return ok;
}

static void stages_on_a_gpu_have_the_bits_of_workers_on_it(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, -1);

    (void)state;
    if (!have_gpu()) skip();
    piped_all(&b);
#ifdef DDP_CUDA_ON_CPU
    assert_int_equal(cuda_on_cpu::alive(), 0);
#endif
}

/* Another order of sums, no more. */
static void a_gpu_trains_as_the_cpu(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, -1);

    (void)state;
    if (!have_gpu()) skip();
    for (int m = PIPED_GPT; m < PIPED_MODELS; m++) {
        piped here, there;
        piped_new(&here, (piped_model)m, DDP_SSGD, 3);
        here.stages = 2;
        there = here;
        there.cfg.backend = &b;
        piped_run(&here, 2);
        piped_run(&there, 2);
        assert_true(isfinite(there.loss[0]) && fabsf(here.loss[0] - there.loss[0]) < 1e-4f);
    }
}

static void two_byte_elements_are_refused(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_BF16, -1);
    ddp_error err;
    piped j;

    (void)state;
    if (!have_gpu()) skip();
    piped_new(&j, PIPED_GPT, DDP_SSGD, 2);
    j.cfg.backend = &b, j.cfg.world = 2, j.stages = 2;
    assert_int_equal(ddp_launch(&j.cfg, piped_worker, &j, &err), DDP_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "2 stages on a device that computes in 2 bytes an element"));
    j.cfg.world = j.stages = 1; /* nothing passes between stages */
    piped_run(&j, 1);
    assert_true(isfinite(j.loss[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_on_a_gpu_have_the_bits_of_workers_on_it),
        cmocka_unit_test(a_gpu_trains_as_the_cpu),
        cmocka_unit_test(two_byte_elements_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
