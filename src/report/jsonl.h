/* JSON lines: one object per line, to a file that appears only when it is complete; and the events
 * that every program writes, with the member names that tests and users rely on. */
#ifndef DDP_REPORT_JSONL_H
#define DDP_REPORT_JSONL_H

#include "report/report.h"

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
DDP_API void       ddp_jsonl_abandon(ddp_jsonl *j);

/* ddp_jsonl_event - begins a line, {"event":"name"; NULL = a plain object without "event".
 * Then members; inside an array key is NULL (and is ignored).
 *   string   NULL gives null            integer   exact
 *   number   round-trips; NaN and infinities give null
 *   array, object   opens a nested value, ended by ddp_jsonl_up (at most 30 deep)
 *   integers, numbers   a whole array at once
 * ddp_jsonl_end - closes what is open and writes the whole line at once. */
DDP_API void ddp_jsonl_event(ddp_jsonl *j, const char *name);
DDP_API void ddp_jsonl_string(ddp_jsonl *j, const char *key, const char *value);
DDP_API void ddp_jsonl_integer(ddp_jsonl *j, const char *key, int64_t value);
DDP_API void ddp_jsonl_number(ddp_jsonl *j, const char *key, double value);
DDP_API void ddp_jsonl_bool(ddp_jsonl *j, const char *key, int value);
DDP_API void ddp_jsonl_array(ddp_jsonl *j, const char *key);
DDP_API void ddp_jsonl_object(ddp_jsonl *j, const char *key);
DDP_API void ddp_jsonl_up(ddp_jsonl *j);
DDP_API void ddp_jsonl_integers(ddp_jsonl *j, const char *key, const int *values, int count);
DDP_API void ddp_jsonl_numbers(ddp_jsonl *j, const char *key, const double *values, int count);
DDP_API void ddp_jsonl_end(ddp_jsonl *j);

/* ---- events ---- */

/* Each writes one line; j may be NULL. Unknown figures become null.
 *   run      title, command, version, seed, host, workers, net, model
 *   profile  layers: list of {layer, params, backward_s, comm_s}
 *   plan     strategy, period, sets (layer indexes per step of the period), step_of, predicted_*;
 *            nothing is written for a run without a plan
 *   step     strategy, step, loss, step_ms, wait_ms, bytes, divergence (left out if NAN)
 *   note     strategy, step, time_s, kind, text: one line for each of r->notes
 *   result   strategy, workers, step_ms, hidden_pct, bytes_sent, final_loss, time_to_loss_s,
 *            param_hash, slowest_rank and slow_ratio where they are known, replans
 *   error    status (text), exit_code, message */
DDP_API void ddp_jsonl_run(ddp_jsonl *j, const ddp_report_data *d);
DDP_API void ddp_jsonl_profile(ddp_jsonl *j, const ddp_report_data *d);
DDP_API void ddp_jsonl_plan(ddp_jsonl *j, const ddp_report_data *d, const ddp_report_run *r);
DDP_API void ddp_jsonl_step(ddp_jsonl *j, const char *strategy, long step, double loss,
                            double step_ms, double wait_ms, int64_t bytes, double divergence);
DDP_API void ddp_jsonl_notes(ddp_jsonl *j, const ddp_report_run *r);
DDP_API void ddp_jsonl_result(ddp_jsonl *j, const ddp_report_data *d, const ddp_report_run *r);
DDP_API void ddp_jsonl_error(ddp_jsonl *j, const ddp_error *error);

#endif /* DDP_REPORT_JSONL_H */
