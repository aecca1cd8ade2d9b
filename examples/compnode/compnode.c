/* One node of a job: trains the operators that a broker gives it, and needs only the address of the broker.
 *
 *   cc -O2 -I. examples/compnode/compnode.c -o compnode -lm -lpthread
 *   ./compnode --broker 127.0.0.1:29600
 *
 * Kernels of your own: register them in kernels() by the names that jobs call them by. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "../common/cli.h"
#include "../common/channel.h"
#include "../common/keys.h"
#include "../broker/job_json.h"
#include "../broker/job_part.h"

/* ---- custom kernels of this node: the example of the paper ---- */

static ddp_status custom_relu_shape(ddp_op_spec *s, ddp_error *err)
{
    (void)err;
    s->out = s->in[0];
    s->flops = (double)ddp_shape_count(&s->out);
    return s->inputs == 1 ? DDP_OK : DDP_ARG;
}

static void custom_relu_forward(const ddp_op_call *c)
{
    const float *x = (const float *)c->in[0];
    for (long i = 0, n = ddp_shape_count(&c->spec->out); i < n; i++)
        ((float *)c->out)[i] = x[i] > 0 ? x[i] : 0;
}

static void custom_relu_backward(const ddp_op_call *c)
{
    const float *x = (const float *)c->in[0], *g = (const float *)c->grad_out;
    float *out = (float *)c->grad_in[0];
    for (long i = 0, n = ddp_shape_count(&c->spec->out); out && i < n; i++)
        out[i] = (c->add_in[0] ? out[i] : 0) + (x[i] > 0 ? g[i] : 0);
}

static void kernels(ddp_graph *g)
{
    static const ddp_op relu = {"CustomReLU", custom_relu_shape, custom_relu_forward, custom_relu_backward};
    ddp_register_op(g, &relu);
}

/* ---- the node ---- */

typedef struct node {
    channel c;
    const char *broker, *host;
    long threads;
    double timeout;
    channel_keys keys;
    int ended; /* control message received during training */
    job j;
    char network[CHANNEL_PATH]; /* a file, or "" */
    channel_state *state;       /* [ops] initial state, or NULL for the state from the seed */
} node;

static void drop_network(node *n)
{
    if (n->network[0]) remove(n->network);
    n->network[0] = 0;
}

static void drop_job(node *n)
{
    channel_forget(n->state, n->j.ops);
    n->state = NULL;
    job_free(&n->j);
    drop_network(n);
}

/* Sends a message to the broker and blocks until it is sent. 0 means that the broker has closed the
 * connection. */
static int tell(node *n, channel_word word, const void *a, size_t na, const void *b, size_t nb)
{
    if (!channel_send(&n->c, word, a, na, b, nb)) return 0;
    channel_drain(&n->c);
    return !channel_waiting(&n->c) && !n->c.shut;
}

static void send_failure(node *n, const ddp_error *err)
{
    channel_failure f;

    memset(&f, 0, sizeof f);
    f.code = (int32_t)err->code;
    snprintf(f.text, sizeof f.text, "%.500s", err->msg);
    tell(n, WORD_FAIL, &f, sizeof f, NULL, 0);
}

/* Measures the seconds of one forward pass of a single operator. 0 means that it cannot run alone. */
static double time_of(const job *j, const job_op *o)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *in[DDP_OP_INPUTS];
    double best = 0;
    char name[16];

    kernels(g);
    for (int k = 0; k < o->arg_count; k++) {
        const job_op *from = &j->op[o->args[k]];
        snprintf(name, sizeof name, "in%d", k);
        in[k] = from->dtype == DDP_F32 ? ddp_input_shape(g, name, DDP_F32, &from->shape) : NULL;
        if (!in[k]) return ddp_graph_free(g), 0;
    }
    ddp_layer_begin(g, "operator");
    ddp_apply(g, o->op, o->arg_count, in, DDP_OP_ARGS, o->attribute, NULL);
    ddp_layer_end(g);
    for (int i = 0, bad = ddp_graph_build(g); i < 4 && !bad; i++) {
        const double begin = ddp_now();
        if (ddp_evaluate(g)) break;
        if (i && (best == 0 || ddp_now() - begin < best))
            best = ddp_now() - begin; /* the first one warms
                                                                                       up */
    }
    ddp_graph_free(g);
    return best;
}

