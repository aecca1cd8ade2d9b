/* Pipelines on a device: bit-identical to one worker on that device, or to one worker per replica. Used for a
 * fake device and for CUDA. */
#ifndef TESTS_PIPE_DEVICE_LAB_H
#define TESTS_PIPE_DEVICE_LAB_H

enum { PIPED_RANKS = 6, PIPED_STEPS = 3, PIPED_BATCH = 2, PIPED_MOST = 4096 };

typedef enum piped_model { PIPED_GPT, PIPED_MLP, PIPED_RESIDUAL, PIPED_MODELS, PIPED_BRANCHES } piped_model;

typedef struct piped {
    ddp_config cfg;
    piped_model model;
    int stages; /* 0: unpipelined */
    ddp_pipeline schedule;
    ddp_edge_wire edge;
    int recompute, no_rule;     /* no_rule: plain SGD. The first pipeline step starts the session. */
    uint64_t hash[PIPED_RANKS]; /* of all parameters */
    float loss[PIPED_RANKS];    /* of the last step */
    float judged[PIPED_RANKS];  /* of an evaluation after it */
} piped;

/* A model of operators that both devices have. */
static ddp_node *piped_residual(ddp_graph *g, int recompute)
{
    /* the data between stages is larger than all layers */
    const ddp_shape image = {4, {PIPED_BATCH, 2, 16, 16}};
    ddp_node *labels = ddp_input(g, "labels", DDP_I32, PIPED_BATCH, 1),
             *x = ddp_input_shape(g, "inputs", DDP_F32, &image);

    ddp_layer_begin(g, "stem");
    x = ddp_relu(g, ddp_batch_norm2d(g, ddp_conv2d(g, x, 4, 3, 1, 1, 1, 0)));
    ddp_layer_end(g);
    for (int i = 0; i < 3; i++) {
        if (recompute) ddp_recompute_begin(g);
        ddp_layer_begin(g, "block");
        x = ddp_relu(g, ddp_add(g, ddp_batch_norm2d(g, ddp_conv2d(g, x, 4, 3, 1, 1, 1, 1)), x));
        ddp_layer_end(g);
        if (recompute) ddp_recompute_end(g);
    }
    ddp_layer_begin(g, "head");
    x = ddp_cross_entropy(g, ddp_linear(g, ddp_flatten(g, ddp_max_pool2d(g, x, 2, 2, 0)), 3), labels);
    ddp_layer_end(g);
    return x;
}

/* A model in which one output has four uses. */
static ddp_node *piped_branches(ddp_graph *g)
{
    ddp_node *labels = ddp_input(g, "labels", DDP_I32, PIPED_BATCH, 1), *x, *y[4];

    ddp_layer_begin(g, "stem");
    x = ddp_linear(g, ddp_input(g, "inputs", DDP_F32, PIPED_BATCH, 6), 7);
    ddp_layer_end(g);
    for (int i = 0; i < 4; i++) {
        ddp_layer_begin(g, "branch");
        y[i] = ddp_relu(g, ddp_linear(g, x, 7));
        ddp_layer_end(g);
    }
    ddp_layer_begin(g, "head");
    for (int i = 1; i < 4; i++) y[0] = ddp_add(g, y[0], y[i]);
    x = ddp_cross_entropy(g, ddp_linear(g, y[0], 3), labels);
    ddp_layer_end(g);
    return x;
}

/* Assigns the branches to stages in another order. */
static void piped_cut_branches(const ddp_graph *g, int *stage_of)
{
    static const int stage[] = {0, 2, 1, 0, 2, 2}; /* of each layer */

    for (int i = 0; i < ddp__count(g->node); i++)
        stage_of[i] = g->node[i]->layer < 0 ? 0 : stage[g->node[i]->layer];
}

