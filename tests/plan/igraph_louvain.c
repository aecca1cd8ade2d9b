/* For test_louvain_igraph.py: reads graphs from standard input ("n", then n x n weights) and writes our
 * modularity of each graph as a line to standard output. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

int main(void)
{
    int n, count;

    while (scanf("%d", &n) == 1 && n > 0) {
        size_t cells = (size_t)n * (size_t)n, i;
        double *w = (double *)calloc(cells, sizeof *w), q = 0;
        int *c = (int *)calloc((size_t)n, sizeof *c);
        ddp_error err;
        for (i = 0; w && i < cells && scanf("%lf", &w[i]) == 1; i++) {
        }
        if (!w || !c || i < cells || ddp_louvain(n, w, 1, c, &count, &q, &err) != DDP_OK) return 1;
        printf("%.17g\n", q);
        free(w);
        free(c);
    }
    return 0;
}