/* The warm-up: fits lambda S*(p) by least squares to the most expensive operators, each shape once. */
static ddp_status measure(node *n, ddp_error *err)
{
    enum { MOST = 6 };
    double flops[MOST], seconds[MOST], speed = 1e9, limit = DBL_MAX;
    int count = 0;
    char text[64];
    job j;

    if (job_read("the broker's job", n->c.data, n->c.bytes, &j, err)) return err->code;
    for (int tries = 0; count < MOST && tries < 4 * MOST; tries++) {
        const job_op *o = NULL;
        for (int i = 0; i < j.ops; i++)
            if (j.op[i].flops < limit && j.op[i].type != JOB_PLACEHOLDER && (!o || j.op[i].flops > o->flops))
                o = &j.op[i];
        if (!o || o->flops <= 0) break;
        limit = o->flops;
        seconds[count] = time_of(&j, o);
        flops[count] = o->flops;
        count += seconds[count] > 0;
    }
    job_free(&j);
    if (count && ddp_speed_fit(flops, seconds, count, 1, &speed, err)) return err->code;
    snprintf(text, sizeof text, "%.17g %d", speed, channel_free_port());
    tell(n, WORD_SPEED, text, strlen(text), NULL, 0);
    return DDP_OK;
}

static void configure(const node *n, ddp_config *cfg, int rank, int world, const char *addr)
{
    memset(cfg, 0, sizeof *cfg);
    cfg->no_env = 1;
    cfg->rank = rank;
    cfg->world = world;
    cfg->addr = addr;
    cfg->transport = DDP_TCP;
    cfg->strategy = DDP_SSGD;
    cfg->security.insecure = n->keys.insecure;
    cfg->security.psk = n->keys.file.psk;
    cfg->security.ca = n->keys.file.ca;
    cfg->security.cert = n->keys.file.cert;
    cfg->security.key = n->keys.file.key;
    cfg->threads = (int)n->threads;
    cfg->cancel = &cli_interrupted;
}

static ddp_status keep_network(node *n, const char *text, size_t bytes, ddp_error *err)
{
    drop_network(n);
    return write_temporary(text, bytes, n->network, err);
}

/* Measures the links between all nodes. Rank 0 reports them to the broker. */
static ddp_status probe(node *n, ddp_error *err)
{
    char addr[128] = "", *text = NULL;
    size_t bytes = 0;
    int rank, world;
    ddp_probe_result r;
    ddp_network net;
    ddp_config cfg;
    ddp_status s;
    ddp_ctx *d;

    if (sscanf(n->c.data, "%d %d %127s", &rank, &world, addr) != 3)
        return refuse(err, DDP_FORMAT, "no probe");
    configure(n, &cfg, rank, world, addr);
    d = ddp_open(&cfg, err);
    if (!d) return err->code;
    s = (ddp_status)ddp_probe(d, &r);
    if (s) *err = *ddp_last_error(d);
    if (s == DDP_OK && rank == 0) {
        memset(&net, 0, sizeof net);
        s = keep_network(n, "", 0, err);
        if (s == DDP_OK) s = ddp_probe_network(&r, &net, err);
        if (s == DDP_OK) s = ddp_network_write(&net, n->network, err);
        ddp_network_free(&net);
        if (s == DDP_OK) text = read_file(n->network, &bytes, err);
        if (s == DDP_OK && !text) s = err->code;
        if (text) tell(n, WORD_NETWORK, text, bytes, NULL, 0);
        free(text);
    } else if (s == DDP_OK) {
        tell(n, WORD_READY, NULL, 0, NULL, 0);
    }
    if (s == DDP_OK) ddp_probe_free(&r);
    ddp_close(d);
    return s;
}

