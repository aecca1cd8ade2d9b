/* Training data, dealt to ranks as batches: token streams, that is files of tokens or of bytes cut
 * into windows, and labelled images of IDX (MNIST) and CIFAR files. */
#pragma once

#include "base/status.h"

/* ---- token streams ---- */

/* A stream of tokens; never changed after loading, so any thread may read it. */
typedef struct ddp_tokens ddp_tokens;

/* A part of a stream, cut into windows of seq tokens: window w predicts tokens first + w seq + 1 .. first +
 * (w + 1) seq from the ones before them. Tokens that do not fill a window at the end are not used. */
typedef struct ddp_token_range {
    const ddp_tokens *tokens; /* borrowed */
    long first, count;        /* tokens */
    long seq;                 /* window length, at least 1 */
} ddp_token_range;

/* ddp_tokens_open - maps a file of tokens or text into memory, so that the processes of a machine share its
 * pages:
 *   llm.c's .bin             its header says 16 or 32 bits
 *   a name in .bin or .u16   16-bit tokens without a header, as nanoGPT writes them
 *   a name in .u32           32-bit tokens without a header
 *   any other                bytes, whose distinct values are numbered in ascending order
 * A name ending in .gz is unpacked first, into memory of the process. The file must not become shorter before
 * ddp_tokens_close.
 * ddp_tokens_from_bytes - the same for bytes in memory; name is for errors, and its ending chooses the format
 * as above. bytes is copied. Both: NULL and *err on failure: unreadable, empty, shorter than two tokens, a
 * header that contradicts the size, a size that holds no whole number of tokens, and files of other kinds
 * (compressed, archives, arrays, tables, images, weights, UTF-16; a .bin of text or of 32-bit tokens). Freed
 * by ddp_tokens_close. */
DDP_API ddp_tokens *ddp_tokens_open(const char *path, ddp_error *err);
DDP_API ddp_tokens *ddp_tokens_from_bytes(const char *name, const void *bytes, size_t n, ddp_error *err);
DDP_API void ddp_tokens_close(ddp_tokens *t);

/* ddp_tokens_kind - the format of the file: "bytes", "16-bit tokens", "32-bit tokens", "llm.c file of 16-bit
 * tokens" or "llm.c file of 32-bit tokens". A constant.
 * ddp_tokens_count - tokens in the stream.  ddp_tokens_at - token i, 0 <= i < count.
 * ddp_tokens_vocabulary - one more than the largest token.
 * ddp_tokens_byte - the byte behind a token, for writing samples; -1 if the file held token
 * numbers, or the token is not one of the stream's. */
DDP_API const char *ddp_tokens_kind(const ddp_tokens *t);
DDP_API long ddp_tokens_count(const ddp_tokens *t);
DDP_API long ddp_tokens_vocabulary(const ddp_tokens *t);
DDP_API int32_t ddp_tokens_at(const ddp_tokens *t, long i);
DDP_API int ddp_tokens_byte(const ddp_tokens *t, long token);

/* ddp_tokens_check - DDP_FORMAT if a token is not below vocabulary; the sentence names the first and its
 * place. */
DDP_API ddp_status ddp_tokens_check(const ddp_tokens *t, long vocabulary, ddp_error *err);

/* ddp_tokens_split - the stream as two ranges: the last held_out (0 <= held_out < 1) of it in
 * *val, the rest in *train. held_out 0: val->count is 0 and val may be NULL.
 * Errors: a part that should not be empty is shorter than one window, seq + 1 tokens. */
DDP_API ddp_status ddp_tokens_split(const ddp_tokens *t, double held_out, long seq, ddp_token_range *train,
                                    ddp_token_range *val, ddp_error *err);

/* ddp_tokens_windows - windows of a range, 0 if it is too short.
 * ddp_tokens_window - window 0 <= w < windows into tokens [seq] and labels [seq], the tokens one place
 * later. */
