/* The state of a worker: all that a checkpoint's file holds and that a newcomer takes, as a list of named
 * arrays. src/session makes the list and reads the small values back. This module saves it, loads it and
 * sends it to joining workers. */
#pragma once

#include "comm/engine.h"
#include "graph/host.h"
#include "io/json.h"

enum {
    DDP__WORKER_OWN = 1,   /* each has its own, in a synchronised checkpoint too */
    DDP__WORKER_TOLD = 2,  /* a joining worker receives a member's when it enters; all hold the same, or those
                              of DDP__WORKER_OWN nearly so */
    DDP__WORKER_THERE = 4, /* memory of the device */
    DDP__WORKER_BLOB = 8,  /* another worker may have more or fewer of them */
    DDP__WORKER_PROGRAM = 16, /* bytes of a state of the program (ddp_add_state); a file may lack them */
    DDP__WORKER_LENT = 32,    /* data is the program's memory, which the state does not free */
    DDP__WORKER_FOUND = 64    /* of DDP__WORKER_PROGRAM: a file had the bytes, or another worker sent them */
};

/* The name of a state of the program begins so in files; at most so many states. */
#define DDP__PROGRAM "program:"
enum { DDP__PROGRAMS = 8, DDP__PROGRAM_NAMES = 34 * DDP__PROGRAMS };

/* What edges between stages have cut off. Of the cut alone: with another one, or other replicas, it begins at
 * zero. */
#define DDP__EDGE_RESIDUAL "edge residual"

typedef struct ddp__tensor {
    char name[48];
    const char *layer; /* whose it is, NULL: a small value of the worker; borrowed */
    int l, b;          /* its number, layers: of none; the block, -1: no block */
    ddp_safetensors_type type;
    void *data;         /* borrowed; of small values the state's own, as long as it lives */
    size_t count, most; /* values; most: that a member may tell of a blob */
    int flags;
} ddp__tensor;

/* Values that a worker has of a layer: a part of a block, which the optimizer takes as one, and where that
 * lies in the model. A list of them is the tensor "shares" of its file. */
typedef struct ddp__share {
    int64_t layer, block;          /* here */
    int64_t whole, buffers, from;  /* layer of the model; 1: of its buffers, 0: parameters; the first of
                                     these */
    int64_t at, count;             /* in the block */
    int64_t trained;               /* the first of the layer's values with gradients; -1: without */
    int64_t state, states, stride; /* its first value of the optimizer's state, how many each has, and how far
                                      apart */
} ddp__share;

enum { DDP__SHARE_WORDS = sizeof(ddp__share) / sizeof(int64_t) };

typedef struct ddp__worker {
    const ddp__host *host; /* its memory and log */
    ddp__engine *engine;   /* to the others; NULL: there are none */
    int rank, world;
    int hub; /* the first rank that serves, by which words go (ddp__gather_by); 0: by
                                collectives */
    long step;
    const char *strategy, *optimizer; /* names; borrowed, as all texts */
    int period;
    uint64_t model;     /* of its operators */
    uint64_t run;       /* identity of the run that saves; 0: it has not saved yet */
    const char **layer; /* [layers], and "" */
    int layers;
    const char *const *whole; /* [wholes] layers of the model, of which a stage has a part */
    int wholes;
    int copies, copy;    /* of the model; which one this worker has, or has a part of */
    uint64_t cut;        /* hash of its shares */
    ddp__tensor *tensor; /* [tensors] */
    int tensors, room;
    int takes_plan; /* the plan among the small values is to be followed, so it has to fit */
    size_t part;    /* bytes of a message to a joining worker at most; 0: 4 MiB */
    void *owner;    /* for check and lend */
    /* A state of the program: data and count become its bytes, which are borrowed. */
    ddp_status (*lend)(const struct ddp__worker *s, ddp__tensor *t, ddp_error *err);
    /* Verifies the small values after they were read and before anything else changes; step: of the manifest,
     * or -1. */
    ddp_status (*check)(const struct ddp__worker *s, long step, const char *path, ddp_error *err);
} ddp__worker;

/* Memory for a list of at most room arrays and the names of layers. Freed also after an error. */
DDP_LIB ddp_status ddp__worker_open(ddp__worker *s, int layers, int room, ddp_error *err);
DDP_LIB void ddp__worker_free(ddp__worker *s);
/* Adds an array of floats of a layer (l = layers: of none), named "name.l" or, with b >= 0, "name.l.b". */
DDP_LIB void ddp__worker_add(ddp__worker *s, const char *name, int l, int b, float *data, size_t count,
                             int flags);
/* Adds count small values, zero: where, or NULL when memory is short. most: values that a member may tell of
 * a blob. */
DDP_LIB void *ddp__worker_small(ddp__worker *s, const char *name, ddp_safetensors_type type, size_t count,
                                size_t most, int flags);
DDP_LIB const ddp__tensor *ddp__worker_find(const ddp__worker *s, const char *name);

/* The identity of a rank's file, in words, since the ranks gather it. */
typedef struct ddp__said {
    uint64_t there;           /* 0: the rank was lost, and has no file */
    ddp__digest hash, common; /* of all arrays; of those that are equal on all ranks of a synchronised
                                 checkpoint */
    uint64_t cut, copy;       /* hash of its shares; copy of the model, from 0 */
} ddp__said;

