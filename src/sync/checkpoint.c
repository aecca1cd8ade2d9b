#include "base/platform.h"
#include "data/hash.h"
#include "io/json.h"
#include "io/safetensors_core.h"
#include "sync/checkpoint.h"
#include "sync/context.h"

#include <dirent.h>

enum { DDP__C_STEP, DDP__C_FINAL, DDP__C_SOLVER, DDP__C_COST, DDP__C_NUMBERS };
#define DDP__C_CHUNK ((size_t)65536) /* values hashed at a time */

/* One array of a shard, and the memory it is saved from or loaded into. */
typedef struct ddp__shard_array {
    char           name[48];
    ddp_safetensor as;
    void          *data;
    const char    *layer;  /* whose it is, NULL = of no layer; borrowed */
    int            buffer; /* 1: what each rank may hold unlike the others, as running statistics */
} ddp__shard_array;

/* A shard as it lies in memory. Small values lie in copies, so that loading can fail halfway. */
typedef struct ddp__shard {
    ddp__shard_array *list;
    int               count;
    int64_t          *updates; /* [layers] */
    int64_t          *random;  /* [graphs] */
    int               graphs;
    int64_t           number[DDP__C_NUMBERS];
    float             lr;
    ddp_plan          plan; /* layers 0 = none */
    double            cost[3];
} ddp__shard;

/* What a manifest says. */
typedef struct ddp__manifest {
    ddp__json   *root;
    long         step;
    int          world, period, synchronised, generation;
    const char  *strategy, *optimizer;
    const ddp__json *hash; /* array of texts, one per rank */
} ddp__manifest;

/* ---- names ---- */

static ddp_status ddp__checkpoint_path(ddp__text *t, ddp_error *err, const char *fmt, ...)
    DDP__PRINTF(3, 4);

static ddp_status ddp__checkpoint_path(ddp__text *t, ddp_error *err, const char *fmt, ...)
{
    char path[4096];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(path, sizeof path, fmt, ap);
    va_end(ap);
    t->size = 0;
    if (n > 0 && (size_t)n < sizeof path) ddp__text_add(t, path, (size_t)n);
    if (t->size && !t->failed) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "a checkpoint's path of %d bytes is too long", n);
}

/* The step of a folder's name, -1 if it is none of ours. */
static long ddp__checkpoint_step(const char *name)
{
    long step;

    if (strncmp(name, "step-", 5) || strlen(name) != 17 || !ddp__parse_long(name + 5, &step))
        return -1;
    return step;
}

/* A step that is saved once more must not touch the files that its manifest names until the new
 * manifest is there: so a rank's file has two names, and each save takes the other one. */
static ddp_status ddp__checkpoint_shard(ddp__text *t, ddp_error *err, const char *folder, long step,
                                        int rank, int generation)
{
    return ddp__checkpoint_path(t, err, "%s/step-%012ld/rank-%04d%s.safetensors", folder, step,
                                rank, generation ? "-again" : "");
}

/* Newest checkpoint of folder below step `below`, whole ones only or also what a killed run left;
 * -1 if there is none. */
static ddp_status ddp__checkpoint_newest(const char *folder, long below, int whole, long *out,
                                         ddp_error *err)
{
    DIR *dir = opendir(folder);
    struct dirent *e;
    ddp__text path;
    ddp_status s = DDP_OK;

    *out = -1;
    if (!dir) return ddp__fail(err, DDP_IO, "cannot read %.200s: %s", folder, strerror(errno));
    memset(&path, 0, sizeof path);
    while (s == DDP_OK && (e = readdir(dir)) != NULL) {
        long step = ddp__checkpoint_step(e->d_name);
        if (step <= *out || step >= below) continue;
        s = ddp__checkpoint_path(&path, err, "%s/%s/manifest.json", folder, e->d_name);
        if (s == DDP_OK && (!whole || access(path.data, R_OK) == 0)) *out = step;
    }
    closedir(dir);
    ddp__text_free(&path);
    return s;
}

/* ---- a shard in memory ---- */

static void ddp__shard_free(ddp__shard *s)
{
    if (s->list) DDP_FREE(s->list);
    if (s->updates) DDP_FREE(s->updates);
    if (s->random) DDP_FREE(s->random);
    ddp_plan_free(&s->plan);
    memset(s, 0, sizeof *s);
}

