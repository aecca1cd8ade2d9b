/* What a message points at: its values in pieces, and the detection of foreign writes to them: every
 * chunk is hashed when the message is submitted and compared before it leaves, before it is summed
 * and before a result overwrites it. */
#include "comm/state.h"

void *ddp__memory_at(const ddp__op *op, const ddp__strips *in, size_t offset, size_t count, size_t *here)
{
    int low = 0, high = in->count - 1;
    const ddp__strip *s;

    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (in->strip[middle].start <= offset) low = middle;
        else high = middle - 1;
    }
    s = &in->strip[low];
    *here = s->start + s->count - offset;
    if (*here > count) *here = count;
    return s->data + (offset - s->start) * op->unit;
}

const ddp__strips *ddp__result_of(const ddp__op *op) { return op->m.add ? &op->from : &op->to; }

void ddp__memory_gather(const ddp__op *op, size_t at, size_t count, void *out)
{
    size_t done = 0, here;

    for (; done < count; done += here) {
        const void *own = ddp__memory_at(op, &op->from, at + done, count - done, &here);
        memcpy((unsigned char *)out + done * op->unit, own, here * op->unit);
    }
}

/* Two lists may part a range in unlike ways: how far both run on. */
static size_t ddp__both_at(const ddp__op *op, size_t at, size_t count, float **result, float **to)
{
    size_t here;

    *result = (float *)ddp__memory_at(op, ddp__result_of(op), at, count, &here);
    *to = (float *)ddp__memory_at(op, &op->to, at, here, &here);
    return here;
}

void ddp__memory_store(ddp__engine *e, ddp__op *op, size_t at, const void *data, size_t count, double *divergence)
{
    const unsigned char *from = (const unsigned char *)data;
    size_t here;

    for (; count > 0; at += here, count -= here, from += here * op->unit) {
        void *to = ddp__memory_at(op, &op->to, at, count, &here);
        if (op->m.add) e->memory.add((float *)to, (const float *)(const void *)from, here);
        else if (op->unit == 1) memcpy(to, from, here);
        else e->memory.store((float *)to, (const float *)(const void *)from, here, divergence);
    }
}

void ddp__memory_sum(ddp__engine *e, ddp__op *op, size_t at, size_t count, int place, int terms, double *divergence)
{
    size_t here;

    for (; count > 0; at += here, count -= here) {
        float *result, *to;
        here = ddp__both_at(op, at, count, &result, &to);
        e->terms[place] = (const float *)ddp__memory_at(op, &op->from, at, here, &here);
        e->memory.reduce(result, e->terms, place, terms, here, op->scale, divergence);
        if (op->m.add) e->memory.add(to, result, here);
        for (int i = 0; i < terms; i++) e->terms[i] += here;
    }
}

/* ---- foreign writes ---- */

ddp_status ddp__engine_guard(ddp__engine *e, size_t max_count, ddp_error *err)
{
    size_t room = max_count / e->chunk + 2 * (size_t)e->world + 2;
    size_t bytes = (size_t)e->cfg.queue * room * sizeof(uint64_t);
    ddp_status status = DDP_OK;
    uint64_t *sums = (uint64_t *)ddp__alloc(&e->cfg.allocator, bytes);

    if (!sums)
        return ddp__fail(err, DDP_MEMORY, "the check of writes needs %lu bytes and got none", (unsigned long)bytes);
    pthread_mutex_lock(&e->lock);
    if (e->first != e->submitted) {
        status = ddp__fail(err, DDP_USAGE,
                           "the check of writes cannot begin while %ld messages are in flight",
                           e->submitted - e->first);
        ddp__release(&e->cfg.allocator, sums, bytes);
    } else {
        ddp__guard_close(e);
        e->sums = sums;
        e->sums_room = room;
        e->sums_count = max_count;
        e->stats.staging_bytes += bytes;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

void ddp__guard_close(ddp__engine *e)
{
    size_t bytes = (size_t)e->cfg.queue * e->sums_room * sizeof(uint64_t);

    if (!e->sums) return;
    ddp__release(&e->cfg.allocator, e->sums, bytes);
    e->stats.staging_bytes -= bytes;
    e->sums = NULL;
}

static int ddp__guards(const ddp__engine *e, const ddp__op *op)
{
    if (!e->sums || op->unit != sizeof(float) || op->n > e->sums_count) return 0;
    if (op->m.verb == DDP_BROADCAST) return ddp__root(e, op) == e->rank;
    return op->m.verb == DDP_ALL_REDUCE || (op->p2p && op->m.verb < DDP_RECEIVE);
}

static uint64_t ddp__hash_range(ddp__engine *e, const ddp__op *op, size_t offset, size_t count)
{
    uint64_t h = offset;

    while (count > 0) {
        size_t here;
        const void *data = ddp__memory_at(op, &op->from, offset, count, &here);
        h = e->memory.checksum(h, (const float *)data, here);
        offset += here;
        count -= here;
    }
    return h;
}

/* Chunks are numbered through the segments, each segment beginning a new one. */
static size_t ddp__hash_index(const ddp__engine *e, const ddp__op *op, size_t offset)
{
    const ddp__members team = ddp__team_of(e, op);
    size_t from, to, per;
    int of;

    if (op->m.verb != DDP_ALL_REDUCE || op->way->whole) return offset / e->chunk;
    per = (op->n / (size_t)team.members + 1 + e->chunk - 1) / e->chunk;
    of = ddp__segment_of(e, op, offset);
    ddp__segment(e, op, of, &from, &to);
    return (size_t)team.place[of] * per + (offset - from) / e->chunk;
}

/* Hashes are of what was sent or summed: a result elsewhere changes nothing of that. */
void ddp__guard_update(ddp__engine *e, ddp__op *op, size_t offset, size_t count)
{
    if (op->sums) op->sums[ddp__hash_index(e, op, offset)] = ddp__hash_range(e, op, offset, count);
}

void ddp__guard_all(ddp__engine *e, ddp__op *op)
{
    const ddp__members team = ddp__team_of(e, op);
    int segments = op->m.verb == DDP_ALL_REDUCE && !op->way->whole ? team.members : 1;

    if (op->m.after || !ddp__guards(e, op)) return; /* written by the one before until it begins */
    op->sums = e->sums + (size_t)(op->ticket % e->cfg.queue) * e->sums_room;
    for (int s = 0; s < segments; s++) {
        size_t from = 0, to = op->n;
        if (segments > 1) ddp__segment(e, op, team.member[s], &from, &to);
        for (size_t at = from; at < to; at += e->chunk)
            ddp__guard_update(e, op, at, to - at < e->chunk ? to - at : e->chunk);
    }
}

int ddp__guard_intact(ddp__engine *e, const ddp__op *op, size_t offset, size_t count)
{
    return !op->sums || op->sums[ddp__hash_index(e, op, offset)] == ddp__hash_range(e, op, offset, count);
}

void ddp__guard_fault(ddp__engine *e, const ddp__op *op)
{
    char layer[64];

    ddp__layer_text(e, op->m.layer, layer, sizeof layer);
    ddp__fault(e, DDP_USAGE,
               "%s was written while it was being %s (step %ld): do not touch parameters "
               "between ddp_backward_end and ddp_forward_begin / ddp_step_end",
               layer, op->m.verb == DDP_ALL_REDUCE ? "averaged" : "sent", op->m.step);
}

int ddp__guard_check(ddp__engine *e, ddp__op *op, size_t offset, size_t count)
{
    if (ddp__guard_intact(e, op, offset, count)) return 1;
    ddp__guard_fault(e, op);
    return 0;
}
