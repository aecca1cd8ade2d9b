/* The comm thread: its rounds, the events of the emulated link, and its end. */
#include "comm/state.h"

/* ---- the emulated link's events ---- */

/* When the next chunk in flight has passed the downlink. DBL_MAX if no chunk is in flight. */
static double ddp__chunk_due(const ddp__engine *e)
{
    const ddp__slot *s = &e->slot[e->due.first];

    return e->due.first < 0 ? DBL_MAX
                            : ddp__link_due(&e->links.own, s->reached, DDP__FRAME_BYTES + s->f.length);
}

/* The next event: a frame has left, the uplink is free, a frame arrives, or a message was submitted. DBL_MAX
 * without an event. */
static double ddp__next_event(const ddp__engine *e)
{
    double next = ddp__chunk_due(e);

    for (int r = 0; r < e->world; r++)
        if (e->peers[r].out_state == DDP__OUT_SERIALISING) next = fmin(next, e->peers[r].release);
    if (e->up_waiting) next = fmin(next, e->links.own.up_free);
    if (e->control_count > 0) next = fmin(next, e->control[e->control_first].due);
    if (e->begun < e->taken) next = fmin(next, e->ops[e->begun % e->cfg.queue].span.submitted);
    return next;
}

static void ddp__control_due(ddp__engine *e, double when)
{
    ddp__control *c = &e->control[e->control_first];

    if (c->f.type == DDP__FRAME_GOODBYE) { /* it closes the stream, so it must not overtake data */
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

/* Runs events at the time they were due, and sends the frames that they enable at that time: a late wake-up
 * does not reduce the emulated rate. */
static int ddp__run_due(ddp__engine *e, double now)
{
    int moved = 0;
    double when;

    for (; e->fault.code == DDP_OK && (when = ddp__next_event(e)) <= now; moved = 1) {
        for (int r = 0; r < e->world; r++) {
            ddp__peer *p = &e->peers[r];
            if (p->out_state != DDP__OUT_SERIALISING || p->release > when) continue;
            p->out_state = DDP__OUT_WRITING;
            (void)ddp__continue_frame(e, r, when);
        }
        if (ddp__chunk_due(e) <= when) {
            int s = e->due.first;
            (void)ddp__link_receive(&e->links.own, e->slot[s].reached,
                                    DDP__FRAME_BYTES + e->slot[s].f.length);
            ddp__chain_remove(e, &e->due, s);
            ddp__slot_ready(e, s, when);
        }
        if (e->control_count > 0 && e->control[e->control_first].due <= when) ddp__control_due(e, when);
        if (e->begun < e->taken && e->ops[e->begun % e->cfg.queue].span.submitted <= when) {
            e->begun++;
            e->dirty = 1;
        }
        ddp__activate(e, when);
        (void)ddp__send_all(e, when); /* loads an uplink that is free again */
    }
    return moved;
}

/* ---- rounds ---- */

/* Reads new messages, and requests to abort or to stop. */
static void ddp__look(ddp__engine *e)
{
    ddp__op *oldest;
    int tight;

    pthread_mutex_lock(&e->lock);
    tight = e->tight;
    e->tight = 0;
    if (e->submitted != e->taken) {
        e->taken = e->submitted;
        e->dirty = 1;
    }
    e->stopping = e->stop;
    if (e->wanted) ddp__oplog_serve(e);
    if (e->retires) {
        e->retires = 0;
        e->blocks = e->world - e->cfg.servers;
        e->retired_at = e->next_seq;
        ddp__members_set(e, e->epoch.live);
        pthread_cond_broadcast(&e->changed);
    }
    if (e->error.code != DDP_OK && e->fault.code == DDP_OK) {
        e->fault = e->error;
        e->fault_origin = e->rank;
    }
    pthread_mutex_unlock(&e->lock);
    oldest = &e->ops[e->first % e->cfg.queue];
    if (tight && e->first < e->taken && oldest->state == DDP__OP_QUEUED && oldest->m.verb == DDP_SERVE)
        (void)ddp__op_void(e, oldest); /* its peer may take any time to come */
}

void ddp__sleep(ddp__engine *e, double until)
{
    int ready;

    for (int r = 0; r < e->world; r++) {
        const ddp__peer *p = &e->peers[r];
        e->want_send[r] = r != e->rank && p->out_state == DDP__OUT_WRITING;
        e->want_recv[r] = r != e->rank && !p->closed && p->in_state != DDP__IN_PAUSED &&
                          !(e->shaped && e->control_count == e->control_room) && !e->stalled;
    }
    pthread_mutex_lock(&e->lock);
    ready = e->submitted != e->taken || e->stop != e->stopping || e->wanted || e->retires || e->tight ||
            (e->error.code != DDP_OK) != (e->fault.code != DDP_OK);
    e->sleeping = !ready;
    pthread_mutex_unlock(&e->lock);
    if (ready) return;
    e->wire->table->wait(e->wire, e->want_send, e->want_recv, until);
    pthread_mutex_lock(&e->lock);
    e->sleeping = 0;
    pthread_mutex_unlock(&e->lock);
}

/* Stops all use of the memory of operations in flight. */
static void ddp__let_go(ddp__engine *e)
{
    for (int i = 0; i < DDP__WINDOW; i++)
        if (e->window[i] && e->window[i]->way->finished) e->window[i]->way->finished(e, e->window[i]);
}

/* After a failure: completes half-written frames, so that streams stay readable, notifies the peers of the
 * cause, and releases all memory. */
static void ddp__give_up(ddp__engine *e)
{
    double until = ddp_now() + 0.5;
    int busy = 1;

    ddp__log(&e->cfg.log, DDP_LOG_ERROR, "rank %d: %s", e->rank, e->fault.msg);
    for (int r = 0; r < e->world; r++) {
        ddp__peer *p = &e->peers[r];
        p->want_abort =
            r != e->rank && !p->closed && !p->left && !e->stalled && !e->silent && !p->out_of_world;
        if (p->out_state == DDP__OUT_SERIALISING || (p->out_state == DDP__OUT_WRITING && p->out_sent == 0))
            p->out_state = DDP__OUT_IDLE;
        e->want_recv[r] = 0;
    }
    while (busy) {
        double now = ddp_now();
        busy = 0;
        e->looked_at[0] = e->looked_at[1] = 0;
        for (int r = 0; r < e->world; r++) {
            ddp__peer *p = &e->peers[r];
            if (r == e->rank) continue;
            (void)ddp__continue_frame(e, r, now);
            if (p->out_state == DDP__OUT_IDLE && p->want_abort && ddp__start_next(e, r, now))
                (void)ddp__continue_frame(e, r, now);
            e->want_send[r] = p->out_state == DDP__OUT_WRITING;
            busy |= e->want_send[r];
        }
        if (now >= until) break;
        if (busy) e->wire->table->wait(e->wire, e->want_send, e->want_recv, until);
    }
    ddp__let_go(e);
    pthread_mutex_lock(&e->lock);
    e->quiet = 1;
    pthread_cond_broadcast(&e->changed);
    while (!e->stop) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

/* After close: completes operations that still move, sends goodbyes, and waits until the peers have read
 * everything. Returns 1 when nothing is left to wait for. */
static int ddp__may_stop(ddp__engine *e, double now, double *until)
{
    int waiting = 0, moving = e->first < e->taken;
    double patience = 0.5 + 2 * e->links.farthest;

    if (e->membership && !e->closing && e->membership->busy(e)) { /* others may need a result of this rank */
        moving = 1;
        patience += e->cfg.peer_timeout_s > 0 ? 2 * e->cfg.peer_timeout_s : 10;
    }
    if (!e->closing) {
        if (moving && !ddp__passed(e->last_move + patience, now, until)) return 0;
        e->closing = 1;
        e->last_move = now;
        for (int r = 0; r < e->world; r++) {
            ddp__peer *p = &e->peers[r];
            if (r != e->rank && !p->closed) p->want_goodbye = 1;
        }
        *until = now;
        return 0;
    }
    for (int r = 0; r < e->world; r++) {
        const ddp__peer *p = &e->peers[r];
        if (r == e->rank || p->closed || p->send_dead || p->out_of_world) continue;
        waiting |= !p->farewell || p->want_farewell || p->want_goodbye || p->out_state != DDP__OUT_IDLE;
    }
    return !waiting || ddp__passed(e->last_move + patience + 0.5, now, until);
}

/* Runs the wire's own initialisation on this thread, before its first byte. */
static int ddp__wire_begin(ddp__engine *e)
{
    ddp_error err = DDP__ZEROS;
    ddp_status status;

    status = e->wire->begin ? e->wire->begin(e->wire, &err) : DDP_OK;
    pthread_mutex_lock(&e->lock);
    if (status != DDP_OK) e->error = err;
    e->begun_wire = 1;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return status == DDP_OK;
}

int ddp__round(ddp__engine *e, double *until)
{
    double now, script;
    int moved;

    e->looked_at[0] = e->looked_at[1] = 0;
    ddp__look(e);
    now = ddp_now();
    (void)ddp__was_stopped(e, now); /* before the wire checks its time-outs */
    script = ddp__emulate_script(e, now);
    moved = e->fault.code == DDP_OK && !e->stalled && ddp__receive_all(e);
    now = ddp_now();
    if (e->membership && e->fault.code == DDP_OK) e->membership->run(e, now);
    if (e->shaped && ddp__run_due(e, now)) moved = 1;
    ddp__activate(e, now);
    if (e->fault.code == DDP_OK && ddp__share_run(e, now)) moved = 1;
    if (e->fault.code == DDP_OK && ddp__send_all(e, now)) moved = 1;
    ddp__activate(e, now);
    if (e->finished) {
        ddp__publish(e);
        moved = 1;
    }
    if (e->fault.code == DDP_OK && (!moved || now >= e->next_check)) ddp__check_liveness(e, now);
    *until = e->next_check;
    if (moved || e->fault.code != DDP_OK) return moved;
    ddp__note_waiting(e, now);
    if (e->shaped) *until = fmin(*until, ddp__next_event(e));
    for (int r = 0; e->shaped && r < e->world; r++) { /* overdue credits wait for the uplink, which is an
                                                         event above */
        const ddp__peer *p = &e->peers[r];
        if (p->owed_count > 0 && p->owed_by > now) *until = fmin(*until, p->owed_by);
    }
    if (script >= 0 && script < *until) *until = script;
    return 0;
}

int ddp__needed(const ddp__engine *e)
{
    return e->submitted != e->first || e->stop || e->error.code != DDP_OK;
}

static int ddp__park(ddp__engine *e)
{
    int parked = 0;

    pthread_mutex_lock(&e->lock);
    while (e->driven || (ddp_now() < e->park_until && !ddp__needed(e))) {
        const double until = e->driven ? -1 : e->park_until;
        parked = 1;
        e->parked = e->driven ? DDP__PARKED_UNTIL_SIGNAL : DDP__PARKED_FOR_A_MOMENT;
        (void)ddp__cond_wait_until(&e->park, &e->lock, until);
    }
    e->parked = DDP__NOT_PARKED;
    pthread_mutex_unlock(&e->lock);
    return parked;
}

void *ddp__engine_main(void *engine)
{
    ddp__engine *e = (ddp__engine *)engine;
    double now, until;

    if (!ddp__wire_begin(e)) return NULL;
    now = e->next_check = e->ran_at = ddp_now();
    if (e->paced) ddp__thread_prompt(); /* the emulated link would be late if all cores compute */
    for (int r = 0; r < e->world; r++) e->peers[r].last_got = now;
    for (;;) {
        int moved = ddp__round(e, &until);
        if (e->fault.code != DDP_OK) {
            ddp__give_up(e);
            break;
        }
        if (e->stopping && ddp__may_stop(e, ddp_now(), &until)) break;
        if (!moved && !ddp__park(e)) ddp__sleep(e, until);
    }
    ddp__let_go(e);
    if (e->wire->end) e->wire->end(e->wire, e->fault.code != DDP_OK ? &e->fault : NULL);
    return NULL;
}
