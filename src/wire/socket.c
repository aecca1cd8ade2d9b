/* Addresses, descriptors, listening, dialling and polling of TCP sockets, and the network interfaces of this
 * machine. */
#include "wire/socket.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

#define DDP__UNSENT_BYTES (128 << 10) /* most unsent bytes in the kernel ahead of a control frame */
#define DDP__NEAR_S       5e-3        /* a round trip below which Reno recovers quickly from a loss */
#define DDP__BACKLOG \
    4096 /* connections not yet accepted. Beyond that the kernel drops some, which retry in 1 to 3 s. */

ddp_status ddp__addr_split(const char *spec, char *host, int *port, ddp_error *err)
{
    const char *s = spec, *end, *colon;
    size_t n;
    long number = DDP__DEFAULT_PORT;

    if (!strncmp(s, "tcp://", 6)) s += 6;
    if (*s == '[' && (end = strchr(s, ']')) != NULL) {
        s++;
        colon = end[1] == ':' ? end + 1 : NULL;
        if (end[1] && !colon) end = s; /* text after the bracket: no host */
    } else {
        colon = strrchr(s, ':');
        end = colon ? colon : s + strlen(s);
    }
    n = (size_t)(end - s);
    if (n == 0 || n >= DDP__HOST_TEXT || strchr(s, '/'))
        return ddp__fail(err, DDP_ARG,
                         "address '%.200s' names no host: write HOST:PORT, for example 127.0.0.1:29500",
                         spec);
    if (*(s - (s > spec)) != '[' && memchr(s, ':', n))
        return ddp__fail(err, DDP_ARG,
                         "address '%.200s' has several colons: write an IPv6 address in brackets, for "
                         "example [::1]:29500",
                         spec);
    if (colon && (!isdigit((unsigned char)colon[1]) || !ddp__parse_long(colon + 1, &number) || number < 0 ||
                  number > 65535))
        return ddp__fail(err, DDP_ARG, "address '%.200s': the port '%.40s' is not a number from 0 to 65535",
                         spec, colon + 1);
    memcpy(host, s, n);
    host[n] = 0;
    *port = (int)number;
    return DDP_OK;
}

/* Returns whether a name server may ever resolve this name (RFC 1123). A last label of digits only is a
 * mistyped IPv4 address. Bytes above 127 are left to the resolver. */
static int ddp__name_possible(const char *host)
{
    size_t label = 0, n = strlen(host);
    int digits = 1; /* of the label */

    if (n && host[n - 1] == '.') n--; /* the root */
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)host[i];
        if (c == '.') {
            if (!label) return 0;
            label = 0;
            digits = 1;
            continue;
        }
        if (c < 128 && !isalnum(c) && c != '-' && c != '_') return 0;
        if ((c == '-' && !label) || ++label > 63) return 0;
        digits &= isdigit(c) != 0;
    }
    return label && !digits;
}

/* Returns 1 if the machine has the address, 0 if not, -1 if a bind fails for another reason. */
static int ddp__addr_is_here(const ddp__addr *a)
{
    int s = socket(a->sa.ss_family, SOCK_STREAM, 0), why = errno;
    int bound = s >= 0 && bind(s, (const struct sockaddr *)&a->sa, a->size) == 0;

    if (s >= 0) {
        why = errno;
        close(s);
    }
    return bound ? 1 : why == EADDRNOTAVAIL || why == EAFNOSUPPORT ? 0 : -1;
}

/* Replaces 127.0.0.1 by ::1 on a machine without IPv4: for the default address, and if /etc/hosts has both
 * for "localhost". */
static void ddp__addr_loopback(ddp__addr *a)
{
    ddp__addr four = *a, six;

    if (a->sa.ss_family != AF_INET || a->in.sin_addr.s_addr != htonl(INADDR_LOOPBACK)) return;
    memset(&six, 0, sizeof six);
    six.in6.sin6_family = AF_INET6;
    six.in6.sin6_addr = in6addr_loopback;
    six.size = sizeof six.in6;
    ddp__addr_set_port(&four, 0);
    if (ddp__addr_is_here(&four) || ddp__addr_is_here(&six) != 1) return;
    ddp__addr_set_port(&six, ddp__addr_port(a));
    *a = six;
}

