#include "base/platform.h"
#include "ops/conv_depthwise.h"
#include "ops/kernels.h"
#include "ops/ops.h"

enum {
    DDP__DEPTHWISE_TAPS = 49,
    DDP__DEPTHWISE_SLAB = 32768 /* floats */
};

/* A slab is a plane of x, or some rows of it, with its zeros around, its rows and columns sorted
 * by their remainders by the step into phases. An output row is as long as a row of a phase, so
 * that all outputs of a block in one line meet a tap in one line of the slab; what lies between
 * the rows is thrown away. */
typedef struct ddp__depthwise {
    const ddp__conv_product *g;
    const ddp__kernels      *kn;
    float *dw, *dx;
    int    add;
    long   rows;  /* of outputs in a block */
    long   kinds; /* remainders that some tap meets */
    long   deep, pitch, phase;
    long   at[DDP__DEPTHWISE_TAPS]; /* of each tap in the slab */
} ddp__depthwise;

static long ddp__depthwise_min(long a, long b) { return a < b ? a : b; }

static int ddp__depthwise_plan(ddp__depthwise *d, const ddp__conv_product *g)
{
    const ddp__conv_view *v = &g->view;
    long t, h, w;

    if (v->planes != 1 || g->groups < 2 || g->m > 2) return 0;
    if (v->kh * v->kw > DDP__DEPTHWISE_TAPS) return 0;
    memset(d, 0, sizeof *d);
    d->g = g;
    d->kn = ddp__kernels_best();
    d->kinds = ddp__depthwise_min(v->step, v->kh);
    d->deep = (v->kh - 1) / v->step;
    d->pitch = v->cols + (v->kw - 1) / v->step;
    d->rows = ddp__depthwise_min(v->rows, DDP__DEPTHWISE_SLAB / (d->kinds * d->kinds * d->pitch) -
                                              d->deep);
    d->phase = (d->rows + d->deep) * d->pitch;
    for (t = 0; t < v->kh * v->kw; t++) {
        h = t / v->kw;
        w = t % v->kw;
        d->at[t] = (h % v->step * d->kinds + w % v->step) * d->phase + h / v->step * d->pitch +
                   w / v->step;
    }
    return d->rows > 0;
}

int ddp__depthwise_fits(const ddp__conv_product *g)
{
    ddp__depthwise d;

    return ddp__depthwise_plan(&d, g);
}

/* With what is read and thrown away beyond the last phase. */
static void ddp__depthwise_clear(const ddp__depthwise *d, float *slab)
{
    memset(slab, 0, (size_t)(d->kinds * d->kinds * d->phase + d->deep) * sizeof *slab);
}

/* Fills the slab behind n rows of outputs from r0 on out of x, or (back) adds it to dx. */
static void ddp__depthwise_slab(const ddp__depthwise *d, float *slab, const float *x, float *dx,
                                long r0, long n)
{
    const ddp__conv_view *v = &d->g->view;
    long p, i, j;

    for (p = 0; p < d->kinds * d->kinds; p++) {
        const long left = v->left + p % d->kinds, all = d->pitch;
        const long lo = ddp__depthwise_min(all, left < 0 ? (v->step - 1 - left) / v->step : 0);
        const long fit = left < v->w ? (v->w - left + v->step - 1) / v->step : 0;
        const long hi = fit < lo ? lo : ddp__depthwise_min(all, fit);
        for (i = 0; i < n + d->deep; i++) {
            const long y = v->top + (r0 + i) * v->step + p / d->kinds;
            const int inside = y >= 0 && y < v->h;
            float *line = slab + p * d->phase + i * d->pitch;
            const long at = y * v->w + left + lo * v->step;
            if (dx && v->step == 1) {
                if (inside) d->kn->affine(dx + at, line + lo, NULL, hi - lo, 1, 0, 0, 1);
            } else if (dx) {
                for (j = 0; inside && j < hi - lo; j++) dx[at + j * v->step] += line[lo + j];
            } else {
                memset(line, 0, (size_t)all * sizeof *line);
                if (inside && v->step == 1)
                    memcpy(line + lo, x + at, (size_t)(hi - lo) * sizeof *line);
                else
                    for (j = 0; inside && j < hi - lo; j++) line[lo + j] = x[at + j * v->step];
            }
        }
    }
}

