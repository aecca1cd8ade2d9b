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
 * A strategy calls these functions in its events, on the context's thread. Calls that return 0 or the
 * context's first error return DDP_USAGE outside of events. "Layer memory" is the memory of the layers'
 * device, or host memory without a backend. Work on a device runs in the order of the calls. Only ddp_keep
 * allocates memory. */

/* ddp_post - posts a message, which *ticket identifies. m and its lists are copied. The message owns its
 * memory until it is held. If sites are set, averages of whole groups with m->mean are hierarchical. Not in
 * the events start, wait and plan_*. Returns 0 or the context's first error. Errors: DDP_ARG for a field of
 * the message; DDP_USAGE in these events, outside of events, and with too many messages that are not held;
 * DDP_NUMERIC for a value that the coding cannot represent; DDP_MEMORY. */
DDP_API int ddp_post(ddp_ctx *d, const ddp_message *m, long *ticket);

/* ddp_hold - makes later work on the layers' memory wait until the message is done, and triggers its arrived
 * event. On a device the call itself does not wait. layer: the layer that the wait counts for in the
 * statistics, or DDP_NO_LAYER. Every message must be held, at the latest in the event `wait`. Returns 0 or
 * the context's first error. Errors: DDP_USAGE if the message was held before or never posted, and outside of
 * events; DDP_FAILED from the event. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET,
 * DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_hold(ddp_ctx *d, long ticket, int layer);

/* ddp_hold_input - makes later work on m->from wait until the message has read it, if m->to is other memory.
 * The message must still be held. Returns 0 or the context's first error. Errors: DDP_USAGE outside of
 * events. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or
 * DDP_ABORTED. */
DDP_API int ddp_hold_input(ddp_ctx *d, long ticket);

/* ddp_is_done - returns 1 if ddp_hold of this message would not wait, or if there is no such message, else 0.
 * Local. */
DDP_API int ddp_is_done(ddp_ctx *d, long ticket);

/* ddp_average - posts the average of a layer over its group, with the coding of the wire: parameters with
 * gradients, buffers, and the optimizer's state if average_state is set.
 *
 *   priority  among messages in flight the smallest is sent first
 *   filler    1 if the average fills idle time and does not count in the hidden share
 *
 * Hold it with ddp_average_hold. Not in the events start, wait and plan_*. Returns 0 or the context's first
 * error. Errors: DDP_ARG for a layer that does not exist; DDP_USAGE if its last average is not held, in these
 * events, and outside of events; DDP_NUMERIC for a value that the coding cannot represent. */
DDP_API int ddp_average(ddp_ctx *d, int layer, int priority, int filler);

/* ddp_average_parts - posts the average of some parts of a layer as one message. A part is an equal number of
 * the layer's parameters with gradients, in order, with their optimizer state. The last part includes the
 * buffers.
 *
 *   takes            [ddp_parts_of] 1 for each part to average, or NULL for the whole layer
 *   priority, filler  0 or more, the smallest is sent first; 1: the message does not count in the hidden
 *                     share
 *
 * Hold it with ddp_average_hold. Returns 0 or the context's first error. Errors: DDP_ARG for a layer that
 * does not exist; DDP_USAGE if its last average is not held, in the events start, wait and plan_*, and
 * outside of events; DDP_NUMERIC for a value that the coding cannot represent. */
DDP_API int ddp_average_parts(ddp_ctx *d, int layer, const unsigned char *takes, int priority, int filler);

/* ddp_average_hold - makes later work on the layer wait until its average is done. Does nothing if none is in
 * flight. Returns 0 or the context's first error. Errors: DDP_ARG for a layer that does not exist or
 * DDP_USAGE outside of events. Communication may also fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET,
 * DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_average_hold(ddp_ctx *d, int layer);

/* ddp_average_exact - averages the layer over its group as float32, and waits for the result. Collective.
 * Returns 0 or the context's first error. Errors: DDP_ARG for a layer that does not exist; DDP_USAGE in the
 * events start, wait and plan_*, and outside of events. Communication may also fail with DDP_PEER_LOST,
 * DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_average_exact(ddp_ctx *d, int layer);

/* ddp_update_layer - applies the optimizer to a layer with the current learning rate. from NULL: uses the
 * layer's own gradients and zeroes them. Otherwise uses `from`, an array of as many floats, and changes no
 * gradients. Returns 0 or the context's first error. Errors: DDP_ARG for a layer that does not exist or
 * DDP_USAGE outside of events. */
