/* Follows the cost of averages over a link (profile/average.h) by the transfers of training. */
#pragma once

#include "comm/engine.h"
#include "context/context.h"
#include "profile/average.h"

/* What one busy time of a link shows: between least_s and most_s seconds of transfers, which the model
 * expects to take modelled_s seconds. */
typedef struct ddp__observed {
    double least_s, most_s, modelled_s;
} ddp__observed;

enum { DDP__OBSERVED = 32 }; /* newest busy times that are stored */

/* Follows a link during training. All-zero: nothing is known. */
typedef struct ddp__follow {
    ddp__observed seen[DDP__OBSERVED]; /* ring buffer */
    long count, window; /* number of busy times ever stored, and of those before the current window */
    double ended;       /* operations that ended until this time are evaluated ... */
    double busy_until;  /* ... and occupied the link until this time */
    double scale;       /* result of the last window that had a busy time, or 0 for none yet */
} ddp__follow;

/* Evaluates operations that ended after f->ended, and stores the busy times that they make up. A busy time
 * ends when the link is idle, or after some operations if it is never idle. end: 1 also evaluates operations
 * whose busy time is not over. ops: [n], reordered, with all unfinished operations. gap_s: per-message
 * overhead. part_bytes: bytes of a direct all-reduce that has one part, or 0 if not known. */
DDP_LIB void ddp__lines_observe(const ddp_link line[DDP__LINES], double gap_s, double part_bytes,
                                ddp__op_span *ops, int n, int end, ddp__follow *f);
/* Stores one busy time. */
DDP_LIB void ddp__follow_add(ddp__follow *f, const ddp__observed *o);
/* Ends the window. Returns the factor by which its busy times change the time of a byte: 1 if the model can
 * explain them, and 0 if there are none. */
DDP_LIB double ddp__follow_window(ddp__follow *f);
/* Returns the factor of the last window that had a busy time, or 1. */
DDP_LIB double ddp__follow_scale(const ddp__follow *f);
/* Forgets everything. Operations that ended before `now` do not count. */
DDP_LIB void ddp__follow_restart(ddp__follow *f, double now);
