/* Training data, dealt to ranks in batches: token streams (files of tokens or bytes, cut into windows),
 * and labelled images from IDX (MNIST) and CIFAR files. */
#pragma once

#include "base/status.h"

/* ---- token streams ---- */

/* A stream of tokens. It is immutable after loading, so any thread may read it. */
typedef struct ddp_tokens ddp_tokens;

/* A part of a stream, cut into windows of seq tokens. Window w predicts tokens first + w seq + 1 .. first
 * + (w + 1) seq from the preceding ones. Tokens at the end that do not fill a window are not used. */
typedef struct ddp_token_range {
    const ddp_tokens *tokens; /* borrowed */
    long first, count;        /* tokens */
    long seq;                 /* window length, at least 1 */
} ddp_token_range;

/* ddp_tokens_open - maps a file of tokens or text into memory, so that all processes of a machine share its
 * pages. Formats:
 *
 *   llm.c .bin    the header says whether tokens have 16 or 32 bits
 *   *.bin, *.u16  16-bit tokens without a header, as written by nanoGPT
 *   *.u32         32-bit tokens without a header
 *   other         bytes. The distinct values are numbered in ascending order.
 *
 * A name ending in .gz is decompressed first, into memory of the process. The file must not shrink before
 * ddp_tokens_close, which the caller calls. Returns NULL on failure. Errors: DDP_IO if the file cannot be
 * read; DDP_FORMAT if it is shorter than two tokens, if its header contradicts the size, if the size is not a
 * whole number of tokens, or if it has another type (compressed, archive, array, table, image, weights,
 * UTF-16; a .bin of text or of 32-bit tokens); DDP_ARG for NULL; DDP_MEMORY. */
DDP_API ddp_tokens *ddp_tokens_open(const char *path, ddp_error *err);

/* ddp_tokens_from_bytes - makes a stream of n bytes in memory, which are copied. The ending of name selects
 * the format: .bin or .u16, .u32, else text. name appears in errors. Returns NULL on failure. The caller
 * frees the stream with ddp_tokens_close. Errors: DDP_FORMAT for bytes that do not fit the format, DDP_ARG
 * for NULL, or DDP_MEMORY. */
DDP_API ddp_tokens *ddp_tokens_from_bytes(const char *name, const void *bytes, size_t n, ddp_error *err);

/* ddp_tokens_close - frees a stream and unmaps its file. NULL is allowed. No range of it may be used
 * afterwards. */
DDP_API void ddp_tokens_close(ddp_tokens *t);

/* ddp_tokens_kind - returns the format of the file: "bytes", "16-bit tokens", "32-bit tokens", "llm.c file of
 * 16-bit tokens" or "llm.c file of 32-bit tokens". A constant string. Safe from any thread. */
DDP_API const char *ddp_tokens_kind(const ddp_tokens *t);

/* ddp_tokens_count - returns the number of tokens in the stream. Safe from any thread. */
DDP_API long ddp_tokens_count(const ddp_tokens *t);

/* ddp_tokens_vocabulary - returns the largest token plus one. Safe from any thread. */
DDP_API long ddp_tokens_vocabulary(const ddp_tokens *t);

/* ddp_tokens_at - returns token i, 0 <= i < count. Safe from any thread. */
DDP_API int32_t ddp_tokens_at(const ddp_tokens *t, long i);

/* ddp_tokens_byte - returns the byte that a token represents, to print samples, or -1 if the file contains
 * token numbers or the stream has no such token. Safe from any thread. */
DDP_API int ddp_tokens_byte(const ddp_tokens *t, long token);

/* ddp_tokens_check - checks that all tokens are below vocabulary. Safe from any thread. Errors: DDP_FORMAT,
 * which names the first such token and its position. */
DDP_API ddp_status ddp_tokens_check(const ddp_tokens *t, long vocabulary, ddp_error *err);