DDP_API int ddp_update_layer(ddp_ctx *d, int layer, const float *from);

/* ddp_update_late - applies the optimizer to a layer with the learning rate `rate`: for a gradient of an
 * earlier step, the ddp_rate of that step. from: [gradients of the layer] floats, unchanged. If it is NULL,
 * the call uses the gradients of the layer and zeroes them. Returns 0 or the context's first error. Errors:
 * DDP_ARG for a layer that does not exist or DDP_USAGE outside of events. */
DDP_API int ddp_update_late(ddp_ctx *d, int layer, const float *from, float rate);

/* ddp_update_copy - applies the update to a copy of the layer's parameters and of its state. The layer does
 * not change.
 *
 *   params  parameters with gradients of the layer, changed in place
 *   state   optimizer state of the layer, changed in place. NULL means that the optimizer has none.
 *   from    gradients, as many as params
 *   rate    learning rate
 *
 * Returns 0 or the context's first error. Errors: DDP_ARG for a layer that does not exist or DDP_USAGE
 * outside of events. */
DDP_API int ddp_update_copy(ddp_ctx *d, int layer, float *params, float *state, const float *from,
                            float rate);

/* ddp_clip - scales all gradients so that their norm is at most ddp_config.clip_norm. If that is 0, it does
 * nothing. Collective if layers are in several groups or stages. Returns 0 or the context's first error.
 * Errors: DDP_USAGE outside of events or DDP_FAILED from the device. Communication may also fail with
 * DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_clip(ddp_ctx *d);

/* ddp_no_gradient - returns 1 if x[0..n-1] is the gradient of a layer that every rank of an average skipped
 * (ddp_skip), which no update may use, else 0. ddp_update_layer, ddp_update_late and ddp_update_copy do not
 * change such a layer. x is in host memory. A skipped gradient is -0.0 in every value: a sum of floats is
 * -0.0 only if all its terms are. Pure and safe from any thread. */
DDP_API int ddp_no_gradient(const float *x, size_t n);

/* ddp_axpy - adds a multiple of x to y: y += a x, on arrays of n floats in layer memory. Returns 0 or the
 * context's first error. Errors: DDP_USAGE outside of events. */
DDP_API int ddp_axpy(ddp_ctx *d, float *y, const float *x, size_t n, float a);

/* ddp_copy - copies n floats from x to y, both in layer memory. Returns 0 or the context's first error.
 * Errors: DDP_USAGE outside of events. */
DDP_API int ddp_copy(ddp_ctx *d, float *y, const float *x, size_t n);

/* ddp_scale - multiplies n floats of layer memory by a number: x *= a. Returns 0 or the context's first
 * error. Errors: DDP_USAGE outside of events. */
DDP_API int ddp_scale(ddp_ctx *d, float *x, size_t n, float a);

/* ddp_set - fills n floats of layer memory with the value a. Returns 0 or the context's first error. Errors:
 * DDP_USAGE outside of events. */
DDP_API int ddp_set(ddp_ctx *d, float *x, size_t n, float a);

/* ddp_norm2 - computes the sum of x^2 over n floats of layer memory, added up in double, in *out. Waits for
 * the device. Returns 0 or the context's first error. Errors: DDP_USAGE outside of events or DDP_FAILED from
 * the device. */
DDP_API int ddp_norm2(ddp_ctx *d, const float *x, size_t n, double *out);

/* ddp_download - copies n floats from layer memory x to host memory y. Waits for the device. Returns 0 or the
 * context's first error. Errors: DDP_USAGE outside of events or DDP_FAILED from the device. */
DDP_API int ddp_download(ddp_ctx *d, float *y, const float *x, size_t n);

/* ddp_upload - copies n floats from host memory x to layer memory y. x may change when the call returns.
 * Returns 0 or the context's first error. Errors: DDP_USAGE outside of events. */
DDP_API int ddp_upload(ddp_ctx *d, float *y, const float *x, size_t n);

/* ---- calls for the event serve, which may run on a thread of its own ---- */

enum {
    DDP_SERVE_SAVE = -1
}; /* returned by serve: the workers want a checkpoint. serve is called again after it. */

/* ddp_server_post - posts a message from the server thread. *ticket identifies the message. m and its lists
 * are copied. Its memory is borrowed until the message is done. Any thread may call it. Returns 0 or a
 * ddp_status. Errors: DDP_ARG for a field of the message; DDP_USAGE in a forked process; the code of the
 * context's failure, such as DDP_PEER_LOST. */
