/* plan partial: DreamDDP's planner. */
#ifndef EXAMPLES_PLAN_PARTIAL_H
#define EXAMPLES_PLAN_PARTIAL_H

#include "common.h"

typedef struct partial_arguments {
    const char *profile, *solver, *cost, *fill, *net, *svg, *json;
    long period, workers;
    int curve;
    double split, alpha; /* or PLAN_NOT_GIVEN */
    double gap;
    int *layer_of; /* with --split-params: the layer of each row */
} partial_arguments;

static const char *partial_layer_name(const ddp_profile *p, int l, char *out, size_t room)
{
    if (p->name && p->name[l] && p->name[l][0]) return p->name[l];
    snprintf(out, room, "layer %d", l);
    return out;
}

/* The hue of a layer, the same in both lanes and in every step. */
static int partial_hue(int l, int layers) { return layers > 1 ? 300 * l / (layers - 1) : 210; }

typedef struct partial_picture {
    FILE *f;
    const ddp_profile *p;
    const ddp_plan *plan;
    double scale;
} partial_picture;

enum { PARTIAL_LANE = 16, PARTIAL_PITCH = 54, PARTIAL_TOP = 78 };
static const double partial_left = 96, partial_width = 1000;

static void partial_svg_box(const partial_picture *v, int l, const char *what, double from, double to, int y,
                            int pale)
{
    char own[32], t[2][32];
    double w = (to - from) * v->scale;

    if (!(to > from)) return;
    fprintf(v->f,
            "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" "
            "fill=\"hsl(%d,%d%%,%d%%)\"%s><title>%s ",
            partial_left + from * v->scale, y, w < 0.3 ? 0.3 : w, PARTIAL_LANE, partial_hue(l, v->p->layers),
            pale ? 45 : 62, pale ? 84 : 58, w > 3 ? " stroke=\"#fff\" stroke-width=\"0.6\"" : "", what);
    plan_xml(v->f, partial_layer_name(v->p, l, own, sizeof own));
    fprintf(v->f, ", %s, from %s</title></rect>\n", plan_time(to - from, t[0], sizeof t[0]),
            plan_time(from, t[1], sizeof t[1]));
}

/* Draws one step: a lane for the backward pass, and below it the transfers in the order in which their layers
 * end. */
static void partial_svg_step(const partial_picture *v, int h, int y)
{
    const ddp_profile *p = v->p;
    double now = 0, link = 0, end = 0;
    char t[32];
    int l;

    fprintf(v->f, "<text x=\"%.0f\" y=\"%d\" text-anchor=\"end\">step %d</text>\n", partial_left - 12,
            y + PARTIAL_LANE + 4, h);
    for (l = p->layers - 1; l >= 0; l--) {
        int filled = v->plan->fill[(size_t)h * (size_t)p->layers + (size_t)l];
        partial_svg_box(v, l, "backward of", now, now + p->backward_s[l], y, 0);
        now += p->backward_s[l];
        if ((v->plan->step_of[l] != h && !filled) || p->comm_s[l] <= 0) continue;
        if (link < now) link = now;
        partial_svg_box(v, l, filled ? "filled:" : "averaging", link, link + p->comm_s[l],
                        y + PARTIAL_LANE + 3, filled);
        link += p->comm_s[l];
        end = link + p->alpha_s;
    }
    if (end > now)
        fprintf(v->f, "<text x=\"%.1f\" y=\"%d\" class=\"late\">+%s</text>\n",
                partial_left + end * v->scale + 5, y + 2 * PARTIAL_LANE, plan_time(end - now, t, sizeof t));
}

/* Time below the steps, with ticks at 1, 2 or 5 times a power of ten. */
static void partial_axis(const partial_picture *v, double longest, int y)
{
    const double eighth = longest / 8, unit = eighth > 0 ? pow(10, floor(log10(eighth))) : 1;
    const double tick = eighth > 5 * unit ? 10 * unit : eighth > 2 * unit ? 5 * unit : 2 * unit;
    int i;

    for (i = 0; i * tick <= longest * 1.0001 && longest > 0; i++) {
        const double x = partial_left + i * tick * v->scale;
        fprintf(v->f,
                "<path d=\"M%.1f %dv5\" stroke=\"#888\"/><text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\" class=\"small\">%.6g</text>\n",
                x, y, x, y + 19, longest < 1 ? i * tick * 1e3 : i * tick);
    }
    fprintf(v->f,
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" class=\"small\">time from the start of the "
            "step's backward pass, %s</text>\n",
            (partial_left + partial_width - 90) / 2, y + 37, longest < 1 ? "ms" : "s");
}

