/* Averaging between GPUs by NCCL: in place, on its own stream next to the computing stream.
 *
 * The host queues work and never waits for a peer inside a step. The hooks call ddp__nccl_poll, which returns
 * an error if a peer is lost: an error of NCCL, or an average that exceeds the time-out. The caller then uses
 * ddp__nccl_leave(n, 1) to abort the operations in flight, which also block all later work. */
#pragma once

#include <nccl.h>

#include "cuda/runtime.cuh"

/* What an operation does with its arrays. */
typedef enum ddp__nccl_verb { DDP__NCCL_MEAN, DDP__NCCL_SUM, DDP__NCCL_SPREAD } ddp__nccl_verb;

typedef struct ddp__cuda_nccl {
    ddp__cuda *dev;
    ncclComm_t comm; /* NULL with one rank, or if aborted */
    ddp_backend_peers peers;
    ddp_error why; /* the reason of the abort, with code 0 if not aborted */
    cudaStream_t stream;
    cudaEvent_t *ready; /* [slots] the arrays of this slot are final */
    cudaEvent_t *done;  /* [slots] the arrays are averages */
    double *since;      /* [slots] ddp_now() when the average was queued, or 0 if not in flight */
    int slots;
} ddp__cuda_nccl;

/* Converts an NCCL result to a status. ncclInProgress is no error. An error that a peer caused is
 * DDP_PEER_LOST. */
static DDP__UNUSED ddp_status ddp__nccl_failed(ddp__cuda_nccl *n, ncclResult_t r, const char *what,
                                               ddp_error *err)
{
    if (r == ncclSuccess || r == ncclInProgress) return DDP_OK;
    if (r == ncclInvalidUsage && !strcmp(what, "ncclCommInitRankConfig"))
        return ddp__fail(err, DDP_ARG,
                         "NCCL rejects rank %d on GPU %d: the GPU is in use, by another rank or another "
                         "program; give each rank a separate GPU, or use the transport tcp",
                         n->peers.rank, n->dev->device);
    if (r == ncclRemoteError || r == ncclSystemError)
        return ddp__fail(err, DDP_PEER_LOST, "%s: rank %d of %d lost a peer: %s", what, n->peers.rank,
                         n->peers.world, ncclGetErrorString(r));
    return ddp__fail(err, DDP_FAILED, "%s failed on rank %d of %d (GPU %d): %s", what, n->peers.rank,
                     n->peers.world, n->dev->device, ncclGetErrorString(r));
}

/* Waits until the communicator has accepted the queued work, for at most join_timeout_s. Stops early if a
 * peer is known to be lost. */
static DDP__UNUSED ddp_status ddp__nccl_settle(ddp__cuda_nccl *n, const char *what, ddp_error *err)
{
    const double until = ddp_now() + n->peers.join_timeout_s;
    ncclResult_t state = ncclInProgress;

    for (;;) {
        const ncclResult_t r = ncclCommGetAsyncError(n->comm, &state);
        if (r != ncclSuccess) state = r;
        if (state != ncclInProgress) return ddp__nccl_failed(n, state, what, err);
        if (ddp_now() > until)
            return ddp__fail(err, DDP_TIMEOUT,
                             "%s: some of the %d ranks did not connect within %g s; start all ranks, or "
                             "raise the connect time-out",
                             what, n->peers.world, n->peers.join_timeout_s);
        if (n->peers.watch) DDP__TRY(n->peers.watch(n->peers.user, 0, err));
        ddp__sleep_until(ddp_now() + 5e-5);
    }
}

/* Aborts the operations in flight without waiting for a peer, so that the stream continues. All later
 * operations on n return `why`. */
static DDP__UNUSED void ddp__nccl_give_up(ddp__cuda_nccl *n, const ddp_error *why)
{
    if (n->comm) (void)ncclCommAbort(n->comm);
    n->comm = NULL;
    n->why = *why;
}

/* The reason of the abort, or DDP_OK. */
static DDP__UNUSED ddp_status ddp__nccl_why(const ddp__cuda_nccl *n, ddp_error *err)
{
    if (n->why.code && err) *err = n->why;
    return n->why.code;
}

