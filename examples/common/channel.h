/* What a broker and its nodes say to each other: framed words over TCP. Training itself goes by the library's transport. */
#ifndef EXAMPLES_CHANNEL_H
#define EXAMPLES_CHANNEL_H

#include <ctype.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

/* Up: hello, speed, network, ready, loss, state, saved, done, fail. Down: the others, network and state too. */
typedef enum channel_word {
    WORD_HELLO = 1, /* "version host" */
    WORD_END,       /* "code sentence": the node's business is over */
    WORD_MEASURE,   /* a job: how fast are its operators there? */
    WORD_SPEED,     /* "FLOP/s port": and a free port there */
    WORD_PROBE,     /* "rank world address": the links between all */
    WORD_NETWORK,   /* JSON */
    WORD_JOB,       /* the node's description */
    WORD_READY,     /* it can be built here */
    WORD_STATE,     /* channel_part, floats: an operator's parameters and state */
    WORD_START,     /* channel_start */
    WORD_DATA,      /* channel_part, values of an input */
    WORD_LOSS,      /* double */
    WORD_SAVED,     /* all operators of the node were sent */
    WORD_DONE,      /* channel_done */
    WORD_CANCEL,    /* this attempt is over */
    WORD_FAIL,      /* channel_failure */
    WORD_LOST       /* never sent: the connection is gone */
} channel_word;

enum { CHANNEL_VERSION = 1, CHANNEL_HELLO = 256, CHANNEL_TEXT = 1024, CHANNEL_JSON = 1 << 26 }; /* bytes at most */

typedef struct channel_head { uint32_t magic, word; uint64_t bytes; } channel_head;
typedef struct channel_part { int32_t op, micro_batch; } channel_part;
typedef struct channel_start {
    char    addr[128];            /* of rank 0 */
    char    devices[1024];        /* "@3,0,1": which of the network's is which rank, "": links as they are */
    int64_t first, save_every;    /* steps */
    double  peer_timeout_s;
    int32_t rank, world, insecure, send_back;
} channel_start;
typedef struct channel_done { uint64_t hash; double step_s; } channel_done;
typedef struct channel_failure { int32_t code; char text[508]; } channel_failure;

typedef struct channel_state { float *x; size_t floats; } channel_state; /* of an operator; x NULL: none */

typedef struct channel { /* receives into a buffer of its own */
    int          fd;
    size_t       most;      /* bytes of a WORD_STATE or WORD_DATA of the job at hand; 0: none may come */
    char         why[120];  /* the malformed word behind which nothing is read; "": none came */
    channel_word word;
    char        *data;
    size_t       bytes, room;
} channel;

static void channel_close(channel *c)
{
    if (c->fd >= 0) close(c->fd);
    free(c->data);
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

    if (f && !fseek(f, 0, SEEK_END)) n = ftell(f), rewind(f);
    if (n >= 0) text = (char *)malloc((size_t)n + 1);
    if (text && fread(text, 1, (size_t)n, f) != (size_t)n) free(text), text = NULL;
    if (!text) refuse(err, DDP_IO, "cannot read %s: %s", path, strerror(errno));
    else text[n] = 0, *bytes = (size_t)n;
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

/* ---- connections ---- */

/* Addresses beyond this machine go without encryption: only if the user says so. */
static inline ddp_status channel_resolve(const char *spec, int insecure, struct addrinfo **list, ddp_error *err)
{
    struct addrinfo hints;
    char host[256] = "";
    const char *colon = strrchr(spec, ':');
    int why;

    if (!colon || colon == spec || !colon[1] || colon - spec >= (long)sizeof host)
        return refuse(err, DDP_ARG, "%s is no address: HOST:PORT, as 127.0.0.1:29600", spec);
    memcpy(host, spec, (size_t)(colon - spec));
    if (!insecure && strncmp(host, "127.", 4) && strcmp(host, "localhost"))
        return refuse(err, DDP_ARG, "%s lies beyond this machine, and what is sent is not encrypted: on a network that you trust, "
                      "add --insecure", spec);
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_family = AF_INET;
    why = getaddrinfo(host, colon + 1, &hints, list);
    return why ? refuse(err, DDP_ARG, "cannot resolve %s: %s", spec, gai_strerror(why)) : DDP_OK;
}

/* A peer that is silent for a minute in the middle of a word, or takes nothing, is lost. */
static inline void channel_tune(int fd)
{
    const struct timeval minute = {60, 0};
    int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof minute);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &minute, sizeof minute);
}

static inline ddp_status channel_listen(const char *spec, int insecure, int *fd, ddp_error *err)
{
    struct addrinfo *list;
    int one = 1, bad;

    if (channel_resolve(spec, insecure, &list, err)) return err->code;
    *fd = socket(AF_INET, SOCK_STREAM, 0);
    if (*fd >= 0) setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    bad = *fd < 0 || bind(*fd, list->ai_addr, list->ai_addrlen) || listen(*fd, 64);
    freeaddrinfo(list);
    return bad ? refuse(err, DDP_NET, "cannot listen on %s: %s", spec, strerror(errno)) : DDP_OK;
}

