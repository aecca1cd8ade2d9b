/* Loading: which checkpoint, whether it fits, and whose file a rank takes. */
#include "base/platform.h"
#include "io/json.h"
#include "sync/checkpoint.h"
#include "sync/checkpoint_files.h"

/* What a manifest says. */
typedef struct ddp__manifest {
    ddp__json   *root;
    long         step;
    int          world, period, synchronised, generation;
    const char  *strategy, *optimizer, *model;
    const ddp__json *hash; /* array, one per rank: a text, or null of a lost one */
} ddp__manifest;

static ddp_status ddp__manifest_read(const char *path, ddp__manifest *m, ddp_error *err)
{
    const ddp__json *v, *flag;
    double number[3];
    static const char *const keys[3] = {"step", "world", "period"};
    int k;

    m->root = ddp__json_read(path, err);
    if (!m->root) return err->code;
    DDP__TRY(ddp__json_need(path, m->root, "format", DDP__JSON_STRING, &v, err));
    if (strcmp(v->string, "dreamddp checkpoint 2"))
        return ddp__fail(err, DDP_FORMAT, "%.200s: its format is \"%.60s\"; \"dreamddp checkpoint "
                         "2\" is understood", path, v->string);
    for (k = 0; k < 3; k++) {
        DDP__TRY(ddp__json_need(path, m->root, keys[k], DDP__JSON_NUMBER, &v, err));
        number[k] = v->number;
        if (!(number[k] >= 0 && number[k] < 1e9) || number[k] != floor(number[k]))
            return ddp__fail(err, DDP_FORMAT, "%.200s: \"%s\" is %g", path, keys[k], number[k]);
    }
    m->step = (long)number[0], m->world = (int)number[1], m->period = (int)number[2];
    DDP__TRY(ddp__json_need(path, m->root, "strategy", DDP__JSON_STRING, &v, err));
    m->strategy = v->string;
    DDP__TRY(ddp__json_need(path, m->root, "optimizer", DDP__JSON_STRING, &v, err));
    m->optimizer = v->string;
    DDP__TRY(ddp__json_need(path, m->root, "model", DDP__JSON_STRING, &v, err));
    m->model = v->string;
    DDP__TRY(ddp__json_need(path, m->root, "hash", DDP__JSON_ARRAY, &m->hash, err));
    flag = ddp__json_get(m->root, "generation");
    m->generation = flag && flag->kind == DDP__JSON_NUMBER && flag->number == 1;
    flag = ddp__json_get(m->root, "synchronised");
    m->synchronised = flag && flag->kind == DDP__JSON_TRUE;
    if (m->hash->count != m->world || m->world < 1)
        return ddp__fail(err, DDP_FORMAT, "%.200s: %ld hashes for %d ranks", path, m->hash->count,
                         m->world);
    return DDP_OK;
}

/* Is it of this model, and may this run take it? */
static ddp_status ddp__manifest_fits(const ddp_ctx *d, const char *path, const ddp__manifest *m,
                                     int *same, ddp_error *err)
{
    const ddp__json *layers, *v;
    int l = 0;

    DDP__TRY(ddp__json_need(path, m->root, "layers", DDP__JSON_ARRAY, &layers, err));
    if (layers->count != d->layers)
        return ddp__fail(err, DDP_MISMATCH, "%.200s is of a model of %ld layers, this one has %d",
                         path, layers->count, d->layers);
    for (v = layers->first; v; v = v->next, l++)
        if (v->kind != DDP__JSON_STRING || strcmp(v->string, d->unit[l].name))
            return ddp__fail(err, DDP_MISMATCH, "%.200s is of another model: its layer %d is "
                             "\"%.60s\", here it is \"%.60s\"", path, l,
                             v->kind == DDP__JSON_STRING ? v->string : "", d->unit[l].name);
    if (strcmp(m->optimizer, d->optimizer.name))
        return ddp__fail(err, DDP_MISMATCH, "%.200s was written with the optimizer %.40s, this run "
                         "has %.40s", path, m->optimizer, d->optimizer.name);
    *same = m->world == d->world && m->period == d->cfg.period &&
            !strcmp(m->strategy, d->strategy->name);
    if (*same || m->synchronised) return DDP_OK;
    return ddp__fail(err, DDP_MISMATCH,
                     "%.160s is of %d workers under %.20s with period %d and not "
                     "synchronised (its ranks hold unlike values): it goes on with exactly that, "
                     "not with %d workers under %s with period %d",
                     path, m->world, m->strategy, m->period, d->world, d->strategy->name,
                     d->cfg.period);
}

