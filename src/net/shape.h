/* Emulation of a slow link: when bytes leave, and when they count as received. Pure arithmetic
 * on times given by the caller, so that rates are exact however late a thread wakes up. */
#ifndef DDP_NET_SHAPE_H
#define DDP_NET_SHAPE_H

#include "base/config.h"

/* One worker's access link: an uplink and a downlink of rate bytes per second (0 = unlimited),
 * each shared by all its peers, and a one-way delay that every frame to this worker suffers. */
typedef struct ddp__link {
    double rate, delay_s;
    double up_free;   /* the uplink has taken everything up to here */
    double down_free; /* likewise the downlink */
} ddp__link;

#ifdef __cplusplus
extern "C" {
#endif

/* A frame that could go at time ready occupies the uplink after the frames before it; returns
 * when its last byte has left. An idle link saves up nothing. */
DDP_LIB double ddp__link_send(ddp__link *l, double ready, size_t bytes);
/* A frame whose last byte reached this rank at arrival; returns when it would count as received if
 * it were next. Alone: arrival + delay; behind others: one serialisation after the one before. */
DDP_LIB double ddp__link_due(const ddp__link *l, double arrival, size_t bytes);
/* The same, and it is next. */
DDP_LIB double ddp__link_receive(ddp__link *l, double arrival, size_t bytes);
/* The same for a small control frame, which uses the downlink but overtakes data. */
DDP_LIB double ddp__link_receive_control(ddp__link *l, double arrival, size_t bytes);
/* Chunk for a rate: 1 ms of it, so that an urgent frame waits no longer and the first sums
 * come back early, within 4..128 KiB. */
DDP_LIB size_t ddp__link_chunk(double rate);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_SHAPE_H */