static inline ddp_status channel_dial(const char *spec, int insecure, int *fd, ddp_error *err)
{
    struct addrinfo *list;
    int bad;

    *fd = -1;
    if (channel_resolve(spec, insecure, &list, err)) return err->code;
    *fd = socket(AF_INET, SOCK_STREAM, 0);
    bad = *fd < 0 || connect(*fd, list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    if (bad) {
        refuse(err, DDP_NET, "no broker answers at %s: %s; start build/broker there first", spec, strerror(errno));
        if (*fd >= 0) close(*fd);
        return *fd = -1, DDP_NET;
    }
    channel_tune(*fd);
    return DDP_OK;
}

/* A port that nobody listens on just now. */
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

/* ---- words ---- */

static int channel_put(int fd, const void *data, size_t n)
{
    const char *at = (const char *)data;

    while (n) {
        const ssize_t k = send(fd, at, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR && !cli_interrupted) continue;
        if (k <= 0) return 0;
        at += k, n -= (size_t)k;
    }
    return 1;
}

/* A word of two parts, either of which may be empty. 0: the connection is gone. */
static int channel_send(int fd, channel_word word, const void *a, size_t na, const void *b, size_t nb)
{
    const channel_head h = {0x6a706464u, (uint32_t)word, (uint64_t)(na + nb)};

    return fd >= 0 && channel_put(fd, &h, sizeof h) && channel_put(fd, a, na) && channel_put(fd, b, nb);
}

static int channel_get(int fd, void *data, size_t n)
{
    char *at = (char *)data;

    while (n) {
        const ssize_t k = recv(fd, at, n, 0);
        if (k < 0 && errno == EINTR && !cli_interrupted) continue;
        if (k <= 0) return 0;
        at += k, n -= (size_t)k;
    }
    return 1;
}

/* The length of a word is between *least and *most bytes. */
static void channel_limits(const channel *c, uint32_t word, size_t *least, size_t *most)
{
    *least = *most = 0;
    switch (word) {
    case WORD_HELLO: *most = CHANNEL_HELLO; break;
    case WORD_END:
    case WORD_SPEED:
    case WORD_PROBE: *most = CHANNEL_TEXT; break;
    case WORD_MEASURE:
    case WORD_NETWORK:
    case WORD_JOB: *most = CHANNEL_JSON; break;
    case WORD_STATE:
    case WORD_DATA: *least = sizeof(channel_part), *most = c->most; break;
    case WORD_START: *least = *most = sizeof(channel_start); break;
    case WORD_LOSS: *least = *most = sizeof(double); break;
    case WORD_DONE: *least = *most = sizeof(channel_done); break;
    case WORD_FAIL: *least = *most = sizeof(channel_failure); break;
    default: break; /* nothing but the word */
    }
}

/* The next word; a NUL follows its data. 0: the connection is gone, or c->why says what was wrong: a length from a peer is
 * checked before it is used. */
static int channel_receive(channel *c)
{
    channel_head h;
    size_t least, most;

    if (c->why[0] || !channel_get(c->fd, &h, sizeof h)) return 0;
    channel_limits(c, h.word, &least, &most);
    if (h.magic != 0x6a706464u || h.word < WORD_HELLO || h.word >= WORD_LOST || h.bytes < least || h.bytes > most) {
        snprintf(c->why, sizeof c->why, "malformed word %lu of %llu bytes; start all programs from one release",
                 (unsigned long)h.word, (unsigned long long)h.bytes);
        return 0;
    }
    if (h.bytes >= c->room) {
        free(c->data);
        c->room = (size_t)h.bytes + 1;
        c->data = (char *)malloc(c->room);
        if (!c->data) return c->room = 0, 0;
    }
    c->word = (channel_word)h.word;
    c->bytes = (size_t)h.bytes;
    c->data[c->bytes] = 0;
    return channel_get(c->fd, c->data, c->bytes);
}

/* A WORD_START of a job of `steps` steps: 0 if a broker does not send such numbers. */
static inline int channel_start_of(const channel *c, long steps, channel_start *out)
{
    memcpy(out, c->data, sizeof *out);
    out->addr[sizeof out->addr - 1] = 0;
    out->devices[sizeof out->devices - 1] = 0;
    return out->world > 0 && out->rank >= 0 && out->rank < out->world && out->first >= 0 && out->first <= steps &&
           out->save_every >= 0 && out->peer_timeout_s >= 0 && out->peer_timeout_s < 1e9;
}

/* A WORD_FAIL: a code that is a failure, and its text. */
static inline void channel_failure_of(const channel *c, channel_failure *out)
{
    memcpy(out, c->data, sizeof *out);
    out->text[sizeof out->text - 1] = 0;
    for (char *at = out->text; *at; at++) /* it goes to a terminal */
        if (!isprint((unsigned char)*at)) *at = '?';
    if (out->code <= 0 || out->code >= (int)DDP_STATUS_COUNT) out->code = (int)DDP_FORMAT;
}

/* 1: something can be read within so many seconds. */
static inline int channel_waits(int fd, double seconds)
{
    struct pollfd p = {fd, POLLIN, 0};

    return poll(&p, 1, (int)(seconds * 1000)) > 0;
}

/* What a WORD_STATE brings, into list [ops]. 0: out of memory, or no such operator. */
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
