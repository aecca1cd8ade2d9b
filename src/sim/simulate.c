/* Start and end of a simulated world: one thread and one context per worker, on a virtual clock. */
#include "config/settings.h"
#include "context/context.h"
#include "session/launch.h"
#include "session/session.h"
#include "sim/sim.h"
#include "sim/world.h"
#include "strategy/strategy.h"

#include <sys/mman.h>

typedef struct ddp__play_of {
    ddp__world *world;
    ddp__hub *hub;
    const ddp_config *cfg;
    int (*fn)(ddp_ctx *, void *);
    void *user;
} ddp__play_of;

typedef struct ddp__part_of {
    const ddp__play_of *play;
    ddp__player *seat;
} ddp__part_of;

void ddp_sleep_until(double when) { ddp__sleep_until(when); }

void *ddp_paper(size_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANON;
    void *p;

#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void ddp_paper_free(void *paper, size_t bytes)
{
    if (paper) munmap(paper, bytes);
}

/* ---- workers ---- */

static void *ddp__play_worker(void *arg)
{
    const ddp__part_of *x = (const ddp__part_of *)arg;
    ddp__player *s = x->seat;
    ddp__world *w = s->world;
    ddp_config cfg = *x->play->cfg;
    ddp_ctx *d;
    int code;

    ddp__seat_begin(s);
    cfg.rank = s->rank;
    d = ddp__open(&cfg, ddp__built_in(), x->play->hub, -1, &s->error);
    if (d) {
        ddp__paper_set(d, w->paper, w->paper_bytes);
        code = x->play->fn(d, x->play->user);
        if (ddp__error(d)->code)
            s->error = *ddp__error(d);
        else if (code)
            (void)ddp__fail(&s->error,
                            code > 0 && code < (int)DDP_STATUS_COUNT ? (ddp_status)code : DDP_FAILED,
                            "rank %d returned %d without an error of the context", s->rank, code);
        ddp_close(d);
    }
    pthread_mutex_lock(&w->lock);
    if (s->error.code && !ddp__port_is_dead(w, s->rank)) w->fails(w, &s->error);
    ddp__seat_end(s);
    pthread_mutex_unlock(&w->lock);
    (void)ddp__time_set(NULL);
    return NULL;
}

static ddp_status ddp__players_run(const ddp__play_of *play, ddp_error *err)
{
    ddp__world *w = play->world;
    ddp__part_of *x = (ddp__part_of *)ddp__calloc((size_t)w->seats, sizeof *x);
    int started = 0, why = 0;

    if (!x) return ddp__fail(err, DDP_MEMORY, "out of memory for %d simulated workers", w->seats);
    for (; started < w->seats && !why; started += !why) {
        x[started].play = play;
        x[started].seat = &w->seat[started];
        why = ddp__thread_deep(&w->seat[started].thread, ddp__play_worker, &x[started]);
    }
    if (why) {
        (void)ddp__fail(err, DDP_MEMORY, "only %d of %d simulated workers could be started: %s", started,
                        w->seats, strerror(why));
        w->seats = started;
        w->error = *err; /* each worker ends at its first message */
    }
    if (started) ddp__world_begin(w);
    for (int r = 0; r < started; r++) pthread_join(w->seat[r].thread, NULL);
    DDP_FREE(x);
    if (w->error.code == DDP_OK) return DDP_OK;
    *err = w->error;
    return err->code;
}

/* ---- the world ---- */

static ddp_status ddp__simulated_check(const ddp_config *c, const ddp_strategy_ops *ops, ddp_error *err)
{
    if (c->backend || c->elastic.join || c->elastic.max_world > c->world)
        return ddp__fail(err, DDP_UNSUPPORTED, "%s cannot be simulated; remove it",
                         c->backend ? "a device" : "joining");
    if (c->server.count < 0 && ops->traits & DDP_NEEDS_SERVERS)
        return ddp__fail(
            err, DDP_UNSUPPORTED,
            "servers on the ranks of workers cannot be simulated; set servers to a number of separate ranks");
    if (c->elastic.min_world > 0 && (c->world > 64 || ops->traits & DDP_NEEDS_SERVERS))
        return ddp__fail(err, DDP_UNSUPPORTED, "min_world %d cannot be simulated with %s; set min_world to 0",
                         c->elastic.min_world, c->world > 64 ? "more than 64 workers" : "servers");
    return DDP_OK;
}

/* Returns 1 if all links always take the same time. */
static int ddp__simulated_alike(const ddp_config *c)
{
    ddp__netspec spec;
    int alike = 1;

    for (int link = 0; alike && link < 2; link++) {
        const char *net = link ? c->network.net2 : c->net;
        alike = !net || (ddp__netspec_parse(net, &spec, NULL) == DDP_OK && spec.jitter_s == 0);
    }
    return alike;
}

static ddp_status ddp__world_open(ddp__world *w, const ddp_simulation *how, const ddp_config *c, int alike,
                                  int folds, ddp_error *err)
{
    memset(w, 0, sizeof *w);
    ddp__port_rules(w);
    w->size = c->world;
    w->alike = alike;
    w->min_world = c->elastic.min_world;
    w->live = c->world >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << c->world) - 1;
    w->seats = how && how->fold && alike && folds && c->world > 2 ? 2 : c->world;
    w->scale = how && how->scale > 0 ? how->scale : 1;
    if (how) {
        w->paper = (const unsigned char *)how->paper;
        w->paper_bytes = how->paper_bytes;
    }
    pthread_mutex_init(&w->lock, NULL);
    w->seat = (ddp__player *)ddp__calloc((size_t)w->seats, sizeof *w->seat);
    for (int link = 0; link < 2; link++)
        w->port[link] = (ddp__port **)ddp__calloc((size_t)w->seats, sizeof *w->port[link]);
    if (!w->seat || !w->port[0] || !w->port[1])
        return ddp__fail(err, DDP_MEMORY, "out of memory for a world of %d", w->seats);
    for (int r = 0; r < w->seats; r++) {
        w->seat[r].world = w;
        w->seat[r].rank = r;
        w->seat[r].state = DDP__PLAYER_WAITS;
        pthread_cond_init(&w->seat[r].turn, NULL);
    }
    return DDP_OK;
}

