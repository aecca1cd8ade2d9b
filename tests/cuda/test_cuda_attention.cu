/* [test-all: compiles the GPU companion] Attention on the device compared with the CPU: the plain kernels,
 * the tensor-core kernels (bfloat16 and TF32), and the kernels with Hopper's wgmma. Cases: separate and
 * shared heads, full and partial tiles, and lengths near a tile's length. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "cuda/attention.cuh"
#include "cuda/cuda_check.h"

static void attention_alone(ddp__cuda *dev)
{
    static const ddp__cuda_entry ops[] = {
        DDP__ENTRY("attention", ddp__cuda_attention, ddp__cuda_attention_scratch),
    };

    ddp__cuda_add_ops(dev, ops);
    ddp__cuda_flash_open(dev);
}

static cuda_case attention(long batch, long time, long heads, long kv_heads, long d)
{
    cuda_case k = cuda_case_of("attention", batch, time, (heads + 2 * kv_heads) * d);

    k.arg[0] = (double)heads;
    k.arg[1] = (double)kv_heads;
    k.within_half = 0.015; /* the weights are rounded to bfloat16 too */
    k.within_tf32 = 0.002;
    return k;
}

static void both(long batch, long time, long heads, long kv_heads, long d)
{
    const cuda_case k = attention(batch, time, heads, kv_heads, d);

    cuda_check_case(&k, attention_alone);
}

static void small_heads_match_the_cpu(void **state)
{
    (void)state;
    both(1, 1, 1, 1, 8);
    both(2, 37, 2, 1, 16);
    both(1, 70, 1, 1, 7);
    both(1, 33, 4, 2, 12);
}

/* One device and one kernel per call: large cases are slow on the stand-in. */
static void one(ddp_cuda_numbers numbers, long time, long heads, long kv_heads, long d)
{
    const cuda_case k = attention(1, time, heads, kv_heads, d);
    ddp__cuda *dev = cuda_device(numbers, attention_alone);
    const int groups = dev->map != NULL;

    cuda_check_run(dev, &k, 1);
    dev->map = NULL;
    if (groups && d <= 64) cuda_check_run(dev, &k, 1);
    ddp__cuda_close(dev);
}

static void wide_heads_match_the_cpu(void **state)
{
    (void)state;
    one(DDP_CUDA_F32, 21, 1, 1, 130);
    one(DDP_CUDA_F32, 17, 1, 1, 512);
    one(DDP_CUDA_F32, 65, 1, 1, 128);
    one(DDP_CUDA_BF16, 18, 1, 1, 256);
}

#ifdef DDP_CUDA_ON_CPU
/* Consumer GPUs have 99 KiB of shared memory per block. */
static void little_shared_memory_selects_smaller_tiles(void **state)
{
    (void)state;
    cuda_on_cpu::set_shared(99 << 10);
    one(DDP_CUDA_F32, 65, 1, 1, 64);
    one(DDP_CUDA_BF16, 70, 1, 1, 128);
    one(DDP_CUDA_TF32, 65, 1, 1, 64);
    one(DDP_CUDA_TF32, 65, 1, 1, 128);
    one(DDP_CUDA_F32, 17, 1, 1, 256);
    cuda_on_cpu::set_shared(cuda_on_cpu::MOST_SHARED);
}

/* A driver without tensor maps (copy engine): attention uses the tensor-core kernels that all GPUs support.
 * */
static void driver_without_tensor_maps_selects_portable_kernels(void **state)
{
    const cuda_case k = attention(2, 70, 2, 1, 64);
    ddp__cuda *dev;

    (void)state;
    cuda_on_cpu::set_maps(false);
    dev = cuda_device(DDP_CUDA_BF16, attention_alone);
    cuda_on_cpu::set_maps(true);
    assert_null(dev->map);
    cuda_check_run(dev, &k, 1);
    ddp__cuda_close(dev);
}

/* The kernels make 14 (forward), 18 (dk and dv) and 18 (dq) requests to the copy engine. */
static void load_that_never_arrives_fails_the_device(void **state)
{
    static const int lost[] = {0, 5, 13, 14, 19, 31, 32, 37, 49};
    const cuda_case k = attention(1, 130, 1, 1, 64);

    (void)state;
    for (int i = 0; i < 9; i++) {
        ddp__cuda *dev = cuda_device(DDP_CUDA_BF16, attention_alone);
        ddp_error err = DDP__ZEROS;
        ddp_op_call gpu;
        cuda_check c;

        cuda_open(&c, dev, &k);
        cuda_each(&c, cuda_send_one);
        cuda_call(&c, 1, 0, &gpu);
        cuda_on_cpu::requests_until_loss() = lost[i];
        c.gpu->forward(&gpu);
        c.gpu->backward(&gpu);
        assert_int_equal(cudaStreamSynchronize(dev->stream), cudaSuccess);
        assert_int_equal(ddp__cuda_status(dev, &err), DDP_FAILED);
        assert_non_null(strstr(err.msg, "the copy engine did not load a tile for attention in time"));
        cuda_shut(&c);
        ddp__cuda_close(dev);
    }
}
#endif

static void tensor_cores_with_64_columns_match_the_cpu(void **state)
{
    (void)state;
    one(DDP_CUDA_BF16, 128, 1, 1, 64);
    one(DDP_CUDA_BF16, 130, 2, 1, 64);
    one(DDP_CUDA_BF16, 63, 1, 1, 40);
    one(DDP_CUDA_TF32, 128, 1, 1, 64);
    one(DDP_CUDA_TF32, 130, 2, 1, 64);
    one(DDP_CUDA_TF32, 31, 1, 1, 36);
}

