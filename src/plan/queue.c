/* A priority queue, stored as a heap in an array. */
#include "plan/queue.h"

static int ddp__due_before(const ddp__due *a, const ddp__due *b)
{
    return a->key < b->key || (a->key == b->key && a->i < b->i);
}

void ddp__due_add(ddp__due *heap, int n, double key, int64_t i)
{
    const ddp__due e = {key, i};
    for (; n > 0 && ddp__due_before(&e, &heap[(n - 1) / 2]); n = (n - 1) / 2) heap[n] = heap[(n - 1) / 2];
    heap[n] = e;
}

ddp__due ddp__due_take(ddp__due *heap, int n)
{
    const ddp__due first = heap[0], last = heap[--n];
    int i = 0, next;
    for (; (next = 2 * i + 1) < n; i = next) {
        if (next + 1 < n && ddp__due_before(&heap[next + 1], &heap[next])) next++;
        if (!ddp__due_before(&heap[next], &last)) break;
        heap[i] = heap[next];
    }
    heap[i] = last;
    return first;
}
