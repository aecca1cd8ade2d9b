/* The backend table of a GPU (base/backend.h): opening, memory, copies and averages. The other files of this
 * directory define the remaining functions of the table. */
#pragma once

#include "cuda/pool.cuh"
#include "cuda/self_check.cuh"

/* ---- opening ---- */

/* Waits for queued work and frees what the context has on the device. */
static void ddp__cuda_backend_free(ddp__cuda_self *c)
{
    (void)cudaSetDevice(c->dev->device);
    ddp__cuda_raise_all(c);
    (void)cudaStreamSynchronize(c->dev->stream);
    ddp__cuda_replays_drop(c->dev);
    ddp__cuda_events_free(c->mark, c->marks + 1);
    ddp__cuda_events_free(c->ready, c->slots);
    if (c->flag) (void)cudaFreeHost(c->flag);
    if (c->out) (void)cudaStreamDestroy(c->out);
    if (c->in) (void)cudaStreamDestroy(c->in);
    ddp__cuda_events_free(c->ring_free, DDP__UPLOAD_PARTS);
    if (c->ring) (void)cudaFreeHost(c->ring);
    if (c->early) (void)cudaFreeHost(c->early);
    if (c->early_done) (void)cudaEventDestroy(c->early_done);
    if (c->squares) (void)cudaFree(c->squares);
}

static void ddp__cuda_backend_close(ddp__cuda_self *c)
{
    if (!c) return;
    if (c->dev) {
        const int device = c->dev->device;
        ddp__cuda_list_drop(c);
        if (!c->dev->stuck) ddp__cuda_backend_free(c);
        if (c->turn) DDP_FREE(c->turn);
        if (c->dev->lists) DDP_FREE(c->dev->lists);
        if (c->ranged) (void)nvtxRangePop();
        ddp__cuda_close(c->dev);
        (void)ddp__cuda_count_context(device, -1); /* now another context's stream may wait */
    }
    while (c->mirror) {
        ddp__cuda_mirror *m = c->mirror;
        c->mirror = m->next;
        DDP_FREE(m);
    }
    DDP_FREE(c);
}

static ddp_status ddp__cuda_backend_open(const ddp_backend *b, int local_rank, void *stream, void **self,
                                         ddp_error *err)
{
    ddp__cuda_self *c = (ddp__cuda_self *)ddp__calloc(1, sizeof *c);
    int device = b->device, n = 0;
    ddp__cuda *dev;

    if (!c) return ddp__fail(err, DDP_MEMORY, "out of memory for the state of the GPU");
    if (device < 0) { /* the ranks on one machine share its GPUs */
        device = cudaGetDeviceCount(&n) == cudaSuccess && n > 0 ? local_rank % n : 0;
        (void)cudaGetLastError();
    }
    (void)ddp__cuda_count_context(device, 1);
    if (ddp__cuda_await_holds(device, err) == DDP_OK)
        c->dev = ddp__cuda_open(device, (ddp_cuda_numbers)b->numbers, stream, err);
    dev = c->dev;
    if (!dev) {
        (void)ddp__cuda_count_context(device, -1);
        DDP_FREE(c);
        return err->code;
    }
    ddp__cuda_elementwise_ops(dev);
    ddp__cuda_text_ops(dev);
    ddp__cuda_conv_ops(dev);
    ddp__cuda_batch_norm_ops(dev);
    ddp__cuda_pool_ops(dev);
    ddp__cuda_flash_open(dev);
    if (dev->own_stream)
        dev->lists =
            (ddp__cuda_lists *)ddp__calloc(1, sizeof *dev->lists); /* with the default mode, another thread's
                                                                    * call could break a capture */
    if (!DDP__CUDA(dev, cudaMallocHost((void **)&c->ring, DDP__UPLOAD_PARTS * DDP__UPLOAD_BYTES)))
        (void)DDP__CUDA(dev, cudaMalloc((void **)&c->squares, (DDP__CLIP_PARTS + 1) * sizeof *c->squares));
    if (!dev->failed) c->ring_free = ddp__cuda_events(dev, DDP__UPLOAD_PARTS, cudaEventDisableTiming);
    if (c->ring_free && !DDP__CUDA(dev, cudaMallocHost((void **)&c->early, sizeof *c->early)))
        (void)DDP__CUDA(dev, cudaEventCreateWithFlags(&c->early_done, cudaEventDisableTiming));
    if (!dev->failed && !c->ring_free)
        ddp__cuda_fail(dev, DDP_MEMORY, "out of memory for the state of the GPU");
    ddp__cuda_load_arithmetic(c);
    c->copy_s = DBL_MAX;
    dev->lost = ddp__cuda_lost;
    dev->lost_of = c;
    if (ddp__cuda_status(dev, err)) {
        ddp__cuda_backend_close(c);
        return err->code;
    }
    *self = c;
    return DDP_OK;
}

