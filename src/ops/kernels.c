/* The inner loops of the operators: one macro with vector extensions, instantiated for each instruction
 * set, so that -march=native is not needed and -O1 is enough. A vector type wider than the function's
 * target would be lowered to scalar code (30 times slower, measured). So every function that uses vectors
 * has the attributes of its set, and passes vectors by pointer. */
#include "ops/ops.h"

/* Rows of the register tile, unrolled by hand: not every compiler unrolls the loop, and accumulators in
 * an array are kept in memory instead of registers. */
#define DDP__ROWS_6(X, T)   X(T, 0) X(T, 1) X(T, 2) X(T, 3) X(T, 4) X(T, 5)
#define DDP__ROWS_8(X, T)   DDP__ROWS_6(X, T) X(T, 6) X(T, 7)
#define DDP__ROW_FROM(T, i) const float *a##i = a + (i)*a_row;
#define DDP__ROW_ZERO(T, i) T p##i = {0}, q##i = {0};
#define DDP__ROW_STEP(T, i)      \
    p##i = p##i + a##i[at] * b0; \
    q##i = q##i + a##i[at] * b1;
#define DDP__ROW_SAVE(T, i)                                        \
    {                                                              \
        T *to = (T *)(c + (i)*c_row), *too = (T *)(d + (i)*c_row); \
        if (add) {                                                 \
            *to = *to + p##i;                                      \
            *too = *too + q##i;                                    \
        } else if (bias) {                                         \
            *to = bias0 + p##i;                                    \
            *too = bias1 + q##i;                                   \
        } else {                                                   \
            *to = p##i;                                            \
            *too = q##i;                                           \
        }                                                          \
    }

/* Interleaves the lower halves, and the upper halves, of two vectors of four elements. */
#if defined(__clang__) || __GNUC__ >= 12
#define DDP__CAN_ZIP        1
#define DDP__ZIP_LOW(u, v)  __builtin_shufflevector(u, v, 0, 4, 1, 5)
#define DDP__ZIP_HIGH(u, v) __builtin_shufflevector(u, v, 2, 6, 3, 7)
#else /* the scalar loop processes everything */
#define DDP__CAN_ZIP        0
#define DDP__ZIP_LOW(u, v)  (u)
#define DDP__ZIP_HIGH(u, v) (v)
#endif

/* exp as in Cephes expf: n = round(x / ln 2), r = x - n ln 2 in two parts, a polynomial in r, times 2^n. The
 * relative error is below 2e-7. The argument is clamped to [-87.3, 88.3], where 2^n is a normal number. NaN
 * stays NaN. Adding the rounding constant 1.5 * 2^23 leaves n in the low bits. */
