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
    ddp__cuda_waits waits; /* NULL means that the calling thread waits */
    unsigned *turn;        /* [slots] atomic: the highest turn for which a stream waits */
    int slots;
    double copy_s;               /* seconds after which a copy of a message has failed */
    struct ddp__cuda_self *next; /* the list of contexts whose streams may wait */
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
        ddp__cuda_before(ddp__cuda_given{self}, 0);
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

enum { DDP__CUDA_GEQ = 0 }; /* compares the signed difference with 0 */

/* Raises the flag of a probe that did not end in time. */
typedef struct ddp__cuda_rescue {
    unsigned *flag;
    int done, late; /* atomic */
} ddp__cuda_rescue;

static void *ddp__cuda_rescues(void *arg)
{
    ddp__cuda_rescue *r = (ddp__cuda_rescue *)arg;
    const double until = ddp_now() + 2;

    while (!ddp__atomic_load(&r->done) && ddp_now() < until) ddp__sleep_until(ddp_now() + 1e-4);
    if (ddp__atomic_load(&r->done)) return NULL;
    ddp__atomic_store(&r->late, 1);
    ddp__atomic_store(r->flag, 1);
    return NULL;
}

/* Queues a wait of `held` and a kernel after it, and then what the stager queues meanwhile. Returns the
 * reason why the device cannot do this, or NULL. */
static const char *ddp__cuda_held_back(ddp__cuda_self *c, cudaStream_t held, const ddp__cuda_rescue *r)
{
    ddp__cuda *dev = c->dev;

    if (c->waits(held, (uintptr_t)c->flag_there, 1, DDP__CUDA_GEQ)) return "cuStreamWaitValue32 fails";
    DDP__LAUNCH(ddp__k_mirror, 1, 1, 0, held, (ddp__bf16 *)NULL, (const float *)NULL, (long)0);
    if (DDP__CUDA(dev,
                  cudaMemcpyAsync(c->early, c->squares, sizeof *c->early, cudaMemcpyDeviceToHost, c->out)) ||
        DDP__CUDA(dev, cudaStreamSynchronize(c->out)) ||
        DDP__CUDA(dev,
                  cudaMemcpyAsync(c->squares, c->early, sizeof *c->early, cudaMemcpyHostToDevice, c->in)))
        return NULL; /* the device has failed */
    DDP__LAUNCH(ddp__k_mirror, 1, 1, 0, c->in, (ddp__bf16 *)NULL, (const float *)NULL, (long)0);
    (void)DDP__CUDA(dev, cudaStreamSynchronize(c->in));
    if (ddp__atomic_load(&r->late)) return "other work stops while a stream waits";
    return ddp__cuda_asked(cudaStreamQuery(held)) == cudaErrorNotReady ? NULL : "a stream does not wait";
}

/* Tests whether copies and a kernel of the stager's streams run while `held` waits. Without this, the stager
 * could not raise the flag. Returns NULL if they do, or the reason. Another thread ends the wait after
 * 2 s. */
static const char *ddp__cuda_probe(ddp__cuda_self *c, cudaStream_t held)
{
    ddp__cuda_rescue r = {c->flag, 0, 0};
    pthread_t thread;
    const char *why;

    if (pthread_create(&thread, NULL, ddp__cuda_rescues, &r))
        return "no thread for its test could be started";
    why = ddp__cuda_held_back(c, held, &r);
    ddp__atomic_store(&r.done, 1);
    ddp__atomic_store(c->flag, 1);
    (void)pthread_join(thread, NULL);
    (void)DDP__CUDA(c->dev, cudaStreamSynchronize(held));
    ddp__atomic_store(c->flag, 0);
    return why;
}

/* ---- several contexts of a process on one device ----
 *
 * With two, the call of one may wait for a stream of the other, which waits for a message of the first. So
 * their streams do not wait, and a context opens when the streams of the others no longer do. */

/* Number of contexts on each device, or on devices whose numbers differ by a multiple of 64. The counts and
 * ddp__cuda_self.turn are sequentially consistent: a stream that starts to wait sees the new context, or the
 * new context sees the wait. */
static int ddp__cuda_contexts[64];
static pthread_mutex_t ddp__cuda_list_lock = PTHREAD_MUTEX_INITIALIZER;
static ddp__cuda_self *ddp__cuda_list; /* guarded by the lock */

static DDP__UNUSED int ddp__cuda_count_context(int device, int more)
{
    const int room = (int)(sizeof ddp__cuda_contexts / sizeof *ddp__cuda_contexts);
    return __atomic_add_fetch(&ddp__cuda_contexts[device % room], more, __ATOMIC_SEQ_CST);
}

static DDP__UNUSED int ddp__cuda_is_alone(const ddp__cuda *dev)
{
    return ddp__cuda_count_context(dev->device, 0) < 2;
}

static void ddp__cuda_list_add(ddp__cuda_self *c)
{
    pthread_mutex_lock(&ddp__cuda_list_lock);
    c->next = ddp__cuda_list;
    ddp__cuda_list = c;
    pthread_mutex_unlock(&ddp__cuda_list_lock);
}

