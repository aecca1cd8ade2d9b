/* Compile-time options, linkage and the small common subset of C11 and C++17. */
#ifndef DDP_BASE_CONFIG_H
#define DDP_BASE_CONFIG_H

/* CLOCK_MONOTONIC, ppoll and friends are hidden under -std=c11 unless asked for before the
 * first libc header. */
#if (defined(DREAMDDP_IMPLEMENTATION) || defined(DDP_SEPARATE)) && defined(__linux__) &&           \
    !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif

#include <stddef.h>
#include <stdint.h>

#define DDP_VERSION_MAJOR  0
#define DDP_VERSION_MINOR  1
#define DDP_VERSION_PATCH  0
#define DDP_VERSION_STRING "0.1.0"

#if defined(__GNUC__) || defined(__clang__)
#define DDP__UNUSED       __attribute__((unused))
#define DDP__PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define DDP__UNUSED
#define DDP__PRINTF(f, a)
#endif

/* Linkage of the public functions. Define DDP_STATIC to keep a private copy of the
 * library inside one file (two versions in one program then coexist). */
#ifndef DDP_API
#ifdef DDP_STATIC
#define DDP_API static DDP__UNUSED
#else
#define DDP_API extern
#endif
#endif

/* Linkage of private functions shared between files of src/: static in the single header,
 * extern when each file is compiled alone (make check-separate). */
#ifndef DDP_LIB
#ifdef DDP_SEPARATE
#define DDP_LIB extern
#else
#define DDP_LIB static DDP__UNUSED
#endif
#endif

/* Memory for bookkeeping; tensors and staging buffers come from ddp_config.allocator. */
#if defined(DDP_REALLOC) != defined(DDP_FREE)
#error "dreamddp: define both DDP_REALLOC and DDP_FREE, or neither"
#endif
#ifndef DDP_REALLOC
#include <stdlib.h>
#define DDP_REALLOC(ptr, bytes) realloc(ptr, bytes)
#define DDP_FREE(ptr)           free(ptr)
#endif

#if defined(__GNUC__) || defined(__clang__)
#define DDP_RESTRICT __restrict__
#else
#define DDP_RESTRICT
#endif

#ifdef __cplusplus
#define DDP_STATIC_ASSERT(cond, text) static_assert(cond, text)
#else
#define DDP_STATIC_ASSERT(cond, text) _Static_assert(cond, text)
#endif

/* Checks for our own bugs only; user mistakes are status codes. */
#ifndef DDP_ASSERT
#include <assert.h>
#define DDP_ASSERT(cond) assert(cond)
#endif

#endif /* DDP_BASE_CONFIG_H */
