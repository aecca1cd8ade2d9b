/* What nearly every file of the implementation uses: failures and log lines, memory, text and files, arrays,
 * hashes, shuffled decks, threads. A failure fills the caller's ddp_error and returns the code; log lines go
 * to the logger. */
#pragma once

#include "base/array.h"
#include "base/platform.h"
#include "base/tools.h"

/* Fills *err (may be NULL) with code and the formatted sentence; returns code. */
DDP_LIB ddp_status ddp__fail(ddp_error *err, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);

/* DDP_OK if value is finite and at least 0, or above it; else DDP_ARG and what fmt says; "it must be finite
 * and ...". */
DDP_LIB ddp_status ddp__check_finite(double value, int above, ddp_error *err, const char *fmt, ...)
    DDP__PRINTF(4, 5);

/* Forwards a failure of a call that returns ddp_status. */
#define DDP__TRY(call)                             \
    do {                                           \
        ddp_status ddp__try_ = (call);             \
        if (ddp__try_ != DDP_OK) return ddp__try_; \
    } while (0)
/* The same where an int is returned. */
#define DDP__DO(call)                 \
    do {                              \
        const int bad_ = (int)(call); \
        if (bad_) return bad_;        \
    } while (0)

/* What an object begins as where it is declared; not of unions nor of what is sent with its padding. */
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

/* Resolves level and fn from the environment (unless no_env). */
DDP_LIB ddp_logger ddp__log_resolve(const ddp_logger *given, int no_env);
DDP_LIB void ddp__log(const ddp_logger *log, ddp_log_level level, const char *fmt, ...) DDP__PRINTF(3, 4);
/* off, error, warn, info, debug -> level; DDP_LOG_DEFAULT if unknown. */
DDP_LIB ddp_log_level ddp__log_level_named(const char *name);

/* Memory for tensors: zeroed, 64-byte aligned, from a (NULL or all-zero = default). NULL if bytes is 0 or
 * short. */
DDP_LIB void *ddp__alloc(const ddp_allocator *a, size_t bytes);
DDP_LIB void ddp__release(const ddp_allocator *a, void *ptr, size_t bytes);

/* Bytes that this process can have, whatever malloc promises: the machine's or container's, and swap; 0:
 * unknown. */
DDP_LIB double ddp__memory_total(void);

/* Bookkeeping: count zeroed elements (at least 1 byte); NULL when memory is short or it overflows. For
 * DDP_FREE. */
DDP_LIB void *ddp__calloc(size_t count, size_t size);
DDP_LIB char *ddp__strdup(const char *s);
DDP_LIB int ddp__rising(const void *a, const void *b); /* qsort's order of doubles, and of what begins with
                                                            one */

/* Arrays that are freed together. */
typedef struct ddp__scratch {
    void *last; /* all-zero: none */
    int failed; /* memory was short: some array is NULL */
} ddp__scratch;

DDP_LIB void *ddp__scratch_take(ddp__scratch *s, size_t count, size_t size); /* zeroed */
DDP_LIB int *ddp__ints(ddp__scratch *s, size_t count);
DDP_LIB double *ddp__doubles(ddp__scratch *s, size_t count);
DDP_LIB void ddp__scratch_free(ddp__scratch *s);        /* `failed` stays */
DDP_LIB int ddp__scratch_failed(const ddp__scratch *s); /* memory was short since the last clearing */
DDP_LIB void ddp__scratch_fail(ddp__scratch *s);        /* memory was short elsewhere, for the same work */

/* What stands before the name of a layer in a message: "layer ", or nothing if the name is "layer 5", which a
 * layer without a name of its own has. */
DDP_LIB const char *ddp__layer_prefix(const char *name);

/* ---- the streams of ddp_rng: a state goes up by a constant, so that a kernel of a GPU can have any draw at
 * once ---- */

#define DDP__RNG_STEP UINT64_C(0x9e3779b97f4a7c15)

