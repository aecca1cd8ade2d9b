/* Predicts a training run on machines that you do not have: runs the trainers' loop and the library on a
 * virtual clock.
 *
 *   cc -O2 -I. examples/train/simulate.c -o simulate -lm -lpthread
 *   ./simulate --strategy all --workers 1000 --net 100mbit,20ms --profile profile.csv
 *
 * The profile has the times of each layer (docs/explanation/dreamddp-plan.md). `train_gpt --write-profile`
 * measures one. */
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#ifdef __linux__
#include <sched.h>
#endif
#include "../common/cli.h"
#include "../common/training.h"
#include "options.h"
#include "results.h"
#include "device.h"
#include "trainer.h"

enum { SIMULATE_LANES = 16 };

/* The options of simulate in addition to the trainers' options, and the result of one run. */
typedef struct simulate {
    program p; /* first member: callbacks receive its address and cast it to simulate */
    double noise, cores, tokens, target, price; /* cores: 0 if --cores is not given */
    const char *slow, *faults, *sweep, *csv, *svg;
    int real, unfolded;
    double compute_s, whole_s; /* seconds per step: compute, and a step without faults (0 if --faults is not
                                  given) */
    double slowdown;           /* factor on the compute times because workers share cores */
    double wall_s;
    const char *swept; /* the swept option of this run, such as "net=100mbit", or NULL */
    ddp_simulation how;
    ddp_simulated did;
} simulate;

static int simulate_parse(simulate *x, int argc, char **argv)
{
    program *p = &x->p;
    const cli_option own[] = {
        {"Simulation", CLI_GROUP, NULL, NULL, NULL},
        {"--profile", CLI_TEXT, &p->emulate, "P.csv",
         "parameters and times of each layer: layer,params,forward_s,backward_s,comm_s"},
        {"--faults", CLI_TEXT, &x->faults, "FILE",
         "file of stalls and rates at given times (docs/howto/emulate-network.md)"},
        {"--noise", CLI_REAL, &x->noise, "X",
         "largest random change of a layer's time in each execution, as a fraction [0]"},
        {"--slow", CLI_TEXT, &x->slow, "R:F,..", "stragglers: worker R takes F times as long to compute"},
        {"--cores", CLI_REAL, &x->cores, "N",
         "cores that all workers share, such as 2 or 1.5: with more threads (workers times --threads) "
         "computing "
         "is slower by that ratio; 0 = no sharing [0]"},
        {"--tokens", CLI_REAL, &x->tokens, "N", "tokens per worker and step, for --target [1]"},
        {"--target", CLI_REAL, &x->target, "N",
         "number of tokens to train on; prints the hours, and with --price the cost"},
        {"--price", CLI_REAL, &x->price, "X", "price of one hour of a worker"},
        {"--sweep", CLI_TEXT, &x->sweep, "KEY=A,B,..",
         "one run for each value of an option: workers=2,4,8; values with commas are separated by ;: "
         "net=1gbit,1ms;10mbit,20ms"},
        {"--csv", CLI_TEXT, &x->csv, "FILE", "CSV table with a line for each run"},
        {"--svg", CLI_TEXT, &x->svg, "FILE", "with --sweep: chart of utilisation, one curve per strategy"},
        {"--real", CLI_FLAG, &x->real, "",
         "run on this machine in real time; layers sleep, and zeros are sent"},
        {"--each", CLI_FLAG, &x->unfolded, "", "simulate every worker, even if their behaviour is identical"},
    };

    return parse(
        p, argc, argv,
        "Predicts a training run on machines that you do not have. --strategy all, or ssgd,dreamddp, "
        "compares strategies.",
        own, (int)(sizeof own / sizeof own[0]));
}

static ddp_status simulate_none(program *p, ddp_error *err)
{
    (void)p;
    return refuse(err, "--profile P.csv is missing; `train_gpt --write-profile P.csv` measures one");
}

static ddp_status simulate_chosen(program *p, ddp_error *err)
{
    const simulate *x = (const simulate *)p;
    const cli_range ranges[] = {{"--target", x->target, 0, 0},
                                {"--tokens", x->tokens, DBL_MIN, 0},
                                {"--price", x->price, 0, 0},
                                {"--cores", x->cores, 0, 0}};

    if (!p->emulate) return simulate_none(p, err);
    if (!(x->noise >= 0 && x->noise < 1))
        return refuse(err, "--noise %g must be at least 0 and below 1", x->noise);
    if (cli_out_of_range(ranges, sizeof ranges / sizeof ranges[0], err->msg, sizeof err->msg))
        return err->code = DDP_ARG;
    if (x->price > 0 && !(x->target > 0))
        return refuse(err, "--price %g needs --target N, the number of tokens to train on", x->price);
    return DDP_OK;
}

/* Multiplies the times of the layers where workers share cores. The operator threads of all workers run at
 * the same time, so each has its share of the cores. */
