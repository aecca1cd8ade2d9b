/* plan place: assigns devices to the stages of pipelines (DT-FM). */
#ifndef EXAMPLES_PLAN_PLACE_H
#define EXAMPLES_PLAN_PLACE_H

#include "common.h"

typedef struct place_arguments {
    const char *network, *variant, *solver, *svg, *json;
    long pipelines, stages, seed, candidates, noise; /* -1 if not given, except for seed */
    double seconds, dp_bytes, pp_bytes;              /* or PLAN_NOT_GIVEN */
} place_arguments;

static void place_json(FILE *f, const char *solver, const ddp_placement *p, int event)
{
    char cost[40], data[40], hops[40];
    int i, j;

    fprintf(f, "{%s\"solver\": \"%s\", \"cost_s\": %s, \"datap_s\": %s, \"pipelinep_s\": %s",
            event ? "\"event\": \"plan\", " : "", solver, plan_exact(p->cost_s, cost, sizeof cost),
            plan_exact(p->datap_s, data, sizeof data), plan_exact(p->pipelinep_s, hops, sizeof hops));
    fputs(", \"assign\": [", f);
    for (i = 0; i < p->pipelines; i++)
        for (j = 0; j < p->stages; j++)
            fprintf(f, "%s%d%s",
                    j   ? ", "
                    : i ? ", ["
                        : "[",
                    p->assign[i * p->stages + j], j + 1 == p->stages ? "]" : "");
    fprintf(f, "], \"proven\": %s, \"solve_s\": %.6f, \"candidates\": %ld}\n", p->proven ? "true" : "false",
            p->solve_s, p->candidates);
}

/* ---- chart: pipelines x stages, one colour per group, with the cost of each column ---- */

typedef struct place_picture {
    FILE *f;
    const ddp_network *n;
    const ddp_placement *p;   /* the placement to draw */
    const ddp_placement *all; /* [count] placements of the requested solvers */
    const char **solver;      /* [count] their names */
    int count;
    double cell, row; /* size of a cell */
} place_picture;

enum { PLACE_SOLVERS = DDP_PLACE_EXACT - DDP_PLACE_DEFAULT };

#define PLACE_LEFT   96
#define PLACE_TOP    176
#define PLACE_BARS   84 /* height of a row of bars with its labels */
#define PLACE_WIDTH  1000
#define PLACE_RIGHT  170  /* width to the right of the curves, for their names */
#define PLACE_CURVES 130  /* height of the curves */
#define PLACE_LEAST  1e-4 /* time at the left end of the curves, in seconds */

static int place_group(const ddp_network *n, int device) { return n->group ? n->group[device] : 0; }

static void place_group_name(FILE *f, const ddp_network *n, int g)
{
    if (n->group_name)
        plan_xml(f, n->group_name[g]);
    else if (n->group)
        fprintf(f, "group %d", g);
    else
        fprintf(f, "devices");
}

/* Writes the colour of a group. The golden angle gives neighbours in the list different hues. */
static void place_fill(FILE *f, const ddp_network *n, int g)
{
    int groups = n->group ? n->groups : 1;

    if (groups <= 12)
        fprintf(f, "hsl(%d,58%%,%d%%)", 360 * g / groups, g % 2 ? 72 : 62);
    else
        fprintf(f, "hsl(%d,%d%%,%d%%)", g * 137 % 360, 50 + g % 3 * 10, 60 + g % 4 * 5);
}

static double place_pair(const place_picture *v, double bytes, int x, int y)
{
    size_t N = (size_t)v->n->devices, a = (size_t)x * N + (size_t)y, b = (size_t)y * N + (size_t)x;

    return v->n->delay_s[a] + v->n->delay_s[b] + 4 * bytes / (v->n->rate[a] + v->n->rate[b]);
}

static int place_at(const place_picture *v, int i, int j) { return v->p->assign[i * v->p->stages + j]; }

static double place_stage_cost(const place_picture *v, int j)
{
    double most = 0;
    int i, l;

    for (i = 0; i < v->p->pipelines; i++) {
        double sum = 0;
        for (l = 0; l < v->p->pipelines; l++)
            if (l != i)
                sum += place_pair(v, v->n->dp_bytes / v->p->pipelines, place_at(v, i, j), place_at(v, l, j));
        if (sum > most) most = sum;
    }
    return most;
}

