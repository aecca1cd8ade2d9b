/* Writes the report as one HTML page. */
#include "report/page.h"

/* The colours of Okabe and Ito, which colour-blind readers can distinguish. Lines also differ by their
 * dashes. */
static const char ddp__html_head[] =
    "<style>\n:root{color-scheme:light "
    "dark;--bg:#fff;--fg:#1c2024;--dim:#667079;--rule:#dfe3e6;--soft:#f5f7f8;"
    "--k0:#8cc9ee;--k1:#2f7fb8;--k2:#009e73;--k3:#f3d3c0;--k4:#e69f00;--k5:#f0e442;--k6:#c9ced2;--s0:#0072b2;"
    "--s1:#6b747b;--s2:#d98f00;--s3:#cc79a7;--s4:#009e73;--s5:#d55e00;--s6:#56b4e9;--s7:#8a7a00}"
    "\n@media "
    "(prefers-color-scheme:dark){:root{--bg:#14181b;--fg:#e3e7ea;--dim:#98a3ab;--rule:#2d3439;--soft:#1d2327;"
    "--k0:#6fb3dc;--k1:#2a76ad;--k2:#12a37a;--k3:#553526;--k4:#e6a317;--k5:#e8dc4a;--k6:#4a5359;--s0:#4da8e0;"
    "--s1:#a3adb4;--s2:#e6a317;--s3:#dd93bb;--s4:#27b98f;--s5:#ee7d2b;--s6:#7cc7f2;--s7:#cdbb3a}}\nbody{"
    "margin:0 auto;"
    "padding:28px 24px 48px;max-width:1120px;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,"
    "-apple-system,'Segoe UI',Roboto,sans-serif}\nh1{font-size:25px;margin:0 0 6px;letter-spacing:-.01em}h2{"
    "font-size:18px;margin:36px 0 8px}h3{font-size:14px;margin:18px 0 2px;font-weight:600}h3 span,.note,dt{"
    "color:var(--dim);font-weight:400}\n.note{font-size:13px;margin:4px 0 10px}dl{display:grid;"
    "grid-template-columns:max-content 1fr;gap:1px "
    "16px;margin:0;font-size:14px}dd{margin:0;overflow-wrap:anywhere}"
    "dd code{font-size:13px}\n.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:14px;"
    "font-variant-numeric:tabular-nums}th,td{padding:4px 14px;text-align:right;border-bottom:1px solid "
    "var(--rule);"
    "white-space:nowrap}th{font-weight:600;color:var(--dim)}th:first-child,td:first-child{text-align:left;"
    "padding-left:6px}.words th:last-child,.words td:last-child{text-align:left;white-space:normal}tr.best "
    "td{"
    "font-weight:600;background:var(--soft)}\nsvg{display:block;width:100%;height:auto}svg "
    "text{font-size:11px;"
    "fill:var(--dim);font-family:system-ui,-apple-system,'Segoe "
    "UI',Roboto,sans-serif}.mid{text-anchor:middle}.end{"
    "text-anchor:end}.grid{stroke:var(--rule);stroke-width:1}.axis,.step,.mark{stroke:var(--dim);fill:none;"
    "stroke-width:1}.step{stroke-dasharray:2 2}.mark{stroke:var(--s5);stroke-width:1.5;stroke-dasharray:4 "
    "3}\n.charts{"
    "display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:8px 24px}@media "
    "(max-width:480px){"
    ".charts{grid-template-columns:1fr}}.charts h3{margin-bottom:4px}svg .label{font-size:11.5px}svg .name{"
    "font-size:12px;font-weight:600;fill:var(--c)}\n.line,.faint{fill:none;stroke:var(--c);stroke-width:1.8;"
    "stroke-linejoin:round}.faint{stroke-width:1;stroke-opacity:.22}.line.s0{stroke-width:2.8}.line.s2{"
    "stroke-dasharray:7 3}.line.s3{stroke-dasharray:2 2.5}.line.s4{stroke-dasharray:9 3 2 3}.line.s5{"
    "stroke-dasharray:5 2}.line.s6{stroke-dasharray:1.5 3}.line.s7{stroke-dasharray:12 4}.line.r1{"
    "stroke-dasharray:14 3 1 3}.line.r2{stroke-dasharray:1 4;stroke-width:2.6}\n.s0{--c:var(--s0)}.s1{"
    "--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.s5{--c:var(--s5)}.s6{--c:var(--s6)}"
    ".s7{"
    "--c:var(--s7)}\n.k0{--c:var(--k0)}.k1{--c:var(--k1)}.k2{--c:var(--k2)}.k3{--c:var(--k3)}.k4{--c:var(--"
    "k4)}.k5{"
    "--c:var(--k5)}.k6{--c:var(--k6)}.lanes "
    "rect{fill:var(--c);stroke:var(--bg);stroke-width:.4}\n.key{font-size:13px;"
    "color:var(--dim);margin:4px 0}.key i{display:inline-block;width:13px;height:11px;margin:0 5px 0 14px;"
    "background:var(--c);border-radius:2px}.key i:first-child{margin-left:0}\n</style>\n";

