/* FusionLLM's broker: estimates a job, partitions it over the connected nodes, sends each node its
 * description, weights and data, collects the losses, and restarts the job when a node is lost.
 *
 *   cc -O2 -I. examples/broker/broker.c -o broker -lm -lpthread
 *   ./broker --nodes 2 --model gpt2 --data dreamddp.h & ./compnode & ./compnode
 *
 * The last line of stdout is one JSON object with the results. --help lists the options. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <dirent.h>
#include "../common/cli.h"
#include "../common/channel.h"
#include "../common/keys.h"
#include "../common/progress.h"
#include "job_json.h"
#include "job_part.h"
#include "work.h"
#include "nodes.h"

typedef struct broker {
    work w;
    nodes n;
    ddp_network net; /* links of the nodes, in the order of their registration */
    char *net_text;  /* emulated links. NULL means that links are not emulated. */
    size_t net_bytes;
    channel_state *state[2]; /* [ops] the last checkpoint, and the one being received */
    long saved;              /* step of the checkpoint, or 0 for the start of the job */
    int device[NODES];       /* of stage s */
    int stages;
    double predicted_s, first_loss, last_loss[10];
    channel_done done;
    int restarts;
    progress line;
} broker;

/* ---- the cut ---- */

static void ask(broker *b, connection *p, channel_word word, const void *what, size_t bytes)
{
    p->asked = 1;
    p->c.patience = 0;
    node_send(&b->n, p, word, what, bytes, NULL, 0);
}

/* Returns the description of a stage, or of the whole job for -1. */
static ddp_status ask_with_job(broker *b, connection *p, channel_word word, int stage, ddp_error *err)
{
    char *text = job_text(&b->w.j, stage);

    if (!text) return refuse(err, DDP_MEMORY, "out of memory for a description");
    ask(b, p, word, text, strlen(text));
    job_text_free(text);
    return DDP_OK;
}

/* Parses a WORD_SPEED. 0 means that it is malformed. */
static int take_speed(connection *p)
{
    return sscanf(p->c.data, "%lf %d", &p->speed, &p->port) == 2 && p->speed > 0 && p->speed < 1e30 &&
           p->port > 0 && p->port <= 65535;
}

static ddp_status take_network(broker *b, const channel *c, ddp_error *err)
{
    free(b->net_text);
    b->net_bytes = c->bytes;
    b->net_text = (char *)malloc(c->bytes + 1);
    if (!b->net_text) return refuse(err, DDP_MEMORY, "out of memory for a network of %zu bytes", c->bytes);
    memcpy(b->net_text, c->data, c->bytes + 1);
    return DDP_OK;
}

/* Waits for the answers of all asked nodes: `kind` or a failure. A node that sends any other message is
 * lost. */
static ddp_status answers(broker *b, channel_word kind, double seconds, ddp_error *err)
{
    int open = 0, from;

    for (int i = 0; i < b->n.wanted; i++) open += b->n.peer[i].asked;
    while (open) {
        const channel_word w = next_word(&b->n, &from, ddp_now() + seconds);
        channel_word due;
        connection *p;
        if (!w) return refuse(err, DDP_PEER_LOST, "no answer of a node within %g s", seconds);
        if (from < 0) continue;
        p = &b->n.peer[from];
        due = kind == WORD_NETWORK && from > 0 ? WORD_READY : kind; /* the first node has measured the links
                                                                       of all */
        if (w == WORD_LOST || !p->asked || (w != due && w != WORD_FAIL)) {
            if (w != WORD_LOST) channel_unexpected(&p->c);
            node_lost(&b->n, from);
            if (from >= b->n.wanted) continue;
            return refuse(err, DDP_PEER_LOST, "node %d is gone", from);
        }
        open--;
        p->asked = 0;
        if (w == WORD_FAIL) return node_failed(&b->n, from, err);
        if (w == WORD_SPEED && !take_speed(p)) {
            channel_printable(p->c.data);
            return refuse(err, DDP_FORMAT, "node %d sent \"%.60s\" as its speed and port", from, p->c.data);
        }
        if (w == WORD_NETWORK && take_network(b, &p->c, err)) return err->code;
    }
    return DDP_OK;
}