static void ddp__shard_add(ddp__shard *s, ddp_safetensors_type type, void *data, size_t n,
                           const char *fmt, int a, int b)
{
    ddp__shard_array *x = &s->list[s->count++];
    size_t at = (size_t)snprintf(x->name, sizeof x->name, "%s", fmt);

    if (a >= 0) at += (size_t)snprintf(x->name + at, sizeof x->name - at, ".%d", a);
    if (b >= 0) snprintf(x->name + at, sizeof x->name - at, ".%d", b);
    x->as.name = x->name;
    x->as.type = type;
    x->as.dims = 1;
    x->as.dim[0] = (int64_t)n;
    x->data = data;
}

static void ddp__shard_add_plan(ddp__shard *s, int layers)
{
    size_t L = (size_t)layers;

    ddp__shard_add(s, DDP_ST_F64, s->cost, 3, "plan.cost", -1, -1);
    ddp__shard_add(s, DDP_ST_I32, s->plan.step_of, L, "plan.step_of", -1, -1);
    ddp__shard_add(s, DDP_ST_U8, s->plan.fill, L * (size_t)s->plan.period, "plan.fill", -1, -1);
}

/* Lists the context's arrays; with a plan of that period, 0 = none. */
static ddp_status ddp__shard_open(ddp_ctx *d, int period, ddp__shard *s, ddp_error *err)
{
    const ddp__owned *o;
    int l, b, room = 8;

    memset(s, 0, sizeof *s);
    for (l = 0; l < d->layers; l++) room += d->unit[l].blocks + 1;
    for (o = d->host.owned; o; o = o->next) s->graphs += o->passes != NULL;
    s->list = (ddp__shard_array *)ddp__calloc((size_t)room, sizeof *s->list);
    s->updates = (int64_t *)ddp__calloc((size_t)d->layers, sizeof *s->updates);
    s->random = (int64_t *)ddp__calloc((size_t)s->graphs, sizeof *s->random);
    if (!s->list || !s->updates || !s->random)
        return ddp__fail(err, DDP_MEMORY, "out of memory for a checkpoint of %d layers", d->layers);
    if (period) DDP__TRY(ddp_plan_new(d->layers, period, &s->plan, err));
    ddp__shard_add(s, DDP_ST_I64, s->number, DDP__C_NUMBERS, "numbers", -1, -1);
    ddp__shard_add(s, DDP_ST_I64, s->updates, (size_t)d->layers, "updates", -1, -1);
    ddp__shard_add(s, DDP_ST_I64, s->random, (size_t)s->graphs, "random", -1, -1);
    if (period) ddp__shard_add_plan(s, d->layers);
    ddp__shard_add(s, DDP_ST_F32, &s->lr, 1, "lr", -1, -1);
    for (l = 0; l < d->layers; l++) {
        ddp__unit *u = &d->unit[l];
        const int first = s->count;

        for (b = 0; b < u->blocks; b++) {
            ddp__shard_add(s, DDP_ST_F32, u->block[b].params, u->block[b].count, "layer", l, b);
            s->list[s->count - 1].buffer = u->block[b].kind == DDP_BUFFERS;
        }
        if (u->state_count)
            ddp__shard_add(s, DDP_ST_F32, u->state, u->state_count, "state", l, -1);
        for (b = first; b < s->count; b++) s->list[b].layer = u->name;
    }
    return DDP_OK;
}

static ddp_status ddp__shard_take(ddp_ctx *d, ddp__shard *s, ddp_error *err)
{
    const ddp__owned *o;
    int l, i = 0;

    DDP__TRY(ddp__shard_open(d, d->plan.layers ? d->plan.period : 0, s, err));
    s->number[DDP__C_STEP] = d->step;
    s->number[DDP__C_FINAL] = d->plan_final;
    s->number[DDP__C_SOLVER] = d->plan.solver;
    s->number[DDP__C_COST] = d->plan.cost;
    s->lr = d->lr;
    for (l = 0; l < d->layers; l++) s->updates[l] = d->unit[l].updates;
    for (o = d->host.owned; o; o = o->next)
        if (o->passes) s->random[i++] = (int64_t)*o->passes;
    if (!s->plan.layers) return DDP_OK;
    s->cost[0] = d->plan.objective_s, s->cost[1] = d->plan.exposed_s,
    s->cost[2] = d->plan.lower_bound_s;
    memcpy(s->plan.step_of, d->plan.step_of, (size_t)d->layers * sizeof *d->plan.step_of);
    if (d->plan.fill)
        memcpy(s->plan.fill, d->plan.fill, (size_t)d->layers * (size_t)d->plan.period);
    return DDP_OK;
}

