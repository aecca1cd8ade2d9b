/* Worlds whose workers die, stall or lose a link at a chosen moment: a wire around another wire that injects
 * these faults. */
#ifndef ELASTIC_LAB_H
#define ELASTIC_LAB_H

#include "comm/net_world.h"

enum { LAB_MAX = 8 };

typedef struct lab_wire {
    ddp__wire base;
    ddp__wire *inner;
    ddp__hub *hub;
    int *dead;           /* [LAB_MAX] of the world: 1: its wire transfers nothing any more */
    int *cut;            /* [LAB_MAX][LAB_MAX] 1: no byte passes, and no end is reported */
    int told;            /* 1 if its streams were closed, as by the death of a process */
    long countdown;      /* bytes to send before it dies or stalls; < 0: never */
    double stall_s;      /* > 0: it does not die, but stalls for this time */
    double still_until;  /* end of the stall of the comm thread */
    int *fds;            /* TCP: its sockets */
    double apart;        /* in seconds: from the end of one socket to the next */
    ddp__engine *engine; /* its calls end at once when it dies */
} lab_wire;

typedef struct lab_world {
    int dead[LAB_MAX], cut[LAB_MAX][LAB_MAX], fds[LAB_MAX][LAB_MAX];
    lab_wire wire[LAB_MAX];
    ddp__hub *hub;
} lab_world;

static void lab_die(lab_wire *w)
{
    if (ddp__atomic_swap(&w->told, 1)) return;
    ddp__atomic_store(&w->dead[w->base.rank], 1);
    if (w->hub) ddp__hub_leave(w->hub, w->base.rank);
    for (int p = 0; w->fds && p < w->base.world; p++)
        if (p != w->base.rank) {
            shutdown(w->fds[p], SHUT_RDWR);
            ddp__sleep_until(ddp_now() + w->apart);
        }
    if (w->engine) ddp__engine_abort(w->engine, DDP_ABORTED, "dead"); /* no rank receives it */
}

static int lab_mute(lab_wire *w, int peer)
{
    return ddp__atomic_load(&w->dead[w->base.rank]) ||
           ddp__atomic_load(&w->cut[w->base.rank * LAB_MAX + peer]);
}

static int lab_still(const lab_wire *w) { return w->still_until > 0 && ddp_now() < w->still_until; }

static long lab_send(ddp__wire *w, int peer, const struct iovec *iov, int count)
{
    lab_wire *l = (lab_wire *)(void *)w;
    long took = 0, countdown;

    if (lab_mute(l, peer)) {
        for (int i = 0; i < count; i++) took += (long)iov[i].iov_len;
        return took;
    }
    if (lab_still(l)) return 0;
    countdown = ddp__atomic_load(&l->countdown);
    if (countdown == 0) {
        if (l->stall_s > 0) {
            ddp__atomic_store(&l->countdown, -1);
            l->still_until = ddp_now() + l->stall_s;
        } else {
            lab_die(l);
        }
        return 0;
    }
    if (countdown > 0) { /* dies in the middle of a frame */
        struct iovec part = iov[0];
        if ((long)part.iov_len > countdown) part.iov_len = (size_t)countdown;
        took = l->inner->table->send(l->inner, peer, &part, 1);
        if (took > 0) ddp__atomic_store(&l->countdown, countdown - took);
        return took;
    }
    return l->inner->table->send(l->inner, peer, iov, count);
}

static long lab_recv(ddp__wire *w, int peer, void *buf, size_t bytes)
{
    lab_wire *l = (lab_wire *)(void *)w;
    if (lab_mute(l, peer) || lab_still(l)) return 0;
    return l->inner->table->recv(l->inner, peer, buf, bytes);
}

static void lab_wait(ddp__wire *w, const unsigned char *want_send, const unsigned char *want_recv,
                     double until)
{
    lab_wire *l = (lab_wire *)(void *)w;
    unsigned char s[LAB_MAX], r[LAB_MAX];
    double soon = ddp_now() + 0.01;
    int still = lab_still(l);

    for (int p = 0; p < w->world; p++) {
        int mute = p != w->rank && (still || lab_mute(l, p));
        s[p] = (unsigned char)(want_send && want_send[p] && !mute);
        r[p] = (unsigned char)((!want_recv || want_recv[p]) && !mute);
    }
    l->inner->table->wait(l->inner, s, r, until < 0 || until > soon ? soon : until);
}

static void lab_wake(ddp__wire *w)
{
    lab_wire *l = (lab_wire *)(void *)w;
    l->inner->table->wake(l->inner);
}

static void lab_close(ddp__wire *w)
{
    lab_wire *l = (lab_wire *)(void *)w;
    l->inner->table->close(l->inner);
}

