/* Trains an image classifier on MNIST or CIFAR files under any strategy, with one process or
 * thread per worker.
 *
 *   cc -O2 -I. examples/train/train_image.c -o train_image -lm -lpthread
 *   ./train_image --model mlp --data data/mnist --threads 2
 *
 * For a GPU (--device cuda):
 * nvcc -O3 -arch=sm_90a -x cu -I. examples/train/train_image.c -o train_image_cuda -lcublas -lcublasLt -lnccl
 *
 * The last line of stdout is one JSON object with the results. --help lists the options. */
#define DREAMDDP_IMPLEMENTATION
#if defined(__CUDACC__) || defined(DDP_CUDA_ON_CPU)
#include "dreamddp_cuda.cuh"
#else
#include "dreamddp.h"
#endif
#include "../common/cli.h"
#include "../common/training.h"
#include "options.h"
#include "results.h"
#include "device.h"
#include "trainer.h"

/* The data and model of a run. */
typedef struct pictures {
    ddp_images *images, *tests; /* tests is NULL if the folder has no test images */
    ddp_image_range train, val, test;
    ddp_image_norm norm;
    const char *model;
    long hidden[DDP_MLP_HIDDEN + 1]; /* of mlp */
    float dropout;                   /* of vgg */
    int recompute;                   /* of resnet and vgg */
    long test_batches;               /* 0 for all */
} pictures;

/* ---- the task ---- */

static ddp_node *build(ddp_graph *g, const training *t, ddp_node **logits)
{
    const pictures *own = (const pictures *)t->data;
    const ddp_images *m = own->images;
    ddp_resnet_config resnet;
    ddp_vgg_config vgg;
    ddp_mlp_config mlp;

    if (!strncmp(own->model, "resnet", 6)) {
        memset(&resnet, 0, sizeof resnet);
        resnet.depth = atoi(own->model + 6);
        resnet.classes = m->classes;
        resnet.size = m->height;
        resnet.channels = m->channels;
        resnet.batch = t->model.batch;
        resnet.cifar = m->height <= 64;
        resnet.recompute = own->recompute;
        return ddp_resnet(g, &resnet, logits);
    }
    if (!strncmp(own->model, "vgg", 3)) {
        memset(&vgg, 0, sizeof vgg);
        vgg.depth = atoi(own->model + 3);
        vgg.classes = m->classes;
        vgg.size = m->height;
        vgg.channels = m->channels;
        vgg.batch = t->model.batch;
        vgg.dropout = own->dropout;
        vgg.recompute = own->recompute;
        return ddp_vgg(g, &vgg, logits);
    }
    memset(&mlp, 0, sizeof mlp);
    mlp.batch = t->model.batch;
    mlp.inputs = m->channels * m->height * m->width;
    mlp.classes = m->classes;
    memcpy(mlp.hidden, own->hidden, sizeof mlp.hidden);
    return ddp_mlp(g, &mlp, logits);
}

static void fill(const training *t, const training_model *m, long pass, int rank, int world)
{
    const pictures *own = (const pictures *)t->data;
    ddp_images_batch(&own->train, &own->norm, t->seed, pass, rank, world, t->model.batch,
                     (float *)training_data(m, "inputs"), (int32_t *)training_data(m, "labels"));
}

/* Evaluates the batches rank, rank + world, .. of a range. Adds the loss, the number of correct images and
 * the number of images to sum. The last batch is filled with images of label -1, which are not counted. */
