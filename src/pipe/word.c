/* Values of a model whose stages are on several ranks: the norm of its gradients, the hash of its parameters,
 * and its weights file. Each is computed in the order of the whole model. */
#include "exchange/post.h"
#include "pipe/executor.h"

ddp_status ddp__word_exchange(ddp_pipe *p, ddp_verb verb, int stage, void *bytes, size_t n)
{
    ddp_piece piece;
    ddp_message m = ddp__own_word(p->d, &piece, verb, verb == DDP_BROADCAST ? p->team : 0, bytes, n);

    m.peer = ddp__pipe_rank(p, stage);
    return ddp__run(p->d, &m, 0, ddp__error(p->d));
}

/* ---- the norm: each stage adds to the sum of the previous stage ---- */

static ddp_status ddp__norm_pass(void *user, int after, double *squares)
{
    ddp_pipe *p = (ddp_pipe *)user;

    if (!after)
        return p->stage ? ddp__word_exchange(p, DDP_RECEIVE, p->stage - 1, squares, sizeof *squares) : DDP_OK;
    if (p->stage + 1 < p->stages)
        DDP__TRY(ddp__word_exchange(p, DDP_SEND, p->stage + 1, squares, sizeof *squares));
    return ddp__word_exchange(p, DDP_BROADCAST, p->stages - 1, squares, sizeof *squares);
}

void ddp__pipe_clips(ddp_pipe *p)
{
    const ddp__norm_chain chain = {ddp__norm_pass, p};

    ddp__norm_chain_set(p->d, &chain);
}

/* ---- the hash ---- */

/* Collects a layer's values on the stage of its first operator, in order. Other stages send theirs. */
static ddp_status ddp__hash_layer(ddp_pipe *p, int layer, int home, float *values)
{
    for (int i = 0; i < ddp__count(p->g->node); i++) {
        const ddp_node *n = p->g->node[i];
        const int own = n->tied >= 0; /* the first of the operator's own arrays, which are contiguous */
        const size_t count = n->layer == layer ? ddp__arrays_count(n->spec.param, own, n->spec.params) : 0;
        float *part = p->stage == home ? values + n->place : values;
        if (!count) continue;
        if (p->stage == n->stage)
            DDP__TRY(ddp__host_download(ddp__host_of(p->d), part, n->param[own], count * sizeof *part,
                                        ddp__error(p->d)));
        if (p->stage == n->stage && p->stage != home)
            DDP__TRY(ddp__word_exchange(p, DDP_SEND, home, part, count * sizeof *part));
        if (p->stage != n->stage && p->stage == home)
            DDP__TRY(ddp__word_exchange(p, DDP_RECEIVE, n->stage, part, count * sizeof *part));
    }
    return DDP_OK;
}

size_t ddp__whole_layer(const ddp_graph *g, int layer)
{
    size_t count = 0;

    for (int i = 0; i < ddp__count(g->node); i++)
        if (g->node[i]->layer == layer)
            count +=
                ddp__arrays_count(g->node[i]->spec.param, g->node[i]->tied >= 0, g->node[i]->spec.params);
    return count;
}

static int ddp__layer_home(const ddp_graph *g, int layer)
{
    for (int i = 0; i < ddp__count(g->node); i++)
        if (g->node[i]->op && g->node[i]->layer == layer) return g->node[i]->stage;
    return 0;
}

static ddp_status ddp__pipe_hash(ddp_pipe *p, float *values, uint64_t *hash)
{
    int at = 0;

    for (int l = 0; l < ddp__count(p->g->layer); l++) {
        const int home = ddp__layer_home(p->g, l);
        if (home != at && p->stage == at) DDP__TRY(ddp__word_exchange(p, DDP_SEND, home, hash, sizeof *hash));
        if (home != at && p->stage == home)
            DDP__TRY(ddp__word_exchange(p, DDP_RECEIVE, at, hash, sizeof *hash));
        at = home;
        DDP__TRY(ddp__hash_layer(p, l, home, values));
        if (p->stage == home) *hash = ddp_hash_floats(*hash, values, ddp__whole_layer(p->g, l));
    }
    return p->stages == 1 ? DDP_OK : ddp__word_exchange(p, DDP_BROADCAST, at, hash, sizeof *hash);
}

int ddp_pipe_hash(ddp_pipe *p, uint64_t *hash)
{
    size_t most = 0;
    float *values;
    ddp_status s;

    if (!p || !hash) return (int)DDP_ARG;
    DDP__ENTER(p->d);
    *hash = 0;
    for (int l = 0; l < ddp__count(p->g->layer); l++)
        if (ddp__whole_layer(p->g, l) > most) most = ddp__whole_layer(p->g, l);
    values = (float *)ddp__calloc(most + 1, sizeof *values);
    if (!values)
        return ddp__ctx_failf(p->d, DDP_MEMORY, "out of memory for the %zu parameters of a layer", most);
    s = ddp__pipe_hash(p, values, hash);
    DDP_FREE(values);
    return s ? ddp__ctx_fail(p->d, ddp__error(p->d)) : 0;
}

/* ---- the file: rank 0 writes the parts that the other ranks send ---- */

enum { DDP__EXPORT_PART = 1 << 18 }; /* values per message */

typedef struct ddp__export {
    ddp_pipe *p;
    int home;    /* the stage that writes */
    float *part; /* [DDP__EXPORT_PART] */
} ddp__export;

static ddp_status ddp__export_pass(void *user, int stage, const float *data, size_t n, ddp__file *f,
                                   ddp_error *err)
{
    const ddp__export *x = (const ddp__export *)user;
    ddp_pipe *p = x->p;
    size_t at, now;

    (void)err; /* of the context */
    for (at = 0; at < n; at += now) {
        now = n - at < (size_t)DDP__EXPORT_PART ? n - at : (size_t)DDP__EXPORT_PART;
        if (data) memcpy(x->part, data + at, now * sizeof *x->part);
        DDP__TRY(ddp__word_exchange(p, data ? DDP_SEND : DDP_RECEIVE, data ? x->home : stage, x->part,
                                    now * sizeof *x->part));
        if (!data) ddp__file_put(f, x->part, now * sizeof *x->part);
    }
    return DDP_OK;
}

/* All ranks of the pipeline of rank 0 take part. */
int ddp_pipe_export(ddp_pipe *p, const char *path)
{
    ddp__export x = {p, -1, NULL};
    char done = 1;
    ddp_status s;

    if (!p) return (int)DDP_ARG;
    DDP__ENTER(p->d);
    if (!path || !*path) return ddp__ctx_failf(p->d, DDP_ARG, "ddp_pipe_export: a path is needed");
    for (int i = 0; i < p->stages; i++)
        if (ddp__pipe_rank(p, i) == 0) x.home = i;
    if (x.home < 0) return 0;
    x.part = (float *)ddp__calloc(DDP__EXPORT_PART, sizeof *x.part);
    s = x.part ? ddp__weights_save(p->g, path, ddp__export_pass, &x, p->stage == x.home, ddp__error(p->d))
               : ddp__fail(ddp__error(p->d), DDP_MEMORY, "out of memory for writing %.200s", path);
    DDP_FREE(x.part);
    if (s == DDP_OK && p->stages > 1)
        s = ddp__word_exchange(p, DDP_BROADCAST, x.home, &done, 1); /* the file is complete */
    return s ? ddp__ctx_fail(p->d, ddp__error(p->d)) : 0;
}
