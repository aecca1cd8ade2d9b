/* The wire header: the 36 bytes before every payload, its types, and CRC-32C. */
#pragma once

#include "comm/message.h"

#define DDP__FRAME_BYTES 36

typedef enum ddp__frame_type {
    DDP__FRAME_PART = 1,  /* sums: this rank's values for the owner of a segment. Needs a credit. */
    DDP__FRAME_DATA,      /* broadcast, all-gather, send: needs a credit */
    DDP__FRAME_SUM,       /* ring all-reduce: a partial sum for the next rank. Needs a credit. */
    DDP__FRAME_RESULT,    /* all-reduce: final values. Needs no credit, because the receiver always waits for
                             them. */
    DDP__FRAME_CREDIT,    /* offset = number of staging slots returned to operation seq */
    DDP__FRAME_HEARTBEAT, /* seq = collectives begun, count and offset = sends and receives of this pair
                             begun, layer = additional credits */
    DDP__FRAME_ABORT,     /* payload = error text, count = status, offset = rank that failed first, layer = 1
                             + rank whose loss caused it, or 0 if unknown */
    DDP__FRAME_GOODBYE,   /* only FAREWELL frames follow */
    DDP__FRAME_FAREWELL,  /* reply to GOODBYE: everything before it was read */
    /* membership frames */
    DDP__FRAME_STATE, /* payload: the sender's ddp__word, during the search for a new epoch */
    DDP__FRAME_EPOCH, /* payload: the epoch that all later frames belong to */
    DDP__FRAME_DONE,  /* operations completed: all before seq, and seq + i if bit i of offset << 32 | count is
                         set */
    DDP__FRAME_WANT,  /* requests the result of operation seq */
    /* between ranks that are threads of one process (share.c), without payload */
    DDP__FRAME_OFFER, /* all-reduce: the sender's values may be used in place, through its offer number
                         `offset`. Needs a credit. */
    /* the sender has no more chunks to add. With offset > 0 it found that the values of the receiver were
     * overwritten, from offset - 1 on. */
    DDP__FRAME_SUMMED
} ddp__frame_type;

enum { DDP__CODING_BLOCK = 64 };

/* One decoded header. verb, count and layer describe the sender's operation, for the mismatch check. */
typedef struct ddp__frame {
    int type;
    int p2p;  /* 1: seq counts the messages of this pair of ranks and lane (its two upper bits), not
                 collectives */
    int verb; /* up to DDP__ASK */
    uint32_t seq;
    uint32_t count;  /* values of the whole operation */
    uint32_t offset; /* first value of this chunk */
    uint32_t length; /* payload bytes */
    int32_t layer;
    int coding;     /* of the values: ddp_coding */
    uint32_t sent;  /* emulated links: when the last byte left, in microseconds of the sender's clock */
    uint32_t check; /* CRC-32C of the payload. 0 means that no checksum was sent. */
} ddp__frame;

/* The number of values in the payload, or SIZE_MAX if no number of values has this length. */
DDP_LIB size_t ddp__frame_values(const ddp__frame *f);
DDP_LIB int ddp__in_blocks(int coding);           /* 1 if the coding uses blocks of DDP__CODING_BLOCK values
                                                     with one scale each */
DDP_LIB const char *ddp__coding_name(int coding); /* "int8 blocks" */
/* The value of the setting `wire` for this format: "f32", "bf16", "int8", "int4" or "e3m0". */
DDP_LIB const char *ddp__coding_wire(ddp_coding coding);
DDP_LIB size_t ddp__frame_payload(int coding, size_t count); /* bytes of a payload of count values */
/* Encodes a header, little-endian: magic u16, version:5 coding:3, type:4 p2p:1 verb:3, seq, count, offset,
 * length, layer, sent, check, CRC-32C of the 32 bytes before it (so a stream out of step is detected at
 * once). */
DDP_LIB void ddp__frame_encode(const ddp__frame *f, unsigned char *head);
/* Decodes a header. Returns 0 if magic, version, checksum or type are wrong, else 1. */
DDP_LIB int ddp__frame_decode(const unsigned char *head, ddp__frame *f);

/* CRC-32C (Castagnoli), as in iSCSI: RFC 3720 appendix B.4. h is the checksum of the preceding bytes, or 0
 * for the first call. */
DDP_LIB uint32_t ddp__crc32c(uint32_t h, const void *data, size_t n);
