/* The memory plan: lifetimes of all arrays of a state, then offsets in one arena. */
#include "base/platform.h"
#include "base/memory.h"
#include "graph/graph_internal.h"

/* Ids of the arrays of node i. */
#define DDP__OUT(i)      (3 * (i))
#define DDP__SAVED(i)    (3 * (i) + 1)
#define DDP__GRADIENT(i) (3 * (i) + 2)

/* Free space inside the arena, sorted by offset, neighbours merged. */
typedef struct ddp__hole {
    size_t offset, bytes;
} ddp__hole;

/* Everything known about the lives of arrays while the plan is made; [nodes] unless noted. */
typedef struct ddp__lives {
    const ddp_graph *g;
    int  n;
    int *uses;    /* consumers of a node's output; the other int arrays share its allocation */
    int *root;    /* node whose output memory this output lies in */
    int *end;     /* last time the output memory of a root is needed */
    int *over;    /* 1: the gradient lies over the output */
    int *dying;   /* [2n] first array that dies at a time, -1 if none */
    int *sibling; /* [3n] next array that dies at the same time */
    size_t    *bytes; /* [3n] */
    ddp__hole *hole;
    int        holes;
    size_t     top, live, live_most;
} ddp__lives;

static size_t ddp__round64(size_t bytes) { return (bytes + 63) / 64 * 64; }

static int ddp__max_int(int a, int b) { return a > b ? a : b; }

/* The value of a scalar stays readable after backward, a user's input until he refills it. */
static int ddp__stays(const ddp_node *d)
{
    return !d->op || ddp_shape_count(&d->spec.out) == 1;
}

/* 1 if no backward of node d reads d's own output. */
static int ddp__forgets_out(const ddp_node *d)
{
    return !d->has_gradient || d->spec.in_place_ok || d->spec.out_unread;
}

/* When each output is read last. Until the end of forward in any case: ddp_output promises it. */
static void ddp__lives_ends(ddp__lives *v)
{
    int i, k;

    for (i = 0; i < v->n; i++) {
        const ddp_node *d = v->g->node[i];

        v->root[i] = i;
        v->end[i] = ddp__forgets_out(d) ? v->n - 1 : 2 * v->n - 1 - i;
        for (k = 0; k < d->spec.inputs; k++) {
            int p = d->input[k];

            v->uses[p]++;
            if (d->has_gradient && !d->spec.in_place_ok)
                v->end[p] = ddp__max_int(v->end[p], 2 * v->n - 1 - i);
        }
    }
}

/* Outputs written over their input, and gradients written over the array they belong to. */
static void ddp__lives_share(ddp__lives *v)
{
    int i;

    for (i = 0; i < v->n; i++) {
        const ddp_node *d = v->g->node[i], *p;

        if (!d->op || d->spec.inputs < 1) continue;
        p = v->g->node[d->input[0]];
        if (ddp__stays(p) || v->uses[p->index] != 1 || !ddp__forgets_out(p)) continue;
        if (d->spec.in_place_ok && ddp_shape_count(&d->spec.out) == ddp_shape_count(&p->spec.out)) {
            v->root[i] = v->root[p->index];
            v->end[v->root[i]] = ddp__max_int(v->end[v->root[i]], v->end[i]);
        } else if (d->spec.grad_over_input && d->has_gradient && p->has_gradient) {
            v->over[p->index] = 1;
            v->end[v->root[p->index]] = ddp__max_int(v->end[v->root[p->index]],
                                                     2 * v->n - 1 - p->index);
        }
    }
}

