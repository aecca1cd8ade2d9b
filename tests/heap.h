/* Included before each file of the library when it is compiled for tests: bookkeeping memory comes from
 * these two functions. A test that counts allocations defines both, and is linked instead of heap.c. */
#ifndef TEST_HEAP_H
#define TEST_HEAP_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
void *heap_realloc(void *p, size_t bytes);
void heap_free(void *p);
#ifdef __cplusplus
}
#endif
#define DDP_REALLOC(p, bytes) heap_realloc(p, bytes)
#define DDP_FREE(p)           heap_free(p)

/* The number of random instances that a test runs, out of n: an eighth under the sanitizers, where each
 * takes several times as long. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INSTANCES(n) (((n) + 7) / 8)
#else
#define INSTANCES(n) (n)
#endif
/* The length of a long message: an eighth under the sanitizers. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LENGTH(n) ((n) / 8)
#else
#define LENGTH(n) (n)
#endif
/* Sanitizers distort times, so links are measured with few and short transfers. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DDP__METER_AGREE  0.3
#define DDP__PROBE_LAST_S 0.02
#endif
/* The step of a loop over cases: every n-th case under AddressSanitizer, half as many under
 * ThreadSanitizer, which takes twice as long, and all cases otherwise. Odd steps stay odd. */
#if defined(__SANITIZE_THREAD__)
#define SAMPLED(n) (2 * (n)-1)
#elif defined(__SANITIZE_ADDRESS__)
#define SAMPLED(n) (n)
#else
#define SAMPLED(n) 1
#endif
/* The step of a loop over cases with a single worker. ThreadSanitizer finds little there, so it runs every
 * n-th case. */
#if defined(__SANITIZE_THREAD__)
#define ALONE(n) (n)
#else
#define ALONE(n) 1
#endif

/* Skips a test and prints the reason; tools/run_tests.py repeats the line at the end. */
#define SKIP(why)                                          \
    do {                                                   \
        print_message("skipped: %s: %s\n", __func__, why); \
        skip();                                            \
    } while (0)

#endif /* TEST_HEAP_H */
