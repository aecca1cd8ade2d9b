/* Memory of layers and activations, wherever it lies. */
#include "base/platform.h"
#include "base/fail.h"
#include "base/memory.h"
#include "graph/host.h"

void *ddp__host_alloc(const ddp__host *h, size_t bytes)
{
    if (h && h->backend) return bytes ? h->backend->alloc(h->device, bytes) : NULL;
    return ddp__alloc(h ? &h->allocator : NULL, bytes);
}

void ddp__host_release(const ddp__host *h, void *at, size_t bytes)
{
    if (!at) return;
    if (h && h->backend) h->backend->release(h->device, at, bytes);
    else ddp__release(h ? &h->allocator : NULL, at, bytes);
}

void ddp__host_upload(const ddp__host *h, void *to, const void *from, size_t bytes)
{
    if (bytes == 0) return;
    if (h && h->backend) h->backend->upload(h->device, to, from, bytes);
    else memcpy(to, from, bytes);
}

ddp_status ddp__host_download(const ddp__host *h, void *to, const void *from, size_t bytes,
                              ddp_error *err)
{
    if (bytes == 0) return DDP_OK;
    if (h && h->backend) return h->backend->download(h->device, to, from, bytes, err);
    memcpy(to, from, bytes);
    return DDP_OK;
}

void ddp__host_copy(const ddp__host *h, void *to, const void *from, size_t bytes)
{
    if (bytes == 0) return;
    if (h && h->backend) h->backend->copy(h->device, to, from, bytes);
    else memcpy(to, from, bytes);
}

void ddp__host_zero(const ddp__host *h, void *at, size_t bytes)
{
    if (bytes == 0) return;
    if (h && h->backend) h->backend->zero(h->device, at, bytes);
    else memset(at, 0, bytes);
}
