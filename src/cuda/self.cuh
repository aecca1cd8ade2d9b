/* What a context holds of its GPU: the device, and what the backend table needs beside it. */
#ifndef DDP_CUDA_SELF_CUH
#define DDP_CUDA_SELF_CUH

#include "cuda/nccl.cuh"
#include "cuda/runtime.cuh"

enum {
    DDP__UPLOAD_PARTS = 4,       /* uploads that may be under way */
    DDP__UPLOAD_BYTES = 4 << 20, /* of each */
    DDP__CLIP_PARTS = 1024     /* partial sums of squares */
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
    ddp__nccl        *nccl;
    /* times */
    cudaEvent_t      *mark;     /* [marks], and one behind them: the start */
    int               marks;
    int               base;     /* the mark that was read last */
    double            base_s;   /* and when it was, ddp_now() */
    int               ranged;   /* an NVTX range is open */
} ddp__cuda_self;

#endif /* DDP_CUDA_SELF_CUH */
