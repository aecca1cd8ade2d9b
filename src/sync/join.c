/* Members of a run that newcomers may enter: snapshots, the coordinator's word, entries. */
#include "base/platform.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "sync/device.h"
#include "sync/join.h"
#include "sync/shard.h"

ddp_status ddp__join_open(ddp_ctx *d, ddp__wire *wire, ddp_error *err)
{
    ddp__join *j = (ddp__join *)ddp__calloc(1, sizeof *j);
    char text[DDP__ADDR_TEXT];
    ddp__addr at;
    ddp_status s;
    int r;

    if (!j) return ddp__fail(err, DDP_MEMORY, "out of memory for the service of newcomers");
    j->d = d;
    j->wire = wire;
    j->run_id = ddp__session_run(d);
    j->listen_fd = j->id = -1;
    j->ticket = -1;
    for (r = 0; r < d->world; r++)
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
    d->join = j; /* also where it cannot serve: words and entries concern all */
    at = j->door[d->rank];
    if (!at.size) return DDP_OK;
    ddp__addr_set_port(&at, 0);
    s = ddp__tcp_listen(&at, &j->listen_fd, &at, err);
    if (s == DDP_OK && pthread_create(&j->thread, NULL, ddp__join_main, j))
        s = ddp__fail(err, DDP_MEMORY, "cannot start a thread that serves newcomers");
    if (s != DDP_OK) {
        ddp__join_close(d);
        return s;
    }
    j->threaded = 1;
    ddp__wire_resume_service(wire, ddp__addr_port(&at));
    ddp__log(&d->host.log, DDP_LOG_INFO, "rank %d: newcomers may come to %s", d->rank,
             ddp__addr_text(&j->door[d->rank], text));
    return DDP_OK;
}

void ddp__join_ready(ddp_ctx *d)
{
    ddp__join *j = d->join;

    if (!j) return;
    pthread_mutex_lock(&j->lock);
    j->engine = d->engine;
    j->layout.hash = ddp__layout_hash(d);
    j->layout.strategy = (int)d->cfg.strategy;
    j->layout.period = d->cfg.period;
    j->layout.micro = d->cfg.micro_batches;
    j->layout.coding = (int)ddp__wire_coding(d->cfg.wire);
    ddp__alike(d, j->layout.alike);
    j->layout.layers = d->layers;
    pthread_mutex_unlock(&j->lock);
}

