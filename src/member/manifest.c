/* The manifest of a checkpoint: what it says, and which run may take it. */
#include "base/platform.h"
#include "member/checkpoint.h"

#define DDP__MANIFEST "dreamddp checkpoint 3"

ddp_status ddp__manifest_write(const ddp__worker *s, const char *path, const uint64_t *words,
                               int generation, ddp_error *err)
{
    ddp__text t;
    ddp_status code;
    uint64_t first = 0;
    int equal = 1;

    memset(&t, 0, sizeof t);
    for (int i = 0; i < s->world; i++) {
        if (!words[2 * i]) continue;
        if (!first) first = words[2 * i + 1];
        if (words[2 * i + 1] != first) equal = 0;
    }
    ddp__text_addf(&t, "{\"format\": \"" DDP__MANIFEST "\", \"run\": \"%016" PRIx64 "\",\n \"step\": %ld, \"world\": "
                   "%d, \"strategy\": \"%s\", \"period\": %d,\n \"synchronised\": %s, \"generation\": %d, "
                   "\"optimizer\": ", s->run, s->step, s->world, s->strategy, s->period, equal ? "true" : "false",
                   generation);
    ddp__json_string(&t, s->optimizer);
    ddp__text_addf(&t, ",\n \"hash\": [");
    for (int i = 0; i < s->world; i++) {
        if (words[2 * i]) ddp__text_addf(&t, "%s\"%016" PRIx64 "\"", i ? ", " : "", words[2 * i]);
        else ddp__text_addf(&t, "%snull", i ? ", " : "");
    }
    ddp__text_addf(&t, "],\n \"model\": \"%016" PRIx64 "\", \"layers\": [", s->model);
    for (int i = 0; i < s->layers; i++) {
        ddp__text_addf(&t, "%s", i ? ", " : "");
        ddp__json_string(&t, s->layer[i]);
    }
    ddp__text_addf(&t, "]}\n");
    code = t.failed ? ddp__fail(err, DDP_MEMORY, "cannot write %.200s: out of memory", path)
                    : ddp__file_write(path, t.data, t.size, err);
    ddp__text_free(&t);
    return code;
}

ddp_status ddp__manifest_read(const char *path, ddp__manifest *m, ddp_error *err)
{
    static const char *const number[3] = {"step", "world", "period"};
    static const char *const text[5] = {"format", "run", "strategy", "optimizer", "model"};
    const char *value[5];
    const ddp__json *v;
    long whole[3];

    memset(m, 0, sizeof *m);
    m->root = ddp__json_read(path, err);
    if (!m->root) return err->code;
    for (int k = 0; k < 5; k++) {
        DDP__TRY(ddp__json_need(path, m->root, text[k], DDP__JSON_STRING, &v, err));
        value[k] = v->string;
        if (k == 0 && strcmp(v->string, DDP__MANIFEST))
            return ddp__fail(err, DDP_FORMAT, "%.200s: its format is \"%.60s\"; \"" DDP__MANIFEST "\" is understood",
                             path, v->string);
    }
    for (int k = 0; k < 3; k++) {
        DDP__TRY(ddp__json_need(path, m->root, number[k], DDP__JSON_NUMBER, &v, err));
        if (!(v->number >= 0 && v->number < 1e9) || v->number != floor(v->number))
            return ddp__fail(err, DDP_FORMAT, "%.200s: \"%s\" is %g", path, number[k], v->number);
        whole[k] = (long)v->number;
    }
    m->run = (uint64_t)strtoull(value[1], NULL, 16);
    m->strategy = value[2], m->optimizer = value[3], m->model = value[4];
    m->step = whole[0], m->world = (int)whole[1], m->period = (int)whole[2];
    v = ddp__json_get(m->root, "generation");
    m->generation = v && v->kind == DDP__JSON_NUMBER && v->number == 1;
    v = ddp__json_get(m->root, "synchronised");
    m->synchronised = v && v->kind == DDP__JSON_TRUE;
    DDP__TRY(ddp__json_need(path, m->root, "hash", DDP__JSON_ARRAY, &m->hash, err));
    if (m->hash->count == m->world && m->world > 0) return DDP_OK;
    return ddp__fail(err, DDP_FORMAT, "%.200s: %ld hashes for %d ranks", path, m->hash->count, m->world);
}

ddp_status ddp__manifest_fits(const ddp__worker *s, const char *path, const ddp__manifest *m, int *same, ddp_error *err)
{
    const ddp__json *layers, *v;
    int l = 0;

    DDP__TRY(ddp__json_need(path, m->root, "layers", DDP__JSON_ARRAY, &layers, err));
    if (layers->count != s->layers)
        return ddp__fail(err, DDP_MISMATCH, "%.200s is of a model of %ld layers, this one has %d",
                         path, layers->count, s->layers);
    for (v = layers->first; v; v = v->next, l++)
        if (v->kind != DDP__JSON_STRING || strcmp(v->string, s->layer[l]))
            return ddp__fail(err, DDP_MISMATCH, "%.200s is of another model: its layer %d is \"%.60s\", here it is "
                             "\"%.60s\"", path, l, v->kind == DDP__JSON_STRING ? v->string : "", s->layer[l]);
    if (strcmp(m->optimizer, s->optimizer))
        return ddp__fail(err, DDP_MISMATCH, "%.200s was written with the optimizer %.40s, this run "
                         "has %.40s", path, m->optimizer, s->optimizer);
    *same = m->world == s->world && m->period == s->period && !strcmp(m->strategy, s->strategy);
    if (*same || m->synchronised) return DDP_OK;
    return ddp__fail(err, DDP_MISMATCH, "%.160s is of %d workers under %.20s with period %d and not synchronised (its "
                     "ranks hold unlike values): it goes on with exactly that, not with %d workers under %s with "
                     "period %d", path, m->world, m->strategy, m->period, s->world, s->strategy, s->period);
}

uint64_t ddp__manifest_hash(const ddp__manifest *m)
{
    uint64_t h = ddp__hash(DDP__HASH_START, &m->run, sizeof m->run);
    const ddp__json *v;

    for (v = m->hash->first; v; v = v->next)
        if (v->kind == DDP__JSON_STRING) h = ddp__hash(h, v->string, strlen(v->string));
        else h = ddp__hash(h, "", 1);
    return h;
}
