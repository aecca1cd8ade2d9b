/* The first checks of `make gpu-check` on a GPU: the instructions of tensor cores, attention, waits of
 * streams, and the products of cuBLASLt.
 *
 *   gpu_probe products             64 x 64 x 64 on small integers, exactly, once per instruction
 *   gpu_probe attention [MOST]     wgmma and mma against the kernels without tensor cores, up to MOST
 *                                  tokens [1024]
 *   gpu_probe waits                lists the names of the next checks
 *   gpu_probe wait NAME            one check of waits, as the driver runs it. Does not end if the device
 *                                  never continues
 *   gpu_probe wait NAME protected  the same after ddp__cuda_held, so that the library waits where it must
 *   gpu_probe matmul [ROWS [DIM]]  cuBLASLt at GPT-2's shapes: found, right, time fused and not fused [4096
 *                                  768]
 *
 * Each prints one JSON object per line: what, ok, and figures. Exit 0, 1 after a failure, 77 without a
 * GPU. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/check.cuh"
#include "cuda/linear.cuh"

static int failures;

static void row(const char *what, int ok, const char *fmt, ...) DDP__PRINTF(3, 4);
static void row(const char *what, int ok, const char *fmt, ...)
{
    va_list args;

    failures += !ok;
    printf("{\"what\": \"%s\", \"ok\": %s", what, ok ? "true" : "false");
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("}\n");
    fflush(stdout);
}

/* text without the characters that JSON escapes */
static const char *plain(char *text)
{
    for (char *c = text; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 32) *c = '\'';
    return text;
}

static ddp__cuda *device(ddp_cuda_numbers numbers)
{
    static const ddp__cuda_entry ops[] = {
        DDP__ENTRY("attention", ddp__cuda_attention, ddp__cuda_attention_scratch),
        DDP__PLAIN("linear", ddp__cuda_linear, ddp__cuda_linear_scratch)};
    ddp_error err;
    ddp__cuda *dev;
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 1) exit(77);
    dev = ddp__cuda_open(0, numbers, NULL, &err);
    if (!dev) {
        row("open", 0, ", \"error\": \"%s\"", plain(err.msg));
        exit(1);
    }
    ddp__cuda_add_ops(dev, ops);
    ddp__cuda_flash_open(dev);
    return dev;
}

/* Reports the first error of the device, if any. */
static int fine(ddp__cuda *dev, const char *what)
{
    ddp_error err;

    (void)DDP__CUDA(dev, cudaStreamSynchronize(dev->stream));
    if (ddp__cuda_status(dev, &err) == DDP_OK) return 1;
    row(what, 0, ", \"error\": \"%s\"", plain(err.msg));
    return 0;
}

/* ---- one product per instruction ---- */

enum { SIDE = 64 };

/* c (64 x 64) = a b^T and then c = c + a b, where a and b are tiles. The second product reads a from
 * registers. */
template <typename T, int GROUP>
static __global__ void __launch_bounds__(128) k_products(float *scores, float *sums, const T *a, const T *b)
{
    if (GROUP && !DDP__WGMMA) return;
    DDP__SHARED(T, left);
    T *right = left + SIDE * SIDE;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, width = ddp__vec<T>::width;
    float s[1][SIDE / 8][4], sum[1][SIDE / 8][4];
    ddp__tile_rows<T, SIDE, 1, 0> rows;

    for (int i = (int)threadIdx.x; i < SIDE * SIDE; i += 128) {
        ddp__tile_at<SIDE>(left, i / SIDE, i % SIDE / width)[i % width] = a[i];
        ddp__tile_at<SIDE>(right, i / SIDE, i % SIDE / width)[i % width] = b[i];
    }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); /* wgmma reads the tiles */
