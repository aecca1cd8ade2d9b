/* The options that train_gpt, train_image and simulate share, with their defaults and checks. */
#ifndef EXAMPLES_TRAINER_OPTIONS_H
#define EXAMPLES_TRAINER_OPTIONS_H

struct pictures;

typedef struct program {
    const char *name;    /* "train_gpt" */
    const char *samples; /* one element of a batch: "sequence" */
    const char *strategy, *transport, *model, *optimizer, *schedule;
    const char *net, *data, *addr, *emulate, *json, *trace, *write_profile, *write_graph;
    const char *device, *numbers;
    int nccl, both_links;
    ddp_backend backend; /* backend of --device cuda */
    const char *report;
    long stages, ahead, min_replicas;
    const char *pipeline, *placement, *cut, *edge_wire;
    int edge_feedback;
    long workers, steps, epochs, batch, vocab, warmup, accumulate, seed, rank;
    long layers, heads, dim, seq, kv_heads, hidden, val_batches, sample, top_k, min_world, max_world;
    double lr, muon_lr, clip, weight_decay, dropout, held_out, emulate_scale, forward, temperature;
    const char *dump;
    char dump_path[1024]; /* path of --dump, with %r for the rank */
    int overwrite;
    int tied, recompute, quiet, join;
    int launched; /* 1 if a launcher started this process as a worker */
    ddp_config cfg;
    training t;
    ddp_llama2_config llama;
    ddp_tokens *tokens;        /* data of train_gpt */
    struct pictures *pictures; /* data and model of train_image */
    const char *widths;
    ddp_profile emulated;
    const char *preset;
    char preset_words[1024], preset_data[1024]; /* options of the preset, split into words, and the data of
                                                   the preset */
    char command[1024], described[128], host[128];
    char strategies[400], help[450]; /* names of the library's strategies: "ssgd, wfbp or dreamddp", and with
                                      * the default added */
    /* functions of each trainer: check the command line, load the data and the model of t, and print to
     * stdout before the results (or NULL) */
    ddp_status (*choose)(struct program *p, ddp_error *err);
    ddp_status (*load)(struct program *p, ddp_error *err);
    void (*print)(const struct program *p);
    /* start the workers (NULL for ddp_launch), and add members to the results (NULL for none) */
    int (*launch)(struct program *p, ddp_error *err);
    void (*more)(const struct program *p, ddp_jsonl *j);
    long most, places; /* largest number of workers, number of workers whose results are stored (0 for all) */
} program;

/* Sets *err to an error of the user. Returns DDP_ARG. */
static ddp_status refuse(ddp_error *err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    return err->code = DDP_ARG;
}

static void defaults(program *p, const char *name)
{
    memset(p, 0, sizeof *p);
    p->name = name;
    p->optimizer = "adamw";
    p->schedule = "constant";
    p->steps = 100;
    p->batch = 4;
    p->accumulate = 1;
    p->workers = p->rank = p->stages = -1; /* -1 if not given */
    p->clip = -DBL_MAX;
    p->samples = "sequence";
    p->most = 256;
    p->t.keep = 2;
    p->lr = 3e-3;
    p->muon_lr = 0.02;
    p->weight_decay = 0.01;
    p->held_out = 0.1;
    p->emulate_scale = 1;
    p->forward = 0.5;
}

/* Lists the names of the library's strategies. The first one, which is the default, is listed last. */
static const char *strategy_help(program *p)
{
    const char *first = ddp_strategy_name(ddp_strategy_number(0));
    size_t n = 0;
    int i;

    for (i = 1; ddp_strategy_number(i) != DDP_STRATEGY_DEFAULT && n < sizeof p->strategies; i++)
        n += (size_t)snprintf(p->strategies + n, sizeof p->strategies - n, "%s%s", i > 1 ? ", " : "",
                              ddp_strategy_name(ddp_strategy_number(i)));
    if (n < sizeof p->strategies) snprintf(p->strategies + n, sizeof p->strategies - n, " or %s", first);
    snprintf(p->help, sizeof p->help, "%s [%s]", p->strategies, first);
    return p->help;
}

#include "presets.h"

enum { OPTIONS = 160 }; /* largest number of rows in a program's table */

