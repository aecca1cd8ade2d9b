/* A priority queue. The next entry has the least key. The lowest number wins a tie. */
#pragma once

#include "base/core.h"

typedef struct ddp__due {
    double key;
    int64_t i;
} ddp__due;

/* Adds an entry to heap [n], or removes the next one from it. The caller updates n. */
DDP_LIB void ddp__due_add(ddp__due *heap, int n, double key, int64_t i);
DDP_LIB ddp__due ddp__due_take(ddp__due *heap, int n);
