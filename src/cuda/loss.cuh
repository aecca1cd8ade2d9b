/* cross_entropy: one block per row reads the logits once in forward and once in backward, where the gradient
 * may overwrite them. Probabilities are never stored. linear_cross_entropy: one kernel does both, and the
 * second read comes from the cache. */
#pragma once

#include "cuda/rows.cuh"

enum {
    DDP__LOSS_THREADS = 256,
    DDP__HEAD_THREADS = 1024, /* more threads per row, so fewer rows at a time: the rows stay in the cache
                               * between the two reads */
    DDP__LOSS_SUM_THREADS = 1024,
    DDP__LOSS_PIECES = 4 /* loads in flight per thread */
};

/* Merges (max, sum of e^(x - max)) of two sets. Symmetric, so all lanes get bit-identical results. */
__device__ static __forceinline__ void ddp__loss_join(float *max, float *sum, float other_max,
                                                      float other_sum)
{
    const float top = fmaxf(*max, other_max);
    /* an empty set has max -inf, for which expf(*max - top) would be NAN */
    *sum = (*max == top ? *sum : *sum * expf(*max - top)) +
           (other_max == top ? other_sum : other_sum * expf(other_max - top));
    *max = top;
}

/* One block. dx = or += (softmax(x) - [j == mine]) by, from max and sum of the row. dx may be x. */
template <typename T, int THREADS>
__device__ static __forceinline__ void ddp__loss_row_grad(T *dx, const T *x, int mine, float max, float sum,
                                                          float by, long n, int add, int wide)
{
    const int width = ddp__vec<T>::width;
    float factor = by / sum, v[width];

    if (mine == -1)
        factor = 0;
    else if (mine < 0 || mine >= n)
        factor = NAN;
    if (mine == -1 && add) return;
    for (long j = (long)threadIdx.x * width; j < n; j += THREADS * width) {
        ddp__piece_load(v, x, j, n, wide);
        for (int i = 0; i < width; i++) {
            /* a row without a label may hold any values. Its gradient is 0. */
            v[i] = mine == -1 ? 0 : __expf(v[i] - max) * factor;
            if (j + i == mine) v[i] -= by;
        }
        ddp__piece_store(dx, v, j, n, wide, add);
    }
}

/* stat: receives max and sum of a row, or NULL. loss: receives the loss of a row: 0 if the label is -1, NAN
 * if it is out of range. by: the gradient of the row's loss, or NULL. If given, the gradient of the logits
 * overwrites the logits. */
