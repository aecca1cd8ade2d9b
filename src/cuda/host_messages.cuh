/* Messages of a GPU over the host: what src/run/stager.c asks of the device. Copies have streams of
 * their own; the computing stream waits for a number in pinned memory, which the stager raises when
 * the answer has been copied back. */
#ifndef DDP_CUDA_HOST_MESSAGES_CUH
#define DDP_CUDA_HOST_MESSAGES_CUH

#include "cuda/update.cuh"

/* One thread of one block: no other kernel misses it. */
static __global__ void ddp__k_hold(const volatile unsigned *flag, unsigned turn)
{
    while (*flag < turn) __nanosleep(4000);
    __threadfence_system();
}

static void ddp__cuda_free_slots(ddp__cuda_self *c)
{
    int i;

    for (i = 0; c->ready && i < c->slots; i++)
        if (c->ready[i]) (void)cudaEventDestroy(c->ready[i]);
    if (c->ready) DDP_FREE(c->ready);
    if (c->flag) (void)cudaFreeHost(c->flag);
    if (c->out) (void)cudaStreamDestroy(c->out);
    if (c->in) (void)cudaStreamDestroy(c->in);
    c->ready = NULL;
    c->flag = NULL;
    c->out = c->in = NULL;
    c->slots = 0;
}

static int ddp__cuda_slots(void *self, int slots)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    ddp__cuda *dev = c->dev;
    const size_t n = (size_t)slots;
    int i;

    c->ready = (cudaEvent_t *)ddp__calloc(n, sizeof *c->ready);
    if (!c->ready) return 0;
    c->slots = slots;
    if (cudaHostAlloc((void **)&c->flag, n * sizeof *c->flag, cudaHostAllocMapped) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    memset(c->flag, 0, n * sizeof *c->flag);
    if (DDP__CUDA(dev, cudaHostGetDevicePointer((void **)&c->flag_there, c->flag, 0)) ||
        DDP__CUDA(dev, cudaStreamCreateWithFlags(&c->out, cudaStreamNonBlocking)) ||
        DDP__CUDA(dev, cudaStreamCreateWithFlags(&c->in, cudaStreamNonBlocking)))
        return 0;
    for (i = 0; i < slots; i++)
        if (DDP__CUDA(dev, cudaEventCreateWithFlags(&c->ready[i], cudaEventDisableTiming |
                                                                      cudaEventBlockingSync)))
            return 0;
    /* a kernel that is loaded at its first launch may wait for one that holds: load it now */
    DDP__LAUNCH(ddp__k_mirror, 1, 1, 0, c->in, (ddp__bf16 *)NULL, (const float *)NULL, (long)0);
    DDP__RUN(ddp__k_hold, 1, 1, c->flag_there, 0u);
    return ddp__cuda_status(dev, NULL) == DDP_OK;
}

static void ddp__cuda_raise_all(void *self)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    int i;

    for (i = 0; c->flag && i < c->slots; i++) ddp__atomic_store(&c->flag[i], UINT_MAX);
}

/* A wait behind messages of devices must not last for a lost peer: what is in flight is given up.
 * event NULL: for all that was queued. */
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

static void ddp__cuda_record(void *self, int slot)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;

    (void)DDP__CUDA(c->dev, cudaEventRecord(c->ready[slot], c->dev->stream));
}

static ddp_status ddp__cuda_fetch(void *self, int slot, void *to, const void *from, size_t bytes,
                                  ddp_error *err)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    ddp__cuda *dev = c->dev;

    if (!DDP__CUDA(dev, cudaSetDevice(dev->device)) &&
        !DDP__CUDA(dev, cudaStreamWaitEvent(c->out, c->ready[slot], 0)) &&
        !DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, c->out)))
        (void)DDP__CUDA(dev, cudaStreamSynchronize(c->out));
    return ddp__cuda_status(dev, err);
}

static ddp_status ddp__cuda_give(void *self, void *to, const void *from, size_t bytes,
                                 ddp_error *err)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    ddp__cuda *dev = c->dev;

    if (!DDP__CUDA(dev, cudaSetDevice(dev->device)) &&
        !DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, c->in))) {
        ddp__cuda_refresh(c, to, bytes, c->in);
        (void)DDP__CUDA(dev, cudaStreamSynchronize(c->in));
    }
    return ddp__cuda_status(dev, err);
}

static void ddp__cuda_raise(void *self, int slot, unsigned turn)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;

    if (ddp__atomic_load(&c->flag[slot]) < turn) ddp__atomic_store(&c->flag[slot], turn);
}

static void ddp__cuda_hold(void *self, int slot, unsigned turn)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    ddp__cuda *dev = c->dev;

    DDP__RUN(ddp__k_hold, 1, 1, c->flag_there + slot, turn);
}

#endif /* DDP_CUDA_HOST_MESSAGES_CUH */
