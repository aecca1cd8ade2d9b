/* A link: bytes that can be sent again, the identity of the peer, sending, and closing a connection. */
#include "wire/replay.h"

static const double ddp__dial_first = 0.02; /* in seconds: between the first attempts */

/* ---- bytes that can be sent again ---- */

size_t ddp__replay_free(const ddp__replay *r) { return r->room - (size_t)(r->end - r->first); }

void ddp__replay_put(ddp__replay *r, const void *bytes, size_t n)
{
    size_t to, run;

    if (n == 0) return;                /* bytes may be NULL then */
    if (r->end == r->first) r->at = 0; /* restart at 0: with little traffic the ring stays in the cache */
    to = (r->at + (size_t)(r->end - r->first)) % r->room;
    run = n < r->room - to ? n : r->room - to;
    memcpy(r->data + to, bytes, run);
    if (n > run) memcpy(r->data, (const unsigned char *)bytes + run, n - run);
    r->end += n;
}

int ddp__replay_forget(ddp__replay *r, uint64_t upto)
{
    if (upto < r->first || upto > r->end) return 0;
    r->at = (r->at + (size_t)(upto - r->first)) % r->room;
    r->first = upto;
    return 1;
}

int ddp__replay_find(const ddp__replay *r, uint64_t from, size_t n, struct iovec *iov)
{
    size_t at = (r->at + (size_t)(from - r->first)) % r->room, run = n < r->room - at ? n : r->room - at;

    iov[0].iov_base = r->data + at;
    iov[0].iov_len = run;
    if (run == n) return 1;
    iov[1].iov_base = r->data;
    iov[1].iov_len = n - run;
    return 2;
}

/* ---- the identity of the peer ---- */

int ddp__way_is(const ddp__resume_wire *t, const ddp__way *p, int fd, char *why)
{
    char name[DDP__STREAM_NAME];
    int id;

    if (ddp__stream_may_be(t->cfg.tls, fd, p->peer, why)) return 1;
    return p->guest[0] && ddp__stream_may_join(t->cfg.tls, fd, &id, name, why) && !strcmp(name, p->guest);
}

void ddp__way_name(ddp__resume_wire *t, ddp__way *p)
{
    const int named = p->relayed ? p->via + 1 : 0;
    char *name = t->base.names[p->peer], at[DDP__ADDR_TEXT];
    ddp__addr a;

    if (p->named == named) return;
    p->named = named;
    ddp__atomic_store(&t->base.relays[p->peer], named);
    (void)ddp__addr_peer(p->fd, &a);
    ddp__addr_text(&a, at);
    if (p->relayed)
        snprintf(name, DDP__WIRE_NAME, "via rank %d at %.71s", p->via, at);
    else
        snprintf(name, DDP__WIRE_NAME, "%.71s", at);
}

/* ---- breaking and ending ---- */

void ddp__way_close(const ddp__resume_wire *t, ddp__way *p)
{
    if (p->fd >= 0 && p->state != DDP__LINK_DIALLING) ddp__stream_leave(t->cfg.tls, p->fd);
    ddp__fd_close(&p->fd);
}

void ddp__way_break(ddp__resume_wire *t, ddp__way *p, int why)
{
    double now = ddp_now();

    ddp__way_close(t, p);
    p->state = DDP__LINK_DOWN;
    p->why = why;
    t->away++;
    p->down_at = now;
    p->pause = ddp__dial_first;
    /* the lower rank only probes the other, and lets it dial first */
    p->dial_at = t->base.rank > p->peer || p->relayed ? now : now + 1.5 * ddp__dial_first;
    p->refused_since = -1;
    t->ticked = 0;
    ddp__log(&t->cfg.log, DDP_LOG_INFO, "rank %d: the link to rank %d (%s) broke: %s; reconnecting",
             t->base.rank, p->peer, t->base.names[p->peer], strerror(why));
}

void ddp__way_end(ddp__resume_wire *t, ddp__way *p, int why)
{
    ddp__way_close(t, p);
    if (p->state != DDP__LINK_LIVE && p->state != DDP__LINK_ENDED) t->away--;
    p->state = DDP__LINK_ENDED;
    p->why = why;
}

/* ---- sending ---- */

void ddp__way_record(ddp__way *p, ddp__record_kind kind, uint32_t value)
{
    unsigned char *at;

    if (p->pre_sent == p->pre_len) p->pre_sent = p->pre_len = 0;
    at = p->pre + p->pre_len;
    if (p->pre_len + DDP__RECORD_BYTES > sizeof p->pre) return;
    at[0] = (unsigned char)kind;
    at[1] = at[2] = 'd';
    at[3] = 'p';
    ddp__hello_put(at + 4, value, 4);
    p->pre_len += DDP__RECORD_BYTES;
}

/* Between two records: queues an acknowledgement that is due, and the header of the next record. */
static void ddp__way_next_record(ddp__way *p)
{
    uint64_t left = p->ring.end - p->next;

    if (p->received != p->acked && (left > 0 || p->ack_due == 0)) {
        ddp__way_record(p, DDP__RECORD_ACK, (uint32_t)p->received);
        p->acked = p->received;
        p->ack_due = -1;
    }
    if (p->call) ddp__way_record(p, DDP__RECORD_CALL, (uint32_t)p->call - 1);
    p->call = 0;
    if (!left) return;
    p->record_left = left < DDP__RECORD_MOST ? (size_t)left : DDP__RECORD_MOST;
    ddp__way_record(p, DDP__RECORD_DATA, (uint32_t)p->record_left);
}

void ddp__way_flush(ddp__resume_wire *t, ddp__way *p)
{
    while (p->state == DDP__LINK_LIVE && !p->why) {
        struct iovec iov[3];
        size_t head;
        int runs;
        long n;

        if (!p->record_left && p->pre_sent == p->pre_len) ddp__way_next_record(p);
        head = p->pre_len - p->pre_sent;
        if (!head && !p->record_left) return;
        iov[0].iov_base = p->pre + p->pre_sent;
        iov[0].iov_len = head;
        runs = p->record_left ? ddp__replay_find(&p->ring, p->next, p->record_left, iov + 1) : 0;
        n = ddp__stream_send(t->cfg.tls, p->fd, iov, 1 + runs);
        if (n < 0 && !t->cfg.tls && ddp__fd_wait(p->fd, POLLIN, 0))
            p->why = errno; /* the peer's last bytes are read first */
        else if (n < 0)
            ddp__way_break(t, p, errno);
        if (n <= 0) return;
        if ((size_t)n < head) {
            p->pre_sent += (size_t)n;
            return;
        }
        p->pre_sent = p->pre_len;
        p->next += (size_t)n - head;
        p->record_left -= (size_t)n - head;
        if (p->record_left) return; /* the socket is full */
    }
}
