/* The progress line and the closing table of a program. */
#include "report/page.h"
#include "run/config.h"

#define DDP__PROGRESS_LINE 256

void ddp_progress_start(ddp_progress *p, FILE *out, const char *label, long total)
{
    const char *term = getenv("TERM"), *plain = getenv("NO_COLOR");

    memset(p, 0, sizeof *p);
    p->out = out;
    p->label = label ? label : "";
    p->total = total;
    p->terminal = out && isatty(fileno(out));
    p->colour = p->terminal && !(plain && *plain) && !(term && !strcmp(term, "dumb"));
    p->every_s = p->terminal ? 0.1 : 10;
    p->start_s = p->shown_s = p->last_s = ddp_now();
}

static void ddp__progress_line(const ddp_progress *p, long done, double loss, char line[DDP__PROGRESS_LINE])
{
    const double tokens = p->tokens_per_s, ms = p->step_s * 1e3, left = (double)(p->total - done) * p->step_s;
    const int thousands = tokens >= 1e4, digits = snprintf(NULL, 0, "%ld", p->total);
    const long s = left < 3e8 ? lround(left) : 0;
    size_t n = (size_t)snprintf(line, DDP__PROGRESS_LINE, "%-11.30sstep %*ld/%ld", p->label, digits, done, p->total);

    if (loss >= -DBL_MAX && loss <= DBL_MAX)
        n += (size_t)snprintf(line + n, DDP__PROGRESS_LINE - n, "  loss %#.4g", loss);
    n += (size_t)snprintf(line + n, DDP__PROGRESS_LINE - n, "  %.*f ms/step", ms < 10 ? 2 : 1, ms);
    if (tokens > 0)
        n += (size_t)snprintf(line + n, DDP__PROGRESS_LINE - n, thousands ? "  %.1fk tok/s" : "  %.0f tok/s",
                              thousands ? tokens / 1e3 : tokens);
    if (done >= p->total) return;
    if (!(left < 3e8)) snprintf(line + n, DDP__PROGRESS_LINE - n, "  ETA ?");
    else if (s < 60) snprintf(line + n, DDP__PROGRESS_LINE - n, "  ETA %lds", s);
    else if (s < 3600) snprintf(line + n, DDP__PROGRESS_LINE - n, "  ETA %ldm%02lds", s / 60, s % 60);
    else snprintf(line + n, DDP__PROGRESS_LINE - n, "  ETA %ldh%02ldm", s / 3600, s / 60 % 60);
}

void ddp_progress_step(ddp_progress *p, long done, double loss, double tokens)
{
    char line[DDP__PROGRESS_LINE];
    double now = ddp_now(), took = now - p->last_s, keep;
    int n;

    if (!p->out) return;
    /* the mean forgets with a horizon of about 20 steps, and starts as a plain mean */
    keep = done < 20 ? 1 - 1 / (double)(done > 0 ? done : 1) : 0.95;
    p->step_s = keep * p->step_s + (1 - keep) * took;
    p->last_s = now;
    p->tokens_per_s = tokens > 0 && p->step_s > 0 ? tokens / p->step_s : 0;
    if (done < p->total && now - p->shown_s < p->every_s) return;
    p->shown_s = now;
    ddp__progress_line(p, done, loss, line);
    n = (int)strlen(line);
    if (p->terminal)
        fprintf(p->out, "\r%s%s%s%*s", p->colour ? "\033[1m" : "", line, p->colour ? "\033[0m" : "",
                p->width > n ? p->width - n : 0, "");
    else fprintf(p->out, "%s\n", line);
    p->width = n;
    fflush(p->out);
}

void ddp_progress_end(ddp_progress *p)
{
    if (p->out && p->terminal && p->width) fprintf(p->out, "\n");
    p->width = 0;
}

/* ---- the table ---- */

/* Step time of the run that others are measured against over that of r: above 1 = faster. NAN without such a run. */
static double ddp__summary_ratio(const ddp_report_data *d, const ddp_report_run *r)
{
    const char *reference = ddp_strategy_name(DDP_SSGD);

    for (int i = 0; i < d->run_count; i++)
        if (d->runs[i].strategy && !strcmp(d->runs[i].strategy, reference) && r->step_ms > 0)
            return d->runs[i].step_ms / r->step_ms;
    return (double)NAN;
}

void ddp__summary_cell(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, int column)
{
    static const char *const heading[DDP__SUMMARY_COLUMNS] = {"strategy", "step ms", "predicted", "vs ",
                                                              "s to loss", "MB sent", "hidden %", "final loss"};
    static const int decimals[DDP__SUMMARY_COLUMNS] = {0, -1, -1, 2, 1, -1, 1, 4}; /* -1: 2 below 10, else 1 */
    double value[DDP__SUMMARY_COLUMNS], v;

    if (!r) ddp__text_addf(t, "%s%s", heading[column], column == 3 ? ddp_strategy_name(DDP_SSGD) : "");
    else if (column == 0) ddp__text_addf(t, "%s", r->strategy ? r->strategy : "-");
    if (!r || column == 0) return;
    value[1] = r->step_ms;
    value[2] = r->predicted_step_ms > 0 ? r->predicted_step_ms : (double)NAN;
    value[3] = ddp__summary_ratio(d, r);
    value[4] = r->time_to_loss_s;
    value[5] = r->bytes_sent < 0 ? (double)NAN : (double)r->bytes_sent / 1e6;
    value[6] = r->hidden_pct;
    value[7] = r->final_loss;
    v = value[column];
    ddp__add_fixed(t, v, decimals[column] >= 0 ? decimals[column] : v < 10 ? 2 : 1);
    if (column == 3 && v > 0) ddp__text_addf(t, "x");
}

static void ddp__summary_text(ddp__text *t, const ddp_report_data *d)
{
    size_t width[DDP__SUMMARY_COLUMNS] = {0};
    ddp__text cell = {NULL, 0, 0, 0};

    /* the first pass measures, the second writes; names stand left, numbers right */
    for (int pass = 0; pass < 2; pass++)
        for (int row = -1; row < d->run_count; row++) {
            for (int c = 0; c < DDP__SUMMARY_COLUMNS && !cell.failed; c++) {
                cell.size = 0;
                ddp__summary_cell(&cell, d, row < 0 ? NULL : &d->runs[row], c);
                if (cell.size > width[c]) width[c] = cell.size;
                if (pass && !cell.failed) ddp__text_addf(t, c ? "  %*s" : "%-*s", (int)width[c], cell.data);
            }
            if (pass) ddp__text_addf(t, "\n");
        }
    if (cell.failed) t->failed = 1;
    ddp__text_free(&cell);
}

ddp_status ddp_report_table(const ddp_report_data *d, FILE *out, ddp_error *err)
{
    ddp__text t = {NULL, 0, 0, 0};

    ddp__summary_text(&t, d);
    return ddp__text_print(&t, out, "table", err);
}
