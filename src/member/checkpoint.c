/* Saving and loading a checkpoint: a file of each worker's state, and when all are there the manifest, on each disk. */
#include "member/manifest.h"

#include <dirent.h>

/* ---- names ---- */

typedef struct ddp__save_path {
    char data[4096];
} ddp__save_path;

static DDP__PRINTF(3, 4) ddp_status ddp__checkpoint_path(ddp__save_path *p, ddp_error *err, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(p->data, sizeof p->data, fmt, ap);
    va_end(ap);
    if (n > 0 && (size_t)n < sizeof p->data) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "a checkpoint's path of %d bytes is too long", n);
}

static ddp_status ddp__checkpoint_manifest(ddp__save_path *p, ddp_error *err, const char *folder, long step)
{
    return ddp__checkpoint_path(p, err, "%s/step-%012ld/manifest.json", folder, step);
}

/* The step of a folder's name, -1 if it is not ours. */
static long ddp__checkpoint_step(const char *name)
{
    long step;

    if (strncmp(name, "step-", 5) || strlen(name) != 17 || !ddp__parse_long(name + 5, &step)) return -1;
    return step;
}

/* The path of a rank's file. A step that is saved once more must not touch the files that its manifest names
 * until the new manifest is there: so a rank's file has two names, and each save takes the other one. */
static ddp_status ddp__checkpoint_shard(ddp__save_path *p, ddp_error *err, const char *folder, long step, int rank,
                                        int generation)
{
    return ddp__checkpoint_path(p, err, "%s/step-%012ld/rank-%04d%s.safetensors", folder, step, rank,
                                generation ? "-again" : "");
}

/* Newest checkpoint of folder below step `below`, whole ones only or also what a killed run left; -1: none. */
static ddp_status ddp__checkpoint_newest(const char *folder, long below, int whole, long *out, ddp_error *err)
{
    DIR *dir = opendir(folder);
    struct dirent *e;
    ddp__save_path path;
    ddp_status s = DDP_OK;

    *out = -1;
    if (!dir) return ddp__fail(err, DDP_IO, "cannot read %.200s: %s", folder, strerror(errno));
    while (s == DDP_OK && (e = readdir(dir)) != NULL) {
        long step = ddp__checkpoint_step(e->d_name);
        if (step <= *out || step >= below) continue;
        s = ddp__checkpoint_path(&path, err, "%s/%s/manifest.json", folder, e->d_name);
        if (s == DDP_OK && (!whole || access(path.data, R_OK) == 0)) *out = step;
    }
    closedir(dir);
    return s;
}

/* ---- what goes ---- */

/* Removes what a step's folder holds of ours, but world files of that generation and their manifest; world 0: all. */
static void ddp__checkpoint_sweep(const char *folder, long step, int world, int generation)
{
    ddp__save_path path, at;
    DIR *dir = NULL;
    struct dirent *e;

    if (!world && ddp__checkpoint_manifest(&path, NULL, folder, step) == DDP_OK)
        unlink(path.data); /* first, so that half of a checkpoint does not count */
    if (ddp__checkpoint_path(&path, NULL, "%s/step-%012ld", folder, step) == DDP_OK) dir = opendir(path.data);
    while (dir && (e = readdir(dir)) != NULL) {
        char keep[64];
        const long rank = strncmp(e->d_name, "rank-", 5) ? -1 : strtol(e->d_name + 5, NULL, 10);

        snprintf(keep, sizeof keep, "rank-%04ld%s.safetensors", rank, generation ? "-again" : "");
        if ((rank < 0 && strncmp(e->d_name, "manifest.json.tmp.", 18)) ||
            (rank >= 0 && rank < world && !strcmp(e->d_name, keep)))
            continue;
        if (ddp__checkpoint_path(&at, NULL, "%s/%s", path.data, e->d_name) == DDP_OK) unlink(at.data);
    }
    if (dir) closedir(dir);
    if (dir && !world) rmdir(path.data); /* with a file of somebody else in it, it stays */
}

/* Removes all of up to step but the newest keep, also what killed runs left between them; keep 0 = nothing. */
static ddp_status ddp__checkpoint_prune(const char *folder, long step, int keep, ddp_error *err)
{
    step++;
    for (int kept = 0; keep > 0; kept++) {
        DDP__TRY(ddp__checkpoint_newest(folder, step, kept < keep, &step, err));
        if (step < 0) break;
        if (kept >= keep) ddp__checkpoint_sweep(folder, step, 0, 0);
    }
    return DDP_OK;
}

