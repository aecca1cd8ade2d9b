#include "base/platform.h"
#include "base/fail.h"
#include "base/rng.h"
#include "compress/codec.h"
#include "compress/topk.h"

size_t ddp_randomk_scratch(size_t n) { return (n / 64 + (n % 64 != 0)) * sizeof(uint64_t); }

/* 1 if bit i was set before; it is set now. */
static int ddp__randomk_mark(uint64_t *bitmap, uint64_t i)
{
    uint64_t *word = bitmap + i / 64, bit = UINT64_C(1) << i % 64;
    int was = (*word & bit) != 0;

    *word |= bit;
    return was;
}

/* Which of a word's bits is the lowest one that is set, counting from 0. */
static unsigned ddp__randomk_lowest(uint64_t word)
{
    return (unsigned)__builtin_ctzll((unsigned long long)word);
}

/* Floyd: the j-th round draws from the first j+1 elements; what it draws twice stands for the
 * newest of them, which nobody can have drawn before. */
ddp_status ddp_randomk(const float *x, size_t n, size_t k, uint64_t seed, void *scratch,
                       size_t scratch_bytes, uint64_t *index, float *value, ddp_error *err)
{
    uint64_t *bitmap = (uint64_t *)scratch, j, word;
    size_t words, w, kept = 0;
    ddp_rng r = ddp_rng_seed(seed, n);

    DDP__TRY(ddp__select_check("ddp_randomk", x, n, k, scratch, scratch_bytes,
                               ddp_randomk_scratch(n), index, err));
    words = ddp_randomk_scratch(n) / sizeof *bitmap;
    memset(bitmap, 0, words * sizeof *bitmap);
    for (j = n - k; j < n; j++)
        if (ddp__randomk_mark(bitmap, ddp_rng_below(&r, j + 1))) ddp__randomk_mark(bitmap, j);
    for (w = 0; w < words; w++)
        for (word = bitmap[w]; word; word &= word - 1) {
            size_t i = w * 64 + ddp__randomk_lowest(word);
            if (ddp__first_nan(x + i, 1) == 0) return ddp__found_nan(i, err);
        }
    for (w = 0; w < words; w++)
        for (word = bitmap[w]; word; word &= word - 1) {
            size_t i = w * 64 + ddp__randomk_lowest(word);
            index[kept] = i;
            if (value) value[kept] = x[i];
            kept++;
        }
    return DDP_OK;
}
