/* The reference of bench/transport.py: MPI_Allreduce of the MPI library.
 *
 *   mpicc -O2 bench/mpi_allreduce.c -o mpi_allreduce
 *   mpirun -n 4 ./mpi_allreduce BYTES ITERATIONS
 *
 * As in bench_allreduce: two iterations of warm-up, a barrier precedes every iteration, an iteration
 * takes as long as its slowest rank, and the last line of stdout is one JSON object. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARMUP = 2 };

static int order(const void *a, const void *b)
{
    const double *p = (const double *)a, *q = (const double *)b;

    return (*p > *q) - (*p < *q);
}

int main(int argc, char **argv)
{
    long bytes = argc > 1 ? atol(argv[1]) : 16777216, iters = argc > 2 ? atol(argv[2]) : 20, i, k;
    long n = bytes / (long)sizeof(float);
    float *x;
    double *ms, *slowest;
    int rank, world;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (n < 1 || iters < 1) {
        fprintf(stderr, "usage: mpi_allreduce BYTES ITERATIONS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    x = (float *)malloc((size_t)n * sizeof *x);
    ms = (double *)calloc((size_t)iters, sizeof *ms);
    slowest = (double *)calloc((size_t)iters, sizeof *slowest);
    if (!x || !ms || !slowest) MPI_Abort(MPI_COMM_WORLD, 1);
    for (i = -WARMUP; i < iters; i++) {
        double begin;
        for (k = 0; k < n; k++) x[k] = (float)(rank + k % 7);
        MPI_Barrier(MPI_COMM_WORLD);
        begin = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= 0) ms[i] = 1e3 * (MPI_Wtime() - begin);
    }
    MPI_Reduce(ms, slowest, (int)iters, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(slowest, (size_t)iters, sizeof *slowest, order);
        printf("{\"median_ms\":%.6f,\"min_ms\":%.6f,\"algorithm\":\"MPI_Allreduce\",\"bytes\":%ld,"
               "\"ranks\":%d}\n",
               (slowest[iters / 2] + slowest[(iters - 1) / 2]) / 2, slowest[0], bytes, world);
    }
    free(x);
    free(ms);
    free(slowest);
    MPI_Finalize();
    return 0;
}