/* Reads the description, and reports whether this node can build the model. */
static ddp_status take_job(node *n, ddp_error *err)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *loss;
    ddp_status s;

    drop_job(n);
    kernels(g);
    s = job_read("the broker's job", n->c.data, n->c.bytes, &n->j, err);
    n->c.most = 0;
    if (s == DDP_OK) s = job_build(&n->j, g, &loss, err);
    if (s == DDP_OK) n->c.most = sizeof(channel_part) + job_largest(&n->j, g);
    ddp_graph_free(g);
    if (s == DDP_OK) {
        n->state = (channel_state *)calloc((size_t)n->j.ops, sizeof *n->state);
        if (!n->state) s = refuse(err, DDP_MEMORY, "out of memory for the job");
    }
    if (s == DDP_OK) tell(n, WORD_READY, NULL, 0, NULL, 0);
    return s;
}

/* Receives this node's inputs of a step from the broker. */
static ddp_status fill(node *n, ddp_ctx *d, ddp_pipe *p)
{
    for (int m = 0; m < n->j.micro_batches; m++)
        for (int i = 0; i < n->j.ops; i++) {
            const size_t bytes = 4 * (size_t)ddp_shape_count(&n->j.op[i].shape);
            void *at = n->j.op[i].type == JOB_PLACEHOLDER ? ddp_pipe_input(p, m, n->j.op[i].name) : NULL;
            channel_part part;
            if (!at) continue;
            while (!cli_interrupted && !channel_waits(&n->c, 1)) {
            }
            if (cli_interrupted) return ddp_abort(d, "interrupted"), DDP_ABORTED;
            if (!channel_receive(&n->c))
                return ddp_abort(d, n->c.why[0] ? n->c.why : "the broker closed the connection"), DDP_ABORTED;
            n->ended = n->c.word == WORD_END;
            if (n->ended || n->c.word == WORD_CANCEL)
                return ddp_abort(d, "the broker ended this attempt"), DDP_ABORTED;
            if (n->c.bytes == sizeof part + bytes) memcpy(&part, n->c.data, sizeof part);
            if (n->c.word != WORD_DATA || n->c.bytes != sizeof part + bytes || part.op != i ||
                part.micro_batch != m)
                return ddp_abort(d, "the broker sent data that this node does not read"), DDP_FORMAT;
            memcpy(at, n->c.data + sizeof part, bytes);
        }
    return DDP_OK;
}

static int send_states(node *n, job_part *part, int bare)
{
    int bad;

    for (int i = 0; i < n->j.ops; i++) {
        const size_t floats = job_floats(part, i, bare);
        const channel_part head = {i, 0};
        float *x = floats ? (float *)malloc(floats * sizeof *x) : NULL;
        if (!floats) continue;
        bad = x ? job_get(part, i, bare, x) : (int)DDP_MEMORY;
        if (!bad && !tell(n, WORD_STATE, &head, sizeof head, x, floats * sizeof *x)) bad = (int)DDP_NET;
        free(x);
        if (bad) return bad;
    }
    tell(n, WORD_SAVED, NULL, 0, NULL, 0);
    return 0;
}

static int steps(node *n, const channel_start *start, ddp_ctx *d, ddp_pipe *p, job_part *part)
{
    const int tells = n->j.op[n->j.loss].node == n->j.node;
    ddp_optimizer o = job_optimizer(part);
    int bad = ddp_set_optimizer(d, &o);
    const double begin = ddp_now();
    channel_done done;

    for (int i = 0; i < n->j.ops && !bad; i++)
        if (n->state[i].x) bad = job_put(part, i, n->state[i].x, n->state[i].floats);
    for (long step = (long)start->first; step < n->j.steps && !bad; step++) {
        double loss;
        bad = (int)fill(n, d, p);
        if (!bad) bad = ddp_pipe_step(p);
        if (!bad) bad = ddp_step_end(d);
        if (bad) break;
        loss = (double)ddp_pipe_loss(p);
        if (tells) tell(n, WORD_LOSS, &loss, sizeof loss, NULL, 0);
        if (start->save_every && (step + 1) % start->save_every == 0 && step + 1 < n->j.steps)
            bad = send_states(n, part, 0);
    }
    memset(&done, 0, sizeof done);
    done.step_s = (ddp_now() - begin) / (double)(n->j.steps - start->first);
    if (!bad) bad = ddp_sync_all(d);
    if (!bad) bad = ddp_pipe_hash(p, &done.hash);
    if (!bad && start->send_back) bad = send_states(n, part, 1);
    if (!bad) tell(n, WORD_DONE, &done, sizeof done, NULL, 0);
    return bad;
}

