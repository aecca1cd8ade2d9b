/* What a strategy may call in its events: messages, averages, updates, arithmetic, state of its own, and what
 * it can read. */
#pragma once

#include "comm/message.h"
#include "config/config.h"
#include "config/strategy.h"

struct ddp_step_info;
struct ddp_stats;
struct ddp_sites;

/* ---- what an event may call ----
 *
 * Each returns 0, or a ddp_status and the context has the error; outside of a strategy's events
 * DDP_USAGE. Memory is that of the layers' device. Nothing is allocated but by ddp_keep. */

/* ddp_post - posts a message; *ticket names it. m and its lists are copied, the memory is the message's
 *   until it is held. Averages of whole groups with m->mean go in two levels where sites are set.
 * ddp_hold - what is done from here on with the layers' memory waits until the message is done (on a
 *   device without waiting here), and its arrived event comes. layer: for the accounts, or DDP_NO_LAYER.
 *   Every message has to be held, at the latest in `wait`.
 * ddp_hold_input - the same of m->from alone, where m->to is another memory.
 * ddp_is_done - 1 if ddp_hold would not wait. */
DDP_API int ddp_post(ddp_ctx *d, const ddp_message *m, long *ticket);
DDP_API int ddp_hold(ddp_ctx *d, long ticket, int layer);
DDP_API int ddp_hold_input(ddp_ctx *d, long ticket);
DDP_API int ddp_is_done(ddp_ctx *d, long ticket);

/* ddp_average - posts the average of a layer over its group, with the wire's coding: parameters with
 *   gradients, buffers, and the optimizer's state where average_state is set. filler: 1 = it fills idle
 *   time and is left out of the hidden share. ddp_average_hold - holds it, a no-op where none is in flight.
 *   ddp_average_exact - the same as float32, held at once. ddp_average_parts - the same of those of the
 *   layer's ddp_parts_of parts that takes says, as one message: equal numbers of its parameters with
 *   gradients in their order, each part with its optimizer state, the last with the buffers too.
 * ddp_update_layer - applies the optimizer to a layer: with its own gradients (from NULL), which are zeroed,
 * or
 *   from an array of as many floats, which are left, as are the layer's own. ddp_update_late - the same with
 *   the learning rate of the gradient's own step (ddp_rate then) where that is over. ddp_update_copy - what
 *   that would make of a copy of the layer's parameters and of its state (NULL: it has none); the layer is
 *   left as it is.
 * ddp_clip - scales all gradients to ddp_config.clip_norm, if it is set.
 * ddp_no_gradient - 1: x[0..n-1] is the gradient of a layer that every rank of an average skipped (ddp_skip),
 * which no
 *   update may use; ddp_update_layer, _late and _copy leave such a layer as it is. x is in this machine's
 *   memory. A skipped gradient is -0.0 everywhere: so is a sum of floats whose terms all are, and no
 *   other. */
DDP_API int ddp_average(ddp_ctx *d, int layer, int priority, int filler);
DDP_API int ddp_average_parts(ddp_ctx *d, int layer, const unsigned char *takes, int priority, int filler);
DDP_API int ddp_average_hold(ddp_ctx *d, int layer);
DDP_API int ddp_average_exact(ddp_ctx *d, int layer);
DDP_API int ddp_update_layer(ddp_ctx *d, int layer, const float *from);
DDP_API int ddp_update_late(ddp_ctx *d, int layer, const float *from, float rate);
DDP_API int ddp_update_copy(ddp_ctx *d, int layer, float *params, float *state, const float *from,
                            float rate);
DDP_API int ddp_clip(ddp_ctx *d);
DDP_API int ddp_no_gradient(const float *x, size_t n);

/* y += a x; y = x; x *= a; x = a; *out = sum of x^2, added up in double. Arrays of n floats; ddp_norm2
 * waits for the device. ddp_download, ddp_upload - y = x where y or x is in this machine's memory; the former
 * waits for the device, the latter's x may change when it returns. */