/* 1 if the slot has no average in flight. */
static DDP__UNUSED int ddp__nccl_ended(ddp__cuda_nccl *n, int slot)
{
    if (n->since[slot] <= 0) return 1;
    if (ddp__cuda_asked(cudaEventQuery(n->done[slot])) == cudaErrorNotReady) return 0;
    n->since[slot] = 0;
    return 1;
}

/* Returns the first failure of a peer, without waiting: a failure that another part of the program has seen,
 * an error of NCCL, or an operation older than the time-out. */
static DDP__UNUSED ddp_status ddp__nccl_poll(ddp__cuda_nccl *n, ddp_error *err)
{
    ncclResult_t state = ncclSuccess;
    double oldest = 0;

    DDP__TRY(ddp__nccl_why(n, err));
    for (int i = 0; i < n->slots; i++)
        if (!ddp__nccl_ended(n, i) && (oldest <= 0 || n->since[i] < oldest)) oldest = n->since[i];
    if (n->peers.watch) DDP__TRY(n->peers.watch(n->peers.user, oldest, err));
    if (!n->comm) return DDP_OK;
    DDP__TRY(ddp__nccl_failed(n, ncclCommGetAsyncError(n->comm, &state), "ncclCommGetAsyncError", err));
    DDP__TRY(ddp__nccl_failed(n, state, "averaging over NCCL", err));
    if (oldest > 0 && ddp_now() - oldest > n->peers.op_timeout_s)
        return ddp__fail(
            err, DDP_TIMEOUT,
            "averaging over NCCL: rank %d of %d waited %.1f s for its peers; a peer has stopped or is slow; "
            "if it is slow, raise DREAMDDP_OP_TIMEOUT (now %g s)",
            n->peers.rank, n->peers.world, ddp_now() - oldest, n->peers.op_timeout_s);
    return DDP_OK;
}

/* Waits for the operations in flight and ends the communicator with the peers. Returns 0 if a peer is lost.
 * */
static DDP__UNUSED int ddp__nccl_part(ddp__cuda_nccl *n)
{
    ddp_error why;

    while (ddp__cuda_asked(cudaStreamQuery(n->stream)) == cudaErrorNotReady) {
        if (ddp__nccl_poll(n, &why)) return 0;
        ddp__sleep_until(ddp_now() + 2e-5);
    }
    return !ddp__nccl_failed(n, ncclCommFinalize(n->comm), "ncclCommFinalize", &why) &&
           !ddp__nccl_settle(n, "ncclCommFinalize", &why);
}

/* Frees n, which may be NULL. If on_error is 1, first aborts the operations in flight. */
static DDP__UNUSED void ddp__nccl_leave(ddp__cuda_nccl *n, int on_error)
{
    if (!n) return;
    (void)cudaSetDevice(n->dev->device);
    if (n->comm && !on_error && ddp__nccl_part(n))
        (void)ncclCommDestroy(n->comm);
    else if (n->comm)
        (void)ncclCommAbort(n->comm);
    if (n->stream) (void)cudaStreamSynchronize(n->stream);
    ddp__cuda_events_free(n->ready, n->slots);
    ddp__cuda_events_free(n->done, n->slots);
    if (n->stream) (void)cudaStreamDestroy(n->stream);
    DDP_FREE(n->since);
    DDP_FREE(n);
}

static DDP__UNUSED ddp_status ddp__nccl_slots(ddp__cuda_nccl *n, int slots, ddp_error *err)
{
    ddp__cuda *dev = n->dev;
    int least = 0, greatest = 0;

    n->slots = slots;
    n->ready = ddp__cuda_events(dev, slots, cudaEventDisableTiming);
    n->done = ddp__cuda_events(dev, slots, cudaEventDisableTiming);
    n->since = (double *)ddp__calloc((size_t)slots, sizeof *n->since);
    if (!n->ready || !n->done || !n->since)
        return ddp__fail(err, DDP_MEMORY, "out of memory for the events of %d messages", slots);
    (void)cudaDeviceGetStreamPriorityRange(&least, &greatest);
    (void)DDP__CUDA(dev, cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, greatest));
    return ddp__cuda_status(dev, err);
}

/* Connects to the other ranks (collective). slots is the maximum number of averages in flight. Returns NULL
 * and sets err on failure. Freed by ddp__nccl_leave. */