/* The rest of what loading changes, after the arrays. keep_plan 0: another world plans anew. */
static void ddp__shard_give(ddp_ctx *d, ddp__shard *s, int keep_plan)
{
    ddp__owned *o;
    int l, i = 0;

    d->step = (long)s->number[DDP__C_STEP];
    d->lr = s->lr;
    for (l = 0; l < d->layers; l++) d->unit[l].updates = (long)s->updates[l];
    for (o = d->host.owned; o; o = o->next)
        if (o->passes) *o->passes = (uint64_t)s->random[i++];
    if (keep_plan && s->number[DDP__C_FINAL]) d->plan_final = 1;
    if (!d->plan_final) d->cfg.profile_steps += (int)d->step; /* measured by this process anew */
    if (!keep_plan || !s->plan.layers) return;
    s->plan.objective_s = s->cost[0], s->plan.exposed_s = s->cost[1],
    s->plan.lower_bound_s = s->cost[2];
    s->plan.solver = (ddp_solver)s->number[DDP__C_SOLVER];
    s->plan.cost = (ddp_cost)s->number[DDP__C_COST];
    ddp_plan_free(&d->plan);
    d->plan = s->plan;
    memset(&s->plan, 0, sizeof s->plan);
}

/* ---- fingerprints: of floats as numbers, of the rest as bytes ---- */

static uint64_t ddp__shard_hash_part(uint64_t h, const ddp_safetensor *t, const void *p, size_t n)
{
    if (t->type == DDP_ST_F32) return ddp_hash_floats(h, (const float *)p, n);
    return ddp__hash(h, p, n * ddp_safetensors_type_bytes(t->type));
}

static uint64_t ddp__shard_hash(const ddp__shard *s, int buffers)
{
    uint64_t h = 0, n, at;
    int i;

    for (i = 0; i < s->count; i++) {
        const ddp_safetensor *t = &s->list[i].as;
        if (s->list[i].buffer && !buffers) continue;
        for (n = ddp_safetensors_elements(t), at = 0; at < n; at += DDP__C_CHUNK)
            h = ddp__shard_hash_part(h, t,
                                     (const char *)s->list[i].data +
                                         at * ddp_safetensors_type_bytes(t->type),
                                     n - at < DDP__C_CHUNK ? (size_t)(n - at) : DDP__C_CHUNK);
    }
    return h;
}

static ddp_status ddp__shard_hash_file(ddp_safetensors *f, uint64_t *out, ddp_error *err)
{
    double *chunk = (double *)ddp__calloc(DDP__C_CHUNK, sizeof *chunk);
    uint64_t h = 0, n, at;
    ddp_status s = DDP_OK;
    int i;

    if (!chunk) return ddp__fail(err, DDP_MEMORY, "out of memory for reading a checkpoint");
    for (i = 0; s == DDP_OK && i < ddp_safetensors_count(f); i++) {
        const ddp_safetensor *t = ddp_safetensors_at(f, i);
        for (n = ddp_safetensors_elements(t), at = 0; s == DDP_OK && at < n; at += DDP__C_CHUNK) {
            size_t now = n - at < DDP__C_CHUNK ? (size_t)(n - at) : DDP__C_CHUNK;
            s = ddp_safetensors_bytes(f, t, at, now, chunk, err);
            if (s == DDP_OK) h = ddp__shard_hash_part(h, t, chunk, now);
        }
    }
    DDP_FREE(chunk);
    *out = h;
    return s;
}

/* ---- saving ---- */

static ddp_status ddp__shard_write(const ddp__shard *s, const char *path, ddp_error *err)
{
    ddp_safetensor *list = (ddp_safetensor *)ddp__calloc((size_t)s->count, sizeof *list);
    ddp__file f;
    ddp_status code;
    int i;

    if (!list) return ddp__fail(err, DDP_MEMORY, "cannot write %.200s: out of memory", path);
    for (i = 0; i < s->count; i++) list[i] = s->list[i].as;
    code = ddp__safetensors_begin(&f, path, s->count, list, NULL, err);
    DDP_FREE(list);
    if (code != DDP_OK) return code;
    for (i = 0; i < s->count; i++)
        ddp__file_put(&f, s->list[i].data,
                      (size_t)s->list[i].as.dim[0] *
                          ddp_safetensors_type_bytes(s->list[i].as.type));
    return ddp__file_end(&f, err);
}

