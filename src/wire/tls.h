/* TLS 1.3 between ranks, by OpenSSL: a pre-shared key, or certificates on both sides. */
#ifndef DDP_WIRE_TLS_H
#define DDP_WIRE_TLS_H

#include "wire/stream.h"

#define DDP__TLS_LEAST_KEY 32 /* bytes of a pre-shared key */

/* Either psk, or ca, cert and key; paths of files. */
typedef struct ddp__tls_files {
    const char *psk;  /* 32 bytes or more, the same on every rank; blanks at the end do not count */
    const char *ca;   /* PEM: who signed the ranks' certificates */
    const char *cert; /* PEM: this rank's, followed by those between it and ca, if any */
    const char *key;  /* PEM, without a passphrase */
} ddp__tls_files;

/* Reads the files and makes ready for sessions; *out is NULL if no file is named. run_id is the
 * identity that goes with a pre-shared key, in the clear: ranks of unlike runs refuse each other. A
 * certificate must carry the name rank-R (subject alternative name of kind DNS, else common name)
 * for each rank R whose holder uses it.
 * Errors: DDP_UNSUPPORTED without DDP_USE_OPENSSL; DDP_ARG for files that do not belong together,
 * keys that are too short or that other users can read; DDP_IO; DDP_FORMAT for what OpenSSL cannot
 * read; DDP_MEMORY. */
DDP_LIB ddp_status ddp__tls_open(const ddp__tls_files *files, uint64_t run_id, ddp__tls **out,
                                 ddp_error *err);
/* Forgets all sessions and overwrites the keys; sockets stay open. NULL is fine. */
DDP_LIB void ddp__tls_free(ddp__tls *t);

#endif /* DDP_WIRE_TLS_H */
