/* OSP's planner: which layers a parameter server may receive one iteration late, and how much. */
#pragma once

#include "plan/osp/rule.h"

/* Parts of an importance's sum: elements of a chunk, and lanes of each. */
enum { DDP__OSP_CHUNK = 4096, DDP__OSP_LANES = 32 };

/* ddp_osp_importance - PGP of one layer: sum over its n elements of |gradient x parameter|, in double and in
 * parts of a fixed shape, on a GPU as here; mean != 0: divided by n (as printed large layers rank high). The
 * gradient is the mean of all workers, the parameters those before its update. Errors: DDP_ARG, DDP_NUMERIC
 * (names the element). Source: OSP (Fu and others), section 4.1.1. */
DDP_API ddp_status ddp_osp_importance(const float *gradient, const float *parameter, size_t n, int mean,
                                      double *out, ddp_error *err);

/* ddp_osp_rank - the bitmap GIB: bit l (gib[l / 8] >> l % 8) = 1 if layer l is sent at once (RS), 0 if it may
 * travel during the next computation (ICS).
 *
 *   importance [layers] >= 0, bytes [layers] >= 0
 *   budget     S(G^u): the deferred layers together have at most so many bytes; 0 defers nothing
 *   gib        [(layers + 7) / 8]; deferred (may be NULL) receives the bytes of the 0 bits
 *
 * Equal importance: lower index first, the same for all workers. A layer without bytes is never deferred.
 * knapsack defers the set of least importance with bytes from those of the walk to the
 * budget: exactly on up to 32 layers that have bytes; of more, all choices of the 32 around the break of the
 * order by density are tried, so that it is near the optimum, and never defers more importance than the walk,
 * nor than density where that defers the walk's bytes. At most 8 MB and some milliseconds.
 * Outputs are untouched on error. Errors: DDP_ARG (names the layer), DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_osp_rank(int layers, const double *importance, const double *bytes, double budget,
                                ddp_osp_rule rule, unsigned char *gib, double *deferred, ddp_error *err);

/* ddp_osp_umax - the most bytes that ICS can hide behind one computation, at most 0.8 of the model:
 *     b T_c / (N (1 + lr))       (default)
 *     b (1 + lr) T_c / N         (literal: Eq. 5 as printed; more loss would allow more)
 * b bytes per second of the server in each direction, lr the packet loss rate 0..1, T_c the computing time of
 * an iteration, N workers. Errors: DDP_ARG. */
DDP_API ddp_status ddp_osp_umax(double bytes_per_s, double loss_rate, double compute_s, int workers,
                                double model_bytes, int literal, double *out, ddp_error *err);

/* ddp_osp_budget - S(G^u) of the next epoch: (1 - loss / first_loss) u_max within 0..u_max, where loss is
 * that of the epoch just finished and first_loss that of the first one. So the first two epochs defer nothing
 * (before the first is finished use 0). A loss that is not finite, or a first_loss that is not above 0, gives
 * 0. Source: OSP, Algorithm 1. */
DDP_API double ddp_osp_budget(double loss, double first_loss, double u_max);
