/* Reads and writes the manifest of a checkpoint: the list of its files, with their hashes. */
#pragma once

#include "member/state.h"

#define DDP__MANIFEST       "dreamddp checkpoint 5"
#define DDP__MANIFEST_MOST  (1 << 26)               /* bytes */
#define DDP__MANIFEST_OLDER "dreamddp checkpoint 4" /* 64-bit hashes, and no checksum */

typedef struct ddp__manifest {
    ddp__json *root;
    long step;
    int world, copies, period, synchronised, generation;
    int older; /* 1: a checkpoint of format 4 */
    uint64_t run, model;
    const char *strategy, *optimizer; /* borrowed from root */
    const char *overlap, *wire;       /* the same, or NULL if the strategy did not choose them */
    ddp__said *said;                  /* [world], without `common` */
} ddp__manifest;

/* Writes a manifest. said: [s->world]. generation: which of the two names each file has. */
DDP_LIB ddp_status ddp__manifest_write(const ddp__worker *s, const char *path, const ddp__said *said,
                                       int generation, ddp_error *err);
/* Reads a manifest, after it has verified the checksum. Free m also after an error. */
DDP_LIB ddp_status ddp__manifest_read(const char *path, ddp__manifest *m, ddp_error *err);
DDP_LIB void ddp__manifest_free(ddp__manifest *m);
/* Verifies that a checkpoint belongs to this model and that this run may resume from it. *kin: 1 if the
 * number of copies, strategy and period are equal, so that each copy resumes its own state. */
DDP_LIB ddp_status ddp__manifest_fits(const ddp__worker *s, const char *path, const ddp__manifest *m,
                                      int *kin, ddp_error *err);
DDP_LIB ddp__listed ddp__manifest_listed(const ddp__manifest *m, int rank);
