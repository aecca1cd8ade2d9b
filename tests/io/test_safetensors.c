/* [pure] Safetensors files: valid files, rejected files, and written files. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
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

static int first_free; /* lowest free file descriptor when the program began */
static long live;      /* allocations that are not yet freed */

void *heap_realloc(void *p, size_t bytes)
{
    live += !p;
    return realloc(p, bytes);
}

void heap_free(void *p)
{
    live -= p != NULL;
    free(p);
}

/* Simulated disk: read number `bad` fails, read number `torn` is interrupted, and each read returns at
 * most `most` bytes. 0: no such read, no limit. */
static struct {
    long reads, bad, torn;
    size_t most;
} disk;

#ifdef __cplusplus
extern "C" {
#endif
ssize_t pread(int fd, void *out, size_t n, off_t at)
{
    static void *found;
    ssize_t (*real)(int, void *, size_t, off_t);

    if (!found) found = dlsym(RTLD_NEXT, "pread");
    memcpy(&real, &found, sizeof real);
    disk.reads++;
    errno = disk.reads == disk.bad ? EIO : EINTR;
    if (disk.reads == disk.bad || disk.reads == disk.torn) return -1;
    return real(fd, out, disk.most && n > disk.most ? disk.most : n, at);
}
#ifdef __cplusplus
}
#endif

/* Builds a file in memory: the header text, then `data` bytes that count 0, 1, 2 ... */
static size_t file_of(const char *header, size_t data, unsigned char *out)
{
    size_t n = strlen(header), i;

    for (i = 0; i < 8; i++) out[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(out + 8, header, n);
    for (i = 0; i < data; i++) out[8 + n + i] = (unsigned char)i;
    return 8 + n + data;
}

static void refused(const char *header, size_t data, const char *part)
{
    unsigned char bytes[2000];
    ddp_error err;
    size_t n = file_of(header, data, bytes);

    memset(&err, 0, sizeof err);
    assert_null(ddp_safetensors_from_bytes("m.safetensors", bytes, n, &err));
    assert_int_equal(err.code, DDP_FORMAT);
    assert_non_null(strstr(err.msg, "m.safetensors"));
    if (!strstr(err.msg, part)) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
}

#define TENSOR(name, type, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

static void arrays_are_found_by_name_and_read_in_parts(void **unused)
{
    unsigned char bytes[400];
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("b", "I32", "[2]", 8, 16) "," TENSOR(
        "a", "F32", "[2,1]", 0, 8) "," TENSOR("none", "F32", "[0,7]", 8, 8) "," TENSOR("one", "U8", "[]", 16,
                                                                                       17) "}   ";
    size_t n = file_of(header, 17, bytes);
    ddp_safetensors *s = ddp_safetensors_from_bytes("m", bytes, n, NULL);
    const ddp_safetensor *t;
    float x[2];
    int32_t i[2];
    ddp_error err;

    (void)unused;
    assert_non_null(s);
    assert_int_equal(ddp_safetensors_count(s), 4);
    assert_string_equal(ddp_safetensors_at(s, 0)->name, "a");
    assert_null(ddp_safetensors_at(s, 4));
    assert_null(ddp_safetensors_at(s, -1));
    assert_null(ddp_safetensors_find(s, "c"));
    assert_string_equal(ddp_safetensors_note(s, "format"), "pt");
    assert_null(ddp_safetensors_note(s, "b"));
    t = ddp_safetensors_find(s, "a");
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->dim[0], 2);
    assert_int_equal(ddp_safetensors_floats(s, t, 1, 1, x, NULL), DDP_OK);
    assert_memory_equal(x, "\4\5\6\7", 4);
    assert_int_equal(ddp_safetensors_floats(s, t, 1, 2, x, &err), DDP_ARG);
    assert_int_equal(ddp_safetensors_floats(s, t, UINT64_MAX, 2, x, &err), DDP_ARG);
    t = ddp_safetensors_find(s, "b");
    assert_int_equal(ddp_safetensors_floats(s, t, 0, 2, x, &err), DDP_FORMAT);
    assert_non_null(strstr(err.msg, "\"b\" has dtype I32"));
    assert_int_equal(ddp_safetensors_bytes(s, t, 0, 2, i, NULL), DDP_OK);
    assert_int_equal(i[1], 0x0f0e0d0c);
    assert_int_equal(ddp_safetensors_elements(ddp_safetensors_find(s, "none")), 0);
    assert_int_equal(ddp_safetensors_elements(ddp_safetensors_find(s, "one")), 1);
    ddp_safetensors_close(s);
    ddp_safetensors_close(NULL);
}

