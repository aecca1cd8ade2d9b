/* The messages between a broker and its nodes, over TCP or TLS, and a connection that never blocks. Training
 * itself uses the library's transport. */
#ifndef EXAMPLES_CHANNEL_H
#define EXAMPLES_CHANNEL_H

#include <ctype.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

/* Up: hello, speed, network, ready, loss, state, saved, done, fail. Down: the others, network and state
 * too. */
typedef enum channel_word {
    WORD_HELLO = 1, /* "version host" */
    WORD_END,       /* "code message": the node has to stop */
    WORD_MEASURE,   /* a job whose operators the node measures */
    WORD_SPEED,     /* "FLOP/s port": the measured rate, and a free port of the node */
    WORD_PROBE,     /* "rank world address": measure the links between all nodes */
    WORD_NETWORK,   /* JSON */
    WORD_JOB,       /* the node's description */
    WORD_READY,     /* the node can build the model */
    WORD_STATE,     /* channel_part, floats: an operator's parameters and state */
    WORD_START,     /* channel_start */
    WORD_DATA,      /* channel_part, values of an input */
    WORD_LOSS,      /* double */
    WORD_SAVED,     /* all operators of the node were sent */
    WORD_DONE,      /* channel_done */
    WORD_CANCEL,    /* this attempt has ended */
    WORD_FAIL,      /* channel_failure */
    WORD_LOST       /* never sent: the connection is closed */
} channel_word;

enum {
    CHANNEL_VERSION = 1,
    CHANNEL_HELLO = 256,
    CHANNEL_TEXT = 1024,
    CHANNEL_JSON = 1 << 26
}; /* maximum length in bytes */
enum {
    CHANNEL_MAGIC = 0x6a706464,
    CHANNEL_STEP = 1 << 16, /* initial size of a buffer, in bytes. A length that a peer announces allocates no
                             * more. */
    CHANNEL_READS = 16,     /* bytes that one channel_advance reads at most, so that no peer delays the
                             * others */
    CHANNEL_STALL = 60,     /* seconds without a byte inside a message, after which a peer is lost */
    CHANNEL_STEP_SECONDS = 3600, /* seconds for a step of a node, in which it reads nothing */
    CHANNEL_PATH = 512
};

typedef struct channel_head {
    uint32_t magic, word;
    uint64_t bytes;
} channel_head;
typedef struct channel_part {
    int32_t op, micro_batch;
} channel_part;
typedef struct channel_start {
    char addr[128];            /* of rank 0 */
    char devices[1024];        /* "@3,0,1": the network's device of each rank. "" means that links as they
                                * are. */
    int64_t first, save_every; /* steps */
    double peer_timeout_s;
    int32_t rank, world, send_back;
} channel_start;
typedef struct channel_done {
    uint64_t hash;
    double step_s;
} channel_done;
typedef struct channel_failure {
    int32_t code;
    char text[508];
} channel_failure;

typedef struct channel_state {
    float *x;
    size_t floats;
} channel_state; /* parameters and state of an operator, or none if x is NULL */

/* The kind of a peer, which decides what messages it may send. */
typedef enum channel_peer {
    CHANNEL_CALLER, /* a process that has not registered: a hello alone */
    CHANNEL_NODE,
    CHANNEL_BROKER
} channel_peer;

/* A non-blocking socket, the message that it receives, and the queued bytes that it has to send. */
typedef struct channel {
    int fd;
    ddp__tls *tls; /* borrowed, or NULL for no encryption */
    channel_peer peer;
    size_t most;   /* length of a WORD_STATE or WORD_DATA of the current job. 0 means that the peer may send
                    * none. */
    char why[320]; /* why nothing more is received, as the predicate of an error about the peer. "" means that
                    * it closed. */
    channel_head head;
    size_t got;      /* bytes of header and data received so far */
    int whole;       /* the message is complete. Set until channel_next. */
    int gone;        /* no more messages can be received */
    int shut;        /* nothing more can be sent, but earlier messages of the peer may still arrive */
    double heard;    /* time of the last received byte */
    double taken;    /* time when the last byte was sent, or the first one was queued */
    double patience; /* seconds that the peer may accept no byte, or 0 for CHANNEL_STALL */
    channel_word word;
    char *data; /* [bytes] and a NUL */
    size_t bytes, room;
    char *out; /* bytes from..to are queued */
    size_t from, to, out_room;
} channel;

