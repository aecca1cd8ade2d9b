/* Utilities that nearly every file of the implementation uses: errors and logging, memory, text and
 * files, arrays, hashes, shuffling, threads. A function that fails fills the caller's ddp_error and
 * returns the code. */
#pragma once

#include "base/array.h"
#include "base/platform.h"
#include "base/tools.h"

/* Stores code and the formatted message in *err (may be NULL) and returns code. */
DDP_LIB ddp_status ddp__fail(ddp_error *err, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);

/* Returns DDP_OK if value is finite and >= 0 (above 1: > 0). Otherwise returns DDP_ARG with the formatted
 * text, followed by "it must be finite and ...". */
DDP_LIB ddp_status ddp__check_finite(double value, int above, ddp_error *err, const char *fmt, ...)
    DDP__PRINTF(4, 5);

/* Returns from the calling function if the call fails. For functions that return ddp_status. */
#define DDP__TRY(call)                             \
    do {                                           \
        ddp_status ddp__try_ = (call);             \
        if (ddp__try_ != DDP_OK) return ddp__try_; \
    } while (0)
/* The same for functions that return int. */
#define DDP__DO(call)                 \
    do {                              \
        const int bad_ = (int)(call); \
        if (bad_) return bad_;        \
    } while (0)

/* Initialiser that zeroes an object at its declaration. Not for unions, nor for structs that are sent
 * with their padding. */
#ifdef __cplusplus
#define DDP__ZEROS \
    {              \
    }
#else
#define DDP__ZEROS \
    {              \
        0          \
    }
#endif

/* Takes a level or fn that the program did not set from the environment (unless no_env). */
DDP_LIB ddp_logger ddp__log_resolve(const ddp_logger *given, int no_env);
DDP_LIB void ddp__log(const ddp_logger *log, ddp_log_level level, const char *fmt, ...) DDP__PRINTF(3, 4);
/* Converts "off", "error", "warn", "info" or "debug" to its level. Returns DDP_LOG_DEFAULT for other
 * names. */
DDP_LIB ddp_log_level ddp__log_level_named(const char *name);

/* Allocates zeroed, 64-byte aligned memory for tensors from a (NULL or all-zero: the default). Returns
 * NULL if bytes is 0 or memory is short. */
DDP_LIB void *ddp__alloc(const ddp_allocator *a, size_t bytes);
DDP_LIB void ddp__release(const ddp_allocator *a, void *ptr, size_t bytes);

/* Bytes that this process can use: RAM of the machine or container plus swap, limited by ulimit -v.
 * malloc may promise more. Returns 0 if unknown. */
DDP_LIB double ddp__memory_total(void);

/* Allocates count zeroed elements for bookkeeping (at least 1 byte). Returns NULL if memory is short or
 * the size overflows. Freed with DDP_FREE. */
DDP_LIB void *ddp__calloc(size_t count, size_t size);
DDP_LIB char *ddp__strdup(const char *s);
DDP_LIB int ddp__rising(const void *a, const void *b); /* qsort order of doubles, ascending */

/* Arrays that are freed together. */
typedef struct ddp__scratch {
    void *last; /* NULL without arrays */
    int failed; /* 1 if an allocation failed, so some array is NULL */
} ddp__scratch;

DDP_LIB void *ddp__scratch_take(ddp__scratch *s, size_t count, size_t size); /* zeroed */
DDP_LIB int *ddp__ints(ddp__scratch *s, size_t count);
DDP_LIB double *ddp__doubles(ddp__scratch *s, size_t count);
DDP_LIB void ddp__scratch_free(ddp__scratch *s);        /* keeps `failed` */
DDP_LIB int ddp__scratch_failed(const ddp__scratch *s); /* 1 after an allocation failed, never reset */
DDP_LIB void ddp__scratch_fail(ddp__scratch *s); /* records a failed allocation elsewhere in the same work */

/* The prefix of a layer's name in a message: "layer ", or "" if the name begins with it. An unnamed layer
 * is called "layer 5". */
DDP_LIB const char *ddp__layer_prefix(const char *name);

/* ---- random streams of ddp_rng. The state advances by a constant, so a GPU kernel can compute any draw
 * directly. ---- */

#define DDP__RNG_STEP UINT64_C(0x9e3779b97f4a7c15)

