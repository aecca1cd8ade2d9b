/* Plans the memory of a state: lifetimes of all arrays, then their offsets in the arenas. */
#include "graph/graph_internal.h"

/* Events in the life of a node. Times count events in execution order: all nodes forward, then all nodes
 * backward, finally separate weight gradients. The recomputed nodes of a segment come before the backward of
 * the last node of the segment. */
enum { DDP__FORWARD, DDP__FORWARD_AGAIN, DDP__BACKWARD, DDP__WEIGHTS, DDP__EVENTS };

/* Free space of an arena, sorted by offset, neighbours merged. */
typedef struct ddp__hole {
    size_t offset, bytes;
} ddp__hole;

/* An arena during planning. The last hole is unbounded: memory above `top` was never used. */
typedef struct ddp__space {
    ddp__hole *hole; /* [DDP__ARRAYS n + 2] */
    int holes;
    size_t top, live, live_most;
} ddp__space;

/* Working data of the planner. Arrays are [nodes] unless noted. Array kind k of node i has the id k x nodes +
 * i, and event e the number e x nodes + i. */
typedef struct ddp__lives {
    const ddp_graph *g;
    const unsigned char *fate;
    int n, times;
    int now;         /* current time */
    int *uses;       /* number of consumers of the output of a node. The other int arrays share this
                        allocation */
    int *root[2];    /* node whose output memory this output shares. [1] is for the recomputed forward */
    int *end[2];     /* last time at which the output memory of a root is needed */
    int *over;       /* 1 if the gradient overwrites the output */
    int *event;      /* [DDP__EVENTS n] number of the event at a time */
    int *when;       /* [DDP__EVENTS n] time of an event, -1 if it does not happen */
    int *dying;      /* [DDP__EVENTS n] first array freed at a time, -1 without such an array */
    int *sibling;    /* [DDP__ARRAYS n] next array freed at the same time */
    size_t *bytes;   /* [DDP__ARRAYS n] */
    ddp__hole *hole; /* holes of all spaces */
    ddp__space space[DDP__ARENAS];
} ddp__lives;

size_t ddp__output_bytes(const ddp_node *n)
{
    const size_t count = (size_t)ddp_shape_count(&n->spec.out);

    if (n->spec.out.dims == 0 || n->type == DDP_I32) return count * sizeof(float);
    return count * n->graph->element;
}

static size_t ddp__round64(size_t bytes) { return (bytes + 63) / 64 * 64; }
static int ddp__max_int(int a, int b) { return a > b ? a : b; }
size_t ddp__part_stride(const ddp_node *n) { return ddp__round64(ddp__output_bytes(n)); }

/* 1 if the output stays readable after backward: scalars, and inputs until the user refills them. */
static int ddp__stays(const ddp_node *d) { return !d->op || ddp_shape_count(&d->spec.out) == 1; }

/* 1 if no backward of node d reads d's output. */
static int ddp__forgets_out(const ddp_node *d)
{
    return !d->has_gradient || d->spec.in_place_ok || d->spec.out_unread;
}

/* ---- arrays that a recomputation segment drops (Chen et al. 2016, Training Deep Nets with Sublinear
 * Memory Cost, arXiv:1604.06174) ---- */

/* Marks outputs that only their own segment uses as dropped. An output without users is a result and is
 * kept. */
static void ddp__fates_drop(const ddp_graph *g, unsigned char *fate)
{
    enum { OUTSIDE = DDP__AGAIN + 1 };

    memset(fate, DDP__KEPT, (size_t)ddp__count(g->node));
    for (int i = 0; i < ddp__count(g->node); i++)
        for (int k = 0; k < g->node[i]->spec.inputs; k++) {
            const ddp_node *p = g->node[g->node[i]->input[k]];
            if (p->segment < 0 || ddp__stays(p)) continue;
            if (p->segment != g->node[i]->segment || p->stage != g->node[i]->stage)
                fate[p->index] = OUTSIDE;
            else if (fate[p->index] != OUTSIDE)
                fate[p->index] = DDP__DROPPED;
        }
    for (int i = 0; i < ddp__count(g->node); i++)
        if (fate[i] == OUTSIDE) fate[i] = DDP__KEPT;
}

