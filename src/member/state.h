/* The state of a worker: everything in a checkpoint's file or sent to a joining worker, as a list of named
 * arrays. src/session makes the list and reads the small values back. This module saves it, loads it and
 * sends it to joining workers. */
#pragma once

#include "comm/engine.h"
#include "graph/host.h"
#include "io/json.h"

enum {
    DDP__WORKER_OWN = 1,      /* each worker has its own, even in a synchronised checkpoint */
    DDP__WORKER_TOLD = 2,     /* a joining worker receives a member's value when it enters. Equal on all
                               * workers, or nearly equal with DDP__WORKER_OWN. */
    DDP__WORKER_THERE = 4,    /* in device memory */
    DDP__WORKER_BLOB = 8,     /* its length may differ between workers */
    DDP__WORKER_PROGRAM = 16, /* bytes of a state of the program (ddp_add_state). A file may lack them. */
    DDP__WORKER_LENT = 32,    /* data is the program's memory, which the state does not free */
    DDP__WORKER_FOUND = 64,   /* with DDP__WORKER_PROGRAM: a file had the bytes, or another worker sent
                                 them */
    DDP__WORKER_LATER = 128, /* with DDP__WORKER_TOLD: not needed when it enters, but later (member/rest.h) */
    DDP__WORKER_EARLY = 256  /* with DDP__WORKER_PROGRAM: in the clone, and not sent when the worker enters */
};

/* Prefix of the names of the program's states in files, the maximum number of states, and the room for a list
 * of their names. */
#define DDP__PROGRAM "program:"
enum { DDP__PROGRAMS = 8, DDP__PROGRAM_NAMES = 42 * DDP__PROGRAMS };

/* The quantisation residual of edges between stages. Valid only for the same cut: with another cut, or other
 * replicas, it starts at zero. */
#define DDP__EDGE_RESIDUAL "edge residual"

typedef struct ddp__tensor {
    char name[48];
    const char *layer; /* name of the layer (borrowed), or NULL for a small value of the worker */
    int l, b;          /* l: index of the layer, or `layers` for no layer. b: the block, or -1. */
    ddp_safetensors_type type;
    void *data;         /* borrowed. The data of small values belong to the state, until it is freed. */
    size_t count, most; /* in values. most: the largest count of a blob that another member may send. */
    int flags;
    long turn; /* with DDP__WORKER_LATER: a joining worker receives arrays with smaller turns first */
} ddp__tensor;

/* The values that a worker has of a layer: a part of a block, which the optimizer treats as one, and its
 * place in the model. A list of shares is the tensor "shares" of its file. */
typedef struct ddp__share {
    int64_t layer, block;          /* layer and block on this worker */
    int64_t whole, buffers, from;  /* layer of the model, 1 for buffers or 0 for parameters, and the index of
                                      the first value among these */
    int64_t at, count;             /* offset in the block, and number of values */
    int64_t trained;               /* index of the first value among the layer's values with gradients, or -1
                                      without gradients */
    int64_t state, states, stride; /* offset of its first value in the optimizer's state, number of state
                                      arrays, and their distance */
} ddp__share;

enum { DDP__SHARE_WORDS = sizeof(ddp__share) / sizeof(int64_t) };

typedef struct ddp__worker {
    const ddp__host *host; /* its memory and log */
    ddp__engine *engine;   /* to the other workers. NULL without other workers. */
    int rank, world;
    int hub; /* the first server, through which small values are gathered (ddp__gather_by), or 0 for
              * collectives */
    long step;
    const char *strategy, *optimizer; /* names, borrowed as all texts */
    int period;
    const char *overlap, *wire; /* settings that a strategy chose for itself (auto), or NULL */
    uint64_t model;             /* hash of its operators */
    uint64_t run;               /* identity of the run that saves. 0 means that it has not saved yet. */
    const char **layer;         /* [layers], and "" */
    int layers;
    const char *const *whole; /* [wholes] layers of the model, of which a stage has a part */
    int wholes;
    int copies, copy;    /* number of copies of the model. The copy that this worker has, or has a part of. */
    uint64_t cut;        /* hash of its shares */
    ddp__tensor *tensor; /* [tensors] */
    int tensors, room;
    int takes_plan; /* 1 if the plan among the small values will be used, so it must fit */
    size_t part;    /* maximum bytes of a message to a joining worker (0 = 4 MiB) */
    uint64_t rest;  /* after ddp__worker_enter: number of the state that the joining worker receives next */
    void *owner;    /* user data of check and lend */
    /* Sets data and count of a program's state to its current bytes, which are borrowed. */
    ddp_status (*lend)(const struct ddp__worker *s, ddp__tensor *t, ddp_error *err);
    /* Verifies the small values after they were read and before anything else changes. step: from the
     * manifest, or -1. */
    ddp_status (*check)(const struct ddp__worker *s, long step, const char *path, ddp_error *err);
} ddp__worker;