static void channel_close(channel *c)
{
    ddp__stream_close(c->tls, c->fd);
    free(c->data);
    free(c->out);
    memset(c, 0, sizeof *c);
    c->fd = -1;
}

static ddp_status refuse(ddp_error *err, ddp_status code, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    return err->code = code;
}

/* ---- files ---- */

static inline char *read_file(const char *path, size_t *bytes, ddp_error *err)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    long n = -1;

    if (f && !fseek(f, 0, SEEK_END)) {
        n = ftell(f);
        rewind(f);
    }
    if (n >= 0) text = (char *)malloc((size_t)n + 1);
    if (text && fread(text, 1, (size_t)n, f) != (size_t)n) {
        free(text);
        text = NULL;
    }
    if (!text)
        refuse(err, DDP_IO, "cannot read %s: %s", path, strerror(errno));
    else {
        text[n] = 0;
        *bytes = (size_t)n;
    }
    if (f) fclose(f);
    return text;
}

static inline ddp_status write_file(const char *path, const char *text, size_t bytes, ddp_error *err)
{
    FILE *f = fopen(path, "wb");
    int bad = !f || fwrite(text, 1, bytes, f) != bytes;

    if (f) bad |= fclose(f) != 0;
    return bad ? refuse(err, DDP_IO, "cannot write %s: %s", path, strerror(errno)) : DDP_OK;
}

/* Writes a file with an unpredictable name, in TMPDIR or /tmp. path[CHANNEL_PATH] receives its name. The
 * caller removes it. */
static inline ddp_status write_temporary(const char *text, size_t bytes, char *path, ddp_error *err)
{
    const char *folder = getenv("TMPDIR");
    int fd;

    if (!folder || !*folder) folder = "/tmp";
    if (snprintf(path, CHANNEL_PATH, "%s/dreamddp-XXXXXX.json", folder) >= CHANNEL_PATH) {
        path[0] = 0;
        return refuse(err, DDP_ARG, "TMPDIR is longer than %d bytes: %.200s...", CHANNEL_PATH - 24, folder);
    }
    fd = mkstemps(path, 5); /* length of ".json" */
    if (fd < 0) {
        refuse(err, DDP_IO,
               "cannot create a temporary file in %.200s: %s; set TMPDIR to a folder that can be written to",
               folder, strerror(errno));
        path[0] = 0;
        return err->code;
    }
    close(fd);
    if (write_file(path, text, bytes, err) == DDP_OK) return DDP_OK;
    remove(path);
    path[0] = 0;
    return err->code;
}

/* ---- connecting ---- */

/* The TLS handshake: the broker must have the key, or a certificate with the name `broker`. After DDP_NET the
 * caller may retry. */
static inline ddp_status channel_greet(channel *c, double until, ddp_error *err)
{
    char text[DDP__STREAM_TEXT];
    const char *why = NULL;

    if (ddp__stream_begin(c->tls, c->fd, 0)) return refuse(err, DDP_MEMORY, "out of memory for TLS");
    if (ddp__stream_greet(c->tls, c->fd, until)) {
        why = ddp__stream_why(c->tls, c->fd);
        if (!why)
            return refuse(err, DDP_NET, "the broker closed the connection during the TLS handshake: %s",
                          strerror(errno));
    } else if (!ddp__stream_is_named(c->tls, c->fd, "broker", text)) {
        why = text;
    }
    return why ? refuse(err, DDP_MISMATCH, "the broker %s", why) : DDP_OK;
}

/* Makes one attempt to connect to a broker, until the given time. */
static inline ddp_status channel_dial(channel *c, const ddp__addr *to, ddp__tls *tls, double until,
                                      ddp_error *err)
{
    char text[DDP__ADDR_TEXT];
    ddp_status s;

    memset(c, 0, sizeof *c);
    c->peer = CHANNEL_BROKER;
    c->fd = ddp__tcp_dial(to, until);
    if (c->fd < 0)
        return refuse(err, DDP_NET, "no broker answers at %s: %s; start build/broker there first",
                      ddp__addr_text(to, text), strerror(errno));
    s = ddp__tcp_tune(c->fd, CHANNEL_STEP_SECONDS, NULL, err);
    c->tls = tls;
    if (s == DDP_OK) s = channel_greet(c, until > ddp_now() + 5 ? until : ddp_now() + 5, err);
    if (s != DDP_OK) channel_close(c);
    return s;
}

