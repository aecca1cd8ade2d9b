/* Runs a trainer: from the parsed command line to results and an exit code. */
#ifndef EXAMPLES_TRAINER_H
#define EXAMPLES_TRAINER_H

/* Sets missing forward times to a share of the backward times, in train_gpt, train_image and simulate. */
static void fill_forward(ddp_profile *e, double share)
{
    double forward = 0;

    for (int l = 0; l < e->layers; l++) forward += e->forward_s[l];
    for (int l = 0; l < e->layers && !(forward > 0); l++) e->forward_s[l] = share * e->backward_s[l];
}

static ddp_status load_emulated(program *p, ddp_error *err)
{
    ddp_link none = {0, 0};
    ddp_status s;
    int l;

    p->t.emulate = &p->emulated;
    p->t.emulate_scale = p->emulate_scale;
    snprintf(p->described, sizeof p->described, "emulated compute with the times of %.90s", p->emulate);
    s = ddp_profile_read(p->emulate, &none, &p->emulated, err);
    if (s == DDP_OK) fill_forward(&p->emulated, p->forward);
    for (l = 0; s == DDP_OK && l < p->emulated.layers; l++)
        if (!(p->emulated.forward_s[l] <= 3600 && p->emulated.backward_s[l] <= 3600))
            s = refuse(err, "%s: layer %d takes %g s forward and %g s backward; each must be at most 3600 s",
                       p->emulate, l, p->emulated.forward_s[l], p->emulated.backward_s[l]);
    return s;
}

static ddp_status prepare(program *p, ddp_error *err)
{
    training *t = &p->t;

    training_host(p->host, sizeof p->host);
    if (p->emulate ? load_emulated(p, err) : p->load(p, err)) return err->code;
    if (choose_stages(p, err)) return err->code;
    if (p->epochs) {
        long per_step = p->workers / p->stages * p->batch * p->accumulate;
        p->steps = (t->windows + per_step - 1) / per_step;
    }
    t->schedule.base = p->lr;
    t->schedule.warmup = p->warmup;
    t->schedule.total = p->steps;
    t->schedule.min_ratio = 0.1;
    t->schedule.step_size = p->steps / 3 + 1;
    t->schedule.gamma = 0.1;
    t->steps = p->steps;
    if (!(p->cfg.choice.steps > 0)) p->cfg.choice.steps = (double)p->steps;
    t->accumulate = p->accumulate;
    t->seed = (uint64_t)p->seed;
    t->ahead = (int)p->ahead;
    t->workers = (int)p->workers;
    t->period = p->cfg.period ? p->cfg.period : -1;
    t->label = p->quiet ? NULL : p->strategy;
    /* only the ranks that this process starts store results. fill is stored for periods of at most 4096 */
    t->result = training_result_new(
        p->rank >= 0 || p->launched ? 1 : (int)(p->places && p->places < p->workers ? p->places : p->workers),
        p->steps,
        p->cfg.period > 4096 ? 4096
        : p->cfg.period > 0  ? p->cfg.period
                             : 64);
    if (t->result) {
        const long evals = t->eval_every ? p->steps / t->eval_every : 0;
        t->result->sample = (int32_t *)training_share((size_t)p->sample * sizeof(int32_t));
        t->result->eval = (training_eval *)training_share((size_t)evals * sizeof(training_eval));
    }
    if (t->result && t->result->sample && t->result->eval) return DDP_OK;
    refuse(err,
           "out of memory for the results of %ld steps; train fewer, and continue with --save and --resume",
           p->steps);
    return err->code = DDP_MEMORY;
}

static ddp_status finish(const program *p, ddp_error *err)
{
    ddp_jsonl *out;
    ddp_status s;

    if (p->t.label && !p->emulate) print_memory(p->t.result);
    if (p->t.label) print_pace(p->t.result);
    if (p->print) p->print(p);
    out = ddp_jsonl_stream(stdout, err);
    ddp_jsonl_event(out, NULL);
    write_results(p, out);
    ddp_jsonl_end(out);
    s = ddp_jsonl_close(out, err);
    if (s == DDP_OK && (p->json || p->trace || p->report)) s = write_files(p, err);
    if (s == DDP_OK && p->write_profile) s = write_profile(p, err);
    return s;
}

