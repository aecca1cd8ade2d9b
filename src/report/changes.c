#include "base/platform.h"
#include "report/changes.h"
#include "base/memory.h"
#include "report/summary.h"

enum { DDP__CHANGES_SHOWN = 24 }; /* rows for a run; what is older counts */

static const double ddp__changes_slow = 1.1; /* below it all ranks are alike */

static void ddp__changes_pace(ddp__text *t, const ddp_report_run *r)
{
    if (!(r->slow_ratio > 0) && r->replans == 0) return;
    ddp__text_addf(t, "<p class=\"note\">");
    ddp__add_escaped(t, r->strategy);
    ddp__text_addf(t, ": ");
    if (r->slow_ratio >= ddp__changes_slow) {
        ddp__text_addf(t, "rank %d computes ", r->slowest_rank);
        ddp__add_fixed(t, r->slow_ratio, 1);
        ddp__text_addf(t, " x slower than the median, and the others wait for it");
    } else if (r->slow_ratio > 0) {
        ddp__text_addf(t, "all ranks compute about equally fast");
    }
    if (r->replans > 0)
        ddp__text_addf(t, "%sthe link changed, planned again %ld time%s",
                       r->slow_ratio > 0 ? "; " : "", r->replans, r->replans > 1 ? "s" : "");
    ddp__text_addf(t, ".</p>\n");
}

static void ddp__changes_table(ddp__text *t, const ddp_report_run *r, int named)
{
    int i, first = r->note_count > DDP__CHANGES_SHOWN ? r->note_count - DDP__CHANGES_SHOWN : 0;

    if (r->note_count < 1) return;
    ddp__text_addf(t, "<div class=\"scroll\"><table class=\"words\">\n<tr>%s<th>step</th>"
                      "<th>seconds</th><th>what</th></tr>\n", named ? "<th>strategy</th>" : "");
    for (i = first; i < r->note_count; i++) {
        ddp__text_addf(t, "<tr>");
        if (named) {
            ddp__text_addf(t, "<td>");
            ddp__add_escaped(t, r->strategy);
            ddp__text_addf(t, "</td>");
        }
        ddp__text_addf(t, "<td>%ld</td><td>", r->notes[i].step);
        ddp__add_fixed(t, r->notes[i].time_s, 1);
        ddp__text_addf(t, "</td><td>");
        ddp__add_escaped(t, r->notes[i].text);
        ddp__text_addf(t, "</td></tr>\n");
    }
    ddp__text_addf(t, "</table></div>\n");
    if (first > 0) ddp__text_addf(t, "<p class=\"note\">%d earlier ones are left out.</p>\n", first);
}

void ddp__html_changes(ddp__text *t, const ddp_report_data *d)
{
    int i, any = 0;

    for (i = 0; i < d->run_count; i++)
        any |= d->runs[i].note_count > 0 || d->runs[i].slow_ratio >= ddp__changes_slow ||
               d->runs[i].replans > 0;
    if (!any) return;
    ddp__text_addf(t, "<h2>What changed</h2>\n");
    for (i = 0; i < d->run_count; i++) {
        ddp__changes_pace(t, &d->runs[i]);
        ddp__changes_table(t, &d->runs[i], d->run_count > 1);
    }
}

int ddp__changes_marks(ddp__text *t, const ddp_report_data *d, int over_time, ddp__mark **out)
{
    size_t all = 0;
    int i, k, n = 0;

    *out = NULL;
    for (i = 0; i < d->run_count; i++) all += (size_t)d->runs[i].note_count;
    if (all == 0) return 0;
    *out = (ddp__mark *)ddp__calloc(all, sizeof **out);
    if (!*out) {
        t->failed = 1;
        return 0;
    }
    for (i = 0; i < d->run_count; i++)
        for (k = 0; k < d->runs[i].note_count; k++) {
            const ddp_report_note *note = &d->runs[i].notes[k];
            if (note->kind && (!strcmp(note->kind, "slow") || !strcmp(note->kind, "even"))) continue;
            (*out)[n].x = over_time ? note->time_s : (double)note->step;
            (*out)[n++].text = note->text;
        }
    return n;
}
