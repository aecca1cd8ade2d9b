/* Operations on layers that several families use: means, copies to and from arrays, updates of all layers. */
#include "strategy/strategy.h"

void *ddp__lists(ddp_ctx *d, size_t count, size_t size)
{
    const size_t floats = count * size / sizeof(float) + 1;

    return ddp_keep(d, DDP_NO_LAYER, "lists", floats, DDP_KEPT_HERE | DDP_KEPT_NOWHERE);
}

size_t ddp__gradient_count(const ddp_ctx *d, int layer)
{
    int n;
    const ddp_piece *p = ddp_gradients_of(d, layer, &n);
    size_t count = 0;

    for (; n-- > 0; p++) count += p->count;
    return count;
}

ddp_message ddp__mean_message(const ddp_ctx *d, int layer, const ddp_piece *from, int count)
{
    ddp_message m = DDP__ZEROS;

    m.verb = DDP_ALL_REDUCE;
    m.mean = 1;
    m.from = from;
    m.from_count = count;
    m.step = ddp_step(d);
    m.layer = layer;
    if (layer < 0) return m;
    m.group = ddp_group_of(d, layer);
    m.link = ddp_link_of(d, layer);
    return m;
}

int ddp__hold_once(ddp_ctx *d, long *ticket, int layer)
{
    const long t = *ticket;

    *ticket = -1;
    return t == -1 ? 0 : ddp_hold(d, t, layer);
}

int ddp__pieces_read(ddp_ctx *d, const ddp_piece *p, int n, float *to)
{
    for (; n-- > 0; to += (p++)->count) DDP__DO(ddp_copy(d, to, p->data, p->count));
    return 0;
}

int ddp__pieces_write(ddp_ctx *d, const ddp_piece *p, int n, const float *from)
{
    for (; n-- > 0; from += (p++)->count) DDP__DO(ddp_copy(d, p->data, from, p->count));
    return 0;
}

int ddp__gradients_zero(ddp_ctx *d, int layer)
{
    int n;
    const ddp_piece *p = ddp_gradients_of(d, layer, &n);

    for (; n-- > 0; p++) DDP__DO(ddp_set(d, p->data, p->count, 0));
    return 0;
}

int ddp__update_all(ddp_ctx *d)
{
    for (int l = ddp_layers(d) - 1; l >= 0; l--) DDP__DO(ddp_update_layer(d, l, NULL));
    return 0;
}

int ddp__plan_failed(ddp_ctx *d, const ddp_error *err) { return ddp_complain(d, err->code, "%s", err->msg); }