static void ddp__cuda_attach(ddp__cuda_self *c, const ddp_logger *log, double op_timeout_s)
{
    c->copy_s = op_timeout_s < 60 ? op_timeout_s : 60;
    ddp__cuda_log(c->dev, log);
}

static ddp_status ddp__cuda_wait(ddp__cuda_self *c, ddp_error *err) { return ddp__cuda_await(c, NULL, err); }

/* ---- memory ---- */

/* Running out of memory is not recorded as a failure of the device: the caller reports what the memory was
 * for. */
static void *ddp__cuda_alloc(ddp__cuda *dev, size_t bytes)
{
    void *p = NULL;
    cudaError_t e = cudaSetDevice(dev->device);

    ddp__cuda_before(dev, 1);
    if (e == cudaSuccess) e = cudaMalloc(&p, bytes);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        if (e != cudaErrorMemoryAllocation) (void)DDP__CUDA(dev, e);
        return NULL;
    }
    (void)DDP__CUDA(dev, cudaMemsetAsync(p, 0, bytes, dev->stream));
    return p;
}

static void ddp__cuda_release(ddp__cuda *dev, void *at, size_t)
{
    (void)cudaSetDevice(dev->device);
    ddp__cuda_before(dev, 1);
    (void)cudaFree(at); /* waits for the device */
    ddp__cuda_replays_drop(dev);
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

static void ddp__cuda_memory(ddp__cuda *dev, double *total, double *unused)
{
    size_t all = 0, left = 0;
    (void)DDP__CUDA(dev, cudaMemGetInfo(&left, &all));
    *total = (double)all;
    *unused = (double)left;
}

static int ddp__cuda_element_bytes(ddp__cuda *dev) { return dev->half ? 2 : 4; }

static void *ddp__cuda_mirror_new(ddp__cuda_self *c, float *params, size_t count)
{
    ddp__cuda_mirror *m;

    if (!c->dev->half) return params;
    m = (ddp__cuda_mirror *)ddp__calloc(1, sizeof *m);
    if (m) m->copy = (ddp__bf16 *)ddp__cuda_alloc(c->dev, count * sizeof *m->copy);
    if (!m || !m->copy) {
        if (m) DDP_FREE(m);
        return NULL;
    }
    m->master = params;
    m->count = count;
    m->next = c->mirror;
    c->mirror = m;
    return m->copy;
}

static void ddp__cuda_forget(ddp__cuda_self *c, float *params)
{
    ddp__cuda_mirror **link = &c->mirror, *m;

    while (*link && (*link)->master != params) link = &(*link)->next;
    m = *link;
    if (!m) return;
    *link = m->next;
    ddp__cuda_release(c->dev, m->copy, 0);
    DDP_FREE(m);
}

/* ---- copies ---- */

static uint16_t ddp__bf16_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Sends bytes through the pinned ring, part by part. fill(part, at, n) writes the n bytes at offset at. */
template <typename F> static void ddp__cuda_send(ddp__cuda_self *c, void *to, size_t bytes, F fill)
{
    ddp__cuda *dev = c->dev;
    size_t at = 0, n;

    for (; at < bytes; at += n) {
        const int part = c->ring_next;
        char *from = c->ring + (size_t)part * DDP__UPLOAD_BYTES;
        n = bytes - at < (size_t)DDP__UPLOAD_BYTES ? bytes - at : (size_t)DDP__UPLOAD_BYTES;
        (void)ddp__cuda_await(c, c->ring_free[part], NULL); /* wait until the part's last upload has ended.
                                                               poll reports an error again */
        fill(from, at, n);
        (void)DDP__CUDA(dev, cudaMemcpyAsync((char *)to + at, from, n, cudaMemcpyHostToDevice, dev->stream));
        (void)DDP__CUDA(dev, cudaEventRecord(c->ring_free[part], dev->stream));
        c->ring_next = (part + 1) % DDP__UPLOAD_PARTS;
    }
}

static void ddp__cuda_upload(ddp__cuda_self *c, void *to, const void *from, size_t bytes)
{
    ddp__cuda_send(c, to, bytes,
                   [=](void *part, size_t at, size_t n) { memcpy(part, (const char *)from + at, n); });
    ddp__cuda_refresh(c, to, bytes, c->dev->stream);
}

/* Calls f(i, k) for elements at to end - 1 of the device's array. For channels-last images, k is the index of
 * element i on the host. The loop visits 64 pixels at a time for each channel, so that they stay in the
 * cache. `at` and `end` may lie inside a pixel. */
template <typename F> static inline void ddp__cuda_places(const ddp_shape *s, long at, long end, F f)
{
    const long channels = s->dims == 4 ? s->dim[1] : 1, plane = s->dims == 4 ? s->dim[2] * s->dim[3] : end;

    while (at < end) {
        const long first = at % channels, pixel = at / channels % plane,
                   image = at / channels / plane * channels;
        const long left = (end - at) / channels, last = ddp__min_long(channels, first + end - at);
        const long pixels =
            first || !left ? 1 : ddp__min_long(ddp__min_long(left, plane - pixel), channels > 1 ? 64 : left);
        for (long p = first; p < last; p++)
            for (long q = 0; q < pixels; q++)
                f(at - first + q * channels + p, (image + p) * plane + pixel + q);
        at += (pixels - 1) * channels + last - first;
    }
}

static void ddp__cuda_upload_elements(ddp__cuda_self *c, void *to, const float *from, const ddp_shape *s)
{
    const int half = ddp__cuda_half(c->dev, s);
    const size_t size = half ? sizeof(uint16_t) : sizeof *from, bytes = (size_t)ddp_shape_count(s) * size;

    if (!half && s->dims < 4)
        ddp__cuda_upload(c, to, from, bytes);
    else
        ddp__cuda_send(c, to, bytes, [=](void *part, size_t at, size_t n) {
            const long first = (long)(at / size);
            ddp__cuda_places(s, first, first + (long)(n / size), [=](long i, long k) {
                if (half)
                    ((uint16_t *)part)[i - first] = ddp__bf16_bits(from[k]);
                else
                    ((float *)part)[i - first] = from[k];
            });
        });
}

static ddp_status ddp__cuda_download(ddp__cuda_self *c, void *to, const void *from, size_t bytes,
                                     ddp_error *err)
{
    ddp__cuda *dev = c->dev;
    /* a copy to unpinned memory waits for all earlier work, even if a peer is lost */
    DDP__TRY(ddp__cuda_wait(c, err));
    (void)DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, dev->stream));
    return ddp__cuda_wait(c, err);
}