static void other_float_types_become_float(void **unused)
{
    /* 1, -2, largest half, smallest subnormal, infinity, -0 */
    const uint16_t half[6] = {0x3c00, 0xc000, 0x7bff, 0x0001, 0x7c00, 0x8000};
    const float want[6] = {1, -2, 65504, 5.9604644775390625e-8f, INFINITY, -0.0f};
    const uint16_t brain[2] = {0x3f80, 0xc049};
    const double wide[4] = {0.5, 1e300, -1e-300, -1e300};
    unsigned char bytes[400];
    size_t n = file_of("{" TENSOR("h", "F16", "[6]", 32, 44) "," TENSOR(
                           "b", "BF16", "[2]", 44, 48) "," TENSOR("d", "F64", "[4]", 0, 32) "}",
                       48, bytes);
    ddp_safetensors *s;
    float x[6];

    (void)unused;
    memcpy(bytes + n - 48, wide, 32);
    memcpy(bytes + n - 16, half, 12);
    memcpy(bytes + n - 4, brain, 4);
    s = ddp_safetensors_from_bytes("m", bytes, n, NULL);
    assert_non_null(s);
    assert_int_equal(ddp_safetensors_floats(s, ddp_safetensors_find(s, "h"), 0, 6, x, NULL), 0);
    assert_memory_equal(x, want, sizeof want);
    assert_int_equal(ddp_safetensors_floats(s, ddp_safetensors_find(s, "b"), 0, 2, x, NULL), 0);
    assert_true(x[0] == 1 && x[1] == -3.140625f);
    assert_int_equal(ddp_safetensors_floats(s, ddp_safetensors_find(s, "d"), 0, 4, x, NULL), 0);
    assert_true(x[0] == 0.5f && x[1] == INFINITY && x[2] == 0 && x[3] == -INFINITY);
    ddp_safetensors_close(s);
}

