/* Helper of test_torch_weights.py.
 *
 *   gpt2 IN OUT                            a small GPT-2 on generated tokens
 *   MODEL DEPTH CIFAR SIZE IN OUT IMAGES   resnet or vgg on 2 images of SIZE x SIZE, read as raw floats
 * loads the weights IN, saves them as OUT, and prints the logits of ddp_evaluate.
 *   MODEL DEPTH CIFAR SIZE                 only prints the name and shape of every array of the file */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"

enum { VOCABULARY = 41, CONTEXT = 13, BATCH = 2, CLASSES = 7 };

static ddp_node *build_gpt2(ddp_graph *g)
{
    ddp_node *logits;
    ddp_gpt2_config c;

    memset(&c, 0, sizeof c);
    c.vocabulary = VOCABULARY;
    c.context = CONTEXT;
    c.batch = BATCH;
    c.layers = 3;
    c.heads = 3;
    c.dim = 24;
    ddp_gpt2(g, &c, &logits);
    return logits;
}

static ddp_node *build_vision(ddp_graph *g, char **word)
{
    ddp_node *logits;
    ddp_resnet_config r;
    ddp_vgg_config v;

    memset(&r, 0, sizeof r);
    memset(&v, 0, sizeof v);
    r.depth = v.depth = atoi(word[1]);
    r.cifar = atoi(word[2]);
    r.size = v.size = atoi(word[3]);
    r.batch = v.batch = BATCH;
    r.classes = v.classes = CLASSES;
    v.dropout = 0.5f; /* no effect in evaluation, and no array in the file */
    if (!strcmp(word[0], "vgg"))
        ddp_vgg(g, &v, &logits);
    else
        ddp_resnet(g, &r, &logits);
    return logits;
}

static int print_names(const ddp_graph *g)
{
    char name[200];
    ddp_shape s;
    int i, k;

    for (i = 0; ddp_weights_describe(g, i, name, sizeof name, &s); i++) {
        printf("%s", name);
        for (k = 0; k < s.dims; k++) printf(" %ld", s.dim[k]);
        printf("\n");
    }
    return 0;
}

static void fill_tokens(ddp_graph *g)
{
    int32_t *tokens = (int32_t *)ddp_data(g, "tokens"), *labels = (int32_t *)ddp_data(g, "labels");
    int i;

    for (i = 0; i < BATCH * CONTEXT; i++) {
        tokens[i] = (7 * i + 3) % VOCABULARY;
        labels[i] = 0;
    }
}

static int fill_images(ddp_graph *g, const char *path, size_t size)
{
    const size_t n = BATCH * 3 * size * size;
    FILE *f = fopen(path, "rb");
    int bad = !f || fread(ddp_data(g, "inputs"), sizeof(float), n, f) != n;

    if (f) fclose(f);
    memset(ddp_data(g, "labels"), 0, BATCH * sizeof(int32_t));
    return bad;
}

int main(int argc, char **argv)
{
    ddp_graph *g = ddp_graph_new(NULL);
    const int text = argc == 4;
    char **file = argv + (text ? 2 : 5);
    ddp_node *logits;
    ddp_error err;
    const float *x;
    long i, n;

    if (!g || (argc != 4 && argc != 5 && argc != 8)) return 2;
    logits = text ? build_gpt2(g) : build_vision(g, argv + 1);
    if (argc == 5) return print_names(g);
    if (ddp_graph_build(g)) return 1;
    memset(&err, 0, sizeof err);
    if (ddp_weights_load(g, file[0], &err) || ddp_weights_save(g, file[1], &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    if (text)
        fill_tokens(g);
    else if (fill_images(g, file[2], (size_t)atoi(argv[4])))
        return 1;
    if (ddp_evaluate(g)) return 1;
    x = ddp_output(g, logits);
    n = text ? BATCH * CONTEXT * VOCABULARY : BATCH * CLASSES;
    for (i = 0; i < n; i++) printf("%.9g\n", (double)x[i]);
    ddp_graph_free(g);
    return 0;
}
