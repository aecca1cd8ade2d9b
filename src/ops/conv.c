/* Convolution of images with square kernels, in groups: y(b, o, r, c) = bias(o) + sum over p, h, w
 *     of weight(o, p, h, w) x(b, p, r stride + h - padding, c stride + w - padding)
 * where p runs over the input channels of o's group. As in other frameworks, this is a cross-correlation. */
#include "ops/ops.h"

/* Arguments: channels, kernel, stride, padding, groups, bias (1 or 0). Weight and bias start uniform in
 * +-1 / sqrt(values read per output), PyTorch's default. */
static ddp_status ddp__conv2d_shape(ddp_op_spec *s, ddp_error *err)
{
    long channels, groups, depth, kernel;
    double reads, bound;

    DDP__TRY(ddp__image_input(s, "conv2d", err));
    DDP__TRY(ddp__op_count(s, "conv2d", 0, "the number of channels", &channels, err));
    DDP__TRY(ddp__op_count(s, "conv2d", 4, "the number of groups", &groups, err));
    if (s->in[0].dim[1] % groups || channels % groups)
        return ddp__fail(err, DDP_ARG,
                         "conv2d: groups must divide the channels: %ld groups for "
                         "%ld channels in and %ld out",
                         groups, s->in[0].dim[1], channels);
    if (s->arg[5] != 0 && s->arg[5] != 1)
        return ddp__fail(err, DDP_ARG, "conv2d: the bias must be 1 (with) or 0 (without), got %g", s->arg[5]);
    DDP__TRY(ddp__image_window(s, "conv2d", 1, channels, err));
    kernel = (long)s->arg[1];
    if (kernel > DDP__CONV_KERNEL)
        return ddp__fail(err, DDP_ARG, "conv2d: the kernel may be at most %d, got %ld", (int)DDP__CONV_KERNEL,
                         kernel);
    depth = s->in[0].dim[1] / groups;
    reads = (double)depth * (double)kernel * (double)kernel;
    bound = 1 / sqrt(reads);
    ddp__op_param(s, "weight", channels, depth, DDP_INIT_UNIFORM, bound);
    s->param[0].shape.dims = 4;
    s->param[0].shape.dim[2] = s->param[0].shape.dim[3] = kernel;
    s->param[0].matrix = 1;
    if (s->arg[5] != 0) ddp__op_param(s, "bias", channels, 0, DDP_INIT_UNIFORM, bound);
    s->flops = 2 * ddp__image_count(&s->out) * reads;
    s->out_unread = 1;
    return DDP_OK;
}

/* ---- depthwise convolution in float: every group has one input plane. A matrix product would have no
 * data to reuse, so planes are multiplied tap by tap ---- */

enum {
    DDP__DEPTHWISE_TAPS = 49,
    DDP__DEPTHWISE_SLAB = 32768 /* floats */
};

typedef struct ddp__depthwise_room {
    float slab[DDP__DEPTHWISE_SLAB + DDP__DEPTHWISE_TAPS], flat[DDP__DEPTHWISE_SLAB];
} ddp__depthwise_room;
DDP__ROOM_FITS(ddp__depthwise_room);

/* A slab is a zero-padded plane of x, or some rows of it. Its rows and columns are sorted into phases by
 * their index modulo the step. An output row is as long as a row of a phase, so all outputs of a block
 * need one contiguous line of the slab per tap. The values between the rows are discarded. */
typedef struct ddp__depthwise {
    const ddp__conv_product *g;
    const ddp__kernels *kn;
    float *dw, *dx;
    int add;
    long rows;  /* output rows of a block */
    long kinds; /* index remainders that some tap reads */
    long deep, pitch, phase;
    long at[DDP__DEPTHWISE_TAPS]; /* offset of each tap in the slab */
} ddp__depthwise;

/* Plans a depthwise convolution. Returns 1 if the functions below can compute the product (as set up by
 * forward), or 0 if it has only one group, several planes, or more than two outputs per group, or if its
 * kernel or rows are too large. */
