/* [test-all: compiles the GPU companion] Special cases of the operators of text models on the device: arrays
 * that share memory as the graph allows, gradients that are not wanted, tokens and labels out of range,
 * epilogues and batches of products, and a sum and its norm as one kernel. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "cuda/blas.cuh"
#include "cuda/families.h"
#include "cuda/cuda_check.h"

/* Prepares a new check on both sides and sends its numbers. */
static void begin(cuda_check *c, ddp__cuda *dev, const cuda_case *k, ddp_op_call *cpu, ddp_op_call *gpu)
{
    cuda_open(c, dev, k);
    cuda_each(c, cuda_send_one);
    cuda_call(c, 0, 0, cpu);
    cuda_call(c, 1, 0, gpu);
}

static void one_number_is(cuda_check *c, const cuda_array *a, const char *name, long i, double want)
{
    float *got = cuda_get(c, a, name);

    if (isnan(want) ? !isnan(got[i]) : !((double)got[i] == want))
        fail_msg("%s[%ld] is %g, not %g", name, i, (double)got[i], want);
    free(got);
}

/* out overlaps in[0] and the gradient overlaps grad_out, as in_place_ok allows. */
static void in_place(const cuda_case *k)
{
    static const ddp_cuda_numbers numbers[] = {DDP_CUDA_F32, DDP_CUDA_BF16};
    int m;

    for (m = 0; m < 2; m++) {
        ddp__cuda *dev = cuda_device(numbers[m], cuda_text_ops);
        ddp_op_call cpu, gpu;
        cuda_check c;
        begin(&c, dev, k, &cpu, &gpu);
        assert_int_equal(c.spec.in_place_ok, 1);
        cpu.out = (void *)cpu.in[0];
        gpu.out = (void *)gpu.in[0];
        cpu.grad_in[0] = (void *)cpu.grad_out;
        gpu.grad_in[0] = (void *)gpu.grad_out;
        c.cpu->forward(&cpu);
        c.gpu->forward(&gpu);
        c.cpu->backward(&cpu);
        c.gpu->backward(&gpu);
        cuda_ok(dev);
        cuda_compare(&c, &c.in[0], "out over input", 0);
        cuda_compare(&c, &c.grad_out, "gradient over gradient", 0);
        cuda_compare(&c, &c.grad_param[0], "gradient of parameter", 0);
        cuda_shut(&c);
        ddp__cuda_close(dev);
    }
}

static void operators_work_in_place(void **state)
{
    cuda_case k = cuda_case_of("position", 5, 7, 11);

    (void)state;
    in_place(&k);
    k = cuda_case_of("dropout", 3, 4099);
    k.arg[0] = 0.4;
    in_place(&k);
    k.training = 0;
    in_place(&k);
    k = cuda_case_of("rope", 3, 5, 8 * 6);
    k.arg[0] = 4;
    k.arg[1] = 2;
    in_place(&k);
}

/* The gradient overlaps the input, as grad_over_input allows. */
static void over_input(const cuda_case *k, ddp_cuda_numbers numbers)
{
    ddp__cuda *dev = cuda_device(numbers, cuda_text_ops);
    ddp_op_call cpu, gpu;
    cuda_check c;
    int i;

    begin(&c, dev, k, &cpu, &gpu);
    assert_int_equal(c.spec.grad_over_input, 1);
    c.cpu->forward(&cpu);
    c.gpu->forward(&gpu);
    cpu.grad_in[0] = (void *)cpu.in[0];
    gpu.grad_in[0] = (void *)gpu.in[0];
    c.cpu->backward(&cpu);
    c.gpu->backward(&gpu);
    cuda_ok(dev);
    cuda_compare(&c, &c.in[0], "gradient over input", 0);
    for (i = 1; i < k->inputs; i++) cuda_compare(&c, &c.grad_in[i], "gradient of input", i);
    cuda_shut(&c);
    ddp__cuda_close(dev);
}

