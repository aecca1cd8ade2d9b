/* What the operator files share: kernels and matrix products, tables, parallel loops, what shape rules check.
 * The same operators as plain loops in double, which the kernels are tested against, are
 * tests/ops/reference.h. */
#pragma once

#include "base/core.h"
#include "graph/graph.h"

/* ---- the inner loops that carry nearly all of the time, one set per instruction set; and the matrix
 * products made of them: of matrices, and behind a convolution ---- */

/* GCC fuses multiply and add neither under -std=c11 nor below -O2; Clang does by default. */
#if defined(__GNUC__) && !defined(__clang__)
#define DDP__CONTRACT        optimize("O2", "fp-contract=fast")
#define DDP__KERNEL(target_) __attribute__((target_, DDP__CONTRACT))
#define DDP__KERNEL_PLAIN    __attribute__((DDP__CONTRACT))
#else
#define DDP__KERNEL(target_) __attribute__((target_))
#define DDP__KERNEL_PLAIN
#endif

#define DDP__GEMM_MR 8 /* most rows and columns of a register tile over all sets */
#define DDP__GEMM_NR 32

/* The working memory of a block of a kernel, which would be too large for a stack. */
#define DDP__ROOM_FITS(type) DDP_STATIC_ASSERT(sizeof(type) <= DDP__ROOM_BYTES, "raise DDP__ROOM_BYTES")
/* As ddp_op_parallel; fn has its thread's room (ddp__pool_run_rooms). */
static inline void ddp__op_rooms(const ddp_op_call *call, long items, long grain, ddp__room_fn fn, void *user)
{
    ddp__pool_run_rooms((ddp__pool *)call->pool, items, grain, fn, user);
}

/* Of an array that gemm reads as b: a vector across two cache lines takes twice as long. */
#define DDP__ALIGNED __attribute__((aligned(64)))

/* One set. Rows are n contiguous floats, any n >= 1, any alignment; an output may be the same
 * array as an input of equal index range. add = 1 adds to the output, 0 overwrites it. */
typedef struct ddp__kernels {
    const char *name;
    int mr, nr; /* register tile of gemm; nr is two vectors */

    /* c (mr x nr, leading dimension c_row) = or += sum over p of a[p*mr + i] * b[p*nr + j]. The
     * right half of its columns lies at d: c + nr/2, or elsewhere. */
    void (*gemm)(long k, const float *a, const float *b, float *c, float *d, long c_row, int add);
    /* The same of operands where they lie: sums of a[i*a_row + p*a_col] * b[p*b_row + j], to which
     * bias[j] is added unless it is NULL or add is 1. Fastest where b is aligned to its vectors. */
    void (*gemm_at)(long k, const float *a, long a_row, long a_col, const float *b, long b_row, float *c,
                    long c_row, const float *bias, int add);
    /* max over x. */
    float (*max)(const float *x, long n);
    /* sum over x*y. */
    float (*dot)(const float *x, const float *y, long n);
    /* sum of e = factor * exp(scale * x - shift); y (may be NULL) = or += e. */
    float (*softmax)(float *y, const float *x, long n, float scale, float shift, float factor, int add);
    /* d = factor * p * (d - mean): through a softmax whose probabilities are p. */
    void (*softmax_grad)(float *d, const float *p, long n, float mean, float factor);
    /* GELU, tanh form, and dx = or += dy * gelu'(x). */
    void (*gelu)(float *y, const float *x, long n);
    void (*gelu_grad)(float *dx, const float *x, const float *dy, long n, int add);
    /* y = (x - mean) * rstd * scale + shift; stat receives mean and rstd = 1/sqrt(var + eps). shift NULL, rms
     * 1: mean and shift are 0, var is mean(x^2), and stat has rstd alone. */
    void (*norm)(float *y, const float *x, const float *scale, const float *shift, long n, float eps,
                 float *stat);
    void (*norm_grad)(float *dx, const float *x, const float *scale, const float *dy, long n,
                      const float *stat, int rms, int add);
    /* y = silu(a) * b; its gradients, each may be NULL. */
    void (*swiglu)(float *y, const float *a, const float *b, long n);
    void (*swiglu_grad)(float *da, float *db, const float *a, const float *b, const float *dy, long n,
                        int add_a, int add_b);
    /* Rotates the points (x[i], x[half + i]) by the angles of cosine[i] and sine[i]. */
    void (*rotate)(float *y, const float *x, const float *cosine, const float *sine, long half, int add);
    /* sum[0] = sum of y - y_mean, sum[1] = of (y - y_mean) (x - x_mean). */
    void (*moments)(const float *x, const float *y, long n, float x_mean, float y_mean, float *sum);
    /* z = or += a x + b y + c; y NULL: z = or += a x + c. */
    void (*affine)(float *z, const float *x, const float *y, long n, float a, float b, float c, int add);
    /* dst[p*width + j] = src[at[p] + j] for p < k, j < n: rows picked up from here and there. */
    void (*gather)(float *dst, long width, const float *src, const long *at, long k, long n);
    /* dst[(i / mr * k + p) * mr + i % mr] = src[p*step + i] for p < k, i < rows: panels of mr rows
     * for gemm of a matrix whose columns lie together. */
    void (*panels)(float *dst, const float *src, long step, long rows, long k);
    /* dst[p*width + i] = src[at[i] + p] for p < k, i < rows: rows turned into columns. */
    void (*turn)(float *dst, long width, const float *src, const long *at, long rows, long k);
    /* y = max(x, 0) and dx = or += dy where x > 0. */
    void (*relu)(float *y, const float *x, long n);
    void (*relu_grad)(float *dx, const float *x, const float *dy, long n, int add);
} ddp__kernels;

