#include "base/platform.h"
#include "base/fail.h"
#include "base/memory.h"
#include "plan/baselines.h"

/* Links that take messages in the order of backward: one at a time, or several sharing. */

void ddp__bl_fifo(ddp__bl_model *m, double from, ddp__bl_log *log)
{
    double free_at = from;
    int i;

    for (i = 0; i < m->groups; i++) {
        const ddp__bl_group *g = &m->group[i];
        double begin = free_at > g->ready ? free_at : g->ready;
        free_at = begin + g->c;
        ddp__bl_note(log, g, 0, 1, begin, free_at);
    }
    m->arrive[0] = free_at;
}

/* An operation in flight. It needs no bandwidth before `starts`; from then on it ends when the
 * service that every such operation has received in common reaches `target`. */
typedef struct ddp__bl_flight {
    int    group, busy, served;
    double starts, target;
    ddp_interval *note;
} ddp__bl_flight;

typedef struct ddp__bl_share {
    ddp__bl_flight *lane;
    int             lanes, flying, serving;
    double          now, service;
} ddp__bl_share;

/* The lane of the next change among the operations in flight (the end of a startup or of an
 * operation) and its time; -1 and infinity where none flies. */
static int ddp__bl_next(const ddp__bl_share *s, double *when)
{
    int k, at = -1;

    *when = INFINITY;
    for (k = 0; k < s->lanes; k++) {
        const ddp__bl_flight *x = &s->lane[k];
        double t;
        if (!x->busy) continue;
        t = x->served ? s->now + (x->target - s->service) * s->serving : x->starts;
        if (t < *when) *when = t, at = k;
    }
    return at;
}

static void ddp__bl_launch(ddp__bl_share *s, const ddp__bl_model *m, int group, ddp__bl_log *log)
{
    ddp__bl_flight *x = s->lane;
    double ready = m->group[group].ready;

    if (ready > s->now) {
        if (s->serving) s->service += (ready - s->now) / s->serving;
        s->now = ready;
    }
    while (x->busy) x++;
    x->group = group;
    x->busy = 1;
    x->served = 0;
    x->starts = s->now + m->alpha;
    x->note = ddp__bl_note(log, &m->group[group], 0, 1, s->now, s->now);
    if (x->note) x->note->lane = (int)(x - s->lane);
    s->flying++;
}

static void ddp__bl_change(ddp__bl_share *s, const ddp__bl_model *m, int k, double when)
{
    ddp__bl_flight *x = &s->lane[k];

    /* exactly the target at its end, so that rounding leaves no operation with a remainder */
    if (x->served) s->service = x->target;
    else if (s->serving) s->service += (when - s->now) / s->serving;
    s->now = when;
    if (!x->served) {
        x->served = 1;
        x->target = s->service + (m->group[x->group].c - m->alpha);
        s->serving++;
    } else {
        if (x->note) x->note->end_s = when;
        x->busy = 0;
        s->serving--;
        s->flying--;
    }
}

ddp_status ddp__bl_shared(ddp__bl_model *m, long most, ddp__bl_log *log, ddp_error *err)
{
    ddp__bl_share s;
    double when;
    int i = 0, k;

    memset(&s, 0, sizeof s);
    s.lanes = most < m->groups ? (int)most : m->groups;
    s.lane = (ddp__bl_flight *)ddp__calloc((size_t)s.lanes, sizeof *s.lane);
    if (!s.lane) return ddp__fail(err, DDP_MEMORY, "no memory for %d operations at once", s.lanes);
    while (i < m->groups || s.flying) {
        k = ddp__bl_next(&s, &when);
        if (i < m->groups && s.flying < s.lanes && m->group[i].ready <= when)
            ddp__bl_launch(&s, m, i++, log);
        else ddp__bl_change(&s, m, k, when);
    }
    m->arrive[0] = s.now;
    DDP_FREE(s.lane);
    return DDP_OK;
}
