/* What a graph may know of the context that trains it: memory, threads and the hooks.
 * A ddp_ctx begins with this struct, so src/graph needs nothing of src/context. */
#pragma once

#include "base/backend.h"
#include "base/core.h"
#include "graph/layer.h"

/* The same hooks that a user's own loop calls; each returns 0 or a ddp_status. */
typedef struct ddp__hooks {
    int (*add_layer)(ddp_ctx *ctx, const ddp_layer *layer);
    int (*forward_begin)(ddp_ctx *ctx, int layer);
    int (*backward_begin)(ddp_ctx *ctx, int layer);
    int (*backward_end)(ddp_ctx *ctx, int layer);
    int (*last_pass)(const ddp_ctx *ctx, int layer); /* 1: the next backward_end of the layer completes its
                                                        gradient */
} ddp__hooks;

/* A graph hangs itself here so that ddp_close can free it. */
typedef struct ddp__owned {
    struct ddp__owned *next;
    void (*destroy)(struct ddp__owned *self);
    uint64_t *passes; /* what random masks depend on, part of a checkpoint; NULL before the build */
    uint64_t model;   /* hash of the operators: a checkpoint is of one model */
    uint64_t dropout; /* hash of places and probabilities: a checkpoint's may be others, the ranks' of a run
                          are equal */
    double most_dropout; /* the largest probability; 0: none */
    double bytes;        /* of this machine's memory: parameters, gradients, activations */
} ddp__owned;

typedef struct ddp__host {
    ddp_allocator allocator;
    ddp_logger log;
    ddp__pool *pool; /* operator threads; NULL = one */
    const ddp__hooks *hooks;
    ddp__owned *owned;          /* destroyed in ddp_close, newest first */
    uint64_t seed;              /* for initialisation and dropout */
    int kernels;                /* ddp_config.kernels, of the operators; 0 = the fastest */
    ddp_error error;            /* the first error of the context; sticky */
    const ddp_backend *backend; /* where layers and activations live; NULL = here */
    void *device;               /* its self */
    const unsigned char *paper; /* [paper_bytes] where nothing is read or written: the layers' memory in its
                                   first half, */
    size_t paper_bytes;         /* what is allocated beside it in the second. NULL = none (src/sim) */
    pid_t process;              /* that opened the context, and has its threads; 0 = any may use it */
} ddp__host;

/* A forked child has the memory of a context and none of its threads: it may hold a lock for ever. h may be
 * NULL. */
static inline int ddp__host_forked(const ddp__host *h) { return h && h->process && h->process != getpid(); }

/* DDP_USAGE in a forked child. */
static inline ddp_status ddp__host_check(const ddp__host *h, ddp_error *err)
{
    if (!ddp__host_forked(h)) return DDP_OK;
    return ddp__fail(err, DDP_USAGE,
                     "process %ld opened this context, and process %ld was forked from it: only ddp_close "
                     "may be called here; open a new context in the child",
                     (long)h->process, (long)getpid());
}

/* Where warnings about what the host has go. */
static inline const ddp_logger *ddp__host_log(const ddp__host *h) { return &h->log; }

static inline int ddp__on_paper(const ddp__host *h, const void *at)
{
    const unsigned char *p = (const unsigned char *)at;

    return h && h->paper && p >= h->paper && p < h->paper + h->paper_bytes;
}

/* Memory of layers and activations: the device's where the host has a backend, else this process's own; h may
 * be NULL. alloc: zeroed, NULL when short or for 0 bytes. Copies are in the order of all work there; download
 * waits. */
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
