/* The search for the next epoch, when a worker is lost or joins.
 *
 * Every worker gossips which pairs of workers have lost each other. From that it computes the set of workers
 * that could continue together, and votes for the set, once per round. The lowest worker of the set decides
 * once all of it have voted for it. A worker that reads the decision passes it on. A set must be a quorum of
 * the last epoch, and of every set that one of its members has voted for since, because that epoch may have
 * begun without its knowledge. (Yeger Lotem, Keidar and Dolev 1997, Dynamic voting for consistent primary
 * components.) tests/member/model models this protocol. */
#include "member/elastic.h"

/* ---- sets that could continue ---- */

/* The servers (ddp__engine_config.servers). */
static uint64_t ddp__serving(const ddp__engine *e)
{
    return e->cfg.servers ? ((ddp__bit(e->cfg.servers) - 1) << (e->world - e->cfg.servers)) : 0;
}

/* Computes the survivors: repeatedly removes the worker that has lost most of the others. In a tie removes
 * the highest id among the workers that compute. */
static uint64_t ddp__survivors(const ddp__engine *e, const ddp__word *w, uint64_t joining)
{
    uint64_t set = (w->base.live & ~w->left) | joining;

    for (;;) {
        int worst = -1, most = 0;
        for (int r = 0; r < DDP__ELASTIC_WORLD; r++) {
            int n;
            if (!(set >> r & 1)) continue;
            n = ddp__bit_count(w->edge[r] & set);
            /* a joining worker that some member cannot reach has to wait */
            if (n > 0 && (w->joining >> r & 1) && !(w->base.live >> r & 1)) n = 64;
            if (n > 0 && (n > most || (n == most && !(ddp__serving(e) >> r & 1)))) {
                most = n;
                worst = r;
            }
        }
        if (worst < 0) return set;
        set &= ~ddp__bit(worst);
    }
}

/* 1 if set is a quorum of `of`, not counting workers that have left. A quorum has more than half of the
 * workers. Of two workers it is the lower id. With servers it has all servers. */
static int ddp__majority(const ddp__engine *e, uint64_t set, uint64_t of, uint64_t left)
{
    of &= ~left;
    if (e->cfg.servers) return !(of & ddp__serving(e) & ~set);
    if (ddp__bit_count(of) == 2) return (int)(set >> ddp__lowest(of) & 1);
    return 2 * ddp__bit_count(set & of) > ddp__bit_count(of);
}

/* Why a set may not continue. 0 means that it may. */
static int ddp__hopeless(const ddp__engine *e, const ddp__word *w, uint64_t set)
{
    set &= ~w->joining | w->base.live;
    if (!ddp__majority(e, set, w->base.live, w->left)) return 2;
    if (ddp__bit_count(set & ~ddp__serving(e)) < e->cfg.min_world) return 1;
    for (uint32_t i = 0; i < w->attempts; i++)
        if (!ddp__majority(e, set, w->attempt[i].live, w->left)) return 2;
    return 0;
}

/* ---- the search ---- */

static void ddp__attempt_add(ddp__engine *e, ddp__word *w, const ddp__view *a)
{
    if (a->ballot <= w->base.ballot) return;
    for (uint32_t i = 0; i < w->attempts; i++) {
        if (w->attempt[i].live != a->live) continue;
        if (w->attempt[i].ballot < a->ballot) w->attempt[i].ballot = a->ballot;
        return;
    }
    if (w->attempts == DDP__ATTEMPTS) {
        ddp__fault(e, DDP_PEER_LOST,
                   "the workers could not agree on the live workers within %d attempts: the network changes "
                   "too fast; restart the job from its last checkpoint",
                   DDP__ATTEMPTS);
        return;
    }
    w->attempt[w->attempts++] = *a;
}

static void ddp__base_rises(ddp__word *w, const ddp__view *base)
{
    uint32_t n = 0;

    if (base->ballot <= w->base.ballot) return;
    w->base = *base;
    for (uint32_t i = 0; i < w->attempts; i++)
        if (w->attempt[i].ballot > base->ballot) w->attempt[n++] = w->attempt[i];
    w->attempts = n;
}

