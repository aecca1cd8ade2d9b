#include "base/platform.h"
#include "report/jsonl.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/json.h"

#define DDP__JSONL_DEPTH 31

struct ddp_jsonl {
    ddp__text line;
    char     *path, *temporary; /* temporary NULL: written directly */
    FILE     *stream;           /* NULL: fd */
    int       fd;
    ddp_error error; /* the first one */
    int       depth; /* open values; 0 = between two lines */
    char      closer[DDP__JSONL_DEPTH + 1];
    int       any[DDP__JSONL_DEPTH + 1]; /* that value has a member already */
};

static ddp_jsonl *ddp__jsonl_new(void)
{
    ddp_jsonl *j = (ddp_jsonl *)ddp__calloc(1, sizeof *j);

    if (j) j->fd = -1;
    return j;
}

static void ddp__jsonl_free(ddp_jsonl *j)
{
    if (j->fd >= 0) close(j->fd);
    ddp__text_free(&j->line);
    if (j->path) DDP_FREE(j->path);
    if (j->temporary) DDP_FREE(j->temporary);
    DDP_FREE(j);
}

ddp_jsonl *ddp_jsonl_open(const char *path, ddp_error *err)
{
    ddp_jsonl *j = ddp__jsonl_new();
    size_t room = path ? strlen(path) + 32 : 32;
    struct stat st;

    if (!path || !*path) {
        ddp__fail(err, DDP_ARG, "the JSON lines file needs a name; an empty one was given");
        if (j) ddp__jsonl_free(j);
        return NULL;
    }
    if (j) {
        j->path = ddp__strdup(path);
        j->temporary = (char *)ddp__calloc(room, 1);
    }
    if (!j || !j->path || !j->temporary) {
        ddp__fail(err, DDP_MEMORY, "cannot write %s: out of memory", path);
        if (j) ddp__jsonl_free(j);
        return NULL;
    }
    if (!stat(path, &st) && !S_ISREG(st.st_mode)) {
        DDP_FREE(j->temporary);
        j->temporary = NULL;
        j->fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        snprintf(j->temporary, room, "%s.tmp.%ld", path, (long)getpid());
        j->fd = open(j->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    }
    if (j->fd < 0) {
        ddp__fail(err, DDP_IO, "cannot write %s: %s", path, strerror(errno));
        ddp__jsonl_free(j);
        return NULL;
    }
    return j;
}

ddp_jsonl *ddp_jsonl_stream(FILE *out, ddp_error *err)
{
    ddp_jsonl *j = ddp__jsonl_new();

    if (!j)
        ddp__fail(err, DDP_MEMORY, "cannot write JSON lines: out of memory");
    else
        j->stream = out;
    return j;
}

static void ddp__jsonl_fail(ddp_jsonl *j, int why)
{
    ddp__fail(&j->error, DDP_IO, "cannot write %s: %s",
              j->path ? j->path : "JSON lines to the stream", strerror(why));
}

/* One write(2) per line, so that a reader of the growing file sees whole lines. */
static void ddp__jsonl_put(ddp_jsonl *j)
{
    size_t done = 0;

    if (j->stream) {
        if (fwrite(j->line.data, 1, j->line.size, j->stream) != j->line.size || fflush(j->stream))
            ddp__jsonl_fail(j, errno);
        return;
    }
    while (done < j->line.size) {
        ssize_t n = write(j->fd, j->line.data + done, j->line.size - done);

        if (n > 0) {
            done += (size_t)n;
        } else if (errno != EINTR) {
            ddp__jsonl_fail(j, n ? errno : ENOSPC);
            return;
        }
    }
}

ddp_status ddp_jsonl_close(ddp_jsonl *j, ddp_error *err)
{
    ddp_status status;

    if (!j) return DDP_OK;
    if (j->depth) ddp_jsonl_end(j);
    if (j->fd >= 0) {
        int fd = j->fd;

        j->fd = -1;
        if (close(fd) && !j->error.code) ddp__jsonl_fail(j, errno);
    }
    if (j->temporary && !j->error.code && rename(j->temporary, j->path)) ddp__jsonl_fail(j, errno);
    status = j->error.code;
    if (status != DDP_OK && err) *err = j->error;
    ddp_jsonl_abandon(j); /* after a rename the temporary name is gone */
    return status;
}

void ddp_jsonl_abandon(ddp_jsonl *j)
{
    if (!j) return;
    if (j->temporary) remove(j->temporary);
    ddp__jsonl_free(j);
}

/* What stands before a member: a comma, and its key where it is one of an object. 0 = drop it. */
static int ddp__jsonl_member(ddp_jsonl *j, const char *key)
{
    if (!j || j->error.code || j->depth < 1) return 0;
    if (j->any[j->depth]) ddp__text_add(&j->line, ",", 1);
    j->any[j->depth] = 1;
    if (j->closer[j->depth] == '}') {
        ddp__json_string(&j->line, key ? key : "");
        ddp__text_add(&j->line, ":", 1);
    }
    return 1;
}

static void ddp__jsonl_nest(ddp_jsonl *j, char opener, char closer)
{
    if (j->depth == DDP__JSONL_DEPTH) {
        ddp__fail(&j->error, DDP_ARG, "cannot write %s: values are nested more than %d deep",
                  j->path ? j->path : "JSON lines", DDP__JSONL_DEPTH - 1);
        return;
    }
    ddp__text_add(&j->line, &opener, 1);
    j->depth++;
    j->closer[j->depth] = closer;
    j->any[j->depth] = 0;
}

void ddp_jsonl_event(ddp_jsonl *j, const char *name)
{
    if (!j || j->error.code) return;
    if (j->depth) ddp_jsonl_end(j);
    j->line.size = 0;
    ddp__jsonl_nest(j, '{', '}');
    if (name) ddp_jsonl_string(j, "event", name);
}

void ddp_jsonl_string(ddp_jsonl *j, const char *key, const char *value)
{
    if (ddp__jsonl_member(j, key)) ddp__json_string(&j->line, value);
}

void ddp_jsonl_integer(ddp_jsonl *j, const char *key, int64_t value)
{
    if (ddp__jsonl_member(j, key)) ddp__text_addf(&j->line, "%" PRId64, value);
}

void ddp_jsonl_number(ddp_jsonl *j, const char *key, double value)
{
    if (ddp__jsonl_member(j, key)) ddp__json_number(&j->line, value);
}

void ddp_jsonl_bool(ddp_jsonl *j, const char *key, int value)
{
    if (ddp__jsonl_member(j, key)) ddp__text_addf(&j->line, "%s", value ? "true" : "false");
}

void ddp_jsonl_array(ddp_jsonl *j, const char *key)
{
    if (ddp__jsonl_member(j, key)) ddp__jsonl_nest(j, '[', ']');
}

void ddp_jsonl_object(ddp_jsonl *j, const char *key)
{
    if (ddp__jsonl_member(j, key)) ddp__jsonl_nest(j, '{', '}');
}

void ddp_jsonl_up(ddp_jsonl *j)
{
    if (!j || j->error.code || j->depth < 2) return;
    ddp__text_add(&j->line, &j->closer[j->depth], 1);
    j->depth--;
}

void ddp_jsonl_integers(ddp_jsonl *j, const char *key, const int *values, int count)
{
    int i;

    ddp_jsonl_array(j, key);
    for (i = 0; i < count; i++) ddp_jsonl_integer(j, NULL, values[i]);
    ddp_jsonl_up(j);
}

void ddp_jsonl_numbers(ddp_jsonl *j, const char *key, const double *values, int count)
{
    int i;

    ddp_jsonl_array(j, key);
    for (i = 0; i < count; i++) ddp_jsonl_number(j, NULL, values[i]);
    ddp_jsonl_up(j);
}

void ddp_jsonl_end(ddp_jsonl *j)
{
    if (!j || j->error.code || j->depth < 1) return;
    while (j->depth > 1) ddp_jsonl_up(j);
    ddp__text_add(&j->line, "}\n", 2);
    j->depth = 0;
    if (j->line.failed)
        ddp__fail(&j->error, DDP_MEMORY, "cannot write %s: out of memory",
                  j->path ? j->path : "JSON lines");
    else
        ddp__jsonl_put(j);
}
