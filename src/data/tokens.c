/* Token streams: detects the file format, opens, splits and deals them. */
#include "base/core.h"
#include "data/data.h"

/* llm.c writes a header of 256 int32: magic, version, token count. */
#define DDP__TOKENS_HEADER 1024
#define DDP__TOKENS_GPT2   20240520u /* version 1, 16 bits */
#define DDP__TOKENS_LLAMA3 20240801u /* version 7, 32 bits */

/* Number of leading bytes that are examined to validate a .bin file. */
#define DDP__TOKENS_SAMPLE 65536

struct ddp_tokens {
    char *name; /* for errors */
    const char *kind;
    ddp__mapped file;           /* contents of the whole file */
    const unsigned char *first; /* first token in the file */
    int width;                  /* bytes per token: 1, 2 or 4, little-endian */
    long count;
    long vocabulary;
    int byte_of[256]; /* for width 1, byte of a token, and token of a byte */
    unsigned char token_of[256];
};

/* ---- detecting and checking the format ---- */

static uint32_t ddp__tokens_word(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* 1 if name ends with `ending`, or with `ending` and .gz. */
static int ddp__tokens_named(const char *name, const char *ending)
{
    size_t n = strlen(name);
    const size_t k = strlen(ending);

    if (n > 3 && !strcmp(name + n - 3, ".gz")) n -= 3;
    return n > k && !memcmp(name + n - k, ending, k);
}

/* 1 if the bytes look like text: no control characters except white space. Small values, the most
 * frequent token numbers, would be such characters. */
static int ddp__tokens_text(const unsigned char *p, size_t n)
{
    if (n < 64) return 0;
    for (size_t i = 0; i < n; i++)
        if (p[i] == 127 || (p[i] < ' ' && p[i] != '\t' && p[i] != '\n' && p[i] != '\f' && p[i] != '\r'))
            return 0;
    return 1;
}

/* 1 if the bytes look like 32-bit numbers. Read as 16-bit numbers, every second one is then the upper
 * half of a token, which is small, while the lower halves take large values. If all upper halves are 0,
 * the lower halves need not be large. */
static int ddp__tokens_wide(const unsigned char *p, size_t n)
{
    size_t zeros = 0;
    unsigned large = 0, small = 0;

    if (n < 128) return 0;
    for (size_t i = 0; i + 4 <= n; i += 4) {
        if (p[i + 3] || p[i + 2] >= 32) return 0; /* assumes vocabularies below 2 million */
        zeros += !p[i + 2];
        small |= p[i];
        large |= p[i + 1];
    }
    return zeros == n / 4 ? (small | large) != 0 : large != 0;
}

static ddp_status ddp__tokens_llmc(ddp_tokens *t, const char *name, const unsigned char *p, size_t n,
                                   ddp_error *err)
{
    uint32_t magic = ddp__tokens_word(p), version, count, wanted = magic == DDP__TOKENS_GPT2 ? 1 : 7;
    uint64_t size;

    if (n < DDP__TOKENS_HEADER)
        return ddp__fail(err, DDP_FORMAT,
                         "%s begins like an llm.c token file, but its %zu bytes are fewer than the header's "
                         "%d: is it truncated?",
                         name, n, DDP__TOKENS_HEADER);
    version = ddp__tokens_word(p + 4);
    count = ddp__tokens_word(p + 8);
    if (version != wanted)
        return ddp__fail(err, DDP_FORMAT,
                         "%s is an llm.c token file of version %u; only version %u is supported", name,
                         version, wanted);
    t->width = magic == DDP__TOKENS_GPT2 ? 2 : 4;
    t->kind = t->width == 2 ? "llm.c file of 16-bit tokens" : "llm.c file of 32-bit tokens";
    size = DDP__TOKENS_HEADER + (uint64_t)count * (uint64_t)t->width;
    if (size != n)
        return ddp__fail(err, DDP_FORMAT,
                         "%s: its header promises %u tokens, that is %" PRIu64
                         " bytes, but it has %zu: is it truncated?",
                         name, count, size, n);
    t->first = p + DDP__TOKENS_HEADER;
    t->count = (long)count;
    return DDP_OK;
}

/* Assigns token numbers 0, 1, ... to the byte values that occur, in ascending order. */
static void ddp__tokens_compact(ddp_tokens *t)
{
    int seen[256];

    memset(seen, 0, sizeof seen);
    for (long i = 0; i < t->count; i++) seen[t->first[i]] = 1;
    for (int b = 0; b < 256; b++) {
        if (!seen[b]) continue;
        t->byte_of[t->vocabulary] = b;
        t->token_of[b] = (unsigned char)t->vocabulary++;
    }
}

/* Reads a file of tokens without a header: .bin and .u16 have 16-bit tokens, .u32 has 32-bit tokens. */
static ddp_status ddp__tokens_raw(ddp_tokens *t, const char *name, const unsigned char *p, size_t n,
                                  ddp_error *err)
{
    const size_t sample = n < DDP__TOKENS_SAMPLE ? n : DDP__TOKENS_SAMPLE;
    const int bin = ddp__tokens_named(name, ".bin"), width = ddp__tokens_named(name, ".u32") ? 4 : 2;
    const char *ending = bin ? ".bin" : width == 2 ? ".u16" : ".u32";

    if (!bin && width == 2 && !ddp__tokens_named(name, ".u16")) return DDP_OK;
    if (ddp__tokens_text(p, sample))
        return ddp__fail(
            err, DDP_FORMAT,
            "%s holds text, but a %s file holds %d-bit tokens: rename it to end in .txt to train on "
            "its bytes",
            name, ending, 8 * width);
    if (n % (size_t)width)
        return ddp__fail(err, DDP_FORMAT,
                         "%s has %zu bytes, but a %s file holds %d-bit tokens, %s: is it truncated? (under "
                         "another ending it is read as bytes)",
                         name, n, ending, 8 * width, width == 2 ? "an even number" : "a multiple of 4");
    if (bin && n % 4 == 0 && ddp__tokens_wide(p, sample))
        return ddp__fail(err, DDP_FORMAT,
                         "%s holds 32-bit tokens, but a .bin file without a header of llm.c holds 16-bit "
                         "tokens: rename it to end in .u32 (or in .u16 if its tokens do have 16 bits)",
                         name);
    t->kind = width == 2 ? "16-bit tokens" : "32-bit tokens";
    t->width = width;
    t->count = (long)(n / (size_t)width);
    return DDP_OK;
}

/* 1 for UTF-16 text, which would otherwise be trained on as bytes, every second one 0. */
static int ddp__tokens_utf16(const unsigned char *p, size_t n)
{
    return n >= 4 && ((p[0] == 0xff && p[1] == 0xfe && !p[3]) || (p[0] == 0xfe && p[1] == 0xff && !p[2]));
}

static ddp_status ddp__tokens_recognise(ddp_tokens *t, const char *name, ddp_error *err)
{
    const unsigned char *p = t->file.bytes;
    const size_t n = t->file.size;
    const uint32_t magic = n >= 4 ? ddp__tokens_word(p) : 0;
    const char *remedy = "", *type;

    t->kind = "bytes";
    t->first = p;
    t->width = 1;
    t->count = (long)n;
    if (magic == DDP__TOKENS_GPT2 || magic == DDP__TOKENS_LLAMA3) return ddp__tokens_llmc(t, name, p, n, err);
    type = ddp__file_type(p, n, &remedy);
    if (type) return ddp__fail(err, DDP_FORMAT, "cannot train on %s: it is %s; %s", name, type, remedy);
    DDP__TRY(ddp__tokens_raw(t, name, p, n, err));
    if (t->width > 1 || !ddp__tokens_utf16(p, n)) return DDP_OK;
    return ddp__fail(err, DDP_FORMAT,
                     "cannot train on %s: it is text in UTF-16; convert it first with iconv -f UTF-16 -t "
                     "UTF-8",
                     name);
}

static ddp_status ddp__tokens_scan(ddp_tokens *t, const char *name, ddp_error *err)
{
    const size_t n = t->file.size;
    uint32_t token, largest = 0;

    if (n == 0)
        return ddp__fail(err, DDP_FORMAT,
                         "%s is empty: a text or token file of at least seq + 1 tokens is needed", name);
    DDP__TRY(ddp__tokens_recognise(t, name, err));
    if (t->count < 2)
        return ddp__fail(err, DDP_FORMAT,
                         "%s (%zu bytes) holds %ld token: at least seq + 1 tokens are needed", name, n,
                         t->count);
    if (t->width == 1) {
        ddp__tokens_compact(t);
        return DDP_OK;
    }
    for (long i = 0; i < t->count; i++) {
        token = (uint32_t)ddp_tokens_at(t, i);
        if (token > largest) largest = token;
    }
    if (largest >= INT32_MAX)
        return ddp__fail(err, DDP_FORMAT, "%s holds token %u, above the largest supported one (%d)", name,
                         largest, INT32_MAX - 1);
    t->vocabulary = (long)largest + 1;
    return DDP_OK;
}

/* ---- opening ---- */

static ddp_tokens *ddp__tokens_opened(const char *name, int in_memory, const void *bytes, size_t n,
                                      ddp_error *err)
{
    ddp_tokens *t = (ddp_tokens *)ddp__calloc(1, sizeof *t);
    ddp_status s = DDP_OK;

    if (t && name) t->name = ddp__strdup(name);
    if (!name)
        s = ddp__fail(err, DDP_ARG, "the name of the token file is NULL");
    else if (!t || !t->name)
        s = ddp__fail(err, DDP_MEMORY, "out of memory while opening %s", name);
    else if (in_memory)
        ddp__text_add(&t->file.copy, (const char *)bytes, n);
    else
        s = ddp__file_map(name, &t->file, err);
    if (s == DDP_OK && in_memory) {
        t->file.bytes = (const unsigned char *)t->file.copy.data;
        t->file.size = t->file.copy.size;
    }
    if (s == DDP_OK && t->file.copy.failed)
        s = ddp__fail(err, DDP_MEMORY, "out of memory for the %zu bytes of %s", n, name);
    if (s == DDP_OK && ddp__tokens_scan(t, t->name, err) == DDP_OK) return t;
    ddp_tokens_close(t);
    return NULL;
}

ddp_tokens *ddp_tokens_open(const char *path, ddp_error *err)
{
    return ddp__tokens_opened(path, 0, NULL, 0, err);
}

ddp_tokens *ddp_tokens_from_bytes(const char *name, const void *bytes, size_t n, ddp_error *err)
{
    return ddp__tokens_opened(name, 1, bytes, n, err);
}

void ddp_tokens_close(ddp_tokens *t)
{
    if (!t) return;
    ddp__file_unmap(&t->file);
    if (t->name) DDP_FREE(t->name);
    DDP_FREE(t);
}

/* ---- reading ---- */

const char *ddp_tokens_kind(const ddp_tokens *t) { return t->kind; }
long ddp_tokens_count(const ddp_tokens *t) { return t->count; }
long ddp_tokens_vocabulary(const ddp_tokens *t) { return t->vocabulary; }

int ddp_tokens_byte(const ddp_tokens *t, long token)
{
    return t->width == 1 && token >= 0 && token < t->vocabulary ? t->byte_of[token] : -1;
}

int32_t ddp_tokens_at(const ddp_tokens *t, long i)
{
    const unsigned char *p = t->first + (size_t)i * (size_t)t->width;

    if (t->width == 1) return t->token_of[p[0]];
    if (t->width == 2) return p[0] | p[1] << 8;
    return (int32_t)ddp__tokens_word(p);
}

ddp_status ddp_tokens_check(const ddp_tokens *t, long vocabulary, ddp_error *err)
{
    long i;

    if (t->vocabulary <= vocabulary) return DDP_OK;
    for (i = 0; ddp_tokens_at(t, i) < vocabulary; i++) {
    }
    return ddp__fail(err, DDP_FORMAT,
                     "%s: token %d at place %ld is beyond the vocabulary of %ld; the largest of the "
                     "file is %ld",
                     t->name, ddp_tokens_at(t, i), i, vocabulary, t->vocabulary - 1);
}

ddp_status ddp_tokens_split(const ddp_tokens *t, double held_out, long seq, ddp_token_range *train,
                            ddp_token_range *val, ddp_error *err)
{
    long last;

    if (!t || !train)
        return ddp__fail(err, DDP_ARG, "ddp_tokens_split: no %s, it is NULL",
                         t ? "range to train on" : "tokens (were they opened?)");
    if (!(held_out >= 0 && held_out < 1))
        return ddp__fail(err, DDP_ARG, "the held-out share is %g: it must be at least 0 and below 1",
                         held_out);
    if (seq < 1 || seq >= t->count)
        return ddp__fail(err, DDP_ARG,
                         "seq is %ld, but the data has %ld tokens: windows need seq + 1 of them and seq "
                         "must be at least 1",
                         seq, t->count);
    last = (long)((double)t->count * held_out);
    if (held_out > 0 && last < seq + 1)
        return ddp__fail(err, DDP_ARG,
                         "holding out %g of %ld tokens leaves %ld for validation, fewer than one window "
                         "of seq + 1 = %ld: use more data or a shorter seq",
                         held_out, t->count, last, seq + 1);
    if (t->count - last < seq + 1)
        return ddp__fail(err, DDP_ARG,
                         "holding out %g of %ld tokens leaves %ld to train on, fewer than one window of "
                         "seq + 1 = %ld: use more data or a shorter seq",
                         held_out, t->count, t->count - last, seq + 1);
    train->tokens = t;
    train->first = 0;
    train->count = t->count - last;
    train->seq = seq;
    if (!val) return DDP_OK;
    *val = *train;
    val->first = train->count;
    val->count = last;
    return DDP_OK;
}

long ddp_tokens_windows(const ddp_token_range *r) { return r->count > r->seq ? (r->count - 1) / r->seq : 0; }

void ddp_tokens_window(const ddp_token_range *r, long w, int32_t *tokens, int32_t *labels)
{
    long at = r->first + w * r->seq;
    int32_t next = ddp_tokens_at(r->tokens, at);

    for (long i = 0; i < r->seq; i++) {
        tokens[i] = next;
        labels[i] = next = ddp_tokens_at(r->tokens, at + i + 1);
    }
}

/* ---- dealing batches ---- */

long ddp_dealt(uint64_t seed, long step, int rank, int world, long batch, long b, long count)
{
    const uint64_t first = ((uint64_t)step * (uint64_t)world + (uint64_t)rank) * (uint64_t)batch;

    return count > 0 ? ddp__deal(seed, first + (uint64_t)b, (uint64_t)count) : -1;
}

void ddp_tokens_batch(const ddp_token_range *r, uint64_t seed, long step, int rank, int world, long batch,
                      int32_t *tokens, int32_t *labels)
{
    const long windows = ddp_tokens_windows(r);

    for (long b = 0; windows && b < batch; b++)
        ddp_tokens_window(r, ddp_dealt(seed, step, rank, world, batch, b, windows), tokens + b * r->seq,
                          labels + b * r->seq);
}
