/* Chooses the strategy that reaches a given loss soonest, from the predicted step time of each candidate and
 * the loss that it costs. */
#pragma once

#include "base/status.h"
#include "plan/loss.h"
#include "plan/predict.h"

/* ddp_choice_options.loss_budget: only strategies that are bit-identical to ssgd. 0 is the default budget. */
#define DDP_LOSS_EXACT (-1.0)

/* Options of ddp_choose. All-zero except profile and workers selects the defaults. */
typedef struct ddp_choice_options {
    const ddp_profile *profile; /* costs of the layers, as for ddp_predict_step. Borrowed */
    int workers;                /* number of workers, at least 2 */
    double rate;                /* bytes per second of each worker's link. Replaces the transfer times of the
                                   profile, as ddp_link_average (default: 0 = the profile has them) */
    double delay_s;             /* one-way delay of a link in seconds, used with rate (default: 0) */
    int period;                 /* H in steps: only candidates with this period, and those without one.
                                   Candidates that differ in the period only are the same one then (default: 0
                                   = all periods) */
    double steps;               /* N, the steps of the program's own run (default: 1000) */
    double loss_budget;         /* largest predicted relative loss increase after N steps, 0 to 1, or
                                   DDP_LOSS_EXACT (default: 0.05) */
    const ddp_loss_table *losses;   /* measured losses. Borrowed (default: ddp_loss_built_in) */
    const ddp_candidate *candidate; /* [candidates] Borrowed (default: ddp_choice_candidates) */
    int candidates;                 /* number of candidates (default: 0) */
} ddp_choice_options;

/* A candidate with its predictions. */
typedef struct ddp_choice_row {
    ddp_candidate candidate; /* strategy is borrowed from the options, or a constant */
    double step_s;           /* predicted seconds of a step */
    double sent_bytes;       /* bytes that a worker sends per step */
    double penalty;          /* predicted relative loss increase after N steps */
    double steps;            /* steps to the loss that ssgd has after N steps, or DBL_MAX */
    double seconds;          /* seconds to that loss, or DBL_MAX */
    int allowed;             /* 1 if the penalty is within the budget */
} ddp_choice_row;

/* A choice. The caller of ddp_choose owns it and frees it with ddp_choice_free. */
typedef struct ddp_choice {
    int count;           /* number of rows */
    ddp_choice_row *row; /* [count] allowed candidates first, then by seconds */
    int chosen;          /* index of the chosen row */
    int runner_up;    /* index of the best other row that is allowed, or -1. It has another strategy than the
                            chosen row, if there is one */
    double ssgd_s;    /* predicted seconds of N steps of ssgd */
    char reason[400]; /* one sentence with the figures */
} ddp_choice;

/* ddp_choice_candidates - returns the default candidates: wfbp; dreamddp with H of 2 to 50, in f32, bf16 and
 * int8; diloco with H of 5 to 100, with and without overlap "stream", in f32, bf16, int8 and int4. Constants.
 * *count receives their number. Pure and safe from any thread. */
DDP_API const ddp_candidate *ddp_choice_candidates(int *count);

/* ddp_choose - chooses the candidate with the least predicted seconds until training has the loss that ssgd
 * has after N steps: its steps to that loss (ddp_loss_steps) times its step time (ddp_predict_step). A
 * candidate may take more than N steps, but its predicted loss increase after N steps is at most loss_budget.
 * A candidate that is not bit-identical to ssgd is chosen only if its seconds are at least 5 % below those of
 * the best bit-identical candidate. Equal candidates: the earlier one in the list. Candidates without a
 * measured loss (DDP_UNSUPPORTED of ddp_loss_penalty) are left out.
 *
 * *out is overwritten, not freed. Unchanged on error, otherwise the caller frees it with ddp_choice_free.
 * Pure and safe from any thread. Errors: DDP_ARG (NULL; a value out of range; a candidate that
 * ddp_predict_step rejects), DDP_UNSUPPORTED if no candidate within the budget reaches the loss,
 * DDP_NUMERIC, DDP_MEMORY. */
DDP_API ddp_status ddp_choose(const ddp_choice_options *o, ddp_choice *out, ddp_error *err);

/* ddp_choice_free - frees the rows of a choice. Accepts an all-zero one. */
DDP_API void ddp_choice_free(ddp_choice *c);

/* ddp_candidate_options - writes the settings of a candidate as options of the trainers, without the
 * strategy: "--overlap stream --wire int4 --period 50", or "". Returns the length of the whole text. It is
 * cut if it does not fit in `room` bytes. Pure and safe from any thread. */
DDP_API size_t ddp_candidate_options(const ddp_candidate *c, char *out, size_t room);
