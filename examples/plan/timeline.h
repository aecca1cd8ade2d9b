/* plan timeline: predicts the time of an iteration under DeFT and its baselines. */
#ifndef EXAMPLES_PLAN_TIMELINE_H
#define EXAMPLES_PLAN_TIMELINE_H

#include "common.h"
#include "deft.h"

typedef struct timeline_arguments {
    const char *profile, *scheme, *select, *net, *svg, *json;
    double mu, alpha, partition, partition_s, credit, bucket, first_bucket; /* or PLAN_NOT_GIVEN */
    double frequency, capacity;                                             /* or PLAN_NOT_GIVEN */
    double gap;
    long links, operations, workers;
    int no_barrier, schedule;
} timeline_arguments;

/* ---- chart: for each scheme a compute lane, and below it the link ---- */

typedef struct timeline_picture {
    FILE *f;
    const ddp_profile *p;
    double scale, top; /* points per second, y of the first lane of the current scheme */
    double frequency;  /* deft: updates per iteration, 1 under the other schemes */
    int pending;       /* lanes from this one on carry older gradients. They are drawn on lane - pending. */
} timeline_picture;

static const double timeline_left = 118, timeline_width = 1080;
static const double timeline_head = 82, timeline_lane = 18;

static const char *timeline_row(const ddp_profile *p, int l, char *out, size_t room)
{
    if (p->name && p->name[l] && p->name[l][0]) return p->name[l];
    snprintf(out, room, "bucket %d", l);
    return out;
}

static void timeline_box(const timeline_picture *v, const ddp_interval *x, double y, double height)
{
    static const char *const what[] = {"backward of", "forward of", "link:"};
    int n = v->p->layers, hue = n > 1 ? 300 * x->bucket / (n - 1) : 210;
    int link = x->kind == DDP_INTERVAL_LINK;
    int pale = link ? x->lane >= v->pending : x->kind == DDP_INTERVAL_FORWARD;
    double at = timeline_left + x->begin_s * v->scale, w = (x->end_s - x->begin_s) * v->scale;
    char own[32], t[2][32];

    if (!(w > 0)) return;
    fprintf(v->f,
            "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" "
            "fill=\"hsl(%d,%d%%,%d%%)\"%s><title>%s ",
            at, y, w < 0.4 ? 0.4 : w, height, hue, pale ? 45 : 60, pale ? 80 : 60,
            w > 3 ? " stroke=\"#fff\" stroke-width=\"0.7\"" : "", what[x->kind]);
    plan_xml(v->f, timeline_row(v->p, x->bucket, own, sizeof own));
    if (x->last > x->bucket) {
        fprintf(v->f, " to ");
        plan_xml(v->f, timeline_row(v->p, x->last, own, sizeof own));
    }
    if (link && x->parts > 1)
        fprintf(v->f, ", parts %d to %d", x->part, x->part + x->parts - 1);
    else if (link)
        fprintf(v->f, ", part %d", x->part);
    fprintf(v->f, ", %s from %s</title></rect>\n", plan_time(x->end_s - x->begin_s, t[0], sizeof t[0]),
            plan_time(x->begin_s, t[1], sizeof t[1]));
    if (w < 15 || height < 12) return;
    fprintf(v->f, "<text x=\"%.1f\" y=\"%.1f\" class=\"in\">%d", at + w / 2, y + height - 5, x->bucket + 1);
    if (x->last > x->bucket && w > 30) fprintf(v->f, "-%d", x->last + 1);
    fprintf(v->f, "</text>\n");
}

static int timeline_pending(const ddp_timeline *t)
{
    return t->scheme == DDP_SCHEME_DEFT ? (int)DEFT_PENDING : INT_MAX;
}

/* The number of lanes that the link uses. ascwfbp uses several, which share the height of one lane. */
static int timeline_lanes(const ddp_timeline *t)
{
    int i, lane, most = 0;

    for (i = 0; i < t->intervals; i++) {
        lane = t->interval[i].lane % timeline_pending(t);
        if (lane > most) most = lane;
    }
    return most + 1;
}

