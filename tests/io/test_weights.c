/* [pure] Weight files of models: tensor names, and files that are rejected before a weight changes. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "io/weights.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

static long live;      /* allocations that are not yet freed */
static long left = -1; /* allocations that succeed; below 0: all */

void *heap_realloc(void *p, size_t bytes)
{
    if (left == 0) return NULL;
    if (left > 0) left--;
    live += !p;
    return realloc(p, bytes);
}

void heap_free(void *p)
{
    live -= p != NULL;
    free(p);
}

static const char *path_of(char *text, size_t room)
{
    snprintf(text, room, "/tmp/ddp_weights_%ld.safetensors", (long)getpid());
    return text;
}

static ddp_graph *gpt2_of(int dim)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_gpt2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = 11;
    c.context = 4;
    c.layers = 2;
    c.heads = 2;
    c.dim = dim;
    c.batch = 1;
    ddp_gpt2(g, &c, NULL);
    assert_int_equal(ddp_graph_build(g), 0);
    return g;
}

static ddp_graph *gpt2(void) { return gpt2_of(6); }

/* The graph is not built yet. */
static ddp_graph *mlp(void)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_mlp_config c;

    memset(&c, 0, sizeof c);
    c.batch = 1;
    c.inputs = 3;
    c.hidden[0] = 5;
    c.hidden[1] = 4;
    c.classes = 2;
    ddp_mlp(g, &c, NULL);
    return g;
}

static uint64_t hash_of(ddp_graph *g)
{
    uint64_t h = 0;
    int l;

    for (l = 0; l < ddp_layer_count(g); l++) {
        size_t n;
        const float *p = ddp_layer_params(g, l, &n);
        h = ddp_hash_floats(h, p, n);
    }
    return h;
}

static void scramble(ddp_graph *g)
{
    int l;

    for (l = 0; l < ddp_layer_count(g); l++) {
        size_t n;
        float *p = ddp_layer_params(g, l, &n);
        if (n) memset(p, 0x3f, n * sizeof *p);
    }
}

static void saved_weights_are_loaded(void **unused)
{
    ddp_graph *g = gpt2(), *small = mlp();
    uint64_t h = hash_of(g);
    char path[64];
    ddp_error err;

    (void)unused;
    assert_int_equal(ddp_weights_save(g, path_of(path, sizeof path), NULL), DDP_OK);
    scramble(g);
    assert_true(hash_of(g) != h);
    assert_int_equal(ddp_weights_load(g, path, NULL), DDP_OK);
    assert_true(hash_of(g) == h);

    assert_int_equal(ddp_weights_load(small, path, &err), DDP_USAGE); /* not built yet */
    assert_int_equal(ddp_weights_load(NULL, path, &err), DDP_USAGE);
    assert_non_null(strstr(err.msg, "the model has no weights before ddp_graph_build"));
    assert_int_equal(ddp_graph_build(small), 0);
    h = hash_of(small);
    assert_int_equal(ddp_weights_load(small, path, &err), DDP_FORMAT);
    assert_true(hash_of(small) == h);
    assert_int_equal(ddp_weights_save(small, path, NULL), DDP_OK);
    scramble(small);
    assert_int_equal(ddp_weights_load(small, path, NULL), DDP_OK);
    assert_true(hash_of(small) == h);
    remove(path);
    assert_int_equal(ddp_weights_load(small, path, &err), DDP_IO);
    ddp_graph_free(g);
    ddp_graph_free(small);
}