static int ddp__depthwise_plan(ddp__depthwise *d, const ddp_op_call *call, const ddp__conv_product *g)
{
    const ddp__conv_view *v = &g->view;
    long t, h, w;

    if (v->planes != 1 || g->groups < 2 || g->m > 2) return 0;
    if (v->kh * v->kw > DDP__DEPTHWISE_TAPS) return 0;
    memset(d, 0, sizeof *d);
    d->g = g;
    d->kn = ddp__kernels_of(call);
    d->kinds = ddp__min_long(v->step, v->kh);
    d->deep = (v->kh - 1) / v->step;
    d->pitch = v->cols + (v->kw - 1) / v->step;
    d->rows = ddp__min_long(v->rows, DDP__DEPTHWISE_SLAB / (d->kinds * d->kinds * d->pitch) - d->deep);
    d->phase = (d->rows + d->deep) * d->pitch;
    for (t = 0; t < v->kh * v->kw; t++) {
        h = t / v->kw;
        w = t % v->kw;
        d->at[t] = (h % v->step * d->kinds + w % v->step) * d->phase + h / v->step * d->pitch + w / v->step;
    }
    return d->rows > 0;
}

/* Zeroes the slab, including the elements beyond the last phase, which are read and discarded. */
static void ddp__depthwise_clear(const ddp__depthwise *d, float *slab)
{
    memset(slab, 0, (size_t)(d->kinds * d->kinds * d->phase + d->deep) * sizeof *slab);
}

/* Fills the slab for n output rows from r0 on from x, or (back) adds the slab to dx. */
static void ddp__depthwise_slab(const ddp__depthwise *d, float *slab, const float *x, float *dx, long r0,
                                long n)
{
    const ddp__conv_view *v = &d->g->view;

    for (long p = 0; p < d->kinds * d->kinds; p++) {
        const long left = v->left + p % d->kinds, all = d->pitch;
        const long lo = ddp__min_long(all, left < 0 ? (v->step - 1 - left) / v->step : 0);
        const long fit = left < v->w ? (v->w - left + v->step - 1) / v->step : 0;
        const long hi = fit < lo ? lo : ddp__min_long(all, fit);
        for (long i = 0; i < n + d->deep; i++) {
            const long y = v->top + (r0 + i) * v->step + p / d->kinds;
            const int inside = y >= 0 && y < v->h;
            float *line = slab + p * d->phase + i * d->pitch;
            const long at = y * v->w + left + lo * v->step;
            if (dx && v->step == 1) {
                if (inside) d->kn->affine(dx + at, line + lo, NULL, hi - lo, 1, 0, 0, 1);
            } else if (dx) {
                for (long j = 0; inside && j < hi - lo; j++) dx[at + j * v->step] += line[lo + j];
            } else {
                memset(line, 0, (size_t)all * sizeof *line);
                if (inside && v->step == 1)
                    memcpy(line + lo, x + at, (size_t)(hi - lo) * sizeof *line);
                else
                    for (long j = 0; inside && j < hi - lo; j++) line[lo + j] = x[at + j * v->step];
            }
        }
    }
}

/* y = or += the convolution. Work items are (image, group). */
static void ddp__depthwise_planes(void *user, void *room, long first, long last)
{
    const ddp__depthwise *d = (const ddp__depthwise *)user;
    const ddp__conv_product *g = d->g;
    const ddp__conv_view *v = &g->view;
    const long taps = v->kh * v->kw;
    float *slab = ((ddp__depthwise_room *)room)->slab, *flat = ((ddp__depthwise_room *)room)->flat;
    long item, r0, o, t, r;

    ddp__depthwise_clear(d, slab);
    for (item = first; item < last; item++) {
        const long image = item / g->groups, group = item % g->groups;
        const float *x = v->x + image * v->image + group * v->h * v->w;
        for (r0 = 0; r0 < v->rows; r0 += d->rows) {
            const long n = ddp__min_long(d->rows, v->rows - r0);
            ddp__depthwise_slab(d, slab, x, NULL, r0, n);
            for (o = 0; o < g->m; o++) {
                const float *w = g->w + group * g->w_group + o * g->w_row;
                float *y = g->y + image * g->y_image + (group * g->m + o) * g->y_plane;
                for (t = 0; t + 1 < taps; t += 2) /* two taps per pass */
                    d->kn->affine(flat, slab + d->at[t], slab + d->at[t + 1], n * d->pitch, w[t], w[t + 1], 0,
                                  t > 0);
                if (t < taps) d->kn->affine(flat, slab + d->at[t], NULL, n * d->pitch, w[t], 0, 0, t > 0);
                for (r = 0; r < n; r++)
                    d->kn->affine(y + (r0 + r) * v->cols, flat + r * d->pitch, NULL, v->cols, 1, 0, 0,
                                  g->add);
            }
        }
    }
}

/* Gradients, with y the gradient of the output: accumulates the gradient of the weights, and sets or
 * accumulates the gradient of the input. Work items are groups: all images add to the gradient of a
 * group's weights, in order. */
