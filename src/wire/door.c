/* Who comes to the door: let in, heard, turned away; door.h has the policy. */
#include "wire/door.h"

static const double ddp__silent_limit = 2, ddp__hello_limit = 5; /* seconds until a caller's first and last byte */
static const double ddp__hello_grace = 1;  /* of them nobody else is preferred */
static const double ddp__shut_first = 0.1, ddp__shut_most = 0.8;
enum { DDP__CALLERS = 64, DDP__TURNED_MOST = 64, DDP__LINES_MOST = 10 };

int ddp__door_open(ddp__door *d, const ddp__tcp_config *c, ddp__door_fn decide, void *user)
{
    d->room = 2 * c->world > DDP__CALLERS ? 2 * c->world : DDP__CALLERS;
    d->caller = (ddp__caller *)ddp__calloc((size_t)d->room, sizeof *d->caller);
    if (!d->caller) return 0;
    d->c = c;
    d->decide = decide;
    d->user = user;
    for (int i = 0; i < d->room; i++) d->caller[i].fd = -1;
    return 1;
}

static void ddp__caller_leave(ddp__door *d, ddp__caller *c)
{
    ddp__stream_close(d->c->tls, c->fd);
    c->fd = -1;
    d->inside--;
}

void ddp__door_close(ddp__door *d)
{
    for (int i = 0; d->caller && i < d->room; i++)
        if (d->caller[i].fd >= 0) ddp__caller_leave(d, &d->caller[i]);
    if (d->listen_fd >= 0) close(d->listen_fd);
    DDP_FREE(d->caller);
    memset(d, 0, sizeof *d);
    d->listen_fd = -1;
}

/* ---- the log ---- */

/* A second's count is over. */
static void ddp__door_count(ddp__door *d, double now)
{
    if (now < d->counted + 1) return;
    if (d->lines > DDP__LINES_MOST)
        ddp__log(&d->c->log, DDP_LOG_WARN, "and %d more were turned away", d->lines - DDP__LINES_MOST);
    if (d->turned <= DDP__TURNED_MOST / 2) d->pause = 0;
    d->counted = now;
    d->turned = d->lines = 0;
}

static int ddp__door_may_log(ddp__door *d)
{
    ddp__door_count(d, ddp_now());
    return d->lines++ < DDP__LINES_MOST;
}

/* "ADDRESS why", also in d->refused. */
static void ddp__door_note(ddp__door *d, const ddp__caller *c, const char *why)
{
    char name[DDP__ADDR_TEXT];

    snprintf(d->refused, sizeof d->refused, "%s %.*s", ddp__addr_text(&c->from, name),
             (int)(sizeof d->refused - sizeof name - 2), why);
    if (ddp__door_may_log(d)) ddp__log(&d->c->log, DDP_LOG_WARN, "refused: %s", d->refused);
}

/* A whole hello: 1 if its caller is let in, else it has been told why not. */
static int ddp__door_hello(ddp__door *d, const ddp__caller *c)
{
    char name[DDP__ADDR_TEXT], text[DDP__STREAM_TEXT];
    ddp__hello h;
    ddp__refusal why = ddp__hello_parse(c->bytes, &h) ? ddp__hello_check(&d->c->self, &h) : DDP__REFUSE_MUTE;

    if (!why) why = d->decide(d->user, c, &h, text);
    if (why == DDP__WELCOME || why == DDP__REFUSE_MUTE) return !why;
    if (why == DDP__REFUSE_NAME) {
        ddp__door_note(d, c, text);
    } else {
        ddp__hello_dispute(&d->c->self, why, &h, ddp__addr_text(&c->from, name), d->refused, sizeof d->refused);
        if (ddp__door_may_log(d)) ddp__log(&d->c->log, DDP_LOG_WARN, "refused: %s", d->refused);
    }
    (void)ddp__hello_send(d->c->tls, c->fd, &d->c->self, DDP__REFUSED, why, 0);
    return 0;
}

static void ddp__caller_drop(ddp__door *d, ddp__caller *c, double now)
{
    char name[DDP__ADDR_TEXT];

    if (ddp__door_may_log(d))
        ddp__log(&d->c->log, DDP_LOG_WARN, "dropped %s: it did not say who it is in %.3g s",
                 ddp__addr_text(&c->from, name), now - c->since);
    d->turned++;
    ddp__caller_leave(d, c);
}

/* ---- who is inside ---- */

