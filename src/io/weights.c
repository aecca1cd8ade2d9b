/* Loads and saves the weights of a model in safetensors files, under the names that other libraries use. */
#include "graph/graph_internal.h"
#include "io/json.h"
#include "io/weight_files.h"

#define DDP__WEIGHT_NAME 192

/* ---- names ---- */

/* Naming rule: the tensor of operator `op` in a layer whose name ends in `layer` is called by the rest of
 * the layer's name plus `name`. */
typedef struct ddp__weight_rule {
    const char *layer, *op;
    int occurrence; /* index among operators `op` of the layer, from 0 */
    const char *name;
    int transposed; /* the file stores the matrix as (in, out) */
} ddp__weight_rule;

static const ddp__weight_rule ddp__weights_gpt2[] = {
    {"embed", "embedding", 0, "wte", 0},       {"embed", "position", 0, "wpe", 0},
    {".attn", "layer_norm", 0, ".ln_1", 0},    {".attn", "linear", 0, ".attn.c_attn", 1},
    {".attn", "linear", 1, ".attn.c_proj", 1}, {".mlp", "layer_norm", 0, ".ln_2", 0},
    {".mlp", "linear", 0, ".mlp.c_fc", 1},     {".mlp", "linear", 1, ".mlp.c_proj", 1},
    {"head", "layer_norm", 0, "ln_f", 0},      {NULL, NULL, 0, NULL, 0}};

static const ddp__weight_rule ddp__weights_resnet[] = {{".downsample", "conv2d", 0, ".downsample.0", 0},
                                                       {".downsample", "batch_norm2d", 0, ".downsample.1", 0},
                                                       {"conv1", "conv2d", 0, "conv1", 0},
                                                       {"conv1", "batch_norm2d", 0, "bn1", 0},
                                                       {"conv2", "conv2d", 0, "conv2", 0},
                                                       {"conv2", "batch_norm2d", 0, "bn2", 0},
                                                       {"conv3", "conv2d", 0, "conv3", 0},
                                                       {"conv3", "batch_norm2d", 0, "bn3", 0},
                                                       {"head", "linear", 0, "fc", 0},
                                                       {NULL, NULL, 0, NULL, 0}};

/* Convolutions are numbered by their position before the classifier: see ddp__weight_node. */
static const ddp__weight_rule ddp__weights_vgg[] = {{"fc6", "linear", 0, "classifier.0", 0},
                                                    {"fc7", "linear", 0, "classifier.3", 0},
                                                    {"head", "linear", 0, "classifier.6", 0},
                                                    {NULL, NULL, 0, NULL, 0}};

/* Llama's names in the transformers library, for reading only. Saving uses names by layer. Its q, k and v
 * weights are one matrix here, in this order of rows, and so are its gate and up weights. Both libraries pair
 * column i of a head with column d/2 + i for rotary angles, so rows need no permutation. */
#define DDP__WEIGHT_PARTS 3
static const struct {
    const char *layer, *op;
    int occurrence;
    const char *name[DDP__WEIGHT_PARTS];
} ddp__weights_llama[] = {
    {"embed", "embedding", 0, {"embed_tokens", NULL, NULL}},
    {".attn", "rms_norm", 0, {".input_layernorm", NULL, NULL}},
    {".attn", "linear_no_bias", 0, {".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj"}},
    {".attn", "linear_no_bias", 1, {".self_attn.o_proj", NULL, NULL}},
    {".mlp", "rms_norm", 0, {".post_attention_layernorm", NULL, NULL}},
    {".mlp", "linear_no_bias", 0, {".mlp.gate_proj", ".mlp.up_proj", NULL}},
    {".mlp", "linear_no_bias", 1, {".mlp.down_proj", NULL, NULL}},
    {"head", "rms_norm", 0, {"norm", NULL, NULL}},
    {"head", "linear_no_bias", 0, {"lm_head", NULL, NULL}},
    {"head", "linear_cross_entropy", 0, {"lm_head", NULL, NULL}},
};