static void ddp__depthwise_groups(void *user, void *room, long first, long last)
{
    const ddp__depthwise *d = (const ddp__depthwise *)user;
    const ddp__conv_product *g = d->g;
    const ddp__conv_view *v = &g->view;
    const long taps = v->kh * v->kw;
    float *slab = ((ddp__depthwise_room *)room)->slab, *flat = ((ddp__depthwise_room *)room)->flat;
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
            const long n = ddp__min_long(d->rows, v->rows - r0), from = group * g->w_group;
            for (o = 0; o < g->m; o++) {
                const float *w = g->w + from + o * g->w_row;
                const float *dy = g->y + image * g->y_image + (group * g->m + o) * g->y_plane;
                memset(flat, 0, (size_t)(n * d->pitch) * sizeof *flat);
                for (r = 0; r < n; r++)
                    memcpy(flat + r * d->pitch, dy + (r0 + r) * v->cols, (size_t)v->cols * sizeof *flat);
                if (d->dw) {
                    ddp__depthwise_slab(d, slab, x, NULL, r0, n);
                    for (t = 0; t < taps; t++)
                        d->dw[from + o * g->w_row + t] += d->kn->dot(flat, slab + d->at[t], n * d->pitch);
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

/* ---- general convolution in float, by matrix products ---- */

void ddp__conv_product_of(const ddp_op_spec *s, ddp__conv_product *g)
{
    const long *in = s->in[0].dim, *out = s->out.dim;
    ddp__conv_view *v = &g->view;

    memset(g, 0, sizeof *g);
    g->groups = (long)s->arg[4];
    g->m = out[1] / g->groups;
    v->images = in[0];
    v->image = in[1] * in[2] * in[3];
    v->planes = in[1] / g->groups;
    v->h = in[2];
    v->w = in[3];
    v->rows = out[2];
    v->cols = out[3];
    v->kh = v->kw = (long)s->arg[1];
    v->step = (long)s->arg[2];
    v->top = v->left = -(long)s->arg[3];
    g->w_kw = 1;
    g->w_kh = v->kw;
    g->w_plane = v->kh * v->kw;
    g->w_row = v->planes * g->w_plane;
    g->w_group = g->m * g->w_row;
    g->y_col = 1;
    g->y_row = v->cols;
    g->y_plane = v->rows * v->cols;
    g->y_image = out[1] * g->y_plane;
}

void ddp__conv_flat(ddp__conv_product *g)
{
    ddp__conv_view *v = &g->view;

    if (v->kh != 1 || v->kw != 1 || v->step != 1 || v->top || v->left || g->y_col != 1 ||
        v->h * v->w > INT_MAX)
        return;
    v->w = v->cols = v->h * v->w;
    v->h = v->rows = 1;
    g->y_row = v->cols;
}

/* Gradient of the image along one side. Elements first, first + stride, ... are positions of a window
 * over the gradient of the output, with step 1. Tap h of the kernel applies to them if first + padding -
 * h is a multiple of the stride: every stride-th tap, in reverse order. Fields: start of the window,
 * number of taps, and the lowest such tap of the kernel. */
typedef struct ddp__conv_phase {
    long begin, taps, first;
} ddp__conv_phase;

static ddp__conv_phase ddp__conv_phase_of(long kernel, long stride, long padding, long first)
{
    const long rest = (first + padding) % stride, taps = rest < kernel ? (kernel - rest - 1) / stride + 1 : 0;
    const long tap = rest + stride * (taps - 1);
    const ddp__conv_phase p = {(first + padding - tap) / stride, taps, tap};

    return p;
}

int ddp__conv_input_phase(const ddp__conv_product *forward, long r0, long c0, ddp__conv_product *g, long *w,
                          long *y)
{
    const ddp__conv_view *v = &forward->view;
    const ddp__conv_phase a = ddp__conv_phase_of(v->kh, v->step, -v->top, r0);
    const ddp__conv_phase b = ddp__conv_phase_of(v->kw, v->step, -v->left, c0);

    *g = *forward;
    g->view.image = forward->y_image;
    g->view.planes = forward->m;
    g->view.h = v->rows;
    g->view.w = v->cols;
    g->view.rows = (v->h - r0 - 1) / v->step + 1;
    g->view.cols = (v->w - c0 - 1) / v->step + 1;
    g->view.step = 1;
    g->view.top = a.begin;
    g->view.left = b.begin;
    g->view.kh = a.taps;
    g->view.kw = b.taps;
    g->m = v->planes;
    g->w_row = forward->w_plane;
    g->w_plane = forward->w_row;
    g->w_kh = -v->step * forward->w_kh;
    g->w_kw = -v->step;
    g->y_plane = v->h * v->w;
    g->y_image = v->image;
    g->y_row = v->step * v->w;
    g->y_col = v->step;
    *w = a.first * forward->w_kh + b.first;
    *y = r0 * v->w + c0;
    ddp__conv_flat(g);
    return a.taps && b.taps;
}

static void ddp__conv_bias_planes(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[2] * s->dim[3];

    for (long p = first; p < last; p++) {
        const float bias = ((const float *)call->param[1])[p % s->dim[1]];
        float *y = (float *)call->out + p * n;
        for (long i = 0; i < n; i++) y[i] = bias;
    }
}

static void ddp__conv_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    ddp__conv_product g;
    ddp__depthwise d;

    ddp__conv_product_of(call->spec, &g);
    ddp__conv_flat(&g);
    g.view.x = (const float *)call->in[0];
    g.w = (float *)(void *)call->param[0];
    g.y = (float *)call->out;
    if (call->param[1]) {
        ddp_op_parallel(call, s->dim[0] * s->dim[1], DDP__OP_GRAIN / g.y_plane + 1, ddp__conv_bias_planes,
                        (void *)call);
        g.add = 1;
    }
    if (ddp__depthwise_plan(&d, call, &g))
        ddp__op_rooms(call, g.view.images * g.groups, DDP__OP_GRAIN / d.phase + 1, ddp__depthwise_planes, &d);
    else if (ddp__winograd_fits(&g))
        ddp__winograd_over_images(call, &g);
    else
        ddp__conv_over_images(call, &g);
}

static void ddp__conv_bias_grad(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp_shape *s = &call->spec->out;

    for (long c = first; c < last; c++) {
        const float *dy = (const float *)call->grad_out + c * s->dim[2] * s->dim[3];
        double sum[2];
        ddp__channel_sums(call, s, dy, dy, 0, 0, sum);
        ((float *)call->grad_param[1])[c] += (float)sum[0];
    }
}

static void ddp__conv_input_grad(const ddp_op_call *call, const ddp__conv_product *forward, long r0, long c0)
{
    const ddp__conv_view *v = &forward->view;
    ddp__conv_product g;
    long w_at, y_at, p, r, c;
    const int seen = ddp__conv_input_phase(forward, r0, c0, &g, &w_at, &y_at);

    g.y = (float *)call->grad_in[0] + y_at;
    if (!seen) {
        for (p = 0; !call->add_in[0] && p < v->images * g.groups * v->planes; p++)
            for (r = 0; r < g.view.rows; r++)
                for (c = 0; c < g.view.cols; c++) g.y[(p * v->h + r * v->step) * v->w + c * v->step] = 0;
        return;
    }
    g.view.x = (const float *)call->grad_out;
    g.w = (float *)(void *)call->param[0];
    g.w += w_at;
    g.add = call->add_in[0];
    if (ddp__winograd_fits(&g))
        ddp__winograd_over_images(call, &g);
    else
        ddp__conv_over_images(call, &g);
}

static void ddp__conv_backward(const ddp_op_call *call)
{
    ddp__conv_product forward, g;
    ddp__depthwise d;

    ddp__conv_product_of(call->spec, &forward);
    g = forward;
    ddp__conv_flat(&g);
    g.view.x = (const float *)call->in[0];
    g.y = (float *)(void *)call->grad_out;
    if (call->grad_param[1])
        ddp_op_parallel(call, call->spec->out.dim[1], 1, ddp__conv_bias_grad, (void *)call);
    if (ddp__depthwise_plan(&d, call, &g)) {
        g.w = (float *)(void *)call->param[0];
        d.dw = (float *)call->grad_param[0];
        d.dx = (float *)call->grad_in[0];
        d.add = call->add_in[0];
        if (d.dw || d.dx) ddp__op_rooms(call, g.groups, 1, ddp__depthwise_groups, &d);
        return;
    }
    g.w = (float *)call->grad_param[0];
    if (g.w && ddp__winograd_fits(&g))
        ddp__winograd_over_weights(call, &g);
    else if (g.w)
        ddp__conv_over_weights(call, &g);
    for (long r = 0; call->grad_in[0] && r < forward.view.step && r < forward.view.h; r++)
        for (long c = 0; c < forward.view.step && c < forward.view.w; c++)
            ddp__conv_input_grad(call, &forward, r, c);
}

DDP__OPS(ddp__conv_ops, {"conv2d", ddp__conv2d_shape, ddp__conv_forward, ddp__conv_backward})
