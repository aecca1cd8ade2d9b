/* Saving a checkpoint: every worker its file, and when all are there the lowest live one the
 * manifest; on machines without a shared disk one worker of each writes it. */
#include "base/platform.h"
#include "base/tools.h"
#include "member/checkpoint.h"

typedef struct ddp__saving {
    ddp__worker *s;
    const char *folder;
    int         keep, overwrite;
    int         generation; /* which of their two names this step's files get */
    uint64_t    mark;       /* in the names of this save's empty files */
    int         marked;     /* this worker has left one */
    int         apart;      /* this worker's folder is not that of the lowest live one */
    ddp__text   path;
    uint64_t   *words;      /* of each worker its ddp__worker_hash, then [world] what it says */
} ddp__saving;

static uint64_t ddp__number_of_its_own(void)
{
    uint64_t v = 0;
    double now = ddp_now();
    long pid = (long)getpid();
    time_t date = time(NULL);
    FILE *f = fopen("/dev/urandom", "rb");

    if (f && fread(&v, sizeof v, 1, f) != 1) v = 0;
    if (f) fclose(f);
    v = ddp__hash(ddp__hash(v, &now, sizeof now), &pid, sizeof pid);
    return ddp__hash(v, &date, sizeof date) | 1;
}

/* ---- what other runs have saved ---- */

/* 1 if the folder holds this step of another run, or of one that cannot be read. */
static ddp_status ddp__is_foreign(ddp__saving *v, long step, int *foreign, ddp_error *err)
{
    ddp__manifest m;
    ddp_error unread;

    *foreign = 0;
    DDP__TRY(ddp__checkpoint_path(&v->path, err, "%s/step-%012ld/manifest.json", v->folder, step));
    if (step < 0 || access(v->path.data, F_OK)) return DDP_OK;
    *foreign = ddp__manifest_read(v->path.data, &m, &unread) != DDP_OK || m.run != v->s->run;
    ddp__json_free(m.root);
    return DDP_OK;
}

