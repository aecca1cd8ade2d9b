/* Status codes and the one human sentence that goes with them. */
#ifndef DDP_BASE_STATUS_H
#define DDP_BASE_STATUS_H

#include "base/config.h"

/* name, process exit code of the programs (DESIGN: 1 failure, 2 usage, 3 a peer was lost), text */
#define DDP_STATUS_LIST(X)                                                  \
    X(OK, 0, "ok")                                                          \
    X(ARG, 2, "invalid argument")                                           \
    X(USAGE, 1, "call out of order")                                        \
    X(MEMORY, 1, "out of memory")                                           \
    X(IO, 1, "file error")                                                  \
    X(FORMAT, 1, "malformed input")                                         \
    X(NET, 1, "network failure")                                            \
    X(PEER_LOST, 3, "a peer was lost")                                      \
    X(TIMEOUT, 3, "a peer did not answer in time")                          \
    X(MISMATCH, 1, "ranks disagree")                                        \
    X(UNSUPPORTED, 2, "not supported")                                      \
    X(ABORTED, 130, "aborted by request")                                   \
    X(NUMERIC, 1, "not a finite number")                                    \
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
    char       msg[DDP_ERROR_TEXT];
} ddp_error;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_status_text - a short constant English text for a code ("network failure").
 * ddp_status_exit_code - the exit code that the programs of this project return for it.
 * Both are pure and safe from any thread. */
DDP_API const char *ddp_status_text(ddp_status code);
DDP_API int ddp_status_exit_code(ddp_status code);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_STATUS_H */