/* Writes the operators of the whole model for one micro-batch. Stages are ignored. */
static ddp_status write_graph(const program *p, ddp_error *err)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_oplist list;
    ddp_status s;

    memset(&list, 0, sizeof list);
    if (g) training_add_model(g, &p->t, p->t.model.batch, p->t.model.context, NULL);
    s = ddp_graph_oplist(g, &list, err);
    if (s == DDP_OK) s = ddp_oplist_write(&list, p->write_graph, err);
    if (s == DDP_OK) printf("%s: %d operators of %s\n", p->write_graph, list.count, p->described);
    ddp_oplist_free(&list);
    ddp_graph_free(g);
    return s;
}

static ddp_status run(program *p, ddp_error *err)
{
    ddp_status s = choose(p, err);

    if (s == DDP_OK) s = choose_workers(p, err);
    if (s == DDP_OK) s = p->choose(p, err);
    if (s == DDP_OK) s = check(p, err);
    if (s == DDP_OK) s = choose_device(p, err);
    if (s == DDP_OK) s = prepare(p, err);
    if (s == DDP_OK && p->write_graph) return write_graph(p, err);
    if (s == DDP_OK) s = check_folder(p->t.save, err);
    if (s == DDP_OK) s = check_saved(p, err);
    if (s == DDP_OK) s = check_writable(p->json, err);
    if (s == DDP_OK) s = check_writable(p->trace, err);
    if (s == DDP_OK) s = check_writable(p->report, err);
    if (s == DDP_OK) s = check_writable(p->write_profile, err);
    if (s == DDP_OK) s = check_writable(p->t.store, err);
    if (s != DDP_OK) return s;
    configure(p);
    if (p->launch)
        s = (ddp_status)p->launch(p, err);
    else if (p->min_replicas)
        s = (ddp_status)ddp_launch_pipelines(&p->cfg, (int)p->stages, (int)p->min_replicas, training_run,
                                             &p->t, err);
    else
        s = (ddp_status)ddp_launch(&p->cfg, training_run, &p->t, err);
    if (s != DDP_OK && *p->t.result->error) {
        snprintf(err->msg, sizeof err->msg, "%s", p->t.result->error);
        s = err->code = (ddp_status)p->t.result->code;
    }
    /* if ranks are started one by one, only rank 0 has the results */
    if (s == DDP_OK && p->t.result->complete) return finish(p, err);
    if (p->json && !cli_interrupted && s != DDP_OK && ddp_status_exit_code(s) != 2) write_failure(p, err);
    return s;
}

/* Runs the program and prints its error. Returns the exit code. */
static int trainer_main(program *p)
{
    ddp_error err;
    int code;

    memset(&err, 0, sizeof err);
    cli_catch_interrupt();
    watcher_catch();
    code = ddp_status_exit_code(run(p, &err));
    if (code && cli_interrupted) {
        if (training_left)
            snprintf(
                err.msg, sizeof err.msg,
                "interrupted: this worker has left the run, which continues without it; start another one "
                "with --join");
        else if (p->t.save)
            snprintf(err.msg, sizeof err.msg,
                     "interrupted; --resume %.200s continues from the newest checkpoint, if one was written",
                     p->t.save);
        else
            snprintf(err.msg, sizeof err.msg, "interrupted, no results were written");
        code = ddp_status_exit_code(DDP_ABORTED);
    }
    if (code) fprintf(stderr, "%s: %s\n", p->name, err.msg);
    ddp_profile_free(&p->emulated);
    ddp_pipe_layout_free(&p->t.layout);
    return code;
}

#endif /* EXAMPLES_TRAINER_H */
