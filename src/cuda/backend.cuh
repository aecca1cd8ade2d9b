/* The backend table of a GPU (base/backend.h): opening, memory, copies, averages, and which of its
 * functions stand elsewhere. */
#ifndef DDP_CUDA_BACKEND_CUH
#define DDP_CUDA_BACKEND_CUH

#include "cuda/batch_norm.cuh"
#include "cuda/conv.cuh"
#include "cuda/pool.cuh"
#include "cuda/text.cuh"
#include "cuda/update.cuh"

/* ---- opening ---- */

static void ddp__cuda_backend_close(void *self)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;

    if (!c) return;
    if (c->dev) {
        (void)cudaSetDevice(c->dev->device);
        ddp__cuda_raise_all(c);
        (void)cudaStreamSynchronize(c->dev->stream);
        ddp__cuda_free_slots(c);
        ddp__cuda_free_marks(c);
        ddp__cuda_events_free(c->ring_free, DDP__UPLOAD_PARTS);
        if (c->ring) (void)cudaFreeHost(c->ring);
        if (c->early) (void)cudaFreeHost(c->early);
        if (c->early_done) (void)cudaEventDestroy(c->early_done);
        if (c->squares) (void)cudaFree(c->squares);
        ddp__cuda_close(c->dev);
    }
    if (c->mirror) DDP_FREE(c->mirror);
    DDP_FREE(c);
}

static ddp_status ddp__cuda_backend_open(const ddp_backend *b, int local_rank, void *stream,
                                         void **self, ddp_error *err)
{
    ddp__cuda_self *c = (ddp__cuda_self *)ddp__calloc(1, sizeof *c);
    int device = b->device, n = 0;
    ddp__cuda *dev;

    if (!c) return ddp__fail(err, DDP_MEMORY, "out of memory for the state of a GPU");
    if (device < 0) { /* the ranks of a machine share its GPUs out */
        device = cudaGetDeviceCount(&n) == cudaSuccess && n > 0 ? local_rank % n : 0;
        (void)cudaGetLastError();
    }
    c->dev = dev = ddp__cuda_open(device, (ddp_cuda_numbers)b->numbers, stream, err);
    if (!dev) {
        DDP_FREE(c);
        return err->code;
    }
    ddp__cuda_elementwise_ops(dev);
    ddp__cuda_text_ops(dev);
    ddp__cuda_conv_ops(dev);
    ddp__cuda_batch_norm_ops(dev);
    ddp__cuda_pool_ops(dev);
    ddp__cuda_load_arithmetic(dev);
    if (!DDP__CUDA(dev, cudaMallocHost((void **)&c->ring, DDP__UPLOAD_PARTS * DDP__UPLOAD_BYTES)))
        (void)DDP__CUDA(dev, cudaMalloc((void **)&c->squares, (DDP__CLIP_PARTS + 1) * sizeof *c->squares));
    if (!dev->failed) c->ring_free = ddp__cuda_events(dev, DDP__UPLOAD_PARTS, cudaEventDisableTiming);
    if (c->ring_free && !DDP__CUDA(dev, cudaMallocHost((void **)&c->early, sizeof *c->early)))
        (void)DDP__CUDA(dev, cudaEventCreateWithFlags(&c->early_done, cudaEventDisableTiming));
    if (!dev->failed && !c->ring_free) ddp__cuda_fail(dev, DDP_MEMORY, "out of memory for the state of a GPU");
    if (ddp__cuda_status(dev, err)) {
        ddp__cuda_backend_close(c);
        return err->code;
    }
    *self = c;
    return DDP_OK;
}

static ddp_status ddp__cuda_wait(void *self, ddp_error *err)
{
    return ddp__cuda_await((ddp__cuda_self *)self, NULL, err);
}

static ddp_status ddp__cuda_check(void *self, ddp_error *err) { return ddp__cuda_status(ddp__cuda_of(self), err); }

/* ---- memory ---- */

/* Too little of it is no failure of the device: the caller says what it was for. */
static void *ddp__cuda_alloc(void *self, size_t bytes)
{
    ddp__cuda *dev = ddp__cuda_of(self);
    void *p = NULL;
    cudaError_t e = cudaSetDevice(dev->device);

    if (e == cudaSuccess) e = cudaMalloc(&p, bytes);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        if (e != cudaErrorMemoryAllocation) (void)DDP__CUDA(dev, e);
        return NULL;
    }
    (void)DDP__CUDA(dev, cudaMemsetAsync(p, 0, bytes, dev->stream));
    return p;
}

