/* The link model alpha + beta x bytes from measured transfers. */
#ifndef DDP_PROFILE_LINKFIT_H
#define DDP_PROFILE_LINKFIT_H

#include "base/status.h"

/* Averaging n bytes over all ranks: occupies the link for beta_s * n, ends alpha_s later. */
typedef struct ddp_link {
    double alpha_s;
    double beta_s;
} ddp_link;

/* A model that follows the link: least squares over transfers that fade by half every `half_life` of them. All-zero
 * until ddp_linkfit_start. */
typedef struct ddp_linkfit {
    ddp_link link;                   /* the current estimate */
    double   half_life;              /* in transfers */
    double   n, x, y, xx, xy;        /* faded, weighted sums of 1, bytes, seconds, products */
} ddp_linkfit;

/* ddp_link_fit - alpha, beta >= 0 from n transfers on an otherwise idle link (seconds from start to completion).
 * Interference only delays, so only the fastest transfer of each size counts; squares of relative errors are minimised,
 * so that short transfers decide alpha. One size alone gives alpha 0. *out is untouched on error.
 * Errors: DDP_ARG (no sample; negative or not finite; nothing longer than 0 bytes), DDP_MEMORY. */
DDP_API ddp_status ddp_link_fit(const double *bytes, const double *seconds, int n, ddp_link *out, ddp_error *err);

/* ddp_linkfit_start - begin with link as if it had been seen in `half_life` transfers between 0 and typical_bytes.
 * ddp_linkfit_add - one real transfer; what is not finite or not positive is ignored. Neither allocates. */
DDP_API void ddp_linkfit_start(ddp_linkfit *f, ddp_link link, double typical_bytes, double half_life);
DDP_API void ddp_linkfit_add(ddp_linkfit *f, double bytes, double seconds);

/* ddp_link_drift - how much longer the n messages take now than then, relative: 0.25 = a quarter longer, -0.5 = half; 0
 * if they took no time then. Re-plan when it leaves +-0.2. */
DDP_API double ddp_link_drift(ddp_link then, ddp_link now, const double *bytes, int n);

#endif /* DDP_PROFILE_LINKFIT_H */