/* Wider than the blocks that the loader transposes. */
static void matrices_of_linear_layers_are_stored_transposed(void **unused)
{
    enum { DIM = 34, MOST = DIM * 4 * DIM };
    ddp_graph *g = gpt2_of(DIM);
    const uint64_t h = hash_of(g);
    float *x = (float *)malloc(MOST * sizeof *x);
    ddp__weights all;
    ddp_safetensors *s;
    char path[64];
    int turned = 0;

    (void)unused;
    assert_non_null(x);
    assert_int_equal(ddp_weights_save(g, path_of(path, sizeof path), NULL), DDP_OK);
    assert_int_equal(ddp__weights_list(g, path, &all, NULL), DDP_OK);
    s = ddp_safetensors_open(path, NULL);
    for (int i = 0; i < all.count; i++) {
        const ddp__weight *w = &all.list[i];
        const size_t n = (size_t)ddp_safetensors_elements(&w->as), rows = (size_t)w->as.dim[0];
        assert_true(n <= MOST);
        assert_int_equal(ddp_safetensors_floats(s, ddp_safetensors_find(s, w->name), 0, n, x, NULL), DDP_OK);
        turned += w->transposed;
        if (!w->transposed)
            assert_memory_equal(x, w->data, n * sizeof *x);
        else
            for (size_t k = 0; k < n; k++)
                assert_true(x[k] == w->data[k % (n / rows) * rows + k / (n / rows)]);
    }
    assert_int_equal(turned, 2 * 4);
    scramble(g);
    assert_int_equal(ddp_weights_load(g, path, NULL), DDP_OK);
    assert_true(hash_of(g) == h);
    ddp_safetensors_close(s);
    ddp__weights_free(&all);
    ddp_graph_free(g);
    remove(path);
    free(x);
}

enum { TENSORS = 2 + 2 * 12 + 2, ROOM = TENSORS + 4 };

/* The weight file of a GPT-2, for tests that change one thing in it. */
typedef struct lie {
    int count;
    ddp_safetensor t[ROOM];
    const void *data[ROOM];
    char name[ROOM][64];
    float values[ROOM][512];
} lie;

static lie *truth(const ddp_graph *g)
{
    lie *f = (lie *)calloc(1, sizeof *f);
    ddp_shape s;
    int k, i;

    assert_non_null(f);
    for (i = 0; ddp_weights_describe(g, i, f->name[i], sizeof f->name[i], &s); i++) {
        f->t[i].name = f->name[i];
        f->t[i].dims = s.dims;
        for (k = 0; k < s.dims; k++) f->t[i].dim[k] = s.dim[k];
        f->data[i] = f->values[i];
        f->values[i][0] = (float)i;
        f->count++;
    }
    assert_int_equal(f->count, TENSORS);
    return f;
}

static ddp_safetensor *find(lie *f, const char *name)
{
    int i;

    for (i = 0; i < f->count; i++)
        if (!strcmp(f->t[i].name, name)) return &f->t[i];
    fail_msg("no %s", name);
    return NULL;
}

/* Loads the file. part: text of the expected error. NULL means that loading must succeed. */
static void loads(ddp_graph *g, lie *f, const char *part)
{
    char path[64];
    uint64_t h;
    ddp_error err;

    memset(&err, 0, sizeof err);
    assert_int_equal(ddp_safetensors_write(path_of(path, sizeof path), f->count, f->t, f->data, NULL, &err),
                     DDP_OK);
    scramble(g);
    h = hash_of(g);
    if (part) {
        assert_int_equal(ddp_weights_load(g, path, &err), DDP_FORMAT);
        if (!strstr(err.msg, part)) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
        assert_non_null(strstr(err.msg, path));
        assert_true(hash_of(g) == h); /* no weight changed */
    } else {
        if (ddp_weights_load(g, path, &err)) fail_msg("%s", err.msg);
        assert_true(hash_of(g) != h);
    }
    remove(path);
    free(f);
}

