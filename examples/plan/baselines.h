/* plan baselines: predicts a GPT's step on a network under DT-FM and under the systems that DT-FM is compared
 * with. */
#ifndef EXAMPLES_PLAN_BASELINES_H
#define EXAMPLES_PLAN_BASELINES_H

#include "baselines_cost.h"

/* ---- the output ---- */

static void baselines_number(FILE *f, const char *key, double v, int known)
{
    if (known)
        fprintf(f, ", \"%s\": %.6g", key, v);
    else
        fprintf(f, ", \"%s\": null", key);
}

static double baselines_pflops(const baselines_case *c, const baselines_row *r)
{
    return r->step_s > 0 ? 1e-15 * c->flops / r->step_s : 0;
}

static double baselines_utilisation(const baselines_case *c, const baselines_row *r)
{
    return 100 * baselines_pflops(c, r) / (1e-3 * c->a->peak * c->n.devices);
}

static void baselines_json(FILE *f, const baselines_case *c, const baselines_row *r, int event)
{
    const int known = r->step_s > 0;
    char s[40];

    fprintf(f, "{%s\"scheme\": \"%s\", \"grid\": {\"tensor\": %d, \"pipeline\": %d, \"data\": %d}",
            event ? "\"event\": \"plan\", " : "", r->scheme, r->tensor, r->pipeline, r->data);
    if (known)
        fprintf(f, ", \"step_s\": %s", plan_exact(r->step_s, s, sizeof s));
    else
        fprintf(f, ", \"step_s\": null");
    if (r->best_s > 0) baselines_number(f, "best_s", r->best_s, 1);
    baselines_number(f, "compute_s", r->compute_s, known);
    baselines_number(f, "bubble_s", r->bubble_s, known);
    baselines_number(f, "comm_s", fmax(0, r->step_s - r->compute_s - r->bubble_s), known);
    baselines_number(f, "pflops", baselines_pflops(c, r), known);
    baselines_number(f, "utilisation_pct", baselines_utilisation(c, r), known);
    baselines_number(f, "over_dtfm", r->step_s / c->dtfm_s, known && c->dtfm_s > 0);
    baselines_number(f, "memory_gb", 1e-9 * r->memory, known);
    fprintf(f, ", \"fits\": %s, \"why\": \"", baselines_fits(c, r) ? "true" : "false");
    for (const char *at = r->why; *at; at++) { /* names of groups may need escapes */
        if (*at == '"' || *at == '\\') fputc('\\', f);
        if ((unsigned char)*at >= 32) fputc(*at, f);
    }
    fprintf(f, "\"}\n");
}

static void baselines_print(plan_output *out, const baselines_case *c, const baselines_row *r)
{
    const double comm = fmax(0, r->step_s - r->compute_s - r->bubble_s);

    baselines_json(out->json, c, r, 1);
    if (!c->a->text) {
        baselines_json(out->line, c, r, 0);
        return;
    }
    fprintf(out->line, "%-18s%3d x%3d x%3d ", r->scheme, r->tensor, r->pipeline, r->data);
    if (!(r->step_s > 0)) {
        fprintf(out->line, "%54s  no    %s\n", "-", r->why);
        return;
    }
    fprintf(out->line, "%8.4g%8.4g%8.3g%8.4g%8.3f%6.3g%8.3g  %s   %s\n", r->step_s, r->compute_s, r->bubble_s,
            comm, baselines_pflops(c, r), baselines_utilisation(c, r),
            c->dtfm_s > 0 ? r->step_s / c->dtfm_s : 1, baselines_fits(c, r) ? "yes" : "no ", r->why);
}

/* ---- the grid search of Megatron and DeepSpeed ---- */

/* Evaluates every grid that divides the devices, heads, layers and batch, with a tensor degree of at most
 * `most`. *best receives the fastest grid that fits into memory. */
