/* plan fence: FusionLLM's OP-Fence and its baselines. */
#ifndef EXAMPLES_PLAN_FENCE_H
#define EXAMPLES_PLAN_FENCE_H

#include "common.h"
#include "models.h"

typedef struct fence_arguments {
    const char *model, *graph, *network, *variant, *solver, *svg, *json, *write;
    long microbatches, batch;
    double compress, factor; /* or PLAN_NOT_GIVEN */
    int allow_idle, no_memory, forward_only, uniform;
} fence_arguments;

enum { FENCE_MOST = 4 }; /* number of plans per run */

typedef struct fence_plans {
    const ddp_oplist *list;
    const ddp_network *net;
    const char *what; /* the model's name or the graph's file */
    long microbatches;
    ddp_adatopk_options compress; /* ratio is 0 without compression */
    ddp_fence_plan plan[FENCE_MOST];
    int idle[FENCE_MOST];
    int count;
} fence_plans;

/* ---- chart: one panel per plan, one row per device in pipeline order ---- */

enum { FENCE_TOP = 78, FENCE_HEAD = 40, FENCE_FOOT = 44, FENCE_LEFT = 86 };
enum { FENCE_TAPE = 440, FENCE_GAP = 46, FENCE_BARS = 400, FENCE_WIDTH = 1000 };

/* The length of a bar of s seconds, on a logarithmic scale from `least` to `most` (powers of ten). */
static double fence_x(double s, double least, double most)
{
    return s > least ? (double)FENCE_BARS * log10(s / least) / log10(most / least) : 0;
}

static int fence_hue(int cluster, int clusters) { return 20 + 300 * cluster / clusters; }

static int fence_row_height(int devices) { return devices > 96 ? 5 : devices > 32 ? 10 : 13; }

static void fence_device(const ddp_network *net, int d, char *out, size_t room)
{
    if (net->group && net->group_name && net->group_name[net->group[d]])
        snprintf(out, room, "%.20s / %d", net->group_name[net->group[d]], d);
    else
        snprintf(out, room, "device %d", d);
}

static void fence_operator(FILE *f, const ddp_oplist *list, int i)
{
    if (list->op[i].name)
        plan_xml(f, list->op[i].name);
    else
        fprintf(f, "operator %d", i);
}

/* Draws one device: its operators, its compute time and its receive time. */
static void fence_svg_row(FILE *f, const fence_plans *v, const ddp_fence_plan *p, int device,
                          const ddp_fence_segment *s, double y, double least, double most)
{
    const int high = fence_row_height(p->devices), hue = fence_hue(p->cluster[device], p->clusters);
    const double bars = FENCE_LEFT + FENCE_TAPE + FENCE_GAP;
    double c = p->work.compute_s[device], r = p->work.receive_s[device], worst = c > r ? c : r;
    char name[48], t[2][32];

    fence_device(v->net, device, name, sizeof name);
    fprintf(f, "<g><title>");
    plan_xml(f, name);
    if (!s) {
        fprintf(f, ": idle</title>");
    } else {
        fprintf(f, ": operators %d to %d (", s->first, s->end - 1);
        fence_operator(f, v->list, s->first);
        fprintf(f, " to ");
        fence_operator(f, v->list, s->end - 1);
        fprintf(f, "), compute %s, receive %s per micro-batch, memory %.3g GB</title>",
                plan_time(c, t[0], sizeof t[0]), plan_time(r, t[1], sizeof t[1]),
                p->work.memory_bytes[device] / 1e9);
    }
    fprintf(f,
            "<rect x=\"0\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"#fff\" "
            "fill-opacity=\"0\"/>",
            y, FENCE_WIDTH, high);
    if (high >= 10) {
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" class=\"row\"%s>", FENCE_LEFT - 8,
                y + high - 2.5, s ? "" : " fill=\"#aaa\"");
        plan_xml(f, name);
        fprintf(f, "</text>");
    }
    if (s) {
        double from = (double)FENCE_TAPE * s->first / p->ops, to = (double)FENCE_TAPE * s->end / p->ops;
        fprintf(f, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"hsl(%d,60%%,55%%)\"/>",
                (double)FENCE_LEFT + from, y + 1, to - from < 0.8 ? 0.8 : to - from, high - 2, hue);
        fprintf(f,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" "
                "fill=\"hsl(%d,60%%,55%%)\"/>",
                bars, y + 1, fence_x(c, least, most), high / 2.0 - 1, hue);
        fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>", bars,
                y + high / 2.0, fence_x(r, least, most), high / 2.0 - 1,
                r >= 0.1 * p->work.latency_s ? "#c5221f" : "#8a8f98");
        if (worst >= 0.1 * p->work.latency_s && high >= 10)
            fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"row\">%s</text>",
                    bars + fence_x(worst, least, most) + 4, y + high - 2.5,
                    plan_time(worst, t[0], sizeof t[0]));
    }
    fprintf(f, "</g>\n");
}

