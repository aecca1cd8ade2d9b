/* A trainer with the memory layout of llm.c's GPT-2. All parameters are in one array, tensor by tensor, and
 * each tensor contains all layers. Gradients are in a second array, and AdamW updates the whole array. The
 * lines that contain "ddp" add distributed training under any strategy that averages. Without them the
 * program is unchanged.
 *
 *     cc -O2 -I. examples/interleaved.c -o interleaved -lm -lpthread
 *     build/ddprun -n 4 --net 50mbit,5ms ./interleaved
 */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V = 128, T = 4, C = 64, H = 128, BLOCKS = 6, LAYERS = BLOCKS + 2, B = 32, STEPS = 60 };

/* The tensors, the number of values per layer, and the number of layers. */
enum { EMBED, UP, UP_BIAS, DOWN, DOWN_BIAS, HEAD, TENSORS };
static const size_t COUNT[TENSORS] = {(T * V * C), (H * C), H, (C * H), C, (V * C)};
static const size_t COPIES[TENSORS] = {1, BLOCKS, BLOCKS, BLOCKS, BLOCKS, 1};

typedef struct model {
    float *memory, *grads, *m, *v; /* [all] parameters, gradients, AdamW's moments */
    float *w[TENSORS], *g[TENSORS];
    size_t all;
    float x[BLOCKS + 1][B][C], dx[B][C], h[BLOCKS][B][H], logit[B][V]; /* activations and their gradients */
    unsigned char token[B][T], target[B];
} model;

static model net;

static float noise(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 16777216.0f - 0.5f;
}

static void build(void)
{
    unsigned seed = 1;
    size_t at = 0;

    for (int t = 0; t < TENSORS; t++) net.all += COUNT[t] * COPIES[t];
    net.memory = (float *)calloc(4 * net.all, sizeof(float));
    if (!net.memory) exit(1);
    net.grads = net.memory + net.all;
    net.m = net.grads + net.all;
    net.v = net.m + net.all;
    for (int t = 0; t < TENSORS; at += COUNT[t] * COPIES[t], t++) {
        net.w[t] = net.memory + at;
        net.g[t] = net.grads + at;
    }
    for (size_t i = 0; i < net.all; i++) net.memory[i] = 0.25f * noise(&seed);
}

static void next_batch(const unsigned char *text, size_t n, unsigned *seed)
{
    for (int b = 0; b < B; b++) {
        const size_t at = (size_t)((noise(seed) + 0.5f) * (float)(n - T - 1));
        for (int t = 0; t < T; t++) net.token[b][t] = text[at + (size_t)t] & 127;
        net.target[b] = text[at + T] & 127;
    }
}

static double forward(void)
{
    double loss = 0;

    memset(net.x[0], 0, sizeof net.x[0]);
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            for (int c = 0; c < C; c++) net.x[0][b][c] += net.w[EMBED][(t * V + net.token[b][t]) * C + c];
    for (int l = 0; l < BLOCKS; l++) {
        const float *up = net.w[UP] + l * H * C, *down = net.w[DOWN] + l * C * H;
        for (int b = 0; b < B; b++) {
            for (int h = 0; h < H; h++) {
                float sum = net.w[UP_BIAS][l * H + h];
                for (int c = 0; c < C; c++) sum += up[h * C + c] * net.x[l][b][c];
                net.h[l][b][h] = sum > 0 ? sum : 0;
            }
            for (int c = 0; c < C; c++) {
                float sum = net.w[DOWN_BIAS][l * C + c];
                for (int h = 0; h < H; h++) sum += down[c * H + h] * net.h[l][b][h];
                net.x[l + 1][b][c] = net.x[l][b][c] + sum;
            }
        }
    }
    for (int b = 0; b < B; b++) {
        float most = -1e30f, sum = 0;
        for (int v = 0; v < V; v++) {
            float x = 0;
            for (int c = 0; c < C; c++) x += net.w[HEAD][v * C + c] * net.x[BLOCKS][b][c];
            net.logit[b][v] = x;
            most = x > most ? x : most;
        }
        for (int v = 0; v < V; v++) sum += net.logit[b][v] = expf(net.logit[b][v] - most);
        for (int v = 0; v < V; v++) net.logit[b][v] /= sum;
        loss -= log((double)net.logit[b][net.target[b]] + 1e-30) / (double)B;
    }
    return loss;
}

