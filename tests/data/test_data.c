/* [pure] Token files, windows, sharding over ranks, and the fingerprint of parameters. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "base/core.h"

#ifdef __cplusplus
extern "C" {
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

static ddp_tokens *from_text(const char *text)
{
    ddp_error err;
    ddp_tokens *t = ddp_tokens_from_bytes("text", text, strlen(text), &err);

    assert_non_null(t);
    return t;
}

static void put32(unsigned char *p, uint32_t v)
{
    int k;

    for (k = 0; k < 4; k++) p[k] = (unsigned char)(v >> (8 * k));
}

static void bytes_are_numbered_in_ascending_order(void **unused)
{
    ddp_tokens *t = from_text("banana\n");
    const int32_t want[7] = {2, 1, 3, 1, 3, 1, 0};
    int i;

    (void)unused;
    assert_int_equal(ddp_tokens_count(t), 7);
    assert_int_equal(ddp_tokens_vocabulary(t), 4);
    for (i = 0; i < 7; i++) assert_int_equal(ddp_tokens_at(t, i), want[i]);
    assert_int_equal(ddp_tokens_byte(t, 0), '\n');
    assert_int_equal(ddp_tokens_byte(t, 3), 'n');
    assert_int_equal(ddp_tokens_byte(t, 4), -1);
    assert_int_equal(ddp_tokens_byte(t, -1), -1);
    ddp_tokens_close(t);
    ddp_tokens_close(NULL);
}

static void all_256_bytes_fit(void **unused)
{
    unsigned char all[256];
    ddp_tokens *t;
    int i;

    (void)unused;
    for (i = 0; i < 256; i++) all[i] = (unsigned char)(255 - i);
    t = ddp_tokens_from_bytes("all", all, sizeof all, NULL);
    assert_non_null(t);
    assert_int_equal(ddp_tokens_vocabulary(t), 256);
    for (i = 0; i < 256; i++) assert_int_equal(ddp_tokens_at(t, i), 255 - i);
    ddp_tokens_close(t);
}

static void llmc_and_nanogpt_files_are_recognised(void **unused)
{
    unsigned char f[1024 + 12];
    ddp_tokens *t;

    (void)unused;
    memset(f, 0, sizeof f);
    put32(f, 20240520);
    put32(f + 4, 1);
    put32(f + 8, 6);
    put32(f + 1024, 50256u << 16 | 7);
    t = ddp_tokens_from_bytes("gpt2.bin", f, sizeof f, NULL);
    assert_non_null(t);
    assert_int_equal(ddp_tokens_count(t), 6);
    assert_int_equal(ddp_tokens_at(t, 0), 7);
    assert_int_equal(ddp_tokens_at(t, 1), 50256);
    assert_int_equal(ddp_tokens_vocabulary(t), 50257);
    assert_int_equal(ddp_tokens_byte(t, 7), -1);
    ddp_tokens_close(t);

    put32(f, 20240801);
    put32(f + 4, 7);
    put32(f + 8, 3);
    put32(f + 1024, 5);
    put32(f + 1028, 128255);
    t = ddp_tokens_from_bytes("llama3.bin", f, sizeof f, NULL);
    assert_non_null(t);
    assert_int_equal(ddp_tokens_count(t), 3);
    assert_int_equal(ddp_tokens_at(t, 1), 128255);
    assert_int_equal(ddp_tokens_vocabulary(t), 128256);
    ddp_tokens_close(t);

    t = ddp_tokens_from_bytes("nano.bin", "\1\0\2\1", 4, NULL);
    assert_non_null(t);
    assert_int_equal(ddp_tokens_count(t), 2);
    assert_int_equal(ddp_tokens_at(t, 1), 258);
    ddp_tokens_close(t);
}

static void refused(const char *name, const void *bytes, size_t n, const char *part)
{
    ddp_error err;

    memset(&err, 0, sizeof err);
    assert_null(ddp_tokens_from_bytes(name, bytes, n, &err));
    assert_int_equal(err.code, DDP_FORMAT);
    assert_non_null(strstr(err.msg, name));
    assert_non_null(strstr(err.msg, part));
}

static void unusable_files_fail_with_name_size_and_requirement(void **unused)
{
    unsigned char f[1040];
    ddp_token_range range;
    ddp_error err;

    (void)unused;
    memset(f, 0, sizeof f);
    refused("none.txt", "", 0, "is empty");
    refused("one.txt", "x", 1, "(1 bytes) holds 1 token");
    refused("one.bin", "xy", 2, "seq + 1");
    refused("odd.bin", "\1\0\2", 3, "has 3 bytes, but a .bin file holds 16-bit tokens");
    put32(f, 20240520);
    put32(f + 4, 2);
    refused("v2.bin", f, sizeof f, "version 2");
    put32(f + 4, 1);
    put32(f + 8, 9);
    refused("cut.bin", f, sizeof f, "promises 9 tokens, that is 1042 bytes, but it has 1040");
    refused("head.bin", f, 1000, "1000 bytes are fewer");
    put32(f + 8, 1);
    refused("single.bin", f, 1026, "holds 1 token");
    put32(f, 20240801);
    put32(f + 4, 7);
    put32(f + 8, 4);
    put32(f + 1024, 0xffffffffu);
    refused("huge.bin", f, sizeof f, "4294967295");

    assert_null(ddp_tokens_open("/no/such/file", &err));
    assert_int_equal(err.code, DDP_IO);
    assert_non_null(strstr(err.msg, "/no/such/file"));
    assert_null(ddp_tokens_open("/", &err));
    assert_int_equal(err.code, DDP_IO);

    /* as after getenv returned NULL, or after a failed open */
    assert_null(ddp_tokens_open(NULL, &err));
    assert_int_equal(err.code, DDP_ARG);
    assert_null(ddp_tokens_from_bytes(NULL, f, sizeof f, &err));
    assert_int_equal(ddp_tokens_split(NULL, 0, 1, &range, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "were they opened?"));
}

