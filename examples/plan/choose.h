/* plan choose: predicts the step time of every strategy with its planner, and chooses a strategy for a model,
 * a network and a number of workers. plan bandwidth: computes the link rate that each strategy needs. */
#ifndef EXAMPLES_PLAN_CHOOSE_H
#define EXAMPLES_PLAN_CHOOSE_H

#include "common.h"
#include "models.h"

typedef struct choose_arguments {
    const char *program, *profile, *model, *net, *delay, *json, *svg, *draw;
    double speed, aim; /* TFLOP/s of a worker, target utilisation in percent */
    long workers, period, batch;
    int text; /* print a table in place of JSON lines */
} choose_arguments;

/* The model and the cluster. */
typedef struct choose_case {
    ddp_profile p;    /* comm_s and alpha_s are set by choose_link */
    double compute_s; /* compute time per step */
    double bytes;     /* size of all parameters */
    double delay_s;   /* one-way delay of a link */
    int workers;
} choose_case;

/* How much training differs from S-SGD, in increasing order. Of the strategies that are fast enough, the
 * first kind is preferred. */
typedef enum choose_kind { CHOOSE_EXACT, CHOOSE_AVERAGED, CHOOSE_LATE, CHOOSE_OUTER } choose_kind;

static const char *const choose_why[] = {
    "parameters are bit-identical to ssgd after each step",
    "every layer is averaged once per period, without delay",
    "parts of the gradient are applied at least one iteration late",
    "an outer optimizer averages the parameter deltas of a period",
};

typedef struct choose_entry choose_entry;

struct choose_entry {
    const char *strategy, *options; /* names and options of the trainers */
    choose_kind kind;
    int longest;  /* longest period to try. 0 means that the strategy has no period. */
    double share; /* bytes of a parameter delta, divided by its bytes in float32 */
    /* Predicts the seconds of a step. *sent receives the bytes that a worker sends per step, divided by the
     * bytes of the model. */
    ddp_status (*step)(const choose_entry *e, const choose_case *c, int period, double *step_s, double *sent,
                       ddp_error *err);
};

/* The bytes that a worker sends in an all-reduce, divided by the bytes of the model: its values of the other
 * workers' segments, and the result of its own segment. */
static double choose_all_reduce(const choose_case *c) { return 2.0 * (c->workers - 1) / c->workers; }

static double choose_comm_s(const choose_case *c)
{
    double sum = 0;
    int l;

    for (l = 0; l < c->p.layers; l++) sum += c->p.comm_s[l];
    return sum;
}

/* ssgd, wfbp and the other schemes of ddp_plan_timeline. */
static ddp_status choose_timeline(const choose_entry *e, const choose_case *c, int period, double *step_s,
                                  double *sent, ddp_error *err)
{
    ddp_timeline_options o;
    ddp_timeline t;
    ddp_profile p = c->p;
    double each = 0, all = 0;
    ddp_status s;

    (void)period;
    memset(&o, 0, sizeof o);
    p.alpha_s = 0;              /* added by ddp_timeline_exposed, as a latency */
    o.partition_params = 6.5e6; /* the default of ddp_config.gradient.partition_bytes */
    s = ddp_scheme_named(e->strategy, &o.scheme, err);
    if (o.scheme == DDP_SCHEME_WFBP || o.scheme == DDP_SCHEME_ASCWFBP) o.bucket_bytes = 26214400;
    if (s == DDP_OK) s = ddp_plan_timeline(&p, &o, &t, err);
    if (s != DDP_OK) return s;
    s = ddp_timeline_exposed(&p, &t, c->p.alpha_s, &each, &all, err);
    ddp_timeline_free(&t);
    *step_s =
        c->compute_s + (o.scheme == DDP_SCHEME_BYTESCHEDULER || o.scheme == DDP_SCHEME_USBYTE ? each : all);
    *sent = choose_all_reduce(c);
    return s;
}

/* DeFT's Preserver rejects plans that merge more than two iterations into one update, because training would
 * change too much (docs/explanation/deft.md). For such links the step is lengthened until merging two
 * iterations is enough. Plans come within a few percent of this time (ddp_delayed_plan.lower_bound_s). */
static ddp_status choose_deft(const choose_entry *e, const choose_case *c, int period, double *step_s,
                              double *sent, ddp_error *err)
{
    const double comm = choose_comm_s(c), most = 0.5;
    ddp_delayed_options o;
    ddp_delayed_plan plan;
    ddp_profile p = c->p;
    ddp_status s;

    (void)e;
    (void)period;
    memset(&o, 0, sizeof o);
    p.alpha_s = 0; /* a latency, paid once per step and added below */
    o.partition_params = 6.5e6;
    *step_s = comm * most > c->compute_s ? comm * most : c->compute_s;
    *step_s += c->p.alpha_s;
    *sent = choose_all_reduce(c) * most;
    s = ddp_plan_delayed(&p, &o, &plan, err);
    if (s == DDP_ARG || s == DDP_UNSUPPORTED) return DDP_OK; /* the link is too slow for a plan */
    if (s != DDP_OK) return s;
    if (plan.update_frequency >= most) {
        *step_s = plan.iteration_s + c->p.alpha_s;
        *sent = choose_all_reduce(c) * plan.update_frequency;
    }
    ddp_delayed_plan_free(&plan);
    return DDP_OK;
}

