/* Converts a ddp_graph to the operator list that planners read. */
#pragma once

#include "profile/profile.h"

struct ddp_graph; /* graph/graph.h */

/* ddp_graph_oplist - lists the operators of g, built or not, in the order in which they were added.
 *
 * Inputs of the graph are left out: an input is read where it is used, so it never crosses a cut. The args of
 * an entry are the operators among the node's inputs, in the order of the inputs. flops is for the forward
 * pass. output_bytes is for float32. A tied parameter counts at its owner, so the param_bytes add up to 4
 * ddp_param_count. Names are "layer/operator", "layer/operator.1", ..., or "operator" outside layers. A layer
 * is a module.
 *
 * *out is untouched on error. Otherwise, the caller frees it with ddp_oplist_free. It does not refer to g.
 * Errors: DDP_ARG (no graph, no operators), the first error of the graph itself (including a failed
 * ddp_graph_build), DDP_MEMORY. */
DDP_API ddp_status ddp_graph_oplist(const struct ddp_graph *g, ddp_oplist *out, ddp_error *err);
