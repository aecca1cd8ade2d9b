/* OSP's planner: chooses which layers a parameter server may receive one iteration late, and how many
 * bytes of them. */
#pragma once

#include "plan/osp/rule.h"

/* The fixed shape of the importance sum: elements per chunk, and lanes per chunk. */
enum { DDP__OSP_CHUNK = 4096, DDP__OSP_LANES = 32 };

/* ddp_osp_importance - computes PGP, the importance of one layer: the sum over its n elements of |gradient x
 * parameter|.
 *
 *   gradient   [n] the mean over all workers
 *   parameter  [n] the values before the update with that gradient
 *   mean       if nonzero, the sum is divided by n (the printed formula ranks large layers high)
 *
 * Sums in double, in parts of a fixed shape, so that a GPU gets the same result. Errors: DDP_ARG,
 * DDP_NUMERIC (names the element). Source: OSP (Fu and others), section 4.1.1. */
DDP_API ddp_status ddp_osp_importance(const float *gradient, const float *parameter, size_t n, int mean,
                                      double *out, ddp_error *err);

/* ddp_osp_rank - computes the bitmap GIB: bit l (gib[l / 8] >> l % 8) is 1 if layer l is sent at once (RS),
 * and 0 if its transfer may overlap with the next computation (ICS).
 *
 *   importance  [layers] >= 0
 *   bytes       [layers] >= 0
 *   budget      S(G^u), the most bytes that the deferred layers may have together. 0 defers no layer.
 *   gib         [(layers + 7) / 8] receives the bitmap
 *   deferred    receives the bytes of the 0 bits. May be NULL.
 *
 * Among layers of equal importance the lower index comes first, so all workers get the same bitmap. A
 * layer without bytes is never deferred. The knapsack rule defers the set of least importance whose bytes
 * are between the bytes that the walk rule defers and the budget. The result is exact for up to 32 layers
 * that have bytes. With more, the rule tries all choices of the 32 layers around the break item of the
 * density order, so the result is near the optimum. It never defers more importance than the walk rule,
 * nor than the density rule if that defers at least the bytes of the walk. It takes at most 8 MB and some
 * milliseconds. Outputs are untouched on error. Errors: DDP_ARG (names the layer), DDP_NUMERIC,
 * DDP_MEMORY. */
DDP_API ddp_status ddp_osp_rank(int layers, const double *importance, const double *bytes, double budget,
                                ddp_osp_rule rule, unsigned char *gib, double *deferred, ddp_error *err);

/* ddp_osp_umax - computes the most bytes that ICS can overlap with one computation, at most 0.8 of the
 * model:
 *     b T_c / (N (1 + lr))       (default)
 *     b (1 + lr) T_c / N         (literal: Eq. 5 as printed, in which more packet loss would allow more
 *                                bytes)
 * b is bytes per second of the server in each direction, lr the packet loss rate 0..1, T_c the compute
 * time of an iteration in seconds, and N the number of workers. Errors: DDP_ARG. */
DDP_API ddp_status ddp_osp_umax(double bytes_per_s, double loss_rate, double compute_s, int workers,
                                double model_bytes, int literal, double *out, ddp_error *err);

/* ddp_osp_budget - computes S(G^u) of the next epoch: (1 - loss / first_loss) u_max, clamped to 0..u_max.
 * loss is the loss of the epoch that has just ended, first_loss the loss of the first epoch. So the first two
 * epochs defer no layer. Use 0 until the first epoch ends. Returns 0 if loss is not finite or first_loss is
 * not above 0. Source: OSP, Algorithm 1. */
DDP_API double ddp_osp_budget(double loss, double first_loss, double u_max);