/* Servers on the workers: a push and a pull send as many bytes as an all-reduce. If all workers are equally
 * fast, a worker under asp, ssp and r2sp waits only for its own pull. */
static ddp_status choose_server(const choose_entry *e, const choose_case *c, int period, double *step_s,
                                double *sent, ddp_error *err)
{
    (void)e;
    (void)period;
    (void)err;
    *step_s = c->compute_s + choose_comm_s(c) + c->p.alpha_s;
    *sent = choose_all_reduce(c);
    return DDP_OK;
}

/* Late layers are sent during the compute of the next step. As many layers are late as that compute can
 * overlap. */
static ddp_status choose_osp(const choose_entry *e, const choose_case *c, int period, double *step_s,
                             double *sent, ddp_error *err)
{
    const double comm = choose_comm_s(c);
    double late = 0;
    ddp_status s = DDP_OK;

    (void)e;
    (void)period;
    if (comm > 0)
        s = ddp_osp_umax(c->bytes * c->workers / comm, 0, c->compute_s, c->workers, c->bytes, 0, &late, err);
    *step_s = c->compute_s + comm * (1 - late / c->bytes) + c->p.alpha_s;
    *sent = choose_all_reduce(c);
    return s;
}

static ddp_status choose_localsgd(const choose_entry *e, const choose_case *c, int period, double *step_s,
                                  double *sent, ddp_error *err)
{
    (void)err;
    *step_s = c->compute_s + (choose_comm_s(c) * e->share + c->p.alpha_s) / period;
    *sent = choose_all_reduce(c) * e->share / period;
    return DDP_OK;
}

static ddp_status choose_partial(const choose_entry *e, const choose_case *c, int period, double *step_s,
                                 double *sent, ddp_error *err)
{
    ddp_plan_options o;
    ddp_plan plan;
    ddp_status s;

    memset(&o, 0, sizeof o);
    o.period = period;
    o.cost = DDP_COST_WINDOW;
    o.solver = strcmp(e->strategy, "enp") ? DDP_SOLVER_SCATTER : DDP_SOLVER_ENP;
    s = ddp_plan_partial(&c->p, &o, &plan, err);
    if (s != DDP_OK) return s;
    *step_s = c->compute_s + plan.exposed_s / period;
    *sent = choose_all_reduce(c) / period;
    ddp_plan_free(&plan);
    return DDP_OK;
}

/* The transfer of a parameter delta may take the whole next period. It delays training only if the link is
 * always busy. */
static ddp_status choose_overlapped(const choose_entry *e, const choose_case *c, int period, double *step_s,
                                    double *sent, ddp_error *err)
{
    const double comm = (choose_comm_s(c) * e->share + c->p.alpha_s) / period;

    (void)err;
    *step_s = comm > c->compute_s ? comm : c->compute_s;
    *sent = choose_all_reduce(c) * e->share / period;
    return DDP_OK;
}

/* Every worker sends its top-k values to every other worker. */
static ddp_status choose_gathered(const choose_entry *e, const choose_case *c, int period, double *step_s,
                                  double *sent, ddp_error *err)
{
    (void)err;
    *sent = (c->workers - 1) * e->share / period;
    *step_s = c->compute_s + choose_comm_s(c) / choose_all_reduce(c) * *sent + c->p.alpha_s / period;
    return DDP_OK;
}

/* Ordered by kind, simpler strategies first. Shares: int4 sends 4 bits per value and a float scale per 64
 * values. sparseloco sends 64 of 4096 values with 14 bits each, and a scale (docs/explanation/diloco.md). */
