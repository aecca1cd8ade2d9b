/* Saves and loads the state of a context: ddp_checkpoint_save and ddp_checkpoint_load. */
#include "context/clock.h"
#include "context/context.h"
#include "session/part.h"
#include "exchange/average.h"
#include "exchange/events.h"
#include "exchange/post.h"
#include "session/keep.h"
#include "session/serve.h"
#include "session/checkpoint.h"
#include "session/planning.h"
#include "session/session.h"
#include "session/start.h"

static ddp_status ddp__checkpoint_now(ddp_ctx *d, const char *folder, int keep, ddp_error *err)
{
    ddp__worker s;
    ddp_status code;

    code = ddp__worker_list(d, &s, err);
    if (code == DDP_OK) code = ddp__programs_list(d, &s, 0, err);
    if (code == DDP_OK) code = ddp__programs_save(&s, err);
    if (code == DDP_OK) code = ddp__checkpoint_save(&s, folder, keep, ddp__cfg(d)->debug.overwrite, err);
    if (code == DDP_OK) d->session->saves_as = s.run;
    ddp__programs_release(d);
    ddp__worker_free(&s);
    return code;
}

/* Control message that the workers send to servers before a checkpoint: folder, step and micro-batches. */
typedef struct ddp__save_word {
    int64_t step, taken;
    int32_t keep, unused;
    char folder[1000];
} ddp__save_word;

/* Broadcasts the message of the lowest live worker to all ranks. */
static ddp_status ddp__save_told(ddp_ctx *d, ddp__save_word *w, ddp_error *err)
{
    ddp__save_word *all;
    ddp_status s;
    int r = 0;

    if (!ddp__hub_of(d)) return ddp__tell(d, 0, w, sizeof *w, err);
    all = (ddp__save_word *)ddp__calloc((size_t)ddp_world(d), sizeof *all);
    if (!all)
        return ddp__fail(err, DDP_MEMORY, "out of memory for the control messages of %d ranks", ddp_world(d));
    all[ddp_rank(d)] = *w;
    s = ddp__gather_by(ddp__engine_of(d, 0), ddp_rank(d), ddp_world(d), ddp__hub_of(d), all, sizeof *all,
                       err);
    while (s == DDP_OK && r < ddp_world(d) && !all[r].folder[0]) r++;
    if (s == DDP_OK && r < ddp_world(d))
        *w = all[r];
    else if (s == DDP_OK)
        s = ddp__fail(err, DDP_PEER_LOST, "all workers were lost while a checkpoint began");
    DDP_FREE(all);
    return s;
}

static ddp_status ddp__tell_servers(ddp_ctx *d, const char *folder, int keep, ddp_error *err)
{
    ddp__save_word w;

    if (!ddp_servers(d)) return DDP_OK;
    if (strlen(folder) >= sizeof w.folder)
        return ddp__fail(err, DDP_ARG, "ddp_checkpoint_save: with servers a folder has at most %d characters",
                         (int)sizeof w.folder - 1);
    DDP__TRY(DDP__EVENT(d, tell_servers, (d, ddp__self(d), 0)));
    memset(&w, 0, sizeof w);
    w.step = ddp_step(d);
    w.taken = ddp_taken(d);
    w.keep = keep;
    snprintf(w.folder, sizeof w.folder, "%s", folder);
    return ddp__save_told(d, &w, err);
}

ddp_status ddp__checkpoint_told(ddp_ctx *d, ddp_error *err)
{
    ddp__save_word w;

    memset(&w, 0, sizeof w);
    DDP__TRY(ddp__save_told(d, &w, err));
    w.folder[sizeof w.folder - 1] = 0;
    ddp__step_set(d, (long)w.step, w.taken);
    return ddp__checkpoint_now(d, w.folder, w.keep, err);
}

static ddp_status ddp__save(ddp_ctx *d, const char *folder, int keep, ddp_error *err)
{
    if (!ddp__started(d)) DDP__TRY(ddp__session_start(d, err));
    DDP__TRY(ddp__is_in_step(d, "ddp_checkpoint_save"));
    DDP__TRY(ddp__strategy_wait(d, err));
    DDP__TRY(ddp__post_flush(d, err));
    DDP__TRY(ddp__tell_servers(d, folder, keep, err));
    return ddp__checkpoint_now(d, folder, keep, err);
}

int ddp_checkpoint_save(ddp_ctx *d, const char *folder, int keep)
{
    DDP__ENTER(d);
    if (!folder || !*folder || keep < 0)
        return ddp__ctx_failf(d, DDP_ARG, "ddp_checkpoint_save: a folder and keep >= 0 are needed");
    if (!ddp__clock_outside(d))
        return ddp__ctx_failf(d, DDP_USAGE,
                              "ddp_checkpoint_save: step %ld is in progress; save after ddp_step_end",
                              ddp_step(d));
    return ddp__save(d, folder, keep, ddp__error(d)) ? ddp__ctx_fail(d, ddp__error(d)) : 0;
}

