/* cc -O2 -I. examples/own_strategy.c -o own_strategy -lm -lpthread && ./own_strategy
 *
 * A custom strategy: pair averaging (NoLoCo, arXiv:2506.10911). Workers train independently. In every fifth
 * step each worker averages its parameters with one randomly chosen peer, so the time of a step does not grow
 * with the number of workers. Five workers learn where sin(3x) cos(2y) is positive. Prints the loss every 50
 * steps, and at the end a hash of each worker's parameters before and after ddp_sync_all.
 * "./own_strategy threads" runs the workers as threads. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

enum { WORKERS = 5, BATCH = 32, STEPS = 400, MOST = 64 };

typedef struct pairs {      /* state of a worker: zeroed and freed by the library */
    int peer;               /* peer of this worker in this step, or -1 */
    ddp_piece theirs[MOST]; /* parameters of the peer, for each layer */
    long sent[MOST], received[MOST];
} pairs;

/* Returns the peer of a rank. All workers draw the same random number, so no message is needed: two ranks are
 * a pair if their sum is that number, modulo the world size. */
static int draw_peer(uint64_t seed, long step, int world, int rank)
{
    ddp_rng r = ddp_rng_seed(seed, (uint64_t)step);
    int peer = ((int)ddp_rng_below(&r, (uint64_t)world) - rank + world) % world;
    if (peer != rank) return peer;
    return world % 2 ? -1 : (rank + world / 2) % world; /* unpaired: one rank, or two, which form a pair */
}

static int start(ddp_ctx *d, void *self) /* called when all layers are registered */
{
    pairs *p = (pairs *)self;
    if (ddp_layers(d) > MOST) return ddp_complain(d, DDP_ARG, "more than %d layers", MOST);
    for (int l = 0, n; l < ddp_layers(d); l++) {
        const ddp_piece *mine = ddp_parameters_of(d, l, &n);
        while (n-- > 0) p->theirs[l].count += mine++->count;
        p->theirs[l].data = ddp_keep(d, l, "theirs", p->theirs[l].count, 0);
        if (!p->theirs[l].data) return DDP_MEMORY;
    }
    return 0;
}

/* Called when the gradient of a layer is complete. Updates the layer and posts its parameters, which are sent
 * while the backward pass continues. */
static int backward_end(ddp_ctx *d, void *self, int layer)
{
    pairs *p = (pairs *)self;
    const ddp_config *c = ddp_settings(d);
    ddp_message send, receive;
    if (ddp_update_layer(d, layer, NULL)) return DDP_FAILED; /* ddp_last_error has the cause */
    p->peer = (ddp_step(d) + 1) % c->period ? -1 : draw_peer(c->seed, ddp_step(d), ddp_world(d), ddp_rank(d));
    if (p->peer < 0) return 0;
    memset(&send, 0, sizeof send);
    send.peer = p->peer;
    send.layer = layer;
    send.step = ddp_step(d);
    receive = send;
    send.verb = DDP_SEND;
    send.from = ddp_parameters_of(d, layer, &send.from_count);
    receive.verb = DDP_RECEIVE;
    receive.from = &p->theirs[layer];
    receive.from_count = 1;
    return ddp_post(d, &send, &p->sent[layer]) || ddp_post(d, &receive, &p->received[layer]);
}

/* Waits for the messages, then sets parameters = (own + theirs) / 2, bit-identical on both sides. */
static int step_end(ddp_ctx *d, void *self, int forward)
{
    pairs *p = (pairs *)self;
    int bad = 0;
    (void)forward;
    for (int l = ddp_layers(d) - 1, n; p->peer >= 0 && !bad && l >= 0; l--) {
        const float *theirs = p->theirs[l].data;
        bad = ddp_hold(d, p->sent[l], l) || ddp_hold(d, p->received[l], l);
        for (const ddp_piece *mine = ddp_parameters_of(d, l, &n); n-- > 0 && !bad; theirs += mine++->count)
            bad = ddp_axpy(d, mine->data, theirs, mine->count, 1) ||
                  ddp_scale(d, mine->data, mine->count, 0.5f);
    }
    return bad;
}

static void pair_averaging(ddp_strategy_ops *s) /* *s is all zero */
{
    s->name = "pairs";
    s->averages = DDP_AVERAGES_PARAMETERS;
    s->traits = DDP_WITH_DEVICE;
    s->self_bytes = sizeof(pairs);
    s->start = start;
    s->backward_end = backward_end;
    s->step_end = step_end;
}

static int train(ddp_ctx *d, void *user) /* the same loop as under every other strategy */
{
    ddp_graph *g = ddp_graph_new(d);
    ddp_mlp_config shape;
    memset(&shape, 0, sizeof shape);
    shape.batch = BATCH;
    shape.inputs = 2;
    shape.hidden[0] = shape.hidden[1] = 32;
    shape.classes = 2;
    ddp_node *loss = ddp_mlp(g, &shape, NULL);
    ddp_rng r = ddp_rng_seed(1, (uint64_t)ddp_rank(d)); /* each worker has its own data */
    int bad = ddp_graph_build(g) || ddp_set_optimizer(d, (const ddp_optimizer *)user);
    uint64_t hash[2] = {0, 0};
    for (int step = 0; !bad && step < STEPS; step++) {
        float *x = (float *)ddp_data(g, "inputs");
        int32_t *y = (int32_t *)ddp_data(g, "labels");
        for (int i = 0; i < 2 * BATCH; i++) x[i] = (float)(2 * ddp_rng_uniform(&r) - 1);
        for (int i = 0; i < BATCH; i++) y[i] = sinf(3 * x[2 * i]) * cosf(2 * x[2 * i + 1]) > 0;
        bad = ddp_forward(g) || ddp_backward(g, loss) || ddp_step_end(d);
        if (step % 50 == 49 && ddp_rank(d) == 0)
            printf("step %3d  loss %.4f\n", step + 1, (double)ddp_value(g, loss));
    }
    for (int after = 0; after < 2 && !bad; bad = after++ ? 0 : ddp_sync_all(d))
        for (size_t l = 0, n; l < (size_t)ddp_layer_count(g); l++) {
            const float *w = ddp_layer_params(g, (int)l, &n);
            hash[after] = ddp_hash_floats(hash[after], w, n);
        }
    if (!bad)
        printf("rank %d  parameters %016" PRIx64 "  synced %016" PRIx64 "\n", ddp_rank(d), hash[0], hash[1]);
    return bad;
}

int main(int argc, char **argv)
{
    static ddp_strategy_ops s;
    static ddp_config cfg;
    ddp_optimizer sgd = ddp_sgd(0.05f, 0.9f);
    ddp_error err;
    pair_averaging(&s);
    cfg.own_strategy = &s;
    cfg.world = WORKERS;
    cfg.transport = argc > 1 ? DDP_THREADS : DDP_TCP;
    if (argc > 1 && strcmp(argv[1], "threads"))
        return printf("usage: own_strategy [threads]\n"), strcmp(argv[1], "--help") ? 2 : 0;
    if (ddp_launch(&cfg, train, &sgd, &err)) fprintf(stderr, "own_strategy: %s\n", err.msg);
    return ddp_status_exit_code(err.code);
}
