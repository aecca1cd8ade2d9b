/* Saves and loads a checkpoint: a file of each worker's state and, once all files are written, the manifest,
 * on each disk. A checkpoint without a manifest does not count, so an incomplete one is never loaded. */
#include "member/manifest.h"

#include <dirent.h>

enum { DDP__SAID_WORDS = sizeof(ddp__said) / sizeof(uint64_t) };

/* ---- names ---- */

enum { DDP__CHECKPOINT_PATH = 4096, DDP__CHECKPOINT_FOLDER = DDP__CHECKPOINT_PATH - 64 };

static ddp_status ddp__checkpoint_fits(const char *folder, ddp_error *err)
{
    const size_t n = strlen(folder);

    if (n <= DDP__CHECKPOINT_FOLDER) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "the path of a checkpoint is too long: %zu bytes", n);
}

/* The path of a step's folder, or of a file in it. The length of folder was checked before. */
static void ddp__checkpoint_path(char *out, const char *folder, long step, const char *file)
{
    snprintf(out, DDP__CHECKPOINT_PATH, "%s/step-%012ld%s", folder, step, file);
}

/* When a step is saved again, the files that its manifest names must not change until the new manifest is
 * written. So a rank's file has two names, and each save uses the other one. */
static void ddp__shard_file(char out[40], long rank, int generation)
{
    snprintf(out, 40, "/rank-%04ld%s.safetensors", rank, generation ? "-again" : "");
}

static void ddp__shard_path(char *out, const char *folder, long step, int rank, int generation)
{
    char file[40];

    ddp__shard_file(file, rank, generation);
    ddp__checkpoint_path(out, folder, step, file);
}

/* Finds the newest checkpoint of folder below step `below`: complete ones only, or (whole = 0) also those
 * that a killed run left. Returns -1 if there is none. */
static ddp_status ddp__checkpoint_newest(const char *folder, long below, int whole, long *out, ddp_error *err)
{
    DIR *dir = opendir(folder);
    struct dirent *e;
    char path[DDP__CHECKPOINT_PATH];
    long step;

    *out = -1;
    if (!dir) return ddp__fail(err, DDP_IO, "cannot read %.200s: %s", folder, strerror(errno));
    while ((e = readdir(dir)) != NULL) {
        if (strncmp(e->d_name, "step-", 5) || strlen(e->d_name) != 17 ||
            !ddp__parse_long(e->d_name + 5, &step) || step <= *out || step >= below)
            continue;
        ddp__checkpoint_path(path, folder, step, "/manifest.json");
        if (!whole || access(path, F_OK) == 0)
            *out = step; /* a checkpoint that cannot be read is an error. No older one is loaded instead. */
    }
    closedir(dir);
    return DDP_OK;
}

/* ---- removal ---- */

/* Removes the library's files from a step's folder, except `world` files of that generation and their
 * manifest. With world 0 removes all files. */
static void ddp__checkpoint_sweep(const char *folder, long step, int world, int generation)
{
    char path[DDP__CHECKPOINT_PATH], keep[40];
    struct dirent *e;
    DIR *dir;

    ddp__checkpoint_path(path, folder, step, "");
    dir = opendir(path);
    if (!dir) return;
    if (!world)
        unlinkat(dirfd(dir), "manifest.json", 0); /* first, so that an incomplete checkpoint does not count */
    while ((e = readdir(dir)) != NULL) {
        const long rank = strncmp(e->d_name, "rank-", 5) ? -1 : strtol(e->d_name + 5, NULL, 10);
        ddp__shard_file(keep, rank, generation);
        if (rank < 0 ? !strncmp(e->d_name, "manifest.json.tmp.", 18)
                     : rank >= world || strcmp(e->d_name, keep + 1))
            unlinkat(dirfd(dir), e->d_name, 0);
    }
    closedir(dir);
    if (!world) rmdir(path); /* the folder stays if it contains other files */
}

/* Removes all checkpoints up to step except the newest `keep`, including those between them that killed runs
 * left. With keep 0 removes no checkpoint. */
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
    return ddp__fail(err, DDP_IO, "cannot create the folder %.200s: %s", path, strerror(errno));
}

/* ---- checkpoints of other runs ---- */