static double place_hop_cost(const place_picture *v, int j)
{
    double most = 0, w;
    int i;

    for (i = 0; i < v->p->pipelines; i++) {
        w = place_pair(v, v->n->pp_bytes, place_at(v, i, j), place_at(v, i, j + 1));
        if (w > most) most = w;
    }
    return most;
}

/* Draws one bar from y upwards, or downwards if `down` is set. */
static void place_bar(const place_picture *v, double x, double y, double value, double most, int down,
                      const char *colour, const char *what, int first)
{
    double h = most > 0 ? (PLACE_BARS - 26) * value / most : 0, w = v->cell * 0.6;

    fprintf(v->f,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\">"
            "<title>%s: %.4g s</title></rect>\n",
            x - w / 2, down ? y : y - h, w, h, colour, what, value);
    if (v->cell >= 34 || first)
        fprintf(v->f,
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"s\">%.3g"
                "</text>\n",
                x, down ? y + h + 12 : y - h - 4, value);
}

static void place_columns(const place_picture *v, double bottom)
{
    enum { STAGES = 512 }; /* a chart with more stages has no space for bars */
    double data[STAGES], hop[STAGES], top = 0, slow = 0, scale, x;
    int S = v->p->stages < STAGES ? v->p->stages : STAGES, j, worst = 0, slowest = 0;
    char what[64];

    for (j = 0; j < S; j++) {
        data[j] = place_stage_cost(v, j);
        hop[j] = j + 1 < S ? place_hop_cost(v, j) : 0;
        if (data[j] > top) {
            top = data[j];
            worst = j;
        }
        if (hop[j] > slow) {
            slow = hop[j];
            slowest = j;
        }
    }
    scale = top > slow ? top : slow; /* one scale for both kinds of bars, because the costs are added */
    for (j = 0; j < S; j++) {
        x = PLACE_LEFT + (j + 0.5) * v->cell;
        snprintf(what, sizeof what, "averaging of stage %d", j);
        place_bar(v, x, PLACE_TOP - 24, data[j], scale, 0,
                  data[j] >= top * (1 - 1e-9) ? "#b3261e" : "#9db4cf", what, j == worst);
        if (v->cell >= 16 || j % 5 == 0)
            fprintf(v->f,
                    "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" class=\"s\">%d"
                    "</text>\n",
                    x, PLACE_TOP - 8, j);
        if (j + 1 == S) continue;
        snprintf(what, sizeof what, "hop from stage %d to stage %d, slowest pipeline", j, j + 1);
        place_bar(v, x + v->cell / 2, bottom + 8, hop[j], scale, 1, "#b9a7d6", what, j == slowest);
    }
    fprintf(v->f,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" class=\"s\">averaging, s</text>"
            "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" class=\"s\">stage</text>"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" class=\"s\">hop, s</text>\n",
            PLACE_LEFT - 8, PLACE_TOP - 28, PLACE_LEFT - 8, PLACE_TOP - 8, PLACE_LEFT - 8, bottom + 20);
}

static void place_cells(const place_picture *v)
{
    int i, j, d;
    double x, y;

    for (i = 0; i < v->p->pipelines; i++) {
        y = PLACE_TOP + i * v->row;
        if (v->row >= 11 || i % 5 == 0)
            fprintf(v->f,
                    "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" class=\"s\">%s%d"
                    "</text>\n",
                    PLACE_LEFT - 8, y + v->row / 2 + 4, i ? "" : "pipeline ", i);
        for (j = 0; j < v->p->stages; j++) {
            d = place_at(v, i, j);
            x = PLACE_LEFT + j * v->cell;
            fprintf(v->f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"", x, y,
                    v->cell - 1, v->row - 1);
            place_fill(v->f, v->n, place_group(v->n, d));
            fprintf(v->f, "\"><title>pipeline %d, stage %d: device %d (", i, j, d);
            place_group_name(v->f, v->n, place_group(v->n, d));
            fprintf(v->f, ")</title></rect>\n");
            if (v->cell >= 24 && v->row >= 14)
                fprintf(v->f,
                        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"d\">"
                        "%d</text>\n",
                        x + v->cell / 2, y + v->row / 2 + 4, d);
        }
    }
}

/* Draws the colours of the groups, six per line. Returns the height. */
static double place_legend(const place_picture *v, double y)
{
    int groups = v->n->group ? v->n->groups : 1, g;

    for (g = 0; g < groups && g < 48; g++) {
        double x = PLACE_LEFT + g % 6 * 140, line = y + g / 6 * 18;
        fprintf(v->f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"", x, line);
        place_fill(v->f, v->n, g);
        fprintf(v->f, "\"/><text x=\"%.1f\" y=\"%.1f\" class=\"s\">", x + 17, line + 10);
        place_group_name(v->f, v->n, g);
        fprintf(v->f, "</text>\n");
    }
    return (g + 5) / 6 * 18 + 14;
}

