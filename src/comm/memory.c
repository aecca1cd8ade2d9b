/* Operations on the memory of messages: arithmetic, lists of pieces, wire formats, and the detection of
 * foreign writes. To detect those, every chunk is hashed when the message is submitted. The hash is compared
 * before the chunk is sent, before it is summed and before a result overwrites it. */
#include "comm/state.h"
#include <sys/mman.h>

/* ---- arithmetic ---- */

/* Sums are computed in a block that stays in the first-level cache, so that every term is read from memory
 * once. Its fixed length lets compilers vectorise at -O2. */
enum { DDP__SUM_BLOCK = 1024 };

static void ddp__add_block(float *DDP_RESTRICT sum, const float *DDP_RESTRICT x)
{
    for (int i = 0; i < DDP__SUM_BLOCK; i++) sum[i] += x[i];
}

static void ddp__scale_block(float *x, float scale)
{
    for (int i = 0; i < DDP__SUM_BLOCK; i++) x[i] *= scale;
}

void ddp__floats_add(float *sum, const float *x, size_t n)
{
    size_t at = 0;

    for (; at + DDP__SUM_BLOCK <= n; at += DDP__SUM_BLOCK) ddp__add_block(sum + at, x + at);
    for (; at < n; at++) sum[at] += x[at];
}

static double ddp__distance(const float *DDP_RESTRICT a, const float *DDP_RESTRICT b, size_t count)
{
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        double d0 = (double)a[i] - (double)b[i], d1 = (double)a[i + 1] - (double)b[i + 1];
        double d2 = (double)a[i + 2] - (double)b[i + 2], d3 = (double)a[i + 3] - (double)b[i + 3];
        s0 += d0 * d0;
        s1 += d1 * d1;
        s2 += d2 * d2;
        s3 += d3 * d3;
    }
    for (; i < count; i++) s0 += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return (s0 + s1) + (s2 + s3);
}

void ddp__floats_store(float *own, const float *from, size_t n, double *divergence)
{
    if (divergence) *divergence += ddp__distance(from, own, n);
    memcpy(own, from, n * sizeof *own);
}

void ddp__floats_sum(float *own, const float *const *terms, int count, size_t n, float scale,
                     double *divergence)
{
    float sum[DDP__SUM_BLOCK];

    for (size_t at = 0; at < n; at += DDP__SUM_BLOCK) {
        const size_t here = n - at < DDP__SUM_BLOCK ? n - at : (size_t)DDP__SUM_BLOCK;
        memcpy(sum, terms[0] + at, here * sizeof *sum);
        for (int i = 1; i < count; i++) ddp__floats_add(sum, terms[i] + at, here);
        if (here == DDP__SUM_BLOCK) ddp__scale_block(sum, scale);
        for (size_t i = 0; here < DDP__SUM_BLOCK && i < here; i++) sum[i] *= scale;
        ddp__floats_store(own + at, sum, here, divergence);
    }
}

