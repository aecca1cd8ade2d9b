/* Settings: fields, environment variables, defaults, links, and combinations that are rejected. */
#pragma once

#include "config/config.h"
#include "config/names.h"
#include "config/strategy.h"
#include "emulate/links.h"
#include "member/join.h"

/* The available strategies. src/strategy fills this table, so that no lower module depends on a strategy's
 * name. */
typedef struct ddp__strategies {
    int (*fill)(ddp_strategy s, ddp_strategy_ops *ops); /* returns 0 if the strategy does not exist */
    ddp_strategy (*named)(const char *name);            /* DDP_STRATEGY_DEFAULT: unknown */
    ddp_strategy (*number)(int i);                      /* DDP_STRATEGY_DEFAULT: no more */
    const char *(*name)(ddp_strategy s);
} ddp__strategies;

/* config.c: checks, environment, defaults. *out owns its strings, freed by ddp__config_free. */
DDP_LIB ddp_status ddp__config_resolve(const ddp_config *given, const ddp__strategies *list, ddp_config *out,
                                       ddp_strategy_ops *ops, ddp_error *err);
DDP_LIB void ddp__config_free(ddp_config *c);
/* Applies a choice to a resolved configuration, and fills *ops. Errors: DDP_UNSUPPORTED or DDP_ARG if a
 * setting of the run does not fit the chosen strategy. *c must then not be used. */
DDP_LIB ddp_status ddp__config_choose(const ddp__strategies *list, const ddp_chosen *chosen, ddp_config *c,
                                      ddp_strategy_ops *ops, ddp_error *err);

/* ---- settings.c: the table of fields, variables, ranges and defaults ---- */

DDP_LIB ddp_status ddp__setting_set(const ddp__strategies *list, ddp_config *c, const char *field,
                                    const char *value, ddp_error *err);
DDP_LIB int ddp__setting_describe(const ddp__strategies *list, const ddp_config *c, int i, ddp_setting *out);
DDP_LIB void ddp__strategy_names(const ddp__strategies *list, char *out,
                                 size_t room); /* "ssgd, wfbp or dreamddp" */
DDP_LIB ddp_status ddp__settings_check(const ddp__strategies *list, const ddp_config *c,
                                       ddp_error *err); /* checks each field alone */
DDP_LIB void ddp__settings_default(const ddp__strategies *list, ddp_config *c);
DDP_LIB int ddp__overlap_named(const char *name, ddp_overlap *out); /* returns 0 if the name is unknown */
DDP_LIB const char *ddp__overlap_name(ddp_overlap overlap);
DDP_LIB int ddp__settings_own(ddp_config *c); /* copies texts. Returns 0 if memory is short. */
DDP_LIB void ddp__settings_disown(ddp_config *c);
/* env_check_names rejects unknown variables. env_fill fills fields of c that are zero. */
DDP_LIB ddp_status ddp__env_check_names(ddp_error *err);
DDP_LIB ddp_status ddp__env_settings(const ddp__strategies *list, ddp_config *c, ddp_error *err);
/* Settings that must be equal on all ranks, as numbers; joined: those that must also be equal on a joining
 * worker. Returns their number, at most DDP__SETTINGS, or DDP__JOIN_SETTINGS. */
enum { DDP__SETTINGS = 96, DDP__SESSION_SETTINGS = 3 }; /* the session's ddp__settings adds these */
DDP_LIB int ddp__settings_compared(const ddp_config *c, int joined, ddp__setting *out);
/* Formats a value of a setting for a message: the name of a choice, or at most `digits` digits. */
DDP_LIB void ddp__setting_text(const ddp__setting *s, double value, int digits, char *out, size_t room);

/* ---- links.c ---- */

/* Creates the emulated links of this rank from cfg.net and cfg.net_script, or (link 1) cfg.net2. *out stays
 * empty if none is set. Freed by ddp__links_free. */
DDP_LIB ddp_status ddp__links_open(const ddp_config *given, int link, ddp__links *out, ddp_error *err);

/* ---- compatibility.c: combinations of settings ---- */

typedef struct ddp__goes_row { /* settings that no run can combine: all of `all`, with one of `any` unless
                                * that is 0 */
    unsigned all, any;
    ddp_status code;
    const char *why;
} ddp__goes_row;

typedef struct ddp__goes_trait { /* a setting that needs a strategy with this trait, */
    unsigned trait, on;
    int with; /* or, if 1, a strategy without it */
    const char *why;
} ddp__goes_trait;

/* Rejects combinations with an error. ops NULL: independent of the strategy. groups: some layer belongs to a
 * group. */
DDP_LIB ddp_status ddp__goes_check(const ddp_config *c, const ddp_strategy_ops *ops, int groups,
                                   ddp_error *err);
/* The table: name of setting i, or NULL after the last. The settings that are on, as bits. The row or trait
 * that rejects them. */
DDP_LIB const char *ddp__feature_name(int i);
DDP_LIB unsigned ddp__features_on(const ddp_config *c, int groups);
DDP_LIB const ddp__goes_row *ddp__goes_refuses(unsigned on);
DDP_LIB const ddp__goes_trait *ddp__goes_lacks(unsigned on, unsigned traits);

/* ---- env.c: the environment ---- */

/* Strings are borrowed from the environment, or NULL if a variable is unset or empty. */
typedef struct ddp__env {
    const char *launcher; /* "DREAMDDP_RANK", "torchrun", "Open MPI", "MPICH", "PMIx", "Slurm"; or NULL */
    int rank, world;      /* 0 and 1 without a launcher */
    int local_rank;       /* among the ranks on this machine */
    char addr[320];       /* host:port of rank 0, or "" if unknown */
    char run_id[128];     /* name of the run, or "" if unknown */
    const char *note;     /* NULL, or a line for the log about a conclusion */
} ddp__env;

/* Reads the environment; the first launcher that matches wins: own variables, torchrun, Open MPI,
 * MPICH (PMI), PMIx under Slurm, Slurm. DREAMDDP_ADDR and DREAMDDP_RUN_ID override the launcher's.
 * Not while another thread changes the environment.
 * Errors: DDP_ARG for a half-set group (names the missing variable), a malformed number, a
 * rank outside the world, or an unknown DREAMDDP_ variable (names the nearest known one). */
DDP_LIB ddp_status ddp__env_read(ddp__env *out, ddp_error *err);
/* The number of a run's name in messages: a number is itself, other text is hashed, NULL and "" are 0. */
DDP_LIB uint64_t ddp__run_id(const char *text);