/* Name prefixes added by DataParallel, torch.compile, and the models of the transformers library. */
static const char *const ddp__weight_prefixes[] = {"module.", "_orig_mod.", "transformer.", "model."};

typedef enum ddp__weight_family {
    DDP__WEIGHTS_OTHER,
    DDP__WEIGHTS_GPT2,
    DDP__WEIGHTS_RESNET,
    DDP__WEIGHTS_VGG,
    DDP__WEIGHTS_LLAMA
} ddp__weight_family;

/* The rows of an array that are one tensor of the file. */
typedef struct ddp__weight_part {
    char name[DDP__WEIGHT_NAME]; /* "": no such name */
    int64_t rows;
    ddp_safetensors *file; /* file that has the tensor, NULL if not found yet */
    const ddp_safetensor *from;
} ddp__weight_part;

/* An array of the model and its tensor in the file. */
typedef struct ddp__weight {
    char name[DDP__WEIGHT_NAME];
    float *data;       /* NULL means that the graph is not built, or the array is on another stage */
    int stage;         /* stage that has the array */
    ddp_safetensor as; /* type and shape in the file. Its name points into this struct */
    int transposed;
    ddp_safetensors *file; /* file that has the whole array, NULL if not found or found in parts */
    const ddp_safetensor *from;
    int parts; /* number of Llama parts in the transformers library, or 0 for no parts */
    ddp__weight_part part[DDP__WEIGHT_PARTS];
} ddp__weight;

/* Detects the model family by a layer name that only this family has. */
static ddp__weight_family ddp__weights_family(const ddp_graph *g)
{
    for (int i = 0; i < ddp__count(g->layer); i++) {
        if (!strcmp(ddp__layer_name(g, i), "h.0.attn")) return DDP__WEIGHTS_GPT2;
        if (!strcmp(ddp__layer_name(g, i), "layer1.0.conv1")) return DDP__WEIGHTS_RESNET;
        if (!strcmp(ddp__layer_name(g, i), "conv1_1")) return DDP__WEIGHTS_VGG;
    }
    for (int i = 0; i < ddp__count(g->node); i++) { /* a user's layer may have that name, too */
        const ddp_node *n = g->node[i];
        if (n->op && n->layer >= 0 && !strcmp(n->op->name, "rope") &&
            !strcmp(ddp__layer_name(g, n->layer), "layers.0.attn"))
            return DDP__WEIGHTS_LLAMA;
    }
    return DDP__WEIGHTS_OTHER;
}

/* Number of arrays that a node owns in a file. */
static int ddp__weights_of(const ddp_node *n)
{
    return n->op ? n->spec.params - (n->tied >= 0 && n->spec.params > 0) + n->spec.buffers : 0;
}

static int ddp__weight_ends(const char *text, const char *end, size_t *rest)
{
    size_t n = strlen(text), k = strlen(end);

    if (n < k || strcmp(text + n - k, end)) return 0;
    *rest = n - k;
    return 1;
}

/* Number of operators of the same kind before n in its layer. *others: number of operators of any kind
 * with arrays. */
static int ddp__weight_occurrence(const ddp_graph *g, const ddp_node *n, int *others)
{
    int same = 0;

    *others = 0;
    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_node *o = g->node[i];
        if (o->layer != n->layer || o == n || !ddp__weights_of(o)) continue;
        ++*others;
        same += i < n->index && !strcmp(o->op->name, n->op->name);
    }
    return same;
}