static void invalid_files_do_not_change_the_model(void **unused)
{
    ddp_graph *g = gpt2();
    lie *f = truth(g);
    ddp_safetensor *t;

    (void)unused;
    loads(g, f, NULL);

    f = truth(g);
    find(f, "h.1.mlp.c_fc.bias")->name = "h.1.mlp.c_fc.bais";
    loads(g, f, "tensor \"h.1.mlp.c_fc.bais\" is not one of the 28 of this model");

    f = truth(g);
    t = find(f, "h.0.ln_2.weight");
    *t = f->t[f->count - 1];
    f->data[t - f->t] = f->data[f->count - 1];
    f->count--;
    loads(g, f, "tensor \"h.0.ln_2.weight\" of the model is missing");

    f = truth(g);
    t = find(f, "h.0.attn.c_attn.weight");
    t->dim[0] = 18;
    t->dim[1] = 6; /* the layout of a linear layer */
    loads(g, f, "\"h.0.attn.c_attn.weight\" has shape [18, 6], the model needs [6, 18]");

    f = truth(g);
    find(f, "wpe.weight")->dim[0] = 3;
    loads(g, f, "\"wpe.weight\" has shape [3, 6], the model needs [4, 6]");

    f = truth(g);
    find(f, "ln_f.bias")->type = DDP_ST_I32;
    loads(g, f, "\"ln_f.bias\" has dtype I32");

    f = truth(g);
    f->t[f->count] = *find(f, "wte.weight");
    f->data[f->count] = f->values[f->count];
    f->t[f->count++].name = "transformer.wte.weight";
    loads(g, f, "are the same tensor");

    f = truth(g);
    f->t[f->count] = *find(f, "wte.weight");
    f->data[f->count] = f->data[0];
    f->t[f->count++].name = "lm_head.weight";
    loads(g, f, NULL);

    f = truth(g);
    f->t[f->count] = *find(f, "wte.weight");
    f->data[f->count] = f->values[f->count];
    f->values[f->count][7] = 0.5f;
    f->t[f->count++].name = "lm_head.weight";
    loads(g, f, "\"lm_head.weight\" differs from wte.weight in element 7 (0.5 and 0)");

    f = truth(g);
    f->t[f->count] = *find(f, "wte.weight");
    f->t[f->count].dim[0] = 12;
    f->data[f->count] = f->values[f->count];
    f->t[f->count++].name = "lm_head.weight";
    loads(g, f, "another shape than wte.weight");

    f = truth(g);
    t = &f->t[f->count];
    *t = *find(f, "wte.weight");
    t->name = "lm_head.weight";
    t->dims = 1;
    t->dim[0] = 66; /* same number of elements */
    f->data[f->count] = f->values[f->count];
    f->count++;
    loads(g, f, "another shape than wte.weight");

    f = truth(g);
    f->t[f->count] = *find(f, "wte.weight");
    f->t[f->count].type = DDP_ST_I32;
    f->data[f->count] = f->values[f->count];
    f->t[f->count++].name = "lm_head.weight";
    loads(g, f, "\"lm_head.weight\" has dtype I32; floats are needed");

    f = truth(g);
    t = find(f, "wpe.weight");
    t->dims = 1;
    t->dim[0] = 24;
    loads(g, f, "\"wpe.weight\" has shape [24], the model needs [4, 6]");

    f = truth(g);
    find(f, "wpe.weight")->dims = 0;
    loads(g, f, "\"wpe.weight\" has shape [], the model needs [4, 6]");

    f = truth(g); /* the attention masks that other libraries save */
    for (int i = 0; i < 2; i++) {
        f->t[f->count] = f->t[0];
        f->data[f->count] = f->data[0];
        f->t[f->count++].name = i ? "h.0.attn.masked_bias" : "h.0.attn.bias";
    }
    loads(g, f, NULL);

    f = truth(g);
    f->t[f->count] = f->t[0];
    f->data[f->count] = f->data[0];
    f->t[f->count++].name = "x.0.attn.masked_bias";
    loads(g, f, "tensor \"x.0.attn.masked_bias\" is not one of the 28 of this model");
    ddp_graph_free(g);
}

/* A model has a head but no token table to which the head could be tied. */
static void head_without_a_token_table_fails(void **unused)
{
    const float ones[6] = {1, 1, 1, 1, 1, 1};
    const void *data[3];
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_safetensor t[3];
    char path[64];
    ddp_error err;

    (void)unused;
    ddp_layer_begin(g, "h.0.attn");
    ddp_linear(g, ddp_input(g, "x", DDP_F32, 1, 3), 2);
    ddp_layer_end(g);
    assert_int_equal(ddp_graph_build(g), 0);
    memset(t, 0, sizeof t);
    t[0].name = "h.0.attn.c_attn.weight";
    t[0].dims = 2;
    t[0].dim[0] = 3;
    t[0].dim[1] = 2;
    t[1].name = "h.0.attn.c_attn.bias";
    t[1].dims = 1;
    t[1].dim[0] = 2;
    t[2] = t[0];
    t[2].name = "lm_head.weight";
    for (int i = 0; i < 3; i++) data[i] = ones;
    assert_int_equal(ddp_safetensors_write(path_of(path, sizeof path), 2, t, data, NULL, NULL), DDP_OK);
    assert_int_equal(ddp_weights_load(g, path, &err), DDP_OK);
    assert_int_equal(ddp_safetensors_write(path, 3, t, data, NULL, NULL), DDP_OK);
    assert_int_equal(ddp_weights_load(g, path, &err), DDP_FORMAT);
    assert_non_null(strstr(err.msg, "\"lm_head.weight\" has another shape than wte.weight"));
    ddp_graph_free(g);
    remove(path);
}

