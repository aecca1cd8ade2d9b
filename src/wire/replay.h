/* The bytes of a stream that the receiver has not yet acknowledged, kept to be sent again. */
#ifndef DDP_WIRE_REPLAY_H
#define DDP_WIRE_REPLAY_H

#include "base/platform.h"
#include "base/status.h"

/* Bytes [first, end) of the stream are here. Byte `first` lies at data[at]. */
typedef struct ddp__replay {
    unsigned char *data; /* [room] borrowed */
    size_t   room, at;
    uint64_t first, end;
} ddp__replay;

DDP_LIB size_t ddp__replay_free(const ddp__replay *r);
/* Appends n <= ddp__replay_free bytes. */
DDP_LIB void ddp__replay_put(ddp__replay *r, const void *bytes, size_t n);
/* Drops what lies before byte `upto` of the stream; 0 if that byte was never here. */
DDP_LIB int  ddp__replay_forget(ddp__replay *r, uint64_t upto);
/* Where bytes [from, from + n) lie, all of which must be here: one or two runs; how many. */
DDP_LIB int  ddp__replay_find(const ddp__replay *r, uint64_t from, size_t n, struct iovec *iov);

#endif /* DDP_WIRE_REPLAY_H */
