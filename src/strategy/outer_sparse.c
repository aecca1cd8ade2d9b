/* Changes that travel as the largest of each chunk (SparseLoCo, arXiv:2508.15706): what is not sent is kept, decays and
 * comes later. Every rank gets what all sent, adds it up in rank order and takes the outer step itself. */
#include "compress/compress.h"
#include "strategy/outer.h"

#define DDP__SPARSE_DECAY 0.95f

int ddp__sparse_start(ddp_ctx *d, ddp__outer_layer *y)
{
    y->block = 1 + ddp_sparse_bytes(y->count, y->all->keep);
    y->blocks = ddp_blocks_of(d, ddp_group_of(d, y->layer), &y->place);
    y->error = ddp_keep(d, y->layer, "residual", y->count, 0);
    if (!y->error) return DDP_FAILED;
    y->gather = (unsigned char *)ddp__calloc((size_t)y->blocks, y->block);
    if (y->gather) return 0;
    return ddp_complain(d, DDP_MEMORY, "out of memory for the sparse changes of %d ranks", y->blocks);
}

int ddp__sparse_send(ddp_ctx *d, ddp__outer_layer *y, const ddp_message *like)
{
    unsigned char *own = y->gather + (size_t)y->place * y->block;
    ddp_piece all;
    ddp_message m = *like;
    ddp_error err;

    if (ddp_scale(d, y->error, y->count, DDP__SPARSE_DECAY) || ddp_axpy(d, y->error, y->x, y->count, 1))
        return DDP_FAILED;
    *own = 1;
    if (ddp_sparse_pack(y->error, y->count, y->all->keep, own + 1, y->block - 1, y->all->scratch,
                        y->all->scratch_bytes, &err))
        return ddp_complain(d, err.code, "step %ld: what layer %d changed by cannot travel: %.200s; lower the learning "
                            "rate, warm it up or clip gradients", ddp_step(d), y->layer, err.msg);
    all.bytes = y->gather;
    all.count = (size_t)y->blocks * y->block;
    m.verb = DDP_ALL_GATHER;
    m.mean = 0;
    m.bytes = 1;
    m.coding = DDP_AS_FLOAT;
    m.from = &all;
    m.from_count = 1;
    return ddp_post(d, &m, &y->ticket);
}

int ddp__sparse_arrive(ddp_ctx *d, ddp__outer_layer *y)
{
    int sent = 0, bad = ddp_set(d, y->x, y->count, 0);
    ddp_error err;

    for (int r = 0; r < y->blocks && !bad; r++) {
        const unsigned char *p = y->gather + (size_t)r * y->block;
        if (!*p) continue; /* it was lost */
        sent++;
        if (ddp_sparse_add(p + 1, y->block - 1, y->all->keep, y->x, y->count, &err))
            bad = ddp_complain(d, DDP_NET, "step %ld: what rank %d sent of layer %d is damaged: %.200s", ddp_step(d), r,
                               y->layer, err.msg);
    }
    return bad ? bad : ddp_scale(d, y->x, y->count, 1.0f / (float)(sent ? sent : 1));
}
