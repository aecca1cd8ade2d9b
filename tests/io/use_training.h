/* Trains a world of one from a checkpoint, or with settings from the environment. */
#ifndef IO_USE_TRAINING_H
#define IO_USE_TRAINING_H

#include "use.h"

/* ---- training with one worker ---- */

enum { MODEL_LAYERS = 3, MODEL_MOST = 64 };
static const size_t model_count[MODEL_LAYERS] = {5, MODEL_MOST, 3};

typedef struct model {
    float params[MODEL_LAYERS][MODEL_MOST], grads[MODEL_LAYERS][MODEL_MOST];
} model;

static void model_begin(model *m)
{
    memset(m, 0, sizeof *m);
    for (int l = 0; l < MODEL_LAYERS; l++)
        for (size_t i = 0; i < model_count[l]; i++)
            m->params[l][i] = 0.01f * (float)(i + 1) - 0.1f * (float)l;
}

static int model_register(ddp_ctx *d, model *m, const ddp_optimizer *rule)
{
    ddp_layer layer;
    int bad = 0;

    for (int l = 0; l < MODEL_LAYERS && !bad; l++) {
        memset(&layer, 0, sizeof layer);
        layer.params = m->params[l];
        layer.grads = m->grads[l];
        layer.count = model_count[l];
        bad = ddp_add_layer(d, &layer);
    }
    return bad ? bad : ddp_set_optimizer(d, rule);
}

static int model_step(ddp_ctx *d, model *m)
{
    for (int l = 0; l < MODEL_LAYERS; l++) ddp_forward_begin(d, l);
    for (int l = MODEL_LAYERS - 1; l >= 0; l--) {
        for (size_t i = 0; i < model_count[l]; i++) m->grads[l][i] = 0.001f * (float)(i % 7);
        ddp_backward_end(d, l);
    }
    return ddp_step_end(d);
}

/* Checks the return code of a call, with the context's last error. */
static int model_taken(const ddp_ctx *d, int code)
{
    const ddp_error *err = ddp_last_error(d);

    fuzz_expect(code == (int)err->code);
    return fuzz_taken((ddp_status)code, err);
}

/* ---- a checkpoint: if damaged, it changes nothing; else training resumes from it and saves again ---- */

enum { CHECKPOINT_RULES = 5, CHECKPOINT_STEPS = 3 };
#define CHECKPOINT_SEAL ",\n \"checksum\": \""

/* A checkpoint as the library saves it. hash_at, sum_at: offsets in the manifest of the other file's hash
 * and of the checksum. */
typedef struct checkpoint {
    char *manifest, *shard;
    size_t manifest_bytes, shard_bytes, hash_at, sum_at;
} checkpoint;

static ddp_ctx *checkpoint_open(int rule, model *m)
{
    static const ddp_strategy strategy[CHECKPOINT_RULES] = {DDP_SSGD, DDP_DREAMDDP, DDP_DEFT, DDP_DILOCO,
                                                            DDP_SPARSELOCO};
    const ddp_optimizer o = rule % 2 ? ddp_adamw(0.01f, 0.9f, 0.99f, 1e-8f, 0.01f) : ddp_sgd(0.05f, 0.9f);
    ddp_config c;
    ddp_error err;
    ddp_ctx *d;

    memset(&c, 0, sizeof c);
    c.world = c.no_env = c.deterministic = c.debug.overwrite = 1;
    c.strategy = strategy[rule];
    c.period = 3;
    d = ddp_open(&c, &err);
    model_begin(m);
    fuzz_expect(d && model_register(d, m, &o) == 0);
    return d;
}

static char *checkpoint_slurp(const char *folder, const char *name, size_t *bytes)
{
    char path[FUZZ_PATH + 80];
    ddp__text t = {NULL, 0, 0, 0, 0};
    ddp_error err;

    snprintf(path, sizeof path, "%s/step-%012d/%s", folder, CHECKPOINT_STEPS, name);
    fuzz_expect(ddp__file_read(path, &t, &err) == DDP_OK && t.size);
    *bytes = t.size;
    return t.data;
}

/* Updates the checksum of an edited manifest. */
static void checkpoint_sum(const checkpoint *b, char *manifest)
{
    char text[DDP__DIGEST_TEXT];

    ddp__digest_text(ddp__digest_of(manifest, b->sum_at - strlen(CHECKPOINT_SEAL)), text);
    memcpy(manifest + b->sum_at, text, sizeof text - 1);
}

