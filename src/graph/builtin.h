/* The table of built-in operators as the graph sees it; src/ops fills it. */
#ifndef DDP_GRAPH_BUILTIN_H
#define DDP_GRAPH_BUILTIN_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The built-in operator of that name, NULL if there is none. */
DDP_LIB const ddp_op *ddp__builtin_op(const char *name);

#ifdef __cplusplus
}
#endif

#endif /* DDP_GRAPH_BUILTIN_H */