/* The fastest set that this processor runs. Cheap: a few loads, no state. */
DDP_LIB const ddp__kernels *ddp__kernels_best(void);
/* Set number i, slowest first, or NULL past the last one that this processor runs: tests try each. */
DDP_LIB const ddp__kernels *ddp__kernels_at(int i);
/* The set of a call: that of its context, else the fastest. */
static inline const ddp__kernels *ddp__kernels_of(const ddp_op_call *call)
{
    const ddp__kernels *kn = call->kernels ? ddp__kernels_at(call->kernels - 1) : NULL;

    return kn ? kn : ddp__kernels_best();
}

static inline long ddp__min_long(long a, long b) { return a < b ? a : b; }

/* How many parts of that size n needs. */
static inline long ddp__parts(long n, long part) { return (n + part - 1) / part; }

/* Asks for n floats that are read next: the processor follows a stream to the end of its page alone. */
static inline void ddp__ahead(const float *x, long n)
{
    for (long i = 0; i < n; i += 16) __builtin_prefetch(x + i);
}

/* ---- matrix product in float: packed, blocked, parallel over blocks of the result ---- */

/* c (m x n) = or += a (m x k) times b (k x n). Strides in floats: a(i, p) is
 * a[i*a_row + p*a_col], b(p, j) is b[p*b_row + j*b_col], so a transpose is two numbers exchanged;
 * one of the two is 1. c has contiguous rows. Every element is summed over p in one fixed order,
 * whatever the blocks, so results depend on neither threads nor position. m, n, k >= 0. */
typedef struct ddp__matmul {
    long m, n, k;
    const float *a;
    long a_row, a_col;
    const float *b;
    long b_row, b_col;
    float *c;
    long c_row;
    const float *bias; /* [n] added to every row, or NULL; only without add */
    int add;
} ddp__matmul;

/* On the operator threads of call; with DDP_USE_CBLAS blocks of the result go to cblas_sgemm, whose own
 * threads are switched off, else to ddp__matmul_kernels, our own, which need a pool with rooms. */
DDP_LIB void ddp__matmul_run(const ddp_op_call *call, const ddp__matmul *g);
DDP_LIB void ddp__matmul_kernels(const ddp_op_call *call, const ddp__matmul *g);
DDP_LIB long ddp__matmul_depth(long k); /* sums over k are cut into parts of that many */

/* c (m x n) = or += a (m x k) b (k x n), plus bias (n) unless that is NULL; turned: the matrix lies column by
 * column. */
DDP_LIB void ddp__linear_product(const ddp_op_call *call, long m, long n, long k, const void *a, int a_turned,
                                 const void *b, int b_turned, void *c, const void *bias, int add);
/* Shape rules of op with a weight of its own, of a width in its arguments; and with a borrowed one, whose
 * shape the graph has put into parameter 0. */
DDP_LIB ddp_status ddp__linear_start(ddp_op_spec *s, const char *op, int bias, ddp_error *err);
DDP_LIB ddp_status ddp__linear_borrow(ddp_op_spec *s, const char *op, ddp_error *err);

/* linear_cross_entropy: x (rows, k), W (n, k); and what forward saves: gradients, a chunk of logits, and of
 * each of its rows the greatest and the sum of exponentials. A chunk is a part of a product's sum over all
 * rows, so that no bit moves, or, of many rows, some of those. */