#endif
    __syncthreads();
    rows.rows = left + 16 * warp * SIDE;
    ddp__tile_zero(sum);
    ddp__tile_scores<GROUP, SIDE>(s, rows, right);
    for (int n = 0; n < SIDE / 8; n++)
        for (int i = 0; i < 4; i++) {
            const int at = (16 * warp + lane / 4 + i / 2 * 8) * SIDE + 8 * n + lane % 4 * 2 + i % 2;
            scores[at] = s[0][n][i];
            s[0][n][i] = ddp__to_float(a[at]);
        }
    ddp__tile_add<GROUP, SIDE, 1, SIDE>(sum, s, right);
    for (int n = 0; n < SIDE / 8; n++)
        for (int i = 0; i < 4; i++)
            sums[(16 * warp + lane / 4 + i / 2 * 8) * SIDE + 8 * n + lane % 4 * 2 + i % 2] = sum[0][n][i];
}

static void put(float *to, float x) { *to = x; }
static void put(ddp__bf16 *to, float x) { *to = __float2bfloat16_rn(x); }

/* Integers of -4 to 4: all sums are exact in every number format. */
template <typename T, int GROUP> static void product(ddp__cuda *dev, const char *name)
{
    const size_t n = SIDE * SIDE;
    float a[SIDE * SIDE], b[SIDE * SIDE], *is = (float *)calloc(2 * n, sizeof *is), *out = NULL;
    T *narrow = (T *)calloc(2 * n, sizeof *narrow), *in = NULL;
    long wrong[2] = {0, 0};

    for (int i = 0; i < SIDE * SIDE; i++) {
        a[i] = (float)((i * 7 + i / SIDE * 3) % 9 - 4);
        b[i] = (float)((i * 5 + i / SIDE * 2) % 9 - 4);
        put(&narrow[i], a[i]);
        put(&narrow[SIDE * SIDE + i], b[i]);
    }
    if (DDP__CUDA(dev, cudaMalloc((void **)&in, 2 * n * sizeof *in)) ||
        DDP__CUDA(dev, cudaMalloc((void **)&out, 2 * n * sizeof *out)) ||
        DDP__CUDA(dev, cudaMemcpy(in, narrow, 2 * n * sizeof *in, cudaMemcpyHostToDevice)))
        exit(1);
    DDP__LAUNCH((k_products<T, GROUP>), 1, 128, 2 * n * sizeof(T), dev->stream, out, out + n, in, in + n);
    if (!fine(dev, name)) exit(1);
    (void)DDP__CUDA(dev, cudaMemcpy(is, out, 2 * n * sizeof *is, cudaMemcpyDeviceToHost));
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            float score = 0, sum = 0;
            for (int k = 0; k < SIDE; k++) {
                score += a[i * SIDE + k] * b[j * SIDE + k];
                sum += a[i * SIDE + k] * b[k * SIDE + j];
            }
            wrong[0] += is[i * SIDE + j] != score;
            wrong[1] += is[SIDE * SIDE + i * SIDE + j] != sum;
        }
    row(name, !wrong[0] && !wrong[1], ", \"wrong_scores\": %ld, \"wrong_sums\": %ld", wrong[0], wrong[1]);
    (void)cudaFree(in);
    (void)cudaFree(out);
    free(is);
    free(narrow);
}

static void products(void)
{
    ddp__cuda *dev = device(DDP_CUDA_BF16);

    if (dev->map)
        product<ddp__bf16, 1>(dev, "wgmma bf16");
    else
        row("wgmma bf16", 1, ", \"skipped\": \"not compiled for sm_90a, or not such a GPU\"");
    product<ddp__bf16, 0>(dev, "mma bf16");
    product<float, 0>(dev, "mma tf32");
    ddp__cuda_close(dev);
}

/* ---- attention ---- */

static void attention_at(ddp__check *c, long tokens, long heads, long d)
{
    for (int i = 0; i < 2 && !c->late; i++) {
        ddp__finding f = DDP__ZEROS;
        char what[80];
        if (i && (!c->dev->map || d > 64)) continue;
        ddp__check_heads(c, &f, i, tokens, heads, d);
        snprintf(what, sizeof what, "attention %s, %ld tokens, %ld heads of %ld", i ? "wgmma" : "mma", tokens,
                 heads, d);
        if (f.error.code)
            row(what, 0, ", \"error\": \"%s\"", plain(f.error.msg));
        else
            row(what, f.what && f.worst <= DDP__CHECK_LIMIT, ", \"worst\": %.3g, \"array\": \"%s\"",
                f.worst == f.worst ? f.worst : 1e9, f.what ? f.what : "none");
    }
}