/* Runs from the last operator to the first, so that all readers of an output are known before it. An
 * operator whose dropped result has no reader (such as the last product of a block) is not recomputed. */
static void ddp__recompute_fates(const ddp_graph *g, unsigned char *fate)
{
    ddp__fates_drop(g, fate);
    for (int i = ddp__count(g->node) - 1; i >= 0; i--) {
        const ddp_node *d = g->node[i];
        if (d->segment < 0) continue;
        if (fate[i] == DDP__DROPPED && d->has_gradient && (d->spec.saved || !ddp__forgets_out(d)))
            fate[i] = DDP__AGAIN;
        if (fate[i] != DDP__AGAIN && (!d->has_gradient || d->spec.in_place_ok)) continue;
        for (int k = 0; k < d->spec.inputs; k++) /* read by this recomputation, or by backward */
            if (fate[d->input[k]] == DDP__DROPPED) fate[d->input[k]] = DDP__AGAIN;
    }
}

/* ---- lifetimes ---- */

static int ddp__when(const ddp__lives *v, int event, int i) { return v->when[event * v->n + i]; }

static void ddp__lives_event(ddp__lives *v, int event, int i)
{
    v->when[event * v->n + i] = v->times;
    v->event[v->times++] = event * v->n + i;
}

static void ddp__lives_times(ddp__lives *v)
{
    for (int i = 0; i < DDP__EVENTS * v->n; i++) v->when[i] = -1;
    for (int i = 0; i < v->n; i++) ddp__lives_event(v, DDP__FORWARD, i);
    for (int i = v->n - 1; i >= 0; i--) {
        const int s = v->g->node[i]->segment;
        if (s >= 0 && v->g->segment[s].last == i)
            for (int k = v->g->segment[s].first; k <= i; k++)
                if (v->fate[k] == DDP__AGAIN) ddp__lives_event(v, DDP__FORWARD_AGAIN, k);
        ddp__lives_event(v, DDP__BACKWARD, i);
    }
    for (int i = v->n - 1; i >= 0 && v->g->halves; i--) ddp__lives_event(v, DDP__WEIGHTS, i);
}

/* The time at which backward reads node i for the last time. A recomputed segment computes its weight
 * gradients with its input gradients. Otherwise, its activations would have to be kept. */
static int ddp__backward_ends(const ddp__lives *v, int i)
{
    const ddp_node *d = v->g->node[i];

    return ddp__when(v, v->g->halves && d->spec.params && d->segment < 0 ? DDP__WEIGHTS : DDP__BACKWARD, i);
}

/* 1 if the output must also exist outside the passes. */
static int ddp__outlives(const ddp_node *d)
{
    return d->from >= 0 || d->to >= 0 || (ddp__stays(d) && (d->op || !d->graph->stages));
}

/* Extends the lifetime of node i's output to a time of the backward pass. */
static void ddp__lives_extend(ddp__lives *v, int i, int time)
{
    int *end = v->end[v->fate[i] == DDP__AGAIN];

    end[i] = ddp__max_int(end[i], time);
}

/* Computes the last read of each output. Kept outputs live at least until forward ends, as ddp_output
 * promises. */
static void ddp__lives_ends(ddp__lives *v)
{
    for (int i = 0; i < v->n; i++) {
        const ddp_node *d = v->g->node[i];
        v->root[0][i] = v->root[1][i] = i;
        v->end[0][i] = v->fate[i] == DDP__KEPT ? v->n - 1 : i;
        v->end[1][i] = ddp__when(v, DDP__FORWARD_AGAIN, i);
        if (!ddp__forgets_out(d)) ddp__lives_extend(v, i, ddp__backward_ends(v, i));
        for (int k = 0; k < d->spec.inputs; k++) {
            int p = d->input[k];
            v->uses[p]++;
            if (d->here != (int)DDP__HERE_OWN) continue;
            v->end[0][p] = ddp__max_int(v->end[0][p], i);
            if (v->fate[i] == DDP__AGAIN) ddp__lives_extend(v, p, ddp__when(v, DDP__FORWARD_AGAIN, i));
            if (d->has_gradient && !d->spec.in_place_ok) ddp__lives_extend(v, p, ddp__backward_ends(v, i));
        }
    }
}

