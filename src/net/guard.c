/* Detection of writes to memory in flight: every chunk is hashed when the message is submitted
 * and compared before it leaves, before it is summed and before a result overwrites it. */
#include "net/state.h"

static int ddp__guarded(const ddp__engine *e, const ddp__op *op)
{
    if (!e->cfg.check_writes) return 0;
    if (op->m.verb == DDP__BROADCAST) return op->m.peer == e->rank;
    return op->m.verb == DDP__ALL_REDUCE || op->m.verb == DDP__SEND;
}

static uint64_t ddp__hash_range(ddp__engine *e, const ddp__op *op, size_t offset, size_t count)
{
    uint64_t h = offset;
    while (count > 0) {
        size_t here;
        float *data = ddp__memory_at(op, offset, count, &here);
        h = e->memory.checksum(h, data, here);
        offset += here;
        count -= here;
    }
    return h;
}

/* Chunks are numbered through the segments, each segment beginning a new one. */
static size_t ddp__hash_index(const ddp__engine *e, const ddp__op *op, size_t offset)
{
    size_t from = 0, to = op->n, per;
    int of = 0;

    if (op->m.verb != DDP__ALL_REDUCE) return offset / e->chunk;
    per = (op->n / (size_t)e->world + 1 + e->chunk - 1) / e->chunk;
    while (of < e->world) {
        ddp__segment(e, op, of, &from, &to);
        if (offset < to) break;
        of++;
    }
    return (size_t)of * per + (offset - from) / e->chunk;
}

void ddp__guard_update(ddp__engine *e, ddp__op *op, size_t offset, size_t count)
{
    if (ddp__guarded(e, op))
        op->sums[ddp__hash_index(e, op, offset)] = ddp__hash_range(e, op, offset, count);
}

void ddp__guard_all(ddp__engine *e, ddp__op *op)
{
    int segments = op->m.verb == DDP__ALL_REDUCE ? e->world : 1;

    for (int s = 0; s < segments; s++) {
        size_t from = 0, to = op->n;
        if (segments > 1) ddp__segment(e, op, s, &from, &to);
        for (size_t at = from; at < to; at += e->chunk)
            ddp__guard_update(e, op, at, to - at < e->chunk ? to - at : e->chunk);
    }
}

int ddp__guard_check(ddp__engine *e, ddp__op *op, size_t offset, size_t count)
{
    char layer[64];

    if (!ddp__guarded(e, op)) return 1;
    if (op->sums[ddp__hash_index(e, op, offset)] == ddp__hash_range(e, op, offset, count)) return 1;
    ddp__layer_text(e, op->m.layer, layer, sizeof layer);
    ddp__fault(e, DDP_USAGE, "%s was written while it was being %s (step %ld): do not touch parameters "
               "between ddp_backward_end and ddp_forward_begin / ddp_step_end", layer,
               op->m.verb == DDP__ALL_REDUCE ? "averaged" : "sent", op->m.step);
    return 0;
}
