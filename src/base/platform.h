/* System headers, compiler differences (the common subset of C11 and C++17), and the macros that a
 * program may define. The target is Linux. The code also compiles on macOS. */
#pragma once

#include "base/status.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __APPLE__
#include <xlocale.h> /* declares newlocale */
#endif

#ifndef CLOCK_MONOTONIC
#error "dreamddp: a libc header hid POSIX; include dreamddp.h first, or compile with -D_GNU_SOURCE"
#endif

/* GNU extensions that stay hidden under gcc's default -std=gnu17 if the program included a libc header
 * first. */
#ifdef __linux__
DDP__C char **environ;
DDP__C int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask);
#endif

/* Allocation for bookkeeping. Tensors and staging buffers come from ddp_config.allocator. */
#if defined(DDP_REALLOC) != defined(DDP_FREE)
#error "dreamddp: define both DDP_REALLOC and DDP_FREE, or neither"
#endif
#ifndef DDP_REALLOC
#define DDP_REALLOC(ptr, bytes) realloc(ptr, bytes)
#define DDP_FREE(ptr)           free(ptr)
#endif

#if defined(__GNUC__) || defined(__clang__)
#define DDP_RESTRICT __restrict__
#else
#define DDP_RESTRICT
#endif

/* Marks an inline function that GPU kernels also call. */
#ifdef __CUDACC__
#define DDP__DEVICE __host__ __device__
#else
#define DDP__DEVICE
#endif

#ifdef __cplusplus
#define DDP_STATIC_ASSERT(cond, text) static_assert(cond, text)
#else
#define DDP_STATIC_ASSERT(cond, text) _Static_assert(cond, text)
#endif

/* Checks for bugs of this library only. Mistakes of the caller are reported as status codes. */
#ifndef DDP_ASSERT
#include <assert.h>
#define DDP_ASSERT(cond) assert(cond)
#endif
