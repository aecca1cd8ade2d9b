/* Admits joining workers during a run: the work of the members in a step, and the start of the joining
 * worker. */
#include "config/settings.h"
#include "context/context.h"
#include "device/device.h"
#include "exchange/average.h"
#include "exchange/events.h"
#include "exchange/exchange.h"
#include "exchange/post.h"
#include "exchange/sites.h"
#include "measure/measure.h"
#include "measure/pace.h"
#include "member/rest.h"
#include "session/admission.h"
#include "session/keep.h"
#include "session/part.h"
#include "session/planning.h"
#include "session/session.h"
#include "session/start.h"

static void ddp__join_settings(const ddp_ctx *d, ddp__join_config *c)
{
    memset(c, 0, sizeof *c);
    c->rank = ddp_rank(d);
    c->world = ddp_world(d);
    c->min_world = ddp__cfg(d)->elastic.min_world;
    c->run_id = ddp__run_id(ddp__cfg(d)->run_id);
    c->addr = ddp__cfg(d)->addr;
    c->insecure = ddp__cfg(d)->security.insecure;
    c->tls = d->session->tls;
    c->connect_timeout_s = ddp__cfg(d)->timeout.connect_s;
    c->peer_timeout_s = ddp__cfg(d)->timeout.peer_s;
    c->op_timeout_s = ddp__cfg(d)->timeout.op_s;
    c->congestion = ddp__cfg(d)->no_env ? NULL : getenv("DREAMDDP_TCP_CONGESTION");
    c->log = *ddp__log_of(d);
}

DDP_STATIC_ASSERT((int)DDP__JOIN_SAMES == (int)DDP_SAME, "a joining worker sends all numbers of ddp_same");

static void ddp__layout_fill(const ddp_ctx *d, ddp__join_layout *l)
{
    uint64_t model = ddp__model_hash(d);
    ddp__join_says *s = &l->says;
    ddp__setting setting[DDP__JOIN_SETTINGS];

    memset(l, 0, sizeof *l);
    s->hash = ddp__hash(ddp__layout_hash(d), &model, sizeof model);
    s->layers = ddp__layers(d);
    snprintf(s->how, sizeof s->how, "%.40s with period %d, %d micro-batches and wire %s", ddp__ops(d)->name,
             ddp__cfg(d)->period, ddp__cfg(d)->micro_batches, ddp_wire_name(ddp__cfg(d)->wire));
    l->chosen[0] = d->session->chosen.strategy;
    l->chosen[1] = (int)ddp__cfg(d)->outer.overlap;
    l->chosen[2] = (int)ddp__cfg(d)->wire;
    l->chosen[3] = ddp__cfg(d)->period;
    memcpy(s->same, d->session->same, sizeof s->same);
    ddp__program_names(d, s->states);
    s->settings = ddp__settings(d, 1, setting);
    for (int i = 0; i < s->settings; i++) {
        s->value[i] = setting[i].value;
        l->name[i] = setting[i].name;
    }
}

/* ---- members ---- */

ddp_status ddp__admission_open(ddp_ctx *d, ddp__wire *wire, ddp_error *err)
{
    ddp__join_config c;

    ddp__join_settings(d, &c);
    d->session->join_ticket = -1;
    return ddp__join_open(&c, wire, &d->session->join, err);
}

void ddp__admission_ready(ddp_ctx *d)
{
    ddp__join_layout l;

    if (ddp__ops(d)->choose) return; /* a joining worker needs the choice */
    ddp__layout_fill(d, &l);
    ddp__join_ready(d->session->join, ddp__engine_of(d, 0), &l);
}

/* Posts the next control message of the coordinator, on members and joining workers. */
static ddp_status ddp__admission_ask(ddp_ctx *d, ddp_error *err)
{
    ddp_piece p; /* sent by rank 0, or by the lowest live rank */
    const ddp_message m =
        ddp__own_word(d, &p, DDP_BROADCAST, 0, &d->session->join_word, sizeof d->session->join_word);

    d->session->join_word = d->session->plan_final ? ddp__join_next(d->session->join) : -1;
    return ddp__post(d, &m, 0, &d->session->join_ticket, err);
}

/* Joining worker: begins to receive the arrays of the state, and waits for those that the first step
 * needs. */
static ddp_status ddp__entry_rest(ddp_ctx *d, ddp__worker *s, ddp_error *err)
{
    const ddp__tls_files files = {ddp__cfg(d)->security.psk, ddp__cfg(d)->security.ca,
                                  ddp__cfg(d)->security.cert, ddp__cfg(d)->security.key};
    ddp__rest *rest = NULL;
    ddp__join_config c;
    ddp__tls *tls = NULL;

    ddp__join_settings(d, &c);
    ddp__worker_turns(d, s);
    if (d->session->tls) DDP__TRY(ddp__tls_open(&files, c.run_id, &tls, err));
    DDP__TRY(ddp__rest_open(&c, ddp__joiner_found(d->session->joiner), tls, s, &rest, err));
    ddp__later_set(d, rest);
    return ddp__later_wait(d, DDP__REST_NOW, err);
}

