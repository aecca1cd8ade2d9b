/* The names of spans. */
#include "profile/trace.h"

const char *ddp_span_kind_name(ddp_span_kind kind)
{
    static const char *const name[] = {"forward", "backward", "update", "wait", "comm", "fill", "peer wait"};
    return (unsigned)kind < DDP_SPAN_KINDS ? name[kind] : "?";
}
