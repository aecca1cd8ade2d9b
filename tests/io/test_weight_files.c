/* [pure] Weight files of other programs: Llama of the transformers library, prefixes, shards and their
 * errors. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "base/core.h"

#include <math.h>
#include <sys/stat.h>
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

enum {
    VOCABULARY = 11,
    TIME = 5,
    LAYERS = 2,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD = 4,
    DIM = HEADS * HEAD,
    HIDDEN = 12
};
enum { MOST = 64, VALUES = 8192, NAME = 96 };

/* Tensors with their names in the transformers library. */
typedef struct store {
    int count;
    size_t used;
    ddp_safetensor t[MOST];
    char name[MOST][NAME];
    float values[VALUES];
    const void *data[MOST];
} store;

/* rows 0: a vector of values near 1, as the scales of norms; else a matrix of small values. */
static void put(store *s, long rows, long columns, const char *name)
{
    ddp_safetensor *t = &s->t[s->count];
    const size_t n = (size_t)((rows ? rows : 1) * columns);

    assert_true(s->count < MOST && s->used + n <= VALUES);
    memset(t, 0, sizeof *t);
    snprintf(s->name[s->count], NAME, "%s", name);
    t->name = s->name[s->count];
    t->dims = rows ? 2 : 1;
    t->dim[0] = rows ? rows : columns;
    t->dim[1] = rows ? columns : 0;
    s->data[s->count++] = s->values + s->used;
    for (size_t i = 0; i < n; i++, s->used++)
        s->values[s->used] =
            (float)((s->used * 2654435761u + 12345u) >> 7 & 1023u) / 2048.0f - 0.25f + (rows ? 0 : 1);
}

static store *llama(int tied)
{
    static const struct {
        const char *name;
        long rows, columns;
    } of[] = {{"input_layernorm", 0, DIM},
              {"self_attn.q_proj", DIM, DIM},
              {"self_attn.k_proj", KV_HEADS * HEAD, DIM},
              {"self_attn.v_proj", KV_HEADS * HEAD, DIM},
              {"self_attn.o_proj", DIM, DIM},
              {"post_attention_layernorm", 0, DIM},
              {"mlp.gate_proj", HIDDEN, DIM},
              {"mlp.up_proj", HIDDEN, DIM},
              {"mlp.down_proj", DIM, HIDDEN}};
    store *s = (store *)calloc(1, sizeof *s);
    char name[NAME];

    assert_non_null(s);
    put(s, VOCABULARY, DIM, "model.embed_tokens.weight");
    for (int l = 0; l < LAYERS; l++)
        for (size_t k = 0; k < sizeof of / sizeof of[0]; k++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, of[k].name);
            put(s, of[k].rows, of[k].columns, name);
        }
    put(s, 0, DIM, "model.norm.weight");
    if (!tied) put(s, VOCABULARY, DIM, "lm_head.weight");
    return s;
}

static int at(const store *s, const char *name)
{
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->name[i], name)) return i;
    fail_msg("no %s", name);
    return -1;
}

static void drop(store *s, const char *name)
{
    const int i = at(s, name), last = --s->count;

    s->t[i] = s->t[last];
    memcpy(s->name[i], s->name[last], NAME);
    s->t[i].name = s->name[i];
    s->data[i] = s->data[last];
}

/* y (rows) = W x; W has shape (rows, columns), as in the file. */
static void product(const store *s, const char *layer, const char *name, const double *x, double *y)
{
    char full[NAME];
    const ddp_safetensor *t;
    const float *w;
    int i;

    snprintf(full, sizeof full, "%s%s.weight", layer, name);
    i = at(s, full);
    t = &s->t[i];
    w = (const float *)s->data[i];
    for (long r = 0; r < t->dim[0]; r++) {
        y[r] = 0;
        for (long c = 0; c < t->dim[1]; c++) y[r] += (double)w[r * t->dim[1] + c] * x[c];
    }
}