/* Runs the first operations of an epoch with a joining worker: it receives the state, and the plan is
 * recomputed. */
static ddp_status ddp__entry(ddp_ctx *d, int newcomer, ddp_error *err)
{
    ddp__worker s;
    ddp_status code = ddp__worker_list(d, &s, err);

    if (code == DDP_OK) code = ddp__programs_list(d, &s, 0, err);
    if (code == DDP_OK) ddp__programs_take(d, &s);
    if (code == DDP_OK) code = ddp__worker_enter(&s, newcomer, err);
    if (code == DDP_OK && ddp_rank(d) == newcomer) {
        d->session->plan_final = 1;
        code = ddp__worker_apply(d, &s, 1, err);
        if (code == DDP_OK) code = ddp__worker_follow(d, &s, err);
        if (code == DDP_OK) code = ddp__programs_load(d, &s, err);
        if (code == DDP_OK) code = ddp__entry_rest(d, &s, err);
    } else if (code == DDP_OK) {
        ddp__worker_turns(d, &s);
        code = ddp__join_rest(d->session->join, &s, err);
    }
    ddp__programs_release(d);
    ddp__worker_free(&s);
    if (code == DDP_OK) code = ddp__levels_again(d, err);
    if (code != DDP_OK || !ddp__follows(d) || !ddp__ops(d)->plan_make) return code;
    return ddp__plan_again(d, err);
}

static ddp_status ddp__admit(ddp_ctx *d, int id, ddp_error *err)
{
    double begin = ddp_now();
    int in = 0;

    DDP__TRY(ddp__strategy_drain(d, err)); /* a joining worker cannot receive the work that the members
                                              have deferred */
    /* the joining worker does not take part in these messages */
    if (ddp__follows(d) && d->session->drift_ticket >= 0)
        DDP__TRY(ddp__post_wait(d, 0, d->session->drift_ticket, err));
    if (ddp__follows(d)) d->session->drift_ticket = -1;
    DDP__TRY(ddp__pace_wait(d, err));
    DDP__TRY(ddp__device_wait(d, err));
    DDP__TRY(ddp__post_flush(d, err));
    DDP__TRY(ddp__join_admit(d->session->join, id, &in, err));
    if (!in) return DDP_OK;
    DDP__TRY(ddp__entry(d, id, err));
    ddp__log(ddp__log_of(d), DDP_LOG_WARN, "rank %d: worker %d has joined at step %ld, in %.2f s",
             ddp_rank(d), id, ddp_step(d), ddp_now() - begin);
    return DDP_OK;
}

/* Gives a joining worker the state of this member. No message is in flight. */
static ddp_status ddp__admission_clone(ddp_ctx *d, ddp_error *err)
{
    ddp__worker s;
    ddp_status code;

    DDP__TRY(ddp__strategy_wait(d, err));
    code = ddp__worker_list(d, &s, err);
    ddp__worker_rest_drop(&s);
    if (code == DDP_OK) code = ddp__programs_list(d, &s, DDP__WORKER_EARLY, err);
    if (code == DDP_OK) code = ddp__programs_save(&s, err);
    if (code == DDP_OK) code = ddp__join_give(d->session->join, &s, err);
    ddp__programs_release(d);
    ddp__worker_free(&s);
    return code;
}

ddp_status ddp__admission_step(ddp_ctx *d, ddp_error *err)
{
    int id;

    DDP__TRY(ddp__later_wait(d, DDP__REST_ALL, err)); /* the members release their copies one period later */
    ddp__join_aged(d->session->join);
    if (ddp__join_wants(d->session->join)) DDP__TRY(ddp__admission_clone(d, err));
    if (d->session->join_ticket >= 0) {
        DDP__TRY(ddp__post_wait(d, 0, d->session->join_ticket, err));
        d->session->join_ticket = -1;
        id = (int)d->session->join_word;
        if (id >= 0 && id < ddp_world(d)) DDP__TRY(ddp__admit(d, id, err));
    }
    return ddp__admission_ask(d, err);
}

/* ---- joining workers ---- */

