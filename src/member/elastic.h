/* Elastic worlds: a lost worker begins a new epoch, another may come in its place. */
#ifndef DDP_MEMBER_ELASTIC_H
#define DDP_MEMBER_ELASTIC_H

#include "comm/engine.h"

/* For ddp__engine_config.membership, of worlds of at most 64 ids. */
DDP_LIB const struct ddp__membership *ddp__elastic_membership(void);

/* Connects the wire with a worker that comes: called once, on the comm thread, before the first
 * byte to or from id. From then on the wire must not report id's former stream. */
typedef void (*ddp__attach_fn)(ddp__wire *w, int id, void *user);

/* ddp__engine_admit - a new or returning worker comes into the world.
 *
 * Called by all live workers between the same two operations, with nothing in flight (else
 * DDP_USAGE), after each has a connection to id, which attach puts into the wire (NULL: it is
 * there). Returns in the epoch with id in it. If meanwhile somebody is lost the epoch is without
 * them; if that is id itself the world goes on without it: DDP_PEER_LOST, the engine is healthy.
 *
 * The newcomer opens its engine with the same world and min_world, live = those who admit it,
 * joining = 1 and a wire with their streams (streams of all others report their end at once);
 * ddp__engine_joined waits until it is in an epoch: its first operation is then the next of the
 * others. Any thread, one call at a time. */
DDP_LIB ddp_status ddp__engine_admit(ddp__engine *e, int id, ddp__attach_fn attach, void *user,
                                     ddp_error *err);
DDP_LIB ddp_status ddp__engine_joined(ddp__engine *e, double timeout_s, ddp_error *err);

#endif /* DDP_MEMBER_ELASTIC_H */