static ddp_status train(node *n, ddp_error *err)
{
    channel_start start;
    char net[CHANNEL_PATH + sizeof start.devices];
    job_part *part = NULL;
    ddp_pipe_config c;
    ddp_pipe *p = NULL;
    ddp_node *loss;
    ddp_config cfg;
    ddp_graph *g;
    ddp_ctx *d;
    int *stage_of = (int *)calloc((size_t)n->j.ops + 1, sizeof *stage_of), bad;

    if (!stage_of || !n->j.ops) return free(stage_of), refuse(err, DDP_FORMAT, "a start without a job");
    if (!channel_start_of(&n->c, n->j.steps, &start))
        return free(stage_of), refuse(err, DDP_FORMAT, "malformed start: rank %d of %d, step %lld of %ld",
                                      (int)start.rank, (int)start.world, (long long)start.first, n->j.steps);
    configure(n, &cfg, start.rank, start.world, start.addr);
    cfg.deterministic = 1;
    cfg.seed = n->j.seed;
    cfg.micro_batches = n->j.micro_batches;
    cfg.timeout.peer_s = start.peer_timeout_s;
    snprintf(net, sizeof net, "%s%s", n->network, start.devices);
    if (start.devices[0]) cfg.net = net;
    d = ddp_open(&cfg, err);
    drop_network(n); /* the input was read */
    if (!d) return free(stage_of), err->code;
    g = ddp_graph_new(d);
    kernels(g);
    bad = (int)job_build(&n->j, g, &loss, err);
    memset(&c, 0, sizeof c);
    c.schedule = n->j.schedule;
    c.stages = n->j.nodes;
    c.stage_of = stage_of;
    c.edge = n->j.edge;
    if (!bad) {
        job_stages(&n->j, stage_of);
        p = ddp_pipe_open(d, g, loss, &c);
    }
    if (!bad && !p) bad = (int)(*err = *ddp_last_error(d)).code;
    if (!bad) part = job_open(&n->j, g, (long)start.first, err);
    if (!bad && !part) bad = (int)err->code;
    if (bad) {
        ddp_abort(d, err->msg);
    } else {
        bad = steps(n, &start, d, p, part);
        if (bad) {
            *err = *ddp_last_error(d);
            err->code = (ddp_status)bad;
        }
    }
    ddp_pipe_close(p);
    ddp_close(d);
    job_close(part);
    free(stage_of);
    return (ddp_status)bad;
}

