/* What the wire does for newcomers: it says at the door where they are served, keeps the connection
 * that each has made, and puts it in the place of a lost one. */
#include "base/platform.h"
#include "base/tools.h"
#include "base/thread.h"
#include "wire/meeting.h"
#include "wire/reconnect_state.h"

static void ddp__join_answer(ddp__resume_wire *t, int fd, ddp__hello_kind kind, int port)
{
    unsigned char b[DDP__HELLO_BYTES];
    ddp__hello self = t->self;

    self.port = (uint32_t)port;
    ddp__hello_pack(&self, kind, DDP__WELCOME, 0, b);
    (void)ddp__stream_send_all(t->cfg.tls, fd, b, sizeof b, ddp_now()); /* its buffer is empty */
}

int ddp__knock_join(ddp__resume_wire *t, int fd, const ddp__hello *h, const ddp__addr *from)
{
    int service = ddp__atomic_load(&t->service);
    ddp__hello claim = *h;
    char text[DDP__STREAM_TEXT], name[DDP__STREAM_NAME];
    ddp__refusal why;
    ddp__way *p;
    int id;

    if (h->kind == DDP__JOIN_ASK) { /* knows neither world nor rank */
        claim.world = t->self.world;
        claim.rank = t->self.rank + 1 < t->self.world ? t->self.rank + 1 : t->self.rank - 1;
    }
    why = ddp__hello_check(&t->self, &claim);
    if (!why && !service) why = DDP__REFUSE_RANK;
    if (!why && h->kind == DDP__JOIN_MESH && t->way[h->rank].state != DDP__LINK_ENDED)
        why = DDP__REFUSE_TWICE;
    if (!why && h->kind == DDP__JOIN_MESH && !ddp__stream_may_be(t->cfg.tls, fd, (int)h->rank, text) &&
        !(ddp__stream_may_join(t->cfg.tls, fd, &id, name, text) && name[0]))
        why = DDP__REFUSE_NAME;
    if (why) {
        ddp__door_refuse(&t->door, fd, from, &t->self, why, h);
        return 0;
    }
    if (h->kind == DDP__JOIN_ASK) {
        ddp__join_answer(t, fd, DDP__JOIN_ASK, service);
        return 0;
    }
    p = &t->way[h->rank];
    ddp__stream_close(t->cfg.tls, p->newcomer_fd);
    p->newcomer_fd = fd;
    if (!ddp__ip_parse(h->family, h->ip, &p->newcomer_where)) p->newcomer_where = *from;
    ddp__addr_set_port(&p->newcomer_where, (int)(h->port & 65535));
    ddp__join_answer(t, fd, DDP__JOIN_MESH, (int)t->self.port);
    return 1;
}

void ddp__wire_resume_service(ddp__wire *w, int port)
{
    ddp__atomic_store(&((ddp__resume_wire *)(void *)w)->service, port);
}

int ddp__wire_resume_where(ddp__wire *w, int rank, ddp__addr *out)
{
    ddp__resume_wire *t = (ddp__resume_wire *)(void *)w;

    *out = t->way[rank].where;
    if (rank != w->rank) return out->size != 0;
    memset(out, 0, sizeof *out);
    out->size = sizeof out->sa;
    return t->door.listen_fd >= 0 &&
           getsockname(t->door.listen_fd, (struct sockaddr *)&out->sa, &out->size) == 0;
}

void ddp__wire_resume_attach(ddp__wire *w, int id)
{
    ddp__resume_wire *t = (ddp__resume_wire *)(void *)w;
    ddp__way *p = &t->way[id], fresh;
    ddp_error err;
    int fd = p->newcomer_fd;

    ddp__way_end(t, p, ECONNRESET);
    memset(&fresh, 0, sizeof fresh);
    fresh.peer = id;
    fresh.fd = fresh.newcomer_fd = -1;
    fresh.ring.data = p->ring.data;
    fresh.ring.room = p->ring.room;
    fresh.state = DDP__LINK_ENDED;
    fresh.why = ECONNRESET;
    fresh.where = p->newcomer_where;
    fresh.ack_due = -1;
    memcpy(fresh.name, p->name, sizeof fresh.name);
    *p = fresh;
    if (fd < 0) return;
    if (ddp__way_open(t, p, fd, &err)) {
        ddp__log(&t->cfg.log, DDP_LOG_WARN, "rank %d: %s", w->rank, err.msg);
        ddp__stream_close(t->cfg.tls, fd);
        return;
    }
    ddp__way_flush(t, p);
}