static void weights_of_all_float_types_are_loaded(void **unused)
{
    static const uint16_t half[6] = {0x3c00, 0xc000, 0x3800, 0, 0x4200, 0x4400};
    static const uint16_t brain[6] = {0x3f80, 0xc000, 0x3f00, 0, 0x4040, 0x4080};
    static const double wide[6] = {1, -2, 0.5, 0, 3, 4};
    const float want[6] = {1, -2, 0.5f, 0, 3, 4};
    const ddp_safetensors_type type[3] = {DDP_ST_F64, DDP_ST_F16, DDP_ST_BF16};
    const void *const data[3] = {wide, half, brain};
    ddp_graph *g = gpt2();
    ddp__weights all;

    (void)unused;
    assert_int_equal(ddp__weights_list(g, "", &all, NULL), DDP_OK);
    for (int i = 0; i < 3; i++) {
        lie *f = truth(g);
        ddp_safetensor *t = find(f, "ln_f.bias");
        t->type = type[i];
        f->data[t - f->t] = data[i];
        loads(g, f, NULL);
        assert_memory_equal(ddp__weight_named(&all, "ln_f.bias")->data, want, sizeof want);
    }
    ddp__weights_free(&all);
    ddp_graph_free(g);
}

/* In ResNets, PyTorch saves a batch count with the statistics of each batch norm. */
static void batch_counts_are_ignored_next_to_batch_norm_statistics(void **unused)
{
    ddp__weight bn;
    ddp__weights s;
    char name[140];

    (void)unused;
    memset(&bn, 0, sizeof bn);
    memset(&s, 0, sizeof s);
    snprintf(bn.name, sizeof bn.name, "bn1.running_mean");
    s.list = &bn;
    s.count = 1;
    assert_true(ddp__weight_ignored(&s, DDP__WEIGHTS_RESNET, "bn1.num_batches_tracked"));
    assert_false(ddp__weight_ignored(&s, DDP__WEIGHTS_RESNET, "bn2.num_batches_tracked"));
    assert_false(ddp__weight_ignored(&s, DDP__WEIGHTS_RESNET, "bn1.running_mean"));
    assert_false(ddp__weight_ignored(&s, DDP__WEIGHTS_VGG, "bn1.num_batches_tracked"));
    assert_false(ddp__weight_ignored(&s, DDP__WEIGHTS_GPT2, "bn1.num_batches_tracked"));
    for (int longer = 0; longer < 2; longer++) { /* a layer's name has at most 100 bytes */
        snprintf(bn.name, sizeof bn.name, "%0*d.running_mean", 100 + longer, 0);
        snprintf(name, sizeof name, "%0*d.num_batches_tracked", 100 + longer, 0);
        assert_int_equal(ddp__weight_ignored(&s, DDP__WEIGHTS_RESNET, name), !longer);
    }
}

/* The model's arrays must have these names, in any order. Each entry is a name and NxM, its shape. */
static void named(const ddp_graph *g, int count, const char *const *want)
{
    char name[160], all[200];
    ddp_shape s;
    int i, k, found = 0;
    size_t w;

    for (i = 0; ddp_weights_describe(g, i, name, sizeof name, &s); i++) {
        size_t at = (size_t)snprintf(all, sizeof all, "%s ", name);
        for (k = 0; k < s.dims; k++)
            at += (size_t)snprintf(all + at, sizeof all - at, k ? "x%ld" : "%ld", s.dim[k]);
        for (w = 0; want[w]; w++) found += !strcmp(all, want[w]);
    }
    assert_int_equal(i, count);
    for (w = 0; want[w]; w++) {
    }
    assert_int_equal(found, (int)w);
}

