/* Replaces a strategy that chooses, such as auto, by its choice. */
#include "config/settings.h"
#include "comm/frame.h"
#include "context/context.h"
#include "device/device.h"
#include "exchange/average.h"
#include "exchange/events.h"
#include "exchange/post.h"
#include "exchange/verbs.h"
#include "measure/account.h"
#include "measure/timing.h"
#include "session/admission.h"
#include "session/part.h"
#include "session/planning.h"

ddp_status ddp__choose_as(ddp_ctx *d, const ddp_chosen *chosen, ddp_error *err)
{
    const ddp_coding coding = ddp__wire_coding((ddp_wire)chosen->wire);

    DDP__TRY(ddp__strategy_replace(d, chosen, err));
    d->session->chosen = *chosen;
    ddp__stats(d)->chosen = &d->session->chosen;
    if (ddp__engine_of(d, 0)) ddp__engine_code(ddp__engine_of(d, 0), coding);
    if (ddp__second_of(d)) ddp__engine_code(ddp__second_of(d), coding);
    /* no rank sends in the new format before all ranks expect it */
    if (ddp__engine_of(d, 0)) DDP__TRY(ddp__all_come(d, ddp__team_group(d), err));
    DDP__TRY(ddp__coded_memory(d, err));
    DDP__TRY(ddp__landing_open(d, err));
    if (ddp__engine_of(d, 0)) ddp__coded_start(d, 1);
    DDP__TRY(DDP__EVENT(d, start, (d, ddp__self(d))));
    ddp__layers_freeze(d);
    if (ddp__engine_of(d, 0)) ddp__admission_ready(d);
    ddp__account_period(d, ddp__period_of(d));
    return DDP_OK;
}

ddp_status ddp__choose(ddp_ctx *d, const ddp_profile *p, ddp_error *err)
{
    const char *name = ddp__ops(d)->name;
    ddp_chosen c = DDP__ZEROS;

    if (!ddp__ops(d)->choose || ddp_world(d) == 1) return DDP_OK;
    /* with min_world every rank computes the choice, because the first rank may fail before it sends it */
    if (ddp__leads(d) || ddp__cfg(d)->elastic.min_world)
        DDP__TRY(DDP__EVENT(d, choose, (d, ddp__self(d), p, &c)));
    DDP__TRY(ddp__tell(d, ddp__team_group(d), &c, sizeof c, err));
    DDP__TRY(ddp__choose_as(d, &c, err));
    if (ddp__leads(d))
        ddp__log(ddp__log_of(d), DDP_LOG_INFO, "step %ld: %s chooses %s: %s", ddp_step(d), name, c.name,
                 c.reason);
    return DDP_OK;
}

ddp_status ddp__choose_early(ddp_ctx *d, ddp_error *err)
{
    ddp_profile model = DDP__ZEROS, p = DDP__ZEROS;
    ddp_status s;

    if (!ddp__ops(d)->choose || !d->session->plan_final) return DDP_OK;
    s = ddp__profile_first(d, &model, &p, err);
    if (s == DDP_OK) {
        ddp__profile_between(d, &p);
        s = ddp__choose(d, &p, err);
    }
    ddp_profile_free(&model);
    ddp_profile_free(&p);
    return s;
}
