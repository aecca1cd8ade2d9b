/* Operator lists of the models that the planner knows by name. No parameters are allocated. */
#ifndef EXAMPLES_PLAN_MODELS_H
#define EXAMPLES_PLAN_MODELS_H

typedef enum plan_model_family {
    PLAN_MODEL_MLP,
    PLAN_MODEL_GPT2,
    PLAN_MODEL_RESNET,
    PLAN_MODEL_VGG
} plan_model_family;

typedef struct plan_model_entry {
    const char *name;
    plan_model_family family;
    int depth;       /* layers of an image model, blocks of GPT-2 */
    long heads, dim; /* GPT-2 */
    long batch;      /* default number of samples per micro-batch */
} plan_model_entry;

/* Batches of ResNet-18, ResNet-101 and GPT-2 XL: FusionLLM, Table 6. */
static const plan_model_entry plan_model_table[] = {
    {"mlp", PLAN_MODEL_MLP, 0, 0, 0, 32},          {"gpt2", PLAN_MODEL_GPT2, 12, 12, 768, 4},
    {"gpt2-xl", PLAN_MODEL_GPT2, 48, 25, 1600, 3}, {"resnet18", PLAN_MODEL_RESNET, 18, 0, 0, 128},
    {"resnet50", PLAN_MODEL_RESNET, 50, 0, 0, 64}, {"resnet101", PLAN_MODEL_RESNET, 101, 0, 0, 32},
    {"vgg16", PLAN_MODEL_VGG, 16, 0, 0, 32},       {"vgg19", PLAN_MODEL_VGG, 19, 0, 0, 32},
};

enum { PLAN_MODEL_COUNT = (int)(sizeof plan_model_table / sizeof *plan_model_table) };

/* Adds a model to the graph. Images have 224 x 224 pixels and 1,000 classes, texts 1,024 tokens and a
 * vocabulary of 50,257. The MLP has the widths 784-512-512-10. */
static ddp_node *plan_model_add(ddp_graph *g, const plan_model_entry *e, long batch)
{
    ddp_mlp_config mlp;
    ddp_gpt2_config gpt2;
    ddp_resnet_config resnet;
    ddp_vgg_config vgg;

    switch (e->family) {
    case PLAN_MODEL_MLP:
        memset(&mlp, 0, sizeof mlp);
        mlp.batch = batch;
        mlp.inputs = 784;
        mlp.hidden[0] = mlp.hidden[1] = 512;
        mlp.classes = 10;
        return ddp_mlp(g, &mlp, NULL);
    case PLAN_MODEL_GPT2:
        memset(&gpt2, 0, sizeof gpt2);
        gpt2.vocabulary = 50257;
        gpt2.context = 1024;
        gpt2.layers = e->depth;
        gpt2.heads = e->heads;
        gpt2.dim = e->dim;
        gpt2.batch = batch;
        return ddp_gpt2(g, &gpt2, NULL);
    case PLAN_MODEL_RESNET:
        memset(&resnet, 0, sizeof resnet);
        resnet.depth = e->depth;
        resnet.classes = 1000;
        resnet.size = 224;
        resnet.batch = batch;
        return ddp_resnet(g, &resnet, NULL);
    case PLAN_MODEL_VGG:
        memset(&vgg, 0, sizeof vgg);
        vgg.depth = e->depth;
        vgg.classes = 1000;
        vgg.size = 224;
        vgg.batch = batch;
        return ddp_vgg(g, &vgg, NULL);
    }
    return NULL;
}

/* Sets the error of an unknown name, with all names. */
static int plan_model_unknown(const char *name, ddp_error *err)
{
    char list[160] = "";
    size_t used = 0;
    int i;

    for (i = 0; i < PLAN_MODEL_COUNT && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "",
                                 plan_model_table[i].name);
    if (err) {
        err->code = DDP_ARG;
        snprintf(err->msg, sizeof err->msg, "model '%.60s' is unknown; use one of %s", name, list);
    }
    return DDP_ARG;
}

/* Builds the operator list of a model for micro-batches of `batch` samples (0 for the default of the model).
 * Returns 0 or a ddp_status. On success the caller frees *out with ddp_oplist_free. On error *out is
 * unchanged. */
static int plan_model_oplist(const char *name, long batch, ddp_oplist *out, ddp_error *err)
{
    ddp_graph *g;
    int i, code;

    for (i = 0; i < PLAN_MODEL_COUNT && strcmp(plan_model_table[i].name, name); i++) {
    }
    if (i == PLAN_MODEL_COUNT) return plan_model_unknown(name, err);
    g = ddp_graph_new(NULL);
    plan_model_add(g, &plan_model_table[i], batch ? batch : plan_model_table[i].batch);
    code = (int)ddp_graph_oplist(g, out, err); /* reports the first error of the graph */
    ddp_graph_free(g);
    return code;
}

#endif /* EXAMPLES_PLAN_MODELS_H */
