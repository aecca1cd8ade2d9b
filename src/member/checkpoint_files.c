/* The files of checkpoints: their names, which are there, which go. */
#include "base/platform.h"
#include "member/checkpoint.h"

#include <dirent.h>

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
        if ((rank < 0 && strncmp(e->d_name, "manifest.json.tmp.", 18) &&
             strncmp(e->d_name, "seen-", 5)) ||
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

ddp_status ddp__checkpoint_prune(const char *folder, long step, int keep, ddp_error *err)
{
    if (keep == 0) return DDP_OK; /* all stay */
    step++;
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