/* words: of each rank the hash of its file, and that of what all must hold alike to be
 * synchronised. */
static ddp_status ddp__manifest_write(const ddp_ctx *d, const char *path, const float *words,
                                      int generation, ddp_error *err)
{
    ddp__text t;
    ddp_status s;
    int i, equal = 1;

    memset(&t, 0, sizeof t);
    for (i = 1; i < d->world; i++)
        if (ddp__unpack64(words + DDP__WORDS) !=
            ddp__unpack64(words + (2 * (size_t)i + 1) * DDP__WORDS))
            equal = 0;
    ddp__text_addf(&t, "{\"format\": \"dreamddp checkpoint 1\", \"step\": %ld, \"world\": %d,\n"
                   " \"strategy\": \"%s\", \"period\": %d, \"synchronised\": %s, "
                   "\"generation\": %d,\n \"optimizer\": ",
                   d->step, d->world, d->strategy->name, d->cfg.period, equal ? "true" : "false",
                   generation);
    ddp__json_string(&t, d->optimizer.name);
    ddp__text_addf(&t, ",\n \"hash\": [");
    for (i = 0; i < d->world; i++)
        ddp__text_addf(&t, "%s\"%016" PRIx64 "\"", i ? ", " : "",
                       ddp__unpack64(words + 2 * (size_t)i * DDP__WORDS));
    ddp__text_addf(&t, "],\n \"layers\": [");
    for (i = 0; i < d->layers; i++) {
        ddp__text_addf(&t, "%s", i ? ", " : "");
        ddp__json_string(&t, d->unit[i].name);
    }
    ddp__text_addf(&t, "]}\n");
    s = t.failed ? ddp__fail(err, DDP_MEMORY, "cannot write %.200s: out of memory", path)
                 : ddp__file_write(path, t.data, t.size, err);
    ddp__text_free(&t);
    return s;
}

/* Removes what a step's folder holds of ours, but the files of world ranks of that generation and
 * their manifest; world 0 keeps none, and the folder goes too. */
static void ddp__checkpoint_sweep(const char *folder, long step, int world, int generation)
{
    ddp__text path, at;
    DIR *dir;
    struct dirent *e;

    memset(&path, 0, sizeof path);
    memset(&at, 0, sizeof at);
    if (!world && /* the manifest first, so that half of a checkpoint is none */
        ddp__checkpoint_path(&path, NULL, "%s/step-%012ld/manifest.json", folder, step) == DDP_OK)
        remove(path.data);
    dir = ddp__checkpoint_path(&path, NULL, "%s/step-%012ld", folder, step) == DDP_OK
              ? opendir(path.data)
              : NULL;
    while (dir && (e = readdir(dir)) != NULL) {
        char keep[64];
        const long rank = strncmp(e->d_name, "rank-", 5) ? -1 : strtol(e->d_name + 5, NULL, 10);

        snprintf(keep, sizeof keep, "rank-%04ld%s.safetensors", rank, generation ? "-again" : "");
        if ((rank < 0 && strncmp(e->d_name, "manifest.json.tmp.", 18)) ||
            (rank >= 0 && rank < world && !strcmp(e->d_name, keep)))
            continue;
        if (ddp__checkpoint_path(&at, NULL, "%s/%s", path.data, e->d_name) == DDP_OK)
            remove(at.data);
    }
    if (dir) closedir(dir);
    if (dir && !world) rmdir(path.data); /* with a file of somebody else in it, it stays */
    ddp__text_free(&at);
    ddp__text_free(&path);
}

/* Removes all older than the newest keep, also what killed runs left between them. */
static ddp_status ddp__checkpoint_prune(const ddp_ctx *d, const char *folder, int keep,
                                        ddp_error *err)
{
    long step = d->step + 1;

    if (keep == 0) return DDP_OK; /* all stay */
    for (; keep > 0; keep--) {
        DDP__TRY(ddp__checkpoint_newest(folder, step, 1, &step, err));
        if (step < 0) return DDP_OK;
    }
    for (;;) {
        DDP__TRY(ddp__checkpoint_newest(folder, step, 0, &step, err));
        if (step < 0) return DDP_OK;
        ddp__checkpoint_sweep(folder, step, 0, 0);
    }
}

static ddp_status ddp__checkpoint_folder(const char *path, ddp_error *err)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return DDP_OK;
    return ddp__fail(err, DDP_IO, "cannot make the folder %.200s: %s", path, strerror(errno));
}

