/* The transport of a simulated worker's engine: starts operations, and ends the world on errors. */
#include "sim/port.h"

static ddp__port *ddp__port_of(ddp__wire *w) { return (ddp__port *)(void *)w; }

/* ---- start of operations ---- */

/* src/comm/activate.c has selected the operation to start. */
static void ddp__port_begins(ddp__wire *wire, ddp__op *op)
{
    ddp__port *p = ddp__port_of(wire);

    if (op->p2p && op->m.verb < DDP_RECEIVE) {
        ddp__mail_post(p, op);
    } else if (op->p2p) {
        if (!ddp__world_reserve(p->world, p->want)) return;
        stbds_arrput(p->want, op);
        ddp__mail_match(p);
    } else if (ddp__team_of(p->e, op).members == 1)
        ddp__op_over(p, op);
    else
        ddp__carried_join(p, op);
}

static void ddp__port_look(ddp__port *p)
{
    ddp__engine *e = p->e;
    ddp_error err;

    if (!e || p->dead || e->error.code) return;
    e->dirty = 1;
    ddp__activate(e, p->world->now);
    if (e->fault.code == DDP_OK) return;
    err = e->fault;
    p->world->fails(p->world, &err);
}

/* ---- loss of a worker ---- */

/* The other ranks know of the loss and have agreed on the members. */
static void ddp__world_shrinks(ddp__world *w, void *what, int rank, int workers)
{
    ddp_error err;

    (void)what;
    w->live &= ~((uint64_t)1 << rank);
    for (int link = 0; link < 2; link++)
        for (int r = 0; r < w->seats; r++) {
            ddp__port *p = w->port[link][r];
            if (!p || !p->e || p->dead) continue;
            p->e->epoch.ballot++;
            p->e->epoch.changes++;
            p->e->epoch.live = w->live;
            p->e->epoch.workers = workers;
            ddp__members_set(p->e, w->live);
        }
    if (workers < w->min_world) {
        (void)ddp__fail(&err, DDP_PEER_LOST, "rank %d was lost, %d of %d workers are left, min_world is %d",
                        rank, workers, w->size, w->min_world);
        w->fails(w, &err);
        return;
    }
    ddp__carried_again(w);
    for (int link = 0; link < 2; link++)
        for (int r = 0; r < w->seats; r++)
            if (w->port[link][r] && w->port[link][r]->e) {
                w->look(w->port[link][r]);
                ddp__port_send(w->port[link][r]);
            }
}

/* The script kills a rank. The others detect it one delay later, and agree after two more. */
static void ddp__port_dies(ddp__world *w, void *what, int rank, int j)
{
    ddp__port *p = (ddp__port *)what;
    int left = 0;
    ddp_error err;

    (void)j;
    if (!p->e || p->dead || p->seat->state == DDP__PLAYER_OVER) return;
    for (int link = 0; link < 2; link++)
        if (w->port[link][rank]) w->port[link][rank]->dead = 1;
    p->seat->state = DDP__PLAYER_DEAD;
    for (int r = 0; r < w->seats; r++) left += w->port[0][r] && !w->port[0][r]->dead;
    if (w->min_world == 0) {
        (void)ddp__fail(&err, DDP_PEER_LOST,
                        "rank %d was lost at %g s, as the script says; set min_world to continue without it",
                        rank, w->now);
        w->fails(w, &err);
    } else
        ddp__world_at(w, w->now + 3 * p->e->links.farthest, ddp__world_shrinks, NULL, rank, left);
}

/* ---- the transport ---- */

static void ddp__port_hears(ddp__world *w, void *what, int i, int j)
{
    ddp__port *p = (ddp__port *)what;

    (void)w;
    (void)i;
    (void)j;
    ddp__port_look(p);
}

/* Returns 0 and fails the world if the caller is not the worker's own thread. */
static int ddp__port_knows(ddp__port *p)
{
    ddp_error err;

    if (ddp__time() == &p->seat->now) return 1;
    (void)ddp__fail(&err, DDP_UNSUPPORTED,
                    "rank %d sends or waits on another thread, which has no virtual time; "
                    "simulate a strategy without threads",
                    p->base.rank);
    p->world->fails(p->world, &err);
    return 0;
}

static void ddp__port_posted(ddp__wire *wire)
{
    ddp__port *p = ddp__port_of(wire);

    pthread_mutex_lock(&p->world->lock);
    p->e->taken = p->e->submitted;
    if (ddp__port_knows(p)) ddp__world_at(p->world, ddp_now(), ddp__port_hears, p, 0, 0);
    pthread_mutex_unlock(&p->world->lock);
}

static void ddp__port_awaits(ddp__wire *wire)
{
    ddp__port *p = ddp__port_of(wire);

    pthread_mutex_lock(&p->world->lock);
    if (ddp__port_knows(p)) ddp__seat_wait(p->seat, p);
    pthread_mutex_unlock(&p->world->lock);
}

static void ddp__port_catches_up(ddp__wire *wire)
{
    ddp__port *p = ddp__port_of(wire);

    if (ddp__time() != &p->seat->now) return;
    pthread_mutex_lock(&p->world->lock);
    ddp__seat_wait(p->seat, NULL);
    pthread_mutex_unlock(&p->world->lock);
}

static void ddp__port_failed(ddp__wire *wire)
{
    ddp__port *p = ddp__port_of(wire);

    pthread_mutex_lock(&p->world->lock);
    if (!p->dead) p->world->fails(p->world, &p->e->error);
    pthread_mutex_unlock(&p->world->lock);
}