/* The smallest hole that fits, else the top of the arena. */
static size_t ddp__arena_take(ddp__lives *v, size_t bytes)
{
    ddp__hole *last = v->holes ? &v->hole[v->holes - 1] : NULL;
    int h, best = -1;
    size_t at;

    v->live += bytes;
    if (v->live > v->live_most) v->live_most = v->live;
    for (h = 0; h < v->holes; h++)
        if (v->hole[h].bytes >= bytes && (best < 0 || v->hole[h].bytes < v->hole[best].bytes))
            best = h;
    if (best < 0 && last && last->offset + last->bytes == v->top) { /* grow the hole at the top */
        v->top = last->offset + bytes;
        last->bytes = bytes;
        best = v->holes - 1;
    }
    if (best < 0) {
        at = v->top;
        v->top += bytes;
        return at;
    }
    at = v->hole[best].offset;
    v->hole[best].offset += bytes;
    v->hole[best].bytes -= bytes;
    if (v->hole[best].bytes == 0) {
        v->holes--;
        memmove(&v->hole[best], &v->hole[best + 1], (size_t)(v->holes - best) * sizeof *v->hole);
    }
    return at;
}

static void ddp__arena_return(ddp__lives *v, size_t offset, size_t bytes)
{
    int lo = 0, hi = v->holes;

    v->live -= bytes;
    while (lo < hi) { /* the first hole behind offset */
        int mid = (lo + hi) / 2;

        if (v->hole[mid].offset < offset) lo = mid + 1;
        else hi = mid;
    }
    if (lo > 0 && v->hole[lo - 1].offset + v->hole[lo - 1].bytes == offset) {
        v->hole[lo - 1].bytes += bytes;
        if (lo < v->holes && offset + bytes == v->hole[lo].offset) {
            v->hole[lo - 1].bytes += v->hole[lo].bytes;
            v->holes--;
            memmove(&v->hole[lo], &v->hole[lo + 1], (size_t)(v->holes - lo) * sizeof *v->hole);
        }
    } else if (lo < v->holes && offset + bytes == v->hole[lo].offset) {
        v->hole[lo].offset = offset;
        v->hole[lo].bytes += bytes;
    } else {
        memmove(&v->hole[lo + 1], &v->hole[lo], (size_t)(v->holes - lo) * sizeof *v->hole);
        v->hole[lo].offset = offset;
        v->hole[lo].bytes = bytes;
        v->holes++;
    }
}

/* Places an array now and notes when it dies; until < 0: never. */
static size_t ddp__array_born(ddp__lives *v, int id, size_t bytes, int until)
{
    v->bytes[id] = ddp__round64(bytes);
    if (until >= 0) {
        v->sibling[id] = v->dying[until];
        v->dying[until] = id;
    }
    return ddp__arena_take(v, v->bytes[id]);
}

/* Operator i runs forward: its output and what it saves appear. */
static void ddp__born_forward(ddp__lives *v, int i, ddp__layout *l)
{
    const ddp_node *d = v->g->node[i];

    if (v->root[i] != i)
        l->out[i] = l->out[v->root[i]];
    else
        l->out[i] = ddp__array_born(v, DDP__OUT(i), 4 * (size_t)ddp_shape_count(&d->spec.out),
                                    ddp__stays(d) ? -1 : v->end[i]);
    if (d->spec.saved)
        l->saved[i] = ddp__array_born(v, DDP__SAVED(i), 4 * d->spec.saved,
                                      d->has_gradient ? 2 * v->n - 1 - i : i);
}

/* Operator i runs backward: gradients it is the first to write appear. A scalar without users
 * is a loss, whose gradient appears just before. */
static void ddp__born_backward(ddp__lives *v, int i, ddp__layout *l)
{
    const ddp_node *d = v->g->node[i];
    int k;

    if (!d->has_gradient) return;
    if (l->gradient[i] == DDP__NOWHERE && ddp_shape_count(&d->spec.out) == 1)
        l->gradient[i] = ddp__array_born(v, DDP__GRADIENT(i), 4, 2 * v->n - 1 - i);
    for (k = 0; k < d->spec.inputs; k++) {
        const ddp_node *p = v->g->node[d->input[k]];

        if (!p->has_gradient || l->gradient[p->index] != DDP__NOWHERE) continue;
        l->gradient[p->index] = v->over[p->index] ? l->out[p->index]
            : ddp__array_born(v, DDP__GRADIENT(p->index), 4 * (size_t)ddp_shape_count(&p->spec.out),
                              2 * v->n - 1 - p->index);
    }
}

