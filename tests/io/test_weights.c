/* [pure] Weights of models in files: names, and what is refused before anything changes. */
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

static long live; /* allocations that have not come back */

void *heap_realloc(void *p, size_t bytes)
{
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

static ddp_graph *gpt2(void)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_gpt2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = 11, c.context = 4, c.layers = 2, c.heads = 2, c.dim = 6, c.batch = 1;
    ddp_gpt2(g, &c, NULL);
    assert_int_equal(ddp_graph_build(g), 0);
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
        memset(p, 0x3f, n * sizeof *p);
    }
}

static void what_is_saved_is_loaded(void **unused)
{
    ddp_graph *g = gpt2(), *mlp = ddp_graph_new(NULL);
    uint64_t h = hash_of(g);
    ddp_mlp_config c;
    char path[64];
    ddp_error err;

    (void)unused;
    assert_int_equal(ddp_weights_save(g, path_of(path, sizeof path), NULL), DDP_OK);
    scramble(g);
    assert_true(hash_of(g) != h);
    assert_int_equal(ddp_weights_load(g, path, NULL), DDP_OK);
    assert_true(hash_of(g) == h);

    memset(&c, 0, sizeof c);
    c.batch = 1, c.inputs = 3, c.hidden[0] = 5, c.hidden[1] = 4, c.classes = 2;
    ddp_mlp(mlp, &c, NULL);
    assert_int_equal(ddp_weights_load(mlp, path, &err), DDP_USAGE); /* not built yet */
    assert_int_equal(ddp_graph_build(mlp), 0);
    h = hash_of(mlp);
    assert_int_equal(ddp_weights_load(mlp, path, &err), DDP_FORMAT);
    assert_true(hash_of(mlp) == h);
    assert_int_equal(ddp_weights_save(mlp, path, NULL), DDP_OK);
    scramble(mlp);
    assert_int_equal(ddp_weights_load(mlp, path, NULL), DDP_OK);
    assert_true(hash_of(mlp) == h);
    remove(path);
    assert_int_equal(ddp_weights_load(mlp, path, &err), DDP_IO);
    ddp_graph_free(g);
    ddp_graph_free(mlp);
}

enum { TENSORS = 2 + 2 * 12 + 2, ROOM = TENSORS + 4 };

/* The file of a GPT-2 with one thing changed. */
typedef struct lie {
    int            count;
    ddp_safetensor t[ROOM];
    const void    *data[ROOM];
    char           name[ROOM][64];
    float          values[ROOM][512];
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

/* part NULL: the file is fine. */
static void loads(ddp_graph *g, lie *f, const char *part)
{
    char path[64];
    uint64_t h;
    ddp_error err;

    memset(&err, 0, sizeof err);
    assert_int_equal(ddp_safetensors_write(path_of(path, sizeof path), f->count, f->t, f->data,
                                           NULL, &err), DDP_OK);
    scramble(g);
    h = hash_of(g);
    if (part) {
        assert_int_equal(ddp_weights_load(g, path, &err), DDP_FORMAT);
        if (!strstr(err.msg, part)) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
        assert_non_null(strstr(err.msg, path));
        assert_true(hash_of(g) == h); /* nothing was written over */
    } else {
        if (ddp_weights_load(g, path, &err)) fail_msg("%s", err.msg);
        assert_true(hash_of(g) != h);
    }
    remove(path);
    free(f);
}

static void lies_change_nothing(void **unused)
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
    t->dim[0] = 18, t->dim[1] = 6; /* as a linear layer keeps it */
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

    f = truth(g); /* the masks that other libraries save */
    f->t[f->count] = f->t[0];
    f->data[f->count] = f->data[0];
    f->t[f->count++].name = "h.0.attn.bias";
    loads(g, f, NULL);

    f = truth(g);
    f->t[f->count] = f->t[0];
    f->data[f->count] = f->data[0];
    f->t[f->count++].name = "x.0.attn.masked_bias";
    loads(g, f, "tensor \"x.0.attn.masked_bias\" is not one of the 28 of this model");
    ddp_graph_free(g);
}

/* PyTorch counts batches beside the statistics of each batch norm, in ResNets. */
static void counts_of_batches_are_ignored_where_there_are_statistics(void **unused)
{
    ddp__weight bn;
    ddp__weights s;

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
}

/* The arrays of a model are named so, in any order: words of names, with NxM for the shape. */
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
    for (w = 0; want[w]; w++) {}
    assert_int_equal(found, (int)w);
}

