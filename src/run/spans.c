/* What lies in two layers: the same arrays once more are a tied weight, anything else is a mistake. */
#include "run/context.h"

typedef struct ddp__array {
    const float *from, *to;
    int          layer, block, gradients;
} ddp__array;

static int ddp__array_order(const void *a, const void *b)
{
    const ddp__array *x = (const ddp__array *)a, *y = (const ddp__array *)b;

    if (x->from != y->from) return (uintptr_t)x->from < (uintptr_t)y->from ? -1 : 1;
    if (x->gradients != y->gradients) return x->gradients - y->gradients;
    return x->layer != y->layer ? x->layer - y->layer : x->block - y->block;
}

/* All arrays of all layers, by address; how many. */
static int ddp__arrays(const ddp_ctx *d, ddp__array *out)
{
    int n = 0;

    for (int l = 0; l < d->layers; l++)
        for (int b = 0; b < d->unit[l].blocks; b++) {
            const ddp_block *k = &d->unit[l].block[b];
            const ddp__array params = {k->params, k->params + k->count, l, b, 0}, grads = {k->grads, k->grads + k->count, l, b, 1};
            out[n++] = params;
            if (k->grads) out[n++] = grads;
        }
    qsort(out, (size_t)n, sizeof *out, ddp__array_order);
    return n;
}

/* A tied weight belongs to the layer that is first in the forward, and so last in the backward. */
static void ddp__arrays_tie(ddp_ctx *d, const ddp__array *x, int n)
{
    for (int i = 1, kept = 0; i < n; i++) {
        const ddp_block *a = &d->unit[x[kept].layer].block[x[kept].block];
        ddp_block *b = &d->unit[x[i].layer].block[x[i].block];
        if (!x[i].gradients && a != b && a->params == b->params && a->grads == b->grads && a->count == b->count && a->kind == b->kind)
            b->count = 0;
        else kept = i;
    }
    for (int l = 0; l < d->layers; l++) {
        ddp__unit *u = &d->unit[l];
        int left = 0;
        for (int b = 0; b < u->blocks; b++)
            if (u->block[b].count) u->block[left++] = u->block[b];
        u->blocks = left;
    }
}

ddp_status ddp__spans_settle(ddp_ctx *d, ddp_error *err)
{
    const ddp__array *far; /* that which reaches furthest so far */
    ddp__array *all;
    int n = 0;

    for (int l = 0; l < d->layers; l++) n += 2 * d->unit[l].blocks;
    all = (ddp__array *)ddp__calloc((size_t)n + 1, sizeof *all);
    if (!all) return ddp__fail(err, DDP_MEMORY, "out of memory for the arrays of %d layers", d->layers);
    ddp__arrays_tie(d, all, ddp__arrays(d, all));
    n = ddp__arrays(d, all);
    err->code = DDP_OK;
    for (int i = 1, k = 0; i < n; i++) {
        const ddp__array *x = &all[i];
        far = &all[k];
        if (x->from < far->to) {
            ddp__fail(err, DDP_ARG, "%s of layer %d (%s) and %s of layer %d (%s) overlap by %zu bytes: give each value once; "
                      "a weight that two layers share has the same params, grads and count in both",
                      far->gradients ? "gradients" : "parameters", far->layer, d->unit[far->layer].name,
                      x->gradients ? "gradients" : "parameters", x->layer, d->unit[x->layer].name,
                      (size_t)((x->to < far->to ? x->to : far->to) - x->from) * sizeof(float));
            break;
        }
        if (x->to > far->to) k = i;
    }
    DDP_FREE(all);
    return err->code;
}
