/* Loads a checkpoint of a model that was cut differently: each worker reads the values of its layers, found
 * by the layers' names, from the files that have them, and the state of the optimizer and the strategy for
 * each value. */
#include "member/state.h"

enum { DDP__RESHARD_PART = 65536 }; /* values copied at a time */

typedef struct ddp__shard {
    char *path;
    ddp__listed listed;
    ddp_safetensors *f; /* NULL means that the file is missing */
    ddp__share *share;  /* [shares] */
    int shares, layers;
    int used; /* 1 if this worker reads something from it */
} ddp__shard;

struct ddp__shards {
    ddp__worker *s;
    ddp__shard *shard; /* [files] */
    int files;
    const ddp__share *own; /* [owns] shares of the worker */
    int owns;
    float *part; /* [DDP__RESHARD_PART] */
};

/* ---- opening ---- */

static ddp_status ddp__shard_read(ddp__shard *x, const ddp__worker *s, ddp_error *err)
{
    const ddp_safetensor *t = ddp_safetensors_find(x->f, "shares"),
                         *updates = ddp_safetensors_find(x->f, "updates");
    const uint64_t words = t && t->type == DDP_ST_I64 && t->dims == 1 ? ddp_safetensors_elements(t) : 1;

    if (words % DDP__SHARE_WORDS || words > 1 << 26 || !updates || updates->type != DDP_ST_I64)
        return ddp__fail(err, DDP_FORMAT, "%.200s has no list of its layers", x->path);
    x->layers = (int)ddp_safetensors_elements(updates);
    x->shares = (int)(words / DDP__SHARE_WORDS);
    x->share = (ddp__share *)ddp__calloc((size_t)x->shares + 1, sizeof *x->share);
    if (!x->share) return ddp__fail(err, DDP_MEMORY, "out of memory for reading %.200s", x->path);
    DDP__TRY(ddp_safetensors_bytes(x->f, t, 0, (size_t)words, x->share, err));
    for (int i = 0; i < x->shares; i++) {
        const ddp__share *h = &x->share[i];
        if (h->layer < 0 || h->layer >= x->layers || h->whole < 0 || h->whole >= s->wholes || h->count < 1 ||
            (uint64_t)(h->count | h->at | h->from | h->block | h->state | h->states | h->stride |
                       (h->trained + 1)) >>
                40)
            return ddp__fail(err, DDP_FORMAT, "%.200s: its list of layers is damaged", x->path);
    }
    return DDP_OK;
}

/* The file's share that contains value `at` of own share h, or NULL. */
static const ddp__share *ddp__shard_has(const ddp__shard *x, const ddp__share *h, int64_t at)
{
    for (int i = 0; x->f && i < x->shares; i++) {
        const ddp__share *o = &x->share[i];
        if (o->whole == h->whole && o->buffers == h->buffers && at >= o->from && at < o->from + o->count)
            return o;
    }
    return NULL;
}

/* The same over all files. *in: the file. *n: number of consecutive values that both shares have. */
static const ddp__share *ddp__shards_have(const ddp__shards *x, const ddp__share *h, int64_t at,
                                          ddp__shard **in, int64_t *n)
{
    const ddp__share *o = NULL;

    for (int i = 0; i < x->files && !o; i++) {
        *in = &x->shard[i];
        o = ddp__shard_has(*in, h, at);
    }
    *n = h->from + h->count - at;
    if (o && o->from + o->count - at < *n) *n = o->from + o->count - at;
    return o;
}

/* The number of parameters of a layer of the model in a list of shares. */
static long long ddp__reshard_count(const ddp__share *h, int n, int whole)
{
    long long sum = 0;

    for (int i = 0; i < n; i++)
        if (h[i].whole == whole && !h[i].buffers) sum += h[i].count;
    return sum;
}

/* For workers that have the whole model: verifies that its layers have the sizes of those in the files, all
 * of which are here. */
