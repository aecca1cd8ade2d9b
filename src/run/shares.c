/* Which values of which layers of the model a worker has: what its checkpoint says of itself. */
#include "run/context.h"

/* Where the list of a layer's shares stands. */
typedef struct ddp__share_walk {
    size_t  at[2];         /* values of its parameters, of its buffers so far */
    int     piece;         /* that the optimizer takes as one */
    size_t  in_piece, trained, state;
} ddp__share_walk;

/* Where value `at` of unit l's parameters or buffers lies in its whole layer; at most *n follow it there too. */
static size_t ddp__share_from(const ddp_ctx *d, int l, int buffers, size_t at, size_t *n)
{
    const ddp__cut *c = d->cut;

    for (int i = 0; c && i < c->spans; i++) {
        const ddp__cut_span *s = &c->span[i];
        if (s->unit != l || s->buffers != buffers || at < s->at || at >= s->at + s->count) continue;
        if (*n > s->at + s->count - at) *n = s->at + s->count - at;
        return s->from + (at - s->at);
    }
    return at;
}

/* The shares of a block, into out unless it is NULL; how many. */
static int ddp__shares_block(const ddp_ctx *d, int l, int b, ddp__share_walk *w, ddp__share *out)
{
    const ddp__unit *u = &d->unit[l];
    const ddp_block *k = &u->block[b];
    const int buffers = k->kind == DDP_BUFFERS;
    size_t at = 0, n;
    int count = 0;

    for (; at < k->count; at += n, w->at[buffers] += n) {
        ddp__share h = {l, b, d->cut ? d->cut->whole[l] : l, buffers, 0, (int64_t)at, 0, -1, 0, 0, 0};
        n = k->count - at;
        h.from = (int64_t)ddp__share_from(d, l, buffers, w->at[buffers], &n);
        if (!buffers && k->grads) {
            const size_t whole = u->trains[w->piece].count;
            const int states = ddp__piece_state(d, u, w->piece);
            if (n > whole - w->in_piece) n = whole - w->in_piece;
            h.trained = (int64_t)w->trained;
            h.state = (int64_t)(w->state + w->in_piece);
            h.states = states;
            h.stride = (int64_t)whole;
            w->trained += n;
            w->in_piece += n;
            if (w->in_piece == whole) w->state += whole * (size_t)states, w->in_piece = 0, w->piece++;
        }
        h.count = (int64_t)n;
        if (out) out[count] = h;
        count++;
    }
    return count;
}

int ddp__shares(const ddp_ctx *d, ddp__share *out)
{
    int count = 0;

    for (int l = 0; l < d->layers; l++) {
        ddp__share_walk w;
        memset(&w, 0, sizeof w);
        for (int b = 0; b < d->unit[l].blocks; b++) count += ddp__shares_block(d, l, b, &w, out ? out + count : NULL);
    }
    return count;
}