DDP_API int ddp_axpy(ddp_ctx *d, float *y, const float *x, size_t n, float a);
DDP_API int ddp_copy(ddp_ctx *d, float *y, const float *x, size_t n);
DDP_API int ddp_scale(ddp_ctx *d, float *x, size_t n, float a);
DDP_API int ddp_set(ddp_ctx *d, float *x, size_t n, float a);
DDP_API int ddp_norm2(ddp_ctx *d, const float *x, size_t n, double *out);
DDP_API int ddp_download(ddp_ctx *d, float *y, const float *x, size_t n);
DDP_API int ddp_upload(ddp_ctx *d, float *y, const float *x, size_t n);

/* What serve may call; 0, or a ddp_status. post: as ddp_post, from any thread; done: 1 if it is; wait: until
 * one of n messages is done, or another thread calls wake. ddp_server_await - on the worker's thread: until
 * *flag, which serve sets with ddp_server_set, is 1. fail: ends the run with this sentence; returns code.
 * ddp_update_apart - the update number `step` (from 0) of a layer, at a rate, of other memory than its own,
 * in this machine: as many params and grads as it has gradients, state of the optimizer's size; on any
 * thread. */
enum { DDP_SERVE_SAVE = -1 };
DDP_API int ddp_server_post(ddp_ctx *d, const ddp_message *m, long *ticket);
DDP_API int ddp_server_done(ddp_ctx *d, long ticket);
DDP_API int ddp_server_wait(ddp_ctx *d, const long *tickets, int n);
DDP_API void ddp_server_wake(ddp_ctx *d);
DDP_API int ddp_server_fail(ddp_ctx *d, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);
DDP_API void ddp_server_set(ddp_ctx *d, int *flag, int value);
DDP_API int ddp_server_await(ddp_ctx *d, const int *flag);
DDP_API void ddp_update_apart(ddp_ctx *d, int layer, float *params, const float *grads, float *state,
                              long step, float rate);
/* ddp_late_apply - what arrives late (n floats) becomes part of a target that went on without it.
 *   DDP_LATE_MIX         target = f target + (1 - f) late; f 0: it is overwritten
 *   DDP_LATE_OWN         target = late - f own: late is without what this worker did meanwhile, and counts it
 *                        so
 *   DDP_LATE_COMPENSATE  late += f late^2 (target - own): a gradient of the point `own`, at target (DC-ASGD,
 *                        CoCoDC) */
typedef enum ddp_late { DDP_LATE_MIX, DDP_LATE_OWN, DDP_LATE_COMPENSATE } ddp_late;
DDP_API int ddp_late_apply(ddp_ctx *d, float *target, float *late, const float *own, size_t n, ddp_late rule,
                           float f);

/* ddp_split - moves what a coding can say of x[0..n-1] to out; x keeps the rest, exactly. Of blocks n is a
 * multiple, or
 *   the end. Any thread. DDP_NUMERIC where a value has no code. */
DDP_API ddp_status ddp_split(ddp_coding coding, float *x, float *out, size_t n, ddp_error *err);

/* ddp_keep - in start: n floats of the strategy's own, zero, on the layers' device until ddp_close;
 *   saved with checkpoints, given to newcomers, counted. layer: that it belongs to, or DDP_NO_LAYER.
 *   equal: 1 = the same on all ranks between two steps; DDP_KEPT_DRAINED = where nothing is put off: with
 *   anything else a checkpoint goes to no other world. Added to it: DDP_KEPT_HERE = in this machine's memory,
 *   which the program may touch; DDP_KEPT_NOWHERE = work space, neither saved nor given; DDP_KEPT_TOLD = with
 *   0: each rank has its own, and a joining worker receives a member's when it enters. NULL: the context has
 *   the error.
 * ddp_complain - notes an error of the strategy's own and returns its code. ddp_explain - adds what it knows
 * to the
 *   context's error, which stays the code it is. ddp_say - a line for the log. */
enum { DDP_KEPT_DRAINED = 2, DDP_KEPT_HERE = 4, DDP_KEPT_NOWHERE = 8, DDP_KEPT_TOLD = 16 };
DDP_API float *ddp_keep(ddp_ctx *d, int layer, const char *name, size_t n, int equal);
DDP_API int ddp_complain(ddp_ctx *d, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);
DDP_API void ddp_explain(ddp_ctx *d, const char *text);
DDP_API void ddp_say(ddp_ctx *d, ddp_log_level level, const char *fmt, ...) DDP__PRINTF(3, 4);