/* The x of a time, on a logarithmic scale. */
static double place_x(double t, double end)
{
    double least = PLACE_LEAST, w = PLACE_WIDTH - PLACE_LEFT - PLACE_RIGHT;

    t = t < least ? least : t > end ? end : t;
    return PLACE_LEFT + w * log(t / least) / log(end / least);
}

/* The y of a cost, on a logarithmic scale, counted from `top` downwards. */
static double place_y(double cost, double low, double top)
{
    return PLACE_CURVES * log(top / cost) / log(top / low);
}

static void place_axes(const place_picture *v, double y, double end, double low, double top)
{
    double x, at, right = place_x(end, end);
    char name[32];
    int k;

    for (k = 0; k <= 2; k++) {
        x = k == 0 ? top : k == 1 ? sqrt(low * top) : low;
        at = y + place_y(x, low, top);
        fprintf(v->f,
                "<line x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" class=\"s\">%.3g s</text>\n",
                PLACE_LEFT, right, at, at, PLACE_LEFT - 8, at + 4, x);
    }
    for (x = PLACE_LEAST; x <= end; x *= 10) {
        at = place_x(x, end);
        fprintf(v->f,
                "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"s\">%s</text>\n",
                at, at, y, y + PLACE_CURVES, at, y + PLACE_CURVES + 15, plan_time(x, name, sizeof name));
    }
}

/* Draws the best cost over time, one line per solver. The names are next to the ends of the lines, without
 * overlap. */
static void place_curves(const place_picture *v, double y)
{
    static const char *const colour[] = {"#2b5c9e", "#b3261e", "#c77700", "#1b6e3c", "#777", "#7a3fa0"};
    double end = 10 * PLACE_LEAST, low, top = 0, last, label;
    const ddp_placement *p;
    int i, k, order[PLACE_SOLVERS];

    if (!(v->p->cost_s > 0)) return; /* 0 has no logarithm */
    fprintf(v->f,
            "<text x=\"%d\" y=\"%.1f\" font-weight=\"bold\">best cost by search "
            "time</text>\n",
            PLACE_LEFT, y);
    y += 16;
    for (i = 0; i < v->count; i++) {
        if (v->all[i].solve_s > end) end = v->all[i].solve_s;
        if (v->all[i].curve[1] > top) top = v->all[i].curve[1];
        for (k = i; k > 0 && v->all[order[k - 1]].cost_s > v->all[i].cost_s; k--) order[k] = order[k - 1];
        order[k] = i;
    }
    low = 0.95 * v->p->cost_s;
    place_axes(v, y, end, low, top);
    for (i = v->count - 1; i >= 0; i--) { /* the best solver is drawn last, on top */
        p = &v->all[order[i]];
        fprintf(v->f, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" d=\"", colour[order[i] % 6]);
        for (k = 0; k < p->points; k++)
            fprintf(v->f, k ? "H%.2f V%.2f " : "M%.2f %.2f ", place_x(p->curve[2 * k], end),
                    y + place_y(p->curve[2 * k + 1], low, top));
        fprintf(v->f, "H%.2f\"/>\n", place_x(p->solve_s, end));
    }
    last = y + PLACE_CURVES + 17;
    for (i = 0; i < v->count && v->count > 1; i++) { /* from the best solver, at the bottom, upwards */
        p = &v->all[order[i]];
        label = y + place_y(p->cost_s, low, top) + 4;
        if (label > last - 13) label = last - 13;
        last = label;
        fprintf(v->f, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%s %.4g s</text>\n", place_x(end, end) + 6,
                label, colour[order[i] % 6], v->solver[order[i]], p->cost_s);
    }
}

/* "case2.json, as_in_code, noise 1" */
static void place_network_name(FILE *f, const place_arguments *a)
{
    const char *slash = strrchr(a->network, '/');

    plan_xml(f, slash ? slash + 1 : a->network);
    if (a->variant) fputs(", ", f);
    plan_xml(f, a->variant);
    if (a->noise >= 0) fprintf(f, ", noise %ld", a->noise);
}

