/* The manifest of a checkpoint: which files there are, and of what. */
#pragma once

#include "member/state.h"

#define DDP__MANIFEST       "dreamddp checkpoint 5"
#define DDP__MANIFEST_MOST  (1 << 26)               /* bytes */
#define DDP__MANIFEST_OLDER "dreamddp checkpoint 4" /* hashes of 64 bits, and no checksum */

typedef struct ddp__manifest {
    ddp__json *root;
    long step;
    int world, copies, period, synchronised, generation;
    int older; /* of a checkpoint 4 */
    uint64_t run, model;
    const char *strategy, *optimizer; /* borrowed of root */
    ddp__said *said;                  /* [world] but common */
} ddp__manifest;

/* said: [s->world]; generation: which of their two names the files have. */
DDP_LIB ddp_status ddp__manifest_write(const ddp__worker *s, const char *path, const ddp__said *said,
                                       int generation, ddp_error *err);
/* Verifies the checksum before anything else. m is to be freed also after an error. */
DDP_LIB ddp_status ddp__manifest_read(const char *path, ddp__manifest *m, ddp_error *err);
DDP_LIB void ddp__manifest_free(ddp__manifest *m);
/* Is it of this model, and may this run resume from it? *kin: the same number of copies, strategy and period,
 * so that each copy resumes its own state. */
DDP_LIB ddp_status ddp__manifest_fits(const ddp__worker *s, const char *path, const ddp__manifest *m,
                                      int *kin, ddp_error *err);
DDP_LIB ddp__listed ddp__manifest_listed(const ddp__manifest *m, int rank);