/* Measures one node after the other, because they may share a machine. */
static ddp_status measure(broker *b, ddp_error *err)
{
    ddp_status s = DDP_OK;

    for (int i = 0; s == DDP_OK && i < b->n.wanted; i++) {
        s = ask_with_job(b, &b->n.peer[i], WORD_MEASURE, -1, err);
        if (s == DDP_OK) s = answers(b, WORD_SPEED, 120, err);
    }
    return s;
}

/* Lets the nodes measure the links between them. */
static ddp_status probe(broker *b, ddp_error *err)
{
    char path[CHANNEL_PATH], text[200];
    ddp_status s;

    if (b->n.wanted == 1) return ddp_network_new(1, &b->net, err);
    for (int i = 0; i < b->n.wanted; i++) {
        snprintf(text, sizeof text, "%d %d %s:%d", i, b->n.wanted, b->n.peer[0].host, b->n.peer[0].port);
        ask(b, &b->n.peer[i], WORD_PROBE, text, strlen(text));
    }
    s = answers(b, WORD_NETWORK, 300, err);
    if (s != DDP_OK) return s;
    s = write_temporary(b->net_text, b->net_bytes, path, err);
    if (s == DDP_OK) s = ddp_network_read(path, NULL, &b->net, err);
    if (path[0]) remove(path);
    free(b->net_text);
    b->net_text = NULL;
    if (s == DDP_OK && b->net.devices != b->n.wanted) {
        s = refuse(err, DDP_FORMAT, "node 0 sent a network of %d devices, and there are %d nodes",
                   b->net.devices, b->n.wanted);
        ddp_network_free(&b->net);
    }
    return s;
}

static ddp_status network(broker *b, ddp_error *err)
{
    ddp_status s = measure(b, err);

    if (s != DDP_OK) return s;
    if (!b->w.network) {
        ddp_network_free(&b->net);
        s = probe(b, err);
    }
    if (s != DDP_OK || !strcmp(b->w.speed, "network")) return s;
    if (!b->net.speed) b->net.speed = (double *)calloc((size_t)b->net.devices, sizeof *b->net.speed);
    for (int i = 0; b->net.speed && i < b->net.devices; i++) b->net.speed[i] = b->n.peer[i].speed;
    return b->net.speed ? DDP_OK : refuse(err, DDP_MEMORY, "out of memory for speeds");
}

/* Reads the links that are known before the nodes register. */
static ddp_status read_network(broker *b, ddp_error *err)
{
    const work *w = &b->w;

    if (!w->network) return DDP_OK;
    if (ddp_network_read(w->network, NULL, &b->net, err)) return err->code;
    if (b->net.devices != w->nodes)
        return refuse(err, DDP_ARG, "%s has %d devices, --nodes says %ld", w->network, b->net.devices,
                      w->nodes);
    if (!strcmp(w->speed, "network") && !b->net.speed)
        return refuse(err, DDP_ARG, "%s has no tflops: leave --speed network out, and they are measured",
                      w->network);
    if (w->emulate) b->net_text = read_file(w->network, &b->net_bytes, err);
    return w->emulate && !b->net_text ? err->code : DDP_OK;
}