static const char *fence_decade(double s, char *out, size_t room)
{
    if (s >= 1)
        snprintf(out, room, "%.0f s", s);
    else
        plan_time(s, out, room);
    return out;
}

static void fence_svg_axes(FILE *f, const ddp_fence_plan *p, double y, double bottom, double least,
                           double most)
{
    const double bars = FENCE_LEFT + FENCE_TAPE + FENCE_GAP;
    char t[32];
    double s;
    int k;

    for (k = 0; k <= 4; k++) {
        double x = (double)FENCE_LEFT + (double)FENCE_TAPE * k / 4.0;
        fprintf(f,
                "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"row\">%d</text>\n",
                x, x, y, bottom, x, bottom + 12, p->ops * k / 4);
    }
    for (s = least; s <= most * 1.01; s *= 10)
        fprintf(f,
                "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"row\">%s</text>\n",
                bars + fence_x(s, least, most), bars + fence_x(s, least, most), y, bottom,
                bars + fence_x(s, least, most), bottom + 12, fence_decade(s, t, sizeof t));
    fprintf(f,
            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"row\">operator of the "
            "list</text><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"row\">seconds "
            "per micro-batch</text>\n",
            (double)FENCE_LEFT + (double)FENCE_TAPE / 2.0, bottom + 26, bars + (double)FENCE_BARS / 2.0,
            bottom + 26);
}

static void fence_svg_panel(FILE *f, const fence_plans *v, int which, double y, double least, double most)
{
    const ddp_fence_plan *p = &v->plan[which];
    int k, j, high = fence_row_height(p->devices);
    char t[2][32];

    fprintf(f,
            "<text x=\"12\" y=\"%.1f\"><tspan font-weight=\"bold\">%s%s</tspan>: latency %s, "
            "iteration %s, %.3g samples/s; %d of %d devices in use</text>\n",
            y + 24, ddp_fence_solver_name(p->solver), v->idle[which] ? ", idle devices allowed" : "",
            plan_time(p->work.latency_s, t[0], sizeof t[0]), plan_time(p->work.pipeline_s, t[1], sizeof t[1]),
            p->work.throughput, p->segments, p->devices);
    y += (double)FENCE_HEAD;
    fence_svg_axes(f, p, y, y + high * p->devices, least, most);
    for (k = 0; k < p->devices; k++, y += high) {
        for (j = 0; j < p->segments && p->segment[j].device != p->order[k]; j++) {
        }
        fence_svg_row(f, v, p, p->order[k], j < p->segments ? &p->segment[j] : NULL, y, least, most);
    }
}