/* Writes the name of node n in the file. Returns `transposed` of its rule. */
static int ddp__weight_node(const ddp_graph *g, const ddp_node *n, char *out, size_t room)
{
    static const ddp__weight_rule *const rules[] = {NULL, ddp__weights_gpt2, ddp__weights_resnet,
                                                    ddp__weights_vgg, NULL};
    const ddp__weight_family family = ddp__weights_family(g);
    const char *layer = ddp__layer_name(g, n->layer);
    const ddp__weight_rule *r = rules[family];
    int others, occurrence = ddp__weight_occurrence(g, n, &others), place = 0;
    size_t rest;

    for (; r && r->layer; r++) {
        if (strcmp(r->op, n->op->name) || r->occurrence != occurrence ||
            !ddp__weight_ends(layer, r->layer, &rest))
            continue;
        snprintf(out, room, "%.*s%s", (int)rest, layer, r->name);
        return r->transposed;
    }
    /* torchvision numbers the operators of "features", which are all of ours except inputs */
    for (int i = 0; i < n->index; i++) place += g->node[i]->op != NULL;
    if (family == DDP__WEIGHTS_VGG && !strcmp(n->op->name, "conv2d"))
        snprintf(out, room, "features.%d", place);
    else if (!others)
        snprintf(out, room, "%.100s", layer);
    else if (!strcmp(n->op->name, "linear_cross_entropy"))
        snprintf(out, room, "%.100s.linear_no_bias", layer);
    else if (!occurrence)
        snprintf(out, room, "%.100s.%.30s", layer, n->op->name);
    else
        snprintf(out, room, "%.100s.%.30s.%d", layer, n->op->name, occurrence);
    return 0;
}

/* Number of columns of the last matrix in n's layer: for attention, whose projection it is, the width of
 * all queries. */
static long ddp__weight_inner(const ddp_graph *g, const ddp_node *n)
{
    long columns = 0;

    for (int i = 0; i < ddp__count(g->node); i++)
        if (g->node[i]->op && g->node[i]->layer == n->layer &&
            !strcmp(g->node[i]->op->name, "linear_no_bias"))
            columns = g->node[i]->spec.param[0].shape.dim[1];
    return columns;
}

/* Sets the names of array 0 of n in the transformers library, if there are any. */
static void ddp__weight_llama(const ddp_graph *g, const ddp_node *n, ddp__weight *w)
{
    const char *layer = ddp__layer_name(g, n->layer);
    const int64_t rows = w->as.dim[0];
    int others, occurrence = ddp__weight_occurrence(g, n, &others);
    size_t rest = 0;

    for (size_t i = 0; i < sizeof ddp__weights_llama / sizeof ddp__weights_llama[0]; i++) {
        const char *const *name = ddp__weights_llama[i].name;
        if (strcmp(ddp__weights_llama[i].op, n->op->name) || ddp__weights_llama[i].occurrence != occurrence ||
            !ddp__weight_ends(layer, ddp__weights_llama[i].layer, &rest))
            continue;
        while (w->parts < DDP__WEIGHT_PARTS && name[w->parts]) {
            ddp__weight_part *p = &w->part[w->parts++];
            snprintf(p->name, sizeof p->name, "%.*s%s.weight", rest < 100 ? (int)rest : 100, layer,
                     name[w->parts - 1]);
        }
        for (int k = 0; k < w->parts; k++) w->part[k].rows = rows / w->parts;
        if (w->parts < 3) return;
        w->part[0].rows = ddp__weight_inner(g, n); /* there may be fewer key/value heads than query heads */
        w->part[1].rows = w->part[2].rows = (rows - w->part[0].rows) / 2;
        return;
    }
}

