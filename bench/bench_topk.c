/* Exact Top-K, messages and feedback, in units of one read of the array. A read is the sum of its floats, in
 * the same run.
 *
 *   cc -O2 -I. bench/bench_topk.c -o bench_topk -lm -lpthread && ./bench_topk
 *   ./bench_topk --file x.f32 --k 250000 --indexes kept.u64     (the call of bench/topk.py)
 *
 * One thread. Reads and selections alternate, and the best of each counts. A selection writes indexes and
 * values. With --file the last line of stdout is one JSON object. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "../examples/common/cli.h"

static const char *const kinds[] = {"normal", "heavy-tailed", "all equal", "1 % not zero"};

static void bench_fill(float *x, size_t n, int kind)
{
    ddp_rng r = ddp_rng_seed(1, (uint64_t)kind);
    size_t i;

    for (i = 0; i < n; i++) {
        double g = ddp_rng_normal(&r);
        if (kind == 1) g *= g * g;
        if (kind == 2) g = 0.5;
        if (kind == 3 && ddp_rng_below(&r, 100)) g = 0;
        x[i] = (float)g;
    }
}

/* Sixteen sums in four registers, which reach the rate of the memory. */
static float bench_sum(const float *x, size_t n)
{
    typedef float four __attribute__((vector_size(16)));
    four sum[4], part;
    size_t i, j;

    memset(sum, 0, sizeof sum);
    for (i = 0; i + 16 <= n; i += 16)
        for (j = 0; j < 4; j++) {
            memcpy(&part, x + i + 4 * j, sizeof part);
            sum[j] += part;
        }
    part = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (; i < n; i++) part[0] += x[i];
    return (part[0] + part[1]) + (part[2] + part[3]);
}

typedef struct bench_result {
    double read_s, topk_s;
    float sum; /* keeps the compiler from removing the reads */
} bench_result;

/* index has space for k. Exits with an error on failure. */
static bench_result bench_measure(const float *x, size_t n, size_t k, long rounds, uint64_t *index)
{
    size_t bytes = ddp_topk_scratch(n, k);
    void *scratch = malloc(bytes);
    float *value = (float *)malloc(k * sizeof *value);
    bench_result b = {INFINITY, INFINITY, 0};
    ddp_error err;
    double t;

    snprintf(err.msg, sizeof err.msg, "no memory for k = %zu of n = %zu", k, n);
    for (; rounds > 0; rounds--) {
        t = ddp_now();
        b.sum += bench_sum(x, n);
        t = ddp_now() - t;
        if (t < b.read_s) b.read_s = t;
        t = ddp_now();
        if (!scratch || !value || ddp_topk(x, n, k, scratch, bytes, index, value, &err) != DDP_OK) {
            fprintf(stderr, "bench_topk: %s\n", err.msg);
            exit(1);
        }
        t = ddp_now() - t;
        if (t < b.topk_s) b.topk_s = t;
    }
    free(scratch);
    free(value);
    return b;
}

static int bench_table(size_t n, long rounds)
{
    static const double parts[] = {0.001, 0.01, 0.1};
    float *x = (float *)ddp__alloc(NULL, n * sizeof *x);
    uint64_t *index = (uint64_t *)malloc((n / 10 + 1) * sizeof *index);
    float sum = 0;
    int kind, p;

    if (!x || !index) {
        fprintf(stderr, "bench_topk: no memory for %zu floats\n", n);
        return 1;
    }
    printf("%zu floats, best of %ld\n%-14s %6s %9s %9s %7s %9s\n", n, rounds, "data", "k", "read ms",
           "topk ms", "reads", "ns/float");
    for (kind = 0; kind < 4; kind++) {
        bench_fill(x, n, kind);
        for (p = 0; p < 3; p++) {
            size_t k = (size_t)(parts[p] * (double)n);
            bench_result b = bench_measure(x, n, k ? k : 1, rounds, index);
            sum += b.sum;
            printf("%-14s %4g %% %9.2f %9.2f %7.2f %9.3f\n", kinds[kind], 100 * parts[p], 1e3 * b.read_s,
                   1e3 * b.topk_s, b.topk_s / b.read_s, 1e9 * b.topk_s / (double)n);
            fflush(stdout);
        }
    }
    ddp__release(NULL, x, n * sizeof *x);
    free(index);
    return sum > FLT_MAX;
}

