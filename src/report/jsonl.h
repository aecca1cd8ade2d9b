/* JSON lines: one object per line, to a file that appears only when it is complete. */
#ifndef DDP_REPORT_JSONL_H
#define DDP_REPORT_JSONL_H

#include <stdio.h>

#include "base/status.h"

/* A writer. Errors are sticky: after the first one nothing more is written, and ddp_jsonl_close
 * returns it. A NULL writer is silent: a program without --json needs no ifs. One thread. */
typedef struct ddp_jsonl ddp_jsonl;

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_JSONL_H */