/* Returns a port that no process is listening on. */
static inline int channel_free_port(void)
{
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0), port = 0;

    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a) && !getsockname(fd, (struct sockaddr *)&a, &n))
        port = ntohs(a.sin_port);
    if (fd >= 0) close(fd);
    return port;
}

/* ---- sending ---- */

/* Returns the number of queued bytes. */
static inline size_t channel_waiting(const channel *c) { return c->to - c->from; }

static void channel_unsendable(channel *c)
{
    c->shut = 1;
    c->from = c->to = 0;
}

/* Sends queued bytes as far as the peer accepts them. Never blocks. */
static void channel_flush(channel *c)
{
    while (channel_waiting(c)) {
        struct iovec rest;
        long n;
        rest.iov_base = c->out + c->from;
        rest.iov_len = channel_waiting(c);
        n = ddp__stream_send(c->tls, c->fd, &rest, 1);
        if (n < 0) channel_unsendable(c);
        if (n <= 0) return;
        c->from += (size_t)n;
        c->taken = ddp_now();
    }
    c->from = c->to = 0;
}

/* Appends bytes to the queue. */
static int channel_queue(channel *c, const void *data, size_t n)
{
    if (!n) return 1;
    if (c->from) memmove(c->out, c->out + c->from, channel_waiting(c));
    c->to -= c->from;
    c->from = 0;
    if (c->to + n > c->out_room) {
        const size_t room = c->to + n > 2 * c->out_room ? c->to + n : 2 * c->out_room;
        char *more = (char *)realloc(c->out, room);
        if (!more) return 0;
        c->out = more;
        c->out_room = room;
    }
    if (!c->to) c->taken = ddp_now();
    memcpy(c->out + c->to, data, n);
    c->to += n;
    return 1;
}

/* Sends a message of two parts, either of which may be empty. Bytes that the peer does not accept at once are
 * queued. Never blocks. 0 means that the connection is closed, or memory is short. */
static int channel_send(channel *c, channel_word word, const void *a, size_t na, const void *b, size_t nb)
{
    const channel_head h = {CHANNEL_MAGIC, (uint32_t)word, (uint64_t)(na + nb)};
    struct iovec part[3];
    int first = 0;

    if (c->gone || c->shut || c->fd < 0) return 0;
    part[0].iov_base = (void *)(uintptr_t)&h;
    part[0].iov_len = sizeof h;
    part[1].iov_base = (void *)(uintptr_t)a;
    part[1].iov_len = na;
    part[2].iov_base = (void *)(uintptr_t)b;
    part[2].iov_len = nb;
    while (!channel_waiting(c) && first < 3) {
        long n = ddp__stream_send(c->tls, c->fd, part + first, 3 - first);
        if (n < 0) {
            channel_unsendable(c);
            return 0;
        }
        if (n == 0) break;
        for (; first < 3 && (size_t)n >= part[first].iov_len; first++) n -= (long)part[first].iov_len;
        if (first == 3) break;
        part[first].iov_base = (char *)part[first].iov_base + n;
        part[first].iov_len -= (size_t)n;
    }
    for (; first < 3; first++) {
        if (channel_queue(c, part[first].iov_base, part[first].iov_len)) continue;
        channel_unsendable(c); /* half a message: the peer could not read a later one */
        return 0;
    }
    return 1;
}

/* ---- receiving ---- */

/* 1 if that peer may send this message, with a length between *least and *most bytes. */
static int channel_limits(const channel *c, uint32_t word, size_t *least, size_t *most)
{
    int from = CHANNEL_BROKER;

    *least = *most = 0;
    switch (word) {
    case WORD_HELLO:
        from = CHANNEL_CALLER;
        *most = CHANNEL_HELLO;
        break;
    case WORD_SPEED:
        from = CHANNEL_NODE;
        *most = CHANNEL_TEXT;
        break;
    case WORD_LOSS:
        from = CHANNEL_NODE;
        *least = *most = sizeof(double);
        break;
    case WORD_DONE:
        from = CHANNEL_NODE;
        *least = *most = sizeof(channel_done);
        break;
    case WORD_FAIL:
        from = CHANNEL_NODE;
        *least = *most = sizeof(channel_failure);
        break;
    case WORD_READY:
    case WORD_SAVED:
        from = CHANNEL_NODE;
        break;
    case WORD_NETWORK:
        from = (int)c->peer;
        *most = CHANNEL_JSON;
        break; /* sent by nodes and by the broker */
    case WORD_STATE:
        from = (int)c->peer;
        *least = sizeof(channel_part);
        *most = c->most;
        break;
    case WORD_DATA:
        *least = sizeof(channel_part);
        *most = c->most;
        break;
    case WORD_END:
    case WORD_PROBE:
        *most = CHANNEL_TEXT;
        break;
    case WORD_MEASURE:
    case WORD_JOB:
        *most = CHANNEL_JSON;
        break;
    case WORD_START:
        *least = *most = sizeof(channel_start);
        break;
    case WORD_CANCEL:
        break;
    default:
        return 0;
    }
    return from == (int)c->peer && (from != CHANNEL_CALLER || word == WORD_HELLO);
}