static DDP__UNUSED ddp__cuda_nccl *ddp__nccl_join(ddp__cuda *dev, const ddp_backend_peers *p, int slots,
                                                  ddp_error *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ddp__cuda_nccl *n = (ddp__cuda_nccl *)ddp__calloc(1, sizeof *n);
    ncclUniqueId id = DDP__ZEROS;
    ncclResult_t r;

    if (!n) {
        (void)ddp__fail(err, DDP_MEMORY, "out of memory for the state of NCCL");
        return NULL;
    }
    n->dev = dev;
    n->peers = *p;
    if (DDP__CUDA(dev, cudaSetDevice(dev->device))) {
        (void)ddp__cuda_status(dev, err);
        goto failed;
    }
    if (ddp__nccl_slots(n, slots, err)) goto failed;
    if (n->peers.world < 2) return n;
    if (n->peers.rank == 0 && ddp__nccl_failed(n, ncclGetUniqueId(&id), "ncclGetUniqueId", err)) goto failed;
    if (p->share(p->user, &id, sizeof id, err)) goto failed;
    config.blocking = 0;
    r = ncclCommInitRankConfig(&n->comm, n->peers.world, id, n->peers.rank, &config);
    if (ddp__nccl_failed(n, r, "ncclCommInitRankConfig", err)) goto failed;
    if (ddp__nccl_settle(n, "ncclCommInitRankConfig", err)) goto failed;
    return n;
failed:
    ddp__nccl_leave(n, 1);
    return NULL;
}

/* Queues one array, in place. */
static DDP__UNUSED ncclResult_t ddp__nccl_array(ddp__cuda_nccl *n, ddp__nccl_verb verb, float *x,
                                                size_t count)
{
    if (verb == DDP__NCCL_SPREAD) return ncclBroadcast(x, x, count, ncclFloat32, 0, n->comm, n->stream);
    return ncclAllReduce(x, x, count, ncclFloat32, verb == DDP__NCCL_SUM ? ncclSum : ncclAvg, n->comm,
                         n->stream);
}

/* Queues an operation that starts when the work queued so far is done. ddp__nccl_finish makes the computing
 * stream wait for it. The arrays become their mean or sum over the ranks, or the arrays of rank 0. */
static DDP__UNUSED ddp_status ddp__nccl_queue(ddp__cuda_nccl *n, int slot, ddp__nccl_verb verb,
                                              float *const *arrays, const size_t *counts, int arrays_count,
                                              ddp_error *err)
{
    ddp__cuda *dev = n->dev;
    ncclResult_t r = ncclSuccess, end = ncclSuccess;

    DDP__TRY(ddp__nccl_why(n, err));
    if (DDP__CUDA(dev, cudaEventRecord(n->ready[slot], dev->stream)) ||
        DDP__CUDA(dev, cudaStreamWaitEvent(n->stream, n->ready[slot], 0)))
        return ddp__cuda_status(dev, err);
    if (n->comm) {
        (void)ncclGroupStart();
        for (int i = 0; i < arrays_count && (r == ncclSuccess || r == ncclInProgress); i++)
            if (counts[i]) r = ddp__nccl_array(n, verb, arrays[i], counts[i]);
        end = ncclGroupEnd();
        DDP__TRY(ddp__nccl_failed(n, r, "ncclAllReduce", err));
        DDP__TRY(ddp__nccl_failed(n, end, "ncclGroupEnd", err));
        /* before NCCL has queued its kernels, the event would complete at once */
        DDP__TRY(ddp__nccl_settle(n, "ncclAllReduce", err));
    }
    n->since[slot] = ddp_now();
    return DDP__CUDA(dev, cudaEventRecord(n->done[slot], n->stream)) ? ddp__cuda_status(dev, err) : DDP_OK;
}

/* Makes later work on the computing stream wait for the slot's operation. Does not block the host. */
static DDP__UNUSED void ddp__nccl_finish(ddp__cuda_nccl *n, int slot)
{
    if (n->since[slot] > 0) (void)DDP__CUDA(n->dev, cudaStreamWaitEvent(n->dev->stream, n->done[slot], 0));
}