/* Estimates the operators and assigns each to a node. Nodes are numbered along the pipeline. */
static ddp_status cut(broker *b, ddp_error *err)
{
    job *j = &b->w.j;
    ddp_graph *g = ddp_graph_new(NULL);
    int *node_of = (int *)calloc((size_t)j->ops, sizeof *node_of), at = 0;
    ddp_fence_options o;
    ddp_fence_plan plan;
    ddp_oplist list;
    ddp_node *loss;
    ddp_status s;

    memset(&o, 0, sizeof o);
    memset(&plan, 0, sizeof plan);
    memset(&list, 0, sizeof list);
    o.work.microbatches = j->micro_batches;
    o.work.samples = (double)b->w.batch * (double)j->micro_batches;
    s = node_of ? ddp_fence_solver_named(b->w.solver, &o.solver, err)
                : refuse(err, DDP_MEMORY, "out of memory for a cut");
    if (s == DDP_OK) s = job_build(j, g, &loss, err);
    for (int i = 0; s == DDP_OK && i < b->n.count; i++)
        b->n.peer[i].c.most = sizeof(channel_part) + job_largest(j, g);
    if (s == DDP_OK) s = ddp_graph_oplist(g, &list, err);
    if (s == DDP_OK) s = ddp_fence(&list, &b->net, &o, &plan, err);
    ddp_graph_free(g);
    if (s == DDP_OK) {
        b->predicted_s = plan.work.pipeline_s;
        b->stages = plan.segments;
        for (int k = 0; k < plan.segments; k++) b->device[k] = plan.segment[k].device;
        for (int i = 0, k = 0; i < j->ops; i++) {
            if (j->op[i].type == JOB_PLACEHOLDER) continue;
            while (k + 1 < plan.segments && at >= plan.segment[k].end) k++;
            node_of[i] = k;
            at++;
        }
        s = job_cut(j, node_of, plan.segments, err);
    }
    for (int k = 0; s == DDP_OK && !b->w.quiet && k < plan.segments; k++)
        fprintf(stderr,
                "broker: stage %d on node %d (%s, %.1f GFLOP/s): operators %d to %d of %d, %s to %s\n", k,
                b->device[k], b->n.peer[b->device[k]].host, 1e-9 * b->net.speed[b->device[k]],
                plan.segment[k].first, plan.segment[k].end - 1, list.count,
                list.op[plan.segment[k].first].name, list.op[plan.segment[k].end - 1].name);
    ddp_fence_plan_free(&plan);
    ddp_oplist_free(&list);
    free(node_of);
    return s;
}

/* ---- shipping ---- */

static connection *peer_of(broker *b, int stage) { return &b->n.peer[b->device[stage]]; }

static ddp_status ship_jobs(broker *b, ddp_error *err)
{
    ddp_status s = DDP_OK;

    for (int k = 0; s == DDP_OK && k < b->stages; k++) s = ask_with_job(b, peer_of(b, k), WORD_JOB, k, err);
    return s == DDP_OK ? answers(b, WORD_READY, 120, err) : s;
}

static void ship_start(broker *b)
{
    channel_start start;
    size_t used = 0;

    memset(&start, 0, sizeof start);
    snprintf(start.addr, sizeof start.addr, "%.63s:%d", peer_of(b, 0)->host, peer_of(b, 0)->port);
    for (int k = 0; b->net_text && k < b->stages && used < sizeof start.devices; k++)
        used += (size_t)snprintf(start.devices + used, sizeof start.devices - used, "%s%d", k ? "," : "@",
                                 b->device[k]);
    start.first = b->saved;
    start.save_every = b->w.save_every;
    start.world = b->stages;
    start.send_back = b->w.store != NULL;
    start.peer_timeout_s = b->w.peer_timeout;
    for (int i = 0; i < b->w.j.ops; i++) {
        const channel_part part = {i, 0};
        const channel_state *x = &b->state[0][i];
        if (x->x)
            node_send(&b->n, peer_of(b, b->w.j.op[i].node), WORD_STATE, &part, sizeof part, x->x,
                      x->floats * sizeof(float));
    }
    for (int k = 0; k < b->stages; k++) {
        if (b->net_text) node_send(&b->n, peer_of(b, k), WORD_NETWORK, b->net_text, b->net_bytes, NULL, 0);
        start.rank = k;
        ask(b, peer_of(b, k), WORD_START, &start, sizeof start);
        peer_of(b, k)->c.patience = CHANNEL_STEP_SECONDS; /* it reads its data between steps */
    }
}

static void ship_data(broker *b, long step)
{
    job *j = &b->w.j;

    for (int m = 0; m < j->micro_batches; m++) {
        next_batch(&b->w, step, m);
        for (int i = 0; i < j->ops; i++)
            for (int k = 0; j->op[i].type == JOB_PLACEHOLDER && k < b->stages; k++) {
                const channel_part part = {i, m};
                if (job_user(j, i, k) < 0) continue;
                node_send(&b->n, peer_of(b, k), WORD_DATA, &part, sizeof part, b->w.at[i == b->w.y],
                          4 * (size_t)work_count(&b->w, i));
            }
    }
}

/* ---- an attempt ---- */

static void note_loss(broker *b, long step, double loss)
{
    if (step == 0) b->first_loss = loss;
    b->last_loss[step % 10] = loss;
    progress_step(&b->line, step + 1, loss,
                  b->w.tokens ? (double)(b->w.batch * b->w.seq * b->w.j.micro_batches) : 0);
}

