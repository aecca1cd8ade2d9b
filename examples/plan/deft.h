/* Scheme deft of `plan timeline`: the steady period of DeFT as JSON and as a chart. */
#ifndef EXAMPLES_PLAN_DEFT_H
#define EXAMPLES_PLAN_DEFT_H

#include "common.h"

/* The options of `plan timeline` for DeFT. All zero: one link, no alpha, no partition, select release. */
typedef struct plan_deft_request {
    long links; /* 0, 1 or 2 */
    double mu, alpha_s;
    double partition_s;      /* --partition-s, 0 if not given */
    double partition_params; /* --partition, 0 if not given */
    double frequency;        /* --target-frequency, 0 if not given */
    double capacity;         /* --capacity, 0 = 1 */
    int no_barrier, schedule;
    const char *select; /* "release", "paper", or NULL */
} plan_deft_request;

enum { DEFT_LANE = 15, DEFT_GAP = 3, DEFT_TOP = 92, DEFT_ROWS = 8, DEFT_PENDING = 2 };
static const double deft_left = 128, deft_width = 1040;

typedef struct deft_picture {
    FILE *f;
    const ddp_profile *p;
    const ddp_delayed_plan *plan;
    const char *select;
    double mu, scale;
    int pitch;
} deft_picture;

static const char *deft_bucket(const deft_picture *v, int i, char *out, size_t room)
{
    if (v->p->name && v->p->name[i] && v->p->name[i][0]) return v->p->name[i];
    snprintf(out, room, "bucket %d", i);
    return out;
}

/* Draws an interval. Its tooltip has `what`, the bucket, the part (-1 for the whole bucket), length and
 * start. */
static void deft_box(const deft_picture *v, int i, const char *what, int part, double from, double to, int y,
                     int pale)
{
    char own[32], t[2][32];
    double w = (to - from) * v->scale;

    if (!(to > from)) return;
    fprintf(v->f,
            "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"hsl(%d,%d%%,%d%%)\"%s>"
            "<title>%s ",
            deft_left + from * v->scale, y, w < 0.3 ? 0.3 : w, DEFT_LANE,
            v->p->layers > 1 ? 300 * i / (v->p->layers - 1) : 210, pale ? 55 : 62, pale ? 80 : 55,
            w > 3 ? " stroke=\"#fff\" stroke-width=\"0.7\"" : "", what);
    plan_xml(v->f, deft_bucket(v, i, own, sizeof own));
    if (part >= 0) fprintf(v->f, " part %d of %d", part + 1, v->plan->parts_of[i]);
    fprintf(v->f, ", %s from %s</title></rect>\n", plan_time(to - from, t[0], sizeof t[0]),
            plan_time(from, t[1], sizeof t[1]));
}

static void deft_label(const deft_picture *v, int y, const char *text)
{
    fprintf(v->f, "<text x=\"%.0f\" y=\"%d\" text-anchor=\"end\" class=\"small\">%s</text>\n", deft_left - 8,
            y + DEFT_LANE - 3, text);
}

/* Draws one iteration: compute, the fast link, the slow link, and the updates at its end. */
static void deft_row(const deft_picture *v, int t, int y)
{
    const ddp_delayed_step *s = &v->plan->step[t];
    double now = 0, end = s->forward_s + s->backward_s;
    int i, l, lane = DEFT_LANE + DEFT_GAP;

    fprintf(v->f, "<text x=\"12\" y=\"%d\" font-weight=\"bold\">%d</text>\n", y + DEFT_LANE - 3,
            t - v->plan->warmup);
    deft_label(v, y, "compute");
    deft_label(v, y + lane, v->plan->links == 2 ? "fast link" : "link");
    if (v->plan->links == 2) deft_label(v, y + 2 * lane, "slow link");
    for (i = 0; i < v->p->layers && v->p->forward_s; i++) {
        deft_box(v, i, "forward of", -1, now, now + v->p->forward_s[i], y, 1);
        now += v->p->forward_s[i];
    }
    for (now = s->forward_s, i = v->p->layers - 1; i >= 0; i--) {
        deft_box(v, i, "backward of", -1, now, now + v->p->backward_s[i], y, 0);
        now += v->p->backward_s[i];
    }
    for (i = s->first_send; i < s->first_send + s->sends; i++) {
        const ddp_delayed_send *d = &v->plan->send[i];
        deft_box(v, d->bucket, d->fresh ? "sending the new gradient of" : "sending the pending gradient of",
                 d->part, d->begin_s, d->end_s, y + lane * (1 + d->link), !d->fresh);
    }
    for (l = 0; l < 2; l++)
        fprintf(v->f, "<line x1=\"%.2f\" x2=\"%.2f\" y1=\"%d\" y2=\"%d\" stroke=\"#222\"%s/>\n",
                deft_left + (l ? end : s->forward_s) * v->scale,
                deft_left + (l ? end : s->forward_s) * v->scale, y - 3, y + lane * (1 + v->plan->links),
                l ? "" : " stroke-dasharray=\"3 3\"");
    if (!s->applied && !s->applied_now)
        fprintf(v->f, "<text x=\"%.1f\" y=\"%d\" class=\"small\">no update</text>\n",
                deft_left + end * v->scale + 8, y + lane + DEFT_LANE - 3);
    for (l = 0; l < 2; l++)
        if (l ? s->applied_now : s->applied)
            fprintf(v->f, "<text x=\"%.1f\" y=\"%d\" class=\"update\">update, k = %d</text>\n",
                    deft_left + end * v->scale + 8, y + lane * (1 + l) + DEFT_LANE - 3,
                    l ? s->applied_now : s->applied);
}

