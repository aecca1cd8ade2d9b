/* plan pipeline: predicts the step time of pipeline schedules, and the micro-batches that each stage
 * stores. */
#ifndef EXAMPLES_PLAN_PIPELINE_H
#define EXAMPLES_PLAN_PIPELINE_H

#include "common.h"

typedef struct pipeline_arguments {
    const char *schedule, *forward, *backward, *net, *svg, *json;
    long stages, micro_batches, ahead;
    double weights, bytes;
} pipeline_arguments;

/* ---- output ---- */

static void pipeline_json(FILE *f, const ddp_pipeline_shape *p, const ddp_pipeline_times *t, int event)
{
    char s[32];

    fprintf(f,
            "{%s\"schedule\": \"%s\", \"stages\": %d, \"microbatches\": %d, \"step_s\": %s, \"bubble_pct\": "
            "%.4f, "
            "\"held\": [",
            event ? "\"event\": \"plan\", " : "", ddp_pipeline_name(p->schedule), p->stages, p->micro_batches,
            plan_exact(t->step_s, s, sizeof s), t->bubble_pct);
    for (int i = 0; i < p->stages; i++) fprintf(f, "%s%d", i ? ", " : "", t->held[i]);
    if (p->ahead)
        fprintf(f, "], \"ahead\": %d}\n", p->ahead);
    else
        fprintf(f, "]}\n");
}

static int pipeline_run(const pipeline_arguments *a, ddp_pipeline one, ddp_pipeline_costs *c)
{
    static const ddp_pipeline every[] = {DDP_PIPELINE_GPIPE, DDP_PIPELINE_1F1B, DDP_PIPELINE_ZB};
    const ddp_pipeline *which = one == DDP_PIPELINE_DEFAULT ? every : &one;
    const int most = one == DDP_PIPELINE_DEFAULT ? 3 : 1;
    ddp_pipeline_times t[3];
    ddp_report_pipeline picture[3];
    ddp_status status = DDP_OK;
    plan_output out;
    ddp_error err;
    int n = 0;

    if (!plan_output_open(&out, "plan pipeline")) return 1;
    while (n < most && status == DDP_OK) {
        c->shape.schedule = which[n];
        status = ddp_pipeline_time(c, &t[n], &err);
        if (status != DDP_OK)
            fprintf(stderr, "plan pipeline: %s\n", err.msg);
        else {
            pipeline_json(out.line, &c->shape, &t[n], 0);
            pipeline_json(out.json, &c->shape, &t[n], 1);
            n++;
        }
    }
    for (int i = 0; i < n; i++) {
        const ddp_report_pipeline p = {ddp_pipeline_name(which[i]),
                                       c->shape.stages,
                                       t[i].slot,
                                       t[i].slots,
                                       0,
                                       t[i].step_s,
                                       t[i].bubble_pct};
        picture[i] = p;
    }
    if (status == DDP_OK && a->svg) status = ddp_report_pipelines(picture, n, out.svg, &err);
    while (n) ddp_pipeline_times_free(&t[--n]);
    return plan_output_close(&out, "plan pipeline", status, a->json, a->svg);
}

/* ---- the command line ---- */

/* Parses one number for all stages, or one number per stage. Returns 0 for any other text. */
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

/* Fills the costs of a chain of stages. Returns 0, or the exit code. */
static int pipeline_costs(const pipeline_arguments *a, ddp_stage_cost *stage, ddp_boundary *edge,
                          double *number)
{
    double rate = 0, alpha = 0;
    ddp_error err;
    char text[32];

    snprintf(text, sizeof text, "%ld", a->stages);
    if (!pipeline_list(a->forward, (int)a->stages, number))
        return plan_usage("plan pipeline", "--forward-s needs one number, or one for each of the %s stages",
                          text);
    for (long s = 0; s < a->stages; s++) stage[s].forward_s = number[s];
    if (a->backward && !pipeline_list(a->backward, (int)a->stages, number))
        return plan_usage("plan pipeline", "--backward-s needs one number, or one for each of the %s stages",
                          text);
    if (a->net && ddp_net_parse(a->net, &rate, &alpha, &err) != DDP_OK)
        return plan_usage("plan pipeline", "%s", err.msg);
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
    int code = plan_count("plan pipeline", "--stages", "N", a->stages, 1, 1024);

    if (code < 0) code = plan_count("plan pipeline", "--microbatches", "M", a->micro_batches, 1, 65536);
    if (code >= 0) return code;
    if (a->ahead > 65536) return plan_refuse("plan pipeline", "--ahead", (double)a->ahead, "at most 65536");
    if (!(a->weights >= 0) || a->weights > 1)
        return plan_refuse("plan pipeline", "--weights", a->weights,
                           "0 to 1, the share of weight gradients in the backward time");
    if (!(a->bytes >= 0)) return plan_refuse("plan pipeline", "--bytes", a->bytes, "at least 0");
    if (a->bytes > 0 && !a->net) return plan_usage("plan pipeline", "--bytes needs %s", "--net RATE,DELAY");
    return -1;
}

static int plan_pipeline(int argc, char **argv)
{
    static const char about[] =
        "Predicts the step time of a pipeline, and the number of micro-batches that each stage stores.\n"
        "The stages form a chain: activations of a micro-batch are sent forward over each boundary,\n"
        "gradients backward.";
    pipeline_arguments a = {"all", "1", NULL, NULL, NULL, NULL, -1, -1, 0, 0.5, 0};
    const cli_option table[] = {
        {"Pipeline", CLI_GROUP, NULL, NULL, NULL},
        {"--stages", CLI_COUNT, &a.stages, "N", "stages of the pipeline"},
        {"--microbatches", CLI_COUNT, &a.micro_batches, "M", "micro-batches of a step"},
        {"--schedule", CLI_TEXT, &a.schedule, "NAME", "gpipe, 1f1b, zb or all (default: all)"},
        {"--ahead", CLI_COUNT, &a.ahead, "N",
         "1f1b, zb: additional forward passes before a stage's first backward pass (default: 0)"},
        {"Times", CLI_GROUP, NULL, NULL, NULL},
        {"--forward-s", CLI_TEXT, &a.forward, "S[,S..]",
         "forward time of a micro-batch in seconds: one for all stages, or one per stage (default: 1)"},
        {"--backward-s", CLI_TEXT, &a.backward, "S[,S..]",
         "backward time of a micro-batch in seconds (default: twice the forward time)"},
        {"--weights", CLI_REAL, &a.weights, "X",
         "share of weight gradients in the backward time, 0 to 1 (default: 0.5)"},
        {"--bytes", CLI_REAL, &a.bytes, "B",
         "bytes of a micro-batch's activations between two stages (default: 0)"},
        {"--net", CLI_TEXT, &a.net, "RATE,DELAY", "link of each stage, such as 100mbit,20ms"},
        {"Output", CLI_GROUP, NULL, NULL, NULL},
        {"--svg", CLI_TEXT, &a.svg, "FILE", "chart of the step"},
        {"--json", CLI_TEXT, &a.json, "FILE", "file for the JSON lines, which are also printed"},
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
    free(stage);
    free(edge);
    free(number);
    return code;
}

#endif /* EXAMPLES_PLAN_PIPELINE_H */
