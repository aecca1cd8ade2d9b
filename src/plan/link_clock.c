/* The clock of a link that carries one message at a time. */
#include "plan/link_clock.h"

double ddp__link_take(double *free_at, double ready, double takes)
{
    double begin = *free_at > ready ? *free_at : ready;
    *free_at = begin + takes;
    return begin;
}

int ddp__link_first(int links, const double *free_at, double ready, const double *takes, const double *alpha)
{
    double arrives, first = DBL_MAX;
    int best = 0;
    for (int k = 0; k < links; k++) {
        arrives = free_at[k];
        ddp__link_take(&arrives, ready, takes[k]);
        arrives += alpha[k];
        if (arrives < first) {
            first = arrives;
            best = k;
        }
    }
    return best;
}
