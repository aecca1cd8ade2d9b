/* [pure] Models that are planned and never allocated: ResNet, VGG, GPT-2 XL, and their operator lists. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

#include <setjmp.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

#include "../examples/plan/models.h"

static size_t g_bytes, g_largest; /* of all calls; of the largest call */

/* Counts allocated bytes, so that tests can assert that nothing large is allocated. */
void *heap_realloc(void *p, size_t bytes)
{
    g_bytes += bytes;
    if (bytes > g_largest) g_largest = bytes;
    return realloc(p, bytes);
}

void heap_free(void *p) { free(p); }

static ddp_graph *resnet(int depth, long classes, long size, long batch, int cifar)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_resnet_config c;

    memset(&c, 0, sizeof c);
    c.depth = depth;
    c.classes = classes;
    c.size = size;
    c.batch = batch;
    c.cifar = cifar;
    if (!ddp_resnet(g, &c, NULL)) fail_msg("%s", ddp_graph_error(g)->msg);
    return g;
}

static ddp_graph *vgg(int depth, long classes, long size, float dropout)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_vgg_config c;

    memset(&c, 0, sizeof c);
    c.depth = depth;
    c.classes = classes;
    c.size = size;
    c.batch = 1;
    c.dropout = dropout;
    if (!ddp_vgg(g, &c, NULL)) fail_msg("%s", ddp_graph_error(g)->msg);
    return g;
}

static ddp_graph *gpt2(long layers, long heads, long dim, long batch)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_gpt2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = 50257;
    c.context = 1024;
    c.layers = layers;
    c.heads = heads;
    c.dim = dim;
    c.batch = batch;
    if (!ddp_gpt2(g, &c, NULL)) fail_msg("%s", ddp_graph_error(g)->msg);
    return g;
}

static ddp_node_info describe(const ddp_graph *g, int i)
{
    ddp_node_info info;

    assert_int_equal(ddp_node_describe(g, i, &info), DDP_OK);
    return info;
}

/* Forward FLOPs of the operators with that name; of all operators if NULL. */
static double flops(const ddp_graph *g, const char *op)
{
    double sum = 0;
    int i;

    for (i = 0; i < ddp_node_count(g); i++) {
        ddp_node_info info = describe(g, i);
        if (!op || !strcmp(info.name, op)) sum += info.flops;
    }
    return sum;
}

/* ---- published numbers ---- */

static void parameter_counts_are_the_published_ones(void **unused)
{
    static const double image_model[9][3] = {
        /* depth, parameters, batch norm channels */
        {18, 11689512, 4800},   {34, 21797672, 8512},   {50, 25557032, 26560},
        {101, 44549160, 52672}, {152, 60192808, 75712}, {11, 132863336, 0},
        {13, 133047848, 0},     {16, 138357544, 0},     {19, 143667240, 0}};
    int i, k;

    (void)unused;
    for (i = 0; i < 9; i++) {
        const int depth = (int)image_model[i][0];
        ddp_graph *g = i < 5 ? resnet(depth, 1000, 224, 1, 0) : vgg(depth, 1000, 224, 0.5f);
        double params = 0, buffers = 0;

        assert_int_equal(ddp_param_count(g), (size_t)image_model[i][1]);
        for (k = 0; k < ddp_node_count(g); k++) {
            params += describe(g, k).param_bytes;
            buffers += describe(g, k).buffer_bytes;
        }
        assert_true(params == 4 * image_model[i][1]);
        assert_true(buffers == 8 * image_model[i][2]); /* mean and variance, 4 bytes each */
        ddp_graph_free(g);
    }
}

static void gpt2_and_gpt2_xl_have_the_published_sizes(void **unused)
{
    ddp_graph *g = gpt2(12, 12, 768, 1);

    (void)unused;
    assert_int_equal(ddp_param_count(g), 124439808);
    ddp_graph_free(g);
    g = gpt2(48, 25, 1600, 1);
    assert_int_equal(ddp_param_count(g), 1557611200);
    ddp_graph_free(g);
}

