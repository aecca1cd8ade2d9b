/* The state of a worker: all that a checkpoint's file holds and that a newcomer takes, as a list of named arrays. The
 * room above makes the list and reads the small values back; this one saves it, loads it, serves it and tells it. */
#ifndef DDP_MEMBER_STATE_H
#define DDP_MEMBER_STATE_H

#include "comm/engine.h"
#include "graph/host.h"
#include "io/json.h"

enum {
    DDP__WORKER_OWN = 1,   /* each has its own, in a synchronised checkpoint too */
    DDP__WORKER_TOLD = 2,  /* all hold the same: a newcomer is told it when it enters */
    DDP__WORKER_THERE = 4, /* memory of the device */
    DDP__WORKER_BLOB = 8   /* another worker may have more or fewer of them */
};

typedef struct ddp__tensor {
    char                 name[48];
    const char          *layer; /* whose it is, NULL: a small value of the worker; borrowed */
    ddp_safetensors_type type;
    void                *data;  /* borrowed; of small values the state's own, as long as it lives */
    size_t               count, most; /* values; most: that a member may tell of a blob */
    int                  flags;
} ddp__tensor;

typedef struct ddp__worker {
    const ddp__host *host;   /* its memory and log */
    ddp__engine     *engine; /* to the others; NULL: there are none */
    int              rank, world;
    int              hub;    /* the first rank that serves, by which words go (ddp__gather_by); 0: by collectives */
    long             step;
    const char      *strategy, *optimizer; /* names; borrowed, as all texts */
    int              period;
    uint64_t         model;  /* of its operators */
    uint64_t         run;    /* identity of the run that saves; 0: it has not saved yet */
    const char     **layer;  /* [layers], and "" */
    int              layers;
    ddp__tensor     *tensor; /* [tensors] */
    int              tensors, room;
    /* Looks at the small values after they were read and before anything else changes; step: of the manifest, or -1. */
    ddp_status (*check)(const struct ddp__worker *s, long step, const char *path, ddp_error *err);
} ddp__worker;

/* Memory for a list of at most room arrays and the names of layers. Freed also after an error. */
DDP_LIB ddp_status ddp__worker_open(ddp__worker *s, int layers, int room, ddp_error *err);
DDP_LIB void       ddp__worker_free(ddp__worker *s);
/* Adds an array of floats of a layer (l = layers: of none), named "name.l" or, with b >= 0, "name.l.b". */
DDP_LIB void ddp__worker_add(ddp__worker *s, const char *name, int l, int b, float *data, size_t count, int flags);
/* Adds count small values, zero: where, or NULL when memory is short. most: values that a member may tell of a blob. */
DDP_LIB void      *ddp__worker_small(ddp__worker *s, const char *name, ddp_safetensors_type type,
                                    size_t count, size_t most, int flags);
DDP_LIB const ddp__tensor *ddp__worker_find(const ddp__worker *s, const char *name);

/* Hashes of a state: of all of it, and of what is the same on all workers if they are synchronised. */
typedef struct ddp__worker_hash {
    uint64_t all, common;
} ddp__worker_hash;

/* As a safetensors file. */
DDP_LIB ddp_status ddp__worker_write(const ddp__worker *s, const char *path, ddp__worker_hash *hash, ddp_error *err);
/* The same as bytes in memory, for the caller to free; and the most that a worker with the same list can make of it. */
DDP_LIB ddp_status ddp__worker_pack(const ddp__worker *s, unsigned char **out, size_t *bytes, ddp_error *err);
DDP_LIB ddp_status ddp__worker_most(const ddp__worker *s, size_t *bytes, ddp_error *err);

/* Whether a file has the arrays of this list. Then: its hash; its values, into the list's memory, of which no large one
 * changes before all that can be wrong was found. step as for check, path for errors. */
DDP_LIB ddp_status ddp__worker_fits(const ddp__worker *s, ddp_safetensors *f, const char *path, ddp_error *err);
DDP_LIB ddp_status ddp__worker_hash_file(ddp_safetensors *f, uint64_t *out, ddp_error *err);
DDP_LIB ddp_status ddp__worker_load(ddp__worker *s, ddp_safetensors *f, long step, const char *path, ddp_error *err);

/* ---- to the other workers; collective ---- */

/* Where collectives are among the workers (ddp__engine_retire): words of all, servers too, which each pushes to the first
 * server, and pulls: all that go on have the same. words: [world x bytes], of which a rank fills its own; 0 of those who
 * are lost. bytes: of floats. */
DDP_LIB ddp_status ddp__gather_by(ddp__engine *e, int rank, int world, int hub, void *words, size_t bytes, ddp_error *err);
/* words: [world x each], of which a worker fills its own; 0 of those who are lost. */
DDP_LIB ddp_status ddp__worker_gather(const ddp__worker *s, uint64_t *words, int each, ddp_error *err);
/* The first operations of an epoch with a newcomer: it alone takes the run, and the values that all hold. */
DDP_LIB ddp_status ddp__worker_enter(ddp__worker *s, int newcomer, ddp_error *err);

/* ---- checkpoint.c: a file of each worker's state, and when all are there the manifest ---- */

/* Saves s into folder and removes all but the newest keep (0 = keeps all). Nothing that another run
 * has saved there is touched: with overwrite it goes when this one is saved, else it is an error.
 * s->run is then that of the files. Collective; nothing may be in flight. */
DDP_LIB ddp_status ddp__checkpoint_save(ddp__worker *s, const char *folder, int keep, int overwrite, ddp_error *err);
/* Loads the newest into s, and s->run. *same: of just these workers, strategy, period; *world: its. Collective. */
DDP_LIB ddp_status ddp__checkpoint_load(ddp__worker *s, const char *folder, int *same, int *world, ddp_error *err);

#endif /* DDP_MEMBER_STATE_H */
