/* Runs pipelines in worlds that shrink. The world that trains ends with any loss. A second, elastic world has
 * all ranks. In it, the survivors agree on the live ranks, on the step to resume from, and on a
 * rendezvous. */
#include "config/settings.h"
#include "exchange/post.h"
#include "pipe/executor.h"
#include "session/launch.h"
#include "session/session.h"
#include "strategy/strategy.h"

typedef struct ddp__survival {
    ddp_config cfg; /* of the world that trains */
    int stages, min_replicas;
    int (*fn)(ddp_ctx *, void *);
    void *user;
} ddp__survival;

/* The state that a rank reports between two worlds. All fields are 0 if the rank is lost. */
typedef struct ddp__survivor {
    int32_t there, opened;
    int64_t step;              /* the newest step it has saved, or -1 */
    uint64_t hub;              /* rendezvous of the next world, from its first rank, for transport threads */
    char addr[DDP__ADDR_TEXT]; /* for tcp */
} ddp__survivor;

/* One rank of the run. */
typedef struct ddp__shrink {
    const ddp__survival *run;
    ddp_ctx *outer, *d;  /* the elastic world. The world that trains, or NULL. */
    ddp__survivor *word; /* [world] of the elastic world */
    ddp__keeper keeper;
    int replicas, was; /* number of whole pipelines. was is the number in the previous world, or -1 without a
                          previous world */
    int place;         /* rank in the next world, or -1 if not in it */
    int first;         /* rank in the elastic world of the next world's rank 0 */
    ddp__hub *hub;
    int listen_fd;
    ddp_error why, lost; /* error that ended the last world, and error of the world before */
} ddp__shrink;

/* ---- agreement in the elastic world ---- */

static ddp_status ddp__shrink_tell(ddp__shrink *s, const ddp__survivor *own, ddp_error *err)
{
    memset(s->word, 0, (size_t)ddp_world(s->outer) * sizeof *s->word);
    s->word[ddp_rank(s->outer)] = *own;
    return ddp__gather_words(s->outer, 0, s->word, sizeof *s->word, err);
}

/* 1 if all ranks of a pipeline are live. */
static int ddp__is_whole(const ddp__shrink *s, int pipeline)
{
    const ddp__survivor *w = s->word + (size_t)pipeline * (size_t)s->run->stages;
    int whole = 1;

    for (int i = 0; i < s->run->stages; i++) whole &= w[i].there;
    return whole;
}

/* From the reports, which are identical on all ranks: the ranks of the next world and the step to resume
 * from. */
static void ddp__shrink_settle(ddp__shrink *s)
{
    const int stages = s->run->stages, rank = ddp_rank(s->outer);
    ddp__keeper *k = &s->keeper;
    int64_t step = INT64_MAX; /* the earliest of the newest steps of all ranks */

    s->replicas = 0;
    s->place = s->first = -1;
    for (int q = 0; q < ddp_world(s->outer) / stages; q++) {
        if (!ddp__is_whole(s, q)) continue;
        if (s->first < 0) s->first = q * stages;
        if (q == rank / stages) s->place = s->replicas * stages + rank % stages;
        s->replicas++;
        for (int i = q * stages; i < (q + 1) * stages; i++)
            if (s->word[i].step < step) step = s->word[i].step;
    }
    if (k->next.step == step && step >= 0) {
        ddp__kept_free(&k->kept);
        k->kept = k->next;
        memset(&k->next, 0, sizeof k->next);
    } else if (k->kept.step != step) {
        ddp__kept_free(&k->kept); /* no rank has a saved step: restart from the beginning */
    }
    ddp__kept_free(&k->next);
}

