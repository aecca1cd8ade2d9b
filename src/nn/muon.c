/* Muon optimizer: Newton-Schulz steps approximate the orthogonal matrix nearest to the momentum of a
 * matrix (Jordan et al. 2024 and MuLoCo, arXiv:2505.23725). Sums follow the order of their index and no
 * product is fused, so results are bit-identical on every processor and with any number of threads. */
#include "nn/exact.h"

/* ---- matrix product: c (m x n) += a (m x k) b (k x n), row-major ---- */

/* A panel is a packed block of columns of b. Rows of a are processed in fours. For a symmetric result,
 * only tiles up to the diagonal are computed. */
enum { DDP__PANEL = 16, DDP__PANEL_ROWS = 4, DDP__PANEL_DEPTH = 192 };

typedef struct ddp__panels {
    const float *a, *b;
    float *c;
    long m, k, n;
    int symmetric;
} ddp__panels;

/* c has DDP__PANEL_ROWS rows of a panel, and a has as many rows, `stride` apart, of depth values. */
#define DDP__PANEL_SET(S, BYTES, ATTR)                                                                 \
    typedef float ddp__panel_vec_##S __attribute__((vector_size(BYTES)));                              \
                                                                                                       \
    static ATTR void ddp__panel_##S(float *c, const float *a, long stride, const float *b, long depth) \
    {                                                                                                  \
        enum { LANES = (BYTES) / 4, PAIR = 2 * LANES };                                                \
        for (int at = 0; at < DDP__PANEL; at += PAIR) {                                                \
            ddp__panel_vec_##S sum[DDP__PANEL_ROWS][2], left, right, p, q;                             \
            const ddp__panel_vec_##S zero = {0};                                                       \
            for (int i = 0; i < DDP__PANEL_ROWS; i++)                                                  \
                memcpy(sum[i], c + i * DDP__PANEL + at, sizeof sum[i]);                                \
            for (long l = 0; l < depth; l++) {                                                         \
                memcpy(&left, b + l * DDP__PANEL + at, sizeof left);                                   \
                memcpy(&right, b + l * DDP__PANEL + at + LANES, sizeof right);                         \
                DDP__PANEL_ROW(0) DDP__PANEL_ROW(1) DDP__PANEL_ROW(2) DDP__PANEL_ROW(3)                \
            }                                                                                          \
            for (int i = 0; i < DDP__PANEL_ROWS; i++)                                                  \
                memcpy(c + i * DDP__PANEL + at, sum[i], sizeof sum[i]);                                \
        }                                                                                              \
    }
#define DDP__PANEL_ROW(i)                   \
    p = left * (a[(i)*stride + l] - zero);  \
    q = right * (a[(i)*stride + l] - zero); \
    DDP__ROUNDED(p);                        \
    DDP__ROUNDED(q);                        \
    sum[i][0] = sum[i][0] + p;              \
    sum[i][1] = sum[i][1] + q;

DDP__PANEL_SET(base, 16, )
#if defined(__x86_64__)
DDP__PANEL_SET(avx, 32, __attribute__((target("avx"))))
#endif

static void ddp__panel(float *c, const float *a, long stride, const float *b, long depth)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx")) {
        ddp__panel_avx(c, a, stride, b, depth);
        return;
    }
#endif
    ddp__panel_base(c, a, stride, b, depth);
}

/* Computes rows i..i+3 of a panel of `width` columns from column j. Rows that do not exist are zeros. */
static void ddp__panel_tile(const ddp__panels *g, long i, long j, long width, long from, long depth,
                            const float *b)
{
    const long rows = g->m - i < DDP__PANEL_ROWS ? g->m - i : (long)DDP__PANEL_ROWS;
    float tile[DDP__PANEL_ROWS * DDP__PANEL], edge[DDP__PANEL_ROWS * DDP__PANEL_DEPTH];
    const float *a = g->a + i * g->k + from;
    long stride = g->k;

    memset(tile, 0, sizeof tile);
    for (long r = 0; r < rows; r++)
        memcpy(tile + r * DDP__PANEL, g->c + (i + r) * g->n + j, (size_t)width * sizeof *tile);
    if (rows < DDP__PANEL_ROWS) {
        memset(edge, 0, sizeof edge);
        for (long r = 0; r < rows; r++) memcpy(edge + r * depth, a + r * g->k, (size_t)depth * sizeof *edge);
        a = edge;
        stride = depth;
    }
    ddp__panel(tile, a, stride, b, depth);
    for (long r = 0; r < rows; r++)
        memcpy(g->c + (i + r) * g->n + j, tile + r * DDP__PANEL, (size_t)width * sizeof *tile);
}

static void ddp__panels_some(void *user, long first, long last)
{
    const ddp__panels *g = (const ddp__panels *)user;
    float b[DDP__PANEL_DEPTH * DDP__PANEL];

    for (long j = first * DDP__PANEL; j < last * DDP__PANEL && j < g->n; j += DDP__PANEL) {
        const long width = g->n - j < DDP__PANEL ? g->n - j : (long)DDP__PANEL;
        const long most = g->symmetric && j + width < g->m ? j + width : g->m;
        for (long from = 0; from < g->k; from += DDP__PANEL_DEPTH) {
            const long depth = g->k - from < DDP__PANEL_DEPTH ? g->k - from : (long)DDP__PANEL_DEPTH;
            memset(b, 0, sizeof b);
            for (long l = 0; l < depth; l++)
                memcpy(b + l * DDP__PANEL, g->b + (from + l) * g->n + j, (size_t)width * sizeof *b);
            for (long i = 0; i < most; i += DDP__PANEL_ROWS) ddp__panel_tile(g, i, j, width, from, depth, b);
        }
    }
}

