/* Blocking calls that follow each other closely: to wake the comm thread for each, and to be woken
 * by it, takes as long as a small message. So for a moment after such a call the comm thread, if it
 * has nothing to do, parks, and the next caller moves its message itself. Only one of the two
 * touches the engine at a time, and they hand it over under the lock. */
#include "net/state.h"

#define DDP__PARK_S 2e-3 /* the next blocking call is expected within */

/* Under the lock: what the comm thread must not sleep over. */
static int ddp__needed(const ddp__engine *e)
{
    return e->submitted != e->first || e->stop || e->error.code != DDP_OK;
}

int ddp__park(ddp__engine *e)
{
    int parked = 0;

    pthread_mutex_lock(&e->lock);
    while (e->driven || (ddp_now() < e->park_until && !ddp__needed(e))) {
        parked = e->parked = 1;
        (void)ddp__cond_wait_until(&e->park, &e->lock, e->driven ? -1 : e->park_until);
    }
    e->parked = 0;
    pthread_mutex_unlock(&e->lock);
    return parked;
}

/* Moves bytes until the message is done, or the comm thread has to go on. */
static void ddp__drive(ddp__engine *e, long ticket)
{
    double until;
    int done = 0;

    while (!done) {
        int moved = ddp__round(e, &until);
        if (e->fault.code != DDP_OK || e->stopping) return;
        pthread_mutex_lock(&e->lock);
        done = ddp__ticket_done(e, ticket);
        pthread_mutex_unlock(&e->lock);
        if (!moved && !done) ddp__sleep(e, until);
    }
}

ddp_status ddp__engine_run(ddp__engine *e, const ddp__message *m, ddp_error *err)
{
    int parks = e->world > 1 && !e->shaped && !e->elastic && !e->wire->begin, driven = 0;
    ddp_status status;
    long ticket;

    if (parks) {
        pthread_mutex_lock(&e->lock);
        driven = e->parked && !e->driven && !ddp__needed(e);
        if (driven) e->driven = 1;
        else e->park_until = ddp_now() + DDP__PARK_S;
        pthread_mutex_unlock(&e->lock);
    }
    status = ddp__engine_submit(e, m, &ticket, err);
    if (driven) {
        if (status == DDP_OK) ddp__drive(e, ticket);
        pthread_mutex_lock(&e->lock);
        e->driven = 0;
        e->park_until = ddp_now() + DDP__PARK_S;
        if (ddp__needed(e)) pthread_cond_signal(&e->park);
        if (status != DDP_OK) ddp__settle(e);
        pthread_mutex_unlock(&e->lock);
    }
    return status == DDP_OK ? ddp__engine_wait(e, ticket, err) : status;
}