static void normed(const store *s, const char *layer, const char *name, const double *x, double *y)
{
    char full[NAME];
    const float *w;
    double squares = 0;

    snprintf(full, sizeof full, "%s%s.weight", layer, name);
    w = (const float *)s->data[at(s, full)];
    for (int c = 0; c < DIM; c++) squares += x[c] * x[c];
    for (int c = 0; c < DIM; c++) y[c] = x[c] / sqrt(squares / (double)DIM + 1e-5) * (double)w[c];
}

/* The transformers library's rotate_half: x cos + (-second half, first half) sin, with the same angles for
 * both halves. */
static void rotated(double *x, int t)
{
    double half[HEAD], angle;

    for (int i = 0; i < HEAD / 2; i++) {
        half[i] = -x[HEAD / 2 + i];
        half[HEAD / 2 + i] = x[i];
    }
    for (int i = 0; i < HEAD; i++) {
        angle = t / pow(10000, 2.0 * (i % (HEAD / 2)) / (double)HEAD);
        x[i] = x[i] * cos(angle) + half[i] * sin(angle);
    }
}

static void attended(double q[TIME][DIM], double k[TIME][DIM], double v[TIME][DIM], int t, double *out)
{
    for (int h = 0; h < HEADS; h++) {
        const int kv = h / (HEADS / KV_HEADS) * HEAD;
        double p[TIME], sum = 0;
        for (int s = 0; s <= t; s++) {
            p[s] = 0;
            for (int i = 0; i < HEAD; i++) p[s] += q[t][h * HEAD + i] * k[s][kv + i];
            sum += p[s] = exp(p[s] / sqrt((double)HEAD));
        }
        for (int i = 0; i < HEAD; i++) {
            out[h * HEAD + i] = 0;
            for (int s = 0; s <= t; s++) out[h * HEAD + i] += p[s] / sum * v[s][kv + i];
        }
    }
}

/* Llama computed from the tensors of the file in double precision, position by position. */
static void reference(const store *s, const int32_t *tokens, double logits[TIME][VOCABULARY])
{
    double x[TIME][DIM], q[TIME][DIM], k[TIME][DIM], v[TIME][DIM], y[DIM], z[DIM], gate[HIDDEN], up[HIDDEN];
    char layer[NAME];

    for (int t = 0; t < TIME; t++)
        for (int c = 0; c < DIM; c++)
            x[t][c] =
                (double)((const float *)s->data[at(s, "model.embed_tokens.weight")])[tokens[t] * DIM + c];
    for (int l = 0; l < LAYERS; l++) {
        snprintf(layer, sizeof layer, "model.layers.%d.", l);
        for (int t = 0; t < TIME; t++) {
            normed(s, layer, "input_layernorm", x[t], y);
            product(s, layer, "self_attn.q_proj", y, q[t]);
            product(s, layer, "self_attn.k_proj", y, k[t]);
            product(s, layer, "self_attn.v_proj", y, v[t]);
            for (int h = 0; h < HEADS; h++) rotated(q[t] + h * HEAD, t);
            for (int h = 0; h < KV_HEADS; h++) rotated(k[t] + h * HEAD, t);
        }
        for (int t = 0; t < TIME; t++) {
            attended(q, k, v, t, y);
            product(s, layer, "self_attn.o_proj", y, z);
            for (int c = 0; c < DIM; c++) x[t][c] += z[c];
            normed(s, layer, "post_attention_layernorm", x[t], y);
            product(s, layer, "mlp.gate_proj", y, gate);
            product(s, layer, "mlp.up_proj", y, up);
            for (int c = 0; c < HIDDEN; c++) gate[c] *= up[c] / (1 + exp(-gate[c]));
            product(s, layer, "mlp.down_proj", gate, z);
            for (int c = 0; c < DIM; c++) x[t][c] += z[c];
        }
    }
    for (int t = 0; t < TIME; t++) {
        normed(s, "model.", "norm", x[t], y);
        product(s, "", "lm_head", y, logits[t]);
    }
}