static void ddp__tell_state(ddp__engine *e)
{
    for (int r = 0; r < e->world; r++)
        if (r != e->rank) e->member_data->peer[r].want_state = 1;
}

/* Decides, if all workers of the set that this worker votes for agree with it. */
static void ddp__decide(ddp__engine *e, double now)
{
    ddp__elastic *el = e->member_data;
    const ddp__word *own = &el->own;
    uint64_t old = own->vote & (~own->joining | own->base.live);
    ddp__done_set table[DDP__ELASTIC_WORLD] = {{0, 0}};
    const ddp__view view = {own->round, own->vote};

    if (el->hopeless_at >= 0 || old == 0 || ddp__lowest(old) != e->rank) return;
    for (int r = 0; r < e->world; r++) {
        const ddp__elastic_peer *ep = &el->peer[r];
        if (!(own->vote >> r & 1)) continue;
        table[r] = own->done;
        if (r == e->rank || !(old >> r & 1)) continue;
        if (!ep->heard || ep->word.round != own->round || ep->word.vote != own->vote) return;
        table[r] = ep->word.done;
    }
    ddp__epoch_install(e, &view, table, now);
}

/* 1 if all workers of a set except joining ones have reported in this search, and know of every loss that is
 * known here. A vote for a dead worker binds the voter to that worker, since the epoch could have begun. So
 * if two workers have lost each other, and either may be dead, the live ones must confirm the loss first. */
static int ddp__all_spoke(const ddp__engine *e, uint64_t set)
{
    const ddp__elastic *el = e->member_data;
    const ddp__word *own = &el->own;

    set &= ~own->joining | own->base.live;
    for (int r = 0; r < e->world; r++) {
        if (r == e->rank || !(set >> r & 1)) continue;
        if (!el->peer[r].heard) return 0;
        for (int q = 0; q < e->world; q++)
            if ((own->base.live >> q & 1) && (own->edge[q] & own->base.live & ~el->peer[r].word.edge[q]))
                return 0;
    }
    return 1;
}

/* The joining workers that all reporting workers are ready for. A worker that has an earlier operation to
 * complete ends the search without them. */
static uint64_t ddp__expected(const ddp__engine *e)
{
    const ddp__elastic *el = e->member_data;
    uint64_t joining = el->own.joining, old = joining ? ddp__survivors(e, &el->own, 0) : 0;

    for (int r = 0; r < e->world && joining; r++)
        if (el->peer[r].heard && (old >> r & 1)) joining &= el->peer[r].word.joining;
    return joining;
}

/* A lost worker that could not continue, by its last report, has failed because of the workers that it lost:
 * it is not a separate cause. If its report left a quorum without it, this worker reports that quorum
 * itself. */
static void ddp__given_in(ddp__engine *e)
{
    ddp__elastic *el = e->member_data;
    int most = 0;

    for (int r = 0; r < e->world; r++) {
        const ddp__word *w = &el->peer[r].word;
        const uint64_t set = w->base.live & ~w->left & ~w->edge[r];
        const int why = ddp__hopeless(e, w, set), with = ddp__bit_count(set);
        if (!el->peer[r].heard || !(el->own.edge[e->rank] >> r & set >> e->rank & 1) || !why || with <= most)
            continue;
        if (!ddp__hopeless(e, w, ddp__survivors(e, w, 0))) continue;
        most = with;
        el->why_then = why;
        el->set_then = set;
    }
}

