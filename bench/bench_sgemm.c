/* Float matrix products of the library, and of a BLAS if the program is compiled with one.
 *
 *   cc -O2 -I. bench/bench_sgemm.c -o bench_sgemm -lm -lpthread
 *   cc -O2 -DDDP_USE_CBLAS -I. bench/bench_sgemm.c -o bench_sgemm -lopenblas -lm -lpthread
 *   ./bench_sgemm --m 1024 --n 1152 --k 384 --trans nt --threads 1
 *
 * The last line of stdout is one JSON object; rates belong to the best round. Both libraries alternate and
 * their results are compared. With several threads, time each in a separate process (--only), because a BLAS
 * may keep its threads spinning between calls. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "../examples/common/cli.h"

typedef struct sgemm {
    ddp__matmul g;
    ddp_op_call call;
} sgemm;

static void sgemm_ours(const sgemm *s) { ddp__matmul_kernels(&s->call, &s->g); }

#ifdef DDP_USE_CBLAS
static void sgemm_blas(const sgemm *s)
{
    const ddp__matmul *g = &s->g;

    cblas_sgemm(CblasRowMajor, g->a_col == 1 ? CblasNoTrans : CblasTrans,
                g->b_col == 1 ? CblasNoTrans : CblasTrans, (int)g->m, (int)g->n, (int)g->k, 1, g->a,
                (int)(g->a_col == 1 ? g->a_row : g->a_col), g->b, (int)(g->b_col == 1 ? g->b_row : g->b_col),
                0, g->c, (int)g->c_row);
}
#endif

/* Seconds of one product, from a round of about 20 ms. */
static double sgemm_time(const sgemm *s, void (*multiply)(const sgemm *))
{
    double start = ddp_now(), took;
    long rounds = 1, i;

    multiply(s);
    took = ddp_now() - start;
    if (took < 0.02) rounds = (long)(0.02 / (took > 1e-7 ? took : 1e-7)) + 1;
    start = ddp_now();
    for (i = 0; i < rounds; i++) multiply(s);
    return (ddp_now() - start) / (double)rounds;
}

/* Allocates on large pages, as the library does. */
static float *sgemm_matrix(long rows, long cols, uint64_t seed)
{
    ddp_rng r = ddp_rng_seed(seed, 0);
    float *x = (float *)ddp__alloc(NULL, (size_t)rows * (size_t)cols * sizeof *x);
    long i;

    for (i = 0; x && i < rows * cols; i++) x[i] = (float)(2 * ddp_rng_uniform(&r) - 1);
    return x;
}

static int sgemm_usage(const char *why)
{
    fprintf(stderr, "bench_sgemm: %s; --help lists the options\n", why);
    return 2;
}