/* Grows the buffer for the next bytes of the message, in proportion to the bytes received. 0 means that the
 * cause is in why. */
static int channel_grow(channel *c)
{
    const size_t have = c->got - sizeof c->head, needed = have < c->bytes ? have + 2 : have + 1;

    if (needed > c->room) {
        size_t room = 2 * needed;
        char *more;
        if (room < CHANNEL_STEP) room = CHANNEL_STEP;
        if (room > c->bytes + 1) room = c->bytes + 1;
        more = (char *)realloc(c->data, room);
        if (!more) {
            snprintf(c->why, sizeof c->why, "sent a message of %llu bytes, for which there is no memory",
                     (unsigned long long)c->bytes);
            return 0;
        }
        c->data = more;
        c->room = room;
    }
    c->whole = have == c->bytes;
    if (c->whole) c->data[c->bytes] = 0;
    return 1;
}

/* A header has arrived: its length is checked before it is used. */
static int channel_begin(channel *c)
{
    const channel_head *h = &c->head;
    size_t least, most;

    if (h->magic != CHANNEL_MAGIC || !channel_limits(c, h->word, &least, &most) || h->bytes < least ||
        h->bytes > most) {
        snprintf(c->why, sizeof c->why,
                 "sent a malformed message %lu of %llu bytes; start all programs from one release",
                 (unsigned long)h->word, (unsigned long long)h->bytes);
        return 0;
    }
    c->word = (channel_word)h->word;
    c->bytes = (size_t)h->bytes;
    return 1;
}

/* Reads the available bytes of one message, and no byte beyond it. Returns 1 if the message is complete, 0 if
 * it is not, -1 if the connection is closed. Never blocks. */
static int channel_advance(channel *c)
{
    for (int k = 0; k < CHANNEL_READS && !c->whole && !c->gone; k++) {
        const int head = c->got < sizeof c->head;
        const size_t at = head ? c->got : c->got - sizeof c->head, room = c->room ? c->room - 1 : 0;
        const size_t end = head ? sizeof c->head : room < c->bytes ? room : c->bytes;
        const long n = ddp__stream_recv(c->tls, c->fd, (head ? (char *)&c->head : c->data) + at, end - at);
        if (n == 0) return 0;
        if (n < 0) {
            const char *why = ddp__stream_why(c->tls, c->fd);
            if (why) snprintf(c->why, sizeof c->why, "%s", why);
            c->gone = 1;
            break;
        }
        c->got += (size_t)n;
        c->heard = ddp_now();
        if (c->got == sizeof c->head && !channel_begin(c))
            c->gone = 1;
        else if (c->got >= sizeof c->head && !channel_grow(c))
            c->gone = 1;
    }
    return c->whole ? 1 : c->gone ? -1 : 0;
}

/* Discards the complete message, so that the next one can be received. */
static void channel_next(channel *c)
{
    if (!c->whole) return;
    c->whole = 0;
    c->got = 0;
}

/* Closes the connection to a peer that sent an unexpected message. */
static inline void channel_unexpected(channel *c)
{
    snprintf(c->why, sizeof c->why, "sent message %d, which was not expected", (int)c->word);
    c->gone = 1;
}

/* Closes the connection to a peer that stopped inside a message or accepts no bytes. Call it after an attempt
 * to read and to send. */
static void channel_check(channel *c, double now)
{
    if (c->gone) return;
    if (c->got && !c->whole && now > c->heard + (double)CHANNEL_STALL) {
        snprintf(c->why, sizeof c->why, "sent part of a message, and nothing for %d s", CHANNEL_STALL);
        c->gone = 1;
    } else if (channel_waiting(c) &&
               now > c->taken + (c->patience > 0 ? c->patience : (double)CHANNEL_STALL)) {
        snprintf(c->why, sizeof c->why, "received nothing for %.0f s", now - c->taken);
        c->gone = 1;
    }
}

