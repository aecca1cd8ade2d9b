/* Settings by name: enums and their names, ddp_config_set, the table of settings, the launcher. */
#pragma once

#include "config/config.h"

/* Names of enums, as in --strategy. An unknown name gives the _DEFAULT value or 0, an unknown value
 *   "default". algorithm  auto, full, direct, ring      wire       f32, bf16, int8, int4, e3m0, topk
 *   transport  tcp, threads, mpi, sockets    (ddp_config_set knows all others) */
DDP_API const char *ddp_strategy_name(ddp_strategy s);
DDP_API ddp_strategy ddp_strategy_named(const char *name);
/* ddp_strategy_number - the built-in strategy i, from 0; DDP_STRATEGY_DEFAULT if there is none.
 * ddp_strategy_traits - its requirements and compatible settings, as bits of config/strategy.h; 0 if
 * unknown. */
DDP_API ddp_strategy ddp_strategy_number(int i);
DDP_API unsigned ddp_strategy_traits(ddp_strategy s);
DDP_API ddp_transport ddp_transport_named(const char *name);
DDP_API int ddp_algorithm_named(const char *name, ddp_algorithm *out);
DDP_API int ddp_wire_named(const char *name, ddp_wire *out);
DDP_API const char *ddp_wire_name(ddp_wire wire); /* "f32" for the default */

/* A row of the table of settings, which docs/reference/settings.md shows. Pointers are to constant text. Of
 * a variable without a field, only variable and help are set. */
typedef struct ddp_setting {
    const char *field;    /* "staleness": the name for ddp_config_set and Python */
    const char *member;   /* "server.staleness" of ddp_config */
    const char *variable; /* "DREAMDDP_STALENESS"; NULL: the field has none */
    const char *preset;   /* meaning of zero in the field */
    const char *help;
    int same;         /* 1: all ranks must have the same value */
    char chapter[16]; /* "server"; "core": the member is in no chapter */
    char flag[40];    /* "--staleness", in programs that have it; "" without a variable */
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

/* ddp_launched - the launcher of this process, as *launcher: "DREAMDDP_RANK" (ddprun), "torchrun", "Open
 * MPI", "MPICH", "PMIx" or "Slurm", with its rank and the number of ranks; NULL, 0 and 0 without a launcher.
 * ddp_open and ddp_launch read the same variables, so a program can choose by the number of ranks before it
 * opens a context. Errors: DDP_ARG for variables that contradict each other. No other thread may change the
 * environment meanwhile. */
DDP_API ddp_status ddp_launched(const char **launcher, int *rank, int *world, ddp_error *err);
