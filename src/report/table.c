/* Writes the summary table of a program. */
#include "config/config.h"
#include "config/names.h"
#include "report/page.h"

/* The step time of the baseline run divided by the step time of r. A value above 1 means that r is faster.
 * NAN without a baseline run. */
static double ddp__summary_ratio(const ddp_report_data *d, const ddp_report_run *r)
{
    const char *reference = ddp_strategy_name(DDP_SSGD);

    for (int i = 0; i < d->run_count; i++)
        if (d->runs[i].strategy && !strcmp(d->runs[i].strategy, reference) && r->step_ms > 0)
            return d->runs[i].step_ms / r->step_ms;
    return ddp__unknown();
}

void ddp__summary_cell(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, int column)
{
    static const char *const heading[DDP__SUMMARY_COLUMNS] = {
        "strategy", "step ms", "predicted", "vs ", "s to loss", "MB sent", "hidden %", "final loss"};
    static const int decimals[DDP__SUMMARY_COLUMNS] = {0,  -1, -1, 2, 1,
                                                       -1, 1,  4}; /* -1: 2 decimals below 10, otherwise 1 */
    double value[DDP__SUMMARY_COLUMNS], v;

    if (!r)
        ddp__text_addf(t, "%s%s", heading[column], column == 3 ? ddp_strategy_name(DDP_SSGD) : "");
    else if (column == 0)
        ddp__text_addf(t, "%s", r->strategy ? r->strategy : "-");
    if (!r || column == 0) return;
    value[1] = r->step_ms;
    value[2] = r->predicted_step_ms > 0 ? r->predicted_step_ms : ddp__unknown();
    value[3] = ddp__summary_ratio(d, r);
    value[4] = r->time_to_loss_s;
    value[5] = r->bytes_sent < 0 ? ddp__unknown() : (double)r->bytes_sent / 1e6;
    value[6] = r->hidden_pct;
    value[7] = r->final_loss;
    v = value[column];
    ddp__add_fixed(t, v, decimals[column] >= 0 ? decimals[column] : v < 10 ? 2 : 1);
    if (column == 3 && v > 0) ddp__text_addf(t, "x");
}

static void ddp__summary_text(ddp__text *t, const ddp_report_data *d)
{
    size_t width[DDP__SUMMARY_COLUMNS] = {0};
    ddp__text cell = DDP__ZEROS;

    /* the first pass measures, the second writes. Names are left-aligned, numbers right-aligned. */
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
    ddp__text t = DDP__ZEROS;

    ddp__summary_text(&t, d);
    return ddp__text_print(&t, out, "table", err);
}