static ddp_status baselines_search(baselines_case *c, baselines_row *best, const baselines_way *w, int most,
                                   long layouts, plan_output *out, ddp_error *err)
{
    const int N = c->n.devices, limit = c->a->degrees > 0 ? (int)c->a->degrees : N;
    int grids = 0, full = 0;
    baselines_row r;
    ddp_status s = DDP_OK;
    char why[sizeof r.why];

    for (int T = 1; T <= N && T <= most && s == DDP_OK; T++) {
        for (int P = 1; P <= N / T && s == DDP_OK; P++) {
            memset(&r, 0, sizeof r);
            r.scheme = "megatron_grid";
            r.tensor = T;
            r.pipeline = P;
            r.data = N / T / P;
            r.micro_batch = c->a->micro_batch;
            if (N % (T * P) || c->a->heads % T || c->a->layers % P || c->a->batch % (r.data * r.micro_batch))
                continue;
            if (T > limit || P > limit || r.data > limit || P > 1024) continue;
            s = baselines_layouts(c, &r, w, 1, layouts, err);
            if (s != DDP_OK) break;
            grids++;
            full += !baselines_fits(c, &r);
            if (out) baselines_print(out, c, &r);
            if (!baselines_fits(c, &r) || (best->step_s > 0 && best->step_s <= r.step_s)) continue;
            r.scheme = best->scheme;
            *best = r;
        }
    }
    memcpy(why, best->why, sizeof why);
    snprintf(best->why, sizeof best->why, "best of %d grids, %d of them too large for %g GB%s%.200s", grids,
             full, c->a->memory, *why ? ": " : "", why);
    return s;
}

/* ---- the subcommand ---- */

static void baselines_row_of(baselines_row *r, const baselines_case *c, const char *scheme)
{
    memset(r, 0, sizeof *r);
    r->scheme = scheme;
    r->tensor = 1;
    r->pipeline = c->n.stages;
    r->data = c->n.pipelines;
    r->micro_batch = c->a->micro_batch;
}

static ddp_status baselines_all(baselines_case *c, plan_output *out, ddp_error *err)
{
    const baselines_arguments *a = c->a;
    const baselines_way dtfm = {DDP_PIPELINE_GPIPE, 0, 0, 1},
                        megatron = {DDP_PIPELINE_1F1B, !a->overlap, 0, 0};
    const baselines_way deepspeed = {DDP_PIPELINE_1F1B, !a->overlap, 1, 0};
    static const char *const zero[] = {"zero1", "zero3", "fsdp"};
    const int most = c->n.devices;
    baselines_row r;
    ddp_status s;

    baselines_row_of(&r, c, "dtfm");
    s = baselines_dtfm(c, &r, err);
    c->dtfm_s = r.step_s;
    if (s == DDP_OK) baselines_print(out, c, &r);
    baselines_row_of(&r, c, "dtfm_random");
    if (s == DDP_OK) s = baselines_layouts(c, &r, &dtfm, 0, a->seeds, err);
    if (s == DDP_OK) baselines_print(out, c, &r);
    for (int i = 0; i < 4 && s == DDP_OK; i++) {
        static const char *const name[] = {"megatron", "megatron_random", "zero1_pipe", "zero1_pipe_random"};
        baselines_row_of(&r, c, name[i]);
        r.pipeline = r.data = r.tensor = 0; /* printed if no grid fits */
        s = baselines_search(c, &r, i < 2 ? &megatron : &deepspeed, i < 2 ? most : 1, i % 2 ? a->seeds : 0,
                             a->all && i == 0 ? out : NULL, err);
        if (s == DDP_OK) baselines_print(out, c, &r);
    }
    for (int i = 0; i < 3 && s == DDP_OK; i++) {
        baselines_row_of(&r, c, zero[i]);
        baselines_zero(c, &r, (baselines_zero_kind)i);
        baselines_print(out, c, &r);
    }
    baselines_row_of(&r, c, "gpipe");
    if (s == DDP_OK) s = baselines_layouts(c, &r, &dtfm, 0, 0, err);
    if (s == DDP_OK) baselines_print(out, c, &r);
    return s;
}

static int baselines_run(baselines_case *c)
{
    const size_t N = (size_t)c->n.devices;
    ddp_status s = DDP_MEMORY;
    plan_output out;
    ddp_error err;

    memset(&err, 0, sizeof err);
    snprintf(err.msg, sizeof err.msg, "no memory for %d devices", c->n.devices);
    if (!plan_output_open(&out, "plan baselines")) return 1;
    c->order = (int *)calloc(4 * N, sizeof *c->order);
    c->whole = (double *)calloc(N * N, sizeof *c->whole);
    c->stage = (ddp_stage_cost *)calloc(2 * N, sizeof *c->stage);
    c->edge = (ddp_boundary *)calloc(2 * N, sizeof *c->edge);
    if (c->order && c->whole && c->stage && c->edge) {
        c->at = c->order + N;
        c->machine = c->at + N;
        c->leaving = c->machine + N;
        baselines_machines(c);
        c->stage_before = c->stage + N;
        c->edge_before = c->edge + N;
        if (c->a->text)
            fprintf(out.line,
                    "%.4g parameters, batch %ld, %.4g PFLOP a step, %d devices of %g TFLOP/s\n"
                    "%-18s%3s x%3s x%3s %8s%8s%8s%8s%8s%6s%8s  %s  %s\n",
                    c->params, c->a->batch, 1e-15 * c->flops, c->n.devices, c->a->peak, "scheme", "T", "P",
                    "D", "step s", "compute", "bubble", "comm", "PFLOPS", "%", "x dtfm", "fits", "why");
        s = baselines_all(c, &out, &err);
    }
    if (s != DDP_OK) fprintf(stderr, "plan baselines: %s\n", err.msg);
    free(c->order);
    free(c->whole);
    free(c->stage);
    free(c->edge);
    return plan_output_close(&out, "plan baselines", s, c->a->json, NULL);
}