static ddp_node *piped_build(ddp_graph *g, const piped *j)
{
    if (j->model == PIPED_BRANCHES) return piped_branches(g);
    if (j->model == PIPED_GPT) {
        ddp_gpt2_config c;
        memset(&c, 0, sizeof c);
        c.vocabulary = 19;
        c.context = 8;
        c.layers = 3;
        c.heads = 2;
        c.dim = 8;
        c.batch = PIPED_BATCH;
        c.dropout = 0.1f;
        c.recompute = j->recompute;
        return ddp_gpt2(g, &c, NULL);
    }
    if (j->model == PIPED_MLP) {
        ddp_mlp_config c;
        memset(&c, 0, sizeof c);
        c.batch = PIPED_BATCH;
        c.inputs = 7;
        c.hidden[0] = 9;
        c.hidden[1] = 5;
        c.hidden[2] = 11;
        c.classes = 5;
        return ddp_mlp(g, &c, NULL);
    }
    return piped_residual(g, j->recompute);
}

/* The data of pipeline r, micro-batch m of a step. */
static void piped_fill(void *at, const ddp_node *input, int r, int step, int m)
{
    ddp_rng x = ddp_rng_seed((uint64_t)(r * 1000 + step * 16 + m), strlen(input->name));

    for (long i = 0; at && i < ddp_shape_count(&input->spec.out); i++)
        if (input->type == DDP_I32)
            ((int32_t *)at)[i] = (int32_t)ddp_rng_below(&x, 3);
        else
            ((float *)at)[i] = (float)ddp_rng_normal(&x);
}

static int piped_stages(ddp_ctx *d, piped *j, ddp_graph *g, ddp_node *loss)
{
    ddp_optimizer o = ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0.1f);
    ddp_pipe_config c;
    ddp_pipe *p;
    const int r = ddp_rank(d), M = j->cfg.micro_batches;
    int bad, cut[20];

    memset(&c, 0, sizeof c);
    c.schedule = j->schedule;
    c.stages = j->stages;
    c.edge = j->edge;
    if (j->model == PIPED_BRANCHES) {
        piped_cut_branches(g, cut);
        c.stage_of = cut;
    }
    p = ddp_pipe_open(d, g, loss, &c);
    bad = !p ? (int)ddp_last_error(d)->code : j->no_rule ? 0 : ddp_set_optimizer(d, &o);
    for (int step = 0; step < PIPED_STEPS && !bad; step++) {
        for (int m = 0; m < M; m++)
            for (int i = 0; i < ddp__count(g->node); i++)
                if (!g->node[i]->op)
                    piped_fill(ddp_pipe_input(p, m, g->node[i]->name), g->node[i], ddp_pipe_number(p), step,
                               m);
        bad = ddp_pipe_step(p);
        if (!bad) bad = ddp_step_end(d);
    }
    if (!bad) j->loss[r] = ddp_pipe_loss(p);
    if (!bad) bad = ddp_pipe_evaluate(p, M);
    if (!bad) j->judged[r] = ddp_pipe_loss(p);
    if (!bad) bad = ddp_sync_all(d);
    if (!bad) bad = ddp_pipe_hash(p, &j->hash[r]);
    ddp_pipe_close(p);
    return bad;
}

static int piped_whole(ddp_ctx *d, piped *j, ddp_graph *g, ddp_node *loss)
{
    ddp_optimizer o = ddp_adamw(0.01f, 0.9f, 0.999f, 1e-8f, 0.1f);
    const int r = ddp_rank(d), M = j->cfg.micro_batches;
    int bad = ddp_graph_build(g) || (!j->no_rule && ddp_set_optimizer(d, &o));

    for (int step = 0; step <= PIPED_STEPS && !bad; step++) { /* the last iteration evaluates */
        double sum = 0;
        for (int m = 0; m < M && !bad; m++) {
            for (int i = 0; i < ddp__count(g->node); i++)
                if (!g->node[i]->op)
                    piped_fill(ddp_data(g, g->node[i]->name), g->node[i], r,
                               step < PIPED_STEPS ? step : step - 1, m);
            bad = step < PIPED_STEPS ? ddp_forward(g) : ddp_evaluate(g);
            sum += (double)ddp_value(g, loss);
            if (!bad && step < PIPED_STEPS) bad = ddp_backward(g, loss);
        }
        *(step < PIPED_STEPS ? &j->loss[r] : &j->judged[r]) = (float)(sum / M);
        if (!bad && step < PIPED_STEPS) bad = ddp_step_end(d);
    }
    if (!bad) bad = ddp_sync_all(d);
    for (int l = 0; !bad && l < ddp__count(g->layer); l++) {
        static __thread float here[PIPED_MOST];
        if (g->layer[l].count > PIPED_MOST) return (int)DDP_ARG;
        bad = ddp_graph_read(g, here, g->layer[l].params, g->layer[l].count);
        j->hash[r] = ddp_hash_floats(j->hash[r], here, g->layer[l].count);
    }
    return bad;
}