/* Begins its session once it speaks: one that is silent costs no memory. 0 when there is none. */
static int ddp__caller_begin(ddp__door *d, ddp__caller *c)
{
    char first;

    if (c->spoken) return 1;
    if (recv(c->fd, &first, 1, MSG_PEEK) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    c->spoken = 1;
    if (ddp__stream_begin(d->c->tls, c->fd, 1) == 0) return 1;
    ddp__caller_leave(d, c);
    return 0;
}

/* Reads what a caller says; who has said all, or anything else, leaves. */
static void ddp__caller_hear(ddp__door *d, ddp__caller *c)
{
    char name[DDP__ADDR_TEXT];
    const char *why;
    long n;

    if (!ddp__caller_begin(d, c)) return;
    n = ddp__stream_recv(d->c->tls, c->fd, c->bytes + c->got, sizeof c->bytes - c->got);
    if (n == 0) return;
    why = n < 0 ? ddp__stream_why(d->c->tls, c->fd) : NULL;
    if (n > 0) c->got += (size_t)n;
    if (n > 0 && ddp__hello_begins(c->bytes, c->got)) {
        if (c->got < sizeof c->bytes) return;
        if (ddp__door_hello(d, c)) {
            c->fd = -1;
            d->inside--;
            return;
        }
    } else if (why) {
        ddp__door_note(d, c, why);
    } else if (n > 0 && !d->c->tls && ddp__stream_is_tls(c->bytes, c->got)) {
        ddp__door_note(d, c, "speaks TLS, this rank does not: give all ranks the same --tls-psk, or none");
        ddp__stream_no_tls(c->fd);
    } else if (n > 0) {
        ddp__door_note(d, c, "is not a dreamddp rank");
    } else if (ddp__door_may_log(d)) {
        ddp__log(&d->c->log, DDP_LOG_INFO, "%s came and went without saying who it is", ddp__addr_text(&c->from, name));
    }
    d->turned++;
    ddp__caller_leave(d, c);
}

static double ddp__caller_until(const ddp__caller *c)
{
    return c->since + (c->spoken ? ddp__hello_limit : ddp__silent_limit);
}

/* ---- who comes ---- */

/* The same machine, or the same network of IPv6, of which one machine has any address. */
static int ddp__same_host(const ddp__addr *a, const ddp__addr *b)
{
    unsigned char ip[2][16];
    uint32_t family = ddp__ip_pack(a, ip[0]);
    size_t bytes = family == 6 && (ip[0][0] & 0xe0) == 0x20 ? 8 : 16;

    return ddp__ip_pack(b, ip[1]) == family && !memcmp(ip[0], ip[1], bytes);
}

/* A caller of the address that holds more than half of the places, or NULL: left when all unlike pairs cancel out. */
static const ddp__caller *ddp__door_greedy(const ddp__door *d)
{
    const ddp__caller *left = NULL;
    int i, count = 0;

    for (i = 0; i < d->room; i++) {
        if (!count) left = &d->caller[i];
        count += ddp__same_host(&d->caller[i].from, &left->from) ? 1 : -1;
    }
    for (count = i = 0; i < d->room; i++) count += ddp__same_host(&d->caller[i].from, &left->from);
    return 2 * count > d->room ? left : NULL;
}

/* All places are taken: the caller that makes room for one from there, or NULL. */
static ddp__caller *ddp__caller_yields(ddp__door *d, const ddp__addr *from, double now)
{
    const ddp__caller *greedy = ddp__door_greedy(d);
    ddp__caller *oldest[2] = {NULL, NULL}; /* silent; not silent */

    if (greedy && ddp__same_host(&greedy->from, from)) greedy = NULL;
    for (int i = 0; i < d->room; i++) {
        ddp__caller *c = &d->caller[i];
        if (greedy && !ddp__same_host(&c->from, &greedy->from)) continue;
        if (c->spoken && !greedy && now < c->since + ddp__hello_grace) continue;
        if (!oldest[c->spoken] || c->since < oldest[c->spoken]->since) oldest[c->spoken] = c;
    }
    return oldest[0] ? oldest[0] : oldest[1];
}

/* A free place, or one that is made free; NULL if there is none. */
static ddp__caller *ddp__door_place(ddp__door *d, const ddp__addr *from, double now)
{
    ddp__caller *c;

    for (int i = 0; i < d->room; i++)
        if (d->caller[i].fd < 0) return &d->caller[i];
    c = ddp__caller_yields(d, from, now);
    if (c) ddp__caller_drop(d, c, now);
    return c;
}

/* A flood may not take all of our time: beyond so many in a second the door stays shut, longer each time. */
static int ddp__door_shut(ddp__door *d, double now)
{
    ddp__door_count(d, now);
    if (now < d->shut) return 1;
    if (d->turned < DDP__TURNED_MOST) return 0;
    d->pause = d->pause > 0 ? 2 * d->pause : ddp__shut_first;
    if (d->pause > ddp__shut_most) d->pause = ddp__shut_most;
    d->shut = d->counted = now + d->pause;
    d->turned = 0;
    return 1;
}

/* One who waits outside; 0 when there is none, or none can be let in. */
static int ddp__door_accept(ddp__door *d, double now)
{
    ddp__caller *c;
    ddp__addr from;
    int fd = ddp__tcp_accept(d->listen_fd, &from);

    if (fd < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED) return 0;
        d->broken = errno;
        d->shut = now + ddp__shut_most; /* or poll would call again at once */
        return 0;
    }
    d->broken = 0;
    c = ddp__door_place(d, &from, now);
    if (!c) { /* it may come again */
        close(fd);
        d->turned++;
        return 1;
    }
    memset(c, 0, sizeof *c);
    c->fd = fd;
    c->from = from;
    c->since = now;
    d->inside++;
    ddp__caller_hear(d, c);
    return 1;
}

int ddp__door_polls(const ddp__door *d, struct pollfd *polls, double *next)
{
    int count = 0;

    for (int i = 0; i < d->room && count < d->inside; i++) {
        const ddp__caller *c = &d->caller[i];
        if (c->fd < 0) continue;
        ddp__poll_set(&polls[count++], c->fd, c->spoken ? ddp__stream_events(d->c->tls, c->fd, POLLIN) : POLLIN);
        if (ddp__caller_until(c) < *next) *next = ddp__caller_until(c);
    }
    ddp__poll_set(&polls[count], d->shut > 0 && ddp_now() < d->shut ? -1 : d->listen_fd, POLLIN);
    if (d->listen_fd >= 0 && polls[count].fd < 0 && d->shut < *next) *next = d->shut;
    return count + 1;
}

void ddp__door_serve(ddp__door *d, double now)
{
    if (d->listen_fd < 0) return;
    for (int i = 0; i < d->room && d->inside; i++) {
        ddp__caller *c = &d->caller[i];
        if (c->fd < 0) continue;
        if (now >= ddp__caller_until(c)) ddp__caller_drop(d, c, now);
        else ddp__caller_hear(d, c);
    }
    while (!ddp__door_shut(d, now) && ddp__door_accept(d, now)) {}
}