/* Files that a user may pass to --data by mistake. As raw bytes they would train without an error. */
static void files_of_other_kinds_fail_with_their_kind(void **unused)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *kind, *remedy;
    } files[] = {
        {"\x1f\x8b\x08\0\0\0\0\0", 8, "gzip", "gunzip"},
        {"\xfd"
         "7zXZ\0\0\4",
         8, "xz", "unxz"},
        {"\x28\xb5\x2f\xfd\4\0\0\0", 8, "Zstandard", "unzstd"},
        {"\x04\x22\x4d\x18\4\0\0\0", 8, "LZ4", "unlz4"},
        {"BZh91AY&SY\0\0", 12, "bzip2", "bunzip2"},
        {"PK\3\4\0\0\0\0", 8, "zip archive", "unzip"},
        {"7z\xbc\xaf\x27\x1c\0\0", 8, "7z", "7z x"},
        {"\x93NUMPY\1\0\x76\0", 10, "NumPy", "astype('<u2').tofile"},
        {"PAR1\x15\4\x15\x10", 8, "Parquet", "text file"},
        {"ARROW1\0\0", 8, "Arrow", "text file"},
        {"\x89HDF\r\n\x1a\n", 8, "HDF5", "text file"},
        {"SQLite format 3\0\x10\0", 18, "SQLite", "text file"},
        {"MMIDIDX\0\0\1", 10, "Megatron", ".bin"},
        {"GGUF\3\0\0\0", 8, "GGUF", "text or token file"},
        {"\2\0\0\0\0\0\0\0{}", 10, "safetensors", "--load"},
        {"\x80\x04\x95\x10\0\0\0\0", 8, "pickle", "text file"},
        {"%PDF-1.7\n", 9, "PDF", "pdftotext"},
        {"\x89PNG\r\n\x1a\n", 8, "PNG", "train_image"},
        {"\xff\xd8\xff\xe0\0\x10JFIF", 10, "JPEG", "train_image"},
        {"GIF89a\1\0", 8, "GIF", "train_image"},
        {"\0\0\x08\x03\0\0\0\1", 8, "MNIST", "train_image"},
        {"RIFF\x24\0\0\0WAVE", 12, "WAV", "text or token file"},
        {"\xff\xfet\0e\0x\0", 8, "UTF-16", "iconv"},
        {"\xfe\xff\0t\0e\0x", 8, "UTF-16", "iconv"},
    };
    unsigned char tar[512];
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof files / sizeof files[0]; i++) {
        refused("given", files[i].bytes, files[i].size, files[i].kind);
        refused("given", files[i].bytes, files[i].size, files[i].remedy);
    }
    memset(tar, 0, sizeof tar);
    memcpy(tar + 257, "ustar", 5);
    refused("given", tar, sizeof tar, "tar -xf");
    ddp_tokens_close(from_text("GIF, PK and PAR are words, too"));
}