static ddp_graph *model(int tied, ddp_node **logits)
{
    ddp_graph *g = ddp_graph_new(NULL);
    ddp_llama2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = VOCABULARY;
    c.context = TIME;
    c.batch = 1;
    c.layers = LAYERS;
    c.heads = HEADS;
    c.kv_heads = KV_HEADS;
    c.dim = DIM;
    c.hidden = HIDDEN;
    c.tied = tied;
    ddp_llama2(g, &c, logits);
    assert_int_equal(ddp_graph_build(g), 0);
    return g;
}

static uint64_t hash_of(ddp_graph *g)
{
    uint64_t h = 0;

    for (int l = 0; l < ddp_layer_count(g); l++) {
        size_t n;
        const float *p = ddp_layer_params(g, l, &n);
        h = ddp_hash_floats(h, p, n);
    }
    return h;
}

static void save(const char *path, const store *s, int first, int last)
{
    ddp_error err;

    if (ddp_safetensors_write(path, last - first, s->t + first, s->data + first, NULL, &err))
        fail_msg("%s", err.msg);
}

static void load(ddp_graph *g, const char *path)
{
    ddp_error err;

    if (ddp_weights_load(g, path, &err)) fail_msg("%s", err.msg);
}

static void refused(ddp_graph *g, const char *path, ddp_status code, const char *part)
{
    const uint64_t h = hash_of(g);
    ddp_error err;

    memset(&err, 0, sizeof err);
    if (ddp_weights_load(g, path, &err) != code) fail_msg("status %d: %s", (int)err.code, err.msg);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
    assert_true(hash_of(g) == h);
}

/* Returns FOLDER/NAME in one of four static buffers. */
static const char *in(const char *folder, const char *name)
{
    static char text[4][200];
    static int next;
    char *out = text[next++ % 4];

    snprintf(out, sizeof text[0], "%s/%s", folder, name);
    return out;
}

static void write_index(const char *folder, const store *s, int cut)
{
    ddp__text text = DDP__ZEROS;

    ddp__text_addf(&text, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int i = 0; i < s->count; i++)
        ddp__text_addf(&text, "%s\"%s\": \"model-0000%d-of-00002.safetensors\"", i ? ", " : "", s->name[i],
                       i < cut ? 1 : 2);
    ddp__text_addf(&text, "}}");
    assert_int_equal(ddp__text_write(&text, in(folder, "model.safetensors.index.json"), NULL), DDP_OK);
}

static void llama_weights_give_the_reference_logits(void **unused)
{
    char folder[] = "/tmp/ddp_weight_files_XXXXXX";
    static const int32_t tokens[TIME] = {3, 9, 0, 7, 3};
    double want[TIME][VOCABULARY], most = 0;
    ddp_node *logits;
    ddp_graph *g = model(0, &logits);
    store *s = llama(0);
    const float *got;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    put(s, 0, HEAD / 2, "model.layers.0.self_attn.rotary_emb.inv_freq"); /* older files contain it. The loader
                                                                          * skips it. */
    save(in(folder, "w"), s, 0, s->count);
    load(g, in(folder, "w"));
    memcpy(ddp_data(g, "tokens"), tokens, sizeof tokens);
    memcpy(ddp_data(g, "labels"), tokens, sizeof tokens);
    assert_int_equal(ddp_forward(g), DDP_OK);
    got = ddp_output(g, logits);
    reference(s, tokens, want);
    for (int t = 0; t < TIME; t++)
        for (int c = 0; c < VOCABULARY; c++) {
            const double off = fabs((double)got[t * VOCABULARY + c] - want[t][c]);
            if (off > 1e-5)
                fail_msg("position %d, token %d: %g, not %g", t, c, (double)got[t * VOCABULARY + c],
                         want[t][c]);
            if (fabs(want[t][c]) > most) most = fabs(want[t][c]);
        }
    assert_true(most > 0.1); /* the logits are large enough to compare */
    remove(in(folder, "w"));
    rmdir(folder);
    ddp_graph_free(g);
    free(s);
}