/* Clears the residuals of the edges, which belong to other stages or replicas, or to the averages of another
 * run. */
static void ddp__residuals_clear(ddp_ctx *d, const char *folder)
{
    if (!d->session->cut || !d->session->cut->residuals) return;
    memset(d->session->cut->residual, 0, d->session->cut->residuals * sizeof(float));
    if (ddp_rank(d) == 0)
        ddp__log(ddp__log_of(d), DDP_LOG_INFO,
                 "the checkpoint in %.200s is of other stages or replicas, or of another strategy or period: "
                 "its edge residuals start at zero",
                 folder);
}

/* Continues with the strategy that the run of the checkpoint had chosen. */
static ddp_status ddp__load_choice(ddp_ctx *d, const char *folder, ddp_error *err)
{
    ddp__worker s;
    ddp__checkpoint_chose of;
    ddp_chosen c = DDP__ZEROS;
    ddp_overlap overlap = DDP_OVERLAP_DEFAULT;
    ddp_wire wire = DDP_WIRE_DEFAULT;
    ddp_status code = ddp__worker_list(d, &s, err);

    if (code == DDP_OK) code = ddp__checkpoint_chosen(&s, folder, &of, err);
    ddp__worker_free(&s);
    if (code != DDP_OK || !of.strategy[0]) return code;
    c.strategy = (int)ddp__strategies_of(d)->named(of.strategy);
    c.period = of.period;
    if (c.strategy == DDP_STRATEGY_DEFAULT || !ddp__overlap_named(of.overlap, &overlap) ||
        !ddp_wire_named(of.wire, &wire))
        return ddp__fail(
            err, DDP_FORMAT,
            "the checkpoint in %.200s has strategy %.31s, overlap %.15s and wire %.15s, unknown to this "
            "version; load it with the version that saved it",
            folder, of.strategy, of.overlap, of.wire);
    c.overlap = (int)overlap;
    c.wire = (int)wire;
    ddp__chosen_name(d, &c, "the run of the checkpoint had chosen it");
    DDP__TRY(ddp__choose_as(d, &c, err));
    if (ddp__leads(d))
        ddp__log(ddp__log_of(d), DDP_LOG_INFO,
                 "continues with %s, which the run of the checkpoint had chosen", c.name);
    return DDP_OK;
}

static ddp_status ddp__load(ddp_ctx *d, const char *folder, int *world, ddp_error *err)
{
    ddp__worker s;
    ddp__loaded of = {0, 0, 0};
    ddp_status code;

    if (!ddp__started(d)) DDP__TRY(ddp__session_start(d, err));
    DDP__TRY(ddp__post_flush(d, err));
    if (ddp__ops(d)->choose) DDP__TRY(ddp__load_choice(d, folder, err));
    code = ddp__worker_list(d, &s, err);
    if (code == DDP_OK) code = ddp__programs_list(d, &s, 0, err);
    if (code == DDP_OK) code = ddp__checkpoint_load(&s, folder, &of, err);
    if (code == DDP_OK) code = ddp__worker_apply(d, &s, of.same, err);
    if (code == DDP_OK) code = ddp__programs_load(d, &s, err);
    if (code == DDP_OK && !of.kin) ddp__coded_start(d, 1);
    if (code == DDP_OK && !of.same) ddp__residuals_clear(d, folder);
    if (code == DDP_OK && of.kin && !of.same && ddp_rank(d) == 0 && ddp__ops(d)->plan_make)
        ddp__log(ddp__log_of(d), DDP_LOG_INFO,
                 "the checkpoint in %.200s has another cut: strategy %s makes a new plan", folder,
                 ddp__ops(d)->name);
    *world = of.world;
    ddp__worker_free(&s);
    return code;
}

int ddp_checkpoint_load(ddp_ctx *d, const char *folder, int *world)
{
    int of = 0;

    DDP__ENTER(d);
    if (!folder || !*folder) return ddp__ctx_failf(d, DDP_ARG, "ddp_checkpoint_load: no folder");
    if (ddp__is_in_step(d, "ddp_checkpoint_load")) return ddp__ctx_fail(d, ddp__error(d));
    if (ddp_step(d) || !ddp__clock_outside(d))
        return ddp__ctx_failf(d, DDP_USAGE, "ddp_checkpoint_load: step %ld has begun; load before the first",
                              ddp_step(d));
    if (ddp__load(d, folder, &of, ddp__error(d))) return ddp__ctx_fail(d, ddp__error(d));
    if (world) *world = of;
    return 0;
}