static const ddp__wire_table lab_table = {lab_send, lab_recv, lab_wait, lab_wake, lab_close, NULL, NULL};

/* Puts a lab wire around the wire of each rank. For TCP, call it after net_tcp_wires. */
static void lab_wrap(lab_world *lab, net_rank *ranks, int world, int tcp)
{
    for (int r = 0; r < world; r++) {
        lab_wire *l = &lab->wire[r];
        memset(l, 0, sizeof *l);
        l->base.table = &lab_table;
        l->base.rank = r;
        l->base.world = world;
        l->base.names = ranks[r].wire->names;
        l->base.pair_bytes = ranks[r].wire->pair_bytes;
        l->inner = ranks[r].wire;
        l->hub = tcp ? NULL : lab->hub;
        l->dead = lab->dead;
        l->cut = &lab->cut[0][0];
        l->countdown = -1;
        for (int p = 0; tcp && p < world; p++) lab->fds[r][p] = p == r ? -1 : meet_fd(ranks[r].wire, p);
        l->fds = tcp ? lab->fds[r] : NULL;
        ranks[r].wire = &l->base;
    }
}

/* As net_run, but over lab wires: fn gets its own as (lab_wire *)me->wire. Returns "" or an error, valid
 * until the next call. */
static const char *lab_try(lab_world *lab, const net_setup *set, void (*fn)(net_rank *, void *), void *user)
{
    static net_rank ranks[LAB_MAX];
    static char text[600];
    pthread_t threads[LAB_MAX];

    memset(ranks, 0, sizeof ranks);
    memset(lab, 0, sizeof *lab);
    lab->hub = set->tcp ? NULL : ddp__hub_new(set->world);
    if (set->tcp) net_tcp_wires(ranks, set->world);
    for (int r = 0; r < set->world; r++) {
        ranks[r].rank = r;
        ranks[r].world = set->world;
        ranks[r].fn = fn;
        ranks[r].user = user;
        ranks[r].set = set;
        if (!set->tcp)
            assert_int_equal(ddp__wire_threads(lab->hub, r, &ranks[r].wire, &ranks[r].err), DDP_OK);
    }
    lab_wrap(lab, ranks, set->world, set->tcp);
    for (int r = 0; r < set->world; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, net_thread, &ranks[r]), 0);
    for (int r = 0; r < set->world; r++) pthread_join(threads[r], NULL);
    if (lab->hub) ddp__hub_free(lab->hub);
    text[0] = 0;
    for (int r = 0; r < set->world && !text[0]; r++)
        if (ranks[r].failure[0]) snprintf(text, sizeof text, "rank %d: %.500s", r, ranks[r].failure);
    return text;
}

static DDP__UNUSED void lab_run(lab_world *lab, const net_setup *set, void (*fn)(net_rank *, void *),
                                void *user)
{
    const char *failure = lab_try(lab, set, fn, user);

    if (failure[0]) fail_msg("%s", failure);
}

/* VERBOSE=1 prints the log lines of the engines. */
static DDP__UNUSED void say(void *user, ddp_log_level level, const char *line)
{
    (void)user;
    (void)level;
    fprintf(stderr, "%.3f %s\n", ddp_now(), line);
}

static DDP__UNUSED void log_to(net_setup *set)
{
    if (!getenv("VERBOSE")) return;
    set->cfg.log.fn = say;
    set->cfg.log.level = DDP_LOG_INFO;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LAB_FEWER = 4 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { LAB_FEWER = 4 };
#else
enum { LAB_FEWER = 1 };
#endif
#else
enum { LAB_FEWER = 1 };
#endif

/* Reads a number from the environment. */
static int env_number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

/* Prints counts that `make soak` adds up. */
static DDP__UNUSED void lab_events(int kills, int stalls, int drops, int joins)
{
    if (getenv("SOAK")) {
        printf("events %d %d %d %d\n", kills, stalls, drops, joins);
        fflush(stdout);
    }
}

/* Silence, in seconds, that ends nothing here: deaths are noticed at once. Longer if other worlds or a
 * sanitizer use the processor. */
static DDP__UNUSED double lab_patience(double s) { return getenv("SOAK") || LAB_FEWER > 1 ? 5 * s : s; }

/* Number of random runs: ELASTIC, or fewer than usual if a sanitizer slows them down. */
static DDP__UNUSED int env_runs(int usual) { return env_number("ELASTIC", usual / LAB_FEWER); }

/* A run in which a rank was silent because of another process is repeated. */
#ifdef __SANITIZE_THREAD__ /* five workers that are many times slower, and a death must be noticed within half
                            * a second */
enum { TRIES = 12 };
#else
enum { TRIES = 3 };
#endif

#endif /* ELASTIC_LAB_H */