/* Allocates a list of at most room arrays and the names of layers. Call ddp__worker_free also after an
 * error. */
DDP_LIB ddp_status ddp__worker_open(ddp__worker *s, int layers, int room, ddp_error *err);
DDP_LIB void ddp__worker_free(ddp__worker *s);
/* Adds an array of floats of a layer (l = layers: no layer), named "name.l" or, with b >= 0, "name.l.b". */
DDP_LIB void ddp__worker_add(ddp__worker *s, const char *name, int l, int b, float *data, size_t count,
                             int flags);
/* Adds count small values, all zero. Returns their memory, or NULL if memory is short. most: the largest
 * count of a blob that another member may send. */
DDP_LIB void *ddp__worker_small(ddp__worker *s, const char *name, ddp_safetensors_type type, size_t count,
                                size_t most, int flags);
DDP_LIB const ddp__tensor *ddp__worker_find(const ddp__worker *s, const char *name);

/* The arrays of layers that a joining worker receives from a member when it enters (DDP__WORKER_TOLD), or
 * later:
 *   list  stores their indices in order[tensors], in the order of transfer. Returns their number.
 *   pack  copies their bytes in that order. The caller frees *out.
 *   drop  removes them from the list: a clone needs no arrays that will be replaced. */
DDP_LIB int ddp__worker_rest_list(const ddp__worker *s, int *order);
DDP_LIB ddp_status ddp__worker_rest_pack(const ddp__worker *s, unsigned char **out, size_t *bytes,
                                         ddp_error *err);
DDP_LIB void ddp__worker_rest_drop(ddp__worker *s);

/* The identity of a rank's file, as 64-bit words, since the ranks gather it. */
typedef struct ddp__said {
    uint64_t there;           /* 0 if the rank was lost, and has no file */
    ddp__digest hash, common; /* hash of all arrays, and of the arrays that are equal on all ranks of a
                                 synchronised checkpoint */
    uint64_t cut, copy;       /* hash of its shares. Copy of the model, from 0. */
} ddp__said;

/* Writes a safetensors file, whose __metadata__ states run, step, rank, copy and cut. */
DDP_LIB ddp_status ddp__worker_write(const ddp__worker *s, const char *path, ddp__said *said, ddp_error *err);
/* pack: the same as bytes in memory, which the caller frees. most: the maximum number of bytes that a worker
 * with the same list can produce. */
DDP_LIB ddp_status ddp__worker_pack(const ddp__worker *s, unsigned char **out, size_t *bytes, ddp_error *err);
DDP_LIB ddp_status ddp__worker_most(const ddp__worker *s, size_t *bytes, ddp_error *err);

/* The entry of a rank's file in a manifest. */
typedef struct ddp__listed {
    uint64_t run;
    long step;
    int rank;
    int older; /* 1: a checkpoint of format 4: the hash has 64 bits, and the file does not state its
                  identity */
    ddp__digest hash;
    uint64_t cut, copy;
} ddp__listed;

/* Adds the remedy to the error of a damaged checkpoint file (s is DDP_FORMAT), and returns s. */
DDP_LIB ddp_status ddp__damaged(ddp_status s, ddp_error *err);
/* fits: verifies that a file has the arrays of this list. listed: verifies that it is the unchanged file that
 * the manifest lists. path: for errors. */
DDP_LIB ddp_status ddp__worker_fits(const ddp__worker *s, ddp_safetensors *f, const char *path,
                                    ddp_error *err);
DDP_LIB ddp_status ddp__worker_listed(ddp_safetensors *f, const ddp__listed *x, const char *path,
                                      ddp_error *err);
