/* rope: the angles of a position are computed once, in double as on the CPU, for the sequences and
 * heads that a block turns. */
#ifndef DDP_CUDA_ROPE_CUH
#define DDP_CUDA_ROPE_CUH

#include "cuda/rows.cuh"
#include "ops/ops.h"

enum { DDP__CUDA_ROPE_PAIRS = 256, DDP__ROPE_THREADS = 256, DDP__ROPE_BATCH = 8 };

/* Block (position, group of sequences). to = or += the rotation of from by direction times the
 * angles; columns from turned on are copied. to may be from. */
template <typename T>
static __global__ void __launch_bounds__(DDP__ROPE_THREADS)
ddp__k_rope(T *to, const T *from, long batch, long time, long row, long turned, int d, double theta,
            int direction, int add, int wide)
{
    const int step = wide ? ddp__vec<T>::width : 1;
    const long t = blockIdx.x, first = (long)blockIdx.y * DDP__ROPE_BATCH;
    const long last = first + DDP__ROPE_BATCH < batch ? first + DDP__ROPE_BATCH : batch;
    const int half = d / 2;
    __shared__ float cosine[DDP__CUDA_ROPE_PAIRS], sine[DDP__CUDA_ROPE_PAIRS];
    float u[ddp__vec<T>::width], v[ddp__vec<T>::width];
    long b, p;
    int i;

    for (i = (int)threadIdx.x; i < half; i += DDP__ROPE_THREADS) {
        const double angle = direction * (double)t * pow(theta, -2.0 * (double)i / (double)d);
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
    __syncthreads();
    for (b = first; b < last; b++) {
        const T *x = from + (b * time + t) * row;
        T *y = to + (b * time + t) * row;
        for (p = (long)threadIdx.x * step; p < turned / 2; p += DDP__ROPE_THREADS * step) {
            const int k = (int)(p % half);
            const long at = p / half * d + k;
            ddp__piece_load(u, x, at, at + step, wide);
            ddp__piece_load(v, x, at + half, at + half + step, wide);
            for (i = 0; i < step; i++) {
                const float c = cosine[k + i], s = sine[k + i], old = u[i];
                u[i] = old * c - v[i] * s;
                v[i] = v[i] * c + old * s;
            }
            ddp__piece_store(y, u, at, at + step, wide, add);
            ddp__piece_store(y, v, at + half, at + half + step, wide, add);
        }
        for (p = turned + (long)threadIdx.x * step; p < row && (add || y != x);
             p += DDP__ROPE_THREADS * step) {
            ddp__piece_load(u, x, p, p + step, wide);
            ddp__piece_store(y, u, p, p + step, wide, add);
        }
    }
}

template <typename T>
static void ddp__cuda_rope_turn(ddp__cuda *dev, const ddp_op_spec *s, void *to, const void *from,
                                int direction, int add)
{
    const ddp__head_layout l = ddp__head_layout_of(s);
    dim3 blocks(1, 1, 1);

    blocks.x = (unsigned)s->in[0].dim[1];
    blocks.y = (unsigned)ddp__blocks(s->in[0].dim[0], DDP__ROPE_BATCH);
    DDP__LAUNCH((ddp__k_rope<T>), blocks, DDP__ROPE_THREADS, 0, dev->stream, (T *)to,
                (const T *)from, s->in[0].dim[0], s->in[0].dim[1], l.row,
                (l.heads + l.kv_heads) * l.d, (int)l.d, s->arg[2] > 0 ? s->arg[2] : 10000.0,
                direction, add, ddp__wide<T>(l.d / 2, to, from));
}

template <typename T>
static void ddp__cuda_rope_forward_as(ddp__cuda *dev, const ddp_op_call *c)
{
    ddp__cuda_rope_turn<T>(dev, c->spec, c->out, c->in[0], 1, 0);
}

template <typename T>
static void ddp__cuda_rope_backward_as(ddp__cuda *dev, const ddp_op_call *c)
{
    if (c->grad_in[0])
        ddp__cuda_rope_turn<T>(dev, c->spec, c->grad_in[0], c->grad_out, -1, c->add_in[0]);
}

DDP__CUDA_BOTH(ddp__cuda_rope_forward)
DDP__CUDA_BOTH(ddp__cuda_rope_backward)

#endif /* DDP_CUDA_ROPE_CUH */