/* 1 if a training node sends a message that it must not send. */
static int misplaced(const broker *b, channel_word w, int from)
{
    const connection *p = &b->n.peer[from];
    const job *j = &b->w.j;
    channel_part part;

    switch (w) {
    case WORD_LOSS:
        return b->device[j->op[j->loss].node] != from;
    case WORD_SAVED:
        return p->saved || (!b->w.save_every && !b->w.store);
    case WORD_STATE:
        memcpy(&part, p->c.data, sizeof part);
        return part.op < 0 || part.op >= j->ops || j->op[part.op].type == JOB_PLACEHOLDER ||
               b->device[j->op[part.op].node] != from;
    default:
        return w != WORD_DONE && w != WORD_FAIL;
    }
}

/* Replaces the checkpoint after all nodes have sent their part of the next one. */
static void take_checkpoint(broker *b, long step)
{
    channel_state *state = b->state[0];

    b->state[0] = b->state[1];
    b->state[1] = state;
    b->saved = step;
    for (int i = 0; i < b->n.count; i++) b->n.peer[i].saved = 0;
}

/* Sends data one step ahead and receives messages until all nodes are done. DDP_PEER_LOST: a node is lost. */
static ddp_status run(broker *b, ddp_error *err)
{
    const long steps = b->w.j.steps, every = b->w.save_every;
    long sent = b->saved, heard = b->saved, hold = every ? (b->saved / every + 1) * every : steps;
    int saves = 0, done = 0, from;

    for (int i = 0; i < b->n.count; i++) b->n.peer[i].saved = 0;
    while (done < b->stages) {
        channel_word w;
        for (; sent < steps && sent < heard + 2 && sent < hold; sent++)
            ship_data(b, sent); /* the data after a checkpoint are sent when it has arrived */
        w = next_word(&b->n, &from, ddp_now() + 3600);
        if (!w && !cli_interrupted) return refuse(err, DDP_TIMEOUT, "no node sent a message for an hour");
        if (!w) return DDP_ABORTED;
        if (from < 0) continue;
        if (!b->n.peer[from].asked) { /* a spare or a finished node: it is lost, or sent an unexpected
                                       * message */
            if (w != WORD_LOST) channel_unexpected(&b->n.peer[from].c);
            node_leaves(&b->n, from);
            continue;
        }
        if (w != WORD_LOST && misplaced(b, w, from)) {
            channel_unexpected(&b->n.peer[from].c);
            return DDP_PEER_LOST;
        }
        if (w == WORD_LOST) return DDP_PEER_LOST;
        if (w == WORD_FAIL) return b->n.peer[from].asked = 0, node_failed(&b->n, from, err);
        if (w == WORD_STATE && !channel_keep(&b->n.peer[from].c, b->state[1], b->w.j.ops))
            return refuse(err, DDP_MEMORY, "out of memory for a checkpoint");
        if (w == WORD_LOSS) {
            double loss;
            memcpy(&loss, b->n.peer[from].c.data, sizeof loss);
            if (heard == steps)
                return refuse(err, DDP_FORMAT, "node %d sent more losses than the job has steps", from);
            note_loss(b, heard++, loss);
        }
        if (w == WORD_SAVED) b->n.peer[from].saved = 1;
        if (w == WORD_SAVED && ++saves == b->stages) {
            take_checkpoint(b, hold < steps ? hold : steps);
            saves = 0;
            hold += every ? every : steps;
        }
        if (w == WORD_DONE) {
            b->n.peer[from].asked = 0;
            memcpy(&b->done, b->n.peer[from].c.data, sizeof b->done);
            done++;
        }
    }
    return heard == steps
               ? DDP_OK
               : refuse(err, DDP_FORMAT, "all nodes have ended, but sent the losses of %ld of %ld steps",
                        heard, steps);
}

static ddp_status attempt(broker *b, ddp_error *err)
{
    ddp_status s;

    s = network(b, err);
    if (s == DDP_OK) s = cut(b, err);
    if (s == DDP_OK) s = ship_jobs(b, err);
    if (s != DDP_OK) return s;
    ship_start(b);
    progress_start(&b->line, b->w.quiet ? NULL : stderr, b->w.model ? b->w.model : b->w.job_file,
                   b->w.j.steps);
    s = run(b, err);
    progress_end(&b->line);
    return s;
}