static void resnets_are_named_as_in_torchvision(void **unused)
{
    static const char *const r18[] = {"conv1.weight 64x3x7x7",
                                      "bn1.weight 64",
                                      "bn1.bias 64",
                                      "bn1.running_mean 64",
                                      "bn1.running_var 64",
                                      "layer1.0.conv1.weight 64x64x3x3",
                                      "layer1.0.bn1.weight 64",
                                      "layer1.0.bn2.running_var 64",
                                      "layer2.0.downsample.0.weight 128x64x1x1",
                                      "layer2.0.downsample.1.running_mean 128",
                                      "layer4.1.conv2.weight 512x512x3x3",
                                      "layer4.1.bn2.bias 512",
                                      "fc.weight 1000x512",
                                      "fc.bias 1000",
                                      NULL};
    static const char *const r50[] = {"layer1.0.conv3.weight 256x64x1x1",
                                      "layer1.0.bn3.running_var 256",
                                      "layer1.0.downsample.0.weight 256x64x1x1",
                                      "layer3.5.conv2.weight 256x256x3x3",
                                      "fc.weight 1000x2048",
                                      NULL};
    ddp_resnet_config c;
    ddp_graph *g = ddp_graph_new(NULL);

    (void)unused;
    memset(&c, 0, sizeof c);
    c.depth = 18;
    c.classes = 1000;
    c.size = 224;
    c.batch = 1;
    ddp_resnet(g, &c, NULL);
    named(g, 122 - 20, r18); /* torchvision's 122 without num_batches_tracked */
    ddp_graph_free(g);
    g = ddp_graph_new(NULL);
    c.depth = 50;
    ddp_resnet(g, &c, NULL);
    named(g, 320 - 53, r50);
    ddp_graph_free(g);
}

static void vggs_are_named_as_in_torchvision(void **unused)
{
    static const char *const v16[] = {"features.0.weight 64x3x3x3",
                                      "features.0.bias 64",
                                      "features.2.weight 64x64x3x3",
                                      "features.5.weight 128x64x3x3",
                                      "features.7.bias 128",
                                      "features.10.weight 256x128x3x3",
                                      "features.12.weight 256x256x3x3",
                                      "features.14.weight 256x256x3x3",
                                      "features.17.weight 512x256x3x3",
                                      "features.28.weight 512x512x3x3",
                                      "classifier.0.weight 4096x25088",
                                      "classifier.3.weight 4096x4096",
                                      "classifier.6.weight 1000x4096",
                                      "classifier.6.bias 1000",
                                      NULL};
    static const char *const v19[] = {"features.34.weight 512x512x3x3", "features.19.bias 512", NULL};
    ddp_vgg_config c;
    ddp_graph *g = ddp_graph_new(NULL);

    (void)unused;
    memset(&c, 0, sizeof c);
    c.depth = 16;
    c.classes = 1000;
    c.size = 224;
    c.batch = 1;
    c.dropout = 0.5f;
    ddp_vgg(g, &c, NULL);
    named(g, 32, v16);
    ddp_graph_free(g);
    g = ddp_graph_new(NULL);
    c.depth = 19;
    ddp_vgg(g, &c, NULL);
    named(g, 38, v19);
    ddp_graph_free(g);
}

static void other_models_are_named_by_their_layers(void **unused)
{
    static const char *const want[] = {"hidden.weight 5x3", "hidden.1.bias 4", "head.bias 2", NULL};
    static const char *const llama[] = {"embed.weight 11x8", "layers.0.attn.rms_norm.weight 8",
                                        "layers.0.attn.linear_no_bias.weight 24x8",
                                        "layers.0.attn.linear_no_bias.1.weight 8x8", NULL};
    static const char *const head[] = {"head.rms_norm.weight 8", "head.linear_no_bias.weight 11x8", NULL};
    ddp_graph *g = mlp();
    ddp_llama2_config l;
    char name[160];
    ddp_shape s;

    (void)unused;
    named(g, 6, want);
    ddp_graph_free(g);
    g = ddp_graph_new(NULL);
    memset(&l, 0, sizeof l);
    l.vocabulary = 11;
    l.context = 4;
    l.layers = 1;
    l.heads = 2;
    l.dim = 8;
    l.batch = 1;
    ddp_llama2(g, &l, NULL);
    named(g, 9, llama);
    named(g, 9, head);
    assert_int_equal(ddp_weights_describe(g, -1, name, sizeof name, &s), 0);
    assert_int_equal(ddp_weights_describe(NULL, 0, name, sizeof name, &s), 0);
    ddp_graph_free(g);
    g = ddp_graph_new(NULL);
    l.context = 600;
    l.recompute = 1; /* logits are computed in chunks */
    ddp_llama2(g, &l, NULL);
    named(g, 9, head);
    ddp_graph_free(g);
}

