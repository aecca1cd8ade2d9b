/* What is known of a model whose stages lie on several ranks: the hash of its parameters, and the norm of its gradients,
 * each in the order of the whole model. */
#include "pipe/executor.h"

ddp_status ddp__word_exchange(ddp_pipe *p, ddp_verb verb, int stage, void *bytes, size_t n)
{
    ddp_piece piece;
    ddp_message m = ddp__own_word(p->d, &piece, verb, 0, bytes, n);

    m.peer = ddp__pipe_rank(p, stage);
    return ddp__run(p->d, &m, 0, &p->d->host.error);
}

/* ---- the norm: each stage goes on from the sum of the stage before it ---- */

static ddp_status ddp__norm_before(void *user, double *squares, ddp_error *err)
{
    ddp_pipe *p = (ddp_pipe *)user;

    (void)err; /* the context's own */
    return p->stage ? ddp__word_exchange(p, DDP_RECEIVE, p->stage - 1, squares, sizeof *squares) : DDP_OK;
}

static ddp_status ddp__norm_after(void *user, double *squares, ddp_error *err)
{
    ddp_pipe *p = (ddp_pipe *)user;
    ddp_piece piece;
    ddp_message m;

    if (p->stage + 1 < p->stages) DDP__TRY(ddp__word_exchange(p, DDP_SEND, p->stage + 1, squares, sizeof *squares));
    m = ddp__own_word(p->d, &piece, DDP_BROADCAST, p->team, squares, sizeof *squares);
    m.peer = ddp__pipe_rank(p, p->stages - 1);
    return ddp__run(p->d, &m, 0, err);
}

void ddp__pipe_clips(ddp_pipe *p)
{
    p->d->norm.before = ddp__norm_before;
    p->d->norm.after = ddp__norm_after;
    p->d->norm.user = p;
}

/* ---- the hash ---- */

/* A layer's values at its first operator's stage, in order; other stages send theirs. */
static ddp_status ddp__hash_layer(ddp_pipe *p, int layer, int home, float *values)
{
    for (int i = 0; i < p->g->nodes; i++) {
        const ddp_node *n = p->g->node[i];
        size_t at = n->place;
        for (int k = n->tied >= 0; n->layer == layer && k < n->spec.params; k++) {
            const size_t count = (size_t)ddp_shape_count(&n->spec.param[k].shape);
            float *part = values + at;
            at += count;
            if (p->stage == n->stage) {
                if (p->stage != home) part = values;
                DDP__TRY(ddp__host_download(&p->d->host, part, n->param[k], count * sizeof *part, &p->d->host.error));
                if (p->stage != home) DDP__TRY(ddp__word_exchange(p, DDP_SEND, home, part, count * sizeof *part));
            } else if (p->stage == home) {
                DDP__TRY(ddp__word_exchange(p, DDP_RECEIVE, n->stage, part, count * sizeof *part));
            }
        }
    }
    return DDP_OK;
}

size_t ddp__whole_layer(const ddp_graph *g, int layer)
{
    size_t count = 0;

    for (int i = 0; i < g->nodes; i++)
        for (int k = g->node[i]->tied >= 0; g->node[i]->layer == layer && k < g->node[i]->spec.params; k++)
            count += (size_t)ddp_shape_count(&g->node[i]->spec.param[k].shape);
    return count;
}

static int ddp__layer_home(const ddp_graph *g, int layer)
{
    for (int i = 0; i < g->nodes; i++)
        if (g->node[i]->op && g->node[i]->layer == layer) return g->node[i]->stage;
    return 0;
}

static ddp_status ddp__pipe_hash(ddp_pipe *p, float *values, uint64_t *hash)
{
    int at = 0;
    ddp_piece piece;
    ddp_message m;

    for (int l = 0; l < p->g->layers; l++) {
        const int home = ddp__layer_home(p->g, l);
        if (home != at && p->stage == at) DDP__TRY(ddp__word_exchange(p, DDP_SEND, home, hash, sizeof *hash));
        if (home != at && p->stage == home) DDP__TRY(ddp__word_exchange(p, DDP_RECEIVE, at, hash, sizeof *hash));
        at = home;
        DDP__TRY(ddp__hash_layer(p, l, home, values));
        if (p->stage == home) *hash = ddp_hash_floats(*hash, values, ddp__whole_layer(p->g, l));
    }
    if (p->stages == 1) return DDP_OK;
    m = ddp__own_word(p->d, &piece, DDP_BROADCAST, p->team, hash, sizeof *hash);
    m.peer = ddp__pipe_rank(p, at);
    return ddp__run(p->d, &m, 0, &p->d->host.error);
}

int ddp_pipe_hash(ddp_pipe *p, uint64_t *hash)
{
    size_t most = 0;
    float *values;
    ddp_status s;

    if (!p || !hash) return (int)DDP_ARG;
    DDP__ENTER(p->d);
    *hash = 0;
    for (int l = 0; l < p->g->layers; l++)
        if (ddp__whole_layer(p->g, l) > most) most = ddp__whole_layer(p->g, l);
    values = (float *)ddp__calloc(most + 1, sizeof *values);
    if (!values) return ddp__ctx_failf(p->d, DDP_MEMORY, "out of memory for the %zu parameters of a layer", most);
    s = ddp__pipe_hash(p, values, hash);
    DDP_FREE(values);
    return s ? ddp__ctx_fail(p->d, &p->d->host.error) : 0;
}
