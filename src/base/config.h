/* The version, and the linkage of public and private functions. */
#ifndef DDP_BASE_CONFIG_H
#define DDP_BASE_CONFIG_H

/* CLOCK_MONOTONIC, ppoll and friends are hidden under -std=c11 unless asked for before the first libc header. */
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
#ifdef __cplusplus
#define DDP__C extern "C"
#else
#define DDP__C extern
#endif
#ifndef DDP_API
#ifdef DDP_STATIC
#define DDP_API static DDP__UNUSED
#else
#define DDP_API DDP__C
#endif
#endif

/* Linkage of private functions shared between files of src/: static in the single header,
 * extern when each file is compiled alone (make check-separate). */
#ifndef DDP_LIB
#ifdef DDP_SEPARATE
#define DDP_LIB DDP__C
#else
#define DDP_LIB static DDP__UNUSED
#endif
#endif

#endif /* DDP_BASE_CONFIG_H */