/* Draws the time axis, with about six marks at multiples of 1, 2 or 5 times a power of ten. */
static void deft_axis(const deft_picture *v, double longest, int y)
{
    double step = pow(10, floor(log10(longest / 4))), at;
    char t[32];
    int i;

    if (longest / step > 20)
        step *= 5;
    else if (longest / step > 8)
        step *= 2;
    for (i = 0; i * step <= longest; i++) {
        at = deft_left + i * step * v->scale;
        fprintf(v->f,
                "<line x1=\"%.2f\" x2=\"%.2f\" y1=\"%d\" y2=\"%d\" stroke=\"#999\"/><text "
                "x=\"%.2f\" y=\"%d\" text-anchor=\"middle\" class=\"small\">%s</text>\n",
                at, at, y, y + 5, at, y + 18, i ? plan_time(i * step, t, sizeof t) : "0");
    }
    fprintf(v->f, "<text x=\"%.0f\" y=\"%d\" text-anchor=\"end\" class=\"small\">time</text>\n",
            deft_left - 8, y + 18);
}

static void deft_legend(const deft_picture *v)
{
    char own[32], name[14];
    double x = deft_left;
    int i;

    if (v->p->layers > 10) return; /* the colours would be too similar. The tooltips have the names. */
    for (i = 0; i < v->p->layers; i++, x += 86) {
        snprintf(name, sizeof name, "%.12s", deft_bucket(v, i, own, sizeof own));
        fprintf(v->f,
                "<rect x=\"%.0f\" y=\"58\" width=\"11\" height=\"11\" fill=\"hsl(%d,62%%,55%%)\"/>"
                "<text x=\"%.0f\" y=\"68\" class=\"small\">",
                x, v->p->layers > 1 ? 300 * i / (v->p->layers - 1) : 210, x + 15);
        plan_xml(v->f, name);
        fprintf(v->f, "</text>\n");
    }
}

static void deft_svg(FILE *f, const ddp_profile *p, const plan_deft_request *r, const ddp_delayed_plan *plan)
{
    deft_picture v;
    char t[32];
    double longest = 0;
    int i, rows = plan->period < DEFT_ROWS ? plan->period : DEFT_ROWS, height;

    v.f = f;
    v.p = p;
    v.plan = plan;
    v.select = r->select ? r->select : "release";
    v.mu = r->mu;
    v.pitch = (DEFT_LANE + DEFT_GAP) * (1 + plan->links) + 14;
    for (i = plan->warmup; i < plan->warmup + rows; i++)
        if (plan->step[i].forward_s + plan->step[i].backward_s > longest)
            longest = plan->step[i].forward_s + plan->step[i].backward_s;
    v.scale = (deft_width - deft_left - 120) / longest;
    height = DEFT_TOP + rows * v.pitch + 40;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" viewBox=\"0 0 "
            "%.0f %d\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
            "<style>.small{fill:#555;font-size:11px}.update{fill:#1b6e3c;font-size:11px}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            deft_width, height, deft_width, height);
    fprintf(f,
            "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\">DeFT (%s), %d buckets "
            "in %d parts: %s per iteration, %d update%s in %d iteration%s</text>\n",
            v.select, plan->buckets, plan->parts, plan_time(plan->iteration_s, t, sizeof t), plan->updates,
            plan->updates == 1 ? "" : "s", plan->period, plan->period == 1 ? "" : "s");
    fprintf(f,
            "<text x=\"12\" y=\"44\" class=\"small\">one row per iteration of the steady period"
            "%s; dashed: end of forward; compute: pale = forward; links: pale = gradient of "
            "earlier iterations, dark = of this one</text>\n",
            rows < plan->period ? " (the first 8)" : "");
    deft_legend(&v);
    fprintf(f, "<text x=\"12\" y=\"%d\" class=\"small\">iteration</text>\n", DEFT_TOP - 12);
    for (i = 0; i < rows; i++) deft_row(&v, plan->warmup + i, DEFT_TOP + i * v.pitch);
    deft_axis(&v, longest, DEFT_TOP + rows * v.pitch);
    fprintf(f, "</svg>\n");
}