/* Multiply-adds of convolutions and linear layers per image of 224 x 224, as published with the weights:
 * ResNet-18 1.814, 50 4.089, 101 7.801 G; VGG-16 15.470, 19 19.632 G. */
static void multiply_adds_are_the_published_ones(void **unused)
{
    static const double published[5][2] = {{18, 1814073344.0},
                                           {50, 4089184256.0},
                                           {101, 7801405440.0},
                                           {16, 15470264320.0},
                                           {19, 19632062464.0}};
    int i;

    (void)unused;
    for (i = 0; i < 5; i++) {
        ddp_graph *g =
            i < 3 ? resnet((int)published[i][0], 1000, 224, 1, 0) : vgg((int)published[i][0], 1000, 224, 0);
        const double products = flops(g, "conv2d") + flops(g, "linear");

        if (products / 2 != published[i][1])
            fail_msg("depth %g: %.0f multiply-adds, published %.0f", published[i][0], products / 2,
                     published[i][1]);
        /* other operators cost little; planned cuts use these numbers */
        assert_true(flops(g, NULL) > products && flops(g, NULL) < 1.05 * products);
        ddp_graph_free(g);
    }
}

/* Stage by stage: 2 x outputs x values read per output. */
static void resnet18_flops_are_those_worked_out_by_hand(void **unused)
{
    const double stem = 112 * 112 * 64 * (3 * 49.0), one = 56 * 56 * 64 * (64 * 9.0);
    /* stages 2 to 4: a strided half and three full convolutions, each with as many products as one of stage
     * 1, because the channels double while the area falls to a quarter; and the 1x1 shortcut */
    const double stage = 0.5 * one + 3 * one + 28 * 28 * 128 * 64.0;
    const double n = 3; /* a batch of three */
    ddp_graph *g = resnet(18, 1000, 224, 3, 0);
    double norm = 0;
    int i;

    (void)unused;
    assert_true(flops(g, "conv2d") == 2 * n * (stem + 4 * one + 3 * stage));
    assert_true(flops(g, "linear") == 2 * n * 512 * 1000);
    assert_true(flops(g, "max_pool2d") == n * 64 * 56 * 56 * 9);
    assert_true(flops(g, "global_avg_pool2d") == n * 512 * 49);
    for (i = 0; i < ddp_node_count(g); i++) {
        ddp_node_info info = describe(g, i);

        if (!strcmp(info.name, "batch_norm2d")) norm += info.output_bytes / 4;
        if (!strcmp(info.name, "conv2d")) assert_true(info.backward_flops == 2 * info.flops);
    }
    assert_true(flops(g, "batch_norm2d") == 8 * norm);
    assert_true(norm == n * (112 * 112 * 64 + 4 * 56 * 56 * 64 + 5 * 28 * 28 * 128 + 5 * 14 * 14 * 256 +
                             5 * 7 * 7 * 512));
    ddp_graph_free(g);
}

static void gpt2_xl_flops_are_those_worked_out_by_hand(void **unused)
{
    const double n = 3 * 1024.0, c = 1600; /* tokens, width */
    ddp_graph *g = gpt2(48, 25, 1600, 3);

    (void)unused;
    assert_true(flops(g, "linear") == 48 * 2 * n * (3 + 1 + 4 + 4) * c * c);
    assert_true(flops(g, "linear_tied") == 2 * n * c * 50257);
    /* two products with the token itself and all earlier ones: (1024 + 1) / 2 on average */
    assert_true(flops(g, "attention") == 48 * 2 * 2 * n * c * 1025 / 2);
    ddp_graph_free(g);
}

/* ---- structure ---- */

static void expect_out(const ddp_graph *g, const char *layer, const char *op, long c, long h)
{
    int i, seen = 0;

    for (i = 0; i < ddp_node_count(g); i++) {
        ddp_node_info info = describe(g, i);

        if (strcmp(info.layer, layer) || strcmp(info.name, op)) continue;
        seen++;
        if (info.out.dims != 4 || info.out.dim[1] != c || info.out.dim[2] != h || info.out.dim[3] != h)
            fail_msg("%s %s: (%ld, %ld, %ld)", layer, op, info.out.dim[1], info.out.dim[2], info.out.dim[3]);
    }
    assert_true(seen > 0);
}