static void ddp__panels_run(ddp__pool *pool, ddp__panels *g)
{
    ddp__pool_run(pool, (g->n + DDP__PANEL - 1) / DDP__PANEL, 1, ddp__panels_some, g);
    for (long i = 1; g->symmetric && i < g->m; i++) /* (i, j) is bit-identical to (j, i): same order of sums
                                                       */
        for (long j = 0; j < i; j++) g->c[i * g->n + j] = g->c[j * g->n + i];
}

/* ---- Newton-Schulz steps ---- */

/* y = s x + t y, each product rounded. */
static void ddp__mix(float *y, float t, const float *x, float s, size_t n)
{
    size_t i = 0;

    for (; i + 4 <= n; i += 4)
        ddp__f4_store(y + i, ddp__f4_mul(ddp__f4_all(s), ddp__f4_load(x + i)) +
                                 ddp__f4_mul(ddp__f4_all(t), ddp__f4_load(y + i)));
    for (; i < n; i++) {
        float p = s * x[i], q = t * y[i];
        DDP__ROUNDED(p);
        DDP__ROUNDED(q);
        y[i] = p + q;
    }
}

/* to (columns x rows) = transpose of from (rows x columns). */
static void ddp__transpose(float *to, const float *from, long rows, long columns)
{
    for (long i = 0; i < rows; i += 16)
        for (long j = 0; j < columns; j++)
            for (long r = i; r < rows && r < i + 16; r++) to[j * rows + r] = from[r * columns + j];
}

size_t ddp__muon_room(size_t rows, size_t columns)
{
    const size_t m = rows < columns ? rows : columns;

    return 3 * rows * columns + 2 * m * m;
}

/* Orthogonalises the rows of x (m x n, m <= n): five times X = a X + (b A + c A A) X with A = X X'. Uses
 * the rest of the working memory after x. Returns the address of the result. */
static float *ddp__newton_schulz(ddp__pool *pool, float *x, long m, long n)
{
    const float a = 3.4445f, b = -4.7750f, c = 2.0315f;
    const size_t whole = (size_t)m * (size_t)n, square = (size_t)m * (size_t)m;
    float *next = x + whole, *turned = next + whole, *gram = turned + whole, *poly = gram + square, *swap;

    for (int step = 0; step < 5; step++) {
        ddp__panels to_gram = {x, turned, gram, m, n, m, 1}, to_square = {gram, gram, poly, m, m, m, 1};
        ddp__panels to_next = {poly, x, next, m, m, n, 0};
        ddp__transpose(turned, x, m, n);
        memset(gram, 0, 2 * square * sizeof *gram);
        ddp__panels_run(pool, &to_gram);
        ddp__panels_run(pool, &to_square);
        ddp__mix(poly, c, gram, b, square);
        memset(next, 0, whole * sizeof *next);
        ddp__mix(next, 0, x, a, whole);
        ddp__panels_run(pool, &to_next);
        swap = x;
        x = next;
        next = swap;
    }
    return x;
}

/* ---- update rule: hyper = momentum, weight decay, matrix_lr / lr, and for all other parameters beta1,
 * beta2, eps ---- */

static void ddp__muon_matrix(const ddp_optimizer *self, const ddp_update *u)
{
    const ddp__muon_desk *desk = (const ddp__muon_desk *)u->desk;
    const float momentum = self->hyper[0], gain = 1 - momentum;
    const double rate = ddp__product((double)u->lr, (double)self->hyper[2]);
    const long rows = (long)u->rows, columns = (long)u->columns, m = rows < columns ? rows : columns;
    const long n = rows < columns ? columns : rows;
    float *x = desk->at, *result = x + u->count;
    double norm;

    ddp__mix(u->state, momentum, u->grads, gain, u->count);
    memcpy(x, u->grads, u->count * sizeof *x);
    ddp__mix(x, gain, u->state, momentum, u->count); /* Nesterov momentum */
    norm = sqrt(ddp__sum_squares(x, u->count));
    ddp__scale(x, u->count, (float)(1 / (norm > 1e-7 ? norm : 1e-7)));
    if (rows > columns) {
        memcpy(result, x, u->count * sizeof *x);
        ddp__transpose(x, result, rows, columns);
    }
    result = ddp__newton_schulz(desk->pool, x, m, n);
    if (rows > columns) {
        x = result == desk->at ? desk->at + u->count : desk->at;
        ddp__transpose(x, result, m, n);
        result = x;
    }
    ddp__mix(u->params, (float)(1 - ddp__product(rate, (double)self->hyper[1])), result,
             (float)(-ddp__product(rate, sqrt(rows > columns ? (double)rows / (double)columns : 1))),
             u->count);
}

static void ddp__muon_update(const ddp_optimizer *self, const ddp_update *u)
{
    const float *h = self->hyper;
    const ddp_optimizer rest = ddp_adamw(self->lr, h[3], h[4], h[5], h[1]);

    if (u->rows)
        ddp__muon_matrix(self, u);
    else
        rest.update(&rest, u);
}

int ddp__is_muon(const ddp_optimizer *o) { return o->update == ddp__muon_update; }

ddp_optimizer ddp_muon(float lr, float matrix_lr, float momentum, float weight_decay)
{
    const float ratio = lr > 0 ? matrix_lr / lr : 0;
    const ddp_optimizer o = {
        "muon", 2, ddp__muon_update, lr, {momentum, weight_decay, ratio, 0.9f, 0.95f, 1e-8f}, NULL, 1};

    return o;
}