static double timeline_height(const ddp_timeline *t)
{
    int lanes = timeline_lanes(t);

    return 2 * timeline_lane + 26 + (lanes > 3 ? (lanes - 3) * 6 : 0);
}

static void timeline_draw(timeline_picture *v, const ddp_timeline *t)
{
    int i, lanes = timeline_lanes(t);
    double x = timeline_left + t->iteration_s * v->scale, below = v->top + timeline_lane + 3, one;
    char s[32];

    v->pending = timeline_pending(t);
    one = lanes > 3 ? 6 : timeline_lane / lanes;
    fprintf(v->f,
            "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\" font-weight=\"bold\">%s</text>\n"
            "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\" class=\"small\">link</text>\n",
            timeline_left - 10, v->top + 13, ddp_scheme_name(t->scheme), timeline_left - 10, below + 13);
    for (i = 0; i < t->intervals; i++) {
        const ddp_interval *k = &t->interval[i];
        if (k->kind != DDP_INTERVAL_LINK)
            timeline_box(v, k, v->top, timeline_lane);
        else
            timeline_box(v, k, below + k->lane % v->pending * one, one - (lanes > 1));
    }
    fprintf(v->f,
            "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#b3261e\" "
            "stroke-width=\"1.5\"/>\n"
            "<text x=\"%.1f\" y=\"%.1f\" class=\"end\">%s",
            x, x, v->top - 3, below + (lanes > 3 ? lanes * 6 : timeline_lane) + 3, x + 6, v->top + 13,
            plan_time(t->iteration_s, s, sizeof s));
    if (t->scheme == DDP_SCHEME_DEFT) fprintf(v->f, ", %.3g updates per iteration", v->frequency);
    fprintf(v->f, "</text>\n");
    v->top += timeline_height(t);
}

/* The distance between ticks: 1, 2 or 5 times a power of ten, about an eighth of the axis. */
static double timeline_tick(double whole)
{
    double unit = pow(10, floor(log10(whole / 8)));

    return whole / 8 > 5 * unit ? 10 * unit : whole / 8 > 2 * unit ? 5 * unit : 2 * unit;
}

static void timeline_axis(const timeline_picture *v, double longest)
{
    double tick = timeline_tick(longest), t, x;
    int i;

    for (i = 0; (t = i * tick) <= longest * 1.0001; i++) {
        x = timeline_left + t * v->scale;
        fprintf(v->f,
                "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"small\">%.6g</text>\n",
                x, x, timeline_head - 8, v->top - 8, x, v->top + 6, longest < 1 ? t * 1e3 : t);
    }
    fprintf(v->f,
            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"small\">"
            "time from the start of backward, %s</text>\n",
            timeline_left + longest / 2 * v->scale, v->top + 24, longest < 1 ? "ms" : "s");
}

