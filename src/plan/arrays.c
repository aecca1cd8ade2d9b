/* Checks the arrays of a search, and copies arrays into the result of a plan. */
#include "plan/arrays.h"

ddp_status ddp__scratch_check(ddp__scratch *s, int n, const char *what, ddp_error *err)
{
    if (!ddp__scratch_failed(s)) return DDP_OK;
    ddp__scratch_free(s);
    return ddp__fail(err, DDP_MEMORY, "no memory to plan %d %s", n, what);
}

void *ddp__copy(const void *from, size_t count, size_t size)
{
    void *to = ddp__calloc(count, size);
    return to && count ? memcpy(to, from, count * size) : to;
}
