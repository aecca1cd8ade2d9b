/* Waiting for the first of several operations: what the stager of a device does, whose layers may
 * be back in another order than they left. */
#include "net/state.h"

int ddp__engine_wait_any(ddp__engine *e, const long *tickets, int count, const int *stop)
{
    int i, found = -1;

    pthread_mutex_lock(&e->lock);
    for (;;) {
        for (i = 0; found < 0 && i < count; i++)
            if (ddp__ticket_done(e, tickets[i])) found = i;
        if (found >= 0 || e->quiet || ddp__atomic_load(stop)) break;
        pthread_cond_wait(&e->changed, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}

void ddp__engine_nudge(ddp__engine *e)
{
    pthread_mutex_lock(&e->lock);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}