ddp_status ddp__addr_parse(const char *spec, ddp__addr *list, int room, int *count, ddp_error *err)
{
    char host[DDP__HOST_TEXT], port[16];
    struct addrinfo hints, *found = NULL, *a;
    int why, four, number = 0;

    *count = 0;
    DDP__TRY(ddp__addr_split(spec, host, &number, err));
    snprintf(port, sizeof port, "%d", number);
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    why = getaddrinfo(host, port, &hints, &found);
    if (why == EAI_MEMORY) return ddp__fail(err, DDP_MEMORY, "out of memory while resolving '%.200s'", host);
    if (why && !ddp__name_possible(host))
        return ddp__fail(err, DDP_ARG, "address '%.100s': '%.200s' is neither an IP address nor a host name",
                         spec, host);
    if (why)
        return ddp__fail(err, DDP_NET, "cannot resolve '%.200s' of address '%.100s': %s", host, spec,
                         gai_strerror(why));
    for (four = 1; four >= 0; four--) { /* "localhost" is 127.0.0.1 on every rank */
        for (a = found; a && *count < room; a = a->ai_next) {
            if ((a->ai_family == AF_INET) != four || a->ai_addrlen > sizeof list[0].sa) continue;
            memset(&list[*count], 0, sizeof list[0]);
            memcpy(&list[*count].sa, a->ai_addr, a->ai_addrlen);
            list[*count].size = a->ai_addrlen;
            ddp__addr_loopback(&list[*count]);
            ++*count;
        }
    }
    freeaddrinfo(found);
    if (!*count) return ddp__fail(err, DDP_NET, "'%.200s' has no address", host);
    return DDP_OK;
}

