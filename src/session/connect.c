/* Connects a context to the other ranks: the wire, the engine over it, and the rendezvous address of the
 * second link. */
#include "config/settings.h"
#include "session/part.h"
#include "context/context.h"
#include "exchange/average.h"
#include "exchange/post.h"
#include "member/elastic.h"
#include "session/start.h"

static const char *ddp__name_of_layer(void *user, int layer)
{
    ddp_ctx *d = (ddp_ctx *)user;

    return layer >= 0 && layer < ddp__layers(d) ? ddp__unit_of(d, layer)->name : "";
}

ddp_status ddp__session_tls(ddp_ctx *d, ddp_error *err)
{
    const ddp__tls_files files = {ddp__cfg(d)->security.psk, ddp__cfg(d)->security.ca,
                                  ddp__cfg(d)->security.cert, ddp__cfg(d)->security.key};

    return d->session->tls ? DDP_OK
                           : ddp__tls_open(&files, ddp__run_id(ddp__cfg(d)->run_id), &d->session->tls, err);
}

ddp_status ddp__connect(ddp_ctx *d, ddp__hub *hub, const char *addr, int listen_fd, ddp__wire **wire,
                        ddp_error *err)
{
    ddp__rendezvous r = DDP__ZEROS;
    const char *resume;

    if (ddp__cfg(d)->transport == DDP_THREADS) {
        if (!hub)
            return ddp__fail(err, DDP_USAGE,
                             "the threads transport needs its ranks in one process: start them with "
                             "ddp_launch");
        return ddp__wire_threads(hub, ddp_rank(d), wire, err);
    }
    if (ddp__cfg(d)->transport == DDP_MPI) return ddp__wire_mpi(ddp_rank(d), ddp_world(d), wire, err);
    r.wire.rank = ddp_rank(d);
    r.world = ddp__met(d);
    r.wire.world = ddp_world(d);
    r.wire.self.run_id = ddp__run_id(ddp__cfg(d)->run_id);
    r.wire.self.run_name = ddp__cfg(d)->run_id;
    r.timeout_s = ddp__cfg(d)->timeout.connect_s;
    r.join_timeout_s = ddp__cfg(d)->timeout.join_s;
    r.cancel = ddp__cfg(d)->cancel;
    r.wire.peer_timeout_s = ddp__cfg(d)->timeout.peer_s;
    r.wire.log = *ddp__log_of(d);
    if (ddp__cfg(d)->transport == DDP_SOCKETS) {
        r.wire.fds = ddp__cfg(d)->sockets;
        ddp__sockets_taken(d); /* were borrowed until now */
        return ddp__rendezvous_given(&r, wire, err);
    }
    r.addr = addr;
    r.wire.listen_fd = listen_fd;
    if (addr == ddp__cfg(d)->addr)
        r.ifname = ddp__cfg(d)->network.socket_ifname; /* the second link uses another interface */
    r.insecure = ddp__cfg(d)->security.insecure;
    DDP__TRY(ddp__session_tls(d, err));
    r.wire.tls = d->session->tls;
    r.wire.congestion = ddp__cfg(d)->no_env ? NULL : getenv("DREAMDDP_TCP_CONGESTION");
    resume = ddp__cfg(d)->no_env ? NULL : getenv("DREAMDDP_RESUME");
    r.resume = ddp__cfg(d)->elastic.min_world > 0 || !resume || strcmp(resume, "0");
    DDP__TRY(ddp__rendezvous_tcp(&r, wire, err));
    (*wire)->intact = d->session->tls != NULL;
    return DDP_OK;
}

