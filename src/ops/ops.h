/* Declarations shared by the operator files: kernels and matrix products, operator tables, parallel
 * loops, checks for shape rules. tests/ops/reference.h implements the same operators as plain loops in
 * double, and the tests compare the kernels with it. */
#pragma once

#include "base/core.h"
#include "graph/graph.h"

/* ---- inner loops, one set per instruction set, which take nearly all of the time, and the matrix products
 * built from them ---- */

/* Enables fused multiply-add. GCC does not fuse under -std=c11 or below -O2. Clang fuses by default. */
#if defined(__GNUC__) && !defined(__clang__)
#define DDP__CONTRACT        optimize("O2", "fp-contract=fast")
#define DDP__KERNEL(target_) __attribute__((target_, DDP__CONTRACT))
#define DDP__KERNEL_PLAIN    __attribute__((DDP__CONTRACT))
#else
#define DDP__KERNEL(target_) __attribute__((target_))
#define DDP__KERNEL_PLAIN
#endif

#define DDP__GEMM_MR 8 /* largest rows and columns of a register tile over all sets */
#define DDP__GEMM_NR 32

/* Checks that the working memory of a kernel block, which is too large for a stack, fits the thread's
 * room. */
#define DDP__ROOM_FITS(type) DDP_STATIC_ASSERT(sizeof(type) <= DDP__ROOM_BYTES, "raise DDP__ROOM_BYTES")
/* ddp_op_parallel, but fn also receives its thread's working memory (ddp__pool_run_rooms). */
static inline void ddp__op_rooms(const ddp_op_call *call, long items, long grain, ddp__room_fn fn, void *user)
{
    ddp__pool_run_rooms((ddp__pool *)call->pool, items, grain, fn, user);
}

/* Alignment of an array that gemm reads as b: a vector that crosses a cache line takes twice as long. */
#define DDP__ALIGNED __attribute__((aligned(64)))

/* A set of kernels for one instruction set. Rows are n contiguous floats, any n >= 1, any alignment. An
 * output may be the same array as an input with the same index range. add 1 adds to the output, 0
 * overwrites it. */
typedef struct ddp__kernels {
    const char *name;
    int mr, nr; /* register tile of gemm, where nr is two vectors */

    /* c (mr x nr, leading dimension c_row) = or += sum over p of a[p*mr + i] * b[p*nr + j]. The right
     * half of the columns is at d: c + nr/2, or elsewhere. */
    void (*gemm)(long k, const float *a, const float *b, float *c, float *d, long c_row, int add);
    /* gemm for unpacked operands: sums of a[i*a_row + p*a_col] * b[p*b_row + j]. Adds bias[j], unless
     * bias is NULL or add is 1. Fastest if b is aligned to its vectors. */
    void (*gemm_at)(long k, const float *a, long a_row, long a_col, const float *b, long b_row, float *c,
                    long c_row, const float *bias, int add);
    /* max over x. */
    float (*max)(const float *x, long n);
    /* sum over x*y. */
    float (*dot)(const float *x, const float *y, long n);
    /* Returns the sum of e = factor * exp(scale * x - shift). y, unless NULL, = or += e. */
    float (*softmax)(float *y, const float *x, long n, float scale, float shift, float factor, int add);
    /* d = factor * p * (d - mean): gradient of a softmax with probabilities p. */
    void (*softmax_grad)(float *d, const float *p, long n, float mean, float factor);
    /* gelu is the tanh form. gelu_grad computes dx = or += dy * gelu'(x). */
    void (*gelu)(float *y, const float *x, long n);
    void (*gelu_grad)(float *dx, const float *x, const float *dy, long n, int add);
    /* y = (x - mean) * rstd * scale + shift. stat receives mean and rstd = 1/sqrt(var + eps). RMS norm (shift
     * is NULL, or rms is 1 in norm_grad): mean and shift are 0, var is mean(x^2), and stat has only rstd. */
    void (*norm)(float *y, const float *x, const float *scale, const float *shift, long n, float eps,
                 float *stat);
    void (*norm_grad)(float *dx, const float *x, const float *scale, const float *dy, long n,
                      const float *stat, int rms, int add);
    /* y = silu(a) * b and its gradients, either of which may be NULL. */
    void (*swiglu)(float *y, const float *a, const float *b, long n);
    void (*swiglu_grad)(float *da, float *db, const float *a, const float *b, const float *dy, long n,
                        int add_a, int add_b);
    /* Rotates the points (x[i], x[half + i]) by the angles with cosine[i] and sine[i]. */
    void (*rotate)(float *y, const float *x, const float *cosine, const float *sine, long half, int add);
    /* sum[0] = sum of y - y_mean, sum[1] = sum of (y - y_mean) (x - x_mean). */
    void (*moments)(const float *x, const float *y, long n, float x_mean, float y_mean, float *sum);
    /* z = or += a x + b y + c, or z = or += a x + c if y is NULL. */
    void (*affine)(float *z, const float *x, const float *y, long n, float a, float b, float c, int add);
    /* dst[p*width + j] = src[at[p] + j] for p < k, j < n: gathers scattered rows. */
    void (*gather)(float *dst, long width, const float *src, const long *at, long k, long n);
    /* dst[(i / mr * k + p) * mr + i % mr] = src[p*step + i] for p < k, i < rows: packs a matrix with
     * contiguous columns into panels of mr rows for gemm. */
    void (*panels)(float *dst, const float *src, long step, long rows, long k);
    /* dst[p*width + i] = src[at[i] + p] for p < k, i < rows: transposes gathered rows. */
    void (*turn)(float *dst, long width, const float *src, const long *at, long rows, long k);
    /* y = max(x, 0) and dx = or += dy where x > 0. */
    void (*relu)(float *y, const float *x, long n);
    void (*relu_grad)(float *dx, const float *x, const float *dy, long n, int add);
    /* Transforms of Winograd's convolution (conv_winograd.c), of n independent channels at a time. n is
     * rounded up to whole vectors, so lines need room for nr more floats. A tile is a list of lines, or a
     * line every `step` floats:
     *   input        v (4 x 4 lines) of x (4 x 4)
     *   output       y (2 x 2) of m (4 x 4)
     *   weight       u (4 x 4) of w (3 x 3)
     *   output_grad  q (4 x 4) of y (2 x 2): the transpose of output
     *   weight_grad  w (3 x 3) of s (4 x 4): the transpose of weight */
    void (*winograd_input)(float *v, long v_step, const float *const *x, long n);
    void (*winograd_output)(float *const *y, const float *m, long m_step, long n);
    void (*winograd_weight)(float *u, long u_step, const float *w, long w_step, long n);
    void (*winograd_output_grad)(float *q, long q_step, const float *const *y, long n);
    void (*winograd_weight_grad)(float *w, long w_step, const float *s, long s_step, long n);
} ddp__kernels;

