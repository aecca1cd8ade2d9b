/* 1x1 convolutions that skip nothing: for each image a matrix product of the weights (channels out
 * x channels in) with its planes (channels in x pixels), which cuBLASLt does for all at once. */
#ifndef DDP_CUDA_CONV_POINT_CUH
#define DDP_CUDA_CONV_POINT_CUH

#include "cuda/blas.cuh"
#include "cuda/conv_product.cuh"
#include "cuda/launch.cuh"

enum {
    DDP__POINT_IMAGES = 32,     /* whose gradients of the weights are summed at a time */
    DDP__POINT_WEIGHTS = 1 << 20 /* at most, so that their room is at most 128 MiB */
};

/* 1: v, which has been made flat, is such a product, and rows allow 16 bytes at a time. The bias of
 * the library is one of columns, ours would be one of rows. */
static int ddp__conv_point_fits(const ddp__cuda_conv &v, int half)
{
    return v.groups == 1 && v.kh == 1 && v.kw == 1 && v.step == 1 && v.h == 1 && v.rows == 1 &&
           v.w == v.cols && !v.left && v.y_col == 1 && v.cols % (half ? 8 : 4) == 0 &&
           (long)v.m * v.planes <= DDP__POINT_WEIGHTS && !v.bias;
}

static size_t ddp__conv_point_scratch(const ddp__cuda_conv &v)
{
    return (size_t)DDP__POINT_IMAGES * (size_t)v.m * (size_t)v.planes * sizeof(float);
}

static ddp__cuda_product ddp__conv_point_product(const ddp__cuda *dev, const ddp__cuda_conv &v)
{
    ddp__cuda_product p;

    memset(&p, 0, sizeof p);
    p.half = p.half_out = dev->half;
    p.count = v.pixels / v.cols;
    return p;
}

/* y = weight x. turned: dx (v.y) of dy (v.x), by weights that lie the other way. */
static void ddp__conv_point_images(ddp__cuda *dev, const ddp__cuda_conv &v, const void *weight,
                                   int turned)
{
    ddp__cuda_product p = ddp__conv_point_product(dev, v);

    p.m = v.m;
    p.n = v.cols;
    p.k = v.planes;
    p.a = weight;
    p.a_row = turned ? v.m : v.planes;
    p.a_turned = turned;
    p.b = v.x;
    p.b_row = p.c_row = v.cols;
    p.b_step = v.image;
    p.c = v.y;
    p.c_step = v.y_image;
    p.add = v.add;
    (void)ddp__cuda_multiply(dev, &p);
}

/* grad += dy x^T, image by image. */
static void ddp__conv_point_weights(ddp__cuda *dev, const ddp__cuda_conv &v, float *grad)
{
    ddp__cuda_product p = ddp__conv_point_product(dev, v);
    const long images = p.count, n = (long)v.m * v.planes, size = dev->half ? 2 : 4;
    long first;

    p.m = v.m;
    p.n = v.planes;
    p.k = v.cols;
    p.a_row = p.b_row = v.cols;
    p.b_turned = 1;
    p.a_step = v.y_image;
    p.b_step = v.image;
    p.c = dev->scratch;
    p.c_row = v.planes;
    p.c_step = n;
    p.half_out = 0;
    for (first = 0; first < images; first += DDP__POINT_IMAGES) {
        p.count = images - first < DDP__POINT_IMAGES ? images - first : (long)DDP__POINT_IMAGES;
        p.a = (const unsigned char *)v.y + (size_t)(first * v.y_image * size);
        p.b = (const unsigned char *)v.x + (size_t)(first * v.image * size);
        (void)ddp__cuda_multiply(dev, &p);
        DDP__LAUNCH((ddp__k_conv_add_parts), (unsigned)ddp__blocks(n, 256), 256, 0, dev->stream,
                    grad, (const float *)dev->scratch, n, (int)p.count);
    }
}

#endif /* DDP_CUDA_CONV_POINT_CUH */