/* Parses the command line. own: the rows of the program itself. Returns like cli_parse. */
static int parse(program *p, int argc, char **argv, const char *about, const cli_option *own, int count)
{
    const cli_option shared[] = {
        {"Strategy", CLI_GROUP, NULL, NULL, NULL},
        {"--strategy", CLI_TEXT, &p->strategy, "NAME", strategy_help(p)},
        {"--period", CLI_SETTING, &p->cfg, "H", NULL},
        {"--loss-budget", CLI_SETTING, &p->cfg, "SHARE", NULL},
        {"--loss-table", CLI_SETTING, &p->cfg, "FILE", NULL},
        {"--choice-steps", CLI_SETTING, &p->cfg, "N", NULL},
        {"--workers", CLI_COUNT, &p->workers, "N",
         "number of workers to start; with --rank, number of workers in the run [1, or as started by a "
         "launcher]"},
        {"--transport", CLI_TEXT, &p->transport, "NAME",
         "tcp (processes), threads, or mpi under mpirun [tcp]"},
        {"--rank", CLI_COUNT, &p->rank, "R", "rank of this process; start the other ranks on their machines"},
        {"--addr", CLI_TEXT, &p->addr, "HOST:PORT",
         "address of rank 0, or file://PATH; with --join, of a live worker; needs --rank or --join "
         "[127.0.0.1:29500]"},
        {"--net", CLI_TEXT, &p->net, "RATE,DELAY",
         "emulated link of each worker, such as 100mbit,20ms, or a topology FILE.json [unshaped]"},
        {"--wire", CLI_SETTING, &p->cfg, "NAME", NULL},
        {"--algorithm", CLI_SETTING, &p->cfg, "NAME", NULL},
        {"--deterministic", CLI_SETTING, &p->cfg, "", NULL},
        {"--profile", CLI_SETTING, &p->cfg, "P.csv", NULL},
        {"--profile-steps", CLI_SETTING, &p->cfg, "N", NULL},
        {"--plan", CLI_SETTING, &p->cfg, "FILE", NULL},
        {"--threads", CLI_SETTING, &p->cfg, "N", NULL},
        {"--kernels", CLI_SETTING, &p->cfg, "NAME", NULL},
        {"Training", CLI_GROUP, NULL, NULL, NULL},
        {"--preset", CLI_TEXT, &p->preset, "NAME",
         "model, settings and network of a paper, scaled down (docs/results/presets.md)"},
        {"--steps", CLI_COUNT, &p->steps, "N", "number of steps [100; train_image: 8 epochs]"},
        {"--epochs", CLI_COUNT, &p->epochs, "N", "passes over the data, in place of --steps"},
        {"--batch", CLI_COUNT, &p->batch, "N",
         "sequences or images per worker and micro-batch [4; train_image: 128]"},
        {"--accumulate", CLI_COUNT, &p->accumulate, "N", "micro-batches per step [1]"},
        {"--microbatches", CLI_COUNT, &p->accumulate, "N", "the same as --accumulate"},
        {"--lr", CLI_REAL, &p->lr, "X", "learning rate [0.003; train_image: 0.001]"},
        {"--optimizer", CLI_TEXT, &p->optimizer, "NAME", "sgd, nesterov, adam, adamw or muon [adamw]"},
        {"--muon-lr", CLI_REAL, &p->muon_lr, "X",
         "muon: learning rate of matrices; other parameters use --lr [0.02]"},
        {"--weight-decay", CLI_REAL, &p->weight_decay, "X", "weight decay [0.01]"},
        {"--schedule", CLI_TEXT, &p->schedule, "NAME",
         "learning-rate schedule: constant, cosine or step [constant; train_image: cosine]"},
        {"--warmup", CLI_COUNT, &p->warmup, "N", "steps of linear warm-up [0]"},
        {"--clip", CLI_REAL, &p->clip, "X", "limit of the global gradient norm; 0 = none [0]"},
        {"--seed", CLI_COUNT, &p->seed, "N", "seed of parameters, data order and sample [0]"},
        {"--recompute", CLI_FLAG, &p->recompute, "",
         "save memory: compute each block's activations again in the backward pass"},
        {"Pipeline", CLI_GROUP, NULL, NULL, NULL},
        {"--stages", CLI_COUNT, &p->stages, "N",
         "number of pipeline stages; --workers must be a multiple of it [1, or as in --placement or --cut]"},
        {"--pipeline", CLI_TEXT, &p->pipeline, "NAME", "schedule of micro-batches: gpipe, 1f1b or zb [1f1b]"},
        {"--ahead", CLI_COUNT, &p->ahead, "N",
         "1f1b, zb: additional forward passes before a stage's first backward pass [0]"},
        {"--placement", CLI_TEXT, &p->placement, "FILE",
         "stage and pipeline of each worker, from `plan place --json`; worker i is device i"},
        {"--cut", CLI_TEXT, &p->cut, "FILE",
         "operators of each stage, from `plan fence --json` [stages with about equal FLOPs]"},
        {"--edge-wire", CLI_TEXT, &p->edge_wire, "NAME",
         "format of activations between stages: f32, bf16, int8, topk:R, adatopk:R[:FACTOR], bottleneck:R "
         "or aq:BITS [f32]"},
        {"--edge-feedback", CLI_FLAG, &p->edge_feedback, "",
         "int8, topk, adatopk: error feedback; the residual is added to the next message"},
        {"--min-replicas", CLI_COUNT, &p->min_replicas, "N",
         "smallest number of complete pipelines with which the run continues after a loss; 0 = a loss ends "
         "the run [0]"},
        {"Checkpoints", CLI_GROUP, NULL, NULL, NULL},
        {"--save", CLI_TEXT, &p->t.save, "FOLDER", "folder of the checkpoints to write"},
        {"--save-every", CLI_COUNT, &p->t.save_every, "N",
         "steps between checkpoints; 0 = only one, at the end [0]"},
        {"--keep", CLI_COUNT, &p->t.keep, "N", "number of newest checkpoints to retain; 0 = all [2]"},
        {"--resume", CLI_TEXT, &p->t.resume, "FOLDER", "resume from the newest checkpoint in this folder"},
        {"--load", CLI_TEXT, &p->t.load, "PATH",
         "initial weights: a safetensors file, an index of shards, or a folder with them"},
        {"--export", CLI_TEXT, &p->t.store, "FILE", "file for the trained weights (safetensors)"},
        {"Reports", CLI_GROUP, NULL, NULL, NULL},
        {"--eval-every", CLI_COUNT, &p->t.eval_every, "N",
         "steps between evaluations on held-out data; 0 = only one, after the last step [0]"},
        {"--json", CLI_TEXT, &p->json, "FILE", "file for the JSON lines of the run"},
        {"--report", CLI_TEXT, &p->report, "FILE.html",
         "HTML page with curves, the schedule, the transfers of each rank and parameter deltas"},
        {"--trace", CLI_TEXT, &p->trace, "FILE", "trace of the run for Perfetto"},
        {"--write-profile", CLI_TEXT, &p->write_profile, "P.csv",
         "file for the measured profile, input of --profile and `plan`"},
        {"--write-graph", CLI_TEXT, &p->write_graph, "G.json",
         "file for the model's operators, input of `plan fence --graph`; trains nothing"},
        {"--quiet", CLI_FLAG, &p->quiet, "", "print no progress"},
        {"Emulation", CLI_GROUP, NULL, NULL, NULL},
        {"--emulate-compute", CLI_TEXT, &p->emulate, "P.csv",
         "emulate compute: layers sleep for the times of this profile"},
        {"--forward", CLI_REAL, &p->forward, "F",
         "ratio of forward to backward time, for a profile without forward times [0.5]"},
        {"--sleep", CLI_TEXT, &p->t.sleep, "S,S,..",
         "seconds that worker 0, 1, .. sleeps in each step; the last value applies to all later workers [0]"},
        {"--emulate-scale", CLI_REAL, &p->emulate_scale, "F",
         "divisor of the parameters in --emulate-compute; divide the rate of --net by it as well [1]"},
        {"--emulate-bytes", CLI_REAL, &p->t.emulate_bytes, "N",
         "with --stages: bytes of a micro-batch between two layers, before --emulate-scale [0]"},
        {"--average-state", CLI_SETTING, &p->cfg, "", NULL},
        {"--state-period", CLI_SETTING, &p->cfg, "M,V", NULL},
        {"--split-params", CLI_SETTING, &p->cfg, "N", NULL},
        {"--paper", CLI_SETTING, &p->cfg, "", NULL},
        {"--solver", CLI_SETTING, &p->cfg, "NAME", NULL},
        {"--cost", CLI_SETTING, &p->cfg, "NAME", NULL},
        {"--fill", CLI_SETTING, &p->cfg, "NAME", NULL},
        {"--bucket-bytes", CLI_SETTING, &p->cfg, "N", NULL},
        {"--partition-bytes", CLI_SETTING, &p->cfg, "N", NULL},
        {"--credit", CLI_SETTING, &p->cfg, "C", NULL},
        {"--merge-sum", CLI_SETTING, &p->cfg, "", NULL},
        {"--no-barrier", CLI_SETTING, &p->cfg, "", NULL},
        {"--update-frequency", CLI_SETTING, &p->cfg, "F", NULL},
        {"--preserve", CLI_SETTING, &p->cfg, "X", NULL},
        {"--servers", CLI_SETTING, &p->cfg, "N", NULL},
        {"--staleness", CLI_SETTING, &p->cfg, "S", NULL},
        {"--push-scale", CLI_SETTING, &p->cfg, "X", NULL},
        {"--defer", CLI_SETTING, &p->cfg, "F", NULL},
        {"--lgp", CLI_SETTING, &p->cfg, "NAME", NULL},
        {"--correct", CLI_SETTING, &p->cfg, "NAME", NULL},
        {"--split", CLI_SETTING, &p->cfg, "NAME", NULL},
        {"--outer-lr", CLI_SETTING, &p->cfg, "X", NULL},
        {"--outer-momentum", CLI_SETTING, &p->cfg, "X", NULL},
        {"--overlap", CLI_SETTING, &p->cfg, "NAME", NULL},
        {"--mixture", CLI_SETTING, &p->cfg, "A", NULL},
        {"--fragments", CLI_SETTING, &p->cfg, "N", NULL},
        {"--landing", CLI_SETTING, &p->cfg, "N", NULL},
        {"--compensation", CLI_SETTING, &p->cfg, "X", NULL},
        {"--connect-timeout", CLI_SETTING, &p->cfg, "S", NULL},
        {"--join-timeout", CLI_SETTING, &p->cfg, "S", NULL},
        {"--peer-timeout", CLI_SETTING, &p->cfg, "S", NULL},
        {"--op-timeout", CLI_SETTING, &p->cfg, "S", NULL},
        {"Elastic", CLI_GROUP, NULL, NULL, NULL},
        {"--min-world", CLI_COUNT, &p->min_world, "N",
         "smallest number of workers with which the run continues after a loss; also needs a majority; 0 = a "
         "loss ends the run [0]"},
        {"--max-world", CLI_COUNT, &p->max_world, "N",
         "largest number of workers; workers beyond --workers join with --join [--workers]"},
        {"--join", CLI_FLAG, &p->join, "",
         "join a running elastic run at --addr, for example in place of a lost worker"},
        {"--insecure", CLI_SETTING, &p->cfg, "", NULL},
        {"--tls-psk", CLI_SETTING, &p->cfg, "FILE", NULL},
        {"--tls-ca", CLI_SETTING, &p->cfg, "FILE", NULL},
        {"--tls-cert", CLI_SETTING, &p->cfg, "FILE", NULL},
        {"--tls-key", CLI_SETTING, &p->cfg, "FILE", NULL},
        {"Network", CLI_GROUP, NULL, NULL, NULL},
        {"--net2", CLI_SETTING, &p->cfg, "RATE,DELAY", NULL},
        {"--net-script", CLI_SETTING, &p->cfg, "FILE", NULL},
        {"--probe", CLI_FLAG, &p->t.probe, "",
         "measure all links before training, so that rings use the fast links"},
        {"Device", CLI_GROUP, NULL, NULL, NULL},
        {"--device", CLI_TEXT, &p->device, "NAME", "cpu, or cuda in a build with nvcc [cpu]"},
        {"--numbers", CLI_TEXT, &p->numbers, "NAME",
         "--device cuda: f32, tf32, or bf16 with float32 master weights [f32]"},
        {"--nccl", CLI_FLAG, &p->nccl, "",
         "--device cuda: send layers between GPUs with NCCL; needs one GPU per worker"},
        {"--both-links", CLI_FLAG, &p->both_links, "",
         "--device cuda: send each layer with NCCL or over --transport, whichever is faster"},
        {"Debug", CLI_GROUP, NULL, NULL, NULL},
        {"--overwrite", CLI_FLAG, &p->overwrite, "", "replace the checkpoints of another run in --save"},
        {"--check-writes", CLI_SETTING, &p->cfg, "", NULL},
        {"--dump", CLI_TEXT, &p->dump, "FILE",
         "file for the last operations after an error or SIGUSR1; %r is the rank [in the folder of --save]"},
    };

    static const char *const order[] = {"Simulation", "Model",    "Data",        "Strategy",
                                        "Training",   "Pipeline", "Checkpoints", "Reports"};
    enum { ORDER = sizeof order / sizeof order[0] };
    const int all = ORDER + count + (int)(sizeof shared / sizeof shared[0]);
    cli_option table[OPTIONS];
    char text[1500];
    int code;

    memset(table, 0, sizeof table);
    for (int i = 0; i < ORDER; i++) { /* order of the groups in --help */
        table[i].name = order[i];
        table[i].kind = CLI_GROUP;
    }
    memcpy(table + ORDER, own, (size_t)count * sizeof *own);
    memcpy(table + ORDER + count, shared, sizeof shared);
    cli_command(argc, argv, p->command, sizeof p->command);
    presets_help(p->name, about, text, sizeof text);
    code = cli_parse(argc, argv, text, table, all);
    if (code < 0 && p->preset) code = preset_apply(p, table, all);
    /* parsed again, so that options of the command line replace those that the preset has set */
    return code < 0 && p->preset ? cli_parse(argc, argv, text, table, all) : code;
}