static uint32_t ddp__bfloat_bits(float x)
{
    uint32_t bits, nan;

    memcpy(&bits, &x, sizeof bits);
    nan = (bits & 0x7fffffffu) > 0x7f800000u; /* rounding up could carry a NaN into infinity */
    return nan ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

void ddp__bfloat_halve(uint16_t *out, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = (uint16_t)ddp__bfloat_bits(x[i]);
}

void ddp__bfloat_widen(float *out, const uint16_t *x, size_t n)
{
    /* Forward order: if x is the second half of out, value i of out ends before value i + 1 of x. */
    const unsigned char *from = (const unsigned char *)x;

    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        uint32_t bits;
        memcpy(&half, from + 2 * i, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy((unsigned char *)out + 4 * i, &bits, sizeof bits);
    }
}

void ddp__bfloat_round(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = ddp__bfloat_bits(x[i]) << 16;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

/* ---- pieces ---- */

ddp_status ddp__engine_pieces(ddp__engine *e, size_t pieces, ddp_error *err)
{
    const size_t room = 2 * pieces, bytes = room * sizeof(ddp__strip);
    ddp_status status = DDP_OK;
    ddp__strip *strips;

    if (room <= (size_t)e->strip_room) return DDP_OK;
    strips = (ddp__strip *)ddp__alloc(&e->cfg.allocator, bytes);
    if (!strips)
        return ddp__fail(err, DDP_MEMORY, "out of memory: messages of %lu arrays need %lu bytes",
                         (unsigned long)pieces, (unsigned long)bytes);
    pthread_mutex_lock(&e->lock);
    if (e->first != e->submitted) {
        status =
            ddp__fail(err, DDP_USAGE,
                      "cannot allocate memory for messages of %lu arrays while %ld messages are in flight",
                      (unsigned long)pieces, e->submitted - e->first);
        ddp__release(&e->cfg.allocator, strips, bytes);
    } else {
        ddp__strips_close(e);
        e->strips = strips;
        e->strip_room = (long)room;
        e->strips_grown = 1;
        e->strips_head = e->strips_tail = 0;
        e->stats.staging_bytes += bytes;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

void ddp__strips_close(ddp__engine *e)
{
    const size_t bytes = (size_t)e->strip_room * sizeof *e->strips;

    if (!e->strips_grown) return;
    ddp__release(&e->cfg.allocator, e->strips, bytes);
    e->stats.staging_bytes -= bytes;
    e->strips_grown = 0;
}

void *ddp__memory_at(const ddp__op *op, const ddp__strips *in, size_t offset, size_t count, size_t *here)
{
    int low = 0, high = in->count - 1;
    const ddp__strip *s;

    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (in->strip[middle].start <= offset)
            low = middle;
        else
            high = middle - 1;
    }
    s = &in->strip[low];
    *here = s->start + s->count - offset;
    if (*here > count) *here = count;
    return s->data + (offset - s->start) * op->unit;
}

int ddp__memory_there(ddp__engine *e, const ddp__op *op, size_t at)
{
    const ddp__strips *const in[] = {&op->from, &op->to};
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    char text[160];

    for (int i = 0; i < 2; i++) {
        const ddp__strip *last = in[i]->strip + in[i]->count - 1;
        size_t here;
        uintptr_t p;
        if (in[i]->count == 0 || at >= last->start + last->count) continue;
        p = (uintptr_t)ddp__memory_at(op, in[i], at, 1, &here) / page * page;
        if (p != e->looked_at[0] && p != e->looked_at[1] && msync((void *)p, 1, MS_ASYNC) && errno == ENOMEM)
            return ddp__fault(e, DDP_USAGE,
                              "the memory for %s was freed before it was done: free a layer's arrays after "
                              "ddp_sync_all or ddp_close",
                              ddp__op_text(e, op, text, sizeof text));
        e->looked_at[i] = p;
    }
    return 1;
}

const ddp__strips *ddp__result_of(const ddp__op *op) { return op->m.add ? &op->from : &op->to; }

const ddp__strips *ddp__sent_from(const ddp__engine *e, const ddp__op *op, const ddp__frame *f)
{
    const int forwards = op->m.verb == DDP_BROADCAST && ddp__root(e, op) != e->rank;

    return forwards || f->type == DDP__FRAME_RESULT ? ddp__result_of(op) : &op->from;
}

void ddp__memory_copy(const ddp__op *op, const ddp__strips *in, size_t at, size_t count, void *row, int back)
{
    size_t here;

    for (unsigned char *flat = (unsigned char *)row; count > 0;
         at += here, count -= here, flat += here * op->unit) {
        void *own = ddp__memory_at(op, in, at, count, &here);
        memcpy(back ? own : flat, back ? flat : own, here * op->unit);
    }
}

void ddp__memory_store(const ddp__op *op, size_t at, const void *data, size_t count, double *divergence)
{
    const float *from = (const float *)data;
    size_t here;

    for (size_t done = 0; done < count; done += here) {
        void *to = ddp__memory_at(op, &op->to, at + done, count - done, &here);
        if (op->unit == 1)
            memcpy(to, (const char *)data + done, here);
        else if (op->m.add)
            ddp__floats_add((float *)to, from + done, here);
        else
            ddp__floats_store((float *)to, from + done, here, divergence);
    }
}

void ddp__memory_sum(ddp__engine *e, ddp__op *op, size_t at, size_t count, int place, int terms, float scale,
                     double *divergence)
{
    size_t here;

    for (; count > 0; at += here, count -= here) {
        /* three lists may divide the range differently: `here` is contiguous in all three */
        float *result = (float *)ddp__memory_at(op, ddp__result_of(op), at, count, &here);
        float *to = (float *)ddp__memory_at(op, &op->to, at, here, &here);
        e->terms[place] = (const float *)ddp__memory_at(op, &op->from, at, here, &here);
        ddp__floats_sum(result, e->terms, terms, here, scale, divergence);
        if (op->m.verb == DDP_ALL_REDUCE && op->m.owner)
            op->m.owner->rule(op->m.owner->user, at, result, here);
        if (op->m.add) ddp__floats_add(to, result, here);
        for (int i = 0; i < terms; i++) e->terms[i] += here;
    }
}

/* ---- values that are not sent as floats ----
 *
 * All-reduces whose contributions and results are coded. Sums are in float, in rank order. The owner of a
 * segment rounds its own contribution as the other ranks do, so that the division into segments does not
 * affect the result, and stores the result as it sends it. Blocks begin at multiples of their length from the
 * start of the message (ddp__segment). */

static int ddp__code_fault(ddp__engine *e, const ddp__op *op, const ddp_error *err)
{
    char text[160];

    return ddp__fault(e, DDP_NUMERIC,
                      "cannot encode %s as %s: %.200s; lower the learning rate, clip gradients or choose "
                      "another wire format",
                      ddp__op_text(e, op, text, sizeof text), ddp__coding_name((int)op->m.coding), err->msg);
}

/* Rounds x to the values that the other ranks will decode. Returns 0 after a failure. */
static int ddp__code_round(ddp__engine *e, const ddp__op *op, float *x, size_t count)
{
    unsigned char *room = (unsigned char *)e->recoded;
    ddp_error err;

    if (op->m.coding == DDP_AS_BFLOAT) {
        ddp__bfloat_round(x, count);
        return 1;
    }
    if (e->cfg.coder->encode(e->cfg.coding, room, x, count, &err) ||
        e->cfg.coder->decode(e->cfg.coding, x, room, count, &err))
        return ddp__code_fault(e, op, &err);
    return 1;
}

int ddp__code_frame(ddp__engine *e, int peer, ddp__op *op, const ddp__frame *f)
{
    ddp__peer *p = &e->peers[peer];
    size_t count = ddp__frame_values(f);
    ddp_error err;

    ddp__memory_copy(op, f->type == DDP__FRAME_RESULT ? ddp__result_of(op) : &op->from, f->offset, count,
                     e->rounded, 0);
    if (f->coding == (int)DDP_AS_BFLOAT)
        ddp__bfloat_halve(p->coded, e->rounded, count);
    else if (e->cfg.coder->encode(e->cfg.coding, (unsigned char *)p->coded, e->rounded, count, &err))
        return ddp__code_fault(e, op, &err);
    return 1;
}

int ddp__decode_slot(ddp__engine *e, int peer, ddp__slot *s)
{
    size_t count = ddp__frame_values(&s->f);
    ddp_error err;

    if (s->f.coding == (int)DDP_AS_BFLOAT) {
        ddp__bfloat_widen(s->data, (const uint16_t *)(const void *)s->data + count, count);
        return 1;
    }
    memcpy(e->recoded, s->data, s->f.length);
    if (e->cfg.coder->decode(e->cfg.coding, s->data, (const unsigned char *)e->recoded, count, &err) ==
        DDP_OK)
        return 1;
    return ddp__fault(e, DDP_NET, "rank %d sent a chunk of operation %lu with invalid %s: %.200s", peer,
                      (unsigned long)s->f.seq, ddp__coding_name(s->f.coding), err.msg);
}

int ddp__reduce_coded(ddp__engine *e, ddp__op *op, size_t at, size_t count, int place, int terms,
                      double *divergence)
{
    float *sum = e->rounded;

    ddp__memory_copy(op, &op->from, at, count, sum, 0);
    if (!ddp__code_round(e, op, sum, count)) return 0;
    e->terms[place] = sum;
    ddp__floats_sum(sum, e->terms, terms, count, op->scale, NULL);
    if (op->m.owner) op->m.owner->rule(op->m.owner->user, at, sum, count);
    if (op->m.residual) memcpy(e->exact, sum, count * sizeof *sum);
    if (!ddp__code_round(e, op, sum, count)) return 0;
    for (size_t i = 0; op->m.residual && i < count; i++)
        op->m.residual[at + i] += (e->exact[i] - sum[i]) / op->scale;
    if (op->m.add)
        ddp__memory_copy(op, ddp__result_of(op), at, count, sum, 1); /* the owner sends the result from
                                                                        there */
    ddp__memory_store(op, at, sum, count, divergence);
    return 1;
}

/* 1 for -0.0 with int8, which is sent unchanged: all ranks may have skipped the layer, whose residual then
 * stays. 0 for other values. */
static int ddp__is_none(const ddp__op *op, float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return op->m.coding == DDP_AS_INT8 && bits == 0x80000000u;
}

void ddp__residual_add(const ddp__op *op, size_t at, size_t count)
{
    size_t here;

    for (; count > 0; at += here, count -= here) {
        float *x = (float *)ddp__memory_at(op, &op->from, at, count, &here), *rest = op->m.residual + at;
        for (size_t i = 0; i < here; i++) {
            if (ddp__is_none(op, x[i])) continue;
            if (rest[i] != 0) x[i] += rest[i]; /* -0 stays -0 */
            rest[i] = 0;
        }
    }
}

/* Rounds the input to the values that the other ranks will decode. Chunks are whole blocks. */
int ddp__code_input(ddp__engine *e, const ddp__op *op, size_t at, size_t n)
{
    enum { SOME = 64 * DDP__CODING_BLOCK };
    const size_t end = at + n, most = e->chunk < SOME ? e->chunk : (size_t)SOME;
    unsigned char none[SOME];
    size_t count;

    for (; at < end; at += count) {
        float *x = e->rounded, *rest = op->m.residual + at;
        count = end - at < most ? end - at : most;
        ddp__memory_copy(op, &op->from, at, count, x, 0);
        for (size_t i = 0; i < count; i++) {
            none[i] = (unsigned char)ddp__is_none(op, x[i]);
            if (!none[i]) rest[i] = x[i] += rest[i];
        }
        if (!ddp__code_round(e, op, x, count)) return 0;
        for (size_t i = 0; i < count; i++)
            if (!none[i]) rest[i] -= x[i];
        ddp__memory_copy(op, &op->from, at, count, x, 1);
    }
    return 1;
}

/* ---- detection of foreign writes ---- */

ddp_status ddp__engine_guard(ddp__engine *e, size_t max_count, ddp_error *err)
{
    size_t room = max_count / e->chunk + 2 * (size_t)e->world + 2;
    size_t bytes = (size_t)e->cfg.queue * room * sizeof(uint64_t);
    ddp_status status = DDP_OK;
    uint64_t *sums = (uint64_t *)ddp__alloc(&e->cfg.allocator, bytes);

    if (!sums)
        return ddp__fail(err, DDP_MEMORY, "out of memory: the check of writes needs %lu bytes",
                         (unsigned long)bytes);
    pthread_mutex_lock(&e->lock);
    if (e->first != e->submitted) {
        status =
            ddp__fail(err, DDP_USAGE, "cannot start the check of writes while %ld messages are in flight",
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
    if (!e->sums || op->m.levels || op->unit != sizeof(float) || op->n > e->sums_count) return 0;
    if (op->m.verb == DDP_BROADCAST) return ddp__root(e, op) == e->rank;
    return op->m.verb == DDP_ALL_REDUCE || (op->p2p && op->m.verb < DDP_RECEIVE);
}

static uint64_t ddp__hash_range(const ddp__op *op, size_t offset, size_t count)
{
    uint64_t h = offset;
    size_t here;

    for (; count > 0; offset += here, count -= here) {
        const void *data = ddp__memory_at(op, &op->from, offset, count, &here);
        h = ddp_hash_floats(h, (const float *)data, here);
    }
    return h;
}

/* Chunks are numbered from the start of each segment of an all-reduce. Adding the segment's index makes the
 * numbers unique. */
static size_t ddp__hash_index(const ddp__engine *e, const ddp__op *op, size_t offset)
{
    const int sums = op->m.verb == DDP_ALL_REDUCE;

    return offset / e->chunk + (sums ? (size_t)ddp__team_of(e, op).place[ddp__segment_of(e, op, offset)] : 0);
}

/* Hashes cover the values that are sent or summed. A result that is stored elsewhere does not change them. */
void ddp__guard_update(ddp__engine *e, ddp__op *op, size_t offset, size_t count)
{
    if (op->sums) op->sums[ddp__hash_index(e, op, offset)] = ddp__hash_range(op, offset, count);
}

void ddp__guard_all(ddp__engine *e, ddp__op *op)
{
    const ddp__members team = ddp__team_of(e, op);
    int segments = op->m.verb == DDP_ALL_REDUCE && !op->way->whole ? team.members : 1;

    if (op->m.after || !ddp__guards(e, op)) return; /* written by its predecessor until it begins */
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
    return !op->sums || op->sums[ddp__hash_index(e, op, offset)] == ddp__hash_range(op, offset, count);
}

int ddp__guard_fault(ddp__engine *e, const ddp__op *op)
{
    char layer[64];

    ddp__layer_text(e, op->m.layer, layer, sizeof layer);
    return ddp__fault(e, DDP_USAGE,
                      "%s was written while it was being %s (step %ld): do not touch parameters between "
                      "ddp_backward_end and ddp_forward_begin / ddp_step_end",
                      layer, op->m.verb == DDP_ALL_REDUCE ? "averaged" : "sent", op->m.step);
}

int ddp__guard_check(ddp__engine *e, ddp__op *op, size_t offset, size_t count)
{
    return ddp__guard_intact(e, op, offset, count) || ddp__guard_fault(e, op);
}