/* The grid is drawn before the lanes, so the total height is computed first. */
static void timeline_svg(FILE *f, const ddp_profile *p, const ddp_timeline *all, int count, double frequency)
{
    double longest = 0, bottom = timeline_head;
    timeline_picture v;
    char t[32];
    int i;

    for (i = 0; i < count; i++) {
        if (all[i].iteration_s > longest) longest = all[i].iteration_s;
        bottom += timeline_height(&all[i]);
    }
    if (!(longest > 0)) longest = 1;
    v.f = f;
    v.p = p;
    v.frequency = frequency;
    v.scale = (timeline_width - timeline_left - 80) / longest;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
            "<style>.end{fill:#b3261e;font-weight:bold}.small{fill:#555;font-size:11px}"
            ".in{fill:#222;font-size:10px;text-anchor:middle;pointer-events:none}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\">"
            "One iteration of %d buckets, by scheme</text>\n",
            timeline_width, bottom + 36, timeline_width, bottom + 36, p->layers);
    fprintf(f, "<text x=\"12\" y=\"44\" class=\"small\">"
               "upper lane: backward (dark), then the forward that uses its gradients (pale); "
               "lower lane: transfers (deft: fast and slow link; pale: older gradients).</text>\n"
               "<text x=\"12\" y=\"58\" class=\"small\">"
               "One colour per bucket, numbered from the input side; red: end of the iteration; "
               "dashed: lower bound</text>\n");
    v.top = bottom;
    timeline_axis(&v, longest);
    v.top = timeline_head;
    for (i = 0; i < count; i++) {
        double x = timeline_left + all[i].lower_bound_s * v.scale, y = v.top - 5;
        timeline_draw(&v, &all[i]);
        fprintf(f,
                "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#1f4fd8\" "
                "stroke-dasharray=\"4 3\"><title>lower bound %s</title></line>\n",
                x, x, y, v.top - 20, plan_time(all[i].lower_bound_s, t, sizeof t));
    }
    fprintf(f, "</svg>\n");
}

/* ---- output ---- */

static void timeline_json(FILE *f, const ddp_timeline *t, double seconds, int event)
{
    char s[2][32];

    fprintf(f,
            "{%s\"scheme\": \"%s\", \"iteration_s\": %s, \"lower_bound_s\": %s, \"buckets\": %d, "
            "\"operations\": %d, \"solve_ms\": %.6f}\n",
            event ? "\"event\": \"plan\", " : "", ddp_scheme_name(t->scheme),
            plan_exact(t->iteration_s, s[0], sizeof s[0]), plan_exact(t->lower_bound_s, s[1], sizeof s[1]),
            t->buckets, t->intervals - 2 * t->buckets, seconds * 1e3);
}

static void timeline_deft_request(const timeline_arguments *a, const ddp_profile *p, plan_deft_request *r)
{
    memset(r, 0, sizeof *r);
    r->links = a->links;
    r->mu = plan_given(a->mu) ? a->mu : 0;
    r->alpha_s = plan_given(a->alpha) ? a->alpha : 0;
    r->select = a->select;
    r->partition_s = plan_given(a->partition_s) ? a->partition_s : 0;
    r->partition_params = plan_given(a->partition) ? a->partition : 0;
    r->frequency = plan_given(a->frequency) ? a->frequency : 0;
    r->capacity = plan_given(a->capacity) ? a->capacity : 0;
    r->no_barrier = a->no_barrier;
    r->schedule = a->schedule;
    deft_default_partition(p, r);
}

/* Prints an error of the library, with the names of options in place of the names of fields. */
static void timeline_say(const char *scheme, const ddp_error *err)
{
    static const char *const field[] = {"partition_s", "alpha_s", "bucket_bytes"};
    static const char *const option[] = {"--partition-s", "--alpha", "--bucket-mib"};
    const char *at = err->msg, *next;
    int i, found;

    fprintf(stderr, "plan timeline: %s%s", scheme, *scheme ? ": " : "");
    for (; *at; at = next) {
        for (found = -1, i = 0; i < 3; i++)
            if (!strncmp(at, field[i], strlen(field[i]))) found = i;
        next = at + (found < 0 ? 1 : strlen(field[found]));
        if (found < 0)
            fputc(*at, stderr);
        else
            fputs(option[found], stderr);
    }
    fputc('\n', stderr);
}

/* Collects in `names` the schemes that fail with the same error, so that it is printed once. A different
 * error first prints the collected one. */
static void timeline_collect(char *names, size_t room, const char *scheme, ddp_error *said,
                             const ddp_error *err)
{
    if (*names && strcmp(said->msg, err->msg)) {
        timeline_say(names, said);
        *names = 0;
    }
    snprintf(names + strlen(names), room - strlen(names), "%s%s", *names ? ", " : "", scheme);
    *said = *err;
}

