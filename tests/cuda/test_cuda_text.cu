/* [test-all: compiles the GPU companion] The operators of text models on the device compared with the CPU, at
 * sizes that are multiples of no vector, warp or tile, and at sizes that are multiples of all. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "cuda/families.h"
#include "cuda/cuda_check.h"

static void check(const cuda_case *k) { cuda_check_case(k, cuda_text_ops); }

static void linear(const char *op, long rows, long columns, long width)
{
    cuda_case k = cuda_case_of(op, rows, columns);

    k.arg[0] = (double)width;
    if (!strcmp(op, "linear_tied")) {
        k.tied.dims = 2;
        k.tied.dim[0] = width;
        k.tied.dim[1] = columns;
    }
    check(&k);
}

static void linear_matches_the_cpu(void **state)
{
    (void)state;
    linear("linear", 1, 1, 1);
    linear("linear", 37, 24, 40);
    linear("linear", 19, 13, 7);
    linear("linear", 300, 8, 264);
    linear("linear", 5000, 8, 16);
    linear("linear_no_bias", 19, 16, 24);
    linear("linear_tied", 9, 11, 33);
}

static void norms_match_the_cpu(void **state)
{
    /* column counts around those that fill 1 to 4 pieces per lane, in float32 (128 each) and in bfloat16 (256
     * each) */
    static const long sizes[][2] = {{1, 3},    {37, 61},  {50, 256}, {3, 120},  {2, 128},  {19, 136},
                                    {3, 248},  {9, 264},  {3, 384},  {3, 392},  {17, 504}, {2, 512},
                                    {3, 520},  {3, 760},  {40, 768}, {3, 776},  {2, 1016}, {9, 1024},
                                    {3, 1028}, {3, 1032}, {3, 1200}, {5, 4104}, {2100, 8}, {2065, 20}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cuda_case k = cuda_case_of("layer_norm", sizes[i][0], sizes[i][1]);
        check(&k);
        k.op = "rms_norm";
        k.arg[0] = i % 2 ? 0 : 1e-3;
        check(&k);
    }
}

/* A norm whose rows stay in registers, and the same numbers in unaligned arrays, which every pass reads
 * again. */
static void kept_check(const char *op, ddp_cuda_numbers numbers, long columns)
{
    ddp__cuda *dev = cuda_device(numbers, cuda_text_ops);
    float *got[2][5];
    long count[5] = {0, 0, 0, 0, 0};
    int i, shift;

    for (shift = 0; shift < 2; shift++) {
        cuda_case k = cuda_case_of(op, 35, columns);
        ddp_op_call gpu;
        cuda_check c;
        k.shift = shift;
        cuda_open(&c, dev, &k);
        cuda_each(&c, cuda_send_one);
        cuda_call(&c, 1, 1, &gpu);
        c.gpu->forward(&gpu);
        c.gpu->backward(&gpu);
        cuda_ok(dev);
        got[shift][0] = cuda_get(&c, &c.out, "out");
        got[shift][1] = cuda_get(&c, &c.grad_in[0], "gradient of input");
        got[shift][2] = cuda_get(&c, &c.saved, "saved");
        got[shift][3] = cuda_get(&c, &c.grad_param[0], "gradient of scale");
        got[shift][4] = c.grad_param[1].base ? cuda_get(&c, &c.grad_param[1], "gradient of shift") : NULL;
        count[0] = count[1] = c.out.n;
        count[2] = c.saved.n;
        count[3] = count[4] = columns;
        cuda_shut(&c);
    }
    for (i = 0; i < 5; i++) {
        if (got[0][i] && memcmp(got[0][i], got[1][i], (size_t)count[i] * sizeof **got[0]))
            fail_msg("%s of %ld columns, numbers %d: result %d differs", op, columns, (int)numbers, i);
        free(got[0][i]);
        free(got[1][i]);
    }
    ddp__cuda_close(dev);
}

static void rows_in_registers_are_bit_identical(void **state)
{
    static const long columns[] = {8, 120, 128, 136, 256, 384, 512, 520, 760, 768, 776, 1024, 1032};
    size_t i;

    (void)state;
#if !defined(DDP_CUDA_ON_CPU)
    skip(); /* two kernels, in which the compiler may contract products and sums differently */
#endif
    for (i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        kept_check("layer_norm", DDP_CUDA_F32, columns[i]);
        kept_check("layer_norm", DDP_CUDA_BF16, columns[i]);
        kept_check("rms_norm", DDP_CUDA_F32, columns[i]);
        kept_check("rms_norm", DDP_CUDA_BF16, columns[i]);
    }
}

