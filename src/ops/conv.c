/* Convolution of images with square kernels, in groups:
 * y(b, o, r, c) = bias(o) +
 *     sum over p, h, w of weight(o, p, h, w) x(b, p, r stride + h - padding, c stride + w - padding)
 * with p over the channels of o's group (in the sense of every framework: a correlation). */
#include "base/platform.h"
#include "base/fail.h"
#include "ops/conv_depthwise.h"
#include "ops/conv_product.h"
#include "ops/kernels.h"
#include "ops/ops.h"

/* Arguments: channels, kernel, stride, padding, groups, bias (1 or 0). Weight and bias start
 * uniform within 1 / sqrt(values read per output), PyTorch's default. */
static ddp_status ddp__conv2d_shape(ddp_op_spec *s, ddp_error *err)
{
    long channels, groups, depth, kernel;
    double reads, bound;

    DDP__TRY(ddp__image_input(s, "conv2d", err));
    DDP__TRY(ddp__op_count(s, "conv2d", 0, "the number of channels", &channels, err));
    DDP__TRY(ddp__op_count(s, "conv2d", 4, "the number of groups", &groups, err));
    if (s->in[0].dim[1] % groups || channels % groups)
        return ddp__fail(err, DDP_ARG, "conv2d: groups must divide the channels: %ld groups for "
                         "%ld channels in and %ld out", groups, s->in[0].dim[1], channels);
    if (s->arg[5] != 0 && s->arg[5] != 1)
        return ddp__fail(err, DDP_ARG, "conv2d: the bias must be 1 (with) or 0 (without), got %g",
                         s->arg[5]);
    DDP__TRY(ddp__image_window(s, "conv2d", 1, channels, err));
    kernel = (long)s->arg[1];
    if (kernel > DDP__CONV_KERNEL)
        return ddp__fail(err, DDP_ARG, "conv2d: the kernel may be at most %d, got %ld",
                         (int)DDP__CONV_KERNEL, kernel);
    depth = s->in[0].dim[1] / groups;
    reads = (double)depth * (double)kernel * (double)kernel;
    bound = 1 / sqrt(reads);
    ddp__op_param(s, "weight", channels, depth, DDP_INIT_UNIFORM, bound);
    s->param[0].shape.dims = 4;
    s->param[0].shape.dim[2] = s->param[0].shape.dim[3] = kernel;
    if (s->arg[5] != 0) ddp__op_param(s, "bias", channels, 0, DDP_INIT_UNIFORM, bound);
    s->flops = 2 * ddp__image_count(&s->out) * reads;
    s->out_unread = 1;
    return DDP_OK;
}

typedef struct ddp__conv_size {
    long images, groups, in, out; /* channels of a group in and out */
    long h, w, rows, cols;
    long kernel, stride, padding;
} ddp__conv_size;

static ddp__conv_size ddp__conv_sizes(const ddp_op_spec *s)
{
    ddp__conv_size z;

    z.images = s->in[0].dim[0];
    z.groups = (long)s->arg[4];
    z.in = s->in[0].dim[1] / z.groups;
    z.out = s->out.dim[1] / z.groups;
    z.h = s->in[0].dim[2];
    z.w = s->in[0].dim[3];
    z.rows = s->out.dim[2];
    z.cols = s->out.dim[3];
    z.kernel = (long)s->arg[1];
    z.stride = (long)s->arg[2];
    z.padding = (long)s->arg[3];
    return z;
}

/* ---- reference: every pair of an output and a tap ---- */

/* What one tap reads and multiplies: elements of x, weight and y, or 0 where x has none. */
typedef void (*ddp__conv_term)(const ddp_op_call *call, long x, long weight, long y);

static void ddp__conv_terms(const ddp_op_call *call, ddp__conv_term term)
{
    const ddp__conv_size z = ddp__conv_sizes(call->spec);
    long b, o, r, c, p, h, w;

    for (b = 0; b < z.images; b++)
        for (o = 0; o < z.groups * z.out; o++)
            for (r = 0; r < z.rows; r++)
                for (c = 0; c < z.cols; c++)
                    for (p = 0; p < z.in; p++)
                        for (h = 0; h < z.kernel; h++)
                            for (w = 0; w < z.kernel; w++) {
                                const long i = r * z.stride + h - z.padding;
                                const long j = c * z.stride + w - z.padding;
                                const long plane = (b * z.groups + o / z.out) * z.in + p;
                                if (i < 0 || i >= z.h || j < 0 || j >= z.w) continue;
                                term(call, (plane * z.h + i) * z.w + j,
                                     ((o * z.in + p) * z.kernel + h) * z.kernel + w,
                                     ((b * z.groups * z.out + o) * z.rows + r) * z.cols + c);
                            }
}