/* Applies the choice of the run to a joining worker under a strategy that chooses. */
static ddp_status ddp__arrival_choice(ddp_ctx *d, const int chosen[DDP__JOIN_CHOSEN], ddp_error *err)
{
    ddp_chosen c = DDP__ZEROS;

    if (!ddp__ops(d)->choose) return DDP_OK;
    if (!chosen[0])
        return ddp__fail(err, DDP_MISMATCH,
                         "cannot join with strategy %s: the run does not use it; set the strategy of the run",
                         ddp__ops(d)->name);
    c.strategy = chosen[0];
    c.overlap = chosen[1];
    c.wire = chosen[2];
    c.period = chosen[3];
    DDP__TRY(ddp__strategy_replace(d, &c, err));
    ddp__chosen_name(d, &c, "the run had chosen it before this worker joined");
    d->session->chosen = c;
    ddp__stats(d)->chosen = &d->session->chosen;
    return DDP_OK;
}

ddp_status ddp__arrival_open(ddp_ctx *d, ddp_error *err)
{
    const ddp__join_place *place;
    ddp__join_config c;

    DDP__TRY(ddp__session_tls(d, err));
    ddp__join_settings(d, &c);
    DDP__TRY(ddp__joiner_open(&c, &d->session->joiner, err));
    place = ddp__joiner_found(d->session->joiner);
    DDP__TRY(ddp__arrival_choice(d, place->chosen, err));
    DDP__TRY(ddp__context_joins(d, place->id, place->world, place->min_world, err));
    ddp__joining_set(d, DDP__JOINS);
    ddp__log(ddp__log_of(d), DDP_LOG_INFO, "joins as rank %d of %d", ddp_rank(d), ddp_world(d));
    return DDP_OK;
}

void ddp__arrival_close(ddp_ctx *d)
{
    ddp__joiner_close(d->session->joiner);
    d->session->joiner = NULL;
    ddp__programs_drop(d);
    if (ddp__joining_of(d) == DDP__JOINS) ddp__joining_set(d, DDP__JOINS_NOT);
}

static ddp_status ddp__arrival_try(ddp_ctx *d, double until, ddp_error *err)
{
    ddp__wire *wire = NULL;
    ddp__engine *engine = NULL;
    ddp__join_layout l;
    ddp__worker state;
    ddp_status s = ddp__worker_list(d, &state, err);

    ddp__layout_fill(d, &l);
    ddp__worker_rest_drop(&state);
    if (s == DDP_OK) s = ddp__programs_list(d, &state, DDP__WORKER_EARLY, err);
    if (s == DDP_OK) s = ddp__joiner_prepare(d->session->joiner, &l, &state, until, &wire, err);
    if (s == DDP_OK) s = ddp__worker_apply(d, &state, 1, err);
    if (s == DDP_OK) ddp__programs_keep(d, &state);
    ddp__worker_free(&state);
    DDP__TRY(s);
    ddp__coded_start(d, 0); /* the donor itself sends its remaining residuals */
    s = ddp__admission_open(d, wire, err);
    if (s != DDP_OK) wire->table->close(wire);
    if (s == DDP_OK)
        s = ddp__engine_start(d, wire, ddp__links_of(d, 0), 1, ddp__joiner_found(d->session->joiner)->live,
                              &engine, err);
    ddp__engine_set(d, engine);
    if (s == DDP_OK) s = ddp__session_pieces(d, err);
    if (s == DDP_OK) s = ddp__joiner_wait(d->session->joiner, engine, err);
    if (s == DDP_OK) return s;
    ddp__join_stop(d->session->join);
    ddp__engine_set(d, NULL);
    if (engine) ddp__engine_close(engine);
    ddp__join_close(d->session->join);
    d->session->join = NULL;
    return s;
}

ddp_status ddp__arrival_enter(ddp_ctx *d, ddp_error *err)
{
    double until = ddp_now() + ddp__cfg(d)->timeout.connect_s;
    ddp_error local;
    ddp_status s;

    for (;;) {
        memset(&local, 0, sizeof local);
        s = ddp__arrival_try(d, until, &local);
        if (s != DDP_PEER_LOST || ddp_now() >= until) break;
        ddp__log(ddp__log_of(d), DDP_LOG_WARN, "rank %d: %s; retrying to join", ddp_rank(d), local.msg);
        ddp__joiner_again(d->session->joiner);
        ddp__sleep_until(ddp_now() + 0.3);
    }
    if (s == DDP_OK) s = ddp__entry(d, ddp_rank(d), &local);
    if (s == DDP_OK) {
        ddp__admission_ready(d);
        s = ddp__admission_ask(d, &local);
    }
    ddp__arrival_close(d);
    if (s != DDP_OK) {
        if (ddp__engine_of(d, 0)) ddp__engine_hush(ddp__engine_of(d, 0));
        if (err && local.code) *err = local; /* else the context already has the error */
        return s;
    }
    ddp__joining_set(d, DDP__HAS_ENTERED);
    ddp__log(ddp__log_of(d), DDP_LOG_INFO, "rank %d: joined at step %ld", ddp_rank(d), ddp_step(d));
    return DDP_OK;
}
