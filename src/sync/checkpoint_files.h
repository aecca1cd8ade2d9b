/* A checkpoint's files: names, which are there, which go, and their fingerprints. */
#ifndef DDP_SYNC_CHECKPOINT_FILES_H
#define DDP_SYNC_CHECKPOINT_FILES_H

#include "base/text.h"
#include "sync/shard.h"

#ifdef __cplusplus
extern "C" {
#endif

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
/* The generation of a step's files that its manifest does not name. */
DDP_LIB int ddp__checkpoint_unused(const char *manifest);
/* Makes a folder that is not there. */
DDP_LIB ddp_status ddp__checkpoint_folder(const char *path, ddp_error *err);
/* Removes what a step's folder holds of ours, but the files of world ranks of that generation and
 * their manifest; world 0 keeps none, and the folder goes too. */
DDP_LIB void ddp__checkpoint_sweep(const char *folder, long step, int world, int generation);
/* Removes all older than the newest keep, also what killed runs left between them; 0 = none. */
DDP_LIB ddp_status ddp__checkpoint_prune(const ddp_ctx *d, const char *folder, int keep,
                                         ddp_error *err);

/* Fingerprints: of the operators of the context's graphs; of a shard, floats as numbers, the rest as
 * bytes; buffers 0 leaves out what ranks may hold unlike each other. */
DDP_LIB uint64_t   ddp__checkpoint_model(const ddp_ctx *d);
DDP_LIB uint64_t   ddp__shard_hash(const ddp__shard *s, int buffers);
DDP_LIB ddp_status ddp__shard_hash_file(ddp_safetensors *f, uint64_t *out, ddp_error *err);

#ifdef __cplusplus
}
#endif

#endif /* DDP_SYNC_CHECKPOINT_FILES_H */