/* ddp_tokens_split - splits the stream into two ranges: *val gets the last share held_out (0 <= held_out <
 * 1), *train the rest. With held_out 0, val->count is 0 and val may be NULL. seq is the window length of
 * both. The ranges borrow the stream. Safe from any thread. Errors: DDP_ARG for held_out or seq, and if a
 * range that must not be empty is shorter than one window (seq + 1 tokens). */
DDP_API ddp_status ddp_tokens_split(const ddp_tokens *t, double held_out, long seq, ddp_token_range *train,
                                    ddp_token_range *val, ddp_error *err);

/* ddp_tokens_windows - returns the number of windows of a range, or 0 if it is too short. Safe from any
 * thread. */
DDP_API long ddp_tokens_windows(const ddp_token_range *r);

/* ddp_tokens_window - copies window w, 0 <= w < windows, to tokens [seq] and labels [seq]. Labels are the
 * tokens shifted by one. Safe from any thread. */
DDP_API void ddp_tokens_window(const ddp_token_range *r, long w, int32_t *tokens, int32_t *labels);

/* ddp_tokens_batch - the batch of a rank in a step: tokens and labels, each [batch x seq].
 *
 * All windows form a deck, which the seed shuffles again for each pass over the data. Step s takes the next
 * world x batch windows: rank 0 the first batch of them, rank 1 the second, and so on. Each window is
 * therefore used once per pass over all ranks, and another split into ranks and batch size gives the same
 * data for a step. A pass may end within a step. The deck is not stored: a keyed bijection (Feistel network
 * with cycle walking) computes a card in O(1). The result depends only on the arguments. Does not allocate.
 * Safe from any thread. */
DDP_API void ddp_tokens_batch(const ddp_token_range *r, uint64_t seed, long step, int rank, int world,
                              long batch, int32_t *tokens, int32_t *labels);

/* ddp_dealt - returns the index of the b-th sample (0 <= b < batch) of the batch of a rank in a step, among
 * `count` windows or images, as ddp_tokens_batch and ddp_images_batch choose it, or -1 if count is 0. Pure
 * and safe from any thread. */
DDP_API long ddp_dealt(uint64_t seed, long step, int rank, int world, long batch, long b, long count);

/* ---- images ---- */

#define DDP_IMAGE_CHANNELS 3 /* maximum number of channels of an image */

/* A set of images in memory. It is immutable after loading, so any thread may read it. */
typedef struct ddp_images {
    long count;                   /* number of images */
    long channels, height, width; /* shape of each image, in pixels */
    long classes;                 /* labels are 0 .. classes - 1 */
    unsigned char *pixels;        /* [count x channels x height x width] */
    unsigned char *labels;        /* [count] */
    char *name;                   /* name of the set's first file */
} ddp_images;

/* A part of a set of images. */
typedef struct ddp_image_range {
    const ddp_images *images; /* borrowed */
    long first, count;        /* index of the first image, and number of images */
} ddp_image_range;

/* Normalisation of pixels to floats: (pixel / 255 - mean) / deviation, for each channel. */
typedef struct ddp_image_norm {
    float mean[DDP_IMAGE_CHANNELS], deviation[DDP_IMAGE_CHANNELS]; /* of pixel / 255, per channel */
} ddp_image_norm;

/* ddp_images_open - loads the training (test 0) or test (test 1) images of a folder, which contains one of:
 *
 *   MNIST      train-images-idx3-ubyte, train-labels-idx1-ubyte; test: t10k-...
 *   CIFAR-10   data_batch*.bin, sorted by name; test: test_batch*.bin
 *   CIFAR-100  train.bin; test: test.bin (fine labels)
 *
 * Each file may also be compressed, with .gz appended to its name. Returns NULL on failure. The caller frees
 * the set with ddp_images_close. Errors: DDP_IO if the folder or a file cannot be read, or has none of these
 * files; DDP_FORMAT, which names the file, the position and the value; DDP_ARG for NULL or sizes out of
 * range; DDP_MEMORY. */