static void partial_svg_write(FILE *f, const ddp_profile *p, const ddp_plan *plan)
{
    partial_picture v;
    char t[2][32];
    double back = 0, longest = 0, end = 0;
    int h, l, height = PARTIAL_TOP + plan->period * PARTIAL_PITCH + 62;

    for (l = 0; l < p->layers; l++) back += p->backward_s[l];
    for (h = 0; h < plan->period; h++)
        if (ddp_plan_step_time(p, plan->step_of, h, DDP_COST_TIMELINE, &end, NULL) == DDP_OK && end > longest)
            longest = end;
    v.f = f;
    v.p = p;
    v.plan = plan;
    v.scale = (partial_width - partial_left - 90) / (longest > 0 ? longest : 1);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" viewBox=\"0 0 "
            "%.0f %d\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
            "<style>.late{fill:#b3261e;font-size:11px}.small{fill:#555;font-size:11px}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            partial_width, height, partial_width, height);
    fprintf(f,
            "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\">%s plan, %d layers over "
            "%d steps: %s of backward, %s exposed (%s)</text>\n",
            ddp_solver_name(plan->solver), plan->layers, plan->period,
            plan_time(back * plan->period, t[0], sizeof t[0]), plan_time(plan->exposed_s, t[1], sizeof t[1]),
            ddp_cost_name(plan->cost));
    fprintf(f, "<text x=\"12\" y=\"44\" class=\"small\">upper lane: backward, output side first; "
               "lower lane: the link; each layer has a colour, pale = averaged once more; "
               "dashed: end of backward; red: exposed time</text>\n");
    for (h = 0; h < plan->period; h++) partial_svg_step(&v, h, PARTIAL_TOP + h * PARTIAL_PITCH);
    fprintf(f,
            "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#222\" "
            "stroke-dasharray=\"4 3\"/>\n",
            partial_left + back * v.scale, partial_left + back * v.scale, PARTIAL_TOP - 8, height - 50);
    fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" class=\"small\">%s</text>\n",
            partial_left + back * v.scale, PARTIAL_TOP - 12, plan_time(back, t[0], sizeof t[0]));
    partial_axis(&v, longest, height - 52);
    fprintf(f, "</svg>\n");
}

static void partial_json_sets(FILE *f, const char *key, const ddp_plan *plan, int fill)
{
    int h, l, n;

    fprintf(f, "\"%s\": [", key);
    for (h = 0; h < plan->period; h++) {
        fprintf(f, "%s[", h ? ", " : "");
        for (l = n = 0; l < plan->layers; l++)
            if (fill ? plan->fill[(size_t)h * (size_t)plan->layers + (size_t)l] : plan->step_of[l] == h)
                fprintf(f, "%s%d", n++ ? ", " : "", l);
        fputc(']', f);
    }
    fprintf(f, "], ");
}

/* Writes the names of the layers, which a run with --plan compares with its own. A name that is not plain
 * ASCII is written as "". */
static void partial_json_names(FILE *f, const ddp_profile *p)
{
    fprintf(f, "\"names\": [");
    for (int l = 0; l < p->layers; l++) {
        const char *name = p->name[l] ? p->name[l] : "", *at = name;
        while (*at >= 32 && *at < 127) at++;
        fprintf(f, "%s\"", l ? ", " : "");
        for (; !*at && *name; name++) fprintf(f, "%s%c", *name == '"' || *name == '\\' ? "\\" : "", *name);
        fputc('"', f);
    }
    fprintf(f, "], ");
}

/* Writes one plan. Lines of a file (event 1) also have an event name and the names of the layers. Lines on
 * standard output have only the plan. */
static void partial_json(FILE *f, const ddp_profile *p, const ddp_plan *plan, const int *layer_of,
                         double seconds, int event)
{
    char t[3][32];
    int i;

    fprintf(f,
            "{%s\"solver\": \"%s\", \"cost\": \"%s\", \"layers\": %d, \"period\": %d, "
            "\"objective_s\": %s, \"exposed_s\": %s, "
            "\"lower_bound_s\": %s, ",
            event ? "\"event\": \"plan\", " : "", ddp_solver_name(plan->solver), ddp_cost_name(plan->cost),
            plan->layers, plan->period, plan_exact(plan->objective_s, t[0], sizeof t[0]),
            plan_exact(plan->exposed_s, t[1], sizeof t[1]),
            plan_exact(plan->lower_bound_s, t[2], sizeof t[2]));
    partial_json_sets(f, "sets", plan, 0);
    partial_json_sets(f, "fill", plan, 1);
    if (event && p->name) partial_json_names(f, p);
    for (i = 0; layer_of && i < plan->layers; i++)
        fprintf(f, "%s%d", i ? ", " : "\"layer_of\": [", layer_of[i]);
    fprintf(f, "%s\"solve_ms\": %.6f}\n", layer_of ? "], " : "", seconds * 1e3);
}

