/* The emulated link's events, which run at the time they were due, however late the thread wakes up. */
#include "comm/state.h"

typedef enum ddp__event {
    DDP__EVENT_NONE,
    DDP__EVENT_SENT,     /* a frame has left the uplink and the way to its peer */
    DDP__EVENT_UPLINK,   /* the uplink is free again */
    DDP__EVENT_CONTROL,
    DDP__EVENT_CHUNK,
    DDP__EVENT_SUBMITTED
} ddp__event;

static void ddp__earlier(ddp__event kind, double time, ddp__event *next, double *when)
{
    if (*next != DDP__EVENT_NONE && *when <= time) return;
    *next = kind;
    *when = time;
}

static ddp__event ddp__next_event(const ddp__engine *e, double *when)
{
    ddp__event next = DDP__EVENT_NONE;

    *when = -1;
    for (int r = 0; r < e->world; r++)
        if (e->peers[r].out_state == DDP__OUT_SERIALISING)
            ddp__earlier(DDP__EVENT_SENT, e->peers[r].release, &next, when);
    if (e->up_waiting) ddp__earlier(DDP__EVENT_UPLINK, e->link.up_free, &next, when);
    if (e->first_due >= 0) {
        const ddp__slot *s = &e->slot[e->first_due];
        ddp__earlier(DDP__EVENT_CHUNK, ddp__link_due(&e->link, s->reached, DDP__FRAME_BYTES + s->f.length), &next,
                     when);
    }
    if (e->control_count > 0)
        ddp__earlier(DDP__EVENT_CONTROL, e->control[e->control_first].due, &next, when);
    if (e->begun < e->taken)
        ddp__earlier(DDP__EVENT_SUBMITTED, e->ops[e->begun % e->cfg.queue].span.submitted, &next, when);
    return next;
}

double ddp__next_due(const ddp__engine *e)
{
    double when;
    (void)ddp__next_event(e, &when);
    return when;
}

static void ddp__control_due(ddp__engine *e, double when)
{
    ddp__control *c = &e->control[e->control_first];

    if (c->f.type == DDP__FRAME_GOODBYE) { /* it closes the stream: it must not overtake data */
        double last = ddp__last_due(e, c->peer);
        if (last >= 0) {
            c->due = last;
            return;
        }
    }
    e->control_first = (e->control_first + 1) % e->control_room;
    e->control_count--;
    ddp__control_ready(e, c->peer, &c->f, when);
}

/* Writes the frames that have left by then. */
static void ddp__uplink_done(ddp__engine *e, double when)
{
    for (int r = 0; r < e->world; r++) {
        ddp__peer *p = &e->peers[r];
        if (p->out_state != DDP__OUT_SERIALISING || p->release > when) continue;
        p->out_state = DDP__OUT_WRITING;
        (void)ddp__continue_frame(e, r, when);
    }
}

int ddp__run_due(ddp__engine *e, double now)
{
    int moved = 0;
    double when;
    ddp__event kind;

    /* Events run at the time they were due, and so do the frames that they make possible:
     * a thread that wakes up late loses nothing of the rate. */
    while (e->fault.code == DDP_OK && (kind = ddp__next_event(e, &when)) != DDP__EVENT_NONE && when <= now) {
        if (kind == DDP__EVENT_SENT) {
            ddp__uplink_done(e, when);
        } else if (kind == DDP__EVENT_UPLINK) {
            e->up_waiting = 0; /* loaded below */
        } else if (kind == DDP__EVENT_CONTROL) {
            ddp__control_due(e, when);
        } else if (kind == DDP__EVENT_SUBMITTED) {
            e->begun++;
            e->dirty = 1;
        } else {
            int s = e->first_due;
            (void)ddp__link_receive(&e->link, e->slot[s].reached, DDP__FRAME_BYTES + e->slot[s].f.length);
            e->first_due = e->slot[s].next;
            if (e->first_due < 0) e->last_due = -1;
            e->slot[s].next = -1;
            ddp__slot_ready(e, s, when);
        }
        ddp__activate(e, when);
        (void)ddp__send_all(e, when);
        moved = 1;
    }
    return moved;
}
