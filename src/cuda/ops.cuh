/* The operators of a GPU: how their calls run, and their table. Consecutive calls without other work between
 * them form a list. From the second time that a list occurs, it runs as a CUDA graph with one launch. Waits
 * of a stream for messages are between lists. */
#pragma once

#include "cuda/runtime.cuh"

/* ---- lists of calls ---- */

enum { DDP__CUDA_DUE = 64, DDP__CUDA_REPLAYS = 256 };

/* A call of one operator, or of both operators of a pair. */
typedef struct ddp__cuda_due {
    void (*one)(const ddp_op_call *c); /* NULL: `both` is set */
    void (*both)(const ddp_op_call *first, const ddp_op_call *second);
    ddp_op_call first, second;
} ddp__cuda_due;

typedef struct ddp__cuda_replay {
    ddp__cuda_due *due; /* [count] */
    int count;
    cudaGraphExec_t graph; /* NULL means that the list has occurred once */
    size_t nodes;          /* of the graph */
} ddp__cuda_replay;

typedef struct ddp__cuda_lists {
    ddp__cuda_due due[DDP__CUDA_DUE]; /* called, not launched yet */
    ddp__cuda_replay replay[DDP__CUDA_REPLAYS];
    int count, replays;
    int direct; /* 1: a list could not be recorded, so no other list is */
} ddp__cuda_lists;

/* Drops the graphs. Called when memory that calls may point to, or dev->scratch, is freed. Kernels have no
 * other dependency outside the bytes of a list. */
static DDP__UNUSED void ddp__cuda_replays_drop(ddp__cuda *dev)
{
    while (dev->lists && dev->lists->replays > 0) {
        const ddp__cuda_replay *p = &dev->lists->replay[--dev->lists->replays];
        if (p->graph) (void)cudaGraphExecDestroy(p->graph);
        DDP_FREE(p->due);
    }
}

static inline void ddp__cuda_run(const ddp__cuda_due *list, int count)
{
    for (int i = 0; i < count; i++) {
        if (list[i].one)
            list[i].one(&list[i].first);
        else
            list[i].both(&list[i].first, &list[i].second);
    }
}

/* Finds the entry of the list. On its first occurrence, adds an entry and returns NULL. */
static inline ddp__cuda_replay *ddp__cuda_replay_of(ddp__cuda_lists *x, int count)
{
    const size_t bytes = (size_t)count * sizeof *x->due;
    ddp__cuda_replay *p = x->replay;

    for (; p < x->replay + x->replays; p++)
        if (p->count == count && !memcmp(p->due, x->due, bytes)) return p;
    if (x->replays == DDP__CUDA_REPLAYS) return NULL;
    p->due = (ddp__cuda_due *)ddp__calloc(1, bytes);
    if (!p->due) return NULL;
    memcpy(p->due, x->due, bytes);
    p->count = count;
    p->graph = NULL;
    x->replays++;
    return NULL;
}

/* Records the work of the list. Returns the first error. *graph is NULL after one. */
static inline cudaError_t ddp__cuda_record_list(ddp__cuda *dev, const ddp__cuda_due *list, int count,
                                                cudaGraph_t *graph)
{
    cudaError_t e = cudaStreamBeginCapture(dev->stream, cudaStreamCaptureModeThreadLocal);

    *graph = NULL;
    if (e != cudaSuccess) return e;
    dev->capture_failed = 0;
    dev->captures = pthread_self();
    ddp__atomic_store(&dev->capturing, 1);
    ddp__cuda_run(list, count);
    ddp__atomic_store(&dev->capturing, 0);
    e = cudaStreamEndCapture(dev->stream, graph);
    if (e != cudaSuccess || !dev->capture_failed) return e;
    (void)cudaGraphDestroy(*graph);
    *graph = NULL;
    return cudaErrorUnknown;
}

/* Gives p its graph. Without one the list runs directly: if memory is short, until there is more of it; after
 * another error, all new lists run directly for the rest of the run. */
static inline void ddp__cuda_capture(ddp__cuda *dev, ddp__cuda_replay *p)
{
    cudaGraph_t graph = NULL;
    cudaError_t e;

    ddp__cuda_before(dev, 1);
    e = ddp__cuda_record_list(dev, p->due, p->count, &graph);
    if (e == cudaSuccess) e = cudaGraphGetNodes(graph, NULL, &p->nodes);
    if (e == cudaSuccess) e = cudaGraphInstantiateWithFlags(&p->graph, graph, 0);
    if (graph) (void)cudaGraphDestroy(graph);
    if (e == cudaSuccess) return;
    (void)cudaGetLastError();
    p->graph = NULL;
    if (e == cudaErrorMemoryAllocation) return;
    dev->lists->direct = 1;
    ddp__cuda_say(dev, "GPU %d: operators run without CUDA graphs, because a graph could not be made: %s",
                  dev->device, cudaGetErrorString(e));
}

/* Call it before queueing any other work on dev->stream. */
static DDP__UNUSED void ddp__cuda_run_due(ddp__cuda *dev)
{
    ddp__cuda_lists *x = dev->lists;
    const int count = x ? x->count : 0;
    ddp__cuda_replay *p;

    if (!count) return;
    x->count = 0;
    p = ddp__cuda_replay_of(x, count);
    if (p && !p->graph && !x->direct) ddp__cuda_capture(dev, p);
    if (p && p->graph) {
        dev->items += (long)p->nodes; /* a graph may take a place in the stream for each of its nodes */
        ddp__cuda_before(dev, 0);
        (void)DDP__CUDA(dev, cudaGraphLaunch(p->graph, dev->stream));
        return;
    }
    ddp__cuda_run(x->due, count);
}

