/* Helper of test_cblas.sh: compares products by BLAS in slices with the library's own kernels, with 1 and
 * 3 threads. Built with -DDDP_USE_CBLAS. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

static float *numbers(long n, uint64_t seed)
{
    ddp_rng r = ddp_rng_seed(seed, 0);
    float *x = (float *)malloc((size_t)n * sizeof *x);
    long i;

    for (i = 0; x && i < n; i++) x[i] = (float)(2 * ddp_rng_uniform(&r) - 1);
    return x;
}

/* mode: bit 0: a is stored transposed; bit 1: b is; bit 2: add; bit 3: bias. */
static int product(ddp__pool *const *pool, long m, long n, long k, int mode)
{
    float *a = numbers(m * (k + 3), 1), *b = numbers(k * (n + 5) + n * (k + 5), 2);
    float *bias = numbers(n, 3), *c[3];
    ddp_op_call call;
    ddp__matmul g;
    long i;
    int t, bad = 0;

    memset(&call, 0, sizeof call);
    memset(&g, 0, sizeof g);
    g.m = m;
    g.n = n;
    g.k = k;
    g.a = a;
    g.a_row = mode & 1 ? 1 : k + 3;
    g.a_col = mode & 1 ? m : 1;
    g.b = b;
    g.b_row = mode & 2 ? 1 : n + 5;
    g.b_col = mode & 2 ? k + 5 : 1;
    g.add = (mode & 4) != 0;
    g.bias = mode & 8 && !g.add ? bias : NULL;
    g.c_row = n + 1;
    for (t = 0; t < 3; t++) {
        g.c = c[t] = numbers(m * (n + 1), 4);
        call.pool = pool[t == 2];
        if (t)
            ddp__matmul_run(&call, &g);
        else
            ddp__matmul_kernels(&call, &g);
    }
    for (i = 0; i < m * (n + 1); i++)
        bad |= !(fabs((double)c[0][i] - (double)c[1][i]) <= 1e-6 * (double)(k + 1));
    if (bad) printf("  %ld x %ld x %ld, mode %d: differs from the library's own kernel\n", m, n, k, mode);
    if (memcmp(c[1], c[2], (size_t)(m * (n + 1)) * sizeof(float))) {
        printf("  %ld x %ld x %ld, mode %d: 3 threads differ from 1\n", m, n, k, mode);
        bad = 1;
    }
    for (t = 0; t < 3; t++) free(c[t]);
    free(a);
    free(b);
    free(bias);
    return bad;
}

/* Returns 1 if the variable TEST_NAME selects this case. An underscore equals a space. */
static int chosen(const char *name)
{
    const char *wanted = getenv("NAME");
    char text[80];
    size_t i;

    for (i = 0; wanted && wanted[i] && i < sizeof text - 1; i++) text[i] = wanted[i] == '_' ? ' ' : wanted[i];
    text[i] = 0;
    return !wanted || strstr(name, text) != NULL;
}

int main(void)
{
    static const long shape[][3] = {{1, 1, 1},      {3, 5, 7},       {64, 64, 64},   {300, 17, 65},
                                    {17, 300, 65},  {513, 257, 129}, {257, 513, 31}, {5, 7, 0},
                                    {1000, 1, 100}, {1, 1000, 100}};
    ddp__pool *pool[2] = {ddp__pool_open(1), ddp__pool_open(3)}; /* pools of one and three threads */
    int i, mode, failed = 0, passed = 0;

    if (!pool[0] || !pool[1] || !ddp__pool_rooms(pool[0]) || !ddp__pool_rooms(pool[1])) return 1;
    for (i = 0; i < (int)(sizeof shape / sizeof shape[0]); i++)
        for (mode = 0; mode < 16; mode++) {
            char name[80];
            int bad;

            snprintf(name, sizeof name, "product of %ld x %ld x %ld in mode %d", shape[i][0], shape[i][1],
                     shape[i][2], mode);
            if (!chosen(name)) continue;
            bad = product(pool, shape[i][0], shape[i][1], shape[i][2], mode);
            printf("%-7s %s\n", bad ? "FAILED" : "ok", name);
            failed += bad;
            passed += !bad;
        }
    ddp__pool_close(pool[0]);
    ddp__pool_close(pool[1]);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
