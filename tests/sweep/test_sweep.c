/* [pure, long, test-all: slow] The n-th allocation or system call fails, for every n, once or with all
 * later ones. Every failure must give a one-line error, leak nothing and leave files intact. A call
 * interrupted by a signal must have no effect. (Some scenarios have threads, but ThreadSanitizer checks
 * the same code in other tests.) */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include "sweep/sweep.h"
#include "wire/meet.h"

#include <sys/wait.h>

/* ---- planners, and their input files ---- */

static ddp_status plans(uint64_t *h, ddp_error *err)
{
    ddp_profile p, again, parts;
    ddp_plan_options o;
    ddp_timeline_options to;
    ddp_delayed_options dopt;
    ddp_delayed_plan late;
    ddp_preserver model;
    ddp_preserved judged;
    ddp_knapsack_problem k;
    ddp_timeline t;
    ddp_plan plan;
    const double item[] = {3, 5, 6, 2}, served_bytes[] = {1e6, 2e6};
    ddp_served served = {DDP_SERVING_EACH, 0, 3, 2, 0, served_bytes, NULL, 0.1, 1e7, 0.001};
    double exposed, curve[4], value;
    int *layer_of = NULL, landing[6], assign[4];
    ddp_status s;

    BLANK(p);
    BLANK(again);
    BLANK(parts);
    BLANK(o);
    BLANK(to);
    BLANK(dopt);
    BLANK(late);
    BLANK(model);
    BLANK(k);
    BLANK(t);
    BLANK(plan);
    s = ddp_profile_new(6, &p, err);
    for (int l = 0; !s && l < 6; l++) {
        p.params[l] = 1000 + l;
        p.forward_s[l] = 1;
        p.backward_s[l] = 2;
        p.comm_s[l] = 1 + l % 3;
    }
    if (!s) s = ddp_profile_write(&p, file_named("profile.csv"), err);
    if (!s) s = ddp_profile_read(file_named("profile.csv"), NULL, &again, err);
    if (!s) s = ddp_profile_split(&again, 400, 0, &parts, &layer_of, err);
    if (!s) *h = mixed(*h, layer_of, (size_t)parts.layers * sizeof *layer_of);
    heap_free(layer_of);
    o.period = 3;
    for (int i = DDP_SOLVER_OPTIMAL; !s && i <= DDP_SOLVER_SCATTER; i++) {
        o.solver = (ddp_solver)i;
        o.cost = i == DDP_SOLVER_BRUTE ? DDP_COST_WINDOW : DDP_COST_TIMELINE;
        if ((s = ddp_plan_partial(&again, &o, &plan, err)) != DDP_OK) break;
        *h = mixed(*h, plan.step_of, 6 * sizeof *plan.step_of);
        s = ddp_plan_landing(&again, &plan, landing, &exposed, err);
        if (!s) s = ddp_plan_evaluate(&again, DDP_COST_TIMELINE, &plan, err);
        ddp_plan_free(&plan);
    }
    if (!s) s = ddp_plan_curve(&again, DDP_COST_TIMELINE, 4, curve, err);
    if (!s) *h = mixed(*h, curve, sizeof curve);
    to.partition_s = 1;
    for (int i = DDP_SCHEME_SSGD; !s && i < DDP_SCHEME_DEFT; i++) {
        to.scheme = (ddp_scheme)i;
        if ((s = ddp_plan_timeline(&again, &to, &t, err)) != DDP_OK) break;
        *h = mixed(*h, &t.iteration_s, sizeof t.iteration_s);
        ddp_timeline_free(&t);
    }
    k.items = 4;
    k.item_s = item;
    k.links = 1;
    k.deadline_s[0] = 8;
    if (!s) s = ddp_knapsack(&k, DDP_KNAPSACK_EXACT, assign, &value, err);
    dopt.links = 2;
    dopt.mu = 2;
    if (!s) s = ddp_plan_delayed(&again, &dopt, &late, err);
    if (!s) *h = mixed(*h, &late.iteration_s, sizeof late.iteration_s);
    ddp_delayed_plan_free(&late);
    model.eta = 0.01;
    model.mu = 1;
    model.sigma = 1;
    model.batch = 32;
    model.start = 2;
    if (!s) s = ddp_preserver_plan(&again, &dopt, &model, &late, &judged, err);
    ddp_delayed_plan_free(&late);
    if (!s) s = ddp_served_step(&served, NULL, &value, err);
    if (!s) *h = mixed(*h, &value, sizeof value);
    ddp_profile_free(&p);
    ddp_profile_free(&again);
    ddp_profile_free(&parts);
    return s;
}

