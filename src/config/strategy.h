/* A strategy decides, at each event of a step, which layers are updated and which are sent. Each built-in
 * strategy (src/strategy) fills a ddp_strategy_ops. To use your own, set ddp_config.own_strategy
 * (docs/howto/custom-strategy.md). */
#pragma once

#include "base/status.h"

typedef struct ddp_ctx ddp_ctx;
typedef struct ddp_config ddp_config; /* config/config.h */

struct ddp_plan;
struct ddp_stats;
struct ddp_profile;

/* The averaged quantity. It determines the work of sync_all, the state of a joining worker, and the values in
 * int8 blocks. */
typedef enum ddp_averages {
    DDP_AVERAGES_GRADIENTS,  /* gradients. Parameters are equal on all ranks after every step. */
    DDP_AVERAGES_PARAMETERS, /* parameters, which differ between averages */
    DDP_AVERAGES_CHANGES     /* parameter deltas since the last average */
} ddp_averages;

/* ddp_strategy_ops.traits: requirements (DDP_NEEDS_), and supported settings (DDP_WITH_). */
enum {
    DDP_NEEDS_FORWARD = 1 << 0, /* the program calls ddp_forward_begin for every layer in every step */
    DDP_NEEDS_SERVERS = 1 << 1, /* the verbs push, serve, pull and answer */
    DDP_NEEDS_TWO_LINKS = 1 << 2,
    DDP_CHOOSES_LINKS = 1 << 3, /* each of its messages sets its link */
    DDP_OUT_OF_STEP = 1 << 4,   /* ranks may be several steps apart, so the session does not synchronise them
                                 * between steps */
    DDP_WITH_CLIP = 1 << 8,     /* clip_norm: it updates when all gradients are complete */
    DDP_WITH_BF16 = 1 << 9,     /* wire: it posts averages with ddp_average or ddp_coding_of */
    DDP_WITH_INT8 = 1 << 10,
    DDP_WITH_GROUPS = 1 << 11,  /* layers with a ddp_group */
    DDP_WITH_SITES = 1 << 12,   /* hierarchical averages */
    DDP_WITH_ELASTIC = 1 << 13, /* min_world: its messages survive a loss, and a joining worker can receive
                                 * its state */
    DDP_WITH_DEVICE = 1 << 14,  /* a backend: it accesses memory only through the verbs below */
    DDP_WITH_FIRST = 1 << 18,   /* average_first, own updates: all averages are complete before step_end
                                 * updates */
    DDP_WITH_ALL = 0x47f00,
    DDP_WITH_INT4 = 1 << 15, /* wire int4, e3m0: it averages deltas, and posts them with ddp_coding_of */
    DDP_WITH_TOPK = 1 << 16, /* wire topk: it averages deltas, and packs them itself */
    DDP_WITH_PARTS = 1 << 17 /* split_params: it averages the parts of a layer in different steps */
};

/* Value of `late` in plan_adapt for a layer that needed no average. */
enum { DDP_ARRIVAL_UNKNOWN = -128 };

/* One transfer of a schedule, for predictions and for the choice between two links: the gradients or
 * parameters of layers first down to last, in step `step` of the period. */
typedef struct ddp_transfer {
    int step, first, last;
    int behind; /* the earliest start: after the backward pass of that layer; -1: after the step's whole
                 * backward pass */
} ddp_transfer;

/* The strategy that an event `choose` has chosen for the rest of the run, with its settings and the figures
 * of the choice. */
typedef struct ddp_chosen {
    int strategy;      /* ddp_strategy, or 0 if nothing was chosen */
    int overlap, wire; /* ddp_overlap, ddp_wire */
    int period;        /* H, or 0 for the setting `period` of the run */
    char name[96];     /* "diloco --overlap stream --period 50" */
    char runner_up
        [96];       /* best candidate of another strategy, or of the same one if there is no other; or "" */
    double seconds; /* predicted seconds until the loss that ssgd has after its steps, */
    double runner_up_s; /* of runner_up, or 0, */
    double ssgd_s;      /* and of ssgd */
    double step_s;      /* predicted seconds of a step */
    double penalty;     /* predicted relative loss increase after equal steps */
    char reason[400];   /* one sentence */
} ddp_chosen;

/* A packed plan of a strategy. The session broadcasts, hashes and saves it, and requests a new one when a
 * link drifts. */
typedef struct ddp_blob {
    unsigned char *bytes; /* from ddp_blob_new */
    size_t size;
} ddp_blob;

/* Events are called on the context's thread, inside the API call of the same name. self: self_bytes of
 * memory, zeroed before the first event. Each event returns 0, or a ddp_status: then the context fails with
 * the error that a verb recorded or ddp_complain wrote. Events may be NULL, but backward_end or step_end is
 * required. */