/* Checks the options. Returns -1, or the exit code after printing an error. */
static int baselines_mistake(const baselines_arguments *a)
{
    static const char me[] = "plan baselines";

    if (!a->network) return plan_usage(me, "%s is needed", "--network FILE");
    if (a->layers < 1) return plan_refuse(me, "--layers", (double)a->layers, "at least 1");
    if (a->dim < 1) return plan_refuse(me, "--dim", (double)a->dim, "at least 1");
    if (a->heads < 1 || a->dim % a->heads)
        return plan_refuse(me, "--heads", (double)a->heads, "a divisor of --dim");
    if (a->seq < 1) return plan_refuse(me, "--seq", (double)a->seq, "at least 1");
    if (a->batch < 1 || a->batch > 1000000)
        return plan_refuse(me, "--batch", (double)a->batch, "1 to 1000000");
    if (a->micro_batch < 1) return plan_refuse(me, "--micro-batch", (double)a->micro_batch, "at least 1");
    if (!(a->peak > 0)) return plan_refuse(me, "--peak", a->peak, "more than 0");
    if (!(a->share > 0 && a->share <= 1))
        return plan_refuse(me, "--share", a->share, "more than 0 and at most 1");
    if (!(a->memory > 0)) return plan_refuse(me, "--memory", a->memory, "more than 0");
    if (!(a->gradient_bytes > 0))
        return plan_refuse(me, "--gradient-bytes", a->gradient_bytes, "more than 0");
    if (a->seeds < 1 || a->seeds > 1000) return plan_refuse(me, "--seeds", (double)a->seeds, "1 to 1000");
    if (a->candidates == 0)
        return plan_refuse(me, "--candidates", 0, "at least 1; leave it out for the default");
    if (a->pipelines == 0) return plan_refuse(me, "--pipelines", 0, "at least 1; leave it out to use D_dp");
    if (a->degrees == 0) return plan_refuse(me, "--degrees", 0, "at least 1; leave it out for no limit");
    if (a->stages == 0) return plan_refuse(me, "--stages", 0, "at least 1; leave it out to use D_pp");
    return -1;
}

/* Sets the grid of DT-FM from the options, else from the network. Returns -1, or the exit code. */
static int baselines_shape(baselines_case *c)
{
    const baselines_arguments *a = c->a;
    const int N = c->n.devices;

    if (a->pipelines > 0) c->n.pipelines = (int)a->pipelines;
    if (a->stages > 0) c->n.stages = (int)a->stages;
    if (a->pipelines > 0 && a->stages < 0 && N % c->n.pipelines == 0) c->n.stages = N / c->n.pipelines;
    if (a->stages > 0 && a->pipelines < 0 && N % c->n.stages == 0) c->n.pipelines = N / c->n.stages;
    if (c->n.pipelines < 1 || c->n.stages < 1)
        return plan_usage("plan baselines", "%s has no D_dp and D_pp; give --pipelines and --stages",
                          a->network);
    if ((long)c->n.pipelines * c->n.stages != N) {
        fprintf(stderr,
                "plan baselines: %d pipelines of %d stages do not match the %d devices of the network\n",
                c->n.pipelines, c->n.stages, N);
        return 2;
    }
    if (a->layers % c->n.stages) {
        fprintf(stderr,
                "plan baselines: %ld layers are not a multiple of %d stages; change --layers or --stages\n",
                a->layers, c->n.stages);
        return 2;
    }
    if (a->batch % (c->n.pipelines * a->micro_batch)) {
        fprintf(stderr,
                "plan baselines: a batch of %ld is not a multiple of %d pipelines x %ld sequences per "
                "micro-batch\n",
                a->batch, c->n.pipelines, a->micro_batch);
        return 2;
    }
    return -1;
}

