/* cc -O2 -I. examples/compress.c -o compress -lm -lpthread && ./compress
 *
 * Gradient compression without a context: four workers fit a linear regression and average their gradients.
 * The gradients are sent dense, then as the largest 2 % with error feedback, then without feedback. Prints
 * the RMS error of the weights, and the bytes that each worker sends per step. The workers take turns in one
 * process and pass the messages that they would send over a network. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

enum { WORKERS = 4, N = 1000, K = N / 50, BATCH = 32, STEPS = 800 };
enum { DENSE, FEEDBACK, FORGET };
static const char *const ways[] = {"dense", "largest 2 %, feedback", "largest 2 %, no feedback"};

typedef struct worker {
    float gradient[N], residual[N];
    ddp_rng data; /* each worker has its own rows */
} worker;

typedef struct job {
    worker w[WORKERS];
    float truth[N], weight[N], sum[N], value[K];
    uint64_t index[K];
    char *message, *scratch;
    size_t room, scratch_bytes, bytes;
} job;

/* Computes the mean gradient of (row . weight - y)^2 / 2 over new rows, with noise in y. */
static void compute_gradient(job *j, worker *w)
{
    static float row[N];

    memset(w->gradient, 0, sizeof w->gradient);
    for (int b = 0; b < BATCH; b++) {
        float off = 0.1f * (float)ddp_rng_normal(&w->data);
        for (int i = 0; i < N; i++) {
            row[i] = (float)(2 * ddp_rng_uniform(&w->data) - 1);
            off += row[i] * (j->weight[i] - j->truth[i]);
        }
        for (int i = 0; i < N; i++) w->gradient[i] += off * row[i] / (float)BATCH;
    }
}

/* Encodes the worker's gradient, decodes the message, and adds it to j->sum. Returns 1 on failure. */
static int send_gradient(job *j, worker *w, int way, ddp_error *err)
{
    float *r = w->residual;

    if (way == DENSE)
        return ddp_pack_dense(w->gradient, N, j->message, j->room, &j->bytes, err) ||
               ddp_unpack_add(j->message, j->bytes, j->sum, N, err);
    if (way == FORGET) memset(r, 0, sizeof w->residual);
    return ddp_feedback_add(r, w->gradient, N, err) ||
           ddp_topk(r, N, K, j->scratch, j->scratch_bytes, j->index, j->value, err) ||
           ddp_pack_sparse(DDP_PACK_DELTA, N, K, j->index, j->value, j->message, j->room, &j->bytes, err) ||
           ddp_feedback_keep(r, N, j->index, K, err) || ddp_unpack_add(j->message, j->bytes, j->sum, N, err);
}

static int train(job *j, int way)
{
    ddp_rng r = ddp_rng_seed(1, 0);
    size_t sent = 0;
    double off = 0;
    ddp_error err;

    memset(j->w, 0, sizeof j->w);
    memset(j->weight, 0, sizeof j->weight);
    for (int i = 0; i < N; i++) j->truth[i] = (float)ddp_rng_normal(&r);
    for (int w = 0; w < WORKERS; w++) j->w[w].data = ddp_rng_seed(2, (uint64_t)w);
    for (int step = 0; step < STEPS; step++) {
        memset(j->sum, 0, sizeof j->sum);
        for (int w = 0; w < WORKERS; w++) {
            compute_gradient(j, j->w + w);
            if (send_gradient(j, j->w + w, way, &err)) {
                fprintf(stderr, "compress: %s\n", err.msg);
                return 1;
            }
            sent += j->bytes;
        }
        for (int i = 0; i < N; i++) j->weight[i] -= 0.05f / (float)WORKERS * j->sum[i];
    }
    for (int i = 0; i < N; i++) off += pow((double)(j->weight[i] - j->truth[i]), 2);
    printf("%-26s %14.4f %10zu\n", ways[way], sqrt(off / (double)N), sent / WORKERS / STEPS);
    return 0;
}

int main(void)
{
    static job j;

    j.scratch_bytes = ddp_topk_scratch(N, K);
    j.room = ddp_pack_bound(DDP_PACK_DENSE, N, N); /* a DELTA message of K elements is shorter */
    j.scratch = (char *)malloc(j.scratch_bytes);
    j.message = (char *)malloc(j.room);
    if (!j.scratch || !j.message) return 1;
    printf("%-26s %14s %10s\n", "gradients", "weight error", "bytes");
    return train(&j, DENSE) || train(&j, FEEDBACK) || train(&j, FORGET);
}
