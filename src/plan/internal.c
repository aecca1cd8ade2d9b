/* Names of options, arrays of a search, orders and a link's clock: what the planners share. */
#include "plan/internal.h"

const char *ddp__name_of(const char *const *names, int value)
{
    for (int i = 0; names[i]; i++)
        if (i == value) return names[i];
    return "unknown";
}

ddp_status ddp__named(const char *const *names, int first, const char *what, const char *name, void *out,
                      ddp_error *err)
{
    ddp__text list = DDP__ZEROS;
    if (!out) return ddp__fail(err, DDP_ARG, "the %s of a name: out is NULL", what);
    for (int i = first; names[i]; i++)
        if (name && !strcmp(names[i], name)) {
            DDP_STATIC_ASSERT(sizeof(ddp_cost) == sizeof i, "an enum is an int");
            memcpy(out, &i, sizeof i);
            return DDP_OK;
        }
    for (int i = first; names[i]; i++)
        ddp__text_addf(&list, "%s%s", i == first ? "" : names[i + 1] ? ", " : " or ", names[i]);
    ddp__fail(err, DDP_ARG, "%s '%.60s' is unknown; use %s", what, name ? name : "",
              list.data ? list.data : "another");
    ddp__text_free(&list);
    return DDP_ARG;
}

ddp_status ddp__check_sum(double sum, double most, ddp_error *err)
{
    return ddp__finite(sum) && sum <= most
               ? DDP_OK
               : ddp__fail(err, DDP_NUMERIC,
                           "the times of the profile add up to more than a double "
                           "holds; times are in seconds");
}

ddp_status ddp__check_partition(const ddp_profile *p, double alpha_s, double partition_s,
                                double partition_params, int cut, ddp_error *err)
{
    int sends = 0, sized = 0;
    DDP__TRY(ddp__check_finite(alpha_s, 0, err, "alpha_s is %g", alpha_s));
    DDP__TRY(ddp__check_finite(partition_s, 0, err, "partition_s is %g", partition_s));
    DDP__TRY(ddp__check_finite(partition_params, 0, err, "partition_params is %g", partition_params));
    for (int i = 0; i < p->layers; i++) {
        if (!(p->comm_s[i] > 0)) continue;
        if (p->comm_s[i] < alpha_s)
            return ddp__fail(err, DDP_ARG,
                             "bucket %d (%s): comm_s is %g s, shorter than the startup alpha_s of %g s "
                             "that it contains; lower alpha_s",
                             i, p->name && p->name[i] ? p->name[i] : "unnamed", p->comm_s[i], alpha_s);
        sends = 1;
        if (p->params && p->params[i] > 0) sized = 1;
    }
    if (partition_s > 0 && partition_params > 0)
        return ddp__fail(err, DDP_ARG, "a partition of %g parameters and of %g s was given; give one of them",
                         partition_params, partition_s);
    if (cut && partition_s > 0 && !(partition_s > alpha_s + ddp__startup(p)))
        return ddp__fail(err, DDP_ARG, "a partition of %g s is not longer than the startup of %g s; raise it",
                         partition_s, alpha_s + ddp__startup(p));
    if (cut && partition_params > 0 && sends && !sized)
        return ddp__fail(err, DDP_ARG,
                         "no bucket that sends has params, so none can be cut by %g parameters; give the "
                         "partition in seconds (partition_s)",
                         partition_params);
    return DDP_OK;
}

double ddp__occupies(const ddp_profile *p, int l) { return p->comm_s[l] > 0 ? p->comm_s[l] + p->gap_s : 0; }

double ddp__startup(const ddp_profile *p) { return p->alpha_s + p->gap_s; }

ddp_status ddp__scratch_check(ddp__scratch *s, int n, const char *what, ddp_error *err)
{
    if (!s->failed) return DDP_OK;
    ddp__scratch_free(s);
    return ddp__fail(err, DDP_MEMORY, "no memory to plan %d %s", n, what);
}

void *ddp__copy(const void *from, size_t count, size_t size)
{
    void *to = ddp__calloc(count, size);
    return to && count ? memcpy(to, from, count * size) : to;
}

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
                if (turn && kind && j - i < 3) continue; /* the same as a reversal */
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

static int ddp__due_before(const ddp__due *a, const ddp__due *b)
{
    return a->key < b->key || (a->key == b->key && a->i < b->i);
}

void ddp__due_add(ddp__due *heap, int n, double key, int64_t i)
{
    const ddp__due e = {key, i};
    for (; n > 0 && ddp__due_before(&e, &heap[(n - 1) / 2]); n = (n - 1) / 2) heap[n] = heap[(n - 1) / 2];
    heap[n] = e;
}

ddp__due ddp__due_take(ddp__due *heap, int n)
{
    const ddp__due first = heap[0], last = heap[--n];
    int i = 0, next;
    for (; (next = 2 * i + 1) < n; i = next) {
        if (next + 1 < n && ddp__due_before(&heap[next + 1], &heap[next])) next++;
        if (!ddp__due_before(&heap[next], &last)) break;
        heap[i] = heap[next];
    }
    heap[i] = last;
    return first;
}

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