/* second may be NULL. No operator that is queued here reads `random`. */
static inline void ddp__cuda_add(void (*one)(const ddp_op_call *),
                                 void (*both)(const ddp_op_call *, const ddp_op_call *),
                                 const ddp_op_call *first, const ddp_op_call *second)
{
    ddp__cuda *dev = (ddp__cuda *)first->pool;
    ddp__cuda_due now, *d = &now;

    if (dev->lists && dev->lists->count == DDP__CUDA_DUE) ddp__cuda_run_due(dev);
    if (dev->lists) d = &dev->lists->due[dev->lists->count++];
    memset(d, 0, sizeof *d);
    d->one = one;
    d->both = both;
    memcpy(&d->first, first, sizeof *first);
    if (second) memcpy(&d->second, second, sizeof *second);
    d->first.random = d->second.random = 0;
    if (d == &now) ddp__cuda_run(d, 1);
}

/* F as an entry of the table: an operator, a pair, or an operator that draws new random numbers each time. */
template <void (*F)(const ddp_op_call *)> static void ddp__cuda_later(const ddp_op_call *c)
{
    ddp__cuda_add(F, NULL, c, NULL);
}
template <void (*F)(const ddp_op_call *, const ddp_op_call *)>
static void ddp__cuda_later_both(const ddp_op_call *first, const ddp_op_call *second)
{
    ddp__cuda_add(NULL, F, first, second);
}
template <void (*F)(const ddp_op_call *)> static void ddp__cuda_apart(const ddp_op_call *c)
{
    ddp__cuda_run_due((ddp__cuda *)c->pool);
    F(c);
}

/* ---- the table of operators ---- */

/* Adds the entries of a family of operators. */
template <int N> static void ddp__cuda_add_ops(ddp__cuda *dev, const ddp__cuda_entry (&list)[N])
{
    for (int i = 0; i < N; i++) {
        const ddp_op *cpu = ddp__builtin_op(list[i].name);
        ddp_op *op = &dev->op[dev->ops];
        DDP_ASSERT(cpu && dev->ops < DDP__CUDA_OPS);
        memset(op, 0, sizeof *op);
        op->name = cpu->name;
        op->shape = cpu->shape;
        op->forward = list[i].forward;
        op->backward = list[i].backward;
        dev->entry[dev->ops++] = &list[i];
    }
}

/* Chooses between two instances of a template over the array type, by the number mode of the device. */
template <void (*Single)(ddp__cuda *, const ddp_op_call *), void (*Half)(ddp__cuda *, const ddp_op_call *)>
static void ddp__cuda_typed(const ddp_op_call *c)
{
    ddp__cuda *dev = (ddp__cuda *)c->pool;
    if (dev->half)
        Half(dev, c);
    else
        Single(dev, c);
}
typedef void (*ddp__cuda_both)(ddp__cuda *dev, const ddp_op_call *first, const ddp_op_call *second);
template <ddp__cuda_both Single, ddp__cuda_both Half>
static void ddp__cuda_typed_both(const ddp_op_call *first, const ddp_op_call *second)
{
    ddp__cuda *dev = (ddp__cuda *)second->pool;
    (dev->half ? Half : Single)(dev, first, second);
}
#define DDP__TYPED(f) ddp__cuda_typed<f<float>, f<ddp__bf16>>

/* Entries of the table with f_forward and f_backward. PLAIN: functions. ENTRY: templates over the array type.
 * */
#define DDP__LATER(...) ddp__cuda_later<__VA_ARGS__>
#define DDP__PLAIN(name, f, scratch)                                     \
    {                                                                    \
        name, DDP__LATER(f##_forward), DDP__LATER(f##_backward), scratch \
    }
#define DDP__ENTRY(name, f, scratch)                                                             \
    {                                                                                            \
        name, DDP__LATER(DDP__TYPED(f##_forward)), DDP__LATER(DDP__TYPED(f##_backward)), scratch \
    }

/* DDP__FAMILY(name, entries...) defines the function name(dev), which adds the entries to the table of a
 * device. */
#define DDP__FAMILY(name, ...)                              \
    static DDP__UNUSED void name(ddp__cuda *dev)            \
    {                                                       \
        static const ddp__cuda_entry ops[] = {__VA_ARGS__}; \
        ddp__cuda_add_ops(dev, ops);                        \
    }

/* The device's operator of that name, or NULL. Borrowed until ddp__cuda_close. */
static DDP__UNUSED const ddp_op *ddp__cuda_op(const ddp__cuda *dev, const char *name)
{
    for (int i = 0; i < dev->ops; i++)
        if (strcmp(dev->op[i].name, name) == 0) return &dev->op[i];
    return NULL;
}

/* Bytes of dev->scratch that a node needs. op is a result of ddp__cuda_op. Returns (size_t)-1 if the operator
 * would access rows of an array of four dimensions, which are not contiguous in channels-last order. The
 * operators named here support images, or work element by element. */
static DDP__UNUSED size_t ddp__cuda_scratch(const ddp__cuda *dev, const ddp_op *op, const void *spec)
{
    static const char *const fine[] = {
        "conv2d",  "batch_norm2d", "max_pool2d", "avg_pool2d", "global_avg_pool2d",
        "flatten", "gelu",         "relu",       "add",        "dropout"};
    const ddp_op_spec *s = (const ddp_op_spec *)spec;
    const ddp__cuda_entry *e = dev->entry[op - dev->op];
    int rows = s->out.dims == 4;

    for (int i = 0; i < s->inputs; i++) rows |= s->in[i].dims == 4 && s->in_type[i] == DDP_F32;
    for (const char *name : fine) rows &= strcmp(name, op->name) != 0;
    return rows ? (size_t)-1 : e->scratch ? e->scratch(s, dev->half) : 0;
}
