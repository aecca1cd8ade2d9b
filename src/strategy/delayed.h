/* DeFT: the run-time state of its schedule of delayed, merged gradients (plan/timeline/deft.h). */
#pragma once

#include "plan/timeline/deft.h"
#include "strategy/gradient.h"

/* Parts from..to-1 of a layer, as one message. fresh: they belong to the gradient that is merged in this
 * iteration's backward pass. Otherwise they belong to the pending gradient and are sent as early as
 * possible. */
typedef struct ddp__parcel {
    int32_t what; /* layer << 2 | fresh << 1 | link */
    uint16_t from, to;
} ddp__parcel;

/* The serialised schedule, identical on all ranks: this head, cut[layers], k[updates], first[iterations + 1],
 * parts. */
typedef struct ddp__packed_schedule {
    int32_t layers, warmup, iterations, updates, messages;
    /* measured: the plan is final. accepted: the verdict of the Preserver (-1 if not tested). more: 0. */
    int32_t measured, accepted, more;
    /* exposed_s: exposed time of a steady period. scale: factor of the knapsack capacities. */
    double exposed_s, scale;
} ddp__packed_schedule;

/* The first `warmup` iterations run once, then the remaining ones repeat. */
typedef struct ddp__schedule {
    ddp__packed_schedule head;
    int32_t *cut; /* [layers] number of parts, or 0 if the layer sends no message */
    int32_t *k;   /* [updates] iterations merged in each update of the steady period */
    /* [iterations + 1] first message of each iteration. Messages that are not fresh come first. */
    int32_t *first;
    ddp__parcel *parts;
    void *room; /* the allocation that contains the lists */
} ddp__schedule;

/* The input of a plan. */
typedef struct ddp__hardware {
    const ddp_profile *profile; /* times on the faster link */
    double alpha, mu;
    int swapped; /* 1 if the second link is the faster one */
    int paper;   /* 1 if every step waits for all its messages at its end */
} ddp__hardware;

/* The two queues of Algorithm 2: the pending gradient, which is being sent, and the stored gradient, which
 * collects new iterations. */
typedef struct ddp__queues {
    int merged, stored; /* iterations merged in the pending (0 for none) and in the stored gradient */
    int opens;          /* 1: in this iteration the stored gradient becomes the pending one */
    int left;           /* unsent parts of the pending gradient, or of the next gradient if `opens` */
    int32_t *sent;      /* [layers] parts sent */
} ddp__queues;

/* Estimates for the Preserver's model, from the gradients of all workers. */
typedef struct ddp__noise {
    float *words; /* [DDP__NOISE_WORDS] saved: max(g . g_w, 0), max(-g . g_w, 0), its square, the loss */
    long ticket;  /* of the message that averages the words, or -1 */
    int measured, samples, updates; /* measured: estimation is enabled. updates: since the last sample. */
    double mu, square;              /* |g|^2, and the variance of g . g_w over the workers */
    double loss, gain;              /* loss: of the last sample. gain: decrease of the loss per update. */
    double planned;                 /* the gain when the plan was made */
} ddp__noise;

typedef struct ddp__delayed_layer {
    float *sum[2]; /* saved: merged gradients. NULL means that the layer has no gradient. */
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
    int at;                 /* the current or next iteration of the plan */
    int now;                /* index into a layer's sum[2]: the pending gradient, or the one applied last */
    int averaged;           /* iterations in sum[now] if it was applied and is unused since, or 0 otherwise */
    int next;               /* the next fresh message */
    float rate;             /* learning rate of the pending gradient's newest iteration */
    ddp__delayed_layer *of; /* [layers] */
    float *position;        /* [DDP__POSITIONS] saved: at, now, rate and plan when no message is in flight */
    ddp__flight *flight;    /* [flights] messages in flight, oldest first */
    int flights, room, old; /* old: number of oldest messages that are not fresh */
    int sampling;           /* 1 if this step's gradients are a sample for `noise` */
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
/* The four cases of Algorithm 2. All return 0 if the schedule breaks the rules.
 * ddp__queues_begin sends the parts of the pending gradient and sets `opens`. */
DDP_LIB int ddp__queues_begin(const ddp__schedule *s, ddp__queues *q, int iteration);
/* Sends one message. */
DDP_LIB int ddp__queues_send(const ddp__schedule *s, ddp__queues *q, const ddp__parcel *m);
/* Ends the iteration. k[2] receives the iterations of the one or two gradients to apply, or 0. */
DDP_LIB void ddp__queues_end(ddp__queues *q, int *k);
/* One whole iteration: begin, send, end. */
DDP_LIB int ddp__queues_pass(const ddp__schedule *s, ddp__queues *q, int iteration, int *k);
