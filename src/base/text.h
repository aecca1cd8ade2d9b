/* Growing text buffers, whole-file reading, atomic file writing and strict number parsing. */
#ifndef DDP_BASE_TEXT_H
#define DDP_BASE_TEXT_H

#include "base/core.h"

/* A growing, NUL-terminated buffer; all-zero = empty. After a failed growth `failed` is set and
 * further appends do nothing, so one check at the end is enough. */
typedef struct ddp__text {
    char  *data;
    size_t size, room;
    int    failed;
} ddp__text;

DDP_LIB void ddp__text_add(ddp__text *t, const char *bytes, size_t n);
DDP_LIB void ddp__text_addf(ddp__text *t, const char *fmt, ...) DDP__PRINTF(2, 3);
DDP_LIB void ddp__text_free(ddp__text *t);

/* "a file", "a directory", "a pipe", "a socket", "a device", of stat's st_mode. */
DDP_LIB const char *ddp__file_kind(mode_t mode);

/* Reads a whole file (a name ending in .gz through `gzip -dc`) into t. What is no regular file is
 * refused: a pipe would wait for its writer, a device might never end. */
DDP_LIB ddp_status ddp__file_read(const char *path, ddp__text *t, ddp_error *err);

/* A file that appears under its name whole or not at all: written to PATH.tmp.PID, flushed, renamed, and its folder
 * flushed. What is no regular file (/dev/stdout, a pipe) is written straight to. After a failure puts do nothing, and
 * the end reports it; every begin that succeeds needs an end or a drop. */
typedef struct ddp__file {
    FILE *f;
    char *path, *tmp; /* equal where the file is written straight to */
    int   why;        /* errno of the first failure */
} ddp__file;

DDP_LIB ddp_status ddp__file_begin(ddp__file *o, const char *path, ddp_error *err);
DDP_LIB void       ddp__file_put(ddp__file *o, const void *bytes, size_t n);
DDP_LIB ddp_status ddp__file_end(ddp__file *o, ddp_error *err);
DDP_LIB void       ddp__file_drop(ddp__file *o); /* nothing is left, PATH is as it was */
/* The three in one. */
DDP_LIB ddp_status ddp__file_write(const char *path, const char *bytes, size_t n, ddp_error *err);

/* Flushes the folder that holds path: what was made or renamed there outlives a crash of the
 * machine. Errors: DDP_IO, DDP_MEMORY. */
DDP_LIB ddp_status ddp__folder_flush(const char *path, ddp_error *err);

/* The whole of s must be one number: 1 and *out set, or 0. Infinities and NaN are refused. */
DDP_LIB int ddp__parse_double(const char *s, double *out);
DDP_LIB int ddp__parse_long(const char *s, long *out);

#endif /* DDP_BASE_TEXT_H */
