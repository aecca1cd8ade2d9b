/* The two matrix products behind a convolution, in float. One operand is an image batch seen
 * through a sliding window; the matrix of all windows (im2col) never exists: what a block of the
 * product needs of it is packed straight from the images. */
#ifndef DDP_OPS_CONV_PRODUCT_H
#define DDP_OPS_CONV_PRODUCT_H

#include "graph/op.h"

/* Images through a window of kh x kw taps that stops at rows x cols positions of each image. Tap
 * (a, b) at position (r, c) reads element (top + r step + a, left + c step + b) of a plane of
 * h x w, or 0 where there is none. Plane p of image i begins at x + i*image + p*h*w. */
typedef struct ddp__conv_view {
    const float *x;
    long         images, image, planes;
    long         h, w, rows, cols, step, top, left, kh, kw;
} ddp__conv_view;

/* With W a matrix of m rows whose columns are (plane, a, b), for every group g:
 *   over images: y(i, position) = or += sum over columns of W(i, column) x(column, position)
 *   over weights: W(i, column) += sum over positions of y(i, position) x(column, position)
 * Element (i, p, a, b) of W is w[i*w_row + p*w_plane + a*w_kh + b*w_kw]; over weights the columns
 * are contiguous. Element (image, i, r, c) of y is
 * y[image*y_image + i*y_plane + r*y_row + c*y_col]; over weights a plane of y is contiguous. Group g begins at x + g*planes*h*w, w + g*w_group and
 * y + g*m*y_plane. Every sum runs in one fixed order whatever the blocks, so results depend on
 * neither threads nor position. About 420 KiB of stack. */
typedef struct ddp__conv_product {
    ddp__conv_view view;
    long           groups, m;
    float         *w;
    long           w_group, w_row, w_plane, w_kh, w_kw;
    float         *y;
    long           y_image, y_plane, y_row, y_col;
    int            add; /* over images */
} ddp__conv_product;

/* Most taps of a side: then the part of an image behind any one position fits the stack. */
enum { DDP__CONV_KERNEL = 64 };

#ifdef __cplusplus
extern "C" {
#endif

DDP_LIB void ddp__conv_over_images(const ddp_op_call *call, const ddp__conv_product *g);
DDP_LIB void ddp__conv_over_weights(const ddp_op_call *call, const ddp__conv_product *g);

#ifdef __cplusplus
}
#endif

#endif /* DDP_OPS_CONV_PRODUCT_H */
