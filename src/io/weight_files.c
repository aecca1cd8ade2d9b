/* Opens the safetensors files of a model's weights: one file, an index of shards, or a folder. */
#include "io/json.h"
#include "io/weight_files.h"

#include <dirent.h>

#define DDP__WEIGHT_INDEX "model.safetensors.index.json"

static int ddp__weight_path_ends(const char *path, const char *ending)
{
    const size_t n = strlen(path), k = strlen(ending);

    return n > k && !strcmp(path + n - k, ending);
}

/* Opens FOLDER/NAME, or NAME if folder is NULL, and appends it. */
static ddp_status ddp__weight_files_add(ddp__weight_files *files, const char *folder, const char *name,
                                        ddp_error *err)
{
    const int room = ddp__reserve(files->list, ddp__count(files->list) + 1);
    ddp__weight_file added = DDP__ZEROS;
    ddp__text path = DDP__ZEROS;

    ddp__text_addf(&path, "%s%s%s", folder ? folder : "", folder ? "/" : "", name);
    if (!room || path.failed) {
        ddp__text_free(&path);
        return ddp__fail(err, DDP_MEMORY, "%.200s: out of memory for a list of files", name);
    }
    added.path = path.data;
    added.f = ddp_safetensors_open(path.data, err);
    stbds_arrput(files->list, added);
    return added.f ? DDP_OK : err ? err->code : DDP_FORMAT;
}

/* ---- index of shards ---- */

static ddp__weight_file *ddp__weight_file_named(const ddp__weight_files *files, size_t folder,
                                                const char *name)
{
    for (int i = 0; i < ddp__count(files->list); i++)
        if (!strcmp(files->list[i].path + folder + 1, name)) return &files->list[i];
    return NULL;
}

/* Opens the shards of an index. Each entry of its map gives the shard of a tensor. */
static ddp_status ddp__weight_index_shards(ddp__weight_files *files, const char *path, const char *folder,
                                           const ddp__json *map, ddp_error *err)
{
    for (const ddp__json *v = map->first; v; v = v->next) {
        ddp_error why = {DDP_OK, ""};
        ddp__weight_file *shard;
        if (v->kind != DDP__JSON_STRING || !*v->string || strchr(v->string, '/'))
            return ddp__fail(err, DDP_FORMAT,
                             "%.200s, line %d: the shard of tensor \"%.60s\" must be the name of a file in "
                             "the folder of the index",
                             path, v->line, v->key);
        shard = ddp__weight_file_named(files, strlen(folder), v->string);
        if (!shard && ddp__weight_files_add(files, folder, v->string, &why) != DDP_OK)
            return ddp__fail(err, why.code, "%.280s; %.100s needs this shard", why.msg, path);
        if (!shard) shard = &stbds_arrlast(files->list);
        if (!ddp_safetensors_find(shard->f, v->key))
            return ddp__fail(err, DDP_FORMAT,
                             "%.120s has no tensor \"%.60s\", but %.100s says that it is there: download the "
                             "index and all shards of one version",
                             shard->path, v->key, path);
    }
    if (ddp__count(files->list)) return DDP_OK;
    return ddp__fail(err, DDP_FORMAT, "%.200s: its weight_map is empty", path);
}

static ddp_status ddp__weight_index_open(ddp__weight_files *files, const char *path, ddp_error *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = ddp__strdup(slash ? path : ".");
    ddp_error why = {DDP_OK, ""};
    ddp__json *root = NULL;
    const ddp__json *map;
    ddp_status code = DDP_OK;

    if (!folder) return ddp__fail(err, DDP_MEMORY, "out of memory while opening %.200s", path);
    if (slash) folder[slash - path] = 0;
    root = ddp__json_read(path, &why);
    if (!root) code = ddp__fail(err, why.code, "%s", why.msg);
    if (root) code = ddp__json_need(path, root, "weight_map", DDP__JSON_OBJECT, &map, err);
    if (code == DDP_OK) code = ddp__weight_index_shards(files, path, folder, map, err);
    ddp__json_free(root);
    DDP_FREE(folder);
    return code;
}

/* ---- folder ---- */