static inline DDP__DEVICE uint64_t ddp__mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The state of ddp_rng_seed(seed, stream). mixed: ddp__mix64(seed + DDP__RNG_STEP). */
static inline DDP__DEVICE uint64_t ddp__rng_stream(uint64_t mixed, uint64_t stream)
{
    return mixed ^ ddp__mix64(stream * UINT64_C(0xd1342543de82ef95) + UINT64_C(0x2545f4914f6cdd1d));
}

/* ---- tests for NaN and infinity. Under -ffinite-math-only (part of -Ofast and -ffast-math) a compiler
 * assumes that all numbers are finite and removes comparisons that test for it. Use only the functions
 * below: they test the bits, and the asm statement prevents the compiler from relating the bits to the
 * number. Use DBL_MAX as a sentinel, never INFINITY. ---- */

static inline int ddp__finite(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    __asm__("" : "+r"(bits));
    return (bits >> 52 & 0x7ff) != 0x7ff;
}

static inline int ddp__is_nan(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    __asm__("" : "+r"(bits));
    return bits << 1 > UINT64_C(0xffe) << 52;
}

/* 1 if x is finite and in [least, most]. A NaN is in no range. */
static inline int ddp__within(double x, double least, double most)
{
    return ddp__finite(x) && x >= least && x <= most;
}

/* The same, but x may also be 0, which means the default. */
static inline int ddp__zero_or_within(double x, double least, double most)
{
    return ddp__finite(x) && (x == 0 || (x >= least && x <= most));
}

