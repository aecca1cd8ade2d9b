/* The planner as a program. Prints one JSON object per solver on standard output.
 *
 *   cc -O2 -I. examples/plan/plan.c -o plan -lm -lpthread
 *   ./plan partial --profile profile.csv --period 10 --solver all --svg period.svg */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include "partial.h"
#include "timeline.h"
#include "knapsack.h"
#include "preserve.h"
#include "osp.h"
#include "place.h"
#include "models.h"
#include "fence.h"
#include "pipeline.h"
#include "choose.h"
#include "speed.h"
#include "baselines.h"

typedef struct subcommand {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} subcommand;

static const subcommand subcommands[] = {
    {"partial", "select the step of the period in which each layer is averaged (DreamDDP)", plan_partial},
    {"timeline", "predict the time of an iteration under DeFT and its baselines", plan_timeline},
    {"knapsack", "select the transfers that fit one or two links (DeFT)", plan_knapsack},
    {"preserve", "check whether training with merged batches converges (DeFT)", plan_preserve},
    {"osp", "select the layers that a parameter server receives late (OSP)", plan_osp},
    {"place", "assign devices to the stages of pipelines (DT-FM)", plan_place},
    {"fence", "assign operators to devices (FusionLLM)", plan_fence},
    {"baselines", "predict a GPT's step under DT-FM, Megatron, ZeRO, FSDP and GPipe", plan_baselines},
    {"pipeline", "predict the step of a pipeline: gpipe, 1f1b, zero-bubble", plan_pipeline},
    {"choose", "choose a strategy for a model, a network and a number of workers", plan_choose},
    {"bandwidth", "compute the link rates that a model and a number of workers need", plan_bandwidth},
    {"speed", "measure the fraction of its peak that a device reaches (FusionLLM)", plan_speed},
};
enum { SUBCOMMANDS = sizeof subcommands / sizeof subcommands[0] };

static void list(FILE *f, const char *before)
{
    int i;

    for (i = 0; i < SUBCOMMANDS; i++) fprintf(f, "%s%s", i ? ", " : before, subcommands[i].name);
    fputc('\n', f);
}

int main(int argc, char **argv)
{
    char name[40];
    int i;

    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        printf("usage: plan SUBCOMMAND [options]\n\nSubcommands:\n");
        for (i = 0; i < SUBCOMMANDS; i++) printf("  %-10s%s\n", subcommands[i].name, subcommands[i].about);
        printf("\n`plan SUBCOMMAND --help` lists the options of a subcommand; `plan --version` prints the "
               "version of the library\n");
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        printf("plan of dreamddp %s\n", DDP_VERSION_STRING);
        return 0;
    }
    for (i = 0; argc > 1 && i < SUBCOMMANDS; i++) {
        if (strcmp(argv[1], subcommands[i].name)) continue;
        snprintf(name, sizeof name, "plan %s", subcommands[i].name);
        argv[1] = name;
        return subcommands[i].run(argc - 1, argv + 1);
    }
    if (argc > 1) {
        nearest_name found = nearest_begin(argv[1]);
        for (i = 0; i < SUBCOMMANDS; i++) nearest_consider(&found, argv[1], subcommands[i].name);
        fprintf(stderr, "plan: unknown subcommand %s; %s%s%schoose ", argv[1],
                found.name ? "did you mean " : "", found.name ? found.name : "", found.name ? "? " : "");
    } else
        fprintf(stderr, "plan: a subcommand is needed; choose ");
    list(stderr, "");
    return 2;
}
