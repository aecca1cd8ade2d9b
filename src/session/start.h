/* Starts a session: connections, comparison of the ranks, layers. */
#pragma once

#include "context/context.h"

DDP_LIB ddp_status ddp__session_tls(ddp_ctx *d,
                                    ddp_error *err); /* sets d->session->tls, if the configuration asks for
                                                        TLS */
/* Connects to the other ranks over the first link, or over another one whose rendezvous is at addr. */
DDP_LIB ddp_status ddp__connect(ddp_ctx *d, ddp__hub *hub, const char *addr, int listen_fd, ddp__wire **wire,
                                ddp_error *err);
/* Starts an engine over a wire. The engine owns the wire from then on. */
DDP_LIB ddp_status ddp__engine_start(ddp_ctx *d, ddp__wire *wire, const ddp__links *links, int joining,
                                     uint64_t live, ddp__engine **out, ddp_error *err);
/* Opens the second link, if the configuration has one, with its own wire and engine, so that its operations
 * never wait for operations of the first link (DeFT, section 3). The ranks exchange its address over the
 * first link. */
DDP_LIB ddp_status ddp__open_second(ddp_ctx *d, ddp__hub *hub, ddp_error *err);

/* Lists the settings that must be equal on all ranks, as numbers: first the settings of the configuration,
 * then the values of the session. Same arguments and result as ddp__settings_compared (compare.c). */
DDP_LIB int ddp__settings(const ddp_ctx *d, int joined, ddp__setting *out);
/* Compares the ranks. DDP_MISMATCH names the first difference. Collective. */
DDP_LIB ddp_status ddp__agree(ddp_ctx *d, ddp_error *err);
/* Starts the session (start.c): freezes the layers, compares the ranks, allocates memory, distributes the
 * parameters of rank 0. Idempotent. */
DDP_LIB ddp_status ddp__session_start(ddp_ctx *d, ddp_error *err);
/* Make every array bit-identical on the ranks of its layer, with buffers and frozen layers (replicas.c). Only
 * arrays that differ are sent: share takes the values of rank 0, or of the first rank of the layer's group,
 * settle the mean. Collective. No message may be in flight. */
DDP_LIB ddp_status ddp__share_parameters(ddp_ctx *d, ddp_error *err);
DDP_LIB ddp_status ddp__replicas_settle(ddp_ctx *d, ddp_error *err);

/* Returns 1 if the next ddp_backward_end of the layer completes its gradient (hooks.c). */
DDP_LIB int ddp__last_pass(const ddp_ctx *d, int layer);