/* Returns the value of an option, else of a variable, else a default. */
static const char *or_environment(const char *given, const char *variable, const char *otherwise)
{
    const char *v = given ? given : getenv(variable);
    return v && *v ? v : otherwise;
}

/* Converts names to enumerations. */
static ddp_status choose(program *p, ddp_error *err)
{
    ddp_config *c = &p->cfg;
    float lr = (float)p->lr, decay = (float)p->weight_decay;

    p->strategy = or_environment(p->strategy, "DREAMDDP_STRATEGY", ddp_strategy_name(ddp_strategy_number(0)));
    p->transport = or_environment(p->transport, "DREAMDDP_TRANSPORT", "tcp");
    c->strategy = ddp_strategy_named(p->strategy);
    if (c->strategy == DDP_STRATEGY_DEFAULT)
        return refuse(err, "unknown strategy %s; choose %s", p->strategy, p->strategies);
    if (p->pipeline && ddp_pipeline_named(p->pipeline, &p->t.pipeline, err)) return err->code;
    if (p->edge_wire && ddp_edge_wire_parse(p->edge_wire, &p->t.edge, err)) return err->code;
    c->transport = ddp_transport_named(p->transport);
    if (c->transport == DDP_TRANSPORT_DEFAULT || c->transport == DDP_SOCKETS)
        return refuse(err, "unknown transport %s; choose tcp, threads or mpi", p->transport);
    if (!ddp_schedule_named(p->schedule, &p->t.schedule.kind))
        return refuse(err, "unknown schedule %s; choose constant, cosine or step", p->schedule);
    if (!strcmp(p->optimizer, "sgd"))
        p->t.optimizer = ddp_sgd_decay(lr, 0.9f, decay);
    else if (!strcmp(p->optimizer, "nesterov"))
        p->t.optimizer = ddp_nesterov(lr, 0.9f, decay);
    else if (!strcmp(p->optimizer, "adam"))
        p->t.optimizer = ddp_adam(lr, 0.9f, 0.999f, 1e-8f, decay);
    else if (!strcmp(p->optimizer, "adamw"))
        p->t.optimizer = ddp_adamw(lr, 0.9f, 0.999f, 1e-8f, decay);
    else if (!strcmp(p->optimizer, "muon"))
        p->t.optimizer = ddp_muon(lr, (float)p->muon_lr, 0.95f, decay);
    else
        return refuse(err, "unknown optimizer %s; choose sgd, nesterov, adam, adamw or muon", p->optimizer);
    return DDP_OK;
}

