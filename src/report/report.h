/* Reports of runs: plain data that programs fill in, and the output formats: a table, an HTML page, a trace,
 * and JSON lines. */
#pragma once

#include <stdio.h>

#include "pipe/schedule.h"
#include "profile/trace.h"

/* One training step of one run. */
typedef struct ddp_report_step {
    double time_s;     /* at the end of the step, since the start of the run */
    double loss;       /* NAN = unknown */
    int64_t bytes;     /* sent by one worker since the start of the run */
    double divergence; /* Gamma, in steps that averaged something, or NAN if not measured */
} ddp_report_step;

/* The spans of one worker, in any order, in seconds of ddp_now(). */
typedef struct ddp_report_worker {
    const ddp_span *spans;         /* [count] */
    int count;                     /* number of spans */
    const ddp_pipeline_slot *slot; /* [slots] of ddp_pipe_lanes for one step, if the worker has a pipeline
                                      stage */
    int slots;
    int pipeline; /* the pipeline of that stage */
} ddp_report_worker;

/* One layer of the model, in forward order. Unknown costs are NAN. */
typedef struct ddp_report_layer {
    const char *name;  /* NULL = shown by its index */
    double params;     /* number of parameters */
    double backward_s; /* seconds of its backward */
    double comm_s;     /* time for which averaging it occupies the link */
} ddp_report_layer;

/* Something that changed during a run. ddp_note_text and ddp_note_name write it. */
typedef struct ddp_report_note {
    double time_s;    /* since the start of the run */
    long step;        /* completed steps at that time */
    const char *kind; /* "lost" */
    const char *text; /* "rank 2 was lost, 3 workers" */
} ddp_report_note;

/* One run of one strategy. Unknown numbers are NAN, unknown counts 0, unknown strings NULL. */
typedef struct ddp_report_run {
    const char *strategy;                           /* name of the strategy */
    double step_ms;                                 /* mean step time, in milliseconds */
    double hidden_pct;                              /* 0..100 */
    double predicted_step_ms, predicted_hidden_pct; /* the same by the plan */
    int64_t bytes_sent;                             /* per worker, or -1 if unknown */
    double time_to_loss_s;  /* time until ddp_report_data.target_loss, or NAN if not reached */
    double final_loss;      /* last loss of the run */
    const char *param_hash; /* hash of the final parameters */
    int slowest_rank;       /* the rank with the longest compute time ... */
    double slow_ratio;      /* ... and its ratio to the median, or 0 if unknown */
    long replans;           /* number of times the plan was recomputed because a link had changed */

    const ddp_report_step *steps; /* [step_count] */
    int step_count;               /* number of steps */

    int period;                     /* H. 0 means that the run has no plan. */
    const int *step_of;             /* [layer_count] step 0..H-1 that averages each layer, or NULL */
    const unsigned char *fill;      /* [H x layer_count] 1 = the layer is averaged once more in that step,
                                       or NULL */
    const double *layer_divergence; /* [layer_count] mean Gamma per layer, or NULL */

    const ddp_report_note *notes; /* [note_count], in order of time */
    int note_count;               /* number of notes */

    const ddp_report_worker *workers;    /* [worker_count] */
    int worker_count;                    /* number of workers */
    double window_begin_s, window_end_s; /* the part that is drawn. Equal = the whole run. */

    const char *schedule; /* schedule of a pipeline, such as "1f1b", or NULL without a pipeline */
    int stages;           /* number of pipeline stages, or 0 without a pipeline */
} ddp_report_run;

/* The data of a report. All pointers are borrowed for the duration of a call. All-zero is a valid, empty
 * report. */
typedef struct ddp_report_data {
    const char *title, *command, *version, *host, *net, *model; /* NULL = left out */
    uint64_t seed;                                              /* seed of the runs */
    int workers;                                                /* number of workers */
    double target_loss; /* the common loss of time_to_loss_s, or NAN if there is none */

    const ddp_report_layer *layers; /* [layer_count] */
    int layer_count;                /* number of layers */
    const ddp_report_run *runs;     /* [run_count]. Ratios are relative to the run named "ssgd". */
    int run_count;                  /* number of runs */
} ddp_report_data;

/* ---- a table, written to a FILE of the program ---- */

/* ddp_report_table - writes aligned columns, one row per run: strategy, step ms, step time of ssgd divided
 * by the step time of the run, seconds to the common loss, MB (1e6 bytes) sent per worker, hidden
 * communication in %, final loss. An unknown number is `-`. Errors: DDP_MEMORY, DDP_IO. */
DDP_API ddp_status ddp_report_table(const ddp_report_data *d, FILE *out, ddp_error *err);

/* ---- files ---- */

/* ddp_report_html - writes a self-contained page: no scripts, no external resources, light and dark mode.
 *
 * The page contains facts of the run, the summary table, and the compute and communication lanes of every run
 * on one time scale. It shows loss against time and against bytes sent, divergence against steps, the layers
 * with the step of the period that averages each, and prediction next to measurement. Sections without data
 * are left out. Strings may have any content: they are escaped.
 *
 * The page is built in memory, written to a temporary file and renamed. On failure the file at path is
 * untouched. Safe from any thread. Errors: DDP_ARG for an empty path, DDP_MEMORY, DDP_IO (names the path and
 * the reason). */
