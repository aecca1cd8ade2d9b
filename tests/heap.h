/* Included before each file of the library when it is compiled for tests: its bookkeeping memory comes
 * from these two. A test that counts defines both, and is linked in the place of heap.c. */
#ifndef TEST_HEAP_H
#define TEST_HEAP_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
void *heap_realloc(void *p, size_t bytes);
void  heap_free(void *p);
#ifdef __cplusplus
}
#endif
#define DDP_REALLOC(p, bytes) heap_realloc(p, bytes)
#define DDP_FREE(p)           heap_free(p)

/* How many random instances a test takes of n: a fourth under the sanitizers, where each takes several times as long. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INSTANCES(n) ((n) / 4)
#else
#define INSTANCES(n) (n)
#endif
/* The step of a loop over cases: each n-th under the sanitizers; all of them are tried without. */
#define SAMPLED(n) (INSTANCES(4) == 4 ? 1 : (n))

#endif /* TEST_HEAP_H */
