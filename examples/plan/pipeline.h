/* plan pipeline: in which order the stages of a pipeline run their micro-batches, how long a step takes, what is held. */
#ifndef EXAMPLES_PLAN_PIPELINE_H
#define EXAMPLES_PLAN_PIPELINE_H

#include "common.h"

typedef struct pipeline_arguments {
    const char *schedule, *forward, *backward, *net, *svg, *json;
    long        stages, micro_batches, ahead;
    double      weights, bytes;
} pipeline_arguments;

/* ---- the picture: per schedule and stage three lanes, receive, compute and send ---- */

static const double pipeline_left = 96, pipeline_width = 1080, pipeline_lane = 18, pipeline_thin = 5;

static const char *pipeline_colour(const ddp_pipeline_slot *s)
{
    if (s->boundary >= 0) return s->gradient ? "#e8a33d" : "#8fb4e3";
    if (s->task.kind == DDP_TASK_FORWARD) return "#4f81c7";
    return s->task.kind == DDP_TASK_WEIGHT_GRADIENT ? "#5fae6e" : "#d9822b";
}

static const char *pipeline_what(const ddp_pipeline_slot *s)
{
    static const char *const what[] = {"forward", "backward", "input gradients", "weight gradients"};

    if (s->boundary < 0) return what[s->task.kind];
    if (s->task.kind == DDP_TASK_SEND) return s->gradient ? "sends a gradient" : "sends activations";
    return s->gradient ? "receives a gradient" : "receives activations";
}

static void pipeline_draw(FILE *f, const ddp_pipeline_times *t, int stages, double scale, double top)
{
    const double row = pipeline_lane + 2 * pipeline_thin + 6;
    char text[2][32];

    for (int i = 0; i < stages; i++)
        fprintf(f, "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\" class=\"small\">stage %d</text>\n",
                pipeline_left - 8, top + i * row + pipeline_thin + 13, i);
    for (int i = 0; i < t->slots; i++) {
        const ddp_pipeline_slot *s = &t->slot[i];
        const double x = pipeline_left + s->begin_s * scale, w = (s->end_s - s->begin_s) * scale;
        const double below = s->boundary < 0 ? pipeline_thin : s->task.kind == DDP_TASK_SEND
                                                                   ? pipeline_thin + pipeline_lane
                                                                   : 0;
        if (!(w > 0)) continue;
        fprintf(f, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"%s><title>stage %d %s, "
                   "micro-batch %d, %s from %s</title></rect>\n",
                x, top + s->stage * row + below, w < 0.4 ? 0.4 : w, s->boundary < 0 ? pipeline_lane : pipeline_thin,
                pipeline_colour(s), w > 3 ? " stroke=\"#fff\" stroke-width=\"0.7\"" : "", s->stage, pipeline_what(s),
                s->task.micro_batch, plan_time(s->end_s - s->begin_s, text[0], sizeof text[0]),
                plan_time(s->begin_s, text[1], sizeof text[1]));
        if (s->boundary < 0 && w >= 14)
            fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"in\">%d</text>\n", x + w / 2,
                    top + s->stage * row + below + 13, s->task.micro_batch);
    }
}

static void pipeline_svg(FILE *f, const ddp_pipeline *which, const ddp_pipeline_times *all, int count, int stages,
                         int micro_batches)
{
    const double block = stages * (pipeline_lane + 2 * pipeline_thin + 6) + 34;
    double longest = 0, scale;
    char text[32];

    for (int i = 0; i < count; i++) longest = fmax(longest, all[i].step_s);
    scale = (pipeline_width - pipeline_left - 20) / (longest > 0 ? longest : 1);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
            "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
            "<style>.small{fill:#555;font-size:11px}.in{fill:#fff;font-size:10px;text-anchor:middle;"
            "pointer-events:none}</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\">One step of %d stages and %d "
            "micro-batches</text>\n<text x=\"12\" y=\"43\" class=\"small\">blue: forward; orange: backward, or its input "
            "gradients; green: weight gradients. Thin: receiving above, sending below.</text>\n",
            pipeline_width, 60 + count * block, pipeline_width, 60 + count * block, stages, micro_batches);
    for (int i = 0; i < count; i++) {
        const double top = 60 + i * block;
        fprintf(f, "<text x=\"12\" y=\"%.1f\"><tspan font-weight=\"bold\">%s</tspan>: %s, bubble %.1f %%</text>\n",
                top + 14, ddp_pipeline_name(which[i]), plan_time(all[i].step_s, text, sizeof text), all[i].bubble_pct);
        pipeline_draw(f, &all[i], stages, scale, top + 22);
    }
    fprintf(f, "</svg>\n");
}