static void ddp__weight_fill(const ddp_graph *g, const ddp_node *n, int k, int buffer, ddp__weight *w)
{
    const ddp_param *p = buffer ? &n->spec.buffer[k] : &n->spec.param[k];
    char node[DDP__WEIGHT_NAME - 24];
    int transposed;

    memset(w, 0, sizeof *w);
    transposed = ddp__weight_node(g, n, node, sizeof node);
    snprintf(w->name, sizeof w->name, "%s.%.20s", node,
             buffer   ? p->name
             : k == 0 ? "weight"
             : k == 1 ? "bias"
                      : p->name);
    w->data = n->here != (int)DDP__HERE_OWN ? NULL : buffer ? n->buffer[k] : n->param[k];
    w->stage = n->stage;
    w->as.type = DDP_ST_F32;
    w->as.dims = p->shape.dims;
    for (int i = 0; i < p->shape.dims; i++) w->as.dim[i] = p->shape.dim[i];
    if (transposed && w->as.dims == 2) {
        w->transposed = 1;
        w->as.dim[0] = p->shape.dim[1];
        w->as.dim[1] = p->shape.dim[0];
    }
    if (!buffer && k == 0 && ddp__weights_family(g) == DDP__WEIGHTS_LLAMA) ddp__weight_llama(g, n, w);
}

/* Describes array number index. Returns 0 after the last. */
static int ddp__weight_at(const ddp_graph *g, int index, ddp__weight *w)
{
    for (int i = 0; i < ddp__count(g->node); i++) {
        const ddp_node *n = g->node[i];
        if (index >= ddp__weights_of(n)) {
            index -= ddp__weights_of(n);
            continue;
        }
        index += n->tied >= 0;
        if (index < n->spec.params)
            ddp__weight_fill(g, n, index, 0, w);
        else
            ddp__weight_fill(g, n, index - n->spec.params, 1, w);
        return 1;
    }
    return 0;
}

int ddp_weights_describe(const ddp_graph *g, int index, char *name, size_t room, ddp_shape *shape)
{
    ddp__weight w;

    if (!g || index < 0 || !ddp__weight_at(g, index, &w)) return 0;
    snprintf(name, room, "%s", w.name);
    memset(shape, 0, sizeof *shape);
    shape->dims = w.as.dims;
    for (int i = 0; i < w.as.dims; i++) shape->dim[i] = (long)w.as.dim[i];
    return 1;
}

/* ---- list of all arrays ---- */

typedef struct ddp__weights {
    ddp__weight *list;
    int count;
    float *scratch; /* buffer for the largest transposed matrix */
    const ddp__host *host;
    float *here; /* buffer for the largest device array. NULL means that arrays are in host memory. */
} ddp__weights;

static void ddp__weights_free(ddp__weights *s)
{
    if (s->list) DDP_FREE(s->list);
    if (s->scratch) DDP_FREE(s->scratch);
    if (s->here) DDP_FREE(s->here);
}

static ddp_status ddp__weights_list(const ddp_graph *g, const char *path, ddp__weights *s, ddp_error *err)
{
    size_t most = 0, all = 0;
    int there;

    memset(s, 0, sizeof *s);
    if (!g || !g->built)
        return ddp__fail(err, DDP_USAGE, "%s: the model has no weights before ddp_graph_build", path);
    for (int i = 0; i < ddp__count(g->node); i++) s->count += ddp__weights_of(g->node[i]);
    s->list = (ddp__weight *)ddp__calloc((size_t)s->count, sizeof *s->list);
    for (int i = 0; s->list && i < s->count; i++) {
        ddp__weight *w = &s->list[i];
        size_t n;
        ddp__weight_at(g, i, w);
        w->as.name = w->name;
        n = w->data ? (size_t)ddp_safetensors_elements(&w->as) : 0;
        if (w->transposed && n > most) most = n;
        if (n > all) all = n;
    }
    s->host = g->host;
    there = ddp__graph_backend(g) != NULL;
    s->scratch = (float *)ddp__calloc(most, sizeof(float));
    if (there) s->here = (float *)ddp__calloc(all, sizeof(float));
    if (s->list && s->scratch && (s->here || !there)) return DDP_OK;
    return ddp__fail(err, DDP_MEMORY, "%s: out of memory for a list of %d tensors", path, s->count);
}

