/* The exact knapsack: a meet-in-the-middle search. */
#include "plan/arrays.h"
#include "plan/timeline/knapsack_internal.h"

/* The items of one link run best in release order. So a choice of items for link l ends at the time that one
 * pass over the classes in that order computes.
 *
 * Cut the order in two. A choice from the front is described by its value and by f, the time at which it
 * leaves each link. A choice from the back is described by its value and by s, the time that it takes on
 * each link. A back is feasible by itself if, from any class on, its items fit between the release of that
 * class and the deadline. A front and a back are feasible together if and only if f + s <= deadline on both
 * links: the back waits either for the front or for a release, and both were tested.
 *
 * So the best pair is a dominance search. The fronts are visited by descending f of link 0. The backs are
 * entered by ascending s of link 0 into a Fenwick tree over their s of link 1, which stores the largest
 * value. The cut is chosen so that both lists stay short: the shorter list grows, by a whole class of
 * equal items if that is not too much, otherwise by some of them. */

/* Two counts of items below this limit fit into one int. */
#define DDP__KNAPSACK_ITEMS 32768

typedef struct ddp__knapsack_entry {
    int64_t t[2]; /* for each link: the time at which the front leaves it, or the time that the back takes */
    int64_t value;
    int node; /* last node of the chain of choices */
    int rank; /* rank of t[1] among the backs, before that the most recent choice */
} ddp__knapsack_entry;

/* The number of items from position `first` on that run on each link, after the choices of `parent`. */
typedef struct ddp__knapsack_node {
    int parent, first, count[2];
} ddp__knapsack_node;

/* Equal items by which a list grows: `count` items of class `cls` from position `first` on. */
typedef struct ddp__knapsack_slice {
    int cls, first, count;
} ddp__knapsack_slice;

typedef struct ddp__knapsack_search {
    ddp__knapsack *k;
    size_t most;
    int64_t known;
    ddp__knapsack_entry *list[2], *spare; /* lists: fronts, backs, and the one being built */
    ddp__knapsack_node *node;             /* a list */
} ddp__knapsack_search;

static ddp_status ddp__knapsack_too_many(const ddp__knapsack_search *s, ddp_error *err)
{
    return ddp__fail(err, DDP_UNSUPPORTED,
                     "the exact knapsack of %d items on %d link%s needs more than %zu entries; "
                     "use solver greedy, or equal parts",
                     s->k->items, s->k->links, s->k->links == 2 ? "s" : "", s->most);
}

static ddp_status ddp__knapsack_no_memory(const ddp__knapsack_search *s, ddp_error *err)
{
    return ddp__fail(err, DDP_MEMORY, "no memory for the exact knapsack of %d items", s->k->items);
}

/* The time on link l after n items of class c join, or -1 if that is too late. */
static int64_t ddp__knapsack_after(const ddp__knapsack_search *s, int back, int64_t t, int c, int l, int n)
{
    const ddp__knapsack_class *x = &s->k->cls[c];
    const int64_t from = x->ready > s->k->start[l] ? x->ready : s->k->start[l];
    if (n == 0) return t;
    t = (back || t > from ? t : from) + n * x->cost[l];
    return (back ? from : 0) + t <= s->k->deadline[l] ? t : -1;
}

static ddp_status ddp__knapsack_add(ddp__knapsack_search *s, const ddp__knapsack_entry *e, int c,
                                    const int64_t *t, const int *count, ddp_error *err)
{
    const ddp__knapsack_entry x = {{t[0], t[1]},
                                   e->value + (count[0] + count[1]) * s->k->cls[c].value,
                                   e->node,
                                   count[0] * DDP__KNAPSACK_ITEMS + count[1]};
    if (stbds_arrlenu(s->spare) == 4 * s->most) return ddp__knapsack_too_many(s, err);
    if (s->k->work) ++*s->k->work;
    if (!ddp__reserve(s->spare, stbds_arrlenu(s->spare) + 1)) return ddp__knapsack_no_memory(s, err);
    stbds_arrput(s->spare, x);
    return DDP_OK;
}

/* Records, for each retained entry, its choice among the items from position `first` on. */
static ddp_status ddp__knapsack_remember(ddp__knapsack_search *s, ddp__knapsack_entry *a, int first,
                                         ddp_error *err)
{
    const size_t n = stbds_arrlenu(a), nodes = stbds_arrlenu(s->node) + n;
    if (n == 0) return DDP_OK;
    if (nodes > 8 * s->most) return ddp__knapsack_too_many(s, err);
    if (!ddp__reserve(s->node, nodes)) return ddp__knapsack_no_memory(s, err);
    for (size_t i = 0; i < n; i++) {
        const int rank = a[i].rank;
        const ddp__knapsack_node x = {
            a[i].node, first, {rank / DDP__KNAPSACK_ITEMS, rank % DDP__KNAPSACK_ITEMS}};
        if (rank == 0) continue;
        a[i].node = ddp__count(s->node);
        stbds_arrput(s->node, x);
    }
    return DDP_OK;
}