static ddp_status ddp__refuse_foreign(ddp__saving *v, ddp_error *err)
{
    long step[2];
    int i, foreign;

    step[0] = v->s->step;
    DDP__TRY(ddp__checkpoint_newest(v->folder, LONG_MAX, 1, &step[1], err));
    for (i = 0; i < 2 && !v->overwrite; i++) {
        DDP__TRY(ddp__is_foreign(v, step[i], &foreign, err));
        if (foreign)
            return ddp__fail(err, DDP_ARG, "%.200s holds step %ld of another run: go on from it "
                             "(--resume, ddp_checkpoint_load), save into another folder, or let "
                             "this run replace it (--overwrite, ddp_config.overwrite)", v->folder,
                             step[i]);
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

/* ---- one save ---- */

/* The generation of a step's files that its manifest does not name. */
static int ddp__generation_unused(const char *manifest)
{
    ddp__manifest m;
    ddp_error unread;
    const int used = ddp__manifest_read(manifest, &m, &unread) == DDP_OK && !m.generation;

    ddp__json_free(m.root);
    return used;
}

static ddp_status ddp__save_path(ddp__saving *v, const char *name, ddp_error *err)
{
    return ddp__checkpoint_path(&v->path, err, "%s/step-%012ld/%s", v->folder, v->s->step, name);
}

/* The path of an empty file of this save: the lowest live worker's, with a name that nobody can
 * know before, so that who does not find it has another disk; and one of each of those. */
static ddp_status ddp__mark_path(ddp__saving *v, int rank, ddp_error *err)
{
    char name[40];

    if (rank < 0) snprintf(name, sizeof name, "seen-%016" PRIx64, v->mark);
    else snprintf(name, sizeof name, "seen-%016" PRIx64 "-%04d", v->mark, rank);
    return ddp__save_path(v, name, err);
}

static ddp_status ddp__mark_leave(ddp__saving *v, int rank, ddp_error *err)
{
    int fd;

    DDP__TRY(ddp__mark_path(v, rank, err));
    fd = open(v->path.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return ddp__fail(err, DDP_IO, "cannot write %.200s: %s", v->path.data, strerror(errno));
    close(fd);
    v->marked = 1;
    return DDP_OK;
}

static ddp_status ddp__save_generation(ddp__saving *v, ddp_error *err)
{
    DDP__TRY(ddp__refuse_foreign(v, err));
    DDP__TRY(ddp__save_path(v, "manifest.json", err));
    v->generation = ddp__generation_unused(v->path.data);
    return DDP_OK;
}

/* What the lowest live worker says before a save. */
typedef struct ddp__saved_word {
    uint64_t who; /* its rank + 1, 0: it was not the lowest when it spoke */
    uint64_t mark, generation, run, is_new;
} ddp__saved_word;

/* Which run this is, under which names its files go, and whether that is one disk. Was the lowest
 * lost before it spoke, the next one does. */
static ddp_status ddp__save_meet(ddp__saving *v, ddp_error *err)
{
    ddp__worker *s = v->s;
    ddp__saved_word w;

    memset(&w, 0, sizeof w);
    do {
        if (ddp__worker_first(s)) {
            DDP__TRY(ddp__save_generation(v, err));
            v->mark = ddp__number_of_its_own();
            DDP__TRY(ddp__mark_leave(v, -1, err));
            w.who = (uint64_t)s->rank + 1;
            w.mark = v->mark;
            w.generation = (uint64_t)v->generation;
            w.is_new = s->run == 0;
            w.run = w.is_new ? ddp__number_of_its_own() : s->run;
        }
        DDP__TRY(ddp__worker_spread(s, &w, sizeof w, 0, err));
    } while (!w.who);
    s->run = w.run;
    v->mark = w.mark;
    v->generation = (int)w.generation;
    DDP__TRY(ddp__mark_path(v, -1, err));
    v->apart = access(v->path.data, F_OK) != 0;
    if (!v->apart) return DDP_OK;
    if (w.is_new)
        ddp__log(&s->host->log, DDP_LOG_WARN, "rank %d: %s is not that of rank %d: every machine "
                 "keeps the files of its own ranks, and to go on each has to start where its are",
                 s->rank, v->folder, (int)w.who - 1);
    DDP__TRY(ddp__save_generation(v, err));
    return ddp__mark_leave(v, s->rank, err);
}

/* Whether this worker writes the manifest: the lowest live one, and on each other disk the lowest
 * of those that left a file there. */
static ddp_status ddp__save_writes(ddp__saving *v, int *writes, ddp_error *err)
{
    int r;

    *writes = v->apart || ddp__worker_first(v->s);
    for (r = 0; v->apart && *writes && r < v->s->rank; r++) {
        DDP__TRY(ddp__mark_path(v, r, err));
        if (access(v->path.data, F_OK) == 0) *writes = 0;
    }
    return DDP_OK;
}

/* Goes round when all manifests are there. Was the lowest worker lost before it wrote, nobody says
 * 2: the next one does, and the word goes round again. */
static ddp_status ddp__save_seal(ddp__saving *v, ddp_error *err)
{
    ddp__worker *s = v->s;
    uint64_t *said = v->words + 2 * s->world;
    int r, writes = 0, written = 0, sealed = 0;

    while (!sealed) {
        if (!written) DDP__TRY(ddp__save_writes(v, &writes, err));
        if (writes && !written) {
            DDP__TRY(ddp__save_path(v, "manifest.json", err));
            DDP__TRY(ddp__manifest_write(s, v->path.data, v->words, v->generation, err));
            written = 1;
        }
        said[s->rank] = written && !v->apart ? 2 : 1;
        DDP__TRY(ddp__worker_gather(s, said, 1, err));
        for (r = 0; r < s->world; r++) sealed |= said[r] == 2;
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
    ddp__worker_hash hash;

    v->words = (uint64_t *)ddp__calloc(3 * (size_t)s->world, sizeof *v->words);
    if (!v->words) return ddp__fail(err, DDP_MEMORY, "out of memory for a checkpoint");
    DDP__TRY(ddp__checkpoint_folder(v->folder, err));
    DDP__TRY(ddp__checkpoint_path(&v->path, err, "%s/step-%012ld", v->folder, s->step));
    DDP__TRY(ddp__checkpoint_folder(v->path.data, err));
    DDP__TRY(ddp__save_meet(v, err));
    DDP__TRY(ddp__checkpoint_shard(&v->path, err, v->folder, s->step, s->rank, v->generation));
    DDP__TRY(ddp__worker_write(s, v->path.data, &hash, err));
    v->words[2 * s->rank] = hash.all;
    v->words[2 * s->rank + 1] = hash.common;
    DDP__TRY(ddp__worker_gather(s, v->words, 2, err));
    return ddp__save_seal(v, err);
}

ddp_status ddp__checkpoint_save(ddp__worker *s, const char *folder, int keep, int overwrite,
                                ddp_error *err)
{
    ddp__saving v;
    ddp_status code;

    memset(&v, 0, sizeof v);
    v.s = s;
    v.folder = folder;
    v.keep = keep;
    v.overwrite = overwrite;
    code = ddp__save_all(&v, err);
    if (code != DDP_OK && v.marked && ddp__mark_path(&v, v.apart ? s->rank : -1, NULL) == DDP_OK)
        remove(v.path.data);
    if (v.words) DDP_FREE(v.words);
    ddp__text_free(&v.path);
    return code;
}