/* ---- the answer ---- */

static void pipeline_json(FILE *f, const ddp_pipeline_shape *p, const ddp_pipeline_times *t, int event)
{
    char s[32];

    fprintf(f, "{%s\"schedule\": \"%s\", \"stages\": %d, \"microbatches\": %d, \"step_s\": %s, \"bubble_pct\": %.4f, "
               "\"held\": [",
            event ? "\"event\": \"plan\", " : "", ddp_pipeline_name(p->schedule), p->stages, p->micro_batches,
            plan_exact(t->step_s, s, sizeof s), t->bubble_pct);
    for (int i = 0; i < p->stages; i++) fprintf(f, "%s%d", i ? ", " : "", t->held[i]);
    if (p->ahead) fprintf(f, "], \"ahead\": %d}\n", p->ahead);
    else fprintf(f, "]}\n");
}

static int pipeline_run(const pipeline_arguments *a, ddp_pipeline one, ddp_pipeline_costs *c)
{
    static const ddp_pipeline every[] = {DDP_PIPELINE_GPIPE, DDP_PIPELINE_1F1B, DDP_PIPELINE_ZB};
    const ddp_pipeline *which = one == DDP_PIPELINE_DEFAULT ? every : &one;
    const int most = one == DDP_PIPELINE_DEFAULT ? 3 : 1;
    ddp_pipeline_times t[3];
    ddp_status status = DDP_OK;
    plan_output out;
    ddp_error err;
    int n = 0;

    if (!plan_output_open(&out, "plan pipeline")) return 1;
    while (n < most && status == DDP_OK) {
        c->shape.schedule = which[n];
        status = ddp_pipeline_time(c, &t[n], &err);
        if (status != DDP_OK) fprintf(stderr, "plan pipeline: %s\n", err.msg);
        else pipeline_json(out.line, &c->shape, &t[n], 0), pipeline_json(out.json, &c->shape, &t[n], 1), n++;
    }
    if (status == DDP_OK) pipeline_svg(out.svg, which, t, n, c->shape.stages, c->shape.micro_batches);
    while (n) ddp_pipeline_times_free(&t[--n]);
    return plan_output_close(&out, "plan pipeline", status, a->json, a->svg);
}

/* ---- the command line ---- */

/* One number for all stages, or one for each. 1, or 0: the text is neither. */
static int pipeline_list(const char *text, int n, double *out)
{
    const char *at = text;
    int count = 0;
    char *end;

    do {
        if (count == n) return 0;
        out[count++] = strtod(at, &end);
        if (end == at || !(out[count - 1] >= 0) || (*end && *end != ',')) return 0;
        at = end + 1;
    } while (*end);
    for (int i = 1; count == 1 && i < n; i++) out[i] = out[0];
    return count == 1 || count == n;
}

/* Stages in a chain. 0: they are filled; else the exit code. */
static int pipeline_costs(const pipeline_arguments *a, ddp_stage_cost *stage, ddp_boundary *edge, double *number)
{
    double rate = 0, alpha = 0;
    ddp_error err;
    char text[32];

    snprintf(text, sizeof text, "%ld", a->stages);
    if (!pipeline_list(a->forward, (int)a->stages, number))
        return plan_usage("plan pipeline", "--forward-s is one number, or one for each of the %s stages", text);
    for (long s = 0; s < a->stages; s++) stage[s].forward_s = number[s];
    if (a->backward && !pipeline_list(a->backward, (int)a->stages, number))
        return plan_usage("plan pipeline", "--backward-s is one number, or one for each of the %s stages", text);
    if (a->net && ddp_net_parse(a->net, &rate, &alpha, &err) != DDP_OK) return plan_usage("plan pipeline", "%s", err.msg);
    for (long s = 0; s < a->stages; s++) {
        const double backward = a->backward ? number[s] : 2 * stage[s].forward_s;
        stage[s].weights_s = a->weights * backward;
        stage[s].inputs_s = backward - stage[s].weights_s;
        edge[s].from = (int)s;
        edge[s].to = (int)s + 1;
        edge[s].alpha_s = alpha;
        edge[s].forward_s = edge[s].backward_s = rate > 0 ? a->bytes / rate : 0;
    }
    return 0;
}