/* Reading: layers and their names; the parts that ddp_config.average.split_params makes of one, 1 if none; a
 * layer's memory, as lists that messages take (gradients; what averaging moves; of that the parameters with
 * gradients, and the rest: buffers, and the averaged optimizer state that is due in this period
 * (state_period), valid until the next call) and its group; live workers of a group; the blocks of an
 * all-gather over it, and which is this rank's; where averages go in two levels, how this rank lies in sites
 * (one of all ranks: members alone says so; no groups in elastic worlds), else NULL; how many of n values
 * this rank sums and where they begin (ddp_message.owner; not in elastic worlds); the settings and the
 * learning rate in force; the wire's coding and the link for a message of that layer, what its rounding cut
 * off (one float for each gradient, NULL without int8 blocks); whether layers have their ddp_forward_begin in
 * this step, or had it in the last. */
DDP_API int ddp_layers(const ddp_ctx *d);
DDP_API const char *ddp_name_of(const ddp_ctx *d, int layer);
DDP_API int ddp_parts_of(const ddp_ctx *d, int layer);
DDP_API const ddp_piece *ddp_gradients_of(const ddp_ctx *d, int layer, int *count);
DDP_API const ddp_piece *ddp_parameters_of(const ddp_ctx *d, int layer, int *count);
DDP_API const ddp_piece *ddp_trained_of(const ddp_ctx *d, int layer, int *count); /* what the gradients are
                                                                                     of */
DDP_API float *ddp_state_of(const ddp_ctx *d, int layer, size_t *count);          /* of the optimizer */
DDP_API long ddp_updates_of(const ddp_ctx *d, int layer);                         /* so far */
/* Seconds of this step so far that were computing; of any step by FLOPs (1e-10 s each); bytes a second of
 * this rank's link by ddp_config.net, 125e6 without. */
DDP_API double ddp_computed_s(const ddp_ctx *d);
DDP_API double ddp_nominal_compute_s(const ddp_ctx *d);
DDP_API double ddp_nominal_rate(const ddp_ctx *d);
/* By ddp_config.net: bytes a second of a rank's link, 0 = not known, and *delay_s one way. */
DDP_API double ddp_described_rate(const ddp_ctx *d, double *delay_s);
DDP_API const struct ddp_step_info *
ddp_reported(const ddp_ctx *d);                     /* of this step, zero where nothing was; the loss
                                                                is the last one that was told */
DDP_API struct ddp_stats *ddp_stats_of(ddp_ctx *d); /* for the figures of a strategy's own */
DDP_API const ddp_piece *ddp_others_of(const ddp_ctx *d, int layer, int *count);
DDP_API int ddp_group_of(const ddp_ctx *d, int layer);
DDP_API int ddp_group_size(const ddp_ctx *d, int group);
DDP_API int ddp_blocks_of(const ddp_ctx *d, int group, int *own);
DDP_API const struct ddp_sites *ddp_sites_of(const ddp_ctx *d);
DDP_API size_t ddp_segment_of(const ddp_ctx *d, int group, ddp_coding coding, size_t n, size_t *from);
DDP_API const ddp_config *ddp_settings(const ddp_ctx *d);
DDP_API float ddp_rate(const ddp_ctx *d);
DDP_API ddp_coding ddp_coding_of(const ddp_ctx *d);
DDP_API int ddp_link_of(const ddp_ctx *d, int layer);
DDP_API float *ddp_residual_of(const ddp_ctx *d, int layer);
DDP_API int ddp_has_forward(const ddp_ctx *d);

/* A plan of size bytes, zero; NULL bytes when memory is short. At most 64 KiB and 16 x layers x (period +
 * 16) bytes. Freed by run, or ddp_blob_free. */
DDP_API ddp_blob ddp_blob_new(size_t size);
DDP_API void ddp_blob_free(ddp_blob *b);