/* Finds the next file name after `after` with that ending, in alphabetical order. Returns "" after the
 * last. */
static ddp_status ddp__weight_folder_next(const char *folder, const char *after, const char *ending,
                                          char *next, size_t room, ddp_error *err)
{
    DIR *d = opendir(folder);
    struct dirent *entry;

    *next = 0;
    if (!d) return ddp__fail(err, DDP_IO, "cannot read %.200s: %s", folder, strerror(errno));
    while ((entry = readdir(d)) != NULL)
        if (ddp__weight_path_ends(entry->d_name, ending) && strcmp(entry->d_name, after) > 0 &&
            (!*next || strcmp(entry->d_name, next) < 0))
            snprintf(next, room, "%s", entry->d_name);
    closedir(d);
    return DDP_OK;
}

/* Checks that all shards exist, for names such as NAME-00002-of-00003.safetensors. The error names the first
 * missing shard. */
static ddp_status ddp__weight_folder_whole(const ddp__weight_files *files, const char *folder, ddp_error *err)
{
    const char *name = files->list[0].path + strlen(folder) + 1, *of = strstr(name, "-of-"), *digit = of;
    char wanted[300];
    long count;

    while (digit && digit > name && digit[-1] >= '0' && digit[-1] <= '9') digit--;
    if (!of || digit == of) return DDP_OK;
    count = strtol(of + 4, NULL, 10);
    for (long i = 1; i <= count && i <= 100000; i++) {
        snprintf(wanted, sizeof wanted, "%.*s%0*ld%.200s", (int)(digit - name), name, (int)(of - digit), i,
                 of);
        if (ddp__weight_file_named(files, strlen(folder), wanted)) continue;
        return ddp__fail(err, DDP_IO, "%.160s has %d of %ld shards: %.160s is missing; download it again",
                         folder, ddp__count(files->list), count, wanted);
    }
    return DDP_OK;
}

static ddp_status ddp__weight_folder_open(ddp__weight_files *files, const char *folder, ddp_error *err)
{
    char name[256] = "", next[256];
    ddp__text index = DDP__ZEROS;
    ddp_status code = DDP_OK;
    int there;

    ddp__text_addf(&index, "%s/" DDP__WEIGHT_INDEX, folder);
    there = !index.failed && access(index.data, F_OK) == 0;
    if (index.failed)
        code = ddp__fail(err, DDP_MEMORY, "out of memory while opening %.200s", folder);
    else if (there)
        code = ddp__weight_index_open(files, index.data, err);
    ddp__text_free(&index);
    if (code != DDP_OK || there) return code;
    for (;;) {
        DDP__TRY(ddp__weight_folder_next(folder, name, ".safetensors", next, sizeof next, err));
        if (!*next) break;
        DDP__TRY(ddp__weight_files_add(files, folder, next, err));
        memcpy(name, next, sizeof name);
    }
    if (ddp__count(files->list)) return ddp__weight_folder_whole(files, folder, err);
    return ddp__fail(err, DDP_IO,
                     "%.200s has no weights: neither " DDP__WEIGHT_INDEX
                     " nor a file that ends in .safetensors "
                     "is there; PyTorch's .bin and .pt files have to be converted",
                     folder);
}

/* ---- any kind of path ---- */

ddp_status ddp__weight_files_open(ddp__weight_files *files, const char *path, ddp_error *err)
{
    struct stat st;

    memset(files, 0, sizeof *files);
    if (!path) return ddp__fail(err, DDP_ARG, "the name of the weights file or folder is NULL");
    if (!stat(path, &st) && S_ISDIR(st.st_mode)) return ddp__weight_folder_open(files, path, err);
    if (ddp__weight_path_ends(path, ".json")) return ddp__weight_index_open(files, path, err);
    return ddp__weight_files_add(files, NULL, path, err);
}

void ddp__weight_files_close(ddp__weight_files *files)
{
    for (int i = 0; i < ddp__count(files->list); i++) {
        ddp_safetensors_close(files->list[i].f);
        DDP_FREE(files->list[i].path);
    }
    ddp__array_free(files->list);
    memset(files, 0, sizeof *files);
}
