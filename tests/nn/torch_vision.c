/* Helper of test_torch_vision.py: runs ResNet-18 (or with "vgg" VGG-16) on random images and writes the
 * data that PyTorch needs for the same computation as float32: images, labels, parameters; for VGG then
 * the logits; for ResNet the loss of each training step, parameters and buffers after training, the logits
 * of ddp_evaluate, and the buffers after it. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#define STEPS 5

static void write_floats(const float *x, size_t n) { fwrite(x, sizeof *x, n, stdout); }

/* Writes all parameters, or all buffers, in the order of the operators. */
static void write_arrays(ddp_graph *g, int buffers)
{
    int i, k;

    for (i = 0; i < ddp__count(g->node); i++) {
        const ddp_op_spec *s = &g->node[i]->spec;
        for (k = 0; k < (buffers ? s->buffers : s->params); k++)
            write_floats(buffers ? ddp_node_buffer(g, g->node[i], k, NULL)
                                 : ddp_node_param(g, g->node[i], k, NULL),
                         (size_t)ddp_shape_count(buffers ? &s->buffer[k].shape : &s->param[k].shape));
    }
}

static int build(ddp_graph *g)
{
    float *x;
    int32_t *labels;
    ddp_rng r = ddp_rng_seed(5, 7);
    int i;

    if (ddp_graph_build(g)) {
        fprintf(stderr, "%s\n", ddp_graph_error(g)->msg);
        return 0;
    }
    x = (float *)ddp_data(g, "inputs");
    labels = (int32_t *)ddp_data(g, "labels");
    for (i = 0; i < 4 * 3 * 32 * 32; i++) x[i] = (float)ddp_rng_normal(&r);
    for (i = 0; i < 4; i++) labels[i] = (int32_t)ddp_rng_below(&r, 10);
    write_floats(x, 4 * 3 * 32 * 32);
    for (i = 0; i < 4; i++) {
        const float label = (float)labels[i];
        write_floats(&label, 1);
    }
    write_arrays(g, 0);
    return 1;
}

static int train(ddp_graph *g, ddp_node *loss, ddp_node *logits)
{
    const ddp_optimizer sgd = ddp_sgd(0.001f, 0.9f);
    float losses[STEPS];
    float *state[64];
    ddp_update u;
    size_t count;
    long step;
    int l;

    memset(state, 0, sizeof state);
    memset(&u, 0, sizeof u);
    for (l = 0; l < ddp_layer_count(g); l++) {
        ddp_layer_params(g, l, &count);
        state[l] = (float *)calloc(count, sizeof *state[l]);
    }
    u.lr = 0.001f;
    for (step = 0; step < STEPS; step++) {
        if (ddp_forward(g) || ddp_backward(g, loss)) return 1;
        losses[step] = ddp_value(g, loss);
        for (l = 0; l < ddp_layer_count(g); l++) {
            u.layer = l;
            u.params = ddp_layer_params(g, l, &u.count);
            u.grads = ddp_layer_gradients(g, l, &count);
            u.state = state[l];
            u.step = step;
            sgd.update(&sgd, &u);
        }
        ddp_zero_gradients(g);
    }
    write_floats(losses, STEPS);
    write_arrays(g, 0);
    write_arrays(g, 1);
    if (ddp_evaluate(g)) return 1;
    write_floats(ddp_output(g, logits), 4 * 10);
    write_arrays(g, 1);
    for (l = 0; l < ddp_layer_count(g); l++) free(state[l]);
    return 0;
}

int main(int argc, char **argv)
{
    const int vgg = argc > 1 && !strcmp(argv[1], "vgg");
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_resnet_config r;
    ddp_vgg_config v;
    ddp_node *loss, *logits;
    int code = 1;

    memset(&r, 0, sizeof r);
    memset(&v, 0, sizeof v);
    r.depth = 18;
    v.depth = 16;
    r.classes = v.classes = 10;
    r.size = v.size = 32;
    r.batch = v.batch = 4;
    r.cifar = 1;
    loss = vgg ? ddp_vgg(g, &v, &logits) : ddp_resnet(g, &r, &logits);
    if (loss && build(g)) {
        code = vgg ? ddp_forward(g) : train(g, loss, logits);
        if (vgg) write_floats(ddp_output(g, logits), 4 * 10);
    }
    ddp_graph_free(g);
    return code;
}