static ddp_status ddp__checkpoint_folder(const char *path, ddp_error *err)
{
    if (mkdir(path, 0777) == 0) return ddp__folder_flush(path, err);
    if (errno == EEXIST) return DDP_OK;
    return ddp__fail(err, DDP_IO, "cannot make the folder %.200s: %s", path, strerror(errno));
}

/* ---- what other runs have saved ---- */

typedef struct ddp__saving {
    ddp__worker *s;
    const char *folder;
    int         keep, overwrite;
    int         generation; /* which of their two names this step's files get */
    ddp__said  *file;       /* [world] */
    uint64_t   *said;       /* [world] a word of each */
    ddp__save_path path;
} ddp__saving;

/* 1 if the folder holds this step of another run, or of one that cannot be read. */
static ddp_status ddp__is_foreign(ddp__saving *v, long step, int *foreign, ddp_error *err)
{
    ddp__manifest m;
    ddp_error unread;

    *foreign = 0;
    DDP__TRY(ddp__checkpoint_manifest(&v->path, err, v->folder, step));
    if (step < 0 || access(v->path.data, F_OK)) return DDP_OK;
    unread.code = ddp__manifest_read(v->path.data, &m, &unread);
    *foreign = unread.code != DDP_OK || m.run != v->s->run;
    ddp__manifest_free(&m);
    return unread.code == DDP_MEMORY ? ddp__fail(err, DDP_MEMORY, "%s", unread.msg) : DDP_OK;
}

static ddp_status ddp__refuse_foreign(ddp__saving *v, ddp_error *err)
{
    long step[2] = {v->s->step, 0};
    int foreign;

    DDP__TRY(ddp__checkpoint_newest(v->folder, LONG_MAX, 1, &step[1], err));
    for (int i = 0; i < 2; i++) {
        DDP__TRY(ddp__is_foreign(v, step[i], &foreign, err));
        if (foreign)
            return ddp__fail(err, DDP_ARG, "%.200s holds step %ld of another run: go on from it (--resume, "
                             "ddp_checkpoint_load), save into another folder, or let this run replace it (--overwrite, "
                             "ddp_config.overwrite)", v->folder, step[i]);
    }
    return DDP_OK;
}

static ddp_status ddp__remove_foreign(ddp__saving *v, ddp_error *err)
{
    long step = LONG_MAX;
    int foreign;

    for (;;) {
        DDP__TRY(ddp__checkpoint_newest(v->folder, step, 1, &step, err));
        if (step < 0) return DDP_OK;
        DDP__TRY(ddp__is_foreign(v, step, &foreign, err));
        if (foreign) ddp__checkpoint_sweep(v->folder, step, 0, 0);
    }
}

/* ---- saving ---- */

/* The generation of a step's files that its manifest does not name. */
static ddp_status ddp__generation_unused(const char *manifest, int *generation, ddp_error *err)
{
    ddp__manifest m;
    ddp_error unread;
    const ddp_status code = ddp__manifest_read(manifest, &m, &unread);

    *generation = code == DDP_OK && !m.generation;
    ddp__manifest_free(&m);
    return code == DDP_MEMORY ? ddp__fail(err, DDP_MEMORY, "%s", unread.msg) : DDP_OK;
}

/* Which run this is, as the lowest says. Behind that nobody has files of another save under the names of this one. */
static ddp_status ddp__save_meet(ddp__saving *v, ddp_error *err)
{
    ddp__worker *s = v->s;
    uint64_t *said = v->said;
    int r = 0;

    if (!v->overwrite) DDP__TRY(ddp__refuse_foreign(v, err));
    DDP__TRY(ddp__checkpoint_manifest(&v->path, err, v->folder, s->step));
    DDP__TRY(ddp__generation_unused(v->path.data, &v->generation, err));
    ddp__checkpoint_sweep(v->folder, s->step, INT_MAX, !v->generation);
    said[s->rank] = s->run ? s->run : ddp__fresh_number();
    DDP__TRY(ddp__worker_gather(s, said, 1, err));
    while (!said[r]) r++;
    s->run = said[r];
    return DDP_OK;
}

