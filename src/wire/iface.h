/* Which of this machine's addresses the others shall use. */
#ifndef DDP_WIRE_IFACE_H
#define DDP_WIRE_IFACE_H

#include "wire/socket.h"

#define DDP__IFACE_TEXT 32

/* Whether an interface is meant by a list in NCCL's syntax: prefixes separated by commas
 * ("eth,ib"), "=eth0" for whole names, "^lo,docker" for all but those. */
DDP_LIB int ddp__iface_matches(const char *list, const char *name);
/* The first address of an interface that is up and that the list (NULL: every list) means, others
 * before loopback; with port 0. family AF_INET or AF_INET6 is tried first, the other one after it.
 * name[DDP__IFACE_TEXT] (may be NULL) gets the interface's.
 * Errors: DDP_ARG if nothing matches: names the interfaces that there are; DDP_NET. */
DDP_LIB ddp_status ddp__iface_pick(const char *list, int family, ddp__addr *out, char *name,
                                   ddp_error *err);
/* The address from which the system would send to that one; nothing is sent. 0, or -1 and errno. */
DDP_LIB int ddp__iface_toward(const ddp__addr *to, ddp__addr *out);
/* The same without a destination: the interface of the default route, else the first that is up and
 * not loopback, else 127.0.0.1. */
DDP_LIB void ddp__iface_default(ddp__addr *out);
/* The name of the interface with that address, "" if there is none; returns name. */
DDP_LIB const char *ddp__iface_name(const ddp__addr *a, char *name);

#endif /* DDP_WIRE_IFACE_H */
