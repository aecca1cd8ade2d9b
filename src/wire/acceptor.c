/* Admission of incoming connections: accepts callers, reads their hello, then accepts or refuses them.
 * acceptor.h describes the policy. */
#include "wire/acceptor.h"

static const double ddp__silent_limit = 2, ddp__hello_limit = 5; /* in seconds: until a caller's first byte,
                                                                  * and until its last */
static const double ddp__hello_grace = 1;                        /* in seconds: within this time no other
                                                                  * caller replaces it */
static const double ddp__broken_pause = 0.8;                     /* in seconds: pause after a failed accept */
static const double ddp__serve_most = 2e-3;  /* processor seconds of one serve. Then the engine continues. */
static const double ddp__accept_most = 1e-3; /* processor seconds of it for new callers. Then the present
                                              * callers are read. */
static const double ddp__pause = 3;          /* pause after a serve, in multiples of its length: a flood takes
                                              * a quarter of the comm thread */
static const double ddp__longest_rest = 0.02; /* in seconds: longest pause, if other programs used the
                                               * processor during a serve */
enum { DDP__LINES_MOST = 10 };

int ddp__acceptor_open(ddp__acceptor *d, const ddp__tcp_config *c, ddp__acceptor_fn decide, void *user)
{
    d->common = ddp__fd_limit() / 2 < DDP__CALLERS ? ddp__fd_limit() / 2 : DDP__CALLERS;
    d->room = d->common + 2 * c->world;
    d->caller = (ddp__caller *)ddp__calloc((size_t)d->room, sizeof *d->caller);
    d->polls = (struct pollfd *)ddp__calloc((size_t)d->room, sizeof *d->polls);
    d->queue = (ddp__acceptor_queue *)ddp__calloc((size_t)d->room, sizeof *d->queue);
    if (d->caller) /* for ddp__acceptor_close, also if another array is missing */
        for (int i = 0; i < d->room; i++) d->caller[i].fd = -1;
    if (!d->caller || !d->polls || !d->queue) return 0;
    d->c = c;
    d->decide = decide;
    d->user = user;
    return 1;
}

/* Frees the caller's slot. Its socket stays open. */
static void ddp__caller_out(ddp__acceptor *d, ddp__caller *c)
{
    c->fd = -1;
    d->queue[c->queue].callers--;
    d->inside--;
}

static void ddp__caller_leave(ddp__acceptor *d, ddp__caller *c)
{
    const int fd = c->fd;

    ddp__caller_out(d, c);
    ddp__stream_close(d->c->tls, fd);
}

void ddp__acceptor_close(ddp__acceptor *d)
{
    for (int i = 0; d->caller && i < d->room; i++)
        if (d->caller[i].fd >= 0) ddp__caller_leave(d, &d->caller[i]);
    if (d->listen_fd >= 0) close(d->listen_fd);
    DDP_FREE(d->caller);
    DDP_FREE(d->polls);
    DDP_FREE(d->queue);
    memset(d, 0, sizeof *d);
    d->listen_fd = -1;
}

void ddp__acceptor_disown(ddp__acceptor *d)
{
    for (int i = 0; d->caller && i < d->room; i++) ddp__fd_close(&d->caller[i].fd);
    ddp__fd_close(&d->listen_fd);
}

/* ---- addresses ---- */

/* Number of leading bytes of an address that identify a machine. For a global IPv6 address these are the
 * bytes of its network. */
static size_t ddp__host_bytes(uint32_t family, const unsigned char *ip)
{
    return family == 6 && (ip[0] & 0xe0) == 0x20 ? 8 : 16;
}

int ddp__same_host(const ddp__addr *a, const ddp__addr *b)
{
    unsigned char ip[2][16];
    uint32_t family = ddp__ip_pack(a, ip[0]);

    return ddp__ip_pack(b, ip[1]) == family && !memcmp(ip[0], ip[1], ddp__host_bytes(family, ip[0]));
}

/* Returns 1 if a caller from that machine was accepted before. */
static int ddp__acceptor_proven(const ddp__acceptor *d, const ddp__addr *from)
{
    for (int i = 0; i < DDP__PROVEN; i++)
        if (ddp__same_host(&d->proven[i], from)) return 1;
    return 0;
}

/* ---- the log ---- */

/* Ends the count of log lines of a second. */
static void ddp__acceptor_count(ddp__acceptor *d, double now)
{
    if (now < d->counted + 1) return;
    if (d->lines > DDP__LINES_MOST)
        ddp__log(&d->c->log, DDP_LOG_WARN, "and %d more were refused", d->lines - DDP__LINES_MOST);
    d->counted = now;
    d->lines = 0;
}