static void stages_have_the_papers_sizes(void **unused)
{
    ddp_graph *g = resnet(50, 1000, 224, 2, 0);

    (void)unused;
    assert_int_equal(ddp_layer_count(g), 1 + 3 * 16 + 4 + 1); /* stem, blocks, shortcuts, head */
    expect_out(g, "conv1", "conv2d", 64, 112);
    expect_out(g, "conv1", "max_pool2d", 64, 56);
    expect_out(g, "layer1.0.downsample", "batch_norm2d", 256, 56);
    expect_out(g, "layer2.0.conv1", "conv2d", 128, 56); /* the stride is in the 3x3 */
    expect_out(g, "layer2.0.conv2", "conv2d", 128, 28);
    expect_out(g, "layer2.3.conv3", "add", 512, 28);
    expect_out(g, "layer3.5.conv3", "relu", 1024, 14);
    expect_out(g, "layer4.2.conv3", "relu", 2048, 7);
    ddp_graph_free(g);

    g = resnet(18, 1000, 224, 2, 0);
    assert_int_equal(ddp_layer_count(g), 1 + 2 * 8 + 3 + 1);
    expect_out(g, "layer1.0.conv1", "relu", 64, 56);
    expect_out(g, "layer4.1.conv2", "add", 512, 7);
    ddp_graph_free(g);

    g = vgg(19, 1000, 224, 0);
    assert_int_equal(ddp_layer_count(g), 19);
    expect_out(g, "conv1_2", "max_pool2d", 64, 112);
    expect_out(g, "conv3_4", "max_pool2d", 256, 28);
    expect_out(g, "conv5_4", "max_pool2d", 512, 7);
    ddp_graph_free(g);
}

/* ResNet-18 on CIFAR-10: 11,173,962 parameters, 0.56 G multiply-adds, known from many published trainings
 * with this stem. */
static void the_cifar_stem_keeps_small_images(void **unused)
{
    ddp_graph *g = resnet(18, 10, 32, 1, 1);

    (void)unused;
    assert_int_equal(ddp_param_count(g), 11173962);
    assert_true((flops(g, "conv2d") + flops(g, "linear")) / 2 == 555422720.0);
    expect_out(g, "conv1", "relu", 64, 32);
    expect_out(g, "layer4.1.conv2", "relu", 512, 4);
    ddp_graph_free(g);

    g = vgg(16, 10, 32, 0); /* 1 x 1 features */
    assert_int_equal(ddp_param_count(g), 14714688 + 513 * 4096 + 4097 * 4096 + 4097 * 10);
    ddp_graph_free(g);
}

static void images_may_have_other_channels_and_dropout_is_optional(void **unused)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_resnet_config c;
    ddp_node *logits;
    ddp_node_info info;

    (void)unused;
    memset(&c, 0, sizeof c);
    c.depth = 18;
    c.classes = 7;
    c.size = 28;
    c.channels = 1;
    c.batch = 5;
    assert_non_null(ddp_resnet(g, &c, &logits));
    info = describe(g, ddp_node_index(logits));
    assert_true(info.out.dims == 2 && info.out.dim[0] == 5 && info.out.dim[1] == 7);
    assert_int_equal(describe(g, 0).out.dim[1], 1);
    ddp_graph_free(g);

    g = vgg(16, 1000, 224, 0);
    assert_true(flops(g, "dropout") == 0);
    ddp_graph_free(g);
    g = vgg(16, 1000, 224, 0.5f);
    assert_true(flops(g, "dropout") == 2 * 4096);
    ddp_graph_free(g);
}

/* ---- mistakes ---- */

static void expect_error(ddp_graph *g, const ddp_node *refused, const char *part)
{
    assert_null(refused);
    assert_int_equal(ddp_graph_error(g)->code, DDP_ARG);
    if (!strstr(ddp_graph_error(g)->msg, part))
        fail_msg("\"%s\" lacks \"%s\"", ddp_graph_error(g)->msg, part);
    ddp_graph_free(g);
}