static void embedding_matches_the_cpu(void **state)
{
    /* the table's rows: one digit of the sort, two and three. The last two have several tiles of rows. */
    static const long sizes[][3] = {{1, 1, 3},    {300, 5, 24},   {70, 40, 61},
                                    {1100, 3, 8}, {2500, 300, 5}, {2049, 70000, 2}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cuda_case k = cuda_case_of("embedding", sizes[i][0]);
        k.type[0] = DDP_I32;
        k.arg[0] = (double)sizes[i][1];
        k.arg[1] = (double)sizes[i][2];
        k.high = (int)sizes[i][1] - 1;
        check(&k);
    }
}

static void position_matches_the_cpu(void **state)
{
    cuda_case k = cuda_case_of("position", 5, 7, 11);

    (void)state;
    check(&k);
    k = cuda_case_of("position", 3, 8, 24);
    check(&k);
}

static void rope_matches_the_cpu(void **state)
{
    cuda_case k = cuda_case_of("rope", 9, 5, 8 * 6);

    (void)state;
    k.arg[0] = 4;
    k.arg[1] = 2;
    check(&k);
    k = cuda_case_of("rope", 2, 4, 3 * 64);
    k.arg[0] = 1;
    k.arg[2] = 500;
    check(&k);
}

static void swiglu_matches_the_cpu(void **state)
{
    cuda_case k = cuda_case_of("swiglu", 19, 26);

    (void)state;
    check(&k);
    k = cuda_case_of("swiglu", 33, 48);
    check(&k);
    k.inputs = 2;
    k.in[1] = k.in[0];
    check(&k);
}

static void dropout_mask_matches_the_cpu(void **state)
{
    cuda_case k = cuda_case_of("dropout", 3, 8195);

    (void)state;
    k.arg[0] = 0.3;
    check(&k);
    k.training = 0;
    check(&k);
}

static void cross_entropy_matches_the_cpu(void **state)
{
    static const long sizes[][2] = {
        {1, 2}, {37, 61}, {9, 2600}, {1030, 24}, {2, 17000}}; /* the last: more than one round of the loop */
    size_t i;

    (void)state;
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cuda_case k = cuda_case_of("cross_entropy", sizes[i][0], sizes[i][1]);
        k.inputs = 2;
        k.in[1].dims = 1;
        k.in[1].dim[0] = sizes[i][0];
        k.type[1] = DDP_I32;
        k.low = -1; /* rows without a label */
        k.high = (int)sizes[i][1] - 1;
        check(&k);
    }
}

/* Forward only, without training: no backward pass. */
static void evaluated(cuda_case k, ddp_cuda_numbers numbers)
{
    ddp__cuda *dev = cuda_device(numbers, cuda_text_ops);
    ddp_op_call cpu, gpu;
    cuda_check c;

    k.training = 0;
    cuda_open(&c, dev, &k);
    cuda_each(&c, cuda_send_one);
    cuda_call(&c, 0, 0, &cpu);
    cuda_call(&c, 1, 0, &gpu);
    c.cpu->forward(&cpu);
    c.gpu->forward(&gpu);
    cuda_ok(dev);
    cuda_compare(&c, &c.out, "out", 0);
    cuda_shut(&c);
    ddp__cuda_close(dev);
}

/* Separate and tied weights; the last two cases need several chunks. */
static void linear_cross_entropy_matches_the_cpu(void **state)
{
    static const long sizes[][3] = {{1, 8, 20}, {37, 24, 61}, {9, 16, 2600}, {600, 8, 24}, {2065, 16, 40}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cuda_case k = cuda_case_of("linear_cross_entropy", sizes[i][0], sizes[i][1]);
        k.inputs = 2;
        k.in[1].dims = 1;
        k.in[1].dim[0] = sizes[i][0];
        k.type[1] = DDP_I32;
        k.low = -1;
        k.high = (int)sizes[i][2] - 1;
        k.within_half = 0.02; /* values between the three products are rounded twice */
        k.arg[0] = i % 2 ? 0 : (double)sizes[i][2];
        if (i % 2) {
            k.tied.dims = 2;
            k.tied.dim[0] = sizes[i][2];
            k.tied.dim[1] = sizes[i][1];
        }
        check(&k);
        evaluated(k, DDP_CUDA_F32);
        evaluated(k, DDP_CUDA_BF16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_matches_the_cpu),
        cmocka_unit_test(norms_match_the_cpu),
        cmocka_unit_test(rows_in_registers_are_bit_identical),
        cmocka_unit_test(embedding_matches_the_cpu),
        cmocka_unit_test(position_matches_the_cpu),
        cmocka_unit_test(rope_matches_the_cpu),
        cmocka_unit_test(swiglu_matches_the_cpu),
        cmocka_unit_test(dropout_mask_matches_the_cpu),
        cmocka_unit_test(cross_entropy_matches_the_cpu),
        cmocka_unit_test(linear_cross_entropy_matches_the_cpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