/* Executes the broker's requests until it ends the job. Returns the exit code. */
static int serve(node *n)
{
    ddp_error err;
    ddp_status s;

    for (;;) {
        memset(&err, 0, sizeof err);
        s = DDP_OK;
        while (!n->ended && !cli_interrupted && !channel_waits(&n->c, 1)) {
        }
        if (!cli_interrupted && !n->ended && !channel_receive(&n->c) && !cli_interrupted) {
            if (n->c.why[0])
                fprintf(stderr, "compnode: the broker at %s %s\n", n->broker, n->c.why);
            else
                fprintf(stderr,
                        "compnode: the broker at %s closed the connection; its job has ended on this node\n",
                        n->broker);
            return 3;
        }
        if (cli_interrupted) return fprintf(stderr, "compnode: interrupted\n"), 130;
        switch (n->c.word) {
        case WORD_END:
            channel_printable(n->c.data);
            if (n->c.data[0] != '0')
                fprintf(stderr, "compnode: %s\n", strchr(n->c.data, ' ') ? strchr(n->c.data, ' ') + 1 : "");
            return atoi(n->c.data);
        case WORD_MEASURE:
            s = measure(n, &err);
            break;
        case WORD_PROBE:
            s = probe(n, &err);
            break;
        case WORD_JOB:
            s = take_job(n, &err);
            break;
        case WORD_NETWORK:
            s = keep_network(n, n->c.data, n->c.bytes, &err);
            break;
        case WORD_STATE:
            if (!channel_keep(&n->c, n->state, n->state ? n->j.ops : 0))
                s = refuse(&err, DDP_MEMORY, "out of memory for an operator's state");
            break;
        case WORD_START:
            s = train(n, &err);
            break;
        default:
            break; /* the end of an attempt that has already ended on this node */
        }
        if (s != DDP_OK) send_failure(n, &err);
    }
}

int main(int argc, char **argv)
{
    node n;
    const cli_option table[] = {
        {"Node", CLI_GROUP, NULL, NULL, NULL},
        {"--broker", CLI_TEXT, &n.broker, "HOST:PORT", "address of the broker [127.0.0.1:29600]"},
        {"--host", CLI_TEXT, &n.host, "NAME",
         "name or address of this machine for other nodes [the address that the broker sees]"},
        {"--threads", CLI_COUNT, &n.threads, "N", "operator threads [1]"},
        {"--connect-timeout", CLI_REAL, &n.timeout, "S", "seconds to wait for a broker at --broker [10]"},
    };
    cli_range ranges[] = {{"--threads", 0, 1, 1024}, {"--connect-timeout", 0, 0, 0}};
    enum { OWN = sizeof table / sizeof table[0] };
    cli_option all[OWN + CHANNEL_OPTIONS];
    char hello[CHANNEL_HELLO];
    ddp__tls *tls = NULL;
    ddp__addr at;
    double until;
    ddp_error err;
    ddp_status s;
    int code, shared;

    memset(&n, 0, sizeof n);
    n.broker = "127.0.0.1:29600";
    n.host = "-";
    n.threads = 1;
    n.timeout = 10;
    shared = channel_options(
        &n.keys, "this node's certificate, with the name rank-R of every rank that the node may have [none]",
        all + OWN);
    memcpy(all, table, sizeof table);
    code = cli_parse(argc, argv, "Trains the part of a job that a broker assigns to it.", all, OWN + shared);
    if (code >= 0) return code;
    ranges[0].value = (double)n.threads;
    ranges[1].value = n.timeout;
    if (cli_out_of_range(ranges, 2, err.msg, sizeof err.msg)) {
        fprintf(stderr, "compnode: %s\n", err.msg);
        return 2;
    }
    cli_catch_interrupt();
    until = ddp_now() + n.timeout;
    s = channel_keys_open(&n.keys, &tls, &err);
    if (s == DDP_OK) /* the name may be registered later, for example that of a container */
        while ((s = channel_resolve("compnode", n.broker, &n.keys, tls, &at, &err)) == DDP_NET &&
               ddp_now() < until && !cli_interrupted)
            poll(NULL, 0, 100);
    if (s == DDP_OK)
        while ((s = channel_dial(&n.c, &at, tls, until, &err)) == DDP_NET && ddp_now() < until &&
               !cli_interrupted)
            poll(NULL, 0, 100);
    if (s != DDP_OK) {
        fprintf(stderr, "compnode: %s\n", err.msg);
        ddp__tls_free(tls);
        return ddp_status_exit_code(s);
    }
    snprintf(hello, sizeof hello, "%d %.200s", CHANNEL_VERSION, n.host);
    tell(&n, WORD_HELLO, hello, strlen(hello), NULL, 0);
    code = serve(&n);
    drop_job(&n);
    channel_close(&n.c);
    ddp__tls_free(tls);
    return code;
}
