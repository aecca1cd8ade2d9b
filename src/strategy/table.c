/* The table of the built-in strategies, and the public functions that pass it to a context. The session code
 * names no strategy. */
#include "session/launch.h"
#include "config/names.h"
#include "session/session.h"
#include "strategy/strategy.h"

typedef struct ddp__strategy_entry {
    ddp_strategy id;
    const char *name;
    void (*fill)(ddp_strategy_ops *ops);
} ddp__strategy_entry;

static const ddp__strategy_entry ddp__strategy_table[] = {
    {DDP_DREAMDDP, "dreamddp", ddp__strategy_dreamddp}, /* the default */
    {DDP_SSGD, "ssgd", ddp__strategy_ssgd},
    {DDP_WFBP, "wfbp", ddp__strategy_wfbp},
#ifndef DDP_NO_PLANNERS
    {DDP_MGWFBP, "mgwfbp", ddp__strategy_mgwfbp},
    {DDP_ASCWFBP, "ascwfbp", ddp__strategy_mgwfbp},
    {DDP_BYTESCHEDULER, "bytescheduler", ddp__strategy_bytescheduler},
    {DDP_USBYTE, "usbyte", ddp__strategy_bytescheduler},
    {DDP_DEFT, "deft", ddp__strategy_deft},
#endif
    {DDP_BSP, "bsp", ddp__strategy_bsp},
    {DDP_ASP, "asp", ddp__strategy_asp},
    {DDP_SSP, "ssp", ddp__strategy_asp},
    {DDP_R2SP, "r2sp", ddp__strategy_asp},
#ifndef DDP_NO_PLANNERS
    {DDP_OSP, "osp", ddp__strategy_osp},
#endif
    {DDP_LOCALSGD, "localsgd", ddp__strategy_localsgd},
    {DDP_ENP, "enp", ddp__strategy_dreamddp},
    {DDP_DILOCO, "diloco", ddp__strategy_diloco},
#ifndef DDP_NO_PLANNERS
    {DDP_SPARSELOCO, "sparseloco", ddp__strategy_diloco},
    {DDP_AUTO, "auto", ddp__strategy_auto},
#endif
    {DDP_STRATEGY_DEFAULT, NULL, NULL},
};

/* The strategy's entry, or the end of the table. */
static const ddp__strategy_entry *ddp__strategy_find(ddp_strategy s)
{
    const ddp__strategy_entry *t = ddp__strategy_table;

    while (t->name && t->id != s && s != DDP_STRATEGY_DEFAULT) t++;
    return t;
}

static int ddp__strategy_fill(ddp_strategy s, ddp_strategy_ops *ops)
{
    const ddp__strategy_entry *t = ddp__strategy_find(s);

    memset(ops, 0, sizeof *ops);
    if (!t->name) return 0;
    t->fill(ops);
    ops->name = t->name;
    return 1;
}

const char *ddp_strategy_name(ddp_strategy s)
{
    const char *name = ddp__strategy_find(s)->name;

    return name ? name : "unknown";
}

unsigned ddp_strategy_traits(ddp_strategy s)
{
    ddp_strategy_ops ops;

    return ddp__strategy_fill(s, &ops) ? ops.traits : 0;
}

ddp_strategy ddp_strategy_named(const char *name)
{
    const ddp__strategy_entry *t = ddp__strategy_table;

    while (name && t->name && strcmp(name, t->name)) t++;
    return name ? t->id : DDP_STRATEGY_DEFAULT;
}

ddp_strategy ddp_strategy_number(int i)
{
    const ddp__strategy_entry *t = ddp__strategy_table;

    while (t->name && i-- != 0) t++;
    return t->id;
}

const ddp__strategies *ddp__built_in(void)
{
    static const ddp__strategies table = {ddp__strategy_fill, ddp_strategy_named, ddp_strategy_number,
                                          ddp_strategy_name};

    return &table;
}

ddp_status ddp_config_set(ddp_config *c, const char *field, const char *value, ddp_error *err)
{
    return ddp__setting_set(ddp__built_in(), c, field, value, err);
}

int ddp_config_describe(const ddp_config *c, int i, ddp_setting *out)
{
    return ddp__setting_describe(ddp__built_in(), c, i, out);
}

ddp_ctx *ddp_open(const ddp_config *cfg, ddp_error *err)
{
    return ddp__open(cfg, ddp__built_in(), NULL, -1, err);
}

int ddp_launch(const ddp_config *cfg, int (*fn)(ddp_ctx *, void *), void *user, ddp_error *err)
{
    return ddp__launch_all(cfg, ddp__built_in(), fn, user, err);
}