static void ddp__html_facts(ddp__text *t, const ddp_report_data *d)
{
    static const char *const name[] = {"command", "model", "network", "workers", "seed", "host", "version"};
    char workers[16], seed[32];
    const char *const value[] = {d->command, d->model, d->net,    d->workers > 0 ? workers : NULL,
                                 seed,       d->host,  d->version};

    snprintf(workers, sizeof workers, "%d", d->workers);
    snprintf(seed, sizeof seed, "%" PRIu64, d->seed);
    ddp__add_page(t, "<h1>$</h1>\n<dl>\n", d->title ? d->title : "dreamddp report");
    for (int i = 0; i < 7; i++)
        if (value[i] && *value[i])
            ddp__add_page(t, i ? "<dt>%s</dt><dd>$</dd>\n" : "<dt>%s</dt><dd><code>$</code></dd>\n", name[i],
                          value[i]);
    ddp__text_addf(t, "</dl>\n");
}

static void ddp__html_summary(ddp__text *t, const ddp_report_data *d)
{
    const ddp_report_run *best = NULL; /* the run with the smallest step time */

    if (d->run_count < 1) return;
    for (int i = 0; i < d->run_count; i++)
        if (d->runs[i].step_ms > 0 && (!best || d->runs[i].step_ms < best->step_ms)) best = &d->runs[i];
    ddp__text_addf(t, "<h2>Summary</h2>\n<div class=\"scroll\"><table>\n<tr>");
    for (int i = -1; i < d->run_count; i++) {
        const ddp_report_run *run = i < 0 ? NULL : &d->runs[i];
        const char *name = run && run->strategy ? run->strategy : "-";
        if (run) ddp__add_page(t, run == best ? "<tr class=\"best\"><td>$" : "<tr><td>$", name);
        for (int c = run ? 1 : 0; c < DDP__SUMMARY_COLUMNS; c++) {
            ddp__text_addf(t, run ? "</td><td>" : c ? "</th><th>" : "<th>");
            ddp__summary_cell(t, d, run, c);
        }
        ddp__text_addf(t, run ? "</td></tr>\n" : "</th></tr>\n");
    }
    ddp__text_addf(
        t, "</table></div>\n<p class=\"note\">MB sent: per worker, 1 MB = 10<sup>6</sup> bytes. Hidden: the "
           "share of the communication time during which the worker computes.");
    if (ddp__finite(d->target_loss) && d->target_loss > 0)
        ddp__add_page(t, " s to loss: seconds until the loss is @4 or below.", d->target_loss);
    ddp__text_addf(t, "</p>\n");
}

/* ---- changes during a run: stragglers, re-plans, lost workers ---- */

enum { DDP__CHANGES_SHOWN = 24 }; /* rows per run. Older changes are only counted */

static const double ddp__changes_slow = 1.1; /* below this ratio all ranks count as equally fast */

static void ddp__changes_pace(ddp__text *t, const ddp_report_run *r)
{
    if (!(r->slow_ratio > 0) && r->replans == 0) return;
    ddp__add_page(t, "<p class=\"note\">$: ", r->strategy);
    if (r->slow_ratio >= ddp__changes_slow)
        ddp__add_page(t, "rank %d computes ^1 x slower than the median, and the others wait for it",
                      r->slowest_rank, r->slow_ratio);
    else if (r->slow_ratio > 0)
        ddp__add_page(t, "all ranks compute about equally fast");
    if (r->replans > 0)
        ddp__add_page(t, "%sthe link changed, planned again %ld time%s", r->slow_ratio > 0 ? "; " : "",
                      r->replans, r->replans > 1 ? "s" : "");
    ddp__add_page(t, ".</p>\n");
}

