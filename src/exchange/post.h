/* Chooses the path of a message, and waits for messages. */
#pragma once

#include "context/context.h"

/* ---- post.c, collective.c: which way a message goes, and messages that are waited for ---- */

/* Posts a message: to the engine of its link, in two levels (sites.c), over the stager, or from device
 * to device (device.c). there: its memory is that of layers, else this process's own. All messages of a
 * context go this way, or wait for those that did (flush): one order on all ranks. */
DDP_LIB ddp_status ddp__post(ddp_ctx *d, const ddp_message *m, int there, long *ticket, ddp_error *err);
/* The same straight to the engine: its memory is here, and nothing is under way over a device. */
DDP_LIB ddp_status ddp__post_here(ddp_ctx *d, const ddp_message *m, long *ticket, ddp_error *err);
/* Later work on the layers waits for it: the device, or where there is none, and in the first step,
 * the caller: kernels are loaded when they are launched first, and loading may wait for all that the
 * device has to do, also for work that is held. */
DDP_LIB ddp_status ddp__post_hold(ddp_ctx *d, int link, long ticket, int layer, ddp_error *err);
/* The same of its input alone, and the caller waits. */
DDP_LIB ddp_status ddp__post_hold_input(ddp_ctx *d, int link, long ticket, ddp_error *err);
/* The caller waits for it, which is in nobody's account. */
DDP_LIB ddp_status ddp__post_wait(ddp_ctx *d, int link, long ticket, ddp_error *err);
DDP_LIB int ddp__post_is_done(ddp_ctx *d, int link, long ticket);

/* All that was posted over a device is in the engine, in order. */
DDP_LIB ddp_status ddp__post_flush(ddp_ctx *d, ddp_error *err);
/* What is looked at before an engine has checked a message: verb, lists, link. who: begins the sentence. */
DDP_LIB ddp_status ddp__message_looks(const ddp_ctx *d, const char *who, const ddp_message *m,
                                      ddp_error *err);
/* Posted and waited for, in one level; with one worker only the scale is applied. */
DDP_LIB ddp_status ddp__run(ddp_ctx *d, const ddp_message *m, int there, ddp_error *err);

/* A collective or a message of the program: checked, posted and waited for. name: begins the sentence of an
 * error. Returns 0, or the context's first error. */
DDP_LIB int ddp__plain(ddp_ctx *d, const char *name, const ddp_message *m);

/* A message of this step, over link 0, that counts as filler. The library's own words, as bytes: a message of
 * them, in *p, that travels unhurried; those of a group's first rank (or the lowest that lives) reach all;
 * each member's own, size bytes, in its place. */
DDP_LIB ddp_message ddp__message(const ddp_ctx *d, ddp_verb verb, const ddp_piece *list, int n, int layer);
DDP_LIB ddp_message ddp__own_word(const ddp_ctx *d, ddp_piece *p, ddp_verb verb, int group, void *bytes,
                                  size_t size);
DDP_LIB ddp_status ddp__tell(ddp_ctx *d, int group, void *bytes, size_t size, ddp_error *err);
DDP_LIB ddp_status ddp__all_come(ddp_ctx *d, int group, ddp_error *err); /* all of a group have come as far as
                                                                            this rank */
DDP_LIB ddp_status ddp__gather_words(ddp_ctx *d, int group, void *bytes, size_t size, ddp_error *err);