/* Call after ddp__worker_fits. read: reads the small values and runs s->check on them, with its step. load:
 * reads the large arrays into memory that the run uses. It can fail only because of the disk. */
DDP_LIB ddp_status ddp__worker_read(ddp__worker *s, ddp_safetensors *f, long step, const char *path,
                                    ddp_error *err);
DDP_LIB ddp_status ddp__worker_load(ddp__worker *s, ddp_safetensors *f, const char *path, ddp_error *err);

/* ---- entry.c: communication with the other workers (collective) ---- */

/* Gathers 64-bit values of all ranks, servers included, when collectives are among the workers only
 * (ddp__engine_retire): each rank pushes its values to the first server, and pulls the result. All surviving
 * ranks get the same. words: [world x bytes], of which a rank fills its own, or 0 for lost ranks. bytes: a
 * multiple of the size of a float. */
DDP_LIB ddp_status ddp__gather_by(ddp__engine *e, int rank, int world, int hub, void *words, size_t bytes,
                                  ddp_error *err);
/* Gathers 64-bit values: [world x each], of which a worker fills its own, or 0 for lost workers. */
DDP_LIB ddp_status ddp__worker_gather(const ddp__worker *s, uint64_t *words, int each, ddp_error *err);
/* The first operations of an epoch with a joining worker: it alone takes the identity of the run and the
 * small values that all workers share. The lowest member sends its states of the program, except those with
 * DDP__WORKER_EARLY. Sets s->rest, the same number on all workers. */
DDP_LIB ddp_status ddp__worker_enter(ddp__worker *s, int newcomer, ddp_error *err);

/* ---- checkpoint.c: a file of each worker's state and, once all files are written, the manifest ---- */

/* Describes a loaded checkpoint. */
typedef struct ddp__loaded {
    int world; /* world of the run that wrote it */
    int kin;   /* 1: each copy of the model resumes its own state: equal number of copies, strategy and
                  period */
    int same;  /* 1 if the model is also cut in the same way, so that plans stay valid */
} ddp__loaded;

/* Saves s into folder and removes all but the newest `keep` checkpoints (0 = keeps all). If another run has
 * saved there: with overwrite, its checkpoints are removed when this one is saved. Without overwrite it is an
 * error and nothing changes. Sets s->run to the run of the files. Collective. No message may be in flight. */
DDP_LIB ddp_status ddp__checkpoint_save(ddp__worker *s, const char *folder, int keep, int overwrite,
                                        ddp_error *err);
/* The strategy of a checkpoint, if a strategy had chosen it. Empty texts: it had not. */
typedef struct ddp__checkpoint_chose {
    char strategy[32], overlap[16], wire[16];
    int period;
} ddp__checkpoint_chose;

/* Reads which strategy the run of the newest checkpoint had chosen. Collective. */
DDP_LIB ddp_status ddp__checkpoint_chosen(ddp__worker *s, const char *folder, ddp__checkpoint_chose *out,
                                          ddp_error *err);
/* Loads the newest checkpoint into s, including s->run. Collective. */
DDP_LIB ddp_status ddp__checkpoint_load(ddp__worker *s, const char *folder, ddp__loaded *of, ddp_error *err);

/* ---- reshard.c: loads the files of one copy of a model that was cut differently ---- */

typedef struct ddp__shards ddp__shards;

/* Loads a worker's state from several files.
 *
 *   add    adds a file, as the manifest lists it. open sets the maximum number of files
 *   cover  finds each layer's values in the files. A file that this worker does not need may be missing.
 *   read   reads the small values into s, and checks everything that can be wrong
 *   load   reads the large arrays
 *
 * own: also resume each worker's own state of the strategy. *out must be closed also after an error. */
DDP_LIB ddp_status ddp__shards_open(ddp__shards **out, ddp__worker *s, int most, ddp_error *err);
DDP_LIB ddp_status ddp__shards_add(ddp__shards *x, const char *path, const ddp__listed *listed,
                                   ddp_error *err);
DDP_LIB ddp_status ddp__shards_cover(ddp__shards *x, ddp_error *err);
DDP_LIB ddp_status ddp__shards_read(ddp__shards *x, long step, int own, ddp_error *err);
DDP_LIB ddp_status ddp__shards_load(ddp__shards *x, int own, ddp_error *err);
DDP_LIB void ddp__shards_close(ddp__shards *x);
