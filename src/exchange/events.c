/* Evaluates the result of a strategy's events, and checks calls made inside them. */
#include "context/context.h"
#include "exchange/exchange.h"
#include "exchange/events.h"
#include "exchange/verbs.h"

ddp_status ddp__event_over(ddp_ctx *d, int code)
{
    const ddp__strategy_event event = ddp__event_set(d, DDP__NO_EVENT);

    if (ddp__error(d)->code) return ddp__error(d)->code; /* of a verb or ddp_complain */
    if (!code) return DDP_OK;
    return ddp__fail(ddp__error(d), DDP_FAILED,
                     "strategy %s: %s returned %d and gave no reason; ddp_complain gives "
                     "one",
                     ddp__ops(d)->name, ddp__event_name(event), code);
}

ddp_status ddp__verb_enter(ddp_ctx *d, const char *verb)
{
    if (!d) return DDP_ARG;
    if (ddp__error(d)->code) return ddp__error(d)->code;
    if (ddp__event_of(d)) return DDP_OK; /* the hook that runs the event has checked the process */
    DDP__TRY(ddp__host_check(ddp__host_of(d), ddp__error(d)));
    return ddp__fail(ddp__error(d), DDP_USAGE,
                     "%s was called outside of an event of strategy %s: only start, "
                     "forward_begin, backward_end, step_end and their like may",
                     verb, ddp__ops(d)->name);
}

int ddp_complain(ddp_ctx *d, ddp_status code, const char *fmt, ...)
{
    char text[DDP_ERROR_TEXT];
    va_list ap;

    if (!d) return (int)DDP_ARG;
    if (ddp__error(d)->code) return (int)ddp__error(d)->code;
    va_start(ap, fmt);
    ddp__format_list(text, sizeof text, fmt, ap);
    va_end(ap);
    return (int)ddp__fail(ddp__error(d), code, "strategy %s: %s", ddp__ops(d)->name, text);
}

void ddp_say(ddp_ctx *d, ddp_log_level level, const char *fmt, ...)
{
    char text[DDP_ERROR_TEXT];
    va_list ap;

    if (!d) return;
    va_start(ap, fmt);
    ddp__format_list(text, sizeof text, fmt, ap);
    va_end(ap);
    ddp__log(ddp__log_of(d), level, "%s: %s", ddp__ops(d)->name, text);
}

void ddp_explain(ddp_ctx *d, const char *text) { ddp__explain(d, text); }