typedef struct ddp__saving {
    ddp__worker *s;
    const char *folder;
    int keep, overwrite;
    int generation;  /* which of the two names this step's files get */
    ddp__said *file; /* [world] */
    uint64_t *said;  /* [world] a 64-bit value of each rank */
    char path[DDP__CHECKPOINT_PATH];
} ddp__saving;

/* Reads the generation of a step's manifest. Returns -1 if the manifest cannot be read, -2 if there is none.
 * *foreign: 1 if it belongs to another run, or cannot be read. */
static ddp_status ddp__manifest_peek(ddp__saving *v, long step, int *generation, int *foreign, ddp_error *err)
{
    ddp__manifest m;
    ddp_error unread;
    ddp_status code;

    ddp__checkpoint_path(v->path, v->folder, step, "/manifest.json");
    code = ddp__manifest_read(v->path, &m, &unread);
    *generation = code == DDP_OK ? m.generation : access(v->path, F_OK) ? -2 : -1;
    *foreign = code == DDP_OK ? m.run != v->s->run : *generation == -1;
    ddp__manifest_free(&m);
    return code == DDP_MEMORY || (code == DDP_IO && *generation == -1)
               ? ddp__fail(err, code, "%s", unread.msg)
               : DDP_OK;
}

static ddp_status ddp__refuse_foreign(ddp__saving *v, ddp_error *err)
{
    long step[2] = {v->s->step, 0};
    int foreign = 0, generation;

    DDP__TRY(ddp__checkpoint_newest(v->folder, LONG_MAX, 1, &step[1], err));
    for (int i = 0; i < 2; i++) {
        if (step[i] >= 0) DDP__TRY(ddp__manifest_peek(v, step[i], &generation, &foreign, err));
        if (foreign)
            return ddp__fail(err, DDP_ARG,
                             "%.200s has a checkpoint of another run (step %ld): resume from it (--resume, "
                             "ddp_checkpoint_load), use another folder, or replace it (--overwrite, "
                             "ddp_config.debug.overwrite)",
                             v->folder, step[i]);
    }
    return DDP_OK;
}

static ddp_status ddp__remove_foreign(ddp__saving *v, ddp_error *err)
{
    long step = LONG_MAX;
    int foreign, generation;

    for (;;) {
        DDP__TRY(ddp__checkpoint_newest(v->folder, step, 1, &step, err));
        if (step < 0) return DDP_OK;
        DDP__TRY(ddp__manifest_peek(v, step, &generation, &foreign, err));
        if (foreign) ddp__checkpoint_sweep(v->folder, step, 0, 0);
    }
}

/* ---- saving ---- */

/* All ranks agree on the run, which the lowest rank determines. Afterwards no rank has files of another save
 * under the names of this one. */
static ddp_status ddp__save_meet(ddp__saving *v, ddp_error *err)
{
    ddp__worker *s = v->s;
    uint64_t *said = v->said;
    int r = 0, foreign;

    if (!v->overwrite) DDP__TRY(ddp__refuse_foreign(v, err));
    DDP__TRY(ddp__manifest_peek(v, s->step, &v->generation, &foreign, err));
    v->generation = v->generation == 0; /* the generation that the manifest does not name */
    ddp__checkpoint_sweep(v->folder, s->step, INT_MAX, !v->generation);
    said[s->rank] = s->run ? s->run : ddp__fresh_number();
    DDP__TRY(ddp__worker_gather(s, said, 1, err));
    while (!said[r]) r++;
    s->run = said[r];
    return DDP_OK;
}

/* Writes the manifest once all files are written: on each disk by the lowest rank that has a file there. If
 * the lowest rank of all was lost before it wrote, the next one writes, and the ranks gather again. */
static ddp_status ddp__save_seal(ddp__saving *v, ddp_error *err)
{
    ddp__worker *s = v->s;
    uint64_t *said = v->said;
    int r, others, written = 0, sealed = 0;

    for (r = 0; r < s->world; r++) said[r] = v->file[r].there; /* 0 for lost ranks */
    while (!sealed) {
        for (r = others = 0; r < s->rank; r++) { /* ranks below this one with a file here */
            if (!said[r]) continue;
            ddp__shard_path(v->path, v->folder, s->step, r, v->generation);
            others += access(v->path, F_OK) == 0;
        }
        if (!others && !written) {
            ddp__checkpoint_path(v->path, v->folder, s->step, "/manifest.json");
            DDP__TRY(ddp__manifest_write(s, v->path, v->file, v->generation, err));
            written = 1;
        }
        said[s->rank] = written ? 2 : 1;
        DDP__TRY(ddp__worker_gather(s, said, 1, err));
        for (r = 0; !said[r]; r++) {
        }
        sealed = said[r] == 2;
    }
    if (written) {
        ddp__checkpoint_sweep(v->folder, s->step, s->world, v->generation);
        if (v->overwrite) DDP__TRY(ddp__remove_foreign(v, err));
        DDP__TRY(ddp__checkpoint_prune(v->folder, s->step, v->keep, err));
    }
    return ddp__worker_gather(s, said, 1, err); /* no rank begins another save before that */
}