/* Repeats attempts until one succeeds. */
static ddp_status train(broker *b, ddp_error *err)
{
    ddp_status s = gather(&b->n, 0, b->w.quiet, err);

    while (s == DDP_OK) {
        ddp_error why;
        memset(&why, 0, sizeof why);
        s = attempt(b, &why);
        if (s == DDP_OK) return s;
        if (cli_interrupted) return refuse(err, DDP_ABORTED, "interrupted");
        *err = why;
        if (s != DDP_PEER_LOST) return s;
        memset(err, 0, sizeof *err);
        if (settle(&b->n, b->w.peer_timeout, err)) return err->code;
        if (++b->restarts > b->w.restarts)
            return refuse(err, DDP_PEER_LOST, "nodes were lost %d times, and --restarts is %ld", b->restarts,
                          b->w.restarts);
        if (b->saved)
            fprintf(stderr, "broker: a node was lost; the job resumes from its checkpoint after step %ld\n",
                    b->saved);
        else
            fprintf(stderr, "broker: a node was lost; the job starts again from the beginning (--save-every "
                            "keeps checkpoints)\n");
        s = gather(&b->n, b->w.join_timeout, b->w.quiet, err);
    }
    return s;
}

/* ---- weights ---- */

/* Converts a file of weights to the state of the operators, or back. Builds the whole model. */
static ddp_status weights(broker *b, int store, ddp_error *err)
{
    job *j = &b->w.j;
    ddp_graph *g = ddp_graph_new(NULL);
    job_part *part = NULL;
    ddp_node *loss;
    int node = j->node;
    ddp_status s;

    j->node = -1;
    s = job_build(j, g, &loss, err);
    j->node = node;
    if (s == DDP_OK && ddp_graph_build(g)) s = refuse(err, DDP_MEMORY, "%.400s", ddp_graph_error(g)->msg);
    if (s == DDP_OK && !store) s = ddp_weights_load(g, b->w.load, err);
    if (s == DDP_OK) part = job_open(j, g, 0, err);
    if (s == DDP_OK && !part) s = err->code;
    for (int i = 0; s == DDP_OK && i < j->ops; i++) {
        const size_t n = job_floats(part, i, 1);
        channel_state *x = &b->state[0][i];
        if (!n) continue;
        if (!store) {
            x->x = (float *)malloc(n * sizeof(float));
            x->floats = n;
        }
        if (!x->x || (store ? job_put(part, i, x->x, n) : job_get(part, i, 1, x->x)))
            s = refuse(err, DDP_MEMORY, "the weights of operator %s were not received", j->op[i].name);
    }
    if (s == DDP_OK && store) s = ddp_weights_save(g, b->w.store, err);
    job_close(part);
    ddp_graph_free(g);
    return s;
}

/* ---- the program ---- */

static ddp_status print_results(const broker *b, ddp_error *err)
{
    const long steps = b->w.j.steps, last = steps / 10 + 1 < 10 ? steps / 10 + 1 : 10;
    ddp_jsonl *out = ddp_jsonl_stream(stdout, err);
    char hash[17];
    double mean = 0;

    for (long i = steps - last; i < steps; i++) mean += b->last_loss[i % 10] / (double)last;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)b->done.hash);
    ddp_jsonl_event(out, NULL);
    ddp_jsonl_string(out, "model", b->w.model ? b->w.model : b->w.job_file);
    ddp_jsonl_integer(out, "nodes", b->n.wanted);
    ddp_jsonl_integer(out, "stages", b->stages);
    ddp_jsonl_string(out, "solver", b->w.solver);
    ddp_jsonl_integers(out, "devices", b->device, b->stages);
    ddp_jsonl_number(out, "final_loss", mean);
    ddp_jsonl_number(out, "first_loss", b->first_loss);
    ddp_jsonl_integer(out, "steps", steps);
    ddp_jsonl_number(out, "step_ms", 1e3 * b->done.step_s);
    ddp_jsonl_number(out, "predicted_step_ms", 1e3 * b->predicted_s);
    ddp_jsonl_integer(out, "restarts", b->restarts);
    ddp_jsonl_string(out, "param_hash", hash);
    ddp_jsonl_end(out);
    return ddp_jsonl_close(out, err);
}

