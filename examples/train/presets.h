/* Presets: the models, settings and networks of the papers, scaled down to two cores. A preset is a command
 * line that is parsed before the user's. docs/results/presets.md has the values of each paper and the factors
 * of the scaling. */
#ifndef EXAMPLES_TRAINER_PRESETS_H
#define EXAMPLES_TRAINER_PRESETS_H

typedef struct preset {
    const char *name, *trainer;
    const char *about;   /* for --help: model, strategy, network, paper */
    const char *data;    /* path below $DDP_DATA */
    const char *options; /* separated by spaces */
} preset;

/* Paths of networks, placements and cuts are relative to the root of the repository. */
static const preset presets[] = {
    {"dreamddp-resnet18", "train_image",
     "DreamDDP: full ResNet-18, dreamddp H = 5, 4 workers with 40 Mbit/s, 1/16 of the batch", "cifar10",
     "--model resnet18 --batch 8 --steps 30 --optimizer sgd --lr 0.00625 --weight-decay 0.0001 --schedule "
     "constant "
     "--test-batches 16 --strategy dreamddp --period 5 --workers 4 --net 40mbit,13ms"},
    {"dreamddp-gpt2", "train_gpt",
     "DreamDDP: GPT-2 with 1/100 of the parameters, dreamddp H = 5, 4 workers with 34 Mbit/s",
     "wikitext-2/train.txt.gz",
     "--model gpt2 --layers 6 --heads 4 --dim 128 --seq 128 --batch 4 --steps 200 --optimizer adam --lr "
     "0.001 "
     "--weight-decay 0.0001 --clip 1 --strategy dreamddp --period 5 --workers 4 --net 34mbit,1ms"},
    {"deft-vgg19", "train_image", "DeFT: VGG-19 on small images, deft, 2 workers with two links", "cifar10",
     "--model vgg19 --batch 32 --steps 20 --optimizer sgd --lr 0.01 --weight-decay 0.0001 --schedule step "
     "--test-batches 16 --strategy deft --workers 2 --net 445mbit,1ms --net2 270mbit,1ms"},
    {"osp-resnet50", "train_image",
     "OSP: full ResNet-50, osp, 3 workers and a server with 920 Mbit/s, 1/4 of the batch", "cifar10",
     "--model resnet50 --batch 16 --steps 16 --optimizer sgd --lr 0.025 --schedule constant "
     "--test-batches 8 --strategy osp --defer 0.76 --servers 1 --workers 3 --net 920mbit,1ms"},
    {"dtfm-gpt", "train_gpt",
     "DT-FM: a GPT in 4 stages x 2 pipelines on 8 devices of case 5, placed by `plan place`",
     "wikitext-2/train.txt.gz",
     "--model gpt2 --layers 8 --heads 4 --dim 128 --seq 128 --batch 2 --steps 15 --optimizer adam --lr 0.001 "
     "--strategy ssgd --workers 8 --pipeline gpipe --microbatches 8 --net examples/train/dtfm-gpt.json "
     "--placement examples/train/dtfm-gpt.placement.json"},
    {"fusion-resnet101", "train_image",
     "FusionLLM: ResNet-101 in 6 stages on testbed 1 / 4, cut by `plan fence`, AdaTopK 100", "cifar10",
     "--model resnet101 --batch 1 --steps 10 --optimizer sgd --lr 0.001 --schedule constant --test-batches 1 "
     "--strategy ssgd --workers 6 --pipeline gpipe --microbatches 5 --edge-wire adatopk:100 "
     "--net examples/train/fusion-resnet101.json --cut examples/train/fusion-resnet101.cut.json"},
};
enum { PRESETS = (int)(sizeof presets / sizeof presets[0]) };

/* Writes the first lines of --help: the purpose of the program, and its presets. */
static void presets_help(const char *trainer, const char *about, char *out, size_t room)
{
    size_t n = (size_t)snprintf(out, room, "%s", about);
    int found = 0;

    for (int i = 0; i < PRESETS && n < room; i++) {
        if (strcmp(presets[i].trainer, trainer)) continue;
        n += (size_t)snprintf(
            out + n, room - n, "%s\n  --preset %-18s %s",
            found++ ? ""
                    : "\n\nPresets, described in docs/results/presets.md; an option that you give "
                      "replaces the preset's",
            presets[i].name, presets[i].about);
    }
}

/* Returns the preset, or NULL after printing an error: it does not exist, or it is for another program. */
static const preset *preset_named(const char *given, const char *trainer)
{
    nearest_name found = nearest_begin(given);
    char all[300] = "";

    for (int i = 0; i < PRESETS; i++) {
        const preset *s = &presets[i];
        nearest_consider(&found, given, s->name);
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", s->name);
        if (strcmp(s->name, given)) continue;
        if (!strcmp(s->trainer, trainer)) return s;
        fprintf(stderr, "%s: --preset %s is for %s; run %s --preset %s\n", trainer, given, s->trainer,
                s->trainer, given);
        return NULL;
    }
    fprintf(stderr, "%s: unknown preset %s; %s%s%schoose %s\n", trainer, given,
            found.name ? "did you mean " : "", found.name ? found.name : "", found.name ? "? " : "", all);
    return NULL;
}

/* Parses the options of the preset like a command line. Returns like cli_parse. */
static int preset_apply(program *p, const cli_option *table, int count)
{
    const preset *s = preset_named(p->preset, p->name);
    const char *folder = getenv("DDP_DATA");
    char *argv[64], *word;
    int argc = 0;

    if (!s) return 2;
    snprintf(p->preset_data, sizeof p->preset_data, "%.900s/%s", folder && *folder ? folder : "data",
             s->data);
    p->data = p->preset_data;
    if (!p->quiet) fprintf(stderr, "preset %s: --data %s %s\n", s->name, p->data, s->options);
    snprintf(p->preset_words, sizeof p->preset_words, "%s %s", p->name, s->options);
    for (word = strtok(p->preset_words, " "); word && argc < 64; word = strtok(NULL, " "))
        argv[argc++] = word;
    return cli_parse(argc, argv, NULL, table, count);
}

#endif /* EXAMPLES_TRAINER_PRESETS_H */
