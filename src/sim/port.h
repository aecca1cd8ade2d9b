/* A worker's end of a link in a simulated world, and what is under way on it. */
#pragma once

#include "sim/world.h"

enum { DDP__CUTS = 16 /* parts of a message at most: more make no step longer or shorter by 1 % */ };

/* A part that waits for its uplink. */
typedef struct ddp__job {
    int priority, phase, part, member;
    long ticket; /* of its operation */
    double bytes, payload;
    struct ddp__carried *carried; /* NULL: */
    struct ddp__mail *mail;
    void (*left)(ddp__world *w, const struct ddp__job *job); /* it has left */
} ddp__job;

/* A part that is on its way out. */
typedef struct ddp__away {
    struct ddp__away *next, *before;
    ddp__job job;
} ddp__away;

/* Values of a message that do not lie on paper, as they were when it left. */
typedef struct ddp__scrap {
    struct ddp__scrap *next;
    size_t at, count;
} ddp__scrap;

/* A message between two. */
typedef struct ddp__mail {
    struct ddp__mail *later, *before; /* of all in the world */
    struct ddp__mail *next;           /* of those that are there, or behind which nobody has come */
    ddp__port *from, *to;
    ddp__op *op; /* the sender's until it has left */
    ddp_verb verb;
    int lane, peer, layer, left, got, parts;
    size_t n, unit;
    double bytes;
    ddp__scrap *scrap;
} ddp__mail;

/* A worker's end of a link. */
struct ddp__port {
    ddp__wire base;
    ddp__world *world;
    ddp__player *seat;
    ddp__engine *e;
    ddp__job *job;          /* a list: a heap */
    int sends;              /* the uplink is taken */
    ddp__op **want;         /* a list: receives that wait for mail, oldest first */
    ddp__mail *mail, *last; /* whole, and not yet received */
    int unsent;             /* messages to one other that have not left */
    int dead;
};

/* A collective of those who take part, by place among them. */
typedef struct ddp__carried {
    struct ddp__carried *next, *before;
    ddp__world *world;
    int group, members, here; /* ranks; those that are simulated: all, or one for all */
    uint32_t seq;
    int phases, parts, together; /* together: it begins when all have come */
    int joined, over;
    int in_turn;                      /* a ring: each phase goes to the next alone */
    int root;                         /* place of the one that sends alone; -1: all send */
    double out[4], payload[4], in[4]; /* bytes of a part: that a member sends, of them values, and gets in
                                             phase i % 4 */
    ddp__op **op;                     /* [here] */
    ddp__port **port;                 /* [here] */
    int *left;         /* [here] parts that it has still to send, or to get in the last phase */
    int *gone;         /* [phases x parts x here] of those of one cell, at its first member's place */
    double *leave;     /* [phases x parts x here] */
    ddp__scrap *scrap; /* of a root */
    int void_;         /* somebody was lost: it has begun anew, what was under way counts for nothing */
    int *cell[2];      /* [here] of those who send to each other, the lowest place: inside, across; NULL:
                             all do */
} ddp__carried;

/* ---- uplink.c ---- */
DDP_LIB double ddp__scale_of(const ddp__world *w, const ddp_message *m); /* how much longer than its values a
                                                                            message is */
DDP_LIB double ddp__frames_of(const ddp__port *p, double values, size_t unit); /* that they travel in */
DDP_LIB void ddp__job_add(ddp__port *p, const ddp__job *job);
DDP_LIB void ddp__port_send(ddp__port *p); /* the next job, if the uplink is free */
DDP_LIB void ddp__aways_free(ddp__world *w);
DDP_LIB void ddp__op_over(ddp__port *p, ddp__op *op); /* it is done */

/* ---- mail.c ---- */
DDP_LIB int ddp__is_paper(const ddp__world *w, const void *at);
DDP_LIB ddp__scrap *ddp__scraps_cut(ddp__world *w, const ddp__op *op);
DDP_LIB void ddp__scraps_paste(const ddp__scrap *s, const ddp__op *op);
DDP_LIB void ddp__scraps_free(ddp__scrap *s);
DDP_LIB void ddp__mail_post(ddp__port *p, ddp__op *op);
DDP_LIB void ddp__mail_match(ddp__port *p); /* receives take what is there, in order */
DDP_LIB void ddp__mail_free(ddp__mail *m);

/* ---- collective.c ---- */
DDP_LIB void ddp__carried_join(ddp__port *p, ddp__op *op);
DDP_LIB void ddp__carried_drop(ddp__carried *c);
/* What was under way with a worker that is lost begins again without it, or is over where somebody has it
 * already. */
DDP_LIB void ddp__carried_again(ddp__world *w);
