/* What a report is made of: plain data, filled by programs, read by every writer of src/report. */
#ifndef DDP_REPORT_DATA_H
#define DDP_REPORT_DATA_H

#include "base/config.h"
#include "profile/trace.h"

/* One training step of one run. */
typedef struct ddp_report_step {
    double  time_s;     /* since the start of the run, at the end of the step */
    double  loss;       /* NAN: not known */
    int64_t bytes;      /* sent by one worker since the start of the run */
    double  divergence; /* Gamma, measured where something was averaged in the step; NAN: not */
} ddp_report_step;

/* What one worker did: its spans in any order, ddp_now() seconds. */
typedef struct ddp_report_worker {
    const ddp_span *spans;
    int             count;
} ddp_report_worker;

/* One layer of the model, in forward order. Unknown costs are NAN. */
typedef struct ddp_report_layer {
    const char *name; /* NULL: shown by its index */
    double      params;
    double      backward_s;
    double      comm_s; /* how long averaging it occupies the link */
} ddp_report_layer;

/* Something that changed during a run: ddp_note_text and ddp_note_name say it. */
typedef struct ddp_report_note {
    double      time_s; /* since the start of the run */
    long        step;
    const char *kind;   /* "lost" */
    const char *text;   /* "rank 2 was lost, 3 workers" */
} ddp_report_note;

/* One strategy. Unknown figures are NAN, unknown counts 0, unknown texts NULL. */
typedef struct ddp_report_run {
    const char *strategy;
    double      step_ms;
    double      hidden_pct; /* 0..100 */
    double      predicted_step_ms, predicted_hidden_pct;
    int64_t     bytes_sent;     /* per worker; -1 unknown */
    double      time_to_loss_s; /* until ddp_report_data.target_loss; NAN: not reached */
    double      final_loss;
    const char *param_hash;
    int         slowest_rank;   /* whose computing takes longest ... */
    double      slow_ratio;     /* ... against the median; 0 = not known */
    long        replans;        /* the plan followed a link that had changed so many times */

    const ddp_report_step *steps; /* [step_count] */
    int                    step_count;

    int                  period;           /* H; 0 = the run has no plan */
    const int *step_of;        /* [layer_count] step 0..H-1 that averages the layer, or NULL */
    const unsigned char *fill; /* [H x layer_count] 1 = averaged once more there, or NULL */
    const double        *layer_divergence; /* [layer_count] mean Gamma per layer, or NULL */

    const ddp_report_note *notes; /* [note_count], in the order of their times */
    int                    note_count;

    const ddp_report_worker *workers; /* [worker_count] */
    int                      worker_count;
    double                   window_begin_s, window_end_s; /* the part drawn; equal = everything */
} ddp_report_run;

/* All pointers are borrowed for the length of a call. All-zero is a valid, empty report. */
typedef struct ddp_report_data {
    const char *title, *command, *version, *host, *net, *model; /* NULL = left out */
    uint64_t    seed;
    int         workers;
    double      target_loss; /* the common loss that time_to_loss_s is about; NAN = none */

    const ddp_report_layer *layers; /* [layer_count] */
    int                     layer_count;
    const ddp_report_run   *runs; /* [run_count]; ratios are against the run called "ssgd" */
    int                     run_count;
} ddp_report_data;

#endif /* DDP_REPORT_DATA_H */