DDP_API ddp_images *ddp_images_open(const char *folder, int test, ddp_error *err);

/* ddp_images_idx - loads one pair of IDX files of bytes: images (count, height, width) and labels (count).
 * Returns NULL on failure. The caller frees the set with ddp_images_close. Errors: DDP_IO if a file cannot be
 * read; DDP_FORMAT, which names the file, the position and the value; DDP_ARG for NULL or sizes out of range;
 * DDP_MEMORY. */
DDP_API ddp_images *ddp_images_idx(const char *images, const char *labels, ddp_error *err);

/* ddp_images_cifar - loads one file with any number of CIFAR records. classes: 10 or 100. Returns NULL on
 * failure. The caller frees the set with ddp_images_close. Errors: DDP_IO if the file cannot be read;
 * DDP_FORMAT, which names the file, the position and the value; DDP_ARG for NULL or classes; DDP_MEMORY. */
DDP_API ddp_images *ddp_images_cifar(const char *path, int classes, ddp_error *err);

/* ddp_images_close - frees a set of images. NULL is allowed. No range of it may be used afterwards. */
DDP_API void ddp_images_close(ddp_images *images);

/* ddp_images_idx_bytes - makes a set from one pair of IDX files in memory, which are copied: n bytes of
 * images, m bytes of labels. Names appear in errors. Returns NULL on failure. The caller frees the set with
 * ddp_images_close. Errors: DDP_FORMAT, which names the file, the position and the value; DDP_ARG for NULL or
 * sizes out of range; DDP_MEMORY. */
DDP_API ddp_images *ddp_images_idx_bytes(const char *image_name, const void *images, size_t n,
                                         const char *label_name, const void *labels, size_t m,
                                         ddp_error *err);

/* ddp_images_cifar_bytes - makes a set from CIFAR records in memory, n bytes, which are copied. classes: 10
 * or 100. name appears in errors. Returns NULL on failure. The caller frees the set with ddp_images_close.
 * Errors: DDP_FORMAT, which names the position and the value; DDP_ARG for NULL or classes; DDP_MEMORY. */
DDP_API ddp_images *ddp_images_cifar_bytes(const char *name, const void *bytes, size_t n, int classes,
                                           ddp_error *err);

/* ddp_images_split - splits the set into two ranges: *val gets the last share held_out (0 <= held_out < 1),
 * *train the rest. With held_out 0, val->count is 0 and val may be NULL. The ranges borrow the set. Safe from
 * any thread. Errors: DDP_ARG if held_out is outside that range or leaves a part empty. */
DDP_API ddp_status ddp_images_split(const ddp_images *images, double held_out, ddp_image_range *train,
                                    ddp_image_range *val, ddp_error *err);

/* ddp_images_norm - computes the mean and standard deviation of each channel over a range, which normalise it
 * to mean 0 and deviation 1. Use the values of the training images for all other images, too. Safe from any
 * thread. */
DDP_API ddp_image_norm ddp_images_norm(const ddp_image_range *r);

/* ddp_images_get - copies image i, 0 <= i < r->count, as normalised inputs [channels x height x width] and
 * one label. Does not allocate. Safe from any thread. */
DDP_API void ddp_images_get(const ddp_image_range *r, const ddp_image_norm *norm, long i, float *inputs,
                            int32_t *label);

/* ddp_images_batch - copies the batch of a rank in a step: inputs [batch x channels x height x width] and
 * labels [batch]. Each image is used once per pass over all ranks, in an order that the seed shuffles again
 * for each pass, as ddp_dealt computes it. The result depends only on the arguments. Does not allocate. Safe
 * from any thread. */
DDP_API void ddp_images_batch(const ddp_image_range *r, const ddp_image_norm *norm, uint64_t seed, long step,
                              int rank, int world, long batch, float *inputs, int32_t *labels);
