/* Where ranks that are threads of one process offer each other their memory; comm/share.c has the
 * rules. */
#ifndef DDP_WIRE_OFFER_H
#define DDP_WIRE_OFFER_H

#include "base/status.h"

struct ddp__op;
struct ddp__exchange;

/* What one rank offers in one position of its window. */
typedef struct ddp__offer {
    long   users;      /* how many are at work on it, + DDP__OFFER_OPEN while others may begin */
    size_t next;       /* of the team's first rank: the next chunk that nobody has taken */
    const struct ddp__op *op;     /* the owner's: where its values are */
    struct ddp__exchange *row;    /* [world] the owner's: who adds what to its divergence */
    char   gap[64 - 2 * sizeof(void *) - sizeof(long) - sizeof(size_t)];
} ddp__offer;

enum {
    DDP__OFFER_OPEN = 1 << 30,
    DDP__OFFERS = 16 /* of one rank: as many as it has collectives in flight */
};

#endif /* DDP_WIRE_OFFER_H */
