/* Members of a run that newcomers may enter: the service, clones, entries. */
#include "base/platform.h"
#include "base/tools.h"
#include "base/core.h"
#include "member/elastic.h"
#include "member/join.h"

static ddp_status ddp__join_listen(ddp__join *j, ddp_error *err)
{
    char text[DDP__ADDR_TEXT];
    ddp__addr at = j->door[j->c.rank];

    if (!at.size) return DDP_OK;
    ddp__addr_set_port(&at, 0);
    DDP__TRY(ddp__tcp_listen(&at, &j->listen_fd, &at, err));
    if (pthread_create(&j->thread, NULL, ddp__join_main, j))
        return ddp__fail(err, DDP_MEMORY, "cannot start a thread that serves newcomers");
    j->threaded = 1;
    ddp__wire_resume_service(j->wire, ddp__addr_port(&at));
    ddp__log(&j->c.log, DDP_LOG_INFO, "rank %d: newcomers may come to %s", j->c.rank,
             ddp__addr_text(&j->door[j->c.rank], text));
    return DDP_OK;
}

ddp_status ddp__join_open(const ddp__join_config *c, ddp__wire *wire, ddp__join **out,
                          ddp_error *err)
{
    ddp__join *j = (ddp__join *)ddp__calloc(1, sizeof *j);
    ddp_status s;
    int r;

    *out = NULL;
    if (!j) return ddp__fail(err, DDP_MEMORY, "out of memory for the service of newcomers");
    j->c = *c;
    j->wire = wire;
    j->listen_fd = j->id = -1;
    for (r = 0; r < c->world; r++)
        if (!ddp__wire_resume_where(wire, r, &j->door[r])) j->door[r].size = 0;
    if (pthread_mutex_init(&j->lock, NULL)) {
        DDP_FREE(j);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a lock");
    }
    if (ddp__cond_init(&j->changed)) {
        pthread_mutex_destroy(&j->lock);
        DDP_FREE(j);
        return ddp__fail(err, DDP_MEMORY, "out of memory for a condition");
    }
    s = ddp__tls_open(&c->files, c->run_id, &j->tls, err);
    if (s == DDP_OK) s = ddp__join_listen(j, err);
    if (s == DDP_OK) *out = j; /* also where it cannot serve: words and entries concern all */
    else ddp__join_close(j);
    return s;
}

void ddp__join_ready(ddp__join *j, ddp__engine *engine, const ddp__join_layout *layout)
{
    if (!j) return;
    pthread_mutex_lock(&j->lock);
    j->engine = engine;
    j->layout = *layout;
    pthread_mutex_unlock(&j->lock);
}

void ddp__join_stop(ddp__join *j)
{
    if (!j) return;
    pthread_mutex_lock(&j->lock);
    j->stop = 1;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    if (j->threaded) pthread_join(j->thread, NULL);
    j->threaded = 0;
    pthread_mutex_lock(&j->lock);
    while (j->visitors) pthread_cond_wait(&j->changed, &j->lock);
    pthread_mutex_unlock(&j->lock);
}

void ddp__join_close(ddp__join *j)
{
    if (!j) return;
    ddp__join_stop(j);
    if (j->listen_fd >= 0) close(j->listen_fd);
    ddp__tls_free(j->tls);
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
    if (j->snap) DDP_FREE(j->snap);
    DDP_FREE(j);
}

/* ---- at a period's end ---- */

int ddp__join_wants(ddp__join *j)
{
    int wanted;

    pthread_mutex_lock(&j->lock);
    wanted = j->want_snap && !j->snap_users;
    pthread_mutex_unlock(&j->lock);
    return wanted;
}

ddp_status ddp__join_give(ddp__join *j, const ddp__worker *s, ddp_error *err)
{
    unsigned char *bytes = NULL;
    double now = ddp_now();
    ddp_error local;
    ddp_status code;
    size_t n = 0;

    memset(&local, 0, sizeof local);
    code = ddp__worker_pack(s, &bytes, &n, &local); /* the copy is all that the training pays */
    if (code == DDP_MEMORY) {                      /* no reason to end it */
        ddp__log(&j->c.log, DDP_LOG_WARN, "rank %d: %s", s->rank, local.msg);
        return DDP_OK;
    }
    if (code != DDP_OK) {
        if (err) *err = local;
        return code;
    }
    pthread_mutex_lock(&j->lock);
    if (!j->snap_users) { /* else the one before is on its way again: at the next period's end */
        if (j->snap) DDP_FREE(j->snap);
        j->snap = bytes;
        j->snap_bytes = n;
        j->snap_number =
            ddp__hash(ddp__hash(DDP__HASH_START, &now, sizeof now), &s->rank, sizeof(int)) | 1;
        j->want_snap = 0;
        bytes = NULL;
        pthread_cond_broadcast(&j->changed);
    }
    pthread_mutex_unlock(&j->lock);
    if (bytes) {
        DDP_FREE(bytes);
        return DDP_OK;
    }
    ddp__log(&j->c.log, DDP_LOG_INFO, "rank %d: step %ld is what a newcomer gets, %.1f MiB",
             s->rank, s->step, (double)n / (1 << 20));
    return DDP_OK;
}

int ddp__join_next(ddp__join *j)
{
    int id;

    pthread_mutex_lock(&j->lock);
    id = j->id >= 0 && j->ready ? j->id : -1;
    pthread_mutex_unlock(&j->lock);
    return id;
}

static void ddp__join_attach(ddp__wire *w, int id, void *user)
{
    ddp__join *j = (ddp__join *)user;

    ddp__wire_resume_attach(w, id);
    pthread_mutex_lock(&j->lock);
    if (!ddp__wire_resume_where(w, id, &j->door[id])) j->door[id].size = 0;
    pthread_mutex_unlock(&j->lock);
}

ddp_status ddp__join_admit(ddp__join *j, int id, int *in, ddp_error *err)
{
    ddp_error local;
    ddp_status s;

    memset(&local, 0, sizeof local);
    s = ddp__engine_admit(j->engine, id, ddp__join_attach, j, &local);
    pthread_mutex_lock(&j->lock);
    if (j->id == id) j->id = -1;
    if (j->snap && !j->snap_users) {
        DDP_FREE(j->snap);
        j->snap = NULL;
        j->snap_number = 0;
    }
    pthread_mutex_unlock(&j->lock);
    *in = s == DDP_OK;
    if (s == DDP_PEER_LOST) {
        ddp__log(&j->c.log, DDP_LOG_WARN, "rank %d: %s", j->c.rank, local.msg);
        return DDP_OK;
    }
    if (s != DDP_OK && err) *err = local;
    return s;
}
