/* A worker's end of a link in a simulated world, and the messages in flight on it. */
#pragma once

#include "sim/world.h"

enum { DDP__CUTS = 16 /* limit of parts per message. More parts change the step time by less than 1 % */ };

/* A part that waits for its uplink. */
typedef struct ddp__job {
    int priority, phase, part, member;
    long ticket; /* of its operation */
    double bytes, payload;
    struct ddp__carried *carried; /* NULL for point-to-point */
    struct ddp__mail *mail;
    void (*left)(ddp__world *w, const struct ddp__job *job); /* called when it has been sent */
} ddp__job;

/* A part that is being sent. */
typedef struct ddp__away {
    struct ddp__away *next, *before;
    ddp__job job;
} ddp__away;

/* Values of a message in real memory, copied when it was sent. */
typedef struct ddp__scrap {
    struct ddp__scrap *next;
    size_t at, count;
} ddp__scrap;

/* A point-to-point message. */
typedef struct ddp__mail {
    struct ddp__mail *later, *before; /* list of all messages in the world */
    struct ddp__mail *next;           /* list of messages that are complete, or that no receive has matched */
    ddp__port *from, *to;
    ddp__op *op; /* the sender's operation, until it is sent */
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
    int sends;              /* 1 if the uplink is busy */
    ddp__op **want;         /* a list: receives that wait for a message, oldest first */
    ddp__mail *mail, *last; /* complete messages that are not received */
    int unsent;             /* point-to-point messages that are not sent */
    int dead;
};

/* A collective. Indexes are places among its members. */
typedef struct ddp__carried {
    struct ddp__carried *next, *before;
    ddp__world *world;
    int group, members, here; /* members counts ranks, here counts simulated ranks, all or one for all */
    uint32_t seq;
    int phases, parts, together; /* together is 1 if it starts when all members have posted */
    int joined, over;
    int in_turn; /* 1 for ring, where each phase is sent to the next member only */
    int root;    /* place of the only sender. -1 means that all send. */
    /* bytes of a part in phase i % 4: sent by a member, of these the values, received */
    double out[4], payload[4], in[4];
    ddp__op **op;     /* [here] */
    ddp__port **port; /* [here] */
    int *left;        /* [here] parts left to send, or in the last phase to receive */
    int *gone; /* [phases x parts x here] parts sent by the members of a cell, at its first member's place */
    double *leave;     /* [phases x parts x here] */
    ddp__scrap *scrap; /* data of the root */
    int void_;         /* 1 if a rank was lost and the collective was restarted. Ignore this collective */
    int *cell[2]; /* [here] first place of the cell whose members exchange data: inside, across, or NULL for
                   * all */
} ddp__carried;

/* ---- uplink.c ---- */
/* size of a message relative to its values */
DDP_LIB double ddp__scale_of(const ddp__world *w, const ddp_message *m);
/* bytes of the frames of these values */
DDP_LIB double ddp__frames_of(const ddp__port *p, double values, size_t unit);
DDP_LIB void ddp__job_add(ddp__port *p, const ddp__job *job);
DDP_LIB void ddp__port_send(ddp__port *p); /* sends the next job if the uplink is free */
DDP_LIB void ddp__aways_free(ddp__world *w);
DDP_LIB void ddp__op_over(ddp__port *p, ddp__op *op); /* completes it */

/* ---- mail.c ---- */
DDP_LIB int ddp__is_paper(const ddp__world *w, const void *at);
DDP_LIB ddp__scrap *ddp__scraps_cut(ddp__world *w, const ddp__op *op);
DDP_LIB void ddp__scraps_paste(const ddp__scrap *s, const ddp__op *op);
DDP_LIB void ddp__scraps_free(ddp__scrap *s);
DDP_LIB void ddp__mail_post(ddp__port *p, ddp__op *op);
DDP_LIB void ddp__mail_match(ddp__port *p); /* matches receives and messages, in order */
DDP_LIB void ddp__mail_free(ddp__mail *m);

/* ---- collective.c ---- */
DDP_LIB void ddp__carried_join(ddp__port *p, ddp__op *op);
DDP_LIB void ddp__carried_drop(ddp__carried *c);
/* Restarts the collectives of a lost worker without it, or completes them if any member has already completed
 * them. */
DDP_LIB void ddp__carried_again(ddp__world *w);