static ddp_status choices(uint64_t *h, ddp_error *err)
{
    static const char losses[] = "strategy,workers,steps,loss,period\nssgd,4,400,2,0\nssgd,4,800,1.8,0\n"
                                 "dreamddp,4,400,2.05,5\ndiloco,4,400,2.1,5\n";
    const ddp_candidate list[] = {
        {"wfbp", 0, 0, DDP_AS_FLOAT}, {"dreamddp", 0, 5, DDP_AS_FLOAT}, {"diloco", 0, 5, DDP_AS_FLOAT}};
    ddp_choice_options o;
    ddp_loss_table table;
    ddp_choice best;
    ddp_profile p;
    ddp_status s;

    BLANK(o);
    BLANK(table);
    BLANK(best);
    BLANK(p);
    s = ddp_profile_new(6, &p, err);
    for (int l = 0; !s && l < 6; l++) {
        p.params[l] = 100000;
        p.backward_s[l] = 0.01;
    }
    o.profile = &p;
    o.workers = 4;
    o.rate = 1e6;
    o.steps = 400;
    o.losses = &table;
    o.candidate = list;
    o.candidates = 3;
    if (!s) s = ddp__file_write(file_named("losses.csv"), losses, sizeof losses - 1, err);
    if (!s) s = ddp_loss_table_read(file_named("losses.csv"), &table, err);
    if (!s) s = ddp_choose(&o, &best, err);
    if (!s) *h = mixed(*h, &best.row[best.chosen].seconds, sizeof(double));
    ddp_choice_free(&best);
    ddp_loss_table_free(&table);
    ddp_profile_free(&p);
    return s;
}

