/* Predicts how much loss a strategy costs, and how many more steps recover it. */
#pragma once

#include "base/status.h"
#include "plan/predict.h"
#include "profile/losses.h"

/* A fit to a table of measured losses. The caller of ddp_loss_fit_new owns it and frees it with
 * ddp_loss_fit_free. The penalty of a run is its loss divided by the loss of ssgd with the same workers and
 * steps, minus 1. */
typedef struct ddp_loss_fit {
    const ddp_loss_table *table;    /* borrowed until ddp_loss_fit_free */
    double *penalty;                /* [table->count] */
    double floor, scale, decay;     /* loss of ssgd after N steps: floor + scale x N^-decay */
    double by_period;               /* exponents of the penalty: period, ... */
    double by_steps, by_workers;    /* ... number of steps, and workers */
    double least_steps, most_steps; /* range of the table */
    int least_workers, most_workers;
} ddp_loss_fit;

/* ddp_loss_built_in - returns the table of this library: losses of a GPT of 0.21 million parameters on tiny
 * Shakespeare (docs/results/accuracy.md). Every row of bench/loss_table.csv has its source. A constant. Pure
 * and safe from any thread. */
DDP_API const ddp_loss_table *ddp_loss_built_in(void);

/* ddp_loss_fit_new - fits a table.
 *
 *   table  borrowed until ddp_loss_fit_free. NULL: the built-in table
 *   out    untouched on error. Otherwise, the caller frees it with ddp_loss_fit_free
 *
 * The loss of ssgd is a power law, floor + scale x N^-decay, fitted to the logarithms of the losses. Its
 * floor is 0 unless there are at least three different numbers of steps. If ssgd was measured with several
 * numbers of workers, the fit uses the number with the most different numbers of steps.
 *
 * The exponents are slopes of least squares through the logarithms of penalties of points that differ in only
 * one of the three. Without such points they are 0.5 (period), 0 (steps) and 0 (workers). by_period is at
 * least 0. A penalty below 1e-4 counts as 1e-4.
 *
 * Cost: O(n^2) for n points. Pure and safe from any thread. Errors: DDP_ARG (a point, as
 * ddp_loss_table_check; the loss of ssgd does not decrease with the steps), DDP_MEMORY. */
DDP_API ddp_status ddp_loss_fit_new(const ddp_loss_table *table, ddp_loss_fit *out, ddp_error *err);

/* ddp_loss_fit_free - frees a fit. Accepts an all-zero one. */
DDP_API void ddp_loss_fit_free(ddp_loss_fit *f);

/* ddp_loss_of_ssgd - returns the loss of ssgd after a run of `steps` steps, above 0. Pure and safe from any
 * thread. */
DDP_API double ddp_loss_of_ssgd(const ddp_loss_fit *f, double steps);

/* ddp_loss_penalty - predicts the relative loss increase of a candidate over ssgd after equal steps: 0.05 is
 * 5 % more loss. It is 0 for strategies that are bit-identical to ssgd.
 *
 *   workers  number of workers, at least 1
 *   steps    steps of the whole run, above 0
 *
 * Between measured periods, and between measured numbers of steps, the logarithm of the penalty is linear in
 * the logarithm of the period, and of the steps. Outside of the measured periods, it continues with the
 * exponent of the table. Steps and workers outside of the table count as the nearest ones in the table. A
 * format adds the mean difference between measured points with and without it. A format without a measurement
 * counts as the next coarser one that was measured.
 *
 * *out is unchanged on error. Pure and safe from any thread. Errors: DDP_ARG for a value out of range or an
 * unknown strategy; DDP_UNSUPPORTED if the table has no point of this strategy, or of this format or a
 * coarser one. */
DDP_API ddp_status ddp_loss_penalty(const ddp_loss_fit *f, const ddp_candidate *c, int workers, double steps,
                                    double *out, ddp_error *err);

/* ddp_loss_steps - predicts how many steps a candidate needs until it has the loss of ssgd after `steps`
 * steps. It is the smallest M with (1 + penalty(M)) x ssgd(M) <= ssgd(steps), or DBL_MAX if that is more than
 * 1000 times `steps`.
 *
 * *out is unchanged on error. Pure and safe from any thread. Errors: DDP_ARG and DDP_UNSUPPORTED, as
 * ddp_loss_penalty. */
DDP_API ddp_status ddp_loss_steps(const ddp_loss_fit *f, const ddp_candidate *c, int workers, double steps,
                                  double *out, ddp_error *err);