static inline DDP__DEVICE uint64_t ddp__mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The state of ddp_rng_seed(seed, stream); mixed: ddp__mix64(seed + DDP__RNG_STEP). */
static inline DDP__DEVICE uint64_t ddp__rng_stream(uint64_t mixed, uint64_t stream)
{
    return mixed ^ ddp__mix64(stream * UINT64_C(0xd1342543de82ef95) + UINT64_C(0x2545f4914f6cdd1d));
}

/* ---- numbers that are not finite. Under -ffinite-math-only, which -Ofast and -ffast-math include, a
 * compiler assumes that there are none and removes every comparison that would find them. So only these
 * functions look for them, by their bits, which the compiler may not trace back to the number. A sentinel is
 * DBL_MAX, never INFINITY. ---- */

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

/* Finite and from least to most; an argument that is NaN is in no range. */
static inline int ddp__within(double x, double least, double most)
{
    return ddp__finite(x) && x >= least && x <= most;
}

/* The same, or 0 for the default. */
static inline int ddp__zero_or_within(double x, double least, double most)
{
    return ddp__finite(x) && (x == 0 || (x >= least && x <= most));
}

/* NaN, for figures that are not known. */
static inline double ddp__unknown(void)
{
    uint64_t bits = UINT64_C(0x7ff8) << 48;
    double x;

    __asm__("" : "+r"(bits));
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- numbers as text. A program may call setlocale and get a decimal comma; this library reads and writes a
 * point. Only these functions call strtod and vsnprintf. ---- */

/* snprintf and vsnprintf with a decimal point, whatever locale the program or the thread has chosen. */
DDP_LIB int ddp__format(char *out, size_t room, const char *fmt, ...) DDP__PRINTF(3, 4);
DDP_LIB int ddp__format_list(char *out, size_t room, const char *fmt, va_list list) DDP__PRINTF(3, 0);
/* strtod with a decimal point. */
DDP_LIB double ddp__number(const char *s, char **end);

/* ---- growing text, files read whole and written whole or not at all, numbers that must be whole ---- */

/* A growing, NUL-terminated buffer; all-zero = empty. Once `failed` appends do nothing: check at the end. */
typedef struct ddp__text {
    char *data;
    size_t size, room;
    int failed, fixed; /* fixed: data is the caller's, and does not grow */
} ddp__text;

DDP_LIB void ddp__text_add(ddp__text *t, const char *bytes, size_t n);
DDP_LIB void ddp__text_addf(ddp__text *t, const char *fmt, ...) DDP__PRINTF(2, 3);
DDP_LIB void ddp__text_free(ddp__text *t);

/* "a file", "a directory", "a pipe", "a socket", "a device", of stat's st_mode. */
DDP_LIB const char *ddp__file_kind(mode_t mode);

/* Reads a whole file (.gz through `gzip -dc`) into t. What is no regular file, and might never end, is
 * refused. */
DDP_LIB ddp_status ddp__file_read(const char *path, ddp__text *t, ddp_error *err);
/* Bytes of a byte order mark of UTF-8 at the beginning of a text, as editors of Windows write one: 3, or 0
 * without. */
DDP_LIB size_t ddp__bom_bytes(const char *text, size_t n);

/* The same without a copy where the system can: the file's pages, read-only and shared by all processes that
 * map it. */
typedef struct ddp__mapped {
    const unsigned char *bytes;
    size_t size;
    void *pages; /* NULL: `copy` holds the bytes */
    ddp__text copy;
} ddp__mapped;

/* A name ending in .gz, an empty file and a file system that cannot map give a copy. The file must keep its
 * length until the unmap: reading behind its new end is a SIGBUS. All-zero = nothing mapped. */
DDP_LIB ddp_status ddp__file_map(const char *path, ddp__mapped *m, ddp_error *err);
DDP_LIB void ddp__file_unmap(ddp__mapped *m);

/* The kind of a file that begins with these n bytes, e.g. "a zip archive", and in *remedy how to train on its
 * content. NULL: an unknown kind. tar archives need 262 bytes. Both are constants. */
DDP_LIB const char *ddp__file_type(const void *bytes, size_t n, const char **remedy);

/* A file that appears under its name whole or not at all: written to PATH.tmp.PID, flushed, renamed, and its
 * folder flushed. What is no regular file (/dev/stdout, a pipe) is written straight to. After a failure puts
 * do nothing, and the end reports it; every begin that succeeds needs an end or a drop. */
typedef struct ddp__file {
    FILE *f;
    char *path, *tmp; /* equal where the file is written straight to */
    int why;          /* errno of the first failure */
} ddp__file;

DDP_LIB ddp_status ddp__file_begin(ddp__file *o, const char *path, ddp_error *err);
DDP_LIB void ddp__file_put(ddp__file *o, const void *bytes, size_t n);
/* An unbuffered stream onto the file, and the name that it will have; both until the end. */
DDP_LIB FILE *ddp__file_stream(ddp__file *o);
DDP_LIB const char *ddp__file_name(const ddp__file *o);
DDP_LIB ddp_status ddp__file_end(ddp__file *o, ddp_error *err);
DDP_LIB void ddp__file_drop(ddp__file *o); /* nothing is left, PATH is as it was */
/* The three in one. */
DDP_LIB ddp_status ddp__file_write(const char *path, const char *bytes, size_t n, ddp_error *err);
DDP_LIB ddp_status ddp__text_write(ddp__text *t, const char *path, ddp_error *err); /* and frees the text */

/* Flushes the folder that holds path: what was made there outlives a crash. Errors: DDP_IO, DDP_MEMORY. */
DDP_LIB ddp_status ddp__folder_flush(const char *path, ddp_error *err);

/* The whole of s must be one number: 1 and *out set, or 0. Infinities and NaN are refused. */
DDP_LIB const char *ddp__env_get(const char *name); /* a variable; NULL if it is unset or empty */
DDP_LIB int ddp__parse_double(const char *s, double *out);
DDP_LIB int ddp__parse_ratio(const char *s, double *out); /* the same, or a fraction of two: "1/64" */
DDP_LIB int ddp__parse_long(const char *s, long *out);
/* Levenshtein distance of two short words, the first of an letters; 99: one is long. */
DDP_LIB int ddp__word_distance(const char *a, size_t an, const char *b);

/* ---- hashes of bytes: FNV-1a for names and settings, MurmurHash3 against damage, SHA-256 (FIPS 180-4)
 * against adversaries ---- */

/* 64-bit FNV-1a, chained: pass the previous result, or DDP__HASH_START. */
#define DDP__HASH_START UINT64_C(0xcbf29ce484222325)
DDP_LIB uint64_t ddp__hash(uint64_t h, const void *data, size_t n);

/* A number that no other call has given, in any process on any machine; odd, so never 0. */
DDP_LIB uint64_t ddp__fresh_number(void);

/* 128 bits of any number of bytes, in pieces of any length: MurmurHash3_x64_128 with seed 0 (Austin Appleby,
 * public domain). A change within 16 aligned bytes always changes it. An all-zero digester is the start. */
typedef struct ddp__digest {
    uint64_t word[2];
} ddp__digest;

typedef struct ddp__digester {
    ddp__digest state;
    uint64_t bytes;         /* so far */
    unsigned char tail[16]; /* the last bytes % 16 of them */
} ddp__digester;

enum { DDP__DIGEST_TEXT = 33 }; /* 32 hexadecimal digits */

DDP_LIB void ddp__digest_add(ddp__digester *d, const void *data, size_t n);
DDP_LIB ddp__digest ddp__digest_end(const ddp__digester *d);
DDP_LIB ddp__digest ddp__digest_of(const void *data, size_t n);
DDP_LIB int ddp__digest_equal(ddp__digest a, ddp__digest b);
DDP_LIB void ddp__digest_text(ddp__digest x, char out[DDP__DIGEST_TEXT]);

#define DDP__SHA256_BYTES 32
DDP_LIB void ddp__sha256(const void *data, size_t n, unsigned char *digest);

/* ---- dealing samples to ranks: a deck of all samples, shuffled afresh each pass by the seed ---- */

/* Card number i of a shuffled deck of n >= 1: a four-round Feistel network permutes the next power of four,
 * again until the value falls inside the deck (Black and Rogaway, Ciphers with arbitrary finite domains,
 * 2002). */
DDP_LIB uint64_t ddp__shuffled(uint64_t i, uint64_t n, uint64_t key);

/* Which of n >= 1 samples is card number `card`, counted from the start of training: the deck of pass card /
 * n is a permutation of all samples. Never stored: O(1). Pure. */
DDP_LIB long ddp__deal(uint64_t seed, uint64_t card, uint64_t n);

/* ---- the processor ---- */

/* 1: it runs the instructions of that ddp_kernels (config/config.h): 0 and base always, avx2 with FMA,
 * avx512f. */
DDP_LIB int ddp__cpu_runs(int kernels);

/* ---- threads, locks and atomics with one spelling in C11 and C++17 ---- */

#define ddp__atomic_load(p)     __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define ddp__atomic_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define ddp__atomic_add(p, v)   __atomic_fetch_add((p), (v), __ATOMIC_ACQ_REL)
#define ddp__atomic_swap(p, v)  __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL)

DDP_LIB struct timespec ddp__timespec(double s);
/* This thread's time is a variable's from here on (NULL: the machine's again), which only its sleeping and
 * whoever owns the variable change; returns what it was. time: what it is. */
DDP_LIB double *ddp__time_set(double *now);
DDP_LIB double *ddp__time(void);
DDP_LIB void ddp__sleep_until(double when); /* sleeps until ddp_now() >= when (seconds), whatever signals
                                               arrive */

/* Moves the start of a time limit later by `seconds`, at most to now. A start below 0 means that no limit
 * runs. */
DDP_LIB void ddp__extend(double *since, double seconds, double now);

/* Asks the scheduler to run the calling thread soon after it wakes, even where computing threads keep every
 * core busy: short time slices, which need no privilege (Linux 6.12 and later; elsewhere nothing happens). */
DDP_LIB void ddp__thread_prompt(void);

/* pthread_create of a thread that calls functions of the program, which may need more stack than the 128 KiB
 * of musl and the 512 KiB of macOS. No function of the library has a frame above 16 KiB. */
DDP_LIB int ddp__thread_deep(pthread_t *thread, void *(*fn)(void *), void *arg);

/* Processor time that a running thread has used so far, seconds; 0 where the system does not tell. */
DDP_LIB double ddp__thread_cpu_s(pthread_t thread);

DDP_LIB int ddp__cond_init(pthread_cond_t *c); /* A condition variable on the monotonic clock */
/* Waits for c until ddp_now() reaches when; when < 0 waits without limit. 0, or ETIMEDOUT. */
DDP_LIB int ddp__cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, double when);