/* The fastest set that this processor supports. Cheap: a few loads, no state. */
DDP_LIB const ddp__kernels *ddp__kernels_best(void);
/* Set number i, slowest first, or NULL after the last one that this processor supports. Tests try each. */
DDP_LIB const ddp__kernels *ddp__kernels_at(int i);
/* The set of a call: the set that its context selects, else the fastest. */
static inline const ddp__kernels *ddp__kernels_of(const ddp_op_call *call)
{
    const ddp__kernels *kn = call->kernels ? ddp__kernels_at(call->kernels - 1) : NULL;

    return kn ? kn : ddp__kernels_best();
}

static inline long ddp__min_long(long a, long b) { return a < b ? a : b; }

/* Number of parts of that size that cover n. */
static inline long ddp__parts(long n, long part) { return (n + part - 1) / part; }

/* Prefetches n floats that are read next. The hardware prefetcher stops at the end of a page. */
static inline void ddp__ahead(const float *x, long n)
{
    for (long i = 0; i < n; i += 16) __builtin_prefetch(x + i);
}

/* ---- matrix product in float: packed, blocked, parallel over blocks of the result ---- */

/* c (m x n) = or += a (m x k) times b (k x n). Strides are in floats: a(i, p) is a[i*a_row + p*a_col],
 * b(p, j) is b[p*b_row + j*b_col]. One stride of each matrix is 1. To transpose a matrix, exchange its two
 * strides. c has contiguous rows. Every element is summed over p in a fixed order that does not depend on the
 * blocks, so results do not depend on threads or position. m, n, k >= 0. */
typedef struct ddp__matmul {
    long m, n, k;
    const float *a;
    long a_row, a_col;
    const float *b;
    long b_row, b_col;
    float *c;
    long c_row;
    const float *bias; /* [n] added to every row, only without add, or NULL */
    int add;
} ddp__matmul;

/* ddp__matmul_run computes the product on the operator threads of call. With DDP_USE_CBLAS, blocks of the
 * result go to cblas_sgemm, whose own threads are switched off. Otherwise, it calls ddp__matmul_kernels,
 * which needs a pool with working memory. */
DDP_LIB void ddp__matmul_run(const ddp_op_call *call, const ddp__matmul *g);
DDP_LIB void ddp__matmul_kernels(const ddp_op_call *call, const ddp__matmul *g);
DDP_LIB long ddp__matmul_depth(long k); /* sums over k are split into parts of this length */

/* c (m x n) = or += a (m x k) b (k x n), plus bias (n) unless it is NULL. a_turned, b_turned: the matrix
 * is stored column by column. */
DDP_LIB void ddp__linear_product(const ddp_op_call *call, long m, long n, long k, const void *a, int a_turned,
                                 const void *b, int b_turned, void *c, const void *bias, int add);