static int evaluate(const training *t, const training_model *m, const ddp_image_range *r, int rank, int world,
                    double sum[3])
{
    const pictures *own = (const pictures *)t->data;
    const long batch = t->model.batch, classes = own->images->classes,
               size = own->images->channels * own->images->height * own->images->width;
    float *inputs = (float *)training_data(m, "inputs");
    int32_t *labels = (int32_t *)training_data(m, "labels");
    long first, i, c;

    for (first = rank * batch; first < r->count; first += world * batch) {
        const long n = r->count - first < batch ? r->count - first : batch;
        const float *x;
        int bad;

        for (i = 0; i < batch; i++) {
            ddp_images_get(r, &own->norm, i < n ? first + i : 0, inputs + i * size, labels + i);
            if (i >= n) labels[i] = -1;
        }
        bad = training_forward(m);
        if (bad) return bad;
        x = training_output(m, m->loss);
        if (x) {
            sum[0] += (double)*x * (double)n;
            sum[2] += (double)n;
        }
        x = training_output(m, m->logits);
        for (i = 0; x && i < n; i++, x += classes) {
            long best = 0;
            for (c = 1; c < classes; c++)
                if (x[c] > x[best]) best = c;
            sum[1] += best == labels[i];
        }
    }
    return 0;
}

/* Returns the first batches of a range, or 0 for all. */
static ddp_image_range first_batches(const training *t, const ddp_image_range *r, long batches)
{
    ddp_image_range part = *r;
    if (batches && part.count / t->model.batch >= batches) part.count = batches * t->model.batch;
    return part;
}

static int validate(const training *t, const training_model *m, int rank, int world, double sum[3])
{
    const ddp_image_range part = first_batches(t, &((const pictures *)t->data)->val, t->val_batches);
    return evaluate(t, m, &part, rank, world, sum);
}

static int judge(const training *t, const training_model *m, double sum[3])
{
    const pictures *own = (const pictures *)t->data;
    const ddp_image_range part = first_batches(t, &own->test, own->test_batches);
    return evaluate(t, m, &part, 0, 1, sum);
}

/* ---- the command line ---- */

static ddp_status choose_images(program *p, ddp_error *err)
{
    static const char *const names[] = {"mlp", "resnet18", "resnet50", "resnet101", "vgg16", "vgg19"};
    pictures *own = p->pictures;
    const char *at = p->widths;
    size_t i;
    int n = 0;

    for (i = 0; i < sizeof names / sizeof *names && strcmp(p->model, names[i]); i++) {
    }
    if (i == sizeof names / sizeof *names)
        return refuse(err, "unknown model %s; choose mlp, resnet18, resnet50, resnet101, vgg16 or vgg19",
                      p->model);
    if (p->epochs < 0) p->epochs = p->steps || p->emulate ? 0 : 8;
    own->model = p->model;
    own->dropout = (float)p->dropout;
    own->recompute = p->recompute;
    if (p->recompute && !strcmp(p->model, "mlp"))
        return refuse(err, "--recompute: mlp has no blocks to recompute; leave it out");
    if (p->dropout != 0 && strncmp(p->model, "vgg", 3))
        return refuse(err, "--dropout %g: only the vgg models have dropout", p->dropout);
    while (*at && n <= DDP_MLP_HIDDEN) {
        char *end;
        own->hidden[n] = strtol(at, &end, 10);
        if (own->hidden[n] < 1 || own->hidden[n] > 1000000 || (*end && (*end != ',' || !end[1]))) break;
        n++;
        at = *end ? end + 1 : end;
    }
    if (*at || n > DDP_MLP_HIDDEN)
        return refuse(err, "--hidden %s must be at most %d widths from 1 to 1000000, such as 512,256",
                      p->widths, DDP_MLP_HIDDEN);
    if (!p->data && !p->emulate)
        return refuse(
            err, "--data FOLDER is missing; give a folder with the files of MNIST, CIFAR-10 or CIFAR-100");
    return DDP_OK;
}