static void bin_file_of_text_or_of_wide_tokens_fails(void **unused)
{
    unsigned char wide[4 * 64], narrow[2 * 128];
    char text[200];
    ddp_tokens *t;
    int i;

    (void)unused;
    for (i = 0; i < 64; i++) put32(wide + 4 * i, (uint32_t)(i % 5 == 0 ? 70000 + i : 700 * i));
    refused("wide.bin", wide, sizeof wide, "holds 32-bit tokens");
    refused("wide.bin", wide, sizeof wide, "rename it to end in .u32");
    t = ddp_tokens_from_bytes("wide.u32", wide, sizeof wide, NULL);
    assert_non_null(t);
    assert_string_equal(ddp_tokens_kind(t), "32-bit tokens");
    assert_int_equal(ddp_tokens_count(t), 64);
    assert_int_equal(ddp_tokens_at(t, 5), 70005);
    assert_int_equal(ddp_tokens_vocabulary(t), 70061);
    ddp_tokens_close(t);
    refused("cut.u32", wide, 254, "a multiple of 4");

    /* if the numbers do not decide, the file name's ending does */
    t = ddp_tokens_from_bytes("wide.u16", wide, sizeof wide, NULL);
    assert_non_null(t);
    assert_int_equal(ddp_tokens_count(t), 128);
    ddp_tokens_close(t);
    for (i = 0; i < 64; i++)
        put32(wide + 4 * i, (uint32_t)(i % 5 + 1)); /* a vocabulary of characters, as 32-bit numbers */
    refused("characters.bin", wide, sizeof wide, "holds 32-bit tokens");

    for (i = 0; i < 128; i++) { /* 16-bit tokens of a small vocabulary are not taken for 32-bit ones */
        narrow[2 * i] = (unsigned char)(i % 7);
        narrow[2 * i + 1] = 0;
    }
    t = ddp_tokens_from_bytes("narrow.bin", narrow, sizeof narrow, NULL);
    assert_non_null(t);
    assert_string_equal(ddp_tokens_kind(t), "16-bit tokens");
    assert_int_equal(ddp_tokens_count(t), 128);
    ddp_tokens_close(t);

    for (i = 0; i < 200; i++) text[i] = "To be, or not to be: that is the question.\n"[i % 43];
    refused("text.bin", text, sizeof text, "holds text");
    refused("text.bin", text, sizeof text, "rename it to end in .txt");
    t = ddp_tokens_from_bytes("text.txt", text, sizeof text, NULL);
    assert_non_null(t);
    assert_string_equal(ddp_tokens_kind(t), "bytes");
    ddp_tokens_close(t);
}

/* Processes that map a file share its pages. A copy would not show that the file changes. */
static void files_are_mapped_and_not_copied(void **unused)
{
    char path[64];
    const char text[] = "abababab", tokens[] = {1, 0, 2, 0, 3, 0, 4, 0};
    ddp_tokens *t;
    int fd;

    (void)unused;
    snprintf(path, sizeof path, "/tmp/ddp_mapped.%ld.u16", (long)getpid());
    assert_int_equal(ddp__file_write(path, tokens, sizeof tokens, NULL), DDP_OK);
    t = ddp_tokens_open(path, NULL);
    assert_non_null(t);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "\7", 1, 4), 1);
    assert_int_equal(ddp_tokens_at(t, 2), 7);
    close(fd);
    ddp_tokens_close(t);
    remove(path);

    snprintf(path, sizeof path, "/tmp/ddp_mapped.%ld.txt", (long)getpid());
    assert_int_equal(ddp__file_write(path, text, sizeof text - 1, NULL), DDP_OK);
    t = ddp_tokens_open(path, NULL);
    assert_non_null(t);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ddp_tokens_at(t, 1), 1);
    assert_int_equal(pwrite(fd, "a", 1, 1), 1);
    assert_int_equal(ddp_tokens_at(t, 1), 0);
    close(fd);
    ddp_tokens_close(t);
    remove(path);
}

