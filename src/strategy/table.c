/* The table of the built-in strategies, and the two doors that hand it to a context: run knows no strategy's name. */
#include "strategy/strategy.h"

typedef struct ddp__strategy_entry {
    ddp_strategy id;
    void (*fill)(ddp_strategy_ops *ops);
} ddp__strategy_entry;

static const ddp__strategy_entry *ddp__strategy_entries(int *count)
{
    static const ddp__strategy_entry table[] = {{DDP_DREAMDDP, ddp__strategy_dreamddp}, /* the default */
                                                {DDP_SSGD, ddp__strategy_ssgd},
                                                {DDP_WFBP, ddp__strategy_wfbp},
#ifndef DDP_NO_PLANNERS
                                                {DDP_MGWFBP, ddp__strategy_mgwfbp},
                                                {DDP_ASCWFBP, ddp__strategy_ascwfbp},
                                                {DDP_BYTESCHEDULER, ddp__strategy_bytescheduler},
                                                {DDP_USBYTE, ddp__strategy_usbyte},
                                                {DDP_DEFT, ddp__strategy_deft},
#endif
                                                {DDP_BSP, ddp__strategy_bsp},
                                                {DDP_ASP, ddp__strategy_asp},
                                                {DDP_SSP, ddp__strategy_ssp},
                                                {DDP_R2SP, ddp__strategy_r2sp},
#ifndef DDP_NO_PLANNERS
                                                {DDP_OSP, ddp__strategy_osp},
#endif
                                                {DDP_LOCALSGD, ddp__strategy_localsgd},
                                                {DDP_ENP, ddp__strategy_enp},
                                                {DDP_DILOCO, ddp__strategy_diloco}
#ifndef DDP_NO_PLANNERS
                                                , {DDP_SPARSELOCO, ddp__strategy_sparseloco}
#endif
    };

    *count = (int)(sizeof table / sizeof table[0]);
    return table;
}

static int ddp__strategy_fill(ddp_strategy s, ddp_strategy_ops *ops)
{
    int n, i;
    const ddp__strategy_entry *t = ddp__strategy_entries(&n);

    memset(ops, 0, sizeof *ops);
    for (i = 0; i < n && t[i].id != s && s != DDP_STRATEGY_DEFAULT; i++) {}
    if (i == n) return 0;
    t[i].fill(ops);
    return 1;
}

const char *ddp_strategy_name(ddp_strategy s)
{
    ddp_strategy_ops ops;

    return ddp__strategy_fill(s, &ops) ? ops.name : "unknown";
}

unsigned ddp_strategy_traits(ddp_strategy s)
{
    ddp_strategy_ops ops;

    return ddp__strategy_fill(s, &ops) ? ops.traits : 0;
}

ddp_strategy ddp_strategy_named(const char *name)
{
    int n;
    const ddp__strategy_entry *t = ddp__strategy_entries(&n);

    for (int i = 0; name && i < n; i++)
        if (!strcmp(name, ddp_strategy_name(t[i].id))) return t[i].id;
    return DDP_STRATEGY_DEFAULT;
}

ddp_strategy ddp_strategy_number(int i)
{
    int n;
    const ddp__strategy_entry *t = ddp__strategy_entries(&n);

    return i >= 0 && i < n ? t[i].id : DDP_STRATEGY_DEFAULT;
}

const char *ddp__strategy_reference(void) { return ddp_strategy_name(DDP_SSGD); }

const ddp__strategies *ddp__built_in(void)
{
    static const ddp__strategies table = {ddp__strategy_fill, ddp_strategy_named, ddp_strategy_number,
                                          ddp_strategy_name};

    return &table;
}

ddp_ctx *ddp_open(const ddp_config *cfg, ddp_error *err) { return ddp__open(cfg, ddp__built_in(), NULL, -1, err); }

int ddp_launch(const ddp_config *cfg, int (*fn)(ddp_ctx *, void *), void *user, ddp_error *err)
{
    return ddp__launch_all(cfg, ddp__built_in(), fn, user, err);
}