static ddp_status ddp__shards_sizes(const ddp__shards *x, ddp_error *err)
{
    for (int l = 0; l < x->s->wholes && x->s->copies == x->s->world; l++) {
        const long long here = ddp__reshard_count(x->own, x->owns, l);
        long long there = 0;
        for (int i = 0; i < x->files; i++)
            there += ddp__reshard_count(x->shard[i].share, x->shard[i].shares, l);
        if (here != there)
            return ddp__fail(err, DDP_MISMATCH,
                             "layer %.60s has %lld parameters in %.200s and %lld here: resume with the "
                             "same model (vocabulary, width, sequence length)",
                             x->s->whole[l], there, x->shard[0].path, here);
    }
    return DDP_OK;
}

/* Verifies that every value of this worker is in a file. */
ddp_status ddp__shards_cover(ddp__shards *x, ddp_error *err)
{
    const char *missing = "";
    const ddp__share *o;
    ddp__shard *in;
    int64_t n;

    for (int i = 0; i < x->files; i++)
        if (!x->shard[i].f) missing = x->shard[i].path;
    if (!*missing) DDP__TRY(ddp__shards_sizes(x, err));
    for (const ddp__share *h = x->own; h < x->own + x->owns; h++)
        for (int64_t at = h->from; at < h->from + h->count; at += n) {
            o = ddp__shards_have(x, h, at, &in, &n);
            if (!o && *missing)
                return ddp__fail(
                    err, DDP_IO,
                    "layer %.60s: its %s are not in the files on this machine; cannot read %.300s: %s: to "
                    "resume with another cut, start each rank where all files are",
                    x->s->whole[h->whole], h->buffers ? "buffers" : "parameters", missing, strerror(ENOENT));
            if (!o)
                return ddp__fail(err, DDP_MISMATCH,
                                 "layer %.60s: its %s from index %lld on are in no file of %.300s: it is a "
                                 "checkpoint of another model",
                                 x->s->whole[h->whole], h->buffers ? "buffers" : "parameters", (long long)at,
                                 x->shard[0].path);
            if (o->states != h->states || (o->trained < 0) != (h->trained < 0))
                return ddp__fail(
                    err, DDP_MISMATCH,
                    "layer %.60s: %.300s has %d optimizer values per parameter, but this run has %d",
                    x->s->whole[h->whole], in->path, (int)o->states, (int)h->states);
            in->used = 1;
        }
    for (int i = 0; i < x->files; i++)
        if (x->shard[i].used)
            DDP__TRY(ddp__worker_listed(x->shard[i].f, &x->shard[i].listed, x->shard[i].path, err));
    return DDP_OK;
}

ddp_status ddp__shards_open(ddp__shards **out, ddp__worker *s, int most, ddp_error *err)
{
    ddp__shards *x = *out = (ddp__shards *)ddp__calloc(1, sizeof *x);
    const ddp__tensor *own = ddp__worker_find(s, "shares");

    if (x) x->shard = (ddp__shard *)ddp__calloc((size_t)most + 1, sizeof *x->shard);
    if (x) x->part = (float *)ddp__calloc(DDP__RESHARD_PART, sizeof *x->part);
    if (!x || !x->shard || !x->part)
        return ddp__fail(err, DDP_MEMORY, "out of memory for reading a checkpoint");
    x->s = s;
    x->own = (const ddp__share *)own->data;
    x->owns = (int)(own->count / DDP__SHARE_WORDS);
    return DDP_OK;
}

ddp_status ddp__shards_add(ddp__shards *x, const char *path, const ddp__listed *listed, ddp_error *err)
{
    ddp__shard *f = &x->shard[x->files++];

    f->path = ddp__strdup(path);
    f->listed = *listed;
    if (!f->path) return ddp__fail(err, DDP_MEMORY, "out of memory for reading a checkpoint");
    if (access(path, F_OK) && errno == ENOENT) return DDP_OK;
    f->f = ddp_safetensors_open(path, err);
    return f->f ? ddp__shard_read(f, x->s, err) : ddp__damaged(err->code, err);
}

void ddp__shards_close(ddp__shards *x)
{
    if (!x) return;
    for (int i = 0; i < x->files; i++) {
        ddp_safetensors_close(x->shard[i].f);
        if (x->shard[i].path) DDP_FREE(x->shard[i].path);
        if (x->shard[i].share) DDP_FREE(x->shard[i].share);
    }
    if (x->shard) DDP_FREE(x->shard);
    if (x->part) DDP_FREE(x->part);
    DDP_FREE(x);
}