typedef struct ddp_strategy_ops {
    const char *name; /* equal on all ranks; stored in checkpoints */
    ddp_averages averages;
    unsigned traits;
    size_t self_bytes;
    /* The layers are known and equal on all ranks. Declare state (ddp_keep) and allocate lists here. */
    int (*start)(ddp_ctx *d, void *self);
    /* Before the layer is used: its parameters must be complete. */
    int (*forward_begin)(ddp_ctx *d, void *self, int layer);
    /* The gradient of the layer is complete (the mean of the micro-batches). */
    int (*backward_end)(ddp_ctx *d, void *self, int layer);
    /* backward_end was called for every layer. forward: forward_begin was called for every layer in this
     * step. */
    int (*step_end)(ddp_ctx *d, void *self, int forward);
    /* A message of this strategy is complete. Called once per message, at the next hook or in ddp_hold. */
    int (*arrived)(ddp_ctx *d, void *self, long ticket);
    /* Complete all posted messages and start no new averages: before ddp_wait returns, and before
     * checkpoints, joins and new plans. The session then waits for the averages of layers (ddp_average). */
    int (*wait)(ddp_ctx *d, void *self);
    /* Send and apply everything that was deferred. Called after wait, before sync_all, another plan, and the
     * entry of a worker, and before ddp_share without a restart. NULL: nothing is deferred. */
    int (*drain)(ddp_ctx *d, void *self);
    /* Make the parameters equal on all ranks. Nothing is in flight. NULL: the parameters are averaged (only
     * the buffers if the strategy averages gradients). */
    int (*sync_all)(ddp_ctx *d, void *self);
    /* ddp_share: the program has replaced the parameters, which are now equal on all ranks. Nothing is in
     * flight. Continue from them. NULL means that no state depends on the parameters. */
    int (*restart)(ddp_ctx *d, void *self);
    /* Workers were lost or have joined (see ddp_live). Called between two steps, with nothing in flight. */
    int (*members_changed)(ddp_ctx *d, void *self);
    /* The loop of a server, if ddp_config.server.count is set: runs after start, inside ddp_serve or on a
     * separate thread of a colocated worker. It may call only ddp_server_ functions and ddp_update_apart.
     * Returns when all workers have left; or returns DDP_SERVE_SAVE when they want a checkpoint, and is
     * called again after it. */
    int (*serve)(ddp_ctx *d, void *self);
    /* On a worker: notify its servers that a checkpoint follows, or (leaves 1) that its context closes
     * without an error. */
    int (*tell_servers)(ddp_ctx *d, void *self, int leaves);
    /* Called before everything else. Set members of this table that depend on the settings, and defaults of
     * the strategy's own settings. On failure, write the reason to *err. */
    ddp_status (*settle)(struct ddp_strategy_ops *ops, ddp_config *c, ddp_error *err);
    /* The context has failed, possibly before start. ddp_explain can add what the strategy knows about the
     * error. */
    void (*failed)(ddp_ctx *d, void *self);
    /* Free all memory; also called if start was not called. */
    void (*close)(ddp_ctx *d, void *self);

    /* Plans. All NULL if the strategy does not use one. The caller frees *out.
     *   make   makes a plan from a profile, on the first rank of those that share it. measured 0: from
     *          equal layers and the configured links, on every rank
     *   whole  makes the plan of a model that is cut into stages, from a profile of all its layers;
     *          p->params counts parameters with gradients. Each stage then adopts its rows. NULL: each
     *          stage makes a plan of its own layers
     *   adopt  makes a plan from a ddp_plan (ddp_plan_adopt, plan_path)
     *   take   uses the plan, which all ranks have now; nothing is in flight
     *   fits   returns 0 if take would accept the plan, else calls ddp_complain. It changes nothing, and is
     *          called before a checkpoint changes parameters
     *   view   returns the plan in use as a ddp_plan, or NULL */
    int (*plan_make)(ddp_ctx *d, void *self, const struct ddp_profile *p, int measured, ddp_blob *out);
    int (*plan_whole)(ddp_ctx *d, void *self, const struct ddp_profile *p, struct ddp_plan *out);
    int (*plan_adopt)(ddp_ctx *d, void *self, const struct ddp_plan *plan, ddp_blob *out);
    int (*plan_take)(ddp_ctx *d, void *self, const ddp_blob *plan, const struct ddp_profile *p);
    int (*plan_fits)(ddp_ctx *d, void *self, const ddp_blob *plan);
    const struct ddp_plan *(*plan_view)(const void *self);
    /* Returns 1 if the plan's assumptions no longer hold. Called every few periods on the first rank. NULL:
     * only the drift of the link decides. */
    int (*plan_stale)(ddp_ctx *d, const void *self);
    /* Returns the exposed time of a period's transfers in seconds, by the plan's own model. NULL: predicted
     * from `transfers`. */
    double (*plan_exposed)(const void *self);
    /* Writes the transfers of one period (*period steps) to out[room], in the order in which they are posted,
     * and returns their number. NULL means that no prediction is possible. */
    int (*transfers)(ddp_ctx *d, void *self, int *period, ddp_transfer *out, int room);
    /* Moves the steps in which averages of layers are needed, in the plan in use and in *plan, the same plan
     * in the strategy's format, whose size must not change. Called on every rank every few periods, with
     * messages in flight. NULL: only a new plan changes them.
     *   late   [layers] equal on all ranks. n > 0: the average of the layer arrived n steps too late for
     *          the slack that it needs; -n: n steps early; DDP_ARRIVAL_UNKNOWN: none was needed
     *   moved  [layers] 0 on entry. Receives the steps by which each layer was moved: later if above 0 */
    int (*plan_adapt)(ddp_ctx *d, void *self, const int *late, ddp_blob *plan, int *moved);
    /* Returns 1 if backward_end of this layer may post a message in the current step, also one of another
     * layer that waits for this call. It changes nothing, and may be called between two steps. A program may
     * then pass the other layers later (ddp_due). NULL: backward_end may post one in every step. */
    int (*due)(const ddp_ctx *d, const void *self, int layer);
    /* Chooses the strategy of the rest of the run. *out is all-zero. Runs on the first rank of those that
     * share the profile; with min_world on every rank, and the choice of the first counts. The session then
     * closes this strategy and starts the chosen one, between two steps. NULL: this strategy remains. */
    int (*choose)(ddp_ctx *d, void *self, const struct ddp_profile *p, ddp_chosen *out);
} ddp_strategy_ops;