/* Opens the rendezvous on rank 0 of the next world. */
static ddp_status ddp__shrink_listen(ddp__shrink *s, ddp__survivor *own, ddp_error *err)
{
    const ddp_ctx *d = s->outer;
    ddp__addr at, bound;
    ddp_error local;
    int count = 0;

    if (ddp__cfg(d)->transport == DDP_THREADS) {
        s->hub = ddp__hub_new(s->replicas * s->run->stages);
        own->hub = (uint64_t)(uintptr_t)s->hub;
        return s->hub ? DDP_OK : ddp__fail(err, DDP_MEMORY, "out of memory for a rendezvous of threads");
    }
    if (!ddp__cfg(d)->addr || ddp__addr_parse(ddp__cfg(d)->addr, &bound, 1, &count, &local) ||
        ddp__iface_toward(&bound, &at) < 0)
        ddp__iface_default(&at);
    DDP__TRY(ddp__tcp_listen(&at, &s->listen_fd, &bound, err));
    ddp__addr_text(&bound, own->addr);
    return DDP_OK;
}

/* ---- the world that trains ---- */

static ddp_status ddp__shrink_open(ddp__shrink *s, ddp_error *err)
{
    const ddp__survivor *first = &s->word[s->first];
    ddp_config c = s->run->cfg;

    c.rank = s->place;
    c.world = s->replicas * s->run->stages;
    /* divides evenly: ddp__survival_check */
    c.micro_batches = c.micro_batches * (ddp_world(s->outer) / s->run->stages) / s->replicas;
    c.addr = first->addr;
    if (s->was >= 0) {
        c.network.net_script = NULL; /* its times and ranks apply to the first world only */
        c.debug.overwrite = 1;       /* checkpoints of this run */
    }
    s->d = ddp__open(&c, ddp__built_in(), (ddp__hub *)(uintptr_t)first->hub, s->listen_fd, err);
    s->listen_fd = -1;
    if (!s->d) return err->code;
    s->d->keeper = &s->keeper;
    return DDP_OK;
}

static ddp_status ddp__shrink_few(const ddp__shrink *s, ddp_error *err)
{
    return ddp__fail(err, DDP_PEER_LOST, "%.280s; %d of %d pipelines %s left, min_replicas is %d", s->why.msg,
                     s->replicas, ddp_world(s->outer) / s->run->stages, s->replicas == 1 ? "is" : "are",
                     s->run->min_replicas);
}

/* Agrees on the next world and opens it. *again: a rank failed to, so all ranks retry. */
static ddp_status ddp__shrink_meet(ddp__shrink *s, int *again, ddp_error *err)
{
    const ddp__keeper *k = &s->keeper;
    ddp__survivor own = DDP__ZEROS;
    ddp_status bad = DDP_OK;

    own.there = 1;
    own.step = k->next.step > k->kept.step ? k->next.step : k->kept.step;
    DDP__TRY(ddp__shrink_tell(s, &own, err));
    ddp__shrink_settle(s);
    if (s->why.code && s->replicas == s->was)
        return ddp__fail(err, s->why.code, "%s", s->why.msg); /* no rank is lost */
    s->keeper.ends = s->replicas < s->run->min_replicas;
    if (s->keeper.ends && (s->replicas == 0 || k->kept.step < 0)) return ddp__shrink_few(s, err);
    if (ddp_rank(s->outer) == s->first) bad = ddp__shrink_listen(s, &own, err);
    if (bad == DDP_OK) bad = ddp__shrink_tell(s, &own, err);
    if (bad == DDP_OK && s->place >= 0) {
        bad = s->word[s->first].there ? ddp__shrink_open(s, err) : DDP_PEER_LOST;
        own.opened = bad == DDP_OK;
        if (bad == DDP_PEER_LOST || bad == DDP_TIMEOUT || bad == DDP_NET) bad = DDP_OK; /* all ranks retry */
    }
    if (bad == DDP_OK) bad = ddp__shrink_tell(s, &own, err);
    if (s->listen_fd >= 0) close(s->listen_fd);
    s->listen_fd = -1;
    ddp__hub_free(s->hub); /* the opened world has its own reference */
    s->hub = NULL;
    *again = 0;
    for (int r = 0; r < ddp_world(s->outer); r++)
        if (s->word[r].there && ddp__is_whole(s, r / s->run->stages) && !s->word[r].opened) *again = 1;
    return bad;
}