static int ddp__acceptor_may_log(ddp__acceptor *d)
{
    ddp__acceptor_count(d, ddp_now());
    return d->lines++ < DDP__LINES_MOST;
}

/* Records "ADDRESS why" in the log and in d->refused. */
static void ddp__acceptor_note(ddp__acceptor *d, const ddp__caller *c, const char *why)
{
    char name[DDP__ADDR_TEXT];

    snprintf(d->refused, sizeof d->refused, "%s %.*s", ddp__addr_text(&c->from, name),
             (int)(sizeof d->refused - sizeof name - 2), why);
    if (ddp__acceptor_may_log(d)) ddp__log(&d->c->log, DDP_LOG_WARN, "refused: %s", d->refused);
}

/* Handles a complete hello. Returns 1 if the caller is accepted. Otherwise the caller has been notified of
 * the reason. */
static int ddp__acceptor_hello(ddp__acceptor *d, const ddp__caller *c)
{
    char name[DDP__ADDR_TEXT], text[DDP__STREAM_TEXT];
    ddp__hello h;
    ddp__refusal why = ddp__hello_parse(c->bytes, &h) ? ddp__hello_check(&d->c->self, &h) : DDP__REFUSE_MUTE;

    if (!why) why = d->decide(d->user, c, &h, text);
    if (why == DDP__WELCOME && !ddp__acceptor_proven(d, &c->from)) {
        d->proven[d->oldest] = c->from;
        d->oldest = (d->oldest + 1) % DDP__PROVEN;
    }
    if (why == DDP__WELCOME || why == DDP__REFUSE_MUTE) return !why;
    if (why == DDP__REFUSE_NAME) {
        ddp__acceptor_note(d, c, text);
    } else {
        ddp__hello_dispute(&d->c->self, why, &h, ddp__addr_text(&c->from, name), d->refused,
                           sizeof d->refused);
        if (ddp__acceptor_may_log(d)) ddp__log(&d->c->log, DDP_LOG_WARN, "refused: %s", d->refused);
    }
    (void)ddp__hello_send(d->c->tls, c->fd, &d->c->self, DDP__REFUSED, why, 0);
    return 0;
}

static void ddp__caller_drop(ddp__acceptor *d, ddp__caller *c, double now)
{
    char name[DDP__ADDR_TEXT];

    if (ddp__acceptor_may_log(d))
        ddp__log(&d->c->log, DDP_LOG_WARN, "dropped %s: no hello within %.3g s",
                 ddp__addr_text(&c->from, name), now - c->since);
    ddp__caller_leave(d, c);
}

/* ---- present callers ---- */

/* Starts the caller's session at its first byte, so that a silent caller costs no memory. */
static int ddp__caller_begin(ddp__acceptor *d, ddp__caller *c)
{
    if (c->begun) return 1;
    c->begun = 1;
    if (ddp__stream_begin(d->c->tls, c->fd, 1) == 0) return 1;
    ddp__caller_leave(d, c);
    return 0;
}

/* Reads from a caller. A caller leaves after a complete hello or invalid bytes. */
static void ddp__caller_hear(ddp__acceptor *d, ddp__caller *c)
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
        if (ddp__acceptor_hello(d, c)) {
            ddp__caller_out(d, c);
            return;
        }
    } else if (why) {
        ddp__acceptor_note(d, c, why);
    } else if (n > 0 && !d->c->tls && ddp__stream_is_tls(c->bytes, c->got)) {
        ddp__acceptor_note(d, c,
                           "uses TLS, but this rank does not: give all ranks the same --tls-psk, or none");
        ddp__stream_no_tls(c->fd);
    } else if (n > 0) {
        ddp__acceptor_note(d, c, "is not a dreamddp rank");
    } else if (ddp__acceptor_may_log(d)) {
        ddp__log(&d->c->log, DDP_LOG_INFO, "%s disconnected before identifying itself",
                 ddp__addr_text(&c->from, name));
    }
    ddp__caller_leave(d, c);
}

static double ddp__caller_until(const ddp__caller *c)
{
    return c->since + (c->spoken ? ddp__hello_limit : ddp__silent_limit);
}

/* ---- new callers ---- */

/* Returns a caller from the address that holds more than half of the slots, or NULL (majority vote: pairs of
 * different addresses cancel out). */
