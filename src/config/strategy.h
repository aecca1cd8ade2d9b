/* A strategy decides, at each event of a step, what is updated and what is sent. Each built-in strategy
 * (src/strategy) fills a ddp_strategy_ops. ddp_config.own_strategy takes yours
 * (docs/howto/custom-strategy.md). */
#pragma once

#include "base/status.h"

typedef struct ddp_ctx ddp_ctx;
typedef struct ddp_config ddp_config; /* config/config.h */

struct ddp_plan;
struct ddp_stats;
struct ddp_profile;

/* What is averaged: decides what sync_all does, what a newcomer is given, how int8 blocks are made. */
typedef enum ddp_averages {
    DDP_AVERAGES_GRADIENTS,  /* parameters are equal on all ranks after every step */
    DDP_AVERAGES_PARAMETERS, /* they part, and are averaged now and then */
    DDP_AVERAGES_CHANGES     /* what they changed by since the last average is */
} ddp_averages;

/* ddp_strategy_ops.traits: what it needs, and which settings it can do with (DDP_WITH_). */
enum {
    DDP_NEEDS_FORWARD = 1 << 0, /* ddp_forward_begin of every layer in every step */
    DDP_NEEDS_SERVERS = 1 << 1, /* push, serve, pull and answer */
    DDP_NEEDS_TWO_LINKS = 1 << 2,
    DDP_CHOOSES_LINKS = 1 << 3, /* its messages say which link they take */
    DDP_OUT_OF_STEP = 1 << 4,   /* ranks may be some steps apart: run asks nothing of all of them between
                                   steps */
    DDP_WITH_CLIP = 1 << 8,     /* clip_norm: it updates when all gradients are whole */
    DDP_WITH_BF16 = 1 << 9,     /* wire: it posts what it averages with ddp_average or ddp_coding_of */
    DDP_WITH_INT8 = 1 << 10,
    DDP_WITH_GROUPS = 1 << 11,  /* layers of ddp_group */
    DDP_WITH_SITES = 1 << 12,   /* averages in two levels */
    DDP_WITH_ELASTIC = 1 << 13, /* min_world: messages that survive a loss, state that a newcomer gets */
    DDP_WITH_DEVICE = 1 << 14,  /* a backend: it reaches memory through the verbs below alone */
    DDP_WITH_FIRST = 1 << 18,   /* average_first, own updates: all it averages is whole before step_end
                                   updates */
    DDP_WITH_ALL = 0x47f00,
    DDP_WITH_INT4 = 1 << 15, /* wire int4, e3m0: it averages changes, and posts them with ddp_coding_of */
    DDP_WITH_TOPK = 1 << 16, /* wire topk: it averages changes, and packs them itself */
    DDP_WITH_PARTS = 1 << 17 /* split_params: it averages the parts of a layer in steps of their own */
};

/* One transfer of a schedule, for predictions and for the choice between two links: the gradients or
 * parameters of layers first down to last, in step `step` of the period. */
typedef struct ddp_transfer {
    int step, first, last;
    int behind; /* it may begin when the backward of that layer is over; -1: when the step's is */
} ddp_transfer;

/* A plan as its strategy packs it: run shares, hashes, saves it and makes it again when a link drifts. */
typedef struct ddp_blob {
    unsigned char *bytes; /* of ddp_blob_new */
    size_t size;
} ddp_blob;

/* Events come on the context's thread, inside the call that they are named after. self: self_bytes of
 * memory, zero at first. Each returns 0, or a ddp_status: the context fails with the error that a verb
 * noted or ddp_complain wrote. NULL where an event needs no answer; backward_end or step_end is needed. */