static int plan_baselines(int argc, char **argv)
{
    static const char about[] =
        "Predicts a GPT's step on this network under DT-FM and the systems that DT-FM is compared with.\n"
        "Prints a line for each: dtfm, its random layouts, Megatron and ZeRO-1 with pipelines (the best\n"
        "of their grids, in file order and on random layouts), ZeRO-1, ZeRO-3, FSDP, and GPipe in file\n"
        "order.";
    baselines_arguments a = {NULL, NULL, NULL, 24,  2048,  16, 2048, 50257, 1024, 1, -1, -1, -1,
                             0,    3,    -1,   125, 0.385, 16, 2,    0,     0,    0, 0,  0};
    const cli_option table[] = {
        {"Network", CLI_GROUP, NULL, NULL, NULL},
        {"--network", CLI_TEXT, &a.network, "NET.json", "devices, links, D_dp and D_pp, as for `plan place`"},
        {"--variant", CLI_TEXT, &a.variant, "NAME", "variant of the network file, such as as_in_code"},
        {"--peak", CLI_REAL, &a.peak, "TFLOPS",
         "peak rate of a device in 10^12 operations per second (default: 125, a V100)"},
        {"--share", CLI_REAL, &a.share, "X", "fraction of --peak that a device reaches (default: 0.385)"},
        {"--memory", CLI_REAL, &a.memory, "GB",
         "memory of a device; the search skips grids that need more (default: 16)"},
        {"--machines", CLI_FLAG, &a.machines, "",
         "treat each group with faster links inside as a machine whose devices share its network card"},
        {"Model", CLI_GROUP, NULL, NULL, NULL},
        {"--layers", CLI_COUNT, &a.layers, "N", "layers of the GPT (default: 24)"},
        {"--dim", CLI_COUNT, &a.dim, "N", "width (default: 2048)"},
        {"--heads", CLI_COUNT, &a.heads, "N", "attention heads (default: 16)"},
        {"--seq", CLI_COUNT, &a.seq, "N", "tokens per sequence (default: 2048)"},
        {"--vocab", CLI_COUNT, &a.vocab, "N", "rows of the embedding (default: 50257)"},
        {"--batch", CLI_COUNT, &a.batch, "N", "sequences per step (default: 1024)"},
        {"--micro-batch", CLI_COUNT, &a.micro_batch, "N",
         "sequences per micro-batch of a pipeline (default: 1)"},
        {"--keep-activations", CLI_FLAG, &a.keep, "", "store all activations, recompute none"},
        {"--gradient-bytes", CLI_REAL, &a.gradient_bytes, "B",
         "bytes sent per gradient value by grids with pipelines (default: 2)"},
        {"Plan", CLI_GROUP, NULL, NULL, NULL},
        {"--pipelines", CLI_COUNT, &a.pipelines, "N",
         "DT-FM, GPipe: number of pipelines, in place of D_dp of the network"},
        {"--stages", CLI_COUNT, &a.stages, "N",
         "DT-FM, GPipe: stages per pipeline, in place of D_pp of the network"},
        {"--degrees", CLI_COUNT, &a.degrees, "N",
         "largest degree in the grid search (default: no limit; the paper uses 8)"},
        {"--overlap", CLI_FLAG, &a.overlap, "",
         "let Megatron and ZeRO-1 with pipelines compute while they send"},
        {"--seed", CLI_COUNT, &a.seed, "N",
         "seed of the search, and of the first random layout (default: 0)"},
        {"--seeds", CLI_COUNT, &a.seeds, "N", "number of random layouts (default: 3)"},
        {"--candidates", CLI_COUNT, &a.candidates, "N",
         "largest number of moves in DT-FM's search (default: 4000000)"},
        {"Output", CLI_GROUP, NULL, NULL, NULL},
        {"--all", CLI_FLAG, &a.all, "", "print a line for each of Megatron's grids"},
        {"--text", CLI_FLAG, &a.text, "", "print a table in place of JSON lines"},
        {"--json", CLI_TEXT, &a.json, "FILE", "file for the JSON lines, which are also printed"},
    };
    int code = cli_parse(argc, argv, about, table, (int)(sizeof table / sizeof table[0]));
    baselines_case c;
    ddp_error err;
    ddp_status status;

    if (code < 0) code = baselines_mistake(&a);
    if (code >= 0) return code;
    if (a.candidates < 0) a.candidates = 4000000;
    memset(&c, 0, sizeof c);
    c.a = &a;
    status = ddp_network_read(a.network, a.variant, &c.n, &err);
    if (status != DDP_OK) {
        fprintf(stderr, "plan baselines: %s\n", err.msg);
        return ddp_status_exit_code(status);
    }
    code = baselines_shape(&c);
    if (code < 0) {
        baselines_costs(&c);
        code = baselines_run(&c);
    }
    ddp_network_free(&c.n);
    return code;
}

#endif /* EXAMPLES_PLAN_BASELINES_H */
