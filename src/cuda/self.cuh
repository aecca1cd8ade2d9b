/* What a context holds of its GPU beside the device, and the times of its work: events between the
 * kernels, read when they have come, and names for profilers. */
#ifndef DDP_CUDA_SELF_CUH
#define DDP_CUDA_SELF_CUH

#include <nvtx3/nvToolsExt.h>

#include "cuda/nccl.cuh"

enum {
    DDP__UPLOAD_PARTS = 4,       /* uploads that may be under way */
    DDP__UPLOAD_BYTES = 4 << 20, /* of each */
    DDP__CLIP_PARTS = 1024       /* partial sums of squares */
};

/* bfloat16 copy of a layer's parameters, which operators read in their place. */
typedef struct ddp__cuda_mirror {
    float     *master;
    ddp__bf16 *copy;
    size_t     count;
} ddp__cuda_mirror;

typedef struct ddp__cuda_self {
    ddp__cuda        *dev;
    ddp__cuda_mirror *mirror;
    int               mirrors, mirror_room;
    /* uploads pass through pinned memory, part after part */
    char             *ring;
    cudaEvent_t       ring_free[DDP__UPLOAD_PARTS];
    int               ring_next;
    float            *early;    /* pinned: a copy of *early_from, once early_done has come */
    const float      *early_from;
    cudaEvent_t       early_done;
    double           *squares;  /* [DDP__CLIP_PARTS] and their sum behind them */
    /* messages over the host */
    cudaStream_t      out, in;  /* to the host, and back */
    cudaEvent_t      *ready;    /* [slots] the arrays of this slot are final */
    unsigned         *flag;     /* [slots] pinned: the turn that may pass */
    unsigned         *flag_there; /* as the device sees them */
    int               slots;
    ddp__cuda_nccl        *nccl;
    /* times */
    cudaEvent_t      *mark;     /* [marks], and one behind them: the start */
    int               marks;
    int               base;     /* the mark that was read last */
    double            base_s;   /* and when it was, ddp_now() */
    int               ranged;   /* an NVTX range is open */
} ddp__cuda_self;

/* ---- times ---- */


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
    int i;

    c->mark = (cudaEvent_t *)ddp__calloc((size_t)marks + 1, sizeof *c->mark);
    if (!c->mark) return 0;
    c->base = c->marks = marks;
    for (i = 0; i <= marks; i++)
        if (DDP__CUDA(dev, cudaEventCreateWithFlags(&c->mark[i], cudaEventDefault))) return 0;
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

#endif /* DDP_CUDA_SELF_CUH */