static const choose_entry choose_table[] = {
    {"ssgd", "", CHOOSE_EXACT, 0, 1, choose_timeline},
    {"bsp", "--servers colocated", CHOOSE_EXACT, 0, 1, choose_server},
    {"wfbp", "", CHOOSE_EXACT, 0, 1, choose_timeline},
    {"mgwfbp", "", CHOOSE_EXACT, 0, 1, choose_timeline},
    {"ascwfbp", "", CHOOSE_EXACT, 0, 1, choose_timeline},
    {"bytescheduler", "", CHOOSE_EXACT, 0, 1, choose_timeline},
    {"usbyte", "", CHOOSE_EXACT, 0, 1, choose_timeline},
    {"localsgd", "", CHOOSE_AVERAGED, 50, 1, choose_localsgd},
    {"enp", "", CHOOSE_AVERAGED, 50, 1, choose_partial},
    {"dreamddp", "", CHOOSE_AVERAGED, 50, 1, choose_partial},
    {"deft", "", CHOOSE_LATE, 0, 1, choose_deft},
    {"osp", "--servers colocated", CHOOSE_LATE, 0, 1, choose_osp},
    {"asp", "--servers colocated", CHOOSE_LATE, 0, 1, choose_server},
    {"ssp", "--servers colocated --staleness 2", CHOOSE_LATE, 0, 1, choose_server},
    {"r2sp", "--servers colocated", CHOOSE_LATE, 0, 1, choose_server},
    {"diloco", "", CHOOSE_OUTER, 500, 1, choose_localsgd},
    {"diloco", "--overlap stream", CHOOSE_OUTER, 500, 1, choose_overlapped},
    {"diloco", "--overlap stream --wire int4", CHOOSE_OUTER, 500, 4.5 / 32, choose_overlapped},
    {"sparseloco", "", CHOOSE_OUTER, 500, (64 * 14.0 + 32) / (4096 * 32.0), choose_gathered},
};
enum { CHOOSE_ENTRIES = sizeof choose_table / sizeof choose_table[0], CHOOSE_LEVELS = 5 };
static const double choose_level[CHOOSE_LEVELS] = {50, 80, 90, 95, 99};

/* Sets the transfer times of all layers for a link of `rate` bytes per second. The direct all-reduce has two
 * one-way delays. */
static void choose_link(choose_case *c, double rate)
{
    int l;

    for (l = 0; l < c->p.layers; l++) c->p.comm_s[l] = choose_all_reduce(c) * 4 * c->p.params[l] / rate;
    c->p.alpha_s = 2 * c->delay_s;
}

static ddp_status choose_utilisation(const choose_entry *e, choose_case *c, double rate, int period,
                                     double *out, ddp_error *err)
{
    double step = 0, sent = 0;
    ddp_status s;

    choose_link(c, rate);
    s = e->step(e, c, period, &step, &sent, err);
    *out = step > 0 ? 100 * c->compute_s / step : 100;
    return s;
}

/* Finds the slowest link, in bytes per second and to within 1 %, that gives a utilisation of `level` percent.
 * *out is DBL_MAX if no rate is enough, because of the delay. */
static ddp_status choose_rate(const choose_entry *e, choose_case *c, int period, double level, double *out,
                              ddp_error *err)
{
    double low = 1, high = 1e12, have = 0;
    ddp_status s = choose_utilisation(e, c, high, period, &have, err);

    *out = DBL_MAX;
    if (s != DDP_OK || have < level) return s;
    while (s == DDP_OK && high > 1.01 * low) {
        const double middle = sqrt(low * high);
        s = choose_utilisation(e, c, middle, period, &have, err);
        if (have >= level)
            high = middle;
        else
            low = middle;
    }
    *out = high;
    return s;
}

typedef struct choose_answer {
    int period; /* 0 if the strategy has no period */
    int rank;   /* 1 is the best strategy */
    double step_s, sent, utilisation, rate[CHOOSE_LEVELS];
} choose_answer;

/* Chooses the shortest of the usual periods that reaches the target utilisation, else the longest one. */
static ddp_status choose_period(const choose_entry *e, choose_case *c, const choose_arguments *a, double rate,
                                int *out, ddp_error *err)
{
    static const int usual[] = {2, 5, 10, 20, 50, 100, 200, 500};
    double have = 0;
    ddp_status s = DDP_OK;
    size_t i;

    *out = e->longest ? (int)a->period : 0;
    if (!e->longest || a->period) return s;
    for (i = 0; i < sizeof usual / sizeof usual[0] && usual[i] <= e->longest && s == DDP_OK && have < a->aim;
         i++)
        s = choose_utilisation(e, c, rate, *out = usual[i], &have, err);
    return s;
}

/* Fills the answer for one strategy. With rate 0 no link is given, and only the required link rates are
 * computed. */
static ddp_status choose_answer_of(const choose_entry *e, choose_case *c, const choose_arguments *a,
                                   double rate, choose_answer *out, ddp_error *err)
{
    ddp_status s = DDP_OK;
    int i;

    if (rate > 0)
        s = choose_period(e, c, a, rate, &out->period, err);
    else if (e->longest)
        out->period = a->period ? (int)a->period : e->kind == CHOOSE_OUTER ? 50 : 5;
    for (i = 0; i < CHOOSE_LEVELS && s == DDP_OK; i++)
        s = choose_rate(e, c, out->period, choose_level[i], &out->rate[i], err);
    if (!(rate > 0)) return s;
    if (s == DDP_OK) s = choose_utilisation(e, c, rate, out->period, &out->utilisation, err);
    if (s == DDP_OK) s = e->step(e, c, out->period, &out->step_s, &out->sent, err);
    return s;
}

