/* Times of a GPU: events between the kernels, read when they have come, and names for profilers. */
#ifndef DDP_CUDA_PROFILE_CUH
#define DDP_CUDA_PROFILE_CUH

#include <nvtx3/nvToolsExt.h>

#include "base/clock.h"
#include "cuda/self.cuh"

static void ddp__cuda_free_marks(ddp__cuda_self *c)
{
    int i;

    if (c->ranged) (void)nvtxRangePop();
    c->ranged = 0;
    for (i = 0; c->mark && i <= c->marks; i++)
        if (c->mark[i]) (void)cudaEventDestroy(c->mark[i]);
    if (c->mark) DDP_FREE(c->mark);
    c->mark = NULL;
}

/* The event behind the marks says where the device's clock stands on the host's. */
static int ddp__cuda_marks(void *self, int marks)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    ddp__cuda *dev = c->dev;
    const size_t n = (size_t)marks + 1;
    size_t i;

    c->mark = (cudaEvent_t *)DDP_REALLOC(NULL, n * sizeof *c->mark);
    if (!c->mark) return 0;
    memset(c->mark, 0, n * sizeof *c->mark);
    c->marks = marks;
    for (i = 0; i < n; i++)
        if (DDP__CUDA(dev, cudaEventCreateWithFlags(&c->mark[i], cudaEventDefault))) return 0;
    c->base = marks;
    if (DDP__CUDA(dev, cudaStreamSynchronize(dev->stream)) ||
        DDP__CUDA(dev, cudaEventRecord(c->mark[marks], dev->stream)) ||
        DDP__CUDA(dev, cudaEventSynchronize(c->mark[marks])))
        return 0;
    c->base_s = ddp_now();
    return 1;
}

static void ddp__cuda_mark(void *self, int mark)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;

    (void)DDP__CUDA(c->dev, cudaEventRecord(c->mark[mark], c->dev->stream));
}

/* From mark to mark: milliseconds in a float are exact only over short times. */
static double ddp__cuda_marked(void *self, int mark)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    const cudaError_t e = ddp__cuda_asked(cudaEventQuery(c->mark[mark]));
    float ms = 0;

    if (e == cudaErrorNotReady) return -1;
    if (DDP__CUDA(c->dev, e) ||
        DDP__CUDA(c->dev, cudaEventElapsedTime(&ms, c->mark[c->base], c->mark[mark])))
        return c->base_s;
    c->base = mark;
    c->base_s += 1e-3 * (double)ms;
    return c->base_s;
}

static void ddp__cuda_range(void *self, const char *name)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;

    if (c->ranged) (void)nvtxRangePop();
    c->ranged = name != NULL;
    if (name) (void)nvtxRangePushA(name);
}

#endif /* DDP_CUDA_PROFILE_CUH */