/* Makes node i write its output over the output of p, in both the first and the recomputed forward if
 * both nodes have it. */
static void ddp__lives_join(ddp__lives *v, int i, int p)
{
    for (int life = 0; life <= (v->fate[i] == DDP__AGAIN); life++) {
        int *end = &v->end[life][v->root[life][p]];
        v->root[life][i] = v->root[life][p];
        *end = ddp__max_int(*end, v->end[life][i]);
    }
}

/* Decides which outputs overwrite their input, and which gradients overwrite their array. A recomputed
 * forward must find its original inputs, so inputs of a segment are not overwritten. Neither are images
 * that become rows, if the device stores them in another order. */
static void ddp__lives_share(ddp__lives *v)
{
    const ddp_backend *b = ddp__graph_backend(v->g);

    for (int i = 0; i < v->n; i++) {
        const ddp_node *d = v->g->node[i], *p;
        if (!d->op || d->spec.inputs < 1 || d->here != (int)DDP__HERE_OWN) continue;
        p = v->g->node[d->input[0]];
        if (ddp__stays(p) || v->uses[p->index] != 1 || !ddp__forgets_out(p)) continue;
        if (d->spec.in_place_ok && ddp_shape_count(&d->spec.out) == ddp_shape_count(&p->spec.out)) {
            if (b && b->channels_last && d->spec.out.dims != 4 && p->spec.out.dims == 4) continue;
            if (d->to >= 0) continue; /* it is still being sent while p's memory is reused */
            if (v->fate[i] != DDP__AGAIN || v->fate[p->index] == DDP__AGAIN) ddp__lives_join(v, i, p->index);
        } else if (d->spec.grad_over_input && d->has_gradient && p->has_gradient &&
                   v->fate[p->index] != DDP__DROPPED && !(v->g->halves && d->spec.params)) {
            const int life = v->fate[p->index] == DDP__AGAIN;
            int *end = &v->end[life][v->root[life][p->index]];
            v->over[p->index] = 1;
            *end = ddp__max_int(*end, ddp__backward_ends(v, p->index));
        }
    }
}

/* Takes the smallest hole below the top that fits, else the last one. */
static size_t ddp__space_take(ddp__space *v, size_t bytes)
{
    size_t at, least = (size_t)-1;
    int best = v->holes - 1;

    v->live += bytes;
    if (v->live > v->live_most) v->live_most = v->live;
    for (int h = 0; h < v->holes; h++) {
        const size_t room = h + 1 < v->holes ? v->hole[h].bytes : v->top - v->hole[h].offset;
        if (room < bytes || room >= least) continue;
        best = h;
        least = room;
    }
    at = v->hole[best].offset;
    if (at + bytes > v->top) v->top = at + bytes;
    v->hole[best].offset += bytes;
    v->hole[best].bytes -= bytes;
    if (v->hole[best].bytes) return at;
    v->holes--;
    memmove(&v->hole[best], &v->hole[best + 1], (size_t)(v->holes - best) * sizeof *v->hole);
    return at;
}

/* Merges hole h with the next one if they are adjacent. */
static void ddp__holes_join(ddp__space *v, int h)
{
    if (h < 0 || v->hole[h].offset + v->hole[h].bytes != v->hole[h + 1].offset) return;
    v->hole[h].bytes += v->hole[h + 1].bytes;
    v->holes--;
    memmove(&v->hole[h + 1], &v->hole[h + 2], (size_t)(v->holes - h - 1) * sizeof *v->hole);
}

