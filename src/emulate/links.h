/* Network emulation for one worker: its access link, its paths to the peers, and a script of incidents.
 * links.c parses the text forms, and shape.c computes when bytes leave and arrive. */
#pragma once

#include "base/core.h"

/* ---- shape.c ---- */

/* A change of an access link's rate, `at` seconds after the start. rate: bytes/s, or 0 for unlimited,
 * negative = stalled. */
typedef struct ddp__turn {
    double at, rate;
} ddp__turn;

/* A worker's access link: an uplink and a downlink, each with `rate` bytes/s (0 = unlimited), shared by all
 * peers. */
typedef struct ddp__link {
    double rate;     /* until the first change */
    ddp__turn *turn; /* [turns] in order of time. The last one is no stall. */
    int turns;
    double zero;       /* the times in `turn` count from here */
    double up_free;    /* time until which the uplink is occupied */
    double down_free;  /* time until which the downlink is occupied */
    int one_at_a_time; /* 1 if a frame occupies the uplink until it has also left the path to its peer */
} ddp__link;

/* The path between this worker and one peer, without the access links of the two. */
typedef struct ddp__path {
    double rate;              /* to the peer, in bytes/s, or 0 for unlimited */
    double delay_s, jitter_s; /* from the peer: each frame takes delay + uniform [0, jitter) */
    double free;              /* time until which the path to the peer is occupied */
    double last;              /* when the last frame from the peer reached the downlink */
    ddp_rng rng;
} ddp__path;

/* Returns the time at which `bytes` bytes have passed the link, if the first may leave at `start`. */
DDP_LIB double ddp__link_pass(const ddp__link *l, double start, double bytes);
DDP_LIB int ddp__link_stalled(const ddp__link *l, double at); /* 1 if the link is stalled at that time */
/* Returns the time of the next rate change after `at`, or -1 without another change. */
DDP_LIB double ddp__link_turns(const ddp__link *l, double at);

/* Sends a frame that is ready at time `ready`. It occupies the uplink after the frames before it, and at the
 * same time the path to its peer. Returns when its last byte has left both. Idle time earns no credit. */
DDP_LIB double ddp__link_send(ddp__link *l, ddp__path *to, double ready, size_t bytes);
/* Returns when a frame whose last byte left the sender at `left` reaches this rank's downlink: delay and
 * jitter later, never before the previous frame. Call it once per frame, in order. */
DDP_LIB double ddp__path_receive(ddp__path *from, double left);
/* Returns when a frame whose last byte reached this rank's downlink at `arrival` counts as received if it is
 * the next one: at once if the downlink is idle, else one serialisation time after the previous frame. */
DDP_LIB double ddp__link_due(const ddp__link *l, double arrival, size_t bytes);
DDP_LIB double ddp__link_receive(ddp__link *l, double arrival, size_t bytes); /* the same, and occupies the
                                                                                 downlink */
/* Does the same for a small control frame, which uses downlink capacity but overtakes data frames. */
DDP_LIB double ddp__link_receive_control(ddp__link *l, double arrival, size_t bytes);
/* Largest chunk, in bytes. With the headers of its frame it fills two segments of a loopback device (65,483
 * bytes each). */
#define DDP__CHUNK_MAX ((size_t)127 << 10)

/* Returns the chunk size for a rate, in bytes: the bytes of 1 ms, between 4 and 127 KiB. Small chunks bound
 * the wait of high-priority frames and let sums return early. */
DDP_LIB size_t ddp__link_chunk(double rate);

/* ---- links.c ---- */

/* A parsed link: bytes/s (0 = unlimited), and seconds. */
typedef struct ddp__netspec {
    double rate, delay_s, jitter_s;
} ddp__netspec;

typedef enum ddp__incident_kind {
    DDP__STALL, /* worker a's access link is stalled for `seconds` */
    DDP__SLOW,  /* worker a's access link has `rate` from this time on */
    DDP__DROP,  /* the connection between a and b breaks */
    DDP__KILL   /* worker a's process is killed with SIGKILL */
} ddp__incident_kind;

typedef struct ddp__incident {
    ddp__incident_kind kind;
    double at, seconds, rate;
    int a, b;
} ddp__incident;

typedef struct ddp__incidents { /* in script order, freed by ddp__incidents_free */
    ddp__incident *list;
} ddp__incidents;

typedef struct ddp__act { /* an action of this worker at a given time */
    double at;
    int peer; /* the peer whose connection is cut, or -1 for kill this process */
} ddp__act;

/* The whole emulation state of one worker, freed by ddp__links_free. */
typedef struct ddp__links {
    ddp__path *path; /* [world]. The own entry is unused. */
    ddp__link own;   /* access link */
    ddp__act *act;   /* [acts] in order of time */
    int acts;
    double flight; /* most bytes in flight from one peer */
    /* identical on every worker */
    double slowest;                 /* lowest rate of any access link or path at any time, 0 if all are
                                       unlimited */
    double farthest;                /* largest delay plus jitter of any path */
    double plan_rate, plan_delay_s; /* RATE and DELAY that the planner assumes for all links */
    int by_pair;                    /* 1 if paths have their own rates, so that no ring is used */
} ddp__links;

DDP_LIB ddp_status ddp__netspec_parse(const char *spec, ddp__netspec *out, ddp_error *err);
/* Returns 1 if the values can be emulated: rate 0 (unlimited) or 1 byte/s to 10^15 bit/s, delay up to an
 * hour. */
DDP_LIB int ddp__netspec_fits(double rate, double delay_s);

/* Parses a line of a script and appends its incident to *s. A line is one incident: "t=3.0 stall 2 for 1.5",
 * "t=5 drop 1-3", "t=8 kill 2" or "t=10 slow 0 to 10mbit". "#" starts a comment. Times and durations are in
 * seconds. Workers are 0 to world - 1. Errors: DDP_FORMAT, which names file, line and part, DDP_ARG for a
 * worker that does not exist, and DDP_MEMORY. */
DDP_LIB ddp_status ddp__script_line(const char *name, int line, const char *text, size_t n, int world,
                                    ddp__incidents *s, ddp_error *err);
DDP_LIB ddp_status ddp__script_read(const char *path, int world, ddp__incidents *s, ddp_error *err);
DDP_LIB void ddp__incidents_free(ddp__incidents *s);
/* Sets the rate changes and actions of *l for worker `rank`, and l->slowest. l->own.rate is the rate before
 * the first change. */
DDP_LIB ddp_status ddp__script_apply(const ddp__incidents *s, int rank, ddp__links *l, ddp_error *err);

/* Gives every worker an access link as in spec. The jitter is random with this seed. */
DDP_LIB ddp_status ddp__links_alike(const ddp__netspec *spec, int rank, int world, uint64_t seed,
                                    ddp__links *l, ddp_error *err);
DDP_LIB ddp_rng ddp__jitter_rng(uint64_t seed, int from, int to);
DDP_LIB void ddp__links_free(ddp__links *l);
