/* Connects a context to a device: copies through host memory, or device-to-device messages. */
#pragma once

#include "context/context.h"
#include "exchange/collective.h"

/* The longest transfer that probes a link has DDP__PROBE_MOST times DDP__PROBE_FLOATS floats. */
enum { DDP__PROBE_FLOATS = 1024, DDP__PROBE_MOST = 1024 };

/* Opens the backend of the configuration, if it names one. Call it before the first message. */
DDP_LIB ddp_status ddp__device_open(ddp_ctx *d, ddp_error *err);
/* Opens the stager, with space for a pipeline's messages, or the devices' own network, and the clock. Call it
 * when the layers are known. Collective. */
DDP_LIB ddp_status ddp__device_start(ddp_ctx *d, int edge_messages, size_t edge_bytes, ddp_error *err);
/* Records that a step has run, so that the kernels are loaded. */
DDP_LIB void ddp__device_loaded(ddp_ctx *d);
/* Call stop before the engine ends, and close after everything else. */
DDP_LIB void ddp__device_stop(ddp_ctx *d);
DDP_LIB void ddp__device_close(ddp_ctx *d);
/* Returns the first failure of the device, its stager or its network, without waiting. */
DDP_LIB ddp_status ddp__device_check(ddp_ctx *d, ddp_error *err);
/* Waits for all work queued on the device. Its times are then known. */
DDP_LIB ddp_status ddp__device_wait(ddp_ctx *d, ddp_error *err);

/* ---- from device to device ---- */

struct ddp__nccl {
    const ddp_sites *site;          /* NULL if averages are flat */
    struct ddp__crossing *crossing; /* [slots] averages */
    int slots;
    int64_t messages, bytes; /* averaged so far, without headers, whose size is unknown */
    double left_s;           /* time at which a rank was first seen to have left. 0 if no rank has left. */
    float *zeros;            /* [DDP__PROBE_FLOATS] in device memory, the values of link probes */
};

/* The part of a context that belongs to src/device. */
struct ddp__gpu {
    struct ddp__stager *stager; /* messages of a device through host memory, or NULL if the layers are in host
                                   memory */
    int loaded, joined;     /* a step has run, so the kernels are loaded. The device has its own network. */
    struct ddp__nccl *nccl; /* state of that network */
};
/* Allocates the part. Returns 0 if memory is short. */
DDP_LIB int ddp__gpu_open(ddp_ctx *d);
DDP_LIB int ddp__has_nccl(const ddp_ctx *d); /* 1: averages go from device to device */
DDP_LIB int ddp__has_stager(const ddp_ctx *d);
/* Returns messages and bytes sent from device to device so far, for link 0. */
DDP_LIB void ddp__nccl_stats(const ddp_ctx *d, int64_t *messages, int64_t *bytes);
DDP_LIB float *ddp__nccl_zeros(const ddp_ctx *d); /* [DDP__PROBE_FLOATS] in device memory */

/* Returns 1 if a message over a layer's memory goes from device to device. Tickets of such messages are below
 * -1. */
DDP_LIB int ddp__nccl_takes(const ddp_ctx *d, const ddp_message *m);
DDP_LIB ddp_status ddp__nccl_post(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err);
/* Device work that is queued from now on waits until the message is done. */
DDP_LIB ddp_status ddp__nccl_hold(ddp_ctx *d, long ticket, ddp_error *err);
