/* The manifest of a checkpoint, in JSON: properties common to all ranks' files, the list of files, and a
 * checksum. */
#include "member/manifest.h"

/* The end of a manifest. The 32 digits between the two strings are the hash of everything before the
 * first. */
#define DDP__MANIFEST_SEAL ",\n \"checksum\": \""
#define DDP__MANIFEST_END  "\"}\n"

/* 1 if ranks with the same part of the model have the same values. */
static int ddp__said_equal(const ddp__said *said, int world)
{
    for (int i = 0; i < world; i++)
        for (int k = 0; said[i].there && k < i; k++)
            if (said[k].there && said[k].cut == said[i].cut &&
                !ddp__digest_equal(said[k].common, said[i].common))
                return 0;
    return 1;
}

static void ddp__manifest_ranks(ddp__text *t, const char *name, const ddp__said *said, int world, int cut)
{
    char hash[DDP__DIGEST_TEXT];

    ddp__text_addf(t, ",\n \"%s\": [", name);
    for (int i = 0; i < world; i++) {
        ddp__digest_text(said[i].hash, hash);
        if (!said[i].there)
            ddp__text_addf(t, "%snull", i ? ", " : "");
        else if (cut)
            ddp__text_addf(t, "%s\"%016" PRIx64 "\"", i ? ", " : "", said[i].cut);
        else
            ddp__text_addf(t, "%s\"%s\"", i ? ", " : "", hash);
    }
    ddp__text_addf(t, "]");
}

/* Appends the checksum to a manifest that is complete except for its end. */
static void ddp__manifest_seal(ddp__text *t)
{
    char sum[DDP__DIGEST_TEXT];

    if (t->failed) return;
    ddp__digest_text(ddp__digest_of(t->data, t->size), sum);
    ddp__text_addf(t, DDP__MANIFEST_SEAL "%s" DDP__MANIFEST_END, sum);
}

/* Verifies the checksum of a manifest. Sets *sealed = 0 if it has no checksum. */
static ddp_status ddp__manifest_sealed(const char *path, const ddp__text *t, int *sealed, ddp_error *err)
{
    const size_t end = sizeof DDP__MANIFEST_SEAL - 1 + (DDP__DIGEST_TEXT - 1) + sizeof DDP__MANIFEST_END - 1;
    const char *at = t->size >= end ? t->data + t->size - end : NULL;
    char sum[DDP__DIGEST_TEXT];

    *sealed = at && !memcmp(at, DDP__MANIFEST_SEAL, sizeof DDP__MANIFEST_SEAL - 1);
    if (!*sealed) return DDP_OK;
    at += sizeof DDP__MANIFEST_SEAL - 1;
    ddp__digest_text(ddp__digest_of(t->data, t->size - end), sum);
    if (!memcmp(at, sum, DDP__DIGEST_TEXT - 1) &&
        !memcmp(at + DDP__DIGEST_TEXT - 1, DDP__MANIFEST_END, sizeof DDP__MANIFEST_END - 1))
        return DDP_OK;
    return ddp__fail(err, DDP_FORMAT,
                     "%.200s: its checksum is %s, but it states %.32s: it was changed; copy the file again, "
                     "or remove its folder to resume from the previous checkpoint",
                     path, sum, at);
}

ddp_status ddp__manifest_write(const ddp__worker *s, const char *path, const ddp__said *said, int generation,
                               ddp_error *err)
{
    ddp__text t = DDP__ZEROS;
    ddp_status code;

    ddp__text_addf(&t,
                   "{\"format\": \"" DDP__MANIFEST "\", \"run\": \"%016" PRIx64
                   "\",\n \"step\": %ld, \"world\": "
                   "%d, \"copies\": %d, \"strategy\": \"%s\", \"period\": %d,\n \"synchronised\": %s, "
                   "\"generation\": %d, ",
                   s->run, s->step, s->world, s->copies, s->strategy, s->period,
                   ddp__said_equal(said, s->world) ? "true" : "false", generation);
    if (s->wire) ddp__text_addf(&t, "\"overlap\": \"%s\", \"wire\": \"%s\", ", s->overlap, s->wire);
    ddp__text_addf(&t, "\"optimizer\": ");
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
    ddp__text_addf(&t, "]");
    ddp__manifest_seal(&t);
    code = t.failed ? ddp__fail(err, DDP_MEMORY, "cannot write %.200s: out of memory", path)
                    : ddp__file_write(path, t.data, t.size, err);
    ddp__text_free(&t);
    return code;
}

