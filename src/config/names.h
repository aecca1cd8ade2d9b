/* Settings by name: enums and their names, ddp_config_set, the table of settings, the launcher. */
#pragma once

#include "config/config.h"

/* ddp_strategy_name - returns the name of a strategy, as in --strategy. DDP_STRATEGY_DEFAULT gives the name
 * of the default, an invalid value "unknown". A constant string. Pure and safe from any thread. */
DDP_API const char *ddp_strategy_name(ddp_strategy s);

/* ddp_strategy_named - returns the strategy with that name, or DDP_STRATEGY_DEFAULT if there is none. Pure
 * and safe from any thread. */
DDP_API ddp_strategy ddp_strategy_named(const char *name);

/* ddp_strategy_number - returns the built-in strategy i, counted from 0, or DDP_STRATEGY_DEFAULT past the
 * last one. Pure and safe from any thread. */
DDP_API ddp_strategy ddp_strategy_number(int i);

/* ddp_strategy_traits - returns the requirements and compatible settings of a strategy, as bits of
 * config/strategy.h, or 0 if it is not built in. Pure and safe from any thread. */
DDP_API unsigned ddp_strategy_traits(ddp_strategy s);

/* ddp_transport_named - returns the transport with that name, "tcp", "threads", "mpi" or "sockets", or
 * DDP_TRANSPORT_DEFAULT for another name. Pure and safe from any thread. */
DDP_API ddp_transport ddp_transport_named(const char *name);

/* ddp_algorithm_named - converts "auto", "full", "direct" or "ring" to its algorithm. Returns 1 and sets
 * *out, or returns 0 for another name. Pure and safe from any thread. */
DDP_API int ddp_algorithm_named(const char *name, ddp_algorithm *out);

/* ddp_wire_named - converts "f32", "bf16", "int8", "int4", "e3m0" or "topk" to its number format. Returns 1
 * and sets *out, or returns 0 for another name. Pure and safe from any thread. */
DDP_API int ddp_wire_named(const char *name, ddp_wire *out);

/* ddp_wire_name - returns the name of a number format, "f32" for the default. A constant string. Pure and
 * safe from any thread. */
DDP_API const char *ddp_wire_name(ddp_wire wire);

/* A row of the table of settings, which docs/reference/settings.md shows. Pointers are to constant text. Of
 * a variable without a field, only variable and help are set. */
typedef struct ddp_setting {
    const char *field;    /* "staleness": the name for ddp_config_set and Python */
    const char *member;   /* "server.staleness" of ddp_config */
    const char *variable; /* "DREAMDDP_STALENESS". NULL if there is none. */
    const char *preset;   /* meaning of zero in the field */
    const char *help;     /* text of --help */
    int same;             /* 1 if all ranks must have the same value */
    char chapter[16];     /* "server", or "core" if the member is in no chapter */
    char flag[40];        /* "--staleness", in programs that have it, or "" without a variable */
    char values[256];     /* "1 to 1000000 steps", "none, stream or eager" */
    char value[256];      /* of the field, or "" if it is zero */
} ddp_setting;

/* ddp_config_set - sets a field by its name: "period" to "5", "staleness" to "3", "wire" to "topk:0.01". ""
 * is the default.
 *
 *   field  name of a setting (ddp_setting.field)
 *   value  text of the value. Text settings borrow it until ddp_open or ddp_launch
 *
 * *c is unchanged on error. Errors: DDP_ARG for an unknown name (the message has the nearest one) and for a
 * value out of range. */
DDP_API ddp_status ddp_config_set(ddp_config *c, const char *field, const char *value, ddp_error *err);

/* ddp_config_describe - describes setting i, with its value in c (may be NULL), chapter by chapter, in *out.
 * Returns 1, or 0 past the last setting. Members that are pointers of the program (own_strategy, backend,
 * allocator, ...) have no row. Safe from any thread. */
DDP_API int ddp_config_describe(const ddp_config *c, int i, ddp_setting *out);

/* ddp_launched - determines the launcher of this process. *launcher is "DREAMDDP_RANK" (ddprun), "torchrun",
 * "Open MPI", "MPICH", "PMIx" or "Slurm", with the rank and the number of ranks. Without a launcher the
 * results are NULL, 0 and 0. ddp_open and ddp_launch read the same variables, so a program can choose by the
 * number of ranks before it opens a context. No other thread may change the environment during the call.
 * Errors: DDP_ARG for variables that contradict each other. */
DDP_API ddp_status ddp_launched(const char **launcher, int *rank, int *world, ddp_error *err);
