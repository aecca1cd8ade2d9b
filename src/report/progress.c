#include "base/platform.h"
#include "report/progress.h"
#include "base/clock.h"
#include "report/summary.h"

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

/* 7s, 3m05s, 2h07m */
static int ddp__progress_eta(char *out, size_t room, double s)
{
    long n = s < 3e8 ? lround(s) : 0;

    if (!(s < 3e8)) return snprintf(out, room, "?");
    if (n < 60) return snprintf(out, room, "%lds", n);
    if (n < 3600) return snprintf(out, room, "%ldm%02lds", n / 60, n % 60);
    return snprintf(out, room, "%ldh%02ldm", n / 3600, n / 60 % 60);
}

static void ddp__progress_line(const ddp_progress *p, long done, double loss,
                               char line[DDP__PROGRESS_LINE])
{
    char part[6][40], rate[2] = "";
    double tokens = p->tokens_per_s, ms = p->step_s * 1e3;
    int digits = snprintf(NULL, 0, "%ld", p->total);

    memset(part, 0, sizeof part);
    snprintf(part[0], sizeof part[0], "%-11.30s", p->label);
    snprintf(part[1], sizeof part[1], "step %*ld/%ld", digits, done, p->total);
    if (loss >= -DBL_MAX && loss <= DBL_MAX)
        snprintf(part[2], sizeof part[2], "  loss %#.4g", loss);
    snprintf(part[3], sizeof part[3], "  %.*f ms/step", ms < 10 ? 2 : 1, ms);
    if (tokens > 0) {
        if (tokens >= 1e4) rate[0] = 'k';
        snprintf(part[4], sizeof part[4], "  %.*f%s tok/s", rate[0] ? 1 : 0,
                 rate[0] ? tokens / 1e3 : tokens, rate);
    }
    if (done < p->total) {
        memcpy(part[5], "  ETA ", 6);
        ddp__progress_eta(part[5] + 6, sizeof part[5] - 6, (double)(p->total - done) * p->step_s);
    }
    snprintf(line, DDP__PROGRESS_LINE, "%s%s%s%s%s%s", part[0], part[1], part[2], part[3], part[4],
             part[5]);
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
    else
        fprintf(p->out, "%s\n", line);
    p->width = n;
    fflush(p->out);
}

void ddp_progress_end(ddp_progress *p)
{
    if (p->out && p->terminal && p->width) fprintf(p->out, "\n");
    p->width = 0;
}

ddp_status ddp_report_table(const ddp_report_data *d, FILE *out, ddp_error *err)
{
    ddp__text t;
    int bad, why;

    memset(&t, 0, sizeof t);
    ddp__summary_text(&t, d);
    if (t.failed) {
        ddp__text_free(&t);
        return ddp__fail(err, DDP_MEMORY, "cannot print the table of %d runs: out of memory",
                         d->run_count);
    }
    bad = fwrite(t.data, 1, t.size, out) != t.size || fflush(out);
    why = errno;
    ddp__text_free(&t);
    return bad ? ddp__fail(err, DDP_IO, "cannot print the table: %s", strerror(why)) : DDP_OK;
}
