/* What a strategy's events did and said. */
#include "context/context.h"
#include "exchange/events.h"
#include "exchange/verbs.h"

ddp_status ddp__event_over(ddp_ctx *d, int code)
{
    const ddp__strategy_event event = d->event;

    d->event = DDP__NO_EVENT;
    if (d->host.error.code) return d->host.error.code; /* a verb's, or what was complained of */
    if (!code) return DDP_OK;
    return ddp__fail(&d->host.error, DDP_FAILED,
                     "strategy %s: %s returned %d and gave no reason; ddp_complain gives "
                     "one",
                     d->ops.name, ddp__event_name(event), code);
}

ddp_status ddp__verb_enter(ddp_ctx *d, const char *verb)
{
    if (!d) return DDP_ARG;
    if (d->host.error.code) return d->host.error.code;
    if (d->event) return DDP_OK; /* the hook around the event has checked the process */
    DDP__TRY(ddp__host_check(&d->host, &d->host.error));
    return ddp__fail(&d->host.error, DDP_USAGE,
                     "%s was called outside of an event of strategy %s: only start, "
                     "forward_begin, backward_end, step_end and their like may",
                     verb, d->ops.name);
}

int ddp_complain(ddp_ctx *d, ddp_status code, const char *fmt, ...)
{
    char text[DDP_ERROR_TEXT];
    va_list ap;

    if (!d) return (int)DDP_ARG;
    if (d->host.error.code) return (int)d->host.error.code;
    va_start(ap, fmt);
    ddp__format_list(text, sizeof text, fmt, ap);
    va_end(ap);
    return (int)ddp__fail(&d->host.error, code, "strategy %s: %s", d->ops.name, text);
}

void ddp_say(ddp_ctx *d, ddp_log_level level, const char *fmt, ...)
{
    char text[DDP_ERROR_TEXT];
    va_list ap;

    if (!d) return;
    va_start(ap, fmt);
    ddp__format_list(text, sizeof text, fmt, ap);
    va_end(ap);
    ddp__log(&d->host.log, level, "%s: %s", d->ops.name, text);
}

void ddp_explain(ddp_ctx *d, const char *text) { ddp__explain(d, text); }
