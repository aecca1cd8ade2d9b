/* The share of each layer that a stage has. Checkpoints store the model's layers, independently of the
 * cut. */
#include "pipe/executor.h"

/* Adds n values of a layer, at `at` here and at `from` in the whole layer. Merges them with the previous span
 * if adjacent. */
static void ddp__span_add(ddp__cut *c, int unit, int buffers, size_t from, size_t at, size_t n)
{
    ddp__cut_span *s = c->spans ? &c->span[c->spans - 1] : NULL;
    const ddp__cut_span next = {unit, buffers, from, at, n};

    if (s && s->unit == unit && s->buffers == buffers && s->from + s->count == from && s->at + s->count == at)
        s->count += n;
    else
        c->span[c->spans++] = next;
}

static void ddp__layer_spans(ddp_pipe *p, int layer, int buffers)
{
    const size_t before = buffers ? ddp__whole_layer(p->g, layer) : 0;
    int first = 0, last = -1;

    (void)ddp__layer_range(p->g, layer, &first, &last);
    for (int i = first; i <= last; i++) {
        const ddp_node *n = p->g->node[i];
        size_t from = (buffers ? n->buffer_place : n->place) - before;
        if (!n->op || n->layer != layer || n->here != (int)DDP__HERE_OWN) continue;
        for (int k = buffers ? 0 : n->tied >= 0; k < (buffers ? n->spec.buffers : n->spec.params); k++) {
            const size_t count =
                (size_t)ddp_shape_count(buffers ? &n->spec.buffer[k].shape : &n->spec.param[k].shape);
            ddp__span_add(&p->cut, ddp__layer_unit(p->g, layer), buffers, from,
                          ddp__array_place(n, buffers, k), count);
            from += count;
        }
    }
}

int ddp__shares_open(ddp_pipe *p)
{
    ddp__cut *c = &p->cut;
    size_t arrays = 1;

    for (int i = 0; i < ddp__count(p->g->node); i++)
        arrays += (size_t)(p->g->node[i]->spec.params + p->g->node[i]->spec.buffers);
    c->copies = ddp_world(p->d) / p->stages;
    c->copy = p->number;
    c->stages = p->stages;
    c->stage = p->stage;
    c->group = p->team;
    c->layers = ddp__count(p->g->layer);
    c->name = (const char **)ddp__scratch_take(&p->room, (size_t)c->layers + 1, sizeof *c->name);
    c->whole = ddp__ints(&p->room, (size_t)c->layers + 1);
    c->span = (ddp__cut_span *)ddp__scratch_take(&p->room, arrays, sizeof *c->span);
    if (ddp__scratch_failed(&p->room)) return 0;
    for (int l = 0; l < c->layers; l++) {
        const int unit = ddp__layer_unit(p->g, l);
        c->name[l] = ddp__layer_name(p->g, l);
        if (unit < 0) continue;
        c->whole[unit] = l;
        c->units++;
        for (int buffers = 0; buffers < 2; buffers++) ddp__layer_spans(p, l, buffers);
    }
    ddp__cut_set(p->d, c);
    return 1;
}
