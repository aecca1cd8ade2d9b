/* When a rank of a pipeline is lost: who it was. */
#include "pipe/executor.h"

void ddp__pipe_names(const ddp_pipe *p)
{
    for (int i = 0; p->stages > 1 && i < p->d->world; i++) {
        char name[48];
        snprintf(name, sizeof name, "stage %d of pipeline %d", i % p->stages, i / p->stages);
        ddp__engine_call(p->d->engine, p->rank_of[i], name);
        if (p->d->second) ddp__engine_call(p->d->second, p->rank_of[i], name);
    }
}