static int piped_worker(ddp_ctx *d, void *user)
{
    piped *j = (piped *)user;
    ddp_graph *g = ddp_graph_new(d);
    ddp_node *loss = piped_build(g, j);

    if (!loss) return (int)ddp_graph_error(g)->code;
    return j->stages ? piped_stages(d, j, g, loss) : piped_whole(d, j, g, loss);
}

static void piped_new(piped *j, piped_model m, ddp_strategy strategy, int micro_batches)
{
    memset(j, 0, sizeof *j);
    j->model = m;
    j->cfg.strategy = strategy;
    j->cfg.micro_batches = micro_batches;
    j->cfg.deterministic = j->cfg.no_env = 1;
    j->cfg.transport = DDP_THREADS;
    j->cfg.seed = 5;
    j->cfg.period = 2;
    j->cfg.profile_steps = -1;
    j->cfg.timeout.peer_s = 60;
}

static void piped_run(piped *j, int world)
{
    ddp_error err;

    j->cfg.world = world;
    memset(&err, 0, sizeof err);
    if (ddp_launch(&j->cfg, piped_worker, j, &err))
        fail_msg("model %d, %d ranks, %d stages, %s: %s", (int)j->model, world, j->stages,
                 ddp_pipeline_name(j->schedule), err.msg);
}

/* Runs every schedule of the job's model in `stages` stages, and compares with one worker per replica. */
static void piped_compare(const piped *like, const ddp_backend *b, int stages, int replicas)
{
    piped whole = *like;

    whole.cfg.backend = b;
    whole.recompute = 0;
    piped_run(&whole, replicas);
    for (int s = DDP_PIPELINE_GPIPE; s <= DDP_PIPELINE_ZB; s++) {
        piped cut = *like;
        cut.cfg.backend = b;
        cut.stages = stages;
        cut.schedule = (ddp_pipeline)s;
        piped_run(&cut, stages * replicas);
        for (int r = 0; r < stages * replicas; r++)
            if (whole.hash[r / stages] != cut.hash[r] ||
                memcmp(&whole.loss[r / stages], &cut.loss[r], sizeof(float)) ||
                memcmp(&whole.judged[r / stages], &cut.judged[r], sizeof(float)))
                fail_msg("model %d, %d stages, %s, rank %d: differs from one worker (loss %g, %g)",
                         (int)like->model, stages, ddp_pipeline_name((ddp_pipeline)s), r, (double)cut.loss[r],
                         (double)whole.loss[r / stages]);
    }
}

/* Models, schedules, replicas, clipping and recomputation; gradients of several uses, which are sent
 * separately. */
static void piped_all(const ddp_backend *b)
{
    piped j;

    for (int m = PIPED_GPT; m < PIPED_MODELS; m++)
        for (int stages = 1; stages <= 3; stages++) {
            piped_new(&j, (piped_model)m, DDP_SSGD, 2 + stages);
            j.cfg.clip_norm = stages == 3 ? 0.3f : 0;
            j.recompute = stages == 2;
            piped_compare(&j, b, stages, 1);
        }
    for (int k = 0; k < 2; k++) {
        piped_new(&j, (piped_model)k, k ? DDP_LOCALSGD : DDP_WFBP, 3);
        j.no_rule = k;
        piped_compare(&j, b, 2, k ? 3 : 2);
    }
    piped_new(&j, PIPED_BRANCHES, DDP_SSGD, 4);
    piped_compare(&j, b, 3, 1);
}

#endif /* TESTS_PIPE_DEVICE_LAB_H */