const char *ddp__addr_text(const ddp__addr *a, char *out)
{
    char host[64], port[8]; /* IPv6 and %interface */

    if (getnameinfo((const struct sockaddr *)&a->sa, a->size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(out, DDP__ADDR_TEXT, "unknown address");
    else
        snprintf(out, DDP__ADDR_TEXT, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return out;
}

int ddp__addr_port(const ddp__addr *a)
{
    return ntohs(a->sa.ss_family == AF_INET6 ? a->in6.sin6_port : a->in.sin_port);
}

void ddp__addr_set_port(ddp__addr *a, int port)
{
    if (a->sa.ss_family == AF_INET6)
        a->in6.sin6_port = htons((uint16_t)port);
    else
        a->in.sin_port = htons((uint16_t)port);
}

int ddp__addr_is_loopback(const ddp__addr *a)
{
    if (a->sa.ss_family == AF_INET6) {
        if (IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr)) return a->in6.sin6_addr.s6_addr[12] == 127;
        return IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr) ? 1 : 0;
    }
    return a->sa.ss_family == AF_INET && ntohl(a->in.sin_addr.s_addr) >> 24 == 127;
}

uint32_t ddp__ip_pack(const ddp__addr *a, unsigned char *ip)
{
    memset(ip, 0, 16);
    if (a->sa.ss_family == AF_INET6)
        memcpy(ip, &a->in6.sin6_addr, 16);
    else
        memcpy(ip, &a->in.sin_addr, 4);
    return a->sa.ss_family == AF_INET6 ? 6 : 4;
}

int ddp__ip_parse(uint32_t family, const unsigned char *ip, ddp__addr *a)
{
    memset(a, 0, sizeof *a);
    if (family == 6) {
        a->in6.sin6_family = AF_INET6;
        memcpy(&a->in6.sin6_addr, ip, 16);
        a->size = sizeof a->in6;
    } else if (family == 4) {
        a->in.sin_family = AF_INET;
        memcpy(&a->in.sin_addr, ip, 4);
        a->size = sizeof a->in;
    }
    return a->size != 0;
}

ddp_status ddp__fd_room(int wanted, int least, ddp_error *err)
{
    struct rlimit l;
    const int next = socket(AF_UNIX, SOCK_STREAM, 0); /* the system assigns the lowest free descriptor */
    rlim_t here, room;

    if (getrlimit(RLIMIT_NOFILE, &l) < 0) return DDP_OK;
    if (next >= 0) close(next);
    here = next >= 0 ? (rlim_t)next : errno == EMFILE ? l.rlim_cur : 0;
    room = here + (rlim_t)wanted;
    if (l.rlim_cur < room) {
        l.rlim_cur = l.rlim_max < room ? l.rlim_max : room;
        (void)setrlimit(RLIMIT_NOFILE, &l);
        (void)getrlimit(RLIMIT_NOFILE, &l);
    }
    if (l.rlim_cur >= here + (rlim_t)least) return DDP_OK;
    return ddp__fail(err, DDP_NET,
                     "this process needs %lu open files, %d of them for its connections, but may have "
                     "%lu: raise the limit with ulimit -n %lu",
                     (unsigned long)here + (unsigned long)least, least, (unsigned long)l.rlim_cur,
                     (unsigned long)room);
}

int ddp__fd_limit(void)
{
    struct rlimit l;

    return getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur > INT_MAX ? INT_MAX : (int)l.rlim_cur;
}

int ddp__fd_prepare(int fd)
{
    int flags = fcntl(fd, F_GETFL), on = 1;

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return -1;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) return -1;
    /* on both ends: without it on one, each small answer waits 40 ms for a delayed ACK. It has no effect if
     * fd is not a socket. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
#ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    return 0;
}

static int ddp__addr_end(int fd, int peer, ddp__addr *out)
{
    struct sockaddr *sa = (struct sockaddr *)&out->sa;
    int bad;

    memset(out, 0, sizeof *out);
    out->size = sizeof out->sa;
    bad = peer ? getpeername(fd, sa, &out->size) : getsockname(fd, sa, &out->size);
    if (bad) out->size = 0;
    return bad;
}

int ddp__addr_own(int fd, ddp__addr *out) { return ddp__addr_end(fd, 0, out); }

int ddp__addr_peer(int fd, ddp__addr *out) { return ddp__addr_end(fd, 1, out); }

ddp_status ddp__tcp_listen(const ddp__addr *at, int *fd, ddp__addr *bound, ddp_error *err)
{
    char text[DDP__ADDR_TEXT];
    int s = socket(at->sa.ss_family, SOCK_STREAM, 0), on = 1, why;

    if (s >= 0 && ddp__fd_prepare(s) == 0) {
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(s, (const struct sockaddr *)&at->sa, at->size) == 0 && listen(s, DDP__BACKLOG) == 0) {
            if (bound) (void)ddp__addr_own(s, bound);
            *fd = s;
            return DDP_OK;
        }
    }
    why = errno;
    if (s >= 0) close(s);
    ddp__addr_text(at, text);
    return ddp__fail(
        err, DDP_NET, "cannot listen on %s: %s%s", text, strerror(why),
        why == EADDRINUSE ? "; another run may hold it: choose another port with --addr or DREAMDDP_ADDR "
                            "(torchrun: --master_port), or leave the choice to rank 0 with --addr file://PATH"
        : why == EADDRNOTAVAIL ? "; rank 0 must run on the machine that --addr or DREAMDDP_ADDR names"
                               : "");
}

int ddp__poll_until(struct pollfd *polls, int count, double until)
{
    int got;

    for (;;) {
        double left = until < 0 ? -1 : until - ddp_now();
        if (until >= 0 && left < 0) left = 0;
        if (left > 3600) left = 3600;
#ifdef __linux__
        {
            struct timespec ts = ddp__timespec(left < 0 ? 0 : left);
            got = ppoll(polls, (nfds_t)count, left < 0 ? NULL : &ts, NULL);
        }
#else
        got = poll(polls, (nfds_t)count, left < 0 ? -1 : (int)(left * 1000) + (left > 0));
#endif
        if (got > 0 || (got < 0 && errno != EINTR) || (until >= 0 && ddp_now() >= until)) return got;
    }
}

void ddp__poll_set(struct pollfd *p, int fd, int events)
{
    p->fd = fd;
    p->events = (short)events;
    p->revents = 0;
}

int ddp__fd_wait(int fd, int events, double until)
{
    struct pollfd p;
    int got;

    ddp__poll_set(&p, fd, events);
    got = ddp__poll_until(&p, 1, until > 0 ? until : 0);
    if (got > 0) return p.revents;
    return got < 0 && errno != EINTR ? POLLERR : 0;
}

void ddp__fd_close(int *fd)
{
    const int own = *fd;

    *fd = -1;
    if (own >= 0) close(own);
}

ddp_status ddp__waker_open(ddp__waker *w, ddp_error *err)
{
    if (pipe(w->fd) < 0 || ddp__fd_prepare(w->fd[0]) < 0 || ddp__fd_prepare(w->fd[1]) < 0)
        return ddp__fail(err, DDP_NET, "cannot create a pipe: %s", strerror(errno));
    return DDP_OK;
}

void ddp__waker_close(ddp__waker *w)
{
    if (!w->fd[1]) return; /* the higher descriptor of a pipe */
    close(w->fd[0]);
    close(w->fd[1]);
    w->fd[1] = 0;
}

void ddp__waker_wake(ddp__waker *w)
{
    ssize_t n;

    do n = write(w->fd[1], "", 1); /* a full pipe wakes as well */
    while (n < 0 && errno == EINTR);
}

void ddp__waker_drain(ddp__waker *w)
{
    char sink[16];

    while (read(w->fd[0], sink, sizeof sink) > 0) {
    }
}

