/* The part of a joining worker's state that it receives after it has entered: arrays that are equal on all
 * members between steps. Every member copies them when the worker enters, and sends the copy while the
 * training continues. Without it each member would wait until the worker has received everything. */
#pragma once

#include "member/join.h"

typedef struct ddp__rest ddp__rest;

/* Sets of arrays of ddp__rest_take, besides those of a layer: all, and all that have no DDP__WORKER_LATER. */
enum { DDP__REST_ALL = -1, DDP__REST_NOW = -2 };

/* Receives the arrays of s (ddp__worker_rest_list) from the members in place->live, on a thread of its own.
 * The list and the arrays' memory are borrowed until ddp__rest_close, except the struct s. tls: a session for
 * this thread, which the rest owns from now on, or NULL. *out is NULL if there are no such arrays. */
DDP_LIB ddp_status ddp__rest_open(const ddp__join_config *c, const ddp__join_place *place, ddp__tls *tls,
                                  const ddp__worker *s, ddp__rest **out, ddp_error *err);
/* Stores the arrays of layer l, or a set, into their memory. Blocks until they were received, the engine has
 * failed, or no member has sent a byte for peer_timeout_s. *over: 1 if all arrays are stored. */
DDP_LIB ddp_status ddp__rest_take(ddp__rest *r, ddp__engine *engine, int l, int *over, ddp_error *err);
DDP_LIB void ddp__rest_close(ddp__rest *r); /* r may be NULL */