/* All files are there: on each disk the lowest of those who left one there writes the manifest. Was the
 * lowest of all lost before it wrote, the next one does, and the word goes round again. */
static ddp_status ddp__save_seal(ddp__saving *v, ddp_error *err)
{
    ddp__worker *s = v->s;
    uint64_t *said = v->said;
    int r, others, written = 0, sealed = 0;

    for (r = 0; r < s->world; r++) said[r] = v->file[r].hash; /* of those who are lost 0 */
    while (!sealed) {
        for (r = others = 0; r < s->rank; r++) { /* below this one, with a file here */
            if (!said[r]) continue;
            DDP__TRY(ddp__checkpoint_shard(&v->path, err, v->folder, s->step, r, v->generation));
            others += access(v->path.data, F_OK) == 0;
        }
        if (!others && !written) {
            DDP__TRY(ddp__checkpoint_manifest(&v->path, err, v->folder, s->step));
            DDP__TRY(ddp__manifest_write(s, v->path.data, v->file, v->generation, err));
            written = 1;
        }
        said[s->rank] = written ? 2 : 1;
        DDP__TRY(ddp__worker_gather(s, said, 1, err));
        for (r = 0; !said[r]; r++) {}
        sealed = said[r] == 2;
    }
    if (written) {
        ddp__checkpoint_sweep(v->folder, s->step, s->world, v->generation);
        if (v->overwrite) DDP__TRY(ddp__remove_foreign(v, err));
        DDP__TRY(ddp__checkpoint_prune(v->folder, s->step, v->keep, err));
    }
    return ddp__worker_gather(s, said, 1, err); /* nobody begins another save before that */
}

static ddp_status ddp__save_all(ddp__saving *v, ddp_error *err)
{
    ddp__worker *s = v->s;
    const int is_new = s->run == 0;
    ddp__said own = {0, 0, s->cut, (uint64_t)s->copy};
    ddp__worker_hash hash;
    int r = 0;

    v->file = (ddp__said *)ddp__calloc((size_t)s->world, sizeof *v->file);
    v->said = (uint64_t *)ddp__calloc((size_t)s->world, sizeof *v->said);
    if (!v->file || !v->said) return ddp__fail(err, DDP_MEMORY, "out of memory for a checkpoint");
    DDP__TRY(ddp__checkpoint_folder(v->folder, err));
    DDP__TRY(ddp__checkpoint_path(&v->path, err, "%s/step-%012ld", v->folder, s->step));
    DDP__TRY(ddp__checkpoint_folder(v->path.data, err));
    DDP__TRY(ddp__save_meet(v, err));
    DDP__TRY(ddp__checkpoint_shard(&v->path, err, v->folder, s->step, s->rank, v->generation));
    DDP__TRY(ddp__worker_write(s, v->path.data, &hash, err));
    own.hash = hash.all, own.common = hash.common;
    v->file[s->rank] = own;
    DDP__TRY(ddp__worker_gather(s, (uint64_t *)(void *)v->file, DDP__SAID_WORDS, err));
    while (!v->file[r].hash) r++;
    DDP__TRY(ddp__checkpoint_shard(&v->path, err, v->folder, s->step, r, v->generation));
    if (is_new && access(v->path.data, F_OK))
        ddp__log(&s->host->log, DDP_LOG_WARN, "rank %d: %s is not that of rank %d: every machine keeps the files of "
                 "its own ranks, and to go on each has to start where its are", s->rank, v->folder, r);
    return ddp__save_seal(v, err);
}

ddp_status ddp__checkpoint_save(ddp__worker *s, const char *folder, int keep, int overwrite, ddp_error *err)
{
    ddp__saving v = {s, folder, keep, overwrite, 0, NULL, NULL, {""}};
    ddp_status code = ddp__save_all(&v, err);

    if (v.file) DDP_FREE(v.file);
    if (v.said) DDP_FREE(v.said);
    return code;
}

/* ---- loading: which one, whether it fits, and whose file a rank takes ---- */

static ddp_status ddp__model_fits(const ddp__worker *s, const ddp__manifest *m, const char *path, ddp_error *err)
{
    char text[20];

    snprintf(text, sizeof text, "%016" PRIx64, s->model);
    if (!strcmp(m->model, text)) return DDP_OK;
    return ddp__fail(err, DDP_MISMATCH,
                     "%.200s is of another model: its layers have the names of this one's, but other "
                     "operators, sizes, or operators with other arguments (the number of heads, for example)",
                     path);
}