static void fence_svg(FILE *f, const fence_plans *v)
{
    double least = DBL_MAX, most = 0, y = FENCE_TOP;
    int i, d, height = FENCE_TOP;

    for (i = 0; i < v->count; i++) {
        const ddp_fence_plan *p = &v->plan[i];
        height += FENCE_HEAD + fence_row_height(p->devices) * p->devices + FENCE_FOOT;
        for (d = 0; d < p->devices; d++) {
            double c = p->work.compute_s[d], r = p->work.receive_s[d];
            if (c > 0 && c < least) least = c;
            if (r > 0 && r < least) least = r;
            if (c > most) most = c;
            if (r > most) most = r;
        }
    }
    if (!(most > 0)) most = least = 1;
    most = pow(10, ceil(log10(most) + 0.15)); /* space for the label of the longest bar */
    least = pow(10, floor(log10(least)));
    if (least < most * 1e-6) least = most * 1e-6;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
            "%d\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n"
            "<style>.row{font-size:9.5px}.small{fill:#555;font-size:11px}"
            ".grid{stroke:#ddd;stroke-width:0.7}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\">",
            FENCE_WIDTH, height, FENCE_WIDTH, height);
    plan_xml(f, v->what);
    fprintf(f,
            ": %d operators over %d devices, %ld micro-batch%s</text>\n"
            "<text x=\"12\" y=\"44\" class=\"small\">Rows: devices in pipeline order; one colour per "
            "cluster of near devices (Louvain). Left: the operators of each device.</text>\n"
            "<text x=\"12\" y=\"60\" class=\"small\">Right, logarithmic: compute time "
            "(coloured) and receive time (grey; red: at least a tenth of the latency), forward and "
            "backward.</text>\n",
            v->list->count, v->net->devices, v->microbatches, v->microbatches == 1 ? "" : "es");
    for (i = 0; i < v->count; i++) {
        fence_svg_panel(f, v, i, y, least, most);
        y += FENCE_HEAD + fence_row_height(v->plan[i].devices) * v->plan[i].devices + FENCE_FOOT;
    }
    fprintf(f, "</svg>\n");
}

/* ---- output ---- */

/* small: costs of the same plan with compressed messages, or NULL. */
static void fence_json(FILE *f, const ddp_oplist *list, const ddp_fence_plan *p, const ddp_workload *small,
                       int idle, double seconds, int event)
{
    char t[3][32];
    double bytes = 0;
    int k;

    for (k = 0; k < list->count; k++) bytes += list->op[k].param_bytes;
    fprintf(f,
            "{%s\"solver\": \"%s\", \"allow_idle\": %s, \"operators\": %d, \"devices\": %d, "
            "\"devices_used\": %d, \"clusters\": %d, \"latency_s\": %s, \"pipeline_s\": %s, "
            "\"throughput\": %s, \"proven\": %s, \"connected\": %s, ",
            event ? "\"event\": \"plan\", " : "", ddp_fence_solver_name(p->solver), idle ? "true" : "false",
            p->ops, p->devices, p->segments, p->clusters, plan_exact(p->work.latency_s, t[0], sizeof t[0]),
            plan_exact(p->work.pipeline_s, t[1], sizeof t[1]),
            plan_exact(p->work.throughput, t[2], sizeof t[2]), p->proven ? "true" : "false",
            p->connected ? "true" : "false");
    if (small)
        fprintf(f, "\"compressed\": {\"latency_s\": %s, \"pipeline_s\": %s, \"throughput\": %s}, ",
                plan_exact(small->latency_s, t[0], sizeof t[0]),
                plan_exact(small->pipeline_s, t[1], sizeof t[1]),
                plan_exact(small->throughput, t[2], sizeof t[2]));
    fprintf(f, "\"segments\": [");
    for (k = 0; k < p->segments; k++) {
        const ddp_fence_segment *s = &p->segment[k];
        fprintf(f,
                "%s{\"device\": %d, \"first\": %d, \"end\": %d, \"compute_s\": %.6g, "
                "\"receive_s\": %.6g, \"memory_gb\": %.6g}",
                k ? ", " : "", s->device, s->first, s->end, p->work.compute_s[s->device],
                p->work.receive_s[s->device], p->work.memory_bytes[s->device] / 1e9);
    }
    fprintf(f, "], \"param_bytes\": %s, \"solve_ms\": %.6f}\n", plan_exact(bytes, t[0], sizeof t[0]),
            seconds * 1e3);
}

/* Runs one solver and prints its plan. In a series (--solver all), a baseline that finds no plan is skipped
 * with a message. */
