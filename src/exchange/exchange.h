/* The part of a context that belongs to src/exchange. */
#pragma once

#include "context/context.h"
#include "exchange/collective.h"
#include "exchange/transport.h"

/* A message that the strategy posted and has not held. */
typedef struct ddp__posted {
    long name;   /* its ticket to the strategy */
    long ticket; /* of the engine, the stager or the devices' network */
    int link, layer, told;
    int in_layer; /* it lies in that layer's own memory */
    int here;     /* parts of it lie in this machine's, which holding waits for */
    long step;
    ddp_piece *sum; /* [from + to] on a device: what comes in those is added to these; to 0: nothing
                               is */
    int from, to;
} ddp__posted;

/* A tensor of the strategy's own (ddp_keep). */
typedef struct ddp__own_state {
    char name[32];
    int layer, equal; /* the latter as ddp_keep has it */
    float *data;
    size_t count;
} ddp__own_state;

/* The layers of this rank are a part of a model: the sum of squares of the parts before it comes first, and
 * becomes that of all. */
typedef struct ddp__norm_chain {
    ddp_status (*pass)(void *user, int after, double *squares); /* NULL: they are all there is; the context
                                                                   has the error */
    void *user;
} ddp__norm_chain;

/* A layer's averages and updates. */
typedef struct ddp__sending {
    ddp_piece *moved;               /* what of the layer's lists goes this time; NULL: all, every time */
    long ticket, other_ticket;      /* transfers in flight, or -1 */
    float *residual, *base, *delta; /* [trained] int8 blocks: still to be sent, the last average, what is in
                                       flight; NULL without */
    int changing;                   /* delta is in flight, or was */
    int skipped;                    /* no micro-batch of this step had a gradient (ddp_skip) */
    int left_out;                   /* the last update was: no rank had a gradient */
    long updates;                   /* updates applied so far */
    long forward_step;              /* last step with a forward_begin */
    double divergence;              /* of the last averaging; written by the comm thread while in flight */
    double last_divergence, part_divergence; /* of all parts; of those of them averaged so far */
    int moving, averaged;                    /* parts in flight, and averaged so far */
} ddp__sending;

struct ddp__exchanging {
    ddp__sending *sending; /* [layers], from the start on */
    ddp__posted *posted;   /* [posted_room] */
    int posted_count, posted_room;
    long posted_next;
    ddp__own_state *kept;    /* a list */
    ddp__norm_chain norm;    /* for clip_norm */
    const ddp_sites *levels; /* averages go in two; NULL: in one */
    ddp_sites *sites;        /* which they are; NULL before they are known */
    int computing; /* group of the ranks that compute, where others serve; 0 = all, or (elastic) those
                                 who did not ddp__engine_retire */
    const ddp__transport *over;           /* of messages; NULL = they go straight to the engine */
    const struct ddp_step_info *reported; /* of this step, by the program */
    ddp__muon_desk muon;                  /* of the largest matrix, muon_count floats */
    size_t muon_count;
    int hooks_forward;    /* every layer had its forward_begin in the last whole step */
    float *coded, *bases; /* int8 blocks: residuals of all layers, here, and where they are, bases and
                                   deltas; NULL */
    size_t coded_count, bases_count;
    float *coded_there; /* where a device makes its blocks itself: [coded_count] residuals, and [coded_count]
                           what was cut off of results, to be added to them; NULL */
};

/* part.c. open: 0: out of memory. close: residuals, and what muon works in; behind ddp__posted_close. */
DDP_LIB int ddp__exchange_open(ddp_ctx *d);
DDP_LIB void ddp__exchange_close(ddp_ctx *d);
DDP_LIB void ddp__transport_set(ddp_ctx *d, const ddp__transport *over);
/* The layers of this rank are a part of a model: how its norm becomes that of all parts. */
DDP_LIB void ddp__norm_chain_set(ddp_ctx *d, const ddp__norm_chain *norm);
/* What the program reports of each step, which the session keeps. */
DDP_LIB void ddp__reported_set(ddp_ctx *d, const struct ddp_step_info *info);
/* Memory for muon, whose matrices may all be in other stages of the model (elsewhere). */
DDP_LIB ddp_status ddp__muon_open(ddp_ctx *d, int elsewhere, ddp_error *err);
DDP_LIB size_t ddp__muon_floats(const ddp_ctx *d);
DDP_LIB int ddp__norm_is_shared(const ddp_ctx *d);
DDP_LIB int ddp__computing(const ddp_ctx *d); /* the group of the ranks that compute; 0: all */
DDP_LIB void ddp__computing_set(ddp_ctx *d, int group);
DDP_LIB int ddp__posted_room(const ddp_ctx *d);                 /* messages that the strategy may post */
DDP_LIB const ddp__own_state *ddp__kept_list(const ddp_ctx *d); /* what the strategy keeps, a list */
DDP_LIB void ddp__forward_hooks(ddp_ctx *d, int all); /* of the step that is over: all layers had one */
DDP_LIB float *ddp__residual_memory(const ddp_ctx *d, int layer); /* where it is; NULL without */
DDP_LIB int ddp__coded_on_device(const ddp_ctx *d);               /* a device makes blocks of values itself */
/* A layer's averages and updates, as the session sees them. open: when the layers are described. */
DDP_LIB ddp_status ddp__sending_open(ddp_ctx *d, ddp_error *err);
DDP_LIB int ddp__average_in_flight(const ddp_ctx *d, int layer);
DDP_LIB void ddp__forward_began(ddp_ctx *d, int layer);
DDP_LIB int ddp__forward_all(const ddp_ctx *d); /* every layer had its forward_begin in this step */
DDP_LIB void ddp__skipped_set(ddp_ctx *d, int layer, int skipped); /* no micro-batch had a gradient */
DDP_LIB int ddp__left_out(const ddp_ctx *d, int layer);
DDP_LIB void ddp__updates_set(ddp_ctx *d, int layer, long updates);
DDP_LIB float *ddp__base_of(const ddp_ctx *d, int layer);
DDP_LIB double ddp__divergence_of(const ddp_ctx *d, int layer);
