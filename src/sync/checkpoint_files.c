#include "base/platform.h"
#include "data/hash.h"
#include "io/json.h"
#include "sync/checkpoint_files.h"

#include <dirent.h>

#define DDP__C_CHUNK ((size_t)65536) /* values hashed at a time */

/* ---- names ---- */

ddp_status ddp__checkpoint_path(ddp__text *t, ddp_error *err, const char *fmt, ...)
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

ddp_status ddp__checkpoint_shard(ddp__text *t, ddp_error *err, const char *folder, long step,
                                 int rank, int generation)
{
    return ddp__checkpoint_path(t, err, "%s/step-%012ld/rank-%04d%s.safetensors", folder, step,
                                rank, generation ? "-again" : "");
}

ddp_status ddp__checkpoint_newest(const char *folder, long below, int whole, long *out,
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

/* ---- what goes ---- */

void ddp__checkpoint_sweep(const char *folder, long step, int world, int generation)
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

ddp_status ddp__checkpoint_prune(const ddp_ctx *d, const char *folder, int keep, ddp_error *err)
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

ddp_status ddp__checkpoint_folder(const char *path, ddp_error *err)
{
    if (mkdir(path, 0777) == 0) return ddp__folder_flush(path, err);
    if (errno == EEXIST) return DDP_OK;
    return ddp__fail(err, DDP_IO, "cannot make the folder %.200s: %s", path, strerror(errno));
}

int ddp__checkpoint_unused(const char *manifest)
{
    ddp__json *root = ddp__json_read(manifest, NULL);
    const ddp__json *v = ddp__json_get(root, "generation");
    const int used = root && !(v && v->kind == DDP__JSON_NUMBER && v->number == 1);

    ddp__json_free(root);
    return used;
}

/* ---- fingerprints ---- */

uint64_t ddp__checkpoint_model(const ddp_ctx *d)
{
    const ddp__owned *o;
    uint64_t h = DDP__HASH_START;

    for (o = d->host.owned; o; o = o->next)
        if (o->passes) h = ddp__hash(h, &o->model, sizeof o->model);
    return h;
}

static uint64_t ddp__shard_hash_part(uint64_t h, const ddp_safetensor *t, const void *p, size_t n)
{
    if (t->type == DDP_ST_F32) return ddp_hash_floats(h, (const float *)p, n);
    return ddp__hash(h, p, n * ddp_safetensors_type_bytes(t->type));
}

uint64_t ddp__shard_hash(const ddp__shard *s, int buffers)
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

ddp_status ddp__shard_hash_file(ddp_safetensors *f, uint64_t *out, ddp_error *err)
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
