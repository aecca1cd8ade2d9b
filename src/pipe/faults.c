/* Loss of a rank in a pipeline: names for errors, and saved states from which the survivors resume. */
#include "exchange/events.h"
#include "exchange/post.h"
#include "pipe/executor.h"
#include "session/keep.h"
#include "session/start.h"

void ddp__pipe_names(const ddp_pipe *p)
{
    for (int i = 0; p->stages > 1 && i < ddp_world(p->d); i++) {
        char name[48];
        snprintf(name, sizeof name, "stage %d of pipeline %d", i % p->stages, i / p->stages);
        ddp__engine_call(ddp__engine_of(p->d, 0), p->rank_of[i], name);
        if (ddp__second_of(p->d)) ddp__engine_call(ddp__second_of(p->d), p->rank_of[i], name);
    }
}

/* ---- saved states ---- */

void ddp__kept_free(ddp__kept_step *k)
{
    if (k->bytes) DDP_FREE(k->bytes);
    memset(k, 0, sizeof *k);
    k->step = -1;
}

static ddp_status ddp__kept_take(ddp_ctx *d, ddp__kept_step *k, ddp_error *err)
{
    ddp__kept_step now = {-1, NULL, 0};
    ddp__worker s;
    ddp_status code = ddp__worker_list(d, &s, err);

    if (code == DDP_OK) code = ddp__worker_pack(&s, &now.bytes, &now.size, err);
    ddp__worker_free(&s);
    if (code != DDP_OK) return code;
    now.step = ddp_step(d);
    ddp__kept_free(k);
    *k = now;
    return DDP_OK;
}

/* Returns 1 to save before this step. Strategies that average parameters save once per period only, because
 * saving waits for the averages. Up to a period is then lost. */
static int ddp__keeps_now(const ddp_ctx *d, const ddp__keeper *k)
{
    if (k->kept.step < 0) return 1;
    return k->kept.step != ddp_step(d) &&
           (ddp__ops(d)->averages == DDP_AVERAGES_GRADIENTS || ddp_step(d) % ddp__cfg(d)->period == 0);
}

/* Passing the barrier of a step proves that every rank reached it. The other ranks therefore have the same
 * step, as `kept`, or as `next` if the barrier failed for them. */
ddp_status ddp__pipe_keep(ddp_pipe *p)
{
    ddp_ctx *d = p->d;
    ddp__keeper *k = d->keeper;
    ddp_error *err = ddp__error(d), local;
    ddp_status s;

    if (!k || !ddp__keeps_now(d, k)) return DDP_OK;
    if (!ddp__started(d)) DDP__TRY(ddp__session_start(d, err));
    DDP__TRY(ddp__strategy_wait(d, err));
    DDP__TRY(ddp__post_flush(d, err));
    s = ddp__engine_of(d, 0) ? ddp__all_come(d, 0, err) : DDP_OK;
    if (s == DDP_OK) return ddp__kept_take(d, &k->kept, err);
    (void)ddp__kept_take(d, &k->next, &local); /* if it fails, the previous step remains */
    return s;
}

static ddp_status ddp__pipe_restore(ddp_ctx *d, const ddp__kept_step *k, ddp_error *err)
{
    const char *name = "the saved state of the last step";
    ddp_safetensors *f = ddp_safetensors_from_bytes(name, k->bytes, k->size, err);
    ddp__worker s = DDP__ZEROS;
    ddp_status code;

    if (!f) return err->code;
    code = ddp__started(d) ? DDP_OK : ddp__session_start(d, err);
    if (code == DDP_OK) code = ddp__post_flush(d, err);
    if (code == DDP_OK) code = ddp__worker_list(d, &s, err);
    if (code == DDP_OK) code = ddp__worker_fits(&s, f, name, err);
    if (code == DDP_OK) code = ddp__worker_read(&s, f, k->step, name, err);
    if (code == DDP_OK) code = ddp__worker_load(&s, f, name, err);
    if (code == DDP_OK) code = ddp__worker_apply(d, &s, 1, err);
    if (code == DDP_OK) code = ddp__worker_follow(d, &s, err);
    ddp__worker_free(&s);
    ddp_safetensors_close(f);
    return code;
}

int ddp_pipe_resume(ddp_pipe *p)
{
    if (!p) return (int)DDP_ARG;
    DDP__ENTER(p->d);
    if (!p->d->keeper || p->d->keeper->kept.step < 0) return 0;
    return ddp__pipe_restore(p->d, &p->d->keeper->kept, ddp__error(p->d))
               ? ddp__ctx_fail(p->d, ddp__error(p->d))
               : 0;
}

int ddp_pipe_ends(const ddp_pipe *p) { return p && p->d->keeper && p->d->keeper->ends; }
int ddp_pipe_micro_batches(const ddp_pipe *p) { return p ? p->micro_batches : 0; }
