#include "base/platform.h"
#include "nn/clip.h"
#include "nn/exact.h"

/* Lane k adds elements k, k + 8, k + 16, ...; the lanes are added pairwise at the end. */
double ddp__sum_squares(const float *x, size_t n)
{
    typedef double pair __attribute__((vector_size(16)));
    pair a = {0, 0}, b = {0, 0}, c = {0, 0}, d = {0, 0};
    double lane[8];
    size_t i, k;

    for (i = 0; i + 8 <= n; i += 8) {
        pair p = {(double)x[i + 0], (double)x[i + 1]}, q = {(double)x[i + 2], (double)x[i + 3]};
        pair r = {(double)x[i + 4], (double)x[i + 5]}, s = {(double)x[i + 6], (double)x[i + 7]};
        a += p * p;
        b += q * q;
        c += r * r;
        d += s * s;
    }
    memcpy(lane + 0, &a, sizeof a);
    memcpy(lane + 2, &b, sizeof b);
    memcpy(lane + 4, &c, sizeof c);
    memcpy(lane + 6, &d, sizeof d);
    for (k = 0; i + k < n; k++) lane[k] += (double)x[i + k] * (double)x[i + k];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
           ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

float ddp__clip_factor(double sum_squares, double max_norm)
{
    double factor = max_norm / (sqrt(sum_squares) + 1e-6);

    return factor > 1 ? 1 : (float)factor;
}

void ddp__scale(float *x, size_t n, float s)
{
    size_t i;

    for (i = 0; i + 4 <= n; i += 4) ddp__f4_store(x + i, ddp__f4_load(x + i) * s);
    for (; i < n; i++) x[i] *= s;
}