static void ddp__cuda_release(void *self, void *at, size_t)
{
    ddp__cuda *dev = ddp__cuda_of(self);
    (void)cudaSetDevice(dev->device);
    (void)cudaFree(at);
}

static void *ddp__cuda_pin(void *, size_t bytes)
{
    void *p = NULL;

    if (cudaMallocHost(&p, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    memset(p, 0, bytes);
    return p;
}

static void ddp__cuda_unpin(void *, void *at, size_t) { (void)cudaFreeHost(at); }

static void ddp__cuda_memory(void *self, double *total, double *unused)
{
    size_t all = 0, left = 0;
    (void)DDP__CUDA(ddp__cuda_of(self), cudaMemGetInfo(&left, &all));
    *total = (double)all;
    *unused = (double)left;
}

static int ddp__cuda_element_bytes(void *self) { return ddp__cuda_of(self)->half ? 2 : 4; }

static void *ddp__cuda_mirror_new(void *self, float *params, size_t count)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    ddp__cuda_mirror *m;

    if (!c->dev->half) return params;
    if (c->mirrors == c->mirror_room) {
        const int room = c->mirror_room ? 2 * c->mirror_room : 32;
        m = (ddp__cuda_mirror *)DDP_REALLOC(c->mirror, (size_t)room * sizeof *m);
        if (!m) return NULL;
        c->mirror = m;
        c->mirror_room = room;
    }
    m = &c->mirror[c->mirrors];
    m->copy = (ddp__bf16 *)ddp__cuda_alloc(self, count * sizeof *m->copy);
    if (!m->copy) return NULL;
    m->master = params;
    m->count = count;
    c->mirrors++;
    return m->copy;
}

static void ddp__cuda_forget(void *self, float *params)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;

    for (int i = 0; i < c->mirrors; i++) {
        if (c->mirror[i].master != params) continue;
        ddp__cuda_release(self, c->mirror[i].copy, 0);
        c->mirror[i] = c->mirror[--c->mirrors];
        return;
    }
}

/* ---- copies ---- */

static uint16_t ddp__bf16_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40); /* NaN stays one */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* The next part of the ring, when what was copied from it last has arrived. */
static char *ddp__cuda_ring(ddp__cuda_self *c)
{
    const int part = c->ring_next;
    (void)ddp__cuda_await(c, c->ring_free[part], NULL); /* poll says it once more */
    return c->ring + (size_t)part * DDP__UPLOAD_BYTES;
}

static void ddp__cuda_ring_go(ddp__cuda_self *c, void *to, const char *from, size_t bytes)
{
    ddp__cuda *dev = c->dev;
    (void)DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, dev->stream));
    (void)DDP__CUDA(dev, cudaEventRecord(c->ring_free[c->ring_next], dev->stream));
    c->ring_next = (c->ring_next + 1) % DDP__UPLOAD_PARTS;
}

static void ddp__cuda_upload(void *self, void *to, const void *from, size_t bytes)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    size_t at = 0, n;

    for (; at < bytes; at += n) {
        char *part = ddp__cuda_ring(c);
        n = bytes - at < (size_t)DDP__UPLOAD_BYTES ? bytes - at : (size_t)DDP__UPLOAD_BYTES;
        memcpy(part, (const char *)from + at, n);
        ddp__cuda_ring_go(c, (char *)to + at, part, n);
    }
    ddp__cuda_refresh(c, to, bytes, c->dev->stream);
}

static void ddp__cuda_upload_elements(void *self, void *to, const float *from, size_t count)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    const size_t most = DDP__UPLOAD_BYTES / sizeof(uint16_t);
    size_t at = 0, n;

    for (; at < count; at += n) {
        uint16_t *part = (uint16_t *)(void *)ddp__cuda_ring(c);
        n = count - at < most ? count - at : most;
        for (size_t i = 0; i < n; i++) part[i] = ddp__bf16_bits(from[at + i]);
        ddp__cuda_ring_go(c, (uint16_t *)to + at, (const char *)part, n * sizeof *part);
    }
}