template <typename T, int THREADS>
static __global__ void __launch_bounds__(THREADS)
    ddp__k_loss(float *stat, double *loss, T *logits, const int *label, const float *by, long n, int wide)
{
    const int width = ddp__vec<T>::width, pieces = DDP__LOSS_PIECES, mine = label[blockIdx.x];
    const long row = blockIdx.x;
    T *x = logits + row * n;
    __shared__ float shared[2][THREADS / 32];
    float v[pieces][width], max = -INFINITY, sum = 0;

    for (long j = (long)threadIdx.x * width; j < n; j += pieces * THREADS * width) {
        float top = max;
        DDP__UNROLL for (int p = 0; p < pieces; p++)
        {
            const long at = j + p * THREADS * width;
            ddp__piece_load(v[p], x, at, n, wide && at < n);
            DDP__UNROLL for (int i = 0; i < width; i++)
            {
                if (at + i >= n) v[p][i] = -INFINITY;
                top = fmaxf(top, v[p][i]);
            }
        }
        if (top != max) sum *= __expf(max - top);
        max = top;
        DDP__UNROLL for (int p = 0; p < pieces; p++)
            DDP__UNROLL for (int i = 0; i < width; i++) if (v[p][i] != -INFINITY) sum +=
            __expf(v[p][i] - max);
    }
    for (int step = 16; step > 0; step /= 2) {
        const float other_max = __shfl_xor_sync(DDP__ALL_LANES, max, step);
        const float other_sum = __shfl_xor_sync(DDP__ALL_LANES, sum, step);
        ddp__loss_join(&max, &sum, other_max, other_sum);
    }
    if (threadIdx.x % 32 == 0) {
        shared[0][threadIdx.x / 32] = max;
        shared[1][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x && !by) return;
    max = shared[0][0];
    sum = shared[1][0];
    for (int i = 1; i < THREADS / 32; i++) ddp__loss_join(&max, &sum, shared[0][i], shared[1][i]);
    if (threadIdx.x == 0) {
        if (stat) {
            stat[2 * row] = max;
            stat[2 * row + 1] = sum;
        }
        loss[row] = mine == -1              ? 0
                    : mine < 0 || mine >= n ? (double)NAN
                                            : log((double)sum) + (double)max - (double)ddp__to_float(x[mine]);
    }
    if (!by) return;
    __syncthreads();
    ddp__loss_row_grad<T, THREADS>(x, x, mine, max, sum, *by, n, 0, wide);
}

/* One block. With losses, out = their mean over the labels that are not -1. Without losses, out = *grad /
 * number of those labels. grad NULL means 1. */
static __global__ void __launch_bounds__(DDP__LOSS_SUM_THREADS)
    ddp__k_loss_mean(float *out, const double *loss, const int *label, const float *grad, long rows)
{
    __shared__ double sums[DDP__LOSS_SUM_THREADS];
    __shared__ long counts[DDP__LOSS_SUM_THREADS];
    const int t = (int)threadIdx.x;
    double sum = 0;
    long count = 0;

    for (long r = t; r < rows; r += DDP__LOSS_SUM_THREADS) {
        if (loss) sum += loss[r];
        count += label[r] != -1;
    }
    sums[t] = sum;
    counts[t] = count;
    for (int step = DDP__LOSS_SUM_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if (t < step) {
            sums[t] += sums[t + step];
            counts[t] += counts[t + step];
        }
    }
    if (t) return;
    count = counts[0] ? counts[0] : 1;
    *out = loss ? (float)(sums[0] / (double)count) : (grad ? *grad : 1.0f) / (float)count;
}

template <typename T>
static __global__ void __launch_bounds__(DDP__LOSS_THREADS)
    ddp__k_loss_grad(T *grad, const T *logits, const int *label, const float *stat, const float *g, long n,
                     int add, int wide)
{
    const long row = blockIdx.x;

    ddp__loss_row_grad<T, DDP__LOSS_THREADS>(grad + row * n, logits + row * n, label[row], stat[2 * row],
                                             stat[2 * row + 1], *g, n, add, wide);
}

template <typename T> static void ddp__cuda_loss_forward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    double *loss = (double *)dev->scratch;

    DDP__RUN((ddp__k_loss<T, DDP__LOSS_THREADS>), (unsigned)rows, DDP__LOSS_THREADS, (float *)c->saved, loss,
             (T *)c->in[0], (const int *)c->in[1], (const float *)NULL, n, ddp__wide<T>(n, c->in[0]));
    DDP__RUN(ddp__k_loss_mean, 1, DDP__LOSS_SUM_THREADS, (float *)c->out, loss, (const int *)c->in[1],
             (const float *)NULL, rows);
}

template <typename T> static void ddp__cuda_loss_backward(ddp__cuda *dev, const ddp_op_call *c)
{
    const ddp_shape *s = &c->spec->in[0];
    const long rows = ddp_shape_rows(s), n = s->dim[s->dims - 1];
    float *g = (float *)dev->scratch;

    if (!c->grad_in[0]) return;
    DDP__RUN(ddp__k_loss_mean, 1, DDP__LOSS_SUM_THREADS, g, (const double *)NULL, (const int *)c->in[1],
             (const float *)c->grad_out, rows);
    DDP__RUN((ddp__k_loss_grad<T>), (unsigned)rows, DDP__LOSS_THREADS, (T *)c->grad_in[0],
             (const T *)c->in[0], (const int *)c->in[1], (const float *)c->saved, g, n, c->add_in[0],
             ddp__wide<T>(n, c->grad_in[0], c->in[0]));
}

static size_t ddp__cuda_loss_scratch(const ddp_op_spec *s, int)
{
    return (size_t)ddp_shape_rows(&s->in[0]) * sizeof(double);
}