static void ddp__space_return(ddp__space *v, size_t offset, size_t bytes)
{
    int lo = 0, hi = v->holes;

    v->live -= bytes;
    while (lo < hi) { /* the first hole after offset */
        int mid = (lo + hi) / 2;
        if (v->hole[mid].offset < offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    memmove(&v->hole[lo + 1], &v->hole[lo], (size_t)(v->holes - lo) * sizeof *v->hole);
    v->hole[lo].offset = offset;
    v->hole[lo].bytes = bytes;
    v->holes++;
    ddp__holes_join(v, lo);
    ddp__holes_join(v, lo - 1);
}

/* The pass that contains a time. */
static int ddp__pass_of(const ddp__lives *v, int time)
{
    const int event = v->event[time] / v->n;

    return event == DDP__FORWARD_AGAIN ? DDP__BACKWARD : event;
}

/* The arena for an array that lives from now until a time, or for ever if the time is < 0. */
static ddp__arena ddp__arena_of(const ddp__lives *v, int until)
{
    if (!v->g->stages || until < 0) return DDP__ARENA_OWN;
    return ddp__pass_of(v, v->now) == ddp__pass_of(v, until) ? DDP__ARENA_PASS : DDP__ARENA_HELD;
}

/* Places an array now and records when it is freed, or never if until < 0. */
static size_t ddp__array_born(ddp__lives *v, int id, size_t bytes, int until)
{
    const size_t arena = ddp__arena_of(v, until);

    v->bytes[id] = ddp__round64(bytes);
    if (until >= 0) {
        v->sibling[id] = v->dying[until];
        v->dying[until] = id;
    }
    return (arena << DDP__ARENA_SHIFT) + ddp__space_take(&v->space[arena], v->bytes[id]);
}

/* Frees the array at an offset. */
static void ddp__array_dies(ddp__lives *v, size_t offset, size_t bytes)
{
    const size_t arena = offset >> DDP__ARENA_SHIFT;

    ddp__space_return(&v->space[arena], offset - (arena << DDP__ARENA_SHIFT), bytes);
}

/* Places the output and the saved array of node i, for the first or the recomputed forward. For the first
 * of two, also places the copy of its buffers. */
static void ddp__born_output(ddp__lives *v, int i, int again, ddp__layout *l)
{
    const ddp_node *d = v->g->node[i];
    const int out = (again ? DDP__OUT_AGAIN : DDP__OUT) * v->n, root = v->root[again][i];
    const int saved = (again ? DDP__SAVED_AGAIN : DDP__SAVED) * v->n + i, twice = v->fate[i] == DDP__AGAIN;
    size_t buffers = 0;

    for (int k = 0; twice && !again && k < d->spec.buffers; k++)
        buffers += 4 * (size_t)ddp_shape_count(&d->spec.buffer[k].shape);
    if (buffers)
        l->shadow[i] =
            ddp__array_born(v, DDP__SHADOW * v->n + i, buffers, ddp__when(v, DDP__FORWARD_AGAIN, i));
    l->out[out + i] = root != i ? l->out[out + root]
                                : ddp__array_born(v, out + i, ddp__output_bytes(d),
                                                  ddp__outlives(d) ? -1 : v->end[again][i]);
    if (!d->spec.saved || d->here != (int)DDP__HERE_OWN) return;
    l->out[saved] = ddp__array_born(v, saved, 4 * d->spec.saved,
                                    d->has_gradient && again == twice
                                        ? ddp__backward_ends(v, i)
                                        : ddp__when(v, again ? DDP__FORWARD_AGAIN : DDP__FORWARD, i));
}

static void ddp__born_gradient(ddp__lives *v, int i, int until, ddp__layout *l)
{
    const ddp_node *d = v->g->node[i];

    if (v->over[i])
        l->gradient[i] = v->fate[i] == DDP__AGAIN ? l->out_again[i] : l->out[i];
    else
        l->gradient[i] =
            ddp__array_born(v, DDP__GRADIENT * v->n + i, (size_t)(1 + d->parts) * ddp__part_stride(d), until);
}

/* Places the gradients that operator i is the first to write in backward. A scalar without users is a loss.
 * Its gradient is placed just before. */
static void ddp__born_backward(ddp__lives *v, int i, ddp__layout *l)
{
    const ddp_node *d = v->g->node[i];

    if (!d->has_gradient) return;
    if (l->gradient[i] == DDP__NOWHERE && ddp_shape_count(&d->spec.out) == 1)
        ddp__born_gradient(v, i, ddp__backward_ends(v, i), l);
    for (int k = 0; k < d->spec.inputs; k++) {
        const int p = d->input[k];
        if (v->g->node[p]->has_gradient && l->gradient[p] == DDP__NOWHERE)
            ddp__born_gradient(v, p, ddp__backward_ends(v, p), l);
    }
}

/* Places the arrays that appear when node i runs on this process, unless they exist. */
static void ddp__born(ddp__lives *v, int event, int i, ddp__layout *l)
{
    if (v->g->node[i]->here != (int)DDP__HERE_OWN) return;
    if (event == DDP__BACKWARD)
        ddp__born_backward(v, i, l);
    else if (event == DDP__FORWARD && l->out[i] == DDP__NOWHERE)
        ddp__born_output(v, i, 0, l);
    else if (event == DDP__FORWARD_AGAIN && l->out_again[i] == DDP__NOWHERE)
        ddp__born_output(v, i, 1, l);
}

/* Places arrays that exist before a pass begins: inputs, outputs received from another stage, and
 * gradients that cross stages. */
static void ddp__born_before(ddp__lives *v, int i, ddp__layout *l)
{
    const ddp_node *d = v->g->node[i];

    if (d->here != (int)DDP__HERE_NOT && (!d->op || d->here == (int)DDP__HERE_ENTERS))
        ddp__born_output(v, i, 0, l);
    if ((d->from >= 0 || d->to >= 0) && d->has_gradient) ddp__born_gradient(v, i, -1, l);
}

/* The node that is next and runs fused with node i, or -1. */
static int ddp__born_with(const ddp__lives *v, int event, int i)
{
    if (event == DDP__WEIGHTS) return -1;
    if (event == DDP__FORWARD) return v->g->node[i]->pair ? i + 1 : -1;
    if (event == DDP__BACKWARD) return i > 0 && ddp__pair_inside(v->g, i - 1) ? i - 1 : -1;
    return ddp__pair_inside(v->g, i) && v->fate[i + 1] == DDP__AGAIN ? i + 1 : -1;
}

/* Simulates the passes of one micro-batch. */
static void ddp__layout_walk(ddp__lives *v, ddp__layout *l)
{
    int t, id, i, with;

    for (i = 0; i < v->n; i++) ddp__born_before(v, i, l);
    for (t = 0; t < v->times; t++) {
        const int event = v->event[t] / v->n;
        i = v->event[t] % v->n;
        v->now = t;
        ddp__born(v, event, i, l);
        with = ddp__born_with(v, event, i);
        if (with >= 0) ddp__born(v, event, with, l); /* no array of either is freed in between */
        for (id = v->dying[t]; id >= 0; id = v->sibling[id]) ddp__array_dies(v, l->out[id], v->bytes[id]);
    }
    for (i = 0; i < DDP__ARENAS; i++) l->bytes[i] = v->space[i].top;
    l->live_bytes = v->space[DDP__ARENA_OWN].live_most;
}

/* Gives every array its own memory, with a gradient for every float output and input. */
static void ddp__layout_plain(const ddp_graph *g, ddp__layout *l)
{
    size_t top = 0;

    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_node *d = g->node[i];
        l->out[i] = top;
        top += ddp__part_stride(d);
        if (d->spec.saved) {
            l->saved[i] = top;
            top += ddp__round64(4 * d->spec.saved);
        }
        if (d->type == DDP_F32) {
            l->gradient[i] = top;
            top += ddp__part_stride(d);
        }
    }
    l->bytes[DDP__ARENA_OWN] = l->live_bytes = top;
}

static int ddp__lives_alloc(ddp__lives *v, const ddp_graph *g, const unsigned char *fate)
{
    enum { PER_NODE = 6 + 3 * DDP__EVENTS + DDP__ARRAYS };
    int **const part[] = {&v->root[0], &v->end[0], &v->root[1], &v->end[1], &v->over};
    size_t n = (size_t)ddp__count(g->node), t;
    int *ints = (int *)ddp__calloc(PER_NODE * n, sizeof *ints);

    v->g = g;
    v->fate = fate;
    v->n = ddp__count(g->node);
    v->bytes = (size_t *)ddp__calloc(DDP__ARRAYS * n, sizeof *v->bytes);
    v->hole = (ddp__hole *)ddp__calloc(DDP__ARENAS * (DDP__ARRAYS * n + 2), sizeof *v->hole);
    v->uses = ints;
    if (!ints || !v->bytes || !v->hole) return 0;
    for (t = 0; t < DDP__ARENAS; t++) {
        v->space[t].hole = v->hole + t * (DDP__ARRAYS * n + 2);
        v->space[t].hole[0].bytes = (size_t)-1;
        v->space[t].holes = 1;
    }
    for (t = 0; t < 5; t++) *part[t] = ints + (t + 1) * n;
    v->event = ints + 6 * n;
    v->when = v->event + DDP__EVENTS * n;
    v->dying = v->when + DDP__EVENTS * n;
    v->sibling = v->dying + DDP__EVENTS * n;
    for (t = 0; t < DDP__EVENTS * n; t++) v->dying[t] = -1;
    return 1;
}

static int ddp__layout_alloc(ddp__layout *l, size_t n)
{
    size_t i, **const part[] = {&l->out, &l->saved, &l->gradient, &l->out_again, &l->saved_again, &l->shadow};

    l->out = (size_t *)ddp__calloc(DDP__ARRAYS * n, sizeof *l->out);
    l->fate = (unsigned char *)ddp__calloc(n, 1);
    if (!l->out || !l->fate) return 0;
    for (i = 0; i < DDP__ARRAYS; i++) *part[i] = l->out + i * n;
    for (i = 0; i < DDP__ARRAYS * n; i++) l->out[i] = DDP__NOWHERE;
    return 1;
}

ddp_status ddp__layout_plan(const ddp_graph *g, int share, ddp__layout *out, ddp_error *err)
{
    ddp__lives v = DDP__ZEROS;
    const int lives = share || g->stages;
    int ok;

    memset(out, 0, sizeof *out);
    ok =
        ddp__layout_alloc(out, (size_t)ddp__count(g->node)) && (!lives || ddp__lives_alloc(&v, g, out->fate));
    if (!ok) {
        ddp__layout_free(out);
    } else if (lives && !(share && g->stages)) {
        ddp__recompute_fates(g, out->fate);
        ddp__lives_times(&v);
        ddp__lives_ends(&v);
        ddp__lives_share(&v);
        ddp__layout_walk(&v, out);
    } else if (!lives) {
        ddp__layout_plain(g, out);
    }
    DDP_FREE(v.uses);
    DDP_FREE(v.bytes);
    DDP_FREE(v.hole);
    return ok ? DDP_OK
              : ddp__fail(err, DDP_MEMORY, "out of memory for the memory plan of %d nodes",
                          ddp__count(g->node));
}

void ddp__layout_free(ddp__layout *l)
{
    DDP_FREE(l->out);
    DDP_FREE(l->fate);
    memset(l, 0, sizeof *l);
}

size_t ddp_activation_bytes(const ddp_graph *g)
{
    ddp__layout l;
    size_t bytes;

    if (!g) return 0;
    if (g->built) return g->reuse.bytes[DDP__ARENA_OWN];
    if (ddp__layout_plan(g, 1, &l, NULL) != DDP_OK) return 0;
    bytes = l.bytes[DDP__ARENA_OWN];
    ddp__layout_free(&l);
    return bytes;
}