static ddp_status ddp__cuda_download(void *self, void *to, const void *from, size_t bytes, ddp_error *err)
{
    ddp__cuda *dev = ddp__cuda_of(self);
    /* a copy to memory that is not pinned waits for all before it, whether a peer is lost or not */
    DDP__TRY(ddp__cuda_wait(self, err));
    (void)DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, dev->stream));
    return ddp__cuda_wait(self, err);
}

static ddp_status ddp__cuda_norm2(void *self, const float *x, size_t n, double *out, ddp_error *err)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    *out = 0;
    if (n == 0) return DDP_OK;
    ddp__cuda_clip_add(self, x, n, 1);
    return ddp__cuda_download(self, out, c->squares + DDP__CLIP_PARTS, sizeof *out, err);
}

static ddp_status ddp__cuda_download_elements(void *self, float *to, const void *from, size_t count, ddp_error *err)
{
    uint16_t *bits = (uint16_t *)ddp__calloc(count, sizeof *bits);
    ddp_status s;

    if (!bits) return ddp__fail(err, DDP_MEMORY, "out of memory for %zu values of the GPU", count);
    s = ddp__cuda_download(self, bits, from, count * sizeof *bits, err);
    for (size_t i = 0; i < count; i++) {
        const uint32_t u = (uint32_t)bits[i] << 16;
        memcpy(&to[i], &u, sizeof u);
    }
    DDP_FREE(bits);
    return s;
}

static void ddp__cuda_early(void *self, const float *from)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    ddp__cuda *dev = c->dev;
    c->early_from = from;
    if (!DDP__CUDA(dev, cudaMemcpyAsync(c->early, from, sizeof *from, cudaMemcpyDeviceToHost, dev->stream)))
        (void)DDP__CUDA(dev, cudaEventRecord(c->early_done, dev->stream));
}

static int ddp__cuda_early_value(void *self, const float *from, float *value)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    if (c->early_from != from) return 0;
    *value = ddp__cuda_await(c, c->early_done, NULL) == DDP_OK ? *c->early : NAN;
    return 1;
}

static void ddp__cuda_copy(void *self, void *to, const void *from, size_t bytes)
{
    ddp__cuda *dev = ddp__cuda_of(self);
    (void)DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, dev->stream));
    ddp__cuda_refresh((ddp__cuda_self *)self, to, bytes, dev->stream);
}

static void ddp__cuda_zero(void *self, void *at, size_t bytes)
{
    ddp__cuda *dev = ddp__cuda_of(self);
    (void)DDP__CUDA(dev, cudaMemsetAsync(at, 0, bytes, dev->stream));
}

/* ---- operators ---- */

static const ddp_op *ddp__cuda_backend_op(void *self, const char *name)
{
    return ddp__cuda_op(ddp__cuda_of(self), name);
}

static const ddp_op_pair *ddp__cuda_pair(void *self, const char *first, const char *second)
{
    return ddp__cuda_pair_of(ddp__cuda_of(self), first, second);
}

static size_t ddp__cuda_backend_scratch(void *self, const ddp_op *op, const void *spec)
{
    return ddp__cuda_scratch(ddp__cuda_of(self), op, (const ddp_op_spec *)spec);
}

static int ddp__cuda_reserve(void *self, size_t bytes)
{
    return ddp__cuda_want_scratch(ddp__cuda_of(self), bytes, NULL) == DDP_OK;
}

static void *ddp__cuda_compute(void *self) { return ddp__cuda_of(self); }

/* ---- from device to device ---- */

static ddp_status ddp__cuda_join(void *self, const ddp_backend_peers *p, ddp_error *err)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    c->nccl = ddp__nccl_join(c->dev, p, c->slots, err);
    return c->nccl ? DDP_OK : err->code;
}

/* The copies that operators read follow the arrays that are final. */
static ddp_status ddp__cuda_final(ddp__cuda_self *c, int slot, float *const *arrays,
                                  const size_t *counts, int arrays_count, ddp_error *err)
{
    if (!c->mirrors) return DDP_OK;
    for (int i = 0; i < arrays_count; i++) ddp__cuda_refresh(c, arrays[i], counts[i] * sizeof(float), c->nccl->stream);
    (void)DDP__CUDA(c->dev, cudaEventRecord(c->nccl->done[slot], c->nccl->stream));
    return ddp__cuda_status(c->dev, err);
}

