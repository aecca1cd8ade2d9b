/* What ddp_muon needs besides its state: room for a matrix, and threads. */
#ifndef DDP_NN_MUON_H
#define DDP_NN_MUON_H

#include "base/core.h"
#include "nn/optimizer.h"

/* ddp_update.desk of a matrix: working memory of ddp__muon_room floats, and who computes (NULL: the caller). */
typedef struct ddp__muon_desk {
    float     *at;
    ddp__pool *pool;
} ddp__muon_desk;

DDP_LIB size_t ddp__muon_room(size_t rows, size_t columns);
DDP_LIB int    ddp__is_muon(const ddp_optimizer *o);

#endif /* DDP_NN_MUON_H */