/* ---- one tensor ---- */

/* Copies n values of a file's tensor, from number `from` on, into t from number `at` on. dry: only checks
 * that they exist. */
static ddp_status ddp__shard_copy(const ddp__shards *x, const ddp__shard *in, const char *name, int64_t from,
                                  const ddp__tensor *t, int64_t at, int64_t n, int dry, ddp_error *err)
{
    const ddp_safetensor *o = ddp_safetensors_find(in->f, name);
    int64_t now;

    if (!o || o->type != t->type || o->dims != 1 || from > o->dim[0] - n)
        return ddp__fail(err, DDP_MISMATCH,
                         "%.300s: tensor \"%s\" of layer %.60s is missing or too short: it is a "
                         "checkpoint of another strategy or wire format",
                         in->path, name, t->layer);
    DDP_ASSERT(at >= 0 && at + n <= (int64_t)t->count);
    for (; !dry && n; n -= now, at += now, from += now) {
        now = n < (int64_t)DDP__RESHARD_PART ? n : (int64_t)DDP__RESHARD_PART;
        DDP__TRY(ddp_safetensors_bytes(in->f, o, (uint64_t)from, (size_t)now, x->part, err));
        if (t->flags & DDP__WORKER_THERE)
            ddp__host_upload(x->s->host, (float *)t->data + at, x->part, (size_t)now * sizeof *x->part);
        else
            memcpy((float *)t->data + at, x->part, (size_t)now * sizeof *x->part);
    }
    return DDP_OK;
}

/* The name of t on a worker where its layer has number `layer`. */
static void ddp__shard_name(const ddp__tensor *t, int layer, int block, char *name, size_t room)
{
    const int base = (int)strcspn(t->name, ".");

    if (block < 0)
        snprintf(name, room, "%.*s.%d", base, t->name, layer);
    else
        snprintf(name, room, "%.*s.%d.%d", base, t->name, layer, block);
}

/* Copies n values of own share h, from `at` on, from the file's share o. */
static ddp_status ddp__tensor_run(const ddp__shards *x, const ddp__shard *in, const ddp__share *o,
                                  const ddp__share *h, const ddp__tensor *t, int64_t at, int64_t n, int dry,
                                  ddp_error *err)
{
    const int64_t here = at - h->from, there = at - o->from;
    char name[64];

    ddp__shard_name(t, (int)o->layer, t->b < 0 ? -1 : (int)o->block, name, sizeof name);
    if (t->b >= 0) return ddp__shard_copy(x, in, name, o->at + there, t, h->at + here, n, dry, err);
    if (strncmp(t->name, "state.", 6))
        return ddp__shard_copy(x, in, name, o->trained + there, t, h->trained + here, n, dry, err);
    for (int64_t k = 0; k < h->states; k++)
        DDP__TRY(ddp__shard_copy(x, in, name, o->state + k * o->stride + there, t,
                                 h->state + k * h->stride + here, n, dry, err));
    return DDP_OK;
}

/* Copies a tensor with one value, or the optimizer's state, for each of the layer's values. */
static ddp_status ddp__tensor_reshard(const ddp__shards *x, const ddp__tensor *t, int dry, ddp_error *err)
{
    const ddp__share *o;
    ddp__shard *in;
    int64_t n;

    for (const ddp__share *h = x->own; h < x->own + x->owns; h++) {
        if (h->layer != t->l || (t->b >= 0 ? h->block != t->b : h->trained < 0)) continue;
        for (int64_t at = h->from; at < h->from + h->count; at += n) {
            o = ddp__shards_have(x, h, at, &in, &n);
            DDP__TRY(ddp__tensor_run(x, in, o, h, t, at, n, dry, err));
        }
    }
    return DDP_OK;
}

/* ---- state of the strategy ---- */

