/* The knapsack: checks, the conversion from seconds to ticks, and the greedy solver. */
#include "plan/arrays.h"
#include "plan/names.h"
#include "plan/order.h"
#include "plan/timeline/knapsack_internal.h"

static double ddp__knapsack_slow(const ddp_knapsack_problem *p, int link)
{
    return p->slowdown[link] > 0 ? p->slowdown[link] : 1;
}

static ddp_status ddp__knapsack_check(const ddp_knapsack_problem *p, const int *assign, ddp_error *err)
{
    double sum = 0;
    if (!p || p->items < 1 || !p->item_s || !assign)
        return ddp__fail(err, DDP_ARG, "the knapsack has %d items%s; it needs at least 1", p ? p->items : 0,
                         p && p->items > 0 ? " but a NULL array" : "");
    if (p->links < 1 || p->links > 2)
        return ddp__fail(err, DDP_ARG, "the knapsack has %d links; it takes 1 or 2", p->links);
    for (int l = 0; l < p->links; l++) {
        DDP__TRY(ddp__check_finite(p->deadline_s[l], 1, err, "the capacity of link %d is %g", l,
                                   p->deadline_s[l]));
        DDP__TRY(ddp__check_finite(p->start_s[l], 0, err, "link %d starts at %g", l, p->start_s[l]));
        if (!ddp__zero_or_within(p->slowdown[l], 1, DBL_MAX))
            return ddp__fail(err, DDP_ARG,
                             "link %d is %g times slower (mu); it must be finite and at least 1", l,
                             p->slowdown[l]);
    }
    for (int i = 0; i < p->items; i++) {
        DDP__TRY(ddp__check_finite(p->item_s[i], 1, err, "item %d takes %g", i, p->item_s[i]));
        if (p->ready_s)
            DDP__TRY(ddp__check_finite(p->ready_s[i], 0, err, "item %d is ready at %g", i, p->ready_s[i]));
        if (p->value) DDP__TRY(ddp__check_finite(p->value[i], 0, err, "item %d is worth %g", i, p->value[i]));
        sum += p->value ? p->value[i] : p->item_s[i];
    }
    if (!ddp__finite(sum)) return ddp__fail(err, DDP_NUMERIC, "the items add up to more than a double holds");
    return DDP_OK;
}

/* Later than every deadline, which is at most 2^44 + 1 ticks, and far from overflow. */
#define DDP__KNAPSACK_NEVER INT64_C(100000000000000)

/* Converts to ticks, rounding down. */
static int64_t ddp__knapsack_ticks(double x, double tick)
{
    double n = floor(x / tick);
    return n < (double)DDP__KNAPSACK_NEVER ? (int64_t)n : DDP__KNAPSACK_NEVER;
}

/* Compares by release time. In a tie, longer items come first, then more valuable items. */
static int ddp__knapsack_compare(const ddp__knapsack_class *x, const ddp__knapsack_class *y)
{
    if (x->ready != y->ready) return x->ready < y->ready ? -1 : 1;
    if (x->cost[0] != y->cost[0]) return x->cost[0] > y->cost[0] ? -1 : 1;
    if (x->cost[1] != y->cost[1]) return x->cost[1] > y->cost[1] ? -1 : 1;
    return (x->value < y->value) - (x->value > y->value);
}

/* The same for qsort, with ties in list order. */
static int ddp__knapsack_order(const void *a, const void *b)
{
    const ddp__knapsack_class *x = (const ddp__knapsack_class *)a, *y = (const ddp__knapsack_class *)b;
    int order = ddp__knapsack_compare(x, y);
    return order ? order : x->first - y->first;
}

static int ddp__knapsack_fits_alone(const ddp__knapsack *k, const ddp__knapsack_class *c)
{
    for (int l = 0; l < k->links; l++)
        if ((c->ready > k->start[l] ? c->ready : k->start[l]) + c->cost[l] <= k->deadline[l]) return 1;
    return 0;
}