static void resnets_are_named_as_in_torchvision(void **unused)
{
    static const char *const r18[] = {
        "conv1.weight 64x3x7x7", "bn1.weight 64", "bn1.bias 64", "bn1.running_mean 64",
        "bn1.running_var 64", "layer1.0.conv1.weight 64x64x3x3", "layer1.0.bn1.weight 64",
        "layer1.0.bn2.running_var 64", "layer2.0.downsample.0.weight 128x64x1x1",
        "layer2.0.downsample.1.running_mean 128", "layer4.1.conv2.weight 512x512x3x3",
        "layer4.1.bn2.bias 512", "fc.weight 1000x512", "fc.bias 1000", NULL};
    static const char *const r50[] = {
        "layer1.0.conv3.weight 256x64x1x1", "layer1.0.bn3.running_var 256",
        "layer1.0.downsample.0.weight 256x64x1x1", "layer3.5.conv2.weight 256x256x3x3",
        "fc.weight 1000x2048", NULL};
    ddp_resnet_config c;
    ddp_graph *g = ddp_graph_new(NULL);

    (void)unused;
    memset(&c, 0, sizeof c);
    c.depth = 18, c.classes = 1000, c.size = 224, c.batch = 1;
    ddp_resnet(g, &c, NULL);
    named(g, 122 - 20, r18); /* torchvision's 122 less num_batches_tracked */
    ddp_graph_free(g);
    g = ddp_graph_new(NULL);
    c.depth = 50;
    ddp_resnet(g, &c, NULL);
    named(g, 320 - 53, r50);
    ddp_graph_free(g);
}

static void vggs_are_named_as_in_torchvision(void **unused)
{
    static const char *const v16[] = {
        "features.0.weight 64x3x3x3", "features.0.bias 64", "features.2.weight 64x64x3x3",
        "features.5.weight 128x64x3x3", "features.7.bias 128", "features.10.weight 256x128x3x3",
        "features.12.weight 256x256x3x3", "features.14.weight 256x256x3x3",
        "features.17.weight 512x256x3x3", "features.28.weight 512x512x3x3",
        "classifier.0.weight 4096x25088", "classifier.3.weight 4096x4096",
        "classifier.6.weight 1000x4096", "classifier.6.bias 1000", NULL};
    static const char *const v19[] = {"features.34.weight 512x512x3x3", "features.19.bias 512",
                                      NULL};
    ddp_vgg_config c;
    ddp_graph *g = ddp_graph_new(NULL);

    (void)unused;
    memset(&c, 0, sizeof c);
    c.depth = 16, c.classes = 1000, c.size = 224, c.batch = 1, c.dropout = 0.5f;
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
    static const char *const mlp[] = {"hidden.weight 5x3", "hidden.1.bias 4", "head.bias 2", NULL};
    static const char *const llama[] = {
        "embed.weight 11x8", "layers.0.attn.rms_norm.weight 8",
        "layers.0.attn.linear_no_bias.weight 24x8", "layers.0.attn.linear_no_bias.1.weight 8x8",
        NULL};
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_llama2_config l;
    ddp_mlp_config c;
    char name[160];
    ddp_shape s;

    (void)unused;
    memset(&c, 0, sizeof c);
    c.batch = 1, c.inputs = 3, c.hidden[0] = 5, c.hidden[1] = 4, c.classes = 2;
    ddp_mlp(g, &c, NULL);
    named(g, 6, mlp);
    ddp_graph_free(g);
    g = ddp_graph_new(NULL);
    memset(&l, 0, sizeof l);
    l.vocabulary = 11, l.context = 4, l.layers = 1, l.heads = 2, l.dim = 8, l.batch = 1;
    ddp_llama2(g, &l, NULL);
    named(g, 9, llama);
    assert_int_equal(ddp_weights_describe(g, -1, name, sizeof name, &s), 0);
    assert_int_equal(ddp_weights_describe(NULL, 0, name, sizeof name, &s), 0);
    ddp_graph_free(g);
}

/* The last test. */
static void all_memory_has_come_back(void **unused)
{
    (void)unused;
    assert_int_equal(live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_is_loaded),
        cmocka_unit_test(lies_change_nothing),
        cmocka_unit_test(counts_of_batches_are_ignored_where_there_are_statistics),
        cmocka_unit_test(resnets_are_named_as_in_torchvision),
        cmocka_unit_test(vggs_are_named_as_in_torchvision),
        cmocka_unit_test(other_models_are_named_by_their_layers),
        cmocka_unit_test(all_memory_has_come_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
