/* The part of the context that a graph may use: memory, threads and hooks. A ddp_ctx begins with this
 * struct, so src/graph does not depend on src/context. */
#pragma once

#include "base/backend.h"
#include "base/core.h"
#include "graph/layer.h"

/* The hooks that a user's own training loop also calls. Each returns 0 or a ddp_status. */
typedef struct ddp__hooks {
    int (*add_layer)(ddp_ctx *ctx, const ddp_layer *layer);
    int (*forward_begin)(ddp_ctx *ctx, int layer);
    int (*backward_begin)(ddp_ctx *ctx, int layer);
    int (*backward_end)(ddp_ctx *ctx, int layer);
    int (*last_pass)(const ddp_ctx *ctx, int layer); /* 1: the next backward_end completes the gradient */
} ddp__hooks;

/* List entry through which ddp_close frees a graph. */
typedef struct ddp__owned {
    struct ddp__owned *next;
    void (*destroy)(struct ddp__owned *self);
    uint64_t *passes;    /* seeds the random masks; saved in checkpoints, or NULL before the build */
    uint64_t model;      /* hash of the operators, which a checkpoint must match */
    uint64_t dropout;    /* hash of dropout positions and probabilities: equal on all ranks, may differ from a
                    checkpoint's */
    double most_dropout; /* the largest probability, or 0 for none */
    double bytes;        /* of this machine's memory, for parameters, gradients and activations */
} ddp__owned;

typedef struct ddp__host {
    ddp_allocator allocator;
    ddp_logger log;
    ddp__pool *pool; /* operator threads; NULL: only the caller */
    const ddp__hooks *hooks;
    ddp__owned *owned;          /* destroyed in ddp_close, newest first */
    uint64_t seed;              /* for initialisation and dropout */
    int kernels;                /* ddp_config.kernels for the operators (default: 0, the fastest) */
    ddp_error error;            /* the first error of the context; sticky */
    const ddp_backend *backend; /* where layers and activations are, or NULL for host memory */
    void *device;               /* the backend's self */
    const unsigned char *paper; /* [paper_bytes] memory that is never accessed (src/sim): layers first, */
    size_t paper_bytes;         /* from the middle on other allocations, or NULL if not used */
    pid_t process;              /* process that opened the context and has its threads, or 0 for any
                                 * process */
} ddp__host;

/* 1 in a forked child: it has a context's memory but none of its threads, and a lock may be held forever.
 * h may be NULL. */
static inline int ddp__host_forked(const ddp__host *h) { return h && h->process && h->process != getpid(); }

/* Returns DDP_USAGE in a forked child. */
static inline ddp_status ddp__host_check(const ddp__host *h, ddp_error *err)
{
    if (!ddp__host_forked(h)) return DDP_OK;
    return ddp__fail(err, DDP_USAGE,
                     "process %ld opened this context, and process %ld was forked from it: only ddp_close "
                     "may be called here; open a new context in the child",
                     (long)h->process, (long)getpid());
}

/* The logger for warnings about the host. */
static inline const ddp_logger *ddp__host_log(const ddp__host *h) { return &h->log; }

static inline int ddp__on_paper(const ddp__host *h, const void *at)
{
    const unsigned char *p = (const unsigned char *)at;

    return h && h->paper && p >= h->paper && p < h->paper + h->paper_bytes;
}

/* Memory of layers and activations: on the device if the host has a backend, else in this process. h may be
 * NULL. ddp__host_alloc returns zeroed memory, or NULL if memory is short or bytes is 0. Copies run in the
 * order of all work on the device. ddp__host_download waits. */
static inline void *ddp__host_alloc(const ddp__host *h, size_t bytes)
{
    if (h && h->backend) return bytes ? h->backend->alloc(h->device, bytes) : NULL;
    if (h && h->paper && bytes > 4096 && bytes <= h->paper_bytes / 2)
        return (void *)(h->paper + h->paper_bytes / 2);
    return ddp__alloc(h ? &h->allocator : NULL, bytes);
}

static inline void ddp__host_release(const ddp__host *h, void *at, size_t bytes)
{
    if (!at || ddp__on_paper(h, at)) return;
    if (h && h->backend)
        h->backend->release(h->device, at, bytes);
    else
        ddp__release(h ? &h->allocator : NULL, at, bytes);
}

static inline void ddp__host_upload(const ddp__host *h, void *to, const void *from, size_t bytes)
{
    if (bytes == 0 || ddp__on_paper(h, to)) return;
    if (h && h->backend)
        h->backend->upload(h->device, to, from, bytes);
    else
        memcpy(to, from, bytes);
}

static inline ddp_status ddp__host_download(const ddp__host *h, void *to, const void *from, size_t bytes,
                                            ddp_error *err)
{
    if (bytes == 0 || ddp__on_paper(h, from) || ddp__on_paper(h, to)) return DDP_OK;
    if (h && h->backend) return h->backend->download(h->device, to, from, bytes, err);
    memcpy(to, from, bytes);
    return DDP_OK;
}

static inline void ddp__host_copy(const ddp__host *h, void *to, const void *from, size_t bytes)
{
    if (bytes == 0 || ddp__on_paper(h, to) || ddp__on_paper(h, from)) return;
    if (h && h->backend)
        h->backend->copy(h->device, to, from, bytes);
    else
        memcpy(to, from, bytes);
}

static inline void ddp__host_zero(const ddp__host *h, void *at, size_t bytes)
{
    if (bytes == 0 || ddp__on_paper(h, at)) return;
    if (h && h->backend)
        h->backend->zero(h->device, at, bytes);
    else
        memset(at, 0, bytes);
}

/* y += x */
static inline void ddp__host_add(const ddp__host *h, float *y, const float *x, size_t n)
{
    if (h && h->backend)
        h->backend->axpy(h->device, y, x, n, 1);
    else
        for (size_t i = 0; i < n; i++) y[i] += x[i];
}
