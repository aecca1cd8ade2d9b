/* What is emulated for one worker: its access link, the ways to its peers, and a script of incidents. Texts
 * are read here; the engine gets times, rates and acts. */
#pragma once

#include "base/core.h"

/* ---- shape.c ---- */

/* From `at` seconds after the start on, an access link has this rate: bytes/s; 0 = unlimited, below: nothing
 * passes. */
typedef struct ddp__turn {
    double at, rate;
} ddp__turn;

/* A worker's access link: an uplink and a downlink, each of rate bytes/s (0 = unlimited), shared by all its
 * peers. */
typedef struct ddp__link {
    double rate;     /* until the first turn */
    ddp__turn *turn; /* [turns], in order of time; the last one lets bytes pass */
    int turns;
    double zero;       /* times of turns count from here */
    double up_free;    /* the uplink has taken everything up to here */
    double down_free;  /* likewise the downlink */
    int one_at_a_time; /* 1: a frame occupies the uplink until it has left the way to its peer too */
} ddp__link;

/* The way between this worker and one peer, besides the access links of both. */
typedef struct ddp__path {
    double rate;              /* to the peer, bytes per second; 0 = unlimited */
    double delay_s, jitter_s; /* from the peer: each frame takes delay + uniform [0, jitter) */
    double free;              /* the way to the peer has taken everything up to here */
    double last;              /* when the last frame from the peer reached the downlink */
    ddp_rng rng;
} ddp__path;

/* When so many bytes, of which the first may go at time start, have passed. */
DDP_LIB double ddp__link_pass(const ddp__link *l, double start, double bytes);
DDP_LIB int ddp__link_stalled(const ddp__link *l, double at); /* 1 if nothing passes at that time */
/* The next time after `at` at which the rate turns; -1: it stays. */
DDP_LIB double ddp__link_turns(const ddp__link *l, double at);

/* A frame that could go at time ready occupies the uplink after the frames before it, and the way to its peer
 * at the same time; returns when its last byte has left both. An idle link saves up nothing. */
DDP_LIB double ddp__link_send(ddp__link *l, ddp__path *to, double ready, size_t bytes);
/* A frame whose last byte left the sender at that time reaches this rank's downlink: delay and jitter later,
 * never before the one before it. To be called once per frame, in order. */
DDP_LIB double ddp__path_receive(ddp__path *from, double left);
/* A frame whose last byte reached this rank's downlink at arrival; returns when it would count as received if
 * it were next. Alone: at once; behind others: one serialisation after the one before. */
DDP_LIB double ddp__link_due(const ddp__link *l, double arrival, size_t bytes);
DDP_LIB double ddp__link_receive(ddp__link *l, double arrival, size_t bytes); /* the same, and it is next */
/* The same for a small control frame, which uses the downlink but overtakes data. */
DDP_LIB double ddp__link_receive_control(ddp__link *l, double arrival, size_t bytes);
/* With the heads of its frame it fills two segments of a loopback device (65,483 bytes) and needs no
 * third. */
#define DDP__CHUNK_MAX ((size_t)127 << 10)

/* Chunk for a rate: 1 ms of it, so that an urgent frame waits no longer and sums come back early; 4..127
 * KiB. */
DDP_LIB size_t ddp__link_chunk(double rate);

/* ---- links.c ---- */

/* A link as text: bytes per second, 0 = unlimited; seconds. */
typedef struct ddp__netspec {
    double rate, delay_s, jitter_s;
} ddp__netspec;

typedef enum ddp__incident_kind {
    DDP__STALL, /* nothing passes worker a's access link for `seconds` */
    DDP__SLOW,  /* a's access link has `rate` from now on */
    DDP__DROP,  /* the connection of a and b breaks */
    DDP__KILL   /* a's process dies of SIGKILL */
} ddp__incident_kind;

typedef struct ddp__incident {
    ddp__incident_kind kind;
    double at, seconds, rate;
    int a, b;
} ddp__incident;

typedef struct ddp__incidents { /* in the order of the script; freed by ddp__incidents_free */
    ddp__incident *list;
} ddp__incidents;

typedef struct ddp__act { /* something this worker does at a time */
    double at;
    int peer; /* whose connection it cuts; -1: it kills its process */
} ddp__act;

/* Everything for one worker; freed by ddp__links_free. */
typedef struct ddp__links {
    ddp__path *path; /* [world], the own entry unused */
    ddp__link own;   /* access link */
    ddp__act *act;   /* in order of time */
    int acts;
    double flight; /* most bytes under way from one peer */
    /* the same on every worker */
    double slowest;                 /* rate of any access link or way, ever; 0 = all unlimited */
    double farthest;                /* delay and jitter of any way */
    double plan_rate, plan_delay_s; /* what a plan takes for RATE and DELAY of all links */
    int by_pair;                    /* ways have rates of their own: no ring is laid over them */
} ddp__links;

DDP_LIB ddp_status ddp__netspec_parse(const char *spec, ddp__netspec *out, ddp_error *err);
/* What can be emulated: 0 = unlimited, or 1 byte/s to 10^15 bit/s; up to an hour. */
DDP_LIB int ddp__netspec_fits(double rate, double delay_s);

/* One incident a line: "t=3.0 stall 2 for 1.5", "t=5 drop 1-3", "t=8 kill 2", "t=10 slow 0 to 10mbit"; "#"
 * begins a comment. Times and durations are seconds, workers those of a world of `world`; appended to *s.
 * Errors: DDP_FORMAT, naming file, line and part; DDP_ARG for a worker that does not exist. */
DDP_LIB ddp_status ddp__script_line(const char *name, int line, const char *text, size_t n, int world,
                                    ddp__incidents *s, ddp_error *err);
DDP_LIB ddp_status ddp__script_read(const char *path, int world, ddp__incidents *s, ddp_error *err);
DDP_LIB void ddp__incidents_free(ddp__incidents *s);
/* Makes turns and acts of *l for worker rank, and slowest; l->own.rate is the rate until then. */
DDP_LIB ddp_status ddp__script_apply(const ddp__incidents *s, int rank, ddp__links *l, ddp_error *err);

/* Every worker's access link is like spec; jitter is drawn from seed. */
DDP_LIB ddp_status ddp__links_alike(const ddp__netspec *spec, int rank, int world, uint64_t seed,
                                    ddp__links *l, ddp_error *err);
DDP_LIB ddp_rng ddp__jitter_rng(uint64_t seed, int from, int to);
DDP_LIB void ddp__links_free(ddp__links *l);