static void place_svg(FILE *f, const place_arguments *a, const ddp_network *n, const ddp_placement *all,
                      const char **solver, int count)
{
    const ddp_placement *p;
    place_picture v;
    double bottom, y, height;
    int groups = n->group ? n->groups : 1, best = 0, i;

    for (i = 1; i < count; i++)
        if (all[i].cost_s < all[best].cost_s) best = i;
    p = &all[best];
    v.f = f;
    v.n = n;
    v.p = p;
    v.all = all;
    v.solver = solver;
    v.count = count;
    v.cell = (PLACE_WIDTH - PLACE_LEFT - 24.0) / p->stages;
    if (v.cell > 86) v.cell = 86;
    v.row = p->pipelines <= 16 ? 26 : p->pipelines <= 64 ? 14 : 900.0 / p->pipelines;
    bottom = PLACE_TOP + p->pipelines * v.row;
    y = bottom + PLACE_BARS + 20;
    height = y + ((groups < 48 ? groups : 48) + 5) / 6 * 18 + 14 + PLACE_CURVES + 60;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
            "viewBox=\"0 0 %d %.0f\" font-family=\"sans-serif\" font-size=\"12\" "
            "fill=\"#222\">\n<style>.s{fill:#555;font-size:11px}.d{font-size:11px}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            PLACE_WIDTH, height, PLACE_WIDTH, height);
    fprintf(f, "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\">");
    place_network_name(f, a);
    fprintf(f, ", %s: %.5g s per iteration = %.4g s averaging + %.4g s along the pipeline%s</text>\n",
            solver[best], p->cost_s, p->datap_s, p->pipelinep_s, p->proven ? " (proven optimal)" : "");
    fprintf(f, "<text x=\"12\" y=\"44\" class=\"s\">one cell per device, one colour per group; "
               "rows: pipelines; columns: the replicas of a stage.</text>"
               "<text x=\"12\" y=\"60\" class=\"s\">above: averaging time of each column, of which the "
               "largest (red) counts; below: slowest hop between two columns, of which the sum "
               "counts</text>\n");
    place_cells(&v);
    place_columns(&v, bottom);
    y += place_legend(&v, y);
    place_curves(&v, y + 10);
    fprintf(f, "</svg>\n");
}

/* ---- the subcommand ---- */

/* Runs each requested solver and draws the best placement. */
static int place_run(const place_arguments *a, const ddp_network *n, ddp_place_options *o)
{
    int first = (int)o->solver, last = first, code, count = 0, k;
    ddp_placement all[PLACE_SOLVERS];
    const char *name[PLACE_SOLVERS];
    plan_output out;
    ddp_error err;
    ddp_status status = DDP_OK;

    if (!plan_output_open(&out, "plan place")) return 1;
    if (!strcmp(a->solver, "all")) {
        first = DDP_PLACE_ANNEAL;
        last = DDP_PLACE_EXACT;
    }
    for (k = first; k <= last; k++) {
        o->solver = (ddp_place_solver)k;
        status = ddp_place(n, o, &all[count], &err);
        if (status != DDP_OK) {
            fprintf(stderr, "plan place: %s\n", err.msg);
            break;
        }
        name[count] = ddp_place_solver_name(o->solver);
        place_json(out.line, name[count], &all[count], 0);
        place_json(out.json, name[count], &all[count], 1);
        count++;
    }
    if (status == DDP_OK && a->svg) place_svg(out.svg, a, n, all, name, count);
    code = plan_output_close(&out, "plan place", status, a->json, a->svg);
    while (count) ddp_placement_free(&all[--count]);
    return code;
}