/* Re-evaluates everything that is known: joins the search, votes, decides. */
static void ddp__epoch_search(ddp__engine *e, double now)
{
    ddp__elastic *el = e->member_data;
    ddp__word *own = &el->own;
    uint32_t round;
    int why;

    el->look = 0;
    if (e->newcomer || e->closing || e->fault.code != DDP_OK) return;
    if (!e->frozen) {
        if (el->lost_at < 0) el->lost_at = now;
        ddp__epoch_freeze(e, now);
        own->vote = 0;
    }
    el->set = ddp__survivors(e, own, ddp__expected(e));
    round = own->round > own->base.ballot ? own->round : own->base.ballot + 1;
    if (own->vote && own->vote != el->set && round == own->round) round++;
    if (el->seen > round) round = el->seen;
    if (round != own->round) {
        own->round = el->seen = round;
        own->vote = 0;
        el->round_at = now;
    }
    if (!own->vote && (el->set >> e->rank & 1) && ddp__all_spoke(e, el->set)) {
        /* without the joining worker: quorums of sets that differ by one worker always intersect */
        const ddp__view attempt = {round, el->set & (~own->joining | own->base.live)};
        own->vote = el->set;
        ddp__attempt_add(e, own, &attempt);
    }
    ddp__tell_state(e);
    why = ddp__hopeless(e, own, el->set);
    if (!why && (el->set >> e->rank & 1)) {
        el->hopeless_at = -1;
    } else if (el->hopeless_at < 0 || why != el->why_then) {
        if (el->hopeless_at < 0) el->hopeless_at = now;
        el->why_then = why;
        el->set_then = el->set;
    }
    if (el->hopeless_at >= 0) ddp__given_in(e);
    ddp__decide(e, now);
}

/* Merges a peer's knowledge. Returns 1 if any of it was new. */
static int ddp__merge(ddp__engine *e, const ddp__word *w)
{
    ddp__word *own = &e->member_data->own, before = *own;

    ddp__base_rises(own, &w->base);
    for (uint32_t i = 0; i < w->attempts; i++) ddp__attempt_add(e, own, &w->attempt[i]);
    own->left |= w->left & own->base.live;
    for (int r = 0; r < e->world; r++) own->edge[r] |= w->edge[r];
    if (w->round > e->member_data->seen) e->member_data->seen = w->round;
    return memcmp(&before, own, sizeof before) != 0 || e->member_data->seen > own->round;
}

static void ddp__evicted(ddp__engine *e, uint32_t ballot)
{
    e->silent = 1;
    ddp__fault(
        e, DDP_PEER_LOST,
        "the other workers continue without this one (rank %d) since epoch %lu, because they lost it: %s",
        e->rank, (unsigned long)ballot,
        e->cfg.servers ? "it cannot rejoin a run with servers" : "start it again to rejoin");
}

/* Outside of a search: records which joining worker a peer is ready to admit, or has lost while others admit
 * it. */
static void ddp__ready_read(ddp__engine *e, int peer, const ddp__word *w)
{
    ddp__elastic *el = e->member_data;
    ddp__elastic_peer *ep = &el->peer[peer];
    ddp__word *own = &el->own;

    ep->ready = w->joining;
    ep->ready_in = w->round;
    if ((w->joining & own->refused) && w->done.from == own->refused_at) ep->want_state = 1;
    if (!(w->refused & own->joining) || w->refused_at != own->done.from) return;
    ddp__edge_add(own, peer, ddp__lowest(w->refused & own->joining));
    el->look = 1;
}

/* 1 if the admission need not wait for a worker: it has left, or is ready as well. */
static int ddp__is_ready(const ddp__engine *e, int r)
{
    const ddp__elastic_peer *ep = &e->member_data->peer[r];

    if (r == e->rank || e->peers[r].left) return 1;
    return ep->ready_in == e->member_data->view.ballot && (ep->ready & e->member_data->own.joining);
}

void ddp__state_read(ddp__engine *e, int peer, const ddp__word *w, double now)
{
    ddp__elastic *el = e->member_data;

    if (e->newcomer) return;
    if (w->round <= el->own.base.ballot) { /* from a finished search, or from none */
        ddp__ready_read(e, peer, w);
        return;
    }
    el->peer[peer].word = *w;
    if (!el->peer[peer].heard) el->look = el->peer[peer].heard = 1;
    if (w->base.ballot > el->own.base.ballot && !(w->base.live >> e->rank & 1)) {
        ddp__evicted(e, w->base.ballot);
        return;
    }
    if (ddp__merge(e, w) || !e->frozen || ddp__survivors(e, &el->own, ddp__expected(e)) != el->set ||
        (!el->own.vote && (el->set >> e->rank & 1) && ddp__all_spoke(e, el->set)))
        el->look = 1;
    else
        ddp__decide(e, now);
}

