/* DeFT's Preserver: the effect on convergence of merging k iterations into one update. */
#pragma once

#include "plan/timeline/deft.h"

/* The loss as a random walk that rebounds at its lowest point:
 * s' = S* + |s - S* - eta Delta|, Delta ~ N(mu, sigma^2 / batch). */
typedef struct ddp_preserver {
    double eta;       /* learning rate, > 0 */
    double mu;        /* mean of Delta: |g|^2, >= 0 */
    double sigma;     /* sqrt(g' Sigma g), Sigma the covariance of one sample's gradient; >= 0.
                       * Estimate: deviation of g . g_w over workers x sqrt(samples of a worker) */
    double batch;     /* samples in an unmerged update, > 0 */
    double start;     /* s, the loss now; >= target */
    double target;    /* S*, the lowest loss, >= 0: an offset in both dilutes the ratio */
    double tolerance; /* 0 = 0.01, the paper's epsilon */
    int sum;          /* a merged gradient is the sum of k (k x eta), not their mean */
    int one_sided;    /* accept every ratio above 1 (the plan's loss is then the lower one) */
    int rotations;    /* judge the sequence by its worst rotation, not as it begins */
} ddp_preserver;

typedef struct ddp_preserved {
    double expected_base; /* loss after sum(k) updates with batch B */
    double expected_plan; /* after one update per k, batch k x B */
    double ratio;         /* base / plan */
    int accepted;
    int retries; /* ddp_preserver_plan: how often the capacity was raised, 0..10 */
} ddp_preserved;

/* ddp_preserver_expect - expected loss after one update from loss s that merges k iterations:
 *     m = s - S* - eta mu,  d = eta sigma / sqrt(k B),  a = m / d
 *     E = m (Phi(a) - Phi(-a)) + d sqrt(2/pi) exp(-a a / 2) + S*       (d = 0: |m| + S*)
 * Errata: the printed E_B has the random Delta where its mean belongs, and calls Phi the distribution of
 * Delta; with this a it is the standard normal one. */
DDP_API double ddp_preserver_expect(const ddp_preserver *model, double s, int k);

/* ddp_preserver_test - the ratio test on the batch-size sequence k[updates]: accepted if |ratio - 1| <=
 * tolerance (one_sided: ratio >= 1 - tolerance). The expectation is fed forward as the next state. The model
 * ignores the delay of updates.
 * Errors: DDP_ARG (names the value), DDP_NUMERIC. */
DDP_API ddp_status ddp_preserver_test(const ddp_preserver *model, const int *k, int updates,
                                      ddp_preserved *out, ddp_error *err);

/* ddp_preserver_plan - ddp_plan_delayed whose capacity grows until the test accepts: by 1.1 a time, at most
 * ten times (the paper gives no factor). If none passes, the plan with the best ratio is returned with
 * accepted = 0; a retry that cannot be planned is passed over. *plan is freed by ddp_delayed_plan_free.
 * Source: DeFT section IV-C. Both outputs are untouched on error. Pure; safe from any thread. */
DDP_API ddp_status ddp_preserver_plan(const ddp_profile *buckets, const ddp_delayed_options *o,
                                      const ddp_preserver *model, ddp_delayed_plan *plan, ddp_preserved *out,
                                      ddp_error *err);