static void inconsistent_headers_fail(void **unused)
{
    (void)unused;
    refused("", 0, "not a JSON object");
    refused(" {}", 0, "not a JSON object");
    refused("{\"a\":", 0, "line 1, column 6");
    refused("{} x", 0, "something follows");
    refused("{\"a\":3}", 0, "\"a\" must be an object");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"a\" must be an object");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"offsets\":[0,4]}}", 4, "data_offsets");
    refused("{" TENSOR("a", "F8_E4M3", "[4]", 0, 4) "}", 4, "dtype \"F8_E4M3\"");
    refused("{" TENSOR("a", "f32", "[1]", 0, 4) "}", 4, "dtype \"f32\"");
    refused("{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "9 dimensions");
    refused("{" TENSOR("a", "F32", "[-1]", 0, 4) "}", 4, "dimension 0 (-1)");
    refused("{" TENSOR("a", "F32", "[1.5]", 0, 4) "}", 4, "dimension 0 (1.5)");
    refused("{" TENSOR("a", "F32", "[\"1\"]", 0, 4) "}", 4, "dimension 0");
    refused("{" TENSOR("a", "F32", "[9223372036854775808]", 0, 4) "}", 4, "9.2233720368547758e+18");
    refused("{" TENSOR("a", "F32", "[4294967296,4294967296,4]", 0, 0) "}", 0, "2^53 bytes");
    refused("{" TENSOR("a", "F32", "[0,4294967296,4294967296]", 0, 0) "}", 0, "2^53 bytes");
    refused("{" TENSOR("a", "F32", "[2]", 0, 4) "}", 4, "takes 8 bytes by its shape");
    refused("{" TENSOR("a", "F32", "[1]", 4, 0) "}", 4, "not a pair");
    refused("{" TENSOR("a", "F32", "[1]", 0, 4.5) "}", 5, "not a pair");
    refused("{" TENSOR("a", "F32", "[1]", -4, 0) "}", 4, "not a pair");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "not a pair");
    refused("{" TENSOR("a", "F32", "[2]", 0, 8) "}", 7, "ends at byte 8, but the file holds 7");
    refused("{" TENSOR("a", "F32", "[2]", 0, 8) "," TENSOR("b", "F32", "[2]", 4, 12) "}", 12,
            "\"b\" begins at byte 4, inside tensor \"a\"");
    refused("{" TENSOR("a", "F32", "[1]", 0, 4) "," TENSOR("b", "F32", "[1]", 8, 12) "}", 12,
            "a gap of 4 bytes");
    refused("{" TENSOR("a", "F32", "[1]", 0, 4) "}", 9, "5 bytes follow the last");
    refused("{}", 1, "1 bytes follow");
    refused("{" TENSOR("a", "F32", "[1]", 0, 4) "," TENSOR("a", "F32", "[1]", 4, 8) "}", 8, "given twice");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__");
    refused("{\"__metadata__\":[]}", 0, "__metadata__");
    /* without an error struct */
    assert_null(ddp_safetensors_from_bytes("m", "\3\0\0\0\0\0\0\0{x}", 11, NULL));
}

static void wrong_header_lengths_fail(void **unused)
{
    unsigned char bytes[16];
    ddp_error err;

    (void)unused;
    memset(bytes, 0xff, sizeof bytes);
    assert_null(ddp_safetensors_from_bytes("m", bytes, 7, &err));
    assert_non_null(strstr(err.msg, "7 bytes are not a safetensors file"));
    assert_null(ddp_safetensors_from_bytes("m", NULL, 7, &err));
    assert_non_null(strstr(err.msg, "0 bytes are not a safetensors file"));
    assert_null(ddp_safetensors_from_bytes("m", bytes, 16, &err));
    assert_non_null(strstr(err.msg, "18446744073709551615 bytes, but only 8 follow"));
    memset(bytes, 0, sizeof bytes);
    bytes[0] = 9;
    assert_null(ddp_safetensors_from_bytes("m", bytes, 16, &err));
    assert_non_null(strstr(err.msg, "9 bytes, but only 8"));
}

static void every_truncation_of_a_file_fails(void **unused)
{
    unsigned char bytes[400];
    size_t n = file_of("{" TENSOR("a", "F32", "[2]", 0, 8) "," TENSOR("b", "F16", "[2]", 8, 12) "}", 12,
                       bytes),
           k;

    (void)unused;
    for (k = 0; k < n; k++) {
        /* an allocation of exactly that size, so that a sanitizer detects reads past it */
        unsigned char *cut = (unsigned char *)malloc(k ? k : 1);
        ddp_error err;

        assert_non_null(cut);
        memcpy(cut, bytes, k);
        assert_null(ddp_safetensors_from_bytes("m", cut, k, &err));
        assert_int_equal(err.code, DDP_FORMAT);
        free(cut);
    }
}

