/* State of a context on a GPU in addition to the device: copies of its parameters, timing marks of its work,
 * and the functions for messages over the host that src/device/stager.c calls. */
#pragma once

#include <nvtx3/nvToolsExt.h>

#include "cuda/nccl.cuh"
#include "cuda/rows.cuh"

enum {
    DDP__UPLOAD_PARTS = 4,       /* uploads that may be in flight */
    DDP__UPLOAD_BYTES = 4 << 20, /* size of each */
    DDP__CLIP_PARTS = 1024       /* number of partial sums of squares */
};

/* Type of the driver function cuStreamWaitValue32. */
typedef int (*ddp__cuda_waits)(cudaStream_t stream, unsigned long long there, unsigned turn, unsigned how);

/* A bfloat16 copy of a layer's parameters, which operators read instead of the parameters. */
typedef struct ddp__cuda_mirror {
    float *master;
    ddp__bf16 *copy;
    size_t count;
    struct ddp__cuda_mirror *next;
} ddp__cuda_mirror;

typedef struct ddp__cuda_self {
    ddp__cuda *dev;
    ddp__cuda_mirror *mirror;
    /* uploads pass through pinned memory, in parts */
    char *ring;
    cudaEvent_t *ring_free; /* [DDP__UPLOAD_PARTS] */
    int ring_next;
    float *early; /* pinned: a copy of *early_from, complete after early_done */
    const float *early_from;
    cudaEvent_t early_done;
    double *squares; /* [DDP__CLIP_PARTS], then their sum */
    /* messages over the host */
    cudaStream_t out, in;  /* streams to the host, and from it */
    cudaEvent_t *ready;    /* [slots] the arrays of this slot are final */
    unsigned *flag;        /* [slots] pinned: the highest turn that may continue */
    unsigned *flag_there;  /* the device address of flag */
    ddp__cuda_waits waits; /* NULL means that the driver does not have it */
    int slots;
    ddp__cuda_nccl *nccl;
    /* timing */
    cudaEvent_t *mark; /* [marks], then one more: the start */
    int marks;
    int base;      /* the mark that was read last */
    double base_s; /* ddp_now() at that mark */
    int ranged;    /* 1 if an NVTX range is open */
} ddp__cuda_self;

/* Converts the first argument of a table function: to the state that open returned, or to its device or
 * network. */
struct ddp__cuda_given {
    void *self;

    operator ddp__cuda_self *() const { return (ddp__cuda_self *)self; }
    operator ddp__cuda *() const { return ((ddp__cuda_self *)self)->dev; }
    operator ddp__cuda_nccl *() const { return ((ddp__cuda_self *)self)->nccl; }
};

/* DDP__GIVEN(f): adapts f, whose first argument is one of these types, to the table. DDP__ORDERED(f): also
 * launches the queued operators first, and is for the context's thread only. */
template <auto F> struct ddp__cuda_entry_of;
template <typename R, typename S, typename... A, R (*F)(S, A...)> struct ddp__cuda_entry_of<F> {
    static R call(void *self, A... a) { return F(ddp__cuda_given{self}, a...); }
    static R ordered(void *self, A... a)
    {
        ddp__cuda_run_due(ddp__cuda_given{self});
        return call(self, a...);
    }
};
#define DDP__GIVEN(f)   ddp__cuda_entry_of<f>::call
#define DDP__ORDERED(f) ddp__cuda_entry_of<f>::ordered

/* ---- timing ---- */

/* Relates the device's clock to the host's. The last event is recorded and waited for, and the host reads its
 * clock just before. It retries if the two are more than 0.2 ms apart, because the thread was delayed. A time
 * of the device must never be later than the host's time of the same moment. */
static int ddp__cuda_marks(ddp__cuda_self *c, int marks)
{
    ddp__cuda *dev = c->dev;

    c->base = c->marks = marks;
    c->mark = ddp__cuda_events(dev, marks + 1, cudaEventDefault);
    if (!c->mark || ddp__cuda_status(dev, NULL) || DDP__CUDA(dev, cudaStreamSynchronize(dev->stream)))
        return 0;
    for (int tries = 0; tries == 0 || (tries < 16 && ddp_now() - c->base_s > 2e-4); tries++) {
        c->base_s = ddp_now();
        if (DDP__CUDA(dev, cudaEventRecord(c->mark[marks], dev->stream)) ||
            DDP__CUDA(dev, cudaEventSynchronize(c->mark[marks])))
            return 0;
    }
    return 1;
}

