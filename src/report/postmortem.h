/* Reading the dumps of a run's ranks together. */
#ifndef DDP_REPORT_POSTMORTEM_H
#define DDP_REPORT_POSTMORTEM_H

#include <stdio.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_dump_merge - reads what ddp_dump wrote on several ranks (count files, any order, ranks may
 * be missing) and writes to out (borrowed) where they part, one sentence a line: which rank left
 * no dump, the errors, operations that differ between ranks, the first operation that somebody
 * waits in and who never submitted it, receives that nobody sends to.
 * Errors: DDP_IO, DDP_FORMAT (names file and line), DDP_MISMATCH (two runs, two worlds, a rank
 * twice), DDP_MEMORY. Any thread. */
DDP_API ddp_status ddp_dump_merge(const char *const *paths, int count, FILE *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_REPORT_POSTMORTEM_H */