DDP_API int ddp_server_post(ddp_ctx *d, const ddp_message *m, long *ticket);

/* ddp_server_done - returns 1 if the message is done, else 0. Any thread may call it. */
DDP_API int ddp_server_done(ddp_ctx *d, long ticket);

/* ddp_server_wait - waits until any of n messages is done, until another thread calls ddp_server_wake, or
 * until the context fails. tickets: [n] from ddp_server_post. For the thread of serve. Returns 0 or a
 * ddp_status. Errors: DDP_USAGE in a forked process; the code of the context's failure, such as DDP_PEER_LOST
 * or DDP_ABORTED. */
DDP_API int ddp_server_wait(ddp_ctx *d, const long *tickets, int n);

/* ddp_server_wake - makes ddp_server_wait return on the thread of serve, also if that wait has not begun. Any
 * thread may call it. */
DDP_API void ddp_server_wake(ddp_ctx *d);

/* ddp_server_fail - ends the run on all ranks with this code and printf-formatted message. Returns code. Any
 * thread may call it. In a forked process it returns an error without effect. Errors: code or DDP_USAGE in a
 * forked process. */
DDP_API int ddp_server_fail(ddp_ctx *d, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);

/* ddp_server_set - sets *flag to value and wakes ddp_server_await. For the thread of serve. */
DDP_API void ddp_server_set(ddp_ctx *d, int *flag, int value);

/* ddp_server_await - waits until *flag is nonzero, on the worker's thread. Returns 0 or the context's first
 * error. Errors: DDP_FAILED if the server has ended or DDP_USAGE in a forked process. Communication may also
 * fail with DDP_PEER_LOST, DDP_TIMEOUT, DDP_NET, DDP_MISMATCH or DDP_ABORTED. */
DDP_API int ddp_server_await(ddp_ctx *d, const int *flag);

/* ddp_update_apart - applies one update of a layer to memory of the caller on the host.
 *
 *   params, grads  as many floats as the layer has gradients
 *   state          floats of the optimizer's state, or NULL without state
 *   step           number of the update, from 0
 *   rate           learning rate
 *
 * Any thread may call it, for different memory at the same time. */
DDP_API void ddp_update_apart(ddp_ctx *d, int layer, float *params, const float *grads, float *state,
                              long step, float rate);

/* How ddp_late_apply merges a delayed result `late` into `target`.
 *   DDP_LATE_MIX         target = f target + (1 - f) late; f 0: the target is overwritten
 *   DDP_LATE_OWN         target = late - f own: applies the worker's delta `own`, which `late` does not
 *                        include, with weight f
 *   DDP_LATE_COMPENSATE  late += f late^2 (target - own): corrects a gradient at the point `own` to the point
 *                        `target` (DC-ASGD, CoCoDC) */
typedef enum ddp_late { DDP_LATE_MIX, DDP_LATE_OWN, DDP_LATE_COMPENSATE } ddp_late;

/* ddp_late_apply - merges a delayed result (n floats) into a target that was updated meanwhile. Arrays are in
 * layer memory. `own` is used only by the rules that name it. Returns 0 or the context's first error. Errors:
 * DDP_ARG for a rule that does not exist or DDP_USAGE outside of events. */
DDP_API int ddp_late_apply(ddp_ctx *d, float *target, float *late, const float *own, size_t n, ddp_late rule,
                           float f);

/* ddp_split - moves the representable part of x[0..n-1] in a coding to out. x becomes the exact residual.
 * Arrays are in host memory. For codings in blocks, n is a multiple of the block, or reaches the end of the
 * array. Safe from any thread. Errors: DDP_NUMERIC if a value has no code. */
DDP_API ddp_status ddp_split(ddp_coding coding, float *x, float *out, size_t n, ddp_error *err);

/* Bits of `equal` of ddp_keep. */
enum {
    DDP_KEPT_DRAINED = 2,
    DDP_KEPT_HERE = 4,
    DDP_KEPT_NOWHERE = 8,
    DDP_KEPT_TOLD = 16,
    DDP_KEPT_LATER = 32
};