static ddp_status ddp__cuda_average(void *self, int slot, float *const *arrays, const size_t *counts, int arrays_count,
                                    int sum, ddp_error *err)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    DDP__TRY(ddp__nccl_queue(c->nccl, slot, sum ? DDP__NCCL_SUM : DDP__NCCL_MEAN, arrays, counts, arrays_count, err));
    return sum ? DDP_OK : ddp__cuda_final(c, slot, arrays, counts, arrays_count, err);
}

static void ddp__cuda_follow(void *self, int slot)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    (void)DDP__CUDA(c->dev, cudaEventRecord(c->ready[slot], c->nccl->stream));
}

static ddp_status ddp__cuda_spread(void *self, int slot, int held, unsigned turn, float *const *arrays,
                                   const size_t *counts, int arrays_count, ddp_error *err)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    ddp__cuda *dev = c->dev;
    if (turn) DDP__LAUNCH(ddp__k_hold, 1, 1, 0, c->nccl->stream, c->flag_there + held, turn);
    DDP__TRY(ddp__nccl_queue(c->nccl, slot, DDP__NCCL_SPREAD, arrays, counts, arrays_count, err));
    return ddp__cuda_final(c, slot, arrays, counts, arrays_count, err);
}

static void ddp__cuda_finish(void *self, int slot) { ddp__nccl_finish(((ddp__cuda_self *)self)->nccl, slot); }

static ddp_status ddp__cuda_poll(void *self, ddp_error *err)
{
    return ddp__nccl_poll(((ddp__cuda_self *)self)->nccl, err);
}

static void ddp__cuda_leave(void *self, int on_error)
{
    ddp__cuda_self *c = (ddp__cuda_self *)self;
    ddp__nccl_leave(c->nccl, on_error);
    c->nccl = NULL;
}

/* ---- the table ---- */

ddp_backend ddp_cuda(ddp_cuda_numbers numbers, int device)
{
    ddp_backend b;

    memset(&b, 0, sizeof b);
    b.name = "cuda", b.device = device, b.numbers = (int)numbers;
    b.open = ddp__cuda_backend_open, b.close = ddp__cuda_backend_close;
    b.wait = ddp__cuda_wait, b.check = ddp__cuda_check;

    b.alloc = ddp__cuda_alloc, b.release = ddp__cuda_release;
    b.pin = ddp__cuda_pin, b.unpin = ddp__cuda_unpin;
    b.memory = ddp__cuda_memory, b.element_bytes = ddp__cuda_element_bytes;
    b.mirror = ddp__cuda_mirror_new, b.forget = ddp__cuda_forget;

    b.upload = ddp__cuda_upload, b.upload_elements = ddp__cuda_upload_elements;
    b.download = ddp__cuda_download, b.download_elements = ddp__cuda_download_elements;
    b.early = ddp__cuda_early, b.early_value = ddp__cuda_early_value;
    b.copy = ddp__cuda_copy, b.zero = ddp__cuda_zero;

    b.axpy = ddp__cuda_axpy, b.norm2 = ddp__cuda_norm2;
    b.scale = ddp__cuda_scale, b.fill = ddp__cuda_fill, b.update = ddp__cuda_update;
    b.compensate = ddp__cuda_compensate, b.split = ddp__cuda_split;
    b.clip_add = ddp__cuda_clip_add, b.clip_scale = ddp__cuda_clip_scale;

    b.op = ddp__cuda_backend_op, b.pair = ddp__cuda_pair, b.compute = ddp__cuda_compute;
    b.scratch = ddp__cuda_backend_scratch, b.reserve = ddp__cuda_reserve;

    b.slots = ddp__cuda_slots, b.record = ddp__cuda_record;
    b.fetch = ddp__cuda_fetch, b.give = ddp__cuda_give, b.hold = ddp__cuda_hold;
    b.raise = ddp__cuda_raise, b.raise_all = ddp__cuda_raise_all;

    b.join = ddp__cuda_join, b.leave = ddp__cuda_leave, b.poll = ddp__cuda_poll;
    b.average = ddp__cuda_average, b.spread = ddp__cuda_spread;
    b.follow = ddp__cuda_follow, b.finish = ddp__cuda_finish;

    b.marks = ddp__cuda_marks, b.mark = ddp__cuda_mark, b.marked = ddp__cuda_marked;
    b.range = ddp__cuda_range;
    return b;
}

#endif /* DDP_CUDA_BACKEND_CUH */
