/* Optimizer updates, on the caller's thread. */
#include "base/platform.h"
#include "nn/clip.h"
#include "sync/context.h"
#include "sync/device.h"

void ddp__mean_gradients(ddp_ctx *d, int layer)
{
    ddp__unit *u = &d->unit[layer];
    const ddp_backend *b = d->host.backend;
    const float part = 1.0f / (float)d->cfg.micro_batches;
    int i;

    if (d->cfg.micro_batches == 1) return;
    for (i = 0; i < u->gradients; i++) {
        const ddp__piece *g = &u->gradient[i];
        if (b) b->scale(d->host.device, g->data, g->count, part);
        else ddp__scale(g->data, g->count, part);
    }
}

void ddp__update_layer(ddp_ctx *d, int layer)
{
    ddp__unit *u = &d->unit[layer];
    float *state = u->state;
    int b;

    ddp__clock_note(d, DDP__M_UPDATE, layer, DDP__OUTSIDE);
    for (b = 0; b < u->blocks; b++) {
        ddp_block *k = &u->block[b];
        ddp_update call;
        if (k->kind != DDP_PARAMS || !k->grads) continue;
        memset(&call, 0, sizeof call);
        call.layer = layer;
        call.params = k->params;
        call.grads = k->grads;
        call.state = state;
        call.count = k->count;
        call.step = u->updates;
        call.lr = d->lr;
        if (state) state += (size_t)d->optimizer.state_per_param * k->count;
        if (d->host.backend) {
            d->host.backend->update(d->host.device, &d->optimizer, &call);
            continue;
        }
        d->optimizer.update(&d->optimizer, &call);
        memset(k->grads, 0, k->count * sizeof *k->grads);
    }
    u->updates++;
    ddp__clock_note(d, DDP__M_UPDATED, layer, DDP__OUTSIDE);
}

/* The norm stays on the device. */
static void ddp__clip_there(ddp_ctx *d)
{
    const ddp_backend *b = d->host.backend;
    int l, i, first = 1;

    for (l = 0; l < d->layers; l++)
        for (i = 0; i < d->unit[l].gradients; i++, first = 0)
            b->clip_add(d->host.device, d->unit[l].gradient[i].data, d->unit[l].gradient[i].count,
                        first);
    for (l = 0; l < d->layers; l++)
        for (i = 0; i < d->unit[l].gradients; i++)
            b->clip_scale(d->host.device, d->unit[l].gradient[i].data,
                          d->unit[l].gradient[i].count, d->cfg.clip_norm);
}

void ddp__clip_gradients(ddp_ctx *d)
{
    double squares = 0, norm;
    int l, i;

    if (d->host.backend) {
        ddp__clip_there(d);
        return;
    }
    for (l = 0; l < d->layers; l++)
        for (i = 0; i < d->unit[l].gradients; i++)
            squares += ddp__sum_squares(d->unit[l].gradient[i].data, d->unit[l].gradient[i].count);
    norm = sqrt(squares);
    if (norm + 1e-6 <= (double)d->cfg.clip_norm) return;
    for (l = 0; l < d->layers; l++)
        for (i = 0; i < d->unit[l].gradients; i++)
            ddp__scale(d->unit[l].gradient[i].data, d->unit[l].gradient[i].count,
                       (float)((double)d->cfg.clip_norm / (norm + 1e-6)));
}