static ddp_status places(uint64_t *h, ddp_error *err)
{
    ddp_network n, net;
    ddp_oplist list, again;
    ddp_place_options o;
    ddp_placement best;
    ddp_workload_options work;
    ddp_workload w, smaller;
    ddp_adatopk_options rule;
    ddp_fence_options fo;
    ddp_fence_plan plan;
    double q, length;
    const int device_of[] = {0, 1, 2, 3};
    static const char *const name[] = {"a", "b", "c", "d"};
    int community[4], communities, order[4];
    ddp_status s;

    BLANK(n);
    BLANK(net);
    BLANK(list);
    BLANK(again);
    BLANK(o);
    BLANK(best);
    BLANK(work);
    BLANK(w);
    BLANK(smaller);
    BLANK(rule);
    BLANK(fo);
    BLANK(plan);
    s = ddp_network_new(4, &n, err);
    n.pipelines = n.stages = 2;
    n.dp_bytes = 1e8;
    n.pp_bytes = 1e6;
    n.speed = (double *)heap_realloc(NULL, 4 * sizeof(double));
    if (!s && !n.speed) s = ddp__fail(err, DDP_MEMORY, "the test has no memory for its speeds");
    for (int i = 0; !s && i < 4; i++)
        for (int j = (n.speed[i] = 1e12, 0); j < 4; j++)
            if (i != j) {
                n.rate[4 * i + j] = i / 2 == j / 2 ? 1e9 : 1e7;
                n.delay_s[4 * i + j] = 0.001;
            }
    if (!s) s = ddp_network_write(&n, file_named("net.json"), err);
    if (!s) s = ddp_network_read(file_named("net.json"), NULL, &net, err);
    o.max_candidates = 40;
    for (int i = DDP_PLACE_GENETIC; !s && i <= DDP_PLACE_EXACT; i++) {
        o.solver = (ddp_place_solver)i;
        if ((s = ddp_place(&net, &o, &best, err)) != DDP_OK) break;
        *h = mixed(*h, &best.cost_s, sizeof best.cost_s);
        ddp_placement_free(&best);
    }
    if (!s) s = ddp_louvain(4, net.rate, 1, community, &communities, &q, err);
    if (!s) s = ddp_plan_ring(4, net.rate, net.delay_s, order, &length, err);
    if (!s) s = ddp_tour_open(4, net.delay_s, -1, -1, order, &length, err);
    if (!s) s = ddp_oplist_new(4, &list, err);
    for (int i = 0; !s && i < 4; i++) {
        const int before = i - 1;
        s = ddp_oplist_set(&list, i, name[i], &before, i > 0, 1e9, 1e6, 1e3, err);
    }
    if (!s) s = ddp_oplist_write(&list, file_named("ops.json"), err);
    if (!s) s = ddp_oplist_read(file_named("ops.json"), &again, err);
    if (!s) s = ddp_workload_estimate(&again, &net, device_of, &work, &w, err);
    rule.ratio = 100;
    if (!s) s = ddp_workload_compress(&w, &net, &work, &rule, &smaller, err);
    if (!s) s = ddp_fence(&again, &net, &fo, &plan, err);
    if (!s) *h = mixed(*h, &plan.work.pipeline_s, sizeof plan.work.pipeline_s);
    ddp_fence_plan_free(&plan);
    ddp_workload_free(&smaller);
    ddp_workload_free(&w);
    ddp_oplist_free(&list);
    ddp_oplist_free(&again);
    ddp_network_free(&n);
    ddp_network_free(&net);
    return s;
}

/* ---- reports ---- */

static ddp_status reports(uint64_t *h, ddp_error *err)
{
    const ddp_span spans[] = {{0, 1, 0, 0, DDP_SPAN_BACKWARD, 0}, {0.5, 1.5, 0, 0, DDP_SPAN_COMM, 100}};
    const ddp_report_step steps[] = {{1.5, 2.0, 100, NAN}, {3, 1, 100, NAN}};
    ddp_report_worker worker;
    ddp_report_run run[2];
    ddp_report_data d;
    ddp_jsonl *j;
    ddp_status s;

    BLANK(worker);
    BLANK(run);
    BLANK(d);
    worker.spans = spans;
    worker.count = 2;
    for (int i = 0; i < 2; i++) {
        run[i].strategy = i ? "wfbp" : "ssgd";
        run[i].step_ms = 1500;
        run[i].hidden_pct = 50;
        run[i].time_to_loss_s = NAN;
        run[i].steps = steps;
        run[i].step_count = 2;
        run[i].workers = &worker;
        run[i].worker_count = 1;
    }
    d.title = "a title";
    d.workers = 1;
    d.runs = run;
    d.run_count = 2;
    d.target_loss = NAN;
    s = ddp_report_html(&d, file_named("r.html"), err);
    if (!s) s = ddp_report_trace(&d, file_named("r.json"), err);
    if (!s) {
        j = ddp_jsonl_open(file_named("r.jsonl"), err);
        for (int i = 0; j && i < 3; i++) {
            ddp_jsonl_event(j, "mine");
            ddp_jsonl_number(j, "x", i);
            ddp_jsonl_end(j);
        }
        s = j ? ddp_jsonl_close(j, err) : err->code;
    }
    if (!s)
        *h = mixed_file(mixed_file(mixed_file(*h, file_named("r.html")), file_named("r.json")),
                        file_named("r.jsonl"));
    return s;
}

/* ---- one worker: a model, data, weights, checkpoints ---- */