static ddp_status ddp__save_all(ddp__saving *v, ddp_error *err)
{
    ddp__worker *s = v->s;
    const int is_new = s->run == 0;
    int r = 0;

    v->file = (ddp__said *)ddp__calloc((size_t)s->world, sizeof *v->file);
    v->said = (uint64_t *)ddp__calloc((size_t)s->world, sizeof *v->said);
    if (!v->file || !v->said) return ddp__fail(err, DDP_MEMORY, "out of memory for a checkpoint");
    DDP__TRY(ddp__checkpoint_fits(v->folder, err));
    DDP__TRY(ddp__checkpoint_folder(v->folder, err));
    ddp__checkpoint_path(v->path, v->folder, s->step, "");
    DDP__TRY(ddp__checkpoint_folder(v->path, err));
    DDP__TRY(ddp__save_meet(v, err));
    ddp__shard_path(v->path, v->folder, s->step, s->rank, v->generation);
    DDP__TRY(ddp__worker_write(s, v->path, &v->file[s->rank], err));
    DDP__TRY(ddp__worker_gather(s, (uint64_t *)(void *)v->file, DDP__SAID_WORDS, err));
    while (!v->file[r].there) r++;
    ddp__shard_path(v->path, v->folder, s->step, r, v->generation);
    if (is_new && access(v->path, F_OK))
        ddp__log(ddp__host_log(s->host), DDP_LOG_WARN,
                 "rank %d: %s is not on the disk of rank %d: each machine stores the files of its own ranks; "
                 "to resume, start each rank on the machine with its file",
                 s->rank, v->folder, r);
    return ddp__save_seal(v, err);
}

ddp_status ddp__checkpoint_save(ddp__worker *s, const char *folder, int keep, int overwrite, ddp_error *err)
{
    ddp__saving v = {s, folder, keep, overwrite, 0, NULL, NULL, ""};
    ddp_status code = ddp__save_all(&v, err);

    if (code != DDP_OK) { /* remove the step's folder, if it is empty */
        ddp__checkpoint_path(v.path, folder, s->step, "");
        (void)rmdir(v.path);
    }
    if (v.file) DDP_FREE(v.file);
    if (v.said) DDP_FREE(v.said);
    return code;
}

/* ---- loading: choose a checkpoint, verify it, and choose the file of each rank ---- */

static ddp_status ddp__model_fits(const ddp__worker *s, const ddp__manifest *m, const char *path,
                                  ddp_error *err)
{
    if (m->model == s->model) return DDP_OK;
    return ddp__fail(
        err, DDP_MISMATCH,
        "%.200s belongs to another model: its layers have the same names, but different operators, sizes or "
        "arguments (for example vocabulary, heads or sequence length): resume with the same model",
        path);
}

/* All ranks verify their files before any of them changes its first array. */
static ddp_status ddp__file_load(ddp__worker *s, const ddp__manifest *m, int rank, const char *path,
                                 uint64_t *words, ddp_error *err)
{
    const ddp__listed listed = ddp__manifest_listed(m, rank);
    ddp_safetensors *f = ddp_safetensors_open(path, err);
    ddp_status code;

    if (!f) return ddp__damaged(err->code, err);
    code = ddp__worker_fits(s, f, path, err);
    if (code == DDP_OK) code = ddp__model_fits(s, m, path, err);
    if (code == DDP_OK) code = ddp__worker_listed(f, &listed, path, err);
    if (code == DDP_OK) code = ddp__worker_read(s, f, m->step, path, err);
    if (code == DDP_OK) code = ddp__worker_gather(s, words, 1, err);
    if (code == DDP_OK) code = ddp__worker_load(s, f, path, err);
    ddp_safetensors_close(f);
    return code;
}

