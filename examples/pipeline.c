/* cc -O2 -I. examples/pipeline.c -o pipeline -lm -lpthread && ./pipeline
 *
 * A model in three pipeline stages, with a custom operator: the activation "snake", x + sin(a x)^2 / a, where
 * a is learned per channel. Six workers form two pipelines. Micro-batches pass through the stages, and the
 * two workers of a stage average its parameters. The model learns where sin(3x) cos(2y) is positive. Prints
 * the loss every 50 steps, and at the end a hash of all parameters and statistics of the steps.
 * "./pipeline zb" selects a schedule: gpipe, 1f1b or zb. The hash is the same under every schedule. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

enum { STAGES = 3, PIPELINES = 2, MICRO_BATCHES = 6, BATCH = 16, STEPS = 200 };

/* ---- the operator ---- */

static ddp_status snake_shape(ddp_op_spec *s, ddp_error *err)
{
    if (s->in[0].dims != 2) {
        snprintf(err->msg, sizeof err->msg,
                 "snake: the input must have 2 dimensions (rows, channels), not %d", s->in[0].dims);
        return err->code = DDP_ARG;
    }
    s->out = s->in[0];
    s->params = 1;
    s->param[0].name = "a";
    s->param[0].init = DDP_INIT_ONE;
    s->param[0].shape.dims = 1;
    s->param[0].shape.dim[0] = s->in[0].dim[1];
    s->flops = 8.0 * (double)ddp_shape_count(&s->out);
    s->out_unread = 1; /* backward reads x, not out, so the memory of out can be reused earlier */
    return DDP_OK;
}

static void snake_forward(const ddp_op_call *c)
{
    const float *x = (const float *)c->in[0], *a = (const float *)c->param[0];
    const long n = ddp_shape_count(&c->spec->out), channels = c->spec->out.dim[1];
    float *y = (float *)c->out;

    for (long i = 0; i < n; i++) {
        const float k = a[i % channels], s = sinf(k * x[i]);
        y[i] = x[i] + s * s / k;
    }
}

/* Computes the gradient of x, of a, or of both. The schedule zb requests them in separate calls. The gradient
 * of x is added if add_in[0] is set, else written. The gradient of a is always added. */
static void snake_backward(const ddp_op_call *c)
{
    const float *x = (const float *)c->in[0], *a = (const float *)c->param[0],
                *dy = (const float *)c->grad_out;
    const long n = ddp_shape_count(&c->spec->out), channels = c->spec->out.dim[1];
    float *dx = (float *)c->grad_in[0], *da = (float *)c->grad_param[0];

    for (long i = 0; i < n; i++) {
        const float k = a[i % channels], s = sinf(k * x[i]), twice = sinf(2 * k * x[i]);
        if (dx) dx[i] = (c->add_in[0] ? dx[i] : 0) + dy[i] * (1 + twice);
        if (da) da[i % channels] += dy[i] * (x[i] * twice / k - s * s / (k * k));
    }
}

static const ddp_op snake = {"snake", snake_shape, snake_forward, snake_backward};

/* ---- the model, the data, the loop ---- */

static ddp_node *build(ddp_graph *g)
{
    ddp_node *x = ddp_input(g, "points", DDP_F32, BATCH, 2),
             *labels = ddp_input(g, "labels", DDP_I32, BATCH, 1);

    if (ddp_register_op(g, &snake)) return NULL;
    for (int i = 0; i < 3; i++) {
        ddp_layer_begin(g, "hidden");
        x = ddp_linear(g, x, 24);
        x = ddp_apply(g, "snake", 1, &x, 0, NULL, NULL);
        ddp_layer_end(g);
    }
    ddp_layer_begin(g, "head");
    x = ddp_cross_entropy(g, ddp_linear(g, x, 2), labels);
    ddp_layer_end(g);
    return x;
}

/* Fills one micro-batch. All stages draw the same points, and store only the inputs that they read. */
static void fill(ddp_rng *r, float *points, int32_t *labels)
{
    for (int i = 0; i < BATCH; i++) {
        const float x = (float)(2 * ddp_rng_uniform(r) - 1), y = (float)(2 * ddp_rng_uniform(r) - 1);
        if (points) {
            points[2 * i] = x;
            points[2 * i + 1] = y;
        }
        if (labels) labels[i] = sinf(3 * x) * cosf(2 * y) > 0;
    }
}

static int train(ddp_ctx *d, void *user)
{
    const ddp_optimizer sgd = ddp_sgd(0.05f, 0.9f);
    ddp_graph *g = ddp_graph_new(d);
    ddp_pipe_stats s;
    ddp_pipe *p;
    uint64_t hash;
    ddp_rng r;
    double sum = 0; /* sum of the losses since the last printed line */
    int bad;

    p = ddp_pipe_open(d, g, build(g),
                      (const ddp_pipe_config *)user);  /* cuts the graph into stages and builds this one */
    if (!p) return DDP_FAILED;                         /* ddp_last_error has the cause */
    r = ddp_rng_seed(1, (uint64_t)ddp_pipe_number(p)); /* each pipeline has its own data */
    bad = ddp_set_optimizer(d, &sgd);
    for (int step = 0; !bad && step < STEPS; step++) {
        for (int m = 0; m < MICRO_BATCHES; m++)
            fill(&r, (float *)ddp_pipe_input(p, m, "points"), (int32_t *)ddp_pipe_input(p, m, "labels"));
        bad = ddp_pipe_step(p) || ddp_step_end(d);
        sum += bad ? 0 : (double)ddp_pipe_loss(p);
        if (!bad && step % 50 == 49 && ddp_rank(d) == 0) printf("step %3d  loss %.4f\n", step + 1, sum / 50);
        if (step % 50 == 49) sum = 0;
    }
    bad = bad || ddp_sync_all(d) || ddp_pipe_hash(p, &hash) || ddp_pipe_get_stats(p, &s);
    if (!bad && ddp_pipe_stage(p) == 0)
        printf("pipeline %d  parameters %016" PRIx64
               "  %.0f bytes between stages, bubble %.0f %%, step %.2f ms\n",
               ddp_pipe_number(p), hash, s.boundary_bytes, s.bubble_pct, 1e3 * s.step_s);
    ddp_pipe_close(p);
    return bad;
}

int main(int argc, char **argv)
{
    static ddp_config cfg;
    static ddp_pipe_config pipe;
    ddp_error err;

    memset(&err, 0, sizeof err);
    if (argc > 2 || (argc > 1 && ddp_pipeline_named(argv[1], &pipe.schedule, &err)))
        return printf("usage: pipeline [gpipe|1f1b|zb]\n"), strcmp(argv[1], "--help") ? 2 : 0;
    pipe.stages = STAGES;
    cfg.world = STAGES * PIPELINES;
    cfg.micro_batches = MICRO_BATCHES;
    cfg.deterministic = 1;
    if (ddp_launch(&cfg, train, &pipe, &err)) fprintf(stderr, "pipeline: %s\n", err.msg);
    return ddp_status_exit_code(err.code);
}