/* NaN, for values that are not known. */
static inline double ddp__unknown(void)
{
    uint64_t bits = UINT64_C(0x7ff8) << 48;
    double x;

    __asm__("" : "+r"(bits));
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- numbers as text. A program may call setlocale and get a decimal comma, but this library reads and
 * writes a point. Only the functions below call strtod and vsnprintf. ---- */

/* snprintf and vsnprintf with a decimal point, whatever the locale of the program or the thread. */
DDP_LIB int ddp__format(char *out, size_t room, const char *fmt, ...) DDP__PRINTF(3, 4);
DDP_LIB int ddp__format_list(char *out, size_t room, const char *fmt, va_list list) DDP__PRINTF(3, 0);
/* strtod with a decimal point. */
DDP_LIB double ddp__number(const char *s, char **end);

/* ---- growing text, files that are read whole and written whole or not at all, strict parsing of
 * numbers ---- */

/* A growing, NUL-terminated buffer. All-zero is empty. After a failed allocation, `failed` is 1 and appends
 * have no effect, so a check at the end is enough. */
typedef struct ddp__text {
    char *data;
    size_t size, room;
    int failed, fixed; /* fixed 1 means that data is the caller's and does not grow */
} ddp__text;

DDP_LIB void ddp__text_add(ddp__text *t, const char *bytes, size_t n);
DDP_LIB void ddp__text_addf(ddp__text *t, const char *fmt, ...) DDP__PRINTF(2, 3);
DDP_LIB void ddp__text_free(ddp__text *t);

/* "a file", "a directory", "a pipe", "a socket" or "a device", from st_mode of stat. */
DDP_LIB const char *ddp__file_kind(mode_t mode);

/* Reads a whole file into t. Files ending in .gz are read through `gzip -dc`. Fails if path is not a regular
 * file, because reading a pipe or device might never end. */
DDP_LIB ddp_status ddp__file_read(const char *path, ddp__text *t, ddp_error *err);
/* Length of the UTF-8 byte order mark at the beginning of a text: 3, or 0 without a mark. Windows
 * editors write one. */
DDP_LIB size_t ddp__bom_bytes(const char *text, size_t n);

/* A file in memory: its mapped pages, read-only and shared by all processes that map it, or a copy. */
typedef struct ddp__mapped {
    const unsigned char *bytes;
    size_t size;
    void *pages; /* NULL: `copy` has the bytes */
    ddp__text copy;
} ddp__mapped;

/* ddp__file_map maps a file, or copies it if the name ends in .gz, the file is empty or the file system
 * cannot map it. The file must not shrink before ddp__file_unmap: a read past its new end raises SIGBUS.
 * All-zero means that no file is mapped. */
DDP_LIB ddp_status ddp__file_map(const char *path, ddp__mapped *m, ddp_error *err);
DDP_LIB void ddp__file_unmap(ddp__mapped *m);

/* The type of a file that begins with these n bytes, such as "a zip archive", or NULL if unknown. *remedy
 * receives a hint how to train on its content. Both strings are constants. Detecting a tar archive needs 262
 * bytes. */
DDP_LIB const char *ddp__file_type(const void *bytes, size_t n, const char **remedy);

/* A file that appears under its name whole or not at all. It is written to PATH.tmp.PID, flushed and renamed.
 * Then its directory is flushed. If PATH exists and is not a regular file (/dev/stdout, a pipe), it is
 * written directly. After a failure, ddp__file_put does nothing and ddp__file_end reports the error. Each
 * successful ddp__file_begin needs one ddp__file_end or ddp__file_drop. */
typedef struct ddp__file {
    FILE *f;
    char *path, *tmp; /* the same string if the file is written directly */
    int why;          /* errno of the first failure */
} ddp__file;

DDP_LIB ddp_status ddp__file_begin(ddp__file *o, const char *path, ddp_error *err);
DDP_LIB void ddp__file_put(ddp__file *o, const void *bytes, size_t n);
/* The file as an unbuffered stream, and its final name. Both are valid until ddp__file_end or
 * ddp__file_drop. */
DDP_LIB FILE *ddp__file_stream(ddp__file *o);
DDP_LIB const char *ddp__file_name(const ddp__file *o);
DDP_LIB ddp_status ddp__file_end(ddp__file *o, ddp_error *err);
DDP_LIB void ddp__file_drop(ddp__file *o); /* discards the file and leaves PATH unchanged */
/* Begin, put and end in one call. */
DDP_LIB ddp_status ddp__file_write(const char *path, const char *bytes, size_t n, ddp_error *err);
DDP_LIB ddp_status ddp__text_write(ddp__text *t, const char *path, ddp_error *err); /* also frees the text */

/* Flushes the directory that contains path, so that new files in it survive a crash. Errors: DDP_IO,
 * DDP_MEMORY. */
DDP_LIB ddp_status ddp__folder_flush(const char *path, ddp_error *err);

/* The value of an environment variable, or NULL if it is unset or empty. */
DDP_LIB const char *ddp__env_get(const char *name);

/* Parse a string that must be a number without further text. Return 1 and set *out, or return 0. Infinities
 * and NaN are not accepted. */
DDP_LIB int ddp__parse_double(const char *s, double *out);
DDP_LIB int ddp__parse_ratio(const char *s, double *out); /* also accepts a fraction: "1/64" */
DDP_LIB int ddp__parse_long(const char *s, long *out);
/* Levenshtein distance of two short words. An is the length of a. Returns 99 if a word is too long. */
DDP_LIB int ddp__word_distance(const char *a, size_t an, const char *b);

/* ---- hashes of bytes: FNV-1a for names and settings, MurmurHash3 to detect corruption, SHA-256 (FIPS
 * 180-4) against attackers ---- */

/* 64-bit FNV-1a. To hash several arrays, pass the previous result. Start with DDP__HASH_START. */
#define DDP__HASH_START UINT64_C(0xcbf29ce484222325)
DDP_LIB uint64_t ddp__hash(uint64_t h, const void *data, size_t n);

/* A random number that is unique over all calls, processes and machines with high probability. It is odd,
 * so never 0. */
DDP_LIB uint64_t ddp__fresh_number(void);

/* 128-bit hash of a byte stream that may arrive in pieces of any length: MurmurHash3_x64_128 with seed 0
 * (Austin Appleby, public domain). A change confined to 16 aligned bytes always changes the hash. Start
 * with an all-zero digester. */
typedef struct ddp__digest {
    uint64_t word[2];
} ddp__digest;

typedef struct ddp__digester {
    ddp__digest state;
    uint64_t bytes;         /* hashed so far */
    unsigned char tail[16]; /* the last bytes % 16 bytes, not yet mixed */
} ddp__digester;

enum { DDP__DIGEST_TEXT = 33 }; /* 32 hexadecimal digits and a NUL */

DDP_LIB void ddp__digest_add(ddp__digester *d, const void *data, size_t n);
DDP_LIB ddp__digest ddp__digest_end(const ddp__digester *d);
DDP_LIB ddp__digest ddp__digest_of(const void *data, size_t n);
DDP_LIB int ddp__digest_equal(ddp__digest a, ddp__digest b);
DDP_LIB void ddp__digest_text(ddp__digest x, char out[DDP__DIGEST_TEXT]);

#define DDP__SHA256_BYTES 32
DDP_LIB void ddp__sha256(const void *data, size_t n, unsigned char *digest);

/* ---- assignment of samples to ranks: all samples form a deck, which the seed shuffles again for each
 * pass ---- */

/* Card number i of a shuffled deck of n >= 1 cards. A four-round Feistel network permutes a power of four
 * >= n, repeatedly until the value is below n (cycle walking, Black and Rogaway, Ciphers with arbitrary
 * finite domains, 2002). */
DDP_LIB uint64_t ddp__shuffled(uint64_t i, uint64_t n, uint64_t key);

/* The sample, out of n >= 1, that is card number `card` counted from the start of training. The deck of pass
 * card / n is a permutation of all samples. It is never stored. The cost is O(1). Pure. */
DDP_LIB long ddp__deal(uint64_t seed, uint64_t card, uint64_t n);

/* ---- the processor ---- */

/* Returns 1 if the processor supports the instructions of that ddp_kernels value (config/config.h), and
 * always for 0 and base. DDP_KERNELS_AVX2 also needs FMA, and DDP_KERNELS_AVX512 needs avx512f. */
DDP_LIB int ddp__cpu_runs(int kernels);

/* ---- threads, locks and atomics, written the same in C11 and C++17 ---- */

#define ddp__atomic_load(p)     __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define ddp__atomic_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define ddp__atomic_add(p, v)   __atomic_fetch_add((p), (v), __ATOMIC_ACQ_REL)
#define ddp__atomic_swap(p, v)  __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL)

DDP_LIB struct timespec ddp__timespec(double s);
/* ddp__time_set replaces this thread's clock with the variable *now (NULL for the machine's clock again) and
 * returns the previous variable. Only sleeps of this thread and the owner of the variable advance it.
 * ddp__time returns the current variable. */
DDP_LIB double *ddp__time_set(double *now);
DDP_LIB double *ddp__time(void);
DDP_LIB void ddp__sleep_until(double when); /* until ddp_now() >= when (seconds), despite signals */

/* Moves the start of a time limit later by `seconds`, at most to now. A negative start means that no
 * limit is active. */
DDP_LIB void ddp__extend(double *since, double seconds, double now);

/* Asks the scheduler to run the calling thread soon after it wakes, even while compute threads occupy
 * every core. It requests short time slices, which needs no privilege. It has an effect on Linux 6.12 and
 * later only. */
DDP_LIB void ddp__thread_prompt(void);

/* pthread_create for a thread that calls functions of the program. They may need more stack than the
 * default of 128 KiB on musl and 512 KiB on macOS. No function of the library has a frame above 16 KiB. */
DDP_LIB int ddp__thread_deep(pthread_t *thread, void *(*fn)(void *), void *arg);

/* Processor time of a running thread so far, in seconds, or 0 if the system does not report it. */
DDP_LIB double ddp__thread_cpu_s(pthread_t thread);

DDP_LIB int ddp__cond_init(pthread_cond_t *c); /* uses the monotonic clock */
/* Waits for c until ddp_now() reaches when (seconds), or without a limit if when < 0. Returns 0 or
 * ETIMEDOUT. */
DDP_LIB int ddp__cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, double when);