/* Everything that can be wrong is found before the first array changes. */
static ddp_status ddp__file_load(ddp__worker *s, const ddp__manifest *m, uint64_t hash, const char *path,
                                 ddp_error *err)
{
    ddp_safetensors *f = ddp_safetensors_open(path, err);
    ddp_status code;

    if (!f) return err->code;
    code = ddp__worker_fits(s, f, path, err);
    if (code == DDP_OK) code = ddp__model_fits(s, m, path, err);
    if (code == DDP_OK) code = ddp__worker_unchanged(f, hash, path, err);
    if (code == DDP_OK) code = ddp__worker_load(s, f, m->step, path, err);
    ddp_safetensors_close(f);
    return code;
}

/* The newest that all workers find, who may have disks of their own, and not all the last manifest. */
static ddp_status ddp__checkpoint_choose(const ddp__worker *s, const char *folder, uint64_t *words,
                                         long *step, ddp_error *err)
{
    long below = LONG_MAX, newest, least, most;

    do {
        DDP__TRY(ddp__checkpoint_newest(folder, below, 1, &newest, err));
        words[s->rank] = (uint64_t)(newest + 2); /* 0 of those who are lost */
        DDP__TRY(ddp__worker_gather(s, words, 1, err));
        least = most = newest;
        for (int r = 0; r < s->world; r++) {
            const long theirs = (long)words[r] - 2;
            if (words[r] && theirs < least) least = theirs;
            if (words[r] && theirs > most) most = theirs;
        }
        below = least + 1;
    } while (least < most && least >= 0);
    *step = least;
    if (least >= 0) return DDP_OK;
    if (newest < 0)
        return ddp__fail(err, DDP_IO, "%.200s holds no whole checkpoint (a folder step-... with "
                         "manifest.json)", folder);
    return ddp__fail(err, DDP_IO, "%.200s holds step %ld here, but no checkpoint that all workers find: on machines "
                     "without a shared disk each rank has to start where its files are", folder, newest);
}

/* Ranks with disks of their own must not mix what unlike runs have saved there. */
static ddp_status ddp__checkpoint_agree(const ddp__worker *s, const ddp__manifest *m,
                                        const char *path, uint64_t *words, ddp_error *err)
{
    const uint64_t own = ddp__manifest_hash(m);

    words[s->rank] = own;
    DDP__TRY(ddp__worker_gather(s, words, 1, err));
    for (int r = 0; r < s->world; r++)
        if (words[r] && words[r] != own)
            return ddp__fail(err, DDP_MISMATCH, "%.200s: rank %d finds another one there than rank %d: the checkpoints "
                             "of unlike runs lie in folders of this name", path, r, s->rank);
    return DDP_OK;
}

/* Whose file a rank takes: of the same part of the model that of its own copy; of another number of copies all hold the
 * same, but for buffers, and any will do. Who was lost when it was written has none, and takes another's, as a newcomer
 * would. -1: the model was cut otherwise. */
static ddp_status ddp__checkpoint_rank(const ddp__worker *s, const ddp__manifest *m, int kin, const char *folder,
                                       ddp__save_path *path, int *rank, ddp_error *err)
{
    int first = -1;

    *rank = -1;
    for (int c = 0; c < m->copies; c++) {
        for (int r = 0; r < m->world; r++) {
            if (!m->said[r].hash || m->said[r].cut != s->cut) continue;
            if ((int)m->said[r].copy != (s->copy + c) % m->copies) continue;
            if (first < 0) first = r;
            DDP__TRY(ddp__checkpoint_shard(path, err, folder, m->step, r, m->generation));
            *rank = r;
            if (access(path->data, R_OK) == 0) return DDP_OK;
        }
        if (kin && c == 0 && first >= 0) break;
    }
    if (first < 0) return DDP_OK;
    DDP__TRY(ddp__checkpoint_shard(path, err, folder, m->step, first, m->generation));
    return ddp__fail(err, DDP_IO, "cannot read %.300s: %s: on machines without a shared disk each "
                     "rank has to start where its files are", path->data, strerror(ENOENT));
}