/* Lengths around one and two tiles of keys; widths with full and partial tiles; shared heads. */
static void attention(long most)
{
    static const long tokens[] = {1, 63, 64, 65, 127, 128, 129, 192, 1024}, d[] = {8, 40, 56, 64, 128};
    ddp__cuda *dev = device(DDP_CUDA_BF16);
    ddp__check c;

    if (!ddp__check_open(&c, dev, 5, (size_t)16 << 20, 1 << 20)) {
        row("attention", 0, ", \"error\": \"out of memory\"");
        exit(1);
    }
    for (int t = 0; t < 9; t++)
        for (int k = 0; k < 5 && !c.late; k++)
            if (tokens[t] <= most) attention_at(&c, tokens[t], t % 2 ? 2 : 4, d[k]);
    ddp__check_close(&c);
    if (!c.late) ddp__cuda_close(dev);
}

/* ---- waits of a stream for memory ---- */

/* A stream that is held by a flag, and a second stream on which another thread copies before it raises the
 * flag, as the stager does. */
typedef struct held {
    ddp__cuda *dev;
    cudaStream_t copies;
    unsigned *flag, *flag_there;
    char *here, *there; /* [1 MiB] of the host and of the device */
    int *count;         /* of the kernels that ran */
    double delay_s;     /* before the copy */
    pthread_t thread;
    int before; /* number of kernels that ran before the hold */
} held;

enum { COPY = 1 << 20 };

static __global__ void k_count(int *count) { ++*count; }
static __global__ void k_new(int *count) { *count += 1000; }

#define RUN_ON(h, kernel) run_on((h)->dev, kernel, (h)->count)
static void run_on(ddp__cuda *dev, void (*kernel)(int *), int *count) { DDP__RUN(kernel, 1, 1, count); }

static void listed(const ddp_op_call *c) { run_on((ddp__cuda *)c->pool, k_count, (int *)c->out); }

/* Runs k_count as a list of operators, which becomes a graph at its second occurrence. */
static void list_runs(held *h)
{
    ddp_op_call c;

    memset(&c, 0, sizeof c);
    c.pool = h->dev;
    c.out = h->count;
    ddp__cuda_add(listed, NULL, &c, NULL);
    ddp__cuda_run_due(h->dev);
}

static void *copy_then_raise(void *arg)
{
    held *h = (held *)arg;

    ddp__sleep_until(ddp_now() + h->delay_s);
    (void)cudaSetDevice(h->dev->device);
    (void)DDP__CUDA(h->dev, cudaMemcpyAsync(h->there, h->here, COPY, cudaMemcpyHostToDevice, h->copies));
    (void)DDP__CUDA(h->dev, cudaStreamSynchronize(h->copies));
    ddp__atomic_store(h->flag, 1u);
    return NULL;
}

/* Holds the stream of a new device. guarded: the library is notified. Returns 0 if the driver has no such
 * waits. */