/* Returns a value below 0 if a is better: it has a shorter step or, if no link is given, needs a lower rate
 * for 90 % utilisation. If no rate gives 90 % under both, compares the rates for 80 %, then 50 %. */
static int choose_order(const choose_answer *a, const choose_answer *b)
{
    int k;

    if (a->step_s != b->step_s) return a->step_s < b->step_s ? -1 : 1;
    if (a->step_s > 0) return 0;
    for (k = 2; k > 0 && a->rate[k] == b->rate[k]; k--) {
    }
    return a->rate[k] < b->rate[k] ? -1 : a->rate[k] > b->rate[k];
}

/* Ranks the strategies. If two strategies are equal, the strategy that differs less from S-SGD is better. */
static void choose_rank(choose_answer *r)
{
    int i, k;

    for (i = 0; i < CHOOSE_ENTRIES; i++) {
        r[i].rank = 1;
        for (k = 0; k < CHOOSE_ENTRIES; k++) {
            const int order = choose_order(&r[k], &r[i]);
            r[i].rank += order < 0 || (order == 0 && k < i);
        }
    }
}

/* Writes the options that a trainer needs in addition to --strategy. */
static void choose_options(FILE *f, const choose_entry *e, const choose_answer *r)
{
    fprintf(f, "\"options\": \"%s", e->options);
    if (r->period) fprintf(f, "%s--period %d", e->options[0] ? " " : "", r->period);
    fprintf(f, "\", ");
}

static void choose_json(FILE *f, const choose_entry *e, const choose_case *c, const choose_answer *r,
                        int event)
{
    int i;

    fprintf(f, "{%s\"strategy\": \"%s\", ", event ? "\"event\": \"prediction\", " : "", e->strategy);
    choose_options(f, e, r);
    if (r->step_s > 0)
        fprintf(f, "\"step_ms\": %.6g, \"utilisation_pct\": %.4g, \"bytes_per_step\": %.6g, ",
                1e3 * r->step_s, r->utilisation, r->sent * c->bytes);
    fprintf(f, "\"rank\": %d, \"mbit_for_pct\": {", r->rank);
    for (i = 0; i < CHOOSE_LEVELS; i++) {
        fprintf(f, "%s\"%g\": ", i ? ", " : "", choose_level[i]);
        if (r->rate[i] < DBL_MAX)
            fprintf(f, "%.3g", 8e-6 * r->rate[i]);
        else
            fputs("null", f);
    }
    fprintf(f, "}}\n");
}

/* Prints the required rate in Mbit/s, or - if no rate is enough. */
static void choose_cell(FILE *f, double rate)
{
    if (rate < DBL_MAX)
        fprintf(f, "%10.3g", 8e-6 * rate);
    else
        fprintf(f, "%10s", "-");
}

/* Prints a row for each strategy, the best first. */
static void choose_table_text(FILE *f, const choose_case *c, const choose_answer *r)
{
    const int steps = r[0].step_s > 0;
    int rank, i, k;

    fprintf(f, "%*s\n%-15s%-34s%6s", steps ? 136 : 105, "Mbit/s for this utilisation", "strategy", "options",
            "H");
    if (steps) fprintf(f, "%10s%12s%9s", "step ms", "computing %", "MB/step");
    for (k = 0; k < CHOOSE_LEVELS; k++) fprintf(f, "%8g %%", choose_level[k]);
    fputc('\n', f);
    for (rank = 1; rank <= CHOOSE_ENTRIES; rank++) {
        for (i = 0; r[i].rank != rank; i++) {
        }
        fprintf(f, "%-15s%-34s", choose_table[i].strategy, choose_table[i].options);
        if (r[i].period)
            fprintf(f, "%6d", r[i].period);
        else
            fprintf(f, "%6s", "-");
        if (steps)
            fprintf(f, "%10.4g%12.3g%9.3g", 1e3 * r[i].step_s, r[i].utilisation, 1e-6 * r[i].sent * c->bytes);
        for (k = 0; k < CHOOSE_LEVELS; k++) choose_cell(f, r[i].rate[k]);
        fputc('\n', f);
    }
}

static int choose_is_better(const choose_answer *a, const choose_answer *than)
{
    const int half = a->period > 0 && 2 * a->period <= than->period;

    return a->step_s < (half ? 1.01 : 0.99) * than->step_s;
}

/* Returns the fastest strategy of the first kind that reaches the target utilisation. If two step times
 * differ by less than 1 %, a strategy with at most half the period is better, else the simpler one. If no
 * strategy reaches the target, returns the fastest one. */