/* Plans one scheme and writes its line. Its timeline goes to *drawn. If deft is the only scheme, its chart
 * goes to out->svg instead. */
static ddp_status timeline_one(const timeline_arguments *a, const ddp_profile *p,
                               const ddp_timeline_options *o, int alone, ddp_timeline *drawn,
                               double *frequency, plan_output *out, ddp_error *err)
{
    double start = ddp_now();
    ddp_delayed_plan plan;
    plan_deft_request r;
    ddp_status status;

    if (o->scheme != DDP_SCHEME_DEFT) {
        status = ddp_plan_timeline(p, o, drawn, err);
        start = ddp_now() - start;
        if (status != DDP_OK) return status;
        timeline_json(out->line, drawn, start, 0);
        timeline_json(out->json, drawn, start, 1);
        return DDP_OK;
    }
    timeline_deft_request(a, p, &r);
    status = plan_deft(p, &r, &plan, out->line, out->json, err);
    if (status != DDP_OK) return status;
    *frequency = plan.update_frequency;
    if (alone)
        deft_svg(out->svg, p, &r, &plan);
    else
        status = deft_timeline(p, &plan, drawn, err);
    ddp_delayed_plan_free(&plan);
    return status;
}

/* Plans all schemes, or one. With all, a scheme that fails is skipped with a message, and equal messages are
 * printed once. If all fail, returns the status of the last one. */
static ddp_status timeline_solve(const timeline_arguments *a, const ddp_profile *p, ddp_timeline_options *o,
                                 plan_output *out)
{
    int all = !strcmp(a->scheme, "all"), from = all ? 0 : (int)o->scheme, count = 0, good = 0, i;
    ddp_timeline drawn[DDP_SCHEME_DEFT + 1];
    ddp_status status = DDP_OK;
    double frequency = 0;
    char names[128] = "";
    ddp_error err, said;

    memset(&said, 0, sizeof said);
    for (i = from; i <= (all ? (int)DDP_SCHEME_DEFT : from); i++) {
        o->scheme = (ddp_scheme)i;
        status = timeline_one(a, p, o, !all, &drawn[count], &frequency, out, &err);
        if (status != DDP_OK && all)
            timeline_collect(names, sizeof names, ddp_scheme_name(o->scheme), &said, &err);
        else if (status != DDP_OK)
            timeline_say("", &err);
        good += status == DDP_OK;
        count += status == DDP_OK && (all || i < (int)DDP_SCHEME_DEFT);
    }
    if (*names) timeline_say(names, &said);
    if (count) timeline_svg(out->svg, p, drawn, count, frequency);
    while (count) ddp_timeline_free(&drawn[--count]);
    return good ? DDP_OK : status;
}

static int timeline_run(const timeline_arguments *a, const ddp_profile *p, ddp_timeline_options *o)
{
    plan_output out;

    if (!plan_output_open(&out, "plan timeline")) return 1;
    return plan_output_close(&out, "plan timeline", timeline_solve(a, p, o, &out), a->json, a->svg);
}

/* ---- the command line ---- */

/* Checks the options. Every given number must be above 0 (alpha: at least 0). Returns -1, or the exit
 * code. */