/* Sets the number of workers, from --workers or from the launcher that started this process. */
static ddp_status choose_workers(program *p, ddp_error *err)
{
    const int servers = p->cfg.server.count > 0 ? p->cfg.server.count : 0;
    const char *launcher = NULL, *starter;
    int rank = 0, world = 0;

    if (!p->join && !p->launch && ddp_launched(&launcher, &rank, &world, err)) return err->code;
    starter = launcher && !strcmp(launcher, "DREAMDDP_RANK") ? "ddprun (DREAMDDP_WORLD_SIZE)" : launcher;
    if (launcher && p->rank >= 0 && p->rank != rank)
        return refuse(err, "--rank %ld, but this process is rank %d according to %s; leave --rank out",
                      p->rank, rank, launcher);
    if (launcher && p->workers >= 0 && p->workers + servers != world)
        return refuse(err, "--workers %ld%s, but %s started %d rank%s; leave --workers out, or start %ld",
                      p->workers, servers ? " and --servers" : "", starter, world, world == 1 ? "" : "s",
                      p->workers + servers);
    if (launcher && world <= servers)
        return refuse(
            err, "--servers %d, but %s started %d rank%s; start one rank for each worker and each server",
            servers, starter, world, world == 1 ? "" : "s");
    p->launched = launcher != NULL;
    if (launcher) p->workers = world - servers;
    if (p->workers < 0) p->workers = 1;
    return DDP_OK;
}

