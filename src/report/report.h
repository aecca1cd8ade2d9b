/* Reports of runs: plain data that programs fill, and what is made of it: a table, an HTML page, a trace,
 * JSON lines. */
#pragma once

#include <stdio.h>

#include "pipe/schedule.h"
#include "profile/trace.h"

/* One training step of one run. */
typedef struct ddp_report_step {
    double time_s;     /* since the start of the run, at the end of the step */
    double loss;       /* NAN: not known */
    int64_t bytes;     /* sent by one worker since the start of the run */
    double divergence; /* Gamma, measured where something was averaged in the step; NAN: not */
} ddp_report_step;

/* What one worker did: its spans in any order, ddp_now() seconds. */
typedef struct ddp_report_worker {
    const ddp_span *spans;
    int count;
    const ddp_pipeline_slot *slot; /* [slots] of ddp_pipe_lanes, where it holds a stage: one step */
    int slots;
    int pipeline; /* of that stage */
} ddp_report_worker;

/* One layer of the model, in forward order. Unknown costs are NAN. */
typedef struct ddp_report_layer {
    const char *name; /* NULL: shown by its index */
    double params;
    double backward_s;
    double comm_s; /* how long averaging it occupies the link */
} ddp_report_layer;

/* Something that changed during a run: ddp_note_text and ddp_note_name say it. */
typedef struct ddp_report_note {
    double time_s; /* since the start of the run */
    long step;
    const char *kind; /* "lost" */
    const char *text; /* "rank 2 was lost, 3 workers" */
} ddp_report_note;

/* One strategy. Unknown figures are NAN, unknown counts 0, unknown texts NULL. */
typedef struct ddp_report_run {
    const char *strategy;
    double step_ms;
    double hidden_pct; /* 0..100 */
    double predicted_step_ms, predicted_hidden_pct;
    int64_t bytes_sent;    /* per worker; -1 unknown */
    double time_to_loss_s; /* until ddp_report_data.target_loss; NAN: not reached */
    double final_loss;
    const char *param_hash;
    int slowest_rank;  /* whose computing takes longest ... */
    double slow_ratio; /* ... against the median; 0 = not known */
    long replans;      /* the plan followed a link that had changed so many times */

    const ddp_report_step *steps; /* [step_count] */
    int step_count;

    int period;                     /* H; 0 = the run has no plan */
    const int *step_of;             /* [layer_count] step 0..H-1 that averages the layer, or NULL */
    const unsigned char *fill;      /* [H x layer_count] 1 = averaged once more there, or NULL */
    const double *layer_divergence; /* [layer_count] mean Gamma per layer, or NULL */

    const ddp_report_note *notes; /* [note_count], in the order of their times */
    int note_count;

    const ddp_report_worker *workers; /* [worker_count] */
    int worker_count;
    double window_begin_s, window_end_s; /* the part drawn; equal = everything */

    const char *schedule; /* of a pipeline: "1f1b"; NULL = none */
    int stages;
} ddp_report_run;

/* All pointers are borrowed for the length of a call. All-zero is a valid, empty report. */
typedef struct ddp_report_data {
    const char *title, *command, *version, *host, *net, *model; /* NULL = left out */
    uint64_t seed;
    int workers;
    double target_loss; /* the common loss that time_to_loss_s is about; NAN = none */

    const ddp_report_layer *layers; /* [layer_count] */
    int layer_count;
    const ddp_report_run *runs; /* [run_count]; ratios are against the run called "ssgd" */
    int run_count;
} ddp_report_data;

/* ---- a table, on a FILE that the program chooses ---- */

/* ddp_report_table - aligned columns, one row per run: strategy, step ms, step time of ssgd over
 * this run's, seconds to the common loss, MB (1e6 bytes) sent per worker, hidden communication %,
 * final loss; `-` where a figure is not known. Errors: DDP_MEMORY, DDP_IO. */
DDP_API ddp_status ddp_report_table(const ddp_report_data *d, FILE *out, ddp_error *err);

/* ---- files ---- */

/* ddp_report_html - a self-contained page: no script, nothing fetched, light and dark.
 *
 * Facts of the run, the summary table, the lanes of computing and communication of every run on
 * one time scale, loss against time and against bytes sent, divergence against steps, the layers
 * with the step of the period that averages each, prediction beside measurement. What the data
 * lacks is left out. Texts may hold anything: they are escaped.
 *
 * The page is built in memory and written to a temporary name, then renamed: on failure PATH is
 * untouched. Safe from any thread. Errors: DDP_MEMORY, DDP_IO (names the path and the reason). */
