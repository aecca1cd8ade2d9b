/* The 36 bytes in front of everything that crosses a wire. */
#pragma once

#include "comm/message.h"

#define DDP__FRAME_BYTES 36

typedef enum ddp__frame_type {
    DDP__FRAME_PART = 1,  /* sums: own values for the owner of a segment; needs a credit */
    DDP__FRAME_DATA,      /* broadcast, all-gather, send: needs a credit */
    DDP__FRAME_SUM,       /* ring all-reduce: partial sum for the next rank; needs a credit */
    DDP__FRAME_RESULT,    /* all-reduce: finished values; the receiver certainly waits for them */
    DDP__FRAME_CREDIT,    /* offset = staging slots that operation seq gives back */
    DDP__FRAME_HEARTBEAT, /* seq = collectives begun; count, offset = sends, receives of the pair; layer =
                             more credits */
    DDP__FRAME_ABORT,     /* payload = sentence, count = status, offset = rank that failed first, layer =
                             1 + rank whose loss it is, 0: unknown */
    DDP__FRAME_GOODBYE,   /* nothing but farewells will follow */
    DDP__FRAME_FAREWELL,  /* answer to goodbye: everything before it was read */
    /* a membership's */
    DDP__FRAME_STATE, /* payload: what the sender knows while an epoch is sought */
    DDP__FRAME_EPOCH, /* payload: the epoch that all that follows belongs to */
    DDP__FRAME_DONE,  /* complete: all before seq, and seq + i where bit i of offset << 32 | count is
                             set */
    DDP__FRAME_WANT,  /* asks for the result of operation seq */
    /* ranks that are threads of one process (share.c); no payload */
    DDP__FRAME_OFFER, /* all-reduce: own values may be used in place, as offer `offset` says; needs a
                             credit */
    DDP__FRAME_SUMMED /* the sender is through; offset > 0: as the receiver's values from offset - 1 on
                             were written */
} ddp__frame_type;

enum { DDP__CODING_BLOCK = 64 };

/* verb, count and layer describe the sender's operation, for the mismatch check. */
typedef struct ddp__frame {
    int type;
    int p2p;  /* seq counts messages of this pair and lane (its two upper bits) instead of
                        collectives */
    int verb; /* up to DDP__ASK */
    uint32_t seq;
    uint32_t count;  /* values of the whole operation */
    uint32_t offset; /* first value of this chunk */
    uint32_t length; /* payload bytes */
    int32_t layer;
    int coding;     /* of the values: ddp_coding */
    uint32_t sent;  /* emulated links: when the last byte left, microseconds of the sender's clock */
    uint32_t check; /* CRC-32C of the payload; 0 = not said */
} ddp__frame;

/* Values in the payload; SIZE_MAX where no number of values has that length. */
DDP_LIB size_t ddp__frame_values(const ddp__frame *f);
DDP_LIB int ddp__in_blocks(int coding);           /* blocks of DDP__CODING_BLOCK values with a scale
                                                               each */
DDP_LIB const char *ddp__coding_name(int coding); /* "int8 blocks" */
DDP_LIB size_t ddp__frame_payload(int coding, size_t count); /* the payload of count values */
/* Little-endian: magic u16, version:5 coding:3, type:4 p2p:1 verb:3, seq, count, offset, length,
 * layer, sent, check, CRC-32C of the 32 bytes before it (a stream out of step is found at once). */
DDP_LIB void ddp__frame_encode(const ddp__frame *f, unsigned char *head);
/* 1, or 0 if magic, version or checksum are wrong. */
DDP_LIB int ddp__frame_decode(const unsigned char *head, ddp__frame *f);

/* CRC-32C (Castagnoli), as in iSCSI: RFC 3720 appendix B.4. Chained: the first call's h is 0. */
DDP_LIB uint32_t ddp__crc32c(uint32_t h, const void *data, size_t n);