/* A pool that splits loops over threads and sleeps in between; one caller at a time.
 * fn(user, first, last) handles items first..last-1. The split depends only on items and
 * grain, never on the number of threads, so results cannot either. */
typedef struct ddp__pool ddp__pool;
typedef void (*ddp__range_fn)(void *user, long first, long last);

/* threads >= 1, the caller included; NULL when memory or threads are short. */
DDP_LIB ddp__pool *ddp__pool_open(int threads);
DDP_LIB void ddp__pool_close(ddp__pool *pool);
DDP_LIB int ddp__pool_threads(const ddp__pool *pool);
/* Runs fn over 0..items in blocks of grain items; returns when all are done. NULL pool: inline. */
DDP_LIB void ddp__pool_run(ddp__pool *pool, long items, long grain, ddp__range_fn fn, void *user);

/* Working memory of a thread, for arrays that are too large for a stack: DDP__ROOM_BYTES, aligned to 64
 * bytes, as the last call left it. ddp__pool_rooms allocates one for each thread, once; 0 when memory is
 * short. ddp__pool_run_rooms - as ddp__pool_run of a pool that has rooms; fn may use its thread's room until
 * it returns. */
enum { DDP__ROOM_BYTES = 672 << 10 };
typedef void (*ddp__room_fn)(void *user, void *room, long first, long last);
DDP_LIB int ddp__pool_rooms(ddp__pool *pool);
DDP_LIB void ddp__pool_run_rooms(ddp__pool *pool, long items, long grain, ddp__room_fn fn, void *user);