static void ddp__conv_term_forward(const ddp_op_call *call, long x, long weight, long y)
{
    ((ddp__real *)call->out)[y] += ((const ddp__real *)call->param[0])[weight] *
                                   ((const ddp__real *)call->in[0])[x];
}

static void ddp__conv_term_backward(const ddp_op_call *call, long x, long weight, long y)
{
    const ddp__real dy = ((const ddp__real *)call->grad_out)[y];

    if (call->grad_in[0])
        ((ddp__real *)call->grad_in[0])[x] += dy * ((const ddp__real *)call->param[0])[weight];
    if (call->grad_param[0])
        ((ddp__real *)call->grad_param[0])[weight] += dy * ((const ddp__real *)call->in[0])[x];
}

static void ddp__conv_ref_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    const ddp__real *bias = (const ddp__real *)call->param[1];
    const long n = ddp_shape_count(s), plane = s->dim[2] * s->dim[3];
    long i;

    for (i = 0; i < n; i++)
        ((ddp__real *)call->out)[i] = bias ? bias[i / plane % s->dim[1]] : 0;
    ddp__conv_terms(call, ddp__conv_term_forward);
}

static void ddp__conv_ref_backward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    const long n = ddp_shape_count(s), plane = s->dim[2] * s->dim[3];
    ddp__real *dx = (ddp__real *)call->grad_in[0], *db = (ddp__real *)call->grad_param[1];
    long i;

    for (i = 0; dx && !call->add_in[0] && i < ddp_shape_count(&call->spec->in[0]); i++) dx[i] = 0;
    for (i = 0; db && i < n; i++)
        db[i / plane % s->dim[1]] += ((const ddp__real *)call->grad_out)[i];
    ddp__conv_terms(call, ddp__conv_term_backward);
}

/* ---- float ---- */

/* The product that forward is: x through the window, by weight, gives y. */
static void ddp__conv_product_fill(const ddp_op_call *call, ddp__conv_product *g)
{
    const ddp__conv_size z = ddp__conv_sizes(call->spec);

    memset(g, 0, sizeof *g);
    g->view.x = (const float *)call->in[0];
    g->view.images = z.images;
    g->view.image = z.groups * z.in * z.h * z.w;
    g->view.planes = z.in;
    g->view.h = z.h;
    g->view.w = z.w;
    g->view.rows = z.rows;
    g->view.cols = z.cols;
    g->view.step = z.stride;
    g->view.top = g->view.left = -z.padding;
    g->view.kh = g->view.kw = z.kernel;
    if (z.kernel == 1 && z.stride == 1 && z.padding == 0) { /* an image is one long row */
        g->view.w = g->view.cols = z.h * z.w;
        g->view.h = g->view.rows = 1;
    }
    g->groups = z.groups;
    g->m = z.out;
    g->w_kw = 1;
    g->w_kh = z.kernel;
    g->w_plane = z.kernel * z.kernel;
    g->w_row = z.in * g->w_plane;
    g->w_group = z.out * g->w_row;
    g->y_col = 1;
    g->y_row = g->view.cols;
    g->y_plane = z.rows * z.cols;
    g->y_image = z.groups * z.out * g->y_plane;
}

static void ddp__conv_bias_planes(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[2] * s->dim[3];
    long p, i;

    for (p = first; p < last; p++) {
        const float bias = ((const float *)call->param[1])[p % s->dim[1]];
        float *y = (float *)call->out + p * n;
        for (i = 0; i < n; i++) y[i] = bias;
    }
}

static void ddp__conv_forward(const ddp_op_call *call)
{
    const ddp_shape *s = &call->spec->out;
    ddp__conv_product g;

    ddp__conv_product_fill(call, &g);
    g.w = (float *)(void *)call->param[0];
    g.y = (float *)call->out;
    if (call->param[1]) {
        ddp_op_parallel(call, s->dim[0] * s->dim[1], DDP__OP_GRAIN / g.y_plane + 1,
                        ddp__conv_bias_planes, (void *)call);
        g.add = 1;
    }
    if (ddp__depthwise_fits(&g)) ddp__depthwise_forward(call, &g);
    else ddp__conv_over_images(call, &g);
}

static void ddp__conv_bias_grad(void *user, long first, long last)
{
    const ddp_op_call *call = (const ddp_op_call *)user;
    const ddp__kernels *kn = ddp__kernels_best();
    const ddp_shape *s = &call->spec->out;
    const long n = s->dim[2] * s->dim[3];
    long c, b;

    for (c = first; c < last; c++) {
        double sum = 0;
        for (b = 0; b < s->dim[0]; b++) {
            const float *dy = (const float *)call->grad_out + (b * s->dim[1] + c) * n;
            float part[2];
            kn->moments(dy, dy, n, 0, 0, part);
            sum += (double)part[0];
        }
        ((float *)call->grad_param[1])[c] += (float)sum;
    }
}

