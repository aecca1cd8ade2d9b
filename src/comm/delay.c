/* The emulated link: executes its script, and delays the frames in flight. */
#include "comm/state.h"

#include <signal.h>

uint32_t ddp__microseconds(double t) { return (uint32_t)(uint64_t)ceil(t * 1e6); }

double ddp__emulate_script(ddp__engine *e, double now)
{
    const ddp__links *links = &e->links;
    int stalled = e->stalled;
    double next;

    if (links->own.turns == 0 && e->acted == links->acts) return -1;
    e->stalled = ddp__link_stalled(&e->links.own, now);
    /* a pause because no slot was free is not silence of the peer. A pause because of the stall is. */
    for (int r = 0; e->stalled && !stalled && r < e->world; r++)
        if (e->peers[r].in_state == DDP__IN_PAUSED) e->peers[r].last_got = now;
    next = ddp__link_turns(&e->links.own, now);
    for (; e->acted < links->acts; e->acted++) {
        const ddp__act *act = &links->act[e->acted];
        double at = e->links.own.zero + act->at;
        if (at > now) return next >= 0 && next < at ? next : at;
        ddp__log(&e->cfg.log, DDP_LOG_INFO, "rank %d: the script %s %d at t=%g s", e->rank,
                 act->peer < 0 ? "kills rank" : "drops the connection to rank",
                 act->peer < 0 ? e->rank : act->peer, act->at);
        if (act->peer < 0)
            (void)raise(SIGKILL);
        else
            e->wire->table->cut(e->wire, act->peer);
    }
    return next;
}

/* ---- frames in flight ---- */

/* When the frame just read from a peer would have been read if neither side had been late. The fastest frame
 * so far gives the delay of the wire plus the difference of the clocks, which drift by at most 50 ppm.
 * Without this correction the emulated downlink would stop whenever a thread wakes up late. */
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

/* When the frame reaches this rank's downlink: after the delay and jitter of the path from its peer. */
static double ddp__reaches(ddp__engine *e, int peer, double now)
{
    return ddp__path_receive(&e->links.path[peer], ddp__arrival(&e->peers[peer], now));
}

/* Inserts the chunk after all chunks that reach the downlink before it. */
void ddp__delay_chunk(ddp__engine *e, int slot, double now)
{
    ddp__slot *s = &e->slot[slot];
    int before = e->due.last;

    s->reached = ddp__reaches(e, s->peer, now);
    if (before >= 0 && e->slot[before].reached > s->reached) {
        int next = e->due.first;
        for (before = -1; e->slot[next].reached <= s->reached; next = e->slot[next].next) before = next;
    }
    ddp__chain_add(e, &e->due, slot, before);
}

void ddp__delay_control(ddp__engine *e, int peer, double now)
{
    const ddp__frame *f = &e->peers[peer].in;
    double reached = ddp__reaches(e, peer, now);
    int at = e->control_first + e->control_count++;
    ddp__control c;

    c.f = *f;
    c.peer = peer;
    c.due = ddp__link_receive_control(&e->links.own, reached, DDP__FRAME_BYTES + f->length);
    /* frames of nearer peers overtake, but frames of one peer stay in order */
    for (; at > e->control_first; at--) {
        const ddp__control *before = &e->control[(at - 1) % e->control_room];
        if (before->due <= c.due) break;
        e->control[at % e->control_room] = *before;
    }
    e->control[at % e->control_room] = c;
}

double ddp__last_due(const ddp__engine *e, int peer)
{
    ddp__link l = e->links.own;
    double last = -1;

    for (int s = e->due.first; s >= 0; s = e->slot[s].next) {
        double due = ddp__link_receive(&l, e->slot[s].reached, DDP__FRAME_BYTES + e->slot[s].f.length);
        if (e->slot[s].peer == peer) last = due;
    }
    return last;
}