/* 1 if TLS has already read bytes, which poll does not report. */
static inline int channel_ready(const channel *c)
{
    return !c->whole && !c->gone && c->fd >= 0 && ddp__stream_ready(c->tls, c->fd);
}

/* The descriptor and events for poll. Bytes are read until a message is complete. */
static inline void channel_poll(const channel *c, struct pollfd *p)
{
    const int events = (c->whole || c->gone ? 0 : POLLIN) | (channel_waiting(c) ? POLLOUT : 0);

    ddp__poll_set(p, events ? c->fd : -1, ddp__stream_events(c->tls, c->fd, events)); /* poll always reports
                                                                                       * the end of a
                                                                                       * descriptor */
}

/* ---- a program with one connection: the node ---- */

/* Sends the queued bytes. Blocks until all are sent, a signal arrives, or the connection is closed. */
static inline void channel_drain(channel *c)
{
    while (channel_waiting(c) && !c->gone && !cli_interrupted) {
        (void)ddp__fd_wait(c->fd, ddp__stream_events(c->tls, c->fd, POLLOUT), ddp_now() + 0.2);
        channel_flush(c);
        channel_check(c, ddp_now());
    }
}

/* Waits up to the given seconds. 1 means that a byte has arrived, or the connection is closed. */
static inline int channel_waits(channel *c, double seconds)
{
    struct pollfd p;

    if (ddp__stream_ready(c->tls, c->fd)) return 1;
    ddp__poll_set(&p, c->fd, ddp__stream_events(c->tls, c->fd, POLLIN));
    return poll(&p, 1, (int)(seconds * 1000)) > 0; /* a signal ends the wait */
}

/* Receives the next message and blocks until it is complete. 0 means that the connection is closed, or a
 * signal arrived. */
static inline int channel_receive(channel *c)
{
    int got;

    channel_next(c);
    while ((got = channel_advance(c)) == 0 && !cli_interrupted) {
        (void)channel_waits(c, 0.2);
        channel_check(c, ddp_now());
    }
    return got > 0;
}

/* ---- what messages mean ---- */

/* Text of a peer, made safe for a terminal: one line, without control characters. */
static void channel_printable(char *text)
{
    for (char *at = text; *at; at++)
        if (!isprint((unsigned char)*at)) *at = '?';
}

/* Parses a WORD_START of a job of `steps` steps. 0 means that the numbers are invalid. */
static inline int channel_start_of(const channel *c, long steps, channel_start *out)
{
    memcpy(out, c->data, sizeof *out);
    out->addr[sizeof out->addr - 1] = 0;
    out->devices[sizeof out->devices - 1] = 0;
    return out->world > 0 && out->rank >= 0 && out->rank < out->world && out->first >= 0 &&
           out->first <= steps && out->save_every >= 0 && out->peer_timeout_s >= 0 &&
           out->peer_timeout_s < 1e9;
}

/* Parses a WORD_FAIL: an error code and its text. */
static inline void channel_failure_of(const channel *c, channel_failure *out)
{
    memcpy(out, c->data, sizeof *out);
    out->text[sizeof out->text - 1] = 0;
    channel_printable(out->text);
    if (out->code <= 0 || out->code >= (int)DDP_STATUS_COUNT) out->code = (int)DDP_FORMAT;
}

/* Stores the content of a WORD_STATE in list [ops]. Returns 0 if out of memory, or if there is no such
 * operator. */
static int channel_keep(const channel *c, channel_state *list, int ops)
{
    channel_part part;
    channel_state *s;

    memcpy(&part, c->data, sizeof part);
    if (part.op < 0 || part.op >= ops) return 0;
    s = &list[part.op];
    free(s->x);
    s->floats = (c->bytes - sizeof part) / sizeof(float);
    s->x = (float *)malloc(s->floats * sizeof(float) + 1);
    if (s->x) memcpy(s->x, c->data + sizeof part, s->floats * sizeof(float));
    return s->x != NULL;
}

static void channel_forget(channel_state *list, int ops)
{
    for (int i = 0; list && i < ops; i++) free(list[i].x);
    free(list);
}

#endif /* EXAMPLES_CHANNEL_H */
