/* The start of a session: connections, comparison of the ranks, layers. */
#pragma once

#include "context/context.h"

DDP_LIB ddp_status ddp__session_tls(ddp_ctx *d,
                                    ddp_error *err); /* d->session->tls, where the configuration says so */
/* The wire of the first link, or of another that meets at addr. */
DDP_LIB ddp_status ddp__connect(ddp_ctx *d, ddp__hub *hub, const char *addr, int listen_fd, ddp__wire **wire,
                                ddp_error *err);
/* The engine over a wire, which is its own from here on. */
DDP_LIB ddp_status ddp__engine_start(ddp_ctx *d, ddp__wire *wire, const ddp__links *links, int joining,
                                     uint64_t live, ddp__engine **out, ddp_error *err);
/* The second link, if the configuration has one: a wire and an engine of its own, so that its operations
 * wait for none of the first (DeFT, section 3). They meet where the first link says. */
DDP_LIB ddp_status ddp__open_second(ddp_ctx *d, ddp__hub *hub, ddp_error *err);

/* compare.c: settings that all ranks must have the same, as numbers: those of the configuration, then what
 * the session knows. As ddp__settings_compared. */
DDP_LIB int ddp__settings(const ddp_ctx *d, int joined, ddp__setting *out);
/* DDP_MISMATCH names the first difference between the ranks. Collective. */
DDP_LIB ddp_status ddp__agree(ddp_ctx *d, ddp_error *err);
/* start.c: freezes the layers: comparison, memory, rank 0's parameters. Idempotent. */
DDP_LIB ddp_status ddp__session_start(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__share_parameters(ddp_ctx *d, ddp_error *err);
/* replicas.c: every array that is not the same on all ranks of its layer becomes their mean. Collective;
 * nothing is in flight. */
DDP_LIB ddp_status ddp__replicas_settle(ddp_ctx *d, ddp_error *err);

/* hooks.c: 1: the next ddp_backward_end of the layer completes its gradient. */
DDP_LIB int ddp__last_pass(const ddp_ctx *d, int layer);