static int ddp__knapsack_by_second(const void *a, const void *b)
{
    const ddp__knapsack_entry *x = (const ddp__knapsack_entry *)a, *y = (const ddp__knapsack_entry *)b;
    if (x->t[1] != y->t[1]) return x->t[1] < y->t[1] ? -1 : 1;
    if (x->t[0] != y->t[0]) return x->t[0] < y->t[0] ? -1 : 1;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int ddp__knapsack_by_first(const void *a, const void *b)
{
    const ddp__knapsack_entry *x = (const ddp__knapsack_entry *)a, *y = (const ddp__knapsack_entry *)b;
    if (x->t[0] != y->t[0]) return x->t[0] < y->t[0] ? -1 : 1;
    return ddp__knapsack_by_second(a, b);
}

/* Sorts by t[1]. Of entries with equal t[1], retains those with a larger value than every entry with a
 * smaller t[0]. On one link the result is the whole Pareto set. */
static void ddp__knapsack_prune(ddp__knapsack_entry *a)
{
    const size_t all = stbds_arrlenu(a);
    size_t n = 0;
    if (all == 0) return;
    qsort(a, all, sizeof *a, ddp__knapsack_by_second);
    for (size_t i = 0; i < all; i++)
        if (n == 0 || a[n - 1].t[1] != a[i].t[1] || a[n - 1].value < a[i].value) a[n++] = a[i];
    stbds_arrsetlen(a, n);
}

/* Fills s->spare with the fronts (back 0) or backs (back 1) extended by the slice. rest = value of all
 * items that neither this list nor the slice covers. Drops entries that cannot exceed `known` even with
 * it. */
static ddp_status ddp__knapsack_choose(ddp__knapsack_search *s, int back, const ddp__knapsack_slice *x,
                                       int64_t rest, ddp_error *err)
{
    const ddp__knapsack_entry *from = s->list[back];
    const size_t entries = stbds_arrlenu(from);
    int64_t t[2], value = s->k->cls[x->cls].value;
    int count[2];
    stbds_arrsetlen(s->spare, 0);
    for (size_t i = 0; i < entries; i++) {
        ddp__knapsack_entry e = from[i];
        for (count[0] = 0; count[0] <= x->count; count[0]++) {
            t[0] = ddp__knapsack_after(s, back, e.t[0], x->cls, 0, count[0]);
            if (t[0] < 0) break;
            for (count[1] = 0; count[0] + count[1] <= x->count; count[1]++) {
                if (count[1] && s->k->links < 2) break;
                t[1] = ddp__knapsack_after(s, back, e.t[1], x->cls, 1, count[1]);
                if (t[1] < 0) break;
                if (e.value + (count[0] + count[1]) * value + rest <= s->known) continue;
                DDP__TRY(ddp__knapsack_add(s, &e, x->cls, t, count, err));
            }
        }
    }
    ddp__knapsack_prune(s->spare);
    return stbds_arrlenu(s->spare) > s->most ? ddp__knapsack_too_many(s, err) : DDP_OK;
}

/* Extends a list by the slice, or by a half of it, a quarter, ... if that would be too much. x->count
 * receives the number of items taken, and *rest decreases by their value. One item at most doubles a list
 * (triples it on two links), and equal items add less. So both lists hold half of the promised number of
 * items before neither can grow. */
static ddp_status ddp__knapsack_extend(ddp__knapsack_search *s, int back, ddp__knapsack_slice *x,
                                       int64_t *rest, ddp_error *err)
{
    ddp__knapsack_entry *swap;
    ddp_status status;
    int64_t left;
    const int end = x->first + x->count;

    for (;; x->count /= 2) {
        left = *rest - x->count * s->k->cls[x->cls].value;
        if (back) x->first = end - x->count;
        status = ddp__knapsack_choose(s, back, x, left, err);
        if (status == DDP_OK) break;
        if (status != DDP_UNSUPPORTED || x->count == 1) return status;
    }
    *rest = left;
    swap = s->list[back];
    s->list[back] = s->spare;
    s->spare = swap;
    return ddp__knapsack_remember(s, s->list[back], x->first, err);
}

/* Finds the best pair of a front and a back. Without one, *best_value is unchanged. tree [ranks + 1]: the
 * entry with the largest value of each Fenwick range, 1-based, 0 = none. */
static void ddp__knapsack_match(const ddp__knapsack_search *s, int *tree, const int64_t *second, int ranks,
                                int64_t *best_value, int *best)
{
    const ddp__knapsack_entry *front = s->list[0], *back = s->list[1];
    const size_t backs = stbds_arrlenu(back);
    size_t i, entered = 0;
    int r, low, high;
    for (i = stbds_arrlenu(front); i-- > 0;) { /* descending t[0]: more and more backs fit after the front */
        const ddp__knapsack_entry *f = &front[i];
        while (entered < backs && back[entered].t[0] + f->t[0] <= s->k->deadline[0]) {
            for (r = back[entered].rank + 1; r <= ranks; r += r & -r)
                if (!tree[r] || back[tree[r] - 1].value < back[entered].value) tree[r] = (int)entered + 1;
            entered++;
        }
        for (low = 0, high = ranks; low < high;) { /* backs with second[0..low) fit on link 1 */
            int mid = (low + high) / 2;
            if (s->k->links < 2 || second[mid] + f->t[1] <= s->k->deadline[1])
                low = mid + 1;
            else
                high = mid;
        }
        for (r = low; r > 0; r -= r & -r)
            if (tree[r] && f->value + back[tree[r] - 1].value > *best_value) {
                *best_value = f->value + back[tree[r] - 1].value;
                best[0] = f->node;
                best[1] = back[tree[r] - 1].node;
            }
    }
}

static void ddp__knapsack_replay(const ddp__knapsack_search *s, int node)
{
    for (; node >= 0; node = s->node[node].parent) {
        const ddp__knapsack_node *d = &s->node[node];
        const int *item = s->k->order + d->first;
        for (int i = 0; i < d->count[0] + d->count[1]; i++) s->k->assign[item[i]] = i >= d->count[0];
    }
}

static ddp_status ddp__knapsack_meet(ddp__knapsack_search *s, ddp_error *err)
{
    ddp__knapsack_entry *back = s->list[1];
    const size_t backs = stbds_arrlenu(back);
    ddp__scratch room = {NULL, 0};
    int64_t *second = (int64_t *)ddp__scratch_take(&room, backs, sizeof *second), value = s->known;
    int *tree = ddp__ints(&room, backs + 2), best[2] = {-1, -1}, ranks = 0;

    DDP__TRY(ddp__scratch_check(&room, s->k->items, "items", err));
    for (size_t n = 0; n < backs; n++) { /* sorted by t[1] */
        if (n == 0 || second[ranks - 1] != back[n].t[1]) second[ranks++] = back[n].t[1];
        back[n].rank = ranks - 1;
    }
    qsort(back, backs, sizeof *back, ddp__knapsack_by_first);
    qsort(s->list[0], stbds_arrlenu(s->list[0]), sizeof *s->list[0], ddp__knapsack_by_first);
    ddp__knapsack_match(s, tree, second, ranks, &value, best);
    if (value > s->known) {
        for (int i = 0; i < s->k->items; i++) s->k->assign[i] = -1;
        ddp__knapsack_replay(s, best[0]);
        ddp__knapsack_replay(s, best[1]);
    }
    ddp__scratch_free(&room);
    return DDP_OK;
}

static ddp_status ddp__knapsack_lists(ddp__knapsack_search *s, ddp_error *err)
{
    const ddp__knapsack_class *cls = s->k->cls;
    const ddp__knapsack_entry none = {{0, 0}, 0, -1, 0};
    ddp__knapsack_slice x;
    int64_t rest[2];
    int at[2], b, begin = 0, end; /* classes. begin to end are the positions that are not in a list */

    for (b = 0; b < 2; b++) {
        if (!ddp__reserve(s->list[b], 1)) return ddp__knapsack_no_memory(s, err);
        stbds_arrput(s->list[b], none);
        rest[b] = s->k->total;
    }
    s->list[0][0].t[0] = s->k->start[0];
    s->list[0][0].t[1] = s->k->start[1];
    at[0] = 0;
    at[1] = s->k->classes - 1;
    end = s->k->classes ? cls[at[1]].first + cls[at[1]].count : 0;
    while (begin < end) {
        b = stbds_arrlenu(s->list[1]) < stbds_arrlenu(s->list[0]);
        while (cls[at[0]].first + cls[at[0]].count <= begin) at[0]++;
        while (cls[at[1]].first >= end) at[1]--;
        x.cls = at[b];
        x.first = cls[x.cls].first > begin ? cls[x.cls].first : begin;
        x.count = cls[x.cls].first + cls[x.cls].count;
        x.count = (x.count < end ? x.count : end) - x.first;
        DDP__TRY(ddp__knapsack_extend(s, b, &x, &rest[b], err));
        if (stbds_arrlenu(s->list[b]) == 0) break; /* nothing can exceed `known` */
        if (b)
            end -= x.count;
        else
            begin += x.count;
    }
    return DDP_OK;
}

ddp_status ddp__knapsack_exact(ddp__knapsack *k, int64_t known, size_t most, ddp_error *err)
{
    ddp__knapsack_search s = DDP__ZEROS;
    ddp_status status;
    s.k = k;
    s.known = known;
    s.most = most;
    if (k->items >= DDP__KNAPSACK_ITEMS) return ddp__knapsack_too_many(&s, err);
    status = ddp__knapsack_lists(&s, err);
    if (status == DDP_OK && stbds_arrlenu(s.list[0]) && stbds_arrlenu(s.list[1]))
        status = ddp__knapsack_meet(&s, err);
    ddp__array_free(s.list[0]);
    ddp__array_free(s.list[1]);
    ddp__array_free(s.spare);
    ddp__array_free(s.node);
    return status;
}