static void gradients_may_overwrite_inputs(void **state)
{
    cuda_case k = cuda_case_of("swiglu", 19, 48);

    (void)state;
    over_input(&k, DDP_CUDA_F32);
    over_input(&k, DDP_CUDA_BF16);
    k.inputs = 2;
    k.in[1] = k.in[0];
    over_input(&k, DDP_CUDA_BF16);
    k = cuda_case_of("cross_entropy", 19, 2600);
    k.inputs = 2;
    k.in[1].dims = 1;
    k.in[1].dim[0] = 19;
    k.type[1] = DDP_I32;
    k.low = -1;
    k.high = 30;
    over_input(&k, DDP_CUDA_F32);
    over_input(&k, DDP_CUDA_BF16);
}

/* without: bit i omits the gradient of parameter i, bit 4 the gradient of the input. */
static void wanted(const cuda_case *k, int without)
{
    ddp__cuda *dev = cuda_device(DDP_CUDA_BF16, cuda_text_ops);
    ddp_op_call cpu, gpu;
    cuda_check c;
    int i;

    begin(&c, dev, k, &cpu, &gpu);
    c.cpu->forward(&cpu);
    c.gpu->forward(&gpu);
    for (i = 0; i < DDP_OP_PARAMS; i++)
        if (without >> i & 1) cpu.grad_param[i] = gpu.grad_param[i] = NULL;
    if (without >> 4 & 1) cpu.grad_in[0] = gpu.grad_in[0] = NULL;
    c.cpu->backward(&cpu);
    c.gpu->backward(&gpu);
    cuda_ok(dev);
    for (i = 0; i < DDP_OP_PARAMS; i++) cuda_compare(&c, &c.grad_param[i], "gradient of parameter", i);
    cuda_compare(&c, &c.grad_in[0], "gradient of input", 0);
    cuda_shut(&c);
    ddp__cuda_close(dev);
}

static void unwanted_gradients_are_not_written(void **state)
{
    static const char *const ops[] = {"linear", "layer_norm", "rms_norm"};
    static const int without[] = {1, 2, 3, 16, 17, 19};
    size_t i, w;

    (void)state;
    for (i = 0; i < sizeof ops / sizeof ops[0]; i++)
        for (w = 0; w < sizeof without / sizeof without[0]; w++) {
            cuda_case k = cuda_case_of(ops[i], 21, 24);
            k.arg[0] = i == 0 ? 16 : 0;
            wanted(&k, without[w]);
        }
    for (w = 0; w < 4; w++) {
        cuda_case k = w < 2 ? cuda_case_of("position", 3, 5, 8) : cuda_case_of("embedding", 3);
        if (w >= 2) {
            k.type[0] = DDP_I32;
            k.arg[0] = 9;
            k.arg[1] = 8;
        }
        wanted(&k, w % 2 ? 1 : w < 2 ? 16 : 0);
    }
}

static void invalid_tokens_give_nan_and_no_gradient(void **state)
{
    cuda_case k = cuda_case_of("embedding", 4);
    ddp__cuda *dev = cuda_device(DDP_CUDA_F32, cuda_text_ops);
    ddp_op_call cpu, gpu;
    cuda_check c;

    (void)state;
    k.type[0] = DDP_I32;
    k.arg[0] = 5;
    k.arg[1] = 5;
    cuda_open(&c, dev, &k);
    c.spec.param[0].shape.dim[0] = 3; /* a write past the table would be detected */
    ((int32_t *)c.in[0].cpu)[0] = 2;
    ((int32_t *)c.in[0].cpu)[1] = -1;
    ((int32_t *)c.in[0].cpu)[2] = 3;
    ((int32_t *)c.in[0].cpu)[3] = 2;
    cuda_each(&c, cuda_send_one);
    cuda_call(&c, 0, 0, &cpu);
    cuda_call(&c, 1, 0, &gpu);
    cpu.param[0] = (const float *)cpu.param[0] + 5; /* a read before the table would return numbers */
    gpu.param[0] = (const float *)gpu.param[0] + 5;
    c.cpu->forward(&cpu);
    c.gpu->forward(&gpu);
    c.cpu->backward(&cpu);
    c.gpu->backward(&gpu);
    cuda_ok(dev);
    one_number_is(&c, &c.out, "out", 4, (double)c.out.cpu[4]);
    one_number_is(&c, &c.out, "out", 5, NAN);
    one_number_is(&c, &c.out, "out", 14, NAN);
    one_number_is(&c, &c.out, "out", 15, (double)c.out.cpu[15]);
    cuda_compare(&c, &c.grad_param[0], "gradient of the table", 0);
    cuda_shut(&c);
    ddp__cuda_close(dev);
}

