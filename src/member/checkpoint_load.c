/* Loading a checkpoint: which one, whether it fits, and whose file a rank takes. */
#include "base/platform.h"
#include "member/checkpoint.h"

/* The arrays are those of this model. Is it this model? */
static ddp_status ddp__manifest_model(const ddp__worker *s, const ddp__manifest *m,
                                      const char *path, ddp_error *err)
{
    char text[20];

    snprintf(text, sizeof text, "%016" PRIx64, s->model);
    if (!strcmp(m->model, text)) return DDP_OK;
    return ddp__fail(err, DDP_MISMATCH, "%.200s is of another model: its layers have the names and "
                     "sizes of this one's, but other operators, or operators with other arguments "
                     "(the number of heads, for example)", path);
}

/* Everything that can be wrong is found before the first array changes. */
static ddp_status ddp__file_load(ddp__worker *s, const ddp__manifest *m, const ddp__json *hash,
                                 const char *path, ddp_error *err)
{
    ddp_safetensors *f = ddp_safetensors_open(path, err);
    uint64_t h = 0;
    char text[20];
    ddp_status code;

    if (!f) return err->code;
    code = ddp__worker_fits(s, f, path, err);
    if (code == DDP_OK) code = ddp__manifest_model(s, m, path, err);
    if (code == DDP_OK) code = ddp__worker_hash_file(f, &h, err);
    snprintf(text, sizeof text, "%016" PRIx64, h);
    if (code == DDP_OK && (hash->kind != DDP__JSON_STRING || strcmp(hash->string, text)))
        code = ddp__fail(err, DDP_FORMAT, "%.200s: its hash is %s, but the manifest says %.40s: it "
                         "was changed, or is of another checkpoint", path, text,
                         hash->kind == DDP__JSON_STRING ? hash->string : "nothing");
    if (code == DDP_OK) code = ddp__worker_load(s, f, m->step, path, err);
    ddp_safetensors_close(f);
    return code;
}

/* The newest that all workers find, each in what it sees under that name: they may have disks of
 * their own, and not all may have come to write the last manifest. */
static ddp_status ddp__checkpoint_choose(const ddp__worker *s, const char *folder, uint64_t *words,
                                         long *step, ddp_error *err)
{
    long below = LONG_MAX, newest, least;
    int r, all;

    do {
        DDP__TRY(ddp__checkpoint_newest(folder, below, 1, &newest, err));
        memset(words, 0, (size_t)s->world * sizeof *words);
        words[s->rank] = (uint64_t)(newest + 2); /* 0 of those who are lost */
        DDP__TRY(ddp__worker_gather(s, words, 1, err));
        for (r = 0, all = 1, least = newest; r < s->world; r++) {
            if (!words[r] || (long)words[r] - 2 == newest) continue;
            all = 0;
            if ((long)words[r] - 2 < least) least = (long)words[r] - 2;
        }
        below = least + 1;
    } while (!all && least >= 0);
    *step = least;
    if (least >= 0) return DDP_OK;
    if (all || newest < 0)
        return ddp__fail(err, DDP_IO, "%.200s holds no whole checkpoint (a folder step-... with "
                         "manifest.json)", folder);
    return ddp__fail(err, DDP_IO, "%.200s holds step %ld here, but no checkpoint that all workers "
                     "find: on machines without a shared disk each rank has to start where its "
                     "files are", folder, newest);
}

/* Ranks with disks of their own must not mix what unlike runs have saved there. */
static ddp_status ddp__checkpoint_agree(const ddp__worker *s, const ddp__manifest *m,
                                        const char *path, uint64_t *words, ddp_error *err)
{
    const uint64_t own = ddp__manifest_hash(m);
    int r;

    memset(words, 0, (size_t)s->world * sizeof *words);
    words[s->rank] = own;
    DDP__TRY(ddp__worker_gather(s, words, 1, err));
    for (r = 0; r < s->world; r++)
        if (words[r] && words[r] != own)
            return ddp__fail(err, DDP_MISMATCH, "%.200s: rank %d finds another one there than rank "
                             "%d: the checkpoints of unlike runs lie in folders of this name",
                             path, r, s->rank);
    return DDP_OK;
}

/* Whose file a rank takes: its own; of another world all hold the same, but for buffers, and any
 * will do. Who was lost when it was written has none, and takes another's, as a newcomer would. */
static ddp_status ddp__checkpoint_rank(const ddp__worker *s, const ddp__manifest *m, int same,
                                       const char *folder, ddp__text *path,
                                       const ddp__json **hash, ddp_error *err)
{
    int i, k, rank, first = -1;

    for (i = 0; i < m->world; i++) {
        rank = (s->rank + i) % m->world;
        for (k = 0, *hash = m->hash->first; k < rank; k++) *hash = (*hash)->next;
        if ((*hash)->kind == DDP__JSON_NULL) continue;
        if (first < 0) first = rank;
        DDP__TRY(ddp__checkpoint_shard(path, err, folder, m->step, rank, m->generation));
        if (access(path->data, R_OK) == 0) return DDP_OK;
        if (same && i == 0) break;
    }
    if (first < 0) return ddp__fail(err, DDP_FORMAT, "%.200s: no rank has a hash", path->data);
    DDP__TRY(ddp__checkpoint_shard(path, err, folder, m->step, first, m->generation));
    return ddp__fail(err, DDP_IO, "cannot read %.300s: %s: on machines without a shared disk each "
                     "rank has to start where its files are", path->data, strerror(ENOENT));
}

static ddp_status ddp__checkpoint_read(ddp__worker *s, const char *folder, ddp__manifest *m,
                                       ddp__text *path, uint64_t *words, int *same, ddp_error *err)
{
    const ddp__json *hash = NULL;
    long step = 0;

    DDP__TRY(ddp__checkpoint_choose(s, folder, words, &step, err));
    DDP__TRY(ddp__checkpoint_path(path, err, "%s/step-%012ld/manifest.json", folder, step));
    DDP__TRY(ddp__manifest_read(path->data, m, err));
    if (m->step != step)
        return ddp__fail(err, DDP_FORMAT, "%.200s: it is of step %ld", path->data, m->step);
    DDP__TRY(ddp__manifest_fits(s, path->data, m, same, err));
    DDP__TRY(ddp__checkpoint_agree(s, m, path->data, words, err));
    DDP__TRY(ddp__checkpoint_rank(s, m, *same, folder, path, &hash, err));
    DDP__TRY(ddp__file_load(s, m, hash, path->data, err));
    s->run = m->run;
    return ddp__worker_gather(s, words, 1, err); /* all, or none goes on */
}

ddp_status ddp__checkpoint_load(ddp__worker *s, const char *folder, int *same, int *world,
                                ddp_error *err)
{
    uint64_t *words = (uint64_t *)ddp__calloc((size_t)s->world, sizeof *words);
    ddp__manifest m;
    ddp__text path;
    ddp_status code;

    if (!words) return ddp__fail(err, DDP_MEMORY, "out of memory for reading a checkpoint");
    memset(&m, 0, sizeof m);
    memset(&path, 0, sizeof path);
    code = ddp__checkpoint_read(s, folder, &m, &path, words, same, err);
    *world = m.world;
    ddp__json_free(m.root);
    ddp__text_free(&path);
    DDP_FREE(words);
    return code;
}