static int choose_best(const choose_answer *r, double aim)
{
    int best = -1, i;

    for (i = 0; i < CHOOSE_ENTRIES; i++) {
        if (r[i].utilisation < aim) continue;
        if (best >= 0 && choose_table[i].kind != choose_table[best].kind) break;
        if (best < 0 || choose_is_better(&r[i], &r[best])) best = i;
    }
    for (i = 0; i < CHOOSE_ENTRIES && r[best < 0 ? 0 : best].utilisation < aim; i++)
        if (best < 0 || choose_is_better(&r[i], &r[best])) best = i;
    return best;
}

static void choose_because(FILE *f, const choose_answer *r, double aim, int best)
{
    const char *why = choose_why[choose_table[best].kind];

    if (r[best].utilisation < aim)
        fprintf(f, "no strategy reaches a utilisation of %g %% on this link; this one is the fastest: %s",
                aim, why);
    else
        fprintf(f, "closest to S-SGD of the strategies with a utilisation of at least %g %%: %s", aim, why);
}

static void choose_say(FILE *f, const choose_answer *r, double aim, int event)
{
    const int best = choose_best(r, aim);
    const choose_entry *e = &choose_table[best];

    fprintf(f, "{%s\"choose\": \"%s\", ", event ? "\"event\": \"choice\", " : "", e->strategy);
    choose_options(f, e, &r[best]);
    fprintf(f, "\"step_ms\": %.6g, \"utilisation_pct\": %.4g, \"because\": \"", 1e3 * r[best].step_s,
            r[best].utilisation);
    choose_because(f, r, aim, best);
    fprintf(f, "\"}\n");
}

static void choose_say_text(FILE *f, const choose_answer *r, double aim)
{
    const int best = choose_best(r, aim);

    fprintf(f, "\nchoose --strategy %s %s", choose_table[best].strategy, choose_table[best].options);
    if (r[best].period) fprintf(f, "%s--period %d", choose_table[best].options[0] ? " " : "", r[best].period);
    fprintf(f, "\n");
    choose_because(f, r, aim, best);
    fputc('\n', f);
}

/* ---- chart: utilisation by link rate ---- */

enum { CHOOSE_POINTS = 61, CHOOSE_LEFT = 64, CHOOSE_TOP = 64, CHOOSE_WIDE = 620, CHOOSE_HIGH = 360 };

typedef struct choose_picture {
    FILE *f;
    double low, high; /* rates in bytes per second */
    int curves;
} choose_picture;

static double choose_x(const choose_picture *v, double rate)
{
    return (double)CHOOSE_LEFT + (double)CHOOSE_WIDE * log(rate / v->low) / log(v->high / v->low);
}

static double choose_y(double utilisation)
{
    return (double)CHOOSE_TOP + (double)CHOOSE_HIGH * (1 - utilisation / 100);
}

static void choose_axes(const choose_picture *v, double rate)
{
    double decade;
    int level;

    for (level = 0; level <= 100; level += 25)
        fprintf(v->f,
                "<path d=\"M%d %.1fh%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d %%"
                "</text>\n",
                CHOOSE_LEFT, choose_y(level), CHOOSE_WIDE, CHOOSE_LEFT - 8, choose_y(level) + 4, level);
    for (decade = 1e6; 0.99 * decade <= 8 * v->high; decade *= 10) {
        if (decade < 7.9 * v->low) continue;
        fprintf(
            v->f,
            "<path d=\"M%.1f %dv%d\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g %s"
            "</text>\n",
            choose_x(v, decade / 8), CHOOSE_TOP, CHOOSE_HIGH, choose_x(v, decade / 8),
            CHOOSE_TOP + CHOOSE_HIGH + 18, decade < 1e9 ? decade * 1e-6 : decade * 1e-9,
            decade < 1e9 ? "Mbit/s" : "Gbit/s");
    }
    if (rate >= v->low && rate <= v->high)
        fprintf(v->f,
                "<path d=\"M%.1f %dv%d\" stroke=\"#b3261e\" stroke-dasharray=\"4 3\"><title>the link of --net"
                "</title></path>\n",
                choose_x(v, rate), CHOOSE_TOP, CHOOSE_HIGH);
}

/* Returns 1 if a list "A,B,.." names entry e, by its strategy or by its strategy and options. */
static int choose_named(const char *list, const choose_entry *e)
{
    const size_t name = strlen(e->strategy), options = strlen(e->options);
    size_t n;

    for (; list && *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        if (n == name && !strncmp(list, e->strategy, n)) return 1;
        if (n == name + 1 + options && !strncmp(list, e->strategy, name) && list[name] == ' ' &&
            !strncmp(list + name + 1, e->options, options))
            return 1;
    }
    return !list;
}

/* Draws the curve of a strategy, and its name in row `row` of the list on the right. Up to 8 curves get
 * colours that are easy to distinguish. */