/* out (columns, rows) = transpose of in (rows, columns), in blocks that fit the cache. */
static void ddp__weight_transpose(const float *in, int64_t rows, int64_t columns, float *out)
{
    enum { BLOCK = 32 };

    for (int64_t r = 0; r < rows; r += BLOCK)
        for (int64_t c = 0; c < columns; c += BLOCK)
            for (int64_t i = r; i < rows && i < r + BLOCK; i++)
                for (int64_t k = c; k < columns && k < c + BLOCK; k++)
                    out[k * rows + i] = in[i * columns + k];
}

/* ---- loading ---- */

static ddp__weight *ddp__weight_named(const ddp__weights *s, const char *name)
{
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->list[i].name, name)) return &s->list[i];
    return NULL;
}

/* Finds the part with that name, and its array. */
static ddp__weight_part *ddp__weight_part_named(const ddp__weights *s, const char *name, ddp__weight **of)
{
    for (int i = 0; i < s->count; i++)
        for (int k = 0; k < s->list[i].parts; k++) {
            if (strcmp(s->list[i].part[k].name, name)) continue;
            *of = &s->list[i];
            return &s->list[i].part[k];
        }
    return NULL;
}

/* The name without its first prefix, or NULL without a prefix. */
static const char *ddp__weight_bare(const char *name)
{
    for (size_t i = 0; i < sizeof ddp__weight_prefixes / sizeof ddp__weight_prefixes[0]; i++) {
        const size_t n = strlen(ddp__weight_prefixes[i]);
        if (!strncmp(name, ddp__weight_prefixes[i], n)) return name + n;
    }
    return NULL;
}

/* 1 for tensors that other libraries save but this one does not need: attention masks, rotary angles, and
 * num_batches_tracked of batch norms. */
static int ddp__weight_ignored(const ddp__weights *s, ddp__weight_family family, const char *name)
{
    char beside[DDP__WEIGHT_NAME];
    size_t rest;

    if (family == DDP__WEIGHTS_GPT2)
        return !strncmp(name, "h.", 2) && (ddp__weight_ends(name, ".attn.bias", &rest) ||
                                           ddp__weight_ends(name, ".attn.masked_bias", &rest));
    if (family == DDP__WEIGHTS_LLAMA) return ddp__weight_ends(name, "rotary_emb.inv_freq", &rest);
    if (family != DDP__WEIGHTS_RESNET || !ddp__weight_ends(name, ".num_batches_tracked", &rest) || rest > 100)
        return 0;
    snprintf(beside, sizeof beside, "%.*s.running_mean", (int)rest, name);
    return ddp__weight_named(s, beside) != NULL;
}

/* Formats a shape such as "[3, 4]" into text. */
static const char *ddp__weight_shape(const ddp_safetensor *t, char *text, size_t room)
{
    size_t at = 0;

    snprintf(text, room, "[]");
    for (int i = 0; i < t->dims && at < room; i++)
        at += (size_t)snprintf(text + at, room - at, "%s%" PRId64 "%s", i ? ", " : "[", t->dim[i],
                               i == t->dims - 1 ? "]" : "");
    return text;
}

