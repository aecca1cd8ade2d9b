#include "base/core.h"
#include "plan/fence_core.h"

/* The operator list as a tape: prefix sums, and what is live at each cut. */

void ddp__fence_tape_close(ddp__fence_tape *t)
{
    ddp__workload_graph_close(&t->graph);
    DDP_FREE(t->home);
    DDP_FREE(t->flops);
    DDP_FREE(t->memory);
    DDP_FREE(t->from);
    DDP_FREE(t->live);
    DDP_FREE(t->oldest);
    memset(t, 0, sizeof *t);
}

/* Live results at each cut, counted (t->live NULL) or written; `active` [n] and `next` [n] are scratch. A result
 * becomes live behind its home and ends with its last user. */
static size_t ddp__fence_tape_live(ddp__fence_tape *t, const int *born, const int *born_from, int *active, int *next)
{
    const ddp__workload_graph *g = &t->graph;
    ddp__fence_live *live, swap;
    size_t total = 0;
    int a, i, j, u, count = 0, kept;

    for (a = 1; a < t->n; a++) {
        for (i = born_from[a - 1]; i < born_from[a]; i++) {
            u = born[i];
            next[u] = g->from[u];
            active[count++] = u;
        }
        for (i = kept = 0; i < count; i++) {
            u = active[i];
            while (next[u] < g->from[u + 1] && g->users[next[u]] < a) next[u]++;
            if (next[u] < g->from[u + 1]) active[kept++] = u;
        }
        count = kept;
        if (count > t->width) t->width = count;
        if (t->live) {
            live = t->live + t->from[a];
            for (i = 0; i < count; i++) {
                live[i].op = active[i];
                live[i].next = g->users[next[active[i]]];
                for (j = i; j > 0 && (live[j - 1].next > live[j].next ||
                                      (live[j - 1].next == live[j].next && live[j - 1].op > live[j].op));
                     j--) {
                    swap = live[j];
                    live[j] = live[j - 1];
                    live[j - 1] = swap;
                }
            }
        }
        total += (size_t)count;
        if (total > INT_MAX / 2) break;
        t->from[a + 1] = (int)total;
    }
    return total;
}

static ddp_status ddp__fence_tape_fill(ddp__fence_tape *t, int *scratch, ddp_error *err)
{
    const ddp__workload_graph *g = &t->graph;
    const ddp_oplist *list = g->list;
    int *born = scratch, *born_from = scratch + t->n, *active = scratch + 2 * t->n + 2;
    int *next = scratch + 3 * t->n + 2;
    size_t total;

    for (int i = 0; i < t->n; i++) {
        const ddp_oplist_entry *e = &list->op[i];
        int data = e->arg_count == 0 && !(e->param_bytes > 0) && !(e->flops > 0);
        t->home[i] = data && g->from[i] < g->from[i + 1] ? g->users[g->from[i]] : i;
        t->flops[i + 1] += g->compute * e->flops;
        t->memory[t->home[i] + 1] += g->state_factor * e->param_bytes + g->kept * e->output_bytes;
        born_from[t->home[i] + 1]++;
    }
    for (int i = 0; i < t->n; i++) {
        t->flops[i + 1] += t->flops[i];
        t->memory[i + 1] += t->memory[i];
        born_from[i + 1] += born_from[i];
        next[i] = born_from[i];
    }
    for (int i = 0; i < t->n; i++) born[next[t->home[i]]++] = i;
    total = ddp__fence_tape_live(t, born, born_from, active, next);
    if (total > INT_MAX / 2)
        return ddp__fail(err, DDP_UNSUPPORTED, "too many results live across the cuts of %d operators; merge operators",
                         t->n);
    t->live = (ddp__fence_live *)ddp__calloc(total, sizeof *t->live);
    if (!t->live) return ddp__fail(err, DDP_MEMORY, "no memory to cut %d operators", t->n);
    ddp__fence_tape_live(t, born, born_from, active, next);
    t->from[t->n + 1] = t->from[t->n];
    for (int a = 0; a <= t->n; a++) {
        t->oldest[a] = t->n;
        for (int i = t->from[a]; i < t->from[a + 1]; i++)
            if (t->home[t->live[i].op] < t->oldest[a]) t->oldest[a] = t->home[t->live[i].op];
    }
    return DDP_OK;
}

ddp_status ddp__fence_tape_open(const ddp_oplist *list, const ddp_network *net, const ddp_workload_options *o,
                                ddp__fence_tape *t, ddp_error *err)
{
    ddp_status status;
    size_t n;
    int *scratch;

    memset(t, 0, sizeof *t);
    DDP__TRY(ddp__workload_graph_open(list, net, o, &t->graph, err));
    t->n = list->count;
    t->width = 1;
    n = (size_t)t->n;
    t->home = (int *)ddp__calloc(n, sizeof(int));
    t->flops = (double *)ddp__calloc(n + 1, sizeof(double));
    t->memory = (double *)ddp__calloc(n + 1, sizeof(double));
    t->from = (int *)ddp__calloc(n + 2, sizeof(int));
    t->oldest = (int *)ddp__calloc(n + 1, sizeof(int));
    scratch = (int *)ddp__calloc(4 * n + 2, sizeof(int));
    if (t->home && t->flops && t->memory && t->from && t->oldest && scratch)
        status = ddp__fence_tape_fill(t, scratch, err);
    else status = ddp__fail(err, DDP_MEMORY, "no memory to cut %d operators", t->n);
    DDP_FREE(scratch);
    if (status != DDP_OK) ddp__fence_tape_close(t);
    return status;
}

static int ddp__fence_by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

ddp_status ddp__fence_typical_bytes(const ddp__fence_tape *t, double *out, ddp_error *err)
{
    double *bytes = (double *)ddp__calloc((size_t)t->n, sizeof *bytes);

    if (!bytes) return ddp__fail(err, DDP_MEMORY, "no memory to cut %d operators", t->n);
    for (int a = 1; a < t->n; a++)
        for (int i = t->from[a]; i < t->from[a + 1]; i++) bytes[a - 1] += t->graph.list->op[t->live[i].op].output_bytes;
    qsort(bytes, (size_t)(t->n - 1), sizeof *bytes, ddp__fence_by_size);
    *out = t->n > 1 ? bytes[(t->n - 1) / 2] : 0;
    DDP_FREE(bytes);
    return DDP_OK;
}
