/* A second link between the same workers: a wire and an engine of its own, so that its operations
 * wait for none of the first. (DeFT, section 3: the slower link takes what the faster one has no
 * time for; mu is how much slower it is.) */
#include "base/platform.h"
#include "wire/socket.h"
#include "run/context.h"
#include "run/device.h"

int ddp__two_links(const ddp_config *c) { return c->world > 1 && (c->net2 || c->addr2); }

ddp_status ddp__second_links(const ddp_config *c, ddp__links *out, ddp_error *err)
{
    ddp_config second = *c;

    second.net = c->net2;
    second.net_script = NULL;
    second.seed = c->seed + 1;
    return ddp__links_open(&second, out, err);
}

ddp_status ddp__second_place(ddp_ctx *d, char *addr, size_t room, int *listen_fd, ddp_error *err)
{
    const char *first = d->cfg.addr ? d->cfg.addr : "127.0.0.1";
    ddp__addr list[1];
    int32_t port = 0;
    ddp_status s = DDP_OK;
    int count = 0;
    char text[DDP__ADDR_TEXT];

    *listen_fd = -1;
    addr[0] = 0;
    if (d->cfg.addr2) snprintf(addr, room, "%s", d->cfg.addr2);
    if (d->cfg.transport == DDP_TCP && !d->cfg.addr2) {
        s = ddp__addr_parse(first, list, 1, &count, err);
        if (s == DDP_OK && d->rank == 0) {
            ddp__addr bound;
            ddp__addr_set_port(&list[0], 0);
            s = ddp__tcp_listen(&list[0], listen_fd, &bound, err);
            if (s == DDP_OK) port = (int32_t)ddp__addr_port(&bound);
        }
        if (s != DDP_OK)
            return ddp__fail(err, s,
                             "the second link finds no meeting place beside '%.100s': set addr2 or "
                             "DREAMDDP_ADDR2 to HOST:PORT of rank 0",
                             first);
    }
    /* also where nothing is to be told: a rank without a second link is found here */
    s = ddp__tell(d, 0, &port, sizeof port, err);
    if (s != DDP_OK && *listen_fd >= 0) close(*listen_fd);
    if (s == DDP_OK && count) {
        ddp__addr_set_port(&list[0], (int)port);
        snprintf(addr, room, "%s", ddp__addr_text(&list[0], text));
    }
    return s;
}

ddp__engine *ddp__engine_of(const ddp_ctx *d, int link)
{
    return link && d->second ? d->second : d->engine;
}

int ddp_links(const ddp_ctx *d)
{
    return !d || !d->engine ? 0 : d->second || d->cfg.nccl == 2 ? 2 : 1;
}

int ddp_measure_links(ddp_ctx *d)
{
    int link;

    DDP__ENTER(d);
    if (d->cfg.nccl && !d->started && ddp__session_start(d, &d->host.error))
        return ddp__ctx_fail(d, &d->host.error);
    for (link = 0; link < ddp_links(d); link++)
        if (ddp__probe_link(d, link, link ? &d->second_link : &d->link, &d->host.error))
            return ddp__ctx_fail(d, &d->host.error);
    return 0;
}

int ddp_get_link_stats(ddp_ctx *d, int link, ddp_link_stats *out)
{
    ddp__net_stats net;

    memset(out, 0, sizeof *out);
    if (link < 0 || link >= ddp_links(d)) return (int)DDP_ARG;
    if (d->nccl && link == 0) {
        ddp__nccl_stats(d, out);
    } else {
        ddp__engine_stats(ddp__engine_of(d, link), &net);
        out->bytes_sent = net.bytes_sent;
        out->operations = net.operations;
        out->busy_s = net.busy_s;
        out->algorithm = ddp__algorithm_name(net.algorithm);
    }
    out->link = link ? d->second_link : d->link;
    if (link == 0) out->mu = 1;
    else if (d->link.beta_s > 0) out->mu = d->second_link.beta_s / d->link.beta_s;
    return 0;
}