/* Writes the schedule of each iteration: first the warm-up, then the steady period, which a training loop
 * repeats. */
static void deft_schedule(FILE *f, const ddp_delayed_plan *plan)
{
    char s[2][32];

    fprintf(f, ", \"warmup\": %d, \"period\": %d, \"parts_of\": [", plan->warmup, plan->period);
    for (int i = 0; i < plan->buckets; i++) fprintf(f, "%s%d", i ? ", " : "", plan->parts_of[i]);
    fprintf(f, "], \"schedule\": [");
    for (int t = 0; t < plan->warmup + plan->period; t++) {
        const ddp_delayed_step *step = &plan->step[t];
        fprintf(
            f,
            "%s{\"forward_s\": %s, \"backward_s\": %s, \"opened\": %d, \"applied\": %d, \"applied_now\": %d, "
            "\"sends\": [",
            t ? ", " : "", plan_exact(step->forward_s, s[0], sizeof s[0]),
            plan_exact(step->backward_s, s[1], sizeof s[1]), step->opened, step->applied, step->applied_now);
        for (int i = step->first_send; i < step->first_send + step->sends; i++) {
            const ddp_delayed_send *x = &plan->send[i];
            fprintf(f,
                    "%s{\"bucket\": %d, \"part\": %d, \"fresh\": %s, \"link\": %d, \"begin_s\": %s, "
                    "\"end_s\": %s}",
                    i > step->first_send ? ", " : "", x->bucket, x->part, x->fresh ? "true" : "false",
                    x->link, plan_exact(x->begin_s, s[0], sizeof s[0]),
                    plan_exact(x->end_s, s[1], sizeof s[1]));
        }
        fprintf(f, "]}");
    }
    fprintf(f, "]");
}

static void deft_json(FILE *f, const ddp_delayed_plan *plan, const char *select, double seconds, int event,
                      int schedule)
{
    char t[3][32];
    int i;

    fprintf(f,
            "{%s\"scheme\": \"deft\", \"select\": \"%s\", \"links\": %d, \"iteration_s\": %s, "
            "\"lower_bound_s\": %s, \"update_frequency\": %s, \"k\": [",
            event ? "\"event\": \"plan\", " : "", select, plan->links,
            plan_exact(plan->iteration_s, t[0], sizeof t[0]),
            plan_exact(plan->lower_bound_s, t[1], sizeof t[1]),
            plan_exact(plan->update_frequency, t[2], sizeof t[2]));
    for (i = 0; i < plan->updates; i++) fprintf(f, "%s%d", i ? ", " : "", plan->k[i]);
    fprintf(f, "], \"delay\": [");
    for (i = 0; i < plan->updates; i++) fprintf(f, "%s%d", i ? ", " : "", plan->delay[i]);
    fprintf(f, "], \"buckets\": %d, \"parts\": %d, \"limited\": %s, \"solve_ms\": %.6f", plan->buckets,
            plan->parts, plan->limited ? "true" : "false", seconds * 1e3);
    if (schedule) deft_schedule(f, plan);
    fprintf(f, "}\n");
}

/* Builds a timeline that can be compared with the timelines of the baselines: the first steady iteration from
 * its backward pass on, then the next forward pass. The lane of a transfer is its link. DEFT_PENDING is added
 * for an older gradient and, without barrier, for a transfer after this backward pass. On DDP_MEMORY *out is
 * empty. */