DDP_API long ddp_tokens_windows(const ddp_token_range *r);
DDP_API void ddp_tokens_window(const ddp_token_range *r, long w, int32_t *tokens, int32_t *labels);

/* ddp_tokens_batch - what rank of world trains on in a step: tokens and labels, [batch x seq].
 *
 * Windows are dealt from a deck that the seed shuffles afresh for each pass over the data: the deck of a pass
 * is a permutation of all windows; step s takes world x batch of them, rank 0 the first batch, rank 1 the
 * next. So in one pass each window is used exactly once over all ranks, and ranks x batch can be cut
 * differently without changing what a step sees. A pass may end inside a step. The deck is never stored: a
 * keyed bijection (Feistel network with cycle walking) finds its card in O(1). Depends only on the arguments;
 * no allocation; any thread. */
DDP_API void ddp_tokens_batch(const ddp_token_range *r, uint64_t seed, long step, int rank, int world,
                              long batch, int32_t *tokens, int32_t *labels);

/* ddp_dealt - which of `count` windows that batch has as its b-th, 0 <= b < batch; the same of the `count`
 * images of ddp_images_batch. -1 of none. */
DDP_API long ddp_dealt(uint64_t seed, long step, int rank, int world, long batch, long b, long count);

/* ---- images ---- */

#define DDP_IMAGE_CHANNELS 3 /* most channels of an image */

/* A set of images in memory; never changed after loading, so any thread may read it. */
typedef struct ddp_images {
    long count;
    long channels, height, width;
    long classes;          /* labels are 0 .. classes - 1 */
    unsigned char *pixels; /* [count x channels x height x width] */
    unsigned char *labels; /* [count] */
    char *name;            /* of its first file */
} ddp_images;

/* A part of a set. */
typedef struct ddp_image_range {
    const ddp_images *images; /* borrowed */
    long first, count;
} ddp_image_range;

/* What makes floats of pixels: (pixel / 255 - mean) / deviation, for each channel. */
typedef struct ddp_image_norm {
    float mean[DDP_IMAGE_CHANNELS], deviation[DDP_IMAGE_CHANNELS];
} ddp_image_norm;

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
DDP_API void ddp_images_close(ddp_images *images);

/* ddp_images_idx_bytes, ddp_images_cifar_bytes - of files in memory; names are for errors, bytes are
 * copied. */
DDP_API ddp_images *ddp_images_idx_bytes(const char *image_name, const void *images, size_t n,
                                         const char *label_name, const void *labels, size_t m,
                                         ddp_error *err);
DDP_API ddp_images *ddp_images_cifar_bytes(const char *name, const void *bytes, size_t n, int classes,
                                           ddp_error *err);

/* ddp_images_split - the set as two ranges: the last held_out (0 <= held_out < 1) of it in *val,
 * the rest in *train. held_out 0: val->count is 0 and val may be NULL. Errors: a share outside
 * that range, or one that leaves a part empty. */
DDP_API ddp_status ddp_images_split(const ddp_images *images, double held_out, ddp_image_range *train,
                                    ddp_image_range *val, ddp_error *err);

/* ddp_images_norm - mean and deviation of each channel over a range, so that its floats have mean
 * 0 and deviation 1. Take those of the training images for all others too. */
DDP_API ddp_image_norm ddp_images_norm(const ddp_image_range *r);

/* ddp_images_get - image 0 <= i < r->count: inputs [channels x height x width], one label.
 * ddp_images_batch - what rank of world trains on in a step: inputs [batch x channels x height x
 * width] and labels [batch], dealt as ddp_tokens_batch deals windows: each image once per pass
 * over all ranks, in an order that the seed gives afresh for each pass.
 * They depend only on their arguments; no allocation; any thread. */
DDP_API void ddp_images_get(const ddp_image_range *r, const ddp_image_norm *norm, long i, float *inputs,
                            int32_t *label);
DDP_API void ddp_images_batch(const ddp_image_range *r, const ddp_image_norm *norm, uint64_t seed, long step,
                              int rank, int world, long batch, float *inputs, int32_t *labels);
