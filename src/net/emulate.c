/* The emulated link between the wire and the rest of the engine: a queue of what is under way, and
 * events that run at the time they were due, however late the thread wakes up. */
#include "net/state.h"

#include <signal.h>

uint32_t ddp__microseconds(double t)
{
    return (uint32_t)(uint64_t)ceil(t * 1e6);
}

/* ---- the configuration ---- */

void ddp__emulate_plan(ddp__engine *e)
{
    const ddp__links *links = e->cfg.links;

    if (e->world == 1) return;
    e->link.rate = links ? links->rate : e->cfg.rate;
    e->slowest = links ? links->slowest : e->cfg.rate;
    e->farthest = links ? links->farthest : e->cfg.delay_s;
    if (links) {
        e->link.turn = links->turn;
        e->link.turns = links->turns;
    }
    e->paced = e->slowest > 0 || e->link.turns > 0;
    e->shaped = e->paced || e->farthest > 0;
}

void ddp__emulate_start(ddp__engine *e)
{
    e->link.zero = ddp_now();
    for (int r = 0; r < e->world; r++) {
        if (e->cfg.links) {
            e->path[r] = e->cfg.links->path[r];
        } else {
            memset(&e->path[r], 0, sizeof e->path[r]);
            e->path[r].delay_s = e->farthest;
        }
    }
}

double ddp__emulate_script(ddp__engine *e, double now)
{
    const ddp__links *links = e->cfg.links;
    int stalled = e->stalled;
    double next;

    if (!links || (links->turns == 0 && e->acted == links->acts)) return -1;
    e->stalled = ddp__link_stalled(&e->link, now);
    /* what this rank did not read for want of room is no silence, what the stall keeps away is */
    for (int r = 0; e->stalled && !stalled && r < e->world; r++)
        if (e->peers[r].in_state == DDP__IN_PAUSED) e->peers[r].last_got = now;
    next = ddp__link_turns(&e->link, now);
    for (; e->acted < links->acts; e->acted++) {
        const ddp__act *act = &links->act[e->acted];
        double at = e->link.zero + act->at;
        if (at > now) return next >= 0 && next < at ? next : at;
        ddp__log(&e->cfg.log, DDP_LOG_INFO, "rank %d: the script %s %d at t=%g s", e->rank,
                 act->peer < 0 ? "kills rank" : "drops the connection to rank",
                 act->peer < 0 ? e->rank : act->peer, act->at);
        if (act->peer < 0) (void)raise(SIGKILL);
        else e->wire->table->cut(e->wire, act->peer);
    }
    return next;
}

/* ---- what is under way ---- */

/* When the frame just read from a peer would have been read, had neither side been late. The
 * quickest frame tells what the wire itself takes and how far apart the clocks are; they drift by
 * 50 ppm at most. Without this the emulated downlink would stand still whenever a thread
 * oversleeps. */
static double ddp__arrival(ddp__peer *p, double now)
{
    uint32_t transit = ddp__microseconds(now) - p->in.sent;
    double late = (double)(int32_t)(transit - p->transit) * 1e-6 - 50e-6 * (now - p->transit_at);

    if (p->transit_at > 0 && late > 0) {
        if (now - late > p->reached) p->reached = now - late;
    } else {
        p->transit = transit;
        p->reached = p->transit_at = now;
    }
    return p->reached;
}

/* When it reaches this rank's downlink: delay and jitter after it left the way from its peer. */
static double ddp__reaches(ddp__engine *e, int peer, double now)
{
    return ddp__path_receive(&e->path[peer], ddp__arrival(&e->peers[peer], now));
}

/* Behind all that reached the downlink before it. */
void ddp__delay_chunk(ddp__engine *e, int slot, double now)
{
    ddp__slot *s = &e->slot[slot];
    int before = e->last_due;

    s->reached = ddp__reaches(e, s->peer, now);
    if (before >= 0 && e->slot[before].reached > s->reached) {
        int next = e->first_due;
        for (before = -1; e->slot[next].reached <= s->reached; next = e->slot[next].next)
            before = next;
    }
    s->next = before >= 0 ? e->slot[before].next : e->first_due;
    if (before >= 0) e->slot[before].next = slot;
    else e->first_due = slot;
    if (before == e->last_due) e->last_due = slot;
}

void ddp__delay_control(ddp__engine *e, int peer, double now)
{
    const ddp__frame *f = &e->peers[peer].in;
    double reached = ddp__reaches(e, peer, now);
    int at = e->control_first + e->control_count++;
    ddp__control c;

    c.f = *f;
    c.peer = peer;
    c.due = ddp__link_receive_control(&e->link, reached, DDP__FRAME_BYTES + f->length);
    /* nearer peers' frames overtake, those of one peer do not: they reach us in order */
    for (; at > e->control_first; at--) {
        const ddp__control *before = &e->control[(at - 1) % e->control_room];
        if (before->due <= c.due) break;
        e->control[at % e->control_room] = *before;
    }
    e->control[at % e->control_room] = c;
}

/* ---- events ---- */

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
        ddp__earlier(DDP__EVENT_CHUNK,
                     ddp__link_due(&e->link, s->reached, DDP__FRAME_BYTES + s->f.length), &next,
                     when);
    }
    if (e->control_count > 0)
        ddp__earlier(DDP__EVENT_CONTROL, e->control[e->control_first].due, &next, when);
    if (e->begun < e->taken)
        ddp__earlier(DDP__EVENT_SUBMITTED, e->ops[e->begun % e->cfg.queue].span.submitted, &next,
                     when);
    return next;
}

double ddp__next_due(const ddp__engine *e)
{
    double when;
    (void)ddp__next_event(e, &when);
    return when;
}

/* When the last chunk of a peer that is under way will be here; -1: none is. */
static double ddp__last_due(const ddp__engine *e, int peer)
{
    ddp__link l = e->link;
    double last = -1;
    int s;

    for (s = e->first_due; s >= 0; s = e->slot[s].next) {
        double due =
            ddp__link_receive(&l, e->slot[s].reached, DDP__FRAME_BYTES + e->slot[s].f.length);
        if (e->slot[s].peer == peer) last = due;
    }
    return last;
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
    while (e->fault.code == DDP_OK && (kind = ddp__next_event(e, &when)) != DDP__EVENT_NONE &&
           when <= now) {
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
            (void)ddp__link_receive(&e->link, e->slot[s].reached,
                                    DDP__FRAME_BYTES + e->slot[s].f.length);
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