/* A pool that splits loops over threads, which sleep between loops. One caller at a time. fn(user, first,
 * last) processes items first..last-1. The split depends only on items and grain, so results do not
 * depend on the number of threads. */
typedef struct ddp__pool ddp__pool;
typedef void (*ddp__range_fn)(void *user, long first, long last);

/* Opens a pool of threads >= 1, which include the caller. Returns NULL if memory or threads are short. */
DDP_LIB ddp__pool *ddp__pool_open(int threads);
DDP_LIB void ddp__pool_close(ddp__pool *pool);
DDP_LIB int ddp__pool_threads(const ddp__pool *pool);
/* Runs fn over items 0..items-1 in blocks of grain items and returns when all are done. Runs in the calling
 * thread if pool is NULL. */
DDP_LIB void ddp__pool_run(ddp__pool *pool, long items, long grain, ddp__range_fn fn, void *user);

/* Per-thread working memory for arrays that are too large for a stack: DDP__ROOM_BYTES, aligned to 64 bytes,
 * with the content of the last call. ddp__pool_rooms allocates it for each thread, once. It returns 0 if
 * memory is short. ddp__pool_run_rooms is ddp__pool_run for a pool with working memory: fn may use the room
 * of its thread until it returns. */
enum { DDP__ROOM_BYTES = 672 << 10 };
typedef void (*ddp__room_fn)(void *user, void *room, long first, long last);
DDP_LIB int ddp__pool_rooms(ddp__pool *pool);
DDP_LIB void ddp__pool_run_rooms(ddp__pool *pool, long items, long grain, ddp__room_fn fn, void *user);
