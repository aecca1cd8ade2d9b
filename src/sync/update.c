/* Optimizer updates, on the caller's thread. */
#include "base/platform.h"
#include "base/clock.h"
#include "nn/clip.h"
#include "sync/context.h"

void ddp__mean_gradients(ddp_ctx *d, int layer)
{
    ddp__unit *u = &d->unit[layer];
    int i;

    if (d->cfg.micro_batches == 1) return;
    for (i = 0; i < u->gradients; i++)
        ddp__scale(u->gradient[i].data, u->gradient[i].count, 1.0f / (float)d->cfg.micro_batches);
}

void ddp__update_layer(ddp_ctx *d, int layer)
{
    ddp__unit *u = &d->unit[layer];
    float *state = u->state;
    double begin = ddp_now();
    int b;

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
        d->optimizer.update(&d->optimizer, &call);
        if (state) state += (size_t)d->optimizer.state_per_param * k->count;
        memset(k->grads, 0, k->count * sizeof *k->grads);
    }
    u->updates++;
    ddp__record(d, DDP_SPAN_UPDATE, layer, begin, ddp_now());
}

void ddp__clip_gradients(ddp_ctx *d)
{
    double squares = 0, norm;
    int l, i;

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
