/* Emulation of slow links: when bytes leave, and when they count as received. Pure arithmetic
 * on times given by the caller, so that rates are exact however late a thread wakes up. */
#ifndef DDP_EMULATE_SHAPE_H
#define DDP_EMULATE_SHAPE_H

#include "base/tools.h"

/* From `at` seconds after the start on, a worker's access link has this rate: bytes per second,
 * 0 = unlimited, below 0 = nothing passes. */
typedef struct ddp__turn {
    double at, rate;
} ddp__turn;

/* One worker's access link: an uplink and a downlink, each of rate bytes per second (0 =
 * unlimited) and shared by all its peers. */
typedef struct ddp__link {
    double rate;              /* until the first turn */
    const ddp__turn *turn;    /* [turns], in order of time; the last one lets bytes pass */
    int    turns;
    double zero;              /* times of turns count from here */
    double up_free;           /* the uplink has taken everything up to here */
    double down_free;         /* likewise the downlink */
} ddp__link;

/* The way between this worker and one peer, besides the access links of both. */
typedef struct ddp__path {
    double  rate;              /* to the peer, bytes per second; 0 = unlimited */
    double  delay_s, jitter_s; /* from the peer: each frame takes delay + uniform [0, jitter) */
    double  free;              /* the way to the peer has taken everything up to here */
    double  last;              /* when the last frame from the peer reached the downlink */
    ddp_rng rng;
} ddp__path;

/* When so many bytes, of which the first may go at time start, have passed. */
DDP_LIB double ddp__link_pass(const ddp__link *l, double start, double bytes);
/* 1 if nothing passes at that time. */
DDP_LIB int    ddp__link_stalled(const ddp__link *l, double at);
/* The next time after `at` at which the rate turns; -1: it stays. */
DDP_LIB double ddp__link_turns(const ddp__link *l, double at);

/* A frame that could go at time ready occupies the uplink after the frames before it, and the way
 * to its peer at the same time; returns when its last byte has left both. An idle link saves up
 * nothing. */
DDP_LIB double ddp__link_send(ddp__link *l, ddp__path *to, double ready, size_t bytes);
/* A frame whose last byte left the sender at that time reaches this rank's downlink: delay and
 * jitter later, never before the one before it. To be called once per frame, in order. */
DDP_LIB double ddp__path_receive(ddp__path *from, double left);
/* A frame whose last byte reached this rank's downlink at arrival; returns when it would count as
 * received if it were next. Alone: at once; behind others: one serialisation after the one before.
 */
DDP_LIB double ddp__link_due(const ddp__link *l, double arrival, size_t bytes);
/* The same, and it is next. */
DDP_LIB double ddp__link_receive(ddp__link *l, double arrival, size_t bytes);
/* The same for a small control frame, which uses the downlink but overtakes data. */
DDP_LIB double ddp__link_receive_control(ddp__link *l, double arrival, size_t bytes);
/* Chunk for a rate: 1 ms of it, so that an urgent frame waits no longer and the first sums
 * come back early, within 4..128 KiB. */
DDP_LIB size_t ddp__link_chunk(double rate);

#endif /* DDP_EMULATE_SHAPE_H */
