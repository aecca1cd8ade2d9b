/* A checkpoint: a file of each worker's state, and when all are there the manifest. */
#ifndef DDP_MEMBER_CHECKPOINT_H
#define DDP_MEMBER_CHECKPOINT_H

#include "base/core.h"
#include "io/json.h"
#include "member/state.h"

/* Saves s into folder and removes all but the newest keep (0 = keeps all). Nothing that another run
 * has saved there is touched: with overwrite it goes when this one is saved, else it is an error.
 * s->run is then that of the files. Collective; nothing may be in flight. */
DDP_LIB ddp_status ddp__checkpoint_save(ddp__worker *s, const char *folder, int keep, int overwrite,
                                        ddp_error *err);
/* Loads the newest into s, and s->run. *same: it goes on with exactly these workers, strategy and
 * period; *world: of how many workers it is. Collective. */
DDP_LIB ddp_status ddp__checkpoint_load(ddp__worker *s, const char *folder, int *same, int *world,
                                        ddp_error *err);

/* ---- checkpoint_files.c: names, which are there, which go ---- */

/* Writes a path into t. Errors: DDP_MEMORY. */
DDP_LIB ddp_status ddp__checkpoint_path(ddp__text *t, ddp_error *err, const char *fmt, ...)
    DDP__PRINTF(3, 4);
/* The path of a rank's file. A step that is saved once more must not touch the files that its
 * manifest names until the new manifest is there: so a rank's file has two names, and each save
 * takes the other one. */
DDP_LIB ddp_status ddp__checkpoint_shard(ddp__text *t, ddp_error *err, const char *folder,
                                         long step, int rank, int generation);
/* Newest checkpoint of folder below step `below`, whole ones only or also what a killed run left;
 * -1 if there is none. Errors: DDP_IO, DDP_MEMORY. */
DDP_LIB ddp_status ddp__checkpoint_newest(const char *folder, long below, int whole, long *out,
                                          ddp_error *err);
/* Makes a folder that is not there. */
DDP_LIB ddp_status ddp__checkpoint_folder(const char *path, ddp_error *err);
/* Removes what a step's folder holds of ours, but the files of world ranks of that generation and
 * their manifest; world 0 keeps none, and the folder goes too. */
DDP_LIB void ddp__checkpoint_sweep(const char *folder, long step, int world, int generation);
/* Removes all of up to step but the newest keep, also what killed runs left between them; keep 0 =
 * nothing. */
DDP_LIB ddp_status ddp__checkpoint_prune(const char *folder, long step, int keep, ddp_error *err);

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
