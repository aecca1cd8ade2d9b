/* Runs a strategy's events, and tracks the messages that it has posted. */
#pragma once

#include "context/context.h"
#include "exchange/verbs.h"

/* Runs an event, if the strategy implements it. The value is a ddp_status. */
#define DDP__EVENT(d, what, args)                                                                 \
    (ddp__ops(d)->what                                                                            \
         ? (ddp__event_set((d), DDP__EVENT_##what), ddp__event_over((d), ddp__ops(d)->what args)) \
         : DDP_OK)
DDP_LIB ddp_status ddp__event_over(ddp_ctx *d, int code);
/* First line of every verb. */
#define DDP__VERB(verb) DDP__DO(ddp__verb_enter(d, verb))
DDP_LIB ddp_status ddp__verb_enter(ddp_ctx *d, const char *verb);
DDP_LIB ddp_status ddp__posted_open(ddp_ctx *d, ddp_error *err);
DDP_LIB void ddp__posted_close(ddp_ctx *d);
/* Reports completed messages to the strategy. */
DDP_LIB ddp_status ddp__posted_look(ddp_ctx *d);
/* Return an error if a message is still posted: the first for any message (in_layers: a message that uses the
 * memory of layers), the second for a message in the memory of this layer, posted in an earlier step. */
DDP_LIB ddp_status ddp__posted_none(ddp_ctx *d, int in_layers, const char *when);
DDP_LIB ddp_status ddp__posted_of_layer(ddp_ctx *d, int layer);
/* wait: completes all messages in flight. drain: also completes the work that the strategy has deferred. */
DDP_LIB ddp_status ddp__strategy_wait(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__strategy_drain(ddp_ctx *d, ddp_error *err);