static int pipeline_check(const pipeline_arguments *a)
{
    if (a->stages < 1 || a->stages > 1024) return plan_usage("plan pipeline", "%s is needed, 1 to 1024", "--stages N");
    if (a->micro_batches < 1 || a->micro_batches > 65536)
        return plan_usage("plan pipeline", "%s is needed, 1 to 65536", "--microbatches M");
    if (a->ahead > 65536) return plan_usage("plan pipeline", "%s is at most 65536", "--ahead N");
    if (!(a->weights >= 0) || a->weights > 1)
        return plan_usage("plan pipeline", "%s is the share of weight gradients in a backward, 0 to 1", "--weights");
    if (!(a->bytes >= 0)) return plan_usage("plan pipeline", "%s must not be negative", "--bytes");
    if (a->bytes > 0 && !a->net) return plan_usage("plan pipeline", "--bytes needs %s", "--net RATE,DELAY");
    return -1;
}

static int plan_pipeline(int argc, char **argv)
{
    static const char about[] =
        "How long is a step of a pipeline, and what does each stage hold? Stages are a chain; a micro-batch's\n"
        "activations go forward over each boundary and its gradients come back.";
    pipeline_arguments a = {"all", "1", NULL, NULL, NULL, NULL, 0, 0, 0, 0.5, 0};
    const cli_option table[] = {
        {"--stages", CLI_COUNT, &a.stages, "N", "stages of the pipeline"},
        {"--microbatches", CLI_COUNT, &a.micro_batches, "M", "micro-batches of a step"},
        {"--schedule", CLI_TEXT, &a.schedule, "NAME", "gpipe, 1f1b, zb or all (default)"},
        {"--ahead", CLI_COUNT, &a.ahead, "N", "1f1b, zb: forwards more before a stage's first backward (default 0)"},
        {"--forward-s", CLI_TEXT, &a.forward, "S[,S..]", "seconds of a stage's forward per micro-batch (default 1)"},
        {"--backward-s", CLI_TEXT, &a.backward, "S[,S..]", "and of its backward (default twice that)"},
        {"--weights", CLI_REAL, &a.weights, "X", "of that, the share of the weight gradients (default 0.5)"},
        {"--bytes", CLI_REAL, &a.bytes, "B", "of a micro-batch's activations at a boundary (default 0)"},
        {"--net", CLI_TEXT, &a.net, "RATE,DELAY", "each stage's uplink and downlink, such as 100mbit,20ms"},
        {"--svg", CLI_TEXT, &a.svg, "FILE", "draw the step"},
        {"--json", CLI_TEXT, &a.json, "FILE", "write the JSON lines to FILE as well"},
    };
    int code = cli_parse(argc, argv, about, table, (int)(sizeof table / sizeof table[0]));
    ddp_pipeline one = DDP_PIPELINE_DEFAULT;
    ddp_pipeline_costs c;
    ddp_stage_cost *stage;
    ddp_boundary *edge;
    double *number;
    ddp_error err;

    if (code >= 0) return code;
    code = pipeline_check(&a);
    if (code >= 0) return code;
    if (strcmp(a.schedule, "all") && ddp_pipeline_named(a.schedule, &one, &err) != DDP_OK)
        return plan_usage("plan pipeline", "%s", err.msg);
    stage = (ddp_stage_cost *)calloc((size_t)a.stages, sizeof *stage);
    edge = (ddp_boundary *)calloc((size_t)a.stages, sizeof *edge);
    number = (double *)calloc((size_t)a.stages, sizeof *number);
    code = stage && edge && number ? pipeline_costs(&a, stage, edge, number) : 1;
    if (!stage || !edge || !number) fprintf(stderr, "plan pipeline: no memory for %ld stages\n", a.stages);
    c.shape.stages = (int)a.stages;
    c.shape.micro_batches = (int)a.micro_batches;
    c.shape.ahead = (int)a.ahead;
    c.stage = stage;
    c.boundaries = (int)a.stages - 1;
    c.boundary = edge;
    if (code == 0) code = pipeline_run(&a, one, &c);
    free(stage), free(edge), free(number);
    return code;
}

#endif /* EXAMPLES_PLAN_PIPELINE_H */
