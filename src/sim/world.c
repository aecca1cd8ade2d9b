/* Memory of a simulated world. Out of memory ends the simulation, so callers need not report it. */
#include "sim/world.h"

int ddp__world_has(ddp__world *w, int has)
{
    ddp_error err;

    if (has) return 1;
    (void)ddp__fail(&err, DDP_MEMORY, "out of memory for the messages of a simulated world");
    w->fails(w, &err);
    return 0;
}

void *ddp__world_new(ddp__world *w, size_t count, size_t size)
{
    void *memory = ddp__calloc(count, size);

    (void)ddp__world_has(w, memory != NULL);
    return memory;
}