/* Shape rules for an operator with its own weight, whose width is an argument, and for an operator with a
 * tied weight, whose shape the graph has stored as parameter 0. */
DDP_LIB ddp_status ddp__linear_start(ddp_op_spec *s, const char *op, int bias, ddp_error *err);
DDP_LIB ddp_status ddp__linear_borrow(ddp_op_spec *s, const char *op, ddp_error *err);

/* Data of linear_cross_entropy: x (rows, k), W (n, k), and the arrays that forward saves. These are
 * gradients, a chunk of logits, and for each row of a chunk the maximum and the sum of exponentials. The
 * product for dW sums over all rows in parts (ddp__matmul_depth). A chunk is one such part, or several if
 * there are many rows, so the results are bit-identical to an unchunked product. */
typedef struct ddp__head {
    long rows, n, k, chunk;
    float *dw, *dx, *logits, *stat;
} ddp__head;

DDP_LIB ddp__head ddp__head_of(const ddp_op_call *call);
DDP_LIB long ddp__head_chunk(long rows); /* number of rows of a chunk */

/* ---- the two matrix products of a convolution, in float. One operand is a batch of images seen through
 * a sliding window. The matrix of all windows (im2col) is never stored: the part that a block of the
 * product needs is packed directly from the images. ---- */

/* Images seen through a window of kh x kw taps at rows x cols positions of each image. Tap (a, b) at
 * position (r, c) reads element (top + r step + a, left + c step + b) of a plane of h x w, or 0 outside
 * the plane. Plane p of image i begins at x + i*image + p*h*w. */
typedef struct ddp__conv_view {
    const float *x;
    long images, image, planes, h, w, rows, cols, step, top, left, kh, kw;
} ddp__conv_view;

/* W is a matrix of m rows with columns (plane, a, b). For every group g:
 *   over images: y(i, position) = or += sum over columns of W(i, column) x(column, position)
 *   over weights: W(i, column) += sum over positions of y(i, position) x(column, position)
 * Element (i, p, a, b) of W is w[i*w_row + p*w_plane + a*w_kh + b*w_kw]. Over weights, the columns are
 * contiguous. Element (image, i, r, c) of y is y[image*y_image + i*y_plane + r*y_row + c*y_col]. Over
 * weights, a plane of y is contiguous. Group g begins at x + g*planes*h*w, w + g*w_group and y + g*m*y_plane.
 * Every sum has a fixed order that does not depend on the blocks, so results do not depend on threads or
 * position. The pool of the call needs working memory. */
typedef struct ddp__conv_product {
    ddp__conv_view view;
    long groups, m;
    float *w;
    long w_group, w_row, w_plane, w_kh, w_kw;
    float *y;
    long y_image, y_plane, y_row, y_col;
    int add; /* for the product over images */
} ddp__conv_product;

/* Maximum number of taps per side. The image region of any one position then fits the slab. */
enum { DDP__CONV_KERNEL = 64 };

/* ddp__conv_product_of sets up the product of forward, without its arrays. ddp__conv_input_phase sets up
 * the product for the gradient of x at rows r0, r0 + step, ... and columns c0, c0 + step, ...: a window
 * over dy, times the weights of the taps that meet these elements, with the two channel dimensions
 * exchanged. The first weight is element *w, the first result element *y. Returns 0 if no output used
 * these elements. */
DDP_LIB void ddp__conv_product_of(const ddp_op_spec *s, ddp__conv_product *g);
DDP_LIB int ddp__conv_input_phase(const ddp__conv_product *forward, long r0, long c0, ddp__conv_product *g,
                                  long *w, long *y);
/* Treats an image as one long row if a 1x1 window visits every element. */
DDP_LIB void ddp__conv_flat(ddp__conv_product *g);

DDP_LIB void ddp__conv_over_images(const ddp_op_call *call, const ddp__conv_product *g);
DDP_LIB void ddp__conv_over_weights(const ddp_op_call *call, const ddp__conv_product *g);

/* The same products by Winograd's algorithm, with less than half of the multiplications. fits returns 1 if
 * the window has 3 x 3 taps and step 1, and there are enough planes and positions. */
DDP_LIB int ddp__winograd_fits(const ddp__conv_product *g);
DDP_LIB void ddp__winograd_over_images(const ddp_op_call *call, const ddp__conv_product *g);
DDP_LIB void ddp__winograd_over_weights(const ddp_op_call *call, const ddp__conv_product *g);

/* ---- the built-in operators ---- */

/* Finds a built-in operator by name. Returns NULL if there is none. */
DDP_LIB const ddp_op *ddp__builtin_op(const char *name);