static ddp_status write_job(const broker *b, ddp_error *err)
{
    char *text = job_text(&b->w.j, -1);
    ddp_status s = text ? write_file(b->w.write_job, text, strlen(text), err)
                        : refuse(err, DDP_MEMORY, "out of memory for a description");

    job_text_free(text);
    return s;
}

static ddp_status work_with_nodes(broker *b, ddp_error *err)
{
    const size_t ops = (size_t)b->w.j.ops;
    ddp__addr at;
    ddp_status s;

    for (int i = 0; i < 2; i++) {
        b->state[i] = (channel_state *)calloc(ops, sizeof *b->state[i]);
        if (!b->state[i]) return refuse(err, DDP_MEMORY, "out of memory for a checkpoint");
    }
    s = read_network(b, err);
    if (s == DDP_OK && b->w.load) s = weights(b, 0, err);
    if (s == DDP_OK) s = channel_keys_open(&b->w.keys, &b->n.tls, err);
    if (s == DDP_OK) s = channel_resolve("broker", b->w.listen, &b->w.keys, b->n.tls, &at, err);
    if (s == DDP_OK) s = ddp__fd_room(b->n.most + CALLERS + 16, b->n.most + 16, err);
    if (s == DDP_OK) s = ddp__tcp_listen(&at, &b->n.listens, NULL, err);
    if (s == DDP_OK) s = train(b, err);
    nodes_end(&b->n, s == DDP_OK ? 0 : ddp_status_exit_code(s), s == DDP_OK ? "" : err->msg);
    if (s == DDP_OK && b->w.store) s = weights(b, 1, err);
    return s == DDP_OK ? print_results(b, err) : s;
}

