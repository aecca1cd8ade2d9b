/* Saving: every worker its file, and when all are there the lowest live one the manifest. */
#include "base/platform.h"
#include "io/json.h"
#include "sync/checkpoint.h"
#include "sync/checkpoint_files.h"

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
 * synchronised; 0 of those who are lost. */
static ddp_status ddp__manifest_write(const ddp_ctx *d, const char *path, const float *words,
                                      int generation, ddp_error *err)
{
    ddp__text t;
    ddp_status s;
    uint64_t first = 0, h;
    int i, equal = 1;

    memset(&t, 0, sizeof t);
    for (i = 0; i < d->world; i++) {
        if (!ddp__unpack64(words + 2 * (size_t)i * DDP__WORDS)) continue;
        h = ddp__unpack64(words + (2 * (size_t)i + 1) * DDP__WORDS);
        if (!first) first = h;
        if (h != first) equal = 0;
    }
    ddp__text_addf(&t, "{\"format\": \"dreamddp checkpoint 2\", \"step\": %ld, \"world\": %d,\n"
                   " \"strategy\": \"%s\", \"period\": %d, \"synchronised\": %s, "
                   "\"generation\": %d,\n \"optimizer\": ",
                   d->step, d->world, d->strategy->name, d->cfg.period, equal ? "true" : "false",
                   generation);
    ddp__json_string(&t, d->optimizer.name);
    ddp__text_addf(&t, ",\n \"hash\": [");
    for (i = 0; i < d->world; i++) {
        h = ddp__unpack64(words + 2 * (size_t)i * DDP__WORDS);
        if (h) ddp__text_addf(&t, "%s\"%016" PRIx64 "\"", i ? ", " : "", h);
        else ddp__text_addf(&t, "%snull", i ? ", " : "");
    }
    ddp__text_addf(&t, "],\n \"model\": \"%016" PRIx64 "\", \"layers\": [",
                   ddp__checkpoint_model(d));
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

/* The lowest live worker writes the manifest and tells the others. Was it lost before, then what
 * goes round is the word of the next one, who has not written: it does, and they go round again. */
static ddp_status ddp__checkpoint_seal(ddp_ctx *d, const char *folder, int keep, const float *words,
                                       int generation, ddp__text *path)
{
    ddp_error *err = &d->host.error;
    float written = 0, word;
    ddp__piece p;

    p.data = &word;
    p.count = 1;
    do {
        if (ddp__is_first(d) && written == 0.0f) {
            DDP__TRY(ddp__checkpoint_path(path, err, "%s/step-%012ld/manifest.json", folder,
                                          d->step));
            DDP__TRY(ddp__manifest_write(d, path->data, words, generation, err));
            ddp__checkpoint_sweep(folder, d->step, d->world, generation);
            DDP__TRY(ddp__checkpoint_prune(d, folder, keep, err));
            written = 1;
        }
        word = written;
        DDP__TRY(ddp__blocking(d, DDP__BROADCAST, &p, 1, 1, 0, err));
    } while (word == 0.0f);
    return DDP_OK;
}

/* words: [world] pairs of hashes of all shards, of which this rank fills its own. */
static ddp_status ddp__checkpoint_write(ddp_ctx *d, const char *folder, int keep, ddp__shard *shard,
                                        float *words, ddp__text *path)
{
    ddp_error *err = &d->host.error;
    float generation;
    ddp__piece p;

    DDP__TRY(ddp__shard_take(d, shard, err));
    DDP__TRY(ddp__checkpoint_folder(folder, err));
    DDP__TRY(ddp__checkpoint_path(path, err, "%s/step-%012ld", folder, d->step));
    DDP__TRY(ddp__checkpoint_folder(path->data, err));
    DDP__TRY(ddp__checkpoint_path(path, err, "%s/step-%012ld/manifest.json", folder, d->step));
    generation = (float)ddp__checkpoint_unused(path->data); /* as the lowest live one sees it */
    p.data = &generation;
    p.count = 1;
    DDP__TRY(ddp__blocking(d, DDP__BROADCAST, &p, 1, 1, 0, err));
    DDP__TRY(ddp__checkpoint_shard(path, err, folder, d->step, d->rank, generation > 0));
    DDP__TRY(ddp__shard_write(shard, path->data, err));
    ddp__pack64(words + 2 * (size_t)d->rank * DDP__WORDS, ddp__shard_hash(shard, 1));
    ddp__pack64(words + (2 * (size_t)d->rank + 1) * DDP__WORDS, ddp__shard_hash(shard, 0));
    p.data = words;
    p.count = 2 * (size_t)d->world * DDP__WORDS;
    DDP__TRY(ddp__blocking(d, DDP__ALL_GATHER, &p, 1, 1, 0, err));
    return ddp__checkpoint_seal(d, folder, keep, words, generation > 0, path);
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