typedef struct ddp__head {
    long rows, n, k, chunk;
    float *dw, *dx, *logits, *stat;
} ddp__head;

DDP_LIB ddp__head ddp__head_of(const ddp_op_call *call);
DDP_LIB long ddp__head_chunk(long rows); /* the rows of a chunk */

/* ---- the two matrix products behind a convolution, in float. One operand is an image batch seen
 * through a sliding window; the matrix of all windows (im2col) never exists: what a block of the
 * product needs of it is packed straight from the images. ---- */

/* Images through a window of kh x kw taps that stops at rows x cols positions of each image. Tap
 * (a, b) at position (r, c) reads element (top + r step + a, left + c step + b) of a plane of
 * h x w, or 0 where there is none. Plane p of image i begins at x + i*image + p*h*w. */
typedef struct ddp__conv_view {
    const float *x;
    long images, image, planes, h, w, rows, cols, step, top, left, kh, kw;
} ddp__conv_view;

/* With W a matrix of m rows whose columns are (plane, a, b), for every group g:
 *   over images: y(i, position) = or += sum over columns of W(i, column) x(column, position)
 *   over weights: W(i, column) += sum over positions of y(i, position) x(column, position)
 * Element (i, p, a, b) of W is w[i*w_row + p*w_plane + a*w_kh + b*w_kw]; over weights the columns are
 * contiguous. Element (image, i, r, c) of y is y[image*y_image + i*y_plane + r*y_row + c*y_col]; over weights
 * a plane of y is contiguous. Group g begins at x + g*planes*h*w, w + g*w_group and y + g*m*y_plane. Every
 * sum runs in one fixed order whatever the blocks, so results depend on neither threads nor position. The
 * pool of a call needs rooms. */
typedef struct ddp__conv_product {
    ddp__conv_view view;
    long groups, m;
    float *w;
    long w_group, w_row, w_plane, w_kh, w_kw;
    float *y;
    long y_image, y_plane, y_row, y_col;
    int add; /* over images */
} ddp__conv_product;

/* Most taps of a side: then the part of an image behind any one position fits the slab. */
enum { DDP__CONV_KERNEL = 64 };

/* The product that forward is, without its arrays; and that of the gradient of x at rows r0, r0 + step, ...
 * and columns c0, c0 + step, ...: dy through a window, by the weights of those taps with their two channel
 * dimensions exchanged, of which element *w is the first, as element *y of the result is. 0: no output saw
 * these. */
DDP_LIB void ddp__conv_product_of(const ddp_op_spec *s, ddp__conv_product *g);
DDP_LIB int ddp__conv_input_phase(const ddp__conv_product *forward, long r0, long c0, ddp__conv_product *g,
                                  long *w, long *y);
/* A 1x1 window that skips nothing sees an image as one long row. */
DDP_LIB void ddp__conv_flat(ddp__conv_product *g);

DDP_LIB void ddp__conv_over_images(const ddp_op_call *call, const ddp__conv_product *g);
DDP_LIB void ddp__conv_over_weights(const ddp_op_call *call, const ddp__conv_product *g);

/* ---- the built-in operators ---- */

/* The built-in operator of that name, NULL if there is none. */
DDP_LIB const ddp_op *ddp__builtin_op(const char *name);

/* The table entries of each family, ended by one without a name. */
DDP_LIB const ddp_op *ddp__linear_ops(void);
DDP_LIB const ddp_op *ddp__embedding_ops(void);
DDP_LIB const ddp_op *ddp__norm_ops(void);
DDP_LIB const ddp_op *ddp__attention_ops(void);
DDP_LIB const ddp_op *ddp__elementwise_ops(void);
DDP_LIB const ddp_op *ddp__loss_ops(void);
DDP_LIB const ddp_op *ddp__conv_ops(void);
DDP_LIB const ddp_op *ddp__pool_ops(void);
/* Defines the function that returns the table of a family, whose entries follow. */
#define DDP__OPS(family, ...)                                                \
    const ddp_op *family(void)                                               \
    {                                                                        \
        static const ddp_op ops[] = {__VA_ARGS__, {NULL, NULL, NULL, NULL}}; \
        return ops;                                                          \
    }

/* ---- running on the operator threads ---- */

enum { DDP__OP_GRAIN = 8192, DDP__OP_COLUMNS = 64 }; /* elements, columns of a parallel block */