/* The files of all ranks of the copy that this worker goes on with. */
static ddp_status ddp__copy_load(ddp__worker *s, const ddp__manifest *m, int kin, const char *folder,
                                 ddp__save_path *room, ddp_error *err)
{
    const size_t world = (size_t)m->world;
    const char **path = (const char **)ddp__calloc(world, sizeof *path);
    uint64_t *hash = (uint64_t *)ddp__calloc(world, sizeof *hash);
    ddp__shards *x = NULL;
    ddp_status code = DDP_OK;
    int files = 0;

    if (!path || !hash) code = ddp__fail(err, DDP_MEMORY, "out of memory for reading a checkpoint");
    for (int r = 0; code == DDP_OK && r < m->world; r++) {
        if (!m->said[r].hash || (int)m->said[r].copy != s->copy % m->copies) continue;
        code = ddp__checkpoint_shard(room, err, folder, m->step, r, m->generation);
        if (code == DDP_OK) path[files] = ddp__strdup(room->data);
        if (code == DDP_OK && !path[files]) code = ddp__fail(err, DDP_MEMORY, "out of memory for reading a checkpoint");
        hash[files++] = m->said[r].hash;
    }
    if (code == DDP_OK) code = ddp__shards_open(&x, s, path, hash, files, err);
    if (code == DDP_OK) code = ddp__checkpoint_manifest(room, err, folder, m->step);
    if (code == DDP_OK) code = ddp__model_fits(s, m, room->data, err);
    if (code == DDP_OK) code = ddp__shards_load(x, m->step, kin, err);
    ddp__shards_close(x);
    for (int i = 0; path && i < files; i++)
        if (path[i]) DDP_FREE((void *)(uintptr_t)path[i]);
    if (path) DDP_FREE((void *)path);
    if (hash) DDP_FREE(hash);
    return code;
}

/* 1: every rank finds the part of the model that it has here. */
static ddp_status ddp__checkpoint_cut(const ddp__worker *s, int found, uint64_t *words, int *same, ddp_error *err)
{
    words[s->rank] = found ? 1 : 2;
    DDP__TRY(ddp__worker_gather(s, words, 1, err));
    *same = 1;
    for (int r = 0; r < s->world; r++) *same &= words[r] != 2;
    return DDP_OK;
}

static ddp_status ddp__checkpoint_read(ddp__worker *s, const char *folder, ddp__manifest *m, ddp__save_path *path,
                                       uint64_t *words, ddp__loaded *of, ddp_error *err)
{
    long step = 0;
    int rank, uncut;

    DDP__TRY(ddp__checkpoint_choose(s, folder, words, &step, err));
    DDP__TRY(ddp__checkpoint_manifest(path, err, folder, step));
    DDP__TRY(ddp__manifest_read(path->data, m, err));
    if (m->step != step) return ddp__fail(err, DDP_FORMAT, "%.200s: it is of step %ld", path->data, m->step);
    of->world = m->world;
    DDP__TRY(ddp__manifest_fits(s, path->data, m, &of->kin, err));
    DDP__TRY(ddp__checkpoint_agree(s, m, path->data, words, err));
    DDP__TRY(ddp__checkpoint_rank(s, m, of->kin, folder, path, &rank, err));
    DDP__TRY(ddp__checkpoint_cut(s, rank >= 0, words, &uncut, err));
    of->same = of->kin && uncut && m->world == s->world;
    if (uncut) {
        DDP__TRY(ddp__file_load(s, m, m->said[rank].hash, path->data, err));
    } else {
        DDP__TRY(ddp__copy_load(s, m, of->kin, folder, path, err));
    }
    s->run = m->run;
    return ddp__worker_gather(s, words, 1, err); /* all, or none goes on */
}

ddp_status ddp__checkpoint_load(ddp__worker *s, const char *folder, ddp__loaded *of, ddp_error *err)
{
    uint64_t *words = (uint64_t *)ddp__calloc((size_t)s->world, sizeof *words);
    ddp__manifest m;
    ddp__save_path path;
    ddp_status code;

    memset(of, 0, sizeof *of);
    if (!words) return ddp__fail(err, DDP_MEMORY, "out of memory for reading a checkpoint");
    memset(&m, 0, sizeof m);
    code = ddp__checkpoint_read(s, folder, &m, &path, words, of, err);
    ddp__manifest_free(&m);
    DDP_FREE(words);
    return code;
}