/* Sorts the items, each a class of one with its number in `first`, and joins equal items. */
static void ddp__knapsack_classes(ddp__knapsack *k)
{
    int n = 0;
    qsort(k->cls, (size_t)k->items, sizeof *k->cls, ddp__knapsack_order);
    for (int i = 0; i < k->items; i++) {
        const ddp__knapsack_class x = k->cls[i];
        if (!ddp__knapsack_fits_alone(k, &x)) continue;
        if (!k->classes || ddp__knapsack_compare(&k->cls[k->classes - 1], &x)) {
            k->cls[k->classes] = x;
            k->cls[k->classes++].first = n;
        }
        k->cls[k->classes - 1].count = n + 1 - k->cls[k->classes - 1].first;
        k->order[n++] = x.first;
        k->total += x.value;
    }
}

static ddp_status ddp__knapsack_open(ddp__knapsack *k, const ddp_knapsack_problem *p, ddp_error *err)
{
    size_t n = (size_t)p->items;
    double tick = 0, unit = 0;

    memset(k, 0, sizeof *k);
    k->cls = (ddp__knapsack_class *)ddp__scratch_take(&k->room, n, sizeof *k->cls);
    k->order = ddp__ints(&k->room, n);
    k->assign = ddp__ints(&k->room, n);
    k->key = ddp__doubles(&k->room, n);
    DDP__TRY(ddp__scratch_check(&k->room, p->items, "items", err));
    k->items = p->items;
    k->links = p->links;
    k->value = p->value ? p->value : p->item_s;
    for (int l = 0; l < p->links; l++)
        if (p->deadline_s[l] > tick) tick = p->deadline_s[l];
    tick = ldexp(tick, -44);
    if (!(tick > 0)) tick = DBL_MIN; /* a denormal deadline */
    for (int l = 0; l < p->links; l++) {
        k->start[l] = ddp__knapsack_ticks(p->start_s[l], tick);
        k->deadline[l] = ddp__knapsack_ticks(p->deadline_s[l], tick) + 1;
        if (k->start[l] > k->deadline[l]) k->start[l] = k->deadline[l];
    }
    for (int i = 0; i < p->items; i++) unit += k->value[i];
    unit = ldexp(unit, -46);
    if (!(unit > 0)) unit = 1; /* no item has any value */
    for (int i = 0; i < p->items; i++) {
        ddp__knapsack_class *x = &k->cls[i];
        x->first = i;
        x->ready = p->ready_s ? ddp__knapsack_ticks(p->ready_s[i], tick) : 0;
        for (int l = 0; l < p->links; l++)
            x->cost[l] = p->start_s[l] < p->deadline_s[l]
                             ? ddp__knapsack_ticks(p->item_s[i] * ddp__knapsack_slow(p, l), tick)
                             : DDP__KNAPSACK_NEVER;
        x->value = (int64_t)floor(k->value[i] / unit + 0.5);
        k->key[i] = p->value ? p->value[i] / p->item_s[i] : p->item_s[i];
    }
    ddp__knapsack_classes(k);
    return DDP_OK;
}

/* The end time of the items of a link, updated in O(log classes): a heap-shaped tree over the classes in
 * release order. Each node stores how long its classes take, and when they end on a link that was idle
 * before. */
typedef struct ddp__knapsack_span {
    int64_t takes, end;
} ddp__knapsack_span;

static void ddp__knapsack_count(ddp__knapsack_span *tree, int leaves, int c, int64_t ready, int64_t takes)
{
    int i = leaves + c;
    tree[i].takes = takes;
    tree[i].end = takes > 0 ? ready + takes : 0;
    for (i /= 2; i > 0; i /= 2) {
        const ddp__knapsack_span *a = &tree[2 * i], *b = a + 1;
        tree[i].takes = a->takes + b->takes;
        tree[i].end = a->end + b->takes > b->end ? a->end + b->takes : b->end;
    }
}

/* Adds an item of class c to the link if it then still ends in time. */
static int ddp__knapsack_join(const ddp__knapsack *k, ddp__knapsack_span *tree, int leaves, int link, int c)
{
    const ddp__knapsack_class *x = &k->cls[c];
    int64_t takes = tree[leaves + c].takes;
    ddp__knapsack_count(tree, leaves, c, x->ready, takes + x->cost[link]);
    if (k->start[link] + tree[1].takes <= k->deadline[link] && tree[1].end <= k->deadline[link]) return 1;
    ddp__knapsack_count(tree, leaves, c, x->ready, takes);
    return 0;
}