static int timeline_check(timeline_arguments *a)
{
    const char *name[] = {"--alpha",      "--partition",        "--partition-s",      "--credit",
                          "--bucket-mib", "--first-bucket-mib", "--target-frequency", "--capacity"};
    const double value[] = {a->alpha,  a->partition,    a->partition_s, a->credit,
                            a->bucket, a->first_bucket, a->frequency,   a->capacity};
    int i;

    if (!a->profile) return plan_usage("plan timeline", "--profile %s is needed", "FILE");
    if (a->workers >= 0 && !a->net)
        return plan_usage("plan timeline", "--workers needs %s", "--net RATE,DELAY");
    if (a->net && a->workers < 0)
        return plan_usage("plan timeline", "%s needs --workers N, at least 2", "--net");
    if (a->net && a->workers < 2)
        return plan_refuse("plan timeline", "--workers", (double)a->workers, "at least 2");
    for (i = 0; i < 8; i++)
        if (plan_given(value[i]) && (value[i] < 0 || (i > 0 && value[i] <= 0)))
            return plan_refuse("plan timeline", name[i], value[i], i ? "above 0" : "at least 0");
    if (plan_given(a->mu) && a->mu < 1)
        return plan_refuse("plan timeline", "--mu", a->mu,
                           "at least 1: time on the slow link divided by time on the fast link");
    if (a->links < 0) a->links = plan_given(a->mu) ? 2 : 1;
    if (a->links < 1 || a->links > 2)
        return plan_refuse("plan timeline", "--links", (double)a->links, "1 or 2");
    if (a->links == 2 && !plan_given(a->mu))
        return plan_usage("plan timeline", "--links 2 needs %s", "--mu X");
    if (plan_given(a->partition) && plan_given(a->partition_s))
        return plan_usage("plan timeline", "--partition and %s cannot be combined", "--partition-s");
    if (a->select && strcmp(a->select, "release") && strcmp(a->select, "paper"))
        return plan_usage("plan timeline", "selection '%s' is unknown; use release or paper", a->select);
    if (a->operations == 0) return plan_refuse("plan timeline", "--operations", 0, "at least 1");
    return -1;
}

static void timeline_options(const timeline_arguments *a, ddp_timeline_options *o)
{
    o->alpha_s = plan_given(a->alpha) ? a->alpha : 0;
    o->partition_params = plan_given(a->partition) ? a->partition : 0;
    o->partition_s = plan_given(a->partition_s) ? a->partition_s : 0;
    o->credit = plan_given(a->credit) ? a->credit : 0;
    o->operations = a->operations > 0 ? a->operations : 0;
    o->bucket_bytes = plan_given(a->bucket) ? a->bucket * 1048576 : 0;
    o->first_bucket_bytes = plan_given(a->first_bucket) ? a->first_bucket * 1048576 : 0;
}

