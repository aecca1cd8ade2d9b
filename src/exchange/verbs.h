/* Declares the calls that a strategy may make in its events: messages, averages, updates, arithmetic, its own
 * state, and queries. */
#pragma once

#include "comm/message.h"
#include "config/config.h"
#include "config/strategy.h"

struct ddp_step_info;
struct ddp_stats;
struct ddp_sites;

/* ---- calls for events ----
 *
 * Each call with a ddp_status as its result returns 0 on success; on failure the context stores the error.
 * Outside of a strategy's events they return DDP_USAGE. Arrays are in the memory of the layers' device. Only
 * ddp_keep allocates memory. */

/* ddp_post - posts a message; *ticket identifies it. m and its lists are copied; the message owns its memory
 * until it is held. If sites are set, averages of whole groups with m->mean are hierarchical.
 *
 * ddp_hold - makes later work on the layers' memory wait until the message is done (on a device without
 * waiting in this call), and triggers its arrived event. layer: for the statistics, or DDP_NO_LAYER. Every
 * message must be held, at the latest in the event `wait`.
 *
 * ddp_hold_input - the same for m->from only, if m->to is other memory.
 *
 * ddp_is_done - returns 1 if ddp_hold would not wait. */
DDP_API int ddp_post(ddp_ctx *d, const ddp_message *m, long *ticket);
DDP_API int ddp_hold(ddp_ctx *d, long ticket, int layer);
DDP_API int ddp_hold_input(ddp_ctx *d, long ticket);
DDP_API int ddp_is_done(ddp_ctx *d, long ticket);

/* ddp_average - posts the average of a layer over its group, with the coding of the wire: parameters with
 * gradients, buffers, and the optimizer's state if average_state is set. filler 1: the average fills idle
 * time and does not count in the hidden share.
 *
 * ddp_average_parts - the same for some of the layer's ddp_parts_of parts, selected by `takes`, as one
 * message. A part is an equal number of the layer's parameters with gradients, in order, with their optimizer
 * state; the last part includes the buffers.
 *
 * ddp_average_hold - holds the average. Does nothing if none is in flight.
 *
 * ddp_average_exact - averages the layer as float32, and holds the average at once. */
DDP_API int ddp_average(ddp_ctx *d, int layer, int priority, int filler);
DDP_API int ddp_average_parts(ddp_ctx *d, int layer, const unsigned char *takes, int priority, int filler);
DDP_API int ddp_average_hold(ddp_ctx *d, int layer);
DDP_API int ddp_average_exact(ddp_ctx *d, int layer);

/* ddp_update_layer - applies the optimizer to a layer. from NULL: uses the layer's own gradients and zeroes
 * them. Otherwise uses `from`, an array of as many floats; neither it nor the layer's own gradients change.
 *
 * ddp_update_late - the same with learning rate `rate`: for a gradient of an earlier step, the ddp_rate of
 * that step.
 *
 * ddp_update_copy - applies the update to a copy of the layer's parameters and of its state (NULL: there is
 * no state). The layer does not change. */
DDP_API int ddp_update_layer(ddp_ctx *d, int layer, const float *from);
DDP_API int ddp_update_late(ddp_ctx *d, int layer, const float *from, float rate);
DDP_API int ddp_update_copy(ddp_ctx *d, int layer, float *params, float *state, const float *from,
                            float rate);

/* ddp_clip - scales all gradients to ddp_config.clip_norm, if it is set. */
DDP_API int ddp_clip(ddp_ctx *d);

/* ddp_no_gradient - returns 1 if x[0..n-1] is the gradient of a layer that every rank of an average skipped
 * (ddp_skip), which no update may use. ddp_update_layer, _late and _copy do not change such a layer. x is in
 * host memory. A skipped gradient is -0.0 in every value: a sum of floats is -0.0 only if all its terms
 * are. */
DDP_API int ddp_no_gradient(const float *x, size_t n);