int main(int argc, char **argv)
{
    long m = 1024, n = 1152, k = 384, threads = 1, rounds = 5, i;
    const char *trans = "nt", *only = "both";
    int quick = 0;
    double ours = INFINITY, blas = INFINITY, worst = 0, t, flops, bytes;
    const cli_option table[] = {
        {"--m", CLI_COUNT, &m, "M", "rows of the result"},
        {"--n", CLI_COUNT, &n, "N", "columns of the result"},
        {"--k", CLI_COUNT, &k, "K", "length of the sums"},
        {"--trans", CLI_TEXT, &trans, "nn|nt|tn", "which operand is stored transposed (nt)"},
        {"--threads", CLI_COUNT, &threads, "T", "threads of each (1)"},
        {"--rounds", CLI_COUNT, &rounds, "R", "the best of R counts (5)"},
        {"--only", CLI_TEXT, &only, "ours|cblas", "leave the other one out"},
        {"--quick", CLI_FLAG, &quick, "", "one round"},
    };
    int code = cli_parse(argc, argv, "Times a matrix product and prints one JSON object.", table,
                         (int)(sizeof table / sizeof table[0]));
    float *a, *b, *c, *d;
    sgemm s;

    if (code >= 0) return code;
    if (quick) rounds = 1;
    if (strcmp(trans, "nn") && strcmp(trans, "nt") && strcmp(trans, "tn"))
        return sgemm_usage("--trans must be nn, nt or tn");
    if (strcmp(only, "both") && strcmp(only, "ours") && strcmp(only, "cblas"))
        return sgemm_usage("--only must be ours or cblas");
    if (m < 1 || n < 1 || k < 1 || m > 1000000 || n > 1000000 || k > 1000000)
        return sgemm_usage("--m, --n and --k must be from 1 to 1000000");
    if (threads < 1 || threads > 256) return sgemm_usage("--threads must be from 1 to 256");
    if (rounds < 1) return sgemm_usage("--rounds must be at least 1");
#ifndef DDP_USE_CBLAS
    if (!strcmp(only, "cblas")) return sgemm_usage("this program was built without a BLAS");
#endif
    bytes = sizeof *a * ((double)m * (double)k + (double)k * (double)n + 2 * (double)m * (double)n);
    if (ddp__memory_total() > 0 && bytes > ddp__memory_total()) { /* malloc may succeed without the memory */
        fprintf(stderr, "bench_sgemm: %ld x %ld x %ld needs %.0f bytes; this machine has %.0f\n", m, n, k,
                bytes, ddp__memory_total());
        return 1;
    }
    memset(&s, 0, sizeof s);
    a = sgemm_matrix(m, k, 1);
    b = sgemm_matrix(k, n, 2);
    c = sgemm_matrix(m, n, 3);
    d = sgemm_matrix(m, n, 4);
    s.call.pool = ddp__pool_open((int)threads);
    if (!a || !b || !c || !d || !s.call.pool || !ddp__pool_rooms((ddp__pool *)s.call.pool)) {
        fprintf(stderr, "bench_sgemm: no memory for %ld x %ld x %ld\n", m, n, k);
        return 1;
    }
    s.g.m = m;
    s.g.n = n;
    s.g.k = k;
    s.g.a = a;
    s.g.a_row = trans[0] == 't' ? 1 : k;
    s.g.a_col = trans[0] == 't' ? m : 1;
    s.g.b = b;
    s.g.b_row = trans[1] == 't' ? 1 : n;
    s.g.b_col = trans[1] == 't' ? k : 1;
    s.g.c_row = n;
    for (i = 0; i < rounds; i++) {
        if (strcmp(only, "cblas")) {
            s.g.c = c;
            t = sgemm_time(&s, sgemm_ours);
            if (t < ours) ours = t;
        }
#ifdef DDP_USE_CBLAS
        if (strcmp(only, "ours")) {
#ifdef OPENBLAS_CONFIG_H
            openblas_set_num_threads((int)threads);
#endif
            s.g.c = d;
            t = sgemm_time(&s, sgemm_blas);
            if (t < blas) blas = t;
        }
#endif
    }
    flops = 2e-9 * (double)m * (double)n * (double)k;
    printf("{\"m\": %ld, \"n\": %ld, \"k\": %ld, \"trans\": \"%s\", \"threads\": %ld", m, n, k, trans,
           threads);
    if (ours < INFINITY)
        printf(", \"kernels\": \"%s\", \"gflops\": %.2f", ddp__kernels_best()->name, flops / ours);
    if (blas < INFINITY) printf(", \"gflops_cblas\": %.2f", flops / blas);
    if (ours < INFINITY && blas < INFINITY) {
        for (i = 0; i < m * n; i++)
            if (fabs((double)c[i] - (double)d[i]) > worst) worst = fabs((double)c[i] - (double)d[i]);
        printf(", \"ratio\": %.4f, \"difference\": %.3g", blas / ours, worst);
        if (!(worst <= 1e-5 * (double)k)) code = 1;
    }
    printf("}\n");
    if (code == 1) fprintf(stderr, "bench_sgemm: the results differ by %g\n", worst);
    ddp__pool_close((ddp__pool *)s.call.pool);
    ddp__release(NULL, a, (size_t)m * (size_t)k * sizeof *a);
    ddp__release(NULL, b, (size_t)k * (size_t)n * sizeof *b);
    ddp__release(NULL, c, (size_t)m * (size_t)n * sizeof *c);
    ddp__release(NULL, d, (size_t)m * (size_t)n * sizeof *d);
    return code < 0 ? 0 : code;
}