/* The value of the first n hexadecimal digits of a text, n at most 16. */
static uint64_t ddp__manifest_digits(const char *text, int n)
{
    char part[17];

    snprintf(part, sizeof part, "%.*s", n, text);
    return (uint64_t)strtoull(part, NULL, 16);
}

static const char *ddp__string_or_none(const ddp__json *v)
{
    return v->kind == DDP__JSON_STRING ? v->string : "";
}

/* Reads hash and cut of a rank. Both are null if it was lost. */
static ddp_status ddp__manifest_rank(const char *path, int rank, const ddp__manifest *m,
                                     const ddp__json *hash, const ddp__json *cut, ddp__said *out,
                                     ddp_error *err)
{
    const size_t digits = m->older ? 16 : DDP__DIGEST_TEXT - 1;

    if (hash->kind == DDP__JSON_NULL && cut->kind == DDP__JSON_NULL) return DDP_OK;
    if (hash->kind != DDP__JSON_STRING || cut->kind != DDP__JSON_STRING || strlen(hash->string) != digits ||
        strlen(cut->string) != 16)
        return ddp__fail(err, DDP_FORMAT,
                         "%.200s: rank %d has hash '%.40s' and cut '%.40s', not %zu and 16 digits: remove "
                         "its folder to resume from the previous checkpoint",
                         path, rank, ddp__string_or_none(hash), ddp__string_or_none(cut), digits);
    out->there = 1;
    if (!m->older) out->hash.word[0] = ddp__manifest_digits(hash->string, 16);
    out->hash.word[1] = ddp__manifest_digits(hash->string + digits - 16, 16);
    out->cut = ddp__manifest_digits(cut->string, 16);
    return DDP_OK;
}

/* Reads the entry of each rank. */
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
        DDP__TRY(ddp__manifest_rank(path, i, m, v[0], v[1], &m->said[i], err));
        if (!(copy >= 0 && copy < m->copies) || copy != floor(copy))
            return ddp__fail(err, DDP_FORMAT, "%.200s: the copy of rank %d is not one of %d", path, i,
                             m->copies);
        m->said[i].copy = (uint64_t)copy;
        for (int k = 0; k < 3; k++) v[k] = v[k]->next;
    }
    return DDP_OK;
}

/* Parses a manifest whose checksum is valid. *sealed = 0 if it has no checksum. */
static ddp_status ddp__manifest_open(const char *path, ddp__json **root, int *sealed, ddp_error *err)
{
    ddp__text t = DDP__ZEROS;
    struct stat st;
    ddp_status code;

    /* some hundred bytes per rank and layer */
    if (stat(path, &st) == 0 && st.st_size > DDP__MANIFEST_MOST)
        return ddp__fail(err, DDP_FORMAT,
                         "%.200s has %lld bytes, but a manifest has at most %d: it is damaged; remove its "
                         "folder to resume from the previous checkpoint",
                         path, (long long)st.st_size, DDP__MANIFEST_MOST);
    code = ddp__file_read(path, &t, err);
    if (code == DDP_OK) code = ddp__manifest_sealed(path, &t, sealed, err);
    if (code == DDP_OK) *root = ddp__json_parse(path, t.data ? t.data : "", t.size, err);
    if (code == DDP_OK && !*root) code = err->code;
    ddp__text_free(&t);
    return code;
}

