/* What every call speaks: the version and the linkage of functions; status codes and the one sentence that
 * goes with them, log lines, and the hook that memory comes from. */
#pragma once

/* CLOCK_MONOTONIC, ppoll and friends are hidden under -std=c11 unless asked for before the first libc
 * header. */
#if (defined(DREAMDDP_IMPLEMENTATION) || defined(DDP_SEPARATE)) && defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif

/* Files and messages hold numbers as they are in memory, and sizes of 64 bits. Elsewhere this would compile
 * and write files that no other machine reads. */
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

/* name, process exit code of the programs (1: failure, 2: usage, 3: a peer was lost, 130: aborted), text */
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

typedef enum ddp_status {
#define DDP__STATUS_ENUM(name, code, text) DDP_##name,
    DDP_STATUS_LIST(DDP__STATUS_ENUM)
#undef DDP__STATUS_ENUM
        DDP_STATUS_COUNT
} ddp_status;

#define DDP_ERROR_TEXT 400

/* A failure: a code for the program, a sentence for the person. All-zero = no error.
 * msg names the offending value and the remedy and never ends in a newline. */
typedef struct ddp_error {
    ddp_status code;
    char msg[DDP_ERROR_TEXT];
} ddp_error;

/* ddp_status_text - a short constant English text for a code ("network failure").
 * ddp_status_exit_code - the exit code that the programs of this project return for it.
 * Both are pure and safe from any thread. */
DDP_API const char *ddp_status_text(ddp_status code);
DDP_API int ddp_status_exit_code(ddp_status code);

typedef enum ddp_log_level {
    DDP_LOG_DEFAULT, /* what DREAMDDP_LOG says (off, error, warn, info, debug), else warn */
    DDP_LOG_OFF,
    DDP_LOG_ERROR,
    DDP_LOG_WARN,
    DDP_LOG_INFO,
    DDP_LOG_DEBUG
} ddp_log_level;

/* Where log lines go. All-zero = nowhere, unless DREAMDDP_LOG is set: then stderr.
 * fn gets one line without newline; it may be called from the comm thread. */
typedef struct ddp_logger {
    void (*fn)(void *user, ddp_log_level level, const char *line);
    void *user;
    ddp_log_level level; /* lines above this level are not formatted */
} ddp_logger;

/* Memory for tensors, optimizer state and staging. All-zero = malloc/free (64-byte aligned,
 * huge pages where the system offers them).
 *   alloc  returns bytes bytes aligned to at least 64, not necessarily zeroed, or NULL
 *   free   takes what alloc returned and the same byte count; never called with NULL
 * Both may be called from the thread that calls ddp_open, ddp_close or the first step. */
typedef struct ddp_allocator {
    void *(*alloc)(void *user, size_t bytes);
    void (*free)(void *user, void *ptr, size_t bytes);
    void *user;
} ddp_allocator;
