/* A checkpoint: a file of each worker's state, and when all are there the manifest. */
#ifndef DDP_MEMBER_CHECKPOINT_H
#define DDP_MEMBER_CHECKPOINT_H

#include "base/text.h"
#include "io/json.h"
#include "member/state.h"

/* Saves s into folder and removes all but the newest keep (0 = keeps all). Nothing that another run
 * has saved there is touched: with overwrite it goes when this one is saved, else it is an error.
 * s->run is then that of the files. Collective; nothing may be in flight. */
DDP_LIB ddp_status ddp__checkpoint_save(ddp__worker *s, const char *folder, int keep, int overwrite, ddp_error *err);
/* Loads the newest into s, and s->run. *same: it goes on with exactly these workers, strategy and
 * period; *world: of how many workers it is. Collective. */
DDP_LIB ddp_status ddp__checkpoint_load(ddp__worker *s, const char *folder, int *same, int *world, ddp_error *err);

/* ---- manifest.c ---- */

/* What a manifest says. */
typedef struct ddp__manifest {
    ddp__json  *root;
    long        step;
    int         world, period, synchronised, generation;
    uint64_t    run;
    const char *strategy, *optimizer, *model;
    const ddp__json *hash; /* array, one per rank: a text, or null of a lost one */
} ddp__manifest;

/* words: of each rank what ddp__worker_hash says of its file; 0 of those who are lost. */
DDP_LIB ddp_status ddp__manifest_write(const ddp__worker *s, const char *path,
                                       const uint64_t *words, int generation, ddp_error *err);
/* m->root is to be freed (ddp__json_free) also after an error. */
DDP_LIB ddp_status ddp__manifest_read(const char *path, ddp__manifest *m, ddp_error *err);
/* Is it of this model, and may this run take it? */
DDP_LIB ddp_status ddp__manifest_fits(const ddp__worker *s, const char *path,
                                      const ddp__manifest *m, int *same, ddp_error *err);
/* Fingerprint of the run and of all its files. */
DDP_LIB uint64_t   ddp__manifest_hash(const ddp__manifest *m);

#endif /* DDP_MEMBER_CHECKPOINT_H */