static void ddp__world_close(ddp__world *w)
{
    for (int r = 0; w->seat && r < w->seats; r++) pthread_cond_destroy(&w->seat[r].turn);
    ddp__carried_free(w);
    if (w->seat) DDP_FREE(w->seat);
    ddp__array_free(w->event);
    pthread_mutex_destroy(&w->lock);
}

int ddp_simulate(const ddp_config *given, const ddp_simulation *how, int (*fn)(ddp_ctx *, void *), void *user,
                 ddp_simulated *out, ddp_error *err)
{
    ddp_strategy_ops ops;
    ddp_config cfg;
    ddp__world w;
    double start = 0;
    ddp_error local;
    ddp__play_of play = {&w, NULL, &cfg, fn, user};
    ddp_status s;

    if (!err) err = &local;
    memset(err, 0, sizeof *err);
    if (out) memset(out, 0, sizeof *out);
    if (!given || !fn) return (int)ddp__fail(err, DDP_ARG, "ddp_simulate: configuration or function is NULL");
    (void)ddp__time_set(&start); /* a worker that dies does not end this process */
    s = ddp__config_resolve(given, ddp__built_in(), &cfg, &ops, err);
    (void)ddp__time_set(NULL);
    if (s != DDP_OK) return (int)s;
    cfg.transport = DDP_THREADS;
    cfg.sockets = NULL;
    cfg.no_env = 1;
    s = ddp__simulated_check(&cfg, &ops, err);
    if (s == DDP_OK)
        s = ddp__world_open(&w, how, &cfg, ddp__simulated_alike(&cfg),
                            !cfg.network.net_script && cfg.site == 0 && !(ops.traits & DDP_NEEDS_SERVERS),
                            err);
    else
        memset(&w, 0, sizeof w);
    if (s == DDP_OK) {
        play.hub = ddp__hub_making(cfg.world, ddp__port_attach, &w);
        if (!play.hub || (ddp__two_links(&cfg) && !ddp__hub_second(play.hub, 1)))
            s = ddp__fail(err, DDP_MEMORY, "out of memory for a simulated world");
    }
    if (s == DDP_OK) s = ddp__players_run(&play, err);
    for (int r = 0; out && w.seat && r < w.seats; r++) out->seconds = fmax(out->seconds, w.seat[r].now);
    if (out) out->workers = w.seats;
    if (out) out->events = w.events;
    if (play.hub) ddp__hub_free(play.hub);
    if (w.size) ddp__world_close(&w);
    ddp__config_free(&cfg);
    return (int)s;
}
