/* The writer of JSON lines. */
#include "io/json.h"
#include "report/report.h"

#define DDP__JSONL_DEPTH 31

struct ddp_jsonl {
    ddp__text line;
    ddp__file file;  /* in use if opened is 1 */
    int opened;      /* 0 = the stream belongs to the program */
    FILE *stream;    /* the output */
    ddp_error error; /* the first error */
    int depth;       /* number of open values, or 0 for between two lines */
    char closer[DDP__JSONL_DEPTH + 1];
};

static const char *ddp__jsonl_name(const ddp_jsonl *j)
{
    return j->opened ? ddp__file_name(&j->file) : "JSON lines";
}

ddp_jsonl *ddp_jsonl_stream(FILE *out, ddp_error *err)
{
    ddp_jsonl *j = (ddp_jsonl *)ddp__calloc(1, sizeof *j);

    if (!j)
        ddp__fail(err, DDP_MEMORY, "cannot write JSON lines: out of memory");
    else
        j->stream = out;
    return j;
}

ddp_jsonl *ddp_jsonl_open(const char *path, ddp_error *err)
{
    ddp_jsonl *j;

    if (!path || !*path) {
        ddp__fail(err, DDP_ARG, "the JSON lines file needs a name; an empty one was given");
        return NULL;
    }
    if (!(j = ddp_jsonl_stream(NULL, err))) return NULL;
    if (ddp__file_begin(&j->file, path, err)) {
        DDP_FREE(j);
        return NULL;
    }
    j->opened = 1;
    j->stream = ddp__file_stream(&j->file); /* a reader of the growing file sees complete lines only */
    return j;
}

void ddp_jsonl_abandon(ddp_jsonl *j)
{
    if (!j) return;
    if (j->opened) ddp__file_drop(&j->file);
    ddp__text_free(&j->line);
    DDP_FREE(j);
}

ddp_status ddp_jsonl_close(ddp_jsonl *j, ddp_error *err)
{
    ddp_status status;

    if (!j) return DDP_OK;
    if (j->depth) ddp_jsonl_end(j);
    status = j->error.code;
    if (status != DDP_OK && err) *err = j->error;
    if (status == DDP_OK && j->opened) {
        status = ddp__file_end(&j->file, err);
        j->opened = 0;
    }
    ddp_jsonl_abandon(j);
    return status;
}

/* Writes the prefix of a member: a comma, and the key if the member is in an object. Returns 0 if the
 * member must be dropped. */
static int ddp__jsonl_member(ddp_jsonl *j, const char *key)
{
    if (!j || j->error.code || j->depth < 1) return 0;
    if (j->line.size && !strchr("{[", j->line.data[j->line.size - 1])) ddp__text_add(&j->line, ",", 1);
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
                  ddp__jsonl_name(j), DDP__JSONL_DEPTH - 1);
        return;
    }
    ddp__text_add(&j->line, &opener, 1);
    j->depth++;
    j->closer[j->depth] = closer;
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
    ddp_jsonl_array(j, key);
    for (int i = 0; i < count; i++) ddp_jsonl_integer(j, NULL, values[i]);
    ddp_jsonl_up(j);
}

void ddp_jsonl_end(ddp_jsonl *j)
{
    if (!j || j->error.code || j->depth < 1) return;
    while (j->depth > 1) ddp_jsonl_up(j);
    ddp__text_add(&j->line, "}\n", 2);
    j->depth = 0;
    if (j->line.failed)
        ddp__fail(&j->error, DDP_MEMORY, "cannot write %s: out of memory", ddp__jsonl_name(j));
    else if (fwrite(j->line.data, 1, j->line.size, j->stream) != j->line.size || fflush(j->stream))
        ddp__fail(&j->error, DDP_IO, "cannot write %s: %s", ddp__jsonl_name(j), strerror(errno));
}
