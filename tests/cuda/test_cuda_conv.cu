/* [test-all: compiles the GPU companion] Convolution on the device compared with the CPU, at sizes that are
 * not multiples of a tile. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "cuda/families.h"
#include "cuda/cuda_check.h"

/* One number format, overwriting or adding. */
static void check_as(ddp_cuda_numbers numbers, const cuda_case *k, int add)
{
    ddp__cuda *dev = cuda_device(numbers, cuda_conv_ops);

    cuda_check_run(dev, k, add);
    ddp__cuda_close(dev);
}

typedef struct conv_case {
    long b, c, h, w, channels, kernel, stride, padding, groups, bias;
} conv_case;

static cuda_case conv_of(const conv_case *z)
{
    cuda_case k = cuda_case_of("conv2d", z->b, z->c, z->h, z->w);

    k.arg[0] = (double)z->channels;
    k.arg[1] = (double)z->kernel;
    k.arg[2] = (double)z->stride;
    k.arg[3] = (double)z->padding;
    k.arg[4] = (double)z->groups;
    k.arg[5] = (double)z->bias;
    return k;
}

static const conv_case convs[] = {
    {2, 3, 11, 9, 5, 7, 2, 3, 1, 1},  /* stem layer: its taps are not a multiple of the depth */
    {3, 32, 5, 7, 70, 3, 1, 1, 1, 0}, /* all planes of a tap fill a tile; more rows than a short tile */
    {2, 64, 6, 5, 33, 3, 1, 1, 1, 1},
    {3, 32, 5, 7, 72, 1, 1, 0, 1, 1}, /* computed by cuBLASLt, with and without a bias */
    {35, 8, 2, 3, 16, 1, 1, 0, 1, 0},
    {3, 32, 5, 7, 70, 1, 1, 0, 1, 0},  /* not computed by cuBLASLt */
    {2, 32, 7, 9, 40, 3, 2, 1, 1, 0},  /* four phases of dx; dy and x can be read 16 bytes at a time */
    {2, 5, 8, 12, 72, 3, 1, 1, 1, 0},  /* only dy can be read 16 bytes at a time */
    {2, 64, 5, 16, 64, 3, 1, 1, 1, 1}, /* several tiles per tap */
    {1, 64, 3, 8, 66, 3, 1, 1, 2, 0},
    {1, 32, 6, 6, 16, 1, 1, 0, 2, 1}, /* 1x1 windows with groups */
    {1, 17, 6, 6, 9, 1, 2, 0, 1, 1},  /* no window contains some elements of x */
    {2, 12, 8, 5, 8, 3, 1, 1, 4, 1},  /* groups */
    {2, 6, 9, 10, 12, 3, 2, 1, 6, 1}, /* depthwise, two output channels per group */
    {1, 5, 7, 7, 5, 5, 1, 2, 5, 0},
    {2, 40, 9, 10, 80, 3, 1, 1, 40, 1},  /* more channels than a block has lanes, in several parts */
    {1, 4, 6, 6, 3, 3, 3, 3, 1, 1},      /* some windows contain only padding */
    {1, 2, 1, 300, 3, 3, 1, 1, 1, 0},    /* one row of positions, longer than a tile */
    {1, 1, 131, 131, 66, 2, 1, 0, 1, 1}, /* tall tiles. The gradient of the weights is summed in parts. */
    {3, 2, 13, 61, 4, 3, 1, 1, 2, 0},    /* the same for groups with one input channel */
};

static void float_convolutions_match_the_cpu(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < sizeof convs / sizeof *convs; i++) {
        const cuda_case k = conv_of(&convs[i]);
        check_as(DDP_CUDA_F32, &k, (int)(i & 1));
    }
}

/* Inputs are exact in bfloat16 and TF32, so only results are rounded. */
static void tensor_core_convolutions_match_the_cpu(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < sizeof convs / sizeof *convs; i++) {
        const cuda_case k = conv_of(&convs[i]);
        check_as(DDP_CUDA_BF16, &k, (int)(i & 1));
        if (convs[i].h < 100) check_as(DDP_CUDA_TF32, &k, (int)(~i & 1)); /* the other format takes long */
    }
}

/* Arrays that are not aligned to 16 bytes; gradients that are not wanted. */
static void unaligned_arrays_give_the_same_results(void **state)
{
    static const ddp_cuda_numbers numbers[] = {DDP_CUDA_F32, DDP_CUDA_BF16};
    static const int which[] = {1, 3, 8, 13};
    ddp_op_call call;
    cuda_check c;
    cuda_case k;
    float *got;
    long i;
    int m, z;

    (void)state;
    for (m = 0; m < 2; m++)
        for (z = 0; z < 4; z++) {
            ddp__cuda *dev = cuda_device(numbers[m], cuda_conv_ops);
            k = conv_of(&convs[which[z]]);
            k.shift = 1;
            cuda_check_run(dev, &k, 1);
            cuda_open(&c, dev, &k);
            cuda_each(&c, cuda_send_one);
            cuda_call(&c, 1, 0, &call);
            call.grad_in[0] = call.grad_param[0] = call.grad_param[1] = NULL;
            c.gpu->backward(&call);
            cuda_ok(dev);
            got = cuda_get(&c, &c.grad_param[0], "gradient");
            for (i = 0; i < c.grad_param[0].n; i++) assert_true(got[i] == c.grad_param[0].cpu[i]);
            free(got);
            got = cuda_get(&c, &c.grad_in[0], "gradient");
            for (i = 0; i < c.grad_in[0].n; i++) assert_true(got[i] == c.grad_in[0].cpu[i]);
            free(got);
            cuda_shut(&c);
            ddp__cuda_close(dev);
        }
}

/* An infinity stays in the windows that contain it: products with padding do not spread it. */
static void infinity_reaches_only_its_windows(void **state)
{
    ddp_op_call cpu, gpu;
    cuda_check c;
    cuda_case k;
    float *got;
    long i, finite;
    int z;

    (void)state;
    for (z = 0; z < 3; z += 2) {
        ddp__cuda *dev = cuda_device(DDP_CUDA_F32, cuda_conv_ops);
        k = conv_of(&convs[z]);
        cuda_open(&c, dev, &k);
        c.in[0].cpu[73] = INFINITY; /* for the stem: row 8, one below the windows of row 2 */
        cuda_each(&c, cuda_send_one);
        cuda_call(&c, 0, 0, &cpu);
        cuda_call(&c, 1, 0, &gpu);
        c.cpu->forward(&cpu);
        c.gpu->forward(&gpu);
        cuda_ok(dev);
        got = cuda_get(&c, &c.out, "out");
        for (i = finite = 0; i < c.out.n; i++) {
            assert_int_equal(isfinite(got[i]) != 0, isfinite(c.out.cpu[i]) != 0);
            finite += isfinite(got[i]) != 0;
        }
        assert_true(finite > 0 && finite < c.out.n);
        free(got);
        cuda_shut(&c);
        ddp__cuda_close(dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_convolutions_match_the_cpu),
        cmocka_unit_test(tensor_core_convolutions_match_the_cpu),
        cmocka_unit_test(unaligned_arrays_give_the_same_results),
        cmocka_unit_test(infinity_reaches_only_its_windows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