static void tied_llama_needs_no_head(void **unused)
{
    char folder[] = "/tmp/ddp_weight_files_XXXXXX";
    ddp_graph *g = model(1, NULL), *untied = model(0, NULL);
    store *s = llama(1), *twice = llama(0);
    uint64_t h;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    save(in(folder, "w"), s, 0, s->count);
    load(g, in(folder, "w"));
    h = hash_of(g);
    refused(untied, in(folder, "w"), DDP_FORMAT,
            "\"lm_head.weight\" of the model is missing: if the weights of the file are "
            "tied, build the model tied, too");
    twice->data[at(twice, "lm_head.weight")] = twice->data[0];
    save(in(folder, "w"), twice, 0, twice->count);
    load(g, in(folder, "w"));
    assert_true(hash_of(g) == h);
    twice->data[at(twice, "lm_head.weight")] = twice->data[1];
    save(in(folder, "w"), twice, 0, twice->count);
    refused(g, in(folder, "w"), DDP_FORMAT, "\"lm_head.weight\" differs from embed_tokens.weight");
    remove(in(folder, "w"));
    rmdir(folder);
    ddp_graph_free(g);
    ddp_graph_free(untied);
    free(s);
    free(twice);
}

static void prefixes_of_wrappers_are_skipped(void **unused)
{
    static const char *const prefix[] = {"module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.",
                                         "model.module."};
    char folder[] = "/tmp/ddp_weight_files_XXXXXX";
    ddp_graph *g = model(0, NULL);
    store *s = llama(0);
    uint64_t h;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    save(in(folder, "w"), s, 0, s->count);
    load(g, in(folder, "w"));
    h = hash_of(g);
    for (size_t k = 0; k < sizeof prefix / sizeof prefix[0]; k++) {
        store *other = llama(0);
        for (int i = 0; i < s->count; i++) snprintf(other->name[i], NAME, "%s%s", prefix[k], s->name[i]);
        memset(ddp_layer_params(g, 0, NULL), 0, sizeof(float));
        save(in(folder, "w"), other, 0, other->count);
        load(g, in(folder, "w"));
        assert_true(hash_of(g) == h);
        free(other);
    }
    assert_int_equal(ddp_weights_save(g, in(folder, "w"), NULL), DDP_OK); /* with the names of its layers */
    memset(ddp_layer_params(g, 0, NULL), 0, sizeof(float));
    load(g, in(folder, "w"));
    assert_true(hash_of(g) == h);
    remove(in(folder, "w"));
    rmdir(folder);
    ddp_graph_free(g);
    free(s);
}

static void shards_are_found_by_an_index_or_in_a_folder(void **unused)
{
    enum { CUT = 7 };
    char folder[] = "/tmp/ddp_weight_files_XXXXXX";
    ddp_graph *g = model(0, NULL);
    store *s = llama(0);
    uint64_t h;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    save(in(folder, "w"), s, 0, s->count);
    load(g, in(folder, "w"));
    remove(in(folder, "w"));
    h = hash_of(g);
    save(in(folder, "model-00001-of-00002.safetensors"), s, 0, CUT);
    save(in(folder, "model-00002-of-00002.safetensors"), s, CUT, s->count);
    for (int way = 0; way < 4; way++) {
        if (way == 1) write_index(folder, s, CUT);
        memset(ddp_layer_params(g, 0, NULL), 0, sizeof(float));
        load(g, way == 2 ? in(folder, "model.safetensors.index.json") : way == 3 ? in(folder, "") : folder);
        assert_true(hash_of(g) == h);
    }
    refused(g, in(folder, "model-00002-of-00002.safetensors"), DDP_FORMAT, "is missing");
    remove(in(folder, "model.safetensors.index.json"));
    remove(in(folder, "model-00001-of-00002.safetensors"));
    remove(in(folder, "model-00002-of-00002.safetensors"));
    assert_int_equal(rmdir(folder), 0);
    ddp_graph_free(g);
    free(s);
}

