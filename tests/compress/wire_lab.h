/* Shared by the tests of bfloat16 and int8 on the wire: messages in pieces, the distance between two
 * trainings, and a training small enough to converge. Include after cmocka.h. */
#ifndef TESTS_WIRE_LAB_H
#define TESTS_WIRE_LAB_H

#include "comm/net_world.h"
#include "strategy/strategy_lab.h"

static void cut(ddp_piece *pieces, int count, float *data, size_t n)
{
    for (int p = 0; p < count; p++) {
        size_t from = n * (size_t)p / (size_t)count, to = n * (size_t)(p + 1) / (size_t)count;
        pieces[p].data = data + from + p; /* a gap, so that pieces do not merge */
        pieces[p].count = to - from;
    }
}

static double lab_distance(const lab *a, const lab *b)
{
    double far = 0, size = 0;
    for (size_t i = 0; i < *a->values; i++) {
        double x = (double)a->params[0][i], y = (double)b->params[0][i];
        far += (x - y) * (x - y);
        size += x * x;
    }
    return sqrt(far / size);
}

enum { FIT = 24, ROWS = 64, STEPS = 200 };

typedef struct fit {
    ddp_config cfg;
    double first, last; /* mean squared error on rank 0 */
} fit;

/* Least squares. Each worker has its own rows. */
static int fit_worker(ddp_ctx *d, void *user)
{
    fit *f = (fit *)user;
    float w[FIT], g[FIT], x[ROWS][FIT], y[ROWS];
    ddp_optimizer o = ddp_sgd(0.05f, 0.9f);
    ddp_layer layer;
    int bad;

    for (int i = 0; i < ROWS; i++) {
        y[i] = 0;
        for (int k = 0; k < FIT; k++) {
            x[i][k] = net_value(ddp_rank(d), (size_t)(i * FIT + k), 1) / 32768.0f * 8;
            y[i] += x[i][k] * 0.37f * (float)(k - 11);
        }
    }
    memset(w, 0, sizeof w);
    memset(g, 0, sizeof g);
    memset(&layer, 0, sizeof layer);
    layer.name = "w";
    layer.params = w;
    layer.grads = g;
    layer.count = FIT;
    bad = ddp_add_layer(d, &layer);
    if (!bad) bad = ddp_set_optimizer(d, &o);
    for (int step = 0; !bad && step < STEPS; step++) {
        double loss = 0;
        if ((bad = ddp_forward_begin(d, 0)) != 0) break;
        for (int i = 0; i < ROWS; i++) {
            float e = -y[i];
            for (int k = 0; k < FIT; k++) e += w[k] * x[i][k];
            loss += (double)e * (double)e / (double)ROWS;
            for (int k = 0; k < FIT; k++) g[k] += 2 * e * x[i][k] / (float)ROWS;
        }
        if (ddp_rank(d) == 0 && step == 0) f->first = loss;
        if (ddp_rank(d) == 0) f->last = loss;
        bad = ddp_backward_end(d, 0);
        if (!bad) bad = ddp_step_end(d);
    }
    return bad;
}

static double fit_run(ddp_strategy strategy, ddp_wire wire)
{
    ddp_error err;
    fit f;

    memset(&f, 0, sizeof f);
    f.cfg.no_env = 1;
    f.cfg.world = 3;
    f.cfg.transport = DDP_THREADS;
    f.cfg.deterministic = 1;
    f.cfg.strategy = strategy;
    f.cfg.wire = wire;
    if (ddp_launch(&f.cfg, fit_worker, &f, &err)) fail_msg("%s", err.msg);
    return f.last / f.first;
}

#endif /* TESTS_WIRE_LAB_H */