DDP_API ddp_status ddp_report_html(const ddp_report_data *d, const char *path, ddp_error *err);

/* One step of a pipeline, simulated (ddp_pipeline_time) or measured. Borrowed. */
typedef struct ddp_report_pipeline {
    const char *name;              /* "1f1b" */
    int stages;                    /* number of stages */
    const ddp_pipeline_slot *slot; /* [slots] in any order */
    int slots;                     /* number of slots */
    double begin_s;                /* start of the step, on the clock of the slots */
    double step_s, bubble_pct;     /* seconds of the step, and idle share of the stages in % */
} ddp_report_pipeline;

/* ddp_report_pipelines - writes an SVG of several steps below each other on one time scale. Each stage has
 * three lanes: receive, compute and send. Errors: DDP_MEMORY, DDP_IO. */
DDP_API ddp_status ddp_report_pipelines(const ddp_report_pipeline *p, int count, FILE *out, ddp_error *err);

/* ddp_report_trace - writes a Chrome trace in array form, for ui.perfetto.dev and chrome://tracing. It
 * contains every finished span of every run, also outside the window.
 *
 * A worker of a run is a process, "dreamddp rank 0", with the number 1 + rank + 1000 x run (more than 1000
 * if a run has more workers). Its threads are "compute" and "communication". Overlapping transfers use
 * several communication threads. A worker with a pipeline stage also has the threads "receive", "stage" and
 * "send", for one step. Each span is one "X" event: name = layer or kind, cat = kind, ts and dur in
 * microseconds, args step, layer, bytes. Each run starts at time 0, so that runs can be compared side by
 * side.
 *
 * The trace is written to a temporary file and renamed. On failure PATH is untouched. Safe from any
 * thread. Errors: DDP_MEMORY, DDP_IO (names the path and the reason). */
DDP_API ddp_status ddp_report_trace(const ddp_report_data *d, const char *path, ddp_error *err);

/* ---- JSON lines: one object per line, in a file that appears only when it is complete ---- */

/* A writer of JSON lines. Errors are sticky: after the first error the writer writes no more, and
 * ddp_jsonl_close returns it. Every function accepts a NULL writer and then does nothing, so a program
 * without --json needs no checks. Use a writer from one thread only. */
typedef struct ddp_jsonl ddp_jsonl;

/* ddp_jsonl_open - opens a writer to PATH.tmp.PID, which ddp_jsonl_close renames to PATH. If PATH is not a
 * regular file (/dev/stdout, a pipe), it is written directly. The caller frees the writer with
 * ddp_jsonl_close or ddp_jsonl_abandon. Returns NULL on failure. Errors: DDP_ARG for an empty path, DDP_IO,
 * DDP_MEMORY. */
DDP_API ddp_jsonl *ddp_jsonl_open(const char *path, ddp_error *err);

/* ddp_jsonl_stream - opens a writer to a FILE such as stdout. The FILE is borrowed, and flushed after each
 * line. The caller frees the writer with ddp_jsonl_close. Returns NULL on failure. Errors: DDP_MEMORY. */
DDP_API ddp_jsonl *ddp_jsonl_stream(FILE *out, ddp_error *err);

/* ddp_jsonl_close - finishes and frees the writer. Returns the first error of the writer. In that case no
 * file remains. Errors: DDP_IO for the file, DDP_ARG for values nested more than 30 levels deep, or
 * DDP_MEMORY. */
DDP_API ddp_status ddp_jsonl_close(ddp_jsonl *j, ddp_error *err);

/* ddp_jsonl_abandon - frees the writer and leaves no file. Use it for an interrupted run. */
DDP_API void ddp_jsonl_abandon(ddp_jsonl *j);

/* ddp_jsonl_event - begins a line: {"event":"name". A NULL name begins a plain object without "event". The
 * functions below add members. Inside an array the key is ignored and may be NULL. */
DDP_API void ddp_jsonl_event(ddp_jsonl *j, const char *name);

/* ddp_jsonl_string - adds a string, escaped. A NULL value gives null. */
DDP_API void ddp_jsonl_string(ddp_jsonl *j, const char *key, const char *value);

/* ddp_jsonl_integer - adds an exact integer. */
DDP_API void ddp_jsonl_integer(ddp_jsonl *j, const char *key, int64_t value);

/* ddp_jsonl_number - adds a number that reads back as the same value. NaN and infinities give null. */
DDP_API void ddp_jsonl_number(ddp_jsonl *j, const char *key, double value);

/* ddp_jsonl_array - opens a nested array, which ddp_jsonl_up closes. At most 30 levels. */
DDP_API void ddp_jsonl_array(ddp_jsonl *j, const char *key);

/* ddp_jsonl_object - opens a nested object, which ddp_jsonl_up closes. At most 30 levels. */
DDP_API void ddp_jsonl_object(ddp_jsonl *j, const char *key);

/* ddp_jsonl_up - closes the innermost open array or object. */
DDP_API void ddp_jsonl_up(ddp_jsonl *j);

/* ddp_jsonl_integers - adds a whole array of `count` integers. */
DDP_API void ddp_jsonl_integers(ddp_jsonl *j, const char *key, const int *values, int count);

/* ddp_jsonl_end - closes all open values and writes the whole line at once. */
DDP_API void ddp_jsonl_end(ddp_jsonl *j);