static int hold(held *h, double delay_s, int guarded)
{
    typedef int (*waiter)(cudaStream_t stream, unsigned long long there, unsigned turn, unsigned how);
    const waiter waits = (waiter)ddp__cuda_driver("cuStreamWaitValue32");

    memset(h, 0, sizeof *h);
    h->dev = device(DDP_CUDA_F32);
    h->delay_s = delay_s;
    if (DDP__CUDA(h->dev, cudaStreamCreateWithFlags(&h->copies, cudaStreamNonBlocking)) ||
        DDP__CUDA(h->dev, cudaHostAlloc((void **)&h->flag, sizeof *h->flag, cudaHostAllocMapped)) ||
        DDP__CUDA(h->dev, cudaHostGetDevicePointer((void **)&h->flag_there, h->flag, 0)) ||
        DDP__CUDA(h->dev, cudaMallocHost((void **)&h->here, COPY)) ||
        DDP__CUDA(h->dev, cudaMalloc((void **)&h->there, COPY)) ||
        DDP__CUDA(h->dev, cudaMalloc((void **)&h->count, sizeof *h->count)) ||
        DDP__CUDA(h->dev, cudaMemset(h->count, 0, sizeof *h->count)))
        exit(1);
    *h->flag = 0;
    RUN_ON(h, k_count); /* loads it */
    h->before = 1;
    h->dev->lists = guarded ? (ddp__cuda_lists *)calloc(1, sizeof *h->dev->lists) : NULL;
    if (h->dev->lists) {
        list_runs(h);
        h->before++;
    }
    (void)DDP__CUDA(h->dev, cudaStreamSynchronize(h->dev->stream));
    if (!waits || waits(h->dev->stream, (uintptr_t)h->flag_there, 1, 0)) return 0;
    if (guarded) ddp__cuda_held(h->dev, h->flag, 1);
    if (pthread_create(&h->thread, NULL, copy_then_raise, h)) exit(1);
    return 1;
}

/* Waits for all work. The kernels must have added count since the hold. */
static void release(held *h, const char *name, double began, int count)
{
    int is = 0;

    pthread_join(h->thread, NULL);
    if (!fine(h->dev, name)) exit(1);
    (void)DDP__CUDA(h->dev, cudaMemcpy(&is, h->count, sizeof is, cudaMemcpyDeviceToHost));
    row(name, is == count + h->before, ", \"seconds\": %.3f, \"kernels\": %d", ddp_now() - began,
        is - h->before);
}

/* what: the name with its form. */
static void wait_of(const char *name, int guarded, const char *what)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    const double began = ddp_now();
    int expected = 1;
    held h;

    if (!hold(&h, 0.2, guarded)) {
        row(what, 1, ", \"skipped\": \"the driver has no waits of streams\"");
        return;
    }
    if (strcmp(name, "hold") == 0 || strcmp(name, "blocking") == 0) {
        RUN_ON(&h, k_count);
    } else if (strcmp(name, "launches") == 0) {
        expected = 4096;
        for (int i = 0; i < expected; i++) RUN_ON(&h, k_count);
    } else if (strcmp(name, "first-launch") == 0) {
        expected = 1000;
        RUN_ON(&h, k_new);
    } else if (guarded) {
        list_runs(&h);
        if (!h.dev->lists || !h.dev->lists->replay[0].graph) row(what, 0, ", \"error\": \"no graph\"");
    } else {
        ddp__cuda *dev = h.dev;
        if (DDP__CUDA(dev, cudaStreamBeginCapture(dev->stream, cudaStreamCaptureModeThreadLocal))) exit(1);
        RUN_ON(&h, k_count);
        if (DDP__CUDA(dev, cudaStreamEndCapture(dev->stream, &graph)) ||
            DDP__CUDA(dev, cudaGraphInstantiateWithFlags(&exec, graph, 0)) ||
            DDP__CUDA(dev, cudaGraphLaunch(exec, dev->stream)))
            exit(1);
    }
    release(&h, what, began, expected);
}

/* ---- cuBLASLt at GPT-2's shapes ---- */

/* Multiples of 1 / 128, which are exact in every number format. */
__host__ __device__ static inline float value_of(long i, unsigned seed)
{
    return (float)(((unsigned)i * 2654435761u + seed * 40503u) >> 16 & 255) / 128 - 1;
}

template <typename T> static __global__ void k_values(T *x, long n, unsigned seed)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = ddp__from_float<T>(value_of(i, seed));
}

template <typename T> static T *values(ddp__cuda *dev, long n, unsigned seed)
{
    T *x = NULL;

    if (DDP__CUDA(dev, cudaMalloc((void **)&x, (size_t)n * sizeof *x))) exit(1);
    DDP__EACH((k_values<T>), n, 256, x, n, seed);
    return x;
}

enum { REPEATS = 10 };

