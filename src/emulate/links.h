/* What is emulated for one worker: its access link, the ways to its peers, and a script of
 * incidents. Texts are read here; the engine gets times, rates and acts. */
#ifndef DDP_EMULATE_LINKS_H
#define DDP_EMULATE_LINKS_H

#include "base/core.h"
#include "emulate/shape.h"

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
    int    a, b;
} ddp__incident;

typedef struct ddp__incidents { /* in the order of the script; freed by ddp__incidents_free */
    ddp__incident *list;
    int            count, room;
} ddp__incidents;

typedef struct ddp__act { /* something this worker does at a time */
    double at;
    int    peer; /* whose connection it cuts; -1: it kills its process */
} ddp__act;

/* Everything for one worker; freed by ddp__links_free. */
typedef struct ddp__links {
    ddp__path *path;      /* [world], the own entry unused */
    double     rate;      /* of the own access link until the first turn; 0 = unlimited */
    ddp__turn *turn;
    int        turns;
    ddp__act  *act;       /* in order of time */
    int        acts;
    double     flight;    /* most bytes under way from one peer */
    /* the same on every worker */
    double     slowest;   /* rate of any access link or way, ever; 0 = all unlimited */
    double     farthest;  /* delay and jitter of any way */
    double     plan_rate, plan_delay_s; /* what a plan takes for RATE and DELAY of all links */
    int        by_pair;   /* ways have rates of their own: no ring is laid over them */
} ddp__links;

/* netspec.c */
DDP_LIB ddp_status ddp__netspec_parse(const char *spec, ddp__netspec *out, ddp_error *err);
/* RATE alone, the first n bytes of text; 1, or 0 if it is not one. */
DDP_LIB int ddp__netspec_rate(const char *text, size_t n, double *bytes_per_s);

/* What can be emulated: 0 = unlimited, or 1 byte/s to 10^15 bit/s; up to an hour. */
DDP_LIB int ddp__netspec_fits(double rate, double delay_s);

/* script.c */
/* One incident a line, "#" begins a comment:
 *     t=3.0 stall 2 for 1.5
 *     t=5 drop 1-3
 *     t=8 kill 2
 *     t=10 slow 0 to 10mbit
 * Times and durations are seconds, workers those of a world of `world`; appended to *s.
 * Errors: DDP_FORMAT, naming file, line and part; DDP_ARG for a worker that does not exist. */
DDP_LIB ddp_status ddp__script_line(const char *name, int line, const char *text, size_t n,
                                    int world, ddp__incidents *s, ddp_error *err);
DDP_LIB ddp_status ddp__script_read(const char *path, int world, ddp__incidents *s,
                                    ddp_error *err);
DDP_LIB void       ddp__incidents_free(ddp__incidents *s);
/* Makes turns and acts of *l for worker rank, and slowest; l->rate is the rate until then. */
DDP_LIB ddp_status ddp__script_apply(const ddp__incidents *s, int rank, ddp__links *l,
                                     ddp_error *err);

/* Every worker's access link is like spec; jitter is drawn from seed. */
DDP_LIB ddp_status ddp__links_alike(const ddp__netspec *spec, int rank, int world, uint64_t seed,
                                    ddp__links *l, ddp_error *err);
DDP_LIB ddp_rng    ddp__jitter_rng(uint64_t seed, int from, int to);
DDP_LIB void       ddp__links_free(ddp__links *l);

#endif /* DDP_EMULATE_LINKS_H */
