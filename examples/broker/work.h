/* The task of a broker: its options, the job that they define, and the data that it sends. */
#ifndef EXAMPLES_BROKER_WORK_H
#define EXAMPLES_BROKER_WORK_H

typedef struct work {
    const char *listen, *job_file, *model, *widths, *data, *optimizer, *pipeline, *edge_wire, *solver,
        *network, *speed, *load, *store, *write_job;
    long nodes, spares, steps, batch, microbatches, layers, heads, dim, seq, seed, save_every, restarts;
    double lr, momentum, weight_decay, join_timeout, peer_timeout;
    int emulate, quiet;
    channel_keys keys;
    job j;
    ddp_tokens *tokens;
    ddp_token_range text;
    ddp_images *images;
    ddp_image_range train;
    ddp_image_norm norm;
    int x, y;    /* the inputs: images or tokens, labels */
    char *at[2]; /* one micro-batch of them */
} work;

static void work_close(work *w)
{
    ddp_tokens_close(w->tokens);
    ddp_images_close(w->images);
    free(w->at[0]);
    free(w->at[1]);
    job_free(&w->j);
}

/* ---- the model ---- */

static ddp_node *add_mlp(ddp_graph *g, const work *w)
{
    ddp_mlp_config c;
    const char *at = w->widths;
    char *end;

    memset(&c, 0, sizeof c);
    c.batch = w->batch;
    c.inputs = w->images->channels * w->images->height * w->images->width;
    c.classes = w->images->classes;
    for (int i = 0; *at && i < DDP_MLP_HIDDEN; i++, at = *end ? end + 1 : end)
        c.hidden[i] = strtol(at, &end, 10);
    return ddp_mlp(g, &c, NULL);
}

static ddp_node *add_model(ddp_graph *g, const work *w)
{
    if (!strcmp(w->model, "gpt2")) {
        ddp_gpt2_config c;
        memset(&c, 0, sizeof c);
        c.vocabulary = ddp_tokens_vocabulary(w->tokens);
        c.layers = w->layers;
        c.heads = w->heads;
        c.dim = w->dim;
        c.context = w->seq;
        c.batch = w->batch;
        c.deviation = w->dim < 512 ? (float)(0.8 / sqrt((double)w->dim)) : 0.02f; /* as train_gpt */
        return ddp_gpt2(g, &c, NULL);
    }
    if (!strncmp(w->model, "resnet", 6)) {
        ddp_resnet_config c;
        memset(&c, 0, sizeof c);
        c.depth = atoi(w->model + 6);
        c.classes = w->images->classes;
        c.size = w->images->height;
        c.channels = w->images->channels;
        c.batch = w->batch;
        c.cifar = w->images->height <= 64;
        return ddp_resnet(g, &c, NULL);
    }
    return add_mlp(g, w);
}

static ddp_status model_job(work *w, ddp_error *err)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *loss = g ? add_model(g, w) : NULL;
    ddp_status s = loss ? job_of_graph(g, loss, &w->j, err)
                        : refuse(err, DDP_ARG, "%.400s", g ? ddp_graph_error(g)->msg : "no memory");

    ddp_graph_free(g);
    if (s != DDP_OK) return s;
    w->j.steps = w->steps;
    w->j.micro_batches = (int)w->microbatches;
    w->j.seed = (uint64_t)w->seed;
    snprintf(w->j.rule.name, sizeof w->j.rule.name, "%s", w->optimizer);
    w->j.rule.lr = w->lr;
    w->j.rule.momentum = w->momentum;
    w->j.rule.weight_decay = w->weight_decay;
    return DDP_OK;
}

/* ---- a description ---- */

static ddp_status read_job(work *w, ddp_error *err)
{
    size_t n = 0;
    char *text = read_file(w->job_file, &n, err);
    ddp_graph *g;
    ddp_node *loss;
    ddp_status s;

    if (!text) return err->code;
    s = job_read(w->job_file, text, n, &w->j, err);
    free(text);
    if (s != DDP_OK) return s;
    w->j.node = -1;
    g = ddp_graph_new(NULL);
    s = job_build(&w->j, g, &loss, err); /* on paper: shapes and costs */
    ddp_graph_free(g);
    return s;
}

/* ---- data ---- */

static long work_count(const work *w, int op) { return ddp_shape_count(&w->j.op[op].shape); }

/* Identifies the inputs by name, and checks that the data have their sizes. */
static ddp_status fit_data(work *w, ddp_error *err)
{
    long sample;

    w->x = w->y = -1;
    for (int i = 0; i < w->j.ops; i++) {
        const job_op *o = &w->j.op[i];
        if (o->type != JOB_PLACEHOLDER) continue;
        if (!strcmp(o->name, "labels"))
            w->y = i;
        else if (!strcmp(o->name, w->tokens ? "tokens" : "inputs"))
            w->x = i;
        else
            return refuse(err, DDP_ARG,
                          "input %s: the broker has data for inputs and labels (images) or tokens and labels "
                          "(text) alone",
                          o->name);
    }
    if (w->x < 0 || w->y < 0)
        return refuse(err, DDP_ARG, "the job needs the inputs %s and labels",
                      w->tokens ? "tokens" : "inputs");
    w->batch = w->tokens ? w->j.op[w->x].shape.dim[0] : work_count(w, w->y);
    w->seq = w->tokens ? work_count(w, w->x) / w->batch : 1;
    sample = w->tokens ? w->seq : w->images->channels * w->images->height * w->images->width;
    if (work_count(w, w->x) != w->batch * sample || work_count(w, w->y) != w->batch * w->seq ||
        w->j.op[w->x].dtype != (w->tokens ? DDP_I32 : DDP_F32) || w->j.op[w->y].dtype != DDP_I32)
        return refuse(err, DDP_ARG, "%s: its samples have %ld values, input %s takes %ld for %ld samples",
                      w->data, sample, w->j.op[w->x].name, work_count(w, w->x), w->batch);
    if (w->tokens) return ddp_tokens_split(w->tokens, 0, w->seq, &w->text, NULL, err);
    if (ddp_images_split(w->images, 0, &w->train, NULL, err)) return err->code;
    w->norm = ddp_images_norm(&w->train);
    return DDP_OK;
}

