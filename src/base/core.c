/* Implements status codes, errors, logging, memory, the clock, random numbers and hashes. */
#include "base/core.h"

#include <sys/mman.h>
#include <sys/resource.h>

/* ---- status ---- */

static const struct {
    int exit_code;
    const char *text;
} ddp__statuses[] = {
#define DDP__STATUS_ENTRY(name, exit_code, text) {exit_code, text},
    DDP_STATUS_LIST(DDP__STATUS_ENTRY)
#undef DDP__STATUS_ENTRY
};

static int ddp__status_known(ddp_status code) { return (int)code >= 0 && code < DDP_STATUS_COUNT; }

const char *ddp_status_text(ddp_status code)
{
    return ddp__status_known(code) ? ddp__statuses[code].text : "unknown status";
}

int ddp_status_exit_code(ddp_status code)
{
    return ddp__status_known(code) ? ddp__statuses[code].exit_code : 1;
}

/* Replaces control characters: text from a peer or a file may contain terminal escape sequences. */
static void ddp__text_tame(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127) *text = '?';
}

ddp_status ddp__fail(ddp_error *err, ddp_status code, const char *fmt, ...)
{
    va_list ap;

    if (!err) return code;
    err->code = code;
    va_start(ap, fmt);
    ddp__format_list(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    ddp__text_tame(err->msg);
    return code;
}

ddp_status ddp__check_finite(double value, int above, ddp_error *err, const char *fmt, ...)
{
    char what[sizeof err->msg];
    va_list ap;

    if (ddp__finite(value) && (above ? value > 0 : value >= 0)) return DDP_OK;
    va_start(ap, fmt);
    ddp__format_list(what, sizeof what, fmt, ap);
    va_end(ap);
    return ddp__fail(err, DDP_ARG, "%s; it must be finite and %s 0", what, above ? "above" : "at least");
}

/* ---- log lines ---- */

static const char *const ddp__log_names[] = {"", "off", "error", "warn", "info", "debug"};

ddp_log_level ddp__log_level_named(const char *name)
{
    for (int i = 1; i <= (int)DDP_LOG_DEBUG; i++)
        if (!strcmp(name, ddp__log_names[i])) return (ddp_log_level)i;
    return DDP_LOG_DEFAULT;
}

static void ddp__log_stderr(void *user, ddp_log_level level, const char *line)
{
    (void)user;
    fprintf(stderr, "dreamddp %s: %s\n", ddp__log_names[level], line);
}

ddp_logger ddp__log_resolve(const ddp_logger *given, int no_env)
{
    ddp_logger log = *given;
    const char *env = no_env ? NULL : getenv("DREAMDDP_LOG");

    if (env && *env) {
        ddp_log_level level = ddp__log_level_named(env);
        if (log.level == DDP_LOG_DEFAULT) log.level = level;
        if (!log.fn) log.fn = ddp__log_stderr;
    }
    if (log.level == DDP_LOG_DEFAULT) log.level = DDP_LOG_WARN;
    return log;
}

void ddp__log(const ddp_logger *log, ddp_log_level level, const char *fmt, ...)
{
    char line[512];
    va_list ap;

    if (!log || !log->fn || level > log->level) return;
    va_start(ap, fmt);
    ddp__format_list(line, sizeof line, fmt, ap);
    va_end(ap);
    ddp__text_tame(line);
    log->fn(log->user, level, line);
}

/* ---- memory ---- */

/* Size of a huge page. Blocks of at least twice this size are aligned to it and advised as huge pages,
 * whose first touch costs a fourth. */
#define DDP__HUGE_BYTES ((size_t)2 << 20)

void *ddp__alloc(const ddp_allocator *a, size_t bytes)
{
    void *p = NULL;
    size_t align = bytes >= 2 * DDP__HUGE_BYTES ? DDP__HUGE_BYTES : 64;

    if (bytes == 0) return NULL;
    if (a && a->alloc) {
        p = a->alloc(a->user, bytes);
    } else {
        if (posix_memalign(&p, align, bytes)) return NULL;
#ifdef MADV_HUGEPAGE
        if (align == DDP__HUGE_BYTES) (void)madvise(p, bytes - bytes % DDP__HUGE_BYTES, MADV_HUGEPAGE);
#endif
    }
    if (p) memset(p, 0, bytes);
    return p;
}

void ddp__release(const ddp_allocator *a, void *ptr, size_t bytes)
{
    if (!ptr) return;
    if (a && a->alloc)
        a->free(a->user, ptr, bytes);
    else
        free(ptr);
}

/* Reads the number in a one-line file. Returns DBL_MAX without a limit ("max"). */
static double ddp__limit_read(const char *path)
{
    FILE *f = fopen(path, "r");
    char line[64] = "", *end = line;
    double limit = DBL_MAX;

    if (f && fgets(line, sizeof line, f)) limit = (double)strtoull(line, &end, 10);
    if (f) fclose(f);
    return end == line ? DBL_MAX : limit;
}

double ddp__memory_total(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    const double v2 = ddp__limit_read("/sys/fs/cgroup/memory.max"); /* container limit, cgroup v2 */
    const double v1 = ddp__limit_read("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    double ram = 0, swap = 0;
    struct rlimit own; /* ulimit -v */
    char line[128];

    while (f && fgets(line, sizeof line, f)) {
        if (!strncmp(line, "MemTotal:", 9)) ram = 1024 * (double)strtoull(line + 9, NULL, 10);
        if (!strncmp(line, "SwapTotal:", 10)) swap = 1024 * (double)strtoull(line + 10, NULL, 10);
    }
    if (f) fclose(f);
    if (v2 < ram) ram = v2;
    if (v1 < ram) ram = v1;
    ram += swap;
    if (getrlimit(RLIMIT_AS, &own) == 0 && own.rlim_cur != RLIM_INFINITY && (double)own.rlim_cur < ram)
        ram = (double)own.rlim_cur;
    return ram;
}

void *ddp__calloc(size_t count, size_t size)
{
    size_t bytes;
    void *p;

    if (size && count > SIZE_MAX / size) return NULL;
    bytes = count * size;
    if (bytes == 0) bytes = 1;
    p = DDP_REALLOC(NULL, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

typedef union ddp__block {
    void *next;
    long double align;
} ddp__block;

void *ddp__scratch_take(ddp__scratch *s, size_t count, size_t size)
{
    size_t most = (SIZE_MAX - sizeof(ddp__block)) / size;
    ddp__block *b = count > most ? NULL : (ddp__block *)ddp__calloc(1, sizeof *b + count * size);
    if (!b) {
        s->failed = 1;
        return NULL;
    }
    b->next = s->last;
    s->last = b;
    return b + 1;
}

const char *ddp__layer_prefix(const char *name) { return strncmp(name, "layer ", 6) ? "layer " : ""; }

int ddp__scratch_failed(const ddp__scratch *s) { return s->failed; }

void ddp__scratch_fail(ddp__scratch *s) { s->failed = 1; }

int *ddp__ints(ddp__scratch *s, size_t count) { return (int *)ddp__scratch_take(s, count, sizeof(int)); }

double *ddp__doubles(ddp__scratch *s, size_t count)
{
    return (double *)ddp__scratch_take(s, count, sizeof(double));
}

void ddp__scratch_free(ddp__scratch *s)
{
    while (s->last) {
        ddp__block *b = (ddp__block *)s->last;
        s->last = b->next;
        DDP_FREE(b);
    }
}

char *ddp__strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = (char *)ddp__calloc(n, 1);

    if (p) memcpy(p, s, n);
    return p;
}

/* ---- sorting ---- */

int ddp__rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* ---- the clock ---- */

static __thread double *ddp__own_time; /* NULL for the clock of the machine */

double *ddp__time_set(double *now)
{
    double *was = ddp__own_time;

    ddp__own_time = now;
    return was;
}

double *ddp__time(void) { return ddp__own_time; }

double ddp_now(void)
{
    struct timespec ts;

    if (ddp__own_time) return *ddp__own_time;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

void ddp__extend(double *since, double seconds, double now)
{
    if (*since >= 0) *since = *since + seconds < now ? *since + seconds : now;
}

/* ---- the processor ---- */

int ddp__cpu_runs(int kernels)
{
#if defined(__x86_64__)
    if (kernels == 2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (kernels == 3) return __builtin_cpu_supports("avx512f") != 0;
#endif
    return kernels == 0 || kernels == 1;
}

/* ---- random numbers ---- */

ddp_rng ddp_rng_seed(uint64_t seed, uint64_t stream)
{
    const ddp_rng r = {ddp__rng_stream(ddp__mix64(seed + DDP__RNG_STEP), stream)};

    return r;
}

uint64_t ddp_rng_u64(ddp_rng *r)
{
    r->state += DDP__RNG_STEP;
    return ddp__mix64(r->state);
}

uint64_t ddp_rng_below(ddp_rng *r, uint64_t n)
{
    uint64_t skip = (UINT64_MAX - n + 1) % n; /* 2^64 mod n values to discard, to avoid bias */
    uint64_t x;

    do x = ddp_rng_u64(r);
    while (x < skip);
    return x % n;
}

double ddp_rng_uniform(ddp_rng *r) { return (double)(ddp_rng_u64(r) >> 11) * 0x1.0p-53; }

/* The sum of twelve uniform numbers minus six. It needs only additions, which IEEE rounds identically
 * everywhere, while log and cos of libm are not bit-identical on all platforms. Mean 0, variance 1, tails end
 * at 6. */
double ddp_rng_normal(ddp_rng *r)
{
    double s = 0;

    for (int i = 0; i < 12; i++) s += ddp_rng_uniform(r);
    return s - 6;
}

/* ---- shuffling ---- */

uint64_t ddp__shuffled(uint64_t i, uint64_t n, uint64_t key)
{
    int half = 1, round;
    uint64_t mask, left, right, mixed;
    ddp_rng r;

    while (half < 31 && (UINT64_C(1) << (2 * half)) < n) half++;
    mask = (UINT64_C(1) << half) - 1;
    do {
        left = i >> half;
        right = i & mask;
        for (round = 0; round < 4; round++) {
            r = ddp_rng_seed(key + (uint64_t)round, right);
            mixed = left ^ (ddp_rng_u64(&r) & mask);
            left = right;
            right = mixed;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

long ddp__deal(uint64_t seed, uint64_t card, uint64_t n)
{
    ddp_rng key = ddp_rng_seed(seed, card / n);

    return (long)ddp__shuffled(card % n, n, ddp_rng_u64(&key));
}

/* ---- hash of floats ---- */

/* Mixes in two floats per round, as numbers, not as bytes, so that the byte order does not matter. Each
 * round is a bijection of the hash, so no changed bit is lost. */
static uint64_t ddp__hash_round(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 32);
}

uint64_t ddp_hash_floats(uint64_t hash, const float *x, size_t n)
{
    size_t i;
    uint32_t bits[2];

    hash = ddp__hash_round(hash, (uint64_t)n);
    for (i = 0; i + 2 <= n; i += 2) {
        memcpy(bits, x + i, sizeof bits);
        hash = ddp__hash_round(hash, bits[0] | (uint64_t)bits[1] << 32);
    }
    if (i < n) {
        memcpy(bits, x + i, sizeof *bits);
        hash = ddp__hash_round(hash, bits[0]);
    }
    return hash;
}

/* ---- hashes of bytes ---- */

uint64_t ddp__hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;

    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

#define DDP__DIGEST_C1 UINT64_C(0x87c37b91114253d5)
#define DDP__DIGEST_C2 UINT64_C(0x4cf5ad432745937f)

static uint64_t ddp__rotated(uint64_t x, int by) { return x << by | x >> (64 - by); }

static uint64_t ddp__digest_first(uint64_t word)
{
    return ddp__rotated(word * DDP__DIGEST_C1, 31) * DDP__DIGEST_C2;
}
static uint64_t ddp__digest_second(uint64_t word)
{
    return ddp__rotated(word * DDP__DIGEST_C2, 33) * DDP__DIGEST_C1;
}

static ddp__digest ddp__digest_blocks(ddp__digest x, const unsigned char *p, size_t blocks)
{
    uint64_t a = x.word[0], b = x.word[1], word[2];

    for (; blocks > 0; blocks--, p += sizeof word) {
        memcpy(word, p, sizeof word);
        a ^= ddp__digest_first(word[0]);
        a = (ddp__rotated(a, 27) + b) * 5 + 0x52dce729;
        b ^= ddp__digest_second(word[1]);
        b = (ddp__rotated(b, 31) + a) * 5 + 0x38495ab5;
    }
    x.word[0] = a;
    x.word[1] = b;
    return x;
}

void ddp__digest_add(ddp__digester *d, const void *data, size_t n)
{
    const unsigned char *p = (const unsigned char *)data;
    const size_t held = (size_t)(d->bytes % sizeof d->tail), room = sizeof d->tail - held;

    if (!n) return;
    d->bytes += n;
    if (n < room) {
        memcpy(d->tail + held, p, n);
        return;
    }
    if (held) {
        memcpy(d->tail + held, p, room);
        d->state = ddp__digest_blocks(d->state, d->tail, 1);
        p += room;
        n -= room;
    }
    d->state = ddp__digest_blocks(d->state, p, n / sizeof d->tail);
    memcpy(d->tail, p + n / sizeof d->tail * sizeof d->tail, n % sizeof d->tail);
}

static uint64_t ddp__digest_mixed(uint64_t x)
{
    x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
    x = (x ^ x >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

ddp__digest ddp__digest_end(const ddp__digester *d)
{
    unsigned char last[16] = {0};
    uint64_t word[2];
    ddp__digest x;

    memcpy(last, d->tail, (size_t)(d->bytes % sizeof last));
    memcpy(word, last, sizeof word);
    x.word[0] = d->state.word[0] ^ ddp__digest_first(word[0]) ^ d->bytes;
    x.word[1] = d->state.word[1] ^ ddp__digest_second(word[1]) ^ d->bytes;
    x.word[0] += x.word[1];
    x.word[1] += x.word[0];
    x.word[0] = ddp__digest_mixed(x.word[0]);
    x.word[1] = ddp__digest_mixed(x.word[1]);
    x.word[0] += x.word[1];
    x.word[1] += x.word[0];
    return x;
}

ddp__digest ddp__digest_of(const void *data, size_t n)
{
    ddp__digester d = DDP__ZEROS;

    ddp__digest_add(&d, data, n);
    return ddp__digest_end(&d);
}

int ddp__digest_equal(ddp__digest a, ddp__digest b)
{
    return a.word[0] == b.word[0] && a.word[1] == b.word[1];
}

void ddp__digest_text(ddp__digest x, char out[DDP__DIGEST_TEXT])
{
    snprintf(out, DDP__DIGEST_TEXT, "%016" PRIx64 "%016" PRIx64, x.word[0], x.word[1]);
}

uint64_t ddp__fresh_number(void)
{
    uint64_t v[3] = {0, (uint64_t)getpid(), (uint64_t)time(NULL)};
    const double now = ddp_now();
    FILE *f = fopen("/dev/urandom", "rb");

    if (f && fread(v, sizeof v[0], 1, f) != 1) v[0] = 0;
    if (f) fclose(f);
    return ddp__hash(ddp__hash(DDP__HASH_START, v, sizeof v), &now, sizeof now) | 1;
}

static const uint32_t ddp__sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t ddp__rotate(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void ddp__sha256_block(uint32_t *state, const unsigned char *b)
{
    uint32_t w[64], v[8];
    int i;

    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)b[4 * i] << 24 | (uint32_t)b[4 * i + 1] << 16 | (uint32_t)b[4 * i + 2] << 8 |
               (uint32_t)b[4 * i + 3];
    for (; i < 64; i++) {
        uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (ddp__rotate(x, 7) ^ ddp__rotate(x, 18) ^ x >> 3) + w[i - 7] +
               (ddp__rotate(y, 17) ^ ddp__rotate(y, 19) ^ y >> 10);
    }
    memcpy(v, state, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0], one, two;
        one = v[7] + (ddp__rotate(e, 6) ^ ddp__rotate(e, 11) ^ ddp__rotate(e, 25)) +
              ((e & v[5]) ^ (~e & v[6])) + ddp__sha256_k[i] + w[i];
        two = (ddp__rotate(a, 2) ^ ddp__rotate(a, 13) ^ ddp__rotate(a, 22)) +
              ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (i = 0; i < 8; i++) state[i] += v[i];
}

void ddp__sha256(const void *data, size_t n, unsigned char *digest)
{
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const size_t rest = n % 64, last = rest < 56 ? 64 : 128; /* the rest, a 1 bit, the length in bits */
    unsigned char tail[128] = {0};

    for (size_t at = 0; at + 64 <= n; at += 64) ddp__sha256_block(state, (const unsigned char *)data + at);
    memcpy(tail, (const unsigned char *)data + n - rest, rest);
    tail[rest] = 0x80;
    for (size_t i = 0; i < 8; i++) tail[last - 1 - i] = (unsigned char)((uint64_t)n * 8 >> 8 * i & 255);
    for (size_t at = 0; at < last; at += 64) ddp__sha256_block(state, tail + at);
    for (int i = 0; i < 32; i++) digest[i] = (unsigned char)(state[i / 4] >> (24 - 8 * (i % 4)) & 255);
}