ddp_status ddp__engine_start(ddp_ctx *d, ddp__wire *wire, const ddp__links *links, int joining, uint64_t live,
                             ddp__engine **out, ddp_error *err)
{
    ddp__engine_config e = DDP__ZEROS;
    ddp_status s;

    e.wire = wire;
    e.rank = ddp_rank(d);
    e.world = ddp_world(d);
    if (links->path) e.links = links;
    e.deterministic = ddp__cfg(d)->deterministic;
    /* memory for every format, if the strategy may be replaced by one with another format */
    e.coding = ddp__ops(d)->choose ? DDP_AS_INT8 : ddp__wire_coding(ddp__cfg(d)->wire);
    e.coder = ddp__blocks_coder();
    e.serves = (ddp__ops(d)->traits & DDP_NEEDS_SERVERS) != 0;
    e.no_checksum = ddp__cfg(d)->security.no_checksum;
    if (ddp__cfg(d)->algorithm == DDP_FULL)
        e.full_bytes = SIZE_MAX;
    else if (ddp__cfg(d)->algorithm != DDP_ALGORITHM_DEFAULT)
        e.full_bytes = 1; /* no message uses the all-to-all exchange */
    if (ddp__cfg(d)->algorithm == DDP_RING)
        e.ring_bytes = 1;
    else if (ddp__cfg(d)->algorithm != DDP_ALGORITHM_DEFAULT)
        e.ring_bytes = SIZE_MAX;
    e.peer_timeout_s = ddp__cfg(d)->timeout.peer_s;
    e.op_timeout_s = ddp__cfg(d)->timeout.op_s;
    e.min_world = ddp__cfg(d)->elastic.min_world;
    e.servers = ddp__cfg(d)->elastic.min_world > 0 ? ddp_servers(d) : 0;
    if (ddp__cfg(d)->elastic.min_world > 0) e.membership = ddp__elastic_membership();
    e.kept_bytes = ddp__cfg(d)->elastic.bytes;
    e.joining = joining;
    e.live = live;
    e.queue = 512; /* with more messages than that in one step, the next call waits until a slot is free,
                      which costs no time */
    e.allocator = ddp__cfg(d)->allocator;
    e.log = *ddp__log_of(d);
    e.layer_name = ddp__name_of_layer;
    e.user = d;
    s = ddp__engine_open(&e, out, err);
    if (s != DDP_OK) wire->table->close(wire);
    return s;
}

/* Resolves the address of the first link again. The name was resolved before, so a failure now is transient
 * and is retried. */
static ddp_status ddp__first_address(const ddp_ctx *d, const char *first, ddp__addr *a, ddp_error *err)
{
    const double until = ddp_now() + ddp__cfg(d)->timeout.connect_s;
    int count = 0;

    for (;;) {
        const ddp_status s = ddp__addr_parse(first, a, 1, &count, err);
        if (s != DDP_NET || ddp_now() >= until ||
            (ddp__cfg(d)->cancel && ddp__atomic_load(ddp__cfg(d)->cancel)))
            return s;
        ddp__sleep_until(ddp_now() + 0.2);
    }
}

static ddp_status ddp__second_place(ddp_ctx *d, char *addr, size_t room, int *listen_fd, ddp_error *err)
{
    const char *first = ddp__cfg(d)->addr ? ddp__cfg(d)->addr : "127.0.0.1";
    ddp__addr list[1];
    int32_t port = 0;
    ddp_status s = DDP_OK;
    int beside = ddp__cfg(d)->transport == DDP_TCP &&
                 !ddp__cfg(d)->network.addr2; /* use another port of the first link's address */
    char text[DDP__ADDR_TEXT];

    *listen_fd = -1;
    addr[0] = 0;
    if (ddp__cfg(d)->network.addr2) snprintf(addr, room, "%s", ddp__cfg(d)->network.addr2);
    if (beside) {
        s = ddp__first_address(d, first, &list[0], err);
        if (s == DDP_OK && ddp_rank(d) == 0) {
            ddp__addr bound;
            ddp__addr_set_port(&list[0], 0);
            s = ddp__tcp_listen(&list[0], listen_fd, &bound, err);
            if (s == DDP_OK) port = (int32_t)ddp__addr_port(&bound);
        }
        if (s != DDP_OK)
            return ddp__fail(err, s,
                             "no rendezvous address for the second link next to '%.100s': set addr2 or "
                             "DREAMDDP_ADDR2 to HOST:PORT of rank 0",
                             first);
    }
    /* always broadcast, also without a port: this detects a rank that has no second link */
    s = ddp__tell(d, 0, &port, sizeof port, err);
    if (s != DDP_OK && *listen_fd >= 0) close(*listen_fd);
    if (s == DDP_OK && beside) {
        ddp__addr_set_port(&list[0], (int)port);
        snprintf(addr, room, "%s", ddp__addr_text(&list[0], text));
    }
    return s;
}

ddp_status ddp__open_second(ddp_ctx *d, ddp__hub *hub, ddp_error *err)
{
    ddp__engine *second = NULL;
    ddp__wire *wire = NULL;
    char addr[320];
    int listen_fd;

    if (!ddp__two_links(ddp__cfg(d))) return DDP_OK;
    DDP__TRY(ddp__links_second(d, err));
    DDP__TRY(ddp__second_place(d, addr, sizeof addr, &listen_fd, err));
    if (hub) hub = ddp__hub_second(hub, 0);
    DDP__TRY(ddp__connect(d, hub, addr, listen_fd, &wire, err));
    DDP__TRY(ddp__engine_start(d, wire, ddp__links_of(d, 1), 0, 0, &second, err));
    ddp__second_set(d, second);
    return DDP_OK;
}