static void ddp__cuda_mark(ddp__cuda_self *c, int mark)
{
    (void)DDP__CUDA(c->dev, cudaEventRecord(c->mark[mark], c->dev->stream));
}

/* Measures from mark to mark: milliseconds in a float are exact only over short intervals. */
static double ddp__cuda_marked(ddp__cuda_self *c, int mark)
{
    const cudaError_t e = ddp__cuda_asked(cudaEventQuery(c->mark[mark]));
    float ms = 0;

    if (e == cudaErrorNotReady) return -1;
    if (DDP__CUDA(c->dev, e) || DDP__CUDA(c->dev, cudaEventElapsedTime(&ms, c->mark[c->base], c->mark[mark])))
        return c->base_s;
    c->base = mark;
    c->base_s += 1e-3 * (double)ms;
    return c->base_s;
}

static void ddp__cuda_range(ddp__cuda_self *c, const char *name)
{
    if (c->ranged) (void)nvtxRangePop();
    c->ranged = name != NULL;
    if (name) (void)nvtxRangePushA(name);
}

/* ---- copies in bfloat16 ---- */

static __global__ void ddp__k_mirror(ddp__bf16 *out, const float *in, long n)
{
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __float2bfloat16_rn(in[i]);
}

/* The bfloat16 copy of the floats at p, or NULL. *left: number of elements of the copy from there on. */
static DDP__UNUSED ddp__bf16 *ddp__cuda_copy_of(const ddp__cuda_self *c, const float *p, size_t *left)
{
    for (const ddp__cuda_mirror *m = c->mirror; m; m = m->next) {
        if (p < m->master || p >= m->master + m->count) continue;
        *left = m->count - (size_t)(p - m->master);
        return m->copy + (p - m->master);
    }
    return NULL;
}

/* Updates the copy of the floats at p, which have changed, on a stream. */
static DDP__UNUSED void ddp__cuda_refresh(const ddp__cuda_self *c, const void *p, size_t bytes,
                                          cudaStream_t stream)
{
    ddp__cuda *dev = c->dev;
    const float *from = (const float *)p;
    size_t left = 0, n = bytes / sizeof *from;
    ddp__bf16 *copy = ddp__cuda_copy_of(c, from, &left);

    if (!copy || !n) return;
    if (n > left) n = left;
    DDP__LAUNCH(ddp__k_mirror, (unsigned)ddp__blocks((long)n, 256), 256, 0, stream, copy, from, (long)n);
}

/* ---- messages over the host: copies have their own streams, and the computing stream waits for a number in
 * pinned memory, which the stager raises when it has copied the result back ---- */

/* NULL means that the driver or the device does not support such waits. */
static ddp__cuda_waits ddp__cuda_waits_of(const ddp__cuda_self *c)
{
    const ddp__cuda_waits waits = (ddp__cuda_waits)ddp__cuda_driver("cuStreamWaitValue32");
    return waits && waits(c->dev->stream, (uintptr_t)c->flag_there, 0, 0) == 0 ? waits : NULL;
}

/* All later work on stream waits until the flag of slot is at least turn. Without driver support the calling
 * thread waits, which overlaps less but gives the same order. */
static DDP__UNUSED void ddp__cuda_hold_on(ddp__cuda_self *c, cudaStream_t stream, int slot, unsigned turn)
{
    enum { GEQ = 0 }; /* compares the signed difference with 0 */

    if (c->waits) {
        const int e = c->waits(stream, (uintptr_t)(c->flag_there + slot), turn, GEQ);
        if (e)
            ddp__cuda_fail(c->dev, DDP_FAILED, "GPU %d: cuStreamWaitValue32 failed with driver error %d",
                           c->dev->device, e);
        return;
    }
    while (ddp__atomic_load(&c->flag[slot]) < turn) ddp__sleep_until(ddp_now() + 2e-5);
}

