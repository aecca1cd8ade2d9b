/* Bottleneck matching of two sets of equal size, by augmenting paths and bisection. */
#include "plan/place/matching.h"

/* Searches an augmenting path from u over weights of at most `most` (Kuhn's algorithm). */
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

/* Extends the matching in m to a perfect one. Returns 0 if weights up to `most` do not allow it. */
static int ddp__matching_extend(ddp__matching *m, const double *weight, double most)
{
    for (int u = 0; u < m->n; u++) {
        if (m->left[u] >= 0) continue;
        m->round++;
        if (!ddp__matching_augment(m, weight, most, u)) return 0;
    }
    return 1;
}

double ddp__matching_bound(int n, const double *weight)
{
    double most = -DBL_MAX, row, column;
    for (int u = 0; u < n; u++) {
        row = column = DBL_MAX;
        for (int v = 0; v < n; v++) {
            double r = weight[(size_t)u * (size_t)n + (size_t)v],
                   c = weight[(size_t)v * (size_t)n + (size_t)u];
            if (r < row) row = r;
            if (c < column) column = c;
        }
        if (row > most) most = row;
        if (column > most) most = column;
    }
    return most;
}

/* Finds a perfect matching whose largest weight is smallest. mate [n] attains the returned value, which the
 * matching of the released DT-FM program may not. Bisects over the thresholds. Each try extends the matching
 * of the last threshold that was too low. */
double ddp__matching_solve(ddp__matching *m, const double *weight, int *mate)
{
    double bound = ddp__matching_bound(m->n, weight);
    size_t cells = (size_t)m->n * (size_t)m->n, i, count = 0, lo = 0, hi, mid,
           bytes = (size_t)m->n * sizeof(int);

    memset(m->seen, 0, bytes);
    memset(m->left, -1, bytes);
    memset(m->right, -1, bytes);
    m->round = 0;
    if (!ddp__matching_extend(m, weight, bound)) {
        for (i = 0; i < cells; i++)
            if (weight[i] > bound) m->sorted[count++] = weight[i];
        qsort(m->sorted, count, sizeof(double), ddp__rising);
        for (i = 1, hi = 0; i < count; i++)
            if (m->sorted[i] > m->sorted[hi]) m->sorted[++hi] = m->sorted[i];
        while (lo < hi) {
            mid = (lo + hi) / 2;
            memcpy(m->kept, m->left, bytes);
            memcpy(m->kept + m->n, m->right, bytes);
            if (!ddp__matching_extend(m, weight, m->sorted[mid])) {
                lo = mid + 1; /* pairs found so far stay valid at every larger threshold */
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

void ddp__matching_open(ddp__matching *m, int n, ddp__scratch *room)
{
    size_t N = (size_t)n;
    m->n = n;
    m->sorted = ddp__doubles(room, N * N);
    m->left = ddp__ints(room, N);
    m->right = ddp__ints(room, N);
    m->seen = ddp__ints(room, N);
    m->kept = ddp__ints(room, 2 * N);
}
