/* Byte transfer over a connected socket: plain, or through TLS. */
#include "wire/socket.h"
#include "wire/stream.h"

int ddp__stream_begin(ddp__tls *t, int fd, int server) { return t ? t->table->begin(t, fd, server) : 0; }

void ddp__stream_leave(ddp__tls *t, int fd)
{
    if (t) t->table->leave(t, fd);
}

int ddp__stream_shake(ddp__tls *t, int fd) { return t ? t->table->shake(t, fd) : 1; }

long ddp__stream_send(ddp__tls *t, int fd, const struct iovec *iov, int count)
{
    struct msghdr m;
    ssize_t n;

    if (t) return t->table->send(t, fd, iov, count);
    memset(&m, 0, sizeof m);
    memcpy(&m.msg_iov, &iov, sizeof iov); /* sendmsg does not write to it */
    /* at most IOV_MAX of Linux and macOS. msg_iovlen is a size_t with glibc, an int with musl and on
     * macOS. */
    m.msg_iovlen = (unsigned short)(count > 1024 ? 1024 : count);
    do n = sendmsg(fd, &m, DDP__NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n >= 0) return (long)n;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
}

long ddp__stream_recv(ddp__tls *t, int fd, void *buf, size_t bytes)
{
    ssize_t n;

    if (!bytes) return 0;
    if (t) return t->table->recv(t, fd, buf, bytes);
    do n = recv(fd, buf, bytes, 0);
    while (n < 0 && errno == EINTR);
    if (n > 0) return (long)n;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (n == 0) errno = ECONNRESET; /* the peer closed or was lost: no more bytes follow */
    return -1;
}

int ddp__stream_events(ddp__tls *t, int fd, int want) { return t ? t->table->events(t, fd, want) : want; }

int ddp__stream_ready(ddp__tls *t, int fd) { return t ? t->table->ready(t, fd) : 0; }

int ddp__stream_wait(ddp__tls *t, int fd, double until)
{
    if (ddp__stream_ready(t, fd)) return 1;
    return ddp__fd_wait(fd, ddp__stream_events(t, fd, POLLIN), until) != 0;
}

static int ddp__stream_late(void)
{
    errno = ETIMEDOUT;
    return -1;
}

int ddp__stream_greet(ddp__tls *t, int fd, double until)
{
    int done;

    while ((done = ddp__stream_shake(t, fd)) == 0)
        if (!ddp__fd_wait(fd, ddp__stream_events(t, fd, POLLIN), until)) return ddp__stream_late();
    return done < 0 ? -1 : 0;
}

int ddp__stream_send_all(ddp__tls *t, int fd, const void *buf, size_t bytes, double until)
{
    struct iovec iov;

    iov.iov_base = (void *)(uintptr_t)buf;
    iov.iov_len = bytes;
    while (iov.iov_len) {
        long n = ddp__stream_send(t, fd, &iov, 1);
        if (n < 0) return -1;
        iov.iov_base = (char *)iov.iov_base + n;
        iov.iov_len -= (size_t)n;
        if (n == 0 && !ddp__fd_wait(fd, ddp__stream_events(t, fd, POLLOUT), until)) return ddp__stream_late();
    }
    return 0;
}

int ddp__stream_recv_all(ddp__tls *t, int fd, void *buf, size_t bytes, size_t *got, double until)
{
    size_t have = 0;

    if (got) *got = 0;
    while (have < bytes) {
        long n = ddp__stream_recv(t, fd, (char *)buf + have, bytes - have);
        if (n < 0) return -1;
        have += (size_t)n;
        if (got) *got = have;
        if (n == 0 && !ddp__stream_wait(t, fd, until)) return ddp__stream_late();
    }
    return 0;
}

int ddp__stream_is_named(ddp__tls *t, int fd, const char *name, char *why)
{
    return t ? t->table->may_be(t, fd, name, why) : 1;
}

int ddp__stream_may_be(ddp__tls *t, int fd, int rank, char *why)
{
    char name[32];

    snprintf(name, sizeof name, "rank-%d", rank);
    return ddp__stream_is_named(t, fd, name, why);
}

int ddp__stream_may_join(ddp__tls *t, int fd, int *id, char *name, char *why)
{
    *id = -1;
    name[0] = 0;
    return t ? t->table->may_join(t, fd, id, name, why) : 1;
}

int ddp__stream_part(ddp__tls *t, int fd, ddp__tls **own)
{
    *own = t ? t->table->part(t, fd) : NULL;
    return t && !*own ? -1 : 0;
}

const char *ddp__stream_why(ddp__tls *t, int fd) { return t ? t->table->why(t, fd) : NULL; }

void ddp__stream_close(ddp__tls *t, int fd)
{
    char sink[4096];

    if (fd < 0) return;
    if (t) t->table->end(t, fd);
    shutdown(fd, SHUT_WR);
    for (int k = 0; k < 256 && recv(fd, sink, sizeof sink, 0) > 0; k++) {
    }
    close(fd);
}

int ddp__stream_is_tls(const unsigned char *b, size_t n)
{
    return n >= 2 && (b[0] == 21 || b[0] == 22) && b[1] == 3 ? b[0] : 0;
}

void ddp__stream_no_tls(int fd)
{
    static const unsigned char alert[7] = {21, 3, 3, 0, 2, 2, 70}; /* fatal: protocol_version */

    ddp__stream_send_all(NULL, fd, alert, sizeof alert, ddp_now());
}
