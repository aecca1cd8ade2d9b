/* A file that says where rank 0 listens, for ranks that share a folder but know no address. */
#ifndef DDP_WIRE_MEETFILE_H
#define DDP_WIRE_MEETFILE_H

#include "base/core.h"

#define DDP__MEETFILE_TEXT 128

/* The path in "file://PATH", or NULL: the address is none of these. */
DDP_LIB const char *ddp__meetfile_path(const char *addr);
/* Puts "host:port run-id" there, whole or not at all, over what an earlier run left.
 * Errors: DDP_ARG (no path), DDP_IO. */
DDP_LIB ddp_status ddp__meetfile_publish(const char *path, const char *addr, uint64_t run_id,
                                         ddp_error *err);
/* 1 and what it says, or 0: no such file, or not (yet) one of these. addr[DDP__MEETFILE_TEXT]. */
DDP_LIB int ddp__meetfile_read(const char *path, char *addr, uint64_t *run_id);
/* Takes it away if it still says this. */
DDP_LIB void ddp__meetfile_remove(const char *path, const char *addr, uint64_t run_id);
/* A run id for a run that was given none, so that a left-over file is recognised; never 0. */
DDP_LIB uint64_t ddp__meetfile_run(void);

#endif /* DDP_WIRE_MEETFILE_H */