static void token_beyond_the_vocabulary_is_named(void **unused)
{
    ddp_tokens *t = ddp_tokens_from_bytes("n.bin", "\1\0\7\0\2\1\2\1", 8, NULL);
    ddp_error err;

    (void)unused;
    assert_non_null(t);
    assert_int_equal(ddp_tokens_check(t, 259, NULL), DDP_OK);
    assert_int_equal(ddp_tokens_check(t, 258, &err), DDP_FORMAT);
    assert_non_null(strstr(err.msg, "n.bin: token 258 at place 2 is beyond the vocabulary of 258"));
    ddp_tokens_close(t);
}

static void window_predicts_the_next_token(void **unused)
{
    ddp_tokens *t = from_text("abcdefgh");
    ddp_token_range train, val;
    int32_t x[3], y[3];

    (void)unused;
    assert_int_equal(ddp_tokens_split(t, 0, 3, &train, &val, NULL), DDP_OK);
    assert_int_equal(train.count, 8);
    assert_int_equal(val.count, 0);
    assert_int_equal(ddp_tokens_windows(&train), 2); /* abc>d, def>g */
    assert_int_equal(ddp_tokens_windows(&val), 0);
    ddp_tokens_window(&train, 1, x, y);
    assert_true(x[0] == 3 && x[1] == 4 && x[2] == 5);
    assert_true(y[0] == 4 && y[1] == 5 && y[2] == 6);
    ddp_tokens_close(t);
}