static void ddp__port_opened(ddp__wire *wire, ddp__engine *e)
{
    ddp__port *p = ddp__port_of(wire);

    p->e = e;
    e->quiet = p->world->error.code != DDP_OK;
    e->error = p->world->error;
    for (int i = 0; i < e->links.acts; i++) /* a broken connection is restored immediately */
        if (e->links.act[i].peer < 0)
            ddp__world_at(p->world, e->links.act[i].at, ddp__port_dies, p, e->rank, 0);
}

static void ddp__port_close(ddp__wire *wire)
{
    ddp__port *p = ddp__port_of(wire);

    pthread_mutex_lock(&p->world->lock);
    while (p->unsent && !p->e->error.code && !p->dead) ddp__seat_wait(p->seat, p);
    p->e = NULL;
    pthread_mutex_unlock(&p->world->lock);
}

static void ddp__port_wakes(ddp__wire *wire) { (void)wire; }

static const ddp__wire_table ddp__port_table = {NULL, NULL, NULL, ddp__port_wakes, ddp__port_close,
                                                NULL, NULL};
static const ddp__carrier ddp__port_carrier = {ddp__port_opened, ddp__port_posted,     ddp__port_begins,
                                               ddp__port_awaits, ddp__port_catches_up, ddp__port_failed};

ddp_status ddp__port_attach(void *user, int link, int rank, ddp__wire **out, ddp_error *err)
{
    ddp__world *w = (ddp__world *)user;
    ddp__port *p = (ddp__port *)ddp__calloc(1, sizeof *p);

    if (!p) return ddp__fail(err, DDP_MEMORY, "out of memory for the link of simulated rank %d", rank);
    p->base.table = &ddp__port_table;
    p->base.carrier = &ddp__port_carrier;
    p->base.rank = rank;
    p->base.world = w->size;
    p->base.intact = 1;
    p->world = w;
    p->seat = &w->seat[rank];
    w->port[link][p->seat->rank] = p;
    *out = &p->base;
    return DDP_OK;
}

static void ddp__world_fails(ddp__world *w, const ddp_error *why)
{
    if (w->error.code == DDP_OK) w->error = *why;
    for (int link = 0; link < 2; link++)
        for (int r = 0; w->port[link] && r < w->seats; r++) {
            ddp__port *p = w->port[link][r];
            if (!p || !p->e) continue;
            if (p->e->error.code == DDP_OK) p->e->error = w->error;
            p->e->quiet = 1;
        }
    for (int r = 0; r < w->seats; r++) ddp__seat_ready(w, &w->seat[r]); /* the waiting workers */
}

static void ddp__world_stuck(ddp__world *w)
{
    char text[DDP_ERROR_TEXT], one[128];
    size_t n = 0;
    ddp_error err;
    int waiting = 0;

    text[0] = 0;
    for (int r = 0; r < w->seats; r++) {
        const ddp__port *p = w->seat[r].state == DDP__PLAYER_WAITS ? w->seat[r].at : NULL;
        const ddp__op *op = NULL;
        if (!p || !p->e) continue;
        for (long t = p->e->first; t < p->e->submitted && !op; t++)
            if (!p->e->ops[t % p->e->cfg.queue].done) op = &p->e->ops[t % p->e->cfg.queue];
        if (waiting++ >= 3 || n >= sizeof text) continue;
        n +=
            (size_t)snprintf(text + n, sizeof text - n, "%srank %d for %s", waiting > 1 ? ", " : "", r,
                             op ? ddp__op_text(p->e, op, one, sizeof one) : "a message that it did not post");
    }
    for (int r = 0; r < w->seats && !waiting; r++) { /* else wakes killed workers, which end last */
        if (w->seat[r].state != DDP__PLAYER_DEAD) continue;
        for (int link = 0; link < 2; link++)
            if (w->port[link][r] && w->port[link][r]->e) {
                (void)ddp__fail(&w->port[link][r]->e->error, DDP_PEER_LOST, "killed");
                w->port[link][r]->e->quiet = 1;
            }
        w->seat[r].state = DDP__PLAYER_WAITS;
        ddp__seat_ready(w, &w->seat[r]);
    }
    if (!waiting) return;
    (void)ddp__fail(&err, DDP_USAGE,
                    "deadlock: %d of %d workers wait for messages that no worker sends: %.300s%s", waiting,
                    w->seats, text, waiting > 3 ? " ..." : "");
    ddp__world_fails(w, &err);
}

int ddp__port_is_dead(const ddp__world *w, int rank) { return w->port[0][rank] && w->port[0][rank]->dead; }

void ddp__port_rules(ddp__world *w)
{
    w->look = ddp__port_look;
    w->fails = ddp__world_fails;
    w->stuck = ddp__world_stuck;
}

void ddp__carried_free(ddp__world *w)
{
    ddp__aways_free(w);
    while (w->mails) ddp__mail_free(w->mails);
    while (w->carried) ddp__carried_drop(w->carried);
    while (w->voids) {
        w->carried = w->voids;
        w->voids = w->voids->next;
        w->carried->next = w->carried->before = NULL;
        ddp__carried_drop(w->carried);
    }
    for (int link = 0; link < 2; link++) {
        for (int r = 0; w->port[link] && r < w->seats; r++) {
            ddp__port *p = w->port[link][r];
            if (!p) continue;
            ddp__array_free(p->job);
            ddp__array_free(p->want);
            DDP_FREE(p);
        }
        if (w->port[link]) DDP_FREE(w->port[link]);
    }
}