/* Sets the stages and the workers that run them. Needs the model. */
static ddp_status choose_stages(program *p, ddp_error *err)
{
    training *t = &p->t;
    ddp_graph *g = p->cut ? ddp_graph_new(NULL) : NULL;
    ddp_status s = DDP_OK;

    if (g) training_add_model(g, t, t->model.batch, t->model.context, NULL);
    if (p->placement || p->cut)
        s = ddp_pipe_layout_read(p->placement, p->cut, g, (int)p->workers, &t->layout, err);
    ddp_graph_free(g);
    if (s != DDP_OK) return s;
    if (p->stages < 0) p->stages = t->layout.stages ? t->layout.stages : 1;
    if (t->layout.stages && p->stages != t->layout.stages)
        return refuse(err, "--stages %ld, but %s has %d stages; leave --stages out", p->stages,
                      p->placement ? p->placement : p->cut, t->layout.stages);
    if (p->stages < 1 || p->workers % p->stages)
        return refuse(err, "--stages %ld must be at least 1, and --workers %ld must be a multiple of it",
                      p->stages, p->workers);
    if (p->emulate && p->accumulate > 1 && p->stages == 1)
        return refuse(err,
                      "--accumulate %ld with --emulate-compute needs --stages N, at least 2; without stages, "
                      "emulated compute has one micro-batch",
                      p->accumulate);
    if (p->pipeline && p->stages == 1)
        return refuse(err, "--pipeline %s needs --stages N, at least 2", p->pipeline);
    if (t->emulate_bytes > 0 && (!p->emulate || p->stages == 1))
        return refuse(err, "--emulate-bytes %g needs --emulate-compute P.csv and --stages N, at least 2",
                      t->emulate_bytes);
    if (p->ahead && p->stages == 1) return refuse(err, "--ahead %ld needs --stages N, at least 2", p->ahead);
    if (p->min_replicas && p->stages == 1)
        return refuse(err, "--min-replicas %ld needs --stages N, at least 2; without stages, use --min-world",
                      p->min_replicas);
    if (p->min_replicas && p->placement)
        return refuse(err,
                      "--min-replicas %ld cannot be combined with --placement %s, which places the ranks of "
                      "one fixed world",
                      p->min_replicas, p->placement);
    if (p->min_replicas > p->workers / p->stages)
        return refuse(err,
                      "--min-replicas %ld is too high: --workers %ld make only %ld pipelines of --stages %ld",
                      p->min_replicas, p->workers, p->workers / p->stages, p->stages);
    if ((p->edge_wire || p->edge_feedback) && p->stages == 1)
        return refuse(err,
                      "%s%s needs --stages N, at least 2; without stages there are no activations to send",
                      p->edge_wire ? "--edge-wire " : "--edge-feedback", p->edge_wire ? p->edge_wire : "");
    if (p->edge_feedback && (t->edge.coding < DDP_EDGE_INT8 || t->edge.coding > DDP_EDGE_ADATOPK))
        return refuse(
            err,
            "--edge-feedback needs --edge-wire int8, topk:R or adatopk:R; other formats have no residual");
    t->stages = (int)p->stages;
    return DDP_OK;
}