static int plan_timeline(int argc, char **argv)
{
    static const char about[] =
        "Predicts the time of an iteration under S-SGD, WFBP, MG-WFBP, ASC-WFBP, ByteScheduler, US-Byte\n"
        "and DeFT. The profile is a CSV file with one row per bucket, input side first:\n"
        "layer,params,forward_s,backward_s,comm_s (times in seconds).";
    timeline_arguments a = {NULL,
                            "all",
                            NULL,
                            NULL,
                            NULL,
                            NULL,
                            PLAN_NOT_GIVEN,
                            PLAN_NOT_GIVEN,
                            PLAN_NOT_GIVEN,
                            PLAN_NOT_GIVEN,
                            PLAN_NOT_GIVEN,
                            PLAN_NOT_GIVEN,
                            PLAN_NOT_GIVEN,
                            PLAN_NOT_GIVEN,
                            PLAN_NOT_GIVEN,
                            0,
                            -1,
                            -1,
                            -1,
                            0,
                            0};
    const cli_option table[] = {
        {"Input", CLI_GROUP, NULL, NULL, NULL},
        {"--profile", CLI_TEXT, &a.profile, "P.csv", "profile of the buckets (.csv or .csv.gz)"},
        {"--net", CLI_TEXT, &a.net, "RATE,DELAY",
         "link, such as 100mbit,20ms, from which a missing comm_s is computed"},
        {"--workers", CLI_COUNT, &a.workers, "N", "with --net: number of workers"},
        {"--alpha", CLI_REAL, &a.alpha, "S", "start-up time included in every comm_s, in seconds"},
        {"--gap", CLI_REAL, &a.gap, "S", "per-message overhead of the link in seconds (default: 0)"},
        {"Schemes", CLI_GROUP, NULL, NULL, NULL},
        {"--scheme", CLI_TEXT, &a.scheme, "NAME",
         "ssgd, wfbp, mgwfbp, ascwfbp, bytescheduler, usbyte, deft or all (default: all)"},
        {"--partition", CLI_REAL, &a.partition, "PARAMS",
         "bytescheduler, usbyte, deft: parameters per part (default: 6.5e6)"},
        {"--partition-s", CLI_REAL, &a.partition_s, "SECONDS",
         "in place of --partition: link time per part in seconds"},
        {"--credit", CLI_REAL, &a.credit, "X", "bytescheduler: parts in flight (default: 1)"},
        {"--operations", CLI_COUNT, &a.operations, "K", "ascwfbp: concurrent operations (default: 4)"},
        {"--bucket-mib", CLI_REAL, &a.bucket, "MIB",
         "wfbp, ascwfbp: join rows into buckets of this size; PyTorch DDP uses 25 (default: no joining)"},
        {"--first-bucket-mib", CLI_REAL, &a.first_bucket, "MIB",
         "with --bucket-mib: size of the first bucket (default: 1)"},
        {"DeFT", CLI_GROUP, NULL, NULL, NULL},
        {"--links", CLI_COUNT, &a.links, "1|2", "number of links (default: 2 with --mu, else 1)"},
        {"--mu", CLI_REAL, &a.mu, "X", "time on the slow link divided by time on the fast link"},
        {"--select", CLI_TEXT, &a.select, "NAME",
         "rule that selects transfers: release, or paper for Algorithm 1 as printed (default: release)"},
        {"--target-frequency", CLI_REAL, &a.frequency, "PHI",
         "updates per iteration that the plan must reach"},
        {"--capacity", CLI_REAL, &a.capacity, "X", "factor on the capacity of the knapsacks (default: 1)"},
        {"--no-barrier", CLI_FLAG, &a.no_barrier, "",
         "plan transfers that overlap both forward and backward passes"},
        {"--schedule", CLI_FLAG, &a.schedule, "", "print the schedule of each iteration"},
        {"Output", CLI_GROUP, NULL, NULL, NULL},
        {"--svg", CLI_TEXT, &a.svg, "FILE",
         "chart of the iterations; with --scheme deft, of the steady period"},
        {"--json", CLI_TEXT, &a.json, "FILE", "file for the JSON lines, which are also printed"},
    };
    int code = cli_parse(argc, argv, about, table, (int)(sizeof table / sizeof table[0]));
    double rate = 0;
    ddp_timeline_options o;
    ddp_profile p;
    ddp_error err;
    ddp_link link;
    ddp_status status = DDP_OK;

    if (code >= 0) return code;
    memset(&o, 0, sizeof o);
    memset(&link, 0, sizeof link);
    code = timeline_check(&a);
    if (code >= 0) return code;
    timeline_options(&a, &o);
    if (strcmp(a.scheme, "all")) status = ddp_scheme_named(a.scheme, &o.scheme, &err);
    if (status == DDP_OK && a.net) status = ddp_net_parse(a.net, &rate, &link.alpha_s, &err);
    if (status != DDP_OK) return plan_usage("plan timeline", "%s", err.msg);
    /* reduce-scatter and all-gather: 2 (N-1)/N of the bytes over each uplink, two one-way delays */
    if (a.net && rate > 0) link.beta_s = 2.0 * (double)(a.workers - 1) / (double)a.workers / rate;
    link.alpha_s *= 2;
    status = ddp_profile_read(a.profile, a.net ? &link : NULL, &p, &err);
    if (status != DDP_OK) {
        fprintf(stderr, "plan timeline: %s\n", err.msg);
        return ddp_status_exit_code(status);
    }
    p.gap_s = a.gap;
    code = timeline_run(&a, &p, &o);
    ddp_profile_free(&p);
    return code;
}

#endif /* EXAMPLES_PLAN_TIMELINE_H */
