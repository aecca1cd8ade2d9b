/* Hashes of bytes: FNV-1a for names and settings, SHA-256 (FIPS 180-4) against adversaries. */
#ifndef DDP_BASE_HASH_H
#define DDP_BASE_HASH_H

#include "base/config.h"

/* 64-bit FNV-1a, chained: pass the previous result, or DDP__HASH_START. */
#define DDP__HASH_START UINT64_C(0xcbf29ce484222325)
DDP_LIB uint64_t ddp__hash(uint64_t h, const void *data, size_t n);

#define DDP__SHA256_BYTES 32

typedef struct ddp__sha256 {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64];
} ddp__sha256;

DDP_LIB void ddp__sha256_begin(ddp__sha256 *s);
DDP_LIB void ddp__sha256_add(ddp__sha256 *s, const void *data, size_t n);
/* Writes the digest; s is used up. */
DDP_LIB void ddp__sha256_end(ddp__sha256 *s, unsigned char *digest);

#endif /* DDP_BASE_HASH_H */