/* Items are (image, group). */
static void ddp__depthwise_planes(void *user, long first, long last)
{
    const ddp__depthwise *d = (const ddp__depthwise *)user;
    const ddp__conv_product *g = d->g;
    const ddp__conv_view *v = &g->view;
    const long taps = v->kh * v->kw;
    float slab[DDP__DEPTHWISE_SLAB + DDP__DEPTHWISE_TAPS], flat[DDP__DEPTHWISE_SLAB];
    long item, r0, o, t, r;

    ddp__depthwise_clear(d, slab);
    for (item = first; item < last; item++) {
        const long image = item / g->groups, group = item % g->groups;
        const float *x = v->x + image * v->image + group * v->h * v->w;
        for (r0 = 0; r0 < v->rows; r0 += d->rows) {
            const long n = ddp__depthwise_min(d->rows, v->rows - r0);
            ddp__depthwise_slab(d, slab, x, NULL, r0, n);
            for (o = 0; o < g->m; o++) {
                const float *w = g->w + group * g->w_group + o * g->w_row;
                float *y = g->y + image * g->y_image + (group * g->m + o) * g->y_plane;
                for (t = 0; t + 1 < taps; t += 2) /* two taps in one pass */
                    d->kn->affine(flat, slab + d->at[t], slab + d->at[t + 1], n * d->pitch, w[t],
                                  w[t + 1], 0, t > 0);
                if (t < taps)
                    d->kn->affine(flat, slab + d->at[t], NULL, n * d->pitch, w[t], 0, 0, t > 0);
                for (r = 0; r < n; r++)
                    d->kn->affine(y + (r0 + r) * v->cols, flat + r * d->pitch, NULL, v->cols, 1, 0,
                                  0, g->add);
            }
        }
    }
}

/* Items are groups: all images add to the gradient of a group's weights, in order. */
static void ddp__depthwise_groups(void *user, long first, long last)
{
    const ddp__depthwise *d = (const ddp__depthwise *)user;
    const ddp__conv_product *g = d->g;
    const ddp__conv_view *v = &g->view;
    const long taps = v->kh * v->kw;
    float slab[DDP__DEPTHWISE_SLAB + DDP__DEPTHWISE_TAPS], flat[DDP__DEPTHWISE_SLAB];
    long item, image, r0, o, t, r;

    ddp__depthwise_clear(d, slab);
    for (item = first * v->images; item < last * v->images; item++) {
        const long group = item / v->images;
        const float *x;
        float *dx;
        image = item % v->images;
        x = v->x + image * v->image + group * v->h * v->w;
        dx = d->dx ? d->dx + image * v->image + group * v->h * v->w : NULL;
        if (dx && !d->add) memset(dx, 0, (size_t)(v->h * v->w) * sizeof *dx);
        for (r0 = 0; r0 < v->rows; r0 += d->rows) {
            const long n = ddp__depthwise_min(d->rows, v->rows - r0);
            const long from = group * g->w_group;
            for (o = 0; o < g->m; o++) {
                const float *w = g->w + from + o * g->w_row;
                const float *dy = g->y + image * g->y_image + (group * g->m + o) * g->y_plane;
                memset(flat, 0, (size_t)(n * d->pitch) * sizeof *flat);
                for (r = 0; r < n; r++)
                    memcpy(flat + r * d->pitch, dy + (r0 + r) * v->cols,
                           (size_t)v->cols * sizeof *flat);
                if (d->dw) {
                    ddp__depthwise_slab(d, slab, x, NULL, r0, n);
                    for (t = 0; t < taps; t++)
                        d->dw[from + o * g->w_row + t] +=
                            d->kn->dot(flat, slab + d->at[t], n * d->pitch);
                }
                if (!dx) continue;
                ddp__depthwise_clear(d, slab);
                for (t = 0; t < taps; t++)
                    d->kn->affine(slab + d->at[t], flat, NULL, n * d->pitch, w[t], 0, 0, 1);
                ddp__depthwise_slab(d, slab, NULL, dx, r0, n);
            }
        }
    }
}

void ddp__depthwise_forward(const ddp_op_call *call, const ddp__conv_product *g)
{
    ddp__depthwise d;

    (void)ddp__depthwise_plan(&d, g);
    ddp_op_parallel(call, g->view.images * g->groups, DDP__OP_GRAIN / d.phase + 1,
                    ddp__depthwise_planes, &d);
}

void ddp__depthwise_backward(const ddp_op_call *call, const ddp__conv_product *g, float *dw,
                             float *dx, int add)
{
    ddp__depthwise d;

    (void)ddp__depthwise_plan(&d, g);
    d.dw = dw;
    d.dx = dx;
    d.add = add;
    if (dw || dx) ddp_op_parallel(call, g->groups, 1, ddp__depthwise_groups, &d);
}