static ddp_status ddp__cuda_norm2(ddp__cuda_self *c, const float *x, size_t n, double *out, ddp_error *err)
{
    *out = 0;
    if (n == 0) return DDP_OK;
    ddp__cuda_clip_add(c, x, n, 1);
    return ddp__cuda_download(c, out, c->squares + DDP__CLIP_PARTS, sizeof *out, err);
}

static ddp_status ddp__cuda_download_elements(ddp__cuda_self *c, float *to, const void *from,
                                              const ddp_shape *s, ddp_error *err)
{
    const int half = ddp__cuda_half(c->dev, s), plain = !half && s->dims < 4;
    const size_t count = (size_t)ddp_shape_count(s), size = half ? sizeof(uint16_t) : sizeof *to;
    void *raw = plain ? to : ddp__calloc(count, size);
    ddp_status status;

    if (!raw) return ddp__fail(err, DDP_MEMORY, "out of memory for %zu values of the GPU", count);
    status = ddp__cuda_download(c, raw, from, count * size, err);
    if (plain) return status;
    ddp__cuda_places(s, 0, (long)count, [=](long i, long k) {
        const uint32_t u = half ? (uint32_t)((uint16_t *)raw)[i] << 16 : ((uint32_t *)raw)[i];
        memcpy(&to[k], &u, sizeof u);
    });
    DDP_FREE(raw);
    return status;
}