static int ddp__cuda_slots(ddp__cuda_self *c, int slots)
{
    ddp__cuda *dev = c->dev;
    const size_t n = (size_t)slots;

    c->slots = slots;
    c->ready = ddp__cuda_events(dev, slots, cudaEventDisableTiming | cudaEventBlockingSync);
    if (!c->ready) return 0;
    if (cudaHostAlloc((void **)&c->flag, n * sizeof *c->flag, cudaHostAllocMapped) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    memset(c->flag, 0, n * sizeof *c->flag);
    if (DDP__CUDA(dev, cudaHostGetDevicePointer((void **)&c->flag_there, c->flag, 0)) ||
        DDP__CUDA(dev, cudaStreamCreateWithFlags(&c->out, cudaStreamNonBlocking)) ||
        DDP__CUDA(dev, cudaStreamCreateWithFlags(&c->in, cudaStreamNonBlocking)))
        return 0;
    /* load this kernel now: a kernel that is loaded at its first launch may wait for a stream that waits for
     * a flag */
    DDP__LAUNCH(ddp__k_mirror, 1, 1, 0, c->in, (ddp__bf16 *)NULL, (const float *)NULL, (long)0);
    c->waits = ddp__cuda_waits_of(c);
    return ddp__cuda_status(dev, NULL) == DDP_OK;
}

static void ddp__cuda_raise_all(ddp__cuda_self *c)
{
    for (int i = 0; c->flag && i < c->slots; i++) ddp__atomic_store(&c->flag[i], (unsigned)INT_MAX);
}

/* Waits for event (NULL for for all queued work). If a peer is lost, the wait must end: it aborts the
 * messages in flight between devices. */
static ddp_status ddp__cuda_await(ddp__cuda_self *c, cudaEvent_t event, ddp_error *err)
{
    ddp__cuda *dev = c->dev;
    ddp_status s = DDP_OK;
    ddp_error why;

    while (c->nccl && s == DDP_OK &&
           ddp__cuda_asked(event ? cudaEventQuery(event) : cudaStreamQuery(dev->stream)) ==
               cudaErrorNotReady) {
        s = ddp__nccl_poll(c->nccl, &why);
        if (s == DDP_OK) ddp__sleep_until(ddp_now() + 2e-5);
    }
    if (s != DDP_OK) {
        ddp__cuda_raise_all(c);
        ddp__nccl_give_up(c->nccl, &why);
        if (err) *err = why;
    }
    (void)(event ? DDP__CUDA(dev, cudaEventSynchronize(event))
                 : DDP__CUDA(dev, cudaStreamSynchronize(dev->stream)));
    return s ? s : ddp__cuda_status(dev, err);
}

static void ddp__cuda_record(ddp__cuda_self *c, int slot)
{
    (void)DDP__CUDA(c->dev, cudaEventRecord(c->ready[slot], c->dev->stream));
}

static ddp_status ddp__cuda_fetch(ddp__cuda_self *c, int slot, void *to, const void *from, size_t bytes,
                                  ddp_error *err)
{
    ddp__cuda *dev = c->dev;

    if (!DDP__CUDA(dev, cudaSetDevice(dev->device)) &&
        !DDP__CUDA(dev, cudaStreamWaitEvent(c->out, c->ready[slot], 0)) &&
        !DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, c->out)))
        (void)DDP__CUDA(dev, cudaStreamSynchronize(c->out));
    return ddp__cuda_status(dev, err);
}

static ddp_status ddp__cuda_give(ddp__cuda_self *c, void *to, const void *from, size_t bytes, ddp_error *err)
{
    ddp__cuda *dev = c->dev;

    if (!DDP__CUDA(dev, cudaSetDevice(dev->device)) &&
        !DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, c->in))) {
        ddp__cuda_refresh(c, to, bytes, c->in);
        (void)DDP__CUDA(dev, cudaStreamSynchronize(c->in));
    }
    return ddp__cuda_status(dev, err);
}

static void ddp__cuda_raise(ddp__cuda_self *c, int slot, unsigned turn)
{
    if (ddp__atomic_load(&c->flag[slot]) < turn) ddp__atomic_store(&c->flag[slot], turn);
}

static void ddp__cuda_hold(ddp__cuda_self *c, int slot, unsigned turn)
{
    ddp__cuda_hold_on(c, c->dev->stream, slot, turn);
}
