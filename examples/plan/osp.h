/* plan osp: selects the layers that a parameter server may receive one iteration late. */
#ifndef EXAMPLES_PLAN_OSP_H
#define EXAMPLES_PLAN_OSP_H

#include "common.h"

typedef struct osp_arguments {
    const char *profile, *net, *importance, *rule, *svg, *json;
    double loss_rate, share, budget; /* budget: bytes, or PLAN_NOT_GIVEN */
    double loss, first_loss;         /* loss of the last and of the first epoch, or PLAN_NOT_GIVEN */
    long workers;
    int literal;
} osp_arguments;

enum { OSP_RULES = 4, OSP_LEFT = 96, OSP_WIDTH = 900, OSP_ROW = 112, OSP_HEAD = 70 };
static const char *const osp_rule_name[OSP_RULES] = {"walk", "stop", "density", "knapsack"};

/* The split that one rule selects. */
typedef struct osp_split {
    int rule;
    unsigned char *gib;
    double deferred, importance; /* deferred bytes, and their share of the total importance */
    double osp_s;
} osp_split;

typedef struct osp_plan {
    const ddp_profile *p;
    const double *importance;
    double *bytes;
    double model, compute_s, u_max, budget, bsp_s, per_byte_s;
    osp_split split[OSP_RULES];
    int count;
} osp_plan;

static void osp_json(FILE *f, const osp_plan *v, const osp_split *s, int event)
{
    char t[5][32];
    int l, n = 0;

    fprintf(f,
            "{%s\"rule\": \"%s\", \"u_max_bytes\": %s, \"budget_bytes\": %s, "
            "\"deferred_bytes\": %s, \"deferred_importance\": %.6g, \"bsp_s\": %s, "
            "\"osp_s\": %s, \"deferred\": [",
            event ? "\"event\": \"plan\", " : "", osp_rule_name[s->rule],
            plan_exact(v->u_max, t[0], sizeof t[0]), plan_exact(v->budget, t[1], sizeof t[1]),
            plan_exact(s->deferred, t[2], sizeof t[2]), s->importance,
            plan_exact(v->bsp_s, t[3], sizeof t[3]), plan_exact(s->osp_s, t[4], sizeof t[4]));
    for (l = 0; l < v->p->layers; l++)
        if (!(s->gib[l / 8] >> l % 8 & 1)) fprintf(f, "%s%d", n++ ? ", " : "", l);
    fprintf(f, "]}\n");
}

/* Draws a row of blocks, one per layer: the width is its bytes, the height its importance. */
static void osp_svg_row(FILE *f, const osp_plan *v, const osp_split *s, double y)
{
    double x = OSP_LEFT, top = 0, h, w;
    char t[2][32], own[32];
    int l, late;

    for (l = 0; l < v->p->layers; l++) top = fmax(top, v->importance[l]);
    fprintf(f,
            "<text x=\"12\" y=\"%.0f\" font-weight=\"bold\">%s</text><text x=\"12\" y=\"%.0f\" "
            "class=\"small\">%s</text><text x=\"%d\" y=\"%.0f\" class=\"small\">%.3g %% of the "
            "bytes and %.3g %% of the importance are sent during the next iteration's compute: "
            "%s per iteration instead of %s</text>\n",
            y + 40, osp_rule_name[s->rule], y + 56, plan_time(s->osp_s, t[0], sizeof t[0]), OSP_LEFT, y + 12,
            100 * s->deferred / v->model, 100 * s->importance, plan_time(s->osp_s, t[0], sizeof t[0]),
            plan_time(v->bsp_s, t[1], sizeof t[1]));
    for (l = 0; l < v->p->layers; l++, x += w) {
        w = v->bytes[l] / v->model * (OSP_WIDTH - OSP_LEFT - 20);
        if (!(w > 0)) continue;
        if (w < 3) w = 3;
        h = top > 0 ? 60 * v->importance[l] / top : 0;
        if (h < 1.5) h = 1.5;
        late = !(s->gib[l / 8] >> l % 8 & 1);
        fprintf(f,
                "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\" "
                "stroke=\"#fff\" stroke-width=\"0.7\"><title>",
                x, y + 80 - h, w, h, late ? "#cdd9ea" : "#2b5c9e");
        if (v->p->name && v->p->name[l])
            plan_xml(f, v->p->name[l]);
        else {
            snprintf(own, sizeof own, "layer %d", l);
            fputs(own, f);
        }
        fprintf(f, ": %.4g MB, %s</title></rect>\n", v->bytes[l] * 1e-6,
                late ? "one iteration late" : "at once");
        if (w < 22 || v->p->layers > 99) continue;
        fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"small\">%d</text>\n",
                x + w / 2, y + 92, l);
    }
}