static void held_out_data_is_never_trained_on(void **unused)
{
    ddp_tokens *t = from_text("aaaaaaaaaaaaaaaabbbb");
    ddp_token_range train, val;
    int32_t x[3], y[3];
    ddp_error err;
    long w;

    (void)unused;
    assert_int_equal(ddp_tokens_split(t, 0.2, 3, &train, &val, NULL), DDP_OK);
    assert_int_equal(train.count, 16);
    assert_int_equal(val.count, 4);
    for (w = 0; w < ddp_tokens_windows(&train); w++) {
        ddp_tokens_window(&train, w, x, y);
        assert_true(x[0] == 0 && y[2] == 0);
    }
    assert_int_equal(ddp_tokens_windows(&val), 1);
    ddp_tokens_window(&val, 0, x, y);
    assert_true(x[0] == 1 && y[2] == 1);

    assert_int_equal(ddp_tokens_split(t, 0.1, 3, &train, &val, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "seq + 1 = 4"));
    assert_int_equal(ddp_tokens_split(t, 0.9, 3, &train, &val, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "to train on"));
    assert_int_equal(ddp_tokens_split(t, 1, 3, &train, &val, &err), DDP_ARG);
    assert_int_equal(ddp_tokens_split(t, 0, 20, &train, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_tokens_split(t, 0, 0, &train, NULL, &err), DDP_ARG);
    assert_int_equal(ddp_tokens_split(t, 0, 19, &train, NULL, &err), DDP_OK);
    assert_int_equal(ddp_tokens_windows(&train), 1);
    ddp_tokens_close(t);
}

static void shuffle_is_a_permutation_of_every_size(void **unused)
{
    unsigned char seen[1100];
    uint64_t n, i, card;

    (void)unused;
    for (n = 1; n <= 1100; n += n < 70 ? 1 : 103) {
        memset(seen, 0, sizeof seen);
        for (i = 0; i < n; i++) {
            card = ddp__shuffled(i, n, n * 77);
            assert_true(card < n && !seen[card]);
            seen[card] = 1;
        }
    }
}

/* 2-byte tokens that count up, so that the first token of a window identifies it. */
static ddp_tokens *counting(long n)
{
    unsigned char *bytes = (unsigned char *)ddp__calloc((size_t)n, 2);
    ddp_tokens *t;
    long i;

    assert_non_null(bytes);
    for (i = 0; i < n; i++) {
        bytes[2 * i] = (unsigned char)(i & 255);
        bytes[2 * i + 1] = (unsigned char)(i >> 8);
    }
    t = ddp_tokens_from_bytes("count.bin", bytes, (size_t)n * 2, NULL);
    DDP_FREE(bytes);
    assert_non_null(t);
    return t;
}

static void epoch_uses_each_window_once_over_all_ranks(void **unused)
{
    enum { SEQ = 4, BATCH = 3, WORLD = 5, STEPS = 8, WINDOWS = STEPS * WORLD * BATCH };
    ddp_tokens *t = counting(WINDOWS * SEQ + 1);
    ddp_token_range r;
    int32_t x[BATCH * SEQ], y[BATCH * SEQ];
    int epoch, rank, b, used[WINDOWS], same_order = 0, last[WINDOWS];
    long step;

    (void)unused;
    assert_int_equal(ddp_tokens_split(t, 0, SEQ, &r, NULL, NULL), DDP_OK);
    assert_int_equal(ddp_tokens_windows(&r), WINDOWS);
    assert_int_equal(ddp_dealt(42, 0, 0, WORLD, BATCH, 0, 0), -1);
    for (epoch = 0; epoch < 3; epoch++) {
        int at = 0;

        memset(used, 0, sizeof used);
        for (step = epoch * STEPS; step < (epoch + 1) * STEPS; step++)
            for (rank = 0; rank < WORLD; rank++) {
                ddp_tokens_batch(&r, 42, step, rank, WORLD, BATCH, x, y);
                for (b = 0; b < BATCH; b++) {
                    int w = x[b * SEQ] / SEQ;

                    assert_int_equal(x[b * SEQ] % SEQ, 0);
                    assert_int_equal(y[b * SEQ + SEQ - 1], (w + 1) * SEQ);
                    assert_int_equal(ddp_dealt(42, step, rank, WORLD, BATCH, b, WINDOWS), w);
                    used[w]++;
                    if (epoch) same_order += last[at] == w;
                    last[at++] = w;
                }
            }
        for (b = 0; b < WINDOWS; b++) assert_int_equal(used[b], 1);
    }
    assert_true(same_order < WINDOWS / 4); /* shuffled again */
    ddp_tokens_close(t);
}

static void step_uses_the_same_data_for_any_sharding(void **unused)
{
    ddp_tokens *t = counting(1001);
    ddp_token_range r;
    int32_t whole[8 * 5], part[2 * 5], labels[8 * 5], other[8 * 5];
    int rank;

    (void)unused;
    assert_int_equal(ddp_tokens_split(t, 0.1, 5, &r, NULL, NULL), DDP_OK);
    ddp_tokens_batch(&r, 1, 30, 0, 1, 8, whole, labels); /* 180 windows: step 30 is in epoch 1 */
    for (rank = 0; rank < 4; rank++) {
        ddp_tokens_batch(&r, 1, 30, rank, 4, 2, part, labels);
        assert_memory_equal(part, whole + rank * 10, sizeof part);
    }
    ddp_tokens_batch(&r, 2, 30, 0, 1, 8, other, labels);
    assert_memory_not_equal(other, whole, sizeof whole);
    ddp_tokens_close(t);
}

static void data_smaller_than_a_step_are_repeated(void **unused)
{
    ddp_tokens *t = counting(4);
    ddp_token_range r;
    int32_t x[10], y[10];
    int i, zero = 0;

    (void)unused;
    assert_int_equal(ddp_tokens_split(t, 0, 1, &r, NULL, NULL), DDP_OK);
    ddp_tokens_batch(&r, 3, 0, 0, 1, 9, x, y); /* three windows for nine rows of a batch */
    for (i = 0; i < 9; i++) zero += x[i] == 0;
    assert_int_equal(zero, 3);
    ddp_tokens_close(t);
}

static void real_text_loads(void **unused)
{
    const char *dir = getenv("DDP_DATA");
    char path[600];
    ddp_error err;
    ddp_tokens *t;

    (void)unused;
    snprintf(path, sizeof path, "%s/tinyshakespeare/input.txt", dir ? dir : "data");
    if (access(path, R_OK)) SKIP("the file is not in $DDP_DATA");
    t = ddp_tokens_open(path, &err);
    assert_non_null(t);
    assert_int_equal(ddp_tokens_count(t), 1115394);
    assert_int_equal(ddp_tokens_vocabulary(t), 65);
    assert_int_equal(ddp_tokens_byte(t, ddp_tokens_at(t, 0)), 'F'); /* First Citizen: */
    ddp_tokens_close(t);

    snprintf(path, sizeof path, "%s/wikitext-2/test.txt.gz", dir ? dir : "data");
    if (access(path, R_OK)) SKIP("the file is not in $DDP_DATA");
    t = ddp_tokens_open(path, &err);
    assert_non_null(t);
    assert_true(ddp_tokens_count(t) > 1000000 && ddp_tokens_vocabulary(t) > 90);
    ddp_tokens_close(t);
}

static void pipe_fails_without_blocking(void **unused)
{
    static const char *const names[] = {"text", "tokens.bin", "text.gz"};
    char folder[] = "/tmp/dreamddp-tokens-XXXXXX", path[64];
    ddp_error err;
    int i;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    alarm(20); /* reading a pipe would block until a writer comes */
    for (i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        assert_int_equal(mkfifo(path, 0600), 0);
        assert_null(ddp_tokens_open(path, &err));
        assert_int_equal(err.code, DDP_IO);
        assert_non_null(strstr(err.msg, path));
        assert_non_null(strstr(err.msg, "it is a pipe, a file is needed"));
        remove(path);
    }
    alarm(0);
    rmdir(folder);
}

static void fingerprint_depends_on_every_bit_and_position(void **unused)
{
    float x[7] = {1, 2, 3, 4, 5, 6, 7}, keep;
    uint64_t h = ddp_hash_floats(0, x, 7);
    uint32_t bits;
    int i, b;

    (void)unused;
    assert_true(h == ddp_hash_floats(0, x, 7));
    assert_true(h == UINT64_C(0x8ea4e30dd74c3d75)); /* the same on every platform */
    for (i = 0; i < 7; i++)
        for (b = 0; b < 32; b++) {
            keep = x[i];
            memcpy(&bits, x + i, 4);
            bits ^= (uint32_t)1 << b;
            memcpy(x + i, &bits, 4);
            assert_true(ddp_hash_floats(0, x, 7) != h);
            x[i] = keep;
        }
    x[0] = 2;
    x[1] = 1;
    assert_true(ddp_hash_floats(0, x, 7) != h);
    x[6] = 0;
    assert_true(ddp_hash_floats(0, x, 6) != ddp_hash_floats(0, x, 7));
    assert_true(ddp_hash_floats(1, x, 7) != ddp_hash_floats(0, x, 7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_numbered_in_ascending_order),
        cmocka_unit_test(all_256_bytes_fit),
        cmocka_unit_test(llmc_and_nanogpt_files_are_recognised),
        cmocka_unit_test(unusable_files_fail_with_name_size_and_requirement),
        cmocka_unit_test(files_of_other_kinds_fail_with_their_kind),
        cmocka_unit_test(bin_file_of_text_or_of_wide_tokens_fails),
        cmocka_unit_test(files_are_mapped_and_not_copied),
        cmocka_unit_test(token_beyond_the_vocabulary_is_named),
        cmocka_unit_test(window_predicts_the_next_token),
        cmocka_unit_test(held_out_data_is_never_trained_on),
        cmocka_unit_test(shuffle_is_a_permutation_of_every_size),
        cmocka_unit_test(epoch_uses_each_window_once_over_all_ranks),
        cmocka_unit_test(step_uses_the_same_data_for_any_sharding),
        cmocka_unit_test(data_smaller_than_a_step_are_repeated),
        cmocka_unit_test(real_text_loads),
        cmocka_unit_test(pipe_fails_without_blocking),
        cmocka_unit_test(fingerprint_depends_on_every_bit_and_position),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