static ddp_status load_images(program *p, ddp_error *err)
{
    pictures *own = p->pictures;
    training *t = &p->t;
    ddp_error none;

    own->images = ddp_images_open(p->data, 0, err);
    if (!own->images) return err->code;
    if (ddp_images_split(own->images, p->held_out, &own->train, &own->val, err)) return err->code;
    own->norm = ddp_images_norm(&own->train);
    memset(&none, 0, sizeof none);
    own->tests = ddp_images_open(p->data, 1, &none);
    if (!own->tests && none.code != DDP_IO) {
        *err = none;
        return err->code;
    }
    own->test = own->val;
    own->test.count = 0;
    if (own->tests) {
        const ddp_images *a = own->images, *b = own->tests;
        if (a->channels != b->channels || a->height != b->height || a->width != b->width ||
            a->classes != b->classes)
            return refuse(err, "%s and %s differ in image size, channels or number of classes", a->name,
                          b->name);
        if (ddp_images_split(b, 0, &own->test, NULL, err)) return err->code;
    }
    if (own->images->height != own->images->width && strcmp(p->model, "mlp"))
        return refuse(err, "%s has images of %ld x %ld; %s needs square images", p->data, own->images->height,
                      own->images->width, p->model);
    t->model.batch = p->batch;
    t->model.context = 1;
    t->data_length = own->train.count;
    t->windows = p->epochs * t->data_length;
    t->val_batches = p->val_batches;
    snprintf(p->described, sizeof p->described, "%s, images %ld x %ld x %ld, %ld classes", p->model,
             own->images->channels, own->images->height, own->images->width, own->images->classes);
    snprintf(t->data_line, sizeof t->data_line,
             "data: %.120s, read as %s images %ld x %ld x %ld: %ld to train on, %ld to test, "
             "%ld classes",
             p->data, own->images->channels == 1 ? "IDX" : "CIFAR", own->images->channels,
             own->images->height, own->images->width, own->train.count, own->tests ? own->tests->count : 0,
             own->images->classes);
    return training_check(t, err);
}

static int parse_images(program *p, int argc, char **argv)
{
    const cli_option own[] = {
        {"Model", CLI_GROUP, NULL, NULL, NULL},
        {"--model", CLI_TEXT, &p->model, "NAME", "mlp, resnet18, resnet50, resnet101, vgg16 or vgg19 [mlp]"},
        {"--hidden", CLI_TEXT, &p->widths, "N,N,..", "mlp: widths of the hidden layers [512,256]"},
        {"--dropout", CLI_REAL, &p->dropout, "P", "vgg: dropout probability [0]"},
        {"Data", CLI_GROUP, NULL, NULL, NULL},
        {"--data", CLI_TEXT, &p->data, "FOLDER",
         "folder with files of MNIST (idx), CIFAR-10 or CIFAR-100 (bin), each also as .gz"},
        {"--held-out", CLI_REAL, &p->held_out, "F",
         "fraction of the training images held out for val_loss [0]"},
        {"--val-batches", CLI_COUNT, &p->val_batches, "N",
         "batches of held-out images for val_loss; 0 = all [0]"},
        {"--test-batches", CLI_COUNT, &p->pictures->test_batches, "N",
         "batches of test images for test_accuracy; 0 = all [0]"},
    };

    return parse(p, argc, argv,
                 "Trains an image classifier over slow links and prints one JSON object of results.", own,
                 (int)(sizeof own / sizeof own[0]));
}

int main(int argc, char **argv)
{
    static const training_task task = {build, fill, validate, judge};
    program *p = (program *)malloc(sizeof *p);
    pictures *own = (pictures *)calloc(1, sizeof *own);
    int code = 1;

    if (p && own) {
        defaults(p, "train_image");
        p->choose = choose_images;
        p->load = load_images;
        p->pictures = own;
        p->t.task = &task;
        p->t.data = own;
        p->model = "mlp";
        p->widths = "512,256";
        p->samples = "image";
        p->batch = 128;
        p->steps = 0;
        p->epochs = -1;
        p->lr = 1e-3;
        p->schedule = "cosine";
        p->held_out = 0;
        code = parse_images(p, argc, argv);
        if (code < 0) code = trainer_main(p);
        ddp_images_close(own->images);
        ddp_images_close(own->tests);
    }
    free(own);
    free(p);
    return code;
}
