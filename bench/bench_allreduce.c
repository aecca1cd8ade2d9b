/* Time of an all-reduce: ranks of this machine, or one rank of several machines.
 *
 *   cc -O2 -I. bench/bench_allreduce.c -o bench_allreduce -lm -lpthread
 *   (for --tls-psk also -DDDP_USE_OPENSSL -lssl -lcrypto)
 *   ./bench_allreduce --ranks 4 --bytes 16777216 --iters 20
 *   ./bench_allreduce --ranks 4 --rank 0 --addr 10.0.0.1:29500 --tls-psk run.key     (on each machine)
 *   mpirun -n 4 ./bench_allreduce --transport mpi          (built by mpicc -DDDP_USE_MPI)
 *
 * A barrier precedes every iteration, an iteration takes as long as its slowest rank, and the
 * result is compared with a sum in double. The last line of stdout is one JSON object, of rank 0
 * (with --rank: of each rank). comm_cpu_ms is the processor time of its comm thread per iteration, without
 * the data that the calling thread moved. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "../examples/common/cli.h"
#include "../examples/common/connect.h"

enum { BENCH_WARMUP = 2 };

typedef struct bench {
    long bytes, iters;
    ddp_wire wire;
    int alone;   /* this process is one rank and prints; else rank 0 prints for all */
    int chooses; /* 1: the links are measured first, by which the library chooses the algorithm */
} bench;

/* Value i of a rank, in -1..1, different on each rank. */
static float bench_value(int rank, size_t i)
{
    uint32_t h = ((uint32_t)i * 2654435761u) ^ ((uint32_t)(rank + 1) * 2246822519u);

    h = (h ^ (h >> 15)) * 739519145u;
    return (float)(h >> 8) / 8388608.0f - 1.0f;
}

static void bench_fill(float *x, size_t n, int rank)
{
    size_t i;

    for (i = 0; i < n; i++) x[i] = bench_value(rank, i);
}

/* Largest distance from the sum in double. */
static double bench_error(const float *x, size_t n, int world)
{
    double worst = 0;
    size_t i;
    int r;

    for (i = 0; i < n; i++) {
        double sum = 0, e;
        for (r = 0; r < world; r++) sum += (double)bench_value(r, i);
        e = fabs((double)x[i] - sum);
        if (e > worst) worst = e;
    }
    return worst;
}

static int bench_order(const void *a, const void *b)
{
    const float *p = (const float *)a, *q = (const float *)b;

    return (*p > *q) - (*p < *q);
}

/* Sets ms to the slowest rank's time of each iteration, sorted. */
static int bench_slowest(ddp_ctx *d, float *ms, size_t iters)
{
    size_t world = (size_t)ddp_world(d), i, r;
    float *all = (float *)calloc(world * iters, sizeof *all);
    int bad;

    if (!all) return DDP_MEMORY;
    memcpy(all + (size_t)ddp_rank(d) * iters, ms, iters * sizeof *ms);
    bad = ddp_all_gather(d, all, iters);
    for (i = 0; i < iters; i++)
        for (r = 0; r < world; r++)
            if (all[r * iters + i] > ms[i]) ms[i] = all[r * iters + i];
    free(all);
    qsort(ms, iters, sizeof *ms, bench_order);
    return bad;
}

static void bench_print(ddp_ctx *d, const bench *b, const char *algorithm, const float *ms, double comm_cpu_s,
                        const float *x, size_t n)
{
    size_t iters = (size_t)b->iters;
    double median = ((double)ms[iters / 2] + (double)ms[(iters - 1) / 2]) / 2;
    ddp_jsonl *j = ddp_jsonl_stream(stdout, NULL);
    char hash[17];

    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)ddp_hash_floats(0, x, n));
    ddp_jsonl_event(j, NULL);
    ddp_jsonl_number(j, "median_ms", median);
    ddp_jsonl_number(j, "min_ms", (double)ms[0]);
    ddp_jsonl_number(j, "comm_cpu_ms", 1e3 * comm_cpu_s / (double)iters);
    ddp_jsonl_string(j, "algorithm", algorithm);
    ddp_jsonl_integer(j, "bytes", (int64_t)(n * sizeof *x));
    ddp_jsonl_integer(j, "ranks", ddp_world(d));
    ddp_jsonl_string(j, "result_hash", hash);
    ddp_jsonl_number(j, "algbw_mb_s", (double)(n * sizeof *x) / median / 1e3);
    ddp_jsonl_end(j);
    ddp_jsonl_close(j, NULL);
}