static void shard_errors_name_the_file_and_a_remedy(void **unused)
{
    enum { CUT = 7 };
    char folder[] = "/tmp/ddp_weight_files_XXXXXX";
    ddp_graph *g = model(0, NULL);
    store *s = llama(0), *less = llama(0);

    (void)unused;
    assert_non_null(mkdtemp(folder));
    refused(g, folder, DDP_IO, "has no weights: neither model.safetensors.index.json nor");
    refused(g, in(folder, "no.index.json"), DDP_IO, "No such file");

    save(in(folder, "model-00001-of-00002.safetensors"), s, 0, CUT);
    refused(g, folder, DDP_IO,
            "has 1 of 2 shards: model-00002-of-00002.safetensors is missing; download it again");
    write_index(folder, s, CUT);
    refused(g, folder, DDP_IO, "model-00002-of-00002.safetensors: No such file or directory; ");
    refused(g, folder, DDP_IO, "model.safetensors.index.json needs this shard");
    assert_int_equal(
        symlink("model-00002-of-00002.safetensors", in(folder, "model-00002-of-00002.safetensors")), 0);
    refused(g, folder, DDP_IO, "Too many levels of symbolic links");
    remove(in(folder, "model-00002-of-00002.safetensors"));
    assert_int_equal(
        ddp__file_write(in(folder, "model-00002-of-00002.safetensors"), "PK\3\4 and the rest", 17, NULL),
        DDP_OK);
    refused(g, folder, DDP_FORMAT, "model-00002-of-00002.safetensors is a zip archive");
    save(in(folder, "model-00002-of-00002.safetensors"), s, CUT + 1, s->count);
    refused(g, folder, DDP_FORMAT,
            "model-00002-of-00002.safetensors has no tensor \"model.layers.0.mlp.gate_proj.weight\"");

    drop(less, "model.layers.1.self_attn.k_proj.weight"); /* the index does not list it either */
    save(in(folder, "model-00001-of-00002.safetensors"), less, 0, CUT);
    save(in(folder, "model-00002-of-00002.safetensors"), less, CUT, less->count);
    write_index(folder, less, CUT);
    refused(g, folder, DDP_FORMAT,
            "tensor \"layers.1.self_attn.k_proj.weight\" of the model is missing in all 2 files");

    write_index(folder, s, CUT);
    save(in(folder, "model-00001-of-00002.safetensors"), s, 0, CUT);
    s->t[at(s, "model.layers.1.self_attn.k_proj.weight")].dim[0] = 4; /* the shape with one head less */
    save(in(folder, "model-00002-of-00002.safetensors"), s, CUT, s->count);
    refused(g, folder, DDP_FORMAT,
            "model-00002-of-00002.safetensors: tensor \"model.layers.1.self_attn.k_proj.weight\" has shape "
            "[4, 16], the model needs [8, 16]");

    assert_int_equal(ddp__file_write(in(folder, "model.safetensors.index.json"),
                                     "{\"weight_map\": {\"a\": \"../b\"}}", 29, NULL),
                     DDP_OK);
    refused(g, folder, DDP_FORMAT,
            "line 1: the shard of tensor \"a\" must be the name of a file in the folder of the index");
    assert_int_equal(
        ddp__file_write(in(folder, "model.safetensors.index.json"), "{\"weight_map\": {}}", 18, NULL),
        DDP_OK);
    refused(g, folder, DDP_FORMAT, "its weight_map is empty");
    assert_int_equal(ddp__file_write(in(folder, "model.safetensors.index.json"), "{}", 2, NULL), DDP_OK);
    refused(g, folder, DDP_FORMAT, "weight_map");
    remove(in(folder, "model.safetensors.index.json"));
    remove(in(folder, "model-00001-of-00002.safetensors"));
    remove(in(folder, "model-00002-of-00002.safetensors"));
    assert_int_equal(rmdir(folder), 0);
    ddp_graph_free(g);
    free(s);
    free(less);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_weights_give_the_reference_logits),
        cmocka_unit_test(tied_llama_needs_no_head),
        cmocka_unit_test(prefixes_of_wrappers_are_skipped),
        cmocka_unit_test(shards_are_found_by_an_index_or_in_a_folder),
        cmocka_unit_test(shard_errors_name_the_file_and_a_remedy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