/* ---- messages and feedback ---- */

typedef struct bench_message {
    float *x, *y, *value; /* input of the packing; output of the unpacking */
    uint64_t *index;
    unsigned char *out, *scratch;
    size_t n, k, room, bytes;
    ddp_error err;
} bench_message;

typedef ddp_status (*bench_call)(bench_message *m);

static ddp_status bench_dense(bench_message *m)
{
    return ddp_pack_dense(m->x, m->n, m->out, m->room, &m->bytes, &m->err);
}

static ddp_status bench_int8(bench_message *m)
{
    return ddp_pack_quantised(DDP_PACK_INT8, m->x, m->n, m->out, m->room, &m->bytes, &m->err);
}

static ddp_status bench_int4(bench_message *m)
{
    return ddp_pack_quantised(DDP_PACK_INT4, m->x, m->n, m->out, m->room, &m->bytes, &m->err);
}

static ddp_status bench_random(bench_message *m)
{
    return ddp_randomk(m->x, m->n, m->k, 1, m->scratch, ddp_randomk_scratch(m->n), m->index, m->value,
                       &m->err);
}

static ddp_status bench_delta(bench_message *m)
{
    return ddp_pack_sparse(DDP_PACK_DELTA, m->n, m->k, m->index, m->value, m->out, m->room, &m->bytes,
                           &m->err);
}

static ddp_status bench_store(bench_message *m)
{
    return ddp_unpack_store(m->out, m->bytes, m->y, m->n, &m->err);
}

static ddp_status bench_add(bench_message *m)
{
    return ddp_unpack_add(m->out, m->bytes, m->y, m->n, &m->err);
}

static ddp_status bench_feedback(bench_message *m) { return ddp_feedback_add(m->y, m->x, m->n, &m->err); }

static ddp_status bench_keep(bench_message *m)
{
    return ddp_feedback_keep(m->y, m->n, m->index, m->k, &m->err);
}

/* In order: an unpacking uses the message packed before it. */
static const struct {
    const char *name;
    bench_call call;
} bench_calls[] = {
    {"pack dense", bench_dense},      {"  unpack, store", bench_store},  {"  unpack, add", bench_add},
    {"pack int8", bench_int8},        {"  unpack, store", bench_store},  {"  unpack, add", bench_add},
    {"pack int4", bench_int4},        {"  unpack, store", bench_store},  {"  unpack, add", bench_add},
    {"Random-K, 1 %", bench_random},  {"pack delta, 1 %", bench_delta},  {"  unpack, add", bench_add},
    {"feedback add", bench_feedback}, {"feedback keep, 1 %", bench_keep}};

static int bench_messages(size_t n, long rounds)
{
    bench_message m;
    float sum = 0;
    size_t c;

    memset(&m, 0, sizeof m);
    m.n = n;
    m.k = n / 100 ? n / 100 : 1;
    m.room = ddp_pack_bound(DDP_PACK_DENSE, n, n) + ddp_pack_bound(DDP_PACK_DELTA, n, m.k);
    m.x = (float *)ddp__alloc(NULL, n * sizeof *m.x);
    m.y = (float *)ddp__alloc(NULL, n * sizeof *m.y);
    m.value = (float *)malloc(m.k * sizeof *m.value);
    m.index = (uint64_t *)malloc(m.k * sizeof *m.index);
    m.out = (unsigned char *)malloc(m.room);
    m.scratch = (unsigned char *)malloc(ddp_randomk_scratch(n));
    if (!m.x || !m.y || !m.value || !m.index || !m.out || !m.scratch) {
        fprintf(stderr, "bench_topk: no memory for messages of %zu floats\n", n);
        return 1;
    }
    bench_fill(m.x, n, 0);
    memset(m.y, 0, n * sizeof *m.y);
    printf("\n%-20s %9s %9s %7s %9s\n", "normal", "read ms", "ms", "reads", "ns/float");
    for (c = 0; c < sizeof bench_calls / sizeof bench_calls[0]; c++) {
        double read_s = INFINITY, call_s = INFINITY, t;
        long round;

        for (round = 0; round < rounds; round++) {
            t = ddp_now();
            sum += bench_sum(m.x, n);
            t = ddp_now() - t;
            if (t < read_s) read_s = t;
            t = ddp_now();
            if (bench_calls[c].call(&m) != DDP_OK) {
                fprintf(stderr, "bench_topk: %s\n", m.err.msg);
                return 1;
            }
            t = ddp_now() - t;
            if (t < call_s) call_s = t;
        }
        printf("%-20s %9.2f %9.2f %7.2f %9.3f\n", bench_calls[c].name, 1e3 * read_s, 1e3 * call_s,
               call_s / read_s, 1e9 * call_s / (double)n);
        fflush(stdout);
    }
    ddp__release(NULL, m.x, n * sizeof *m.x);
    ddp__release(NULL, m.y, n * sizeof *m.y);
    free(m.value);
    free(m.index);
    free(m.out);
    free(m.scratch);
    return sum > FLT_MAX;
}