static void ddp__changes_table(ddp__text *t, const ddp_report_run *r, int named)
{
    const int first = r->note_count > DDP__CHANGES_SHOWN ? r->note_count - DDP__CHANGES_SHOWN : 0;

    if (r->note_count < 1) return;
    ddp__text_addf(t,
                   "<div class=\"scroll\"><table class=\"words\">\n<tr>%s<th>step</th>"
                   "<th>seconds</th><th>what</th></tr>\n",
                   named ? "<th>strategy</th>" : "");
    for (int i = first; i < r->note_count; i++) {
        ddp__add_page(t, named ? "<tr><td>$</td>" : "<tr>", r->strategy);
        ddp__add_page(t, "<td>%ld</td><td>^1</td><td>$</td></tr>\n", r->notes[i].step, r->notes[i].time_s,
                      r->notes[i].text);
    }
    ddp__text_addf(t, "</table></div>\n");
    if (first > 0) ddp__add_page(t, "<p class=\"note\">%d earlier ones are left out.</p>\n", first);
}

/* Describes the slowest rank and the number of re-plans of each run, and adds a table of its notes, if any
 * of these are known. */
static void ddp__html_changes(ddp__text *t, const ddp_report_data *d)
{
    int any = 0;

    for (int i = 0; i < d->run_count; i++)
        any |=
            d->runs[i].note_count > 0 || d->runs[i].slow_ratio >= ddp__changes_slow || d->runs[i].replans > 0;
    if (!any) return;
    ddp__text_addf(t, "<h2>What changed</h2>\n");
    for (int i = 0; i < d->run_count; i++) {
        ddp__changes_pace(t, &d->runs[i]);
        ddp__changes_table(t, &d->runs[i], d->run_count > 1);
    }
}

/* ---- lanes ---- */

static long ddp__html_window_steps(const ddp_report_run *r, double begin, double end)
{
    long first = LONG_MAX, last = LONG_MIN;

    for (int i = 0; r->worker_count > 0 && i < r->workers[0].count; i++) {
        const ddp_span *s = &r->workers[0].spans[i];
        if (s->kind != DDP_SPAN_BACKWARD || s->end_s <= begin || s->begin_s >= end) continue;
        if (s->step < first) first = s->step;
        if (s->step > last) last = s->step;
    }
    return last >= first ? last - first + 1 : 0;
}

static void ddp__html_lanes(ddp__text *t, const ddp_report_data *d)
{
    double scale = 0, begin, end;
    unsigned kinds = 0;

    for (int i = 0; i < d->run_count; i++) {
        ddp__run_window(&d->runs[i], &begin, &end);
        if (end - begin > scale) scale = end - begin;
        for (int w = 0; w < d->runs[i].worker_count; w++)
            for (int k = 0; k < d->runs[i].workers[w].count; k++)
                kinds |= 1u << (d->runs[i].workers[w].spans[k].kind & 31);
    }
    if (!(scale > 0)) return;
    ddp__text_addf(t,
                   "<h2>Timeline of the ranks</h2>\n<p class=\"key\"><i class=\"k0\"></i>forward<i "
                   "class=\"k1\"></i>backward<i class=\"k2\"></i>update<i class=\"k3\"></i>waiting<i "
                   "class=\"k4\"></i>communication%s%s</p>\n<p class=\"note\">Upper lane of a rank: "
                   "computing; lower lane: its transfers. All pictures have the same time scale.</p>\n",
                   kinds & 1u << DDP_SPAN_FILL ? "<i class=\"k5\"></i>bubble filling" : "",
                   kinds & 1u << DDP_SPAN_PEER_WAIT ? "<i class=\"k6\"></i>waiting for a peer" : "");
    for (int i = 0; i < d->run_count; i++) {
        long steps;
        ddp__run_window(&d->runs[i], &begin, &end);
        steps = ddp__html_window_steps(&d->runs[i], begin, end);
        ddp__add_page(t, "<h3>$", d->runs[i].strategy);
        if (steps > 0)
            ddp__add_page(t, " <span>%ld step%s in @* ms</span>", steps, steps == 1 ? "" : "s",
                          end - begin < 0.1 ? 2 : 0, (end - begin) * 1e3);
        ddp__text_addf(t, "</h3>\n");
        ddp__svg_swimlanes(t, d, &d->runs[i], scale);
    }
}

/* ---- pipelines ---- */

enum { DDP__PIPELINES_SHOWN = 4 };

/* The number of pipelines recorded in a run. */
static int ddp__run_pipelines(const ddp_report_run *r)
{
    int most = 0;

    for (int w = 0; r->schedule && r->stages > 1 && w < r->worker_count; w++)
        if (r->workers[w].slots > 0 && r->workers[w].pipeline >= most) most = r->workers[w].pipeline + 1;
    return most;
}