void ddp__decision_read(ddp__engine *e, int peer, const ddp__view *view, const ddp__done_set *table,
                        double now)
{
    ddp__elastic *el = e->member_data;
    int in = (int)(view->live >> e->rank & 1);

    el->peer[peer].marked = view->ballot;
    if (view->ballot <= el->view.ballot) return;
    if (!in && !e->newcomer) ddp__evicted(e, view->ballot);
    if (!in) return;
    /* a worker that voted in a later round has reported its completed operations: it must not install this
     * epoch */
    if (!e->newcomer && view->ballot < el->own.round) {
        ddp__base_rises(&el->own, view);
        el->look = 1;
        return;
    }
    ddp__epoch_install(e, view, table, now);
}

/* ---- events that begin a search ---- */

/* Attaches the engine of a worker that takes the place of a lost one. */
static void ddp__epoch_attach(ddp__engine *e, int id, double now)
{
    ddp__peer *p = &e->peers[id];
    ddp__elastic_peer *ep = &e->member_data->peer[id];
    unsigned char *tail = ep->tail;
    uint16_t *coded = p->coded;

    memset(p, 0, sizeof *p);
    p->coded = coded;
    p->in_slot = p->out_slot = p->pending.first = p->pending.last = -1;
    p->last_got = now;
    p->free_slot = id * e->slots;
    for (int i = 0; i < e->slots; i++)
        e->slot[id * e->slots + i].next = i + 1 < e->slots ? id * e->slots + i + 1 : -1;
    memset(ep, 0, sizeof *ep);
    ep->tail = tail;
    ep->marked = e->member_data->view.ballot;
    for (int r = 0; r < e->world; r++) e->member_data->own.edge[r] &= ~ddp__bit(id);
    e->member_data->own.edge[id] = 0;
}

void ddp__epoch_run(ddp__engine *e, double now)
{
    ddp__elastic *el = e->member_data;
    uint64_t left = 0;
    int admit = 0, ready;

    pthread_mutex_lock(&e->lock);
    if (el->admit == 1) admit = el->admit = 2;
    pthread_mutex_unlock(&e->lock);
    if (admit) {
        if (el->attach) el->attach(e->wire, el->admit_id, el->attach_user);
        ddp__epoch_attach(e, el->admit_id, now);
        el->own.joining |= ddp__bit(el->admit_id);
        el->own.refused = 0;
        el->admit_at = now;
        if (e->frozen)
            el->look = 1;
        else
            ddp__tell_state(e);
    }
    /* the search for a joining worker begins once all are ready: it stops operations, which a worker may
     * still wait for */
    ready = el->own.joining && !e->frozen;
    for (int i = 0; i < e->members && ready; i++) ready = ddp__is_ready(e, e->member[i]);
    if (ready) el->look = 1;
    for (int r = 0; r < e->world; r++)
        if (e->peers[r].left && !e->peers[r].out_of_world) left |= ddp__bit(r) & el->own.base.live;
    if (left) ddp__shadow_release(e); /* workers that have left need no result any more */
    /* a search does not wait for a worker that has left, whether or not an operation needs it */
    if (e->frozen && (left & ~el->own.left)) el->look = 1;
    if (!el->look) return;
    el->own.left |= left;
    ddp__epoch_search(e, now);
}

/* ---- time-outs ---- */