/* Closes the socket. Returns -1 and sets errno to `why`. */
static int ddp__fd_fail(int fd, int why)
{
    close(fd);
    errno = why;
    return -1;
}

int ddp__tcp_dial_begin(const ddp__addr *to)
{
    int s = socket(to->sa.ss_family, SOCK_STREAM, 0);

    if (s < 0) return -1;
    /* EINTR: the attempt continues, as with EINPROGRESS */
    if (ddp__fd_prepare(s) == 0 && (connect(s, (const struct sockaddr *)&to->sa, to->size) == 0 ||
                                    errno == EINPROGRESS || errno == EINTR))
        return s;
    return ddp__fd_fail(s, errno);
}

int ddp__tcp_dial_end(int s)
{
    ddp__addr own, peer;
    socklen_t size = sizeof(int);
    int why = 0;

    if (getsockopt(s, SOL_SOCKET, SO_ERROR, &why, &size) < 0) why = errno;
    if (!why) { /* if no process listens on a port of the ephemeral range, TCP may connect to itself */
        if (ddp__addr_own(s, &own) < 0 || ddp__addr_peer(s, &peer) < 0)
            why = errno;
        else if (own.size == peer.size && !memcmp(&own.sa, &peer.sa, own.size))
            why = ECONNREFUSED;
    }
    errno = why;
    return why ? -1 : 0;
}

int ddp__tcp_dial(const ddp__addr *to, double until)
{
    int s = ddp__tcp_dial_begin(to);

    if (s < 0) return -1;
    if (!ddp__fd_wait(s, POLLOUT, until)) return ddp__fd_fail(s, ETIMEDOUT);
    return ddp__tcp_dial_end(s) < 0 ? ddp__fd_fail(s, errno) : s;
}

int ddp__tcp_accept(int listen_fd, ddp__addr *from)
{
    ddp__addr a;
    int s;

    memset(&a, 0, sizeof a);
    a.size = sizeof a.sa;
    do s = accept(listen_fd, (struct sockaddr *)&a.sa, &a.size);
    while (s < 0 && errno == EINTR);
    if (s < 0) return -1;
    if (ddp__fd_prepare(s) < 0) return ddp__fd_fail(s, errno);
    if (from) *from = a;
    return s;
}

/* Replaces BBR by Reno on short links. Every ten seconds BBR sends almost nothing for 0.2 s, to measure the
 * round trip of an empty link (Cardwell et al. 2016, BBR: Congestion-based congestion control). The
 * connections of a ring do so at different times, and the ring waits for each of them. */
static void ddp__tcp_steady(int fd)
{
#if defined(__linux__) && defined(TCP_CONGESTION) && defined(TCP_INFO)
    struct tcp_info info;
    char name[16] = "";
    socklen_t size = sizeof info, length = sizeof name - 1;

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) || info.tcpi_rtt >= 1e6 * DDP__NEAR_S) return;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) || strcmp(name, "bbr")) return;
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); /* always permitted */
#else
    (void)fd;
#endif
}

ddp_status ddp__tcp_tune(int fd, double peer_timeout_s, const char *congestion, ddp_error *err)
{
    int on = 1;

    if (ddp__fd_prepare(fd) < 0)
        return ddp__fail(err, DDP_NET, "cannot prepare a connection: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_NOTSENT_LOWAT
    {
        int low = DDP__UNSENT_BYTES;
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &low, sizeof low);
    }
#endif
#ifdef TCP_USER_TIMEOUT
    if (peer_timeout_s > 0) {
        unsigned ms = peer_timeout_s < 1e6 ? (unsigned)(peer_timeout_s * 1000) + 1 : 1000000000u;
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    }
#else
    (void)peer_timeout_s;
#endif
    if (congestion && *congestion) {
#ifdef TCP_CONGESTION
        if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion)) < 0)
            return ddp__fail(err, DDP_NET,
                             "cannot set the congestion control '%.32s': %s; allowed are those in "
                             "/proc/sys/net/ipv4/tcp_allowed_congestion_control",
                             congestion, strerror(errno));
#else
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "this system cannot choose the congestion control '%.32s': unset "
                         "DREAMDDP_TCP_CONGESTION",
                         congestion);
#endif
    } else {
        ddp__tcp_steady(fd);
    }
    return DDP_OK;
}

/* ---- the address of this machine that other ranks use ---- */

int ddp__iface_matches(const char *list, const char *name)
{
    int except = *list == '^', whole, found = 0;

    if (except) list++;
    whole = *list == '=';
    if (whole) list++;
    while (*list) {
        size_t n = strcspn(list, ",");
        if (n && !strncmp(list, name, n) && (!whole || strlen(name) == n)) found = 1;
        list += n + (list[n] == ',');
    }
    return found != except;
}

