/* Settings by name: enums and their names, ddp_config_set, the table of settings, the launcher. */
#pragma once

#include "config/config.h"

/* Names as in --strategy and so on, and back. Unknown: "default", the _DEFAULT value, or 0.
 *   algorithm  auto, full, direct, ring      wire       f32, bf16, int8, int4, e3m0, topk
 *   transport  tcp, threads, mpi, sockets    (all others: ddp_config_set) */
DDP_API const char *ddp_strategy_name(ddp_strategy s);
DDP_API ddp_strategy ddp_strategy_named(const char *name);
DDP_API ddp_strategy ddp_strategy_number(int i); /* the i-th built-in one; DDP_STRATEGY_DEFAULT: no more */
DDP_API unsigned ddp_strategy_traits(ddp_strategy s); /* what it needs and goes with: config/strategy.h;
                                                             unknown: 0 */
DDP_API ddp_transport ddp_transport_named(const char *name);
DDP_API int ddp_algorithm_named(const char *name, ddp_algorithm *out);
DDP_API int ddp_wire_named(const char *name, ddp_wire *out);
DDP_API const char *ddp_wire_name(ddp_wire wire); /* the default's is f32 */
/* A row of the table of settings, which docs/settings.md shows. Texts are constant unless they are arrays. */
typedef struct ddp_setting {
    const char
        *field; /* "staleness": the name for ddp_config_set and Python; NULL: a variable without a field */
    const char *member;   /* "server.staleness" of ddp_config; NULL without a field */
    const char *variable; /* "DREAMDDP_STALENESS"; NULL of no_env */
    const char *preset;   /* meaning of zero in the field; NULL without a field */
    const char *help;
    int same;         /* 1: all ranks must have the same value */
    char chapter[16]; /* "server"; "core" of a member without a struct; "" without a field */
    char flag[40]; /* "--staleness": the option of programs that have one; "" without a variable or a field */
    char values[256]; /* "1 to 1000000 steps", "none, stream or eager" */
    char value[256];  /* of the field; "" if it is zero */
} ddp_setting;

/* ddp_config_set - sets a field by its name: "period" to "5", "staleness" to "3", "wire" to "topk:0.01"; ""
 * is the default. Text is borrowed until ddp_open or ddp_launch. Errors: DDP_ARG for an unknown name (the
 * sentence has the nearest one) and for a value out of range; *c is unchanged.
 * ddp_config_describe - setting i, with its value in c (may be NULL), chapter by chapter; returns 0 if there
 * is none. Members that are pointers of the program (own_strategy, backend, allocator, ..) have no row. */
DDP_API ddp_status ddp_config_set(ddp_config *c, const char *field, const char *value, ddp_error *err);
DDP_API int ddp_config_describe(const ddp_config *c, int i, ddp_setting *out);

/* ddp_launched - who started this process as one rank of several: "DREAMDDP_RANK" (ddprun), "torchrun", "Open
 * MPI", "MPICH", "PMIx" or "Slurm", with its rank and the number of ranks; NULL, 0 and 0 if no launcher did.
 * A program reads it to choose by the number of ranks before it opens a context; ddp_open and ddp_launch read
 * the same. Errors: DDP_ARG as ddp_open, for variables that contradict each other. Not while another thread
 * changes the environment. */
DDP_API ddp_status ddp_launched(const char **launcher, int *rank, int *world, ddp_error *err);