static ddp_status ddp__shrink_run(ddp__shrink *s, ddp_error *err)
{
    for (;;) {
        int again = 0, code;
        DDP__TRY(ddp__shrink_meet(s, &again, err));
        if (s->place < 0) return DDP_OK;
        s->was = s->replicas;
        ddp__log(ddp__log_of(s->outer), DDP_LOG_INFO,
                 "rank %d is rank %d of %d pipelines of %d stages, resuming at step %ld", ddp_rank(s->outer),
                 s->place, s->replicas, s->run->stages, s->keeper.kept.step < 0 ? 0 : s->keeper.kept.step);
        s->lost = s->why;
        code = again ? (int)DDP_PEER_LOST : s->run->fn(s->d, s->run->user);
        memset(&s->why, 0, sizeof s->why);
        if (code < 0 || code >= (int)DDP_STATUS_COUNT) code = (int)DDP_FAILED;
        if (code == (int)DDP_ABORTED && !ddp__error(s->d)->code)
            return ddp__fail(err, DDP_ABORTED, "rank %d has left on its own; the others continue",
                             ddp_rank(s->outer));
        if (again)
            ddp__fail(&s->why, DDP_PEER_LOST, "a rank could not join a world of %d pipelines", s->replicas);
        else if (code && !ddp__error(s->d)->code)
            ddp__ctx_failf(s->d, (ddp_status)code, "rank %d ended with %s", s->place,
                           ddp_status_text((ddp_status)code));
        if (!again) s->why = *ddp__error(s->d);
        ddp_close(s->d);
        s->d = NULL;
        if (s->why.code == DDP_OK && s->keeper.ends) {
            s->why = s->lost;
            return ddp__shrink_few(s, err);
        }
        if (s->why.code == DDP_OK) return DDP_OK;
        if (s->why.code != DDP_PEER_LOST) return ddp__fail(err, s->why.code, "%s", s->why.msg);
    }
}

/* A rank of the elastic world. */
static int ddp__survive(ddp_ctx *outer, void *user)
{
    ddp__shrink s = DDP__ZEROS;
    ddp_error err = DDP__ZEROS;
    ddp_status code;

    s.run = (const ddp__survival *)user;
    s.outer = outer;
    s.was = s.listen_fd = -1;
    s.keeper.kept.step = s.keeper.next.step = -1;
    s.word = (ddp__survivor *)ddp__calloc((size_t)ddp_world(outer), sizeof *s.word);
    code = s.word
               ? ddp__shrink_run(&s, &err)
               : ddp__fail(&err, DDP_MEMORY, "out of memory for the reports of %d ranks", ddp_world(outer));
    ddp_close(s.d);
    ddp__kept_free(&s.keeper.kept);
    ddp__kept_free(&s.keeper.next);
    if (s.word) DDP_FREE(s.word);
    if (code == DDP_PEER_LOST && s.why.code && strncmp(err.msg, s.why.msg, 40)) {
        char rest[120];
        snprintf(rest, sizeof rest, "%.119s", err.msg);
        ddp__fail(&err, code, "%.270s; %s", s.why.msg, rest);
    }
    if (code != DDP_OK) *ddp__error(outer) = err; /* the other ranks have their own */
    return (int)code;
}

/* ---- entry point ---- */