/* Marks workers whose vote is missing as lost, or the worker that has all votes and does not decide. */
static void ddp__search_stuck(ddp__engine *e)
{
    ddp__elastic *el = e->member_data;
    const ddp__word *own = &el->own;
    uint64_t old = el->set & (~own->joining | own->base.live);
    int missing = 0;

    for (int r = 0; r < e->world; r++) {
        const ddp__elastic_peer *ep = &el->peer[r];
        if (r == e->rank || !(old >> r & 1)) continue;
        if (ep->heard && ep->word.round == own->round && ep->word.vote == el->set) continue;
        missing = 1;
        ddp__epoch_lost(e, r, "it did not vote for the next epoch");
    }
    if (!missing && ddp__lowest(old) != e->rank)
        ddp__epoch_lost(e, ddp__lowest(old), "it did not decide on the next epoch");
}

static void ddp__admit_late(ddp__engine *e, double now)
{
    char who[96] = "";
    size_t used = 0;

    for (int r = 0; r < e->world && used + 16 < sizeof who; r++)
        if (e->place[r] >= 0 && !ddp__is_ready(e, r))
            used += (size_t)snprintf(who + used, sizeof who - used, "%s%d", used ? ", " : "", r);
    ddp__fault(e, DDP_TIMEOUT,
               "worker %d could not join within %.1f s (op_timeout_s): no admitting call from rank %s; every "
               "worker must make it after the same operation",
               e->member_data->admit_id, now - e->member_data->admit_at, who);
}

/* The workers to name as the cause, without those that failed because of another worker. A worker that may
 * itself continue names losses that only others have noticed. Of two workers that have lost each other, it
 * names the one that reported nothing, not the one that failed because of it. */
static uint64_t ddp__lost_then(const ddp__engine *e)
{
    const ddp__elastic *el = e->member_data;
    const uint64_t left = el->own.left;
    uint64_t lost = el->own.edge[e->rank] | left, silent = 0;

    if (!(el->set_then >> e->rank & 1)) return lost;
    lost &= ~el->set_then;
    if (lost & ~left) return lost;
    for (int r = 0; r < e->world; r++)
        if ((el->own.base.live & ~left) >> r & 1 && el->own.edge[r] && !el->peer[r].word.edge[r] &&
            r != e->rank)
            silent |= ddp__bit(r);
    return silent ? silent : lost ? lost : el->own.base.live & ~el->set_then;
}

static void ddp__who_was_lost(const ddp__engine *e, char *buf, size_t room)
{
    const uint64_t lost = ddp__lost_then(e);
    size_t used = 0;

    buf[0] = '\0';
    for (int r = 0; r < e->world && used + 80 < room; r++)
        if (lost >> r & 1)
            used += (size_t)snprintf(buf + used, room - used, "%srank %d was lost (%s)", used ? ", " : "", r,
                                     ddp__epoch_why(e, r));
}

/* The rank that relayed the connections of this worker, if it was lost together with every other rank, or -1
 * otherwise. Behind a NAT this worker cannot know whether the others can reach each other. */
static int ddp__lost_relay(const ddp__engine *e, uint64_t before)
{
    const ddp__elastic *el = e->member_data;
    const uint64_t lost = el->own.edge[e->rank];

    if (before & ~lost & ~ddp__bit(e->rank)) return -1;
    for (int r = 0; r < e->world; r++) {
        const int relay = (before & lost) >> r & 1 ? ddp__wire_relay(e->wire, r) : -1;
        if (relay >= 0 && lost >> relay & 1) return relay;
    }
    return -1;
}