static ddp_status three_shape(ddp_op_spec *s, ddp_error *err)
{
    static const char *const name[3] = {"gamma", "beta", "phase"};

    (void)err;
    s->out = s->in[0];
    s->params = 3;
    for (int i = 0; i < 3; i++) {
        s->param[i].name = name[i];
        s->param[i].shape.dims = 1;
        s->param[i].shape.dim[0] = i + 1;
    }
    return DDP_OK;
}

static void three_forward(const ddp_op_call *c) { (void)c; }

/* Arrays after the bias have their own names, operators between a VGG's convolutions have the name of
 * their layer, and arrays outside a layer are described too. */
static void arrays_of_user_operators_are_named(void **unused)
{
    static const ddp_op three = {"three", three_shape, three_forward, NULL};
    static const char *const own[] = {"mine.weight 1", "mine.bias 2", "mine.phase 3", NULL};
    static const char *const vgg[] = {"features.0.weight 4x2x3x3", "features.0.bias 4",
                                      "conv1_1.batch_norm2d.weight 4", "conv1_1.batch_norm2d.bias 4", NULL};
    static const char *const none[] = {".weight 2x3", ".bias 2", NULL};
    const ddp_shape image = {4, {1, 2, 5, 5}};
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_node *x = ddp_input(g, "x", DDP_F32, 1, 3);

    (void)unused;
    assert_int_equal(ddp_register_op(g, &three), 0);
    ddp_layer_begin(g, "mine");
    assert_non_null(ddp_apply(g, "three", 1, &x, 0, NULL, NULL));
    ddp_layer_end(g);
    named(g, 3, own);
    ddp_graph_free(g);
    g = ddp_graph_new(NULL);
    ddp_layer_begin(g, "conv1_1");
    assert_non_null(
        ddp_batch_norm2d(g, ddp_conv2d(g, ddp_input_shape(g, "x", DDP_F32, &image), 4, 3, 1, 1, 1, 1)));
    ddp_layer_end(g);
    named(g, 6, vgg);
    ddp_graph_free(g);
    g = ddp_graph_new(NULL);
    ddp_linear(g, ddp_input(g, "x", DDP_F32, 1, 3), 2);
    named(g, 2, none);
    ddp_graph_free(g);
}

/* ---- on a device, which stores the negative of each value ---- */

typedef struct far_away {
    long sent, fetched, bad;
} far_away; /* bad: number of the fetch that fails, or 0 for none */

static void far_upload(void *self, void *to, const void *from, size_t bytes)
{
    ((far_away *)self)->sent++;
    for (size_t i = 0; i < bytes / sizeof(float); i++) ((float *)to)[i] = -((const float *)from)[i];
}

static ddp_status far_download(void *self, void *to, const void *from, size_t bytes, ddp_error *err)
{
    far_away *f = (far_away *)self;

    if (++f->fetched == f->bad) return ddp__fail(err, DDP_FAILED, "fetch %ld failed", f->bad);
    for (size_t i = 0; i < bytes / sizeof(float); i++) ((float *)to)[i] = -((const float *)from)[i];
    return DDP_OK;
}

static void far_host(ddp_backend *b, ddp__host *h, far_away *f)
{
    memset(b, 0, sizeof *b);
    memset(h, 0, sizeof *h);
    memset(f, 0, sizeof *f);
    b->upload = far_upload;
    b->download = far_download;
    h->backend = b;
    h->device = f;
}