static void backward_head(void)
{
    memset(net.dx, 0, sizeof net.dx);
    for (int b = 0; b < B; b++)
        for (int v = 0; v < V; v++) {
            const float d = (net.logit[b][v] - (v == net.target[b] ? 1.0f : 0.0f)) / (float)B;
            for (int c = 0; c < C; c++) {
                net.g[HEAD][v * C + c] += d * net.x[BLOCKS][b][c];
                net.dx[b][c] += d * net.w[HEAD][v * C + c];
            }
        }
}

static void backward_block(int l)
{
    const float *up = net.w[UP] + l * H * C, *down = net.w[DOWN] + l * C * H;

    for (int b = 0; b < B; b++) {
        float dh[H] = {0};
        for (int c = 0; c < C; c++) {
            net.g[DOWN_BIAS][l * C + c] += net.dx[b][c];
            for (int h = 0; h < H; h++) {
                net.g[DOWN][(l * C + c) * H + h] += net.dx[b][c] * net.h[l][b][h];
                dh[h] += net.dx[b][c] * down[c * H + h];
            }
        }
        for (int h = 0; h < H; h++) {
            if (net.h[l][b][h] <= 0) continue;
            net.g[UP_BIAS][l * H + h] += dh[h];
            for (int c = 0; c < C; c++) {
                net.g[UP][(l * H + h) * C + c] += dh[h] * net.x[l][b][c];
                net.dx[b][c] += dh[h] * up[h * C + c];
            }
        }
    }
}

static void backward_layer(int layer)
{
    if (layer == LAYERS - 1)
        backward_head();
    else if (layer > 0)
        backward_block(layer - 1);
    else
        for (int b = 0; b < B; b++)
            for (int t = 0; t < T; t++)
                for (int c = 0; c < C; c++) net.g[EMBED][(t * V + net.token[b][t]) * C + c] += net.dx[b][c];
}

static void adamw(int step)
{
    const float c1 = 1 - powf(0.9f, (float)step), c2 = 1 - powf(0.999f, (float)step);

    for (size_t i = 0; i < net.all; i++) {
        net.m[i] = 0.9f * net.m[i] + 0.1f * net.grads[i];
        net.v[i] = 0.999f * net.v[i] + 0.001f * net.grads[i] * net.grads[i];
        net.memory[i] -= 0.003f * (net.m[i] / c1 / (sqrtf(net.v[i] / c2) + 1e-8f) + 0.01f * net.memory[i]);
    }
    memset(net.grads, 0, net.all * sizeof(float));
}

static size_t read_text(const char *path, unsigned char *text, size_t room)
{
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, room, f) : 0;

    if (f) fclose(f);
    return n;
}

int main(int argc, char **argv)
{
    static unsigned char text[1 << 18];
    const size_t n = read_text(argc > 1 ? argv[1] : "examples/interleaved.c", text, sizeof text);
    unsigned seed = 7;
    double loss = 0;

    if (n < 1000)
        return fprintf(stderr, "interleaved: the text must have at least 1000 bytes; usage: %s [FILE]\n",
                       argv[0]),
               2;
    build();
    ddp_error ddp_err;
    ddp_ctx *ddp = ddp_open(NULL, &ddp_err);
    if (!ddp) return fprintf(stderr, "%s\n", ddp_err.msg), ddp_status_exit_code(ddp_err.code);
    ddp_optimizer ddp_own = ddp_own_update();
    ddp_add_block(ddp, "embed", net.w[EMBED], net.g[EMBED], COUNT[EMBED]);
    for (int ddp_t = UP; ddp_t <= DOWN_BIAS; ddp_t++)
        ddp_add_stack(ddp, "h", net.w[ddp_t], net.g[ddp_t], BLOCKS, COUNT[ddp_t]);
    ddp_add_block(ddp, "head", net.w[HEAD], net.g[HEAD], COUNT[HEAD]);
    ddp_set_optimizer(ddp, &ddp_own);
    seed += (unsigned)ddp_rank(ddp);
    for (int step = 1; step <= STEPS; step++) {
        next_batch(text, n, &seed);
        loss = forward();
        for (int l = LAYERS - 1; l >= 0; l--) {
            backward_layer(l);
            ddp_backward_end(ddp, l);
        }
        if (ddp_step_end(ddp)) break;
        adamw(step);
        if (step % 20 == 0) printf("step %3d  loss %.4f\n", step, loss);
    }
    if (ddp_sync_all(ddp))
        return fprintf(stderr, "%s\n", ddp_last_error(ddp)->msg),
               ddp_status_exit_code(ddp_last_error(ddp)->code);
    ddp_close(ddp);
    free(net.memory);
    return 0;
}