/* Checks a tensor against the array or part with its name, and records its location. */
static ddp_status ddp__weight_match(const char *path, ddp__weight *w, ddp__weight_part *p, ddp_safetensors *f,
                                    const ddp_safetensor *t, ddp_error *err)
{
    const ddp_safetensor *other = w->from;
    ddp_safetensor as = w->as;
    char ours[120], theirs[120];

    if (p && p->from) other = p->from;
    for (int k = 0; !p && !other && k < w->parts; k++) other = w->part[k].from;
    if (other)
        return ddp__fail(err, DDP_FORMAT, "%.120s: \"%.60s\" and \"%.60s\" are the same tensor", path,
                         other->name, t->name);
    if (p) as.dim[0] = p->rows;
    if (t->dims != as.dims || memcmp(t->dim, as.dim, (size_t)t->dims * sizeof *t->dim))
        return ddp__fail(err, DDP_FORMAT,
                         "%.120s: tensor \"%.60s\" has shape %s, the model needs %s: build the model with "
                         "the sizes of the file",
                         path, t->name, ddp__weight_shape(t, theirs, sizeof theirs),
                         ddp__weight_shape(&as, ours, sizeof ours));
    if (t->type != DDP_ST_F32 && t->type != DDP_ST_F64 && t->type != DDP_ST_F16 && t->type != DDP_ST_BF16)
        return ddp__fail(err, DDP_FORMAT,
                         "%.120s: tensor \"%.60s\" has dtype %s; weights are F32, F64, F16 or BF16", path,
                         t->name, ddp_safetensors_type_name(t->type));
    if (p) {
        p->file = f;
        p->from = t;
    } else {
        w->file = f;
        w->from = t;
    }
    return DDP_OK;
}

/* The output matrix in a file, for a model that uses its token table there. If the file has both, they
 * must be equal. */
typedef struct ddp__weight_head {
    const char *path;
    ddp_safetensors *file;
    const ddp_safetensor *from; /* NULL means that the files have no such matrix */
} ddp__weight_head;

static ddp_status ddp__weights_tied(const ddp__weights *s, const ddp__weight_head *head, ddp_error *err)
{
    ddp__weight *w = ddp__weight_named(s, "wte.weight");
    const ddp__weight_part *p = w ? NULL : ddp__weight_part_named(s, "embed_tokens.weight", &w);
    ddp_safetensors *file = p && p->from ? p->file : w ? w->file : NULL;
    const ddp_safetensor *table = p && p->from ? p->from : w ? w->from : NULL, *own = head->from;
    const char *name = p ? "embed_tokens.weight" : "wte.weight";
    uint64_t i = 0, n;
    float a[512], b[512];
    size_t now;

    if (!table || own->dims != table->dims ||
        memcmp(own->dim, table->dim, (size_t)own->dims * sizeof *own->dim))
        return ddp__fail(err, DDP_FORMAT,
                         "%.120s: tensor \"%.60s\" has another shape than %s; this model ties them",
                         head->path, own->name, name);
    n = ddp_safetensors_elements(own);
    for (; i < n; i += now) {
        now = n - i < 512 ? (size_t)(n - i) : 512;
        DDP__TRY(ddp_safetensors_floats(head->file, own, i, now, a, err));
        DDP__TRY(ddp_safetensors_floats(file, table, i, now, b, err));
        for (size_t k = 0; k < now; k++)
            if (memcmp(&a[k], &b[k], sizeof *a))
                return ddp__fail(err, DDP_FORMAT,
                                 "%.120s: tensor \"%.60s\" differs from %s in element %" PRIu64
                                 " (%g and %g); this model ties them%s",
                                 head->path, own->name, name, i + k, (double)a[k], (double)b[k],
                                 p ? ": build it untied" : "");
    }
    return DDP_OK;
}

/* Finds the array or part for a tensor, by its full name or else by the name without prefixes. */
static ddp_status ddp__weight_find(const ddp__weights *s, ddp__weight_family family,
                                   const ddp__weight_file *file, const ddp_safetensor *t,
                                   ddp__weight_head *head, ddp_error *err)
{
    for (const char *name = t->name; name; name = ddp__weight_bare(name)) {
        ddp__weight_part *p = NULL;
        ddp__weight *w = ddp__weight_named(s, name);
        if (!w) p = ddp__weight_part_named(s, name, &w);
        if (w) return ddp__weight_match(file->path, w, p, file->f, t, err);
        if (ddp__weight_ignored(s, family, name)) return DDP_OK;
        if (strcmp(name, "lm_head.weight") || (family != DDP__WEIGHTS_GPT2 && family != DDP__WEIGHTS_LLAMA))
            continue;
        head->path = file->path;
        head->file = file->f;
        head->from = t;
        return DDP_OK;
    }
    return ddp__fail(err, DDP_FORMAT,
                     "%.120s: tensor \"%.80s\" is not one of the %d of this model: is it of the same kind, "
                     "and has it as many layers?",
                     file->path, t->name, s->count);
}