DDP_API ddp_status ddp_report_html(const ddp_report_data *d, const char *path, ddp_error *err);

/* One step of a pipeline, played (ddp_pipeline_time) or measured. Borrowed. */
typedef struct ddp_report_pipeline {
    const char *name; /* "1f1b" */
    int stages;
    const ddp_pipeline_slot *slot; /* [slots] in any order */
    int slots;
    double begin_s; /* when the step begins, on the clock of the slots */
    double step_s, bubble_pct;
} ddp_report_pipeline;

/* ddp_report_pipelines - writes an SVG of steps below each other on one time scale: per stage three lanes,
 * receiving, computing and sending. Errors: DDP_MEMORY, DDP_IO. */
DDP_API ddp_status ddp_report_pipelines(const ddp_report_pipeline *p, int count, FILE *out, ddp_error *err);

/* ddp_report_trace - a Chrome trace, which ui.perfetto.dev and chrome://tracing open: every
 * finished span of every run (not only the window) in the array form.
 *
 * A worker of a run is a process, "dreamddp rank 0", numbered 1 + rank + 1000 x run (more where a
 * run has more workers); its threads are "compute" and "communication", the latter several times
 * where transfers overlap, and where it holds a stage of a pipeline, of one step, "receive", "stage" and
 * "send". One "X" event per span: name = layer or kind, cat = kind, ts and dur in microseconds, args step,
 * layer, bytes. Each run starts at 0, so that runs lie side by side.
 *
 * Written to a temporary name, then renamed: on failure PATH is untouched. Errors: DDP_MEMORY,
 * DDP_IO (names the path and the reason). Safe from any thread. */
DDP_API ddp_status ddp_report_trace(const ddp_report_data *d, const char *path, ddp_error *err);

/* ---- JSON lines: one object per line, to a file that appears only when it is complete ---- */

/* A writer. Errors are sticky: after the first one nothing more is written, and ddp_jsonl_close
 * returns it. A NULL writer is silent: a program without --json needs no ifs. One thread. */
typedef struct ddp_jsonl ddp_jsonl;

/* ddp_jsonl_open - writes to PATH.tmp.PID, which ddp_jsonl_close renames to PATH; something at
 * PATH that is no regular file (/dev/stdout, a pipe) is written directly. NULL and *err on failure.
 * ddp_jsonl_stream - writes each line to out (borrowed, flushed after each line): stdout, say.
 *
 * ddp_jsonl_close - finishes and frees; returns the first error, and leaves no file then.
 * ddp_jsonl_abandon - frees and leaves no file: for runs that were interrupted. */
DDP_API ddp_jsonl *ddp_jsonl_open(const char *path, ddp_error *err);
DDP_API ddp_jsonl *ddp_jsonl_stream(FILE *out, ddp_error *err);
DDP_API ddp_status ddp_jsonl_close(ddp_jsonl *j, ddp_error *err);
DDP_API void ddp_jsonl_abandon(ddp_jsonl *j);

/* ddp_jsonl_event - begins a line, {"event":"name"; NULL = a plain object without "event".
 * Then members; inside an array key is NULL (and is ignored).
 *   string   NULL gives null            integer   exact
 *   number   round-trips; NaN and infinities give null
 *   array, object   opens a nested value, ended by ddp_jsonl_up (at most 30 deep)
 *   integers   a whole array at once
 * ddp_jsonl_end - closes what is open and writes the whole line at once. */
DDP_API void ddp_jsonl_event(ddp_jsonl *j, const char *name);
DDP_API void ddp_jsonl_string(ddp_jsonl *j, const char *key, const char *value);
DDP_API void ddp_jsonl_integer(ddp_jsonl *j, const char *key, int64_t value);
DDP_API void ddp_jsonl_number(ddp_jsonl *j, const char *key, double value);
DDP_API void ddp_jsonl_array(ddp_jsonl *j, const char *key);
DDP_API void ddp_jsonl_object(ddp_jsonl *j, const char *key);
DDP_API void ddp_jsonl_up(ddp_jsonl *j);
DDP_API void ddp_jsonl_integers(ddp_jsonl *j, const char *key, const int *values, int count);
DDP_API void ddp_jsonl_end(ddp_jsonl *j);