/* Checks the options that ddp_open does not check. */
static ddp_status check(const program *p, ddp_error *err)
{
    if (p->workers < 1 || p->workers > p->most)
        return refuse(err, "--workers %ld must be from 1 to %ld", p->workers, p->most);
    if (p->steps < 1 && !p->epochs) return refuse(err, "--steps %ld must be at least 1", p->steps);
    if (p->batch < 1) return refuse(err, "--batch 0 must be at least 1 %s", p->samples);
    if (p->accumulate < 1) return refuse(err, "--accumulate 0 must be at least 1 micro-batch");
    if (p->accumulate > 1000000)
        return refuse(err, "--accumulate %ld must be at most 1000000 micro-batches; use a larger --batch",
                      p->accumulate);
    if (p->ahead > 1000000)
        return refuse(err, "--ahead %ld must be at most 1000000; values above --microbatches have no effect",
                      p->ahead);
    if (!(p->t.emulate_bytes >= 0 && p->t.emulate_bytes <= 1e12))
        return refuse(err, "--emulate-bytes %g must be from 0 to 1e12", p->t.emulate_bytes);
    if (!(p->lr > 0)) return refuse(err, "--lr %g must be above 0; 0.003 suits adamw", p->lr);
    if (!(p->muon_lr > 0)) return refuse(err, "--muon-lr %g must be above 0; 0.02 suits muon", p->muon_lr);
    if (!(p->weight_decay >= 0))
        return refuse(err, "--weight-decay %g must not be negative", p->weight_decay);
    if (!(p->clip >= 0 || p->clip <= -DBL_MAX))
        return refuse(err, "--clip %g must be above 0, or 0 for no limit", p->clip);
    if (!(p->dropout >= 0 && p->dropout < 1))
        return refuse(err, "--dropout %g must be a probability of at least 0 and below 1; 0 means no dropout",
                      p->dropout);
    if (!(p->held_out >= 0 && p->held_out < 1))
        return refuse(err, "--held-out %g must be a fraction of at least 0 and below 1", p->held_out);
    if (!(p->forward >= 0 && p->forward <= 1000))
        return refuse(err, "--forward %g must be from 0 to 1000, a multiple of the backward time",
                      p->forward);
    if (!(p->emulate_scale >= 1))
        return refuse(err, "--emulate-scale %g must be at least 1; 1 sends every byte", p->emulate_scale);
    if (p->rank >= p->workers + (p->cfg.server.count > 0 ? p->cfg.server.count : 0))
        return refuse(err, "--rank %ld is outside --workers %ld%s; ranks start at 0", p->rank, p->workers,
                      p->cfg.server.count > 0 ? " and --servers" : "");
    if (p->min_world > p->workers && !p->join) /* a joining worker receives both from the run */
        return refuse(err, "--min-world %ld is more than --workers %ld", p->min_world, p->workers);
    if (p->max_world && ((p->max_world < p->workers && !p->join) || p->max_world > 64))
        return refuse(err, "--max-world %ld must be at least --workers %ld and at most 64", p->max_world,
                      p->workers);
    if (p->max_world && !p->min_world && !p->join)
        return refuse(err, "--max-world %ld needs --min-world", p->max_world);
    if (p->join && !p->addr) return refuse(err, "--join needs --addr with the address of a live worker");
    if (p->join && p->rank >= 0)
        return refuse(
            err, "--join cannot be combined with --rank %ld; the run assigns the rank of a joining worker",
            p->rank);
    if (p->join && (p->t.resume || p->t.load))
        return refuse(err, "--join cannot be combined with --resume or --load; a joining worker receives its "
                           "state from the run");
    if (p->addr && p->rank < 0 && !p->join)
        return refuse(err,
                      "--addr %s needs --rank R or --join; start one process per rank, each with its --rank",
                      p->addr);
    if (p->rank >= 0 && p->cfg.transport == DDP_THREADS)
        return refuse(err, "--rank %ld needs --transport tcp; threads are ranks of one process", p->rank);
    if (p->rank >= 0 && p->cfg.transport == DDP_MPI)
        return refuse(err, "--rank %ld needs --transport tcp; under mpi the launcher assigns ranks", p->rank);
    if (p->t.save_every && !p->t.save)
        return refuse(err, "--save-every %ld needs --save FOLDER", p->t.save_every);
    if (p->overwrite && !p->t.save) return refuse(err, "--overwrite needs --save FOLDER");
    if (training_sleep_of(p->t.sleep, 0) < 0)
        return refuse(err, "--sleep %s must be seconds from 0 to 3600 for worker 0, 1, .., such as 0.1,0.2",
                      p->t.sleep);
    if (p->t.sleep && p->emulate)
        return refuse(
            err,
            "--sleep %s cannot be combined with --emulate-compute, which sleeps for the times of its file",
            p->t.sleep);
    if (p->t.eval_every && p->emulate)
        return refuse(err,
                      "--eval-every %ld cannot be combined with --emulate-compute, which trains no model",
                      p->t.eval_every);
    if (p->t.eval_every && p->held_out <= 0)
        return refuse(err, "--eval-every %ld needs held-out data; add --held-out 0.1", p->t.eval_every);
    if (p->t.load && p->t.resume)
        return refuse(err, "--load %s cannot be combined with --resume %s; a checkpoint contains its weights",
                      p->t.load, p->t.resume);
    if (p->emulate && (p->t.load || p->t.store))
        return refuse(err,
                      "--load and --export cannot be combined with --emulate-compute, which has no weights");
    if (p->emulate && p->epochs)
        return refuse(
            err, "--epochs %ld cannot be combined with --emulate-compute, which has no data; use --steps",
            p->epochs);
    if (p->emulate && p->write_graph)
        return refuse(err,
                      "--write-graph %s cannot be combined with --emulate-compute, which has no operators",
                      p->write_graph);
    return DDP_OK;
}