static const ddp__caller *ddp__acceptor_greedy(const ddp__acceptor *d)
{
    const ddp__caller *left = NULL;
    int i, count = 0;

    for (i = 0; i < d->room; i++) {
        if (d->caller[i].fd < 0) continue;
        if (!count) left = &d->caller[i];
        count += ddp__same_host(&d->caller[i].from, &left->from) ? 1 : -1;
    }
    for (count = i = 0; left && i < d->room; i++)
        count += d->caller[i].fd >= 0 && ddp__same_host(&d->caller[i].from, &left->from);
    return left && 2 * count > d->inside ? left : NULL;
}

/* All of the first `places` slots are taken: returns the caller that a caller from this address replaces, or
 * NULL. */
static ddp__caller *ddp__caller_yields(ddp__acceptor *d, int places, const ddp__addr *from, double now)
{
    const ddp__caller *greedy = ddp__acceptor_greedy(d);
    ddp__caller *oldest[2] = {NULL, NULL}; /* silent, not silent */

    if (greedy && ddp__same_host(&greedy->from, from)) greedy = NULL;
    for (int i = 0; i < places; i++) {
        ddp__caller *c = &d->caller[i];
        if (greedy && !ddp__same_host(&c->from, &greedy->from)) continue;
        if (c->spoken && !greedy && now < c->since + ddp__hello_grace) continue;
        if (!oldest[c->spoken] || c->since < oldest[c->spoken]->since) oldest[c->spoken] = c;
    }
    return oldest[0] ? oldest[0] : oldest[1];
}

/* Returns a free slot, after replacing a caller if necessary, or NULL. The last slots are for known machines.
 * */
static ddp__caller *ddp__acceptor_place(ddp__acceptor *d, const ddp__addr *from, int known, double now)
{
    const int places = known ? d->room : d->common;
    ddp__caller *c;

    for (int i = places - 1; i >= 0; i--)
        if (d->caller[i].fd < 0) return &d->caller[i];
    c = ddp__caller_yields(d, places, from, now);
    if (c) ddp__caller_drop(d, c, now);
    return c;
}

/* Returns the queue of the callers from that machine, or a free queue. */
static int ddp__acceptor_queue_of(ddp__acceptor *d, const ddp__addr *from, int known)
{
    unsigned char ip[16];
    const uint32_t family = ddp__ip_pack(from, ip);
    int unused = 0;

    for (int i = 0; i < d->room; i++) {
        const ddp__acceptor_queue *q = &d->queue[i];
        if (!q->callers)
            unused = i;
        else if (q->known == known && q->family == family && !memcmp(q->ip, ip, ddp__host_bytes(family, ip)))
            return i;
    }
    memset(&d->queue[unused], 0, sizeof d->queue[unused]);
    memcpy(d->queue[unused].ip, ip, sizeof ip);
    d->queue[unused].family = family;
    d->queue[unused].known = known;
    return unused;
}

/* Adds a caller with this socket. Returns NULL without a free slot: the socket is closed, and the caller may
 * connect again. */
static ddp__caller *ddp__acceptor_add(ddp__acceptor *d, int fd, const ddp__addr *from, int via, int known,
                                      double now)
{
    ddp__caller *c = ddp__acceptor_place(d, from, known, now);

    if (!c) {
        ddp__stream_close(d->c->tls, fd);
        return NULL;
    }
    memset(c, 0, sizeof *c);
    c->fd = fd;
    c->via = via;
    c->from = *from;
    c->queue = ddp__acceptor_queue_of(d, from, known);
    c->since = c->heard = now;
    d->queue[c->queue].callers++;
    d->inside++;
    return c;
}

/* Accepts a pending connection. Returns 0 if there is none or it cannot be accepted. */
static int ddp__acceptor_accept(ddp__acceptor *d, double now)
{
    ddp__addr from;
    int fd = ddp__tcp_accept(d->listen_fd, &from), known;

    if (fd < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED) return 0;
        d->broken = errno;
        d->shut = now + ddp__broken_pause; /* otherwise poll would return at once */
        return 0;
    }
    d->broken = 0;
    known = ddp__acceptor_proven(d, &from) || (d->knows && d->knows(d->user, &from));
    (void)ddp__acceptor_add(d, fd, &from, -1, known, now);
    return 1;
}

