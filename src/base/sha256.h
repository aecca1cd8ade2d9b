/* SHA-256 (FIPS 180-4). */
#ifndef DDP_BASE_SHA256_H
#define DDP_BASE_SHA256_H

#include "base/config.h"

#define DDP__SHA256_BYTES 32

typedef struct ddp__sha256 {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64];
} ddp__sha256;

#ifdef __cplusplus
extern "C" {
#endif

DDP_LIB void ddp__sha256_begin(ddp__sha256 *s);
DDP_LIB void ddp__sha256_add(ddp__sha256 *s, const void *data, size_t n);
/* Writes the digest; s is used up. */
DDP_LIB void ddp__sha256_end(ddp__sha256 *s, unsigned char *digest);

#ifdef __cplusplus
}
#endif

#endif /* DDP_BASE_SHA256_H */
