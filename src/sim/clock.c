/* Scheduling and virtual time. A worker runs until it waits. The waiting worker then processes events until
 * another worker can run, and passes control to that worker. */
#include "sim/world.h"

/* ---- events ---- */

static int ddp__event_before(const ddp__event *a, const ddp__event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void ddp__world_at(ddp__world *w, double at, void (*fn)(ddp__world *, void *, int, int), void *what, int i,
                   int j)
{
    const ddp__event e = {at > w->now ? at : w->now, w->orders++, fn, what, i, j};
    size_t k = stbds_arrlenu(w->event);

    if (!ddp__world_reserve(w, w->event)) return;
    stbds_arrsetlen(w->event, k + 1);
    for (; k > 0 && ddp__event_before(&e, &w->event[(k - 1) / 2]); k = (k - 1) / 2)
        w->event[k] = w->event[(k - 1) / 2];
    w->event[k] = e;
}

static ddp__event ddp__event_take(ddp__world *w)
{
    const ddp__event first = w->event[0], last = stbds_arrpop(w->event);
    const size_t n = stbds_arrlenu(w->event);
    size_t k = 0, child;

    for (; (child = 2 * k + 1) < n; k = child) {
        if (child + 1 < n && ddp__event_before(&w->event[child + 1], &w->event[child])) child++;
        if (!ddp__event_before(&w->event[child], &last)) break;
        w->event[k] = w->event[child];
    }
    if (n) w->event[k] = last;
    return first;
}

/* ---- turns ---- */

void ddp__seat_ready(ddp__world *w, ddp__player *s)
{
    if (s->state != DDP__PLAYER_WAITS) return;
    if (s->now < w->now) s->now = w->now;
    s->state = DDP__PLAYER_READY;
    s->at = NULL;
    s->next = NULL;
    if (w->first)
        w->last->next = s;
    else
        w->first = s;
    w->last = s;
}

static void ddp__seat_wakes(ddp__world *w, void *what, int i, int j)
{
    (void)i;
    (void)j;
    ddp__seat_ready(w, (ddp__player *)what);
}

/* The worker that runs next. NULL means that no worker can ever run. */
static ddp__player *ddp__world_next(ddp__world *w)
{
    double *own = ddp__time_set(&w->now);
    ddp__player *s;

    while (!w->first && stbds_arrlenu(w->event) && w->error.code == DDP_OK) {
        const ddp__event e = ddp__event_take(w);
        w->now = e.at;
        w->events++;
        e.fn(w, e.what, e.i, e.j);
    }
    if (!w->first) w->stuck(w);
    s = w->first;
    if (s) {
        w->first = s->next;
        s->state = DDP__PLAYER_RUNS;
        pthread_cond_signal(&s->turn);
    }
    (void)ddp__time_set(own);
    return s;
}

static void ddp__seat_pause(ddp__player *s)
{
    while (s->state != DDP__PLAYER_RUNS) pthread_cond_wait(&s->turn, &s->world->lock);
}

void ddp__seat_wait(ddp__player *s, ddp__port *at)
{
    ddp__world *w = s->world;

    if (w->error.code) return; /* the world has failed: no more events */
    s->state = DDP__PLAYER_WAITS;
    s->at = at;
    if (!at) ddp__world_at(w, s->now, ddp__seat_wakes, s, 0, 0);
    (void)ddp__world_next(w);
    ddp__seat_pause(s);
}

void ddp__seat_end(ddp__player *s)
{
    s->state = DDP__PLAYER_OVER;
    (void)ddp__world_next(s->world);
}

void ddp__seat_begin(ddp__player *s)
{
    pthread_mutex_lock(&s->world->lock);
    ddp__seat_pause(s);
    pthread_mutex_unlock(&s->world->lock);
    (void)ddp__time_set(&s->now);
}

void ddp__world_begin(ddp__world *w)
{
    pthread_mutex_lock(&w->lock);
    for (int r = 0; r < w->seats; r++) ddp__seat_ready(w, &w->seat[r]);
    (void)ddp__world_next(w);
    pthread_mutex_unlock(&w->lock);
}
