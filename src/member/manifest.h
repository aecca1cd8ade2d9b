/* A checkpoint's manifest: what all ranks' files are of. It is written last, so that there is none of half a
 * checkpoint. */
#ifndef DDP_MEMBER_MANIFEST_H
#define DDP_MEMBER_MANIFEST_H

#include "member/state.h"

/* What a rank says of its file; hash 0: it was lost. */
typedef struct ddp__said {
    uint64_t hash, common; /* ddp__worker_hash */
    uint64_t cut, copy;    /* of its shares; of the model, from 0 */
} ddp__said;

enum { DDP__SAID_WORDS = sizeof(ddp__said) / sizeof(uint64_t) };

typedef struct ddp__manifest {
    ddp__json  *root;
    long        step;
    int         world, copies, period, synchronised, generation;
    uint64_t    run;
    const char *strategy, *optimizer, *model; /* borrowed of root */
    ddp__said  *said; /* [world] but common */
} ddp__manifest;

/* said: [s->world]. */
DDP_LIB ddp_status ddp__manifest_write(const ddp__worker *s, const char *path, const ddp__said *said, int generation,
                                       ddp_error *err);
/* m is to be freed also after an error. */
DDP_LIB ddp_status ddp__manifest_read(const char *path, ddp__manifest *m, ddp_error *err);
DDP_LIB void       ddp__manifest_free(ddp__manifest *m);
/* Is it of this model, and may this run take it? *kin: of as many copies, this strategy and period, so that each copy
 * goes on as it was. */
DDP_LIB ddp_status ddp__manifest_fits(const ddp__worker *s, const char *path, const ddp__manifest *m, int *kin,
                                      ddp_error *err);
/* Fingerprint of the run and of all its files. */
DDP_LIB uint64_t ddp__manifest_hash(const ddp__manifest *m);

#endif /* DDP_MEMBER_MANIFEST_H */
