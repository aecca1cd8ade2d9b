/* Operations on orders: sort by a key, shuffle, improve by exchanges. */
#include "plan/order.h"

int ddp__by_rank(const void *a, const void *b)
{
    const ddp__ranked *x = (const ddp__ranked *)a, *y = (const ddp__ranked *)b;
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : x->i - y->i;
}

void ddp__swap(int *order, int i, int j)
{
    int swap = order[i];
    order[i] = order[j];
    order[j] = swap;
}

void ddp__reverse(int *order, int i, int j)
{
    for (; i < j; i++, j--) ddp__swap(order, i, j);
}

void ddp__shuffle(int *order, int n, ddp_rng *r)
{
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; r && i > 0; i--) ddp__swap(order, i, (int)ddp_rng_below(r, (uint64_t)i + 1));
}

int ddp__improve(int *order, int n, int turn, double (*cost)(void *), void *user, double *least)
{
    int fell = 0;
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            for (int kind = !turn; kind < 2 && *least > 0; kind++) {
                void (*move)(int *, int, int) = kind ? ddp__swap : ddp__reverse;
                double now;
                if (turn && kind && j - i < 3) continue; /* identical to a reversal */
                move(order, i, j);
                now = cost(user);
                if (now < *least * (1 - 1e-9)) {
                    *least = now;
                    fell = 1;
                } else
                    move(order, i, j);
            }
    return fell;
}
