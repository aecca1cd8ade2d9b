/* Chooses the path of a message, and waits for messages. */
#pragma once

#include "context/context.h"

/* ---- post.c, collective.c: paths of messages, and blocking messages ---- */

/* Posts a message: to the engine of its link, as a hierarchical average (sites.c), over the stager, or from
 * device to device (device.c). there: it is in the memory of the layers, otherwise in host memory. All
 * messages of a context are posted here, or wait for those that were (flush), so that the order is the same
 * on all ranks. */
DDP_LIB ddp_status ddp__post(ddp_ctx *d, const ddp_message *m, int there, long *ticket, ddp_error *err);
/* The same, directly to the engine. The message's memory is on the host, and no message over a device may be
 * in flight. */
DDP_LIB ddp_status ddp__post_here(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err);
/* Later work on the layers waits for the message. With a device, the device waits. Without one, and in the
 * first step, the caller waits: kernels are loaded at their first launch, and loading may wait for all queued
 * device work, including work that is itself waiting. */
DDP_LIB ddp_status ddp__post_hold(ddp_ctx *d, int link, long ticket, int layer, ddp_error *err);
/* The same for the message's input only. The caller waits. */
DDP_LIB ddp_status ddp__post_hold_input(ddp_ctx *d, int link, long ticket, ddp_error *err);
/* The caller waits for the message. The wait does not count in the statistics. */
DDP_LIB ddp_status ddp__post_wait(ddp_ctx *d, int link, long ticket, ddp_error *err);
DDP_LIB int ddp__post_is_done(ddp_ctx *d, int link, long ticket);

/* Waits until the engine has all messages posted over a device, in order. */
DDP_LIB ddp_status ddp__post_flush(ddp_ctx *d, ddp_error *err);
/* Checks verb, lists and link of a message before the engine does. who: beginning of the error message. */
DDP_LIB ddp_status ddp__message_looks(const ddp_ctx *d, const char *who, const ddp_message *m,
                                      ddp_error *err);
/* Posts a message without a hierarchy and waits for it. With one worker only the scale is applied. */
DDP_LIB ddp_status ddp__run(ddp_ctx *d, const ddp_message *m, int there, ddp_error *err);

/* Checks, posts and waits for a collective or a message of the program. name: beginning of the error message.
 * Returns 0, or the context's first error. */
DDP_LIB int ddp__plain(ddp_ctx *d, const char *name, const ddp_message *m);

/*   message       makes a message of this step, over link 0, that counts as filler
 *   own_word      makes a control message of the library, as bytes in *p, with the lowest priority
 *   tell          broadcasts bytes from the first rank of a group (or the lowest live one)
 *   gather_words  gathers `size` bytes of each member, each at its place */
DDP_LIB ddp_message ddp__message(const ddp_ctx *d, ddp_verb verb, const ddp_piece *list, int n, int layer);
DDP_LIB ddp_message ddp__own_word(const ddp_ctx *d, ddp_piece *p, ddp_verb verb, int group, void *bytes,
                                  size_t size);
DDP_LIB ddp_status ddp__tell(ddp_ctx *d, int group, void *bytes, size_t size, ddp_error *err);
DDP_LIB ddp_status ddp__all_come(ddp_ctx *d, int group, ddp_error *err); /* barrier of a group */
DDP_LIB ddp_status ddp__gather_words(ddp_ctx *d, int group, void *bytes, size_t size, ddp_error *err);
