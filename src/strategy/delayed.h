/* DeFT: what the schedule of delayed, merged gradients (plan/timeline/deft.h) needs to run. */
#pragma once

#include "plan/timeline/deft.h"
#include "strategy/gradient.h"

/* Parts from..to-1 of a layer, as one message. fresh: of the gradient that is merged in this iteration's
 * backward; else of the pending one, which leaves as early as it can. */
typedef struct ddp__parcel {
    int32_t what; /* layer << 2 | fresh << 1 | link */
    uint16_t from, to;
} ddp__parcel;

/* The schedule as bytes, the same on all ranks: this head, cut[layers], k[updates], first[iterations + 1],
 * parts. */
typedef struct ddp__packed_schedule {
    int32_t layers, warmup, iterations, updates, messages;
    int32_t measured, accepted, more; /* whether it will stay; what the Preserver said (-1: not asked); 0 */
    double exposed_s, scale;          /* of the steady period beyond its computing; of the knapsacks */
} ddp__packed_schedule;

/* `warmup` iterations once, then those behind it over and over. */
typedef struct ddp__schedule {
    ddp__packed_schedule head;
    int32_t *cut;   /* [layers] parts, 0 where nothing is sent */
    int32_t *k;     /* [updates] iterations merged, in the steady period */
    int32_t *first; /* [iterations + 1] of an iteration's messages, those that are not fresh first */
    ddp__parcel *parts;
    void *room; /* of the lists */
} ddp__schedule;

/* What a plan is made for. */
typedef struct ddp__hardware {
    const ddp_profile *profile; /* times on the faster link */
    double alpha, mu;
    int swapped; /* the second link is the faster one */
    int paper;   /* all is held at the end of a step */
} ddp__hardware;

/* The two queues that a gradient passes. */
typedef struct ddp__queues {
    int merged, stored; /* iterations in the pending gradient (0: there is none), and in the one behind
                                it */
    int opens;          /* in this iteration the stored ones become the pending gradient */
    int left;           /* parts of the pending gradient that have not left; where `opens`, of the next
                                one */
    int32_t *sent;      /* [layers] and those that have */
} ddp__queues;

/* The Preserver's model, as the workers' gradients tell it. */
typedef struct ddp__noise {
    float *words; /* [DDP__NOISE_WORDS] kept: g . g_w and its negative, where they are above 0, its
                          square, the loss */
    long ticket;  /* of their averages, or -1 */
    int measured, samples, updates; /* whether it is; updates since the last sample */
    double mu, square;              /* |g|^2; variance of g . g_w over the workers */
    double loss, gain;              /* the last one; what an update takes off it */
    double planned;                 /* that, when the plan was made */
} ddp__noise;

typedef struct ddp__delayed_layer {
    float *sum[2]; /* kept: merged gradients, NULL where it has none */
    size_t count;  /* floats of a gradient */
    int ready;     /* complete in this step */
} ddp__delayed_layer;

typedef struct ddp__flight {
    long ticket;
    int layer;
} ddp__flight;

typedef struct ddp__delayed {
    ddp__schedule plan;
    ddp__queues q;
    int at;                 /* the iteration of the plan that comes or is under way */
    int now;                /* of a layer's sum[2]: the pending gradient, or that which was applied last */
    int averaged;           /* sum[now] was applied and is nobody's: the iterations in it; else 0 */
    int next;               /* the next fresh message */
    float rate;             /* of the pending gradient's newest iteration */
    ddp__delayed_layer *of; /* [layers] */
    float *position;        /* [DDP__POSITIONS] kept: at, now, rate and plan where nothing is in flight */
    ddp__flight *flight;    /* [flights] messages on their way, the oldest first */
    int flights, room, old; /* old: so many are not fresh */
    int sampling;           /* this step's gradients are looked at */
    ddp__noise noise;
} ddp__delayed;

enum { DDP__POSITIONS = 4, DDP__NOISE_WORDS = 4 };

/* delayed_plan.c: schedules */
DDP_LIB int ddp__schedule_pack(ddp_ctx *d, const ddp_delayed_plan *plan, const ddp__hardware *w, int accepted,
                               ddp_blob *out);
DDP_LIB int ddp__schedule_read(ddp_ctx *d, const ddp_blob *blob, ddp__schedule *out);
DDP_LIB void ddp__schedule_free(ddp__schedule *s);
DDP_LIB int ddp__delayed_make(ddp_ctx *d, void *self, const ddp_profile *p, int measured, ddp_blob *out);
DDP_LIB int ddp__delayed_stale(ddp_ctx *d, const void *self);
DDP_LIB double ddp__delayed_exposed(const void *self);
DDP_LIB int ddp__delayed_transfers(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room);
/* The four cases. begin: what is pending leaves; opens is known then. send: a message leaves. end: k[2]
 * receives what is applied, 0: nothing. 0 is returned where the schedule breaks the rules. */
DDP_LIB int ddp__queues_begin(const ddp__schedule *s, ddp__queues *q, int iteration);
DDP_LIB int ddp__queues_send(const ddp__schedule *s, ddp__queues *q, const ddp__parcel *m);
DDP_LIB void ddp__queues_end(ddp__queues *q, int *k);
DDP_LIB int ddp__queues_pass(const ddp__schedule *s, ddp__queues *q, int iteration,
                             int *k); /* all of these */