static void osp_svg(FILE *f, const osp_plan *v)
{
    int height = OSP_HEAD + v->count * OSP_ROW, i;

    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 "
            "%d %d\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n"
            "<style>.small{fill:#555;font-size:11px}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\">OSP: %d layers, "
            "%.4g MB, of which at most %.4g MB are deferred</text>\n"
            "<text x=\"12\" y=\"44\" class=\"small\">one block per layer, input side first: "
            "width = bytes, height = importance; dark: sent at once, pale: "
            "one iteration late</text>\n",
            OSP_WIDTH, height, OSP_WIDTH, height, v->p->layers, v->model * 1e-6, v->budget * 1e-6);
    for (i = 0; i < v->count; i++) osp_svg_row(f, v, &v->split[i], OSP_HEAD + i * OSP_ROW);
    fprintf(f, "</svg>\n");
}

/* Reads one number per layer from the file of --importance. Without a file the importance of a layer is its
 * number of parameters, which gives each parameter the same weight. Returns 0 after printing an error. */
static int osp_importance(const osp_arguments *a, const ddp_profile *p, double *out)
{
    FILE *f;
    struct stat st;
    char rest[2];
    int l, ok = 1;

    if (!a->importance) {
        for (l = 0; l < p->layers; l++) out[l] = p->params[l];
        return 1;
    }
    if (!stat(a->importance, &st) && !S_ISREG(st.st_mode)) { /* reading a pipe would block until a writer
                                                              * opens it */
        fprintf(stderr, "plan osp: cannot read %s: not a regular file\n", a->importance);
        return 0;
    }
    f = fopen(a->importance, "r");
    if (!f) {
        fprintf(stderr, "plan osp: cannot read %s: %s\n", a->importance, strerror(errno));
        return 0;
    }
    for (l = 0; l < p->layers && ok; l++) ok = fscanf(f, "%lf", &out[l]) == 1;
    if (ok)
        ok = fscanf(f, "%1s", rest) != 1;
    else
        l--;
    if (!ok)
        fprintf(stderr, "plan osp: %s: %s; %d numbers are needed, one per layer of the profile\n",
                a->importance, l < p->layers ? "too few numbers, or not a number" : "too many numbers",
                p->layers);
    fclose(f);
    return ok;
}

static ddp_status osp_solve(const osp_arguments *a, osp_plan *v, unsigned char *gib, ddp_error *err)
{
    int rule = 0, all = !strcmp(a->rule, "all"), l;
    const int bytes = (v->p->layers + 7) / 8;
    ddp_status status;
    double sum = 0;

    for (l = 0; l < v->p->layers; l++) sum += v->importance[l];
    status = ddp_osp_umax(1 / v->per_byte_s, a->loss_rate, v->compute_s, (int)a->workers, v->model,
                          a->literal, &v->u_max, err);
    if (plan_given(a->loss))
        v->budget = ddp_osp_budget(a->loss, a->first_loss, v->u_max);
    else
        v->budget = plan_given(a->budget) ? a->budget : a->share * v->u_max;
    v->bsp_s = v->compute_s + (double)a->workers * v->model * v->per_byte_s;
    for (; rule < OSP_RULES && status == DDP_OK; rule++) {
        osp_split *s = &v->split[v->count];
        if (!all && strcmp(a->rule, osp_rule_name[rule])) continue;
        s->rule = rule;
        s->gib = gib + v->count * bytes;
        status = ddp_osp_rank(v->p->layers, v->importance, v->bytes, v->budget, (ddp_osp_rule)rule, s->gib,
                              &s->deferred, err);
        if (status != DDP_OK) break;
        for (l = 0, s->importance = 0; l < v->p->layers; l++)
            if (!(s->gib[l / 8] >> l % 8 & 1)) s->importance += sum > 0 ? v->importance[l] / sum : 0;
        s->osp_s = fmax(v->compute_s, (double)a->workers * s->deferred * v->per_byte_s) +
                   (double)a->workers * (v->model - s->deferred) * v->per_byte_s;
        v->count++;
    }
    return status;
}

static int osp_run(const osp_arguments *a, const ddp_profile *p, double rate)
{
    double *importance = (double *)calloc(2 * (size_t)p->layers, sizeof *importance);
    unsigned char *gib = (unsigned char *)calloc((size_t)OSP_RULES * ((size_t)p->layers / 8 + 1), 1);
    plan_output out;
    osp_plan v;
    ddp_error err;
    ddp_status status;
    int code = 1, i;

    memset(&v, 0, sizeof v);
    v.p = p;
    v.importance = importance;
    v.per_byte_s = 1 / rate;
    if (!importance || !gib) {
        fprintf(stderr, "plan osp: no memory for %d layers\n", p->layers);
    } else if (osp_importance(a, p, importance) && plan_output_open(&out, "plan osp")) {
        v.bytes = importance + p->layers;
        for (i = 0; i < p->layers; i++) {
            v.bytes[i] = 4 * p->params[i];
            v.model += v.bytes[i];
            v.compute_s += p->backward_s[i] + (p->forward_s ? p->forward_s[i] : 0);
        }
        status = osp_solve(a, &v, gib, &err);
        if (status != DDP_OK) fprintf(stderr, "plan osp: %s\n", err.msg);
        for (i = 0; i < v.count && status == DDP_OK; i++) {
            osp_json(out.line, &v, &v.split[i], 0);
            osp_json(out.json, &v, &v.split[i], 1);
        }
        if (status == DDP_OK) osp_svg(out.svg, &v);
        code = plan_output_close(&out, "plan osp", status, a->json, a->svg);
    }
    free(importance);
    free(gib);
    return code;
}