static void ddp__cuda_early(ddp__cuda_self *c, const float *from)
{
    ddp__cuda *dev = c->dev;
    c->early_from = from;
    if (!DDP__CUDA(dev, cudaMemcpyAsync(c->early, from, sizeof *from, cudaMemcpyDeviceToHost, dev->stream)))
        (void)DDP__CUDA(dev, cudaEventRecord(c->early_done, dev->stream));
}

static int ddp__cuda_early_value(ddp__cuda_self *c, const float *from, float *value)
{
    if (c->early_from != from) return 0;
    *value = ddp__cuda_await(c, c->early_done, NULL) == DDP_OK ? *c->early : (float)ddp__unknown();
    return 1;
}

static void ddp__cuda_copy(ddp__cuda_self *c, void *to, const void *from, size_t bytes)
{
    ddp__cuda *dev = c->dev;
    (void)DDP__CUDA(dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, dev->stream));
    ddp__cuda_refresh(c, to, bytes, dev->stream);
}

static void ddp__cuda_zero(ddp__cuda *dev, void *at, size_t bytes)
{
    (void)DDP__CUDA(dev, cudaMemsetAsync(at, 0, bytes, dev->stream));
}

/* ---- operators ---- */

static int ddp__cuda_reserve(ddp__cuda *dev, size_t bytes)
{
    const size_t had = dev->scratch_bytes;
    const ddp_status s = ddp__cuda_want_scratch(dev, bytes, NULL);

    if (dev->scratch_bytes != had) ddp__cuda_replays_drop(dev);
    return s == DDP_OK;
}

static void *ddp__cuda_compute(ddp__cuda *dev) { return dev; }

/* ---- from device to device ---- */

static ddp_status ddp__cuda_join(ddp__cuda_self *c, const ddp_backend_peers *p, ddp_error *err)
{
    const char *why;

    c->nccl = ddp__nccl_join(c->dev, p, c->slots, err);
    if (!c->nccl) return err->code;
    why = c->waits ? ddp__cuda_probe(c, c->nccl->stream) : NULL;
    if (why) ddp__cuda_waits_not(c, why);
    if (ddp__cuda_status(c->dev, err) == DDP_OK) return DDP_OK;
    ddp__nccl_leave(c->nccl, 1);
    c->nccl = NULL;
    return err->code;
}

/* Refreshes the bfloat16 copies of arrays that are final. */
static ddp_status ddp__cuda_final(ddp__cuda_self *c, int slot, float *const *arrays, const size_t *counts,
                                  int arrays_count, ddp_error *err)
{
    if (!c->mirror) return DDP_OK;
    for (int i = 0; i < arrays_count; i++)
        ddp__cuda_refresh(c, arrays[i], counts[i] * sizeof(float), c->nccl->stream);
    (void)DDP__CUDA(c->dev, cudaEventRecord(c->nccl->done[slot], c->nccl->stream));
    return ddp__cuda_status(c->dev, err);
}

static ddp_status ddp__cuda_average(ddp__cuda_self *c, int slot, float *const *arrays, const size_t *counts,
                                    int arrays_count, int sum, ddp_error *err)
{
    DDP__TRY(ddp__nccl_queue(c->nccl, slot, sum ? DDP__NCCL_SUM : DDP__NCCL_MEAN, arrays, counts,
                             arrays_count, err));
    return sum ? DDP_OK : ddp__cuda_final(c, slot, arrays, counts, arrays_count, err);
}