/* Arithmetic on arrays of n floats.
 *   ddp_axpy      y += a x
 *   ddp_copy      y = x
 *   ddp_scale     x *= a
 *   ddp_set       x = a
 *   ddp_norm2     *out = sum of x^2, added up in double; waits for the device
 *   ddp_download  y = x with y in host memory; waits for the device
 *   ddp_upload    y = x with x in host memory; x may change when the call returns */
DDP_API int ddp_axpy(ddp_ctx *d, float *y, const float *x, size_t n, float a);
DDP_API int ddp_copy(ddp_ctx *d, float *y, const float *x, size_t n);
DDP_API int ddp_scale(ddp_ctx *d, float *x, size_t n, float a);
DDP_API int ddp_set(ddp_ctx *d, float *x, size_t n, float a);
DDP_API int ddp_norm2(ddp_ctx *d, const float *x, size_t n, double *out);
DDP_API int ddp_download(ddp_ctx *d, float *y, const float *x, size_t n);
DDP_API int ddp_upload(ddp_ctx *d, float *y, const float *x, size_t n);

/* Calls for serve. Those that return int return 0 or a ddp_status, unless stated otherwise.
 *   ddp_server_post   as ddp_post, from any thread
 *   ddp_server_done   returns 1 if the message is done
 *   ddp_server_wait   waits until one of n messages is done, or until another thread calls ddp_server_wake
 *   ddp_server_fail   ends the run with this error message; returns code
 *   ddp_server_set    sets *flag, on the thread of serve
 *   ddp_server_await  waits until *flag is nonzero, on the worker's thread
 *   ddp_update_apart  applies update number `step` (from 0) of a layer, with a learning rate, to memory of
 *                     the caller on the host: as many params and grads as the layer has gradients, and state
 *                     of the optimizer's size; any thread */
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

/* ddp_late_apply - merges a delayed result (n floats) into a target that was updated meanwhile.
 *   DDP_LATE_MIX         target = f target + (1 - f) late; f 0: the target is overwritten
 *   DDP_LATE_OWN         target = late - f own: applies the worker's delta `own`, which `late` does not
 *                        include, with weight f
 *   DDP_LATE_COMPENSATE  late += f late^2 (target - own): corrects a gradient at the point `own` to the point
 *                        `target` (DC-ASGD, CoCoDC) */
typedef enum ddp_late { DDP_LATE_MIX, DDP_LATE_OWN, DDP_LATE_COMPENSATE } ddp_late;
DDP_API int ddp_late_apply(ddp_ctx *d, float *target, float *late, const float *own, size_t n, ddp_late rule,
                           float f);

/* ddp_split - moves the representable part of x[0..n-1] in a coding to out; x keeps the exact residual. For
 * codings in blocks, n is a multiple of the block, or reaches the end of the array. Any thread. Returns
 * DDP_NUMERIC if a value has no code. */
DDP_API ddp_status ddp_split(ddp_coding coding, float *x, float *out, size_t n, ddp_error *err);

/* ddp_keep - allocates n floats for the strategy, zeroed, on the layers' device until ddp_close. Call it in
 * the event start. They are saved in checkpoints and sent to joining workers. layer: the layer that they
 * belong to, or DDP_NO_LAYER. Returns NULL on failure; the context has the error.
 *
 * equal describes them; 0: each rank has its own values.
 *   1                   equal on all ranks between two steps
 *   DDP_KEPT_DRAINED    equal on all ranks when no work is deferred. With any value other than 1 and this
 *                       one, a checkpoint cannot be loaded in another world
 *   + DDP_KEPT_HERE     in host memory, which the program may access
 *   + DDP_KEPT_NOWHERE  workspace: neither saved nor sent
 *   + DDP_KEPT_TOLD     with 0: a joining worker receives the values of a member when it enters */
enum { DDP_KEPT_DRAINED = 2, DDP_KEPT_HERE = 4, DDP_KEPT_NOWHERE = 8, DDP_KEPT_TOLD = 16 };
DDP_API float *ddp_keep(ddp_ctx *d, int layer, const char *name, size_t n, int equal);