/* 1 if a tensor has a name of the transformers library. */
static int ddp__weights_foreign(const ddp__weights *s)
{
    for (int i = 0; i < s->count; i++)
        for (int k = 0; k < s->list[i].parts; k++)
            if (s->list[i].part[k].from) return 1;
    return 0;
}

/* Returns DDP_FORMAT if no file has the array, or if parts are missing. */
static ddp_status ddp__weight_whole(const ddp__weight *w, int foreign, int files, const char *path,
                                    ddp_error *err)
{
    const char *name = w->name;
    char where[60] = "";
    int found = 0;

    for (int k = 0; k < w->parts; k++) found += w->part[k].from != NULL;
    if (w->from || (w->parts && found == w->parts)) return DDP_OK;
    for (int k = w->parts - 1; foreign && k >= 0; k--)
        if (!w->part[k].from) name = w->part[k].name;
    if (files > 1) snprintf(where, sizeof where, " in all %d files", files);
    return ddp__fail(err, DDP_FORMAT, "%.120s: tensor \"%.80s\" of the model is missing%s: %s", path, name,
                     where,
                     w->parts && !strcmp(w->part[0].name, "lm_head.weight")
                         ? "if the weights of the file are tied, build the model tied, too"
                         : "is the file of a model of this kind, with as many layers?");
}

/* Matches every tensor of the files to an array, and every array to its tensor or parts. */
static ddp_status ddp__weights_pair(const ddp_graph *g, ddp__weights *s, const ddp__weight_files *files,
                                    const char *path, ddp_error *err)
{
    const ddp__weight_family family = ddp__weights_family(g);
    ddp__weight_head head = {NULL, NULL, NULL};
    int foreign;

    for (int k = 0; k < ddp__count(files->list); k++)
        for (int i = 0; i < ddp_safetensors_count(files->list[k].f); i++)
            DDP__TRY(ddp__weight_find(s, family, &files->list[k], ddp_safetensors_at(files->list[k].f, i),
                                      &head, err));
    foreign = ddp__weights_foreign(s);
    for (int i = 0; i < s->count; i++)
        DDP__TRY(ddp__weight_whole(&s->list[i], foreign, ddp__count(files->list), path, err));
    return head.from ? ddp__weights_tied(s, &head, err) : DDP_OK;
}

/* Reads the values of an array into data, from its tensor or from its parts in order. */
static ddp_status ddp__weight_values(const ddp__weight *w, float *data, ddp_error *err)
{
    if (w->from)
        return ddp_safetensors_floats(w->file, w->from, 0, (size_t)ddp_safetensors_elements(w->from), data,
                                      err);
    for (int k = 0; k < w->parts; k++) {
        const size_t n = (size_t)ddp_safetensors_elements(w->part[k].from);
        DDP__TRY(ddp_safetensors_floats(w->part[k].file, w->part[k].from, 0, n, data, err));
        data += n;
    }
    return DDP_OK;
}

static ddp_status ddp__weights_read(const ddp__weights *s, ddp_error *err)
{
    for (int i = 0; i < s->count; i++) {
        const ddp__weight *w = &s->list[i];
        const size_t n = (size_t)ddp_safetensors_elements(&w->as);
        float *data = s->here ? s->here : w->data;
        if (!w->data) continue; /* on another stage, which reads it */
        DDP__TRY(ddp__weight_values(w, w->transposed ? s->scratch : data, err));
        if (w->transposed) ddp__weight_transpose(s->scratch, w->as.dim[0], w->as.dim[1], data);
        if (s->here) ddp__host_upload(s->host, w->data, data, n * sizeof *data);
    }
    return DDP_OK;
}