static ddp_status ddp__shard_check(const ddp__shard *s, ddp_safetensors *f, const char *path,
                                   ddp_error *err)
{
    int i;

    for (i = 0; i < s->count; i++) {
        const ddp__shard_array *x = &s->list[i];
        const ddp_safetensor *t = ddp_safetensors_find(f, x->name);

        if (!t || t->type != x->as.type || t->dims != 1 || t->dim[0] != x->as.dim[0])
            return ddp__fail(err, DDP_MISMATCH, "%.200s: tensor \"%s\"%s%.60s is missing or not %"
                             PRId64 " values of %s: it is a checkpoint of another model or wire "
                             "format", path,
                             x->name, x->layer ? " of layer " : "", x->layer ? x->layer : "",
                             x->as.dim[0], ddp_safetensors_type_name(x->as.type));
    }
    if (ddp_safetensors_count(f) == s->count) return DDP_OK;
    return ddp__fail(err, DDP_MISMATCH, "%.200s: %d tensors, this model with this wire "
                     "format has %d", path,
                     ddp_safetensors_count(f), s->count);
}

/* The arrays are those of this model. Is it this model? */
static ddp_status ddp__manifest_model(const ddp_ctx *d, const ddp__manifest *m, const char *path,
                                      ddp_error *err)
{
    char text[20];

    snprintf(text, sizeof text, "%016" PRIx64, ddp__checkpoint_model(d));
    if (!strcmp(m->model, text)) return DDP_OK;
    return ddp__fail(err, DDP_MISMATCH, "%.200s is of another model: its layers have the names and "
                     "sizes of this one's, but other operators, or operators with other arguments "
                     "(the number of heads, for example)", path);
}

/* Only values that were checked leave a shard. */
static ddp_status ddp__shard_sane(const ddp_ctx *d, const ddp__shard *s, const ddp__manifest *m,
                                  const char *path, ddp_error *err)
{
    int l, bad = s->number[DDP__C_STEP] != m->step || s->number[DDP__C_TAKEN] < m->step;

    for (l = 0; l < d->layers && s->plan.layers; l++)
        bad |= s->plan.step_of[l] < 0 || s->plan.step_of[l] >= s->plan.period;
    if (!bad) return DDP_OK;
    return ddp__fail(err, DDP_FORMAT, "%.200s: its step or its plan is not that of the manifest",
                     path);
}

static ddp_status ddp__shard_read(ddp__shard *s, ddp_safetensors *f, int small, ddp_error *err)
{
    int i;

    for (i = 0; i < s->count; i++) {
        const ddp__shard_array *x = &s->list[i];
        int large = x->layer != NULL;

        if (large == small) continue;
        DDP__TRY(ddp_safetensors_bytes(f, ddp_safetensors_find(f, x->name), 0,
                                       (size_t)x->as.dim[0], x->data, err));
    }
    return DDP_OK;
}

/* Everything that can be wrong is found before the first array changes. */
static ddp_status ddp__shard_load(ddp_ctx *d, const ddp__manifest *m, const ddp__json *hash,
                                  int same, const char *path, ddp_error *err)
{
    ddp_safetensors *f = ddp_safetensors_open(path, err);
    const ddp_safetensor *fill;
    ddp__shard shard;
    uint64_t h = 0;
    char text[20];
    ddp_status s;

    if (!f) return err->code;
    fill = ddp_safetensors_find(f, "plan.fill");
    s = ddp__shard_open(d, fill && fill->dims == 1 && fill->dim[0] < INT_MAX
                               ? (int)(fill->dim[0] / d->layers) : 0, &shard, err);
    if (s == DDP_OK) s = ddp__shard_check(&shard, f, path, err);
    if (s == DDP_OK) s = ddp__manifest_model(d, m, path, err);
    if (s == DDP_OK) s = ddp__shard_hash_file(f, &h, err);
    snprintf(text, sizeof text, "%016" PRIx64, h);
    if (s == DDP_OK && (hash->kind != DDP__JSON_STRING || strcmp(hash->string, text)))
        s = ddp__fail(err, DDP_FORMAT, "%.200s: its hash is %s, but the manifest says %.40s: it "
                      "was changed, or is of another checkpoint", path, text,
                      hash->kind == DDP__JSON_STRING ? hash->string : "nothing");
    if (s == DDP_OK) s = ddp__shard_read(&shard, f, 1, err);
    if (s == DDP_OK) s = ddp__shard_sane(d, &shard, m, path, err);
    if (s == DDP_OK) s = ddp__shard_read(&shard, f, 0, err);
    if (s == DDP_OK) ddp__shard_give(d, &shard, same);
    if (s == DDP_OK && !same) ddp__coded_start(d, 1);
    ddp__shard_free(&shard);
    ddp_safetensors_close(f);
    return s;
}