static int bench_file(const char *path, const char *indexes, size_t k, long rounds)
{
    FILE *f = fopen(path, "rb"), *out;
    size_t n = 0;
    float *x = NULL;
    uint64_t *index;
    bench_result b;
    long size;

    if (f && !fseek(f, 0, SEEK_END) && (size = ftell(f)) >= 4) {
        n = (size_t)size / sizeof *x;
        x = (float *)ddp__alloc(NULL, n * sizeof *x);
        rewind(f);
    }
    if (!x || fread(x, sizeof *x, n, f) != n) {
        fprintf(stderr, "bench_topk: cannot read floats from %s\n", path);
        return 1;
    }
    fclose(f);
    index = (uint64_t *)malloc((k ? k : 1) * sizeof *index);
    if (!index) return 1;
    b = bench_measure(x, n, k, rounds, index);
    if (indexes) {
        out = fopen(indexes, "wb");
        if (!out || fwrite(index, sizeof *index, k, out) != k || fclose(out)) {
            fprintf(stderr, "bench_topk: cannot write %s\n", indexes);
            return 1;
        }
    }
    printf("{\"n\": %zu, \"k\": %zu, \"topk_s\": %.6f, \"read_s\": %.6f, \"sum\": %g}\n", n, k, b.topk_s,
           b.read_s, (double)b.sum);
    ddp__release(NULL, x, n * sizeof *x);
    free(index);
    return 0;
}

int main(int argc, char **argv)
{
    long n = 25000000, rounds = 7, k = 0;
    const char *path = NULL, *indexes = NULL;
    int code, quick = 0;
    cli_option table[6];

    memset(table, 0, sizeof table);
    table[0].name = "--n";
    table[0].kind = CLI_COUNT;
    table[0].out = &n;
    table[0].value = "N";
    table[0].help = "floats of the table (default 25000000)";
    table[1].name = "--rounds";
    table[1].kind = CLI_COUNT;
    table[1].out = &rounds;
    table[1].value = "N";
    table[1].help = "the best of N counts (default 7)";
    table[2].name = "--file";
    table[2].kind = CLI_TEXT;
    table[2].out = &path;
    table[2].value = "FILE";
    table[2].help = "select from these little-endian floats instead";
    table[3].name = "--k";
    table[3].kind = CLI_COUNT;
    table[3].out = &k;
    table[3].value = "N";
    table[3].help = "with --file: how many";
    table[4].name = "--indexes";
    table[4].kind = CLI_TEXT;
    table[4].out = &indexes;
    table[4].value = "FILE";
    table[4].help = "with --file: write the kept indexes there, 64 bits each";
    table[5].name = "--quick";
    table[5].kind = CLI_FLAG;
    table[5].out = &quick;
    table[5].value = "";
    table[5].help = "two rounds";
    code = cli_parse(argc, argv, "Time of exact Top-K against one read of the array.", table, 6);
    if (code >= 0) return code;
    if (quick) rounds = 2;
    if (n < 1 || rounds < 1) {
        fprintf(stderr, "bench_topk: --n and --rounds must be at least 1\n");
        return 2;
    }
    if (path) return bench_file(path, indexes, (size_t)k, rounds);
    return bench_table((size_t)n, rounds) || bench_messages((size_t)n, rounds);
}
