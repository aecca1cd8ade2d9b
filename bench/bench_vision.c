/* A training step of ResNet or VGG on images of 32 x 32, SGD with momentum.
 *
 *   cc -O2 -I. bench/bench_vision.c -o bench_vision -lm -lpthread && ./bench_vision
 *   ./bench_vision --threads 2 --steps 3     (the call of bench/torch_vision.py)
 *
 * The last line of stdout is one JSON object: the best step by the clock, and the least processor
 * time of a step over all threads, which is more reliable on a busy machine. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "../examples/common/cli.h"

#include <time.h>

static double bench_cpu(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ddp_node *bench_model(ddp_graph *g, const char *model, long depth, long batch)
{
    ddp_resnet_config r;
    ddp_vgg_config v;

    memset(&r, 0, sizeof r);
    memset(&v, 0, sizeof v);
    r.depth = v.depth = (int)depth;
    r.classes = v.classes = 10;
    r.size = v.size = 32;
    r.batch = v.batch = batch;
    r.cifar = 1;
    return strcmp(model, "vgg") ? ddp_resnet(g, &r, NULL) : ddp_vgg(g, &v, NULL);
}

static int bench_steps(ddp_ctx *d, ddp_graph *g, ddp_node *loss, long batch, long steps)
{
    ddp_rng r = ddp_rng_seed(1, 2);
    float *x = (float *)ddp_data(g, "inputs");
    int32_t *y = (int32_t *)ddp_data(g, "labels");
    double best = INFINITY, least = INFINITY;
    long i, s;

    for (i = 0; i < batch * 3 * 32 * 32; i++) x[i] = (float)ddp_rng_normal(&r);
    for (i = 0; i < batch; i++) y[i] = (int32_t)ddp_rng_below(&r, 10);
    for (s = 0; s <= steps; s++) { /* the first step allocates its memory */
        const double t = ddp_now(), c = bench_cpu();
        if (ddp_forward(g) || ddp_backward(g, loss) || ddp_step_end(d)) return 1;
        if (s && ddp_now() - t < best) best = ddp_now() - t;
        if (s && bench_cpu() - c < least) least = bench_cpu() - c;
    }
    printf("{\"step_s\": %.6f, \"cpu_s\": %.6f, \"images_per_s\": %.3f, \"loss\": %.6f, "
           "\"activation_bytes\": %zu}\n",
           best, least, (double)batch / best, (double)ddp_value(g, loss), ddp_activation_bytes(g));
    return 0;
}

int main(int argc, char **argv)
{
    long depth = 18, batch = 32, threads = 1, steps = 5;
    const char *model = "resnet";
    int quick = 0;
    cli_option table[6];
    ddp_optimizer sgd;
    ddp_config cfg;
    ddp_error err;
    ddp_graph *g;
    ddp_node *loss;
    ddp_ctx *d;
    int code;

    (void)cli_catch_interrupt; /* Ctrl-C ends the program: there is nothing to clean up */
    memset(table, 0, sizeof table);
    table[0].name = "--model";
    table[0].kind = CLI_TEXT;
    table[0].out = &model;
    table[0].value = "NAME";
    table[0].help = "resnet or vgg (default resnet)";
    table[1].name = "--depth";
    table[1].kind = CLI_COUNT;
    table[1].out = &depth;
    table[1].value = "N";
    table[1].help = "of the model (default 18)";
    table[2].name = "--batch";
    table[2].kind = CLI_COUNT;
    table[2].out = &batch;
    table[2].value = "N";
    table[2].help = "images per step (default 32)";
    table[3].name = "--threads";
    table[3].kind = CLI_COUNT;
    table[3].out = &threads;
    table[3].value = "N";
    table[3].help = "operator threads (default 1)";
    table[4].name = "--steps";
    table[4].kind = CLI_COUNT;
    table[4].out = &steps;
    table[4].value = "N";
    table[4].help = "measured steps (default 5)";
    table[5].name = "--quick";
    table[5].kind = CLI_FLAG;
    table[5].out = &quick;
    table[5].value = "";
    table[5].help = "one measured step";
    code = cli_parse(argc, argv, "Time of a training step on images.", table, 6);
    if (code >= 0) return code;
    if (quick) steps = 1;
    memset(&cfg, 0, sizeof cfg);
    memset(&err, 0, sizeof err);
    cfg.world = 1;
    cfg.threads = (int)threads;
    d = ddp_open(&cfg, &err);
    g = d ? ddp_graph_new(d) : NULL;
    loss = g ? bench_model(g, model, depth, batch) : NULL;
    sgd = ddp_sgd(0.1f, 0.9f);
    code = !loss || ddp_graph_build(g) || ddp_set_optimizer(d, &sgd) || bench_steps(d, g, loss, batch, steps);
    if (code)
        fprintf(stderr, "bench_vision: %s\n",
                g && ddp_graph_error(g)->code ? ddp_graph_error(g)->msg : err.msg);
    ddp_close(d);
    return code;
}