void ddp__acceptor_adopt(ddp__acceptor *d, int fd, int via)
{
    ddp__caller *c;
    ddp__addr from;

    (void)ddp__addr_peer(fd, &from);
    c = ddp__acceptor_add(d, fd, &from, via, 1, ddp_now());
    if (!c) return;
    c->spoken = 1; /* its first bytes may already be read: poll does not report bytes that the relay's session
                    * has read */
    ddp__caller_hear(d, c);
}

/* Fills polls with the callers, and returns how many. */
static int ddp__acceptor_watch(const ddp__acceptor *d, struct pollfd *polls)
{
    int count = 0;

    for (int i = 0; i < d->room && count < d->inside; i++) {
        const ddp__caller *c = &d->caller[i];
        if (c->fd < 0) continue;
        ddp__poll_set(&polls[count++], c->fd,
                      c->begun ? ddp__stream_events(d->c->tls, c->fd, POLLIN) : POLLIN);
    }
    return count;
}

int ddp__acceptor_polls(const ddp__acceptor *d, struct pollfd *polls, double *next)
{
    int count;

    if (d->shut > 0 && ddp_now() < d->shut) {
        if (d->listen_fd >= 0 && d->shut < *next) *next = d->shut;
        return 0;
    }
    for (int i = 0; i < d->room; i++)
        if (d->caller[i].fd >= 0 && ddp__caller_until(&d->caller[i]) < *next)
            *next = ddp__caller_until(&d->caller[i]);
    count = ddp__acceptor_watch(d, polls);
    ddp__poll_set(&polls[count], d->listen_fd, POLLIN);
    return count + 1;
}

/* ---- order of service ---- */

/* Finds the callers that have bytes to read, and drops those that exceed a time limit. */
static void ddp__acceptor_look(ddp__acceptor *d, double now)
{
    const int count = ddp__acceptor_watch(d, d->polls);
    const struct pollfd *p = d->polls;

    (void)ddp__poll_until(d->polls, count, now);
    for (int i = 0; i < d->room; i++) d->queue[i].ready = 0;
    for (int i = 0; i < d->room && p < d->polls + count; i++) {
        ddp__caller *c = &d->caller[i];
        if (c->fd < 0) continue;
        c->ready = p++->revents != 0;
        c->spoken |= c->ready;
        /* read first: its bytes may have arrived while this process was stopped */
        if (!c->ready && now >= ddp__caller_until(c))
            ddp__caller_drop(d, c, now);
        else
            d->queue[c->queue].ready += c->ready;
    }
}

/* Returns the ready caller of a queue that was read longest ago. */
static ddp__caller *ddp__queue_first(ddp__acceptor *d, int queue)
{
    ddp__caller *first = NULL;

    for (int i = 0; i < d->room; i++) {
        ddp__caller *c = &d->caller[i];
        if (c->fd >= 0 && c->ready && c->queue == queue && (!first || c->heard < first->heard)) first = c;
    }
    return first;
}

/* Returns the next caller, or NULL. Known and unknown addresses alternate. Within each kind, the queues take
 * turns. */
static ddp__caller *ddp__acceptor_next(ddp__acceptor *d)
{
    for (int kind = 0; kind < 2; kind++) {
        int *turn = &d->turn[d->known = !d->known];
        for (int i = 0; i < d->room; i++) {
            const int queue = *turn;
            *turn = (queue + 1) % d->room;
            if (d->queue[queue].ready && d->queue[queue].known == d->known) return ddp__queue_first(d, queue);
        }
    }
    return NULL;
}

/* Processor time of this thread in seconds. Wall time would count the time of other programs. */
static double ddp__thread_seconds(void)
{
#ifdef CLOCK_THREAD_CPUTIME_ID
    struct timespec t;

    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0) return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#endif
    return ddp_now();
}

void ddp__acceptor_serve(ddp__acceptor *d, double now)
{
    const double begin = ddp__thread_seconds();
    ddp__caller *c;
    double served;

    if (d->listen_fd < 0 || now < d->shut) return;
    ddp__acceptor_count(d, now);
    while (ddp__thread_seconds() < begin + ddp__accept_most && ddp__acceptor_accept(d, now)) {
    }
    if (d->inside) ddp__acceptor_look(d, now);
    while (d->inside && ddp__thread_seconds() < begin + ddp__serve_most &&
           (c = ddp__acceptor_next(d)) != NULL) {
        d->queue[c->queue].ready--;
        c->ready = 0;
        c->heard = ddp_now();
        ddp__caller_hear(d, c);
    }
    served = ddp_now();
    d->shut = fmax(d->shut, served + fmin(ddp__pause * (served - now), ddp__longest_rest));
}