/* fn(call, first, last) over all elements of out, or over the rows of s. */
DDP_LIB void ddp__op_elements(const ddp_op_call *call, void (*fn)(void *user, long, long));
DDP_LIB void ddp__op_rows(const ddp_op_call *call, const ddp_shape *s, void (*fn)(void *user, long, long));

/* ---- what shape rules share ---- */

/* Checks that inputs first..last exist and hold floats and have at least one dimension. */
DDP_LIB ddp_status ddp__op_floats(const ddp_op_spec *s, const char *op, int first, int last, ddp_error *err);
/* The shape rule of an operator whose output has the shape of input 0 and takes flops for each element. */
DDP_LIB ddp_status ddp__op_same(ddp_op_spec *s, const char *op, double flops, ddp_error *err);
/* Reads argument i as a whole number of at least 1. */
DDP_LIB ddp_status ddp__op_count(const ddp_op_spec *s, const char *op, int i, const char *what, long *value,
                                 ddp_error *err);
/* Adds one parameter of up to two dimensions (second 0: one). */
DDP_LIB void ddp__op_param(ddp_op_spec *s, const char *name, long d0, long d1, ddp_init init, double scale);

/* What attention and rope read of x (b, t, (heads + 2 kv_heads) d): argument 0 is heads, 1 is kv_heads (0 =
 * heads). A head of keys and values serves `group` consecutive heads of queries. */
typedef struct ddp__heads {
    long b, t, heads, kv_heads, group;
    long row, width; /* columns of x; of the queries, as of attention's output */
    int d;           /* columns of a head */
    float scale;     /* of attention's scores: 1 / sqrt(d) */
} ddp__heads;

#define DDP__NORM_EPS        1e-5
#define DDP__BATCH_NORM_MOVE 0.1 /* the way of the running statistics to those of a batch */

enum { DDP__ROPE_PAIRS = 256 }; /* most pairs of a head that rope turns: their angles lie on the stack */

DDP_LIB ddp_status ddp__op_heads(const ddp_op_spec *s, const char *op, ddp__heads *z, ddp_error *err);
/* The same of a spec that has passed it. */
DDP_LIB ddp__heads ddp__heads_of(const ddp_op_spec *s);

/* Where in x the queries of (batch, head) number head begin, and the keys of number kv_head; and in out, the
 * former. */
static inline DDP__DEVICE long ddp__heads_q(const ddp__heads *z, long head)
{
    return head / z->heads * z->t * z->row + head % z->heads * z->d;
}

static inline DDP__DEVICE long ddp__heads_k(const ddp__heads *z, long kv_head)
{
    return kv_head / z->kv_heads * z->t * z->row + z->width + kv_head % z->kv_heads * z->d;
}

static inline DDP__DEVICE long ddp__heads_out(const ddp__heads *z, long head)
{
    return head / z->heads * z->t * z->width + head % z->heads * z->d;
}

/* Checks that input 0 is (batch, channels, height, width). */
DDP_LIB ddp_status ddp__image_input(const ddp_op_spec *s, const char *op, ddp_error *err);
/* Elements of such a shape, also of one that is refused later for being too large. */
DDP_LIB double ddp__image_count(const ddp_shape *s);

/* Sums of y - y_mean and of (y - y_mean) (x - x_mean) over a channel of images of shape s, where both begin:
 * a plane in float, planes in double, in order. */
DDP_LIB void ddp__channel_sums(const ddp_op_call *call, const ddp_shape *s, const float *x, const float *y,
                               float x_mean, float y_mean, double *sum);

/* A square window that slides over the image: sets out, with channels channels, from the
 * arguments first (kernel), first + 1 (stride) and first + 2 (padding on every side). */
DDP_LIB ddp_status ddp__image_window(ddp_op_spec *s, const char *op, int first, long channels,
                                     ddp_error *err);

/* Windows and planes of a pool whose arguments are kernel, stride and padding. */
typedef struct ddp__pool_size {
    long planes;
    int h, w, rows, cols; /* of the input; of the output */
    int kernel, stride, padding;
} ddp__pool_size;

DDP_LIB ddp__pool_size ddp__pool_sizes(const ddp_op_spec *s);

/* Where window number i begins and ends along a side of size, padding cut off. */
static inline DDP__DEVICE void ddp__pool_span(const ddp__pool_size *z, int i, int size, int *first, int *last)
{
    const int at = i * z->stride - z->padding;

    *first = at < 0 ? 0 : at;
    *last = at + z->kernel > size ? size : at + z->kernel;
}