ddp_status ddp__manifest_read(const char *path, ddp__manifest *m, ddp_error *err)
{
    static const char *const number[4] = {"step", "world", "period", "copies"};
    static const char *const text[5] = {"format", "run", "strategy", "optimizer", "model"};
    const char *value[5];
    const ddp__json *v;
    long whole[4];
    int sealed = 0;

    memset(m, 0, sizeof *m);
    DDP__TRY(ddp__manifest_open(path, &m->root, &sealed, err));
    for (int k = 0; k < 5; k++) {
        DDP__TRY(ddp__json_need(path, m->root, text[k], DDP__JSON_STRING, &v, err));
        value[k] = v->string;
    }
    m->older = !strcmp(value[0], DDP__MANIFEST_OLDER);
    if (!m->older && strcmp(value[0], DDP__MANIFEST))
        return ddp__fail(err, DDP_FORMAT,
                         "%.200s: unknown format \"%.60s\"; \"" DDP__MANIFEST "\" and \"" DDP__MANIFEST_OLDER
                         "\" are supported",
                         path, value[0]);
    if (m->older == sealed)
        return ddp__fail(err, DDP_FORMAT,
                         "%.200s: its format is \"%.60s\", but it has %s checksum at its end: it was "
                         "changed; remove its folder to resume from the previous checkpoint",
                         path, value[0], sealed ? "a" : "no");
    for (int k = 0; k < 4; k++) {
        DDP__TRY(ddp__json_need(path, m->root, number[k], DDP__JSON_NUMBER, &v, err));
        if (!(v->number >= 0 && v->number < 1e9) || v->number != floor(v->number))
            return ddp__fail(err, DDP_FORMAT, "%.200s: \"%s\" is %g", path, number[k], v->number);
        whole[k] = (long)v->number;
    }
    m->run = (uint64_t)strtoull(value[1], NULL, 16);
    m->strategy = value[2];
    m->optimizer = value[3];
    m->model = (uint64_t)strtoull(value[4], NULL, 16);
    m->step = whole[0];
    m->world = (int)whole[1];
    m->period = (int)whole[2];
    m->copies = (int)whole[3];
    v = ddp__json_get(m->root, "generation");
    m->generation = v && v->kind == DDP__JSON_NUMBER && v->number == 1;
    v = ddp__json_get(m->root, "overlap");
    m->overlap = v && v->kind == DDP__JSON_STRING ? v->string : NULL;
    v = ddp__json_get(m->root, "wire");
    m->wire = v && v->kind == DDP__JSON_STRING ? v->string : NULL;
    v = ddp__json_get(m->root, "synchronised");
    m->synchronised = v && v->kind == DDP__JSON_TRUE;
    return ddp__manifest_said(path, m, err);
}

void ddp__manifest_free(ddp__manifest *m)
{
    ddp__json_free(m->root);
    if (m->said) DDP_FREE(m->said);
}

ddp_status ddp__manifest_fits(const ddp__worker *s, const char *path, const ddp__manifest *m, int *kin,
                              ddp_error *err)
{
    const ddp__json *layers, *v;
    int l = 0;

    DDP__TRY(ddp__json_need(path, m->root, "layers", DDP__JSON_ARRAY, &layers, err));
    if (layers->count != s->wholes)
        return ddp__fail(err, DDP_MISMATCH,
                         "%.200s belongs to a model with %ld layers, but this model has %d", path,
                         layers->count, s->wholes);
    for (v = layers->first; v; v = v->next, l++)
        if (v->kind != DDP__JSON_STRING || strcmp(v->string, s->whole[l]))
            return ddp__fail(
                err, DDP_MISMATCH,
                "%.200s belongs to another model: its layer %d is \"%.60s\", but here it is \"%.60s\"", path,
                l, v->kind == DDP__JSON_STRING ? v->string : "", s->whole[l]);
    if (strcmp(m->optimizer, s->optimizer))
        return ddp__fail(err, DDP_MISMATCH,
                         "%.200s was written with the optimizer %.40s, but this run uses %.40s", path,
                         m->optimizer, s->optimizer);
    *kin = m->copies == s->copies && m->period == s->period && !strcmp(m->strategy, s->strategy);
    if (*kin || m->synchronised) return DDP_OK;
    return ddp__fail(
        err, DDP_MISMATCH,
        "%.160s was saved by %d workers with strategy %.20s and period %d, without synchronisation (the "
        "ranks have different values): resume with the same, not with %d workers, strategy %s and period %d",
        path, m->copies, m->strategy, m->period, s->copies, s->strategy, s->period);
}

ddp__listed ddp__manifest_listed(const ddp__manifest *m, int rank)
{
    const ddp__said *x = &m->said[rank];
    const ddp__listed out = {m->run, m->step, rank, m->older, x->hash, x->cut, x->copy};

    return out;
}
