/* The interface to the program: creates groups, submits messages, waits for them, aborts. */
#include "comm/state.h"

/* ---- groups ---- */

static ddp_status ddp__group_check(const ddp__engine *e, const ddp_message *m, const char *verb,
                                   ddp_error *err)
{
    const int *place;

    if (m->group == 0 && (m->verb >= DDP_SEND || e->rank < e->blocks)) return DDP_OK;
    if (m->group == 0)
        return ddp__fail(err, DDP_USAGE,
                         "%s on rank %d, which is a server: collectives are among the %d ranks that compute",
                         verb, e->rank, e->blocks);
    if (m->group < 0 || m->group >= e->groups)
        return ddp__fail(err, DDP_ARG, "group %d does not exist; %d were made", m->group, e->groups - 1);
    place = e->place + (size_t)m->group * (size_t)e->world;
    if (m->verb >= DDP_SEND && m->verb != DDP_REDUCE_SCATTER)
        return ddp__fail(err, DDP_ARG, "%s names a rank, not group %d", verb, m->group);
    if (place[e->rank] < 0) return ddp__fail(err, DDP_ARG, "rank %d is not in group %d", e->rank, m->group);
    if (m->verb == DDP_BROADCAST && place[m->peer] < 0)
        return ddp__fail(err, DDP_ARG, "the root %d of a broadcast is not in group %d", m->peer, m->group);
    return DDP_OK;
}