/* Along one side, elements first, first + s, ... of x are positions of a window over dy with step
 * 1: tap h meets them where first + pad - h is a multiple of s, so every s-th one, the last one
 * first. Sets where the window begins, its taps, and the tap of the kernel that comes first. */
static void ddp__conv_phase(const ddp__conv_size *z, long first, long *begin, long *taps, long *tap)
{
    const long rest = (first + z->padding) % z->stride;

    *taps = rest < z->kernel ? (z->kernel - rest - 1) / z->stride + 1 : 0;
    *tap = rest + z->stride * (*taps - 1);
    *begin = (first + z->padding - *tap) / z->stride;
}

/* dx at rows r0, r0 + s, ... and columns c0, c0 + s, ...: dy through a window, by the weights of
 * those taps with their two channel dimensions exchanged. */
static void ddp__conv_input_grad(const ddp_op_call *call, const ddp__conv_product *forward, long r0,
                                 long c0)
{
    const ddp__conv_size z = ddp__conv_sizes(call->spec);
    ddp__conv_product g = *forward;
    long h, w, b, r, c;

    ddp__conv_phase(&z, r0, &g.view.top, &g.view.kh, &h);
    ddp__conv_phase(&z, c0, &g.view.left, &g.view.kw, &w);
    g.view.rows = (z.h - r0 - 1) / z.stride + 1;
    g.view.cols = (z.w - c0 - 1) / z.stride + 1;
    g.y = (float *)call->grad_in[0] + r0 * z.w + c0;
    if (g.view.kh == 0 || g.view.kw == 0) { /* no output saw these */
        for (b = 0; !call->add_in[0] && b < z.images * z.groups * z.in; b++)
            for (r = 0; r < g.view.rows; r++)
                for (c = 0; c < g.view.cols; c++)
                    g.y[(b * z.h + r * z.stride) * z.w + c * z.stride] = 0;
        return;
    }
    g.view.x = (const float *)call->grad_out;
    g.view.image = forward->y_image;
    g.view.planes = z.out;
    g.view.h = z.rows;
    g.view.w = z.cols;
    g.view.step = 1;
    g.m = z.in;
    g.w = (float *)(void *)call->param[0];
    g.w += h * z.kernel + w;
    g.w_row = forward->w_plane;
    g.w_plane = forward->w_row;
    g.w_kh = -z.stride * z.kernel;
    g.w_kw = -z.stride;
    g.y_plane = z.h * z.w;
    g.y_image = forward->view.image;
    g.y_row = z.stride * z.w;
    g.y_col = z.stride;
    g.add = call->add_in[0];
    if (z.kernel == 1 && z.stride == 1 && z.padding == 0) { /* as in forward */
        g.view.h = g.view.rows = 1;
        g.view.w = g.view.cols = forward->view.cols;
        g.y_row = g.view.cols;
    }
    ddp__conv_over_images(call, &g);
}

static void ddp__conv_backward(const ddp_op_call *call)
{
    const ddp__conv_size z = ddp__conv_sizes(call->spec);
    ddp__conv_product g;
    long r, c;

    ddp__conv_product_fill(call, &g);
    if (call->grad_param[1])
        ddp_op_parallel(call, call->spec->out.dim[1], 1, ddp__conv_bias_grad, (void *)call);
    if (ddp__depthwise_fits(&g)) {
        g.w = (float *)(void *)call->param[0];
        g.y = (float *)(void *)call->grad_out;
        ddp__depthwise_backward(call, &g, (float *)call->grad_param[0], (float *)call->grad_in[0],
                                call->add_in[0]);
        return;
    }
    if (call->grad_param[0]) {
        g.w = (float *)call->grad_param[0];
        g.y = (float *)(void *)call->grad_out;
        ddp__conv_over_weights(call, &g);
    }
    for (r = 0; call->grad_in[0] && r < z.stride && r < z.h; r++)
        for (c = 0; c < z.stride && c < z.w; c++) ddp__conv_input_grad(call, &g, r, c);
}

int ddp__conv_ops(const ddp_op **list)
{
    static const ddp_op ops[] = {
        {"conv2d", ddp__conv2d_shape, ddp__conv_forward, ddp__conv_backward, ddp__conv_ref_forward,
         ddp__conv_ref_backward},
    };

    *list = ops;
    return (int)(sizeof ops / sizeof ops[0]);
}