/* Milliseconds of what f queues. */
template <typename F> static double milliseconds(ddp__cuda *dev, F f)
{
    cudaEvent_t begin, end;
    float ms = 0;

    f();
    if (DDP__CUDA(dev, cudaEventCreate(&begin)) || DDP__CUDA(dev, cudaEventCreate(&end))) exit(1);
    (void)DDP__CUDA(dev, cudaEventRecord(begin, dev->stream));
    for (int i = 0; i < REPEATS; i++) f();
    (void)DDP__CUDA(dev, cudaEventRecord(end, dev->stream));
    (void)DDP__CUDA(dev, cudaEventSynchronize(end));
    (void)DDP__CUDA(dev, cudaEventElapsedTime(&ms, begin, end));
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    return (double)ms / REPEATS;
}

/* y (rows x n) = x (rows x k) w^T + bias, where the host computes some elements. */
template <typename T> static void forward_of(ddp__cuda *dev, const char *mode, long rows, long k, long n)
{
    T *x = values<T>(dev, rows * k, 1), *w = values<T>(dev, n * k, 2), *bias = values<T>(dev, n, 3),
      *y = values<T>(dev, rows * n, 4);
    float got = 0; /* or a bfloat16 */
    ddp__cuda_product p = ddp__cuda_product_of(rows, n, k, x, 0, w, 1, y, dev->half);
    double worst = 0, most = 1;
    char what[80];

    p.bias = bias;
    snprintf(what, sizeof what, "cuBLASLt %s %ld x %ld x %ld", mode, rows, n, k);
    const double ms = milliseconds(dev, [&] { (void)ddp__cuda_multiply(dev, &p); });
    if (!fine(dev, what)) exit(1);
    for (long e = 0; e < 64; e++) {
        const long i = e * 7919 % rows, j = e * 104729 % n;
        double sum = (double)value_of(j, 3);
        for (long q = 0; q < k; q++) sum += (double)value_of(i * k + q, 1) * (double)value_of(j * k + q, 2);
        (void)DDP__CUDA(dev, cudaMemcpy(&got, y + i * n + j, sizeof *y, cudaMemcpyDeviceToHost));
        const double apart = fabs(ddp__check_value(&got, 0, dev->half) - sum);
        if (!(apart <= worst)) worst = apart;
        if (fabs(sum) > most) most = fabs(sum);
    }
    row(what, worst / most <= DDP__CHECK_LIMIT, ", \"ms\": %.4f, \"tflops\": %.1f, \"worst\": %.3g", ms,
        2e-9 * (double)rows * (double)n * (double)k / ms, worst / most);
    for (T *at : {x, w, bias, y}) (void)cudaFree(at);
}

/* A linear layer and its gelu, in one product if dev->forms allows it. */
static void gelu_of(const ddp_op_call *linear, const ddp_op_call *gelu)
{
    ddp__cuda_product p = ddp__cuda_linear_product(linear);

    p.gelu = 1;
    p.before = linear->out;
    p.c = gelu->out;
    if (ddp__cuda_multiply((ddp__cuda *)linear->pool, &p)) return;
    ddp__cuda_linear_forward(linear);
    ddp__cuda_map_forward<ddp__map_gelu>(gelu);
}