/* The operator table of each family. An entry without a name ends it. */
DDP_LIB const ddp_op *ddp__linear_ops(void);
DDP_LIB const ddp_op *ddp__embedding_ops(void);
DDP_LIB const ddp_op *ddp__norm_ops(void);
DDP_LIB const ddp_op *ddp__attention_ops(void);
DDP_LIB const ddp_op *ddp__elementwise_ops(void);
DDP_LIB const ddp_op *ddp__loss_ops(void);
DDP_LIB const ddp_op *ddp__conv_ops(void);
DDP_LIB const ddp_op *ddp__pool_ops(void);
/* Defines the function that returns the operator table of a family. */
#define DDP__OPS(family, ...)                                                \
    const ddp_op *family(void)                                               \
    {                                                                        \
        static const ddp_op ops[] = {__VA_ARGS__, {NULL, NULL, NULL, NULL}}; \
        return ops;                                                          \
    }

/* ---- parallel loops on the operator threads ---- */

enum { DDP__OP_GRAIN = 8192, DDP__OP_COLUMNS = 64 }; /* elements, or columns, of a parallel block */

/* Run fn(call, first, last) over all elements of out, or over the rows of s. */
DDP_LIB void ddp__op_elements(const ddp_op_call *call, void (*fn)(void *user, long, long));
DDP_LIB void ddp__op_rows(const ddp_op_call *call, const ddp_shape *s, void (*fn)(void *user, long, long));

/* ---- helpers for shape rules ---- */

/* Checks that inputs first..last exist, are float and have at least one dimension. */
DDP_LIB ddp_status ddp__op_floats(const ddp_op_spec *s, const char *op, int first, int last, ddp_error *err);
/* Shape rule of an operator whose output has the shape of input 0. flops: per element. */
DDP_LIB ddp_status ddp__op_same(ddp_op_spec *s, const char *op, double flops, ddp_error *err);
/* Reads argument i, which must be a whole number >= 1. */
DDP_LIB ddp_status ddp__op_count(const ddp_op_spec *s, const char *op, int i, const char *what, long *value,
                                 ddp_error *err);
/* Adds a parameter with one (d1 0) or two dimensions. */
DDP_LIB void ddp__op_param(ddp_op_spec *s, const char *name, long d0, long d1, ddp_init init, double scale);

/* Dimensions of attention and rope, for x (b, t, (heads + 2 kv_heads) d). Argument 0 is heads, argument 1
 * kv_heads (default: heads). A key/value head serves `group` consecutive query heads. */
typedef struct ddp__heads {
    long b, t, heads, kv_heads, group;
    long row, width; /* columns of x, columns of the queries and of the output of attention */
    int d;           /* columns of a head */
    float scale;     /* of attention's scores, 1 / sqrt(d) */
} ddp__heads;

#define DDP__NORM_EPS        1e-5
#define DDP__BATCH_NORM_MOVE 0.1 /* fraction by which running statistics move towards the batch's */

enum { DDP__ROPE_PAIRS = 256 }; /* maximum pairs of a head for rope, whose angles are on the stack */

DDP_LIB ddp_status ddp__op_heads(const ddp_op_spec *s, const char *op, ddp__heads *z, ddp_error *err);
/* The same for a spec that has passed this check. */
DDP_LIB ddp__heads ddp__heads_of(const ddp_op_spec *s);

/* Offset in x of the queries of head number `head` of all (batch, head), offset in x of the keys of number
 * kv_head, and offset in out of that query head. */
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
/* Number of elements of such a shape, even if it is rejected later as too large. */
DDP_LIB double ddp__image_count(const ddp_shape *s);

/* Sums of y - y_mean and of (y - y_mean) (x - x_mean) over one channel of images of shape s. x and y point to
 * the first element of the channel. Sums are in float within a plane and in double across planes, in
 * order. */
DDP_LIB void ddp__channel_sums(const ddp_op_call *call, const ddp_shape *s, const float *x, const float *y,
                               float x_mean, float y_mean, double *sum);

/* Shape rule for a square window that slides over the image: sets out, with `channels` channels. The
 * arguments are first (kernel), first + 1 (stride) and first + 2 (padding on every side). */
DDP_LIB ddp_status ddp__image_window(ddp_op_spec *s, const char *op, int first, long channels,
                                     ddp_error *err);

/* Dimensions of a pooling operator with arguments kernel, stride and padding. */
typedef struct ddp__pool_size {
    long planes;
    int h, w, rows, cols; /* size of the input, size of the output */
    int kernel, stride, padding;
} ddp__pool_size;

DDP_LIB ddp__pool_size ddp__pool_sizes(const ddp_op_spec *s);

/* Range of window number i along a side of length size, without the padding. */
static inline DDP__DEVICE void ddp__pool_span(const ddp__pool_size *z, int i, int size, int *first, int *last)
{
    const int at = i * z->stride - z->padding;

    *first = at < 0 ? 0 : at;
    *last = at + z->kernel > size ? size : at + z->kernel;
}