/* ddp_keep - allocates n floats for the strategy, zeroed, on the layers' device until ddp_close. Call it in
 * the event start. They are saved in checkpoints and sent to joining workers.
 *
 *   layer  layer that they belong to, or DDP_NO_LAYER
 *   name   copied. Names the array in a checkpoint
 *   equal  describes the values:
 *     0                   each rank has its own values
 *     1                   equal on all ranks between two steps
 *     DDP_KEPT_DRAINED    equal on all ranks when no work is deferred. With any value other than 1 and this
 *                         one, a checkpoint cannot be loaded in another world
 *     + DDP_KEPT_HERE     in host memory, which the program may access
 *     + DDP_KEPT_NOWHERE  workspace: neither saved nor sent
 *     + DDP_KEPT_TOLD     with 0: a joining worker receives the values of a member when it enters
 *     + DDP_KEPT_LATER    with 1 or DDP_KEPT_TOLD: it may receive them while it trains already. Call
 *                         ddp_kept_wait before each use
 *
 * Returns NULL on failure, with the context's error. Errors: DDP_ARG for the layer, the name or n; DDP_USAGE
 * outside of start; DDP_MEMORY. */
DDP_API float *ddp_keep(ddp_ctx *d, int layer, const char *name, size_t n, int equal);

/* ddp_kept_wait - waits until a joining worker has received the layer's values that were declared with
 * DDP_KEPT_LATER. Returns at once on every other worker, and after the values were received. Call it in
 * events. Returns 0 or the context's first error. Errors: DDP_ARG for a layer that does not exist, DDP_USAGE
 * outside of events, DDP_PEER_LOST if no member sends the values, DDP_TIMEOUT if none arrive for
 * timeout.op_s. */
DDP_API int ddp_kept_wait(ddp_ctx *d, int layer);

/* ddp_complain - stores an error of the strategy, with a printf-formatted message. Its text begins with the
 * strategy's name. Returns code, or the context's first error if there is one. Call it in events. Errors:
 * code or DDP_ARG for a NULL context. */
DDP_API int ddp_complain(ddp_ctx *d, ddp_status code, const char *fmt, ...) DDP__PRINTF(3, 4);

/* ddp_explain - appends text to the message of the context's error, whose code does not change. Does nothing
 * without an error. For the event `failed`. */
DDP_API void ddp_explain(ddp_ctx *d, const char *text);

/* ddp_say - logs a printf-formatted line with the strategy's name in front. Call it in events. */
DDP_API void ddp_say(ddp_ctx *d, ddp_log_level level, const char *fmt, ...) DDP__PRINTF(3, 4);

/* ---- queries ---- */

/* ddp_layers - returns the number of layers that the program has registered. Local. */
DDP_API int ddp_layers(const ddp_ctx *d);

/* ddp_name_of - returns the name of a layer, or "?" if it does not exist. Borrowed until ddp_close. Local. */
DDP_API const char *ddp_name_of(const ddp_ctx *d, int layer);

/* ddp_parts_of - returns the number of parts that ddp_config.average.split_params makes of a layer, or 1 if
 * it is not split. Local. */
DDP_API int ddp_parts_of(const ddp_ctx *d, int layer);

/* ddp_gradients_of - returns the gradients of a layer as a list of *count pieces for messages, or NULL and 0
 * if there are none. A piece of DDP_OWN_PARAMS has no data. Borrowed until ddp_close. Local. */
DDP_API const ddp_piece *ddp_gradients_of(const ddp_ctx *d, int layer, int *count);

/* ddp_parameters_of - returns all arrays that averaging the layer transfers, as a list of *count pieces, or
 * NULL and 0 if there are none. Borrowed until ddp_close. Local. */
DDP_API const ddp_piece *ddp_parameters_of(const ddp_ctx *d, int layer, int *count);

/* ddp_trained_of - returns the parameters of a layer that have gradients, as a list of *count pieces, or NULL
 * and 0 if there are none. Borrowed until ddp_close. Local. */
DDP_API const ddp_piece *ddp_trained_of(const ddp_ctx *d, int layer, int *count);

/* ddp_state_of - returns the optimizer state of a layer, *count floats in layer memory, or NULL and 0 if
 * there is none. Borrowed until ddp_close. Local. */
DDP_API float *ddp_state_of(const ddp_ctx *d, int layer, size_t *count);

/* ddp_updates_of - returns how many updates a layer has had, or 0 if it does not exist. Local. */
DDP_API long ddp_updates_of(const ddp_ctx *d, int layer);

/* ddp_computed_s - returns the compute time of this step so far, in seconds, without waits. Local. */
DDP_API double ddp_computed_s(const ddp_ctx *d);

