#include "base/platform.h"
#include "report/summary.h"

void ddp__add_fixed(ddp__text *t, double v, int decimals)
{
    long long unit = 1, n;
    int i;

    for (i = 0; i < decimals; i++) unit *= 10;
    if (!(fabs(v) < 9e18 / (double)unit)) { /* also not a number */
        ddp__text_addf(t, "-");
        return;
    }
    n = llround(v * (double)unit);
    if (n < 0) ddp__text_addf(t, "-");
    n = n < 0 ? -n : n;
    ddp__text_addf(t, "%lld", n / unit);
    if (decimals > 0) ddp__text_addf(t, ".%0*lld", decimals, n % unit);
}

void ddp__add_short(ddp__text *t, double v, int decimals)
{
    size_t before = t->size;

    ddp__add_fixed(t, v, decimals);
    if (t->failed || decimals < 1 || t->size < before + 3) return;
    while (t->data[t->size - 1] == '0') t->size--;
    if (t->data[t->size - 1] == '.') t->size--;
    t->data[t->size] = 0;
}

const char *ddp__summary_heading(int column)
{
    static const char *const heading[DDP__SUMMARY_COLUMNS] = {
        "strategy", "step ms", "vs ssgd", "s to loss", "MB sent", "hidden %", "final loss"};

    return heading[column];
}

double ddp__summary_ratio(const ddp_report_data *d, const ddp_report_run *r)
{
    int i;

    for (i = 0; i < d->run_count; i++) {
        const ddp_report_run *base = &d->runs[i];

        if (base->strategy && !strcmp(base->strategy, "ssgd") && r->step_ms > 0)
            return base->step_ms / r->step_ms;
    }
    return (double)NAN;
}

const ddp_report_run *ddp__summary_fastest(const ddp_report_data *d)
{
    const ddp_report_run *best = NULL;
    int i;

    for (i = 0; i < d->run_count; i++)
        if (d->runs[i].step_ms > 0 && (!best || d->runs[i].step_ms < best->step_ms))
            best = &d->runs[i];
    return best;
}

void ddp__summary_cell(ddp__text *t, const ddp_report_data *d, const ddp_report_run *r, int column)
{
    double ratio;

    switch (column) {
    case 0: ddp__text_addf(t, "%s", r->strategy ? r->strategy : "-"); break;
    case 1: ddp__add_fixed(t, r->step_ms, r->step_ms < 10 ? 2 : 1); break;
    case 2:
        ratio = ddp__summary_ratio(d, r);
        ddp__add_fixed(t, ratio, 2);
        if (ratio > 0) ddp__text_addf(t, "x");
        break;
    case 3: ddp__add_fixed(t, r->time_to_loss_s, 1); break;
    case 4:
        ddp__add_fixed(t, r->bytes_sent < 0 ? (double)NAN : (double)r->bytes_sent / 1e6,
                       r->bytes_sent < 10000000 ? 2 : 1);
        break;
    case 5: ddp__add_fixed(t, r->hidden_pct, 1); break;
    default: ddp__add_fixed(t, r->final_loss, 4); break;
    }
}

void ddp__summary_text(ddp__text *t, const ddp_report_data *d)
{
    size_t width[DDP__SUMMARY_COLUMNS];
    ddp__text cell;
    int row, c, pass;

    memset(&cell, 0, sizeof cell);
    for (c = 0; c < DDP__SUMMARY_COLUMNS; c++) width[c] = strlen(ddp__summary_heading(c));
    /* the first pass measures, the second writes; names stand left, numbers right */
    for (pass = 0; pass < 2; pass++) {
        for (row = -1; row < d->run_count; row++) {
            for (c = 0; c < DDP__SUMMARY_COLUMNS; c++) {
                int w = (int)width[c];

                cell.size = 0;
                if (row < 0)
                    ddp__text_addf(&cell, "%s", ddp__summary_heading(c));
                else
                    ddp__summary_cell(&cell, d, &d->runs[row], c);
                if (cell.failed) break;
                if (pass == 0)
                    width[c] = cell.size > width[c] ? cell.size : width[c];
                else if (c == 0)
                    ddp__text_addf(t, "%-*s", w, cell.data);
                else
                    ddp__text_addf(t, "  %*s", w, cell.data);
            }
            if (pass == 1) ddp__text_addf(t, "\n");
        }
    }
    if (cell.failed) t->failed = 1;
    ddp__text_free(&cell);
}