/* The lowest live worker says which checkpoint is the newest: the others might see another. */
static ddp_status ddp__checkpoint_choose(ddp_ctx *d, const char *folder, long *step)
{
    float words[DDP__WORDS];
    ddp_error local;
    ddp__piece p;

    memset(&local, 0, sizeof local);
    if (ddp__checkpoint_newest(folder, LONG_MAX, 1, step, &local) && ddp__is_first(d))
        return ddp__fail(&d->host.error, local.code, "%s", local.msg);
    ddp__pack64(words, (uint64_t)*step);
    p.data = words;
    p.count = DDP__WORDS;
    DDP__TRY(ddp__blocking(d, DDP__BROADCAST, &p, 1, 1, 0, &d->host.error));
    *step = (long)ddp__unpack64(words);
    if (*step >= 0) return DDP_OK;
    return ddp__fail(&d->host.error, DDP_IO,
                     "%.200s holds no whole checkpoint (a folder step-... with manifest.json)",
                     folder);
}

/* Whose file a rank takes: its own; of another world all hold the same, but for buffers. Who was
 * lost when it was written has none, and takes that of the next one, as a newcomer takes one. */
static ddp_status ddp__manifest_rank(const ddp__manifest *m, int own, const char *path, int *rank,
                                     const ddp__json **hash, ddp_error *err)
{
    int i, k;

    for (i = 0; i < m->world; i++) {
        *rank = (own + i) % m->world;
        for (k = 0, *hash = m->hash->first; k < *rank; k++) *hash = (*hash)->next;
        if ((*hash)->kind != DDP__JSON_NULL) return DDP_OK;
    }
    return ddp__fail(err, DDP_FORMAT, "%.200s: no rank has a hash", path);
}

static ddp_status ddp__checkpoint_read(ddp_ctx *d, const char *folder, ddp__manifest *m,
                                       ddp__text *path)
{
    ddp_error *err = &d->host.error;
    float token = 0;
    ddp__piece p;
    const ddp__json *hash = NULL;
    long step = 0;
    int same = 0, rank = 0;

    DDP__TRY(ddp__checkpoint_choose(d, folder, &step));
    DDP__TRY(ddp__checkpoint_path(path, err, "%s/step-%012ld/manifest.json", folder, step));
    DDP__TRY(ddp__manifest_read(path->data, m, err));
    DDP__TRY(ddp__manifest_fits(d, path->data, m, &same, err));
    DDP__TRY(ddp__manifest_rank(m, d->rank, path->data, &rank, &hash, err));
    DDP__TRY(ddp__checkpoint_shard(path, err, folder, step, rank, m->generation));
    DDP__TRY(ddp__shard_load(d, m, hash, same, path->data, err));
    p.data = &token;
    p.count = 1;
    return ddp__blocking(d, DDP__ALL_REDUCE, &p, 1, 1, 0, err); /* all, or none goes on */
}

int ddp_checkpoint_load(ddp_ctx *d, const char *folder, int *world)
{
    ddp__manifest m;
    ddp__text path;
    ddp_status s = DDP_OK;

    DDP__ENTER(d);
    if (!folder || !*folder) return ddp__ctx_failf(d, DDP_ARG, "ddp_checkpoint_load: no folder");
    if (d->step || d->phase != DDP__OUTSIDE)
        return ddp__ctx_failf(d, DDP_USAGE, "ddp_checkpoint_load: step %ld has begun; load before "
                              "the first", d->step);
    memset(&m, 0, sizeof m);
    memset(&path, 0, sizeof path);
    if (!d->started) s = ddp__session_start(d, &d->host.error);
    if (s == DDP_OK) s = ddp__checkpoint_read(d, folder, &m, &path);
    if (s == DDP_OK && world) *world = m.world;
    ddp__json_free(m.root);
    ddp__text_free(&path);
    return s == DDP_OK ? 0 : ddp__ctx_fail(d, &d->host.error);
}
