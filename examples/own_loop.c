/* Bring your own loop: four workers train a hand-written network with its own arrays. Only the lines marked
 * "dreamddp" were added.
 *
 *   cc -O2 -I. examples/own_loop.c -o own_loop -lm -lpthread && ./own_loop
 *
 * Prints the loss every 50 steps, and at the end a hash of the parameters, which is equal on all workers. The
 * workers are processes connected by TCP. "./own_loop threads" runs them as threads. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

enum { IN = 2, HIDDEN = 32, LAYERS = 3, BATCH = 16, STEPS = 400 };
static const int width[LAYERS + 1] = {IN, HIDDEN, HIDDEN, 1};

typedef struct network {
    float *w[LAYERS], *g[LAYERS];       /* [layer] weights, then biases, and their gradients */
    float a[LAYERS + 1][BATCH][HIDDEN]; /* activations */
    float d[LAYERS + 1][BATCH][HIDDEN]; /* gradients of the activations */
    uint64_t hash;                      /* hash of all parameters */
} network;

static size_t count(int l) { return (size_t)((width[l] + 1) * width[l + 1]); }

static void forward_layer(network *n, int l)
{
    for (int b = 0; b < BATCH; b++)
        for (int o = 0; o < width[l + 1]; o++) {
            float s = n->w[l][width[l] * width[l + 1] + o];
            for (int i = 0; i < width[l]; i++) s += n->w[l][o * width[l] + i] * n->a[l][b][i];
            n->a[l + 1][b][o] = l + 1 < LAYERS ? tanhf(s) : s;
        }
}

static void backward_layer(network *n, int l)
{
    memset(n->d[l], 0, sizeof n->d[l]);
    for (int b = 0; b < BATCH; b++)
        for (int o = 0; o < width[l + 1]; o++) {
            float y = n->a[l + 1][b][o], t = n->d[l + 1][b][o] * (l + 1 < LAYERS ? 1 - y * y : 1);
            n->g[l][width[l] * width[l + 1] + o] += t;
            for (int i = 0; i < width[l]; i++) n->g[l][o * width[l] + i] += t * n->a[l][b][i];
            for (int i = 0; i < width[l]; i++) n->d[l][b][i] += t * n->w[l][o * width[l] + i];
        }
}

/* Returns the mean squared error against sin(3x) cos(2y), and stores its gradient for the last layer. */
static float loss_and_gradient(network *n)
{
    float sum = 0;
    for (int b = 0; b < BATCH; b++) {
        float e = n->a[LAYERS][b][0] - sinf(3 * n->a[0][b][0]) * cosf(2 * n->a[0][b][1]);
        sum += e * e;
        n->d[LAYERS][b][0] = 2 * e / (float)BATCH;
    }
    return sum / (float)BATCH;
}

static int train(ddp_ctx *d, void *user)
{
    network *n = (network *)calloc(1, sizeof *n);
    ddp_rng r = ddp_rng_seed(1, (uint64_t)ddp_rank(d)); /* each worker has its own data */
    for (int l = 0; l < LAYERS; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.count = count(l);
        layer.params = n->w[l] = (float *)calloc(count(l), sizeof(float));
        layer.grads = n->g[l] = (float *)calloc(count(l), sizeof(float));
        for (size_t i = 0; i < count(l); i++) n->w[l][i] = (float)(ddp_rng_normal(&r) / sqrt(width[l]));
        ddp_add_layer(d, &layer); /* dreamddp */
    }
    ddp_set_optimizer(d, (const ddp_optimizer *)user); /* receives the parameters of rank 0 */ /* dreamddp */
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < BATCH * IN; i++) n->a[0][i / IN][i % IN] = (float)(2 * ddp_rng_uniform(&r) - 1);
        for (int l = 0; l < LAYERS; l++) forward_layer(n, l);
        float loss = loss_and_gradient(n);
        for (int l = LAYERS - 1; l >= 0; l--) {
            backward_layer(n, l);
            ddp_backward_end(d, l); /* starts the update and averaging of layer l */ /* dreamddp */
        }
        if (ddp_step_end(d)) break; /* the loop may use the parameters again */ /* dreamddp */
        if (step % 50 == 49 && ddp_rank(d) == 0) printf("step %3d  loss %.4f\n", step + 1, (double)loss);
    }
    int bad = ddp_sync_all(d); /* afterwards all workers have equal parameters */ /* dreamddp */
    for (int l = 0; l < LAYERS; l++) {
        n->hash = ddp_hash_floats(n->hash, n->w[l], count(l));
        free(n->w[l]);
        free(n->g[l]);
    }
    if (!bad) printf("rank %d  parameters %016" PRIx64 "\n", ddp_rank(d), n->hash);
    return free(n), bad;
}

int main(int argc, char **argv)
{
    static ddp_config cfg; /* all zero: strategy dreamddp */
    ddp_optimizer adam = ddp_adam(0.01f, 0.9f, 0.999f, 1e-8f, 0);
    ddp_error err;
    int threads = argc > 1 && !strcmp(argv[1], "threads");
    if (argc > 1 && !threads) return printf("usage: own_loop [threads]\n"), strcmp(argv[1], "--help") ? 2 : 0;
    cfg.world = 4;
    cfg.period = 4;
    cfg.transport = threads ? DDP_THREADS : DDP_TCP;
    if (ddp_launch(&cfg, train, &adam, &err)) fprintf(stderr, "own_loop: %s\n", err.msg); /* dreamddp */
    return ddp_status_exit_code(err.code);
}
