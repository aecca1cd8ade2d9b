/* What the wire does for newcomers: those who ask at the door are shown to the service, the connection
 * that each has made is kept, and put in the place of a lost one. */
#include "base/platform.h"
#include "base/tools.h"
#include "wire/meeting.h"
#include "wire/reconnect_state.h"

/* Asks for something of the run: only who may be a rank of it, or is called a newcomer, hears anything. */
static int ddp__knock_ask(ddp__resume_wire *t, int fd, const ddp__hello *h, const ddp__addr *from)
{
    unsigned char b[DDP__HELLO_BYTES];
    char name[DDP__STREAM_NAME], text[DDP__STREAM_TEXT];
    ddp__hello claim = *h;
    ddp__refusal why;
    int only;

    claim.world = t->self.world; /* knows neither world nor rank */
    claim.rank = t->self.rank + 1 < t->self.world ? t->self.rank + 1 : t->self.rank - 1;
    why = ddp__hello_check(&t->self, &claim);
    if (!why && !t->visit) why = DDP__REFUSE_RANK;
    if (why) {
        ddp__door_refuse(&t->door, fd, from, &t->self, why, h);
        return 0;
    }
    if (ddp__stream_may_join(t->cfg.tls, fd, &only, name, text)) return t->visit(t->visit_user, t->cfg.tls, fd, only);
    ddp__door_note(&t->door, from, text);
    ddp__hello_pack(&t->self, DDP__REFUSED, DDP__REFUSE_NAME, 0, b);
    (void)ddp__stream_send_all(t->cfg.tls, fd, b, sizeof b, ddp_now()); /* its buffer is empty */
    return 0;
}

int ddp__knock_join(ddp__resume_wire *t, int fd, const ddp__hello *h, const ddp__addr *from)
{
    unsigned char b[DDP__HELLO_BYTES];
    char text[DDP__STREAM_TEXT];
    ddp__refusal why;
    ddp__way *p;

    if (h->kind == DDP__JOIN_ASK) return ddp__knock_ask(t, fd, h, from);
    why = ddp__hello_check(&t->self, h);
    if (!why && !t->visit) why = DDP__REFUSE_RANK;
    if (!why && t->way[h->rank].state != DDP__LINK_ENDED) why = DDP__REFUSE_TWICE;
    if (!why && !ddp__stream_may_be(t->cfg.tls, fd, (int)h->rank, text)) why = DDP__REFUSE_NAME;
    if (why) {
        ddp__door_refuse(&t->door, fd, from, &t->self, why, h);
        return 0;
    }
    p = &t->way[h->rank];
    ddp__stream_close(t->cfg.tls, p->newcomer_fd);
    p->newcomer_fd = fd;
    if (!ddp__ip_parse(h->family, h->ip, &p->newcomer_where)) p->newcomer_where = *from;
    ddp__addr_set_port(&p->newcomer_where, (int)(h->port & 65535));
    ddp__hello_pack(&t->self, DDP__JOIN_MESH, DDP__WELCOME, 0, b);
    (void)ddp__stream_send_all(t->cfg.tls, fd, b, sizeof b, ddp_now()); /* its buffer is empty */
    return 1;
}

void ddp__wire_resume_visits(ddp__wire *w, ddp__visit_fn visit, void *user)
{
    ddp__resume_wire *t = (ddp__resume_wire *)(void *)w;

    t->visit = visit;
    t->visit_user = user;
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