/* c need not be in the list. */
static DDP__UNUSED void ddp__cuda_list_drop(ddp__cuda_self *c)
{
    ddp__cuda_self **link = &ddp__cuda_list;

    pthread_mutex_lock(&ddp__cuda_list_lock);
    while (*link && *link != c) link = &(*link)->next;
    if (*link) *link = c->next;
    pthread_mutex_unlock(&ddp__cuda_list_lock);
}

/* Number of waits of streams on the device. *most_s: the longest time-out of their contexts. */
static int ddp__cuda_open_holds(int device, double *most_s)
{
    int n = 0;

    *most_s = 0;
    pthread_mutex_lock(&ddp__cuda_list_lock);
    for (const ddp__cuda_self *c = ddp__cuda_list; c; c = c->next)
        for (int i = 0; c->dev->device == device && i < c->slots; i++) {
            if (ddp__atomic_load(&c->flag[i]) >= __atomic_load_n(&c->turn[i], __ATOMIC_SEQ_CST)) continue;
            if (*most_s < c->copy_s) *most_s = c->copy_s;
            n++;
        }
    pthread_mutex_unlock(&ddp__cuda_list_lock);
    return n;
}

/* Waits until no stream of the device waits for a message. Call it when the new context is counted, before
 * its first call that may wait for the device. */
static DDP__UNUSED ddp_status ddp__cuda_await_holds(int device, ddp_error *err)
{
    const double begin = ddp_now();
    double most_s;

    while (ddp__cuda_open_holds(device, &most_s)) {
        if (ddp_now() - begin > most_s)
            return ddp__fail(err, DDP_TIMEOUT,
                             "GPU %d: a stream of another context of this process has waited %g s for a "
                             "message, and a new context would block it; open all contexts before the first "
                             "step, or set DREAMDDP_CUDA_WAITS=0",
                             device, most_s);
        ddp__sleep_until(ddp_now() + 1e-4);
    }
    return DDP_OK;
}

static const char ddp__cuda_not_alone[] = "another context of this process uses the GPU";

/* The calling thread waits from now on. */
static void ddp__cuda_waits_not(ddp__cuda_self *c, const char *why)
{
    c->waits = NULL;
    ddp__cuda_say(
        c->dev,
        "GPU %d: the calling thread waits for messages in place of the stream, which overlaps less: %s",
        c->dev->device, why);
}

/* DREAMDDP_CUDA_WAITS: auto tests whether a stream can wait, 1 assumes that it can, 0 makes the calling
 * thread wait. With auto it also waits if the program has its own stream, because ddp__cuda_before does not
 * see its launches. prepare has run before. */
static void ddp__cuda_waits_open(ddp__cuda_self *c)
{
    const char *set = c->dev->no_env ? NULL : ddp__env_get("DREAMDDP_CUDA_WAITS"), *why = NULL;

    c->waits = (ddp__cuda_waits)ddp__cuda_driver("cuStreamWaitValue32");
    if (set && !strcmp(set, "0"))
        why = "DREAMDDP_CUDA_WAITS is 0";
    else if (!c->waits)
        why = "the driver has no cuStreamWaitValue32";
    else if (!ddp__cuda_is_alone(c->dev))
        why = ddp__cuda_not_alone;
    else if (set && !strcmp(set, "1"))
        why = NULL;
    else if (!c->dev->own_stream)
        why = "the stream is the program's";
    else
        why = ddp__cuda_probe(c, c->dev->stream);
    if (why) ddp__cuda_waits_not(c, why);
}

/* All later work on stream waits until the flag of slot is at least turn. If streams cannot wait, the calling
 * thread does, which overlaps less but gives the same order. */
static DDP__UNUSED void ddp__cuda_hold_on(ddp__cuda_self *c, cudaStream_t stream, int slot, unsigned turn)
{
    char why[80];
    int e;

    if (c->waits) __atomic_store_n(&c->turn[slot], turn, __ATOMIC_SEQ_CST);
    if (c->waits && !ddp__cuda_is_alone(c->dev)) ddp__cuda_waits_not(c, ddp__cuda_not_alone);
    if (c->waits) {
        e = c->waits(stream, (uintptr_t)(c->flag_there + slot), turn, DDP__CUDA_GEQ);
        if (!e) {
            ddp__cuda_held(c->dev, &c->flag[slot], turn);
            return;
        }
        (void)snprintf(why, sizeof why, "cuStreamWaitValue32 failed with driver error %d", e);
        ddp__cuda_waits_not(c, why);
    }
    ddp__cuda_wait_raised(c->dev, &c->flag[slot], turn);
}

/* The stager's streams have a high priority, so that they do not share a hardware queue with the computing
 * stream. */