/* Two rows. The first label is given, and logit 0 of row 1 is -inf. */
static void loss_of(int label, int second, double *loss, double *first, double *last)
{
    cuda_case k = cuda_case_of("cross_entropy", 2, 5);
    ddp__cuda *dev = cuda_device(DDP_CUDA_F32, cuda_text_ops);
    ddp_op_call cpu, gpu;
    cuda_check c;
    float *got;

    k.inputs = 2;
    k.in[1].dims = 1;
    k.in[1].dim[0] = 2;
    k.type[1] = DDP_I32;
    cuda_open(&c, dev, &k);
    c.in[0].cpu[5] = -INFINITY;
    ((int32_t *)c.in[1].cpu)[0] = label;
    ((int32_t *)c.in[1].cpu)[1] = second;
    cuda_each(&c, cuda_send_one);
    cuda_call(&c, 0, 0, &cpu);
    cuda_call(&c, 1, 0, &gpu);
    c.cpu->forward(&cpu);
    c.gpu->forward(&gpu);
    c.gpu->backward(&gpu);
    cuda_ok(dev);
    got = cuda_get(&c, &c.out, "loss");
    *loss = (double)got[0];
    if (!isnan(*loss) || !isnan(c.out.cpu[0])) assert_true(fabs(*loss - (double)c.out.cpu[0]) < 1e-5);
    free(got);
    got = cuda_get(&c, &c.grad_in[0], "gradient");
    *first = (double)got[0];
    *last = (double)got[9];
    assert_true(second == -1 || got[5] == 0); /* a probability of 0 */
    free(got);
    cuda_shut(&c);
    ddp__cuda_close(dev);
}

static void invalid_labels_match_the_cpu(void **state)
{
    double loss, first, last;

    (void)state;
    loss_of(5, 2, &loss, &first, &last);
    assert_true(isnan(loss) && isnan(first) && !isnan(last));
    loss_of(-2, 2, &loss, &first, &last);
    assert_true(isnan(loss) && isnan(first) && !isnan(last));
    loss_of(-1, 2, &loss, &first, &last);
    assert_true(loss > 0 && first == 0 && last != 0);
    loss_of(-1, -1, &loss, &first, &last);
    assert_true(loss == 0 && first == 0 && last == 0);
}

