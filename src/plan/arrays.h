/* Checks the arrays of a search, and copies arrays into the result of a plan. */
#pragma once

#include "base/core.h"

/* Returns DDP_OK if every array of s was allocated. Otherwise it frees them all and returns DDP_MEMORY with
 * "no memory to plan N WHAT". */
DDP_LIB ddp_status ddp__scratch_check(ddp__scratch *s, int n, const char *what, ddp_error *err);
/* Copies an array for the result of a plan. The caller frees the copy with DDP_FREE. Returns NULL if out of
 * memory. */
DDP_LIB void *ddp__copy(const void *from, size_t count, size_t size);