void ddp__join_stop(ddp_ctx *d)
{
    ddp__join *j = d->join;

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

void ddp__join_close(ddp_ctx *d)
{
    ddp__join *j = d->join;

    if (!j) return;
    ddp__join_stop(d);
    if (j->listen_fd >= 0) close(j->listen_fd);
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
    if (j->snap) DDP_FREE(j->snap);
    DDP_FREE(j);
    d->join = NULL;
}

/* ---- at a period's end ---- */

/* The copy is all that the training pays for a newcomer's clone. */
static ddp_status ddp__snapshot_take(ddp_ctx *d, ddp_error *err)
{
    ddp__join *j = d->join;
    ddp__shard shard;
    unsigned char *bytes = NULL;
    size_t n = 0;
    double now = ddp_now();
    ddp_status s;
    int wanted;

    pthread_mutex_lock(&j->lock);
    wanted = j->want_snap && !j->snap_users;
    pthread_mutex_unlock(&j->lock);
    if (!wanted) return DDP_OK;
    DDP__TRY(ddp__average_wait_all(d, err));
    s = ddp__shard_take(d, &shard, err);
    if (s == DDP_OK) {
        n = ddp__shard_bytes(&shard);
        bytes = (unsigned char *)DDP_REALLOC(NULL, n);
        if (bytes) ddp__shard_pack(&shard, bytes);
    }
    ddp__shard_free(&shard);
    DDP__TRY(s);
    if (!bytes) { /* no reason to end the training */
        ddp__log(&d->host.log, DDP_LOG_WARN, "rank %d: out of memory for a clone of %lu bytes",
                 d->rank, (unsigned long)n);
        return DDP_OK;
    }
    pthread_mutex_lock(&j->lock);
    if (j->snap) DDP_FREE(j->snap);
    j->snap = bytes;
    j->snap_bytes = n;
    j->snap_number =
        ddp__hash(ddp__hash(DDP__HASH_START, &now, sizeof now), &d->rank, sizeof(int)) | 1;
    j->want_snap = 0;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    ddp__log(&d->host.log, DDP_LOG_INFO, "rank %d: step %ld is what a newcomer gets, %.1f MiB",
             d->rank, d->step, (double)n / (1 << 20));
    return DDP_OK;
}

ddp_status ddp__join_ask(ddp_ctx *d, ddp_error *err)
{
    ddp__join *j = d->join;
    ddp__message m;

    pthread_mutex_lock(&j->lock);
    j->word = j->id >= 0 && j->ready && d->plan_final ? (float)j->id : -1.0f;
    pthread_mutex_unlock(&j->lock);
    j->piece.data = &j->word;
    j->piece.count = 1;
    memset(&m, 0, sizeof m);
    m.verb = DDP__BROADCAST; /* from rank 0, or the lowest that lives */
    m.pieces = &j->piece;
    m.piece_count = 1;
    m.step = d->step;
    m.layer = DDP__NO_LAYER;
    m.priority = d->layers;
    m.filler = 1;
    return ddp__post(d, &m, 0, &j->ticket, err);
}

static void ddp__join_attach(ddp__wire *w, int id, void *user)
{
    ddp__join *j = (ddp__join *)user;

    ddp__wire_resume_attach(w, id);
    pthread_mutex_lock(&j->lock);
    if (!ddp__wire_resume_where(w, id, &j->door[id])) j->door[id].size = 0;
    pthread_mutex_unlock(&j->lock);
}

static ddp_status ddp__join_admit(ddp_ctx *d, int id, ddp_error *err)
{
    ddp__join *j = d->join;
    double begin = ddp_now();
    ddp_error local;
    ddp_status s;

    DDP__TRY(ddp__average_wait_all(d, err));
    /* the newcomer does not know of these words */
    if (d->measured && d->drift_ticket >= 0)
        DDP__TRY(ddp__post_wait(d, d->drift_ticket, err));
    if (d->measured) d->drift_ticket = -1;
    if (d->pace_ticket >= 0) DDP__TRY(ddp__post_wait(d, d->pace_ticket, err));
    d->pace_ticket = -1;
    DDP__TRY(ddp__device_wait(d, err));
    DDP__TRY(ddp__post_flush(d, err));
    memset(&local, 0, sizeof local);
    s = ddp__engine_admit(d->engine, id, ddp__join_attach, j, &local);
    pthread_mutex_lock(&j->lock);
    if (j->id == id) j->id = -1;
    if (j->snap && !j->snap_users) {
        DDP_FREE(j->snap);
        j->snap = NULL;
        j->snap_number = 0;
    }
    pthread_mutex_unlock(&j->lock);
    if (s == DDP_PEER_LOST) { /* the world is as it was */
        ddp__log(&d->host.log, DDP_LOG_WARN, "rank %d: step %ld: %s", d->rank, d->step, local.msg);
        return DDP_OK;
    }
    if (s != DDP_OK) {
        if (err) *err = local;
        return s;
    }
    DDP__TRY(ddp__join_entry(d, id, err));
    ddp__log(&d->host.log, DDP_LOG_WARN, "rank %d: worker %d has joined at step %ld, in %.2f s",
             d->rank, id, d->step, ddp_now() - begin);
    return DDP_OK;
}

ddp_status ddp__join_step(ddp_ctx *d, ddp_error *err)
{
    ddp__join *j = d->join;
    int id;

    if (!j || d->step % d->cfg.period) return DDP_OK;
    DDP__TRY(ddp__snapshot_take(d, err));
    if (j->ticket >= 0) {
        DDP__TRY(ddp__post_wait(d, j->ticket, err));
        j->ticket = -1;
        id = (int)j->word;
        if (id >= 0 && id < d->world) DDP__TRY(ddp__join_admit(d, id, err));
    }
    return ddp__join_ask(d, err);
}
