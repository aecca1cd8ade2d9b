/* From this project's graphs to the operator lists that planners read. */
#pragma once

#include "profile/profile.h"

struct ddp_graph; /* graph/graph.h */

/* ddp_graph_oplist - the operators of g, built or not, in the order in which they were added.
 *
 * Inputs of the graph are left out: they are read wherever they are used, so nothing of them crosses a cut.
 * args are the operators among a node's inputs, in their order. flops is forward; output_bytes are of
 * float32; a tied parameter counts where it is owned, so that param_bytes add up to 4 ddp_param_count. Names
 * are "layer/operator", "layer/operator.1", ... ("operator" alone outside layers); a layer is a module. *out
 * is untouched on error, else freed by ddp_oplist_free and independent of g. Errors: DDP_ARG (no graph, no
 * operators), the graph's own first error (also that of a ddp_graph_build that failed), DDP_MEMORY. */
DDP_API ddp_status ddp_graph_oplist(const struct ddp_graph *g, ddp_oplist *out, ddp_error *err);