ddp_status ddp__engine_group(ddp__engine *e, const int *ranks, int n, int *group, ddp_error *err)
{
    ddp_status status = DDP_OK;

    for (int i = 0; i < n; i++)
        if (ranks[i] < 0 || ranks[i] >= e->world || (i > 0 && ranks[i] <= ranks[i - 1]))
            return ddp__fail(
                err, DDP_ARG,
                "a group with rank %d at place %d: ranks must be ascending, from 0 to at most %d", ranks[i],
                i, e->world - 1);
    if (n < 1) return ddp__fail(err, DDP_ARG, "a group of %d ranks: at least one is needed", n);
    if (e->membership)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "process groups do not support min_world; remove one of the two");
    pthread_mutex_lock(&e->lock);
    if (e->groups == e->group_room) {
        status = ddp__fail(err, DDP_ARG, "more than %d groups", e->group_room - 1);
    } else {
        int *member = e->member + (size_t)e->groups * (size_t)e->world;
        int *place = e->place + (size_t)e->groups * (size_t)e->world;
        for (int r = 0; r < e->world; r++) place[r] = -1;
        for (int i = 0; i < n; i++) {
            member[i] = ranks[i];
            place[ranks[i]] = i;
        }
        e->group_members[e->groups] = n;
        *group = e->groups++;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

void ddp__engine_call(ddp__engine *e, int rank, const char *name)
{
    pthread_mutex_lock(&e->lock);
    snprintf(e->called[rank], sizeof e->called[rank], "%s", name);
    pthread_mutex_unlock(&e->lock);
}

void ddp__engine_retire(ddp__engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->retires = 1;
    ddp__notify(e);
    while (e->retires && e->error.code == DDP_OK) ddp__await(e);
    pthread_mutex_unlock(&e->lock);
}

int ddp__engine_group_size(const ddp__engine *e, int group)
{
    if (group == 0) return e->blocks;
    return group > 0 && group < e->groups ? e->group_members[group] : 1;
}

const int *ddp__engine_group_ranks(const ddp__engine *e, int group)
{
    if (group <= 0 || group >= e->groups) return NULL;
    return e->member + (size_t)group * (size_t)e->world;
}

void ddp__engine_segment(const ddp__engine *e, int group, ddp_coding coding, size_t n, size_t *from,
                         size_t *to)
{
    ddp__op op;

    memset(&op, 0, sizeof op);
    op.m.group = group;
    op.m.coding = coding;
    op.n = n;
    op.way = ddp__direct_way(0);
    ddp__segment(e, &op, e->rank, from, to);
}

/* ---- messages ---- */

/* Number of values in a list of pieces, or SIZE_MAX if there are more than a frame can count. */
static size_t ddp__pieces_count(const ddp_piece *piece, int count)
{
    size_t n = 0;

    for (int i = 0; i < count; i++) n = piece[i].count > UINT32_MAX - n ? SIZE_MAX : n + piece[i].count;
    return n > UINT32_MAX ? SIZE_MAX : n;
}

/* Verifies that only an all-reduce is coded, that bytes are not summed, and that `add` has a separate
 * `to`. */
static ddp_status ddp__message_kind(const ddp__engine *e, const ddp_message *m, const char *verb,
                                    ddp_error *err)
{
    const int sums = m->verb == DDP_ALL_REDUCE || m->verb == DDP_REDUCE_SCATTER;
    const int serves = m->verb >= DDP_PUSH && m->verb != DDP_RECEIVE;

    if (m->bytes && sums) return ddp__fail(err, DDP_ARG, "%s of bytes: only floats can be summed", verb);
    if (m->add && (!m->to || m->bytes))
        return ddp__fail(err, DDP_ARG, "%s that adds to nothing: `to` must be a separate list of floats",
                         verb);
    if (m->verb == DDP_ALL_REDUCE && m->owner && (m->add || m->divergence))
        return ddp__fail(
            err, DDP_ARG,
            "an all-reduce that adds or measures its divergence has an owner's rule: leave out one "
            "of the two");
    if (m->verb == DDP_ALL_REDUCE && m->owner && e->membership && !m->owner->again)
        return ddp__fail(
            err, DDP_ARG,
            "an all-reduce in an elastic world (min_world) has an owner's rule that cannot start "
            "over: set ddp_owner.again");
    if (m->divergence && (m->verb >= DDP_SEND || m->to))
        return ddp__fail(err, DDP_ARG, "divergence is measured by a collective in place, not by %s%s", verb,
                         m->to ? "with a separate `to`" : "");
    if (serves && e->lanes < (int)DDP__LANES)
        return ddp__fail(err, DDP_USAGE,
                         "%s in a context whose strategy does not serve: set "
                         "DDP_NEEDS_SERVERS in its traits",
                         verb);
    if (m->coding && (m->verb != DDP_ALL_REDUCE || m->coding != e->cfg.coding))
        return ddp__fail(err, DDP_ARG,
                         "only an all-reduce can be encoded as %s, over an engine opened for it",
                         ddp__coding_name((int)m->coding));
    return DDP_OK;
}

/* The list of input pieces. A receive may give only `to`. */
static const ddp_piece *ddp__input_of(const ddp_message *m, int *count)
{
    const int alone = m->verb >= DDP_RECEIVE && m->from_count == 0 && m->to;

    *count = alone ? m->to_count : m->from_count;
    return alone ? m->to : m->from;
}

ddp_status ddp__engine_accepts(const ddp__engine *e, const ddp_message *m, ddp_error *err)
{
    int from_count;
    const ddp_piece *from = ddp__input_of(m, &from_count);
    const size_t n = ddp__pieces_count(from, from_count),
                 to = m->to ? ddp__pieces_count(m->to, m->to_count) : n;
    const long pieces = (long)m->from_count + (m->to ? m->to_count : 0);
    const int named = m->verb != DDP_ALL_REDUCE && m->verb != DDP_ALL_GATHER && m->verb != DDP_REDUCE_SCATTER;
    const int any = m->peer == DDP_ANY && (m->verb == DDP_RECEIVE || m->verb == DDP_SERVE);
    const int members = ddp__engine_group_size(e, m->group);
    const char *verb = ddp__verb_name((int)m->verb);
    ddp_status bad;

    if (n == SIZE_MAX)
        return ddp__fail(err, DDP_ARG, "a message of more than %lu values is too long; split it",
                         (unsigned long)UINT32_MAX);
    if (to != n)
        return ddp__fail(err, DDP_ARG, "a message from %lu values to %lu: both lists need the same number",
                         (unsigned long)n, (unsigned long)to);
    if (m->from_count < 0 || (m->to && m->to_count < 0) || pieces > e->strip_room / 2)
        return ddp__fail(err, DDP_ARG, "a message of %ld pieces; at most %ld are possible", pieces,
                         e->strip_room / 2);
    if (named && !any &&
        (m->peer < 0 || m->peer >= e->world || (m->peer == e->rank && m->verb != DDP_BROADCAST)))
        return ddp__fail(err, DDP_ARG, "rank %d cannot be the peer of a message of rank %d in a world of %d",
                         m->peer, e->rank, e->world);
    if ((m->verb == DDP_ALL_GATHER || m->verb == DDP_REDUCE_SCATTER) && n % (size_t)members &&
        !(m->ragged && m->group))
        return ddp__fail(err, DDP_ARG, "%s of %lu values cannot be divided evenly among %d ranks",
                         m->verb == DDP_ALL_GATHER ? "an all-gather" : "a reduce-scatter", (unsigned long)n,
                         members);
    bad = ddp__message_kind(e, m, verb, err);
    return bad ? bad : ddp__group_check(e, m, verb, err);
}

/* Finds room for count contiguous strips in the pool. Returns the first index, or -1. */
static long ddp__strip_place(const ddp__engine *e, long count)
{
    long start = e->strips_head;

    if (start % e->strip_room + count > e->strip_room) start += e->strip_room - start % e->strip_room;
    return start + count - e->strips_tail <= e->strip_room ? start : -1;
}

/* Copies a list of pieces into the pool and merges adjacent pieces. */
static long ddp__strips_fill(ddp__engine *e, const ddp__op *op, ddp__strips *out, long start,
                             const ddp_piece *piece, int count)
{
    size_t n = 0;

    out->strip = e->strips + start % e->strip_room;
    out->count = 0;
    for (int i = 0; i < count; i++) {
        ddp__strip *last = out->count ? &out->strip[out->count - 1] : NULL;
        unsigned char *data = (unsigned char *)piece[i].bytes;
        if (piece[i].count == 0) continue;
        if (last && last->data + last->count * op->unit == data) {
            last->count += piece[i].count;
        } else {
            ddp__strip *s = &out->strip[out->count++];
            s->data = data;
            s->start = n;
            s->count = piece[i].count;
        }
        n += piece[i].count;
    }
    return start + out->count;
}

static void ddp__op_fill(ddp__engine *e, ddp__op *op, const ddp_message *m, long start)
{
    int from_count;
    const ddp_piece *from = ddp__input_of(m, &from_count);

    memset(op, 0, sizeof *op);
    op->m = *m;
    op->m.from = op->m.to = NULL;
    if (m->scale == 0) op->m.scale = 1;
    if (m->bytes) op->m.coding = DDP__AS_BYTES;
    op->unit = m->bytes ? 1 : sizeof(float);
    op->n = ddp__pieces_count(from, from_count);
    op->strips_end = ddp__strips_fill(e, op, &op->from, start, from, from_count);
    op->to = op->from;
    if (m->to && m->to != from)
        op->strips_end = ddp__strips_fill(e, op, &op->to, op->strips_end, m->to, m->to_count);
    op->ticket = e->submitted;
    op->p2p = m->verb >= DDP_SEND;
    op->state = DDP__OP_QUEUED;
    op->waiting_since = -1;
    op->span.begin = op->span.end = op->span.due = -1;
    op->span.submitted = ddp_now();
    op->span.step = m->step;
    op->span.layer = m->layer;
    op->span.filler = m->filler;
    op->span.verb = m->verb;
    op->span.peer = m->peer;
    op->span.size = (int64_t)(op->n * op->unit);
    op->span.coding = (char)op->m.coding;
    op->way = ddp__way_of(e, op);
    op->span.algorithm = m->verb == DDP_ALL_REDUCE ? op->way->letter : 'p';
    ddp__guard_all(e, op);
}

/* After a failure, blocks until no thread touches the memory of messages. Under the lock, which it releases
 * meanwhile. */
static void ddp__settle(ddp__engine *e)
{
    while (e->error.code != DDP_OK && !e->quiet) ddp__await(e);
}

static ddp_status ddp__submit_one(ddp__engine *e, const ddp_message *m, long *ticket, ddp_error *err)
{
    ddp_status bad = ddp__engine_accepts(e, m, err);
    const long pieces = (long)m->from_count + (m->to ? m->to_count : 0);
    long start = -1;

    if (bad != DDP_OK) return bad;
    pthread_mutex_lock(&e->lock);
    if (e->membership) bad = e->membership->fits(e, m, err);
    while (bad == DDP_OK && e->error.code == DDP_OK &&
           (e->submitted - e->first >= e->cfg.queue || (start = ddp__strip_place(e, pieces)) < 0)) {
        e->tight = 1;
        ddp__notify(e);
        ddp__await(e);
    }
    if (bad == DDP_OK && e->error.code != DDP_OK) {
        if (err) *err = e->error;
        bad = e->error.code;
        if (!e->driven) ddp__settle(e); /* else the comm thread waits for this thread */
    } else if (bad == DDP_OK) {
        ddp__op_fill(e, &e->ops[e->submitted % e->cfg.queue], m, start);
        e->strips_head = e->ops[e->submitted % e->cfg.queue].strips_end;
        if (ticket) *ticket = e->submitted;
        e->submitted++;
        ddp__notify(e);
    }
    pthread_mutex_unlock(&e->lock);
    if (bad == DDP_OK && e->wire->carrier) e->wire->carrier->posted(e->wire);
    return bad;
}

static int ddp__ticket_done(const ddp__engine *e, long ticket)
{
    return ticket < e->first || (ticket < e->submitted && e->ops[ticket % e->cfg.queue].done);
}

/* Blocks until the message is done, or (input) until the engine no longer reads its input. */
static ddp_status ddp__wait_until(ddp__engine *e, long ticket, int input, ddp_error *err)
{
    const ddp__op *op = &e->ops[ticket % e->cfg.queue];
    ddp_status status = DDP_OK;

    pthread_mutex_lock(&e->lock);
    while (!ddp__ticket_done(e, ticket) && !(input && op->released) && !e->quiet) ddp__await(e);
    if (!ddp__ticket_done(e, ticket) && !(input && op->released)) {
        if (err) *err = e->error;
        status = e->error.code;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

ddp_status ddp__engine_wait(ddp__engine *e, long ticket, ddp_error *err)
{
    return ddp__wait_until(e, ticket, 0, err);
}

ddp_status ddp__engine_wait_input(ddp__engine *e, long ticket, ddp_error *err)
{
    return ddp__wait_until(e, ticket, 1, err);
}

int ddp__engine_done(ddp__engine *e, long ticket)
{
    int done;

    ddp__catch_up(e);
    pthread_mutex_lock(&e->lock);
    done = ddp__ticket_done(e, ticket);
    pthread_mutex_unlock(&e->lock);
    return done;
}

void ddp__engine_settle(ddp__engine *e)
{
    pthread_mutex_lock(&e->lock);
    ddp__settle(e);
    pthread_mutex_unlock(&e->lock);
}

void ddp__engine_abort(ddp__engine *e, ddp_status code, const char *why)
{
    pthread_mutex_lock(&e->lock);
    if (e->error.code == DDP_OK) {
        (void)ddp__fail(&e->error, code == DDP_OK ? DDP_ABORTED : code, "%s", why);
        ddp__notify(e);
    }
    pthread_mutex_unlock(&e->lock);
    if (e->wire->carrier) e->wire->carrier->failed(e->wire);
}

void ddp__engine_hush(ddp__engine *e)
{
    pthread_mutex_lock(&e->lock);
    if (e->error.code == DDP_OK) e->silent = 1; /* else the comm thread has begun to notify the peers */
    pthread_mutex_unlock(&e->lock);
}

ddp_status ddp__engine_error(ddp__engine *e, ddp_error *err)
{
    ddp_status status;

    pthread_mutex_lock(&e->lock);
    status = e->error.code;
    if (err) *err = e->error;
    pthread_mutex_unlock(&e->lock);
    return status;
}

int ddp__engine_lost(ddp__engine *e)
{
    int rank;

    pthread_mutex_lock(&e->lock);
    rank = e->error.code == DDP_PEER_LOST ? e->fault_about : -1;
    pthread_mutex_unlock(&e->lock);
    return rank;
}

int ddp__engine_left(ddp__engine *e)
{
    int gone = -1;

    pthread_mutex_lock(&e->lock);
    for (int r = e->wire->carrier ? -1 : e->world - 1; r >= 0; r--)
        if (r != e->rank && e->peers[r].left) gone = r;
    pthread_mutex_unlock(&e->lock);
    return gone;
}

/* ---- blocking calls ----
 *
 * For calls that follow each other closely, waking the comm thread and being woken by it takes as long as a
 * small message. So after such a call the comm thread, if it has nothing to do, parks for a moment, and the
 * next caller moves its message itself. Only one of the two uses the engine at a time, and they hand it over
 * under the lock. */

ddp_status ddp__engine_submit(ddp__engine *e, const ddp_message *m, long *ticket, ddp_error *err)
{
    if (m->verb == DDP_PULL) { /* two messages: the request, and the answer */
        ddp_message ask = *m;
        ddp_piece p;
        p.data = &e->nothing;
        p.count = 1;
        ask.verb = DDP__ASK;
        ask.from = &p;
        ask.from_count = 1;
        ask.to = NULL;
        ask.add = 0;
        ask.received = NULL;
        DDP__TRY(ddp__submit_one(e, &ask, NULL, err));
    }
    return ddp__submit_one(e, m, ticket, err);
}

ddp_status ddp__engine_run(ddp__engine *e, const ddp_message *m, ddp_error *err)
{
    int parks = !e->shaped && !e->membership && !e->wire->begin && !e->wire->carrier, driven = 0;
    ddp_status status;
    double until, drive_until;
    long ticket;

    if (parks) {
        pthread_mutex_lock(&e->lock);
        driven = e->parked && !e->driven && !ddp__needed(e);
        if (driven)
            e->driven = 1;
        else
            e->park_until = ddp_now() + DDP__PARK_S;
        pthread_mutex_unlock(&e->lock);
    }
    status = ddp__engine_submit(e, m, &ticket, err);
    if (driven) {
        drive_until = ddp_now() + DDP__DRIVE_S;
        while (status == DDP_OK) { /* until the message is done, or the comm thread has to continue */
            const int moved = ddp__round(e, &until);
            if (e->fault.code != DDP_OK || e->stopping || ddp__engine_done(e, ticket) ||
                ddp_now() >= drive_until)
                break;
            if (!moved) ddp__sleep(e, fmin(until, drive_until));
        }
        pthread_mutex_lock(&e->lock);
        e->driven = 0;
        e->park_until = ddp_now() + DDP__PARK_S;
        if (ddp__needed(e) || e->parked == DDP__PARKED_UNTIL_SIGNAL) pthread_cond_signal(&e->park);
        if (status != DDP_OK) ddp__settle(e);
        pthread_mutex_unlock(&e->lock);
    }
    return status == DDP_OK ? ddp__engine_wait(e, ticket, err) : status;
}

/* ---- wait for any of several messages: layers of a device may finish in another order ---- */

int ddp__engine_wait_any(ddp__engine *e, const long *tickets, int count, const int *stop)
{
    int found = -1;

    pthread_mutex_lock(&e->lock);
    for (;;) {
        for (int i = 0; found < 0 && i < count; i++)
            if (ddp__ticket_done(e, tickets[i])) found = i;
        if (found >= 0 || e->quiet || ddp__atomic_load(stop)) break;
        ddp__await(e);
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