/* Trains a small GPT on a text; adds the parameters to the hash. */
static ddp_status learns(ddp_ctx *d, ddp_graph *g, ddp_node *loss, int steps, uint64_t *h)
{
    static const char text[] = "to be or not to be, that is the question: whether tis nobler";
    ddp_error err = {DDP_OK, ""};
    ddp_tokens *t = ddp_tokens_from_bytes("text", text, sizeof text - 1, &err);
    ddp_token_range all;
    ddp_status s = t ? ddp_tokens_split(t, 0, 4, &all, NULL, &err) : err.code;
    size_t count;

    if (s) (void)ddp_complain(d, s, "%s", err.msg);
    for (int step = 0; !s && step < steps; step++) {
        ddp_tokens_batch(&all, 1, step, 0, 1, 2, (int32_t *)ddp_data(g, "tokens"),
                         (int32_t *)ddp_data(g, "labels"));
        if (ddp_forward(g) || ddp_backward(g, loss) || ddp_step_end(d)) s = ddp_last_error(d)->code;
    }
    for (int l = 0; !s && l < ddp_layer_count(g); l++) {
        const float *w = ddp_layer_params(g, l, &count);
        *h = ddp_hash_floats(*h, w, count);
    }
    ddp_tokens_close(t);
    return s;
}

static ddp_ctx *opened(ddp_graph **g, ddp_node **loss, ddp_error *err)
{
    ddp_gpt2_config c = {256, 4, 1, 2, 8, 2, 0, 0.1f, 0};
    const ddp_optimizer o = ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0.01f);
    ddp_config cfg;
    ddp_ctx *d;

    alone(&cfg);
    *g = NULL;
    if (!(d = ddp_open(&cfg, err))) return NULL;
    *g = ddp_graph_new(d);
    *loss = ddp_gpt2(*g, &c, NULL);
    if (ddp_graph_build(*g)) {
        *err = *ddp_graph_error(*g);
        ddp_close(d);
        return NULL;
    }
    (void)ddp_set_optimizer(d, &o);
    return d;
}

static ddp_status models(uint64_t *h, ddp_error *err)
{
    ddp_node *loss;
    ddp_graph *g;
    ddp_ctx *d = opened(&g, &loss, err);
    ddp_status s = d ? ddp_last_error(d)->code : err->code;
    int own = 0; /* the error is in *err, not in the context */

    if (d && !s) s = learns(d, g, loss, 3, h);
    if (d && !s) {
        own = 1;
        s = ddp_weights_save(g, file_named("w.safetensors"), err);
    }
    if (d && !s) s = ddp_weights_load(g, file_named("w.safetensors"), err);
    if (d && !s) s = ddp_dump(d, file_named("dump.json"), err);
    if (d && s && !own) *err = *ddp_last_error(d);
    ddp_close(d);
    if (!s) *h = mixed_file(*h, file_named("w.safetensors"));
    return s;
}

/* Saves after steps 2 and 4 to the same folder, then resumes from the last checkpoint. */
static ddp_status checkpoints(uint64_t *h, ddp_error *err)
{
    ddp_status s = DDP_OK;

    for (int run = 0; !s && run < 2; run++) {
        ddp_node *loss;
        ddp_graph *g;
        ddp_ctx *d = opened(&g, &loss, err);
        if (!d) return err->code;
        s = ddp_last_error(d)->code;
        if (!s && run && ddp_checkpoint_load(d, file_named("ckpt"), NULL)) s = ddp_last_error(d)->code;
        for (int i = 0; !s && i < 2; i++) {
            s = learns(d, g, loss, 2, h);
            if (!s && !run && ddp_checkpoint_save(d, file_named("ckpt"), 1)) s = ddp_last_error(d)->code;
        }
        if (s) *err = *ddp_last_error(d);
        ddp_close(d);
    }
    return s;
}