static void arrays_are_copied_from_and_to_a_device(void **unused)
{
    ddp_graph *g = gpt2();
    const uint64_t h = hash_of(g);
    ddp_backend b;
    ddp__host host;
    far_away device;
    char path[64];
    ddp_error err;

    (void)unused;
    far_host(&b, &host, &device);
    g->host = &host;
    assert_int_equal(ddp_weights_save(g, path_of(path, sizeof path), &err), DDP_OK);
    assert_int_equal(device.fetched, TENSORS);
    scramble(g);
    assert_int_equal(ddp_weights_load(g, path, &err), DDP_OK);
    assert_int_equal(device.sent, TENSORS);
    assert_true(hash_of(g) == h);
    g->host = NULL; /* the file contains the negatives */
    assert_int_equal(ddp_weights_load(g, path, &err), DDP_OK);
    assert_true(hash_of(g) != h);
    g->host = &host;
    for (device.bad = 1; device.bad <= TENSORS; device.bad++) {
        device.fetched = 0;
        assert_int_equal(ddp_weights_save(g, path, &err), DDP_FAILED);
        assert_non_null(strstr(err.msg, "fetch"));
        assert_int_equal(device.fetched, device.bad);
    }
    scramble(g);
    assert_int_equal(ddp_weights_load(g, path, &err), DDP_OK); /* a failed save leaves the old file */
    assert_true(hash_of(g) == h);
    g->host = NULL;
    ddp_graph_free(g);
    remove(path);
}

/* ---- without memory ---- */

static void every_failed_allocation_is_reported(void **unused)
{
    ddp_graph *g = gpt2();
    const uint64_t h = hash_of(g);
    ddp_backend b;
    ddp__host host;
    far_away device;
    char path[64];
    ddp_error err;

    (void)unused;
    far_host(&b, &host, &device);
    remove(path_of(path, sizeof path));
    for (int way = 0; way < 4; way++) {
        const long had = live;
        ddp_status s = DDP_MEMORY;
        long k;
        /* the loading variants need a file */
        if (way == 2) assert_int_equal(ddp_weights_save(g, path, &err), DDP_OK);
        g->host = way % 2 ? &host : NULL;
        for (k = 0; s == DDP_MEMORY; k++) {
            memset(&err, 0, sizeof err);
            left = k;
            s = way < 2 ? ddp_weights_save(g, path, &err) : ddp_weights_load(g, path, &err);
            left = -1;
            assert_int_equal(live, had);
            if (s == DDP_OK) break;
            assert_int_equal(s, DDP_MEMORY);
            assert_non_null(strstr(err.msg, "out of memory"));
            assert_true(hash_of(g) == h);
            if (way > 1 || access(path, F_OK)) continue;
            assert_int_equal(ddp_weights_load(g, path, &err), DDP_OK); /* the file is complete: flushing
                                                                        * the folder ran out of memory */
            assert_true(hash_of(g) == h);
            remove(path);
        }
        assert_true(k > 3);
        g->host = NULL;
        if (way < 2) remove(path);
    }
    remove(path);
    ddp_graph_free(g);
}

/* ---- in stages ---- */

/* own 0: all layers of a built graph except the last; 1: the last layer only. */
static ddp_graph *stage(int own)
{
    ddp_graph *g = mlp();
    int stage_of[20];

    assert_true(ddp__count(g->node) <= 20);
    for (int i = 0; i < ddp__count(g->node); i++) stage_of[i] = g->node[i]->layer == 2;
    assert_int_equal(ddp_graph_cut(g, stage_of, 2, own), 0);
    assert_int_equal(ddp_graph_build(g), 0);
    return g;
}

typedef struct handed {
    float value[100];
    size_t n, read;
    int refuses;
} handed;

/* Passes the values of stage 1 on: from memory, or to the file that stage 0 writes. */
static ddp_status hand(void *user, int of, const float *data, size_t n, ddp__file *f, ddp_error *err)
{
    handed *h = (handed *)user;

    assert_int_equal(of, 1);
    assert_true(!data == !!f);
    if (h->refuses) return ddp__fail(err, DDP_NET, "stage %d does not answer", of);
    if (f)
        ddp__file_put(f, h->value + h->read, n * sizeof *h->value);
    else
        memcpy(h->value + h->n, data, n * sizeof *data);
    *(f ? &h->read : &h->n) += n;
    return DDP_OK;
}

