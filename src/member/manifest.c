/* A checkpoint's manifest as JSON: written, read, compared with the run that wants to go on. */
#include "member/manifest.h"

#define DDP__MANIFEST "dreamddp checkpoint 4"

/* ---- writing ---- */

/* 1: ranks with the same part of the model hold the same values. */
static int ddp__said_equal(const ddp__said *said, int world)
{
    for (int i = 0; i < world; i++)
        for (int k = 0; said[i].hash && k < i; k++)
            if (said[k].hash && said[k].cut == said[i].cut && said[k].common != said[i].common) return 0;
    return 1;
}

static void ddp__manifest_ranks(ddp__text *t, const char *name, const ddp__said *said, int world, int cut)
{
    ddp__text_addf(t, ",\n \"%s\": [", name);
    for (int i = 0; i < world; i++)
        if (!said[i].hash) ddp__text_addf(t, "%snull", i ? ", " : "");
        else ddp__text_addf(t, "%s\"%016" PRIx64 "\"", i ? ", " : "", cut ? said[i].cut : said[i].hash);
    ddp__text_addf(t, "]");
}

ddp_status ddp__manifest_write(const ddp__worker *s, const char *path, const ddp__said *said, int generation,
                               ddp_error *err)
{
    ddp__text t = {NULL, 0, 0, 0};
    ddp_status code;

    ddp__text_addf(&t, "{\"format\": \"" DDP__MANIFEST "\", \"run\": \"%016" PRIx64 "\",\n \"step\": %ld, \"world\": "
                   "%d, \"copies\": %d, \"strategy\": \"%s\", \"period\": %d,\n \"synchronised\": %s, "
                   "\"generation\": %d, \"optimizer\": ", s->run, s->step, s->world, s->copies, s->strategy, s->period,
                   ddp__said_equal(said, s->world) ? "true" : "false", generation);
    ddp__json_string(&t, s->optimizer);
    ddp__manifest_ranks(&t, "hash", said, s->world, 0);
    ddp__manifest_ranks(&t, "cut", said, s->world, 1);
    ddp__text_addf(&t, ",\n \"copy\": [");
    for (int i = 0; i < s->world; i++) ddp__text_addf(&t, "%s%d", i ? ", " : "", (int)said[i].copy);
    ddp__text_addf(&t, "],\n \"model\": \"%016" PRIx64 "\", \"layers\": [", s->model);
    for (int i = 0; i < s->wholes; i++) {
        ddp__text_addf(&t, "%s", i ? ", " : "");
        ddp__json_string(&t, s->whole[i]);
    }
    ddp__text_addf(&t, "]}\n");
    code = t.failed ? ddp__fail(err, DDP_MEMORY, "cannot write %.200s: out of memory", path)
                    : ddp__file_write(path, t.data, t.size, err);
    ddp__text_free(&t);
    return code;
}

/* ---- reading ---- */

static uint64_t ddp__manifest_number(const ddp__json *v)
{
    return v && v->kind == DDP__JSON_STRING ? (uint64_t)strtoull(v->string, NULL, 16) : 0;
}

/* What each rank said. */
static ddp_status ddp__manifest_said(const char *path, ddp__manifest *m, ddp_error *err)
{
    static const char *const name[3] = {"hash", "cut", "copy"};
    const ddp__json *list[3], *v[3];

    for (int k = 0; k < 3; k++) {
        DDP__TRY(ddp__json_need(path, m->root, name[k], DDP__JSON_ARRAY, &list[k], err));
        if (list[k]->count != m->world || m->world < 1)
            return ddp__fail(err, DDP_FORMAT, "%.200s: \"%s\" has %ld values for %d ranks", path, name[k],
                             list[k]->count, m->world);
        v[k] = list[k]->first;
    }
    m->said = (ddp__said *)ddp__calloc((size_t)m->world, sizeof *m->said);
    if (!m->said) return ddp__fail(err, DDP_MEMORY, "out of memory for reading %.200s", path);
    for (int i = 0; i < m->world; i++) {
        const double copy = v[2]->kind == DDP__JSON_NUMBER ? v[2]->number : -1;
        m->said[i].hash = ddp__manifest_number(v[0]);
        m->said[i].cut = ddp__manifest_number(v[1]);
        if (!(copy >= 0 && copy < m->copies) || copy != floor(copy))
            return ddp__fail(err, DDP_FORMAT, "%.200s: the copy of rank %d is not one of %d", path, i, m->copies);
        m->said[i].copy = (uint64_t)copy;
        for (int k = 0; k < 3; k++) v[k] = v[k]->next;
    }
    return DDP_OK;
}