#define DDP__KERNEL_SET(S, BYTES, MR, ROWS, ATTR)                                                            \
    typedef float ddp__vec_##S __attribute__((vector_size(BYTES)));                                          \
    typedef float ddp__mem_##S __attribute__((vector_size(BYTES), aligned(4), may_alias));                   \
    typedef int32_t ddp__int_##S __attribute__((vector_size(BYTES)));                                        \
    typedef uint32_t ddp__bits_##S __attribute__((vector_size(BYTES)));                                      \
    enum { ddp__lanes_##S = (BYTES) / 4 };                                                                   \
                                                                                                             \
    /* Prefetches the tile's part of c, which is used only after the sums. */                                \
    static inline ATTR __attribute__((always_inline)) void ddp__tile_##S(                                    \
        long k, const float *a, long a_row, long a_col, const float *b, long b_row, float *c, float *d,      \
        long c_row, const float *bias, int add)                                                              \
    {                                                                                                        \
        long at = 0, i;                                                                                      \
        for (i = 0; i < (MR); i++) {                                                                         \
            __builtin_prefetch(c + i * c_row, 1);                                                            \
            __builtin_prefetch(d + i * c_row, 1);                                                            \
        }                                                                                                    \
        ROWS(DDP__ROW_FROM, ddp__vec_##S)                                                                    \
        ROWS(DDP__ROW_ZERO, ddp__vec_##S)                                                                    \
        ddp__vec_##S bias0 = {0}, bias1 = {0};                                                               \
        for (; k > 0; k--, at += a_col, b += b_row) {                                                        \
            const ddp__vec_##S b0 = *(const ddp__mem_##S *)b;                                                \
            const ddp__vec_##S b1 = *(const ddp__mem_##S *)(b + ddp__lanes_##S);                             \
            ROWS(DDP__ROW_STEP, ddp__vec_##S)                                                                \
        }                                                                                                    \
        if (bias) {                                                                                          \
            bias0 = *(const ddp__mem_##S *)bias;                                                             \
            bias1 = *(const ddp__mem_##S *)(bias + ddp__lanes_##S);                                          \
        }                                                                                                    \
        ROWS(DDP__ROW_SAVE, ddp__mem_##S)                                                                    \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__gemm_##S(long k, const float *a, const float *b, float *c, float *d, long c_row,   \
                                   int add)                                                                  \
    {                                                                                                        \
        ddp__tile_##S(k, a, 1, (MR), b, 2 * ddp__lanes_##S, c, d, c_row, NULL, add);                         \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__gemm_at_##S(long k, const float *a, long a_row, long a_col, const float *b,        \
                                      long b_row, float *c, long c_row, const float *bias, int add)          \
    {                                                                                                        \
        ddp__tile_##S(k, a, a_row, a_col, b, b_row, c, c + ddp__lanes_##S, c_row, bias, add);                \
    }                                                                                                        \
                                                                                                             \
    static inline ATTR __attribute__((always_inline)) void ddp__load_##S(ddp__vec_##S *v, const float *p,    \
                                                                         long left, float fill)              \
    {                                                                                                        \
        float part[ddp__lanes_##S];                                                                          \
        if (left >= ddp__lanes_##S) {                                                                        \
            *v = *(const ddp__mem_##S *)p;                                                                   \
        } else {                                                                                             \
            for (int j = 0; j < ddp__lanes_##S; j++) part[j] = j < left ? p[j] : fill;                       \
            *v = *(const ddp__mem_##S *)part;                                                                \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static inline ATTR __attribute__((always_inline)) void ddp__store_##S(float *p, const ddp__vec_##S *v,   \
                                                                          long left, int add)                \
    {                                                                                                        \
        float part[ddp__lanes_##S];                                                                          \
        if (left >= ddp__lanes_##S) {                                                                        \
            if (add)                                                                                         \
                *(ddp__mem_##S *)p = *(const ddp__mem_##S *)p + *v;                                          \
            else                                                                                             \
                *(ddp__mem_##S *)p = *v;                                                                     \
        } else {                                                                                             \
            *(ddp__mem_##S *)part = *v;                                                                      \
            for (int j = 0; j < left; j++) p[j] = add ? p[j] + part[j] : part[j];                            \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static inline ATTR __attribute__((always_inline)) float ddp__total_##S(const ddp__vec_##S *v)            \
    {                                                                                                        \
        float part[ddp__lanes_##S];                                                                          \
        ddp__mem_base *quad = (ddp__mem_base *)part;                                                         \
        *(ddp__mem_##S *)part = *v;                                                                          \
        for (int half = ddp__lanes_##S / 8; half; half /= 2)                                                 \
            for (int j = 0; j < half; j++) quad[j] = quad[j] + quad[j + half];                               \
        return (part[0] + part[2]) + (part[1] + part[3]);                                                    \
    }                                                                                                        \
                                                                                                             \
    static inline ATTR __attribute__((always_inline)) void ddp__exp_##S(ddp__vec_##S *x)                     \
    {                                                                                                        \
        const ddp__vec_##S zero = {0}, top = zero + 88.3f, bottom = zero - 87.3f;                            \
        const ddp__vec_##S shift = zero + 12582912.0f;                                                       \
        ddp__vec_##S v = *x, f, r, p;                                                                        \
        ddp__int_##S m, n;                                                                                   \
        m = (ddp__int_##S)(v > top);                                                                         \
        v = (ddp__vec_##S)((m & (ddp__int_##S)top) | (~m & (ddp__int_##S)v));                                \
        m = (ddp__int_##S)(v < bottom);                                                                      \
        v = (ddp__vec_##S)((m & (ddp__int_##S)bottom) | (~m & (ddp__int_##S)v));                             \
        f = v * 1.44269504f + shift;                                                                         \
        n = (ddp__int_##S)((ddp__bits_##S)f - (ddp__bits_##S)shift);                                         \
        f = __builtin_convertvector(n, ddp__vec_##S);                                                        \
        r = v - f * 0.693359375f;                                                                            \
        r = r + f * 2.12194440e-4f;                                                                          \
        p = r * 1.9875691500e-4f + 1.3981999507e-3f;                                                         \
        p = p * r + 8.3334519073e-3f;                                                                        \
        p = p * r + 4.1665795894e-2f;                                                                        \
        p = p * r + 1.6666665459e-1f;                                                                        \
        p = p * r + 5.0000001201e-1f;                                                                        \
        p = p * (r * r) + r + 1.0f;                                                                          \
        *x = p * (ddp__vec_##S)(((ddp__bits_##S)n + 127u) << 23);                                            \
    }                                                                                                        \
                                                                                                             \
    static ATTR float ddp__max_##S(const float *x, long n)                                                   \
    {                                                                                                        \
        ddp__vec_##S top = {0}, v;                                                                           \
        float part[ddp__lanes_##S];                                                                          \
        top = top + x[0];                                                                                    \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__int_##S m;                                                                                  \
            ddp__load_##S(&v, x + i, n - i, x[0]);                                                           \
            m = (ddp__int_##S)(v > top);                                                                     \
            top = (ddp__vec_##S)((m & (ddp__int_##S)v) | (~m & (ddp__int_##S)top));                          \
        }                                                                                                    \
        *(ddp__mem_##S *)part = top;                                                                         \
        for (int j = 1; j < ddp__lanes_##S; j++)                                                             \
            if (part[j] > part[0]) part[0] = part[j];                                                        \
        return part[0];                                                                                      \
    }                                                                                                        \
                                                                                                             \
    static ATTR float ddp__dot_##S(const float *x, const float *y, long n)                                   \
    {                                                                                                        \
        ddp__vec_##S sum = {0}, u, v;                                                                        \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&u, x + i, n - i, 0), ddp__load_##S(&v, y + i, n - i, 0);                          \
            sum = sum + u * v;                                                                               \
        }                                                                                                    \
        return ddp__total_##S(&sum);                                                                         \
    }                                                                                                        \
                                                                                                             \
    static ATTR float ddp__softmax_##S(float *y, const float *x, long n, float scale, float shift,           \
                                       float factor, int add)                                                \
    {                                                                                                        \
        ddp__vec_##S sum = {0}, v;                                                                           \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&v, x + i, n - i, -FLT_MAX); /* negligible: e^-87 in a sum of at least 1 */        \
            v = v * scale - shift;                                                                           \
            ddp__exp_##S(&v);                                                                                \
            v = v * factor;                                                                                  \
            sum = sum + v;                                                                                   \
            if (y) ddp__store_##S(y + i, &v, n - i, add);                                                    \
        }                                                                                                    \
        return ddp__total_##S(&sum);                                                                         \
    }                                                                                                        \
    static ATTR void ddp__softmax_grad_##S(float *d, const float *p, long n, float mean, float factor)       \
    {                                                                                                        \
        ddp__vec_##S u, v;                                                                                   \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&u, p + i, n - i, 0), ddp__load_##S(&v, d + i, n - i, 0);                          \
            v = (v - mean) * (u * factor);                                                                   \
            ddp__store_##S(d + i, &v, n - i, 0);                                                             \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    /* tanh(u) = 2 / (1 + e^-2u) - 1, so 0.5 x (1 + tanh(u)) = x / (1 + e^-2u); \
     * u = sqrt(2 / pi) (x + 0.044715 x^3). */                            \
    static ATTR void ddp__gelu_##S(float *y, const float *x, long n)                                         \
    {                                                                                                        \
        ddp__vec_##S v, e;                                                                                   \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&v, x + i, n - i, 0);                                                              \
            e = v * (v * v * -0.0713548163f + -1.5957691216f);                                               \
            ddp__exp_##S(&e);                                                                                \
            v = v / (e + 1.0f);                                                                              \
            ddp__store_##S(y + i, &v, n - i, 0);                                                             \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    /* with s = 1 / (1 + e^-2u): gelu' = s + x s (1 - s) 2 u'. */                                            \
    static ATTR void ddp__gelu_grad_##S(float *dx, const float *x, const float *dy, long n, int add)         \
    {                                                                                                        \
        ddp__vec_##S v, d, e, s;                                                                             \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&v, x + i, n - i, 0), ddp__load_##S(&d, dy + i, n - i, 0);                         \
            e = v * (v * v * -0.0713548163f + -1.5957691216f);                                               \
            ddp__exp_##S(&e);                                                                                \
            s = 1.0f / (e + 1.0f);                                                                           \
            d = d * (s + v * (s * (1.0f - s)) * (v * v * 0.2140644488f + 1.5957691216f));                    \
            ddp__store_##S(dx + i, &d, n - i, add);                                                          \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static inline ATTR __attribute__((always_inline)) void ddp__norm_of_##S(                                 \
        float *y, const float *x, const float *scale, const float *shift, long n, float eps, float *stat,    \
        int rms)                                                                                             \
    {                                                                                                        \
        ddp__vec_##S sum = {0}, square = {0}, b = {0}, v, w;                                                 \
        float mean = 0, rstd;                                                                                \
        for (long i = 0; i < n && !rms; i += ddp__lanes_##S) {                                               \
            ddp__load_##S(&v, x + i, n - i, 0);                                                              \
            sum = sum + v;                                                                                   \
        }                                                                                                    \
        if (!rms) *stat++ = mean = ddp__total_##S(&sum) / (float)n;                                          \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&v, x + i, n - i, mean);                                                           \
            v = v - mean;                                                                                    \
            square = square + v * v;                                                                         \
        }                                                                                                    \
        *stat = rstd = 1.0f / sqrtf(ddp__total_##S(&square) / (float)n + eps);                               \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&v, x + i, n - i, 0), ddp__load_##S(&w, scale + i, n - i, 0);                      \
            if (!rms) ddp__load_##S(&b, shift + i, n - i, 0);                                                \
            v = (v - mean) * rstd * w;                                                                       \
            if (!rms) v = v + b;                                                                             \
            ddp__store_##S(y + i, &v, n - i, 0);                                                             \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    /* dx = rstd (d - mean(d) - h mean(d h)) for h = normalised x, d = dy * scale. rms omits mean(d). */     \
    static inline ATTR __attribute__((always_inline)) void ddp__norm_grad_of_##S(                            \
        float *dx, const float *x, const float *scale, const float *dy, long n, const float *stat, int rms,  \
        int add)                                                                                             \
    {                                                                                                        \
        ddp__vec_##S sum = {0}, dots = {0}, v, w, d;                                                         \
        const float mean = rms ? 0 : stat[0], rstd = rms ? stat[0] : stat[1];                                \
        float mean_d, mean_dh;                                                                               \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&v, x + i, n - i, 0), ddp__load_##S(&w, scale + i, n - i, 0);                      \
            ddp__load_##S(&d, dy + i, n - i, 0);                                                             \
            d = d * w;                                                                                       \
            if (!rms) sum = sum + d;                                                                         \
            dots = dots + d * ((v - mean) * rstd);                                                           \
        }                                                                                                    \
        mean_d = rms ? 0 : ddp__total_##S(&sum) / (float)n;                                                  \
        mean_dh = ddp__total_##S(&dots) / (float)n;                                                          \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&v, x + i, n - i, 0), ddp__load_##S(&w, scale + i, n - i, 0);                      \
            ddp__load_##S(&d, dy + i, n - i, 0);                                                             \
            d = (d * w - mean_d - (v - mean) * rstd * mean_dh) * rstd;                                       \
            ddp__store_##S(dx + i, &d, n - i, add);                                                          \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__norm_##S(float *y, const float *x, const float *scale, const float *shift, long n, \
                                   float eps, float *stat)                                                   \
    {                                                                                                        \
        if (shift)                                                                                           \
            ddp__norm_of_##S(y, x, scale, shift, n, eps, stat, 0);                                           \
        else                                                                                                 \
            ddp__norm_of_##S(y, x, scale, shift, n, eps, stat, 1);                                           \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__norm_grad_##S(float *dx, const float *x, const float *scale, const float *dy,      \
                                        long n, const float *stat, int rms, int add)                         \
    {                                                                                                        \
        if (rms)                                                                                             \
            ddp__norm_grad_of_##S(dx, x, scale, dy, n, stat, 1, add);                                        \
        else                                                                                                 \
            ddp__norm_grad_of_##S(dx, x, scale, dy, n, stat, 0, add);                                        \
    }                                                                                                        \
    static ATTR void ddp__moments_##S(const float *x, const float *y, long n, float x_mean, float y_mean,    \
                                      float *sum)                                                            \
    {                                                                                                        \
        ddp__vec_##S one = {0}, two = {0}, u, v;                                                             \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&u, x + i, n - i, x_mean), ddp__load_##S(&v, y + i, n - i, y_mean);                \
            v = v - y_mean;                                                                                  \
            one = one + v;                                                                                   \
            two = two + v * (u - x_mean);                                                                    \
        }                                                                                                    \
        sum[0] = ddp__total_##S(&one);                                                                       \
        sum[1] = ddp__total_##S(&two);                                                                       \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__affine_##S(float *z, const float *x, const float *y, long n, float a, float b,     \
                                     float c, int add)                                                       \
    {                                                                                                        \
        ddp__vec_##S u, v;                                                                                   \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&u, x + i, n - i, 0);                                                              \
            u = u * a + c;                                                                                   \
            if (y) {                                                                                         \
                ddp__load_##S(&v, y + i, n - i, 0);                                                          \
                u = u + v * b;                                                                               \
            }                                                                                                \
            ddp__store_##S(z + i, &u, n - i, add);                                                           \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__gather_##S(float *dst, long width, const float *src, const long *at, long k,       \
                                     long n)                                                                 \
    {                                                                                                        \
        long p, j = 0;                                                                                       \
        for (; j + 2 * ddp__lanes_##S <= n; j += 2 * ddp__lanes_##S)                                         \
            for (p = 0; p < k; p++) {                                                                        \
                const ddp__mem_##S *from = (const ddp__mem_##S *)(src + at[p] + j);                          \
                ddp__mem_##S *to = (ddp__mem_##S *)(dst + p * width + j);                                    \
                to[0] = from[0];                                                                             \
                to[1] = from[1];                                                                             \
            }                                                                                                \
        for (; j + ddp__lanes_##S <= n; j += ddp__lanes_##S)                                                 \
            for (p = 0; p < k; p++)                                                                          \
                *(ddp__mem_##S *)(dst + p * width + j) = *(const ddp__mem_##S *)(src + at[p] + j);           \
        for (; j + 4 <= n; j += 4)                                                                           \
            for (p = 0; p < k; p++) memcpy(dst + p * width + j, src + at[p] + j, 16);                        \
        for (; j < n; j++)                                                                                   \
            for (p = 0; p < k; p++) dst[p * width + j] = src[at[p] + j];                                     \
    }                                                                                                        \
                                                                                                             \
    /* Processes one row of src at a time, because its rows may share few cache sets. */                     \
    static ATTR void ddp__panels_##S(float *dst, const float *src, long step, long rows, long k)             \
    {                                                                                                        \
        long p, i, j;                                                                                        \
        for (p = 0; p < k; p++, src += step) {                                                               \
            for (i = 0; i + (MR) <= rows; i += (MR))                                                         \
                memcpy(dst + i * k + p * (MR), src + i, (MR) * sizeof *dst);                                 \
            for (j = i; j < rows; j++) dst[i * k + p * (MR) + j - i] = src[j];                               \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    /* y = max(x, 0). NaN stays NaN. */                                                                      \
    static ATTR void ddp__relu_##S(float *y, const float *x, long n)                                         \
    {                                                                                                        \
        const ddp__vec_##S zero = {0};                                                                       \
        ddp__vec_##S v;                                                                                      \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&v, x + i, n - i, 0);                                                              \
            v = (ddp__vec_##S)(~(ddp__int_##S)(v < zero) & (ddp__int_##S)v);                                 \
            ddp__store_##S(y + i, &v, n - i, 0);                                                             \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__relu_grad_##S(float *dx, const float *x, const float *dy, long n, int add)         \
    {                                                                                                        \
        const ddp__vec_##S zero = {0};                                                                       \
        ddp__vec_##S v, d;                                                                                   \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&v, x + i, n - i, 0), ddp__load_##S(&d, dy + i, n - i, 0);                         \
            d = (ddp__vec_##S)((ddp__int_##S)(v > zero) & (ddp__int_##S)d);                                  \
            ddp__store_##S(dx + i, &d, n - i, add);                                                          \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    /* Four rows by four columns at a time: zip rows 0 and 2, and 1 and 3, then zip the results. */          \
    static ATTR void ddp__turn_##S(float *dst, long width, const float *src, const long *at, long rows,      \
                                   long k)                                                                   \
    {                                                                                                        \
        long r = 0, p, i;                                                                                    \
        for (; DDP__CAN_ZIP && r + 4 <= rows; r += 4) {                                                      \
            const float *a = src + at[r], *b = src + at[r + 1];                                              \
            const float *c = src + at[r + 2], *d = src + at[r + 3];                                          \
            float *to = dst + r;                                                                             \
            for (p = 0; p + 4 <= k; p += 4, to += 4 * width) {                                               \
                const ddp__mem_base u = *(const ddp__mem_base *)(a + p);                                     \
                const ddp__mem_base v = *(const ddp__mem_base *)(b + p);                                     \
                const ddp__mem_base w = *(const ddp__mem_base *)(c + p);                                     \
                const ddp__mem_base x = *(const ddp__mem_base *)(d + p);                                     \
                const ddp__mem_base even0 = DDP__ZIP_LOW(u, w), even1 = DDP__ZIP_HIGH(u, w);                 \
                const ddp__mem_base odd0 = DDP__ZIP_LOW(v, x), odd1 = DDP__ZIP_HIGH(v, x);                   \
                *(ddp__mem_base *)to = DDP__ZIP_LOW(even0, odd0);                                            \
                *(ddp__mem_base *)(to + width) = DDP__ZIP_HIGH(even0, odd0);                                 \
                *(ddp__mem_base *)(to + 2 * width) = DDP__ZIP_LOW(even1, odd1);                              \
                *(ddp__mem_base *)(to + 3 * width) = DDP__ZIP_HIGH(even1, odd1);                             \
            }                                                                                                \
            for (; p < k; p++, to += width) {                                                                \
                to[0] = a[p];                                                                                \
                to[1] = b[p];                                                                                \
                to[2] = c[p];                                                                                \
                to[3] = d[p];                                                                                \
            }                                                                                                \
        }                                                                                                    \
        for (i = r; i < rows; i++)                                                                           \
            for (p = 0; p < k; p++) dst[p * width + i] = src[at[i] + p];                                     \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__swiglu_##S(float *y, const float *a, const float *b, long n)                       \
    {                                                                                                        \
        ddp__vec_##S u, v, e;                                                                                \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&v, a + i, n - i, 0), ddp__load_##S(&u, b + i, n - i, 0);                          \
            e = 0.0f - v;                                                                                    \
            ddp__exp_##S(&e);                                                                                \
            v = v / (e + 1.0f) * u;                                                                          \
            ddp__store_##S(y + i, &v, n - i, 0);                                                             \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    /* with s = 1 / (1 + e^-a): silu = a s, silu' = s + a s (1 - s). */                                      \
    static ATTR void ddp__swiglu_grad_##S(float *da, float *db, const float *a, const float *b,              \
                                          const float *dy, long n, int add_a, int add_b)                     \
    {                                                                                                        \
        ddp__vec_##S u, v, d, e, s;                                                                          \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__load_##S(&v, a + i, n - i, 0), ddp__load_##S(&u, b + i, n - i, 0);                          \
            ddp__load_##S(&d, dy + i, n - i, 0);                                                             \
            e = 0.0f - v;                                                                                    \
            ddp__exp_##S(&e);                                                                                \
            s = 1.0f / (e + 1.0f);                                                                           \
            e = d * (v * s);                                                                                 \
            d = d * u * (s + v * (s * (1.0f - s)));                                                          \
            if (da) ddp__store_##S(da + i, &d, n - i, add_a);                                                \
            if (db) ddp__store_##S(db + i, &e, n - i, add_b);                                                \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__rotate_##S(float *y, const float *x, const float *cosine, const float *sine,       \
                                     long half, int add)                                                     \
    {                                                                                                        \
        ddp__vec_##S u, v, c, s, w;                                                                          \
        for (long i = 0; i < half; i += ddp__lanes_##S) {                                                    \
            ddp__load_##S(&u, x + i, half - i, 0), ddp__load_##S(&v, x + half + i, half - i, 0);             \
            ddp__load_##S(&c, cosine + i, half - i, 0), ddp__load_##S(&s, sine + i, half - i, 0);            \
            w = u * c - v * s;                                                                               \
            v = v * c + u * s;                                                                               \
            ddp__store_##S(y + i, &w, half - i, add);                                                        \
            ddp__store_##S(y + half + i, &v, half - i, add);                                                 \
        }                                                                                                    \
    }                                                                                                        \
    /* Tiles of Winograd's F(2x2, 3x3), transformed along one side, then along the other one. */             \
    static ATTR void ddp__winograd_input_##S(float *v, long v_step, const float *const *x, long n)           \
    {                                                                                                        \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__vec_##S t[4][4];                                                                            \
            for (int b = 0; b < 4; b++) {                                                                    \
                const ddp__vec_##S x0 = *(const ddp__mem_##S *)(x[b] + i);                                   \
                const ddp__vec_##S x1 = *(const ddp__mem_##S *)(x[4 + b] + i);                               \
                const ddp__vec_##S x2 = *(const ddp__mem_##S *)(x[8 + b] + i);                               \
                const ddp__vec_##S x3 = *(const ddp__mem_##S *)(x[12 + b] + i);                              \
                t[0][b] = x0 - x2;                                                                           \
                t[1][b] = x1 + x2;                                                                           \
                t[2][b] = x2 - x1;                                                                           \
                t[3][b] = x1 - x3;                                                                           \
            }                                                                                                \
            for (int a = 0; a < 4; a++) {                                                                    \
                float *to = v + 4 * a * v_step + i;                                                          \
                *(ddp__mem_##S *)to = t[a][0] - t[a][2];                                                     \
                *(ddp__mem_##S *)(to + v_step) = t[a][1] + t[a][2];                                          \
                *(ddp__mem_##S *)(to + 2 * v_step) = t[a][2] - t[a][1];                                      \
                *(ddp__mem_##S *)(to + 3 * v_step) = t[a][1] - t[a][3];                                      \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__winograd_output_##S(float *const *y, const float *m, long m_step, long n)          \
    {                                                                                                        \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__vec_##S t[2][4];                                                                            \
            for (int b = 0; b < 4; b++) {                                                                    \
                const float *from = m + b * m_step + i;                                                      \
                const ddp__vec_##S m0 = *(const ddp__mem_##S *)from;                                         \
                const ddp__vec_##S m1 = *(const ddp__mem_##S *)(from + 4 * m_step);                          \
                const ddp__vec_##S m2 = *(const ddp__mem_##S *)(from + 8 * m_step);                          \
                const ddp__vec_##S m3 = *(const ddp__mem_##S *)(from + 12 * m_step);                         \
                t[0][b] = m0 + m1 + m2;                                                                      \
                t[1][b] = m1 - m2 - m3;                                                                      \
            }                                                                                                \
            for (int a = 0; a < 2; a++) {                                                                    \
                *(ddp__mem_##S *)(y[2 * a] + i) = t[a][0] + t[a][1] + t[a][2];                               \
                *(ddp__mem_##S *)(y[2 * a + 1] + i) = t[a][1] - t[a][2] - t[a][3];                           \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__winograd_weight_##S(float *u, long u_step, const float *w, long w_step, long n)    \
    {                                                                                                        \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__vec_##S t[4][3];                                                                            \
            for (int b = 0; b < 3; b++) {                                                                    \
                const float *from = w + b * w_step + i;                                                      \
                const ddp__vec_##S w0 = *(const ddp__mem_##S *)from;                                         \
                const ddp__vec_##S w1 = *(const ddp__mem_##S *)(from + 3 * w_step) * 0.5f;                   \
                const ddp__vec_##S w2 = *(const ddp__mem_##S *)(from + 6 * w_step);                          \
                const ddp__vec_##S ends = (w0 + w2) * 0.5f;                                                  \
                t[0][b] = w0;                                                                                \
                t[1][b] = ends + w1;                                                                         \
                t[2][b] = ends - w1;                                                                         \
                t[3][b] = w2;                                                                                \
            }                                                                                                \
            for (int a = 0; a < 4; a++) {                                                                    \
                float *to = u + 4 * a * u_step + i;                                                          \
                const ddp__vec_##S ends = (t[a][0] + t[a][2]) * 0.5f, middle = t[a][1] * 0.5f;               \
                *(ddp__mem_##S *)to = t[a][0];                                                               \
                *(ddp__mem_##S *)(to + u_step) = ends + middle;                                              \
                *(ddp__mem_##S *)(to + 2 * u_step) = ends - middle;                                          \
                *(ddp__mem_##S *)(to + 3 * u_step) = t[a][2];                                                \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__winograd_output_grad_##S(float *q, long q_step, const float *const *y, long n)     \
    {                                                                                                        \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__vec_##S t[4][2];                                                                            \
            for (int b = 0; b < 2; b++) {                                                                    \
                const ddp__vec_##S y0 = *(const ddp__mem_##S *)(y[b] + i);                                   \
                const ddp__vec_##S y1 = *(const ddp__mem_##S *)(y[2 + b] + i);                               \
                t[0][b] = y0;                                                                                \
                t[1][b] = y0 + y1;                                                                           \
                t[2][b] = y0 - y1;                                                                           \
                t[3][b] = 0.0f - y1;                                                                         \
            }                                                                                                \
            for (int a = 0; a < 4; a++) {                                                                    \
                float *to = q + 4 * a * q_step + i;                                                          \
                *(ddp__mem_##S *)to = t[a][0];                                                               \
                *(ddp__mem_##S *)(to + q_step) = t[a][0] + t[a][1];                                          \
                *(ddp__mem_##S *)(to + 2 * q_step) = t[a][0] - t[a][1];                                      \
                *(ddp__mem_##S *)(to + 3 * q_step) = 0.0f - t[a][1];                                         \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static ATTR void ddp__winograd_weight_grad_##S(float *w, long w_step, const float *s, long s_step,       \
                                                   long n)                                                   \
    {                                                                                                        \
        for (long i = 0; i < n; i += ddp__lanes_##S) {                                                       \
            ddp__vec_##S t[3][4];                                                                            \
            for (int b = 0; b < 4; b++) {                                                                    \
                const float *from = s + b * s_step + i;                                                      \
                const ddp__vec_##S s0 = *(const ddp__mem_##S *)from;                                         \
                const ddp__vec_##S s1 = *(const ddp__mem_##S *)(from + 4 * s_step);                          \
                const ddp__vec_##S s2 = *(const ddp__mem_##S *)(from + 8 * s_step);                          \
                const ddp__vec_##S s3 = *(const ddp__mem_##S *)(from + 12 * s_step);                         \
                const ddp__vec_##S middle = (s1 + s2) * 0.5f;                                                \
                t[0][b] = s0 + middle;                                                                       \
                t[1][b] = (s1 - s2) * 0.5f;                                                                  \
                t[2][b] = middle + s3;                                                                       \
            }                                                                                                \
            for (int a = 0; a < 3; a++) {                                                                    \
                float *to = w + 3 * a * w_step + i;                                                          \
                const ddp__vec_##S middle = (t[a][1] + t[a][2]) * 0.5f;                                      \
                *(ddp__mem_##S *)to = t[a][0] + middle;                                                      \
                *(ddp__mem_##S *)(to + w_step) = (t[a][1] - t[a][2]) * 0.5f;                                 \
                *(ddp__mem_##S *)(to + 2 * w_step) = middle + t[a][3];                                       \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static const ddp__kernels ddp__kernels_##S = {#S,                                                        \
                                                  MR,                                                        \
                                                  2 * ddp__lanes_##S,                                        \
                                                  ddp__gemm_##S,                                             \
                                                  ddp__gemm_at_##S,                                          \
                                                  ddp__max_##S,                                              \
                                                  ddp__dot_##S,                                              \
                                                  ddp__softmax_##S,                                          \
                                                  ddp__softmax_grad_##S,                                     \
                                                  ddp__gelu_##S,                                             \
                                                  ddp__gelu_grad_##S,                                        \
                                                  ddp__norm_##S,                                             \
                                                  ddp__norm_grad_##S,                                        \
                                                  ddp__swiglu_##S,                                           \
                                                  ddp__swiglu_grad_##S,                                      \
                                                  ddp__rotate_##S,                                           \
                                                  ddp__moments_##S,                                          \
                                                  ddp__affine_##S,                                           \
                                                  ddp__gather_##S,                                           \
                                                  ddp__panels_##S,                                           \
                                                  ddp__turn_##S,                                             \
                                                  ddp__relu_##S,                                             \
                                                  ddp__relu_grad_##S,                                        \
                                                  ddp__winograd_input_##S,                                   \
                                                  ddp__winograd_output_##S,                                  \
                                                  ddp__winograd_weight_##S,                                  \
                                                  ddp__winograd_output_grad_##S,                             \
                                                  ddp__winograd_weight_grad_##S};

#if defined(__aarch64__) /* 32 vector registers */
DDP__KERNEL_SET(base, 16, 8, DDP__ROWS_8, DDP__KERNEL_PLAIN)
#else
DDP__KERNEL_SET(base, 16, 6, DDP__ROWS_6, DDP__KERNEL_PLAIN)
#endif

#if defined(__x86_64__)
DDP__KERNEL_SET(avx2, 32, 6, DDP__ROWS_6, DDP__KERNEL(target("avx2,fma")))
DDP__KERNEL_SET(avx512, 64, 8, DDP__ROWS_8, DDP__KERNEL(target("avx512f")))
#endif

const ddp__kernels *ddp__kernels_at(int i)
{
    if (!ddp__cpu_runs(i + 1)) return NULL;
#if defined(__x86_64__)
    if (i == 1) return &ddp__kernels_avx2;
    if (i == 2) return &ddp__kernels_avx512;
#endif
    return i == 0 ? &ddp__kernels_base : NULL;
}

const ddp__kernels *ddp__kernels_best(void)
{
    const ddp__kernels *k = ddp__kernels_at(2);

    if (!k) k = ddp__kernels_at(1);
    return k ? k : ddp__kernels_at(0);
}
