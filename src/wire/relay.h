/* Connections of two other ranks, joined here because they cannot reach each other. */
#ifndef DDP_WIRE_RELAY_H
#define DDP_WIRE_RELAY_H

#include "base/core.h"

typedef struct ddp__relay ddp__relay;

/* A relay and its thread. Errors: DDP_MEMORY, DDP_NET (no pipe), DDP_FAILED (no thread). */
DDP_LIB ddp_status ddp__relay_open(ddp__relay **out, ddp_error *err);
/* From now on what comes from one socket goes to the other, both ways, at most 64 KiB of each way
 * waiting here. Both are the relay's, also on error; each is shut down when the other has ended and
 * its last bytes are through. Any thread. Errors: DDP_MEMORY. */
DDP_LIB ddp_status ddp__relay_add(ddp__relay *relay, int a, int b, ddp_error *err);
/* The same with a name other than 0, by which ddp__relay_cut ends it: both sockets are closed, what
 * waits is dropped. Any thread. */
DDP_LIB ddp_status ddp__relay_add_named(ddp__relay *relay, int a, int b, uint32_t name,
                                        ddp_error *err);
DDP_LIB void       ddp__relay_cut(ddp__relay *relay, uint32_t name);
/* Bytes moved so far. Any thread. */
DDP_LIB int64_t ddp__relay_bytes(ddp__relay *relay);
/* The name of a pair of ranks. */
DDP_LIB uint32_t   ddp__relay_name(int low, int high);
/* Waits until all pairs have ended, 5 s at most and no longer than 1 s without a byte: those who
 * leave at the same time must hear each other's last words. NULL is fine. */
DDP_LIB void ddp__relay_close(ddp__relay *relay);

#endif /* DDP_WIRE_RELAY_H */