/* value: [n] this rank's input. x is a copy of it before each iteration, and the sum after it. */
static int bench_measure(ddp_ctx *d, const bench *b, const float *value, float *x, size_t n, float *ms)
{
    const char *algorithm;
    ddp_stats before, after;
    ddp_message m;
    ddp_piece p;
    double error;
    long i;
    int bad = 0;

    memset(&m, 0, sizeof m);
    memset(&p, 0, sizeof p);
    p.data = x;
    p.count = n;
    m.verb = DDP_ALL_REDUCE;
    m.from = &p;
    m.from_count = 1;
    m.layer = DDP_NO_LAYER;
    m.coding = b->wire == DDP_WIRE_BF16   ? DDP_AS_BFLOAT
               : b->wire == DDP_WIRE_INT8 ? DDP_AS_INT8
                                          : DDP_AS_FLOAT;
    for (i = -BENCH_WARMUP; !bad && i < b->iters; i++) {
        double begin;
        memcpy(x, value, n * sizeof *x);
        bad = ddp_barrier(d);
        if (i == 0) ddp_get_stats(d, &before);
        begin = ddp_now();
        if (!bad) bad = ddp_exchange(d, &m);
        if (i >= 0) ms[i] = (float)(1e3 * (ddp_now() - begin));
    }
    ddp_get_stats(d, &after);
    algorithm = ddp_last_algorithm(d);
    if (!bad) bad = bench_slowest(d, ms, (size_t)b->iters);
    if (bad) return bad;
    error = bench_error(x, n, ddp_world(d));
    if (error > (b->wire == DDP_WIRE_F32 ? 1e-6 : 1.0 / 128) * ddp_world(d)) {
        fprintf(stderr, "bench_allreduce: rank %d: the sum is off by %g\n", ddp_rank(d), error);
        return DDP_NUMERIC;
    }
    if (b->alone || ddp_rank(d) == 0)
        bench_print(d, b, algorithm, ms, after.comm_cpu_s - before.comm_cpu_s, x, n);
    return 0;
}

static int bench_worker(ddp_ctx *d, void *user)
{
    const bench *b = (const bench *)user;
    size_t n = (size_t)b->bytes / sizeof(float);
    float *value = (float *)malloc(2 * n * sizeof *value);
    float *ms = (float *)calloc((size_t)b->iters, sizeof *ms);
    int bad = DDP_MEMORY;

    if (value && ms) {
        bench_fill(value, n, ddp_rank(d));
        bad = b->chooses ? ddp_measure_links(d) : 0;
        if (!bad) bad = bench_measure(d, b, value, value + n, n, ms);
    }
    free(value);
    free(ms);
    return bad;
}

static int bench_usage(const char *option, const char *value, const char *remedy)
{
    fprintf(stderr, "bench_allreduce: %s %s: choose %s\n", option, value, remedy);
    return 2;
}

int main(int argc, char **argv)
{
    const char *algorithm = "auto", *wire = "f32";
    int deterministic = 0, quick = 0, code, count;
    bench b = {16777216, 20, DDP_WIRE_DEFAULT, 0, 0};
    connection meet;
    ddp_config cfg;
    ddp_error err;
    const cli_option own[] = {
        {"Measurement", CLI_GROUP, NULL, NULL, NULL},
        {"--ranks", CLI_COUNT, &meet.workers, "N", "number of ranks [4]"},
        {"--workers", CLI_COUNT, &meet.workers, "N", "another name of --ranks"},
        {"--bytes", CLI_COUNT, &b.bytes, "B", "size of the array, a multiple of 4 [16777216]"},
        {"--iters", CLI_COUNT, &b.iters, "N", "timed iterations, after two of warm-up [20]"},
        {"--wire", CLI_TEXT, &wire, "NAME", "f32, bf16: half the bytes, int8: 0.27, rounded [f32]"},
        {"--algorithm", CLI_TEXT, &algorithm, "NAME",
         "auto (by size and measured link), full, direct or ring [auto]"},
        {"--deterministic", CLI_FLAG, &deterministic, "",
         "sums in rank order: equal bits on every transport"},
        {"--quick", CLI_FLAG, &quick, "", "five iterations"},
    };
    cli_option table[sizeof own / sizeof own[0] + CONNECT_OPTIONS];
    cli_range ranges[] = {{"--iters", 0, 1, 0}, {"--ranks", 0, 2, 256}};
    char text[32];

    memset(&cfg, 0, sizeof cfg);
    count = (int)(sizeof own / sizeof own[0]);
    memcpy(table, own, sizeof own);
    count += connect_options(&meet, &cfg, table + count);
    meet.workers = 4;
    code = cli_parse(argc, argv, "Times ddp_all_reduce and prints one JSON object.", table, count);
    if (code >= 0) return code;
    if (quick) b.iters = 5;
    ranges[0].value = (double)b.iters;
    ranges[1].value = (double)meet.workers;
    if (cli_out_of_range(ranges, 2, err.msg, sizeof err.msg)) {
        fprintf(stderr, "bench_allreduce: %s\n", err.msg);
        return 2;
    }
    if (!ddp_wire_named(wire, &b.wire)) return bench_usage("--wire", wire, "f32, bf16 or int8");
    if (!ddp_algorithm_named(algorithm, &cfg.algorithm))
        return bench_usage("--algorithm", algorithm, "auto, full, direct or ring");
    snprintf(text, sizeof text, "%ld", b.bytes);
    if (b.bytes < 4 || b.bytes % 4) return bench_usage("--bytes", text, "a multiple of 4 above 0");
    code = connect_configure("bench_allreduce", &meet, &cfg);
    if (code) return code;
    b.alone = meet.rank >= 0;
    b.chooses = cfg.algorithm == DDP_ALGORITHM_DEFAULT && !deterministic;
    cfg.wire = b.wire;
    cfg.deterministic = deterministic;
    cli_catch_interrupt();
    code = ddp_launch(&cfg, bench_worker, &b, &err);
    if (cli_interrupted) return 130;
    if (code) fprintf(stderr, "bench_allreduce: %s\n", err.msg);
    return ddp_status_exit_code((ddp_status)code);
}