/* The file that has exactly this layer, with number *layer there, or NULL if it was cut differently. */
static const ddp__shard *ddp__shard_same(const ddp__shards *x, int l, int *layer)
{
    for (int i = 0; i < x->files; i++) {
        const ddp__shard *f = &x->shard[i];
        int all = 1, mine = 0, theirs = 0;
        *layer = -1;
        for (const ddp__share *h = x->own; h < x->own + x->owns && all; h++) {
            const ddp__share *o;
            if (h->layer != l) continue;
            mine++;
            o = ddp__shard_has(f, h, h->from);
            all = o && o->from == h->from && o->count == h->count && o->block == h->block && o->at == h->at;
            if (all) *layer = (int)o->layer;
        }
        for (int k = 0; all && k < f->shares; k++) theirs += (int)f->share[k].layer == *layer;
        if (all && mine && mine == theirs) return f;
    }
    return NULL;
}

/* The number of values with gradients of a layer on this worker. */
static int64_t ddp__layer_trained(const ddp__shards *x, int l)
{
    int64_t n = 0;

    for (const ddp__share *h = x->own; h < x->own + x->owns; h++)
        if (h->layer == l && h->trained >= 0) n += h->count;
    return n;
}

/* *rests = 1 if the tensor is all zeros in every file that has it, with no layer or with this model's layer
 * `whole`. */
static ddp_status ddp__kept_rests(const ddp__shards *x, const ddp__tensor *t, int whole, int *rests,
                                  ddp_error *err)
{
    char name[64];

    *rests = 1;
    for (int i = 0; i < x->files; i++)
        for (int l = 0; x->shard[i].f && l <= x->shard[i].layers; l++) {
            const ddp_safetensor *o;
            int here = l == x->shard[i].layers && whole < 0;
            for (int k = 0; whole >= 0 && k < x->shard[i].shares; k++)
                here |= (int)x->shard[i].share[k].layer == l && (int)x->shard[i].share[k].whole == whole;
            ddp__shard_name(t, l, -1, name, sizeof name);
            o = here ? ddp_safetensors_find(x->shard[i].f, name) : NULL;
            for (uint64_t at = 0, n; o && at < ddp_safetensors_elements(o); at += n) {
                n = ddp_safetensors_elements(o) - at;
                if (n > DDP__RESHARD_PART) n = DDP__RESHARD_PART;
                DDP__TRY(ddp_safetensors_bytes(x->shard[i].f, o, at, (size_t)n, x->part, err));
                for (uint64_t k = 0; k < n; k++) *rests &= x->part[k] == 0;
            }
        }
    return DDP_OK;
}

/* Loads a tensor that does not have one value for each of the layer's. If the layer is on one rank before and
 * after, its values are copied. Otherwise it can only start at zero, if it is zero in the files. */
static ddp_status ddp__kept_reshard(const ddp__shards *x, const ddp__tensor *t, int own, int dry,
                                    ddp_error *err)
{
    int layer = -1, rests, whole = -1;
    const ddp__shard *in = own && t->l < x->s->layers ? ddp__shard_same(x, t->l, &layer) : NULL;
    char name[64];

    ddp__shard_name(t, layer, -1, name, sizeof name);
    if (in) return ddp__shard_copy(x, in, name, 0, t, 0, (int64_t)t->count, dry, err);
    for (const ddp__share *h = x->own; h < x->own + x->owns; h++)
        if (h->layer == t->l) whole = (int)h->whole;
    DDP__TRY(ddp__kept_rests(x, t, whole, &rests, err));
    if (!rests)
        return ddp__fail(err, DDP_MISMATCH,
                         "%.300s: strategy %s stores \"%s\"%s%.60s, which cannot be moved to another cut: "
                         "resume with the stages and replicas that wrote it",
                         x->shard[0].path, x->s->strategy, t->name, t->l < x->s->layers ? " of layer " : "",
                         t->layer);
    if (!dry && t->flags & DDP__WORKER_THERE)
        ddp__host_zero(x->s->host, t->data, t->count * sizeof(float));
    else if (!dry)
        memset(t->data, 0, t->count * sizeof(float));
    return DDP_OK;
}

/* ---- the whole load ---- */

static int ddp__is_of_cut(const char *name)
{
    return !strncmp(name, DDP__EDGE_RESIDUAL ".", sizeof DDP__EDGE_RESIDUAL);
}

/* Fails if a file has a tensor that this run does not have: it belongs to another strategy. A state of the
 * program belongs to one stage. */