static int plan_osp(int argc, char **argv)
{
    static const char about[] =
        "Selects the layers that a parameter server may receive one iteration late (OSP), and predicts\n"
        "the time of an iteration. The importance of a layer is the sum of |gradient x parameter| over\n"
        "it.";
    osp_arguments a = {NULL,           NULL,           NULL,           "walk",         NULL, NULL, 0,
                       PLAN_NOT_GIVEN, PLAN_NOT_GIVEN, PLAN_NOT_GIVEN, PLAN_NOT_GIVEN, -1,   0};
    const cli_option table[] = {
        {"Input", CLI_GROUP, NULL, NULL, NULL},
        {"--profile", CLI_TEXT, &a.profile, "P.csv", "profile of the layers (.csv or .csv.gz)"},
        {"--net", CLI_TEXT, &a.net, "RATE", "link of the server in each direction, such as 1gbit"},
        {"--workers", CLI_COUNT, &a.workers, "N", "workers of the server"},
        {"--importance", CLI_TEXT, &a.importance, "FILE",
         "file with one number per layer (default: number of parameters of each layer)"},
        {"--loss-rate", CLI_REAL, &a.loss_rate, "LR", "fraction of lost packets, 0 to 1 (default: 0)"},
        {"Plan", CLI_GROUP, NULL, NULL, NULL},
        {"--rule", CLI_TEXT, &a.rule, "NAME", "walk, stop, density, knapsack or all (default: walk)"},
        {"--share", CLI_REAL, &a.share, "X", "largest share of U_max to defer, 0 to 1 (default: 1)"},
        {"--budget", CLI_REAL, &a.budget, "BYTES", "in place of --share: largest number of bytes to defer"},
        {"--loss", CLI_REAL, &a.loss, "X",
         "in place of --share: loss of the last epoch, from which OSP computes the share"},
        {"--first-loss", CLI_REAL, &a.first_loss, "X", "loss of the first epoch, with --loss"},
        {"--literal", CLI_FLAG, &a.literal, "", "compute U_max by the formula as printed in the paper"},
        {"Output", CLI_GROUP, NULL, NULL, NULL},
        {"--svg", CLI_TEXT, &a.svg, "FILE", "chart of the split"},
        {"--json", CLI_TEXT, &a.json, "FILE", "file for the JSON lines, which are also printed"},
    };
    int code = cli_parse(argc, argv, about, table, (int)(sizeof table / sizeof table[0])), i;
    double rate = 0, delay = 0;
    ddp_link link;
    ddp_profile p;
    ddp_error err;

    if (code >= 0) return code;
    if (!a.profile) return plan_usage("plan osp", "--profile %s is needed", "FILE");
    if (!a.net) return plan_usage("plan osp", "--net %s is needed", "RATE");
    code = plan_count("plan osp", "--workers", "N", a.workers, 1, 1000000);
    if (code >= 0) return code;
    if (plan_given(a.loss) != plan_given(a.first_loss))
        return plan_usage("plan osp", "--loss and %s need each other", "--first-loss");
    if (plan_given(a.loss) && (plan_given(a.share) || plan_given(a.budget)))
        return plan_usage("plan osp", "--loss and %s cannot be combined",
                          plan_given(a.share) ? "--share" : "--budget");
    if (plan_given(a.share) && plan_given(a.budget))
        return plan_usage("plan osp", "--share and %s cannot be combined", "--budget");
    if (!plan_given(a.share)) a.share = 1;
    if (!(a.share >= 0 && a.share <= 1)) return plan_refuse("plan osp", "--share", a.share, "0 to 1");
    if (plan_given(a.budget) && a.budget < 0)
        return plan_refuse("plan osp", "--budget", a.budget, "at least 0");
    for (i = 0; i < OSP_RULES && strcmp(a.rule, osp_rule_name[i]); i++) {
    }
    if (i == OSP_RULES && strcmp(a.rule, "all"))
        return plan_usage("plan osp", "rule '%s' is unknown; use walk, stop, density, knapsack or all",
                          a.rule);
    if (ddp_net_parse(a.net, &rate, &delay, &err) != DDP_OK) return plan_usage("plan osp", "%s", err.msg);
    if (!(rate > 0)) return plan_usage("plan osp", "--net needs a %s above 0", "rate");
    memset(&link, 0, sizeof link); /* comm_s of the profile is not used */
    link.beta_s = 1 / rate;
    if (ddp_profile_read(a.profile, &link, &p, &err) != DDP_OK) {
        fprintf(stderr, "plan osp: %s\n", err.msg);
        return ddp_status_exit_code(err.code);
    }
    code = osp_run(&a, &p, rate);
    ddp_profile_free(&p);
    return code;
}

#endif /* EXAMPLES_PLAN_OSP_H */