static int ddp__cuda_slots(ddp__cuda_self *c, int slots)
{
    ddp__cuda *dev = c->dev;
    const size_t n = (size_t)slots;
    int least = 0, greatest = 0;

    c->slots = slots;
    c->ready = ddp__cuda_events(dev, slots, cudaEventDisableTiming | cudaEventBlockingSync);
    c->turn = (unsigned *)ddp__calloc(n, sizeof *c->turn);
    if (!c->ready || !c->turn) return 0;
    if (cudaHostAlloc((void **)&c->flag, n * sizeof *c->flag, cudaHostAllocMapped) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    memset(c->flag, 0, n * sizeof *c->flag);
    if (DDP__CUDA(dev, cudaHostGetDevicePointer((void **)&c->flag_there, c->flag, 0)) ||
        DDP__CUDA(dev, cudaDeviceGetStreamPriorityRange(&least, &greatest)) ||
        DDP__CUDA(dev, cudaStreamCreateWithPriority(&c->out, cudaStreamNonBlocking, greatest)) ||
        DDP__CUDA(dev, cudaStreamCreateWithPriority(&c->in, cudaStreamNonBlocking, greatest)))
        return 0;
    /* load this kernel now: a kernel that is loaded at its first launch may wait for a stream that waits for
     * a flag */
    DDP__LAUNCH(ddp__k_mirror, 1, 1, 0, c->in, (ddp__bf16 *)NULL, (const float *)NULL, (long)0);
    ddp__cuda_waits_open(c);
    ddp__cuda_list_add(c);
    return ddp__cuda_status(dev, NULL) == DDP_OK;
}

static void ddp__cuda_raise_all(ddp__cuda_self *c)
{
    for (int i = 0; c->flag && i < c->slots; i++) ddp__atomic_store(&c->flag[i], (unsigned)INT_MAX);
}

/* Polls NCCL for a lost peer, while the host waits. If there is one, aborts the messages in flight between
 * devices, so that the wait ends. Returns the error. */
static ddp_status ddp__cuda_ask(ddp__cuda_self *c, ddp_error *err)
{
    ddp_error why;

    if (!c->nccl || ddp__nccl_poll(c->nccl, &why) == DDP_OK) return DDP_OK;
    ddp__cuda_raise_all(c);
    ddp__nccl_give_up(c->nccl, &why);
    if (err) *err = why;
    return why.code;
}

static int ddp__cuda_lost(void *self) { return ddp__cuda_ask((ddp__cuda_self *)self, NULL) != DDP_OK; }

/* Waits for event (NULL for all queued work). If a peer is lost, the wait ends. */
static ddp_status ddp__cuda_await(ddp__cuda_self *c, cudaEvent_t event, ddp_error *err)
{
    ddp__cuda *dev = c->dev;
    ddp_status s = DDP_OK;

    while (c->nccl && s == DDP_OK &&
           ddp__cuda_asked(event ? cudaEventQuery(event) : cudaStreamQuery(dev->stream)) ==
               cudaErrorNotReady) {
        s = ddp__cuda_ask(c, err);
        if (s == DDP_OK) ddp__sleep_until(ddp_now() + 2e-5);
    }
    (void)(event ? DDP__CUDA(dev, cudaEventSynchronize(event))
                 : DDP__CUDA(dev, cudaStreamSynchronize(dev->stream)));
    return s ? s : ddp__cuda_status(dev, err);
}

static void ddp__cuda_record(ddp__cuda_self *c, int slot)
{
    (void)DDP__CUDA(c->dev, cudaEventRecord(c->ready[slot], c->dev->stream));
}

/* Waits for the copy of a message. It waits only for the copy engine, unless a stream that waits for a
 * message keeps it from starting. */
static void ddp__cuda_copied(ddp__cuda_self *c, cudaStream_t stream)
{
    const double until = ddp_now() + c->copy_s;
    cudaError_t e;

    for (double pause = 2e-5; (e = ddp__cuda_asked(cudaStreamQuery(stream))) == cudaErrorNotReady;
         pause = pause < 1e-4 ? 1.5 * pause : pause) {
        if (ddp_now() > until) {
            ddp__cuda_fail(
                c->dev, DDP_TIMEOUT,
                "GPU %d: the copy of a message did not end within %g s: other work of the GPU blocks it; set "
                "DREAMDDP_CUDA_WAITS=0, or CUDA_DEVICE_MAX_CONNECTIONS=32 if ranks are threads",
                c->dev->device, c->copy_s);
            return;
        }
        ddp__sleep_until(ddp_now() + pause);
    }
    (void)DDP__CUDA(c->dev, e);
}

static ddp_status ddp__cuda_fetch(ddp__cuda_self *c, int slot, void *to, const void *from, size_t bytes,
                                  ddp_error *err)
{
    ddp__cuda *dev = c->dev;

    if (!DDP__CUDA(dev, cudaSetDevice(dev->device)) &&
        !DDP__CUDA(dev, cudaEventSynchronize(c->ready[slot])) &&
        !DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, c->out)))
        ddp__cuda_copied(c, c->out);
    return ddp__cuda_status(dev, err);
}

static ddp_status ddp__cuda_give(ddp__cuda_self *c, void *to, const void *from, size_t bytes, ddp_error *err)
{
    ddp__cuda *dev = c->dev;

    if (!DDP__CUDA(dev, cudaSetDevice(dev->device)) &&
        !DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, c->in))) {
        ddp__cuda_refresh(c, to, bytes, c->in);
        ddp__cuda_copied(c, c->in);
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