/* Chooses the newest checkpoint that all workers find. Their disks may be separate, and may not all have the
 * last manifest. */
static ddp_status ddp__checkpoint_choose(const ddp__worker *s, const char *folder, uint64_t *words,
                                         long *step, ddp_error *err)
{
    long below = LONG_MAX, newest, least, most;

    do {
        DDP__TRY(ddp__checkpoint_newest(folder, below, 1, &newest, err));
        words[s->rank] = (uint64_t)(newest + 2); /* 0 for lost ranks */
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
        return ddp__fail(err, DDP_IO,
                         "%.200s has no complete checkpoint (a folder step-... with manifest.json)", folder);
    return ddp__fail(err, DDP_IO,
                     "%.200s has step %ld on this machine, but no checkpoint that all workers have: without "
                     "a shared disk, start each rank on the machine with its files",
                     folder, newest);
}

/* Ranks with separate disks must not mix checkpoints of different runs. */
static ddp_status ddp__checkpoint_agree(const ddp__worker *s, const ddp__manifest *m, const char *path,
                                        uint64_t *words, ddp_error *err)
{
    const uint64_t run = ddp__hash(DDP__HASH_START, &m->run, sizeof m->run);
    const uint64_t own = ddp__hash(run, m->said, (size_t)m->world * sizeof *m->said);

    words[s->rank] = own;
    DDP__TRY(ddp__worker_gather(s, words, 1, err));
    for (int r = 0; r < s->world; r++)
        if (words[r] && words[r] != own)
            return ddp__fail(err, DDP_MISMATCH,
                             "%.200s: ranks %d and %d have checkpoints of different runs in this folder: use "
                             "the checkpoint of one run on all machines",
                             path, r, s->rank);
    return DDP_OK;
}

/* Chooses the file that a rank reads: for the same part of the model, the file of its own copy. With a
 * different number of copies all files hold the same values except for buffers, and any will do. A rank that
 * was lost when the checkpoint was written has no file, and uses another rank's, as a joining worker would.
 * -1 means that the model was cut differently. */
static ddp_status ddp__checkpoint_rank(const ddp__worker *s, const ddp__manifest *m, int kin,
                                       const char *folder, char *path, int *rank, ddp_error *err)
{
    int first = -1, why = ENOENT;

    *rank = -1;
    for (int c = 0; c < m->copies; c++) {
        for (int r = 0; r < m->world; r++) {
            if (!m->said[r].there || m->said[r].cut != s->cut) continue;
            if ((int)m->said[r].copy != (s->copy + c) % m->copies) continue;
            if (first < 0) first = r;
            ddp__shard_path(path, folder, m->step, r, m->generation);
            *rank = r;
            if (access(path, R_OK) == 0) return DDP_OK;
            if (errno != ENOENT && why == ENOENT) {
                why = errno;
                first = r;
            } /* this file exists but cannot be read: report its error first */
        }
        if (kin && c == 0 && first >= 0) break;
    }
    if (first < 0) return DDP_OK;
    ddp__shard_path(path, folder, m->step, first, m->generation);
    return ddp__fail(err, DDP_IO, "cannot read %.300s: %s: %s", path, strerror(why),
                     why == ENOENT ? "without a shared disk, start each rank on the machine with its files"
                                   : "make the file readable for the user of this rank");
}

/* Loads the files of all ranks of the copy that this worker resumes. */
static ddp_status ddp__copy_load(ddp__worker *s, const ddp__manifest *m, int kin, const char *folder,
                                 char *room, uint64_t *words, ddp_error *err)
{
    ddp__shards *x = NULL;
    ddp__listed listed;
    ddp_status code = ddp__shards_open(&x, s, m->world, err);

    for (int r = 0; code == DDP_OK && r < m->world; r++) {
        if (!m->said[r].there || (int)m->said[r].copy != s->copy % m->copies) continue;
        ddp__shard_path(room, folder, m->step, r, m->generation);
        listed = ddp__manifest_listed(m, r);
        code = ddp__shards_add(x, room, &listed, err);
    }
    if (code == DDP_OK) code = ddp__shards_cover(x, err);
    ddp__checkpoint_path(room, folder, m->step, "/manifest.json");
    if (code == DDP_OK) code = ddp__model_fits(s, m, room, err);
    if (code == DDP_OK) code = ddp__shards_read(x, m->step, kin, err);
    if (code == DDP_OK) code = ddp__worker_gather(s, words, 1, err);
    if (code == DDP_OK) code = ddp__shards_load(x, kin, err);
    ddp__shards_close(x);
    return code;
}

static ddp_status ddp__checkpoint_read(ddp__worker *s, const char *folder, ddp__manifest *m, char *path,
                                       uint64_t *words, ddp__loaded *of, ddp_error *err)
{
    long step = 0;
    int rank, uncut = 1;

    DDP__TRY(ddp__checkpoint_fits(folder, err));
    DDP__TRY(ddp__checkpoint_choose(s, folder, words, &step, err));
    ddp__checkpoint_path(path, folder, step, "/manifest.json");
    DDP__TRY(ddp__manifest_read(path, m, err));
    if (m->step != step)
        return ddp__fail(err, DDP_FORMAT, "%.200s lists step %ld, not the step of its folder", path, m->step);
    if (m->older && s->rank == 0)
        ddp__log(ddp__host_log(s->host), DDP_LOG_WARN,
                 "%.200s: format \"" DDP__MANIFEST_OLDER "\" has no checksum, so a changed "
                 "manifest is not detected; the next save writes \"" DDP__MANIFEST "\"",
                 path);
    of->world = m->world;
    DDP__TRY(ddp__manifest_fits(s, path, m, &of->kin, err));
    DDP__TRY(ddp__checkpoint_agree(s, m, path, words, err));
    DDP__TRY(ddp__checkpoint_rank(s, m, of->kin, folder, path, &rank, err));
    words[s->rank] = rank >= 0 ? 1 : 2;
    DDP__TRY(ddp__worker_gather(s, words, 1, err));
    for (int r = 0; r < s->world; r++)
        uncut &= words[r] != 2; /* every rank finds its own part of the model */
    of->same = of->kin && uncut && m->world == s->world;
    s->takes_plan = of->same;
    DDP__TRY(uncut ? ddp__file_load(s, m, rank, path, words, err)
                   : ddp__copy_load(s, m, of->kin, folder, path, words, err));
    s->run = m->run;
    return ddp__worker_gather(s, words, 1, err); /* either all ranks continue, or no rank does */
}

static ddp_status ddp__checkpoint_chosen_by(ddp__worker *s, const char *folder, uint64_t *words, char *path,
                                            ddp__manifest *m, ddp_error *err)
{
    long step = 0;

    DDP__TRY(ddp__checkpoint_fits(folder, err));
    DDP__TRY(ddp__checkpoint_choose(s, folder, words, &step, err));
    ddp__checkpoint_path(path, folder, step, "/manifest.json");
    return ddp__manifest_read(path, m, err);
}

ddp_status ddp__checkpoint_chosen(ddp__worker *s, const char *folder, ddp__checkpoint_chose *out,
                                  ddp_error *err)
{
    uint64_t *words = (uint64_t *)ddp__calloc((size_t)s->world, sizeof *words);
    ddp__manifest m = DDP__ZEROS;
    char path[DDP__CHECKPOINT_PATH];
    ddp_status code;

    memset(out, 0, sizeof *out);
    if (!words) return ddp__fail(err, DDP_MEMORY, "out of memory for a checkpoint of %d workers", s->world);
    code = ddp__checkpoint_chosen_by(s, folder, words, path, &m, err);
    if (code == DDP_OK && m.wire && m.overlap) {
        snprintf(out->strategy, sizeof out->strategy, "%s", m.strategy);
        snprintf(out->overlap, sizeof out->overlap, "%s", m.overlap);
        snprintf(out->wire, sizeof out->wire, "%s", m.wire);
        out->period = m.period;
    }
    ddp__manifest_free(&m);
    DDP_FREE(words);
    return code;
}

ddp_status ddp__checkpoint_load(ddp__worker *s, const char *folder, ddp__loaded *of, ddp_error *err)
{
    uint64_t *words = (uint64_t *)ddp__calloc((size_t)s->world, sizeof *words);
    ddp__manifest m = DDP__ZEROS;
    char path[DDP__CHECKPOINT_PATH];
    ddp_status code;

    memset(of, 0, sizeof *of);
    if (!words) return ddp__fail(err, DDP_MEMORY, "out of memory for reading a checkpoint");
    code = ddp__checkpoint_read(s, folder, &m, path, words, of, err);
    ddp__manifest_free(&m);
    DDP_FREE(words);
    return code;
}
