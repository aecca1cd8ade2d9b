/* How contexts are opened: with the strategies that there are. The room above fills the table in, so
 * that run knows no strategy's name. */
#ifndef DDP_RUN_LAUNCH_H
#define DDP_RUN_LAUNCH_H

#include "run/config.h"
#include "run/strategy.h"
#include "wire/wire.h"

typedef struct ddp__strategies {
    int (*fill)(ddp_strategy s, ddp_strategy_ops *ops); /* 0: there is no such strategy */
    ddp_strategy (*named)(const char *name);            /* the default: unknown */
    ddp_strategy (*number)(int i);                      /* the default: no more */
    const char *(*name)(ddp_strategy s);
} ddp__strategies;

/* ddp_open with what only ddp_launch has: the meeting place of threads, or the socket on which rank 0
 * already listens (-1 = none; closed here). */
DDP_LIB ddp_ctx *ddp__open(const ddp_config *cfg, const ddp__strategies *list, ddp__hub *hub,
                           int listen_fd, ddp_error *err);
DDP_LIB int      ddp__launch_all(const ddp_config *cfg, const ddp__strategies *list,
                                 int (*fn)(ddp_ctx *, void *), void *user, ddp_error *err);

/* config.c: checks, environment, defaults. Strings become *out's own, freed by ddp__config_free. */
DDP_LIB ddp_status ddp__config_resolve(const ddp_config *given, const ddp__strategies *list,
                                       ddp_config *out, ddp_strategy_ops *ops, ddp_error *err);
DDP_LIB void       ddp__config_free(ddp_config *c);

/* ---- goes.c: what goes with what ---- */

typedef struct ddp__goes_row { /* settings that no run can have all of */
    unsigned    all;
    ddp_status  code;
    const char *why;
} ddp__goes_row;

typedef struct ddp__goes_trait { /* a setting that a strategy without this trait does not go with; 0: one */
    unsigned    trait, on;       /* that does not go with DDP_NEEDS_TWO_LINKS */
    const char *why;
} ddp__goes_trait;

/* Refuses in a sentence. ops NULL: whatever the strategy. groups: some layer belongs to one. */
DDP_LIB ddp_status ddp__goes_check(const ddp_config *c, const ddp_strategy_ops *ops, int groups,
                                   ddp_error *err);
/* The table: settings by number, NULL: no more; those that are on, as bits; what they do not go with. */
DDP_LIB const char            *ddp__feature_name(int i);
DDP_LIB unsigned               ddp__features_on(const ddp_config *c, int groups);
DDP_LIB const ddp__goes_row   *ddp__goes_refuses(unsigned on);
DDP_LIB const ddp__goes_trait *ddp__goes_lacks(unsigned on, unsigned traits);

#endif /* DDP_RUN_LAUNCH_H */