static void tensor_cores_with_128_columns_match_the_cpu(void **state)
{
    (void)state;
    one(DDP_CUDA_BF16, 97, 2, 1, 128);
    one(DDP_CUDA_BF16, 64, 1, 1, 72);
    one(DDP_CUDA_TF32, 81, 2, 1, 128);
    one(DDP_CUDA_TF32, 64, 1, 1, 68);
}

/* Rows are not multiples of 16 bytes: the plain kernels run, whose weights are not rounded to TF32. */
static void unaligned_rows_with_tf32_use_float32(void **state)
{
    cuda_case k = attention(1, 33, 1, 1, 7);
    ddp__cuda *dev = cuda_device(DDP_CUDA_TF32, attention_alone);

    (void)state;
    k.within_tf32 = 1e-5;
    cuda_check_run(dev, &k, 1);
    ddp__cuda_close(dev);
}

/* All outputs of attention, with and without tensor cores. The heads share one head of keys. */
template <typename T>
static void tensor_cores_are_plain(ddp_cuda_numbers numbers, long time, long heads, long d, int groups)
{
    cuda_case k = attention(1, time, heads, 1, d);
    ddp__cuda *dev = cuda_device(numbers, attention_alone);
    ddp_op_call gpu;
    cuda_check c;
    ddp__heads z;
    float *kept;

    k.within_half = 0.008; /* the weights are rounded twice */
    k.within_tf32 = 0.001;
    if (groups && !dev->map) { /* not a Hopper GPU, or not compiled for sm_90a */
        ddp__cuda_close(dev);
        skip();
    }
    if (!groups) dev->map = NULL;
    cuda_open(&c, dev, &k);
    cuda_each(&c, cuda_send_one);
    cuda_call(&c, 1, 0, &gpu);
    z = ddp__heads_of(&c.spec);
    assert_int_equal(ddp__flash_fits(dev, &z, gpu.in[0], gpu.out, gpu.grad_out, gpu.grad_in[0]), 1);
    ddp__cuda_attend<T, 2, 8>(dev, &gpu, &z);
    cuda_ok(dev);
    kept = c.out.cpu;
    c.out.cpu = cuda_get(&c, &c.out, "out");
    free(kept);
    kept = c.saved.cpu;
    c.saved.cpu = cuda_get(&c, &c.saved, "saved");
    free(kept);
    ddp__cuda_flash_forward(dev, &gpu, &z);
    cuda_ok(dev);
    cuda_compare(&c, &c.out, "out", 0);
    cuda_compare(&c, &c.saved, "saved", 0);
    c.gpu->backward(&gpu); /* also leaves the means in scratch */
    cuda_ok(dev);
    kept = c.grad_in[0].cpu;
    c.grad_in[0].cpu = cuda_get(&c, &c.grad_in[0], "gradient");
    free(kept);
    ddp__cuda_attend_grad<T, 2, 8>(dev, &gpu, &z);
    cuda_ok(dev);
    cuda_compare(&c, &c.grad_in[0], "gradient", 0);
    cuda_shut(&c);
    ddp__cuda_close(dev);
}

static void tensor_cores_match_the_plain_kernels(void **state)
{
    static const long d[] = {64, 128};

    (void)state;
    for (int i = 0; i < 2; i++) {
        tensor_cores_are_plain<ddp__bf16>(DDP_CUDA_BF16, 70, 1, d[i], 0);
        tensor_cores_are_plain<float>(DDP_CUDA_TF32, 70, 1, d[i], 0);
    }
}

/* One group in its block; two groups, the second without rows; and several blocks. */
static void wgmma_matches_the_plain_kernels(void **state)
{
    static const long time[] = {1, 64, 70, 128, 129, 200};

    (void)state;
    for (int i = 0; i < 6; i++)
        tensor_cores_are_plain<ddp__bf16>(DDP_CUDA_BF16, time[i], 1, i % 2 ? 64 : 56, 1);
}

/* Three and four tiles of keys, heads that share keys and values, and heads with full and with partial
 * columns of a tile. */
static void wgmma_over_many_tiles_matches_the_plain_kernels(void **state)
{
    static const long d[] = {64, 56};

    (void)state;
    for (int i = 0; i < 2; i++) {
        tensor_cores_are_plain<ddp__bf16>(DDP_CUDA_BF16, 129, 2, d[i], 1);
        tensor_cores_are_plain<ddp__bf16>(DDP_CUDA_BF16, 200, 2, d[i], 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_heads_match_the_cpu),
        cmocka_unit_test(wide_heads_match_the_cpu),
#ifdef DDP_CUDA_ON_CPU
        cmocka_unit_test(little_shared_memory_selects_smaller_tiles),
        cmocka_unit_test(driver_without_tensor_maps_selects_portable_kernels),
        cmocka_unit_test(load_that_never_arrives_fails_the_device),
#endif
        cmocka_unit_test(tensor_cores_with_64_columns_match_the_cpu),
        cmocka_unit_test(tensor_cores_with_128_columns_match_the_cpu),
        cmocka_unit_test(unaligned_rows_with_tf32_use_float32),
        cmocka_unit_test(tensor_cores_match_the_plain_kernels),
        cmocka_unit_test(wgmma_matches_the_plain_kernels),
        cmocka_unit_test(wgmma_over_many_tiles_matches_the_plain_kernels),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