/* As a safetensors file, whose __metadata__ states run, step, rank, copy and cut. */
DDP_LIB ddp_status ddp__worker_write(const ddp__worker *s, const char *path, ddp__said *said, ddp_error *err);
/* The same as bytes in memory, for the caller to free; and the most that a worker with the same list can make
 * of it. */
DDP_LIB ddp_status ddp__worker_pack(const ddp__worker *s, unsigned char **out, size_t *bytes, ddp_error *err);
DDP_LIB ddp_status ddp__worker_most(const ddp__worker *s, size_t *bytes, ddp_error *err);

/* What a manifest lists of a rank's file. */
typedef struct ddp__listed {
    uint64_t run;
    long step;
    int rank;
    int older; /* a checkpoint of format 4: the hash has 64 bits, and the file does not state its
                          identity */
    ddp__digest hash;
    uint64_t cut, copy;
} ddp__listed;

/* Adds the remedy to the error of a damaged file of a checkpoint (s is DDP_FORMAT), and returns s. */
DDP_LIB ddp_status ddp__damaged(ddp_status s, ddp_error *err);
/* Verifies that a file has the arrays of this list; that it is the one that the manifest lists, unchanged.
 * path: for errors. */
DDP_LIB ddp_status ddp__worker_fits(const ddp__worker *s, ddp_safetensors *f, const char *path,
                                    ddp_error *err);
DDP_LIB ddp_status ddp__worker_listed(ddp_safetensors *f, const ddp__listed *x, const char *path,
                                      ddp_error *err);
/* After ddp__worker_fits. read: the small values, and s->check of them, with its step. load: the large ones,
 * into memory that the run uses: only what the disk does can fail then. */
DDP_LIB ddp_status ddp__worker_read(ddp__worker *s, ddp_safetensors *f, long step, const char *path,
                                    ddp_error *err);
DDP_LIB ddp_status ddp__worker_load(ddp__worker *s, ddp_safetensors *f, const char *path, ddp_error *err);

/* ---- entry.c: to the other workers; collective ---- */

/* Where collectives are among the workers (ddp__engine_retire): words of all, servers too, which each pushes
 * to the first server, and pulls: all that go on have the same. words: [world x bytes], of which a rank fills
 * its own; 0 of those who are lost. bytes: of floats. */
DDP_LIB ddp_status ddp__gather_by(ddp__engine *e, int rank, int world, int hub, void *words, size_t bytes,
                                  ddp_error *err);
/* words: [world x each], of which a worker fills its own; 0 of those who are lost. */
DDP_LIB ddp_status ddp__worker_gather(const ddp__worker *s, uint64_t *words, int each, ddp_error *err);
/* The first operations of an epoch with a newcomer: it alone takes the run, and the values that all hold.
 * States of the program are those that the lowest member lends. */
DDP_LIB ddp_status ddp__worker_enter(ddp__worker *s, int newcomer, ddp_error *err);

/* ---- checkpoint.c: a file of each worker's state, and when all are there the manifest ---- */

/* What was loaded. */
typedef struct ddp__loaded {
    int world; /* it was written by */
    int kin;   /* each copy of the model went on as it was: of as many, under this strategy with this
                  period */
    int same;  /* and cut as it was, so that plans hold */
} ddp__loaded;

/* Saves s into folder and removes all but the newest keep (0 = keeps all). Nothing that another run
 * has saved there is touched: with overwrite it goes when this one is saved, else it is an error.
 * s->run is then that of the files. Collective; nothing may be in flight. */
DDP_LIB ddp_status ddp__checkpoint_save(ddp__worker *s, const char *folder, int keep, int overwrite,
                                        ddp_error *err);
/* Loads the newest into s, and s->run. Collective. */
DDP_LIB ddp_status ddp__checkpoint_load(ddp__worker *s, const char *folder, ddp__loaded *of, ddp_error *err);

/* ---- reshard.c: the files of one copy of the model that was cut otherwise ---- */

typedef struct ddp__shards ddp__shards;

/* Adds at most `most` files, as the manifest lists them, and finds each layer's values in them (cover); a
 * file may be missing where this worker needs nothing of it. *out is to be closed also after an error.
 * read: the small values, into s, and a check of all that can be wrong. load: the large ones. own: the
 * strategy's state of each worker follows too. */
DDP_LIB ddp_status ddp__shards_open(ddp__shards **out, ddp__worker *s, int most, ddp_error *err);
DDP_LIB ddp_status ddp__shards_add(ddp__shards *x, const char *path, const ddp__listed *listed,
                                   ddp_error *err);
DDP_LIB ddp_status ddp__shards_cover(ddp__shards *x, ddp_error *err);
DDP_LIB ddp_status ddp__shards_read(ddp__shards *x, long step, int own, ddp_error *err);
DDP_LIB ddp_status ddp__shards_load(ddp__shards *x, int own, ddp_error *err);
DDP_LIB void ddp__shards_close(ddp__shards *x);