static ddp_status choose_curve(choose_picture *v, int i, int row, choose_case *c, const choose_answer *r,
                               ddp_error *err)
{
    static const char *const dash[] = {"", " stroke-dasharray=\"8 3\"", " stroke-dasharray=\"3 3\"",
                                       " stroke-dasharray=\"10 3 2 3\""};
    static const char *const clear[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                        "#b08a00", "#333333", "#56b4e9", "#7f3fbf"};
    const choose_entry *e = &choose_table[i];
    char colour[24];
    double have = 0;
    ddp_status s = DDP_OK;
    int k;

    if (v->curves <= (int)(sizeof clear / sizeof clear[0]))
        snprintf(colour, sizeof colour, "%s", clear[row]);
    else
        snprintf(colour, sizeof colour, "hsl(%d,65%%,%d%%)", 360 * i / CHOOSE_ENTRIES, i % 2 ? 55 : 40);
    fprintf(v->f, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s d=\"", colour, dash[e->kind]);
    for (k = 0; k < CHOOSE_POINTS && s == DDP_OK; k++) {
        const double rate = v->low * pow(v->high / v->low, (double)k / (double)(CHOOSE_POINTS - 1));
        s = choose_utilisation(e, c, rate, r->period, &have, err);
        fprintf(v->f, "%c%.1f %.1f", k ? 'L' : 'M', choose_x(v, rate), choose_y(have));
    }
    fprintf(v->f, "\"><title>%s %s", e->strategy, e->options);
    if (r->period) fprintf(v->f, " --period %d", r->period);
    fprintf(v->f, "</title></path>\n<path stroke=\"%s\" stroke-width=\"2\"%s d=\"M%d %dh24\"/>", colour,
            dash[e->kind], CHOOSE_LEFT + CHOOSE_WIDE + 14, CHOOSE_TOP + 2 + row * 19);
    fprintf(v->f, "<text x=\"%d\" y=\"%d\" fill=\"%s\">%s", CHOOSE_LEFT + CHOOSE_WIDE + 44,
            CHOOSE_TOP + 6 + row * 19, colour, e->strategy);
    if (r->period) fprintf(v->f, " H=%d", r->period);
    fprintf(v->f, " %s</text>\n", e->kind == CHOOSE_OUTER ? e->options : "");
    return s;
}

static ddp_status choose_svg(FILE *f, choose_case *c, const choose_answer *r, const char *draw, double rate,
                             ddp_error *err)
{
    choose_picture v;
    ddp_status s = DDP_OK;
    int i, row = 0;

    memset(&v, 0, sizeof v);
    v.f = f;
    v.low = 125e3;
    v.high = 12.5e9; /* 1 Mbit/s to 100 Gbit/s */
    for (i = 0; i < CHOOSE_ENTRIES; i++) v.curves += choose_named(draw, &choose_table[i]);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"980\" height=\"480\" viewBox=\"0 0 980 480\" "
            "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\">Share of a step that %d workers "
            "spend computing</text>\n<text x=\"12\" y=\"44\">%.4g MB of parameters, %.4g ms of "
            "computing in a step, %.4g ms of delay in one direction; solid lines: bit-identical to ssgd%s"
            "</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">rate of each worker's link</text>\n",
            c->workers, c->bytes * 1e-6, 1e3 * c->compute_s, 1e3 * c->delay_s,
            rate > 0 ? "; red: the link of --net" : "", CHOOSE_LEFT + CHOOSE_WIDE / 2,
            CHOOSE_TOP + CHOOSE_HIGH + 40);
    choose_axes(&v, rate);
    for (i = 0; i < CHOOSE_ENTRIES && s == DDP_OK; i++)
        if (choose_named(draw, &choose_table[i])) s = choose_curve(&v, i, row++, c, &r[i], err);
    fprintf(f, "</svg>\n");
    return s;
}

/* ---- model and cluster ---- */

/* Makes a profile of a model. A layer has the operators of one module. Its backward time is twice its forward
 * time. */
static ddp_status choose_model(const choose_arguments *a, ddp_profile *p, ddp_error *err)
{
    const double seconds_per_flop = 1e-12 / a->speed;
    ddp_oplist list;
    int i, l = -1, last = -1, rows = 0, code = plan_model_oplist(a->model, a->batch, &list, err);

    if (code) return (ddp_status)code;
    for (i = 0; i < list.count; i++)
        rows += i == 0 || list.op[i].module == 0 || list.op[i].module != list.op[i - 1].module;
    if (ddp_profile_new(rows, p, err) != DDP_OK) rows = 0;
    for (i = 0; i < list.count && rows; i++) {
        const ddp_oplist_entry *op = &list.op[i];
        if (l < 0 || op->module == 0 || op->module != last) l++;
        last = op->module;
        p->params[l] += op->param_bytes / 4;
        p->forward_s[l] += op->flops * seconds_per_flop;
        p->backward_s[l] += 2 * op->flops * seconds_per_flop;
    }
    ddp_oplist_free(&list);
    return rows ? DDP_OK : err->code;
}