ddp_status ddp__manifest_read(const char *path, ddp__manifest *m, ddp_error *err)
{
    static const char *const number[4] = {"step", "world", "period", "copies"};
    static const char *const text[5] = {"format", "run", "strategy", "optimizer", "model"};
    const char *value[5];
    const ddp__json *v;
    long whole[4];

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
    for (int k = 0; k < 4; k++) {
        DDP__TRY(ddp__json_need(path, m->root, number[k], DDP__JSON_NUMBER, &v, err));
        if (!(v->number >= 0 && v->number < 1e9) || v->number != floor(v->number))
            return ddp__fail(err, DDP_FORMAT, "%.200s: \"%s\" is %g", path, number[k], v->number);
        whole[k] = (long)v->number;
    }
    m->run = (uint64_t)strtoull(value[1], NULL, 16);
    m->strategy = value[2], m->optimizer = value[3], m->model = value[4];
    m->step = whole[0], m->world = (int)whole[1], m->period = (int)whole[2], m->copies = (int)whole[3];
    v = ddp__json_get(m->root, "generation");
    m->generation = v && v->kind == DDP__JSON_NUMBER && v->number == 1;
    v = ddp__json_get(m->root, "synchronised");
    m->synchronised = v && v->kind == DDP__JSON_TRUE;
    return ddp__manifest_said(path, m, err);
}

void ddp__manifest_free(ddp__manifest *m)
{
    ddp__json_free(m->root);
    if (m->said) DDP_FREE(m->said);
    m->root = NULL;
    m->said = NULL;
}

/* ---- comparing ---- */

ddp_status ddp__manifest_fits(const ddp__worker *s, const char *path, const ddp__manifest *m, int *kin, ddp_error *err)
{
    const ddp__json *layers, *v;
    int l = 0;

    DDP__TRY(ddp__json_need(path, m->root, "layers", DDP__JSON_ARRAY, &layers, err));
    if (layers->count != s->wholes)
        return ddp__fail(err, DDP_MISMATCH, "%.200s is of a model of %ld layers, this one has %d",
                         path, layers->count, s->wholes);
    for (v = layers->first; v; v = v->next, l++)
        if (v->kind != DDP__JSON_STRING || strcmp(v->string, s->whole[l]))
            return ddp__fail(err, DDP_MISMATCH, "%.200s is of another model: its layer %d is \"%.60s\", here it is "
                             "\"%.60s\"", path, l, v->kind == DDP__JSON_STRING ? v->string : "", s->whole[l]);
    if (strcmp(m->optimizer, s->optimizer))
        return ddp__fail(err, DDP_MISMATCH, "%.200s was written with the optimizer %.40s, this run "
                         "has %.40s", path, m->optimizer, s->optimizer);
    *kin = m->copies == s->copies && m->period == s->period && !strcmp(m->strategy, s->strategy);
    if (*kin || m->synchronised) return DDP_OK;
    return ddp__fail(err, DDP_MISMATCH, "%.160s is of %d workers under %.20s with period %d and not synchronised (its "
                     "ranks hold unlike values): it goes on with exactly that, not with %d workers under %s with "
                     "period %d", path, m->copies, m->strategy, m->period, s->copies, s->strategy, s->period);
}

uint64_t ddp__manifest_hash(const ddp__manifest *m)
{
    uint64_t h = ddp__hash(DDP__HASH_START, &m->run, sizeof m->run);

    return ddp__hash(h, m->said, (size_t)m->world * sizeof *m->said);
}