/* Walks through one forward and one backward pass. */
static void ddp__layout_walk(ddp__lives *v, ddp__layout *l)
{
    int t, id, i;

    for (i = 0; i < v->n; i++) /* inputs exist before the pass begins */
        if (!v->g->node[i]->op) ddp__born_forward(v, i, l);
    for (t = 0; t < 2 * v->n; t++) {
        i = t < v->n ? t : 2 * v->n - 1 - t;
        if (t >= v->n) ddp__born_backward(v, i, l);
        else if (v->g->node[i]->op) ddp__born_forward(v, i, l);
        for (id = v->dying[t]; id >= 0; id = v->sibling[id]) {
            size_t at = id % 3 == 0 ? l->out[id / 3]
                      : id % 3 == 1 ? l->saved[id / 3] : l->gradient[id / 3];

            ddp__arena_return(v, at, v->bytes[id]);
        }
    }
    l->bytes = v->top;
    l->live_bytes = v->live_most;
}

/* Every array on its own, with a gradient for every float output and input. */
static void ddp__layout_plain(const ddp_graph *g, ddp__layout *l)
{
    size_t top = 0;
    int i;

    for (i = 0; i < g->nodes; i++) {
        const ddp_node *d = g->node[i];
        size_t bytes = ddp__round64(4 * (size_t)ddp_shape_count(&d->spec.out));

        l->out[i] = top;
        top += bytes;
        if (d->spec.saved) {
            l->saved[i] = top;
            top += ddp__round64(4 * d->spec.saved);
        }
        if (d->type != DDP_F32) continue;
        l->gradient[i] = top;
        top += bytes;
    }
    l->bytes = l->live_bytes = top;
}

static int ddp__lives_alloc(ddp__lives *v, const ddp_graph *g)
{
    size_t n = (size_t)g->nodes, t;
    int *ints = (int *)ddp__calloc(9 * n, sizeof *ints);

    v->g = g;
    v->n = g->nodes;
    v->bytes = (size_t *)ddp__calloc(3 * n, sizeof *v->bytes);
    v->hole = (ddp__hole *)ddp__calloc(3 * n + 1, sizeof *v->hole);
    v->uses = ints;
    if (!ints || !v->bytes || !v->hole) return 0;
    v->root = ints + n;
    v->end = ints + 2 * n;
    v->over = ints + 3 * n;
    v->dying = ints + 4 * n;
    v->sibling = ints + 6 * n;
    for (t = 0; t < 2 * n; t++) v->dying[t] = -1;
    return 1;
}

ddp_status ddp__layout_plan(const ddp_graph *g, int share, ddp__layout *out, ddp_error *err)
{
    size_t n = (size_t)g->nodes, i;
    ddp__lives v;
    int ok;

    memset(out, 0, sizeof *out);
    memset(&v, 0, sizeof v);
    out->out = (size_t *)ddp__calloc(3 * n, sizeof *out->out);
    ok = out->out && (!share || ddp__lives_alloc(&v, g));
    if (ok) {
        out->saved = out->out + n;
        out->gradient = out->out + 2 * n;
        for (i = 0; i < 3 * n; i++) out->out[i] = DDP__NOWHERE;
        if (share) {
            ddp__lives_ends(&v);
            ddp__lives_share(&v);
            ddp__layout_walk(&v, out);
        } else {
            ddp__layout_plain(g, out);
        }
    } else {
        ddp__layout_free(out);
    }
    DDP_FREE(v.uses);
    DDP_FREE(v.bytes);
    DDP_FREE(v.hole);
    return ok ? DDP_OK : ddp__fail(err, DDP_MEMORY, "out of memory for the memory plan of %d nodes",
                                   g->nodes);
}

void ddp__layout_free(ddp__layout *l)
{
    DDP_FREE(l->out);
    memset(l, 0, sizeof *l);
}

size_t ddp_activation_bytes(const ddp_graph *g)
{
    ddp__layout l;
    size_t bytes;

    if (!g) return 0;
    if (g->built) return g->reuse.bytes;
    if (ddp__layout_plan(g, 1, &l, NULL) != DDP_OK) return 0;
    bytes = l.bytes;
    ddp__layout_free(&l);
    return bytes;
}