static ddp_status choose_read(const choose_arguments *a, choose_case *c, ddp_error *err)
{
    const ddp_link any = {0, 1}; /* comm_s is set by choose_link */
    ddp_status s = a->model ? choose_model(a, &c->p, err) : ddp_profile_read(a->profile, &any, &c->p, err);
    int l;

    for (l = 0; s == DDP_OK && l < c->p.layers; l++) {
        c->compute_s += c->p.backward_s[l] + (c->p.forward_s ? c->p.forward_s[l] : 0);
        c->bytes += c->p.params ? 4 * c->p.params[l] : 0;
    }
    if (s == DDP_OK && !(c->bytes > 0 && c->compute_s > 0)) {
        snprintf(err->msg, sizeof err->msg,
                 "%s: the columns params, forward_s and backward_s are needed, with values above 0",
                 a->model ? a->model : a->profile);
        return err->code = DDP_ARG;
    }
    return s;
}

static int choose_run(const choose_arguments *a, choose_case *c, double rate)
{
    choose_answer r[CHOOSE_ENTRIES];
    plan_output out;
    ddp_error err;
    ddp_status s = DDP_OK;
    int i;

    memset(r, 0, sizeof r);
    if (!plan_output_open(&out, a->program)) return 1;
    for (i = 0; i < CHOOSE_ENTRIES && s == DDP_OK; i++)
        s = choose_answer_of(&choose_table[i], c, a, rate, &r[i], &err);
    if (s == DDP_OK) choose_rank(r);
    for (i = 0; i < CHOOSE_ENTRIES && s == DDP_OK; i++) {
        if (!a->text) choose_json(out.line, &choose_table[i], c, &r[i], 0);
        choose_json(out.json, &choose_table[i], c, &r[i], 1);
    }
    if (s == DDP_OK && a->text) choose_table_text(out.line, c, r);
    if (s == DDP_OK && rate > 0) {
        if (a->text)
            choose_say_text(out.line, r, a->aim);
        else
            choose_say(out.line, r, a->aim, 0);
        choose_say(out.json, r, a->aim, 1);
    }
    if (s == DDP_OK && a->svg) s = choose_svg(out.svg, c, r, a->draw, rate, &err);
    if (s != DDP_OK) fprintf(stderr, "%s: %s\n", a->program, err.msg);
    return plan_output_close(&out, a->program, s, a->json, a->svg);
}

/* Checks the options. Returns -1, or the exit code after printing an error. */
static int choose_mistake(choose_arguments *a)
{
    const char *me = a->program;
    int code;

    if (!a->profile == !a->model) return plan_usage(me, "either --profile or %s is needed", "--model");
    if (a->model && !plan_given(a->speed))
        return plan_usage(me, "--model needs %s, the rate of a worker", "--speed TFLOPS");
    if (a->model && !(a->speed > 0)) return plan_refuse(me, "--speed", a->speed, "above 0");
    if (a->profile && plan_given(a->speed))
        return plan_usage(me, "--profile and %s cannot be combined", "--speed");
    code = plan_count(me, "--workers", "N", a->workers, 2, 1000000);
    if (code >= 0) return code;
    if (a->batch == 0)
        return plan_refuse(me, "--batch", 0, "at least 1; leave it out for the default of the model");
    if (a->period == 0)
        return plan_refuse(me, "--period", 0,
                           "at least 1; leave it out for the period that each strategy needs");
    if (a->batch < 0) a->batch = 0;
    if (a->period < 0) a->period = 0;
    if (a->period > 1000000) return plan_refuse(me, "--period", (double)a->period, "at most 1000000");
    if (!(a->aim > 0 && a->aim < 100))
        return plan_refuse(me, "--utilisation", a->aim, "above 0 and below 100");
    if (a->draw) {
        int drawn = 0, i;
        for (i = 0; i < CHOOSE_ENTRIES; i++) drawn += choose_named(a->draw, &choose_table[i]);
        if (!drawn) return plan_usage(me, "--draw %.60s names no strategy", a->draw);
    }
    return -1;
}

/* Prints the answer. With rate 0 no link is given. */
static int choose_tell(const choose_arguments *a, double rate, double delay)
{
    choose_case c;
    ddp_error err;
    int code;

    memset(&c, 0, sizeof c);
    memset(&err, 0, sizeof err);
    c.workers = (int)a->workers;
    c.delay_s = delay;
    if (choose_read(a, &c, &err) != DDP_OK) {
        fprintf(stderr, "%s: %s\n", a->program, err.msg);
        code = ddp_status_exit_code(err.code);
    } else {
        code = choose_run(a, &c, rate);
    }
    ddp_profile_free(&c.p);
    return code;
}

