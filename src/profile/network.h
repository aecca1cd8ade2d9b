/* A network of devices and the links between them: the input of the placement planners. */
#pragma once

#include "base/status.h"

/* A network. Matrices are row-major with the sender as row. The diagonal is 0 and never read. A network from
 * ddp_network_read or ddp_network_new is freed with ddp_network_free. Planners borrow it. */
typedef struct ddp_network {
    int devices;          /* N */
    int pipelines;        /* D_dp, the replicas of each stage, or 0 if not given */
    int stages;           /* D_pp, or 0 if not given. pipelines x stages = devices. */
    double dp_bytes;      /* c_dp: bytes that the replicas of a stage average per iteration */
    double pp_bytes;      /* c_pp: bytes that one pipeline sends over one hop per iteration, one way */
    double *delay_s;      /* [N x N] one-way delay, seconds */
    double *rate;         /* [N x N] bytes per second */
    double *speed;        /* [N] FLOP/s that a device reaches, or NULL */
    double *memory_bytes; /* [N] or NULL */
    int *group;           /* [N] region or machine of each device, 0..groups-1, or NULL */
    int groups;           /* number of groups. 0 means that group is NULL. */
    char **group_name;    /* [groups] or NULL */
    double *host_rate;    /* [N] bytes per second of a device's own network access in each direction, shared
                             by all its pairs. NULL = no limit. Planners ignore it */
    double *jitter_s;     /* [N x N] largest extra delay of a message beyond delay_s, in seconds, or NULL.
                          Planners ignore it */
    int one_at_a_time;    /* 1 = a device sends to one other device at a time, as the cost of a placement
                          assumes. Planners ignore it */
} ddp_network;

/* ddp_network_read - reads a network from a JSON file.
 *
 *   Members:   `N`, `D_dp`, `D_pp`, `c_pp_bytes`, `c_dp_bytes`, and the matrices `delay_ms` and
 *              `bandwidth_gbps` (10^9 bit/s). The matrices are N x N, or groups x groups with `groups` and
 *              `devices_per_group`
 *   Optional:  `tflops`, `memory_gb` and `host_gbps`, per device or per group; the matrix `jitter_ms`;
 *              `one_at_a_time`
 *   variant    the name of an object in the file ("as_in_code") whose members replace the ones above
 *   out        untouched on error. Otherwise, the caller frees it with ddp_network_free.
 *
 * Errors: DDP_IO, DDP_FORMAT (names the file, place, key and value), DDP_ARG (N is not D_dp x D_pp,
 * unknown variant), DDP_MEMORY. */
DDP_API ddp_status ddp_network_read(const char *path, const char *variant, ddp_network *out, ddp_error *err);

/* ddp_network_write - writes N, D_dp, D_pp, the bytes, both N x N matrices, speeds and memories as JSON. It
 * leaves out the groups and everything that planners ignore. The file is written completely or not at all.
 * Errors: DDP_ARG for a delay or rate out of range, or sizes that do not fit; DDP_IO; DDP_MEMORY. */
DDP_API ddp_status ddp_network_write(const ddp_network *n, const char *path, ddp_error *err);

/* ddp_network_new - creates a network of N devices with all matrices allocated and 0. Speed, memory and
 * groups are NULL. The caller frees it with ddp_network_free. Errors: DDP_ARG for N below 1, DDP_MEMORY. */
DDP_API ddp_status ddp_network_new(int devices, ddp_network *out, ddp_error *err);

/* ddp_network_free - frees a network from ddp_network_new or ddp_network_read. Accepts an all-zero one. */
DDP_API void ddp_network_free(ddp_network *n);

/* ddp_network_check - checks that N >= 1, that delays are finite and >= 0, that rates are finite and > 0 off
 * the diagonal, and that D_dp x D_pp = N if both are given. Pure and safe from any thread. Errors: DDP_ARG,
 * which names the pair and the value. */
DDP_API ddp_status ddp_network_check(const ddp_network *n, ddp_error *err);

/* ddp_network_noise - multiplies the rates of each pair by exp(rate_sigma x) and its delays by
 * exp(delay_sigma y). x and y are standard normal and the same in both directions. Use it to check that a
 * plan is still good if no two links are the same. The same seed gives the same network on every platform,
 * up to the last bit of its exp(). Errors: DDP_ARG for a sigma outside 0..4 or no network; n is then
 * untouched. */
DDP_API ddp_status ddp_network_noise(ddp_network *n, uint64_t seed, double rate_sigma, double delay_sigma,
                                     ddp_error *err);