static ddp_status ddp__shard_known(const ddp__shards *x, const ddp__shard *f, ddp_error *err)
{
    for (int i = 0; f->used && i < ddp_safetensors_count(f->f); i++) {
        const char *name = ddp_safetensors_at(f->f, i)->name;
        const size_t base = strcspn(name, "."), program = sizeof DDP__PROGRAM - 1;
        int known = !name[base] || ddp__is_of_cut(name) || !strncmp(name, DDP__PROGRAM, program);
        if (!strncmp(name, DDP__PROGRAM, program) && ddp__worker_find(x->s, name))
            return ddp__fail(err, DDP_MISMATCH,
                             "%.300s: the state '%.40s' (ddp_add_state) cannot be moved to another cut: "
                             "resume with the stages and replicas that wrote it",
                             f->path, name + program);
        for (int k = 0; k < x->s->tensors && !known; k++)
            known = !strncmp(x->s->tensor[k].name, name, base + 1);
        if (!known && strncmp(name, "layer.", 6) && strncmp(name, "state.", 6))
            return ddp__fail(err, DDP_MISMATCH,
                             "%.300s has \"%.60s\", which strategy %s does not store with this wire format",
                             f->path, name, x->s->strategy);
    }
    return DDP_OK;
}

static ddp_status ddp__shards_tensors(const ddp__shards *x, int own, int dry, ddp_error *err)
{
    for (int i = 0; i < x->s->tensors; i++) {
        const ddp__tensor *t = &x->s->tensor[i];
        if (!t->layer || ddp__is_of_cut(t->name)) continue;
        if (t->b >= 0 || !strncmp(t->name, "state.", 6) ||
            (t->l < x->s->layers && (int64_t)t->count == ddp__layer_trained(x, t->l)))
            DDP__TRY(ddp__tensor_reshard(x, t, dry, err));
        else
            DDP__TRY(ddp__kept_reshard(x, t, own, dry, err));
    }
    return DDP_OK;
}

/* Step, passes and learning rate must be equal in all files. The number of updates is per layer. */
static ddp_status ddp__shards_numbers(ddp__shards *x, ddp_error *err)
{
    static const char *const name[3] = {"numbers", "random", "lr"};
    const ddp__tensor *updates = ddp__worker_find(x->s, "updates");
    const ddp__shard *any = &x->shard[0];
    int64_t n, run;

    for (int i = x->files - 1; i >= 0; i--)
        if (x->shard[i].f && (x->shard[i].used || !any->f)) any = &x->shard[i];
    if (!any->f)
        return ddp__fail(
            err, DDP_IO,
            "cannot read %.300s: %s: to resume with another cut, start each rank where all files are",
            any->path, strerror(ENOENT));
    for (int k = 0; k < 3; k++) {
        const ddp__tensor *t = ddp__worker_find(x->s, name[k]);
        const ddp_safetensor *o = ddp_safetensors_find(any->f, name[k]);
        if (!o || o->type != t->type || ddp_safetensors_elements(o) != t->count)
            return ddp__fail(err, DDP_MISMATCH, "%.300s: \"%s\" is missing or does not have %zu values",
                             any->path, name[k], t->count);
        DDP__TRY(ddp_safetensors_bytes(any->f, o, 0, t->count, t->data, err));
    }
    for (const ddp__share *h = x->own; h < x->own + x->owns; h++) {
        ddp__shard *in;
        const ddp__share *o = ddp__shards_have(x, h, h->from, &in, &run);
        DDP__TRY(ddp_safetensors_bytes(in->f, ddp_safetensors_find(in->f, "updates"), (uint64_t)o->layer, 1,
                                       &n, err));
        ((int64_t *)updates->data)[h->layer] = n;
    }
    return DDP_OK;
}

ddp_status ddp__shards_read(ddp__shards *x, long step, int own, ddp_error *err)
{
    for (int i = 0; i < x->files; i++) DDP__TRY(ddp__shard_known(x, &x->shard[i], err));
    DDP__TRY(ddp__shards_tensors(x, own, 1, err));
    DDP__TRY(ddp__shards_numbers(x, err));
    return x->s->check(x->s, step, x->shard[0].path, err);
}

ddp_status ddp__shards_load(ddp__shards *x, int own, ddp_error *err)
{
    return ddp__shards_tensors(x, own, 0, err);
}