#define CHOOSE_OPTIONS(a)                                                                               \
    {"Model", CLI_GROUP, NULL, NULL, NULL},                                                             \
        {"--profile", CLI_TEXT, &(a).profile, "P.csv", "profile of the layers; comm_s is not used"},    \
        {"--model", CLI_TEXT, &(a).model, "NAME",                                                       \
         "in place of --profile: name of a model, as for `plan fence`; needs --speed"},                 \
        {"--speed", CLI_REAL, &(a).speed, "TFLOPS", "rate of a worker in 10^12 operations per second"}, \
        {"--batch", CLI_COUNT, &(a).batch, "N", "samples per step (default: 3 to 128, by model)"},      \
        {"Cluster", CLI_GROUP, NULL, NULL, NULL},                                                       \
    {                                                                                                   \
        "--workers", CLI_COUNT, &(a).workers, "N", "number of workers, at least 2"                      \
    }
#define CHOOSE_OUTPUT(a)                                                                                   \
    {"Output", CLI_GROUP, NULL, NULL, NULL},                                                               \
        {"--text", CLI_FLAG, &(a).text, "", "print a table, best strategy first, in place of JSON lines"}, \
        {"--svg", CLI_TEXT, &(a).svg, "FILE", "chart of utilisation by link rate"},                        \
        {"--draw", CLI_TEXT, &(a).draw, "A,B,..",                                                          \
         "strategies in the chart, each with or without its options (default: all)"},                      \
    {                                                                                                      \
        "--json", CLI_TEXT, &(a).json, "FILE", "file for the JSON lines, which are also printed"           \
    }

static choose_arguments choose_defaults(const char *program)
{
    choose_arguments a;

    memset(&a, 0, sizeof a);
    a.program = program;
    a.speed = PLAN_NOT_GIVEN;
    a.aim = 90;
    a.period = a.batch = a.workers = -1;
    return a;
}

static int plan_choose(int argc, char **argv)
{
    static const char about[] =
        "Chooses a strategy for a model, a network and a number of workers. Prints for each strategy:\n"
        "the predicted step time, the utilisation (share of the step that is compute), the bytes sent\n"
        "per worker, the rank by step time, and the link rate for a utilisation of 50, 80, 90, 95 and\n"
        "99 %. The last line is the choice.";
    choose_arguments a = choose_defaults("plan choose");
    const cli_option table[] = {
        CHOOSE_OPTIONS(a),
        {"--net", CLI_TEXT, &a.net, "RATE,DELAY", "link of each worker, such as 100mbit,20ms"},
        {"--period", CLI_COUNT, &a.period, "H",
         "steps between averages (default: as many as each strategy needs)"},
        {"--utilisation", CLI_REAL, &a.aim, "PCT", "target utilisation, in percent (default: 90)"},
        CHOOSE_OUTPUT(a),
    };
    int code = cli_parse(argc, argv, about, table, (int)(sizeof table / sizeof table[0]));
    ddp_error err;
    double rate = 0, delay = 0;

    if (code < 0) code = choose_mistake(&a);
    if (code >= 0) return code;
    if (!a.net) return plan_usage(a.program, "%s is needed", "--net RATE,DELAY");
    if (ddp_net_parse(a.net, &rate, &delay, &err) != DDP_OK) return plan_usage(a.program, "%s", err.msg);
    if (!(rate > 0)) return plan_usage(a.program, "--net needs a %s above 0", "rate");
    return choose_tell(&a, rate, delay);
}

static int plan_bandwidth(int argc, char **argv)
{
    static const char about[] =
        "Computes how fast links must be. Prints for each strategy the link rate in Mbit/s for a\n"
        "utilisation (share of the step that is compute) of 50, 80, 90, 95 and 99 %, and its rank by\n"
        "the rate for 90 %. null or - means that no rate is enough, because of the delay.";
    choose_arguments a = choose_defaults("plan bandwidth");
    const cli_option table[] = {
        CHOOSE_OPTIONS(a),
        {"--delay", CLI_TEXT, &a.delay, "TIME",
         "delay of a link in one direction, such as 20ms (default: 0)"},
        {"--period", CLI_COUNT, &a.period, "H",
         "steps between averages (default: 5; 50 for outer optimizers)"},
        CHOOSE_OUTPUT(a),
    };
    int code = cli_parse(argc, argv, about, table, (int)(sizeof table / sizeof table[0]));
    char net[80]; /* parsed like --net, with an arbitrary rate */
    double any = 0, delay = 0;

    if (code < 0) code = choose_mistake(&a);
    if (code >= 0) return code;
    snprintf(net, sizeof net, "1gbit,%.60s", a.delay ? a.delay : "0ms");
    if (ddp_net_parse(net, &any, &delay, NULL) != DDP_OK)
        return plan_usage(a.program, "--delay %s is not a time such as 20ms", a.delay);
    return choose_tell(&a, 0, delay);
}

#endif /* EXAMPLES_PLAN_CHOOSE_H */
