/* The 32 bytes in front of everything that crosses a wire. */
#ifndef DDP_NET_FRAME_H
#define DDP_NET_FRAME_H

#include "base/config.h"

#define DDP__FRAME_BYTES 32

typedef enum ddp__frame_type {
    DDP__FRAME_PART = 1,  /* all-reduce: own values for the owner of a segment; needs a credit */
    DDP__FRAME_DATA,      /* broadcast, all-gather, send: needs a credit */
    DDP__FRAME_SUM,       /* ring all-reduce: partial sum for the next rank; needs a credit */
    DDP__FRAME_RESULT,    /* all-reduce: finished values; the receiver certainly waits for them */
    DDP__FRAME_CREDIT,    /* offset = staging slots that operation seq gives back */
    DDP__FRAME_HEARTBEAT,
    DDP__FRAME_ABORT,     /* payload = sentence, count = status, offset = rank that failed first */
    DDP__FRAME_GOODBYE,   /* nothing but farewells will follow */
    DDP__FRAME_FAREWELL   /* answer to goodbye: everything before it was read */
} ddp__frame_type;

/* verb, count and layer describe the sender's operation, for the mismatch check. */
typedef struct ddp__frame {
    int      type;
    int      p2p;    /* seq counts send/recv of this pair instead of collectives */
    int      verb;
    uint32_t seq;
    uint32_t count;  /* floats of the whole operation */
    uint32_t offset; /* first float of this chunk */
    uint32_t length; /* payload bytes */
    int32_t  layer;
    uint32_t sent; /* emulated links: when the last byte left, microseconds of the sender's clock */
} ddp__frame;

#ifdef __cplusplus
extern "C" {
#endif

/* Little-endian: magic u16, version u8, type:4 p2p:1 verb:3, seq, count, offset, length, layer,
 * sent, CRC32C of the 28 bytes before it (a stream out of step is found at once). */
DDP_LIB void ddp__frame_encode(const ddp__frame *f, unsigned char *head);
/* 1, or 0 if magic, version or checksum are wrong. */
DDP_LIB int  ddp__frame_decode(const unsigned char *head, ddp__frame *f);

/* CRC-32C (Castagnoli), as in iSCSI: RFC 3720 appendix B.4. */
DDP_LIB uint32_t ddp__crc32c(const void *data, size_t n);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NET_FRAME_H */
