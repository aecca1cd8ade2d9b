/* Devices and the links between them: what the placement planners read. */
#pragma once

#include "base/status.h"

/* Matrices are row-major, row = sender; the diagonal is 0 and never read. Owned by ddp_network_free when they
 * came from ddp_network_read or ddp_network_new; borrowed by planners. */
typedef struct ddp_network {
    int devices;          /* N */
    int pipelines;        /* D_dp replicas, or 0 where the file says nothing */
    int stages;           /* D_pp, or 0; pipelines x stages = devices */
    double dp_bytes;      /* c_dp: what a stage's replicas average in an iteration */
    double pp_bytes;      /* c_pp: what one pipeline sends over one hop in an iteration, one way */
    double *delay_s;      /* [N x N] one-way delay */
    double *rate;         /* [N x N] bytes per second */
    double *speed;        /* [N] FLOP/s that a device reaches, or NULL */
    double *memory_bytes; /* [N] or NULL */
    int *group;           /* [N] region or machine of a device, 0..groups-1, or NULL */
    int groups;
    char **group_name; /* [groups] or NULL */
    double *host_rate; /* [N] bytes per second of a device's own access in each direction,
                             shared by all its pairs; NULL = no such limit. Planners ignore it */
    double *jitter_s;  /* [N x N] most that a message is late beyond delay_s, or NULL; ignored likewise */
    int one_at_a_time; /* 1: a device sends to one other at a time, as the placement's cost has it.
                              Planners ignore it */
} ddp_network;

/* ddp_network_read - a network from JSON: `N`, `D_dp`, `D_pp`, `c_pp_bytes`, `c_dp_bytes`, and either groups
 * x groups matrices with `groups` and `devices_per_group`, or N x N matrices, of `delay_ms` and
 * `bandwidth_gbps` (10^9 bit/s); optional per device or per group: `tflops`, `memory_gb`, `host_gbps`, and a
 * matrix `jitter_ms`; `one_at_a_time`. A variant ("as_in_code") names an object whose members replace those
 * above. *out is untouched on error, else freed by ddp_network_free.
 * Errors: DDP_IO, DDP_FORMAT (names file, place, key and value), DDP_ARG (N is not D_dp x D_pp, unknown
 * variant), DDP_MEMORY. */
DDP_API ddp_status ddp_network_read(const char *path, const char *variant, ddp_network *out, ddp_error *err);

/* ddp_network_write - N, D_dp, D_pp, the bytes, both matrices N x N, speeds and memories; groups and what
 * planners ignore are left out. The file appears whole or not at all. Errors: DDP_ARG (ddp_network_check),
 * DDP_IO, DDP_MEMORY. */
DDP_API ddp_status ddp_network_write(const ddp_network *n, const char *path, ddp_error *err);

/* ddp_network_new - N devices, all matrices allocated and 0, speed, memory and groups NULL. ddp_network_free
 * - frees what ddp_network_new and ddp_network_read made; all-zero is fine. ddp_network_check - DDP_OK if N
 * >= 1, delays are finite and >= 0, rates finite and > 0 off the diagonal, D_dp x D_pp = N where both are
 * given; the error names the pair and the value. */
DDP_API ddp_status ddp_network_new(int devices, ddp_network *out, ddp_error *err);
DDP_API void ddp_network_free(ddp_network *n);
DDP_API ddp_status ddp_network_check(const ddp_network *n, ddp_error *err);

/* ddp_network_noise - multiplies each pair's rates by exp(rate_sigma x), its delays by exp(delay_sigma y), x
 * and y standard normal and the same in both directions: is a plan still good where no two links are the
 * same? The same seed gives the same network on every platform up to the last bit of its exp.
 * Errors: DDP_ARG for a sigma outside 0..4 or no network, n untouched. */
DDP_API ddp_status ddp_network_noise(ddp_network *n, uint64_t seed, double rate_sigma, double delay_sigma,
                                     ddp_error *err);