/* The generation of a step's files that no manifest names. */
static int ddp__checkpoint_unused(const char *manifest)
{
    ddp__json *root = ddp__json_read(manifest, NULL);
    const ddp__json *v = ddp__json_get(root, "generation");
    const int used = root && !(v && v->kind == DDP__JSON_NUMBER && v->number == 1);

    ddp__json_free(root);
    return used;
}

/* words: [world] pairs of hashes of all shards, of which this rank fills its own. */
static ddp_status ddp__checkpoint_write(ddp_ctx *d, const char *folder, int keep, ddp__shard *shard,
                                        float *words, ddp__text *path)
{
    ddp_error *err = &d->host.error;
    float generation = 0;
    ddp__piece p;

    DDP__TRY(ddp__shard_take(d, shard, err));
    DDP__TRY(ddp__checkpoint_folder(folder, err));
    DDP__TRY(ddp__checkpoint_path(path, err, "%s/step-%012ld", folder, d->step));
    DDP__TRY(ddp__checkpoint_folder(path->data, err));
    DDP__TRY(ddp__checkpoint_path(path, err, "%s/step-%012ld/manifest.json", folder, d->step));
    if (d->rank == 0) generation = (float)ddp__checkpoint_unused(path->data);
    p.data = &generation;
    p.count = 1;
    DDP__TRY(ddp__blocking(d, DDP__ALL_REDUCE, &p, 1, 1, 0, err));
    DDP__TRY(ddp__checkpoint_shard(path, err, folder, d->step, d->rank, generation > 0));
    DDP__TRY(ddp__shard_write(shard, path->data, err));
    ddp__pack64(words + 2 * (size_t)d->rank * DDP__WORDS, ddp__shard_hash(shard, 1));
    ddp__pack64(words + (2 * (size_t)d->rank + 1) * DDP__WORDS, ddp__shard_hash(shard, 0));
    p.data = words;
    p.count = 2 * (size_t)d->world * DDP__WORDS;
    DDP__TRY(ddp__blocking(d, DDP__ALL_GATHER, &p, 1, 1, 0, err));
    if (d->rank) return DDP_OK;
    DDP__TRY(ddp__checkpoint_path(path, err, "%s/step-%012ld/manifest.json", folder, d->step));
    DDP__TRY(ddp__manifest_write(d, path->data, words, generation > 0, err));
    ddp__checkpoint_sweep(folder, d->step, d->world, generation > 0);
    return ddp__checkpoint_prune(d, folder, keep, err);
}

int ddp_checkpoint_save(ddp_ctx *d, const char *folder, int keep)
{
    ddp__shard shard;
    ddp__text path;
    float *words;
    ddp_status s = DDP_OK;

    DDP__ENTER(d);
    if (!folder || !*folder || keep < 0)
        return ddp__ctx_failf(d, DDP_ARG, "ddp_checkpoint_save: a folder and keep >= 0 are needed");
    if (d->phase != DDP__OUTSIDE)
        return ddp__ctx_failf(d, DDP_USAGE, "ddp_checkpoint_save: step %ld is under way; save "
                              "after ddp_step_end", d->step);
    memset(&shard, 0, sizeof shard);
    memset(&path, 0, sizeof path);
    if (!d->started) s = ddp__session_start(d, &d->host.error);
    if (s == DDP_OK) s = ddp__average_wait_all(d, &d->host.error);
    words = (float *)ddp__calloc(2 * (size_t)d->world * DDP__WORDS, sizeof *words);
    if (s == DDP_OK && !words)
        s = ddp__fail(&d->host.error, DDP_MEMORY, "out of memory for a checkpoint");
    if (s == DDP_OK) s = ddp__checkpoint_write(d, folder, keep, &shard, words, &path);
    if (words) DDP_FREE(words);
    ddp__shard_free(&shard);
    ddp__text_free(&path);
    return s == DDP_OK ? 0 : ddp__ctx_fail(d, &d->host.error);
}

/* ---- loading ---- */