static void written_files_read_back(void **unused)
{
    char folder[] = "/tmp/ddp_st_XXXXXX", path[64];
    const float a[6] = {1, 2, 3, 4, 5, 6};
    const int64_t step = 1LL << 60;
    const char *notes[] = {"made by", "a \"test\"", "n", "2", NULL};
    const void *data[3];
    ddp_safetensor t[3];
    ddp_safetensors *s;
    ddp_error err;
    struct stat st;
    float x[6];
    int64_t back = 0;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/m.safetensors", folder);
    memset(t, 0, sizeof t);
    t[0].name = "step";
    t[0].type = DDP_ST_I64;
    data[0] = &step;
    t[1].name = "we\"ird \xc3\xa9";
    t[1].dims = 2;
    t[1].dim[0] = 2;
    t[1].dim[1] = 3;
    data[1] = a;
    t[2].name = "empty";
    t[2].dims = 1;
    data[2] = NULL;
    assert_int_equal(ddp_safetensors_write(path, 3, t, data, notes, &err), DDP_OK);
    s = ddp_safetensors_open(path, &err);
    if (!s) fail_msg("%s", err.msg);
    assert_int_equal(ddp_safetensors_count(s), 3);
    assert_int_equal(ddp_safetensors_floats(s, ddp_safetensors_find(s, t[1].name), 0, 6, x, NULL), DDP_OK);
    assert_memory_equal(x, a, sizeof a);
    assert_int_equal(ddp_safetensors_bytes(s, ddp_safetensors_find(s, "step"), 0, 1, &back, NULL), DDP_OK);
    assert_true(back == step);
    assert_string_equal(ddp_safetensors_note(s, "made by"), "a \"test\"");
    stat(path, &st);
    assert_int_equal((st.st_size - 32) % 8, 0); /* the data of 32 bytes are aligned */

    /* truncate the file while it is open */
    assert_int_equal(truncate(path, st.st_size - 4), 0);
    assert_int_equal(ddp_safetensors_floats(s, ddp_safetensors_find(s, t[1].name), 0, 6, x, &err), DDP_IO);
    assert_non_null(strstr(err.msg, "has become shorter"));
    ddp_safetensors_close(s);

    /* a failed write leaves the old file and no other */
    t[2].name = "step";
    assert_int_equal(ddp_safetensors_write(path, 3, t, data, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "two tensors are named \"step\""));
    t[2].name = "big";
    t[2].dim[0] = INT64_MAX;
    assert_int_equal(ddp_safetensors_write(path, 3, t, data, NULL, &err), DDP_ARG);
    assert_int_equal(stat(path, &st), 0);
    remove(path);

    /* keys without a value are not metadata */
    t[2].name = "empty";
    t[2].dim[0] = 0;
    assert_int_equal(ddp_safetensors_write(path, 3, t, data, notes + 4, &err), DDP_OK);
    s = ddp_safetensors_open(path, &err);
    assert_int_equal(ddp_safetensors_count(s), 3);
    assert_null(ddp_safetensors_note(s, "made by"));
    ddp_safetensors_close(s);
    remove(path);
    assert_int_equal(rmdir(folder), 0);

    assert_int_equal(ddp_safetensors_write(path, 1, t, data, NULL, &err), DDP_IO);
    assert_null(ddp_safetensors_open(path, &err));
    assert_int_equal(err.code, DDP_IO);
    assert_null(ddp_safetensors_open("/tmp", &err));
    assert_non_null(strstr(err.msg, "a directory"));
    assert_null(ddp_safetensors_open(NULL, &err));
    assert_int_equal(err.code, DDP_ARG);
    assert_int_equal(ddp_safetensors_write(NULL, 1, t, data, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "needs a name"));
    assert_int_equal(ddp_safetensors_count(NULL), 0);
    assert_true(!ddp_safetensors_at(NULL, 0) && !ddp_safetensors_find(NULL, "x") &&
                !ddp_safetensors_note(NULL, "x"));
}

