/* Helper of test_torch_shapes.py: prints the image operators of whole models and random ones, one per
 * line: name, arguments, "|", input dimensions, "|", output dimensions, "|", parameters, buffers and FLOPs
 * (forward). Windows that do not fit have no output. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

static void print_shape(const ddp_shape *s)
{
    int i;

    printf("|");
    for (i = 0; i < s->dims; i++) printf(" %ld", s->dim[i]);
}

static void print_node(const ddp_graph *g, const ddp_node *n)
{
    ddp_node_info info;
    int i;

    ddp_node_describe(g, n->index, &info);
    printf("%s", info.name);
    for (i = 0; i < 6; i++) printf(" %.0f", n->spec.arg[i]);
    print_shape(&n->spec.in[0]);
    print_shape(&n->spec.out);
    printf("| %.0f %.0f %.0f\n", info.param_bytes / 4, info.buffer_bytes / 4, info.flops);
}

static int print_graph(ddp_graph *g)
{
    int i, failed = ddp_graph_error(g)->code != DDP_OK;

    if (failed) fprintf(stderr, "%s\n", ddp_graph_error(g)->msg);
    for (i = 0; i < ddp__count(g->node) && !failed; i++)
        if (g->node[i]->op) print_node(g, g->node[i]);
    ddp_graph_free(g);
    return failed;
}

static int print_resnet(int depth, long size, int cifar)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_resnet_config c;

    memset(&c, 0, sizeof c);
    c.depth = depth;
    c.classes = 10;
    c.size = size;
    c.batch = 2;
    c.cifar = cifar;
    ddp_resnet(g, &c, NULL);
    return print_graph(g);
}

static int print_vgg(int depth, long size)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_vgg_config c;

    memset(&c, 0, sizeof c);
    c.depth = depth;
    c.classes = 10;
    c.size = size;
    c.batch = 2;
    ddp_vgg(g, &c, NULL);
    return print_graph(g);
}

/* One random operator. The window may be too large for the image. */
static void print_random(ddp_rng *r, int kind)
{
    static const char *const names[] = {"conv2d", "max_pool2d", "avg_pool2d"};
    ddp_graph *g = ddp_graph_new(NULL);
    const double groups = 1 + (double)ddp_rng_below(r, 3), kernel = 1 + (double)ddp_rng_below(r, 7);
    double arg[6] = {0, 0, 0, 0, 0, 0};
    double *window = kind ? arg : arg + 1;
    ddp_node *x, *y;
    ddp_shape s;
    int i;

    memset(&s, 0, sizeof s);
    s.dims = 4;
    for (i = 0; i < 4; i++) s.dim[i] = 1 + (long)ddp_rng_below(r, i < 2 ? 3 : 23);
    s.dim[1] *= (long)groups;
    window[0] = kernel;
    window[1] = 1 + (double)ddp_rng_below(r, 4);
    window[2] = (double)ddp_rng_below(r, kind ? (uint64_t)kernel / 2 + 1 : 5);
    if (!kind) {
        arg[0] = groups * (1 + (double)ddp_rng_below(r, 3));
        arg[4] = groups;
        arg[5] = (double)ddp_rng_below(r, 2);
    }
    x = ddp_input_shape(g, "x", DDP_F32, &s);
    ddp_layer_begin(g, "l");
    y = ddp_apply(g, names[kind], 1, &x, kind ? 3 : 6, arg, NULL);
    if (y) {
        print_node(g, y);
    } else {
        printf("%s", names[kind]);
        for (i = 0; i < 6; i++) printf(" %.0f", arg[i]);
        print_shape(&s);
        printf("||\n");
    }
    ddp_graph_free(g);
}

int main(void)
{
    ddp_rng r = ddp_rng_seed(4, 2);
    int i, failed;

    failed = print_resnet(18, 225, 0) + print_resnet(50, 97, 0) + print_resnet(18, 33, 1) +
             print_vgg(16, 65) + print_vgg(19, 32);
    for (i = 0; i < 600; i++) print_random(&r, i % 3);
    return failed != 0;
}
