/* Knapsack problems. MOST, the limit of items, is defined by the file that includes this one. */
#ifndef TESTS_KNAPSACK_LAB_H
#define TESTS_KNAPSACK_LAB_H

/* A problem that contains its arrays. */
typedef struct instance {
    ddp_knapsack_problem p;
    double c[MOST], r[MOST], v[MOST];
} instance;

static void instance_init(instance *x, int items, int links)
{
    int l;

    memset(x, 0, sizeof *x);
    x->p.items = items;
    x->p.item_s = x->c;
    x->p.links = links;
    for (l = 0; l < 2; l++) x->p.slowdown[l] = 1;
}

#endif /* TESTS_KNAPSACK_LAB_H */
