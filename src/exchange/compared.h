/* Compares arrays across ranks by their hashes, so that equal arrays are not sent. */
#pragma once

#include "context/context.h"
#include "exchange/collective.h"

/* An array that may differ between the ranks of a group: pieces in layer memory, hashed in order. */
typedef struct ddp__compared {
    const ddp_piece *list;
    int pieces, group;
    int differs; /* result: 1 if the bytes differ between two ranks of the group, lost ranks excluded */
} ddp__compared;

/* Sets `differs` of count arrays, which all ranks of this rank's team list in the same order. One all-gather
 * of 16 bytes per array and rank. *single: 1 if a message of some rank can have only one of the arrays, the
 * same number on all ranks. Collective over the team. No message may be in flight. */
DDP_LIB ddp_status ddp__compare_arrays(ddp_ctx *d, ddp__compared *of, int count, int *single, ddp_error *err);