/* Checks that a smaller world can take over the state of a rank. All other settings are free. */
static ddp_status ddp__survival_check(const ddp__survival *run, ddp_error *err)
{
    const int micro_batches = run->cfg.micro_batches,
              replicas = run->cfg.world / (run->stages > 0 ? run->stages : 1);
    ddp_config c;
    ddp_strategy_ops ops;

    if (run->stages < 1 || run->cfg.world % run->stages)
        return ddp__fail(err, DDP_ARG,
                         "%d stages with %d ranks: the number of ranks must be a multiple of %d", run->stages,
                         run->cfg.world, run->stages);
    if (run->min_replicas < 1 || run->min_replicas > replicas)
        return ddp__fail(err, DDP_ARG, "min_replicas %d with %d pipelines of %d stages: choose 1 to %d",
                         run->min_replicas, replicas, run->stages, replicas);
    if (run->cfg.server.count || run->cfg.elastic.min_world || run->cfg.elastic.join)
        return ddp__fail(
            err, DDP_UNSUPPORTED,
            "min_replicas %d cannot be combined with servers, min_world or join; pipelines support none of "
            "them",
            run->min_replicas);
    if (run->cfg.transport == DDP_SOCKETS)
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "min_replicas %d with transport sockets: survivors need new "
                         "connections; choose tcp, or min_replicas 0",
                         run->min_replicas);
    if (run->cfg.net && strstr(run->cfg.net, ".json"))
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "min_replicas %d with net %.100s: a topology needs all ranks; set a rate and "
                         "a delay instead",
                         run->min_replicas, run->cfg.net);
    for (int r = run->min_replicas; r < replicas; r++)
        if (micro_batches * replicas % r)
            return ddp__fail(
                err, DDP_ARG,
                "min_replicas %d: %d micro-batches in each of %d pipelines cannot be divided among %d; "
                "choose a multiple of %d",
                run->min_replicas, micro_batches, replicas, r, r);
    DDP__TRY(ddp__config_resolve(&run->cfg, ddp__built_in(), &c, &ops, err));
    ddp__config_free(&c);
    if (ops.averages != DDP_AVERAGES_CHANGES) return DDP_OK;
    return ddp__fail(err, DDP_UNSUPPORTED,
                     "min_replicas %d with strategy %s: each replica stores a part of the anchors, "
                     "which is lost with it; choose dreamddp, or min_replicas 0",
                     run->min_replicas, ops.name);
}

/* The elastic world has the same ranks and addresses, and no emulated link. */
static ddp_config ddp__survival_outer(const ddp__survival *run)
{
    const ddp_config *c = &run->cfg;
    ddp_config o = DDP__ZEROS;

    o.strategy = DDP_SSGD;
    o.transport = c->transport;
    o.rank = c->rank;
    o.world = c->world;
    o.addr = c->addr;
    o.run_id = c->run_id;
    o.network.socket_ifname = c->network.socket_ifname;
    o.timeout.connect_s = c->timeout.connect_s;
    o.timeout.join_s = c->timeout.join_s;
    o.timeout.peer_s = c->timeout.peer_s;
    o.timeout.op_s = c->timeout.op_s;
    o.elastic.min_world = run->stages; /* too few pipelines is an error of this module */
    o.security.insecure = c->security.insecure;
    o.security.psk = c->security.psk;
    o.security.ca = c->security.ca;
    o.security.cert = c->security.cert;
    o.security.key = c->security.key;
    o.no_env = c->no_env;
    o.cancel = c->cancel;
    o.allocator = c->allocator;
    o.logger = c->logger;
    return o;
}

int ddp_launch_pipelines(const ddp_config *cfg, int stages, int min_replicas, int (*fn)(ddp_ctx *, void *),
                         void *user, ddp_error *err)
{
    ddp__survival run;
    ddp_config outer;
    ddp_error local;

    if (!err) err = &local;
    memset(err, 0, sizeof *err);
    if (!cfg || !fn)
        return (int)ddp__fail(err, DDP_ARG, "ddp_launch_pipelines: configuration or function is NULL");
    run.cfg = *cfg;
    if (run.cfg.micro_batches < 1) run.cfg.micro_batches = 1;
    run.stages = stages;
    run.min_replicas = min_replicas;
    run.fn = fn;
    run.user = user;
    if (ddp__survival_check(&run, err)) return (int)err->code;
    outer = ddp__survival_outer(&run);
    return ddp_launch(&outer, ddp__survive, &run, err);
}