/* ddp_complain - stores an error of the strategy and returns its code. ddp_explain - appends text to the
 * context's error, whose code does not change. ddp_say - logs a line. */
DDP_API int ddp_complain(ddp_ctx *d, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);
DDP_API void ddp_explain(ddp_ctx *d, const char *text);
DDP_API void ddp_say(ddp_ctx *d, ddp_log_level level, const char *fmt, ...) DDP__PRINTF(3, 4);

/* Queries.
 *   ddp_layers         number of layers
 *   ddp_name_of        name of a layer
 *   ddp_parts_of       number of parts that ddp_config.average.split_params makes of a layer, 1 if none
 *   ddp_gradients_of   gradients of a layer, as a list for messages
 *   ddp_parameters_of  all arrays that averaging the layer transfers
 *   ddp_trained_of     the parameters with gradients among them
 *   ddp_others_of      the others: buffers, and the optimizer state that is averaged in this period
 *                      (state_period); valid until the next call
 *   ddp_group_of       group of a layer
 *   ddp_group_size     live workers of a group
 *   ddp_blocks_of      number of blocks of an all-gather over a group; *own: the block of this rank
 *   ddp_sites_of       sites, if averages are hierarchical; else NULL. With a single site only `members` is
 *                      set; elastic worlds have no groups
 *   ddp_segment_of     number of n values that this rank sums, and in *from the first of them
 *                      (ddp_message.owner; not in elastic worlds)
 *   ddp_settings       settings of the context
 *   ddp_rate           current learning rate
 *   ddp_coding_of      coding of the wire
 *   ddp_link_of        link of a layer's messages
 *   ddp_residual_of    quantisation residual of a layer, one float per gradient; NULL without int8 blocks
 *   ddp_has_forward    1 if layers have their ddp_forward_begin in this step, or had it in the last one */
DDP_API int ddp_layers(const ddp_ctx *d);
DDP_API const char *ddp_name_of(const ddp_ctx *d, int layer);
DDP_API int ddp_parts_of(const ddp_ctx *d, int layer);
DDP_API const ddp_piece *ddp_gradients_of(const ddp_ctx *d, int layer, int *count);
DDP_API const ddp_piece *ddp_parameters_of(const ddp_ctx *d, int layer, int *count);
DDP_API const ddp_piece *ddp_trained_of(const ddp_ctx *d, int layer, int *count);
DDP_API float *ddp_state_of(const ddp_ctx *d, int layer, size_t *count); /* optimizer state of a layer */
DDP_API long ddp_updates_of(const ddp_ctx *d, int layer);                /* number of updates so far */
/* ddp_computed_s - compute time of this step so far, in seconds. ddp_nominal_compute_s - compute time of a
 * step estimated from FLOPs: 1e-10 s per FLOP of the forward pass, and twice as much for the backward pass.
 * ddp_nominal_rate - bytes per second of this rank's link by ddp_config.net (default: 125e6). */
DDP_API double ddp_computed_s(const ddp_ctx *d);
DDP_API double ddp_nominal_compute_s(const ddp_ctx *d);
DDP_API double ddp_nominal_rate(const ddp_ctx *d);

/* ddp_described_rate - bytes per second of a rank's link by ddp_config.net, 0: not known; *delay_s: one-way
 * delay in seconds. */
DDP_API double ddp_described_rate(const ddp_ctx *d, double *delay_s);
DDP_API const struct ddp_step_info *
ddp_reported(const ddp_ctx *d);                     /* values reported for this step, else 0; the loss is
                                                       the last one reported */
DDP_API struct ddp_stats *ddp_stats_of(ddp_ctx *d); /* for the statistics that a strategy adds */
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

/* ddp_blob_new - allocates a plan of `size` bytes, zeroed; bytes is NULL if memory is short. At most 64 KiB +
 * 16 x layers x (period + 16) bytes. The library frees it, or ddp_blob_free. */
DDP_API ddp_blob ddp_blob_new(size_t size);
DDP_API void ddp_blob_free(ddp_blob *b);