static void simulate_share_cores(simulate *x)
{
    const long threads = x->p.workers * (x->p.cfg.threads > 0 ? x->p.cfg.threads : 1);
    const ddp_profile *e = &x->p.emulated;

    x->slowdown = x->cores > 0 && (double)threads > x->cores ? (double)threads / x->cores : 1;
    for (int l = 0; l < e->layers; l++) {
        e->forward_s[l] *= x->slowdown;
        e->backward_s[l] *= x->slowdown;
    }
}

/* Sets compute_s to the seconds that a worker computes per step. */
static void simulate_times(simulate *x)
{
    const ddp_profile *e = &x->p.emulated;

    x->compute_s = 0;
    for (int l = 0; l < e->layers; l++) x->compute_s += e->forward_s[l] + e->backward_s[l];
    x->compute_s *= (double)(x->p.stages > 1 ? x->p.accumulate : 1) / (double)x->p.stages;
}

/* Chooses how layers are stored. If servers or a wire format read values, the number of values is scaled
 * down, and each value represents several. Otherwise layers keep their size in address space that needs no
 * memory (ddp_paper). */
static void simulate_scale(simulate *x)
{
    program *p = &x->p;
    const int looks = ddp_strategy_traits(p->cfg.strategy) & DDP_NEEDS_SERVERS || p->stages > 1 ||
                      p->cfg.wire > DDP_WIRE_BF16 || ddp_strategy_traits(p->cfg.strategy) & DDP_WITH_TOPK;
    const double most = p->workers > 64 ? 65536 : 1048576;
    double all = 0, due = 0, had = 0, scale = 1;

    for (int l = 0; l < p->emulated.layers; l++) all += p->emulated.params[l] / p->emulate_scale;
    if (looks && all > most) scale = all / most;
    for (int l = 0; l < p->emulated.layers && scale > 1; l++) { /* rounded such that the sum is preserved */
        const double whole = (due += p->emulated.params[l] / scale, floor(due + 0.5) - had);
        p->emulated.params[l] = p->emulated.params[l] > 0 && whole < 1 ? 1 : whole;
        had += p->emulated.params[l];
    }
    p->cfg.gradient.bucket_bytes =
        p->cfg.gradient.bucket_bytes ? p->cfg.gradient.bucket_bytes : (size_t)(25 * 1048576 / scale);
    p->cfg.gradient.partition_bytes =
        p->cfg.gradient.partition_bytes ? p->cfg.gradient.partition_bytes : (size_t)(26e6 / scale);
    x->how.scale = scale;
    x->how.paper_bytes = 0;
    if (p->stages > 1) return;
    for (int l = 0; l < p->emulated.layers; l++)
        x->how.paper_bytes += 2 * sizeof(float) * (size_t)(p->emulated.params[l] + 1);
    x->how.paper_bytes = 16 * x->how.paper_bytes + 65536; /* half of it for the arrays of strategies */
    x->how.paper = ddp_paper(x->how.paper_bytes);
}

static int simulate_once(simulate *x, const ddp_config *c, ddp_error *err)
{
    const double began = ddp_now();
    int code;

    if (x->real)
        code = ddp_launch(c, training_run, &x->p.t, err);
    else
        code = ddp_simulate(c, &x->how, training_loop, &x->p.t, &x->did, err);
    x->wall_s = ddp_now() - began;
    return code;
}

static int simulate_launch(program *p, ddp_error *err)
{
    simulate *x = (simulate *)p;
    ddp_config c;
    int code;

    simulate_share_cores(x);
    simulate_times(x);
    if (!x->real) simulate_scale(x);
    p->t.paper = x->real ? NULL : (float *)x->how.paper;
    p->t.noise = x->noise;
    p->t.slow = x->slow;
    p->t.result->spare = p->t.result->workers;
    x->how.fold = !x->unfolded && !(x->noise > 0) && !x->slow && p->stages == 1;
    c = p->cfg;
    c.no_env = 1;
    if (x->real) c.transport = p->transport && !strcmp(p->transport, "tcp") ? DDP_TCP : DDP_THREADS;
    c.network.net_script = NULL;
    code = x->faults ? simulate_once(x, &c, err) : 0;
    x->whole_s = x->faults ? p->t.result->step_s : 0;
    c.network.net_script = x->faults;
    if (!code) code = simulate_once(x, &c, err);
    if (x->how.scale > 1) /* the prediction is for the scaled-down number of values */
        p->t.result->rank[p->t.result->leader].stats.predicted_step_s =
            p->t.result->rank[p->t.result->leader].stats.predicted_hidden_pct = NAN;
    if (!code) note_part_of_period(&p->t.result->rank[p->t.result->leader].stats);
    ddp_paper_free(x->how.paper, x->how.paper_bytes);
    x->how.paper = NULL;
    return code;
}