static void resnet_refused(int depth, long classes, long size, long channels, long batch, const char *part)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_resnet_config c;

    memset(&c, 0, sizeof c);
    c.depth = depth;
    c.classes = classes;
    c.size = size;
    c.channels = channels;
    c.batch = batch;
    expect_error(g, ddp_resnet(g, &c, NULL), part);
    assert_null(ddp_resnet(NULL, &c, NULL));
}

static void vgg_refused(int depth, long classes, long size, long batch, float dropout, const char *part)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_vgg_config c;

    memset(&c, 0, sizeof c);
    c.depth = depth;
    c.classes = classes;
    c.size = size;
    c.batch = batch;
    c.dropout = dropout;
    expect_error(g, ddp_vgg(g, &c, NULL), part);
    assert_null(ddp_vgg(NULL, &c, NULL));
}

static void impossible_models_are_refused_in_a_sentence(void **unused)
{
    (void)unused;
    resnet_refused(20, 10, 32, 0, 1, "no ResNet of depth 20: take 18, 34, 50, 101 or 152");
    resnet_refused(18, 1, 32, 0, 1, "classes 1 at least 2");
    resnet_refused(18, 10, 0, 0, 1, "size 0 must be at least 1");
    resnet_refused(18, 10, 32, -3, 1, "channels -3");
    resnet_refused(18, 10, 32, 0, -1, "batch -1");
    vgg_refused(17, 10, 32, 1, 0, "no VGG of depth 17: take 11, 13, 16 or 19");
    vgg_refused(16, 10, 31, 1, 0, "images of 31 x 31 are too small");
    vgg_refused(16, 1, 32, 1, 0, "classes 1");
    vgg_refused(16, 10, 32, 0, 0, "batch 0");
    vgg_refused(16, 10, 32, 1, 1, "dropout is 1");
    vgg_refused(16, 10, 32, 1, NAN, "dropout is");
}

/* ---- memory ---- */

static void building_a_large_model_allocates_no_arrays(void **unused)
{
    ddp_graph *g;
    ddp_oplist list;
    ddp_error err;
    int i;

    (void)unused;
    for (i = 0; i < 4; i++) {
        g_bytes = g_largest = 0;
        g = i == 0   ? gpt2(48, 25, 1600, 64)
            : i == 1 ? resnet(101, 1000, 224, 4096, 0)
            : i == 2 ? vgg(19, 1000, 224, 0.5f)
                     : resnet(18, 1000, 224, 1, 0);
        assert_int_equal(ddp_graph_oplist(g, &list, &err), DDP_OK);
        print_message("%d nodes: %zu KB of bookkeeping, the largest block %zu KB\n", ddp_node_count(g),
                      g_bytes / 1024, g_largest / 1024);
        assert_true(g_bytes < 2 * 1024 * 1024 && g_largest < 256 * 1024);
        ddp_oplist_free(&list);
        ddp_graph_free(g);
    }
}

/* ---- operator lists ---- */

static ddp_oplist oplist(const char *name, long batch)
{
    ddp_oplist list;
    ddp_error err;

    memset(&list, 0, sizeof list);
    if (plan_model_oplist(name, batch, &list, &err)) fail_msg("%s", err.msg);
    assert_int_equal(ddp_oplist_check(&list, &err), DDP_OK);
    return list;
}

