/* Bring your own loop on a GPU: a network with its own kernels, arrays and stream. You choose the number of
 * workers. Only the lines marked "dreamddp" were added.
 *
 *   nvcc -O3 -arch=sm_90a -I. examples/own_loop_cuda.cu -o own_loop_cuda -lcublas -lcublasLt -lnccl
 *   for r in 0 1; do DREAMDDP_WORLD_SIZE=2 DREAMDDP_RANK=$r ./own_loop_cuda & done; wait
 *
 * Prints the loss every 50 steps, and at the end a hash of the parameters, which is equal on all workers. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp_cuda.cuh"

enum { HIDDEN = 64, LAYERS = 3, BATCH = 64, STEPS = 400 };
static const int width[LAYERS + 1] = {2, HIDDEN, HIDDEN, 1};

/* Each worker has its own data: a hash of worker, step and index. */
__global__ void batch(float *x, int seed)
{
    unsigned h = (unsigned)(seed * 131 + (int)threadIdx.x) * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    x[threadIdx.x] = (float)(h >> 8) * (2.0f / 16777216) - 1;
}

/* One block per sample, one thread per output. The biases are stored after the weights. */
__global__ void forward(const float *w, const float *x, float *y, int in, int out, int last)
{
    const int b = (int)blockIdx.x, o = (int)threadIdx.x;
    float s = w[in * out + o];
    for (int i = 0; i < in; i++) s += w[o * in + i] * x[b * in + i];
    y[b * out + o] = last ? s : tanhf(s);
}

/* Mean squared error against sin(3x) cos(2y), and its gradient. */
__global__ void error(const float *x, const float *y, float *dy, float *loss)
{
    *loss = 0;
    for (int b = 0; b < BATCH; b++) {
        const float d = y[b] - sinf(3 * x[2 * b]) * cosf(2 * x[2 * b + 1]);
        dy[b] = 2 * d / BATCH;
        *loss += d * d / BATCH;
    }
}

/* One block per output, one thread per weight of the output, and one thread for the bias. */
__global__ void gradient(const float *x, const float *dy, float *g, int in, int out)
{
    const int o = (int)blockIdx.x, i = (int)threadIdx.x;
    float s = 0;
    for (int b = 0; b < BATCH; b++) s += dy[b * out + o] * (i < in ? x[b * in + i] : 1);
    g[i < in ? o * in + i : in * out + o] += s;
}

/* One block per sample, one thread per input x = tanh(u). Computes the gradient of u. */
__global__ void backward(const float *w, const float *x, const float *dy, float *du, int in, int out)
{
    const int b = (int)blockIdx.x, i = (int)threadIdx.x, at = b * in + i;
    float s = 0;
    for (int o = 0; o < out; o++) s += dy[b * out + o] * w[o * in + i];
    du[at] = s * (1 - x[at] * x[at]);
}

static float *array(int n, cudaStream_t s)
{
    const size_t bytes = (size_t)n * sizeof(float);
    float *p = NULL;
    if (!cudaMalloc((void **)&p, bytes)) cudaMemsetAsync(p, 0, bytes, s);
    return p;
}

static int train(ddp_ctx *d, cudaStream_t s)
{
    ddp_optimizer adam = ddp_adam(0.01f, 0.9f, 0.999f, 1e-8f, 0);
    ddp_rng r = ddp_rng_seed(1, 0);
    float *a[LAYERS + 1], *e[LAYERS + 1], *loss = array(1, s), host[HIDDEN * (HIDDEN + 1)];
    ddp_layer layer[LAYERS] = {};
    uint64_t hash = 0;
    for (int l = 0; l <= LAYERS; l++) {
        a[l] = array(BATCH * width[l], s);
        e[l] = array(BATCH * width[l], s);
    }
    for (int l = 0; l < LAYERS; l++) {
        const int n = (width[l] + 1) * width[l + 1];
        for (int i = 0; i < n; i++) host[i] = (float)(ddp_rng_normal(&r) / sqrt(width[l]));
        layer[l].params = array(n, s);
        layer[l].grads = array(n, s);
        layer[l].count = (size_t)n;
        cudaMemcpyAsync(layer[l].params, host, (size_t)n * sizeof *host, cudaMemcpyHostToDevice, s);
        ddp_add_layer(d, &layer[l]); /* dreamddp */
    }
    ddp_set_optimizer(d, &adam); /* receives the parameters of rank 0 */ /* dreamddp */
    for (int step = 0; step < STEPS; step++) {
        batch<<<1, 2 * BATCH, 0, s>>>(a[0], step * 64 + ddp_rank(d));
        for (int l = 0; l < LAYERS; l++)
            forward<<<BATCH, width[l + 1], 0, s>>>(layer[l].params, a[l], a[l + 1], width[l], width[l + 1],
                                                   l + 1 == LAYERS);
        error<<<1, 1, 0, s>>>(a[0], a[LAYERS], e[LAYERS], loss);
        for (int l = LAYERS - 1; l >= 0; l--) {
            const int in = width[l], out = width[l + 1];
            gradient<<<out, in + 1, 0, s>>>(a[l], e[l + 1], layer[l].grads, in, out);
            if (l > 0) backward<<<BATCH, in, 0, s>>>(layer[l].params, a[l], e[l + 1], e[l], in, out);
            ddp_backward_end(d, l); /* queues the update and averaging of layer l */ /* dreamddp */
        }
        if (ddp_step_end(d)) break; /* later work on the stream waits for them */ /* dreamddp */
        if (step % 50 != 49 || ddp_rank(d)) continue;
        cudaMemcpyAsync(host, loss, sizeof *host, cudaMemcpyDeviceToHost, s);
        cudaStreamSynchronize(s);
        printf("step %3d  loss %.4f\n", step + 1, (double)host[0]);
    }
    int bad = ddp_sync_all(d); /* afterwards all workers have equal parameters */ /* dreamddp */
    for (int l = 0; l < LAYERS; l++) {
        cudaMemcpy(host, layer[l].params, layer[l].count * sizeof *host, cudaMemcpyDeviceToHost);
        hash = ddp_hash_floats(hash, host, layer[l].count);
    }
    if (!bad) printf("rank %d  parameters %016" PRIx64 "\n", ddp_rank(d), hash);
    return bad;
}

int main(void)
{
    const ddp_backend gpu = ddp_cuda(DDP_CUDA_F32, 0); /* dreamddp */
    cudaStream_t s = NULL;
    ddp_config cfg = {};
    ddp_error err;
    const cudaError_t e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    if (e) return fprintf(stderr, "own_loop_cuda: cannot use a GPU: %s\n", cudaGetErrorString(e)), 1;
    cfg.backend = &gpu;
    cfg.device.cuda_stream = s;
    cfg.period = 4;                    /* dreamddp */
    ddp_ctx *d = ddp_open(&cfg, &err); /* dreamddp */
    int bad = d ? train(d, s) : (int)err.code;
    if (bad) fprintf(stderr, "own_loop_cuda: %s\n", d ? ddp_last_error(d)->msg : err.msg);
    ddp_close(d); /* dreamddp */
    return ddp_status_exit_code((ddp_status)bad);
}