/* Returns the bytes that the leader sent in a counted step, or NAN for fewer than two steps. */
static double simulate_bytes(const training_result *r)
{
    const ddp_stats *s = &r->rank[r->leader].stats;
    const long last = s->counted_from + s->counted_steps - 1,
               before = s->counted_from > r->first ? s->counted_from - 1 : r->first;

    return last > before ? (double)(r->step[last].bytes - r->step[before].bytes) / (double)(last - before)
                         : (double)NAN;
}

static void simulate_more(const program *p, ddp_jsonl *j)
{
    const simulate *x = (const simulate *)p;
    const training_result *r = p->t.result;
    const double workers = (double)p->workers / (double)p->stages,
                 hours = x->target / (x->tokens * workers) * r->step_s / 3600;

    if (x->swept) ddp_jsonl_string(j, "sweep", x->swept);
    ddp_jsonl_number(j, "bytes_per_step", simulate_bytes(r));
    ddp_jsonl_number(j, "utilisation_pct", r->step_s > 0 ? 100 * x->compute_s / r->step_s : NAN);
    ddp_jsonl_number(j, "compute_slowdown", x->slowdown);
    ddp_jsonl_number(j, "goodput_pct", x->whole_s > 0 ? 100 * x->whole_s / r->step_s : 100);
    if (x->target > 0) ddp_jsonl_number(j, "hours", hours);
    if (x->price > 0) ddp_jsonl_number(j, "cost", hours * (double)p->workers * x->price);
    ddp_jsonl_string(j, "on", x->real ? "this machine" : "a virtual clock");
    if (x->real) return;
    ddp_jsonl_integer(j, "simulated_workers", x->did.workers);
    ddp_jsonl_number(j, "simulated_s", x->did.seconds);
    ddp_jsonl_number(j, "wall_s", x->wall_s);
}

static void simulate_defaults(simulate *x)
{
    memset(x, 0, sizeof *x);
    defaults(&x->p, "simulate");
    x->tokens = 1;
    x->p.optimizer = "sgd";
    x->p.most = 65535;
    x->p.places = SIMULATE_LANES;
    x->p.quiet = 1;
    x->p.choose = simulate_chosen;
    x->p.load = simulate_none;
    x->p.launch = simulate_launch;
    x->p.more = simulate_more;
}

/* Parses the command line with one option set to another value (NULL for none). Returns like cli_parse. */
static int simulate_read(int argc, char **argv, const char *strategy, const char *option, const char *value,
                         simulate *x)
{
    static char swept[200];
    char *args[OPTIONS * 2 + 8];
    int n = argc, code;

    if (argc > OPTIONS * 2) {
        fprintf(stderr, "simulate: %d arguments on the command line; at most %d are allowed\n", argc,
                (int)OPTIONS * 2);
        return 2;
    }
    memcpy(args, argv, (size_t)argc * sizeof *args);
    snprintf(swept, sizeof swept, "%s=%s", option ? option + 2 : "", value ? value : "");
    if (option) {
        args[n++] = (char *)(uintptr_t)option;
        args[n++] = (char *)(uintptr_t)value;
    }
    if (strategy) {
        args[n++] = (char *)(uintptr_t) "--strategy";
        args[n++] = (char *)(uintptr_t)strategy;
    }
    simulate_defaults(x);
    code = simulate_parse(x, n, args);
    if (code >= 0) return code;
    x->swept = option ? swept : NULL;
    if (strategy && !x->p.cfg.server.count &&
        ddp_strategy_traits(ddp_strategy_named(strategy)) & DDP_NEEDS_SERVERS)
        x->p.cfg.server.count = 1;
    return -1;
}

/* Runs one simulation. Returns its exit code. */
static int simulate_run(int argc, char **argv, const char *strategy, const char *option, const char *value,
                        simulate *x)
{
    const int code = simulate_read(argc, argv, strategy, option, value, x);

    return code >= 0 ? code : trainer_main(&x->p);
}

/* Pins the process to one processor. Only one worker runs at a time, and a switch between workers is faster
 * on one processor. */
static void simulate_settle(void)
{
#if defined(__linux__) && defined(CPU_SET)
    const int here = sched_getcpu();
    cpu_set_t own;

    if (here < 0) return;
    CPU_ZERO(&own);
    CPU_SET((size_t)here, &own);
    (void)sched_setaffinity(0, sizeof own, &own);
#endif
}

#include "sweep.h"

int main(int argc, char **argv)
{
    static simulate x;
    int code;

    simulate_defaults(&x);
    code = simulate_parse(&x, argc, argv);
    if (code >= 0) return code;
    if (!x.real) simulate_settle();
    if (x.sweep || x.csv || x.svg ||
        (x.p.strategy && (!strcmp(x.p.strategy, "all") || strchr(x.p.strategy, ','))))
        return sweep_main(argc, argv, &x);
    return simulate_run(argc, argv, NULL, NULL, NULL, &x);
}
