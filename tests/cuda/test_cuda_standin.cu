/* [test-all: compiles the GPU companion] The stand-in detects the errors that it exists to detect. On a real
 * GPU this file tests nothing. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "cuda/rows.cuh"

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

#if defined(DDP_CUDA_ON_CPU)

static ddp__cuda *open_device(void)
{
    ddp_error err;
    ddp__cuda *dev = ddp__cuda_open(0, DDP_CUDA_F32, NULL, &err);

    if (!dev) fail_msg("%s", err.msg);
    return dev;
}

/* The launch fails with these words in its error, and the device works again afterwards. */
static void expect_fault(ddp__cuda *dev, const char *words)
{
    ddp_error err;

    assert_int_not_equal(cudaStreamSynchronize(dev->stream), cudaSuccess);
    if (!strstr(cuda_on_cpu::why(), words)) fail_msg("\"%s\" lacks \"%s\"", cuda_on_cpu::why(), words);
    ddp__cuda_launched(dev, "k");
    assert_int_equal(ddp__cuda_status(dev, &err), DDP_FAILED);
    assert_non_null(strstr(err.msg, ", or work before it, failed"));
    cuda_on_cpu::mend();
    ddp__cuda_close(dev);
    cuda_on_cpu::mend();
}

/* Every thread reads the value that its neighbour wrote, for 3 rounds. */
static __global__ void turn(int *out, int sync)
{
    __shared__ int at[96];
    const int t = (int)threadIdx.x, n = (int)blockDim.x;
    int round, v = t;

    for (round = 0; round < 3; round++) {
        at[t] = v;
        __syncthreads();
        v = at[(t + 1) % n];
        if (sync) __syncthreads();
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

static void threads_of_a_block_synchronise(void **state)
{
    ddp__cuda *dev = open_device();
    int *out = NULL, host[4 * 96], i, wrong = 0;

    (void)state;
    assert_int_equal(cudaMalloc(&out, sizeof host), cudaSuccess);
    DDP__LAUNCH(turn, 4, 96, 0, dev->stream, out, 1);
    assert_int_equal(cudaStreamSynchronize(dev->stream), cudaSuccess);
    memcpy(host, out, sizeof host);
    for (i = 0; i < 4 * 96; i++) assert_int_equal(host[i], (i % 96 + 3) % 96);
    /* a missing barrier changes the numbers */
    DDP__LAUNCH(turn, 4, 96, 0, dev->stream, out, 0);
    assert_int_equal(cudaStreamSynchronize(dev->stream), cudaSuccess);
    memcpy(host, out, sizeof host);
    for (i = 0; i < 4 * 96; i++) wrong += host[i] != (i % 96 + 3) % 96;
    assert_true(wrong > 0);
    assert_int_equal(cudaFree(out), cudaSuccess);
    ddp__cuda_close(dev);
}

static __global__ void missed(int first)
{
    if ((int)threadIdx.x >= first) __syncthreads();
}

static __global__ void elsewhere(void *)
{
    if (threadIdx.x % 2)
        __syncthreads();
    else
        __syncthreads();
}

static void divergent_barrier_is_a_fault(void **state)
{
    ddp__cuda *dev = open_device();

    (void)state;
    DDP__LAUNCH(missed, 2, 64, 0, dev->stream, 0);
    assert_int_equal(cudaStreamSynchronize(dev->stream), cudaSuccess);
    DDP__LAUNCH(missed, 2, 64, 0, dev->stream, 1);
    expect_fault(dev, "missed: thread 1 waits in __syncthreads");
    dev = open_device();
    DDP__LAUNCH(elsewhere, 1, 64, 0, dev->stream, NULL);
    expect_fault(dev, "elsewhere: thread 0 waits in __syncthreads");
}

static __global__ void warp_sums(int *out)
{
    int v = (int)threadIdx.x, by;

    for (by = 16; by; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
    out[threadIdx.x] = v;
    out[64 + threadIdx.x] = (int)__ballot_sync(0xffffffffu, threadIdx.x % 3 == 0);
    out[128 + threadIdx.x] = __shfl_down_sync(0xffffffffu, (int)threadIdx.x, 5);
    out[192 + threadIdx.x] = __shfl_up_sync(0xffffffffu, (int)threadIdx.x, 3, 8);
    out[256 + threadIdx.x] = (int)__reduce_max_sync(0xffffffffu, threadIdx.x);
    out[320 + threadIdx.x] = __shfl_sync(0xffffffffu, (int)threadIdx.x, 33, 16);
    __syncwarp();
}

static void lanes_of_a_warp_synchronise(void **state)
{
    ddp__cuda *dev = open_device();
    int *out = NULL, t;

    (void)state;
    assert_int_equal(cudaMalloc(&out, 384 * sizeof *out), cudaSuccess);
    DDP__LAUNCH(warp_sums, 1, 64, 0, dev->stream, out);
    assert_int_equal(cudaStreamSynchronize(dev->stream), cudaSuccess);
    for (t = 0; t < 64; t++) {
        const int warp = t / 32 * 32, lane = t % 32;
        unsigned votes = 0;
        int i;
        for (i = 0; i < 32; i++) votes |= (unsigned)((warp + i) % 3 == 0) << i;
        assert_int_equal(out[t], warp * 32 + 496);
        assert_int_equal((unsigned)out[64 + t], votes);
        assert_int_equal(out[128 + t], lane + 5 < 32 ? t + 5 : t);
        assert_int_equal(out[192 + t], lane % 8 >= 3 ? t - 3 : t);
        assert_int_equal(out[256 + t], warp + 31);
        assert_int_equal(out[320 + t], t / 16 * 16 + 1);
    }
    assert_int_equal(cudaFree(out), cudaSuccess);
    ddp__cuda_close(dev);
}

static __global__ void half_a_warp(int *out)
{
    if (threadIdx.x < 20) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (int)threadIdx.x, 1);
}

static __global__ void later(int *out) { *out = 1; }

static __global__ void unaligned(float *x) { ddp__vec_store(x + 1, ddp__vec_load(x)); }

static void invalid_device_access_is_a_fault(void **state)
{
    ddp__cuda *dev = open_device();
    float *x = NULL;
    int *out = NULL, here = 0;

    (void)state;
    assert_int_equal(cudaMalloc(&out, 32 * sizeof *out), cudaSuccess);
    assert_int_equal(cudaMalloc(&x, 32 * sizeof *x), cudaSuccess);
    DDP__LAUNCH(half_a_warp, 1, 32, 0, dev->stream, out);
    expect_fault(dev, "half_a_warp: thread 0 waits in __shfl_xor_sync");
    dev = open_device();
    DDP__LAUNCH(unaligned, 1, 1, 0, dev->stream, x);
    expect_fault(dev, "unaligned access of 16 bytes");
    dev = open_device();
    DDP__LAUNCH(half_a_warp, 1, 32, 0, dev->stream, &here);
    expect_fault(dev, "half_a_warp has an array argument that no device can access");
    dev = open_device();
    DDP__LAUNCH(missed, 1, 1025, 0, dev->stream, 0);
    assert_int_equal(ddp__cuda_status(dev, NULL), DDP_FAILED);
    ddp__cuda_close(dev);
    dev = open_device();
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    DDP__LAUNCH(missed, 1, 32, 0, dev->stream, 0);
    assert_int_equal(ddp__cuda_status(dev, NULL), DDP_FAILED);
    ddp__cuda_close(dev);
    cuda_on_cpu::mend();
    assert_int_equal(cudaFree(x), cudaSuccess);
    assert_int_equal(cudaFree(out), cudaSuccess);
}

/* The first launch of a kernel loads it, and loading waits for all queued work, here for a flag that is
 * raised only later. */
static void loading_a_kernel_behind_a_wait_is_a_fault(void **state)
{
    ddp__cuda *dev = open_device();
    int *flag = NULL, *out = NULL;
    const cudaHostFn_t wait = [](void *at) {
        while (!ddp__atomic_load((int *)at)) ddp__sleep_until(ddp_now() + 1e-3);
    };

    (void)state;
    assert_int_equal(cudaMallocHost(&flag, sizeof *flag), cudaSuccess);
    assert_int_equal(cudaMalloc(&out, sizeof *out), cudaSuccess);
    *flag = 0;
    DDP__LAUNCH(later, 1, 1, 0, dev->stream, out);
    assert_int_equal(cudaLaunchHostFunc(dev->stream, wait, flag), cudaSuccess);
    DDP__LAUNCH(later, 1, 1, 0, dev->stream, out); /* already loaded */
    assert_int_equal(ddp__cuda_status(dev, NULL), DDP_OK);
    cuda_on_cpu::unload();
    cuda_on_cpu::set_depth(1000, 1);
    DDP__LAUNCH(later, 1, 1, 0, dev->stream, out);
    cuda_on_cpu::set_depth(1000, 300);
    ddp__atomic_store(flag, 1);
    expect_fault(dev, "later is loaded at its first launch, behind work");
    assert_int_equal(cudaFree(out), cudaSuccess);
    assert_int_equal(cudaFreeHost(flag), cudaSuccess);
}

static void failed_kernel_returns_an_error_with_a_remedy(void **state)
{
    static const struct {
        cudaError_t e;
        const char *words;
    } of[] = {{cudaErrorNoKernelImageForDevice, "-gencode arch=compute_90a,code=sm_90a"},
              {cudaErrorLaunchTimeout, "use a GPU without one"}};
    ddp_error err;
    int i;

    (void)state;
    for (i = 0; i < 2; i++) {
        ddp__cuda *dev = open_device();
        cuda_on_cpu::the_world().broken = of[i].e;
        ddp__cuda_launched(dev, "k");
        assert_int_equal(ddp__cuda_status(dev, &err), DDP_FAILED);
        assert_non_null(strstr(err.msg, of[i].words));
        cuda_on_cpu::mend();
        ddp__cuda_close(dev);
    }
}

static void missing_device_returns_a_clear_error(void **state)
{
    ddp_error err;

    (void)state;
    assert_null(ddp__cuda_open(99, DDP_CUDA_F32, NULL, &err));
    assert_int_equal(err.code, DDP_ARG);
    assert_non_null(strstr(err.msg, "GPU 99 does not exist"));
    cuda_on_cpu::set_devices(0);
    assert_null(ddp__cuda_open(0, DDP_CUDA_F32, NULL, &err));
    assert_int_equal(err.code, DDP_FAILED);
    assert_non_null(strstr(err.msg, "no CUDA device found"));
    cuda_on_cpu::set_devices(8);
    cuda_on_cpu::set_driver(cuda_on_cpu::NO_DRIVER);
    assert_null(ddp__cuda_open(0, DDP_CUDA_F32, NULL, &err));
    assert_int_equal(err.code, DDP_UNSUPPORTED);
    assert_string_equal(err.msg, "no CUDA driver is installed; install one or train on the CPU");
    cuda_on_cpu::set_driver(0);
    cuda_on_cpu::mend();
}

static void out_of_memory_returns_a_clear_error(void **state)
{
    ddp__cuda *dev;
    ddp_error err;

    (void)state;
    cuda_on_cpu::set_memory(40 << 20);
    dev = open_device();
    assert_int_equal(ddp__cuda_want_scratch(dev, 1 << 20, &err), DDP_OK);
    assert_int_equal(ddp__cuda_want_scratch(dev, 64 << 20, &err), DDP_MEMORY);
    assert_non_null(strstr(err.msg, "need 67108864 bytes"));
    assert_non_null(strstr(err.msg, "8388608 of 41943040 are free"));
    ddp__cuda_close(dev);
    cuda_on_cpu::set_memory(16 << 20);
    assert_null(ddp__cuda_open(0, DDP_CUDA_F32, NULL, &err));
    assert_int_equal(err.code, DDP_MEMORY);
    assert_non_null(strstr(err.msg, "cudaMalloc: out of memory"));
    cuda_on_cpu::set_memory((size_t)1 << 32);
    cuda_on_cpu::mend();
}

/* Only events order streams: the second stream waits, the host does not. */
static void only_events_order_streams(void **state)
{
    ddp__cuda *dev = open_device();
    cudaStream_t other;
    cudaEvent_t e;
    int seen = -1, *p = NULL;

    (void)state;
    assert_int_equal(cudaEventCreate(&e), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaMallocHost(&p, sizeof *p), cudaSuccess);
    assert_int_equal(cudaLaunchHostFunc(
                         dev->stream,
                         [](void *v) {
                             ddp__sleep_until(ddp_now() + 0.05);
                             *(int *)v = 7;
                         },
                         p),
                     cudaSuccess);
    assert_int_equal(cudaEventRecord(e, dev->stream), cudaSuccess);
    assert_int_equal(cudaEventQuery(e), cudaErrorNotReady);
    assert_int_equal(cudaStreamWaitEvent(other, e, 0), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(&seen, p, sizeof seen, cudaMemcpyDefault, other), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(other), cudaSuccess);
    assert_int_equal(seen, 7);
    assert_int_equal(cudaEventDestroy(e), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
    assert_int_equal(cudaFreeHost(p), cudaSuccess);
    ddp__cuda_close(dev);
    assert_int_equal(cuda_on_cpu::alive(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_of_a_block_synchronise),
        cmocka_unit_test(divergent_barrier_is_a_fault),
        cmocka_unit_test(lanes_of_a_warp_synchronise),
        cmocka_unit_test(invalid_device_access_is_a_fault),
        cmocka_unit_test(loading_a_kernel_behind_a_wait_is_a_fault),
        cmocka_unit_test(failed_kernel_returns_an_error_with_a_remedy),
        cmocka_unit_test(missing_device_returns_a_clear_error),
        cmocka_unit_test(out_of_memory_returns_a_clear_error),
        cmocka_unit_test(only_events_order_streams),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    printf("the stand-in is not used in this build\n");
    return 77;
}

#endif