static ddp_status fence_solve(fence_plans *v, const ddp_fence_options *o, int series, FILE *line, FILE *json)
{
    int baseline = o->solver == DDP_FENCE_EQUAL_OPS || o->solver == DDP_FENCE_EQUAL_FLOPS;
    double start = ddp_now(), seconds;
    const ddp_workload *shown;
    ddp_workload small;
    ddp_error err;
    ddp_status status = ddp_fence(v->list, v->net, o, &v->plan[v->count], &err);

    seconds = ddp_now() - start;
    if (status != DDP_OK) {
        int remark = series && (baseline || !o->allow_idle) &&
                     (status == DDP_FAILED || (status == DDP_ARG && v->list->count < v->net->devices));
        fprintf(stderr, "plan fence: %s%s\n", err.msg, remark ? " (skipped)" : "");
        return remark ? DDP_OK : status;
    }
    v->idle[v->count] = !baseline && o->allow_idle;
    memset(&small, 0, sizeof small);
    if (v->compress.ratio > 0)
        status = ddp_workload_compress(&v->plan[v->count].work, v->net, &o->work, &v->compress, &small, &err);
    if (status == DDP_OK) {
        shown = v->compress.ratio > 0 ? &small : NULL;
        fence_json(line, v->list, &v->plan[v->count], shown, v->idle[v->count], seconds, 0);
        fence_json(json, v->list, &v->plan[v->count], shown, v->idle[v->count], seconds, 1);
    } else {
        fprintf(stderr, "plan fence: %s\n", err.msg);
    }
    ddp_workload_free(&small);
    v->count++;
    return status;
}

static int fence_run(const fence_arguments *a, fence_plans *v, ddp_fence_options *o)
{
    static const ddp_fence_solver all[FENCE_MOST] = {DDP_FENCE_EQUAL_OPS, DDP_FENCE_EQUAL_FLOPS,
                                                     DDP_FENCE_CUT, DDP_FENCE_CUT};
    plan_output out;
    int series = !strcmp(a->solver, "all"), code, i;
    ddp_status status = DDP_OK;

    if (!plan_output_open(&out, "plan")) return 1;
    for (i = 0; i < (series ? FENCE_MOST : 1) && status == DDP_OK; i++) {
        if (series) {
            o->solver = all[i];
            o->allow_idle = i == FENCE_MOST - 1;
        }
        status = fence_solve(v, o, series, out.line, out.json);
    }
    if (status == DDP_OK && a->svg) fence_svg(out.svg, v);
    code = plan_output_close(&out, "plan", status, a->json, a->svg);
    for (i = 0; i < v->count; i++) ddp_fence_plan_free(&v->plan[i]);
    return code;
}

/* Samples of a micro-batch: --batch, else the default of the model, else 1. */
static long fence_batch(const fence_arguments *a)
{
    int i;

    for (i = 0; !a->batch && a->model && i < PLAN_MODEL_COUNT; i++)
        if (!strcmp(a->model, plan_model_table[i].name)) return plan_model_table[i].batch;
    return a->batch ? a->batch : 1;
}