static int parse(broker *b, int argc, char **argv)
{
    work *w = &b->w;
    const cli_option table[] = {
        {"Job", CLI_GROUP, NULL, NULL, NULL},
        {"--model", CLI_TEXT, &w->model, "NAME", "gpt2, mlp, resnet18, resnet34, resnet50 or resnet101"},
        {"--job", CLI_TEXT, &w->job_file, "FILE",
         "or a job description (docs/explanation/broker.md), with its own steps, optimizers and seed"},
        {"--write-job", CLI_TEXT, &w->write_job, "FILE",
         "file for the job description of --model; no training"},
        {"--data", CLI_TEXT, &w->data, "PATH",
         "folder of MNIST or CIFAR files; for gpt2 a text or token file. Sent to the nodes that read it"},
        {"--layers", CLI_COUNT, &w->layers, "N", "gpt2: transformer blocks [4]"},
        {"--heads", CLI_COUNT, &w->heads, "N", "gpt2: attention heads [4]"},
        {"--dim", CLI_COUNT, &w->dim, "N", "gpt2: width [64]"},
        {"--seq", CLI_COUNT, &w->seq, "N", "gpt2: tokens per sequence [64]"},
        {"--hidden", CLI_TEXT, &w->widths, "N,N,..", "mlp: widths of the hidden layers [512,256]"},
        {"Training", CLI_GROUP, NULL, NULL, NULL},
        {"--steps", CLI_COUNT, &w->steps, "N", "number of steps [20]"},
        {"--batch", CLI_COUNT, &w->batch, "N", "samples per micro-batch [4]"},
        {"--microbatches", CLI_COUNT, &w->microbatches, "N", "micro-batches per step [4]"},
        {"--optimizer", CLI_TEXT, &w->optimizer, "NAME",
         "sgd, nesterov, adam or adamw; a job may have one for each operator [adamw]"},
        {"--lr", CLI_REAL, &w->lr, "X", "learning rate [0.003]"},
        {"--momentum", CLI_REAL, &w->momentum, "X", "momentum of sgd and nesterov [0.9]"},
        {"--weight-decay", CLI_REAL, &w->weight_decay, "X", "weight decay [0.01]"},
        {"--seed", CLI_COUNT, &w->seed, "N", "seed of parameters and data order [0]"},
        {"--load", CLI_TEXT, &w->load, "PATH",
         "initial weights: a safetensors file, an index or folder of shards; sent to the nodes"},
        {"--export", CLI_TEXT, &w->store, "FILE", "file for the trained weights (safetensors)"},
        {"--save-every", CLI_COUNT, &w->save_every, "N",
         "steps between checkpoints, which the broker stores in memory; 0 = none [0]"},
        {"Nodes", CLI_GROUP, NULL, NULL, NULL},
        {"--listen", CLI_TEXT, &w->listen, "HOST:PORT", "address for the nodes [127.0.0.1:29600]"},
        {"--nodes", CLI_COUNT, &w->nodes, "N", "number of compnode processes that share the model [2]"},
        {"--spares", CLI_COUNT, &w->spares, "N", "additional nodes that wait to replace a lost one [0]"},
        {"--restarts", CLI_COUNT, &w->restarts, "N", "lost nodes that may be replaced [3]"},
        {"--join-timeout", CLI_REAL, &w->join_timeout, "S", "seconds to wait for a replacement [60]"},
        {"--peer-timeout", CLI_REAL, &w->peer_timeout, "S",
         "seconds of silence after which a node is lost [30]"},
        {"--speed", CLI_TEXT, &w->speed, "NAME",
         "speeds of the nodes: measured in a short warm-up, or network: tflops of --network [measured]"},
        {"Pipeline", CLI_GROUP, NULL, NULL, NULL},
        {"--pipeline", CLI_TEXT, &w->pipeline, "NAME", "schedule of micro-batches: gpipe, 1f1b or zb [1f1b]"},
        {"--edge-wire", CLI_TEXT, &w->edge_wire, "NAME",
         "format of activations between nodes: f32, bf16, int8, topk:R or adatopk:R "
         "(docs/howto/compress.md) [f32]"},
        {"--solver", CLI_TEXT, &w->solver, "NAME",
         "planner of the cut: fence, equal_ops or equal_flops [fence]"},
        {"--network", CLI_TEXT, &w->network, "FILE.json",
         "links between the nodes, in the order in which the nodes connect [measured]"},
        {"--emulate", CLI_FLAG, &w->emulate, "", "emulate the links of --network"},
        {"Reports", CLI_GROUP, NULL, NULL, NULL},
        {"--quiet", CLI_FLAG, &w->quiet, "", "print no progress"},
    };
    enum { OWN = sizeof table / sizeof table[0] };
    cli_option all[OWN + CHANNEL_OPTIONS];
    const int shared =
        channel_options(&w->keys, "this broker's certificate, with the name broker [none]", all + OWN);

    memcpy(all, table, sizeof table);
    return cli_parse(argc, argv,
                     "Cuts a model into one part for each node, sends the parts to the nodes, and trains it.",
                     all, OWN + shared);
}

int main(int argc, char **argv)
{
    broker *b = (broker *)calloc(1, sizeof *b);
    work *w = b ? &b->w : NULL;
    ddp_error err;
    ddp_status s;
    int code;

    if (!b) return 1;
    memset(&err, 0, sizeof err);
    w->listen = "127.0.0.1:29600";
    w->nodes = 2;
    w->steps = 20;
    w->batch = 4;
    w->microbatches = 4;
    w->widths = "512,256";
    w->layers = w->heads = 4;
    w->dim = w->seq = 64;
    w->optimizer = "adamw";
    w->lr = 3e-3;
    w->momentum = 0.9;
    w->weight_decay = 0.01;
    w->solver = "fence";
    w->speed = "measured";
    w->restarts = 3;
    w->join_timeout = 60;
    w->peer_timeout = 30;
    b->n.listens = -1;
    code = parse(b, argc, argv);
    if (code < 0) {
        cli_catch_interrupt();
        b->n.wanted = (int)w->nodes;
        b->n.most = (int)(w->nodes + w->spares);
        s = work_open(w, &err);
        if (s == DDP_OK) s = w->write_job ? write_job(b, &err) : work_with_nodes(b, &err);
        if (s != DDP_OK) fprintf(stderr, "broker: %s\n", err.msg);
        code = ddp_status_exit_code(s);
    }
    for (int i = 0; i < 2; i++) channel_forget(b->state[i], w->j.ops);
    ddp__tls_free(b->n.tls);
    free(b->net_text);
    ddp_network_free(&b->net);
    work_close(w);
    free(b);
    return code;
}