/* As many tensors as in a checkpoint of a few thousand layers. */
static void file_with_thousands_of_tensors_reads_back(void **unused)
{
    enum { COUNT = 5000 };
    char path[] = "/tmp/ddp_st_XXXXXX", (*name)[20] = (char(*)[20])malloc(COUNT * sizeof *name);
    ddp_safetensor *t = (ddp_safetensor *)calloc(COUNT, sizeof *t);
    const void **data = (const void **)calloc(COUNT, sizeof *data);
    const float value = 7;
    const int file = mkstemp(path);
    ddp_safetensors *s;
    ddp_error err;
    float x = 0;
    int i;

    (void)unused;
    assert_true(file >= 0 && name && t && data);
    close(file);
    for (i = 0; i < COUNT; i++) {
        snprintf(name[i], sizeof *name, "layer.%d", i);
        t[i].name = name[i];
        data[i] = &value;
    }
    if (ddp_safetensors_write(path, COUNT, t, data, NULL, &err)) fail_msg("%s", err.msg);
    s = ddp_safetensors_open(path, &err);
    if (!s) fail_msg("%s", err.msg);
    assert_int_equal(ddp_safetensors_count(s), COUNT);
    assert_int_equal(ddp_safetensors_floats(s, ddp_safetensors_find(s, "layer.4999"), 0, 1, &x, &err),
                     DDP_OK);
    assert_true(x == value);
    ddp_safetensors_close(s);
    remove(path);
    free(name);
    free(t);
    free(data);
}

static void too_long_header_is_not_written(void **unused)
{
    const size_t n = 9 << 20;
    char *name = (char *)malloc(n);
    const float value = 7;
    const void *data = &value;
    ddp_safetensor t;
    ddp_error err;

    (void)unused;
    assert_non_null(name);
    memset(name, 'n', n - 1);
    name[n - 1] = 0;
    memset(&t, 0, sizeof t);
    t.name = name;
    assert_int_equal(ddp_safetensors_write("/tmp/ddp_st_long", 1, &t, &data, NULL, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "1 tensors make a header of 94"));
    assert_int_equal(access("/tmp/ddp_st_long", F_OK), -1);
    free(name);
}

/* An invalid type. C++ rejects a plain cast. */
static ddp_safetensors_type type_of(int number)
{
    ddp_safetensors_type t;

    memcpy(&t, &number, sizeof t);
    return t;
}

static void invalid_tensors_are_not_written(void **unused)
{
    const char path[] = "/tmp/ddp_st_impossible";
    const float value = 7;
    const void *data = &value;
    ddp_safetensor t;
    ddp_error err;

    (void)unused;
    remove(path);
    for (int i = 0; i < 6; i++) {
        memset(&t, 0, sizeof t);
        t.name = "scalar";
        if (i == 0) t.name = "__metadata__";
        if (i == 1) t.dims = -1;
        if (i == 2) t.dims = DDP_SAFETENSORS_DIMS + 1;
        if (i == 3) {
            t.dims = 1;
            t.dim[0] = -1;
        }
        if (i > 3) t.type = type_of(i == 4 ? -1 : (int)DDP_ST_BOOL + 1);
        memset(&err, 0, sizeof err);
        assert_int_equal(ddp_safetensors_write(path, 1, &t, &data, NULL, &err), DDP_ARG);
        assert_non_null(strstr(err.msg, t.name));
        assert_non_null(strstr(err.msg, "an impossible name, type or shape"));
        assert_int_equal(access(path, F_OK), -1);
        if (i < 4) continue;
        assert_string_equal(ddp_safetensors_type_name(t.type), "unknown");
        assert_int_equal(ddp_safetensors_type_bytes(t.type), 0);
    }
    assert_string_equal(ddp_safetensors_type_name(DDP_ST_BOOL), "BOOL");
    assert_int_equal(ddp_safetensors_type_bytes(DDP_ST_BOOL), 1);
}

/* The first 8 bytes give the length. The header itself is not read. */
static void header_above_8_mib_is_not_read(void **unused)
{
    const uint64_t most = (uint64_t)8 << 20;
    char path[] = "/tmp/ddp_st_XXXXXX";
    const int file = mkstemp(path);
    unsigned char word[8];
    ddp_error err;

    (void)unused;
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, (off_t)most + 9), 0);
    for (int more = 0; more < 2; more++) {
        for (int i = 0; i < 8; i++) word[i] = (unsigned char)((most + (uint64_t)more) >> (8 * i));
        assert_int_equal(pwrite(file, word, 8, 0), 8);
        assert_null(ddp_safetensors_open(path, &err));
        assert_int_equal(err.code, DDP_FORMAT);
        assert_non_null(strstr(err.msg, more ? "a header of 8388609 bytes; at most 8388608 are read"
                                             : "the header is not a JSON object"));
    }
    close(file);
    remove(path);
}

