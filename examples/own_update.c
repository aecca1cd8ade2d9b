/* Keep your own optimizer: a hand-written network and an update rule that the library does not have (Lion,
 * arXiv:2302.06675). With ddp_own_update() the library only averages the arrays that ddp_add_block registers.
 *
 *   cc -O2 -I. examples/own_update.c -o own_update -lm -lpthread
 *   build/ddprun -n 3 --net 20mbit,2ms ./own_update
 *
 * Prints the loss every 50 steps, and at the end a hash of the parameters, which is equal on all workers.
 * Without ddprun the program is a single worker. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

enum { IN = 2, HIDDEN = 48, BATCH = 32, STEPS = 300, LAYERS = 2 };
static const size_t count[LAYERS] = {HIDDEN * (IN + 1), HIDDEN + 1};

typedef struct network {
    float w[LAYERS][HIDDEN * (IN + 1)], g[LAYERS][HIDDEN * (IN + 1)]; /* parameters, gradients. The biases are
                                                                       * last. */
    float momentum[LAYERS][HIDDEN * (IN + 1)];                        /* state of the optimizer */
    float x[BATCH][IN], h[BATCH][HIDDEN], dy[BATCH], dh[BATCH][HIDDEN];
} network;

/* Returns the loss: the mean squared error against sin(3x) cos(2y). */
static float forward(network *n, ddp_rng *random)
{
    float sum = 0;
    for (int b = 0; b < BATCH; b++) {
        float y = n->w[1][HIDDEN];
        for (int i = 0; i < IN; i++) n->x[b][i] = (float)(2 * ddp_rng_uniform(random) - 1);
        for (int k = 0; k < HIDDEN; k++) {
            const float *w = n->w[0] + k * IN;
            n->h[b][k] = tanhf(w[0] * n->x[b][0] + w[1] * n->x[b][1] + n->w[0][HIDDEN * IN + k]);
            y += n->w[1][k] * n->h[b][k];
        }
        n->dy[b] = y - sinf(3 * n->x[b][0]) * cosf(2 * n->x[b][1]);
        sum += n->dy[b] * n->dy[b] / (float)BATCH;
    }
    return sum;
}

/* Also reads the weights of the output layer for the last time in the step, because the library may average
 * them after ddp_backward_end(d, 1). */
static void backward_output(network *n)
{
    for (int b = 0; b < BATCH; b++) {
        for (int k = 0; k < HIDDEN; k++) {
            n->g[1][k] += 2 * n->dy[b] * n->h[b][k] / (float)BATCH;
            n->dh[b][k] = 2 * n->dy[b] * n->w[1][k];
        }
        n->g[1][HIDDEN] += 2 * n->dy[b] / (float)BATCH;
    }
}

static void backward_hidden(network *n)
{
    for (int b = 0; b < BATCH; b++)
        for (int k = 0; k < HIDDEN; k++) {
            const float d = n->dh[b][k] * (1 - n->h[b][k] * n->h[b][k]) / (float)BATCH;
            for (int i = 0; i < IN; i++) n->g[0][k * IN + i] += d * n->x[b][i];
            n->g[0][HIDDEN * IN + k] += d;
        }
}

/* The program's optimizer, unchanged: each parameter moves by lr, in the direction of the sign of a mean. */
static void lion(float *w, float *g, float *m, size_t values, float lr)
{
    for (size_t i = 0; i < values; i++) {
        const float c = 0.9f * m[i] + 0.1f * g[i];
        w[i] -= lr * (float)((c > 0) - (c < 0));
        m[i] = 0.99f * m[i] + 0.01f * g[i];
        g[i] = 0;
    }
}

int main(void)
{
    static const char *const name[LAYERS] = {"hidden", "output"};
    static network n;
    const ddp_optimizer own = ddp_own_update();
    ddp_error err;
    uint64_t hash = 0;
    ddp_ctx *d = ddp_open(NULL, &err); /* rank, world, strategy and network from ddprun */
    if (!d) return fprintf(stderr, "own_update: %s\n", err.msg), ddp_status_exit_code(err.code);
    ddp_rng start = ddp_rng_seed(1, 0), data = ddp_rng_seed(2, (uint64_t)ddp_rank(d));
    for (int l = 0; l < LAYERS; l++) {
        for (size_t i = 0; i < count[l]; i++) n.w[l][i] = (float)(2 * ddp_rng_uniform(&start) - 1);
        ddp_add_block(d, name[l], n.w[l], n.g[l], count[l]);
    }
    ddp_set_optimizer(d, &own);
    for (int step = 1; step <= STEPS; step++) {
        const float loss = forward(&n, &data);
        backward_output(&n);
        ddp_backward_end(d, 1);
        backward_hidden(&n);
        ddp_backward_end(d, 0);
        if (ddp_step_end(d)) break; /* the averages are complete */
        for (int l = 0; l < LAYERS; l++) lion(n.w[l], n.g[l], n.momentum[l], count[l], 0.003f);
        if (step % 50 == 0 && ddp_rank(d) == 0) printf("step %3d  loss %.4f\n", step, (double)loss);
    }
    const int bad = ddp_sync_all(d); /* afterwards all workers have equal parameters */
    for (int l = 0; l < LAYERS; l++) hash = ddp_hash_floats(hash, n.w[l], count[l]);
    if (!bad)
        printf("parameters %016" PRIx64 "\n", hash);
    else
        fprintf(stderr, "own_update: %s\n", ddp_last_error(d)->msg);
    const int code = bad ? ddp_status_exit_code(ddp_last_error(d)->code) : 0;
    ddp_close(d);
    return code;
}
