/* plan choose: predicts the step time of every strategy with its planner, and chooses a strategy for a model,
 * a network and a number of workers. plan bandwidth: computes the link rate that each strategy needs. */
#ifndef EXAMPLES_PLAN_CHOOSE_H
#define EXAMPLES_PLAN_CHOOSE_H

#include "choose_auto.h"
#include "common.h"
#include "models.h"

typedef struct choose_arguments {
    const char *program, *profile, *model, *net, *delay, *json, *svg, *draw, *losses;
    double speed, aim; /* TFLOP/s of a worker, target utilisation in percent */
    double budget;     /* largest relative loss increase of strategy auto */
    long workers, period, batch, steps;
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

typedef struct choose_entry {
    const char *strategy, *options; /* names and options of the trainers */
    int longest;                    /* longest period to try. 0 means that the strategy has no period. */
    int stream;                     /* members of ddp_candidate */
    ddp_coding coding;
} choose_entry;

/* Ordered by kind, simpler strategies first. Of the strategies that are fast enough, the first kind is
 * preferred. */
static const choose_entry choose_table[] = {
    {"ssgd", "", 0, 0, DDP_AS_FLOAT},
    {"bsp", "--servers colocated", 0, 0, DDP_AS_FLOAT},
    {"wfbp", "", 0, 0, DDP_AS_FLOAT},
    {"mgwfbp", "", 0, 0, DDP_AS_FLOAT},
    {"ascwfbp", "", 0, 0, DDP_AS_FLOAT},
    {"bytescheduler", "", 0, 0, DDP_AS_FLOAT},
    {"usbyte", "", 0, 0, DDP_AS_FLOAT},
    {"localsgd", "", 50, 0, DDP_AS_FLOAT},
    {"enp", "", 50, 0, DDP_AS_FLOAT},
    {"dreamddp", "", 50, 0, DDP_AS_FLOAT},
    {"deft", "", 0, 0, DDP_AS_FLOAT},
    {"osp", "--servers colocated", 0, 0, DDP_AS_FLOAT},
    {"asp", "--servers colocated", 0, 0, DDP_AS_FLOAT},
    {"ssp", "--servers colocated --staleness 2", 0, 0, DDP_AS_FLOAT},
    {"r2sp", "--servers colocated", 0, 0, DDP_AS_FLOAT},
    {"diloco", "", 500, 0, DDP_AS_FLOAT},
    {"diloco", "--overlap stream", 500, 1, DDP_AS_FLOAT},
    {"diloco", "--overlap stream --wire int4", 500, 1, DDP_AS_INT4},
    {"sparseloco", "", 500, 0, DDP_AS_FLOAT},
};
enum { CHOOSE_ENTRIES = sizeof choose_table / sizeof choose_table[0], CHOOSE_LEVELS = 5 };
static const double choose_level[CHOOSE_LEVELS] = {50, 80, 90, 95, 99};

static ddp_result_kind choose_kind(const choose_entry *e)
{
    ddp_result_kind kind = DDP_RESULT_OUTER;

    (void)ddp_result_of(e->strategy, &kind, NULL);
    return kind;
}

/* Sets the transfer times of all layers for a link of `rate` bytes per second. */
static void choose_link(choose_case *c, double rate)
{
    const ddp_link link = ddp_link_average(rate, c->delay_s, c->workers);
    int l;

    for (l = 0; l < c->p.layers; l++) c->p.comm_s[l] = link.beta_s * 4 * c->p.params[l];
    c->p.alpha_s = link.alpha_s;
}

static ddp_status choose_predict(const choose_entry *e, choose_case *c, double rate, int period,
                                 ddp_prediction *out, ddp_error *err)
{
    ddp_candidate x;

    memset(&x, 0, sizeof x);
    x.strategy = e->strategy;
    x.stream = e->stream;
    x.period = period;
    x.coding = e->coding;
    choose_link(c, rate);
    return ddp_predict_step(&c->p, c->workers, &x, out, err);
}

static ddp_status choose_utilisation(const choose_entry *e, choose_case *c, double rate, int period,
                                     double *out, ddp_error *err)
{
    ddp_prediction made;
    ddp_status s = choose_predict(e, c, rate, period, &made, err);

    *out = s == DDP_OK ? 100 * made.compute_s / made.step_s : 0;
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
    double step_s, sent_bytes, utilisation, rate[CHOOSE_LEVELS];
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
    ddp_prediction made;
    ddp_status s = DDP_OK;
    int i;

    if (rate > 0)
        s = choose_period(e, c, a, rate, &out->period, err);
    else if (e->longest)
        out->period = a->period ? (int)a->period : choose_kind(e) == DDP_RESULT_OUTER ? 50 : 5;
    for (i = 0; i < CHOOSE_LEVELS && s == DDP_OK; i++)
        s = choose_rate(e, c, out->period, choose_level[i], &out->rate[i], err);
    if (!(rate > 0)) return s;
    if (s == DDP_OK) s = choose_predict(e, c, rate, out->period, &made, err);
    if (s != DDP_OK) return s;
    out->step_s = made.step_s;
    out->sent_bytes = made.sent_bytes;
    out->utilisation = 100 * made.compute_s / made.step_s;
    return DDP_OK;
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

static void choose_json(FILE *f, const choose_entry *e, const choose_answer *r, int event)
{
    int i;

    fprintf(f, "{%s\"strategy\": \"%s\", ", event ? "\"event\": \"prediction\", " : "", e->strategy);
    choose_options(f, e, r);
    if (r->step_s > 0)
        fprintf(f, "\"step_ms\": %.6g, \"utilisation_pct\": %.4g, \"bytes_per_step\": %.6g, ",
                1e3 * r->step_s, r->utilisation, r->sent_bytes);
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
static void choose_table_text(FILE *f, const choose_answer *r)
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
            fprintf(f, "%10.4g%12.3g%9.3g", 1e3 * r[i].step_s, r[i].utilisation, 1e-6 * r[i].sent_bytes);
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
        if (best >= 0 && choose_kind(&choose_table[i]) != choose_kind(&choose_table[best])) break;
        if (best < 0 || choose_is_better(&r[i], &r[best])) best = i;
    }
    for (i = 0; i < CHOOSE_ENTRIES && r[best < 0 ? 0 : best].utilisation < aim; i++)
        if (best < 0 || choose_is_better(&r[i], &r[best])) best = i;
    return best;
}

static void choose_because(FILE *f, const choose_answer *r, double aim, int best)
{
    const char *why = ddp_result_reason(choose_kind(&choose_table[best]));

    if (r[best].utilisation < aim)
        fprintf(f, "no strategy reaches a utilisation of %g %% on this link; this one is the fastest: %s",
                aim, why);
    else
        fprintf(f, "closest to S-SGD of the strategies with a utilisation of at least %g %%: %s", aim, why);
}

static void choose_say(FILE *f, const choose_answer *r, double aim, const ddp_choice *by_loss, int event)
{
    const int best = choose_best(r, aim);
    const choose_entry *e = &choose_table[best];

    fprintf(f, "{%s\"choose\": \"%s\", ", event ? "\"event\": \"choice\", " : "", e->strategy);
    choose_options(f, e, &r[best]);
    fprintf(f, "\"step_ms\": %.6g, \"utilisation_pct\": %.4g, \"because\": \"", 1e3 * r[best].step_s,
            r[best].utilisation);
    choose_because(f, r, aim, best);
    fputs("\", ", f);
    choose_auto(f, by_loss, event);
    fputs("}\n", f);
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
    fprintf(v->f, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s d=\"", colour,
            dash[(int)choose_kind(e)]);
    for (k = 0; k < CHOOSE_POINTS && s == DDP_OK; k++) {
        const double rate = v->low * pow(v->high / v->low, (double)k / (double)(CHOOSE_POINTS - 1));
        s = choose_utilisation(e, c, rate, r->period, &have, err);
        fprintf(v->f, "%c%.1f %.1f", k ? 'L' : 'M', choose_x(v, rate), choose_y(have));
    }
    fprintf(v->f, "\"><title>%s %s", e->strategy, e->options);
    if (r->period) fprintf(v->f, " --period %d", r->period);
    fprintf(v->f, "</title></path>\n<path stroke=\"%s\" stroke-width=\"2\"%s d=\"M%d %dh24\"/>", colour,
            dash[(int)choose_kind(e)], CHOOSE_LEFT + CHOOSE_WIDE + 14, CHOOSE_TOP + 2 + row * 19);
    fprintf(v->f, "<text x=\"%d\" y=\"%d\" fill=\"%s\">%s", CHOOSE_LEFT + CHOOSE_WIDE + 44,
            CHOOSE_TOP + 6 + row * 19, colour, e->strategy);
    if (r->period) fprintf(v->f, " H=%d", r->period);
    fprintf(v->f, " %s</text>\n", choose_kind(e) == DDP_RESULT_OUTER ? e->options : "");
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

/* Chooses as strategy auto does. */
static ddp_status choose_by_loss(const choose_arguments *a, const choose_case *c, double rate,
                                 ddp_choice *out, ddp_error *err)
{
    ddp_choice_options o;
    ddp_loss_table losses;
    ddp_status s = DDP_OK;

    memset(&o, 0, sizeof o);
    memset(&losses, 0, sizeof losses);
    o.profile = &c->p;
    o.workers = c->workers;
    o.rate = rate;
    o.delay_s = c->delay_s;
    o.period = (int)a->period;
    o.steps = (double)a->steps;
    o.loss_budget = a->budget > 0 ? a->budget : DDP_LOSS_EXACT;
    if (a->losses) s = ddp_loss_table_read(a->losses, &losses, err);
    if (a->losses) o.losses = &losses;
    if (s == DDP_OK) s = ddp_choose(&o, out, err);
    ddp_loss_table_free(&losses);
    return s;
}

static int choose_run(const choose_arguments *a, choose_case *c, double rate)
{
    choose_answer r[CHOOSE_ENTRIES];
    ddp_choice by_loss;
    plan_output out;
    ddp_error err;
    ddp_status s = DDP_OK;
    int i;

    memset(r, 0, sizeof r);
    memset(&by_loss, 0, sizeof by_loss);
    if (!plan_output_open(&out, a->program)) return 1;
    for (i = 0; i < CHOOSE_ENTRIES && s == DDP_OK; i++)
        s = choose_answer_of(&choose_table[i], c, a, rate, &r[i], &err);
    if (s == DDP_OK) choose_rank(r);
    if (s == DDP_OK && rate > 0) s = choose_by_loss(a, c, rate, &by_loss, &err);
    for (i = 0; i < CHOOSE_ENTRIES && s == DDP_OK; i++) {
        if (!a->text) choose_json(out.line, &choose_table[i], &r[i], 0);
        choose_json(out.json, &choose_table[i], &r[i], 1);
    }
    if (s == DDP_OK && a->text) choose_table_text(out.line, r);
    if (s == DDP_OK && rate > 0) {
        if (a->text) {
            choose_say_text(out.line, r, a->aim);
            choose_auto_text(out.line, &by_loss);
        } else {
            choose_say(out.line, r, a->aim, &by_loss, 0);
        }
        choose_say(out.json, r, a->aim, &by_loss, 1);
    }
    if (s == DDP_OK && a->svg) s = choose_svg(out.svg, c, r, a->draw, rate, &err);
    ddp_choice_free(&by_loss);
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
    if (!(a->budget >= 0 && a->budget <= 1))
        return plan_refuse(me, "--loss-budget", a->budget, "from 0 to 1");
    if (a->steps < 1 || a->steps > 1000000000)
        return plan_refuse(me, "--steps", (double)a->steps, "from 1 to 1000000000");
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
    a.budget = 0.05;
    a.steps = 1000;
    a.period = a.batch = a.workers = -1;
    return a;
}

static int plan_choose(int argc, char **argv)
{
    static const char about[] =
        "Chooses a strategy for a model, a network and a number of workers. Prints for each strategy:\n"
        "the predicted step time, the utilisation (share of the step that is compute), the bytes sent\n"
        "per worker, the rank by step time, and the link rate for a utilisation of 50, 80, 90, 95 and\n"
        "99 %. The last line is the choice, with the member auto: the strategy that reaches the loss of\n"
        "ssgd after --steps steps soonest, from the step times and a table of measured losses.";
    choose_arguments a = choose_defaults("plan choose");
    const cli_option table[] = {
        CHOOSE_OPTIONS(a),
        {"--net", CLI_TEXT, &a.net, "RATE,DELAY", "link of each worker, such as 100mbit,20ms"},
        {"--period", CLI_COUNT, &a.period, "H",
         "steps between averages (default: as many as each strategy needs)"},
        {"--utilisation", CLI_REAL, &a.aim, "PCT", "target utilisation, in percent (default: 90)"},
        {"Loss", CLI_GROUP, NULL, NULL, NULL},
        {"--steps", CLI_COUNT, &a.steps, "N", "steps of your run (default: 1000)"},
        {"--loss-budget", CLI_REAL, &a.budget, "SHARE",
         "largest predicted loss increase of auto after N steps; 0 = bit-identical to ssgd (default: 0.05)"},
        {"--loss-table", CLI_TEXT, &a.losses, "FILE",
         "your own measured losses, CSV with the columns of bench/loss_table.csv"},
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