/* Opens a file of two arrays and reads both. */
static ddp_status all_read(const char *path, float *x, ddp_error *err)
{
    ddp_safetensors *s = ddp_safetensors_open(path, err);
    ddp_status code = s ? DDP_OK : err->code;

    if (code == DDP_OK) code = ddp_safetensors_floats(s, ddp_safetensors_find(s, "a"), 0, 2, x, err);
    if (code == DDP_OK) code = ddp_safetensors_floats(s, ddp_safetensors_find(s, "b"), 0, 3, x + 2, err);
    ddp_safetensors_close(s);
    return code;
}

static void failed_reads_are_reported_and_short_reads_continue(void **unused)
{
    const float want[5] = {1, 2, 0.5f, -3, 4};
    const double wide[3] = {0.5, -3, 4};
    const void *data[2];
    char path[] = "/tmp/ddp_st_XXXXXX";
    const int file = mkstemp(path);
    ddp_safetensor t[2];
    ddp_error err;
    float x[5];
    long reads;

    (void)unused;
    assert_true(file >= 0);
    close(file);
    memset(t, 0, sizeof t);
    t[0].name = "a";
    t[0].dims = 1;
    t[0].dim[0] = 2;
    data[0] = want;
    t[1].name = "b";
    t[1].dims = 1;
    t[1].dim[0] = 3;
    t[1].type = DDP_ST_F64;
    data[1] = wide;
    assert_int_equal(ddp_safetensors_write(path, 2, t, data, NULL, &err), DDP_OK);
    memset(&disk, 0, sizeof disk);
    assert_int_equal(all_read(path, x, &err), DDP_OK);
    reads = disk.reads;
    assert_int_equal(reads, 4); /* the length, the header, two arrays */
    for (long k = 1; k <= reads; k++) {
        memset(&err, 0, sizeof err);
        disk.reads = 0;
        disk.bad = k;
        assert_int_equal(all_read(path, x, &err), DDP_IO);
        if (!strstr(err.msg, path) || !strstr(err.msg, "at byte") || !strstr(err.msg, strerror(EIO)))
            fail_msg("read %ld: '%s'", k, err.msg);
        memset(x, 0, sizeof x);
        disk.reads = disk.bad = 0;
        disk.torn = k;
        assert_int_equal(all_read(path, x, &err), DDP_OK);
        assert_int_equal(disk.reads, reads + 1);
        assert_memory_equal(x, want, sizeof x);
        disk.torn = 0;
    }
    memset(x, 0, sizeof x);
    disk.most = 3; /* bytes per read */
    assert_int_equal(all_read(path, x, &err), DDP_OK);
    assert_memory_equal(x, want, sizeof x);
    memset(&disk, 0, sizeof disk);
    remove(path);
}

static uint64_t hash_of(ddp_graph *g)
{
    uint64_t h = 0;

    for (int l = 0; l < ddp_layer_count(g); l++) {
        size_t n;
        const float *p = ddp_layer_params(g, l, &n);
        h = ddp_hash_floats(h, p, n);
    }
    return h;
}

/* Each read fails in turn: of the header, of the last matrix and the token table, which are compared, and
 * of the arrays. Only the reads of arrays may leave a partly loaded model. */
