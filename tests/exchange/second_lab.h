/* Two links between the same workers: helpers of the tests and the timing programs. Include after
 * cmocka.h. */
#ifndef SECOND_LAB_H
#define SECOND_LAB_H

#include "context/context.h"
#include "exchange.h"

enum { N = 5000 };

static void second_config(ddp_config *c, int world, ddp_transport transport)
{
    memset(c, 0, sizeof *c);
    c->no_env = 1;
    c->world = world;
    c->transport = transport;
    c->deterministic = 1;
    c->timeout.peer_s = 60;
}

static void run_worker(const ddp_config *c, int (*fn)(ddp_ctx *, void *), void *user)
{
    ddp_error err;

    if (ddp_launch(c, fn, user, &err)) fail_msg("%s", err.msg);
}

/* Checks a condition in a worker. On failure it prints the line and returns DDP_FAILED. */
#define NEED(what)                                                                      \
    do {                                                                                \
        if (!(what)) {                                                                  \
            fprintf(stderr, "line %d, rank %d: %s; %s\n", __LINE__, ddp_rank(d), #what, \
                    ddp_last_error(d)->msg);                                            \
            return (int)DDP_FAILED;                                                     \
        }                                                                               \
    } while (0)

static float value(int rank, int i) { return (float)(i % 7 * (rank + 1)); }

typedef struct both {
    size_t n[2];    /* floats over each link */
    double took[8]; /* per rank, in seconds; threads only */
} both;

static int reduce_both(ddp_ctx *d, void *user)
{
    both *b = (both *)user;
    float *x = (float *)calloc(b->n[0] + b->n[1] + 1, sizeof *x);
    long ticket[2];
    double begin;

    NEED(x && ddp_barrier(d) == 0);
    begin = ddp_now();
    for (int link = 0; link < 2; link++) {
        ddp_message m;
        ddp_piece piece;
        memset(&m, 0, sizeof m);
        m.verb = DDP_ALL_REDUCE;
        m.from = &piece;
        m.from_count = 1;
        m.layer = DDP_NO_LAYER;
        m.link = link;
        piece.data = x + (link ? b->n[0] : 0);
        piece.count = b->n[link];
        for (size_t i = 0; i < piece.count; i++) piece.data[i] = (float)(ddp_rank(d) + link);
        NEED(ddp__post(d, &m, 0, &ticket[link], NULL) == DDP_OK);
    }
    for (int link = 0; link < 2; link++)
        NEED(ddp__engine_wait(ddp__engine_of(d, link), ticket[link], NULL) == DDP_OK);
    b->took[ddp_rank(d)] = ddp_now() - begin;
    for (size_t i = 0; i < b->n[0]; i++) NEED(x[i] == 1);
    for (size_t i = 0; i < b->n[1]; i++) NEED(x[b->n[0] + i] == 3);
    free(x);
    return 0;
}

static int measure(ddp_ctx *d, void *user)
{
    ddp_link_stats first, second;

    (void)user;
    NEED(ddp_measure_links(d) == 0);
    NEED(ddp_get_link_stats(d, 0, &first) == 0 && ddp_get_link_stats(d, 1, &second) == 0);
    if (ddp_rank(d) == 0)
        fprintf(stderr, "    alpha %.2f and %.2f ms, beta %.4f and %.4f us/byte, mu %.3f\n",
                1e3 * first.link.alpha_s, 1e3 * second.link.alpha_s, 1e6 * first.link.beta_s,
                1e6 * second.link.beta_s, second.mu);
    NEED(first.mu == 1);
    /* two ranks: beta = 1 / rate; alpha = two delays plus the delay of threads */
    NEED(first.link.beta_s > 0.19e-6 && second.link.beta_s > 0.38e-6);
    NEED(second.mu > 1.7 && second.mu < 2.3);
    NEED(second.link.beta_s < 0.48e-6);
    return 0;
}

enum { LAYERS = 6, STEPS = 9 };

typedef struct trained {
    ddp_config cfg;
    float w[3][LAYERS * N];
    int64_t sent[2]; /* by rank 0, per link */
    int taken;       /* layers that use the second link */
    double step_s;
} trained;

static int train(ddp_ctx *d, void *user)
{
    trained *t = (trained *)user;
    float *w = (float *)calloc(2 * LAYERS * N, sizeof *w), *g = w + LAYERS * N;
    ddp_optimizer o = ddp_sgd(0.1f, 0.9f);
    ddp_link_stats s;
    ddp_stats stats;
    int l, step;

    for (l = 0; l < LAYERS; l++) {
        ddp_layer layer;
        memset(&layer, 0, sizeof layer);
        layer.params = w + l * N;
        layer.grads = g + l * N;
        layer.count = (size_t)(l == 2 ? N / 5 : N);
        NEED(ddp_add_layer(d, &layer) == 0);
    }
    NEED(ddp_set_optimizer(d, &o) == 0);
    for (step = 0; step < STEPS; step++) {
        for (l = 0; l < LAYERS; l++) NEED(ddp_forward_begin(d, l) == 0);
        for (l = LAYERS - 1; l >= 0; l--) {
            for (int i = 0; i < N; i++)
                g[l * N + i] = 0.1f * w[l * N + i] + value(ddp_rank(d), i + l + step) / 7;
            NEED(ddp_backward_end(d, l) == 0);
        }
        NEED(ddp_step_end(d) == 0);
    }
    NEED(ddp_sync_all(d) == 0);
    memcpy(t->w[ddp_rank(d)], w, LAYERS * N * sizeof *w);
    ddp_get_stats(d, &stats);
    if (ddp_rank(d) == 0) {
        t->step_s = stats.step_s;
        t->taken = 0;
        for (l = 0; l < LAYERS; l++) t->taken += d->unit[l].link;
        for (int k = 0; k < ddp_links(d); k++)
            if (ddp_get_link_stats(d, k, &s) == 0) t->sent[k] = s.bytes_sent;
    }
    free(w);
    return 0;
}

static void trained_config(trained *t, ddp_strategy s, ddp_transport transport, const char *net,
                           const char *net2)
{
    memset(t, 0, sizeof *t);
    second_config(&t->cfg, 3, transport);
    t->cfg.strategy = s;
    t->cfg.period = 3;
    t->cfg.gradient.bucket_bytes = 4 * N;
    t->cfg.net = net;
    t->cfg.network.net2 = net2;
}

#endif /* SECOND_LAB_H */