static void lists_are_in_order_and_add_up(void **unused)
{
    static const double params[8] = {669706,   124439808, 1557611200, 11689512,
                                     25557032, 44549160,  138357544,  143667240};
    int m, i, k, leaves, used;

    (void)unused;
    for (m = 0; m < PLAN_MODEL_COUNT; m++) {
        ddp_oplist list = oplist(plan_model_table[m].name, 2);
        double bytes = 0;

        for (i = leaves = 0; i < list.count; i++) {
            const ddp_oplist_entry *e = &list.op[i];

            bytes += e->param_bytes;
            leaves += e->arg_count == 0;
            for (k = 0; k < e->arg_count; k++) assert_true(e->args[k] >= 0 && e->args[k] < i);
            for (k = 0; k < i; k++) assert_string_not_equal(list.op[k].name, e->name);
        }
        assert_true(bytes == 4 * params[m]);
        assert_int_equal(leaves, 1); /* one operator reads the input, the loss reads its labels */
        assert_int_equal(list.op[0].arg_count, 0);
        for (i = 0; i + 1 < list.count; i++) { /* every result except the last is used */
            for (k = i + 1, used = 0; k < list.count && !used; k++)
                used = list.op[k].arg_count > 0 &&
                       (list.op[k].args[0] == i || (list.op[k].arg_count > 1 && list.op[k].args[1] == i));
            assert_true(used);
        }
        assert_true(list.op[list.count - 1].output_bytes == 4);
        ddp_oplist_free(&list);
    }
}

static int op_named(const ddp_oplist *list, const char *name)
{
    int i;

    for (i = 0; i < list->count; i++)
        if (!strcmp(list->op[i].name, name)) return i;
    fail_msg("no operator %s", name);
    return -1;
}

static void a_list_agrees_with_the_graph(void **unused)
{
    ddp_oplist list = oplist("resnet18", 128);
    const ddp_oplist_entry *e;
    int add = op_named(&list, "layer2.0.conv2/add");

    (void)unused;
    assert_int_equal(list.count, 4 + 8 * 7 + 3 * 2 + 3); /* stem, blocks, shortcuts, head */
    e = &list.op[add];
    assert_int_equal(e->arg_count, 2);
    assert_int_equal(e->args[0], op_named(&list, "layer2.0.conv2/batch_norm2d"));
    assert_int_equal(e->args[1], op_named(&list, "layer2.0.downsample/batch_norm2d"));
    assert_true(e->output_bytes == 4.0 * 128 * 128 * 28 * 28 && e->param_bytes == 0);
    e = &list.op[op_named(&list, "layer2.1.conv2/add")]; /* a skip edge over five operators */
    assert_int_equal(e->args[1], op_named(&list, "layer2.0.conv2/relu"));
    assert_true(list.op[0].flops == 2.0 * 128 * 112 * 112 * 64 * 147);
    assert_true(list.op[0].param_bytes == 4 * 9408);
    ddp_oplist_free(&list);

    list = oplist("gpt2-xl", 3);
    /* the tied weight counts at the embedding; a boundary carries 19.66 MB */
    assert_true(list.op[op_named(&list, "head/linear_tied")].param_bytes == 0);
    assert_true(list.op[op_named(&list, "h.7.mlp/add")].output_bytes == 19660800);
    assert_true(op_named(&list, "h.7.mlp/linear.1") > op_named(&list, "h.7.mlp/linear"));
    ddp_oplist_free(&list);
}

static void costs_grow_with_the_batch_and_parameters_do_not(void **unused)
{
    int m, i;

    (void)unused;
    for (m = 0; m < PLAN_MODEL_COUNT; m++) {
        ddp_oplist a = oplist(plan_model_table[m].name, 1), b = oplist(plan_model_table[m].name, 7);

        assert_int_equal(a.count, b.count);
        for (i = 0; i < a.count; i++) {
            assert_true(b.op[i].flops == 7 * a.op[i].flops);
            assert_true(b.op[i].param_bytes == a.op[i].param_bytes);
            if (i + 1 < a.count) assert_true(b.op[i].output_bytes == 7 * a.op[i].output_bytes);
        }
        ddp_oplist_free(&a);
        ddp_oplist_free(&b);
    }
}