static ddp_status ddp__knapsack_greedy(ddp__knapsack *k, const ddp_knapsack_problem *p, int64_t *out,
                                       ddp_error *err)
{
    ddp__ranked *rank;
    ddp__knapsack_span *tree;
    double room[2] = {0, 0};
    int c, i, n = 0, l, turn, leaves = 1, *cls;

    while (leaves < k->classes) leaves *= 2;
    tree = (ddp__knapsack_span *)ddp__scratch_take(&k->room, 4 * (size_t)leaves, sizeof *tree);
    rank = (ddp__ranked *)ddp__scratch_take(&k->room, (size_t)k->items, sizeof *rank);
    cls = ddp__ints(&k->room, (size_t)k->items);
    DDP__TRY(ddp__scratch_check(&k->room, k->items, "items", err));
    for (c = 0; c < k->classes; c++)
        for (i = 0; i < k->cls[c].count; i++) {
            rank[n].i = k->order[k->cls[c].first + i];
            rank[n].key = -k->key[rank[n].i];
            cls[rank[n++].i] = c;
        }
    qsort(rank, (size_t)n, sizeof *rank, ddp__by_rank);
    for (i = 0; i < k->items; i++) k->assign[i] = -1;
    for (l = 0; l < k->links; l++) room[l] = (p->deadline_s[l] - p->start_s[l]) / ddp__knapsack_slow(p, l);
    for (i = 0; i < n; i++)
        for (turn = 0; turn < k->links && k->assign[rank[i].i] < 0; turn++) {
            l = k->links == 2 && room[1] < room[0] ? 1 - turn : turn;
            if (!ddp__knapsack_join(k, tree + 2 * l * leaves, leaves, l, cls[rank[i].i])) continue;
            k->assign[rank[i].i] = l;
            *out += k->cls[cls[rank[i].i]].value;
        }
    return DDP_OK;
}

ddp_status ddp__knapsack_within(const ddp_knapsack_problem *p, ddp_knapsack_solver solver, size_t most,
                                int64_t *work, int *assign, double *value, ddp_error *err)
{
    ddp__knapsack k;
    ddp_status status;
    int64_t found = 0;
    double sum = 0;

    DDP__TRY(ddp__knapsack_check(p, assign, err));
    if (solver != DDP_KNAPSACK_DEFAULT && solver != DDP_KNAPSACK_EXACT && solver != DDP_KNAPSACK_GREEDY)
        return ddp__fail(err, DDP_ARG, "solver %d is unknown; use exact or greedy", (int)solver);
    status = ddp__knapsack_open(&k, p, err);
    k.work = work;
    /* greedy first: it handles the case that everything fits, and bounds the exact search */
    if (status == DDP_OK) status = ddp__knapsack_greedy(&k, p, &found, err);
    if (status == DDP_OK && solver != DDP_KNAPSACK_GREEDY && found != k.total)
        status = ddp__knapsack_exact(&k, found, most, err);
    if (status == DDP_UNSUPPORTED && solver == DDP_KNAPSACK_DEFAULT) status = DDP_OK;
    if (status == DDP_OK) {
        memcpy(assign, k.assign, (size_t)p->items * sizeof *assign);
        for (int i = 0; i < p->items; i++)
            if (assign[i] >= 0) sum += k.value[i];
        if (value) *value = sum;
    }
    ddp__scratch_free(&k.room);
    return status;
}

ddp_status ddp_knapsack(const ddp_knapsack_problem *p, ddp_knapsack_solver solver, int *assign, double *value,
                        ddp_error *err)
{
    return ddp__knapsack_within(p, solver, solver == DDP_KNAPSACK_EXACT ? 1 << 20 : 1 << 16, NULL, assign,
                                value, err);
}

static const char *const ddp__knapsacks[] = {"default", "exact", "greedy", NULL};

DDP__NAMES(ddp_knapsack_solver, ddp__knapsacks, 1, "solver")