/* Runs one solver and prints its plan. In a series (--solver all), a solver that does not support the profile
 * is skipped with a message. */
static ddp_status partial_solve(const ddp_profile *p, const ddp_plan_options *o, int series,
                                const int *layer_of, FILE *line, FILE *json, ddp_plan *best)
{
    ddp_plan plan;
    ddp_error err;
    double start = ddp_now(), seconds;
    ddp_status status = ddp_plan_partial(p, o, &plan, &err);

    seconds = ddp_now() - start;
    if (status != DDP_OK) {
        fprintf(stderr, "plan: %s%s\n", err.msg, series ? " (skipped)" : "");
        return series && status == DDP_UNSUPPORTED ? DDP_OK : status;
    }
    partial_json(line, p, &plan, layer_of, seconds, 0);
    partial_json(json, p, &plan, layer_of, seconds, 1);
    if (best->layers == 0 || plan.objective_s < best->objective_s) {
        ddp_plan swap = *best;
        *best = plan;
        plan = swap;
    }
    ddp_plan_free(&plan);
    return DDP_OK;
}

static int partial_run(const partial_arguments *a, const ddp_profile *p, ddp_plan_options *o)
{
    static const ddp_solver all[] = {DDP_SOLVER_OPTIMAL, DDP_SOLVER_DFS, DDP_SOLVER_ENP, DDP_SOLVER_BRUTE,
                                     DDP_SOLVER_SCATTER};
    plan_output out;
    size_t i;
    int series = !strcmp(a->solver, "all"), code;
    ddp_status status = DDP_OK;
    ddp_plan best;

    memset(&best, 0, sizeof best);
    if (!plan_output_open(&out, "plan")) return 1;
    for (i = 0; i < (series ? sizeof all / sizeof all[0] : 1) && status == DDP_OK; i++) {
        if (series) o->solver = all[i];
        status = partial_solve(p, o, series, a->layer_of, out.line, out.json, &best);
    }
    if (status == DDP_OK && a->svg) partial_svg_write(out.svg, p, &best);
    code = plan_output_close(&out, "plan", status, a->json, a->svg);
    ddp_plan_free(&best);
    return code;
}

static void partial_curve_json(FILE *f, const ddp_plan_options *o, const double *exposed, int event)
{
    char t[32];
    int h;

    fprintf(f, "{%s\"cost\": \"%s\", \"exposed_s\": [", event ? "\"event\": \"curve\", " : "",
            ddp_cost_name(o->cost));
    for (h = 0; h < o->period; h++) fprintf(f, "%s%s", h ? ", " : "", plan_exact(exposed[h], t, sizeof t));
    fprintf(f, "]}\n");
}

/* Prints the exposed time of periods of 1, 2, ... H steps. */
static int partial_curve(const partial_arguments *a, const ddp_profile *p, const ddp_plan_options *o)
{
    double *exposed = (double *)calloc((size_t)o->period, sizeof *exposed);
    plan_output out;
    ddp_error err;
    ddp_status status;

    if (!exposed || !plan_output_open(&out, "plan partial")) {
        if (!exposed) fprintf(stderr, "plan partial: no memory for %d periods\n", o->period);
        free(exposed);
        return 1;
    }
    status = ddp_plan_curve(p, o->cost, o->period, exposed, &err);
    if (status != DDP_OK)
        fprintf(stderr, "plan partial: %s\n", err.msg);
    else {
        partial_curve_json(out.line, o, exposed, 0);
        partial_curve_json(out.json, o, exposed, 1);
    }
    free(exposed);
    return plan_output_close(&out, "plan partial", status, a->json, NULL);
}

/* Replaces the profile with the profile of its parts. */
static ddp_status partial_split(partial_arguments *a, ddp_profile *p, ddp_error *err)
{
    ddp_profile parts;
    ddp_status status =
        ddp_profile_split(p, a->split, plan_given(a->alpha) ? a->alpha : 0, &parts, &a->layer_of, err);

    if (status != DDP_OK) return status;
    ddp_profile_free(p);
    *p = parts;
    return DDP_OK;
}