/* ddp_nominal_compute_s - returns the compute time of a step estimated from FLOPs, in seconds: 1e-10 s per
 * FLOP of the forward pass, and twice as much for the backward pass. Equal on all ranks. Local. */
DDP_API double ddp_nominal_compute_s(const ddp_ctx *d);

/* ddp_nominal_rate - returns the bytes per second of this rank's link by ddp_config.net (default: 125e6).
 * Local. */
DDP_API double ddp_nominal_rate(const ddp_ctx *d);

/* ddp_described_rate - returns the bytes per second of a rank's link by ddp_config.net, or 0 if the setting
 * does not give it. *delay_s receives the one-way delay in seconds. Local. */
DDP_API double ddp_described_rate(const ddp_ctx *d, double *delay_s);

/* ddp_reported - returns the values that ddp_report stored for this step, else 0. The loss is the last one
 * reported. Borrowed until ddp_close. Local. */
DDP_API const struct ddp_step_info *ddp_reported(const ddp_ctx *d);

/* ddp_stats_of - returns the statistics of the context, in which a strategy sets its own fields. Borrowed
 * until ddp_close. Local. */
DDP_API struct ddp_stats *ddp_stats_of(ddp_ctx *d);

/* ddp_others_of - returns the arrays that averaging transfers besides ddp_trained_of, as a list of *count
 * pieces: buffers, and the optimizer state that is averaged in this period (state_period). NULL and 0 if
 * there are none. Valid until the next call. Local. */
DDP_API const ddp_piece *ddp_others_of(const ddp_ctx *d, int layer, int *count);

/* ddp_group_of - returns the group that averages a layer (ddp_layer.group), or 0 for all ranks that compute.
 * Local. */
DDP_API int ddp_group_of(const ddp_ctx *d, int layer);

/* ddp_group_size - returns the number of live workers of a group. Group 0 is all workers that compute.
 * Local. */
DDP_API int ddp_group_size(const ddp_ctx *d, int group);

/* ddp_blocks_of - returns the number of blocks of an all-gather over a group. *own receives the block of this
 * rank. Local. */
DDP_API int ddp_blocks_of(const ddp_ctx *d, int group, int *own);

/* ddp_sites_of - returns the sites of the ranks, if averages are hierarchical, or NULL otherwise. With a
 * single site only `members` is set. Elastic worlds have no groups. Borrowed until ddp_close. Local. */
DDP_API const struct ddp_sites *ddp_sites_of(const ddp_ctx *d);

/* ddp_segment_of - returns the number of values, of an all-reduce of n, that this rank sums, and in *from the
 * index of the first one (ddp_message.owner). Not in elastic worlds. Local. */
DDP_API size_t ddp_segment_of(const ddp_ctx *d, int group, ddp_coding coding, size_t n, size_t *from);

/* ddp_settings - returns the resolved settings of the context: defaults and environment variables are filled
 * in. Borrowed until ddp_close. Local. */
DDP_API const ddp_config *ddp_settings(const ddp_ctx *d);

/* ddp_rate - returns the current learning rate, which ddp_set_lr and ddp_step_info.lr change. Local. */
DDP_API float ddp_rate(const ddp_ctx *d);

/* ddp_coding_of - returns the message coding that ddp_config.wire selects. Local. */
DDP_API ddp_coding ddp_coding_of(const ddp_ctx *d);

/* ddp_link_of - returns the link, 0 or 1, that a layer's messages use. Local. */
DDP_API int ddp_link_of(const ddp_ctx *d, int layer);

/* ddp_residual_of - returns the quantisation residual of a layer, one float per gradient, or NULL without
 * int8 blocks. Borrowed until ddp_close. Local. */
DDP_API float *ddp_residual_of(const ddp_ctx *d, int layer);

/* ddp_has_forward - returns 1 if layers have had their ddp_forward_begin in this step, or had it in the last
 * one, else 0. Always 0 with average.first. Local. */
DDP_API int ddp_has_forward(const ddp_ctx *d);

/* ddp_blob_new - allocates a plan of `size` bytes, zeroed. bytes is NULL if memory is short. At most 64 KiB +
 * 16 x layers x (period + 16) bytes. The library frees a plan that a strategy returns. The caller frees any
 * other with ddp_blob_free. */
DDP_API ddp_blob ddp_blob_new(size_t size);

/* ddp_blob_free - frees the bytes of a plan and sets it to zero. An all-zero plan is allowed. */
DDP_API void ddp_blob_free(ddp_blob *b);
