/* The cost of an average over a link: one line for each algorithm of the all-reduce. */
#pragma once

#include "base/core.h"
#include "profile/profile.h"

/* Algorithms with separate lines. A line through sizes of different algorithms would fit none of them:
 * the all-to-all exchange takes one delay and more bytes, the direct algorithm two delays, and the ring
 * 2 (n - 1) delays. */
enum { DDP__LINE_FULL, DDP__LINE_DIRECT, DDP__LINE_RING, DDP__LINES };

/* The lines of all algorithms if the direct one has the line *direct: the same bytes per second, other
 * numbers of bytes and delays. */
DDP_LIB void ddp__lines_derive(ddp_link direct, int members, ddp_link line[DDP__LINES]);
/* The line of an operation, by the letter of its algorithm. */
DDP_LIB ddp_link ddp__line_of(const ddp_link line[DDP__LINES], char letter);
