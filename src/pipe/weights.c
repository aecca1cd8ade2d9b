/* One weights file of a model whose stages are on several ranks: rank 0 writes what the others send, part by part. */
#include "io/json.h"
#include "pipe/executor.h"

enum { DDP__EXPORT_PART = 1 << 18 }; /* values of a message */

typedef struct ddp__export {
    ddp_pipe *p;
    int       home; /* the stage that writes */
    float    *part; /* [DDP__EXPORT_PART] */
} ddp__export;

static ddp_status ddp__export_pass(void *user, int stage, const float *data, size_t n, ddp__file *f, ddp_error *err)
{
    const ddp__export *x = (const ddp__export *)user;
    ddp_pipe *p = x->p;
    size_t at, now;

    (void)err; /* of the context */
    for (at = 0; at < n; at += now) {
        now = n - at < (size_t)DDP__EXPORT_PART ? n - at : (size_t)DDP__EXPORT_PART;
        if (data) memcpy(x->part, data + at, now * sizeof *x->part);
        DDP__TRY(ddp__word_exchange(p, data ? DDP_SEND : DDP_RECEIVE, data ? x->home : stage, x->part,
                                    now * sizeof *x->part));
        if (!data) ddp__file_put(f, x->part, now * sizeof *x->part);
    }
    return DDP_OK;
}

/* All of the pipeline that has rank 0; the last word says that the file is there. */
static ddp_status ddp__pipe_export(ddp__export *x, const char *path, ddp_error *err)
{
    ddp_pipe *p = x->p;
    ddp_piece piece;
    ddp_message m;
    char done = 1;

    DDP__TRY(ddp__weights_save(p->g, path, ddp__export_pass, x, p->stage == x->home, err));
    if (p->stages == 1) return DDP_OK;
    m = ddp__own_word(p->d, &piece, DDP_BROADCAST, p->team, &done, 1);
    m.peer = ddp__pipe_rank(p, x->home);
    return ddp__run(p->d, &m, 0, err);
}

int ddp_pipe_export(ddp_pipe *p, const char *path)
{
    ddp__export x = {p, -1, NULL};
    ddp_status s;

    if (!p) return (int)DDP_ARG;
    DDP__ENTER(p->d);
    if (!path || !*path) return ddp__ctx_failf(p->d, DDP_ARG, "ddp_pipe_export: a path is needed");
    for (int i = 0; i < p->stages; i++)
        if (ddp__pipe_rank(p, i) == 0) x.home = i;
    if (x.home < 0) return 0;
    x.part = (float *)ddp__calloc(DDP__EXPORT_PART, sizeof *x.part);
    s = x.part ? ddp__pipe_export(&x, path, &p->d->host.error)
               : ddp__fail(&p->d->host.error, DDP_MEMORY, "out of memory for writing %.200s", path);
    if (x.part) DDP_FREE(x.part);
    return s ? ddp__ctx_fail(p->d, &p->d->host.error) : 0;
}