static int plan_place(int argc, char **argv)
{
    static const char about[] =
        "Assigns devices to the stages of pipelines (DT-FM). The network is a JSON file with N, D_dp\n"
        "(pipelines), D_pp (stages), c_dp_bytes, c_pp_bytes, delay_ms and bandwidth_gbps, N x N or per\n"
        "group.";
    place_arguments a = {NULL, NULL, "anneal",       NULL,           NULL,          -1, -1, 0,
                         -1,   -1,   PLAN_NOT_GIVEN, PLAN_NOT_GIVEN, PLAN_NOT_GIVEN};
    const cli_option table[] = {
        {"Network", CLI_GROUP, NULL, NULL, NULL},
        {"--network", CLI_TEXT, &a.network, "NET.json", "network file (.json or .json.gz)"},
        {"--variant", CLI_TEXT, &a.variant, "NAME", "variant of the network file, such as as_in_code"},
        {"--pipelines", CLI_COUNT, &a.pipelines, "N", "number of pipelines, in place of D_dp of the network"},
        {"--stages", CLI_COUNT, &a.stages, "N", "stages per pipeline, in place of D_pp of the network"},
        {"--dp-bytes", CLI_REAL, &a.dp_bytes, "B", "bytes, in place of c_dp_bytes of the network"},
        {"--pp-bytes", CLI_REAL, &a.pp_bytes, "B", "bytes, in place of c_pp_bytes of the network"},
        {"--noise", CLI_COUNT, &a.noise, "SEED",
         "seed of random factors on the links: lognormal, sigma 0.25 for rates and 0.1 for delays"},
        {"Search", CLI_GROUP, NULL, NULL, NULL},
        {"--solver", CLI_TEXT, &a.solver, "NAME",
         "anneal, genetic, genetic-code, kl, random, exact or all (default: anneal)"},
        {"--seconds", CLI_REAL, &a.seconds, "T", "time limit of a solver, in seconds"},
        {"--candidates", CLI_COUNT, &a.candidates, "N",
         "largest number of candidates (default: 5000; anneal: 3500000 moves per device, about 10 s at most; "
         "exact: 60 s)"},
        {"--seed", CLI_COUNT, &a.seed, "N",
         "seed of the search; the same seed and --candidates give the same placement (default: 0)"},
        {"Output", CLI_GROUP, NULL, NULL, NULL},
        {"--svg", CLI_TEXT, &a.svg, "FILE", "chart of the best placement"},
        {"--json", CLI_TEXT, &a.json, "FILE", "file for the JSON lines, which are also printed"},
    };
    int code = cli_parse(argc, argv, about, table, (int)(sizeof table / sizeof table[0]));
    ddp_place_options o;
    ddp_network n;
    ddp_error err;
    ddp_status status;

    if (code >= 0) return code;
    memset(&o, 0, sizeof o);
    if (!a.network) return plan_usage("plan place", "%s", "--network FILE is needed");
    if (plan_given(a.seconds) && a.seconds <= 0)
        return plan_refuse("plan place", "--seconds", a.seconds,
                           "more than 0; leave it out for no time limit");
    if (a.candidates == 0)
        return plan_refuse("plan place", "--candidates", 0, "at least 1; leave it out for the default");
    if (a.pipelines == 0)
        return plan_refuse("plan place", "--pipelines", 0, "at least 1; leave it out to use D_dp");
    if (a.stages == 0)
        return plan_refuse("plan place", "--stages", 0, "at least 1; leave it out to use D_pp");
    if (plan_given(a.dp_bytes) && a.dp_bytes < 0)
        return plan_refuse("plan place", "--dp-bytes", a.dp_bytes,
                           "at least 0; leave it out to use c_dp_bytes");
    if (plan_given(a.pp_bytes) && a.pp_bytes < 0)
        return plan_refuse("plan place", "--pp-bytes", a.pp_bytes,
                           "at least 0; leave it out to use c_pp_bytes");
    if (strcmp(a.solver, "all") && ddp_place_solver_named(a.solver, &o.solver, &err) != DDP_OK)
        return plan_usage("plan place", "%s", err.msg);
    o.seed = (uint64_t)a.seed;
    o.time_limit_s = a.seconds > 0 ? a.seconds : 0;
    o.max_candidates = a.candidates > 0 ? a.candidates : 0;
    o.pipelines = a.pipelines > 0 ? (int)a.pipelines : 0;
    o.stages = a.stages > 0 ? (int)a.stages : 0;
    status = ddp_network_read(a.network, a.variant, &n, &err);
    if (status != DDP_OK) {
        fprintf(stderr, "plan place: %s\n", err.msg);
        return ddp_status_exit_code(status);
    }
    if (a.noise >= 0) ddp_network_noise(&n, (uint64_t)a.noise, 0.25, 0.1, NULL);
    if (a.dp_bytes >= 0) n.dp_bytes = a.dp_bytes;
    if (a.pp_bytes >= 0) n.pp_bytes = a.pp_bytes;
    if (n.dp_bytes > 0 || n.pp_bytes > 0) {
        code = place_run(&a, &n, &o);
    } else {
        fprintf(stderr,
                "plan place: %s has neither c_dp_bytes nor c_pp_bytes; add one of them, or give "
                "--dp-bytes or --pp-bytes\n",
                a.network);
        code = 1;
    }
    ddp_network_free(&n);
    return code;
}

#endif /* EXAMPLES_PLAN_PLACE_H */
