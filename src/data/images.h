/* Labelled images: IDX (MNIST) and CIFAR files, dealt to ranks as batches of floats. */
#ifndef DDP_DATA_IMAGES_H
#define DDP_DATA_IMAGES_H

#include "base/status.h"

#define DDP_IMAGE_CHANNELS 3 /* most channels of an image */

/* A set of images in memory; never changed after loading, so any thread may read it. */
typedef struct ddp_images {
    long           count;
    long           channels, height, width;
    long           classes; /* labels are 0 .. classes - 1 */
    unsigned char *pixels;  /* [count x channels x height x width] */
    unsigned char *labels;  /* [count] */
    char          *name;    /* of its first file */
} ddp_images;

/* A part of a set. */
typedef struct ddp_image_range {
    const ddp_images *images; /* borrowed */
    long              first, count;
} ddp_image_range;

/* What makes floats of pixels: (pixel / 255 - mean) / deviation, for each channel. */
typedef struct ddp_image_norm {
    float mean[DDP_IMAGE_CHANNELS], deviation[DDP_IMAGE_CHANNELS];
} ddp_image_norm;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_images_open - the training (test 0) or test (test 1) images of a folder, which holds
 *   MNIST      train-images-idx3-ubyte, train-labels-idx1-ubyte; t10k-... for the test
 *   CIFAR-10   data_batch*.bin, in the order of their names; test_batch*.bin
 *   CIFAR-100  train.bin; test.bin (fine labels)
 * each also with .gz behind its name. NULL and *err on failure, which names the file, the place
 * and the value; freed by ddp_images_close.
 * ddp_images_idx - one pair of IDX files, of bytes: images (count, height, width), labels (count).
 * ddp_images_cifar - one file of any number of records: classes 10 or 100. */
DDP_API ddp_images *ddp_images_open(const char *folder, int test, ddp_error *err);
DDP_API ddp_images *ddp_images_idx(const char *images, const char *labels, ddp_error *err);
DDP_API ddp_images *ddp_images_cifar(const char *path, int classes, ddp_error *err);
DDP_API void        ddp_images_close(ddp_images *images);

/* ddp_images_idx_bytes, ddp_images_cifar_bytes - the same for files in memory; names are for
 * errors, bytes are copied. */
DDP_API ddp_images *ddp_images_idx_bytes(const char *image_name, const void *images, size_t n,
                                         const char *label_name, const void *labels, size_t m,
                                         ddp_error *err);
DDP_API ddp_images *ddp_images_cifar_bytes(const char *name, const void *bytes, size_t n,
                                           int classes, ddp_error *err);

/* ddp_images_split - the set as two ranges: the last held_out (0 <= held_out < 1) of it in *val,
 * the rest in *train. held_out 0: val->count is 0 and val may be NULL. Errors: a share outside
 * that range, or one that leaves a part empty. */
DDP_API ddp_status ddp_images_split(const ddp_images *images, double held_out,
                                    ddp_image_range *train, ddp_image_range *val, ddp_error *err);

/* ddp_images_norm - mean and deviation of each channel over a range, so that its floats have mean
 * 0 and deviation 1. Take those of the training images for all others too. */
DDP_API ddp_image_norm ddp_images_norm(const ddp_image_range *r);

/* ddp_images_get - image 0 <= i < r->count: inputs [channels x height x width], one label.
 * ddp_images_batch - what rank of world trains on in a step: inputs [batch x channels x height x
 * width] and labels [batch], dealt as ddp_tokens_batch deals windows: each image once per epoch
 * over all ranks, in an order that the seed gives anew for each epoch.
 * ddp_images_epoch - epochs (a fraction) used up before step starts.
 * They depend only on their arguments; no allocation; any thread. */
DDP_API void   ddp_images_get(const ddp_image_range *r, const ddp_image_norm *norm, long i,
                              float *inputs, int32_t *label);
DDP_API void   ddp_images_batch(const ddp_image_range *r, const ddp_image_norm *norm, uint64_t seed,
                                long step, int rank, int world, long batch, float *inputs,
                                int32_t *labels);
DDP_API double ddp_images_epoch(const ddp_image_range *r, long step, int world, long batch);

#ifdef __cplusplus
}
#endif

#endif /* DDP_DATA_IMAGES_H */
