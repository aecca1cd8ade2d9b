#include "base/core.h"
#include "plan/matching.h"
#include "plan/place_core.h"

static int ddp__matching_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* An augmenting path from u over weights of at most `most` (Kuhn). */
static int ddp__matching_augment(ddp__matching *m, const double *weight, double most, int u)
{
    const double *row = weight + (size_t)u * (size_t)m->n;

    for (int v = 0; v < m->n; v++) {
        if (row[v] > most || m->seen[v] == m->round) continue;
        m->seen[v] = m->round;
        if (m->right[v] >= 0 && !ddp__matching_augment(m, weight, most, m->right[v])) continue;
        m->right[v] = u;
        m->left[u] = v;
        return 1;
    }
    return 0;
}

/* Extends the matching in m to a perfect one; 0 where weights up to `most` do not allow it. */
static int ddp__matching_extend(ddp__matching *m, const double *weight, double most)
{
    for (int u = 0; u < m->n; u++) {
        if (m->left[u] >= 0) continue;
        m->round++;
        if (!ddp__matching_augment(m, weight, most, u)) return 0;
    }
    return 1;
}

/* No perfect matching avoids the lightest weight of any row or column. */
static double ddp__matching_bound(int n, const double *weight)
{
    double most = -INFINITY, row, column;

    for (int u = 0; u < n; u++) {
        row = column = INFINITY;
        for (int v = 0; v < n; v++) {
            double r = weight[(size_t)u * (size_t)n + (size_t)v];
            double c = weight[(size_t)v * (size_t)n + (size_t)u];
            if (r < row) row = r;
            if (c < column) column = c;
        }
        if (row > most) most = row;
        if (column > most) most = column;
    }
    return most;
}

double ddp__matching_solve(ddp__matching *m, const double *weight, int *mate)
{
    double bound = ddp__matching_bound(m->n, weight);
    size_t cells = (size_t)m->n * (size_t)m->n, i, count = 0, lo = 0, hi, mid;
    size_t bytes = (size_t)m->n * sizeof(int);

    memset(m->seen, 0, bytes);
    memset(m->left, -1, bytes);
    memset(m->right, -1, bytes);
    m->round = 0;
    if (!ddp__matching_extend(m, weight, bound)) {
        for (i = 0; i < cells; i++)
            if (weight[i] > bound) m->sorted[count++] = weight[i];
        qsort(m->sorted, count, sizeof(double), ddp__matching_order);
        for (i = 1, hi = 0; i < count; i++)
            if (m->sorted[i] > m->sorted[hi]) m->sorted[++hi] = m->sorted[i];
        while (lo < hi) {
            mid = (lo + hi) / 2;
            memcpy(m->kept, m->left, bytes);
            memcpy(m->kept + m->n, m->right, bytes);
            if (!ddp__matching_extend(m, weight, m->sorted[mid])) {
                lo = mid + 1; /* what was found stays allowed at every larger threshold */
                continue;
            }
            hi = mid;
            memcpy(m->left, m->kept, bytes);
            memcpy(m->right, m->kept + m->n, bytes);
        }
        bound = m->sorted[lo];
        (void)ddp__matching_extend(m, weight, bound);
    }
    memcpy(mate, m->left, bytes);
    return bound;
}

int ddp__matching_open(ddp__matching *m, int n)
{
    size_t N = (size_t)n;

    memset(m, 0, sizeof *m);
    m->n = n;
    m->sorted = (double *)ddp__calloc(N * N, sizeof(double));
    m->left = (int *)ddp__calloc(5 * N, sizeof(int));
    if (!m->sorted || !m->left) {
        ddp__matching_close(m);
        return 0;
    }
    m->right = m->left + n;
    m->seen = m->right + n;
    m->kept = m->seen + n;
    return 1;
}

void ddp__matching_close(ddp__matching *m)
{
    DDP_FREE(m->sorted);
    DDP_FREE(m->left);
    memset(m, 0, sizeof *m);
}

ddp_status ddp_matching_bottleneck(int n, const double *weight, int *mate, double *value, ddp_error *err)
{
    ddp__matching m;
    double most;

    if (n < 1 || !weight || !mate || !value)
        return ddp__fail(err, DDP_ARG, "a matching of %d vertices or a NULL array; both sides have at least 1", n);
    for (int u = 0; u < n; u++)
        for (int v = 0; v < n; v++) {
            double w = weight[(size_t)u * (size_t)n + (size_t)v];
            if (!(w >= -DBL_MAX && w <= DBL_MAX))
                return ddp__fail(err, DDP_ARG, "the weight of pair (%d, %d) is %g; it must be finite", u, v, w);
        }
    if (!ddp__matching_open(&m, n)) return ddp__fail(err, DDP_MEMORY, "no memory to match %d vertices", n);
    most = ddp__matching_solve(&m, weight, mate);
    ddp__matching_close(&m);
    *value = most;
    return DDP_OK;
}