/* Collects pipeline `number`. Its slots are written to `slot`. */
static void ddp__run_pipeline(const ddp_report_run *r, int number, ddp_pipeline_slot *slot,
                              ddp_report_pipeline *out)
{
    double busy = 0, end = 0;

    memset(out, 0, sizeof *out);
    for (int w = 0; w < r->worker_count; w++)
        for (int i = 0; r->workers[w].pipeline == number && i < r->workers[w].slots; i++)
            slot[out->slots++] = r->workers[w].slot[i];
    out->slot = slot;
    out->stages = r->stages;
    /* a step is measured from its computations. Messages are in between. */
    for (int i = 0, any = 0; i < out->slots; i++) {
        if (slot[i].boundary >= 0) continue;
        if (!any++ || slot[i].begin_s < out->begin_s) out->begin_s = slot[i].begin_s;
        if (slot[i].end_s > end) end = slot[i].end_s;
        busy += slot[i].end_s - slot[i].begin_s;
    }
    out->step_s = end - out->begin_s;
    if (out->step_s > 0) out->bubble_pct = 100 * (1 - busy / (out->step_s * out->stages));
}

static void ddp__html_pipelines(ddp__text *t, const ddp_report_run *r)
{
    const int all = ddp__run_pipelines(r), shown = all < DDP__PIPELINES_SHOWN ? all : DDP__PIPELINES_SHOWN;
    ddp_report_pipeline p[DDP__PIPELINES_SHOWN];
    ddp_pipeline_slot *slot, *at;
    char name[DDP__PIPELINES_SHOWN][80];
    size_t room = 0;

    if (!all) return;
    for (int w = 0; w < r->worker_count; w++) room += (size_t)r->workers[w].slots;
    slot = at = (ddp_pipeline_slot *)ddp__calloc(room, sizeof *slot);
    if (!slot) t->failed = 1;
    ddp__text_addf(t, "<h2>A step of the pipeline</h2>\n");
    for (int i = 0; i < shown && slot; i++) {
        ddp__run_pipeline(r, i, at, &p[i]);
        at += p[i].slots;
        snprintf(name[i], sizeof name[i], "%.20s, %d stages, pipeline %d of %d", r->schedule, r->stages, i,
                 all);
        p[i].name = name[i];
    }
    if (slot) ddp__svg_stages(t, "", p, shown);
    DDP_FREE(slot);
}

/* ---- charts ---- */

static void ddp__html_charts(ddp__text *t, const ddp_report_data *d)
{
    static const char *const heading[] = {"Loss against time", "Loss against bytes sent",
                                          "Model divergence &#915; where workers are averaged"};
    int loss = 0, divergence = 0, marks = 0, most = 0, over;

    for (int i = 0; i < d->run_count; i++) {
        if (d->runs[i].step_count > most) most = d->runs[i].step_count;
        for (int j = 0; j < d->runs[i].step_count; j++) {
            loss |= ddp__finite(d->runs[i].steps[j].loss);
            divergence |= d->runs[i].steps[j].divergence > 0;
        }
        for (int k = 0; k < d->runs[i].note_count; k++) marks |= ddp__note_marks(&d->runs[i].notes[k]);
    }
    if (!loss && !divergence) return;
    over = most / 25 > 1 ? (most / 25 < 200 ? most / 25 : 200) : 1; /* number of steps in a moving average,
                                                                       which the reader should follow */
    ddp__text_addf(t, "<h2>Training</h2>\n");
    if (over > 1 && loss)
        ddp__text_addf(t,
                       "<p class=\"note\">Loss: strong lines are means over the last %d steps, "
                       "pale ones the steps themselves.</p>\n",
                       over);
    if (marks)
        ddp__text_addf(t, "<p class=\"note\">Dashed upright lines: a worker was lost or joined, or "
                          "the plan was made again.</p>\n");
    ddp__text_addf(t, "<div class=\"charts\">\n");
    for (int k = DDP__CURVE_TIME; k <= DDP__CURVE_DIVERGENCE; k++) {
        if (!(k == DDP__CURVE_DIVERGENCE ? divergence : loss)) continue;
        ddp__text_addf(t, "<div><h3>%s</h3>\n", heading[k]);
        ddp__svg_chart(t, d, (ddp__curve)k, k == DDP__CURVE_DIVERGENCE ? 1 : over);
        ddp__text_addf(t, "</div>\n");
    }
    ddp__text_addf(t, "</div>\n");
}

/* ---- layers, prediction ---- */