/* Fills micro-batch m of a step, in the order of a trainer with one worker. */
static void next_batch(work *w, long step, int m)
{
    const long pass = step * w->j.micro_batches + m;

    if (w->tokens)
        ddp_tokens_batch(&w->text, w->j.seed, pass, 0, 1, w->batch, (int32_t *)(void *)w->at[0],
                         (int32_t *)(void *)w->at[1]);
    else
        ddp_images_batch(&w->train, &w->norm, w->j.seed, pass, 0, 1, w->batch, (float *)(void *)w->at[0],
                         (int32_t *)(void *)w->at[1]);
}

static ddp_status work_check(const work *w, ddp_error *err)
{
    const cli_range ranges[] = {
        {"--nodes", (double)w->nodes, 1, 256},
        {"--spares", (double)w->spares, 0, 256},
        {"--steps", (double)w->steps, 1, 0},
        {"--batch", (double)w->batch, 1, 0},
        {"--microbatches", (double)w->microbatches, 1, 1000000},
        {"--layers", (double)w->layers, 1, 0},
        {"--heads", (double)w->heads, 1, 0},
        {"--dim", (double)w->dim, 1, 0},
        {"--seq", (double)w->seq, 1, 0},
        {"--lr", w->lr, DBL_MIN, 0},
        {"--weight-decay", w->weight_decay, 0, 0},
        {"--join-timeout", w->join_timeout, 0, 0},
        {"--peer-timeout", w->peer_timeout, DBL_MIN, 0},
    };

    if (cli_out_of_range(ranges, sizeof ranges / sizeof ranges[0], err->msg, sizeof err->msg))
        return err->code = DDP_ARG;
    if (!(w->momentum >= 0 && w->momentum < 1))
        return refuse(err, DDP_ARG, "--momentum %g: choose a number from 0 to below 1", w->momentum);
    if (!w->job_file == !w->model)
        return refuse(err, DDP_ARG, "one of --model NAME and --job FILE is needed");
    if (w->model && strcmp(w->model, "gpt2") && strcmp(w->model, "mlp") && strncmp(w->model, "resnet", 6))
        return refuse(err, DDP_ARG,
                      "unknown model %s; choose gpt2, mlp, resnet18, resnet34, resnet50 or resnet101",
                      w->model);
    if (!w->data)
        return refuse(
            err, DDP_ARG,
            "--data is missing: a folder of images (MNIST, CIFAR), or for gpt2 a text or token file");
    if (strcmp(w->speed, "measured") && strcmp(w->speed, "network"))
        return refuse(err, DDP_ARG, "unknown --speed %s; choose measured or network", w->speed);
    if (w->emulate && !w->network)
        return refuse(err, DDP_ARG, "--emulate needs --network FILE.json, whose links are emulated");
    if (!w->network && !strcmp(w->speed, "network"))
        return refuse(err, DDP_ARG, "--speed network needs --network FILE.json with tflops");
    return DDP_OK;
}

static ddp_status work_open(work *w, ddp_error *err)
{
    DIR *folder;
    ddp_status s = work_check(w, err);

    if (s != DDP_OK) return s;
    folder = opendir(w->data);
    if (folder) {
        closedir(folder);
        w->images = ddp_images_open(w->data, 0, err);
    } else
        w->tokens = ddp_tokens_open(w->data, err);
    if (!w->images && !w->tokens) return err->code;
    if (w->model && !strcmp(w->model, "gpt2") != !!w->tokens)
        return refuse(err, DDP_ARG,
                      "--model %s with --data %s: gpt2 reads a file, the other models a folder of images",
                      w->model, w->data);
    s = w->job_file ? read_job(w, err) : model_job(w, err);
    if (s == DDP_OK && w->pipeline) s = ddp_pipeline_named(w->pipeline, &w->j.schedule, err);
    if (s == DDP_OK && w->edge_wire) s = job_wire(&w->j, w->edge_wire, err);
    if (s == DDP_OK) s = fit_data(w, err);
    if (s != DDP_OK) return s;
    w->at[0] = (char *)malloc(4 * (size_t)work_count(w, w->x));
    w->at[1] = (char *)malloc(4 * (size_t)work_count(w, w->y));
    return w->at[0] && w->at[1] ? DDP_OK : refuse(err, DDP_MEMORY, "out of memory for a micro-batch");
}

#endif /* EXAMPLES_BROKER_WORK_H */
