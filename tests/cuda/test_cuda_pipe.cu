/* [test-all: compiles the GPU companion] Pipeline stages on a GPU are bit-identical to workers without a
 * pipeline on the same GPU, in float32. */
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

static void gpu_stages_are_bit_identical_to_one_gpu_worker(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, -1);

    (void)state;
    if (!have_gpu()) skip();
    piped_all(&b);
#ifdef DDP_CUDA_ON_CPU
    assert_int_equal(cuda_on_cpu::alive(), 0);
#endif
}

/* Only the order of sums differs. */
static void gpu_pipeline_matches_the_cpu(void **state)
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

/* int8 blocks hold neighbouring elements in the host's image order, not the device's. With other blocks the
 * losses, near 7, differ by 0.06. */
static void quantised_images_match_the_cpu(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, -1);
    piped j[2];

    (void)state;
    if (!have_gpu()) skip();
    for (int k = 0; k < 2; k++) {
        piped_new(&j[k], PIPED_RESIDUAL, DDP_SSGD, 3);
        j[k].stages = 2;
        j[k].edge.coding = DDP_EDGE_INT8;
        j[k].edge.feedback = 1;
        j[k].cfg.backend = k ? &b : NULL;
        piped_run(&j[k], 2);
    }
    assert_true(isfinite(j[1].loss[0]) && fabsf(j[0].loss[0] - j[1].loss[0]) < 2e-3f);
}

static void bfloat16_stages_are_rejected(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_BF16, -1);
    ddp_error err;
    piped j;

    (void)state;
    if (!have_gpu()) skip();
    piped_new(&j, PIPED_GPT, DDP_SSGD, 2);
    j.cfg.backend = &b;
    j.cfg.world = 2;
    j.stages = 2;
    assert_int_equal(ddp_launch(&j.cfg, piped_worker, &j, &err), DDP_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "2 stages on a device with 2 bytes per element"));
    j.cfg.world = j.stages = 1; /* stages do not exchange anything */
    piped_run(&j, 1);
    assert_true(isfinite(j.loss[0]));
}

typedef struct stage {
    piped *j;
    ddp_config cfg;
    ddp_error err;
    int bad;
    pthread_t thread;
} stage;

static void *join_in(void *user)
{
    stage *s = (stage *)user;
    ddp_ctx *d = ddp_open(&s->cfg, &s->err);

    s->bad = d ? piped_worker(d, s->j) : (int)s->err.code;
    if (d && s->bad) s->err = *ddp_last_error(d);
    if (d) ddp_close(d);
    return NULL;
}

/* Arrays of four dimensions are sent in the layout of the device, which differs on a CPU. Other arrays work
 * in both directions. */
static void gpu_and_cpu_stages_exchange_all_but_images(void **state)
{
    const ddp_backend b = ddp_cuda(DDP_CUDA_F32, 0);

    (void)state;
    if (!have_gpu()) skip();
    for (int k = 0; k < 4; k++) {
        const int images = k % 2;
        char where[64];
        stage s[2];
        piped j;
        /* an address that no other process connects to */
        snprintf(where, sizeof where, "127.%d.%d.%d:29500", 96 + k, (int)getpid() / 254 % 256,
                 1 + (int)getpid() % 254);
        piped_new(&j, images ? PIPED_RESIDUAL : PIPED_GPT, DDP_SSGD, 3);
        j.stages = 2;
        memset(s, 0, sizeof s);
        for (int r = 0; r < 2; r++) {
            s[r].j = &j;
            s[r].cfg = j.cfg;
            s[r].cfg.transport = DDP_TCP;
            s[r].cfg.world = 2;
            s[r].cfg.rank = r;
            s[r].cfg.addr = where;
            s[r].cfg.backend = r == k / 2 ? &b : NULL;
            assert_int_equal(pthread_create(&s[r].thread, NULL, join_in, &s[r]), 0);
        }
        for (int r = 0; r < 2; r++) pthread_join(s[r].thread, NULL);
        for (int r = 0; r < 2; r++) {
            if ((s[r].bad != 0) != images) fail_msg("rank %d, %d: %s", r, k, s[r].err.msg);
            if (images && (!strstr(s[r].err.msg, "images between GPU stages") ||
                           !strstr(s[r].err.msg, "images between CPU stages")))
                fail_msg("%s", s[r].err.msg);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpu_stages_are_bit_identical_to_one_gpu_worker),
        cmocka_unit_test(gpu_pipeline_matches_the_cpu),
        cmocka_unit_test(quantised_images_match_the_cpu),
        cmocka_unit_test(bfloat16_stages_are_rejected),
        cmocka_unit_test(gpu_and_cpu_stages_exchange_all_but_images),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
