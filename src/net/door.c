#include "base/platform.h"
#include "base/memory.h"
#include "net/door.h"

static const double ddp__caller_limit = 5; /* seconds that a stranger may take for its hello */

int ddp__door_open(ddp__door *d, int listen_fd, int room, ddp__tls *tls)
{
    memset(d, 0, sizeof *d);
    d->listen_fd = -1;
    d->caller = (ddp__caller *)ddp__calloc((size_t)room, sizeof *d->caller);
    if (!d->caller) return 0;
    d->listen_fd = listen_fd;
    d->room = room;
    d->tls = tls;
    for (int i = 0; i < room; i++) d->caller[i].fd = -1;
    return 1;
}

static void ddp__caller_leave(ddp__door *d, ddp__caller *c)
{
    ddp__stream_close(d->tls, c->fd);
    c->fd = -1;
    d->inside--;
}

void ddp__door_close(ddp__door *d)
{
    for (int i = 0; i < d->room; i++)
        if (d->caller[i].fd >= 0) ddp__caller_leave(d, &d->caller[i]);
    if (d->caller && d->listen_fd >= 0) close(d->listen_fd);
    DDP_FREE(d->caller);
    memset(d, 0, sizeof *d);
    d->listen_fd = -1;
}

int ddp__door_polls(ddp__door *d, struct pollfd *polls, double *next)
{
    for (int i = 0; i < d->room; i++) {
        const ddp__caller *c = &d->caller[i];
        polls[i].fd = c->fd;
        polls[i].events = c->fd < 0 ? 0 : (short)ddp__stream_events(d->tls, c->fd, POLLIN);
        polls[i].revents = 0;
        if (c->fd >= 0 && c->until < *next) *next = c->until;
    }
    polls[d->room].fd = d->inside < d->room ? d->listen_fd : -1;
    polls[d->room].events = POLLIN;
    polls[d->room].revents = 0;
    return d->room + 1;
}

/* Hears one caller; 0 when it has to leave. */
static int ddp__caller_hear(ddp__door *d, ddp__caller *c, double now, ddp__door_fn decide,
                            void *user)
{
    long n = ddp__stream_recv(d->tls, c->fd, c->bytes + c->got, sizeof c->bytes - c->got);

    if (n == 0) return now < c->until;
    if (n < 0) return 0;
    c->got += (size_t)n;
    if (!ddp__hello_begins(c->bytes, c->got)) {
        if (!d->tls && ddp__stream_is_tls(c->bytes, c->got)) ddp__stream_no_tls(c->fd);
        return 0;
    }
    if (c->got < sizeof c->bytes) return 1;
    if (decide(user, c->fd, c->bytes, &c->from)) c->fd = -1;
    return 0;
}

void ddp__door_serve(ddp__door *d, double now, ddp__door_fn decide, void *user)
{
    if (d->listen_fd < 0) return;
    for (int i = 0; i < d->room && d->inside < d->room; i++) {
        ddp__caller *c = &d->caller[i];
        if (c->fd >= 0) continue;
        c->fd = ddp__tcp_accept(d->listen_fd, &c->from);
        if (c->fd < 0) break;
        if (ddp__stream_begin(d->tls, c->fd, 1) < 0) {
            close(c->fd);
            c->fd = -1;
            break;
        }
        c->got = 0;
        c->until = now + ddp__caller_limit;
        d->inside++;
    }
    for (int i = 0; i < d->room; i++) {
        ddp__caller *c = &d->caller[i];
        if (c->fd >= 0 && !ddp__caller_hear(d, c, now, decide, user)) ddp__caller_leave(d, c);
    }
}