static ddp_status ddp__manifest_read(const char *path, ddp__manifest *m, ddp_error *err)
{
    const ddp__json *v, *flag;
    double number[3];
    static const char *const keys[3] = {"step", "world", "period"};
    int k;

    m->root = ddp__json_read(path, err);
    if (!m->root) return err->code;
    DDP__TRY(ddp__json_need(path, m->root, "format", DDP__JSON_STRING, &v, err));
    if (strcmp(v->string, "dreamddp checkpoint 1"))
        return ddp__fail(err, DDP_FORMAT, "%.200s: its format is \"%.60s\"; \"dreamddp checkpoint "
                         "1\" is understood", path, v->string);
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
                             PRId64 " values of %s: it is a checkpoint of another model", path,
                             x->name, x->layer ? " of layer " : "", x->layer ? x->layer : "",
                             x->as.dim[0], ddp_safetensors_type_name(x->as.type));
    }
    if (ddp_safetensors_count(f) == s->count) return DDP_OK;
    return ddp__fail(err, DDP_MISMATCH, "%.200s: %d tensors, this model has %d", path,
                     ddp_safetensors_count(f), s->count);
}

/* Only values that were checked leave a shard. */
static ddp_status ddp__shard_sane(const ddp_ctx *d, const ddp__shard *s, const ddp__manifest *m,
                                  const char *path, ddp_error *err)
{
    int l, bad = s->number[DDP__C_STEP] != m->step;

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
        int large = !strncmp(x->name, "layer.", 6) || !strncmp(x->name, "state.", 6);

        if (large == small) continue;
        DDP__TRY(ddp_safetensors_bytes(f, ddp_safetensors_find(f, x->name), 0,
                                       (size_t)x->as.dim[0], x->data, err));
    }
    return DDP_OK;
}

/* Everything that can be wrong is found before the first array changes. */
static ddp_status ddp__shard_load(ddp_ctx *d, const ddp__manifest *m, int rank, int same,
                                  const char *path, ddp_error *err)
{
    ddp_safetensors *f = ddp_safetensors_open(path, err);
    const ddp__json *hash = m->hash->first;
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
    if (s == DDP_OK) s = ddp__shard_hash_file(f, &h, err);
    while (rank-- > 0) hash = hash->next;
    snprintf(text, sizeof text, "%016" PRIx64, h);
    if (s == DDP_OK && (hash->kind != DDP__JSON_STRING || strcmp(hash->string, text)))
        s = ddp__fail(err, DDP_FORMAT, "%.200s: its hash is %s, but the manifest says %.40s: it "
                      "was changed, or is of another checkpoint", path, text,
                      hash->kind == DDP__JSON_STRING ? hash->string : "nothing");
    if (s == DDP_OK) s = ddp__shard_read(&shard, f, 1, err);
    if (s == DDP_OK) s = ddp__shard_sane(d, &shard, m, path, err);
    if (s == DDP_OK) s = ddp__shard_read(&shard, f, 0, err);
    if (s == DDP_OK) ddp__shard_give(d, &shard, same);
    ddp__shard_free(&shard);
    ddp_safetensors_close(f);
    return s;
}

/* Rank 0 says which checkpoint is the newest: the others might see another. */
static ddp_status ddp__checkpoint_choose(ddp_ctx *d, const char *folder, long *step)
{
    float words[DDP__WORDS];
    ddp__piece p;

    if (d->rank == 0) {
        DDP__TRY(ddp__checkpoint_newest(folder, LONG_MAX, 1, step, &d->host.error));
        if (*step < 0)
            return ddp__fail(&d->host.error, DDP_IO, "%.200s holds no whole checkpoint (a folder "
                             "step-... with manifest.json)", folder);
    }
    ddp__pack64(words, (uint64_t)*step);
    p.data = words;
    p.count = DDP__WORDS;
    DDP__TRY(ddp__blocking(d, DDP__BROADCAST, &p, 1, 1, 0, &d->host.error));
    *step = (long)ddp__unpack64(words);
    return DDP_OK;
}

static ddp_status ddp__checkpoint_read(ddp_ctx *d, const char *folder, ddp__manifest *m,
                                       ddp__text *path)
{
    ddp_error *err = &d->host.error;
    float token = 0;
    ddp__piece p;
    long step = 0;
    int same = 0, rank;

    DDP__TRY(ddp__checkpoint_choose(d, folder, &step));
    DDP__TRY(ddp__checkpoint_path(path, err, "%s/step-%012ld/manifest.json", folder, step));
    DDP__TRY(ddp__manifest_read(path->data, m, err));
    DDP__TRY(ddp__manifest_fits(d, path->data, m, &same, err));
    rank = d->rank % m->world; /* of another world all hold the same, but for buffers */
    DDP__TRY(ddp__checkpoint_shard(path, err, folder, step, rank, m->generation));
    DDP__TRY(ddp__shard_load(d, m, rank, same, path->data, err));
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