/* Updates the manifest's hash of the other file, and its checksum. */
static void checkpoint_seal(const checkpoint *b, char *manifest, const void *shard, size_t bytes)
{
    ddp_error err;
    ddp_safetensors *s = ddp_safetensors_from_bytes("shard", shard, bytes, &err);
    char text[DDP__DIGEST_TEXT];
    ddp__digester all = DDP__ZEROS;

    for (int i = 0; s && i < ddp_safetensors_count(s); i++) {
        const ddp_safetensor *t = ddp_safetensors_at(s, i);
        const char *kind = ddp_safetensors_type_name(t->type);
        const uint64_t count = ddp_safetensors_elements(t);
        void *x = calloc((size_t)count + 1, 8);
        ddp__digest values;
        fuzz_expect(x && ddp_safetensors_bytes(s, t, 0, (size_t)count, x, &err) == DDP_OK);
        values = ddp__digest_of(x, (size_t)t->bytes);
        ddp__digest_add(&all, t->name, strlen(t->name) + 1);
        ddp__digest_add(&all, kind, strlen(kind) + 1);
        ddp__digest_add(&all, &count, sizeof count);
        ddp__digest_add(&all, &values, sizeof values);
        free(x);
    }
    ddp_safetensors_close(s);
    ddp__digest_text(ddp__digest_end(&all), text);
    memcpy(manifest + b->hash_at, text, sizeof text - 1);
    checkpoint_sum(b, manifest);
}