/* The step of the period that averages a layer, then the steps that fill bubbles with it: "2 (+4)". */
static void ddp__html_plan_cell(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, int layer)
{
    int count = 0;

    ddp__text_addf(t, "<td>%d", r->step_of[layer]);
    for (int h = 0; r->fill && h < r->period; h++)
        if (r->fill[(size_t)h * (size_t)d->layer_count + (size_t)layer])
            ddp__text_addf(t, count++ ? ", %d" : " (+%d", h);
    ddp__text_addf(t, "%s</td>", count ? ")" : "");
}

static void ddp__html_layers(ddp__text *t, const ddp_report_data *d)
{
    if (d->layer_count < 1) return;
    ddp__text_addf(t, "<h2>Layers and schedule</h2>\n<div class=\"scroll\"><table>\n"
                      "<tr><th>layer</th><th>parameters</th><th>backward ms</th><th>transfer ms</th>");
    for (int i = 0; i < d->run_count; i++)
        if (d->runs[i].step_of && d->runs[i].period > 0)
            ddp__add_page(t, "<th>$: step of %d</th>", d->runs[i].strategy, d->runs[i].period);
    for (int i = 0; i < d->run_count; i++)
        if (d->runs[i].layer_divergence) ddp__add_page(t, "<th>&#915; $</th>", d->runs[i].strategy);
    ddp__text_addf(t, "</tr>\n");
    for (int l = 0; l < d->layer_count; l++) {
        const ddp_report_layer *layer = &d->layers[l];
        if (layer->name)
            ddp__add_page(t, "<tr><td>$", layer->name);
        else
            ddp__add_page(t, "<tr><td>%d", l);
        ddp__add_page(t, "</td><td>^0</td><td>^3</td><td>^3</td>", layer->params, layer->backward_s * 1e3,
                      layer->comm_s * 1e3);
        for (int i = 0; i < d->run_count; i++)
            if (d->runs[i].step_of && d->runs[i].period > 0) ddp__html_plan_cell(t, d, &d->runs[i], l);
        for (int i = 0; i < d->run_count; i++)
            if (d->runs[i].layer_divergence)
                ddp__text_addf(t, "<td>%.2e</td>", d->runs[i].layer_divergence[l]);
        ddp__text_addf(t, "</tr>\n");
    }
    ddp__text_addf(t, "</table></div>\n<p class=\"note\">Steps of the period count from 0; "
                      "(+n): averaged once more in step n, in a bubble of the link.</p>\n");
}

static void ddp__html_prediction(ddp__text *t, const ddp_report_data *d)
{
    int any = 0;

    for (int i = 0; i < d->run_count; i++) any |= d->runs[i].predicted_step_ms > 0;
    if (!any) return;
    ddp__text_addf(t, "<h2>Prediction and measurement</h2>\n<div class=\"scroll\"><table>\n"
                      "<tr><th>strategy</th><th>step ms predicted</th><th>measured</th><th>difference</th>"
                      "<th>hidden %% predicted</th><th>measured</th></tr>\n");
    for (int i = 0; i < d->run_count; i++) {
        const ddp_report_run *r = &d->runs[i];
        const double off = (r->step_ms / r->predicted_step_ms - 1) * 100;
        if (!(r->predicted_step_ms > 0)) continue;
        ddp__add_page(t, "<tr><td>$</td><td>^2</td><td>^2</td><td>%s^1 %%</td><td>^1</td><td>^1</td></tr>\n",
                      r->strategy, r->predicted_step_ms, r->step_ms, off > 0 ? "+" : "", off,
                      r->predicted_hidden_pct, r->hidden_pct);
    }
    ddp__text_addf(t, "</table></div>\n");
}

ddp_status ddp_report_html(const ddp_report_data *d, const char *path, ddp_error *err)
{
    ddp__text t = DDP__ZEROS;

    ddp__add_page(&t,
                  "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                  "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
                  "<title>$</title>\n%s</head>\n<body>\n",
                  d->title ? d->title : "dreamddp report", ddp__html_head);
    ddp__html_facts(&t, d);
    ddp__html_summary(&t, d);
    ddp__html_changes(&t, d);
    ddp__html_lanes(&t, d);
    for (int i = 0; i < d->run_count; i++) ddp__html_pipelines(&t, &d->runs[i]);
    ddp__html_charts(&t, d);
    ddp__html_layers(&t, d);
    ddp__html_prediction(&t, d);
    ddp__text_addf(&t, "</body>\n</html>\n");
    return ddp__text_write(&t, path, err);
}