static void ddp__give_in(ddp__engine *e)
{
    const ddp__elastic *el = e->member_data;
    const ddp__word *w = &el->own;
    uint64_t old = el->set_then & w->base.live, before = w->base.live & ~w->left, serve = ddp__serving(e);
    int left = ddp__bit_count(old & ~serve), of = ddp__bit_count(before & ~serve),
        lowest = ddp__lowest(before);
    const int relay = ddp__lost_relay(e, before);
    const char *then = "restart the job from its last checkpoint";
    char who[180], when[140], rest[120];
    uint64_t gone;

    e->silent = 1;
    ddp__who_was_lost(e, who, sizeof who);
    ddp__when_text(e, e->rank, when, sizeof when);
    if (of == 2 && !serve && !(before & ~w->edge[e->rank] & ddp__bit(lowest))) {
        snprintf(rest, sizeof rest, "of two workers, only rank %d may continue alone", lowest);
    } else if (relay >= 0) {
        snprintf(rest, sizeof rest,
                 "rank %d, which relayed the connections of rank %d, is lost, and no other rank accepts a "
                 "connection",
                 relay, e->rank);
    } else if (!(old >> e->rank & 1) && !ddp__hopeless(e, w, el->set_then)) {
        snprintf(rest, sizeof rest, "the others can continue without this worker (rank %d)", e->rank);
        then = serve ? "it cannot rejoin a run with servers" : "start it again to rejoin";
    } else if (serve & before & (~old | ddp__lost_then(e))) {
        snprintf(rest, sizeof rest, "no other rank has the parameters that it serves");
    } else {
        int n = snprintf(rest, sizeof rest, "%d of %d workers are left, ", left, of);
        if (left < e->cfg.min_world)
            snprintf(rest + n, sizeof rest - (size_t)n, "min_world is %d", e->cfg.min_world);
        else if (ddp__majority(e, old, w->base.live, w->left))
            snprintf(rest + n, sizeof rest - (size_t)n,
                     "but the lost workers may have continued without them");
        else
            snprintf(rest + n, sizeof rest - (size_t)n, "a quorum of %d is needed", of / 2 + 1);
    }
    gone = ddp__lost_then(e);
    if (gone & ddp__serving(e)) gone &= ddp__serving(e);
    if (gone) ddp__fault_is_about(e, ddp__lowest(gone));
    ddp__fault(e, DDP_PEER_LOST, "%s%s; %s: %s", who, when, rest, then);
}

/* The time to wait, in seconds, while a set that may not continue could still change: the time-out, if a
 * report from a worker of that set can arrive. A moment, if only others can report. 0, if no worker is left
 * that could report. */
static double ddp__grace(const ddp__engine *e, double limit)
{
    const ddp__elastic *el = e->member_data;
    const ddp__word *w = &el->own;
    const uint64_t all = w->base.live & ~w->left, own = ddp__bit(e->rank);
    uint64_t near = own, before = 0;

    while (near != before) { /* workers that can be reached from here, also through others */
        before = near;
        for (int r = 0; r < e->world; r++)
            if (before >> r & 1) near |= all & ~w->edge[r];
    }
    if (near == own) return 0;
    if (!(el->set & own) && (near & el->set)) return limit;
    return limit < 0.3 ? limit : 0.3;
}

void ddp__epoch_stopped(ddp__engine *e, double seconds, double now)
{
    ddp__elastic *el = e->member_data;

    ddp__extend(&el->lost_at, seconds, now);
    ddp__extend(&el->round_at, seconds, now);
    ddp__extend(&el->admit_at, seconds, now);
    ddp__extend(&el->hopeless_at, seconds, now);
}

void ddp__epoch_check(ddp__engine *e, double now, double *again)
{
    ddp__elastic *el = e->member_data;
    double limit = e->cfg.peer_timeout_s > 0 ? e->cfg.peer_timeout_s : 10, due = *again;

    if (el->own.joining && !e->frozen && e->cfg.op_timeout_s > 0) {
        due = el->admit_at + e->cfg.op_timeout_s;
        if (now >= due)
            ddp__admit_late(e, now);
        else if (due < *again)
            *again = due;
    }
    if (!e->frozen || e->newcomer) return;
    if (el->hopeless_at >= 0) {
        due = el->hopeless_at + ddp__grace(e, limit);
        if (now >= due) ddp__give_in(e);
    } else if (!ddp__one_process(e)) {
        /* the worker that decides checks first for late workers */
        uint64_t old = el->set & el->own.base.live;
        due = el->round_at + limit + (ddp__lowest(old) == e->rank ? 0 : limit / 2);
        if (now >= due) {
            el->round_at = now;
            ddp__search_stuck(e);
        }
    }
    if (due < *again) *again = due > now ? due : now;
}