/* The times of one product and its gelu, its gradient of gelu, or its bias gradient, fused and not fused. */
template <typename T> static void epilogues_of(ddp__cuda *dev, const char *mode, long rows, long k)
{
    static const unsigned bits[] = {DDP__PLAIN_GELU, DDP__PLAIN_GELU_GRAD, DDP__PLAIN_SUMS};
    static const char *const names[] = {"gelu", "gradient of gelu", "bias gradient"};
    const long n = 4 * k;
    ddp_op_spec linear = DDP__ZEROS;
    ddp_op_call first = DDP__ZEROS, second = DDP__ZEROS;
    ddp_error err;

    linear.inputs = 1;
    linear.in[0] = {2, {rows, k}};
    linear.arg[0] = (double)n;
    const ddp_op *op = ddp__cuda_op(dev, "linear");
    if (op->shape(&linear, &err) || ddp__cuda_want_scratch(dev, ddp__cuda_scratch(dev, op, &linear), &err)) {
        row(mode, 0, ", \"error\": \"%s\"", plain(err.msg));
        exit(1);
    }
    ddp_op_spec gelu = linear;
    gelu.in[0] = linear.out;
    first.spec = &linear;
    second.spec = &gelu;
    first.pool = second.pool = dev;
    first.in[0] = values<T>(dev, rows * k, 1);
    first.param[0] = values<T>(dev, n * k, 2);
    first.param[1] = values<T>(dev, n, 3);
    first.out = values<T>(dev, rows * n, 4);
    first.grad_out = values<T>(dev, rows * n, 5);
    second.in[0] = first.out;
    second.out = values<T>(dev, rows * n, 6);
    for (int i = 0; i < 3; i++) {
        double ms[2];
        char what[80];
        ddp_op_call c = first;

        if (i == 1) {
            c.inner = values<T>(dev, rows * k, 7);
            c.grad_in[0] = values<T>(dev, rows * k, 8);
        }
        if (i == 2) {
            c.grad_param[0] = values<float>(dev, n * k, 9);
            c.grad_param[1] = values<float>(dev, n, 10);
        }
        for (int plain_form = 0; plain_form < 2; plain_form++) {
            dev->forms = plain_form ? bits[i] : 0;
            ms[plain_form] = milliseconds(dev, [&] {
                if (i == 0)
                    gelu_of(&c, &second);
                else
                    ddp__cuda_linear_backward(&c);
            });
        }
        dev->forms = 0;
        snprintf(what, sizeof what, "%s in a product, %s", names[i], mode);
        if (!fine(dev, what)) exit(1);
        row(what, 1, ", \"fused_ms\": %.4f, \"apart_ms\": %.4f", ms[0], ms[1]);
    }
}

template <typename T> static void matmul_in(ddp_cuda_numbers numbers, const char *mode, long rows, long dim)
{
    const long vocabulary = dim == 768 ? 50304 : 4 * dim;
    ddp__cuda *dev = device(numbers);

    forward_of<T>(dev, mode, rows, dim, 3 * dim);
    forward_of<T>(dev, mode, rows, dim, 4 * dim);
    forward_of<T>(dev, mode, rows, 4 * dim, dim);
    forward_of<T>(dev, mode, rows, dim, vocabulary);
    epilogues_of<T>(dev, mode, rows, dim);
    ddp__cuda_close(dev);
}

int main(int argc, char **argv)
{
    static const char *const waits[] = {"hold",
                                        "launches",
                                        "launches protected",
                                        "first-launch",
                                        "first-launch protected",
                                        "graph",
                                        "graph protected",
                                        "blocking"};
    const char *what = argc > 1 ? argv[1] : "";
    const long number = argc > 2 ? atol(argv[2]) : 0;

    if (strcmp(what, "products") == 0) {
        products();
    } else if (strcmp(what, "attention") == 0) {
        attention(number ? number : 1024);
    } else if (strcmp(what, "waits") == 0) {
        for (const char *name : waits) printf("%s\n", name);
    } else if (strcmp(what, "wait") == 0 && argc > 2) {
        char words[60];
        snprintf(words, sizeof words, "%s%s%s", argv[2], argc > 3 ? " " : "", argc > 3 ? argv[3] : "");
        for (const char *name : waits)
            if (strcmp(words, name) == 0) {
                wait_of(argv[2], argc > 3, name);
                return failures > 0;
            }
        fprintf(stderr, "gpu_probe: no wait is named %s\n", words);
        return 2;
    } else if (strcmp(what, "matmul") == 0) {
        const long rows = number ? number : 4096, dim = argc > 3 ? atol(argv[3]) : 768;
        matmul_in<float>(DDP_CUDA_F32, "f32", rows, dim);
        matmul_in<float>(DDP_CUDA_TF32, "tf32", rows, dim);
        matmul_in<ddp__bf16>(DDP_CUDA_BF16, "bf16", rows, dim);
    } else {
        fprintf(stderr, "usage: gpu_probe products | attention [MOST] | waits | wait NAME [protected] | "
                        "matmul [ROWS [DIM]]\n");
        return 2;
    }
    return failures > 0;
}
