/* Fuzzes the file readers with libFuzzer (`make fuzz`). The first byte of an input chooses the reader; the
 * rest is the file.
 * tests/io/test_corpus.c replays tests/io/corpus/ through the same function. */
#ifndef DREAMDDP_H
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#endif

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C"
#endif
    int
    LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_SAFETENSORS, FUZZ_JSON, FUZZ_IDX, FUZZ_CIFAR, FUZZ_BIN, FUZZ_KINDS };

/* A reader returns a result, or an error with a message. */
static void fuzz_expect(int holds)
{
    if (!holds) abort();
}

static void fuzz_safetensors(const uint8_t *p, size_t n, ddp_error *err)
{
    ddp_safetensors *s = ddp_safetensors_from_bytes("fuzz", p, n, err);
    uint64_t bytes = 0;
    float x[16];
    int i;

    fuzz_expect((s == NULL) == (err->code != DDP_OK));
    for (i = 0; s && i < ddp_safetensors_count(s); i++) {
        const ddp_safetensor *t = ddp_safetensors_at(s, i);
        uint64_t all = ddp_safetensors_elements(t), first = all > 16 ? all - 16 : 0;
        ddp_error ignored;

        fuzz_expect(all * ddp_safetensors_type_bytes(t->type) == t->bytes);
        fuzz_expect(t->offset == bytes);
        bytes += t->bytes;
        fuzz_expect(bytes < n && ddp_safetensors_find(s, t->name) == t);
        ddp_safetensors_floats(s, t, first, (size_t)(all - first), x, &ignored);
        fuzz_expect(ddp_safetensors_floats(s, t, 1, (size_t)all, x, &ignored) != DDP_OK);
    }
    ddp_safetensors_close(s);
}

static void fuzz_json(const uint8_t *p, size_t n, ddp_error *err)
{
    ddp__json *v = ddp__json_parse("fuzz", (const char *)p, n, err);

    fuzz_expect((v == NULL) == (err->code != DDP_OK));
    ddp__json_free(v);
}

/* Images and labels in one input: the first two bytes are the offset of the labels. */
static void fuzz_idx(const uint8_t *p, size_t n, ddp_error *err)
{
    size_t cut = n >= 2 ? (size_t)(p[0] | p[1] << 8) : 0;
    ddp_images *m;
    long i;

    if (n < 2) return;
    p += 2;
    n -= 2;
    if (cut > n) cut = n;
    m = ddp_images_idx_bytes("images", p, cut, "labels", p + cut, n - cut, err);
    fuzz_expect((m == NULL) == (err->code != DDP_OK));
    for (i = 0; m && i < m->count; i++) fuzz_expect(m->labels[i] < m->classes);
    ddp_images_close(m);
}

static void fuzz_cifar(const uint8_t *p, size_t n, ddp_error *err)
{
    int classes = n && p[0] % 2 ? 100 : 10;
    ddp_images *m;
    ddp_image_range r;
    float x[3072];
    int32_t label;

    if (n < 1) return;
    m = ddp_images_cifar_bytes("fuzz", p + 1, n - 1, classes, err);
    fuzz_expect((m == NULL) == (err->code != DDP_OK));
    if (m && ddp_images_split(m, 0, &r, NULL, err) == DDP_OK) {
        ddp_image_norm norm = ddp_images_norm(&r);
        ddp_images_get(&r, &norm, m->count - 1, x, &label);
        fuzz_expect(label >= 0 && label < classes);
    }
    ddp_images_close(m);
}

static void fuzz_bin(const uint8_t *p, size_t n, ddp_error *err)
{
    ddp_tokens *t = ddp_tokens_from_bytes(n % 3 ? "fuzz.bin" : "fuzz.txt", p, n, err);
    ddp_token_range r;
    ddp_error ignored;
    int32_t x[4], y[4];

    fuzz_expect((t == NULL) == (err->code != DDP_OK));
    if (!t) return;
    fuzz_expect(ddp_tokens_at(t, ddp_tokens_count(t) - 1) < ddp_tokens_vocabulary(t));
    fuzz_expect(ddp_tokens_check(t, ddp_tokens_vocabulary(t) - 1, &ignored) != DDP_OK);
    if (ddp_tokens_split(t, 0.25, 4, &r, NULL, &ignored) == DDP_OK)
        ddp_tokens_window(&r, ddp_tokens_windows(&r) - 1, x, y);
    ddp_tokens_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const reader[FUZZ_KINDS])(const uint8_t *, size_t, ddp_error *) = {
        fuzz_safetensors, fuzz_json, fuzz_idx, fuzz_cifar, fuzz_bin};
    ddp_error err;
    uint8_t *copy;

    if (size < 1) return 0;
    memset(&err, 0, sizeof err);
    /* a separate allocation, so that a sanitizer detects reads past the end */
    copy = (uint8_t *)malloc(size - 1 ? size - 1 : 1);
    if (!copy) return 0;
    memcpy(copy, data + 1, size - 1);
    reader[data[0] % FUZZ_KINDS](copy, size - 1, &err);
    fuzz_expect(err.code == DDP_OK || err.msg[0]);
    free(copy);
    return 0;
}