static void stages_write_one_file_and_load_their_layers_from_it(void **unused)
{
    ddp_graph *all = mlp(), *first = stage(0), *last = stage(1);
    const uint64_t of_first = hash_of(first), of_last = hash_of(last);
    ddp__text whole, made;
    ddp_backend b;
    ddp__host host;
    far_away device;
    char path[64];
    ddp_error err;
    handed h;

    (void)unused;
    memset(&whole, 0, sizeof whole);
    memset(&made, 0, sizeof made);
    memset(&h, 0, sizeof h);
    assert_int_equal(ddp_graph_build(all), 0);
    assert_int_equal(ddp_weights_save(all, path_of(path, sizeof path), &err), DDP_OK);
    assert_int_equal(ddp__file_read(path, &whole, &err), DDP_OK);
    remove(path);

    /* a stage alone cannot save, and does not fetch arrays of other stages from the device */
    far_host(&b, &host, &device);
    for (int i = 0; i < 4; i++) {
        ddp_graph *g = i % 2 ? last : first;
        memset(&err, 0, sizeof err);
        g->host = i < 2 ? NULL : &host;
        assert_int_equal(ddp_weights_save(g, path, &err), DDP_USAGE);
        g->host = NULL;
        assert_non_null(
            strstr(err.msg, i % 2 ? "parameters are on stage 0 of a pipeline: use ddp_pipe_export"
                                  : "parameters are on stage 1 of a pipeline: use ddp_pipe_export"));
        assert_int_equal(access(path, F_OK), -1);
    }
    assert_int_equal(device.fetched, 4); /* the arrays of the first stage, fetched before the error */

    assert_int_equal(ddp__weights_save(last, path, hand, &h, 0, &err), DDP_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(h.n, 2 * 4 + 2);
    h.refuses = 1;
    assert_int_equal(ddp__weights_save(last, path, hand, &h, 0, &err), DDP_NET);
    assert_int_equal(ddp__weights_save(first, path, hand, &h, 1, &err), DDP_NET);
    assert_string_equal(err.msg, "stage 1 does not answer");
    assert_int_equal(access(path, F_OK), -1);
    h.refuses = 0;
    assert_int_equal(ddp__weights_save(first, path, hand, &h, 1, &err), DDP_OK);
    assert_int_equal(h.read, h.n);
    assert_int_equal(ddp__file_read(path, &made, &err), DDP_OK);
    assert_int_equal(made.size, whole.size);
    assert_memory_equal(made.data, whole.data, whole.size);

    scramble(first);
    scramble(last);
    assert_int_equal(ddp_weights_load(first, path, &err), DDP_OK);
    assert_int_equal(ddp_weights_load(last, path, &err), DDP_OK);
    assert_true(hash_of(first) == of_first && hash_of(last) == of_last);
    ddp__text_free(&whole);
    ddp__text_free(&made);
    ddp_graph_free(all);
    ddp_graph_free(first);
    ddp_graph_free(last);
    remove(path);
}

/* Must be the last test. */
static void all_memory_is_freed(void **unused)
{
    (void)unused;
    assert_int_equal(live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_weights_are_loaded),
        cmocka_unit_test(matrices_of_linear_layers_are_stored_transposed),
        cmocka_unit_test(invalid_files_do_not_change_the_model),
        cmocka_unit_test(head_without_a_token_table_fails),
        cmocka_unit_test(weights_of_all_float_types_are_loaded),
        cmocka_unit_test(batch_counts_are_ignored_next_to_batch_norm_statistics),
        cmocka_unit_test(resnets_are_named_as_in_torchvision),
        cmocka_unit_test(vggs_are_named_as_in_torchvision),
        cmocka_unit_test(other_models_are_named_by_their_layers),
        cmocka_unit_test(arrays_of_user_operators_are_named),
        cmocka_unit_test(arrays_are_copied_from_and_to_a_device),
        cmocka_unit_test(every_failed_allocation_is_reported),
        cmocka_unit_test(stages_write_one_file_and_load_their_layers_from_it),
        cmocka_unit_test(all_memory_is_freed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