static void ddp__cuda_follow(ddp__cuda_self *c, int slot)
{
    (void)DDP__CUDA(c->dev, cudaEventRecord(c->ready[slot], c->nccl->stream));
}

static ddp_status ddp__cuda_spread(ddp__cuda_self *c, int slot, int held, unsigned turn, float *const *arrays,
                                   const size_t *counts, int arrays_count, ddp_error *err)
{
    if (turn) ddp__cuda_hold_on(c, c->nccl->stream, held, turn);
    DDP__TRY(ddp__nccl_queue(c->nccl, slot, DDP__NCCL_SPREAD, arrays, counts, arrays_count, err));
    return ddp__cuda_final(c, slot, arrays, counts, arrays_count, err);
}

static void ddp__cuda_leave(ddp__cuda_self *c, int on_error)
{
    ddp__nccl_leave(c->nccl, on_error);
    c->nccl = NULL;
}

/* ---- the table ---- */

static const ddp_op_pair *ddp__cuda_pair(const ddp__cuda *dev, const char *first, const char *second)
{
    const ddp_op_pair *p = ddp__cuda_batch_pair(first, second);
    return p ? p : ddp__cuda_pair_of(dev, first, second);
}

#define DDP__OF(name) b.name = DDP__ORDERED(ddp__cuda_##name)
ddp_backend ddp_cuda(ddp_cuda_numbers numbers, int device)
{
    ddp_backend b = DDP__ZEROS;

    b.name = "cuda";
    b.device = device;
    b.numbers = (int)numbers;
    b.channels_last = 1;
    b.open = ddp__cuda_backend_open;
    b.close = DDP__GIVEN(ddp__cuda_backend_close);
    b.attach = DDP__GIVEN(ddp__cuda_attach);
    DDP__OF(wait);
    b.check = DDP__GIVEN(ddp__cuda_status);
    DDP__OF(alloc);
    DDP__OF(release);
    DDP__OF(memory);
    DDP__OF(element_bytes);
    DDP__OF(forget);
    b.pin = ddp__cuda_pin;
    b.unpin = ddp__cuda_unpin;
    b.mirror = DDP__ORDERED(ddp__cuda_mirror_new);
    DDP__OF(upload);
    DDP__OF(upload_elements);
    DDP__OF(download);
    DDP__OF(download_elements);
    DDP__OF(early);
    DDP__OF(early_value);
    DDP__OF(copy);
    DDP__OF(zero);
    DDP__OF(axpy);
    DDP__OF(norm2);
    DDP__OF(scale);
    DDP__OF(fill);
    DDP__OF(update);
    DDP__OF(compensate);
    DDP__OF(split);
    DDP__OF(clip_add);
    DDP__OF(clip_scale);
    DDP__OF(op);
    DDP__OF(pair);
    DDP__OF(scratch);
    DDP__OF(reserve);
    b.compute = DDP__GIVEN(ddp__cuda_compute); /* runs while calls are being queued */
    DDP__OF(slots);
    DDP__OF(record);
    DDP__OF(hold);
    b.fetch = DDP__GIVEN(ddp__cuda_fetch);
    b.give = DDP__GIVEN(ddp__cuda_give); /* called by other threads */
    b.raise = DDP__GIVEN(ddp__cuda_raise);
    b.raise_all = DDP__GIVEN(ddp__cuda_raise_all);
    DDP__OF(join);
    DDP__OF(leave);
    DDP__OF(average);
    DDP__OF(spread);
    DDP__OF(follow);
    b.poll = DDP__GIVEN(ddp__nccl_poll);
    b.finish = DDP__ORDERED(ddp__nccl_finish);
    DDP__OF(marks);
    DDP__OF(mark);
    DDP__OF(marked);
    DDP__OF(range);
    DDP__OF(prepare);
    DDP__OF(splits);
    return b;
}
#undef DDP__OF