ddp_status ddp_weights_load(ddp_graph *g, const char *path, ddp_error *err)
{
    ddp__weights s;
    ddp__weight_files files = DDP__ZEROS;
    ddp_error why = {DDP_OK, ""};
    ddp_status code = ddp__weights_list(g, path, &s, &why);

    if (code == DDP_OK) code = ddp__weight_files_open(&files, path, &why);
    if (code == DDP_OK) code = ddp__weights_pair(g, &s, &files, path, &why);
    if (code == DDP_OK) code = ddp__weights_read(&s, &why);
    ddp__weight_files_close(&files);
    ddp__weights_free(&s);
    if (err && code != DDP_OK) *err = why;
    return code;
}

/* ---- saving ---- */

static ddp_status ddp__weights_begin(const ddp__weights *s, ddp__file *f, const char *path, ddp_error *err)
{
    static const char *const notes[] = {"format", "pt", NULL};
    ddp_safetensor *list = (ddp_safetensor *)ddp__calloc((size_t)s->count, sizeof *list);
    ddp_status code;

    if (!list) return ddp__fail(err, DDP_MEMORY, "cannot write %s: out of memory", path);
    for (int i = 0; i < s->count; i++) list[i] = s->list[i].as;
    code = ddp__safetensors_begin(f, path, s->count, list, notes, err);
    DDP_FREE(list);
    return code;
}

/* Array i as it is stored in the file. *out is NULL if another stage has it. */
static ddp_status ddp__weight_show(const ddp__weights *s, int i, const float **out, ddp_error *err)
{
    const ddp__weight *w = &s->list[i];
    const size_t n = (size_t)ddp_safetensors_elements(&w->as);

    *out = s->here && w->data ? s->here : w->data;
    if (!w->data) return DDP_OK;
    if (s->here) DDP__TRY(ddp__host_download(s->host, s->here, w->data, n * sizeof *s->here, err));
    if (!w->transposed) return DDP_OK;
    ddp__weight_transpose(*out, w->as.dim[1], w->as.dim[0], s->scratch);
    *out = s->scratch;
    return DDP_OK;
}

static ddp_status ddp__weights_write(const ddp__weights *s, const char *path, ddp__weights_pass pass,
                                     void *user, int writes, ddp_error *err)
{
    ddp__file f;
    const float *data;
    ddp_status code = DDP_OK;

    if (writes) DDP__TRY(ddp__weights_begin(s, &f, path, err));
    for (int i = 0; i < s->count && code == DDP_OK; i++) {
        const size_t n = (size_t)ddp_safetensors_elements(&s->list[i].as);
        code = ddp__weight_show(s, i, &data, err);
        if (code != DDP_OK) continue;
        if (data && writes)
            ddp__file_put(&f, data, n * sizeof *data);
        else if (!pass)
            code = ddp__fail(err, DDP_USAGE,
                             "ddp_weights_save: parameters are on stage %d of a pipeline: use "
                             "ddp_pipe_export",
                             s->list[i].stage);
        else if (data || writes)
            code = pass(user, s->list[i].stage, data, n, writes ? &f : NULL, err);
    }
    if (!writes) return code;
    if (code == DDP_OK) return ddp__file_end(&f, err);
    ddp__file_drop(&f);
    return code;
}

ddp_status ddp__weights_save(const ddp_graph *g, const char *path, ddp__weights_pass pass, void *user,
                             int writes, ddp_error *err)
{
    ddp__weights s;
    ddp_status code = ddp__weights_list(g, path, &s, err);

    if (code == DDP_OK) code = ddp__weights_write(&s, path, pass, user, writes, err);
    ddp__weights_free(&s);
    return code;
}

ddp_status ddp_weights_save(const ddp_graph *g, const char *path, ddp_error *err)
{
    return ddp__weights_save(g, path, NULL, NULL, 1, err);
}