/* Made once for each update rule and kept until the process ends. The run id, normally random, is fixed. */
static const checkpoint *checkpoint_base(int rule)
{
    static checkpoint base[CHECKPOINT_RULES];
    checkpoint *b = &base[rule];
    char folder[FUZZ_PATH];
    model m;
    ddp_ctx *d;

    if (b->manifest) return b;
    fuzz_path(folder, "base");
    d = checkpoint_open(rule, &m);
    for (int i = 0; i < CHECKPOINT_STEPS; i++) fuzz_expect(model_step(d, &m) == 0);
    fuzz_expect(ddp_checkpoint_save(d, folder, 1) == 0);
    ddp_close(d);
    b->manifest = checkpoint_slurp(folder, "manifest.json", &b->manifest_bytes);
    b->shard = checkpoint_slurp(folder, "rank-0000.safetensors", &b->shard_bytes);
    memcpy(strstr(b->manifest, "\"run\": \"") + 8, "0123456789abcdef", 16);
    memcpy(strstr(b->shard + 8, "\"run\":\"") + 7, "0123456789abcdef", 16);
    b->hash_at = (size_t)(strstr(b->manifest, "\"hash\": [\"") + 10 - b->manifest);
    b->sum_at = (size_t)(strstr(b->manifest, CHECKPOINT_SEAL) + strlen(CHECKPOINT_SEAL) - b->manifest);
    checkpoint_seal(b, b->manifest, b->shard, b->shard_bytes);
    nftw(folder, fuzz_remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return b;
}

/* Three bytes per edit: an offset and the bits to flip. One remaining byte truncates the file. */
static size_t checkpoint_edit(char *at, size_t size, const uint8_t *p, size_t n)
{
    for (; n >= 3; p += 3, n -= 3) {
        char *x = at + ((size_t)p[0] | (size_t)p[1] << 8) % size;
        *x = (char)(*x ^ p[2]);
    }
    return n == 1 ? size - 1 - p[0] % size : size;
}

/* Saves, loads into another context, and trains one more step in both. They must be bit-identical. */
static void checkpoint_resumes(ddp_ctx *d, model *m, int rule)
{
    char folder[FUZZ_PATH];
    model again;
    ddp_ctx *e;
    int world = 0;

    fuzz_expect(ddp_step(d) == CHECKPOINT_STEPS);
    if (!model_taken(d, model_step(d, m))) return;
    fuzz_path(folder, "saved");
    if (!model_taken(d, ddp_checkpoint_save(d, folder, 1))) return;
    e = checkpoint_open(rule, &again);
    if (model_taken(e, ddp_checkpoint_load(e, folder, &world))) {
        fuzz_expect(world == 1 && ddp_step(e) == CHECKPOINT_STEPS + 1 && ddp_taken(e) == ddp_taken(d));
        fuzz_expect(!memcmp(m->params, again.params, sizeof again.params));
        fuzz_expect(model_step(d, m) == model_step(e, &again));
        fuzz_expect(!memcmp(m->params, again.params, sizeof again.params));
    } else {
        abort();
    }
    ddp_close(e);
}

/* Input bytes choose the update rule, and the file that is edited or replaced. */
static void fuzz_checkpoint(const uint8_t *p, size_t n)
{
    enum {
        EDIT_MANIFEST,
        EDIT_SHARD,
        EDIT_SHARD_SEALED,
        REPLACE_MANIFEST,
        REPLACE_SHARD_SEALED,
        EDIT_MANIFEST_SEALED,
        WAYS
    };
    const int rule = n < 2 ? 0 : p[0] % CHECKPOINT_RULES, way = n < 2 ? 0 : p[1] % WAYS;
    const checkpoint *b = checkpoint_base(rule);
    char folder[FUZZ_PATH], step[FUZZ_PATH], path[FUZZ_PATH], name[80], *manifest, *shard;
    size_t manifest_bytes = b->manifest_bytes, shard_bytes = b->shard_bytes;
    model m, before;
    ddp_ctx *d;

    if (n < 2) return;
    p += 2;
    n -= 2;
    if (way == REPLACE_MANIFEST) manifest_bytes = n;
    if (way == REPLACE_SHARD_SEALED) shard_bytes = n;
    manifest = fuzz_string(way == REPLACE_MANIFEST ? p : (const uint8_t *)b->manifest, manifest_bytes);
    shard = fuzz_string(way == REPLACE_SHARD_SEALED ? p : (const uint8_t *)b->shard, shard_bytes);
    if (way == EDIT_MANIFEST) manifest_bytes = checkpoint_edit(manifest, manifest_bytes, p, n);
    if (way == EDIT_MANIFEST_SEALED) {
        (void)checkpoint_edit(manifest, b->sum_at - strlen(CHECKPOINT_SEAL), p, n);
        checkpoint_sum(b, manifest);
    }
    if (way == EDIT_SHARD || way == EDIT_SHARD_SEALED)
        shard_bytes = checkpoint_edit(shard, shard_bytes, p, n);
    if (way == EDIT_SHARD_SEALED || way == REPLACE_SHARD_SEALED)
        checkpoint_seal(b, manifest, shard, shard_bytes);
    fuzz_path(folder, "load");
    snprintf(name, sizeof name, "load/step-%012d", CHECKPOINT_STEPS);
    fuzz_path(step, name);
    fuzz_expect((!mkdir(folder, 0700) || errno == EEXIST) && (!mkdir(step, 0700) || errno == EEXIST));
    snprintf(name, sizeof name, "load/step-%012d/manifest.json", CHECKPOINT_STEPS);
    fuzz_write(path, name, manifest, manifest_bytes);
    snprintf(name, sizeof name, "load/step-%012d/rank-0000.safetensors", CHECKPOINT_STEPS);
    fuzz_write(path, name, shard, shard_bytes);
    d = checkpoint_open(rule, &m);
    before = m;
    if (model_taken(d, ddp_checkpoint_load(d, folder, NULL)))
        checkpoint_resumes(d, &m, rule);
    else
        fuzz_expect(!memcmp(before.params, m.params, sizeof m.params) && ddp_step(d) == 0);
    ddp_close(d);
    free(manifest);
    free(shard);
}

/* ---- the environment: settings of a run ---- */

/* Variables that a world of one does not use: connections, keys and logging. */
static int environment_leaves(const char *name)
{
    static const char *const left[] = {"JOIN",   "MAX_WORLD", "LOG",    "TLS_PSK",
                                       "TLS_CA", "TLS_CERT",  "TLS_KEY"};
    size_t i = 0;

    while (i < sizeof left / sizeof *left && strcmp(left[i], name)) i++;
    return i < sizeof left / sizeof *left;
}

/* "@" in the input means the name of its file. Numbers that would only use memory or time, and other
 * files, are not set. */
static void environment_set(const char *name, char *value)
{
    static const char prefix[] = "DREAMDDP_";
    char path[FUZZ_PATH], variable[80];
    ddp_setting s;
    int i = 0, threads = !strcmp(name, "THREADS");

    snprintf(variable, sizeof variable, "%s%.60s", prefix, name);
    while (ddp_config_describe(NULL, i, &s) && (!s.variable || strcmp(s.variable, variable))) i++;
    if (!s.variable || environment_leaves(name) || strchr(value, '/')) return;
    if (!strcmp(s.values, "text")) {
        fuzz_path(path, "file.json");
        setenv(variable, strcmp(value, "@") ? value : path, 1);
    } else if (strspn(value, "0123456789") < (threads ? 2 : 5)) {
        setenv(variable, value, 1);
    }
}

static void environment_clear(void)
{
    ddp_setting s;

    for (int i = 0; ddp_config_describe(NULL, i, &s); i++)
        if (s.variable) unsetenv(s.variable);
}

/* Lines NAME=VALUE without the prefix DREAMDDP_, then an empty line, then a file. */
static void fuzz_environment(const uint8_t *p, size_t n)
{
    const ddp_optimizer rule = ddp_sgd(0.05f, 0.9f);
    char *text = fuzz_string(p, n), *at = text, path[FUZZ_PATH];
    ddp_config c;
    ddp_stats stats;
    ddp_error err;
    ddp_ctx *d;
    model m;
    int good;

    environment_clear();
    while (*at && *at != '\n') {
        char *end = at + strcspn(at, "\n"), *value = (char *)memchr(at, '=', (size_t)(end - at));
        char *next = *end ? end + 1 : end;
        *end = 0;
        if (value) {
            *value++ = 0;
            environment_set(at, value);
        }
        at = next;
    }
    at += *at != 0;
    fuzz_write(path, "file.json", at, strlen(at));
    memset(&c, 0, sizeof c);
    c.world = 1;
    d = ddp_open(&c, &err);
    if (!d) {
        fuzz_refused(err.code, &err);
    } else {
        model_begin(&m);
        good = model_taken(d, model_register(d, &m, &rule));
        for (int i = 0; good && i < 9; i++) good = model_taken(d, model_step(d, &m));
        if (good) good = model_taken(d, ddp_sync_all(d));
        ddp_get_stats(d, &stats);
        fuzz_expect(!good || (stats.steps == 9 && ddp_step(d) == 9));
        ddp_close(d);
    }
    environment_clear();
    free(text);
}

#endif /* IO_USE_TRAINING_H */