/* After any failure in a save, the folder must contain a complete checkpoint. */
static int resumes_from_a_checkpoint(void)
{
    ddp_error err;
    ddp_node *loss;
    ddp_graph *g;
    ddp_ctx *d = opened(&g, &loss, &err);
    const int well = d && !ddp_checkpoint_load(d, file_named("ckpt"), NULL) && ddp_step(d) >= 2;

    if (!well) print_message("%s\n", d ? ddp_last_error(d)->msg : err.msg);
    ddp_close(d);
    return well;
}

/* ---- worlds ---- */

typedef struct world {
    ddp_config cfg;
    int paced;      /* uses virtual time */
    uint64_t *hash; /* [4], in shared memory */
} world;

static int trains(ddp_ctx *d, void *user)
{
    const world *x = (const world *)user;
    float w[3][500], g[3][500], more[4];
    static const char *const name[] = {"in", "mid", "out"};
    const ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    int bad = 0, pair;
    const int both[] = {0, 1};

    for (int l = 0; l < 3 && !bad; l++) {
        for (int i = 0; i < 500; i++) {
            w[l][i] = (float)(i % 7 + l);
            g[l][i] = 0;
        }
        bad = ddp_add_block(d, name[l], w[l], g[l], 500);
    }
    if (!bad) bad = ddp_set_optimizer(d, &o);
    if (!bad && ddp_rank(d) >= ddp_world(d) - ddp_servers(d)) return ddp_serve(d);
    for (int step = 0; step < 4 && !bad; step++) {
        for (int l = 2; l >= 0 && !bad; l--) {
            if (x->paced) ddp_sleep_until(ddp_now() + 0.001);
            for (int i = 0; i < 500; i++) g[l][i] = (float)((i + step + ddp_rank(d)) % 5) - 2;
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_sync_all(d);
    if (!bad && !ddp_servers(d)) bad = ddp_group(d, both, 2, &pair);
    for (int i = 0; i < 4; i++) more[i] = (float)(i + ddp_rank(d));
    if (!bad && !ddp_servers(d)) bad = ddp_all_reduce(d, more, 4, 1);
    x->hash[ddp_rank(d)] = bad ? 0 : ddp_hash_floats(7, w[0], 1500);
    return bad;
}

static ddp_status launched(ddp_strategy strategy, ddp_transport transport, uint64_t *h, ddp_error *err)
{
    world x;
    ddp_status s;

    BLANK(x);
    alone(&x.cfg);
    x.cfg.world = 2;
    x.cfg.period = 2;
    x.cfg.strategy = strategy;
    x.cfg.transport = transport;
    x.cfg.deterministic = 1;
    x.cfg.timeout.connect_s = 2;
    x.cfg.timeout.peer_s = 5;
    x.hash = (uint64_t *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if ((void *)x.hash == MAP_FAILED)
        return ddp__fail(err, DDP_MEMORY, "the test has no memory for its hashes");
    s = (ddp_status)ddp_launch(&x.cfg, trains, &x, err);
    if (!s) *h = mixed(*h, x.hash, 4 * sizeof *x.hash);
    munmap(x.hash, 4096);
    return s;
}

static ddp_status threads(uint64_t *h, ddp_error *err)
{
    ddp_status s = launched(DDP_DREAMDDP, DDP_THREADS, h, err);

    return s ? s : launched(DDP_DEFT, DDP_THREADS, h, err);
}

static ddp_status processes(uint64_t *h, ddp_error *err) { return launched(DDP_DREAMDDP, DDP_TCP, h, err); }

/* Trains a GPT in two stages, two threads of one process, and exports its weights. */
static int pipes(ddp_ctx *d, void *user)
{
    const world *x = (const world *)user;
    ddp_gpt2_config c = {7, 4, 2, 2, 4, 2, 0, 0.1f, 0};
    const ddp_optimizer o = ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0.01f);
    ddp_pipe_config how;
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = ddp_gpt2(g, &c, NULL);
    ddp_pipe *p;
    int bad = 0;

    memset(&how, 0, sizeof how);
    how.stages = 2;
    how.schedule = DDP_PIPELINE_1F1B;
    p = ddp_pipe_open(d, g, loss, &how);
    if (!p) return (int)(ddp_last_error(d)->code ? ddp_last_error(d)->code : DDP_MEMORY);
    bad = ddp_set_optimizer(d, &o);
    for (int step = 0; step < 2 && !bad; step++)
        bad = ddp_pipe_step(p) || ddp_step_end(d); /* the loss of token 0 only */
    if (!bad) bad = ddp_pipe_export(p, file_named("pipe.safetensors"));
    if (!bad) bad = ddp_pipe_hash(p, &x->hash[ddp_rank(d)]);
    ddp_pipe_close(p);
    return bad;
}

static ddp_status pipelines(uint64_t *h, ddp_error *err)
{
    static uint64_t hash[4];
    world x;
    ddp_status s;

    BLANK(x);
    alone(&x.cfg);
    x.cfg.world = 2;
    x.cfg.transport = DDP_THREADS;
    x.cfg.strategy = DDP_WFBP;
    x.cfg.micro_batches = 2;
    x.hash = hash;
    s = (ddp_status)ddp_launch(&x.cfg, pipes, &x, err);
    if (!s) *h = mixed(*h, hash, sizeof hash);
    return s;
}

/* ---- a joining worker: two workers continue whatever fails in a third one that joins ---- */

typedef struct joined {
    int stop;  /* atomic: the third worker has joined, or has ended */
    long last; /* atomic: the step after which all workers end; 0: not yet known */
    ddp_error err[3];
    uint64_t hash[3];
} joined;

static void joins(joined *b, const char *addr, int number)
{
    static float w[3][50], g[3][50];
    static const char *const name[] = {"in", "mid", "out"};
    const ddp_optimizer o = ddp_sgd(0.1f, 0);
    ddp_config c;
    ddp_ctx *d;
    int bad = 0;

    calls_spared = number < 2;
    alone(&c);
    c.transport = DDP_TCP;
    c.strategy = DDP_LOCALSGD;
    c.period = 2;
    c.addr = addr;
    c.run_id = "sweep";
    c.rank = number;
    c.world = number < 2 ? 2 : 0;
    c.elastic.min_world = 1;
    c.elastic.max_world = number < 2 ? 3 : 0;
    c.elastic.join = number == 2;
    c.timeout.connect_s = 3;
    c.timeout.peer_s = 5;
    c.timeout.op_s = 8;
    if (number == 2) c.rank = 0;
    d = ddp_open(&c, &b->err[number]);
    for (int l = 0; d && l < 3 && !bad; l++) {
        for (int i = 0; i < 50; i++) w[l][i] = (float)(i % 7 + l);
        bad = ddp_add_block(d, name[l], w[l], g[l], 50);
    }
    if (d && !bad) bad = ddp_set_optimizer(d, &o);
    if (number == 2 && d && !bad) __atomic_store_n(&b->last, ddp_step(d) + 8, __ATOMIC_SEQ_CST);
    for (long step = d && !bad ? ddp_step(d) : 0; d && !bad; step++) {
        const long last = __atomic_load_n(&b->last, __ATOMIC_SEQ_CST);
        if (last && step >= last) break;
        for (int l = 2; l >= 0 && !bad; l--) {
            for (int i = 0; i < 50; i++) g[l][i] = (float)((i + step + number) % 5) - 2;
            bad = ddp_backward_end(d, l);
        }
        if (!bad) bad = ddp_step_end(d);
        ddp_sleep_until(ddp_now() + 0.002);
        if (number == 0 && step % 2 && !last && __atomic_load_n(&b->stop, __ATOMIC_SEQ_CST))
            __atomic_store_n(&b->last, step + 9, __ATOMIC_SEQ_CST); /* no worker is that far ahead */
    }
    if (d && !bad) bad = ddp_sync_all(d);
    for (int l = 0; d && !bad && l < 3; l++) b->hash[number] = ddp_hash_floats(b->hash[number], w[l], 50);
    if (d && bad) b->err[number] = *ddp_last_error(d);
    ddp_close(d);
    if (number == 2) __atomic_store_n(&b->stop, 1, __ATOMIC_SEQ_CST);
    fflush(NULL);
    _exit(d && !bad ? 0 : 1);
}

static ddp_status joining(uint64_t *h, ddp_error *err)
{
    const int kind = faults->kind;
    joined *b;
    char addr[DDP__ADDR_TEXT];
    pid_t pid[3];
    int status[3];
    ddp_status s = DDP_OK;

    faults->kind = NO_CALLS;
    b = (joined *)mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    meet_unused(addr);
    for (int i = 0; i < 2; i++)
        if ((pid[i] = fork()) == 0) joins(b, addr, i);
    ddp_sleep_until(ddp_now() + 0.1);
    faults->kind = kind;
    if ((pid[2] = fork()) == 0) joins(b, addr, 2);
    waitpid(pid[2], &status[2], 0);
    __atomic_store_n(&b->stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 2; i++) waitpid(pid[i], &status[i], 0);
    faults->kind = NO_CALLS;
    for (int i = 0; i < 3; i++)
        if (!WIFEXITED(status[i]))
            fail_msg("worker %d was killed by signal %d, for %s", i, WTERMSIG(status[i]), faults->last);
    for (int i = 0; i < 2; i++)
        if (WEXITSTATUS(status[i]))
            fail_msg("worker %d ends because of a joining worker's %s: %s", i, faults->last, b->err[i].msg);
    if (b->hash[0] != b->hash[1])
        fail_msg("a joining worker's %s: the other workers have different parameters", faults->last);
    if (WEXITSTATUS(status[2])) {
        *err = b->err[2];
        s = err->code;
    } else if (b->hash[2] != b->hash[0])
        fail_msg("a joining worker's %s: it has different parameters", faults->last);
    *h = 1; /* the step at which it joined is not deterministic */
    munmap(b, sizeof *b);
    faults->kind = kind;
    return s;
}

static ddp_status simulated(uint64_t *h, ddp_error *err)
{
    static uint64_t hash[4];
    world x;
    ddp_simulation how;
    ddp_simulated did;
    ddp_status s;

    BLANK(x);
    BLANK(how);
    alone(&x.cfg);
    x.cfg.world = 3;
    x.cfg.period = 2;
    x.cfg.strategy = DDP_DREAMDDP;
    x.cfg.transport = DDP_THREADS;
    x.cfg.net = "10mbit,5ms";
    x.paced = 1;
    x.hash = hash;
    s = (ddp_status)ddp_simulate(&x.cfg, &how, trains, &x, &did, err);
    if (!s) *h = mixed(mixed(*h, &did.seconds, sizeof did.seconds), hash, sizeof hash);
    return s;
}

/* ---- the sweep ---- */

static const scenario list[] = {
    {"planners", plans, {5, 1, 1}, 0, NULL},
    {"the choice of a strategy", choices, {5, 1, 1}, 0, NULL},
    {"placement", places, {7, 1, 1}, 0, NULL},
    {"reports", reports, {1, 1, 1}, 0, NULL},
    {"a model", models, {1, 1, 1}, 0, NULL},
    {"threads", threads, {19, 1, 1}, 1, NULL},
    {"checkpoints", checkpoints, {5, 3, 1}, 0, resumes_from_a_checkpoint},
    {"simulation", simulated, {9, 1, 1}, 0, NULL},
    {"processes", processes, {61, 37, 9}, 1, NULL},
    {"pipelines", pipelines, {29, 1, 1}, 0, NULL},
    {"a joining worker", joining, {197, 197, 131}, 1, NULL},
};

int main(void) { return swept(list, sizeof list / sizeof list[0]); }
