/* The limits of this machine, for bench_ops. Include after dreamddp.h. */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include <time.h>

enum { WHERE = 3, WAYS = 3 }; /* L2, L3, memory; read, triad, update */
static const size_t probe_bytes[WHERE] = {(size_t)768 << 10, (size_t)6 << 20, (size_t)384 << 20};
static const char *const where_name[WHERE] = {"L2", "L3", "memory"};

typedef struct bench {
    long threads;
    int quick;
    ddp__pool *pool;
    double flops, bandwidth[WHERE][WAYS]; /* per second */
} bench;

static double bench_clock(const bench *b)
{
    struct timespec t;

    clock_gettime(b->threads > 1 ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* As in src/ops/kernels.c, one version per instruction set. */
#define PROBES(S, BYTES, ATTR)                                                                  \
    typedef float vec_##S __attribute__((vector_size(BYTES), aligned(4), may_alias));           \
                                                                                                \
    static ATTR double fma_##S(float *x)                                                        \
    {                                                                                           \
        vec_##S *v = (vec_##S *)x;                                                              \
        vec_##S a = v[0], b = v[1], c = v[2], d = v[3], e = v[4], f = v[5], g = v[6], h = v[7]; \
        vec_##S k = v[8], l = v[9], s = v[10];                                                  \
        long i;                                                                                 \
        for (i = 0; i < 1000000; i++) {                                                         \
            a = a * s + s, b = b * s + s, c = c * s + s, d = d * s + s, e = e * s + s;          \
            f = f * s + s, g = g * s + s, h = h * s + s, k = k * s + s, l = l * s + s;          \
        }                                                                                       \
        v[0] = a + b + c + d + e + f + g + h + k + l;                                           \
        return 1e6 * 10 * 2 * (BYTES) / 4;                                                      \
    }                                                                                           \
                                                                                                \
    static ATTR void read_##S(float *x, long n)                                                 \
    {                                                                                           \
        const vec_##S *v = (const vec_##S *)x, *end = v + n / ((BYTES) / 4) / 8 * 8;            \
        vec_##S a = *v, b = a, c = a, d = a, e = a, f = a, g = a, h = a;                        \
        for (; v < end; v += 8) {                                                               \
            a = a + v[0], b = b + v[1], c = c + v[2], d = d + v[3];                             \
            e = e + v[4], f = f + v[5], g = g + v[6], h = h + v[7];                             \
        }                                                                                       \
        *(vec_##S *)x = ((a + b) + (c + d) + ((e + f) + (g + h))) * 1e-9f;                      \
    }                                                                                           \
                                                                                                \
    static ATTR void triad_##S(float *x, long n)                                                \
    {                                                                                           \
        const long each = n / 3 / ((BYTES) / 4);                                                \
        vec_##S *a = (vec_##S *)x, *b = a + each, *c = b + each;                                \
        long i;                                                                                 \
        for (i = 0; i < each; i++) a[i] = b[i] + c[i] * 0.5f;                                   \
    }                                                                                           \
                                                                                                \
    static ATTR void update_##S(float *x, long n)                                               \
    {                                                                                           \
        const long each = n / 4 / ((BYTES) / 4);                                                \
        vec_##S *a = (vec_##S *)x, *b = a + each, *c = b + each, *g = c + each;                 \
        long i;                                                                                 \
        for (i = 0; i < each; i++) {                                                            \
            a[i] = a[i] * 0.5f + g[i];                                                          \
            b[i] = b[i] * 0.5f + g[i];                                                          \
            c[i] = c[i] * 0.5f + g[i];                                                          \
        }                                                                                       \
    }                                                                                           \
    static const probes probes_##S = {#S, fma_##S, {read_##S, triad_##S, update_##S}};

typedef struct probes {
    const char *name;
    double (*fma)(float *x); /* returns its number of operations */
    void (*pass[WAYS])(float *x, long n);
} probes;

/* Bytes of a pass per byte of the arrays. */
static const double pass_bytes[WAYS] = {1, 1, 7.0 / 4};

PROBES(base, 16, DDP__KERNEL_PLAIN)
#if defined(__x86_64__)
PROBES(avx2, 32, DDP__KERNEL(target("avx2,fma")))
PROBES(avx512, 64, DDP__KERNEL(target("avx512f")))
#endif

static const probes *probes_best(void)
{
#if defined(__x86_64__)
    if (!strcmp(ddp__kernels_best()->name, "avx512")) return &probes_avx512;
    if (!strcmp(ddp__kernels_best()->name, "avx2")) return &probes_avx2;
#endif
    return &probes_base;
}

typedef struct probe_job {
    const probes *with;
    float *x;
    long n; /* floats of each thread */
    int way, rounds;
} probe_job;

static void probe_fma(void *user, long first, long last)
{
    const probe_job *j = (const probe_job *)user;

    for (; first < last; first++) j->with->fma(j->x + first * 256);
}

static void probe_pass(void *user, long first, long last)
{
    const probe_job *j = (const probe_job *)user;
    int r;

    for (; first < last; first++)
        for (r = 0; r < j->rounds; r++) j->with->pass[j->way](j->x + first * j->n, j->n);
}

/* Each thread works on a separate part. Caches belong to one core each, or nearly. */
static int measure_limits(bench *b)
{
    ddp_op_call call;
    probe_job j;
    size_t i;
    int where, tries = b->quick ? 3 : 7, t;

    memset(&call, 0, sizeof call);
    call.pool = b->pool;
    j.with = probes_best();
    j.x = (float *)malloc(probe_bytes[WHERE - 1] + 4096);
    if (!j.x) return 1;
    for (i = 0; i < probe_bytes[WHERE - 1] / sizeof *j.x; i++) j.x[i] = 1e-3f;
    for (t = 0; t < tries; t++) {
        double start = bench_clock(b), took;
        ddp_op_parallel(&call, b->threads, 1, probe_fma, &j);
        took = bench_clock(b) - start;
        took = (double)b->threads * j.with->fma(j.x + 256 * 64) / took;
        if (took > b->flops) b->flops = took;
        for (where = 0; where < WHERE; where++)
            for (j.way = 0; j.way < WAYS; j.way++) {
                const long parts = where == 0 ? 1 : b->threads; /* each core has its own L2 */
                j.n = (long)(probe_bytes[where] / sizeof *j.x) / parts;
                j.rounds = where == 0 ? 200 : where == 1 ? 10 : 1;
                start = bench_clock(b);
                ddp_op_parallel(&call, b->threads, 1, probe_pass, &j);
                took = (double)j.rounds * pass_bytes[j.way] * 4 * (double)(j.n * b->threads) /
                       (bench_clock(b) - start);
                if (took > b->bandwidth[where][j.way]) b->bandwidth[where][j.way] = took;
            }
    }
    free(j.x);
    printf("limits, %ld thread%s (%s): %.1f GFLOP/s\n", b->threads, b->threads > 1 ? "s" : "", j.with->name,
           1e-9 * b->flops);
    for (where = 0; where < WHERE; where++)
        printf("  %-6s  read %.1f, triad %.1f, update %.1f GB/s\n", where_name[where],
               1e-9 * b->bandwidth[where][0], 1e-9 * b->bandwidth[where][1], 1e-9 * b->bandwidth[where][2]);
    return 0;
}

/* ---- times compared with the limits ---- */

/* The best time of a call. A round has enough calls for some ms. */
static double best_time(const bench *b, void (*run)(void *user), void *user)
{
    const double enough = b->quick ? 0.004 : 0.03;
    double best = INFINITY, start, took;
    long times = 1, i;
    int round;

    run(user);
    for (round = 0; round < (b->quick ? 2 : 5); round++) {
        for (;;) {
            start = bench_clock(b);
            for (i = 0; i < times; i++) run(user);
            took = bench_clock(b) - start;
            if (took >= enough || times > 1000000) break;
            times = took > enough / 50 ? (long)((double)times * enough * 1.2 / took) + 1 : 20 * times;
        }
        if (took / (double)times < best) best = took / (double)times;
    }
    return best;
}

/* Prints one line of the table. Returns the share of the limit. */
static double report(const bench *b, const char *op, const char *size, const char *way, double took,
                     double items, double bytes, double flops, double held, int pass)
{
    const int where = held <= 1.25 * 1024 * 1024 ? 0 : held <= 24e6 ? 1 : 2;
    const double moving = bytes / b->bandwidth[where][pass], doing = flops / b->flops;
    const double limit = moving > doing ? moving : doing;

    printf("%-18s%-21s%-4s%10.1f us%8.3f ns%8.1f GB/s%8.1f GFLOP/s%5.0f %% of %s\n", op, size, way,
           1e6 * took, 1e9 * took / items, 1e-9 * bytes / took, 1e-9 * flops / took, 100 * limit / took,
           doing > moving ? "arithmetic" : where_name[where]);
    fflush(stdout);
    return limit / took;
}

#endif /* BENCH_MACHINE_H */
