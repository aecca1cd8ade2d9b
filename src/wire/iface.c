#include "base/platform.h"
#include "base/core.h"
#include "wire/socket.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

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
    out->size = i->ifa_addr->sa_family == AF_INET ? (socklen_t)sizeof(struct sockaddr_in)
                                                  : (socklen_t)sizeof(struct sockaddr_in6);
    memcpy(&out->sa, i->ifa_addr, out->size);
    ddp__addr_set_port(out, 0);
}

/* The lower the better: loopback last, then the other family, then addresses that need a scope. */
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
    const struct ifaddrs *i;

    for (i = all; i; i = i->ifa_next) {
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

ddp_status ddp__iface_pick(const char *list, int family, ddp__addr *out, char *name, ddp_error *err)
{
    struct ifaddrs *all = NULL, *i, *best = NULL;
    ddp_status bad = DDP_OK;
    ddp__text t;

    if (getifaddrs(&all) < 0) return ddp__fail(err, DDP_NET, "cannot list the interfaces: %s", strerror(errno));
    for (i = all; i; i = i->ifa_next) {
        if (!ddp__iface_usable(i) || (list && !ddp__iface_matches(list, i->ifa_name))) continue;
        if (!best || ddp__iface_order(i, family) < ddp__iface_order(best, family)) best = i;
    }
    if (best) {
        ddp__iface_addr(best, out);
        if (name) snprintf(name, DDP__IFACE_TEXT, "%.31s", best->ifa_name);
    } else {
        memset(&t, 0, sizeof t);
        ddp__iface_list(all, &t);
        bad = ddp__fail(err, DDP_ARG, "DREAMDDP_SOCKET_IFNAME=%.60s matches no interface that is up; there are: %.300s",
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
    if (connect(s, (const struct sockaddr *)&target.sa, target.size) < 0 || ddp__addr_own(s, out) < 0) why = errno;
    close(s);
    errno = why;
    if (why) return -1;
    ddp__addr_set_port(out, 0);
    return 0;
}

void ddp__iface_default(ddp__addr *out)
{
    ddp__addr far;
    struct sockaddr_in *in = (struct sockaddr_in *)(void *)&far.sa;

    memset(&far, 0, sizeof far);
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1, of documentation: default route */
    far.size = sizeof *in;
    if (ddp__iface_toward(&far, out) == 0) return;
    if (ddp__iface_pick(NULL, AF_INET, out, NULL, NULL) == DDP_OK) return;
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
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
