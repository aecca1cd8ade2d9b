/* Basics of the public API: version, linkage of functions, status codes and error messages, logging, and
 * the memory allocator hook. */
#pragma once

/* -std=c11 hides CLOCK_MONOTONIC, ppoll and others unless _GNU_SOURCE is defined before the first libc
 * header. */
#if (defined(DREAMDDP_IMPLEMENTATION) || defined(DDP_SEPARATE)) && defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif

/* Files and messages store numbers in the machine's byte order and with 64-bit sizes. On any other
 * platform the library would compile, but no other machine could read its files. */
#if (defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__) || \
    (defined(__SIZEOF_POINTER__) && __SIZEOF_POINTER__ != 8)
#error "dreamddp: this platform is not supported; use a little-endian 64-bit one (x86-64, arm64, riscv64)"
#endif

#include <stddef.h>
#include <stdint.h>

#define DDP_VERSION_MAJOR  0
#define DDP_VERSION_MINOR  3
#define DDP_VERSION_PATCH  0
#define DDP_VERSION_STRING "0.3.0"

#if defined(__GNUC__) || defined(__clang__)
#define DDP__UNUSED       __attribute__((unused))
#define DDP__PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define DDP__UNUSED
#define DDP__PRINTF(f, a)
#endif

/* Linkage of the public functions. DDP_STATIC makes a private copy of the library inside one file, so
 * that one program can contain two versions. */
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

/* Status codes: name, exit code of the example programs (1: failure, 2: usage, 3: a peer was lost, 130:
 * aborted), text. */
#define DDP_STATUS_LIST(X)                         \
    X(OK, 0, "ok")                                 \
    X(ARG, 2, "invalid argument")                  \
    X(USAGE, 1, "call out of order")               \
    X(MEMORY, 1, "out of memory")                  \
    X(IO, 1, "file error")                         \
    X(FORMAT, 1, "malformed input")                \
    X(NET, 1, "network failure")                   \
    X(PEER_LOST, 3, "a peer was lost")             \
    X(TIMEOUT, 3, "a peer did not answer in time") \
    X(MISMATCH, 1, "ranks disagree")               \
    X(UNSUPPORTED, 2, "not supported")             \
    X(ABORTED, 130, "aborted by request")          \
    X(NUMERIC, 1, "not a finite number")           \
    X(FAILED, 1, "failure")

/* A status code. DDP_STATUS_LIST has the text of each. DDP_OK is 0. */
typedef enum ddp_status {
#define DDP__STATUS_ENUM(name, code, text) DDP_##name,
    DDP_STATUS_LIST(DDP__STATUS_ENUM)
#undef DDP__STATUS_ENUM
        DDP_STATUS_COUNT
} ddp_status;

#define DDP_ERROR_TEXT 400

/* An error: a code for the program and a message for the user. All-zero means no error. msg names the
 * offending value and the remedy, and never ends in a newline. */
typedef struct ddp_error {
    ddp_status code;          /* DDP_OK (0): no error */
    char msg[DDP_ERROR_TEXT]; /* one sentence, ended by 0 */
} ddp_error;

/* ddp_status_text - returns a short English text for a code, such as "network failure". A constant string.
 * Pure and safe from any thread. */
DDP_API const char *ddp_status_text(ddp_status code);

/* ddp_status_exit_code - returns the exit code that the programs of this project use for a status code: 0, 1,
 * 2, 3 or 130. Pure and safe from any thread. */
DDP_API int ddp_status_exit_code(ddp_status code);

/* Levels of log lines: each includes the ones before it. */
typedef enum ddp_log_level {
    DDP_LOG_DEFAULT, /* the level that DREAMDDP_LOG names (off, error, warn, info, debug), or warn if it is
                        unset */
    DDP_LOG_OFF,
    DDP_LOG_ERROR,
    DDP_LOG_WARN,
    DDP_LOG_INFO,
    DDP_LOG_DEBUG
} ddp_log_level;

/* Destination of log lines. All-zero: no logging, or stderr if the environment variable DREAMDDP_LOG is
 * set. fn receives one line without a newline. The comm thread may call it, too. */
typedef struct ddp_logger {
    void (*fn)(void *user, ddp_log_level level, const char *line);
    void *user;          /* passed to fn */
    ddp_log_level level; /* less important lines are not formatted */
} ddp_logger;

/* Allocator for tensors, optimizer state and staging buffers. All-zero: malloc and free, with 64-byte
 * alignment and huge pages where the system offers them.
 *   alloc  returns `bytes` bytes aligned to at least 64, or NULL. The memory need not be zeroed
 *   free   receives a pointer that alloc returned, never NULL, and the same byte count
 * Both may be called from the thread that calls ddp_open, ddp_close or the first step. */
typedef struct ddp_allocator {
    void *(*alloc)(void *user, size_t bytes);
    void (*free)(void *user, void *ptr, size_t bytes);
    void *user; /* passed to both functions */
} ddp_allocator;