static ddp_status deft_timeline(const ddp_profile *p, const ddp_delayed_plan *plan, ddp_timeline *out,
                                ddp_error *err)
{
    const ddp_delayed_step *s[2];
    double now = 0, shift[2];
    int i, k;

    memset(out, 0, sizeof *out);
    s[0] = &plan->step[plan->warmup];
    s[1] = &plan->step[plan->warmup + (plan->period > 1)];
    shift[0] = -s[0]->forward_s;
    shift[1] = s[0]->backward_s;
    out->interval =
        (ddp_interval *)calloc((size_t)(2 * p->layers + s[0]->sends + s[1]->sends), sizeof *out->interval);
    if (!out->interval) {
        snprintf(err->msg, sizeof err->msg, "no memory for a drawing of %d buckets", p->layers);
        return DDP_MEMORY;
    }
    out->scheme = DDP_SCHEME_DEFT;
    out->buckets = p->layers;
    out->iteration_s = plan->iteration_s;
    out->lower_bound_s = plan->lower_bound_s;
    for (i = 0; i < 2 * p->layers; i++) {
        ddp_interval *x = &out->interval[out->intervals++];
        if (i == p->layers) now = s[0]->backward_s; /* the stage may last longer than its compute */
        x->kind = i < p->layers ? DDP_INTERVAL_BACKWARD : DDP_INTERVAL_FORWARD;
        x->bucket = x->last = i < p->layers ? p->layers - 1 - i : i - p->layers;
        x->begin_s = now;
        if (i < p->layers)
            now += p->backward_s[x->bucket];
        else if (p->forward_s)
            now += p->forward_s[x->bucket];
        x->end_s = now;
    }
    for (k = 0; k < 2; k++) {
        for (i = s[k]->first_send; i < s[k]->first_send + s[k]->sends; i++) {
            const ddp_delayed_send *d = &plan->send[i];
            ddp_interval *x = &out->interval[out->intervals];
            if ((d->begin_s < s[k]->forward_s) != (k == 1)) continue;
            x->kind = DDP_INTERVAL_LINK;
            x->bucket = x->last = d->bucket;
            x->part = d->part;
            x->parts = 1;
            x->lane = d->link + (d->fresh && k == 0 ? 0 : DEFT_PENDING);
            x->begin_s = d->begin_s + shift[k];
            x->end_s = d->end_s + shift[k];
            out->intervals++;
        }
    }
    return DDP_OK;
}

/* Sets the default partition, the same as for the baselines. Without params in the profile there is no
 * partition. */
static void deft_default_partition(const ddp_profile *p, plan_deft_request *r)
{
    int l;

    if (r->partition_s > 0 || r->partition_params > 0) return;
    for (l = 0; l < p->layers; l++)
        if (p->comm_s[l] > 0 && p->params[l] > 0) r->partition_params = 6.5e6;
}

static ddp_status deft_options(const plan_deft_request *r, ddp_delayed_options *o, ddp_error *err)
{
    memset(o, 0, sizeof *o);
    o->links = (int)r->links;
    o->mu = r->mu;
    o->alpha_s = r->alpha_s;
    o->partition_s = r->partition_s;
    o->partition_params = r->partition_params;
    o->target_frequency = r->frequency;
    o->capacity_scale = r->capacity;
    o->no_barrier = r->no_barrier;
    return r->select ? ddp_delayed_select_named(r->select, &o->select, err) : DDP_OK;
}

/* Plans p. Writes one line with a JSON object to `line` and, with "event": "plan" in front, to `json`. The
 * caller frees *plan, which is unchanged on error. */
static ddp_status plan_deft(const ddp_profile *p, const plan_deft_request *r, ddp_delayed_plan *plan,
                            FILE *line, FILE *json, ddp_error *err)
{
    ddp_delayed_options o;
    double start = ddp_now();
    ddp_status status = deft_options(r, &o, err);

    if (status == DDP_OK) status = ddp_plan_delayed(p, &o, plan, err);
    if (status != DDP_OK) return status;
    start = ddp_now() - start;
    if (plan->limited)
        fprintf(stderr,
                "plan timeline: deft: the search reached its limit after %.1f s; a better plan may exist\n",
                start);
    deft_json(line, plan, ddp_delayed_select_name(o.select), start, 0, r->schedule);
    deft_json(json, plan, ddp_delayed_select_name(o.select), start, 1, r->schedule);
    return DDP_OK;
}

#endif /* EXAMPLES_PLAN_DEFT_H */