static void failed_read_stops_loading_a_model(void **unused)
{
    enum { ARRAYS = 2 + 12 + 2, MOST = 6 * 24 };
    char path[] = "/tmp/ddp_st_XXXXXX", name[ARRAYS][64];
    const int file = mkstemp(path);
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_safetensor t[ARRAYS + 1];
    const void *data[ARRAYS + 1];
    float ones[MOST];
    ddp_gpt2_config c;
    ddp_shape s;
    ddp_error err;
    uint64_t fresh;
    long reads;

    (void)unused;
    assert_true(file >= 0);
    close(file);
    memset(&c, 0, sizeof c);
    c.vocabulary = 11;
    c.context = 4;
    c.layers = 1;
    c.heads = 2;
    c.dim = 6;
    c.batch = 1;
    ddp_gpt2(g, &c, NULL);
    assert_int_equal(ddp_graph_build(g), 0);
    fresh = hash_of(g);
    memset(t, 0, sizeof t);
    for (int i = 0; i < MOST; i++) ones[i] = 1;
    for (int i = 0; i < ARRAYS; i++) {
        assert_true(ddp_weights_describe(g, i, name[i], sizeof name[i], &s));
        t[i].name = name[i];
        t[i].dims = s.dims;
        data[i] = ones;
        for (int k = 0; k < s.dims; k++) t[i].dim[k] = s.dim[k];
        assert_true(ddp_safetensors_elements(&t[i]) <= MOST);
        if (!strcmp(name[i], "wte.weight")) t[ARRAYS] = t[i];
    }
    assert_int_equal(ddp_weights_describe(g, ARRAYS, name[0], sizeof name[0], &s), 0);
    t[ARRAYS].name = "lm_head.weight";
    data[ARRAYS] = ones;
    assert_int_equal(ddp_safetensors_write(path, ARRAYS + 1, t, data, NULL, &err), DDP_OK);
    memset(&disk, 0, sizeof disk);
    for (disk.bad = 1; ddp_weights_load(g, path, &err); disk.bad++) {
        assert_int_equal(err.code, DDP_IO);
        assert_non_null(strstr(err.msg, path));
        assert_true((hash_of(g) == fresh) == (disk.bad <= 2 + 2 + 1)); /* a failed read of the first array
                                                                        * changes nothing either */
        disk.reads = 0;
    }
    reads = disk.reads;
    assert_int_equal(reads, 2 + 2 + ARRAYS);
    assert_int_equal(disk.bad, reads + 1);
    for (int l = 0; l < ddp_layer_count(g); l++) {
        size_t n;
        const float *p = ddp_layer_params(g, l, &n);
        for (size_t i = 0; i < n; i++) assert_true(p[i] == 1);
    }
    memset(&disk, 0, sizeof disk);
    ddp_graph_free(g);
    remove(path);
}

/* Opening a pipe would block until a writer comes. */
static void pipe_fails_without_blocking(void **unused)
{
    char folder[] = "/tmp/ddp_st_XXXXXX", path[64];
    ddp_error err;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20);
    assert_null(ddp_safetensors_open(path, &err));
    alarm(0);
    assert_non_null(strstr(err.msg, path));
    assert_non_null(strstr(err.msg, "it is a pipe, a file is needed"));
    remove(path);
    rmdir(folder);
}

/* Must be the last test: the next file gets the same descriptor number as the first file of the program. */
static void all_memory_and_files_are_released(void **state)
{
    const int next = dup(STDIN_FILENO);

    (void)state;
    assert_int_equal(live, 0);
    assert_int_equal(next, first_free);
    close(next);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_are_found_by_name_and_read_in_parts),
        cmocka_unit_test(other_float_types_become_float),
        cmocka_unit_test(inconsistent_headers_fail),
        cmocka_unit_test(wrong_header_lengths_fail),
        cmocka_unit_test(every_truncation_of_a_file_fails),
        cmocka_unit_test(written_files_read_back),
        cmocka_unit_test(file_with_thousands_of_tensors_reads_back),
        cmocka_unit_test(too_long_header_is_not_written),
        cmocka_unit_test(invalid_tensors_are_not_written),
        cmocka_unit_test(header_above_8_mib_is_not_read),
        cmocka_unit_test(failed_reads_are_reported_and_short_reads_continue),
        cmocka_unit_test(failed_read_stops_loading_a_model),
        cmocka_unit_test(pipe_fails_without_blocking),
        cmocka_unit_test(all_memory_and_files_are_released),
    };

    first_free = dup(STDIN_FILENO);
    close(first_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
