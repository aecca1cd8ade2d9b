/* Defines the part of a context that belongs to src/exchange. */
#pragma once

#include "context/context.h"
#include "exchange/collective.h"
#include "exchange/transport.h"

/* A message that the strategy has posted and not yet held. */
typedef struct ddp__posted {
    long name;   /* ticket that the strategy has */
    long ticket; /* ticket of the engine, the stager or the devices' network */
    int link, layer, told;
    int in_layer; /* its values are in the layer's own memory */
    int here;     /* parts of it are in host memory, and hold waits for them */
    long step;
    ddp_piece *sum; /* [from + to] on a device: received values, then the arrays that they are added to (to =
                       0 without an addition) */
    int from, to;
} ddp__posted;

/* An array that belongs to the strategy (ddp_keep). */
typedef struct ddp__own_state {
    char name[32];
    int layer, equal; /* equal: as in ddp_keep */
    float *data;
    size_t count;
} ddp__own_state;

/* Norm of a model whose layers are on several ranks: pass receives the sum of squares of this rank's part and
 * turns it into the sum over all parts. */
typedef struct ddp__norm_chain {
    ddp_status (*pass)(void *user, int after, double *squares); /* NULL if this rank has the whole model. On
                                                                   failure the context has the error. */
    void *user;
} ddp__norm_chain;

/* State of a layer's averages and updates. */
typedef struct ddp__sending {
    ddp_piece *moved;               /* pieces of the layer's lists that this average transfers, or NULL for
                                       all */
    long ticket, other_ticket;      /* tickets of transfers in flight, or -1 */
    float *residual, *base, *delta; /* [trained] int8 blocks: residual, last average, delta in flight. NULL if
                                       not used. */
    int changing;                   /* 1 if delta is or was in flight */
    int skipped;                    /* no micro-batch of this step had a gradient (ddp_skip) */
    int left_out;                   /* the last update was omitted, because no rank had a gradient */
    long updates;                   /* updates applied so far */
    long forward_step;              /* last step with a forward_begin */
    double divergence;              /* of the last average. The comm thread writes it while the average is in
                                       flight. */
    double last_divergence, part_divergence; /* of all parts in the last average, and the sum of the parts
                                                averaged so far */
    int moving, averaged;                    /* parts in flight, and averaged so far */
} ddp__sending;

struct ddp__exchanging {
    ddp__sending *sending; /* [layers], exists once the session has started */
    ddp__posted *posted;   /* [posted_room] */
    int posted_count, posted_room;
    long posted_next;
    ddp__own_state *kept;    /* arrays of ddp_keep, a list */
    struct ddp__rest *rest;  /* joining worker: state that it still receives, or NULL */
    ddp__norm_chain norm;    /* for clip_norm */
    const ddp_sites *levels; /* sites for hierarchical averages, or NULL for flat averages */
    ddp_sites *sites;        /* memory of `levels`, or NULL before the sites are known */
    int computing; /* group of the ranks that compute if others only serve. 0 for all ranks or, in an elastic
                      world, for all ranks that did not call ddp__engine_retire. */
    const ddp__transport *over;           /* transport of a device, or NULL if messages go directly to the
                                             engine */
    const struct ddp_step_info *reported; /* values that the program reported for this step */
    ddp__muon_desk muon;                  /* workspace of muon for the largest matrix, muon_count floats */
    size_t muon_count;
    int hooks_forward;    /* every layer had its forward_begin in the last complete step */
    float *coded, *bases; /* int8 blocks, or NULL: residuals of all layers in host memory, bases and deltas in
                             the memory of the layers */
    size_t coded_count, bases_count;
    float *coded_there; /* if a device quantises: [coded_count] residuals, and [coded_count] residuals of
                           results, which are added to them. Otherwise NULL. */
};

/* open returns 0 if memory is short. close frees the residuals and muon's workspace. Call it after
 * ddp__posted_close (part.c). */
DDP_LIB int ddp__exchange_open(ddp_ctx *d);
DDP_LIB void ddp__exchange_close(ddp_ctx *d);
DDP_LIB void ddp__transport_set(ddp_ctx *d, const ddp__transport *over);
/* Sets how the norm of this rank's part becomes the norm of the whole model. */
DDP_LIB void ddp__norm_chain_set(ddp_ctx *d, const ddp__norm_chain *norm);
/* Sets the values that the program reports for each step. They belong to the session. */
DDP_LIB void ddp__reported_set(ddp_ctx *d, const struct ddp_step_info *info);
/* Allocates muon's workspace. elsewhere: all matrices may be in other stages of the model. */
DDP_LIB ddp_status ddp__muon_open(ddp_ctx *d, int elsewhere, ddp_error *err);
DDP_LIB size_t ddp__muon_floats(const ddp_ctx *d);
DDP_LIB int ddp__norm_is_shared(const ddp_ctx *d);
DDP_LIB int ddp__computing(const ddp_ctx *d); /* group of the ranks that compute, or 0 for all */
DDP_LIB void ddp__computing_set(ddp_ctx *d, int group);
DDP_LIB int ddp__posted_room(const ddp_ctx *d);                 /* maximum number of messages that the
                                                                   strategy may post */
DDP_LIB const ddp__own_state *ddp__kept_list(const ddp_ctx *d); /* arrays of ddp_keep, a list */
/* Sets the state that a joining worker receives after its entry. The context owns it from then on. */
DDP_LIB void ddp__later_set(ddp_ctx *d, struct ddp__rest *rest);
DDP_LIB void ddp__later_close(ddp_ctx *d); /* ends the transfer */
/* Waits until a joining worker has received a layer's part of that state, or a set of ddp__rest_take. */
DDP_LIB ddp_status ddp__later_wait(ddp_ctx *d, int layer, ddp_error *err);
DDP_LIB void ddp__forward_hooks(ddp_ctx *d, int all); /* sets whether all layers had a forward hook in the
                                                         last step */
DDP_LIB float *ddp__residual_memory(const ddp_ctx *d, int layer); /* residual, on host or device, or NULL */
DDP_LIB int ddp__coded_on_device(const ddp_ctx *d);               /* 1 if the device quantises */
/* A layer's averages and updates, for the session. open: call it when the layers are described. */
DDP_LIB ddp_status ddp__sending_open(ddp_ctx *d, ddp_error *err);
DDP_LIB int ddp__average_in_flight(const ddp_ctx *d, int layer);
DDP_LIB void ddp__forward_began(ddp_ctx *d, int layer);
DDP_LIB int ddp__forward_all(const ddp_ctx *d); /* every layer had its forward_begin in this step */
DDP_LIB void ddp__skipped_set(ddp_ctx *d, int layer, int skipped); /* no micro-batch had a gradient */
DDP_LIB int ddp__left_out(const ddp_ctx *d, int layer);
DDP_LIB void ddp__updates_set(ddp_ctx *d, int layer, long updates);
DDP_LIB float *ddp__base_of(const ddp_ctx *d, int layer);
DDP_LIB double ddp__divergence_of(const ddp_ctx *d, int layer);
