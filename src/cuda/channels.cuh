/* Sums over each channel of images (batch, channels, n): what batch norm and the bias of a
 * convolution need. A channel is cut into parts that depend on the shape alone; each block sums
 * a part, and parts are joined in their order, in double. */
#ifndef DDP_CUDA_CHANNELS_CUH
#define DDP_CUDA_CHANNELS_CUH

#include "cuda/rows.cuh"

enum {
    DDP__CHANNEL_THREADS = 256,
    DDP__CHANNEL_PART = 4096,  /* elements at least */
    DDP__CHANNEL_BLOCKS = 1024 /* about so many in all */
};

typedef struct ddp__channels {
    long images, channels, n; /* n = elements of a plane */
    long parts, part;         /* of a channel; elements of a part, a multiple of 8 */
} ddp__channels;

/* What the statistics of a part are: elements, mean, sum of squared differences from it. */
typedef struct ddp__moments {
    double n, mean, squares;
} ddp__moments;

static ddp__channels ddp__channels_of(const ddp_shape *s)
{
    ddp__channels c;
    long count;

    c.images = s->dim[0];
    c.channels = s->dim[1];
    c.n = s->dim[2] * s->dim[3];
    count = c.images * c.n;
    c.parts = ddp__blocks(count, DDP__CHANNEL_PART);
    if (c.parts > DDP__CHANNEL_BLOCKS / c.channels + 1)
        c.parts = DDP__CHANNEL_BLOCKS / c.channels + 1;
    c.part = ddp__blocks(ddp__blocks(count, c.parts), 8) * 8;
    return c;
}

static dim3 ddp__channels_grid(const ddp__channels &c)
{
    return dim3((unsigned)c.channels, (unsigned)c.parts);
}

/* W elements at once: 1, or as many as 16 bytes hold. */
template <typename T, int W> struct ddp__several {
    T v[W];

    __device__ explicit ddp__several(const T *p)
    {
        if (W == 1) {
            v[0] = p[0];
        } else {
            const ddp__vec<T> r = ddp__vec_load(p);
            for (int e = 0; e < W; e++) v[e] = r.v[e];
        }
    }
    __device__ void store(T *p) const
    {
        ddp__vec<T> r;

        if (W == 1) {
            p[0] = v[0];
        } else {
            for (int e = 0; e < W; e++) r.v[e] = v[e];
            ddp__vec_store(p, r);
        }
    }
};

/* Walks a block's threads over its part of channel blockIdx.x, `wide` elements at a time: a plane
 * is a multiple of that. at = element of the array, left = elements of the part still to come. */
struct ddp__channel_walk {
    long at, left, i, n, skip, step, step_i, step_at;

    __device__ ddp__channel_walk(const ddp__channels &c, int wide)
    {
        const long begin = (long)blockIdx.y * c.part + (long)threadIdx.x * wide;
        const long count = c.images * c.n, end = ((long)blockIdx.y + 1) * c.part;
        const long image = begin / c.n;

        n = c.n;
        i = begin - image * n;
        at = (image * c.channels + blockIdx.x) * n + i;
        left = (end < count ? end : count) - begin;
        step = (long)DDP__CHANNEL_THREADS * wide;
        step_i = step % n;
        skip = (c.channels - 1) * n; /* from the end of a plane to the channel's next */
        step_at = step + step / n * skip;
    }
    __device__ void next()
    {
        left -= step;
        at += step_at;
        i += step_i;
        if (i < n) return;
        i -= n;
        at += skip;
    }
};

/* ---- moments ---- */

/* Chan, Golub and LeVeque (1979). */
static inline __device__ ddp__moments ddp__moments_join(const ddp__moments &a,
                                                        const ddp__moments &b)
{
    ddp__moments r;
    const double off = b.mean - a.mean;

    if (b.n == 0) return a;
    if (a.n == 0) return b;
    r.n = a.n + b.n;
    r.mean = a.mean + off * b.n / r.n;
    r.squares = a.squares + b.squares + off * off * a.n * b.n / r.n;
    return r;
}

/* Squares are of differences from the thread's first element, so a mean far from 0 costs no
 * digits. W: elements of a load. */
template <typename T, int W>
__global__ void ddp__k_channel_moments(ddp__moments *part, const T *x, ddp__channels c)
{
    __shared__ ddp__moments all[DDP__CHANNEL_THREADS];
    const int t = (int)threadIdx.x;
    ddp__channel_walk walk(c, W);
    ddp__moments m = {0, 0, 0};
    float first = 0, sum = 0, squares = 0;

    if (walk.left > 0) first = ddp__to_float(x[walk.at]);
    for (; walk.left > 0; walk.next()) {
        const ddp__several<T, W> v(x + walk.at);
        for (int e = 0; e < W; e++) {
            const float d = ddp__to_float(v.v[e]) - first;
            sum += d;
            squares += d * d;
        }
        m.n += W;
    }
    if (m.n > 0) {
        m.mean = (double)first + (double)sum / m.n;
        m.squares = (double)squares - (double)sum * (double)sum / m.n;
        if (m.squares < 0) m.squares = 0;
    }
    all[t] = m;
    __syncthreads();
    for (int half = DDP__CHANNEL_THREADS / 2; half; half /= 2) {
        if (t < half) all[t] = ddp__moments_join(all[t], all[t + half]);
        __syncthreads();
    }
    if (t == 0) part[blockIdx.x * c.parts + blockIdx.y] = all[0];
}

/* ---- sums of dy, and of dy (x - mean) ---- */

/* x NULL: the second is 0. stat: mean and another float per channel. */
template <typename T, int W>
__global__ void ddp__k_channel_sums(double *part, const T *dy, const T *x, const float *stat,
                                    ddp__channels c)
{
    __shared__ double all[2][DDP__CHANNEL_THREADS];
    const int t = (int)threadIdx.x;
    const float mean = x ? stat[2 * blockIdx.x] : 0;
    float sum = 0, product = 0;

    for (ddp__channel_walk walk(c, W); walk.left > 0; walk.next()) {
        const ddp__several<T, W> d(dy + walk.at);
        for (int e = 0; e < W; e++) sum += ddp__to_float(d.v[e]);
        if (!x) continue;
        const ddp__several<T, W> v(x + walk.at);
        for (int e = 0; e < W; e++)
            product += ddp__to_float(d.v[e]) * (ddp__to_float(v.v[e]) - mean);
    }
    all[0][t] = (double)sum;
    all[1][t] = (double)product;
    __syncthreads();
    for (int half = DDP__CHANNEL_THREADS / 2; half; half /= 2) {
        if (t < half)
            for (int k = 0; k < 2; k++) all[k][t] += all[k][t + half];
        __syncthreads();
    }
    if (t > 1) return;
    part[2 * (blockIdx.x * c.parts + blockIdx.y) + t] = all[t][0];
}

/* What a channel's parts sum to: of dy (k 0) or of dy (x - mean) (k 1). */
static inline __device__ double ddp__channel_total(const double *part, const ddp__channels &c,
                                                   long channel, int k)
{
    double sum = 0;

    for (long p = 0; p < c.parts; p++) sum += part[2 * (channel * c.parts + p) + k];
    return sum;
}

/* grad[c] += the sum of channel c. */
static DDP__UNUSED __global__ void ddp__k_channel_add(float *grad, const double *part,
                                                      ddp__channels c)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < c.channels) grad[i] += (float)ddp__channel_total(part, c, i, 0);
}

#endif /* DDP_CUDA_CHANNELS_CUH */
