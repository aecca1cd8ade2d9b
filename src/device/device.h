/* Device layers: copies through host memory, or device-to-device messages. */
#pragma once

#include "context/context.h"
#include "exchange/collective.h"

/* The longest transfers that links are probed with: at most so many times as many floats. */
enum { DDP__PROBE_FLOATS = 1024, DDP__PROBE_MOST = 1024 };

/* Opens the backend of the configuration, if it names one: before the first message. */
DDP_LIB ddp_status ddp__device_open(ddp_ctx *d, ddp_error *err);
/* When the layers are known: the stager, with room for a pipeline's messages, or the devices' own network,
 * and the times. Collective. */
DDP_LIB ddp_status ddp__device_start(ddp_ctx *d, int edge_messages, size_t edge_bytes, ddp_error *err);
/* A step has run: kernels are there. */
DDP_LIB void ddp__device_loaded(ddp_ctx *d);
/* stop: before the engine ends; close: behind all else. */
DDP_LIB void ddp__device_stop(ddp_ctx *d);
DDP_LIB void ddp__device_close(ddp_ctx *d);
/* First failure of the device, its stager or its network, without waiting. */
DDP_LIB ddp_status ddp__device_check(ddp_ctx *d, ddp_error *err);
/* Waits for all that was queued on the device; its times are then known. */
DDP_LIB ddp_status ddp__device_wait(ddp_ctx *d, ddp_error *err);

/* ---- from device to device ---- */

struct ddp__nccl {
    const ddp_sites *site;          /* NULL = one level */
    struct ddp__crossing *crossing; /* [slots] and what each averages */
    int slots;
    int64_t messages, bytes; /* averaged so far; no headers are known */
    double left_s;           /* when a rank was first seen to have left; 0 = none has */
    float *zeros;            /* [DDP__PROBE_FLOATS] on the device, what the link is probed with */
};

/* The part of a context that belongs to src/device. */
struct ddp__gpu {
    struct ddp__stager *stager; /* of a device's messages; NULL = they are here */
    int loaded, joined; /* a step has run on the device: its kernels are there; it has a network of its own */
    struct ddp__nccl *nccl; /* what is sent over that */
};
/* 0: out of memory. */
DDP_LIB int ddp__gpu_open(ddp_ctx *d);
DDP_LIB int ddp__has_nccl(const ddp_ctx *d); /* averages go from device to device */
DDP_LIB int ddp__has_stager(const ddp_ctx *d);
/* What went from device to device so far, for link 0. */
DDP_LIB void ddp__nccl_stats(const ddp_ctx *d, int64_t *messages, int64_t *bytes);
DDP_LIB float *ddp__nccl_zeros(const ddp_ctx *d); /* [DDP__PROBE_FLOATS] on the device */

/* Whether a message over a layer's memory goes this way. Tickets of such messages are below -1. */
DDP_LIB int ddp__nccl_takes(const ddp_ctx *d, const ddp_message *m);
DDP_LIB ddp_status ddp__nccl_post(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err);
/* The device's work that is queued from now on waits until the message is done. */
DDP_LIB ddp_status ddp__nccl_hold(ddp_ctx *d, long ticket, ddp_error *err);