static int plan_partial(int argc, char **argv)
{
    static const char about[] =
        "Selects the step of the period in which DreamDDP averages each layer. The profile is a CSV\n"
        "file with one row per layer, input side first: layer,params,forward_s,backward_s,comm_s (times\n"
        "in seconds).";
    partial_arguments a = {NULL, "scatter", "window", "none",         NULL,           NULL, NULL,
                           -1,   -1,        0,        PLAN_NOT_GIVEN, PLAN_NOT_GIVEN, 0,    NULL};
    const cli_option table[] = {
        {"Input", CLI_GROUP, NULL, NULL, NULL},
        {"--profile", CLI_TEXT, &a.profile, "P.csv", "profile of the layers (.csv or .csv.gz)"},
        {"--net", CLI_TEXT, &a.net, "RATE,DELAY",
         "link, such as 100mbit,20ms, from which a missing comm_s is computed"},
        {"--workers", CLI_COUNT, &a.workers, "N", "with --net: number of workers"},
        {"--gap", CLI_REAL, &a.gap, "S", "per-message overhead of the link in seconds (default: 0)"},
        {"--alpha", CLI_REAL, &a.alpha, "S",
         "with --split-params: start-up time included in every comm_s, in seconds"},
        {"Plan", CLI_GROUP, NULL, NULL, NULL},
        {"--period", CLI_COUNT, &a.period, "H", "steps in which each layer is averaged once"},
        {"--solver", CLI_TEXT, &a.solver, "NAME",
         "optimal, dfs, enp, brute, scatter or all (default: scatter)"},
        {"--cost", CLI_TEXT, &a.cost, "NAME",
         "cost model: timeline, sum, or window, in which transfers may end in the next forward pass "
         "(default: "
         "window)"},
        {"--fill", CLI_TEXT, &a.fill, "NAME",
         "additional averages that cost no time: none, exact or eq12 (default: none)"},
        {"--split-params", CLI_REAL, &a.split, "N",
         "split layers of more than N parameters into parts, and plan each part as a row"},
        {"--curve", CLI_FLAG, &a.curve, "",
         "print the exposed time of the periods 1 to H with contiguous sets, in place of a plan"},
        {"Output", CLI_GROUP, NULL, NULL, NULL},
        {"--svg", CLI_TEXT, &a.svg, "FILE", "chart of the best plan's period"},
        {"--json", CLI_TEXT, &a.json, "FILE", "file for the JSON lines, which are also printed"},
    };
    int code = cli_parse(argc, argv, about, table, (int)(sizeof table / sizeof table[0]));
    double rate = 0;
    ddp_plan_options o;
    ddp_profile p;
    ddp_error err;
    ddp_link link;
    ddp_status status;

    if (code >= 0) return code;
    memset(&o, 0, sizeof o);
    memset(&link, 0, sizeof link);
    if (!a.profile) return plan_usage("plan partial", "--profile %s is needed", "FILE");
    code = plan_count("plan partial", "--period", "H", a.period, 1, 1000000);
    if (code >= 0) return code;
    if (plan_given(a.alpha) && !plan_given(a.split))
        return plan_usage("plan partial", "%s needs --split-params N", "--alpha");
    if (a.curve && a.svg) return plan_usage("plan partial", "--curve and %s cannot be combined", "--svg");
    if (a.workers >= 0 && !a.net) return plan_usage("plan partial", "--workers needs %s", "--net RATE,DELAY");
    if (a.net && a.workers < 0)
        return plan_usage("plan partial", "%s needs --workers N, at least 2", "--net");
    if (a.net && a.workers < 2)
        return plan_refuse("plan partial", "--workers", (double)a.workers, "at least 2");
    o.period = (int)a.period;
    status = ddp_cost_named(a.cost, &o.cost, &err);
    if (status == DDP_OK) status = ddp_fill_named(a.fill, &o.fill, &err);
    if (status == DDP_OK && strcmp(a.solver, "all")) status = ddp_solver_named(a.solver, &o.solver, &err);
    if (status == DDP_OK && a.net) status = ddp_net_parse(a.net, &rate, &link.alpha_s, &err);
    if (status != DDP_OK) return plan_usage("plan partial", "%s", err.msg);
    /* reduce-scatter and all-gather: 2 (N-1)/N of the bytes over each uplink, two one-way delays */
    if (a.net && rate > 0) link.beta_s = 2.0 * (double)(a.workers - 1) / (double)a.workers / rate;
    link.alpha_s *= 2;
    memset(&p, 0, sizeof p);
    status = ddp_profile_read(a.profile, a.net ? &link : NULL, &p, &err);
    p.gap_s = a.gap;
    if (status == DDP_OK && plan_given(a.split)) status = partial_split(&a, &p, &err);
    if (status != DDP_OK) {
        fprintf(stderr, "plan partial: %s\n", err.msg);
        code = ddp_status_exit_code(status);
    } else {
        code = a.curve ? partial_curve(&a, &p, &o) : partial_run(&a, &p, &o);
    }
    ddp_profile_free(&p);
    DDP_FREE(a.layer_of);
    return code;
}

#endif /* EXAMPLES_PLAN_PARTIAL_H */