typedef struct ddp_strategy_ops {
    const char *name; /* the same on all ranks; part of a checkpoint */
    ddp_averages averages;
    unsigned traits;
    size_t self_bytes;
    /* The layers are known and equal on all ranks: declares state (ddp_keep), makes lists. */
    int (*start)(ddp_ctx *d, void *self);
    /* Before the layer is used: its parameters have to be whole. */
    int (*forward_begin)(ddp_ctx *d, void *self, int layer);
    /* Its gradient is complete (the mean of the micro-batches). */
    int (*backward_end)(ddp_ctx *d, void *self, int layer);
    /* Every layer has had its backward_end. forward: all had their forward_begin in this step. */
    int (*step_end)(ddp_ctx *d, void *self, int forward);
    /* A message of this strategy is done: once for each, at the next hook or when it is held. */
    int (*arrived)(ddp_ctx *d, void *self, long ticket);
    /* Finishes what it posted, averages nothing more: ddp_wait, checkpoints, joins, new plans. Averages
     * of layers (ddp_average) are held behind it. */
    int (*wait)(ddp_ctx *d, void *self);
    /* Sends and applies what it put off, after wait: before sync_all and another plan. NULL: it puts nothing
     * off. */
    int (*drain)(ddp_ctx *d, void *self);
    /* Every rank leaves with equal parameters; NULL: they are averaged (buffers alone where gradients
     * are). Nothing is in flight. */
    int (*sync_all)(ddp_ctx *d, void *self);
    /* ddp_share: the program has replaced the parameters, which are equal on all ranks now; nothing is in
     * flight. The strategy begins from them. NULL: it stores nothing that depends on them. */
    int (*restart)(ddp_ctx *d, void *self);
    /* Workers were lost or have come: ddp_live. Between two steps, nothing in flight. */
    int (*members_changed)(ddp_ctx *d, void *self);
    /* Where ddp_config.server.count is set, on the ranks that serve, once start is over: in ddp_serve, or on
     * a thread of its own beside the worker's. It may call ddp_server_ and ddp_update_apart alone. Returns
     * when all workers have left, or DDP_SERVE_SAVE: when they want a checkpoint, after which it comes
     * again. */
    int (*serve)(ddp_ctx *d, void *self);
    /* On a worker: tells its servers that a checkpoint comes, or (leaves) that its context closes without
     * error. */
    int (*tell_servers)(ddp_ctx *d, void *self, int leaves);
    /* Before anything else: what of this table depends on the settings, and the defaults of the strategy's
     * own ones. *err says why not. */
    ddp_status (*settle)(struct ddp_strategy_ops *ops, ddp_config *c, ddp_error *err);
    /* The context has an error, also where start never came: ddp_explain adds what the strategy knows of
     * it. */
    void (*failed)(ddp_ctx *d, void *self);
    /* Frees what it has; also where start never came. */
    void (*close)(ddp_ctx *d, void *self);

    /* A plan, all NULL where it follows none. make: from a profile, on the first rank of those who share it;
     * measured 0: from equal layers and links as they are given, on every rank. take: what all ranks have
     * now; nothing is in flight. fits: 0 if take would accept it, else ddp_complain; changes nothing, and is
     * called before a checkpoint changes parameters. adopt: from a ddp_plan (ddp_plan_adopt, plan_path).
     * view: it as one, or NULL. whole: the plan of a model that is cut into stages, from a profile of all its
     * layers; p->params are those with gradients. Each stage then adopts its rows. NULL: each stage makes a
     * plan of its own layers. *out is freed by the caller. */
    int (*plan_make)(ddp_ctx *d, void *self, const struct ddp_profile *p, int measured, ddp_blob *out);
    int (*plan_whole)(ddp_ctx *d, void *self, const struct ddp_profile *p, struct ddp_plan *out);
    int (*plan_adopt)(ddp_ctx *d, void *self, const struct ddp_plan *plan, ddp_blob *out);
    int (*plan_take)(ddp_ctx *d, void *self, const ddp_blob *plan, const struct ddp_profile *p);
    int (*plan_fits)(ddp_ctx *d, void *self, const ddp_blob *plan);
    const struct ddp_plan *(*plan_view)(const void *self);
    /* 1: what it planned by is not what it is any more, asked every few periods on the first rank. NULL: the
     * link alone decides. */
    int (*plan_stale)(ddp_ctx *d, const void *self);
    /* The exposed part of a period's transfers in seconds, by the plan's own model. NULL: predicted from
     * `transfers`. */
    double (*plan_exposed)(const void *self);
    /* What is sent in one period (*period steps), into out[room], in the order in which it is posted; how
     * many. NULL: nothing can be predicted. */
    int (*transfers)(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room);
} ddp_strategy_ops;