static int plan_fence(int argc, char **argv)
{
    static const char about[] =
        "Assigns the operators of a model to devices (FusionLLM's OP-Fence). A graph is a JSON list of\n"
        "{name, args, flops, output_bytes, param_bytes} in topological order, for one micro-batch. A\n"
        "network file has groups, delay_ms, bandwidth_gbps, tflops and memory_gb.";
    fence_arguments a = {NULL, NULL, NULL,           NULL,           "fence", NULL, NULL, NULL,
                         1,    -1,   PLAN_NOT_GIVEN, PLAN_NOT_GIVEN, 0,       0,    0,    0};
    const cli_option table[] = {
        {"Model", CLI_GROUP, NULL, NULL, NULL},
        {"--model", CLI_TEXT, &a.model, "NAME",
         "gpt2-xl, resnet18, resnet101, ... (an unknown name lists all)"},
        {"--graph", CLI_TEXT, &a.graph, "G.json",
         "in place of --model: a graph, written by you or by --write-graph of a trainer"},
        {"--write-graph", CLI_TEXT, &a.write, "G.json",
         "file for the operators of --model, input of --graph; prints no plan"},
        {"--microbatches", CLI_COUNT, &a.microbatches, "N", "micro-batches per iteration (default: 1)"},
        {"--batch", CLI_COUNT, &a.batch, "N",
         "samples per micro-batch (default: 3 to 128, by model; with --graph 1)"},
        {"--forward-only", CLI_FLAG, &a.forward_only, "", "inference: no backward pass"},
        {"Network", CLI_GROUP, NULL, NULL, NULL},
        {"--network", CLI_TEXT, &a.network, "NET.json", "devices and their links"},
        {"--variant", CLI_TEXT, &a.variant, "NAME", "variant of the network file, such as as_in_code"},
        {"--no-memory", CLI_FLAG, &a.no_memory, "", "ignore the memory limits of the devices"},
        {"Plan", CLI_GROUP, NULL, NULL, NULL},
        {"--solver", CLI_TEXT, &a.solver, "NAME", "fence, equal_ops, equal_flops or all (default: fence)"},
        {"--allow-idle", CLI_FLAG, &a.allow_idle, "", "fence: allow devices without operators"},
        {"--compress", CLI_REAL, &a.compress, "R",
         "also predict AdaTopK compression, which sends 1 of R values"},
        {"--factor", CLI_REAL, &a.factor, "F", "factor of AdaTopK (default: 3)"},
        {"--uniform", CLI_FLAG, &a.uniform, "",
         "send 1 of R values over every link, whatever its transfer time"},
        {"Output", CLI_GROUP, NULL, NULL, NULL},
        {"--svg", CLI_TEXT, &a.svg, "FILE", "chart of the plans"},
        {"--json", CLI_TEXT, &a.json, "FILE", "file for the JSON lines, which are also printed"},
    };
    int code = cli_parse(argc, argv, about, table, (int)(sizeof table / sizeof table[0]));
    ddp_fence_options o;
    ddp_oplist list;
    ddp_network net;
    ddp_error err;
    ddp_status status;
    fence_plans v;

    if (code >= 0) return code;
    memset(&o, 0, sizeof o);
    memset(&v, 0, sizeof v);
    memset(&list, 0, sizeof list);
    memset(&net, 0, sizeof net);
    if (!a.model == !a.graph)
        return plan_usage("plan fence", "one of --model NAME and --graph %s is needed", "FILE");
    if (a.write && !a.model) return plan_usage("plan fence", "--write-graph needs %s", "--model NAME");
    if (!a.network && !a.write) return plan_usage("plan fence", "--network %s is needed", "FILE");
    code = plan_count("plan fence", "--microbatches", "N", a.microbatches, 1, 1000000);
    if (code >= 0) return code;
    if (a.batch == 0)
        return plan_refuse("plan fence", "--batch", 0,
                           "at least 1; leave it out for the default of the model");
    if (a.batch < 0) a.batch = 0;
    if (strcmp(a.solver, "all") && ddp_fence_solver_named(a.solver, &o.solver, &err) != DDP_OK)
        return plan_usage("plan fence", "%s", err.msg);
    if (plan_given(a.compress) && a.compress < 1)
        return plan_refuse("plan fence", "--compress", a.compress,
                           "at least 1; leave it out for no compression");
    if ((plan_given(a.factor) || a.uniform) && !plan_given(a.compress))
        return plan_usage("plan fence", "--factor and --uniform need %s", "--compress R");
    if (plan_given(a.factor) && a.factor <= 0)
        return plan_refuse("plan fence", "--factor", a.factor,
                           "more than 0; leave it out for the default, 3");
    v.compress.ratio = plan_given(a.compress) ? a.compress : 0;
    v.compress.factor = plan_given(a.factor) ? a.factor : 0;
    v.compress.uniform = a.uniform;
    v.compress.packing = DDP_PACK_I64; /* the format of the paper, which its factor assumes */
    o.work.microbatches = (int)a.microbatches;
    o.work.samples = (double)fence_batch(&a) * (double)a.microbatches;
    o.work.forward_only = a.forward_only;
    o.no_memory = a.no_memory;
    o.allow_idle = a.allow_idle;
    status = a.write ? DDP_OK : ddp_network_read(a.network, a.variant, &net, &err);
    if (status == DDP_OK)
        status = a.graph ? ddp_oplist_read(a.graph, &list, &err)
                         : (ddp_status)plan_model_oplist(a.model, a.batch, &list, &err);
    if (status == DDP_OK && a.write) status = ddp_oplist_write(&list, a.write, &err);
    if (status == DDP_OK && a.write) {
        code = 0;
    } else if (status == DDP_OK) {
        v.list = &list;
        v.net = &net;
        v.what = a.graph ? a.graph : a.model;
        v.microbatches = a.microbatches;
        code = fence_run(&a, &v, &o);
    } else {
        fprintf(stderr, "plan fence: %s\n", err.msg);
        code = ddp_status_exit_code(status);
    }
    ddp_oplist_free(&list);
    ddp_network_free(&net);
    return code;
}

#endif /* EXAMPLES_PLAN_FENCE_H */