static int ddp__iface_usable(const struct ifaddrs *i)
{
    return i->ifa_addr && (i->ifa_flags & IFF_UP) &&
           (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
}

static void ddp__iface_addr(const struct ifaddrs *i, ddp__addr *out)
{
    memset(out, 0, sizeof *out);
    out->size = i->ifa_addr->sa_family == AF_INET ? (socklen_t)sizeof out->in : (socklen_t)sizeof out->in6;
    memcpy(&out->sa, i->ifa_addr, out->size);
    ddp__addr_set_port(out, 0);
}

/* Returns a sort key, lowest first: loopback is last, then the other family, then addresses that need a
 * scope. */
static int ddp__iface_order(const struct ifaddrs *i, int family)
{
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
    int order = i->ifa_addr->sa_family == family ? 0 : 2;

    if (i->ifa_addr->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) order++;
    return order + (i->ifa_flags & IFF_LOOPBACK ? 4 : 0);
}

/* "eth0 (10.0.0.2), lo (127.0.0.1)" */
static void ddp__iface_list(const struct ifaddrs *all, ddp__text *t)
{
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        char text[DDP__ADDR_TEXT], *port;
        ddp__addr a;
        if (!ddp__iface_usable(i)) continue;
        ddp__iface_addr(i, &a);
        ddp__addr_text(&a, text);
        port = strrchr(text, ':');
        if (port) *port = 0;
        ddp__text_addf(t, "%s%s (%s)", t->size ? ", " : "", i->ifa_name, text);
    }
}

ddp_status ddp__iface_pick(const char *list, int family, ddp__addr *out, ddp_error *err)
{
    struct ifaddrs *all = NULL, *i, *best = NULL;
    ddp_status bad = DDP_OK;
    ddp__text t = DDP__ZEROS;

    if (getifaddrs(&all) < 0)
        return ddp__fail(err, DDP_NET, "cannot list the interfaces: %s", strerror(errno));
    for (i = all; i; i = i->ifa_next) {
        if (!ddp__iface_usable(i) || (list && !ddp__iface_matches(list, i->ifa_name))) continue;
        if (!best || ddp__iface_order(i, family) < ddp__iface_order(best, family)) best = i;
    }
    if (best) {
        ddp__iface_addr(best, out);
    } else {
        ddp__iface_list(all, &t);
        bad = ddp__fail(err, DDP_ARG,
                        "DREAMDDP_SOCKET_IFNAME=%.60s matches no interface that is up; available: %.300s",
                        list ? list : "", t.size ? t.data : "none");
        ddp__text_free(&t);
    }
    freeifaddrs(all);
    return bad;
}

int ddp__iface_toward(const ddp__addr *to, ddp__addr *out)
{
    int s = socket(to->sa.ss_family, SOCK_DGRAM, 0), why = 0;
    ddp__addr target = *to;

    if (s < 0) return -1;
    if (!ddp__addr_port(&target)) ddp__addr_set_port(&target, 9); /* any: nothing is sent */
    if (connect(s, (const struct sockaddr *)&target.sa, target.size) < 0 || ddp__addr_own(s, out) < 0)
        why = errno;
    if (why) return ddp__fd_fail(s, why);
    close(s);
    ddp__addr_set_port(out, 0);
    return 0;
}

void ddp__iface_default(ddp__addr *out)
{
    ddp__addr far;

    memset(&far, 0, sizeof far);
    far.in.sin_family = AF_INET;
    far.in.sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1, of documentation: default route */
    far.size = sizeof far.in;
    if (ddp__iface_toward(&far, out) == 0) return;
    if (ddp__iface_pick(NULL, AF_INET, out, NULL) == DDP_OK) return;
    far.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *out = far;
}

const char *ddp__iface_name(const ddp__addr *a, char *name)
{
    struct ifaddrs *all = NULL, *i;
    ddp__addr own, other = *a;
    char want[DDP__ADDR_TEXT], text[DDP__ADDR_TEXT];

    name[0] = 0;
    ddp__addr_set_port(&other, 0);
    ddp__addr_text(&other, want);
    if (getifaddrs(&all) < 0) return name;
    for (i = all; i && !name[0]; i = i->ifa_next) {
        if (!ddp__iface_usable(i)) continue;
        ddp__iface_addr(i, &own);
        if (!strcmp(ddp__addr_text(&own, text), want)) snprintf(name, DDP__IFACE_TEXT, "%.31s", i->ifa_name);
    }
    freeifaddrs(all);
    return name;
}