/* Sets the path of the dump. Each rank needs a separate file, so %r is appended if missing. */
static void choose_dump(program *p)
{
    const char *name = or_environment(p->dump, "DREAMDDP_DUMP", NULL);

    if (!name && !p->t.save) return;
    if (!name)
        snprintf(p->dump_path, sizeof p->dump_path, "%.1000s/dump.%%r.jsonl", p->t.save);
    else
        snprintf(p->dump_path, sizeof p->dump_path, "%.1000s%s", name, strstr(name, "%r") ? "" : ".%r");
    p->cfg.debug.dump_path = p->t.dump = p->dump_path;
}

static void configure(program *p)
{
    ddp_config *c = &p->cfg;

    choose_dump(p);
    if (!p->launched && (p->rank >= 0 || p->workers > 1 || c->server.count > 0))
        c->world = (int)p->workers + (c->server.count > 0 ? c->server.count : 0);
    c->addr = p->addr;
    c->elastic.min_world = (int)p->min_world;
    c->elastic.max_world = (int)p->max_world;
    c->elastic.join = p->join;
    p->t.elastic = p->min_world > 0 || p->min_replicas > 0 || p->join;
    p->t.alone = c->server.count != 0;
    if (p->rank >= 0 && !p->launched) {
        c->rank = (int)p->rank;
        if (!p->addr) c->addr = or_environment(NULL, "DREAMDDP_ADDR", "127.0.0.1:29500");
    }
    c->net = p->net;
    c->seed = (uint64_t)p->seed;
    c->micro_batches = (int)p->accumulate;
    p->t.edge.feedback = p->edge_feedback;
    if (p->emulate && !c->gradient.bucket_bytes)
        c->gradient.bucket_bytes = (size_t)(25 * 1048576 / p->emulate_scale); /* scaled down like the
                                                                               * layers */
    if (p->emulate && !c->gradient.partition_bytes)
        c->gradient.partition_bytes = (size_t)(26e6 / p->emulate_scale);
    c->clip_norm = p->clip > 0 ? (float)p->clip : 0;
    if (p->clip == 0) (void)unsetenv("DREAMDDP_CLIP_NORM"); /* else the library would use this variable */
    c->debug.overwrite = p->overwrite;
    c->debug.trace_spans = p->trace || p->report ? TRAINING_SPANS : 0;
    c->cancel = &cli_interrupted;
}

#endif /* EXAMPLES_TRAINER_OPTIONS_H */
