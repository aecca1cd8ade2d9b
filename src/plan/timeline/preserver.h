/* DeFT's Preserver: estimates how merging k iterations into one update affects convergence. */
#pragma once

#include "plan/timeline/deft.h"

/* Models the loss as a random walk that rebounds at its lowest point: s' = S* + |s - S* - eta Delta|,
 * Delta ~ N(mu, sigma^2 / batch). */
typedef struct ddp_preserver {
    double eta;       /* learning rate, > 0 */
    double mu;        /* mean of Delta: |g|^2, >= 0 */
    double sigma;     /* sqrt(g' Sigma g), with Sigma the covariance of one sample's gradient; >= 0.
                         Estimate: deviation of g . g_w over workers x sqrt(samples per worker) */
    double batch;     /* samples in an update without merging, > 0 */
    double start;     /* s, the current loss, >= target */
    double target;    /* S*, the lowest loss, >= 0. An offset in both losses dilutes the ratio. */
    double tolerance; /* 0 = 0.01, the paper's epsilon */
    int sum;          /* 1 = a merged gradient is the sum of k gradients (k x eta), not their mean */
    int one_sided;    /* 1 = accept every ratio above 1, in which the plan's loss is the lower one */
    int rotations;    /* 1 = judge the sequence by its worst rotation, not by its own order */
} ddp_preserver;

/* Result of the ratio test. */
typedef struct ddp_preserved {
    double expected_base; /* loss after sum(k) updates with batch B */
    double expected_plan; /* loss after one update per k, each with batch k x B */
    double ratio;         /* expected_base / expected_plan */
    int accepted;         /* 1 = the ratio passes the test */
    int retries;          /* set by ddp_preserver_plan: how often the capacity was raised, 0..10 */
} ddp_preserved;

/* ddp_preserver_expect - returns the expected loss after one update from loss s that merges k iterations:
 *     m = s - S* - eta mu,  d = eta sigma / sqrt(k B),  a = m / d
 *     E = m (Phi(a) - Phi(-a)) + d sqrt(2/pi) exp(-a a / 2) + S*       (d = 0: |m| + S*)
 * Errata: the printed E_B contains the random Delta in place of its mean, and calls Phi the distribution
 * of Delta. With this a, Phi is the standard normal distribution. */
DDP_API double ddp_preserver_expect(const ddp_preserver *model, double s, int k);

/* ddp_preserver_test - applies the ratio test to the batch-size sequence k[updates]. Accepts if |ratio -
 * 1| <= tolerance, or with one_sided if ratio >= 1 - tolerance. The expected loss after each update is the
 * start of the next one. The model ignores the delay of updates. Errors: DDP_ARG (names the value),
 * DDP_NUMERIC. */
DDP_API ddp_status ddp_preserver_test(const ddp_preserver *model, const int *k, int updates,
                                      ddp_preserved *out, ddp_error *err);

/* ddp_preserver_plan - calls ddp_plan_delayed with a growing capacity until the test accepts the plan.
 *
 * Each retry multiplies the capacity by 1.1, at most ten times (the paper gives no factor). If no plan
 * passes, the plan with the best ratio is returned with accepted = 0. A retry that cannot be planned is
 * skipped. The caller frees *plan with ddp_delayed_plan_free. Both outputs are untouched on error. Pure and
 * safe from any thread.
 *
 * Source: DeFT section IV-C. Errors: DDP_ARG (names the value), DDP_UNSUPPORTED (no steady period, or too
 * many parts), DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_preserver_plan(const ddp_profile *buckets, const ddp_delayed_options *o,
                                      const ddp_preserver *model, ddp_delayed_plan *plan, ddp_preserved *out,
                                      ddp_error *err);