/* Products that linear does not use: batches, both operands transposed, GELU with its input. */
static void batched_products_and_epilogues_match_the_cpu(void **state)
{
    enum { M = 3, N = 8, K = 5, COUNT = 2 };
    ddp__cuda *dev = cuda_device(DDP_CUDA_F32, cuda_text_ops);
    float a[COUNT][K][M], b[COUNT][N][K], bias[N], c[COUNT][M][N], before[M][N];
    float *da, *db, *dbias, *dc, *dbefore;
    ddp__cuda_product p;
    int s, i, j, k;

    (void)state;
    for (i = 0; i < COUNT * K * M; i++) (&a[0][0][0])[i] = (float)(i % 7) - 3;
    for (i = 0; i < COUNT * N * K; i++) (&b[0][0][0])[i] = (float)(i % 5) / 8 - 0.25f;
    for (i = 0; i < N; i++) bias[i] = (float)i / 4;
    assert_int_equal(cudaMalloc(&da, sizeof a), cudaSuccess);
    assert_int_equal(cudaMalloc(&db, sizeof b), cudaSuccess);
    assert_int_equal(cudaMalloc(&dbias, sizeof bias), cudaSuccess);
    assert_int_equal(cudaMalloc(&dc, sizeof c), cudaSuccess);
    assert_int_equal(cudaMalloc(&dbefore, sizeof before), cudaSuccess);
    assert_int_equal(cudaMemcpy(da, a, sizeof a, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaMemcpy(db, b, sizeof b, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaMemcpy(dbias, bias, sizeof bias, cudaMemcpyHostToDevice), cudaSuccess);
    p = ddp__cuda_product_of(M, N, K, da, 1, db, 1, dc, 0);
    p.shape.count = COUNT;
    p.shape.a_step = K * M;
    p.shape.b_step = N * K;
    p.shape.c_step = M * N;
    assert_true(ddp__cuda_multiply(dev, &p));
    cuda_ok(dev);
    assert_int_equal(cudaMemcpy(c, dc, sizeof c, cudaMemcpyDeviceToHost), cudaSuccess);
    for (s = 0; s < COUNT; s++)
        for (i = 0; i < M; i++)
            for (j = 0; j < N; j++) {
                float sum = 0;
                for (k = 0; k < K; k++) sum += a[s][k][i] * b[s][j][k];
                assert_true(fabsf(sum - c[s][i][j]) < 1e-5f);
            }
    p.shape.count = 1;
    p.bias = dbias;
    p.gelu = 1;
    p.before = dbefore;
    assert_true(ddp__cuda_multiply(dev, &p));
    cuda_ok(dev);
    assert_int_equal(cudaMemcpy(c, dc, sizeof c[0], cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(cudaMemcpy(before, dbefore, sizeof before, cudaMemcpyDeviceToHost), cudaSuccess);
    for (i = 0; i < M; i++)
        for (j = 0; j < N; j++) {
            float x = bias[j], y;
            for (k = 0; k < K; k++) x += a[0][k][i] * b[0][j][k];
            y = 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
            assert_true(fabsf(x - before[i][j]) < 1e-5f);
            assert_true(fabsf(y - c[0][i][j]) < 1e-3f); /* the library computes its own GELU */
        }
    p = ddp__cuda_product_of(M, N, K, da, 1, db, 1, dc, 0);
    p.add = 1;
    p.sums = dbefore;
    before[M - 1][N - 1] = 7; /* values after the sums do not change */
    assert_int_equal(cudaMemcpy(dbefore, before, sizeof before, cudaMemcpyHostToDevice), cudaSuccess);
    if (ddp__cuda_multiply(dev, &p)) {
        float sums[M], now[M][N];
        cuda_ok(dev);
        assert_int_equal(cudaMemcpy(sums, dbefore, sizeof sums, cudaMemcpyDeviceToHost), cudaSuccess);
        assert_int_equal(cudaMemcpy(before, dbefore, sizeof before, cudaMemcpyDeviceToHost), cudaSuccess);
        assert_int_equal(cudaMemcpy(now, dc, sizeof now, cudaMemcpyDeviceToHost), cudaSuccess);
        for (i = 0; i < M; i++) {
            float row = 0;
            for (k = 0; k < K; k++) row += a[0][k][i];
            assert_true(fabsf(row - sums[i]) < 1e-5f);
            for (j = 0; j < N; j++) {
                float sum = c[0][i][j];
                for (k = 0; k < K; k++) sum += a[0][k][i] * b[0][j][k];
                assert_true(fabsf(sum - now[i][j]) < 1e-5f);
            }
        }
        assert_true(before[M - 1][N - 1] == 7);
    }
    (void)cudaFree(da);
    (void)cudaFree(db);
    (void)cudaFree(dbias);
    (void)cudaFree(dc);
    (void)cudaFree(dbefore);
    ddp__cuda_close(dev);
}

#if defined(DDP_CUDA_ON_CPU)
/* The library proposes an algorithm and rejects it when it runs. A product with an epilogue then counts as
 * not supported, and one line of the log says so. Another address of `before` has an algorithm of its own. */
static void library_that_rejects_its_own_algorithm(void **state)
{
    enum { M = 3, N = 8, K = 8 };
    ddp__cuda *dev = cuda_device(DDP_CUDA_F32, cuda_text_ops);
    ddp__cuda_product p;
    ddp_error err;
    float *x;

    (void)state;
    assert_int_equal(cudaMalloc(&x, 1024 * sizeof *x), cudaSuccess);
    assert_int_equal(cudaMemset(x, 0, 1024 * sizeof *x), cudaSuccess);
    p = ddp__cuda_product_of(M, N, K, x, 0, x + 128, 0, x + 256, 0);
    p.bias = x + 384;
    p.gelu = 1;
    p.before = x + 512;
    assert_true(ddp__cuda_multiply(dev, &p));
    p.before = x + 516;
    assert_true(ddp__cuda_multiply(dev, &p));
    assert_int_equal(dev->rejected, 0);
    cublasLtRejected() = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    for (p.shape.m = 1; p.shape.m < M; p.shape.m++)
        for (int i = 0; i < 2; i++) assert_false(ddp__cuda_multiply(dev, &p));
    assert_int_equal(dev->rejected, M - 1);
    assert_non_null(strstr(dev->said, "cuBLASLt rejected its own algorithm for a product of 1 x 8 by 8 x 8"));
    assert_ptr_equal(strchr(dev->said, '\n'), strrchr(dev->said, '\n'));
    cuda_ok(dev);
    cublasLtRejected() = 0;
    cublasLtRejects() = 99;
    p.gelu = 0;
    p.before = NULL;
    assert_true(ddp__cuda_multiply(dev, &p));
    assert_int_equal(ddp__cuda_status(dev, &err), DDP_FAILED);
    assert_non_null(strstr(err.msg, "cublasLtMatmul: not supported"));
    cublasLtRejects() = 0;
    (void)cudaFree(x);
    ddp__cuda_close(dev);
}
#endif

/* ---- gradients of a bias ---- */

/* Linear compared with the CPU for two steps: the first step creates the plan of the product. */
static void bias_steps(ddp_cuda_numbers numbers, long rows, long columns, long width, long kernels)
{
    cuda_case k = cuda_case_of("linear", rows, columns);
    ddp__cuda *dev = cuda_device(numbers, cuda_text_ops);
    ddp_op_call cpu, gpu;
    cuda_check c;
    int step;

    k.arg[0] = (double)width;
    begin(&c, dev, &k, &cpu, &gpu);
    for (step = 0; step < 2; step++) {
#if defined(DDP_CUDA_ON_CPU)
        const long before = cuda_on_cpu::launches();
#endif
        c.cpu->backward(&cpu);
        c.gpu->backward(&gpu);
        cuda_ok(dev);
#if defined(DDP_CUDA_ON_CPU)
        assert_int_equal(cuda_on_cpu::launches() - before, kernels); /* in addition to the library's */
#endif
        cuda_compare(&c, &c.grad_param[0], "gradient of weights, step", step);
        cuda_compare(&c, &c.grad_param[1], "gradient of bias, step", step);
        cuda_compare(&c, &c.grad_in[0], "gradient of input, step", step);
    }
    (void)kernels;
    cuda_shut(&c);
    ddp__cuda_close(dev);
}

static void every_size(long kernels)
{
    int numbers;

    for (numbers = 0; numbers < 3; numbers += 2) {
        bias_steps((ddp_cuda_numbers)numbers, 37, 24, 40, kernels);
        bias_steps((ddp_cuda_numbers)numbers, 1, 1, 1, kernels);
        bias_steps((ddp_cuda_numbers)numbers, 600, 5, 19, kernels);
    }
}

/* The product of the weights' gradient also computes the bias gradient. Two kernels do it if the library
 * cannot, or only slowly. */
static void product_also_computes_the_bias_gradient(void **state)
{
    (void)state;
    every_size(1);
#if defined(DDP_CUDA_ON_CPU)
    cublasLtUnknown() = CUBLASLT_EPILOGUE_BGRADB;
    every_size(2);
    cublasLtUnknown() = 0;
    cublasLtIdle() = CUBLASLT_EPILOGUE_BGRADB;
    every_size(2);
    cublasLtIdle() = UINT32_MAX; /* no faster without it */
    every_size(1);
    cublasLtIdle() = 0;
    cublasLtRejected() = CUBLASLT_EPILOGUE_BGRADB; /* when it runs */
    every_size(2);
    cublasLtRejected() = 0;
    cublasLtRejects() = 1; /* products without an epilogue take the next algorithm */
    every_size(2);
    cublasLtRejects() = 0;
#endif
}

/* The gradients of linear and of the gelu after it, as a pair. adds: adds to the gradient of gelu's input;
 * without: as above. through: a reader of gelu has already applied the gradient of gelu. */
static void gelu_pair(ddp_cuda_numbers numbers, long rows, long columns, long width, int shift, int adds,
                      int without, int through)
{
    cuda_case k = cuda_case_of("linear", rows, columns), g = cuda_case_of("gelu", rows, width);
    ddp__cuda *dev = cuda_device(numbers, cuda_text_ops);
    const ddp_op_pair *pair = cuda_text_pair(dev, "linear", "gelu");
    ddp_op_call cpu[2], gpu[2];
    cuda_check a, b;
    int i;

    cuda_elementwise_ops(dev);
    k.arg[0] = (double)width;
    k.shift = g.shift = shift;
    begin(&a, dev, &k, &cpu[0], &gpu[0]);
    begin(&b, dev, &g, &cpu[1], &gpu[1]);
    for (i = 0; i < 2; i++) {
        ddp_op_call *c = i ? gpu : cpu;
        c[1].grad_in[0] = (void *)c[0].grad_out; /* gelu's input keeps its values */
        c[1].add_in[0] = adds;
        if (without & 1) c[0].grad_param[0] = NULL;
        if (without & 2) c[0].grad_param[1] = NULL;
        if (without & 16) c[0].grad_in[0] = NULL;
    }
    if (through) {
        cpu[0].grad_out = cpu[1].grad_out;
        gpu[0].grad_out = NULL; /* no kernel has written that */
        gpu[1].through = 1;
    } else {
        b.cpu->backward(&cpu[1]);
    }
    a.cpu->backward(&cpu[0]);
    if (pair)
        pair->backward(&gpu[0], &gpu[1]);
    else if (through) {
        gpu[0].grad_out = gpu[1].grad_out;
        a.gpu->backward(&gpu[0]);
    } else {
        b.gpu->backward(&gpu[1]);
        a.gpu->backward(&gpu[0]);
    }
    cuda_ok(dev);
    cuda_compare(&a, &a.grad_out, "gradient of gelu's input", 0);
    cuda_compare(&a, &a.grad_param[0], "gradient of weights", 0);
    cuda_compare(&a, &a.grad_param[1], "gradient of bias", 0);
    cuda_compare(&a, &a.grad_in[0], "gradient of input", 0);
    cuda_shut(&a);
    cuda_shut(&b);
    ddp__cuda_close(dev);
}

static void fused_gelu_gradient_matches_the_cpu(void **state)
{
    int numbers;

    (void)state;
    for (numbers = 0; numbers < 3; numbers += 2) {
        gelu_pair((ddp_cuda_numbers)numbers, 37, 24, 40, 0, 0, 0, 1);
        gelu_pair((ddp_cuda_numbers)numbers, 19, 24, 261, 1, 0, 0, 1);
        gelu_pair((ddp_cuda_numbers)numbers, 37, 24, 40, 0, 0, 0, 0);
        gelu_pair((ddp_cuda_numbers)numbers, 37, 24, 40, 0, 1, 0, 0);
        gelu_pair((ddp_cuda_numbers)numbers, 600, 9, 261, 0, 0, 0, 0);
        gelu_pair((ddp_cuda_numbers)numbers, 19, 24, 264, 1, 0, 0, 0);
        gelu_pair((ddp_cuda_numbers)numbers, 21, 24, 16, 0, 0, 1, 0);
        gelu_pair((ddp_cuda_numbers)numbers, 21, 24, 16, 0, 0, 2, 0);
        gelu_pair((ddp_cuda_numbers)numbers, 21, 24, 16, 0, 0, 17, 0);
    }
}

/* Linear with a gelu as its input, back to the gelu's input, equals the product and gelu's gradient one after
 * the other. */
static void linear_through_gelu(ddp_cuda_numbers numbers, long rows, long columns, long width, long launches)
{
    cuda_case k = cuda_case_of("linear", rows, columns), g = cuda_case_of("gelu", rows, columns);
    ddp__cuda *dev = cuda_device(numbers, cuda_text_ops);
    ddp_op_call cpu[2], gpu[2];
    cuda_check a, b;

    cuda_elementwise_ops(dev);
    k.arg[0] = (double)width;
    begin(&a, dev, &k, &cpu[0], &gpu[0]);
    begin(&b, dev, &g, &cpu[1], &gpu[1]);
    cpu[1].grad_out = cpu[0].grad_in[0] = cpu[1].grad_in[0]; /* overlaps the output of the product */
    gpu[0].grad_in[0] = gpu[1].grad_in[0];
    gpu[0].inner = gpu[1].in[0];
    cpu[0].add_in[0] = cpu[1].add_in[0] = gpu[0].add_in[0] = 0;
    a.cpu->backward(&cpu[0]);
    b.cpu->backward(&cpu[1]);
#if defined(DDP_CUDA_ON_CPU)
    launches += cuda_on_cpu::launches();
#endif
    a.gpu->backward(&gpu[0]);
    cuda_ok(dev);
#if defined(DDP_CUDA_ON_CPU)
    assert_int_equal(cuda_on_cpu::launches(), launches);
#endif
    (void)launches;
    cuda_compare(&a, &a.grad_param[0], "gradient of weights", 0);
    cuda_compare(&a, &a.grad_param[1], "gradient of bias", 0);
    cuda_compare(&b, &b.grad_in[0], "gradient of gelu's input", 0);
    cuda_shut(&a);
    cuda_shut(&b);
    ddp__cuda_close(dev);
}

/* By the product or, if the library cannot, or if rows are not multiples of 16 bytes, by a kernel after it.
 * */
static void product_applies_the_gelu_gradient(void **state)
{
    int numbers;

    (void)state;
    for (numbers = 0; numbers < 3; numbers += 2) {
        linear_through_gelu((ddp_cuda_numbers)numbers, 37, 24, 40, 1);
        linear_through_gelu((ddp_cuda_numbers)numbers, 1, 8, 5, 1);
        linear_through_gelu((ddp_cuda_numbers)numbers, 37, 21, 40, 2);
#if defined(DDP_CUDA_ON_CPU)
        cublasLtUnknown() = CUBLASLT_EPILOGUE_DGELU;
        linear_through_gelu((ddp_cuda_numbers)numbers, 37, 24, 40, 2);
        cublasLtUnknown() = 0;
        cublasLtRejected() = CUBLASLT_EPILOGUE_DGELU;
        linear_through_gelu((ddp_cuda_numbers)numbers, 37, 24, 40, 2);
        cublasLtRejected() = 0;
#endif
    }
}

/* ---- an addition and the norm of its result ---- */

enum { PAIR_RESULTS = 7 };

/* Runs the two operators separately, or as a pair. Bits of adds: the norm adds to the gradient of its input.
 * The addition adds to the gradient of input 0, and of input 1. The gradient of input 0 is not wanted. */
static void pair_run(cuda_check *s, cuda_check *n, const ddp_op_pair *pair, int adds, float **got)
{
    const cuda_array *const result[PAIR_RESULTS] = {
        &s->out, &n->out, &n->saved, &n->grad_param[0], &n->grad_param[1], &s->grad_in[0], &s->grad_in[1]};
    ddp_op_call sum, norm;
    int i;

    cuda_each(s, cuda_send_one);
    cuda_each(n, cuda_send_one);
    for (i = 0; i < 3; i++)
        assert_int_equal(cudaMemset(cuda_at(n, result[i]), 0x5a, result[i]->bytes), cudaSuccess);
    cuda_call(s, 1, 0, &sum);
    cuda_call(n, 1, 0, &norm);
    norm.in[0] = sum.out;
    norm.grad_in[0] = (void *)sum.grad_out;
    norm.add_in[0] = adds & 1;
    sum.add_in[0] = adds >> 1 & 1;
    sum.add_in[1] = adds >> 2 & 1;
    if (adds & 8) sum.grad_in[0] = NULL;
    if (pair) {
        pair->forward(&sum, &norm);
        pair->backward(&sum, &norm);
    } else {
        s->gpu->forward(&sum);
        n->gpu->forward(&norm);
        n->gpu->backward(&norm);
        s->gpu->backward(&sum);
    }
    cuda_ok(n->dev);
    for (i = 0; i < PAIR_RESULTS; i++)
        got[i] = result[i]->base ? cuda_get(n, result[i], "a result of a pair") : NULL;
}

static void pair_check(const char *op, ddp_cuda_numbers numbers, long rows, long columns, int shift)
{
    static const int adds[] = {0, 1, 2, 5, 7, 9, 13};
    cuda_case k = cuda_case_of(op, rows, columns), add = cuda_case_of("add", rows, columns);
    ddp__cuda *dev = cuda_device(numbers, cuda_text_ops);
    const ddp_op_pair *pair = cuda_text_pair(dev, "add", op);
    float *want[PAIR_RESULTS], *got[PAIR_RESULTS];
    cuda_check s, n;
    size_t m;
    int i;

    cuda_elementwise_ops(dev);
    add.inputs = 2;
    add.in[1] = add.in[0];
    k.shift = add.shift = shift;
    cuda_open(&s, dev, &add);
    cuda_open(&n, dev, &k);
    assert_non_null(pair);
    for (m = 0; m < sizeof adds / sizeof adds[0]; m++) {
        pair_run(&s, &n, NULL, adds[m], want);
        pair_run(&s, &n, pair, adds[m], got);
        for (i = 0; i < PAIR_RESULTS; i++) {
            const long count = i < 2 || i > 4 ? rows * columns : i == 2 ? n.saved.n : columns;
            if (got[i] && memcmp(got[i], want[i], (size_t)count * sizeof **got))
                fail_msg("%s of %ld x %ld, adds %d: result %d differs", op, rows, columns, adds[m], i);
            free(got[i]);
            free(want[i]);
        }
    }
    cuda_shut(&s);
    cuda_shut(&n);
    ddp__cuda_close(dev);
}

static void fused_sum_and_norm_are_bit_identical(void **state)
{
    static const char *const ops[] = {"layer_norm", "rms_norm"};
    int i, numbers;

    (void)state;
    for (i = 0; i < 2; i++)
        for (numbers = 0; numbers < 3; numbers += 2) {
            pair_check(ops[i], (ddp_cuda_numbers)numbers, 21, 24, 0);
            pair_check(ops[i], (ddp_cuda_numbers)numbers, 19, 61, 1);
            pair_check(ops[i], (ddp_cuda_numbers)numbers, 3, 1200, 0); /* more than a lane keeps */
            pair_check(ops[i], (ddp_cuda_numbers)numbers, 9, 256, 0);
            pair_check(ops[i], (ddp_cuda_numbers)numbers, 3, 512, 0);
            pair_check(ops[i], (ddp_cuda_numbers)numbers, 11, 768, 0);
            pair_check(ops[i], (ddp_cuda_numbers)numbers, 3, 768, 1);
            pair_check(ops[i], (ddp_cuda_numbers)numbers, 3, 1016, 0);
            pair_check(ops[i], (ddp_cuda_numbers)numbers, 2, 1032, 0);
        }
    assert_null(cuda_text_pair(NULL, "add", "gelu"));
    assert_null(cuda_text_pair(NULL, "linear", "layer_norm"));
    assert_null(cuda_text_pair(NULL, "relu", "layer_norm"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_work_in_place),
        cmocka_unit_test(gradients_may_overwrite_inputs),
        cmocka_unit_test(unwanted_gradients_are_not_written),
        cmocka_unit_test(invalid_tokens_give_nan_and_no_gradient),
        cmocka_unit_test(invalid_labels_match_the_cpu),
        cmocka_unit_test(batched_products_and_epilogues_match_the_cpu),
        cmocka_unit_test(product_also_computes_the_bias_gradient),
        cmocka_unit_test(fused_gelu_gradient_matches_the_cpu),
#if defined(DDP_CUDA_ON_CPU)
        cmocka_unit_test(library_that_rejects_its_own_algorithm),
#endif
        cmocka_unit_test(product_applies_the_gelu_gradient),
        cmocka_unit_test(fused_sum_and_norm_are_bit_identical),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