static void lists_that_cannot_be_made_are_refused_and_leave_the_output_alone(void **unused)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_oplist list;
    ddp_error err;

    (void)unused;
    memset(&list, 0, sizeof list);
    list.count = 42;
    assert_int_equal(plan_model_oplist("resnet19", 1, &list, &err), DDP_ARG);
    assert_string_equal(err.msg, "model 'resnet19' is unknown; use one of mlp, gpt2, gpt2-xl, "
                                 "resnet18, resnet50, resnet101, vgg16, vgg19");
    assert_int_equal(plan_model_oplist("vgg16", -1, &list, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "batch -1 must be at least 1"));
    assert_int_equal(plan_model_oplist("", 1, &list, NULL), DDP_ARG);

    assert_int_equal(ddp_graph_oplist(NULL, &list, &err), DDP_ARG);
    assert_int_equal(ddp_graph_oplist(g, NULL, &err), DDP_ARG);
    ddp_input(g, "x", DDP_F32, 2, 3);
    assert_int_equal(ddp_graph_oplist(g, &list, &err), DDP_ARG);
    assert_non_null(strstr(err.msg, "no operators"));
    ddp_linear(g, NULL, 1);
    assert_int_equal(ddp_graph_oplist(g, &list, &err), DDP_ARG);
    assert_string_equal(err.msg, ddp_graph_error(g)->msg);
    assert_true(list.count == 42 && !list.op);
    ddp_graph_free(g);
}

static void operators_outside_layers_are_numbered_too(void **unused)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *x = ddp_input(g, "x", DDP_F32, 2, 3);
    ddp_oplist list;
    ddp_error err;

    (void)unused;
    ddp_relu(g, ddp_relu(g, ddp_relu(g, x)));
    assert_int_equal(ddp_graph_oplist(g, &list, &err), DDP_OK);
    ddp_graph_free(g);
    assert_int_equal(list.count, 3);
    assert_string_equal(list.op[0].name, "relu");
    assert_string_equal(list.op[1].name, "relu.1");
    assert_string_equal(list.op[2].name, "relu.2");
    assert_int_equal(list.op[2].module, 0);
    ddp_oplist_free(&list);
}

/* A built graph gives the same list as a planned one. */
static void a_built_graph_gives_the_same_list(void **unused)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_oplist a, b;
    ddp_mlp_config c;
    ddp_error err;
    int i;

    (void)unused;
    memset(&c, 0, sizeof c);
    c.batch = 2;
    c.inputs = 3;
    c.hidden[0] = 4;
    c.classes = 5;
    assert_non_null(ddp_mlp(g, &c, NULL));
    assert_int_equal(ddp_graph_oplist(g, &a, &err), DDP_OK);
    assert_int_equal(ddp_graph_build(g), DDP_OK);
    assert_int_equal(ddp_graph_oplist(g, &b, &err), DDP_OK);
    ddp_graph_free(g); /* lists own their data */
    assert_int_equal(a.count, 4);
    for (i = 0; i < 4; i++) {
        assert_string_equal(a.op[i].name, b.op[i].name);
        assert_true(a.op[i].flops == b.op[i].flops && a.op[i].param_bytes == b.op[i].param_bytes);
    }
    assert_string_equal(a.op[0].name, "hidden/linear");
    assert_string_equal(a.op[3].name, "head/cross_entropy");
    ddp_oplist_free(&a);
    ddp_oplist_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameter_counts_are_the_published_ones),
        cmocka_unit_test(gpt2_and_gpt2_xl_have_the_published_sizes),
        cmocka_unit_test(multiply_adds_are_the_published_ones),
        cmocka_unit_test(resnet18_flops_are_those_worked_out_by_hand),
        cmocka_unit_test(gpt2_xl_flops_are_those_worked_out_by_hand),
        cmocka_unit_test(stages_have_the_papers_sizes),
        cmocka_unit_test(the_cifar_stem_keeps_small_images),
        cmocka_unit_test(images_may_have_other_channels_and_dropout_is_optional),
        cmocka_unit_test(impossible_models_are_refused_in_a_sentence),
        cmocka_unit_test(building_a_large_model_allocates_no_arrays),
        cmocka_unit_test(lists_are_in_order_and_add_up),
        cmocka_unit_test(a_list_agrees_with_the_graph),
        cmocka_unit_test(costs_grow_with_the_batch_and_parameters_do_not),
        cmocka_unit_test(lists_that_cannot_be_made_are_refused_and_leave_the_output_alone),
        cmocka_unit_test(operators_outside_layers_are_numbered_too),
        cmocka_unit_test(a_built_graph_gives_the_same_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
