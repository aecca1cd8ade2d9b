/* A world of engines in one process, one thread per rank, over the threads wire or TCP loopback. */
#ifndef NET_WORLD_H
#define NET_WORLD_H

#include "wire/tcp.h"
#include "wire/meet.h"

#include "member/elastic.h"

#define NET_TCP 1 /* highest value of net_setup.tcp */

typedef struct net_rank {
    int rank, world;
    ddp__engine *engine;
    ddp_error err;     /* last result of net_do */
    char failure[300]; /* the first failure on this rank */
    void (*fn)(struct net_rank *, void *);
    void *user;
    const struct net_setup *set;
    ddp__wire *wire;
    double seconds;
    ddp__links links;
} net_rank;

typedef struct net_setup {
    int world, tcp;
    double rate, delay_s; /* of every link, or 0 for unlimited, none */
    ddp__engine_config cfg;
    void (*tune)(ddp__engine_config *cfg, int rank); /* differences between ranks. May be NULL. */
} net_setup;

static DDP__UNUSED const char *net_layer_name(void *user, int layer)
{
    static const char *const names[] = {"embed", "h.0.mlp", "h.1.mlp", "head"};
    (void)user;
    return names[layer % 4];
}

static DDP__UNUSED void net_defaults(net_setup *s, int world)
{
    memset(s, 0, sizeof *s);
    s->world = world;
    s->cfg.world = world;
    s->cfg.deterministic = 1;
    s->cfg.peer_timeout_s = 20;
    s->cfg.op_timeout_s = 20;
    s->cfg.queue = 256;
    s->cfg.full_bytes = 1; /* direct */
    s->cfg.layer_name = net_layer_name;
}

/* Values of different magnitude: sums in another order give other bits. */
static DDP__UNUSED float net_value(int rank, size_t i, unsigned salt)
{
    uint32_t h = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + salt * 97u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return ((float)(h & 0xffff) - 32768.0f) / (float)(1u << (h >> 28));
}

static DDP__UNUSED void net_message(ddp_message *m, ddp_verb verb, const ddp_piece *pieces, int count)
{
    memset(m, 0, sizeof *m);
    m->verb = verb;
    m->from = pieces;
    m->from_count = count;
    m->layer = 1;
}

static DDP__UNUSED ddp_status net_do(net_rank *me, const ddp_message *m)
{
    long ticket = 0;
    ddp_status s = ddp__engine_submit(me->engine, m, &ticket, &me->err);
    return s != DDP_OK ? s : ddp__engine_wait(me->engine, ticket, &me->err);
}

static DDP__UNUSED void net_fail(net_rank *me, const char *fmt, ...) DDP__PRINTF(2, 3);
static DDP__UNUSED void net_fail(net_rank *me, const char *fmt, ...)
{
    va_list args;
    if (me->failure[0]) return;
    va_start(args, fmt);
    vsnprintf(me->failure, sizeof me->failure, fmt, args);
    va_end(args);
}

static DDP__UNUSED void net_ok(net_rank *me, ddp_status s)
{
    if (s != DDP_OK) net_fail(me, "status %d: %.250s", (int)s, me->err.msg);
}

/* The configuration of a rank. Free *l after the engine has closed. */
static DDP__UNUSED ddp__engine_config net_config(const net_setup *s, int rank, ddp__links *l)
{
    const ddp__netspec spec = {s->rate, s->delay_s, 0};
    ddp__engine_config cfg = s->cfg;
    ddp_error err;

    memset(l, 0, sizeof *l);
    cfg.rank = rank;
    if (s->rate > 0 || s->delay_s > 0) {
        if (ddp__links_alike(&spec, rank, s->world, 0, l, &err)) abort();
        cfg.links = l;
    }
    if (cfg.min_world > 0) cfg.membership = ddp__elastic_membership();
    return cfg;
}

static DDP__UNUSED void *net_thread(void *arg)
{
    net_rank *me = (net_rank *)arg;
    ddp__engine_config cfg = net_config(me->set, me->rank, &me->links);

    cfg.wire = me->wire;
    if (me->set->tune) me->set->tune(&cfg, me->rank);
    me->wire = cfg.wire;
    if (ddp__engine_open(&cfg, &me->engine, &me->err) != DDP_OK) {
        net_fail(me, "open: %.250s", me->err.msg);
        if (me->wire) me->wire->table->close(me->wire);
    } else {
        me->fn(me, me->user);
        ddp__engine_close(me->engine);
    }
    ddp__links_free(&me->links);
    return NULL;
}

/* Connects sockets between all pairs; entries of a rank with itself are -1. */
static DDP__UNUSED void net_tcp_mesh(int fds[8][8], int world)
{
    for (int a = 0; a < world; a++) {
        fds[a][a] = -1;
        for (int b = a + 1; b < world; b++) {
            struct sockaddr_in at;
            socklen_t len = sizeof at;
            int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);
            memset(&at, 0, sizeof at);
            at.sin_family = AF_INET;
            at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            assert_int_equal(bind(l, (struct sockaddr *)&at, sizeof at), 0);
            assert_int_equal(listen(l, 1), 0);
            assert_int_equal(getsockname(l, (struct sockaddr *)&at, &len), 0);
            assert_int_equal(connect(c, (struct sockaddr *)&at, sizeof at), 0);
            fds[a][b] = c;
            fds[b][a] = accept(l, NULL, NULL);
            assert_true(fds[b][a] >= 0);
            close(l);
        }
    }
}

static DDP__UNUSED void net_tcp_wires(net_rank *ranks, int world)
{
    int fds[8][8];

    net_tcp_mesh(fds, world);
    for (int r = 0; r < world; r++) {
        ddp_error err;
        memset(&err, 0, sizeof err);
        if (net_wire(r, world, fds[r], NULL, &ranks[r].wire, &err) != DDP_OK) fail_msg("%s", err.msg);
    }
}

/* Runs fn on every rank. Fails the test if a rank recorded a failure. */
static DDP__UNUSED void net_run(const net_setup *set, void (*fn)(net_rank *, void *), void *user)
{
    static net_rank ranks[8];
    pthread_t threads[8];
    ddp__hub *hub = set->tcp ? NULL : ddp__hub_new(set->world);

    memset(ranks, 0, sizeof ranks);
    if (set->tcp && set->world > 1) net_tcp_wires(ranks, set->world);
    for (int r = 0; r < set->world; r++) {
        ranks[r].rank = r;
        ranks[r].world = set->world;
        ranks[r].fn = fn;
        ranks[r].user = user;
        ranks[r].set = set;
        if (!set->tcp) assert_int_equal(ddp__wire_threads(hub, r, &ranks[r].wire, &ranks[r].err), DDP_OK);
    }
    for (int r = 0; r < set->world; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, net_thread, &ranks[r]), 0);
    for (int r = 0; r < set->world; r++) pthread_join(threads[r], NULL);
    if (hub) ddp__hub_free(hub);
    for (int r = 0; r < set->world; r++)
        if (ranks[r].failure[0]) fail_msg("rank %d: %s", r, ranks[r].failure);
}

#endif /* NET_WORLD_H */
